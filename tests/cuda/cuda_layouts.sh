#!/bin/sh
# tests/cuda/cuda_layouts.sh [short|long|only PATTERN|drop] -- runs with `device: cuda` on the emulated GPU against the same
# runs on the CPU: three steps, each loss within 1e-5 and each gradient norm within 1e-4 in F32; within 1e-3 and 1e-2 in BF16;
# the routers' entropies and balance losses as the norm; the bytes of each group in the last step the same;
# the same in FP8, but with experts 5e-3 and 5e-2. `train verify` of two ranks ends well, too.
#   short   a few layouts, one order of the streams each (default)
#   long    all layouts, SEEDS orders each (default 20)
#   only    the layouts whose line (as a TAP line has it) matches PATTERN, SEEDS orders each
#   drop    leaves out each place where a stream or the host waits, one at a time: a layout has to fail under one of TRIES
#           orders (default 3)
# EMULATED names the build with CUDA=emulated.
cd "$(dirname "$0")/../.." || exit 2
emulated=${EMULATED:-build/emulated} work=${WORK:-$(mktemp -d)} seeds=${SEEDS:-20} tries=${TRIES:-3} fail=0 n=0
cpu=${TRAIN:-$PWD/build/cpu/train}
export EMULATION_GUARD=1 EMULATION_HANG="${EMULATION_HANG:-$([ "${1:-short}" = drop ] && echo 20 || echo 240)}"
"$cpu" tokenize src -o "$work/corpus" > /dev/null 2>&1 || exit 2
# documents of 1 to 12 bytes
awk 'BEGIN { for (i = 0; i < 900; i++) printf "{\"text\": \"%s\"}\n", substr("from the north", 1 + i % 3, 1 + i * 7 % 12) }' > "$work/short.jsonl"
"$cpu" tokenize "$work/short.jsonl" -o "$work/short" > /dev/null 2>&1 || exit 2
cat > "$work/tiny.yaml" <<YAML
model: {num_layers: 4, hidden_size: 64, num_attention_heads: 4, num_query_groups: 2, kv_channels: 64, ffn_hidden_size: 128, seq_length: 16,
        max_position_embeddings: 16, position_embedding_type: rope, normalization: RMSNorm, activation: swiglu, hidden_dropout: 0.1,
        attention_dropout: 0.1, untie_embeddings_and_output_weights: false}
data: {data_path: $work/corpus, tokenizer_type: byte, split: '98, 2, 0'}
train: {micro_batch_size: 1, global_batch_size: 4, train_iters: 3}
optimizer: {lr: 0.001, lr_decay_style: constant}
log: {log_interval: 1}
checkpoint: {save_at_end: false}
YAML
# A line: ranks and options; the short set has a * in front. The lines cover all schedules, ZeRO stages, backends, overlaps.
# mixtral, deepseek, qwen, biases: models with 8 experts, of whose rows most go in two or more rounds.
layouts() {
    sed -e 's/ mixtral/ experts top=2 std=0.1 add_bias_linear=false moe_router_load_balancing_type=aux_loss aux=0.1 moe_z_loss_coeff=0.01/' \
        -e 's/ deepseek/ experts top=4 shared moe_layer_freq=[0,1,1,1] moe_router_score_function=sigmoid moe_router_num_groups=4 moe_router_group_topk=2 moe_router_topk_scaling_factor=2.5 moe_router_load_balancing_type=seq_aux_loss aux=0.1/' \
        -e 's/ qwen/ experts top=3 std=0.1 shared moe_shared_expert_gate=true aux=0.1/; s/ biases/ experts top=1 moe_router_pre_softmax=true moe_layer_freq=2 std=0.1 add_bias_linear=true activation=gelu_tanh/' \
        -e 's/ experts/ num_moe_experts=8 moe_ffn_hidden_size=32/; s/ shared/ add_bias_linear=false moe_shared_expert_intermediate_size=64/; s/ top=/ moe_router_topk=/' \
        -e 's/ std=/ init_method_std=/; s/ aux=/ moe_aux_loss_coeff=/; s/ ep=/ expert_model_parallel_size=/; s/ etp=/ expert_tensor_parallel_size=/; s/ turns/ overlap_moe_expert_parallel_comm=true/' \
        -e "s/ cp=/ context_parallel_size=/; s/kind=/cp_comm_type=/; s#documents#reset_attention_mask=true reset_position_ids=true data_path=$work/short#" \
        -e 's/ blocks/ fp8=hybrid fp8_recipe=blockwise micro_batch_size=2 ffn_hidden_size=256 kv_channels=128 moe_ffn_hidden_size=256/' \
        -e 's/ mx/ fp8=hybrid fp8_recipe=mxfp8 micro_batch_size=4 global_batch_size=16 moe_ffn_hidden_size=64/' \
        -e '/blockwise/s/moe_shared_expert_intermediate_size=64/moe_shared_expert_intermediate_size=256/' \
        -e 's/ bf16/ params_dtype=bf16 lr=0.0001/; s/heads=/hierarchical_context_parallel_sizes=/' \
        -e 's/tp=/tensor_model_parallel_size=/; s/pp=/pipeline_model_parallel_size=/; s/ sp / sequence_parallel=true /; s/zero=/data_parallel_sharding_strategy=/' \
        -e 's/overlap$/overlap_grad_reduce=true overlap_param_gather=true/; s/schedule=/pipeline_schedule=/; s/ staged/ distributed_backend=staged/' \
        -e 's/full$/recompute_granularity=full recompute_method=uniform recompute_num_layers=1/; s/selective$/recompute_granularity=selective/' <<LAYOUTS
* 1 optimizer=adam
1 optimizer=lamb full
1 optimizer=lars selective
1 optimizer=sgd position_embedding_type=learned_absolute normalization=LayerNorm activation=gelu_tanh
1 micro_batch_size=2 qk_layernorm=true window_size=5
2 tp=2
2 tp=2 staged
* 2 tp=2 sp tp_comm_overlap=true
2 tp=2 sp tp_comm_overlap=true activation=gelu_tanh
* 2 tp=2 sp tp_comm_overlap=true activation=gelu_tanh micro_batch_size=2 params_dtype=bf16 lr=0.0001 fp8=hybrid
4 tp=2 sp pp=2 schedule=zb-h1 tp_comm_overlap=true micro_batch_size=2 params_dtype=bf16 lr=0.0001 fp8=hybrid fp8_recipe=tensorwise staged
2 tp=2 sp micro_batch_size=2 params_dtype=bf16 lr=0.0001 fp8=hybrid
* 2 tp=2 sp tp_comm_overlap=true micro_batch_size=2 params_dtype=bf16 lr=0.0001 fp8=hybrid fp8_recipe=blockwise kv_channels=128 ffn_hidden_size=256 num_layers=2
2 tp=2 sp pp=1 micro_batch_size=2 params_dtype=bf16 lr=0.0001 fp8=hybrid fp8_recipe=blockwise kv_channels=128 ffn_hidden_size=512 full
2 pp=2 schedule=zb-h1 micro_batch_size=2 params_dtype=bf16 lr=0.0001 fp8=hybrid fp8_recipe=blockwise ffn_hidden_size=128 cpu_offloading_num_layers=2
* 2 tp=2 sp tp_comm_overlap=true micro_batch_size=16 global_batch_size=32 bf16 fp8=hybrid fp8_recipe=mxfp8 num_layers=2
2 tp=2 sp pp=1 micro_batch_size=2 global_batch_size=8 bf16 fp8=e4m3 fp8_recipe=mxfp8 full
2 pp=2 schedule=zb-h1 micro_batch_size=2 global_batch_size=8 bf16 fp8=hybrid fp8_recipe=mxfp8 cpu_offloading_num_layers=2
2 tp=2 sp selective
4 tp=4 sp tp_comm_overlap=true staged
2 pp=2 schedule=gpipe
2 pp=2 schedule=1f1b staged
2 pp=2 schedule=zb-h1
* 2 pp=2 schedule=zb-h1 cpu_offloading_num_layers=2 optimizer_cpu_offload=true
1 cpu_offloading_num_layers=4 optimizer_cpu_offload=true optimizer_offload_fraction=0.5
2 pp=2 schedule=interleaved num_virtual_stages_per_pipeline_rank=2 cpu_offloading_num_layers=1 selective
2 zero=optim_grads_params overlap_grad_reduce=true cpu_offloading_num_layers=3 optimizer_cpu_offload=true
2 pp=2 schedule=zb-h2 full
2 pp=2 schedule=zb-v
2 pp=2 schedule=zb-v global_batch_size=12 pipeline_model_parallel_layout=Ett|t|t|L
2 pp=2 global_batch_size=12 num_virtual_stages_per_pipeline_rank=2 pipeline_model_parallel_layout=E|ttt|t|L
2 pp=2 schedule=v-half
2 pp=2 schedule=zb-auto pipeline_max_activations=3
2 pp=2 schedule=interleaved num_virtual_stages_per_pipeline_rank=2
4 pp=4 schedule=1f1b
4 pp=4 schedule=zb-h1 staged
2 zero=no_shard overlap_grad_reduce=true
* 2 zero=optim_grads bf16 grad_reduce_in_bf16=true overlap_grad_reduce=true
* 2 zero=optim bf16 exp_avg_dtype=fp8 exp_avg_sq_dtype=fp8 optimizer_cpu_offload=true
* 2 zero=optim bf16 main_grads_dtype=bf16 position_embedding_type=learned_absolute normalization=LayerNorm overlap
2 zero=no_shard bf16 grad_reduce_in_bf16=true optimizer=lars
2 pp=2 schedule=zb-h1 bf16 main_grads_dtype=bf16 mixtral optimizer=sgd
4 zero=optim_grads_params num_distributed_optimizer_instances=2 bf16 grad_reduce_in_bf16=true staged
2 zero=optim overlap
2 zero=optim_grads overlap_grad_reduce=true
* 2 zero=optim_grads_params overlap_grad_reduce=true
2 zero=optim_grads_params staged
4 zero=optim_grads_params num_distributed_optimizer_instances=2
4 tp=2 sp zero=optim overlap
4 tp=2 pp=2 schedule=1f1b
4 tp=2 sp pp=2 schedule=zb-v tp_comm_overlap=true
4 pp=2 schedule=interleaved num_virtual_stages_per_pipeline_rank=2 zero=optim_grads overlap_grad_reduce=true
* 4 pp=2 schedule=1f1b zero=optim overlap
4 tp=2 sp pp=2 schedule=zb-h1 selective
2 cp=2 documents
2 cp=2 window_size=5 bf16
2 cp=2 kind=allgather documents bf16
2 cp=2 kind=allgather window_size=5 full
2 cp=2 kind=a2a documents
2 cp=2 kind=a2a window_size=5 bf16 staged
* 2 cp=2 kind=[p2p,allgather,a2a,p2p] documents window_size=5 micro_batch_size=2 qk_layernorm=true selective
2 cp=2 staged documents
2 cp=2 kind=allgather staged
2 cp=2 attention_dropout=0 hidden_dropout=0 bf16
2 cp=2 cpu_offloading_num_layers=2 optimizer_cpu_offload=true
4 cp=4
4 cp=4 documents bf16 micro_batch_size=2
4 cp=4 kind=allgather window_size=3
4 cp=4 kind=a2a num_query_groups=4 documents
* 4 cp=4 kind=a2a+p2p heads=[2,2] documents window_size=7 bf16 num_layers=2 global_batch_size=2
4 cp=4 kind=[p2p,allgather,a2a,a2a+p2p] heads=[2,2] num_query_groups=4 staged
4 cp=2 tp=2 sp documents tp_comm_overlap=true
4 cp=2 tp=2 sp kind=allgather bf16 selective
4 cp=2 kind=a2a tp=2 num_query_groups=4 full
4 cp=2 pp=2 schedule=1f1b documents
4 cp=2 kind=allgather pp=2 schedule=zb-h1 bf16
4 cp=2 kind=a2a pp=2 schedule=interleaved num_virtual_stages_per_pipeline_rank=2 documents
4 cp=2 pp=2 schedule=zb-v window_size=5
4 cp=2 zero=optim overlap
4 cp=2 kind=allgather zero=optim_grads overlap_grad_reduce=true
4 cp=2 kind=a2a zero=optim_grads_params overlap_grad_reduce=true documents
4 cp=2 zero=optim_grads_params bf16
1 mixtral
1 deepseek bf16 full
1 biases selective
2 mixtral ep=2
2 deepseek ep=2 zero=optim_grads_params bf16 overlap_grad_reduce=true
2 qwen tp=2 sp ep=2 etp=1 tp_comm_overlap=true
2 biases tp=2 sp bf16 staged
2 mixtral cp=2 ep=2 documents staged
2 biases pp=2 schedule=zb-h1 bf16
2 deepseek pp=2 schedule=zb-v micro_batch_size=2
4 mixtral ep=4 zero=optim_grads_params overlap_grad_reduce=true
4 deepseek ep=2 zero=optim overlap
4 qwen tp=2 sp ep=2 bf16
4 biases cp=2 kind=a2a ep=4 staged full
* 4 mixtral pp=2 ep=2 schedule=interleaved num_virtual_stages_per_pipeline_rank=2
4 deepseek tp=2 sp cp=2 ep=4 etp=1 micro_batch_size=2
4 biases tp=2 sp pp=2 ep=2 etp=1 schedule=zb-v bf16
4 qwen pp=4 schedule=1f1b staged
4 mixtral tp=4 sp ep=2 etp=2 staged
4 qwen etp=2 ep=2 bf16 selective
8 mixtral cp=2 kind=a2a ep=8 bf16
8 deepseek tp=2 sp pp=2 ep=2 etp=1 zero=optim overlap
8 qwen tp=2 sp cp=2 pp=2 ep=4 etp=1 schedule=interleaved num_virtual_stages_per_pipeline_rank=2 bf16 documents
8 biases tp=2 sp cp=2 kind=allgather ep=2 zero=optim_grads_params
8 mixtral cp=2 pp=2 ep=4 schedule=zb-h1 zero=optim_grads staged
8 deepseek pp=2 ep=4 schedule=v-half bf16
2 mixtral ep=2 turns
2 qwen ep=2 moe_token_dispatcher_type=allgather
4 deepseek ep=2 etp=2 bf16 moe_token_dispatcher_type=allgather full
4 deepseek pp=2 ep=2 schedule=dualpipev global_batch_size=8 turns zero=optim overlap
4 biases tp=2 sp cp=2 ep=2 etp=1 bf16 turns staged
4 qwen tp=4 sp ep=2 etp=1 turns
4 mixtral ep=4 moe_expert_capacity_factor=1 moe_pad_expert_input_to_capacity=true
4 deepseek tp=2 sp cp=2 ep=2 etp=1 moe_expert_capacity_factor=0.75 moe_token_drop_policy=position
2 qwen ep=2 moe_expert_capacity_factor=0.5 moe_token_dispatcher_type=allgather full
1 mixtral bf16 fp8=hybrid
2 deepseek ep=2 bf16 fp8=hybrid
2 biases pp=2 schedule=zb-h1 bf16 fp8=hybrid fp8_recipe=tensorwise
* 4 qwen tp=2 sp ep=2 bf16 fp8=hybrid num_layers=2
4 deepseek cp=2 ep=4 zero=optim_grads_params bf16 fp8=hybrid staged
1 mixtral bf16 blocks
* 4 qwen tp=2 sp ep=2 bf16 blocks tp_comm_overlap=true num_layers=2
2 deepseek ep=2 bf16 blocks fp8=e4m3 moe_token_dispatcher_type=allgather full
2 biases pp=2 schedule=zb-h1 bf16 blocks moe_expert_capacity_factor=1 moe_pad_expert_input_to_capacity=true
4 mixtral cp=2 ep=4 zero=optim_grads_params bf16 blocks staged
1 mixtral bf16 mx
* 4 qwen tp=2 sp ep=2 bf16 mx num_layers=2 global_batch_size=8
2 deepseek ep=2 bf16 mx moe_token_dispatcher_type=allgather full
2 biases pp=2 schedule=zb-h1 bf16 mx moe_expert_capacity_factor=1 moe_pad_expert_input_to_capacity=true
4 mixtral cp=2 ep=4 zero=optim_grads_params bf16 mx staged
LAYOUTS
}
# loss and norm of every step, from metrics.jsonl; with experts also the router's entropy and the balance loss
numbers() {
    sed -nE 's/.*"lm_loss": *([^,}]*).*"grad_norm": *([^,}]*).*"moe_aux_loss": *([^,}]*).*"moe_router_entropy": *([^,}]*).*/\1 \2 \4 \3/p; t
        s/.*"lm_loss": *([^,}]*).*"grad_norm": *([^,}]*).*/\1 \2/p' "$1/metrics.jsonl" | sed 's/ null$//'
}
# the bytes that the groups brought to their operations in the last step, without the world's, which also starts and ends a
# run, and those of experts, which go by choices
bytes() { tail -n 1 "$1/metrics.jsonl" | grep -oE '"[a-z-]*": [{]"wait_ms[^}]*' | sed -E '/"(world|e[a-z]*)"/d; s/"wait_ms.*"bytes"//'; }
train() { # PROGRAM DIRECTORY RANKS options: trains into DIRECTORY
    program=$1 dir=$2 ranks=$3
    shift 3
    rm -rf "$dir"
    case $* in *mxfp8*) capability=100 ;; *) capability=90 ;; esac
    EMULATION_CAPABILITY=$capability TRAIN=$program timeout 300 scripts/launch -n "$ranks" "$work/tiny.yaml" "save=$dir" "$@" > "$work/log" 2>&1
}
compare() { # CPU-DIRECTORY GPU-DIRECTORY LOSS NORM: losses agree to LOSS, norms to NORM, relative; groups move the same bytes
    bytes "$1" > "$work/a"
    bytes "$2" > "$work/b"
    cmp -s "$work/a" "$work/b" || return 1
    numbers "$1" > "$work/a"
    numbers "$2" > "$work/b"
    paste -d' ' "$work/a" "$work/b" | awk -v loss="$3" -v norm="$4" '
        function off(x, y) { d = x - y; if (d < 0) d = -d; return d / (x < 0 ? -x : x) }
        { n = NF / 2; if (n != int(n) || n < 2 || !(off($1, $(n + 1)) <= loss)) bad = 1 }
        { for (i = 2; i <= n; i++) if (!(off($i, $(n + i)) <= norm)) bad = 1 }
        END { exit bad || NR != 3 }'
}
one() { # RANKS options...: compares a run on the CPU with runs on the GPU under the orders $orders
    ranks=$1
    shift
    # host: options without those that only a GPU has. A number that BF16 rounds otherwise may become another number of FP8;
    # with experts a rounding may change a choice, and cuBLASLt's timed algorithms round otherwise in each run
    host=$(printf '%s\n' "$@" | grep -Ev '^distributed_backend=' | tr '\n' ' ')
    case $* in *num_moe_experts*fp8=hybrid*) near="5e-3 5e-2" ;; *bf16*) near="1e-3 1e-2" ;; *) near="1e-5 1e-4" ;; esac
    # shellcheck disable=SC2086
    train "$cpu" "$work/cpu" "$ranks" $host cpu_isa="${ISA:-auto}" || { tail -n 5 "$work/log"; return 1; }
    for seed in $orders; do
        if ! EMULATION_SEED=$seed train "$emulated/train" "$work/gpu" "$ranks" device=cuda "$@" || ! compare "$work/cpu" "$work/gpu" $near; then
            echo "# seed $seed"
            tail -n 5 "$work/log"
            paste "$work/a" "$work/b" 2> /dev/null
            return 1
        fi
    done
}
# RANKS options...: `train verify`, for which rank 0 has two runs open at once: the layout's and one rank's
verify() {
    ranks=$1
    shift
    if TRAIN=$emulated/train timeout 300 scripts/launch -n "$ranks" verify "$work/tiny.yaml" device=cuda "$@" > "$work/log" 2>&1 &&
        grep -q "the layout computes the same model" "$work/log"; then
        echo "ok - verify, $ranks ranks, $*"
    else
        echo "not ok - verify, $ranks ranks, $*"
        tail -n 5 "$work/log"
        fail=1
    fi
}
case ${1:-short} in
short | drop) layouts | sed -n 's/^\* //p' > "$work/list" ;;
*)     layouts | sed 's/^\* //' | grep -e "${2:-.}" > "$work/list" ;;
esac
if [ "${1:-short}" != drop ]; then
    while read -r ranks options; do
        n=$((n + 1))
        [ -z "${FEW-}" ] || [ $((n % 6)) = 1 ] || continue
        orders=$n
        [ "${1:-short}" = short ] || orders=$(seq 1 "$seeds")
        # shellcheck disable=SC2086
        if one "$ranks" $options < /dev/null; then
            echo "ok - $ranks ranks, $options"
        else
            echo "not ok - $ranks ranks, $options"
            fail=1
        fi
    done < "$work/list"
    [ "${1:-short}" = only ] || verify 2 tensor_model_parallel_size=2
    [ "${1:-short}" = only ] || verify 2 tensor_model_parallel_size=2 distributed_backend=staged
    [ $fail = 0 ] && [ $n -gt 0 ]
    exit
fi
# drop: collects the places that wait in these layouts. Barriers of kernels are left to the op tests (emulation.sh).
: > "$work/sites"
while read -r ranks options; do
    # shellcheck disable=SC2086
    EMULATION_SITES=$work/sites train "$emulated/train" "$work/gpu" "$ranks" device=cuda $options < /dev/null || { tail -n 5 "$work/log"; exit 1; }
done < "$work/list"
for site in $(grep -v '^barrier ' "$work/sites" | awk '{ print $(NF - 1) }' | sort -u); do
    caught=
    while read -r ranks options; do
        for orders in $(seq 1 "$tries"); do
            # shellcheck disable=SC2086
            [ -n "$caught" ] || EMULATION_DROP=$site one "$ranks" $options < /dev/null > /dev/null 2>&1 || caught="$options"
        done
    done < "$work/list"
    if [ -n "$caught" ]; then
        echo "ok - without $site: $caught"
    else
        echo "not ok - without $site: nothing fails"
        fail=1
    fi
done
[ $fail = 0 ]
