#!/bin/sh
# tests/training/allocations.sh [STRIDE] -- one allocation fails, or that one and all after it: in a start with
# steps and saves, and in a start that loads. The run ends with 5 and one error line, or goes on with the bytes
# of the undisturbed run where it can do without. One allocation of each chain of callers is tried; of these
# every STRIDE-th, by default so many that they are about a hundred in all.
set -u
case $BUILD in */debug | */thread) echo "a sanitizer's allocations cannot be made to fail" && exit 77 ;; esac
work=${WORK:-$(mktemp -d)} faulty=$PWD/$BUILD/test_faults bad=0 tried=0
. tests/tiny.sh
. tests/parallel/same.sh
"$TRAIN" tokenize src/io -o "$work/corpus" > /dev/null 2>&1 || exit 1
tiny "$work/tiny.yaml" train.train_iters=4 checkpoint.save_interval=2 precision.threads=2 train.eval_interval=2 \
    train.eval_iters=1 fault.hang_timeout=0
mkdir -p "$work/faults"
fail() { bad=$((bad + 1)); echo "$*"; grep -v ' iteration  ' "$work/log" | tail -n 4; }

begin() { # the run that the start `load` goes on with
    rm -rf "$work/run"
    [ "$1" = fresh ] || cp -r "$work/half" "$work/run"
}
trains() { # START FAULT
    keys=$([ "$1" = fresh ] || echo load=latest)
    begin "$1"
    # shellcheck disable=SC2086
    FAULT=$2 FAULT_DIR=$work/faults timeout 60 "$faulty" "$work/tiny.yaml" save="$work/run" $keys > "$work/log" 2>&1
}

# one START NUMBER HOW -- allocation NUMBER of that start fails
one() {
    rm -f "$work"/faults/*
    trains "$1" "0 allocation $2 0 $3"
    rc=$?
    [ -e "$work/faults/died" ] || return 0         # threads allocate in another order each time
    tried=$((tried + 1))
    case $rc in
    0)  same whole "$work/run" "allocation $2 of $1 ($3), code 0" ;;
    5)  [ "$(grep -c '^error\[' "$work/log")" = 1 ] && grep -q '^error\[.*; change: ' "$work/log" ||
            fail "allocation $2 of $1 ($3): code 5 with $(grep -c '^error\[' "$work/log") error lines" ;;
    *)  fail "allocation $2 of $1 ($3): code $rc" ;;
    esac
}

"$TRAIN" "$work/tiny.yaml" save="$work/whole" > "$work/log" 2>&1 || fail "the undisturbed run"
"$TRAIN" "$work/tiny.yaml" save="$work/half" exit_interval=2 > "$work/log" 2>&1
for start in fresh load; do
    rm -f "$work"/faults/*
    trains $start "0 allocation 0 0" || fail "counting: $?"
    same whole "$work/run" "counting $start"
    [ -s "$work/faults/allocations" ] || fail "nothing is counted"
    mv "$work/faults/allocations" "$work/$start"
done
all=$(cat "$work/fresh" "$work/load" | wc -l)
stride=${1:-$((all / 50 + 1))}
for start in fresh load; do
    for number in $(awk -v s="$stride" 'NR % s == 0' "$work/$start"); do
        one $start "$number" once
        one $start "$number" on
    done
done
echo "# $tried failing allocations of $all chains of callers"
[ $bad = 0 ]
