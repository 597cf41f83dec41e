#!/bin/sh
# tests/training/run_directory.sh -- a folder holds one run. A fresh start never mixes with the run that is
# there. The newest checkpoint is the newest of this run. Steps that a resume repeats have one line of
# metrics. Replaced checkpoints are moved aside. Readers find whole checkpoints while the run saves and
# deletes them.
set -e
work=${WORK:?}
here=$PWD
cd "$work"
launch="$here/scripts/launch"
"$TRAIN" tokenize "$here/parallel" -o corpus > /dev/null 2>&1
cat > tiny.yaml <<YAML
model: {num_layers: 2, hidden_size: 16, num_attention_heads: 2, seq_length: 16}
data: {data_path: corpus, tokenizer_type: byte, split: '90, 10, 0'}
train: {micro_batch_size: 2, global_batch_size: 4, train_iters: 40, eval_iters: 1}
optimizer: {lr: 0.01}
log: {log_interval: 1}
YAML
fail() { echo "FAILED: $*"; cat log errors 2> /dev/null; exit 1; }
want() { # CODE ARGUMENT...: `train ARGUMENT...` ends with CODE
    code=$1; shift
    "$TRAIN" "$@" cpu_isa="$ISA" > log 2> errors && rc=0 || rc=$?
    [ $rc = "$code" ] || fail "train $*: $rc, not $code"
}
says() { grep -q -- "$1" log || fail "not said: $1"; }
refuses() { grep -q "^error\[$1\].*$2.*change: .*$3" errors && [ "$(grep -c '^error\[' errors)" = 1 ] || fail "not refused: $*"; }
snapshot() { find "$1" -type f ! -name .lock -exec sha256sum {} + | sort -k 2; }
newest() { "$TRAIN" eval tiny.yaml load="$1" > log 2> errors || fail "eval of $1"; sed -n 's/.*iter_0*\([0-9]*\):.*/\1/p' log; }
iterations() { sed -n 's/.*"iteration": \([0-9]*\),.*lm_loss.*/\1/p' "$1/metrics.jsonl" | tr '\n' ' '; }
ids() { cat "$@" | grep -o '"run_id": "[0-9a-f]*"' | sort -u | wc -l; }
range() { seq "$1" "$2" | tr '\n' ' '; }

# a second run in the same folder is refused in one line, and changes nothing
want 0 tiny.yaml save=S
snapshot S > before
for again in "" "train_iters=30 lr=5e-4 save_interval=10" "load=other" "load=S finetune=true"; do
    # shellcheck disable=SC2086
    want 2 tiny.yaml save=S $again
    refuses run-directory "S holds a run" "load=latest.*save=.*overwrite=true"
done
snapshot S > after
cmp before after || fail "a refused start has touched the run"
refuses run-directory "S holds a run" "finetune=false.*save="        # of the loop's last start, load=S finetune=true
want 2 tiny.yaml save=S load=S/checkpoints/iter_0000099
refuses run-directory "S holds a run already, and load=S/checkpoints/iter_0000099 is not there: " "load=latest"
"$launch" -n 2 tiny.yaml save=S cpu_isa="$ISA" > log 2> errors && fail "two ranks are not refused"
refuses run-directory "S holds a run" overwrite

# resuming a finished run says so, ends with 0 and changes nothing
want 0 tiny.yaml save=S load=latest
says "is finished: iteration 40 of 40"; says "load=latest train_iters=80"
want 0 tiny.yaml save=S load=latest train_iters=30
says "is finished: iteration 40 of 30"
snapshot S > after
cmp before after || fail "a finished run was touched"
# the job before it is about to end: its launcher was killed a moment ago
flock S/.lock sh -c ': > held; exec sleep 1' &
until [ -e held ]; do sleep 0.01; done          # a look at the lock itself could come after the second
want 0 tiny.yaml save=S load=latest
# its job died between the last save and the report: another start writes it
for old in "rm S/report.html" "touch -d 2001-01-01 S/report.html"; do
    $old
    want 0 tiny.yaml save=S load=latest
    says "^report  S/report.html"
    [ S/report.html -nt S/metrics.jsonl ] || fail "no report after $old"
done
snapshot S > before

# overwrite: errors are found before anything moves; then the old run is whole in S.1
want 3 tiny.yaml save=S overwrite=true data_path=nowhere
want 2 tiny.yaml save=S overwrite=true load=latest
refuses run-directory "load=latest goes on" "leave one"
snapshot S > after
cmp before after && [ ! -e S.1 ] || fail "a start that failed has moved the run"
want 75 tiny.yaml save=S/ overwrite=true train_iters=30 lr=5e-4 save_interval=10 exit_interval=20
says "is in S.1 now"; says "saved iteration 10: S/checkpoints/iter_0000010"; says "^saved   S/checkpoints/iter_0000020"
says "^report  S/report.html"
go=$(sed -n 's/^go on *//p' log | sed 's/ exit_interval=20//')
snapshot S.1 | sed 's| S.1/| S/|' > after
cmp before after || fail "the run that was moved aside has changed"
[ "$(newest S)" = 20 ] || fail "the newest of S"
[ "$(newest S.1)" = 40 ] || fail "the newest of S.1"
[ "$(ids S/metrics.jsonl S/checkpoints/*/manifest.json S/run.json)" = 1 ] || fail "ids within S"
[ "$(ids S/metrics.jsonl S.1/metrics.jsonl)" = 2 ] || fail "two runs share an id"

# the command printed behind `go on` resumes the run; `save=X load=X` with an empty X is a fresh start
sh -c "$go" > log 2> errors || fail "the command to go on: $go"
says "resuming after iteration 20"
[ "$(iterations S)" = "$(range 1 30)" ] || fail "lines of S: $(iterations S)"
[ "$(ids S/metrics.jsonl S/checkpoints/*/manifest.json)" = 1 ] || fail "ids of a resume"
want 75 tiny.yaml save=X load=X exit_interval=10
says "X holds no checkpoint yet: a fresh start"
want 75 tiny.yaml save=X load=X exit_interval=15
says "resuming after iteration 10"
want 4 tiny.yaml save=Y load=Z

"$launch" -n 2 tiny.yaml save=L exit_interval=5 cpu_isa="$ISA" > log 2> errors || [ $? = 75 ] || fail "two ranks"
says "^go on .*scripts/launch -n 2 tiny.yaml save=L .*load=latest"
sh -c "$(sed -n 's/^go on *//p' log) exit_interval=9" > log 2> errors || [ $? = 75 ] || fail "two ranks, going on"
says "resuming after iteration 5"; says "iteration 9 of 40 is done"

# a name that is not UTF-8 can be no folder's that config.yaml names
latin=$(printf 'caf\351')
cp tiny.yaml "$latin.yaml"
want 2 "$latin.yaml" train_iters=2
LC_ALL=C grep -q 'save: .*not UTF-8.*give save' errors && [ ! -e runs ] || fail "a name that is not UTF-8"
want 0 "$latin.yaml" train_iters=2 save=latin
want 0 tiny.yaml save=latin load=latest train_iters=3 lr_decay_iters=2
mkdir runs
cp -r latin "runs/$latin"
want 0 eval "$latin.yaml" load=latest --json
grep -q '"checkpoint": "runs/caf?/checkpoints/iter_0000003", "tokens"' log || fail "no JSON of a folder that is not UTF-8"

# paths with blanks and quotes: a shell takes the command apart as it was given
mkdir "an owner's"
ln -s "$TRAIN" "an owner's/train"
ln -s "$here" "an owner's/tree"
"an owner's/train" tiny.yaml save=blank exit_interval=5 cpu_isa="$ISA" > log 2> errors || [ $? = 75 ] || fail "a path with a blank"
sh -c "$(sed -n 's/^go on *//p' log) exit_interval=9" > log 2> errors || [ $? = 75 ] || fail "a path with a blank, going on"
says "resuming after iteration 5"
"an owner's/tree/scripts/launch" -n 2 tiny.yaml save=blanks exit_interval=5 cpu_isa="$ISA" > log 2> errors || [ $? = 75 ] ||
    fail "a launcher's path with a blank"
sh -c "$(sed -n 's/^go on *//p' log) exit_interval=9" > log 2> errors || [ $? = 75 ] || fail "its going on: $(cat log)"
says "resuming after iteration 5"

# a resume from an earlier checkpoint moves the later ones aside, and none of them is the newest any more
want 75 tiny.yaml save=X load=X/checkpoints/iter_0000010 exit_interval=12 train_iters=40
says "are in X/replaced.1 now"
[ "$(newest X)" = 12 ] || fail "the newest after going back: $(newest X)"
[ "$(newest X/replaced.1)" = 15 ] || fail "what was replaced"
[ "$(iterations X)" = "$(range 1 12)" ] && [ "$(iterations X/replaced.1)" = "$(range 1 15)" ] || fail "lines after going back"

# another run's checkpoint with a greater number is not this run's newest
cp -r S.1/checkpoints/iter_0000040 X/checkpoints/
[ "$(newest X)" = 12 ] || fail "another run's checkpoint was taken"
"$TRAIN" inspect X --json > log || fail "inspect"
grep -q '"newest": 12' log || fail "inspect's newest"
want 0 tiny.yaml save=X load=latest train_iters=14
says "resuming after iteration 12"
want 2 tiny.yaml save=X/checkpoints/iter_0000012
refuses run-directory "is a checkpoint itself" save=DIR

# a folder of checkpoints that cannot be listed is not one without checkpoints; a rank of another host that still sees the
# run that was moved aside waits
cat > faults.c <<'C'
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The LIST_NTH-th listing of a folder `checkpoints` fails: with LIST_STALE as it is opened, else as it is read. */
static DIR *bad;
DIR *opendir(const char *path)
{
    static int listings;
    const char *nth = getenv("LIST_NTH"), *slash = strrchr(path, '/');
    int fails = nth && slash && !strcmp(slash, "/checkpoints") && ++listings == atoi(nth);
    if (fails && getenv("LIST_STALE"))
        return errno = ESTALE, NULL;
    DIR *d = ((DIR *(*)(const char *))dlsym(RTLD_NEXT, "opendir"))(path);
    bad = fails ? d : bad;
    return d;
}
struct dirent *readdir(DIR *d)
{
    return d == bad ? errno = EIO, NULL : ((struct dirent *(*)(DIR *))dlsym(RTLD_NEXT, "readdir"))(d);
}

/* SEEN_LATE is a folder. As soon as SEEN_LATE.1 is there it is found under the name SEEN_LATE, until its .lock has been
 * opened three times. */
static int real_openat(int dir, const char *path, int flags, mode_t mode)
{
    static int looks;
    const char *run = getenv("SEEN_LATE");
    char old[PATH_MAX];
    size_t n = run ? strlen(run) : 0;
    int (*real)(int, const char *, int, ...) = (int (*)(int, const char *, int, ...))dlsym(RTLD_NEXT, "openat");
    if (n && looks < 3 && !strncmp(path, run, n) && (!path[n] || path[n] == '/')) {
        snprintf(old, sizeof old, "%s.1", run);
        if (!access(old, F_OK)) {
            looks += !strcmp(path + n, "/.lock");
            snprintf(old, sizeof old, "%s.1%s", run, path + n);
            path = old;
        }
    }
    return real(dir, path, flags, mode);
}
#define MODE(mode, last)                                                                                     \
    va_list ap;                                                                                              \
    va_start(ap, last);                                                                                      \
    mode_t mode = last & O_CREAT ? va_arg(ap, mode_t) : 0;                                                   \
    va_end(ap)
int openat(int dir, const char *path, int flags, ...)
{
    MODE(mode, flags);
    return real_openat(dir, path, flags, mode);
}
int open(const char *path, int flags, ...)
{
    MODE(mode, flags);
    return real_openat(AT_FDCWD, path, flags, mode);
}
C
${CC:-cc} -shared -fPIC -o faults.so faults.c -ldl || exit 1
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}verify_asan_link_order=0"
want 0 tiny.yaml save=F save_interval=2 train_iters=4
snapshot F | sed 's| F/| C/|' > before
for load in latest C/checkpoints/iter_0000002; do
    for by in LIST_NO=1 LIST_STALE=1; do
        for nth in 1 2 3 4; do
            rm -rf C C.1
            cp -r F C
            env LD_PRELOAD="$PWD/faults.so" LIST_NTH=$nth $by "$TRAIN" tiny.yaml save=C load=$load train_iters=6 cpu_isa="$ISA" > log 2> errors &&
                rc=0 || rc=$?
            snapshot C > after
            case $rc in
            0)     says "resuming after iteration" ;;
            [45])  grep -q '^error\[.*cannot \(read\|list\) C/checkpoints: .*; change: ' errors && cmp before after ;;
            *)     false ;;
            esac || fail "listing $nth, $by, load=$load: $rc"
            echo $rc >> listings
        done
    done
done
sort -u listings | tr '\n' ' ' | grep -qx '0 4 5 ' || fail "not every kind of listing has failed: $(cat listings)"
cat > late <<SH
#!/bin/sh
[ "\$OMPI_COMM_WORLD_RANK" != 1 ] || export LD_PRELOAD="$PWD/faults.so" SEEN_LATE=V
exec "$TRAIN" "\$@"
SH
chmod +x late
split="data_parallel_sharding_strategy=optim train_iters=2"
# shellcheck disable=SC2086
"$launch" -n 2 tiny.yaml save=V $split cpu_isa="$ISA" > log 2> errors || fail "two ranks"
snapshot V | sed 's| V/| V.1/|' > before
# shellcheck disable=SC2086
TRAIN=$PWD/late "$launch" -n 2 tiny.yaml save=V $split overwrite=true cpu_isa="$ISA" > log 2> errors || fail "a host that sees it late"
snapshot V.1 > after
cmp before after || fail "a host that sees it late has written into the run that was moved aside"
[ "$(newest V)" = 2 ] || fail "the newest of V"

# every reader finds a whole checkpoint while the run saves and deletes
"$TRAIN" tiny.yaml save=R save_interval=1 save_keep_last=1 train_iters=1000000 lr_decay_iters=10 log_interval=1000 cpu_isa="$ISA" > /dev/null 2>&1 &
writer=$!
until find R/checkpoints -name 'iter_*[0-9]' 2> /dev/null | grep -q .; do
    kill -0 $writer 2> /dev/null || fail "the writer has ended"
    sleep 0.05
done
for i in $(seq 30); do
    "$TRAIN" inspect R > log 2>&1 || { kill -9 $writer; fail "inspect, reading $i of a run that is going on"; }
done
for i in $(seq 8); do
    "$TRAIN" eval tiny.yaml load=R cpu_isa="$ISA" > log 2>&1 || { kill -9 $writer; fail "eval, reading $i"; }
    "$TRAIN" export R -o "hf$i" > log 2>&1 || { kill -9 $writer; fail "export, reading $i"; }
done
kill -TERM $writer
wait $writer || [ $? = 75 ] || fail "the writer"

# a run that ends prints the iteration, what is saved, its report, and the command that goes on
for signal in INT USR1 TERM; do
    for at_end in true false; do
        : > log                 # output of the previous run
        "$TRAIN" tiny.yaml save="E$signal$at_end" save_interval=3 save_at_end=$at_end train_iters=1000000 lr_decay_iters=10 \
            cpu_isa="$ISA" > log 2> errors &
        run=$!
        until grep -q '^saved iteration 6' log; do
            kill -0 $run 2> /dev/null || fail "the run has ended before SIG$signal"
            sleep 0.02
        done
        kill -$signal $run
        wait $run && rc=0 || rc=$?
        case $signal$at_end$rc in
        USR1*75 | *true75 | INTfalse130 | TERMfalse143 | *false75) ;;    # stopped at a save: 75
        *) fail "SIG$signal, save_at_end=$at_end: $rc" ;;
        esac
        last=$(sed -n 's/.*"newest": \([0-9]*\).*/\1/p' << NEWEST
$("$TRAIN" inspect "E$signal$at_end" --json)
NEWEST
)
        says "^saved   E$signal$at_end/checkpoints/iter_0*$last"; says "^report  E$signal$at_end/report.html"
        says "^go on .*load=latest"; says "^stopped by .*: iteration [0-9]* of 1000000 is done"
        [ -s "E$signal$at_end/report.html" ] || fail "no report"
    done
done
# a stop saves only if the grace is enough and ends are saved; no checkpoint is claimed where there is none
for stop in sigterm_grace=0 sigterm_grace=1e6 save_at_end=false; do
    : > log
    "$TRAIN" tiny.yaml save="G$stop" $stop save_interval=1000000 train_iters=1000000 lr_decay_iters=10 \
        log_interval=1 cpu_isa="$ISA" > log 2> errors &
    run=$!
    until grep -q 'iteration  *3/' log; do
        kill -0 $run 2> /dev/null || fail "the run has ended before SIGTERM"
        sleep 0.02
    done
    kill -TERM $run
    wait $run && rc=0 || rc=$?
    case $stop:$rc in
    sigterm_grace=0:143)   says "^stopped by a signal without a save, .*sigterm_grace: 0 s"; says "^saved   nothing" ;;
    sigterm_grace=1e6:75) says "^stopped by a signal with a checkpoint"; says "^saved   G" ;;
    save_at_end=false:143) says "^stopped by a signal: iteration"; says "^saved   nothing: save_at_end is false" ;;
    *)     fail "$stop: $rc" ;;
    esac
done
want 75 tiny.yaml save=D exit_duration_in_mins=1e-9
says "^stopped at exit_duration_in_mins with a checkpoint: iteration 1 of 40"; says "^go on"
# with failures on record the run says which interval would have lost least
echo '{"time": 1, "code": 7, "cause": "error[rank-lost]", "lost_s": 1, "iteration": 2}' > D/restarts.jsonl
want 0 tiny.yaml save=D load=latest train_iters=6 save_interval=2
says "^save_interval: [0-9]* steps* would lose least, at a save of .* s and a failure every .* s"
grep -q "would lose least" D/report.html || fail "no advice in the report"
want 0 tiny.yaml save=N save_at_end=false train_iters=2
says "^saved   nothing"
! grep -q '^go on' log || fail "a command that would go on from nothing"
says "^report  N/report.html"
mkdir -p P/report.html/taken                   # a report that cannot be written is no line `report`
want 0 tiny.yaml save=P train_iters=2
grep -q '^warning: there is no new report: ' errors && ! grep -q '^report ' log || fail "a report that is not there"

# folders whose names YAML takes for a number, nothing, a list, a comment, a variable
export NAME=n
for name in 123 null '[x]' 'a #2' '${NAME}'; do
    want 0 tiny.yaml "save='$name'" train_iters=2
    want 0 eval "$name"
    want 0 generate "$name" --prompt a --tokens 1
    "$TRAIN" tiny.yaml save="of $name" load="'$name'" train_iters=5 exit_interval=3 > log 2> errors && fail "no stop"
    says "^go on .*load=latest"
done
echo "one folder, one run"
