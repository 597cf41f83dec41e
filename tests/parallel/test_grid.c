/* test_grid -- the groups of a grid against two generators: an odometer that counts through all
 * coordinates, and the strided ranges by which Megatron-LM's earlier code listed the groups of the
 * default order. Then, for all 120 orders and all factorisations of up to 64 ranks: groups part the
 * world, two groups meet in one rank, coordinates round-trip, the expert grid included; and the derived
 * groups (key/value heads, shards, copies, embedding). */
#include "grid.h"
#include "test.h"

#define RANKS 10752
#define BIT(a) (1u << (a))

static uint64_t seed;
static int draw(int n) { return (int)(philox(3, seed++, 0).v[0] % (uint32_t)n); }

/* ---- the odometer ---- */

static int place[RANKS][AXES];

static void count_through(const int size[AXES], const Axis order[AXES], int world)
{
    int at[AXES] = {0};
    for (int r = 0; r < world; r++) {
        memcpy(place[r], at, sizeof at);
        for (int k = 0; k < AXES && ++at[order[k]] == size[order[k]]; k++)
            at[order[k]] = 0;
    }
}

/* Lists the ranks whose coordinates equal those of `rank` on all axes outside the mask, in rising order. */
static int same_elsewhere(unsigned mask, int rank, int world, int *out)
{
    int n = 0;
    for (int r = 0; r < world; r++) {
        int same = 1;
        for (int a = 0; a < AXES; a++)
            same &= (mask >> a & 1) || place[r][a] == place[rank][a];
        if (same)
            out[n++] = r;
    }
    return n;
}

static int got[RANKS], want[RANKS];

static void compare(int n, int m, const char *what, const GridSpec *s, int rank)
{
    CHECK(n == m && !memcmp(got, want, (size_t)n * sizeof *got),
          "%s of rank %d: tp %d cp %d ep %d dp %d pp %d: %d, %d ranks", what, rank, s->size[AXIS_TP],
          s->size[AXIS_CP], s->ep, s->size[AXIS_DP], s->size[AXIS_PP], n, m);
}

/* ---- Megatron-LM's ranges, default order ---- */

static int range(int from, int to, int step)
{
    int n = 0;
    for (int r = from; r < to; r += step)
        want[n++] = r;
    return n;
}

/* grid_first is the first rank that grid_index places there. */
static void lowest(const GridSpec *s)
{
    for (int a = 0; a < AXES; a++)
        for (int i = 0; i < s->size[a]; i++) {
            int r = 0;
            while (grid_index(s, r, (Axis)a) != i)
                r++;
            CHECK(grid_first(s, (Axis)a, i) == r, "axis %d, place %d: %d instead of %d", a, i,
                  grid_first(s, (Axis)a, i), r);
        }
}

static void strided(const GridSpec *s, int world, int rank)
{
    const int *size = s->size;
    int tp = size[AXIS_TP], cp = size[AXIS_CP], pp = size[AXIS_PP], stage = world / pp,
        first = rank / stage * stage;
    struct { const char *name; unsigned mask; int n;
    } g[] = {{"tp", BIT(AXIS_TP), 0},
             {"cp", BIT(AXIS_CP), 0},
             {"dp", BIT(AXIS_DP), 0},
             {"pp", BIT(AXIS_PP), 0},
             {"dp-cp", BIT(AXIS_DP) | BIT(AXIS_CP), 0},
             {"tp-dp-cp", BIT(AXIS_TP) | BIT(AXIS_DP) | BIT(AXIS_CP), 0}};
    for (int i = 0; i < 6; i++) {
        int block = rank / (tp * cp) * tp * cp, m = 0;
        switch (i) {
        case 0: m = range(rank / tp * tp, rank / tp * tp + tp, 1); break;
        case 1: m = range(block + rank % tp, block + tp * cp, tp); break;
        case 2: m = range(first + rank % (tp * cp), first + stage, tp * cp); break;
        case 3: m = range(rank % stage, world, stage); break;
        case 4: m = range(first + rank % tp, first + stage, tp); break;
        case 5: m = range(first, first + stage, 1); break;
        }
        compare(grid_group(size, s->order, g[i].mask, rank, got), m, g[i].name, s, rank);
    }
}

/* Sizes that Megatron-LM's test of its rank order covers: nodes, ranks a node, tp, pp, cp, ep. */
static const int published[][6] = {
    {1, 1, 1, 1, 1, 1},   {1, 8, 8, 1, 1, 1},    {1, 8, 2, 2, 1, 1},   {1, 8, 2, 4, 1, 1},
    {1, 8, 1, 8, 1, 1},   {1, 8, 2, 2, 1, 2},    {1, 8, 1, 1, 8, 1},   {1, 8, 4, 1, 2, 1},
    {2, 8, 4, 2, 1, 1},   {2, 8, 4, 2, 1, 2},    {2, 8, 2, 2, 2, 1},   {2, 8, 1, 4, 1, 4},
    {4, 8, 8, 4, 1, 1},   {4, 8, 2, 4, 2, 1},    {4, 8, 2, 2, 1, 8},   {8, 8, 8, 8, 1, 1},
    {8, 8, 2, 4, 1, 4},   {8, 8, 4, 4, 2, 1},    {16, 8, 8, 4, 1, 1},  {16, 8, 4, 8, 1, 2},
    {16, 8, 2, 8, 4, 1},  {18, 8, 4, 6, 1, 3},   {24, 8, 4, 4, 1, 6},  {32, 8, 8, 8, 1, 4},
    {48, 8, 8, 6, 2, 1},  {64, 8, 8, 16, 1, 1},  {64, 8, 4, 8, 1, 8},  {96, 4, 4, 8, 1, 12},
    {128, 8, 8, 8, 8, 1}, {128, 8, 2, 16, 1, 8}, {316, 8, 4, 8, 1, 1}, {384, 8, 4, 8, 1, 1},
    {768, 8, 4, 8, 2, 1}, {1280, 8, 4, 8, 1, 8}, {1344, 8, 4, 8, 1, 1}};

static void published_sizes(void)
{
    for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
        const int *p = published[i];
        int world = p[0] * p[1], dp = world / (p[2] * p[3] * p[4]), expert[AXES];
        GridSpec s = {.size = {p[2], p[4], 1, dp, p[3]}, .etp = p[2], .ep = p[5]};
        CHECK(p[2] * p[4] * dp * p[3] == world && world <= RANKS, "row %zu", i);
        grid_parse_order("tp-cp-ep-dp-pp", s.order);
        lowest(&s);
        for (int k = 0; k < 40; k++)
            strided(&s, world, draw(world));
        count_through(s.size, s.order, world);
        for (unsigned mask = 0; mask < 32; mask++) {
            int r = draw(world);
            compare(grid_group(s.size, s.order, mask, r, got), same_elsewhere(mask, r, world, want), "dense",
                    &s, r);
        }
        if (p[4] > 1 && p[5] > 1)
            continue;
        CHECK(grid_expert_size(&s, world, expert), "row %zu: no expert grid", i);
        count_through(expert, s.order, world);
        for (unsigned mask = 0; mask < 32; mask++) {
            int r = draw(world);
            compare(grid_expert_group(&s, world, mask, r, got), same_elsewhere(mask, r, world, want),
                    "expert", &s, r);
        }
        int r = draw(world), n = grid_expert_group(&s, world, BIT(AXIS_PP), r, want);
        compare(grid_group(s.size, s.order, BIT(AXIS_PP), r, got), n, "pipelines of both grids", &s, r);
    }
}

/* ---- all orders, all factorisations ---- */

static void one_grid(const GridSpec *s, const int size[AXES], int world)
{
    static int owner[64], list[64], other[64];
    count_through(size, s->order, world);
    for (unsigned mask = 0; mask < 32; mask++) {
        if ((mask & BIT(AXIS_EP)) && size[AXIS_EP] == 1)
            continue;
        int bad = 0;
        memset(owner, -1, sizeof owner);
        for (int r = 0; r < world; r++) {
            if (owner[r] >= 0)
                continue;
            int n = grid_group(size, s->order, mask, r, list);
            bad |= list[0] != r;
            for (int i = 0; i < n; i++) {
                bad |= list[i] < 0 || list[i] >= world || owner[list[i]] >= 0;
                owner[list[i]] = r;
                for (int a = 0; a < AXES; a++)
                    bad |= !(mask >> a & 1) && place[list[i]][a] != place[r][a];
            }
        }
        if (bad)
            CHECK(0, "mask %u of tp %d cp %d ep %d dp %d pp %d: no partition", mask, size[0], size[1],
                  size[2], size[3], size[4]);
        int r = draw(world), n = grid_group(size, s->order, mask, r, list);
        unsigned disjoint = ~mask & (unsigned)draw(32);
        int m = grid_group(size, s->order, disjoint, r, other), meet = 0;
        for (int i = 0; i < n; i++)
            for (int k = 0; k < m; k++)
                meet += list[i] == other[k];
        int rest = grid_group(size, s->order, ~mask & 31, r, other);
        if (meet != 1 || n * rest != world)
            CHECK(0, "mask %u and %u of rank %d meet in %d ranks; %d x %d of %d", mask, disjoint, r, meet, n,
                  rest, world);
    }
    test_checks++;
}

static void orders(void (*each)(const Axis order[AXES]))
{
    for (int perm = 0; perm < 3125; perm++) {
        Axis order[AXES];
        int used = 0;
        for (int i = 0, rest = perm; i < AXES; i++, rest /= AXES)
            used |= 1 << (order[i] = (Axis)(rest % AXES));
        if (used == 31)
            each(order);
    }
}

static int grids, experts;

static void factorisations(const Axis order[AXES])
{
    char text[AXES * 3 + 1] = "";
    Axis parsed[AXES];
    for (int i = 0; i < AXES; i++)
        sprintf(text + 3 * i, i < AXES - 1 ? "%s-" : "%s", grid_axis_name[order[i]]);
    CHECK(grid_parse_order(text, parsed) && !memcmp(parsed, order, sizeof parsed), "%s", text);
    for (int world = 1; world <= 64; world++)
        for (int tp = 1; tp <= world; tp++)
            for (int cp = 1; tp * cp <= world; cp++)
                for (int pp = 1; tp * cp * pp <= world; pp++) {
                    if (world % (tp * cp * pp))
                        continue;
                    GridSpec s = {.size = {tp, cp, 1, world / (tp * cp * pp), pp}};
                    memcpy(s.order, order, sizeof s.order);
                    if (world == 24)
                        lowest(&s);
                    one_grid(&s, s.size, world), grids++;
                    int size[AXES], dense = world / (tp * cp);
                    s.ep = 1 + draw(dense);
                    s.etp = 1 + draw(tp);
                    if (draw(8) || !grid_expert_size(&s, world, size))
                        continue;
                    one_grid(&s, size, world), experts++;
                    GridSpec e = s;
                    memcpy(e.size, size, sizeof e.size);
                    for (int k = 0; k < world; k++)
                        CHECK(grid_index(&s, k, AXIS_PP) == grid_index(&e, k, AXIS_PP),
                              "rank %d of %d has another stage in the expert grid", k, world);
                    int r = draw(world);
                    int n = grid_expert_group(&s, world, BIT(AXIS_PP), r, want);
                    if (order[AXES - 1] == AXIS_PP)
                        compare(grid_group(s.size, s.order, BIT(AXIS_PP), r, got), n,
                                "pipelines of both grids", &s, r);
                }
}

/* ---- the groups of an open grid ---- */

static void check_comm(const Comm *c, const int *list, int n, int rank)
{
    int at = 0;
    while (at < n && list[at] != rank)
        at++;
    CHECK(c->size == n && c->rank == at, "%s of rank %d: %d of %d, not %d of %d", c->name, rank, c->rank,
          c->size, at, n);
}

static void derived(const Axis order[AXES])
{
    static const int sizes[][6] = {   /* tp cp dp pp, kv_share, instances */
        {1, 1, 1, 1, 1, 1}, {4, 1, 2, 3, 2, 2}, {2, 2, 3, 2, 1, 3},
        {8, 1, 1, 2, 8, 1}, {1, 2, 4, 1, 1, 4}, {6, 2, 2, 5, 3, 2}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int *z = sizes[i];
        int world = z[0] * z[1] * z[2] * z[3], part = z[1] * z[2] / z[5];
        GridSpec s = {.size = {z[0], z[1], 1, z[2], z[3]}, .kv_share = z[4], .instances = z[5]};
        memcpy(s.order, order, sizeof s.order);
        count_through(s.size, order, world);
        for (int k = 0; k < 6; k++) {
            int rank = draw(world), n, at = 0, members[64];
            Grid g;
            grid_open_counting(&g, &s, world, rank);
            for (int a = 0; a < AXES; a++) {
                n = same_elsewhere(BIT(a), rank, world, want);
                check_comm(&g.axis[a], want, n, rank);
                CHECK(g.index[a] == place[rank][a], "%s of rank %d", grid_axis_name[a], rank);
            }
            CHECK(g.all.size == world && g.all.rank == rank, "world: %d of %d", g.all.rank, g.all.size);
            n = same_elsewhere(BIT(AXIS_TP) | BIT(AXIS_PP), rank, world, want);
            check_comm(&g.model, want, n, rank);
            n = same_elsewhere(BIT(AXIS_PP), rank, world, want);
            members[0] = want[0];
            members[1] = want[n - 1];
            if (n > 1 && (rank == want[0] || rank == want[n - 1]))
                check_comm(&g.embedding, members, 2, rank);
            else
                CHECK(g.embedding.size == 1, "embedding of rank %d: %d", rank, g.embedding.size);
            n = same_elsewhere(BIT(AXIS_TP), rank, world, want);
            check_comm(&g.kv, want + place[rank][AXIS_TP] / z[4] * z[4], z[4], rank);
            n = same_elsewhere(BIT(AXIS_DP) | BIT(AXIS_CP), rank, world, want);
            check_comm(&g.data, want, n, rank);
            while (want[at] != rank)
                at++;
            check_comm(&g.shard, want + at / part * part, part, rank);
            for (int j = 0; j < z[5]; j++)
                members[j] = want[j * part + at % part];
            check_comm(&g.copies, members, z[5], rank);
            grid_close(&g);
        }
    }
}

/* The groups of the expert grid: ep, etp, edp and pp make up the world. */
static void expert_groups(const Axis order[AXES])
{
    static const int sizes[][7] = {   /* tp cp dp pp, etp ep, instances */
        {1, 1, 1, 1, 1, 1, 1}, {1, 1, 4, 1, 1, 2, 2}, {4, 1, 2, 3, 2, 4, 2}, {2, 2, 3, 2, 1, 6, 2},
        {2, 2, 2, 1, 2, 4, 1}, {1, 2, 4, 1, 2, 1, 2}, {2, 1, 4, 2, 8, 1, 4}, {6, 2, 2, 5, 3, 2, 4}};
    static const Axis axis[] = {
        [EXPERT_EP] = AXIS_EP, [EXPERT_TP] = AXIS_TP, [EXPERT_DATA] = AXIS_DP};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int *z = sizes[i];
        int world = z[0] * z[1] * z[2] * z[3], size[AXES];
        GridSpec s = {.size = {z[0], z[1], 1, z[2], z[3]}, .experts = 1, .etp = z[4], .ep = z[5],
                      .instances = z[6]};
        memcpy(s.order, order, sizeof s.order);
        if (!grid_expert_size(&s, world, size))
            continue;
        CHECK(size[AXIS_TP] == z[4] && size[AXIS_EP] == z[5], "expert grid %zu", i);
        for (int k = 0; k < 6; k++) {
            int rank = draw(world);
            Grid g;
            count_through(size, order, world);
            grid_open_counting(&g, &s, world, rank);
            for (int e = 0; e <= EXPERT_DATA; e++) {
                int n = same_elsewhere(BIT(axis[e]), rank, world, want);
                check_comm(&g.expert[e], want, n, rank);
                CHECK(g.expert[e].rank == place[rank][axis[e]], "%s of rank %d", g.expert[e].name, rank);
            }
            int edp = same_elsewhere(BIT(AXIS_DP), rank, world, want), copies = edp > 1 ? z[6] : 1;
            int at = g.expert[EXPERT_DATA].rank, part = edp / copies, members[4];
            check_comm(&g.expert[EXPERT_SHARD], want + at / part * part, part, rank);
            for (int j = 0; j < copies; j++)
                members[j] = want[j * part + at % part];
            check_comm(&g.expert[EXPERT_COPIES], members, copies, rank);
            CHECK(g.expert[EXPERT_EP].size * g.expert[EXPERT_TP].size * g.expert[EXPERT_DATA].size * z[3] ==
                      world,
                  "expert grid %zu", i);
            grid_close(&g);
            s.experts = 0;
            grid_open_counting(&g, &s, world, rank);
            for (int e = 0; e < EXPERT_GROUPS; e++)
                CHECK(g.expert[e].size == 1, "%s without experts", g.expert[e].name);
            grid_close(&g);
            s.experts = 1;
        }
    }
}

static void what_does_not_fit(void)
{
    int size[AXES];
    GridSpec s = {.size = {2, 1, 1, 4, 2}, .ep = 3, .etp = 1};
    grid_parse_order("tp-cp-ep-dp-pp", s.order);
    CHECK(!grid_expert_size(&s, 16, size), "3 experts' ranks do not divide 16");
    s.ep = 4;
    CHECK(grid_expert_size(&s, 16, size) && size[AXIS_DP] == 2 && size[AXIS_TP] == 1, "edp %d",
          size[AXIS_DP]);
    grid_parse_order("tp-cp-ep-pp-dp", s.order);
    CHECK(!grid_expert_size(&s, 16, size), "pipelines of the two grids differ");
    s.ep = 2;
    CHECK(grid_expert_size(&s, 16, size), "edp = dp: they agree");
}

int main(void)
{
    published_sizes();
    orders(factorisations);
    CHECK(grids > 20000 && experts > 1000, "%d grids, %d expert grids", grids, experts);
    orders(derived);
    orders(expert_groups);
    what_does_not_fit();
    printf("# %d dense grids, %d expert grids\n", grids, experts);
    return test_end();
}
