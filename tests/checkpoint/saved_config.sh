#!/bin/sh
# tests/checkpoint/saved_config.sh -- keys that a checkpoint holds need not be given again. Import writes a
# configuration, a configuration may leave the model out when it loads a checkpoint, and commands that read a
# run need no configuration, in any layout.
set -e
work=${WORK:?}
. tests/tiny.sh
fail() { echo "$*"; cat "$work/log"; exit 1; }
"$TRAIN" tokenize src/*/a*.c -o "$work/corpus" > /dev/null 2>&1
tiny "$work/whole.yaml" model.hidden_size=16 model.num_attention_heads=2 model.num_query_groups=1 \
    model.position_embedding_type=rope model.max_position_embeddings=64 model.normalization=RMSNorm \
    model.activation=swiglu model.ffn_hidden_size=48 model.add_bias_linear=false model.hidden_dropout=0 \
    model.attention_dropout=0 data.split="'80, 20, 0'" train.micro_batch_size=2 train.global_batch_size=4 \
    train.train_iters=4 train.eval_interval=4 train.eval_iters=2 optimizer.lr=1e-3
sed '/^model:/d' "$work/whole.yaml" > "$work/mine.yaml"
run() { "$TRAIN" "$@" > "$work/log" 2>&1 || fail "train $*: exit $?"; }
exits() { # CODE WORDS COMMAND...: ends with CODE, and its output has WORDS
    want=$1 words=$2; shift 2
    "$TRAIN" "$@" > "$work/log" 2>&1 && rc=0 || rc=$?
    [ $rc = "$want" ] && grep -q "$words" "$work/log" || fail "train $*: exit $rc, not $want with '$words'"
}
loss() { sed -n 's/.*"valid_loss": \([0-9.]*\).*/\1/p' "$1" | tail -n 1; }

# a run of four ranks; one rank without a configuration finds the same loss
export OMPI_MCA_rmaps_base_oversubscribe=1
TRAIN=$TRAIN scripts/launch -n 4 "$work/whole.yaml" "save=$work/run" tensor_model_parallel_size=2 \
    pipeline_model_parallel_size=2 > "$work/log" 2>&1 || fail "four ranks: exit $?"
run eval "load=$work/run" --json
echo "$(loss "$work/run/metrics.jsonl") $(loss "$work/log")" | awk '{ d = $1 - $2; exit !($1 > 1 && d * d < 1e-8) }' ||
    fail "another loss without a configuration"
run eval "$work/run" "valid_data_path=$work/corpus" --json
run generate "load=$work/run" --prompt "int " --tokens 8 --temperature 0
cp "$work/log" "$work/text"
run generate "$work/whole.yaml" "load=$work/run" --prompt "int " --tokens 8 --temperature 0
cmp "$work/log" "$work/text" || fail "another text without a configuration"
TRAIN=$TRAIN scripts/launch -n 2 generate "load=$work/run" --prompt "int " --tokens 8 --temperature 0 \
    tensor_model_parallel_size=2 > "$work/log" 2>&1 || fail "generate on two ranks: exit $?"
cmp "$work/log" "$work/text" || fail "another text on two ranks"
# the run's report shows the samples
[ "$(grep -c '"iteration":4,"prompt":"int ","text":"' "$work/run/samples.jsonl")" = 3 ] || fail "samples.jsonl: $(cat "$work/run/samples.jsonl")"
[ "$(grep -c '<blockquote><b>int </b>' "$work/run/report.html")" = 3 ] || fail "no sample in the report"
TRAIN=$TRAIN scripts/launch -n 3 generate "load=$work/run" --prompt "int " --tokens 8 --temperature 0 \
    > "$work/log" 2>&1 || fail "generate on three ranks, whose batch 4 is no multiple of 3: exit $?"
cmp "$work/log" "$work/text" || fail "another text on three ranks"
# a text whose write was cut off, as on a full disk, does not take the next one with it
printf '{"iteration":4,"prompt":"cut' >> "$work/run/samples.jsonl"
run generate "load=$work/run" --prompt "next " --tokens 8 --temperature 0
tail -n 1 "$work/run/samples.jsonl" | grep -q '^{"iteration":4,"prompt":"next ".*}$' || fail "$(cat "$work/run/samples.jsonl")"
grep -q '<blockquote><b>next </b>' "$work/run/report.html" || fail "the report lacks a text behind one that was cut off"
# and in the run's number formats, unless others are given
run "$work/whole.yaml" "save=$work/half" params_dtype=bf16
run eval "load=$work/half" cpu_isa="${ISA:-auto}" --json
echo "$(loss "$work/half/metrics.jsonl") $(loss "$work/log")" | awk '{ d = $1 - $2; exit !($1 > 1 && d * d < 1e-18) }' ||
    fail "another loss of a run in bf16 without a configuration"
run eval "load=$work/half" params_dtype=fp64 --json
echo "$(loss "$work/half/metrics.jsonl") $(loss "$work/log")" | awk '{ d = $1 - $2; exit !($1 > 1 && d * d > 1e-18) }' ||
    fail "bf16, although fp64 was asked for"
# the batch in one of its two ways, whichever the run had
tokens() { grep -q "\"tokens\": $1," "$work/log" || fail "not $1 tokens: batch $2"; }
run "$work/whole.yaml" "save=$work/grown" global_batch_size=null "step_batch_size_schedule='0:2 200:8'"
run eval "load=$work/grown" eval_iters=1 --json
tokens 256 "of the run's end"
run eval "load=$work/grown" eval_iters=1 global_batch_size=6 --json
tokens 192 "given for a run that had a schedule"
run eval "load=$work/run" eval_iters=1 "step_batch_size_schedule='0:12'" --json
tokens 384 "by a schedule for a run that had none"

run inspect "$work/run"
run export "$work/run" -o "$work/hf"

# the configuration that import writes, unchanged
run import "$work/hf" -o "$work/start"
grep -E '^[a-z]' "$work/start/config.yaml" > "$work/log"
[ "$(tr -d '\n' < "$work/log")" = model:data: ] || fail "sections of import's config.yaml"
run plan "$work/start/config.yaml"
run generate "$work/start/config.yaml" "load=$work/start" --tokens 8
run generate "load=$work/start" --tokens 8
[ ! -e "$work/start/samples.jsonl" ] || fail "a sample beside a checkpoint that is no run's"
run eval "$work/start/config.yaml" "load=$work/start" "data_path=$work/corpus" eval_iters=1 "split='80, 20'"
run eval "load=$work/start" "data_path=$work/corpus" eval_iters=1 "split='80, 20'"
run "$work/start/config.yaml" "load=$work/start" "data_path=$work/corpus" lr=1e-3 train_iters=2 "save=$work/from_import"
exits 4 "holds a checkpoint already" import "$work/hf" -o "$work/run"
mkdir "$work/mine" && cp "$work/whole.yaml" "$work/mine/config.yaml"
exits 4 "config.yaml is there already" import "$work/hf" -o "$work/mine"

# a model of Llama 3.1's shape keeps its rope_scaling; a kind that is given takes none of its keys from the checkpoint
run import tests/golden/llama3 -o "$work/llama3"
llama3() { run eval "load=$work/llama3" data_path=tests/golden/corpus "split='1, 1'" eval_iters=1 seq_length=17 "$@"; }
llama3
grep -q warning "$work/log" && fail "a warning about its own rope_scaling"
cp "$work/log" "$work/text"
llama3 rope_scaling=llama3 rope_scaling_factor=4 rope_original_max_position_embeddings=12 rope_low_freq_factor=0.75 \
    rope_high_freq_factor=1.5
cmp "$work/log" "$work/text" || fail "another loss with the same rope_scaling"
llama3 rope_scaling=linear rope_scaling_factor=2
grep -q 'warning: .* rope_scaling was llama3 for these weights and is linear here' "$work/log" || fail "no warning of rope_scaling"
exits 2 "rope_scaling_factor: missing; rope_scaling yarn needs it" eval "load=$work/llama3" data_path=tests/golden/corpus "split='1, 1'" \
    eval_iters=1 rope_scaling=yarn

# a configuration without a model takes the checkpoint's; keys of the model that it gives must agree with it
run "$work/mine.yaml" "load=$work/start" "save=$work/tuned"
grep -q 'ffn_hidden_size: 48' "$work/tuned/config.yaml" || fail "the model of config.yaml"
grep -q 'hidden_dropout: 0$' "$work/tuned/config.yaml" || fail "the dropout of config.yaml"
TRAIN=$TRAIN scripts/launch -n 2 "$work/mine.yaml" "load=$work/start" "save=$work/tuned2" > "$work/log" 2>&1 ||
    fail "two ranks: exit $?"
run "$work/mine.yaml" load=latest "save=$work/tuned" train_iters=5
run plan "$work/mine.yaml" "load=$work/tuned"
# so do the changes, hints and layouts that plan and sweep try
for model in mine whole; do
    run plan "$work/$model.yaml" "load=$work/run" --world 2 --machine h100 --explain
    cp "$work/log" "$work/$model.explained"
    run plan "$work/$model.yaml" "load=$work/run" --world 3 pipeline_model_parallel_size=3 --machine h100 --search "$work/lists.csv"
    grep -v "^keys" "$work/log" > "$work/$model.searched"
    run sweep "$work/$model.yaml" "load=$work/run" --world 2 --machine h100 -o "$work/$model-sweep"
done
grep -q '^changes ' "$work/mine.explained" && diff "$work/mine.explained" "$work/whole.explained" || fail "other changes without a model"
cmp "$work/mine.searched" "$work/whole.searched" || fail "another search without a model"
cmp "$work/mine-sweep/sweep.csv" "$work/whole-sweep/sweep.csv" || fail "another sweep without a model"
run sweep "$work/mine.yaml" "load=$work/run" --world 2 --machine h100 -o "$work/mine-sweep" --measure 1 --rounds 1 --steps 3
grep -q '^1 measured' "$work/log" || fail "no layout was measured without a model"
exits 2 "load: nothing there .*$work/none holds no checkpoint" sweep "$work/mine.yaml" "load=$work/none" --machine h100
run "$work/whole.yaml" "save=$work/moe" num_moe_experts=2 train_iters=1
run experts "$work/mine.yaml" "load=$work/moe" --steps 1
run schedule "$work/mine.yaml" "load=$work/run" --world 2 pipeline_model_parallel_size=2
run bubble "$work/mine.yaml" "load=$work/run" --real --steps 1 --schedules 1f1b --p 2 --m 2
run "$work/mine.yaml" "load=$work/start" "save=$work/long" seq_length=128 train_iters=1
exits 4 "hidden_size is 16 there, 32 here" "$work/mine.yaml" "load=$work/start" hidden_size=32 "save=$work/no"
exits 4 "num_attention_heads is 2 there, 5 here" "$work/mine.yaml" "load=$work/start" num_attention_heads=5 "save=$work/no"
exits 2 "num_layers: missing" "$work/mine.yaml" "save=$work/no"
exits 2 "hidden_size: missing" eval "$work/mine.yaml" "load=$work/none"
exits 2 "load: nothing there .*$work/none holds no checkpoint" eval "$work/mine.yaml" "load=$work/none"
exits 2 "lr: " "$work/mine.yaml" "load=$work/start" num_layers=3 lr=much "save=$work/no"
exits 4 "$work/none holds no checkpoint" eval "load=$work/none"
exits 4 "no model without a configuration: runs/latest holds no checkpoint; change: load=DIR" eval load=latest
# a folder of another program, or the one within a run, is no checkpoint: the error says what to do with it
mkdir "$work/megatron" && echo 100 > "$work/megatron/latest_checkpointed_iteration.txt"
exits 4 "holds no checkpoint: .*Hugging Face directory.*train import.*; change: " eval load=tests/golden/llama3
exits 4 "holds no checkpoint: .*Hugging Face directory.*train import.*; change: " "$work/whole.yaml" load=tests/golden/llama3 "save=$work/no"
exits 4 "holds no checkpoint: .*Megatron-LM" "$work/whole.yaml" "load=$work/megatron" "save=$work/no"
exits 4 "checkpoints/ holds no checkpoint: .*run directory" "$work/whole.yaml" "load=$work/start/checkpoints/" "save=$work/no"
cp -r "$work/start" "$work/torn" && truncate -s -9 "$work/torn/checkpoints/iter_0000000/manifest.json"
exits 4 "torn.*manifest.json" generate "load=$work/torn"
# where the newest checkpoint is damaged, on_corrupt says what then, whoever says what the model is
run "$work/mine.yaml" load=latest "save=$work/tuned" train_iters=6
for file in manifest.json model-00000.safetensors; do
    rm -rf "$work/spoilt" && cp -r "$work/tuned" "$work/spoilt"
    truncate -s -9 "$work/spoilt/checkpoints/iter_0000006/$file"
    exits 4 "iter_0000006: $file.*; change: on_corrupt=previous to take the one before it" generate "load=$work/spoilt"
    exits 4 "iter_0000006: $file.*; change: on_corrupt=previous to take the one before it" \
        "$work/mine.yaml" load=latest "save=$work/spoilt" train_iters=7
    for from in "$work/spoilt" "$work/spoilt/config.yaml load=$work/spoilt"; do
        run eval $from eval_iters=1 on_corrupt=previous --json
        grep -q '"checkpoint": ".*/iter_0000005"' "$work/log" || fail "eval $from: not the checkpoint before a damaged $file"
    done
    run "$work/mine.yaml" load=latest "save=$work/spoilt" train_iters=7 on_corrupt=previous
    grep -q 'resuming after iteration 5' "$work/log" || fail "a damaged $file: not the checkpoint before"
done
exits 4 "iter_0000000: manifest.json" generate "load=$work/torn" on_corrupt=previous
# a text of samples.jsonl is one write, however long: those of several commands do not mix
if strace -o /dev/null true 2> /dev/null; then
    tiny "$work/long.yaml" model.seq_length=1024 data.split="'1'" train.eval_iters=0 train.train_iters=1
    run "$work/long.yaml" "save=$work/wordy"
    # LeakSanitizer does not work beside strace
    ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0" strace -f -y -qq -e trace=write -o "$work/calls" \
        "$TRAIN" generate "load=$work/wordy" --tokens 8 --prompt "$(head -c 900 /dev/zero | tr '\0' '\001')" > "$work/log" 2>&1 || fail "a long prompt"
    [ "$(grep -c 'write(.*samples.jsonl' "$work/calls")" = 1 ] || fail "several writes of a line"
fi
exits 2 "CONFIG" eval
exits 2 "data_path: missing" eval "load=$work/start"
echo "said once"
