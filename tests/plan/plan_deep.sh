#!/bin/sh
# tests/plan/plan_deep.sh -- plans of models with 10,000 layers, the largest legal number, take a second each.
# Plans whose work grows with the square of the layers would take minutes and exceed the row's limit. That of --explain with
# a machine does (1,000 layers: a second; 10,000: a minute).
set -eu
cat > "$WORK/deep.yaml" <<YAML
model: {num_layers: 10000, hidden_size: 64, num_attention_heads: 2, seq_length: 16}
data: {tokenizer_type: byte, data_path: none}
train: {micro_batch_size: 1, global_batch_size: 8, train_iters: 20}
optimizer: {lr: 0.01}
YAML
plan() { "$TRAIN" plan "$WORK/deep.yaml" "$@" > "$WORK/log" 2>&1 || { cat "$WORK/log"; exit 1; }; }
for optimizer in adam lamb; do
    for sharding in no_shard optim optim_grads_params; do
        plan --world 8 optimizer=$optimizer data_parallel_sharding_strategy=$sharding
    done
done
plan --machine configs/machines/h100.yaml
plan num_layers=1000 --explain --machine configs/machines/h100.yaml
plan recompute_granularity=full recompute_method=uniform recompute_num_layers=1
plan --world 16 pipeline_model_parallel_size=4 pipeline_balance=cost
plan device=cuda params_dtype=bf16 optimizer_cpu_offload=true
# with asynchronous saves each of 1,024 ranks is asked, but only one runs the 4,096 microbatches, in a second; all would
# exceed the row's limit
plan --world 1024 num_layers=40 global_batch_size=4194304 async_save=true
# what 64 bits cannot count is refused: bytes of one microbatch's layers, and of the microbatches that a rank holds
endless() { # MICRO key=value ...: 5 and one line
    micro=$1
    shift
    rc=0
    "$TRAIN" plan "$WORK/deep.yaml" seq_length=16777216 hidden_size=65536 num_attention_heads=512 vocab_size=1024 tokenizer_type=none \
        data_path='[]' params_dtype=fp64 micro_batch_size="$micro" "$@" > "$WORK/log" 2>&1 || rc=$?
    [ $rc = 5 ] && grep '^error\[memory\] activations.* more than 2^60 bytes of a rank; change: ' "$WORK/log" > /dev/null ||
        { cat "$WORK/log"; echo "$micro samples $*: code $rc"; exit 1; }
}
endless 50 global_batch_size=50
endless 8 global_batch_size=65536 num_layers=100 pipeline_model_parallel_size=2 pipeline_schedule=gpipe --world 2
