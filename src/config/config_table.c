/* config_table -- the option table as data; memory of the configuration; names found and guessed */
#define _GNU_SOURCE
#include "config_table.h"
#include <ctype.h>

#define CHOICE(constant, text) text,
#define SECTION(name, help)
#define OPTION(section, key, type, def, legal, change, help) \
    {#section, #key, TYPE_##type, def, legal, CHANGE_##change, help, NULL, offsetof(Config, key)},
#define ENUM(section, key, def, change, help, choices)              \
    {#section, #key, TYPE_ENUM, def, "", CHANGE_##change, help, (const char *const[]){choices NULL}, \
     offsetof(Config, key)},
const Option options[OPTIONS] = {
#include "config.def"
};
#undef SECTION
#undef OPTION
#undef ENUM

#define OPTION(section, key, type, def, legal, change, help)
#define ENUM(section, key, def, change, help, choices)
#define SECTION(name, help) {#name, help},
const Section sections[] = {
#include "config.def"
};
const int section_count = sizeof sections / sizeof *sections;

#define NAME_MAX_LEN 64        /* characters: a longer name is not taken for a misspelled key */

typedef struct Block { struct Block *next, *last; } Block;
static Block kept = {&kept, &kept};        /* a ring, so that leak checkers find every block in use */

void *keep_grow(void *p, size_t bytes)
{
    Block *b = p ? (Block *)p - 1 : NULL;
    if (b) {
        b->last->next = b->next;
        b->next->last = b->last;
    }
    b = xrealloc(b, sizeof *b + bytes);
    *b = (Block){&kept, kept.last};
    kept.last->next = b;
    kept.last = b;
    return b + 1;
}

void *keep_alloc(size_t n, size_t size) { return memset(keep_grow(NULL, n * size), 0, n * size); }

char *textv(const char *fmt, va_list ap)
{
    va_list again;
    va_copy(again, ap);
    size_t n = (size_t)vsnprintf(NULL, 0, fmt, again) + 1;
    va_end(again);
    char *s = keep_alloc(n, 1);
    vsnprintf(s, n, fmt, ap);
    return s;
}

char *textf(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char *s = textv(fmt, ap);
    va_end(ap);
    return s;
}

char *text_copy(const char *s) { return textf("%s", s); }

void *keep_mark(void) { return kept.last; }

void keep_release(void *mark)
{
    Block *end = mark;
    for (Block *b = end->next, *next; b != &kept; b = next) {
        next = b->next;
        free(b);
    }
    end->next = &kept;
    kept.last = end;
}

void config_forget(void) { keep_release(&kept); }

int option_find_in(const Option *row, int n, const char *key)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(row[i].key, key))
            return i;
    return -1;
}

int option_find(const char *key) { return option_find_in(options, OPTIONS, key); }

int section_find(const char *name)
{
    for (int i = 0; i < section_count; i++)
        if (!strcmp(sections[i].name, name))
            return i;
    return -1;
}

int option_absent(const Option *o, const void *base)
{
    const void *p = option_field(o, base);
    switch (o->type) {
    case TYPE_INT:   return *(const int64_t *)p == CFG_ABSENT;
    case TYPE_FLOAT: return isnan(*(const double *)p);
    case TYPE_STR:   return !*(const char *const *)p;
    case TYPE_LIST:  return !((const List *)p)->n;
    case TYPE_ENUM:  return *(const int *)p < 0;
    case TYPE_BOOL:  return 0;
    }
    return 0;
}

void option_clear(const Option *o, void *base)
{
    void *p = option_field(o, base);
    switch (o->type) {
    case TYPE_INT:   *(int64_t *)p = CFG_ABSENT; break;
    case TYPE_FLOAT: *(double *)p = NAN; break;
    case TYPE_STR:   *(const char **)p = NULL; break;
    case TYPE_LIST:  *(List *)p = (List){0}; break;
    case TYPE_ENUM:  *(int *)p = -1; break;
    case TYPE_BOOL:  *(int *)p = 0; break;
    }
}

void option_copy(const Option *o, void *to, const void *from)
{
    static const size_t size[] = {
        [TYPE_INT] = sizeof(int64_t), [TYPE_FLOAT] = sizeof(double), [TYPE_BOOL] = sizeof(int),
        [TYPE_STR] = sizeof(char *), [TYPE_LIST] = sizeof(List), [TYPE_ENUM] = sizeof(int)};
    memcpy(option_field(o, to), option_field(o, from), size[o->type]);
}

void option_defaults(const Option *row, int n, void *base)
{
    Check none = {0};
    for (const Option *o = row; o < row + n; o++) {
        Value v = {0};
        option_clear(o, base);
        if (!option_required(o))
            BUG_ON(!config_parse_value(&none, 0, o->key, o->def, &v) || value_store(o, &v, base));
    }
}

static int folded(char c) { return c == '-' ? '_' : tolower((unsigned char)c); }

int name_is(const char *a, const char *b)
{
    for (; *a && folded(*a) == folded(*b); a++)
        b++;
    return !*a && !*b;
}

int option_like(const char *name)
{
    for (int i = 0; i < OPTIONS; i++)
        if (name_is(name, options[i].key))
            return i;
    return -1;
}

int edit_distance(const char *a, const char *b)
{
    int n = (int)strlen(a), m = (int)strlen(b), row[3][NAME_MAX_LEN + 1];
    if (n > NAME_MAX_LEN || m > NAME_MAX_LEN)
        return NAME_MAX_LEN;
    for (int j = 0; j <= m; j++)
        row[0][j] = j;
    for (int i = 1; i <= n; i++) {
        int *now = row[i % 3], *last = row[(i + 2) % 3], *before = row[(i + 1) % 3];
        now[0] = i;
        for (int j = 1; j <= m; j++) {
            int same = folded(a[i - 1]) == folded(b[j - 1]), d = last[j - 1] + !same;
            d = d < last[j] + 1 ? d : last[j] + 1;
            d = d < now[j - 1] + 1 ? d : now[j - 1] + 1;
            if (i > 1 && j > 1 && folded(a[i - 1]) == folded(b[j - 2]) &&
                folded(a[i - 2]) == folded(b[j - 1]))
                d = d < before[j - 2] + 1 ? d : before[j - 2] + 1;
            now[j] = d;
        }
    }
    return row[n % 3][m];
}

/* How many letters the longer name has more: no fewer edits make one of the other. */
static int more_letters(const char *a, const char *b)
{
    return abs((int)strlen(a) - (int)strlen(b));
}

/* Returns the most edits of a misspelled name: one in a short name, a third of the letters in a long
 * one. */
static int edits_allowed(const char *name)
{
    int n = (int)strlen(name);
    return n < 4 ? 1 : n < 9 ? 2 : n / 3;
}

/* Returns the share of words (between _ and -) that `name` and `key` have in common, over all different
 * words of both. Two long words may differ by one edit. */
static double words_shared(const char *name, const char *key)
{
    char a[NAME_MAX_LEN + 1], *rest = a, *word;
    int words = 0, shared = 0, in_key = 1;
    snprintf(a, sizeof a, "%s", name);
    for (const char *c = key; *c; c++)
        in_key += *c == '_';
    while ((word = strsep(&rest, "_-. "))) {
        char b[NAME_MAX_LEN + 1], *left = b, *other;
        snprintf(b, sizeof b, "%s", key);
        words++;
        while ((other = strsep(&left, "_")))
            if (more_letters(word, other) <= 1 && edit_distance(word, other) <= (strlen(word) > 4)) {
                shared++;
                break;
            }
    }
    return (double)shared / (words + in_key - shared);
}

int option_suggest(const char *name, const char *section)
{
    int best = -1, distance = NAME_MAX_LEN;
    if (strlen(name) > NAME_MAX_LEN)
        return -1;
    for (int i = 0; i < OPTIONS; i++) {
        if (2 * more_letters(name, options[i].key) >= distance)
            continue;
        int d = 2 * edit_distance(name, options[i].key) + (section && strcmp(section, options[i].section));
        if (d < distance)
            distance = d, best = i;
    }
    if (best >= 0 && distance / 2 <= edits_allowed(name))
        return best;
    double most = 0.49;
    best = -1;
    for (int i = 0; i < OPTIONS; i++) {
        double s = words_shared(name, options[i].key);
        if (s > most)
            most = s, best = i;
    }
    const Alias *a = best < 0 ? alias_suggest(name) : NULL;
    return a && a->key ? option_find(a->key) : best;
}

int section_suggest(const char *name)
{
    int best = -1, distance = NAME_MAX_LEN;
    for (int i = 0; i < section_count; i++) {
        int d = edit_distance(name, sections[i].name);
        if (d < distance)
            distance = d, best = i;
    }
    return best >= 0 && distance <= edits_allowed(name) ? best : -1;
}

int choice_suggest(const char *name, const char *const *choices)
{
    int best = -1, distance = NAME_MAX_LEN;
    const char *ours;
    for (int nth = 0; (ours = value_alias(name, nth)); nth++)
        for (int i = 0; choices[i]; i++)
            if (!strcmp(ours, choices[i]))
                return i;
    for (int i = 0; choices[i]; i++) {
        int d = edit_distance(name, choices[i]);
        if (d < distance)
            distance = d, best = i;
    }
    return best >= 0 && distance <= edits_allowed(name) ? best : -1;
}
