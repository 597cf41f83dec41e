/* test_parallel -- groups of ranks against Megatron-LM's own numbers and as partitions; the group
 * of one */
#include "grid.h"
#include "test.h"

static int group(const int size[AXES], const char *order_text, unsigned mask, int rank, int *out)
{
    Axis order[AXES];
    CHECK(grid_parse_order(order_text, order), "%s", order_text);
    return grid_group(size, order, mask, rank, out);
}

#define TP (1u << AXIS_TP)
#define CP (1u << AXIS_CP)
#define DP (1u << AXIS_DP)
#define PP (1u << AXIS_PP)

/* tp = cp = dp = pp = 2: numbers computed with Megatron-LM's RankGenerator. */
static void published_groups(void)
{
    static const struct { const char *order; unsigned mask; int rank, n, member[4]; } want[] = {
        {"tp-cp-ep-dp-pp", TP, 3, 2, {2, 3}},          {"tp-cp-ep-dp-pp", CP, 6, 2, {4, 6}},
        {"tp-cp-ep-dp-pp", DP, 12, 2, {8, 12}},        {"tp-cp-ep-dp-pp", PP, 9, 2, {1, 9}},
        {"tp-cp-ep-dp-pp", DP | CP, 5, 4, {1, 3, 5, 7}}, {"tp-cp-ep-dp-pp", TP | PP, 2, 4, {2, 3, 10, 11}},
        {"tp-cp-ep-pp-dp", DP, 0, 2, {0, 8}},          {"tp-cp-ep-pp-dp", PP, 4, 2, {0, 4}},
    };
    const int size[AXES] = {[AXIS_TP] = 2, [AXIS_CP] = 2, [AXIS_EP] = 1, [AXIS_DP] = 2, [AXIS_PP] = 2};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        int got[16], n = group(size, want[i].order, want[i].mask, want[i].rank, got);
        CHECK(n == want[i].n && !memcmp(got, want[i].member, (size_t)n * sizeof *got),
              "%s mask %u rank %d: %d %d %d %d", want[i].order, want[i].mask, want[i].rank, got[0], got[1],
              got[2], got[3]);
    }
}

/* All orders and factorisations of 24 ranks: the groups of every set of axes are a partition of the
 * ranks. */
static void partitions(void)
{
    char order[AXES * 3];
    for (int perm = 0; perm < 3125; perm++) {
        int digit[AXES], used = 0;
        for (int i = 0, rest = perm; i < AXES; i++, rest /= AXES)
            used |= 1 << (digit[i] = rest % AXES);
        if (used != 31)
            continue;
        for (int i = 0; i < AXES; i++)
            sprintf(order + 3 * i, i < AXES - 1 ? "%s-" : "%s", grid_axis_name[digit[i]]);
        for (int a = 1; a <= 24; a++)
            for (int b = 1; a * b <= 24; b++) {
                if (24 % (a * b))
                    continue;
                int size[AXES] = {a, 1, 1, b, 24 / (a * b)};
                for (unsigned mask = 0; mask < 32; mask++) {
                    int first[24], got[24];
                    for (int r = 0; r < 24; r++) {
                        int n = group(size, order, mask, r, got), inside = 0;
                        for (int i = 0; i < n; i++)
                            inside += got[i] == r;
                        first[r] = got[0];
                        if (inside != 1 || (got[0] != r && first[got[0]] != got[0]))
                            CHECK(0, "%s sizes %d %d mask %u rank %d", order, a, b, mask, r);
                    }
                }
            }
    }
}

static void bad_orders(void)
{
    static const char *const bad[] = {"tp-tp", "tp-", "xx", "tp_pp", "tp-cp-ep-dp-pp-tp", "t", "",
                                      "pp-tp", "tp-cp-ep-dp-dp", "tp-cp-ep-dp-pp-"};
    Axis order[AXES];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK(!grid_parse_order(bad[i], order), "%s", bad[i]);
    CHECK(grid_parse_order("pp-tp-cp-ep-dp", order) && order[0] == AXIS_PP && order[1] == AXIS_TP &&
              order[4] == AXIS_DP,
          "pp-tp-cp-ep-dp");
}

static void group_of_one(void)
{
    Comm c;
    double in[3] = {1, 2, 3}, out[3] = {0};
    comm_self_open(&c, "tp");
    c.wait(&c, c.all_reduce(&c, in, 3, F64, OP_SUM));
    CHECK(in[0] == 1 && in[2] == 3, "sum over one");
    c.wait(&c, c.reduce_scatter(&c, out, in, 3, F64, OP_SUM));
    CHECK(!memcmp(in, out, sizeof in), "reduce_scatter");
    memset(out, 0, sizeof out);
    c.wait(&c, c.all_gather(&c, out, in, 3, F64));
    CHECK(!memcmp(in, out, sizeof in), "all_gather");
    all_ok(&c, 1, EXIT_COMM, "test", "never said");
}

int main(void)
{
    published_groups();
    partitions();
    bad_orders();
    group_of_one();
    return test_end();
}
