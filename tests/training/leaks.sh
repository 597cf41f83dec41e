#!/bin/sh
# tests/training/leaks.sh [STEPS] -- a run with saves, evaluations and logs holds no more memory and no more open files at
# its end than after 30 of them, on one rank and on two: a leak is what grows all the time. To be counted, rank 0
# stands still at a chosen step.
set -u
case $BUILD in */debug | */thread) echo "a sanitizer keeps what is freed for a while" && exit 77 ;; esac
work=${WORK:-$(mktemp -d)} steps=${1:-900} launch=$PWD/scripts/launch faulty=$PWD/$BUILD/test_faults bad=0
. tests/tiny.sh
fail() { bad=$((bad + 1)); echo "$*"; tail -n 4 "$work/log"; }
"$faulty" tokenize src/io -o "$work/corpus" > /dev/null 2>&1 || exit 1
tiny "$work/tiny.yaml" model.num_layers=1 model.hidden_size=16 model.seq_length=16 train.train_iters="$steps" \
    train.eval_interval=20 train.eval_iters=1 checkpoint.save_interval=10 checkpoint.save_keep_last=2 \
    log.tensorboard_dir="$work/events" fault.sdc_check_interval=10 fault.hang_timeout=0

# stopped RUN: waits for the rank of the run in the folder RUN that has stopped itself, and prints it. A job that has ended
# is a zombie here: in $( ) the shell does not wait for it
stopped() {
    while grep -qs '^State:.[^ZX]' "/proc/$pid/status"; do
        for p in $(grep -lsF "save=$1" /proc/[0-9]*/cmdline); do
            grep -qs '^State:.T' "${p%/*}/status" && p=${p%/*} && echo "${p#/proc/}" && return
        done
        sleep 0.1
    done
}
# trained RANKS STEP SETTING...: a run whose rank 0 stands still in the forward pass of STEP; sets files to what it has open
trained() {
    n=$1 at=$2 run=$work/run.$1.$2; shift 2
    TRAIN=$faulty FAULT="0 F $at 0 stop" "$launch" -n "$n" "$work/tiny.yaml" save="$run" "$@" > "$work/log" 2>&1 &
    pid=$! files=0
    still=$(stopped "$run")
    [ -z "$still" ] || { files=$(ls "/proc/$still/fd" | wc -l); kill -CONT "$still"; }
    wait $pid || fail "$n ranks: $?"
}
# flat RANKS SETTING...
flat() {
    ranks=$1; shift
    trained "$ranks" 30 "$@" train_iters=30
    early=$files
    trained "$ranks" $((steps - 5)) "$@"
    echo "# $early open files early, $files late"
    [ "$early" -gt 0 ] && [ "$files" -gt 0 ] && [ "$files" -le $((early + 6)) ] || fail "$ranks ranks: open files grow"
    # bytes of the fullest rank at the end of each tenth: a leak of 64 bytes a step grows in most of them, a
    # buffer of MPI or malloc once
    sed -n 's/.*"iteration": \([0-9]*\),.*"memory_bytes": \([0-9]*\).*/\1 \2/p' "$run/metrics.jsonl" | awk -v steps="$steps" '
        { n++; at[int(($1 * 10 - 1) / steps)] = $2 }
        END { for (i = 3; i < 10; i++) grew += at[i] > at[i - 1] + 64 * steps / 10
              print "# " n " lines, " at[2] " to " at[9] " bytes, grew in " grew + 0 " of 7 tenths"
              exit n < steps || grew > 4 }' || fail "$n ranks: memory grows"
}
flat 1 async_save=true
flat 2 data_parallel_sharding_strategy=optim_grads_params async_save=true
[ $bad = 0 ]
