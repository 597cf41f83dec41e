#!/bin/sh
# tests/checkpoint/forged.sh -- a right hash proves nothing about a manifest's numbers, because anyone can
# compute the hash. Every number of the state that a resume uses is checked; a number that no run can have is
# refused with exit code 4 and one line. A batch size may change at a resume, or grow within a run, and the
# samples suffice.
set -u
work=${WORK:?} bad=0
. tests/tiny.sh
"$TRAIN" tokenize parallel -o "$work/corpus" > /dev/null 2>&1 || exit 1
tiny "$work/tiny.yaml" model.num_layers=1 model.hidden_size=16 model.num_attention_heads=2 model.seq_length=16 \
    train.train_iters=40 optimizer.lr_decay_iters=40 log.log_interval=10
"$TRAIN" "$work/tiny.yaml" save="$work/run" exit_interval=20 > "$work/log" 2>&1
[ $? = 75 ] || { cat "$work/log"; exit 1; }
cp -r "$work/run" "$work/good"
checkpoint=$work/run/checkpoints/iter_0000020

# forged FROM TO WORDS -- with TO in the place of FROM in the manifest, a resume ends with WORDS in its error
forged() {
    rm -rf "$work/run"
    cp -r "$work/good" "$work/run"
    "$BUILD/test_damage" forge "$checkpoint" "$1" "$2" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
    timeout 240 "$TRAIN" "$work/tiny.yaml" save="$work/run" load=latest > "$work/log" 2>&1
    rc=$?
    [ $rc = 4 ] && [ "$(grep -c '^error\[' "$work/log")" = 1 ] && grep -q "^error\[.*$3.*; change: " "$work/log" && return
    echo "$1 -> $2: code $rc, wanted 4 and '$3'"
    tail -n 2 "$work/log"
    bad=$((bad + 1))
}

samples='"consumed_samples":40'
for value in -5 7 21 39 41 9223372036854775807; do
    forged "$samples" "\"consumed_samples\":$value" "consumed_samples. is $value, not in .40, 40."
done
forged "$samples" '"consumed_samples":40.5' 'no whole number .consumed_samples'
forged "$samples" '"consumed":40' 'no whole number .consumed_samples'
forged '"iteration":20' '"iteration":21' 'iteration 21, but its state is not'
forged '"state":{"iteration":20' '"state":{"iteration":-1' 'iteration 20, but its state is not'
for value in -1 21 9223372036854775807; do
    forged '"updates":20' "\"updates\":$value" "updates. is $value, not in .0, 20."
    forged '"skipped_iterations":0' "\"skipped_iterations\":$value" "skipped_iterations. is $value"
    forged '"unscheduled_iterations":0' "\"unscheduled_iterations\":$value" "unscheduled_iterations. is $value"
    forged '"nan_iterations":0' "\"nan_iterations\":$value" "nan_iterations. is $value"
done
forged '"unscheduled_samples":0' '"unscheduled_samples":-1' 'unscheduled_samples. is -1'
for value in 0.0 -1.0; do forged '"scale":1.0' "\"scale\":$value" 'loss_scale. is '; done
forged '"scale":1.0' '"scale":"x"' 'loss_scale. is '
forged '"good":0' '"good":-1' 'good. is -1'
forged '"tolerance":2' '"tolerance":9223372036854775807' 'tolerance. is 9223372036854775807'
forged '"overflows":0' '"overflows":21' 'overflows. is 21, not in .0, 20.'
forged '"batch_sizes_since":{"iteration":0' '"batch_sizes_since":{"iteration":21' 'iteration. is 21, not in .0, 20.'
forged '"samples":0' '"samples":-1' 'samples. is -1'
forged '"samples":0' '"samples":2' 'consumed_samples. is 40, not in .42, 42.'

# goes_on SAMPLES ARGUMENT... -- a run ends with 0 and has consumed SAMPLES
goes_on() {
    want=$1; shift
    timeout 240 "$TRAIN" "$work/tiny.yaml" save="$work/run" "$@" > "$work/log" 2>&1
    rc=$?
    [ $rc = 0 ] && [ "$(sed -n 's/.*consumed samples: *\([0-9]*\) .*/\1/p' "$work/log" | tail -n 1)" = "$want" ] && return
    echo "$*: code $rc, not 0 with $want samples"
    tail -n 2 "$work/log"
    bad=$((bad + 1))
}

# another batch size at a resume: 20 iterations of 64 samples, then 20 of 1, then 10 more of 1
head -c 1500 README.md > "$work/a.txt"
for i in 1 2 3 4 5 6 7 8 9; do cp "$work/a.txt" "$work/a$i.txt"; done
"$TRAIN" tokenize "$work"/a?.txt -o "$work/small" > /dev/null 2>&1
set -- data_path="$work/small"
rm -rf "$work/run"
"$TRAIN" "$work/tiny.yaml" "$@" global_batch_size=64 exit_interval=20 save="$work/run" > "$work/log" 2>&1
goes_on 1300 "$@" load=latest global_batch_size=1
goes_on 1310 "$@" load=latest global_batch_size=1 train_iters=50
# evaluations with a batch that has grown since the first
rm -rf "$work/run"
goes_on 3920 "$@" global_batch_size=null step_batch_size_schedule="'0:2 1280:128'" eval_interval=35 eval_iters=3 \
    train_iters=70 lr_decay_iters=70
# settings of a build that this one is not are said, once: a key and a value that it does not know
rm -rf "$work/run"
cp -r "$work/good" "$work/run"
said() { grep -c '^warning: .*was written by another build (.*).*; change: ' "$work/log"; }
goes_on 80 load=latest
[ "$(said)" = 0 ] || { echo "another build, although it is the same"; bad=$((bad + 1)); }
rm -rf "$work/run"
cp -r "$work/good" "$work/run"
for change in 'attention_dropout: 0.1:attention_dropout: 0.1\n  attention_sinks: 4' 'activation: gelu:activation: shaped'; do
    "$BUILD/test_damage" forge "$checkpoint" "${change%%:a*}" "a${change#*:a}" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
done
"$TRAIN" export "$work/run" -o "$work/hf" > "$work/log" 2>&1
[ "$(said)" = 1 ] || { echo "an export of another build's model without a word"; bad=$((bad + 1)); }
goes_on 80 load=latest
[ "$(said)" = 1 ] && grep -q '^warning: .*shaped.*attention_sinks' "$work/log" ||
    { echo "settings of another build are left out without a word"; cat "$work/log"; bad=$((bad + 1)); }
# a checkpoint that does not say how many tokens came before its batch size: samples of its own length, also where the
# resume has another
rm -rf "$work/run"
"$TRAIN" "$work/tiny.yaml" save="$work/run" exit_interval=10 > "$work/log" 2>&1
"$TRAIN" "$work/tiny.yaml" save="$work/run" load=latest global_batch_size=4 exit_interval=15 > "$work/log" 2>&1
"$BUILD/test_damage" forge "$work/run/checkpoints/iter_0000015" '"tokens":320' '"Tokens":320' > "$work/log" 2>&1 ||
    { cat "$work/log"; exit 1; }
goes_on 44 load=latest global_batch_size=4 seq_length=8 train_iters=16
tail -n 1 "$work/run/metrics.jsonl" | grep -q '"consumed_tokens": 672,' ||
    { echo "not 40 samples of 16 tokens and 4 of 8"; tail -n 1 "$work/run/metrics.jsonl"; bad=$((bad + 1)); }
[ $bad = 0 ]
