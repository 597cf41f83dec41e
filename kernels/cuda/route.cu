/* route -- the router of experts: a warp does a row, and lane l has the experts l, l + 32, ...
 *
 * Values are ordered by size, equal ones by index: the next best expert is the first one behind the last in
 * this order, so nothing is kept of the experts that were chosen before. Lanes pass each other values
 * through memory only behind __syncwarp. */
#include "common.cuh"

enum { THREADS = 128, WARPS = THREADS / WARP };

struct Route {
    int32_t *choice;
    const int32_t *chosen;
    float *weight, *scores, *dlogits, *stats;
    const float *dweight, *logits, *bias, *push;
    int64_t ldweight, ldscores, lddlogits, ldlogits, ldpush, ldstats, rows, row0, each;
    int experts, topk, sigmoid, pre, groups, group_topk, given;
    float scale, z;
};

/* A value and its index; `first` is before every other, `none` behind. */
struct Ranked { float value; int index; };
__device__ __forceinline__ Ranked first() { return Ranked{INFINITY, -1}; }
__device__ __forceinline__ Ranked none() { return Ranked{-INFINITY, INT32_MAX}; }
__device__ __forceinline__ bool before(Ranked a, Ranked b)
{
    return a.value > b.value || (a.value == b.value && a.index < b.index);
}
/* The best of all lanes; every lane gets it. */
__device__ __forceinline__ Ranked warp_best(Ranked a)
{
    for (int o = WARP / 2; o; o >>= 1) {
        Ranked b = {__shfl_xor_sync(EVERY_LANE, a.value, o), __shfl_xor_sync(EVERY_LANE, a.index, o)};
        a = before(b, a) ? b : a;
    }
    return a;
}
__device__ __forceinline__ float warp_max(float x)
{
    for (int o = WARP / 2; o; o >>= 1)
        x = fmaxf(x, __shfl_xor_sync(EVERY_LANE, x, o));
    return x;
}

__device__ __forceinline__ float sigmoid_of(float x) { return 1 / (1 + expf(-x)); }
__device__ __forceinline__ float ordered(float x) { return isnan(x) ? -INFINITY : x; }

/* Returns the largest of x [n] in *largest, and the sum of exp(x - largest). */
__device__ __forceinline__ float sum_exp(const float *x, int n, int lane, float *largest)
{
    float sum = 0, top = -INFINITY;
    for (int i = lane; i < n; i += WARP)
        top = fmaxf(top, x[i]);
    *largest = warp_max(top);
    for (int i = lane; i < n; i += WARP)
        sum += expf(x[i] - *largest);
    return warp_sum(sum);
}

/* Returns the groups that experts may be chosen from, a bit each. value(e): the value of expert e. */
template <class Value> __device__ __forceinline__ uint32_t best_groups(const Route &j, int lane, Value value)
{
    int n = j.experts / j.groups;
    float sum = 0;
    Ranked last = first();
    for (int k = 0; lane < j.groups && k < j.topk / j.group_topk; k++) {
        Ranked best = none();
        for (int i = lane * n; i < (lane + 1) * n; i++) {
            Ranked a = {value(i), i};
            best = before(last, a) && before(a, best) ? a : best;
        }
        sum += best.value;
        last = best;
    }
    Ranked own = lane < j.groups ? Ranked{ordered(sum), lane} : none();
    uint32_t groups = 0;
    for (int k = 0; k < j.group_topk; k++) {
        Ranked best = warp_best(groups >> lane & 1 ? none() : own);
        groups |= 1u << best.index;
    }
    return groups;
}

/* w [k], the chosen elements, become the weights. */
__device__ __forceinline__ void weigh(const Route &j, float *w, int lane)
{
    float by = j.scale, sum = 0, largest = 0;
    int post = !j.sigmoid && !j.pre;
    if (post)
        by /= sum_exp(w, j.topk, lane, &largest);
    if (j.sigmoid && j.topk > 1) {
        for (int i = lane; i < j.topk; i += WARP)
            sum += w[i];
        by /= warp_sum(sum) + 1e-20f;
    }
    for (int i = lane; i < j.topk; i += WARP)
        w[i] = (post ? expf(w[i] - largest) : w[i]) * by;
}

static __global__ void __launch_bounds__(THREADS) k_route_fwd(const Route j)
{
    int64_t r = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    int lane = (int)threadIdx.x % WARP, n = j.experts;
    if (r >= j.rows)
        return;
    const float *x = j.logits + r * j.ldlogits, *bias = j.bias;
    float *scores = j.scores + r * j.ldscores, *w = j.weight + r * j.ldweight, sum = 0, largest = 0;
    int32_t *choice = j.choice + r * j.topk;
    if (!j.sigmoid)
        sum = sum_exp(x, n, lane, &largest);
    for (int i = lane; i < n; i += WARP)
        scores[i] = j.sigmoid ? sigmoid_of(x[i]) : expf(x[i] - largest) / sum;
    __syncwarp();
    const float *by = j.sigmoid || bias || (j.groups && j.pre) ? scores : x;
    auto value = [&](int i) { return ordered(bias ? by[i] + bias[i] : by[i]); };
    uint32_t groups = j.groups ? best_groups(j, lane, value) : 1;
    int each = j.groups ? n / j.groups : n;
    Ranked last = first();
    for (int k = 0; k < j.topk; k++) {
        Ranked best = none();
        for (int i = lane; i < n && !j.given; i += WARP) {
            Ranked a = {value(i), i};
            best = (groups >> i / each & 1) && before(last, a) && before(a, best) ? a : best;
        }
        last = j.given ? Ranked{0, choice[k]} : warp_best(best);
        if (lane == 0) {
            if (!j.given)
                choice[k] = last.index;
            w[k] = j.sigmoid || j.pre ? scores[last.index] : x[last.index];
        }
    }
    __syncwarp();
    weigh(j, w, lane);
    if (!j.sigmoid)
        return;
    for (int i = lane; i < n; i += WARP)
        sum += scores[i];
    sum = warp_sum(sum) + 1e-20f;
    for (int i = lane; i < n; i += WARP)
        scores[i] /= sum;
}

/* What the gradient of a chosen element s with the gradient dw of its weight is made of: by (dw - less),
 * times exp(s - largest) where the weights are a softmax of chosen logits. */
struct Chosen { float by, less, largest; };
__device__ __forceinline__ Chosen chosen_of(const Route &j, const float *x, const int32_t *choice,
                                            const float *dw, int lane)
{
    Chosen c = {j.scale, 0, 0};
    float sum = 0, dot = 0, top = -INFINITY;
    int post = !j.sigmoid && !j.pre;
    if (j.pre || (j.sigmoid && j.topk == 1))
        return c;
    for (int i = lane; i < j.topk; i += WARP)
        top = fmaxf(top, x[choice[i]]);
    c.largest = warp_max(top);
    for (int i = lane; i < j.topk; i += WARP) {
        float s = post ? expf(x[choice[i]] - c.largest) : sigmoid_of(x[choice[i]]);
        sum += s;
        dot += s * dw[i];
    }
    sum = warp_sum(sum) + (post ? 0 : 1e-20f);
    c.less = warp_sum(dot) / sum;
    c.by = j.scale / sum;
    return c;
}

static __global__ void __launch_bounds__(THREADS) k_route_bwd(const Route j)
{
    int64_t r = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    int lane = (int)threadIdx.x % WARP, n = j.experts, post = !j.sigmoid && !j.pre;
    if (r >= j.rows)
        return;
    const float *x = j.logits + r * j.ldlogits, *dw = j.dweight + r * j.ldweight;
    const float *push = j.push ? j.push + (j.row0 + r) / j.each * j.ldpush : NULL;
    const int32_t *choice = j.chosen + r * j.topk;
    float *out = j.dlogits + r * j.lddlogits, largest, total = 1e-20f, dot = 0;
    float sum = sum_exp(x, n, lane, &largest), more = 2 * j.z * (largest + logf(sum));
    Chosen c = chosen_of(j, x, choice, dw, lane);
    if (j.sigmoid) {
        float s = 0;
        for (int i = lane; i < n; i += WARP)
            s += sigmoid_of(x[i]);
        total += warp_sum(s);
    }
    for (int i = lane; push && i < n; i += WARP)
        dot += push[i] * (j.sigmoid ? sigmoid_of(x[i]) / total : expf(x[i] - largest) / sum);
    for (int k = lane; j.pre && !j.sigmoid && k < j.topk; k += WARP)
        dot += j.scale * dw[k] * (expf(x[choice[k]] - largest) / sum);
    dot = warp_sum(dot);
    __syncwarp();              /* out may be x: from here on a lane reads and writes its own elements alone */
    for (int i = lane; i < n; i += WARP) {
        float p = expf(x[i] - largest) / sum, own = 0, ds = push ? push[i] : 0;
        for (int k = 0; k < j.topk; k++)
            own = choice[k] == i ? c.by * (dw[k] - c.less) : own;
        if (post) {
            /* the logit of an expert that was not chosen may be far above c.largest */
            ds = p * (ds - dot + more) + (own != 0 ? own * expf(x[i] - c.largest) : 0);
        } else if (!j.sigmoid) {
            ds = p * (ds + own - dot + more);
        } else {
            float s = sigmoid_of(x[i]);
            ds = ((push ? (ds - dot) / total : 0) + own) * s * (1 - s) + (j.z != 0 ? more * p : 0);
        }
        out[i] = ds;
    }
}

static __global__ void __launch_bounds__(THREADS) k_route_stats(const Route j)
{
    int64_t r = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    int lane = (int)threadIdx.x % WARP, n = j.experts;
    if (r >= j.rows)
        return;
    const float *x = j.logits + r * j.ldlogits;
    const float *push = j.push ? j.push + (j.row0 + r) / j.each * j.ldpush : NULL;
    float largest, sum = sum_exp(x, n, lane, &largest), z = largest + logf(sum);
    float total = 0, dot = 0, entropy = 0;
    for (int i = lane; j.sigmoid && i < n; i += WARP)
        total += sigmoid_of(x[i]);
    total = warp_sum(total) + 1e-20f;
    for (int i = lane; i < n; i += WARP) {
        float p = j.sigmoid ? sigmoid_of(x[i]) / total : expf(x[i] - largest) / sum;
        dot += push ? push[i] * p : 0;
        entropy -= !j.sigmoid ? p * (x[i] - z) : p > 0 ? p * logf(p) : 0;
    }
    dot = warp_sum(dot);
    entropy = warp_sum(entropy);
    if (lane)
        return;
    j.stats[r] = dot;
    j.stats[j.ldstats + r] = j.z * z * z;
    j.stats[2 * j.ldstats + r] = entropy;
}

/* Returns what both ops pass to their kernels. weight: route_bwd's dweight. */
static Route route_of(Mat weight, Mat logits, const Routing *r)
{
    int64_t n = logits.cols;
    BUG_ON(logits.type != F32 || n >= (int64_t)1 << 31 || r->topk < 1 || r->topk > n);
    BUG_ON(weight.type != F32 || weight.rows != logits.rows || weight.cols != r->topk);
    BUG_ON(r->groups && (r->groups < 0 || r->groups > ROUTING_GROUPS || n % r->groups || r->group_topk < 1
                         || r->group_topk > r->groups || r->topk % r->group_topk
                         || r->topk / r->group_topk > n / r->groups));
    Route j = {};
    j.logits = (const float *)logits.p, j.ldlogits = logits.ld, j.ldweight = weight.ld;
    j.rows = logits.rows, j.row0 = r->row0, j.each = r->each, j.experts = (int)n;
    j.topk = r->topk, j.sigmoid = r->sigmoid, j.pre = r->pre_softmax && !r->sigmoid;
    j.groups = r->groups, j.group_topk = r->group_topk, j.scale = (float)r->scale, j.z = (float)r->z;
    j.given = r->given;
    return j;
}

void cuda_route_fwd(Device *d, int32_t *choice, Mat weight, Mat scores, Mat logits, Mat bias,
                    const Routing *r)
{
    Route j = route_of(weight, logits, r);
    BUG_ON(scores.type != F32 || scores.rows != logits.rows || scores.cols != logits.cols);
    BUG_ON(bias.p && (bias.type != F32 || bias.cols != logits.cols));
    if (!logits.rows)
        return;
    j.choice = choice, j.weight = (float *)weight.p, j.bias = (const float *)bias.p;
    j.scores = (float *)scores.p, j.ldscores = scores.ld;
    LAUNCH(k_route_fwd, blocks_of(ceil_div(logits.rows, WARPS)), THREADS, 0, cuda_of(d)->compute, j);
}

static void set_push(Route *j, Mat logits, Mat push)
{
    BUG_ON(push.p && (push.type != F32 || push.cols != logits.cols || j->each < 1
                      || (j->row0 + logits.rows - 1) / j->each >= push.rows));
    j->push = (const float *)push.p, j->ldpush = push.ld;
}

void cuda_route_bwd(Device *d, Mat dlogits, Mat dweight, Mat logits, const int32_t *choice, Mat push,
                    const Routing *r)
{
    Route j = route_of(dweight, logits, r);
    BUG_ON(dlogits.type != F32 || dlogits.rows != logits.rows || dlogits.cols != logits.cols);
    if (!logits.rows)
        return;
    set_push(&j, logits, push);
    j.chosen = choice, j.dweight = (const float *)dweight.p;
    j.dlogits = (float *)dlogits.p, j.lddlogits = dlogits.ld;
    LAUNCH(k_route_bwd, blocks_of(ceil_div(logits.rows, WARPS)), THREADS, 0, cuda_of(d)->compute, j);
}

void cuda_route_stats(Device *d, Mat stats, Mat logits, Mat push, const Routing *r)
{
    BUG_ON(logits.type != F32 || logits.cols >= (int64_t)1 << 31);
    BUG_ON(stats.type != F32 || stats.rows != 3 || stats.cols != logits.rows);
    if (!logits.rows)
        return;
    Route j = {};
    j.logits = (const float *)logits.p, j.ldlogits = logits.ld, j.rows = logits.rows;
    j.row0 = r->row0, j.each = r->each, j.z = (float)r->z;
    j.experts = (int)logits.cols, j.sigmoid = r->sigmoid;
    j.stats = (float *)stats.p, j.ldstats = stats.ld;
    set_push(&j, logits, push);
    LAUNCH(k_route_stats, blocks_of(ceil_div(logits.rows, WARPS)), THREADS, 0, cuda_of(d)->compute, j);
}
