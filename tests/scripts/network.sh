#!/bin/bash
# tests/scripts/network.sh -- jobs over the three hosts of namespaces.sh while the network between g3 and the
# others has faults, which test_relay makes: delay, loss, cuts in one or both directions, resets, ports that a
# firewall drops. A fault that passes leaves no trace; one that stays ends the job with one line and 7 on both
# sides, and with --restarts the job goes on when the network is back. Either way the bytes are those of an
# undisturbed run. CASES: which cases; SEED: of the losses. Skipped where namespaces are forbidden.
set -u
. tests/scripts/namespaces.sh
four=("g1 slots=2" "g2 slots=1" "g3 slots=1")

open_relay() { # puts the relay between the switch and g3
    mkfifo "$work/commands"
    inside gswitch sh -c 'echo $$ > "$1"; shift; exec "$@"' - "$work/relay.pid" "$BUILD/test_relay" near far \
        "$work/commands" "${SEED:-1}" > "$work/counts" &
    wait_for 50 inside gswitch ip link show far > /dev/null 2>&1 || skip "no cards of /dev/net/tun here"
    inside gswitch sh -c "ip link add island type bridge; ip link set near master switch
        ip link set far master island; ip link set port3 nomaster; ip link set port3 master island
        for card in island near far; do ip link set \$card up; done"
}
# the relay answers each command with a line of counts
fault() { echo "$*" > "$work/commands"; }
count() { # KIND: how many frames of it there were
    local lines
    lines=$(wc -l < "$work/counts")
    fault cut 0
    wait_for 600 eval '[ "$(wc -l < "$work/counts")" -gt "$lines" ]' || return
    tail -n 1 "$work/counts" | sed "s/.*$1 \([0-9]*\) .*/\1/"
}
ended() { ! kill -0 "$job" 2> /dev/null; }
at_step() { grep -q "iteration  *$1/" "$work/log"; }
quiet() { ! grep 'error\|warning\|restart\|ORTE\|---' "$work/log" | grep -v '^#' || fail "$1: more lines than the training's"; }
calm() { # WHAT: the job ends well, without a word, as the undisturbed one
    wait $job
    rc=$?
    [ $rc = 0 ] || fail "$1: code $rc"
    quiet "$1"
    same whole "$work/run" "$1"
}
undisturbed() { # STEPS: the run beside which others are held
    steps="train_iters=$1 save_interval=20"
    hosts_file "${four[@]}"
    [ "$(cat "$work/whole.steps" 2> /dev/null)" = "$steps" ] && return
    rm -rf "$work/whole"
    launch 4 "$work/tiny.yaml" save="$work/whole" $steps > "$work/log" 2>&1 || fail "the undisturbed run: $?"
    quiet "the undisturbed run"
    echo "$steps" > "$work/whole.steps"
}

# ---- cases

slow() { # DELAY LOSS WHAT: a network that is slow or loses frames is no failure
    undisturbed 40
    local before
    before=$(count lost)
    fault delay "$1"
    fault loss "$2"
    begin 4 $steps
    calm "$3"
    [ "$2" = 0 ] || [ "$(count lost)" -gt $((before + 10)) ] || fail "$3: no frame was lost"
    fault delay 0
    fault loss 0
}
heals() { # a cut of 3 s
    undisturbed 150
    begin 4 $steps
    fault cut 3
    sleep 3
    ! at_step 150 || fail "a cut of 3 s: the job had ended before"
    fault cut 0
    calm "a cut of 3 s"
}
# parted MASK WHAT: the network is cut in one or both directions: both sides end
parted() {
    undisturbed 150
    begin 4 $steps
    fault cut "$1"
    local start=$SECONDS saved
    wait_for 900 ended || fail "$2: the job goes on"
    saved=$(ls "$work/run/checkpoints" 2> /dev/null)
    expect "$2" 7 "\\(host-lost\\|hang\\|network\\|rank-lost\\)\\]"
    echo "# $2: both sides had ended after $((SECONDS - start)) s; $(grep -o '^error\[.\{60\}' "$work/log")"
    [ "$saved" = "$(ls "$work/run/checkpoints" 2> /dev/null)" ] || fail "$2: saved after the end of the job"
    fault cut 0
}
# parted_again MASK WHAT: the same with --restarts, which waits until the network is back
parted_again() {
    undisturbed 150
    begin 4 --restarts 9 $steps
    wait_for 300 grep -q '^saved iteration' "$work/log" || fail "$2: nothing is saved"
    fault cut "$1"
    wait_for 600 grep -q '^restart .* asks the hosts again' "$work/log" || fail "$2: does not ask the hosts again"
    fault cut 0
    wait $job
    rc=$?
    [ $rc = 0 ] || fail "$2: code $rc"
    [ "$(grep -c '^error\[' "$work/log")" = 0 ] || fail "$2: error lines beside those of the restarts"
    grep '^restart' "$work/log" | sed 's/^/# /'
    same whole "$work/run" "$2"
    wait_for 150 nobody || fail "$2: left are $(on g1) $(on g2) $(on g3)"
}
resets() { # a connection of the ranks is reset, then that of Open MPI's daemon on g3
    undisturbed 150
    begin 4 --restarts 9 $steps
    wait_for 300 grep -q '^saved iteration' "$work/log" || fail "a reset: nothing is saved"
    fault reset 1024 1200              # ports of the ranks
    wait $job
    rc=$?
    grep '^restart' "$work/log" | sed 's/^/# /'
    [ $rc = 0 ] || fail "a reset: code $rc"
    [ "$(count reset)" -ge 1 ] || fail "no frame became a reset"
    [ "$(grep -c '^restart .*code 7, error.connection-lost. .* \(the hosts g[12] g3\|host g[123] and another\|hosts that .*\) has ' \
        "$work/log")" = 1 ] ||
        fail "a reset: not one restart with the cause"
    same whole "$work/run" "a reset"
    begin 4 save_interval=20 train_iters=100000        # which does not end by itself
    local port=''
    wait_for 100 found_daemon || fail "no connection of the daemon on g3"
    inside g3 ss -K state established sport = ":$port" > /dev/null
    expect "a reset of the daemon's connection" 7 'host-lost\] .*g3'
}
found_daemon() { port=$(daemon_port); [ -n "$port" ]; }
daemon_port() { # of the connection between mpirun and g3's daemon
    inside g3 ss -Htnp state established | awk '/"(orted|prted)"/ && $3 ~ /^10/ { split($3, at, ":"); print at[2]; exit }'
}
firewall() { # ports that are dropped at the start: those of the daemons, then those of the ranks
    hosts_file 'g1 slots=1' 'g3 slots=1'
    rm -rf "$work/run"
    fault ports 1024 65535
    GRIDIRON_START_SECONDS=8 refused "no port but that of ssh" 7 'hosts-apart\] .*g3'
    fault ports 1024 1200
    GRIDIRON_START_SECONDS=8 refused "no port of the ranks" 7 'hosts-apart\] .*g3'
    [ "$(count ports)" -gt 0 ] || fail "no frame was dropped"
    fault ports 0 0
}

write_files
tiny "$work/tiny.yaml" precision.threads=1 train.global_batch_size=60 optimizer.lr=0.001 fault.straggler_threshold=0
open_hosts
open_relay
export OMPI_MCA_oob_tcp_keepalive_time=1 OMPI_MCA_oob_tcp_keepalive_intvl=1 OMPI_MCA_oob_tcp_keepalive_probes=4
for case in ${CASES:-delay loss heals parted parted_long one_way parted_again one_way_again resets firewall}; do
    began=$SECONDS before=$bad
    case $case in
    delay)         slow 5 0 "a delay of 5 ms" ;;
    loss)          slow 0 10 "1 % of the frames lost"; slow 0 50 "5 % of the frames lost" ;;
    parted)        parted 3 "a cut" ;;
    parted_long)
        (unset ${!OMPI_MCA_oob_*}; parted 3 "a cut, keepalives of scripts/launch"; exit $((bad > before))) ||
            bad=$((bad + 1)) ;;
    one_way)       parted 1 "a cut of what g3 receives"; parted 2 "a cut of what g3 sends" ;;
    parted_again)  parted_again 3 "a cut, --restarts" ;;
    one_way_again) parted_again 1 "a cut of what g3 receives, --restarts" ;;
    *) $case ;;
    esac
    echo "# $case: $((bad - before)) wrong, $((SECONDS - began)) s"
done
[ $bad = 0 ]
