#!/bin/sh
# tests/parallel/hangs.sh [N|cuda] -- ranks that stand still: stopped, in a loop without end, asleep, before a pipe that nobody
# writes, in a deep sleep of the system, with a thread that keeps a lock, and a message that is lost; in steps and in
# saves, between pretended hosts, in a run of one rank. One error line names the rank, the exit code is 7 (8 where the
# message after a lost one does not fit in its place), its calls follow, no rank is left. One that stands still as it
# leaves MPI is killed, and one that crashes there changes nothing. A job that is only slow or was stopped as a whole goes
# on. With N: that many hangs of a random kind, rank and moment, with the limit that the watch chooses by itself. cuda: on
# the emulated device, over both of its transports.
set -u
work=${WORK:-$(mktemp -d)} launch=$PWD/scripts/launch train=${TRAIN:-$PWD/$BUILD/train} faulty=$PWD/$BUILD/test_faults
. tests/tiny.sh
. tests/signals.sh
"$train" tokenize src/io -o "$work/corpus" > /dev/null 2>&1 || exit 1
tiny "$work/tiny.yaml" model.num_layers=4 train.global_batch_size=8 train.train_iters=12 checkpoint.save_interval=4 \
    train.eval_interval=3 train.eval_iters=2
model='tensor_model_parallel_size=2 pipeline_model_parallel_size=2'
data='data_parallel_sharding_strategy=optim_grads_params pipeline_model_parallel_size=2'
timeout=hang_timeout=2
still='.* after its end the job .*[:,] rank 2 (process [0-9]*, state T).*'
: > "$work/failed"
fail() { # DIRECTORY WHAT
    { echo "$2"; sed 's/^/    /' "$1/log" | grep -v ' iteration  ' | cut -c 1-600 | tail -n 14; } >> "$work/failed"
}
alive() { # DIRECTORY: the ranks of the job that still run
    for pid in "$1"/[0-9]*; do
        grep -qs '^State:.[^ZX]' "/proc/${pid##*/}/status" && echo "${pid##*/}"
    done
}

# hung RANKS FAULT SETTING... -- the job ends with one line that names the rank of FAULT
hung() {
    ranks=$1 fault=$2 rank=${2%% *} dir=$(mktemp -d "$work/XXXXXX"); shift 2
    FAULT=$fault FAULT_DIR=$dir TRAIN=$faulty timeout 200 "$launch" -n "$ranks" "$work/tiny.yaml" "$@" save="$dir/run" \
        > "$dir/log" 2>&1
    rc=$? ended=$(date +%s.%N)
    [ -f "$dir/died" ] || { fail "$dir" "$fault: nothing was done"; return; }
    echo "$ended $(date -r "$dir/died" +%s.%N)" | awk '{ printf "%.1f\n", $1 - $2 }' >> "$work/times"
    # a message that comes where the lost one was due is known at once, where their sizes differ
    case $fault in *drop)
        ! grep -q "^error\[comm-mismatch\] .* rank $rank sent [0-9]* bytes" "$dir/log" || [ $rc != 8 ] || return ;;
    esac
    where="rank $rank \(tp .* \|\)(process [0-9]* on host"
    [ $rc = 7 ] && [ "$(grep -c '^error\[' "$dir/log")" = 1 ] &&
        grep -q "^error\[hang\] \(\[.*\] \|\)$where .*has made no progress.*change: " "$dir/log" ||
        { fail "$dir" "$fault $*: code $rc"; return; }
    grep -q '^    \(#[0-9]\|in the system: \)' "$dir/log" || fail "$dir" "$fault $*: no calls"
    [ -z "$(alive "$dir")" ] || fail "$dir" "$fault $*: a rank is left"
    doing=$(sed -n 's/^error\[hang\].* has made no progress for [0-9.]* s in \([^:]*\): .*/\1/p' "$dir/log")
    "$train" flight "$dir/run" > "$dir/log" 2>&1 && grep -q "rank $rank.*: .* rank" "$dir/log" ||
        [ "$ranks" = 1 ] || fail "$dir" "$fault $*: train flight"
    grep -q "^ *$rank .*, in $doing\( \|:\|$\)" "$dir/log" || fail "$dir" "$fault $*: train flight says otherwise than \`$doing\`"
}

# fine FAULT SETTING... -- the job is slow or stopped for a while, and ends as it should
fine() {
    fault=$1 dir=$(mktemp -d "$work/XXXXXX"); shift
    FAULT=$fault FAULT_DIR=$dir TRAIN=$faulty timeout 200 "$launch" -n 4 "$work/tiny.yaml" "$@" save="$dir/run" \
        > "$dir/log" 2>&1 || fail "$dir" "$fault $*: a false alarm, or worse: $?"
}

# apart -- a rank is stopped before the ranks have found each other, when none watches the others yet
apart() {
    dir=$(mktemp -d "$work/XXXXXX")
    FAULT='1 start 0 1 stop' FAULT_DIR=$dir GRIDIRON_START_SECONDS=3 TRAIN=$faulty timeout 100 "$launch" -n 4 "$work/tiny.yaml" \
        $model save="$dir/run" > "$dir/log" 2>&1
    rc=$?
    [ $rc = 7 ] && [ "$(grep -c '^error\[' "$dir/log")" = 1 ] && grep -q '^error\[start\] .* within 3 s; change: ' "$dir/log" &&
        [ -z "$(alive "$dir")" ] || fail "$dir" "stopped before the start: code $rc"
}

# late HOW SAYS COMMAND... -- rank 2 is stopped or crashes as it leaves MPI, when all the work is done and no rank watches it
late() {
    how=$1 says=$2 dir=$(mktemp -d "$work/XXXXXX"); shift 2
    FAULT="2 end 0 0 $how" FAULT_DIR=$dir GRIDIRON_END_SECONDS=$([ "$how" = stop ] && echo 3) TRAIN=$faulty timeout 100 "$launch" -n 4 "$@" save="$dir/run" \
        > "$dir/log" 2>&1
    rc=$?
    [ $rc = 0 ] && [ -f "$dir/died" ] && [ "$(grep -c '^warning: \|^error' "$dir/log")" = 1 ] && [ -z "$(alive "$dir")" ] &&
        grep -q "^warning: $says; change: " "$dir/log" || fail "$dir" "$how at the end ($*): code $rc"
}

# fallen -- a rank ends the job, and crashes as it does: its error line stands, and the job ends at once
fallen() {
    dir=$(mktemp -d "$work/XXXXXX")
    FAULT='1 F 6 0 fall' FAULT_DIR=$dir TRAIN=$faulty timeout 45 "$launch" -n 4 "$work/tiny.yaml" $model save="$dir/run" > "$dir/log" 2>&1
    rc=$?
    [ $rc = 5 ] && [ "$(grep '^error\[' "$dir/log" | cut -c 1-14)" = 'error[memory] ' ] && [ -z "$(alive "$dir")" ] ||
        fail "$dir" "a crash after an error line: code $rc"
}

# stopped SECONDS RANKS LIMIT -- so many ranks are stopped in the middle of a job for that long; it ends as it should
stopped() {
    seconds=$1 ranks=$2 limit=$3 dir=$(mktemp -d "$work/XXXXXX")
    FAULT_DIR=$dir FAULT='-1 F 1 0' TRAIN=$faulty timeout 200 "$launch" -n 4 "$work/tiny.yaml" $model save="$dir/run" \
        train_iters=400 save_interval=1000 eval_interval=1000 hang_timeout=$limit > "$dir/log" 2>&1 &
    job=$!
    until grep -q 'iteration        9/' "$dir/log" || ! kill -0 $job 2> /dev/null; do sleep 0.02; done
    pids=$(for pid in "$dir"/[0-9]*; do echo "${pid##*/}"; done | head -n "$ranks")
    # shellcheck disable=SC2086
    kill -STOP $pids
    sleep "$seconds"
    # shellcheck disable=SC2086
    kill -CONT $pids
    wait $job || fail "$dir" "$ranks ranks stopped for $seconds s: $?"
}

# stays -- a run stops with 75 while the file system is slow: the other ranks wait until rank 0 has written the report
stays() {
    dir=$(mktemp -d "$work/XXXXXX")
    FAULT='0 F 6 0 report' FAULT_DIR=$dir TRAIN=$faulty timeout 100 "$launch" -n 4 "$work/tiny.yaml" $data exit_interval=6 save="$dir/run" \
        > "$dir/log" 2>&1
    rc=$?
    [ $rc = 75 ] && [ -f "$dir/died" ] && [ -f "$dir/run/report.html" ] && grep -q "^report  $dir/run/report.html" "$dir/log" &&
        ! grep -q '^error\|^warning: ' "$dir/log" && [ -z "$(alive "$dir")" ] || fail "$dir" "a report that is slow: code $rc"
}

# unread RANKS -- a pager whose reader looks at the first page for a while, or a terminal that is held
unread() {
    dir=$(mktemp -d "$work/XXXXXX") alone=
    [ "$1" != 1 ] || alone=$train
    # shellcheck disable=SC2086
    { ${alone:-"$launch" -n "$1"} "$work/tiny.yaml" save="$dir/run" train_iters=1200 save_interval=2000 eval_interval=2000 $timeout 2> "$dir/log"
      echo $? > "$dir/rc"; } | { sleep 12; cat > /dev/null; }
    [ "$(cat "$dir/rc")" = 0 ] || fail "$dir" "$1 ranks whose lines nobody reads for 12 s: $(cat "$dir/rc")"
}

# shellcheck disable=SC2086
if [ "${1:-}" = cuda ]; then
    faulty=$PWD/$EMULATED/test_faults   # which waits for its device without saying that it computes: no short limit
    hung 4 '1 F 6 0 stop' $model hang_timeout=10 device=cuda distributed_backend=nccl &
    hung 4 '2 B 7 0 pipe' $data hang_timeout=10 device=cuda distributed_backend=nccl &
    hung 4 '0 S 6 0 disk' $model hang_timeout=10 device=cuda distributed_backend=staged &
    hung 4 '1 SA 6 0 drop' $model hang_timeout=10 device=cuda distributed_backend=staged &
    wait
elif [ "${1:-}" ]; then
    i=0
    while [ $i -lt "$1" ]; do
        for _ in 1 2 3 4; do
            i=$((i + 1))
            # shellcheck disable=SC2046
            set -- "$1" $(awk -v seed="$i" 'BEGIN {
                srand(seed); n = split("stop loop sleep pipe disk thread drop", how, " "); m = split("F B S", site, " ")
                print int(rand() * 4), site[1 + int(rand() * m)], 5 + int(rand() * 7), how[1 + int(rand() * n)]
                print int(rand() * 2) }')
            if [ "$6" = 0 ]; then hung 4 "$2 $3 $4 0 $5" $model & else hung 4 "$2 $3 $4 0 $5" $([ "$5" = drop ] && echo $model || echo $data) & fi
        done
        wait
        echo "# $i hangs, $(grep -c . "$work/failed") lines of failures"
    done
else
    hung 4 '3 B 6 0 stop' $model $timeout &
    hung 4 '0 F 7 0 loop' $model $timeout &
    hung 4 '1 save 8 0 pipe' $data $timeout &
    hung 4 '2 B 9 0 drop' $model $timeout &
    wait
    GRIDIRON_PROGRESS=1 hung 4 '2 F 6 0 thread' $model $timeout &
    GRIDIRON_RANKS_PER_HOST=2 hung 4 '1 S 6 0 sleep' $data $timeout &
    hung 4 '3 F 7 0 disk' $data $timeout &
    hung 1 '0 B 6 0 loop' $timeout &
    fine '1 save 4 0 nap' $model $timeout &
    wait
    fine '2 F 2 0 nap' $model $timeout &
    fine '1 save 4 0 flush' $model $timeout async_save=true &       # the next save waits for this one
    fine '1 save 8 0 crawl' $model $timeout &      # the save takes longer than the limit, each block does not
    stopped 4 4 2 &
    stopped 1 1 20 &       # on a busy machine the stop lasts longer than asked for
    apart &
    fallen &
    stays &
    late stop "$still" "$work/tiny.yaml" $data &
    late stop "$still" verify "$work/tiny.yaml" $model &
    late segv '\[rank 2 tp .*\] SIGSEGV .* as it left MPI, its work done' "$work/tiny.yaml" $data &
    unread 1 &
    unread 2 &
    wait
fi
sort -n "$work/times" | awk '{ t[NR] = $1 } END { print "# " NR " hangs, found within " t[1] " to " t[NR] " s" }'
cat "$work/failed"
[ ! -s "$work/failed" ]
