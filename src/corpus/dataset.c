/* dataset -- samples of a run: shuffled documents of a corpus, corpora blended by weight */
#define _GNU_SOURCE
#include "dataset.h"
#include "base.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- MT19937 (Matsumoto and Nishimura 1998), as numpy.random.RandomState seeds and uses it ---- */

typedef struct { uint32_t mt[624]; int at; } RandomState;

static void random_seed(RandomState *r, uint32_t seed)
{
    for (int i = 0; i < 624; i++) {
        r->mt[i] = seed;
        seed = 1812433253u * (seed ^ seed >> 30) + (uint32_t)i + 1;
    }
    r->at = 624;
}

static uint32_t random_u32(RandomState *r)
{
    if (r->at == 624) {
        for (int i = 0; i < 624; i++) {
            uint32_t y = (r->mt[i] & 0x80000000u) | (r->mt[(i + 1) % 624] & 0x7fffffffu);
            r->mt[i] = r->mt[(i + 397) % 624] ^ y >> 1 ^ (y & 1 ? 0x9908b0dfu : 0);
        }
        r->at = 0;
    }
    uint32_t y = r->mt[r->at++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

/* Random numbers do not depend on the swaps. So AHEAD places are drawn and prefetched, then swapped from
 * the cache. 10 million elements take 165 ns an element without prefetch, 12 ns with it. */
#define AHEAD 128

/* Shuffles a[n] in place as RandomState.shuffle does for a one-dimensional array. */
static void random_shuffle(RandomState *r, uint32_t *a, int64_t n)
{
    uint32_t to[AHEAD];
    BUG_ON(n > (int64_t)UINT32_MAX);   /* above 2^32 numpy draws two words a place */
    for (int64_t i = n - 1, left; i > 0; i -= left) {
        left = i < AHEAD ? i : AHEAD;
        for (int64_t k = 0; k < left; k++) {
            uint32_t mask = UINT32_MAX >> __builtin_clz((uint32_t)(i - k));
            while ((to[k] = random_u32(r) & mask) > i - k)
                ;
            __builtin_prefetch(&a[to[k]], 1);
        }
        for (int64_t k = 0; k < left; k++) {
            uint32_t t = a[i - k];
            a[i - k] = a[to[k]];
            a[to[k]] = t;
        }
    }
}

/* ---- one corpus ---- */

static void count_up(uint32_t *a, int64_t n, int64_t from)
{
    for (int64_t i = 0; i < n; i++)
        a[i] = (uint32_t)(from + i);
}

static void document_index(Dataset *d, RandomState *r)
{
    int64_t n = d->window.count, apart = d->separate ? n : 0;
    for (int64_t e = 0; e < d->epochs; e++)
        count_up(d->document + e * n, n, d->window.first);
    random_shuffle(r, d->document, d->documents - apart);
    random_shuffle(r, d->document + d->documents - apart, apart);
}

/* Fills d->sample: walks through the text once, seq tokens at a time. */
static void sample_index(Dataset *d)
{
    int64_t at = 0, doc = 0, off = 0;
    const int32_t *length = d->window.length;
    uint32_t first = (uint32_t)d->window.first;
    for (int64_t s = 1; s <= d->samples; s++) {
        /* sample s starts seq tokens behind (doc, off) */
        for (at = off + d->seq; at >= length[d->document[doc] - first]; doc++) {
            at -= length[d->document[doc] - first];
            if (doc + AHEAD < d->documents)
                __builtin_prefetch(&length[d->document[doc + AHEAD] - first]);
        }
        off = at;
        d->sample[2 * s] = (int32_t)doc;
        d->sample[2 * s + 1] = (int32_t)off;
    }
}

/* The least n with n * per_epoch >= wanted * seq + 1. */
static int64_t epochs_for(int64_t wanted, int64_t seq, int64_t per_epoch)
{
    int64_t need = 0;
    if (wanted > 0 && __builtin_mul_overflow(wanted, seq, &need))
        need = INT64_MAX;
    return need / per_epoch + 1;
}

/* Samples before the last epoch. */
static int64_t before_last(const Dataset *d) { return ((d->epochs - 1) * d->window.tokens - 1) / d->seq; }

/* Opens the share [from, to) of a corpus and counts; the other arguments are those of blend_open. */
static int dataset_open(Dataset *d, const Corpus *c, double from, double to, int64_t wanted, int64_t seq,
                        char **why)
{
    *d = (Dataset){.corpus = c, .seq = seq, .wanted = wanted};
    if (!window_open(&d->window, c, from, to, why))
        return 0;
    int64_t per_epoch = d->window.tokens, total = 0;
    if (per_epoch < seq + 1)
        return fail(why, "%s: the share %.6g to %.6g of its %ld %s holds %ld tokens, fewer than the %ld of "
                    "one sample; change: %s", c->name, from, to, c->sequences ? c->sequences : c->tokens,
                    c->sequences ? "sequences" : "tokens", per_epoch, seq + 1,
                    c->sequences && !d->window.count
                        ? "split, a corpus of more documents (a file of text is one), or a corpus for each "
                          "split (train_data_path, valid_data_path, test_data_path)"
                        : "split, a larger corpus, or a smaller seq_length");
    d->epochs = epochs_for(wanted, seq, per_epoch);
    if (__builtin_mul_overflow(d->window.count, d->epochs, &d->documents) || d->documents > INT32_MAX ||
        __builtin_mul_overflow(per_epoch, d->epochs, &total) ||
        (total - 1) / seq >= (int64_t)UINT32_MAX - 1)
        return fail(why, "%s: %ld epochs of %ld sequences are more than the index can number (2^31-1 "
                    "sequences, 2^32-2 samples); change: fewer steps or a larger seq_length", c->name,
                    d->epochs, d->window.count);
    d->samples = (total - 1) / seq;
    d->separate = d->epochs > 1 &&
                  wanted - before_last(d) < (int64_t)(0.80 * (double)((per_epoch - 1) / seq));
    return 1;
}

/* Fills the arrays. */
static void dataset_order(Dataset *d, uint32_t seed)
{
    RandomState r;
    random_seed(&r, seed);
    document_index(d, &r);
    sample_index(d);
    int64_t apart = d->separate ? d->samples - before_last(d) : 0;
    count_up(d->shuffle, d->samples, 0);
    random_shuffle(&r, d->shuffle, d->samples - apart);
    random_shuffle(&r, d->shuffle + d->samples - apart, apart);
}

/* The start of the k-th sample, [2] as in Dataset.sample. There may be more than 2^31 samples. */
static const int32_t *start_of(const Dataset *d, int64_t k) { return d->sample + 2 * (int64_t)d->shuffle[k]; }

/* Reads tokens [from, from + left) of the k-th sample's seq + 1 into out. */
static int dataset_read(const Dataset *d, int64_t k, int64_t from, int64_t left, int32_t *out, char **why)
{
    BUG_ON(k < 0 || k >= d->samples || from < 0 || from + left > d->seq + 1);
    int64_t doc = start_of(d, k)[0], off = start_of(d, k)[1] + from;
    for (; left > 0; doc++) {
        int64_t i = d->document[doc] - d->window.first, n = d->window.length[i] - off;
        if (n <= 0) {
            off = -n;
            continue;
        }
        n = n < left ? n : left;
        if (!window_read(&d->window, i, off, n, out, why))
            return 0;
        out += n;
        left -= n;
        off = 0;
    }
    return 1;
}

void dataset_where(const Dataset *d, int64_t k, int64_t t, int64_t *sequence, int64_t *offset)
{
    int64_t doc = start_of(d, k)[0];
    t += start_of(d, k)[1];
    for (uint32_t first = (uint32_t)d->window.first; t >= d->window.length[d->document[doc] - first]; doc++)
        t -= d->window.length[d->document[doc] - first];
    *sequence = d->document[doc];
    *offset = t;
}

/* ---- several corpora ---- */

int split_parse(const char *text, double edges[4], char **why)
{
    double share[3] = {0}, sum = 0;
    const char *p = text;
    int n = 0;
    for (; n < 3; n++) {
        char *end;
        share[n] = strtod(p, &end);
        if (end == p || !isfinite(share[n]) || share[n] < 0) {
            n = 3;
            break;
        }
        sum += share[n];
        p = end + strspn(end, " ");
        if (*p != ',')
            break;
        p++;
    }
    if (*p || n == 3 || !(sum > 0) || !isfinite(sum))
        return fail(why, "split '%s' is not one to three numbers >= 0 with commas and a sum above 0; change: "
                    "split, for example '969, 30, 1'", text);
    edges[0] = 0;
    for (int i = 0; i < 3; i++)
        edges[i + 1] = edges[i] + share[i] / sum;
    return 1;
}

/* Adds in the order of numpy.sum, so that normalised weights have the same bits. */
static double numpy_sum(const double *a, int n)
{
    double sum = 0, r[8];
    if (n > 128) {
        int half = n / 2 - n / 2 % 8;
        return numpy_sum(a, half) + numpy_sum(a + half, n - half);
    }
    int i = n < 8 ? 0 : n - n % 8;
    if (i) {
        memcpy(r, a, sizeof r);
        for (int k = 8; k < i; k++)
            r[k % 8] += a[k];
        sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
    }
    for (; i < n; i++)
        sum += a[i];
    return sum;
}

static void normalize(double *w, int n)
{
    double sum = numpy_sum(w, n);
    for (int i = 0; i < n; i++)
        w[i] /= sum;
}

/* Chooses the corpus of every sample by the greedy rule.
 *
 *   weights  in   [sets]  share of each set; they add up to 1
 *   limit    in   [sets]  samples that each set has (Megatron's exhaustive variant); NULL: no limit
 *   which    out  [n]     set of sample k
 *   nth      out  [n]     number of sample k within its set */
static void blend_order(int sets, const double *weights, const int64_t *limit, int64_t n, int16_t *which,
                        uint32_t *nth)
{
    int64_t *used = xcalloc((size_t)sets, 8);
    for (int64_t k = 0; k < n; k++) {
        int best = -1;
        double lag, most = 0;
        for (int i = 0; i < sets; i++) {
            lag = weights[i] * (double)(k ? k : 1) - (double)used[i];
            if ((!limit || used[i] < limit[i]) && (best < 0 || lag > most)) {
                best = i;
                most = lag;
            }
        }
        BUG_ON(best < 0);
        which[k] = (int16_t)best;
        nth[k] = (uint32_t)used[best]++;
    }
    free(used);
}

static int number(const char *s, double *x)
{
    char *end;
    *x = strtod(s, &end);
    return end != s && !*end;
}

/* Splits data_path into spec [*sets] and *weights [*sets]; *weights is NULL if it has no weights. */
static int parse_path(int n, const char *const *path, int *sets, const char **spec, double **weights,
                      char **why)
{
    double x;
    int weighted = n > 1 && number(path[0], &x);
    *weights = NULL;
    *sets = weighted ? n / 2 : n;
    if (!weighted) {
        memcpy(spec, path, sizeof *spec * (size_t)n);
        return 1;
    }
    if (n % 2)
        return fail(why, "the list starts with a weight but has %d entries; change: weights and prefixes in "
                    "turn, [0.3, a, 0.7, b]", n);
    *weights = xcalloc((size_t)*sets, 8);
    for (int i = 0; i < *sets; i++) {
        if (!number(path[2 * i], &x) || !isfinite(x) || x <= 0)
            return fail(why, "'%s' before '%s' is not a weight above 0; change: weights and "
                        "prefixes in turn, [0.3, a, 0.7, b]", path[2 * i], path[2 * i + 1]);
        (*weights)[i] = x;
        spec[i] = path[2 * i + 1];
    }
    normalize(*weights, *sets);
    for (int i = 0; i < *sets; i++)
        if (!((*weights)[i] > 0))
            return fail(why, "beside the other weights, '%s' before '%s' is nothing: their sum is "
                        "too large for it; change: weights that are nearer to 1",
                        path[2 * i], path[2 * i + 1]);
    return 1;
}

static int open_corpora(Blend *b, int n, const char **spec, int joined, char **why)
{
    b->corpus = xcalloc((size_t)n, sizeof *b->corpus);
    b->set = xcalloc((size_t)n, sizeof *b->set);
    for (int i = 0; i < (joined ? 1 : n); i++) {
        if (!(b->corpus[i] = corpus_open(joined ? n : 1, spec + i, why)))
            return 0;
        b->corpora++;
    }
    return 1;
}

/* Counts the samples of several sets. Weighted sets are opened 0.5% larger than their share, which covers the
 * rounding of the greedy rule; without weights a set gives at most the samples that it has. */
static int count_mixed(Blend *b, const double *weights, int64_t wanted, char **why)
{
    int64_t sum = 0;
    for (int i = 0; i < b->corpora; i++)
        sum += weights ? (int64_t)ceil((double)wanted * weights[i]) : b->set[i].samples;
    b->samples = weights || wanted < 0 || wanted > sum ? sum : wanted;
    return weights || wanted <= sum ||
           fail(why, "without weights each corpus is used once, %ld samples in all, but the run needs %ld; "
                "change: give weights ([1, a, 1, b]), or fewer steps", sum, wanted);
}

/* Fills b->which and b->nth. */
static void mix(Blend *b, const double *weights)
{
    int n = b->corpora;
    int64_t *limit = xcalloc((size_t)n, 8);
    double *w = xcalloc((size_t)n, 8);
    for (int i = 0; i < n; i++) {
        limit[i] = b->set[i].samples;
        w[i] = weights ? weights[i] : (double)limit[i];
    }
    normalize(w, n);
    blend_order(n, w, limit, b->samples, b->which, b->nth);
    free(w);
    free(limit);
}

/* ---- what the ranks of a host share ---- */

static void *take_alone(void *ctx, size_t *bytes)
{
    (void)ctx;
    void *p = mmap(NULL, *bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        die(EXIT_RESOURCE, "memory", "cannot allocate %zu bytes for the order of the samples; change: free "
            "memory, or use fewer samples", *bytes);
    return p;
}
static void ready_alone(void *ctx) { (void)ctx; }
const Sharers sharers_none = {1, take_alone, ready_alone, NULL};

/* What lies before the arrays. The pointers of a Dataset there are NULL: each rank has its own. */
typedef struct { int64_t samples, mixed; Dataset set[]; } Head;

/* The place of an array of n elements behind the `*at` bytes that are taken; what `now` holds goes there.
 * base NULL: counts, and leaves the array where it is. */
static void *place(char *base, size_t *at, void *now, int64_t n, size_t size)
{
    size_t bytes = (size_t)n * size, here = *at;
    *at += (bytes + 63) / 64 * 64;
    if (base && now)
        memcpy(base + here, now, bytes);
    if (base)
        free(now);
    return base ? base + here : now;
}

/* Places all arrays; returns the bytes that they take. */
static size_t place_all(Blend *b, int mixed, char *base)
{
    size_t at = (sizeof(Head) + (size_t)b->corpora * sizeof(Dataset) + 63) / 64 * 64;
    for (int i = 0; i < b->corpora; i++) {
        Dataset *d = &b->set[i];
        Window *w = &d->window;
        w->length = place(base, &at, w->length, w->count, sizeof *w->length);
        if (!d->corpus->sequences)
            w->piece = place(base, &at, w->piece, w->count, sizeof *w->piece);
        d->document = place(base, &at, d->document, d->documents, sizeof *d->document);
        d->sample = place(base, &at, d->sample, d->samples + 1, 2 * sizeof *d->sample);
        d->shuffle = place(base, &at, d->shuffle, d->samples, sizeof *d->shuffle);
    }
    if (mixed) {
        b->which = place(base, &at, b->which, b->samples, sizeof *b->which);
        b->nth = place(base, &at, b->nth, b->samples, sizeof *b->nth);
    }
    return at;
}

/* Opens the sets of all corpora and counts their samples and those of the blend. */
static int count_samples(Blend *b, const double edges[2], const double *weights, int64_t wanted, int64_t seq,
                         char **why)
{
    int ok = 1;
    for (int i = 0; ok && i < b->corpora; i++) {
        int64_t want = wanted;
        if (weights)
            want = (int64_t)ceil(ceil((double)wanted * weights[i]) * (1 + 0.005));
        else if (b->corpora > 1)
            want = -1;
        ok = dataset_open(&b->set[i], b->corpus[i], edges[0], edges[1], want, seq, why);
    }
    if (ok && (weights || b->corpora > 1))
        return count_mixed(b, weights, wanted, why);
    b->samples = b->set[0].samples;
    return ok;
}

/* Makes the arrays in memory that the other ranks of the host get, too. */
static void make_order(Blend *b, const double *weights, uint32_t seed, const Sharers *with)
{
    int mixed = weights || b->corpora > 1;
    b->shared_bytes = place_all(b, mixed, NULL);
    Head *h = b->shared = with->take(with->ctx, &b->shared_bytes);
    h->samples = b->samples;
    h->mixed = mixed;
    for (int i = 0; i < b->corpora; i++) {
        h->set[i] = b->set[i];
        h->set[i].corpus = h->set[i].window.corpus = NULL;
        h->set[i].window.length = NULL;
        h->set[i].window.piece = NULL;
    }
    place_all(b, mixed, b->shared);
    for (int i = 0; i < b->corpora; i++)
        dataset_order(&b->set[i], seed);
    if (mixed)
        mix(b, weights);
    with->ready(with->ctx);
}

static void get_order(Blend *b, const Sharers *with)
{
    const Head *h = b->shared = with->take(with->ctx, &b->shared_bytes);
    with->ready(with->ctx);
    b->samples = h->samples;
    for (int i = 0; i < b->corpora; i++) {
        b->set[i] = h->set[i];
        b->set[i].corpus = b->set[i].window.corpus = b->corpus[i];
    }
    place_all(b, (int)h->mixed, b->shared);
}

int blend_open(Blend *b, int n, const char *const *path, const char *split, int which, int64_t wanted,
               int64_t seq, uint32_t seed, const Sharers *with, char **why)
{
    static const char *const name[] = {"training", "validation", "testing"};
    double edges[4], *weights = NULL;
    const char **spec = xcalloc((size_t)n + 1, sizeof *spec);
    int sets = 0, streams = 0, ok;
    *b = (Blend){0};
    *why = NULL;
    ok = split_parse(split ? split : "1", edges, why);
    if (ok && edges[which] == edges[which + 1])
        ok = fail(why, "split '%s' leaves nothing for %s; change: split", split, name[which]);
    if (ok && (n < 1 || n > 2 * INT16_MAX))
        ok = fail(why, "%d entries; change: name 1 to %d corpora", n, INT16_MAX);
    ok = ok && parse_path(n, path, &sets, spec, &weights, why);
    if (!split && sets == 1) {         /* Megatron-LM takes no notice of this weight, and adds no surplus */
        free(weights);
        weights = NULL;
    }
    for (int i = 0; ok && i < sets; i++)
        streams += corpus_is_stream(spec[i]);
    ok = ok && open_corpora(b, sets, spec, !weights && sets > 1 && streams == sets, why);
    ok = ok && (!with->maker || count_samples(b, edges + which, weights, wanted, seq, why));
    if (!ok)
        blend_close(b);
    else if (with->maker)
        make_order(b, weights, seed, with);
    else
        get_order(b, with);
    free(weights);
    free(spec);
    return ok;
}

void blend_close(Blend *b)
{
    for (int i = 0; i < b->corpora; i++) {
        if (!b->shared)                    /* an opening that failed */
            window_close(&b->set[i].window);
        corpus_close(b->corpus[i]);
    }
    if (b->shared)
        munmap(b->shared, b->shared_bytes);
    free(b->corpus);
    free(b->set);
    *b = (Blend){0};
}

int blend_read(const Blend *b, int64_t k, int64_t from, int64_t n, int32_t *out, int *set, char **why)
{
    BUG_ON(k < 0 || k >= b->samples);
    int i = b->which ? b->which[k] : 0;
    if (set)
        *set = i;
    return dataset_read(&b->set[i], b->which ? b->nth[k] : k, from, n, out, why);
}

uint64_t blend_passes(const Blend *b)
{
    uint64_t hash = HASH_SEED;
    for (int i = 0; i < b->corpora; i++) {
        int64_t passes[] = {b->set[i].epochs, b->set[i].separate};
        hash = hash64(passes, sizeof passes, hash);
    }
    return hash;
}

int64_t blend_epochs(const Blend *b)
{
    int64_t most = 0;
    for (int i = 0; i < b->corpora; i++)
        most = b->set[i].epochs > most ? b->set[i].epochs : most;
    return most;
}
