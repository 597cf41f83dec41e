#!/bin/sh
# tests/plan/sweep_keys.sh -- what a sweep chooses, ranks and refuses without measuring: overlap, sizes of the file that
# divide nothing, several worlds, objectives, the smallest world in which a model fits.
work=${WORK:?}
fail() { echo "# $1"; [ ! -f "$work/err" ] || sed 's/^/#   /' "$work/err"; exit 1; }
cat > "$work/gpt.yaml" <<'YAML'
model: {num_layers: 4, hidden_size: 512, num_attention_heads: 8, seq_length: 128, vocab_size: 8192}
data: {tokenizer_type: none}
train: {micro_batch_size: 1, global_batch_size: 16}
precision: {params_dtype: bf16}
YAML
# a network so slow that the data group's messages matter
cat > "$work/slow.yaml" <<'YAML'
machine: {name: for a test}
device: {matmul_tflops: 10, matmul_tflops_fp32: 5, matmul_efficiency: [1e6, 0.5], attention_forward: 0.5, attention_backward: 0.5,
         memory_gbps: 500, memory_efficiency: [1e6, 1], launch_us: 2, memory_gib: 4, reserve_gib: 1, reserve_alone_gib: 1}
node: {ranks: 4, link_gbps: 20, link_latency_us: 5}
network: {network_gbps: 2, network_latency_us: 10, overlap: 0.8}
YAML
# sweep FOLDER ARGS...: without launches
sweep() {
    folder=$1
    shift
    "$TRAIN" sweep "$work/gpt.yaml" --machine "$work/slow.yaml" -o "$work/$folder" "$@" > "$work/out" 2> "$work/err"
}
# a table that cannot be written is told of before anything is predicted or measured
sweep nowhere --world 4 --csv "$work/no/table.csv" && fail "a table in a folder that is not there"
[ $? = 5 ] && grep -q '^error\[write\] cannot write .*no/table.csv: No such file.*; change: --csv with a file' "$work/err" && [ ! -e "$work/nowhere" ] ||
    fail "a table in a folder that is not there: what is said, or a folder is left"
# column NAME: the number of a column of sweep.csv
column() { head -n 1 "$csv" | tr ',' '\n' | grep -n "^$1\$" | cut -d: -f1; }
# layouts FOLDER: predicted ms, and all that names a layout but what overlaps, of those that fit, best first
layouts() {
    csv=$work/$1/sweep.csv
    awk -F, -v ms="$(column predicted_ms)" -v cp="$(column cp)" -v state="$(column state)" 'NR > 1 && $state == "\"predicted\"" {
        print $ms, $1, $2, $3, $4, $5, $6, $7, $8, $cp, $(cp + 1), $(cp + 2), $(cp + 3) }' "$csv"
}

# overlap: of the best fifty layouts each has the fastest of the settings that are legal for it, or one within a thousandth
sweep varied --world 8 || fail "sweep"
for grads in false true; do
    for params in false true; do
        [ $grads$params != falsetrue ] || continue
        sweep $grads$params --world 8 overlap_grad_reduce=$grads overlap_param_gather=$params || fail "overlap $grads $params"
        layouts $grads$params >> "$work/each"
    done
done
layouts varied > "$work/varied.txt"
[ "$(wc -l < "$work/varied.txt")" -gt 150 ] || fail "too few layouts for a choice: $(wc -l < "$work/varied.txt")"
awk '{ key = $0; sub(/^[^ ]* /, "", key) }
    NR == FNR { if (!(key in best) || $1 < best[key]) best[key] = $1; next }
    FNR <= 50 { n++; if ($1 > 1.0011 * best[key] || $1 < 0.99999 * best[key]) print "not the best setting", $0, best[key]; last = $1 }
    { delete best[key] }
    END { for (key in best) if (best[key] < 0.999 * last) print "left out", key, best[key]; exit n != 50 }' \
    "$work/each" "$work/varied.txt" > "$work/wrong" || fail "fewer than 50"
[ ! -s "$work/wrong" ] || fail "overlap: $(head -n 3 "$work/wrong")"
csv=$work/varied/sweep.csv
awk -F, -v g="$(column overlap_grad_reduce)" -v p="$(column overlap_param_gather)" -v zero="$(column zero)" -v cp="$(column cp)" '
    NR > 1 { n[$g $p]++; if ($p > $g || ($p && $zero == "no_shard") || ($g && $5 * $cp == 1)) bad++ }
    END { exit bad || !n["00"] || !n["10"] || !n["11"] }' "$csv" || fail "settings that are not legal, or never chosen"
sweep fixed --world 8 overlap_param_gather=true data_parallel_sharding_strategy=optim context_parallel_size=1 || fail "a fixed one"
csv=$work/fixed/sweep.csv
awk -F, -v p="$(column overlap_param_gather)" -v zero="$(column zero)" -v state="$(column state)" '
    NR > 1 && $state == "\"predicted\"" { n[$zero]++; if ($zero == "optim" && !$p) bad++ }
    END { exit bad || !n["no_shard"] || !n["optim"] }' "$csv" || fail "the fixed one is varied"

# sizes of the file that divide nothing are swept like any others; on the command line they leave no layout
cat "$work/gpt.yaml" > "$work/plain.yaml"
sweep plain --world 4 || fail "plain"
for sizes in 'tensor_model_parallel_size: 3, pipeline_model_parallel_size: 3' 'overlap_param_gather: true' \
    'context_parallel_size: 64, expert_model_parallel_size: 7'; do
    { cat "$work/plain.yaml"; echo "parallel: {$sizes}"; } > "$work/gpt.yaml"
    sweep odd --world 4 || fail "sizes of the file: $sizes"
    cmp -s "$work/odd/sweep.csv" "$work/plain/sweep.csv" || fail "sizes of the file change the sweep: $sizes"
done
cp "$work/plain.yaml" "$work/gpt.yaml"
# recompute_modules goes with selective alone: the other layouts are swept without it, in the file as on the command line
{ cat "$work/plain.yaml"; echo "recompute: {recompute_granularity: selective, recompute_modules: [mlp, layernorm]}"; } > "$work/gpt.yaml"
sweep modules --world 4 || fail "recompute_modules in the file"
layouts modules | cut -d' ' -f2- | sort > "$work/modules.txt"
layouts plain | cut -d' ' -f2- | sort | cmp -s - "$work/modules.txt" || fail "recompute_modules of the file leaves layouts out"
cp "$work/plain.yaml" "$work/gpt.yaml"
sweep line --world 4 'recompute_modules=[mlp, layernorm]' || fail "recompute_modules on the command line"
cmp -s "$work/line/sweep.csv" "$work/modules/sweep.csv" || fail "recompute_modules of file and command line are not the same"

# planned FOLDER ARGS...: the winner's keys, pasted into a plan, give the time that the sweep printed
planned() {
    folder=$1
    shift
    sweep "$folder" --world 4 "$@" || fail "sweep $*"
    sed -n 's/^  \([a-z_]*\): \([^ ]*\)$/\1=\2/p' "$work/out" > "$work/keys"
    # shellcheck disable=SC2046
    "$TRAIN" plan "$work/gpt.yaml" --world 4 --machine "$work/slow.yaml" "$@" $(cat "$work/keys") --json > "$work/plan" 2> "$work/err" ||
        fail "no plan with $*, $(cat "$work/keys")"
    ms=$(sed -n 's/^  "step_ms": \([0-9.]*\),/\1/p' "$work/plan")
    grep -q "\"predicted_ms\": $ms,\{0,1\}$" "$work/$folder/sweep.json" || fail "$*: $ms ms is not what the sweep says"
}
planned full 'recompute_modules=[mlp]' recompute_granularity=full pipeline_model_parallel_size=2
# pipeline_balance cost: layers are split by predicted times, as in a plan, and need not divide
sweep even --world 4 num_layers=7 pipeline_model_parallel_size=2 num_virtual_stages_per_pipeline_rank=1 && fail "7 layers of 2 stages"
planned cost num_layers=7 pipeline_model_parallel_size=2 num_virtual_stages_per_pipeline_rank=1 pipeline_balance=cost
planned chunks num_layers=7 pipeline_model_parallel_size=2 num_virtual_stages_per_pipeline_rank=2 pipeline_balance=cost micro_batch_size=2

sweep none --world 4 tensor_model_parallel_size=3
[ $? = 2 ] && grep -q '^error\[sweep\] no layout of 4 ranks is legal .* or a size that is given' "$work/err" || fail "three of four ranks"
# sizes of a2a+p2p that are given stay, too: they are none of the kind p2p, which is the file's
sweep sizes --world 4 context_parallel_size=4 'hierarchical_context_parallel_sizes=[2, 2]' && fail "sizes of a kind that is not given"
sweep sizes --world 4 context_parallel_size=4 'hierarchical_context_parallel_sizes=[2, 2]' 'cp_comm_type=[a2a+p2p]' || fail "a2a+p2p"

# several worlds: one list, efficiency beside the best of the smallest world; a world where nothing is legal is none
sweep worlds --world 8,2,6,4 tensor_model_parallel_size=2 recompute_granularity=none || fail "worlds"
csv=$work/worlds/sweep.csv
awk -F, -v ms="$(column predicted_ms)" -v world="$(column world)" -v speed="$(column predicted_tokens_per_second)" \
    -v e="$(column predicted_efficiency_percent)" -v measured="$(column measured_tokens_per_second)" '
    NR > 1 { n[$world]++; if ($measured != "") bad = "measured" }
    NR > 1 && $speed > 0 { of[NR] = $speed / $world; percent[NR] = $e; if ($world == 2 && of[NR] > base) base = of[NR]
        if ($ms < last) bad = "order"; last = $ms; d = $speed * $ms / 1e3 / (16 * 128); if (d < 0.99999 || d > 1.00001) bad = "speed" }
    END { for (i in of) { d = percent[i] - 100 * of[i] / base; if (d > 1e-3 || d < -1e-3) bad = "efficiency " i " " percent[i] }
          if (n[2] < 2 || n[4] < 4 || n[8] < 8 || n[6] || bad) { print bad, n[2], n[4], n[6], n[8]; exit 1 } }' "$csv" > "$work/err" || fail worlds
grep -q '^ *2 *16 .* 100.0 %$' "$work/out" && grep -q '^0 legal layouts of 6 ranks' "$work/out" || fail "$(cat "$work/out")"
grep -q 'The best layout of each world' "$work/worlds/sweep.html" || fail "no table of the worlds"
# weak scaling: each world has its share of the batch
sweep weak --world 2,3,4 --weak-scaling pipeline_model_parallel_size=1 recompute_granularity=none || fail "weak"
cut -d, -f20,21 "$work/weak/sweep.csv" | sort -u | tr '\n' ';' > "$work/err"
grep -q '^2,16;3,24;4,32;world,global_batch_size;$' "$work/err" || fail "batches"
sweep weak --world 4,3 --weak-scaling && fail "16 x 4 / 3 sequences"
grep -q '^error\[sweep\] --weak-scaling cannot give 4 ranks 4/3 of the batch of 16' "$work/err" || fail "no word of the batch"

# objectives: who has no price or no watts is told which key; the order is that of the cost
for objective in cost energy; do
    key=price_per_hour
    [ $objective = cost ] || key=watts
    sweep none --world 2,4 --objective $objective
    [ $? = 2 ] && grep -q "^error\[sweep\] --objective $objective needs .* $key.*; change: .*$key" "$work/err" || fail "$objective without $key"
done
sed -i 's/^device: {/&watts: 500, /; s/^machine: {/&price_per_hour: 3, /' "$work/slow.yaml"
ordered() {        # COLUMN DEFINITION: the column goes upward, and is what the definition says
    csv=$work/$3/sweep.csv
    awk -F, -v at="$(column "$1")" -v world="$(column world)" -v speed="$(column predicted_tokens_per_second)" '
        NR > 1 && $speed > 0 { x = '"$2"'; if ($at < last || $at > 1.00001 * x || $at < 0.99999 * x) { print NR, $at, x, last; exit 1 }
            last = $at; worlds[$world] } END { exit !(NR > 9 && (2 in worlds) && (4 in worlds)) }' "$csv" > "$work/err" || fail "$1"
}
sweep cost --world 2,4 --objective cost || fail "cost"
ordered predicted_cost_per_million_tokens '3 * $world / ($speed * 3600) * 1e6' cost
sweep dear --world 2,4 --objective cost --price 30 || fail "dear"
ordered predicted_cost_per_million_tokens '30 * $world / ($speed * 3600) * 1e6' dear
sweep energy --world 2,4 --objective energy || fail "energy"
ordered predicted_kwh_per_million_tokens '500 * $world / $speed / 3.6' energy
sweep fast --world 2,4 || fail "tokens"
[ "$(sed -n '2s/,.*//p' "$work/fast/sweep.csv")" ] && ! cmp -s "$work/fast/sweep.csv" "$work/cost/sweep.csv" || fail "cost changes nothing"

# the smallest world: a layout of it fits, and of half of it none does, in a sweep of everything
for gib in 1.2 1.1 1.05; do
    sed "s/memory_gib: 4/memory_gib: $gib/" "$work/slow.yaml" > "$work/little.yaml"
    "$TRAIN" sweep "$work/gpt.yaml" --machine "$work/little.yaml" --smallest-world --json > "$work/out" 2> "$work/err" ||
        fail "smallest world of $gib GiB"
    world=$(sed -n 's/^  "smallest_world": \([0-9]*\),/\1/p' "$work/out")
    [ "$world" -gt 1 ] || fail "$gib GiB: $world"
    echo "# $gib GiB: $world ranks"
    for w in $world $((world / 2)); do
        "$TRAIN" sweep "$work/gpt.yaml" --machine "$work/little.yaml" --world "$w" --json -o "$work/w" > "$work/out" 2> "$work/err" || fail "$w"
        fit=$(sed -n 's/^  "fit": \([0-9]*\),/\1/p' "$work/out")
        [ "$w" = "$world" ] && [ "$fit" -gt 0 ] || { [ "$w" != "$world" ] && [ "$fit" = 0 ]; } || fail "$gib GiB, $w ranks: $fit fit"
    done
done
# published models in bf16 on H100, and that worlds may be named
llama="position_embedding_type=rope normalization=RMSNorm activation=swiglu add_bias_linear=false vocab_size=32000 seq_length=4096
    untie_embeddings_and_output_weights=true global_batch_size=1024"
needs() {
    ranks=$1
    shift
    # shellcheck disable=SC2086
    "$TRAIN" sweep "$work/gpt.yaml" --machine h100 --smallest-world $llama "$@" > "$work/out" 2> "$work/err" || fail "$*"
    grep -q "^$ranks ranks of h100: " "$work/out" || fail "$*: $(cat "$work/out")"
    grep -q "^next .* --machine h100.* $1 .*ranks all" "$work/out" || fail "$*: the next command is of another model"
}
seven='num_layers=32 hidden_size=4096 num_attention_heads=32 ffn_hidden_size=11008'
# shellcheck disable=SC2086
{
    needs 2 $seven
    needs 3 $seven --world 12,3,6 global_batch_size=1026
}
# the next command has the sizes that were given, and none that stands for one rank where those of the file divide nothing
{ cat "$work/plain.yaml"; echo "parallel: {tensor_model_parallel_size: 3, pipeline_model_parallel_size: 3}"; } > "$work/gpt.yaml"
# shellcheck disable=SC2086
"$TRAIN" sweep "$work/gpt.yaml" --machine h100 --smallest-world $llama $seven pipeline_model_parallel_size=1 'recompute_modules=[mlp]' \
    > "$work/out" 2> "$work/err" || fail "sizes given"
next=$(grep '^next' "$work/out")
for key in tensor_model_parallel_size=1 recompute_granularity= micro_batch_size=; do
    case $next in *"$key"*) fail "$key was not given: $next" ;; esac
done
case $next in *" pipeline_model_parallel_size=1 'recompute_modules=[mlp]' ranks all layouts") ;; *) fail "other sizes: $next" ;; esac
cp "$work/plain.yaml" "$work/gpt.yaml"
needs 4 num_layers=40 hidden_size=5120 num_attention_heads=40 ffn_hidden_size=13824
needs 16 num_layers=80 hidden_size=8192 num_attention_heads=64 num_query_groups=8 ffn_hidden_size=28672
needs 128 num_layers=126 hidden_size=16384 num_attention_heads=128 num_query_groups=8 ffn_hidden_size=53248 --world 64,128
# a path that a shell would cut
cp "$work/gpt.yaml" "$work/a gpt.yaml"
# shellcheck disable=SC2086
"$TRAIN" sweep "$work/a gpt.yaml" --machine h100 --smallest-world $llama $seven > "$work/out" 2> "$work/err" || fail "a path"
grep -Fq "train sweep '$work/a gpt.yaml' --world 2 --machine h100 " "$work/out" || fail "$(grep '^next' "$work/out")"

# a folder in which another sweep is at work stays as it is: not even the machine is measured into it
mkdir "$work/held"
flock "$work/held/sweep.jsonl" "$TRAIN" sweep "$work/gpt.yaml" --world 1 -o "$work/held" > "$work/out" 2> "$work/err"
[ $? = 5 ] && grep -q '^error\[sweep\] another sweep is at work .*; change: ' "$work/err" && [ "$(wc -l < "$work/err")" = 1 ] &&
    [ "$(ls "$work/held")" = sweep.jsonl ] || fail "a folder of another sweep"

refused() {
    "$TRAIN" sweep "$work/gpt.yaml" "$@" > "$work/out" 2> "$work/err"
    rc=$?
    [ $rc = 2 ] && [ "$(grep -c '^error\[.*; change: ' "$work/err")" = 1 ] || fail "$*: $rc"
}
for list in 4,4 0 x 4, ,4 4,,2 99999 4x; do
    refused --machine h100 --world $list
done
refused --machine h100 --objective speed
refused --smallest-world
refused --smallest-world --machine h100 --measure 1
refused --smallest-world --machine h100 --world 1 hidden_size=16384 num_layers=100
exit 0
