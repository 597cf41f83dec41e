/* fuzz_hf_files -- a Hugging Face directory as import reads it
 *
 *   byte 0     bytes of data behind each header, in units of 64
 *   the rest   texts up to a NUL: config.json, the index, the header of a.safetensors, that of b.safetensors;
 *              with an empty index the first of them is model.safetensors */
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized" /* inlined otherwise than in the executable */
#include "import.c"
#include "config_table.h"
#include "fuzz.h"

static void forget(void)
{
    config_forget();
}

static void put_safetensors(const char *name, const char *header, size_t n, size_t data)
{
    uint8_t *p = (uint8_t *)keep_alloc(8 + n + data, 1);
    uint64_t length = n;
    memcpy(p, &length, 8);
    memcpy(p + 8, header, n);
    fuzz_file(name, p, 8 + n + data);
}

static void run(const uint8_t *p, size_t n)
{
    size_t data = fuzz_take(&p, &n, 1) * 64, size[4];
    char *text[4], why[WHY], **kept;
    for (int i = 0; i < 4; i++)
        text[i] = fuzz_take_text(&p, &n, &size[i]);
    fuzz_file("config.json", text[0], size[0]);
    if (size[1])
        fuzz_file(HF_INDEX, text[1], size[1]);
    put_safetensors(size[1] ? "a.safetensors" : HF_SINGLE, text[2], size[2], data);
    put_safetensors("b.safetensors", text[3], size[3], data);
    const HfFamily *family;
    HfDir d = {.path = "x", .dir = -1};
    json_t *hf = hf_read_json(d.dir, "config.json", why);
    const Config *cfg = hf ? hf_read_config(hf, &family, why) : NULL;
    open_tensors(&d);
    if (cfg && cfg->num_layers * (1 + (cfg->num_moe_experts > 0 ? cfg->num_moe_experts : 0)) < 64) {
        Params params;
        Grid grid;
        int pieces;
        hf_params(&params, &grid, cfg);
        free(make_pieces(&d, &params, family, &pieces, &kept));
        for (char **k = kept; *k; k++)
            free(*k);
        free(kept);
        params_close(&params);
        grid_close(&grid);
    }
    json_decref(hf);
    close_dir(&d);
}

static void seed(int data, const char *config, const char *index, const char *a, const char *b)
{
    char *p = NULL;
    size_t n;
    FILE *f = xmemstream(&p, &n);
    fprintf(f, "%c%s%c%s%c%s%c%s", data, config, 0, index, 0, a, 0, b);
    fclose(f);
    fuzz_seed(p, n);
    free(p);
}

#define GPT2                                                                                                 \
    "{\"model_type\":\"gpt2\",\"n_embd\":2,\"n_head\":1,\"n_layer\":1,\"n_positions\":2,\"vocab_size\":2,"   \
    "\"activation_function\":\"gelu_new\",\"layer_norm_epsilon\":1e-5}"

static void seeds(void)
{
    static const struct {
        const char *name, *shape;
        int bytes;
    } gpt2[] = {{"wte.weight", "2,2", 16},
                {"wpe.weight", "2,2", 16},
                {"h.0.ln_1.weight", "2", 8},
                {"h.0.ln_1.bias", "2", 8},
                {"h.0.attn.c_attn.weight", "2,6", 48},
                {"h.0.attn.c_attn.bias", "6", 24},
                {"h.0.attn.c_proj.weight", "2,2", 16},
                {"h.0.attn.c_proj.bias", "2", 8},
                {"h.0.ln_2.weight", "2", 8},
                {"h.0.ln_2.bias", "2", 8},
                {"h.0.mlp.c_fc.weight", "2,8", 64},
                {"h.0.mlp.c_fc.bias", "8", 32},
                {"h.0.mlp.c_proj.weight", "8,2", 64},
                {"h.0.mlp.c_proj.bias", "2", 8},
                {"ln_f.weight", "2", 8},
                {"ln_f.bias", "2", 8},
                {"h.0.attn.bias", "10", 40}};
    char *all = NULL;
    size_t n;
    int at = 0;
    FILE *f = xmemstream(&all, &n);
    for (size_t i = 0; i < sizeof gpt2 / sizeof *gpt2; at += gpt2[i++].bytes)
        fprintf(f, "%c\"%s\":{\"dtype\":\"F32\",\"shape\":[%s],\"data_offsets\":[%d,%d]}", i ? ',' : '{',
                gpt2[i].name, gpt2[i].shape, at, at + gpt2[i].bytes);
    fputc('}', f);
    fclose(f);
    seed(at / 64, GPT2, "", all, "{}");
    free(all);
    seed(1, GPT2, "{\"weight_map\":{\"wte.weight\":\"a.safetensors\",\"wpe.weight\":\"b.safetensors\"}}",
         "{\"wte.weight\":{\"dtype\":\"F32\",\"shape\":[16],\"data_offsets\":[0,64]}}",
         "{\"wpe.weight\":{\"dtype\":\"BF16\",\"shape\":[4,8],\"data_offsets\":[0,64]}}");
}

static const char *const words[] = {"\"weight_map\":{",
                                    "a.safetensors",
                                    "b.safetensors",
                                    "wte.weight",
                                    "lm_head.weight",
                                    "h.0.attn.c_attn.weight",
                                    "transformer.",
                                    "\"dtype\":\"F32\"",
                                    "BF16",
                                    "\"shape\":[",
                                    "\"data_offsets\":[",
                                    "..",
                                    NULL};

const FuzzTarget fuzz_hf_files = {
    "hf_files", run, seeds, forget, {EXIT_CHECKPOINT, EXIT_NUMERIC, EXIT_RESOURCE}, words};
