/* hf_json -- values of Hugging Face's config.json, and the list of what is wrong with them */
#ifndef HF_JSON_H
#define HF_JSON_H
#include "config_table.h"
#include "huggingface.h"
#include <inttypes.h>

/* Appends a reason to why, behind "; ". */
__attribute__((format(printf, 2, 3))) static inline void because(char why[WHY], const char *fmt, ...)
{
    size_t used = strlen(why);
    va_list ap;
    va_start(ap, fmt);
    if (used && used + 2 < WHY) {
        memcpy(why + used, "; ", 3);
        used += 2;
    }
    vsnprintf(why + used, WHY - used, fmt, ap);
    va_end(ap);
}

/* An object of config.json; why: the reasons that it cannot be read. */
typedef struct { const json_t *j; char *why; } In;

static inline const json_t *get(const In *in, const char *key)
{
    const json_t *v = json_object_get(in->j, key);
    return json_is_null(v) ? NULL : v;
}

/* A whole number of at least `low`. absent: the value of a missing key; < 0: the key must be there. */
static inline int64_t whole(const In *in, const char *key, int64_t absent, int64_t low)
{
    const json_t *v = get(in, key);
    if (!v && absent < 0)
        because(in->why, "%s is missing", key);
    else if (v && (!json_is_integer(v) || json_integer_value(v) < low || json_integer_value(v) > INT32_MAX))
        because(in->why, "%s is not a whole number of at least %" PRId64, key, low);
    else
        return v ? json_integer_value(v) : absent;
    return 1;
}

static inline double real(const In *in, const char *key, double absent)
{
    const json_t *v = get(in, key);
    if (v && (!json_is_number(v) || !(json_number_value(v) >= 0)))
        because(in->why, "%s is not a number >= 0", key);
    return v ? json_number_value(v) : absent;
}

static inline int flag(const In *in, const char *key, int absent)
{
    const json_t *v = get(in, key);
    if (v && !json_is_boolean(v))
        because(in->why, "%s is not true or false", key);
    return v ? json_is_true(v) : absent;
}

static inline const char *text(const In *in, const char *key, const char *absent)
{
    const json_t *v = get(in, key);
    if (v && !json_is_string(v))
        because(in->why, "%s is not a text", key);
    return json_is_string(v) ? json_string_value(v) : absent;
}

/* hf_rope.c: rotary angles as config.json gives them. scaling: YAML lines of rope_scaling and its keys, on
 * the heap; NULL: none. */
typedef struct { double base; const char *type; char *scaling; } HfRope;
/* Reads rope_theta, rope_parameters and rope_scaling of a model with so many positions. base: of an absent
 * rope_theta. Refuses the types that this build lacks. */
HfRope hf_read_rope(const In *in, double base, int64_t positions);
/* Completes rope_parameters of config.json (transformers 5) and writes rope_scaling (4). */
void hf_write_rope(json_t *j, const Config *c);

/* hf_experts.c. Adds to why what the family's layers cannot express of the model's: experts in a dense
 * family and none in the others, too. */
void hf_experts_fit(const HfFamily *f, const Config *c, char why[WHY]);
/* Reads the settings of experts: YAML lines of the section moe, on the heap, none for a dense family. */
char *hf_read_experts(const In *in, const HfFamily *f, int64_t layers);
void hf_write_experts(json_t *j, const Config *c, const HfFamily *f);
extern const char *const hf_mixtral_names[PARAM_KINDS], *const hf_dots_names[PARAM_KINDS];
#endif
