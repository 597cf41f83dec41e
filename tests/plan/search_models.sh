#!/bin/sh
# tests/plan/search_models.sh -- `make bench-search`: `train plan --search` for five models whose stages are unequal, each
# beside interleaved 1F1B with equal numbers of layers and beside bounds, and measured on the clock device. A sixth has
# stages that are equal already: two layers a stage, experts in every second, a small vocabulary. A seventh has large tensor
# groups. Then the twelve shapes of the Zero Bubble paper, which are not measured.
work=${WORK:-$(mktemp -d)} TRAIN=${TRAIN:-./train} machine=h100
common='num_attention_heads: 32, num_query_groups: 8, seq_length: 4096, position_embedding_type: rope, normalization: RMSNorm,
        activation: swiglu, add_bias_linear: false, untie_embeddings_and_output_weights: true'

# numbers N TIMES ...: a list with N so many times
numbers() {
    while [ $# -gt 1 ]; do
        printf "%$2s" '' | sed "s/ /$1, /g"
        shift 2
    done | sed 's/^/[/;s/, $/]/'
}

# seconds: of the processor, between two outputs of `times`, in the children of this shell
seconds() { sed -n '2p;4p' | sed 's/[ms]/ /g' | awk '{ t = 60 * ($1 + $3) + $2 + $4; if (NR > 1) printf "%.1f", t - was; was = t }'; }

# model NAME WORLD MODEL MOE TRAIN PARALLEL: prints what was found, and what the clock device took
model() {
    printf '%s\n' "model: {$3, $common}" "moe: {$4}" 'data: {tokenizer_type: none}' "train: {$5}" \
        'precision: {params_dtype: bf16}' "parallel: {$6}" > "$work/model.yaml"
    echo "---- $1, $2 ranks"
    times > "$work/before"
    "$TRAIN" plan "$work/model.yaml" --world "$2" --machine $machine --search "$work/lists.csv" > "$work/found" || exit 1
    times > "$work/after"
    grep -E '^(found|pipeline|step|beside)' "$work/found"
    echo "searched   $(cat "$work/before" "$work/after" | seconds) s of processor time"
    [ $machine = h100 ] || return
    eval "\"\$TRAIN\" bubble \"$work/model.yaml\" $(sed -n 's/^keys *//p;s/^clock *//p' "$work/found" | tr '\n' ' ')" \
        > "$work/clock" || exit 1
    sed -n 's/.*\(Furthest from the simulated step\)/clock      \1/p' "$work/clock"
}

model 'large vocabulary' 16 'num_layers: 40, hidden_size: 3584, ffn_hidden_size: 14336, vocab_size: 256000' '' \
    'micro_batch_size: 1, global_batch_size: 64' 'pipeline_model_parallel_size: 8, tensor_model_parallel_size: 2'
model 'three dense layers, then experts' 128 \
    'num_layers: 64, hidden_size: 4096, ffn_hidden_size: 11008, vocab_size: 129280' \
    "num_moe_experts: 64, moe_router_topk: 6, moe_ffn_hidden_size: 1408, moe_shared_expert_intermediate_size: 2816,
      moe_layer_freq: $(numbers 0 3 1 61)" 'micro_batch_size: 1, global_batch_size: 1024' \
    'pipeline_model_parallel_size: 16, expert_model_parallel_size: 8, data_parallel_sharding_strategy: optim'
model 'eight dense layers, then experts in every second, large vocabulary' 64 \
    'num_layers: 32, hidden_size: 4096, ffn_hidden_size: 14336, vocab_size: 256000' \
    "num_moe_experts: 16, moe_router_topk: 4, moe_layer_freq: $(numbers 0 8 '0, 1' 12)" \
    'micro_batch_size: 1, global_batch_size: 512' \
    'pipeline_model_parallel_size: 8, expert_model_parallel_size: 8, data_parallel_sharding_strategy: optim'
model 'small layers, very large head' 4 'num_layers: 24, hidden_size: 2048, ffn_hidden_size: 8192, vocab_size: 262144' '' \
    'micro_batch_size: 2, global_batch_size: 128' 'pipeline_model_parallel_size: 4'
model 'experts in every second layer' 64 'num_layers: 32, hidden_size: 4096, ffn_hidden_size: 14336, vocab_size: 65536' \
    'num_moe_experts: 16, moe_router_topk: 2, moe_layer_freq: 2' 'micro_batch_size: 1, global_batch_size: 512' \
    'pipeline_model_parallel_size: 8, expert_model_parallel_size: 8, data_parallel_sharding_strategy: optim'

# GLaM 8B/64E (Du et al. 2021, arXiv:2112.06905: 32 layers, experts in every second, two of 64, vocabulary 256,000, a
# million tokens a step), with products of the same sizes in all its layers, where the paper gates the dense ones
common='num_attention_heads: 32, seq_length: 1024, normalization: RMSNorm, activation: gelu, position_embedding_type: rope,
        add_bias_linear: false, untie_embeddings_and_output_weights: true'
model 'GLaM 8B/64E' 128 'num_layers: 32, hidden_size: 4096, ffn_hidden_size: 16384, vocab_size: 256000' \
    'num_moe_experts: 64, moe_router_topk: 2, moe_layer_freq: 2' 'micro_batch_size: 1, global_batch_size: 1024' \
    'pipeline_model_parallel_size: 8, expert_model_parallel_size: 16, data_parallel_sharding_strategy: optim'

# 70B in tensor groups of eight, whose messages a whole backward hides behind its products
common='num_query_groups: 8, seq_length: 4096, position_embedding_type: rope, normalization: RMSNorm, activation: swiglu,
        add_bias_linear: false, untie_embeddings_and_output_weights: true'
model 'Llama 2 70B' 64 'num_layers: 80, hidden_size: 8192, ffn_hidden_size: 28672, num_attention_heads: 64, vocab_size: 32000' '' \
    'micro_batch_size: 1, global_batch_size: 128' \
    'pipeline_model_parallel_size: 8, tensor_model_parallel_size: 8, sequence_parallel: true'

# The shapes of Qi et al. 2023, arXiv:2401.10241, table 3, on A100: p and micro batch of each, m = 3p, 4p, 8p
common='seq_length: 1024, vocab_size: 50257, position_embedding_type: learned_absolute, untie_embeddings_and_output_weights: true'
machine=a100-80gb
shapes() { # NAME RANKS MICRO_BATCH MODEL
    for times in 3 4 8; do
        model "$1, m = $((times * $2))" "$2" "$4" '' "micro_batch_size: $3, global_batch_size: $((times * $2 * $3))" \
            "pipeline_model_parallel_size: $2"
    done
}
shapes 1.5B 8 6 'num_layers: 22, hidden_size: 2304, num_attention_heads: 24'
shapes 6.2B 8 3 'num_layers: 30, hidden_size: 4096, num_attention_heads: 32'
shapes 14.6B 16 1 'num_layers: 46, hidden_size: 5120, num_attention_heads: 40'
shapes 28.3B 32 1 'num_layers: 62, hidden_size: 6144, num_attention_heads: 48'
