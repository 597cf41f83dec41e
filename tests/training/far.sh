#!/bin/sh
# tests/training/far.sh -- commands over test_far, a device whose memory the host cannot touch and whose
# copies are late, write the same as over the CPU: training with evaluation and both kinds of save, resuming,
# dump, eval, generate. Half of the optimizer's state is offloaded, then all of it. A host access to device
# memory faults.
set -e
work=${WORK:?} far=$(cd "$BUILD" && pwd)/test_far
. tests/tiny.sh
"$TRAIN" tokenize src -o "$work/corpus" > /dev/null 2>&1
tiny "$work/tiny.yaml" model.hidden_dropout=0.1 model.attention_dropout=0.1 model.position_embedding_type=rope \
    train.micro_batch_size=2 train.global_batch_size=4 train.train_iters=6 train.eval_interval=3 train.eval_iters=2 \
    optimizer.lr_decay_style=cosine optimizer.lr_warmup_iters=2 'log.trace_steps=[2]'
kept() { # FILE: its lines without times and rates
    sed -E 's/, "(comm|stragglers)": .*(, "run_id")/\2/; s/"(elapsed_ms|goodput|tokens_per_second|tflops_per_device|mfu|memory_bytes|[a-z]+_ms|run_id)": *[^,}]*,? ?//g' "$1"
}
commands() { # PROGRAM key=value ...
    program=$1
    shift
    run() { "$program" "$@" < /dev/null >> "$here/log" 2>&1 || { echo "$program $*: $?"; tail -n 5 "$here/log"; exit 1; }; }
    until_75() { "$program" "$@" >> "$here/log" 2>&1 && rc=0 || rc=$?; [ $rc = 75 ] || { tail -n 5 "$here/log"; exit 1; }; }
    cd "$here"
    # shellcheck disable=SC2086
    until_75 ../tiny.yaml save=run cpu_isa="$ISA" exit_interval=2 save_interval=1 async_save=true ${half:-} "$@"
    # shellcheck disable=SC2086
    run ../tiny.yaml save=run cpu_isa="$ISA" async_save=false load=latest save_interval=3 ${all:-} "$@"
    run dump ../tiny.yaml -o first.safetensors load=run cpu_isa="$ISA" "$@"
    run eval ../tiny.yaml load=run cpu_isa="$ISA" --json "$@"
    "$program" generate ../tiny.yaml load=run cpu_isa="$ISA" --prompt "int " --tokens 20 "$@" > text
    cd - > /dev/null
}
n=0
for options in params_dtype=bf16 "params_dtype=fp32 qk_layernorm=true" \
    "params_dtype=fp16 optimizer=lamb initial_loss_scale=4294967296" \
    "params_dtype=fp64 optimizer=lars recompute_granularity=full recompute_method=uniform recompute_num_layers=1"; do
    n=$((n + 1))
    for kind in near far; do
        here=$work/$n-$kind
        mkdir "$here"
        # shellcheck disable=SC2086
        if [ $kind = near ]; then
            commands "$TRAIN" $options
        else
            all=optimizer_cpu_offload=true
            half="$all optimizer_offload_fraction=0.5"
            commands "$far" $options
            all='' half=''
        fi
        kept "$here/run/metrics.jsonl" > "$here/metrics"
        grep -Eo 'iteration +[0-9]+/ +[0-9]+|lm loss: [^|]*|validation[^|]*|grad norm: [^|]*' "$here/log" \
            > "$here/said" || true
    done
    a=$work/$n-near b=$work/$n-far
    for file in metrics said text first.safetensors run/checkpoints/iter_0000001/model-00000.safetensors \
        run/checkpoints/iter_0000001/optim-00000.safetensors run/checkpoints/iter_0000002/model-00000.safetensors \
        run/checkpoints/iter_0000006/model-00000.safetensors run/checkpoints/iter_0000006/optim-00000.safetensors; do
        cmp "$a/$file" "$b/$file" || { diff "$a/metrics" "$b/metrics"; echo "$options: $file differs"; exit 1; }
    done
    [ "$(grep -c lm_loss "$b/metrics")" = 6 ] || { echo "$options: not one line a step"; exit 1; }
done
# a step that is not finite stops the run with the same message; steps already launched after it change
# nothing
for kind in near far; do
    here=$work/stop-$kind program=$TRAIN
    [ $kind = near ] || program=$far
    mkdir "$here"
    cd "$here"
    "$program" ../tiny.yaml save=run cpu_isa="$ISA" optimizer=sgd lr=1000 weight_decay=0.9 clip_grad=0 train_iters=40 \
        eval_interval=null > log 2>&1 && rc=0 || rc=$?
    [ $rc = 6 ] || { echo "$kind: ended with $rc, not 6"; tail -n 5 log; exit 1; }
    sed -n 's/^error\[not-finite\] //p' log > said
    grep 'not finite is the' said > /dev/null || { echo "$kind: updated, or not said"; cat log; exit 1; }
    kept run/metrics.jsonl > metrics
    cd - > /dev/null
done
for file in said metrics; do
    cmp "$work/stop-near/$file" "$work/stop-far/$file" || { cat "$work/stop-near/$file" "$work/stop-far/$file"; exit 1; }
done
echo "the same far away"
