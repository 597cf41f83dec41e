/* expert_plan -- who has how many rows for whom in a dispatch, and the lists of its rounds */
#include "expert_plan.h"
#include "expert_gather.h"
#include <stdlib.h>
#include <string.h>

static int64_t up(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t more(int64_t a, int64_t b) { return a > b ? a : b; }

/* The next multiple of the pieces that an expert's pairs come in. */
static int64_t whole(const Experts *x, int64_t pairs) { return up(pairs, x->piece) * x->piece; }

/* Sorted pairs of one expert that a rank has, at most: of `rows` rows, each has one at most. */
static int64_t pairs_of_one(const Experts *x, int64_t rows, const ExpertsLimit *l)
{
    int64_t n = l ? least(rows, l->capacity) : rows;
    return whole(x, l && l->pad ? more(n, l->share) : n);
}

/* Sorted pairs of a rank for n experts, at most. */
static int64_t most_of(const Experts *x, int64_t n, int64_t rows, const ExpertsLimit *l)
{
    int64_t empty = (l && l->pad ? l->share : 0) + x->piece - 1;
    return least(rows * x->topk + n * empty, n * pairs_of_one(x, rows, l));
}

/* A quarter more than a balanced share, so that one round is the rule, but not more than can be needed. */
static int64_t window_of(const Experts *x, int64_t rows, const ExpertsLimit *l)
{
    int64_t balanced = l && l->pad ? more(rows * x->topk, x->experts * l->share) : rows * x->topk;
    balanced += x->experts * (x->piece - 1);
    return whole(x, least(most_of(x, x->local, rows, l), up(5 * balanced, 4 * x->ep->size)));
}

int experts_tokens(const Experts *x)
{
    return 2 * (x->ep->size > x->etp->size ? x->ep->size : x->etp->size);
}

int experts_alone(const Experts *x) { return x->ep->size * x->etp->size == 1; }
int experts_mixed(const Experts *x) { return x->local > 1 && !experts_alone(x); }

void experts_open(Experts *x, Comm *ep, Comm *etp, int experts, int topk, int64_t most, int64_t piece,
                  int gather, const ExpertsLimit *limit)
{
    int64_t pairs = most * topk;
    BUG_ON(experts % ep->size || topk > experts);
    *x = (Experts){.ep = ep, .etp = etp, .experts = experts, .local = experts / ep->size, .topk = topk,
                   .most = most, .piece = piece, .gather = gather};
    int64_t sorted = more(most_of(x, experts, most, NULL), most_of(x, experts, most, limit));
    x->choice = xcalloc((size_t)pairs + 1, sizeof *x->choice);
    x->place = xcalloc((size_t)pairs + 1, sizeof *x->place);
    x->pair = xcalloc((size_t)sorted + 1, sizeof *x->pair);
    x->source = xcalloc((size_t)sorted + 1, sizeof *x->source);
    x->first = xcalloc((size_t)ep->size + 1, sizeof *x->first);
    x->mine = xcalloc((size_t)experts, sizeof *x->mine);
    x->next = xcalloc((size_t)experts, sizeof *x->next);
    x->count = xcalloc((size_t)experts * (size_t)etp->size, sizeof *x->count);
    x->window = more(window_of(x, most, NULL), window_of(x, most, limit));
    x->before = xcalloc((size_t)(etp->size * ep->size) * (size_t)(x->local + 1), sizeof *x->before);
    int64_t received = more(experts_room(x), gather ? pairs * ep->size * etp->size : 0);
    x->order = xcalloc((size_t)received + 1, sizeof *x->order);
    if (gather)
        gather_open(x, sorted);
    x->token = xcalloc((size_t)(EXPERT_FLIGHTS * experts_tokens(x)), sizeof *x->token);
}

void experts_close(Experts *x)
{
    free(x->choice);
    free(x->place);
    free(x->pair);
    free(x->source);
    free(x->first);
    free(x->mine);
    free(x->next);
    free(x->count);
    free(x->before);
    free(x->order);
    free(x->token);
    gather_close(x);
    *x = (Experts){0};
}

int64_t experts_room(const Experts *x) { return x->window * x->ep->size * x->etp->size; }

int64_t experts_room_of_one(const Experts *x)
{
    return least(x->window, x->most_of_one) * x->ep->size * x->etp->size;
}

/* ---- the plan of a dispatch ---- */

/* The empty pairs of an expert, which has n pairs of this rank: those of the limit, and those that make up
 * the last piece. */
static int64_t empty_pairs(const Experts *x, const ExpertsLimit *l, int e, int64_t n)
{
    int64_t empty = 0;
    if (l && l->pad)
        empty = l->fill ? l->fill[e] : more(0, l->share - n);
    return whole(x, n + empty) - n;
}

/* Sorts the pairs by expert: a counting sort, in which rows stay in order and empty pairs come last. */
static void sort_pairs(Experts *x, const ExpertsLimit *l)
{
    int64_t all = x->rows * x->topk, at = 0, *next = x->next;
    memset(x->mine, 0, (size_t)x->experts * sizeof *x->mine);
    for (int64_t i = 0; i < all; i++) {
        BUG_ON(experts_chosen(x->choice[i]) >= x->experts);
        if (x->choice[i] >= 0)
            x->mine[x->choice[i]]++;
    }
    for (int e = 0; e < x->experts; e++) {
        int64_t empty = empty_pairs(x, l, e, x->mine[e]), end = at + x->mine[e] + empty;
        BUG_ON(end > x->most_pairs || x->mine[e] + empty > pairs_of_one(x, x->rows, l));
        next[e] = at;
        if (e % x->local == 0)
            x->first[e / x->local] = at;
        for (at += x->mine[e]; at < end; at++)
            x->pair[at] = x->source[at] = -1;
        x->mine[e] += empty;
    }
    x->first[x->ep->size] = x->pairs = at;
    for (int64_t i = 0; i < all; i++) {
        x->place[i] = x->choice[i] < 0 ? -1 : (int32_t)next[x->choice[i]]++;
        if (x->place[i] >= 0) {
            x->pair[x->place[i]] = (int32_t)i;
            x->source[x->place[i]] = (int32_t)(i / x->topk);
        }
    }
}

/* A counting run: pair i goes to expert i mod E, so that every rank gets its share. hot: every row chooses
 * the experts of this rank, and others only where it has too few. */
static void assume_choices(Experts *x, const ExpertsLimit *l)
{
    for (int64_t i = 0; i < x->rows * x->topk; i++) {
        int64_t before = i / (x->hot ? x->topk : x->experts);      /* pairs of the same expert */
        int32_t e = (int32_t)((x->hot ? x->ep->rank * x->local + i % x->topk : i) % x->experts);
        x->choice[i] = l && before >= l->share ? experts_dropped(e) : e;
    }
}

int64_t experts_under_way(const Experts *x)
{
    int64_t ep = x->ep->size, etp = x->etp->size;
    return 2 * x->window * (ep - 1 + (etp - 1) * ep);
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

void experts_turn(const Experts *x)
{
    if (x->turns)
        fiber_turn(x->turns);
}

/* Tells each rank how many pairs this one has for its experts. counting, bool: groups move nothing, and all
 * ranks have the same. */
static void exchange_counts(Experts *x, int counting)
{
    int64_t n = x->experts, *here = x->count + x->etp->rank * n;
    Token counts = x->ep->all_to_all(x->ep, here, x->mine, x->local, I64);
    experts_turn(x);
    x->ep->wait(x->ep, counts);
    x->etp->wait(x->etp, x->etp->all_gather(x->etp, x->count, here, n, I64));
    for (int i = 0; counting && i < x->etp->size * x->ep->size; i++)
        memcpy(x->count + i * x->local, x->mine + x->ep->rank * x->local, (size_t)x->local * sizeof *x->mine);
}

/* Makes the lists of a counting run, unless they are there: a plan asks for the same ones in each layer and
 * microbatch, a thousand times. */
static void count_pairs(Experts *x, const ExpertsLimit *l)
{
    ExpertsCounted now = {x->rows, x->bound, x->hot, -1, -1, -1};
    if (l)
        now.capacity = l->capacity, now.share = l->share, now.pad = l->pad;
    int same = x->bound > 0 && (!l || !l->fill) && !memcmp(&now, &x->counted, sizeof now);
    if (same)
        return;
    assume_choices(x, l);
    sort_pairs(x, l);
    x->counted = l && l->fill ? (ExpertsCounted){0} : now;
}

void experts_plan(Device *d, Experts *x, const int32_t *choice, int64_t rows, int64_t bound,
                  const ExpertsLimit *limit)
{
    BUG_ON(rows > bound || bound > x->most);
    x->rows = rows;
    x->bound = bound;
    x->window = window_of(x, bound, limit);
    x->most_pairs = most_of(x, x->experts, bound, limit);
    x->most_of_one = pairs_of_one(x, bound, limit);
    if (choice) {
        d->get(d, x->choice, choice, (size_t)(rows * x->topk) * sizeof *choice);
        sort_pairs(x, limit);
        x->counted = (ExpertsCounted){0};
    } else {
        count_pairs(x, limit);
    }
    if (x->gather)
        gather_counts(x, !choice);
    else
        exchange_counts(x, !choice);
    sum_counts(x);
    int64_t largest = 0;
    for (int r = 0; r < x->ep->size; r++)
        largest = x->first[r + 1] - x->first[r] > largest ? x->first[r + 1] - x->first[r] : largest;
    /* a counting run has the memory of a later round, if there can be one */
    int64_t fewest = choice || x->window >= most_of(x, x->local, bound, limit) ? 1 : 2;
    x->rounds = largest ? more(fewest, up(largest, x->window)) : fewest;
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

int64_t experts_span(const Experts *x, int64_t round, int t, int r, int local, int64_t *from)
{
    *from = before(x, round, t, r, local);
    return before(x, round, t, r, local + 1);
}

int64_t experts_sent(const Experts *x, int64_t round, int t, int r)
{
    return before(x, round, t, r, x->local);
}

int64_t experts_rows(const Experts *x, int64_t round, int t)
{
    int64_t n = 0;
    for (int r = 0; r < x->ep->size; r++)
        n += experts_sent(x, round, t, r);
    return n;
}

static int64_t all_rows(const Experts *x, int64_t round)
{
    int64_t n = 0;
    for (int t = 0; t < x->etp->size; t++)
        n += experts_rows(x, round, t);
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
 * by ep rank, and then by expert. back: the inverse. Returns a copy on the device, in scratch. */
static int32_t *order_rows(Device *d, Experts *x, Arena *scratch, int64_t round, int back)
{
    int64_t to = 0;
    int32_t *list = arena_take(scratch, (size_t)experts_room(x) * sizeof *list);
    if (!list)                         /* a counting run: nobody reads them */
        return NULL;
    for (int l = 0; l < x->local; l++) {
        int64_t start = 0;
        for (int t = 0; t < x->etp->size; t++)
            for (int r = 0; r < x->ep->size; r++) {
                int64_t end = start + before(x, round, t, r, l + 1);
                for (int64_t i = start + before(x, round, t, r, l); i < end; i++, to++)
                    x->order[back ? i : to] = (int32_t)(back ? to : i);
                start += experts_sent(x, round, t, r);
            }
    }
    d->put(d, list, x->order, (size_t)to * sizeof *list);
    return list;
}

ExpertRound experts_round(Device *d, Experts *x, Arena *scratch, int64_t number)
{
    ExpertRound r = {.number = number, .n = all_rows(x, number)};
    if (x->gather)
        return gather_round(d, x, scratch, number, r.n);
    if (experts_mixed(x)) {
        r.order = order_rows(d, x, scratch, number, 0);
        r.back = order_rows(d, x, scratch, number, 1);
    }
    return r;
}

int64_t experts_pairs_to(const Experts *x, int64_t round, int r, int64_t *from)
{
    int64_t at = x->first[r] + round * x->window, n = least(x->first[r + 1] - at, x->window);
    *from = n > 0 ? at : 0;
    return n > 0 ? n : 0;
}

int64_t experts_first(const Experts *x, int64_t round, int t)
{
    int64_t at = 0;
    for (int i = 0; i < t; i++)
        at += experts_rows(x, round, i);
    return at;
}

int64_t experts_leaving(const Experts *x)
{
    return least(x->window * (x->ep->size - 1), x->most_pairs);
}
