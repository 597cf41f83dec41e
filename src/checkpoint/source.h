/* source -- one checkpoint folder, open for reading: finds it, checks its files, reads boxes of its
 * tensors block by block, each block against its hash. Failures return a reason that names the file and
 * the tensor. */
#ifndef SOURCE_H
#define SOURCE_H
#include "manifest.h"

typedef struct {
    char *dir;                      /* for messages */
    int fd;
    uint64_t device, inode;         /* of the opened folder; still set after source_close */
    Manifest m;
    StFile *shard;                  /* [m.nshard], opened at first use; fd -1: not open */
    char *buffer;                   /* HASH_BLOCK bytes */
    int64_t *not_finite;            /* [m.ntensor] NaN or infinite elements found by source_verify, or NULL */
} Source;

/* Whether `path` exists. Dies with EXIT_CHECKPOINT when the system does not tell, as for a folder that
 * may not be searched. */
int source_present(const char *path);

/* Checkpoint folders at `path`, newest first, from malloc: path itself when it has a manifest, else the
 * iter_N of path/checkpoints that have one. */
char **source_list(const char *path, int *n);
void source_list_free(char **list, int n);

/* What lies at `path` in the place of a checkpoint: ": " and what it is, or "" where that is not known. */
const char *source_instead(const char *path);

/* The id of the run in the folder `path` (run_directory.h), from malloc; NULL where none is written: path is
 * a checkpoint, or an older build has made the folder. */
char *source_run_id(const char *path);

/* Whether the checkpoint has the id of another run than `id`. 0 where one of the two has no id. */
int source_is_foreign(const Source *s, const char *id);

/* Opens the newest checkpoint at `path`: in a run directory the newest one of its own run. All its files
 * are opened, as far as the limit on open files lets, so that a live run that deletes it does not disturb the
 * reader. Returns 1, or 0 and a reason. */
int source_open_newest(Source *s, const char *path, char why[WHY]);
/* The same with the newest that opens, for what its manifest says. Says nothing of damaged ones. */
int source_open_readable(Source *s, const char *path, char why[WHY]);
/* The same with the newest whole one: warns of those that are damaged, and passes over them. Reads all
 * tensors but the optimizer's. */
int source_open_whole(Source *s, const char *path, char why[WHY]);

/* Whether a tensor is the optimizer's, which computing needs not: a master weight or a moment. */
int source_of_optimizer(const StoredTensor *t);

/* Whether a live run has deleted or replaced the folder `dir` since s opened it or tried to. Then a
 * failure of s is no damage. */
int source_gone(const Source *s, const char *dir);

/* How often a reader looks for the newest checkpoint again after the one it found was deleted. */
#define SOURCE_TRIES 100

/* Whether name is iter_ and at least seven digits. */
int source_iteration(const char *name, int64_t *iteration);
/* Orders iterations, int64_t, for qsort: the newest first. */
int source_newest_first(const void *a, const void *b);

/* Asked when a reader has failed: dies by errno where it was this host that lacked memory or descriptors,
 * which says nothing of the checkpoint `path`. */
void source_check_host(const char *path);

/* Opens the folder and verifies its manifest. errno, here and below: EMFILE, ENFILE or ENOMEM only where that
 * was why. */
int source_open(Source *s, const char *dir, char why[WHY]);
void source_close(Source *s);

/* Checks that every file of the manifest exists in its size, with no other safetensors file beside
 * them. */
int source_check_files(Source *s, char why[WHY]);

/* Reads elements [row0, row0+rows) x [col0, col0+cols) of t into data, as type `to`: (r, c) at r*ld
 * + c. */
int source_read(Source *s, const StoredTensor *t, int64_t row0, int64_t col0, int64_t rows, int64_t cols,
                void *data, int64_t ld, Dtype to, char why[WHY]);

/* Reads all of a box of t and compares its hashes. */
int source_verify_box(Source *s, const StoredTensor *t, const StoredBox *b, char why[WHY]);

/* Reads everything and compares every hash. *bytes, when not NULL, is the number of bytes read so
 * far. */
int source_verify(Source *s, int64_t *bytes, char why[WHY]);
#endif
