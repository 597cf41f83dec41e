#!/bin/sh
# tests/training/poison.sh -- memory that was never written, or left by another use, changes nothing: over arenas filled
# with NaNs and a heap filled with other bytes, runs of several layouts have the bytes of plain ones.
set -u
work=${WORK:?} launch=$PWD/scripts/launch poison=$PWD/$BUILD/test_poison bad=0
. tests/tiny.sh
. tests/parallel/same.sh
fail() { bad=$((bad + 1)); echo "$*"; tail -n 4 "$work/log"; }
"$TRAIN" tokenize src/io -o "$work/corpus" > /dev/null 2>&1 || exit 1
tiny "$work/tiny.yaml" model.hidden_dropout=0.1 train.global_batch_size=8 train.train_iters=4 train.eval_interval=2 \
    train.eval_iters=1 checkpoint.async_save=true
# layout RANKS SETTING...
layout() {
    n=$1; shift
    rm -rf "$work/plain" "$work/run"
    "$launch" -n "$n" "$work/tiny.yaml" save="$work/plain" "$@" > "$work/log" 2>&1 || fail "$*: $?"
    TRAIN=$poison POISON_LOG=$work/filled GLIBC_TUNABLES=glibc.malloc.perturb=165 "$launch" -n "$n" "$work/tiny.yaml" \
        save="$work/run" "$@" > "$work/log" 2>&1 || fail "$*, filled: $?"
    same plain "$work/run" "$n $*"
}
layout 1 params_dtype=bf16
layout 1 params_dtype=fp64 recompute_granularity=full recompute_method=uniform recompute_num_layers=1
layout 2 pipeline_model_parallel_size=2 pipeline_schedule=zb-h1 position_embedding_type=rope
layout 4 tensor_model_parallel_size=2 sequence_parallel=true data_parallel_sharding_strategy=optim_grads_params
layout 2 num_moe_experts=4 expert_model_parallel_size=2 moe_router_topk=2 moe_aux_loss_coeff=0.01 add_bias_linear=false
layout 2 context_parallel_size=2 'cp_comm_type=[a2a]' reset_attention_mask=true
[ "$(awk '$1 > 100000' "$work/filled" | wc -l)" -ge 10 ] || fail "little was filled"
[ $bad = 0 ]
