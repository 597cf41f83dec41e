/* test_slices -- loaders of context ranks: together they give whole samples, and each reads its own positions
 * alone. pread is replaced by one that notes what is read. */
#define _GNU_SOURCE
#include "base.h"
#include "context.h"
#include "files.h"
#include "loader.h"
#include "test.h"
#include <pthread.h>
#include <sys/syscall.h>

enum { S = 64, TOKENS = 4096, STEPS = 3, BATCH = 2, SAMPLES = STEPS * BATCH };

static struct {
    pthread_mutex_t lock;
    int on;
    int64_t bytes;
    char seen[2 * TOKENS];
} noted = {.lock = PTHREAD_MUTEX_INITIALIZER};

ssize_t pread(int fd, void *p, size_t n, off_t at)
{
    pthread_mutex_lock(&noted.lock);
    if (noted.on && at + (off_t)n <= (off_t)sizeof noted.seen) {
        memset(noted.seen + at, 1, n);
        noted.bytes += (int64_t)n;
    }
    pthread_mutex_unlock(&noted.lock);
    return syscall(SYS_pread64, fd, p, n, at);
}

static void note(int on)
{
    pthread_mutex_lock(&noted.lock);
    noted.on = on;
    noted.bytes = 0;
    memset(noted.seen, 0, sizeof noted.seen);
    pthread_mutex_unlock(&noted.lock);
}

/* A file of u16 tokens in which a document ends at every 3rd, 11th or 100th token. */
static void put_corpus(const char *path, int each)
{
    uint16_t text[TOKENS];
    for (int i = 0; i < TOKENS; i++)
        text[i] = i % each == each - 1 ? 256 : (uint16_t)(i * 7 % 251);
    put_file(path, text, sizeof text);
}

static Config config(const char **path, int flags)
{
    Config c;
    memset(&c, 0, sizeof c);
    c.data_path = (List){1, path};
    c.split = "1";
    c.tokenizer_type = TOKENIZER_TYPE_BYTE;
    c.vocab_size = 257;
    c.seq_length = S;
    c.micro_batch_size = BATCH;
    c.seed = 1234;
    c.max_epochs = CFG_ABSENT;
    c.reset_attention_mask = flags & 1;
    c.reset_position_ids = flags >> 1 & 1;
    c.eod_mask_loss = flags >> 2;
    return c;
}

/* What a loader without context ranks gives: SAMPLES samples. */
static struct {
    int32_t tokens[SAMPLES * S], labels[SAMPLES * S], position[SAMPLES * S], start[SAMPLES * S];
    float mask[SAMPLES * S];
    int64_t sample[SAMPLES];
    int documents;
} whole;

static void read_whole(const Config *cfg)
{
    Positions all = positions_one(0, S);
    Loader *l = loader_open(cfg, SPLIT_TRAIN, 40, 0, 1, &all, &sharers_none);
    const Batch *b = loader_get(l, 0, SAMPLES);
    memcpy(whole.tokens, b->tokens, sizeof whole.tokens);
    memcpy(whole.labels, b->labels, sizeof whole.labels);
    memcpy(whole.position, b->position, sizeof whole.position);
    memcpy(whole.mask, b->loss_mask, sizeof whole.mask);
    memcpy(whole.sample, b->sample, sizeof whole.sample);
    whole.documents = b->doc_start != NULL;
    if (b->doc_start)
        memcpy(whole.start, b->doc_start, sizeof whole.start);
    loader_close(l);
}

/* The rank's rows are those of samples `first` on; counts[t] grows by one for each position t. */
static void check_rows(const Batch *b, int64_t first, int counts[S])
{
    CHECK(b->batch == BATCH && b->seq == S && (b->doc_start != NULL) == whole.documents, "shape");
    for (int64_t i = 0; i < BATCH; i++) {
        CHECK(b->sample[i] == whole.sample[first + i], "sample %ld", b->sample[i]);
        if (b->doc_start)
            CHECK(!memcmp(b->doc_start + i * S, whole.start + (first + i) * S, 4 * S), "starts of documents");
        for (const PositionRun *r = b->runs.run; r < b->runs.run + b->runs.count; r++)
            for (int32_t k = 0; k < r->n; k++) {
                int64_t at = i * b->runs.stride + r->row + k, w = (first + i) * S + r->start + k;
                counts[r->start + k]++;
                CHECK(b->tokens[at] == whole.tokens[w] && b->labels[at] == whole.labels[w] &&
                          b->position[at] == whole.position[w] && b->loss_mask[at] == whole.mask[w],
                      "sample %ld position %d", b->sample[i], r->start + k);
            }
    }
}

/* Every token that was read is one of the positions of some sample, or the label of one. Samples of a stream
 * start at multiples of S. */
static void check_reads(const Positions *own, int cp)
{
    char mine[S + 1] = {0};
    int64_t alien = 0;
    for (const PositionRun *r = own->run; r < own->run + own->count; r++)
        memset(mine + r->start, 1, (size_t)r->n + 1);
    pthread_mutex_lock(&noted.lock);
    for (int i = 0; i < TOKENS; i++)
        alien += noted.seen[2 * i] && !mine[i % S] && !(i && i % S == 0 && mine[S]);
    int64_t tokens = noted.bytes / 2, most = (STEPS + 3) * BATCH * (S / cp + 2);
    CHECK(!alien && tokens >= STEPS * BATCH * S / cp && tokens <= most,
          "cp %d: read %ld tokens, most %ld, %ld of others", cp, tokens, most, alien);
    pthread_mutex_unlock(&noted.lock);
}

static void check(const char *corpus, int flags, int cp)
{
    Config cfg = config(&corpus, flags);
    int counts[S] = {0};
    for (int r = 0; r < cp; r++) {
        Positions own = context_positions(S, 1, cp, r, 1);
        Loader *l = loader_open(&cfg, SPLIT_TRAIN, 40, 0, 1, &own, &sharers_none);
        note(1);
        for (int step = 0; step < STEPS; step++)
            check_rows(loader_get(l, step * BATCH, BATCH), step * BATCH, counts);
        if (!(flags & 3))
            check_reads(&own, cp);
        note(0);
        loader_close(l);
    }
    for (int t = 0; t < S; t++)
        CHECK(counts[t] == SAMPLES, "cp %d: position %d is on %d ranks", cp, t, counts[t] / SAMPLES);
}

/* Attention finds the positions of other ranks once for each of them, in every layer: that must not take as
 * many steps again. With so many ranks it would take an hour and exceed the row's limit. */
static void check_many_ranks(void)
{
    const int ranks = 1 << 29;
    for (int i = 0; i < 1000; i++) {
        Positions p = context_positions(2 * (int64_t)ranks, 1, ranks, i, 1);
        CHECK(p.count == 2 && p.run[0].start == i && p.run[1].start == 2 * ranks - 1 - i, "rank %d", i);
    }
}

int main(void)
{
    static const int each[] = {1, 3, 11, 1000};
    work_open();
    check_many_ranks();
    for (int e = 0; e < 4; e++) {
        char *file = in_work("stream.bin"), *spec = xasprintf("raw:%s", file);
        put_corpus(file, each[e]);
        for (int flags = 0; flags < 8; flags++) {
            Config cfg = config((const char **)&spec, flags);
            read_whole(&cfg);
            for (int cp = 1; cp <= 32; cp *= 2)
                check(spec, flags, cp);
        }
        free(spec);
        free(file);
    }
    return test_end();
}
