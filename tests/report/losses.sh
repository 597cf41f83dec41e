#!/bin/sh
# tests/report/losses.sh -- `train report`: a recorded step's losses add up to it, a cause put into the run is its largest
# loss beside the work, and a plan of the run stands beside it in the same names. Each cause lasts tenths of a second in a
# step of milliseconds, so that no machine is too slow for it.
set -u
work=${WORK:?} launch=$PWD/scripts/launch train=${TRAIN:?} faulty=$PWD/$BUILD/test_faults
fail() { echo "# $*"; [ ! -f "$work/log" ] || tail -n 5 "$work/log"; exit 1; }
. tests/tiny.sh
"$train" tokenize src/io -o "$work/corpus" > /dev/null 2>&1 || fail "no corpus"
tiny "$work/tiny.yaml" model.num_layers=4 train.global_batch_size=4 train.train_iters=4 'log.trace_steps=[4]' \
    fault.straggler_threshold=0 checkpoint.save_at_end=false

# shares FILE WHICH: writes "percent name" of each loss of WHICH, measured or planned, to shares
shares() {
    sed -n "/\"losses_percent\"/,\$p" "$1" | sed -n "/\"$2\": {/,/}/s/.*\"\\([a-z_]*\\)\": \\([-0-9.e+][-0-9.e+]*\\).*/\\2 \\1/p" > "$work/shares"
    awk '{ sum += $1; if ($1 < -0.5) low = 1 } END { exit !(NR == 18 && !low && sum > 99.5 && sum < 100.5) }' "$work/shares" ||
        fail "$2 losses of $1: $(cat "$work/shares")"
}

# cause NAME RANKS FAULT SETTING...: with the fault, loss NAME is the largest beside the peak; what other programs take
# of the cores is none that was put in
cause() {
    name=$1 ranks=$2 fault=$3
    shift 3
    rm -rf "$work/run"
    run="$launch -n $ranks"
    [ "$ranks" != 1 ] || run=$faulty           # no need of a launcher
    # shellcheck disable=SC2086
    FAULT=$fault TRAIN=$faulty $run "$work/tiny.yaml" "save=$work/run" "$@" > "$work/log" 2>&1 ||
        fail "$name did not run"
    "$train" report "$work/run" --json > "$work/json" || fail "no report"
    shares "$work/json" measured
    found=$(grep -vE ' (peak|core)$' "$work/shares" | sort -gr | head -n 1 | cut -d' ' -f2)
    [ "$found" = "$name" ] ||
        fail "$name put in, the largest loss is $found: $(sort -gr "$work/shares" | head -n 4 | tr '\n' ' ')"
    grep -q 'Where a step goes' "$work/run/report.html" || fail "$name: no table in the report"
}
pp2=pipeline_model_parallel_size=2 pp4=pipeline_model_parallel_size=4
cause launch 1 '0 every 3 4000 op' num_layers=1 global_batch_size=1
cause cast 1 '0 fp8_cast 4 10000 op' params_dtype=bf16 fp8=hybrid
cause memory 1 '0 act_fwd 4 20000 op'
cause below_peak 1 '0 matmul 4 10000 op'
cause tensor 2 '-2 tp 4 5000 link' tensor_model_parallel_size=2
cause context 2 '-2 cp 4 5000 link' context_parallel_size=2 'cp_comm_type=[allgather]'
cause data 2 '-2 dp-cp 4 50000 link' data_parallel_sharding_strategy=no_shard
cause pipeline 2 '-2 pp 4 50000 link' $pp2
cause pipeline 4 '-2 SA 4 100000 pause' $pp4 global_batch_size=1
cause imbalance 4 '3 F 4 50000 pause' $pp4 global_batch_size=8
cause slowest 2 '1 F 4 200000 pause' data_parallel_sharding_strategy=no_shard
cause loader 1 '0 any 4 50000 late'
cause save 2 '0 save 4 300000 pause' $pp2 save_at_end=true

# beside a plan, and for a person
"$train" report "$work/run" --machine a100-80gb --json > "$work/json" || fail "no plan"
shares "$work/json" planned
shares "$work/json" measured
"$train" report "$work/run" --machine a100-80gb > "$work/text" || fail "no text"
grep -q '^the step  *[0-9.]* ms  100.0 %  *[0-9.]* ms  100.0 %' "$work/text" || fail "$(cat "$work/text")"
grep -q '^largest loss: save' "$work/text" || fail "$(cat "$work/text")"
grep -q 'planned' "$work/run/report.html" || fail "the report has no plan"
# the plan stays when the report is made again, by others too, for as long as the step is the last recorded one
"$train" generate "load=$work/run" --tokens 2 > "$work/log" 2>&1 || fail "no text"
grep -q '<pre' "$work/run/report.html" && grep -q 'planned<' "$work/run/report.html" || fail "generate has lost the plan"
"$train" report "$work/run" > "$work/log" 2>&1 && grep -q 'planned<' "$work/run/report.html" || fail "report has lost the plan"
cmp -s "$work/log" "$work/text" || fail "the page has the plan, standard output has not: $(diff "$work/text" "$work/log")"
"$train" report "$work/run" --json > "$work/again" && cmp -s "$work/again" "$work/json" || fail "--json has lost the plan"
sed -i 's/"iteration": *4/"iteration": 3/' "$work/run/plan.json"
"$train" report "$work/run" > "$work/log" 2>&1
table=$(sed -n '/Where a step goes/,/<\/table>/p' "$work/run/report.html")
[ -n "$table" ] && ! echo "$table" | grep -q 'planned' && ! grep -q planned "$work/log" || fail "the plan of another step"
# the plan is that of the layout that recorded the step, whatever the run went on with; a trace that does not say it has none
"$train" "$work/tiny.yaml" "save=$work/run" load=latest train_iters=6 micro_batch_size=2 > "$work/log" 2>&1 || fail "no resume on one rank"
grep -q 'pipeline_model_parallel_size: 1$' "$work/run/config.yaml" || fail "the run goes on with another layout"
"$train" report "$work/run" --machine a100-80gb --json > "$work/again" 2> "$work/log" && cmp -s "$work/again" "$work/json" ||
    fail "another plan after the run went on: $(diff "$work/json" "$work/again")"
sed -i '/"name":"configuration"/d' "$work/run/trace.json"
"$train" report "$work/run" --machine a100-80gb > "$work/log" 2>&1
[ $? = 2 ] && [ "$(wc -l < "$work/log")" = 1 ] && grep -q '^error\[usage\] .*trace.json does not say .*; change: ' "$work/log" ||
    fail "a plan beside a step whose layout is not known"
# what is not there
"$train" "$work/tiny.yaml" "save=$work/none" 'trace_steps=[]' > "$work/log" 2>&1 || fail "untraced"
"$train" report "$work/none" | grep -q '^no losses: ' || fail "losses of nothing"
"$train" report "$work/none" --machine a100-80gb > "$work/log" 2>&1
[ $? = 2 ] || fail "a plan beside nothing"
"$train" report "$work" > "$work/log" 2>&1
[ $? = 2 ] || fail "no run directory"
exit 0
