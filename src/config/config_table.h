/* config_table -- inside the configuration: the option table as data, values, and the list of violations.
 * Only config*.c, their tests and readers of another table of this form (src/plan/machine.c) include it. */
#ifndef CONFIG_TABLE_H
#define CONFIG_TABLE_H
#include "base.h"
#include "config.h"
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* Memory of the configuration, zeroed; it lives as long as the process, or until config_forget (for tests).
 */
void *keep_alloc(size_t n, size_t size);
void *keep_grow(void *p, size_t bytes);
char *textf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
char *textv(const char *fmt, va_list ap) __attribute__((format(printf, 1, 0)));
char *text_copy(const char *s);
void config_forget(void);
/* Gives back what was taken since keep_mark; nothing from before may have grown in between. */
void *keep_mark(void);
void keep_release(void *mark);

typedef enum { TYPE_INT, TYPE_FLOAT, TYPE_BOOL, TYPE_STR, TYPE_LIST, TYPE_ENUM } OptionType;

typedef struct {
    const char *section, *key;
    OptionType type;
    const char *def, *legal;         /* as in config.def */
    Change change;
    const char *help;
    const char *const *choices;      /* ENUM: NULL-terminated, index = value */
    size_t offset;                   /* of the field in the struct that the table fills: Config, Machine */
} Option;

typedef struct { const char *name, *help; } Section;

extern const Option options[OPTIONS];
extern const Section sections[];
extern const int section_count;

/* base: the struct that holds the field, a Config for the rows of `options`. */
static inline void *option_field(const Option *o, const void *base) { return (char *)base + o->offset; }
static inline int option_optional(const Option *o) { return !strcmp(o->def, "null"); }
static inline int option_required(const Option *o) { return !strcmp(o->def, "required"); }
int option_absent(const Option *o, const void *base);
void option_clear(const Option *o, void *base);
void option_copy(const Option *o, void *to, const void *from);
/* Sets the fields of n rows to their defaults; absent where a row says null or required. */
void option_defaults(const Option *row, int n, void *base);

/* Index of a key, of a section; -1. */
int option_find(const char *key);
int option_find_in(const Option *row, int n, const char *key);
int section_find(const char *name);

/* Damerau-Levenshtein distance (restricted: a pair of letters swaps once), capitals folded, - read as _. */
int edit_distance(const char *a, const char *b);
/* The same name but for capitals and for - instead of _. */
int name_is(const char *a, const char *b);
/* Index of the key that is `name` in this sense; -1. */
int option_like(const char *name);

/* config_alias.c: what another program calls it. `key` is ours, NULL when none is needed; `text` what to
 * write for it, or why none is needed; NULL: the key, with the same value. */
typedef struct { const char *name, *key, *text; } Alias;
const Alias *alias_find(const char *name);
/* Row i of the table; NULL past its end. */
const Alias *alias_at(int i);
/* The same with one slip in the name. */
const Alias *alias_suggest(const char *name);
/* "write params_dtype=bf16 (section 'precision')", "leave it out: ...". */
char *alias_text(const Alias *a);

/* The best guess at what an unknown name means, -1 if nothing comes near: Damerau-Levenshtein distance over
 * the keys, then shared words, then the names of other programs. `section` breaks ties. */
int option_suggest(const char *name, const char *section);
int section_suggest(const char *name);
/* The best guess at the choice that `name` means, -1: other programs' words for it, then the distance. */
int choice_suggest(const char *name, const char *const *choices);
/* config_alias.c: our word for another program's value (bfloat16: bf16), NULL. `nth` counts those of the same
 * word. */
const char *value_alias(const char *value, int nth);

/* An interval as in Option.legal; for INT the bounds are exact integers. */
typedef struct { double lo, hi; int64_t ilo, ihi; int lo_open, hi_open; } Interval;
Interval interval_parse(const char *text);

/* YAML 1.2 core scalars. A quoted scalar is a string whatever it says. */
typedef enum { SCALAR_NULL, SCALAR_BOOL, SCALAR_INT, SCALAR_FLOAT, SCALAR_STRING } ScalarKind;
typedef enum { VALUE_SCALAR, VALUE_LIST, VALUE_MAP } ValueKind;

/* One value as it stands in the file. Lists hold scalars; a deeper node is marked VALUE_LIST or VALUE_MAP. */
typedef struct Value {
    ValueKind kind;
    int quoted, n;
    const char *text;                /* scalar: NUL-terminated */
    size_t len;                      /* of text, which may hold a NUL of its own */
    struct Value *item;
} Value;

ScalarKind scalar_kind(const Value *v);

/* Converts v to the option's type and stores it. Returns NULL, or what is wrong. */
char *value_store(const Option *o, const Value *v, void *base);
/* Prints the field as YAML flow text; value_store of it gives the field back. */
void value_print(FILE *f, const Option *o, const void *base);
/* A string made fit for a message: quoted, cut short, control characters as \xNN. */
char *quoted(const char *text, size_t len);
/* What an option takes: "an integer in [1, 10]", "one of a, b". */
char *legal_text(const Option *o);

/* Where a key was set: a line of the file (line > 0), an argument (arg >= 0), or nowhere. */
typedef struct { int line, col, arg; } Place;

typedef struct { Place place; int order; char *text; } Violation;

typedef struct {
    const char *path;
    Config *cfg;
    Place set[OPTIONS];              /* where each key was set */
    uint8_t seen[OPTIONS];           /* it was set */
    uint8_t bad[OPTIONS];            /* its value is unusable or missing: rules that read it are skipped */
    uint8_t guessed[OPTIONS];        /* an unknown key was taken for it: it does not count as missing */
    Place section[16];               /* where each section stands; line 0: it is not there */
    int split_conflict;              /* more than one way to share layers out: none is followed */
    int unread;                      /* the file could not be read to its end */
    int unopened;                    /* nor opened: the list says why */
    int n, dropped;                  /* violations listed, violations beyond VIOLATIONS_MAX */
    Violation *list;
} Check;

#define VIOLATIONS_MAX 1000
/* config_check.c: a check with the defaults and nothing read yet. */
void check_open(Check *k, const char *path);
/* Adds a violation. */
void check_add(Check *k, Place place, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Sorts the list by position in the file, then on the command line. */
void check_sort(Check *k);
/* Prints the list, sorted, as `FILE:LINE:COL: text` or `command line: text`. */
void check_print(Check *k, FILE *f);
/* Whether all of these keys (ended by -1) can be read. */
int check_usable(const Check *k, const int *on);
/* Adds a violation under the first of the keys, at the place where the first of them that was set stands. */
void check_report(Check *k, const int *on, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* "24 or 32": the multiples of m, the divisors of n, that enclose x. */
const char *check_nearest_multiples(int64_t m, int64_t x);
const char *check_nearest_divisors(int64_t n, int64_t x);

/* config_yaml.c: read values into k->cfg and note where they stood. */
void config_parse_file(Check *k, const char *path);
void config_parse_text(Check *k, const char *text, size_t size);
void config_parse_args(Check *k, int nargs, char **args);
/* One value, as on the right of key=value; violations name argument `arg`. 0: it is unusable. */
int config_parse_value(Check *k, int arg, const char *key, const char *text, Value *v);

/* config_rules.c: fill in derived defaults and check every rule. */
void config_resolve(Check *k, int world, ConfigUse use);

/* runs/NAME for CONFIG/NAME.yaml. */
const char *config_default_save(const char *path);

/* The table of pairs of settings that exclude each other (config_pairs.c). */
typedef struct { int a, b; int (*broken)(const Config *c); const char *change; } Pair;
extern const Pair pairs[];
extern const int pair_count;

/* config_help.c: prints text in lines of at most 100 columns, each after `indent` blanks. */
void help_wrap(FILE *f, int indent, const char *text);

/* config_batch.c: step_batch_size_schedule into c->batch_step; every batch a multiple of `unit`. Returns NULL
 * or what is wrong. */
char *config_parse_schedule(Config *c, int64_t unit);

/* pipeline_model_parallel_layout into the layers of each virtual stage, in model order; embedding first, loss
 * last. Returns NULL, or what is wrong and at which character. */
char *config_parse_layout(const char *text, const int **layers, int *stages);
/* The other way round. On the heap. */
char *config_print_layout(const int *layers, int n);

/* config_model.c: the keys of the model that k leaves out come from `saved`; with `alone` those that say what
 * is read too, and for a use that reads the corpus how much of it. */
void config_take(Check *k, const Config *saved, int alone, ConfigUse use);
/* "hidden_size is 16 there, 32 here; ...": the model's keys that k, before config_take, says otherwise. "":
 * none. */
const char *config_other_model(const Check *k, const Config *saved);

/* All of config_load but printing and dying: for tests. */
void config_check(Check *k, const char *path, int nargs, char **args, int world, ConfigUse use);
#endif
