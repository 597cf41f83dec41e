/* run_directory -- the folder of a run: whose it is, who writes in it, and which checkpoint a start begins
 * from.
 *
 * A folder holds one run. The run has an id, 16 hexadecimal digits drawn at its fresh start, which stands in
 * run.json, in every line of metrics.jsonl and in the state of every checkpoint; a resume keeps it. A fresh
 * start where a run is already is refused, unless `overwrite` says that the old run is to be moved aside: to
 * FOLDER.1, .2, ... Nothing is deleted.
 *
 * A start has two halves. The claim looks, locks and refuses, before memory is taken; the beginning moves
 * folders, when nothing is left that could refuse to start. */
#ifndef RUN_DIRECTORY_H
#define RUN_DIRECTORY_H
#include "comm.h"
#include "config.h"

#define RUN_ID 17

typedef struct {
    char *path;                 /* cfg->save, without slashes at its end */
    const char *from;           /* what to load; NULL: a fresh start */
    int64_t goes_on;            /* bool: `load` names this folder, so its run is continued */
    int64_t used;               /* bool: a run is in it: a checkpoint, or a line of metrics.jsonl */
    int lock; /* descriptor of PATH/.lock on rank 0, -1 elsewhere; closing it gives the folder free */
    char id[RUN_ID];            /* of the run, the same on every rank */
} RunDirectory;

/* Claims the folder that cfg->save names for this job, and makes it where it is missing. `load` may be absent
 * (a fresh start), `latest` or a path into this folder (the run here goes on, or starts where nothing is
 * saved yet), or another place. Collective over all; rank 0 alone touches the folder. Dies with EXIT_CONFIG
 * when the start would mix two runs or `save` is itself a checkpoint, EXIT_CHECKPOINT when another job holds
 * the lock, EXIT_RESOURCE when the folder cannot be made or written. */
void run_directory_claim(RunDirectory *d, const Config *cfg, Comm *all);

/* The run begins, after `iteration` steps. A fresh start moves aside the run that is there; a run that goes
 * on from an iteration before its last one moves its later checkpoints and a copy of metrics.jsonl to
 * PATH/replaced.1, .2, ... Collective over all; rank 0 says what it has moved. Dies with EXIT_RESOURCE. */
void run_directory_begin(RunDirectory *d, int64_t iteration, Comm *all);
void run_directory_close(RunDirectory *d);
#endif
