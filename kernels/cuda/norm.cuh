/* norm -- rows of norms: how they are cut, loaded, summed and normalised; norm.cu and fp8_norm.cu use them */
#ifndef NORM_CUH
#define NORM_CUH
#include "common.cuh"

struct Norm {
    void *y, *ln;              /* forward: add_norm_fwd's y, and the result; backward: ln is dx */
    const void *x, *res, *dy, *gain, *bias;
    float *stats;
    float *part[2];            /* backward: sums of gain and bias of each block, [blocks, n] */
    int64_t ldy, ldln, ldx, ldres, lddy, ldstats;
    uint32_t rows;             /* rows of the matrix times groups */
    int n, lanes;              /* columns of a group; lanes of a short row's team */
    Divider per_row;           /* groups of a row */
    float eps;
    int kind;
    Drop drop;
};

/* Returns the address of group g of row r. */
template <class T>
__device__ __forceinline__ T *row_at(const void *p, int64_t ld, uint32_t r, uint32_t g, int n)
{
    return (T *)p + (int64_t)r * ld + (int64_t)g * n;
}

/* The threads of a row: 8, 16 or 32 lanes of a warp, or with LONG a block. */
template <int LONG> struct Team {
    int at, size, warp_lanes;
    uint32_t row, first;       /* row of the team, of the block's first team */
    __device__ __forceinline__ Team(int lanes)
    {
        if (LONG) {
            at = (int)threadIdx.x, size = (int)blockDim.x, row = first = blockIdx.x;
        } else {
            at = (int)threadIdx.x & (lanes - 1), size = lanes;
            first = blockIdx.x * (blockDim.x / (unsigned)lanes);
            row = first + threadIdx.x / (unsigned)lanes;
        }
        warp_lanes = lanes;
    }
    __device__ __forceinline__ float sum(float x, float *slot) const
    {
        return LONG ? block_sum(x, slot) : warp_sum(x, warp_lanes);
    }
};

enum { SLOTS = 2 * 32 * sizeof(float) };   /* bytes of the two reductions of a block */

/* Loads the row that is normalised: x, and with ADD what is added to it. */
template <class T, int K, int ADD, class Threads>
__device__ __forceinline__ void load_row(const Norm &a, const Threads &team, uint32_t r, uint32_t g,
                                         Piece<T> *v, Piece<T> *w)
{
    enum { N = Piece<T>::N };
    const T *x = row_at<T>(a.x, a.ldx, r, g, a.n),
            *res = ADD && a.res ? row_at<T>(a.res, a.ldres, r, 0, a.n) : NULL;
    int live = team.row < a.rows;
#pragma unroll
    for (int k = 0; k < K; k++) {
        int c = (team.at + k * team.size) * N;
        v[k].clear();
        if (live && c < a.n)
            v[k].load(x + c);
        if (ADD && res) {
            w[ADD ? k : 0].clear();
            if (live && c < a.n)
                w[ADD ? k : 0].load(res + c);
        }
    }
}

/* Turns a loaded row into y = res + dropout(x) as stored, and stores it. */
template <class T, int K, class Threads>
__device__ __forceinline__ void add_row(const Norm &a, const Threads &team, uint32_t r, Piece<T> *v,
                                        const Piece<T> *w)
{
    enum { N = Piece<T>::N };
    if (team.row >= a.rows)
        return;
    T *y = row_at<T>(a.y, a.ldy, r, 0, a.n);
    DropRow at = {0, 0};
    if (a.drop.on)
        at = drop_row(a.drop, r);
#pragma unroll
    for (int k = 0; k < K; k++) {
        int c = (team.at + k * team.size) * N;
        float f[N], e[N];
        if (c >= a.n)
            continue;
        v[k].get(f);
        if (a.drop.on)
            drop<N>(f, a.drop, at, (uint32_t)c);
        if (a.res) {
            w[k].get(e);
#pragma unroll
            for (int i = 0; i < N; i++)
                f[i] += e[i];
        }
        v[k].set(f);
        v[k].store(y + c);
    }
}

/* The mean and 1 / spread of a row that a team holds.
 *   slot0, slot1  out  [32]  shared memory of the two sums */
template <class T, int K, class Threads>
__device__ __forceinline__ float2 moments(const Norm &a, const Threads &team, const Piece<T> *v, float *slot0,
                                          float *slot1)
{
    enum { N = Piece<T>::N };
    float f[N], sum = 0, mean = 0;
    if (a.kind == NORM_LAYER) {
#pragma unroll
        for (int k = 0; k < K; k++) {
            v[k].get(f);                   /* zeros beyond the row */
#pragma unroll
            for (int i = 0; i < N; i++)
                sum += f[i];
        }
        mean = team.sum(sum, slot0) / (float)a.n;
    }
    sum = 0;
#pragma unroll
    for (int k = 0; k < K; k++) {
        v[k].get(f);
        if ((team.at + k * team.size) * N < a.n)
#pragma unroll
            for (int i = 0; i < N; i++)
                sum += (f[i] - mean) * (f[i] - mean);
    }
    return {mean, 1 / sqrtf(team.sum(sum, slot1) / (float)a.n + a.eps)};
}

/* An element of a norm's result. Nothing is contracted: the kernels that make it have the same bits. */
__device__ __forceinline__ float normed(float x, float2 m, float gain)
{
    return __fmul_rn(__fmul_rn(__fsub_rn(x, m.x), m.y), gain);
}

/* Eight or four neighbours of a norm's result, from column c on; f: in the row's, out the result's. */
template <class T> __device__ __forceinline__ void normed_piece(float *f, const Norm &a, float2 m, int c)
{
    enum { N = Piece<T>::N };
    float w[N];
    Piece<T> p;
    p.load((const T *)a.gain + c);
    p.get(w);
#pragma unroll
    for (int i = 0; i < N; i++)
        f[i] = normed(f[i], m, w[i]);
    if (a.bias) {
        p.load((const T *)a.bias + c);
        p.get(w);
#pragma unroll
        for (int i = 0; i < N; i++)
            f[i] = __fadd_rn(f[i], w[i]);
    }
}

/* ---- on the host ---- */

struct Plan { int k, is_long, lanes, threads; int64_t blocks; };
/* pieces: 16-byte pieces of a row of n columns; 0: the row is not aligned. */
static inline Plan plan_of(int64_t rows, int64_t pieces, int64_t n)
{
    Plan p = {0, 1, WARP, 0, rows};
    if (pieces == 0 || pieces > 4096) {
        p.threads = (int)(n >= 256 ? 256 : ceil_div(n, WARP) * WARP);
        return p;
    }
    if (pieces <= 4 * WARP) {     /* a team is at most a warp; a block is 256 threads of teams */
        p.is_long = 0;
        p.lanes = pieces <= 8 ? 8 : pieces <= 16 ? 16 : WARP;
        p.k = pieces <= p.lanes ? 1 : 4;
        p.threads = 256;
        p.blocks = ceil_div(rows, p.threads / p.lanes);
        return p;
    }
    p.k = pieces <= 1024 ? 2 : 4;
    p.threads = (int)(ceil_div(ceil_div(pieces, p.k), WARP) * WARP);
    return p;
}

static inline Norm norm_of(Mat x, Mat gain, Mat bias, Mat stats, NormKind kind, int groups)
{
    BUG_ON(groups < 1 || x.cols % groups || stats.type != F32 || stats.rows != x.rows ||
           stats.cols != 2 * groups);
    BUG_ON(!gain.p || gain.cols != x.cols / groups || gain.type != x.type);
    BUG_ON(bias.p && (bias.cols != gain.cols || bias.type != x.type));
    BUG_ON(x.rows * groups >= (int64_t)1 << 31);
    Norm a = {};
    a.x = x.p, a.ldx = x.ld;
    a.gain = gain.p, a.bias = bias.p;
    a.stats = (float *)stats.p, a.ldstats = stats.ld;
    a.rows = (uint32_t)(x.rows * groups);
    a.n = (int)(x.cols / groups);
    a.per_row = divider(groups);
    a.kind = kind;
    return a;
}

/* Returns the number of 16-byte pieces of a group, or 0 when one of the matrices is not aligned. */
static inline int64_t pieces_of(const Norm *a, Dtype t, Mat x, Mat y, Mat z, Mat w)
{
    int64_t n = 16 / (int64_t)dtype_size(t);
    int ok = aligned(x) && aligned(y) && aligned(z) && aligned(w) && aligned(a->gain) && aligned(a->bias);
    return ok && a->n % n == 0 ? a->n / n : 0;
}

/* The arguments of add_norm_fwd; ln absent: the statistics alone. */
static inline Norm add_norm_of(Mat y, Mat ln, Mat stats, Mat x, Mat res, const Dropout *s, Mat gain, Mat bias,
                               double eps, NormKind kind)
{
    BUG_ON(y.rows != x.rows || y.cols != x.cols || y.type != x.type);
    BUG_ON(ln.p && (ln.rows != x.rows || ln.cols != x.cols || ln.type != x.type));
    BUG_ON(res.p && (res.rows != x.rows || res.cols != x.cols || res.type != x.type));
    Norm a = norm_of(x, gain, bias, stats, kind, 1);
    a.y = y.p, a.ldy = y.ld;
    a.ln = ln.p, a.ldln = ln.ld;
    a.res = res.p, a.ldres = res.ld;
    a.eps = (float)eps;
    a.drop = drop_of(s);
    return a;
}
static inline Plan add_plan_of(const Norm *a, const Dropout *s, Mat y, Mat ln, Mat x, Mat res)
{
    return plan_of(a->rows, a->drop.on && s->col0 % 4 ? 0 : pieces_of(a, x.type, x, y, ln, res), a->n);
}
#endif
