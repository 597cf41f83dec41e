/* test_config_fp8 -- the rules of FP8 between options: each rule is broken once and kept once */
#define _GNU_SOURCE
#include "config_text.h"

/* says: part of the one violation's text; NULL: legal */
typedef struct { const char *args; int world; const char *says; } Case;

static const Case cases[] = {
    {"fp8=hybrid|params_dtype=bf16|hidden_size=64|ffn_hidden_size=64|kv_channels=16|seq_length=16", 1, NULL},
    {"fp8=hybrid|device=cuda", 1, "fp8: hybrid does not go with params_dtype fp32"},
    {"fp8=none|fp8_recipe=tensorwise|hidden_size=72|seq_length=9", 1, NULL},
    {"fp8=e4m3|params_dtype=bf16|hidden_size=64|ffn_hidden_size=64|kv_channels=16|seq_length=16|"
     "fp8_recipe=tensorwise", 1, "fp8: e4m3 does not go with fp8_recipe tensorwise; one scale for a matrix"},
    {"fp8=e4m3|params_dtype=bf16|hidden_size=64|ffn_hidden_size=128|kv_channels=16|seq_length=16|"
     "fp8_recipe=blockwise", 1, NULL},
#define FP8(ffn, channels, seq, micro)                                                                       \
    "fp8=hybrid|device=cuda|params_dtype=bf16|ffn_hidden_size=" #ffn "|kv_channels=" #channels               \
    "|seq_length=" #seq "|micro_batch_size=" #micro
    {FP8(64, 16, 16, 1), 1, NULL},
    {FP8(64, 16, 16, 1) "|hidden_size=72", 1,
     "hidden_size: 72 is not a multiple of 16, as fp8 asks; nearest: 64 or 80"},
    {FP8(72, 16, 16, 1), 1,
     "ffn_hidden_size: 72 is not a multiple of 16 x tensor_model_parallel_size 1, as fp8 asks; nearest: 64 "
     "or 80"},
    {FP8(80, 16, 16, 1) "|tensor_model_parallel_size=2", 2,
     "ffn_hidden_size: 80 is not a multiple of 16 x tensor_model_parallel_size 2, as fp8 asks; nearest: 64 "
     "or 96"},
    {FP8(96, 16, 16, 1) "|tensor_model_parallel_size=2", 2, NULL},
    {FP8(64, 10, 16, 1), 1, "kv_channels: a rank has 40 columns of queries and 80 of keys and values"},
    {FP8(64, 4, 16, 1) "|num_query_groups=1", 1,
     "kv_channels: a rank has 16 columns of queries and 8 of keys and values"},
    {FP8(64, 8, 16, 1) "|tensor_model_parallel_size=2", 2, NULL},
    {FP8(64, 4, 16, 1) "|tensor_model_parallel_size=2", 2, "kv_channels: a rank has 8 columns of queries"},
    {FP8(64, 16, 8, 1), 1, "micro_batch_size: 1 x seq_length 8 is not a multiple of 16, as fp8 asks"},
    {FP8(64, 16, 8, 2), 1, NULL},
#define BLOCKS(ffn, channels, tp)                                                                            \
    FP8(ffn, channels, 16, 1) "|hidden_size=64|num_attention_heads=2|fp8_recipe=blockwise|"                  \
                              "tensor_model_parallel_size=" #tp
    {BLOCKS(128, 16, 1), 1, NULL},
    {BLOCKS(192, 16, 1), 1,
     "ffn_hidden_size: 192 is not a multiple of 128 x tensor_model_parallel_size 1, as fp8_recipe blockwise "
     "asks; nearest: 128 or 256"},
    {BLOCKS(128, 128, 2), 2,
     "ffn_hidden_size: 128 is not a multiple of 128 x tensor_model_parallel_size 2, as fp8_recipe blockwise "
     "asks; nearest: 256"},
    {BLOCKS(256, 64, 2), 2,
     "kv_channels: a rank has 64 columns of queries and 64 of keys, and fp8_recipe blockwise with "
     "tensor_model_parallel_size 2 asks for multiples of 128; use kv_channels 128"},
    {BLOCKS(256, 128, 2), 2, NULL},
    {BLOCKS(128, 16, 1) "|context_parallel_size=8", 8,
     "1 x seq_length 16 is not a multiple of 32, as fp8_recipe blockwise asks"},
    {BLOCKS(128, 16, 1) "|context_parallel_size=4", 4, NULL},
#undef BLOCKS
#define MX(ffn, channels, seq, micro, tp)                                                                    \
    FP8(ffn, channels, seq, micro) "|fp8_recipe=mxfp8|tensor_model_parallel_size=" #tp
    {"fp8=none|fp8_recipe=mxfp8|hidden_size=72|seq_length=9", 1, NULL},
    {MX(64, 8, 32, 1, 1), 1, NULL},
    {MX(64, 8, 32, 1, 1) "|hidden_size=80", 1,
     "hidden_size: 80 is not a multiple of 32, as fp8_recipe mxfp8 asks; nearest: 64 or 96"},
    {MX(80, 8, 32, 1, 1), 1,
     "ffn_hidden_size: 80 is not a multiple of 32 x tensor_model_parallel_size 1, as fp8_recipe mxfp8 asks; "
     "nearest: 64 or 96"},
    {MX(96, 16, 32, 1, 2), 2,
     "ffn_hidden_size: 96 is not a multiple of 32 x tensor_model_parallel_size 2, as fp8_recipe mxfp8 asks; "
     "nearest: 64 or 128"},
    {MX(64, 8, 32, 1, 2), 2,
     "kv_channels: a rank has 16 columns of queries and 16 of keys, and fp8_recipe mxfp8 asks for multiples "
     "of 32; use a multiple of 32"},
    {MX(64, 16, 32, 1, 2), 2, NULL},
    {MX(64, 16, 32, 1, 1) "|num_query_groups=1", 1,
     "kv_channels: a rank has 64 columns of queries and 16 of keys, and fp8_recipe mxfp8"},
    {MX(64, 8, 16, 1, 1), 1,
     "micro_batch_size: 1 x seq_length 16 is not a multiple of 32, as fp8_recipe mxfp8 asks"},
    {MX(64, 8, 32, 1, 1) "|context_parallel_size=2", 2,
     "1 x seq_length 32 is not a multiple of 64, as fp8_recipe mxfp8 asks"},
    {MX(64, 8, 32, 2, 1) "|context_parallel_size=2", 2, NULL},
    {MX(64, 16, 128, 1, 2) "|sequence_parallel=true|tp_comm_overlap=true", 2,
     "1 x seq_length 128 is not a multiple of 128 x tensor_model_parallel_size 2, as fp8_recipe mxfp8 with "
     "tp_comm_overlap asks"},
    {MX(64, 16, 128, 2, 2) "|sequence_parallel=true|tp_comm_overlap=true", 2, NULL},
#undef MX
#undef FP8
    {"fp8=hybrid|device=cuda|params_dtype=bf16|hidden_size=64|ffn_hidden_size=64|kv_channels=16|seq_length="
     "16|micro_batch_size=1|tensor_model_parallel_size=2|sequence_parallel=true|tp_comm_overlap=true",
     2, "1 x seq_length 16 is not a multiple of 16 x tensor_model_parallel_size 2"},
};

static const Case with_experts[] = {
#define FP8 "fp8=hybrid|device=cuda|params_dtype=bf16|hidden_size=64|kv_channels=16|micro_batch_size=2"
    {FP8 "|ffn_hidden_size=128|moe_ffn_hidden_size=48", 1, NULL},
    {FP8 "|ffn_hidden_size=128|moe_ffn_hidden_size=40", 1,
     "moe_ffn_hidden_size: 40 is not a multiple of 16 x expert_tensor_parallel_size 1, as fp8 asks; nearest: "
     "32 or 48"},
    {FP8 "|ffn_hidden_size=128|moe_ffn_hidden_size=48|expert_tensor_parallel_size=2", 2,
     "moe_ffn_hidden_size: 48 is not a multiple of 16 x expert_tensor_parallel_size 2, as fp8 asks; nearest: "
     "32 or 64"},
    {FP8 "|ffn_hidden_size=128|add_bias_linear=false|moe_shared_expert_intermediate_size=24", 1,
     "moe_shared_expert_intermediate_size: 24 is not a multiple of 16 x tensor_model_parallel_size 1"},
#define BLOCKS(experts) FP8 "|ffn_hidden_size=128|fp8_recipe=blockwise|moe_ffn_hidden_size=" #experts
    {BLOCKS(128), 1, NULL},
    {BLOCKS(128) "|device=cpu", 1, NULL},
    {BLOCKS(192), 1,
     "moe_ffn_hidden_size: 192 is not a multiple of 128 x expert_tensor_parallel_size 1, as fp8_recipe "
     "blockwise asks; nearest: 128 or 256"},
    {BLOCKS(128) "|device=cpu|add_bias_linear=false|moe_shared_expert_intermediate_size=64", 1,
     "moe_shared_expert_intermediate_size: 64 is not a multiple of 128 x tensor_model_parallel_size 1"},
#undef BLOCKS
#define MX(experts) FP8 "|ffn_hidden_size=128|fp8_recipe=mxfp8|moe_ffn_hidden_size=" #experts
    {MX(64), 1, NULL},
    {MX(64) "|device=cpu", 1, NULL},
    {MX(48), 1,
     "moe_ffn_hidden_size: 48 is not a multiple of 32 x expert_tensor_parallel_size 1, as fp8_recipe mxfp8 "
     "asks; nearest: 32 or 64"},
    {MX(64) "|device=cpu|add_bias_linear=false|moe_shared_expert_intermediate_size=48", 1,
     "moe_shared_expert_intermediate_size: 48 is not a multiple of 32 x tensor_model_parallel_size 1"},
#undef MX
#undef FP8
};

static void test_case(const Case *one, const char *before)
{
    char *args = xasprintf("%s|%s", before, one->args);
    Check k = resolve(args, one->world, USE_TRAIN);
    CHECK(one->says ? k.n == 1 && count(&k, one->says, NULL, NULL) == 1 : !k.n, "%s: %s", args, listing(&k));
    free(args);
}

int main(void)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        test_case(&cases[i], "");
    for (size_t i = 0; i < sizeof with_experts / sizeof *with_experts; i++)
        test_case(&with_experts[i], "num_moe_experts=8");
    return test_end();
}
