#define _GNU_SOURCE
#include "args.h"
#include "base.h"
#include "config.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

Args args_open(const char *command, int argc, char **argv)
{
    Args a = {command, argc, xcalloc((size_t)argc + 1, sizeof *a.v)};
    memcpy(a.v, argv, (size_t)argc * sizeof *a.v);
    return a;
}

/* Letters that no shell takes for anything else. */
#define PLAIN "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+-=,:@%"

char *args_text(int argc, char **argv)
{
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    if (!f)
        die(EXIT_RESOURCE, "memory", "no memory for the command line; change: free memory on this machine");
    for (int i = 0; i < argc; i++) {
        int plain = *argv[i] && !argv[i][strspn(argv[i], PLAIN)];
        fputs(plain ? " " : " '", f);
        for (const char *c = argv[i]; *c; c++)
            fprintf(f, *c == '\'' ? "'\\''" : "%c", *c);
        fputs(plain ? "" : "'", f);
    }
    fclose(f);
    return text;
}

static void drop(Args *a, int i, int n)
{
    memmove(a->v + i, a->v + i + n, (size_t)(a->n - i - n + 1) * sizeof *a->v);
    a->n -= n;
}

static int find(const Args *a, const char *flag)
{
    for (int i = 0; i < a->n; i++)
        if (!strcmp(a->v[i], flag))
            return i;
    return -1;
}

int args_flag(Args *a, const char *flag)
{
    int i, found = 0;
    while ((i = find(a, flag)) >= 0) {
        drop(a, i, 1);
        found = 1;
    }
    return found;
}

const char *args_value(Args *a, const char *flag)
{
    const char *value = NULL;
    for (int i; (i = find(a, flag)) >= 0; drop(a, i, 2)) {
        if (i + 1 >= a->n)
            die(EXIT_CONFIG, "usage", "train %s: %s needs a value; change: see `train help %s`", a->command,
                flag, a->command);
        value = a->v[i + 1];
    }
    return value;
}

double args_number(Args *a, const char *flag, double absent, double low, double high)
{
    const char *text = args_value(a, flag);
    if (!text)
        return absent;
    char *end;
    double x = strtod(text, &end);
    if (end == text || *end || !(x >= low && x <= high))
        die(EXIT_CONFIG, "usage", "train %s: %s %s is not a number in [%g, %g]; change: give one", a->command,
            flag, text, low, high);
    return x;
}

static int is_flag(const char *v) { return v[0] == '-' && v[1]; }

/* What `text` adds to a list. */
static char *join(char *list, const char *gap, const char *text)
{
    return *list ? xasprintf("%s%s%s", list, gap, text) : xstrdup(text);
}

/* Flags that no command has: most are keys of the configuration, written as Megatron and others write theirs.
 */
static _Noreturn void refuse_flags(const Args *a)
{
    char *write = "", *advice = "";
    const char *first = NULL;
    for (int i = 0; i < a->n; i++) {
        const char *v = a->v[i], *next = i + 1 < a->n && !is_flag(a->v[i + 1]) ? a->v[i + 1] : NULL, *own;
        int known = 0;
        if (!is_flag(v))
            continue;
        first = first ? first : v;
        char *text = config_takes_keys(a->command)
                         ? config_argument(v, next && !strchr(next, '=') ? next : NULL, &known)
                         : NULL;
        if (known)
            write = join(write, " ", text);
        else if ((own = config_flag_suggest(a->command, v)))
            advice = join(advice, "; ", xasprintf("`%s`: did you mean `%s`?", v, own));
        else
            advice = join(advice, "; ", xasprintf("`%s`: %s", v, text ? text : "leave it out"));
    }
    if (*write)
        advice = xasprintf(*advice ? "write `%s`; %s" : "write `%s`", write, advice);
    die(EXIT_CONFIG, "usage", "train %s has no flag `%s`%s; change: %s (`train help %s`)", a->command, first,
        *write ? ", and keys of the configuration are given as key=value" : "", advice, a->command);
}

/* key=value, and no file of that name. */
static int is_setting(const char *v)
{
    int known = 0;
    if (strchr(v, '='))
        config_argument(v, NULL, &known);
    return known && access(v, F_OK);
}

const char *args_next(Args *a, const char *what)
{
    int settings = 0;
    for (int i = 0; i < a->n; i++) {
        if (is_flag(a->v[i]))
            refuse_flags(a);
        if (is_setting(a->v[i])) {
            settings++;
            continue;
        }
        const char *value = a->v[i];
        drop(a, i, 1);
        return value;
    }
    if (settings)
        die(EXIT_CONFIG, "usage",
            "train %s: %s is missing; change: CONFIG.yaml comes first, then key=value (`train help %s`)",
            a->command, what, a->command);
    die(EXIT_CONFIG, "usage", "train %s: %s is missing; change: see `train help %s`", a->command, what,
        a->command);
}

/* An argument that is neither a flag nor key=value: `lr 3`, `lr = 3` and `lr: 3` are meant as one. */
static _Noreturn void refuse_word(const Args *a, int i)
{
    const char *v = a->v[i], *next = i + 1 < a->n ? a->v[i + 1] : NULL;
    int known = 0;
    if (next && !strcmp(next, "="))
        next = i + 2 < a->n ? a->v[i + 2] : NULL;
    char *text = config_argument(v, next, &known);
    if (known)
        die(EXIT_CONFIG, "usage",
            "train %s: `%s` has no `=`; change: write %s, without blanks around the `=`", a->command, v,
            text);
    if (!access(v, F_OK) && access(xasprintf("%s/.", v), F_OK))
        die(EXIT_CONFIG, "usage",
            "train %s: `%s` is one file too many; change: one configuration, then key=value", a->command, v);
    die(EXIT_CONFIG, "usage",
        "train %s: `%s` is not key=value; change: write key=value (a checkpoint or run directory: load=%s); "
        "quotes hold a value with blanks together",
        a->command, v, v);
}

const char *args_config(Args *a)
{
    int file = 0, loads = 0;
    for (int i = 0; i < a->n; i++) {
        file |= !is_flag(a->v[i]) && !is_setting(a->v[i]);
        loads |= !strncmp(a->v[i], "load=", 5);
    }
    return file || !loads ? args_next(a, "CONFIG, or load=DIR,") : NULL;
}

void args_end(const Args *a, int overrides)
{
    for (int i = 0; i < a->n; i++)
        if (is_flag(a->v[i]))
            refuse_flags(a);
    for (int i = 0; i < a->n; i++)
        if (overrides && !strchr(a->v[i], '='))
            refuse_word(a, i);
        else if (!overrides)
            die(EXIT_CONFIG, "usage", "train %s: `%s` is one argument too many; change: see `train help %s`",
                a->command, a->v[i], a->command);
}
