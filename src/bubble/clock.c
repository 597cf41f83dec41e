/* clock -- a device whose computations take a given time and compute nothing */
#define _GNU_SOURCE
#include "clock.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

static void sleep_until(double at)
{
    struct timespec t = {(time_t)at, (long)((at - floor(at)) * 1e9)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL))
        ;
}

static size_t cell(const Clock *c, const Instr *i) { return (size_t)i->chunk * (size_t)c->shape->m + i->mb; }
static int stage_of(const Clock *c, const Instr *i)
{
    return pipe_stage(c->shape, c->grid->index[AXIS_PP], i->chunk);
}
static Comm *pipe_of(Clock *c) { return &c->grid->axis[AXIS_PP]; }

/* Waits for the message that the computation needs; the device is not free before its hop is over. */
static void arrive(void *ctx, const Instr *i)
{
    Clock *c = ctx;
    int back = i->op != I_F;
    size_t at = cell(c, i);
    if (i->op > I_D || !c->due[back][at])
        return;
    pipe_of(c)->wait(pipe_of(c), c->arriving[back][at]);
    c->due[back][at] = 0;
    double hop = c->scale * pipe_hop(c->shape, stage_of(c, i) + (back ? 1 : -1));
    c->free = fmax(c->free, c->in[back][at] + hop);
}

static void compute(void *ctx, const Instr *i)
{
    Clock *c = ctx;
    const double *const *cost = c->shape->cost;
    int s = stage_of(c, i);
    double takes = (i->op == I_F ? cost[0][s] : 0) + (i->op == I_B || i->op == I_D ? cost[1][s] : 0) +
                   (i->op == I_B || i->op == I_W ? cost[2][s] : 0);
    double asked = c->counts ? -INFINITY : now();
    c->first = fmin(c->first, c->free);
    c->free = fmax(c->free + c->scale * takes, asked); /* ends no earlier than it was asked for */
    if (c->free > asked && !c->counts)
        sleep_until(c->free);
    if (i->op != I_W)
        c->out[i->op != I_F][cell(c, i)] = c->free;
}

static void send(void *ctx, const Instr *i)
{
    Clock *c = ctx;
    int back = i->op == I_SG, chunk, peer = pipe_peer(c->shape, c->grid->index[AXIS_PP], i, &chunk);
    size_t at = cell(c, i);
    c->sent[back][at] = pipe_of(c)->send(pipe_of(c), &c->out[back][at], 1, F64, peer);
}

static void receive(void *ctx, const Instr *i)
{
    Clock *c = ctx;
    int back = i->op == I_RG, chunk, peer = pipe_peer(c->shape, c->grid->index[AXIS_PP], i, &chunk);
    size_t at = cell(c, i);
    c->due[back][at] = 1;
    c->arriving[back][at] = pipe_of(c)->recv(pipe_of(c), &c->in[back][at], 1, F64, peer);
}

/* There are no parameters to reduce or to update. */
static void nothing(void *ctx, const Instr *i) { (void)ctx, (void)i; }

static void note(void *ctx, const Instr *i)
{
    char text[32];
    (void)ctx;
    instr_print(i, text, sizeof text);
    comm_note(text);
}

static int time_is_virtual(void)
{
    const char *kind = getenv("GRIDIRON_CLOCK");
    if (kind && *kind && strcmp(kind, "virtual"))
        die(EXIT_CONFIG, "environment", "GRIDIRON_CLOCK=%s; change: virtual, or leave it out", kind);
    return kind && *kind;
}

void clock_open(Clock *c, Grid *grid, const ScheduleSet *set)
{
    size_t n = (size_t)set->shape.v * (size_t)set->shape.m;
    int *units = xcalloc((size_t)set->shape.v, sizeof *units);
    *c = (Clock){.grid = grid, .shape = &set->shape, .counts = time_is_virtual()};
    all_ok(&grid->all, grid_host_ranks(grid) == grid->world, EXIT_CONFIG, "clock-hosts", "device clock needs "
           "all ranks on one host, whose clock they share; this one has %d of %d; change: start them without "
           "--hosts", grid_host_ranks(grid), grid->world);
    BUG_ON(grid->size[AXIS_PP] != set->shape.p || !set->shape.cost[0] || !set->shape.cost[1] ||
           !set->shape.cost[2]);
    for (int chunk = 0; chunk < set->shape.v; chunk++)
        units[chunk] = 1;
    schedule_open(&c->list, set, grid->index[AXIS_PP], &(Expand){.units = units});
    free(units);
    for (int back = 0; back < 2; back++) {
        c->in[back] = xcalloc(n, sizeof *c->in[back]);
        c->out[back] = xcalloc(n, sizeof *c->out[back]);
        c->arriving[back] = xcalloc(n, sizeof *c->arriving[back]);
        c->sent[back] = xcalloc(n, sizeof *c->sent[back]);
        c->due[back] = xcalloc(n, sizeof *c->due[back]);
    }
    c->stage = (Stage){.ctx = c, .progress = comm_progress, .note = note, .arrive = arrive,
                       .act = {[I_F] = compute, [I_B] = compute, [I_D] = compute, [I_W] = compute,
                               [I_SA] = send, [I_RA] = receive, [I_SG] = send, [I_RG] = receive,
                               [I_R] = nothing, [I_S] = nothing}};
    prctl(PR_SET_TIMERSLACK, 1000ul); /* ns by which the kernel may end a sleep late; default 50000 */
    thread_urgency(RUNS_FIRST); /* it must run at once when its sleep ends or a message arrives */
    comm_threads(1);
    clock_step(c);
    c->scale = 1e-3;
}

void clock_close(Clock *c)
{
    thread_urgency(RUNS_USUAL);
    for (int back = 0; back < 2; back++) {
        free(c->in[back]);
        free(c->out[back]);
        free(c->arriving[back]);
        free(c->sent[back]);
        free(c->due[back]);
    }
    schedule_close(&c->list);
    *c = (Clock){0};
}

#define HEAD_START 2e-3 /* s from the broadcast of the start to the start: every rank must have it */

ClockStep clock_step(Clock *c)
{
    Comm *all = &c->grid->all;
    size_t n = (size_t)c->shape->v * (size_t)c->shape->m;
    all->barrier(all);
    double start = c->counts ? 0 : now() + HEAD_START;
    all->wait(all, all->broadcast(all, &start, 1, F64, 0));
    c->free = start;
    c->first = INFINITY;
    pipeline_run(&c->list, &c->stage);
    for (int back = 0; back < 2; back++)
        for (size_t i = 0; i < n; i++) {
            pipe_of(c)->wait(pipe_of(c), c->sent[back][i]);
            c->sent[back][i] = 0;
        }
    double most[3] = {c->free, -c->first, c->free - c->first};
    all->wait(all, all->all_reduce(all, most, 3, F64, OP_MAX));
    return (ClockStep){1e3 * (most[0] + most[1]), 1e3 * most[2]};
}
