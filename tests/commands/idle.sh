#!/bin/sh
# tests/commands/idle.sh -- keys that are set and have no effect: each group of them is named in one warning, beside the
# key that it has none because of, and changes no number of the run; without them there is no warning.
set -u
work=${WORK:-$(mktemp -d)} bad=0
. tests/tiny.sh
"$TRAIN" tokenize src/io -o "$work/corpus" > /dev/null 2>&1 || exit 1
tiny "$work/tiny.yaml" train.train_iters=3 train.global_batch_size=4 log.tensorboard_dir=null

# numbers NAME RANKS KEY=VALUE...: trains; the numbers of its steps are in NAME.numbers, its warnings in NAME.said
numbers() {
    name=$1 ranks=$2
    shift 2
    scripts/launch -n "$ranks" "$work/tiny.yaml" save="$work/run" overwrite=true "$@" > "$work/$name.out" 2> "$work/$name.err" ||
        { echo "$*: exit $?"; cat "$work/$name.err"; bad=1; }
    grep '^warning: ' "$work/$name.err" > "$work/$name.said"
    sed -n 's/.*\("lm_loss": [^,]*, "grad_norm": [^,]*, "learning_rate": [^,]*, "loss_scale": [^,]*\),.*/\1/p' \
        "$work/run/metrics.jsonl" > "$work/$name.numbers"
}

# idle RANKS BESIDE 'KEY=VALUE...' KEY=VALUE...: the last keys have no effect under those before them
idle() {
    ranks=$1 beside=$2 under=$3
    shift 3
    # shellcheck disable=SC2086
    numbers without "$ranks" $under
    # shellcheck disable=SC2086
    numbers with "$ranks" $under "$@"
    [ "$(wc -l < "$work/without.numbers")" = 3 ] && cmp -s "$work/without.numbers" "$work/with.numbers" ||
        { echo "$beside: $* changes the numbers"; bad=1; }
    [ ! -s "$work/without.said" ] || { echo "$under:"; cat "$work/without.said"; bad=1; }
    [ "$(wc -l < "$work/with.said")" = 1 ] && grep -q ": without effect $beside; change: " "$work/with.said" ||
        { echo "$beside: $*:"; cat "$work/with.said"; bad=1; }
    for key; do
        grep -q "[ ,]${key%%=*} " "$work/with.said" || { echo "$beside: ${key%%=*} is not named"; bad=1; }
    done
}

idle 1 'beside position_embedding_type learned_absolute' '' rotary_base=500 rotary_percent=0.5
idle 1 'beside lr_decay_style constant' lr_decay_style=constant min_lr=1e-3 lr_wsd_decay_style=linear
idle 1 'beside position_embedding_type none' position_embedding_type=none reset_position_ids=true
idle 2 'beside main_grads_dtype bf16' 'params_dtype=bf16 main_grads_dtype=bf16' grad_reduce_in_bf16=true
idle 1 'beside lr_decay_style cosine' lr_decay_style=cosine lr_wsd_decay_style=linear
idle 1 'beside lr_warmup_iters 0' '' lr_warmup_init=1e-3
idle 1 'beside optimizer sgd' optimizer=sgd adam_beta1=0.5 adam_beta2=0.5 adam_eps=1e-3 lars_trust_coefficient=0.5
idle 1 'beside optimizer lars' optimizer=lars adam_beta1=0.5 adam_beta2=0.5 adam_eps=1e-3
idle 1 'beside optimizer adam' '' sgd_momentum=0.5 lars_trust_coefficient=0.5
idle 1 'beside optimizer lamb' optimizer=lamb sgd_momentum=0.5 lars_trust_coefficient=0.5
idle 2 'beside pipeline_schedule 1f1b' pipeline_model_parallel_size=2 microbatch_group_size_per_vp_stage=4
idle 1 'beside fp8 none' params_dtype=bf16 fp8_recipe=blockwise fp8_amax_history_len=4 fp8_amax_compute_algo=max \
    first_last_layers_bf16=true
idle 1 'beside fp8_recipe tensorwise' 'params_dtype=bf16 fp8=hybrid fp8_recipe=tensorwise' fp8_amax_history_len=4 \
    fp8_amax_compute_algo=max
idle 1 'beside first_last_layers_bf16 false' 'params_dtype=bf16 fp8=hybrid' num_layers_at_start_in_bf16=2 \
    num_layers_at_end_in_bf16=0
scale='initial_loss_scale=64 min_loss_scale=2 loss_scale_window=1 hysteresis=1'
# shellcheck disable=SC2086
idle 1 'beside params_dtype fp32' '' $scale
# shellcheck disable=SC2086
idle 1 'beside loss_scale 256' 'params_dtype=fp16 loss_scale=256' $scale
idle 1 'beside device cpu' '' cublaslt_tune=2 cublaslt_table=none cublaslt_algorithms=a.json attention_backend=flash \
    deterministic_mode=false
idle 1 'without num_moe_experts' '' moe_router_topk=1 moe_ffn_hidden_size=8 moe_aux_loss_coeff=0.1 moe_layer_freq=2 \
    moe_shared_expert_intermediate_size=8 expert_tensor_parallel_size=2
experts='num_moe_experts=4 moe_ffn_hidden_size=32'
idle 1 'beside moe_router_score_function sigmoid' "$experts moe_router_score_function=sigmoid" moe_router_pre_softmax=true
idle 1 'beside moe_router_enable_expert_bias false' "$experts moe_router_score_function=sigmoid" \
    moe_router_bias_update_rate=0.5
idle 1 'beside moe_aux_loss_coeff 0' "$experts" moe_router_load_balancing_type=seq_aux_loss
idle 1 'without moe_expert_capacity_factor' "$experts" moe_token_drop_policy=position
idle 1 'beside on_spike none' '' spike_sigma=1e-3 spike_window=4

# kinds for fewer layers than there are, where one rank has whole sequences: without effect, and without a word
numbers without 1 num_layers=5
numbers with 1 num_layers=5 cp_comm_type='[p2p, a2a]'
cmp "$work/without.numbers" "$work/with.numbers" && [ ! -s "$work/with.said" ] || { cat "$work/with.said"; bad=1; }

# a step that is never reached, and a smallest world that is none
numbers with 1 trace_steps='[2, 4]' min_world=2
[ "$(wc -l < "$work/with.said")" = 2 ] && grep -q 'trace_steps: iteration 4 comes after the last, 3' "$work/with.said" &&
    grep -q 'min_world 2 is above the world of 1' "$work/with.said" || { cat "$work/with.said"; bad=1; }
# a run's own config.yaml, in which all keys stand, sets nothing
"$TRAIN" "$work/run/config.yaml" load=latest train_iters=5 trace_steps='[]' min_world=null > "$work/out" 2> "$work/err"
! grep '^warning: ' "$work/err" || { echo 'a config.yaml of a run:'; bad=1; }
exit $bad
