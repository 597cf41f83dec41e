#!/bin/sh
# tests/commands/config_runs.sh [N] -- configurations that pass the checks must train: N random valid ones
# (default 40) run ten iterations of a tiny model each. Every run must end with 0 and resume from its own
# config.yaml.
set -u
n=${1:-40}
"$TRAIN" tokenize src/*/*.c -o "$WORK/corpus" > /dev/null 2>&1 || exit 1
cat > "$WORK/base.yaml" <<YAML
model: {num_layers: 4, hidden_size: 64, num_attention_heads: 4, seq_length: 32}
data: {data_path: $WORK/corpus, split: '80, 20'}
train: {micro_batch_size: 2, train_iters: 10, eval_iters: 1}
optimizer: {lr: 1e-3}
precision: {cpu_isa: ${ISA:-auto}}
checkpoint: {save: $WORK/run}
YAML
"$BUILD/test_config_saved" --random "$n" > "$WORK/random" || exit 1
bad=0
while read -r line; do
    rm -rf "$WORK/run"
    saved_ifs=$IFS; IFS='|'
    # shellcheck disable=SC2086
    set -- $line
    IFS=$saved_ifs
    "$TRAIN" "$WORK/base.yaml" "$@" > "$WORK/out" 2>&1
    rc=$?
    "$TRAIN" "$WORK/run/config.yaml" load=latest >> "$WORK/out" 2>&1
    again=$?
    if [ $rc != 0 ] || [ $again != 0 ]; then
        echo "exit $rc, resumed $again: $line"
        tail -n 3 "$WORK/out"
        bad=$((bad + 1))
    fi
done < "$WORK/random"
echo "$n configurations, $bad failed"
[ $bad = 0 ] && [ "$(wc -l < "$WORK/random")" = "$n" ]
