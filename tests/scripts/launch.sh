#!/bin/sh
# tests/scripts/launch.sh TRIES -- jobs whose scripts/launch or mpirun is ended leave no process, no work
# folder and no shared memory, and lose no signal. TRIES delays from 0 to 1 s after the start, most of them
# short, for each of ten ways: SIGTERM, SIGINT, SIGUSR1, SIGKILL to scripts/launch; SIGTERM and at once SIGKILL
# to it; SIGKILL, SIGTERM, SIGSEGV to mpirun; SIGKILL to scripts/launch_job; SIGKILL to every process named
# scripts/launch. `make test-launch` runs 100 tries.
. tests/signals.sh
set -u
tries=${1:-10}
# a /dev/shm of our own, where that is allowed, because other programs leave files there too
if [ -z "${OWN_SHM:-}" ]; then
    export OWN_SHM=no
    if unshare -m sh -c 'mount -t tmpfs none /dev/shm' 2> /dev/null; then
        export OWN_SHM=yes
        exec unshare -m sh -c 'mount -t tmpfs none /dev/shm && exec "$0" "$@"' "$0" "$tries"
    fi
fi
work=${WORK:-$(mktemp -d)} bad=0
. tests/tiny.sh
"$TRAIN" tokenize README.md -o "$work/corpus" > /dev/null 2>&1 || exit 1
tiny "$work/tiny.yaml" train.train_iters=1000000 optimizer.lr=0.001 log.log_interval=100
mkdir "$work/tmp"
mkfifo "$work/pipe"
tried=0                            # every second job prints into a pipe

alive() { # prints the job's living processes: those with the run directory among their arguments
    for p in $(grep -lsF "$work/run" /proc/[0-9]*/cmdline); do
        p=${p#/proc/} p=${p%/cmdline}
        ! grep -qs '^State:.[^ZX]' "/proc/$p/status" || echo "$p"
    done
}
mpirun_of() { # PID of scripts/launch: waits for its mpirun and prints its process id. In $( ) the shell does not see its jobs end
    while :; do
        for pid in $(alive); do
            case $(cat "/proc/$pid/comm" 2> /dev/null) in mpirun | orterun | prterun) echo "$pid"; return ;; esac
        done
        grep -qs '^State:.[^ZX]' "/proc/$1/status" || return
        sleep 0.005
    done
}
left() {
    for pid in $(alive); do tr '\0' ' ' < "/proc/$pid/cmdline"; done 2> /dev/null
    ls -A "$work/tmp"
    [ "$OWN_SHM" = no ] || ls -A /dev/shm
}
ends() { # waits up to a minute until nothing is left; sets `rest`
    for _ in $(seq 600); do
        [ $way != everything ] || rm -rf "$work"/tmp/*  # no process was left to remove them
        rest=$(left)
        [ -n "$rest" ] || return
        sleep 0.1
    done
}
way=alone delay=0
await() { # PID: waits up to two minutes until the process has ended
    for _ in $(seq 2400); do
        kill -0 "$1" 2> /dev/null || break
        sleep 0.05
    done
    kill -0 "$1" 2> /dev/null && { echo "# $way after $delay s: launch goes on"; kill -9 "$1"; }
    wait "$1"
}
clear_up() {
    # shellcheck disable=SC2046
    kill -9 $(alive) 2> /dev/null
    sleep 0.2
    rm -rf "$work"/tmp/*
    [ "$OWN_SHM" = no ] || rm -f /dev/shm/*
}

try() { # WAY DELAY CODES
    way=$1 delay=$2 codes=$3 wrong=
    rm -rf "$work/run"
    exec 5> "$work/out"
    reader='' tried=$((tried + 1))
    [ $((tried % 2)) = 0 ] || {
        exec 3<> "$work/pipe" 4< "$work/pipe" 5> "$work/pipe" 3>&-       # both ends: nobody waits for the other to open his
        cat <&4 > "$work/out" 5>&- &
        reader=$!
        exec 4<&-
    }
    # a shell like this one starts what is in the background with SIGINT ignored
    TMPDIR="$work/tmp" env --default-signal=INT scripts/launch -n 2 "$work/tiny.yaml" save="$work/run" >&5 2>&1 5>&- &
    job=$!
    exec 5>&-
    [ $way != INT ] || until grep -qsx launch "/proc/$job/comm"; do sleep 0.01; done     # not the shell that will be it
    sleep "$delay"
    case $way in
    TERM | INT | USR1 | KILL) kill "-$way" $job ;;
    TERM+KILL)          kill -TERM $job; kill -KILL $job ;;
    mpirun | mpirun-*)  pid=$(mpirun_of $job); sleep "$delay"; kill "-${signal:-KILL}" "$pid" ;;
    job)                pid=$(mpirun_of $job); kill -KILL "$(awk '{ print $4 }' "/proc/$pid/stat")" ;;
    everything)         for pid in $(alive); do
                            grep -qz 'scripts/launch' "/proc/$pid/cmdline" 2> /dev/null && echo "$pid"
                        done | xargs -r kill -KILL 2> /dev/null ;;
    esac
    await $job
    rc=$?
    [ -z "$reader" ] || wait "$reader"         # cat ends with the last process of the job
    case " $codes " in *" $rc "*) ;; *) wrong="code $rc, not $codes" ;; esac
    # 138 (SIGUSR1 killed it) is right only for a job that had printed nothing
    [ $rc != 138 ] || [ ! -s "$work/out" ] || wrong="code $rc"
    case $way in
    mpirun* | job)  # told to end, it kills its ranks; killed, they leave when they see it: another rank may see that first
        case $way$(grep '^error\[' "$work/out" | sed 's/].*//') in
        mpirun*'error[launcher-lost' | 'joberror[launcher-lost' | mpirun*'error[rank-lost') ;;
        *) wrong="$wrong; its error line" ;;
        esac ;;
    esac
    ends
    [ -z "$rest" ] || wrong="$wrong; left: $rest"
    [ -z "$wrong" ] || {
        bad=$((bad + 1))
        echo "# $way after $delay s: $wrong"
        grep -v ' iteration ' "$work/out" | tail -n 8
        clear_up
    }
}

# a crash of a process alone is reported, even if a library has handlers of its own. A sanitizer wants to be loaded first
: > "$work/out"
handler=
case $BUILD in *debug* | *thread*) ;; *) handler=$work/handler.so ;; esac
printf '#include <signal.h>\n#include <unistd.h>\nstatic void own(int s) { _exit(s); }\n
    __attribute__((constructor)) static void load(void) { signal(SIGSEGV, own); }\n' |
    gcc -shared -fPIC -x c - -o "$work/handler.so" || exit 1
LD_PRELOAD=$handler "$TRAIN" "$work/tiny.yaml" save="$work/alone" > "$work/out" 2> "$work/errors" &
job=$!
for _ in $(seq 6000); do ! grep -q '^corpus:' "$work/out" || break; sleep 0.02; done
kill -SEGV $job
await $job
rc=$?
if [ $rc != 8 ] || ! head -n 1 "$work/errors" |
    grep -q '^error\[crashed\] SIGSEGV (signal 11, sent by process [0-9]*) in [^;]*; change: ' ||
    ! grep -q '^    #[0-9]* training_run+0x' "$work/errors"; then
    echo "# one process: code $rc"
    cat "$work/errors"
    bad=1
fi

# mpirun catches none of SIGBUS, SIGFPE and SIGSEGV: in its handler it would stand still
scripts/launch -n 2 "$work/tiny.yaml" save="$work/run" > "$work/out" 2>&1 &
job=$!
pid=$(mpirun_of $job)
for _ in $(seq 6000); do ! grep -q '^corpus:' "$work/out" || break; sleep 0.02; done
caught=$((0x$(awk '$1 == "SigCgt:" { print $2 }' "/proc/$pid/status") & 0x4c0))
[ $caught = 0 ] || { echo "# mpirun catches signals: mask $caught"; bad=$((bad + 1)); }
kill -TERM $job
await $job

# a folder for temporary files that is cleaned of what is old while a job runs: the job makes its files new each hour, which
# is a tenth of a second here. Where the file that says that the ranks have found each other is gone all the same, or all files
# are, the job goes on; without all it still saves when it is asked to
mkdir "$work/bin"
printf '#!/bin/sh\necho "$1" >> %s/slept\n[ "$1" = 3600 ] || exec %s "$@"\nexec %s 0.1\n' "$work" "$(command -v sleep)" "$(command -v sleep)" > "$work/bin/sleep"
chmod +x "$work/bin/sleep"
for gone in old together '*'; do
    rm -rf "$work/run"
    : > "$work/out"
    : > "$work/slept"
    PATH=$work/bin:$PATH TMPDIR=$work/tmp GRIDIRON_START_SECONDS=10 scripts/launch -n 2 "$work/tiny.yaml" save="$work/run" > "$work/out" 2>&1 &
    job=$!
    for _ in $(seq 6000); do ! grep -q ' iteration ' "$work/out" || break; sleep 0.02; done
    case $gone in
    old)    find "$work/tmp" -exec touch -d '20 days ago' {} +
            for _ in $(seq 600); do [ -n "$(find "$work/tmp" -mindepth 1 -mtime +10)" ] || break; sleep 0.1; done
            [ -z "$(find "$work/tmp" -mindepth 1 -mtime +10)" ] || { echo "# old: $(find "$work/tmp" -mindepth 1 -mtime +10)"; bad=1; } ;;
    *)      for _ in $(seq 6000); do ! grep -qx 1 "$work/slept" || break; sleep 0.02; done      # it knows that they have
            rm -r "$work"/tmp/gridiron.*/$gone
            [ "$gone" != together ] || sleep 12 ;;
    esac
    case $gone in together) signal=TERM code=143 ;; *) signal=USR1 code=75 ;; esac
    kill -$signal $job
    await $job
    rc=$?
    ends
    [ $rc = $code ] && [ -z "$rest" ] || { echo "# $gone is gone: code $rc, left: $rest"; tail -n 5 "$work/out"; bad=1; }
done

# told to end while ranks start, mpirun may end with 1 and a line of its event library alone
printf '#!/bin/sh\necho "[warn] Epoll MOD(1) on fd 23 failed." >&2\nexit 1\n' > "$work/bin/mpirun"
chmod +x "$work/bin/mpirun"
PATH=$work/bin:$PATH scripts/launch -n 2 "$work/tiny.yaml" save="$work/run" > "$work/out" 2>&1
rc=$?
[ $rc = 7 ] && [ "$(wc -l < "$work/out")" = 1 ] && grep -q '^error\[launcher-lost\] mpirun has ended its ranks.*; change: ' "$work/out" ||
    { echo "# mpirun that says nothing of its end: code $rc"; cat "$work/out"; bad=1; }
# told to end while ranks start, one of them may see another one end before it does
# shellcheck disable=SC2016
printf '#!/bin/sh\ntrap '\''echo "error[rank-lost] [rank 1 tp 0 cp 0 dp 1 pp 0] rank 0 tp 0 cp 0 dp 0 pp 0 (process 1) died; change: x
@code 7" >&2; echo @code 7 > "$GRIDIRON_PAGE.0"; exit 7'\'' TERM
: > %s/up\nwhile :; do sleep 0.1; done\n' "$work" > "$work/bin/mpirun"
PATH=$work/bin:$PATH scripts/launch -n 2 "$work/tiny.yaml" save="$work/run" > "$work/out" 2>&1 &
job=$!
for _ in $(seq 6000); do [ ! -f "$work/up" ] || break; sleep 0.02; done
kill -TERM $job
await $job
rc=$?
[ $rc = 143 ] && [ ! -s "$work/out" ] || { echo "# a rank sees another one end as it was told to: code $rc"; cat "$work/out"; bad=1; }
# a name of 63 letters is longer than Open MPI has room for, and mpirun crashes
printf '#!/bin/sh\nkill -ABRT $$\n' > "$work/bin/mpirun"
PATH=$work/bin:$PATH scripts/launch -n 2 "$work/tiny.yaml" save="$work/run" > "$work/out" 2>&1
rc=$?
[ $rc = 7 ] && grep -q '^error\[mpirun\] mpirun crashed in its start; change: a shorter name for a host' "$work/out" ||
    { echo "# mpirun that crashes: code $rc"; cat "$work/out"; bad=1; }
# Open MPI 5 says who died in two lines, and nothing of the code of the only rank, which says it itself
cat > "$work/bin/mpirun" <<'SH'
#!/bin/sh
line=$(printf '%074d' 0 | tr 0 -)
printf '%s\nprterun noticed that process rank 1 with PID 7 on node there exited on\nsignal 9 (Killed).\n%s\n' "$line" "$line" >&2
exit 137
SH
PATH=$work/bin:$PATH scripts/launch -n 2 help > "$work/out" 2>&1
rc=$?
[ $rc = 7 ] && grep -q '^error\[rank-lost\] rank 1 on host there (signal 9) died in its start; change: ' "$work/out" ||
    { echo "# a death as Open MPI 5 tells it: code $rc"; cat "$work/out"; bad=1; }
cat > "$work/bin/mpirun" <<SH
#!/bin/sh
env -u LD_PRELOAD OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0 "$TRAIN" inspect "$work/damaged"
SH
"$TRAIN" "$work/tiny.yaml" save="$work/damaged" train_iters=1 > "$work/out" 2>&1 &&
    echo x >> "$work/damaged/checkpoints/iter_0000001/model-00000.safetensors"
PATH=$work/bin:$PATH scripts/launch -n 1 inspect "$work/damaged" > "$work/out" 2>&1
rc=$?
[ $rc = 1 ] && ! grep -q '^error' "$work/out" ||
    { echo "# the only rank, of whose code mpirun says nothing: code $rc"; cat "$work/out"; bad=1; }

# lists of hosts with mistakes, and a limit that is no number, are refused before anything starts
refused() { # CODE TEXT COMMAND...
    want=$1 text=$2
    shift 2
    "$@" > "$work/out" 2>&1
    rc=$?
    [ $rc = "$want" ] && [ "$(wc -l < "$work/out")" = 1 ] && grep -q "^error\[$text.*; change: " "$work/out" ||
        { echo "# $*: code $rc"; cat "$work/out"; bad=1; }
}
for line in 'localhost slots=x' 'localhost slots=-4' 'localhost slot=4' 'localhost slots=2 foo=3'; do
    printf '# two\n%s\n' "$line" > "$work/hosts"
    refused 2 "usage\] $work/hosts, line 2: ${line##* } is not slots=N" scripts/launch -n 2 --hosts "$work/hosts" "$work/tiny.yaml"
done
for name in "-oProxyCommand=touch\${IFS}$work/made" 'local*' "\$(id)"; do        # ssh would run the first; the shell lists files
    printf '%s slots=2\n' "$name" > "$work/hosts"
    refused 2 "usage\] $work/hosts, line 1: .* is not the name of a host" scripts/launch -n 2 --hosts "$work/hosts" "$work/tiny.yaml"
done
for line in "$(printf 'a\033[31m')" "$(printf 'a\302\233b')" 'a\033[31m' "$(printf 'b slots=2\033[31m')"; do     # a terminal obeys them
    printf '%s\n' "$line" > "$work/hosts"
    refused 2 "usage\] $work/hosts, line 1: .* is not" scripts/launch -n 2 --hosts "$work/hosts" "$work/tiny.yaml"
    ! LC_ALL=C grep -q "$(printf '\033\|\302\233')" "$work/out" || { echo "# launch prints control characters"; bad=1; }
done
[ ! -e "$work/made" ] || { echo "# a list of hosts has run a command"; bad=1; }
printf 'localhost slots=2\nlocalhost slots=2\n' > "$work/hosts"
for number in 08 99999999999999999999; do    # printf takes the first for octal, test compares no such as the second
    refused 2 "usage\] --restarts takes a number, not '$number'" scripts/launch -n 2 --restarts $number "$work/tiny.yaml"
done
refused 2 "usage\] $work/hosts, line 2 names localhost again" scripts/launch -n 2 --hosts "$work/hosts" --restarts 2 "$work/tiny.yaml"
GRIDIRON_START_SECONDS=x refused 2 'environment\] GRIDIRON_START_SECONDS=x' scripts/launch -n 2 "$work/tiny.yaml"
GRIDIRON_END_SECONDS=0 refused 2 'environment\] GRIDIRON_END_SECONDS=0' scripts/launch -n 2 "$work/tiny.yaml"

# a signal that ends tokenize leaves it the time to remove what it has written. It waits for a lock that is held here
mkdir "$work/made"
for how in '1 TERM 143' '2 TERM 143' '1 HUP 129' '2 USR1 7'; do
    # shellcheck disable=SC2086
    set -- $how
    { flock 9; exec sleep 1000; } 9> "$work/made/c.lock" &
    holder=$!
    until ! flock -n "$work/made/c.lock" true; do sleep 0.01; done          # else tokenize may take it first
    scripts/launch -n "$1" tokenize README.md -o "$work/made/c" > "$work/out" 2>&1 &
    job=$!
    for _ in $(seq 600); do [ ! -e "$work"/made/c.idx*.tmp ] || break; sleep 0.1; done
    kill "-$2" $job
    wait $job
    rc=$?
    kill $holder
    wait $holder
    [ $rc = "$3" ] && [ "$(ls "$work/made")" = c.lock ] || { echo "# tokenize, $how: code $rc, $(ls "$work/made")"; bad=1; }
    rm -f "$work"/made/c.*tmp
done 2> /dev/null

for way in ${WAYS:-TERM INT USR1 KILL TERM+KILL mpirun mpirun-TERM mpirun-SEGV job everything}; do
    before=$bad signal=${way#mpirun} signal=${signal#-}
    case $way in
    TERM)   codes='143 75' ;;
    INT)    codes='130 75' ;;
    USR1)   codes='75 138' ;;
    mpirun* | job) codes=7 ;;
    *)      codes='137 143' ;;
    esac
    i=0
    while [ $i -lt "$tries" ]; do
        try $way "$(awk -v i=$i -v n="$tries" 'BEGIN {printf "%.3f", (i / n) ^ 2}')" "$codes"
        i=$((i + 1))
    done
    echo "# $way: $((tries - bad + before)) of $tries"
done
[ $bad = 0 ]
