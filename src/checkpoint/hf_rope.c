/* hf_rope -- rotary angles in config.json: rope_theta, rope_parameters, rope_scaling */
#define _GNU_SOURCE
#include "hf_json.h"

/* The kind of rope_scaling that Hugging Face calls `type`, or -1. */
static int kind_named(const char *type)
{
    const char *const *kinds = options[OPT_rope_scaling].choices;
    for (int i = 0; kinds[i]; i++)
        if (!strcmp(type, i == ROPE_SCALING_NONE ? "default" : kinds[i]))
            return i;
    return -1;
}

/* Refuses a key that this build does not know: it may change the angles. */
static void refuse_others(const In *rope, const char *object)
{
    static const char *const more[] = {"rope_type", "type", "rope_theta", "partial_rotary_factor", "mscale",
                                       "mscale_all_dim", "finetuned"};
    void *at = json_object_iter((json_t *)rope->j);
    for (; at; at = json_object_iter_next((json_t *)rope->j, at)) {
        const char *key = json_object_iter_key(at);
        int known = json_is_null(json_object_iter_value(at));
        for (size_t i = 0; i < sizeof more / sizeof *more; i++)
            known |= !strcmp(key, more[i]);
        for (int i = 0; i < ROPE_KEYS; i++)
            known |= !strcmp(key, rope_keys[i].hf);
        if (!known)
            because(rope->why, "%s has %.40s", object, key);
    }
}

/* The attention factor by DeepSeek's keys mscale and mscale_all_dim; NAN: they are not both there. */
static double mscale_factor(const In *rope, double factor)
{
    double one = real(rope, "mscale", 0), all = real(rope, "mscale_all_dim", 0), grown = 0.1 * log(factor);
    return one > 0 && all > 0 ? (one * grown + 1) / (all * grown + 1) : NAN;
}

/* Returns the lines of rope_scaling and of the keys that its kind reads. For absent keys transformers takes
 * the model's own length, and as the factor of yarn how many times it is the original one. */
static char *read_scaling(const In *in, const In *rope, const char *object, int kind, int64_t positions)
{
    double value[ROPE_KEYS];
    int yarn = kind == ROPE_SCALING_YARN, llama3 = kind == ROPE_SCALING_LLAMA3;
    for (int i = 0; i < ROPE_KEYS; i++)
        value[i] = i == ROPE_TRUNCATE ? flag(rope, rope_keys[i].hf, 1) : real(rope, rope_keys[i].hf, NAN);
    value[ROPE_ORIGINAL] = (double)whole(rope, rope_keys[ROPE_ORIGINAL].hf, positions, 1);
    if (yarn || llama3)
        value[ROPE_ORIGINAL] =
            (double)whole(in, rope_keys[ROPE_ORIGINAL].hf, (int64_t)value[ROPE_ORIGINAL], 1);
    else
        value[ROPE_ORIGINAL] = (double)positions;
    if (yarn && isnan(value[ROPE_FACTOR]))
        value[ROPE_FACTOR] = (double)positions / value[ROPE_ORIGINAL];
    if (isnan(value[ROPE_ATTENTION]))
        value[ROPE_ATTENTION] = mscale_factor(rope, value[ROPE_FACTOR]);
    char *lines = xasprintf("  rope_scaling: %s\n", options[OPT_rope_scaling].choices[kind]);
    for (int i = 0; i < ROPE_KEYS; i++) {
        const Option *o = &options[rope_keys[i].option];
        if (isnan(value[i]) && (i == ROPE_FACTOR || (llama3 && (i == ROPE_LOW || i == ROPE_HIGH))))
            because(in->why, "%s.%s is missing", object, rope_keys[i].hf);
        if (isnan(value[i]) || !(rope_keys[i].kinds >> kind & 1))
            continue;
        char *before = lines;
        lines = o->type == TYPE_BOOL ? xasprintf("%s  %s: %s\n", before, o->key, value[i] ? "true" : "false")
                                     : xasprintf("%s  %s: %.17g\n", before, o->key, value[i]);
        free(before);
    }
    return lines;
}

HfRope hf_read_rope(const In *in, double base, int64_t positions)
{
    HfRope r = {.base = real(in, "rope_theta", base)};
    for (int old = 0; old < 2; old++) {        /* where both are there, transformers follows rope_scaling */
        const char *object = old ? "rope_scaling" : "rope_parameters";
        In rope = {get(in, object), in->why};
        if (!rope.j)
            continue;
        const char *type = text(&rope, "rope_type", text(&rope, "type", "default"));
        int kind = kind_named(type);
        if (!json_is_object(rope.j))
            because(in->why, "%s is not an object", object);
        if (kind < 0)
            because(in->why, "%s of type %.40s (this build knows default, linear, dynamic, yarn and llama3)",
                    object, type);
        else
            refuse_others(&rope, object);
        if (r.type && strcmp(r.type, type))
            because(in->why, "%s of type %.40s beside rope_parameters of type %.40s", object, type, r.type);
        if (real(&rope, "partial_rotary_factor", 1) != 1)
            because(in->why, "partial_rotary_factor %g", real(&rope, "partial_rotary_factor", 1));
        /* transformers 4 takes the one, transformers 5 the other */
        double theta = real(&rope, "rope_theta", real(in, "rope_theta", base));
        if (get(in, "rope_theta") && theta != real(in, "rope_theta", base))
            because(in->why, "rope_theta %.17g beside %s.rope_theta %.17g", real(in, "rope_theta", base),
                    object, theta);
        if (r.type && theta != r.base)
            because(in->why, "%s of rope_theta %.17g beside rope_parameters of rope_theta %.17g", object,
                    theta, r.base);
        free(r.scaling);
        r = (HfRope){theta, type,
                     kind > 0 ? read_scaling(in, &rope, object, kind, positions) : NULL};
    }
    return r;
}

void hf_write_rope(json_t *j, const Config *c)
{
    if (c->rope_scaling == ROPE_SCALING_NONE)
        return;
    int dynamic = c->rope_scaling == ROPE_SCALING_DYNAMIC;     /* its original length is the model's own */
    json_t *rope = json_pack("{s:s}", "rope_type", options[OPT_rope_scaling].choices[c->rope_scaling]);
    for (int i = 0; i < ROPE_KEYS; i++) {
        const Option *o = &options[rope_keys[i].option];
        const void *field = option_field(o, c);
        if (rope_keys[i].kinds >> c->rope_scaling & 1 && !option_absent(o, c) &&
            !(dynamic && i == ROPE_ORIGINAL))
            json_object_set_new(rope, rope_keys[i].hf,
                                o->type == TYPE_INT    ? json_integer(*(const int64_t *)field)
                                : o->type == TYPE_BOOL ? json_boolean(*(const int *)field)
                                                       : json_real(*(const double *)field));
    }
    json_object_update(json_object_get(j, "rope_parameters"), rope);
    json_object_set_new(j, "rope_scaling", rope);
    if (dynamic)
        json_object_set_new(j, "max_position_embeddings",
                            json_integer(c->rope_original_max_position_embeddings));
}
