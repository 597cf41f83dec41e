/* run_routers -- statistics of the routers from the end of a step to its log */
#include "run_layout.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Megatron-LM's name of the balance loss. */
static const char *balance_name(const Config *c)
{
    switch (c->moe_router_load_balancing_type) {
    case MOE_ROUTER_LOAD_BALANCING_TYPE_SEQ_AUX_LOSS:    return "seq_load_balancing_loss";
    case MOE_ROUTER_LOAD_BALANCING_TYPE_GLOBAL_AUX_LOSS: return "global_load_balancing_loss";
    default:                                             return "load_balancing_loss";
    }
}

static int64_t sums_of(const Run *r) { return r->model.routers.layers * (int64_t)ROUTER_SUMS; }

void routers_open(Run *r, Arena *host)
{
    const RouterStats *s = &r->model.routers;
    const Config *c = r->cfg;
    if (r->use != RUN_TRAIN || !s->layers)
        return;
    r->flight.counts = xcalloc((size_t)(STEPS_OPEN * router_counts(s)), sizeof *r->flight.counts);
    r->flight.sums = arena_take(host, (size_t)(STEPS_OPEN * sums_of(r)) * sizeof *r->flight.sums);
    r->flight.routers = (RouterMetrics){
        .layers = s->layers, .experts = s->experts, .layer = s->layer, .balance = balance_name(c),
        .balance_coeff = c->moe_aux_loss_coeff, .z_coeff = c->moe_z_loss_coeff,
        .row = xcalloc((size_t)s->layers, sizeof(RouterRow))};
}

void routers_close(Run *r)
{
    free(r->flight.counts);
    free(r->flight.routers.row);
    r->flight.counts = NULL;
    r->flight.routers = (RouterMetrics){0};
}

void routers_keep(Run *r)
{
    const RouterStats *s = &r->model.routers;
    RunFlight *f = &r->flight;
    int64_t at = f->launched % STEPS_OPEN;
    if (!f->counts)
        return;
    f->step[at].counted = r->model.now.counted;
    memcpy(f->counts + at * router_counts(s), s->count, (size_t)router_counts(s) * sizeof *f->counts);
    r->model.dev->read_async(r->model.dev, f->sums ? f->sums + at * sums_of(r) : NULL, s->sums,
                             (size_t)sums_of(r) * sizeof *f->sums);
}

void routers_collect(Run *r, int at)
{
    const Metrics *m = &r->flight.step[at].m;
    double scale = m->loss_scale * r->flight.step[at].counted;
    const Config *c = r->cfg;
    RouterMetrics *to = &r->flight.routers;
    double tokens = (double)(m->global_batch_size * c->seq_length);
    int balances = c->moe_router_load_balancing_type != MOE_ROUTER_LOAD_BALANCING_TYPE_NONE &&
                   c->moe_aux_loss_coeff > 0;
    if (!r->flight.counts)
        return;
    to->count = r->flight.counts + at * router_counts(&r->model.routers);
    for (int row = 0; row < to->layers; row++) {
        const double *sum = r->flight.sums + at * sums_of(r) + row * ROUTER_SUMS;
        to->row[row] = (RouterRow){balances ? sum[ROUTER_BALANCE] / scale : NAN,
                                   c->moe_z_loss_coeff > 0 ? sum[ROUTER_Z] / scale : NAN,
                                   sum[ROUTER_ENTROPY] / tokens};
    }
}

const RouterMetrics *run_routers(const Run *r) { return r->flight.counts ? &r->flight.routers : NULL; }
