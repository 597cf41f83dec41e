/* expand -- makes a rank's list of compute and messages executable */
#include "base.h"
#include "slots.h"
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
    s->v = v;
    s->m = set->shape.m;
    BUG_ON(s->units >= WHOLE);
    for (int i = 0; i < set->rank[rank].n; i++)
        expand(&x, &set->rank[rank].list[i]);
    if (set->shape.kind != SCHEDULE_FORWARD)
        step_end(&x);
    if (e->gather)
        gather(&x);
    slots_open(s, set, rank, e->units);
    free(x.base);
}

void schedule_close(Schedule *s)
{
    free(s->list);
    free(s->life);
    free(s->place[0]);
    for (int k = 0; k < SLOT_KINDS; k++)
        free(s->slot[k]);
    *s = (Schedule){0};
}
