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
grep -q ',no_shard,' "$work/fixed/sweep.csv" && ! grep -q ',[23],optim,.*,0$' "$work/fixed/sweep.csv" || fail "the fixed one is varied"

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
sweep none --world 4 tensor_model_parallel_size=3
[ $? = 2 ] && grep -q '^error\[sweep\] no layout of 4 ranks is legal .* or a size that is given' "$work/err" || fail "three of four ranks"
exit 0
