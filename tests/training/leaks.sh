#!/bin/sh
# tests/training/leaks.sh [STEPS] -- a run with saves, evaluations and logs holds no more memory and no more open files at
# its end than after a third of its steps, on one rank and on two: a leak is what grows all the time.
set -u
work=${WORK:-$(mktemp -d)} steps=${1:-300} launch=$PWD/scripts/launch train=${TRAIN:-$PWD/$BUILD/train} bad=0
. tests/tiny.sh
fail() { bad=$((bad + 1)); echo "$*"; tail -n 4 "$work/log"; }
"$train" tokenize src/io -o "$work/corpus" > /dev/null 2>&1 || exit 1
tiny "$work/tiny.yaml" model.num_layers=1 model.hidden_size=16 model.seq_length=16 train.train_iters="$steps" \
    train.eval_interval=20 train.eval_iters=1 checkpoint.save_interval=10 checkpoint.save_keep_last=2 \
    log.tensorboard_dir="$work/events" fault.sdc_check_interval=10

# Open files of the rank that has the most of them, of the run in the folder $1.
open_files() {
    grep -l "save=$1" /proc/[0-9]*/cmdline 2> /dev/null | while read -r p; do
        [ "$(readlink "${p%/*}/exe")" = "$exe" ] && ls "${p%/*}/fd" 2> /dev/null | wc -l
    done | sort -n | tail -n 1
}
exe=$(readlink -f "$train")
# flat RANKS SETTING...
flat() {
    n=$1 run=$work/run.$1; shift
    "$launch" -n "$n" "$work/tiny.yaml" save="$run" "$@" > "$work/log" 2>&1 &
    pid=$!
    : > "$work/files.$n"
    while kill -0 $pid 2> /dev/null; do
        at=$(grep -c lm_loss "$run/metrics.jsonl" 2> /dev/null)
        files=$(open_files "$run")
        [ -z "$files" ] || echo "${at:-0} $files" >> "$work/files.$n"
        sleep 0.2
    done
    wait $pid || fail "$n ranks: $?"
    # bytes of the fullest rank at the end of each tenth: a leak grows in most of them, a buffer of MPI or malloc once
    sed -n 's/.*"iteration": \([0-9]*\),.*"memory_bytes": \([0-9]*\).*/\1 \2/p' "$run/metrics.jsonl" | awk -v steps="$steps" '
        { n++; at[int(($1 * 10 - 1) / steps)] = $2 }
        END { for (i = 3; i < 10; i++) grew += at[i] > at[i - 1] + steps / 10
              print "# " n " lines, " at[2] " to " at[9] " bytes, grew in " grew + 0 " of 7 tenths"
              exit n < steps || grew > 4 }' || fail "$n ranks: memory grows"
    awk -v steps="$steps" '{ if ($1 <= steps / 3) { if ($2 > early) early = $2 } else if ($2 > late) late = $2 }
        END { print "# " NR " looks, " early " open files, " late " later"; exit !late || (early && late > early + 6) }' "$work/files.$n" ||
        fail "$n ranks: open files grow"
}
flat 1 async_save=true
flat 2 data_parallel_sharding_strategy=optim_grads_params async_save=true
[ $bad = 0 ]
