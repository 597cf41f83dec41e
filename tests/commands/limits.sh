#!/bin/sh
# tests/commands/limits.sh -- a write beyond the file size limit (ulimit -f) ends with exit 5 and one error
# line with the reason, and older checkpoints stay. A disk that cannot read (EIO), from the start or later in a
# run, is reported as such, not as a file of another format. A disk that is slow to read changes no byte, and the
# wait is the data's.
set -u
work=${WORK:?} bad=0
. tests/tiny.sh
"$TRAIN" tokenize parallel -o "$work/corpus" > /dev/null 2>&1 || exit 1
tiny "$work/tiny.yaml" model.num_layers=1 model.hidden_size=64 model.num_attention_heads=2 model.seq_length=16 \
    optimizer.lr_decay_iters=8

# wanted CODE WORDS COMMAND... -- the command ends with CODE and one error line that has WORDS
wanted() {
    code=$1 words=$2; shift 2
    timeout 240 "$@" > "$work/log" 2>&1
    rc=$?
    [ $rc = "$code" ] && [ "$(grep -c '^error\[' "$work/log")" = 1 ] && grep -q "^error\[.*$words.*; change: " "$work/log" &&
        return
    echo "$*: code $rc, wanted $code and '$words'"
    tail -n 3 "$work/log"
    bad=$((bad + 1))
}

"$TRAIN" "$work/tiny.yaml" save="$work/run" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
"$TRAIN" inspect "$work/run" --json > "$work/before"
for blocks in 2 8; do
    wanted 5 'File too large' sh -c 'ulimit -f "$0" && exec "$@"' $blocks "$TRAIN" "$work/tiny.yaml" save="$work/new$blocks"
done
wanted 5 'File too large' sh -c 'ulimit -f 64 && exec "$@"' sh "$TRAIN" "$work/tiny.yaml" save="$work/run" load=latest \
    train_iters=4
"$TRAIN" inspect "$work/run" --json > "$work/after"
for key in newest whole; do
    [ "$(grep "^  \"$key\"" "$work/before")" = "$(grep "^  \"$key\"" "$work/after")" ] || { echo "$key:"; cat "$work/after"; bad=1; }
done
wanted 5 'File too large' sh -c 'ulimit -f 8 && exec "$@"' sh "$TRAIN" tokenize parallel -o "$work/large"
mkdir "$work/hf.tmp" && echo mine > "$work/hf.tmp/mine"
wanted 5 'File too large' sh -c 'ulimit -f 64 && exec "$@"' sh "$TRAIN" export "$work/run" -o "$work/hf"
"$TRAIN" export "$work/run" -o "$work/hf" > "$work/log" 2>&1 || { cat "$work/log"; bad=1; }
[ "$(echo "$work"/hf*)" = "$work/hf $work/hf.tmp" ] && [ -e "$work/hf.tmp/mine" ] ||
    { echo "export has left something, or removed what is not its own"; bad=1; }
# a resume from an earlier checkpoint cannot copy the metrics: later checkpoints stay, and no other place is named
"$TRAIN" "$work/tiny.yaml" save="$work/later" save_interval=1 train_iters=30 > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
wanted 5 'metrics.jsonl.*File too large' sh -c 'ulimit -f 16 && exec "$@"' sh "$TRAIN" "$work/tiny.yaml" save="$work/later" \
    load="$work/later/checkpoints/iter_0000020" train_iters=30
! grep 'are in .* now' "$work/log" && [ -d "$work/later/checkpoints/iter_0000030" ] || { echo "later checkpoints"; bad=1; }
wanted 5 'larger than 4 KB' sh -c 'ulimit -f 8 && exec "$@"' sh scripts/launch -n 2 "$work/tiny.yaml" save="$work/two"
wanted 5 'File too large' sh -c 'ulimit -f 40000 && exec "$@"' sh scripts/launch -n 2 "$work/tiny.yaml" save="$work/two"
# the order of the samples of one process is no file: here it takes more bytes than a file may have
sh -c 'ulimit -f 2000 && exec "$@"' sh "$TRAIN" "$work/tiny.yaml" save="$work/ordered" train_iters=1000000 exit_interval=2 > "$work/log" 2>&1
rc=$?
[ $rc = 75 ] || { echo "an order larger than a file may be: code $rc"; tail -n 3 "$work/log"; bad=1; }
# two ranks share 1.8 TB, which the host does not have: said at once, before the kernel gives page after page and kills for
# memory. The limit on file sizes ends that here in case
many=$(for _ in $(seq 30); do printf ',1,%s' "$work/corpus"; done)
wanted 5 'the order of samples takes 1[0-9]*\.[0-9]* GB of the host' sh -c 'ulimit -f 100000000 && exec "$@"' sh \
    scripts/launch -n 2 "$work/tiny.yaml" save="$work/vast" data_path="[${many#,}]" global_batch_size=100 train_iters=1000000000
[ -z "$(find "$work/run" "$work"/new* -name '*.tmp')" ] || { find "$work/run" "$work"/new* -name '*.tmp'; bad=1; }

# ---- a disk that cannot read

cat > "$work/eio.c" <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Waits until the main thread has slept for so many ms. A step may take longer than any time given here: then the
 * batches that are read ahead of it would be there before they are asked for. */
static int keep_waiting(int ms)
{
    char stat[512];
    for (int asleep = 0; asleep < ms && gettid() != getpid(); usleep(1000)) {
        int fd = open("/proc/self/stat", O_RDONLY);
        ssize_t n = fd < 0 ? 0 : read(fd, stat, sizeof stat - 1);
        stat[n > 0 ? n : 0] = 0;
        char *state = strrchr(stat, ')');
        asleep = state && state[2] == 'S' ? asleep + 1 : 0;
        close(fd);
    }
    return 0;
}

/* Reads of the file whose path ends in EIO_OF fail, from the EIO_FROM-th (1) to the EIO_TO-th (the last), or those of
 * another thread than the main one keep it waiting for SLOW_MS. With QUICK the waits between two tries take no time. */
static int fails(int fd)
{
    static _Atomic int reads;
    char link[64], path[PATH_MAX];
    const char *end = getenv("EIO_OF"), *from = getenv("EIO_FROM"), *to = getenv("EIO_TO"), *slow = getenv("SLOW_MS");
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path), m = end ? (ssize_t)strlen(end) : 0;
    if (!m || n < m || memcmp(path + n - m, end, (size_t)m))
        return 0;
    if (slow)
        return keep_waiting(atoi(slow));
    int read = ++reads;
    return read >= (from ? atoi(from) : 1) && (!to || read <= atoi(to)) ? errno = EIO : 0;
}
ssize_t read(int fd, void *p, size_t n)
{
    return fails(fd) ? -1 : ((ssize_t (*)(int, void *, size_t))dlsym(RTLD_NEXT, "read"))(fd, p, n);
}
ssize_t pread(int fd, void *p, size_t n, off_t at)
{
    return fails(fd) ? -1 : ((ssize_t (*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, "pread"))(fd, p, n, at);
}
ssize_t pread64(int fd, void *p, size_t n, off_t at) { return pread(fd, p, n, at); }
int nanosleep(const struct timespec *t, struct timespec *left)
{
    return getenv("QUICK") ? 0 : clock_nanosleep(CLOCK_REALTIME, 0, t, left) ? -1 : 0;
}

/* At the first flush of a file a shell runs AT_FLUSH; with NO_FLUSH none can be flushed. With READ_ONLY no folder can be
 * removed. */
int fsync(int fd)
{
    struct stat s;
    char *command = getenv("AT_FLUSH");
    int regular = !fstat(fd, &s) && S_ISREG(s.st_mode);
    if (regular && getenv("NO_FLUSH"))
        return errno = EIO, -1;
    if (regular && command) {
        command = strdup(command);
        unsetenv("AT_FLUSH");
        unsetenv("LD_PRELOAD");
        if (system(command))
            abort();
        free(command);
    }
    return (int)syscall(SYS_fsync, fd);
}
int rmdir(const char *path) { return getenv("READ_ONLY") ? errno = EROFS, -1 : (int)syscall(SYS_rmdir, path); }
C
${CC:-cc} -shared -fPIC -o "$work/eio.so" "$work/eio.c" -ldl || exit 1
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}verify_asan_link_order=0"

# unreadable CODE FILE COMMAND... -- COMMAND without reads of FILE ends with CODE and a line with FILE and EIO
unreadable() {
    code=$1 file=$2; shift 2
    wanted "$code" "$file.*Input/output error" env LD_PRELOAD="$work/eio.so" QUICK=1 EIO_OF="$file" "$@"
    ! grep -Eq '^error[^ ]* .*(looks like|does not start|damaged|missing|not a )' "$work/log" ||
        { echo "$file: told as something else"; tail -n 1 "$work/log"; bad=$((bad + 1)); }
}
cp "$work/corpus.bin" "$work/bare.u16"
unreadable 3 corpus.idx "$TRAIN" "$work/tiny.yaml" save="$work/eio"
unreadable 3 corpus.bin "$TRAIN" "$work/tiny.yaml" save="$work/eio2"
unreadable 3 bare.u16 "$TRAIN" "$work/tiny.yaml" data_path="raw:$work/bare.u16" save="$work/eio3"
unreadable 4 manifest.json "$TRAIN" "$work/tiny.yaml" save="$work/eio4" load="$work/run"
unreadable 4 model-00000.safetensors "$TRAIN" "$work/tiny.yaml" save="$work/eio5" load="$work/run"
unreadable 4 manifest.json "$TRAIN" export "$work/run" -o "$work/hf2"

# ---- commands that end before their files are whole: nothing of them is left

fail() { echo "$*"; bad=$((bad + 1)); }
# gone NAME CODE -- NAME, and what begins so, is not there, and the command has ended with CODE
gone() {
    [ "$rc" = "$2" ] && [ -z "$(find "$work" -maxdepth 1 -name "$1*")" ] || fail "$1: code $rc, $(find "$work" -maxdepth 1 -name "$1*")"
}
# stopped NAME COMMAND... -- COMMAND, which SIGTERM ends when all is written
stopped() {
    name=$1; shift
    LD_PRELOAD="$work/eio.so" AT_FLUSH='kill -TERM $PPID' "$@" > "$work/log" 2>&1
    rc=$?
    gone "$name" 143
}
stopped exported "$TRAIN" export "$work/run" -o "$work/exported"
stopped dumped "$TRAIN" dump "$work/tiny.yaml" -o "$work/dumped"
cat > "$work/train" <<SH
#!/bin/sh
[ "\$OMPI_COMM_WORLD_RANK" != 1 ] || export LD_PRELOAD="$work/eio.so" NO_FLUSH=1
exec "$TRAIN" "\$@"
SH
chmod +x "$work/train"
TRAIN="$work/train" scripts/launch -n 2 dump "$work/tiny.yaml" -o "$work/dumped" tensor_model_parallel_size=2 > "$work/log" 2>&1
rc=$?
gone dumped 5
# another export into the same folder is through first
wanted 2 'twice is there already' env LD_PRELOAD="$work/eio.so" AT_FLUSH="'$TRAIN' export '$work/run' -o '$work/twice'" \
    "$TRAIN" export "$work/run" -o "$work/twice"
diff -r "$work/hf" "$work/twice" && [ "$(echo "$work"/twice*)" = "$work/twice" ] || fail "the other export"
wanted 5 'Read-only file system' env LD_PRELOAD="$work/eio.so" READ_ONLY=1 "$TRAIN" export "$work/run" -o "$work/unwritten"

# ---- a checkpoint on a disk that cannot read for a moment, and for longer

"$TRAIN" "$work/tiny.yaml" save="$work/two" train_iters=4 save_interval=2 > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
# resumes AT FILE TO POLICY -- a resume whose first TO reads of the newest checkpoint's FILE fail goes on after iteration AT
resumes() {
    rm -rf "$work/again"
    cp -r "$work/two" "$work/again"
    LD_PRELOAD="$work/eio.so" EIO_OF="iter_0000004/$2" EIO_TO=$3 "$TRAIN" "$work/tiny.yaml" save="$work/again" train_iters=6 \
        load=latest on_corrupt=$4 > "$work/log" 2>&1 || { fail "$*: code $?"; tail -n 3 "$work/log"; return; }
    grep -q "^warning: cannot read $2.*Input/output error; trying again for 4 s$" "$work/log" &&
        grep -q "^loaded .*iter_000000$1: " "$work/log" && [ "$(grep -c ' iteration  ' "$work/log")" = $((6 - $1)) ] ||
        { fail "$*"; tail -n 5 "$work/log"; }
}
resumes 4 manifest.json 1 previous
resumes 4 model-00000.safetensors 2 previous
resumes 4 model-00000.safetensors 2 stop
resumes 2 model-00000.safetensors 999 previous

# ---- a disk that fails later, and one that is slow

steps=12        # two reads each, at most four ahead: more of them come after the first step than $from skips
"$TRAIN" "$work/tiny.yaml" save="$work/whole" train_iters=$steps > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
from=1 late=0
while :; do
    rm -rf "$work/run"
    LD_PRELOAD="$work/eio.so" QUICK=1 EIO_OF=corpus.bin EIO_FROM=$from "$TRAIN" "$work/tiny.yaml" save="$work/run" train_iters=$steps \
        > "$work/log" 2>&1
    rc=$?
    [ $rc != 0 ] || break
    [ $rc = 3 ] && [ "$(grep -c '^error\[' "$work/log")" = 1 ] && grep -q '^error.*corpus.bin.*Input/output error.*; change: ' "$work/log" ||
        { echo "EIO at read $from: code $rc"; tail -n 3 "$work/log"; bad=$((bad + 1)); }
    ! grep -q ' iteration  ' "$work/log" || late=$((late + 1))
    from=$((from + (from < 8 ? 1 : 9)))
    [ $from -lt 400 ] || { echo "the reads do not end"; exit 1; }
done
[ $late -gt 0 ] || { echo "of $from reads none failed after the first step"; bad=$((bad + 1)); }
. tests/parallel/same.sh
same whole "$work/run" "a disk that could fail"
rm -rf "$work/run"
LD_PRELOAD="$work/eio.so" EIO_OF=corpus.bin SLOW_MS=40 "$TRAIN" "$work/tiny.yaml" save="$work/run" train_iters=$steps > "$work/log" 2>&1 ||
    fail "a slow disk: $?"
same whole "$work/run" "a slow disk"
sed -n 's/.*"data_ms": \([0-9.]*\).*/\1/p' "$work/run/metrics.jsonl" |
    awk '$1 >= 40 { n++ } END { exit n < 3 }' || fail "the wait for a slow disk is not told as the data's"
# one rank of two, the one that does not check the corpus: it reads its batches alone, eight or more times in eight steps
cat > "$work/train" <<SH
#!/bin/sh
[ "\$OMPI_COMM_WORLD_RANK" = 1 ] && export LD_PRELOAD="$work/eio.so" QUICK=1 EIO_OF=corpus.bin EIO_FROM=6
exec "$TRAIN" "\$@"
SH
chmod +x "$work/train"
rm -rf "$work/run"
wanted 3 'corpus.bin.*Input/output error' env TRAIN="$work/train" scripts/launch -n 2 "$work/tiny.yaml" save="$work/run" train_iters=8
[ $bad = 0 ]
