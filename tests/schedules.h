/* schedules -- shapes to test with, and a replay of instruction lists written without the code under test: it
 * shares only the list's format and the placement's definition. */
#ifndef SCHEDULES_H
#define SCHEDULES_H
#include "base.h"
#include "schedule.h"
#include "test.h"

static inline int is_v(const PipeShape *s)
{
    int place = schedule_info[s->kind].place;
    return place == PLACE_VEE || (place == PLACE_GIVEN && s->vee);
}

static inline int chunks_of(ScheduleKind k, int v)
{
    return k == SCHEDULE_INTERLEAVED ? v : schedule_info[k].chunks;
}

/* Shape of a schedule of p ranks and m microbatches. v: chunks a rank, used by interleaved alone. */
static inline PipeShape shape_of(int kind, int p, int v, int m)
{
    ScheduleKind k = (ScheduleKind)kind;
    return (PipeShape){.kind = k, .p = p, .v = chunks_of(k, v), .m = m, .weight_share = 1};
}

/* 1: the schedule has a generator, and it makes lists of p ranks and m microbatches. interleaved is
 * tried with whole groups of p microbatches or with one group. The search of zb-auto has its own test
 * (test_search.c). */
static inline int fits(int kind, int p, int m)
{
    return kind != SCHEDULE_CUSTOM && kind != SCHEDULE_ZB_AUTO && m >= p * schedule_info[kind].least &&
           (kind != SCHEDULE_INTERLEAVED || m <= p || m % p == 0);
}

static inline void check_set(const ScheduleSet *set, const char *what)
{
    const PipeShape *s = &set->shape;
    char why[256] = "";
    CHECK(schedules_check(set, why, sizeof why), "%s kind %d p %d v %d m %d: %s", what, s->kind, s->p, s->v,
          s->m, why);
}

/* Random number in [0, n) of the tests' own generator, xorshift. */
static uint64_t dice_state = 88172645463325252ull;
static inline int dice(int n)
{
    dice_state ^= dice_state << 13;
    dice_state ^= dice_state >> 7;
    dice_state ^= dice_state << 17;
    return (int)(dice_state % (uint64_t)n);
}

/* ---- the replay ---- */

typedef struct {
    const ScheduleSet *set;
    int pc[64],              /* [rank] position of the next instruction; beside: of the next compute */
        message[64];         /* [rank] position of the next message, when messages run beside compute */
    double at[64],           /* [rank] end of the last compute */
        sent[64];            /* [rank] end of the last message */
    double *have[2],         /* [F, D][stage*m + mb] time when the input has arrived; -1: not yet */
        *made[2];            /* [F, D][stage*m + mb] time when the output was computed; -1: not yet */
    int ok;                  /* bool: no instruction used data before the data had arrived */
} Model;

static inline int stage_at(const PipeShape *s, int rank, int chunk)
{
    return is_v(s) && chunk ? 2 * s->p - 1 - rank : chunk * s->p + rank;
}

static inline int rank_of(const PipeShape *s, int stage)
{
    return is_v(s) && stage >= s->p ? 2 * s->p - 1 - stage : stage % s->p;
}

static inline double time_of(const PipeShape *s, int k, int stage)
{
    return s->cost[k] ? s->cost[k][stage] : 1;
}

/* Runs compute instruction i of rank r. Returns 0 when its input has not arrived; with `early` a missing
 * input is an error, and the return value is 1. */
static inline int model_compute(Model *o, int r, const Instr *i, int early)
{
    const PipeShape *s = &o->set->shape;
    int stage = stage_at(s, r, i->chunk), last = s->p * s->v - 1, at = stage * s->m + i->mb,
        back = i->op != I_F;
    double need = back && stage == last ? o->made[0][at] : o->have[back][at];
    if (i->op == I_W)
        need = o->made[1][at];
    if (back && i->op != I_W && o->made[0][at] < 0)
        need = -1;
    if (need < 0) {
        o->ok &= !early;
        return early;
    }
    double start = i->op == I_W || need < o->at[r] ? o->at[r] : need;
    double took = i->op == I_F   ? time_of(s, 0, stage)
                  : i->op == I_W ? time_of(s, 2, stage)
                                 : time_of(s, 1, stage);
    o->at[r] = start + took + (i->op == I_B ? time_of(s, 2, stage) : 0);
    if (i->op == I_W)
        return 1;
    o->made[back][at] = o->at[r];
    int next = stage + (back ? -1 : 1);
    if (next >= 0 && next <= last && rank_of(s, next) == r)
        o->have[back][next * s->m + i->mb] = o->at[r];
    return 1;
}

/* 1: instruction b of rank q receives what send a of rank r sends. */
static inline int pair(const PipeShape *s, int r, const Instr *a, int q, const Instr *b)
{
    return ((a->op == I_SA && b->op == I_RA) || (a->op == I_SG && b->op == I_RG)) && a->mb == b->mb &&
           stage_at(s, q, b->chunk) == stage_at(s, r, a->chunk) + (a->op == I_SA ? 1 : -1);
}

static inline int is_message(const Instr *i) { return i->op >= I_SA && i->op <= I_RG; }

/* Next instruction of rank r; NULL: none is left. beside: messages and compute are two queues, each in the
 * list's order, and `message` picks one. */
static inline const Instr *head(Model *o, int r, int beside, int message)
{
    const InstrList *l = &o->set->rank[r];
    int *pc = message && beside ? &o->message[r] : &o->pc[r];
    while (beside && *pc < l->n && is_message(&l->list[*pc]) != message)
        ++*pc;
    return *pc < l->n ? &l->list[*pc] : NULL;
}

/* Runs send a of rank r when its receive is the next instruction of the other rank. Returns 0 when it
 * waits. */
static inline int model_send(Model *o, int r, const Instr *a, int beside)
{
    const PipeShape *s = &o->set->shape;
    int stage = stage_at(s, r, a->chunk) + (a->op == I_SA ? 1 : -1), q = rank_of(s, stage);
    int back = a->op == I_SG;
    double made = o->made[back][stage_at(s, r, a->chunk) * s->m + a->mb];
    const Instr *b = head(o, q, beside, 1);
    if (!b || !is_message(b) || !pair(s, r, a, q, b))
        return 0;
    if (made < 0) {
        o->ok &= beside;           /* the data is not computed: a send beside compute waits for it */
        return !beside;
    }
    double t = made > o->sent[r] ? made : o->sent[r];
    t = o->sent[q] > t ? o->sent[q] : t;
    t += s->hops ? s->hops[stage_at(s, r, a->chunk)] : s->hop;
    o->have[back][stage * s->m + a->mb] = t;
    if (beside)
        o->sent[r] = o->sent[q] = t, o->message[r]++, o->message[q]++;
    else
        o->pc[r]++, o->pc[q]++;
    return 1;
}

/* Replays the lists of all ranks to their end. beside 0: a rank has one queue for compute and messages.
 * beside 1: messages have a queue of their own. A send and its receive end at the same time. Returns the
 * time of the step; -1: ranks wait for each other, or data is used before it has arrived. */
static inline double model_run(const ScheduleSet *set, int beside)
{
    const PipeShape *s = &set->shape;
    size_t all = (size_t)s->p * (size_t)s->v * (size_t)s->m;
    Model o = {.set = set, .ok = 1};
    o.have[0] = xcalloc(4 * all, sizeof(double));
    o.have[1] = o.have[0] + all;
    o.made[0] = o.have[1] + all;
    o.made[1] = o.made[0] + all;
    for (size_t i = 0; i < 4 * all; i++)
        o.have[0][i] = i < (size_t)s->m ? 0 : -1;
    for (int moved = 1; moved && o.ok;) {
        moved = 0;
        for (int r = 0; r < s->p; r++)
            for (const Instr *i; o.ok;) {
                int one = 0;
                if ((i = head(&o, r, beside, 0)) && !is_message(i) && model_compute(&o, r, i, !beside))
                    one = 1, o.pc[r]++;
                if (o.ok && (i = head(&o, r, beside, 1)) && (i->op == I_SA || i->op == I_SG))
                    one |= model_send(&o, r, i, beside);
                if (!one)
                    break;
                moved = 1;
            }
    }
    double end = 0;
    for (int r = 0; r < s->p; r++) {
        o.ok &= !head(&o, r, beside, 0) && !head(&o, r, beside, 1);
        end = o.at[r] > end ? o.at[r] : end;
    }
    free(o.have[0]);
    return o.ok ? end : -1;
}
#endif
