/* test_huggingface -- import and export of Hugging Face directories
 *
 * All forms of config.json and of the files with one meaning give the same tensors. All that the model
 * cannot express is refused by name. tests/model/goldens compares the families' numbers with
 * transformers. */
#define _GNU_SOURCE
#include "checkpoint.h"
#include "child.h"
#include "commands.h"
#include "huggingface.h"
#include "safetensors.h"
#include "source.h"
#include <fcntl.h>

static char folder[] = "/tmp/test_huggingface.XXXXXX";
static char why[WHY];

/* ---- directories: copies of a golden one, with config.json edited and tensors renamed, added or left
 * out */

/* Texts that are never freed. */
static char *kept[512];
static int nkept;

static char *keep(char *text)
{
    BUG_ON(nkept == 512);
    return kept[nkept++] = text;
}

static char *path(const char *name) { return keep(xasprintf("%s/%s", folder, name)); }

static json_t *config_of(const char *family)
{
    char *file = xasprintf("tests/golden/%s/config.json", family);
    json_error_t e;
    json_t *j = json_load_file(file, 0, &e);
    CHECK(j, "%s: %s", file, e.text);
    free(file);
    return j;
}

/* A copy of a golden directory whose config.json is changed by `edit`, a JSON object; null removes a key. */
static char *variant(const char *family, const char *edit)
{
    static int n;
    char name[32];
    snprintf(name, sizeof name, "hf%d", n++);
    char *dir = path(name), *file = xasprintf("%s/config.json", dir);
    json_error_t e;
    json_t *j = config_of(family), *more = json_loads(edit, 0, &e), *v;
    const char *key;
    CHECK(more, "%s: %s", edit, e.text);
    json_object_foreach(more, key, v) {
        if (json_is_string(v) && !strcmp(json_string_value(v), "ABSENT"))
            json_object_del(j, key);
        else
            json_object_set(j, key, v);
    }
    shell("cp -r tests/golden/%s %s", family, dir);
    json_dump_file(j, file, JSON_INDENT(1));
    json_decref(j);
    json_decref(more);
    free(file);
    return dir;
}

/* A change of model.safetensors. from: becomes `to` at the start of every name. drop: a tensor left out.
 * twice: a tensor that is written again under the name `again`, with one bit flipped where `flip` is set.
 * half: a tensor of F32 that is written as BF16. */
typedef struct { const char *from, *to, *drop, *twice, *again, *half; int flip; } Edit;

static void rewrite(const char *dir, const Edit *edit)
{
    char *file = xasprintf("%s/model.safetensors", dir), *tmp = xasprintf("%s/tmp", dir);
    StFile f;
    StWriter w;
    CHECK(st_open(&f, AT_FDCWD, file, 0, why), "%s", why);
    StTensor *t = xcalloc((size_t)f.n + 1, sizeof *t);
    const StTensor **source = xcalloc((size_t)f.n + 1, sizeof *source);
    int n = 0;
    for (int i = 0; i < f.n; i++) {
        const char *name = f.tensor[i].name;
        if (edit->drop && !strcmp(name, edit->drop))
            continue;
        size_t len = edit->from ? strlen(edit->from) : 0;
        t[n] = f.tensor[i];
        if (edit->from && !strncmp(name, edit->from, len))
            t[n].name = keep(xasprintf("%s%s", edit->to, name + len));
        if (edit->half && !strcmp(name, edit->half))
            t[n].type = BF16;
        source[n++] = &f.tensor[i];
        if (edit->twice && !strcmp(name, edit->twice)) {
            t[n] = f.tensor[i];
            t[n].name = edit->again;
            source[n++] = &f.tensor[i];
        }
    }
    CHECK(st_create(&w, AT_FDCWD, tmp, 0, t, n, NULL, why), "%s", why);
    for (int i = 0; i < n; i++) {
        char *data = xcalloc(1, (size_t)source[i]->bytes + 1);
        CHECK(st_read(&f, source[i], 0, data, source[i]->bytes, why), "%s", why);
        data[0] = (char)(data[0] ^ (edit->flip && edit->again && !strcmp(t[i].name, edit->again)));
        CHECK(st_put(&w, i, 0, data, w.tensor[i].bytes, why), "%s", why);
        free(data);
    }
    CHECK(st_finish(&w, why), "%s", why);
    st_close(&f);
    CHECK(rename(tmp, file) == 0, "rename");
    free(t), free(source), free(file), free(tmp);
}

/* ---- commands, each in a process of its own */

typedef struct { const char *from, *to, *shard; } Task;

static void quiet(void)
{
    int null = open("/dev/null", O_WRONLY);
    dup2(null, 1);
}

static void import(void *arg)
{
    Task *t = arg;
    char *argv[] = {(char *)t->from, "-o", (char *)t->to, NULL};
    quiet();
    _exit(command_import(3, argv));
}

static void export(void *arg)
{
    Task *t = arg;
    char *argv[] = {(char *)t->from, "-o", (char *)t->to, "--shard-bytes", (char *)t->shard, NULL};
    quiet();
    _exit(command_export(t->shard ? 5 : 3, argv));
}

#define RUNS(fn, task)                                                                                       \
    do {                                                                                                     \
        int rc_ = child(fn, task);                                                                           \
        CHECK(rc_ == 0 && !*said, "exit %d: %s", rc_, said);                                                 \
    } while (0)
#define REFUSED(dir, ...)                                                                                    \
    DIES(import, (&(Task){dir, path("refused"), NULL}), EXIT_CHECKPOINT, "change:", __VA_ARGS__)

/* The tensors of an import equal those of the golden directory's own import, bit for bit. */
static void same_import(const char *family, const char *dir)
{
    static int n;
    char *a = xasprintf("%s/plain-%s", folder, family), *b = xasprintf("%s/import%d", folder, n++);
    char *golden = xasprintf("tests/golden/%s", family);
    if (!checkpoint_exists(a))
        RUNS(import, (&(Task){golden, a, NULL}));
    RUNS(import, (&(Task){dir, b, NULL}));
    shell("cmp %s/checkpoints/iter_0000000/model-00000.safetensors "
          "%s/checkpoints/iter_0000000/model-00000.safetensors",
          a, b);
    free(a), free(b), free(golden);
}

/* ---- tests */

static void same_meaning(void)
{
    same_import(
        "llama",
        variant("llama",
                "{\"rope_theta\": \"ABSENT\", \"rope_scaling\": \"ABSENT\", \"torch_dtype\": \"ABSENT\", "
                "\"dtype\": \"float32\", \"rope_parameters\": {\"rope_type\": \"default\", "
                "\"rope_theta\": 5003.0}, \"head_dim\": 6, \"tie_word_embeddings\": \"ABSENT\"}"));
    same_import("llama", variant("llama", "{\"rope_scaling\": {\"type\": \"default\"}, \"head_dim\": null, "
                                          "\"hidden_act\": \"swish\"}"));
    char *bare = variant("llama", "{}");
    rewrite(bare, &(Edit){.from = "model.", .to = ""});
    same_import("llama", bare);
    char *old = variant("llama", "{}");
    rewrite(old,
            &(Edit){.twice = "model.norm.weight", .again = "model.layers.0.self_attn.rotary_emb.inv_freq"});
    same_import("llama", old);

    char *hub = variant(
        "gpt2", "{\"tie_word_embeddings\": \"ABSENT\", \"activation_function\": \"gelu_pytorch_tanh\"}");
    rewrite(hub, &(Edit){.from = "", .to = "transformer.", .drop = "h.0.attn.bias"});
    same_import("gpt2", hub);
    rewrite(hub, &(Edit){.twice = "transformer.wpe.weight", .again = "transformer.h.1.attn.masked_bias"});
    same_import("gpt2", hub);

    char *indexed = variant("llama", "{}");     /* an index of one file that has the single one's name */
    shell("echo '{\"weight_map\": {\"model.norm.weight\": \"model.safetensors\"}}' > "
          "%s/model.safetensors.index.json", indexed);
    same_import("llama", indexed);

    char *tied = variant("qwen2", "{}");
    rewrite(tied, &(Edit){.twice = "model.embed_tokens.weight", .again = "lm_head.weight"});
    same_import("qwen2", tied);
    rewrite(tied, &(Edit){.drop = "lm_head.weight"});
    rewrite(tied, &(Edit){.twice = "model.embed_tokens.weight", .again = "lm_head.weight", .flip = 1});
    REFUSED(tied, "lm_head.weight is not the embedding's");
    same_import("mistral", variant("mistral", "{\"num_key_value_heads\": 1, \"sliding_window\": null}"));

    same_import("qwen2_moe",
                variant("qwen2_moe",
                        "{\"num_local_experts\": 6, \"num_experts\": \"ABSENT\", \"qkv_bias\": \"ABSENT\", "
                        "\"norm_topk_prob\": \"ABSENT\", \"mlp_only_layers\": null, \"sliding_window\": 9}"));
    same_import("qwen3_moe",
                variant("qwen3_moe", "{\"num_experts\": 7, \"decoder_sparse_step\": 1, "
                                     "\"mlp_only_layers\": [0, 2], \"num_local_experts\": null}"));
    same_import("mixtral", variant("mixtral", "{\"router_jitter_noise\": \"ABSENT\"}"));
    char *biased = variant("dots1", "{\"attention_bias\": \"ABSENT\"}");
    same_import("dots1", biased);
    rewrite(biased, &(Edit){.drop = "model.layers.2.mlp.gate.e_score_correction_bias"});
    REFUSED(biased, "model.layers.2.mlp.gate.e_score_correction_bias is missing");
    rewrite(biased, &(Edit){.twice = "model.norm.weight",
                            .again = "model.layers.2.mlp.gate.e_score_correction_bias"});
    REFUSED(biased, "layers.2.mlp.gate.e_score_correction_bias is [16, 1], config.json makes it [12, 1]");
}

/* The configuration that the config.json of `dir` stands for. */
static const Config *imported(const char *dir)
{
    const HfFamily *family;
    json_t *j;
    char *file = xasprintf("%s/config.json", dir);
    j = json_load_file(file, 0, NULL);
    const Config *c = hf_read_config(j, &family, why);
    CHECK(c, "%s", why);
    json_decref(j);
    free(file);
    return c;
}

static void windows(void)
{
    const struct { const char *family, *edit; int64_t window;
    } t[] = {
        {"mistral", "{\"sliding_window\": 8}", 8},
        {"mistral", "{\"sliding_window\": \"ABSENT\"}", 4096},
        {"mistral", "{\"sliding_window\": null}", 0},
        {"qwen2", "{\"sliding_window\": 8}", 0},
        {"qwen2",
         "{\"sliding_window\": 8, \"use_sliding_window\": true, \"max_window_layers\": 0, \"layer_types\": "
         "\"ABSENT\"}",
         8},
        {"qwen2",
         "{\"sliding_window\": 8, \"use_sliding_window\": true, \"max_window_layers\": 2, \"layer_types\": "
         "\"ABSENT\"}",
         0},
        {"qwen3",
         "{\"sliding_window\": 8, \"use_sliding_window\": true, \"layer_types\": [\"sliding_attention\", "
         "\"sliding_attention\"]}",
         8},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        const Config *c = imported(variant(t[i].family, t[i].edit));
        CHECK(c && c->window_size == t[i].window, "%s %s: %lld", t[i].family, t[i].edit,
              c ? (long long)c->window_size : -1);
    }
    /* the window survives import and export */
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        char *dir = variant(t[i].family, t[i].edit), *ckpt = xasprintf("%s-c", dir),
             *out = xasprintf("%s-o", dir);
        RUNS(import, (&(Task){dir, ckpt, NULL}));
        RUNS(export, (&(Task){ckpt, out, NULL}));
        const Config *c = imported(out);
        CHECK(c && c->window_size == t[i].window, "%s %s exported", t[i].family, t[i].edit);
        free(ckpt), free(out);
    }
}

/* Without a base every family has that of its class in transformers, and with one its own. */
static void rotary_bases(void)
{
    static const char *const families[] = {"llama",   "mistral",   "qwen2",     "qwen3",
                                           "mixtral", "qwen2_moe", "qwen3_moe", "dots1"};
    static const char *const without[] = {
        "{\"rope_theta\": \"ABSENT\", \"rope_parameters\": \"ABSENT\"}",
        "{\"rope_theta\": \"ABSENT\", \"rope_parameters\": {\"rope_type\": \"default\"}}",
        "{\"rope_theta\": \"ABSENT\", \"rope_parameters\": {\"rope_theta\": 31.0}}",
        "{\"rope_theta\": 31.0, \"rope_parameters\": \"ABSENT\"}"};
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        for (size_t k = 0; k < sizeof without / sizeof *without; k++) {
            double want = k > 1 ? 31 : strcmp(families[i], "mixtral") ? 1e4 : 1e6;
            const Config *c = imported(variant(families[i], without[k]));
            CHECK(c && c->rotary_base == want, "%s %s: %g", families[i], without[k], c ? c->rotary_base : 0);
        }
}

/* Special tokens of absent keys are those of the family's class; null means none. */
static void special_tokens(void)
{
    static const struct { const char *family, *edit; int64_t bos, eos;      /* -1: null */
    } t[] = {
        {"llama", "{\"bos_token_id\": \"ABSENT\", \"eos_token_id\": \"ABSENT\"}", 1, 2},
        {"llama", "{\"bos_token_id\": null, \"eos_token_id\": null}", -1, -1},
        {"mistral", "{\"bos_token_id\": \"ABSENT\", \"eos_token_id\": 7}", 1, 7},
        {"mixtral", "{\"bos_token_id\": \"ABSENT\", \"eos_token_id\": \"ABSENT\"}", 1, 2},
        {"gpt2", "{\"bos_token_id\": \"ABSENT\", \"eos_token_id\": \"ABSENT\"}", 50256, 50256},
        {"qwen3", "{\"bos_token_id\": 5, \"eos_token_id\": \"ABSENT\"}", 5, -1},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        char *dir = variant(t[i].family, t[i].edit), *ckpt = xasprintf("%s-c", dir),
             *out = xasprintf("%s-o", dir), *file = xasprintf("%s/config.json", out);
        RUNS(import, (&(Task){dir, ckpt, NULL}));
        RUNS(export, (&(Task){ckpt, out, NULL}));
        json_t *j = json_load_file(file, 0, NULL);
        const json_t *bos = json_object_get(j, "bos_token_id"), *eos = json_object_get(j, "eos_token_id");
        CHECK(bos && (json_is_integer(bos) ? json_integer_value(bos) : -1) == t[i].bos && eos &&
              (json_is_integer(eos) ? json_integer_value(eos) : -1) == t[i].eos, "%s %s: exported otherwise",
              t[i].family, t[i].edit);
        const Config *c = imported(dir);        /* 50256 is no id of a vocabulary of 61 */
        int64_t eod = t[i].eos < 0 || t[i].eos >= c->vocab_size ? CFG_ABSENT : t[i].eos;
        CHECK(c->null_tokenizer_eod_id == eod, "%s %s: end-of-document %lld", t[i].family, t[i].edit,
              (long long)c->null_tokenizer_eod_id);
        json_decref(j);
        free(ckpt), free(out), free(file);
    }
}

/* rope_scaling in its forms, each with the lines of config.yaml that it means; and out and in again. */
static void rope_scaling(void)
{
    static const struct { const char *edit; int kind; double factor; int64_t original; double attention;
    } t[] = {
        {"{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}}", ROPE_SCALING_LINEAR, 2, CFG_ABSENT, 1},
        {"{\"rope_parameters\": {\"rope_type\": \"dynamic\", \"factor\": 2.5}}",
         ROPE_SCALING_DYNAMIC, 2.5, 19, 1},
        {"{\"rope_scaling\": {\"type\": \"yarn\", \"original_max_position_embeddings\": 4}}",
         ROPE_SCALING_YARN, 4.75, 4, 1.155814461804655},
        {"{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2.0, \"finetuned\": true}}",
         ROPE_SCALING_YARN, 2, 19, 1.0693147180559945},
        {"{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 40, \"mscale\": 0.707, "
         "\"mscale_all_dim\": 1.0, \"beta_fast\": 16}, \"original_max_position_embeddings\": 7}",
         ROPE_SCALING_YARN, 40, 7, 0.9210423553163399},
        {"{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 2, \"attention_factor\": 1.5, "
         "\"mscale\": 1}}",
         ROPE_SCALING_YARN, 2, 19, 1.5},
        {"{\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0, "
         "\"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8}}",
         ROPE_SCALING_LLAMA3, 8, 8, 1},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        const HfFamily *f;
        const Config *c = imported(variant("llama", t[i].edit));
        for (int again = 0; c && again < 2; again++) {
            CHECK(c->rope_scaling == t[i].kind && c->rope_scaling_factor == t[i].factor &&
                      c->rope_original_max_position_embeddings == t[i].original &&
                      fabs(config_rope_attention(c) - t[i].attention) < 1e-14, "%s: %d, %g, %ld, %.17g",
                  t[i].edit, c->rope_scaling, c->rope_scaling_factor,
                  c->rope_original_max_position_embeddings, config_rope_attention(c));
            json_t *j = hf_write_config(c, hf_family(c, NULL, why), F32, NULL);
            json_t *v4 = json_object_get(j, "rope_scaling"), *v5 = json_object_get(j, "rope_parameters");
            CHECK(json_object_get(v5, "rope_theta") && json_object_size(v5) == json_object_size(v4) + 1, "%s",
                  t[i].edit);
            c = hf_read_config(j, &f, why);
            CHECK(c, "%s: %s", t[i].edit, why);
            json_object_del(j, again ? "rope_scaling" : "rope_parameters");      /* each alone says all */
            const Config *one = hf_read_config(j, &f, why);
            for (int k = OPT_rope_scaling; c && one && k <= OPT_rope_truncate; k++)
                CHECK(!config_differs(c, one, k), "%s: option %d", t[i].edit, k);
            json_decref(j);
        }
    }
}

static void refusals(void)
{
    static const struct { const char *family, *edit, *word;
    } t[] = {
        {"llama", "{\"model_type\": \"falcon\"}", "model_type falcon (this build knows gpt2"},
        {"llama", "{\"model_type\": \"deepseek_v3\"}", "model_type deepseek_v3: this build has no multi"},
        {"llama", "{\"model_type\": \"ABSENT\"}", "model_type is missing"},
        {"llama", "{\"rope_scaling\": {\"type\": \"longrope\", \"factor\": 2.0}}",
         "rope_scaling of type longrope (this build knows default, linear, dynamic, yarn and llama3)"},
        {"llama", "{\"rope_scaling\": {\"type\": \"linear\"}}", "rope_scaling.factor is missing"},
        {"llama", "{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 0.5}}", "rope_scaling_factor"},
        {"llama", "{\"rope_scaling\": {\"type\": \"linear\", \"factor\": \"2\"}}", "factor is not a number"},
        {"llama", "{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.0, \"mrope_section\": [1]}}",
         "rope_scaling has mrope_section"},
        {"llama", "{\"rope_parameters\": {\"rope_type\": \"llama3\", \"rope_theta\": 5e5, \"factor\": 8.0}}",
         "rope_parameters.low_freq_factor is missing; rope_parameters.high_freq_factor is missing"},
        {"llama",
         "{\"rope_parameters\": {\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 4, "
         "\"high_freq_factor\": 1, \"original_max_position_embeddings\": 8}}",
         "rope_low_freq_factor: 4 is not below rope_high_freq_factor 1"},
        {"llama",
         "{\"rope_parameters\": {\"rope_type\": \"default\"}, \"rope_scaling\": {\"type\": \"linear\", "
         "\"factor\": 2.0}}",
         "rope_scaling of type linear beside rope_parameters of type default"},
        {"llama",
         "{\"rope_theta\": \"ABSENT\", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.0}, "
         "\"rope_parameters\": {\"rope_type\": \"linear\", \"factor\": 2.0, \"rope_theta\": 31.0}}",
         "rope_scaling of rope_theta 10000 beside rope_parameters of rope_theta 31"},
        {"mistral",
         "{\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 2.0, "
         "\"original_max_position_embeddings\": 8.5}}",
         "original_max_position_embeddings is not a whole number"},
        {"mistral", "{\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"yarn\"}}}",
         "rope_parameters has full_attention"},
        {"llama", "{\"partial_rotary_factor\": 0.5}", "partial_rotary_factor 0.5"},
        {"llama", "{\"rope_parameters\": {\"partial_rotary_factor\": 0.25}}", "partial_rotary_factor 0.25"},
        {"llama", "{\"attention_bias\": true}", "attention_bias"},
        {"qwen3", "{\"attention_bias\": true}", "attention_bias"},
        {"llama", "{\"mlp_bias\": true}", "mlp_bias"},
        {"llama", "{\"hidden_act\": \"quick_gelu\"}", "hidden_act quick_gelu"},
        {"gpt2", "{\"activation_function\": \"tanh\"}", "activation_function tanh"},
        {"gpt2", "{\"scale_attn_by_inverse_layer_idx\": true}", "scale_attn_by_inverse_layer_idx"},
        {"gpt2", "{\"reorder_and_upcast_attn\": true}", "reorder_and_upcast_attn"},
        {"gpt2", "{\"scale_attn_weights\": false}", "scale_attn_weights"},
        {"gpt2", "{\"add_cross_attention\": true}", "add_cross_attention"},
        {"gpt2", "{\"is_causal\": false}", "is_causal: false"},
        {"dots1", "{\"is_causal\": false}", "is_causal: false"},
        {"gpt2", "{\"embd_pdrop\": 0.3}", "embd_pdrop 0.3 beside resid_pdrop 0"},
        {"gpt2", "{\"resid_pdrop\": 0.3, \"embd_pdrop\": \"ABSENT\"}",
         "embd_pdrop 0.1 beside resid_pdrop 0.3"},
        {"llama", "{\"quantization_config\": {\"bits\": 4}}", "quantization_config"},
        {"mistral", "{\"per_layer_config\": {\"1\": {\"sliding_window\": 2}}}", "per_layer_config"},
        {"gpt2", "{\"transformers_weights\": \"other.safetensors\"}", "transformers_weights"},
        {"qwen2",
         "{\"use_sliding_window\": true, \"sliding_window\": 8, \"max_window_layers\": 1, \"layer_types\": "
         "\"ABSENT\"}",
         "sliding_window in 1 of 2 layers"},
        {"qwen3",
         "{\"use_sliding_window\": true, \"sliding_window\": 8, \"layer_types\": [\"full_attention\", "
         "\"sliding_attention\"]}",
         "sliding_window in 1 of 2 layers"},
        {"qwen3", "{\"layer_types\": [\"full_attention\", \"chunked_attention\"]}",
         "layer_types has chunked_attention"},
        {"qwen3", "{\"layer_types\": [\"full_attention\"]}", "layer_types has 1 entries"},
        {"llama", "{\"hidden_size\": \"ABSENT\"}", "hidden_size is missing"},
        {"llama", "{\"hidden_size\": 0}", "hidden_size is not a whole number"},
        {"llama", "{\"hidden_size\": -24}", "hidden_size is not a whole number"},
        {"llama", "{\"hidden_size\": 24.0}", "hidden_size is not a whole number"},
        {"llama", "{\"hidden_size\": \"24\"}", "hidden_size is not a whole number"},
        {"llama", "{\"hidden_size\": 9223372036854775807}", "hidden_size is not a whole number"},
        {"llama", "{\"num_attention_heads\": 0}", "num_attention_heads is not a whole number"},
        {"llama", "{\"num_key_value_heads\": 3}", "num_key_value_heads 3 does not divide 4"},
        {"llama", "{\"head_dim\": 5}", "head_dim 5 is odd"},
        {"gpt2", "{\"n_head\": 7}", "n_embd 30 is not a multiple of n_head 7"},
        {"llama", "{\"rms_norm_eps\": \"small\"}", "rms_norm_eps is not a number"},
        {"llama", "{\"torch_dtype\": \"float8_e4m3fn\"}", "dtype float8"},
        {"llama", "{\"num_hidden_layers\": 3}", "tensor model.layers.2.input_layernorm.weight is missing"},
        {"llama", "{\"num_hidden_layers\": 1}", "tensor model.layers.1.input_layernorm.weight has no place"},
        {"llama", "{\"vocab_size\": 62}",
         "tensor model.embed_tokens.weight is [61, 24], config.json makes it [62, 24]"},
        {"llama", "{\"intermediate_size\": 40}",
         "gate_proj.weight is [38, 24], config.json makes it [40, 24]"},
        {"llama", "{\"tie_word_embeddings\": true}", "lm_head.weight is not the embedding's"},
        {"qwen2", "{\"tie_word_embeddings\": false}", "tensor lm_head.weight is missing"},
        {"gpt2", "{\"n_positions\": 24}", "wpe.weight is [23, 30], config.json makes it [24, 30]"},
        {"gpt2", "{\"n_inner\": null}", "mlp.c_fc.weight is [30, 52], config.json makes it [30, 120]"},
        {"llama", "{\"num_key_value_heads\": null}",
         "k_proj.weight is [12, 24], config.json makes it [24, 24]"},
        {"qwen3", "{\"head_dim\": \"ABSENT\"}", "config.json makes it [512, 20]"},
        {"llama", "{\"sliding_window\": 8}", "sliding_window, which transformers does not use in a llama"},
        {"llama", "{\"rope_theta\": 500.0, \"rope_parameters\": {\"rope_type\": \"default\", "
         "\"rope_theta\": 31.0}}", "rope_theta 500 beside rope_parameters.rope_theta 31"},
        {"mixtral",
         "{\"sliding_window\": 8, \"layer_types\": [\"full_attention\", \"full_attention\"]}",
         "sliding_window in 0 of 2 layers"},
        {"qwen2_moe", "{\"layer_types\": [\"full_attention\", \"sliding_attention\"]}",
         "layer_types has sliding_attention, without a sliding_window"},
        {"mixtral", "{\"num_local_experts\": 6}", "gate.weight is [5, 24], config.json makes it [6, 24]"},
        {"mixtral", "{\"num_local_experts\": 4}", "is [5, 24], config.json makes it [4, 24]"},
        {"mixtral", "{\"num_experts_per_tok\": 6}", "num_experts_per_tok 6 of 5 experts"},
        {"mixtral", "{\"num_experts_per_tok\": 1}", "num_experts_per_tok 1, whose weight is 1 always"},
        {"mixtral", "{\"router_jitter_noise\": 0.1}", "router_jitter_noise 0.1"},
        {"qwen2_moe", "{\"use_sliding_window\": true}", "use_sliding_window: true"},
        {"qwen2_moe", "{\"mlp_only_layers\": [1]}", "tensor model.layers.1.mlp.gate_proj.weight is missing"},
        {"qwen2_moe", "{\"qkv_bias\": false}", "k_proj.bias has no place"},
        {"qwen3_moe", "{\"mlp_only_layers\": 1}", "mlp_only_layers is not a list"},
        {"qwen3_moe", "{\"mlp_only_layers\": [\"1\"]}", "mlp_only_layers has an entry that is not a whole"},
        {"qwen3_moe", "{\"mlp_only_layers\": [1, 3]}", "without a layer that has them"},
        {"qwen3_moe", "{\"decoder_sparse_step\": 0}", "decoder_sparse_step is not a whole number"},
        {"qwen3_moe", "{\"num_local_experts\": 65537}", "num_moe_experts: 65537 is not in"},
        {"dots1", "{\"norm_topk_prob\": false}", "norm_topk_prob false with num_experts_per_tok 4"},
        {"dots1", "{\"topk_group\": 3}", "topk_group 3, num_experts_per_tok 4"},
        {"dots1", "{\"n_group\": 5}", "topk_group 2 of 5 groups of 12 experts"},
        {"dots1", "{\"n_shared_experts\": null}", "n_shared_experts is missing"},
        {"dots1", "{\"n_routed_experts\": null}", "n_routed_experts is missing"},
        {"dots1", "{\"routed_scaling_factor\": 0}", "routed_scaling_factor 0"},
        {"dots1", "{\"first_k_dense_replace\": 3}", "without a layer that has them"},
        {"dots1", "{\"sliding_window\": 8, \"max_window_layers\": 2, \"layer_types\": null}",
         "sliding_window in 1 of 3 layers"},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        char *dir = variant(t[i].family, t[i].edit);
        REFUSED(dir, t[i].word);
    }
    char *dir = variant("llama", "{\"mlp_bias\": true, \"hidden_act\": \"tanh\", \"rope_theta\": \"x\"}");
    REFUSED(dir, "mlp_bias", "hidden_act tanh", "rope_theta is not a number");   /* one line for all */
    dir = variant("llama", "{}");
    rewrite(dir, &(Edit){.twice = "model.norm.weight", .again = "model.layers.0.extra"});
    REFUSED(dir, "tensor model.layers.0.extra has no place");
    dir = variant("llama", "{}");
    shell("rm %s/model.safetensors", dir);
    REFUSED(dir, "holds neither model.safetensors nor");
    dir = variant("mistral", "{}");
    shell("rm %s/model-00002-of-00003.safetensors", dir);
    REFUSED(dir, "model-00002-of-00003.safetensors", "No such file");
    dir = variant("mistral", "{}");
    shell("truncate -s -1 %s/model-00003-of-00003.safetensors", dir);
    REFUSED(dir, "model-00003-of-00003.safetensors", "the file holds");
    dir = variant("mistral", "{}");
    shell("cp %s/model-00001-of-00003.safetensors %s/model-00002-of-00003.safetensors", dir, dir);
    REFUSED(dir, "is in two files");
    dir = variant("mistral", "{}");
    shell("sed -i 's,: \"model-00002,: \"../model-00002,' %s/model.safetensors.index.json", dir);
    REFUSED(dir, "is not a plain name");
    dir = variant("llama", "{}");
    rewrite(dir, &(Edit){.half = "model.layers.0.self_attn.k_proj.weight"});
    REFUSED(dir, "tensors model.layers.0.self_attn.q_proj.weight and model.layers.0.self_attn.k_proj.weight "
            "have different types");
    dir = variant("llama", "{}");
    shell("LC_ALL=C sed -i 's/\\(q_proj.weight\":{\"dtype\":\"\\)F/\\1I/' %s/model.safetensors", dir);
    REFUSED(dir, "q_proj.weight has type I32, not F64, F32, BF16 or F16");
    dir = variant("mistral", "{}");
    shell("echo '{\"weights\": {}}' > %s/model.safetensors.index.json", dir);
    REFUSED(dir, "model.safetensors.index.json has no weight_map");
    shell("sed 's,lm_head.weight,lm_head.scale,' tests/golden/mistral/model.safetensors.index.json > "
          "%s/model.safetensors.index.json", dir);
    REFUSED(dir, "tensor lm_head.scale is not in model-0000", "where model.safetensors.index.json says");
    dir = variant("mistral", "{}");        /* transformers saved there twice, and loads the one file */
    shell("cp tests/golden/llama/model.safetensors %s", dir);
    REFUSED(dir, "holds model.safetensors beside model.safetensors.index.json, which names other files");
    dir = variant("llama", "{}");
    shell("echo '[]' > %s/config.json", dir);
    REFUSED(dir, "config.json is not a JSON object; change");
    shell("rm %s/config.json", dir);
    REFUSED(dir, "cannot open config.json");
    REFUSED(folder, "config.json");
    shell("[ ! -e %s/refused ]", folder);
}

/* Every key of every family is set to odd values: refused or accepted, never a crash. */
static void odd_values(void)
{
    static const char *const odd[] = {"null",
                                      "true",
                                      "-1",
                                      "0",
                                      "7",
                                      "1.5",
                                      "1e300",
                                      "9223372036854775807",
                                      "\"x\"",
                                      "[]",
                                      "[1]",
                                      "{}",
                                      "{\"rope_type\": 3}",
                                      "{\"type\": \"llama3\", \"factor\": []}",
                                      "{\"type\": \"yarn\", \"factor\": 1e300}",
                                      "{\"type\": \"yarn\", \"factor\": 2, \"beta_slow\": 0}"};
    static const char *const names[] = {"gpt2",    "llama",     "mistral",   "qwen2", "qwen3",
                                        "mixtral", "qwen2_moe", "qwen3_moe", "dots1"};
    int refused = 0, accepted = 0;
    for (size_t f = 0; f < sizeof names / sizeof *names; f++) {
        json_t *good = config_of(names[f]), *v;
        const char *key;
        json_object_foreach(good, key, v) {
            for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
                const HfFamily *family;
                json_t *bad = json_deep_copy(good);
                json_object_set_new(bad, key, json_loads(odd[i], JSON_DECODE_ANY, NULL));
                const Config *c = hf_read_config(bad, &family, why);
                CHECK(c ? !*why : *why, "%s %s: %s", key, odd[i], why);
                accepted += c != NULL;
                refused += !c;
                json_decref(bad);
            }
        }
        json_decref(good);
    }
    printf("# odd values: %d refused, %d accepted\n", refused, accepted);
}

/* Export: shards of at most N bytes with an index, the tensors' types, and a damaged checkpoint. */
static void exporting(void)
{
    char *ckpt = path("plain-llama"), *out = path("sharded"), *back = path("back"), *one = path("one");
    RUNS(export, (&(Task){ckpt, out, "9000"}));
    shell("[ $(ls %s | grep -c 'model-000..-of-000...safetensors') -gt 3 ] && [ -s "
          "%s/model.safetensors.index.json ]",
          out, out);
    shell("for f in %s/model-*; do [ $(stat -c %%s $f) -lt 11000 ] || exit 1; done", out);
    RUNS(import, (&(Task){out, back, NULL}));
    shell("cmp %s/checkpoints/iter_0000000/model-00000.safetensors "
          "%s/checkpoints/iter_0000000/model-00000.safetensors",
          ckpt, back);
    DIES(export, (&(Task){ckpt, out, NULL}), EXIT_CONFIG, "is there already", "change:");
    shell("mkdir %s", one);
    RUNS(export, (&(Task){path("plain-llama/checkpoints/iter_0000000"), one, NULL}));
    shell("[ \"$(ls %s | tr '\\n' ' ')\" = 'config.json generation_config.json model.safetensors ' ]", one);
    DIES(import, (&(Task){one, back, NULL}), EXIT_CHECKPOINT, "holds a checkpoint already");
    DIES(export, (&(Task){folder, path("none"), NULL}), EXIT_CHECKPOINT, "holds no checkpoint");
    shell("printf x | dd of=%s/checkpoints/iter_0000000/model-00000.safetensors bs=1 seek=4000 conv=notrunc "
          "2>/dev/null",
          back);
    DIES(export, (&(Task){back, path("none"), NULL}), EXIT_CHECKPOINT, "model-00000.safetensors is damaged");
    shell("[ ! -e %s/none ]", folder);
}

/* Models that belong to no family, and models that belong to several. */
static void families(void)
{
    static const char llama[] =
        "model:\n  num_layers: 2\n  hidden_size: 24\n  ffn_hidden_size: 32\n  num_attention_heads: 4\n"
        "  num_query_groups: 2\n  kv_channels: 6\n  seq_length: 8\n  max_position_embeddings: 8\n  "
        "vocab_size: 61\n"
        "  position_embedding_type: rope\n  normalization: RMSNorm\n  activation: swiglu\n  add_bias_linear: "
        "false\n";
    static const char gpt2[] =
        "model:\n  num_layers: 2\n  hidden_size: 24\n  ffn_hidden_size: 32\n  num_attention_heads: 4\n"
        "  num_query_groups: 4\n  kv_channels: 6\n  seq_length: 8\n  max_position_embeddings: 8\n  "
        "vocab_size: 61\n";
#define MOE "moe:\n  num_moe_experts: 8\n  moe_ffn_hidden_size: 6\n"
#define DOTS "  qk_layernorm: true\n" MOE "  moe_router_score_function: sigmoid\n"
#define SHARED "  moe_shared_expert_intermediate_size: 12\n"
#define GATE "  moe_shared_expert_gate: true\n"
    static const struct { const char *base, *more, *hint, *family, *word; } t[] = {
        {llama, "", NULL, "llama", NULL},
        {llama, "", "mistral", "mistral", NULL},
        {llama, "", "gpt2", "llama", NULL},
        {llama, "  add_qkv_bias: true\n", NULL, "qwen2", NULL},
        {llama, "  qk_layernorm: true\n", NULL, "qwen3", NULL},
        {llama, "  window_size: 4\n", NULL, "mistral", NULL},
        {llama, "  window_size: 4\n", "llama", "mistral", NULL},
        {llama, "  rotary_percent: 0.5\n", NULL, NULL, "rotary_percent"},
        {llama, "  rope_scaling: linear\n  rope_scaling_factor: 4\n", NULL, "llama", NULL},
        {llama, "  rope_scaling: yarn\n  rope_scaling_factor: 4\n  rope_original_max_position_embeddings: 2\n"
                "  rope_attention_factor: 1.25\n  rope_truncate: false\n", "mistral", "mistral", NULL},
        {llama, "  add_qkv_bias: true\n  qk_layernorm: true\n", NULL, NULL, "qk_layernorm"},
        {llama, MOE, NULL, "mixtral", NULL},
        {llama, "  window_size: 4\n" MOE, NULL, "mixtral", NULL},
        {llama, "  window_size: 4\n" MOE "  moe_layer_freq: [2]\n", NULL, NULL,
         "mixtral, differs in moe_layer_freq"},
        {llama, MOE "  moe_router_pre_softmax: true\n", NULL, NULL, "qwen3_moe, differs in qk_layernorm"},
        {llama, MOE "  moe_router_topk_scaling_factor: 2\n", NULL, NULL, "moe_router_topk_scaling_factor"},
        {llama, MOE "  moe_expert_capacity_factor: 2\n", NULL, "mixtral", NULL},
        {llama, "  qk_layernorm: true\n" MOE, NULL, "qwen3_moe", NULL},
        {llama, "  qk_layernorm: true\n" MOE "  moe_layer_freq: [0, 1]\n  moe_router_pre_softmax: true\n",
         NULL, "qwen3_moe", NULL},
        {llama, "  qk_layernorm: true\n  window_size: 4\n" MOE, NULL, NULL, "window_size"},
        {llama, MOE SHARED GATE "  moe_layer_freq: [2]\n", NULL, "qwen2_moe", NULL},
        {llama, "  add_qkv_bias: true\n" MOE SHARED GATE, NULL, "qwen2_moe", NULL},
        {llama, MOE SHARED, NULL, NULL, "dots1, differs in qk_layernorm"},
        {llama, DOTS SHARED, NULL, "dots1", NULL},
        {llama, DOTS SHARED "  moe_layer_freq: [0, 1]\n  moe_router_topk_scaling_factor: 2.5\n", NULL,
         "dots1", NULL},
        {llama, DOTS SHARED "  moe_layer_freq: [1, 0]\n", NULL, NULL, "moe_layer_freq"},
        {llama, DOTS SHARED "  moe_router_num_groups: 4\n  moe_router_group_topk: 1\n", NULL, "dots1", NULL},
        {llama, DOTS SHARED "  moe_router_num_groups: 4\n  moe_router_group_topk: 2\n", NULL, NULL,
         "moe_router_group_topk"},
        {llama, DOTS SHARED "  moe_router_enable_expert_bias: true\n", NULL, "dots1", NULL},
        {llama, DOTS "  moe_router_enable_expert_bias: true\n", NULL, NULL,
         "dots1, differs in moe_shared_expert_intermediate_size"},
        {llama, DOTS, NULL, NULL, "qwen3_moe, differs in moe_router_score_function"},
        {gpt2, MOE, NULL, NULL, "mixtral, differs in position_embedding_type"},
        {gpt2, MOE, "gpt2", NULL, "mixtral, differs in position_embedding_type"},
        {gpt2, "", NULL, "gpt2", NULL},
        {gpt2, "  untie_embeddings_and_output_weights: true\n", NULL, "gpt2", NULL},
        {gpt2, "  activation: swiglu\n", NULL, NULL, "activation"},
        {gpt2, "  activation: squared_relu\n", NULL, "gpt2", NULL},
        {gpt2, "  window_size: 4\n", NULL, NULL, "window_size"},
        {gpt2, "  position_embedding_type: none\n", NULL, NULL, "position_embedding_type"},
        {gpt2, "  qk_layernorm: true\n", NULL, NULL, "qk_layernorm"},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        const char *skipped;
        char *text = xasprintf("%s%s", t[i].base, t[i].more);
        const Config *c = config_read_saved(text, strlen(text), &skipped);
        CHECK(c && !*skipped, "%s", skipped);
        const HfFamily *f = hf_family(c, t[i].hint, why);
        CHECK(t[i].family ? f && !strcmp(f->type, t[i].family) : !f && strstr(why, t[i].word), "%s: %s", text,
              f ? f->type : why);
        if (f) {        /* the config.json written reads back as the same model */
            json_t *j = hf_write_config(c, f, BF16, NULL);
            const HfFamily *again;
            const Config *back = hf_read_config(j, &again, why);
            CHECK(back && again == f, "%s: %s", text, why);
            for (int k = OPT_num_layers; back && k <= OPT_window_size; k++) {
                char *a = config_text(c, k), *b = config_text(back, k);
                int drop = k == OPT_make_vocab_size_divisible_by || (!f->gpt2 && k == OPT_hidden_dropout) ||
                           (f->experts == HF_MIXTRAL && k == OPT_ffn_hidden_size);   /* no layer has it */
                CHECK(drop || !strcmp(a, b), "%s: option %d is %s, then %s", text, k, a, b);
                free(a), free(b);
            }
            for (int k = OPT_num_moe_experts; back && k <= OPT_moe_shared_expert_gate; k++) {
                char *a = config_text(c, k), *b = config_text(back, k);
                int one = k == OPT_moe_router_topk_scaling_factor && !strcmp(b, "1");
                one |= k == OPT_moe_router_enable_expert_bias && f->experts == HF_DOTS;     /* of zeros */
                int trained = k == OPT_moe_expert_capacity_factor;     /* not of the model that is exported */
                CHECK(one || trained || k == OPT_moe_layer_freq || !strcmp(a, b),
                      "%s: option %d is %s, then %s", text, k, a, b);
                free(a), free(b);
            }
            for (int layer = 0; back && layer < 2; layer++)
                CHECK(config_is_moe(c, layer) == config_is_moe(back, layer), "%s: layer %d", text, layer);
            json_decref(j);
        }
        free(text);
    }
}

/* transformers takes its balance loss over all layers with experts at once, and its value at balance is k:
 * ours is 1 in each of the L layers. */
static void balance_losses(void)
{
    static const struct { const char *name, *edit; double coeff; } t[] = {
        {"mixtral", "{\"router_aux_loss_coef\": 0.02, \"num_experts_per_tok\": 2, \"num_hidden_layers\": 4}",
         0.01},
        {"qwen3_moe", "{\"router_aux_loss_coef\": 0.001, \"num_experts_per_tok\": 3, "
                      "\"num_hidden_layers\": 7, \"mlp_only_layers\": [0, 2], \"decoder_sparse_step\": 1}",
         0.001 * 3 / 5},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        const HfFamily *f;
        char why[WHY] = "";
        json_t *j = config_of(t[i].name), *edit = json_loads(t[i].edit, 0, NULL);
        json_object_update(j, edit);
        const Config *c = hf_read_config(j, &f, why);
        CHECK(c && fabs(c->moe_aux_loss_coeff - t[i].coeff) < 1e-15, "%s: %.17g, not %.17g %s", t[i].name,
              c ? c->moe_aux_loss_coeff : 0, t[i].coeff, why);
        json_t *back = hf_write_config(c, f, F32, NULL);
        double given = json_number_value(json_object_get(edit, "router_aux_loss_coef")),
               again = json_number_value(json_object_get(back, "router_aux_loss_coef"));
        CHECK(fabs(again / given - 1) < 5e-16, "%s: %.17g comes back as %.17g", t[i].name, given, again);
        json_decref(j), json_decref(edit), json_decref(back);
    }
}

static void transpose(void)
{
    enum { R = 37, C = 65 };
    for (size_t size = 2; size <= 8; size *= 2) {
        char *a = xcalloc(R * C, size), *b = xcalloc(R * C, size);
        int bad = 0;
        for (size_t i = 0; i < R * C * size; i++)
            a[i] = (char)philox(3, i, size).v[0];
        hf_transpose(b, a, R, C, size);
        for (size_t r = 0; r < R; r++)
            for (size_t c = 0; c < C; c++)
                bad += memcmp(a + (r * C + c) * size, b + (c * R + r) * size, size) != 0;
        CHECK(!bad, "%d elements of %zu bytes", bad, size);
        free(a), free(b);
    }
}

int main(void)
{
    if (!mkdtemp(folder))
        return 1;
    transpose();
    families();
    same_meaning();
    windows();
    rotary_bases();
    special_tokens();
    rope_scaling();
    refusals();
    odd_values();
    exporting();
    balance_losses();
    shell("rm -rf %s", folder);
    while (nkept)
        free(kept[--nkept]);
    return test_end();
}
