/* patterns -- v-half and v-min, which hold about a half and a third of 1F1B's activations (Qi et al. 2024,
 * arXiv:2405.15362, sec 3)
 *
 * Time is in cells, a cell is the F of one chunk. A rank runs F of chunk 0, F of chunk 1, D of chunk 1 and D
 * of chunk 0 of microbatch j in cells offset[0..3] + 6 j. No two of these share a cell, and two cells of six
 * stay empty for W. The distances between the offsets decide the memory. The pattern has gaps at its ends,
 * which are squeezed out: instructions before the first D of stage 0, or after its last F, move to the
 * first empty cell where their input is there and memory stays within the pattern's peak. Then the ranks run
 * in that order, with W wherever a rank would wait or has no room. */
#include "base.h"
#include "generators.h"
#include "vee.h"
#include <stdlib.h>
#include <string.h>

enum { F0, F1, D1, D0, W, KINDS, EMPTY = 0xff };

static const uint8_t op_of[] = {I_F, I_F, I_D, I_D}, chunk_of[] = {0, 1, 1, 0};

typedef struct {
    int p, m, cells;
    int limit;                 /* activations of chunks that a rank may hold */
    int (*at)[4];              /* [p] offsets */
    uint8_t *cell;             /* [p][cells] what runs in a cell, F0 to W; or EMPTY */
    int *held;                 /* [p][cells] activations of chunks held then */
    int *when;                 /* [p][4][m] cell of each F0 to D0 */
    int *backward;             /* [p][2m] cells of all D so far, sorted */
    int (*n)[KINDS];           /* [p] instructions of each kind so far */
    int *last;                 /* [p] cell of the last W; -1: none */
    int *due;                  /* [p][cells] W that wait for an empty cell */
} Grid;

static uint8_t *cells_of(Grid *g, int rank) { return g->cell + (size_t)rank * (size_t)g->cells; }
static int *held_by(Grid *g, int rank) { return g->held + (size_t)rank * (size_t)g->cells; }

static int *when(Grid *g, int rank, int kind, int mb)
{
    return &g->when[((size_t)rank * 4 + (size_t)kind) * (size_t)g->m + (size_t)mb];
}

/* Lays the pattern of a rank, with each W in the first empty cell after its D. */
static void lay(Grid *g, int rank)
{
    uint8_t *cell = cells_of(g, rank);
    int *held = held_by(g, rank), pending = 0, now = 0;
    memset(cell, EMPTY, (size_t)g->cells);
    for (int k = 0; k < 4; k++)
        for (int j = 0; j < g->m; j++) {
            *when(g, rank, k, j) = g->at[rank][k] + 6 * j;
            cell[g->at[rank][k] + 6 * j] = (uint8_t)k;
        }
    for (int t = 0; t < g->cells; t++) {
        if (cell[t] == EMPTY && pending)
            cell[t] = W, pending--, now--;
        else if (cell[t] != EMPTY)
            now += cell[t] < D1, pending += cell[t] >= D1;
        held[t] = now;
        g->limit = now > g->limit ? now : g->limit;
    }
    BUG_ON(pending);
}

/* The first cell in which a rank could run its mb-th `kind`: when the input is there. */
static int earliest(Grid *g, int rank, int kind, int mb)
{
    int t = -1, before = kind == F0 || kind == D1 ? rank - 1 : rank + 1;
    if (kind == W) {
        int d = g->backward[(size_t)rank * 2 * (size_t)g->m + (size_t)mb];
        return 1 + (d > g->last[rank] ? d : g->last[rank]);
    }
    if (before >= 0 && before < g->p)
        t = *when(g, before, kind, mb);
    if (kind != F0 && *when(g, rank, kind - 1, mb) > t)
        t = *when(g, rank, kind - 1, mb);
    if (mb && *when(g, rank, kind, mb - 1) > t)
        t = *when(g, rank, kind, mb - 1);
    return t + 1;
}

/* The first cell up to t to which the mb-th `kind` may move: empty, input there, memory within the limit. */
static int better(Grid *g, int rank, int kind, int mb, int t)
{
    const uint8_t *cell = cells_of(g, rank);
    const int *held = held_by(g, rank);
    int from = earliest(g, rank, kind, mb), x = from;
    if (kind < D1)
        for (x = t; x > from && held[x - 1] < g->limit;)
            x--;
    while (x < t && cell[x] != EMPTY)
        x++;
    return x < t ? x : t;
}

/* Moves the mb-th `kind` of a rank from one cell to an earlier one, or leaves it where it is. */
static void move(Grid *g, int rank, int kind, int mb, int from, int to)
{
    uint8_t *cell = cells_of(g, rank);
    int *held = held_by(g, rank), more = kind < D1 ? 1 : kind == W ? -1 : 0;
    cell[from] = EMPTY;
    cell[to] = (uint8_t)kind;
    for (int x = to; x < from; x++)
        held[x] += more;
    if (kind == W)
        g->last[rank] = to;
    else
        *when(g, rank, kind, mb) = to;
    if (kind != D1 && kind != D0)
        return;
    int *sorted = g->backward + (size_t)rank * 2 * (size_t)g->m, i = g->n[rank][D1] + g->n[rank][D0] - 1;
    for (; i && sorted[i - 1] > to; i--)
        sorted[i] = sorted[i - 1];
    sorted[i] = to;
}

static void squeeze(Grid *g)
{
    int loose = 1;
    for (int t = 0; t < g->cells; t++)
        for (int rank = 0; rank < g->p; rank++) {
            int kind = cells_of(g, rank)[t];
            if (kind == EMPTY)
                continue;
            int mb = g->n[rank][kind]++;
            if (kind == D0 && rank == 0 && mb == 0)
                loose = 0;
            move(g, rank, kind, mb, t, loose ? better(g, rank, kind, mb, t) : t);
            if (kind == F0 && mb == g->m - 1)
                loose = 1;
        }
}

/* ---- the ranks run in that order ---- */

typedef struct {
    InstrList *out;
    int rank;
    int held, limit;           /* activations of chunks; the peak of the squeezed pattern */
    int next;                  /* cell of the next F or D */
    int w;                     /* place in the list of the D whose W is next */
} Runner;

/* Runs one rank for one cell of time. 0: the rank waits. */
static int run_cell(Grid *g, Runner *r, int t)
{
    const uint8_t *cell = cells_of(g, r->rank);
    InstrList *l = r->out;
    while (r->next < g->cells && cell[r->next] >= W)
        r->next++;
    if (r->next < g->cells) {
        int kind = cell[r->next], mb = g->n[r->rank][kind];
        if (earliest(g, r->rank, kind, mb) <= t && (kind >= D1 || r->held < r->limit)) {
            l->list[l->n++] =
                (Instr){.op = op_of[kind], .chunk = chunk_of[kind], .unit = WHOLE, .mb = (uint16_t)mb};
            *when(g, r->rank, kind, mb) = t;
            g->n[r->rank][kind]++;
            r->held += kind < D1;
            r->next++;
            return 1;
        }
    }
    while (r->w < l->n && l->list[r->w].op != I_D)
        r->w++;
    if (r->w == l->n)
        return 0;
    l->list[l->n] = l->list[r->w++];
    l->list[l->n++].op = I_W;
    r->held--;
    return 1;
}

static void run(Grid *g, InstrList *out)
{
    Runner *r = xcalloc((size_t)g->p, sizeof *r);
    for (int rank = 0; rank < g->p; rank++) {
        r[rank] = (Runner){.out = &out[rank], .rank = rank};
        for (int t = 0; t < g->cells; t++)
            if (held_by(g, rank)[t] > r[rank].limit)
                r[rank].limit = held_by(g, rank)[t];
    }
    memset(g->n, 0, (size_t)g->p * sizeof *g->n);
    size_t all = (size_t)g->p * 4 * (size_t)g->m;
    memset(g->when, 0x7f, all * sizeof *g->when);          /* later than any t: has not run */
    for (int t = 0, left = g->p * g->m * 6, now; left; t++, left -= now) {
        now = 0;
        for (int rank = 0; rank < g->p; rank++)
            now += run_cell(g, &r[rank], t);
        BUG_ON(!now);
    }
    free(r);
}

/* ---- the order as published ---- */

/* Moves every instruction to the first cell in which it can run, in the order of the cells. */
static void settle(Grid *g)
{
    int *next = xcalloc((size_t)g->p, sizeof *next);
    memset(g->n, 0, (size_t)g->p * sizeof *g->n);
    for (int t = 0; t < g->cells; t++)
        for (int rank = 0; rank < g->p; rank++) {
            uint8_t *cell = cells_of(g, rank);
            int kind = cell[t];
            if (kind == EMPTY)
                continue;
            int mb = g->n[rank][kind]++, first = kind == W ? 0 : earliest(g, rank, kind, mb);
            int to = first > next[rank] ? first : next[rank];
            cell[t] = EMPTY;
            cell[to] = (uint8_t)kind;
            if (kind != W)
                *when(g, rank, kind, mb) = to;
            next[rank] = to + 1;
        }
    free(next);
}

/* Takes all W out, or puts them into the first empty cells behind their D. */
static void empty_w(Grid *g)
{
    for (size_t i = 0; i < (size_t)g->p * (size_t)g->cells; i++)
        if (g->cell[i] == W)
            g->cell[i] = EMPTY;
}

static void fill_w(Grid *g)
{
    for (int rank = 0; rank < g->p; rank++) {
        uint8_t *cell = cells_of(g, rank);
        for (int t = 0, due = 0; t < g->cells; t++) {
            if (cell[t] == EMPTY && due)
                cell[t] = W, due--;
            else if (cell[t] != EMPTY)
                due += cell[t] >= D1;
        }
    }
}

/* Counts what a rank holds, and the W that are due, from a cell on until nothing has changed behind cell
 * `to`, as if every W ran in the first empty cell. Returns the most. */
static int count(Grid *g, int rank, int from, int to)
{
    const uint8_t *cell = cells_of(g, rank);
    int *held = held_by(g, rank), *due = g->due + (size_t)rank * (size_t)g->cells, most = 0;
    for (int t = from; t < g->cells; t++) {
        int now = t ? held[t - 1] : 0, wait = t ? due[t - 1] : 0;
        if (cell[t] == EMPTY)
            now -= wait > 0, wait -= wait > 0;
        else
            now += cell[t] < D1, wait += cell[t] >= D1;
        most = now > most ? now : most;
        if (t > to && held[t] == now && due[t] == wait)
            break;
        held[t] = now;
        due[t] = wait;
    }
    return most;
}

/* Moves instructions without W into earlier cells, from the last F of stage 0 on. */
static void squeeze_end(Grid *g)
{
    int end = 0;
    g->due = xcalloc((size_t)g->p * (size_t)g->cells, sizeof *g->due);
    g->limit = 0;
    for (int rank = 0; rank < g->p; rank++) {
        int most = count(g, rank, 0, g->cells);
        g->limit = most > g->limit ? most : g->limit;
    }
    memset(g->n, 0, (size_t)g->p * sizeof *g->n);
    for (int t = 0; t < g->cells; t++)
        for (int rank = 0; rank < g->p; rank++) {
            uint8_t *cell = cells_of(g, rank);
            int kind = cell[t];
            if (kind == EMPTY)
                continue;
            int mb = g->n[rank][kind]++;
            for (int x = end ? earliest(g, rank, kind, mb) : t; x < t; x++) {
                if (cell[x] != EMPTY)
                    continue;
                cell[t] = EMPTY;
                cell[x] = (uint8_t)kind;
                if (count(g, rank, x, t) <= g->limit) {
                    *when(g, rank, kind, mb) = x;
                    break;
                }
                cell[x] = EMPTY;
                cell[t] = (uint8_t)kind;
                count(g, rank, x, t);
            }
            end |= kind == F0 && mb == g->m - 1;
        }
    free(g->due);
}

static void write_cells(Grid *g, InstrList *out)
{
    memset(g->n, 0, (size_t)g->p * sizeof *g->n);
    for (int rank = 0; rank < g->p; rank++) {
        InstrList *l = &out[rank];
        int w = 0;
        for (int t = 0; t < g->cells; t++) {
            int kind = cells_of(g, rank)[t];
            if (kind == EMPTY)
                continue;
            if (kind == W) {
                while (l->list[w].op != I_D)
                    w++;
                l->list[l->n] = l->list[w++];
                l->list[l->n++].op = I_W;
            } else {
                l->list[l->n++] = (Instr){.op = op_of[kind], .chunk = chunk_of[kind], .unit = WHOLE,
                                          .mb = (uint16_t)g->n[rank][kind]++};
            }
        }
    }
}

/* The squeezed pattern as the paper runs it: the end is squeezed once more, without W, which then take the
 * empty cells. */
static void publish(Grid *g, InstrList *out)
{
    settle(g);
    empty_w(g);
    squeeze_end(g);
    fill_w(g);
    settle(g);
    empty_w(g);
    fill_w(g);
    write_cells(g, out);
}

/* Replaces the order `out` by the best for the times of the shape. */
static void vary(const PipeShape *s, Grid *g, InstrList *out)
{
    Vee v;
    vee_open(&v, s, out);
    if (vee_uneven(s))
        vee_refill(&v, out);
    vee_clear(&v);
    publish(g, v.trial);
    vee_publish(&v);
    if (vee_uneven(s))
        vee_refill(&v, v.trial);
    vee_close(&v);
}

static void from_pattern(const PipeShape *s, int (*at)[4], InstrList *out)
{
    size_t p = (size_t)s->p, m = (size_t)s->m;
    Grid g = {.p = s->p, .m = s->m, .at = at};
    for (int r = 0; r < s->p; r++)
        g.cells = at[r][D0] > g.cells ? at[r][D0] : g.cells;
    g.cells += 8 * s->m;                                   /* room behind the last D for every W */
    g.cell = xcalloc(p * (size_t)g.cells, sizeof *g.cell);
    g.held = xcalloc(p * (size_t)g.cells, sizeof *g.held);
    g.when = xcalloc(p * 4 * m, sizeof *g.when);
    g.backward = xcalloc(p * 2 * m, sizeof *g.backward);
    g.n = xcalloc(p, sizeof *g.n);
    g.last = xcalloc(p, sizeof *g.last);
    for (int r = 0; r < s->p; r++) {
        g.last[r] = -1;
        lay(&g, r);
    }
    squeeze(&g);
    run(&g, out);
    vary(s, &g, out);
    free(g.cell);
    free(g.held);
    free(g.when);
    free(g.backward);
    free(g.n);
    free(g.last);
    free(at);
}

void generate_v_half(const PipeShape *s, InstrList *out)
{
    int p = s->p, k = p % 2 ? 0 : 3, (*at)[4] = xcalloc((size_t)p, sizeof *at);
    for (int i = 0; i < p; i++)
        memcpy(at[i], (const int[4]){2 * i, 3 * p - i - 2, 3 * p + k + 2 * i - 1, 6 * p + k - i - 2},
               sizeof at[i]);
    from_pattern(s, at, out);
}

void generate_v_min(const PipeShape *s, InstrList *out)
{
    int p = s->p, k = p % 3 ? 0 : 2, (*at)[4] = xcalloc((size_t)p, sizeof *at);
    for (int i = 0; i < p; i++)
        memcpy(at[i], (const int[4]){i, 2 * p - i - 1, 2 * p + k + i, 4 * p + k - i - 1}, sizeof at[i]);
    from_pattern(s, at, out);
}
