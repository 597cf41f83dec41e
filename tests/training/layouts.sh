#!/bin/sh
# tests/training/layouts.sh bitwise|long -- layouts that only reorder work have the same bits, whatever the world: pipelines,
# virtual stages, schedules, recompute, overlap, threads, asynchronous saves; ZeRO 0 and 1; ZeRO 2 and 3. Three steps
# with clipping each. long: all layouts of up to 8 ranks, every layout against one rank, and reshard.sh.
set -u
work=${WORK:-$(mktemp -d)}
export WORK="$work" BUILD="${BUILD:-build/cpu}" ISA="${ISA:-auto}"
export TRAIN="$BUILD/test_layouts"
bad=0
: > "$work/bits"

if [ "$1" = long ]; then
    for n in 1 2 3 4 5 6 7 8; do
        scripts/launch -n $n cover || bad=1
        for draw in 3 4; do scripts/launch -n $n all 0 1 $draw || bad=1; done
        scripts/launch -n $n experts || bad=1
        scripts/launch -n $n all-experts || bad=1
        case $n in 2 | 4 | 6 | 8) scripts/launch -n $n optimizers || bad=1 ;; esac
    done
    scripts/launch -n 4 bf16 || bad=1
    scripts/launch -n 8 bf16 || bad=1
    mkdir "$work/reshard"
    WORK=$work/reshard TRAIN=$PWD/$BUILD/train tests/training/reshard.sh long || bad=1
fi
for n in 1 2 4 8; do
    # shellcheck disable=SC2046
    scripts/launch -n $n bitwise "$work/bits" $([ "$1" = long ] && echo all) || bad=1
done
# layouts with the same first column have the same bits; a first column has three layouts on average, with FEW one
awk -F '\t' -v each=$((${FEW:+1} + 0 ? 1 : 3)) '
    !($1 in bits) { bits[$1] = $2; first[$1] = $3; keys++ }
    bits[$1] != $2 { printf "# other bits, %s:\n#   %s\n#   %s\n", $1, first[$1], $3; failed++ }
    { rows++ }
    END {
        printf "# %d layouts, %d kinds of arithmetic, %d with other bits\n", rows, keys, failed
        exit failed > 0 || rows < each * keys
    }' "$work/bits" || bad=1
exit $bad
