/* huggingface -- families, tensor names, and config.json read and written */
#define _GNU_SOURCE
#include "hf_json.h"
#include <stdio.h>

/* Defaults of the configuration classes of transformers 4 and 5; ends with type NULL. */
static const HfFamily hf_families[] = {
    {"gpt2", "GPT2LMHeadModel", .gpt2 = 1, .bos = 50256, .eos = 50256},
    {"llama", "LlamaForCausalLM", .biases = 1, .epsilon = 1e-6, .theta = 1e4, .bos = 1, .eos = 2},
    {"mistral", "MistralForCausalLM", .groups = 8, .windows = HF_WINDOW_TYPES, .window = 4096,
     .epsilon = 1e-6, .theta = 1e4, .bos = 1, .eos = 2},
    {"qwen2", "Qwen2ForCausalLM", .add_qkv_bias = 1, .groups = 32, .windows = HF_WINDOW_SWITCH,
     .window = 4096, .epsilon = 1e-6, .theta = 1e4},
    {"qwen3", "Qwen3ForCausalLM", .qk_layernorm = 1, .groups = 32, .head_dim = 128,
     .windows = HF_WINDOW_SWITCH, .window = 4096, .biases = 1, .epsilon = 1e-6, .theta = 1e4},
    {"mixtral", "MixtralForCausalLM", .groups = 8, .windows = HF_WINDOW, .epsilon = 1e-5, .theta = 1e6,
     .experts = HF_MIXTRAL, .E = 8, .topk = 2, .names = hf_mixtral_names, .bos = 1, .eos = 2},
    {"qwen2_moe", "Qwen2MoeForCausalLM", .add_qkv_bias = 1, .qkv_bias = 1, .groups = 16,
     .windows = HF_WINDOW_OFF, .epsilon = 1e-6, .theta = 1e4, .experts = HF_QWEN_MOE, .E = 60, .topk = 4,
     .expert_F = 1408},
    {"qwen3_moe", "Qwen3MoeForCausalLM", .qk_layernorm = 1, .groups = 4, .windows = HF_WINDOW_OFF,
     .biases = 1, .epsilon = 1e-6, .theta = 1e4, .experts = HF_QWEN_MOE, .E = 128, .topk = 8,
     .expert_F = 768},
    {"dots1", "Dots1ForCausalLM", .qk_layernorm = 1, .windows = HF_WINDOW_LAYERS, .window = 4096,
     .biases = 1, .epsilon = 1e-6, .theta = 1e4, .experts = HF_DOTS, .E = -1, .topk = -1, .expert_F = 1408,
     .names = hf_dots_names},
    {0},
};

/* Hugging Face names of our activations; of several names for one, the first is written. */
static const struct { int activation; const char *name; } activations[] = {
    {ACTIVATION_GELU_TANH, "gelu_new"},
    {ACTIVATION_GELU_TANH, "gelu_pytorch_tanh"},
    {ACTIVATION_GELU_TANH, "gelu_python_tanh"},
    {ACTIVATION_GELU, "gelu"},
    {ACTIVATION_GELU, "gelu_python"},
    {ACTIVATION_RELU, "relu"},
    {ACTIVATION_SQUARED_RELU, "relu2"},
    {ACTIVATION_SWIGLU, "silu"},
    {ACTIVATION_SWIGLU, "swish"},
    {ACTIVATION_GEGLU, "gelu"},
    {ACTIVATION_GEGLU, "gelu_python"},
};
#define ACTIVATIONS (sizeof activations / sizeof *activations)

/* Whether row i is an activation of the family: GPT-2 has no gated ones, the others only gated ones. */
static int has_activation(const HfFamily *f, size_t i)
{
    return act_gated((ActKind)activations[i].activation) != f->gpt2;
}

/* ---- which family */

static int fits(const HfFamily *f, const Config *c, char why[WHY])
{
    const int64_t width = c->num_attention_heads * c->kv_channels;
    size_t a = 0;
    why[0] = 0;
    if (c->position_embedding_type !=
        (f->gpt2 ? POSITION_EMBEDDING_TYPE_LEARNED_ABSOLUTE : POSITION_EMBEDDING_TYPE_ROPE))
        because(why, "position_embedding_type");
    if (c->normalization != (f->gpt2 ? NORMALIZATION_LAYERNORM : NORMALIZATION_RMSNORM))
        because(why, "normalization");
    if (c->add_bias_linear != f->gpt2)
        because(why, "add_bias_linear");
    if (!f->gpt2 && !f->qkv_bias && c->add_qkv_bias != f->add_qkv_bias)
        because(why, "add_qkv_bias");
    if (c->qk_layernorm != f->qk_layernorm)
        because(why, "qk_layernorm");
    while (a < ACTIVATIONS && (activations[a].activation != c->activation || !has_activation(f, a)))
        a++;
    if (a == ACTIVATIONS)
        because(why, "activation");
    if (f->gpt2 && (width != c->hidden_size || c->num_query_groups != c->num_attention_heads))
        because(why, "kv_channels or num_query_groups");
    if (!f->gpt2 && c->rotary_percent != 1)
        because(why, "rotary_percent");
    if (c->window_size && (f->windows == HF_NO_WINDOW || f->windows == HF_WINDOW_OFF))
        because(why, "window_size");
    hf_experts_fit(f, c, why);
    /* transformers requires that a Llama's width is a multiple of its heads; Mistral has no such check */
    if (!strcmp(f->type, "llama") && c->hidden_size % c->num_attention_heads)
        because(why, "hidden_size");
    return !why[0];
}

const HfFamily *hf_family(const Config *cfg, const char *hint, char why[WHY])
{
    char reason[WHY], best[WHY] = "", name[16] = "";
    for (const HfFamily *f = hf_families; hint && f->type; f++)
        if (!strcmp(f->type, hint) && fits(f, cfg, reason))
            return f;
    for (const HfFamily *f = hf_families; f->type; f++) {
        if (fits(f, cfg, reason))
            return f;
        int alike = (f->experts != HF_DENSE) == (cfg->num_moe_experts != CFG_ABSENT);
        if (alike && (!name[0] || strlen(reason) < strlen(best))) {
            memcpy(best, reason, WHY);
            snprintf(name, sizeof name, "%s", f->type);
        }
    }
    file_why(why, "no Hugging Face family has this model's settings; the nearest, %s, differs in %.300s",
             name, best);
    return NULL;
}

/* ---- names */

int hf_names(const HfFamily *family, const Param *t, HfTensor out[MAX_SEGMENTS])
{
    const char *other = family->names ? family->names[t->id] : NULL;
    const char *name = other ? other : family->gpt2 ? t->def->gpt2 : t->def->llama;
    char prefix[40] = "";
    int n = 0, segment = 0;
    int64_t row = 0;
    if (t->layer >= 0 && *name != '/')
        snprintf(prefix, sizeof prefix, "%s.%d.", family->gpt2 ? "transformer.h" : "model.layers", t->layer);
    name += *name == '/';
    BUG_ON(!*name);
    int single = !strchr(name, ',');
    while (*name) {
        size_t len = strcspn(name, ",");
        int transposed = name[len - 1] == '^';
        int64_t rows = single ? t->rows : t->segment[segment++];
        BUG_ON(n == MAX_SEGMENTS || !rows);
        out[n] = (HfTensor){.row0 = row, .rows = rows, .transposed = transposed};
        int expert = (int)strcspn(name, ",#");     /* '#' is the expert's number */
        if (name[expert] == '#')
            snprintf(out[n].name, sizeof out[n].name, "%s%.*s%d%.*s", prefix, expert, name, t->expert,
                     (int)len - expert - 1, name + expert + 1);
        else
            snprintf(out[n].name, sizeof out[n].name, "%s%.*s", prefix, (int)len - transposed, name);
        row += rows;
        n++;
        name += len + (name[len] == ',');
    }
    BUG_ON(row != t->rows);
    return n;
}

int hf_bias(const HfFamily *family, const Param *t, HfTensor *out)
{
    if (family->experts != HF_DOTS || t->id != P_ROUTER)
        return 0;
    *out = (HfTensor){.rows = t->rows};
    snprintf(out->name, sizeof out->name, "model.layers.%d.mlp.gate.e_score_correction_bias", t->layer);
    return 1;
}

void hf_params(Params *p, Grid *grid, const Config *cfg)
{
    GridSpec spec = grid_along(AXIS_DP, 1);
    grid_open(grid, &spec, 1, 0);
    StagePlace whole = {.layers = (int)cfg->num_layers, .embedding = 1, .loss = 1};
    params_open(p, cfg, grid, &(Placement){.p = 1, .v = 1, .n = 1, .stage = &whole});
}

void hf_transpose(void *dst, const void *src, int64_t rows, int64_t cols, size_t size)
{
    enum { TILE = 32 };     /* a tile of source and destination fits the L1 cache */
    const char *s = src;
    char *d = dst;
    for (int64_t r0 = 0; r0 < rows; r0 += TILE)
        for (int64_t c0 = 0; c0 < cols; c0 += TILE)
            for (int64_t r = r0; r < rows && r < r0 + TILE; r++)
                for (int64_t c = c0; c < cols && c < c0 + TILE; c++)
                    memcpy(d + (size_t)(c * rows + r) * size, s + (size_t)(r * cols + c) * size, size);
}

/* ---- config.json, reading */

/* Refuses other values of settings that would change the function and that the model does not have. */
static void refuse(const In *in, const HfFamily *f)
{
    static const struct { const char *key; int value; } flags[] = {
        {"scale_attn_by_inverse_layer_idx", 0}, {"reorder_and_upcast_attn", 0}, {"scale_attn_weights", 1},
        {"add_cross_attention", 0}, {"attention_bias", 0}, {"mlp_bias", 0}, {"is_encoder_decoder", 0},
        {"is_causal", 1},      /* false: transformers lets the tokens of any family see what follows them */
    };
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (flag(in, flags[i].key, flags[i].value) != flags[i].value)
            because(in->why, "%s: %s", flags[i].key, flags[i].value ? "false" : "true");
    /* other numbers; settings of single layers; another file than model.safetensors */
    static const char *const keys[] = {"quantization_config", "per_layer_config", "transformers_weights"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (get(in, keys[i]))
            because(in->why, "%s", keys[i]);
    if (!f->gpt2 && real(in, "partial_rotary_factor", 1) != 1)
        because(in->why, "partial_rotary_factor %g", real(in, "partial_rotary_factor", 1));
    double embedding = real(in, "embd_pdrop", 0.1), rest = real(in, "resid_pdrop", 0.1);
    if (f->gpt2 && embedding != rest)      /* hidden_dropout is both */
        because(in->why, "embd_pdrop %g beside resid_pdrop %g", embedding, rest);
}

/* The window of every layer; 0: none. Refuses a model whose layers differ. */
static int64_t window(const In *in, const HfFamily *f, int64_t layers)
{
    const json_t *types = get(in, "layer_types"), *v;
    if (f->windows == HF_NO_WINDOW && get(in, "sliding_window"))
        because(in->why, "sliding_window, which transformers does not use in a %s", f->type);
    int on = f->windows == HF_WINDOW || f->windows == HF_WINDOW_TYPES || f->windows == HF_WINDOW_LAYERS ||
             flag(in, "use_sliding_window", 0);
    /* an absent key has the class's default, null means no window */
    int64_t size = !on ? 0
                 : json_object_get(in->j, "sliding_window") ? whole(in, "sliding_window", 0, 1) : f->window;
    int64_t slide = layers, full = 0;
    size_t i;
    if (f->windows == HF_WINDOW_OFF && on)
        because(in->why, "use_sliding_window: true");
    if (f->windows == HF_WINDOW_LAYERS || f->windows == HF_WINDOW_SWITCH) {
        full = whole(in, "max_window_layers", f->windows == HF_WINDOW_SWITCH ? 28 : 62, 0);
        full = full < layers ? full : layers;
        slide = layers - full;
    }
    if (types) {
        slide = full = 0;
        json_array_foreach(types, i, v) {
            const char *type = json_string_value(v);
            if (type && !strcmp(type, "sliding_attention"))
                slide++;
            else if (type && !strcmp(type, "full_attention"))
                full++;
            else
                because(in->why, "layer_types has %.40s", type ? type : "an entry that is not a text");
        }
        if (json_array_size(types) != (size_t)layers)
            because(in->why, "layer_types has %zu entries for %" PRId64 " layers", json_array_size(types),
                    layers);
    }
    if (types && slide && !size)
        because(in->why, "layer_types has sliding_attention, without a sliding_window");
    /* a Mixtral's window is in all layers, whatever layer_types says */
    if (size && full && (slide || f->windows == HF_WINDOW))
        because(in->why, "sliding_window in %" PRId64 " of %" PRId64 " layers (layer_types, "
                "max_window_layers)", slide, layers);
    return slide ? size : 0;
}

static const char *params_dtype(const In *in)
{
    static const char *const names[][2] = {
        {"float64", "fp64"}, {"float32", "fp32"}, {"bfloat16", "bf16"}, {"float16", "fp16"}};
    const char *type = text(in, "dtype", text(in, "torch_dtype", "float32"));
    for (int i = 0; i < 4; i++)
        if (!strcmp(type + 6 * !strncmp(type, "torch.", 6), names[i][0]))
            return names[i][1];
    because(in->why, "dtype %.40s", type);
    return "fp32";
}

static const char *activation(const In *in, const HfFamily *f)
{
    static const char *const ours[] = {[ACTIVATION_GELU] = "gelu", [ACTIVATION_GELU_TANH] = "gelu_tanh",
        [ACTIVATION_SWIGLU] = "swiglu", [ACTIVATION_GEGLU] = "geglu", [ACTIVATION_RELU] = "relu",
        [ACTIVATION_SQUARED_RELU] = "squared_relu"};
    const char *key = f->gpt2 ? "activation_function" : "hidden_act",
               *name = text(in, key, f->gpt2 ? "gelu_new" : "silu");
    for (size_t i = 0; i < ACTIVATIONS; i++)
        if (has_activation(f, i) && !strcmp(activations[i].name, name))
            return ours[activations[i].activation];
    because(in->why, "%s %.40s", key, name);
    return "gelu";
}

/* The family that model_type names, or NULL and a reason. */
static const HfFamily *family_named(const In *in)
{
    const char *type = text(in, "model_type", NULL);
    const HfFamily *f = hf_families;
    while (f->type && (!type || strcmp(f->type, type)))
        f++;
    if (f->type)
        return f;
    if (type && !strncmp(type, "deepseek_v", 10))
        because(in->why, "model_type %.60s: this build has no multi-head latent attention (MLA)", type);
    else
        because(in->why, "model_type %.60s (this build knows " HF_FAMILIES ")", type ? type : "is missing");
    return NULL;
}

json_t *hf_tokens(const json_t *j, const HfFamily *family)
{
    const struct { const char *key; int64_t absent; } ids[] = {
        {"bos_token_id", family->bos}, {"eos_token_id", family->eos}, {"pad_token_id", 0}};
    json_t *tokens = json_object();
    for (int i = 0; i < 3; i++) {
        json_t *id = json_object_get(j, ids[i].key);
        json_object_set_new(tokens, ids[i].key, id ? json_incref(id) : ids[i].absent
                                                     ? json_integer(ids[i].absent) : json_null());
    }
    return tokens;
}

/* Returns the line of null_tokenizer_eod_id, on the heap: eos_token_id, or the first of several. "": there is
 * none that a corpus could have, or the vocabulary is that of bytes, whose end-of-document is known. */
static char *end_of_document(const json_t *j, const HfFamily *f, int64_t vocab)
{
    json_t *tokens = hf_tokens(j, f);
    const json_t *id = json_object_get(tokens, "eos_token_id");
    id = json_is_array(id) ? json_array_get(id, 0) : id;
    int64_t eod = json_is_integer(id) ? json_integer_value(id) : -1;
    json_decref(tokens);
    return eod < 0 || eod >= vocab || vocab == 257
               ? xstrdup("") : xasprintf("data:\n  null_tokenizer_eod_id: %" PRId64 "\n", eod);
}

const Config *hf_read_config(const json_t *j, const HfFamily **family, char why[WHY])
{
    const In in = {j, why};
    const char *skipped = "";
    why[0] = 0;
    const HfFamily *f = *family = family_named(&in);
    if (!f)
        return NULL;
    refuse(&in, f);
    const int g = f->gpt2;
    int64_t hidden = whole(&in, g ? "n_embd" : "hidden_size", -1, 1);
    int64_t heads = whole(&in, g ? "n_head" : "num_attention_heads", -1, 1);
    int64_t layers = whole(&in, g ? "n_layer" : "num_hidden_layers", -1, 1);
    int64_t positions = whole(&in, g ? "n_positions" : "max_position_embeddings", -1, 1);
    int64_t groups = heads, dim = hidden / heads;
    if (!g) {
        /* an absent key has the class's default; null means as many groups as heads */
        int64_t absent = json_object_get(j, "num_key_value_heads") || !f->groups ? heads : f->groups;
        groups = whole(&in, "num_key_value_heads", absent, 1);
        dim = whole(&in, "head_dim", json_object_get(j, "head_dim") || !f->head_dim ? dim : f->head_dim, 1);
    }
    if (heads % groups)
        because(why, "num_key_value_heads %" PRId64 " does not divide %" PRId64 " heads", groups, heads);
    if (g && hidden % heads)
        because(why, "n_embd %" PRId64 " is not a multiple of n_head %" PRId64, hidden, heads);
    if (!g && dim % 2)
        because(why, "head_dim %" PRId64 " is odd", dim);
    HfRope rope = g ? (HfRope){.base = 10000} : hf_read_rope(&in, f->theta, positions);
    char *experts = hf_read_experts(&in, f, layers);
    int64_t vocab = whole(&in, "vocab_size", -1, 1);
    char *eod = end_of_document(j, f, vocab);
    int qkv_bias = f->qkv_bias ? flag(&in, "qkv_bias", f->add_qkv_bias) : f->add_qkv_bias;
    char *yaml = xasprintf(
        "model:\n  num_layers: %" PRId64 "\n  hidden_size: %" PRId64 "\n  ffn_hidden_size: %" PRId64 "\n"
        "  num_attention_heads: %" PRId64 "\n  num_query_groups: %" PRId64 "\n  kv_channels: %" PRId64 "\n"
        "  seq_length: %" PRId64 "\n  max_position_embeddings: %" PRId64 "\n  vocab_size: %" PRId64 "\n"
        "  position_embedding_type: %s\n  rotary_base: %.17g\n  normalization: %s\n  norm_epsilon: %.17g\n"
        "  activation: %s\n  add_bias_linear: %s\n  add_qkv_bias: %s\n  qk_layernorm: %s\n"
        "  untie_embeddings_and_output_weights: %s\n  hidden_dropout: %.17g\n  attention_dropout: %.17g\n"
        "  init_method_std: %.17g\n  window_size: %" PRId64 "\n%s%sprecision:\n  params_dtype: %s\n%s",
        layers, hidden, whole(&in, g ? "n_inner" : "intermediate_size", g ? 4 * hidden : -1, 1), heads,
        groups, dim, positions, positions, vocab, g ? "learned_absolute" : "rope",
        rope.base, g ? "LayerNorm" : "RMSNorm",
        real(&in, g ? "layer_norm_epsilon" : "rms_norm_eps", g ? 1e-5 : f->epsilon), activation(&in, f),
        g ? "true" : "false", qkv_bias ? "true" : "false", f->qk_layernorm ? "true" : "false",
        flag(&in, "tie_word_embeddings", g) ? "false" : "true", g ? real(&in, "resid_pdrop", 0.1) : 0.0,
        real(&in, g ? "attn_pdrop" : "attention_dropout", g ? 0.1 : 0), real(&in, "initializer_range", 0.02),
        g ? 0 : window(&in, f, layers), rope.scaling ? rope.scaling : "", eod, params_dtype(&in), experts);
    const Config *cfg = config_read_saved(yaml, strlen(yaml), &skipped);
    free(yaml);
    free(rope.scaling);
    free(experts);
    free(eod);
    BUG_ON(!cfg);
    if (*skipped)
        because(why, "%.300s", skipped);
    if (!why[0] && config_rope_wrong(cfg))
        because(why, "%.200s", config_rope_wrong(cfg));
    return why[0] ? NULL : cfg;
}

/* ---- config.json, writing */

json_t *hf_write_config(const Config *c, const HfFamily *f, Dtype type, const json_t *tokens)
{
    static const char *const dtype[] = {
        [F64] = "float64", [F32] = "float32", [BF16] = "bfloat16", [F16] = "float16"};
    static const char *const ids[] = {"bos_token_id", "eos_token_id", "pad_token_id"};
    json_t *j = json_pack("{s:[s], s:s, s:s, s:s, s:I, s:b, s:f, s:b}", "architectures", f->architecture,
                          "model_type", f->type, "dtype", dtype[type], "torch_dtype", dtype[type],
                          "vocab_size", (json_int_t)c->vocab_size, "tie_word_embeddings",
                          !c->untie_embeddings_and_output_weights, "initializer_range", c->init_method_std,
                          "use_cache", 1);
    json_t *more;
    const char *act = NULL;
    for (size_t i = 0; i < ACTIVATIONS && !act; i++)
        if (activations[i].activation == c->activation && has_activation(f, i))
            act = activations[i].name;
    for (int i = 0; i < 3; i++) {
        const json_t *id = json_object_get(tokens, ids[i]);
        json_object_set_new(j, ids[i], id ? json_deep_copy(id) : json_null());
    }
    if (f->gpt2) {
        more = json_pack("{s:I, s:I, s:I, s:I, s:I, s:s, s:f, s:f, s:f, s:f}", "n_positions",
                         (json_int_t)c->max_position_embeddings, "n_embd", (json_int_t)c->hidden_size,
                         "n_layer", (json_int_t)c->num_layers, "n_head", (json_int_t)c->num_attention_heads,
                         "n_inner", (json_int_t)c->ffn_hidden_size, "activation_function", act,
                         "layer_norm_epsilon", c->norm_epsilon, "resid_pdrop", c->hidden_dropout,
                         "embd_pdrop", c->hidden_dropout, "attn_pdrop", c->attention_dropout);
    } else {
        more = json_pack("{s:I, s:I, s:I, s:I, s:I, s:s, s:I, s:f, s:f, s:f, s:{s:s, s:f}}", "hidden_size",
                         (json_int_t)c->hidden_size, "intermediate_size", (json_int_t)c->ffn_hidden_size,
                         "num_hidden_layers", (json_int_t)c->num_layers, "num_attention_heads",
                         (json_int_t)c->num_attention_heads, "num_key_value_heads",
                         (json_int_t)c->num_query_groups, "hidden_act", act, "max_position_embeddings",
                         (json_int_t)c->max_position_embeddings, "rms_norm_eps", c->norm_epsilon,
                         "attention_dropout", c->attention_dropout, "rope_theta", c->rotary_base,
                         "rope_parameters", "rope_type", "default", "rope_theta", c->rotary_base);
        hf_write_rope(more, c);
        if (f->windows != HF_NO_WINDOW)
            json_object_set_new(more, "sliding_window",
                                c->window_size ? json_integer(c->window_size) : json_null());
        if (f->windows == HF_WINDOW_SWITCH || f->windows == HF_WINDOW_OFF)
            json_object_set_new(more, "use_sliding_window", json_boolean(c->window_size > 0));
        if (f->windows == HF_WINDOW_SWITCH || f->windows == HF_WINDOW_LAYERS)
            json_object_set_new(more, "max_window_layers", json_integer(c->window_size ? 0 : c->num_layers));
        hf_write_experts(more, c, f);
        /* Qwen2's class has no key head_dim, but its code uses one that is there */
        if (!f->add_qkv_bias || c->kv_channels * c->num_attention_heads != c->hidden_size)
            json_object_set_new(more, "head_dim", json_integer(c->kv_channels));
        if (f->biases)
            json_object_set_new(more, "attention_bias", json_false());
    }
    BUG_ON(!j || !more);
    json_object_update(j, more);
    json_decref(more);
    return j;
}
