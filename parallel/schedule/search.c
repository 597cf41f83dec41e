/* search -- zb-auto: orders F, D and W of every rank by search, for any costs and a bound on memory (Qi et
 * al. 2023, arXiv:2401.10241, sec 3: the heuristics behind ZB-1p and ZB-2p).
 *
 * A rule plays the ranks forward in time: D as soon as it can run, F while memory and the rule's bounds
 * allow, W where the rank would otherwise wait for longer than the rule allows, or where F has no room. Rules
 * differ in how many microbatches a rank may have between F and D, before its first D and later; in how long
 * a rank waits for D or F before it does W; and in how long F may delay D. The orders of 1F1B, ZB-H1 and
 * ZB-H2 and all rules of a grid are played. The best is improved by changing its bounds rank by rank, then by
 * exchanging neighbours on the critical path. The shortest step wins, among equals the one with the shortest
 * rank (Simulation.step_rate, then rate).
 *
 * Time is whole ticks, nothing is random, work is counted, not timed: equal shapes give equal lists. */
#include "base.h"
#include "generators.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TICKS = 1 << 20, RANK_BITS = 13 };      /* ticks of the longest cost */
#define NEVER INT64_MAX

/* Ticks of a step. span: the longest time of a rank, from its first start to its last end. */
typedef struct { int64_t makespan, span; } Score;

/* A rule. */
typedef struct {
    int *first, *later;            /* [p] most microbatches between F and D: before the first D; after it */
    double patience;               /* a rank idles rather than do W for less than this share of W's time */
    double delay;                  /* F may delay D by this share of F's time */
} Greed;

typedef struct {
    int p, m;
    int64_t *cost[4];              /* [p] ticks of F, D, W, and of a message that the rank sends */
    double limit, share;           /* PipeShape.limit and weight_share */
    uint8_t *best, *trial;         /* [p][3m] strings: 0 F, 1 D, 2 W; counting gives the microbatch */
    Score score, least;            /* of `best`; a bound that no order can beat */
    int64_t *ready[2];             /* [p*m] when the input of F, of D is there; -1: not known yet */
    int64_t *at, *began;           /* [p] when the rank is free; when its first F started */
    int (*done)[3];                /* [p] F, D, W so far */
    int64_t *start, *was;          /* [p][3m] start times: of the last replay; of the string being improved */
    int *place;                    /* [3][p][m] index of each F, D, W in the string being improved */
    uint64_t *heap;                /* [events] when a rank looks again: time, then rank */
    int events, room;              /* in the heap; that it has room for */
    int64_t budget;                /* instructions that may still be played */
    int rules;                     /* rules played so far */
} Search;

/* Most instructions played in a search, about a tenth of a second; rules that are played in any case. */
enum { BUDGET = 4000000, RULES_LEAST = 10 };

/* Rank r's part of a string. */
static uint8_t *string_of(const Search *s, uint8_t *all, int r) { return all + (size_t)r * 3 * (size_t)s->m; }

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
    size_t all = (size_t)s->p * (size_t)s->m;
    memset(s->done, 0, (size_t)s->p * sizeof *s->done);
    memset(s->at, 0, (size_t)s->p * sizeof *s->at);
    memset(s->ready[0], 0xff, 2 * all * sizeof **s->ready);
    memset(s->ready[0], 0, (size_t)s->m * sizeof **s->ready);      /* stage 0 waits for no F */
    s->budget -= 3 * (int64_t)all;
}

/* Runs the next `op` of a rank at time t. Its result is there when it ends, on another rank a message later.
 * Returns the rank that gets the result; -1: no other. */
static int run(Search *s, int r, int op, int64_t t)
{
    int mb = s->done[r][op]++, to = -1;
    int64_t end = s->at[r] = t + s->cost[op][r];
    if (op == 0 && mb == 0)
        s->began[r] = t;
    if (op == 0 && r + 1 < s->p)
        s->ready[0][(size_t)(to = r + 1) * (size_t)s->m + (size_t)mb] = end + s->cost[3][r];
    else if (op == 0)
        s->ready[1][(size_t)r * (size_t)s->m + (size_t)mb] = end;
    else if (op == 1 && r)
        s->ready[1][(size_t)(to = r - 1) * (size_t)s->m + (size_t)mb] = end + s->cost[3][r];
    return to;
}

/* Whether rank r may hold one more microbatch, counted as in Simulation.peak. */
static int has_room(const Search *s, int r)
{
    const int *n = s->done[r];
    return n[0] + 1 - n[1] * (1 - s->share) - n[2] * s->share <= s->limit + 1e-9;
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

/* The op that rank r begins at time t; -1: none until *again (NEVER: until it is fed). */
static int decide(const Search *s, const Greed *rule, int r, int64_t t, int64_t *again)
{
    const int *n = s->done[r], m = s->m, ahead = n[0] - n[1];
    size_t row = (size_t)r * (size_t)m;
    int64_t f = NEVER, d = NEVER, known;
    int open = n[0] < m && ahead < (n[1] ? rule->later[r] : rule->first[r]), room = open && has_room(s, r);
    *again = NEVER;
    if (room && (known = s->ready[0][row + (size_t)n[0]]) >= 0)
        f = known;
    if (n[1] < n[0] && (known = s->ready[1][row + (size_t)n[1]]) >= 0)
        d = known;
    if (d <= t)
        return 1;
    if (f <= t && (d == NEVER || (double)(t + s->cost[0][r] - d) <= rule->delay * (double)s->cost[0][r]))
        return 0;
    int64_t next = f > t && f < d ? f : d;
    if (n[2] < n[1] && (next == NEVER || (double)(next - t) >= rule->patience * (double)s->cost[2][r]))
        return 2;
    if (n[2] < n[1] && open && !room && next > t)          /* only W makes room */
        return 2;
    *again = next;
    return -1;
}

/* Plays a rule and writes `trial`. 0: the ranks are stuck. */
static int play(Search *s, const Greed *rule)
{
    int left = 3 * s->p * s->m;
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
        int op = decide(s, rule, r, t, &again);
        if (op >= 0) {
            const int *n = s->done[r];
            string_of(s, s->trial, r)[n[0] + n[1] + n[2]] = (uint8_t)op;
            int to = run(s, r, op, t);
            left--;
            push(s, s->at[r], r);
            if (to >= 0 && s->at[to] <= t)
                push(s, s->at[r] + s->cost[3][r], to);
        } else if (again != NEVER) {
            push(s, again, r);
        }
    }
    return left == 0;
}

/* ---- strings ---- */

/* Replays `trial`. 0: the ranks wait for each other, or one holds too much. */
static int replay(Search *s)
{
    int left = 3 * s->p * s->m, moved = 1;
    size_t m = (size_t)s->m;
    reset(s);
    while (moved)
        for (int turn = moved = 0; turn < 2 * s->p; turn++) {      /* down for F, up for D */
            int r = turn < s->p ? turn : 2 * s->p - 1 - turn, *n = s->done[r], i;
            while ((i = n[0] + n[1] + n[2]) < 3 * s->m) {
                int op = string_of(s, s->trial, r)[i];
                int64_t at = op == 2 ? 0 : s->ready[op][(size_t)r * m + (size_t)n[op]];
                if ((op == 1 && n[1] >= n[0]) || (op == 2 && n[2] >= n[1]) || (op == 0 && !has_room(s, r)))
                    return 0;
                if (at < 0)
                    break;
                at = at > s->at[r] ? at : s->at[r];
                s->start[(size_t)r * 3 * m + (size_t)i] = at;
                run(s, r, op, at);
                left--;
                moved = 1;
            }
        }
    return left == 0;
}

static int keep_if_better(Search *s)
{
    Score z = score_of(s);
    if (!better(z, s->score))
        return 0;
    memcpy(s->best, s->trial, (size_t)s->p * 3 * (size_t)s->m);
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

/* Tries 1F1B, with as few F ahead as memory demands, so that it always fits; then ZB-H1 and ZB-H2. */
static void try_known(Search *s)
{
    for (int late = 0; late < 3; late++) {
        for (int r = 0; r < s->p; r++) {
            int ahead = late == 2 ? 2 * (s->p - r) - 1 : s->p - r;
            write_known(s, r, !late && s->limit < ahead ? (int)s->limit : ahead, late * r);
        }
        if (replay(s))
            keep_if_better(s);
        BUG_ON(s->score.makespan == NEVER);
    }
}

/* Kinds of bounds on the microbatches between F and D. H1, H2: as ZB-H1 and ZB-H2. DOWN, UP: as many F as fit
 * before the input of the first D can be there, rounded down and up. ALL: m. */
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
        trip += s->cost[0][k] + s->cost[1][k] + s->cost[3][k - 1] + s->cost[3][k];
    trip = (trip + (kind == UP ? f - 1 : 0)) / f;
    return trip > s->m ? s->m : trip < 1 ? 1 : (int)trip;
}

static int try_rule(Search *s, const Greed *rule)
{
    if (!goes_on(s) && (s->rules >= RULES_LEAST || !better(s->least, s->score)))
        return 0;
    s->rules++;
    return play(s, rule) && keep_if_better(s);
}

/* Tries a grid of rules. 1: one was better than the best so far, and is in `best`. */
static int try_grid(Search *s, Greed *best)
{
    static const uint8_t bounds[][2] = {{H1, H1}, {H2, H1},  {H2, H2}, {H2, ALL},
                                        {UP, H2}, {UP, ALL}, {UP, UP}, {DOWN, ALL}};
    static const double patience[] = {0.5, 1, 0, 0.25, 0.75}, delay[] = {1, 0.5, 0.25};
    enum { PAIRS = sizeof bounds / sizeof *bounds, PATIENCES = 5, RULES = PAIRS * PATIENCES * 3 };
    int found = 0;
    Greed rule = {.first = xcalloc(2 * (size_t)s->p, sizeof(int))};
    rule.later = rule.first + s->p;
    for (int i = 0; i < RULES; i++) {
        for (int r = 0; r < s->p; r++) {
            rule.first[r] = bound_of(s, r, bounds[i % PAIRS][0]);
            rule.later[r] = bound_of(s, r, bounds[i % PAIRS][1]);
        }
        rule.patience = patience[i / PAIRS % PATIENCES];
        rule.delay = delay[i / PAIRS / PATIENCES];
        if (!try_rule(s, &rule))
            continue;
        memcpy(best->first, rule.first, 2 * (size_t)s->p * sizeof(int));
        best->patience = rule.patience;
        best->delay = rule.delay;
        found = 1;
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

/* Copies `best` to `trial` and fills was and place. Returns the rank that ends last. */
static int open_best(Search *s)
{
    int last = 0;
    memcpy(s->trial, s->best, (size_t)s->p * 3 * (size_t)s->m);
    BUG_ON(!replay(s));
    memcpy(s->was, s->start, (size_t)s->p * 3 * (size_t)s->m * sizeof *s->was);
    memset(s->done, 0, (size_t)s->p * sizeof *s->done);
    for (int r = 0; r < s->p; r++) {
        last = s->at[r] > s->at[last] ? r : last;
        for (int i = 0; i < 3 * s->m; i++) {
            int op = string_of(s, s->trial, r)[i], mb = s->done[r][op]++;
            s->place[((size_t)op * (size_t)s->p + (size_t)r) * (size_t)s->m + (size_t)mb] = i;
        }
    }
    return last;
}

/* Follows the critical path back from the last end, along what each instruction waited for, and exchanges
 * neighbours on it. 1: an exchange helped; 0: none does. */
static int mend(Search *s)
{
    int r = open_best(s), i = 3 * s->m - 1;
    while (i > 0) {
        const uint8_t *x = string_of(s, s->trial, r);
        const int64_t *was = s->was + (size_t)r * 3 * (size_t)s->m;
        int op = x[i], mb = 0;
        if (was[i] == was[i - 1] + s->cost[x[i - 1]][r]) {         /* waited for its own rank */
            if (exchange(s, r, i - 1))
                return 1;
            i--;
            continue;
        }
        for (int k = 0; k < i; k++)
            mb += x[k] == op;
        if (op == 1 && r == s->p - 1)                              /* waited for its own F */
            op = 0;
        else
            r += op == 0 ? -1 : 1;
        i = s->place[((size_t)op * (size_t)s->p + (size_t)r) * (size_t)s->m + (size_t)mb];
    }
    return 0;
}

static void search(Search *s)
{
    int64_t head = 0;
    Greed rule = {.first = xcalloc(2 * (size_t)s->p, sizeof(int))};
    rule.later = rule.first + s->p;
    s->score = (Score){NEVER, NEVER};
    s->least = (Score){0, 0};
    for (int r = 0; r < s->p; r++) {  /* at best a rank never pauses after its first input */
        int64_t work = s->m * (s->cost[0][r] + s->cost[1][r] + s->cost[2][r]);
        s->least.span = work > s->least.span ? work : s->least.span;
        s->least.makespan = head + work > s->least.makespan ? head + work : s->least.makespan;
        head += s->cost[0][r] + s->cost[3][r];
    }
    try_known(s);
    if (try_grid(s, &rule))
        climb(s, &rule);
    while (goes_on(s) && mend(s))
        ;
    free(rule.first);
}

/* ---- from and to a shape ---- */

static double cost_of(const PipeShape *s, int k, int rank)
{
    return k == 3 ? pipe_hop(s, rank) : s->cost[k] ? s->cost[k][rank] : 1;
}

static void search_open(Search *s, const PipeShape *shape)
{
    size_t p = (size_t)shape->p, m = (size_t)shape->m;
    double longest = 0;
    *s = (Search){.p = shape->p, .m = shape->m, .limit = shape->limit ? shape->limit : shape->p,
                  .share = shape->weight_share, .budget = BUDGET};
    BUG_ON(s->limit < 1 || s->share < 0 || s->share > 1);
    for (int k = 0; k < 4; k++)
        for (size_t r = 0; r < p; r++)
            longest = fmax(longest, cost_of(shape, k, (int)r));
    double scale = longest > 0 ? TICKS / longest : 0;
    for (int k = 0; k < 4; k++) {
        s->cost[k] = xcalloc(p, sizeof *s->cost[k]);
        for (size_t r = 0; r < p; r++)
            s->cost[k][r] = llrint(cost_of(shape, k, (int)r) * scale);
    }
    s->best = xcalloc(2 * 3 * p, m);
    s->trial = s->best + 3 * p * m;
    s->ready[0] = xcalloc(2 * p * m, sizeof *s->ready[0]);
    s->ready[1] = s->ready[0] + p * m;
    s->at = xcalloc(2 * p, sizeof *s->at);
    s->began = s->at + p;
    s->done = xcalloc(p, sizeof *s->done);
    s->start = xcalloc(2 * 3 * p * m, sizeof *s->start);
    s->was = s->start + 3 * p * m;
    s->place = xcalloc(3 * p * m, sizeof *s->place);
}

static void search_close(Search *s)
{
    for (int k = 0; k < 4; k++)
        free(s->cost[k]);
    free(s->best);
    free(s->ready[0]);
    free(s->at);
    free(s->done);
    free(s->start);
    free(s->place);
    free(s->heap);
}

void generate_zb_auto(const PipeShape *shape, InstrList *out)
{
    static const uint8_t instr[] = {I_F, I_D, I_W};
    Search s;
    search_open(&s, shape);
    search(&s);
    for (int r = 0; r < s.p; r++) {
        int n[3] = {0};
        for (int i = 0; i < 3 * s.m; i++) {
            int op = string_of(&s, s.best, r)[i];
            out[r].list[out[r].n++] = (Instr){.op = instr[op], .unit = WHOLE, .mb = (uint16_t)n[op]++};
        }
    }
    search_close(&s);
}
