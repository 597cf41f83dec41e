"""What scripts/gpu_test and scripts/gpu_bench share: which build they run, tokens to train on, tables."""

import array, os, random, shutil, struct, subprocess, sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")


def emulated():
    """The folder of the emulated build where EMULATED asks for it (1: build/emulated), else None."""
    asked = os.environ.get("EMULATED", "0")
    return None if asked in ("", "0") else "build/emulated" if asked == "1" else asked


def gpus():
    """How many GPUs there are."""
    if emulated():
        return 8
    try:
        said = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, errors="replace").stdout
    except OSError:
        return 0
    return sum(line.startswith("GPU ") for line in said.split("\n"))


def need(build, programs):
    """The programs of the build are there, or nvcc makes them."""
    missing = [p for p in programs if not os.path.exists(f"{build}/{p}")]
    if not missing:
        return
    kind = "emulated" if emulated() else "1"
    if kind == "1" and not shutil.which(os.environ.get("NVCC", "nvcc")):
        sys.exit(f"error[gpu] there is no {build}/{missing[0]}, and no nvcc to make it; change: where nvcc is, run "
                 "`make CUDA=1 cuda-tests`, or scripts/gpu_pack, and carry the folder here")
    jobs = os.cpu_count() or 1
    if subprocess.run(["make", "-s", f"-j{jobs}", f"CUDA={kind}", *(f"{build}/{p}" for p in missing)]).returncode:
        sys.exit(f"error[gpu] make CUDA={kind} failed; change: see above")


def make_tokens(prefix, vocabulary, n):
    """Random tokens, low numbers more often, as a Megatron pair."""
    if os.path.exists(f"{prefix}.idx"):
        return
    os.makedirs(os.path.dirname(prefix), exist_ok=True)
    draw = random.Random(0)
    tokens = array.array("H", (int(vocabulary * draw.random() ** 2) for _ in range(n)))
    with open(f"{prefix}.bin", "wb") as f:
        tokens.tofile(f)
    with open(f"{prefix}.idx", "wb") as f:
        f.write(b"MMIDIDX\0\0" + struct.pack("<QBQQiqqq", 1, 8, 1, 2, len(tokens), 0, 0, 1))


def last_line(text):
    """What a program that failed said: its error line, else its last."""
    lines = [line for line in text.strip().split("\n") if line.strip()]
    said = [line for line in lines if line.startswith("error[")]
    return (said or lines or ["it said nothing"])[-1][:300]


def table(head, rows):
    """A Markdown table with aligned columns."""
    cells = [[str(c) for c in row] for row in rows]
    width = [max([len(h)] + [len(row[i]) for row in cells]) for i, h in enumerate(head)]
    print("| " + " | ".join(h.ljust(w) for h, w in zip(head, width)) + " |")
    print("|" + "|".join("-" * (w + 2) for w in width) + "|")
    for row in cells:
        print("| " + " | ".join(c.ljust(w) for c, w in zip(row, width)) + " |")
    sys.stdout.flush()
