#!/bin/sh
# tests/parallel/custom.sh -- training with lists from a file: gradients are those of one rank in F64, with several lists,
# among them one of split and joined backwards, and under every kind of sharding. A file with a mistake is refused with
# the place of the mistake before the run starts. A rank whose stages are empty trains beside the others.
set -u
work=${WORK:-$(mktemp -d)}
BUILD=${BUILD:-build/cpu}
export WORK="$work"
bad=0
model="num_layers=8 num_attention_heads=8 ffn_hidden_size=24 seq_length=8 micro_batch_size=1
       position_embedding_type=rope rotary_base=9973 activation=swiglu"

fail() { echo "# $*"; bad=1; }

# same RANKS WORDS... -- the gradients of the layout in WORDS are those of one rank
same() {
    n=$1; shift
    # shellcheck disable=SC2086
    TRAIN=$BUILD/test_layouts scripts/launch -n "$n" one $model global_batch_size=8 pipeline_schedule=custom "$@" || fail "$*"
}

# lists FILE WORDS... -- writes the lists of the schedule in WORDS to FILE
lists() {
    file=$1; shift
    # shellcheck disable=SC2086
    "$BUILD/train" schedule configs/demo.yaml $model tensor_model_parallel_size=1 "$@" --csv "$file" > /dev/null || fail "$*"
}

# even microbatches have backwards in two halves with a late W, odd microbatches have joined backwards
cat > "$work/mixed.csv" << 'END'
0F0,0F1,0I0,0F2,0W0,0B1,0F3,0I2,0F4,0W2,0B3,0F5,0I4,0F6,0W4,0B5,0F7,0I6,0W6,0B7

 1F0, 1I0, 1F1, 1W0, 1B1, 1F2, 1I2, 1F3, 1W2, 1B3, 1F4, 1I4,, 1F5, 1W4, 1B5, 1F6, 1I6, 1F7, 1W6, 1B7
END
lists "$work/dual.csv" pipeline_model_parallel_size=2 pipeline_schedule=dualpipev global_batch_size=4
lists "$work/half.csv" pipeline_model_parallel_size=4 pipeline_schedule=v-half global_batch_size=8
lists "$work/loop.csv" pipeline_model_parallel_size=4 pipeline_schedule=interleaved num_virtual_stages_per_pipeline_rank=2 \
      global_batch_size=8
lists "$work/auto.csv" pipeline_model_parallel_size=2 pipeline_schedule=zb-auto pipeline_max_activations=3 global_batch_size=8

same 2 pipeline_model_parallel_size=2 pipeline_schedule_file="$work/mixed.csv"
same 2 pipeline_model_parallel_size=2 pipeline_schedule_file="$work/mixed.csv" recompute_granularity=full \
     recompute_method=uniform recompute_num_layers=2
same 2 pipeline_model_parallel_size=2 pipeline_schedule_file="$work/auto.csv"
same 4 pipeline_model_parallel_size=4 pipeline_schedule_file="$work/half.csv"
same 4 pipeline_model_parallel_size=4 pipeline_schedule_file="$work/loop.csv"
for zero in no_shard optim optim_grads optim_grads_params; do
    same 4 pipeline_model_parallel_size=2 pipeline_schedule_file="$work/dual.csv" overlap_grad_reduce=true \
         data_parallel_sharding_strategy=$zero
done

# lists that are read from a file are written as they were
lists "$work/again.csv" pipeline_model_parallel_size=4 pipeline_schedule=custom pipeline_schedule_file="$work/half.csv" \
      global_batch_size=8
cmp "$work/half.csv" "$work/again.csv" || fail "the lists of a custom schedule are not the file's"
{ printf '\357\273\277'; sed 's/$/\r/' "$work/half.csv"; } > "$work/marked.csv"          # as spreadsheets write it
lists "$work/again.csv" pipeline_model_parallel_size=4 pipeline_schedule=custom pipeline_schedule_file="$work/marked.csv" \
    global_batch_size=8
cmp "$work/half.csv" "$work/again.csv" || fail "a byte-order mark: other lists"

# refused PHRASE WORDS... -- WORDS is refused with an error line that holds PHRASE
refused() {
    phrase=$1; shift
    # shellcheck disable=SC2086
    "$BUILD/train" schedule configs/demo.yaml $model tensor_model_parallel_size=1 pipeline_schedule=custom "$@" \
        > /dev/null 2> "$work/err"
    code=$?
    { [ $code = 2 ] && grep -qF "$phrase" "$work/err"; } || { fail "exit $code, not: $phrase"; cat "$work/err"; }
}
sed 's/0W4/0W3/' "$work/mixed.csv" > "$work/bad.csv"
refused "$work/bad.csv:1:57: 0W3 stands twice" pipeline_model_parallel_size=2 pipeline_schedule_file="$work/bad.csv" \
        global_batch_size=8
refused "mixed.csv is for 8 microbatches, a step of 4 samples has 4; use a batch of 8" pipeline_model_parallel_size=2 \
        pipeline_schedule_file="$work/mixed.csv" global_batch_size=4
refused "half.csv has 2 stages on each rank; leave it out" pipeline_model_parallel_size=4 \
        pipeline_schedule_file="$work/half.csv" num_virtual_stages_per_pipeline_rank=1 global_batch_size=8
refused "has 4 stages, but pipeline 4 x 2 virtual stages make 8" pipeline_model_parallel_size=4 \
        pipeline_schedule_file="$work/half.csv" pipeline_model_parallel_layout="'Ett|tt|tt|ttL'" global_batch_size=8
# of the pipelines that bubble looks at, those that the file is not of are left out; nothing is left here
for wrong in "bad.csv:1:57: 0W3 stands twice" "mixed.csv is for 8 microbatches"; do
    m=8
    [ "${wrong%%.csv*}" = bad ] || m=4
    "$BUILD/train" bubble configs/demo.yaml --simulate --schedules custom --p 2 --m $m \
        pipeline_schedule_file="$work/${wrong%%.csv*}.csv" > /dev/null 2> "$work/err"
    code=$?
    { [ $code = 2 ] && grep -q "^left out: custom, p 2, v 1, m $m: .*$wrong" "$work/err" &&
        grep -q "^error.bubble. .*$wrong; change: " "$work/err"; } || { fail "bubble: exit $code, not: $wrong"; cat "$work/err"; }
done

# a rank whose stages are empty has no tensor to check against its replicas, but takes part in the check
. tests/tiny.sh
"$BUILD/train" tokenize README.md -o "$work/corpus" > /dev/null 2>&1 || fail "no corpus"
tiny "$work/tiny.yaml" train.global_batch_size=4 train.train_iters=3 log.log_interval=1
losses() { grep -o '"lm_loss": [0-9.]*' "$work/$1/metrics.jsonl" | cut -c 1-17; }
"$BUILD/train" "$work/tiny.yaml" save="$work/one" > "$work/log" 2>&1 || { fail "one rank"; cat "$work/log"; }
for layout in 'Et||tL' 'Ett||L'; do
    TRAIN=$BUILD/train scripts/launch -n 3 "$work/tiny.yaml" save="$work/empty$layout" pipeline_model_parallel_size=3 \
        pipeline_model_parallel_layout="'$layout'" > "$work/log" 2>&1 || { fail "$layout: $?"; cat "$work/log"; }
    [ "$(losses one)" = "$(losses "empty$layout")" ] || fail "$layout: other losses"
done
# layers that are shared out by what they take here: the same losses, and config.yaml has the stages
TRAIN=$BUILD/train scripts/launch -n 3 "$work/tiny.yaml" save="$work/cost" pipeline_model_parallel_size=3 \
    pipeline_balance=cost > "$work/log" 2>&1 || { fail "pipeline_balance cost: $?"; cat "$work/log"; }
grep -qE '^pipeline_balance cost: embedding [0-9.e-]+ ms, a layer [0-9.e-]+, head [0-9.e-]+: E[t|*2]*L$' "$work/log" ||
    fail "pipeline_balance cost says nothing"
[ "$(losses one)" = "$(losses cost)" ] || fail "pipeline_balance cost: other losses"
[ "$(sed -n "s/^ *pipeline_model_parallel_layout: '\(.*\)'/\1/p" "$work/cost/config.yaml")" = \
    "$(sed -n 's/^pipeline_balance cost: .*: //p' "$work/log")" ] || fail "pipeline_balance cost: other stages are kept"
exit $bad
