/* run_directory -- the folder of a run: its id, its lock, and the checkpoint that a start begins from.
 *
 * A folder holds one run. The run has an id, 16 hexadecimal digits drawn at its fresh start, which
 * stands in run.json, in every line of metrics.jsonl and in the state of every checkpoint; a resume
 * keeps it. A fresh start in a folder that holds a run is refused, unless `overwrite` is set: then the
 * old run is moved to FOLDER.1, .2, ... Nothing is deleted. A job that scripts/launch starts again before
 * its first checkpoint begins its own run again: GRIDIRON_BEGUN names the folder, and lines alone make no
 * run there.
 *
 * A start has two halves. run_directory_claim checks, locks and refuses, before memory is taken.
 * run_directory_begin moves folders, after every check that could refuse the start. */
#ifndef RUN_DIRECTORY_H
#define RUN_DIRECTORY_H
#include "comm.h"
#include "config.h"

#define RUN_ID 17

typedef struct {
    char *path;                 /* cfg->save, without slashes at its end */
    const char *from;           /* what to load; NULL: a fresh start */
    int64_t goes_on;            /* bool: `load` names this folder, so its run is continued */
    int64_t memory;             /* bool: `from` is the newest state of `path` and of the copies in memory */
    int64_t used;               /* bool: there is a checkpoint, or lines that another job began */
    int shared;                 /* bool: every rank writes shards into it */
    int lock;                   /* rank 0: descriptor of PATH/.lock, closing it unlocks; -1 elsewhere */
    char id[RUN_ID];            /* the run's id, the same on every rank */
} RunDirectory;

/* Claims the folder cfg->save for this job, and makes it where it is missing. cfg->load may be absent (a
 * fresh start), `latest` or a path into this folder (this run goes on, or starts where nothing is saved
 * yet), or another place. Dies with EXIT_CONFIG when the start would mix two runs or `save` is itself a
 * checkpoint, EXIT_CHECKPOINT when another job holds the lock, EXIT_RESOURCE when the folder cannot be
 * made or written, or when a run that saves has ranks that do not see it. Warns where its lock does not hold
 * between ranks. Collective over all; rank 0 alone writes in the folder. */
void run_directory_claim(RunDirectory *d, const Config *cfg, Comm *all);

/* Prepares the folder for the step after `iteration`. A fresh start moves aside the run that is there. A
 * resume from before the last iteration moves the later checkpoints and a copy of metrics.jsonl to
 * PATH/replaced.1, .2, ... Rank 0 prints what it has moved. Dies with EXIT_RESOURCE, also when ranks of a
 * run that saves still see the folder that was moved aside. Collective over all. */
void run_directory_begin(RunDirectory *d, int64_t iteration, Comm *all);
void run_directory_close(RunDirectory *d);
#endif
