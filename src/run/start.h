/* start -- what every command that runs a model does first. */
#ifndef START_H
#define START_H
#include "args.h"
#include "run.h"
#include "run_directory.h"

/* The configuration for the ranks that a launcher started (one without a launcher), as config_load_over reads
 * it; a command that needs `load` takes a run directory or a checkpoint for `path` too. With pipeline_balance
 * cost the layers are shared out by the times that rank 0 measures. Takes the rest of a's arguments.
 * Collective. */
const Config *start_config(const char *path, Args *a, ConfigUse use);

/* The same for a world that is only planned. Not collective. */
const Config *start_plan(const char *path, Args *a, int world);

/* The samples that the whole run takes, which decides their order; `batch` when the config does not say. */
int64_t start_samples(const Config *cfg, int64_t batch);

/* A split of the corpus for this data-parallel rank. All ranks must see the same bytes. Collective. */
Loader *start_loader(const Config *cfg, Run *r, Split split, int64_t samples);

/* What every rank holds and how the step is cut up, for people; nothing with one rank. */
void start_print(FILE *f, const Run *r);

/* Claims the run directory for this job (run_directory.h) over a grid of its own, before there is any other.
 * Collective. */
void start_directory(RunDirectory *d, const Config *cfg);

/* The command that starts `train ARG ...` again on as many ranks, quoted for a shell, from malloc. without:
 * keys that are left out, up to a NULL; with: text for the end of the line. */
char *start_command(const Config *cfg, int argc, char **argv, const char *const *without, const char *with);

/* {"tp", "cp", "ep", "etp", "dp", "pp", "vpp"} */
json_t *start_layout(const Config *cfg);
#endif
