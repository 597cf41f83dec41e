#!/bin/sh
# tests/plan/explain.sh -- `train plan --explain --json`: losses add up to the step, a cause put into the machine or the
# layout is the largest loss, and each proposed change gives the step that it promises.
work=${WORK:?}
fail() { echo "# $1"; [ ! -f "$work/err" ] || sed 's/^/#   /' "$work/err"; exit 1; }
cat > "$work/gpt.yaml" <<'YAML'
model: {num_layers: 16, hidden_size: 2048, num_attention_heads: 16, seq_length: 2048, vocab_size: 32000}
data: {tokenizer_type: none}
train: {micro_batch_size: 2, global_batch_size: 256}
precision: {params_dtype: bf16}
YAML
cp configs/machines/a100-80gb.yaml "$work/a100-80gb.yaml"

# plan KEYS...: writes out, with machine.yaml like the A100 but for the line of the variables device, node, network, ops
plan() {
    {
        echo "machine: {name: for a test, like: a100-80gb}"
        [ -z "$device" ] || echo "device: {$device}"
        [ -z "$node" ] || echo "node: {$node}"
        [ -z "$network" ] || echo "network: {$network}"
        [ -z "$ops" ] || echo "ops: {$ops}"
    } > "$work/machine.yaml"
    "$TRAIN" plan "$work/gpt.yaml" --world 16 --machine "$work/machine.yaml" --explain --json "$@" \
        > "$work/out" 2> "$work/err" || fail "plan $*"
}
value() { sed -n "s/.*\"$1\": \\([-0-9.e+]*\\).*/\\1/p" "$work/out" | head -n 1; }

# cause NAME KEYS...: NAME is the largest loss beside the work itself, and all losses are 100 % of the step
cause() {
    name=$1
    shift
    plan "$@"
    sed -n '/"losses_percent"/,/}/{/losses_percent/d;s/.*"\(.*\)": \([-0-9.e+]*\).*/\2 \1/p;}' "$work/out" > "$work/losses"
    awk '{ sum += $1 } END { exit !(NR == 18 && sum > 99.99 && sum < 100.01) }' "$work/losses" ||
        fail "losses of $*: $(cat "$work/losses")"
    found=$(grep -v ' peak$' "$work/losses" | sort -gr | head -n 1 | cut -d' ' -f2)
    [ "$found" = "$name" ] || fail "$name put in, the largest loss is $found: $(sort -gr "$work/losses" | head -n 3 | tr '\n' ' ')"
}
device='' node='' network='' ops=''
tensor2='tensor_model_parallel_size=2 sequence_parallel=true'
pipe4='pipeline_model_parallel_size=4'
# shellcheck disable=SC2086
{
    device='launch_us: 400' cause launch
    device='op_speed: [act_fwd, 0.01, act_bwd, 0.01]' cause memory
    device='op_speed: [fp8_cast, 0.01]' cause cast fp8=hybrid
    device='op_speed: [copy, 0.0005]' cause cast context_parallel_size=2 cp_comm_type=p2p micro_batch_size=1
    device='matmul_efficiency: [1e9, 0.05, 1e12, 0.1]' cause below_peak
    node='link_gbps: 4' cause tensor $tensor2
    node='link_latency_us: 4000' cause tensor $tensor2
    network='network_gbps: 0.5' cause data
    network='network_gbps: 0.5' cause data data_parallel_sharding_strategy=optim_grads_params
    network='straggle: 0.3' cause slowest
    ops='host_us: 4000' cause host
    cause pipeline $pipe4 global_batch_size=32
    cause imbalance $pipe4 vocab_size=1000000 micro_batch_size=1
    network='network_gbps: 0.02' cause pipeline pipeline_model_parallel_size=2 rank_order=tp-cp-ep-dp-pp
    node='link_gbps: 4' cause context context_parallel_size=4 cp_comm_type=a2a micro_batch_size=1 seq_length=16384
}

# Each change is as fast as it says, faster than the step as it is, and they are in order.
plan $pipe4 global_batch_size=64
[ "$(grep -c '"change"' "$work/out")" = 3 ] || fail "not three changes"
now=$(value step_ms)
sed -n '/"changes"/,$s/.*"change": "\(.*\)".*/\1/p' "$work/out" > "$work/changes"
sed -n '/"changes"/,$s/.*"step_ms": \([0-9.e+-]*\).*/\1/p' "$work/out" > "$work/steps"
last=0
while read -r change <&3 && read -r step <&4; do
    # shellcheck disable=SC2086
    plan $pipe4 global_batch_size=64 $change
    awk -v a="$(value step_ms)" -v b="$step" -v now="$now" -v last="$last" \
        'BEGIN { d = a / b - 1; exit !(d < 1e-9 && d > -1e-9 && b < now && b >= last) }' ||
        fail "$change: $step ms promised, $(value step_ms) planned, $now without"
    last=$step
done 3< "$work/changes" 4< "$work/steps"

# pipeline_balance cost: layers are split by the machine's predicted times, for the plan and for its changes: no
# other number of layers at an end is faster. Head and embedding of a large vocabulary are many layers.
balanced() { # FIRST MIDDLE LAST: the layers of four stages, as a layout
    t() { printf '%*s' "$1" '' | tr ' ' t; }
    echo "E$(t "$1")|$(t "$2")|$(t "$2")|$(t "$3")L"
}
# shellcheck disable=SC2086
{
    large="$pipe4 num_layers=32 vocab_size=500000 micro_batch_size=1"
    plan $large pipeline_balance=cost
    best=$(value step_ms)
    layout=$(sed -n 's/^pipeline_balance cost, predicted for for a test: .*: \(E.*L\)$/\1/p' "$work/err")
    [ -n "$layout" ] || fail "no word of the split"
    plan $large "pipeline_model_parallel_layout=$layout"
    [ "$(value step_ms)" = "$best" ] || fail "$layout is not the split of the plan"
    for split in '8 8 8' '9 9 5' '10 10 2' '9 10 3' '11 10 1' '10 9 4'; do
        plan $large "pipeline_model_parallel_layout=$(balanced $split)"
        awk -v a="$(value step_ms)" -v b="$best" 'BEGIN { exit !(a >= 0.999 * b) }' || fail "$split is faster than $layout"
    done
    device='op_speed: [act_fwd, 0.01, act_bwd, 0.01]' plan $large pipeline_balance=cost
    ! grep -qF "$layout" "$work/err" || fail "the split does not follow from the machine"
}

# more layers than a pipeline may have ranks are split too, about in halves
for layers in 4095 10000; do
    "$TRAIN" plan "$work/gpt.yaml" --world 2 --machine a100-80gb pipeline_model_parallel_size=2 num_layers=$layers \
        hidden_size=64 num_attention_heads=4 ffn_hidden_size=64 pipeline_balance=cost > "$work/out" 2> "$work/err" ||
        fail "a plan of $layers layers"
    sed -n 's/^pipeline_balance cost, predicted for .*: Et\*\([0-9]*\)|t\*\([0-9]*\)L$/\1 \2/p' "$work/err" |
        awk -v n=$layers '{ ok = $1 + $2 == n && $1 > 0.49 * n && $1 < 0.51 * n } END { exit !ok }' ||
        fail "$layers layers are split unevenly"
done

# layers with experts take longer than dense ones, in a prediction and in a measurement
# shellcheck disable=SC2086
for machine in '--machine a100-80gb' ''; do
    "$TRAIN" plan "$work/gpt.yaml" --world 2 $machine pipeline_model_parallel_size=2 global_batch_size=8 \
        pipeline_balance=cost num_layers=8 hidden_size=64 num_attention_heads=4 seq_length=64 vocab_size=100 \
        ffn_hidden_size=64 num_moe_experts=8 moe_layer_freq=[0,0,0,0,0,0,1,1] moe_router_topk=8 \
        moe_ffn_hidden_size=512 > "$work/out" 2> "$work/err" || fail "a plan with experts $machine"
    grep -qE '^pipeline_balance cost.* layers [0-9.e-]+ to [0-9.e-]+, head .*: Et\*(5|6|7)\|t(\*[23])?L$' "$work/err" ||
        fail "layers with experts count as dense ones $machine"
done

# without a machine there is nothing to explain; --calibrate writes over nothing that it has not written
refused() { # WORDS ARGUMENT...
    words=$1
    shift
    "$TRAIN" plan "$@" > "$work/out" 2> "$work/err" && rc=0 || rc=$?
    [ $rc = 2 ] && [ "$(grep -c '^error\[' "$work/err")" = 1 ] && grep -q "$words.*change: " "$work/err" || fail "plan $*: $rc"
}
printf '%s\n' 'model: {num_layers: 2, hidden_size: 32, num_attention_heads: 4, seq_length: 32, vocab_size: 100}' \
    'data: {tokenizer_type: none}' 'train: {micro_batch_size: 1, global_batch_size: 8}' > "$work/tiny.yaml"
# an expert that drops every token has a round without rows
"$TRAIN" plan "$work/tiny.yaml" num_moe_experts=4 moe_expert_capacity_factor=0 > "$work/out" 2> "$work/err" ||
    fail "a plan whose experts take nothing"
cp "$work/tiny.yaml" "$work/before.yaml"
refused 'needs the times of a machine' "$work/tiny.yaml" --explain
refused 'has no JSON' "$work/tiny.yaml" --calibrate --json --machine "$work/new.yaml"
refused 'tiny.yaml is there, and --calibrate has not written it' "$work/tiny.yaml" --calibrate --machine "$work/tiny.yaml"
# one of three: the others would be left out without a word; a folder that is not there is missed before the measurement
for two in '--explain --calibrate' '--explain --search lists' '--search lists --calibrate'; do
    # shellcheck disable=SC2086
    refused 'one of --explain, --search and --calibrate' "$work/tiny.yaml" $two --machine "$work/new.yaml"
done
# each mistake in the description of a machine is one, where all that is right comes from another description
mistaken() { # DEVICE WORDS [LIKE]
    printf 'machine: {name: for a test, like: %s}\ndevice: {%s}\n' "${3:-a100-80gb}" "$1" > "$work/odd.yaml"
    "$TRAIN" plan "$work/tiny.yaml" --machine "$work/odd.yaml" > "$work/out" 2> "$work/err" && rc=0 || rc=$?
    [ $rc = 2 ] && grep -q "odd.yaml:[12]:[0-9]*: $2" "$work/err" && grep -q '^error.machine. 1 problem in .*; change: ' "$work/err" ||
        fail "a machine with $1: $rc, $(tail -n 2 "$work/err")"
}
mistaken 'matmul_tflop: 9' "unknown key 'matmul_tflop'; did you mean 'matmul_tflops'"
mistaken 'matmul_tflops: 0' 'matmul_tflops: 0 is not in'
mistaken 'matmul_tflops: 1, matmul_tflops: 2' 'matmul_tflops: duplicate; first at line 2'
mistaken '[watts]: 9' 'expected a key'
mistaken 'link_gbps: 9' "link_gbps: belongs to section 'node', not 'device'"
mistaken 'matmul_efficiency: [1e9]' 'matmul_efficiency: 1 numbers; expected pairs'
mistaken 'matmul_efficiency: [[1e9, 0.5]]' 'matmul_efficiency: element 1: .* got a list'
mistaken 'matmul_efficiency: [1e9, 0.5, 1e8, 0.6]' 'matmul_efficiency: 1e+08 after 1e+09; sizes go upward'
mistaken 'memory_efficiency: [1e9, 2.5]' 'memory_efficiency: 2.5 is no share of a peak'
mistaken 'op_speed: [norms, 2]' "op_speed: 'norms' is no operation"
mistaken 'op_speed: [norm_fwd, 0]' "op_speed: norm_fwd has the speed '0'; expected a number above 0"
mistaken 'op_speed: [norm_fwd, inf]' "op_speed: norm_fwd has the speed 'inf'; expected a number above 0"
mistaken 'op_speed_shared: [norm_fwd]' 'op_speed_shared: 1 values; expected pairs'
mistaken 'watts: 9' 'like: descriptions refer to each other in a circle' odd
mistaken 'watts: [' 'not YAML'
"$TRAIN" plan "$work/tiny.yaml" --calibrate --machine "$work/nowhere/new.yaml" > "$work/out" 2> "$work/err" && rc=0 || rc=$?
[ $rc = 5 ] && [ "$(grep -c '^error\[' "$work/err")" = 1 ] && [ "$(wc -l < "$work/err")" = 1 ] || fail "--calibrate into no folder: $rc"
"$TRAIN" plan "$work/tiny.yaml" --search "$work/nowhere/lists" --machine none > "$work/out" 2> "$work/err" && rc=0 || rc=$?
[ $rc = 5 ] && grep -q '^error\[write\].* --search with' "$work/err" || fail "--search into no folder is found late: $rc"
cmp "$work/tiny.yaml" "$work/before.yaml" || fail "the configuration was written over"
for most in 2 3; do        # there is room for the whole job
    "$TRAIN" plan "$work/tiny.yaml" --world 2 --at-most $most > "$work/out" 2> "$work/err" && [ "$(cat "$work/out")" = 2 ] ||
        fail "--at-most $most of 2 ranks: $(cat "$work/out")"
done
"$TRAIN" plan "$work/tiny.yaml" --world 2 --at-most 8 min_world=1 > "$work/out" 2> "$work/err" && [ "$(cat "$work/out")" = 2 ] ||
    fail "a job of 2 ranks goes on with $(cat "$work/out")"
"$TRAIN" plan "$work/tiny.yaml" --world 8 --at-most 7 min_world=2 --json > "$work/out" || fail "at most"
[ "$(cat "$work/out")" = '{"world": 4}' ] || fail "--at-most --json: $(cat "$work/out")"
"$TRAIN" plan "$work/tiny.yaml" --world 8 --at-most 7 min_world=2 global_batch_size=null > "$work/out" 2> "$work/err" && rc=0 || rc=$?
[ $rc = 2 ] && grep -q 'min_world: 2 needs global_batch_size, which is absent; ' "$work/err" ||
    fail "a smaller world with a batch of its own: $rc, $(cat "$work/out")"
exit 0
