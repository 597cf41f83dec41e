#!/bin/bash
# tests/scripts/slurm_turns.sh -- the arguments that the turns of a Slurm job give to srun, with stand-ins for
# srun, scontrol and sinfo. `load`, `overwrite` and `finetune` are given until a turn has saved a checkpoint, even if
# that turn was killed. With --restarts the policy of scripts/launch: a node on which ranks die twice, or that is down,
# is left out, and a spare one takes its place.
here=$PWD work=${WORK:?} job=${SCRIPTS:-$PWD/scripts}/slurm.sbatch
mkdir "$work/bin" && cd "$work" || exit 1
export PATH="$work/bin:$PATH" SLURM_JOB_ID=7
printf '#!/bin/sh\nexit 0\n' > bin/scontrol
# the stand-in for srun prints its arguments, then SAYS, and ends with CODE
printf '#!/bin/sh\nshift 3\necho "asked: $*"\necho "$SAYS"\nexit $CODE\n' > bin/srun
chmod +x bin/*
echo "model: {}" > c.yaml
turn() { # CODE SAYS WANT ARGUMENT...: srun of a job with these arguments gets `c.yaml lr=1 WANT`
    CODE=$1 SAYS=$2 want=$3
    shift 3
    export CODE SAYS
    said=$(bash "$job" c.yaml "$@" 2> /dev/null | sed -n 's/^asked: //p')
    [ "$said" = "c.yaml lr=1 $want" ] || { echo "asked for '$said', not '$want'"; exit 1; }
}
saved="saved iteration 20: runs/c/checkpoints/iter_0000020"
turn 1 "" load=latest lr=1
turn 1 "" load=start lr=1 load=start
turn 1 "" "overwrite=true load=start" lr=1 overwrite=true load=start
turn 75 "" load=start lr=1 load=start
on="load=latest overwrite=false finetune=false"       # whatever the configuration says of the start
turn 75 "" "$on" lr=1 load=start
turn 0 "" "$on" lr=1 load=start
turn 0 "" load=start lr=1 load=start
turn 75 "" "load=start finetune=true" lr=1 load=start finetune=true
turn 0 "" "$on" lr=1 load=start finetune=true
# a node is lost after a checkpoint: the job is requeued and its script has not come to its end
sed '/^echo "turn /,$d' "$job" > cut.sbatch
CODE=1 SAYS=$saved bash cut.sbatch c.yaml lr=1 overwrite=true load=start > /dev/null
turn 75 "$saved" "$on" lr=1 overwrite=true load=start
# --restarts: start K ends as line K of `plan` says, "CODE ERROR-LINE"
mkdir run
printf '#!/bin/sh\n[ "$2" != hostnames ] || printf "n1\\nn2\\nn3\\n"\n' > bin/scontrol
printf '#!/bin/sh\ncat %s\n' "$work/nodes" > bin/sinfo
cat > bin/srun <<SH
#!/bin/sh
echo "\$*" >> "$work/asked"
echo "@run $work/run" >&2
line=\$(sed -n "\$(wc -l < "$work/asked")p" "$work/plan")
[ "\${line#* }" = "\$line" ] || echo "\${line#* }" >&2
exit \${line%% *}
SH
chmod +x bin/*
export SLURM_JOB_NODELIST='n[1-3]' SLURM_TASKS_PER_NODE='2(x3)'
restarts() { # CODE: a job with a spare node ends with it
    : > asked
    bash "$job" --restarts 5 --spare 1 c.yaml lr=1 > out 2> err
    rc=$?
    [ $rc = "$1" ] || { echo "code $rc, not $1"; cat err; exit 1; }
}
nodelists() { sed -n 's/.*--ntasks \([0-9]*\) .*--nodelist \([^ ]*\) .*/\1 \2/p' asked | tr '\n' ';'; }
died='error[rank-lost] [rank 0 tp 0] rank 3 tp 1 (process 7) died in B0.0 of iteration'
printf 'n1 alloc\nn2 alloc\nn3 alloc\n' > nodes
printf "137 $died 5; change: x\n137 $died 7; change: x\n0\n" > plan
restarts 0
[ "$(nodelists)" = '4 n1,n2;4 n1,n2;4 n1,n3;' ] || { echo "asked for $(nodelists)"; cat err; exit 1; }
grep -q '^restart 2 of 5: code 137, .*, without n2 (two failures in a row), 4 ranks$' err || { cat err; exit 1; }
printf 'n1 alloc\nn2 down*\nn3 alloc\n' > nodes
printf "2 error[config] wrong; change: x\n" > plan
restarts 2
[ "$(nodelists)" = '4 n1,n3;' ] && grep -q '^start, without n2 (Slurm calls it down\*), 4 ranks$' err &&
    grep -q '^error\[config\]' err || { echo "asked for $(nodelists)"; cat err; exit 1; }
printf 'n1 alloc\nn2 alloc\nn3 alloc\n' > nodes
printf "137 $died 5; change: x\n137 $died 5; change: x\n" > plan
SLURM_TASKS_PER_NODE='2(x2),0' restarts 93
grep -q '^error\[crash-loop\]' err || { cat err; exit 1; }
# no node is there at a restart: the nodes are asked again
. "$here/tests/tiny.sh"
tiny c.yaml train.global_batch_size=4
printf '#!/bin/sh\necho >> probed\ncat "nodes.$(wc -l < probed)" 2> /dev/null || cat nodes\n' > bin/sinfo
printf 'n1 down*\nn2 down*\nn3 down*\n' > nodes.2
printf "137 $died 5; change: x\n0\n" > plan
restarts 0
grep -q '^restart 1 of 5: .*; 0 of 4 ranks have a host, without n1 .*; asks the hosts again in 1 s$' err || { cat err; exit 1; }
# nor can the configuration be read then; but one that is wrong ends the job
printf '#!/bin/sh\necho "error[config] c.yaml: $SAYS; change: x"\nexit 2\n' > bin/away
chmod +x bin/away
rm probed
export TRAIN=bin/away SAYS='cannot be read: Input/output error'
restarts 0
rm probed
cp nodes.2 nodes.3
GRIDIRON_OUTAGE_SECONDS=1 restarts 2            # for so long at most
rm probed nodes.3
SAYS='is empty' restarts 2
grep -q '^error\[config\] c.yaml: is empty; change: x$' err || { cat err; exit 1; }
echo "turns go on"
