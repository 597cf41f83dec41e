/* Corpora, the order of samples against goldens, bad files one by one, the loader, the tokenizer. Files are made in
 * the folder $WORK. Cases that end in die() run in a child. */
#define _GNU_SOURCE
#include "base.h"
#include "dataset.h"
#include "loader.h"
#include "test.h"
#include "tokenizer.h"
#include <fcntl.h>
#include <inttypes.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char *work;
static char *in_work(const char *name) { return xasprintf("%s/%s", work, name); }

/* A pair with the given lengths, one document a sequence. fill: token of (sequence, at), or NULL for a hole of
 * zeros, which takes no time. */
static void put_pair(const char *prefix, int64_t n, const int32_t *length, int type, int64_t (*fill)(int64_t, int64_t))
{
    char *idx = xasprintf("%s.idx", prefix), *bin = xasprintf("%s.bin", prefix);
    int64_t width = type == 1 ? 1 : type == 4 ? 4 : 2, end = 0, version = 1, docs = n + 1;
    FILE *x = fopen(idx, "wb"), *b = fopen(bin, "wb");
    fwrite("MMIDIDX\0\0", 1, 9, x);
    fwrite(&version, 8, 1, x);
    fputc(type, x);
    fwrite(&n, 8, 1, x);
    fwrite(&docs, 8, 1, x);
    fwrite(length, 4, (size_t)n, x);
    for (int64_t i = 0; i < n; end += width * length[i++]) {
        fwrite(&end, 8, 1, x);
        for (int64_t k = 0; fill && k < length[i]; k++) {
            int64_t t = fill(i, k);
            fwrite(&t, (size_t)width, 1, b);
        }
    }
    for (int64_t i = 0; i <= n; i++)
        fwrite(&i, 8, 1, x);
    fclose(x);
    fclose(b);
    CHECK(!truncate(bin, end), "%s", bin);
    free(idx);
    free(bin);
}

static int64_t golden_token(int64_t row, int64_t at) { return (row * 7919 + at * 31) % 50257; }

static uint64_t fnv(const void *p, int64_t n) { return hash64(p, (size_t)n, HASH_SEED); }

/* ---- order ---- */

static void test_order(const char *line)
{
    char name[64], split[64], *why = NULL;
    int64_t n, low, high, empty, wanted, seq, epochs, documents, samples, first[8];
    uint32_t state, seed;
    int which, separate;
    uint64_t h[4];
    int got = sscanf(line, "order %63s %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %u %63s %d %" SCNd64 " %" SCNd64
                     " %u %" SCNd64 " %d %" SCNd64 " %" SCNd64 " %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64
                     " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64, name,
                     &n, &low, &high, &empty, &state, split, &which, &wanted, &seq, &seed, &epochs, &separate, &documents,
                     &samples, &h[0], &h[1], &h[2], &h[3], &first[0], &first[1], &first[2], &first[3], &first[4],
                     &first[5], &first[6], &first[7]);
    CHECK(got == 27, "golden line has %d fields", got);
    int32_t *length = xcalloc((size_t)n, 4);
    for (int64_t i = 0; i < n; i++) {
        state = (state * 1103515245u + 12345) & 0x7fffffff;
        length[i] = empty && i % empty == 0 ? 0 : (int32_t)(low + (state >> 8) % (high - low + 1));
    }
    char *prefix = in_work("order");
    put_pair(prefix, n, length, TOKEN_U16, golden_token);
    Blend b;
    const char *path = prefix;
    int ok = blend_open(&b, 1, &path, split, which, wanted, seq, seed, &why);
    CHECK(ok, "%s: %s", name, why);
    if (!ok)
        return;
    const Dataset *d = &b.set[0];
    CHECK(d->epochs == epochs && d->separate == separate && d->documents == documents && d->samples == samples,
          "%s: %ld epochs, apart %d, %ld documents, %ld samples", name, d->epochs, d->separate, d->documents, d->samples);
    int64_t last = d->samples - 1;
    int64_t mine[8] = {d->document[0], d->document[d->documents - 1], d->sample[2], d->sample[3],
                       d->sample[2 * last + 2], d->sample[2 * last + 3], d->shuffle[0], d->shuffle[last]};
    CHECK(!memcmp(mine, first, sizeof mine), "%s: first or last entries differ", name);
    CHECK(fnv(d->document, 4 * documents) == h[0], "%s: document index differs", name);
    CHECK(fnv(d->sample, 8 * (samples + 1)) == h[1], "%s: sample index differs", name);
    CHECK(fnv(d->shuffle, 4 * samples) == h[2], "%s: shuffle index differs", name);
    int32_t *text = xcalloc((size_t)(seq + 1), 16);
    int64_t k[4] = {0, 1, samples / 2, last}, row, at;
    for (int i = 0; i < 4; i++) {
        CHECK(blend_read(&b, k[i], text + i * (seq + 1), NULL, &why), "%s: %s", name, why);
        dataset_where(d, k[i], seq / 2, &row, &at);
        CHECK(golden_token(row, at) == text[i * (seq + 1) + seq / 2], "%s: dataset_where is wrong", name);
    }
    CHECK(fnv(text, 16 * (seq + 1)) == h[3], "%s: text of the samples differs", name);
    free(text);
    free(length);
    free(prefix);
    blend_close(&b);
}

static void test_blend_order(char *line)
{
    char name[64], kind[16], *given = xcalloc(1, strlen(line));
    int n;
    int64_t wanted, size, built;
    uint64_t h[2];
    int got = sscanf(line, "blend %63s %15s %d %s %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNx64 " %" SCNx64, name, kind, &n,
                     given, &wanted, &size, &built, &h[0], &h[1]);
    CHECK(got == 9, "golden line has %d fields", got);
    /* Corpora just large enough: one document each, of seq 4. With weights any size will do, epochs repeat. */
    int weighted = !strcmp(kind, "weight");
    const char **path = xcalloc((size_t)(2 * n), sizeof *path);
    char *word = strtok(given, ",");
    for (int i = 0; i < n; i++, word = strtok(NULL, ",")) {
        int32_t length = weighted ? 4001 : 4 * atoi(word) + 1;
        char *prefix = xasprintf("%s/blend%d", work, i);
        put_pair(prefix, 1, &length, TOKEN_U16, NULL);
        if (weighted)
            path[2 * i] = word;
        path[weighted ? 2 * i + 1 : i] = prefix;
    }
    Blend b;
    char *why = NULL;
    int ok = blend_open(&b, weighted ? 2 * n : n, path, "1", 0, wanted, 4, 7, &why);
    CHECK(ok, "%s: %s", name, why);
    if (ok) {
        CHECK(b.samples == size, "%s: %ld samples, should be %ld", name, b.samples, size);
        CHECK(fnv(b.which, 2 * b.samples) == h[0] && fnv(b.nth, 4 * b.samples) == h[1], "%s: order differs", name);
        int64_t asked = 0;
        for (int i = 0; i < n; i++)
            asked += weighted ? b.set[i].wanted : b.set[i].samples;
        CHECK(asked == built, "%s: %ld samples built, should be %ld", name, asked, built);
        blend_close(&b);
    }
    for (int i = 0; i < n; i++)
        free((void *)path[weighted ? 2 * i + 1 : i]);
    free(path);
    free(given);
}

static void test_goldens(void)
{
    FILE *f = fopen("tests/golden/sample_order.txt", "r");
    CHECK(f, "run from the top folder");
    char *line = NULL;
    size_t room = 0;
    int lines = 0;
    while (f && getline(&line, &room, f) > 0) {
        lines += *line != '#';
        if (!strncmp(line, "order", 5))
            test_order(line);
        else if (!strncmp(line, "blend", 5))
            test_blend_order(line);
    }
    CHECK(lines == 11, "%d goldens", lines);
    free(line);
    if (f)
        fclose(f);
}

int main(void)
{
    work = getenv("WORK") ? getenv("WORK") : "/tmp";
    test_goldens();
    return test_end();
}
