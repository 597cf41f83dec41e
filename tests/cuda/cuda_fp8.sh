#!/bin/sh
# tests/cuda/cuda_fp8.sh [cpu] -- delayed FP8 scales on the emulated GPU, or on the CPU: checkpoints hold them, and every
# layout has the scales of whole tensors; the experts of a layer have one together. mxfp8 goes on without any.
cd "$(dirname "$0")/../.." || exit 2
emulated=${EMULATED:-build/emulated} work=${WORK:-$(mktemp -d)} fail=0 python=${PYTHON:-python3}
cpu=${TRAIN:-$PWD/build/cpu/train}
device=${1:-cuda}
[ "$device" = cpu ] && TRAIN=$cpu || TRAIN=$emulated/train
export TRAIN
# letters by Lehmer's generator, not files that change: a token that two experts want alike may go to the other one in a
# layout that rounds otherwise
awk 'BEGIN {
    for (x = 1; line < 100; line++) {
        printf "{\"text\": \""
        for (i = 0; i < 2000; i++) { x = x * 16807 % 2147483647; printf "%c", 97 + x % 26 }
        print "\"}"
    } }' > "$work/corpus.jsonl"
"$cpu" tokenize "$work/corpus.jsonl" -o "$work/corpus" > /dev/null 2>&1 || exit 2
cat > "$work/tiny.yaml" <<YAML
model: {num_layers: 2, hidden_size: 128, num_attention_heads: 2, ffn_hidden_size: 128, seq_length: 16, max_position_embeddings: 16,
        activation: gelu_tanh}
data: {data_path: $work/corpus, tokenizer_type: byte, split: '98, 2, 0'}
train: {micro_batch_size: 1, global_batch_size: 4, train_iters: 6, eval_interval: 1000}
optimizer: {lr: 0.001, lr_decay_style: constant}
precision: {params_dtype: bf16, device: $device, fp8: hybrid, cublaslt_tune: 1}
log: {log_interval: 1}
checkpoint: {save_interval: 3}
YAML
train() { # DIRECTORY RANKS options...: trains into $work/DIRECTORY
    dir=$1 ranks=$2
    shift 2
    timeout 240 scripts/launch -n "$ranks" "$work/tiny.yaml" "save=$work/$dir" "$@" > "$work/log" 2>&1 || {
        tail -n 5 "$work/log"
        return 1
    }
}
# numbers DIRECTORY FIRST -- iteration, loss and norm of the steps from FIRST on
numbers() { sed -nE 's/.*"iteration": *([0-9]+),.*"lm_loss": *([^,}]*).*"grad_norm": *([^,}]*).*/\1 \2 \3/p' "$work/$1/metrics.jsonl" | awk -v first="$2" '$1 >= first'; }
try() { # WHAT COMMAND...: runs the command and prints WHAT as passed or failed
    what=$1
    shift
    if "$@"; then
        echo "ok - $what"
    else
        echo "not ok - $what"
        fail=1
    fi
}
same() { numbers "$1" 4 > "$work/a"; numbers "$2" 4 > "$work/b"; [ -s "$work/a" ] && [ "$(wc -l < "$work/b")" = 3 ] && cmp "$work/a" "$work/b"; }
close_to() { # DIRECTORY DIRECTORY: losses within 2 %, norms within 10 %, as layouts round differently in FP8
    numbers "$1" 4 > "$work/a"
    numbers "$2" 4 > "$work/b"
    paste -d' ' "$work/a" "$work/b" | awk '
        function off(x, y) { d = x - y; if (d < 0) d = -d; return d / x }
        NF != 6 || off($2, $5) > 0.02 || off($3, $6) > 0.1 { bad = 1 }
        END { exit bad || NR != 3 }' || { paste "$work/a" "$work/b"; return 1; }
}
# Compares the scales of two checkpoints: they have the same tensors and the magnitudes of the same steps. In the first
# step magnitudes of weights agree exactly, those of inputs to WITHIN (0 where the same rows are multiplied at a time, with
# whole weights), of gradients to 0.5.
scales() { # DIRECTORY DIRECTORY TENSORS WITHIN
    "$python" - "$work/$1/checkpoints/iter_0000003" "$work/$2/checkpoints/iter_0000003" "$3" "$4" <<'PYTHON'
import json, struct, sys
def read(folder):
    found = {}
    manifest = json.load(open(folder + "/manifest.json"))
    for name, t in manifest["tensors"].items():
        if name.endswith(".fp8_scales"):
            assert t["dtype"] == "F32" and t["shape"] == [3, 1025] and len(t["boxes"]) == 1, (name, t)
            f = open(folder + "/" + t["boxes"][0]["file"], "rb")
            n, = struct.unpack("<Q", f.read(8))
            at = json.loads(f.read(n))[name]["data_offsets"][0]
            f.seek(8 + n + at)
            found[name] = struct.unpack("<3075f", f.read(12300))
    return found
one, two = read(sys.argv[1]), read(sys.argv[2])
assert len(one) == int(sys.argv[3]) and one.keys() == two.keys(), (len(one), len(two))
for name, a in one.items():
    for i in range(3):
        x, y = a[1025 * i:1025 * i + 1025], two[name][1025 * i:1025 * i + 1025]
        within = (float(sys.argv[4]), 0, 0.5)[i]
        assert abs(x[3] - y[3]) <= within * x[3], (name, i, x[:5], y[:5])
        assert all(v > 0 for v in x[:4] + y[:4]), (name, i, x[:5], y[:5])
        assert not any(x[4:]) and not any(y[4:]), (name, "more steps than were done")
PYTHON
}
max="fp8_amax_history_len=3 fp8_amax_compute_algo=max"
copy() { rm -rf "$work/other"; cp -r "$work/three" "$work/other"; }
# A model whose checkpoints have TENSORS scales.
# shellcheck disable=SC2086
begin() { # TENSORS options...
    tensors=$1
    shift
    model="$max $*"
    rm -rf "$work/whole" "$work/three"
    try "6 steps $*" train whole 1 $model
    try "3 steps" train three 1 $model train_iters=3
    copy
    try "and 3 more" train other 1 $model load=latest
    try "have the same bits" same whole other
}
# shellcheck disable=SC2086
layout() { # RANKS options...
    copy
    try "3 more on $*" train other "$@" $model load=latest
    try "are as those of one rank" close_to whole other
    rm -rf "$work/other"
    try "the first 3 on that" train other "$@" $model train_iters=3
    try "have the scales of one rank" scales whole other "$tensors" "$(case $* in *tensor* | *expert*) echo 0.1 ;; *) echo 0 ;; esac)"
    try "which one rank goes on with" train other 1 $model load=latest
    try "as it would have" close_to whole other
}
begin 12 num_moe_experts=4 moe_ffn_hidden_size=64 add_bias_linear=false moe_shared_expert_intermediate_size=64
layout 2 expert_model_parallel_size=2
layout 2 tensor_model_parallel_size=2 sequence_parallel=true expert_tensor_parallel_size=2
begin 8
layout 2 tensor_model_parallel_size=2 sequence_parallel=true
layout 2 pipeline_model_parallel_size=2
layout 2 data_parallel_sharding_strategy=optim_grads_params
rm -rf "$work/other"
# shellcheck disable=SC2086
try "6 steps with offloaded layers, whose transposed copies return from the host" train other 1 $model cpu_offloading_num_layers=2
try "have the same bits" same whole other
rm -rf "$work/other"
# FP8 goes on from a checkpoint without scales, and BF16 from one with scales
try "3 steps in BF16" train other 1 fp8=none train_iters=3
try "3 more in FP8" train other 1 load=latest
try "and with scales of one step more" train other 1 fp8=none load=latest train_iters=9
try "export" "$cpu" export "$work/three" -o "$work/hf"
# the first gradients overflow in fp16, so that a step has been done, but no finite one has set their scale
begin 8 params_dtype=fp16
# blocks have no scales of steps before
export EMULATION_CAPABILITY=100
begin 0 fp8_recipe=mxfp8 micro_batch_size=2
copy
# shellcheck disable=SC2086
try "3 more on tensor_model_parallel_size=2" train other 2 $model tensor_model_parallel_size=2 load=latest
try "are as those of one rank" close_to whole other
# Experts whose rows of zeros lie elsewhere on two ranks
# shellcheck disable=SC2086
experts() { # options...
    begin 0 "num_moe_experts=4 add_bias_linear=false global_batch_size=8 $*"
    copy
    try "3 more on expert_model_parallel_size=2" train other 2 $model expert_model_parallel_size=2 load=latest
    try "are as those of one rank" close_to whole other
}
refused() { # CAPABILITY RECIPE: a GPU of this compute capability does not have the recipe
    rm -rf "$work/other"
    EMULATION_CAPABILITY=$1 train other 1 "fp8_recipe=$2" micro_batch_size=2 > /dev/null && return 1
    grep -q "^error\[fp8\].* does not multiply by fp8_recipe $2: .*; change: fp8_recipe: delayed" "$work/log"
}
if [ "$device" = cuda ]; then
    try "mxfp8 is refused before 10.0" refused 90 mxfp8
    try "blockwise is refused after 9.0" refused 100 blockwise
else                           # on the GPU: tests/cuda/cuda_layouts.sh
    experts fp8_recipe=mxfp8 micro_batch_size=2 moe_ffn_hidden_size=64
    experts fp8_recipe=blockwise moe_ffn_hidden_size=128
fi
[ $fail = 0 ]
