/* config_rope -- the keys of rope_scaling: which kind reads them, and the rules between them */
#define _GNU_SOURCE
#include "config_rules.h"

#define LINEAR  (1u << ROPE_SCALING_LINEAR)
#define DYNAMIC (1u << ROPE_SCALING_DYNAMIC)
#define YARN    (1u << ROPE_SCALING_YARN)
#define LLAMA3  (1u << ROPE_SCALING_LLAMA3)

#define EVERY   (LINEAR | DYNAMIC | YARN | LLAMA3)
#define LONGER  (DYNAMIC | YARN | LLAMA3)

const RopeKey rope_keys[ROPE_KEYS] = {
    [ROPE_FACTOR] = {OPT_rope_scaling_factor, "factor", EVERY, EVERY},
    [ROPE_ORIGINAL] = {OPT_rope_original_max_position_embeddings, "original_max_position_embeddings", LONGER,
                       LONGER},
    [ROPE_LOW] = {OPT_rope_low_freq_factor, "low_freq_factor", LLAMA3, 0},
    [ROPE_HIGH] = {OPT_rope_high_freq_factor, "high_freq_factor", LLAMA3, 0},
    [ROPE_ATTENTION] = {OPT_rope_attention_factor, "attention_factor", YARN, 0},
    [ROPE_FAST] = {OPT_rope_beta_fast, "beta_fast", YARN, 0},
    [ROPE_SLOW] = {OPT_rope_beta_slow, "beta_slow", YARN, 0},
    [ROPE_TRUNCATE] = {OPT_rope_truncate, "truncate", YARN, 0},
};

double config_rope_attention(const Config *c)
{
    if (c->rope_scaling != ROPE_SCALING_YARN)
        return 1;
    return ABSENT(rope_attention_factor) ? 0.1 * log(c->rope_scaling_factor) + 1 : c->rope_attention_factor;
}

/* Texts of the kinds of a set: "yarn", "dynamic, yarn, llama3". */
static const char *kinds_text(unsigned kinds)
{
    const char *text = "";
    for (int kind = 0; options[OPT_rope_scaling].choices[kind]; kind++)
        if (kinds >> kind & 1)
            text = textf("%s%s%s", text, *text ? ", " : "", options[OPT_rope_scaling].choices[kind]);
    return text;
}

void rules_rope(Check *k)
{
    Config *c = k->cfg;
    const char *kind = options[OPT_rope_scaling].choices[c->rope_scaling];
    Check plain;
    check_open(&plain, "");
    RULE(ON2(rope_scaling, position_embedding_type),
         c->rope_scaling != ROPE_SCALING_NONE && c->position_embedding_type != POSITION_EMBEDDING_TYPE_ROPE,
         "%s scales rotary angles, which only position_embedding_type rope has; use rope there, or none here",
         kind);
    for (int i = 0; i < ROPE_KEYS; i++) {
        const RopeKey *r = &rope_keys[i];
        const int on[] = {r->option, OPT_rope_scaling, -1};
        RULE(on, !(r->kinds >> c->rope_scaling & 1) && !config_same_text(c, plain.cfg, r->option),
             "rope_scaling %s does not read it; leave it out, or use %s", kind, kinds_text(r->kinds));
        RULE(on, (r->needed >> c->rope_scaling & 1) && option_absent(&options[r->option], c),
             "missing; rope_scaling %s needs it", kind);
    }
    RULE(ON3(rope_low_freq_factor, rope_high_freq_factor, rope_scaling),
         c->rope_scaling == ROPE_SCALING_LLAMA3 && c->rope_low_freq_factor >= c->rope_high_freq_factor,
         "%g is not below rope_high_freq_factor %g", c->rope_low_freq_factor, c->rope_high_freq_factor);
    RULE(ON3(rope_beta_slow, rope_beta_fast, rope_scaling),
         c->rope_scaling == ROPE_SCALING_YARN && c->rope_beta_slow > c->rope_beta_fast,
         "%g is above rope_beta_fast %g", c->rope_beta_slow, c->rope_beta_fast);
    RULE(ON3(rope_scaling, kv_channels, rotary_percent),
         c->rope_scaling == ROPE_SCALING_DYNAMIC && (double)c->kv_channels * c->rotary_percent < 4,
         "dynamic needs heads with at least 4 columns that turn; kv_channels %ld x rotary_percent %g has %ld",
         c->kv_channels, c->rotary_percent, (int64_t)((double)c->kv_channels * c->rotary_percent));
}

const char *config_rope_wrong(const Config *c)
{
    Check k;
    check_open(&k, "");
    *k.cfg = *c;
    rules_rope(&k);
    return k.n ? k.list[0].text : NULL;
}

void config_rope_plain(Config *c)
{
    Check k;
    check_open(&k, "");
    if (c->position_embedding_type != POSITION_EMBEDDING_TYPE_ROPE)
        c->rope_scaling = ROPE_SCALING_NONE;
    c->rope_attention_factor = config_rope_attention(c);
    for (int i = 0; i < ROPE_KEYS; i++)
        if (!(rope_keys[i].kinds >> c->rope_scaling & 1))
            option_copy(&options[rope_keys[i].option], c, k.cfg);
}
