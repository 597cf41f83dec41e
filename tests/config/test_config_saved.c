/* test_config_saved -- the configuration written and read again: resuming, round trips, random texts.
 * `--random N` prints N lines of arguments for runs. */
#define _GNU_SOURCE
#include "config_text.h"
#include <glob.h>

/* ---- C17: what a resume may change; the saved configuration ---- */

static void change_field(const Option *o, Config *c)
{
    void *p = option_field(o, c);
    static const char *other[] = {"other"};
    switch (o->type) {
    case TYPE_INT:   *(int64_t *)p = *(int64_t *)p == CFG_ABSENT ? 3 : *(int64_t *)p + 1; break;
    case TYPE_FLOAT: *(double *)p = isnan(*(double *)p) ? 0.5 : *(double *)p * 2 + 1; break;
    case TYPE_BOOL:  *(int *)p = !*(int *)p; break;
    case TYPE_STR:   *(const char **)p = "other"; break;
    case TYPE_LIST:  *(List *)p = (List){1, other}; break;
    case TYPE_ENUM:  *(int *)p = *(int *)p ? 0 : 1; break;
    }
}

/* Whether a key changes nothing in a model without rope and experts and with biases everywhere. */
static int idle(int option)
{
    return (option >= OPT_rotary_base && option <= OPT_rope_truncate) || option == OPT_add_qkv_bias ||
           (!strcmp(options[option].section, "moe") && option != OPT_num_moe_experts);
}

#define LLAMA3                                                                                               \
    "position_embedding_type=rope|rope_scaling=llama3|rope_scaling_factor=8|"                                \
    "rope_original_max_position_embeddings=8"
#define YARN                                                                                                 \
    "position_embedding_type=rope|rope_scaling=yarn|rope_scaling_factor=1|"                                  \
    "rope_original_max_position_embeddings=8"

/* base: arguments of a run. more: arguments added to them. key: the first key of the run that `more`
 * changes; NULL: `more` changes nothing. */
static void test_meaning(void)
{
#define BATCH "global_batch_size=2"
#define EXPERTS BATCH "|num_moe_experts=4"
    static const struct { const char *base, *more, *key; } t[] = {
        {"", "num_query_groups=4", NULL},
        {"", "kv_channels=16|ffn_hidden_size=256|max_position_embeddings=32", NULL},
        {"", "vocab_size=257|tokenizer_type=byte", NULL},
        {"", "add_qkv_bias=true", NULL},
        {"", "add_bias_linear=false", "add_bias_linear"},
        {"", "add_bias_linear=false|add_qkv_bias=true", "add_bias_linear"},
        {"add_bias_linear=false", "add_qkv_bias=true", "add_qkv_bias"},
        {"", "rotary_base=5000|rotary_percent=0.5", NULL},
        {"position_embedding_type=rope", "rotary_base=5000", "rotary_base"},
        {"position_embedding_type=rope", "rotary_percent=0.5", "rotary_percent"},
        {"position_embedding_type=rope", "max_position_embeddings=64", NULL},
        {"position_embedding_type=rope", "rope_beta_fast=32|rope_truncate=true", NULL},
        {LLAMA3, "rope_low_freq_factor=1|rope_high_freq_factor=4", NULL},
        {LLAMA3, "rope_scaling_factor=4", "rope_scaling_factor"},
        {LLAMA3, "rope_original_max_position_embeddings=16", "rope_original_max_position_embeddings"},
        {LLAMA3, "rope_low_freq_factor=2", "rope_low_freq_factor"},
        {LLAMA3, "rope_high_freq_factor=2", "rope_high_freq_factor"},
        {YARN, "rope_attention_factor=1", NULL},
        {YARN, "rope_attention_factor=1.1", "rope_attention_factor"},
        {YARN, "rope_beta_fast=16", "rope_beta_fast"},
        {YARN, "rope_beta_slow=2", "rope_beta_slow"},
        {YARN, "rope_truncate=false", "rope_truncate"},
        {YARN, "rope_scaling=llama3", "rope_scaling"},
        {"", "max_position_embeddings=64", "max_position_embeddings"},
        {"", "window_size=32", NULL},
        {"num_moe_experts=4|moe_ffn_hidden_size=64", "ffn_hidden_size=96", NULL},
        {"num_moe_experts=4|moe_ffn_hidden_size=64|moe_layer_freq=2", "ffn_hidden_size=96",
         "ffn_hidden_size"},
        {"", "window_size=31", "window_size"},
        {"max_position_embeddings=64", "window_size=32", "window_size"},
        {"", "split='969,30.0,1'", NULL},
        {"", "split='969,31,1'", "split"},
        {"split='8,2'", "split='80, 20, 0'", NULL},
        {"num_moe_experts=4", "moe_layer_freq=[1, 1, 1, 1]", NULL},
        {"num_moe_experts=4|moe_layer_freq=2", "moe_layer_freq=[1, 0, 1, 0]", NULL},
        {"num_moe_experts=4|moe_layer_freq=9", "moe_layer_freq=[1, 0, 0, 0]", NULL},
        {"num_moe_experts=4|moe_layer_freq=2", "moe_layer_freq=[0, 1, 0, 1]", "moe_layer_freq"},
        {"num_moe_experts=4|moe_layer_freq=2", "moe_layer_freq=[1, 0, 1, 1]", "moe_layer_freq"},
        {"num_moe_experts=4|moe_router_score_function=sigmoid", "moe_router_pre_softmax=true", NULL},
        {"num_moe_experts=4", "moe_router_pre_softmax=true", "moe_router_pre_softmax"},
        {"num_moe_experts=4", "moe_router_topk_scaling_factor=1", NULL},
        {"num_moe_experts=4", "moe_router_topk_scaling_factor=2", "moe_router_topk_scaling_factor"},
        {BATCH, "micro_batch_size=1", NULL},
        {EXPERTS, "micro_batch_size=1", NULL},
        {EXPERTS "|moe_aux_loss_coeff=0.01|moe_router_load_balancing_type=seq_aux_loss", "micro_batch_size=1",
         NULL},
        {EXPERTS "|moe_aux_loss_coeff=0.01", "micro_batch_size=1", "micro_batch_size"},
        {EXPERTS "|moe_aux_loss_coeff=0.01|moe_router_load_balancing_type=global_aux_loss",
         "micro_batch_size=1", "micro_batch_size"},
        {EXPERTS "|moe_expert_capacity_factor=1", "micro_batch_size=1", "micro_batch_size"},
        {BATCH "|fp8=hybrid|params_dtype=bf16", "micro_batch_size=1", "micro_batch_size"},
        {"", "norm_epsilon=0.00001", NULL},
        {"", "norm_epsilon=0.0001", "norm_epsilon"},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        char *both = textf("%s%s%s", t[i].base, *t[i].base ? "|" : "", t[i].more);
        Check a = resolve(t[i].base, 1, USE_TRAIN), b = resolve(both, 1, USE_TRAIN);
        const char *diff;
        memset(a.cfg->given, 1, sizeof a.cfg->given);
        Change change = config_compare_resume(b.cfg, a.cfg, &diff);
        CHECK(!a.n && !b.n, "%s", listing(&b));
        CHECK(t[i].key ? change != CHANGE_FREE && strstr(diff, t[i].key) == diff && strchr(diff, '\n')[1] == 0
                       : change == CHANGE_FREE, "%s: %s", both, diff);
    }
}

static void test_resume(void)
{
    size_t size;
    Text t = compose(NULL, NULL, NULL);
    Check k = read_text(t.text, t.size, 0, NULL, 1, USE_TRAIN);
    char *text = written(k.cfg, &size);
    const char *skipped, *diff;
    Config *saved = config_read_saved(text, size, &skipped);
    CHECK(saved && !*skipped && config_compare_resume(k.cfg, saved, &diff) == CHANGE_FREE && !*diff, "%s",
          skipped);
    for (int i = 0; i < OPTIONS; i++) {
        Config c = *k.cfg;
        change_field(&options[i], &c);
        Change change = config_compare_resume(&c, saved, &diff);
        CHECK(change == (idle(i) ? CHANGE_FREE : options[i].change), "%s: %d", options[i].key, change);
        CHECK((change == CHANGE_FREE) == !*diff &&
                  (change == CHANGE_FREE || strstr(diff, options[i].key) == diff),
              "%s: %s", options[i].key, diff);
    }
    static const char old[] = "model:\n  num_layers: 4\n  gone: 1\n  activation: new_kind\n";
    saved = config_read_saved(old, sizeof old - 1, &skipped);
    CHECK(saved && strstr(skipped, "gone") && strstr(skipped, "activation"), "%s", skipped);
    CHECK(config_compare_resume(k.cfg, saved, &diff) == CHANGE_FREE || strstr(diff, "activation"), "%s",
          diff);
    CHECK(!config_read_saved("a: [", 4, &skipped), "no YAML");
    free(text);
    free(t.text);
}

/* ---- round trips ---- */

/* A random value for a key, usually legal. */
static const char *random_value(const Option *o)
{
    Interval in = o->type == TYPE_INT || o->type == TYPE_FLOAT ? interval_parse(o->legal) : (Interval){0};
    switch (o->type) {
    case TYPE_INT:   return textf("%lld", (long long)(in.ilo + draw(24)));
    case TYPE_FLOAT: return textf("%.17g", in.lo + (fmin(in.hi, in.lo + 1) - in.lo) * draw(1000) / 999.0);
    case TYPE_BOOL:  return draw(2) ? "true" : "false";
    case TYPE_STR:   return draw(2) ? "'it''s: #1'" : "80, 20";
    case TYPE_LIST:  return sample_value(o);
    case TYPE_ENUM:  break;
    }
    int n = 0;
    while (o->choices[n])
        n++;
    return o->choices[draw((uint32_t)n)];
}

static void check_round_trip(const Config *c)
{
    size_t size, size2;
    char *once = written(c, &size);
    Check k = read_text(once, size, 0, NULL, c->world, USE_TRAIN);
    char *twice = written(k.cfg, &size2);
    CHECK(k.n == 0 && size == size2 && !memcmp(once, twice, size), "%s\n%s", once, listing(&k));
    CHECK(k.cfg->padded_vocab_size == c->padded_vocab_size && k.cfg->batch_steps == c->batch_steps &&
          config_iterations(k.cfg) == config_iterations(c), "what is derived");
    for (int by = 0; by < OPTIONS; by++) {         /* derived values are no keys that somebody has set */
        const char *a = config_idle(c, by), *b = config_idle(k.cfg, by);
        CHECK(!a == !b && (!a || !strcmp(a, b)), "%s, when written and read %s", a ? a : "-", b ? b : "-");
    }
    free(once);
    free(twice);
}

/* Prints n lines of key=value arguments for runs. Each line turns the base configuration into another
 * valid one. Keys of files, devices and the run's length keep their values. */
static void print_random(int n)
{
    static const char *const kept[] = {"load",
                                       "finetune",
                                       "save",
                                       "data_path",
                                       "split",
                                       "tensorboard_dir",
                                       "max_epochs",
                                       "cpu_isa",
                                       "device",
                                       "cublaslt_algorithms",
                                       "cublaslt_table",
                                       "train_iters",
                                       "train_samples",
                                       "lr",
                                       "exit_interval",
                                       "exit_duration_in_mins",
                                       "eval_iters",
                                       "vocab_size",
                                       "init_method_std"};
    for (int done = 0; done < n;) {
        char *args[5];
        for (int a = 0; a < 5;) {
            const Option *o = &options[draw(OPTIONS)];
            int free = 1;
            for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
                free &= strcmp(o->key, kept[i]) != 0;
            if (free)
                args[a++] = (char *)textf("%s=%s", o->key, random_value(o));
        }
        Text t = compose(NULL, NULL, NULL);
        Check k = read_text(t.text, t.size, 5, args, 1, USE_TRAIN);
        for (int a = 0; a < 5 && !k.n; a++)
            printf("%s%s", args[a], a < 4 ? "|" : "\n");
        done += !k.n;
        free(t.text);
    }
}

static void test_round_trips(void)
{
    int valid = 0, rounds = SANITIZED ? 500 : 4000;
    for (int i = 0; i < rounds; i++) {
        int o = (int)draw(OPTIONS);
        char *args[3];
        for (int a = 0; a < 3; a++, o = (int)draw(OPTIONS))
            args[a] = (char *)textf("%s=%s", options[o].key, random_value(&options[o]));
        Text t = compose(NULL, NULL, NULL);
        Check k = read_text(t.text, t.size, 3, args, 1, USE_TRAIN);
        if (!k.n) {
            valid++;
            check_round_trip(k.cfg);
        }
        free(t.text);
        config_forget();
    }
    CHECK(valid > rounds / 10, "%d of %d random configurations are valid", valid, rounds);
    printf("# round trips: %d\n", valid);
}

/* Every configuration of configs/ is valid over the ranks that it asks for, and is the same after writing and
 * reading. */
static void test_examples(void)
{
    glob_t files;
    CHECK(!glob("configs/*.yaml", 0, NULL, &files) && files.gl_pathc >= 4, "configs/*.yaml");
    for (size_t i = 0; i < files.gl_pathc; i++) {
        Check k;
        config_check(&k, files.gl_pathv[i], 0, NULL, WORLD_SMALLEST, USE_TRAIN);
        CHECK(!k.n, "%s: %s", files.gl_pathv[i], listing(&k));
        if (!k.n)
            check_round_trip(k.cfg);
        for (int by = 0; by < OPTIONS && !k.n; by++)
            CHECK(!config_idle(k.cfg, by), "%s: %s", files.gl_pathv[i], config_idle(k.cfg, by));
    }
    globfree(&files);
}

/* ---- fuzz: no text crashes the reader; an accepted text survives the round trip ---- */

static void test_fuzz(void)
{
    static const char *const tokens[] = {
        "[",    "]",  "{",  "}",   ":",   ": ", "- ",    "\n",           "  ", "&a ", "*a",   "!!str ",
        "'",    "\"", "#",  "|\n", ">\n", "? ", "---\n", "...\n",        "%",  "${",  "null", "1e9",
        "\xC3", "\t", "<<", "~",   ",",   "@",  "`",     "\xEF\xBB\xBF", "0",  "-",   "model"};
    size_t size;
    Text t = compose(NULL, NULL, NULL);
    Check k = read_text(t.text, t.size, 0, NULL, 1, USE_TRAIN);
    char *whole = written(k.cfg, &size);
    for (int i = 0; i < (SANITIZED ? 1000 : 6000); i++) {
        const char *from = i % 2 ? whole : t.text;
        size_t n = i % 2 ? size : t.size;
        char *s = malloc(n + 200);
        memcpy(s, from, n);
        for (int edits = 1 + (int)draw(4); edits; edits--) {
            size_t at = draw((uint32_t)n);
            const char *token = tokens[draw(sizeof tokens / sizeof *tokens)];
            size_t m = strlen(token);
            switch (draw(4)) {
            case 0:
                s[at] = (char)draw(256);
                break;
            case 1:                                    /* bytes removed */
                m = draw(20) % (n - at);
                memmove(s + at, s + at + m, n - at - m);
                n -= m;
                break;
            default:
                memmove(s + at + m, s + at, n - at);
                memcpy(s + at, token, m);
                n += m;
            }
        }
        k = read_text(s, n, 0, NULL, 1, USE_TRAIN);
        if (!k.n)
            check_round_trip(k.cfg);
        free(s);
        config_forget();
    }
    free(whole);
    free(t.text);
}

int main(int argc, char **argv)
{
    if (argc > 2 && !strcmp(argv[1], "--random")) {
        print_random(atoi(argv[2]));
        return 0;
    }
    test_resume();
    config_forget();
    test_meaning();
    config_forget();
    test_round_trips();
    config_forget();
    test_examples();
    config_forget();
    test_fuzz();
    return test_end();
}
