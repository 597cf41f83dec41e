/* safetensors -- the file format: u64 header length, JSON header, data.
 *
 *   {"name": {"dtype": "BF16", "shape": [..], "data_offsets": [begin, end]}, .., "__metadata__": {"k": ".."}}
 *
 * Offsets count from the end of the header; sorted, the ranges follow each other without a hole from 0
 * to the end of the file. Row-major, little endian. The reader checks all of that before it trusts a
 * number: header at most 100 MB, no duplicate names, products that do not overflow, bytes = elements *
 * size. It allocates nothing that the file's size does not cover.
 *
 * Calls return 1, or 0 with a reason in `why`: `inspect` reports a damaged file, and a full disk must
 * not stop a run. Shapes are those in the file. Format: https://github.com/huggingface/safetensors,
 * "Format". */
#ifndef SAFETENSORS_H
#define SAFETENSORS_H
#include "device.h"
#include "file.h"
#include <jansson.h>

#define ST_DIMS 8

typedef struct {
    const char *name;
    const char *dtype;              /* as written: "BF16", or another of the format's types */
    int type;                       /* a Dtype; -1: a type that we can only skip */
    int ndim;                       /* 0: a scalar */
    int64_t shape[ST_DIMS];
    int64_t at, bytes;              /* at: bytes from the start of the file */
} StTensor;

typedef struct {
    int fd;
    char *path;                     /* for messages */
    int64_t size, data;             /* bytes of the file; offset of its data */
    int n;
    StTensor *tensor;               /* sorted by name */
    json_t *header;                 /* owns the strings above */
} StFile;

/* Opens `name` in the folder `dir` (or AT_FDCWD) and checks the header. nofollow refuses symbolic links. */
int st_open(StFile *f, int dir, const char *name, int nofollow, char why[WHY]);
void st_close(StFile *f);

/* Parses and checks a header: `text` of n bytes, from a file of `size` bytes. */
int st_parse(StFile *f, const char *text, int64_t n, int64_t size, char why[WHY]);

const StTensor *st_find(const StFile *f, const char *name);     /* NULL: no such tensor */
const char *st_meta(const StFile *f, const char *key);          /* NULL: no such entry */
int64_t st_elements(const StTensor *t);

/* Reads `bytes` bytes of tensor t into p, from `at` bytes after its start. */
int st_read(const StFile *f, const StTensor *t, int64_t at, void *p, int64_t bytes, char why[WHY]);

typedef struct {
    int fd, n;
    char *path;
    StTensor *tensor;               /* in the caller's order, at and bytes filled in */
    int64_t size, data, put;        /* bytes of the file, of its header, and of data written so far */
    uint64_t header_hash;           /* XXH3-64 of the first `data` bytes */
} StWriter;

/* Creates the file and writes its header. Data are laid out by falling element size, otherwise in the
 * caller's order; the same tensors give the same bytes.
 *   exclusive  in  bool: an existing file is an error; 0: it is emptied
 *   t          in  [n]  name, type, ndim and shape filled in
 *   meta       in  key, text, .., NULL */
int st_create(StWriter *w, int dir, const char *name, int exclusive, const StTensor *t, int n,
              const char *const *meta, char why[WHY]);

/* Opens a file that another process has created with the same tensors and metadata, to write some of its
 * bytes. */
int st_join(StWriter *w, int dir, const char *name, const StTensor *t, int n, const char *const *meta,
            char why[WHY]);

/* Writes bytes of the caller's tensor i, from `at` bytes after its start. Any order, each byte once. */
int st_put(StWriter *w, int i, int64_t at, const void *p, int64_t bytes, char why[WHY]);

/* Flushes and closes; every byte must have been put. After a failure st_discard closes instead. */
int st_finish(StWriter *w, char why[WHY]);
void st_discard(StWriter *w);
#endif
