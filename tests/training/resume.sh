#!/bin/sh
# tests/training/resume.sh -- a run stopped after step k = 1..10 and resumed ends with the bytes of the
# undisturbed run: every shard of the last checkpoint, and every line of metrics.jsonl, times apart. Then the
# same for a run that SIGUSR1 stops at some step.
set -e
work=${WORK:?}
. tests/tiny.sh
"$TRAIN" tokenize src -o "$work/corpus" > /dev/null 2>&1
tiny "$work/tiny.yaml" train.micro_batch_size=2 train.global_batch_size=null train.train_iters=12 \
    train.step_batch_size_schedule="'0:2 320:4'" train.eval_interval=4 train.eval_iters=2 \
    optimizer.lr_decay_style=cosine optimizer.lr_warmup_iters=2
run() { "$TRAIN" "$work/tiny.yaml" cpu_isa="$ISA" "$@" > "$work/log" 2>&1; }
kept() { # the lines of metrics.jsonl without times and rates
    sed -E 's/, "(comm|stragglers)": .*(, "run_id")/\2/; s/"(elapsed_ms|goodput|tokens_per_second|tflops_per_device|mfu|memory_bytes|[a-z]+_ms|run_id)": *[^,}]*,? ?//g' "$1/metrics.jsonl"
}
compare() { # RUN_DIR NAME: the same shards and metrics as the undisturbed run
    for shard in model-00000 optim-00000; do
        cmp "$whole/checkpoints/iter_0000012/$shard.safetensors" "$1/checkpoints/iter_0000012/$shard.safetensors" ||
            { echo "$2: $shard differs"; exit 1; }
    done
    kept "$whole" > "$work/a"; kept "$1" > "$work/b"
    diff "$work/a" "$work/b" || { echo "$2: metrics differ"; exit 1; }
}
for dtype in ${DTYPES:-bf16}; do
    whole=$work/whole-$dtype
    run "save=$whole" "params_dtype=$dtype" || { cat "$work/log"; exit 1; }
    [ "$(grep -c lm_loss "$whole/metrics.jsonl")" = 12 ] || { echo "no metrics"; exit 1; }
    for k in 1 2 3 4 5 6 7 8 9 10; do
        part=$work/part-$dtype-$k
        run "save=$part" "params_dtype=$dtype" "exit_interval=$k" async_save=$([ $((k % 2)) = 0 ] && echo true || echo false) && rc=0 || rc=$?
        [ $rc = 75 ] || { echo "step $k: stopped with $rc, not 75"; cat "$work/log"; exit 1; }
        run "save=$part" "params_dtype=$dtype" load=latest || { echo "step $k: resume failed"; cat "$work/log"; exit 1; }
        compare "$part" "$dtype stopped after step $k"
        rm -rf "$part"
    done
done
# gradients of 16 bits, moments of 16 and 8
for more in grad_reduce_in_bf16=true main_grads_dtype=bf16 "exp_avg_dtype=bf16 exp_avg_sq_dtype=fp8"; do
    whole=$work/whole-$more part=$work/part-$more
    run "save=$whole" params_dtype=bf16 $more || { cat "$work/log"; exit 1; }
    run "save=$part" params_dtype=bf16 $more exit_interval=5 && rc=0 || rc=$?
    [ $rc = 75 ] || { echo "$more: stopped with $rc, not 75"; cat "$work/log"; exit 1; }
    run "save=$part" params_dtype=bf16 $more load=latest || { echo "$more: resume failed"; cat "$work/log"; exit 1; }
    compare "$part" "$more"
done
whole=$work/whole-$dtype part=$work/signal
"$TRAIN" "$work/tiny.yaml" cpu_isa="$ISA" "save=$part" "params_dtype=$dtype" > "$work/log" 2>&1 &
pid=$!
while ! grep -q 'iteration        1/' "$work/log" && kill -0 $pid 2> /dev/null; do sleep 0.01; done
kill -USR1 $pid 2> /dev/null || true
wait $pid && rc=0 || rc=$?
if [ $rc = 75 ]; then run "save=$part" "params_dtype=$dtype" load=latest; else [ $rc = 0 ]; fi
compare "$part" "SIGUSR1"

# a corpus with other bytes behind the same path is noticed, an unchanged one is not
run "save=$work/moved" exit_interval=2 && rc=0 || rc=$?
[ $rc = 75 ] || { echo "stopped with $rc, not 75"; cat "$work/log"; exit 1; }
run "save=$work/moved" load=latest exit_interval=2 && rc=0 || rc=$?
! grep -q 'other bytes' "$work/log" || { echo "the corpus has not changed"; cat "$work/log"; exit 1; }
"$TRAIN" tokenize tests/training -o "$work/other" > /dev/null 2>&1
for file in bin idx; do cp "$work/corpus.$file" "$work/kept.$file"; cp "$work/other.$file" "$work/corpus.$file"; done
run "save=$work/moved" load=latest || { echo "another corpus: resume failed"; cat "$work/log"; exit 1; }
[ "$(grep -c '^warning: the training corpus holds other bytes' "$work/log")" = 1 ] || { echo "another corpus is not noticed"; exit 1; }
for file in bin idx; do cp "$work/kept.$file" "$work/corpus.$file"; done

# what has changed is listed once, whatever the number of ranks
run "save=$work/once" exit_interval=2 && rc=0 || rc=$?
[ $rc = 75 ] || { echo "stopped with $rc, not 75"; cat "$work/log"; exit 1; }
for changed in lr=0.5:0 seed=77:4; do
    TRAIN=$TRAIN scripts/launch -n 2 "$work/tiny.yaml" cpu_isa="$ISA" "save=$work/once" load=latest train_iters=3 \
        tensor_model_parallel_size=2 "${changed%:*}" > "$work/log" 2>&1 && rc=0 || rc=$?
    [ $rc = "${changed#*:}" ] && [ "$(grep -c 'was written with other settings' "$work/log")" = 1 ] ||
        { echo "$changed: code $rc, or the list is not there once"; cat "$work/log"; exit 1; }
done
echo "resumed exactly"
