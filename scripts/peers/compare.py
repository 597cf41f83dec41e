"""Runs `train` and PyTorch by turns on models of configs/bench and prints tokens/s:

    compare.py [--rounds 5] [--steps 4] [--dtype fp32|bf16]... [NAME ...]

NAME: a file of configs/bench (default gpt2-124m).

All programs are started once; then each in turn is let run for some steps while the others are stopped (SIGSTOP),
round after round, so that a slow minute of the machine slows all of them. Each program writes one JSON object a
step; the first step of a turn, in which it was woken, does not count. Called by scripts/bench."""

import argparse, json, os, platform, shutil, signal, statistics, subprocess, sys, time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.dirname(HERE))
import gpt_torch, gpu

FOLDER = "build/bench"
WARM_UP = 3                          # steps before the first turn, which touch pages and compile code


class Program:
    """A process that appends {"elapsed_ms"} lines to `path`; it runs only between resume and pause."""

    def __init__(self, name, command, path, env=None):
        self.name, self.path, self.ms = name, path, []
        log = open(os.path.join(FOLDER, name.replace(" ", "-") + ".log"), "w")
        out = open(path, "w") if path.endswith(".out") else log
        self.process = subprocess.Popen(command, stdout=out, stderr=log, env=env, start_new_session=True,
                                        preexec_fn=gpu.die_with_parent)
        self.log = log.name

    def steps(self):
        if not os.path.exists(self.path):
            return []
        with open(self.path) as f:
            lines = f.read().split("\n")[:-1]
        return [json.loads(line)["elapsed_ms"] for line in lines if '"elapsed_ms"' in line]

    def wait_for(self, n):
        while len(self.steps()) < n:
            if self.process.poll() is not None:
                sys.exit(f"{self.name} ended with {self.process.returncode}; change: see {self.log}")
            time.sleep(0.01)
        return self.steps()

    def turn(self, n):
        """Runs until n whole steps are done, and keeps their times."""
        before = len(self.steps())
        self.signal(signal.SIGCONT)
        steps = self.wait_for(before + 1 + n)
        self.signal(signal.SIGSTOP)
        self.ms.append(steps[before + 1:before + 1 + n])

    def signal(self, number):
        os.killpg(self.process.pid, number)

    def end(self):
        try:
            self.signal(signal.SIGKILL)
        except ProcessLookupError:   # it has ended by itself
            pass
        self.process.wait()


def cpu_name():
    with open("/proc/cpuinfo") as f:
        info = f.read()
    name = next((line.split(":")[1].strip() for line in info.split("\n") if line.startswith("model name")), "?")
    flags = [f for f in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if f" {f}" in info]
    return f"{name}, {len(os.sched_getaffinity(0))} cores, {' '.join(flags)}, Linux {platform.release()}"


def make_corpus(name, vocabulary):
    """Random tokens as a Megatron pair: speed does not depend on what they say."""
    import numpy, struct
    tokens = numpy.random.RandomState(0).randint(0, vocabulary, 1 << 20).astype(numpy.uint16)
    tokens.tofile(f"{FOLDER}/{name}.bin")
    with open(f"{FOLDER}/{name}.idx", "wb") as f:
        f.write(b"MMIDIDX\0\0" + struct.pack("<QBQQiqqq", 1, 8, 1, 2, len(tokens), 0, 0, 1))


def measure(name, dtype, rounds, steps, preload):
    shutil.rmtree(f"{FOLDER}/run", ignore_errors=True)
    config = f"configs/bench/{name}.yaml"
    peer = [sys.executable, f"{HERE}/gpt_torch.py", config, "--device", "cpu", "--dtype", dtype]
    env = os.environ | ({"LD_PRELOAD": preload} if preload else {})
    starts = [("train", ["./train", config, f"save={FOLDER}/run", f"params_dtype={dtype}"], f"{FOLDER}/run/metrics.jsonl", None),
              ("torch", peer + ["--eager"], f"{FOLDER}/torch.out", env),
              ("torch compiled", peer, f"{FOLDER}/compiled.out", env)]
    programs = []
    try:
        for start in starts:         # one by one: each warms up alone
            p = Program(*start)
            programs.append(p)
            p.wait_for(WARM_UP)
            p.signal(signal.SIGSTOP)
        for _ in range(rounds):
            for p in programs:
                p.turn(steps)
    finally:
        for p in programs:
            p.end()
    return programs


def report(dtype, tokens, programs):
    """A row a program: tokens/s over all counted steps. Ratio: train's median over the faster PyTorch's; its
    spread: the same of each round on its own."""
    rows = []

    def rate(ms):
        return tokens * 1e3 / ms

    for p in programs:
        ms = [t for turn in p.ms for t in turn]
        rows.append({"program": p.name, "dtype": dtype, "median": rate(statistics.median(ms)), "min": rate(max(ms)),
                     "max": rate(min(ms)), "steps": len(ms)})
    best = max(range(1, len(rows)), key=lambda i: rows[i]["median"])
    each = [statistics.median(b) / statistics.median(a) for a, b in zip(programs[0].ms, programs[best].ms)]
    for r in rows:
        print(f"| {r['program']:<14} | {dtype} | {r['median']:7.1f} | {r['min']:7.1f} | {r['max']:7.1f} |", flush=True)
    ratio = rows[0]["median"] / rows[best]["median"]
    print(f"| train / {rows[best]['program']} | {dtype} | {ratio:.2f}x | {min(each):.2f}x | {max(each):.2f}x |", flush=True)
    return {"rows": rows, "peer": rows[best]["program"], "ratio": ratio, "ratio_rounds": each}


ENDS = signal.SIGTERM, signal.SIGHUP


def stop(number, _):
    """Stopped programs with gigabytes of memory would be left. timeout(1) sends its signal twice."""
    for n in ENDS:
        signal.signal(n, signal.SIG_IGN)
    sys.exit(128 + number)


def positive(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a number from 1 on, not '{text}'")
    return int(text)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--steps", type=positive, default=4)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], action="append")
    parser.add_argument("--preload", default="")
    parser.add_argument("names", nargs="*", metavar="NAME", default=["gpt2-124m"])
    a = parser.parse_args()
    for name in a.names:
        if not os.path.exists(f"configs/bench/{name}.yaml"):
            known = sorted(f[:-5] for f in os.listdir("configs/bench") if f.endswith(".yaml"))
            sys.exit(f"error[usage] there is no configs/bench/{name}.yaml; change: a NAME of {', '.join(known)}")
    for number in ENDS:
        signal.signal(number, stop)
    import torch
    os.makedirs(FOLDER, exist_ok=True)
    print(f"{a.rounds} rounds of {a.steps} steps by turns\n{cpu_name()}\nPyTorch {torch.__version__}", flush=True)
    results = {}
    for name in a.names:
        c = gpt_torch.read_config(f"configs/bench/{name}.yaml")
        tokens = c["global_batch_size"] * c["seq_length"]
        make_corpus(name, c["vocab_size"])
        print(f"\n{name}: {tokens} tokens a step\n\n| program | dtype | tokens/s median | min | max |\n|---|---|---|---|---|",
              flush=True)
        results[name] = [report(d, tokens, measure(name, d, a.rounds, a.steps, a.preload)) for d in a.dtype or ["fp32", "bf16"]]
        gpu.write_json(f"{FOLDER}/result.json",      # after each: a later model may fail
                       {"machine": cpu_name(), "torch": torch.__version__, "results": results})


main()
