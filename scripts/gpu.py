"""What scripts/gpu_test and scripts/gpu_bench share: which build they run, how a program is started and ended, what
nvidia-smi says, tokens to train on, tables."""

import array, ctypes, glob, json, os, random, shutil, signal, struct, subprocess, sys, tempfile, time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")


def emulated():
    """The folder of the emulated build where EMULATED asks for it (1: build/emulated), else None."""
    asked = os.environ.get("EMULATED", "0")
    return None if asked in ("", "0") else "build/emulated" if asked == "1" else asked


# ---- programs ----

def ours():
    """The environment of our programs, with the libraries of a packed folder, which GRIDIRON_LIBRARIES names.
    Python and PyTorch do not get them: they were built with other releases of the same libraries."""
    found = os.environ.get("GRIDIRON_LIBRARIES")
    more = [p for p in (found, os.environ.get("LD_LIBRARY_PATH")) if p]
    return {**os.environ, **({"LD_LIBRARY_PATH": ":".join(more)} if found else {})}


def marked(mark):
    """The processes with the mark in their environment: a program and all its descendants."""
    found = []
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            with open(path, "rb") as f:
                if mark in f.read().split(b"\0"):
                    found.append(int(path.split("/")[2]))
        except OSError:                        # the process has ended, or is another user's
            pass
    return found


def end_all(process, mark, patience):
    """Ends a program and its descendants, because a living rank holds its GPU's memory. They have `patience`
    seconds to end by themselves. Returns the processes that survive SIGKILL: they hang in the driver."""
    if process.poll() is None:
        process.terminate()
    for again in range(int(10 * patience) + 50):
        left = marked(mark)
        if process.poll() is not None and not left:
            break
        if again >= 10 * patience:
            for pid in {*left, *([process.pid] if process.returncode is None else [])}:
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    pass
        time.sleep(0.1)
    return marked(mark)


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)     # PR_SET_PDEATHSIG


def run(command, limit, environment=None):
    """Return code, standard output, standard error, seconds. The code is None when the command has not ended within its
    limit. When this function returns, or its process dies, no process that the command started is left."""
    start, mark = time.time(), f"GRIDIRON_ROW={os.getpid()}.{time.time_ns()}"
    env = {**(ours() if environment is None else environment), "GRIDIRON_ROW": mark.split("=")[1]}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:   # pipes wait for grandchildren
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env,
                                   preexec_fn=die_with_parent)
        patience, code = 0, None
        try:
            code = process.wait(timeout=max(limit, 0.1))
            patience = 1
        except subprocess.TimeoutExpired:
            patience = 3
        finally:
            stuck = end_all(process, mark.encode(), patience)
        said = []
        for f in (out, err):
            f.seek(0)
            said.append(f.read().decode(errors="replace"))
    if stuck:
        said[1] += f"\nprocesses {stuck} cannot be ended: the driver holds them"
    return code, *said, time.time() - start


def why_failed(code, said, limit):
    return f"not through after {limit:.0f} s" if code is None else f"code {code}: {last_line(said)}"


def end_politely():
    """Makes SIGTERM and SIGHUP end the running program too."""
    for s in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(s, lambda number, frame: sys.exit(128 + number))


# ---- the GPU ----

def smi(*arguments):
    """The output of nvidia-smi; empty when it fails."""
    try:
        r = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, errors="replace", timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return r.stdout.strip() if r.returncode == 0 else ""


def gpus():
    """The number of GPUs."""
    return 8 if emulated() else sum(line.startswith("GPU ") for line in smi("-L").split("\n"))


FACTS = ["name", "driver_version", "memory.total", "memory.used", "compute_mode", "clocks.max.sm", "power.limit"]


def machine():
    """The first GPU, as nvidia-smi describes it; {} without nvidia-smi."""
    said = smi("-i", "0", f"--query-gpu={','.join(FACTS)}", "--format=csv,noheader,nounits").split("\n")[0].split(", ")
    return dict(zip(FACTS, said)) if len(said) == len(FACTS) else {}


def memory_used():
    """MiB of the first GPU's memory in use; None: not known."""
    said = smi("-i", "0", "--query-gpu=memory.used", "--format=csv,noheader,nounits").split("\n")[0]
    return int(said) if said.isdigit() else None


def wait_for_memory(before, seconds=20):
    """Waits until an ended program's GPU memory is free. Returns a text about memory still held, or ""."""
    end = time.time() + seconds
    while before is not None:
        held = memory_used()
        if held is None or held <= before + 256:
            break
        if time.time() > end:
            return f"; {held - before} MiB of the GPU are still held by what was ended"
        time.sleep(1)
    return ""


class Watch:
    """Clocks, power and temperature of the first GPU, twice a second while the block runs: .seen holds
    {name: [least, middle, most]}, empty without nvidia-smi."""
    WHAT = {"clocks.sm": "sm_mhz", "clocks.mem": "memory_mhz", "power.draw": "watts", "temperature.gpu": "celsius"}

    def __enter__(self):
        self.seen, self.file, self.process = {}, tempfile.TemporaryFile("w+"), None
        query = [*(["stdbuf", "-oL"] if shutil.which("stdbuf") else []), "nvidia-smi", "-i", "0",
                 f"--query-gpu={','.join(self.WHAT)}", "--format=csv,noheader,nounits", "-lms", "500"]
        if shutil.which("nvidia-smi"):
            self.process = subprocess.Popen(query, stdin=subprocess.DEVNULL, stdout=self.file, stderr=subprocess.DEVNULL,
                                            preexec_fn=die_with_parent)
        return self

    def __exit__(self, *_):
        if self.process:
            late = time.time() + 10            # a short row may end before nvidia-smi prints its first line
            while not os.fstat(self.file.fileno()).st_size and self.process.poll() is None and time.time() < late:
                time.sleep(0.05)
            self.process.kill()
            self.process.wait()
        self.file.seek(0)
        rows = [line.split(", ") for line in self.file.read().split("\n")]
        self.file.close()
        for i, name in enumerate(self.WHAT.values()):
            numbers = sorted(float(r[i]) for r in rows if len(r) == len(self.WHAT) and r[i].replace(".", "", 1).isdigit())
            if numbers:
                self.seen[name] = [numbers[0], numbers[len(numbers) // 2], numbers[-1]]


# ---- files and tables ----

def write_json(path, what):
    """Writes the file whole: a process that is ended meanwhile leaves the old file."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(f"{path}.part", "w") as f:
        json.dump(what, f, indent=1)
    os.replace(f"{path}.part", path)


def need(build, programs):
    """Makes the programs of the build that are missing; exits where nvcc is missing too."""
    missing = [p for p in programs if not os.path.exists(f"{build}/{p}")]
    if not missing:
        return
    kind = "emulated" if emulated() else "1"
    if kind == "1" and not shutil.which(os.environ.get("NVCC", "nvcc")):
        sys.exit(f"error[gpu] there is no {build}/{missing[0]}, and no nvcc to make it; change: where nvcc is, run "
                 "`make CUDA=1 cuda-tests`, or scripts/gpu_pack, and carry it here")
    jobs = os.cpu_count() or 1
    if subprocess.run(["make", "-s", f"-j{jobs}", f"CUDA={kind}", *(f"{build}/{p}" for p in missing)]).returncode:
        sys.exit(f"error[gpu] make CUDA={kind} failed; change: see above")


def make_tokens(prefix, vocabulary, n, code="H"):
    """Random tokens, low numbers more often, as a Megatron pair: of 16 bits, or with code "i" of 32."""
    kind = 8 if code == "H" else 4
    if os.path.exists(f"{prefix}.idx") and open(f"{prefix}.idx", "rb").read(18)[17:] == bytes([kind]):
        return
    os.makedirs(os.path.dirname(prefix), exist_ok=True)
    draw = random.Random(0)
    tokens = array.array(code, (int(vocabulary * draw.random() ** 2) for _ in range(n)))
    with open(f"{prefix}.bin", "wb") as f:
        tokens.tofile(f)
    with open(f"{prefix}.idx", "wb") as f:
        f.write(b"MMIDIDX\0\0" + struct.pack("<QBQQiqqq", 1, kind, 1, 2, len(tokens), 0, 0, 1))


def last_line(text):
    """The error line of a failed program's output, else the last line."""
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
