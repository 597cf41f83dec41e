#!/bin/sh
# tests/cuda/cuda_launches.sh -- launches of a step on the emulated GPU: kernels over all tensors are launched once, and
# weights are rounded to FP8 once. The launches of a step are the difference between runs of three steps and one step,
# halved: launches outside the steps cancel.
cd "$(dirname "$0")/../.." || exit 2
emulated=${EMULATED:-build/emulated} work=${WORK:-$(mktemp -d)} fail=0
"${TRAIN:-$PWD/build/cpu/train}" tokenize src -o "$work/corpus" > /dev/null 2>&1 || exit 2
cat > "$work/tiny.yaml" <<YAML
model: {num_layers: 12, hidden_size: 64, num_attention_heads: 1, ffn_hidden_size: 64, seq_length: 16, max_position_embeddings: 16}
data: {data_path: $work/corpus, tokenizer_type: byte, split: '98, 2, 0'}
train: {micro_batch_size: 1, global_batch_size: 2, train_iters: 3, eval_interval: 1000}
optimizer: {lr: 0.001, lr_decay_style: constant}
precision: {params_dtype: bf16, device: cuda}
checkpoint: {save_at_end: false}
YAML
launches() { # ITERATIONS KERNEL options...: prints the launches of the kernel in a run
    iterations=$1 kernel=$2
    shift 2
    rm -rf "$work/run" "$work/launches"
    EMULATION_LAUNCHES=$work/launches "$emulated/train" "$work/tiny.yaml" "save=$work/run" "train_iters=$iterations" "$@" > "$work/log" 2>&1 ||
        tail -n 5 "$work/log" >&2
    awk -v kernel="$kernel" 'index($0, kernel) { n += $1 } END { print n + 0 }' "$work/launches"
}
expect() { # LAUNCHES KERNEL options...: the kernel has that many launches in a step
    want=$1
    shift
    got=$((($(launches 3 "$@") - $(launches 1 "$@")) / 2))
    if [ "$got" = "$want" ]; then
        echo "ok - $got of $*"
    else
        echo "not ok - $got of $*, not $want"
        fail=1
    fi
}
expect 1 k_squares optimizer=adam
expect 1 k_update optimizer=adam
expect 2 k_squares optimizer=lamb
expect 2 k_update optimizer=lamb
expect 1 k_update optimizer=sgd
# 48 products, two microbatches: one cast of inputs and one of gradients makes rows and transposes, but of proj's input,
# which attention reads again, the transpose is made in the backward; weights are cast once with copies that are kept,
# twice without
expect $((48 * (2 * 2 + 1) + 12 * 2)) k_fp8_cast fp8=hybrid
expect $((48 * (2 + 2) + 12)) k_fp8_cast fp8=hybrid global_batch_size=1
# casts make the activation and, without fc1's bias, its gradient
expect 24 k_act_ fp8=hybrid
expect 0 k_act_ fp8=hybrid activation=swiglu add_bias_linear=false
# rows of 1040 numbers and more: a norm writes FP8 itself, in one launch, and two casts of a layer are gone
wide="num_layers=1 hidden_size=1088 kv_channels=64 optimizer=sgd fp8=hybrid"
# shellcheck disable=SC2086 # several options
expect 4 k_fp8_norm $wide
# shellcheck disable=SC2086
expect $((4 * (2 * 2 + 1) + 2 - 4)) k_fp8_cast $wide
[ $fail = 0 ]
