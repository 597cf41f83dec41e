#!/bin/sh
# tests/parallel/calm.sh [HOURS [JOBS]] -- the watch for hangs and the check of flipped bits on a busy machine: JOBS jobs at a
# time (6), each with a random layout, transport, kind of saves and priority down to nice 19, more ranks than cores, until they
# have run for HOURS of jobs in all. None may end with an error, and none may speak of a hang, a death or a flipped bit. Jobs
# take 1 to 10 minutes each. Without HOURS: three jobs of some seconds. NICE: the least niceness (0). Prints hours and steps so
# far after each job.
set -u
work=${WORK:-$(mktemp -d)} launch=$PWD/scripts/launch train=${TRAIN:-$PWD/$BUILD/train} hours=${1:-0} jobs=${2:-6}
. tests/tiny.sh
"$train" tokenize src/io -o "$work/corpus" > /dev/null 2>&1 || exit 1
tiny "$work/dense.yaml" model.num_layers=4 train.global_batch_size=8 train.train_iters=300000
tiny "$work/moe.yaml" model.num_layers=4 train.global_batch_size=8 train.train_iters=300000 model.untie_embeddings_and_output_weights=true \
    moe.num_moe_experts=4 moe.moe_ffn_hidden_size=32 moe.moe_router_topk=2
: > "$work/done"
: > "$work/failed"

# Ranks, configuration, settings; then transport, then saves; and priorities.
cat > "$work/layouts" <<'END2'
4 dense tensor_model_parallel_size=2 pipeline_model_parallel_size=2
4 dense pipeline_model_parallel_size=4 pipeline_schedule=zb-h1
4 dense data_parallel_sharding_strategy=optim_grads_params pipeline_model_parallel_size=2
2 dense tensor_model_parallel_size=2 sequence_parallel=true
4 dense context_parallel_size=2 data_parallel_sharding_strategy=optim
4 moe expert_model_parallel_size=4
3 dense pipeline_model_parallel_size=3 pipeline_schedule=zb-h2 num_layers=6
1 dense micro_batch_size=2
END2
cat > "$work/transports" <<'END2'

GRIDIRON_PROGRESS=1
GRIDIRON_RANKS_PER_HOST=1
GRIDIRON_RANKS_PER_HOST=2
END2
cat > "$work/saves" <<'END2'
save_interval=200 save_keep_last=2 eval_interval=150 eval_iters=20
save_interval=150 save_keep_last=2 async_save=true
memory_save_interval=10 save_interval=1000 save_keep_last=2
save_interval=5000 save_keep_last=1 sdc_check_interval=10 eval_interval=1000 eval_iters=200
END2

# job NUMBER -- the NUMBER-th job, of which everything is drawn
job() {
    dir=$work/$1
    mkdir "$dir"
    # shellcheck disable=SC2046
    set -- "$1" $(awk -v seed="$1" -v long="$hours" -v least="${NICE:-0}" 'BEGIN {
        srand(seed + 1)
        print 1 + int(8 * rand()), 1 + int(4 * rand()), 1 + int(4 * rand()), least + int((19.99 - least) * rand()), 32 * 2 ^ int(3 * rand()),
            long ? 1 + 9 * rand() : 0.1 }')
    layout=$(sed -n "$2p" "$work/layouts") transport=$(sed -n "$3p" "$work/transports") saves=$(sed -n "$4p" "$work/saves")
    # shellcheck disable=SC2086
    set -- "$1" "$5" "$6" "$7" $layout $saves
    number=$1 nice=$2 width=$3 minutes=$4 ranks=$5 config=$6
    shift 6
    start=$(date +%s.%N)
    # shellcheck disable=SC2086
    env $transport TRAIN="$train" nice -n "$nice" "$launch" -n "$ranks" --restarts 3 "$work/$config.yaml" hidden_size="$width" "$@" \
        save="$dir/run" save_at_end=false log_interval=20 exit_duration_in_mins="$minutes" > "$dir/log" 2>&1
    rc=$?
    steps=$(sed -n 's/.* iteration  *\([0-9]*\)\/.*/\1/p' "$dir/log" | tail -n 1)
    echo "$start $(date +%s.%N) ${steps:-0}" >> "$work/done"
    if { [ $rc != 0 ] && [ $rc != 75 ]; } || grep -qE '^error|^restart|made no progress|has died|differ|flip' "$dir/log"; then
        { echo "job $number: $config $* hidden_size=$width $transport nice $nice: code $rc"
          grep -v ' iteration  ' "$dir/log" | tail -n 12; } >> "$work/failed"
    fi
    rm -rf "$dir"
    so_far
}
so_far() {
    awk -v failed="$(grep -c '^job ' "$work/failed")" '
        { s += $2 - $1; n += $3 } END { printf "# %d jobs, %.2f hours, %d steps; %d failed\n", NR, s / 3600, n, failed }' \
        "$work/done"
}

# worker FIRST -- every JOBS-th job from the FIRST on, while hours are left
worker() {
    next=$1
    while awk -v hours="$hours" -v one="$next" -v jobs="$jobs" '
            { s += $2 - $1 } END { exit !(hours ? s < 3600 * hours : one < jobs) }' "$work/done"; do
        job "$next"
        next=$((next + jobs))
    done
}
[ "$hours" != 0 ] || jobs=3
i=0
while [ $i -lt "$jobs" ]; do
    worker $i &
    i=$((i + 1))
done
wait
cat "$work/failed"
[ ! -s "$work/failed" ]
