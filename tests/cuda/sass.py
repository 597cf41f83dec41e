"""tests/cuda/sass.py CUBIN LOG ... -- counts instructions in the machine code of our attention kernels: products (HMMA),
loads of their operands (LDSM), local memory, narrow accesses of global memory. LOG: what ptxas -v said of the CUBIN.

An instruction has 16 bytes; its low 12 bits are the opcode, for sm_80, 90 and 100 alike, bits 73 to 75 the width of an
access. Exits with 1 when a count is not what the source makes: see `wanted`."""
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


def main(argv):
    bad, seen = 0, set()
    for cubin, log in zip(argv[1::2], argv[2::2]):
        said = open(log).read()
        stack = [int(x) for x in re.findall(r"(\d+) bytes stack frame", said)]
        registers = [int(x) for x in re.findall(r"Used (\d+) registers", said)]
        print(f"{log}: {len(stack)} kernels, {max(stack)} bytes of stack, {max(registers)} registers at most")
        if max(stack):
            bad, _ = 1, print("  a kernel spills")
        for name, code in sections(cubin):
            m = re.match(r"\.text\..*\d(k_attention_(?:fwd|bwd|keys))I.*?Li(\d+)ELb([01])E", name)
            if not m:
                continue
            key = m[1], int(m[2]), int(m[3])
            mma, ldsm, local, access, wide = counts(code)
            print(f"  {m[1]} {m[2]} {'dropout' if key[2] else ''}: {mma} products, {ldsm} loads of operands, {local} "
                  f"accesses of local memory, {wide} of {access} global accesses of 16 bytes")
            seen.add(key)
            if local:
                bad, _ = 1, print("    it uses local memory")
            if access - wide > NARROW[m[1]]:
                bad, _ = 1, print(f"    {access - wide} global accesses are narrower than 16 bytes")
            if key in WANTED and (mma, ldsm) != WANTED[key]:
                bad, _ = 1, print(f"    not {WANTED[key][0]} products and {WANTED[key][1]} loads")
    if missing := set(WANTED) - seen:
        bad, _ = 1, print("not found:", *sorted(missing))
    return bad


sys.exit(main(sys.argv))
