#!/bin/sh
# tests/commands/fp8.sh -- train fp8: the errors of operands are those of rounding to 3 and to 2 bits of mantissa, in every
# layout; which layers have none; what it refuses
work=${WORK:?}
. tests/tiny.sh
fail() { echo "# $1"; [ ! -f "$work/err" ] || sed 's/^/#   /' "$work/err"; cat "$work/out" 2> /dev/null; exit 1; }
"$TRAIN" tokenize src -o "$work/corpus" > /dev/null 2>&1 || fail "no corpus"
tiny "$work/tiny.yaml" model.num_layers=2 model.hidden_size=64 model.ffn_hidden_size=128 model.seq_length=32 train.micro_batch_size=2 \
    train.global_batch_size=8 precision.params_dtype=bf16 precision.fp8=hybrid
run() { # RANKS options...
    n=$1
    shift
    TRAIN=$TRAIN scripts/launch -n "$n" fp8 "$work/tiny.yaml" "$@" > "$work/out" 2> "$work/err"
}
# A number of p bits of mantissa, any of them as likely as any other, is off by 2^-p/sqrt(12) of its power of two, whose square
# has the mean 7/3 below it: 0.0236 for 3 bits, 0.0472 for 2. What is small beside a matrix's largest element is off by more.
rounded() { # LAYERS [1]: the table of `out` has 12 rows for each, and no error but that of rounding
    awk -v rows=$((12 * $1)) -v e4m3="$2" 'NR > 1 { error = $(NF - 2); least = /output gradient/ && !e4m3 ? 0.045 : 0.0225
            n++; bad += !(error > least && error < 1.4 * least) + ($(NF - 1) > 1) + ($NF > 0) }
        END { exit n != rows || bad }' "$work/out"
}
for layout in 1 "1 normalization=RMSNorm activation=swiglu add_bias_linear=false fp8_recipe=tensorwise recompute_granularity=full recompute_method=uniform recompute_num_layers=1" \
    "1 fp8_recipe=mxfp8" "1 fp8_recipe=mxfp8 num_moe_experts=4 moe_ffn_hidden_size=64 add_bias_linear=false" \
    "2 fp8=e4m3 fp8_recipe=mxfp8 normalization=RMSNorm activation=swiglu add_bias_linear=false tensor_model_parallel_size=2 sequence_parallel=true micro_batch_size=8 tp_comm_overlap=true" \
    "1 fp8_recipe=blockwise" "2 fp8_recipe=blockwise normalization=RMSNorm activation=swiglu add_bias_linear=false tensor_model_parallel_size=2 sequence_parallel=true tp_comm_overlap=true ffn_hidden_size=256 kv_channels=128" \
    "2 tensor_model_parallel_size=2" "2 tensor_model_parallel_size=2 sequence_parallel=true tp_comm_overlap=true fp8_recipe=tensorwise" \
    "2 pipeline_model_parallel_size=2 pipeline_schedule=zb-h1" "2 data_parallel_sharding_strategy=optim_grads_params"; do
    # shellcheck disable=SC2086
    run $layout || fail "$layout"
    case $layout in *fp8=e4m3*) e4m3=1 ;; *) e4m3= ;; esac
    rounded 2 $e4m3 || fail "$layout: the table"
done
run 1 first_last_layers_bf16=true num_layers_at_start_in_bf16=0 num_layers_at_end_in_bf16=1 --json || fail "--json"
"${PYTHON:-python3}" -c 'import json, sys
d = json.load(open(sys.argv[1]))
assert d["fp8_recipe"] == "delayed" and len(d["operands"]) == 12
assert {(x["layer"], x["product"].split(".")[1], x["operand"]) for x in d["operands"]} == {(0, p, o) for p in ("linear_qkv",
    "linear_proj", "linear_fc1", "linear_fc2") for o in ("input", "weight", "output gradient")}
assert all(0.02 < x["error"] < 0.07 and x["topped_percent"] == 0 for x in d["operands"])' "$work/out" || fail "JSON"
run 1 fp8=none
[ $? = 2 ] && [ "$(grep -c '^error\[fp8\].*; change: fp8=hybrid' "$work/err")" = 1 ] || fail "fp8=none"
exit 0
