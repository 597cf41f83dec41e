/* fuzz_manifest -- manifest.json: the input is its text without the hash of itself, which is put behind; of
 * an input that begins with a blank all the rest is the text */
#include "fuzz.h"
#include "manifest.h"
#include <inttypes.h>
#include <stdlib.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#define TAIL ",\n\"hash\":\""

static void check(const Manifest *m)
{
    for (int i = 0; i < m->ntensor; i++) {
        const StoredTensor *t = &m->tensor[i];
        int64_t sum = 0;
        if (manifest_find(m, t->name) != t)
            fuzz_found("tensor %s is in the list but is not found", t->name);
        for (int k = 0; k < t->nbox; k++) {
            char name[BOX_NAME];
            const StoredBox *b = &t->box[k];
            if (b->shard < 0 || b->shard >= m->nshard)
                fuzz_found("tensor %s lies in shard %d of %d", t->name, b->shard, m->nshard);
            if (b->row0 < 0 || b->col0 < 0 || b->row0 + b->rows > t->shape[0] ||
                b->col0 + b->cols > t->shape[1])
                fuzz_found("a box of %s does not lie in it", t->name);
            manifest_box_name(name, t->name, b->row0, b->col0, 0);
            sum += b->rows * b->cols;
        }
        if (sum != t->shape[0] * t->shape[1])
            fuzz_found("the boxes of %s do not make it up", t->name);
    }
}

static void run(const uint8_t *p, size_t n)
{
    static char text[1 << 16];
    Manifest m;
    char why[WHY];
    if (n > sizeof text - 64)
        return;
    if (n && *p == ' ') {
        memcpy(text, p + 1, --n);
    } else {
        if (n)
            memcpy(text, p, n);
        memcpy(text + n, TAIL, strlen(TAIL));
        n += strlen(TAIL);
        n += (size_t)sprintf(text + n, "%016" PRIx64 "\"}\n", XXH3_64bits(text, n));
    }
    fuzz_file(MANIFEST, text, n);
    if (manifest_open(&m, -1, why))
        check(&m);
    manifest_close(&m);
}

#define HASH "\"0123456789abcdef\""
#define OPENING "{\"format\":\"gridiron\",\"version\":1,\"iteration\":7,\n\"state\":{\"iteration\":7},\n"

static void seeds(void)
{
    fuzz_seed_text(OPENING "\"files\":[],\n\"tensors\":{}");
    fuzz_seed_text(OPENING "\"files\":[{\"name\":\"a.st\",\"bytes\":900,\"header\":" HASH "}],\n\"tensors\":{"
                           "\"w\":{\"dtype\":\"F32\",\"shape\":[4,6],\"boxes\":[{\"file\":\"a.st\",\"row\":0,"
                           "\"col\":0,\"rows\":4,\"cols\":6,\"hash\":[" HASH "]}]}}");
    fuzz_seed_text(
        OPENING
        "\"files\":[{\"name\":\"a.st\",\"bytes\":900,\"header\":" HASH "},{\"name\":\"b.st\","
        "\"bytes\":5000000,\"header\":" HASH "}],\"tensors\":{\"w\":{\"dtype\":\"F64\",\"shape\":"
        "[4,6],\"boxes\":[{\"file\":\"a.st\",\"row\":0,\"col\":0,\"rows\":2,\"cols\":6,\"hash\":[" HASH
        "]},{\"file\":\"b.st\",\"row\":2,\"col\":0,\"rows\":2,\"cols\":4,\"hash\":[" HASH "]},"
        "{\"file\":\"b.st\",\"row\":2,\"col\":4,\"rows\":2,\"cols\":2,\"hash\":[" HASH "]}]},"
        "\"v\":{\"dtype\":\"BF16\",\"shape\":[2500000],\"boxes\":[{\"file\":\"b.st\",\"row\":0,"
        "\"col\":0,\"rows\":2500000,\"cols\":1,\"hash\":[" HASH "," HASH "]}]}}");
}

static const char *const words[] = {"\"format\":\"gridiron\"",
                                    "\"version\":1",
                                    "\"iteration\":",
                                    "\"state\":{}",
                                    "\"files\":[",
                                    "\"tensors\":{",
                                    "\"name\":",
                                    "\"bytes\":",
                                    "\"header\":",
                                    "\"dtype\":",
                                    "\"shape\":",
                                    "\"boxes\":[",
                                    "\"file\":",
                                    "\"row\":",
                                    "\"col\":",
                                    "\"rows\":",
                                    "\"cols\":",
                                    "\"hash\":[",
                                    HASH,
                                    "manifest.json",
                                    "9223372036854775807",
                                    "4611686018427387904",
                                    "1152921504606846975",
                                    "-1",
                                    NULL};

const FuzzTarget fuzz_manifest = {"manifest", run, seeds, NULL, {0}, words};
