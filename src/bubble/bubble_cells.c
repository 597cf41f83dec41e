/* bubble_cells -- cells of a bubble table: which are legal, their times, their simulation */
#define _GNU_SOURCE
#include "bubble_table.h"
#include "config_table.h"
#include "file.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const bubble_time_name[TIMES] = {"forward_ms", "backward_input_ms", "backward_weight_ms",
                                             "p2p_ms"};

/* ---- one cell ---- */

const char *bubble_name(const Cell *c, char name[32])
{
    if (c->shape.kind == SCHEDULE_ZB_AUTO && c->shape.limit)
        snprintf(name, 32, "zb-auto %d", c->shape.limit);
    else
        snprintf(name, 32, "%s", schedule_name(c->shape.kind));
    return name;
}

/* NULL, or on the heap why the pipeline is illegal. */
static char *why_not(const PipeShape *s, const Times time[TIMES])
{
    int group = s->group ? s->group : s->p, chunks = schedule_chunks(s->kind);
    const ScheduleInfo *row = &schedule_info[s->kind];
    const char *name = row->name;
    if (s->p < 1 || s->p > RANKS_MOST || s->m < 1 || s->m > MICROBATCHES_MOST || s->v < 1 ||
        s->v > CHUNKS_MOST || s->p * s->v > STAGES_MOST)
        return xasprintf("%s takes p from 1 to %d, v to %d, m to %d, and p v to %d", name, RANKS_MOST,
                         CHUNKS_MOST, MICROBATCHES_MOST, STAGES_MOST);
    unsigned broken = schedule_breaks(s->kind, s->p, s->v, s->m, group);
    if (broken & BREAKS_CHUNKS)
        return chunks ? xasprintf("%s has %d chunk%s a rank", name, chunks, chunks == 1 ? "" : "s")
                      : xasprintf("%s needs %d or more chunks a rank", name, row->chunks);
    if (broken & BREAKS_GROUP)
        return xasprintf("%s runs groups of %d microbatches, which must be from p = %d to m = %d", name,
                         group, s->p, s->m);
    if (broken & BREAKS_REST)
        return xasprintf("%s leaves %d of %d microbatches in groups of %d, fewer than p = %d", name,
                         s->m % group, s->m, group, s->p);
    if (broken & BREAKS_LEAST)
        return xasprintf("%s needs %s microbatches a rank: m from %d on", name, schedule_least(row),
                         row->least * s->p);
    for (int k = 0; k < TIMES; k++)
        if (time[k].n > 1 && time[k].n != s->p * s->v)
            return xasprintf("%s has %d numbers for %d virtual stages", bubble_time_name[k], time[k].n,
                             s->p * s->v);
    return NULL;
}

char *bubble_add(Table *t, const PipeShape *shape, const Times time[TIMES], Cell **cell)
{
    char *why = why_not(shape, time);
    if (why)
        return why;
    t->cell = xgrow(t->cell, t->n, sizeof *t->cell);
    Cell *c = &t->cell[t->n++];
    int stages = shape->p * shape->v;
    *c = (Cell){.shape = *shape, .published = NAN, .published_peak = NAN, .simulated = NO_RATES,
                .closed_form = NO_RATES, .measured = NO_RATES};
    c->cost = xcalloc((size_t)(TIMES * stages), sizeof *c->cost);
    for (int k = 0; k < TIMES; k++) {
        c->time[k] = (Times){time[k].n, xcalloc((size_t)time[k].n, sizeof(double))};
        memcpy(c->time[k].ms, time[k].ms, (size_t)time[k].n * sizeof(double));
        for (int s = 0; s < stages; s++)
            c->cost[k * stages + s] =
                time[k].n > 1 ? time[k].ms[s] : time[k].ms[0] / (k == TIME_HOP ? 1 : shape->v);
        if (k != TIME_HOP)
            c->shape.cost[k] = c->cost + k * stages;
    }
    c->shape.hops = c->cost + TIME_HOP * stages;
    *cell = c;
    return NULL;
}

void bubble_close(Table *t)
{
    for (int i = 0; i < t->n; i++) {
        bubble_times_close(t->cell[i].time);
        if (t->cell[i].custom)
            custom_close(t->cell[i].custom);
        free(t->cell[i].custom);
        schedules_close(&t->cell[i].set);
        free(t->cell[i].label);
        free(t->cell[i].cost);
        free(t->cell[i].peak);
    }
    free(t->cell);
    *t = (Table){0};
}

/* ---- times ---- */

static const List *key_of(const Config *c, int k)
{
    const List *const key[TIMES] = {&c->clock_forward_ms, &c->clock_backward_input_ms,
                                    &c->clock_backward_weight_ms, &c->clock_p2p_ms};
    return key[k];
}

void bubble_times(const Config *cfg, Times time[TIMES])
{
    for (int k = 0; k < TIMES; k++) {
        const List *l = key_of(cfg, k);
        time[k] = (Times){l->n, xcalloc((size_t)l->n + 1, sizeof(double))};
        for (int i = 0; i < l->n; i++)
            time[k].ms[i] = strtod(l->v[i], NULL);
        if (k == TIME_HOP && !l->n)
            time[k].n = 1;
    }
}

void bubble_times_close(Times time[TIMES])
{
    for (int k = 0; k < TIMES; k++)
        free(time[k].ms);
}

double bubble_weight_share(const Config *c)
{
    return isnan(c->clock_weight_share) ? 1 : c->clock_weight_share;
}

static int size_or_0(int64_t x) { return x == CFG_ABSENT ? 0 : (int)x; }

int bubble_group(const Config *c) { return size_or_0(c->microbatch_group_size_per_vp_stage); }

int bubble_limit(const Config *c) { return size_or_0(c->pipeline_max_activations); }

/* ---- simulated ---- */

void bubble_simulate_cell(Cell *c, const PipeShape *made)
{
    Simulation sim;
    char why[WHY];
    schedules_open(&c->set, made);
    if (!schedules_check(&c->set, why, sizeof why))
        die(EXIT_BUG, "schedule", "the lists of %s, p %d, v %d, m %d are wrong: %s; change: report this",
            schedule_name(c->shape.kind), c->shape.p, c->shape.v, c->shape.m, why);
    c->set.shape = c->shape;
    simulate(&c->set, &sim, 0);
    c->span = sim.makespan;
    c->simulated = (Rates){sim.rate, sim.step_rate};
    c->closed_form = closed_form(&c->shape);
    c->peak = sim.peak;
    sim.peak = NULL;
    simulation_close(&sim);
}

void bubble_simulate(Table *t)
{
    for (int i = 0; i < t->n; i++)
        bubble_simulate_cell(&t->cell[i], &t->cell[i].shape);
}
