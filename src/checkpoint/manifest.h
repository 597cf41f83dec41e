/* manifest -- manifest.json, the file that makes a folder of shards a checkpoint.
 *
 * {"format": "gridiron", "version": 1, "iteration": N, "state": {..},
 *  "files": [{"name": "model-00000.safetensors", "bytes": .., "header": "<XXH3-64 of its header>"}, ..],
 *  "tensors": {"NAME": {"dtype": "F32", "shape": [..], "boxes": [BOX, ..]}, ..},
 *  "hash": "<XXH3-64 of every byte before this value>"}
 * with BOX {"file": "..", "row": .., "col": .., "rows": .., "cols": ..,
 *           "hash": ["<XXH3-64 of each HASH_BLOCK bytes of the box>", ..]}
 *
 * The boxes of a tensor tile it. A box is dense in its shard, under the name manifest_box_name. No
 * times, hosts or paths are written. */
#ifndef MANIFEST_H
#define MANIFEST_H
#include "safetensors.h"

#define MANIFEST "manifest.json"
#define MANIFEST_VERSION 1
#define MANIFEST_MAX ((int64_t)1 << 30)
#define HASH_BLOCK ((int64_t)4 << 20)   /* bytes: less than a large tensor, more than a disk request */

typedef struct { const char *name; int64_t bytes; uint64_t header; } Shard;

typedef struct {
    int shard;                          /* index in Manifest.shard */
    int64_t row0, col0, rows, cols;     /* in the global tensor */
    uint64_t *hash;                     /* of each HASH_BLOCK bytes; the last block may be short */
} StoredBox;

typedef struct {
    const char *name;
    Dtype type;
    int ndim;                           /* 1 or 2; a vector's boxes have one column */
    int64_t shape[2];                   /* shape[1] = 1 for a vector */
    int nbox;
    StoredBox *box;
} StoredTensor;

typedef struct {
    json_t *json;                       /* the whole manifest; owns all strings */
    json_t *state;                      /* borrowed from json */
    int64_t iteration;
    uint64_t hash;                      /* the manifest's hash of itself */
    int nshard, ntensor;
    Shard *shard;
    json_t *index;                      /* number of each shard by its name */
    StoredTensor *tensor;               /* sorted by name */
} Manifest;

/* Reads and verifies a manifest text: its hash first, then the version, then every number and name.
 * Returns 1, or 0 and a reason. */
int manifest_parse(Manifest *m, const char *text, int64_t n, char why[WHY]);

/* As manifest_parse, for the file in the folder `dir`. */
int manifest_open(Manifest *m, int dir, char why[WHY]);
void manifest_close(Manifest *m);

/* The index of the shard of that name; -1: the manifest does not name it. */
int manifest_shard(const Manifest *m, const char *name);

const StoredTensor *manifest_find(const Manifest *m, const char *name);

/* A rank's part of the manifest, for the shards that it writes: {"files": [..], "tensors": {..}}. */
json_t *manifest_part_new(void);
void manifest_part_file(json_t *part, const char *name, int64_t bytes, uint64_t header);
void manifest_part_box(json_t *part, const char *file, const char *tensor, Dtype type, int ndim,
              const int64_t shape[2], const StoredBox *box);

/* The text of the manifest from the parts of all ranks, in rank order; from malloc. The boxes must tile
 * their tensors, else BUG. */
char *manifest_text(json_t *const *part, int parts, int64_t iteration, const json_t *state, int64_t *bytes);

/* The name of a box in its shard: NAME for a whole tensor, else NAME-row-col. */
#define BOX_NAME 256
void manifest_box_name(char out[BOX_NAME], const char *tensor, int64_t row0, int64_t col0, int whole);

static inline int64_t box_bytes(const StoredBox *b, Dtype type)
{
    return b->rows * b->cols * (int64_t)dtype_size(type);
}
static inline int64_t box_blocks(int64_t bytes) { return (bytes + HASH_BLOCK - 1) / HASH_BLOCK; }
#endif
