/* fuzz_hf_config -- config.json of Hugging Face: what is read is written, and read again as the same model */
#include "config_table.h"
#include "fuzz.h"
#include "huggingface.h"
#include <stdlib.h>

static void forget(void)
{
    config_forget();
}

static void run(const uint8_t *p, size_t n)
{
    const HfFamily *family, *again;
    char why[WHY];
    json_t *j = json_loadb((const char *)p, n, JSON_REJECT_DUPLICATES, NULL), *back;
    const Config *cfg = json_is_object(j) ? hf_read_config(j, &family, why) : NULL;
    if (cfg && hf_family(cfg, family->type, why)) {
        again = hf_family(cfg, family->type, why);
        back = hf_write_config(cfg, again, F32, j);
        const Config *other = hf_read_config(back, &again, why);
        if (!other)
            fuzz_found("its own config.json is refused: %s", why);
        if (other->num_layers != cfg->num_layers || other->hidden_size != cfg->hidden_size ||
            other->num_query_groups != cfg->num_query_groups ||
            other->num_moe_experts != cfg->num_moe_experts)
            fuzz_found("another model comes back");
        json_decref(back);
    }
    json_decref(j);
}

#define COMMON                                                                                               \
    "\"hidden_size\":64,\"num_attention_heads\":4,\"num_hidden_layers\":4,\"max_position_embeddings\":128,"  \
    "\"intermediate_size\":96,\"vocab_size\":256,\"rms_norm_eps\":1e-5,\"hidden_act\":\"silu\""

static void seeds(void)
{
    fuzz_seed_text("{\"model_type\":\"gpt2\",\"n_embd\":64,\"n_head\":4,\"n_layer\":2,\"n_positions\":128,"
                   "\"vocab_size\":257,"
                   "\"activation_function\":\"gelu_new\",\"layer_norm_epsilon\":1e-5,\"bos_token_id\":256}");
    fuzz_seed_text("{\"model_type\":\"llama\"," COMMON
                   ",\"rope_theta\":10000,\"num_key_value_heads\":2,\"rope_scaling\":{"
                   "\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
                   "\"original_max_position_embeddings\":64},\"torch_dtype\":\"bfloat16\"}");
    fuzz_seed_text("{\"model_type\":\"mistral\"," COMMON
                   ",\"sliding_window\":64,\"rope_parameters\":{\"rope_type\":"
                   "\"yarn\",\"rope_theta\":5e5,\"factor\":2},\"dtype\":\"float32\"}");
    fuzz_seed_text("{\"model_type\":\"qwen3\"," COMMON
                   ",\"head_dim\":16,\"use_sliding_window\":false,\"attention_bias\":"
                   "false,\"tie_word_embeddings\":true}");
    fuzz_seed_text("{\"model_type\":\"mixtral\"," COMMON ",\"num_local_experts\":8,\"num_experts_per_tok\":2,"
                   "\"router_aux_loss_coef\":0.02}");
    fuzz_seed_text(
        "{\"model_type\":\"qwen2_moe\"," COMMON ",\"num_experts\":8,\"num_experts_per_tok\":2,"
        "\"moe_intermediate_size\":32,\"shared_expert_intermediate_size\":64,\"mlp_only_layers\":[1],"
        "\"decoder_sparse_step\":1,\"norm_topk_prob\":true}");
    fuzz_seed_text(
        "{\"model_type\":\"dots1\"," COMMON ",\"n_routed_experts\":8,\"n_shared_experts\":1,\"n_group\":2,"
        "\"topk_group\":1,\"num_experts_per_tok\":2,\"moe_intermediate_size\":32,\"first_k_dense_replace\":1,"
        "\"routed_scaling_factor\":2.5,\"scoring_func\":\"sigmoid\",\"norm_topk_prob\":true}");
}

static const char *const words[] = {"\"model_type\":",
                                    "gpt2",
                                    "llama",
                                    "mistral",
                                    "qwen2",
                                    "qwen3",
                                    "mixtral",
                                    "qwen2_moe",
                                    "qwen3_moe",
                                    "dots1",
                                    "deepseek_v3",
                                    "\"rope_scaling\":{",
                                    "\"rope_parameters\":{",
                                    "\"factor\":",
                                    "\"rope_type\":",
                                    "yarn",
                                    "linear",
                                    "dynamic",
                                    "llama3",
                                    "\"sliding_window\":",
                                    "\"max_window_layers\":",
                                    "\"layer_types\":[",
                                    "\"head_dim\":",
                                    "\"num_key_value_heads\":",
                                    "null",
                                    "9223372036854775807",
                                    "1e308",
                                    "-1",
                                    "\"original_max_position_embeddings\":",
                                    "\"mlp_only_layers\":",
                                    "\"attention_factor\":",
                                    "\"mscale\":",
                                    NULL};

const FuzzTarget fuzz_hf_config = {"hf_config", run, seeds, forget, {0}, words};
