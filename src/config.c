/* Loading, writing, comparing and asking a configuration. */
#define _GNU_SOURCE
#include "config_table.h"
#include "grid.h"
#include <unistd.h>

/* The defaults of the table; absent where it says null or required. */
void check_open(Check *k, const char *path)
{
    *k = (Check){.path = path, .cfg = keep_alloc(1, sizeof(Config))};
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

/* Seconds that a rank gives the launcher to end it after rank 0 has ended. */
#define GRACE 2

/* What CONFIG should have been, when it is no file that can be read. */
static const char *what_to_give(const char *path)
{
    const char *inside = textf("%s/config.yaml", path);
    return access(inside, R_OK) ? "give a YAML file that may be read, as configs/demo.yaml is" : textf("give %s", inside);
}

Config *config_load(const char *path, int nargs, char **args, int world, ConfigUse use)
{
    Check k;
    int rank, launched = grid_launched(&rank);
    config_check(&k, path, nargs, args, world ? world : launched, use);
    int n = k.n + k.dropped;
    if (!n)
        return k.cfg;
    if (rank) {
        sleep(GRACE);
        check_sort(&k);
        die(EXIT_CONFIG, "config", "rank %d: %d problem%s in %s, and rank 0 has not ended the job; the first: %s; "
            "change: give every rank the same file, arguments and environment", rank, n, n == 1 ? "" : "s", path,
            k.list[0].text);
    }
    if (k.unopened)
        die(EXIT_CONFIG, "config", "%s: %s; change: %s", path, k.list[0].text, what_to_give(path));
    check_print(&k, stderr);
    die(EXIT_CONFIG, "config", "%d problem%s in %s; change: what the list above names (`train help KEY`)", n,
        n == 1 ? "" : "s", path);
}

void config_write(FILE *f, const Config *cfg)
{
    fprintf(f, "# %s\n", config_build_id());
    const char *section = "";
    for (int i = 0; i < OPTIONS; i++) {
        const Option *o = &options[i];
        if (strcmp(section, o->section))
            fprintf(f, "%s:\n", section = o->section);
        fprintf(f, "  %s: ", o->key);
        value_print(f, o, cfg);
        fputc('\n', f);
    }
}

Config *config_read_saved(const char *text, size_t size, const char **skipped)
{
    Check k;
    check_open(&k, "config.yaml");
    config_parse_text(&k, text, size);
    if (k.unread)
        return NULL;
    char *list = text_copy("");
    for (int i = 0; i < k.n; i++)
        list = textf("%s%s%s", list, i ? "; " : "", k.list[i].text);
    *skipped = list;
    memcpy(k.cfg->given, k.seen, sizeof k.seen);
    return k.cfg;
}

char *config_text(const Config *cfg, int option)
{
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    if (!f)
        die(EXIT_RESOURCE, "memory", "no memory for a setting's text; change: free memory on this machine");
    value_print(f, &options[option], cfg);
    fclose(f);
    return text;
}
