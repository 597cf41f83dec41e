#!/bin/sh
# tests/scripts/launch_full.sh -- TMPDIR without room. Too little for a start: 5, one line. Full from a moment of the job on:
# each job ends with the code that it would have, a rank that dies is named, its flight record is kept or leaves nothing
# behind. As root: file systems of our own.
. tests/signals.sh
set -u
work=${WORK:-$(mktemp -d)} launch=$PWD/scripts/launch bad=0
if [ -z "${OWN_MOUNTS:-}" ]; then
    unshare -m true 2> /dev/null || { echo "no mount namespace can be made: not root?"; exit 77; }
    OWN_MOUNTS=1 exec unshare -m "$0"
fi
. tests/tiny.sh
"$TRAIN" tokenize src/io -o "$work/corpus" > /dev/null 2>&1 || exit 1
tiny "$work/tiny.yaml" train.train_iters=20 log.log_interval=10
fail() { bad=$((bad + 1)); echo "$*"; tail -n 20 "$work/log" | cut -c 1-300; }
mkdir "$work/tmp" "$work/disk"
small() { mount -t tmpfs -o "size=$1" none "$work/$2"; }
gone() { # FOLDER...: no process of the job is left, and what it has mounted goes
    for at in "$@"; do
        left=$(ls -A "$work/$at" | grep -v '^fill$\|^run$')
        [ -z "$left" ] || fail "left in $at: $left"
        umount "$work/$at" || fail "$at is busy"
    done
}

for size in 16k 256k 3m 9m 12m; do
    small $size tmp
    TMPDIR=$work/tmp "$launch" -n 2 "$work/tiny.yaml" save="$work/none" > "$work/log" 2>&1
    rc=$?
    [ $rc = 5 ] && [ "$(wc -l < "$work/log")" = 1 ] && grep -q '^error\[launch\] .* no room for .*; change: free space in it, or set TMPDIR' "$work/log" ||
        fail "$size in TMPDIR: code $rc"
    TMPDIR=$work/tmp "$launch" -n 2 --restarts 5 "$work/tiny.yaml" save="$work/none" > "$work/log" 2>&1
    rc=$?
    [ $rc = 93 ] && [ "$(wc -l < "$work/log")" = 2 ] && grep -q '^restart 1 of 5: code 5, error\[launch\] .* no room for ' "$work/log" &&
        grep -q '^error\[crash-loop\] died twice in the same way .*: error\[launch\] .* no room for ' "$work/log" ||
        fail "$size in TMPDIR, started again: code $rc"
    gone tmp
done

ranks_of() { pgrep -f "^$TRAIN .*save=$1"; }
# full WAY CODE STEPS [OPTION...] -- TMPDIR becomes full in a job of so many steps; then WAY: the job ends with CODE
full() {
    way=$1 code=$2 steps=$3
    shift 3
    small 24m tmp
    rm -rf "$work/run"
    TMPDIR=$work/tmp "$launch" -n 2 "$@" "$work/tiny.yaml" save="$work/run" train_iters=$steps \
        save_interval=$((steps < 10000 ? 500 : 5)) save_keep_last=2 \
        sigterm_grace=1000 > "$work/log" 2>&1 &
    job=$!
    # `together`: the launcher knows that the ranks have found each other, and asks them to save at a SIGTERM
    until [ -s "$work/run/metrics.jsonl" ] && [ -e "$work"/tmp/gridiron.*/together ]; do
        kill -0 $job 2> /dev/null || break
        sleep 0.02
    done
    # shellcheck disable=SC2046
    [ $way != end ] || kill -STOP $(ranks_of "$work/run")     # it must not be over yet
    cat /dev/zero > "$work/tmp/fill" 2> /dev/null
    case $way in
    # shellcheck disable=SC2046
    end)   kill -CONT $(ranks_of "$work/run") ;;
    death) kill -KILL "$(ranks_of "$work/run" | head -n 1)" ;;
    *)     kill "-$way" $job ;;
    esac
    wait $job
    rc=$?
    [ $rc = "$code" ] && ! grep -q 'I/O error\|Illegal number' "$work/log" || fail "$way with a full TMPDIR: code $rc"
    gone tmp
}
full USR1 75 1000000
full TERM 75 1000000
full end 0 2000
full death 7 1000000
[ "$(grep -c '^error\[' "$work/log")" = 1 ] && grep -q '^error\[rank-lost\].* rank [01] tp .*died in .*; change: ' "$work/log" || fail "which rank died"
full death 93 1000000 --restarts 9
grep -q '^restart 1 of 9: code 7, error\[rank-lost\].* goes on after iteration [1-9][0-9]* at once' "$work/log" &&
    grep -q '^restart 2 of 9: code 5, error\[launch\].* no room for .* goes on after iteration [1-9]' "$work/log" || fail "started again"

# the disk of the run has no room for the flight record of a rank that died
small 150k disk
"$launch" -n 2 "$work/tiny.yaml" save="$work/disk/run" save_at_end=false train_iters=1000000 log_interval=1000000 \
    > "$work/log" 2>&1 &
job=$!
until [ -s "$work/disk/run/run.json" ] || ! kill -0 $job 2> /dev/null; do sleep 0.02; done
kill -KILL "$(ranks_of "$work/disk/run" | head -n 1)"
wait $job
[ $? = 7 ] || fail "the disk of the run is full"
half=$(ls -A "$work/disk/run" | grep flight)
[ -z "$half" ] || fail "a part of the flight record is left: $half"
gone disk
[ $bad = 0 ]
