#!/bin/bash
# tests/scripts/slurm_turns.sh -- what the turns of a Slurm job ask for, with stand-ins for srun and scontrol: `load` and `overwrite`
# are for the start, until a checkpoint is saved, whether or not the turn that saved it came to an end.
work=${WORK:?} job=$PWD/scripts/slurm.sbatch
mkdir "$work/bin" && cd "$work" || exit 1
export PATH="$work/bin:$PATH" SLURM_JOB_ID=7
printf '#!/bin/sh\nexit 0\n' > bin/scontrol
# says what it was asked for, then what SAYS holds; ends with CODE
printf '#!/bin/sh\nshift 3\necho "asked: $*"\necho "$SAYS"\nexit $CODE\n' > bin/srun
chmod +x bin/*
echo "model: {}" > c.yaml
turn() { # code of srun, what it says, what it should be asked for, arguments of the job
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
turn 75 "" load=latest lr=1 load=start
turn 0 "" load=latest lr=1 load=start
turn 0 "" load=start lr=1 load=start
# a node is lost after a checkpoint: the job is queued again without having come to its end
sed '/^rc=/,$d' "$job" > cut.sbatch
CODE=1 SAYS=$saved bash cut.sbatch c.yaml lr=1 overwrite=true load=start > /dev/null
turn 75 "$saved" load=latest lr=1 overwrite=true load=start
echo "turns go on"
