#!/bin/sh
# tests/checkpoint/families.sh -- a model imported from a Hugging Face directory keeps its family through a
# training run, a resume, a resume in another layout, and the export after each. It is the same model however
# its configuration is spelled.
set -e
work=${WORK:?}
"$TRAIN" tokenize src/*/a*.c -o "$work/corpus" > /dev/null 2>&1
cat > "$work/data.yaml" <<YAML
data: {data_path: $work/corpus, tokenizer_type: byte, split: '80, 20, 0'}
train: {micro_batch_size: 2, global_batch_size: 4, train_iters: 4, eval_iters: 1}
optimizer: {lr: 1e-3}
precision: {cpu_isa: ${ISA:-auto}}
YAML
sizes='num_layers: 2, hidden_size: 16, num_attention_heads: 2, seq_length: 16, hidden_dropout: 0, attention_dropout: 0'
{ echo "model: {$sizes, position_embedding_type: rope, normalization: RMSNorm, activation: swiglu, ffn_hidden_size: 32," \
       "add_bias_linear: false}"; cat "$work/data.yaml"; } > "$work/llama.yaml"
{ echo "model: {$sizes}"; cat "$work/data.yaml"; } > "$work/gpt2.yaml"

run() { "$TRAIN" "$@" > "$work/log" 2>&1 || { echo "train $*: exit $?"; cat "$work/log"; exit 1; }; }
family() { # CHECKPOINT: prints the family that its export names
    run export "$1" -o "$work/out"
    sed -n 's/.*"model_type": "\([a-z0-9]*\)".*/\1/p' "$work/out/config.json"
    rm -r "$work/out"
}
is_mistral() {
    f=$(family "$1")
    [ "$f" = mistral ] || { echo "$2: exported as $f, not mistral"; exit 1; }
}

run "$work/llama.yaml" "save=$work/seed" train_iters=1
run export "$work/seed" -o "$work/hf"
sed -i 's/"llama"/"mistral"/; s/LlamaForCausalLM/MistralForCausalLM/; s/"model_type"/"sliding_window": null, "model_type"/' "$work/hf/config.json"
run import "$work/hf" -o "$work/imported"
is_mistral "$work/imported" "imported"
"$TRAIN" "$work/llama.yaml" "load=$work/imported" "save=$work/run" exit_interval=2 > "$work/log" 2>&1 && rc=0 || rc=$?
[ $rc = 75 ] || { echo "exit_interval: $rc"; cat "$work/log"; exit 1; }
is_mistral "$work/run" "trained"
run "$work/llama.yaml" load=latest "save=$work/run" train_iters=3
is_mistral "$work/run" "resumed"
TRAIN=$TRAIN scripts/launch -n 2 "$work/llama.yaml" "load=$work/run" "save=$work/halves" tensor_model_parallel_size=2 \
    > "$work/log" 2>&1 || { echo "two ranks: exit $?"; cat "$work/log"; exit 1; }
is_mistral "$work/halves" "resumed on two ranks"
run "$work/llama.yaml" "load=$work/halves" finetune=true "save=$work/tuned" train_iters=1
is_mistral "$work/tuned" "fine-tuned"
run "$work/llama.yaml" "load=$work/seed" finetune=true "save=$work/other" train_iters=1
f=$(family "$work/other")
[ "$f" = llama ] || { echo "never a Mistral, exported as $f"; exit 1; }

# a run directory is exported from its newest whole checkpoint, and the damaged one is named
damaged() { # HOW: the newest checkpoint of the run was damaged so, by the standard input
    cp -r "$work/run" "$work/hurt"
    (cd "$work"/hurt/checkpoints/iter_0000003 && sh -e)
    run export "$work/hurt" -o "$work/out"
    grep -q '^warning: .*iter_0000003: .*taking the checkpoint before it' "$work/log" && grep -q 'from .*iter_0000002$' "$work/log" &&
        diff -r "$work/before" "$work/out" || { echo "$1: not the checkpoint before it"; cat "$work/log"; exit 1; }
    rm -r "$work/hurt" "$work/out"
}
run export "$work/run/checkpoints/iter_0000002" -o "$work/before//"      # as a shell completes it
echo 'echo x >> manifest.json' | damaged "a changed manifest"
echo 'truncate -s -1 model-00000.safetensors' | damaged "a short file"
echo 'rm optim-00000.safetensors' | damaged "a file that is gone"
echo 'printf "\377\377\377\377" | dd of=model-00000.safetensors bs=1 conv=notrunc \
    seek=$(($(stat -c %s model-00000.safetensors) - 4)) 2> /dev/null' | damaged "changed weights"
for it in 2 3; do echo x >> "$work/run/checkpoints/iter_000000$it/manifest.json"; done
"$TRAIN" export "$work/run" -o "$work/out" > "$work/log" 2>&1 && rc=0 || rc=$?
[ $rc = 4 ] && [ "$(grep -c '^error' "$work/log")" = 1 ] || { echo "all are damaged: exit $rc"; cat "$work/log"; exit 1; }

# one model, spelled in several ways
run "$work/gpt2.yaml" "save=$work/gpt" train_iters=2
run export "$work/gpt" -o "$work/hf2"
run import "$work/hf2" -o "$work/imported2"
for spelled in add_qkv_bias=true rotary_base=5000 window_size=16 'num_query_groups=2 kv_channels=8 ffn_hidden_size=64' \
    vocab_size=257 "split='80,20,0'"; do
    # shellcheck disable=SC2086
    run eval "$work/gpt2.yaml" "load=$work/imported2" $spelled
    grep -q warning "$work/log" && { echo "$spelled: a warning"; cat "$work/log"; exit 1; }
    # shellcheck disable=SC2086
    run "$work/gpt2.yaml" "load=$work/gpt" "save=$work/again" $spelled train_iters=2
    grep -q settings "$work/log" && { echo "$spelled: other settings"; cat "$work/log"; exit 1; }
    rm -r "$work/again"
done
run "$work/llama.yaml" "load=$work/seed" "save=$work/again" max_position_embeddings=32 train_iters=1
refused() { # KEY ARGUMENT...: eval with these arguments is refused because of KEY
    key=$1; shift
    "$TRAIN" eval "$@" > "$work/log" 2>&1 && rc=0 || rc=$?
    [ $rc = 4 ] && grep -q "holds another model: .*$key is" "$work/log" || { echo "$*: exit $rc"; cat "$work/log"; exit 1; }
}
refused add_bias_linear "$work/gpt2.yaml" "load=$work/imported2" add_bias_linear=false add_qkv_bias=true
refused add_qkv_bias "$work/llama.yaml" "load=$work/imported" add_qkv_bias=true
# what the same weights are to compute may be set anew: a rule that is broken by it is told as such
"$TRAIN" eval "$work/llama.yaml" "load=$work/imported" rope_scaling=yarn > "$work/log" 2>&1 && rc=0 || rc=$?
[ $rc = 2 ] && grep -q 'rope_scaling_factor: missing; rope_scaling yarn needs it' "$work/log" ||
    { echo "yarn without a factor: exit $rc"; cat "$work/log"; exit 1; }
run eval "$work/llama.yaml" "load=$work/imported" rope_scaling=linear rope_scaling_factor=2
grep -q '^warning: .*rope_scaling was none for these weights and is linear here' "$work/log" || { cat "$work/log"; exit 1; }

# end-of-document is the directory's eos_token_id, the first of several; a configuration that leaves out the
# model, and a resume, have it too. An id that the vocabulary lacks is not taken.
wide="$work/data.yaml tokenizer_type=none reset_attention_mask=true train_iters=2"
run "$work/llama.yaml" tokenizer_type=none vocab_size=300 "save=$work/wide" train_iters=1
run export "$work/wide" -o "$work/hf4"
# imports EOS ID: with this eos_token_id, end-of-document is ID
imports() {
    rm -rf "$work/imported4" "$work/ends" "$work/named"
    sed -i "s/\"eos_token_id\": *\(\[[^]]*\]\|[^,}]*\)/\"eos_token_id\": $1/" "$work/hf4/config.json"
    run import "$work/hf4" -o "$work/imported4"
    grep -q "^  null_tokenizer_eod_id: $2\$" "$work/imported4/config.yaml" ||
        { echo "eos_token_id $1:"; grep eod_id "$work/imported4/config.yaml"; exit 1; }
}
# a model that was trained here has the id that its configuration names
run "$work/llama.yaml" tokenizer_type=none vocab_size=300 null_tokenizer_eod_id=7 "save=$work/ours" train_iters=1
run export "$work/ours" -o "$work/hf5"
for file in config.json generation_config.json; do
    grep -q '"eos_token_id": 7,\?$' "$work/hf5/$file" || { echo "$file: end-of-document is not 7"; exit 1; }
done
imports null null
run generate "$work/imported4" --prompt-ids 5,6,7 --tokens 8 --temperature 0
cp "$work/log" "$work/theirs"
run generate "$work/wide" --prompt-ids 5,6,7 --tokens 8 --temperature 0
cmp "$work/log" "$work/theirs" && grep -q '^5 6 7 ' "$work/log" || { echo "an imported model continues ids otherwise"; exit 1; }
imports 300 null
imports 32 32
imports '[101, 32]' 101
# shellcheck disable=SC2086
"$TRAIN" $wide "load=$work/imported4" "save=$work/ends" exit_interval=1 > "$work/log" 2>&1 && rc=0 || rc=$?
[ $rc = 75 ] || { echo "exit_interval: $rc"; cat "$work/log"; exit 1; }
# shellcheck disable=SC2086
run $wide "load=$work/imported4" "save=$work/named" null_tokenizer_eod_id=101
# shellcheck disable=SC2086
run $wide load=latest "save=$work/ends"
! grep -q settings "$work/log" || { echo "a resume has another end-of-document"; cat "$work/log"; exit 1; }
last_loss() { sed -n 's/.*"lm_loss": \([0-9.]*\).*/\1/p' "$1/metrics.jsonl" | tail -n 1; }
[ "$(last_loss "$work/ends")" = "$(last_loss "$work/named")" ] && grep -q 'eod_id: 101' "$work/ends/config.yaml" ||
    { echo "end-of-document is not the checkpoint's"; exit 1; }

# a reason that is cut within a character is said
mkdir "$work/strange"
printf '{"model_type": "x%s"}' "$(printf '\303\251%.0s' $(seq 60))" > "$work/strange/config.json"
"$TRAIN" inspect "$work/strange" --json > "$work/log" 2>&1 && rc=0 || rc=$?
grep -q '"cannot_express": "' "$work/log" || { echo "inspect does not say why it cannot import"; cat "$work/log"; exit 1; }

# inspect counts all parameters and those that a token visits: two layers of four experts, of which it visits two
run "$work/llama.yaml" num_moe_experts=4 moe_router_topk=2 moe_ffn_hidden_size=8 \
    "save=$work/moe" train_iters=1
run export "$work/moe" -o "$work/hf3"
for path in "$work/hf3" "$work/moe/checkpoints/iter_0000001" "$work/hf2"; do
    run inspect "$path" --json
    all=$(sed -n 's/.*"parameters": \([0-9]*\).*/\1/p' "$work/log" | head -n 1)
    active=$(sed -n 's/.*"active_parameters": \([0-9]*\).*/\1/p' "$work/log")
    elements=$(sed -n 's/.*"F32": \([0-9]*\).*/\1/p' "$work/log")
    case $path in
    *hf3) [ "$all" = "$elements" ] && [ "$active" = $((all - 2 * 2 * 3 * 16 * 8)) ] ;;
    *iter*) [ "$active" = $((all - 2 * 2 * 3 * 16 * 8)) ] ;;
    *) [ "$all" = "$elements" ] && [ -z "$active" ] ;;
    esac || { echo "inspect $path: $all parameters, $active active, $elements elements"; cat "$work/log"; exit 1; }
done
# a directory lacks a file that its index names: it is not whole
run export "$work/moe" -o "$work/hf6" --shard-bytes 9000
run inspect "$work/hf6"
rm "$work/hf6/model-00002-of-"*
"$TRAIN" inspect "$work/hf6" > "$work/log" 2>&1 && rc=0 || rc=$?
[ $rc = 1 ] && grep -q 'whole  *no' "$work/log" && grep -q 'cannot open model-00002-of' "$work/log" ||
    { echo "inspect of a directory without its second file: exit $rc"; cat "$work/log"; exit 1; }
echo "families kept, spellings agree"
