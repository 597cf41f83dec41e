#!/bin/sh
# tests/cuda/barriers.sh -- leaves out each barrier of attention's backward (dq; dk and dv), one at a time, on the emulated
# device: a case of test_cuda_attention has to fail under one of some seeds. The whole of it, for all kernels:
# tests/cuda/emulation.sh.
program=${EMULATED:-build/emulated}/test_cuda_attention work=${WORK:?} bad=0
# numbers of cases: a group of two heads; documents, a window and dropout; nothing is seen; documents and several runs
cases='0 7 31 37 42'
for c in $cases; do
    EMULATION_SITES=$work/sites "$program" "$c" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
done
awk '/^barrier .*\/attention(_bwd|_bwd_keys)?\.cuh?:/ {print $2}' "$work/sites" | sort -u > "$work/list"
[ "$(grep -c attention_bwd "$work/list")" -ge 12 ] || { cat "$work/list"; echo "barriers are missing"; exit 1; }
while read -r site; do
    caught=
    for seed in 0 1 2; do
        for c in $cases; do
            EMULATION_DROP=$site EMULATION_SEED=$seed "$program" "$c" > "$work/log" 2>&1 && continue
            caught="case $c, seed $seed"
            break 2
        done
    done
    echo "without $site: ${caught:-nothing fails}"
    [ -n "$caught" ] || bad=1
done < "$work/list"
exit $bad
