#!/bin/bash
# tests/scripts/hosts.sh [long] -- a job over the three hosts of namespaces.sh. Every failure of a host ends the
# job with one line that names the host. long: Open MPI's keepalives as scripts/launch sets them, and a
# network cut of 30 seconds. CASES: which cases; the row hosts-restarts has those of --restarts: hosts that are
# left out and taken back, spare hosts, smaller worlds. Skipped where namespaces are forbidden.
set -u
. tests/scripts/namespaces.sh
faulty=$PWD/$BUILD/test_faults

# ---- cases

starts() {
    hosts_file 'g1 slots=2' 'g2 slots=2' 'g3 slots=2'
    launch 6 "$work/tiny.yaml" save="$work/run" train_iters=3 > "$work/log" 2>&1 || fail "six ranks on three hosts: $?"
    grep -q 'iteration        3/' "$work/log" || fail "six ranks on three hosts have not trained"
    ! grep -q 'error\|warning\|ORTE\|---' "$work/log" || fail "six ranks on three hosts: more lines than the training's"
    hosts_file 'g2 slots=2' 'g3 slots=1'
    begin 3                            # the launching host has no rank
    kill -TERM "$(launched)"
    wait $job
    rc=$?
    [ $rc = 143 ] || [ $rc = 75 ] || fail "SIGTERM: $rc"
    wait_for 150 nobody || fail "SIGTERM: left are $(on g1) $(on g2) $(on g3)"
}
killed_rank() { # COUNT: kills one of COUNT ranks of g3
    hosts_file 'g1 slots=2' 'g2 slots=1' "g3 slots=$1"
    begin $((3 + $1))
    pid=$(on g3 | tail -n 1)
    rank=$(rank_of "$pid")
    kill -KILL "$pid"
    expect "rank $rank killed, one of $1 of its host" 7 "rank-lost\\].*rank $rank .*died in"
}
wrong_hosts() {
    hosts_file g1 g-stranger
    refused "an unknown key" 2 'host-key\] .*g-stranger'
    hosts_file g1 g2
    cp "$work/keys/nobody.pub" "$work/keys/authorized"
    refused "no key" 2 'host-login\] .*g2'
    cp "$work/keys/user.pub" "$work/keys/authorized"
    hosts_file g1 g-unknown
    refused "an unknown name" 2 'host-name\] .*g-unknown'
    hosts_file g1 g-down
    refused "a host that is down" 7 'host-down\] .*g-down'
    hosts_file g1 g3 g3-alias
    refused "two hosts of one hostname" 2 'hosts-alike\] .*g3 g3-alias .*g3'
    hosts_file g1 g2
    inside g1 cp "$TRAIN" "$work/own/train"
    TRAIN=$work/own/train refused "no executable there" 2 "host-train\\] .*$work/own/train .*g2"
}
wrong_network() {
    hosts_file g1 g2 g3
    refused "a network that nobody has" 2 'hosts-network\] .*10.5.0.0/16.*g1 has .*10.77.0.1/24' --network 10.5.0.0/16
    GRIDIRON_START_SECONDS=6 refused "a network that connects nobody" 7 \
        'hosts-apart\] .*10.99.0.0/24.*g1 has .*10.77.0.1/24.*reaches no other; g2 has ' --network 10.99.0.0/24
}
lost_host() { # SECONDS: within which the loss of g3 must end the job
    hosts_file 'g1 slots=2' 'g2 slots=1' 'g3 slots=1'
    begin 4
    inside gswitch ip link set port3 down
    start=$SECONDS
    wait_for $(($1 * 10)) eval '! kill -0 $job 2> /dev/null' || fail "the loss of a host is not noticed in $1 s"
    expect "a host that is lost" 7 'host-lost\] .*g3'
    echo "# the loss of a host ended all of its job after $((SECONDS - start)) s"
    inside gswitch ip link set port3 up
}
cut() { # a network cut of 30 s does not end the job
    hosts_file 'g1 slots=2' 'g2 slots=1' 'g3 slots=1'
    begin 4
    inside gswitch ip link set port3 down
    sleep 30
    inside gswitch ip link set port3 up
    seen=$(grep -c iteration "$work/log")
    wait_for 1200 eval '[ "$(grep -c iteration "$work/log")" -gt $((seen + 20)) ]' || fail "a cut of 30 s is not outlived"
    inside gswitch ip link set port3 down
    kill -TERM "$(launched)"
    sleep 1
    kill -TERM "$(launched)"
    wait_for 300 eval '! kill -0 $job 2> /dev/null' || fail "two SIGTERMs do not end a job with a lost host"
    wait $job
    wait_for 150 nobody || fail "after two SIGTERMs: left are $(on g1) $(on g2) $(on g3)"
    inside gswitch ip link set port3 up
}

# What Open MPI 5 says, told by programs in the place of mpirun, which have no orted beside them
mpirun_5() { # WHAT LINE TEXT CODE: mpirun writes TEXT to standard error and ends with CODE; the job ends with 7 and LINE
    printf '#!/bin/sh\necho @together >&2\ncat >&2 << END\n%s\nEND\nexit %s\n' "$3" "$4" > "$work/five/mpirun"
    PATH=$work/five:$PATH refused "$1" 7 "$2"
}
five() {
    local line="--------------------------------------------------------------------------"
    hosts_file g1 g2
    mkdir -p "$work/five"
    printf '#!/bin/sh\n' > "$work/five/mpirun"
    chmod +x "$work/five/mpirun"
    PATH=$(command -v prted > /dev/null || echo "$work/five:")$PATH refused "no prted" 2 'host-mpi\] host g1 has no prted'
    printf '#!/bin/sh\n' > "$work/bin/prted"
    chmod +x "$work/bin/prted"
    mpirun_5 "a lost host has code 0" 'host-lost\] host g3' "$line
PRTE has lost communication with a remote daemon.

  HNP daemon   : [prterun-g1-1536@0,0] on node g1
  Remote daemon: [prterun-g1-1536@0,2] on node g3
$line" 0
    mpirun_5 "an end before the end" 'host-lost\] mpirun has ended the job' 'Sorry!' 0
    mpirun_5 "a connection that is reset" 'connection-lost\] .* the hosts g1 g3' "$line
An MPI communication peer process has unexpectedly disconnected.
  Local host: g1
  Peer host:  g3
$line
[g1:00000] *** An error occurred in Socket closed
error[rank-lost] [rank 1 tp 0 cp 0 dp 1 pp 0] rank 0 tp 0 cp 0 dp 0 pp 0 (process 31) died in S of iteration 5; change: see
$line
prterun has exited due to process rank 0 with PID 0 on node g1 calling
\"abort\".
$line" 14
    rm "$work/bin/prted"
}

# ---- cases of --restarts

# The executable of start K of rank R has the FAULT of the line "R K FAULT..." of `plan`
write_faulty() {
    cat > "$work/train" <<SH
#!/bin/sh
uname -n >> "$work/starts.\$OMPI_COMM_WORLD_RANK"
fault=\$(awk -v r="\$OMPI_COMM_WORLD_RANK" -v k="\$(wc -l < "$work/starts.\$OMPI_COMM_WORLD_RANK")" \\
    '\$1 == r && \$2 == k { \$2 = ""; print }' "$work/plan")
[ -z "\$fault" ] || export FAULT="\$fault"
exec "$faulty" "\$@"
SH
    chmod +x "$work/train"
}
# supervised CODE PLAN RANKS ARGUMENT...: a job of 12 steps that is started again ends with CODE and leaves nothing
supervised() {
    local code=$1 n=$3
    printf "$2" > "$work/plan"
    shift 3
    rm -rf "$work/run" "$work"/starts.*
    TRAIN=$work/train launch "$n" --restarts 9 "$@" save="$work/run" $steps > "$work/log" 2>&1
    rc=$?
    [ $rc = "$code" ] || fail "$*: code $rc, not $code"
    wait_for 150 nobody || fail "$*: left are $(on g1) $(on g2) $(on g3) $(inside g1 ls -A "$work/tmp")"
}
planned() { # NAME RANKS ARGUMENT...: a part of a run without failures
    local name=$1 n=$2
    shift 2
    launch "$n" "$work/tiny.yaml" save="$work/$name" $steps "$@" > "$work/log" 2>&1
    rc=$?
    [ $rc = 0 ] || [ $rc = 75 ] || fail "$name: $rc"
}
steps='train_iters=12 save_interval=2 lr_decay_style=cosine'
restarts() { sed -n 's/^restart \([0-9]\).*; goes on after \(.*\)$/\1: \2/p' "$work/log"; }
goes_on() { # LINE: a restart says so
    restarts | grep -qE "^$1\$" || fail "no line '$1' among: $(restarts)"
}
shrinks() { # two failures on g3: without it; the next start takes it back. Losses are those of planned changes of world
    hosts_file 'g1 slots=1' 'g2 slots=1' 'g3 slots=1'
    planned shrunk 3 exit_interval=6
    planned shrunk 2 load=latest exit_interval=8
    planned shrunk 3 load=latest
    supervised 0 '2 1 B 5 0\n2 2 F 7 0\n1 3 B 9 0\n' 3 "$work/tiny.yaml" min_world=2
    goes_on '1: iteration 4 at once, 3 ranks'
    goes_on '2: iteration 6 at once, without g3 \(two failures in a row\), 2 ranks'
    goes_on '3: iteration 8 at once, again with g3, 3 ranks'
    same shrunk "$work/run" "a world that shrinks and grows"
    # the same death at the same step, and fewer ranks are not allowed: a crash loop
    supervised 93 '2 1 B 5 0\n2 2 B 5 0\n' 3 "$work/tiny.yaml"
    grep -q '^error\[crash-loop\] died twice .* step 5' "$work/log" || fail "no crash loop"
    # no smaller world is large enough
    supervised 0 '2 1 B 5 0\n2 2 F 7 0\n' 3 "$work/tiny.yaml" min_world=3
    goes_on '2: iteration 6 at once, 3 ranks'
}
spares() { # the spare host g3 takes the place of g2
    hosts_file 'g1 slots=2' 'g2 slots=2' 'g3 slots=2'
    planned whole 4
    supervised 0 '3 1 B 5 0\n2 2 B 5 0\n' 4 --spare 1 "$work/tiny.yaml"
    goes_on '1: iteration 4 at once, 4 ranks'
    goes_on '2: iteration 4 in 1 s, without g2 \(two failures in a row\), 4 ranks'
    same whole "$work/run" "a spare host"
    [ "$(tr '\n' ' ' < "$work/starts.3")" = 'g2 g2 g3 ' ] || fail "rank 3 was on $(tr '\n' ' ' < "$work/starts.3")"
    supervised 2 '' 5 --spare 1 "$work/tiny.yaml"
    grep -q '^error\[usage\] 5 ranks are more than the 4 slots of .*list, 1 spare hosts apart' "$work/log" || fail "too many ranks"
    hosts_file 'g1 slots=2' g2
    supervised 2 '' 2 "$work/tiny.yaml"
    grep -q '^error\[usage\] .* how many ranks host g2 ' "$work/log" || fail "a host without slots"
}
away() { # a host that does not answer at the start
    hosts_file 'g1 slots=1' 'g-down slots=1' 'g3 slots=1'
    supervised 7 '' 3 "$work/tiny.yaml"
    [ "$(grep -c '^error\[' "$work/log")" = 1 ] &&
        grep -q '^error\[hosts-few\] 2 of 3 ranks have a host, without g-down (.*answer.*); min_world is not set.*; change: ' \
            "$work/log" || fail "a host is down, min_world not set"
    supervised 2 '' 3 "$work/tiny.yaml" min_world=2 micro_batch_size=7
    grep -q '^error\[config\] ' "$work/log" && grep -q 'micro_batch_size' "$work/log" || fail "a host is down, and a wrong configuration"
    supervised 0 '' 3 "$work/tiny.yaml" min_world=2
    grep -q '^start, without g-down (.*answer.*), 2 ranks$' "$work/log" || fail "a host is down"
}
lost_and_found() { # a host that is cut off while the job runs is left out, and comes back
    hosts_file 'g1 slots=1' 'g2 slots=1' 'g3 slots=1'
    begin 3 --restarts 9 save_interval=5 min_world=1 hang_timeout=0
    wait_for 300 grep -q '^saved iteration' "$work/log" || fail "nothing is saved"
    inside gswitch ip link set port3 down
    wait_for 900 grep -q '^restart 1 .*, without g3 (.*), 2 ranks$' "$work/log" || fail "a host that is cut off"
    wait_for 300 eval '[ "$(on g2 | wc -l)" = 1 ]' && wait_for 300 eval '[ "$(grep -c resuming "$work/log")" = 1 ]' ||
        fail "does not go on without it"
    inside gswitch ip link set port3 up
    sleep 1
    kill -KILL "$(on g2)"
    wait_for 300 grep -q '^restart 2 .*, again with g3, 3 ranks$' "$work/log" || fail "the host is not taken back"
    wait_for 300 eval '[ -n "$(on g3)" ]' && sleep 2
    kill -TERM "$(launched)"
    wait $job
    wait_for 150 nobody || fail "lost and found: left are $(on g1) $(on g2) $(on g3)"
}

mkdir "$work/bin"
PATH=$PATH:$work/bin                   # of the hosts, too
write_files
write_faulty
open_hosts
for case in ${CASES:-starts wrong_hosts wrong_network killed lost five ${1:+shrinks spares away lost_and_found}}; do
    began=$SECONDS before=$bad
    case $case in
    killed) killed_rank 2; killed_rank 1 ;;
    lost | lost_and_found)
        export OMPI_MCA_oob_tcp_keepalive_time=1 OMPI_MCA_oob_tcp_keepalive_intvl=1 OMPI_MCA_oob_tcp_keepalive_probes=3
        if [ "$case" = lost ]; then lost_host 60; else lost_and_found; fi
        unset OMPI_MCA_oob_tcp_keepalive_time OMPI_MCA_oob_tcp_keepalive_intvl OMPI_MCA_oob_tcp_keepalive_probes ;;
    *) $case ;;
    esac
    echo "# $case: $((bad - before)) wrong, $((SECONDS - began)) s"
done
if [ "${1:-}" = long ]; then cut; lost_host 60; fi
[ $bad = 0 ]
