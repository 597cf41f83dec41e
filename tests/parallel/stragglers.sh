#!/bin/sh
# tests/parallel/stragglers.sh [N|cuda] -- a rank that is slower than the others in forward, backward or all of a step: one
# warning names the rank and the phase, metrics.jsonl lists it. Ranks are some times slower, and the threshold is high, so
# that a busy machine changes nothing. With N: that many jobs over all axes, with a random rank that is 20 % slower for
# 20 steps, the usual threshold, and as many jobs again with no slow rank. N needs a quiet machine. cuda: on the emulated
# device, one of whose kernels takes longer on one rank, from its 160th launch on.
set -u
work=${WORK:-$(mktemp -d)} launch=$PWD/scripts/launch train=${TRAIN:-$PWD/$BUILD/train} faulty=$PWD/$BUILD/test_faults
. tests/tiny.sh
"$train" tokenize src/io -o "$work/corpus" > /dev/null 2>&1 || exit 1
: > "$work/failed"

# The layouts: ranks, then settings.
cat > "$work/layouts" <<'END'
2 tensor_model_parallel_size=2
2 pipeline_model_parallel_size=2
2 context_parallel_size=2
2 data_parallel_sharding_strategy=no_shard
2 data_parallel_sharding_strategy=optim_grads_params
2 expert_model_parallel_size=2 moe
4 tensor_model_parallel_size=2 pipeline_model_parallel_size=2
4 pipeline_model_parallel_size=4
4 tensor_model_parallel_size=2 data_parallel_sharding_strategy=optim_grads
4 pipeline_model_parallel_size=2 data_parallel_sharding_strategy=optim_grads_params
4 context_parallel_size=2 tensor_model_parallel_size=2
4 tensor_model_parallel_size=2 sequence_parallel=true expert_model_parallel_size=2 moe
END

# Experts get equally many tokens: a rank whose experts get more takes longer, and is no case here.
for kind in dense moe; do
    moe=
    [ $kind = dense ] || moe='moe.moe_router_force=uniform moe.num_moe_experts=4 moe.moe_ffn_hidden_size=128 moe.moe_router_topk=2'
    # shellcheck disable=SC2086
    tiny "$work/$kind.yaml" model.num_layers=4 model.hidden_size=${HIDDEN:-128} model.seq_length=128 \
        train.global_batch_size=8 train.train_iters=92 $moe
done

# job LAYOUT RANK SITE PERCENT SETTING... -- RANK < 0: no rank is slow
job() {
    layout=$1 rank=$2 site=$3 percent=$4 dir=$(mktemp -d "$work/XXXXXX"); shift 4
    ranks=${layout%% *} settings=${layout#* } config=dense phase=backward
    case $settings in *' moe') settings=${settings% moe} config=moe ;; esac
    case $site in F) phase=forward ;; all) phase='[a-z]*ward' ;; esac
    # shellcheck disable=SC2086
    FAULT="$rank $site 69 $percent slow" FAULT_DIR=$dir TRAIN=$faulty timeout $((280 * ${SLOW:-1})) "$launch" -n "$ranks" "$work/$config.yaml" \
        $settings "$@" save="$dir/run" > "$dir/log" 2>&1
    judge_job $?
}

# judge_job CODE -- what is wrong with the job that job or gpu_job has run
judge_job() {
    rc=$1
    grep '^warning: straggler' "$dir/log" > "$dir/found"
    if [ $rc != 0 ]; then
        echo "$layout: code $rc" && tail -n 3 "$dir/log"
    elif [ "$rank" -lt 0 ]; then
        [ ! -s "$dir/found" ] || { echo "$layout: a false alarm"; cat "$dir/found"; }
    elif [ "$(grep -c . "$dir/found")" != 1 ] ||
        ! grep -q "rank $rank (host .*, tp .*) is .* % slower than .* in $phase" "$dir/found"; then
        echo "$layout: rank $rank is slower in $site, not found or not only:" && cat "$dir/found"
    elif ! grep -q "\"stragglers\": \[{\"rank\": $rank, \"host\": .*\"phase\": \"$phase\"" "$dir/run/metrics.jsonl"; then
        echo "$layout: rank $rank is not in metrics.jsonl"
    fi >> "$work/failed"
    rm -rf "$dir/run"
}

# gpu_job LAYOUT RANK KERNEL FROM SETTING...
gpu_job() {
    layout=$1 rank=$2 site=$3 from=$4 dir=$(mktemp -d "$work/XXXXXX"); shift 4
    ranks=${layout%% *} phase=backward
    case $site in *_fwd) phase=forward ;; esac
    # shellcheck disable=SC2086
    EMULATION_SLOW=$rank:$site:$from:40000 TRAIN=$EMULATED/train timeout $((280 * ${SLOW:-1})) "$launch" -n "$ranks" "$work/gpu.yaml" \
        ${layout#* } "$@" save="$dir/run" > "$dir/log" 2>&1
    judge_job $?
}

if [ "${1:-}" = cuda ]; then
    tiny "$work/gpu.yaml" model.hidden_size=16 model.seq_length=8 train.global_batch_size=4 train.train_iters=64 \
        optimizer.lr=0.001 precision.device=cuda precision.cublaslt_tune=1 fault.straggler_threshold=1
    gpu_job "$(sed -n 7p "$work/layouts")" 2 k_act_bwd 160
    gpu_job "$(sed -n 2p "$work/layouts")" 1 k_plain_fwd 160
    gpu_job "$(sed -n 4p "$work/layouts")" 0 k_act_bwd 160
    gpu_job "$(sed -n 1p "$work/layouts")" -1 none 0
    EMULATION_DEVICES=1 TRAIN=$EMULATED/train "$launch" -n 2 "$work/gpu.yaml" distributed_backend=staged save="$work/run" > "$work/log" 2>&1
    [ $? = 5 ] && grep -q 'several ranks share a GPU, which .*; change: straggler_threshold=0' "$work/log" ||
        { echo 'ranks of one GPU are compared'; cat "$work/log"; } >> "$work/failed"
elif [ "${1:-}" ]; then
    i=0
    while [ $i -lt "$1" ]; do
        i=$((i + 1))
        layout=$(sed -n "$(((i - 1) % 12 + 1))p" "$work/layouts")
        # shellcheck disable=SC2046
        set -- "$1" $(awk -v seed="$i" -v ranks="${layout%% *}" 'BEGIN {
            srand(seed); n = split("F B all", site, " "); print int(rand() * ranks), site[1 + int(rand() * n)] }')
        job "$layout" "$2" "$3" 20
        job "$layout" -1 none 0
        echo "# $i of $1: $layout, rank $2 in $3; $(grep -c . "$work/failed") lines of failures"
    done
else
    high='straggler_threshold=1 train_iters=89'
    # shellcheck disable=SC2086
    {
        job "$(sed -n 7p "$work/layouts")" 2 F 400 $high
        job "$(sed -n 5p "$work/layouts")" 0 B 400 $high
        job "$(sed -n 2p "$work/layouts")" 1 all 400 $high
        job "$(sed -n 6p "$work/layouts")" 1 F 400 $high
        job "$(sed -n 3p "$work/layouts")" 1 B 400 $high
        job "$(sed -n 1p "$work/layouts")" -1 none 0 $high
    }
fi
cat "$work/failed"
[ ! -s "$work/failed" ]
