#!/bin/sh
# tests/training/fit.sh -- a run that does not fit the device's memory is refused before it allocates any. The
# error names changes that would make it fit, and the first of them does. On the CPU, and on the emulated GPU,
# whose memory the test sets.
set -e
work=${WORK:?} emulated=${EMULATED:-build/emulated}/train
"$TRAIN" tokenize README.md -o "$work/corpus" > /dev/null 2>&1
cat > "$work/tiny.yaml" <<YAML
model: {num_layers: 3, hidden_size: 128, num_attention_heads: 2, kv_channels: 64, seq_length: 32}
data: {data_path: $work/corpus, tokenizer_type: byte}
train: {micro_batch_size: 2, global_batch_size: 2, train_iters: 2}
optimizer: {lr: 0.01}
precision: {params_dtype: bf16}
checkpoint: {save: $work/run, save_at_end: false}
YAML
refused() { # PROGRAM options: exits with 5, one line in $work/said
    program=$1
    shift
    rm -rf "$work/run"
    "$program" "$work/tiny.yaml" "$@" > "$work/said" 2>&1 && rc=0 || rc=$?
    [ $rc = 5 ] && [ "$(grep -c '^error\[memory-plan\]' "$work/said")" = 1 ] || { cat "$work/said"; echo "$*: $rc, not refused"; exit 1; }
}
refused "$TRAIN" hidden_size=65536 num_layers=100 params_dtype=fp64
grep 'full.*not enough alone), or more ranks' "$work/said" > /dev/null || { cat "$work/said"; exit 1; }
# micro_batch_size=1 is not proposed: its microbatches are more than a schedule can count
refused "$TRAIN" hidden_size=65536 num_layers=100 micro_batch_size=131072 global_batch_size=131072
grep 'micro_batch_size=4 (' "$work/said" > /dev/null || { cat "$work/said"; exit 1; }
# a plan is the same in a build that has no GPU
set -- plan "$work/tiny.yaml" device=cuda fp8=hybrid global_batch_size=4 --json
"$TRAIN" "$@" > "$work/plan"
"$emulated" "$@" | cmp - "$work/plan" || { echo "the plan is another one without CUDA"; exit 1; }
# 1 GiB beside the plan's total stays free for libraries: the plan names this reserve, and a run needs it
total() { "$emulated" plan "$work/tiny.yaml" device=cuda --json "$@" | awk -F'[:,]' '/"total"/ { print $2 + 0; exit }'; }
reserve=$((1 << 30))
export EMULATION_GUARD=1
"$TRAIN" plan "$work/tiny.yaml" device=cuda | grep '^  1073.7 MB more stay free: a reserve' > /dev/null || { echo "the plan names no reserve"; exit 1; }
EMULATION_MEMORY=$(($(total) + reserve - 4096)) refused "$emulated" device=cuda cublaslt_tune=1
grep 'buffers [0-9.]*, 1.00 for libraries), ' "$work/said" > /dev/null || { cat "$work/said"; exit 1; }
# as many layers keep copies of FP8 weights as there is room for. The plan for a machine of that size names
# the same layers, and fewer copies change no bit.
fp8="fp8=hybrid global_batch_size=4"
# shellcheck disable=SC2086
{
room=$(($(total $fp8) + reserve))
fp8_run() { # BYTES: a run on a device with so much memory; its numbers
    EMULATION_MEMORY=$1 "$emulated" "$work/tiny.yaml" device=cuda $fp8 cublaslt_tune=1 log_interval=1 log_style=lines > "$work/said" 2>&1 || { cat "$work/said"; exit 1; }
    sed -nE 's/.*("lm_loss": *[^,}]*).*("grad_norm": *[^,}]*).*/\1 \2/p' "$work/run/metrics.jsonl" > "$work/numbers"
    rm -rf "$work/run"
}
fp8_run "$room"
grep -x 'fp8: copies of weights kept by all layers' "$work/said" > /dev/null && [ -s "$work/numbers" ] || { cat "$work/said"; exit 1; }
mv "$work/numbers" "$work/kept"
less=$((room - 500000))
fp8_run $less
fewer=$(sed -n 's/^fp8: \(.*but the last [12] of each rank.*\)/\1/p' "$work/said")
[ -n "$fewer" ] && cmp "$work/kept" "$work/numbers" || { cat "$work/said"; echo "not fewer copies, or other numbers"; exit 1; }
sed "s/memory_gib: [0-9]*/memory_gib: $(echo $less | awk '{ printf "%.12f", $1 / 2 ^ 30 }')/" configs/machines/h100.yaml > "$work/small.yaml"
"$TRAIN" plan "$work/tiny.yaml" device=cuda $fp8 --machine "$work/small.yaml" > "$work/plan"
grep -F "fp8        $fewer" "$work/plan" > /dev/null && grep ' fits$' "$work/plan" > /dev/null || { cat "$work/plan"; echo "the run: $fewer"; exit 1; }
"$TRAIN" plan configs/gpu/7b.yaml fp8=hybrid --machine h200 | grep ' fits$' > /dev/null || { echo "7B in FP8 does not fit an H200"; exit 1; }
}
# memory for the plan's total without half of the optimizer's state
room=$("$emulated" plan "$work/tiny.yaml" device=cuda --json |
    awk -F'[:,]' '/"optimizer"/ { o = $2 } /"total"/ { print $2 - int(o / 2); exit }')
export EMULATION_MEMORY=$((room + reserve))
refused "$emulated" device=cuda cublaslt_tune=1
change=$(sed -n 's/.*change: \([a-z_]*=[^ ]*\) ([0-9.]* GiB), .*/\1/p' "$work/said")
[ "$change" = optimizer_cpu_offload=true ] || { cat "$work/said"; echo "the first change is '$change'"; exit 1; }
"$emulated" "$work/tiny.yaml" device=cuda cublaslt_tune=1 "$change" > "$work/said" 2>&1 || { cat "$work/said"; exit 1; }
# two ranks on one GPU have half of its memory each, and cannot use NCCL. Two ranks with a GPU each have all
# of their GPU's memory, even where both GPUs have number 0.
one=$("$emulated" plan "$work/tiny.yaml" device=cuda micro_batch_size=1 --json | awk -F'[:,]' '/"total"/ { print $2; exit }')
export EMULATION_MEMORY=$((one + reserve + (one - (64 << 20) + reserve) / 2))    # 64 MiB are the device's own
two() {
    rm -rf "$work/run"
    EMULATION_DEVICES=$devices EMULATION_NCCL_VERSION=$version TRAIN=$PWD/$emulated \
        scripts/launch -n 2 "$@" cublaslt_tune=1 micro_batch_size=1
}
devices=1 version=
refused two device=cuda distributed_backend=staged
grep 'left for each of the 2 that share it' "$work/said" > /dev/null || { cat "$work/said"; exit 1; }
two "$work/tiny.yaml" device=cuda > "$work/said" 2>&1 && rc=0 || rc=$?
[ $rc = 5 ] && [ "$(grep -c '^error\[nccl\].* 2 ranks have the same GPU' "$work/said")" = 1 ] || { cat "$work/said"; exit 1; }
devices=
# with NCCL 3 GiB stay free: it takes buffers at the first operation of each group
EMULATION_MEMORY=$((one + 3 * reserve - 4096)) refused two device=cuda
grep 'buffers [0-9.]*, 3.00 for libraries), ' "$work/said" > /dev/null || { cat "$work/said"; exit 1; }
export EMULATION_MEMORY=$((one + 3 * reserve + (64 << 20)))
two "$work/tiny.yaml" device=cuda > "$work/said" 2>&1 || { cat "$work/said"; exit 1; }
version=22505
two "$work/tiny.yaml" device=cuda > "$work/said" 2>&1 && rc=0 || rc=$?
[ $rc = 5 ] && grep '^error\[nccl\].* this NCCL is 2.25.5' "$work/said" > /dev/null || { cat "$work/said"; exit 1; }
EMULATION_CAPABILITY=120 "$emulated" "$work/tiny.yaml" device=cuda > "$work/said" 2>&1 && rc=0 || rc=$?
[ $rc = 5 ] && grep '^error\[cuda\].* no kernels for emulated, of compute capability 12.0; change: .*ARCHS=120`' "$work/said" > /dev/null ||
    { cat "$work/said"; echo "a GPU that the build has no kernels for: $rc"; exit 1; }
echo "refused, and with $change it fits"
