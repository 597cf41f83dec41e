/* fuzz_idx -- a Megatron pair: PREFIX.idx from the input, PREFIX.bin of zeros
 *
 *   byte 0     kind: bit 0: the .bin has the size that the index names, else that of bytes 1 and 2;
 *              bit 1: the rest are not the .idx itself but lengths, of which a right one is made, then
 *              patches of it
 *   the rest   the .idx */
#include "corpus.h"
#include "fuzz.h"
#include <stdlib.h>

enum { HEAD = 34, BIN = 1 << 16, ROWS = 16 };

/* Writes the .idx of `rows` sequences, each its own document, to out; returns its bytes. */
static size_t make_idx(uint8_t *out, int type, int rows, const int32_t *length)
{
    int64_t n = rows, documents = rows + 1, at = 0, one = 1, width = type == 1 ? 1 : type == 8 ? 2 : 4;
    uint8_t *lengths = out + HEAD, *places = lengths + 4 * n, *entries = places + 8 * n;
    memcpy(out, "MMIDIDX\0\0", 9);
    memcpy(out + 9, &one, 8);
    out[17] = (uint8_t)type;
    memcpy(out + 18, &n, 8);
    memcpy(out + 26, &documents, 8);
    for (int64_t i = 0; i <= n; i++) {
        memcpy(entries + 8 * i, &i, 8);
        if (i == n)
            break;
        memcpy(lengths + 4 * i, &length[i], 4);
        memcpy(places + 8 * i, &at, 8);
        at += length[i] * width;
    }
    return (size_t)(entries + 8 * documents - out);
}

/* The bytes that the index names: what the sequences of a whole index take together. */
static size_t named_bytes(const uint8_t *idx, size_t n)
{
    uint64_t rows = 0, sum = 0, width = n > HEAD ? (idx[17] == 1 ? 1 : idx[17] == 8 ? 2 : 4) : 0;
    int32_t length;
    if (n > HEAD)
        memcpy(&rows, idx + 18, 8);
    for (uint64_t i = 0; i < rows && i < ROWS && HEAD + 4 * i + 4 <= n; i++) {
        memcpy(&length, idx + HEAD + 4 * i, 4);
        sum += length > 0 ? (uint64_t)length * width : 0;
    }
    return sum < BIN ? sum : BIN;
}

static void read_some(const Corpus *c)
{
    char *why = NULL;
    int32_t out[64];
    TokenRange range;
    Window w;
    uint64_t print;
    if (!corpus_scan(c, 256, &range, &why) || !window_open(&w, c, 0.25, 1, &why))
        fuzz_found("a corpus that was opened cannot be read: %s", why);
    for (int64_t i = 0; i < w.count; i++) {
        int64_t n = w.length[i] < 64 ? w.length[i] : 64;
        if (!window_read(&w, i, w.length[i] - n, n, out, &why))
            fuzz_found("sequence %ld cannot be read: %s", i, why);
    }
    window_close(&w);
    if (!corpus_fingerprint(c, &print, &why))
        fuzz_found("no fingerprint: %s", why);
}

static void run(const uint8_t *p, size_t n)
{
    static const uint8_t bin[BIN];
    uint8_t made[HEAD + ROWS * 20 + 8];
    int kind = (int)fuzz_take(&p, &n, 1);
    size_t size = fuzz_take(&p, &n, 2);
    if (kind & 2) {
        static const int types[] = {1, 4, 8, 8};
        int32_t length[ROWS] = {0};
        int rows = (int)fuzz_take(&p, &n, 1) % ROWS;
        for (int i = 0; i < rows; i++)
            length[i] = (int32_t)fuzz_take(&p, &n, 1);
        size_t bytes = make_idx(made, types[kind >> 2 & 3], rows, length);
        if (kind & 1)
            size = named_bytes(made, bytes);
        for (size_t at; n > 1; made[at] = (uint8_t)fuzz_take(&p, &n, 1))
            at = fuzz_take(&p, &n, 1) * (kind & 16 ? 1 : 2) % bytes;
        p = made;
        n = bytes;
    } else if (kind & 1) {
        size = named_bytes(p, n);
    }
    fuzz_file("x.idx", p, n);
    fuzz_file("x.bin", bin, size);
    char *why;
    const char *spec = "x";
    Corpus *c = corpus_open(1, &spec, &why);
    if (!c && !strstr(why, "; change: "))
        fuzz_found("no advice in: %s", why);
    if (c) {
        read_some(c);
        corpus_close(c);
    }
    free(why);
}

static void seeds(void)
{
    uint8_t raw[3 + HEAD + ROWS * 20 + 8] = {1};
    static const int types[] = {1, 4, 8};
    for (int t = 0; t < 3; t++)
        for (int rows = 0; rows < 4; rows++)
            fuzz_seed(raw, 3 + make_idx(raw + 3, types[t], rows, (int32_t[]){5, 0, 300}));
    for (int kind = 3; kind < 32; kind += 4)
        fuzz_seed((uint8_t[]){(uint8_t)kind, 0, 0, 3, 7, 1, 9, 60, 1}, 9);
}

const FuzzTarget fuzz_idx = {"idx", run, seeds, NULL, {0}, NULL};
