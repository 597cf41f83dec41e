/* saver -- the state of a Saver, its jobs, and where copies in memory go (peers.c). Private to the room. */
#ifndef SAVER_H
#define SAVER_H
#include "checkpoint.h"
#include "source.h"
#include <pthread.h>
#include <stdatomic.h>

/* Pieces [first, first + count) of one tensor, written as one box of `rows` rows. */
typedef struct { int first, count; int64_t rows; char name[BOX_NAME]; } Entry;

/* Where the elements of a piece are read: data, ld, rest, scale and dev of a TensorPiece. */
typedef struct { const char *p; int64_t ld; const int16_t *rest; const uint8_t *scale; Device *dev; } View;

typedef enum { IDLE, WRITING, SENDING, COMMITTING, SPREADING, VERIFYING, DELETING } Phase;

typedef struct Peers Peers;

struct Saver {
    const Config *cfg;
    Comm *all;
    char *run_dir;                  /* or this host's folder of copies in memory */
    int memory, async, leads;       /* bools: these are copies in memory; a thread writes, from a snapshot;
                                     * this rank removes and commits in its folder */
    Peers *peers;                   /* copies in memory: where this rank's shards go; NULL: to disk */
    char *text;                     /* the manifest, on ranks that commit it; NULL: not made yet */
    int64_t text_bytes;
    int64_t keep, every;            /* newest kept; multiples kept for good; CFG_ABSENT: all, none */
    int dir;                        /* descriptor of RUN/checkpoints; -1 before saver_start */
    const TensorPiece *piece;
    View *view;                     /* [n] memory that is written: the caller's, or the snapshot */
    int n, nentry;
    Entry *entry;
    int64_t bytes, job_bytes;       /* of this rank's tensors; of all ranks' */
    double spent, longest;          /* seconds of this rank's jobs: this save's; the longest save's */
    char *snapshot, *buffer;        /* buffer: HASH_BLOCK bytes */
    Device *teller;                 /* device that copies the snapshot; NULL: none */
    int64_t ticket;                 /* teller's read_wait ticket of the whole snapshot */

    Phase phase;                    /* of the save under way */
    int attempt;                    /* 0, then 1 */
    int64_t iteration, committed;   /* committed: newest checkpoint on disk; -1: none */
    int64_t before;                 /* committed when this save began */
    int verifies;                   /* bool: a checkpoint is read back */
    int64_t verified;               /* newest checkpoint on disk that has been read; -1: none is known */
    int rewritten;                  /* bool: this save has been damaged, and is written again */
    int checked;                    /* bool: this rank has read back all that it wrote */
    atomic_int hurry;               /* bool: nothing is read back any more */
    int failed;                     /* failed saves in a row */
    char lost[WHY];                 /* why this rank could not write the last save, given up; else "" */
    unsigned waits;                 /* saves that found another one under way */
    char name[32], tmp[48];         /* iter_N; iter_N.tmp */
    json_t *state, **part;          /* part: [ranks] this rank's; on rank 0 after WRITING all ranks' */

    /* the job: run by the thread, or in place without async_save */
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    int (*job)(Saver *s, char why[WHY]);    /* NULL: none */
    int quit, ok;
    char why[WHY];
};

static inline int64_t piece_bytes(const TensorPiece *p)
{
    return p->rows * p->cols * (int64_t)dtype_size(p->type);
}

/* First job: makes the folder s->tmp, writes and flushes this rank's shards in it, and fills
 * s->part[rank]. */
int saver_write(Saver *s, char why[WHY]);

/* The name of rank's shard with weights (optim 0) or the rest. */
static inline void shard_name(char name[40], int optim, int rank)
{
    snprintf(name, 40, "%s-%05d.safetensors", optim ? "optim" : "model", rank);
}

/* Second job, rank 0: writes the manifest, renames the folder, writes the hint `latest`. A failure of the
 * last is only a warning: the checkpoint is complete. */
int saver_commit(Saver *s, char why[WHY]);

/* Third job, each rank (checkpoint_verify.c): reads its shards back from the disk and compares every hash.
 * Fails when they are damaged. s->checked stays 0 when that is not known: s->hurry, or this process is out of
 * memory or descriptors. */
int saver_verify(Saver *s, char why[WHY]);

/* Fourth job, rank 0: deletes old checkpoints and leftovers. Failures are warnings. */
int saver_retain(Saver *s, char why[WHY]);

/* Renames the checkpoint to iter_N.damaged, which no load takes. */
int saver_bury(Saver *s, char why[WHY]);

/* Removes leftovers (*.tmp, *.trash, *.old) of earlier saves and deletions; a checkpoint that lost its name
 * to a save that did not end gets it back. Failures are ignored. */
void saver_clean(Saver *s);

/* peers.c. peers_bytes: of the shards that this host will hold, from those [ranks] that each rank writes. */
Peers *peers_open(Comm *all);       /* collective */
void peers_close(Peers *p);
int peers_hosts(const Peers *p);
int64_t peers_bytes(const Peers *p, const int64_t *bytes, int ranks);

/* Shards to and from peers, in rounds: begin maps them, and returns 0 and a reason where this rank cannot;
 * each next ends a round and starts one, and returns 0 when all is there; drop gives up. spread gives the
 * manifest of rank 0 to all. begin, next and spread are collective. */
int peers_begin(Saver *s, char why[WHY]);
int peers_next(Saver *s);
void peers_drop(Saver *s);
void peers_spread(Saver *s);
#endif
