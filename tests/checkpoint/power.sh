#!/bin/sh
# tests/checkpoint/power.sh [SEEDS [EVERY]] -- the power is lost during a run, after each of its file operations: every
# state that the disk may then have (tests/checkpoint/test_power.c) holds the newest whole checkpoint, or the one that was
# being saved, whole; a run goes on from it with the bytes of an undisturbed one. SEEDS: random choices for each operation;
# each EVERY-th state is gone on from.
set -u
work=${WORK:-$(mktemp -d)} launch=$PWD/scripts/launch train=${TRAIN:-$PWD/$BUILD/train} power=$PWD/$BUILD/test_power bad=0
seeds=${1:-2} every=${2:-400}
. tests/tiny.sh
. tests/parallel/same.sh
fail() { bad=$((bad + 1)); echo "$*"; sed 's/^/    /' "$work/log" | cut -c 1-300 | tail -n 8; }
# a folder in memory where there is one: thousands of states are laid out
root=$(mktemp -d -p /dev/shm 2> /dev/null || mktemp -d) || exit 2
trap 'rm -rf "$root"' EXIT
"$train" tokenize src/io -o "$work/corpus" > /dev/null 2>&1 || exit 1
tiny "$work/tiny.yaml" model.num_layers=1 model.hidden_size=8 model.num_attention_heads=2 model.seq_length=8 \
    train.global_batch_size=4 checkpoint.save_interval=2 checkpoint.save_keep_last=1 train.train_iters=6 \
    optimizer.lr_decay_iters=6
"$train" "$work/tiny.yaml" save="$work/whole" > "$work/log" 2>&1 || fail "the undisturbed run"

# the run of a state goes on, in a copy, and ends as the undisturbed one
cat > "$work/on" <<SH
rm -rf "$work/state"
cp -r "$root" "$work/state" && "$train" "$work/tiny.yaml" save="$work/state/run" load=latest > "$work/log" 2>&1 || exit 1
for shard in "$work"/whole/checkpoints/iter_0000006/*.safetensors; do
    cmp "\$shard" "$work/state/run/checkpoints/iter_0000006/\${shard##*/}" || exit 1
done
SH

# states WHAT -- all states of what has been recorded
states() {
    what=$1; shift
    "$power" states "$work/record" "$root" "$seeds" "$@" > "$work/log" 2>&1 || fail "$what"
    grep ' operations' "$work/log"
    rm -rf "$root" "$work/record"
    mkdir -m 700 "$root"
}
recorded() { # CODE ARGUMENT...
    code=$1; shift
    POWER_ROOT=$root POWER_LOG=$work/record "$power" "$@" > "$work/log" 2>&1
    [ $? = "$code" ] || fail "$*"
}

recorded 75 "$work/tiny.yaml" save="$root/run" exit_interval=4
recorded 0 "$work/tiny.yaml" save="$root/run" load=latest
states "one rank, twice" "$every" "sh $work/on"
cat > "$work/train" <<SH
#!/bin/sh
POWER_ROOT="$root" POWER_LOG="$work/record" exec "$power" "\$@"
SH
chmod +x "$work/train"
TRAIN=$work/train "$launch" -n 2 "$work/tiny.yaml" save="$root/run" async_save=true \
    data_parallel_sharding_strategy=optim > "$work/log" 2>&1 || fail "two ranks: $?"
states "two ranks, async_save"
recorded 0 tokenize src/io -o "$root/corpus"
recorded 0 tokenize src/corpus -o "$root/corpus"
states "tokenize, twice"
[ $bad = 0 ]
