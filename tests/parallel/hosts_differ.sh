#!/bin/sh
# tests/parallel/hosts_differ.sh -- four ranks as four hosts, of which one has another instruction set,
# another build, other threads, another folder for the run, or locks that do not hold: one error line, or one
# warning, names both ranks. What makes no difference to the results is accepted.
set -u
work=${WORK:?} launch=$PWD/scripts/launch faulty=$PWD/$BUILD/test_faults bad=0
. tests/tiny.sh
. tests/parallel/same.sh
"$TRAIN" tokenize src/io -o "$work/corpus" > /dev/null 2>&1 || exit 1
tiny "$work/tiny.yaml" train.train_iters=2 train.global_batch_size=4 checkpoint.save_interval=1
export GRIDIRON_RANKS_PER_HOST=1 ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}verify_asan_link_order=0"
fail() { bad=$((bad + 1)); echo "$*"; tail -n 4 "$work/log"; }

# with COMMANDS -- from now on rank 2 runs the shell's COMMANDS before it becomes the program
with() {
    mkdir -p "$work/here"
    cat > "$work/train" <<SH2
#!/bin/sh
cd "$work/here"
[ "\$OMPI_COMM_WORLD_RANK" != 2 ] || { $1; }
exec "\${COMMAND:-$faulty}" "\$@"
SH2
    chmod +x "$work/train"
}

# ends CODE LINE ARGUMENTS... -- a job of four ranks ends with CODE, and LINE (a pattern) is its one error
# line, with code 0 its one warning; LINE empty: there is no warning
ends() {
    code=$1 line=$2; shift 2
    rm -rf "$work/here/run"
    TRAIN=$work/train "$launch" -n 4 "$work/tiny.yaml" save=run "$@" > "$work/log" 2>&1
    rc=$?
    lines=$(grep -c '^error\[\|^warning: ' "$work/log")
    [ -n "$line" ] && wanted=1 || wanted=0
    [ $rc = "$code" ] && [ "$lines" = $wanted ] && grep -q "${line:-finished}" "$work/log" ||
        fail "$*: code $rc, $lines lines, wanted '$line'"
}

# another folder, which takes half a minute to be sure of: beside what follows
mkdir "$work/elsewhere"
cat > "$work/split" <<SH2
#!/bin/sh
[ "\$OMPI_COMM_WORLD_RANK" = 2 ] && cd "$work/elsewhere" || cd "$work"
exec "$TRAIN" "\$@"
SH2
chmod +x "$work/split"
TRAIN=$work/split "$launch" -n 4 "$work/tiny.yaml" save=apart > "$work/apart.log" 2>&1 &
apart=$!

with true
ends 0 ''
cp -r "$work/here/run" "$work/alike"
with 'export PRETEND_BUILD="gridiron 0"'
ends 2 '^error\[build-differs\] \[rank 2 .*rank 2 runs gridiron 0, and rank 0 gridiron .*; change: '
with 'export PRETEND_ISA=generic'
isa=$("$TRAIN" "$work/tiny.yaml" save="$work/one" | sed -n 's/.* on cpu (\([a-z0-9]*\),.*/\1/p')
case $isa in
generic) ;;
*) ends 2 '^error\[processors\] \[rank 2 .*rank 2 on .* with generic, and rank 0 .*cpu_isa=generic' ;;
esac
case $isa in
amx)    # the instruction sets differ in products of BF16 alone
    with 'export PRETEND_ISA=avx512'
    ends 0 ''
    same alike "$work/here/run" "amx and avx512"
    ends 2 '^error\[processors\] .* BF16 by f32, .* BF16 by amx.*cpu_isa=avx512' params_dtype=bf16 ;;
esac
with 'export PRETEND_THREADS=5'
ends 0 '^warning: rank 0 on host [^ ]* computes with [0-9]* threads, and rank 2 on host [^ ]* with 5'
same alike "$work/here/run" "other threads"

# locks that do not hold between hosts
cat > "$work/flock.c" <<'C'
int flock(int fd, int how) { return fd < 0 && how; }
C
${CC:-cc} -shared -fPIC -o "$work/flock.so" "$work/flock.c" || exit 1
with "export LD_PRELOAD='$work/flock.so'; COMMAND='$TRAIN'"
ends 0 '^warning: locks in run do not hold between ranks'

# a folder that a host sees late
mkdir "$work/late"
with "cd '$work/late'; (sleep 2; ln -sfn '$work/here/run' run) & true"
ends 0 ''
same alike "$work/here/run" "a folder that is seen late"

wait $apart
rc=$?
[ $rc = 5 ] && [ "$(grep -c '^error\[' "$work/apart.log")" = 1 ] && [ ! -e "$work/apart/checkpoints" ] &&
    grep -q '^error\[run-directory\] \[rank 2 .*rank 2 on .* does not see the folder apart .*; change: ' \
        "$work/apart.log" || { cp "$work/apart.log" "$work/log"; fail "another folder: code $rc"; }
[ $bad = 0 ]
