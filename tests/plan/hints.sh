#!/bin/sh
# tests/plan/hints.sh -- the hints of `train plan` and `train sweep`: each is there where it is true, and not one change away
# from there; what a hint promises is what a plan with its change says.
work=${WORK:?}
fail() { echo "# $1"; [ ! -f "$work/out" ] || sed 's/^/#   /' "$work/out"; exit 1; }
cat > "$work/gpt.yaml" <<'YAML'
model: {num_layers: 16, hidden_size: 2048, num_attention_heads: 16, seq_length: 2048, vocab_size: 32000}
data: {tokenizer_type: none}
train: {micro_batch_size: 1, global_batch_size: 256}
precision: {params_dtype: bf16}
YAML
plan() { "$TRAIN" plan "$work/gpt.yaml" --world 32 "$@" > "$work/out" 2>&1 || fail "plan $*"; }
# hint TEXT COUNT KEYS...: the hint is there so often, with its change
hint() {
    text=$1 count=$2
    shift 2
    plan --machine a100-80gb "$@"
    [ "$(grep -c "^hint .*$text" "$work/out")" = "$count" ] || fail "$text, $count times: $*"
    [ "$(grep -c '^hint' "$work/out")" = "$(grep -c '^hint .*; change: ' "$work/out")" ] || fail "a hint without a change"
}
# promise KEYS...: the step and the change of the last hint that names a step are those of a plan with it
promise() {
    line=$(grep '^hint .* a step takes ' "$work/out" | grep "$1" | tail -n 1)
    ms=$(echo "$line" | sed 's/.*a step takes \([0-9.]*\) ms.*/\1/') change=${line##*change: }
    shift
    plan --machine a100-80gb "$@" "$change"
    grep -q "^time  *$ms ms" "$work/out" || fail "$ms ms promised by $change"
}
optim=data_parallel_sharding_strategy=optim
# a tensor group across hosts of 8 ranks: too large, of a size that divides no host, or in another order of the axes
for keys in tensor_model_parallel_size=16 'tensor_model_parallel_size=2 rank_order=dp-tp-cp-ep-pp'; do
    # shellcheck disable=SC2086
    hint 'cross hosts of 8' 1 $optim $keys
done
hint 'change: tensor_model_parallel_size=8$' 1 $optim tensor_model_parallel_size=16
hint 'cross hosts' 0 $optim tensor_model_parallel_size=8
hint 'cross hosts' 0 $optim tensor_model_parallel_size=16 --world 16 --machine gb200

# microbatches of a pipeline: 4p are enough, a schedule without a bubble needs fewer, one stage none
pipe='pipeline_model_parallel_size=4'
few='4 microbatches for 4 pipeline ranks leave a bubble of .*16 microbatches or more'
hint "$few" 1 $optim $pipe global_batch_size=32
hint 'leave a bubble' 0 $optim $pipe global_batch_size=128
hint 'leave a bubble' 0 $optim $pipe global_batch_size=64 pipeline_schedule=zb-v
hint 'leave a bubble' 0 $optim global_batch_size=32
# zb-v is named where it is legal: not where the layers do not make two stages a rank, or stages are given
hint "$few.*or fewer pipeline ranks, or pipeline_schedule=zb-v$" 1 $optim $pipe global_batch_size=32
hint "$few.*or fewer pipeline ranks$" 1 $optim $pipe global_batch_size=32 num_layers=12
hint "$few.*or fewer pipeline ranks$" 1 $optim $pipe global_batch_size=32 pipeline_model_parallel_layout="'Et*4|t*4|t*4|t*4L'"
plan $optim $pipe global_batch_size=32
grep -q "^hint .*$few" "$work/out" || fail "needs no machine"
"$TRAIN" plan "$work/gpt.yaml" --world 32 $optim $pipe global_batch_size=32 --json | grep -q '"4 microbatches for 4 pipeline' || fail "--json"

# more microbatches than needed, with memory to spare; not where the pipeline needs them, or memory is short
more='8 microbatches are more than needed: .*change: micro_batch_size=2$'
hint "$more" 1 $optim tensor_model_parallel_size=8 global_batch_size=32 sequence_parallel=true
promise 'micro_batch' $optim tensor_model_parallel_size=8 global_batch_size=32 sequence_parallel=true
hint 'more than needed' 0 $optim pipeline_model_parallel_size=2 tensor_model_parallel_size=8 global_batch_size=16    # though faster
printf 'machine: {name: small, like: a100-80gb}\ndevice: {memory_gib: 4.4}\n' > "$work/small.yaml"
cp configs/machines/a100-80gb.yaml "$work"
hint 'more than needed' 0 $optim tensor_model_parallel_size=8 global_batch_size=32 sequence_parallel=true --machine "$work/small.yaml"
grep -q ': fits$' "$work/out" || fail "as it is, it does not fit"

# gradients reduced after every microbatch, where once a step would do; not where optim does not fit, or with one microbatch
each='reduced after each of 8 microbatches; .*change: data_parallel_sharding_strategy=optim$'
hint "$each" 1 data_parallel_sharding_strategy=optim_grads
promise 'reduced after' data_parallel_sharding_strategy=optim_grads
hint "$each" 1 data_parallel_sharding_strategy=optim_grads_params
hint 'reduced after' 0 $optim
hint 'reduced after' 0 data_parallel_sharding_strategy=optim_grads_params global_batch_size=32
printf 'machine: {name: small, like: a100-80gb}\ndevice: {memory_gib: 9}\n' > "$work/small.yaml"
hint 'reduced after' 0 data_parallel_sharding_strategy=optim_grads_params --machine "$work/small.yaml"
grep -q ': fits$' "$work/out" || fail "as it is, it does not fit"

# a run says at its start what needs no machine
. tests/tiny.sh
"$TRAIN" tokenize src/plan/hints.c -o "$work/corpus" > /dev/null 2>&1 || fail "no corpus"
tiny "$work/tiny.yaml" model.num_layers=4 train.train_iters=1 train.global_batch_size=16
run() { TRAIN=$TRAIN scripts/launch -n 2 "$work/tiny.yaml" "save=$work/run" overwrite=true "$@" > "$work/out" 2>&1 || fail "run $*"; }
run pipeline_model_parallel_size=2 global_batch_size=2
[ "$(grep -c '^hint: 2 microbatches for 2 pipeline ranks leave a bubble of .*; change: 8 microbatches or more' "$work/out")" = 1 ] || fail "at the start"
grep -q '^hint: .*, or pipeline_schedule=zb-v$' "$work/out" || fail "zb-v at the start"
run pipeline_model_parallel_size=2 global_batch_size=2 num_layers=2
grep -q '^hint: .*, or fewer pipeline ranks$' "$work/out" || fail "zb-v at the start, with too few layers"
run pipeline_model_parallel_size=2 global_batch_size=16
! grep -q '^hint' "$work/out" || fail "a hint with enough microbatches"

# a sweep says them of its winner
"$TRAIN" sweep "$work/gpt.yaml" --world 32 --machine a100-80gb -o "$work/sweep" tensor_model_parallel_size=16 pipeline_model_parallel_size=2 \
    global_batch_size=4 > "$work/out" 2>&1 || fail "sweep"
grep -q '^hint .*cross hosts of 8' "$work/out" && grep -q '"tensor groups of 16 ranks cross' "$work/sweep/sweep.json" || fail "the winner's hints"

# widths that fill no whole tiles: of a head, of a rank's part of the MLP; not on a host's cores
wide='num_attention_heads=8 hidden_size=1024 ffn_hidden_size=4096'
hint 'are 108 wide by kv_channels' 1 $optim $wide kv_channels=108
hint 'are 1000 wide by ffn_hidden_size' 1 $optim $wide ffn_hidden_size=4000 tensor_model_parallel_size=4
hint 'no multiple of 64' 0 $optim $wide tensor_model_parallel_size=8
exit 0
