#!/bin/sh
# tests/parallel/failures.sh [N] -- runs under scripts/launch --restarts in which a failure follows the other, at random
# instructions or moments of random ranks: SIGKILL, SIGSTOP, bad addresses, pages behind the end of a file, full disks,
# disks that fail, memory that runs out; now and then mpirun, or all ranks at once. As tensor 2 x pipeline 2 and as
# tensor 2 x data 2 with sharded parameters (ZeRO 3).
# Every run ends by itself with the weights, moments and metrics of an undisturbed run, and nothing is left of it. N: this
# many failures at least; without it, one run of each layout that together meet every kind of failure. SEED chooses others.
set -u
work=${WORK:-$(mktemp -d)} launch=$PWD/scripts/launch train=${TRAIN:-$PWD/$BUILD/train} faulty=$PWD/$BUILD/test_faults
wanted=${1:-0} seed=${SEED:-1}
. tests/tiny.sh
. tests/parallel/same.sh
export GRIDIRON_START_SECONDS=30
GRIDIRON_SHM=$(mktemp -d -p /dev/shm) || exit 1
export GRIDIRON_SHM
trap 'rm -rf "$GRIDIRON_SHM"' EXIT
. tests/parallel/planned.sh
steps=$([ "$wanted" = 0 ] && echo 40 || echo 240)
tiny "$work/tiny.yaml" model.num_layers=4 model.hidden_dropout=0.1 train.global_batch_size=8 train.train_iters="$steps" \
    optimizer.lr_decay_style=cosine
limits='max_failed_saves=1 hang_timeout=2 distributed_timeout_minutes=1'
fail() {
    bad=$((bad + 1)); echo "$*"
    cp "$work/log" "$work/log.$bad"
    cp "$work/plan" "$work/plan.$bad" 2> /dev/null
    grep -v ' iteration  ' "$work/log" | cut -c 1-300 | tail -n 12 | sed 's/^/    /'
}

# plan NAME SEED: lines of FAULT. A kind never follows itself, and every second failure comes after at least six steps of its
# process: two equal deaths, or three without a new step, would end a run. The others come after some instructions, up to
# six steps, or some time after the start of the process, so that start, load and save have theirs. The watch for hangs
# needs three steps before it knows how long one takes; a rank that stops earlier costs a minute.
plan() {
    awk -v name="$1" -v seed="$2" -v wanted="$wanted" 'BEGIN {
        srand(seed)
        all = name == "data" ? "kill full memory stop" : "segv bus eio stop"
        if (wanted)
            all = "kill kill kill segv segv bus bus full full eio eio memory memory stop mpirun"
        n = split(all, kind, " ")
        step = name == "data" ? 270 : 40
        for (i = 0; i < (wanted ? 200 : n); i++) {
            do
                how = kind[1 + (wanted ? int(rand() * n) : i)]
            while (how == last)
            last = how; delay = !wanted || rand() < 0.5 ? 0 : int(rand() * 3000)
            rank = how == "kill" && rand() < 0.15 ? -2 : int(rand() * 4)
            first = wanted && i % 2 ? 6 : how == "stop" ? 3.5 : 0
            if (wanted && i % 2 == 0 && rand() < (how == "stop" ? 0.05 : 0.4))
                print rank, "start", 0, int(rand() * 800000), how
            else
                print rank, "note", 1 + int(step * (first + rand() * (first < 6 ? 6 - first : 3))), delay, how
        }
    }'
}

left() { # what is still there of the job: processes, files, shared memory
    for pid in "$FAULT_DIR"/[0-9]*; do
        ! grep -qs '^State:.[^ZX]' "/proc/${pid##*/}/status" || ! grep -qs "$work" "/proc/${pid##*/}/environ" ||
            echo "process ${pid##*/}"
    done
    ls -A "$TMPDIR"
    ls -A "$GRIDIRON_SHM"
}

# disturbed NAME SEED SETTING... -- every second pair of runs keeps copies in memory
disturbed() {
    name=$1 seed_of_run=$2; shift 2
    rm -rf "$work/run" "$work"/starts.* "$FAULT_DIR"
    mkdir "$FAULT_DIR"
    plan "$name" "$seed_of_run" > "$work/plan"
    # shellcheck disable=SC2086
    TRAIN=$work/train GRIDIRON_PROGRESS=$((seed_of_run / 2 % 2)) timeout 1500 "$launch" -n 4 --restarts 1000 "$work/tiny.yaml" \
        save="$work/run" $limits save_interval=$((1 + seed_of_run / 8 % 2)) async_save=$([ $((seed_of_run / 4 % 2)) = 0 ] && echo true || echo false) \
        $([ $((seed_of_run / 2 % 2)) = 0 ] || echo memory_save_interval=1) "$@" > "$work/log" 2>&1
    rc=$?
    what="SEED=$seed run $runs ($name)"
    [ $rc = 0 ] || fail "$what: code $rc"
    rest=$(left)
    [ -z "$rest" ] || fail "$what: left: $rest"
    [ "$(grep -c '^error\[' "$work/log")" = 0 ] || fail "$what: an error line"
    [ $rc != 0 ] || same "$name" "$work/run" "$what"
    cat "$work/run/restarts.jsonl" >> "$work/all" 2> /dev/null
    total=$((total + $(grep -c '^restart [0-9]* of [0-9]*: code [0-9]*, ' "$work/log")))
}

undisturbed save_interval=100
runs=0
# shellcheck disable=SC2086
while [ $total -lt "$wanted" ] || [ $runs -lt 2 ]; do
    runs=$((runs + 1))
    [ $((runs % 2)) = 0 ] && disturbed model $((seed * 1000 + runs)) $model || disturbed data $((seed * 1000 + runs)) $data
    [ "$wanted" = 0 ] || echo "# $(date +%H:%M:%S): $runs runs, $total failures, $bad bad"
    [ $bad -lt 5 ] || break
done
codes=$(sed 's/.*"code": \([0-9]*\).*/code \1/' "$work/all" | sort | uniq -c | tr -s ' \n' ' ')
echo "# SEED=$seed: $runs runs, $total failures:$codes"
FAULT='1 start 0 100000 segv' TRAIN=$faulty "$launch" -n 4 "$work/tiny.yaml" $model save="$work/early" > "$work/log" 2>&1
rc=$?
case $rc in 7 | 8) ;; *) fail "a crash before the ranks have found each other: code $rc" ;; esac
for cause in rank-lost 'hang.*it is stopped' SIGSEGV SIGBUS 'No space left' 'Input/output error'; do
    grep -q "error\[.*$cause" "$work/all" || fail "no failure was $cause"
done
[ $bad = 0 ]
