#!/bin/sh
# tests/commands/short.sh -- reads and writes of files that move a part of what is asked for, at every call, every third
# one interrupted (EINTR) first: every command has the same bytes as without.
set -u
work=${WORK:?} launch=$PWD/scripts/launch bad=0
. tests/tiny.sh
. tests/parallel/same.sh
fail() { bad=$((bad + 1)); echo "$*"; tail -n 4 "$work/log"; }

cat > "$work/short.c" <<'C'
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* How many of n bytes a call moves; 0: it is interrupted. */
static size_t part(int fd, size_t n)
{
    static _Atomic unsigned calls;
    struct stat s;
    if (fstat(fd, &s) || !S_ISREG(s.st_mode) || n < 2)
        return n;
    unsigned k = calls++;
    return k % 3 == 2 ? 0 : 1 + (k * 2654435761u >> 8) % (n - 1);
}
#define PART(call, ...)                                                                                      \
    size_t m = part(fd, n);                                                                                  \
    if (n && !m) {                                                                                           \
        errno = EINTR;                                                                                       \
        return -1;                                                                                           \
    }                                                                                                        \
    return syscall(call, fd, p, m, ##__VA_ARGS__)
ssize_t read(int fd, void *p, size_t n) { PART(SYS_read); }
ssize_t write(int fd, const void *p, size_t n) { PART(SYS_write); }
ssize_t pread(int fd, void *p, size_t n, off_t at) { PART(SYS_pread64, at); }
ssize_t pread64(int fd, void *p, size_t n, off_t at) { PART(SYS_pread64, at); }
ssize_t pwrite(int fd, const void *p, size_t n, off_t at) { PART(SYS_pwrite64, at); }
ssize_t pwrite64(int fd, const void *p, size_t n, off_t at) { PART(SYS_pwrite64, at); }
__attribute__((destructor)) static void count(void)
{
    const char *path = getenv("SHORT_LOG");
    FILE *f = path ? fopen(path, "a") : NULL;
    if (f) {
        fprintf(f, "x\n");
        fclose(f);
    }
}
C
${CC:-cc} -shared -fPIC -O1 -o "$work/short.so" "$work/short.c" || exit 1
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}verify_asan_link_order=0"
cat > "$work/train" <<SH
#!/bin/sh
LD_PRELOAD="$work/short.so" SHORT_LOG="$work/short" exec "$TRAIN" "\$@"
SH
chmod +x "$work/train"

# commands PROGRAM FOLDER -- all commands that read and write files, results in FOLDER
commands() {
    program=$1 to=$2
    mkdir "$to"
    do_() { "$program" "$@" > "$to/said" 2> "$work/log" < /dev/null || fail "$*: $?"; }
    do_ tokenize src parallel -o "$to/corpus"
    do_ "$work/tiny.yaml" save="$to/one" async_save=true
    do_ "$work/tiny.yaml" save="$to/one" load=latest train_iters=6
    TRAIN=$program "$launch" -n 2 "$work/tiny.yaml" save="$to/two" data_parallel_sharding_strategy=optim > "$work/log" 2>&1 ||
        fail "$program, two ranks: $?"
    do_ dump "$work/tiny.yaml" load="$to/one" -o "$to/dump.safetensors"
    do_ export "$to/one" -o "$to/hf"
    do_ import "$to/hf" -o "$to/imported"
    do_ inspect "$to/corpus" --json
    sed "s|$to|TO|g" "$to/said" > "$to/inspect"
    do_ eval "$work/tiny.yaml" load="$to/one" --json
    sed "s|$to|TO|g" "$to/said" > "$to/eval"
    do_ generate "$work/tiny.yaml" load="$to/one" --prompt "int " --tokens 20
    mv "$to/said" "$to/text"
}
"$TRAIN" tokenize src parallel -o "$work/corpus" > /dev/null 2>&1 || exit 1
tiny "$work/tiny.yaml" train.train_iters=4 optimizer.lr_decay_iters=8 checkpoint.save_interval=2 train.eval_interval=2 \
    train.eval_iters=1
commands "$TRAIN" "$work/whole"
commands "$work/train" "$work/parts"
[ "$(wc -l < "$work/short")" -ge 10 ] || fail "the calls were not cut short"
for file in corpus.bin corpus.idx dump.safetensors inspect eval text; do
    cmp "$work/whole/$file" "$work/parts/$file" || fail "$file differs"
done
diff -r "$work/whole/hf" "$work/parts/hf" || fail "the export differs"
for shard in "$work"/whole/imported/checkpoints/*/*.safetensors; do
    cmp "$shard" "$work/parts/${shard#"$work"/whole/}" || fail "the import differs"
done
same whole/one "$work/parts/one" "one rank"
same whole/two "$work/parts/two" "two ranks"
[ $bad = 0 ]
