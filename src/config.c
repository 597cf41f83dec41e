/* Loading, writing, comparing and asking a configuration. */
#define _GNU_SOURCE
#include "config_table.h"

/* The defaults of the table; absent where it says null or required. */
static void check_open(Check *k, const char *path)
{
    *k = (Check){.path = path, .cfg = xcalloc(1, sizeof(Config))};
    k->cfg->path = path;
    for (int i = 0; i < OPTIONS; i++) {
        Value v = {0};
        k->set[i].arg = -1;
        option_clear(&options[i], k->cfg);
        if (!option_required(&options[i]))
            BUG_ON(!config_parse_value(k, 0, options[i].key, options[i].def, &v) ||
                   value_store(&options[i], &v, k->cfg));
    }
}

void config_check(Check *k, const char *path, int nargs, char **args, int world, ConfigUse use)
{
    check_open(k, path);
    config_parse_file(k, path);
    config_parse_args(k, nargs, args);
    if (!k->unread)
        config_resolve(k, world, use);
    memcpy(k->cfg->given, k->seen, sizeof k->seen);
}

Config *config_load(const char *path, int nargs, char **args, int world, ConfigUse use)
{
    Check k;
    config_check(&k, path, nargs, args, world, use);
    check_print(&k, stderr);
    int n = k.n + k.dropped;
    if (n)
        die(EXIT_CONFIG, "config", "%d problem%s in %s; change: what the list above names (`train help KEY`)",
            n, n == 1 ? "" : "s", path);
    return k.cfg;
}

void config_write(FILE *f, const Config *cfg)
{
    fprintf(f, "# %s\n", config_build_id());
    const char *section = "";
    for (int i = 0; i < OPTIONS; i++) {
        const Option *o = &options[i];
        if (strcmp(section, o->section))
            fprintf(f, "%s:\n", section = o->section);
        char *text = value_text(o, cfg);
        fprintf(f, "  %s: %s\n", o->key, text);
        free(text);
    }
}

Config *config_read_saved(const char *text, size_t size, const char **skipped)
{
    Check k;
    check_open(&k, "config.yaml");
    config_parse_text(&k, text, size);
    if (k.unread)
        return NULL;
    char *list = xstrdup("");
    for (int i = 0; i < k.n; i++) {
        char *longer = xasprintf("%s%s%s", list, i ? "; " : "", k.list[i].text);
        free(list);
        list = longer;
    }
    *skipped = list;
    memcpy(k.cfg->given, k.seen, sizeof k.seen);
    return k.cfg;
}

Change config_compare_resume(const Config *now, const Config *saved, const char **text)
{
    static const char *const words[] = {"free", "warn", "refuse"};
    Change worst = CHANGE_FREE;
    char *list = xstrdup("");
    for (int i = 0; i < OPTIONS; i++) {
        const Option *o = &options[i];
        char *a = value_text(o, saved), *b = value_text(o, now);
        if (o->change != CHANGE_FREE && saved->given[i] && strcmp(a, b)) {
            char *longer = xasprintf("%s%s: %s -> %s (%s)\n", list, o->key, a, b, words[o->change]);
            free(list);
            list = longer;
            worst = o->change > worst ? o->change : worst;
        }
        free(a);
        free(b);
    }
    *text = list;
    return worst;
}

uint64_t config_fingerprint(const Config *cfg)
{
    uint64_t h = HASH_SEED;
    for (int i = 0; i < OPTIONS; i++)
        if (options[i].change != CHANGE_FREE) {
            char *text = value_text(&options[i], cfg);
            h = hash64(options[i].key, strlen(options[i].key) + 1, h);
            h = hash64(text, strlen(text) + 1, h);
            free(text);
        }
    return h;
}

char *config_text(const Config *cfg, int option)
{
    return value_text(&options[option], cfg);
}

int64_t config_batch_at(const Config *cfg, int64_t samples)
{
    int i = cfg->batch_steps - 1;
    while (i && samples < cfg->batch_step[i].samples)
        i--;
    return cfg->batch_step[i].batch;
}

/* Runs whole steps, segment by segment, until `iterations` steps or the step that would pass `samples`. */
static void walk(const Config *cfg, int64_t *iterations, int64_t *samples)
{
    int64_t steps = 0, consumed = 0;
    for (int i = 0; i < cfg->batch_steps && steps < *iterations; i++) {
        int64_t batch = cfg->batch_step[i].batch;
        int64_t end = i + 1 < cfg->batch_steps ? cfg->batch_step[i + 1].samples : INT64_MAX;
        if (consumed >= end)
            continue;                                  /* one step of the last segment jumped over this one */
        int64_t n = (end - consumed - 1) / batch + 1;
        int64_t room = (*samples - consumed) / batch, left = *iterations - steps;
        int64_t run = n < room ? n : room;
        run = run < left ? run : left;
        steps += run;
        consumed += run * batch;
        if (run < n)
            break;
    }
    *iterations = steps;
    *samples = consumed;
}

int64_t config_samples_after(const Config *cfg, int64_t iterations)
{
    int64_t samples = INT64_MAX;
    walk(cfg, &iterations, &samples);
    return samples;
}

int64_t config_iterations(const Config *cfg)
{
    if (cfg->train_iters != CFG_ABSENT)
        return cfg->train_iters;
    int64_t iterations = INT64_MAX, samples = cfg->train_samples;
    BUG_ON(samples == CFG_ABSENT);
    walk(cfg, &iterations, &samples);
    return iterations;
}
