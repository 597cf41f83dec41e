/* test_expert -- what arrives where: the dispatch of rows to experts and back, under a launcher, against an
 * oracle over all ranks in exact integers. Eight workloads; both dispatchers; experts with any number of rows
 * and with multiples of four; every ep x etp that divides the world. */
#include "expert.h"
#include "grid.h"
#include "job.h"
#include "test.h"

enum { COLS = 3, MOST = 40 };

static int world, rank;

typedef enum {
    UNIFORM, ZIPF, ONE_HOT, ONE_RANK, CHANGING, ALL_EXPERTS, ALTERNATE, NO_ROWS, WORKLOADS
} Workload;
static const char *const workload_name[WORKLOADS] = {"uniform", "zipf", "one expert", "one rank", "changing",
                                                     "all experts", "alternate", "ranks without rows"};

/* One case; `who` in the functions is a world rank. */
typedef struct { Workload load; int experts, topk, step; } Case;

static int64_t rows_of(const Case *c, int who)
{
    int64_t n = 1 + (int64_t)(philox(9, (uint64_t)who, (uint64_t)c->step).v[0] % MOST);
    return c->load == NO_ROWS && who % 2 ? 0 : n;
}

/* The expert of choice j of a row: a start by the workload, then neighbours, so that none comes twice. */
static int32_t expert_of(const Case *c, int who, int64_t row, int j)
{
    uint64_t draw = philox(11, (uint64_t)who << 20 | (uint64_t)row, (uint64_t)c->step).v[0];
    uint64_t e = (uint64_t)c->experts, start = draw % e;
    switch (c->load) {
    case ZIPF: start = e >> (1 + draw % 20 % (1 + (uint64_t)(e > 1) * 4)); break;
    case ONE_HOT: start = 0; break;
    case ONE_RANK: start = e - (uint64_t)c->topk; break;
    case CHANGING: start = (uint64_t)c->step * 3 % e; break;
    case ALTERNATE: start = (uint64_t)(row % 2) * e / 2; break;
    default: break;
    }
    return (int32_t)((start + (uint64_t)j) % e);
}

/* The number that stands for a pair. */
static double pair_of(int who, int64_t row, int j, int col)
{
    return who * 4096.0 * 4 + (double)row * 64 + j * 4 + col;
}

/* Rows of one expert of this rank in a round, by the definition: ranks of etp, of ep, then their rows, and
 * behind those of a rank rows of zeros up to the next piece.
 * Counts the pairs of a source in the order of experts to find its round. Writes [n][COLS] to want. */
static int64_t oracle(const Case *c, const Experts *x, const int *member, int64_t round, int expert,
                      double *want)
{
    int64_t n = 0;
    for (int t = 0; t < x->etp->size; t++)
        for (int r = 0; r < x->ep->size; r++) {
            int who = member[t * x->ep->size + r];
            int64_t place = 0;
            for (int e = expert / x->local * x->local; e <= expert; e++) {
                for (int64_t row = 0; row < rows_of(c, who); row++)
                    for (int j = 0; j < c->topk; j++) {
                        if (expert_of(c, who, row, j) != e)
                            continue;
                        int here = place++ / x->window == round && e == expert;
                        for (int col = 0; here && col < COLS; col++)
                            want[n * COLS + col] = pair_of(who, row, j, col);
                        n += here;
                    }
                while (place % x->piece) {
                    int here = place++ / x->window == round && e == expert;
                    for (int col = 0; here && col < COLS; col++)
                        want[n * COLS + col] = 0;
                    n += here;
                }
            }
        }
    return n;
}

/* World ranks of the sources of this rank's rows: [etp][ep]. */
static void sources(const Experts *x, int *member)
{
    int64_t mine = rank, *all = xcalloc((size_t)x->ep->size, sizeof *all);
    int64_t *both = xcalloc((size_t)(x->ep->size * x->etp->size), sizeof *both);
    x->ep->wait(x->ep, x->ep->all_gather(x->ep, all, &mine, 1, I64));
    x->etp->wait(x->etp, x->etp->all_gather(x->etp, both, all, x->ep->size, I64));
    for (int i = 0; i < x->ep->size * x->etp->size; i++)
        member[i] = (int)both[i];
    free(all);
    free(both);
}

/* What comes back of a case, by pairs or added up by rows. */
typedef struct {
    int each;                  /* topk: by pairs; 1: by rows */
    Mat back, results, room;
    Mat behind;                /* [1, COLS] behind the room, which nobody may write */
    ExpertFlight flight;
} Back;

/* The matrices of a case. */
typedef struct {
    int64_t rows, pairs;
    Mat in, sent;              /* [pairs, COLS] the numbers of the pairs; a copy that is sent */
    Mat out;                   /* [room, COLS] what arrived */
    double *want;
    Back by[2];
} Data;

static Data prepare(Device *d, Experts *x, const Case *c, Arena *mem)
{
    int64_t rows = rows_of(c, rank), pairs = rows * c->topk, room = experts_room(x);
    Data s = {rows, pairs, mat_take(mem, pairs, COLS, F64), mat_take(mem, pairs, COLS, F64),
              mat_take(mem, room, COLS, F64), arena_take(mem, (size_t)room * COLS * sizeof(double)),
              {{.each = c->topk}, {.each = 1}}};
    int32_t *choice = xcalloc((size_t)pairs + 1, sizeof *choice);
    for (int64_t i = 0; i < pairs; i++)
        choice[i] = expert_of(c, rank, i / c->topk, (int)(i % c->topk));
    experts_plan(d, x, choice, rows, MOST, NULL);
    free(choice);
    for (int64_t i = 0; i < pairs * COLS; i++)
        ((double *)s.in.p)[i] = pair_of(rank, i / COLS / c->topk, (int)(i / COLS % c->topk), (int)(i % COLS));
    d->copy(d, s.sent, s.in);
    for (Back *b = s.by; b < s.by + 2; b++) {
        b->back = experts_back(x, mem, b->each, COLS, F64);
        memset(b->back.p, 0xff, mat_bytes(b->back));
        b->results = experts_results_room(x, mem, b->back);
        b->room = experts_return_room(x, mem, b->back);
        b->behind = mat_take(mem, 1, COLS, F64);
        memset(b->behind.p, 0xff, mat_bytes(b->behind));
    }
    return s;
}

/* Checks the rows of a round that have arrived. */
static void check_arrived(const Experts *x, const Case *c, const int *member, const Data *s, int64_t round,
                          int64_t n)
{
    int64_t bad = 0, at = 0;
    for (int l = 0; l < x->local; l++) {
        int64_t from, have = experts_part(x, round, l, &from);
        int64_t due = oracle(c, x, member, round, x->ep->rank * x->local + l, s->want);
        CHECK(have == due && from == at, "%s, expert %d: %ld rows from %ld, want %ld from %ld",
              workload_name[c->load], l, (long)have, (long)from, (long)due, (long)at);
        CHECK(have % x->piece == 0, "%s, expert %d: %ld rows, which are no multiple of %ld",
              workload_name[c->load], l, (long)have, (long)x->piece);
        CHECK(have <= experts_room_of_one(x), "%s, expert %d: %ld rows, room for %ld", workload_name[c->load],
              l, (long)have, (long)experts_room_of_one(x));
        at += have;
        for (int64_t i = 0; i < have * COLS && have == due; i++)
            bad += ((double *)mat_at(s->out, from, 0))[i] != s->want[i];
    }
    CHECK(at == n && !bad, "%s, round %ld of %ld: %ld of %ld rows, %ld numbers wrong", workload_name[c->load],
          (long)round, (long)x->rounds, (long)at, (long)n, (long)bad);
}

/* Compares what came back with `factor` times what was sent. */
static void check_back(Device *d, const Experts *x, const Case *c, const Data *s, Arena *mem, double factor)
{
    for (const Back *b = s->by; b < s->by + 2; b++) {
        int64_t n = s->rows * b->each, bad = 0;
        Mat y = mat_take(mem, n, COLS, F64);
        memset(y.p, 0xff, mat_bytes(y));
        experts_sum(d, x, y, b->each, b->back, x->place);
        for (int64_t i = 0; i < n * COLS; i++) {
            double want = 0;
            for (int64_t j = 0; j < c->topk / b->each; j++)
                want += factor * *(double *)mat_at(s->in, i / COLS * (c->topk / b->each) + j, i % COLS);
            bad += ((double *)y.p)[i] != want;
        }
        for (size_t i = 0; i < mat_bytes(b->behind); i++)
            CHECK(((uint8_t *)b->behind.p)[i] == 0xff, "%s: sums go beyond their room",
                  workload_name[c->load]);
        CHECK(!bad, "%s: %ld of %ld numbers came back wrong", workload_name[c->load], (long)bad,
              (long)(n * COLS));
    }
}

static void check_case(Device *d, Experts *x, const Case *c, const int *member, Arena *mem)
{
    int64_t seen = 0;
    mem->used = 0;
    Data s = prepare(d, x, c, mem);
    for (int64_t round = 0; round < x->rounds; round++) {
        size_t mark = mem->used;
        ExpertRound r = experts_round(d, x, mem, round);
        Mat out = mat_rows(s.out, 0, r.n);
        memset(s.out.p, 0xff, mat_bytes(s.out));
        ExpertFlight f = experts_send_start(d, x, mem, &r, out, s.sent, c->topk, x->pair);
        if (round == x->rounds - 1)
            memset(s.sent.p, 0xff, mat_bytes(s.sent));
        experts_send_end(d, x, &r, f);
        check_arrived(x, c, member, &s, round, r.n);
        seen += r.n;
        /* each etp rank returns its part: (t + 1) times the row, so the sum is a known multiple */
        for (int64_t i = 0; i < r.n * COLS; i++)
            ((double *)out.p)[i] *= x->etp->rank + 1;
        for (Back *b = s.by; b < s.by + 2; b++) {
            experts_return_end(d, x, b->flight);
            Mat results = experts_results(x, &r, b->back, b->results);
            d->copy(d, results, out);
            b->flight = experts_return_start(d, x, mem, &r, b->each, b->back, results, b->room);
        }
        arena_reset(mem, mark);
    }
    for (Back *b = s.by; b < s.by + 2; b++)
        experts_return_end(d, x, b->flight);
    check_back(d, x, c, &s, mem, x->etp->size * (x->etp->size + 1) / 2);
    CHECK(c->load != ONE_RANK || x->ep->rank == x->ep->size - 1 || x->local < c->topk || !seen,
          "rows for a rank that nobody chose");
}

static void check_grid(Device *d, int ep, int etp, int gather, int64_t piece, Arena *mem)
{
    GridSpec spec = {.size = {1, 1, 1, world, 1}, .experts = 1, .ep = ep, .etp = etp};
    Grid g;
    grid_parse_order("tp-cp-ep-dp-pp", spec.order);
    grid_open(&g, &spec, world, rank);
    int *member = xcalloc((size_t)(ep * etp), sizeof *member);
    for (int load = 0; load < WORKLOADS; load++)
        for (int step = 0; step < 4; step++) {
            static const int experts[] = {8, 24, 8}, topks[] = {2, 3, 1, 1};
            int one = step == 3;           /* an expert a rank: nothing comes mixed */
            Case c = {(Workload)load, one ? ep : experts[step] * (8 % ep ? ep : 1), topks[step], step};
            Experts x;
            c.topk = load == ALL_EXPERTS ? c.experts : c.topk;
            experts_open(&x, &g.expert[EXPERT_EP], &g.expert[EXPERT_TP], c.experts, c.topk, MOST, piece,
                         gather, NULL);
            sources(&x, member);
            check_case(d, &x, &c, member, mem);
            experts_close(&x);
        }
    free(member);
    grid_close(&g);
}

/* A dispatch of check_counted; chosen: bool: no counting run. */
typedef struct { int64_t rows; int hot, limited, chosen; } Asked;

static void plan_asked(Device *d, Experts *x, const Asked *a)
{
    static const ExpertsLimit limit = {.capacity = MOST / 2, .share = MOST / 4, .pad = 1};
    int32_t choice[MOST];
    for (int i = 0; i < MOST; i++)
        choice[i] = i % 2;
    x->hot = a->hot;
    experts_plan(d, x, a->chosen ? choice : NULL, a->rows, a->rows, a->limited ? &limit : NULL);
    CHECK(x->most_of_one <= (a->limited ? limit.capacity : MOST), "room for %ld pairs of an expert",
          (long)x->most_of_one);
}

/* Counting runs make their lists once for the same dispatch, a thousand of which follow each other in a plan,
 * and anew after any other one. */
static void check_counted(Device *d, int gather)
{
    static const Asked asked[] = {{MOST, 0, 0, 0},     {MOST, 0, 0, 0}, {MOST, 1, 0, 0}, {MOST, 0, 0, 0},
                                  {MOST / 2, 0, 0, 0}, {MOST, 0, 0, 0}, {MOST, 0, 0, 1}, {MOST, 0, 0, 0},
                                  {MOST, 0, 1, 0},     {MOST, 0, 1, 0}, {MOST, 0, 0, 0}, {0, 0, 0, 0},
                                  {MOST / 8, 0, 1, 0}};      /* fewer rows than an expert's share */
    const ExpertsLimit most = {.capacity = MOST / 2, .share = MOST / 4, .pad = 1};
    GridSpec spec = {.size = {1, 1, 1, world, 1}, .experts = 1, .ep = world, .etp = 1};
    Experts x, fresh;
    Grid g;
    grid_parse_order("tp-cp-ep-dp-pp", spec.order);
    grid_open(&g, &spec, world, rank);
    Comm *ep = &g.expert[EXPERT_EP], *etp = &g.expert[EXPERT_TP];
    experts_open(&x, ep, etp, 4 * world, 1, MOST, 4, gather, &most);
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        experts_open(&fresh, ep, etp, 4 * world, 1, MOST, 4, gather, &most);
        plan_asked(d, &x, &asked[i]);
        plan_asked(d, &fresh, &asked[i]);
        size_t rows = (size_t)x.rows * sizeof *x.place, pairs = (size_t)fresh.pairs * sizeof *x.pair;
        CHECK(x.pairs == fresh.pairs && x.rounds == fresh.rounds && !memcmp(x.place, fresh.place, rows) &&
                  !memcmp(x.pair, fresh.pair, pairs) && !memcmp(x.source, fresh.source, pairs) &&
                  !memcmp(x.first, fresh.first, ((size_t)world + 1) * sizeof *x.first) &&
                  !memcmp(x.before, fresh.before, (size_t)(world * 5) * sizeof *x.before),
              "dispatch %zu, gather %d, follows from the one before it", i, gather);
        experts_close(&fresh);
    }
    plan_asked(d, &x, &asked[0]);
    x.place[0] = 77;
    plan_asked(d, &x, &asked[1]);
    CHECK(x.place[0] == 77, "the lists of the same counting run are made again");
    experts_close(&x);
    grid_close(&g);
}

/* Where a limit says how many empty pairs an expert gets, it gets so many, whatever its share is. */
static void check_fill(Device *d)
{
    static const int64_t fill[] = {0, 2, 1, 3};
    const ExpertsLimit limit = {.capacity = MOST, .share = MOST / 4, .pad = 1, .fill = fill};
    int32_t choice[MOST];
    int64_t want = MOST;
    Comm self;
    Experts x;
    comm_self_open(&self, "all");
    for (int i = 0; i < MOST; i++)
        choice[i] = i % 2;
    experts_open(&x, &self, &self, 4, 1, MOST, 1, 0, &limit);
    experts_plan(d, &x, choice, MOST, MOST, &limit);
    for (int e = 0; e < 4; e++) {
        want += fill[e];
        CHECK(x.mine[e] == fill[e] + (e < 2 ? MOST / 2 : 0), "expert %d has %ld pairs", e, (long)x.mine[e]);
    }
    CHECK(x.pairs == want, "%ld pairs, not %ld", (long)x.pairs, (long)want);
    experts_close(&x);
}

int main(void)
{
    Device d;
    Arena mem;
    world = job_launched(&rank);
    cpu_open(&d, F64, test_isa(), 1);
    arena_open(&mem, "test_expert", (size_t)64 << 20);
    for (int ep = 1; ep <= world; ep++)
        for (int etp = 1; etp <= world / ep; etp++)
            if (world % (ep * etp) == 0)
                for (int i = 0; i < 4; i++)
                    check_grid(&d, ep, etp, i % 2, i < 2 ? 1 : 4, &mem);
    check_counted(&d, 0);
    check_counted(&d, 1);
    check_fill(&d);
    arena_close(&mem);
    cpu_close(&d);
    return rank ? test_failures != 0 : test_end();
}
