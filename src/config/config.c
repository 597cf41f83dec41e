/* config -- a configuration is loaded, written and saved */
#define _GNU_SOURCE
#include "config_table.h"
#include "job.h"
#include <fcntl.h>
#include <unistd.h>

/* The checkpoint that `load` names. */
typedef struct {
    char *dir;                         /* its folder; if it is not found, why */
    int found;                         /* bool */
    const char *others;                /* its keys of the model that are set otherwise here; "": none */
} Saved;

static void take_saved(Check *k, int alone, ConfigUse use, SavedConfig saved, Saved *s)
{
    const Config *c = k->cfg;
    const char *load = c->load, *skipped;
    if (load && !strcmp(load, "latest")) {
        load = c->save ? c->save : config_default_save(k->path);
        if (!(use & USE_STEPS))
            k->cfg->load = load;       /* who only reads has no run of its own, whose newest it would be */
    }
    char *text = load ? saved(load, &s->dir) : NULL;
    const Config *there = text ? config_read_saved(text, strlen(text), &skipped) : NULL;
    s->found = there != NULL;
    if (there) {
        s->others = k->n ? "" : config_other_model(k, there);     /* unreadable values come first */
        config_take(k, there, alone, use);
    }
    int missing = 0;
    for (int i = 0; i < OPTIONS; i++)
        missing |= option_required(&options[i]) && option_absent(&options[i], c) && !k->bad[i];
    if (load && !alone && !there && missing)
        check_add(k, k->set[OPT_load], "load: nothing there could say what the model leaves out: %s", s->dir);
    free(text);
}

static void check_over(Check *k, const char *path, int nargs, char **args, int world, ConfigUse use,
                       SavedConfig saved, Saved *s)
{
    check_open(k, path);
    if (path)
        config_parse_file(k, path);
    config_parse_args(k, nargs, args);
    if (!path)
        k->cfg->path = k->path = k->cfg->load ? k->cfg->load : "the command line";
    if (!k->unread && saved)
        take_saved(k, !path, use, saved, s);
    if (!k->unread)
        config_resolve(k, world, use);
    memcpy(k->cfg->given, k->seen, sizeof k->seen);
}

char **config_args_over(const char *path, int nargs, char **args, SavedConfig saved, int *n)
{
    Check k;
    Saved there = {0};
    char **line = keep_alloc((size_t)nargs + OPTIONS + 1, sizeof *line);
    *n = nargs;
    for (int i = 0; i < nargs; i++)
        line[i] = text_copy(args[i]);
    check_open(&k, path);
    config_parse_file(&k, path);
    config_parse_args(&k, nargs, args);
    Config before = *k.cfg;
    if (!k.unread)
        take_saved(&k, 0, USE_MODEL, saved, &there);
    for (int i = 0; i < OPTIONS; i++) {
        char *value = config_text(k.cfg, i);
        if (i != OPT_load && !config_same_text(&before, k.cfg, i))
            line[(*n)++] = (char *)textf("%s=%s", options[i].key, value);
        free(value);
    }
    free(there.dir);
    return line;
}

void config_check(Check *k, const char *path, int nargs, char **args, int world, ConfigUse use)
{
    check_over(k, path, nargs, args, world, use, NULL, NULL);
}

/* Seconds that another rank waits for the launcher to end it after rank 0 has ended. */
#define GRACE 2

/* Returns advice for a path that is no readable file. */
static const char *what_to_give(const char *path)
{
    const char *inside = textf("%s/config.yaml", path);
    return access(inside, R_OK) ? "give a YAML file that may be read, as configs/demo.yaml is"
                                : textf("give %s", inside);
}

Config *config_load(const char *path, int nargs, char **args, int world, ConfigUse use)
{
    return config_load_over(path, nargs, args, world, use, NULL);
}

Config *config_load_over(const char *path, int nargs, char **args, int world, ConfigUse use,
                         SavedConfig saved)
{
    Check k;
    Saved there = {.others = ""};
    int rank, launched = job_launched(&rank), alone = !path;
    check_over(&k, path, nargs, args, world ? world : launched, use, saved, &there);
    int n = k.n + k.dropped;
    if (!n) {
        free(there.dir);
        return k.cfg;
    }
    path = k.path;
    if (rank) {
        sleep(GRACE);
        check_sort(&k);
        die(EXIT_CONFIG, "config", "rank %d: %d problem%s in %s, and rank 0 has not ended the job; the "
            "first: %s; change: give every rank the same file, arguments and environment", rank, n,
            n == 1 ? "" : "s", path, k.list[0].text);
    }
    if (k.unopened)
        die(EXIT_CONFIG, "config", "%s: %s; change: %s", path, k.list[0].text, what_to_give(path));
    if (*there.others)                 /* rules between keys of two models say little */
        die(EXIT_CHECKPOINT, "checkpoint-model", "%s holds another model: %s; change: set these keys as they "
            "were, or load another checkpoint", there.dir, there.others);
    if (alone && k.cfg->load && !there.found)
        die(EXIT_CHECKPOINT, "checkpoint-missing", "no model without a configuration: %s; change: load=DIR, "
            "a whole checkpoint or a run directory", there.dir);
    check_print(&k, stderr);
    die(EXIT_CONFIG, "config", "%d problem%s in %s; change: what the list above names (`train help KEY`)", n,
        n == 1 ? "" : "s", path);
}

/* Returns the smallest world (`world` is 0), or whether the world is legal. */
static int try_world(const char *path, int nargs, char **args, int world, SavedConfig saved)
{
    void *mark = keep_mark();
    Saved there = {0};
    Check k;
    check_over(&k, path, nargs, args, world ? world : WORLD_SMALLEST, USE_MODEL, saved, &there);
    int found = world ? !(k.n + k.dropped) : k.cfg->world;
    free(there.dir);
    keep_release(mark);
    return found;
}

int config_largest_world(const char *path, int nargs, char **args, int most, SavedConfig saved)
{
    int unit = try_world(path, nargs, args, 0, saved), world = most - most % unit;
    while (world && !try_world(path, nargs, args, world, saved))
        world -= unit;
    return world;
}

/* Returns 1 for a key of the model, or of what it reads. */
static int describes_model(const Option *o, const Config *cfg)
{
    return !strcmp(o->section, "model") || !strcmp(o->section, "data") ||
           (!strcmp(o->section, "moe") && cfg->num_moe_experts != CFG_ABSENT);
}

static void write_options(FILE *f, const Config *cfg, int model)
{
    fprintf(f, "# %s\n", config_build_id());
    const char *section = "";
    for (int i = 0; i < OPTIONS; i++) {
        const Option *o = &options[i];
        if (model && !describes_model(o, cfg))
            continue;
        if (strcmp(section, o->section))
            fprintf(f, "%s:\n", section = o->section);
        fprintf(f, "  %s: ", o->key);
        value_print(f, o, cfg);
        fputc('\n', f);
    }
}

void config_write(FILE *f, const Config *cfg) { write_options(f, cfg, 0); }

void config_write_model(FILE *f, const Config *cfg) { write_options(f, cfg, 1); }

int config_save(const char *dir, const Config *cfg, void (*write)(FILE *f, const Config *cfg), char why[WHY])
{
    char *text = NULL, reason[WHY];
    size_t size = 0;
    FILE *f = xmemstream(&text, &size);
    write(f, cfg);
    fclose(f);
    int fd = file_open_dir(AT_FDCWD, dir, 0, reason), ok = fd >= 0;
    ok = (ok && file_replace(fd, "config.yaml", text, (int64_t)size, reason)) ||
         file_why(why, "%.200s: %.300s", dir, reason);
    if (fd >= 0)
        close(fd);
    free(text);
    return ok;
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
    FILE *f = xmemstream(&text, &size);
    value_print(f, &options[option], cfg);
    fclose(f);
    return text;
}
