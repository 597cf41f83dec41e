#!/bin/sh
# tests/cuda/races.sh [PATTERN] -- all accesses of the kernels are ordered, by build/races (make test-races): the CUDA rows of
# tests/table report no race. Then each barrier whose FILE:LINE matches PATTERN is left out, one at a time: a race is reported
# at the first accesses that it had ordered, or the emulation says that a warp or block has come apart.
cd "$(dirname "$0")/../.." || exit 2
export EMULATED=build/races SLOW=20
"$EMULATED/test_races" || exit 1
rows='ops|masters|moments|matmul|attention|rows|copies|fp8-ops|fp8-mx|fp8|room|launches|backend|offload|layouts'
tests/run "^cuda_($rows|tensor-nccl|tensor-staged|tensor-mx|comm-nccl|comm-staged)\$" || exit 1
work=$(mktemp -d) bad=0
trap 'rm -rf "$work"' EXIT
for p in attention fp8 moments rows ops; do
    p=$EMULATED/test_cuda_$p
    EMULATION_SITES=$work/sites "$p" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
    for site in $(awk '$1 == "barrier" {print $2}' "$work/sites" | sort -u | grep -E "${1:-.}"); do
        EMULATION_DROP=$site "$p" > "$work/log" 2>&1
        echo "$site $(grep -o 'race in kernel [^:]*\|emulation: .*' "$work/log" | head -n 1)" >> "$work/found"
    done
    rm "$work/sites"
done
# a place in several programs is found in one of them
for site in $(awk '{print $1}' "$work/found" | sort -u); do
    told=$(grep "^$site ." "$work/found" | head -n 1)
    echo "${told:-not ok - without $site: no race}"
    [ -n "$told" ] || bad=1
done
exit $bad
