/* config_table -- the option table as data, values, and the list of violations. It is for config*.c, for
 * what reads keys by name, and for another table of this form (src/plan/machine.c). */
#ifndef CONFIG_TABLE_H
#define CONFIG_TABLE_H
#include "base.h"
#include "config.h"
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* Memory that lives as long as the process, or until config_forget (for tests). */
void *keep_alloc(size_t n, size_t size);      /* n elements of `size` bytes, zeroed */
void *keep_grow(void *p, size_t bytes);       /* p, or NULL, made `bytes` long */
char *textf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
char *textv(const char *fmt, va_list ap) __attribute__((format(printf, 1, 0)));
char *text_copy(const char *s);
void config_forget(void);
/* keep_release frees what was taken since keep_mark. Older memory must not have grown in between. */
void *keep_mark(void);
void keep_release(void *mark);

typedef enum { TYPE_INT, TYPE_FLOAT, TYPE_BOOL, TYPE_STR, TYPE_LIST, TYPE_ENUM } OptionType;

typedef struct {
    const char *section, *key;
    OptionType type;
    const char *def, *legal;         /* default value, legal values: text as in config.def */
    Change change;
    const char *help;
    const char *const *choices;      /* ENUM: texts of the values 0, 1, ..., then NULL */
    size_t offset;                   /* bytes: offset of the field in the struct that the table fills */
} Option;

typedef struct { const char *name, *help; } Section;

extern const Option options[OPTIONS];
extern const Section sections[];
extern const int section_count;

/* base: the struct that holds the field; for rows of `options` a Config. */
static inline void *option_field(const Option *o, const void *base) { return (char *)base + o->offset; }
static inline int option_optional(const Option *o) { return !strcmp(o->def, "null"); }
static inline int option_required(const Option *o) { return !strcmp(o->def, "required"); }
int option_absent(const Option *o, const void *base);
void option_clear(const Option *o, void *base);
void option_copy(const Option *o, void *to, const void *from);
/* Sets the fields of n rows to their defaults; a row whose default is null or required becomes
 * absent. */
void option_defaults(const Option *row, int n, void *base);

/* Return the index of a key or of a section; -1: there is none of that name. */
int option_find(const char *key);
int option_find_in(const Option *row, int n, const char *key);
int section_find(const char *name);

/* Damerau-Levenshtein distance (restricted: a pair of letters swaps once) without regard to capitals, -
 * read as _. */
int edit_distance(const char *a, const char *b);
/* Returns 1 if the names are equal without regard to capitals, - read as _. */
int name_is(const char *a, const char *b);
/* Returns the index of the key for which name_is holds; -1: none. */
int option_like(const char *name);

/* config_alias.c: another program's name for a setting. */
typedef struct {
    const char *name;                /* name in the other program */
    const char *key;                 /* key of this program; NULL: the setting needs none */
    const char *text;                /* what to write, or why no key is needed; NULL: key=value */
} Alias;
const Alias *alias_find(const char *name);
/* Row i of the table; NULL past its end. */
const Alias *alias_at(int i);
/* alias_find for a misspelled name: within one slip of the row's. */
const Alias *alias_suggest(const char *name);
/* Advice for a message: "write params_dtype=bf16 (section 'precision')", "leave it out: ...". */
char *alias_text(const Alias *a);

/* Returns the key that an unknown name most likely means; -1: none is near. The distance to the keys
 * decides, then shared words, then the names of other programs; `section` breaks ties. */
int option_suggest(const char *name, const char *section);
int section_suggest(const char *name);
/* The best guess at the choice that `name` means, -1: other programs' words for it, then the
 * distance. */
int choice_suggest(const char *name, const char *const *choices);
/* config_alias.c: our word for another program's value (bfloat16: bf16), NULL. `nth` counts those of the
 * same word. */
const char *value_alias(const char *value, int nth);

/* An interval as in Option.legal; for INT the bounds are exact integers. */
typedef struct { double lo, hi; int64_t ilo, ihi; int lo_open, hi_open; } Interval;
Interval interval_parse(const char *text);
int config_same_text(const Config *a, const Config *b, int option);   /* config.yaml says the same of both */

/* Kinds of scalars in YAML 1.2 (core schema). A scalar in quotes is always a string. */
typedef enum { SCALAR_NULL, SCALAR_BOOL, SCALAR_INT, SCALAR_FLOAT, SCALAR_STRING } ScalarKind;
typedef enum { VALUE_SCALAR, VALUE_LIST, VALUE_MAP } ValueKind;

/* One value as it stands in the file. Items of a list are scalars; a deeper node has its kind alone. */
typedef struct Value {
    ValueKind kind;
    int quoted, n;                   /* scalar: 1 if in quotes; list: number of items */
    const char *text;                /* scalar: its text, NUL-terminated */
    size_t len;                      /* scalar: bytes of text, which may contain a NUL */
    struct Value *item;              /* list: [n] items */
} Value;

ScalarKind scalar_kind(const Value *v);

/* Converts v to the option's type and stores it in the field. Returns NULL, or what is wrong. */
char *value_store(const Option *o, const Value *v, void *base);
/* Prints the field as YAML flow text, from which value_store makes the same field. */
void value_print(FILE *f, const Option *o, const void *base);
/* Returns a text for a message: in quotes, cut at 60 characters, control characters as \xNN. */
char *quoted(const char *text, size_t len);
/* Returns the legal values of an option: "an integer in [1, 10]", "one of a, b". */
char *legal_text(const Option *o);

/* Where a key was set: a line of the file (line > 0), an argument (arg >= 0), or nowhere. */
typedef struct { int line, col, arg; } Place;

/* order: number of the violation in the order of being found. */
typedef struct { Place place; int order; char *text; } Violation;

typedef struct {
    const char *path;                /* name of the file, for messages */
    Config *cfg;                     /* configuration that is read and checked */
    Place set[OPTIONS];              /* place where the key was set */
    uint8_t seen[OPTIONS];           /* 1: the key was set */
    uint8_t bad[OPTIONS];            /* 1: unusable or missing; rules that read the key are skipped */
    uint8_t guessed[OPTIONS];        /* 1: an unknown key may mean this one; it is not missing then */
    Place section[16];               /* place of each section; line 0: the section is not there */
    int split_conflict;              /* bool: several keys share layers out, and none is followed */
    int unread;                      /* bool: the file was not read to its end */
    int unopened;                    /* bool: the file could not be read; the list says why */
    int n, dropped;                  /* violations in the list; violations beyond VIOLATIONS_MAX */
    Violation *list;                 /* [n] */
} Check;

#define VIOLATIONS_MAX 1000
/* config_check.c: starts a check, with the defaults and nothing read yet. */
void check_open(Check *k, const char *path);
/* Adds a violation. */
void check_add(Check *k, Place place, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Sorts the list: by line of the file, then by argument. */
void check_sort(Check *k);
/* Prints the list, sorted, as `FILE:LINE:COL: text` or `command line: text`. */
void check_print(Check *k, FILE *f);
/* Returns 1 if none of the keys `on`, which end with -1, is unusable. */
int check_usable(const Check *k, const int *on);
/* Adds a violation of the first key of `on`, at the place of the first key of `on` that was set. */
void check_report(Check *k, const int *on, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Return "24 or 32": the multiples of m, or the divisors of n, next below and above x. */
const char *check_nearest_multiples(int64_t m, int64_t x);
const char *check_nearest_divisors(int64_t n, int64_t x);

/* config_yaml.c: read values into k->cfg and note the place of each. */
void config_parse_file(Check *k, const char *path);
void config_parse_text(Check *k, const char *text, size_t size);
void config_parse_args(Check *k, int nargs, char **args);
/* Reads one value, as it stands behind key=. Violations name argument `arg`. Returns 0 if it is
 * unusable. */
int config_parse_value(Check *k, int arg, const char *key, const char *text, Value *v);

/* config_rules.c: fills in derived defaults and checks every rule. */
void config_resolve(Check *k, int world, ConfigUse use);

/* Returns runs/NAME for the path FOLDER/NAME.yaml. */
const char *config_default_save(const char *path);

/* config_pairs.c: table of pairs of keys, by index, that exclude or need each other. change: advice. */
typedef struct { int a, b; int (*broken)(const Config *c); const char *change; } Pair;
extern const Pair pairs[];
extern const int pair_count;

/* config_help.c: prints text in lines of at most 100 columns, each after `indent` blanks. */
void help_wrap(FILE *f, int indent, const char *text);

/* config_batch.c: reads step_batch_size_schedule into c->batch_step. Each batch size must be a multiple
 * of `unit` samples. Returns NULL, or what is wrong. */
char *config_parse_schedule(Config *c, int64_t unit);

/* config_layout.c: reads pipeline_model_parallel_layout.
 *
 *   text    in             layout string
 *   layers  out  [stages]  layers of each virtual stage, in model order
 *   stages  out            virtual stages
 *
 * Returns NULL, or what is wrong and at which character. */
char *config_parse_layout(const char *text, const int **layers, int *stages);
/* Returns the layout string of layers [n]. On the heap. */
char *config_print_layout(const int *layers, int n);

/* config_model.c: copies keys of the model that k leaves out from `saved`. With `alone` the keys of the
 * data and the seed are copied too, for a use that reads the corpus the batch size and eval_iters, and for
 * one that evaluates the number formats and what else changes a loss of experts. */
void config_take(Check *k, const Config *saved, int alone, ConfigUse use);
/* Lists the keys of the model's tensors that k sets otherwise than `saved`: "hidden_size is 16 there, 32
 * here; ...". "": none. Called before config_take. */
const char *config_other_model(const Check *k, const Config *saved);

/* config_load without printing and dying. */
void config_check(Check *k, const char *path, int nargs, char **args, int world, ConfigUse use);
#endif
