#!/bin/sh
# tests/training/spikes.sh -- on_spike of whole runs over a corpus with a few samples of noise, and `train
# replay`: every layout finds the same spikes, a stopped run ends with the bytes of one in one piece, and a
# replay has the bits of the run. The same for a step that is not finite.
set -u
work=${WORK:?} launch=$PWD/scripts/launch
. tests/tiny.sh
bad() { echo "$*"; cat "$work/log"; exit 1; }
run() { # RANKS CODE COMMAND...: ends with CODE
    n=$1 code=$2; shift 2
    "$launch" -n "$n" "$@" > "$work/log" 2>&1 && rc=0 || rc=$?
    [ $rc = "$code" ] || bad "$* on $n ranks: $rc, not $code"
}
spikes() { # RUN: the records, numbers with three digits
    grep '"spike"' "$1/metrics.jsonl" |
        sed -E 's/("spike_(loss|grad_norm)[a-z_]*": [0-9]+\.[0-9]{0,3})[0-9]*/\1/g; s/, "run_id.*//'
}
same_end() { # RUN RUN: the last checkpoints have the same shards
    for shard in model-00000 optim-00000; do
        file=checkpoints/iter_0000034/$shard.safetensors
        cmp "$1/$file" "$2/$file" || bad "$1, $2: $shard"
    done
}

# a line again and again, and noise in its midst
awk 'BEGIN {
    for (i = 0; i < 2000; i++) {
        printf "the cat sat on the mat. "
        if (i == 900) for (k = 0; k < 256; k++) printf "%c", 33 + (k * 37 + k * k * 11) % 90
    }
}' > "$work/text"
"$TRAIN" tokenize "$work/text" -o "$work/corpus" > "$work/log" 2>&1 || bad tokenize
tiny "$work/tiny.yaml" train.global_batch_size=8 train.micro_batch_size=2 train.train_iters=34 \
    optimizer.lr=0.02 optimizer.lr_decay_style=constant checkpoint.save_interval=10 \
    checkpoint.save_keep_last=20 fault.on_spike=skip fault.spike_window=12 fault.spike_sigma=10 \
    precision.params_dtype=fp64
run 1 0 "$work/tiny.yaml" save="$work/skip"
spikes "$work/skip" > "$work/want"
[ -s "$work/want" ] || bad "no spike is found"
at=$(sed -E 's/.*"iteration": ([0-9]+).*/\1/; q' "$work/want")
grep -q "^spike at iteration $at: .*; not updated$" "$work/log" || bad "no line for people"
[ "$(grep -c 'spike at' "$work/log")" = "$(wc -l < "$work/want")" ] || bad "lines and records differ"
grep -q 'Spikes' "$work/skip/report.html" || bad "the report has no spikes"

# ---- other layouts
layout() { # NAME RANKS KEYS...
    name=$1 n=$2; shift 2
    run "$n" 0 "$work/tiny.yaml" save="$work/$name" "$@"
    spikes "$work/$name" > "$work/found"
    diff "$work/want" "$work/found" || bad "$name: other spikes"
}
layout tp2pp2 4 tensor_model_parallel_size=2 pipeline_model_parallel_size=2 pipeline_schedule=zb-h1
layout zero3 2 data_parallel_sharding_strategy=optim_grads_params
layout zero1 2 data_parallel_sharding_strategy=optim overlap_grad_reduce=true overlap_param_gather=true \
    async_save=true

# ---- stopped at the spike and one step before it
for stop in "$at" $((at - 1)); do
    run 1 75 "$work/tiny.yaml" save="$work/parts-$stop" exit_interval="$stop" save_at_end=true
    run 1 0 "$work/tiny.yaml" save="$work/parts-$stop" load=latest
    same_end "$work/skip" "$work/parts-$stop"
    spikes "$work/parts-$stop" | diff "$work/want" - || bad "stopped at $stop: other spikes"
done

# ---- rewind
run 1 2 "$work/tiny.yaml" save="$work/no" on_spike=rewind save_interval=null
grep -q 'save_interval' "$work/log" || bad "no advice"
run 1 0 "$work/tiny.yaml" save="$work/back" on_spike=rewind
saved=$(((at - 1) / 10 * 10))
skips="samples $((saved * 8)) to $((at * 8 - 1)) are skipped"
grep -q "^spike at iteration $at: .*; back to the state of iteration $saved; $skips" "$work/log" ||
    bad "no rewind"
run 1 75 "$work/tiny.yaml" save="$work/back-parts" on_spike=rewind exit_interval=$((at + 1)) save_at_end=true
run 1 0 "$work/tiny.yaml" save="$work/back-parts" on_spike=rewind load=latest
spikes "$work/back" > "$work/a"; spikes "$work/back-parts" > "$work/b"
diff "$work/a" "$work/b" || bad "a rewind, resumed: other spikes"
same_end "$work/back" "$work/back-parts"
run 2 0 "$work/tiny.yaml" save="$work/back-2" on_spike=rewind pipeline_model_parallel_size=2 async_save=true

# ---- the rate stood still in steps that fp16 skipped, which the rewind went back over: also with another batch size
fp16() { # CODE KEYS...
    code=$1; shift
    run 1 "$code" "$work/tiny.yaml" save="$work/still" on_spike=rewind params_dtype=fp16 initial_loss_scale=3.2e7 hysteresis=1 \
        lr_decay_style=linear save_interval=1000 save_at_end=true "$@"
}
fp16 75 exit_interval=1
fp16 75 exit_interval=$((at + 1)) load=latest
grep -q "^spike at iteration [0-9]*: .*; back to the state of iteration 1;" "$work/log" || bad "fp16: no rewind to 1"
fp16 0 global_batch_size=4 load=latest
sed -n -E 's/.*"learning_rate": ([^,]*), "loss_scale": ([^,]*),.*/\1 \2/p' "$work/still/metrics.jsonl" | awk '
    { still += $2 < scale; scale = $2; want = 0.02 * (1 - (NR - 1 - still) / 34) }
    $1 < 0.9999 * want || $1 > 1.0001 * want { wrong = wrong " " NR }
    END { if (still < 2 || NR != 34 || wrong) { print still " steps skipped, wrong rates:" wrong; exit 1 } }' ||
    bad "fp16: rates"

# ---- a rank dies before the spike and the job goes on from memory: it goes back to the save on the disk all the same
run 2 0 "$work/tiny.yaml" save="$work/alive" on_spike=rewind
cat > "$work/once" <<SH
#!/bin/sh
mkdir "$work/started.\$OMPI_COMM_WORLD_RANK" 2> /dev/null || unset FAULT
exec "$PWD/$BUILD/test_faults" "\$@"
SH
chmod +x "$work/once"
(
    export FAULT="1 F $((at - 1)) 0" FAULT_DIR="$work" TRAIN="$work/once"
    run 2 0 --restarts 2 "$work/tiny.yaml" save="$work/killed" on_spike=rewind memory_save_interval=1
) || exit 1
grep '^loaded .*: resuming' "$work/log" | grep -qv "^loaded $work" || bad "not from memory"
spikes "$work/alive" > "$work/a"; spikes "$work/killed" > "$work/b"
diff "$work/a" "$work/b" || bad "a rewind after a death: other spikes"
same_end "$work/alive" "$work/killed"

# ---- the rank dies while a save is written from a snapshot: the run goes on from memory, and has the save
run 1 0 "$work/tiny.yaml" save="$work/saved" on_spike=rewind save_interval=$((at - 4)) async_save=true
rm -r "$work/started.0"
(
    export FAULT="0 save $((at - 4)) 0 hold" FAULT_DIR="$work" TRAIN="$work/once"
    run 1 0 --restarts 2 "$work/tiny.yaml" save="$work/held" on_spike=rewind save_interval=$((at - 4)) \
        async_save=true memory_save_interval=1
) || exit 1
grep -q '^restart 1 of 2: ' "$work/log" || bad "held: no restart"
spikes "$work/saved" > "$work/a"; spikes "$work/held" > "$work/b"
grep -q "\"rewound_to\": $((at - 4))\$" "$work/a" || bad "no rewind to $((at - 4))"
diff "$work/a" "$work/b" || bad "a rewind after a death in a save: other spikes"
same_end "$work/saved" "$work/held"

# ---- the save that a rewind would go back to is damaged or gone: on_corrupt says what then
# spoiled NAME CODE COMMAND [KEY=VALUE] -- COMMAND spoils the last save before the spike; ends with CODE
spoiled() {
    name=$1 code=$2 spoils=$3; shift 3
    rm -f "$work/died"
    FAULT="0 F $((at - 1)) 0 stop" FAULT_DIR="$work" "$BUILD/test_faults" "$work/tiny.yaml" \
        save="$work/$name" on_spike=rewind "$@" > "$work/log" 2>&1 &
    pid=$!
    until grep -q '^State:.T' /proc/$pid/status; do
        kill -0 $pid 2> /dev/null || bad "$name: the run has ended"
        sleep 0.02
    done
    (cd "$work/$name/checkpoints" && $spoils) || bad "$name: not spoiled"
    kill -CONT $pid
    wait $pid && rc=0 || rc=$?
    [ $rc = "$code" ] || bad "$name: $rc, not $code"
    spikes "$work/$name" > "$work/a"
}
last=$(printf 'iter_%07d' $saved) before=$((saved - 10))
flip() {
    printf '\377\376\375\374' | dd of="$last/optim-00000.safetensors" bs=1 seek=9000 conv=notrunc 2> /dev/null
}
gone() { rm -r "$last"; }
for how in flip gone; do
    spoiled stop-$how 4 $how
    grep -q '^error\[checkpoint-.*; change: ' "$work/log" || bad "$how: no error"
    grep -q "^spike at iteration $at: .*; not updated$" "$work/log" || bad "$how: the spike has no line"
    grep -q "\"iteration\": $at, \"spike\": \"rewind\".*\"skipped_samples\": 8$" "$work/a" ||
        bad "$how: the spike is not recorded"
    spoiled previous-$how 0 $how on_corrupt=previous
    [ "$(grep -c "^warning: .*$last.*; taking the checkpoint before it$" "$work/log")" = 1 ] ||
        bad "$how: not said once"
    [ "$(grep -c "\"iteration\": $at," "$work/a")" = 1 ] || bad "$how: more than one record"
    grep -q "\"iteration\": $at,.*\"skipped_first_sample\": $((before * 8)),.*\"rewound_to\": $before$" \
        "$work/a" || bad "$how: not back to the save before"
done

# ---- the level changes for good
run 1 6 "$work/tiny.yaml" save="$work/level" spike_sigma=1e-9 spike_window=4 train_iters=400
end=$(sed -n 's/^error\[spikes\] iteration \([0-9]*\): .*change: .*/\1/p' "$work/log")
[ "$end" ] || bad "a run that skips on and on"
[ -f "$work/level/replay/$(printf 'iter_%07d' "$end").json" ] && spikes "$work/level" | grep -q "\"iteration\": $end," ||
    bad "the spike that ends a run is not recorded"
# a slow disk of rank 0: the other rank does not end the job before the spike is recorded
if strace -o /dev/null true 2> /dev/null; then
    cat > "$work/slow" <<SH
#!/bin/sh
[ "\$OMPI_COMM_WORLD_RANK" = 0 ] || exec "$TRAIN" "\$@"
exec strace -qq -o /dev/null -P "$work/level-2/metrics.jsonl" -e trace=write -e inject=write:delay_enter=50000 "$TRAIN" "\$@"
SH
    chmod +x "$work/slow"
    (
        export TRAIN="$work/slow"
        run 2 6 "$work/tiny.yaml" save="$work/level-2" spike_sigma=1e-9 spike_window=4 train_iters=400
    ) || exit 1
    spikes "$work/level-2" | grep -q "\"iteration\": $end," || bad "a slow rank 0: the last spike is not recorded"
fi

# ---- replay
value() { sed -nE "s/^ *\"$1\": ([^,]*),?\$/\1/p" "$work/log" | head -1; }
said() { # KEY VALUE ...: what the JSON in the log says
    while [ $# -gt 0 ]; do [ "$(value "$1")" = "$2" ] || bad "$1: $(value "$1"), not $2"; shift 2; done
}
run 1 0 replay "$work/skip" --iteration "$at" --json
said again true bitwise true corpus_changed false iteration "$at"
sed -nE 's/^ *"loss": ([^,]*),$/\1/p' "$work/log" | awk '      # the batch, and each of its microbatches
    NR == 1 { whole = $1; next }
    { sum += $1; most = $1 > most ? $1 : most }
    END { d = sum / 4 - whole; exit !(NR == 5 && d * d < 1e-20 && most > 1.3 * whole) }' ||
    bad "other microbatches"
run 1 0 replay "$work/skip" --iteration "$at"                  # the same for people
for line in "^$work/skip: spike at iteration $at, samples " '^now .*: the same bits$' '^whole batch  *loss ' '^it came again'; do
    grep -q "$line" "$work/log" || bad "a replay without '$line'"
done
[ "$(grep -c '^microbatch [0-3] *loss .*most of it ' "$work/log")" = 4 ] || bad "other lines of microbatches"
latin=$work/$(printf 'caf\351')          # JSON of a folder whose name is no UTF-8
cp -r "$work/skip" "$latin"
run 1 0 replay "$latin" --iteration "$at" --json
said again true
grep -q '"checkpoint": ".*/caf?/checkpoints/' "$work/log" || bad "a folder that is not UTF-8"
rm -r "$latin"
run 4 0 replay "$work/skip" --iteration "$at" --json \
    tensor_model_parallel_size=2 pipeline_model_parallel_size=2
said again true iteration "$at"
run 2 0 replay "$work/zero3" --iteration "$at" --json
said again true bitwise true
run 1 2 replay "$work/skip" --iteration 1
grep -q 'error\[replay\]' "$work/log" || bad "a step that is not kept"
# a run that is shorter now: its samples are made for the kept step, too
run 1 0 replay "$work/skip" --iteration "$at" --json train_iters=3 "data_path=[1, $work/corpus, 2, $work/corpus]"
said again true corpus_changed true
run 1 2 replay "$work/skip" --iteration "$at" global_batch_size=4 train_iters=3
grep -q 'error\[replay\] .*starts at sample .*change: the batch sizes' "$work/log" || bad "other batch sizes"
# numbers that no run has written
kept=$(printf 'iter_%07d.json' "$at")
for forged in 's/"iteration": [0-9]*/"iteration": 900000000/' 's/"iteration": [0-9]*/"iteration": 9000000000000000000/' \
    's/"first_sample": [0-9]*/"first_sample": 9223372036854775807/'; do
    rm -rf "$work/forged" && cp -r "$work/skip" "$work/forged" && sed -i "$forged" "$work/forged/replay/$kept"
    run 1 2 replay "$work/forged" --iteration "$at" train_iters=3
    grep -q 'error\[replay\] .*; change: ' "$work/log" || bad "forged: $forged"
done

# ---- a step that is not finite, on one rank and on four
for n in 1 4; do
    [ $n = 4 ] && keys='tensor_model_parallel_size=2 pipeline_model_parallel_size=2' || keys=
    # shellcheck disable=SC2086
    run $n 6 "$work/tiny.yaml" save="$work/nan-$n" optimizer=sgd lr=1000 clip_grad=0 params_dtype=fp32 \
        on_spike=none $keys
    grep -q 'error\[not-finite\]' "$work/log" || bad "no stop"
    grep -q 'change: lower lr or raise lr_warmup_iters, set clip_grad, or' "$work/log" || bad "no clip to lower"
    tensor=$(sed -nE 's/.*that is not finite is (.*); nothing.*/\1/p' "$work/log")
    run $n 0 replay "$work/nan-$n" --json
    said again true bitwise true first_not_finite "\"$tensor\""
    run $n 1 replay "$work/nan-$n" --json lr=1e-3
    said again false
done

# a fine-tuned run that stops before its first save: its replay begins with the weights that it began with, not
# with the state of the run that they are from, and not without them
cp -r "$work/skip/checkpoints/iter_0000010" "$work/begin"
run 1 6 "$work/tiny.yaml" save="$work/nan-tuned" load="$work/begin" finetune=true optimizer=sgd lr=1000 clip_grad=0 \
    params_dtype=fp32 on_spike=none save_interval=30
run 1 0 replay "$work/nan-tuned" --json
said again true bitwise true checkpoint null
rm -r "$work/begin"
run 1 4 replay "$work/nan-tuned"
grep -q "error\[checkpoint-missing\] $work/begin " "$work/log" || bad "a replay without the weights of the run's beginning"

# the keys that it names are those that this run may change
run 1 6 "$work/tiny.yaml" save="$work/nan-samples" optimizer=sgd lr=1000 clip_grad=1e9 params_dtype=fp32 \
    on_spike=none train_iters=null train_samples=400
grep -q 'change: lower lr or raise lr_warmup_samples, lower clip_grad, or' "$work/log" || bad "counted in samples"

# a replay keeps no copies: memory_save_interval of the run means nothing to it, under whichever launcher
run 2 6 --restarts 2 "$work/tiny.yaml" save="$work/nan-copies" optimizer=sgd lr=1000 clip_grad=0 \
    params_dtype=fp32 on_spike=none memory_save_interval=1
run 2 0 replay "$work/nan-copies" --json
said again true bitwise true
run 2 0 --restarts 1 replay "$work/nan-copies" --json memory_save_interval=2
said again true bitwise true

# ---- the corpus has changed: the samples are the kept ones, from the checkpoint just before them
tr 'a-z' 'b-za' < "$work/text" > "$work/text.new"
"$TRAIN" tokenize "$work/text.new" -o "$work/corpus" > "$work/log" 2>&1 || bad tokenize
run 1 0 replay "$work/parts-$((at - 1))" --iteration "$at" --json
said corpus_changed true again true bitwise true
echo "$(wc -l < "$work/want") spikes, the first at step $at"
