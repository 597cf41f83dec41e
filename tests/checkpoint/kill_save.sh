#!/bin/sh
# tests/checkpoint/kill_save.sh kill|errors|long -- a save of a tiny checkpoint is killed at every system call
# that changes or opens a file (kill), or such a call fails, once or from then on (errors: the commonest two;
# long: all errors, and both with the asynchronous writer). After each fault the newest checkpoint loads with
# its own values, the program's exit code agrees with the files on disk, and the next save works and removes
# leftovers.
#
# kill and errors use the program's own faults (tests/faults.h), so that they run everywhere; long uses
# strace, which needs no help from the program. Calls are counted for each kind on its own (when=N). BUILD as
# in tests/run.
program=${BUILD:-build/cpu}/test_checkpoint
if [ "$1" = long ] && ! strace -o /dev/null true 2> /dev/null; then
    echo "strace is missing or may not trace; change: install strace, or allow ptrace"
    exit 1
fi
# a folder in memory where there is one: every save flushes the disk eight times
work=$(mktemp -d -p /dev/shm 2> /dev/null || mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
points=0 bad=0

fail() { bad=$((bad + 1)); echo "$*"; sed 's/^/    /' "$work/err" | head -5; }

# start: a run with iterations 0 and 1; the save of 2 deletes 0
mkdir "$work/start"
"$program" save "$work/start" 0 && "$program" save "$work/start" 1 || exit 1

# save CALL INJECTION MODE -- saves iteration 2 with one fault
with_own() { FAULT="$1:$2" FAULT_LOG="$work/log" "$program" save "$work/run" 2 $3; }
with_strace() {
    strace -f -qq -o "$work/log" -e trace="$1" -e inject="$1:$2" "$program" save "$work/run" 2 $3
}
inject=with_own

# once MODE CALL INJECTION -- one save with this fault; returns 1 when the save ends before the fault happens
once() {
    rm -rf "$work/run" "$work/log"
    cp -r "$work/start" "$work/run"
    $inject "$2" "$3" "$1" > /dev/null 2> "$work/err"
    rc=$?
    case $3 in
    signal*) [ $rc = 0 ] && return 1 ;;
    *)       grep -qs INJECTED "$work/log" || return 1 ;;
    esac
    points=$((points + 1))
    newest=$("$program" load "$work/run" 2>> "$work/err") ||
        fail "$1 $2 $3: rc $rc, then the newest checkpoint does not load"
    case $newest in
    2) ;;
    1) [ $rc = 0 ] && fail "$1 $2 $3: rc 0, but the newest checkpoint is 1" ;;
    *) fail "$1 $2 $3: the newest checkpoint is '$newest'" ;;
    esac
    case $3 in signal*) ;; *)
        [ $rc = 0 ] || [ -s "$work/err" ] || fail "$1 $2 $3: rc $rc and not a word" ;
        [ $rc -lt 128 ] && [ $rc != 8 ] || fail "$1 $2 $3: rc $rc" ;;
    esac
    "$program" save "$work/run" 3 2>> "$work/err" && [ "$("$program" load "$work/run")" = 3 ] ||
        fail "$1 $2 $3: the next save does not work"
    left=$(ls "$work/run/checkpoints" | grep -E 'tmp|trash')
    [ -z "$left" ] || fail "$1 $2 $3: the next save leaves $left"
}

# every MODE INJECTION... -- each injection at the first, second, ... call of each kind
every() {
    mode=$1
    shift
    for call in openat mkdirat pwrite64 pread64 fsync renameat2 renameat unlinkat close ftruncate flock; do
        for injection in "$@"; do
            n=1
            while once "$mode" $call "$(echo "$injection" | sed "s/@/$n/")"; do
                n=$((n + 1))
            done
        done
    done
}

case $1 in
kill)   every "" signal=KILL:when=@ ;;
errors) every "" error=ENOSPC:when=@ error=EIO:when=@+ ;;
long)   inject=with_strace
        every "" signal=KILL:when=@
        every async signal=KILL:when=@
        for e in ENOSPC EIO EINTR EDQUOT EROFS EMFILE ENAMETOOLONG EACCES; do
            every "" error=$e:when=@ error=$e:when=@+
            every async error=$e:when=@ error=$e:when=@+
        done ;;
*)      echo "usage: tests/checkpoint/kill_save.sh kill|errors|long"; exit 2 ;;
esac
echo "# $points points, $bad bad"
[ $bad = 0 ] && [ $points -gt 0 ]
