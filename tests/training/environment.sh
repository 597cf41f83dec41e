#!/bin/sh
# tests/training/environment.sh -- what surrounds a run does not change it: the same run has the same bytes
# when it is repeated, in another time zone, locale, umask, folder or home, with other threads, with standard
# streams closed or full, without locked memory, with signals that the parent ignored or blocked, in the shell of a batch
# system, and while the wall clock jumps by an hour. Too few open files, too little memory, a thread or a process that
# cannot be had: one error line, exit code 5.
set -u
work=${WORK:?} launch=$PWD/scripts/launch bad=0
. tests/tiny.sh
. tests/parallel/same.sh
"$TRAIN" tokenize src/io -o "$work/corpus" > /dev/null 2>&1 || exit 1
tiny "$work/tiny.yaml" model.hidden_dropout=0.1 train.global_batch_size=4 train.train_iters=4 \
    train.eval_interval=2 train.eval_iters=1
fail() { bad=$((bad + 1)); echo "$*"; tail -n 4 "$work/log"; }

# trains WHAT COMMAND... -- COMMAND, given the configuration and save=, writes the bytes of the first run
trains() {
    what=$1; shift
    rm -rf "$work/run"
    "$@" "$work/tiny.yaml" save="$work/run" > "$work/log" 2>&1
    rc=$?
    [ $rc = 0 ] && same first "$work/run" "$what" || fail "$what: code $rc"
}
"$TRAIN" "$work/tiny.yaml" save="$work/first" > "$work/log" 2>&1 || fail "the first run"
trains "once more" "$TRAIN"
trains "time zone, locale, no home" env -u HOME TZ=Asia/Kathmandu LC_ALL=de_DE.UTF-8 LANG=tr_TR.UTF-8 "$TRAIN"
trains "OMP_NUM_THREADS=7" env OMP_NUM_THREADS=7 "$TRAIN"
trains "umask 077" sh -c 'umask 077; exec "$@"' sh "$TRAIN"
trains "no environment" env -i "$TRAIN"
trains "no locked memory" sh -c 'ulimit -l 0; exec "$@"' sh "$TRAIN"
for streams in '<&-' '>&-' '2>&-' '<&- >&- 2>&-' '> /dev/full' '> /dev/full 2>&1'; do
    trains "streams $streams" sh -c "exec \"\$@\" $streams" sh "$TRAIN"
done
trains "a pipe without a reader" \
    sh -c '{ "$@"; echo $? > "$0"; } | true; exit $(cat "$0")' "$work/code" "$TRAIN"
folder="$work/a folder, with é"
mkdir "$folder"
cp "$work"/corpus.* "$folder"
(cd "$folder" && "$TRAIN" "$work/tiny.yaml" data_path=corpus save="a run" > "$work/log" 2>&1) ||
    fail "a folder with spaces"
same first "$folder/a run" "a folder with spaces"

# the wall clock jumps an hour to and fro, at each call
cat > "$work/clock.c" <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

static long jump(void) { static long calls; return calls++ % 2 ? 3600 : -3600; }
int clock_gettime(clockid_t clock, struct timespec *t)
{
    int rc = ((int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime"))(clock, t);
    if (clock == CLOCK_REALTIME) t->tv_sec += jump();
    return rc;
}
int gettimeofday(struct timeval *restrict t, void *restrict zone)
{
    int rc = ((int (*)(struct timeval *, void *))dlsym(RTLD_NEXT, "gettimeofday"))(t, zone);
    t->tv_sec += jump();
    return rc;
}
time_t time(time_t *to)
{
    time_t t = ((time_t (*)(time_t *))dlsym(RTLD_NEXT, "time"))(0) + jump();
    return to ? *to = t : t;
}
C
${CC:-cc} -shared -fPIC -o "$work/clock.so" "$work/clock.c" -ldl || exit 1
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}verify_asan_link_order=0"
trains "a wall clock that jumps" env LD_PRELOAD="$work/clock.so" "$TRAIN"
! grep -Eq '"(elapsed|checkpoint|data)_ms": (-|[0-9]{6})' "$work/run/metrics.jsonl" ||
    fail "times follow the wall clock"
cat > "$work/train" <<SH2
#!/bin/sh
LD_PRELOAD="$work/clock.so" exec "$TRAIN" "\$@"
SH2
chmod +x "$work/train"
"$launch" -n 2 "$work/tiny.yaml" save="$work/two" > "$work/log" 2>&1 || fail "two ranks"
TRAIN=$work/train "$launch" -n 2 "$work/tiny.yaml" save="$work/jumps" > "$work/log" 2>&1 ||
    fail "two ranks, the clock jumps"
same two "$work/jumps" "two ranks, the clock jumps"
(ulimit -l 0; exec "$launch" -n 2 "$work/tiny.yaml" save="$work/unlocked") > "$work/log" 2>&1 ||
    fail "two ranks, no locked memory"
same two "$work/unlocked" "two ranks, no locked memory"
# an exported CDPATH makes `cd` print where it went, or go to another folder of that name
mkdir -p "$work/decoy/scripts"
for path in .:/ "$work/decoy"; do
    rm -rf "$work/cdpath"
    CDPATH=$path scripts/launch -n 2 "$work/tiny.yaml" save="$work/cdpath" > "$work/log" 2>&1 ||
        fail "two ranks, CDPATH=$path"
    same two "$work/cdpath" "two ranks, CDPATH=$path"
done
for streams in '<&-' '>&-' '2>&-' '<&- >&- 2>&-' '> /dev/full'; do
    rm -rf "$work/streams"
    sh -c "exec \"\$@\" $streams" sh "$launch" -n 2 "$work/tiny.yaml" save="$work/streams" > "$work/log" 2>&1 ||
        fail "two ranks, streams $streams"
    same two "$work/streams" "two ranks, streams $streams"
done

# variables of a batch system, or a list of hosts for other jobs, take no part in a job of one host
for batch in 'SLURM_JOBID=7 SLURM_NODELIST=n1 SLURM_TASKS_PER_NODE=4' "SGE_ROOT=/ ARC=x JOB_ID=3 PE_HOSTFILE=$work/none" \
    "OMPI_MCA_orte_default_hostfile=$work/none PRTE_MCA_prte_default_hostfile=$work/none"; do
    rm -rf "$work/batch"
    # shellcheck disable=SC2086
    env $batch "$launch" -n 2 "$work/tiny.yaml" save="$work/batch" > "$work/log" 2>&1 || fail "two ranks, $batch"
    same two "$work/batch" "two ranks, $batch"
done

# without a network, not even the loopback, mpirun gives up before it starts a rank: 7, and a line that says so
if unshare -n true 2> /dev/null; then
    unshare -n "$launch" -n 2 "$work/tiny.yaml" save="$work/lonely" > "$work/log" 2>&1
    rc=$?
    [ $rc = 7 ] && [ "$(grep -c '^error\[' "$work/log")" = 1 ] && grep -q '^error\[mpirun\].*interface.*; change: ' "$work/log" ||
        fail "no network: code $rc"
fi

# a compiler that the build cannot use is refused in one line
for version in '1 4:is clang, .*; change: make CC=gcc' '__clang__ 10:is gcc 10, .*; change: make CC=gcc-11, '; do
    printf '#!/bin/sh\ncase "$*" in -dumpmachine) uname -m ;; *) echo %s ;; esac\n' "${version%%:*}" > "$work/cc"
    chmod +x "$work/cc"
    make -n CC="$work/cc" train > "$work/log" 2>&1 && fail "${version%%:*}: built"
    [ "$(wc -l < "$work/log")" = 1 ] && grep -q "${version#*:}" "$work/log" || fail "${version%%:*}: not the line"
done

# The parent of a process may have left SIGCHLD ignored, which hides the ends of jobs, and signals blocked
env --ignore-signal=CHLD "$TRAIN" sweep "$work/tiny.yaml" --world 2 --measure 1 -o "$work/ignored" > "$work/log" 2>&1 &&
    grep -q ' a step, .* by the clock' "$work/log" || fail "SIGCHLD ignored: no layout is measured"
env --block-signal "$TRAIN" "$work/tiny.yaml" train_iters=1000000 save="$work/blocked" > "$work/log" 2>&1 &
job=$!
until grep -q ' iteration  *3/' "$work/log" || ! kill -0 $job 2> /dev/null; do sleep 0.1; done
kill -USR1 $job
for _ in $(seq 600); do kill -0 $job 2> /dev/null && sleep 0.1 || break; done
kill -KILL $job 2> /dev/null
wait $job
rc=$?
[ $rc = 75 ] || fail "signals blocked: SIGUSR1 has not saved: code $rc"

# limited LIMIT CAUSE -- under `ulimit LIMIT` the run ends with 5 and one error line that has CAUSE
limited() {
    sh -c "ulimit $1; exec \"\$@\"" sh "$TRAIN" "$work/tiny.yaml" save="$work/limited" > "$work/log" 2>&1
    rc=$?
    [ $rc = 5 ] && [ "$(grep -c '^error\[' "$work/log")" = 1 ] &&
        grep -q "^error\[.*$2.*; change: " "$work/log" ||
        fail "ulimit $1: code $rc"
}
# room N -- prints the limit on open files that leaves N descriptors to a command, beside its standard streams, what it
# inherits, and one more (here the folder that ls reads)
room() {
    ls /proc/self/fd < /dev/null |
        awk -v free="$1" '{ taken[$1] } END { while (free > 0) free -= !(n++ in taken); print n }'
}
limited "-n $(room 4)" 'Too many open files'
# every corpus keeps two files open: 100 of them pass a shell's limit, but not the system's
blend=
for i in $(seq 100); do
    ln "$work/corpus.bin" "$work/part$i.bin"
    ln "$work/corpus.idx" "$work/part$i.idx"
    blend="$blend,1,$work/part$i"
done
files=$(room 124)
sh -c 'ulimit -Sn "$0"; exec "$@"' "$files" "$TRAIN" "$work/tiny.yaml" "data_path=[${blend#,}]" save="$work/blend" > "$work/log" 2>&1 ||
    fail "200 files, ulimit -Sn $files"
sh -c 'ulimit -n "$0"; exec "$@"' "$files" "$TRAIN" "$work/tiny.yaml" "data_path=[${blend#,}]" save="$work/few" > "$work/log" 2>&1
rc=$?
[ $rc = 5 ] && grep -q '^error.*Too many open files; change: .*ulimit -Hn' "$work/log" ||
    fail "200 files, ulimit -n $files: code $rc"
for held in 0 7; do
    [ $held = 0 ] || exec 3< /dev/null 4<&3 5<&3 6<&3 7<&3 8<&3 9<&3    # inherited by launch, and by mpirun
    for ranks in 2 4; do
        files=$(room $((36 + 4 * ranks)))
        (ulimit -n $((files - 1)); exec "$launch" -n $ranks "$work/tiny.yaml" save="$work/files") > "$work/log" 2>&1
        rc=$?
        [ $rc = 5 ] && [ "$(grep -c '^error\[' "$work/log")" = 1 ] && grep -q "^error.*; change: ulimit -n $files" "$work/log" ||
            fail "$ranks ranks and $((files - 1)) files, $held inherited: code $rc"
        (ulimit -n "$files"; exec "$launch" -n $ranks "$work/tiny.yaml" save="$work/files-$held-$ranks") > "$work/log" 2>&1 ||
            fail "$ranks ranks and $files files, $held inherited"
    done
done
exec 3<&- 4<&- 5<&- 6<&- 7<&- 8<&- 9<&-

# A control group's memory goes to a file in memory, which no process holds that the kernel could kill for it: it kills a
# rank. 5, a line that says so. Needs root and a hierarchy of control groups that can be written.
group=
for at in /sys/fs/cgroup/memory /sys/fs/cgroup; do
    [ -n "$group" ] || ! [ -e $at/cgroup.procs ] || ! mkdir $at/gridiron.$$ 2> /dev/null || group=$at/gridiron.$$
done
for limit in memory.limit_in_bytes memory.max; do
    [ -z "$group" ] || ! echo 300M 2> /dev/null > "$group/$limit" || limited=1
done
# A plan that is larger than the group's memory, not than the machine's, is refused before any is taken.
if [ "${limited:-}" ]; then
    (echo 0 > "$group/cgroup.procs"; exec "$TRAIN" "$work/tiny.yaml" hidden_size=1024 num_layers=8 save="$work/large") > "$work/log" 2>&1
    rc=$?
    [ $rc = 5 ] && [ "$(grep -c '^error\[' "$work/log")" = 1 ] && grep -q '^error\[memory-plan\].* 0\.[0-9]* are left' "$work/log" ||
        fail "more memory planned than the control group has: code $rc"
    for ranks in 1 2; do         # and so is an order of samples that is larger than what is left
        (echo 0 > "$group/cgroup.procs"; exec "$launch" -n $ranks "$work/tiny.yaml" train_iters=20000000 save="$work/long") \
            > "$work/log" 2>&1
        rc=$?
        [ $rc = 5 ] && [ "$(grep -c '^error\[' "$work/log")" = 1 ] && grep -q '^error\[memory\].* the order of samples takes' "$work/log" ||
            fail "an order of samples larger than the control group on $ranks ranks: code $rc"
    done
fi
killed() { cat "$group/memory.oom_control" "$group/memory.events" 2> /dev/null | grep -q '^oom_kill [1-9]'; }
mkdir "$work/hog"
if [ "${limited:-}" ] && mount -t tmpfs none "$work/hog" 2> /dev/null; then
    printf '#!/bin/sh\necho 900 > /proc/self/oom_score_adj\nexec "%s" "$@"\n' "$TRAIN" > "$work/victim"     # to be killed
    chmod +x "$work/victim"
    (echo 0 > "$group/cgroup.procs"; TRAIN=$work/victim exec "$launch" -n 2 "$work/tiny.yaml" hidden_size=256 seq_length=128 \
        train_iters=1000000 save="$work/killed") > "$work/log" 2>&1 &
    job=$!
    until grep -q ' iteration  *3/' "$work/log" || ! kill -0 $job 2> /dev/null; do sleep 0.1; done
    (
        echo 0 > "$group/cgroup.procs"
        until killed || ! kill -0 $job 2> /dev/null; do head -c 1M /dev/zero >> "$work/hog/file"; done
    ) 2> /dev/null
    wait $job
    rc=$?
    umount "$work/hog"
    [ $rc = 5 ] && [ "$(grep -c '^error\[' "$work/log")" = 1 ] &&
        grep -q '^error\[rank-lost\].*the kernel has killed for memory on this host; change: ' "$work/log" ||
        fail "the kernel kills for memory: code $rc"
else
    echo "# no control group of memory can be made here: the kernel has killed nothing for memory"
fi
[ -z "$group" ] || for _ in 1 2 3 4 5; do rmdir "$group" 2> /dev/null && break; sleep 1; done
if (ulimit -v 30000 && "$TRAIN" help) > /dev/null 2>&1; then      # not with a sanitizer
    limited '-v 30000' 'cannot map\|cannot start the thread'      # whichever comes first
fi

# refused SITE LEAST COMMAND... -- each thread (or process) that COMMAND starts cannot be had, in turn: 5 and one
# error line, or no difference; there are LEAST of them at least
refused() {
    site=$1 least=$2 n=0
    shift 2
    while n=$((n + 1)) && rm -rf "$work/faults" "$work/run" && mkdir "$work/faults"; do
        FAULT="0 $site $n 0" FAULT_DIR=$work/faults timeout 120 "$@" > "$work/log" 2>&1
        rc=$?
        [ -e "$work/faults/died" ] || break
        [ $rc = 0 ] && [ "$site" = fork ] || { [ $rc = 5 ] && [ "$(grep -c '^error\[' "$work/log")" = 1 ] &&
            grep -q '^error\[.*; change: ' "$work/log"; } || fail "$site $n of $*: code $rc"
    done
    [ $rc = 0 ] && [ $n -gt "$least" ] || fail "$*: code $rc after $n"
}
faulty=$PWD/$BUILD/test_faults
refused thread 5 "$faulty" "$work/tiny.yaml" threads=3 async_save=true save="$work/run"
cat > "$work/pair" <<SH2
#!/bin/sh
TRAIN=$faulty GRIDIRON_PROGRESS=1 exec "$launch" -n 2 "\$@"
SH2
chmod +x "$work/pair"
refused thread 3 "$work/pair" "$work/tiny.yaml" save="$work/run"
refused fork 1 "$faulty" sweep "$work/tiny.yaml" --world 2 --measure 1 -o "$work/forks"
[ $bad = 0 ]
