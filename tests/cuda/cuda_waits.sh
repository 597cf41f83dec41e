#!/bin/sh
# tests/cuda/cuda_waits.sh -- leaves out each wait of parallel/context.c, one at a time, in the build for the emulated GPU: a
# layout that shares sequences has to fail under one of TRIES orders of the streams (default 6). A message to the next rank
# and the one from the rank before are one operation of NCCL, and either wait does for both: the two are left out together.
# EMULATED names the build with CUDA=emulated.
cd "$(dirname "$0")/../.." || exit 2
emulated=${EMULATED:-build/emulated} work=$(mktemp -d) fail=0 source=parallel/context.c
trap 'rm -rf "$work"' EXIT
mkdir "$work/runs"
# make's own commands, with the changed file in front of the archive
make -n -W $source CUDA=emulated "$emulated/train" | sed 's/^echo [^;]*; //' > "$work/commands"
compile=$(sed -n "s, -c $source -o .*, -c $work/context.c -o $work/context.o,p" "$work/commands")
link=$(sed -n "s,[^ ]*/gridiron\.a -o $emulated/train ,$work/context.o &,; s, -o $emulated/train , -o $work/train ,p" "$work/commands")
[ -n "$compile" ] && [ -n "$link" ] || { echo "no commands of make"; exit 1; }
passes() { # PATTERN SEEDS: runs the layouts that match with $work/context.c
    rm -rf "$work/runs"/*
    sh -c "$compile" && sh -c "$link" || exit 1
    EMULATION_HANG=20 WORK=$work/runs SEEDS=$2 EMULATED=$work tests/cuda/cuda_layouts.sh only "$1" > "$work/log" 2>&1
}
lines=$(grep -n -e '->wait(' $source | cut -d: -f1 | tr '\n' ' ')
# shellcheck disable=SC2086
set -- $lines
[ $# = 8 ] || { echo "$source has $# waits: change this list"; exit 1; }
ring='^2 context_parallel_size=2 reset' gather='^2 .*=allgather reset' heads='^2 .*=a2a reset'
while IFS="|" read -r layout at; do
    cp $source "$work/context.c"
    for line in $at; do sed -i "${line}s/[a-z>-]*->wait([a-z>-]*, \(.*\));/(void)(\1);/" "$work/context.c"; done
    if [ -z "$at" ]; then
        passes "$layout" 1 && echo "ok - whole: $layout" && continue
        cat "$work/log"
    elif cmp -s $source "$work/context.c"; then
        echo "# lines $at are as before"
    elif ! passes "$layout" "${TRIES:-6}"; then
        echo "ok - without $source:$at: $layout, $(sed -n 's/^# \(seed [0-9]*\)$/\1/p' "$work/log")"
        continue
    fi
    echo "not ok - without $source:$at: $layout"
    fail=1
done <<LIST
$ring
$gather
$heads
$heads|$1
$heads|$2
$gather|$3
$ring|$4 $5
$gather|$6
$ring|$7 $8
LIST
exit $fail
