#!/bin/sh
# tests/checkpoint/not_finite.sh -- every command that would compute with a NaN or infinite weight, or pass it
# on, names the weight; inspect counts such weights. No JSON output holds NaN or infinity.
set -e
work=${WORK:?}
. tests/tiny.sh
fail() { echo "$*"; cat "$work/log"; exit 1; }
"$TRAIN" tokenize src/*/a*.c -o "$work/corpus" > /dev/null 2>&1
tiny "$work/tiny.yaml" model.hidden_size=16 model.num_attention_heads=2 model.seq_length=16 \
    model.position_embedding_type=rope model.normalization=RMSNorm model.activation=swiglu model.ffn_hidden_size=32 \
    model.add_bias_linear=false model.hidden_dropout=0 model.attention_dropout=0 data.split="'80, 20, 0'" \
    train.micro_batch_size=2 train.global_batch_size=4 train.train_iters=3 train.eval_iters=1 optimizer.lr=1e-3
conf=$work/tiny.yaml
run() { "$TRAIN" "$@" > "$work/log" 2>&1 || fail "train $*: exit $?"; }
exits() { # CODE WORDS COMMAND...: ends with CODE and one line, which has WORDS
    want=$1 words=$2; shift 2
    "$TRAIN" "$@" > "$work/out" 2> "$work/log" && rc=0 || rc=$?
    [ $rc = "$want" ] && grep -q "$words" "$work/log" && [ "$(wc -l < "$work/log")" = 1 ] ||
        fail "train $*: exit $rc, not $want with '$words'"
}
plain() { # FILE NAME: fails where the JSON of FILE has NaN or infinity
    if grep -Eiq '(^|[^a-z_"])-?(nan|inf(inity)?)' "$1"; then cat "$1"; fail "$2: no JSON"; fi
}
run "$conf" "save=$work/good"
run export "$work/good" -o "$work/hf"
run inspect "$work/good" --json
grep -q '"not_finite": 0' "$work/log" || fail "inspect of finite weights"

# a NaN planted in a Hugging Face directory: the last element of the last tensor
cp -r "$work/hf" "$work/bad"
f=$work/bad/model.safetensors
printf '\000\000\300\377' | dd of="$f" bs=1 seek=$(($(stat -c %s "$f") - 4)) conv=notrunc 2> /dev/null
exits 6 'tensor [a-z_.0-9]* has 1 value that is NaN or infinite' import "$work/bad" -o "$work/no"
[ ! -e "$work/no" ] || fail "import has made something"
for path in "$work/bad" "$f"; do
    run inspect "$path" --json
    grep -q '"not_finite": 1' "$work/log" || fail "inspect $path"
done

# NaN in a checkpoint, from a run with check_for_nan_in_loss_and_grad=false
run "$conf" "save=$work/nan" check_for_nan_in_loss_and_grad=false optimizer=sgd lr=1000 init_method_std=30 clip_grad=0 train_iters=9
exits 6 "the weight [a-z]*\.[a-z_.0-9]* holds" eval "load=$work/nan" --json
[ ! -s "$work/out" ] || fail "eval has printed something"
exits 6 "the weight [a-z]*\.[a-z_.0-9]* holds" generate "load=$work/nan" --tokens 4
exits 6 "the weight [a-z]*\.[a-z_.0-9]* holds" "$conf" "load=$work/nan" "save=$work/tuned" finetune=true
exits 6 "tensor [a-z]*\.[a-z_.0-9]* has [0-9]* value" export "$work/nan" -o "$work/no"
[ -z "$(ls -d "$work/no" "$work"/no.* 2> /dev/null)" ] || fail "export has left something"
TRAIN=$TRAIN scripts/launch -n 2 eval "load=$work/nan" tensor_model_parallel_size=2 > "$work/out" 2> "$work/log" && rc=0 || rc=$?
[ $rc = 6 ] && [ "$(grep -c 'error\[not-finite\].*the weight' "$work/log")" = 1 ] || fail "two ranks: exit $rc"
run inspect "$work/nan" --json
grep -q '"not_finite": [1-9]' "$work/log" && grep -q '"decoder.layers.0' "$work/log" || fail "inspect counts nothing"
plain "$work/nan/metrics.jsonl" metrics
grep -q null "$work/nan/metrics.jsonl" || fail "the run of NaN was finite"

# in fp16 a loss that overflows skips the step, as a gradient does, where it does not end the run
run "$conf" "save=$work/half" params_dtype=fp16 check_for_nan_in_loss_and_grad=false init_method_std=1000
[ "$(grep -c '"lm_loss": *null.*"skipped_iterations": *[1-3],.*"nan_iterations": *[1-3]' "$work/half/metrics.jsonl")" = 3 ] ||
    { cat "$work/half/metrics.jsonl"; fail "a loss that overflows in fp16"; }
run inspect "$work/half" --json
grep -q '"not_finite": 0' "$work/log" || fail "updated by a loss that is not finite"
run "$conf" "save=$work/half" load=latest train_iters=6 params_dtype=fp16 check_for_nan_in_loss_and_grad=false init_method_std=1000
grep -rqE '"nan_iterations": ?6\b' "$work/half/checkpoints/iter_0000006" || fail "a resumed run does not go on counting"
"$TRAIN" verify "$conf" params_dtype=fp16 init_method_std=1000 --json > "$work/log" 2>&1 && rc=0 || rc=$?
[ $rc = 1 ] && grep -q '"relative": *null' "$work/log" || fail "verify of infinite gradients: exit $rc"
plain "$work/log" verify
echo "named and counted"
