/* optimizer -- one update of each optimizer, of up to LISTED tensors a launch.
 *
 * A block updates BLOCK elements of one tensor, then further ones where the grid is smaller than their
 * number. Every array is read and written once, eight elements a thread in 16-byte pieces. A thread
 * issues all its loads before it computes. With the verdict's go 0 it writes nothing. An element does
 * not depend on others, so an update has the same bits however the weights are cut. */
#include "common.cuh"
#include "listed.cuh"

enum { THREADS = 256, EACH = 8, ROUND = THREADS * EACH, BLOCK = 4 * ROUND };

struct Array {
    int64_t first;             /* number of its first block */
    int64_t n;
    float *w, *m, *v, *dir;
    const void *g;
    void *out;
    int16_t *rest;
    const double *trust;
    float wd;
    int vector;                /* bool: all arrays start at multiples of 16 bytes */
};
struct Step {
    const Verdict *verdict;
    double lr;
    float beta1, rest1, beta2, rest2, eps, momentum;
    float unbias1[2], unbias2[2];      /* [1]: where the verdict is behind */
    int nesterov, count;
    int64_t blocks;
    Array array[LISTED];
};

/* Arrays of an update; a rule's masks READS and WRITES are sums of these. */
enum { W = 1, M = 2, V = 4, DIR = 8, G = 16 };
struct Element { float w, m, v, dir, g; };

/* What a rule needs beside its arrays. */
struct Rates { float multiplier, rate, wd; int64_t go; float unbias1, unbias2; };

__device__ __forceinline__ float adam_direction(const Step &u, Element &e, const Rates &k)
{
    float g = e.g * k.multiplier;
    e.m = e.m * u.beta1 + g * u.rest1;
    e.v = e.v * u.beta2 + g * g * u.rest2;
    return e.m * k.unbias1 / (sqrtf(e.v * k.unbias2) + u.eps);
}

struct Adam {
    enum { READS = W | M | V | G, WRITES = W | M | V, TRUST = 0 };
    static __device__ __forceinline__ void run(const Step &u, Element &e, const Rates &k)
    {
        float dir = adam_direction(u, e, k);
        e.w -= k.rate * (dir + k.wd * e.w);
    }
};
struct LambDirection {
    enum { READS = W | M | V | G, WRITES = M | V | DIR, TRUST = 0 };
    static __device__ __forceinline__ void run(const Step &u, Element &e, const Rates &k)
    {
        e.dir = adam_direction(u, e, k) + k.wd * e.w;
    }
};
struct LambApply {
    enum { READS = W | DIR, WRITES = W, TRUST = 1 };
    static __device__ __forceinline__ void run(const Step &, Element &e, const Rates &k)
    {
        e.w -= k.rate * e.dir;
    }
};
struct Sgd {
    enum { READS = W | G, WRITES = W, TRUST = 0 };
    static __device__ __forceinline__ void run(const Step &, Element &e, const Rates &k)
    {
        e.w -= k.rate * (e.g * k.multiplier + k.wd * e.w);
    }
};
struct SgdMomentum {
    enum { READS = W | M | G, WRITES = W | M, TRUST = 0 };
    static __device__ __forceinline__ void run(const Step &u, Element &e, const Rates &k)
    {
        float g = e.g * k.multiplier + k.wd * e.w;
        e.m = u.momentum * e.m + g;
        e.w -= k.rate * (u.nesterov ? g + u.momentum * e.m : e.m);
    }
};
struct Lars {
    enum { READS = W | M | G, WRITES = W | M, TRUST = 1 };
    static __device__ __forceinline__ void run(const Step &u, Element &e, const Rates &k)
    {
        e.m = u.momentum * e.m + k.rate * (e.g * k.multiplier + k.wd * e.w);
        e.w -= e.m;
    }
};

/* Two neighbouring masters: their weights and their remainders are a word each, the first in the low half. */
__device__ __forceinline__ void join(float *w, uint32_t weights, uint32_t rests)
{
    w[0] = master_join((uint16_t)weights, (int16_t)(uint16_t)rests);
    w[1] = master_join((uint16_t)(weights >> 16), (int16_t)(uint16_t)(rests >> 16));
}
__device__ __forceinline__ void split(const float *w, uint32_t *weights, uint32_t *rests)
{
    *weights = master_weight(w[0]) | (uint32_t)master_weight(w[1]) << 16;
    *rests = (uint16_t)master_rest(w[0]) | (uint32_t)(uint16_t)master_rest(w[1]) << 16;
}

/* Where masters are, what is stored beside them, and the type Grad of gradients. Whole: in Array.w, with a
 * copy of type Out in Array.out. Halves: the weights in Array.out, the remainders in Array.rest. */
template <class Out> struct Whole {
    typedef float Grad;
    template <int N> static __device__ __forceinline__ void get(float *w, const Array &a, int64_t i)
    {
        get_floats<N>(w, a.w + i);
    }
    template <int N> static __device__ __forceinline__ void put(const Array &a, int64_t i, const float *w)
    {
        put_floats<N>(a.w + i, w);
        if (a.out)
            put_floats<N>((Out *)a.out + i, w);
    }
};
template <class G> struct Halves {
    typedef G Grad;
    template <int N> static __device__ __forceinline__ void get(float *w, const Array &a, int64_t i)
    {
        const uint16_t *out = (const uint16_t *)a.out + i;
        if (N == 1) {
            w[0] = master_join(*out, a.rest[i]);
            return;
        }
        uint4 weight = *reinterpret_cast<const uint4 *>(out), rest = *reinterpret_cast<uint4 *>(a.rest + i);
        join(w, weight.x, rest.x), join(w + 2 % N, weight.y, rest.y);
        join(w + 4 % N, weight.z, rest.z), join(w + 6 % N, weight.w, rest.w);
    }
    template <int N> static __device__ __forceinline__ void put(const Array &a, int64_t i, const float *w)
    {
        uint16_t *out = (uint16_t *)a.out + i;
        if (N == 1) {
            *out = master_weight(w[0]);
            a.rest[i] = master_rest(w[0]);
            return;
        }
        uint4 weight, rest;
        split(w, &weight.x, &rest.x), split(w + 2 % N, &weight.y, &rest.y);
        split(w + 4 % N, &weight.z, &rest.z), split(w + 6 % N, &weight.w, &rest.w);
        *reinterpret_cast<uint4 *>(out) = weight;
        *reinterpret_cast<uint4 *>(a.rest + i) = rest;
    }
};

/* Updates N elements: EACH, or 1 at an unaligned address and at the end of an array. */
template <class Rule, class Masters, int N>
__device__ __forceinline__ void update(const Step &u, const Array &a, const Rates &rates, int64_t i)
{
    float w[N], m[N], v[N], dir[N], g[N];
    if (Rule::READS & W)
        Masters::template get<N>(w, a, i);
    if (Rule::READS & G)
        get_floats<N>(g, (const typename Masters::Grad *)a.g + i);
    if (Rule::READS & M)
        get_floats<N>(m, a.m + i);
    if (Rule::READS & V)
        get_floats<N>(v, a.v + i);
    if (Rule::READS & DIR)
        get_floats<N>(dir, (const float *)a.dir + i);
    if (!rates.go)
        return;
#pragma unroll
    for (int k = 0; k < N; k++) {
        Element e = {Rule::READS & W ? w[k] : 0, Rule::READS & M ? m[k] : 0, Rule::READS & V ? v[k] : 0,
                     Rule::READS & DIR ? dir[k] : 0, Rule::READS & G ? g[k] : 0};
        Rule::run(u, e, rates);
        w[k] = e.w, m[k] = e.m, v[k] = e.v, dir[k] = e.dir;
    }
    if (Rule::WRITES & W)
        Masters::template put<N>(a, i, w);
    if (Rule::WRITES & M)
        put_floats<N>(a.m + i, m);
    if (Rule::WRITES & V)
        put_floats<N>(a.v + i, v);
    if (Rule::WRITES & DIR)
        put_floats<N>(a.dir + i, dir);
}

template <class Rule, class Masters>
__global__ void __launch_bounds__(THREADS) k_update(const __grid_constant__ Step u)
{
    for (int64_t b = blockIdx.x; b < u.blocks; b += gridDim.x) {
        const Array a = u.array[listed(u.array, u.count, b)];
        int64_t start = (b - a.first) * BLOCK, end = start + BLOCK < a.n ? start + BLOCK : a.n;
        Rates rates = {(float)u.verdict->multiplier, (float)(Rule::TRUST && a.trust ? u.lr * *a.trust : u.lr),
                       a.wd, u.verdict->go, u.unbias1[u.verdict->behind], u.unbias2[u.verdict->behind]};
        for (int64_t i = start + (int64_t)threadIdx.x * EACH; i < end; i += ROUND) {
            if (a.vector && i + EACH <= a.n)
                update<Rule, Masters, EACH>(u, a, rates, i);
            else
                for (int k = 0; k < EACH && i + k < a.n; k++)
                    update<Rule, Masters, 1>(u, a, rates, i + k);
        }
    }
}

static Step step_of(const Update *u)
{
    Step s;
    memset(&s, 0, sizeof s);
    s.verdict = u->verdict;
    s.lr = u->lr;
    s.beta1 = (float)u->beta1, s.rest1 = (float)(1 - u->beta1);
    s.beta2 = (float)u->beta2, s.rest2 = (float)(1 - u->beta2);
    s.eps = (float)u->eps;
    s.unbias1[0] = (float)(1 / u->bias1), s.unbias2[0] = (float)(1 / u->bias2);
    s.unbias1[1] = (float)(1 / u->before1), s.unbias2[1] = (float)(1 / u->before2);
    s.momentum = (float)u->momentum, s.nesterov = u->nesterov;
    return s;
}

static Array array_of(const Updated *x, int64_t first)
{
    Array a = {first,
               x->n,
               (float *)x->w,
               (float *)x->m,
               (float *)x->v,
               (float *)x->dir,
               x->g,
               x->out,
               x->rest,
               x->trust,
               (float)x->wd,
               0};
    a.vector = aligned(a.w) && aligned(a.m) && aligned(a.v) && aligned(a.dir) && aligned(a.g)
               && aligned(a.out) && aligned(a.rest);
    return a;
}

/* One launch; Masters: where the masters of all its arrays are. */
template <class Rule, class Masters> static void go(Device *d, const Step &s)
{
    LAUNCH((k_update<Rule, Masters>), blocks_of(cuda_few(cuda_of(d), s.blocks)), THREADS, 0,
           cuda_of(d)->compute, s);
}

template <class Rule> static void launch(Device *d, const Update *u)
{
    Step s = step_of(u);
    int halves = u->count && u->list[0].rest;
    BUG_ON((halves && u->out_type != BF16) || (u->bf16_g && (!halves || (Rule::READS | Rule::WRITES) & DIR)));
    for (int64_t i = 0; i < u->count; i += s.count) {
        for (s.blocks = s.count = 0; s.count < LISTED && i + s.count < u->count; s.count++) {
            const Updated *x = &u->list[i + s.count];
            BUG_ON(x->n < 1 || !x->rest != !halves || (halves && x->w));
            s.array[s.count] = array_of(x, s.blocks);
            s.blocks += ceil_div(x->n, BLOCK);
        }
        if (halves && u->bf16_g)
            go<Rule, Halves<Bf16>>(d, s);
        else if (halves)
            go<Rule, Halves<float>>(d, s);
        else
            with_type(u->out_type, [&](auto t) { go<Rule, Whole<decltype(t)>>(d, s); });
    }
}

void cuda_adam(Device *d, const Update *u) { launch<Adam>(d, u); }
void cuda_lamb_direction(Device *d, const Update *u) { launch<LambDirection>(d, u); }
void cuda_lamb_apply(Device *d, const Update *u) { launch<LambApply>(d, u); }
void cuda_lars(Device *d, const Update *u) { launch<Lars>(d, u); }

void cuda_sgd(Device *d, const Update *u)
{
    for (int64_t i = 0; i < u->count; i++)
        BUG_ON((!u->list[i].m && u->momentum != 0) || !u->list[i].m != !u->list[0].m);
    if (u->count && u->list[0].m)
        launch<SgdMomentum>(d, u);
    else
        launch<Sgd>(d, u);
}
