/* capacity -- which pairs an expert takes where moe_expert_capacity_factor limits them (Lepikhin et al. 2020,
 * arXiv:2006.16668, sec 2.2; Fedus et al. 2021, arXiv:2101.03961, sec 2.1).
 *
 * Of the N tokens of a microbatch, with k choices each among E experts, an expert takes ceil(N k / E factor)
 * pairs, those of the largest weight or the first ones. The order is the global one of the tokens: by sample,
 * then by position. The ranks that share a microbatch decide together, so that the layout changes nothing.
 *
 * A pair has a key: the high bits of its weight, or 0 where the position decides. An expert has a threshold,
 * and `ties`: it takes the pairs above the threshold, and of those at the threshold the first `ties`.
 *
 * The low bits of a weight hold the rounding of sums, whose order is the layout's. They must not decide: rows
 * of equal tokens have equal weights in exact arithmetic, and each layout rounds these in its own way. So a
 * key has half of the mantissa, rounded to nearest: common weights, 1, 1/2 and 1/E, are then far from the
 * edges between two keys. Equal weights get different keys only if an edge lies among their roundings, which
 * are some 1e-15 of a weight in fp64 and 1e-6 in fp32, where the edges are 1.5e-8 and 5e-4 apart. */
#include "model.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BINS = 256 };           /* of 8 bits of a key */

static int exists(const Model *m)
{
    return !isnan(m->cfg->moe_expert_capacity_factor) && !m->now.cache;
}

/* An expert's capacity among N tokens, none of which chooses it twice. */
static int64_t capacity_of(const Config *c, int64_t N)
{
    double most = ceil((double)(N * c->moe_router_topk) / (double)c->num_moe_experts *
                       c->moe_expert_capacity_factor);
    return most < (double)N ? (int64_t)most : N;
}

/* The limit of a microbatch of N tokens that `ranks` ranks share. */
static ExpertsLimit limit_of(const Config *c, int64_t N, int ranks)
{
    int64_t n = capacity_of(c, N);
    return (ExpertsLimit){.capacity = n, .share = (n + ranks - 1) / ranks,
                          .pad = c->moe_pad_expert_input_to_capacity};
}

ExpertsLimit capacity_open(Model *m, int64_t rows)
{
    const Config *c = m->cfg;
    Capacity *x = &m->capacity;
    size_t E = (size_t)c->num_moe_experts, pairs = (size_t)(rows * c->moe_router_topk);
    int tp = c->sequence_parallel ? m->grid->size[AXIS_TP] : 1, ranks = tp * m->grid->size[AXIS_CP];
    x->pieces = 2 * (int)c->micro_batch_size;
    x->choice = xcalloc(pairs + 1, sizeof *x->choice);
    x->weight = xcalloc(pairs + 1, (size_t)dtype_size(m->dim.real));
    x->piece = xcalloc((size_t)x->pieces, sizeof *x->piece);
    x->table = xcalloc((size_t)(x->pieces * (1 + tp + ranks)) * (E + 1), sizeof *x->table);
    x->bins = xcalloc(E * BINS, sizeof *x->bins);
    x->threshold = xcalloc(E, sizeof *x->threshold);
    x->ties = xcalloc(E, sizeof *x->ties);
    x->fill = xcalloc(E, sizeof *x->fill);
    return limit_of(c, rows * ranks, ranks);
}

void capacity_close(Model *m)
{
    Capacity *x = &m->capacity;
    free(x->choice);
    free(x->weight);
    free(x->piece);
    free(x->table);
    free(x->bins);
    free(x->threshold);
    free(x->ties);
    free(x->fill);
    *x = (Capacity){0};
}

static ExpertsLimit limit_now(const Model *m)
{
    return limit_of(m->cfg, m->now.B * m->now.context.positions,
                    m->tp.group.rows->size * m->now.context.size);
}

/* Sums over the ranks that share the microbatch. */
static void sum_shared(Model *m, int64_t *x, int64_t n)
{
    Comm *rows = m->tp.group.rows, *cp = m->now.context.way[CONTEXT_P2P].ring;
    rows->wait(rows, rows->all_reduce(rows, x, n, I64, OP_SUM));
    cp->wait(cp, cp->all_reduce(cp, x, n, I64, OP_SUM));
}

/* Gathers n numbers of each rank that shares the microbatch, by context rank, then by tensor rank. x begins
 * with those of this rank, and has room for all. Returns where all of them are. */
static int64_t *gather_shared(Model *m, int64_t *x, int64_t n)
{
    Comm *rows = m->tp.group.rows, *cp = m->now.context.way[CONTEXT_P2P].ring;
    int64_t *both = x + n, *all = both + n * rows->size;
    rows->wait(rows, rows->all_gather(rows, both, x, n, I64));
    cp->wait(cp, cp->all_gather(cp, all, both, n * rows->size, I64));
    return all;
}

/* ---- the order of tokens ---- */

/* Fills x->piece: the rows of this rank as neighbours in the global order. */
static int pieces_of(Model *m, const Positions *runs, int64_t R)
{
    Capacity *x = &m->capacity;
    int64_t row0 = model_row0(m), n;
    int count = 0;
    for (int64_t row = 0; row < R; row += n, count++) {
        int64_t sample = (row0 + row) / runs->stride, at = (row0 + row) % runs->stride;
        const PositionRun *run = runs->run;
        BUG_ON(count == x->pieces);
        while (at >= run->row + run->n)
            run++;
        n = run->row + run->n - at < R - row ? run->row + run->n - at : R - row;
        x->piece[count] = (Piece){sample * m->now.context.positions + run->start + at - run->row, row, n};
    }
    return count;
}

/* Bits of a weight below those of its key: half of the mantissa's. */
static int low_bits(const Model *m) { return m->dim.real == F64 ? 26 : 12; }

/* Bits of a key. */
static int key_bits(const Model *m)
{
    return m->cfg->moe_token_drop_policy == MOE_TOKEN_DROP_POLICY_POSITION
               ? 0 : 8 * (int)dtype_size(m->dim.real) - low_bits(m);
}

static uint64_t key_of(const Model *m, int64_t pair)
{
    const Capacity *x = &m->capacity;
    int low = low_bits(m);
    if (!key_bits(m))
        return 0;
    uint64_t weight =
        m->dim.real == F64 ? ((const uint64_t *)x->weight)[pair] : ((const uint32_t *)x->weight)[pair];
    return (weight + (1u << (low - 1))) >> low;
}

/* ---- thresholds ---- */

/* Counts pairs by expert and by 8 bits of their keys, of those whose bits above agree with the threshold. */
static void count_bins(Model *m, int64_t pairs, int shift)
{
    Capacity *x = &m->capacity;
    int64_t E = m->cfg->num_moe_experts;
    memset(x->bins, 0, (size_t)(E * BINS) * sizeof *x->bins);
    for (int64_t i = 0; i < pairs; i++) {
        uint64_t key = key_of(m, i);
        int32_t e = x->choice[i];
        if (((key ^ x->threshold[e]) >> shift) < BINS)
            x->bins[e * BINS + (int64_t)(key >> shift) % BINS]++;
    }
    sum_shared(m, x->bins, E * BINS);
}

/* Whether each expert has room for all pairs that x->bins has of it. */
static int all_fit(const Model *m)
{
    const Capacity *x = &m->capacity;
    for (int64_t e = 0; e < m->cfg->num_moe_experts; e++) {
        int64_t room = x->ties[e];
        for (int bin = 0; bin < BINS; bin++)
            room -= x->bins[e * BINS + bin];
        if (room < 0)
            return 0;
    }
    return 1;
}

/* Sets the threshold and the ties of each expert: 8 bits of the key at a time, from the highest, by the
 * number of pairs of all ranks. Returns 0 if no pair is dropped.
 *   pairs  in  this rank's; -1 in a counting run, which assumes that some are dropped */
static int find_thresholds(Model *m, int64_t pairs, int64_t capacity)
{
    Capacity *x = &m->capacity;
    int first = (key_bits(m) + 7) / 8 * 8 - 8;
    for (int64_t e = 0; e < m->cfg->num_moe_experts; e++) {
        x->threshold[e] = 0;
        x->ties[e] = capacity;
    }
    for (int shift = first; shift >= 0; shift -= 8) {
        count_bins(m, pairs, shift);
        if (shift == first && pairs >= 0 && all_fit(m))
            return 0;
        for (int64_t e = 0; e < m->cfg->num_moe_experts; e++) {
            int bin = BINS - 1;
            for (; bin > 0 && x->bins[e * BINS + bin] < x->ties[e]; bin--)
                x->ties[e] -= x->bins[e * BINS + bin];
            x->threshold[e] |= (uint64_t)bin << shift;
        }
    }
    return 1;
}

/* How many pairs at the threshold each expert takes of a piece and those after it.
 *   all   in       [ranks][pieces][1 + E]  start of each piece, and its pairs at the thresholds
 *   ties  out      [E]
 *   i     in       the piece */
static void ties_from(Model *m, const int64_t *all, int64_t *ties, int i)
{
    const Capacity *x = &m->capacity;
    int64_t E = m->cfg->num_moe_experts,
            n = x->pieces * (int64_t)m->tp.group.rows->size * m->now.context.size;
    memcpy(ties, x->ties, (size_t)E * sizeof *ties);
    for (int64_t p = 0; p < n; p++, all += E + 1)
        for (int64_t e = 0; all[0] < x->piece[i].start && e < E; e++)
            ties[e] -= all[1 + e];
}

/* Marks the pairs that are dropped in x->choice. */
static void mark_dropped(Model *m, int count)
{
    Capacity *x = &m->capacity;
    int64_t E = m->cfg->num_moe_experts, k = m->cfg->moe_router_topk, n = x->pieces * (E + 1);
    memset(x->table, 0, (size_t)n * sizeof *x->table);
    for (int i = 0; i < count; i++) {
        int64_t *of = x->table + i * (E + 1);
        of[0] = x->piece[i].start;
        for (int64_t j = x->piece[i].row * k; j < (x->piece[i].row + x->piece[i].n) * k; j++)
            of[1 + x->choice[j]] += key_of(m, j) == x->threshold[x->choice[j]];
    }
    const int64_t *all = gather_shared(m, x->table, n);
    for (int i = 0; i < count; i++) {
        int64_t *ties = x->bins;
        ties_from(m, all, ties, i);
        for (int64_t j = x->piece[i].row * k; j < (x->piece[i].row + x->piece[i].n) * k; j++) {
            int32_t e = x->choice[j];
            uint64_t key = key_of(m, j);
            if (key < x->threshold[e] || (key == x->threshold[e] && --ties[e] < 0))
                x->choice[j] = experts_dropped(e);
        }
    }
}

void capacity_drop(Model *m, const Pass *p, LayerActs *a)
{
    Device *d = m->dev;
    Capacity *x = &m->capacity;
    int64_t R = a->weight.rows, pairs = R * a->weight.cols;
    size_t bytes = (size_t)pairs * sizeof *a->kept;
    a->kept = a->choice;
    if (!exists(m))
        return;
    a->kept = arena_take(p->keep_d, bytes);
    int counting = !a->kept, count = pieces_of(m, &p->batch->runs, R);
    if (!counting) {
        d->get(d, x->choice, a->choice, bytes);
        d->get(d, x->weight, a->weight.p, mat_bytes(a->weight));
    }
    if (find_thresholds(m, counting ? -1 : pairs, limit_now(m).capacity))
        mark_dropped(m, counting ? 0 : count);
    if (!counting)
        d->put(d, a->kept, x->choice, bytes);
}

/* ---- empty pairs ---- */

/* Fills x->fill: each expert lacks pairs up to its capacity, and ranks with fewer than their share take
 * these, the first ranks first. So no rank has more than its share because of empty pairs. */
static void fill_up(Model *m, const LayerActs *a, const ExpertsLimit *l)
{
    Capacity *x = &m->capacity;
    Comm *rows = m->tp.group.rows;
    int64_t E = m->cfg->num_moe_experts, pairs = a->weight.rows * a->weight.cols;
    int64_t ranks = (int64_t)rows->size * m->now.context.size,
            here = (int64_t)m->now.context.rank * rows->size + rows->rank;
    memset(x->table, 0, (size_t)E * sizeof *x->table);
    m->dev->get(m->dev, x->choice, a->kept, (size_t)pairs * sizeof *a->kept);
    for (int64_t i = 0; a->kept && i < pairs; i++)
        if (x->choice[i] >= 0)
            x->table[x->choice[i]]++;
    const int64_t *all = gather_shared(m, x->table, E);
    for (int64_t e = 0; e < E; e++) {
        int64_t lack = l->capacity;
        for (int64_t r = 0; r < ranks; r++)
            lack -= all[r * E + e];
        for (int64_t r = 0; r <= here; r++, lack -= x->fill[e]) {
            int64_t room = l->share - all[r * E + e];
            x->fill[e] = room < 0 ? 0 : room < lack ? room : lack;
        }
    }
}

const ExpertsLimit *capacity_limit(Model *m, const LayerActs *a, ExpertsLimit *l)
{
    if (!exists(m))
        return NULL;
    *l = limit_now(m);
    if (l->pad) {
        fill_up(m, a, l);
        l->fill = a->kept ? m->capacity.fill : NULL;
    }
    return l;
}
