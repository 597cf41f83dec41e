#!/bin/sh
# tests/scripts/loopback.sh -- every socket that mpirun or a rank of one host listens on is bound to the loopback, in
# a tree whose path has a space and a colon too, where LD_PRELOAD would end a name.
set -u
work=${WORK:-$(mktemp -d)}
. tests/tiny.sh
"$TRAIN" tokenize README.md -o "$work/corpus" > /dev/null 2>&1 || exit 1
tiny "$work/tiny.yaml" train.train_iters=100000 log.log_interval=1
listening() { # PID...: the local addresses, as the kernel prints them, of the sockets that these processes listen on
    for pid in "$@"; do
        for fd in "/proc/$pid/fd"/*; do readlink "$fd"; done 2> /dev/null | sed -n 's/^socket:\[\(.*\)\]$/\1/p'
    done | sort -u > "$work/sockets"
    cat /proc/net/tcp /proc/net/tcp6 2> /dev/null |
        awk 'NR == FNR { mine[$1] = 1; next } $4 == "0A" && $10 in mine { sub(/:.*/, "", $2); print $2 }' "$work/sockets" -
}
# bound TREE RUN: whether those of a job of the launcher in TREE are
bound() {
    "$1/scripts/launch" -n 2 "$work/tiny.yaml" tensor_model_parallel_size=2 save="$work/$2" > "$work/log" 2>&1 &
    job=$!
    for _ in $(seq 1200); do
        ! grep -q 'iteration        3/' "$work/log" || break
        kill -0 $job 2> /dev/null || { cat "$work/log"; exit 1; }
        sleep 0.05
    done
    pids=$(for p in $(grep -lsF "$work/$2" /proc/[0-9]*/cmdline); do p=${p#/proc/}; echo "${p%/cmdline}"; done)
    # shellcheck disable=SC2086
    found=$(listening $pids)
    kill -TERM $job
    wait $job
    echo "# $(echo "$pids" | wc -l) processes, addresses:" $found
    [ -n "$found" ] || { echo "no socket at all: is this mpirun?"; exit 1; }
    ! echo "$found" | grep -v '^0100007F$\|^00000000000000000000000001000000$' || { echo "these listen to the network"; exit 1; }
    ! grep 'ld.so' "$work/log" || exit 1
}
bound "$PWD" run
tree="$work/a tree: é"
mkdir -p "$tree/build"
cp -r scripts "$tree" && cp build/loopback.so "$tree/build" || exit 1
bound "$tree" other
