# tests/parallel/planned.sh -- sourced by tests of scripts/launch --restarts, after tiny.sh and same.sh: jobs of four ranks, or `ranks`,
# with a fault planned for each start, beside undisturbed runs of the same two layouts. $work, $launch, $train and $faulty
# are set; the test makes $work/tiny.yaml.
# shellcheck shell=sh disable=SC2154
export TMPDIR="$work/tmp" FAULT_DIR="$work/faults"
. tests/signals.sh
mkdir "$TMPDIR"
bad=0 total=0
"$train" tokenize src/io -o "$work/corpus" > /dev/null 2>&1 || exit 1
model='tensor_model_parallel_size=2 pipeline_model_parallel_size=2'
data='data_parallel_sharding_strategy=optim_grads_params tensor_model_parallel_size=2'
fail() { bad=$((bad + 1)); echo "$*"; sed 's/^/    /' "$work/log" | grep -v ' iteration  ' | cut -c 1-300 | tail -n 12; }
nothing_left() {
    # shellcheck disable=SC2086
    left=$(ls -A "$TMPDIR" ${GRIDIRON_SHM:-} | grep -v '^$\|:$')
    [ -z "$left" ] || fail "$1: left: $left"
    for pid in "$FAULT_DIR"/[0-9]*; do
        ! grep -qs '^State:.[^ZX]' "/proc/${pid##*/}/status" || fail "$1: rank ${pid##*/} is left"
    done
}

# The executable of start K has line K of `plan` as its FAULT, and sources `before.K` where there is one; each rank counts
# its own starts
cat > "$work/train" <<SH
#!/bin/sh
echo >> "$work/starts.\$OMPI_COMM_WORLD_RANK"
start=\$(wc -l < "$work/starts.\$OMPI_COMM_WORLD_RANK")
FAULT=\$(sed -n "\${start}p" "$work/plan")
[ -n "\$FAULT" ] && export FAULT || unset FAULT
copies() { ls -d "\$GRIDIRON_MEMORY"/checkpoints/iter_???????; }
[ ! -f "$work/before.\$start" ] || . "$work/before.\$start"
exec "$faulty" "\$@"
SH
chmod +x "$work/train"

under=''                # command that starts the launcher
ranks=4                 # of a job
# run CODE PLAN RESTARTS SETTING... -- the job ends with CODE; nothing is left of it
run() {
    code=$1 plan=$2 restarts=$3; shift 3
    rm -rf "$work/run" "$work"/starts.* "$FAULT_DIR"
    mkdir "$FAULT_DIR"
    printf "$plan" > "$work/plan"
    TRAIN=$work/train timeout 280 $under "$launch" -n $ranks --restarts "$restarts" "$work/tiny.yaml" save="$work/run" "$@" > "$work/log" 2>&1
    rc=$?
    [ $rc = "$code" ] || fail "$plan $*: code $rc, not $code"
    rm -f "$work"/before.*
    nothing_left "$plan"
}

# undisturbed SETTING... -- runs `model` and `data` with these settings and no fault
# shellcheck disable=SC2086
undisturbed() {
    for name in model data; do
        [ $name = model ] && layout=$model || layout=$data
        "$launch" -n 4 "$work/tiny.yaml" $layout save="$work/$name" "$@" > "$work/log" 2>&1 || fail "the undisturbed run: $?"
    done
}

# runs N SETTING... -- the undisturbed runs with these settings, then N times `disturbed NAME SEED SETTING...`, which the
# test has, for each of them in turn
# shellcheck disable=SC2086
runs() {
    n=$1 i=0; shift
    undisturbed "$@"
    while [ $i -lt "$n" ]; do
        i=$((i + 1))
        [ $((i % 2)) = 0 ] && disturbed model $i $model || disturbed data $i $data
    done
}
