/* saver -- inside saving: the state of a Saver, and what its jobs do. Only checkpoint_save.c and
 * checkpoint_write.c include this. */
#ifndef SAVER_H
#define SAVER_H
#include "checkpoint.h"
#include "source.h"
#include <pthread.h>

/* Neighbouring pieces of one tensor that go to the disk as one box. */
typedef struct { int first, count; int64_t rows; char name[BOX_NAME]; } Entry;

typedef struct { const char *p; int64_t ld; Device *dev; } View;     /* dev as in TensorPiece */

typedef enum { IDLE, WRITING, COMMITTING } Phase;

struct Saver {
    const Config *cfg;
    Comm *all;
    char *run_dir;
    int dir;                        /* descriptor of RUN/checkpoints; -1 before saver_start */
    const TensorPiece *piece;
    View *view;                     /* [n] what is written: the caller's memory, or the snapshot */
    int n, nentry;
    Entry *entry;
    int64_t bytes;                  /* of this rank's tensors */
    char *snapshot, *buffer;        /* buffer: HASH_BLOCK bytes */
    Device *teller;                 /* of the snapshot: who copies, NULL for nobody, */
    int64_t ticket;                 /* and when it is whole */

    Phase phase;                    /* of the save under way */
    int attempt;                    /* 0, then 1 */
    int64_t iteration, committed;   /* committed: newest on disk, -1 none */
    int failed;                     /* saves in a row */
    char lost[WHY]; /* why the last save was given up, on the rank that could not write, else "" */
    unsigned waits;                 /* saves that found another one under way */
    char name[32], tmp[48];
    json_t *state, **part;          /* part[rank]: its own; on rank 0, once written, everybody's */

    /* the job: run by the thread, or in place without async_save */
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    int (*job)(Saver *s, char why[WHY]);    /* NULL: nothing to do */
    int quit, ok;
    char why[WHY];
};

static inline int64_t piece_bytes(const TensorPiece *p)
{
    return p->rows * p->cols * (int64_t)dtype_size(p->type);
}

/* The jobs, run by the writer thread or in place. Writes this rank's shards into the folder s->tmp and
 * flushes them; fills s->part[rank]. */
int saver_write(Saver *s, char why[WHY]);

/* Rank 0: the manifest, the name, the hint, and the deletions. Failures of the last two are only warnings:
 * the checkpoint is there. */
int saver_commit(Saver *s, char why[WHY]);

/* Removes what earlier saves and deletions have left; a leftover that stays is no reason not to try. */
void saver_clean(Saver *s);
#endif
