/* test_comm -- every operation of every group, under a launcher: integers compared byte for byte,
 * poisoned outputs, many operations in flight, floats against sums formed here in the documented order.
 * Arguments: none, a seed (odd: with checksums), or `lost SITE` for tests/parallel/rank_lost.sh.
 * GRIDIRON_RANKS_PER_HOST splits the ranks of this host in groups that act as separate hosts. */
#define _GNU_SOURCE
#include "engine.h"
#include "flight.h"
#include "grid.h"
#include "half.h"
#include "job.h"
#include "pace.h"
#include "test.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static int world, rank;
static uint64_t seed = 1;

static uint64_t draw(void) { return philox(rng_key(7, "test_comm"), seed++, 0).v[0]; }

#define GUARD 64                       /* bytes before and after every output that must stay untouched */

/* ---- values ---- */

static const Dtype types[] = {F64, F32, BF16, F16, I32, I64};

static void put(void *p, int64_t i, Dtype t, double v)
{
    switch (t) {
    case F64: ((double *)p)[i] = v; break;
    case F32: ((float *)p)[i] = (float)v; break;
    case BF16: ((uint16_t *)p)[i] = f32_to_bf16((float)v); break;
    case F16: ((uint16_t *)p)[i] = f32_to_f16((float)v); break;
    case I32: ((int32_t *)p)[i] = (int32_t)v; break;
    default: ((int64_t *)p)[i] = (int64_t)v;
    }
}

/* Integer in [-7, 8] of rank `who`: exact in every type, and so are its sums over eight ranks. */
static double value(uint64_t salt, int who, int64_t i)
{
    uint64_t h = (salt * 2654435761u + (uint64_t)who * 40503u + (uint64_t)i) * 0x9E3779B97F4A7C15u;
    return (double)(int)(h >> 60) - 7;
}

typedef struct { char *base, *p; size_t bytes; } Out;

static Out out_open(size_t bytes)
{
    Out o = {malloc(bytes + 2 * GUARD), NULL, bytes};
    memset(o.base, 0xA5, bytes + 2 * GUARD);
    o.p = o.base + GUARD;
    return o;
}

/* Compares an output and its guards with `want`; frees both. */
static void out_check(Out o, void *want, const char *what, const Comm *c, int64_t n, Dtype t)
{
    int same = !o.bytes || !memcmp(o.p, want, o.bytes);
    size_t at = 0;
    while (!same && o.p[at] == ((char *)want)[at])
        at++;
    CHECK(same, "rank %d: %s over %s (%d of %d), %lld %s: byte %zu of %zu", rank, what, c->name, c->rank,
          c->size, (long long)n, dtype_name(t), at, o.bytes);
    for (int i = 0; i < GUARD; i++)
        same &= o.base[i] == (char)0xA5 && o.p[o.bytes + (size_t)i] == (char)0xA5;
    CHECK(same || test_failures, "rank %d: %s over %s wrote beyond its output", rank, what, c->name);
    free(o.base);
    free(want);
}

/* ---- one operation, from its start to its check ---- */

typedef struct {
    Comm *c;
    const int *member;
    int kind, root;
    int64_t n;
    Dtype type;
    ReduceOp op;
    uint64_t salt;
    Token token[2];
    char *in;
    Out out;
} Case;

static double reduced(const Case *k, int64_t i)
{
    double v = value(k->salt, k->member[0], i);
    for (int r = 1; r < k->c->size; r++) {
        double x = value(k->salt, k->member[r], i);
        v = k->op == OP_SUM ? v + x : k->op == OP_MAX ? (x > v ? x : v) : x < v ? x : v;
    }
    return v;
}

static char *values(const Case *k, int who, int64_t n)
{
    char *p = malloc((size_t)n * 8 + 8);
    for (int64_t i = 0; i < n; i++)
        put(p, i, k->type, value(k->salt, who, i));
    return p;
}

static void start(Case *k)
{
    Comm *c = k->c;
    size_t w = dtype_size(k->type), bytes = (size_t)k->n * w;
    int many = c->size, in_place = k->salt % 2;
    k->token[0] = k->token[1] = 0;
    k->in = NULL;
    switch (k->kind) {
    case COMM_ALL_REDUCE:
        k->out = out_open(bytes);
        k->in = values(k, rank, k->n);
        memcpy(k->out.p, k->in, bytes);
        k->token[0] = c->all_reduce(c, k->out.p, k->n, k->type, k->op);
        break;
    case COMM_REDUCE_SCATTER:
        k->in = values(k, rank, k->n * many);
        k->out = out_open(bytes);
        k->token[0] = c->reduce_scatter(c, k->out.p, k->in, k->n, k->type, k->op);
        break;
    case COMM_ALL_GATHER:
        k->in = values(k, rank, k->n);
        k->out = out_open(bytes * (size_t)many);
        if (in_place)
            memcpy(k->out.p + bytes * (size_t)c->rank, k->in, bytes);
        k->token[0] =
            c->all_gather(c, k->out.p, in_place ? k->out.p + bytes * (size_t)c->rank : k->in, k->n, k->type);
        break;
    case COMM_ALL_TO_ALL:
        k->in = values(k, rank, k->n * many);
        k->out = out_open(bytes * (size_t)many);
        k->token[0] = c->all_to_all(c, k->out.p, k->in, k->n, k->type);
        break;
    case COMM_BROADCAST:
        k->out = out_open(bytes);
        k->in = values(k, rank, k->n);
        if (c->rank == k->root)
            memcpy(k->out.p, k->in, bytes);
        k->token[0] = c->broadcast(c, k->out.p, k->n, k->type, k->root);
        break;
    case COMM_SEND: {              /* every rank sends to the rank d places further on */
        int d = many > 1 ? 1 + k->root % (many - 1) : 0;
        k->in = values(k, rank, k->n);
        k->out = out_open(many > 1 ? bytes : 0);
        if (many > 1) {
            k->token[0] = c->send(c, k->in, k->n, k->type, (c->rank + d) % many);
            k->token[1] = c->recv(c, k->out.p, k->n, k->type, (c->rank + many - d) % many);
        }
    }
    }
}

static void finish(Case *k)
{
    Comm *c = k->c;
    int many = c->size;
    size_t w = dtype_size(k->type);
    char *want = malloc(k->out.bytes + 8);
    int64_t n = (int64_t)(k->out.bytes / w);
    c->wait(c, k->token[0]);
    c->wait(c, k->token[1]);
    for (int64_t i = 0; i < n; i++) {
        double v = 0;
        switch (k->kind) {
        case COMM_ALL_REDUCE: v = reduced(k, i); break;
        case COMM_REDUCE_SCATTER: v = reduced(k, c->rank * k->n + i); break;
        case COMM_ALL_GATHER: v = value(k->salt, k->member[i / k->n], i % k->n); break;
        case COMM_ALL_TO_ALL: v = value(k->salt, k->member[i / k->n], c->rank * k->n + i % k->n); break;
        case COMM_BROADCAST: v = value(k->salt, k->member[k->root], i); break;
        case COMM_SEND:
            v = value(k->salt, k->member[(c->rank + many - (1 + k->root % (many - 1))) % many], i);
            break;
        }
        put(want, i, k->type, v);
    }
    out_check(k->out, want, comm_kind_name[k->kind], c, k->n, k->type);
    free(k->in);
}

/* ---- groups ---- */

typedef struct { Comm *c; int member[64]; } Known;

static int known(Grid *g, Known *k)
{
    const struct { Comm *c; unsigned mask; } all[] = {
        {&g->all, 31}, {&g->axis[AXIS_TP], 1u << AXIS_TP}, {&g->axis[AXIS_CP], 1u << AXIS_CP},
        {&g->axis[AXIS_DP], 1u << AXIS_DP}, {&g->axis[AXIS_PP], 1u << AXIS_PP},
        {&g->model, 1u << AXIS_TP | 1u << AXIS_PP}, {&g->data, 1u << AXIS_DP | 1u << AXIS_CP}};
    static const unsigned expert[] = {
        [EXPERT_EP] = 1u << AXIS_EP, [EXPERT_TP] = 1u << AXIS_TP, [EXPERT_DATA] = 1u << AXIS_DP};
    int dense = sizeof all / sizeof *all, n = dense + (g->spec.experts ? EXPERT_DATA + 1 : 0);
    for (int i = 0; i < n; i++) {
        k[i].c = i < dense ? all[i].c : &g->expert[i - dense];
        int m = i < dense ? grid_group(g->size, g->order, all[i].mask, rank, k[i].member)
                          : grid_expert_group(&g->spec, world, expert[i - dense], rank, k[i].member);
        if (i == 0)
            for (int r = 0; r < m; r++)
                k[i].member[r] = r;
        CHECK(m == k[i].c->size && k[i].member[k[i].c->rank] == rank, "%s: %d of %d", k[i].c->name,
              k[i].c->rank, m);
    }
    return n;
}

static void each_operation(const Known *k)
{
    static const int64_t lengths[] = {0, 1, 3, 1000, 5003, 60003};
    for (int kind = 0; kind <= COMM_SEND; kind++)
        for (size_t t = 0; t < sizeof types / sizeof *types; t++)
            for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
                for (int op = 0; op < (kind <= COMM_REDUCE_SCATTER && l < 4 ? 3 : 1); op++) {
                    if (l == 5 && t != 1 && (size_t)kind != t)
                        continue;
                    Case one = {.c = k->c, .member = k->member, .kind = kind,
                                .root = (int)(l + t) % k->c->size, .n = lengths[l], .type = types[t],
                                .op = (ReduceOp)op, .salt = draw()};
                    start(&one);
                    finish(&one);
                }
    k->c->barrier(k->c);
}

/* Operations of all groups are in flight together; ranks wait for them in another order than they start
 * them. */
static void many_at_once(const Known *k, int groups, int rounds)
{
    enum { FLIGHT = 24 };
    for (int round = 0; round < rounds; round++) {
        Case flight[FLIGHT];
        int left[FLIGHT];
        for (int i = 0; i < FLIGHT; i++) {
            const Known *which = &k[draw() % (uint64_t)groups];
            uint64_t length = draw() % 20;
            flight[i] = (Case){.c = which->c, .member = which->member,
                               .kind = (int)(draw() % (COMM_SEND + 1)),
                               .n = length == 0  ? 70001
                                    : length < 4 ? 9000
                                                 : (int64_t)(draw() % 40),
                               .type = types[draw() % 6], .op = OP_SUM};
            flight[i].root = (int)(draw() % 64);
            if (flight[i].kind == COMM_BROADCAST)
                flight[i].root %= which->c->size;
            flight[i].salt = draw();
            start(&flight[i]);
            left[i] = i;
            if (draw() % 8 == 0)
                comm_progress();
        }
        for (int n = FLIGHT; n; n--) {
            /* ranks wait in different orders */
            int at = (int)((draw() + (uint64_t)rank * 7) % (uint64_t)n);
            finish(&flight[left[at]]);
            left[at] = left[n - 1];
        }
    }
}

/* ---- floats: the documented order of additions ---- */

static double noise(uint64_t salt, int who, int64_t i)
{
    uint64_t h = (salt + (uint64_t)who * 0xD1B54A32D192ED03u + (uint64_t)i) * 0x9E3779B97F4A7C15u;
    h = (h ^ h >> 29) * 0xBF58476D1CE4E5B9u;
    return ((double)(h >> 32) - 0x1p31) * (h & 1 ? 1e-7 : 1e-12) * (double)(1 + h % 1000);
}

static int per_host = 1 << 20;
static int host_of(int r) { return r / per_host; }

static double get(const void *p, int64_t i, Dtype t)
{
    return t == F64 ? ((const double *)p)[i] : t == F32 ? ((const float *)p)[i]
         : t == BF16 ? bf16_to_f32(((const uint16_t *)p)[i]) : f16_to_f32(((const uint16_t *)p)[i]);
}

static double ordered_sum(const Known *k, uint64_t salt, int64_t i, Dtype t)
{
    double total = 0;
    int hosts = 0;
    for (int first = 0; first < k->c->size; first++) {
        int seen = 0;
        for (int q = 0; q < first; q++)
            seen |= host_of(k->member[q]) == host_of(k->member[first]);
        if (seen)
            continue;
        double sum = 0;
        int n = 0;
        for (int r = first; r < k->c->size; r++) {
            if (host_of(k->member[r]) != host_of(k->member[first]))
                continue;
            double one[1], x;
            put(one, 0, t, noise(salt, k->member[r], i));
            x = get(one, 0, t);
            sum = n++ ? (t == F64 ? sum + x : (float)((float)sum + (float)x)) : x;
        }
        total = hosts++ ? (t == F64 ? total + sum : (float)((float)total + (float)sum)) : sum;
    }
    return total;
}

static void float_bits(const Known *k)
{
    for (int ti = 0; ti < 4; ti++)
        for (int l = 0; l < 3; l++) {
            static const int64_t lengths[] = {5, 2048, 17001};
            int64_t n = lengths[l], all = n * k->c->size;
            Dtype t = types[ti];
            size_t w = dtype_size(t);
            uint64_t salt = draw();
            char *in = malloc((size_t)all * w), *want = malloc((size_t)all * w);
            Out whole = out_open((size_t)all * w), part = out_open((size_t)n * w);
            for (int64_t i = 0; i < all; i++) {
                put(in, i, t, noise(salt, rank, i));
                put(want, i, t, ordered_sum(k, salt, i, t));
            }
            memcpy(whole.p, in, (size_t)all * w);
            Token a = k->c->all_reduce(k->c, whole.p, all, t, OP_SUM);
            Token b = k->c->reduce_scatter(k->c, part.p, in, n, t, OP_SUM);
            k->c->wait(k->c, a);
            k->c->wait(k->c, b);
            CHECK(!memcmp(part.p, whole.p + (size_t)(n * k->c->rank) * w, (size_t)n * w),
                  "rank %d: %s: reduce_scatter", rank, k->c->name);
            char *slice = malloc((size_t)n * w);
            memcpy(slice, want + (size_t)(n * k->c->rank) * w, (size_t)n * w);
            out_check(part, slice, "sum of floats (scatter)", k->c, n, t);
            out_check(whole, want, "sum of floats", k->c, all, t);
            free(in);
        }
}

/* The largest and the least of what the ranks have is NaN where one of them has a NaN, whichever that is:
 * element i is NaN on rank i alone, the last one on none. */
static void nan_stays(Comm *c)
{
    for (int i = 0; i < 4; i++) {
        Dtype t = i % 2 ? F32 : F64;
        double x[65];
        int wrong = 0, n = c->size;
        BUG_ON(n > 64);
        for (int k = 0; k <= n; k++)
            put(x, k, t, k == c->rank ? NAN : 1 + c->rank);
        c->wait(c, c->all_reduce(c, x, n + 1, t, i / 2 ? OP_MIN : OP_MAX));
        for (int k = 0; k < n; k++)
            wrong += !isnan(get(x, k, t));
        CHECK(!wrong && get(x, n, t) == (i / 2 ? 1 : n), "rank %d: %s of %s: %d of %d NaN are lost, %g", rank,
              i / 2 ? "minimum" : "maximum", dtype_name(t), wrong, n, get(x, n, t));
    }
}

/* Sends as large as a pipeline's activations complete before the peer receives. */
static void sends_do_not_wait(Comm *c)
{
    enum { LARGE = 3 << 20, HOW_MANY = 6 };
    if (c->size < 2 || per_host < world)
        return;
    int up = (c->rank + 1) % c->size, down = (c->rank + c->size - 1) % c->size;
    char *in = malloc(LARGE), *out = malloc(LARGE);
    for (int i = 0; i < HOW_MANY; i++) {
        memset(in, 16 * c->rank + i, LARGE);
        c->wait(c, c->send(c, in, LARGE / 2, BF16, up));
    }
    c->barrier(c);
    for (int i = 0; i < HOW_MANY; i++) {
        memset(out, 0, LARGE);
        c->wait(c, c->recv(c, out, LARGE / 2, BF16, down));
        CHECK(out[0] == 16 * down + i && out[LARGE - 1] == 16 * down + i, "message %d: %d", i, out[0]);
    }
    free(in);
    free(out);
}

/* Operations as large as a bucket of gradients: each channel takes many steps. */
static void large(const Known *k)
{
    for (int kind = 0; kind <= COMM_ALL_GATHER; kind++) {
        Case one = {
            .c = k->c, .member = k->member, .kind = kind, .n = 1000007, .type = F32, .salt = draw() | 1};
        start(&one);
        finish(&one);
    }
}

static int heard;
static void hear(void *ctx, const CommEvent *e)
{
    heard += !strcmp(e->comm, ctx) && e->end >= e->start && e->start > 0;
}

static void counters(Comm *c)
{
    if (c->size == 1)
        return;
    Comm plan;
    comm_count_open(&plan, "plan", c->size, c->rank);
    Comm *both[] = {c, &plan};
    c->ops = c->bytes = heard = 0;
    float x[64] = {0}, y[64 * 64] = {0};
    comm_listen(hear, (void *)c->name);
    for (int i = 0; i < 2; i++) {
        Comm *k = both[i];
        k->wait(k, k->all_reduce(k, x, 64, F32, OP_SUM));
        k->wait(k, k->reduce_scatter(k, x, y, 64, F32, OP_SUM));
        k->wait(k, k->all_gather(k, y, x, 64, F32));
        k->wait(k, k->broadcast(k, x, 64, F32, 1));
        k->wait(k, k->rank == 0 ? k->send(k, x, 64, F32, 1) : k->rank == 1 ? k->recv(k, x, 64, F32, 0) : 0);
        k->barrier(k);
    }
    comm_listen(NULL, NULL);
    int64_t bytes = 256 * (2 + c->size + (c->rank == 1) + (c->rank == 0));
    CHECK(c->ops == plan.ops && c->bytes == plan.bytes && plan.bytes == bytes &&
              plan.ops == 4 + (c->rank < 2),
          "%lld operations, %lld bytes; the plan says %lld, %lld", (long long)c->ops, (long long)c->bytes,
          (long long)plan.ops, (long long)plan.bytes);
    CHECK(heard == 5 + (c->rank < 2), "heard of %d operations", heard);
    CHECK(comm_stats(c).moved > 0, "moved %lld", (long long)comm_stats(c).moved);
}

/* Rank 0 comes late to a reduction: the time is its own, and waiting for all others. Whether it looks so on a
 * machine that may hold up any rank. */
static int late(Comm *c)
{
    float x[64] = {0};
    c->barrier(c);
    double before = comm_stats(c).waited;
    Pace from = pace_now();
    if (c->rank == 0)
        usleep(200000);
    c->wait(c, c->all_reduce(c, x, 64, F32, OP_SUM));
    Pace to = pace_now();
    double waited = comm_stats(c).waited - before, away = to.away - from.away;
    double own = to.wall - from.wall - away - (to.starved - from.starved);
    CHECK(waited <= away && to.moving - from.moving <= away, "%.4f s of %.4f s", waited, away);
    return c->rank ? own < waited : own >= 0.1 && waited < own;
}

static void check_late(Comm *c)
{
    int32_t seen = 0;
    for (int tries = 0; tries < 20 && !seen; tries++) {
        seen = late(c);
        c->wait(c, c->all_reduce(c, &seen, 1, I32, OP_MIN));
    }
    CHECK(seen, "a rank that comes late does not look late");
}

/* Waits until `all` bytes have moved since `before` while no rank waits for them, and checks that no other
 * thread has moved any. t: the operations, two at most. */
static void moved_by_itself(Comm *c, CommStats before, int64_t all, const Token *t)
{
    CommStats after = before;
    for (double end = now() + 240; after.moved - before.moved < all && now() < end; after = comm_stats(c))
        usleep(2000);
    c->wait(c, t[0]);
    c->wait(c, t[1]);
    after = comm_stats(c);
    int64_t moved = after.moved - before.moved, behind = after.behind - before.behind;
    CHECK(moved == all && behind == all, "%lld of %lld bytes moved by themselves", (long long)behind,
          (long long)moved);
}

/* With a progress thread (GRIDIRON_PROGRESS) an operation goes on while no rank waits for it: a reduction,
 * and a message beside one of the other direction. */
static void moves_by_itself(Comm *c)
{
    enum { N = 3000000 };
    if (!getenv("GRIDIRON_PROGRESS") || c->size < 2 || per_host < world)
        return;
    float *x = calloc(N, sizeof *x), *y = calloc(N, sizeof *y);
    int next = (c->rank + 1) % c->size, last = (c->rank + c->size - 1) % c->size;
    c->barrier(c);
    CommStats before = comm_stats(c);
    Token t[2] = {c->all_reduce(c, x, N, F32, OP_SUM), 0};
    moved_by_itself(c, before, 2 * (int64_t)N * 4, t); /* reduction and gather each move every element */
    c->barrier(c);
    before = comm_stats(c);
    t[0] = c->send(c, x, N, F32, next);
    t[1] = c->recv(c, y, N, F32, last);
    moved_by_itself(c, before, 2 * (int64_t)N * 4, t);
    free(x);
    free(y);
}

static void layouts(void)
{
    for (int tp = 1; tp <= world; tp++)
        for (int cp = 1; tp * cp <= world; cp++)
            for (int pp = 1; tp * cp * pp <= world; pp++) {
                if (world % (tp * cp * pp))
                    continue;
                int dp = world / (tp * cp * pp), expert[AXES];
                GridSpec spec = {.size = {tp, cp, 1, dp, pp}, .etp = cp, .ep = dp};
                Grid g;
                Known k[16];
                grid_parse_order(tp % 2 ? "tp-cp-ep-dp-pp" : "pp-dp-tp-cp-ep", spec.order);
                spec.experts = grid_expert_size(&spec, world, expert);
                grid_open(&g, &spec, world, rank);
                CHECK(world == 1 || !strcmp(flight_here()->rank[0].note, "start"),
                      "a hang in the start has no name");
                int n = known(&g, k);
                many_at_once(k, n, 3);
                float_bits(&k[4]);
                if (tp == world || (pp == world && world == 2) || (cp == 1 && tp == 2 && pp == 2)) {
                    for (int i = 1; i < n; i++)
                        each_operation(&k[i]);
                    large(&k[0]);
                    nan_stays(k[0].c);
                    float_bits(&k[0]);
                    float_bits(&k[1]);
                    sends_do_not_wait(&g.axis[AXIS_PP]);
                    counters(&g.all);
                    check_late(&g.all);
                    moves_by_itself(&g.all);
                }
                g.all.barrier(&g.all);
                grid_close(&g);
            }
}

/* A process that a rank has forked while a thread had the engine ends by itself: it leaves no job. */
static void child_ends(void)
{
    int status = -1;
    engine_lock();
    pid_t child = fork();
    BUG_ON(child < 0);
    if (!child) {
        alarm(20);
        exit(0);
    }
    engine_unlock();
    CHECK(waitpid(child, &status, 0) == child && status == 0, "a forked child ends with status %d", status);
}

/* Raises the named signal, SEGV and ABRT by a mistake in the code. */
static __attribute__((noinline, no_sanitize("undefined"))) void make_mistake(const char *signal)
{
    static int *volatile nowhere;
    static const struct { const char *name; int number; } sent[] = {{"BUS", SIGBUS}, {"FPE", SIGFPE}};
    if (!strcmp(signal, "SEGV"))
        *nowhere = 1;
    if (!strcmp(signal, "ABRT"))
        abort();
    for (int i = 0; i < 2; i++)
        if (!strcmp(signal, sent[i].name))
            raise(sent[i].number);
}

/* The last rank calls another operation than the others, or with another size or type, or is sent a message
 * of another size than it receives. Returns where `what` is none of these. */
static void disagree(Comm *c, const char *what, float *x)
{
    int other = rank == world - 1;
    if (!strcmp(what, "size"))
        c->wait(c, c->all_reduce(c, x, other ? 64 : 65, F32, OP_SUM));
    if (!strcmp(what, "type"))
        c->wait(c, c->all_reduce(c, x, 64, other ? F64 : F32, OP_SUM));
    if (!strcmp(what, "operation"))
        c->wait(c, other ? c->broadcast(c, x, 64, F32, 0) : c->all_reduce(c, x, 64, F32, OP_SUM));
    if (!strcmp(what, "message") && other)
        c->wait(c, c->recv(c, x, 65, F32, 0));
    if (!strcmp(what, "message") && !rank)
        c->wait(c, c->send(c, x, 64, F32, world - 1));
}

/* Dies while standard output is a full pipe that nobody reads, and a line waits for it. */
static _Noreturn void die_unread(void)
{
    int end[2];
    const char page[4096] = {0};
    BUG_ON(pipe2(end, O_NONBLOCK));
    while (write(end[1], page, sizeof page) > 0)
        ;
    fcntl(end[1], F_SETFL, 0);
    dup2(end[1], STDOUT_FILENO);
    printf("nobody reads this");
    die(EXIT_DATA, "test", "its output is not read; change: nothing");
}

/* Runs collectives in a loop, until ranks die at iteration 50 in the way that `site` names. */
static int lost(const char *site)
{
    GridSpec spec = {.size = {world, 1, 1, 1, 1}};
    Grid g;
    grid_parse_order("tp-cp-ep-dp-pp", spec.order);
    grid_open(&g, &spec, world, rank);
    Comm *c = &g.all;
    float *x = calloc(1 << 20, sizeof *x);
    for (int i = 0;; i++) {
        char note[64];
        snprintf(note, sizeof note, "B%d.0 of iteration %d", i % 8, i);
        comm_note(note);
        if (i == 50 && !strcmp(site, "die") && rank % 2) {
            /* a warning of Open MPI's event library, as it may come when connections to ranks are lost */
            fputs("[warn] Epoll MOD(1) on fd 22 failed.  Old events were 6\n", stderr);
            die(EXIT_DATA, "test", "ranks die together; change: nothing");
        }
        if (i == 50 && !strcmp(site, "unread") && rank == world - 1)
            die_unread();
        if (i == 50 && !strcmp(site, "bug"))
            BUG_ON(rank >= 0);
        if (i == 50)
            disagree(c, site, x);
        if (i == 50 && rank == world - 1)
            make_mistake(site);
        if (i == 50 && !strcmp(site, "kill") && rank == world - 1)
            raise(SIGKILL);
        if (i == 50 && !strcmp(site, "all"))
            raise(SIGKILL);
        if (i == 50 && !strcmp(site, "compute")) {
            if (rank == world - 1)
                raise(SIGKILL);
            for (;;)
                x[1] += 1;
        }
        if (i == 50 && !strcmp(site, "nobody"))
            printf("# on its way\n");
        if (i == 50 && !strcmp(site, "exit")) {
            printf("# leaving\n");
            exit(EXIT_COMPARE);
        }
        c->wait(c, c->all_reduce(c, x, i % 2 ? 1 << 20 : 3, F32, OP_SUM));
    }
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    world = job_launched(&rank);
    if (getenv("GRIDIRON_RANKS_PER_HOST"))
        per_host = atoi(getenv("GRIDIRON_RANKS_PER_HOST"));
    if (argc > 2 && !strcmp(argv[1], "lost"))
        return lost(argv[2]);
    if (argc > 1)
        seed = strtoull(argv[1], NULL, 10) << 32;
    comm_checksums(seed >> 32 & 1);
    layouts();
    child_ends();
    return test_end();
}
