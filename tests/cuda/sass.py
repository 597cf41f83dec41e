"""tests/cuda/sass.py KIND CUBIN LOG ... -- counts instructions in the machine code of our kernels. KIND attention: products
(HMMA), loads of their operands (LDSM), local memory, narrow accesses of global memory. KIND memory: the kernels that
move memory: none uses local memory, and those for rows at multiples of 16 bytes access 16 bytes, but for what `MEMORY`
says. LOG: what ptxas -v said of the CUBIN.

An instruction has 16 bytes; its low 12 bits are the opcode, for sm_80, 90 and 100 alike, bits 73 to 75 the width of an
access. Exits with 1 when a count is not what the source makes: see `WANTED` and `MEMORY`."""
import re
import struct
import sys

HMMA, LDSM, LOCAL = {0x23C}, {0x83B}, {0x983, 0x387}
GLOBAL = {0x381, 0x981, 0x386, 0x986}
WIDE = 6
# narrower ones that a kernel may have: log-sum-exps, delta, starts of documents, samples
NARROW = {"k_attention_fwd": 6, "k_attention_bwd": 4, "k_attention_keys": 2}


def wanted(dim, mt, cols, scores):
    """Products and loads of a tile: `scores` of [16 mt][cols] over dim, then one product [16 mt][cols][dim]."""
    mma = scores * (dim // 16) * (cols // 8) * mt + (cols // 16) * (dim // 8) * mt
    ldsm = scores * (dim // 16) * (mt + cols // 16) + (cols // 16) * (dim // 16)
    return mma, ldsm


# kernel, head, dropout -> products and loads; tiles as in the sources
WANTED = {
    ("k_attention_fwd", 64, 0): wanted(64, 2, 64, 1),
    ("k_attention_fwd", 128, 0): wanted(128, 2, 48, 1),
    ("k_attention_bwd", 64, 0): wanted(64, 2, 64, 2),
    ("k_attention_bwd", 128, 0): wanted(128, 2, 32, 2),
    ("k_attention_keys", 64, 0): wanted(64, 2, 64, 1),
    ("k_attention_keys", 128, 0): wanted(128, 2, 32, 1),
}

B = r"I13__nv_bfloat16"
# start of a kernel's mangled name -> narrower accesses at most (None: it has a path by elements, too), 16-byte ones at
# least. Narrow ones: statistics of a row, its position, token, label or index; sums of a column; scales; FP8 rows
MEMORY = {
    "k_act_fwd" + B + "Li8E": (0, 4), "k_act_bwd" + B + "Li8E": (0, 6), "k_rope" + B + "Li8E": (1, 20),
    "k_norm_fwd" + B: (3, 4), "k_norm_bwd" + B: (4, 6), "k_norm_bwd_x" + B: (2, 24),
    "k_colsum" + B + "Li8E": (18, 4), "k_add" + B + "Li8E": (0, 12), "k_copy" + B + "S0_Li8E": (0, 8),
    "k_sum_parts" + B + "Li8E": (0, 7), "k_gather_rows" + B + "Li8E": (1, 2), "k_row_dots" + B + "Li8E": (1, 10),
    "k_scale_rows" + B + "Li8E": (1, 2), "k_sum_rows" + B + "Li8E": (5, 4), "k_embed" + B + "Li8E": (6, 10),
    "k_embed_sum" + B + "fLi8E": (10, 10), "k_embed_sum" + B + "S0_Li8E": (10, 8),
    "k_fp8_amaxI6Stored" + B: (0, 5), "k_fp8_amaxI9Activated" + B: (0, 1), "k_fp8_amaxI8Gradient" + B: (0, 2),
    "k_fp8_castI6Stored" + B: (9, 2), "k_fp8_castI9Activated" + B: (7, 3), "k_fp8_castI8Gradient" + B: (8, 3),
    "k_fp8_amaxI6Normed" + B: (3, 2), "k_fp8_castI6Normed" + B: (9, 3), "k_fp8_norm" + B: (12, 6),
    "k_xent" + B + "fLi8E": (None, 5), "k_xent" + B + "S0_Li8E": (None, 3), "k_xent_grad" + B + "fLi8E": (None, 5),
    "k_xent_grad" + B + "S0_Li8E": (None, 3), "k_xent_stats" + B + "Li8E": (None, 2),
    "k_updateI4Adam5Whole" + B: (None, 14), "k_updateI9LambApply6Halves": (None, 6),
}
# updates of halves: eight gradients of F32 are two accesses of 16 bytes, of BF16 one
for rule, least in ("4Adam", 14), ("3Sgd", 6), ("11SgdMomentum", 10), ("4Lars", 10), ("13LambDirection", 12):
    MEMORY["k_updateI" + rule + "6HalvesIfE"] = (None, least)
    MEMORY["k_updateI" + rule + "6Halves" + B + "E"] = (None, least - 1)


def sections(path):
    """Yields name and bytes of each section of an ELF file of 64 bits."""
    data = open(path, "rb").read()
    at, = struct.unpack_from("<Q", data, 40)
    size, n, names = struct.unpack_from("<HHH", data, 58)
    rows = [struct.unpack_from("<IIQQQQ", data, at + i * size) for i in range(n)]
    text = rows[names][4]
    for name, _, _, _, offset, length in rows:
        yield data[text + name:data.index(b"\0", text + name)].decode(), data[offset:offset + length]


def counts(code):
    """Counts of a kernel: products, loads of operands, local accesses, global accesses, those of them of 16 bytes."""
    got = [0] * 5
    for i in range(0, len(code), 16):
        low, high = struct.unpack_from("<QQ", code, i)
        op, wide = low & 0xFFF, high >> 9 & 7 == WIDE
        for j, kind in enumerate((HMMA, LDSM, LOCAL, GLOBAL)):
            got[j] += op in kind
        got[4] += op in GLOBAL and wide
    return got


def attention(name, code, seen):
    """Prints the counts of an attention kernel, and what is wrong with them. Returns whether something is."""
    m = re.match(r"\.text\..*\d(k_attention_(?:fwd|bwd|keys))I.*?Li(\d+)ELb([01])E", name)
    if not m:
        return False
    key = m[1], int(m[2]), int(m[3])
    mma, ldsm, local, access, wide = counts(code)
    print(f"  {m[1]} {m[2]} {'dropout' if key[2] else ''}: {mma} products, {ldsm} loads of operands, {local} "
          f"accesses of local memory, {wide} of {access} global accesses of 16 bytes")
    seen.add(key)
    bad = bool(local)
    if local:
        print("    it uses local memory")
    if access - wide > NARROW[m[1]]:
        bad = print(f"    {access - wide} global accesses are narrower than 16 bytes") is None
    if key in WANTED and (mma, ldsm) != WANTED[key]:
        bad = print(f"    not {WANTED[key][0]} products and {WANTED[key][1]} loads") is None
    return bad


def memory(name, code, seen):
    """The same for a kernel that moves memory."""
    m = re.match(r"\.text\..*?\d(k_\w+)", name)
    if not m:
        return False
    _, _, local, access, wide = counts(code)
    bad = bool(local)
    if local:
        print(f"  {m[1]}: {local} accesses of local memory")
    for key in (k for k in MEMORY if m[1].startswith(k)):
        narrow, least = MEMORY[key]
        seen.add(key)
        if narrow is not None and access - wide > narrow or wide < least:
            bad = print(f"  {m[1]}: {wide} of {access} global accesses of 16 bytes, wanted: {least} or more, "
                        f"{'any' if narrow is None else narrow} narrower") is None
    return bad


def main(argv):
    bad, seen, kind = 0, set(), {"attention": attention, "memory": memory}[argv[1]]
    for cubin, log in zip(argv[2::2], argv[3::2]):
        said = open(log).read()
        stack = [int(x) for x in re.findall(r"(\d+) bytes stack frame", said)]
        registers = [int(x) for x in re.findall(r"Used (\d+) registers", said)]
        print(f"{log}: {len(stack)} kernels, {max(stack)} bytes of stack, {max(registers)} registers at most")
        if max(stack):
            bad, _ = 1, print("  a kernel spills")
        for name, code in sections(cubin):
            bad |= kind(name, code, seen)
    if missing := set(WANTED if kind is attention else MEMORY) - seen:
        bad, _ = 1, print("not found:", *sorted(missing))
    return bad


sys.exit(main(sys.argv))
