/* train score -- a table of measured runs beside their predictions */
#include "commands.h"
#include "json_number.h"
#include "score.h"
#include <string.h>

/* Whether row i is the first of its set. */
static int first_of_set(const Score *s, int i)
{
    for (int k = 0; k < i; k++)
        if (!strcmp(s->row[k].set, s->row[i].set))
            return 0;
    return 1;
}

static json_t *mean_json(const Score *s, const char *set)
{
    double mean, most;
    int n = score_mean(s, set, &mean, &most);
    return json_pack("{s:i s:o s:o}", "rows", n, "average_percent", json_number(100 * mean),
                     "largest_percent", json_number(100 * most));
}

static json_t *as_json(const Score *s, const Machine *m)
{
    json_t *rows = json_array(), *sets = json_object();
    for (int i = 0; i < s->n; i++) {
        const ScoreRow *r = &s->row[i];
        json_t *set = json_text(r->set);
        json_array_append_new(
            rows, json_pack("{s:o s:O s:i s:o s:o s:o s:o s:I s:b}", "name", json_text(r->name), "set", set,
                            "world", r->world, "measured_s", json_number(r->measured), "predicted_s",
                            json_number(r->predicted), "error_percent", json_number(100 * score_error(r)),
                            "bubble", json_number(r->bubble), "memory", (json_int_t)r->memory, "fits",
                            r->fits));
        if (first_of_set(s, i))
            json_object_set_new(sets, json_string_value(set), mean_json(s, r->set));
        json_decref(set);
    }
    return json_pack("{s:s s:o s:o s:o}", "machine", m->name, "rows", rows, "sets", sets, "all",
                     mean_json(s, NULL));
}

static void print_mean(const Score *s, const char *set)
{
    double mean, most;
    int n = score_mean(s, set, &mean, &most);
    printf("%s%s%d rows: average %.2f %%, largest %.2f %%\n", set ? set : "", set ? ": " : "", n, 100 * mean,
           100 * most);
}

static void print(const Score *s, const Machine *m)
{
    int wide = 4;
    for (int i = 0; i < s->n; i++)
        wide = (int)strlen(s->row[i].name) > wide ? (int)strlen(s->row[i].name) : wide;
    printf("machine: %s\n%-*s %7s %11s %11s %8s %7s %8s\n", m->name, wide, "run", "ranks", "measured s",
           "predicted s", "error %", "bubble", "GB");
    for (int i = 0; i < s->n; i++) {
        const ScoreRow *r = &s->row[i];
        printf("%-*s %7d %11.4g %11.4g %+8.2f %6.1f%% %8.1f%s\n", wide, r->name, r->world, r->measured,
               r->predicted, 100 * score_error(r), 100 * r->bubble, (double)r->memory / 1e9,
               r->fits ? "" : " does not fit");
    }
    for (int i = 0; i < s->n; i++)
        if (*s->row[i].set && first_of_set(s, i))
            print_mean(s, s->row[i].set);
    print_mean(s, NULL);
}

int command_score(int argc, char **argv)
{
    Args a = cli_open("score", argc, argv);
    int json = args_switch(&a, "--json");
    const char *machine = args_value(&a, "--machine"), *path = cli_next(&a, "ROWS.csv");
    Score s;
    cli_end(&a);
    cli_needs(&a, machine, "--machine", "--machine NAME of configs/machines, or a file");
    const Machine *m = machine_load(machine);
    score_open(&s, path, m, a.n, a.v);
    if (json)
        json_print(stdout, as_json(&s, m), JSON_INDENT(2));
    else
        print(&s, m);
    score_close(&s);
    free(a.v);
    return EXIT_DONE;
}
