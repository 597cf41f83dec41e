/* optimizer -- one update of each optimizer: every array is read and written once, eight elements a thread in 16-byte
 * pieces. All reads of a thread are on their way before its first result; where the verdict says not to go, none of its
 * writes is done. Elements do not see each other, so an update has the same bits however the weights are cut. */
#include "common.cuh"

enum { THREADS = 256, EACH = 8 };

struct Step {
    int64_t n;
    float *w, *m, *v, *dir;
    const float *g;
    void *out;
    const Verdict *verdict;
    const double *trust;
    double lr;
    float beta1, rest1, beta2, rest2, eps, wd, unbias1, unbias2, momentum;
    int nesterov;
};

/* One element; which arrays a rule reads and writes is in its masks. */
enum { W = 1, M = 2, V = 4, DIR = 8, G = 16 };
struct Element { float w, m, v, dir, g; };

__device__ __forceinline__ float adam_direction(const Step &u, Element &e, float multiplier)
{
    float g = e.g * multiplier;
    e.m = e.m * u.beta1 + g * u.rest1;
    e.v = e.v * u.beta2 + g * g * u.rest2;
    return e.m * u.unbias1 / (sqrtf(e.v * u.unbias2) + u.eps);
}

struct Adam {
    enum { READS = W | M | V | G, WRITES = W | M | V, TRUST = 0 };
    static __device__ __forceinline__ void run(const Step &u, Element &e, float multiplier, float rate)
    {
        float dir = adam_direction(u, e, multiplier);
        e.w -= rate * (dir + u.wd * e.w);
    }
};
struct LambDirection {
    enum { READS = W | M | V | G, WRITES = M | V | DIR, TRUST = 0 };
    static __device__ __forceinline__ void run(const Step &u, Element &e, float multiplier, float)
    {
        e.dir = adam_direction(u, e, multiplier) + u.wd * e.w;
    }
};
struct LambApply {
    enum { READS = W | DIR, WRITES = W, TRUST = 1 };
    static __device__ __forceinline__ void run(const Step &, Element &e, float, float rate) { e.w -= rate * e.dir; }
};
struct Sgd {
    enum { READS = W | G, WRITES = W, TRUST = 0 };
    static __device__ __forceinline__ void run(const Step &u, Element &e, float multiplier, float rate)
    {
        e.w -= rate * (e.g * multiplier + u.wd * e.w);
    }
};
struct SgdMomentum {
    enum { READS = W | M | G, WRITES = W | M, TRUST = 0 };
    static __device__ __forceinline__ void run(const Step &u, Element &e, float multiplier, float rate)
    {
        float g = e.g * multiplier + u.wd * e.w;
        e.m = u.momentum * e.m + g;
        e.w -= rate * (u.nesterov ? g + u.momentum * e.m : e.m);
    }
};
struct Lars {
    enum { READS = W | M | G, WRITES = W | M, TRUST = 1 };
    static __device__ __forceinline__ void run(const Step &u, Element &e, float multiplier, float rate)
    {
        e.m = u.momentum * e.m + rate * (e.g * multiplier + u.wd * e.w);
        e.w -= e.m;
    }
};

/* N elements: EACH, or 1 at an unaligned address and at the end. */
template <class Rule, class Out, int N> __device__ __forceinline__ void update(const Step &u, int64_t i)
{
    float w[N], m[N], v[N], dir[N], g[N];
    if (Rule::READS & W)
        get_floats<N>(w, u.w + i);
    if (Rule::READS & G)
        get_floats<N>(g, u.g + i);
    if (Rule::READS & M)
        get_floats<N>(m, u.m + i);
    if (Rule::READS & V)
        get_floats<N>(v, u.v + i);
    if (Rule::READS & DIR)
        get_floats<N>(dir, (const float *)u.dir + i);
    float multiplier = (float)u.verdict->multiplier, rate = (float)(Rule::TRUST && u.trust ? u.lr * *u.trust : u.lr);
    if (!u.verdict->go)
        return;
#pragma unroll
    for (int k = 0; k < N; k++) {
        Element e = {Rule::READS & W ? w[k] : 0, Rule::READS & M ? m[k] : 0, Rule::READS & V ? v[k] : 0,
                     Rule::READS & DIR ? dir[k] : 0, Rule::READS & G ? g[k] : 0};
        Rule::run(u, e, multiplier, rate);
        w[k] = e.w, m[k] = e.m, v[k] = e.v, dir[k] = e.dir;
    }
    if (Rule::WRITES & W)
        put_floats<N>(u.w + i, w);
    if (Rule::WRITES & M)
        put_floats<N>(u.m + i, m);
    if (Rule::WRITES & V)
        put_floats<N>(u.v + i, v);
    if (Rule::WRITES & DIR)
        put_floats<N>(u.dir + i, dir);
    if (Rule::WRITES & W && u.out)
        put_floats<N>((Out *)u.out + i, w);
}

template <class Rule, class Out> __global__ void __launch_bounds__(THREADS) k_update(const Step u, int vector)
{
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * EACH;
    if (vector && i + EACH <= u.n)
        update<Rule, Out, EACH>(u, i);
    else
        for (int k = 0; k < EACH && i + k < u.n; k++)
            update<Rule, Out, 1>(u, i + k);
}

static Step step_of(const Update *u, const void *dir)
{
    Step s = {u->n, (float *)u->w, (float *)u->m, (float *)u->v, (float *)dir, (const float *)u->g, u->out, u->verdict,
              u->trust, u->lr, (float)u->beta1, (float)(1 - u->beta1), (float)u->beta2, (float)(1 - u->beta2),
              (float)u->eps, (float)u->wd, (float)(1 / u->bias1), (float)(1 / u->bias2), (float)u->momentum,
              u->nesterov};
    return s;
}

template <class Rule> static void launch(Device *d, const Update *u, const void *dir)
{
    Step s = step_of(u, dir);
    int vector = aligned(s.w) && aligned(s.m) && aligned(s.v) && aligned(s.dir) && aligned(s.g) && aligned(s.out);
    if (s.n < 1)
        return;
    with_type(s.out ? u->out_type : F32, [&](auto t) {
        LAUNCH((k_update<Rule, decltype(t)>), blocks_of(ceil_div(s.n, THREADS * EACH)), THREADS, 0, cuda_of(d)->compute,
               s, vector);
    });
}

void cuda_adam(Device *d, const Update *u) { launch<Adam>(d, u, NULL); }
void cuda_lamb_direction(Device *d, const Update *u, void *dir) { launch<LambDirection>(d, u, dir); }
void cuda_lamb_apply(Device *d, const Update *u, const void *dir) { launch<LambApply>(d, u, dir); }
void cuda_lars(Device *d, const Update *u) { launch<Lars>(d, u, NULL); }

void cuda_sgd(Device *d, const Update *u)
{
    BUG_ON(!u->m && u->momentum != 0);
    if (u->m)
        launch<SgdMomentum>(d, u, NULL);
    else
        launch<Sgd>(d, u, NULL);
}
