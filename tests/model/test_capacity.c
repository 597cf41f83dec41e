/* test_capacity -- which pairs an expert takes, under a launcher, on every tp x cp that divides the world: by
 * an oracle in integers, in which every rank knows all tokens of the microbatch. Weights are a few numbers,
 * so that ties are many; equal ones differ by roundings, which are others on every rank and grid. */
#include "job.h"
#include "model.h"
#include "test.h"

typedef enum { UNIFORM, ONE_HOT, SKEWED, SPREADS } Spread;
static const char *const spread_name[SPREADS] = {"uniform", "one hot", "skewed"};
static int world, rank, dropped, filled;

/* A capacity factor is over / under. close, bool: weights of which each is little above the one before. */
typedef struct {
    int B, positions, E, k, over, under, by_position, pad, close, tp, cp;
    Spread spread;
    Dtype real;
} Case;

/* Choice j of token t = sample * positions + position: neighbours, so that none comes twice. */
static int32_t expert_of(const Case *c, int64_t t, int j)
{
    uint64_t draw = philox(5, (uint64_t)t, (uint64_t)c->E).v[0];
    uint64_t start = c->spread == ONE_HOT ? 0 : c->spread == SKEWED ? draw % 8 % (uint64_t)c->E / 2
                                                                    : draw % (uint64_t)c->E;
    return (int32_t)((start + (uint64_t)j) % (uint64_t)c->E);
}

/* Its weight in steps. */
static int weight_of(int64_t t, int j) { return (int)(philox(6, (uint64_t)t, (uint64_t)j).v[0] % 5); }

/* The weight as a rank computes it: steps of a sixteenth, or close to each other, and the rounding of sums
 * whose order is the rank's own. */
static double computed_weight(const Case *c, int64_t t, int j)
{
    uint64_t draw = philox(7 + (uint64_t)rank, (uint64_t)t, (uint64_t)(j + 64 * c->tp)).v[0];
    double noise = ((double)(draw % 65) - 32) * (c->real == F64 ? 0x1p-53 : 0x1p-24),
           step = c->real == F64 ? 0x1p-22 : 0x1p-10;
    return (c->close ? 0.25 * (1 + weight_of(t, j) * step) : weight_of(t, j) / 16.0) * (1 + noise);
}

static int64_t capacity_by_hand(const Case *c)
{
    int64_t N = (int64_t)c->B * c->positions, n = N * c->k * c->over, of = (int64_t)c->E * c->under;
    return (n + of - 1) / of < N ? (n + of - 1) / of : N;
}

/* Whether the pair stays: fewer than the capacity come before it. */
static int stays(const Case *c, int64_t t, int j)
{
    int64_t ahead = 0;
    for (int64_t s = 0; s < (int64_t)c->B * c->positions; s++)
        for (int i = 0; i < c->k; i++) {
            int more = c->by_position ? 0 : weight_of(s, i) - weight_of(t, j);
            ahead += expert_of(c, s, i) == expert_of(c, t, j) && (more > 0 || (more == 0 && s < t));
        }
    return ahead < capacity_by_hand(c);
}

/* The token of a row: a context rank has two of 2 cp chunks of each sample, mirrored; a tensor rank has a
 * part of these rows. */
static int64_t token_of(const Case *c, const Grid *g, int64_t row)
{
    int64_t S = c->positions / c->cp, at = row + g->index[AXIS_TP] * (c->B * S / c->tp), seen = 0;
    for (int64_t p = 0; p < c->positions; p++) {
        int64_t chunk = ((p + 1) * 2 * c->cp - 1) / c->positions;
        if (chunk != g->index[AXIS_CP] && chunk != 2 * c->cp - 1 - g->index[AXIS_CP])
            continue;
        if (seen++ == at % S)
            return at / S * c->positions + p;
    }
    return -1;
}

static const char *say(const Case *c)
{
    static char text[200];
    snprintf(text, sizeof text, "tp %d cp %d, %d x %d tokens, %d of %d experts, factor %d/%d, %s, %s, %s%s%s",
             c->tp, c->cp, c->B, c->positions, c->k, c->E, c->over, c->under, spread_name[c->spread],
             c->by_position ? "position" : "probs", c->real == F64 ? "F64" : "F32", c->pad ? ", pad" : "",
             c->close ? ", close" : "");
    return text;
}

/* Each expert gets as many rows as its capacity, and no rank has more than its share because of zeros. */
static void check_fill(Model *m, const LayerActs *a, const Case *c, int64_t pairs)
{
    ExpertsLimit l;
    const ExpertsLimit *got = capacity_limit(m, a, &l);
    int64_t all[64] = {0}, own[64] = {0}, C = capacity_by_hand(c), ranks = c->tp * c->cp;
    int64_t share = (C + ranks - 1) / ranks;
    CHECK(got == &l && l.capacity == C && l.share == share, "%s: capacity %ld, want %ld", say(c),
          (long)l.capacity, (long)C);
    if (!c->pad)
        return;
    for (int64_t i = 0; i < pairs; i++)
        own[a->kept[i] < 0 ? 63 : a->kept[i]]++;
    for (int e = 0; e < c->E; e++) {
        all[e] = own[e] + l.fill[e];
        CHECK(l.fill[e] >= 0 && (!l.fill[e] || all[e] <= share), "%s: %ld rows of zeros beside %ld", say(c),
              (long)l.fill[e], (long)own[e]);
        filled += l.fill[e] > 0;
    }
    Comm *rows = m->tp.group.rows, *cp = &m->grid->axis[AXIS_CP];
    rows->wait(rows, rows->all_reduce(rows, all, c->E, I64, OP_SUM));
    cp->wait(cp, cp->all_reduce(cp, all, c->E, I64, OP_SUM));
    for (int e = 0; e < c->E; e++)
        CHECK(all[e] == C, "%s: expert %d gets %ld rows, want %ld", say(c), e, (long)all[e], (long)C);
}

static void check_case(Model *m, const Case *c, const Grid *g, Arena *mem)
{
    int64_t R = (int64_t)c->B * c->positions / (c->tp * c->cp), bad = 0;
    Batch batch = {.batch = c->B, .seq = c->positions, .runs = context_own(&m->now.context)};
    Pass p = {.batch = &batch, .keep_d = mem};
    mem->used = 0;
    LayerActs a = {.weight = mat_take(mem, R, c->k, c->real),
                   .choice = arena_take(mem, (size_t)(R * c->k) * sizeof *a.choice)};
    for (int64_t i = 0; i < R * c->k; i++) {
        int64_t t = token_of(c, g, i / c->k);
        int j = (int)(i % c->k);
        a.choice[i] = expert_of(c, t, j);
        if (c->real == F64)
            ((double *)a.weight.p)[i] = computed_weight(c, t, j);
        else
            ((float *)a.weight.p)[i] = (float)computed_weight(c, t, j);
    }
    capacity_drop(m, &p, &a);
    for (int64_t i = 0; i < R * c->k; i++) {
        int stay = stays(c, token_of(c, g, i / c->k), (int)(i % c->k));
        bad += a.kept[i] != (stay ? a.choice[i] : experts_dropped(a.choice[i])) ||
               experts_chosen(a.kept[i]) != a.choice[i];
        dropped += !stay;
    }
    CHECK(!bad, "%s: %ld of %ld pairs wrong", say(c), (long)bad, (long)(R * c->k));
    check_fill(m, &a, c, R * c->k);
}

/* Runs a case with the parts of a model that capacity.c reads. */
static void run_case(Case c, Grid *g, Device *d, Arena *mem)
{
    Config cfg = {.num_moe_experts = c.E, .moe_router_topk = c.k, .micro_batch_size = c.B,
                  .moe_expert_capacity_factor = (double)c.over / c.under, .sequence_parallel = c.tp > 1,
                  .moe_pad_expert_input_to_capacity = c.pad,
                  .moe_token_drop_policy =
                      c.by_position ? MOE_TOKEN_DROP_POLICY_POSITION : MOE_TOKEN_DROP_POLICY_PROBS};
    Model m = {.cfg = &cfg, .grid = g, .dev = d, .dim.real = c.real,
               .now = {.B = c.B, .S = c.positions / c.cp}};
    comm_self_open(&m.tp.one, "rows");
    m.tp.group.rows = &g->axis[AXIS_TP];
    context_open(&m.now.context, g, &m.tp.one, c.positions);
    ExpertsLimit most = capacity_open(&m, (int64_t)c.B * c.positions / (c.tp * c.cp));
    CHECK(most.capacity == capacity_by_hand(&c), "%s: the largest capacity", say(&c));
    check_case(&m, &c, g, mem);
    capacity_close(&m);
}

static void check_grid(int tp, int cp, Device *d, Arena *mem)
{
    static const int factors[][2] = {{0, 1}, {1, 2}, {1, 1}, {5, 4}, {1000, 1}};
    static const int of[][2] = {{1, 1}, {4, 1}, {4, 2}, {6, 4}, {4, 4}, {12, 3}};
    GridSpec spec = {.size = {tp, cp, 1, world / (tp * cp), 1}, .etp = 1, .ep = 1};
    Grid g;
    grid_parse_order("tp-cp-ep-dp-pp", spec.order);
    grid_open(&g, &spec, world, rank);
    for (size_t f = 0; f < sizeof factors / sizeof *factors; f++)
        for (size_t e = 0; e < sizeof of / sizeof *of; e++)
            for (int i = 0; i < 2 * 2 * 2 * SPREADS; i++) {
                Case c = {.B = 1 + (int)e % 3, .positions = tp * cp * (2 + (int)(f + e) % 4), .E = of[e][0],
                          .k = of[e][1], .over = factors[f][0], .under = factors[f][1], .by_position = i % 2,
                          .pad = i / 2 % 2, .tp = tp, .cp = cp, .close = i / 4 % 2,
                          .spread = (Spread)(i / 8), .real = (i + (int)e) % 3 ? F64 : F32};
                run_case(c, &g, d, mem);
            }
    grid_close(&g);
}

int main(void)
{
    Device d;
    Arena mem;
    world = job_launched(&rank);
    cpu_open(&d, F64, test_isa(), 1);
    arena_open(&mem, "test_capacity", (size_t)4 << 20);
    for (int tp = 1; tp <= world; tp++)
        for (int cp = 1; cp <= world / tp; cp++)
            if (world % (tp * cp) == 0)
                check_grid(tp, cp, &d, &mem);
    CHECK(dropped > 100 && filled > 10, "%d pairs were dropped, %d filled", dropped, filled);
    arena_close(&mem);
    cpu_close(&d);
    return rank ? 0 : test_end();
}
