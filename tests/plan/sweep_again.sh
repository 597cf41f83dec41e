#!/bin/sh
# tests/plan/sweep_again.sh -- a sweep of two worlds whose calibration does not fit the machine: it is made again, and both
# worlds are predicted and measured with the new one. Then turns of two ranks a core are in the description.
work=${WORK:?}
. tests/tiny.sh
fail() { echo "# $1"; [ ! -f "$work/err" ] || sed 's/^/#   /' "$work/err"; exit 1; }
"$TRAIN" tokenize src/plan/sweep.c -o "$work/corpus" > /dev/null 2>&1 || fail "no corpus"
tiny "$work/tiny.yaml" data.split="'100, 0, 0'" train.global_batch_size=4 train.train_iters=1000 log.log_interval=100
sweep() { "$TRAIN" sweep "$work/tiny.yaml" --world 1,2 -o "$work/out" "$@" > "$work/said" 2> "$work/err"; }
sweep || fail "sweep"
[ "$(grep -c '^measuring this machine$' "$work/err")" = 1 ] || fail "one calibration for two worlds"
machine=$(ls "$work"/out/machine-*.yaml)
[ "$(nproc)" = 1 ] || [ "$(nproc)" -gt 16 ] || grep -q '^  crowding: ' "$machine" || fail "turns were not measured"
cp "$machine" "$work/was"
sed -i 's/\(reference_[a-z_]*copy_ms:\).*/\1 0.01/' "$machine"        # a machine that copies as none does
sweep --measure 6 --rounds 1 --steps 3 || fail "measured"
grep -q 'measuring this machine again' "$work/err" || fail "the calibration was believed"
! grep -q 'copy_ms: 0.01$' "$machine" || fail "the calibration is the old one"
[ "$(grep -c '"measured_ms": [0-9]' "$work/out/sweep.json")" -ge 12 ] || fail "not all of both worlds was measured"
