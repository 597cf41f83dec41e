#!/bin/sh
# tests/cuda/cuda_room.sh -- an emulated GPU with less and less memory: two slices of logits instead of one, at most
# 2,048 rows each; `train plan` for a machine with that memory says the same, and the loss keeps its bits. Two ranks
# run in what is planned, and in no less.
set -eu
cd "$(dirname "$0")/../.."
emulated=${EMULATED:-build/emulated} work=${WORK:-$(mktemp -d)}
cpu=${TRAIN:-$PWD/build/cpu/train}
cp configs/machines/h100.yaml "$work"
"$cpu" tokenize src -o "$work/corpus" > /dev/null 2>&1
cat > "$work/tiny.yaml" <<YAML
model: {num_layers: 1, hidden_size: 8, num_attention_heads: 1, ffn_hidden_size: 16, seq_length: 64}
data: {data_path: $work/corpus, tokenizer_type: byte, split: '98, 2, 0'}
train: {micro_batch_size: 36, global_batch_size: 36, train_iters: 1, eval_iters: 0}
optimizer: {lr: 0.001, lr_decay_style: constant}
precision: {params_dtype: fp32, device: cuda, cublaslt_tune: 1}
log: {log_interval: 1}
YAML
fail() { echo "$1"; cat "$work/said"; exit 1; }
total() { # ROWS: bytes of a GPU that has just the memory for slices of ROWS rows
    "$emulated/train" plan "$work/tiny.yaml" --json logits_slice_rows="$1" |
        awk -F'[:,]' '/"total"/ { t = $2 } /"reserve"/ { r = $2 } END { printf "%.0f", t + r }'
}
# run BYTES ROWS: a step in so much memory, and the plan for it; both take slices of ROWS rows
run() {
    printf 'machine: {name: small, like: h100}\ndevice: {memory_gib: %s}\n' "$(awk -v b="$1" 'BEGIN { printf "%.9f", b / 2 ^ 30 }')" > "$work/small.yaml"
    EMULATION_MEMORY=$1 "$emulated/train" "$work/tiny.yaml" save="$work/run$2" overwrite=true > "$work/said" 2>&1 || fail "$1 bytes: no step"
    grep -q "^logits: .* $2 rows" "$work/said" || fail "a run in $1 bytes does not take $2 rows"
    "$cpu" plan "$work/tiny.yaml" --json --machine "$work/small.yaml" > "$work/said"
    grep -q "\"logits_slice_rows\": $2," "$work/said" || fail "a plan for $1 bytes does not take $2 rows"
    sed -n 's/.*"lm_loss": *\([^,]*\),.*/\1/p' "$work/run$2/metrics.jsonl" > "$work/loss$2"
    [ -s "$work/loss$2" ] && cmp "$work/loss$2" "$work/loss2304" || fail "another loss with slices of $2 rows"
}
all=$(total 2304) half=$(total 1152)
run $((all + 65536)) 2304
run $((all - 65536)) 1152
EMULATION_MEMORY=$((half - 65536)) "$emulated/train" "$work/tiny.yaml" save="$work/none" > "$work/said" 2>&1 && fail "too much fits"
grep -q 'error\[memory-plan\].* change: logits_slice_rows=256 (' "$work/said" || fail "no remedy"

# Two ranks need what their plan says to 64 KiB: a rank's part of a host's transport is no memory of its GPU.
two="distributed_backend=nccl logits_slice_rows=64"
# shellcheck disable=SC2086
all=$("$emulated/train" plan "$work/tiny.yaml" --json --world 2 $two global_batch_size=72 |
    awk -F'[:,]' '/"total"/ && $2 > t { t = $2 } /"reserve"/ { r = $2 } END { printf "%.0f", t + r }')
for more in 65536 -65536; do
    code=0
    # shellcheck disable=SC2086
    EMULATION_MEMORY=$((all + more)) TRAIN=$emulated/train scripts/launch -n 2 "$work/tiny.yaml" $two global_batch_size=72 \
        save="$work/two" overwrite=true > "$work/said" 2>&1 || code=$?
    [ "$code $more" = "0 65536" ] || [ "$code $more" = "5 -65536" ] || fail "two ranks with $more bytes beside their plan end with $code"
done
