/* route -- the router of experts: scores, the choice of experts and their weights, and the gradient. */
#include "isa.h"

#define ITEM_ROWS 64           /* rows of a work item */
#define TINY ((REAL)1e-20)     /* keeps a sum of sigmoids above 0 */

typedef struct {
    Device *d;
    int32_t *choice;
    const int32_t *chosen;
    Mat weight, scores, logits, bias, push, dlogits, stats;
    Routing r;
} Job;

static REAL largest_of(const REAL *x, int64_t n)
{
    Vec m = vset(-INFINITY);
    for (int64_t i = 0; i < n; i += VN)
        m = vmax(n - i < VN ? vload_part(x + i, n - i, -INFINITY) : vload(x + i), m);
    return vmaximum(m);
}

static REAL sum_of(const REAL *x, int64_t n)
{
    Vec s = {0};
    for (int64_t i = 0; i < n; i += VN)
        s += vget(x + i, n - i);
    return vsum(s);
}

static REAL dot_of(const REAL *x, const REAL *y, int64_t n)
{
    Vec s = {0};
    for (int64_t i = 0; i < n; i += VN)
        s += vget(x + i, n - i) * vget(y + i, n - i);
    return vsum(s);
}

/* p = softmax(x); p may be x. Returns logsumexp(x). */
static REAL softmax(REAL *p, const REAL *x, int64_t n)
{
    REAL largest = largest_of(x, n);
    for (int64_t i = 0; i < n; i += VN)
        vput(p + i, vexp(vget(x + i, n - i) - largest), n - i);
    REAL sum = sum_of(p, n);
    for (int64_t i = 0; i < n; i += VN)
        vput(p + i, vget(p + i, n - i) / sum, n - i);
    return largest + (REAL)log((double)sum);
}

/* s = sigmoid(x). Returns the sum of s. */
static REAL sigmoids(REAL *s, const REAL *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += VN)
        vput(s + i, 1 / (1 + vexp(-vget(x + i, n - i))), n - i);
    return sum_of(s, n);
}

/* Returns the index of the largest of x, the lowest of equal ones, and makes that element NaN, which marks
 * it as taken: NaN is never the largest. At least one element is not NaN. */
static int32_t take_largest(REAL *x, int64_t n, REAL *value)
{
    int32_t i = 0;
    *value = largest_of(x, n);
    while (x[i] != *value)
        i++;
    x[i] = NAN;
    return i;
}

/* Takes all experts outside of the best groups.
 *   value    in/out  [E]               values of the experts
 *   scratch  out     [E / groups]      a group's values
 *   group    out     [ROUTING_GROUPS]  values of the groups */
static void limit_groups(const Routing *r, REAL *value, int64_t experts, REAL *scratch, REAL *group)
{
    int64_t n = experts / r->groups;
    for (int g = 0; g < r->groups; g++) {
        REAL x;
        memcpy(scratch, value + g * n, (size_t)n * sizeof *scratch);
        group[g] = 0;
        for (int i = 0; i < r->topk / r->group_topk; i++) {
            take_largest(scratch, n, &x);
            group[g] += x;
        }
        group[g] = group[g] == group[g] ? group[g] : -INFINITY;      /* inf - inf */
    }
    REAL x;
    for (int i = 0; i < r->group_topk; i++)
        take_largest(group, r->groups, &x);
    for (int g = 0; g < r->groups; g++)
        for (int64_t i = 0; i < n && group[g] == group[g]; i++)
            value[g * n + i] = NAN;
}

/* The weights of the chosen experts.
 *   w  out  [k]  weights
 *   x  in   [k]  the chosen logits, scores or sigmoids */
static void weigh(const Routing *r, REAL *w)
{
    int64_t k = r->topk;
    REAL by = (REAL)r->scale;
    if (!r->sigmoid && !r->pre_softmax)
        softmax(w, w, k);
    if (r->sigmoid && k > 1)
        by /= sum_of(w, k) + TINY;
    for (int64_t i = 0; i < k; i += VN)
        vput(w + i, vget(w + i, k - i) * by, k - i);
}

static void fwd_row(const Job *j, int64_t r, REAL *value, REAL *spare, REAL *group)
{
    const Routing *rule = &j->r;
    int64_t n = j->logits.cols;
    const REAL *x = mat_at(j->logits, r, 0), *bias = j->bias.p;
    REAL *scores = mat_at(j->scores, r, 0), *w = mat_at(j->weight, r, 0), sum = 1, unused;
    int32_t *choice = j->choice + r * rule->topk;
    if (rule->sigmoid)
        sum = sigmoids(scores, x, n) + TINY;
    else
        softmax(scores, x, n);
    const REAL *by = rule->sigmoid || bias || (rule->groups && rule->pre_softmax) ? scores : x;
    for (int64_t i = 0; i < n; i += VN) {
        Vec v = vget(by + i, n - i);
        v = bias ? v + vget(bias + i, n - i) : v;
        vput(value + i, vselect(v == v, v, vset(-INFINITY)), n - i);
    }
    if (rule->groups && !rule->given)
        limit_groups(rule, value, n, spare, group);
    for (int i = 0; i < rule->topk; i++) {
        choice[i] = rule->given ? choice[i] : take_largest(value, n, &unused);
        w[i] = rule->sigmoid || rule->pre_softmax ? scores[choice[i]] : x[choice[i]];
    }
    weigh(rule, w);
    if (rule->sigmoid)
        for (int64_t i = 0; i < n; i += VN)
            vput(scores + i, vget(scores + i, n - i) / sum, n - i);
}

static void fwd_item(void *ctx, int64_t item, int thread)
{
    const Job *j = ctx;
    REAL *value = FN(row_buf)(j->d, thread, 0), *spare = FN(row_buf)(j->d, thread, 1), group[ROUTING_GROUPS];
    for (int64_t r = item * ITEM_ROWS; r < (item + 1) * ITEM_ROWS && r < j->logits.rows; r++)
        fwd_row(j, r, value, spare, group);
}

static void check(const Job *j)
{
    const Routing *r = &j->r;
    int64_t n = j->logits.cols;
    BUG_ON(j->logits.type != REAL_TYPE || n > ROW_MAX || r->topk < 1 || r->topk > n);
    BUG_ON(j->weight.type != REAL_TYPE || j->weight.rows != j->logits.rows || j->weight.cols != r->topk);
    BUG_ON(r->groups && (r->groups < 0 || r->groups > ROUTING_GROUPS || n % r->groups || r->group_topk < 1
                         || r->group_topk > r->groups || r->topk % r->group_topk
                         || r->topk / r->group_topk > n / r->groups));
}

static int64_t items(Mat m) { return (m.rows + ITEM_ROWS - 1) / ITEM_ROWS; }

void FN(cpu_route_fwd)(Device *d, int32_t *choice, Mat weight, Mat scores, Mat logits, Mat bias,
                       const Routing *r)
{
    Job j = {.d = d, .choice = choice, .weight = weight, .scores = scores, .logits = logits, .bias = bias,
             .r = *r};
    check(&j);
    BUG_ON(scores.type != REAL_TYPE || scores.rows != logits.rows || scores.cols != logits.cols);
    BUG_ON(bias.p && (bias.type != REAL_TYPE || bias.cols != logits.cols));
    pool_run(d->pool, fwd_item, &j, items(logits));
}

/* Softmax: p in s and its gradient in ds become the gradient of the logits; plus `more` times p. */
static void softmax_bwd(REAL *ds, const REAL *s, int64_t n, REAL more)
{
    REAL dot = dot_of(s, ds, n) - more;
    for (int64_t i = 0; i < n; i += VN)
        vput(ds + i, vget(s + i, n - i) * (vget(ds + i, n - i) - dot), n - i);
}

/* Adds the gradient of the chosen elements to ds: of scores, or with `post` of logits.
 *   ds  in/out  [E]  gradient
 *   s   in      [E]  scores or sigmoids; with `post` logits
 *   u   out     [k]  scratch: the chosen elements, then their softmax */
static void add_chosen(const Routing *r, REAL *ds, const REAL *s, REAL *u, const REAL *dw,
                       const int32_t *choice)
{
    int64_t k = r->topk;
    REAL by = (REAL)r->scale, less = 0;
    int post = !r->sigmoid && !r->pre_softmax;
    for (int64_t i = 0; i < k; i++) {
        BUG_ON(choice[i] < 0);
        u[i] = s[choice[i]];
    }
    if (post) {
        softmax(u, u, k);
        less = dot_of(u, dw, k);
    } else if (r->sigmoid && k > 1) {
        REAL sum = sum_of(u, k) + TINY;
        by /= sum;
        less = dot_of(u, dw, k) / sum;
    }
    for (int64_t i = 0; i < k; i++)
        ds[choice[i]] += by * (dw[i] - less) * (post ? u[i] : 1);
}

/* The row of push that belongs to row r of the scores; NULL: none. */
static const REAL *push_of(const Job *j, int64_t r)
{
    return j->push.p ? mat_at(j->push, (j->r.row0 + r) / j->r.each, 0) : NULL;
}

static void bwd_row(const Job *j, int64_t r, REAL *s, REAL *ds, REAL *u)
{
    const Routing *rule = &j->r;
    int64_t n = j->logits.cols, k = rule->topk;
    const REAL *x = mat_at(j->logits, r, 0), *dw = mat_at(j->weight, r, 0);
    const REAL *push = push_of(j, r);
    const int32_t *choice = j->chosen + r * k;
    REAL *out = mat_at(j->dlogits, r, 0);
    if (push)
        memcpy(ds, push, (size_t)n * sizeof *ds);
    else
        memset(ds, 0, (size_t)n * sizeof *ds);
    if (rule->sigmoid) {
        REAL sum = sigmoids(s, x, n) + TINY, dot = dot_of(s, ds, n) / sum;
        for (int64_t i = 0; i < n; i += VN)
            vput(ds + i, push ? (vget(ds + i, n - i) - dot) / sum : vset(0), n - i);
        add_chosen(rule, ds, s, u, dw, choice);
        for (int64_t i = 0; i < n; i += VN) {
            Vec v = vget(s + i, n - i);
            vput(ds + i, vget(ds + i, n - i) * v * (1 - v), n - i);
        }
        if (rule->z != 0) {
            REAL more = (REAL)(2 * rule->z) * softmax(s, x, n);
            for (int64_t i = 0; i < n; i += VN)
                vput(ds + i, vget(ds + i, n - i) + more * vget(s + i, n - i), n - i);
        }
    } else {
        REAL more = (REAL)(2 * rule->z) * softmax(s, x, n);
        if (rule->pre_softmax)
            add_chosen(rule, ds, s, u, dw, choice);
        softmax_bwd(ds, s, n, more);
        if (!rule->pre_softmax)
            add_chosen(rule, ds, x, u, dw, choice);
    }
    memcpy(out, ds, (size_t)n * sizeof *out);
}

static void bwd_item(void *ctx, int64_t item, int thread)
{
    const Job *j = ctx;
    REAL *s = FN(row_buf)(j->d, thread, 0), *ds = FN(row_buf)(j->d, thread, 1);
    REAL *u = FN(row_buf)(j->d, thread, 2);
    for (int64_t r = item * ITEM_ROWS; r < (item + 1) * ITEM_ROWS && r < j->logits.rows; r++)
        bwd_row(j, r, s, ds, u);
}

static void check_push(const Job *j)
{
    const Routing *r = &j->r;
    int64_t rows = j->logits.rows;
    BUG_ON(j->push.p && (j->push.type != REAL_TYPE || j->push.cols != j->logits.cols || r->each < 1
                         || (rows && (r->row0 + rows - 1) / r->each >= j->push.rows)));
}

void FN(cpu_route_bwd)(Device *d, Mat dlogits, Mat dweight, Mat logits, const int32_t *choice, Mat push,
                       const Routing *r)
{
    Job j = {.d = d, .chosen = choice, .weight = dweight, .logits = logits, .push = push, .dlogits = dlogits,
             .r = *r};
    check(&j);
    BUG_ON(dlogits.type != REAL_TYPE || dlogits.rows != logits.rows || dlogits.cols != logits.cols);
    check_push(&j);
    pool_run(d->pool, bwd_item, &j, items(logits));
}

/* ---- statistics ---- */

static void stats_row(const Job *j, int64_t r, REAL *s)
{
    int64_t n = j->logits.cols;
    const REAL *x = mat_at(j->logits, r, 0), *push = push_of(j, r);
    REAL z = softmax(s, x, n), entropy = 0;
    if (j->r.sigmoid) {
        REAL sum = sigmoids(s, x, n) + TINY;
        for (int64_t i = 0; i < n; i++) {
            s[i] /= sum;
            entropy -= s[i] > 0 ? s[i] * (REAL)log((double)s[i]) : 0;
        }
    } else {
        Vec sum = {0};                 /* of p log p */
        for (int64_t i = 0; i < n; i += VN)
            sum += vget(s + i, n - i) * (vget(x + i, n - i) - z);
        entropy = -vsum(sum);
    }
    *(REAL *)mat_at(j->stats, 0, r) = push ? dot_of(s, push, n) : 0;
    *(REAL *)mat_at(j->stats, 1, r) = (REAL)j->r.z * z * z;
    *(REAL *)mat_at(j->stats, 2, r) = entropy;
}

static void stats_item(void *ctx, int64_t item, int thread)
{
    const Job *j = ctx;
    REAL *s = FN(row_buf)(j->d, thread, 0);
    for (int64_t r = item * ITEM_ROWS; r < (item + 1) * ITEM_ROWS && r < j->logits.rows; r++)
        stats_row(j, r, s);
}

void FN(cpu_route_stats)(Device *d, Mat stats, Mat logits, Mat push, const Routing *r)
{
    Job j = {.d = d, .logits = logits, .push = push, .stats = stats, .r = *r};
    BUG_ON(logits.type != REAL_TYPE || logits.cols > ROW_MAX);
    BUG_ON(stats.type != REAL_TYPE || stats.rows != 3 || stats.cols != logits.rows);
    check_push(&j);
    pool_run(d->pool, stats_item, &j, items(logits));
}
