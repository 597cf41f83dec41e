/* losses -- a recorded step's time by cause, from the times of all ranks */
#include "losses.h"
#include "timeline.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const loss_name[LOSSES] = {
#define X(id, name, text) name,
    LOSS_NAMES(X)
#undef X
};
const char *const loss_text[LOSSES] = {
#define X(id, name, text) text,
    LOSS_NAMES(X)
#undef X
};

/* The losses that are a rank's own work. */
static int is_own(int loss) { return loss <= LOSS_LAUNCH || loss == LOSS_OTHER; }

LossKind losses_largest(const Losses *l)
{
    int best = LOSS_PRODUCTS;
    for (int i = best + 1; i < LOSSES; i++)
        best = l->s[i] > l->s[best] ? i : best;
    return (LossKind)best;
}

/* What one rank kept of a step, s. */
typedef struct {
    double s[LOSSES];
    double own, waits;             /* own work; waiting for other ranks */
    int kept;                      /* losses found: LOSSES when the record is whole */
    int stage;                     /* place in the pipeline */
} Kept;

/* The newest step of which the rank has a loss; -1: none. */
static int64_t newest(const TimelineRank *r)
{
    int64_t step = -1;
    for (int64_t i = 0; i < r->n; i++)
        if (r->event[i].kind == SPAN_LOSS && r->event[i].step > step)
            step = r->event[i].step;
    return step;
}

static Kept read_rank(const TimelineRank *r, int64_t step)
{
    Kept k = {.stage = r->index[AXIS_PP]};
    for (int64_t i = 0; i < r->n; i++) {
        const TraceEvent *e = &r->event[i];
        if (e->kind != SPAN_LOSS || e->step != step || e->unit >= LOSSES)
            continue;
        k.s[e->unit] += e->end - e->start;
        k.kept++;
    }
    for (int i = 0; i < LOSSES; i++) {
        k.own += is_own(i) ? k.s[i] : 0;
        k.waits += i >= LOSS_TENSOR && i <= LOSS_SLOWEST ? k.s[i] : 0;
    }
    return k;
}

/* The rank of a stage whose own work is the (lower) median of the stage's, without rank `but` where the
 * stage has others. */
static int usual(const Kept *k, int n, int stage, int but)
{
    int others = 0, best = but;
    for (int r = 0; r < n; r++)
        others += k[r].stage == stage && r != but;
    for (int r = 0; r < n && others; r++) {
        int below = 0;
        if (k[r].stage != stage || r == but)
            continue;
        for (int o = 0; o < n; o++)
            below += k[o].stage == stage && o != but &&
                     (k[o].own < k[r].own || (!(k[o].own > k[r].own) && o < r));
        if (below == (others - 1) / 2)
            best = r;
    }
    return best;
}

/* Splits the work of rank l->rank, the reference: the mean over the stages, what its stage has more, what it
 * takes longer than its peers. The three add up to its own work. */
static void split_own(Losses *l, const Kept *k, int n)
{
    int stages = 0, ref = l->rank;
    double mean[LOSSES] = {0}, own = 0;
    for (int r = 0; r < n; r++)
        stages = k[r].stage >= stages ? k[r].stage + 1 : stages;
    int like = usual(k, n, k[ref].stage, ref);
    if (!(k[like].own < k[ref].own))               /* the reference is no slower than its peers */
        like = ref;
    for (int s = 0; s < stages; s++) {
        int r = s == k[ref].stage ? like : usual(k, n, s, -1);
        for (int i = 0; i < LOSSES && r >= 0; i++)
            mean[i] += is_own(i) ? k[r].s[i] / stages : 0;
        own += r >= 0 ? k[r].own / stages : 0;
    }
    int lighter = !(own < k[like].own);    /* its stage has no more than the mean: nothing to split off */
    for (int i = 0; i < LOSSES; i++)
        if (is_own(i))
            l->s[i] = lighter ? k[like].s[i] : mean[i];
    l->s[LOSS_IMBALANCE] = lighter ? 0 : k[like].own - own;
    l->s[LOSS_SLOWEST] += k[ref].own - k[like].own;
}

int losses_measured(Losses *l, const Timeline *t, const Losses *planned)
{
    int64_t step = INT64_MAX;
    int whole = t->ranks > 0;
    Kept *k = xcalloc((size_t)t->ranks + 1, sizeof *k);
    *l = (Losses){0};
    for (int r = 0; r < t->ranks; r++) {
        int64_t last = newest(&t->rank[r]);
        step = last < step ? last : step;
    }
    for (int r = 0; r < t->ranks; r++) {
        k[r] = read_rank(&t->rank[r], step);
        whole &= k[r].kept == LOSSES;
        l->rank = k[r].waits < k[l->rank].waits ? r : l->rank;
    }
    if (whole) {
        l->iteration = step;
        memcpy(l->s, k[l->rank].s, sizeof l->s);
        for (int i = 0; i < LOSSES; i++)
            l->step += l->s[i];
        split_own(l, k, t->ranks);
    }
    double products = l->s[LOSS_PEAK] + l->s[LOSS_PRODUCTS];
    if (planned) {
        l->s[LOSS_PEAK] = fmin(planned->s[LOSS_PEAK], products);
        l->s[LOSS_PRODUCTS] = products - l->s[LOSS_PEAK];
    }
    free(k);
    return whole;
}
