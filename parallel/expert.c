/* expert -- the dispatch of rows to the ranks that hold their experts, and their return */
#include "expert.h"
#include <stdlib.h>
#include <string.h>

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* A quarter more than a balanced share, so that one round is the rule; a group of one sends itself all. */
static int64_t window_of(const Experts *x, int64_t rows)
{
    return least(rows * x->topk, up(5 * rows * x->topk, 4 * x->ep->size));
}

void experts_open(Experts *x, Comm *ep, Comm *etp, int experts, int topk, int64_t most)
{
    int64_t pairs = most * topk;
    BUG_ON(experts % ep->size || topk > experts);
    *x = (Experts){.ep = ep, .etp = etp, .experts = experts, .local = experts / ep->size, .topk = topk,
                   .most = most};
    x->choice = xcalloc((size_t)pairs + 1, sizeof *x->choice);
    x->place = xcalloc((size_t)pairs + 1, sizeof *x->place);
    x->pair = xcalloc((size_t)pairs + 1, sizeof *x->pair);
    x->source = xcalloc((size_t)pairs + 1, sizeof *x->source);
    x->first = xcalloc((size_t)ep->size + 1, sizeof *x->first);
    x->mine = xcalloc((size_t)experts, sizeof *x->mine);
    x->count = xcalloc((size_t)experts * (size_t)etp->size, sizeof *x->count);
    x->window = window_of(x, most);
    x->before = xcalloc((size_t)(etp->size * ep->size) * (size_t)(x->local + 1), sizeof *x->before);
    x->order = xcalloc((size_t)experts_room(x) + 1, sizeof *x->order);
    x->token = xcalloc(2 * (size_t)(ep->size + etp->size), sizeof *x->token);
}

void experts_close(Experts *x)
{
    free(x->choice);
    free(x->place);
    free(x->pair);
    free(x->source);
    free(x->first);
    free(x->mine);
    free(x->count);
    free(x->before);
    free(x->order);
    free(x->token);
    *x = (Experts){0};
}

int64_t experts_room(const Experts *x) { return x->window * x->ep->size * x->etp->size; }

/* ---- the plan of a dispatch ---- */

/* Sorts the pairs by expert: a counting sort, in which rows stay in order. */
static void sort_pairs(Experts *x)
{
    int64_t pairs = x->rows * x->topk, at = 0, *next = xcalloc((size_t)x->experts, sizeof *next);
    memset(x->mine, 0, (size_t)x->experts * sizeof *x->mine);
    for (int64_t i = 0; i < pairs; i++) {
        BUG_ON(x->choice[i] < 0 || x->choice[i] >= x->experts);
        x->mine[x->choice[i]]++;
    }
    for (int e = 0; e < x->experts; at += x->mine[e++]) {
        next[e] = at;
        if (e % x->local == 0)
            x->first[e / x->local] = at;
    }
    x->first[x->ep->size] = at;
    for (int64_t i = 0; i < pairs; i++) {
        x->place[i] = (int32_t)next[x->choice[i]]++;
        x->pair[x->place[i]] = (int32_t)i;
        x->source[x->place[i]] = (int32_t)(i / x->topk);
    }
    free(next);
}

/* A counting run: pair i goes to expert i mod E, so that every rank gets its share. */
static void assume_balance(Experts *x)
{
    for (int64_t i = 0; i < x->rows * x->topk; i++)
        x->choice[i] = (int32_t)(i % x->experts);
}

/* Fills x->before from x->count. */
static void sum_counts(Experts *x)
{
    int64_t *to = x->before;
    const int64_t *n = x->count;
    for (int i = 0; i < x->etp->size * x->ep->size; i++) {
        *to++ = 0;
        for (int l = 0; l < x->local; l++, to++)
            *to = to[-1] + *n++;
    }
}

void experts_plan(Device *d, Experts *x, const int32_t *choice, int64_t rows, int64_t bound)
{
    BUG_ON(rows > bound || bound > x->most);
    x->rows = rows;
    x->window = window_of(x, bound);
    if (choice)
        d->get(d, x->choice, choice, (size_t)(rows * x->topk) * sizeof *choice);
    else
        assume_balance(x);
    sort_pairs(x);
    int64_t n = x->experts, largest = 0, *here = x->count + x->etp->rank * n;
    x->ep->wait(x->ep, x->ep->all_to_all(x->ep, here, x->mine, x->local, I64));
    x->etp->wait(x->etp, x->etp->all_gather(x->etp, x->count, here, n, I64));
    for (int i = 0; !choice && i < x->etp->size * x->ep->size; i++)    /* groups that count move nothing */
        memcpy(x->count + i * x->local, x->mine + x->ep->rank * x->local, (size_t)x->local * sizeof *x->mine);
    sum_counts(x);
    for (int r = 0; r < x->ep->size; r++)
        largest = x->first[r + 1] - x->first[r] > largest ? x->first[r + 1] - x->first[r] : largest;
    x->rounds = largest ? up(largest, x->window) : 0;
    x->ep->wait(x->ep, x->ep->all_reduce(x->ep, &x->rounds, 1, I64, OP_MAX));
    x->etp->wait(x->etp, x->etp->all_reduce(x->etp, &x->rounds, 1, I64, OP_MAX));
}

/* Pairs for the experts before `local` of this rank among those that rank r of ep of etp rank t sends here in
 * a round: all it has for this rank are sorted by expert, and the round has [round * window, (round + 1) *
 * window) of them. */
static int64_t before(const Experts *x, int64_t round, int t, int r, int local)
{
    int64_t n = x->before[(t * x->ep->size + r) * (int64_t)(x->local + 1) + local] - round * x->window;
    return n < 0 ? 0 : least(n, x->window);
}

/* Pairs that rank r of ep of etp rank t sends here in a round. */
static int64_t sent_by(const Experts *x, int64_t round, int t, int r)
{
    return before(x, round, t, r, x->local);
}

/* Rows that etp rank t has from its sources in a round. */
static int64_t rows_of(const Experts *x, int64_t round, int t)
{
    int64_t n = 0;
    for (int r = 0; r < x->ep->size; r++)
        n += sent_by(x, round, t, r);
    return n;
}

int64_t experts_rows(const Experts *x, int64_t round)
{
    int64_t n = 0;
    for (int t = 0; t < x->etp->size; t++)
        n += rows_of(x, round, t);
    return n;
}

int64_t experts_part(const Experts *x, int64_t round, int local, int64_t *from)
{
    int64_t to = 0;
    *from = 0;
    for (int t = 0; t < x->etp->size; t++)
        for (int r = 0; r < x->ep->size; r++) {
            *from += before(x, round, t, r, local);
            to += before(x, round, t, r, local + 1);
        }
    return to - *from;
}

/* Fills x->order: row i in the order of experts is row order[i] of those received, which come by etp rank,
 * by ep rank, and then by expert. back: the inverse. */
static void order_rows(Experts *x, int64_t round, int back)
{
    int64_t to = 0;
    for (int l = 0; l < x->local; l++) {
        int64_t start = 0;
        for (int t = 0; t < x->etp->size; t++)
            for (int r = 0; r < x->ep->size; r++) {
                int64_t end = start + before(x, round, t, r, l + 1);
                for (int64_t i = start + before(x, round, t, r, l); i < end; i++, to++)
                    x->order[back ? i : to] = (int32_t)(back ? to : i);
                start += sent_by(x, round, t, r);
            }
    }
}

/* ---- messages ---- */

/* Sends `give` to a peer and receives `take` from it; rows of this rank are copied. */
static void swap(Device *d, Comm *c, int peer, Mat take, Mat give, Token token[2])
{
    token[0] = token[1] = 0;
    if (peer == c->rank) {
        d->copy(d, take, give);
        return;
    }
    if (give.rows)
        token[0] = c->send(c, give.p, give.rows * give.cols, give.type, peer);
    if (take.rows)
        token[1] = c->recv(c, take.p, take.rows * take.cols, take.type, peer);
}

static void wait_all(Comm *c, const Token *token)
{
    for (int i = 0; i < 2 * c->size; i++)
        c->wait(c, token[i]);
}

/* The sorted pairs that go to ep rank r in a round. */
static Mat pairs_to(const Experts *x, int64_t round, Mat sorted, int r)
{
    int64_t from = x->first[r] + round * x->window, n = least(x->first[r + 1] - from, x->window);
    return n > 0 ? mat_rows(sorted, from, n) : mat_rows(sorted, 0, 0);
}

/* Exchanges rows with the ranks of ep: the pairs of `sorted` and the received rows of this etp rank, to one
 * side or back. */
static void over_ep(Device *d, Experts *x, int64_t round, Mat rows, Mat sorted, int back)
{
    int64_t at = 0;
    comm_together(x->ep, 1);
    for (int r = 0; r < x->ep->size; r++) {
        int64_t n = sent_by(x, round, x->etp->rank, r);
        Mat there = mat_rows(rows, at, n), here = pairs_to(x, round, sorted, r);
        swap(d, x->ep, r, back ? here : there, back ? there : here, x->token + 2 * r);
        at += n;
    }
    comm_together(x->ep, 0);
    wait_all(x->ep, x->token);
}

/* Where the rows of etp rank t begin among those received. */
static int64_t etp_first(const Experts *x, int64_t round, int t)
{
    int64_t at = 0;
    for (int i = 0; i < t; i++)
        at += rows_of(x, round, i);
    return at;
}

void experts_send(Device *d, Experts *x, Arena *scratch, int64_t round, Mat out, Mat sorted)
{
    size_t mark = scratch->used;
    int64_t n = experts_rows(x, round), own = rows_of(x, round, x->etp->rank);
    Mat come = mat_take(scratch, experts_room(x), sorted.cols, sorted.type);
    int32_t *order = arena_take(scratch, (size_t)experts_room(x) * sizeof *order);
    Mat mine = mat_rows(come, etp_first(x, round, x->etp->rank), own);
    over_ep(d, x, round, mine, sorted, 0);
    comm_together(x->etp, 1);
    for (int t = 0; t < x->etp->size; t++)
        if (t != x->etp->rank)
            swap(d, x->etp, t, mat_rows(come, etp_first(x, round, t), rows_of(x, round, t)), mine,
                 x->token + 2 * t);
        else
            x->token[2 * t] = x->token[2 * t + 1] = 0;
    comm_together(x->etp, 0);
    wait_all(x->etp, x->token);
    order_rows(x, round, 0);
    if (order)
        d->put(d, order, x->order, (size_t)n * sizeof *order);
    d->gather_rows(d, out, mat_rows(come, 0, n), order);
    arena_reset(scratch, mark);
}

void experts_return(Device *d, Experts *x, Arena *scratch, int64_t round, Mat sorted, Mat rows)
{
    size_t mark = scratch->used;
    int64_t own = rows_of(x, round, x->etp->rank), room = experts_room(x);
    Mat back = mat_take(scratch, room, sorted.cols, sorted.type);
    Mat parts = mat_take(scratch, room, sorted.cols, sorted.type);
    int32_t *order = arena_take(scratch, (size_t)room * sizeof *order);
    order_rows(x, round, 1);
    if (order)
        d->put(d, order, x->order, (size_t)rows.rows * sizeof *order);
    d->gather_rows(d, mat_rows(back, 0, rows.rows), rows, order);
    /* each etp rank has a part of the sums of every other one's rows */
    comm_together(x->etp, 1);
    for (int t = 0; t < x->etp->size; t++)
        swap(d, x->etp, t, mat_rows(parts, t * own, own),
             mat_rows(back, etp_first(x, round, t), rows_of(x, round, t)), x->token + 2 * t);
    comm_together(x->etp, 0);
    wait_all(x->etp, x->token);
    Mat sum = mat_rows(back, 0, own);
    d->sum_parts(d, sum, mat_rows(parts, 0, own * x->etp->size));
    over_ep(d, x, round, sum, sorted, 1);
    arena_reset(scratch, mark);
}
