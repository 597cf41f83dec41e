/* loader -- microbatches of a data rank, read ahead by a thread */
#define _GNU_SOURCE
#include "loader.h"
#include "base.h"
#include "tokenizer.h"
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS 4                            /* batches: one held by the caller, three read ahead */
#define SCAN_BYTES ((int64_t)1 << 30)      /* bytes: a smaller corpus is scanned whole at open */

typedef struct {
    Batch b;
    int64_t room;       /* samples that the arrays have room for */
    char *why;          /* error of reading, with which the caller dies; NULL: none */
} Slot;

struct Loader {
    const char *key;               /* key of the corpus: data_path, valid_data_path, ... */
    Blend blend;
    int64_t seq, vocab;            /* tokens of a sample; token ids */
    Positions runs;                /* positions of a sample that this rank gets */
    int32_t eod;                   /* token id of end-of-document */
    int reset_mask, reset_position, mask_eod, dp_rank, dp_size;
    int32_t *text, *start;         /* [seq + 1] tokens of one sample and the first positions of their
                                      documents, for the thread alone */
    struct { int64_t first, n; const int32_t *tokens; } given; /* of loader_give */
    uint64_t fingerprint;
    const char *endless;           /* what loader_endless returns */
    double waited;                 /* seconds blocked in loader_get */

    /* Batch q of a series of calls lies in slot q % SLOTS. The caller holds batch taken - 1; the thread
     * fills batch `made` while made - taken < SLOTS - 1. A call for other samples than the next ones
     * starts a new series: `turn` changes, and the thread drops the batch that it is filling. The lock
     * guards it all. */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    Slot slot[SLOTS];
    int64_t made, taken, turn;
    int64_t next, n;               /* first sample of batch `made`; its samples on all ranks, 0: none */
    int ending;                    /* bool: the thread has to end */
};

/* ---- the thread's side ---- */

static void slot_resize(Slot *s, const Loader *l, int64_t batch)
{
    Batch *b = &s->b;
    b->batch = batch;
    b->seq = l->seq;
    b->runs = l->runs;
    if (batch <= s->room)
        return;
    size_t tokens = (size_t)(batch * l->runs.stride);
    s->room = batch;
    b->tokens = xrealloc(b->tokens, 4 * tokens);
    b->labels = xrealloc(b->labels, 4 * tokens);
    b->position = xrealloc(b->position, 4 * tokens);
    b->loss_mask = xrealloc(b->loss_mask, 4 * tokens);
    b->sample = xrealloc(b->sample, 8 * (size_t)batch);
    if (l->reset_mask)
        b->doc_start = xrealloc(b->doc_start, 4 * (size_t)(batch * l->seq));
}

static void slot_free(Slot *s)
{
    free(s->b.tokens);
    free(s->b.labels);
    free(s->b.position);
    free(s->b.doc_start);
    free(s->b.loss_mask);
    free(s->b.sample);
    free(s->why);
}

/* Reads tokens [from, from + n) of sample k. Returns 0 and *why.
 *   set  out  the dataset that they are from; unchanged where loader_give has given them */
static int fetch(const Loader *l, int64_t k, int64_t from, int64_t n, int32_t *to, int *set, char **why)
{
    if (k >= l->given.first && k < l->given.first + l->given.n)
        memcpy(to, l->given.tokens + (k - l->given.first) * (l->seq + 1) + from, 4 * (size_t)n);
    else if (!blend_read(&l->blend, k, from, n, to, set, why))
        return 0;
    return 1;
}

/* 1: the token has a loss; 0: it is masked. */
static int has_loss(const Loader *l, int32_t token) { return !(token == l->eod && l->mask_eod); }

/* Reads tokens [from, from + n) of sample k to their places in l->text and checks their ids. Returns NULL,
 * or what is wrong. */
static char *read_part(const Loader *l, int64_t k, int64_t from, int64_t n)
{
    int set = 0;
    char *why = NULL;
    if (!fetch(l, k, from, n, l->text + from, &set, &why))
        return why;
    uint32_t most = 0;   /* as unsigned numbers negative ids are large */
    for (int64_t i = from; i < from + n; i++)
        most = (uint32_t)l->text[i] > most ? (uint32_t)l->text[i] : most;
    if (most < l->vocab)
        return NULL;
    int64_t i = from, sequence, offset;
    while ((uint32_t)l->text[i] < l->vocab)
        i++;
    const Dataset *d = &l->blend.set[set];
    dataset_where(d, l->blend.nth ? l->blend.nth[k] : k, i, &sequence, &offset);
    return xasprintf("%s: %s %ld, token %ld (sample %ld of the run) is id %d, the vocabulary has %ld; "
                     "change: vocab_size or the tokenizer that made the corpus", d->corpus->name,
                     corpus_sequence_name(d->corpus), sequence, offset, k, l->text[i], l->vocab);
}

/* Reads sample k: all of it where documents are told apart, else this rank's positions and the labels of
 * the last ones. */
static char *read_sample(const Loader *l, int64_t k)
{
    if (!l->reset_mask && !l->reset_position) {
        char *why = NULL;
        for (const PositionRun *r = l->runs.run; r < l->runs.run + l->runs.count && !why; r++)
            why = read_part(l, k, r->start, r->n + 1);
        return why;
    }
    char *why = read_part(l, k, 0, l->seq + 1);
    for (int64_t t = 0; t < l->seq && !why; t++)
        l->start[t + 1] = l->text[t] == l->eod ? (int32_t)t + 1 : l->start[t];
    return why;
}

/* Fills sample i of the batch from l->text. */
static void fill_row(const Loader *l, Batch *b, int64_t i)
{
    if (b->doc_start)
        memcpy(b->doc_start + i * l->seq, l->start, 4 * (size_t)l->seq);
    for (const PositionRun *r = l->runs.run; r < l->runs.run + l->runs.count; r++) {
        int64_t at = i * l->runs.stride + r->row;
        memcpy(b->tokens + at, l->text + r->start, 4 * (size_t)r->n);
        memcpy(b->labels + at, l->text + r->start + 1, 4 * (size_t)r->n);
        for (int32_t t = r->start; t < r->start + r->n; t++, at++) {
            b->position[at] = t - (l->reset_position ? l->start[t] : 0);
            b->loss_mask[at] = (float)has_loss(l, l->text[t]);
        }
    }
}

static void slot_fill(Loader *l, Slot *s, int64_t first, int64_t n)
{
    int64_t batch = n / l->dp_size;
    slot_resize(s, l, batch);
    for (int64_t i = 0; i < batch && !s->why; i++) {
        int64_t k = s->b.sample[i] = first + l->dp_rank * batch + i;
        if (!(s->why = read_sample(l, k)))
            fill_row(l, &s->b, i);
    }
    for (int c = 0; c < l->blend.corpora && !s->why; c++)
        corpus_unchanged(l->blend.corpus[c], &s->why);
}

static void *read_ahead(void *arg)
{
    Loader *l = arg;
    pthread_mutex_lock(&l->lock);
    while (!l->ending) {
        if (!l->n || l->made - l->taken >= SLOTS - 1 || l->next + l->n > l->blend.samples) {
            pthread_cond_wait(&l->changed, &l->lock);
            continue;
        }
        int64_t turn = l->turn, first = l->next, n = l->n;
        Slot *s = &l->slot[l->made % SLOTS];
        free(s->why);
        s->why = NULL;
        pthread_mutex_unlock(&l->lock);
        slot_fill(l, s, first, n);
        pthread_mutex_lock(&l->lock);
        if (turn != l->turn)
            continue;
        l->made++;
        l->next += n;
        pthread_cond_broadcast(&l->changed);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* ---- the caller's side ---- */

const Batch *loader_get(Loader *l, int64_t first, int64_t n)
{
    BUG_ON(n < 1 || n % l->dp_size || first < 0 || first + n > l->blend.samples);
    pthread_mutex_lock(&l->lock);
    if (n != l->n || first != l->next - (l->made - l->taken) * n) {
        l->turn++;
        l->made = l->taken;
        l->next = first;
        l->n = n;
    }
    l->taken++;
    pthread_cond_broadcast(&l->changed);
    double start = now();
    while (l->made < l->taken)
        pthread_cond_wait(&l->changed, &l->lock);
    l->waited += now() - start;
    Slot *s = &l->slot[(l->taken - 1) % SLOTS];
    pthread_mutex_unlock(&l->lock);
    if (s->why)
        die(EXIT_DATA, "data", "%s: %s", l->key, s->why);
    return &s->b;
}

/* Whether an end-of-document is among the first tokens of a corpus. */
static int has_end(const Loader *l, const Corpus *c)
{
    char *why = NULL;
    int64_t n = c->file[0].tokens < ENDS_WITHIN ? c->file[0].tokens : ENDS_WITHIN, i = 0;
    int32_t *token = xcalloc((size_t)n + 1, sizeof *token);
    if (!corpus_read(c, 0, 0, n, token, &why))
        die(EXIT_DATA, "data", "%s: %s", l->key, why);
    while (i < n && token[i] != l->eod)
        i++;
    free(token);
    return i < n;
}

/* Dies where the corpus cannot be the run's. */
static void check_corpus(const Loader *l, const Corpus *c)
{
    char *why = NULL;
    TokenRange range;
    int64_t bytes = 0;
    for (int f = 0; f < c->files; f++) {
        bytes += c->file[f].size;
        if (c->file[f].type == TOKEN_U16 && l->vocab > 65536)
            die(EXIT_DATA, "data", "%s: %s: holds u16 tokens, which cannot name %ld ids; change: vocab_size, "
                "or tokenize again", l->key, c->file[f].path, l->vocab);
    }
    if (bytes < SCAN_BYTES && !corpus_scan(c, l->vocab, &range, &why))
        die(EXIT_DATA, "data", "%s: %s", l->key, why);
}

/* Checks the corpora: the maker for all that share their order. A fingerprint is each rank's own: ranks that
 * see other files must be told apart. */
static void check_corpora(Loader *l, const Sharers *with)
{
    char *why = NULL;
    for (int i = 0; i < l->blend.corpora; i++) {
        const Corpus *c = l->blend.corpus[i];
        uint64_t print;
        if (with->maker)
            check_corpus(l, c);
        if (!corpus_fingerprint(c, &print, &why))
            die(EXIT_DATA, "data", "%s: %s", l->key, why);
        l->fingerprint = hash64(&print, sizeof print, l->fingerprint);
        if ((l->reset_mask || l->reset_position || l->mask_eod) && !l->endless && !has_end(l, c))
            l->endless = c->name;
    }
}

/* What a split reads: key, its corpora, their shares (as blend_open reads them) and which share. */
typedef struct { const char *key; List path; const char *shares; int share; } Reads;

static Reads reads(const Config *c, Split split)
{
    const Reads own[] = {{"train_data_path", c->train_data_path, NULL, 0},
                         {"valid_data_path", c->valid_data_path, NULL, 0},
                         {"test_data_path", c->test_data_path, NULL, 0}};
    if (own[SPLIT_TRAIN].path.n || own[SPLIT_VALID].path.n || own[SPLIT_TEST].path.n)
        return own[split];
    return (Reads){"data_path", c->data_path, c->split, split};
}

Loader *loader_open(const Config *cfg, Split split, int64_t samples, int dp_rank, int dp_size,
                    const Positions *runs, const Sharers *with)
{
    const Tokenizer *t = tokenizer_open(cfg);
    Loader *l = xcalloc(1, sizeof *l);
    char *why = NULL;
    Reads from = reads(cfg, split);
    *l = (Loader){.key = from.key, .seq = cfg->seq_length, .vocab = cfg->vocab_size, .eod = t->eod,
                  .dp_rank = dp_rank, .dp_size = dp_size, .reset_mask = cfg->reset_attention_mask,
                  .fingerprint = HASH_SEED, .reset_position = cfg->reset_position_ids,
                  .mask_eod = cfg->eod_mask_loss, .runs = *runs};
    if (!from.path.n)
        die(EXIT_DATA, "data", "%s is empty; change: name a corpus (`train tokenize` makes one)", from.key);
    if (!blend_open(&l->blend, from.path.n, from.path.v, from.shares, from.share, samples, cfg->seq_length,
                    (uint32_t)cfg->seed, with, &why))
        die(EXIT_DATA, "data", "%s: %s", from.key, why);
    if (split == SPLIT_TRAIN && cfg->max_epochs != CFG_ABSENT && loader_epochs(l) > cfg->max_epochs)
        die(EXIT_DATA, "data", "the run needs %ld epochs of its corpus, max_epochs is %ld; change: "
            "max_epochs, fewer steps, or a larger corpus", loader_epochs(l), cfg->max_epochs);
    check_corpora(l, with);
    l->text = xcalloc((size_t)l->seq + 1, 4);
    l->start = xcalloc((size_t)l->seq + 1, 4);
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, NULL);
    sigset_t all, old;   /* the thread blocks all signals: they go to the main thread */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    if (pthread_create(&l->thread, NULL, read_ahead, l))
        die(EXIT_RESOURCE, "thread", "cannot start the loader's thread; change: raise the limits on "
            "processes and memory (ulimit -u, -v)");
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return l;
}

void loader_close(Loader *l)
{
    pthread_mutex_lock(&l->lock);
    l->ending = 1;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    pthread_join(l->thread, NULL);
    pthread_mutex_destroy(&l->lock);
    pthread_cond_destroy(&l->changed);
    for (int i = 0; i < SLOTS; i++)
        slot_free(&l->slot[i]);
    blend_close(&l->blend);
    free(l->text);
    free(l->start);
    free(l);
}

int loader_copy(const Loader *l, int64_t k, int32_t *tokens, char **why)
{
    return blend_read(&l->blend, k, 0, l->seq + 1, tokens, NULL, why);
}

int64_t loader_counted(const Loader *l, int64_t first, int64_t n)
{
    int32_t *text = xcalloc((size_t)l->seq, sizeof *text);
    char *why = NULL;
    int64_t counted = 0;
    int set;
    for (int64_t k = first; k < first + n; k++) {
        if (!fetch(l, k, 0, l->seq, text, &set, &why))
            die(EXIT_DATA, "data", "%s: %s", l->key, why);
        for (int64_t t = 0; t < l->seq; t++)
            counted += has_loss(l, text[t]);
    }
    free(text);
    return counted;
}

int loader_give(Loader *l, int64_t first, int64_t n, const int32_t *tokens)
{
    int32_t *own = xcalloc((size_t)l->seq + 1, sizeof *own);
    char *why = NULL;
    int other = 0;
    for (int64_t k = 0; k < n && !why; k++) {
        if (loader_copy(l, first + k, own, &why))
            other |= memcmp(own, tokens + k * (l->seq + 1), 4 * (size_t)(l->seq + 1)) != 0;
    }
    if (why)
        die(EXIT_DATA, "data", "%s: %s", l->key, why);
    pthread_mutex_lock(&l->lock);
    l->given.first = first;
    l->given.n = n;
    l->given.tokens = tokens;
    pthread_mutex_unlock(&l->lock);
    free(own);
    return other;
}

double loader_wait_seconds(const Loader *l) { return l->waited; }
int64_t loader_samples(const Loader *l) { return l->blend.samples; }
int64_t loader_epochs(const Loader *l) { return blend_epochs(&l->blend); }
int64_t loader_passes(const Loader *l) { return (int64_t)(blend_passes(&l->blend) >> 1); }
const char *loader_endless(const Loader *l) { return l->endless; }
int64_t loader_fingerprint(const Loader *l) { return (int64_t)(l->fingerprint >> 1); }

int64_t loader_tokens(const Loader *l)
{
    int64_t sum = 0;
    for (int i = 0; i < l->blend.corpora; i++)
        sum += l->blend.set[i].window.tokens;
    return sum;
}
