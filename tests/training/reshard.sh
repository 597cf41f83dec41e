#!/bin/sh
# tests/training/reshard.sh [long] -- checkpoints in other layouts. Tensors: test_reshard. A run that is
# stopped and resumed in other layouts and worlds has the losses of an undisturbed run over the same samples.
# dump, eval, generate and export of a checkpoint agree in every layout.
set -u
work=${WORK:?} launch=$PWD/scripts/launch
train=$TRAIN
. tests/tiny.sh
bad() { echo "$*"; exit 1; }

# ---- tensors: save in A, load in B, save, load in A
mkdir -p "$work/tensors"
reshard() { n=$1; shift; TRAIN=$BUILD/test_reshard "$launch" -n "$n" "$@" || bad "test_reshard $* on $n ranks"; }
if [ "${1:-}" = long ]; then saves='1 2 4 8' loads='1 2 4 8' count=12; else saves=4 loads='2 8' count=4; fi
for n in $saves; do reshard "$n" save "$work/tensors" $count; done
for n in $loads; do reshard "$n" load "$work/tensors" "$n"; done
for n in $saves; do for tag in $loads; do reshard "$n" back "$work/tensors" "$tag"; done; done
rm -rf "$work/tensors"

# ---- a run that is stopped and resumed four times
# a text of its own: with another the gradients of BF16, below, are other ones, of which some are rounding alone
mkdir "$work/text"
awk -v to="$work/text/" 'BEGIN { for (i = 1; i < 9000; i++)
    printf "%d times %d is %d%s", i % 97, i % 89, (i % 97) * (i % 89), i % 7 ? ", " : ".\n" > (to i % 40 ".txt") }'
"$train" tokenize "$work/text" -o "$work/corpus" > /dev/null 2>&1 || bad "tokenize"
tiny "$work/tiny.yaml" model.num_layers=4 model.hidden_dropout=0.1 model.attention_dropout=0.1 \
    train.global_batch_size=8 train.train_iters=8 train.eval_iters=2 train.eval_interval=100 \
    optimizer.lr_decay_style=cosine optimizer.lr_warmup_iters=2 precision.params_dtype=fp64
run() { # RANKS CODE COMMAND...: ends with CODE
    n=$1 code=$2; shift 2
    "$launch" -n "$n" "$@" cpu_isa="$ISA" > "$work/log" 2>&1 && rc=0 || rc=$?
    [ $rc = "$code" ] || { cat "$work/log"; bad "$* on $n ranks: $rc, not $code"; }
}
tp2pp2='tensor_model_parallel_size=2 pipeline_model_parallel_size=2 pipeline_schedule=zb-v'
dp2='data_parallel_sharding_strategy=optim_grads_params'
mix='tensor_model_parallel_size=2 sequence_parallel=true pipeline_model_parallel_size=2 pipeline_schedule=interleaved
     num_virtual_stages_per_pipeline_rank=2 data_parallel_sharding_strategy=optim overlap_grad_reduce=true'
cp4='context_parallel_size=4 cp_comm_type=[p2p,allgather,a2a,a2a+p2p]
     hierarchical_context_parallel_sizes=[2,2]'
cp2='context_parallel_size=2 cp_comm_type=a2a tensor_model_parallel_size=2 sequence_parallel=true
     pipeline_model_parallel_size=2 pipeline_schedule=zb-h1'
# shellcheck disable=SC2086
{
    run 1 0 "$work/tiny.yaml" save="$work/whole"
    run 4 75 "$work/tiny.yaml" save="$work/parts" exit_interval=2 $cp4
    run 2 75 "$work/tiny.yaml" save="$work/parts" exit_interval=3 $dp2 load=latest
    grep -i context "$work/log" && bad "a checkpoint has a trace of its context ranks"
    run 8 75 "$work/tiny.yaml" save="$work/parts" exit_interval=5 $cp2 load=latest async_save=true
    run 4 75 "$work/tiny.yaml" save="$work/parts" exit_interval=7 $tp2pp2 load=latest async_save=true
    run 8 0 "$work/tiny.yaml" save="$work/parts" $mix load=latest
}
steps() { # RUN_DIR: iteration, samples, loss, norm, rate of each step
    tr -d ' ' < "$1/metrics.jsonl" | awk -F '[:,{}]' '/lm_loss/ {
        for (i = 1; i < NF; i++) { gsub(/"/, "", $i); v[$i] = $(i + 1) }
        print v["iteration"], v["consumed_samples"], v["lm_loss"], v["grad_norm"], v["learning_rate"] }'
}
steps "$work/whole" > "$work/a"; steps "$work/parts" > "$work/b"
paste "$work/a" "$work/b" | awk '
    function apart(a, b) { return a == b ? 0 : (a > b ? a - b : b - a) / b }
    NF != 10 || $1 != NR || $6 != NR || $2 != 8 * NR || $7 != 8 * NR { print "step " NR ": " $0; failed = 1 }
    apart($3, $8) > 1e-10 || apart($4, $9) > 1e-10 || $5 != $10 { print "other numbers: " $0; failed = 1 }
    END { exit failed || NR != 8 }' || bad "the run in pieces is not the run in one: $(cat "$work/b")"

# ---- commands that load the checkpoint of 8 ranks, on one rank and in five layouts
run 1 0 dump "$work/tiny.yaml" load="$work/parts" -o "$work/one.safetensors"
"$train" eval "$work/tiny.yaml" load="$work/parts" --json cpu_isa="$ISA" > "$work/eval" || bad "eval"
run 1 0 generate "$work/tiny.yaml" load="$work/parts" --prompt 'static int' --tokens 20 --temperature 0
cp "$work/log" "$work/text"
number() { sed -n 's/.*"valid_loss": \([^,]*\),.*/\1/p' "$1"; }
for layout in "4 $tp2pp2" "2 $dp2" "8 $mix" "4 $cp4" "8 $cp2"; do
    # shellcheck disable=SC2086
    set -- $layout
    n=$1; shift
    run "$n" 0 dump "$work/tiny.yaml" load="$work/parts" -o "$work/$n.safetensors" "$@"
    "$BUILD/test_goldens" dump "$work/one.safetensors" "$work/$n.safetensors" fp64 || bad "dump on $n ranks: $*"
    run "$n" 0 eval "$work/tiny.yaml" load="$work/parts" --json "$@"
    awk "BEGIN { d = $(number "$work/log") / $(number "$work/eval") - 1; exit d * d > 1e-24 }" ||
        bad "eval on $n ranks: $*"
    run "$n" 0 generate "$work/tiny.yaml" load="$work/parts" --prompt 'static int' --tokens 20 --temperature 0 "$@"
    diff "$work/text" "$work/log" || bad "generate on $n ranks: $*"
done
"$train" export "$work/parts" -o "$work/hf" > "$work/log" 2>&1 || { cat "$work/log"; bad "export"; }
"$train" import "$work/hf" -o "$work/again" > "$work/log" 2>&1 || { cat "$work/log"; bad "import"; }
run 4 0 dump "$work/tiny.yaml" load="$work/again" -o "$work/4.safetensors" tensor_model_parallel_size=4
"$BUILD/test_goldens" dump "$work/one.safetensors" "$work/4.safetensors" fp64 || bad "export and import"
# ---- experts: the same commands over other expert grids
tiny "$work/experts.yaml" model.num_layers=4 train.global_batch_size=8 train.eval_iters=1 \
    precision.params_dtype=fp64 moe.num_moe_experts=4 'moe.moe_layer_freq=[1, 0, 1, 1]' moe.moe_z_loss_coeff=0.01 \
    moe.moe_router_load_balancing_type=aux_loss moe.moe_aux_loss_coeff=0.1 model.add_bias_linear=false \
    moe.moe_shared_expert_intermediate_size=32
tp2ep2='tensor_model_parallel_size=2 sequence_parallel=true expert_model_parallel_size=2 expert_tensor_parallel_size=1'
# shellcheck disable=SC2086
run 4 0 "$work/experts.yaml" save="$work/experts" $tp2ep2 data_parallel_sharding_strategy=optim
for layout in 1 "2 expert_model_parallel_size=2" "2 $tp2ep2" \
    "4 pipeline_model_parallel_size=2 expert_tensor_parallel_size=2" "4 context_parallel_size=2 expert_model_parallel_size=4"; do
    # shellcheck disable=SC2086
    set -- $layout
    n=$1; shift
    run "$n" 0 eval "$work/experts.yaml" load="$work/experts" --json "$@"
    [ "$n" = 1 ] && cp "$work/log" "$work/eval"
    awk "BEGIN { d = $(number "$work/log") / $(number "$work/eval") - 1; exit d * d > 1e-24 }" ||
        bad "eval of experts on $n ranks: $*"
    run "$n" 0 generate "$work/experts.yaml" load="$work/experts" --prompt 'static int' --tokens 20 --seed 7 "$@"
    [ "$n" = 1 ] && cp "$work/log" "$work/text"
    diff "$work/text" "$work/log" || bad "generate with experts on $n ranks: $*"
done

# the default layout of the config, verified by its own command
# shellcheck disable=SC2086
{
    run 8 0 verify "$work/tiny.yaml" load="$work/parts" $mix
    run 4 0 verify "$work/tiny.yaml" $tp2pp2
    run 4 0 verify "$work/tiny.yaml" load="$work/parts" $cp4
    run 8 0 verify "$work/tiny.yaml" $cp2
}
# a bias of keys changes no softmax, nor does a query that sees one key alone: gradients that are the rounding of others
for dtype in fp64 fp32 bf16 fp16; do
    for keys in '' 'num_query_groups=1 num_attention_heads=8 position_embedding_type=none init_method_std=0.2' \
        'num_query_groups=1 num_attention_heads=8 position_embedding_type=rope window_size=1 init_method_std=0.2'; do
        # shellcheck disable=SC2086
        run 2 0 verify "$work/tiny.yaml" params_dtype=$dtype tensor_model_parallel_size=2 normalization=LayerNorm qk_layernorm=true \
            position_embedding_type=learned_absolute hidden_dropout=0 attention_dropout=0 $keys
    done
done
echo "other layouts agree"
