/* test_placement -- which rank holds what: every split against an independent count, layout strings
 * valid and broken, the balance by cost against all possible splits */
#define _GNU_SOURCE
#include "config_text.h"
#include "placement.h"

/* A placement has every layer once and in order, every (rank, chunk) once, embedding and loss at its
 * ends. */
static void check_whole(const Config *c, const char *what)
{
    Placement pl;
    placement_open(&pl, c);
    int p = (int)c->pipeline_model_parallel_size,
        v = p > 1 ? (int)c->num_virtual_stages_per_pipeline_rank : 1;
    int layers = 0, v_shaped = schedule_info[c->pipeline_schedule].place == PLACE_VEE;
    CHECK(pl.p == p && pl.v == v && pl.n == p * v, "%s: %d x %d", what, pl.p, pl.v);
    for (int s = 0; s < pl.n; s++) {
        const StagePlace *st = &pl.stage[s];
        int rank = s < p || !v_shaped ? s % p : 2 * p - 1 - s;
        CHECK(st->pp_rank == rank && st->chunk == s / p, "%s: stage %d on %d.%d", what, s, st->pp_rank,
              st->chunk);
        CHECK(placement_at(&pl, st->pp_rank, st->chunk) == st, "%s: stage %d is not found", what, s);
        CHECK(st->first_layer == layers && st->layers >= 0, "%s: stage %d from %d", what, s, st->first_layer);
        CHECK(st->embedding == (s == 0) && st->loss == (s == pl.n - 1), "%s: ends of stage %d", what, s);
        layers += st->layers;
    }
    CHECK(layers == c->num_layers, "%s: %d layers", what, layers);
    placement_close(&pl);
}

static void test_even(void)
{
    for (int p = 1; p <= 5; p++)
        for (int v = 1; v <= 3; v++)
            for (int each = 1; each <= 3; each++) {
                const char *args =
                    textf("pipeline_model_parallel_size=%d|num_virtual_stages_per_pipeline_rank=%d|"
                          "num_layers=%d|global_batch_size=%d",
                          p, v, p * v * each, 2 * p);
                Check k = resolve(args, p, USE_TRAIN);
                CHECK(!k.n, "%s: %s", args, listing(&k));
                check_whole(k.cfg, args);
                if (v == 2) {
                    k = resolve(textf("%s|pipeline_schedule=zb-v", args), p, USE_TRAIN);
                    CHECK(!k.n, "%s: %s", args, listing(&k));
                    check_whole(k.cfg, args);
                }
                config_forget();
            }
}

/* ---- layers of the first and the last stage ---- */

/* The layers that Megatron-LM builds on a virtual stage; -1 where Megatron-LM refuses
 * (transformer_block.py, get_num_layers_to_build). */
static int64_t megatron(int64_t layers, int p, int v, int rank, int chunk, int64_t first, int64_t last,
                        int emb, int loss)
{
    int64_t n;
    if (first || last) {
        int64_t rest = layers - first - last, left = p - !!first - !!last;
        if (rest < 0 || (left ? rest % left : rest))
            return -1;
        n = rank == 0 && first ? first : rank == p - 1 && last ? last : left ? rest / left : 0;
    } else {
        if ((layers + emb + loss) % p)
            return -1;
        n = (layers + emb + loss) / p;
    }
    if (n % v)
        return -1;
    return n / v - (emb && rank == 0 && chunk == 0) - (loss && rank == p - 1 && chunk == v - 1);
}

static void test_ends(void)
{
    int legal = 0;
    for (int p = 2; p <= 4; p++)
        for (int v = 1; v <= 2; v++)
            for (int layers = 1; layers <= 14; layers++)
                for (int way = 0; way < 9 + 3; way++) { /* 9 pairs of first and last; 3 of emb and loss */
                    static const int64_t of[] = {0, 2, 3};
                    int64_t first = way < 9 ? of[way / 3] : 0, last = way < 9 ? of[way % 3] : 0;
                    int emb = way >= 9 && (way - 8) & 1, loss = way >= 9 && (way - 8) & 2, fits = 1;
                    const char *args =
                        textf("pipeline_model_parallel_size=%d|num_virtual_stages_per_pipeline_rank=%d|num_"
                              "layers=%d|global_batch_size=%d|num_layers_in_first_pipeline_stage=%s|"
                              "num_layers_in_last_pipeline_stage=%s|account_for_loss_in_pipeline_split=%s|"
                              "account_for_embedding_in_pipeline_split=%s",
                              p, v, layers, 2 * p, first ? textf("%d", (int)first) : "null",
                              last ? textf("%d", (int)last) : "null", loss ? "true" : "false",
                              emb ? "true" : "false");
                    Check k = resolve(args, p, USE_TRAIN);
                    for (int s = 0; s < p * v; s++)
                        fits &= megatron(layers, p, v, s % p, s / p, first, last, emb, loss) >= 0;
                    CHECK((k.n == 0) == fits, "%s: %s", args, listing(&k));
                    legal += fits;
                    for (int s = 0; fits && !k.n && s < p * v; s++)
                        CHECK(k.cfg->stage_layers[s] ==
                                  megatron(layers, p, v, s % p, s / p, first, last, emb, loss),
                              "%s: stage %d", args, s);
                    if (!k.n)
                        check_whole(k.cfg, args);
                    config_forget();
                }
    CHECK(legal > 100, "%d legal splits", legal);
}

/* ---- layout strings ---- */

static void test_layouts(void)
{
    static const struct { const char *text; int n, layers[12];
    } whole[] = {{"EttL", 1, {2}},
                 {"Et|tL", 2, {1, 1}},
                 {"E|ttL", 2, {0, 2}},
                 {"Ett|L", 2, {2, 0}},
                 {"E|tt||L", 4, {0, 2, 0, 0}},
                 {"Et*3|t*2L", 2, {3, 2}},
                 {"Et*3|(tt|)*3L", 5, {3, 2, 2, 2, 0}},
                 {"E(t)*4L", 1, {4}},
                 {"Et*01|tL", 2, {1, 1}},
                 {"E,t,|,t,L", 2, {1, 1}},
                 {"Et*1,0|L", 2, {10, 0}},
                 {"E(t*2|)*2tL", 3, {2, 2, 1}},
                 {"E|*3L", 4, {0, 0, 0, 0}},
                 {"E(|t)*2|L", 4, {0, 1, 1, 0}},
                 {",EtL,", 1, {1}},
                 {"E*1tL*1", 1, {1}},
                 {"(Et)*1|(tL)*1", 2, {1, 1}},
                 {"Et*3|(tt|)*4,t|L", 7, {3, 2, 2, 2, 2, 1, 0}}};
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        const int *layers = NULL, *again = NULL;
        int n = 0, m = 0;
        char *why = config_parse_layout(whole[i].text, &layers, &n);
        CHECK(!why && n == whole[i].n, "%s: %d stages, %s", whole[i].text, n, why ? why : "");
        for (int s = 0; !why && s < n; s++)
            CHECK(layers[s] == whole[i].layers[s], "%s: stage %d has %d", whole[i].text, s, layers[s]);
        char *text = why ? NULL : config_print_layout(layers, n);
        CHECK(text && !config_parse_layout(text, &again, &m) && m == n && !memcmp(again, layers,
            sizeof *layers * (size_t)n),
              "%s: written %s", whole[i].text, text);
        free(text);
    }
}

static void test_random_layouts(void)
{
    for (int round = 0; round < 500; round++) {
        int n = 1 + (int)draw(9), want[9], m = 0;
        const int *layers = NULL;
        char *text = text_copy("E");
        for (int s = 0; s < n; s++) {
            want[s] = (int)draw(6);
            int left = want[s];
            text = s ? textf("%s|", text) : text;
            for (int part; left; left -= part) {
                part = 1 + (int)draw((uint32_t)left);
                const char *pieces[] = {part == 1 ? "t" : textf("t*%d", part), textf("(t)*%d", part),
                                        textf("t*%d,", part),
                                        part % 2 ? textf("t,*%d", part) : textf("(tt)*%d", part / 2)};
                text = textf("%s%s", text, pieces[draw(4)]);
            }
        }
        text = textf("%sL", text);
        char *why = config_parse_layout(text, &layers, &m);
        CHECK(!why && m == n && !memcmp(layers, want, sizeof *want * (size_t)n), "%s: %s", text,
            why ? why : "other numbers");
        config_forget();
    }
}

static void test_broken_layouts(void)
{
    static const struct { const char *text; int at; const char *says;
    } broken[] = {{"", 1, "empty"},
                  {",,", 1, "empty"},
                  {"t", 1, "begins with E"},
                  {"tEL", 1, "begins with E"},
                  {"|EtL", 1, "begins with E"},
                  {"L", 1, "begins with E"},
                  {"E", 2, "without L"},
                  {"Et|t", 5, "without L"},
                  {"EtL|", 4, "behind L"},
                  {"EtLt", 4, "behind L"},
                  {"EtLL", 4, "behind L"},
                  {"EtL*2", 3, "behind L"},
                  {"EtEL", 3, "second time"},
                  {"E*2tL", 1, "second time"},
                  {"E t L", 2, "a blank; legal: E"},
                  {"Et |tL", 3, "a blank"},
                  {"EtmL", 3, "multi-token"},
                  {"EtxL", 3, "'x'; legal: E (embedding)"},
                  {"etL", 1, "'e'; legal"},
                  {"EtTL", 3, "'T'"},
                  {"Et;tL", 3, "';'"},
                  {"Et/tL", 3, "'/'"},
                  {"Et*L", 4, "number"},
                  {"Et*0L", 4, "number from 1"},
                  {"Et*-1L", 4, "number"},
                  {"Et*99999999999999999999L", 4, "number from 1"},
                  {"Et*2*3L", 5, "repetition of a repetition"},
                  {"*2EtL", 1, "nothing"},
                  {"E(*2)*2L", 3, "nothing"},
                  {"E(tL", 2, "not closed"},
                  {"E(ttL", 2, "not closed"},
                  {"Et)L", 3, "closes nothing"},
                  {"E()*2tL", 2, "empty group"},
                  {"E(,)*2tL", 2, "empty group"},
                  {"E(tt)L", 6, "needs *n"},
                  {"E(tt)*L", 7, "number"},
                  {"E((t)*2)*2L", 3, "a group within a group"},
                  {"E(t(t)*2)*2L", 4, "within"},
                  {"Et*70000t*70000L", 9, "stands for more"},
                  {"E(t*300)*300L", 2, "stands for more"},
                  {"Et,,x,L", 5, "'x'"},
                  {"(EtL)*2", 2, "second time"},
                  {"Et2L", 3, "'2'"},
                  {"Et\xC3\xA4L", 3, "legal"},
                  {"E(t)*2*2L", 7, "repetition of a repetition"}};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        const int *layers = NULL;
        int n = 0;
        char *why = config_parse_layout(broken[i].text, &layers, &n);
        CHECK(why && strstr(why, broken[i].says) && strstr(why, textf("character %d: ", broken[i].at)),
              "%s: %s", broken[i].text, why);
        Check k = resolve(textf("pipeline_model_parallel_layout='%s'", broken[i].text), 1, USE_TRAIN);
        CHECK(k.n >= 1 || strchr(broken[i].text, '/'), "%s passes", broken[i].text);
    }
    CHECK(sizeof broken / sizeof *broken >= 40, "forty");
}

/* ---- balance ---- */

enum { LAYERS = 16 };                    /* most layers of a split that is compared with all others */
static double costs[64];                 /* of each rank in one split */
static const double unit_costs[][3] = {{0, 1, 0},    {1, 1, 1},  {0.5, 1, 2.5}, {3, 1, 7},
                                       {0.25, 2, 1}, {10, 1, 0}, {0, 1, 3.75}};

static int downward(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* out: costs of the p ranks, the largest first, then the number of layers on ranks with embedding or
 * loss. The smaller list belongs to the better split. */
static void judge(const Config *c, const int *layers, const double *cost, double out[64])
{
    int p = (int)c->pipeline_model_parallel_size, n = p * (int)c->num_virtual_stages_per_pipeline_rank,
        end[64] = {0}, layer = 0;
    int of_rank[64] = {0};
    double beside = 0;
    memset(out, 0, 64 * sizeof *out);
    for (int s = 0; s < n; s++) {
        int r = s < p || c->pipeline_schedule != PIPELINE_SCHEDULE_ZB_V ? s % p : 2 * p - 1 - s;
        of_rank[r] += layers[s];
        out[r] += (s == 0 ? cost[0] : 0) + (s == n - 1 ? cost[c->num_layers + 1] : 0);
        for (int i = 0; i < layers[s]; i++)
            out[r] += cost[1 + layer++];
        end[r] |= s == 0 || s == n - 1;
    }
    for (int r = 0; r < p; r++)
        beside += end[r] ? of_rank[r] : 0;
    qsort(out, (size_t)p, sizeof *out, downward);
    out[p] = beside;
}

/* Whether any split of `left` layers over the stages from s on is judged better than `best` by the first
 * `numbers` numbers. */
static int better(const Config *c, int *layers, int s, int left, const double *cost, const double *best,
                  int numbers)
{
    int p = (int)c->pipeline_model_parallel_size, n = p * (int)c->num_virtual_stages_per_pipeline_rank;
    if (s == n - 1) {
        layers[s] = left;
        judge(c, layers, cost, costs);
        for (int i = 0; i < numbers; i++)
            if (fabs(costs[i] - best[i]) > 1e-12)
                return costs[i] < best[i];
        return 0;
    }
    for (layers[s] = 0; layers[s] <= left; layers[s]++)
        if (better(c, layers, s + 1, left - layers[s], cost, best, numbers))
            return 1;
    return 0;
}

/* Compares the split with all others: by the cost of each rank and what lies beside the ends where all layers
 * cost the same, by the largest cost where they do not (`same` 0): it may be a fifth above the least
 * one. Returns the layout. */
static const char *check_balance(const char *args, int p, const double *cost, int same)
{
    Check k = resolve(args, p, USE_TRAIN);
    double mine[64];
    int layers[64];
    CHECK(!k.n && k.cfg->stages == 0, "%s: %s", args, listing(&k));
    const Config *c = placement_share_out(k.cfg, cost, "", NULL);
    const char *text = c->pipeline_model_parallel_layout;
    check_whole(c, text);
    judge(c, c->stage_layers, cost, mine);
    mine[0] /= same ? 1 : 1.2;
    CHECK(!better(c, layers, 0, (int)c->num_layers, cost, mine, same ? p + 1 : 1),
          "%s, cost %g %g .. %g: %s; better: largest %g, not %g", args, cost[0], cost[1],
          cost[c->num_layers + 1], text, costs[0], mine[0]);
    CHECK(c->pipeline_balance == PIPELINE_BALANCE_COUNT, "%s", text);
    size_t size;
    char *saved = NULL;
    FILE *f = open_memstream(&saved, &size);
    config_write(f, c);
    fclose(f);
    Check again = read_text(saved, size, 0, NULL, p, USE_TRAIN);
    CHECK(!again.n && config_hash(again.cfg) == config_hash(c) && again.cfg->stages == c->stages &&
              !memcmp(again.cfg->stage_layers, c->stage_layers, sizeof *layers * (size_t)c->stages),
          "%s: %s", text, listing(&again));
    free(saved);
    return text;
}

/* The layouts of p ranks: one stage a rank, a V, two stages in a loop. */
static void check_balances(int p, int layers, const double *cost, int same)
{
    const char *base = textf("pipeline_balance=cost|num_layers=%d|pipeline_model_parallel_size=%d|"
                             "global_batch_size=%d", layers, p, 2 * p);
    check_balance(base, p, cost, same);
    if (p < 4) {
        check_balance(textf("%s|pipeline_schedule=zb-v", base), p, cost, same);
        check_balance(textf("%s|num_virtual_stages_per_pipeline_rank=2", base), p, cost, same);
    }
    config_forget();
}

static void test_balance(void)
{
    double cost[LAYERS + 2];
    for (size_t i = 0; i < sizeof unit_costs / sizeof *unit_costs; i++)
        for (int layers = 1; layers <= 9; layers++)
            for (int p = 2; p <= 4; p++) {
                for (int l = 0; l < layers + 2; l++)
                    cost[l] = unit_costs[i][l == 0 ? 0 : l <= layers ? 1 : 2];
                check_balances(p, layers, cost, 1);
            }
    double many[510] = {[0] = 1000, [509] = 100};
    for (int l = 1; l < 509; l++)
        many[l] = 1;
    Check k = resolve("pipeline_balance=cost|num_layers=508|pipeline_model_parallel_size=2", 2, USE_TRAIN);
    const char *text = placement_share_out(k.cfg, many, "", NULL)->pipeline_model_parallel_layout;
    CHECK(!k.n && !strcmp(text, "E|t*508L"), "%s", text);
}

/* Layers that differ: dense ones first and others every second or third, and at random. */
static void test_unequal(void)
{
    double cost[LAYERS + 2] = {1, 1, 1, 1, 5, 5, 5, 2};
    const char *layout = check_balance("pipeline_balance=cost|num_layers=6|pipeline_model_parallel_size=3|"
                                       "global_batch_size=6", 3, cost, 0);
    CHECK(!strcmp(layout, "Et*4|t|tL"), "%s", layout);
    for (int turn = 0; turn < 100; turn++)
        for (int layers = 2; layers <= 9; layers++)
            for (int p = 2; p <= 4; p++) {
                for (int l = 0; l < layers + 2; l++)
                    cost[l] = turn < 20 ? (l < turn % 4 ? 1 : 1 + turn / 4)
                              : turn < 40 ? (l % (2 + turn % 2) ? 1 : 1 + turn / 8) : 1 + (double)draw(9);
                check_balances(p, layers, cost, 0);
            }
}

static void test_print(void)
{
    Check k = resolve(
        "pipeline_model_parallel_size=2|pipeline_schedule=zb-v|pipeline_model_parallel_layout=E/t//t*3L", 2,
        USE_TRAIN);
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    Placement pl;
    CHECK(!k.n, "%s", listing(&k));
    placement_open(&pl, k.cfg);
    placement_print(f, &pl);
    fclose(f);
    placement_close(&pl);
    CHECK(!strcmp(text, "placement  stage  rank  chunk  holds\n"
                        "               0     0      0  embedding\n"
                        "               1     1      0  layer 0\n"
                        "               2     1      1  nothing\n"
                        "               3     0      1  layers 1 to 3, loss\n"
                        "           4 layers in 4 stages\n"), "%s", text);
    free(text);
}

int main(void)
{
    test_even();
    test_ends();
    test_layouts();
    test_random_layouts();
    test_broken_layouts();
    test_balance();
    test_unequal();
    test_print();
    return test_end();
}
