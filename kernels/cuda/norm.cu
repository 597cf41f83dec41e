/* norm -- LayerNorm and RMSNorm of rows or of groups of columns: forward, and the gradient of the input.
 *
 * add_norm_fwd adds dropout and residual in the same pass. The gradients of gain and bias are in
 * colsum.cu. A row is read once, by a team of threads that keeps it in registers: 8, 16 or 32 lanes for
 * a short row (32 rows of 64 columns are one block), a block of up to 1024 threads for a long one. The
 * mean is known before the spread is summed, as on the CPU. Rows that are too long for a team or not
 * aligned are read again from the cache. */
#include "common.cuh"

struct Norm {
    void *y, *ln;              /* forward: add_norm_fwd's y, and the result; backward: ln is dx */
    const void *x, *res, *dy, *gain, *bias;
    float *stats;
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
    uint32_t row;
    __device__ __forceinline__ Team(int lanes)
    {
        if (LONG) {
            at = (int)threadIdx.x, size = (int)blockDim.x, row = blockIdx.x;
        } else {
            at = (int)threadIdx.x & (lanes - 1), size = lanes;
            row = blockIdx.x * (blockDim.x / (unsigned)lanes) + threadIdx.x / (unsigned)lanes;
        }
        warp_lanes = lanes;
    }
    __device__ __forceinline__ float sum(float x, float *slot) const
    {
        return LONG ? block_sum(x, slot) : warp_sum(x, warp_lanes);
    }
};

extern __shared__ __align__(16) char shared[];
enum { SLOTS = 2 * 32 * sizeof(float) };   /* bytes for the two reductions of a block */

/* ---- forward ---- */

/* Loads the row that is normalised: x, or with ADD y = res + dropout(x), which it stores; v is y as
 * stored. */
template <class T, int K, int LONG, int ADD>
__device__ __forceinline__ void forward_row(const Norm &a, const Team<LONG> &team, uint32_t r, uint32_t g,
                                            Piece<T> *v)
{
    enum { N = Piece<T>::N };
    const T *x = row_at<T>(a.x, a.ldx, r, g, a.n),
            *res = ADD && a.res ? row_at<T>(a.res, a.ldres, r, 0, a.n) : NULL;
    Piece<T> w[ADD ? K : 1];
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
    if (!ADD || !live)
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
        if (res) {
            w[ADD ? k : 0].get(e);
#pragma unroll
            for (int i = 0; i < N; i++)
                f[i] += e[i];
        }
        v[k].set(f);
        v[k].store(y + c);
    }
}

template <class T, int K, int LONG, int ADD>
__global__ void __launch_bounds__(LONG ? (K > 2 ? 1024 : 512) : 256) k_norm_fwd(const Norm a)
{
    enum { N = Piece<T>::N };
    const Team<LONG> team(a.lanes);
    float *slot = (float *)shared, sum = 0, f[N], w[N];
    uint32_t r = team.row / a.per_row, g = team.row - r * a.per_row.d;
    Piece<T> v[K], p;
    forward_row<T, K, LONG, ADD>(a, team, r, g, v);
    float mean = 0;
    if (a.kind == NORM_LAYER) {
#pragma unroll
        for (int k = 0; k < K; k++) {
            v[k].get(f);                   /* zeros beyond the row */
#pragma unroll
            for (int i = 0; i < N; i++)
                sum += f[i];
        }
        mean = team.sum(sum, slot) / (float)a.n;
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
    float rstd = 1 / sqrtf(team.sum(sum, slot + 32) / (float)a.n + a.eps);
    if (team.row >= a.rows)
        return;
    T *y = row_at<T>(a.ln, a.ldln, r, g, a.n);
#pragma unroll
    for (int k = 0; k < K; k++) {
        int c = (team.at + k * team.size) * N;
        if (c >= a.n)
            continue;
        v[k].get(f);
        p.load((const T *)a.gain + c);
        p.get(w);
#pragma unroll
        for (int i = 0; i < N; i++)
            f[i] = (f[i] - mean) * rstd * w[i];
        if (a.bias) {
            p.load((const T *)a.bias + c);
            p.get(w);
#pragma unroll
            for (int i = 0; i < N; i++)
                f[i] += w[i];
        }
        p.set(f);
        p.store(y + c);
    }
    if (team.at == 0) {
        float *stats = a.stats + (int64_t)r * a.ldstats + 2 * g;
        stats[0] = mean;
        stats[1] = rstd;
    }
}

/* A row of any length and alignment: a block, element by element. With ADD a thread reads y back only
 * where it wrote it itself. */
template <class T, int ADD> __global__ void __launch_bounds__(256) k_norm_fwd_any(const Norm a)
{
    float *slot = (float *)shared, sum = 0, mean = 0;
    uint32_t r = blockIdx.x / a.per_row, g = blockIdx.x - r * a.per_row.d;
    const T *x = row_at<T>(a.x, a.ldx, r, g, a.n);
    T *y = row_at<T>(a.ln, a.ldln, r, g, a.n);
    int step = (int)blockDim.x;
    if (ADD) {
        T *out = row_at<T>(a.y, a.ldy, r, 0, a.n);
        const T *res = a.res ? row_at<T>(a.res, a.ldres, r, 0, a.n) : NULL;
        DropRow at = {0, 0};
        if (a.drop.on)
            at = drop_row(a.drop, r);
        for (int c = (int)threadIdx.x; c < a.n; c += step) {
            float f = to_float(x[c]);
            if (a.drop.on)
                drop<1>(&f, a.drop, at, (uint32_t)c);
            from_float(out + c, res ? f + to_float(res[c]) : f);
        }
        x = out;
    }
    if (a.kind == NORM_LAYER) {
        for (int c = (int)threadIdx.x; c < a.n; c += step)
            sum += to_float(x[c]);
        mean = block_sum(sum, slot) / (float)a.n;
    }
    sum = 0;
    for (int c = (int)threadIdx.x; c < a.n; c += step)
        sum += (to_float(x[c]) - mean) * (to_float(x[c]) - mean);
    float rstd = 1 / sqrtf(block_sum(sum, slot + 32) / (float)a.n + a.eps);
    for (int c = (int)threadIdx.x; c < a.n; c += step) {
        float f = (to_float(x[c]) - mean) * rstd * to_float(((const T *)a.gain)[c]);
        from_float(y + c, a.bias ? f + to_float(((const T *)a.bias)[c]) : f);
    }
    if (threadIdx.x == 0) {
        float *stats = a.stats + (int64_t)r * a.ldstats + 2 * g;
        stats[0] = mean;
        stats[1] = rstd;
    }
}

/* ---- backward ---- */

/* With xh = (x - mean) rstd, e = dy gain: dx = rstd (e - avg(e) - xh avg(e xh)), RMSNorm without avg(e).
 * dres is loaded at the start, except for long rows with K > 2, which have no registers for it. */
template <class T, int K, int LONG>
__global__ void __launch_bounds__(LONG ? (K > 2 ? 1024 : 512) : 256) k_norm_bwd_x(const Norm a)
{
    enum { N = Piece<T>::N, EARLY = !LONG || K <= 2 };
    const Team<LONG> team(a.lanes);
    float *slot = (float *)shared, e[N], f[N], w[N], mean = 0, rstd = 0, sum = 0, sumx = 0;
    uint32_t r = team.row / a.per_row, g = team.row - r * a.per_row.d;
    int live = team.row < a.rows;
    const T *x = row_at<T>(a.x, a.ldx, r, g, a.n), *dy = row_at<T>(a.dy, a.lddy, r, g, a.n);
    const T *res = a.res ? row_at<T>(a.res, a.ldres, r, g, a.n) : NULL;
    Piece<T> vx[K], vdy[K], vres[EARLY ? K : 1], p;
    if (live) {
        const float *stats = a.stats + (int64_t)r * a.ldstats + 2 * g;
        mean = stats[0];
        rstd = stats[1];
    }
#pragma unroll
    for (int k = 0; k < K; k++) {
        int c = (team.at + k * team.size) * N;
        if (live && c < a.n) {
            vx[k].load(x + c);
            vdy[k].load(dy + c);
            if (EARLY && res)
                vres[EARLY ? k : 0].load(res + c);
        }
    }
#pragma unroll
    for (int k = 0; k < K; k++) {
        int c = (team.at + k * team.size) * N;
        if (!live || c >= a.n)
            continue;
        p.load((const T *)a.gain + c);
        p.get(w);
        vx[k].get(f);
        vdy[k].get(e);
#pragma unroll
        for (int i = 0; i < N; i++) {
            sum += e[i] * w[i];
            sumx += e[i] * w[i] * ((f[i] - mean) * rstd);
        }
    }
    float avg = a.kind == NORM_LAYER ? team.sum(sum, slot) / (float)a.n : 0;
    float avgx = team.sum(sumx, slot + 32) / (float)a.n;
    T *dx = row_at<T>(a.ln, a.ldln, r, g, a.n);
#pragma unroll
    for (int k = 0; k < K; k++) {
        int c = (team.at + k * team.size) * N;
        if (!live || c >= a.n)
            continue;
        p.load((const T *)a.gain + c);
        p.get(w);
        vx[k].get(f);
        vdy[k].get(e);
#pragma unroll
        for (int i = 0; i < N; i++)
            f[i] = rstd * (e[i] * w[i] - avg - (f[i] - mean) * rstd * avgx);
        if (res) {
            if (!EARLY)
                vres[0].load(res + c);
            vres[EARLY ? k : 0].get(w);
#pragma unroll
            for (int i = 0; i < N; i++)
                f[i] += w[i];
        }
        p.set(f);
        p.store(dx + c);
    }
}

template <class T> __global__ void __launch_bounds__(256) k_norm_bwd_x_any(const Norm a)
{
    float *slot = (float *)shared, sum = 0, sumx = 0;
    uint32_t r = blockIdx.x / a.per_row, g = blockIdx.x - r * a.per_row.d;
    const T *x = row_at<T>(a.x, a.ldx, r, g, a.n), *dy = row_at<T>(a.dy, a.lddy, r, g, a.n),
            *gain = (const T *)a.gain;
    const T *res = a.res ? row_at<T>(a.res, a.ldres, r, g, a.n) : NULL;
    const float *stats = a.stats + (int64_t)r * a.ldstats + 2 * g;
    T *dx = row_at<T>(a.ln, a.ldln, r, g, a.n);
    float mean = stats[0], rstd = stats[1];
    for (int c = (int)threadIdx.x; c < a.n; c += (int)blockDim.x) {
        float e = to_float(dy[c]) * to_float(gain[c]);
        sum += e;
        sumx += e * ((to_float(x[c]) - mean) * rstd);
    }
    float avg = a.kind == NORM_LAYER ? block_sum(sum, slot) / (float)a.n : 0;
    float avgx = block_sum(sumx, slot + 32) / (float)a.n;
    for (int c = (int)threadIdx.x; c < a.n; c += (int)blockDim.x) {
        float e = to_float(dy[c]) * to_float(gain[c]);
        float f = rstd * (e - avg - (to_float(x[c]) - mean) * rstd * avgx);
        from_float(dx + c, res ? f + to_float(res[c]) : f);
    }
}

/* ---- launches ---- */

/* Which kernel a row takes. k: pieces a thread, 0 for the element-wise kernels. is_long: a team is a
 * block. */
struct Plan { int k, is_long, lanes, threads; int64_t blocks; };
/* pieces: 16-byte pieces of a row of n columns; 0: the row is not aligned. */
static Plan plan_of(int64_t rows, int64_t pieces, int64_t n)
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

static Norm norm_of(Mat x, Mat gain, Mat bias, Mat stats, NormKind kind, int groups)
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
static int64_t pieces_of(const Norm *a, Dtype t, Mat x, Mat y, Mat z, Mat w)
{
    int64_t n = 16 / (int64_t)dtype_size(t);
    int ok = aligned(x) && aligned(y) && aligned(z) && aligned(w) && aligned(a->gain) && aligned(a->bias);
    return ok && a->n % n == 0 ? a->n / n : 0;
}

template <class T, int ADD> static void launch_fwd(Cuda *c, const Plan &p, Norm a)
{
    a.lanes = p.lanes;
    cudaStream_t s = c->compute;
    unsigned grid = blocks_of(p.blocks), block = (unsigned)p.threads;
    if (p.k == 0)
        LAUNCH((k_norm_fwd_any<T, ADD>), grid, block, SLOTS, s, a);
    else if (!p.is_long && p.k == 1)
        LAUNCH((k_norm_fwd<T, 1, 0, ADD>), grid, block, 0, s, a);
    else if (!p.is_long)
        LAUNCH((k_norm_fwd<T, 4, 0, ADD>), grid, block, 0, s, a);
    else if (p.k == 2)
        LAUNCH((k_norm_fwd<T, 2, 1, ADD>), grid, block, SLOTS, s, a);
    else
        LAUNCH((k_norm_fwd<T, 4, 1, ADD>), grid, block, SLOTS, s, a);
}

template <class T> static void launch_bwd_x(Cuda *c, const Plan &p, Norm a)
{
    a.lanes = p.lanes;
    cudaStream_t s = c->compute;
    unsigned grid = blocks_of(p.blocks), block = (unsigned)p.threads;
    if (p.k == 0)
        LAUNCH((k_norm_bwd_x_any<T>), grid, block, SLOTS, s, a);
    else if (!p.is_long && p.k == 1)
        LAUNCH((k_norm_bwd_x<T, 1, 0>), grid, block, 0, s, a);
    else if (!p.is_long)
        LAUNCH((k_norm_bwd_x<T, 4, 0>), grid, block, 0, s, a);
    else if (p.k == 2)
        LAUNCH((k_norm_bwd_x<T, 2, 1>), grid, block, SLOTS, s, a);
    else
        LAUNCH((k_norm_bwd_x<T, 4, 1>), grid, block, SLOTS, s, a);
}

void cuda_norm_fwd(Device *d, Mat y, Mat stats, Mat x, Mat gain, Mat bias, double eps, NormKind kind,
                   int groups)
{
    BUG_ON(y.rows != x.rows || y.cols != x.cols || y.type != x.type);
    Norm a = norm_of(x, gain, bias, stats, kind, groups);
    a.ln = y.p, a.ldln = y.ld;
    a.eps = (float)eps;
    if (!a.rows || !a.n)
        return;
    Plan p = plan_of(a.rows, pieces_of(&a, x.type, x, y, x, x), a.n);
    with_type(x.type, [&](auto t) { launch_fwd<decltype(t), 0>(cuda_of(d), p, a); });
}

void cuda_add_norm_fwd(Device *d, Mat y, Mat ln, Mat stats, Mat x, Mat res, const Dropout *s, Mat gain,
                       Mat bias, double eps, NormKind kind)
{
    BUG_ON(y.rows != x.rows || y.cols != x.cols || y.type != x.type);
    BUG_ON(ln.rows != x.rows || ln.cols != x.cols || ln.type != x.type);
    BUG_ON(res.p && (res.rows != x.rows || res.cols != x.cols || res.type != x.type));
    Norm a = norm_of(x, gain, bias, stats, kind, 1);
    a.y = y.p, a.ldy = y.ld;
    a.ln = ln.p, a.ldln = ln.ld;
    a.res = res.p, a.ldres = res.ld;
    a.eps = (float)eps;
    a.drop = drop_of(s);
    if (!a.rows || !a.n)
        return;
    Plan p = plan_of(a.rows, a.drop.on && s->col0 % 4 ? 0 : pieces_of(&a, x.type, x, y, ln, res), a.n);
    with_type(x.type, [&](auto t) { launch_fwd<decltype(t), 1>(cuda_of(d), p, a); });
}

void cuda_norm_bwd_x(Device *d, Mat dx, Mat dres, Mat dy, Mat x, Mat stats, Mat gain, NormKind kind,
                     int groups)
{
    Mat none = {};
    BUG_ON(dx.rows != x.rows || dx.cols != x.cols || dy.rows != x.rows || dy.cols != x.cols);
    BUG_ON(dx.type != x.type || dy.type != x.type);
    BUG_ON(dres.p && (dres.rows != x.rows || dres.cols != x.cols || dres.type != x.type));
    Norm a = norm_of(x, gain, none, stats, kind, groups);
    a.ln = dx.p, a.ldln = dx.ld;
    a.dy = dy.p, a.lddy = dy.ld;
    a.res = dres.p, a.ldres = dres.ld;
    if (!a.rows || !a.n)
        return;
    Plan p = plan_of(a.rows, pieces_of(&a, x.type, x, dx, dy, dres), a.n);
    with_type(x.type, [&](auto t) { launch_bwd_x<decltype(t)>(cuda_of(d), p, a); });
}
