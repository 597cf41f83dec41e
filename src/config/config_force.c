/* config_force -- moe_router_force: shares of the experts in a routing that replaces the router's choice */
#define _GNU_SOURCE
#include "config_rules.h"
#include "file.h"
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES_MOST = 256 << 20 };       /* of a file of loads */

/* Makes loads [E] of experts cumulative, the last one 1. Returns how many loads are above 0. */
static int cumulate(double *load, int64_t E)
{
    double sum = 0, total = 0;
    int positive = 0;
    for (int64_t e = 0; e < E; e++) {
        positive += load[e] > 0;
        total += load[e];
    }
    for (int64_t e = 0; e < E; e++)
        load[e] = (sum += load[e]) / total;
    return positive;
}

/* Reads the numbers of a line of loads into load [E]. Returns how many there are, E + 1 for more than E, or
 * -1 if one is not a number from 0 to 1e9. */
static int64_t read_loads(const char *line, double *load, int64_t E)
{
    int64_t n = 0;
    for (char *end; line += strspn(line, " \t\r,"), *line; line = end) {
        double x = strtod(line, &end);
        if (end == line || !(x >= 0 && x <= 1e9))
            return -1;
        if (n < E)
            load[n] = x;
        if (n++ == E)
            break;
    }
    return n;
}

/* Reads one line of a file of loads. Returns 1, or 0 after a report. */
static int read_line(Check *k, int line, const char *text, double *load)
{
    Config *c = k->cfg;
    const char *file = c->moe_router_force_file;
    int64_t n = read_loads(text, load, c->num_moe_experts);
    const int *on = ON1(moe_router_force_file);
    if (n < 0)
        check_report(k, on, "%s:%d: a load is a number from 0 to 1e9; give %ld of them", file, line,
                     c->num_moe_experts);
    else if (n != c->num_moe_experts)
        check_report(k, on, "%s:%d: %s loads, but num_moe_experts is %ld; give a load for each expert", file,
                     line, n > c->num_moe_experts ? "more" : textf("%ld", n), c->num_moe_experts);
    else if (cumulate(load, n) < c->moe_router_topk)
        check_report(k, on, "%s:%d: fewer loads above 0 than moe_router_topk %ld; give %ld or more", file,
                     line, c->moe_router_topk, c->moe_router_topk);
    else
        return 1;
    return 0;
}

/* Reads moe_router_force_file: a line for all layers, or one for each. */
static void read_file(Check *k)
{
    Config *c = k->cfg;
    char why[WHY];
    int64_t most = c->num_layers, E = c->num_moe_experts, n = 0;
    int number = 0, fine = 1;
    char *text = file_read_lines(c->moe_router_force_file, BYTES_MOST, why), *rest = text;
    if (!text)
        check_report(k, ON1(moe_router_force_file), "%s; give a file of loads", why);
    double *load = NULL;
    for (char *line; fine && rest && n <= most && (line = strsep(&rest, "\n"));) {
        number++;
        line[strcspn(line, "#")] = '\0';
        if (!line[strspn(line, " \t\r")])
            continue;
        load = keep_grow(load, (size_t)((n + 1) * E) * sizeof *load);
        fine = read_line(k, number, line, load + E * n++);
    }
    if (text && fine && n != 1 && n != most)
        check_report(k, ON1(moe_router_force_file), "%s has %s%ld lines of loads; give one for all layers, "
                     "or one for each of num_layers %ld", c->moe_router_force_file,
                     n > most ? "more than " : "",
                     n > most ? most : n, most);
    k->bad[OPT_moe_router_force_file] = !text || !fine || (n != 1 && n != most);
    c->force_share = load;
    c->force_lines = (int)n;
    free(text);
}

void rules_force(Check *k)
{
    Config *c = k->cfg;
    int by_file = c->moe_router_force == MOE_ROUTER_FORCE_FILE;
    RULE(ON2(moe_router_force_file, moe_router_force), by_file == ABSENT(moe_router_force_file),
         "the file goes with moe_router_force file, and only with it");
    if (!check_usable(k, ON4(moe_router_force, moe_router_force_file, num_moe_experts, moe_router_topk)) ||
        !check_usable(k, ON1(num_layers)))
        return;
    if (by_file && !ABSENT(moe_router_force_file))
        read_file(k);
    if (c->moe_router_force == MOE_ROUTER_FORCE_ZIPF) {
        double *load = keep_alloc((size_t)c->num_moe_experts, sizeof *load);
        for (int64_t e = 0; e < c->num_moe_experts; e++)
            load[e] = 1 / (double)(e + 1);
        cumulate(load, c->num_moe_experts);
        c->force_share = load;
        c->force_lines = 1;
    }
}
