/* args -- flags taken by name; arguments quoted for a shell */
#define _GNU_SOURCE
#include "args.h"
#include "base.h"
#include <ctype.h>
#include <stdio.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Characters that need no quotes in a shell. */
#define PLAIN "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+-=,:@%"

char *args_text(int argc, char **argv)
{
    char *text = NULL;
    size_t size;
    FILE *f = xmemstream(&text, &size);
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

char *args_name(const Flag *flag, char name[FLAG_NAME])
{
    const char *text = flag->text + strspn(flag->text, "[");
    snprintf(name, FLAG_NAME, "%.*s", (int)strcspn(text, " ]"), text);
    return name;
}

void args_drop(Args *a, int i, int n)
{
    memmove(a->v + i, a->v + i + n, (size_t)(a->n - i - n + 1) * sizeof *a->v);
    a->n -= n;
}

/* Returns the index of the flag among the arguments; -1: absent. */
static int find(const Args *a, const char *name)
{
    for (int i = 0; i < a->n; i++)
        if (!strcmp(a->v[i], name))
            return i;
    return -1;
}

/* Whether an argument is a flag: one of the table, or what looks like a misspelled one. */
static int is_flag(const Args *a, const char *text)
{
    char own[FLAG_NAME];
    int found = !strncmp(text, "--", 2) && isalpha((unsigned char)text[2]) && !strchr(text, ' ');
    for (int i = 0; i < a->flags; i++)
        found |= !strcmp(text, args_name(&a->flag[i], own));
    return found;
}

/* Dies if what is behind the flag is no value. text: NULL: nothing is there. */
static void check_value(const Args *a, const Flag *f, const char *text)
{
    char own[FLAG_NAME];
    args_name(f, own);
    if (!text)
        die(EXIT_CONFIG, "usage", "train %s: %s needs a value; change: see `train help %s`", a->command, own,
            a->command);
    if (is_flag(a, text))
        die(EXIT_CONFIG, "usage", "train %s: %s needs a value, and %s is a flag; change: see `train help %s`",
            a->command, own, text, a->command);
    if (!*text && !f->empty)
        die(EXIT_CONFIG, "usage", "train %s: %s needs a value, and this one is empty; change: give one",
            a->command, own);
}

void args_check(const Args *a)
{
    char own[FLAG_NAME];
    for (int i = 0; i < a->n; i++) {
        int f = 0;
        if (!*a->v[i])
            die(EXIT_CONFIG, "usage", "train %s: an argument is empty; change: leave it out, or set the "
                "variable that it comes from", a->command);
        while (f < a->flags &&
               (a->flag[f].kind == FLAG_SWITCH || strcmp(a->v[i], args_name(&a->flag[f], own))))
            f++;
        if (f < a->flags)
            check_value(a, &a->flag[f], a->v[++i]);
    }
}

/* Returns the flag's row of the command's table. A flag without a row is a BUG: help would not name
 * it. */
static const Flag *row(const Args *a, const char *name)
{
    char own[FLAG_NAME];
    int i = 0;
    while (i < a->flags && strcmp(name, args_name(&a->flag[i], own)))
        i++;
    BUG_ON(i == a->flags);
    return &a->flag[i];
}

int args_switch(Args *a, const char *name)
{
    int i, found = 0;
    BUG_ON(row(a, name)->kind != FLAG_SWITCH);
    while ((i = find(a, name)) >= 0) {
        args_drop(a, i, 1);
        found = 1;
    }
    return found;
}

const char *args_value(Args *a, const char *name)
{
    const char *value = NULL;
    BUG_ON(row(a, name)->kind == FLAG_SWITCH);
    for (int i; (i = find(a, name)) >= 0; args_drop(a, i, 2)) {
        BUG_ON(i + 1 >= a->n);         /* args_check has looked */
        value = a->v[i + 1];
    }
    return value;
}

double args_number(Args *a, const char *name)
{
    const Flag *f = row(a, name);
    const char *text = args_value(a, name);
    BUG_ON(f->kind != FLAG_NUMBER && f->kind != FLAG_WHOLE);
    if (!text)
        return f->absent;
    char *end;
    double x = strtod(text, &end);
    int whole = f->kind == FLAG_WHOLE;
    if (end == text || *end || !(x >= f->low && x <= f->high) || (whole && x != floor(x)))
        die(EXIT_CONFIG, "usage", "train %s: %s %s is not a %snumber in [%g, %g]; change: give one",
            a->command, name, text, whole ? "whole " : "", f->low, f->high);
    return x;
}
