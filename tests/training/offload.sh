#!/bin/sh
# tests/training/offload.sh -- runs that offload optimizer state and activations over test_far (a device whose
# memory the host cannot touch and whose copies are as late as allowed) have the same bits as runs on the CPU
# that offload nothing: losses, norms, and every tensor of the checkpoint.
set -e
work=${WORK:?} far=$(cd "$BUILD" && pwd)/test_far launch=$PWD/scripts/launch train=$TRAIN
. tests/tiny.sh
"$train" tokenize README.md data/README.md tests/*/*.sh -o "$work/corpus" > /dev/null 2>&1
tiny "$work/tiny.yaml" model.num_layers=4 model.seq_length=16 model.hidden_dropout=0.1 model.attention_dropout=0.1 \
    train.global_batch_size=4 train.train_iters=3 train.eval_interval=2 train.eval_iters=1
numbers() { sed -nE 's/.*"lm_loss": *([^,}]*).*"grad_norm": *([^,}]*).*/\1 \2/p' "$1/metrics.jsonl"; }
run() { # PROGRAM DIRECTORY RANKS key=value ...
    program=$1 dir=$2 ranks=$3
    shift 3
    TRAIN=$program "$launch" -n "$ranks" "$work/tiny.yaml" save="$dir" cpu_isa="$ISA" "$@" > "$work/log" 2>&1 ||
        { echo "$*: $?"; tail -n 5 "$work/log"; exit 1; }
}
n=0
while read -r layers ranks options; do
    n=$((n + 1))
    [ -z "${FEW-}" ] || [ $((n % 6)) = 1 ] || continue
    [ "$ranks" = 1 ] && unset FAR_REACHED || export FAR_REACHED=1
    # shellcheck disable=SC2086
    run "$train" "$work/$n-near" "$ranks" $options < /dev/null
    # shellcheck disable=SC2086
    run "$far" "$work/$n-far" "$ranks" $options cpu_offloading_num_layers="$layers" optimizer_cpu_offload=true \
        optimizer_offload_fraction=0.5 < /dev/null
    numbers "$work/$n-near" > "$work/a"
    numbers "$work/$n-far" > "$work/b"
    [ "$(wc -l < "$work/a")" = 3 ] && cmp "$work/a" "$work/b" || { paste "$work/a" "$work/b"; echo "$options: other numbers"; exit 1; }
    for file in "$work/$n-near"/checkpoints/iter_0000003/*.safetensors; do
        cmp "$file" "$work/$n-far/checkpoints/iter_0000003/${file##*/}" || { echo "$options: ${file##*/} differs"; exit 1; }
    done
    rm -r "$work/$n-near" "$work/$n-far"
done <<RUNS
1 1 params_dtype=bf16
4 1 params_dtype=fp32 qk_layernorm=true position_embedding_type=rope
3 1 recompute_granularity=selective recompute_modules=[core_attn,layernorm] params_dtype=bf16
4 1 recompute_granularity=selective recompute_modules=[mlp] params_dtype=fp64
2 2 pipeline_model_parallel_size=2 pipeline_schedule=gpipe
1 2 pipeline_model_parallel_size=2 pipeline_schedule=1f1b optimizer=lamb
2 2 pipeline_model_parallel_size=2 pipeline_schedule=zb-h1
2 2 pipeline_model_parallel_size=2 pipeline_schedule=zb-h2 recompute_granularity=selective recompute_modules=[core_attn,mlp_act]
1 2 pipeline_model_parallel_size=2 pipeline_schedule=interleaved num_virtual_stages_per_pipeline_rank=2
1 2 pipeline_model_parallel_size=2 pipeline_schedule=zb-v
1 2 pipeline_model_parallel_size=2 pipeline_schedule=dualpipev global_batch_size=8
3 2 data_parallel_sharding_strategy=optim_grads_params overlap_grad_reduce=true overlap_param_gather=true
4 2 data_parallel_sharding_strategy=optim_grads
4 2 tensor_model_parallel_size=2 sequence_parallel=true tp_comm_overlap=true
2 4 pipeline_model_parallel_size=2 pipeline_schedule=zb-h1 data_parallel_sharding_strategy=optim overlap_grad_reduce=true
2 2 context_parallel_size=2
4 4 context_parallel_size=4 cp_comm_type=[p2p,allgather,a2a,a2a+p2p] hierarchical_context_parallel_sizes=[2,2]
2 4 context_parallel_size=2 cp_comm_type=a2a pipeline_model_parallel_size=2 pipeline_schedule=zb-h1 recompute_granularity=selective
1 4 context_parallel_size=2 cp_comm_type=allgather tensor_model_parallel_size=2 sequence_parallel=true params_dtype=bf16
4 1 num_moe_experts=4 params_dtype=bf16
3 2 num_moe_experts=4 expert_model_parallel_size=2 pipeline_model_parallel_size=1
1 2 num_moe_experts=4 pipeline_model_parallel_size=2 pipeline_schedule=zb-h1
2 1 num_moe_experts=4 moe_layer_freq=[0,1,1,1]
2 1 num_moe_experts=4 moe_layer_freq=[1,0,0,0] params_dtype=bf16
RUNS
echo "$n runs, the same bits"
