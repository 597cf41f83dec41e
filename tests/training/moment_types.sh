#!/bin/sh
# tests/training/moment_types.sh -- moments of 16 and 8 bits (exp_avg_dtype, exp_avg_sq_dtype): layouts that only
# reorder work have the same bits; a run that stops and goes on in another of them, or that loads the moments of a run
# with another type, too, as far as that type holds them. A flipped bit of a scale is found.
set -u
work=${WORK:?} launch=$PWD/scripts/launch
train=$TRAIN
. tests/tiny.sh
bad() { echo "$*"; exit 1; }
"$train" tokenize src -o "$work/corpus" > /dev/null 2>&1 || bad tokenize
tiny "$work/tiny.yaml" model.num_layers=4 model.hidden_size=64 model.num_attention_heads=2 model.hidden_dropout=0.1 \
    model.untie_embeddings_and_output_weights=true train.global_batch_size=8 train.train_iters=8 \
    precision.params_dtype=bf16 optimizer.adam_beta2=0.999
run() { # RANKS CODE OPTIONS...: ends with CODE
    n=$1 code=$2; shift 2
    "$launch" -n "$n" "$work/tiny.yaml" "$@" > "$work/log" 2>&1 && rc=0 || rc=$?
    [ $rc = "$code" ] || { cat "$work/log"; bad "$* on $n ranks: $rc, not $code"; }
}
steps() { tr -d ' ' < "$1/metrics.jsonl" | sed -n 's/.*"lm_loss":\([^,]*\),.*"grad_norm":\([^,]*\),.*/\1 \2/p'; }
same() { # RUN_DIR RUN_DIR WHAT
    steps "$1" > "$work/a"; steps "$2" > "$work/b"
    [ "$(wc -l < "$work/a")" = 8 ] && cmp -s "$work/a" "$work/b" || { paste "$work/a" "$work/b"; bad "$3 differs"; }
}
zero() { echo "data_parallel_sharding_strategy=$1"; }
pp2='pipeline_model_parallel_size=2 pipeline_schedule=zb-h1' pp4='pipeline_model_parallel_size=4 recompute_granularity=full
     recompute_method=uniform recompute_num_layers=1'
# shellcheck disable=SC2086
for types in "exp_avg_dtype=bf16 exp_avg_sq_dtype=bf16" "exp_avg_dtype=fp8 exp_avg_sq_dtype=fp8" \
    "exp_avg_dtype=fp16 exp_avg_sq_dtype=fp8 optimizer=lamb"; do
    rm -rf "$work"/run-*
    run 1 0 $types save="$work/run-one"
    run 2 0 $types save="$work/run-pp2" $pp2
    run 4 0 $types save="$work/run-pp4" $pp4
    run 1 0 $types save="$work/run-away" optimizer_cpu_offload=true optimizer_offload_fraction=0.5 threads=1
    for other in pp2 pp4 away; do same "$work/run-one" "$work/run-$other" "$types: $other"; done
    for s in no_shard optim optim_grads optim_grads_params; do run 2 0 $types save="$work/run-$s" "$(zero $s)"; done
    same "$work/run-no_shard" "$work/run-optim" "$types: ZeRO 1"
    same "$work/run-optim_grads" "$work/run-optim_grads_params" "$types: ZeRO 3"
    # the first update has the bits of F32 moments, which nothing has rounded yet: the third loss is another one
    optimizer=$(echo "$types " | sed -n 's/.*\(optimizer=[a-z]*\).*/\1/p')
    run 1 0 $optimizer save="$work/run-f32"
    steps "$work/run-f32" > "$work/a"; steps "$work/run-one" > "$work/b"
    [ "$(head -2 "$work/a")" = "$(head -2 "$work/b")" ] && [ "$(sed -n 3p "$work/a")" != "$(sed -n 3p "$work/b")" ] ||
        { paste "$work/a" "$work/b"; bad "$types: the first update, beside F32 moments"; }
    # stopped twice, resumed in other layouts
    run 2 75 $types save="$work/run-parts" $pp2 exit_interval=3
    run 1 75 $types save="$work/run-parts" load=latest exit_interval=5 async_save=true sdc_check_interval=1
    run 4 0 $types save="$work/run-parts" load=latest $pp4
    same "$work/run-one" "$work/run-parts" "$types: resumed"
    run 2 75 $types save="$work/run-shards" "$(zero optim_grads)" exit_interval=3 async_save=true
    run 2 0 $types save="$work/run-shards" load=latest "$(zero optim_grads_params)" sdc_check_interval=1
    same "$work/run-optim_grads" "$work/run-shards" "$types: shards, resumed"
done

# ---- from type to type: what is stored twice keeps its value, and a run goes on
plain='exp_avg_dtype=fp32 exp_avg_sq_dtype=fp32' bf16='exp_avg_dtype=bf16 exp_avg_sq_dtype=bf16'
fp8='exp_avg_dtype=fp8 exp_avg_sq_dtype=fp8'
# shellcheck disable=SC2086
for pair in "$plain:$bf16" "$plain:$fp8" "$bf16:$fp8" "$fp8:$plain"; do
    rm -rf "$work"/run-*
    run 1 75 ${pair%:*} save="$work/run-a" exit_interval=4
    run 1 75 ${pair#*:} save="$work/run-b" load="$work/run-a" exit_interval=5
    grep -q 'exp_avg_dtype' "$work/log" || bad "$pair: no word about another type"
    run 2 0 ${pair#*:} save="$work/run-b" load=latest "$(zero optim)"
    steps "$work/run-b" | tail -1 | awk '!($1 > 0 && $1 < 5.6) { exit 1 }' || bad "$pair: loss $(steps "$work/run-b" | tail -1)"
done
echo "types of moments agree"
