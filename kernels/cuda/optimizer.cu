/* optimizer -- one update of each optimizer, of up to LISTED tensors a launch.
 *
 * A block updates BLOCK elements of one tensor, then further ones where the grid is smaller than their
 * number. Every array is read and written once, eight elements a thread in 16-byte pieces. A thread
 * issues all its loads before it computes. With the verdict's go 0 it writes nothing. An element does
 * not depend on others, so an update has the same bits however the weights are cut. Moments of fewer bits
 * (moments.h) have a kernel of their own, in which four threads have a block of moments. */
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
};
template <class A, int MOST> struct Listing : Step { A array[MOST]; };
typedef Listing<Array, LISTED> List;

/* The same with moments of fewer bits: m, v are of type `type`, F32 without one. */
struct NarrowArray : Array {
    uint8_t *scale[2];
    BlockNumbers blocks;
};
enum { NARROW_LISTED = 192 };
struct NarrowList : Listing<NarrowArray, NARROW_LISTED> {
    MomentType type[2];
    MomentFormat format[2];
    int64_t turn;
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

template <class Rule> __device__ __forceinline__ Rates rates_of(const Step &u, const Array &a)
{
    return {(float)u.verdict->multiplier, (float)(Rule::TRUST && a.trust ? u.lr * *a.trust : u.lr), a.wd,
            u.verdict->go, u.unbias1[u.verdict->behind], u.unbias2[u.verdict->behind]};
}

template <class Rule, class Masters>
__global__ void __launch_bounds__(THREADS) k_update(const __grid_constant__ List u)
{
    for (int64_t b = blockIdx.x; b < u.blocks; b += gridDim.x) {
        const Array a = u.array[listed(u.array, u.count, b)];
        int64_t start = (b - a.first) * BLOCK, end = start + BLOCK < a.n ? start + BLOCK : a.n;
        Rates rates = rates_of<Rule>(u, a);
        for (int64_t i = start + (int64_t)threadIdx.x * EACH; i < end; i += ROUND) {
            if (a.vector && i + EACH <= a.n)
                update<Rule, Masters, EACH>(u, a, rates, i);
            else
                for (int k = 0; k < EACH && i + k < a.n; k++)
                    update<Rule, Masters, 1>(u, a, rates, i + k);
        }
    }
}

/* ---- moments of fewer bits ---- */

/* Load or store `count` of EACH elements, all in pieces if `whole`; the others are 0. */
template <class T> __device__ __forceinline__ void get_some(float *f, const T *p, int count, int whole)
{
    if (whole) {
        get_floats<EACH>(f, p);
        return;
    }
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        f[k] = 0;
        if (k < count)
            get_floats<1>(f + k, p + k);
    }
}
template <class T> __device__ __forceinline__ void put_some(T *p, const float *f, int count, int whole)
{
    if (whole) {
        put_floats<EACH>(p, f);
        return;
    }
#pragma unroll
    for (int k = 0; k < EACH; k++)
        if (k < count)
            put_floats<1>(p + k, f + k);
}

/* Load or store the codes of numbers of 8 or 16 bits. */
__device__ __forceinline__ void get_codes(uint32_t *code, const void *p, int64_t i, int bytes, int count,
                                          int whole)
{
    if (whole && bytes == 1) {
        uint2 x = *reinterpret_cast<const uint2 *>((const uint8_t *)p + i);
#pragma unroll
        for (int k = 0; k < EACH; k++)
            code[k] = (k < 4 ? x.x : x.y) >> (k % 4 * 8) & 0xff;
    } else if (whole) {
        uint4 x = *reinterpret_cast<const uint4 *>((const uint16_t *)p + i);
#pragma unroll
        for (int k = 0; k < EACH; k++)
            code[k] = (k < 2 ? x.x : k < 4 ? x.y : k < 6 ? x.z : x.w) >> (k % 2 * 16) & 0xffff;
    } else {
#pragma unroll
        for (int k = 0; k < EACH; k++)
            code[k] = k >= count   ? 0u
                      : bytes == 1 ? ((const uint8_t *)p)[i + k]
                                   : ((const uint16_t *)p)[i + k];
    }
}
__device__ __forceinline__ void put_codes(void *p, int64_t i, const uint32_t *code, int bytes, int count,
                                          int whole)
{
    if (whole && bytes == 1) {
        uint2 x = {code[0] | code[1] << 8 | code[2] << 16 | code[3] << 24,
                   code[4] | code[5] << 8 | code[6] << 16 | code[7] << 24};
        *reinterpret_cast<uint2 *>((uint8_t *)p + i) = x;
    } else if (whole) {
        uint4 x = {code[0] | code[1] << 16, code[2] | code[3] << 16, code[4] | code[5] << 16,
                   code[6] | code[7] << 16};
        *reinterpret_cast<uint4 *>((uint16_t *)p + i) = x;
    } else {
#pragma unroll
        for (int k = 0; k < EACH; k++)
            if (k < count && bytes == 1)
                ((uint8_t *)p)[i + k] = (uint8_t)code[k];
            else if (k < count)
                ((uint16_t *)p)[i + k] = (uint16_t)code[k];
    }
}

/* Elements i .. i + EACH of moment `which`, at p. */
__device__ __forceinline__ void get_moments(float *x, const NarrowList &u, const NarrowArray &a, int which,
                                            const float *p, int64_t i, int count, int whole)
{
    uint32_t code[EACH];
    if (u.type[which] == MOMENT_FP32) {
        get_some(x, p + i, count, whole);
        return;
    }
    const MomentFormat f = u.format[which];
    float factor = f.scaled && count > 0 ? moment_factor(a.scale[which][i / MOMENT_BLOCK]) : 1;
    get_codes(code, p, i, moment_size(u.type[which]), count, whole);
#pragma unroll
    for (int k = 0; k < EACH; k++)
        x[k] = moment_decode(f, code[k]) * factor;
}

/* word: [EACH] random bits of the elements. Whole warps call this; four threads have a block. */
__device__ __forceinline__ void put_moments(const float *x, const NarrowList &u, const NarrowArray &a,
                                            int which, float *p, int64_t i, int count, int whole,
                                            const uint32_t *word)
{
    uint32_t code[EACH], amax = 0;
    if (u.type[which] == MOMENT_FP32) {
        put_some(p + i, x, count, whole);
        return;
    }
    const MomentFormat f = u.format[which];
    float inverse = 1;
    if (f.scaled) {
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            uint32_t bits = moment_bits(x[k]) & 0x7fffffff;
            amax = bits < 0x7f800000 && bits > amax ? bits : amax;
        }
        amax = max(amax, __shfl_xor_sync(EVERY_LANE, amax, 1));
        amax = max(amax, __shfl_xor_sync(EVERY_LANE, amax, 2));
        uint8_t scale = moment_scale(f, amax);
        inverse = moment_inverse(scale);
        __syncwarp();                   /* the four have read the scale */
        if (i % MOMENT_BLOCK == 0 && count > 0)
            a.scale[which][i / MOMENT_BLOCK] = scale;
    }
#pragma unroll
    for (int k = 0; k < EACH; k++)
        code[k] = moment_encode(f, x[k], inverse, moment_chance(f, word[k] >> 16 * which & 0xffff));
    put_codes(p, i, code, moment_size(u.type[which]), count, whole);
}

/* The random words of elements i .. i + EACH. */
__device__ __forceinline__ void draw(uint32_t *word, const NarrowArray &a, int64_t i, int64_t turn)
{
    uint64_t counter = (uint64_t)block_number(&a.blocks, i / MOMENT_BLOCK) * (MOMENT_BLOCK / 4)
                       + (uint64_t)(i % MOMENT_BLOCK / 4);
#pragma unroll
    for (int k = 0; k < EACH; k += 4, counter++) {
        uint32_t c[4] = {(uint32_t)counter, (uint32_t)(counter >> 32), (uint32_t)turn,
                         (uint32_t)(turn >> 32)};
        device_philox(c, a.blocks.key);
        word[k] = c[0], word[k + 1] = c[1], word[k + 2] = c[2], word[k + 3] = c[3];
    }
}

/* Updates EACH elements, or as many as there are. */
template <class Rule, class Masters>
__device__ __forceinline__ void update_narrow(const NarrowList &u, const NarrowArray &a, const Rates &rates,
                                              int64_t i)
{
    float w[EACH], m[EACH], v[EACH], g[EACH];
    uint32_t word[EACH];
    int64_t left = a.n - i;
    int count = left < 0 ? 0 : left < EACH ? (int)left : (int)EACH, whole = a.vector && count == EACH;
    for (int k = 0; k < EACH && !whole; k++) {
        w[k] = 0;
        if (k < count)
            Masters::template get<1>(w + k, a, i + k);
    }
    if (whole)
        Masters::template get<EACH>(w, a, i);
    get_some(g, (const typename Masters::Grad *)a.g + i, count, whole);
    get_moments(m, u, a, 0, a.m, i, count, whole);
    if (Rule::READS & V)
        get_moments(v, u, a, 1, a.v, i, count, whole);
    if (!rates.go)
        return;
    float dir[EACH];
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        Element e = {w[k], m[k], Rule::READS & V ? v[k] : 0, 0, g[k]};
        Rule::run(u, e, rates);
        w[k] = e.w, m[k] = e.m, v[k] = e.v, dir[k] = e.dir;
    }
    if ((Rule::WRITES & W) && whole)
        Masters::template put<EACH>(a, i, w);
    for (int k = 0; k < count && (Rule::WRITES & W) && !whole; k++)
        Masters::template put<1>(a, i + k, w + k);
    if (Rule::WRITES & DIR)
        put_some(a.dir + i, dir, count, whole);
    draw(word, a, i, u.turn - u.verdict->behind);
    put_moments(m, u, a, 0, a.m, i, count, whole, word);
    if (Rule::WRITES & V)
        put_moments(v, u, a, 1, a.v, i, count, whole, word);
}

template <class Rule, class Masters>
__global__ void __launch_bounds__(THREADS) k_update_narrow(const __grid_constant__ NarrowList u)
{
    for (int64_t b = blockIdx.x; b < u.blocks; b += gridDim.x) {
        const NarrowArray &a = u.array[listed(u.array, u.count, b)];
        int64_t start = (b - a.first) * BLOCK, end = start + BLOCK < a.n ? start + BLOCK : a.n;
        Rates rates = rates_of<Rule>(u, a);
        /* a warp stays together */
        for (int64_t i = start + (int64_t)threadIdx.x * EACH; i - threadIdx.x % WARP * EACH < end; i += ROUND)
            update_narrow<Rule, Masters>(u, a, rates, i);
    }
}

/* ---- launches ---- */

static void set_step(Step *step, const Update *u)
{
    Step &s = *step;
    memset(&s, 0, sizeof s);
    s.verdict = u->verdict;
    s.lr = u->lr;
    s.beta1 = (float)u->beta1, s.rest1 = (float)(1 - u->beta1);
    s.beta2 = (float)u->beta2, s.rest2 = (float)(1 - u->beta2);
    s.eps = (float)u->eps;
    s.unbias1[0] = (float)(1 / u->bias1), s.unbias2[0] = (float)(1 / u->bias2);
    s.unbias1[1] = (float)(1 / u->before1), s.unbias2[1] = (float)(1 / u->before2);
    s.momentum = (float)u->momentum, s.nesterov = u->nesterov;
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

static NarrowArray narrow_of(const Updated *x, int64_t first)
{
    NarrowArray a;
    static_cast<Array &>(a) = array_of(x, first);
    a.scale[0] = x->m_scale, a.scale[1] = x->v_scale;
    a.blocks = x->blocks;
    return a;
}

static Array entry_of(const Array *, const Updated *x, int64_t first) { return array_of(x, first); }
static NarrowArray entry_of(const NarrowArray *, const Updated *x, int64_t first)
{
    return narrow_of(x, first);
}

/* One launch; Masters: where the masters of all its arrays are. */
template <class Rule, class Masters> static void go(Device *d, const List &s)
{
    LAUNCH((k_update<Rule, Masters>), blocks_of(cuda_few(cuda_of(d), s.blocks)), THREADS, 0,
           cuda_of(d)->compute, s);
}
template <class Rule, class Masters> static void go(Device *d, const NarrowList &s)
{
    LAUNCH((k_update_narrow<Rule, Masters>), blocks_of(cuda_few(cuda_of(d), s.blocks)), THREADS, 0,
           cuda_of(d)->compute, s);
}

/* Launches as many entries at a time as a list L has room for. */
template <class Rule, class L> static void launch_list(Device *d, const Update *u, L &s)
{
    const int64_t most = (int64_t)(sizeof s.array / sizeof *s.array);
    int halves = u->count && u->list[0].rest;
    set_step(&s, u);
    for (int64_t i = 0; i < u->count; i += s.count) {
        for (s.blocks = s.count = 0; s.count < most && i + s.count < u->count; s.count++) {
            const Updated *x = &u->list[i + s.count];
            BUG_ON(x->n < 1 || !x->rest != !halves || (halves && x->w));
            s.array[s.count] = entry_of(s.array, x, s.blocks);
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

template <class Rule> static void launch(Device *d, const Update *u)
{
    int halves = u->count && u->list[0].rest;
    BUG_ON((halves && u->out_type != BF16) || (u->bf16_g && (!halves || (Rule::READS | Rule::WRITES) & DIR)));
    List s;
    launch_list<Rule>(d, u, s);
}

/* The same of a rule that updates moments. */
template <class Rule> static void launch_moments(Device *d, const Update *u)
{
    NarrowList s;
    if (!u->m_type && !u->v_type) {
        launch<Rule>(d, u);
        return;
    }
    int halves = u->count && u->list[0].rest;
    BUG_ON((halves && u->out_type != BF16) || (u->bf16_g && (!halves || Rule::WRITES & DIR)));
    for (const Updated *x = u->list; x < u->list + u->count; x++)
        BUG_ON(x->blocks.run < 1 || (moment_scaled(u->m_type) && !x->m_scale)
               || ((Rule::READS & V) && moment_scaled(u->v_type) && !x->v_scale));
    s.type[0] = u->m_type, s.type[1] = u->v_type;
    s.format[0] = moment_format(u->m_type, 0), s.format[1] = moment_format(u->v_type, 1);
    s.turn = u->turn;
    launch_list<Rule>(d, u, s);
}

void cuda_adam(Device *d, const Update *u) { launch_moments<Adam>(d, u); }
void cuda_lamb_direction(Device *d, const Update *u) { launch_moments<LambDirection>(d, u); }
void cuda_lamb_apply(Device *d, const Update *u) { launch<LambApply>(d, u); }
void cuda_lars(Device *d, const Update *u) { launch_moments<Lars>(d, u); }

void cuda_sgd(Device *d, const Update *u)
{
    for (int64_t i = 0; i < u->count; i++)
        BUG_ON((!u->list[i].m && u->momentum != 0) || !u->list[i].m != !u->list[0].m);
    if (u->count && u->list[0].m)
        launch_moments<SgdMomentum>(d, u);
    else
        launch<Sgd>(d, u);
}
