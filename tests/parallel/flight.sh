#!/bin/sh
# tests/parallel/flight.sh -- the flight record: after a death under scripts/launch, under plain mpirun, of all ranks at
# once and of a rank alone `train flight RUN` says what each rank did and for whom the others waited; records that are
# cut or changed are refused or read, never more; files of its name are left alone.
set -u
work=${WORK:-$(mktemp -d)} launch=$PWD/scripts/launch bad=0
. tests/tiny.sh
real=${TRAIN:-$PWD/$BUILD/train} faulty=$PWD/$BUILD/test_faults
"$real" tokenize src/io -o "$work/corpus" > /dev/null 2>&1 || exit 1
tiny "$work/tiny.yaml" model.num_layers=4 train.global_batch_size=8 train.train_iters=12
layout='tensor_model_parallel_size=2 pipeline_model_parallel_size=2'
fail() { bad=$((bad + 1)); echo "$*"; sed 's/^/    /' "$work/log" "$work/said" | tail -n 30; }
: > "$work/said"

# says WHAT PATTERN...: `train flight` prints each pattern
says() {
    what=$1; shift
    "$real" flight "$work/run" > "$work/said" 2>&1 || { fail "$what: train flight ends with $?"; return; }
    for pattern; do grep -q "$pattern" "$work/said" || fail "$what: not said: $pattern"; done
    ! grep -q 'message is lost' "$work/said" || fail "$what: a lost message is made up"
    "$real" flight "$work/run" --json > "$work/json" 2>&1 || fail "$what: --json ends with $?"
    [ "$(grep -c '"instruction": "[A-Z]' "$work/json")" -ge 20 ] && [ "$(grep -c '"waits_for": ' "$work/json")" = 4 ] &&
        [ "$(tail -c 2 "$work/json")" = '}' ] || fail "$what: --json"
}
died='3 tp 1 cp 0 dp 0 pp 1'

# killed RANK COMMAND...: a job of which RANK stops itself, and is killed once three ranks wait for it, as the record says
# that the ranks share: a death may be seen before any other rank comes to its wait. Without the launcher that record has no
# name, and two seconds have to do. Returns the job's code
killed() {
    dead=$1; shift
    rm -rf "$work/faults" "$work/live" "$work/tmp"
    mkdir "$work/faults" "$work/live" "$work/tmp"
    FAULT_DIR=$work/faults TMPDIR=$work/tmp "$@" hang_timeout=0 save="$work/run" > "$work/log" 2>&1 &
    job=$!
    victim=
    while [ -z "$victim" ] && kill -0 $job 2> /dev/null; do
        sleep 0.02
        for pid in $(ls "$work/faults" | grep '^[0-9]'); do
            ! grep -qs '^State:.T' "/proc/$pid/status" || victim=$pid
        done
    done
    [ "$1" != mpirun ] || sleep 2
    until [ "$1" = mpirun ] || "$real" flight "$work/live" 2> /dev/null | grep -q "rank $dead .*: 3 ranks wait for it"; do
        kill -0 $job 2> /dev/null || break
        sleep 0.05
        cp "$work"/tmp/gridiron.*/page-flight.0 "$work/live/flight.0"
    done
    kill -KILL "$victim"
    wait $job
}

# shellcheck disable=SC2086
FAULT='3 B 6 0 stop' TRAIN=$faulty killed 3 "$launch" -n 4 "$work/tiny.yaml" $layout
[ $? = 7 ] || fail "killed"
# the others are killed with it: on a busy machine one may not have come to its wait, or to note who died
says killed '4 of 4 ranks' "rank $died: [1-3] ranks* waits* for it" '^ *3 .* \(died\|does not wait\), in B0.0 of iteration 6' \
    '^ *[0-2] .* waits for rank 3: .* of group [tp]p' '^ *3 |.*|$' '^ *3 .* B0.0 6 -[0-9.]* not done$'

# the record of a new failure replaces the old one; mpirun alone: the rank that prints the line writes it
rm -rf "$work/run"
# shellcheck disable=SC2046,SC2086
FAULT='0 F 7 0 stop' killed 0 mpirun -n 4 --oversubscribe --bind-to none \
    $([ "$(id -u)" != 0 ] || echo --allow-run-as-root) "$faulty" "$work/tiny.yaml" $layout
says mpirun '4 of 4 ranks' 'rank 0 tp 0 cp 0 dp 0 pp 0: [1-3] ranks* waits* for it' '^ *0 .* died, in F0.0 of iteration 7'

# all ranks die at once: scripts/launch keeps the record
rm -rf "$work/run"
# shellcheck disable=SC2086
FAULT='-2 F 7 0' TRAIN=$faulty "$launch" -n 4 "$work/tiny.yaml" $layout save="$work/run" > "$work/log" 2>&1
says all '4 of 4 ranks' '^ *[0-3] .*, in F0.0 of iteration 7'

# the launcher sees a death before any rank does: rank 0 stands still, rank 1 waits for it and is killed then. Where mpirun
# lets rank 0 go on before it kills it, rank 0 may see the death too
rm -rf "$work/run"
"$launch" -n 2 "$work/tiny.yaml" save="$work/run" train_iters=100000 > "$work/log" 2>&1 &
job=$!
rank() { # prints the process of rank $1
    for pid in $(ps -eo pid,comm,args | awk -v save="save=$work/run" '$2 == "train" && index($0, save) { print $1 }'); do
        tr '\0' '\n' < "/proc/$pid/environ" | grep -qx "OMPI_COMM_WORLD_RANK=$1" && echo "$pid"
    done
}
for _ in $(seq 600); do [ ! -s "$work/run/metrics.jsonl" ] || break; sleep 0.1; done
first=$(rank 0) second=$(rank 1)
kill -STOP "$first"
sleep 0.3
kill -KILL "$second"
wait $job
[ $? = 7 ] && grep -q '^error\[rank-lost\] .*rank 1 .* died in ' "$work/log" || fail "seen by the launcher"
"$real" flight "$work/run" > "$work/said" 2>&1 || fail "seen by the launcher: train flight ends with $?"
for pattern in '2 of 2 ranks' ': rank 1 .*: [01] ranks* waits* for it$' '^ *1 .* died, in '; do
    grep -q "$pattern" "$work/said" || fail "seen by the launcher: not said: $pattern"
done
"$real" flight "$work/run" --json | tr -d ' \n' | grep -q '"waited_for":\[{"rank":1,"lost_message":false,' ||
    fail "seen by the launcher: --json"

# a rank alone
rm -rf "$work/run"
FAULT='0 B 6 0' TRAIN=$faulty "$launch" -n 1 "$work/tiny.yaml" save="$work/run" > "$work/log" 2>&1
[ $? = 7 ] && grep -q '^error\[rank-lost\] rank 0 (signal 9) died in B0.0 of iteration 6; change: ' "$work/log" || fail "one rank"
"$real" flight "$work/run" > "$work/said" 2>&1 || fail "one rank: train flight ends with $?"
for pattern in '1 of 1 ranks' '^ *0 .*, in B0.0 of iteration 6'; do
    grep -q "$pattern" "$work/said" || fail "one rank: not said: $pattern"
done

# a run that ends as it should leaves none
rm -rf "$work/run"
# shellcheck disable=SC2086
"$launch" -n 4 "$work/tiny.yaml" $layout save="$work/run" > "$work/log" 2>&1 || fail "a whole run: $?"
"$real" flight "$work/run" > "$work/said" 2>&1
[ $? = 2 ] && grep -q '^error\[usage\].*holds no flight record; change: ' "$work/said" || fail "no record"

# cut and changed records
rm -rf "$work/run"
# shellcheck disable=SC2086
FAULT='3 B 6 0' TRAIN=$faulty "$launch" -n 4 "$work/tiny.yaml" $layout save="$work/run" > "$work/log" 2>&1
cp "$work/run/flight.0" "$work/good"
for bytes in 0 7 100 1500 100000 -1; do
    truncate -s "$([ $bytes = -1 ] && echo +1 || echo $bytes)" "$work/run/flight.0"
    "$real" flight "$work/run" > "$work/said" 2>&1
    [ $? = 1 ] && grep -q '^error\[flight\].*not a whole flight record.*change: ' "$work/said" || fail "cut to $bytes bytes"
    cp "$work/good" "$work/run/flight.0"
done
# a record of another host that is whole is shown, with one warning
truncate -s 100 "$work/run/flight.0"
cp "$work/good" "$work/run/flight.1"
"$real" flight "$work/run" --json > "$work/json" 2> "$work/said" || fail "one of two records is cut: $?"
[ "$(grep -c '^warning: .*flight.0 is not a whole flight record' "$work/said")" = 1 ] && [ "$(wc -l < "$work/said")" = 1 ] &&
    [ "$(grep -c '"waits_for": ' "$work/json")" = 4 ] || fail "one of two records is cut"
rm "$work/run/flight.1"
size=$(stat -c %s "$work/good")
for seed in $(seq 12); do
    cp "$work/good" "$work/run/flight.0"
    for at in $(awk -v seed="$seed" -v size="$size" 'BEGIN { srand(seed); for (i = 0; i < 24; i++) print int(40 + rand() * (size - 41)) }'); do
        printf '\377\177\200' | dd of="$work/run/flight.0" bs=1 seek="$at" conv=notrunc 2> /dev/null
    done
    timeout 20 "$real" flight "$work/run" > "$work/said" 2>&1
    rc=$?
    [ $rc = 0 ] || [ $rc = 1 ] || fail "changed, seed $seed: $rc"
    timeout 20 "$real" flight "$work/run" --json > "$work/said" 2>&1
    rc=$?
    [ $rc = 0 ] || [ $rc = 1 ] || fail "changed, seed $seed, --json: $rc"
done

# files that have the names of the page and of the record already are somebody's: they are not written
mkdir "$work/taken"
echo theirs | tee "$work/taken/page.0" > "$work/taken/page-flight.0"
GRIDIRON_PAGE=$work/taken/page "$real" "$work/tiny.yaml" save="$work/one" > "$work/log" 2>&1 || fail "names are taken: $?"
[ "$(cat "$work/taken/page.0")" = theirs ] && [ "$(cat "$work/taken/page-flight.0")" = theirs ] || fail "others' files are written"
[ $bad = 0 ]
