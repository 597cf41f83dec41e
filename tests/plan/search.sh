#!/bin/sh
# tests/plan/search.sh -- `train plan --search`: what it finds beats equal layer counts and no bound; its keys make the
# plan, the lists and the run that it told, the clock device takes the time that it told; and what it refuses.
work=${WORK:?}
fail() { echo "# $1"; for f in out err; do [ ! -f "$work/$f" ] || sed 's/^/#   /' "$work/$f"; done; exit 1; }
. tests/tiny.sh
cat > "$work/gpt.yaml" <<'YAML'
model: {num_layers: 12, hidden_size: 2048, num_attention_heads: 16, seq_length: 2048, vocab_size: 256000,
        add_bias_linear: false, untie_embeddings_and_output_weights: true}
data: {tokenizer_type: none}
train: {micro_batch_size: 1, global_batch_size: 24}
precision: {params_dtype: bf16}
parallel: {pipeline_model_parallel_size: 4, pipeline_schedule: interleaved, num_virtual_stages_per_pipeline_rank: 3,
           microbatch_group_size_per_vp_stage: 6}
YAML
file=$work/lists.csv machine=h100
value() { sed -n "s/.*\"$1\": \"*\\([^\"]*[^\",]\\)\"*,*$/\\1/p" "$work/out" | sed -n "${2:-1}p" | sed 's/\\\(.\)/\1/g'; }

# search CONFIG WORLD KEYS...: writes out; sets keys, clock and the numbers of the result
search() {
    config=$1 world=$2
    shift 2
    "$TRAIN" plan "$config" --machine $machine --world "$world" --search "$file" --json "$@" \
        > "$work/out" 2> "$work/err" || fail "search $*"
    keys=$(value keys) clock=$(value clock) pipeline=$(value pipeline_ms) bound=$(value lower_bound_ms)
    placed=$(value placement_bound_ms)
    step=$(value step_ms) even=$(value step_ms 2) memory=$(value memory) layout=$(value layout)
}
holds() { awk "BEGIN { exit !($1) }" || fail "$2: not $1"; }

# planned "KEYS": the plan with the winner's keys has the step and the memory that were told
planned() {
    eval "\"\$TRAIN\" plan \"$config\" --machine $machine --world $world --json $1 $keys" > "$work/out" 2> "$work/err" ||
        fail "plan with $keys"
    holds "$(value step_ms) / $step > 1 - 1e-9 && $(value step_ms) / $step < 1 + 1e-9" "step of the plan"
    most=$(sed -n 's/.*"total": \([0-9]*\).*/\1/p' "$work/out" | sort -n | tail -n 1)
    [ "$most" = "$memory" ] || fail "$memory bytes told, $most planned"
    bubble=$(value bubble)
}

# measured "KEYS": the clock device takes the time that was told, and the stages those of the plan
measured() {
    eval "GRIDIRON_CLOCK=virtual \"\$TRAIN\" bubble \"$config\" --json --csv \"$work/cells.csv\" $1 $keys $clock" \
        > "$work/out" 2> "$work/err" || fail "bubble with $keys $clock"
    rate=$(sed -n '/"measured"/,/}/s/.*"step_rate": \([-0-9.e+]*\).*/\1/p' "$work/out")
    simulated=$(sed -n '/"simulated": {/,/}/s/.*"step_rate": \([-0-9.e+]*\).*/\1/p' "$work/out")
    lists=$(sed -n '/"simulated": {/,/}/s/.*"rate": \([-0-9.e+]*\).*/\1/p' "$work/out" | head -n 1)
    holds "$bubble - $lists < 2e-3 && $lists - $bubble < 2e-3" "the bubble of the plan"
    holds "$(value simulated_ms) / $pipeline > 0.99999 && $(value simulated_ms) / $pipeline < 1.00001" "the simulated step"
    holds "(1 - $simulated) / (1 - $rate) > 0.99 && (1 - $simulated) / (1 - $rate) < 1.01" "the measured step"
}

# A vocabulary whose head takes as long as several layers: it gets a rank of its own. Recomputing stays as it is given.
search "$work/gpt.yaml" 4 recompute_granularity=none
case $layout in *'|L') ;; *) fail "the head is not alone: $layout" ;; esac
holds "$pipeline >= $placed && $placed >= $bound && $pipeline < 1.06 * $bound && $even > 1.3 * $step" "the search"
planned ''
measured ''

# Experts in every second layer, over expert ranks
experts='num_moe_experts=4 moe_layer_freq=2 moe_router_topk=2 expert_model_parallel_size=2'
experts="$experts vocab_size=32000 hidden_size=1024 global_batch_size=48"
# shellcheck disable=SC2086
search "$work/gpt.yaml" 8 $experts
holds "$pipeline >= $bound && $pipeline < 1.1 * $bound" "the search with experts"
planned "$experts"
measured "$experts"

# A tensor group whose messages are hidden by whole backwards, and few microbatches: nothing is slower than interleaved
# 1F1B, and the run of the winner's lists is the one that was told. Layers need not divide.
group='tensor_model_parallel_size=4 sequence_parallel=true num_virtual_stages_per_pipeline_rank=1 pipeline_schedule=1f1b'
group="$group vocab_size=32000 hidden_size=4096 num_attention_heads=32 microbatch_group_size_per_vp_stage=null"
for more in global_batch_size=8 'global_batch_size=8 num_layers=13'; do
    # shellcheck disable=SC2086
    search "$work/gpt.yaml" 16 $group $more
    [ "$(value backward)" = whole ] || fail 'backwards are split'
    holds "$pipeline >= $placed && $placed >= $bound" "the search with $more"
    case $more in
    *num_layers*) grep -q '"equal_layers": null' "$work/out" || fail '13 layers are shared out equally' ;;
    *) holds "$step <= $even" 'beside interleaved 1F1B' ;;
    esac
    planned "$group $more"
    measured "$group $more"
done

# Layers that no number of stages divides, which the configuration shares out by cost: nothing of that is left in the
# keys. The lists may lie in any folder, whatever YAML and a shell make of its name.
mkdir "$work/it's #2" || exit 1
odd='recompute_granularity=none num_layers=13 pipeline_balance=cost pipeline_schedule=1f1b'
odd="$odd num_virtual_stages_per_pipeline_rank=1 microbatch_group_size_per_vp_stage=null"
file="$work/it's #2/lists.csv"
# shellcheck disable=SC2086
search "$work/gpt.yaml" 4 $odd
holds "$pipeline >= $bound && $pipeline < 1.1 * $bound" "the search by cost"
planned "$odd"
measured "$odd"
file=$work/lists.csv

# A head whose forward only waits for its weights: its time of computation is the difference of equal numbers
bare='num_layers=7 vocab_size=32000 activation=swiglu ffn_hidden_size=512 num_moe_experts=8 moe_ffn_hidden_size=16
    moe_layer_freq=2 expert_model_parallel_size=2 expert_tensor_parallel_size=1 seq_length=1024 global_batch_size=8
    untie_embeddings_and_output_weights=false add_bias_linear=true pipeline_balance=cost pipeline_schedule=1f1b
    num_virtual_stages_per_pipeline_rank=1 microbatch_group_size_per_vp_stage=null
    data_parallel_sharding_strategy=optim_grads_params'
machine=a100-80gb
# shellcheck disable=SC2086
search "$work/gpt.yaml" 8 $bare
holds "$pipeline >= $bound" "the search for a head that waits"
# shellcheck disable=SC2086
planned "$(echo $bare)"
machine=h100

# With memory for little more than 1F1B with full recomputation, what is found is as fast as that.
tiny "$work/tight.yaml" model.num_layers=4 model.hidden_size=512 model.seq_length=512 model.hidden_dropout=0.1 \
    model.untie_embeddings_and_output_weights=true moe.num_moe_experts=4 moe.moe_ffn_hidden_size=512 moe.moe_layer_freq=2 \
    train.global_batch_size=8 parallel.pipeline_model_parallel_size=4 precision.params_dtype=bf16
printf 'machine: {like: h100}\ndevice: {memory_gib: 0.0892, reserve_gib: 0}\n' > "$work/little.yaml"
"$TRAIN" plan "$work/tight.yaml" --world 4 --machine "$work/little.yaml" --search "$work/lists.csv" > "$work/out" 2> "$work/err" ||
    fail "little memory"
grep -q '^beside .*recomputing full' "$work/out" || fail "nothing recomputed: $(cat "$work/out")"
grep -q '^beside .* 1\.[0-9]* times as long' "$work/out" || fail "slower than 1F1B: $(cat "$work/out")"

# The winner trains as any other schedule.
tiny "$work/tiny.yaml" model.num_layers=6 model.untie_embeddings_and_output_weights=true train.global_batch_size=8 \
    parallel.pipeline_model_parallel_size=2 precision.params_dtype=fp64
search "$work/tiny.yaml" 2
"$TRAIN" tokenize parallel -o "$work/corpus" > "$work/out" 2>&1 || fail tokenize
eval "TRAIN=\"\$TRAIN\" scripts/launch -n 2 verify \"$work/tiny.yaml\" $keys --json" > "$work/out" 2> "$work/err" || fail "verify with $keys"

# refused CAUSE ARGS...
refused() {
    cause=$1
    shift
    "$TRAIN" plan "$work/gpt.yaml" --search "$work/lists.csv" "$@" > "$work/out" 2> "$work/err"
    code=$?
    { [ $code = 2 ] && grep -q "$cause.*; change: " "$work/err"; } || fail "exit $code: $*"
}
refused 'needs the times of a machine' --world 4
refused 'this one has one rank' --world 4 --machine h100 pipeline_model_parallel_size=1
refused 'are 14 units' --world 16 --machine h100 pipeline_model_parallel_size=16 pipeline_schedule=1f1b \
    num_virtual_stages_per_pipeline_rank=1 'pipeline_model_parallel_layout=E|(t|)*12||L' microbatch_group_size_per_vp_stage=null
refused 'counts the layers of a stage' --world 4 --machine h100 cpu_offloading_num_layers=1
refused 'has lists for one number' --world 4 --machine h100 global_batch_size=null \
    'step_batch_size_schedule=0:24 10M:48' microbatch_group_size_per_vp_stage=null
refused 'fits into the memory' --world 4 --machine h100 hidden_size=16384 num_attention_heads=128
exit 0
