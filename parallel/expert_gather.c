/* expert_gather -- the dispatch that gathers the rows of all ranks, and the sums on the way back */
#include "expert_gather.h"
#include "expert_plan.h"
#include <stdlib.h>
#include <string.h>

static int ranks_of(const Experts *x) { return x->ep->size * x->etp->size; }
static int64_t elements(Mat m) { return m.rows * m.cols; }

void gather_open(Experts *x, int64_t sorted)
{
    size_t ranks = (size_t)ranks_of(x);
    x->of_rank = xcalloc(ranks * (size_t)x->experts, sizeof *x->of_rank);
    x->pair_of_rank = xcalloc(ranks * (size_t)sorted + 1, sizeof *x->pair_of_rank);
}

void gather_close(Experts *x)
{
    free(x->of_rank);
    free(x->pair_of_rank);
}

/* all [etp][ep][n] <- mine [n] of every rank. turn, bool: gives the turn away while they travel. */
static void gather_all(Experts *x, void *all, const void *mine, int64_t n, Dtype type, int counting, int turn)
{
    size_t bytes = (size_t)n * dtype_size(type);
    char *row = (char *)all + (size_t)(x->etp->rank * x->ep->size) * bytes;
    Token token = x->ep->all_gather(x->ep, row, mine, n, type);
    if (turn)
        experts_turn(x);
    x->ep->wait(x->ep, token);
    x->etp->wait(x->etp, x->etp->all_gather(x->etp, all, row, n * x->ep->size, type));
    for (int i = 0; counting && i < ranks_of(x); i++)
        memcpy((char *)all + (size_t)i * bytes, mine, bytes);
}

void gather_counts(Experts *x, int counting)
{
    gather_all(x, x->of_rank, x->mine, x->experts, I64, counting, 0);
    /* the same bits for the same pairs: a step that runs again is compared (sdc_rerun) */
    memset(x->pair + x->pairs, -1, (size_t)(x->most_pairs - x->pairs) * sizeof *x->pair);
    gather_all(x, x->pair_of_rank, x->pair, x->most_pairs, I32, counting, 1);
    for (int i = 0; i < ranks_of(x); i++)
        memcpy(x->count + i * x->local, x->of_rank + i * x->experts + x->ep->rank * x->local,
               (size_t)x->local * sizeof *x->count);
}

/* Where the pairs for this rank begin among the sorted ones of rank i of [etp][ep]. */
static int64_t first_of(const Experts *x, int i)
{
    int64_t at = 0;
    for (int e = 0; e < x->ep->rank * x->local; e++)
        at += x->of_rank[i * x->experts + e];
    return at;
}

typedef enum { BY_ROW, BY_PAIR, BACK } ListKind;

/* Makes a list of a round on the device, in scratch: for each row in the order of experts its row or its pair
 * among those of all ranks, or the inverse by pairs. */
static int32_t *list(Device *d, Experts *x, Arena *scratch, int64_t round, ListKind kind)
{
    int64_t pairs = x->bound * x->topk, all = pairs * ranks_of(x), n = 0, from;
    int64_t room = kind == BACK ? all : experts_room(x);
    int32_t *at = arena_take(scratch, (size_t)room * sizeof *at);
    if (!at)                           /* a counting run: nobody reads them */
        return NULL;
    for (int64_t i = 0; kind == BACK && i < all; i++)
        x->order[i] = -1;
    for (int l = 0; l < x->local; l++)
        for (int i = 0; i < ranks_of(x); i++) {
            int64_t end = experts_span(x, round, i / x->ep->size, i % x->ep->size, l, &from);
            const int32_t *sorted = x->pair_of_rank + i * x->most_pairs + first_of(x, i) + round * x->window;
            for (int64_t j = from; j < end; j++, n++) {
                int64_t p = sorted[j];
                if (kind == BACK && p >= 0)
                    x->order[i * pairs + p] = (int32_t)n;
                else if (kind != BACK)
                    x->order[n] = (int32_t)(p < 0             ? -1
                                            : kind == BY_PAIR ? i * pairs + p : i * x->bound + p / x->topk);
            }
        }
    d->put(d, at, x->order, (size_t)(kind == BACK ? all : n) * sizeof *at);
    return at;
}

ExpertRound gather_round(Device *d, Experts *x, Arena *scratch, int64_t number, int64_t n)
{
    return (ExpertRound){number, n, list(d, x, scratch, number, BY_ROW), list(d, x, scratch, number, BACK),
                         list(d, x, scratch, number, BY_PAIR)};
}

/* Whether no rank has a row in a round after the first one: nothing is gathered then. A counting run has such
 * a round, for its memory. */
static int is_empty(const Experts *x, int64_t round)
{
    for (int i = 0; i < ranks_of(x) * x->ep->size; i++) {
        int64_t n = 0;
        for (int e = 0; e < x->local; e++)
            n += x->of_rank[(int64_t)i * x->local + e];
        if (n > round * x->window)
            return 0;
    }
    return round > 0;
}

void gather_send_start(Device *d, Experts *x, Arena *scratch, const ExpertRound *r, Mat rows, int each,
                       ExpertFlight *f)
{
    int64_t n = x->bound * each;
    f->come = mat_take(scratch, n * ranks_of(x), rows.cols, rows.type);
    f->order = each == 1 ? r->order : r->pair;
    if (is_empty(x, r->number)) {
        f->come = mat_rows(f->come, 0, 0);
        return;
    }
    Mat here = mat_rows(f->come, x->etp->rank * x->ep->size * n, n * x->ep->size),
        own = mat_rows(here, x->ep->rank * n, n);
    d->copy(d, mat_rows(own, 0, rows.rows), rows);
    f->token[0] = x->ep->all_gather(x->ep, here.p, own.p, elements(own), own.type);
}

void gather_send_end(Device *d, Experts *x, ExpertFlight f)
{
    int64_t n = f.come.rows / x->etp->size;
    Mat here = mat_rows(f.come, x->etp->rank * n, n);
    if (!n)
        return;
    x->ep->wait(x->ep, f.token[0]);
    x->etp->wait(x->etp, x->etp->all_gather(x->etp, f.come.p, here.p, elements(here), here.type));
    d->gather_rows(d, f.out, f.come, f.order);
}

/* The sums for all ranks, those for the ranks of ep, and two parts for experts_back's rows. */
int64_t gather_return_rows(const Experts *x, Mat back)
{
    return back.rows * (ranks_of(x) + x->ep->size + 2);
}

void gather_return_start(Device *d, Experts *x, const ExpertRound *r, int each, Mat back, Mat rows, Mat room,
                         ExpertFlight *f)
{
    int64_t n = back.rows, all = n * ranks_of(x);
    Mat sums = mat_rows(room, 0, all), of_ep = mat_rows(room, all, n * x->ep->size),
        parts = mat_rows(room, all + n * x->ep->size, 2 * n);
    f->come = mat_rows(parts, 0, 0);
    if (is_empty(x, r->number))
        return;
    if (each == 1)
        d->sum_rows(d, sums, rows, r->back, x->topk);
    else
        d->gather_rows(d, sums, rows, r->back);
    x->etp->wait(x->etp, x->etp->reduce_scatter(x->etp, of_ep.p, sums.p, elements(of_ep), sums.type, OP_SUM));
    f->out = back;
    if (r->number)
        f->come = parts;
    Mat sum = r->number ? mat_rows(parts, n, n) : back;
    f->token[0] = x->ep->reduce_scatter(x->ep, sum.p, of_ep.p, elements(sum), sum.type, OP_SUM);
}

void gather_return_end(Device *d, Experts *x, ExpertFlight f)
{
    x->ep->wait(x->ep, f.token[0]);
    if (!f.come.rows)
        return;
    d->copy(d, mat_rows(f.come, 0, f.out.rows), f.out);    /* the rounds before */
    d->sum_parts(d, f.out, f.come);
}
