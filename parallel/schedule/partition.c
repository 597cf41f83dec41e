/* partition -- units shared out over the ranks: a search by moves, then by annealing */
#include "partition.h"
#include "base.h"
#include "bound.h"
#include "search.h"
#include "share.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { REFINE = 2000000 };    /* instructions played to improve the order of what was found */
enum { SETTLES = 4 };          /* attempts to make an order fit */
enum { PLAYED = 100000000, PLAYS = 30000 };    /* instructions and orders played to anneal, at most */
enum { STARTS = 3 };           /* rules from which half of them are played */
enum { MOVES = 20, FREES = 30 };               /* one of so many changes moves units; gives bytes back */
static const double SPARE = 0.02;              /* share of a rank's memory that is left free at first */
static const double HOPELESS = 0.25;           /* above what is to be beaten: too much for moves to mend */
static const double HEAT = 0.003;              /* of a step, by which a change may lengthen it at first */

/* ---- partitions ---- */

/* How uneven a partition is: the largest work of a rank; among equals, how uneven stages are. */
static double unevenness(const Share *s, const Partition *out)
{
    double most = 0, squares = 0, all = work(s, 0, s->n);
    for (int r = 0; r < s->p; r++) {
        double sum = 0;
        for (int c = 0; c < out->v; c++) {
            int i = place_stage(out->vee, s->p, r, c);
            double w = work(s, out->first[i], out->first[i + 1]);
            sum += w;
            squares += w * w;
        }
        most = fmax(most, sum);
    }
    return most + 1e-3 * squares / (all > 0 ? all : 1);
}

/* Units that a stage needs: in a loop only the first and the last one need any. */
static int least_units(const Share *s, const Partition *out, int stage)
{
    return out->vee || out->v == 1 || stage == 0 || stage == s->p * out->v - 1;
}

/* Whether stages begin in order and have the units that they need. */
static int in_order(const Share *s, const Partition *out)
{
    for (int i = 0; i < s->p * out->v; i++)
        if (out->first[i + 1] < out->first[i] + least_units(s, out, i))
            return 0;
    return 1;
}

static void shift(Partition *out, int k, int count, int by)
{
    for (int i = 0; i < count; i++)
        out->first[k + i] += by;
}

/* Shares units out by their work, evenly over the stages, then over the ranks as evenly as moves of units
 * from stage to stage allow. */
static void spread(Share *s, Partition *out)
{
    int stages = s->p * out->v, better = 1;
    double all = work(s, 0, s->n);
    for (int k = 1, i = 1; k <= stages; k++) {
        while (i < s->n - 1 && work(s, 0, i) < all * k / stages - work(s, i, i + 1) / 2)
            i++;
        int least = out->first[k - 1] + least_units(s, out, k - 1), left = out->vee ? stages - k : 1;
        i = i < least ? least : i > s->n - left ? s->n - left : i;
        out->first[k] = k == stages ? s->n : i;
    }
    double value = unevenness(s, out);
    while (better--)
        for (int count = 1; count < stages; count++)
            for (int k = 1; k + count <= stages; k++)
                for (int by = -1; by <= 1; by += 2) {
                    shift(out, k, count, by);
                    double moved = in_order(s, out) ? unevenness(s, out) : INFINITY;
                    if (moved < value * (1 - 1e-12)) {
                        value = moved;
                        better = 1;
                    } else {
                        shift(out, k, count, -by);
                    }
                }
}

/* ---- a partition, ordered ---- */

PipeShape partition_shape(const Units *u, const Partition *p, double *cost)
{
    int n = u->shape.p * p->v;
    PipeShape shape = {.kind = SCHEDULE_CUSTOM, .p = u->shape.p, .v = p->v, .m = u->shape.m, .vee = p->vee,
                       .lists = p->list, .hop = u->shape.hop, .weight_share = u->shape.weight_share};
    memset(cost, 0, 3 * (size_t)n * sizeof *cost);
    for (int k = 0; k < 3; k++) {
        for (int s = 0; s < n; s++)
            for (int i = p->first[s]; i < p->first[s + 1]; i++)
                cost[k * n + s] += u->cost[k][i];
        shape.cost[k] = cost + k * n;
    }
    return shape;
}

/* Bytes that rank r takes beside those of microbatches. */
static double beside(const Share *s, const Partition *out, int r)
{
    double fixed = 0, scratch = 0;
    for (int c = 0; c < out->v; c++) {
        int stage = place_stage(out->vee, s->p, r, c);
        for (int i = out->first[stage]; i < out->first[stage + 1]; i++) {
            fixed += s->u->fixed[i];
            scratch = fmax(scratch, s->u->scratch[i]);
        }
    }
    return fixed + scratch;
}

/* Fills room and data. Where memory is not bounded it is microbatches that count. */
static void weigh(Share *s, const Partition *out)
{
    const Units *u = s->u;
    double limit = out->v * (u->shape.limit ? u->shape.limit : u->shape.p), w = u->shape.weight_share;
    for (int r = 0; r < s->p; r++)
        s->room[r] = u->fixed ? u->room - beside(s, out, r) - s->less[r] : limit;
    for (int stage = 0; stage < s->p * out->v; stage++) {
        double held = 0, arrived = 0, pending = 0;
        for (int i = out->first[stage]; i < out->first[stage + 1] && u->fixed; i++) {
            held += u->held[i];
            arrived += u->arrived ? u->arrived[i] : 0;
            pending += u->pending ? u->pending[i] : 0;
        }
        s->data[SLOT_FD][stage] = u->fixed ? arrived : 1 - w;
        s->data[SLOT_FW][stage] = u->fixed ? held - arrived : w;
        s->data[SLOT_DW][stage] = pending;
    }
}

/* Microbatches of a rank, as Simulation.peak counts them, that no rank has room for more of. */
static double most_held(const Share *s, const Partition *out)
{
    double most = 0;
    for (int r = 0; r < s->p; r++) {
        double least = INFINITY;
        for (int c = 0; c < out->v; c++) {
            int i = place_stage(out->vee, s->p, r, c);
            least = fmin(least, s->data[SLOT_FD][i] + s->data[SLOT_FW][i]);
        }
        most = fmax(most, least > 0 ? s->room[r] / least : INFINITY);
    }
    return fmin(most / out->v, s->u->shape.m);
}

/* Bytes that rank r's list takes. */
static double bytes_of(const Share *s, const Partition *out, const ScheduleSet *set, int r)
{
    int *units = xcalloc((size_t)out->v, sizeof *units);
    size_t *bytes = xcalloc(SLOT_KINDS * (size_t)out->v, sizeof *bytes);
    const size_t *of[SLOT_KINDS];
    for (int k = 0; k < SLOT_KINDS; k++) {
        of[k] = bytes + k * out->v;
        for (int c = 0; c < out->v; c++)
            bytes[k * out->v + c] = (size_t)s->data[k][place_stage(out->vee, s->p, r, c)];
    }
    for (int c = 0; c < out->v; c++)
        units[c] = 1;
    Schedule list;
    schedule_open(&list, set, r, &(Expand){.units = units});
    schedule_pack(&list, of);
    double all = beside(s, out, r) + (double)list.bytes;
    schedule_close(&list);
    free(bytes);
    free(units);
    return all;
}

/* The makespan of a V in zb-v's order, of a loop in interleaved 1F1B's, of one stage a rank in 1F1B's;
 * INFINITY: it does not fit. lists: as in ordered. */
static double as_published(const Share *s, const Partition *out, PipeShape shape, InstrList *lists)
{
    ScheduleSet set;
    Simulation sim;
    int fits = 1;
    shape.kind = out->vee ? SCHEDULE_ZB_V : out->v > 1 ? SCHEDULE_INTERLEAVED : SCHEDULE_1F1B;
    shape.weight_share = 1;                    /* so that W does not wait for ever */
    schedules_open(&set, &shape);
    for (int r = 0; r < s->p && s->u->fixed; r++)
        fits &= bytes_of(s, out, &set, r) <= s->u->room;
    simulate(&set, &sim, 0);
    double makespan = sim.makespan;
    simulation_close(&sim);
    schedules_close(&set);
    if (lists)
        schedule_generate(&shape, lists);
    return fits ? makespan : INFINITY;
}

static Held held_of(const Share *s)
{
    return (Held){.room = s->room, .data = {s->data[SLOT_FD], s->data[SLOT_FW], s->data[SLOT_DW]},
                  .early = s->u->fixed != NULL, .strict = s->strict, .whole = s->u->whole};
}

/* Orders a partition's work unless its bound is no better than what there is; returns its makespan, or
 * INFINITY.
 *   budget, lists  in out  as search_order */
static double ordered(Share *s, Partition *out, Favourites *known, int64_t budget, InstrList *lists)
{
    PipeShape shape = partition_shape(s->u, out, s->cost);
    weigh(s, out);
    for (int r = 0; r < s->p; r++)
        if (s->room[r] < 0)
            return INFINITY;
    if (!lists && step_bound(&shape, most_held(s, out)) >= out->makespan * (1 - 1e-9))
        return INFINITY;
    out->tried++;
    if (out->published)
        return as_published(s, out, shape, lists);
    Held held = held_of(s);
    return search_order(&shape, &held, known, budget, lists);
}

/* ---- moves ---- */

/* Tries to move the beginnings of `count` successive stages from stage k on by `by` units. 1: that is
 * better. */
static int move(Share *s, Partition *out, Favourites *known, int k, int count, int by)
{
    shift(out, k, count, by);
    double value = out->tried < s->most && in_order(s, out) ? ordered(s, out, known, 0, NULL) : INFINITY;
    if (value < out->makespan * (1 - 1e-9)) {
        out->makespan = value;
        return 1;
    }
    shift(out, k, count, -by);
    return 0;
}

/* Moves units between stages as long as that helps, until `most` partitions in all have been ordered. */
static void descend(Share *s, Partition *out, Favourites *known, int most)
{
    int stages = s->p * out->v, better = 1;
    s->most = most;
    while (better--)
        for (int count = 1; count < stages; count++)
            for (int k = 1; k + count <= stages && out->tried < most; k++)
                for (int by = -2; by <= 2; by++)
                    if (by && move(s, out, known, k, count, by))
                        better = 1;
}

static int hopeful(const Share *s, const Partition *p)
{
    return !s->u->beat || p->makespan < s->u->beat * (1 + HOPELESS);
}

/* Descends from `trial`, whose boundaries are given, and keeps in `out` what is shorter. */
static void try_from(Share *s, Partition *out, Partition *trial, Favourites *known, int most)
{
    trial->makespan = INFINITY;
    trial->tried = out->tried;
    trial->makespan = ordered(s, trial, known, 0, NULL);
    if (hopeful(s, trial))
        descend(s, trial, known, most);
    out->tried = trial->tried;
    if (trial->makespan < out->makespan) {
        out->makespan = trial->makespan;
        memcpy(out->first, trial->first, (size_t)(s->p * out->v + 1) * sizeof *out->first);
    }
}

/* Packs the lists of `set`. Returns 0, and adds to less [p] what a rank needs more than it has, if one
 * does. */
static int packs(const Share *s, const Partition *out, const ScheduleSet *set, double *less)
{
    int fits = 1;
    for (int r = 0; r < s->p && s->u->fixed; r++) {
        double more = bytes_of(s, out, set, r) - s->u->room;
        less[r] += fmax(0, more);
        fits &= more <= 0;
    }
    return fits;
}

/* Lowers and times the lists of a partition. Returns 0, and leaves more free, where a rank needs more than it
 * has. */
static int settles(Share *s, Partition *out)
{
    ScheduleSet set;
    Simulation sim;
    PipeShape shape = partition_shape(s->u, out, s->cost);
    schedules_open(&set, &shape);
    int fits = packs(s, out, &set, s->less);
    simulate(&set, &sim, 0);
    out->makespan = sim.makespan;              /* the search rounds times to ticks */
    simulation_close(&sim);
    schedules_close(&set);
    return fits;
}

/* Empties the lists. */
static void lists_open(const Share *s, Partition *out)
{
    size_t p = (size_t)s->p, most = 3 * (size_t)out->v * (size_t)s->u->shape.m;
    free(out->list);
    free(out->all);
    out->list = xcalloc(p, sizeof *out->list);
    out->all = xcalloc(p * most, sizeof *out->all);
    for (size_t r = 0; r < p; r++)
        out->list[r] = (InstrList){0, out->all + r * most};
}

/* Orders the partition with all rules and writes the lists, with more left free until they fit. */
static void finish(Share *s, Partition *out, Favourites *best)
{
    int fits = 0;
    for (int i = 0; i < SETTLES && !fits; i++) {
        best->n = i % 2 || i > 2 ? best->n : 0;        /* all rules, then the best of them */
        lists_open(s, out);
        if (isinf(ordered(s, out, best, REFINE, out->list)))
            break;
        fits = settles(s, out);
    }
    if (!fits)
        out->makespan = INFINITY;
}

/* ---- annealing ---- */

/* A partition, the rule of its order, bytes left free, and the makespan. */
typedef struct {
    int *first;                /* [stages + 1] */
    Rule rule;
    double *less;              /* [p] */
    double makespan;
} Trial;

typedef struct {
    Share s;
    Greedy g;
    Partition out;             /* what was played last; lists where that was asked for */
    Trial now, was, best;      /* `best` fits into memory, once its lists are packed */
    uint64_t seed;             /* of what is drawn */
} Anneal;

static void trial_open(Trial *t, const Anneal *a)
{
    t->first = xcalloc((size_t)a->g.n + 1, sizeof *t->first);
    t->less = xcalloc((size_t)a->g.p, sizeof *t->less);
    t->rule = rule_open(&a->g);
    t->makespan = INFINITY;
}

static void trial_close(Trial *t)
{
    free(t->first);
    free(t->less);
    rule_close(&t->rule);
}

static void trial_copy(const Anneal *a, Trial *to, const Trial *from)
{
    memcpy(to->first, from->first, ((size_t)a->g.n + 1) * sizeof *to->first);
    memcpy(to->less, from->less, (size_t)a->g.p * sizeof *to->less);
    rule_copy(&to->rule, &from->rule);
    to->makespan = from->makespan;
}

/* Takes the stages of a trial. Returns 0 if a rank cannot hold one microbatch of each of its stages. */
static int trial_load(Anneal *a, const Trial *t)
{
    Share *s = &a->s;
    int fits = 1;
    memcpy(a->out.first, t->first, ((size_t)a->g.n + 1) * sizeof *t->first);
    memcpy(s->less, t->less, (size_t)s->p * sizeof *t->less);
    PipeShape shape = partition_shape(s->u, &a->out, s->cost);
    weigh(s, &a->out);
    for (int r = 0; r < s->p; r++)
        fits &= s->room[r] >= 0;
    return fits && greedy_stages(&a->g, &shape);
}

static void trial_play(Anneal *a, Trial *t)
{
    int fits = trial_load(a, t) && greedy_play(&a->g, &t->rule);
    t->makespan = fits ? (double)greedy_score(&a->g).makespan / a->g.scale : INFINITY;
}

/* Writes the lists of what was played last. */
static void write_lists(Anneal *a)
{
    lists_open(&a->s, &a->out);
    greedy_lists(&a->g, a->g.trial, a->out.list);
}

/* Changes a trial at random: the rule, or where successive stages begin; some times also what it leaves free.
 *   apart  in  as of rule_change */
static void trial_change(Anneal *a, Trial *t, int apart)
{
    uint64_t *seed = &a->seed;
    int stages = a->g.n;
    if (!draw(seed, FREES))
        t->less[draw(seed, a->g.p)] *= 0.5;
    if (draw(seed, MOVES)) {
        rule_change(&a->g, &t->rule, apart, seed);
        return;
    }
    int k = 1 + draw(seed, stages - 1), count = draw(seed, 2) ? 1 : 1 + draw(seed, stages - k);
    int by = draw(seed, 2) ? 1 : -1;
    by *= draw(seed, 6) ? 1 : 2;
    memcpy(a->out.first, t->first, ((size_t)stages + 1) * sizeof *t->first);
    shift(&a->out, k, count, by);
    if (in_order(&a->s, &a->out))
        memcpy(t->first, a->out.first, ((size_t)stages + 1) * sizeof *t->first);
}

/* Whether what was played last fits, once its lists are packed; else more is left free in `t`. */
static int fits_packed(Anneal *a, Trial *t)
{
    ScheduleSet set;
    write_lists(a);
    PipeShape shape = partition_shape(a->s.u, &a->out, a->s.cost);
    schedules_open(&set, &shape);
    int fits = packs(&a->s, &a->out, &set, t->less);
    schedules_close(&set);
    return fits;
}

/* Simulated annealing (Kirkpatrick et al. 1983): `plays` changes of `now`, of which those that lengthen the
 * step stay the less often the more they do and the fewer are left. Keeps in `best` what is shorter. */
static void walk(Anneal *a, int plays, int apart)
{
    trial_play(a, &a->now);
    for (int i = 0; i < plays && a->best.makespan > a->out.bound * (1 + 1e-4); i++) {
        double chance = (draw(&a->seed, 1 << 20) + 1.0) / (1 << 20);
        trial_copy(a, &a->was, &a->now);
        trial_change(a, &a->now, apart);
        trial_play(a, &a->now);
        if (a->now.makespan < a->best.makespan) {
            if (fits_packed(a, &a->now))
                trial_copy(a, &a->best, &a->now);
            else
                trial_play(a, &a->now);        /* with more left free */
        }
        double heat = HEAT * (1 - (double)i / plays) * a->was.makespan;
        if (a->now.makespan > a->was.makespan - heat * log(chance))
            trial_copy(a, &a->now, &a->was);
    }
}

/* Makes `now` begin at a partition. */
static void begin_at(Anneal *a, const int *first)
{
    memcpy(a->now.first, first, ((size_t)a->g.n + 1) * sizeof *first);
    for (int r = 0; r < a->s.p; r++)
        a->now.less[r] = a->s.u->fixed ? SPARE * a->s.u->room : 0;
    trial_load(a, &a->now);
}

/* Walks from a partition, with the best rules of a grid for it. */
static void walk_from(Anneal *a, const int *first, int plays)
{
    Favourites known = {0};
    begin_at(a, first);
    a->out.makespan = INFINITY;
    ordered(&a->s, &a->out, &known, 0, NULL);
    for (int k = 0; k < known.n && k < STARTS; k++) {
        begin_at(a, first);
        search_rule(&a->g, known.rule[k], &a->now.rule);
        walk(a, plays, 0);
    }
}

/* Puts the best of what was played in the place of `out`, if its step is shorter. */
static void take_best(Anneal *a, Partition *out)
{
    trial_play(a, &a->best);
    write_lists(a);
    if (settles(&a->s, &a->out) && a->out.makespan < out->makespan) {
        Partition before = *out;
        *out = a->out;
        a->out = before;
    }
}

void partition_improve(Partition *out, const Units *u)
{
    int stages = u->shape.p * out->v;
    BUG_ON(stages < 2);
    Anneal a = {.out = {.v = out->v, .vee = out->vee, .bound = out->bound, .hoped = out->hoped}};
    Partition other = a.out;
    a.out.first = xcalloc((size_t)stages + 1, sizeof *out->first);
    other.first = xcalloc((size_t)stages + 1, sizeof *out->first);
    share_open(&a.s, u, out->v, out->vee, 0);
    PipeShape shape = partition_shape(u, out, a.s.cost);
    weigh(&a.s, out);
    Held held = held_of(&a.s);
    greedy_open(&a.g, &shape, &held);
    int64_t each = a.g.p * (int64_t)greedy_length(&a.g);
    int plays = PLAYED / each < PLAYS ? (int)(PLAYED / each) : PLAYS;
    trial_open(&a.now, &a);
    trial_open(&a.was, &a);
    trial_open(&a.best, &a);
    walk_from(&a, out->first, plays / (4 * STARTS));
    if (out->v <= 2)
        share_bound(&a.s, out->v, out->vee, other.first);
    else
        spread(&a.s, &other);
    walk_from(&a, other.first, plays / (4 * STARTS));
    trial_copy(&a, &a.now, &a.best);
    walk(&a, plays / 2, 1);
    int tried = out->tried + (int)(a.g.played / each);
    if (isfinite(a.best.makespan))
        take_best(&a, out);
    out->tried = tried;
    partition_close(&a.out);
    partition_close(&other);
    trial_close(&a.now);
    trial_close(&a.was);
    trial_close(&a.best);
    greedy_close(&a.g);
    share_close(&a.s);
}

void partition_search(Partition *out, const Units *u, int v, int vee, int published, int most)
{
    Share s;
    Favourites known = {0};
    *out = (Partition){.v = v, .vee = vee, .published = published, .makespan = INFINITY,
                       .first = xcalloc((size_t)(u->shape.p * v) + 1, sizeof *out->first)};
    BUG_ON((vee && v != 2) || (published && !vee && v != 1));
    share_open(&s, u, v, vee, most);
    Partition trial = *out;
    size_t bytes = ((size_t)(s.p * v) + 1) * sizeof *trial.first;
    trial.first = xcalloc(1, bytes);
    out->bound = share_bound(&s, v, vee, trial.first);
    if (v <= 2 && isfinite(out->bound))
        try_from(&s, out, &trial, &known, most / 2);
    if (v > 1 && isfinite(out->bound)) {
        Favourites others = {0};
        double before = out->makespan;
        spread(&s, &trial);
        try_from(&s, out, &trial, &others, out->tried + most / 2);
        known = out->makespan < before ? others : known;
    }
    out->hoped = out->makespan;
    if (!hopeful(&s, out))
        out->makespan = out->hoped = INFINITY;
    if (isfinite(out->makespan))
        finish(&s, out, &known);
    if (isinf(out->makespan) && isfinite(out->hoped) && u->fixed && !published && !u->beat) {
        s.strict = 1;                          /* from there to partitions whose lists fit */
        memset(s.less, 0, (size_t)s.p * sizeof *s.less);
        memcpy(trial.first, out->first, bytes);
        known.n = 0;
        try_from(&s, out, &trial, &known, out->tried + most / 2);
        if (isfinite(out->makespan))
            finish(&s, out, &known);
    }
    free(trial.first);
    share_close(&s);
}

void partition_even(Partition *out, const Units *u, int v)
{
    Share s;
    int stages = u->shape.p * v, each = (u->n - 2) / stages;
    *out = (Partition){.v = v, .published = 1, .makespan = INFINITY,
                       .first = xcalloc((size_t)stages + 1, sizeof *out->first)};
    BUG_ON(each * stages != u->n - 2);
    for (int i = 1; i <= stages; i++)
        out->first[i] = 1 + i * each + (i == stages);
    share_open(&s, u, v, 0, 0);
    lists_open(&s, out);
    out->makespan = ordered(&s, out, NULL, 0, out->list);
    share_close(&s);
}

void partition_close(Partition *p)
{
    free(p->first);
    free(p->list);
    free(p->all);
    *p = (Partition){0};
}
