/* config -- the resolved configuration.
 *
 * config.def is the option table. From it come the fields below, the parsing of YAML and key=value,
 * help, configs/OPTIONS.md and config.yaml. Rules between options are in config_rules.c.
 *
 * A Config that config_load returned is resolved: derived defaults are filled in and every rule holds.
 * It lives as long as the process and never changes. Its fields and their values for an absent key:
 *
 *   INT    int64_t                     CFG_ABSENT
 *   FLOAT  double                      NAN
 *   BOOL   int                         never absent
 *   STR    const char *                NULL
 *   LIST   List                        an empty list
 *   ENUM   int, constants KEY_CHOICE   never absent once resolved */
#ifndef CONFIG_H
#define CONFIG_H
#include "file.h"
#include "isas.h"
#include "kinds.h"
#include <stdint.h>
#include <stdio.h>

#define CFG_ABSENT INT64_MIN

typedef struct { int n; const char **v; } List;

/* One segment of the batch-size schedule: once `samples` samples are consumed, a step has `batch`
 * samples. */
typedef struct { int64_t samples, batch; } BatchStep;

/* Constants of the ENUM rows, KEY_CHOICE in table order. NORMALIZATION_, ACTIVATION_ and PARAMS_DTYPE_
 * have the values of NormKind, ActKind and Dtype (kernels/device.h), PIPELINE_SCHEDULE_ those of
 * ScheduleKind. */
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

/* OPT_key: index of the key's row in the option table. */
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
    const char *path;                 /* configuration file; without one `load`, or "the command line" */
    int world;                        /* ranks of the job */
    int64_t data_parallel_size;       /* world / (tensor * pipeline * context) */
    int64_t context_heads;            /* a2a+p2p: ranks of an a2a group; 0: no layer has that kind */
    int64_t padded_vocab_size;        /* token ids with padding: see config_pad_vocab */
    int batch_steps;                  /* segments of the batch-size schedule, >= 1; 1: a constant size */
    const BatchStep *batch_step;      /* [batch_steps] the segments; the first starts at sample 0 */
    int stages;                       /* virtual stages; 0: not split yet (pipeline_balance cost) */
    const int *stage_layers;          /* [stages] layers of each virtual stage, in model order */
    const struct CustomLists *custom; /* lists of pipeline_schedule_file; NULL: no such file is used */
    int force_lines;                  /* lines of force_share: 1, or one a layer; 0: no loads are forced */
    const double *force_share;        /* [force_lines][num_moe_experts] cumulative shares of the experts */
    uint8_t given[OPTIONS];           /* 1: set by the file, the command line or a checkpoint */
} Config;

/* Keys that a command needs beside the model's. */
typedef enum {
    USE_MODEL = 0,
    USE_DATA = 1,                /* data_path or train_data_path; with USE_EVAL the path of any split */
    USE_STEPS = 2,               /* train_iters or train_samples, lr, without `load` micro_batch_size */
    USE_LOAD = 4,                /* load */
    USE_CLOCK = 8,               /* clock_*: times of the clock device (train bubble) */
    USE_BUBBLE = 16 | USE_CLOCK, /* clock_* and the pipeline's shape; no model, no rules between keys */
    USE_EVAL = 32,               /* eval_iters, above 0 */
    USE_TRAIN = USE_DATA | USE_STEPS
} ConfigUse;

/* Reads a configuration, resolves it and checks every rule.
 *
 *   path   in            YAML file
 *   args   in   [nargs]  "key=value", the value in YAML's flow form; args override the file
 *   world  in            ranks. 0: those that the launcher started, 1 without a launcher.
 *                        WORLD_SMALLEST: tensor x pipeline x context
 *   use    in            keys that the command needs
 *
 * Violations are printed to standard error, sorted by position, and the process dies with EXIT_CONFIG.
 * In a launched job rank 0 does so, and the launcher ends the other ranks. A rank that is not ended has
 * violations that rank 0 does not have, and says so. Not collective: needs no MPI. */
#define WORLD_SMALLEST (-1)
Config *config_load(const char *path, int nargs, char **args, int world, ConfigUse use);

/* Finds the checkpoint that `load` names. Returns the text that config_write left in it; *dir: its
 * folder. NULL: there is none, and *dir says why. Text and *dir are from malloc. */
typedef char *(*SavedConfig)(const char *load, char **dir);

/* config_load; keys of the model that the file and the command line leave out come from the checkpoint
 * that `load` names.
 *
 * path may be NULL: there is no file. Then the keys of the data and the seed come from the checkpoint
 * too, and with USE_DATA the batch size and eval_iters; the layout never does. Dies with EXIT_CHECKPOINT
 * when there is neither file nor checkpoint, and when a rule is broken while the model's keys differ
 * from the checkpoint's. */
Config *config_load_over(const char *path, int nargs, char **args, int world, ConfigUse use,
                         SavedConfig saved);
/* Returns the command line [*n] with which config_load reads what config_load_over reads with args: keys of
 * the model that come from the checkpoint are added. Mistakes are left to these two. */
char **config_args_over(const char *path, int nargs, char **args, SavedConfig saved, int *n);
/* The largest legal world of at most `most` ranks, for a configuration that is legal in another world. 0:
 * there is none. */
int config_largest_world(const char *path, int nargs, char **args, int most, SavedConfig saved);

/* Returns a copy that shares layers out by a layout string of placement_share_out and drops all other keys
 * that share layers out. Its config.yaml holds that string. */
Config *config_with_layout(const Config *cfg, const char *layout);

/* Returns a copy for one rank that computes the same step: all group sizes 1, schedule 1f1b, nothing
 * sharded, the same global batch in microbatches of the same size. Dies with EXIT_CONFIG when a step
 * then has more than 65535 microbatches. */
Config *config_for_one_rank(const Config *cfg);

/* Sets padded_vocab_size: vocab_size rounded up to a multiple of make_vocab_size_divisible_by * tensor
 * size. */
void config_pad_vocab(Config *c);

/* Returns a string as YAML for key=value, in quotes where YAML would read something else, on the heap. */
char *config_string(const char *text);

/* Returns a hash of every key's value: equal hashes mean equal config.yaml. */
uint64_t config_hash(const Config *cfg);
uint64_t config_hash_key(const Config *cfg, int option, uint64_t hash); /* one option, added to `hash` */

/* Dies with EXIT_CONFIG when the ranks of `all` run different builds or have different configurations. The
 * message names the ranks that differ from the majority (from rank 0, if there is none), and the first key
 * that differs with both values. Collective over all. */
struct Comm;
void config_same(const Config *cfg, struct Comm *all);

/* Writes the resolved configuration as YAML: every key, absent ones as null. config_load of it gives the
 * same Config. */
void config_write(FILE *f, const Config *cfg);

/* Writes the sections model and data alone, for a model that was trained elsewhere. */
void config_write_model(FILE *f, const Config *cfg);

/* Writes dir/config.yaml with config_write or config_write_model; readers see the old file or the new
 * one. Returns 1, or 0 and a reason. */
int config_save(const char *dir, const Config *cfg, void (*write)(FILE *f, const Config *cfg), char why[WHY]);

/* Reads the config.yaml of a checkpoint, without rules or required keys. *skipped names the keys that
 * this build does not know and those whose values it does not take; "": none. NULL: the text is no
 * YAML. */
Config *config_read_saved(const char *text, size_t size, const char **skipped);

/* Returns 1 if the key's values in the two configurations differ in meaning. They do not if only the
 * spelling differs, or if the key has no effect: add_qkv_bias beside add_bias_linear, rotary_base
 * without rope, keys of another rope_scaling, a window as long as the positions, ffn_hidden_size where all
 * layers have experts, moe_router_pre_softmax beside sigmoid; nor if moe_layer_freq gives the same layers, or
 * split the same shares of their sum, in another way. */
int config_differs(const Config *a, const Config *b, int option);

/* Whether the key decides which tensors a model has and what their rows mean. */
int config_is_shape(int option);
/* Whether the key changes what a model computes, but no tensor: weights may be loaded into another one on
 * purpose. */
int config_is_function(int option);

/* Whether an F and the B of another microbatch run by turns. */
int config_is_paired(const Config *c);
/* Whether a layer, by its global number, has experts. */
int config_is_moe(const Config *c, int layer);
/* Returns the cp_comm_type of a layer. Where one rank has whole sequences, the list may have any length. */
const char *config_context_kind(const Config *c, int layer);

/* A key of rope_scaling. */
typedef struct {
    int option;
    const char *hf;                   /* its name in Hugging Face's config.json */
    unsigned kinds, needed;           /* sets of bits 1 << ROPE_SCALING_x: the kinds that read it, need it */
} RopeKey;
enum { ROPE_FACTOR, ROPE_ORIGINAL, ROPE_LOW, ROPE_HIGH, ROPE_ATTENTION, ROPE_FAST, ROPE_SLOW, ROPE_TRUNCATE,
       ROPE_KEYS };
extern const RopeKey rope_keys[ROPE_KEYS];
/* The number that cosines and sines are multiplied by. */
double config_rope_attention(const Config *c);
/* Returns what the rules between the keys of rope_scaling find wrong, or NULL. */
const char *config_rope_wrong(const Config *c);

/* What the weights of a token's experts add up to before moe_router_topk_scaling_factor, if the router
 * prefers no expert, as a new one nearly does. */
double config_router_sum(const Config *c);

/* Compares a resuming run with the saved one, by what each key means. *text gets a line for each key
 * that differs and is not free: `key: saved -> now (refuse|warn)`. Returns the worst class of change. */
typedef enum { CHANGE_FREE, CHANGE_WARN, CHANGE_REFUSE } Change;
Change config_compare_resume(const Config *now, const Config *saved, const char **text);

/* Batch size, in samples, of the step that starts after `samples` consumed samples. */
int64_t config_batch_at(const Config *cfg, int64_t samples);
/* Samples that the first `iterations` steps consume. */
int64_t config_samples_after(const Config *cfg, int64_t iterations);
/* Samples consumed in all after `iterations` more steps, from `consumed` samples on. */
int64_t config_samples_from(const Config *cfg, int64_t consumed, int64_t iterations);
/* The same as the corpus is ordered for: with train_samples all of these, as in Megatron, those that are no
 * whole step, too. So a resume with another batch size keeps the order. */
int64_t config_samples_wanted(const Config *cfg, int64_t consumed, int64_t iterations);
/* Largest batch size of the run, in samples. */
int64_t config_batch_most(const Config *cfg);
/* 1 if both configurations give every step the same batch size. */
int config_same_batches(const Config *now, const Config *saved);
/* Steps of the whole run: train_iters, or the whole steps that fit into train_samples. */
int64_t config_iterations(const Config *cfg);
/* The same where the first `done` steps, of any batch sizes, consumed `samples`. */
int64_t config_iterations_from(const Config *cfg, int64_t done, int64_t samples);

/* Returns a key's value as YAML text, as config.yaml has it. On the heap. */
char *config_text(const Config *cfg, int option);

/* Says which keys are set, to other values than their defaults, and change nothing because of the key `by`
 * (an OPT_): "adam_eps 1e-06: without effect beside optimizer sgd; change: ...". NULL: none. */
const char *config_idle(const Config *cfg, int by);

/* Writes the part of `train help TOPIC` that is about keys. topic: NULL for the sections, `keys`, a
 * section, a key, or another program's name for a key. Returns 0 if there is no such topic. */
int config_help(FILE *f, const char *topic);

/* Returns the section or key whose name is nearest to a misspelled topic; NULL: none is near. */
const char *config_help_suggest(const char *topic);

/* Returns a setting given as a flag in the form key=value: "--lr" with "3", or "--lr=3", gives "lr=3".
 * *known = 0: no key is certain, and the text is advice, or NULL. The text lives as long as the
 * process. */
char *config_argument(const char *flag, const char *value, int *known);

/* Writes configs/OPTIONS.md: the option table in Markdown. */
void config_docs(FILE *f);

/* Returns the name of this build: "gridiron" and git's description of the commit. */
const char *config_build_id(void);
#endif
