/* search -- orders F, D and W of every rank by search, for any costs, stages and bounds on memory (Qi et
 * al. 2023, arXiv:2401.10241, sec 3: the heuristics behind ZB-1p and ZB-2p, for stages placed in any way).
 *
 * Rules play the ranks forward in time (greedy.h). With one stage a rank they differ in how many
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

typedef struct {
    Greedy g;
    uint8_t *best;                 /* strings, as of g.trial */
    Score score, least;            /* of `best`; a bound that no order can beat */
    Score last;                    /* of the rule played last */
    int64_t *start, *was;          /* [p][3vm] start times: of the last replay; of the string in work */
    int *place;                    /* [3][n][m] index of each F, D, W in the string being improved */
    int64_t most;                  /* instructions that may be played in all */
    int rules;                     /* rules played so far */
} Search;

/* Most instructions played in a search, about a tenth of a second; rules that are played in any case. */
enum { BUDGET = 4000000, RULES_LEAST = 10 };

static int better(Score a, Score b)
{
    return a.makespan != b.makespan ? a.makespan < b.makespan : a.span < b.span;
}

static int goes_on(const Search *s) { return s->g.played < s->most && better(s->least, s->score); }

/* ---- strings ---- */

static int keep_if_better(Search *s)
{
    Score z = greedy_score(&s->g);
    if (!better(z, s->score))
        return 0;
    memcpy(s->best, s->g.trial, (size_t)s->g.p * (size_t)greedy_length(&s->g));
    s->score = z;
    return 1;
}

/* ---- known orders and rules to start from ---- */

/* Writes `ahead` F; then in turn D, the W of `late` microbatches before, and F; then the W that are left. */
static void write_known(Search *s, int r, int ahead, int late)
{
    uint8_t *out = greedy_string(&s->g, s->g.trial, r);
    int f = 0, w = 0;
    while (f < ahead && f < s->g.m)
        *out++ = 0, f++;
    for (int b = 0; b < s->g.m; b++) {
        *out++ = 1;
        if (b >= late)
            *out++ = 2, w++;
        if (f < s->g.m)
            *out++ = 0, f++;
    }
    while (w++ < s->g.m)
        *out++ = 2;
}

/* Tries 1F1B, with as few F ahead as the memory of this rank and those before it demands, so that it always
 * fits; then ZB-H1 and ZB-H2. */
static void try_known(Search *s)
{
    for (int late = 0; late < 3; late++) {
        double most = s->g.has.room[0];          /* of microbatches that take 1 */
        for (int r = 0; r < s->g.p; r++) {
            most = fmin(most, s->g.has.room[r]);
            int ahead = late == 2 ? 2 * (s->g.p - r) - 1 : s->g.p - r;
            write_known(s, r, !late && most < ahead ? (int)most : ahead, late * r);
        }
        if (greedy_replay(&s->g, s->start))
            keep_if_better(s);
        BUG_ON(s->score.makespan == NEVER);
    }
}

/* Kinds of bounds on the microbatches between F and D, one stage a rank. H1, H2: as ZB-H1 and ZB-H2. DOWN,
 * UP: as many F as fit before the input of the first D can be there, rounded down and up. ALL: m. */
enum { H1, H2, DOWN, UP, ALL };

static int bound_of(const Greedy *g, int r, int kind)
{
    int64_t trip = g->cost[0][r], f = trip > 0 ? trip : 1;
    switch (kind) {
    case H1:  return g->p - r;
    case H2:  return 2 * (g->p - r) - 1;
    case ALL: return g->m;
    }
    for (int k = r + 1; k < g->p; k++)
        trip += g->cost[0][k] + g->cost[1][k] + g->hop[0][k - 1] + g->hop[1][k];
    trip = (trip + (kind == UP ? f - 1 : 0)) / f;
    return trip > g->m ? g->m : trip < 1 ? 1 : (int)trip;
}

static const double patience[] = {0.5, 1, 0, 0.25, 0.75};
enum { PATIENCES = sizeof patience / sizeof *patience };

/* Rule `index` of one stage a rank; 0: there are no more. */
static int rule_of_one(const Greedy *g, int index, Rule *rule)
{
    static const uint8_t bounds[][2] = {{H1, H1}, {H2, H1},  {H2, H2}, {H2, ALL},
                                        {UP, H2}, {UP, ALL}, {UP, UP}, {DOWN, ALL}};
    static const double delay[] = {1, 0.5, 0.25};
    static const uint8_t turn[] = {1, 0};
    enum { PAIRS = sizeof bounds / sizeof *bounds };
    int waits = g->has.whole ? 1 : PATIENCES;          /* without W there is nothing to wait with */
    if (index >= PAIRS * waits * 3)
        return 0;
    rule_alike(g, rule, turn, patience[index / PAIRS % waits]);
    for (int r = 0; r < g->p; r++) {
        rule->most[r] = bound_of(g, r, bounds[index % PAIRS][0]);
        rule->most[g->p + r] = rule->most[2 * g->p + r] = bound_of(g, r, bounds[index % PAIRS][1]);
    }
    rule->delay = delay[index / PAIRS / waits];
    rule->hungry = 0;
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
static int rule_of_many(const Greedy *g, int index, Rule *rule)
{
    static const double share[] = {1, 1.1, 0.9, 0.8, 0.7, 0};      /* of the quota; 0: no bound */
    enum { SHARES = sizeof share / sizeof *share, WAITS = 3 };
    int turns = g->v == 2 ? 24 : 12, turn = index % turns, rest = index / turns;
    if (rest >= SHARES * (g->has.whole ? 1 : WAITS * 2))
        return 0;
    uint8_t order[2 * STRING_CHUNKS];
    if (g->v == 2)
        permute(turn, order);
    else
        merge(turn, g->v, order);
    rule_alike(g, rule, order, patience[rest / SHARES % WAITS]);
    for (int i = 0; i < PHASES * g->p * g->v; i++) {
        double bound = floor(share[rest % SHARES] * g->quota[i / g->v % g->p] + 0.5);
        bound = share[rest % SHARES] > 0 && i % g->v == 0 ? fmin(fmax(1, bound), g->m) : g->m;
        rule->most[i] = (int)bound;
    }
    rule->delay = 1;
    rule->hungry = rest / SHARES / WAITS;
    return 1;
}

int search_rule(const Greedy *g, int index, Rule *rule)
{
    return g->v == 1 ? rule_of_one(g, index, rule) : rule_of_many(g, index, rule);
}

static int try_rule(Search *s, const Rule *rule)
{
    if (!goes_on(s) && (s->rules >= RULES_LEAST || !better(s->least, s->score)))
        return 0;
    s->rules++;
    if (!greedy_play(&s->g, rule))
        return 0;
    s->last = greedy_score(&s->g);
    return keep_if_better(s);
}

/* Plays the rules of a grid, or those known. Returns the index of the best; -1: none was better than the best
 * so far. */
static int try_grid(Search *s, Favourites *known)
{
    int found = -1, all = !known || !known->n, n = known ? known->n : 0;
    Score score[RULES_KEPT];
    Rule rule = rule_open(&s->g);
    for (int k = 0; all || k < n; k++) {
        int index = all ? k : known->rule[k];
        if (!search_rule(&s->g, index, &rule))
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
    rule_close(&rule);
    return found;
}

/* ---- improvement ---- */

/* Changes the rule's bounds on chunk 0 one after the other as long as that helps. */
static void climb(Search *s, Rule *rule)
{
    static const int by[] = {1, -1, 2, -2};
    int n = BEHIND * s->g.p, idle = 0;
    for (int i = 0; idle < n && goes_on(s); i = (i + 1) % n) {
        int *bound = rule->most + i * s->g.v, before = *bound;
        idle++;
        for (size_t k = 0; k < sizeof by / sizeof *by && idle; k++) {
            *bound = before + by[k];
            if (*bound > 0 && try_rule(s, rule))
                idle = 0;
            else
                *bound = before;
        }
    }
}

/* Exchanges instructions i and i + 1 of rank r in `trial`. 1: that is better; 0: they are exchanged back. */
static int exchange(Search *s, int r, int i)
{
    uint8_t *x = greedy_string(&s->g, s->g.trial, r) + i, first = x[0];
    if (x[0] == x[1])
        return 0;
    x[0] = x[1];
    x[1] = first;
    if (goes_on(s) && greedy_replay(&s->g, s->start) && keep_if_better(s))
        return 1;
    x[1] = x[0];
    x[0] = first;
    return 0;
}

static int *place_of(const Search *s, int op, int stage, int mb)
{
    return &s->place[((size_t)op * (size_t)s->g.n + (size_t)stage) * (size_t)s->g.m + (size_t)mb];
}

/* Copies `best` to `trial` and fills was and place. Returns the rank that ends last. */
static int open_best(Search *s)
{
    size_t all = (size_t)s->g.p * (size_t)greedy_length(&s->g);
    int last = 0;
    memcpy(s->g.trial, s->best, all);
    BUG_ON(!greedy_replay(&s->g, s->start));
    memcpy(s->was, s->start, all * sizeof *s->was);
    memset(s->g.done, 0, (size_t)s->g.n * sizeof *s->g.done);
    for (int r = 0; r < s->g.p; r++) {
        last = s->g.at[r] > s->g.at[last] ? r : last;
        for (int i = 0; i < greedy_length(&s->g); i++) {
            int what = greedy_string(&s->g, s->g.trial, r)[i], stage = s->g.stage[r * s->g.v + what / 3];
            *place_of(s, what % 3, stage, s->g.done[stage][what % 3]++) = i;
        }
    }
    return last;
}

/* Follows the critical path back from the last end, along what each instruction waited for, and exchanges
 * neighbours on it. 1: an exchange helped; 0: none does. */
static int mend(Search *s)
{
    int r = open_best(s), i = greedy_length(&s->g) - 1;
    while (i > 0) {
        const uint8_t *x = greedy_string(&s->g, s->g.trial, r);
        const int64_t *was = s->was + (size_t)r * (size_t)greedy_length(&s->g);
        int op = x[i] % 3, stage = s->g.stage[r * s->g.v + x[i] / 3], mb = 0;
        if (was[i] == was[i - 1] + s->g.cost[x[i - 1] % 3][s->g.stage[r * s->g.v + x[i - 1] / 3]]) {
            if (exchange(s, r, i - 1))                             /* it waited for its own rank */
                return 1;
            i--;
            continue;
        }
        for (int k = 0; k < i; k++)
            mb += x[k] == x[i];
        if (op == 1 && stage == s->g.n - 1)                          /* waited for its own F */
            op = 0;
        else
            stage += op == 0 ? -1 : 1;
        r = s->g.rank[stage];
        i = *place_of(s, op, stage, mb);
    }
    return 0;
}

/* The least makespan and span: at best a rank never pauses after its first input. */
static Score least_of(const Search *s)
{
    Score least = {0, 0};
    int64_t head = 0;
    for (int r = 0; r < s->g.p; r++) {
        int64_t work = 0;
        for (int c = 0; c < s->g.v; c++) {
            int i = s->g.stage[r * s->g.v + c];
            work += s->g.m * (s->g.cost[0][i] + s->g.cost[1][i] + s->g.cost[2][i]);
        }
        least.span = work > least.span ? work : least.span;
        least.makespan = head + work > least.makespan ? head + work : least.makespan;
        head += s->g.cost[0][r] + s->g.hop[0][r];
    }
    return least;
}

/* known, budget: as search_order. */
static void search(Search *s, Favourites *known, int64_t budget)
{
    Rule rule = rule_open(&s->g);
    s->most = known ? INT64_MAX : budget;              /* all that are known are played */
    s->least = least_of(s);
    if (s->g.v == 1 && !s->g.has.early && !s->g.has.whole)
        try_known(s);
    int best = try_grid(s, known);
    if (known)
        s->most = s->g.played + budget;
    if (best >= 0 && search_rule(&s->g, best, &rule))
        climb(s, &rule);
    int mends = !s->g.has.early && s->score.makespan != NEVER;     /* replays do not know of early inputs */
    while (mends && goes_on(s) && mend(s))
        ;
    rule_close(&rule);
}

static void search_open(Search *s, const PipeShape *shape, const Held *held)
{
    *s = (Search){.score = {NEVER, NEVER}};
    greedy_open(&s->g, shape, held);
    size_t all = (size_t)s->g.p * (size_t)greedy_length(&s->g);
    s->best = xcalloc(all, sizeof *s->best);
    s->start = xcalloc(2 * all, sizeof *s->start);
    s->was = s->start + all;
    s->place = xcalloc(all, sizeof *s->place);
}

static void search_close(Search *s)
{
    greedy_close(&s->g);
    free(s->best);
    free(s->start);
    free(s->place);
}

double search_order(const PipeShape *shape, const Held *held, Favourites *known, int64_t budget,
                    InstrList *out)
{
    Search s;
    search_open(&s, shape, held);
    if (greedy_stages(&s.g, shape))
        search(&s, known, budget);
    int fits = s.score.makespan != NEVER;
    double makespan = !fits ? INFINITY : s.g.scale > 0 ? (double)s.score.makespan / s.g.scale : 0;
    if (out && fits)
        greedy_lists(&s.g, s.best, out);
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
