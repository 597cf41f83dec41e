#!/bin/sh
# tests/commands/experts_eval.sh -- generate and eval of a model with experts give in every layout what one rank gives, with
# a capacity that eval obeys and generation does not; runs in 16 bits learn, scale their loss, and resume.
set -e
work=${WORK:?} launch=$PWD/scripts/launch train=$TRAIN
. tests/tiny.sh
fail() { echo "$*"; tail -n 5 "$work/log"; exit 1; }
mkdir "$work/texts"
awk -v to="$work/texts" 'BEGIN {
    for (i = 0; i < 1500; i++) print "line", i, "has", i * i % 97, "words, and the next one", i * 7 % 31 > (to "/" int(i / 150))
}'
"$train" tokenize "$work/texts" -o "$work/corpus" > /dev/null 2>&1
moe='moe.num_moe_experts=4 moe.moe_router_topk=2 moe.moe_aux_loss_coeff=0.02 moe.moe_ffn_hidden_size=48'
# shellcheck disable=SC2086
tiny "$work/tiny.yaml" $moe model.hidden_dropout=0 model.attention_dropout=0 train.global_batch_size=4 \
    train.train_iters=30 precision.params_dtype=fp64 moe.moe_expert_capacity_factor=0.6 train.eval_iters=2 \
    model.add_bias_linear=false "data.split='50, 50, 0'" moe.moe_shared_expert_intermediate_size=16
TRAIN=$train "$launch" -n 1 "$work/tiny.yaml" save="$work/run" > "$work/log" 2>&1 || fail "one rank: exit $?"

# on RANKS COMMAND OUT key=value ...
on() {
    ranks=$1 command=$2 out=$3
    shift 3
    TRAIN=$train "$launch" -n "$ranks" "$command" "$work/tiny.yaml" load="$work/run" "$@" > "$out" 2> "$work/log" ||
        fail "$command on $ranks, $*: exit $?"
}
on 1 eval "$work/eval" --json
"$train" eval load="$work/run" cpu_isa="${ISA:-auto}" --json > "$work/alone" 2> "$work/log" || fail "eval without a configuration: exit $?"
cmp "$work/eval" "$work/alone" || fail "eval without a configuration does not obey the run's capacity"
on 1 eval "$work/free" --json moe_expert_capacity_factor=null
cmp -s "$work/eval" "$work/free" && fail "eval without a capacity gives what eval with it gives"
on 1 generate "$work/text" --prompt "The " --tokens 24 --temperature 1
[ "$(wc -c < "$work/text")" -gt 20 ] || fail "generate says little"
on 1 generate "$work/other" --prompt "The " --tokens 24 --temperature 1 moe_expert_capacity_factor=null
cmp "$work/text" "$work/other" || fail "generate drops tokens"
n=2
while read -r ranks options; do
    # shellcheck disable=SC2086
    on "$ranks" eval "$work/other" --json $options < /dev/null
    loss() { sed -nE 's/.*"valid_loss": *([0-9.e+-]+).*/\1/p' "$1"; }
    awk "BEGIN { a = $(loss "$work/eval"); b = $(loss "$work/other"); exit !(a > 1 && a - b < 1e-12 && b - a < 1e-12) }" ||
        fail "eval on $ranks, $options: $(cat "$work/other") beside $(cat "$work/eval")"
    # shellcheck disable=SC2086
    on "$ranks" generate "$work/other" --prompt "The " --tokens 24 --temperature 1 $options < /dev/null
    cmp "$work/text" "$work/other" || fail "generate on $ranks, $options: other text"
    n=$((n + 1))
done <<LAYOUTS
2 expert_model_parallel_size=2
2 tensor_model_parallel_size=2 sequence_parallel=true expert_tensor_parallel_size=2
2 tensor_model_parallel_size=2 sequence_parallel=true expert_tensor_parallel_size=1 expert_model_parallel_size=2
2 context_parallel_size=2 expert_model_parallel_size=2
2 pipeline_model_parallel_size=2
4 pipeline_model_parallel_size=2 tensor_model_parallel_size=2 sequence_parallel=true expert_model_parallel_size=2 expert_tensor_parallel_size=1 moe_pad_expert_input_to_capacity=true
4 expert_model_parallel_size=4 data_parallel_sharding_strategy=optim_grads_params
4 expert_model_parallel_size=2 expert_tensor_parallel_size=2 moe_token_dispatcher_type=allgather
LAYOUTS

# 16 bits: the loss falls, as far as in fp32, and fp16 starts at a loss scale that it must lower.
last() { sed -nE 's/.*"lm_loss": *([0-9.e+-]+).*/\1/p' "$1/metrics.jsonl" | tail -n 1; }
for dtype in fp32 bf16 fp16; do
    TRAIN=$train "$launch" -n 2 "$work/tiny.yaml" save="$work/$dtype" params_dtype=$dtype expert_model_parallel_size=2 \
        initial_loss_scale=4294967296 train_iters=40 save_interval=20 > "$work/log" 2>&1 || fail "$dtype: exit $?"
    awk "BEGIN { exit !($(last "$work/$dtype") < 4.5 && ($(last "$work/$dtype") - $(last "$work/fp32")) ^ 2 < 1) }" ||
        fail "$dtype: loss $(last "$work/$dtype"), fp32 $(last "$work/fp32")"
done
grep -q '"skipped_iterations": *[1-9]' "$work/fp16/metrics.jsonl" || fail "fp16: no step was skipped"
TRAIN=$train "$launch" -n 2 "$work/tiny.yaml" save="$work/again" params_dtype=fp16 expert_model_parallel_size=1 \
    load="$work/fp16/checkpoints/iter_0000020" train_iters=40 > "$work/log" 2>&1 || fail "resume: exit $?"
awk "BEGIN { exit !(($(last "$work/again") - $(last "$work/fp16")) ^ 2 < 0.01) }" ||
    fail "resumed with all experts on each rank: loss $(last "$work/again"), before $(last "$work/fp16")"
echo "$n layouts agree; fp32 $(last "$work/fp32"), bf16 $(last "$work/bf16"), fp16 $(last "$work/fp16")"
