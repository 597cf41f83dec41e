#!/bin/sh
# tests/cuda/cuda_offload.sh -- runs on the emulated GPU that offload the optimizer's state have the bits of runs that do
# not: losses, norms, and every tensor of two checkpoints, the first from the middle of the run. Offloaded updates run on
# the fifth stream, beside the next step; here that stream is as late as it can be. SEEDS: orders of the streams for each
# run (default 1). EMULATED names the build.
set -e
emulated=${EMULATED:-build/emulated} work=${WORK:?} seeds=${SEEDS:-1}
launch=$PWD/scripts/launch
export EMULATION_GUARD=1 EMULATION_HANG="${EMULATION_HANG:-240}" TRAIN=$emulated/train
"$emulated/train" tokenize README.md data/README.md tests/*/*.sh -o "$work/corpus" > /dev/null 2>&1
cat > "$work/tiny.yaml" <<YAML
model: {num_layers: 4, hidden_size: 64, num_attention_heads: 1, seq_length: 16, hidden_dropout: 0.1}
data: {data_path: $work/corpus, tokenizer_type: byte, split: '90, 10, 0'}
train: {micro_batch_size: 1, global_batch_size: 2, train_iters: 6, eval_interval: 5, eval_iters: 1}
optimizer: {lr: 0.01}
checkpoint: {save_interval: 3}
log: {log_interval: 1}
YAML
numbers() { sed -nE 's/.*"lm_loss": *([^,}]*).*"grad_norm": *([^,}]*).*/\1 \2/p' "$1/metrics.jsonl"; }
run() { # DIRECTORY RANKS options: trains into DIRECTORY
    dir=$1 ranks=$2
    shift 2
    rm -rf "$dir"
    "$launch" -n "$ranks" "$work/tiny.yaml" save="$dir" device=cuda cublaslt_tune=1 "$@" > "$work/log" 2>&1 ||
        { echo "$*: $?"; tail -n 5 "$work/log"; exit 1; }
}
n=0
while read -r share ranks options; do
    n=$((n + 1))
    # shellcheck disable=SC2086
    EMULATION_SEED=0 run "$work/near" "$ranks" $options < /dev/null
    numbers "$work/near" > "$work/a"
    for seed in $(seq 1 "$seeds"); do
        # shellcheck disable=SC2086
        EMULATION_LAST=4 EMULATION_SEED=$seed run "$work/away" "$ranks" $options optimizer_cpu_offload=true \
            optimizer_offload_fraction="$share" < /dev/null
        numbers "$work/away" > "$work/b"
        [ "$(wc -l < "$work/a")" = 6 ] && cmp "$work/a" "$work/b" ||
            { paste "$work/a" "$work/b"; echo "$options, seed $seed: other numbers"; exit 1; }
        for file in "$work"/near/checkpoints/iter_*/*.safetensors; do
            cmp "$file" "$work/away/${file#"$work/near/"}" || { echo "$options, seed $seed: ${file##*/} differs"; exit 1; }
        done
    done
done <<RUNS
1 1 params_dtype=bf16
0.5 1 params_dtype=bf16 async_save=true optimizer=lamb
1 1 params_dtype=bf16 async_save=true exp_avg_dtype=fp8 exp_avg_sq_dtype=fp16
1 2 params_dtype=fp32 data_parallel_sharding_strategy=optim overlap_grad_reduce=true overlap_param_gather=true
0.6 2 params_dtype=bf16 data_parallel_sharding_strategy=optim_grads overlap_grad_reduce=true
1 2 params_dtype=bf16 data_parallel_sharding_strategy=optim_grads_params overlap_grad_reduce=true
1 2 params_dtype=bf16 pipeline_model_parallel_size=2 pipeline_schedule=zb-h1
RUNS
echo "$n runs, $seeds orders each, the same bits"
