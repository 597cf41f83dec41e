#!/bin/sh
# tests/parallel/float_modes.sh -- libraries that change how a thread rounds, or what it does with denormal
# numbers: when they are loaded, in a step, before a save, in the threads of the pool and in the one that moves
# messages. One error line names the thread and the mode, the exit code is 6, and nothing that was computed so
# is saved.
set -u
work=${WORK:?} launch=$PWD/scripts/launch faulty=$PWD/$BUILD/test_faults bad=0
. tests/tiny.sh
"$TRAIN" tokenize src/io -o "$work/corpus" > /dev/null 2>&1 || exit 1
tiny "$work/tiny.yaml" train.train_iters=4 checkpoint.save_interval=1 precision.threads=1
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}verify_asan_link_order=0"

# ends SAYS SAVED COMMAND... -- COMMAND, given the configuration and save=, ends with 6 and one error line that
# says SAYS; the newest checkpoint is that of iteration SAVED
ends() {
    says=$1 saved=$2; shift 2
    rm -rf "$work/run"
    "$@" "$work/tiny.yaml" save="$work/run" > "$work/log" 2>&1
    rc=$?
    newest=$(ls "$work/run/checkpoints" 2> /dev/null | sed -n 's/^iter_0*//p' | tail -n 1)
    [ $rc = 6 ] && [ "$(grep -c '^error\[' "$work/log")" = 1 ] && [ "${newest:-0}" = "$saved" ] &&
        grep -q "^error\[float-modes\] .*$says.*; change: " "$work/log" ||
        { bad=$((bad + 1)); echo "$*: code $rc, iteration ${newest:-0} is saved, wanted '$says'"
          tail -n 4 "$work/log"; }
}

# preload NAME SOURCE -- makes the library NAME.so
preload() {
    printf '%s\n' '#define _GNU_SOURCE' '#include <dlfcn.h>' '#include <fenv.h>' '#include <pthread.h>' \
        '#include <stdlib.h>' "$2" > "$work/$1.c"
    ${CC:-cc} -shared -fPIC -o "$work/$1.so" "$work/$1.c" -ldl -lm || exit 1
}
preload toward '__attribute__((constructor)) static void loaded(void) { fesetround(FE_TOWARDZERO); }'
ends "the main thread rounds toward zero .*before the first step.*LD_PRELOAD.*toward.so" 0 \
    env LD_PRELOAD="$work/toward.so" "$TRAIN"
case $(uname -m) in
x86_64)      # what gcc links with -ffast-math does the same
    preload flush '__attribute__((constructor)) static void loaded(void) {
        __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8000); }'
    ends "flushes denormal results to zero, seen before" 0 env LD_PRELOAD="$work/flush.so" "$TRAIN"
    preload zero '__attribute__((constructor)) static void loaded(void) {
        __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x40); }'
    ends "takes denormal operands for zero, seen before" 0 env LD_PRELOAD="$work/zero.so" "$TRAIN" ;;
esac

# threads other than the main one: each thread that is started rounds up
preload threads 'typedef struct { void *(*fn)(void *); void *arg; } Start;
static void *start(void *p)
{
    Start s = *(Start *)p;
    free(p);
    fesetround(FE_UPWARD);
    return s.fn(s.arg);
}
int pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*fn)(void *), void *arg)
{
    Start *s = malloc(sizeof *s);
    *s = (Start){fn, arg};
    return ((int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))dlsym(
        RTLD_NEXT, "pthread_create"))(t, a, start, s);
}'
cat > "$work/train" <<SH2
#!/bin/sh
LD_PRELOAD="$work/threads.so" exec "$TRAIN" "\$@"
SH2
chmod +x "$work/train"
pool() { LD_PRELOAD="$work/threads.so" "$TRAIN" "$@" threads=3; }
messages() { TRAIN=$work/train GRIDIRON_PROGRESS=1 "$launch" -n 2 "$@"; }

# in a step, and before a save, on one rank of two
in_step() { TRAIN=$faulty FAULT="1 F 3 0 down" "$launch" -n 2 "$@"; }
in_save() { TRAIN=$faulty FAULT="0 save 3 0 down" "$launch" -n 2 "$@"; }
ends "a thread that computes rounds up" 0 pool
ends "the thread that moves messages rounds up" 0 messages
ends "\[rank 1 .*the main thread rounds down .*in iteration 3" 2 in_step
ends "\[rank 0 .*the main thread rounds down .*in iteration 3" 2 in_save
[ $bad = 0 ]
