#!/bin/sh
# tests/training/upcycling.sh -- moe_use_upcycling: experts that begin as copies of a dense model's mlp, with weights
# that add up to 1, give the dense model's loss in the first step, in every layout; the run goes on as one with experts.
set -e
work=${WORK:?}
. tests/tiny.sh
fail() { echo "$*"; cat "$work/log"; exit 1; }
"$TRAIN" tokenize src/*/a*.c -o "$work/corpus" > /dev/null 2>&1
tiny "$work/tiny.yaml" model.ffn_hidden_size=24 model.hidden_dropout=0 model.attention_dropout=0 \
    model.num_layers=3 train.micro_batch_size=2 train.global_batch_size=8 train.train_iters=3 \
    precision.params_dtype=fp64 optimizer.lr=1e-3
run() { "$TRAIN" "$work/tiny.yaml" "$@" > "$work/log" 2>&1 || fail "train $*: exit $?"; }
ranks() { # N OPTION...
    n=$1; shift
    TRAIN=$TRAIN scripts/launch -n "$n" "$work/tiny.yaml" "$@" > "$work/log" 2>&1 || fail "$n ranks, $*: exit $?"
}
exits() { # CODE WORDS OPTION...
    want=$1 words=$2; shift 2
    "$TRAIN" "$work/tiny.yaml" "$@" > "$work/log" 2>&1 && rc=0 || rc=$?
    [ $rc = "$want" ] && grep -q -- "$words" "$work/log" || fail "train $*: exit $rc, not $want with '$words'"
}
loss() { sed -n "s/.*\"iteration\": *$2,.*\"lm_loss\": *\([0-9.e-]*\).*/\1/p" "$1/metrics.jsonl"; }
same() { # A B: to 1e-12
    echo "$1 $2" | awk '{ d = $1 / $2 - 1; exit !($1 > 1 && d < 1e-12 && d > -1e-12) }' || fail "$3: loss $2, not $1"
}
experts='num_moe_experts=4 moe_router_topk=2 moe_ffn_hidden_size=24 moe_use_upcycling=true'

for dtype in fp64 bf16; do
    run save="$work/dense-$dtype" params_dtype=$dtype train_iters=2
done
dense=$work/dense-fp64
run load="$dense" finetune=true save="$work/again"
want=$(loss "$work/again" 1)

# shellcheck disable=SC2086
{
run load="$dense" $experts save="$work/one"
same "$want" "$(loss "$work/one" 1)" "one rank"
! grep 'add up to' "$work/log" || fail "weights that add up to 1"
# with weights that add up to less it is another model, which one line says; the factor of the line mends that
for weights in "2 0.5 moe_router_pre_softmax=true" "4 0.25 moe_router_topk=1 moe_router_pre_softmax=true" \
    "2 0.5 moe_router_topk=1 moe_router_score_function=sigmoid"; do
    factor=${weights%% *} sum=${weights#* } options=${weights#* * }
    sum=${sum%% *}
    run load="$dense" $experts $options save="$work/less" overwrite=true
    [ "$(grep -c "^warning: .*dense-fp64.* add up to about $sum .*moe_router_topk_scaling_factor=$factor$" "$work/log")" = 1 ] ||
        fail "no word of $sum and $factor"
    run load="$dense" $experts $options moe_router_topk_scaling_factor="$factor" init_method_std=1e-9 \
        save="$work/less" overwrite=true
    ! grep 'add up to' "$work/log" || fail "told with the factor"
    echo "$want $(loss "$work/less" 1)" | awk '{ exit !(($1 - $2) ^ 2 < 1e-14) }' || fail "$options: $want, $(loss "$work/less" 1)"
done
run load="$dense" $experts moe_router_topk_scaling_factor=2.5 save="$work/less" overwrite=true
grep -q 'add up to about 2.5 .*moe_router_topk_scaling_factor=1$' "$work/log" || fail "no word of 2.5"
ranks 4 load="$dense" $experts expert_model_parallel_size=2 data_parallel_sharding_strategy=optim_grads_params \
    save="$work/ep"
same "$want" "$(loss "$work/ep" 1)" "ep 2 x dp 4"
ranks 4 load="$dense" $experts tensor_model_parallel_size=2 sequence_parallel=true expert_model_parallel_size=2 \
    expert_tensor_parallel_size=2 moe_layer_freq='[0, 1, 1]' moe_router_score_function=sigmoid \
    moe_router_enable_expert_bias=true save="$work/etp"
same "$want" "$(loss "$work/etp" 1)" "ep 2 x etp 2"
for step in 1 2 3; do same "$(loss "$work/one" $step)" "$(loss "$work/ep" $step)" "step $step"; done
run load="$work/dense-bf16" params_dtype=bf16 $experts save="$work/bf16"

# The run has experts now: it goes on, and it is no dense model. It cannot begin in the dense run's folder.
exits 75 "iteration        2/" load="$dense" $experts save="$work/part" exit_interval=2
run load=latest $experts save="$work/part"
[ "$(loss "$work/part" 3)" = "$(loss "$work/one" 3)" ] || fail "resumed: $(loss "$work/part" 3)"
exits 4 "num_moe_experts is null there, 4 here" load="$dense" $experts moe_use_upcycling=false save="$work/no"
find "$dense" -type f ! -name .lock | sort > "$work/before"
exits 2 "^error.run-directory.*; change: load=.*dense-fp64 with save=DIR" load=latest $experts save="$dense"
find "$dense" -type f ! -name .lock | sort | cmp - "$work/before" || fail "a refused start has touched the dense run"
exits 2 "needs load: the checkpoint of the dense model" $experts save="$work/no"
exits 2 "use moe_ffn_hidden_size 24" load="$dense" $experts moe_ffn_hidden_size=12 save="$work/no"
exits 4 "ffn_hidden_size is 24 there, 12 here" load="$dense" $experts moe_ffn_hidden_size=12 ffn_hidden_size=12 \
    save="$work/no"
}
echo "upcycled"
