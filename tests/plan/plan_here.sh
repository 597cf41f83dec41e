#!/bin/sh
# tests/plan/plan_here.sh -- a plan without ranks says what the ranks of one host then have, each with its share of the
# cores; and a plan for other machines does not depend on the cores of this one.
set -u
work=${WORK:?} bad=0
. tests/tiny.sh
"$TRAIN" tokenize src/io -o "$work/corpus" > "$work/log" 2>&1 || exit 1
tiny "$work/tiny.yaml" model.num_layers=4 train.global_batch_size=4 train.eval_iters=0
fail() { bad=$((bad + 1)); echo "$*"; }
parts() { # FILE: MB of rank 0 in a plan, by part and in all
    tr -d ' \n' < "$1" | grep -o '"rank":0,[^}]*' | head -n 1 | tr , '\n' | awk -F : '
        /"(parameters|gradients|optimizer|activations|buffers|total)"/ { printf "%.1f ", $2 / 1e6 }'
}
for ranks in 1 2 4; do
    for axis in tensor_model_parallel_size pipeline_model_parallel_size data_parallel_sharding_strategy; do
        setting=$axis=$ranks
        [ $axis != data_parallel_sharding_strategy ] || setting=$axis=optim_grads_params
        scripts/launch -n $ranks "$work/tiny.yaml" $setting save="$work/run" overwrite=true > "$work/log" 2>&1 || fail "$ranks $setting: $?"
        "$TRAIN" plan "$work/tiny.yaml" $setting --world $ranks --json > "$work/plan" 2> "$work/errors" || fail "plan $ranks $setting: $?"
        has=$(sed -nE 's/^memory of rank 0: ([^:]*): ([0-9.]*) MB in all.*/\1 \2/p' "$work/log" | sed 's/[^0-9. ]//g' | tr -s ' ' | sed 's/^ //; s/$/ /')
        [ -n "$has" ] && [ "$has" = "$(parts "$work/plan")" ] ||
            fail "$ranks $setting: planned $(parts "$work/plan")MB, and a run has $has"
    done
done
# the run's record has the plan of the fullest rank, beside the most that a rank holds: of the second stage, and of the
# rank of four replicas that saves the largest piece and has the longest shard
recorded() { # RANKS SETTING...
    ranks=$1; shift
    scripts/launch -n "$ranks" "$work/tiny.yaml" "$@" save="$work/run" overwrite=true > "$work/log" 2>&1 || fail "$*: $?"
    "$TRAIN" plan "$work/tiny.yaml" "$@" --world "$ranks" --json > "$work/plan" 2> "$work/errors" || fail "plan $*: $?"
    most=$(tr -d ' \n' < "$work/plan" | grep -o '"rank":[0-9]*,[^}]*' | sed 's/.*"total":\([0-9]*\).*/\1/' | sort -n | tail -n 1)
    kept=$(tr -d ' \n' < "$work/run/run.json" | sed -n 's/.*"total":{"planned":\([0-9]*\),.*/\1/p')
    [ "$most" = "$kept" ] || fail "$*: run.json has a plan of $kept bytes, the fullest rank one of $most"
}
recorded 2 pipeline_model_parallel_size=2 num_layers_in_first_pipeline_stage=1
recorded 4 data_parallel_sharding_strategy=no_shard
recorded 4 data_parallel_sharding_strategy=optim_grads_params
large="configs/gpt-39b.yaml --world 512 --machine h100 tensor_model_parallel_size=8 pipeline_model_parallel_size=4"
# shellcheck disable=SC2086
"$TRAIN" plan $large > "$work/all" && taskset -c "$(taskset -cp $$ | sed 's/.*[: ]\([0-9]*\).*/\1/')" "$TRAIN" plan $large > "$work/one" ||
    fail "plan $large"
diff "$work/all" "$work/one" || fail "a plan for 512 ranks elsewhere depends on the cores here"
[ $bad = 0 ]
