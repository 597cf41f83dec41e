#!/bin/sh
# tests/parallel/rank_lost.sh -- ranks that die: in a collective, while others compute, all at once, or by a failure of
# their own. The job ends with one error line and the right exit code, and no rank is left. Four minutes are a hang.

. tests/signals.sh
export TRAIN="${TEST_COMM:-$BUILD/test_comm}"
failed=0
until_true() {  # COMMAND...: runs the command until it succeeds, for a minute at most
    for _ in $(seq 600); do
        "$@" && return
        sleep 0.1
    done
    return 1
}
none_left() { ! ps -eo args | grep -F "lost $1 $WORK" | grep -qv grep; }
check() {       # SITE CODE PATTERN [LINES]: exit code and error line; LINES: number of error lines, 1 if not given
    timeout 240 scripts/launch -n 4 lost "$1" "$WORK" > "$WORK/out" 2> "$WORK/errors"
    rc=$?
    lines=$(grep -c '^error\[' "$WORK/errors")
    if [ $rc != "$2" ] || [ "$lines" != "${4:-1}" ] || ! grep -q "$3" "$WORK/out" "$WORK/errors" ||
        [ "$(wc -l < "$WORK/errors")" != "${4:-1}" ]; then
        echo "# $1: exit $rc, $lines error lines"
        cat "$WORK/errors"
        failed=1
    fi
    until_true none_left "$1" || { echo "# $1: ranks are left"; failed=1; }
}
check kill    7 '^error\[rank-lost\].* rank 3 tp 3 cp 0 dp 0 pp 0 .*died in B2.0 of iteration 50;.*change: '
check compute 7 '^error\[rank-lost\].* rank 3 tp 3 cp 0 dp 0 pp 0 .*died in B2.0 of iteration 50;.*change: '
check all     7 '^error\[rank-lost\] \(\[rank [0-3] [^]]*\] \)\{0,1\}rank [0-3] tp .*died in B2.0 of iteration 50;.*change: '
check die     3 '^error\[test\] \[rank [13] tp [13] cp 0 dp 0 pp 0\]'
check unread  7 '^error\[rank-lost\].* rank 3 tp 3 cp 0 dp 0 pp 0 .*signal 14) died in B2.0 of iteration 50;.*change: '
check bug     8 '^error\[bug\] rank [0-3] tp'
check exit    1 '^# leaving' 0
# ranks that do not agree on an operation: on one host; with hosts of one rank, where sizes alone are compared
mismatch='^error\[comm-mismatch\] \[rank [0-3] tp .*\] .*group world'
check size      8 "$mismatch, operation 51: ranks [0-3] and [0-3] disagree; here it is all_reduce of 6[45] F32; change: "
check type      8 "$mismatch, operation 51: ranks [0-3] and [0-3] disagree; here it is all_reduce of 64 F[36][24]; change: "
check operation 8 "$mismatch, operation 51: ranks [0-3] and [0-3] disagree; here it is [abcdelorstu_]* of 64 F32; change: "
check message   8 "$mismatch: rank 0 sent 256 bytes of F32, rank 3 receives 260 of F32; change: "
export GRIDIRON_RANKS_PER_HOST=1
check size      8 "$mismatch, all_reduce of 6[45] F32: rank [0-3] of the world sent [a-z]* than the [0-9]* bytes .*; change: "
check type      8 "$mismatch, all_reduce of 64 F[36][24]: rank [0-3] of the world sent [a-z]* than the [0-9]* bytes .*; change: "
check message   8 "$mismatch, recv of 65 F32: rank 0 of the world sent fewer than the 260 bytes .*; change: "
unset GRIDIRON_RANKS_PER_HOST

# ranks that die in their start, under an mpirun that stands still
cat > "$WORK/early" <<'SH'
#!/bin/sh
sleep 1
kill -STOP $PPID
kill -KILL $$
SH
chmod +x "$WORK/early"
TRAIN=$WORK/early GRIDIRON_START_SECONDS=60 check early 7 '^error\[rank-lost\] a rank died in its start; change: '

# a crash: one error line names the signal, the rank and its instruction; the backtrace names static functions too
for signal in SEGV BUS FPE ABRT; do
    scripts/launch -n 4 lost $signal > "$WORK/out" 2> "$WORK/errors"
    rc=$?
    if [ $rc != 8 ] || [ "$(grep -c '^error\[' "$WORK/errors")" != 1 ] || grep -qv '^error\[\|^    #' "$WORK/errors" ||
        ! grep -q "^error\[crashed\] \[rank 3 tp 3 .*\] SIG$signal (signal [0-9]*.*) in B2.0 of iteration 50; change: " "$WORK/errors" ||
        ! grep -q '^    #[0-9]* \(make_mistake\|lost\)[.a-z0-9]*+0x' "$WORK/errors" || ! grep -q '^    #[0-9]* main+0x' "$WORK/errors"; then
        echo "# $signal: exit $rc"
        cat "$WORK/errors"
        failed=1
    fi
done

# start_four: four ranks that are on their way; sets launch, job, mpirun, ranks
start_four() {
    scripts/launch -n 4 lost nobody "$WORK" > "$WORK/out" 2> "$WORK/errors" &
    launch=$!
    until_true all_on_their_way || { echo "# four ranks do not start"; failed=1; }
    job=$(ps -eo pid=,ppid= | awk -v p=$launch '$2 == p {print $1}')
    mpirun=$(ps -eo pid=,ppid=,comm= | awk -v p="$job" '$2 == p && $3 ~ /^(mpirun|prterun)$/ {print $1}')
    ranks=$(ps -eo pid=,ppid= | awk -v p="$mpirun" '$2 == p {print $1}')
}
all_on_their_way() { [ "$(grep -c 'on its way' "$WORK/out")" = 4 ]; }
gone() { ! grep -qs '^State:.[^ZX]' "/proc/$1/status"; }
# ended WHAT SAYS: the job ends with 7 and this error line, and no rank is left
ended() {
    for pid in $ranks; do
        until_true gone "$pid" || { echo "# $1: rank $pid is left"; failed=1; }
    done
    wait $launch
    rc=$?
    if [ $rc != 7 ] || [ "$(echo "$ranks" | wc -w)" != 4 ] || ! grep -q "^error\[launcher-lost\] $2.*change: " "$WORK/errors"; then
        echo "# $1: exit $rc, ranks $ranks"
        cat "$WORK/errors"
        failed=1
    fi
}
# mpirun is killed: no rank outlives it
start_four
kill -9 "$mpirun"
ended "mpirun killed" 'mpirun was killed by signal 9'
# mpirun stands still and a rank is killed: what the others say reaches nobody
start_four
kill -STOP "$mpirun"
kill -9 "${ranks%%[!0-9]*}"
ended "mpirun stopped" 'mpirun stands still'
exit $failed
