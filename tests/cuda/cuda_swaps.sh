#!/bin/sh
# tests/cuda/cuda_swaps.sh -- NCCL calls in another order on one rank: each of the first LAUNCHES (default 40) launches of
# rank 1 is exchanged with the next one; then communicators have no common order. Each change has to give wrong numbers or
# end the job.
cd "$(dirname "$0")/../.." || exit 2
emulated=${EMULATED:-build/emulated} fail=0
log=$(mktemp) || exit 2
trap 'rm -f "$log"' EXIT
export EMULATION_HANG=5 TRAIN="$PWD/$emulated/test_cuda_comm"
try() { # WHAT: the test of groups fails; WHAT names the change
    if timeout 120 scripts/launch -n 4 nccl > "$log" 2>&1; then
        echo "not ok - $1: nothing fails"
        fail=1
    else
        echo "ok - $1: $(grep -m1 -o 'emulated NCCL.*\|rank [0-9], number.*' "$log" | cut -c1-100)"
    fi
}
k=0
while [ $k -lt "${LAUNCHES:-40}" ]; do
    k=$((k + 1))
    EMULATION_SWAP=1:$k try "launch $k after the next"
done
NCCL_LAUNCH_ORDER_IMPLICIT=0 try "no order of launches"
[ $fail = 0 ]
