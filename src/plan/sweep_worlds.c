/* sweep_worlds -- layouts of several worlds in one list, and what they are compared by */
#include "base.h"
#include "config_table.h"
#include "machine.h"
#include "sweep.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const objective_name[OBJECTIVES + 1] = {"tokens", "cost", "energy", NULL};
const char *const rate_name[RATES] = {
#define X(id, name, title, format) name,
    RATE_NAMES(X)
#undef X
};
const char *const rate_title[RATES] = {
#define X(id, name, title, format) title,
    RATE_NAMES(X)
#undef X
};
const char *const rate_format[RATES] = {
#define X(id, name, title, format) format,
    RATE_NAMES(X)
#undef X
};

/* ---- what a step of so many ms is worth ---- */

static double ms_of(const SweepLayout *l, TimeKind kind)
{
    return kind == MEASURED ? layout_measured(l) : l->predicted;
}

static double tokens_per_second(const Sweep *s, const SweepLayout *l, TimeKind kind)
{
    double ms = ms_of(l, kind);
    return ms > 0 ? (double)(l->batch * s->seq) / ms * 1e3 : NAN;
}

double layout_rate(const Sweep *s, const SweepLayout *l, RateKind rate, TimeKind kind)
{
    double speed = tokens_per_second(s, l, kind);
    switch (rate) {
    case RATE_EFFICIENCY: return 100 * speed / l->world / s->alone[kind];
    case RATE_COST:       return s->price * l->world / (speed * 3600) * 1e6;
    case RATE_ENERGY:     return s->watts * l->world / speed / 3.6e6 * 1e6;
    default:              return speed;
    }
}

int sweep_has_rate(const Sweep *s, RateKind rate)
{
    switch (rate) {
    case RATE_EFFICIENCY: return s->nworlds > 1;
    case RATE_COST:       return !isnan(s->price);
    case RATE_ENERGY:     return !isnan(s->watts);
    default:              return 1;
    }
}

/* Rank-hours of a sample are what cost and energy grow with. */
double layout_weight(const Sweep *s, int world, int64_t batch)
{
    return (s->objective == OBJECTIVE_TOKENS ? 1 : (double)world) / (double)batch;
}

/* ---- the list ---- */

void sweep_prices(Sweep *s, double price)
{
    const Machine *m = machine_load(s->machine);
    s->price = isnan(price) ? m->price_per_hour : price;
    s->watts = m->watts;
    if (s->objective == OBJECTIVE_COST && isnan(s->price))
        die(EXIT_CONFIG, "sweep", "--objective cost needs the price of an hour of a rank, and %s has no "
            "price_per_hour; change: --price X, or price_per_hour in its section machine", m->path);
    if (s->objective == OBJECTIVE_ENERGY && isnan(s->watts))
        die(EXIT_CONFIG, "sweep", "--objective energy needs what a rank takes, and %s has no watts; change: "
            "add watts to its section device", m->path);
}

void sweep_join(Sweep *s, const Sweep *one)
{
    s->worlds = xgrow(s->worlds, s->nworlds, sizeof *s->worlds);
    s->worlds[s->nworlds++] = (SweepWorld){.world = one->world, .legal = one->n, .fit = one->fit,
                                           .batch = one->batch, .room = one->room, .reserve = one->reserve};
    for (int i = 0; i < one->n; i++) {
        s->layout = xgrow(s->layout, s->n, sizeof *s->layout);
        s->layout[s->n++] = one->layout[i];
    }
    s->fit += one->fit;
}

const SweepLayout *sweep_best_of(const Sweep *s, int world, TimeKind kind)
{
    const SweepLayout *best = NULL;
    for (int i = 0; i < s->n; i++) {
        const SweepLayout *l = &s->layout[i];
        if (l->world == world && l->state == LAYOUT_FITS && !layout_failed(l) && ms_of(l, kind) > 0 &&
            (!best || ms_of(l, kind) < ms_of(best, kind)))
            best = l;
    }
    return best;
}

void sweep_compare(Sweep *s)
{
    for (int kind = 0; kind < TIMES; kind++) {
        s->alone[kind] = NAN;
        int least = 0;
        for (int i = 0; i < s->nworlds; i++) {
            int world = s->worlds[i].world;
            const SweepLayout *l = sweep_best_of(s, world, (TimeKind)kind);
            if (l && (!least || world < least)) {
                least = world;
                s->alone[kind] = tokens_per_second(s, l, (TimeKind)kind) / world;
            }
        }
    }
    sweep_sort(s);
}
