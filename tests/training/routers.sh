#!/bin/sh
# tests/training/routers.sh -- what a run says of its routers: the same over pipeline and expert ranks as on one rank, with
# recomputation, between evaluations, and after a resume; Megatron-LM's fields in the line; nothing without experts.
# Their losses go by all tokens, masked or not.
set -e
work=${WORK:?} launched=$TRAIN
. tests/tiny.sh
"$TRAIN" tokenize src/report -o "$work/corpus" > /dev/null 2>&1
tiny "$work/dense.yaml" precision.params_dtype=fp64 train.global_batch_size=8 train.train_iters=6
tiny "$work/tiny.yaml" precision.params_dtype=fp64 train.global_batch_size=8 train.train_iters=6 moe.num_moe_experts=4 \
    moe.moe_router_topk=2 moe.moe_ffn_hidden_size=32 moe.moe_router_load_balancing_type=aux_loss \
    moe.moe_aux_loss_coeff=0.5 moe.moe_z_loss_coeff=0.1 moe.moe_expert_capacity_factor=1.0
run() { # NAME KEY=VALUE ...
    name=$1
    shift
    "$TRAIN" "$work/tiny.yaml" "save=$work/$name" "$@" > "$work/$name.log" 2>&1 || { [ $? = 75 ] || { cat "$work/$name.log"; exit 1; }; }
}
# moe NAME DIGITS: the routers' part of each line, numbers with so many digits
moe() {
    sed -nE '/"moe_aux_loss/{s/.*("moe_aux_loss.*), "run_id.*/\1/; s/, "(comm|stragglers)": .*//; p}' "$work/$1/metrics.jsonl" |
        awk -v digits="$2" '{
            gsub(/[][{},:]/, " & ")
            for (i = 1; i <= NF; i++) printf "%s ", $i ~ /^[0-9.e+-]+$/ ? sprintf("%." digits "g", $i) : $i
            print ""
        }'
}
same() { # NAME DIGITS: as the run on one rank
    moe one "$2" > "$work/a"
    moe "$1" "$2" > "$work/b"
    [ "$(wc -l < "$work/a")" = 6 ] || { echo "no routers in metrics.jsonl"; exit 1; }
    diff "$work/a" "$work/b" || { echo "$1: the routers differ"; exit 1; }
}
run one
grep -q '"moe_dropped": [1-9]' "$work/one/metrics.jsonl" || { echo "no pair is dropped"; exit 1; }
[ "$(grep -c '| lm loss: [^|]*| load_balancing_loss: [0-9.E+-]* | z_loss: [0-9.E+-]* | loss scale: 1.0 |' "$work/one.log")" = 6 ] ||
    { echo "no losses in the line"; cat "$work/one.log"; exit 1; }
TRAIN=$launched scripts/launch -n 4 "$work/tiny.yaml" "save=$work/four" pipeline_model_parallel_size=2 \
    expert_model_parallel_size=2 > "$work/four.log" 2>&1 || { cat "$work/four.log"; exit 1; }
same four 11
run recomputed recompute_granularity=full recompute_method=uniform recompute_num_layers=1
same recomputed 17
run evaluated eval_interval=1 eval_iters=2
same evaluated 17
run resumed exit_interval=3
run resumed load=latest
same resumed 17
# What a loss of the routers adds to their gradient is the same where every second token has no loss of its own.
i=0
while [ $i -lt 400 ]; do echo '{"text": "a"}'; i=$((i + 1)); done > "$work/short.jsonl"
"$TRAIN" tokenize "$work/short.jsonl" -o "$work/short" > /dev/null 2>&1
dump() { # NAME RANKS KEY=VALUE ...
    name=$1 ranks=$2
    shift 2
    TRAIN=$launched scripts/launch -n "$ranks" dump "$work/tiny.yaml" -o "$work/$name" "data_path=$work/short" "$@" \
        > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
}
for mask in false true; do
    run "mask.$mask" eod_mask_loss=$mask train_iters=1 "data_path=$work/short"
    moe "mask.$mask" 11 > "$work/mask.$mask.moe"
done
cmp "$work/mask.false.moe" "$work/mask.true.moe" || { echo "eod_mask_loss changes the losses of the routers"; exit 1; }
for mask in false true; do
    for loss in moe_aux_loss_coeff moe_z_loss_coeff; do
        dump "$mask" 1 eod_mask_loss=$mask
        dump "$mask.$loss" 1 eod_mask_loss=$mask $loss=2
    done
done
dump two 2 eod_mask_loss=true moe_z_loss_coeff=2
"${PYTHON:-python3}" - "$work" <<'PYTHON'
import json, struct, sys
def read(name):
    f = open(sys.argv[1] + "/" + name, "rb")
    n, = struct.unpack("<Q", f.read(8))
    from_, to = json.loads(f.read(n))["grad.decoder.layers.0.mlp.router.weight"]["data_offsets"]
    f.seek(8 + n + from_)
    return struct.unpack("<%dd" % ((to - from_) // 8), f.read(to - from_))
def part(with_, without):
    return [a - b for a, b in zip(read(with_), read(without))]
def alike(a, b, what):
    most = max(map(abs, a))
    assert most > 1e-6 and all(abs(x - y) < 1e-9 * most for x, y in zip(a, b)), (what, most, a[:3], b[:3])
for loss in "moe_aux_loss_coeff", "moe_z_loss_coeff":
    alike(part("false." + loss, "false"), part("true." + loss, "true"), loss)
alike(read("true.moe_z_loss_coeff"), read("two"), "two ranks")
PYTHON
"$TRAIN" "$work/dense.yaml" "save=$work/dense" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
! grep -q 'moe' "$work/dense/metrics.jsonl" || { echo "routers of a model without experts"; exit 1; }
! grep -q 'load_balancing' "$work/log" || { echo "losses of a model without experts"; exit 1; }
echo "routers agree"
