/* source -- one checkpoint folder, open for reading: finds it, checks its files, reads boxes of its tensors
 * block by block, each block against its hash. Nothing here dies; reasons name the file and the tensor. */
#ifndef SOURCE_H
#define SOURCE_H
#include "manifest.h"

typedef struct {
    char *dir;                      /* for messages */
    int fd;
    uint64_t device, inode;         /* of the folder that was opened; they outlive source_close */
    Manifest m;
    StFile *shard;                  /* [m.nshard], opened at first use; fd -1 until then */
    char *buffer;                   /* HASH_BLOCK bytes */
    int64_t *not_finite; /* [m.ntensor] elements that are NaN or infinite, as source_verify finds them */
} Source;

/* 1 if there is something under `path`, 0 if not. Dies with EXIT_CHECKPOINT when the system does not tell: a
 * folder that may not be searched is not an empty one. */
int source_present(const char *path);

/* Checkpoint folders that `path` stands for, newest first, from malloc: path itself when it has a manifest,
 * else those iter_N of path/checkpoints that have one. */
char **source_list(const char *path, int *n);
void source_list_free(char **list, int n);

/* The id of the run in the folder `path` (run_directory.h), from malloc; NULL where none is written: path is
 * a checkpoint, or an older build has made the folder. */
char *source_run_id(const char *path);

/* 1 if the checkpoint carries the id of another run than `id`. Where one of the two has none, none differs.
 */
int source_is_foreign(const Source *s, const char *id);

/* The newest checkpoint that `path` stands for, open: a run directory's own newest one, whatever other runs'
 * checkpoints lie there. Its files are open: a run that goes on and deletes it does not disturb the reader. 0
 * and a reason. */
int source_open_newest(Source *s, const char *path, char why[WHY]);

/* 1 if the folder `dir` is no longer the one that s had opened, or tried to: a run that is going on has
 * deleted or replaced it. What was wrong with s is no damage then. */
int source_gone(const Source *s, const char *dir);

/* How often a reader looks again for a newest checkpoint when the one it has found is deleted under its
 * hands. */
#define SOURCE_TRIES 100

/* 1 if name is iter_ and at least seven digits. */
int source_iteration(const char *name, int64_t *iteration);

/* Opens the folder and verifies its manifest. */
int source_open(Source *s, const char *dir, char why[WHY]);
void source_close(Source *s);

/* Every file of the manifest is there in its size, and no safetensors file beside them. */
int source_check_files(const Source *s, char why[WHY]);

/* Elements [row0, row0+rows) x [col0, col0+cols) of t into data, as type `to`, element (r, c) at r*ld + c. */
int source_read(Source *s, const StoredTensor *t, int64_t row0, int64_t col0, int64_t rows, int64_t cols,
                void *data, int64_t ld, Dtype to, char why[WHY]);

/* Reads everything and compares every hash; *bytes, when not NULL, counts along for a progress display. */
int source_verify(Source *s, int64_t *bytes, char why[WHY]);
#endif
