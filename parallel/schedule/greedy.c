/* greedy -- ranks played forward in time by a rule, or by strings */
#include "greedy.h"
#include "base.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Starts a play or replay. */
static void reset(Greedy *g)
{
    size_t all = (size_t)g->n * (size_t)g->m;
    memset(g->done, 0, (size_t)g->n * sizeof *g->done);
    memset(g->begun, 0, (size_t)g->p * sizeof *g->begun);
    memset(g->held, 0, (size_t)g->p * sizeof *g->held);
    memset(g->at, 0, (size_t)g->p * sizeof *g->at);
    memset(g->ready[0], 0x7f, 2 * all * sizeof **g->ready);         /* NEVER */
    memset(g->ready[0], 0, (size_t)g->m * sizeof **g->ready);      /* stage 0 waits for no F */
    memset(g->next[0], 0x7f, 2 * (size_t)g->n * sizeof **g->next);
    g->next[0][0] = 0;
    g->played += g->p * (int64_t)greedy_length(g);
}

/* Whether FD of stage i, which may be n, is held from the arrival of its input on. */
static int arrives(const Greedy *g, int i) { return g->arrives[i]; }

static void hold(Greedy *g, int i, int kind, int sign)
{
    g->held[g->rank[i]] += sign * g->has.data[kind][i];
}

/* What the next `op` of stage i takes and frees. Gradients are held from the start of the D that makes
 * them. */
static void hold_for(Greedy *g, int i, int op)
{
    int next = i + 1 < g->n;
    if (op == 1) {
        hold(g, i, SLOT_FD, -1);
        if (!next)
            hold(g, i, SLOT_DW, 1);
        if (i)
            hold(g, i - 1, SLOT_DW, 1);
    }
    if (op == 2 || (op == 1 && g->has.whole)) {
        hold(g, i, SLOT_FW, -1);
        hold(g, i, SLOT_DW, -1);
    }
    if (op == 0) {
        if (!arrives(g, i))
            hold(g, i, SLOT_FD, 1);
        hold(g, i, SLOT_FW, 1);
        if (next && arrives(g, i + 1))
            hold(g, i + 1, SLOT_FD, 1);
    }
}

/* The input of `op` of stage i for microbatch mb is there at time t. */
static void give(Greedy *g, int op, int i, int mb, int64_t t)
{
    g->ready[op][(size_t)i * (size_t)g->m + (size_t)mb] = t;
    if (g->done[i][op] == mb)
        g->next[op][i] = t;
}

/* Runs the next `op` of stage i at time t. Its result is there when it ends, on another rank a message later.
 * Returns the stage that gets the result; -1: none. */
static int run(Greedy *g, int i, int op, int64_t t)
{
    int r = g->rank[i], mb = g->done[i][op]++, to = -1;
    int64_t end = g->at[r] = t + g->cost[op][i];
    if (!g->begun[r]++)
        g->began[r] = t;
    double before = g->held[r];
    hold_for(g, i, op);
    g->frees[r] = before - g->held[r];
    if (op == 2)
        return -1;
    g->next[op][i] = mb + 1 < g->m ? g->ready[op][(size_t)i * (size_t)g->m + (size_t)mb + 1] : NEVER;
    if (op == 0 && i + 1 < g->n)
        give(g, 0, to = i + 1, mb, end + g->hop[0][i]);
    else if (op == 0)
        give(g, 1, i, mb, end);
    else if (i)
        give(g, 1, to = i - 1, mb, end + g->hop[1][i]);
    return to;
}

/* Whether rank r has room for more. */
static int has_room(const Greedy *g, int r, double more)
{
    return g->held[r] + more <= g->most[r];
}

/* ---- a play ---- */

/* The phase of a rank. */
static int phase_of(const Greedy *g, int r)
{
    const int *n = g->done[g->stage[r * g->v]];
    return !n[1] ? BEFORE : n[0] == g->m ? BEHIND : BETWEEN;
}

/* When the F or D `what` of rank r may run; NEVER: not before the rank is fed. F of a chunk leaves room for
 * one microbatch of each later chunk, so that what has begun can end, and its result does not arrive before
 * there is room for it.
 *   most   in      [v] the rule's bounds
 *   full   out     bool, set where F waits for room alone
 *   again  in out  lowered to when its input comes, if that is after t */
static int64_t when(const Greedy *g, const int *most, int r, int what, int64_t t, int *full, int64_t *again)
{
    int c = what / 3, op = what % 3, i = g->stage[r * g->v + c], begun = g->done[i][0];
    int64_t known = g->next[op][i];
    *again = known > t && known < *again ? known : *again;
    if (op)
        return known;
    if (begun == g->m || begun - g->done[i][1] >= most[c])
        return NEVER;
    if (!has_room(g, r, g->own[i])) {
        *full = 1;
        return NEVER;
    }
    if (!arrives(g, i + 1))
        return known;
    int to = g->rank[i + 1];
    if (!has_room(g, to, g->need[i + 1]))
        return NEVER;
    if (!g->has.strict || g->at[to] <= t || has_room(g, to, g->need[i + 1] + g->frees[to]))
        return known;
    int64_t soonest = g->at[to] - g->cost[0][i] - g->hop[0][i];
    return known > soonest ? known : soonest;
}

/* The chunk whose W rank r would do; -1: there is none. */
static int next_w(const Greedy *g, int r)
{
    int found = -1, most = 0;
    for (int c = 0; c < g->v && !g->has.whole; c++) {
        const int *n = g->done[g->stage[r * g->v + c]];
        if (n[1] - n[2] > most) {
            most = n[1] - n[2];
            found = c;
        }
    }
    return found;
}

/* What rank r begins at time t, as in a string; -1: nothing until *again (NEVER: until it is fed). */
static int decide(const Greedy *g, const Rule *rule, int r, int64_t t, int64_t *again)
{
    int full = 0, w = next_w(g, r), found = -1;
    const int *stage = g->stage + r * g->v;
    size_t own = (size_t)(phase_of(g, r) * g->p + r), chunks = (size_t)g->v;
    const uint8_t *turn = rule->turn + 2 * chunks * own;
    int64_t next = NEVER, d = NEVER;
    *again = NEVER;
    for (int k = 0; k < 2 * g->v; k++) {
        int what = turn[k];
        int64_t at = when(g, rule->most + chunks * own, r, what, t, &full, again);
        found = at <= t && found < 0 ? what : found;
        next = at > t && at < next ? at : next;
        d = what % 3 && at > t && at < d ? at : d;
    }
    if (w >= 0 && full && rule->hungry)
        return 3 * w + 2;
    if (found >= 0) {
        int64_t f = g->cost[0][stage[found / 3]];
        if (found % 3 || d == NEVER || (double)(t + f - d) <= rule->delay * (double)f)
            return found;
    }
    if (w >= 0 && (next == NEVER || full ||
                   (double)(next - t) >= rule->patience[own] * (double)g->cost[2][stage[w]]))
        return 3 * w + 2;
    return -1;
}

/* Lets rank r look at time t, unless it is busy till later or looks before. */
static void wake(Greedy *g, int r, int64_t t)
{
    uint64_t key = tournament_key(t, r);
    if (g->at[r] <= t && key < tournament_of(&g->looks, r))
        tournament_set(&g->looks, r, key);
}

int greedy_play(Greedy *g, const Rule *rule)
{
    int left = g->p * greedy_length(g);
    reset(g);
    tournament_clear(&g->looks);
    for (int r = 0; r < g->p; r++)
        wake(g, r, 0);
    for (uint64_t next; (next = tournament_least(&g->looks)) != LOOKS_NEVER;) {
        int64_t t = (int64_t)(next >> RANK_BITS), again;
        int r = next & ((1 << RANK_BITS) - 1), what = decide(g, rule, r, t, &again);
        if (what < 0) {
            tournament_set(&g->looks, r, again == NEVER ? LOOKS_NEVER : tournament_key(again, r));
            continue;
        }
        int i = g->stage[r * g->v + what / 3], op = what % 3;
        greedy_string(g, g->trial, r)[g->begun[r]] = (uint8_t)what;
        int to = run(g, i, op, t);
        left--;
        tournament_set(&g->looks, r, tournament_key(g->at[r], r));
        if (to >= 0)
            wake(g, g->rank[to], g->at[r] + g->hop[op][i]);
        for (int c = 0; c < g->v && op && g->has.early; c++) {      /* there is room for what these send */
            int before = g->stage[r * g->v + c] - 1;
            if (before >= 0)
                wake(g, g->rank[before], t);
        }
    }
    return left == 0;
}

/* ---- a replay ---- */

/* Runs what stands next in rank r's string of `trial` as long as its input is known. Returns the instructions
 * run; -1: the string is wrong, or the rank holds too much. */
static int replay_rank(Greedy *g, int r, int64_t *start)
{
    int from = g->begun[r];
    while (g->begun[r] < greedy_length(g)) {
        int at = g->begun[r], what = greedy_string(g, g->trial, r)[at], op = what % 3;
        int i = g->stage[r * g->v + what / 3], *n = g->done[i];
        int64_t t = op == 2 ? 0 : g->ready[op][(size_t)i * (size_t)g->m + (size_t)n[op]];
        double more = g->has.data[SLOT_FD][i] + g->has.data[SLOT_FW][i];
        if ((op == 1 && n[1] >= n[0]) || (op == 2 && n[2] >= n[1]) || (op == 0 && !has_room(g, r, more)))
            return -1;
        if (t == NEVER)
            break;
        t = t > g->at[r] ? t : g->at[r];
        start[(size_t)r * (size_t)greedy_length(g) + (size_t)at] = t;
        run(g, i, op, t);
    }
    return g->begun[r] - from;
}

int greedy_replay(Greedy *g, int64_t *start)
{
    int left = g->p * greedy_length(g), moved = 1;
    reset(g);
    while (moved)
        for (int turn = moved = 0; turn < 2 * g->p; turn++) {      /* down for F, up for D */
            int ran = replay_rank(g, turn < g->p ? turn : 2 * g->p - 1 - turn, start);
            if (ran < 0)
                return 0;
            moved |= ran;
            left -= ran;
        }
    return left == 0;
}

Score greedy_score(const Greedy *g)
{
    Score z = {0, 0};
    for (int r = 0; r < g->p; r++) {
        int64_t span = g->at[r] - g->began[r];
        z.makespan = g->at[r] > z.makespan ? g->at[r] : z.makespan;
        z.span = span > z.span ? span : z.span;
    }
    return z;
}

/* ---- rules ---- */

int draw(uint64_t *seed, int n)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (int)((*seed >> 33) % (uint64_t)n);
}

Rule rule_open(const Greedy *g)
{
    size_t ranks = PHASES * (size_t)g->p, chunks = ranks * (size_t)g->v;
    Rule rule = {.bytes = ranks * sizeof(double) + chunks * (sizeof(int) + 2), .delay = 1};
    rule.patience = xcalloc(1, rule.bytes);
    rule.most = (int *)(rule.patience + ranks);
    rule.turn = (uint8_t *)(rule.most + chunks);
    for (size_t i = 0; i < chunks; i++)
        rule.most[i] = g->m;
    return rule;
}

void rule_copy(Rule *to, const Rule *from)
{
    memcpy(to->patience, from->patience, from->bytes);
    to->delay = from->delay;
    to->hungry = from->hungry;
}

void rule_close(Rule *rule)
{
    free(rule->patience);
    *rule = (Rule){0};
}

void rule_alike(const Greedy *g, Rule *rule, const uint8_t *turn, double patience)
{
    for (size_t i = 0, two = 2 * (size_t)g->v; i < PHASES * (size_t)g->p; i++) {
        rule->patience[i] = patience;
        memcpy(rule->turn + i * two, turn, two);
    }
}

/* One change of one rank in one phase, drawn beforehand so that neighbours change alike. */
typedef struct { int kind, a, b, by, chunk; } Change;
enum { TURNS, PATIENCE, MOST };

static void change_rank(const Greedy *g, Rule *rule, const Change *c, int phase, int r)
{
    static const double patience[] = {0, 0.25, 0.5, 0.75, 1, 1.5};
    size_t own = (size_t)(phase * g->p + r);
    uint8_t *turn = rule->turn + 2 * (size_t)g->v * own, was = turn[c->a];
    int *most = rule->most + (size_t)g->v * own + c->chunk;
    if (c->kind == TURNS) {
        turn[c->a] = turn[c->b];
        turn[c->b] = was;
    } else if (c->kind == PATIENCE) {
        rule->patience[own] = patience[(c->by + 4) % 6];
    } else {                                   /* from no bound to one that may matter */
        int next = *most == g->m && c->by < 0 ? 1 + c->b * g->n / (2 * g->v) + c->a : *most + c->by;
        *most = next < 1 ? 1 : next > g->m ? g->m : next;
    }
}

void rule_change(const Greedy *g, Rule *rule, int apart, uint64_t *seed)
{
    static const int kinds[] = {TURNS, TURNS, PATIENCE, MOST, MOST, MOST};
    for (int left = draw(seed, 4) ? 1 : 1 + draw(seed, 3); left; left--) {
        int first = draw(seed, g->p), last = draw(seed, 4) ? first : first + draw(seed, g->p - first);
        Change c = {.kind = kinds[draw(seed, 6)]};
        c.a = draw(seed, 2 * g->v);
        c.b = draw(seed, 2 * g->v);
        c.by = draw(seed, 9) - 4;
        c.chunk = draw(seed, 2) ? 0 : draw(seed, g->v);
        int only = draw(seed, PHASES), all = !apart || !draw(seed, 3);
        for (int r = first; r <= last; r++)
            for (int phase = 0; phase < PHASES; phase++)
                if (all || phase == only)
                    change_rank(g, rule, &c, phase, r);
        rule->hungry ^= !draw(seed, 40);
    }
}

/* ---- from and to a shape ---- */

static double cost_of(const PipeShape *s, int k, int stage)
{
    return k == 3 ? pipe_hop(s, stage) : s->cost[k] ? s->cost[k][stage] : 1;
}

/* Fills quota: a microbatch of a stage is held at least from its F to its D, on its way through the stages
 * behind and back. */
static void set_quotas(Greedy *g)
{
    double held = 0, *all = g->need + g->n;
    memset(all, 0, (size_t)g->p * sizeof *all);
    for (int i = g->n - 1; i >= 0; i--) {
        double own = (double)(g->cost[0][i] + g->cost[1][i]);
        all[g->rank[i]] += (held + own) * (g->has.data[SLOT_FD][i] + g->has.data[SLOT_FW][i]);
        if (i < g->p)
            g->quota[g->rank[i]] =
                all[g->rank[i]] > 0 ? g->has.room[g->rank[i]] * (held + own) / all[g->rank[i]] : 0;
        held += own + (i ? (double)(g->hop[1][i] + g->hop[0][i - 1]) : 0);
    }
}

int greedy_stages(Greedy *g, const PipeShape *shape)
{
    int fits = 1;
    for (int i = 0; i < g->n; i++) {
        int64_t hop = llrint(cost_of(shape, 3, i) * g->scale);
        for (int k = 0; k < 3; k++)
            g->cost[k][i] = llrint(cost_of(shape, k, i) * g->scale);
        g->hop[0][i] = i + 1 < g->n && g->rank[i + 1] == g->rank[i] ? 0 : hop;
        g->hop[1][i] = i && g->rank[i - 1] == g->rank[i] ? 0 : hop;
    }
    memset(g->held, 0, (size_t)g->p * sizeof *g->held);
    for (int r = 0; r < g->p; r++) {
        double later = 0;
        g->most[r] = g->has.room[r] * (1 + 1e-9);
        for (int c = g->v - 1; c >= 0; c--) {
            int i = g->stage[r * g->v + c];
            later = g->need[i] = later + g->has.data[SLOT_FD][i] + g->has.data[SLOT_FW][i];
            g->own[i] = later - (arrives(g, i) ? g->has.data[SLOT_FD][i] : 0);
        }
        fits &= has_room(g, r, later);
    }
    return fits;
}

void greedy_lists(Greedy *g, const uint8_t *strings, InstrList *out)
{
    const uint8_t instr[] = {I_F, g->has.whole ? I_B : I_D, I_W};
    memset(g->done, 0, (size_t)g->n * sizeof *g->done);
    for (int r = 0; r < g->p; r++)
        for (int i = 0; i < greedy_length(g); i++) {
            int what = strings[r * greedy_length(g) + i], chunk = what / 3, op = what % 3;
            int mb = g->done[g->stage[r * g->v + chunk]][op]++;
            out[r].list[out[r].n++] = (Instr){.op = instr[op], .chunk = (uint8_t)chunk, .unit = WHOLE,
                                              .mb = (uint16_t)mb};
        }
}

void greedy_open(Greedy *g, const PipeShape *shape, const Held *held)
{
    size_t p = (size_t)shape->p, m = (size_t)shape->m, n = p * (size_t)shape->v;
    double longest = 0;
    *g = (Greedy){.p = shape->p, .v = shape->v, .m = shape->m, .n = (int)n, .has = *held};
    BUG_ON(g->v > STRING_CHUNKS);
    for (int k = 0; k < 4; k++)
        for (size_t i = 0; i < n; i++)
            longest = fmax(longest, cost_of(shape, k, (int)i));
    g->scale = longest > 0 ? TICKS / longest : 0;
    g->quota = xcalloc(3 * p + 2 * n, sizeof *g->quota);
    g->most = g->quota + p;
    g->own = g->most + p;
    g->need = g->own + n;
    g->rank = xcalloc(2 * n, sizeof *g->rank);
    g->stage = g->rank + n;
    for (int k = 0; k < 3; k++)
        g->cost[k] = xcalloc(n, sizeof *g->cost[k]);
    g->hop[0] = xcalloc(2 * n, sizeof *g->hop[0]);
    g->hop[1] = g->hop[0] + n;
    for (int i = 0; i < g->n; i++) {
        int chunk;
        pipe_place(shape, i, &g->rank[i], &chunk);
        g->stage[g->rank[i] * g->v + chunk] = i;
    }
    g->trial = xcalloc(3 * n, m);
    g->ready[0] = xcalloc(2 * n * m, sizeof *g->ready[0]);
    g->ready[1] = g->ready[0] + n * m;
    g->next[0] = xcalloc(2 * n, sizeof *g->next[0]);
    g->next[1] = g->next[0] + n;
    g->arrives = xcalloc(n + 1, 1);
    for (size_t i = 1; i < n; i++)
        g->arrives[i] = g->has.early && g->rank[i - 1] != g->rank[i];
    g->at = xcalloc(2 * p, sizeof *g->at);
    g->began = g->at + p;
    g->begun = xcalloc(p, sizeof *g->begun);
    g->held = xcalloc(2 * p, sizeof *g->held);
    g->frees = g->held + p;
    g->done = xcalloc(n, sizeof *g->done);
    tournament_open(&g->looks, g->p);
    greedy_stages(g, shape);
    set_quotas(g);
}

void greedy_close(Greedy *g)
{
    free(g->quota);
    free(g->rank);
    for (int k = 0; k < 3; k++)
        free(g->cost[k]);
    free(g->hop[0]);
    free(g->trial);
    free(g->ready[0]);
    free(g->next[0]);
    free(g->arrives);
    free(g->at);
    free(g->begun);
    free(g->held);
    free(g->done);
    tournament_close(&g->looks);
}
