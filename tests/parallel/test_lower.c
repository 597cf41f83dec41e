/* test_lower -- from compute lists to the lists that ranks execute: lists do not deadlock, the check
 * finds wrong lists, expanded lists keep every order, and no slot has two owners at a time. `long`:
 * every schedule up to 64 ranks; `speed`: prints how long it takes to make the lists. */
#include "schedules.h"
#include <time.h>

static double costs[3][4096];

/* Sets the costs of all stages. how 0: all equal; 1: integers from 1 to 4, so that times often coincide;
 * 2: any numbers; 3: small integers, many of them 0. */
static void random_costs(PipeShape *s, int how)
{
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < s->p * s->v; i++)
            costs[k][i] = how == 1 ? 1 + dice(4) : how == 2 ? dice(1000000) / 1e5 : dice(3) * dice(5);
        s->cost[k] = how ? costs[k] : NULL;
    }
    s->hop = how < 2 ? 0 : dice(300) / 100.0;
}

/* ---- every schedule comes to its end ---- */

static void one_schedule(PipeShape s)
{
    ScheduleSet set;
    schedules_open(&set, &s);
    check_set(&set, "one queue");
    double one = model_run(&set, 0), two = model_run(&set, 1);
    CHECK(one >= 0 && two >= 0, "kind %d p %d v %d m %d deadlocks: %g, with queues %g", s.kind, s.p,
          s.v, s.m, one, two);
    schedules_close(&set);
}

static void every_schedule(void)
{
    for (int kind = 0; kind < SCHEDULE_CHOICES; kind++)
        for (int p = 1; p <= 16; p++)
            for (int m = 1; m <= 40; m += m < 20 || kind == SCHEDULE_INTERLEAVED ? 1 : 7)
                for (int v = 2; v <= (kind == SCHEDULE_INTERLEAVED ? 4 : 2) && fits(kind, p, m); v++) {
                    PipeShape s = shape_of(kind, p, v, m);
                    random_costs(&s, dice(4));
                    one_schedule(s);
                }
    for (int p = 1; p <= 9; p++)
        for (int v = 1; v <= 4; v++)
            for (int m = 1; m <= 20; m++) {
                one_schedule(
                    (PipeShape){.kind = SCHEDULE_FORWARD, .p = p, .v = v, .m = m, .group = dice(p + 2)});
                one_schedule((PipeShape){.kind = SCHEDULE_FORWARD, .p = p, .v = 2, .m = m, .vee = 1});
            }
}

/* Groups of n >= p microbatches of interleaved. Megatron-LM takes whole groups, or a last group of at
 * least p. Lists of the sizes that it refuses may deadlock; schedules_check then says so. */
static void groups(void)
{
    int refused = 0;
    for (int v = 2; v <= 4; v++)
        for (int p = 1; p <= 8; p++)
            for (int n = p; n <= 12; n++)
                for (int m = n; m <= 26; m++) {
                    PipeShape s = {.kind = SCHEDULE_INTERLEAVED, .p = p, .v = v, .m = m, .group = n};
                    if (m % n == 0 || m % n >= p) {
                        one_schedule(s);
                        continue;
                    }
                    ScheduleSet set;
                    char why[256] = "";
                    schedules_open(&set, &s);
                    int ok = schedules_check(&set, why, sizeof why);
                    CHECK(ok == (model_run(&set, 0) >= 0) || set.stuck >= 0, "p %d v %d n %d m %d: %s", p, v,
                          n, m, why);
                    CHECK(ok || strstr(why, "never gets to"), "p %d v %d n %d m %d: %s", p, v, n, m, why);
                    refused += !ok;
                    schedules_close(&set);
                }
    CHECK(refused > 0, "no list waited for itself");
}

static void large(int p, int kind, int v, int m)
{
    PipeShape s = shape_of(kind, p, v, m);
    ScheduleSet set;
    schedules_open(&set, &s);
    check_set(&set, "large");
    schedules_close(&set);
}

static void large_schedules(int whole)
{
    static const int ranks[] = {17, 24, 31, 32, 48, 63, 64},
                     mbs[] = {1, 2, 3, 7, 31, 64, 127, 128, 300, 1024};
    for (int p = 1; whole && p <= 64; p++)
        for (int kind = 0; kind < SCHEDULE_CHOICES; kind++)
            for (int m = 1; m <= 1024; m += m < 2 * p + 4 ? 1 : 1 + m / 3)
                for (int v = 2; v <= (kind == SCHEDULE_INTERLEAVED ? 8 : 2) && fits(kind, p, m); v++)
                    large(p, kind, v, m);
    for (int p = 1; whole && p <= 64; p++)                 /* interleaved: whole groups, up to 1024 */
        for (int v = 2; v <= 8; v++)
            for (int m = p; m <= 1024; m += p * (1 + m / (4 * p)))
                large(p, SCHEDULE_INTERLEAVED, v, m);
    for (size_t i = 0; !whole && i < sizeof ranks / sizeof *ranks; i++)
        for (int kind = 0; kind < SCHEDULE_CHOICES; kind++)
            for (size_t k = 0; k < sizeof mbs / sizeof *mbs; k++) {
                int m =
                    kind == SCHEDULE_INTERLEAVED && mbs[k] > ranks[i] ? mbs[k] / ranks[i] * ranks[i] : mbs[k];
                if (!fits(kind, ranks[i], m))
                    continue;
                if (m * ranks[i] <= 20000 || (kind != SCHEDULE_INTERLEAVED && i == 6))
                    large(ranks[i], kind, 2 + (int)(k % 4) * 2, m);
            }
}

/* ---- random lists ---- */

/* Random lists whose order respects all dependencies: each turn a random stage runs a compute that is
 * ready. */
typedef struct { PipeShape s; Instr memory[6][6 * 4 * 12]; InstrList list[6]; } Random;

static void random_lists(Random *w)
{
    int p = 1 + dice(6), v = 1 + dice(3), vee = v == 2 && dice(2), m = 1 + dice(8), joined = dice(2);
    int done[3][24] = {{0}}, left = p * v * m * 3, stages = p * v;
    w->s = (PipeShape){.kind = vee ? SCHEDULE_ZB_V : SCHEDULE_INTERLEAVED, .p = p, .v = v, .m = m};
    random_costs(&w->s, dice(4));
    for (int r = 0; r < p; r++)
        w->list[r] = (InstrList){0, w->memory[r]};
    while (left) {
        int stage = dice(stages), r = rank_of(&w->s, stage), chunk = stage / p, k = dice(3);
        int mb = done[k][stage], limit = k == 0 ? (stage ? done[0][stage - 1] : m) : done[k - 1][stage];
        if (k == 1 && stage + 1 < stages && done[1][stage + 1] < limit)
            limit = done[1][stage + 1];
        if (mb >= limit || mb >= m || (k == 2 && joined))
            continue;
        InstrKind op = k == 0 ? I_F : k == 2 ? I_W : joined ? I_B : I_D;
        w->list[r].list[w->list[r].n++] =
            (Instr){.op = (uint8_t)op, .chunk = (uint8_t)chunk, .unit = WHOLE, .mb = (uint16_t)mb};
        done[k][stage]++;
        left--;
        if (op == I_B)
            done[2][stage]++, left--;
    }
}

static int same_compute(const InstrList *a, const InstrList *b)
{
    int k = 0;
    for (int i = 0; i < b->n; i++)
        if (!is_message(&b->list[i]))
            if (k == a->n || memcmp(&a->list[k++], &b->list[i], sizeof(Instr)))
                return 0;
    return k == a->n;
}

static void random_schedules(int n)
{
    static Random w;
    for (int i = 0; i < n; i++) {
        ScheduleSet set;
        char why[256] = "";
        random_lists(&w);
        schedules_lower(&set, &w.s, w.list);
        int ok = schedules_check(&set, why, sizeof why), same = 1;
        for (int r = 0; r < w.s.p; r++)
            same &= same_compute(&w.list[r], &set.rank[r]);
        if (!ok || !same || model_run(&set, 0) < 0 || model_run(&set, 1) < 0)
            CHECK(0, "random list %d, p %d v %d m %d: %s", i, w.s.p, w.s.v, w.s.m, ok ? "deadlock" : why);
        schedules_close(&set);
    }
    CHECK(1, "all done");
}

/* ---- the check at start ---- */

typedef enum { DROP, DOUBLE, SWAP_PAIRED, SWAP_F, SWAP_ANY, EARLY, RENAME, MUTATIONS } Mutation;

static int pick(const InstrList *l, int message)
{
    int n = 0, k;
    for (int i = 0; i < l->n; i++)
        n += message < 0 || is_message(&l->list[i]) == message;
    if (!n)
        return -1;
    k = dice(n);
    for (int i = 0; i < l->n; i++)
        if ((message < 0 || is_message(&l->list[i]) == message) && !k--)
            return i;
    return -1;
}

static void swap(Instr *a, Instr *b)
{
    Instr t = *a;
    *a = *b;
    *b = t;
}

/* Damages one list, which has room for one more instruction. Returns 1: the list is wrong for certain;
 * 0: the list may still be right; -1: the damage was not possible. */
static int mutate(InstrList *l, Mutation how)
{
    int i = pick(l, how == DROP || how == DOUBLE || how == RENAME ? -1 : how == SWAP_F ? 0 : 1), j;
    if (i < 0)
        return -1;
    Instr *at = &l->list[i];
    switch (how) {
    case DROP:
        memmove(at, at + 1, (size_t)(l->n-- - i - 1) * sizeof *at);
        break;
    case DOUBLE:
        memmove(at + 1, at, (size_t)(l->n++ - i) * sizeof *at);
        break;
    case RENAME:                                           /* another microbatch, chunk or opcode */
        if (dice(3) == 0)
            at->mb++;
        else if (dice(2))
            at->chunk++;
        else
            at->op = (uint8_t)((at->op + 1) % (I_RG + 1));
        break;
    case SWAP_PAIRED:                                      /* swaps two of the same opcode and chunk */
    case SWAP_F:
        for (j = i + 1; j < l->n; j++)
            if (l->list[j].op == at->op && l->list[j].chunk == at->chunk)
                break;
        if (j == l->n || (how == SWAP_F && at->op != I_F))
            return -1;
        swap(at, &l->list[j]);
        break;
    case SWAP_ANY:
        j = pick(l, 1);
        if (i == j)
            return -1;
        swap(at, &l->list[j]);
        return 0;
    default:                                               /* EARLY: a message swaps with its successor */
        if (i + 1 == l->n)
            return -1;
        swap(at, at + 1);
        return 0;
    }
    return 1;
}

static void mutants(int n)
{
    int certain = 0, caught = 0, perhaps = 0, refused = 0;
    for (int i = 0; i < n; i++) {
        int kind = dice(SCHEDULE_CHOICES), p = 2 + dice(4),
            m = kind == SCHEDULE_INTERLEAVED ? p * (1 + dice(2)) : 1 + dice(8);
        if (!fits(kind, p, m))
            continue;
        PipeShape s = shape_of(kind, p, 2 + dice(2), m);
        ScheduleSet set, copy;
        char why[256] = "";
        schedules_open(&set, &s);
        copy = set;
        copy.rank = xcalloc((size_t)p, sizeof *copy.rank);
        for (int r = 0; r < p; r++) {
            copy.rank[r] = (InstrList){set.rank[r].n, xcalloc((size_t)set.rank[r].n + 1, sizeof(Instr))};
            memcpy(copy.rank[r].list, set.rank[r].list, (size_t)set.rank[r].n * sizeof(Instr));
        }
        Mutation how = (Mutation)dice(MUTATIONS);
        int r = dice(p), wrong = mutate(&copy.rank[r], how), ok = schedules_check(&copy, why, sizeof why);
        for (int k = 0; k < copy.rank[r].n; k++)           /* the replay runs each message alone */
            copy.rank[r].list[k].join = 0;
        CHECK(wrong >= 0 || ok, "an unharmed list is refused: %s", why);
        CHECK(wrong != 1 || !ok, "%s p %d m %d rank %d, mutation %d: not caught", schedule_name(kind), p, m,
              r, how);
        CHECK(wrong || !ok || model_run(&copy, 0) >= 0,
              "%s p %d m %d rank %d, mutation %d: passes, and deadlocks", schedule_name(kind), p, m, r,
              how);
        CHECK(ok || strlen(why) > 10, "no reason given");
        certain += wrong == 1, caught += wrong == 1 && !ok, perhaps += wrong == 0,
            refused += wrong == 0 && !ok;
        for (int k = 0; k < p; k++)
            free(copy.rank[k].list);
        free(copy.rank);
        schedules_close(&set);
    }
    printf("# mutants: %d of %d caught; of %d swaps that may be harmless %d refused\n", caught, certain,
           perhaps, refused);
    CHECK(certain > n / 4 && perhaps > n / 10 && refused > perhaps / 4, "%d certain, %d perhaps", certain,
          perhaps);
}

/* ---- what ranks execute ---- */

static int stage_is_alone(const PipeShape *s, int stage, int by, int rank)
{
    return stage + by < 0 || stage + by >= s->p * s->v || rank_of(s, stage + by) != rank;
}

/* Lifetimes of a slot kind, derived from the list alone.
 *
 *   from  out  [chunk*m + mb]  position of the first instruction that uses the microbatch's slot; -1: none
 *   to    out  [chunk*m + mb]  position of the last one */
static void lifetimes(const PipeShape *s, int rank, const InstrList *l, const int *units, int kind, int *from,
                      int *to)
{
    for (int i = 0; i < s->v * s->m; i++)
        from[i] = to[i] = -1;
    for (int i = 0; i < l->n; i++) {
        const Instr *k = &l->list[i];
        int stage = stage_at(s, rank, k->chunk), at = k->chunk * s->m + k->mb;
        int back = k->op == I_B || k->op == I_D, w = k->op == I_B || k->op == I_W;
        int last = stage == s->p * s->v - 1, forward_only = s->kind == SCHEDULE_FORWARD;
        if (kind == SLOT_FD) {
            if (from[at] < 0 && (k->op == I_RA || k->op == I_F))
                from[at] = i;
            if (back || (forward_only && (k->op == I_SA || (k->op == I_F && last))))
                to[at] = i;
            if (forward_only && k->op == I_F && !stage_is_alone(s, stage, -1, rank))
                for (int c = 0; c < s->v; c++)
                    if (stage_at(s, rank, c) == stage - 1)
                        to[c * s->m + k->mb] = i;
        } else if (kind == SLOT_FW && !forward_only) {
            from[at] = k->op == I_F ? i : from[at];
            to[at] = w ? i : to[at];
        } else if (!forward_only) {
            if (from[at] < 0 && (k->op == I_RG || back))
                from[at] = i;
            if (back && !stage_is_alone(s, stage, -1, rank))
                for (int c = 0; c < s->v; c++)
                    if (stage_at(s, rank, c) == stage - 1)
                        from[c * s->m + k->mb] = i;
            to[at] = w || k->op == I_SG ? i : to[at];
        }
    }
    /* a chunk without units passes on what lies in the place of the chunk before */
    for (int again = 0; again < s->v && s->kind == SCHEDULE_FORWARD && kind == SLOT_FD; again++)
        for (int c = 0; c < s->v; c++)
            for (int b = 0; b < s->v && !units[c]; b++)
                for (int mb = 0; mb < s->m; mb++)
                    if (stage_at(s, rank, b) == stage_at(s, rank, c) - 1 &&
                        to[b * s->m + mb] < to[c * s->m + mb])
                        to[b * s->m + mb] = to[c * s->m + mb];
}

static size_t packed[3];        /* bytes held at most, of places, of slots, of all lists */

static void check_slots(const PipeShape *s, int rank, const InstrList *l, const int *units,
                        const Schedule *e)
{
    int n = s->v * s->m, *from = xcalloc(2 * (size_t)n, sizeof *from), *to = from + n;
    for (int kind = 0; kind < SLOT_KINDS; kind++) {
        int peak = 0;
        lifetimes(s, rank, l, units, kind, from, to);
        for (int a = 0; a < n; a++) {
            int live = 0, slot = e->slot[kind][a];
            if (from[a] < 0) {
                CHECK(slot == NO_SLOT, "kind %d rank %d: slot %d for nothing", kind, rank, slot);
                continue;
            }
            if (slot >= e->slots[kind] || to[a] < from[a])
                CHECK(0, "kind %d rank %d: slot %d of %d, from %d to %d", kind, rank, slot, e->slots[kind],
                      from[a], to[a]);
            for (int b = 0; b < n; b++) {
                int meets = from[b] >= 0 && from[b] <= from[a] && to[b] >= from[a];
                live += meets;
                if (meets && a != b && e->slot[kind][b] == slot)
                    CHECK(0, "schedule %d kind %d rank %d: slot %d has two", s->kind, kind, rank, slot);
            }
            peak = live > peak ? live : peak;
        }
        CHECK(peak == e->slots[kind], "schedule %d kind %d rank %d: %d slots, needs %d", s->kind, kind, rank,
              e->slots[kind], peak);
    }
    free(from);
}

/* Places of data of random sizes: none lies over another that is held at the same time, and all together
 * take no more than slots, of which each lifetime has as many as it needs, of the largest chunk's size. */
static void check_places(const PipeShape *s, int rank, const InstrList *l, const int *units, Schedule *e)
{
    int n = s->v * s->m, *from = xcalloc(6 * (size_t)n, sizeof *from), *to = from + 3 * n, even = dice(3);
    size_t bytes[SLOT_KINDS][16], slots = 0, held = 0, end = 0;
    for (int k = 0; k < SLOT_KINDS; k++) {
        size_t largest = 0;
        lifetimes(s, rank, l, units, k, from + k * n, to + k * n);
        for (int c = 0; c < s->v; c++) {
            bytes[k][c] = c && even ? bytes[k][0] : (size_t)ARENA_ALIGN * (size_t)dice(100);
            largest = bytes[k][c] > largest ? bytes[k][c] : largest;
        }
        slots += (size_t)e->slots[k] * largest;
    }
    schedule_pack(e, (const size_t *const[]){bytes[0], bytes[1], bytes[2]});
    for (int a = 0; a < SLOT_KINDS * n; a++) {
        size_t at = e->place[a / n][a % n], size = bytes[a / n][a % n / s->m], now = size;
        if (from[a] < 0)
            continue;
        end = at + size > end ? at + size : end;
        for (int b = 0; b < SLOT_KINDS * n; b++) {
            size_t other = e->place[b / n][b % n], large = bytes[b / n][b % n / s->m];
            if (b == a || from[b] < 0)
                continue;
            now += from[b] <= from[a] && to[b] >= from[a] ? large : 0;
            if (from[b] <= to[a] && to[b] >= from[a] && at < other + large && other < at + size)
                CHECK(0, "schedule %d rank %d: kind %d of %d lies over kind %d of %d", s->kind, rank, a / n,
                      a % n, b / n, b % n);
        }
        held = now > held ? now : held;
    }
    CHECK(end <= e->bytes && held <= e->bytes && e->bytes <= slots,
          "schedule %d rank %d: %zu bytes, to %zu, held %zu, in slots %zu", s->kind, rank, e->bytes, end,
          held, slots);
    packed[0] += held;
    packed[1] += e->bytes;
    packed[2] += slots;
    free(from);
}

/* State of a walk through an expanded list. The walk checks that its parts make up the original list, that
 * parameters are gathered when they are used, and that gradients are reduced as soon as they are final. */
typedef struct {
    const PipeShape *s;
    const Expand *e;
    const InstrList *list;
    const Schedule *x;
    int chunk[64], gathered[64], now, pending, reduces[64],
        ran[64],             /* [unit] bool: the unit's last backward has run */
        step, tied;
} Walk;

static int chunk_of_unit(const Walk *w, int unit)
{
    int c = 0;
    while (unit >= w->e->units[c])
        unit -= w->e->units[c++];
    return c;
}

static void walk_reduce(Walk *w, const Instr *k, const Instr *before)
{
    const Expand *e = w->e;
    CHECK(k->unit < w->x->units && !w->step && !w->tied, "R of unit %d", k->unit);
    w->reduces[k->unit]++;
    if (e->sharded_grads) {
        int phase = before->op == I_B ? 0 : before->op == I_D ? 1 : 2;
        CHECK(w->pending == k->unit && k->phase == phase, "R/%d phase %d behind %d, not phase %d", k->unit,
              k->phase, w->pending, phase);
        w->pending = -1;
    } else {
        CHECK(k->phase == 0 && w->ran[k->unit], "R/%d before the last backward", k->unit);
        CHECK(!e->overlap || (before->unit == k->unit && (before->op == I_B || before->op == I_W)),
              "R/%d is not right after the last backward", k->unit);
    }
}

static void walk_part(Walk *w, const Instr *k)
{
    const Expand *e = w->e;
    int held = 0, needs = k->op == I_F || k->op == I_B || k->op == I_D;
    CHECK(w->pending < 0, "unit %d has gradients that nobody reduces", w->pending);
    CHECK(chunk_of_unit(w, k->unit) == k->chunk, "unit %d is not of chunk %d", k->unit, k->chunk);
    for (int u = 0; u < w->x->units; u++)
        held += w->gathered[u];
    if (e->gather && needs)
        CHECK(w->gathered[k->unit] && held <= 2, "unit %d %s gathered, %d are", k->unit,
              w->gathered[k->unit] ? "is" : "is not",
              held);
    if ((k->op == I_B || k->op == I_W) && k->mb == w->s->m - 1)
        w->ran[k->unit] = 1;
    if (e->sharded_grads && k->op != I_F)
        w->pending = k->unit;
}

static void walk_expanded(Walk *w, int rank)
{
    const Expand *e = w->e;
    int from = 0, parts = 0;
    Instr before = {.op = I_S, .unit = WHOLE};
    w->pending = -1;
    for (int i = 0; i < w->x->n; i++) {
        const Instr *k = &w->x->list[i];
        CHECK(!w->step, "behind S at %d", i);
        if (k->op == I_G || k->op == I_X) {
            CHECK(e->gather && w->gathered[k->unit] == (k->op == I_X), "rank %d at %d: unit %d", rank, i,
                  k->unit);
            w->gathered[k->unit] = k->op == I_G;
            continue;
        }
        if (k->op == I_R)
            walk_reduce(w, k, &before);
        else if (k->op == I_T)
            CHECK(!w->tied++ && k->unit == e->tied_unit, "T of unit %d", k->unit);
        else if (k->op == I_S)
            w->step++;
        else {                                             /* an instruction of the list, or a unit of it */
            const Instr *want = &w->list->list[from];
            int n = is_message(k) ? 0 : e->units[k->chunk], base = 0;
            for (int c = 0; c < k->chunk; c++)
                base += e->units[c];
            CHECK(from < w->list->n && k->op == want->op && k->chunk == want->chunk && k->mb == want->mb &&
                      k->join == want->join,
                  "rank %d at %d: not what the list has at %d", rank, i, from);
            if (k->unit == WHOLE) {
                CHECK(!n || !(e->gather && k->op != I_W), "rank %d at %d: whole, and parameters are spread",
                      rank, i);
                if ((k->op == I_B || k->op == I_W) && k->mb == w->s->m - 1)
                    for (int u = 0; u < n; u++)
                        w->ran[base + u] = 1;
                CHECK(!e->sharded_grads || k->op == I_F || !n || is_message(k), "rank %d at %d: whole", rank,
                      i);
            } else {
                CHECK(k->unit == base + (k->op == I_F ? parts : n - 1 - parts),
                      "rank %d at %d: unit %d, place %d", rank, i, k->unit, parts);
                walk_part(w, k);
                parts++;
            }
            if (k->unit == WHOLE || parts == n)
                from++, parts = 0;
        }
        before = *k;
    }
    CHECK(from == w->list->n && !parts, "rank %d: %d of %d done", rank, from, w->list->n);
}

static void check_expanded(const ScheduleSet *set, int rank, const Expand *e)
{
    Schedule x;
    Walk w = {.s = &set->shape, .e = e, .list = &set->rank[rank], .x = &x};
    int forward = set->shape.kind == SCHEDULE_FORWARD, backwards[64] = {0};
    schedule_open(&x, set, rank, e);
    for (int i = 0; i < set->rank[rank].n; i++) {
        const Instr *k = &set->rank[rank].list[i];
        backwards[k->chunk] += k->op == I_B || k->op == I_D || k->op == I_W;
    }
    walk_expanded(&w, rank);
    CHECK(w.step == !forward && w.tied == (e->tied && !forward), "S %d times, T %d times", w.step, w.tied);
    for (int u = 0; u < x.units; u++) {
        int want = forward ? 0 : e->sharded_grads ? backwards[chunk_of_unit(&w, u)] : 1;
        CHECK(w.reduces[u] == want && !w.gathered[u], "rank %d: unit %d reduced %d times, not %d", rank, u,
              w.reduces[u], want);
    }
    check_slots(&set->shape, rank, &set->rank[rank], e->units, &x);
    check_places(&set->shape, rank, &set->rank[rank], e->units, &x);
    schedule_close(&x);
}

static void expansion(void)
{
    for (int kind = 0; kind <= SCHEDULE_CHOICES; kind++)
        for (int p = 1; p <= 5; p++)
            for (int n = 0; n < 24; n++) {
                int m = 1 + dice(9), units[8];
                if (kind == SCHEDULE_INTERLEAVED && m > p)
                    m = p * (m / p);
                if (kind < SCHEDULE_CHOICES && !fits(kind, p, m))
                    continue;
                PipeShape s = shape_of(kind, p, 2 + dice(3), m);
                if (kind == SCHEDULE_CHOICES)
                    s = (PipeShape){.kind = SCHEDULE_FORWARD, .p = p, .v = 1 + dice(3), .m = m};
                s.vee = s.kind == SCHEDULE_FORWARD && s.v == 2 && dice(2);
                random_costs(&s, dice(4));
                ScheduleSet set;
                schedules_open(&set, &s);
                int shard = n % 3, rank = dice(p), total = 0;
                for (int c = 0; c < s.v; c++)
                    total += units[c] = dice(8) ? 1 + dice(4) : 0;
                units[0] += !total;
                Expand e = {.units = units, .sharded_grads = shard > 0, .gather = shard == 2,
                            .overlap = dice(2), .tied = dice(2)};
                check_expanded(&set, rank, &e);
                schedules_close(&set);
            }
}

/* Slots of a rank, whatever the costs. 1f1b holds p - rank microbatches plus one received early, and
 * three gradients: one received early, one in use, one being sent. Evaluation holds two microbatches, or
 * three where the two chunks of a V meet. */
static void bounds(void)
{
    for (int p = 1; p <= 8; p++)
        for (int m = 1; m <= 20; m++) {
            PipeShape s = shape_of(SCHEDULE_1F1B, p, 1, m);
            ScheduleSet set;
            random_costs(&s, dice(4));
            schedules_open(&set, &s);
            for (int r = 0; r < p; r++) {
                Schedule x;
                schedule_open(&x, &set, r, &(Expand){.units = (const int[]){3}});
                int held = p - r < m ? p - r : m;
                CHECK(x.slots[SLOT_FD] <= held + 1 && x.slots[SLOT_FW] == held && x.slots[SLOT_DW] <= 3,
                      "1f1b p %d m %d rank %d: %d, %d, %d slots",
                      p, m, r, x.slots[0], x.slots[1], x.slots[2]);
                schedule_close(&x);
            }
            schedules_close(&set);
            for (int v = 1; v <= 4; v++)
                for (int vee = 0; vee <= (v == 2); vee++) {
                    s = (PipeShape){.kind = SCHEDULE_FORWARD, .p = p, .v = v, .m = m, .vee = vee};
                    random_costs(&s, dice(4));
                    schedules_open(&set, &s);
                    for (int r = 0; r < p; r++) {
                        Schedule x;
                        schedule_open(&x, &set, r, &(Expand){.units = (const int[]){3, 3, 3, 3}});
                        CHECK(x.slots[SLOT_FD] <= 2 + vee && !x.slots[SLOT_FW] && !x.slots[SLOT_DW],
                              "forward p %d v %d m %d rank %d: %d slots", p, v, m, r, x.slots[0]);
                        schedule_close(&x);
                    }
                    schedules_close(&set);
                }
        }
}

/* ---- pairs ---- */

/* The F and the B of a pair use memory at the same time, so no slot is of both. Returns how many pairs. */
static int pairs_of(const ScheduleSet *set, int rank)
{
    const PipeShape *s = &set->shape;
    const InstrList *l = &set->rank[rank];
    Schedule x;
    int n = 0;
    schedule_open(&x, set, rank, &(Expand){.units = (const int[]){3, 3, 3, 3}, .overlap = 1});
    for (int i = 0; i < l->n; i++) {
        const Instr *f = &l->list[i], *b = f + 1;
        if (instr_together(l->list, l->n, i) == 1)
            continue;
        int at[2] = {f->chunk * s->m + f->mb, b->chunk * s->m + b->mb};
        CHECK(f->op == I_F && b->op == I_B && f->mb != b->mb, "rank %d at %d: no pair", rank, i);
        for (int k = SLOT_FD; k <= SLOT_FW; k++)
            CHECK(x.slot[k][at[0]] != x.slot[k][at[1]], "kind %d rank %d at %d: both are in slot %d of %d",
                  s->kind, rank, i, x.slot[k][at[0]], k);
        n++;
    }
    schedule_close(&x);
    return n;
}

/* Lists with pairs come to their end, and each rank has as many pairs as F behind its first ones. */
static void pairs(void)
{
    static const ScheduleKind kinds[] = {SCHEDULE_1F1B, SCHEDULE_INTERLEAVED, SCHEDULE_DUALPIPEV};
    for (int k = 0; k < 3; k++)
        for (int p = k ? 2 : 1; p <= 8; p++)
            for (int m = 1; m <= 40 && k < 3; m += m < 20 || k == 1 ? 1 : 7)
                for (int v = 2; v <= (k == 1 ? 4 : 2) && fits(kinds[k], p, m); v++) {
                    PipeShape s = shape_of(kinds[k], p, v, m);
                    ScheduleSet set;
                    s.paired = 1;
                    random_costs(&s, dice(4));
                    one_schedule(s);
                    schedules_open(&set, &s);
                    for (int r = 0; r < p; r++) {
                        int n = pairs_of(&set, r), want = s.v * m - (2 * (p - r) - 1 + (s.v - 1) * p);
                        if (k == 2)        /* F of chunk 0 and of chunk 1; the last rank's first F is alone */
                            want = 2 * (m - 2 * p + r + 1) + p - 1 - r - (r == p - 1);
                        CHECK(n == (want < 0 ? 0 : want) || (k == 1 && m < p),
                              "kind %d p %d m %d rank %d: %d pairs, not %d", kinds[k], p, m, r, n, want);
                    }
                    schedules_close(&set);
                }
}

/* A B that stands beside the F of its own microbatch, or beside a B, is no pair. */
static void wrong_pairs(void)
{
    PipeShape s = shape_of(SCHEDULE_1F1B, 1, 1, 3);
    for (int at = 1; at <= 3; at += 2) {
        ScheduleSet set;
        char why[256] = "";
        schedules_open(&set, &s);          /* F0 B0 F1 B1 F2 B2 */
        if (at == 3)                       /* F0 F1 B0 B1 */
            swap(&set.rank[0].list[1], &set.rank[0].list[2]);
        set.rank[0].list[at].join = 1;
        CHECK(!schedules_check(&set, why, sizeof why) && strstr(why, "stands beside no F of another"), "%s",
              why);
        schedules_close(&set);
    }
}

static void hashes(void)
{
    ScheduleSet a, b;
    PipeShape s = shape_of(SCHEDULE_ZB_V, 4, 2, 8);
    schedules_open(&a, &s);
    schedules_open(&b, &s);
    CHECK(schedules_hash(&a) == schedules_hash(&b), "the same lists");
    swap(&b.rank[3].list[0], &b.rank[3].list[1]);
    CHECK(schedules_hash(&a) != schedules_hash(&b), "two instructions swapped");
    schedules_close(&b);
    s.m = 9;
    schedules_open(&b, &s);
    CHECK(schedules_hash(&a) != schedules_hash(&b), "another number of microbatches");
    schedules_close(&a);
    schedules_close(&b);
}

/* ---- speed ---- */

static double cpu_seconds(PipeShape s, int64_t *n)
{
    double best = 1e9;
    for (int k = 0; k < 3; k++) {
        ScheduleSet set;
        clock_t start = clock();
        schedules_open(&set, &s);
        check_set(&set, "speed");
        best = fmin(best, (double)(clock() - start) / CLOCKS_PER_SEC);
        *n = 0;
        for (int r = 0; r < s.p; r++)
            *n += set.rank[r].n;
        schedules_close(&set);
    }
    return best;
}

/* `speed`, for `make bench-schedules`: prints CPU times and checks nothing (figures:
 * tests/BENCHMARKS.md). */
static int speed(void)
{
    static const struct { int kind, p, v, m; } of[] = {
        {SCHEDULE_GPIPE, 64, 1, 1024}, {SCHEDULE_1F1B, 64, 1, 1024}, {SCHEDULE_INTERLEAVED, 64, 2, 1024},
        {SCHEDULE_ZB_H1, 64, 1, 1024}, {SCHEDULE_ZB_H2, 64, 1, 1024}, {SCHEDULE_ZB_V, 64, 2, 1024},
        {SCHEDULE_V_HALF, 64, 2, 1024}, {SCHEDULE_V_MIN, 64, 2, 1024}, {SCHEDULE_INTERLEAVED, 64, 8, 1024},
    };
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        int64_t n;
        double took = cpu_seconds(shape_of(of[i].kind, of[i].p, of[i].v, of[i].m), &n);
        printf("%-11s v %d: %7lld instructions, %.3f s of CPU\n", schedule_name(of[i].kind), of[i].v,
               (long long)n, took);
    }
    return 0;
}

/* Breadth first, a rank holds the most microbatches at once: those of every chunk but the last, and more. No
 * slot is taken twice, though there are more of them than 16 bits count. */
static void many_slots(void)
{
    enum { M = 33000, V = 3 };
    PipeShape s = {.kind = SCHEDULE_INTERLEAVED, .p = 2, .v = V, .m = M, .group = M};
    char *taken = xcalloc((size_t)V * M, 1);
    ScheduleSet set;
    Schedule x;
    schedules_open(&set, &s);
    schedule_open(&x, &set, 0, &(Expand){.units = (const int[]){1, 1, 1}});
    for (int i = 0, wrong = 0; i < x.lives && !wrong; i++) {
        const Life *l = &x.life[i];
        int slot = x.slot[l->kind][l->at];
        wrong = l->kind == SLOT_FW && (slot < 0 || slot >= V * M || taken[slot] == !l->ends);
        CHECK(!wrong, "microbatch %d of chunk %d: slot %d %s", (int)l->at % M, (int)l->at / M, slot,
              l->ends ? "is free already" : "is taken");
        if (l->kind == SLOT_FW && !wrong)
            taken[slot] = !l->ends;
    }
    CHECK(x.slots[SLOT_FW] > (V - 1) * M, "only %d slots", x.slots[SLOT_FW]);
    schedule_close(&x);
    schedules_close(&set);
    free(taken);
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "speed"))
        return speed();
    int whole = argc > 1 && !strcmp(argv[1], "long");
    every_schedule();
    pairs();
    wrong_pairs();
    groups();
    large_schedules(whole);
    random_schedules(whole ? 200000 : 20000);
    mutants(whole ? 100000 : 10000);
    expansion();
    bounds();
    many_slots();
    hashes();
    printf("# places take %.3f of what is held, slots %.3f\n", (double)packed[1] / (double)packed[0],
           (double)packed[2] / (double)packed[0]);
    return test_end();
}
