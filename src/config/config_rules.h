/* config_rules -- inside the rules: how one is written. Only config_rules.c, config_parallel.c and
 * config_pairs.c include this.
 *
 * RULE(ON2(a, b), broken, "text", ...) reads: unless a or b is unusable for a reason already listed, if
 * `broken` holds, report it under a, at the place where the first of them was set. The text has the numbers
 * and the nearest legal values. On an axis of size 1 its options are legal and change nothing: rules about
 * them ask for more than one rank. A rule that says "this build" is about something that is not there yet. */
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

/* Fills an absent key from the keys `on`; unusable ones make it unusable. */
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

/* `split` into three shares. 0 if it is not one to three non-negative numbers with a first above 0. */
int shares_parse(const char *s, double share[3]);

/* config_parallel.c: the grid; the pipeline, with the layers of every virtual stage. */
void rules_world(Check *k, int world);
/* tensor x pipeline x context: the smallest world that a configuration fits. */
int smallest_world(const Config *c);
void rules_pipeline(Check *k);

/* config_pairs.c: settings that do not go together. */
void rules_pairs(Check *k);
#endif
