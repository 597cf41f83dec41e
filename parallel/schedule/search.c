/* search -- orders F, D and W of every rank by search, for any costs, stages and bounds on memory (Qi et
 * al. 2023, arXiv:2401.10241, sec 3: the heuristics behind ZB-1p and ZB-2p, for stages placed in any way).
 *
 * A rule plays the ranks forward in time: of the F and D that can run the first in the rule's order of
 * chunks, while memory and the rule's bounds allow F; W where the rank would otherwise wait for longer
 * than the rule allows, or where F has no room. With one stage a rank rules differ in how many
 * microbatches a rank may have between F and D, before its first D and later; in how long a rank waits for
 * D or F before it does W; and in how long F may delay D. With several they differ in the order of F and D
 * of the chunks too, and the bound is for chunk 0, a share of what its rank can hold. The orders of 1F1B,
 * ZB-H1 and ZB-H2 (one stage a rank) and all rules of a grid are played. The best is improved by changing
 * its bounds rank by rank, then by exchanging neighbours on the critical path. The shortest step wins,
 * among equals the one with the shortest rank (Simulation.step_rate, then rate).
 *
 * Time is whole ticks, nothing is random, work is counted, not timed: equal shapes give equal lists. */
#include "search.h"
#include "base.h"
#include "generators.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TICKS = 1 << 20, RANK_BITS = 13 };      /* ticks of the longest cost */
#define NEVER INT64_MAX
enum { STRING_CHUNKS = UINT8_MAX / 3 };

/* Ticks of a step. span: the longest time of a rank, from its first start to its last end. */
typedef struct { int64_t makespan, span; } Score;

/* A rule. */
typedef struct {
    int *first, *later;            /* [p] most microbatches of chunk 0 between F and D: before the first D of
                                    * the rank; after it */
    double patience;               /* a rank idles rather than do W for less than this share of W's time */
    double delay;                  /* F may delay D by this share of F's time */
    int hungry;                    /* bool: W goes first while F has no room */
    uint8_t turn[2 * STRING_CHUNKS]; /* [2v] which goes first of those that can run: chunk * 3 + 0 F, 1 D */
} Greed;

typedef struct {
    int p, v, m, n;                /* n: stages */
    int *rank, *stage;             /* [n] rank of a stage; stage at rank * v + chunk */
    int64_t *cost[3];              /* [n] ticks of F, D, W */
    int64_t *hop[2];               /* [n] ticks of the message after F, after D; 0: it stays on its rank */
    Held has;
    double *need;                  /* [n] FD and FW of a stage and of those of later chunks of its rank */
    double *quota;                 /* [p] microbatches of chunk 0 that a rank has room for, by the times that
                                    * those of its chunks are held */
    uint8_t *best, *trial;         /* [p][3vm] strings: 3 * chunk + 0 F, 1 D, 2 W; microbatches by count */
    Score score, least;            /* of `best`; a bound that no order can beat */
    Score last;                    /* of the rule played last */
    int64_t *ready[2];             /* [n*m] when the input of F, of D is there; -1: not known yet */
    int64_t *at, *began;           /* [p] when the rank is free; when its first F started */
    int (*done)[3];                /* [n] F, D, W so far */
    int *begun, *returned;         /* [p] instructions, D so far */
    double *held;                  /* [p] of what a rank has, held now */
    int64_t *start, *was;          /* [p][3vm] start times: of the last replay; of the string in work */
    int *place;                    /* [3][n][m] index of each F, D, W in the string being improved */
    uint64_t *heap;                /* [events] when a rank looks again: time, then rank */
    int events, room;              /* in the heap; that it has room for */
    int64_t budget;                /* instructions that may still be played */
    int rules;                     /* rules played so far */
    double scale;                  /* ticks of a unit of the costs */
} Search;

/* Most instructions played in a search, about a tenth of a second; rules that are played in any case. */
enum { BUDGET = 4000000, RULES_LEAST = 10 };

/* Instructions of a rank; its part of a string. */
static int length(const Search *s) { return 3 * s->v * s->m; }
static uint8_t *string_of(const Search *s, uint8_t *all, int r)
{
    return all + (size_t)r * (size_t)length(s);
}

/* ---- events ---- */

static void push(Search *s, int64_t time, int rank)
{
    uint64_t key = (uint64_t)time << RANK_BITS | (uint64_t)rank;
    BUG_ON(time >> (63 - RANK_BITS));
    if (s->events == s->room) {
        s->room = s->room ? 2 * s->room : 4 * s->p;
        s->heap = xrealloc(s->heap, (size_t)s->room * sizeof *s->heap);
    }
    int i = s->events++;
    for (; i && s->heap[(i - 1) / 2] > key; i = (i - 1) / 2)
        s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = key;
}

static uint64_t pop(Search *s)
{
    uint64_t top = s->heap[0], key = s->heap[--s->events];
    int i = 0, n = s->events;
    for (int c; (c = 2 * i + 1) < n; i = c) {
        c += c + 1 < n && s->heap[c + 1] < s->heap[c];
        if (s->heap[c] >= key)
            break;
        s->heap[i] = s->heap[c];
    }
    s->heap[i] = key;
    return top;
}

/* Starts a play or replay. */
static void reset(Search *s)
{
    size_t all = (size_t)s->n * (size_t)s->m;
    memset(s->done, 0, (size_t)s->n * sizeof *s->done);
    memset(s->begun, 0, 2 * (size_t)s->p * sizeof *s->begun);
    memset(s->held, 0, (size_t)s->p * sizeof *s->held);
    memset(s->at, 0, (size_t)s->p * sizeof *s->at);
    memset(s->ready[0], 0xff, 2 * all * sizeof **s->ready);
    memset(s->ready[0], 0, (size_t)s->m * sizeof **s->ready);      /* stage 0 waits for no F */
    s->budget -= 3 * (int64_t)all;
}

/* Whether FD of stage i is held from the arrival of its input on. */
static int arrives(const Search *s, int i) { return s->has.early && i && s->rank[i - 1] != s->rank[i]; }

static void hold(Search *s, int i, int kind, int sign)
{
    s->held[s->rank[i]] += sign * s->has.data[kind][i];
}

/* What the next `op` of stage i takes and frees. Gradients are held from the start of the D that makes
 * them. */
static void hold_for(Search *s, int i, int op)
{
    int next = i + 1 < s->n;
    if (op == 2) {
        hold(s, i, SLOT_FW, -1);
        hold(s, i, SLOT_DW, -1);
    } else if (op == 1) {
        hold(s, i, SLOT_FD, -1);
        if (!next)
            hold(s, i, SLOT_DW, 1);
        if (i)
            hold(s, i - 1, SLOT_DW, 1);
    } else {
        if (!arrives(s, i))
            hold(s, i, SLOT_FD, 1);
        hold(s, i, SLOT_FW, 1);
        if (next && arrives(s, i + 1))
            hold(s, i + 1, SLOT_FD, 1);
    }
}

/* Runs the next `op` of stage i at time t. Its result is there when it ends, on another rank a message later.
 * Returns the stage that gets the result; -1: none. */
static int run(Search *s, int i, int op, int64_t t)
{
    int r = s->rank[i], mb = s->done[i][op]++, to = -1;
    int64_t end = s->at[r] = t + s->cost[op][i];
    if (!s->begun[r]++)
        s->began[r] = t;
    s->returned[r] += op == 1;
    hold_for(s, i, op);
    if (op == 0 && i + 1 < s->n)
        s->ready[0][(size_t)(to = i + 1) * (size_t)s->m + (size_t)mb] = end + s->hop[0][i];
    else if (op == 0)
        s->ready[1][(size_t)i * (size_t)s->m + (size_t)mb] = end;
    else if (op == 1 && i)
        s->ready[1][(size_t)(to = i - 1) * (size_t)s->m + (size_t)mb] = end + s->hop[1][i];
    return to;
}

/* Whether rank r has room for more. */
static int has_room(const Search *s, int r, double more)
{
    return s->held[r] + more <= s->has.room[r] * (1 + 1e-9);
}

static Score score_of(const Search *s)
{
    Score z = {0, 0};
    for (int r = 0; r < s->p; r++) {
        int64_t span = s->at[r] - s->began[r];
        z.makespan = s->at[r] > z.makespan ? s->at[r] : z.makespan;
        z.span = span > z.span ? span : z.span;
    }
    return z;
}

static int better(Score a, Score b)
{
    return a.makespan != b.makespan ? a.makespan < b.makespan : a.span < b.span;
}

static int goes_on(const Search *s) { return s->budget > 0 && better(s->least, s->score); }

/* ---- a rule ---- */

/* Whether a rule's bound lets rank r begin one more F of chunk 0. */
static int within(const Search *s, const Greed *rule, int r)
{
    const int *n = s->done[s->stage[r * s->v]];
    return n[0] - n[1] < (s->returned[r] ? rule->later : rule->first)[r];
}

/* When the F or D `what` of rank r may run; NEVER: not before the rank is fed. F of a chunk leaves room for
 * one microbatch of each later chunk, so that what has begun can end.
 *   full  out  bool, set where F waits for room alone */
static int64_t when(const Search *s, const Greed *rule, int r, int what, int *full)
{
    int c = what / 3, op = what % 3, i = s->stage[r * s->v + c];
    const int *n = s->done[i];
    if (n[op] == (op ? n[0] : s->m) || (what == 0 && !within(s, rule, r)))
        return NEVER;
    double there = op == 0 && arrives(s, i) ? s->has.data[SLOT_FD][i] : 0;
    if (op == 0 && !has_room(s, r, s->need[i] - there)) {
        *full = 1;
        return NEVER;
    }
    if (op == 0 && i + 1 < s->n && arrives(s, i + 1) && !has_room(s, s->rank[i + 1], s->need[i + 1]))
        return NEVER;
    int64_t known = s->ready[op][(size_t)i * (size_t)s->m + (size_t)n[op]];
    return known < 0 ? NEVER : known;
}

/* The chunk whose W rank r would do; -1: there is none. */
static int next_w(const Search *s, int r)
{
    int found = -1, most = 0;
    for (int c = 0; c < s->v; c++) {
        const int *n = s->done[s->stage[r * s->v + c]];
        if (n[1] - n[2] > most) {
            most = n[1] - n[2];
            found = c;
        }
    }
    return found;
}

/* What rank r begins at time t, as in a string; -1: nothing until *again (NEVER: until it is fed). */
static int decide(const Search *s, const Greed *rule, int r, int64_t t, int64_t *again)
{
    int full = 0, w = next_w(s, r), found = -1;
    const int *stage = s->stage + r * s->v;
    int64_t next = NEVER, d = NEVER;
    for (int k = 0; k < 2 * s->v; k++) {
        int what = rule->turn[k];
        int64_t at = when(s, rule, r, what, &full);
        found = at <= t && found < 0 ? what : found;
        next = at > t && at < next ? at : next;
        d = what % 3 && at > t && at < d ? at : d;
    }
    *again = next;
    if (w >= 0 && full && rule->hungry)
        return 3 * w + 2;
    if (found >= 0) {
        int64_t f = s->cost[0][stage[found / 3]];
        if (found % 3 || d == NEVER || (double)(t + f - d) <= rule->delay * (double)f)
            return found;
    }
    if (w >= 0 && (next == NEVER || full ||
                   (double)(next - t) >= rule->patience * (double)s->cost[2][stage[w]]))
        return 3 * w + 2;
    return -1;
}

/* Plays a rule and writes `trial`. 0: the ranks are stuck. */
static int play(Search *s, const Greed *rule)
{
    int left = 3 * s->n * s->m;
    reset(s);
    s->events = 0;
    for (int r = 0; r < s->p; r++)
        push(s, 0, r);
    while (s->events) {
        uint64_t event = pop(s);
        int64_t t = (int64_t)(event >> RANK_BITS), again;
        int r = event & ((1 << RANK_BITS) - 1);
        if (t < s->at[r])
            continue;
        int what = decide(s, rule, r, t, &again);
        if (what >= 0) {
            int i = s->stage[r * s->v + what / 3], op = what % 3;
            string_of(s, s->trial, r)[s->begun[r]] = (uint8_t)what;
            int to = run(s, i, op, t);
            left--;
            push(s, s->at[r], r);
            if (to >= 0 && s->at[s->rank[to]] <= t)
                push(s, s->at[r] + s->hop[op][i], s->rank[to]);
            for (int c = 0; c < s->v && op && s->has.early; c++)   /* there is room for what these send */
                if (s->stage[r * s->v + c])
                    push(s, s->at[r], s->rank[s->stage[r * s->v + c] - 1]);
        } else if (again != NEVER) {
            push(s, again, r);
        }
    }
    return left == 0;
}

/* ---- strings ---- */

/* Runs what stands next in rank r's string of `trial` as long as its input is known. Returns the instructions
 * run; -1: the string is wrong, or the rank holds too much. */
static int replay_rank(Search *s, int r)
{
    int from = s->begun[r];
    while (s->begun[r] < length(s)) {
        int at = s->begun[r], what = string_of(s, s->trial, r)[at], op = what % 3;
        int i = s->stage[r * s->v + what / 3], *n = s->done[i];
        int64_t t = op == 2 ? 0 : s->ready[op][(size_t)i * (size_t)s->m + (size_t)n[op]];
        double more = s->has.data[SLOT_FD][i] + s->has.data[SLOT_FW][i];
        if ((op == 1 && n[1] >= n[0]) || (op == 2 && n[2] >= n[1]) || (op == 0 && !has_room(s, r, more)))
            return -1;
        if (t < 0)
            break;
        t = t > s->at[r] ? t : s->at[r];
        s->start[(size_t)r * (size_t)length(s) + (size_t)at] = t;
        run(s, i, op, t);
    }
    return s->begun[r] - from;
}

/* Replays `trial`. 0: the ranks wait for each other, or one holds too much. */
static int replay(Search *s)
{
    int left = 3 * s->n * s->m, moved = 1;
    reset(s);
    while (moved)
        for (int turn = moved = 0; turn < 2 * s->p; turn++) {      /* down for F, up for D */
            int ran = replay_rank(s, turn < s->p ? turn : 2 * s->p - 1 - turn);
            if (ran < 0)
                return 0;
            moved |= ran;
            left -= ran;
        }
    return left == 0;
}

static int keep_if_better(Search *s)
{
    Score z = score_of(s);
    if (!better(z, s->score))
        return 0;
    memcpy(s->best, s->trial, (size_t)s->p * (size_t)length(s));
    s->score = z;
    return 1;
}

/* ---- known orders and rules to start from ---- */

/* Writes `ahead` F; then in turn D, the W of `late` microbatches before, and F; then the W that are left. */
static void write_known(Search *s, int r, int ahead, int late)
{
    uint8_t *out = string_of(s, s->trial, r);
    int f = 0, w = 0;
    while (f < ahead && f < s->m)
        *out++ = 0, f++;
    for (int b = 0; b < s->m; b++) {
        *out++ = 1;
        if (b >= late)
            *out++ = 2, w++;
        if (f < s->m)
            *out++ = 0, f++;
    }
    while (w++ < s->m)
        *out++ = 2;
}

/* Tries 1F1B, with as few F ahead as the memory of this rank and those before it demands, so that it always
 * fits; then ZB-H1 and ZB-H2. */
static void try_known(Search *s)
{
    for (int late = 0; late < 3; late++) {
        double most = s->has.room[0];          /* of microbatches that take 1 */
        for (int r = 0; r < s->p; r++) {
            most = fmin(most, s->has.room[r]);
            int ahead = late == 2 ? 2 * (s->p - r) - 1 : s->p - r;
            write_known(s, r, !late && most < ahead ? (int)most : ahead, late * r);
        }
        if (replay(s))
            keep_if_better(s);
        BUG_ON(s->score.makespan == NEVER);
    }
}

/* Kinds of bounds on the microbatches between F and D, one stage a rank. H1, H2: as ZB-H1 and ZB-H2. DOWN,
 * UP: as many F as fit before the input of the first D can be there, rounded down and up. ALL: m. */
enum { H1, H2, DOWN, UP, ALL };

static int bound_of(const Search *s, int r, int kind)
{
    int64_t trip = s->cost[0][r], f = trip > 0 ? trip : 1;
    switch (kind) {
    case H1:  return s->p - r;
    case H2:  return 2 * (s->p - r) - 1;
    case ALL: return s->m;
    }
    for (int k = r + 1; k < s->p; k++)
        trip += s->cost[0][k] + s->cost[1][k] + s->hop[0][k - 1] + s->hop[1][k];
    trip = (trip + (kind == UP ? f - 1 : 0)) / f;
    return trip > s->m ? s->m : trip < 1 ? 1 : (int)trip;
}

static const double patience[] = {0.5, 1, 0, 0.25, 0.75};
enum { PATIENCES = sizeof patience / sizeof *patience };

/* Rule `index` of one stage a rank; 0: there are no more. */
static int rule_of_one(const Search *s, int index, Greed *rule)
{
    static const uint8_t bounds[][2] = {{H1, H1}, {H2, H1},  {H2, H2}, {H2, ALL},
                                        {UP, H2}, {UP, ALL}, {UP, UP}, {DOWN, ALL}};
    static const double delay[] = {1, 0.5, 0.25};
    enum { PAIRS = sizeof bounds / sizeof *bounds, RULES = PAIRS * PATIENCES * 3 };
    if (index >= RULES)
        return 0;
    for (int r = 0; r < s->p; r++) {
        rule->first[r] = bound_of(s, r, bounds[index % PAIRS][0]);
        rule->later[r] = bound_of(s, r, bounds[index % PAIRS][1]);
    }
    rule->patience = patience[index / PAIRS % PATIENCES];
    rule->delay = delay[index / PAIRS / PATIENCES];
    rule->turn[0] = 1;
    rule->turn[1] = 0;
    return 1;
}

/* Writes permutation `index` of F and D of two chunks. */
static void permute(int index, uint8_t *turn)
{
    uint8_t left[] = {0, 1, 3, 4};
    for (int k = 0; k < 4; k++) {
        int at = index % (4 - k);
        index /= 4 - k;
        turn[k] = left[at];
        for (int i = at; i < 3 - k; i++)
            left[i] = left[i + 1];
    }
}

/* Writes an order of F and D of many chunks: each from the last chunk or from the first; all D before all F,
 * after them, or by turns. */
static void merge(int index, int v, uint8_t *turn)
{
    for (int k = 0; k < v; k++) {
        int d = index % 2 ? k : v - 1 - k, f = index / 2 % 2 ? k : v - 1 - k, how = index / 4;
        turn[how == 0 ? k : how == 1 ? v + k : 2 * k] = (uint8_t)(3 * d + 1);
        turn[how == 0 ? v + k : how == 1 ? k : 2 * k + 1] = (uint8_t)(3 * f);
    }
}

/* Rule `index` of several stages a rank; 0: there are no more. */
static int rule_of_many(const Search *s, int index, Greed *rule)
{
    static const double share[] = {1, 1.1, 0.9, 0.8, 0.7, 0};      /* of the quota; 0: no bound */
    enum { SHARES = sizeof share / sizeof *share, WAITS = 3 };
    int turns = s->v == 2 ? 24 : 12, turn = index % turns, rest = index / turns;
    if (rest >= SHARES * WAITS * 2)
        return 0;
    for (int r = 0; r < s->p; r++) {
        double bound = floor(share[rest % SHARES] * s->quota[r] + 0.5);
        bound = share[rest % SHARES] > 0 ? fmin(fmax(1, bound), s->m) : s->m;
        rule->first[r] = rule->later[r] = (int)bound;
    }
    rule->patience = patience[rest / SHARES % WAITS];
    rule->delay = 1;
    rule->hungry = rest / SHARES / WAITS;
    if (s->v == 2)
        permute(turn, rule->turn);
    else
        merge(turn, s->v, rule->turn);
    return 1;
}

static int rule_of(const Search *s, int index, Greed *rule)
{
    return s->v == 1 ? rule_of_one(s, index, rule) : rule_of_many(s, index, rule);
}

static int try_rule(Search *s, const Greed *rule)
{
    if (!goes_on(s) && (s->rules >= RULES_LEAST || !better(s->least, s->score)))
        return 0;
    s->rules++;
    if (!play(s, rule))
        return 0;
    s->last = score_of(s);
    return keep_if_better(s);
}

/* Plays the rules of a grid, or those known. Returns the index of the best; -1: none was better than the best
 * so far. */
static int try_grid(Search *s, Favourites *known)
{
    int found = -1, all = !known || !known->n, n = known ? known->n : 0;
    Score score[RULES_KEPT];
    Greed rule = {.first = xcalloc(2 * (size_t)s->p, sizeof(int))};
    rule.later = rule.first + s->p;
    for (int k = 0; all || k < n; k++) {
        int index = all ? k : known->rule[k];
        if (!rule_of(s, index, &rule))
            break;
        s->last = (Score){NEVER, NEVER};
        if (try_rule(s, &rule))
            found = index;
        if (!all || !known || s->last.makespan == NEVER)
            continue;
        if (known->n == RULES_KEPT && !better(s->last, score[RULES_KEPT - 1]))
            continue;
        int at = known->n < RULES_KEPT ? known->n++ : RULES_KEPT - 1;
        for (; at && better(s->last, score[at - 1]); at--) {
            score[at] = score[at - 1];
            known->rule[at] = known->rule[at - 1];
        }
        score[at] = s->last;
        known->rule[at] = index;
    }
    free(rule.first);
    return found;
}

/* ---- improvement ---- */

/* Changes the rule's bounds one after the other as long as that helps. */
static void climb(Search *s, Greed *rule)
{
    static const int by[] = {1, -1, 2, -2};
    int *bound = rule->first, n = 2 * s->p, idle = 0;
    for (int i = 0; idle < n && goes_on(s); i = (i + 1) % n) {
        int before = bound[i];
        idle++;
        for (size_t k = 0; k < sizeof by / sizeof *by && idle; k++) {
            bound[i] = before + by[k];
            if (bound[i] > 0 && try_rule(s, rule))
                idle = 0;
            else
                bound[i] = before;
        }
    }
}

/* Exchanges instructions i and i + 1 of rank r in `trial`. 1: that is better; 0: they are exchanged back. */
static int exchange(Search *s, int r, int i)
{
    uint8_t *x = string_of(s, s->trial, r) + i, first = x[0];
    if (x[0] == x[1])
        return 0;
    x[0] = x[1];
    x[1] = first;
    if (goes_on(s) && replay(s) && keep_if_better(s))
        return 1;
    x[1] = x[0];
    x[0] = first;
    return 0;
}

static int *place_of(const Search *s, int op, int stage, int mb)
{
    return &s->place[((size_t)op * (size_t)s->n + (size_t)stage) * (size_t)s->m + (size_t)mb];
}

/* Copies `best` to `trial` and fills was and place. Returns the rank that ends last. */
static int open_best(Search *s)
{
    size_t all = (size_t)s->p * (size_t)length(s);
    int last = 0;
    memcpy(s->trial, s->best, all);
    BUG_ON(!replay(s));
    memcpy(s->was, s->start, all * sizeof *s->was);
    memset(s->done, 0, (size_t)s->n * sizeof *s->done);
    for (int r = 0; r < s->p; r++) {
        last = s->at[r] > s->at[last] ? r : last;
        for (int i = 0; i < length(s); i++) {
            int what = string_of(s, s->trial, r)[i], stage = s->stage[r * s->v + what / 3];
            *place_of(s, what % 3, stage, s->done[stage][what % 3]++) = i;
        }
    }
    return last;
}

/* Follows the critical path back from the last end, along what each instruction waited for, and exchanges
 * neighbours on it. 1: an exchange helped; 0: none does. */
static int mend(Search *s)
{
    int r = open_best(s), i = length(s) - 1;
    while (i > 0) {
        const uint8_t *x = string_of(s, s->trial, r);
        const int64_t *was = s->was + (size_t)r * (size_t)length(s);
        int op = x[i] % 3, stage = s->stage[r * s->v + x[i] / 3], mb = 0;
        if (was[i] == was[i - 1] + s->cost[x[i - 1] % 3][s->stage[r * s->v + x[i - 1] / 3]]) {
            if (exchange(s, r, i - 1))                             /* it waited for its own rank */
                return 1;
            i--;
            continue;
        }
        for (int k = 0; k < i; k++)
            mb += x[k] == x[i];
        if (op == 1 && stage == s->n - 1)                          /* waited for its own F */
            op = 0;
        else
            stage += op == 0 ? -1 : 1;
        r = s->rank[stage];
        i = *place_of(s, op, stage, mb);
    }
    return 0;
}

/* The least makespan and span: at best a rank never pauses after its first input. */
static Score least_of(const Search *s)
{
    Score least = {0, 0};
    int64_t head = 0;
    for (int r = 0; r < s->p; r++) {
        int64_t work = 0;
        for (int c = 0; c < s->v; c++) {
            int i = s->stage[r * s->v + c];
            work += s->m * (s->cost[0][i] + s->cost[1][i] + s->cost[2][i]);
        }
        least.span = work > least.span ? work : least.span;
        least.makespan = head + work > least.makespan ? head + work : least.makespan;
        head += s->cost[0][r] + s->hop[0][r];
    }
    return least;
}

/* known, budget: as search_order. */
static void search(Search *s, Favourites *known, int64_t budget)
{
    Greed rule = {.first = xcalloc(2 * (size_t)s->p, sizeof(int))};
    rule.later = rule.first + s->p;
    s->budget = known ? INT64_MAX : budget;            /* all that are known are played */
    s->score = (Score){NEVER, NEVER};
    s->least = least_of(s);
    if (s->v == 1 && !s->has.early)
        try_known(s);
    int best = try_grid(s, known);
    if (known)
        s->budget = budget;
    if (best >= 0 && rule_of(s, best, &rule))
        climb(s, &rule);
    int mends = !s->has.early && s->score.makespan != NEVER;   /* a replay does not know when inputs arrive */
    while (mends && goes_on(s) && mend(s))
        ;
    free(rule.first);
}

/* ---- from and to a shape ---- */

static double cost_of(const PipeShape *s, int k, int stage)
{
    return k == 3 ? pipe_hop(s, stage) : s->cost[k] ? s->cost[k][stage] : 1;
}

/* Fills quota: a microbatch of a stage is held at least from its F to its D, on its way through the stages
 * behind and back. */
static void set_quotas(Search *s)
{
    double held = 0, *all = xcalloc((size_t)s->p, sizeof *all);
    for (int i = s->n - 1; i >= 0; i--) {
        double own = (double)(s->cost[0][i] + s->cost[1][i]);
        all[s->rank[i]] += (held + own) * (s->has.data[SLOT_FD][i] + s->has.data[SLOT_FW][i]);
        if (i < s->p)
            s->quota[s->rank[i]] =
                all[s->rank[i]] > 0 ? s->has.room[s->rank[i]] * (held + own) / all[s->rank[i]] : 0;
        held += own + (i ? (double)(s->hop[1][i] + s->hop[0][i - 1]) : 0);
    }
    free(all);
}

static void search_close(Search *s)
{
    free(s->quota);
    free(s->rank);
    for (int k = 0; k < 3; k++)
        free(s->cost[k]);
    free(s->hop[0]);
    free(s->best);
    free(s->ready[0]);
    free(s->at);
    free(s->begun);
    free(s->held);
    free(s->done);
    free(s->start);
    free(s->place);
    free(s->heap);
}

/* Writes the best strings as lists. */
static void write_lists(const Search *s, InstrList *out)
{
    static const uint8_t instr[] = {I_F, I_D, I_W};
    memset(s->done, 0, (size_t)s->n * sizeof *s->done);
    for (int r = 0; r < s->p; r++)
        for (int i = 0; i < length(s); i++) {
            int what = string_of(s, s->best, r)[i], chunk = what / 3, op = what % 3;
            int mb = s->done[s->stage[r * s->v + chunk]][op]++;
            out[r].list[out[r].n++] = (Instr){.op = instr[op], .chunk = (uint8_t)chunk, .unit = WHOLE,
                                              .mb = (uint16_t)mb};
        }
}

static void search_open(Search *s, const PipeShape *shape, const Held *held)
{
    size_t p = (size_t)shape->p, m = (size_t)shape->m, n = p * (size_t)shape->v;
    double longest = 0;
    *s = (Search){.p = shape->p, .v = shape->v, .m = shape->m, .n = (int)n, .has = *held,
                  .score = {NEVER, NEVER}};
    BUG_ON(s->v > STRING_CHUNKS);
    for (int k = 0; k < 4; k++)
        for (size_t i = 0; i < n; i++)
            longest = fmax(longest, cost_of(shape, k, (int)i));
    s->scale = longest > 0 ? TICKS / longest : 0;
    s->quota = xcalloc(p + n, sizeof *s->quota);
    s->need = s->quota + p;
    s->rank = xcalloc(2 * n, sizeof *s->rank);
    s->stage = s->rank + n;
    for (int k = 0; k < 3; k++)
        s->cost[k] = xcalloc(n, sizeof *s->cost[k]);
    s->hop[0] = xcalloc(2 * n, sizeof *s->hop[0]);
    s->hop[1] = s->hop[0] + n;
    for (int i = 0; i < s->n; i++) {
        int chunk;
        pipe_place(shape, i, &s->rank[i], &chunk);
        s->stage[s->rank[i] * s->v + chunk] = i;
        for (int k = 0; k < 3; k++)
            s->cost[k][i] = llrint(cost_of(shape, k, i) * s->scale);
    }
    for (int r = 0; r < s->p; r++) {
        double later = 0;
        for (int c = s->v - 1; c >= 0; c--) {
            int i = s->stage[r * s->v + c];
            later = s->need[i] = later + held->data[SLOT_FD][i] + held->data[SLOT_FW][i];
        }
    }
    for (int i = 0; i < s->n; i++) {
        int64_t hop = llrint(cost_of(shape, 3, i) * s->scale);
        s->hop[0][i] = i + 1 < s->n && s->rank[i + 1] == s->rank[i] ? 0 : hop;
        s->hop[1][i] = i && s->rank[i - 1] == s->rank[i] ? 0 : hop;
    }
    set_quotas(s);
    s->best = xcalloc(2 * 3 * n, m);
    s->trial = s->best + 3 * n * m;
    s->ready[0] = xcalloc(2 * n * m, sizeof *s->ready[0]);
    s->ready[1] = s->ready[0] + n * m;
    s->at = xcalloc(2 * p, sizeof *s->at);
    s->began = s->at + p;
    s->begun = xcalloc(2 * p, sizeof *s->begun);
    s->returned = s->begun + p;
    s->held = xcalloc(p, sizeof *s->held);
    s->done = xcalloc(n, sizeof *s->done);
    s->start = xcalloc(2 * 3 * n * m, sizeof *s->start);
    s->was = s->start + 3 * n * m;
    s->place = xcalloc(3 * n * m, sizeof *s->place);
}

double search_order(const PipeShape *shape, const Held *held, Favourites *known, int64_t budget,
                    InstrList *out)
{
    Search s;
    int fits = 1;
    search_open(&s, shape, held);
    for (int r = 0; r < s.p; r++)
        fits &= has_room(&s, r, s.need[s.stage[r * s.v]]);
    if (fits)
        search(&s, known, budget);
    fits = s.score.makespan != NEVER;
    double makespan = !fits ? INFINITY : s.scale > 0 ? (double)s.score.makespan / s.scale : 0;
    if (out && fits)
        write_lists(&s, out);
    search_close(&s);
    return makespan;
}

void generate_zb_auto(const PipeShape *shape, InstrList *out)
{
    size_t p = (size_t)shape->p, n = p * (size_t)shape->v;
    double *room = xcalloc(p + 3 * n, sizeof *room), w = shape->weight_share;
    Held held = {.room = room, .data = {room + p, room + p + n, room + p + 2 * n}};
    BUG_ON(w < 0 || w > 1);
    for (size_t r = 0; r < p; r++)
        room[r] = shape->limit ? shape->limit : shape->p;
    for (size_t i = 0; i < n; i++) {
        room[p + i] = 1 - w;
        room[p + n + i] = w;
    }
    BUG_ON(isinf(search_order(shape, &held, NULL, BUDGET, out)));
    free(room);
}
