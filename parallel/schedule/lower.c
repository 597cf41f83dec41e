/* lower -- plays compute lists forward in time and adds the messages, each pair at the moment when the
 * instruction that feeds it ends. Time is in whole ticks, so that equal sums of costs are equal in whatever
 * order they were added. */
#include "base.h"
#include "schedule.h"
#include "tournament.h"
#include <math.h>
#include <stdlib.h>

typedef struct {
    ScheduleSet *set;
    const InstrList *todo;
    int p, m, stages;
    int *stage;                /* [p*v] stage at rank * v + chunk */
    int *rank, *chunk;         /* [stages] where a stage lies */
    int64_t *cost[4];          /* [stages] ticks of F, D, W, and of a message that the stage sends */
    int64_t *ready[2];         /* [stages*m] when the input of F, of D is there; -1: not known yet */
    int64_t *message;          /* [p] time of the message at the end of the rank's list; -1: none there */
    int *next;                 /* [p] place in todo */
    uint8_t *waits;            /* [p] bool: waits for an input whose time is not known, so it has no event */
    Tournament looks;          /* when each rank's instruction ends or starts: ends before starts */
} Player;

static void push(Player *pl, int64_t time, int starts, int rank)
{
    tournament_set(&pl->looks, rank, tournament_key(2 * time + starts, rank));
}

/* message: time of the message i; -1: i is compute, which keeps its join. */
static void append(Player *pl, int rank, Instr i, int64_t message)
{
    InstrList *l = &pl->set->rank[rank];
    i.join = message < 0 ? i.join : pl->message[rank] == message;
    pl->message[rank] = message;
    l->list[l->n++] = i;
}

/* Instructions that the rank begins next: 1, or 2 of a pair. */
static int together(const Player *pl, int rank)
{
    return instr_together(pl->todo[rank].list, pl->todo[rank].n, pl->next[rank]);
}

/* The rank is free at time `at`: its next instruction starts then, or when its input is there; a pair when
 * both inputs are. */
static void go_on(Player *pl, int rank, int64_t at)
{
    pl->waits[rank] = 0;
    tournament_set(&pl->looks, rank, LOOKS_NEVER);
    if (pl->next[rank] == pl->todo[rank].n)
        return;
    const Instr *i = &pl->todo[rank].list[pl->next[rank]];
    for (int k = together(pl, rank); k; k--, i++) {
        int stage = pl->stage[rank * pl->set->shape.v + i->chunk];
        int64_t ready = i->op == I_W ? 0 : pl->ready[i->op != I_F][(size_t)stage * (size_t)pl->m + i->mb];
        pl->waits[rank] |= ready < 0;
        at = ready > at ? ready : at;
    }
    if (!pl->waits[rank])
        push(pl, at, 1, rank);
}

/* Instruction i of `rank` has ended: its result goes to the next stage, to another rank by a message. */
static void deliver(Player *pl, int rank, const Instr *i, int64_t at)
{
    int forward = i->op == I_F, stage = pl->stage[rank * pl->set->shape.v + i->chunk],
        to = stage + (forward ? 1 : -1);
    if (i->op == I_W || to < 0 || to == pl->stages)
        return;
    int peer = pl->rank[to];
    int64_t *ready = &pl->ready[!forward][(size_t)to * (size_t)pl->m + i->mb];
    *ready = at;
    if (peer == rank)
        return;
    *ready += pl->cost[3][stage];
    Instr send = {.op = forward ? I_SA : I_SG, .chunk = i->chunk, .unit = WHOLE, .mb = i->mb}, receive = send;
    receive.op = forward ? I_RA : I_RG;
    receive.chunk = (uint8_t)pl->chunk[to];
    append(pl, rank, send, at);
    append(pl, peer, receive, at);
    if (pl->waits[peer])
        go_on(pl, peer, at);
}

static int64_t cost_of_instr(const Player *pl, const Instr *i, int stage)
{
    switch (i->op) {
    case I_F: return pl->cost[0][stage];
    case I_W: return pl->cost[2][stage];
    case I_B: return pl->cost[1][stage] + pl->cost[2][stage];
    default:  return pl->cost[1][stage];
    }
}

static void play(Player *pl)
{
    int v = pl->set->shape.v;
    for (int r = 0; r < pl->p; r++)
        go_on(pl, r, 0);
    for (uint64_t event; (event = tournament_least(&pl->looks)) != LOOKS_NEVER;) {
        int64_t at = (int64_t)(event >> (RANK_BITS + 1));
        int rank = event & ((1 << RANK_BITS) - 1);
        const Instr *i = &pl->todo[rank].list[pl->next[rank]];
        int n = together(pl, rank);
        if (event >> RANK_BITS & 1) {
            for (int k = 0; k < n; k++) {
                at += cost_of_instr(pl, &i[k], pl->stage[rank * v + i[k].chunk]);
                append(pl, rank, i[k], -1);
            }
            push(pl, at, 0, rank);
        } else {
            for (int k = 0; k < n; k++)
                deliver(pl, rank, &i[k], at);
            pl->next[rank] += n;
            go_on(pl, rank, at);
        }
    }
}

/* k: F, D, W, message. plain: bool, every computation takes 1 and a message 0. */
static double cost_of(const PipeShape *s, int plain, int k, int stage)
{
    if (k == 3)
        return plain ? 0 : pipe_hop(s, stage);
    return plain || !s->cost[k] ? 1 : s->cost[k][stage];
}

static void open_costs(Player *pl)
{
    const PipeShape *s = &pl->set->shape;
    int plain = s->kind == SCHEDULE_FORWARD;
    double longest = 0;
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < pl->stages; i++)
            longest = fmax(longest, cost_of(s, plain, k, i));
    double scale = longest > 0 ? TICKS / longest : 0;
    BUG_ON(!isfinite(longest));
    for (int k = 0; k < 4; k++) {
        pl->cost[k] = xcalloc((size_t)pl->stages, sizeof *pl->cost[k]);
        for (int i = 0; i < pl->stages; i++) {
            double cost = cost_of(s, plain, k, i);
            BUG_ON(!(cost >= 0));
            pl->cost[k][i] = llrint(cost * scale);
        }
    }
}

/* Allocates the lists: a rank's compute, and for each neighbour of a chunk on another rank two messages a
 * microbatch (FORWARD: one). */
static void open_lists(Player *pl, int v)
{
    ScheduleSet *set = pl->set;
    int both = set->shape.kind == SCHEDULE_FORWARD ? 1 : 2;
    size_t total = 0;
    int *most = xcalloc((size_t)pl->p, sizeof *most);
    for (int r = 0; r < pl->p; r++) {
        most[r] = pl->todo[r].n;
        for (int c = 0; c < v; c++) {
            int stage = pl->stage[r * v + c];
            most[r] += stage && pl->rank[stage - 1] != r ? both * pl->m : 0;
            most[r] += stage + 1 < pl->stages && pl->rank[stage + 1] != r ? both * pl->m : 0;
        }
        total += (size_t)most[r];
    }
    set->rank = xcalloc((size_t)pl->p, sizeof *set->rank);
    set->all = xcalloc(total, sizeof *set->all);
    for (size_t r = 0, at = 0; r < (size_t)pl->p; at += (size_t)most[r++])
        set->rank[r].list = set->all + at;
    free(most);
}

static void player_open(Player *pl, ScheduleSet *set, const PipeShape *s, const InstrList *compute)
{
    size_t p = (size_t)s->p, stages = p * (size_t)s->v, all = stages * (size_t)s->m;
    *pl = (Player){.set = set, .todo = compute, .p = s->p, .m = s->m, .stages = (int)stages};
    pl->stage = xcalloc(3 * stages, sizeof *pl->stage);
    pl->rank = pl->stage + stages;
    pl->chunk = pl->rank + stages;
    for (int r = 0; r < s->p; r++)
        for (int c = 0; c < s->v; c++) {
            int stage = pl->stage[r * s->v + c] = pipe_stage(s, r, c);
            pl->rank[stage] = r;
            pl->chunk[stage] = c;
        }
    pl->ready[0] = xcalloc(2 * all, sizeof *pl->ready[0]);
    pl->ready[1] = pl->ready[0] + all;
    for (size_t i = 0; i < all - (size_t)s->m; i++)        /* first F and last D wait for no stage */
        pl->ready[0][i + (size_t)s->m] = pl->ready[1][i] = -1;
    pl->message = xcalloc(p, sizeof *pl->message);
    pl->next = xcalloc(p, sizeof *pl->next);
    pl->waits = xcalloc(p, 1);
    tournament_open(&pl->looks, s->p);
    tournament_clear(&pl->looks);
    for (size_t r = 0; r < p; r++)
        pl->message[r] = -1;
}

void schedules_lower(ScheduleSet *set, const PipeShape *shape, const InstrList *compute)
{
    Player pl;
    *set = (ScheduleSet){.shape = *shape};
    player_open(&pl, set, shape, compute);
    open_costs(&pl);
    open_lists(&pl, shape->v);
    play(&pl);
    set->stuck = -1;
    for (int r = shape->p - 1; r >= 0; r--)
        if (pl.next[r] < compute[r].n) {
            set->stuck = r;
            set->stuck_at = compute[r].list[pl.next[r]];
        }
    for (int k = 0; k < 4; k++)
        free(pl.cost[k]);
    free(pl.stage);
    free(pl.ready[0]);
    free(pl.message);
    free(pl.next);
    free(pl.waits);
    tournament_close(&pl.looks);
}
