#!/bin/bash
# tests/scripts/bench.sh -- scripts/peers/compare.py over stand-ins for `train` and PyTorch: the ratio of known
# times, one program that ends in its turn, the comparison killed: nothing is left, stopped or not. What the
# benchmarks say of arguments that they cannot take; none of them goes on.
cd "$(dirname "$0")/../.." || exit 2
work=${WORK:-$(mktemp -d)} python=${PYTHON:-python3}
command -v "$python" > /dev/null || { echo "python3 is missing"; exit 77; }
mkdir -p "$work/scripts/peers" "$work/configs/bench" "$work/py/torch"
cp scripts/gpu.py "$work/scripts" && cp scripts/peers/compare.py "$work/scripts/peers" || exit 1
touch "$work/configs/bench/gpt2-124m.yaml" "$work/configs/bench/other.yaml"
echo '__version__ = "none"' > "$work/py/torch/__init__.py"
cat > "$work/py/numpy.py" <<'PYTHON'
class Tokens(bytes):
    astype = lambda self, type: self
    tofile = lambda self, path: open(path, "wb").write(self)
class random:
    class RandomState:
        def __init__(self, seed): pass
        def randint(self, low, high, n): return Tokens(4)
uint16 = None
PYTHON
cat > "$work/scripts/peers/gpt_torch.py" <<'PYTHON'
import json, sys, time
def read_config(path):
    return {"global_batch_size": 10, "seq_length": 10, "vocab_size": 100}
if __name__ == "__main__":
    while True:
        time.sleep(0.01)
        print(json.dumps({"elapsed_ms": 30.0 if "--eager" in sys.argv else 20.0}), flush=True)
PYTHON
cat > "$work/train.py" <<'PYTHON'
import os, sys, time
run = next(a[5:] for a in sys.argv if a.startswith("save="))
os.makedirs(run)
with open(f"{run}/metrics.jsonl", "w", buffering=1) as f:
    for n in range(1, int(os.environ.get("LAST", "1000000"))):
        time.sleep(0.01)
        print(f'{{"iteration": {n}, "elapsed_ms": 10.0}}', file=f)
sys.exit(9)
PYTHON
printf '#!/bin/sh\nexec "%s" train.py "$@"\n' "$python" > "$work/train"
chmod +x "$work/train"
fail() { echo "not as it must be: $1"; cat "$work/said"; exit 1; }
compared() (cd "$work" && PYTHONPATH=py exec "$python" scripts/peers/compare.py "$@")
compare() { compared "$@" > "$work/said" 2>&1; }
here() { # processes of the comparison, by their folder
    ls -ld /proc/[0-9]*/cwd 2> /dev/null | sed -n "s|.* /proc/\([0-9]*\)/cwd -> $work\$|\1|p"
}
nothing_left() {
    for _ in $(seq 600); do
        [ -n "$(here)" ] || return
        sleep 0.1
    done
    # shellcheck disable=SC2046
    ps -o pid,stat,args -p $(here | paste -sd,) >> "$work/said"
    # shellcheck disable=SC2046
    kill -KILL $(here)
    fail "$1: processes are left"
}

compare --rounds 2 --steps 2 --dtype bf16 || fail "two rounds"
grep -q '^| train / torch compiled | bf16 | 2.00x | 2.00x | 2.00x |$' "$work/said" &&
    grep -q '^| torch  *| bf16 |  3333.3 |  3333.3 |  3333.3 |$' "$work/said" || fail "ratio and rates"
grep -q '"ratio": 2.0' "$work/build/bench/result.json" || fail "the file"
nothing_left "two rounds"
! LAST=9 compare --rounds 9 --steps 4 --dtype fp32 || fail "a program that ends is no failure"
[ "$(tail -n 1 "$work/said")" = "train ended with 9; change: see build/bench/train.log" ] &&
    ! grep -q Traceback "$work/said" || fail "a program that ends"
nothing_left "a program that ends in its turn"
compare --rounds 100000 --dtype fp32 &
until [ "$(here | wc -l)" -ge 4 ] && grep -q '^|---' "$work/said"; do
    kill -0 $! 2> /dev/null || fail "the comparison has ended"
    sleep 0.1
done
for p in $(here); do ! tr '\0' ' ' < "/proc/$p/cmdline" | grep -q compare.py || kill -KILL "$p"; done
nothing_left "the comparison is killed"

refused() { # TEXT COMMAND ...: ends with 1 or 2, TEXT and no traceback
    text=$1
    shift
    "$@" > "$work/said" 2>&1
    rc=$?
    [ $rc = 1 ] || [ $rc = 2 ] || fail "$*: rc $rc"
    grep -qe "$text" "$work/said" && ! grep -q Traceback "$work/said" || fail "$*"
}
rm "$work/build/bench/result.json"
for option in '--rounds 0' '--steps 0' '--rounds -1' '--steps x'; do
    # shellcheck disable=SC2086
    refused 'a number from 1 on' compared $option
done
refused '/typo.yaml; change: a NAME of gpt2-124m, other' compared other typo
[ ! -e "$work/build/bench/result.json" ] || fail "something is measured before a name is refused"
for script in context_bench expert_bench scaling recovery_bench; do
    refused "is no number from 1 on; change: scripts/$script" timeout 60 scripts/$script --help
    refused "is no number from 1 on; change: scripts/$script" timeout 60 scripts/$script 0
done
# what the training says where it fails, instead of a wait without end
cat > "$work/bad" <<SH
#!/bin/sh
[ "\$1" != tokenize ] || exec "$TRAIN" "\$@"
echo "error[here] it fails; change: nothing" >&2
exit 3
SH
chmod +x "$work/bad"
refused 'error\[here\] it fails' env TRAIN="$work/bad" timeout 120 scripts/recovery_bench 1
# a peer on a CPU has its allocator's settings however the device is named
echo 'import os, sys; print(os.environ.get("GLIBC_TUNABLES")); sys.exit(0)' > "$work/py/torch/__init__.py"
for device in '--device cpu' --device=cpu; do
    # shellcheck disable=SC2086
    [ "$(PYTHONPATH=$work/py "$python" scripts/peers/gpt_torch.py none $device)" = glibc.malloc.hugetlb=1 ] ||
        fail "$device: not with the settings of a CPU"
done
echo "compared, and nothing left"
