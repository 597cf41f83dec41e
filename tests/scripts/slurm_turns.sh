#!/bin/bash
# tests/scripts/slurm_turns.sh -- the arguments that the turns of a Slurm job give to srun, with stand-ins for
# srun and scontrol. `load` and `overwrite` are given until a turn has saved a checkpoint, even if that turn
# was killed.
work=${WORK:?} job=$PWD/scripts/slurm.sbatch
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
turn 75 "" load=latest lr=1 load=start
turn 0 "" load=latest lr=1 load=start
turn 0 "" load=start lr=1 load=start
# a node is lost after a checkpoint: the job is requeued and its script has not come to its end
sed '/^rc=/,$d' "$job" > cut.sbatch
CODE=1 SAYS=$saved bash cut.sbatch c.yaml lr=1 overwrite=true load=start > /dev/null
turn 75 "$saved" load=latest lr=1 overwrite=true load=start
echo "turns go on"
