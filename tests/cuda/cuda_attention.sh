#!/bin/sh
# tests/cuda/cuda_attention.sh -- attention_backend on the emulated device and cuDNN: a run computes attention with the
# kernels that it names. Losses of both backends agree to the accuracy of BF16. A backend that cannot be used is refused;
# `auto` takes the other one and says why.
set -e
work=${WORK:?} program=${EMULATED:-build/emulated}/train
export EMULATION_GUARD=1
"$TRAIN" tokenize src -o "$work/corpus" > /dev/null 2>&1
cat > "$work/tiny.yaml" <<YAML
model: {num_layers: 2, hidden_size: 128, num_attention_heads: 2, num_query_groups: 1, kv_channels: 64, seq_length: 16,
        attention_dropout: 0}
data: {data_path: $work/corpus, tokenizer_type: byte}
train: {micro_batch_size: 2, global_batch_size: 4, train_iters: 2, eval_interval: 2, eval_iters: 1}
optimizer: {lr: 0.01, lr_decay_style: constant}
precision: {params_dtype: bf16, device: cuda, cublaslt_tune: 1}
parallel: {distributed_backend: staged}
checkpoint: {save: $work/run, save_at_end: false, save_interval: null}
log: {log_interval: 1}
YAML
run() { # NAME options: trains; standard output and error to $work/NAME.said, losses to $work/NAME.losses
    name=$1
    shift
    rm -rf "$work/run"
    "$program" "$work/tiny.yaml" "$@" > "$work/$name.said" 2>&1 || { cat "$work/$name.said"; exit 1; }
    grep -o '"lm_loss": *[^,]*' "$work/run/metrics.jsonl" > "$work/$name.losses"
}
says() { # NAME PATTERN: the run NAME has printed one line `attention: PATTERN`
    [ "$(grep -c "^attention: $2" "$work/$1.said")" = 1 ] ||
        { cat "$work/$1.said"; echo "$1: not 'attention: $2'"; exit 1; }
}
refused() { # CODE ID options: the run ends with CODE and one line error[ID]
    code=$1 id=$2
    shift 2
    rm -rf "$work/run"
    "$program" "$work/tiny.yaml" "$@" > "$work/said" 2>&1 && rc=0 || rc=$?
    [ $rc = "$code" ] && [ "$(grep -c "^error\[$id\].*; change: " "$work/said")" = 1 ] ||
        { cat "$work/said"; echo "$*: $rc, not refused with $code"; exit 1; }
}
run flash attention_backend=flash
says flash 'our own kernels: attention_backend is flash$'
run auto
says auto 'emulated cuDNN$'
run fused attention_backend=fused
says fused 'emulated cuDNN$'
run window window_size=8 && says window 'emulated cuDNN$'
cmp -s "$work/auto.losses" "$work/fused.losses" || { echo "fused is not what auto takes"; exit 1; }
cmp -s "$work/flash.losses" "$work/fused.losses" && { echo "fused computes as flash does"; exit 1; }
near() { # NAME NAME: the losses of two runs agree to the accuracy of BF16
    paste "$work/$1.losses" "$work/$2.losses" | awk '
        { d = $2 - $4; if (d < 0) d = -d; if (d > 0.02 * $2) { print "losses", $2, $4; bad = 1 } }
        END { if (NR != 2) { print NR " losses"; bad = 1 } exit bad }'
}
near flash fused

# deterministic_mode: true is the default, and gives the same bits again; the emulated cuDNN sums other bits without it
run again deterministic_mode=true && says again 'emulated cuDNN$'
cmp -s "$work/auto.losses" "$work/again.losses" || { echo "deterministic_mode true: other losses"; exit 1; }
run any deterministic_mode=false
says any "emulated cuDNN; cuDNN's backward adds dq in any order (deterministic_mode false)\$"
cmp -s "$work/any.losses" "$work/auto.losses" && { echo "deterministic_mode false: dq in a fixed order"; exit 1; }
near any auto
run ours deterministic_mode=false attention_backend=flash sdc_rerun=true sdc_check_interval=1
says ours 'our own kernels: attention_backend is flash$'
cmp -s "$work/ours.losses" "$work/flash.losses" || { echo "deterministic_mode changes our own kernels"; exit 1; }
refused 2 'config[a-z-]*' deterministic_mode=false sdc_rerun=true
# two groups of three ranks may add in other orders with NCCL: no rank computes wrong then
EMULATION_SUMS=1 TRAIN=$program scripts/launch -n 6 "$work/tiny.yaml" distributed_backend=nccl tensor_model_parallel_size=3 num_layers=1 ffn_hidden_size=96 hidden_size=96 \
    kv_channels=64 num_attention_heads=3 num_query_groups=3 params_dtype=fp32 save="$work/sums" global_batch_size=8 train_iters=6 sdc_rerun=true sdc_check_interval=2 \
    > "$work/said" 2>&1 || { cat "$work/said"; echo "other orders of sums are taken for a fault"; exit 1; }
square() { # MODE options: bytes of the plan: cuDNN's T x T workspace is there or not
    mode=$1
    shift
    "$program" plan "$work/tiny.yaml" "$@" deterministic_mode="$mode" --json |
        awk -F'[:,]' '/"total"/ { print $2; exit }'
}
squares() { # TOKENS HEADS SAMPLES: T x T gradients of scores in BF16; or dq and one sum a row, 65 numbers in F32
    options="seq_length=$1 num_attention_heads=$2 micro_batch_size=$3"
    # shellcheck disable=SC2086
    more=$(($(square true $options) - $(square false $options)))
    [ $more = $(($1 * $2 * $3 * ($1 * 2 - 65 * 4))) ] || { echo "plan: $options: $more bytes more"; exit 1; }
}
squares 1024 2 2
squares 2048 32 1              # one sample of just 256 MiB

# cases that cuDNN cannot compute, with the reason that the run prints
EMULATION_CUDNN=absent run absent
says absent 'our own kernels: cuDNN: cannot open it'
cmp -s "$work/absent.losses" "$work/flash.losses" ||
    { echo "without cuDNN: other numbers than our own kernels'"; exit 1; }
EMULATION_CUDNN=forward run forward
says forward 'emulated cuDNN 1 of 1 forward, 0 of 1 backward shapes, our own kernels the others: backward of heads of'
run dropout attention_dropout=0.1 && says dropout 'our own kernels: attention_dropout'
run documents reset_attention_mask=true && says documents 'our own kernels: reset_attention_mask'
run fp32 params_dtype=fp32 && says fp32 'our own kernels: cuDNN.s compute in bf16 and fp16$'
EMULATION_CUDNN=absent refused 5 cudnn attention_backend=fused
EMULATION_CUDNN=greedy refused 5 cudnn attention_backend=fused
refused 2 'config[a-z-]*' attention_backend=fused attention_dropout=0.1

# auto takes the faster backend by the times in the file: other times there choose the other backend
known="cublaslt_tune=2 cublaslt_algorithms=$work/times.json"      # algorithms of products come from the file, too
# shellcheck disable=SC2086
run timed $known
says timed 'emulated cuDNN.*; forward: .* ms, .* ms; backward: .* ms, .* ms$'
turn() { # FORWARD BACKWARD NAME: writes nanoseconds of our own kernels to the file, 1000 for cuDNN; then runs NAME
    "${PYTHON:-python3}" - "$work/times.json" "$1" "$2" <<'PY'
import json, sys
path, forward, backward = sys.argv[1:]
j = json.load(open(path))
seen = []
for key, one in j["algorithms"].items():
    if key.startswith("attention "):
        seen.append(key.split()[1])
        one["words"][:2] = ["%016x" % int(forward if seen[-1] == "forward" else backward), "%016x" % 1000]
assert sorted(seen) == ["backward", "forward"], seen
json.dump(j, open(path, "w"))
PY
    run "$3" $known
}
run fused2 attention_backend=fused $known
run flash2 attention_backend=flash $known
turn 1200000 1200000 slow
says slow "emulated cuDNN; forward: cuDNN, 0.001 ms, our own kernels' 1.200 ms; backward: cuDNN, .*"
cmp -s "$work/slow.losses" "$work/fused2.losses" || { echo "our kernels are slower, and are used"; exit 1; }
turn 900 900 fast
says fast "emulated cuDNN; forward: our own kernels, 0.001 ms, cuDNN's 0.001 ms; backward: our own kernels, .*"
cmp -s "$work/fast.losses" "$work/flash2.losses" || { echo "cuDNN is slower, and is used"; exit 1; }
turn 1200000 900 mixed
EMULATION_CUDNN=forward run forward2 $known
cmp -s "$work/mixed.losses" "$work/forward2.losses" || { echo "cuDNN is faster in the forward alone"; exit 1; }
# the times of a backward in any order have a key of their own
# shellcheck disable=SC2086
run any2 deterministic_mode=false $known
for backward in backward 'backward in any order'; do
    [ "$(grep -c "\"attention $backward emulated" "$work/times.json")" = 1 ] || { echo "$backward: no times"; exit 1; }
done

# cuDNN's memory is in the plan; a run without cuDNN does not take it
total() { sed -n 's/^memory of rank 0.*: \([0-9.]*\) MB in all.*/\1/p' "$work/$1.said"; }
planned=$("$program" plan "$work/tiny.yaml" --json | awk -F'[:,]' '/"total"/ { printf "%.1f", $2 / 1e6; exit }')
[ "$(total auto)" = "$planned" ] || { echo "plan: $planned MB, run: $(total auto)"; exit 1; }
[ "$(total fast)" = "$(total flash)" ] || { echo "fast: $(total fast) MB, flash: $(total flash)"; exit 1; }
[ "$(total absent)" = "$(total flash)" ] || { echo "absent: $(total absent) MB, flash: $(total flash)"; exit 1; }
awk -v a="$(total auto)" -v f="$(total flash)" 'BEGIN { exit !(a > f + 16) }' || { echo "fused takes nothing"; exit 1; }
# a build without CUDA plans the same for cuDNN
plan() { "$1" plan "$work/tiny.yaml" attention_backend=fused --json; }
plan "$TRAIN" > "$work/plan" && plan "$program" | cmp - "$work/plan" || { echo "other plans without CUDA"; exit 1; }

# too little memory is refused with a remedy; with too little for cuDNN alone, auto takes our own kernels
memory() { # MEGABYTES: bytes of a GPU that has MEGABYTES more than our own kernels and the reserve need
    awk -v m="$(total flash)" -v more="$1" 'BEGIN { printf "%.0f", (m + more) * 1e6 + 2 ^ 30 }'
}
EMULATION_MEMORY=$(memory 12) refused 5 memory-plan
grep 'change: attention_backend=flash ([0-9.]* GiB), ' "$work/said" > /dev/null || { cat "$work/said"; exit 1; }
EMULATION_MEMORY=$(memory 12) run small attention_backend=flash
EMULATION_MEMORY=$(memory 8) run smaller
says smaller 'our own kernels: emulated cuDNN: its [0-9]* bytes of workspace are more than'
EMULATION_MEMORY=$(memory 8) refused 5 cudnn attention_backend=fused

# two ranks, one of which has no cuDNN: neither uses it
cat > "$work/half" <<'SH'
#!/bin/sh
[ "${OMPI_COMM_WORLD_RANK:-0}" = 0 ] || export EMULATION_CUDNN=absent
exec "$@"
SH
chmod +x "$work/half"
rm -rf "$work/run"
mpirun --allow-run-as-root --oversubscribe -n 2 "$work/half" "$program" "$work/tiny.yaml" > "$work/half.said" 2>&1 ||
    { cat "$work/half.said"; exit 1; }
says half 'our own kernels: another rank cannot use cuDNN$'
echo "attention: as it says"
