/* config_check -- the list of violations: filled, sorted, printed */
#define _GNU_SOURCE
#include "config_table.h"

/* Sets all options to their defaults. A sweep does so for every layout, so numbers and words are read once.
 * Texts and lists lie in the memory of the configuration. */
static void set_defaults(Config *c)
{
    static Config once;
    static int read;
    if (!read)
        option_defaults(options, OPTIONS, &once);
    read = 1;
    for (int i = 0; i < OPTIONS; i++)
        if (options[i].type == TYPE_STR || options[i].type == TYPE_LIST)
            option_defaults(&options[i], 1, c);
        else
            option_copy(&options[i], c, &once);
}

void check_open(Check *k, const char *path)
{
    *k = (Check){.path = path, .cfg = keep_alloc(1, sizeof(Config))};
    k->cfg->path = path;
    for (int i = 0; i < OPTIONS; i++)
        k->set[i].arg = -1;
    set_defaults(k->cfg);
}

void check_add(Check *k, Place place, const char *fmt, ...)
{
    if (k->n == VIOLATIONS_MAX) {
        k->dropped++;
        return;
    }
    va_list ap;
    va_start(ap, fmt);
    k->list = keep_grow(k->list, sizeof *k->list * (size_t)(k->n + 1));
    k->list[k->n] = (Violation){place, k->n, textv(fmt, ap)};
    va_end(ap);
    k->n++;
}

/* Violations of the file come first, by line; then those of arguments, by index; then those of no
 * place. */
static int violation_order(const void *a, const void *b)
{
    const Violation *x = a, *y = b;
    int gx = x->place.line > 0   ? 0 : x->place.arg >= 0 ? 1 : 2,
        gy = y->place.line > 0   ? 0 : y->place.arg >= 0 ? 1 : 2;
    if (gx != gy)
        return gx - gy;
    if (x->place.line != y->place.line)
        return x->place.line - y->place.line;
    if (x->place.col != y->place.col)
        return x->place.col - y->place.col;
    if (x->place.arg != y->place.arg)
        return x->place.arg - y->place.arg;
    return x->order - y->order;
}

void check_sort(Check *k) { if (k->n) qsort(k->list, (size_t)k->n, sizeof *k->list, violation_order); }

void check_print(Check *k, FILE *f)
{
    check_sort(k);
    for (int i = 0; i < k->n; i++) {
        Place p = k->list[i].place;
        if (p.line > 0)
            fprintf(f, "%s:%d:%d: %s\n", k->path, p.line, p.col, k->list[i].text);
        else if (p.arg >= 0)
            fprintf(f, "command line: %s\n", k->list[i].text);
        else
            fprintf(f, "%s: %s\n", k->path, k->list[i].text);
    }
    if (k->dropped)
        fprintf(f, "%s: and %d more\n", k->path, k->dropped);
}

/* ---- for rules ---- */

int check_usable(const Check *k, const int *on)
{
    for (; *on >= 0; on++)
        if (k->bad[*on])
            return 0;
    return 1;
}

/* Returns the place of the first key that was set. If none was: the place of the first key's section, or
 * the top of the file. */
static Place blame(const Check *k, const int *on)
{
    for (const int *o = on; *o >= 0; o++)
        if (k->seen[*o])
            return k->set[*o];
    Place p = k->section[section_find(options[*on].section)];
    return p.line ? p : (Place){1, 1, -1};
}

void check_report(Check *k, const int *on, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    check_add(k, blame(k, on), "%s: %s", options[*on].key, textv(fmt, ap));
    va_end(ap);
}

/* Returns "4 or 6" for the two nearest legal values; 0: there is none on that side. */
static const char *either(int64_t below, int64_t above)
{
    return below && above && below != above ? textf("%ld or %ld", below, above)
                                            : textf("%ld", (below ? below : above));
}

const char *check_nearest_multiples(int64_t m, int64_t x) { return either(x / m * m, (x / m + 1) * m); }

const char *check_nearest_divisors(int64_t n, int64_t x)
{
    int64_t below = 0, above = 0;
    for (int64_t d = 1; d * d <= n; d++)
        for (int side = 0; side < 2 && n % d == 0; side++) {
            int64_t e = side ? n / d : d;
            if (e <= x && e > below)
                below = e;
            if (e >= x && (!above || e < above))
                above = e;
        }
    return either(below, above);
}
