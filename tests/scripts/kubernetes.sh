#!/bin/bash
# tests/scripts/kubernetes.sh -- the image and the Indexed Job of scripts/kubernetes without Kubernetes: the Dockerfile's
# commands run in a bare Debian, the pods are the very command lines of job.yaml in namespaces of their own (processes,
# mounts, network, hostname), as user 1000 without capabilities, on a root file system that is read-only, with the
# volumes of job.yaml. A stop is what a kubelet does: SIGTERM to process 1, after the grace SIGKILL to all.
# Two pods train; pod 0 is stopped, saves and ends with 75, and goes on when it is started again; pod 1 is lost and
# replaced, and the job goes on by itself. As root, with debootstrap; takes some minutes.
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/scripts/debian.sh
if [ -z "${OWN_MOUNTS:-}" ]; then
    [ "$(id -u)" = 0 ] && unshare -m -n -u -p -f true 2> /dev/null || skip "namespaces are forbidden here"
    OWN_MOUNTS=1 exec unshare -m --propagation private "$0" "$@"
fi
work=$(mktemp -d) yaml=scripts/kubernetes/job.yaml bad=0
leave() {
    # shellcheck disable=SC2046
    kill -KILL $(cat "$work"/*.net "$work"/*.top 2> /dev/null) 2> /dev/null
    wait 2> /dev/null
    umount -R "$work"/pod* "$work/image" 2> /dev/null
    rm -rf --one-file-system "$work"
}
trap leave EXIT
fail() { bad=$((bad + 1)); echo "# $*"; tail -n 8 "$work/log0" | cut -c 1-300 | sed 's/^/    /'; }

# ---- the image: FROM, RUN, COPY and WORKDIR of the Dockerfile, in order

image() {
    local word rest root=$work/stage
    bare_debian "$work/debian" "$work/log"
    sed -e ':a' -e '/\\$/{N;s/\\\n//;ba' -e '}' scripts/kubernetes/Dockerfile > "$work/lines"
    while read -r word rest; do
        case $word in
        FROM)
            root=$work/${rest##* AS }
            [ "${rest#* AS }" != "$rest" ] || root=$work/image
            cp -a "$work/debian" "$root" ;;
        RUN) chroot "$root" /bin/sh -c "$rest" > "$work/log" 2>&1 < /dev/null || { tail -n 5 "$work/log"; echo "RUN $rest"; exit 1; } ;;
        COPY)
            local from=.
            [ "${rest#--from=}" = "$rest" ] || { from=${rest#--from=} from=$work/${from%% *} rest=${rest#* }; }
            local to=$root${rest##* } source
            for source in ${rest% *}; do
                mkdir -p "$([ "${to%/}" = "$to" ] && dirname "$to" || echo "$to")"
                [ ! -d "$from/$source" ] || { mkdir -p "$to"; source=$source/.; }      # a folder: what is in it
                cp -a "$from/$source" "$to" || exit 1
            done ;;
        WORKDIR) top=$rest ;;
        esac
    done < "$work/lines"
    chown -R 0:0 "$work/image/opt"
}

# ---- the pods

# the list `command` of the container, a line each
command_of() { awk '/^ *command:/ { on = 1; next } on && /^ *- / { sub(/^ *- /, ""); gsub(/"/, ""); print; next } { on = 0 }' "$yaml"; }
grace=$(sed -n 's/^ *terminationGracePeriodSeconds: \([0-9]*\).*/\1/p' "$yaml")

network() { # one network namespace a pod, joined by a bridge in a third one
    local i
    for i in 0 1 switch; do
        unshare -n sleep 100000 &
        echo $! > "$work/$i.net"
    done
    for i in 0 1 switch; do        # before its process is `sleep` a network is not apart from this machine's
        until grep -qsx sleep "/proc/$(cat "$work/$i.net")/comm"; do sleep 0.05; done
    done
    of() { nsenter -n -t "$(cat "$work/$1.net")" "${@:2}"; }
    of switch ip link add pods type bridge && of switch ip link set pods up || skip "no bridge"
    for i in 0 1; do
        of switch ip link add "pod$i" type veth peer name card netns "$(cat "$work/$i.net")" || skip "no veth"
        of switch ip link set "pod$i" master pods up
        of $i sh -c "ip link set lo up; ip addr add 10.88.0.1$i/24 dev card; ip link set card up"
    done
}
volumes() {
    mkdir -p "$work/runs" "$work/keys"
    ssh-keygen -q -t ed25519 -N '' -f "$work/keys/id"
    chown 0:1000 "$work"/keys/* && chmod 440 "$work"/keys/*
    "$TRAIN" tokenize README.md -o "$work/runs/corpus" > /dev/null 2>&1
    sed "s,$work/runs,/runs," > "$work/runs/train.yaml" < "$work/tiny.yaml"
    chown -R 1000:1000 "$work/runs"
    mkdir "$work/pod0" "$work/pod1"
    printf '127.0.0.1 localhost\n%s\n%s\n' '10.88.0.10 gridiron-0.gridiron gridiron-0' \
        '10.88.0.11 gridiron-1.gridiron gridiron-1' > "$work/etc-hosts"
}
start() { # POD: starts it; its process 1 is in $work/POD.top, its output in $work/logPOD
    local i=$1 p=$work/pod$1
    : > "$work/log$i"
    nsenter -n -t "$(cat "$work/$i.net")" unshare -m -u -p -f --kill-child=KILL --propagation private bash -c '
        work=$1 p=$2 i=$3 top=$4; shift 4
        hostname gridiron-$i
        mount --bind "$work/image" "$p" && mount -o remount,ro,bind "$p"
        mount -t tmpfs tmp "$p/tmp" -o mode=1777 && mount -t proc proc "$p/proc" && mount -t tmpfs dev "$p/dev" -o mode=755
        for d in null zero full random urandom tty; do : > "$p/dev/$d"; mount --bind "/dev/$d" "$p/dev/$d"; done
        ln -s /proc/self/fd "$p/dev/fd"; mkdir "$p/dev/shm" "$p/dev/pts"
        mount -t tmpfs memory "$p/dev/shm" -o mode=1777,size=4g
        mount --bind "$work/runs" "$p/runs" && mount --bind "$work/keys" "$p/keys" && mount -o remount,ro,bind "$p/keys"
        mount --bind "$work/etc-hosts" "$p/etc/hosts"
        ulimit -v 8388608
        exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/home/gridiron JOB_COMPLETION_INDEX=$i \
            chroot --userspec=1000:1000 --groups=1000 "$p" setpriv --no-new-privs env -C "$top" "$@"' \
        bash "$work" "$p" "$i" "$top" $(command_of) $extra > "$work/log$i" 2>&1 < /dev/null &
    echo $! > "$work/$i.top"
}
inner() { pgrep -P "$(cat "$work/$1.top")" | head -n 1; }      # its process 1, as seen from here
ended() { # POD SECONDS: its exit code once it has ended
    local n=$(($2 * 10))
    while kill -0 "$(cat "$work/$1.top")" 2> /dev/null && [ $n -gt 0 ]; do sleep 0.1; n=$((n - 1)); done
    [ $n -gt 0 ] || { fail "pod $1 goes on after $2 s"; kill -KILL "$(cat "$work/$1.top")"; }
    wait "$(cat "$work/$1.top")"
}
reached() { # ITERATION: waits until pod 0 has logged it
    local n=1200
    until grep -q "iteration  *$1/" "$work/log0" || [ $n = 0 ] || ! kill -0 "$(cat "$work/0.top")"; do sleep 0.1; n=$((n - 1)); done
    grep -q "iteration  *$1/" "$work/log0" || fail "iteration $1 is not reached"
}
newest() { ls "$work/runs/gpt/checkpoints" | sed -n 's/^iter_0*//p' | tail -n 1; }

. tests/tiny.sh
TRAIN=${TRAIN:-$PWD/train}
# shellcheck disable=SC2030
(work=$work/runs; mkdir -p "$work"; tiny "$work/../tiny.yaml" model.hidden_size=64 \
    train.global_batch_size=64 train.train_iters=40 checkpoint.save_interval=10)
image
mkdir -p "$work/image/runs" "$work/image/keys"
touch "$work/image/etc/hosts"
mount --bind "$work/image" "$work/image"
volumes
unshare -n true && ip link > /dev/null || skip "no network namespaces"
network

extra=''
start 1; start 0
reached 12
kill -TERM "$(inner 0)"
ended 0 "$grace"
rc=$?
[ $rc = 75 ] && [ "$(newest)" -ge 12 ] || fail "pod 0, stopped: code $rc, newest state $(newest)"
start 0
reached 25
kill -KILL "$(inner 1)"                # the pod is lost: its node, or evicted without grace
wait "$(cat "$work/1.top")" 2> /dev/null
start 1
ended 0 240
rc=$?
[ $rc = 0 ] && [ "$(newest)" = 40 ] && grep -q '^restart 1 of ' "$work/log0" || fail "pod 1, lost: code $rc, newest state $(newest)"
kill -TERM "$(inner 1)"
ended 1 "$grace"
extra=nonsense=1
start 1; start 0
ended 0 120
rc=$?
[ $rc = 2 ] || fail "an unknown key: code $rc, not 2, for which job.yaml fails the job"
echo "# $bad wrong"
[ $bad = 0 ]
