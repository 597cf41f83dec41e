/* expert -- the messages of a dispatch: rows go to the ranks that hold their experts, and come back */
#include "expert_gather.h"
#include "expert_plan.h"
#include <string.h>

/* Starts to send `give` to a peer and to receive `take` from it. A rank sends itself nothing. */
static void swap(Comm *c, int peer, Mat take, Mat give, Token token[2])
{
    token[0] = token[1] = 0;
    if (give.rows && peer != c->rank)
        token[0] = c->send(c, give.p, give.rows * give.cols, give.type, peer);
    if (take.rows && peer != c->rank)
        token[1] = c->recv(c, take.p, take.rows * take.cols, take.type, peer);
}

static void wait_all(Comm *c, const Token *token)
{
    for (int i = 0; i < 2 * c->size; i++)
        c->wait(c, token[i]);
}

static Token *take_tokens(Experts *x)
{
    Token *token = x->token + x->flights++ % EXPERT_FLIGHTS * experts_tokens(x);
    memset(token, 0, (size_t)experts_tokens(x) * sizeof *token);
    return token;
}

ExpertFlight experts_send_start(Device *d, Experts *x, Arena *scratch, const ExpertRound *r, Mat out,
                                Mat rows, int each, const int32_t *index)
{
    ExpertFlight f = {out, out, r->order, take_tokens(x)};
    if (x->gather) {
        gather_send_start(d, x, scratch, r, rows, each, &f);
        return f;
    }
    Mat send = mat_take(scratch, experts_leaving(x), rows.cols, rows.type);
    int me = x->etp->rank;
    int64_t from, at = experts_first(x, r->number, me), start = at, sent = 0;
    if (experts_mixed(x))
        f.come = mat_rows(mat_take(scratch, experts_room(x), rows.cols, rows.type), 0, r->n);
    for (int i = 0; i < x->ep->size; i++) {
        int64_t n = experts_pairs_to(x, r->number, i, &from);
        Mat give = i == x->ep->rank ? mat_rows(f.come, at, n) : mat_rows(send, sent, n);
        d->gather_rows(d, give, rows, index ? index + from : NULL);
        sent += i == x->ep->rank ? 0 : n;
        at += experts_sent(x, r->number, me, i);
    }
    comm_together(x->ep, 1);
    at = start, sent = 0;
    for (int i = 0; i < x->ep->size; i++) {
        int64_t n = i == x->ep->rank ? 0 : experts_pairs_to(x, r->number, i, &from),
                come = experts_sent(x, r->number, me, i);
        swap(x->ep, i, mat_rows(f.come, at, come), mat_rows(send, sent, n), f.token + 2 * i);
        sent += n;
        at += come;
    }
    comm_together(x->ep, 0);
    return f;
}

void experts_send_end(Device *d, Experts *x, const ExpertRound *r, ExpertFlight f)
{
    if (!f.token)
        return;
    if (x->gather) {
        gather_send_end(d, x, f);
        return;
    }
    int me = x->etp->rank;
    Mat mine = mat_rows(f.come, experts_first(x, r->number, me), experts_rows(x, r->number, me));
    wait_all(x->ep, f.token);
    comm_together(x->etp, 1);
    for (int t = 0; t < x->etp->size; t++)
        swap(x->etp, t, mat_rows(f.come, experts_first(x, r->number, t), experts_rows(x, r->number, t)), mine,
             f.token + 2 * t);
    comm_together(x->etp, 0);
    wait_all(x->etp, f.token);
    if (experts_mixed(x))
        d->gather_rows(d, f.out, f.come, r->order);
}

Mat experts_back(const Experts *x, Arena *scratch, int each, int64_t cols, Dtype type)
{
    return mat_take(scratch, x->gather ? x->bound * each : x->most_pairs, cols, type);
}

Mat experts_results_room(const Experts *x, Arena *scratch, Mat back)
{
    return mat_take(scratch, experts_alone(x) && !x->gather ? 0 : experts_room(x), back.cols, back.type);
}

Mat experts_return_room(const Experts *x, Arena *scratch, Mat back)
{
    int64_t n = experts_mixed(x) || x->etp->size > 1 ? experts_room(x) : 0;
    return mat_take(scratch, x->gather ? gather_return_rows(x, back) : n, back.cols, back.type);
}

Mat experts_results(const Experts *x, const ExpertRound *r, Mat back, Mat room)
{
    int here = experts_alone(x) && !x->gather;
    return here ? mat_rows(back, r->number * x->window, r->n) : mat_rows(room, 0, r->n);
}

/* Returns the sums over etp of this etp rank's rows: each etp rank has a part of every other one's sums. */
static Mat sum_over_etp(Device *d, Experts *x, Arena *scratch, int64_t round, Mat sum, Mat rows, Token *token)
{
    int64_t own = experts_rows(x, round, x->etp->rank);
    if (x->etp->size == 1)
        return rows;
    size_t mark = scratch->used;
    Mat parts = mat_take(scratch, experts_room(x), rows.cols, rows.type);
    int me = x->etp->rank;
    d->copy(d, mat_rows(parts, me * own, own), mat_rows(rows, experts_first(x, round, me), own));
    comm_together(x->etp, 1);
    for (int t = 0; t < x->etp->size; t++)
        swap(x->etp, t, mat_rows(parts, t * own, own),
             mat_rows(rows, experts_first(x, round, t), experts_rows(x, round, t)), token + 2 * t);
    comm_together(x->etp, 0);
    wait_all(x->etp, token);
    d->sum_parts(d, mat_rows(sum, 0, own), mat_rows(parts, 0, own * x->etp->size));
    arena_reset(scratch, mark);
    return mat_rows(sum, 0, own);
}

ExpertFlight experts_return_start(Device *d, Experts *x, Arena *scratch, const ExpertRound *r, int each,
                                  Mat back, Mat rows, Mat room)
{
    ExpertFlight f = {.token = take_tokens(x)};
    int64_t at = 0, own = 0, from;
    if (x->gather) {
        gather_return_start(d, x, r, each, back, rows, room, &f);
        return f;
    }
    if (experts_alone(x))
        return f;
    if (experts_mixed(x)) {
        Mat received = mat_rows(room, 0, r->n);
        d->gather_rows(d, received, rows, r->back);
        rows = received;
    }
    Mat sum = sum_over_etp(d, x, scratch, r->number, room, rows, f.token);
    comm_together(x->ep, 1);
    for (int i = 0; i < x->ep->size; i++) {
        int64_t n = experts_sent(x, r->number, x->etp->rank, i),
                come = experts_pairs_to(x, r->number, i, &from);
        swap(x->ep, i, mat_rows(back, from, come), mat_rows(sum, at, n), f.token + 2 * i);
        if (i == x->ep->rank)
            own = at;
        at += n;
    }
    comm_together(x->ep, 0);
    int64_t n = experts_pairs_to(x, r->number, x->ep->rank, &from);
    d->copy(d, mat_rows(back, from, n), mat_rows(sum, own, n));
    return f;
}

void experts_return_end(Device *d, Experts *x, ExpertFlight f)
{
    if (f.token && x->gather)
        gather_return_end(d, x, f);
    else if (f.token)
        wait_all(x->ep, f.token);
}

void experts_sum(Device *d, const Experts *x, Mat y, int each, Mat back, const int32_t *place)
{
    if (x->gather)
        d->copy(d, y, mat_rows(back, 0, y.rows));
    else if (each == 1)
        d->sum_rows(d, y, back, place, x->topk);
    else
        d->gather_rows(d, y, back, place);
}
