/* config_rules -- how a rule between keys is written. Only config_*.c that hold rules include this.
 *
 * RULE(ON2(a, b), broken, "text", ...) adds a violation of key a if `broken` holds, at the place of the
 * first of the keys a and b that was set. The rule is skipped if a or b is unusable: the reason is
 * listed already. The text has the numbers and the nearest legal values. On an axis of size 1 all its
 * options are legal, so rules about them hold for more than one rank. A rule that says "this build" is
 * about something that is not implemented. */
#ifndef CONFIG_RULES_H
#define CONFIG_RULES_H
#include "config_table.h"

#define ON1(a)          (const int[]){OPT_##a, -1}
#define ON2(a, b)       (const int[]){OPT_##a, OPT_##b, -1}
#define ON3(a, b, c)    (const int[]){OPT_##a, OPT_##b, OPT_##c, -1}
#define ON4(a, b, c, d) (const int[]){OPT_##a, OPT_##b, OPT_##c, OPT_##d, -1}

#define RULE(on, broken, ...) \
    do { \
        if (check_usable(k, on) && (broken)) \
            check_report(k, on, __VA_ARGS__); \
    } while (0)

/* Gives an absent key a value that follows from the keys `on`; if one of these is unusable, so is the
 * key. */
#define DERIVE(key, on, value) \
    do { \
        if (!k->bad[OPT_##key] && option_absent(&options[OPT_##key], c)) { \
            if (check_usable(k, on)) \
                c->key = (value); \
            else \
                k->bad[OPT_##key] = 1; \
        } \
    } while (0)

#define ABSENT(key) option_absent(&options[OPT_##key], c)

/* Reads `split` as three shares. Returns 0 unless it is one to three numbers >= 0, the first above 0. */
int rules_shares_parse(const char *s, double share[3]);

/* config_parallel.c: rules about the grid of ranks. */
void rules_world(Check *k, int world);
/* tensor x pipeline x context: ranks of the smallest world that the configuration fits. */
int rules_smallest_world(const Config *c);
/* Rules about the pipeline; fills the layers of every virtual stage. */
void rules_pipeline(Check *k);

/* config_rope.c: rules about rope_scaling and its keys. */
void rules_rope(Check *k);
/* Sets the keys that the kind of rope_scaling does not read to their defaults, and an absent attention
 * factor to its number. */
void config_rope_plain(Config *c);

/* config_rules.c: numbers that FP8 multiplies at a time, and asks: what asks for whole pieces of them. */
int config_fp8_piece(const Config *c, const char **asks);

/* config_context.c: rules about the ranks that share a sequence. */
void rules_context(Check *k);

/* config_moe.c: rules about experts. */
void rules_moe(Check *k);
/* config_force.c: reads the loads of moe_router_force. */
void rules_force(Check *k);

/* config_pairs.c: rules about two settings that exclude or need each other. */
void rules_pairs(Check *k);
#endif
