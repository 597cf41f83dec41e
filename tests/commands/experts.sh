#!/bin/sh
# tests/commands/experts.sh -- train experts: every row arrives under each routing, in layouts of four ranks; the sums of rows
# are those of the tokens; what it refuses
work=${WORK:?}
. tests/tiny.sh
fail() { echo "# $1"; [ ! -f "$work/err" ] || sed 's/^/#   /' "$work/err"; exit 1; }
tiny "$work/tiny.yaml" model.num_layers=2 moe.num_moe_experts=8 moe.moe_router_topk=2 train.micro_batch_size=2 train.global_batch_size=8
run() { TRAIN=$TRAIN scripts/launch -n 4 experts "$work/tiny.yaml" --steps 2 "$@" > "$work/out" 2> "$work/err"; }

for layout in "expert_model_parallel_size=4" "expert_model_parallel_size=2 expert_tensor_parallel_size=2 params_dtype=bf16" \
    "tensor_model_parallel_size=2 sequence_parallel=true context_parallel_size=2 expert_model_parallel_size=4 expert_tensor_parallel_size=1 params_dtype=fp64" \
    "pipeline_model_parallel_size=2 expert_model_parallel_size=2 moe_shared_expert_intermediate_size=16 add_bias_linear=false"; do
    # shellcheck disable=SC2086
    run $layout || fail "$layout"
    [ "$(grep -c '^\(uniform\|zipf\|hot\|changing\) ' "$work/out")" = 4 ] && grep -q '^every row arrived' "$work/out" || fail "$layout: output"
done
run expert_model_parallel_size=4 moe_router_force=hot --json || fail "--json"
grep -q '"ok": true' "$work/out" && [ "$(grep -c '"routing"' "$work/out")" = 1 ] && grep -q '"rows_least": 0,' "$work/out" || fail "hot"
echo "0 0 0 0 0 0 1 1" > "$work/loads"
run expert_model_parallel_size=4 moe_router_force=file moe_router_force_file="$work/loads" --json || fail "file"
grep -q '"routing": "file"' "$work/out" || fail "file: output"
for wrong in num_moe_experts=null moe_expert_capacity_factor=1 recompute_granularity=full\ recompute_method=uniform\ recompute_num_layers=1 \
    data_parallel_sharding_strategy=optim_grads; do
    # shellcheck disable=SC2086
    run $wrong
    [ $? = 2 ] && [ "$(grep -c '^error\[experts\].*; change: ' "$work/err")" = 1 ] || fail "$wrong"
done
exit 0
