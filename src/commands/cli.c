/* cli -- the command line of a command: flags, words, key=value, and messages about mistakes */
#define _GNU_SOURCE
#include "commands.h"
#include "config_table.h"
#include "file.h"
#include "result_file.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

Args cli_open(const char *command, int argc, char **argv)
{
    const Command *c = commands_find(command);
    Args a = {command, c->flag, c->flags, argc, xcalloc((size_t)argc + 1, sizeof *a.v)};
    memcpy(a.v, argv, (size_t)argc * sizeof *a.v);
    args_check(&a);
    return a;
}

static int is_flag(const char *v) { return v[0] == '-' && v[1]; }

/* Returns the list with `text` added to it. */
static char *join(char *list, const char *gap, const char *text)
{
    return *list ? xasprintf("%s%s%s", list, gap, text) : xstrdup(text);
}

/* Finds the command's flag nearest to a misspelled one. Returns its name, in `name`; NULL: none is near. */
static const char *suggest_flag(const Command *c, const char *flag, char name[FLAG_NAME])
{
    for (int i = 0; i < c->flags; i++) {
        const char *own[] = {args_name(&c->flag[i], name), NULL};
        if (name[1] == '-' && choice_suggest(flag, own) == 0)
            return name;
    }
    return NULL;
}

/* Dies of the flags that are left. Most of them are keys of the configuration, written as flags as
 * Megatron has them: the message gives key=value. */
static _Noreturn void refuse_flags(const Args *a)
{
    char *write = "", *advice = "";
    const char *first = NULL;
    const Command *c = commands_find(a->command);
    for (int i = 0; i < a->n; i++) {
        const char *v = a->v[i], *next = i + 1 < a->n && !is_flag(a->v[i + 1]) ? a->v[i + 1] : NULL;
        char name[FLAG_NAME];
        int known = 0;
        if (!is_flag(v))
            continue;
        first = first ? first : v;
        char *text = c->keys ? config_argument(v, next && !strchr(next, '=') ? next : NULL, &known) : NULL;
        if (known)
            write = join(write, " ", text);
        else if (suggest_flag(c, v, name))
            advice = join(advice, "; ", xasprintf("`%s`: did you mean `%s`?", v, name));
        else
            advice = join(advice, "; ", xasprintf("`%s`: %s", v, text ? text : "leave it out"));
    }
    if (*write)
        advice = xasprintf(*advice ? "write `%s`; %s" : "write `%s`", write, advice);
    die(EXIT_CONFIG, "usage", "train %s has no flag `%s`%s; change: %s (`train help %s`)", a->command, first,
        *write ? ", and keys of the configuration are given as key=value" : "", advice, a->command);
}

/* Returns 1 if v is key=value and no file has that name. */
static int is_setting(const char *v)
{
    int known = 0;
    if (strchr(v, '='))
        config_argument(v, NULL, &known);
    return known && access(v, F_OK);
}

const char *cli_next(Args *a, const char *what)
{
    const char *setting = NULL;
    for (int i = 0; i < a->n; i++) {
        if (is_flag(a->v[i]))
            refuse_flags(a);
        if (is_setting(a->v[i])) {
            setting = setting ? setting : a->v[i];
            continue;
        }
        const char *value = a->v[i];
        args_drop(a, i, 1);
        return value;
    }
    if (setting && commands_find(a->command)->keys)
        die(EXIT_CONFIG, "usage", "train %s: %s is missing; change: %s comes first, then key=value "
            "(`train help %s`)", a->command, what, strncmp(what, "CONFIG", 6) ? what : "CONFIG.yaml",
            a->command);
    if (setting && strchr(setting, '=')[1])
        die(EXIT_CONFIG, "usage", "train %s: %s is missing; change: write %s alone instead of %s "
            "(`train help %s`)", a->command, what, strchr(setting, '=') + 1, setting, a->command);
    die(EXIT_CONFIG, "usage", "train %s: %s is missing; change: see `train help %s`", a->command, what,
        a->command);
}

/* Dies of argument i, which is neither a flag nor key=value. `lr 3`, `lr = 3` and `lr: 3` are taken for
 * lr=3. */
static _Noreturn void refuse_word(const Args *a, int i)
{
    const char *v = a->v[i], *next = i + 1 < a->n ? a->v[i + 1] : NULL;
    int known = 0;
    if (next && !strcmp(next, "="))
        next = i + 2 < a->n ? a->v[i + 2] : NULL;
    char *text = config_argument(v, next, &known);
    if (known)
        die(EXIT_CONFIG, "usage", "train %s: `%s` has no `=`; change: write %s, without blanks around the "
            "`=`", a->command, v, text);
    if (!access(v, F_OK) && access(xasprintf("%s/.", v), F_OK))
        die(EXIT_CONFIG, "usage",
            "train %s: `%s` is one file too many; change: one configuration, then key=value", a->command, v);
    die(EXIT_CONFIG, "usage", "train %s: `%s` is not key=value; change: write key=value (a checkpoint or run "
        "directory: load=%s); quotes hold a value with blanks together", a->command, v, v);
}

const char *cli_config(Args *a)
{
    int file = 0, loads = 0;
    for (int i = 0; i < a->n; i++) {
        file |= !is_flag(a->v[i]) && !is_setting(a->v[i]);
        loads |= !strncmp(a->v[i], "load=", 5);
    }
    return file || !loads ? cli_next(a, "CONFIG, or load=DIR,") : NULL;
}

void cli_may_write(const char *flag, const char *path)
{
    static const char *named[8][2];            /* flag, path */
    static int names;
    if (!path)
        return;
    for (int i = 0; i < names; i++)
        if (!strcmp(named[i][1], path) && strncmp(path, "/dev/", 5))
            die(EXIT_CONFIG, "usage", "%s and %s would both write %s; change: a file for each", named[i][0],
                flag, path);
    BUG_ON(names == 8);
    named[names][0] = flag, named[names++][1] = path;
    char *folder = file_parent(path), *within = xasprintf("%s/.", path), *tmp = xasprintf("%s.tmp", path);
    int is_folder = !access(within, F_OK), there = !access(path, F_OK), aside = result_renamed(path);
    int long_name = aside && access(tmp, F_OK) && errno == ENAMETOOLONG;
    errno = is_folder ? EISDIR : long_name ? ENAMETOOLONG : 0;
    if (is_folder || long_name || (there && access(path, W_OK)) ||
        ((aside || !there) && access(folder, W_OK)))
        die(EXIT_RESOURCE, "write", "cannot write %s: %s; change: %s with a file that you may write", path,
            strerror(errno), flag);
    free(folder);
    free(within);
    free(tmp);
}

void cli_run_has(const char *command, const char *run, const char *name)
{
    char *path = xasprintf("%s/%s", run, name);
    int there = !access(path, R_OK), absent = errno == ENOENT || errno == ENOTDIR;
    if (!there && absent)
        die(EXIT_CONFIG, "usage", "train %s: %s is no run directory: it has no %s; change: give the "
            "directory that `save` names, or runs/NAME", command, run, name);
    if (!there)
        die(EXIT_RESOURCE, "read", "cannot read %s: %s; change: let this user read it", path,
            strerror(errno));
    free(path);
}

void cli_needs(const Args *a, const char *value, const char *flag, const char *change)
{
    if (!value)
        die(EXIT_CONFIG, "usage", "train %s: %s is missing; change: %s", a->command, flag, change);
}

void cli_end(const Args *a)
{
    int keys = commands_find(a->command)->keys;
    for (int i = 0; i < a->n; i++)
        if (is_flag(a->v[i]))
            refuse_flags(a);
    for (int i = 0; i < a->n; i++)
        if (keys && !strchr(a->v[i], '='))
            refuse_word(a, i);
        else if (!keys)
            die(EXIT_CONFIG, "usage", "train %s: `%s` is one argument too many; change: see `train help %s`",
                a->command, a->v[i], a->command);
}
