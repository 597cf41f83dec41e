/* start -- configuration, corpus and run directory of every command that runs a model. */
#ifndef START_H
#define START_H
#include "args.h"
#include "run.h"
#include "run_directory.h"

/* The configuration, as config_load_over reads it, for the ranks that a launcher started (one without a
 * launcher). A command that needs `load` also takes a run directory or a checkpoint for `path`. With
 * pipeline_balance cost the layers are split by the times that rank 0 measures. Takes the rest of a's
 * arguments. Collective. */
const Config *start_config(const char *path, Args *a, ConfigUse use);

/* config_load_over, with the checkpoints of this program. Not collective. */
const Config *start_load(const char *path, int nargs, char **args, int world, ConfigUse use);

/* As start_config, for a world that is only planned: with pipeline_balance cost the layers are not split yet.
 * Not collective. */
const Config *start_plan(const char *path, Args *a, int world);

/* The command line [*n] with which config_load reads what start_config and start_plan read with args: these
 * look into the checkpoint that `load` names, too. Lasts as a Config does. Not collective. */
char **start_args(const char *path, int nargs, char **args, int *n);

/* The largest legal world of at most `most` ranks and at least min_world, for the configuration of a job of
 * `world` ranks: `world` where there is room for it. Dies if there is none, or if a smaller one is needed and
 * min_world is not set. */
int start_smaller(const char *path, Args *a, int world, int most);

/* The samples that the whole run takes; their number decides their order. `batch` when the config gives
 * no length. */
int64_t start_samples(const Config *cfg, int64_t batch);

/* Opens a split of the corpus for this data-parallel rank. All ranks must see the same bytes.
 * Collective. */
Loader *start_loader(const Config *cfg, Run *r, Split split, int64_t samples);

/* Prints what every rank holds and how the step is cut up; nothing with one rank. */
void start_print(FILE *f, const Run *r);

/* Warns of keys that are set and change nothing in this run of `total` iterations. */
void start_warn(const Config *cfg, int64_t total);

/* Claims the run directory for this job (run_directory.h), over a grid that is opened for this alone.
 * Collective. */
void start_directory(RunDirectory *d, const Config *cfg);

/* The command that starts `train ARG ...` again on as many ranks, quoted for a shell, from malloc.
 *   without  in  keys that are left out, up to a NULL
 *   with     in  text for the end of the line */
char *start_command(const Config *cfg, int argc, char **argv, const char *const *without, const char *with);

/* Sizes of the grid: {"tp", "cp", "ep", "etp", "dp", "pp", "vpp"}. */
json_t *start_layout(const Config *cfg);
#endif
