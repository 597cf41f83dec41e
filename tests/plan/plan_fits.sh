#!/bin/sh
# tests/plan/plan_fits.sh -- what one H200 must hold beside the reserve: 7B in bf16 with micro batches of 4 and nothing
# recomputed, 7B in FP8 with every copy of its weights kept, 14B with its optimizer's state on the host. A larger micro
# batch does not fit, so that the answer is not always yes. And FP8 is faster. And what saves copy differs between ranks:
# the fullest one is not the first.
work=${WORK:?} seven=configs/gpu/7b.yaml
fail() { echo "# $1"; [ ! -f "$work/out" ] || sed 's/^/#   /' "$work/out"; exit 1; }
plan() { "$TRAIN" plan $seven --world 1 --machine h200 "$@" > "$work/out" 2>&1 || fail "plan $*"; }
fits() {
    plan "$@"
    line=$(grep "MB of the machine's .*: fits$" "$work/out") || fail "$*: does not fit"
    speed=$(sed -n 's/^time .*: \([0-9]*\) tokens\/s.*/\1/p' "$work/out")
    echo "# $*:$line, $speed tokens/s"
}
fits micro_batch_size=4
bf16=$speed
fits micro_batch_size=2 fp8=hybrid
grep -q '^fp8 .*copies of weights kept by all layers$' "$work/out" || fail "not every copy is kept"
[ "$speed" -gt "$bf16" ] || fail "FP8: $speed tokens/s, bf16: $bf16"
fits micro_batch_size=1 num_layers=48 hidden_size=5120 ffn_hidden_size=13824 num_attention_heads=40 num_query_groups=8 \
    optimizer_cpu_offload=true
plan micro_batch_size=8
grep -q 'TOO LARGE$' "$work/out" || fail "micro batches of 8 fit"
for saves in async_save=true memory_save_interval=1; do
    set -- plan configs/gpt2-124m.yaml --world 4 hidden_size=96 $saves
    most=$("$TRAIN" "$@" --json | awk -F'[:,]' '
        /"total"/ { first = first ? first : $2; most = $2 > most ? $2 : most }
        END { if (most > 1.0002 * first) printf "%.1f", most / 1e6 }')
    "$TRAIN" "$@" > "$work/out"
    grep -q "^  ${most:-NONE} MB on the fullest rank$" "$work/out" || fail "$saves: fullest rank with $most MB"
done
exit 0
