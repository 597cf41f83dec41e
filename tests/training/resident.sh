#!/bin/sh
# tests/training/resident.sh N [SEED] -- N random legal layouts of 1 to 8 ranks: what each rank is planned to hold beside what it
# holds, to the page (test_resident.c).
export WORK="${WORK:-$(mktemp -d)}" BUILD="${BUILD:-build/cpu}"
export TRAIN="$BUILD/test_resident"
bad=0
for n in 1 2 3 4 5 6 7 8; do
    # few layouts are legal over 5 and 7 ranks
    case $n in 5 | 7) share=1 ;; 1 | 3) share=2 ;; 8) share=5 ;; *) share=3 ;; esac
    scripts/launch -n $n $((($1 * share + 19) / 20)) "${2:-7}" || bad=1
    rm -rf "$WORK"/held.*
done
exit $bad
