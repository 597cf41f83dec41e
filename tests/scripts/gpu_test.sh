#!/bin/sh
# tests/scripts/gpu_test.sh -- scripts/gpu_test over the emulated device: losses first, then rows of every
# kind. Then over programs that hang: no process is left of them, and the file holds all finished rows however
# the test ends.
cd "$(dirname "$0")/../.." || exit 2
work=${WORK:-$(mktemp -d)} here=$PWD
export EMULATED="${EMULATED:-build/emulated}"
fail() { echo "not as it must be: $1"; cat "$work/log"; exit 1; }
states() { sed -nE 's/^ *"(state|name)": "([^"]*)".*/\2/p' "$1" | paste -d= - - | sort | tr '\n' ';'; }

scripts/gpu_test --only '^(losses, heads of 128, fused|tp 2, sp|pp 2, zb-v|test_cuda_comm, (staged|nccl))$' --json "$work/real.json" > "$work/log" 2>&1 || fail "a row fails"
sed -n 1p "$work/log" | grep '^pass *losses, heads of 128, fused' > /dev/null || fail "losses are not the first row"
grep '5 passed, 0 failed, 0 not run' "$work/log" > /dev/null || fail "not the rows asked for"
scripts/gpu_test --only '^memcheck' --json "$work/none.json" > "$work/log" 2>&1 && fail "sanitizer rows unasked"
scripts/gpu_test --sanitizer --only '^memcheck test_cuda_copies' --json "$work/none.json" > "$work/log" 2>&1
grep '^not run *memcheck test_cuda_copies.*the device is emulated' "$work/log" > /dev/null || fail "no sanitizer rows"

# a folder of programs: test_cuda_b hangs with a child in a session of its own, the others end at once
mkdir -p "$work/x/scripts" "$work/x/fake"
cp scripts/gpu_test scripts/gpu.py "$work/x/scripts"
cd "$work/x" || exit 2
printf '#!/bin/sh\nexit 0\n' > fake/train
printf '#!/bin/sh\necho well\n' > fake/test_cuda_a
cat > fake/test_cuda_b <<'SH'
#!/bin/sh
trap '' TERM
setsid sh -c 'trap "" TERM; echo $$ > child; sleep 1000' &
wait
sleep 1000
SH
printf '#!/bin/sh\necho well\n' > fake/test_cuda_c
chmod +x fake/*
export EMULATED=fake
gone() { # waits until the row's child has ended
    for _ in $(seq 120); do kill -0 "$(cat child)" 2> /dev/null || return 0; sleep 0.5; done
    fail "a child of the row lives on"
}
scripts/gpu_test --only '^test_cuda_[abc]$' --minutes 0.2 --json one.json > "$work/log" 2>&1 && fail "a row that hangs passes"
[ "$(states one.json)" = "FAIL=test_cuda_b;not run=test_cuda_c;pass=test_cuda_a;" ] ||
    [ "$(states one.json)" = "test_cuda_a=pass;test_cuda_b=FAIL;test_cuda_c=not run;" ] || { states one.json; fail "other rows"; }
grep 'test_cuda_b.* not through after' "$work/log" > /dev/null && grep 'test_cuda_c .*no time was left' "$work/log" > /dev/null || fail "the limit is not told"
gone
for signal in TERM KILL; do
    rm -f child two.json
    scripts/gpu_test --only '^test_cuda_[abc]$' --json two.json > "$work/log" 2>&1 &
    job=$!
    while [ ! -s child ] && kill -0 $job; do sleep 0.1; done
    kill -$signal $job
    wait $job && fail "ended with 0 by SIG$signal"
    case $(states two.json) in *test_cuda_a*) ;; *) fail "SIG$signal: what had passed is not in the file" ;; esac
    if [ $signal = TERM ]; then gone; else kill -9 "$(cat child)"; fi
done
cd "$here" && echo "rows, limits and signals as they must be"
