#!/bin/sh
# tests/cuda/emulation.sh [PATTERN] -- runs the op tests on the emulated device under SEEDS seeds (default 20). Then leaves
# out each place that waits (event wait, synchronisation or barrier whose FILE:LINE matches PATTERN), one at a time: a test
# has to fail under one of up to TRIES seeds (default 4). BUILD names the folder (default build/emulated).
cd "$(dirname "$0")/../.." || exit 2
build=${BUILD:-build/emulated} seeds=${SEEDS:-20} tries=${TRIES:-4} pattern=${1:-.} fail=0
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
export EMULATION_GUARD=1
# programs that run without arguments; the waits of groups of ranks are left to tests/cuda/cuda_layouts.sh drop
programs=$(ls "$build"/test_cuda_* | grep -v -e '\.[a-z]*$' -e '_comm$' -e '_tensor$')
for p in $programs; do
    s=0
    while [ $s -lt "$seeds" ]; do
        EMULATION_SITES=$work/sites.$(basename "$p") EMULATION_SEED=$s timeout 300 "$p" > "$work/log" 2>&1 || {
            echo "not ok - $p under seed $s"
            tail -n 20 "$work/log" | sed 's/^/#   /'
            fail=1
        }
        s=$((s + 1))
    done
    echo "ok - $p, $seeds seeds"
done
for p in $programs; do
    awk '{print $(NF - 1)}' "$work/sites.$(basename "$p")" | sort -u | grep -E "$pattern" > "$work/list"
    while read -r site; do
        s=0 caught=
        while [ $s -lt "$tries" ] && [ -z "$caught" ]; do
            EMULATION_DROP=$site EMULATION_SEED=$s timeout 300 "$p" > "$work/log" 2>&1 || caught="seed $s"
            s=$((s + 1))
        done
        echo "$site $p ${caught:-nothing}" >> "$work/found"
    done < "$work/list"
done
# a place in several programs is caught when one of the programs fails
for site in $(awk '{print $1}' "$work/found" 2> /dev/null | sort -u); do
    if grep -F "$site " "$work/found" | grep -qv 'nothing$'; then
        echo "ok - without $site: $(grep -F "$site " "$work/found" | grep -v 'nothing$' | head -n 1 | cut -d' ' -f2-)"
    else
        echo "not ok - without $site: nothing fails"
        fail=1
    fi
done
[ $fail = 0 ]
