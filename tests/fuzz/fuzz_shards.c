/* fuzz_shards -- a checkpoint of two shards whose bytes are patched, then its hashes put right again, as far
 * as the input says: so what lies behind the hashes is read too
 *
 *   byte 0     bit 0: hashes of blocks are right, bit 1: hashes of headers, bit 2: the manifest's own; bit 3:
 *              sizes in the manifest are right
 *   the rest   patches: file (0 manifest, 1 and 2 shards), place (2 bytes), number of bytes that are cut out
 *              there, number of bytes that are put in, and these */
#define _GNU_SOURCE
#include "fuzz.h"
#include "source.h"
#include <inttypes.h>
#include <stdlib.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

enum { PARTS = 3, ROOM = 4096, PATCHES = 16 };

typedef struct {
    uint8_t p[ROOM];
    size_t n;
} Part;

static Part first[PARTS]; /* as they were written */

static void put_shard(Part *s, const char *header, int data)
{
    uint64_t n = strlen(header);
    memcpy(s->p, &n, 8);
    memcpy(s->p + 8, header, n);
    for (int i = 0; i < data; i++)
        s->p[8 + n + (uint64_t)i] = (uint8_t)(i * 7 % 61);
    s->n = 8 + n + (uint64_t)data;
}

static const char *const shards[] = {"model-00000.safetensors", "model-00001.safetensors"};

static void write_first(void)
{
    put_shard(&first[1],
              "{\"__metadata__\":{\"iteration\":\"7\"},\"w-0-0\":{\"dtype\":\"F32\",\"shape\":[2,6],"
              "\"data_offsets\":[0,48]},\"v\":{\"dtype\":\"BF16\",\"shape\":[5],\"data_offsets\":[48,58]}}",
              58);
    put_shard(&first[2],
              "{\"w-2-0\":{\"dtype\":\"F32\",\"shape\":[2,4],\"data_offsets\":[0,32]},\"w-2-4\":{\"dtype\":"
              "\"F32\",\"shape\":[2,2],\"data_offsets\":[32,48]}}",
              48);
    first[0].n = (size_t)sprintf(
        (char *)first[0].p,
        "{\"format\":\"gridiron\",\"version\":1,\"iteration\":7,\"state\":{},\"files\":[{\"name\":\"%s\","
        "\"bytes\":%6zu,"
        "\"header\":\"@0@0000000000000\"},{\"name\":\"%s\",\"bytes\":%6zu,\"header\":\"@1@0000000000000\"}],"
        "\"tensors\":{\"w\":{\"dtype\":\"F32\",\"shape\":[4,6],\"boxes\":["
        "{\"file\":\"%s\",\"row\":0,\"col\":0,\"rows\":2,\"cols\":6,\"hash\":[\"@2@0000000000000\"]},"
        "{\"file\":\"%s\",\"row\":2,\"col\":0,\"rows\":2,\"cols\":4,\"hash\":[\"@3@0000000000000\"]},"
        "{\"file\":\"%s\",\"row\":2,\"col\":4,\"rows\":2,\"cols\":2,\"hash\":[\"@4@0000000000000\"]}]},"
        "\"v\":{\"dtype\":\"BF16\",\"shape\":[5],\"boxes\":[{\"file\":\"%s\",\"row\":0,\"col\":0,\"rows\":5,"
        "\"cols\":1,"
        "\"hash\":[\"@5@0000000000000\"]}]}},\"hash\":\"0000000000000000\"}\n",
        shards[0], first[1].n, shards[1], first[2].n, shards[0], shards[1], shards[1], shards[0]);
}

static void patch(Part *part, const uint8_t **p, size_t *n)
{
    size_t at = fuzz_take(p, n, 2) % (part->n + 1), cut = fuzz_take(p, n, 1), more = fuzz_take(p, n, 1) % 64;
    cut = cut < part->n - at ? cut : part->n - at;
    more = more < *n ? more : *n;
    if (part->n - cut + more > ROOM)
        return;
    memmove(part->p + at + more, part->p + at + cut, part->n - at - cut);
    if (more)
        memcpy(part->p + at, *p, more);
    part->n += more - cut;
    *p += more;
    *n -= more;
}

/* Writes the hash of p [bytes] over the mark @k@0000000000000. */
static void put_hash(Part *manifest, int k, const void *p, size_t bytes)
{
    char mark[] = {'@', (char)('0' + k), '@'}, hex[17];
    uint8_t *at = memmem(manifest->p, manifest->n, mark, 3);
    snprintf(hex, sizeof hex, "%016" PRIx64, XXH3_64bits(p, bytes));
    if (at && at + 16 <= manifest->p + manifest->n)
        memcpy(at, hex, 16);
}

static size_t header_bytes(const Part *s)
{
    uint64_t n = 0;
    memcpy(&n, s->p, 8);
    return s->n >= 8 && n <= s->n - 8 ? 8 + n : 0;
}

static void put_size(Part *manifest, int k, size_t bytes)
{
    uint8_t *at = manifest->p;
    char text[7];
    for (; k >= 0 && at; k--)
        at = memmem(at + 1, manifest->n - (size_t)(at + 1 - manifest->p), "\"bytes\":", 8);
    snprintf(text, sizeof text, "%6zu", bytes);
    if (at && at + 14 <= manifest->p + manifest->n)
        memcpy(at + 8, text, 6);
}

static void put_right(Part part[PARTS], int kind)
{
    static const struct {
        int shard;
        size_t from, bytes;
    } boxes[] = {{1, 0, 48}, {2, 0, 32}, {2, 32, 16}, {1, 48, 10}};
    for (int k = 0; k < 4 && kind & 1; k++) {
        const Part *s = &part[boxes[k].shard];
        size_t at = header_bytes(s) + boxes[k].from;
        if (at + boxes[k].bytes <= s->n)
            put_hash(&part[0], 2 + k, s->p + at, boxes[k].bytes);
    }
    for (int k = 0; k < 2; k++) {
        if (kind & 2)
            put_hash(&part[0], k, part[k + 1].p, header_bytes(&part[k + 1]));
        if (kind & 8)
            put_size(&part[0], k, part[k + 1].n);
    }
    if (kind & 4 && part[0].n > 19) {
        char hex[17];
        snprintf(hex, sizeof hex, "%016" PRIx64, XXH3_64bits(part[0].p, part[0].n - 19));
        memcpy(part[0].p + part[0].n - 19, hex, 16);
    }
}

static void read_all(Source *s)
{
    char why[WHY];
    for (int i = 0; i < s->m.ntensor; i++) {
        const StoredTensor *t = &s->m.tensor[i];
        if (t->shape[0] > 64 || t->shape[1] > 64)
            continue;
        double *to = xcalloc((size_t)(t->shape[0] * t->shape[1]), sizeof *to);
        source_read(s, t, 0, 0, t->shape[0], t->shape[1], to, t->shape[1], F64, why);
        source_read(s, t, t->shape[0] / 2, t->shape[1] / 2, (t->shape[0] + 1) / 2, (t->shape[1] + 1) / 2, to,
                    t->shape[1], F64, why);
        free(to);
    }
}

static void run(const uint8_t *p, size_t n)
{
    static Part part[PARTS];
    Source s;
    char why[WHY];
    int64_t bytes = 0;
    int kind = (int)fuzz_take(&p, &n, 1);
    if (!first[0].n)
        write_first();
    for (int i = 0; i < PARTS; i++) {
        memcpy(part[i].p, first[i].p, first[i].n);
        part[i].n = first[i].n;
    }
    for (int k = 0; n && k < PATCHES; k++) {
        Part *q = &part[fuzz_take(&p, &n, 1) % PARTS];
        patch(q, &p, &n);
    }
    put_right(part, kind);
    fuzz_file(MANIFEST, part[0].p, part[0].n);
    for (int i = 0; i < 2; i++)
        fuzz_file(shards[i], part[i + 1].p, part[i + 1].n);
    if (source_open(&s, "x", why)) {
        source_verify(&s, &bytes, why);
        read_all(&s);
    }
    source_close(&s);
}

static void seeds(void)
{
    fuzz_seed((uint8_t[]){15}, 1);
    for (int kind = 0; kind < 16; kind++)
        for (int file = 0; file < PARTS; file++)
            fuzz_seed((uint8_t[]){(uint8_t)kind, (uint8_t)file, (uint8_t)(90 + 13 * kind), 0, 1, 1, '9'}, 7);
}

static const char *const words[] = {"\"row\":",
                                    "\"rows\":2",
                                    "\"cols\":6",
                                    "\"hash\":[",
                                    "F64",
                                    "[4,6]",
                                    "9223372036854775807",
                                    "\"data_offsets\":[0,48]",
                                    "model-00001.safetensors",
                                    "w-2-0",
                                    NULL};

const FuzzTarget fuzz_shards = {"shards", run, seeds, NULL, {EXIT_CHECKPOINT}, words};
