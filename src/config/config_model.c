/* config_model -- keys of two configurations compared by meaning; keys taken from a checkpoint */
#define _GNU_SOURCE
#include "config_rules.h"

/* Gives keys of a model with experts their plainest form. */
static void plain_experts(Config *c)
{
    int period = 1, periodic = 1;      /* layers from one with experts to the next, the first one has some */
    while (period < c->num_layers && !config_is_moe(c, period))
        period++;
    for (int l = 0; l < c->num_layers; l++)
        periodic &= config_is_moe(c, l) == (l % period == 0);
    if (periodic) {
        const char **number = keep_alloc(1, sizeof *number);
        *number = textf("%d", period);
        c->moe_layer_freq = (List){1, number};
    }
    if (c->moe_router_score_function == MOE_ROUTER_SCORE_FUNCTION_SIGMOID)
        c->moe_router_pre_softmax = 0;
    if (isnan(c->moe_router_topk_scaling_factor))
        c->moe_router_topk_scaling_factor = 1;
}

/* Returns a copy in which a key without effect has a fixed value and any other key its plainest form:
 * two configurations of equal meaning become equal. */
static Config plain(const Config *cfg)
{
    Config c = *cfg;
    Check k;
    double share[3];
    check_open(&k, "");
    if (c.add_bias_linear)             /* query, key and value have biases whatever add_qkv_bias says */
        c.add_qkv_bias = 1;
    if (c.window_size >= c.max_position_embeddings)
        c.window_size = 0;
    if (c.position_embedding_type != POSITION_EMBEDDING_TYPE_LEARNED_ABSOLUTE)
        c.max_position_embeddings = CFG_ABSENT;
    /* number of columns that turn */
    c.rotary_percent = (double)(int64_t)((double)c.kv_channels * c.rotary_percent);
    if (c.position_embedding_type != POSITION_EMBEDDING_TYPE_ROPE)
        c.rotary_base = c.rotary_percent = 0;
    config_rope_plain(&c);
    for (int i = 0; i < OPTIONS && c.num_moe_experts == CFG_ABSENT; i++)
        if (!strcmp(options[i].section, "moe"))
            option_copy(&options[i], &c, k.cfg);
    int dense = c.num_moe_experts == CFG_ABSENT;
    if (!dense)
        plain_experts(&c);
    for (int l = 0; l < c.num_layers && !dense; l++)
        dense = !config_is_moe(&c, l);
    if (!dense)                        /* no layer has this width: Mixtral's config.json does not say it */
        c.ffn_hidden_size = CFG_ABSENT;
    if (c.split && rules_shares_parse(c.split, share)) {
        double sum = share[0] + share[1] + share[2];
        c.split = textf("%.17g, %.17g, %.17g", share[0] / sum, share[1] / sum, share[2] / sum);
    }
    return c;
}

int config_same_text(const Config *a, const Config *b, int option)
{
    char *x = config_text(a, option), *y = config_text(b, option);
    int same = !strcmp(x, y);
    free(x);
    free(y);
    return same;
}

int config_differs(const Config *a, const Config *b, int option)
{
    if (config_same_text(a, b, option))
        return 0;
    Config x = plain(a), y = plain(b);
    return !config_same_text(&x, &y, option);
}

/* Whether numbers come from a whole microbatch, so that its size changes them. */
static int counts_microbatch(const Config *c)
{
    int by = c->moe_router_load_balancing_type;
    int balance = c->moe_aux_loss_coeff > 0 && (by == MOE_ROUTER_LOAD_BALANCING_TYPE_AUX_LOSS ||
                                                by == MOE_ROUTER_LOAD_BALANCING_TYPE_GLOBAL_AUX_LOSS);
    return c->fp8 != FP8_NONE ||
           (c->num_moe_experts != CFG_ABSENT && (balance || !isnan(c->moe_expert_capacity_factor)));
}

/* What the change of a key means for a run. A split that is absent on one side is part of the change between
 * data_path and corpora for each split, which is allowed. */
static Change change_of(const Config *now, const Config *saved, int option)
{
    int absent = option == OPT_split && (!now->split || !saved->split);
    int numbers = option == OPT_micro_batch_size && counts_microbatch(now);
    return absent || numbers ? CHANGE_WARN : options[option].change;
}

Change config_compare_resume(const Config *now, const Config *saved, const char **text)
{
    static const char *const words[] = {"free", "warn", "refuse"};
    Change worst = CHANGE_FREE;
    char *list = text_copy("");
    for (int i = 0; i < OPTIONS; i++) {
        const Option *o = &options[i];
        Change change = change_of(now, saved, i);
        if (change == CHANGE_FREE || !saved->given[i] || !config_differs(now, saved, i))
            continue;
        char *a = config_text(saved, i), *b = config_text(now, i);
        list = textf("%s%s: %s -> %s (%s)\n", list, o->key, a, b, words[change]);
        worst = change > worst ? change : worst;
        free(a);
        free(b);
    }
    *text = list;
    return worst;
}

int config_is_shape(int option)
{
    static const int shape[] = {
        OPT_num_layers, OPT_hidden_size, OPT_ffn_hidden_size, OPT_num_attention_heads, OPT_num_query_groups,
        OPT_kv_channels, OPT_vocab_size, OPT_position_embedding_type, OPT_normalization, OPT_activation,
        OPT_add_bias_linear, OPT_add_qkv_bias, OPT_qk_layernorm, OPT_untie_embeddings_and_output_weights,
        OPT_max_position_embeddings, OPT_num_moe_experts, OPT_moe_layer_freq, OPT_moe_ffn_hidden_size,
        OPT_moe_shared_expert_intermediate_size, OPT_moe_shared_expert_gate,
    };
    int found = 0;
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++)
        found |= shape[i] == option;
    return found;
}

static int of_model(int option) { return !strcmp(options[option].section, "model"); }

int config_is_function(int option)
{
    return (of_model(option) || !strcmp(options[option].section, "moe")) &&
           options[option].change == CHANGE_REFUSE && !config_is_shape(option);
}

/* ---- from a checkpoint ---- */

/* Returns 1 if the key belongs to the experts of a model that has some: to the model or, with `numbers`, to
 * what a run computes with it, as the experts' capacity does. */
static int of_experts(int i, const Config *saved, int numbers)
{
    return saved->num_moe_experts != CFG_ABSENT && !strcmp(options[i].section, "moe") &&
           (options[i].change == CHANGE_REFUSE || (numbers && options[i].change == CHANGE_WARN));
}

/* Returns 1 if the key gives the batch size. One that is given replaces both of the run. */
static int of_batch(int i) { return i == OPT_global_batch_size || i == OPT_step_batch_size_schedule; }

/* Returns 1 if the key decides which tokens are read or, with `batches`, how many at a time. */
static int of_reading(int i, int batches)
{
    return !strcmp(options[i].section, "data") || i == OPT_seed ||
           (batches && (i == OPT_micro_batch_size || of_batch(i) || i == OPT_eval_iters));
}

/* Returns 1 if the key says which of the model's token ids ends a document; those of bytes are known. */
static int of_vocabulary(int i, const Config *saved)
{
    return i == OPT_null_tokenizer_eod_id && saved->vocab_size != 257;
}

/* Returns 1 if the key is a number format that changes a run's numbers. A params_dtype that is given replaces
 * all of them. */
static int of_formats(int i)
{
    return !strcmp(options[i].section, "precision") && options[i].change == CHANGE_WARN;
}

/* Returns 1 if the key belongs to the corpus. A corpus that is given replaces all of these keys of the
 * run. */
static int of_corpus(int i)
{
    return i == OPT_data_path || i == OPT_train_data_path || i == OPT_valid_data_path ||
           i == OPT_test_data_path || i == OPT_split;
}

/* Returns 1 for a key of rope_scaling. A kind that is given replaces all of them. */
static int of_scaling(int option)
{
    int found = 0;
    for (int i = 0; i < ROPE_KEYS; i++)
        found |= rope_keys[i].option == option;
    return found;
}

static int left_out(const Check *k, int i) { return !k->seen[i] || option_absent(&options[i], k->cfg); }

const char *config_other_model(const Check *k, const Config *saved)
{
    const char *list = "";
    for (int i = 0; i < OPTIONS; i++) {
        if (!config_is_shape(i) || !(of_model(i) || of_experts(i, saved, 0)) || left_out(k, i) ||
            !saved->given[i] || !config_differs(k->cfg, saved, i))
            continue;
        char *then = config_text(saved, i), *now = config_text(k->cfg, i);
        list = textf("%s%s%s is %s there, %s here", list, *list ? "; " : "", options[i].key, then, now);
        free(then);
        free(now);
    }
    return list;
}

void config_take(Check *k, const Config *saved, int alone, ConfigUse use)
{
    Config *c = k->cfg;
    int positions = left_out(k, OPT_max_position_embeddings), corpus = 0;
    int scaling = !left_out(k, OPT_rope_scaling);
    int batch = !left_out(k, OPT_global_batch_size) || !left_out(k, OPT_step_batch_size_schedule);
    int formats = alone && use & USE_EVAL && left_out(k, OPT_params_dtype);
    for (int i = 0; i < OPTIONS; i++)
        corpus |= of_corpus(i) && i != OPT_split && !left_out(k, i);
    for (int i = 0; i < OPTIONS; i++)
        if ((of_model(i) || of_experts(i, saved, alone && use & USE_EVAL) || of_vocabulary(i, saved) ||
             (alone && of_reading(i, use & USE_DATA) && !(corpus && of_corpus(i)) &&
              !(batch && of_batch(i))) ||
             (formats && of_formats(i))) &&
            left_out(k, i) && saved->given[i] && !(scaling && of_scaling(i))) {
            option_copy(&options[i], c, saved);
            k->seen[i] = 1;
        }
    /* positions that are not learned need no more rows than seq_length: it is derived again */
    if (positions && c->position_embedding_type != POSITION_EMBEDDING_TYPE_LEARNED_ABSOLUTE &&
        c->max_position_embeddings < c->seq_length)
        c->max_position_embeddings = CFG_ABSENT;
}
