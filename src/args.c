#include "args.h"
#include "base.h"
#include <stdlib.h>
#include <string.h>

Args args_open(const char *command, int argc, char **argv)
{
    Args a = {command, argc, xcalloc((size_t)argc + 1, sizeof *a.v)};
    memcpy(a.v, argv, (size_t)argc * sizeof *a.v);
    return a;
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
    int i = find(a, flag);
    if (i >= 0)
        drop(a, i, 1);
    return i >= 0;
}

const char *args_value(Args *a, const char *flag)
{
    int i = find(a, flag);
    if (i < 0)
        return NULL;
    if (i + 1 >= a->n)
        die(EXIT_CONFIG, "usage", "train %s: %s needs a value; change: see `train help %s`", a->command, flag, a->command);
    const char *value = a->v[i + 1];
    drop(a, i, 2);
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
        die(EXIT_CONFIG, "usage", "train %s: %s %s is not a number in [%g, %g]; change: give one", a->command, flag, text,
            low, high);
    return x;
}

const char *args_next(Args *a, const char *what)
{
    for (int i = 0; i < a->n; i++)
        if (a->v[i][0] != '-') {
            const char *value = a->v[i];
            drop(a, i, 1);
            return value;
        }
    die(EXIT_CONFIG, "usage", "train %s: %s is missing; change: see `train help %s`", a->command, what, a->command);
}

void args_end(const Args *a, int overrides)
{
    for (int i = 0; i < a->n; i++)
        if (a->v[i][0] == '-' || !overrides || !strchr(a->v[i], '='))
            die(EXIT_CONFIG, "usage", "train %s: unexpected argument `%s`; change: see `train help %s`", a->command, a->v[i],
                a->command);
}
