#!/bin/sh
# tests/training/resume_changed.sh -- what a resume with other settings does: with another batch size a length in
# iterations stays one in iterations and a length in samples one in samples, a loss scale is that of the keys where the
# run had none, tokens and skipped steps are counted on, and the command that a run prints at its end goes on.
set -e
work=${WORK:?} here=$PWD
. tests/tiny.sh
cd "$work"
"$TRAIN" tokenize "$here/parallel" -o corpus > /dev/null 2>&1
tiny tiny.yaml
fail() { echo "FAILED: $*"; cat log 2> /dev/null; exit 1; }
run() { "$TRAIN" tiny.yaml "$@" > log 2>&1 && rc=0 || rc=$?; [ $rc = 0 ] || [ $rc = 75 ] || fail "train $*: $rc"; }
# column RUN KEY: its values, a word a line of metrics.jsonl
column() { sed -n "s/.*\"$2\": \([-+0-9.e]*\),.*/\1/p" "$1/metrics.jsonl" | awk '{ printf "%.12g ", $1 }'; }
is() { [ "$2" = "$3" ] || fail "$1: $2, not $3"; }

# another batch size: the rate of each iteration stays, tokens grow by what is read
run save=A train_iters=8 lr_decay_style=linear
run save=B train_iters=8 lr_decay_style=linear exit_interval=3
run save=B train_iters=8 lr_decay_style=linear exit_interval=5 load=latest global_batch_size=4
run save=B train_iters=8 lr_decay_style=linear load=latest global_batch_size=1 seq_length=16
is "learning rates" "$(column B learning_rate)" "$(column A learning_rate)"
is tokens "$(column B consumed_tokens)" "64 128 192 320 448 464 480 496 "

# a length in samples stays one in samples: the steps that are left are those of the samples that are left
length='train_iters=null train_samples=13 log_interval=9'
for case in "1 5 6 8 12 13 " "4 4 6 10 "; do
    batch=${case%% *} samples=${case#* } stop=${case#* }
    samples=${samples#* } stop=${stop%% *}
    rm -rf M
    run save=M $length exit_interval=3
    run save=M $length load=latest global_batch_size=$batch exit_interval=$stop
    run save=M $length load=latest global_batch_size=$batch
    is "samples with batches of $batch" "$(column M consumed_samples)" "$samples"
    grep -q 'finished: iteration' log || fail "batches of $batch: not finished"
done

# more passes over the corpus give its samples another order, which is told once, where it begins
for i in 1 2 3 4 5 6 7 8 9; do echo "{\"text\": \"$i: a document of forty bytes or so, $((i * i * 37)).\"}"; done > small.jsonl
"$TRAIN" tokenize small.jsonl -o small > /dev/null 2>&1
order='^warning: samples come in another order than in the 3 iterations so far.* needs 3 epochs'
run save=L data_path=small train_iters=2
run save=L data_path=small train_iters=3 load=latest
! grep 'another order' log || fail "one epoch has one order"
run save=L data_path=small train_iters=12 load=latest exit_interval=6
[ "$(grep -c "$order" log)" = 1 ] || fail "no word of another order"
run save=L data_path=small train_iters=12 load=latest
! grep 'another order' log || fail "told again"

# the order is that of the whole length in samples, as Megatron's is: batches of any size keep it
length='train_iters=null train_samples=11 data_path=small'
run save=O $length exit_interval=3
grep -q '2 epochs for 5 iterations' log || fail "11 samples of 32 tokens and one more are more than an epoch of 330"
run save=O $length load=latest global_batch_size=1
! grep 'another order' log || fail "another batch size has changed the order"

# a run goes over to corpora of their own for training and validation, and back: split goes and comes with data_path
run save=S train_iters=2 split="'8, 2'"
run save=S train_iters=4 load=latest data_path=[] split=null train_data_path=small valid_data_path=corpus
grep -q "split: '8, 2' -> null (warn)" log || fail "no word of the split"
run save=S train_iters=6 load=latest split="'8, 2'"
"$TRAIN" tiny.yaml save=S train_iters=8 load=latest split="'7, 3'" > log 2>&1 && fail "another split of the same corpus"
grep -q "split: '8, 2' -> '7, 3' (refuse)" log || fail "no word of the other split"

# another corpus for training that was asked for needs no warning, neither of its bytes nor of their order
own='data_path=[] split=null valid_data_path=corpus'
run save=T train_iters=2 $own train_data_path=small
run save=T train_iters=4 load=latest $own train_data_path=corpus
! grep -E 'another order|other bytes' log || fail "another corpus is taken for the same one"

# WSD's closing decay has its iterations within a schedule of batch sizes, too
run save=C train_iters=8 global_batch_size=null step_batch_size_schedule='0:1 128:4' lr_decay_style=WSD \
    lr_wsd_decay_style=linear lr_wsd_decay_iters=2
is "closing decay" "$(column C learning_rate)" "0.01 0.01 0.01 0.01 0.01 0.01 0.01 0.005 "

# and so it has where a run goes over to such a schedule
wsd='train_iters=8 lr_decay_style=WSD lr_wsd_decay_style=linear lr_wsd_decay_iters=2'
run save=P $wsd exit_interval=3
run save=P $wsd load=latest global_batch_size=null step_batch_size_schedule='0:1 192:4'
is "closing decay after a change" "$(column P learning_rate)" "0.01 0.01 0.01 0.01 0.01 0.01 0.01 0.005 "

# an evaluation reads the same samples throughout a schedule, and as many by `train eval`
schedule='global_batch_size=null step_batch_size_schedule="0:1 64:3" eval_iters=2 lr_decay_style=constant'
eval "run save=D train_iters=4 eval_interval=2 $schedule"
eval "run save=E train_iters=2 eval_interval=2 $schedule"
seen=$(sed -n 's/.*"valid_loss": \([0-9.]*\).*/\1/p' D/metrics.jsonl E/metrics.jsonl | sed -n '1p;3p' | sort -u | wc -l)
is "validation losses of one state" "$seen" 1
last=$(sed -n 's/.*"valid_loss": \([0-9.]*\).*/\1/p' D/metrics.jsonl | tail -n 1)
eval "\"\$TRAIN\" eval tiny.yaml load=D $schedule" > log 2>&1 || fail eval
grep -q "loss $(printf %.6f "$last")" log || fail "train eval differs from $last"

# the loss scale: a run without one has an initial one when it becomes fp16; a fixed one is that of the key
run save=F params_dtype=fp32
run save=F params_dtype=fp16 load=latest train_iters=3 initial_loss_scale=4096
is "scale from fp32" "$(column F loss_scale)" "1 1 4096 "
run save=F params_dtype=fp16 load=latest train_iters=4 loss_scale=64
run save=F params_dtype=bf16 load=latest train_iters=5
is "scale fixed, then none" "$(column F loss_scale)" "1 1 4096 64 1 "
# a fixed scale that always overflows ends the run
"$TRAIN" tiny.yaml save=G params_dtype=fp16 loss_scale=1e30 train_iters=200 > log 2>&1 && rc=0 || rc=$?
is "always overflows" "$rc" 6
grep -q 'error\[loss-scale\] iteration 100: .* fixed loss scale, 1e+30.*lower loss_scale' log || fail "no reason"
# so does the smallest scale, whose overflows are counted over a resume
run save=W params_dtype=fp16 initial_loss_scale=1e30 min_loss_scale=1e30 train_iters=60
"$TRAIN" tiny.yaml save=W load=latest params_dtype=fp16 initial_loss_scale=1e30 min_loss_scale=1e30 train_iters=200 \
    > log 2>&1 && rc=0 || rc=$?
is "always overflows at the smallest" "$rc" 6
grep -q 'error\[loss-scale\] iteration 100: .* smallest loss scale, 1e+30.*lower min_loss_scale' log || fail "no reason"

# a smaller window and a smaller hysteresis hold from the resume on
run save=U params_dtype=fp16 train_iters=4 initial_loss_scale=1024
run save=U params_dtype=fp16 load=latest train_iters=8 loss_scale_window=3
is "scale with a smaller window" "$(column U loss_scale)" "1024 1024 1024 1024 1024 2048 2048 2048 "
run save=V params_dtype=fp16 train_iters=2 initial_loss_scale=1e9 hysteresis=8
run save=V params_dtype=fp16 load=latest train_iters=4 hysteresis=1
is "scale with a smaller hysteresis" "$(column V loss_scale)" "1000000000 1000000000 1000000000 500000000 "

# skipped steps: counted where they were, in another folder too
run save=H params_dtype=fp16 train_iters=6 save_interval=4
run save=I params_dtype=fp16 train_iters=6 load=H/checkpoints/iter_0000004
is "skipped in another folder" "$(column I skipped_iterations)" "$(column H skipped_iterations | cut -d ' ' -f 5-)"

# the rate stands still in skipped steps, as Megatron's does, also behind a resume and with another batch size
run save=N params_dtype=fp16 train_iters=8 lr_decay_style=linear initial_loss_scale=4e6 hysteresis=1 exit_interval=2
run save=N params_dtype=fp16 train_iters=8 lr_decay_style=linear load=latest hysteresis=1 exit_interval=5
run save=N params_dtype=fp16 train_iters=8 lr_decay_style=linear load=latest global_batch_size=4
rates=$(column N skipped_iterations | awk '{
    for (i = 1; i <= NF; i++) { printf "%.12g ", 0.01 * (9 - i + skipped) / 8; skipped += $i }
    exit !(skipped > 1 && skipped < 5) }') || fail "skipped: $(column N skipped_iterations)"
is "rates with skipped steps" "$(column N learning_rate)" "$rates"
# and so it does where the length is one in samples
run save=Q params_dtype=fp16 train_iters=null train_samples=16 lr_decay_style=linear initial_loss_scale=4e6 hysteresis=1
is "rates with skipped steps, by samples" "$(column Q learning_rate)" "$(column Q skipped_iterations | awk '{
    for (i = 1; i <= NF; i++) { printf "%.12g ", 0.01 * (9 - i + skipped) / 8; skipped += $i }
    if (skipped < 2) print "nothing is skipped" }')"

# the command at the end goes on: with the key that the command line takes away, beyond what is done, and from where
# the weights came
run save=J train_iters=null train_samples=6
grep '^go on' log | grep -q 'train_iters=null.* train_samples=12' || fail "train_iters=null is lost"
run save=A load=latest train_iters=2
grep '^go on' log | grep -q 'train_iters=16' || fail "a length that is done"
run save=K train_iters=8 load=A
grep '^go on' log | grep -q 'save=K.* load=A.* train_iters=16' || fail "not from A"
cp -r A "a folder"
run save=K train_iters=8 load="a folder"
eval "set -- $(sed -n 's/^go on *//p' log)"        # a shell takes the words apart, and the key is YAML
[ "$3 $4 $5" = "save=K load='a folder' train_iters=16" ] || fail "not from the folder: $*"
[ ! -e K/checkpoints ] || fail "K has a checkpoint"

# load=latest of a command that reads is the newest of save
"$TRAIN" eval tiny.yaml save=A load=latest eval_iters=1 > log 2>&1 || fail "eval load=latest"
grep -q 'A/checkpoints/iter_0000008' log || fail "not the newest of A"
