/* optim -- one update of each optimizer, and sums of squares.
 *
 * Every element goes through the same vector code, because a tail is padded to a whole vector. An update
 * therefore has the same bits however the weights are cut into shards. */
#include "isa.h"

#define BLOCK 16384            /* elements of a work item */
#define PIECE 256              /* elements updated before they are converted to storage, few: the next are
                                * read beside that */

/* The arrays of an update; an array that the optimizer does not have is NULL. */
enum { W, M, V, DIR, G, ARRAYS };

/* scale: what gradients are multiplied by. rate: learning rate times trust ratio. wd: weight decay. new1,
 * new2: 1 - beta1, 1 - beta2. unbias1, unbias2: what Adam's moments are multiplied by. Rules take it by
 * value: what they store could otherwise change it, and each vector would load and convert it all again. */
typedef struct {
    REAL scale, lr, rate, wd, beta1, new1, beta2, new2, unbias1, unbias2, eps, momentum;
    int nesterov;
} Rates;
/* Updates elements [0, n) of arrays a; n is a multiple of VN. */
typedef void UpdateRule(Rates k, REAL *const a[ARRAYS], int64_t n);
typedef struct {
    const Updated *x;
    const Update *u;
    Rates rates;
    UpdateRule *rule;
    void *dir, *out;
    int moments;  /* bool: the rule updates moments */
    int64_t turn; /* Update.turn of the verdict */
} Job;

static void update_piece(const Job *j, REAL *const p[ARRAYS], int64_t n)
{
    int64_t whole = n - n % VN, left = n - whole;
    REAL tail[ARRAYS][VN], *q[ARRAYS];
    if (whole)
        j->rule(j->rates, p, whole);
    if (!left)
        return;
    for (int k = 0; k < ARRAYS; k++) {
        q[k] = p[k] ? tail[k] : NULL;
        if (p[k])
            vstore(tail[k], vload_part(p[k] + whole, left, 0));
    }
    j->rule(j->rates, q, VN);
    for (int k = 0; k < G; k++)
        if (p[k])
            vstore_part(p[k] + whole, vload(tail[k]), left);
}

/* masters = those of n elements, by their weights and remainders. */
static void join(REAL *masters, const uint16_t *weight, const int16_t *rest, int64_t n)
{
    for (int64_t k = 0; k < n; k++)
        masters[k] = (REAL)master_join(weight[k], rest[k]);
}

static void split(uint16_t *weight, int16_t *rest, const REAL *masters, int64_t n)
{
    for (int64_t k = 0; k < n; k++) {
        weight[k] = master_weight((float)masters[k]);
        rest[k] = master_rest((float)masters[k]);
    }
}

/* Where the numbers and scales of moment `which`, M or V, are from element i on. type MOMENT_FP32: there is
 * nothing to convert, or the rule has no such moment. */
typedef struct { MomentType type; char *p; uint8_t *scale; int second; } Stored;

static Stored stored(const Job *j, int which, int64_t i)
{
    const Updated *x = j->x;
    const Update *u = j->u;
    MomentType type = which == V ? u->v_type : u->m_type;
    char *p = which == V ? x->v : x->m;
    uint8_t *scale = which == V ? x->v_scale : x->m_scale;
    if (!j->moments || !p || !type)
        return (Stored){.type = MOMENT_FP32};
    return (Stored){type, p + i * moment_size(type), scale ? scale + i / MOMENT_BLOCK : NULL, which == V};
}

/* Moments that are not reals: p[M] and p[V] = copies of n of them in room, from element i on; and back. */
static void load_pair(const Job *j, REAL *p[ARRAYS], REAL (*room)[PIECE], int64_t i, int64_t n)
{
    for (int which = M; which <= V; which++) {
        Stored s = stored(j, which, i);
        if (s.type)
            FN(load_moments)(p[which] = room[which - M], s.p, s.scale, n, s.type, s.second);
    }
}
static void store_pair(const Job *j, REAL *p[ARRAYS], int64_t i, int64_t n)
{
    const BlockNumbers *blocks = &j->x->blocks;
    for (int which = M; which <= V; which++) {
        Stored s = stored(j, which, i);
        if (s.type)
            FN(store_moments)(s.p, s.scale, p[which], n, s.type, s.second, blocks, i / MOMENT_BLOCK, j->turn);
    }
}

static void update_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const Job *j = ctx;
    const Updated *x = j->x;
    Dtype type = j->u->out_type;
    REAL *m = j->moments && !j->u->m_type ? x->m : NULL,
         *v = j->moments && !j->u->v_type ? x->v : NULL,
         *const base[ARRAYS] = {x->w, m, v, j->dir, (REAL *)x->g}, masters[PIECE], gradients[PIECE],
         moments[2][PIECE];
    int64_t end = (item + 1) * BLOCK < x->n ? (item + 1) * BLOCK : x->n;
    for (int64_t i = item * BLOCK, n; i < end; i += n) {
        REAL *p[ARRAYS];
        n = end - i < PIECE ? end - i : PIECE;
        for (int k = 0; k < ARRAYS; k++)
            p[k] = base[k] ? base[k] + i : NULL;
        if (j->u->bf16_g)
            FN(load_reals)(p[G] = gradients, (const uint16_t *)x->g + i, n, BF16);
        if (x->rest)
            join(p[W] = masters, (uint16_t *)x->out + i, x->rest + i, n);
        load_pair(j, p, moments, i, n);
        update_piece(j, p, n);
        store_pair(j, p, i, n);
        if (x->rest && j->out)
            split((uint16_t *)x->out + i, x->rest + i, masters, n);
        else if (j->out)
            FN(store_reals)((char *)j->out + (size_t)i * dtype_size(type), p[W], n, type);
    }
}

/* Updates all arrays of u, if the verdict says so.
 *   dir      in  bool: the rule reads or writes Updated.dir
 *   out      in  bool: the rule writes weights, and Updated.out with them
 *   moments  in  bool: the rule updates moments */
static void update(Device *d, const Update *u, UpdateRule *rule, int dir, int out, int moments)
{
    const Verdict *v = u->verdict;
    REAL unbias1 = (REAL)(1 / (v->behind ? u->before1 : u->bias1)),
         unbias2 = (REAL)(1 / (v->behind ? u->before2 : u->bias2));
    for (int64_t i = 0; i < u->count && v->go; i++) {
        const Updated *x = &u->list[i];
        BUG_ON(x->rest && (x->w || u->out_type != BF16 || REAL_TYPE != F32));
        BUG_ON(u->bf16_g && (u->out_type != BF16 || dir));
        BUG_ON((u->m_type || u->v_type) && (REAL_TYPE != F32 || x->blocks.run < 1));
        BUG_ON((x->m && moment_scaled(u->m_type) && !x->m_scale) ||
               (x->v && moment_scaled(u->v_type) && !x->v_scale));
        Rates rates = {.scale = (REAL)v->multiplier, .lr = (REAL)u->lr,
                       .rate = (REAL)(u->lr * (x->trust ? *x->trust : 1)), .wd = (REAL)x->wd,
                       .beta1 = (REAL)u->beta1, .new1 = (REAL)(1 - u->beta1), .beta2 = (REAL)u->beta2,
                       .new2 = (REAL)(1 - u->beta2), .unbias1 = unbias1, .unbias2 = unbias2,
                       .eps = (REAL)u->eps, .momentum = (REAL)u->momentum, .nesterov = u->nesterov};
        Job j = {x, u, rates, rule, dir ? x->dir : NULL, out ? x->out : NULL, moments, u->turn - v->behind};
        pool_run(d->pool, update_item, &j, (x->n + BLOCK - 1) / BLOCK);
    }
}

/* Updates Adam's moments of elements i .. i + VN and returns mhat / (sqrt(vhat) + eps). */
static inline Vec adam_direction(Rates k, REAL *pm, REAL *pv, const REAL *pg, int64_t i)
{
    Vec g = vload(pg + i) * k.scale;
    Vec m = vload(pm + i) * k.beta1 + g * k.new1;
    Vec v = vload(pv + i) * k.beta2 + g * g * k.new2;
    vstore(pm + i, m);
    vstore(pv + i, v);
    return m * k.unbias1 / (vsqrt(v * k.unbias2) + k.eps);
}

static void adam_rule(Rates k, REAL *const a[ARRAYS], int64_t n)
{
    REAL *w = a[W], *m = a[M], *v = a[V];
    const REAL *g = a[G];
    for (int64_t i = 0; i < n; i += VN) {
        Vec dir = adam_direction(k, m, v, g, i), was = vload(w + i);
        vstore(w + i, was - k.lr * (dir + k.wd * was));
    }
}

static void lamb_rule(Rates k, REAL *const a[ARRAYS], int64_t n)
{
    REAL *dir = a[DIR], *m = a[M], *v = a[V];
    const REAL *w = a[W], *g = a[G];
    for (int64_t i = 0; i < n; i += VN)
        vstore(dir + i, adam_direction(k, m, v, g, i) + k.wd * vload(w + i));
}

static void lamb_step(Rates k, REAL *const a[ARRAYS], int64_t n)
{
    REAL *w = a[W];
    const REAL *dir = a[DIR];
    for (int64_t i = 0; i < n; i += VN)
        vstore(w + i, vload(w + i) - k.rate * vload(dir + i));
}

static void sgd_rule(Rates k, REAL *const a[ARRAYS], int64_t n)
{
    REAL *pw = a[W], *pm = a[M];
    const REAL *pg = a[G];
    for (int64_t i = 0; i < n; i += VN) {
        Vec w = vload(pw + i), g = vload(pg + i) * k.scale + k.wd * w, step = g;
        if (pm) {
            Vec m = k.momentum * vload(pm + i) + g;
            vstore(pm + i, m);
            step = k.nesterov ? g + k.momentum * m : m;
        }
        vstore(pw + i, w - k.lr * step);
    }
}

static void lars_rule(Rates k, REAL *const a[ARRAYS], int64_t n)
{
    REAL *pw = a[W], *pm = a[M];
    const REAL *pg = a[G];
    for (int64_t i = 0; i < n; i += VN) {
        Vec w = vload(pw + i), g = vload(pg + i) * k.scale + k.wd * w;
        Vec m = k.momentum * vload(pm + i) + k.rate * g;
        vstore(pm + i, m);
        vstore(pw + i, w - m);
    }
}

void FN(cpu_adam)(Device *d, const Update *u) { update(d, u, adam_rule, 0, 1, 1); }
void FN(cpu_lamb_direction)(Device *d, const Update *u) { update(d, u, lamb_rule, 1, 0, 1); }
void FN(cpu_lamb_apply)(Device *d, const Update *u) { update(d, u, lamb_step, 1, 1, 0); }
void FN(cpu_lars)(Device *d, const Update *u) { update(d, u, lars_rule, 0, 1, 1); }

void FN(cpu_sgd)(Device *d, const Update *u)
{
    for (int64_t i = 0; i < u->count; i++)
        BUG_ON(!u->list[i].m && u->momentum != 0);
    update(d, u, sgd_rule, 0, 1, 1);
}

/* Squares have sixteen F64 accumulators with every vector length: all instruction sets add in one
 * order. */
#define SUMS 16
typedef struct { const char *x; int64_t n; Dtype type; const int16_t *rest; double *out; } SumJob;
typedef double DVec __attribute__((vector_size(VBYTES)));

/* piece = x[0..n) as F64, with zeros up to a multiple of SUMS; returns that multiple.
 *   rest  in  [n]  remainders of masters whose weights are x; NULL: the elements are those of x */
static int64_t widen(double *piece, const char *x, int64_t n, Dtype type, const int16_t *rest)
{
    REAL buf[SUMSQ_BLOCK];
    int64_t padded = (n + SUMS - 1) / SUMS * SUMS;
    if (rest) {
        for (int64_t k = 0; k < n; k++)
            piece[k] = (double)master_join(((const uint16_t *)x)[k], rest[k]);
    } else if (type == F64) {
        memcpy(piece, x, (size_t)n * sizeof(double));
    } else {
        const REAL *real = row_in(mat((void *)x, 1, n, type), 0, buf);
        for (int64_t k = 0; k < n; k++)
            piece[k] = real[k];
    }
    for (int64_t k = n; k < padded; k++)
        piece[k] = 0;
    return padded;
}

/* The sum of squares of n elements, a multiple of SUMS, of F32 or F64. */
INLINE double squares_of(const char *x, int64_t n, const Dtype type)
{
    typedef float Floats __attribute__((vector_size(VBYTES / 2)));
    const int64_t size = (int64_t)dtype_size(type);
    double sum[SUMS] = {0};
    for (int64_t k = 0; k < n; k += SUMS) {
        __builtin_prefetch(x + k * size + AHEAD_BYTES);
#pragma GCC unroll 16
        for (int s = 0; s < SUMS; s += VBYTES / 8) {
            DVec a, v;
            Floats f;
            if (type == F32) {
                memcpy(&f, x + (k + s) * size, sizeof f);
                v = __builtin_convertvector(f, DVec);
            } else {
                memcpy(&v, x + (k + s) * size, sizeof v);
            }
            memcpy(&a, sum + s, sizeof a);
            a += v * v;
            memcpy(sum + s, &a, sizeof a);
        }
    }
    for (int k = SUMS / 2; k; k /= 2)
        for (int s = 0; s < k; s++)
            sum[s] += sum[s + k];
    return sum[0];
}

static double squares_of_block(const char *x, int64_t n, Dtype type, const int16_t *rest)
{
    if (type == F32 && n % SUMS == 0)
        return squares_of(x, n, F32);
    double piece[SUMSQ_BLOCK];
    return squares_of((const char *)piece, widen(piece, x, n, type, rest), F64);
}

static void squares_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const SumJob *j = ctx;
    int64_t end = (item + 1) * BLOCK < j->n ? (item + 1) * BLOCK : j->n;
    for (int64_t i = item * BLOCK; i < end; i += SUMSQ_BLOCK) {
        int64_t n = end - i < SUMSQ_BLOCK ? end - i : SUMSQ_BLOCK;
        j->out[i / SUMSQ_BLOCK] =
            squares_of_block(j->x + (size_t)i * dtype_size(j->type), n, j->type,
                             j->rest ? j->rest + i : NULL);
    }
}

/* Sums of blocks, doubles, that the two sum buffers of thread 0 hold. */
#define ROOM ((int64_t)(2 * SUM_MAX * sizeof(REAL) / sizeof(double)))

void FN(cpu_squares)(Device *d, const Squares *list, int64_t count, Dtype type)
{
    double *room = (double *)FN(sum_buf)(d, 0, 0);
    for (const Squares *s = list; s < list + count; s++)
        for (int64_t at = 0, part; at < s->n; at += part) {
            part = s->n - at < ROOM * SUMSQ_BLOCK ? s->n - at : ROOM * SUMSQ_BLOCK;
            Dtype of = s->rest ? BF16 : type;
            SumJob j = {(const char *)s->x + (size_t)at * dtype_size(of), part, of,
                        s->rest ? s->rest + at : NULL, room};
            pool_run(d->pool, squares_item, &j, (part + BLOCK - 1) / BLOCK);
            exact_add(s->sum, room, (part + SUMSQ_BLOCK - 1) / SUMSQ_BLOCK);
        }
}
