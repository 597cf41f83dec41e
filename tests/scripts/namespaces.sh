# tests/scripts/namespaces.sh -- sourced by tests: three hosts g1, g2, g3 on this machine, and jobs over them. A host is
# a network namespace with a hostname, a temporary folder and an sshd of its own; a fourth namespace is the switch. Each
# host also has docker0, with the same address on every host, and a network `vpn` that connects no hosts. Ends the test
# with 77 where namespaces are forbidden. `bad` counts what `fail` has reported.
skip() { echo "$*"; exit 77; }
[ "$(id -u)" = 0 ] || skip "needs root, for network namespaces"
for tool in sshd ssh ssh-keygen ip unshare nsenter; do
    PATH=$PATH:/usr/sbin command -v $tool > /dev/null || skip "$tool is missing (openssh-server, openssh-client, iproute2)"
done
PATH=$PATH:/usr/sbin
if [ -z "${OWN_MOUNTS:-}" ]; then
    unshare -m -n -u true 2> /dev/null || skip "namespaces are forbidden here"
    OWN_MOUNTS=1 exec unshare -m --propagation private "$0" "$@"
fi
work=${WORK:-$(mktemp -d)} bad=0
. tests/tiny.sh
. tests/parallel/same.sh
trap 'kill $(cat "$work"/*.pid 2> /dev/null) 2> /dev/null' EXIT
mkdir -p "$work/keys" "$work/tmp" "$work/own" /run/sshd

# ---- the hosts

inside() { # HOST COMMAND...
    local host=$1
    shift
    nsenter -t "$(cat "$work/$host.pid")" -m -n -u -r env -C "$PWD" "$@"
}
open_host() { # NAME NUMBER
    unshare -m -n -u --propagation private sh -c "
        hostname $1; mount -t tmpfs none $work/tmp; mount -t tmpfs none $work/own; mount -t tmpfs none /dev/shm; exec sleep 100000" &
    echo $! > "$work/$1.pid"
}
open_hosts() {
    local i
    for i in 1 2 3 switch; do open_host "g$i"; done
    for i in 1 2 3 switch; do      # before its process is `sleep` a host is not apart from this machine
        until grep -qsx sleep "/proc/$(cat "$work/g$i.pid")/comm"; do kill -0 "$(cat "$work/g$i.pid")" || exit 1; sleep 0.05; done
    done
    inside gswitch ip link add switch type bridge
    inside gswitch ip link set switch up
    for i in 1 2 3; do
        inside gswitch ip link add port$i type veth peer name card netns "$(cat "$work/g$i.pid")"
        inside gswitch ip link set port$i master switch up
        inside g$i sh -c "ip link set lo up; ip link add docker0 type bridge; ip addr add 172.17.0.1/16 dev docker0
            ip link add vpn type bridge; ip addr add 10.99.0.$i/24 dev vpn; ip addr add 10.77.0.$i/24 dev card
            for card in docker0 vpn card; do ip link set \$card up; done"
        inside g$i "$(command -v sshd)" -f "$work/sshd_config" -E "$work/g$i.sshd" \
            -o "PidFile=$work/sshd$i.pid"
    done
}
write_files() {
    ssh-keygen -q -t ed25519 -N '' -f "$work/keys/host"
    ssh-keygen -q -t ed25519 -N '' -f "$work/keys/user"
    ssh-keygen -q -t ed25519 -N '' -f "$work/keys/nobody"
    cp "$work/keys/user.pub" "$work/keys/authorized"
    printf '10.77.0.%s g%s\n' 1 1 2 2 3 3 9 g-down > "$work/hosts"
    printf '127.0.0.1 localhost\n10.77.0.3 g3-alias\n10.77.0.2 g-stranger\n' >> "$work/hosts"
    sed -i 's/gg-/g-/' "$work/hosts"
    sed "s/^/g1,g2,g3,g3-alias /" "$work/keys/host.pub" > "$work/keys/known"
    cat > "$work/sshd_config" <<CONF
HostKey $work/keys/host
AuthorizedKeysFile $work/keys/authorized
StrictModes no
UsePAM no
PermitRootLogin yes
SetEnv PATH=$PATH
CONF
    printf 'Host *\n IdentityFile %s\n IdentitiesOnly yes\n UserKnownHostsFile %s\n GlobalKnownHostsFile none\n' \
        "$work/keys/user" "$work/keys/known" > "$work/ssh_config"
    # root has an empty home, so that this machine's login files have no effect
    sed "s,^\\(root:[^:]*:[^:]*:[^:]*:[^:]*:\\)[^:]*,\\1$work/home," /etc/passwd > "$work/passwd"
    mkdir "$work/home"
    mount --bind "$work/hosts" /etc/hosts && mount --bind "$work/ssh_config" /etc/ssh/ssh_config &&
        mount --bind "$work/passwd" /etc/passwd || skip "no bind mounts"
    tiny "$work/tiny.yaml" train.global_batch_size=60 train.train_iters=100000 optimizer.lr=0.001
    "$TRAIN" tokenize README.md -o "$work/corpus" > /dev/null 2>&1 || exit 1
}

# ---- jobs

hosts_file() { printf '%s\n' "$@" > "$work/list"; }
launch() { # RANKS ARGUMENT...: runs scripts/launch on g1, for the hosts of $work/list
    local n=$1
    shift
    inside g1 env TMPDIR="$work/tmp" timeout 300 "${SCRIPTS:-scripts}/launch" -n "$n" --hosts "$work/list" "$@"
}
begin() { # RANKS ARGUMENT...: starts a job that trains until it is stopped; returns after iteration 3
    rm -rf "$work/run"
    : > "$work/log"
    launch "$@" "$work/tiny.yaml" save="$work/run" > "$work/log" 2>&1 &
    job=$!
    wait_for 400 grep -q 'iteration        3/' "$work/log" || fail "the job does not start"
}
wait_for() { # TENTHS COMMAND...: waits so many tenths of a second until COMMAND succeeds
    local n=$1
    shift
    while ! "$@" && [ "$n" -gt 0 ]; do sleep 0.1; n=$((n - 1)); done
    [ "$n" -gt 0 ]
}
on() { # HOST: prints the processes of its ranks
    local p
    for p in $(grep -lsF "save=$work/run" /proc/[0-9]*/cmdline); do
        p=${p%/cmdline}
        [ "$(readlink "$p/ns/net")" = "$(readlink "/proc/$(cat "$work/$1.pid")/ns/net")" ] &&
            grep -qs '^State:.[^ZX]' "$p/status" && grep -qsz '^OMPI_COMM_WORLD_RANK=' "$p/environ" && echo "${p#/proc/}"
    done
}
rank_of() { tr '\0' '\n' < "/proc/$1/environ" | sed -n 's/^OMPI_COMM_WORLD_RANK=//p'; }
launched() { pgrep -P "$(pgrep -P $job | head -n 1)" -f scripts/launch | head -n 1; }
nobody() { [ -z "$(on g1)$(on g2)$(on g3)" ] && [ -z "$(inside g1 ls -A "$work/tmp")" ]; }
fail() { bad=$((bad + 1)); echo "# $*"; grep -v '^ *iteration ' "$work/log" | tail -n 6 | sed 's/^/    /'; }
# expect WHAT CODE LINE: the job ends with CODE and one error line, which matches LINE, and leaves nothing
expect() {
    local what=$1 code=$2 line=$3
    wait $job
    rc=$?
    [ $rc = "$code" ] || fail "$what: code $rc, not $code"
    [ "$(grep -c '^error\[' "$work/log")" = 1 ] && grep -q "^error\[$line.*; change: " "$work/log" ||
        fail "$what: not one line with '$line'"
    ! grep -v '^error\|^loaded\|iteration\|^[a-z0-9-]*: .* parameters\|^layout\|^ \|^schedule\|^memory\|^corpus\|^attention\|^[a-z]* tokens' "$work/log" |
        grep -q 'PI\|ORTE\|daemon\|mpirun\|orted\|---' || fail "$what: lines of Open MPI"
    wait_for 150 nobody || fail "$what: left are $(on g1) $(on g2) $(on g3) $(inside g1 ls -A "$work/tmp")"
}
refused() { # WHAT CODE LINE ARGUMENT...: a job that fails at its start, as expect says
    local what=$1 code=$2 line=$3
    shift 3
    launch 2 "$@" "$work/tiny.yaml" save="$work/run" > "$work/log" 2>&1 &
    job=$!
    expect "$what" "$code" "$line"
}
