/* huggingface -- directories that transformers reads and writes: config.json, model.safetensors or
 * numbered files with an index. Families: gpt2, llama, mistral, qwen2, qwen3; with experts mixtral,
 * qwen2_moe, qwen3_moe, and dots1, which has DeepSeek-V3's router and plain attention. Names come from the
 * parameter table. A setting that the model or a family cannot express is refused by name;
 * nothing is dropped silently.
 *
 * config.json is read in the old and the new form (rope_theta or rope_parameters, torch_dtype or dtype)
 * and written in both. Tensors keep their bits and their type, both ways. */
#ifndef HUGGINGFACE_H
#define HUGGINGFACE_H
#include "file.h"
#include "params.h"
#include <jansson.h>

/* The experts of a family: how config.json names their settings. */
typedef enum { HF_DENSE, HF_MIXTRAL, HF_QWEN_MOE, HF_DOTS } HfExperts;

/* The keys of windows in config.json: none; sliding_window; with layer_types; with max_window_layers, too;
 * with use_sliding_window, too; use_sliding_window, which must be false. */
typedef enum {
    HF_NO_WINDOW, HF_WINDOW, HF_WINDOW_TYPES, HF_WINDOW_LAYERS, HF_WINDOW_SWITCH, HF_WINDOW_OFF
} HfWindow;

typedef struct {
    const char *type, *architecture;    /* "llama", "LlamaForCausalLM" */
    int gpt2;                           /* bool: GPT-2's names and keys; 0: Llama's */
    int add_qkv_bias, qk_layernorm;     /* bools: the model's settings in this family */
    int qkv_bias;                       /* bool: config.json's qkv_bias is add_qkv_bias */
    int64_t groups, head_dim, window;   /* values of absent keys; 0: heads, hidden / heads, no window */
    HfWindow windows;
    int biases;                         /* bool: has attention_bias */
    double epsilon, theta;              /* values of absent rms_norm_eps and rope_theta */
    int64_t bos, eos;                   /* of absent bos_token_id and eos_token_id; 0: null */
    HfExperts experts;
    int64_t E, topk, expert_F;          /* values of absent keys; -1: the key must be there */
    const char *const *names;           /* [PARAM_KINDS] names unlike the table's, or NULL */
} HfFamily;

#define HF_SINGLE "model.safetensors"
#define HF_INDEX "model.safetensors.index.json"

#define HF_FAMILIES "gpt2, llama, mistral, qwen2, qwen3, mixtral, qwen2_moe, qwen3_moe and dots1"

/* The family that computes the same function as this model; NULL, with the settings that no family has
 * in why.
 *   hint  in  family to prefer where several fit (llama and mistral differ in the window alone), or NULL */
const HfFamily *hf_family(const Config *cfg, const char *hint, char why[WHY]);

/* One Hugging Face tensor: all columns of rows [row0, row0 + rows) of one of ours. transposed, bool: the
 * file has it as [cols, rows]. */
typedef struct { char name[128]; int64_t row0, rows; int transposed; } HfTensor;

/* The Hugging Face tensors that hold parameter t, in row order. Returns how many. */
int hf_names(const HfFamily *family, const Param *t, HfTensor out[MAX_SEGMENTS]);

/* The bias of a router's choices that the family's files have beside parameter t, a router's weight: dots1
 * has one. A model without moe_router_enable_expert_bias has zeros there. Returns how many there are: 0 or
 * 1. */
int hf_bias(const HfFamily *family, const Param *t, HfTensor *out);

/* Opens the parameter table of a whole model on one rank, for names and shapes; params_close frees
 * it. */
void hf_params(Params *p, Grid *grid, const Config *cfg);

/* Turns config.json into our configuration; NULL, with all that is missing or cannot be expressed in
 * why. */
const Config *hf_read_config(const json_t *j, const HfFamily **family, char why[WHY]);

/* Reads a JSON object from a file of an open directory; NULL and a reason. */
json_t *hf_read_json(int dir, const char *name, char why[WHY]);

/* The names of the files with the weights of an open directory: those of its index, or the single one. A new
 * array, or NULL, with what is wrong and what to change in why.
 *   index  out  the index, with its weight_map, which the caller releases; NULL: there is none */
json_t *hf_files(int dir, json_t **index, char why[WHY]);

/* bos_token_id, eos_token_id and pad_token_id of config.json, a new object: null means none, an absent key
 * the token of the family's class. */
json_t *hf_tokens(const json_t *j, const HfFamily *family);

/* Turns our configuration into config.json.
 *   tokens  in  bos_token_id, eos_token_id, pad_token_id to write, or NULL */
json_t *hf_write_config(const Config *cfg, const HfFamily *family, Dtype type, const json_t *tokens);

/* dst [cols, rows] = transpose of src [rows, cols], elements of `size` bytes: 2, 4 or 8. */
void hf_transpose(void *dst, const void *src, int64_t rows, int64_t cols, size_t size);
#endif
