#!/bin/sh
# tests/cuda/cuda_waits.sh [context|expert|expert_gather] -- leaves out each wait of that file of parallel/ (default context),
# one at a time, in the build for the emulated GPU: a layout that shares sequences or experts has to fail under one of TRIES
# orders of the streams (default 6). A message to the next rank and the one from the rank before are one operation of NCCL,
# and either wait does for both: the two are left out together.
# EMULATED names the build with CUDA=emulated.
cd "$(dirname "$0")/../.." || exit 2
emulated=${EMULATED:-build/emulated} work=$(mktemp -d) fail=0 name=${1:-context}
source=parallel/$name.c
trap 'rm -rf "$work"' EXIT
mkdir "$work/runs"
# make's own commands, with the changed file in front of the archive
make -n -W $source CUDA=emulated "$emulated/train" | sed 's/^echo [^;]*; //' > "$work/commands"
compile=$(sed -n "s, -c $source -o .*, -c $work/$name.c -o $work/$name.o,p" "$work/commands")
link=$(sed -n "s,[^ ]*/gridiron\.a -o $emulated/train ,$work/$name.o &,; s, -o $emulated/train , -o $work/train ,p" "$work/commands")
[ -n "$compile" ] && [ -n "$link" ] || { echo "no commands of make"; exit 1; }
passes() { # PATTERN SEEDS: runs the layouts that match with the changed file
    rm -rf "$work/runs"/*
    sh -c "$compile" && sh -c "$link" || exit 1
    EMULATION_HANG=20 WORK=$work/runs SEEDS=$2 EMULATED=$work tests/cuda/cuda_layouts.sh only "$1" > "$work/log" 2>&1
}
# expert_gather.c's first two waits are for lists on the host
case $name in
context) waits='->wait(' n=8 ;;
expert) waits=' wait_all(x' n=4 ;;
expert_gather) waits='->wait(' n=6 ;;
*) echo "no such file: $name"; exit 2 ;;
esac
lines=$(grep -n -e "$waits" $source | cut -d: -f1 | tr '\n' ' ')
# shellcheck disable=SC2086
set -- $lines
[ $# = $n ] || { echo "$source has $# waits: change this list"; exit 1; }
ring='^2 context_parallel_size=2 reset' gather='^2 .*=allgather reset' heads='^2 .*=a2a reset'
experts='^2 num_moe_experts.*topk=3' both='^4 .*expert_tensor_parallel_size=2 expert_model_parallel_size=2'
gathered='^2 .*dispatcher_type=allgather' gathered_both='^4 .*dispatcher_type=allgather'
case $name in
context) list="$ring
$gather
$heads
$heads|$1
$heads|$2
$gather|$3
$ring|$4 $5
$gather|$6
$ring|$7 $8" ;;
expert) list="$experts
$both
$experts|$1
$both|$2
$both|$3
$experts|$4" ;;
expert_gather) list="$gathered
$gathered_both
$gathered|$3
$gathered_both|$4
$gathered_both|$5
$gathered|$6" ;;
esac
while IFS="|" read -r layout at; do
    cp $source "$work/$name.c"
    for line in $at; do sed -i "${line}s/[a-z>-]*->wait([a-z>-]*, \(.*\));/(void)(\1);/
        ${line}s/wait_all(.*);/(void)0;/" "$work/$name.c"; done
    if [ -z "$at" ]; then
        passes "$layout" 1 && echo "ok - whole: $layout" && continue
        cat "$work/log"
    elif cmp -s $source "$work/$name.c"; then
        echo "# lines $at are as before"
    elif ! passes "$layout" "${TRIES:-6}"; then
        echo "ok - without $source:$at: $layout, $(sed -n 's/^# \(seed [0-9]*\)$/\1/p' "$work/log")"
        continue
    fi
    echo "not ok - without $source:$at: $layout"
    fail=1
done <<LIST
$list
LIST
exit $fail
