/* sums -- sums of all elements, exact sums of squares (exact.h), and the scalars at the end of a step. */
#include "common.cuh"
#include "listed.cuh"

extern __shared__ __align__(16) char shared[];

/* ---- sum ---- */

enum { THREADS = 256, WARPS = THREADS / WARP, SUM_PARTS = 256 };
static const int64_t SUM_EACH = 4096;      /* least elements of a block */

/* part[block] = the sum of the block's `each` elements; element i is (i / cols, i % cols) of x. */
template <class T>
__global__ void __launch_bounds__(THREADS)
k_sum(double *part, const T *x, int64_t ld, int64_t cols, int64_t n, int64_t each)
{
    int64_t first = blockIdx.x * each, end = first + each < n ? first + each : n;
    double sum = 0;
    for (int64_t i = first + threadIdx.x; i < end; i += THREADS)
        sum += (double)to_float(x[i / cols * ld + i % cols]);
    sum = block_sum(sum, (double *)shared);
    if (threadIdx.x == 0)
        part[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(SUM_PARTS) k_sum_total(double *out, const double *part, int parts)
{
    double sum = block_sum((int)threadIdx.x < parts ? part[threadIdx.x] : 0.0, (double *)shared);
    if (threadIdx.x == 0)
        *out += sum;
}

void cuda_sum(Device *d, double *out, Mat x)
{
    Cuda *c = cuda_of(d);
    int64_t n = x.rows * x.cols;
    if (!n)
        return;
    int64_t parts = ceil_div(n, SUM_EACH), each = ceil_div(n, parts < SUM_PARTS ? parts : (int64_t)SUM_PARTS);
    parts = ceil_div(n, each);
    double *part = (double *)cuda_workspace(c, sizeof(double) * (size_t)parts);
    with_type(x.type, [&](auto t) {
        LAUNCH((k_sum<decltype(t)>), blocks_of(parts), THREADS, 32 * sizeof(double), c->compute, part,
               (const decltype(t) *)x.p, x.ld, x.cols, n, each);
    });
    LAUNCH(k_sum_total, 1, SUM_PARTS, 32 * sizeof(double), c->compute, out, part, (int)parts);
}

/* ---- squares ---- */

/* What a double adds to an exact sum (exact.c: add_one): digit[k] to digit at + k, `bad` to the count of
 * terms that are not finite. at -1: no digits. */
struct Term { int at; uint32_t digit[3]; int bad; };
__device__ __forceinline__ Term term_of(double x)
{
    uint64_t bits = (uint64_t)__double_as_longlong(x), fraction = bits & (((uint64_t)1 << 52) - 1);
    int exponent = (int)(bits >> 52);          /* the sign bit is 0, except for some NaN */
    Term t = {-1, {0, 0, 0}, exponent >= 0x7ff};
    if (t.bad)
        return t;
    if (exponent)
        fraction |= (uint64_t)1 << 52;
    int shift = exponent ? exponent - 1 : 0, by = shift % 32;
    uint64_t low = fraction << by;
    t.at = shift / 32;
    t.digit[0] = (uint32_t)low;
    t.digit[1] = (uint32_t)(low >> 32);
    t.digit[2] = by ? (uint32_t)(fraction >> (64 - by)) : 0;
    return t;
}

enum { QUAD = 4, ACROSS = WARP / QUAD, OWN = (EXACT_WORDS + WARP - 1) / WARP };

/* The elements of an array from one of them on. quad loads four neighbours from element c on, of each array
 * in one access of 16 or 8 bytes. */
template <class T> struct Numbers {
    const T *x;
    __device__ Numbers(const void *at, int64_t start) : x((const T *)at + start) {}
    __device__ __forceinline__ float one(int c) const { return to_float(x[c]); }
    __device__ __forceinline__ void quad(float (&f)[QUAD], int c) const
    {
        uint2 raw = *reinterpret_cast<const uint2 *>(x + c);
        unpack(f, raw.x, T());
        unpack(f + 2, raw.y, T());
    }
};
template <> __device__ __forceinline__ void Numbers<float>::quad(float (&f)[QUAD], int c) const
{
    Piece<float> v;
    v.load(x + c);
    v.get(f);
}
/* Masters, by their weights and remainders. */
struct Masters {
    const uint16_t *weight;
    const int16_t *rest;
    __device__ Masters(const void *at, const int16_t *rests, int64_t start)
        : weight((const uint16_t *)at + start), rest(rests + start)
    {
    }
    __device__ __forceinline__ float one(int c) const { return master_join(weight[c], rest[c]); }
    __device__ __forceinline__ void quad(float (&f)[QUAD], int c) const
    {
        uint2 w = *reinterpret_cast<const uint2 *>(weight + c);
        uint2 r = *reinterpret_cast<const uint2 *>(rest + c);
        f[0] = master_join((uint16_t)w.x, (int16_t)(uint16_t)r.x);
        f[1] = master_join((uint16_t)(w.x >> 16), (int16_t)(uint16_t)(r.x >> 16));
        f[2] = master_join((uint16_t)w.y, (int16_t)(uint16_t)r.y);
        f[3] = master_join((uint16_t)(w.y >> 16), (int16_t)(uint16_t)(r.y >> 16));
    }
};

/* Four lanes sum one block of SUMSQ_BLOCK elements: lane q has accumulators 4q .. 4q + 3 of the CPU's
 * sixteen, in the CPU's order. The square of a float is exact in double, so a fused multiply-add changes
 * no bit. A warp adds up the digits of its blocks in registers, digit i in lane i % 32, without carries
 * (fewer than 2^31 terms). A thread block adds its sum to memory by one atomic a digit; sums are exact,
 * so the order does not matter. */
template <class From, int FULL>
__device__ __forceinline__ void add_squares(double (&sum)[QUAD], const From &x, int b, int left)
{
    enum { AHEAD = 4 };
    int q = (int)threadIdx.x % QUAD * QUAD;
    for (int k = 0; k < SUMSQ_BLOCK; k += 16 * AHEAD) {
        float f[AHEAD][QUAD];
#pragma unroll
        for (int u = 0; u < AHEAD; u++)
#pragma unroll
            for (int i = 0; i < QUAD; i++) {
                int c = k + 16 * u + q + i;
                if (FULL && i == 0)
                    x.quad(f[u], b + c);
                else if (!FULL)
                    f[u][i] = c < left ? x.one(b + c) : 0;
            }
#pragma unroll
        for (int u = 0; u < AHEAD; u++)
#pragma unroll
            for (int i = 0; i < QUAD; i++)
                sum[i] += (double)f[u][i] * (double)f[u][i];
    }
}

/* The same of the n elements from b on, at most a block of them. */
template <class From>
__device__ __forceinline__ void add_block(double (&sum)[QUAD], const From &x, int b, int64_t n, int vector)
{
    if (n >= SUMSQ_BLOCK && vector)
        add_squares<From, 1>(sum, x, b, SUMSQ_BLOCK);
    else
        add_squares<From, 0>(sum, x, b, n < SUMSQ_BLOCK ? (int)n : SUMSQ_BLOCK);
}

/* Elements of a round: what the warps of a thread block sum at a time, all of one array. */
static const int64_t ROUND = (int64_t)WARPS * ACROSS * SUMSQ_BLOCK;

struct Addend {
    int64_t n;
    const void *x;
    const int16_t *rest;
    Exact *sum;
    int first;                 /* number of its first round */
    int vector;                /* bool: a quad can be read in one access */
};
struct Addends { int rounds, count; Addend array[LISTED]; };

/* Adds a warp's part of a round to own. All lanes take part, because they exchange sums.
 *   start  in  the first element of the warp's first block */
template <class T>
__device__ __forceinline__ void add_round(int64_t (&own)[OWN], const Addend &a, int64_t start)
{
    int64_t n = a.n - start;
    int lane = (int)threadIdx.x % WARP, b = lane / QUAD * SUMSQ_BLOCK;
    double sum[QUAD] = {0, 0, 0, 0};
    if (n > b && a.rest)
        add_block(sum, Masters(a.x, a.rest, start), b, n - b, a.vector);
    else if (n > b)
        add_block(sum, Numbers<T>(a.x, start), b, n - b, a.vector);
#pragma unroll
    /* the CPU's tree over 16 accumulators: s[i] += s[i + 8], then s[i + 4], s[i + 2], s[i + 1] */
    for (int o = 2; o; o >>= 1)
#pragma unroll
        for (int i = 0; i < QUAD; i++)
            sum[i] += __shfl_xor_sync(EVERY_LANE, sum[i], o);
    double block = (sum[0] + sum[2]) + (sum[1] + sum[3]);
    for (int k = 0; k < ACROSS; k++) {
        Term t = term_of(__shfl_sync(EVERY_LANE, block, k * QUAD));
        if (n <= k * SUMSQ_BLOCK)
            continue;
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            int word = i * WARP + lane, piece = word - t.at;
            if (t.at >= 0)
                own[i] += piece == 0 ? t.digit[0] : piece == 1 ? t.digit[1] : piece == 2 ? t.digit[2] : 0;
            own[i] += word == EXACT_DIGITS && t.bad;
        }
    }
}

/* *out += the sums of all warps of the block, which become 0. */
__device__ __forceinline__ void give_sum(Exact *out, int64_t (&own)[OWN])
{
    int64_t *digits = (int64_t *)shared, all = 0;
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, word = (int)threadIdx.x;
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        digits[warp * OWN * WARP + i * WARP + lane] = own[i];
        own[i] = 0;
    }
    __syncthreads();
    for (int w = 0; w < WARPS && word < EXACT_WORDS; w++)
        all += digits[w * OWN * WARP + word];
    if (all)       /* word EXACT_DIGITS is `bad` (exact.h) */
        atomicAdd((unsigned long long *)out + word, (unsigned long long)all);
    __syncthreads();
}

/* A thread block does consecutive rounds. It adds its sum to memory when the next round has another
 * sum. */
template <class T>
__global__ void __launch_bounds__(THREADS, 4) k_squares(const __grid_constant__ Addends u)
{
    int64_t rounds = u.rounds, own[OWN];
    int from = (int)(blockIdx.x * rounds / gridDim.x), to = (int)((blockIdx.x + 1) * rounds / gridDim.x);
    for (int i = 0; i < OWN; i++)
        own[i] = 0;
    for (int round = from, at = listed(u.array, u.count, from); round < to; round++) {
        Exact *sum = u.array[at].sum;
        int64_t start =
            (round - u.array[at].first) * ROUND + (int64_t)(threadIdx.x / WARP * ACROSS * SUMSQ_BLOCK);
        if (start < u.array[at].n)
            add_round<T>(own, u.array[at], start);
        if (at + 1 < u.count && round + 1 == u.array[at + 1].first)
            at++;
        if (round + 1 == to || u.array[at].sum != sum)
            give_sum(sum, own);
    }
}

static Addend addend_of(const Squares *s, int first, Dtype type)
{
    int vector = (uintptr_t)s->x % (QUAD * dtype_size(s->rest ? BF16 : type)) == 0
                 && (uintptr_t)s->rest % (QUAD * sizeof *s->rest) == 0;
    Addend a = {s->n, s->x, s->rest, s->sum, first, vector};
    return a;
}

void cuda_squares(Device *d, const Squares *list, int64_t count, Dtype type)
{
    Cuda *c = cuda_of(d);
    Addends u;
    memset(&u, 0, sizeof u);
    static_assert(sizeof(Exact) == EXACT_WORDS * 8 && SUMSQ_BLOCK % (16 * 8) == 0, "words; whole rounds");
    for (int64_t i = 0; i < count; i += u.count) {
        for (u.count = u.rounds = 0; u.count < LISTED && i + u.count < count; u.count++) {
            const Squares *s = &list[i + u.count];
            BUG_ON(s->n < 1);
            u.array[u.count] = addend_of(s, u.rounds, type);
            u.rounds += (int)ceil_div(s->n, ROUND);
        }
        with_type(type, [&](auto t) {
            LAUNCH((k_squares<decltype(t)>), blocks_of(u.rounds < c->sms * 4 ? u.rounds : c->sms * 4),
                   THREADS, WARPS * OWN * WARP * sizeof(int64_t), c->compute, u);
        });
    }
}

/* ---- exact sums ---- */

__device__ static void carry(int64_t *digit)
{
    int64_t up = 0;
    for (int i = 0; i + 1 < EXACT_DIGITS; i++) {
        int64_t x = digit[i] + up;
        up = x >> 32;
        digit[i] = x & 0xffffffff;
    }
    digit[EXACT_DIGITS - 1] += up;
}

__global__ void __launch_bounds__(WARP) k_carry(Exact *s, int64_t n)
{
    int64_t i = (int64_t)blockIdx.x * WARP + threadIdx.x;
    if (i < n)
        carry(s[i].digit);
}

void cuda_carry(Device *d, Exact *s, int64_t n)
{
    if (n > 0)
        LAUNCH(k_carry, blocks_of(ceil_div(n, WARP)), WARP, 0, cuda_of(d)->compute, s, n);
}

/* exact_round of exact.c, without its copy: one walk from the lowest digit up carries, and keeps the
 * three top digits and whether any digit below them is not 0. */
__device__ static double device_round(const Exact *s)
{
    int64_t up = 0, digit[3] = {0, 0, 0};      /* the three top digits, lowest first */
    int top = -1, lost = 0;
    if (s->bad)
        return nan("");
    int64_t window[3] = {0, 0, 0};
    int below = 0;                             /* bool: a digit below the window is not 0 */
    for (int i = 0; i < EXACT_DIGITS; i++) {
        int64_t x = s->digit[i] + up;
        if (i + 1 < EXACT_DIGITS) {
            up = x >> 32;
            x &= 0xffffffff;
        }
        below |= window[0] != 0;
        window[0] = window[1], window[1] = window[2], window[2] = x;
        if (x) {
            top = i;
            digit[0] = window[0], digit[1] = window[1], digit[2] = window[2];
            lost = below;
        }
    }
    if (top < 0)
        return 0;
    int bits = 32 - __clz((int)(uint32_t)digit[2]);
    unsigned __int128 wide = ((unsigned __int128)(uint64_t)digit[2] << 64)
                             | ((unsigned __int128)(uint64_t)digit[1] << 32) | (uint64_t)digit[0];
    int length = 64 + bits, lowest = 32 * (top - 2) - 1074, spare = length - 53;
    if (lowest + spare < -1074)                /* a subnormal keeps fewer bits */
        spare = -1074 - lowest;
    uint64_t kept = (uint64_t)(wide >> spare);
    unsigned __int128 rest = wide & (((unsigned __int128)1 << spare) - 1),
                      half = (unsigned __int128)1 << (spare - 1);
    kept += rest > half || (rest == half && (lost || (kept & 1)));
    return ldexp((double)kept, lowest + spare);
}

/* ---- the end of a step ---- */

/* The arithmetic of kernels/cpu/verdict.c, rounded after every operation: no fused multiply-add. */
__global__ void k_verdict(Verdict *v, const double *sums, const Exact *squares, double nominal,
                          double loss_scale, double clip_grad, int stop, Limits limits)
{
    double tokens = sums[1], loss = tokens > 0 ? sums[0] / tokens : 0;
    double gscale = (tokens > 0 ? nominal / tokens : 1) / loss_scale;
    double norm = __dmul_rn(sqrt(device_round(squares)), gscale);
    double coefficient = clip_grad / __dadd_rn(norm, 1e-6);
    v->tokens = tokens;
    v->loss = loss;
    v->gscale = gscale;
    v->norm = norm;
    v->bad = squares->bad;
    v->multiplier = __dmul_rn(gscale, clip_grad > 0 && coefficient < 1 ? coefficient : 1);
    int finite = isfinite(loss) && isfinite(norm);
    v->behind = !v->go && !limits.seen;
    v->stopped = stop && (v->stopped || !finite);
    v->go = !v->stopped && !(finite && (loss > limits.loss || norm > limits.norm));
}

void cuda_verdict(Device *d, Verdict *v, const double *sums, const Exact *squares, double nominal,
                  double loss_scale, double clip_grad, int stop, Limits limits)
{
    LAUNCH(k_verdict, 1, 1, 0, cuda_of(d)->compute, v, sums, squares, nominal, loss_scale, clip_grad, stop,
           limits);
}

__global__ void __launch_bounds__(WARP) k_trust(double *trust, const Exact *norms, int64_t n, int lars,
                                                double coefficient, double wd, const Verdict *v)
{
    int64_t i = (int64_t)blockIdx.x * WARP + threadIdx.x;
    if (i >= n)
        return;
    double weight = sqrt(device_round(&norms[2 * i])), step = sqrt(device_round(&norms[2 * i + 1]));
    if (lars)
        step = __dmul_rn(step, v->multiplier);
    if (!(weight > 0 && step > 0))
        trust[i] = 1;
    else
        trust[i] =
            lars ? __dmul_rn(coefficient, weight) / __dadd_rn(step, __dmul_rn(wd, weight)) : weight / step;
}

void cuda_trust(Device *d, double *trust, const Exact *norms, int64_t n, int lars, double coefficient,
                double wd, const Verdict *v)
{
    if (n > 0)
        LAUNCH(k_trust, blocks_of(ceil_div(n, WARP)), WARP, 0, cuda_of(d)->compute, trust, norms, n, lars,
               coefficient, wd, v);
}
