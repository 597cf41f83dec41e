/* expand -- makes a rank's list of compute and messages executable, with slots in memory for microbatches */
#include "base.h"
#include "schedule.h"
#include <stdlib.h>
#include <string.h>

typedef struct {
    Schedule *s;
    const ScheduleSet *set;
    const Expand *e;
    int rank;
    int *base;                 /* [v] first unit of each chunk */
} Expander;

static void put(Schedule *s, Instr i)
{
    s->list = xgrow(s->list, s->n, sizeof *s->list);
    s->list[s->n++] = i;
}

static Instr of_unit(InstrKind op, int unit, int phase)
{
    return (Instr){.op = (uint8_t)op, .unit = (uint16_t)unit, .phase = (uint8_t)phase};
}

static int is_compute(const Instr *i) { return i->op <= I_W; }

/* Puts one instruction of the list: by units where something happens between them, else whole. */
static void expand(Expander *x, const Instr *i)
{
    const Expand *e = x->e;
    int ends = i->op == I_B || i->op == I_W, backward = ends || i->op == I_D;
    int last = ends && i->mb == x->set->shape.m - 1;           /* a chunk's microbatches run in order */
    int reduce = backward && (e->sharded_grads || (e->overlap && last));
    int phase = !e->sharded_grads || i->op == I_B ? 0 : i->op == I_D ? 1 : 2;
    int n = is_compute(i) ? e->units[i->chunk] : 0;
    int cut = n && (reduce || (e->gather && i->op != I_W));
    BUG_ON(i->join && is_compute(i) && cut /* a pair is whole */);
    if (!cut) {                                                /* a chunk without units passes on its input */
        put(x->s, *i);
        return;
    }
    for (int k = 0; k < n; k++) {
        Instr unit = *i;
        unit.unit = (uint16_t)(x->base[i->chunk] + (backward ? n - 1 - k : k));
        put(x->s, unit);
        if (reduce)
            put(x->s, of_unit(I_R, unit.unit, phase));
    }
}

static void step_end(Expander *x)
{
    Schedule *s = x->s;
    for (int u = s->units - 1; u >= 0 && !x->e->sharded_grads && !x->e->overlap; u--)
        put(s, of_unit(I_R, u, 0));
    if (x->e->tied)
        put(s, (Instr){.op = I_T, .unit = (uint16_t)x->e->tied_unit});
    put(s, (Instr){.op = I_S, .unit = WHOLE});
}

/* ---- ZeRO-3 ---- */

/* Whether an instruction needs gathered parameters: F, B, D of a unit. W and chunks without units do not. */
static int needs(const Instr *i) { return i->op <= I_D && i->unit != WHOLE; }

static int next_need(const Schedule *s, int i)
{
    while (i < s->n && !needs(&s->list[i]))
        i++;
    return i;
}

/* Puts G one unit ahead of each use and X behind it; neither stands between two uses of the same unit. */
static void gather(Expander *x)
{
    Schedule old = *x->s, *s = x->s;
    int ahead = next_need(&old, 0);
    s->list = NULL;
    s->n = 0;
    if (ahead < old.n)
        put(s, of_unit(I_G, old.list[ahead].unit, 0));
    for (int i = 0; i < old.n; i++) {
        const Instr *now = &old.list[i];
        if (!needs(now)) {
            put(s, *now);
            continue;
        }
        ahead = next_need(&old, i + 1);
        int stays = ahead < old.n && old.list[ahead].unit == now->unit;
        if (ahead < old.n && !stays)
            put(s, of_unit(I_G, old.list[ahead].unit, 0));
        put(s, *now);
        if (!stays)
            put(s, of_unit(I_X, now->unit, 0));
    }
    free(old.list);
}

/* ---- slots in memory ---- */

typedef struct {
    uint64_t *used;            /* [words] a bit for each slot */
    int words;
    int first;                 /* no word before this has a free bit */
    int most;                  /* slots needed so far */
    uint16_t *slot;            /* [v*m] slot of each chunk and microbatch; NO_SLOT: none yet */
    uint8_t *ended;            /* [v*m] uses of a gradient that have ended */
} Places;

static void take(Places *p, int at)
{
    if (p->slot[at] != NO_SLOT)
        return;
    while (p->first < p->words && !~p->used[p->first])
        p->first++;
    BUG_ON(p->first == p->words);
    int bit = __builtin_ctzll(~p->used[p->first]), place = 64 * p->first + bit;
    BUG_ON(place >= NO_SLOT);
    p->used[p->first] |= 1ull << bit;
    p->slot[at] = (uint16_t)place;
    if (place >= p->most)
        p->most = place + 1;
}

static void give(Places *p, int at)
{
    int place = p->slot[at];
    BUG_ON(place == NO_SLOT);
    p->used[place / 64] &= ~(1ull << place % 64);
    if (place / 64 < p->first)
        p->first = place / 64;
}

/* The chunk of this rank whose stage is `by` further than the given chunk's; -1: there is none. */
static int neighbour(const PipeShape *s, int rank, int chunk, int by)
{
    int stage = pipe_stage(s, rank, chunk) + by, r = -1, c = -1;
    if (stage >= 0 && stage < s->p * s->v)
        pipe_place(s, stage, &r, &c);
    return r == rank ? c : -1;
}

/* Ends a use of a gradient: W or B, and SG where the input's part is sent. The last use frees its slot. */
static void end_gradient(const PipeShape *s, int rank, const Instr *i, Places *p)
{
    int at = i->chunk * s->m + i->mb;
    int sent = pipe_stage(s, rank, i->chunk) > 0 && neighbour(s, rank, i->chunk, -1) < 0;
    if (++p->ended[at] == 1 + sent)
        give(p, at);
}

static void place_forward(const PipeShape *s, int rank, const Instr *i, Places *p)
{
    int at = i->chunk * s->m + i->mb, before = neighbour(s, rank, i->chunk, -1);
    int last = pipe_stage(s, rank, i->chunk) == s->p * s->v - 1;
    if (i->op == I_RA || i->op == I_F)
        take(p, at);
    if (i->op == I_F && before >= 0)
        give(p, before * s->m + i->mb);
    if (i->op == I_SA || (i->op == I_F && last))
        give(p, at);
}

static void place_training(const PipeShape *s, int rank, const Instr *i, Places p[SLOT_KINDS])
{
    int at = i->chunk * s->m + i->mb, before = neighbour(s, rank, i->chunk, -1);
    int backward = i->op == I_B || i->op == I_D;
    if (i->op == I_RA || i->op == I_F)
        take(&p[SLOT_FD], at);
    if (i->op == I_F)
        take(&p[SLOT_FW], at);
    if (i->op == I_RG || backward)
        take(&p[SLOT_DW], at);
    if (backward && before >= 0)
        take(&p[SLOT_DW], before * s->m + i->mb);
    if (backward)
        give(&p[SLOT_FD], at);
    if (i->op == I_B || i->op == I_W) {
        give(&p[SLOT_FW], at);
        end_gradient(s, rank, i, &p[SLOT_DW]);
    }
    if (i->op == I_SG)
        end_gradient(s, rank, i, &p[SLOT_DW]);
}

static void place_all(Schedule *s, const ScheduleSet *set, int rank)
{
    const PipeShape *shape = &set->shape;
    size_t all = (size_t)shape->v * (size_t)shape->m;
    Places p[SLOT_KINDS];
    for (int k = 0; k < SLOT_KINDS; k++) {
        p[k] = (Places){.words = (int)(all / 64 + 1), .slot = xcalloc(all, sizeof *p->slot)};
        p[k].used = xcalloc((size_t)p[k].words, sizeof *p->used);
        p[k].ended = xcalloc(all, 1);
        memset(p[k].slot, 0xff, all * sizeof *p->slot);
    }
    for (int i = 0; i < set->rank[rank].n; i++)
        if (shape->kind == SCHEDULE_FORWARD)
            place_forward(shape, rank, &set->rank[rank].list[i], &p[SLOT_FD]);
        else
            place_training(shape, rank, &set->rank[rank].list[i], p);
    for (int k = 0; k < SLOT_KINDS; k++) {
        s->slot[k] = p[k].slot;
        s->slots[k] = p[k].most;
        free(p[k].used);
        free(p[k].ended);
    }
}

void schedule_open(Schedule *s, const ScheduleSet *set, int rank, const Expand *e)
{
    Expander x = {.s = s, .set = set, .e = e, .rank = rank};
    int v = set->shape.v;
    *s = (Schedule){0};
    x.base = xcalloc((size_t)v, sizeof *x.base);
    for (int c = 0; c < v; c++) {
        x.base[c] = s->units;
        s->units += e->units[c];
    }
    s->m = set->shape.m;
    BUG_ON(s->units >= WHOLE);
    for (int i = 0; i < set->rank[rank].n; i++)
        expand(&x, &set->rank[rank].list[i]);
    if (set->shape.kind != SCHEDULE_FORWARD)
        step_end(&x);
    if (e->gather)
        gather(&x);
    place_all(s, set, rank);
    free(x.base);
}

void schedule_close(Schedule *s)
{
    free(s->list);
    for (int k = 0; k < SLOT_KINDS; k++)
        free(s->slot[k]);
    *s = (Schedule){0};
}
