#!/bin/sh
# tests/training/eval_layouts.sh -- evaluations between the steps of pipelines, also of stages without layers that pass on
# what they get: the validation loss is that of one rank.
set -e
work=${WORK:?} here=$PWD launch=$PWD/scripts/launch
. tests/tiny.sh
cd "$work"
"$TRAIN" tokenize "$here/parallel" -o corpus > /dev/null 2>&1
tiny tiny.yaml train.global_batch_size=8 train.eval_interval=1 train.eval_iters=4 precision.params_dtype=fp64 \
    model.hidden_dropout=0 model.attention_dropout=0 checkpoint.save_at_end=false
fail() { echo "FAILED: $*"; cat log; exit 1; }
losses() { sed -n 's/.*"valid_loss": \([0-9.]*\),.*/\1/p' "$1/metrics.jsonl"; }
"$TRAIN" tiny.yaml save=one > log 2>&1 || fail one rank
losses one > want
[ "$(wc -l < want)" = 2 ] || fail "no two evaluations"
# layout RANKS KEY...: the same losses to 9 digits
layout() {
    ranks=$1
    shift
    rm -rf run
    "$launch" -n "$ranks" tiny.yaml save=run pipeline_model_parallel_size="$ranks" "$@" > log 2>&1 || fail "$*"
    losses run | paste want - | awk '{ d = $1 / $2 - 1; if (d > 1e-9 || d < -1e-9) bad = 1 } END { exit bad || NR != 2 }' ||
        fail "$*: $(losses run | tr '\n' ' '), not $(tr '\n' ' ' < want)"
}
for schedule in zb-v v-half v-min dualpipev; do
    layout 2 pipeline_schedule=$schedule "pipeline_model_parallel_layout='Ett|||L'"
done
layout 2 pipeline_schedule=zb-v "pipeline_model_parallel_layout='Et|t||L'"
layout 2 pipeline_schedule=zb-v "pipeline_model_parallel_layout='E||t|tL'"
layout 3 pipeline_schedule=zb-v "pipeline_model_parallel_layout='E|t|||t|L'"
layout 2 pipeline_schedule=interleaved num_virtual_stages_per_pipeline_rank=3 "pipeline_model_parallel_layout='E||t|||tL'"
layout 2 pipeline_schedule=1f1b
# what the start, an evaluation, a save and a timeline send belongs to no step
rm -rf run
"$launch" -n 2 tiny.yaml save=run pipeline_model_parallel_size=2 save_interval=1 train_iters=3 trace_steps='[2]' > log 2>&1 || fail a run that saves
sed -n 's/.*"pp": {[^}]*"bytes": \([0-9]*\)}, "embedding": {[^}]*"bytes": \([0-9]*\)}.*"world": {[^}]*"bytes": \([0-9]*\)}.*/\1+\2 \3/p' \
    run/metrics.jsonl > log
[ "$(wc -l < log)" = 3 ] && [ "$(sed 1d log | sort -u | wc -l)" = 1 ] && [ "$(cut -d ' ' -f 1 log | sort -u | wc -l)" = 1 ] ||
    fail "other messages in one step than in others"

# eval tells the tokens that have a loss: four of five where a document is four letters and its end
mkdir short
for i in $(seq 100 399); do printf '%s.' "$i" > "short/$i"; done
"$TRAIN" tokenize short -o short > /dev/null 2>&1
"$TRAIN" tiny.yaml save=kept save_at_end=true > log 2>&1 || fail a run that is kept
for ranks in 1 2; do
    "$launch" -n $ranks eval tiny.yaml load=kept data_path=short eod_mask_loss=true --json > log 2>&1 || fail "eval on $ranks"
    [ "$(sed -n 's/.*"tokens": \([0-9]*\),.*/\1/p' log | awk "{ print (\$1 > 800 && \$1 < 840) }")" = 1 ] || fail "tokens with a loss"
    "$launch" -n $ranks eval tiny.yaml load=kept data_path=short --json > log 2>&1 || fail "eval on $ranks"
    grep -q '"tokens": 1024,' log || fail "not all tokens have a loss"
done

# where no token has a loss there is no mean: eval says so, a run goes on and writes null
mkdir ends
for i in $(seq 100); do printf 'aaaaaaaaaa' > "ends/$i"; done
"$TRAIN" tokenize ends -o ends --no-append-eod > /dev/null 2>&1
none="tokenizer_type=none vocab_size=257 null_tokenizer_eod_id=97 eod_mask_loss=true data_path=[] split=null train_data_path=corpus"
"$TRAIN" tiny.yaml save=none valid_data_path=ends $none save_at_end=true > log 2>&1 || fail a run whose evaluations have no token
[ "$(grep -c '"valid_loss": null, "valid_ppl": null' none/metrics.jsonl)" = 2 ] || fail "$(grep valid_loss none/metrics.jsonl)"
for ranks in 1 2; do
    "$launch" -n $ranks eval none > log 2>&1 && rc=0 || rc=$?
    [ $rc = 3 ] && grep -q '^error.data. .*no token .* has a loss: .*; change: ' log || fail "eval without a token: exit $rc"
done
"$TRAIN" eval none --split train --json > log 2>&1 || fail "eval of the split that has tokens"

# a rank that dies in MPI_Finalize, when the command has given its results, does not change the command's code
cat > last.c <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
int MPI_Finalize(void)
{
    int (*real)(void) = (int (*)(void))dlsym(RTLD_NEXT, "MPI_Finalize");
    if (atoi(getenv("OMPI_COMM_WORLD_RANK")) == 0)
        close(creat("there", 0600));
    else {
        while (access("there", F_OK))          /* until rank 0 has given the results */
            usleep(1000);
        signal(SIGSEGV, SIG_DFL);
        raise(SIGSEGV);
    }
    return real();
}
C
${CC:-cc} -shared -fPIC -O1 -o last.so last.c -ldl
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}verify_asan_link_order=0"
# late CODE COMMAND...: ends with CODE
late() {
    want=$1
    shift
    rm -f there
    LD_PRELOAD=$work/last.so "$launch" -n 2 "$@" > log 2>&1 && rc=0 || rc=$?
    [ $rc = "$want" ] || fail "$*: exit $rc, not $want"
}
"$TRAIN" tiny.yaml save=two save_at_end=true > log 2>&1 || fail one more rank
late 0 eval two --json
grep -q '"valid_loss"' log && ! grep -q '^error' log || fail "an evaluation that was done has failed"
late 0 tiny.yaml save=three eval_iters=0
late 2 eval two --split dev
