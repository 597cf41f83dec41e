/* huggingface -- directories that transformers reads and writes: config.json, model.safetensors or numbered
 * files with an index. Five families: gpt2, llama, mistral, qwen2, qwen3 (dense). Names come from the
 * parameter table. What the model, or a family, cannot express is refused by name; nothing is dropped
 * silently.
 *
 * config.json is read in the old and the new form (rope_theta or rope_parameters, torch_dtype or dtype) and
 * written in both. Tensors keep their bits and their type, both ways. */
#ifndef HUGGINGFACE_H
#define HUGGINGFACE_H
#include "file.h"
#include "params.h"
#include <jansson.h>

typedef struct {
    const char *type, *architecture;    /* "llama", "LlamaForCausalLM" */
    int gpt2;                           /* GPT-2's names and keys, else Llama's */
    int add_qkv_bias, qk_layernorm;
    int64_t groups, head_dim, window;   /* absent keys mean: 0 = as many as heads, hidden / heads, none */
    int window_switch;                  /* use_sliding_window, max_window_layers and layer_types exist */
    int biases;                         /* attention_bias exists */
} HfFamily;

/* The family whose function this model is; NULL and the settings that none of them has. hint: a family to
 * prefer where several fit (llama and mistral differ in the window alone), or NULL. */
const HfFamily *hf_family(const Config *cfg, const char *hint, char why[WHY]);

/* One Hugging Face tensor: rows [row0, row0 + rows) of ours, all columns, on disk with `transposed` as [cols,
 * rows]. */
typedef struct { char name[128]; int64_t row0, rows; int transposed; } HfTensor;

/* The tensors that t is there, in row order; returns how many. */
int hf_names(const HfFamily *family, const Param *t, HfTensor out[MAX_SEGMENTS]);

/* The parameter table of a whole model on one rank, for its names and shapes; params_close frees it. */
void hf_params(Params *p, Grid *grid, const Config *cfg);

/* config.json -> our configuration; NULL and all that is missing or cannot be expressed. */
const Config *hf_read_config(const json_t *j, const HfFamily **family, char why[WHY]);

/* Our configuration -> config.json. tokens: bos_token_id, eos_token_id, pad_token_id to write, or NULL. */
json_t *hf_write_config(const Config *cfg, const HfFamily *family, Dtype type, const json_t *tokens);

/* dst [cols, rows] = transpose of src [rows, cols], elements of `size` bytes: 2, 4 or 8. */
void hf_transpose(void *dst, const void *src, int64_t rows, int64_t cols, size_t size);
#endif
