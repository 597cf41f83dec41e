/* slots -- where in memory the data of each microbatch lie: slots by number, then places by size */
#include "slots.h"
#include "base.h"
#include <stdlib.h>
#include <string.h>

/* ---- slots ---- */

typedef struct {
    uint64_t *used;            /* [words] a bit for each slot */
    int words;
    int first;                 /* no word before this has a free bit */
    int most;                  /* slots needed so far */
    int *slot;                 /* [v*m] slot of each chunk and microbatch; NO_SLOT: none yet */
    uint8_t *ended;            /* [v*m] uses of a gradient that have ended */
    Schedule *of;
    int kind, nlate;
    int *late;                 /* [nlate] whose lifetime ends in Schedule.life when an F, B, D or W has run */
} Slots;

static void lives(Schedule *s, int kind, int at, int ends)
{
    s->life = xgrow(s->life, s->lives, sizeof *s->life);
    s->life[s->lives++] = (Life){(uint32_t)at, (uint8_t)kind, (uint8_t)ends};
}

static void take(Slots *p, int at)
{
    if (p->slot[at] != NO_SLOT)
        return;
    lives(p->of, p->kind, at, 0);
    while (p->first < p->words && !~p->used[p->first])
        p->first++;
    BUG_ON(p->first == p->words);
    int bit = __builtin_ctzll(~p->used[p->first]), place = 64 * p->first + bit;
    p->used[p->first] |= 1ull << bit;
    p->slot[at] = place;
    if (place >= p->most)
        p->most = place + 1;
}

/* late: bool: a message with these data is on its way. */
static void give(Slots *p, int at, int late)
{
    int place = p->slot[at];
    BUG_ON(place == NO_SLOT);
    if (late) {
        p->late = xgrow(p->late, p->nlate, sizeof *p->late);
        p->late[p->nlate++] = at;
    } else {
        lives(p->of, p->kind, at, 1);
    }
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
static void end_gradient(const PipeShape *s, int rank, const Instr *i, Slots *p)
{
    int at = i->chunk * s->m + i->mb;
    int sent = pipe_stage(s, rank, i->chunk) > 0 && neighbour(s, rank, i->chunk, -1) < 0;
    if (++p->ended[at] == 1 + sent)
        give(p, at, sent);
}

/* Ends the first n of the lifetimes that are late. */
static void end_late(Slots *p, int n)
{
    for (int i = 0; i < n; i++)
        lives(p->of, p->kind, p->late[i], 1);
    p->nlate -= n;
    memmove(p->late, p->late + n, (size_t)p->nlate * sizeof *p->late);
}

/* Ends FD of a microbatch in a chunk. What a chunk without units passes on is in the place of the one
 * before. */
static void end_forward(const PipeShape *s, int rank, int chunk, int mb, const int *units, Slots *p)
{
    int before = neighbour(s, rank, chunk, -1);
    give(p, chunk * s->m + mb, 0);
    if (before >= 0 && !units[chunk])
        end_forward(s, rank, before, mb, units, p);
}

static void place_forward(const PipeShape *s, int rank, const Instr *i, const int *units, Slots *p)
{
    int at = i->chunk * s->m + i->mb, before = neighbour(s, rank, i->chunk, -1);
    int last = pipe_stage(s, rank, i->chunk) == s->p * s->v - 1;
    if (i->op == I_RA || i->op == I_F)
        take(p, at);
    if (i->op == I_F && before >= 0 && units[i->chunk])
        end_forward(s, rank, before, i->mb, units, p);
    if (i->op == I_SA || (i->op == I_F && last))
        end_forward(s, rank, i->chunk, i->mb, units, p);
}

static void place_training(const PipeShape *s, int rank, const Instr *i, Slots p[SLOT_KINDS])
{
    int at = i->chunk * s->m + i->mb, before = neighbour(s, rank, i->chunk, -1);
    int backward = i->op == I_B || i->op == I_D, late = i->op <= I_W ? p[SLOT_DW].nlate : 0;
    if (i->op == I_RA || i->op == I_F)
        take(&p[SLOT_FD], at);
    if (i->op == I_F)
        take(&p[SLOT_FW], at);
    if (i->op == I_RG || backward)
        take(&p[SLOT_DW], at);
    if (backward && before >= 0)
        take(&p[SLOT_DW], before * s->m + i->mb);
    if (backward)
        give(&p[SLOT_FD], at, 0);
    if (i->op == I_B || i->op == I_W) {
        give(&p[SLOT_FW], at, 0);
        end_gradient(s, rank, i, &p[SLOT_DW]);
    }
    if (i->op == I_SG)
        end_gradient(s, rank, i, &p[SLOT_DW]);
    if (late)
        end_late(&p[SLOT_DW], late);
}

void slots_open(Schedule *s, const ScheduleSet *set, int rank, const int *units)
{
    const PipeShape *shape = &set->shape;
    size_t all = (size_t)shape->v * (size_t)shape->m;
    Slots p[SLOT_KINDS];
    for (int k = 0; k < SLOT_KINDS; k++) {
        p[k] = (Slots){.words = (int)(all / 64 + 1), .of = s, .kind = k};
        p[k].slot = xcalloc(all, sizeof *p->slot);
        p[k].used = xcalloc((size_t)p[k].words, sizeof *p->used);
        p[k].ended = xcalloc(all, 1);
        memset(p[k].slot, 0xff, all * sizeof *p->slot);
    }
    for (int i = 0; i < set->rank[rank].n; i++)
        if (shape->kind == SCHEDULE_FORWARD)
            place_forward(shape, rank, &set->rank[rank].list[i], units, &p[SLOT_FD]);
        else
            place_training(shape, rank, &set->rank[rank].list[i], p);
    for (int k = 0; k < SLOT_KINDS; k++) {
        if (p[k].nlate)
            end_late(&p[k], p[k].nlate);
        s->slot[k] = p[k].slot;
        s->slots[k] = p[k].most;
        free(p[k].used);
        free(p[k].ended);
        free(p[k].late);
    }
}

/* ---- places ---- */

/* A piece of memory that is taken: bytes [from, to) by the data of `kind` at `at`. */
typedef struct {
    size_t from, to;
    Life life;
} Taken;

typedef struct {
    Schedule *s;
    size_t *size;              /* [SLOT_KINDS * v] */
    Taken *taken;              /* [n] in the order of their places */
    int n;
} Pack;

static size_t size_of(const Pack *p, Life l) { return p->size[l.kind * p->s->v + (int)l.at / p->s->m]; }

/* The most bytes that are held at once. */
static size_t load(const Pack *p)
{
    size_t now = 0, most = 0;
    for (int i = 0; i < p->s->lives; i++) {
        size_t bytes = size_of(p, p->s->life[i]);
        now = p->s->life[i].ends ? now - bytes : now + bytes;
        most = now > most ? now : most;
    }
    return most;
}

/* Slots of equal size for each lifetime. */
static size_t in_slots(Pack *p)
{
    Schedule *s = p->s;
    size_t base = 0;
    for (int k = 0; k < SLOT_KINDS; k++) {
        size_t largest = 0;
        for (int c = 0; c < s->v; c++)
            largest = p->size[k * s->v + c] > largest ? p->size[k * s->v + c] : largest;
        for (int i = 0; i < s->v * s->m; i++)
            s->place[k][i] = s->slot[k][i] == NO_SLOT ? 0 : base + (size_t)s->slot[k][i] * largest;
        base = arena_add("activations", base, (size_t)s->slots[k], largest);
    }
    return base;
}

/* Puts data where they fit into `room` bytes: as low as can be, or as high. 0: they fit nowhere. */
static int put(Pack *p, Life l, size_t room, int low)
{
    size_t bytes = size_of(p, l), from = 0;
    int at = low ? 0 : p->n, step = low ? 1 : -1, found = 0;
    for (; at >= 0 && at <= p->n && !found; at += step) {
        size_t before = at ? p->taken[at - 1].to : 0, behind = at < p->n ? p->taken[at].from : room;
        found = behind - before >= bytes;
        from = low ? before : behind - bytes;
    }
    if (!found)
        return 0;
    at -= step;
    p->taken = xgrow(p->taken, p->n, sizeof *p->taken);
    memmove(p->taken + at + 1, p->taken + at, (size_t)(p->n++ - at) * sizeof *p->taken);
    p->taken[at] = (Taken){from, from + bytes, l};
    p->s->place[l.kind][l.at] = from;
    return 1;
}

static void drop(Pack *p, Life l)
{
    int i = 0;
    while (p->taken[i].life.kind != l.kind || p->taken[i].life.at != l.at)
        i++;
    memmove(p->taken + i, p->taken + i + 1, (size_t)(--p->n - i) * sizeof *p->taken);
}

/* Places in `room` bytes, of one lifetime from the bottom, of all others from the top. 0: they do not fit. */
static int from_both_ends(Pack *p, size_t room, int low)
{
    const Schedule *s = p->s;
    p->n = 0;
    for (int i = 0; i < s->lives; i++)
        if (s->life[i].ends)
            drop(p, s->life[i]);
        else if (!put(p, s->life[i], room, s->life[i].kind == low))
            return 0;
    return 1;
}

/* Places from both ends, in a little more than the `held` bytes that are held at once. Returns the bytes; 0:
 * `most` or more. */
static size_t in_gaps(Pack *p, size_t held, size_t most)
{
    static const size_t percent[] = {1, 2, 3, 4, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 70, 100};
    for (size_t i = 0; i < sizeof percent / sizeof *percent; i++) {
        size_t room = (held + held / 100 * percent[i]) / ARENA_ALIGN * ARENA_ALIGN;
        if (room >= most)
            return 0;
        if (from_both_ends(p, room, SLOT_FD) || from_both_ends(p, room, SLOT_FW))
            return room;
    }
    return 0;
}

/* Data with the whole of their lifetime, in events of Schedule.life. */
typedef struct {
    size_t bytes, from;
    int begin, end;
    Life life;
} Whole;

/* The longer lists have more pairs of data than there is time to look at. */
enum { WHOLES_MOST = 2048, WASTE = 100 };      /* WASTE: where a smaller part is lost it stays */

static int larger(const void *a, const void *b)
{
    const Whole *x = a, *y = b;
    return x->bytes != y->bytes ? (x->bytes < y->bytes ? 1 : -1) : x->begin - y->begin;
}

static int larger_for_longer(const void *a, const void *b)
{
    const Whole *x = a, *y = b;
    double l = (double)x->bytes * (x->end - x->begin), m = (double)y->bytes * (y->end - y->begin);
    return l != m ? (l < m ? 1 : -1) : x->begin - y->begin;
}

static int wholes_open(const Pack *p, Whole *all)
{
    const Schedule *s = p->s;
    int n = 0, *open = xcalloc((size_t)(SLOT_KINDS * s->v * s->m), sizeof *open);
    for (int i = 0; i < s->lives; i++) {
        Life l = s->life[i];
        int *at = &open[l.kind * s->v * s->m + (int)l.at];
        if (l.ends) {
            all[*at].end = i;
        } else {
            *at = n;
            all[n++] = (Whole){size_of(p, l), 0, i, s->lives, l};
        }
    }
    free(open);
    return n;
}

/* Puts datum `i` of those in order as low as the ones before it, in `placed` from the lowest on, allow. */
static void put_whole(Whole *all, int i, int *placed)
{
    Whole *x = &all[i];
    int at = 0;
    for (; at < i; at++) {
        const Whole *o = &all[placed[at]];
        if (o->end <= x->begin || x->end <= o->begin)
            continue;
        if (o->from >= x->from + x->bytes)
            break;
        x->from = o->from + o->bytes > x->from ? o->from + o->bytes : x->from;
    }
    for (at = i; at && all[placed[at - 1]].from > x->from; at--)
        placed[at] = placed[at - 1];
    placed[at] = i;
}

/* Places one after the other in an order that does not ask who came first. Keeps them, and returns the bytes,
 * if these are fewer than `most`; else `most`. */
static size_t in_order_of(Pack *p, Whole *all, int n, int (*order)(const void *, const void *), size_t most)
{
    Schedule *s = p->s;
    size_t bytes = 0;
    int *placed = xcalloc((size_t)n + 1, sizeof *placed);
    qsort(all, (size_t)n, sizeof *all, order);
    for (int i = 0; i < n; i++) {
        all[i].from = 0;
        put_whole(all, i, placed);
        bytes = all[i].from + all[i].bytes > bytes ? all[i].from + all[i].bytes : bytes;
    }
    for (int i = 0; i < n && bytes < most; i++)
        s->place[all[i].life.kind][all[i].life.at] = all[i].from;
    free(placed);
    return bytes < most ? bytes : most;
}

void schedule_pack(Schedule *s, const size_t *const bytes[SLOT_KINDS])
{
    Pack p = {.s = s, .size = xcalloc((size_t)(SLOT_KINDS * s->v), sizeof *p.size)};
    size_t all = (size_t)(s->v * s->m);
    for (int k = 0; k < SLOT_KINDS; k++)
        for (int c = 0; c < s->v; c++)
            p.size[k * s->v + c] = (bytes[k][c] + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    free(s->place[0]);
    s->place[0] = xcalloc(SLOT_KINDS * all, sizeof *s->place[0]);
    for (int k = 1; k < SLOT_KINDS; k++)
        s->place[k] = s->place[0] + (size_t)k * all;
    size_t slots = in_slots(&p), held = load(&p);  /* no more than that: the sums of sizes fit */
    s->bytes = in_gaps(&p, held, slots);
    if (!s->bytes)
        s->bytes = in_slots(&p);
    if (s->lives <= 2 * WHOLES_MOST && s->bytes > held + held / WASTE) {
        Whole *whole = xcalloc((size_t)s->lives + 1, sizeof *whole);
        int n = wholes_open(&p, whole);
        s->bytes = in_order_of(&p, whole, n, larger, s->bytes);
        s->bytes = in_order_of(&p, whole, n, larger_for_longer, s->bytes);
        free(whole);
    }
    free(p.taken);
    free(p.size);
}
