/* test_data -- corpora, the order of samples against goldens, bad files one by one, the loader, the
 * tokenizer. Files are made in the folder $WORK. Cases that end in die() run in a child. */
#define _GNU_SOURCE
#include "base.h"
#include "dataset.h"
#include "files.h"
#include "loader.h"
#include "test.h"
#include "tokenizer.h"
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Writes PREFIX.idx and .bin: n documents of one sequence each, of the given lengths. fill: token of
 * (sequence, at); NULL: zeros as a hole in the file, which takes no time. */
static void put_pair(const char *prefix, int64_t n, const int32_t *length, int type,
                     int64_t (*fill)(int64_t, int64_t))
{
    char *idx = xasprintf("%s.idx", prefix), *bin = xasprintf("%s.bin", prefix);
    int64_t width = type == 1 ? 1 : type == 4 ? 4 : 2, end = 0, version = 1, docs = n + 1;
    unlink(idx);
    unlink(bin);
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

/* Returns what tells the order's passes from others. */
static uint64_t test_order(const char *line)
{
    char name[64], split[64], *why = NULL;
    int64_t n, low, high, empty, wanted, seq, epochs, documents, samples, first[8];
    uint32_t state, seed;
    int which, separate;
    uint64_t h[4];
    int got = sscanf(line, "order %63s %ld %ld %ld %ld %u %63s %d %ld %ld %u %ld %d %ld %ld %lx %lx %lx %lx "
                     "%ld %ld %ld %ld %ld %ld %ld %ld",
                     name, &n, &low, &high, &empty, &state, split, &which, &wanted, &seq, &seed, &epochs,
                     &separate, &documents, &samples, &h[0], &h[1], &h[2], &h[3], &first[0], &first[1],
                     &first[2], &first[3], &first[4], &first[5], &first[6], &first[7]);
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
    int ok = blend_open(&b, 1, &path, split, which, wanted, seq, seed, &sharers_none, &why);
    CHECK(ok, "%s: %s", name, why);
    if (!ok)
        return 0;
    const Dataset *d = &b.set[0];
    CHECK(d->epochs == epochs && d->separate == separate && d->documents == documents &&
              d->samples == samples,
          "%s: %ld epochs, apart %d, %ld documents, %ld samples", name, d->epochs, d->separate, d->documents,
          d->samples);
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
        CHECK(blend_read(&b, k[i], 0, seq + 1, text + i * (seq + 1), NULL, &why), "%s: %s", name, why);
        dataset_where(d, k[i], seq / 2, &row, &at);
        CHECK(golden_token(row, at) == text[i * (seq + 1) + seq / 2], "%s: dataset_where is wrong", name);
    }
    CHECK(fnv(text, 16 * (seq + 1)) == h[3], "%s: text of the samples differs", name);
    int32_t *part = xcalloc((size_t)(seq + 1), 4);
    for (int64_t from = 0; from < 4 * (seq + 1); from += 1 + seq / 7) {      /* as context ranks read */
        int64_t left = seq + 1 - from % (seq + 1), n = left < 5 ? left : 5;
        CHECK(blend_read(&b, k[from / (seq + 1)], from % (seq + 1), n, part, NULL, &why) &&
                  !memcmp(part, text + from, 4 * (size_t)n),
              "%s: tokens %ld to %ld of the samples, read alone, differ", name, from, from + n);
    }
    free(part);
    free(text);
    free(length);
    free(prefix);
    uint64_t passes = blend_passes(&b);
    blend_close(&b);
    return passes;
}

/* The text of sample k is that of sample nth[k] of its corpus. */
static void check_blend_text(const Blend *b)
{
    for (int64_t k = 0; k < b->samples; k += 1 + b->samples / 50) {
        int32_t text[5] = {0};
        int64_t row, at;
        char *why = NULL;
        int set = -1, ok = blend_read(b, k, 0, 5, text, &set, &why);
        dataset_where(&b->set[b->which[k]], b->nth[k], 0, &row, &at);
        CHECK(ok && set == b->which[k], "sample %ld is of corpus %d, not %d", k, set, b->which[k]);
        int64_t length = b->set[b->which[k]].window.tokens;     /* of the one document, again in each epoch */
        for (int i = 0; i < 5; i++)
            CHECK(text[i] == golden_token(0, (at + i) % length), "sample %ld: token %d is %d", k, i, text[i]);
    }
}

static void test_blend_order(char *line)
{
    char name[64], kind[16], *given = xcalloc(1, strlen(line));
    int n;
    int64_t wanted, size, built;
    uint64_t h[2];
    int got = sscanf(line, "blend %63s %15s %d %s %ld %ld %ld %lx %lx", name, kind, &n,
                     given, &wanted, &size, &built, &h[0], &h[1]);
    CHECK(got == 9, "golden line has %d fields", got);
    /* Corpora of one document each, just large enough for seq_length 4. With weights any size is enough,
     * because epochs repeat. */
    int weighted = !strcmp(kind, "weight");
    const char **path = xcalloc((size_t)(2 * n), sizeof *path);
    char *word = strtok(given, ",");
    for (int i = 0; i < n; i++, word = strtok(NULL, ",")) {
        int32_t length = weighted ? 4001 : 4 * atoi(word) + 1;
        char *prefix = xasprintf("%s/blend%d", work, i);
        put_pair(prefix, 1, &length, TOKEN_U16, golden_token);
        if (weighted)
            path[2 * i] = word;
        path[weighted ? 2 * i + 1 : i] = prefix;
    }
    Blend b;
    char *why = NULL;
    int ok = blend_open(&b, weighted ? 2 * n : n, path, "1", 0, wanted, 4, 7, &sharers_none, &why);
    CHECK(ok, "%s: %s", name, why);
    if (ok) {
        CHECK(b.samples == size, "%s: %ld samples, should be %ld", name, b.samples, size);
        CHECK(fnv(b.which, 2 * b.samples) == h[0] && fnv(b.nth, 4 * b.samples) == h[1], "%s: order differs",
              name);
        int64_t asked = 0;
        for (int i = 0; i < n; i++)
            asked += weighted ? b.set[i].wanted : b.set[i].samples;
        CHECK(asked == built, "%s: %ld samples built, should be %ld", name, asked, built);
        check_blend_text(&b);
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
    uint64_t passes[2] = {0};
    while (f && getline(&line, &room, f) > 0) {
        lines += *line != '#';
        if (!strncmp(line, "order", 5))
            passes[!strncmp(line, "order last-epoch-just-apart", 27)] = test_order(line);
        else if (!strncmp(line, "blend", 5))
            test_blend_order(line);
        CHECK(strncmp(line, "order last-epoch-just-within", 28) || passes[0] != passes[1],
              "a last epoch that is shuffled apart makes no other passes");
    }
    CHECK(lines == 15, "%d goldens", lines);
    free(line);
    if (f)
        fclose(f);
}

/* ---- files ---- */

/* 1 when corpus_open refuses, with `part` in its reason. */
static int refused(const char *spec, const char *part)
{
    char *why = NULL;
    Corpus *c = corpus_open(1, &spec, &why);
    snprintf(said, sizeof said, "%s", why ? why : "(opened)");
    int ok = !c && why && strstr(why, part) && strstr(why, "; change: ");
    if (c)
        corpus_close(c);
    free(why);
    return ok;
}

static int64_t small_token(int64_t row, int64_t at) { return row * 10 + at; }

/* Documents [0 1 2] [10 11] [20], the .idx of 102 bytes written out by hand. */
static void test_format(void)
{
    const unsigned char head[34] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0, 1, 0, 0, 0, 0, 0, 0, 0,
                                    8,   3,   0,   0,   0,   0,   0,   0, 0, 4, 0, 0, 0, 0, 0, 0, 0};
    const int32_t length[] = {3, 2, 1};
    const int64_t rest[] = {0, 6, 10, 0, 1, 2, 3};
    char *prefix = in_work("hand"), *idx = in_work("hand.idx");
    put_pair(prefix, 3, length, TOKEN_U16, small_token);
    size_t n;
    char *p = get_file(idx, &n);
    CHECK(n == 102 && !memcmp(p, head, 34) && !memcmp(p + 34, length, 12) && !memcmp(p + 46, rest, 56),
          "%zu bytes", n);
    char *why = NULL;
    Corpus *c = corpus_open(1, (const char *const *)&prefix, &why);
    CHECK(c, "%s", why);
    CHECK(c->documents == 3 && c->sequences == 3 && c->tokens == 6 && c->longest == 3, "counts");
    Window w;
    int32_t out[4] = {-1, -1, -1, -1};
    CHECK(window_open(&w, c, 0, 1, &why) && window_read(&w, 1, 0, 2, out, &why) && out[0] == 10 &&
              out[1] == 11,
          "read");
    CHECK(window_read(&w, 0, 1, 2, out, &why) && out[0] == 1 && out[1] == 2 && out[2] == -1, "read within");
    window_close(&w);
    corpus_close(c);
    /* either file's name is as good as the prefix */
    c = corpus_open(1, (const char *const *)&idx, &why);
    CHECK(c && c->tokens == 6, "%s", why);
    corpus_close(c);
    free(p);
    free(idx);
    free(prefix);
}

/* A pair is refused when either file is cut to any length, or has one byte too many. */
static void test_truncation(void)
{
    enum { N = 90 };
    int32_t length[N];
    for (int i = 0; i < N; i++)
        length[i] = i % 7;
    char *prefix = in_work("cut"), *file[2] = {in_work("cut.idx"), in_work("cut.bin")};
    put_pair(prefix, N, length, TOKEN_U16, small_token);
    for (int f = 0; f < 2; f++) {
        size_t n;
        char *p = get_file(file[f], &n);
        int bad = 0;
        for (size_t cut = 0; cut <= n + 1; cut++) {
            p[n] = 0;
            put_file(file[f], p, cut);
            if (cut != n && !refused(prefix, "bytes"))
                bad++;
        }
        CHECK(!bad, "%d of %zu lengths of %s were accepted or badly explained", bad, n, file[f]);
        put_file(file[f], p, n);
        free(p);
    }
    char *why = NULL;
    Corpus *c = corpus_open(1, (const char *const *)&prefix, &why);
    CHECK(c, "the whole pair: %s", why);
    corpus_close(c);
    free(prefix);
    free(file[0]);
    free(file[1]);
}

/* The .idx with bytes [at, at + n) replaced must be refused with `part`. */
static int damaged(const char *prefix, const char *idx, int64_t at, const void *bytes, size_t n,
                   const char *part)
{
    size_t size;
    char *p = get_file(idx, &size), *copy = xcalloc(1, size);
    memcpy(copy, p, size);
    memcpy(copy + at, bytes, n);
    put_file(idx, copy, size);
    int ok = refused(prefix, part);
    put_file(idx, p, size);
    free(p);
    free(copy);
    return ok;
}

static void test_damage(void)
{
    int32_t length[10] = {4, 0, 3, 9, 1, 1, 1, 5, 2, 8};
    char *prefix = in_work("bad"), *idx = in_work("bad.idx");
    put_pair(prefix, 10, length, TOKEN_U16, small_token);
    size_t n;
    char *p = get_file(idx, &n);
    int bad = 0;
    for (int bit = 0; bit < 34 * 8; bit++) {
        char c = (char)(p[bit / 8] ^ 1 << bit % 8);
        bad += !damaged(prefix, idx, bit / 8, &c, 1, "; change: ");
    }
    CHECK(!bad, "%d of 272 flipped bits of the header were accepted", bad);
    bad = 0;
    for (int code = 0; code < 256; code++)
        if (code != 8) {
            char c = (char)code;   /* u8, i32: another size than this .bin's; else no token type */
            bad += !damaged(prefix, idx, 17, &c, 1, code == 1 || code == 4 ? "sequence 1 starts" : "dtype");
        }
    CHECK(!bad, "%d dtype codes were accepted", bad);
    for (int shift = 20; shift < 64; shift++)
        for (int field = 18; field <= 26; field += 8) {
            uint64_t huge = 1ull << shift, full = ~0ull >> (63 - shift);
            CHECK(damaged(prefix, idx, field, &huge, 8, "; change: "), "count 2^%d: %s", shift, said);
            CHECK(damaged(prefix, idx, field, &full, 8, "; change: "), "count of ones to bit %d: %s", shift,
                  said);
        }
    int32_t negative = -1, longer = 5, longest = INT32_MAX;
    int64_t zero = 0, far = 1ll << 40, below = -2, eleven = 11;
    CHECK(damaged(prefix, idx, 34 + 4 * 3, &negative, 4, "sequence 3 has length -1"), "%s", said);
    CHECK(damaged(prefix, idx, 34 + 4 * 4, &longer, 4, "sequence 5 starts"), "%s", said);
    CHECK(damaged(prefix, idx, 34 + 4 * 9, &longest, 4, "sequence 9"), "%s", said);
    CHECK(damaged(prefix, idx, 34 + 40 + 8 * 5, &zero, 8, "sequence 5 starts"), "overlap: %s", said);
    CHECK(damaged(prefix, idx, 34 + 40 + 8 * 6, &far, 8, "sequence 6 starts"), "%s", said);
    CHECK(damaged(prefix, idx, 34 + 40 + 8 * 2, &below, 8, "sequence 2 starts"), "%s", said);
    CHECK(damaged(prefix, idx, 34 + 120 + 8 * 4, &eleven, 8, "document entry 4 is 11"), "%s", said);
    CHECK(damaged(prefix, idx, 34 + 120 + 8 * 7, &zero, 8, "document entry 7 is 0"), "%s", said);
    CHECK(damaged(prefix, idx, 34 + 120, &(int64_t){1}, 8, "document entry 0 is 1"), "%s", said);
    CHECK(damaged(prefix, idx, 34 + 120 + 80, &(int64_t){9}, 8, "document entry 10 is 9"), "%s", said);
    CHECK(damaged(prefix, idx, 0, "TNTIDX\0\0", 9, "fairseq"), "%s", said);
    CHECK(damaged(prefix, idx, 0, &(int32_t){20240520}, 4, "llm.c token shard"), "%s", said);
    size_t bytes;
    char *bin = in_work("bad.bin"), *tokens = get_file(bin, &bytes);
    put_file(idx, tokens, bytes);
    CHECK(refused(prefix, "such as a .bin"), "%s", said);
    unlink(idx);
    CHECK(refused(prefix, "bad.idx: No such file"), "%s", said);
    put_file(idx, p, n);
    unlink(bin);
    CHECK(refused(prefix, "bad.bin: No such file"), "%s", said);
    free(tokens);
    free(bin);
    free(p);
    free(idx);
    free(prefix);
}

static void test_not_files(void)
{
    char *fifo = in_work("fifo"), *loop = in_work("loop"), *idx = in_work("pipe.idx"),
         *pipe = in_work("pipe");
    CHECK(!mkfifo(fifo, 0600) && !mkfifo(idx, 0600) && !symlink(loop, loop), "set up");
    alarm(240);   /* a hang is a failure */
    CHECK(refused(fifo, "not a regular file"), "%s", said);
    CHECK(refused(pipe, "not a regular file"), "%s", said);
    CHECK(refused(loop, "loop"), "%s", said);
    CHECK(refused(work, "not a regular file"), "%s", said);
    CHECK(refused("/dev/zero", "not a regular file"), "%s", said);
    CHECK(refused("/no/such/corpus", "No such file"), "%s", said);
    CHECK(refused("", "; change: "), "%s", said);
    char *pattern = in_work("none*.bin"), *secret = in_work("secret");
    CHECK(refused(pattern, "matches no file"), "%s", said);
    CHECK(refused("0.3 none/a 0.7 none/b", "change: weights and paths as a list, [0.3, a, 0.7, b]"), "%s",
          said);
    CHECK(refused("none/my books", "change: correct the path"), "%s", said);
    put_file(secret, "x", 1);
    chmod(secret, 0);
    if (geteuid())
        CHECK(refused(secret, "Permission denied"), "%s", said);
    alarm(0);
    unlink(secret);
    free(secret);
    free(pattern);
    free(fifo);
    free(loop);
    free(idx);
    free(pipe);
}

/* An llm.c shard of n tokens counted up from `from`. */
static void put_shard(const char *path, int version, int count, int n, int from)
{
    int width = version == 1 ? 2 : 4;
    char *p = xcalloc(1, (size_t)(1024 + width * n));
    int32_t head[3] = {version == 1 ? 20240520 : 20240801, version, count};
    memcpy(p, head, 12);
    for (int i = 0; i < n; i++, from++)
        memcpy(p + 1024 + width * i, &from, (size_t)width);
    put_file(path, p, (size_t)(1024 + width * n));
    free(p);
}

static void test_streams(void)
{
    char *a = in_work("s_000.bin"), *b = in_work("s_001.bin"), *glob = in_work("s_*.bin"), *why = NULL;
    put_shard(a, 1, 60, 60, 0);
    put_shard(b, 7, 40, 40, 60);
    for (int list = 0; list < 2; list++) {
        const char *path[] = {list ? a : glob, b};
        Blend d;
        CHECK(blend_open(&d, 1 + list, path, "90,10", 0, 11, 8, 1, &sharers_none, &why), "%s", why);
        CHECK(d.corpora == 1 && d.set[0].window.tokens == 90 && d.set[0].window.count == 2 && d.samples == 11,
              "90%% of 100 tokens in two files");
        int32_t text[9];
        for (int k = 0; k < 11; k++) {   /* every sample is consecutive but where one file meets the next */
            CHECK(blend_read(&d, k, 0, d.set[0].seq + 1, text, NULL, &why), "%s", why);
            int jumps = 0;
            for (int i = 1; i < 9; i++)
                jumps += text[i] != text[i - 1] + 1;
            CHECK(jumps <= 1, "sample %d", k);
        }
        blend_close(&d);
    }
    CHECK(!blend_open(&(Blend){0}, 1, (const char *[]){a}, "90,10", 2, 1, 8, 1, &sharers_none, &why) &&
              strstr(why, "testing"),
          "%s", why);
    free(why);
    put_shard(a, 1, 61, 60, 0);
    CHECK(refused(a, "needs 1146 bytes for 61 tokens, has 1144"), "%s", said);
    put_shard(a, 1, -1, 60, 0);
    CHECK(refused(a, "; change: "), "%s", said);
    put_shard(a, 2, 60, 60, 0);
    CHECK(refused(a, "version 2"), "%s", said);
    put_file(a, "In the beginning", 16);
    CHECK(refused(a, "text: tokenize it first"), "%s", said);
    char *raw = xasprintf("raw:%s", a);
    const char *path = raw;
    Blend d;
    CHECK(blend_open(&d, 1, &path, "1", 0, 1, 7, 1, &sharers_none, &why) && d.set[0].window.tokens == 8, "%s",
          why);
    int32_t text[8];
    CHECK(blend_read(&d, 0, 0, d.set[0].seq + 1, text, NULL, &why) && text[0] == 'I' + 256 * 'n', "%s", why);
    blend_close(&d);
    put_file(a, "odd", 3);
    CHECK(refused(raw, "odd number"), "%s", said);
    put_shard(a, 1, 60, 60, 0);
    CHECK(refused(raw, "drop `raw:`"), "%s", said);
    uint32_t wide[100] = {0};
    for (int i = 0; i < 100; i++)
        wide[i] = (uint32_t)i;
    put_file(a, wide, sizeof wide);
    CHECK(refused(raw, "tokens of 32 bits"), "%s", said);
    memcpy(wide, "\x93NUMPY", 6);
    put_file(a, wide, sizeof wide);
    CHECK(refused(raw, "a NumPy array; change: name a file of bare u16"), "%s", said);
    memset(wide, 0, sizeof wide);
    put_file(a, wide, sizeof wide);
    CHECK(blend_open(&d, 1, &path, "1", 0, 1, 7, 1, &sharers_none, &why), "%s", why);
    blend_close(&d);
    free(raw);
    free(a);
    free(b);
    free(glob);
}

/* Raw tokens that begin as other files might, and files that begin so. */
static void test_raw(void)
{
    char *a = in_work("like"), *raw = xasprintf("raw:%s", a), *why = NULL;
    const char *path = raw;
    uint16_t gzip[200], text[200];     /* a gzip file's first two bytes; no control characters, nor UTF-8 */
    Blend d;
    for (int i = 0; i < 200; i++) {
        gzip[i] = i ? 257 : 0x8b1f;
        text[i] = (uint16_t)(0x2ac8 + 257 * (i % 30));
    }
    put_file(a, gzip, sizeof gzip);
    CHECK(blend_open(&d, 1, &path, "1", 0, 1, 7, 1, &sharers_none, &why), "%s", why);
    blend_close(&d);
    put_file(a, text, sizeof text);
    CHECK(blend_open(&d, 1, &path, "1", 0, 1, 7, 1, &sharers_none, &why), "%s", why);
    blend_close(&d);
    put_file(a, "A text in UTF-8, of which the last character read at first, \xd7\x90 \xe2\x82\xac, is cut",
             74);
    CHECK(refused(raw, "text: tokenize it first"), "%s", said);
    put_file(a, "\x1f\x8b\x08\0" "a gzip file: its method, its flags, and the bytes it is known by", 68);
    CHECK(refused(raw, "a gzip file"), "%s", said);
    free(raw);
    free(a);
}

/* Values of data_path and split that are refused. */
static void test_paths(void)
{
    char *a = in_work("hand"), *why = NULL;
    const char *const bad[][5] = {
        {"-0.5", a, "0.5", a, "not a weight above 0"},
        {"0.5", a, "0", a, "not a weight above 0"},
        {"1", a, "nan", a, "not a weight above 0"},
        {"1", a, "inf", a, "not a weight above 0"},
        {"1e308", a, "1e308", a, "their sum is too large"},
        {"1e-308", a, "1e308", a, "their sum is too large"},
        {"1", a, "x", a, "not a weight above 0"},
        {"1", a, "2", NULL, "weights and prefixes in turn"},
        {a, a, "/no/such", NULL, "No such file"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int n = bad[i][3] ? 4 : 3;
        Blend b;
        why = NULL;
        CHECK(!blend_open(&b, n, bad[i], "1", 0, 1, 2, 1, &sharers_none, &why) && strstr(why, bad[i][4]),
              "case %zu: %s", i, why);
        free(why);
    }
    /* a corpus with a weight is opened larger than asked for, here by an epoch; a split's own is not */
    char *file = in_work("alone.bin");
    const char *alone[] = {"1", file};
    put_shard(file, 1, 81, 81, 0);
    why = NULL;
    for (int own = 0; own < 2; own++) {
        Blend b;
        CHECK(blend_open(&b, 2, alone, own ? NULL : "1", 0, 10, 8, 1, &sharers_none, &why), "%s", why);
        CHECK(blend_epochs(&b) == (own ? 1 : 2) && b.samples == 10, "%ld epochs of %ld samples",
              blend_epochs(&b), b.samples);
        blend_close(&b);
    }
    free(file);
    const char *const split[] = {"", "-1,2", "a", "1,2,3,4", "0,0", "nan", "1,,2", "1 2", "inf", "1,2,"};
    double edges[4];
    for (size_t i = 0; i < sizeof split / sizeof *split; i++) {
        why = NULL;
        CHECK(!split_parse(split[i], edges, &why) && strstr(why, "; change: "), "split '%s'", split[i]);
        free(why);
    }
    CHECK(split_parse("969, 30, 1", edges, &why) && edges[1] == 0.969 && edges[3] >= 0.999999, "%g",
          edges[1]);
    CHECK(split_parse("1", edges, &why) && edges[1] == 1 && edges[2] == 1, "%g", edges[1]);
    free(a);
}

/* Packs empty documents, documents shorter than a sample, and one document; no tokens at all are refused. */
static void test_packing(void)
{
    char *prefix = in_work("pack"), *why = NULL;
    const char *path = prefix;
    int32_t text[9], lengths[4][6] = {{0, 3, 0, 0, 20, 0}, {2, 2, 2, 2, 2, 2}, {33}, {0, 0}};
    int count[4] = {6, 6, 1, 2};
    for (int c = 0; c < 4; c++) {
        Blend b;
        put_pair(prefix, count[c], lengths[c], TOKEN_U8, small_token);
        int ok = blend_open(&b, 1, &path, "1", 0, 9, 8, 3, &sharers_none, &why);
        CHECK(ok == (c < 3), "case %d: %s", c, why);
        if (!ok) {
            CHECK(strstr(why, "no tokens"), "%s", why);
            free(why);
            continue;
        }
        const Dataset *d = &b.set[0];
        int64_t texts = 0;   /* tokens compared: samples end to end are the documents in order */
        for (int64_t s = 0; s < d->samples; s++)
            for (int64_t k = 0; k < d->samples; k++)
                if (d->shuffle[k] == s) {
                    CHECK(blend_read(&b, k, 0, b.set[0].seq + 1, text, NULL, &why), "%s", why);
                    for (int i = 0; i < 8; i++, texts++) {
                        int64_t at = texts, doc = 0;
                        while (at >= lengths[c][d->document[doc]])
                            at -= lengths[c][d->document[doc++]];
                        CHECK(text[i] == small_token(d->document[doc], at), "case %d, token %ld", c, texts);
                    }
                }
        blend_close(&b);
    }
    put_pair(prefix, 1, &(int32_t){8}, TOKEN_I32, small_token);
    Blend b;
    CHECK(!blend_open(&b, 1, &path, "1", 0, 1, 8, 3, &sharers_none, &why) &&
              strstr(why, "holds 8 tokens, fewer than the 9"), "%s", why);
    free(why);
    CHECK(!blend_open(&b, 1, &path, "9,1", 1, 1, 8, 3, &sharers_none, &why) &&
              strstr(why, "change: split, a corpus of more documents"), "%s", why);
    free(why);
    CHECK(blend_open(&b, 1, &path, "1", 0, 1, 7, 3, &sharers_none, &why) && b.samples == 1, "%s", why);
    blend_close(&b);
    free(prefix);
}

/* More than an index can number is refused: sequences, samples, and tokens beyond 64 bits. */
static void test_limits(void)
{
    static const struct { int64_t wanted, seq; } most[] = {
        {(int64_t)3 << 30, 4000}, {(int64_t)1 << 32, 1}, {INT64_MAX / 2, 4}, {INT64_MAX, 4000}};
    int32_t length = 4001;
    char *prefix = in_work("limits"), *why = NULL;
    const char *path[] = {prefix, prefix};
    put_pair(prefix, 1, &length, TOKEN_U16, golden_token);
    for (size_t i = 0; i < sizeof most / sizeof *most; i++) {
        Blend b;
        int ok = blend_open(&b, 1, path, "1", 0, most[i].wanted, most[i].seq, 1, &sharers_none, &why);
        CHECK(!ok && strstr(why, "more than the index can number"), "%ld samples of %ld tokens: %s",
              most[i].wanted, most[i].seq, ok ? "taken" : why);
        free(why);
    }
    Blend all;
    CHECK(blend_open(&all, 2, path, "1", 0, -1, 4, 1, &sharers_none, &why) && all.samples == 2000,
          "two corpora, each once: %ld samples", all.samples);
    blend_close(&all);
    free(prefix);
}

/* ---- the loader ---- */

static int64_t text_token(int64_t row, int64_t at) { return at % 37 == 36 ? 256 : (row * 31 + at * 7) % 256; }

static Config config(const char **path, int n)
{
    Config c;
    memset(&c, 0, sizeof c);
    c.data_path = (List){n, path};
    c.split = "1";
    c.tokenizer_type = TOKENIZER_TYPE_BYTE;
    c.vocab_size = 257;
    c.seq_length = 16;
    c.micro_batch_size = 2;
    c.seed = 1234;
    c.max_epochs = CFG_ABSENT;
    c.null_tokenizer_eod_id = CFG_ABSENT;
    return c;
}

/* A loader whose rank has all positions of its samples. */
static Loader *open_whole(const Config *cfg, int64_t samples, int dp_rank, int dp_size)
{
    Positions all = positions_one(0, cfg->seq_length);
    return loader_open(cfg, SPLIT_TRAIN, samples, dp_rank, dp_size, &all, &sharers_none);
}

static void check_masks(const Config *cfg, const Batch *b)
{
    for (int64_t i = 0; i < b->batch; i++)
        for (int64_t t = 0, start = 0; t < b->seq; t++) {
            int64_t at = i * b->seq + t;
            int eod = b->tokens[at] == 256;
            int ok = b->position[at] == t - (cfg->reset_position_ids ? start : 0) &&
                     b->loss_mask[at] == (eod && cfg->eod_mask_loss ? 0.0f : 1.0f) &&
                     (cfg->reset_attention_mask ? b->doc_start[at] == start : !b->doc_start);
            CHECK(ok, "sample %ld, token %ld", b->sample[i], t);
            start = eod ? t + 1 : start;
        }
}

static void test_loader(void)
{
    int32_t length[50], text[17];
    for (int i = 0; i < 50; i++)
        length[i] = 5 + i * 13 % 90;
    char *prefix = in_work("load"), *why = NULL;
    const char *path = prefix;
    put_pair(prefix, 50, length, TOKEN_U16, text_token);
    Blend whole;
    CHECK(blend_open(&whole, 1, &path, "1", 0, 500, 16, 1234, &sharers_none, &why), "%s", why);
    for (int flags = 0; flags < 8; flags++)
        for (int dp = 1; dp <= 4; dp++)
            for (int r = 0; r < dp; r++) {
                Config cfg = config(&path, 1);
                cfg.reset_attention_mask = flags & 1;
                cfg.reset_position_ids = flags >> 1 & 1;
                cfg.eod_mask_loss = flags >> 2;
                if (dp == 3) {         /* ids made elsewhere: end-of-document is the one that is named */
                    cfg.tokenizer_type = TOKENIZER_TYPE_NONE;
                    cfg.vocab_size = 300;
                    cfg.null_tokenizer_eod_id = 256;
                }
                Loader *l = open_whole(&cfg, 500, r, dp);
                CHECK(!loader_endless(l), "256 is not found");
                int64_t n = 2 * dp, first = 0;
                for (int step = 0; step < 12; step++, first += n) {
                    if (step == 7)
                        first = 300;   /* jumps ahead and back, as resume and evaluation do */
                    if (step == 10)
                        first = 3;
                    const Batch *b = loader_get(l, first, n);
                    CHECK(b->batch == 2 && b->seq == 16, "shape");
                    for (int i = 0; i < 2; i++) {
                        int64_t k = first + r * 2 + i;
                        blend_read(&whole, k, 0, 17, text, NULL, &why);
                        CHECK(b->sample[i] == k && !memcmp(b->tokens + 16 * i, text, 64) &&
                                  !memcmp(b->labels + 16 * i, text + 1, 64),
                              "dp %d rank %d sample %ld", dp, r, k);
                    }
                    check_masks(&cfg, b);
                }
                if (r == 0) {
                    int64_t last = loader_samples(l) / n * n - n;   /* the end, then another batch size */
                    CHECK(loader_get(l, last, n)->sample[0] == last && loader_get(l, 0, dp)->batch == 1,
                          "the end");
                }
                CHECK(loader_wait_seconds(l) >= 0 && loader_epochs(l) == whole.set[0].epochs, "accessors");
                loader_close(l);
            }
    blend_close(&whole);
    free(prefix);
}

typedef struct { Config cfg; char *bin; int harm; } Harm;

static void open_only(void *arg)
{
    Harm *h = arg;
    loader_close(open_whole(&h->cfg, 100, 0, 1));
}

/* Reads batches, damages the .bin after some of them as h->harm says, and reads on. */
static void harm_and_read(void *arg)
{
    Harm *h = arg;
    Loader *l = open_whole(&h->cfg, 5000, 0, 1);
    size_t n;
    char *p = get_file(h->bin, &n), *other = xasprintf("%s.other", h->bin);
    for (int64_t i = 0; i < 4000; i += 2) {
        loader_get(l, i, 2);
        if (i != 100)
            continue;
        if (h->harm == 0 && truncate(h->bin, 100))
            perror("truncate");
        if (h->harm == 1)
            unlink(h->bin);
        put_file(other, p, n);
        if (h->harm == 2)
            rename(other, h->bin);
        if (h->harm == 3) {
            int fd = open(h->bin, O_WRONLY);
            usleep(20000);   /* file times may be as coarse as a clock tick */
            if (pwrite(fd, "xx", 2, 0) != 2)
                perror("pwrite");
            close(fd);
        }
    }
}

static void test_loader_faults(void)
{
    int32_t length[40];
    for (int i = 0; i < 40; i++)
        length[i] = 50;
    char *prefix = in_work("fault"), *bin = in_work("fault.bin");
    const char *path = prefix;
    Harm h = {.cfg = config(&path, 1), .bin = bin};
    static const char *const what[] = {"truncated", "deleted or replaced", "deleted or replaced",
                                       "written to"};
    for (h.harm = 0; h.harm < 4; h.harm++) {
        put_pair(prefix, 40, length, TOKEN_U16, text_token);
        CHECK(child(harm_and_read, &h, EXIT_DATA, "fault.bin"), "harm %d: %s", h.harm, said);
        CHECK(strstr(said, what[h.harm]) || (h.harm == 0 && strstr(said, "ends at byte")), "harm %d: %s",
              h.harm, said);
    }
    put_pair(prefix, 40, length, TOKEN_U16, text_token);
    char *first = in_work("first");        /* the second of two corpora is written to */
    const char *two[] = {"1", first, "1", prefix};
    put_pair(first, 40, length, TOKEN_U16, text_token);
    CHECK(child(harm_and_read, &(Harm){config(two, 4), bin, 3}, EXIT_DATA, "fault.bin"), "%s", said);
    free(first);
    put_pair(prefix, 40, length, TOKEN_U16, text_token);
    CHECK(child(open_only, &h, 0, ""), "sound: %s", said);
    h.cfg.max_epochs = 1;   /* 2000 tokens, 1601 wanted */
    CHECK(child(open_only, &h, 0, ""), "one epoch is enough: %s", said);
    h.cfg.seq_length = 20;
    CHECK(child(open_only, &h, EXIT_DATA, "needs 2 epochs"), "%s", said);
    h = (Harm){.cfg = config(&path, 1)};
    h.cfg.vocab_size = 300;
    CHECK(child(open_only, &h, EXIT_DATA, "257 ids, vocab_size is 300"), "%s", said);
    h.cfg.tokenizer_type = TOKENIZER_TYPE_NONE;
    CHECK(child(open_only, &h, 0, ""), "%s", said);
    h.cfg.vocab_size = 65537;
    CHECK(child(open_only, &h, EXIT_DATA, "u16 tokens"), "%s", said);
    h.cfg.vocab_size = 256;   /* end-of-document, 256, is first met at token 36 of document 0 */
    CHECK(child(open_only, &h, EXIT_DATA, "document 0, token 36 is id 256"), "%s", said);
    h.cfg.vocab_size = 257;
    size_t n;
    char *p = get_file(bin, &n);
    uint16_t bad = 257;
    memcpy(p + n - 2, &bad, 2);
    put_file(bin, p, n);
    CHECK(child(open_only, &h, EXIT_DATA, "document 39, token 49 is id 257, the vocabulary has 257"), "%s",
          said);
    /* two documents of twenty sequences each: the number is that of the sequence, and called so */
    char *idx = in_work("fault.idx"), *x = get_file(idx, &n);
    int64_t entries = 3, entry[] = {0, 20, 40};
    memcpy(x + 26, &entries, sizeof entries);
    memcpy(x + 34 + 12 * 40, entry, sizeof entry);
    put_file(idx, x, 34 + 12 * 40 + sizeof entry);
    CHECK(child(open_only, &h, EXIT_DATA, ": sequence 39, token 49 is id 257, the vocabulary has 257"), "%s",
          said);
    h.cfg.data_path.n = 0;
    CHECK(child(open_only, &h, EXIT_DATA, "data_path is empty"), "%s", said);
    free(idx);
    free(x);
    free(p);
    free(bin);
    free(prefix);
}

/* A corpus too large to be scanned at open: a bad id is reported when its batch is read. */
static void read_one(void *arg)
{
    Harm *h = arg;
    Loader *l = open_whole(&h->cfg, -1, 0, 1);
    loader_get(l, h->harm, 1);
}

static void large(int type, int32_t each, int64_t bad)
{
    int32_t length[3] = {each, each, 7};
    char *prefix = in_work("large"), *bin = in_work("large.bin");
    const char *path = prefix;
    int width = type == TOKEN_U16 ? 2 : 4;
    Harm h = {.cfg = config(&path, 1)};
    h.cfg.seq_length = 1 << 20;
    put_pair(prefix, 3, length, type, NULL);   /* 1.2 GB of zeros that take no room */
    int fd = open(bin, O_WRONLY);
    /* token 0 of document 1 */
    CHECK(pwrite(fd, &bad, (size_t)width, (off_t)width * each) == width, "set up");
    close(fd);
    Blend b;
    char *why = NULL;
    int64_t row, at, end_row, end_at;
    CHECK(blend_open(&b, 1, &path, "1", 0, -1, 1 << 20, 1234, &sharers_none, &why), "%s", why);
    for (h.harm = 0;; h.harm++) {   /* finds the sample with the bad token */
        dataset_where(&b.set[0], h.harm, 0, &row, &at);
        dataset_where(&b.set[0], h.harm, (1 << 20) - 1, &end_row, &end_at);
        if ((row != 1 && end_row == 1) || (row == 1 && at == 0))
            break;
    }
    blend_close(&b);
    CHECK(child(read_one, &h, EXIT_DATA, "document 1, token 0 (sample "), "%s", said);
    h.harm = !h.harm;
    CHECK(child(read_one, &h, 0, ""), "%s", said);
    unlink(bin);
    free(bin);
    free(prefix);
}

static void test_large(void)
{
    large(TOKEN_U16, 300 << 20, 257);
    large(TOKEN_I32, 150 << 20, -1);
}

/* Samples from 2^31 on, whose entries lie behind 2^32 numbers: pages of the index that nobody touches take no
 * memory. */
static void test_many_samples(void)
{
    const int64_t last = ((int64_t)1 << 31) + 1, bytes = (last + 2) * 8;
    int32_t length[] = {100, 100, 100}, *sample = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE,
                                                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    uint32_t document[] = {0, 1, 2}, shuffle[] = {(uint32_t)last};
    int64_t row, at;
    CHECK(sample != MAP_FAILED, "set up");
    Dataset d = {.window = {.length = length, .count = 3}, .seq = 10, .documents = 3, .samples = 1,
                 .document = document, .sample = sample, .shuffle = shuffle};
    sample[2 * last] = 2;
    sample[2 * last + 1] = 30;
    dataset_where(&d, 0, 5, &row, &at);
    CHECK(row == 2 && at == 35, "sample 2^31 + 1 begins in sequence %ld at %ld, not in 2 at 35", row, at);
    munmap(sample, (size_t)bytes);
}

static atomic_int looks;               /* calls of fstat */
int fstat(int fd, struct stat *s)
{
    looks++;
    return fstatat(fd, "", s, AT_EMPTY_PATH);
}

/* A batch looks at the files that it has been read from, not at all shards of a corpus: on a network file
 * system each look is a message. */
static void test_many_files(void)
{
    enum { FILES = 300, BATCHES = 40, READ = 2 * 2 };      /* READ: most files that a batch is read from */
    char *pattern = in_work("shard*");
    char *spec = xasprintf("raw:%s", pattern);
    const char *path = spec;
    uint16_t text[100] = {0};
    for (int i = 0; i < FILES; i++) {
        char *file = xasprintf("%s/shard%d", work, i);
        put_file(file, text, sizeof text);
        free(file);
    }
    Config cfg = config(&path, 1);
    cfg.tokenizer_type = TOKENIZER_TYPE_NONE;
    Loader *l = open_whole(&cfg, 2 * BATCHES, 0, 1);
    loader_get(l, 0, 2);               /* opening has read from all files */
    looks = 0;
    for (int64_t i = 1; i < BATCHES; i++)
        loader_get(l, 2 * i, 2);
    loader_close(l);
    CHECK(looks >= BATCHES - 4 && looks <= BATCHES * READ, "%d looks at files for %d batches", looks,
          BATCHES);
    free(spec);
    free(pattern);
}

int main(void)
{
    work_open();
    test_many_files();
    test_many_samples();
    test_goldens();
    test_format();
    test_truncation();
    test_damage();
    test_not_files();
    test_streams();
    test_raw();
    test_paths();
    test_packing();
    test_loader();
    test_limits();
    test_loader_faults();
    test_large();
    return test_end();
}
