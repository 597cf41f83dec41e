/* config -- the resolved configuration. config.def is the option table; from it come the fields below, the
 * parsing of YAML and key=value, help, configs/OPTIONS.md and config.yaml. Rules between options are in
 * config_rules.c.
 *
 * A Config that config_load returned is resolved: derived defaults are filled in and every rule holds. It
 * lives as long as the process and never changes. Field types: INT int64_t, FLOAT double, BOOL int, STR
 * const char *, ENUM int (constants KEY_CHOICE), LIST List. Absent: CFG_ABSENT, NAN, NULL, an empty list; an
 * ENUM is never absent once resolved. */
#ifndef CONFIG_H
#define CONFIG_H
#include "file.h"
#include "isas.h"
#include "kinds.h"
#include <stdint.h>
#include <stdio.h>

#define CFG_ABSENT INT64_MIN

typedef struct { int n; const char **v; } List;

/* One segment of the batch-size schedule: from `samples` consumed samples on, a step has `batch` samples. */
typedef struct { int64_t samples, batch; } BatchStep;

/* Enumerators of the ENUM rows, KEY_CHOICE in table order. NORMALIZATION_, ACTIVATION_ and PARAMS_DTYPE_ have
 * the values of NormKind, ActKind and Dtype (kernels/device.h), PIPELINE_SCHEDULE_ those of ScheduleKind. */
#define CPU_ISA_CHOICE(id, name) CHOICE(CPU_ISA_##id, name)
#define SCHEDULE_CHOICE(id, name, ...) CHOICE(PIPELINE_SCHEDULE_##id, name)
#define SECTION(name, help)
#define OPTION(section, key, type, def, legal, change, help)
#define CHOICE(constant, text) constant,
#define ENUM(section, key, def, change, help, choices) enum { choices };
#include "config.def"
#undef OPTION
#undef ENUM
#undef CHOICE

/* OPT_key: the row's index. */
enum {
#define OPTION(section, key, type, def, legal, change, help) OPT_##key,
#define ENUM(section, key, def, change, help, choices) OPT_##key,
#include "config.def"
#undef OPTION
#undef ENUM
    OPTIONS
};

#define FIELD_INT   int64_t
#define FIELD_FLOAT double
#define FIELD_BOOL  int
#define FIELD_STR   const char *
#define FIELD_LIST  List

typedef struct {
#define OPTION(section, key, type, def, legal, change, help) FIELD_##type key;
#define ENUM(section, key, def, change, help, choices) int key;
#include "config.def"
#undef OPTION
#undef ENUM
#undef SECTION
    const char *path;                /* the file it came from */
    int world;                       /* ranks */
    int64_t data_parallel_size;      /* world / (tensor * pipeline * context) */
    int64_t padded_vocab_size;       /* vocab_size, up to make_vocab_size_divisible_by * tensor size */
    int batch_steps;                 /* >= 1, the first from sample 0; 1 when the batch size is constant */
    const BatchStep *batch_step;
    int stages;                      /* virtual stages; 1 with one pipeline rank; 0: by cost, not yet split */
    const int *stage_layers;         /* layers of each, in model order */
    const struct CustomLists *custom; /* what pipeline_schedule_file holds; NULL: not used */
    uint8_t given[OPTIONS];          /* set by the file, the command line or a checkpoint, not by default */
} Config;

/* What a command needs beside the model. */
typedef enum {
    USE_MODEL = 0,
    USE_DATA = 1,                /* data_path, or train_data_path (with USE_EVAL: any split's) */
    USE_STEPS = 2,               /* train_iters or train_samples, lr, and without `load` micro_batch_size */
    USE_LOAD = 4,                /* load */
    USE_CLOCK = 8,               /* the times of the clock device (train bubble) */
    USE_BUBBLE = 16 | USE_CLOCK, /* these and a pipeline's shape alone: no model, and no rule between keys */
    USE_EVAL = 32,               /* eval_iters above 0 */
    USE_TRAIN = USE_DATA | USE_STEPS
} ConfigUse;

/* Reads the file, then args ("key=value", the value a YAML flow value), resolves for `world` ranks (0: those
 * that the launcher started, 1 without one; WORLD_SMALLEST: tensor x pipeline x context), checks. All
 * violations go to standard error, sorted by position; then it dies with EXIT_CONFIG and one line. That is
 * rank 0 of a launched job. The others wait for the launcher to end them; one that is not ended has
 * violations that rank 0 does not have, and says so. Not collective: needs no MPI. */
#define WORLD_SMALLEST (-1)
Config *config_load(const char *path, int nargs, char **args, int world, ConfigUse use);

/* The text that config_write left in the checkpoint that `load` stands for, and *dir, the checkpoint's
 * folder; NULL where there is none, and *dir says why. Both from malloc. */
typedef char *(*SavedConfig)(const char *load, char **dir);

/* config_load, but with `load` given the model's keys that the file and the command line leave out come from
 * that checkpoint. path NULL: there is no file, and data, the seed and with USE_DATA the batch and eval_iters
 * come from there too; never how ranks share the work. Dies with EXIT_CHECKPOINT when there is neither file
 * nor checkpoint, and when rules are broken by a key that is not the checkpoint's. */
Config *config_load_over(const char *path, int nargs, char **args, int world, ConfigUse use,
                         SavedConfig saved);

/* A copy that shares layers out by this layout string, which placement_balance made, and in no other way:
 * what config.yaml then says. */
Config *config_with_layout(const Config *cfg, const char *layout);

/* A copy for one rank that computes the same step: all sizes 1, 1f1b, nothing sharded, the same global batch
 * in microbatches of the same size. Dies with EXIT_CONFIG when that makes more than 65535. */
Config *config_for_one_rank(const Config *cfg);

/* Sets padded_vocab_size: vocab_size up to a multiple that the tensor ranks share out evenly. */
void config_pad_vocab(Config *c);

/* Hash of every key's value. Equal hashes, equal config.yaml. */
uint64_t config_hash(const Config *cfg);

/* Dies with EXIT_CONFIG when the ranks of `all` do not have the same configuration: names those that differ
 * from the majority (rank 0, if there is none) and the first key that does, with both values. Collective over
 * all. */
struct Comm;
void config_same(const Config *cfg, struct Comm *all);

/* The resolved configuration as YAML, every key, absent ones as null: config_load gives the same Config. */
void config_write(FILE *f, const Config *cfg);

/* Its sections model and data alone: what a model that was trained elsewhere has. */
void config_write_model(FILE *f, const Config *cfg);

/* Writes dir/config.yaml by one of the two; readers see the old file or the new one. 1, or 0 and a reason. */
int config_save(const char *dir, const Config *cfg, void (*write)(FILE *f, const Config *cfg), char why[WHY]);

/* Reads what config_write wrote beside a checkpoint: no rules, no requirements. Keys that this build does not
 * know, and values that it does not take, are skipped and named in *skipped ("" when none). NULL: no YAML. */
Config *config_read_saved(const char *text, size_t size, const char **skipped);

/* Whether the key makes a difference between two configurations, which it does not where only its spelling
 * differs or where it has no effect: add_qkv_bias beside add_bias_linear, rotary_base without rope, a window
 * as long as the positions. */
int config_differs(const Config *a, const Config *b, int option);

/* Compares a resuming run with the saved one, by what each key means. *text gets a line for each key that
 * differs and is not free: `key: saved -> now (refuse|warn)`. Returns the worst class. */
typedef enum { CHANGE_FREE, CHANGE_WARN, CHANGE_REFUSE } Change;
Change config_compare_resume(const Config *now, const Config *saved, const char **text);

/* Hash of every key that is not free on resume: equal hashes, same run. */
uint64_t config_fingerprint(const Config *cfg);

/* Batch size of the step that starts after `samples` consumed samples. */
int64_t config_batch_at(const Config *cfg, int64_t samples);
/* Samples consumed by the first `iterations` steps. */
int64_t config_samples_after(const Config *cfg, int64_t iterations);
/* Samples consumed `iterations` steps after `consumed` were. */
int64_t config_samples_from(const Config *cfg, int64_t consumed, int64_t iterations);
/* The largest batch size that the run has. */
int64_t config_batch_most(const Config *cfg);
/* 1 if both give every step the same batch size. */
int config_same_batches(const Config *now, const Config *saved);
/* Steps of the whole run: train_iters, or the whole steps that fit into train_samples. */
int64_t config_iterations(const Config *cfg);

/* A key's value as YAML text, as in config.yaml. On the heap. */
char *config_text(const Config *cfg, int option);

/* The part of `train help [TOPIC]` that is about keys: NULL (the sections), `keys`, a section, a key or
 * another program's name for one. 0: no such topic. */
int config_help(FILE *f, const char *topic);

/* The section or key that `topic` may be a slip for; NULL. */
const char *config_help_suggest(const char *topic);

/* How a setting given as a flag is written: "--lr" and "3", or "--lr=3", give "lr=3". *known = 0: no key is
 * meant for certain, and the text is advice, or NULL. Lives as long as the process. */
char *config_argument(const char *flag, const char *value, int *known);

/* configs/OPTIONS.md: the whole table in Markdown. */
void config_docs(FILE *f);

/* What was built: "gridiron" and git's description of the commit. */
const char *config_build_id(void);
#endif
