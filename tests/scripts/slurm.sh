#!/bin/bash
# tests/scripts/slurm.sh -- scripts/slurm.sbatch on a real Slurm: the test starts a controller, two node
# daemons and munge on this machine, with key, ports and state in a temporary folder. Takes four to ten
# minutes, because Slurm holds a requeued job back for two. `make test-slurm` runs it, not the suite.
work=$(mktemp -d /tmp/slurm.XXXXXX) || exit 2
cd "$(dirname "$0")/../.." && top=$PWD || exit 2
export TRAIN="${TRAIN:-$PWD/train}"
for tool in slurmctld slurmd munged sbatch; do
    PATH=$PATH:/usr/sbin command -v $tool > /dev/null || {
        echo "$tool is missing; change: as root, apt-get install slurmctld slurmd slurm-client munge libpmix2" \
            "slurm-wlm-basic-plugins"
        exit 1
    }
done
export PATH=$PATH:/usr/sbin SLURM_CONF=$work/slurm.conf
daemons=
down() {
    scancel -u "$(id -un)" 2> /dev/null && sleep 0.5
    # shellcheck disable=SC2086
    kill $daemons 2> /dev/null
    for _ in $(seq 50); do
        # shellcheck disable=SC2086
        kill -0 $daemons 2> /dev/null || break     # all daemons have ended
        sleep 0.1
    done
    # shellcheck disable=SC2086
    kill -KILL $daemons 2> /dev/null
    rm -rf "$work"
}
trap down EXIT
trap 'exit 130' INT TERM

up() {
    local host me port=$((20000 + $$ % 20000)) out
    host=$(hostname -s) me=$(id -un)
    chmod 755 "$work"
    mkdir "$work/state" "$work/node1" "$work/node2" "$work/munge"
    chmod 700 "$work/munge"
    (umask 077; head -c 1024 /dev/urandom > "$work/munge/key")
    cat > "$SLURM_CONF" <<CONF
ClusterName=two
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmUser=$me
SlurmdUser=$me
AuthType=auth/munge
AuthInfo=socket=$work/munge.socket
CredType=cred/munge
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/%n
TmpFS=$work/%n
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/%n.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
KillWait=10
SlurmdParameters=config_overrides
TaskProlog=$work/prolog
NodeName=node[1-2] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((port + 1))-$((port + 2))] CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
    # Open MPI names its shared memory by host, job and local rank: two nodes of one host need two folders
    printf '#!/bin/sh\necho export OMPI_MCA_btl_vader_backing_directory=%s/$SLURMD_NODENAME\n' "$work" > "$work/prolog"
    chmod 755 "$work/prolog"
    munged --foreground --force --key-file="$work/munge/key" --socket="$work/munge.socket" \
        --pid-file="$work/munge/pid" --log-file="$work/munge/log" --seed-file="$work/munge/seed" 2> "$work/munge.err" &
    daemons="$daemons $!"
    for _ in $(seq 50); do [ -S "$work/munge.socket" ] && break; sleep 0.1; done
    slurmctld -D > "$work/out" 2>&1 &
    daemons="$daemons $!"
    for node in node1 node2; do
        slurmd -D -N $node > "$work/$node.out" 2>&1 &
        daemons="$daemons $!"
    done
    for _ in $(seq 100); do
        [ "$(sinfo -h -t idle -o %D 2> /dev/null)" = 2 ] && return
        sleep 0.2
    done
    echo "Slurm did not come up"; sinfo; tail -5 "$work"/*.log "$work"/*.out
    exit 1
}

up
"$TRAIN" tokenize src -o "$work/corpus" > /dev/null 2>&1 || exit 1
cat > "$work/run.yaml" <<YAML
model: {num_layers: 4, hidden_size: 128, num_attention_heads: 4, seq_length: 128}
data: {data_path: $work/corpus, tokenizer_type: byte, split: '90, 10, 0'}
train: {micro_batch_size: 1, global_batch_size: 8}
optimizer: {lr: 0.001, lr_decay_style: cosine}
parallel: {tensor_model_parallel_size: 2, pipeline_model_parallel_size: 2}
log: {log_interval: 1}
YAML
cd "$work" || exit 2
fail() { echo "$*"; grep -v ' iteration  ' "slurm-$job.log" | tail -n 30; exit 1; }
state() { squeue -h -j "$1" -o %T 2> /dev/null; }
until_gone() { while [ -n "$(state "$1")" ]; do sleep 0.5; done; }
until_says() { # JOB TEXT: waits until the job's log has TEXT
    for _ in $(seq 300); do grep -qs "$2" "slurm-$1.log" && return; sleep 0.2; done
    fail "job $1 has not said '$2'"
}
submit() { sbatch --parsable --nodes 2 --ntasks-per-node 2 --time 20 "$@"; }

# An undisturbed run of about 45 seconds. The same steps under a time limit of a minute, with USR1 20 seconds
# before it, take more than one turn.
start=$(date +%s%N)
"$top/scripts/launch" -n 4 run.yaml train_iters=100 save=pace > pace.log 2>&1 || { cat pace.log; exit 1; }
steps=$((100 * 45000000000 / ($(date +%s%N) - start)))
rm -rf pace
"$top/scripts/launch" -n 4 run.yaml train_iters=$steps save=whole > whole.log 2>&1 || { cat whole.log; exit 1; }

job=$(submit --time 1 --signal=USR1@20 "$top/scripts/slurm.sbatch" run.yaml train_iters=$steps save=turns)
start=$(date +%s)
until_gone "$job"
log=slurm-$job.log
grep -q "stopped by SIGUSR1\|ended with 75" "$log" || fail "no turn was stopped by the signal"
[ "$(tail -n 1 "$log" | sed 's/.*ended with //')" = 0 ] || fail "the job has not finished"
kept() { # the lines of metrics.jsonl without times and rates
    sed -E 's/, "(comm|stragglers)": .*(, "run_id")/\2/; s/"(elapsed_ms|goodput|tokens_per_second|tflops_per_device|mfu|memory_bytes|[a-z]+_ms|run_id)": *[^,}]*,? ?//g' \
        "$1/metrics.jsonl"
}
kept whole > a; kept turns > b
cmp a b || fail "the losses are not those of the undisturbed run"
for shard in whole/checkpoints/iter_*/*.safetensors; do
    cmp "$shard" "turns${shard#whole}" || fail "the weights are not those of the undisturbed run"
done
echo "ok: $steps steps in $(grep -c 'ended with' "$log") turns, $(($(date +%s) - start)) s, waiting in the queue" \
    "included: losses, gradient norms and checkpoint equal the undisturbed run's to the bit"
grep -E "^loaded|ended with|error|CANCELLED" "$log"

# USR1 makes a job save and go back into the queue; a cancelled job does not come back
job=$(submit "$top/scripts/slurm.sbatch" run.yaml train_iters=100000 save=asked)
until_says "$job" "iteration        3/"
scancel --signal=USR1 "$job"
until_says "$job" "ended with 75"
for _ in $(seq 50); do [ "$(state "$job")" = PENDING ] && break; sleep 0.2; done
[ "$(state "$job")" = PENDING ] || fail "the job is not in the queue again"
scancel "$job"; until_gone "$job"
job=$(submit "$top/scripts/slurm.sbatch" run.yaml train_iters=100000 save=cancelled)
until_says "$job" "iteration        3/"
scancel "$job"; until_gone "$job"
scontrol show job "$job" | grep -q JobState=CANCELLED || fail "a cancelled job came back"
echo "ok: saved at once on scancel --signal=USR1, then cancelled"

# A configuration with an error: its list of errors once, one error line, code 2
job=$(submit "$top/scripts/slurm.sbatch" run.yaml train_iters=3 num_attention_heads=3 save=wrong)
until_gone "$job"
scontrol show job "$job" | grep -q ExitCode=2:0 && [ "$(grep -c '^error\[' "slurm-$job.log")" = 1 ] ||
    fail "a wrong configuration"
echo "ok: a wrong configuration ends with 2 and one error line"

# A lost rank: the other ranks name it and end
job=$(submit "$top/scripts/slurm.sbatch" run.yaml train_iters=100000 save=lost)
until_says "$job" "iteration        3/"
for p in /proc/[0-9]*; do
    if grep -zqsx "SLURM_CONF=$SLURM_CONF" "$p/environ" && grep -zqsx SLURM_PROCID=3 "$p/environ" &&
        [ "$(cat "$p/comm")" = train ]; then
        kill -KILL "${p#/proc/}"
    fi
done
start=$(date +%s%N)
until_gone "$job"
[ "$(grep -c '^error\[' "slurm-$job.log")" = 1 ] && grep -q '^error\[rank-lost\].*rank 3 ' "slurm-$job.log" ||
    fail "a lost rank"
echo "ok: a killed rank ends the job in $((($(date +%s%N) - start) / 1000000)) ms:" \
    "$(grep '^error' "slurm-$job.log" | cut -c 1-110) ..."
