#!/bin/sh
# tests/parallel/goodput.sh [-t SECONDS] [SETTING...] -- share of the wall time that goes into steps that count, when ranks die at
# the times of an exponential clock: 4 ranks as tensor 2 x pipeline 2, as many samples a step as make it take 0.5 s here, under
# scripts/launch --restarts. One line for each mean time between failures: 300, 60 and 15 s (MTBF='60 15': others). -t: about
# how long a line takes (900). SETTING: keys of the run. SEED chooses other times. Ends with 1 when a goal is missed.
set -u
work=${WORK:-$(mktemp -d)} launch=$PWD/scripts/launch train=${TRAIN:-$PWD/$BUILD/train} bad=0 long=900 seed=${SEED:-1}
[ "${1:-}" != -t ] || { long=$2; shift 2; }
. tests/tiny.sh
export TMPDIR="$work/tmp"
mkdir -p "$TMPDIR"
"$train" tokenize src/io -o "$work/corpus" > /dev/null 2>&1 || exit 1
tiny "$work/tiny.yaml" model.num_layers=4 model.hidden_size=256 model.seq_length=128 optimizer.lr_decay_style=cosine \
    parallel.tensor_model_parallel_size=2 parallel.pipeline_model_parallel_size=2
# median DIRECTORY: ms of a step
median() {
    sed -n 's/.*"elapsed_ms": \([0-9.e-]*\).*/\1/p' "$1/metrics.jsonl" | sort -n | awk '{ t[NR] = $1 } END { print t[int((NR + 1) / 2)] }'
}
"$launch" -n 4 "$work/tiny.yaml" save="$work/trial" global_batch_size=16 train_iters=9 > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
samples=$(median "$work/trial" | awk '{ n = int(16 * 500 / $1 + 0.5); print (n > 1 ? n : 1) }')
set -- save_interval=100 async_save=true "$@"
cat > "$work/train" <<SH2
#!/bin/sh
echo > "$work/pids/\$\$"
exec "$train" "\$@"
SH2
chmod +x "$work/train"

alive() {
    for pid in "$work"/pids/[0-9]*; do
        ! grep -qs '^State:.[^ZX]' "/proc/${pid##*/}/status" || echo "${pid##*/}"
    done
}
# strikes MEAN SEED: kills a rank at the times of the clock, for as long as the folder of process ids is there
strikes() {
    awk -v mean="$1" -v seed="$2" 'BEGIN {
        srand(seed)
        for (i = 0; i < 10000; i++)
            print int(-5 * mean * log(1 - rand())) + 1, int(rand() * 4) + 1 }' |
        while read -r fifths which; do
            while [ "$fifths" -gt 0 ] || ! rank=$(alive | sed -n "${which}p") || [ -z "$rank" ]; do
                [ -d "$work/pids" ] || exit
                sleep 0.2
                fifths=$((fifths - 1))
            done
            kill -KILL "$rank" 2> /dev/null
        done
}

# measure MEAN GOAL SETTING...
measure() {
    mean=$1 goal=$2; shift 2
    rm -rf "$work/run"
    mkdir "$work/pids"
    strikes "$mean" "$seed" &
    killer=$!
    TRAIN=$work/train "$launch" -n 4 --restarts 100000 "$work/tiny.yaml" save="$work/run" global_batch_size="$samples" \
        train_iters=$((long * 2 * goal / 100)) \
        "$@" > "$work/log" 2>&1
    rc=$?
    rm -rf "$work/pids"
    wait $killer
    got=$(sed -n 's/.*"goodput": \([0-9.e-]*\).*/\1/p' "$work/run/metrics.jsonl" | tail -n 1)
    step=$(median "$work/run")
    awk -v mean="$mean" -v goal="$goal" -v got="${got:-0}" -v rc=$rc -v n="$(grep -c '^restart ' "$work/log")" -v step="$step" 'BEGIN {
        printf "mean time between failures %3d s: goodput %.3f, goal %.2f, %d failures, steps of %.0f ms, exit code %d\n",
            mean, got, goal / 100, n, step, rc
        exit rc != 0 || got < goal / 100 }' || bad=1
    [ $rc = 0 ] || grep '^error\[' "$work/log"
}
for mean in ${MTBF:-300 60 15}; do
    # copies in memory take about 8 ms of a step: by Young's formula every 4, 2 and 1 steps are best
    case $mean in 300) goal=97 every=4 ;; 60) goal=90 every=2 ;; 15) goal=60 every=1 ;; *) goal=50 every=1 ;; esac
    measure $mean $goal memory_save_interval=$every "$@"
done
[ $bad = 0 ]
