/* norm -- LayerNorm and RMSNorm of rows or of groups of columns, forward and backward.
 *
 * add_norm_fwd adds dropout and residual in the same pass. A row is read once, by a team of threads that
 * keeps it in registers: 8, 16 or 32 lanes for a short row (32 rows of 64 columns are one block), a block
 * of up to 1024 threads for a long one. The mean is known before the spread is summed, as on the CPU. Rows
 * that are too long for a team or not aligned are read again from the cache.
 *
 * norm_bwd reads x and dy once: a team does several rows, a thread keeps the same columns of each and adds
 * up their gradients of gain and bias. A block writes its sums, and a second launch adds those of all blocks
 * in order (colsum.cu). Which block does which rows follows from the shape alone, so the bits are the same
 * on every GPU. Very long or unaligned rows take two passes. */
#include "norm.cuh"

extern __shared__ __align__(16) char shared[];

/* ---- forward ---- */

template <class T, int K, int LONG, int ADD>
__global__ void __launch_bounds__(LONG ? (K > 2 ? 1024 : 512) : 256) k_norm_fwd(const Norm a)
{
    enum { N = Piece<T>::N };
    const Team<LONG> team(a.lanes);
    float *slot = (float *)shared, f[N];
    uint32_t r = team.row / a.per_row, g = team.row - r * a.per_row.d;
    Piece<T> v[K], w[ADD ? K : 1], p;
    load_row<T, K, ADD>(a, team, r, g, v, w);
    if (ADD)
        add_row<T, K>(a, team, r, v, w);
    const float2 m = moments<T, K>(a, team, v, slot, slot + 32);
    if (team.row >= a.rows)
        return;
    T *y = row_at<T>(a.ln, a.ldln, r, g, a.n);
#pragma unroll
    for (int k = 0; k < K; k++) {
        int c = (team.at + k * team.size) * N;
        if (c >= a.n || !a.ln)
            continue;
        v[k].get(f);
        normed_piece<T>(f, a, m, c);
        p.set(f);
        p.store(y + c);
    }
    if (team.at == 0) {
        float *stats = a.stats + (int64_t)r * a.ldstats + 2 * g;
        stats[0] = m.x;
        stats[1] = m.y;
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
    for (int c = (int)threadIdx.x; c < a.n && a.ln; c += step) {
        float f = normed(to_float(x[c]), {mean, rstd}, to_float(((const T *)a.gain)[c]));
        from_float(y + c, a.bias ? __fadd_rn(f, to_float(((const T *)a.bias)[c])) : f);
    }
    if (threadIdx.x == 0) {
        float *stats = a.stats + (int64_t)r * a.ldstats + 2 * g;
        stats[0] = mean;
        stats[1] = rstd;
    }
}

/* ---- backward ---- */

/* Sums of two numbers over a team, with one barrier where that is a block.
 *   slot  out  [64]  shared memory; the next call must be given another */
template <int LONG>
__device__ __forceinline__ float2 two_sums(const Team<LONG> &team, float x, float y, float *slot)
{
    if (!LONG)
        return {warp_sum(x, team.warp_lanes), warp_sum(y, team.warp_lanes)};
    const int lane = (int)threadIdx.x % WARP, warps = (int)blockDim.x / WARP;
    x = warp_sum(x);
    y = warp_sum(y);
    if (lane == 0) {
        slot[threadIdx.x / WARP] = x;
        slot[32 + threadIdx.x / WARP] = y;
    }
    __syncthreads();
    return {warp_sum(lane < warps ? slot[lane] : 0), warp_sum(lane < warps ? slot[32 + lane] : 0)};
}

/* What a thread has of a row: x, dy, dres with EARLY (else it has no registers for it), and the statistics.
 * Zeros beyond the row and beyond the matrix. */
template <class T, int K, int EARLY> struct Row {
    Piece<T> x[K], dy[K], res[EARLY ? K : 1];
    float mean, rstd;
};

template <class T, int K, int LONG, int EARLY>
__device__ __forceinline__ void take_row(Row<T, K, EARLY> &v, const Norm &a, const Team<LONG> &team,
                                         uint32_t row)
{
    enum { N = Piece<T>::N };
    uint32_t r = row / a.per_row, g = row - r * a.per_row.d;
    const int live = row < a.rows;
    const T *x = row_at<T>(a.x, a.ldx, r, g, a.n), *dy = row_at<T>(a.dy, a.lddy, r, g, a.n);
    const T *res = a.res ? row_at<T>(a.res, a.ldres, r, g, a.n) : NULL;
    v.mean = v.rstd = 0;
    if (live) {
        const float *stats = a.stats + (int64_t)r * a.ldstats + 2 * g;
        v.mean = stats[0];
        v.rstd = stats[1];
    }
#pragma unroll
    for (int k = 0; k < K; k++) {
        int c = (team.at + k * team.size) * N;
        v.x[k].clear();
        v.dy[k].clear();
        if (live && c < a.n) {
            v.x[k].load(x + c);
            v.dy[k].load(dy + c);
            if (EARLY && res)
                v.res[EARLY ? k : 0].load(res + c);
        }
    }
}

/* Writes the gradient of a row's input, dres + rstd (e - avg(e) - xh avg(e xh)), element by element.
 *   row, avg, avgx  in  number of the row, and the terms above */
template <class T, int K, int LONG, int EARLY>
__device__ __forceinline__ void write_gradient(const Norm &a, const Team<LONG> &team, uint32_t row, float avg,
                                               float avgx, Row<T, K, EARLY> &v)
{
    enum { N = Piece<T>::N };
    uint32_t r = row / a.per_row, g = row - r * a.per_row.d;
    const T *res = a.res ? row_at<T>(a.res, a.ldres, r, g, a.n) : NULL;
    T *dx = row_at<T>(a.ln, a.ldln, r, g, a.n);
    float e[N], f[N], w[N];
    Piece<T> p;
#pragma unroll
    for (int k = 0; k < K; k++) {
        int c = (team.at + k * team.size) * N;
        if (c >= a.n)
            continue;
        p.load((const T *)a.gain + c);
        p.get(w);
        v.x[k].get(f);
        v.dy[k].get(e);
#pragma unroll
        for (int i = 0; i < N; i++)
            f[i] = v.rstd * (e[i] * w[i] - avg - (f[i] - v.mean) * v.rstd * avgx);
        if (res) {
            if (!EARLY)
                v.res[0].load(res + c);
            v.res[EARLY ? k : 0].get(w);
#pragma unroll
            for (int i = 0; i < N; i++)
                f[i] += w[i];
        }
        p.set(f);
        p.store(dx + c);
    }
}

/* With xh = (x - mean) rstd, e = dy gain: dx = rstd (e - avg(e) - xh avg(e xh)), RMSNorm without avg(e). */
template <class T, int K, int LONG, int EARLY>
__device__ __forceinline__ void input_gradient(const Norm &a, const Team<LONG> &team, uint32_t row,
                                               Row<T, K, EARLY> &v, float *slot)
{
    enum { N = Piece<T>::N };
    float e[N], f[N], w[N], sum = 0, sumx = 0;
    const int live = row < a.rows;
    Piece<T> p;
#pragma unroll
    for (int k = 0; k < K; k++) {
        int c = (team.at + k * team.size) * N;
        if (!live || c >= a.n)
            continue;
        p.load((const T *)a.gain + c);
        p.get(w);
        v.x[k].get(f);
        v.dy[k].get(e);
#pragma unroll
        for (int i = 0; i < N; i++) {
            sum += e[i] * w[i];
            sumx += e[i] * w[i] * ((f[i] - v.mean) * v.rstd);
        }
    }
    const float2 sums = two_sums<LONG>(team, sum, sumx, slot);
    const float avg = a.kind == NORM_LAYER ? sums.x / (float)a.n : 0, avgx = sums.y / (float)a.n;
    if (live)
        write_gradient<T, K, LONG, EARLY>(a, team, row, avg, avgx, v);
}

/* Writes a block's sums of gain or bias to its row of `part`. The teams of short rows have the same columns;
 * their sums are added in order of the teams. */
template <int K, int N, int LONG>
__device__ __forceinline__ void write_part(const Norm &a, const Team<LONG> &team, float *part,
                                           float (*sum)[N])
{
    float *all = (float *)shared;
    const int teams = LONG ? 1 : (int)blockDim.x / team.size, which = (int)threadIdx.x / team.size;
    part += (int64_t)blockIdx.x * a.n;
    if (!LONG)
        __syncthreads();       /* the memory may hold the sums written before */
#pragma unroll
    for (int k = 0; k < K; k++) {
        int c = (team.at + k * team.size) * N;
        if (c >= a.n)
            continue;
        if (LONG)
            put_floats<N>(part + c, sum[k]);
        else
#pragma unroll
            for (int i = 0; i < N; i++)
                all[which * a.n + c + i] = sum[k][i];
    }
    if (LONG)
        return;
    __syncthreads();
    for (int c = (int)threadIdx.x; c < a.n; c += (int)blockDim.x) {
        float s = 0;
        for (int t = 0; t < teams; t++)
            s += all[t * a.n + c];
        part[c] = s;
    }
}

/* A block that has one row at a time loads the next one before it adds up the present one: with all rows'
 * sums in registers too few blocks run at a time to hide the memory's latency. */
template <class T, int K, int LONG, int BIAS>
__global__ void __launch_bounds__(LONG ? 512 : 256, LONG ? 1 : 2) k_norm_bwd(const Norm a)
{
    enum { N = Piece<T>::N, EARLY = K <= 3 || !BIAS };
    const Team<LONG> team(a.lanes);
    const uint32_t step = gridDim.x * (LONG ? 1 : blockDim.x / (unsigned)a.lanes);
    float gain[K][N], bias[BIAS ? K : 1][N], e[N], f[N];
    Row<T, K, EARLY> v, next;
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
        for (int i = 0; i < N; i++)
            gain[k][i] = bias[BIAS ? k : 0][i] = 0;
    const uint32_t within = team.row - team.first;     /* all teams of a block take as many turns */
    int turn = 0;
    if (LONG)
        take_row<T, K, LONG, EARLY>(next, a, team, team.row);
    for (uint32_t row = team.row; row - within < a.rows; row += step, turn ^= 1) {
        if (LONG)
            v = next;
        take_row<T, K, LONG, EARLY>(LONG ? next : v, a, team, LONG ? row + step : row);
        input_gradient<T, K, LONG, EARLY>(a, team, row, v, (float *)shared + 64 * turn);
#pragma unroll
        for (int k = 0; k < K; k++) {
            v.x[k].get(f);
            v.dy[k].get(e);
#pragma unroll
            for (int i = 0; i < N; i++) {
                gain[k][i] += e[i] * ((f[i] - v.mean) * v.rstd);
                if (BIAS)
                    bias[BIAS ? k : 0][i] += e[i];
            }
        }
    }
    write_part<K, N, LONG>(a, team, a.part[0], gain);
    if (BIAS)
        write_part<BIAS ? K : 1, N, LONG>(a, team, a.part[1], bias);
}

/* The gradient of the input alone, of rows that are too long for the sums to be in registers too. */
template <class T> __global__ void __launch_bounds__(1024) k_norm_bwd_x(const Norm a)
{
    const Team<1> team(WARP);
    Row<T, 4, 0> v;
    take_row<T, 4, 1, 0>(v, a, team, team.row);
    input_gradient<T, 4, 1, 0>(a, team, team.row, v, (float *)shared);
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

/* Two blocks an SM of an H200; of fewer than 256 threads, as many as have 512 threads, for which an SM has
 * registers. Each takes four turns or more: a block writes its sums of all columns. */
static const int64_t SMS = 132, BWD_THREADS = 512, BWD_TURNS = 4;
static int64_t bwd_blocks(const Plan &p)
{
    const int64_t each = p.threads < BWD_THREADS / 2 ? BWD_THREADS / p.threads : 2;
    const int64_t few = ceil_div(p.blocks, BWD_TURNS);
    return few < SMS * each ? few : SMS * each;
}

template <class T, int BIAS> static void launch_bwd(Cuda *c, const Plan &p, const Norm &a, unsigned grid)
{
    const unsigned block = (unsigned)p.threads;
    const size_t teams = sizeof(float) * (size_t)(p.threads / p.lanes) * (size_t)a.n;
    if (!p.is_long && p.k == 1)
        LAUNCH((k_norm_bwd<T, 1, 0, BIAS>), grid, block, teams, c->compute, a);
    else if (!p.is_long && a.n <= 3 * WARP * Piece<T>::N)
        LAUNCH((k_norm_bwd<T, 3, 0, BIAS>), grid, block, teams, c->compute, a);
    else if (!p.is_long)
        LAUNCH((k_norm_bwd<T, 4, 0, BIAS>), grid, block, teams, c->compute, a);
    else
        LAUNCH((k_norm_bwd<T, 2, 1, BIAS>), grid, block, 2 * SLOTS, c->compute, a);
}

template <class T> static void launch_bwd_x(Cuda *c, const Plan &p, const Norm &a)
{
    if (p.k == 0)
        LAUNCH((k_norm_bwd_x_any<T>), blocks_of(p.blocks), (unsigned)p.threads, SLOTS, c->compute, a);
    else
        LAUNCH((k_norm_bwd_x<T>), blocks_of(p.blocks), (unsigned)p.threads, SLOTS, c->compute, a);
}

/* norm_fwd; y absent: the statistics alone. */
static void norm_rows(Device *d, Mat y, Mat stats, Mat x, Mat gain, Mat bias, double eps, NormKind kind,
                      int groups)
{
    Norm a = norm_of(x, gain, bias, stats, kind, groups);
    a.ln = y.p, a.ldln = y.ld;
    a.eps = (float)eps;
    if (!a.rows || !a.n)
        return;
    Plan p = plan_of(a.rows, pieces_of(&a, x.type, x, y, x, x), a.n);
    with_type(x.type, [&](auto t) { launch_fwd<decltype(t), 0>(cuda_of(d), p, a); });
}

/* add_norm_fwd; ln absent: without it. */
static void add_norm_rows(Device *d, Mat y, Mat ln, Mat stats, Mat x, Mat res, const Dropout *s, Mat gain,
                          Mat bias, double eps, NormKind kind)
{
    Norm a = add_norm_of(y, ln, stats, x, res, s, gain, bias, eps, kind);
    if (!a.rows || !a.n)
        return;
    Plan p = add_plan_of(&a, s, y, ln, x, res);
    with_type(x.type, [&](auto t) { launch_fwd<decltype(t), 1>(cuda_of(d), p, a); });
}

void cuda_norm_fwd(Device *d, Mat y, Mat stats, Mat x, Mat gain, Mat bias, double eps, NormKind kind,
                   int groups)
{
    BUG_ON(!y.p || y.rows != x.rows || y.cols != x.cols || y.type != x.type);
    norm_rows(d, y, stats, x, gain, bias, eps, kind, groups);
}

void cuda_add_norm_fwd(Device *d, Mat y, Mat ln, Mat stats, Mat x, Mat res, const Dropout *s, Mat gain,
                       Mat bias, double eps, NormKind kind)
{
    BUG_ON(!ln.p);
    add_norm_rows(d, y, ln, stats, x, res, s, gain, bias, eps, kind);
}

void cuda_norm_stats(Device *d, Mat sum, Mat stats, Mat x, Mat res, const Dropout *s, Mat gain, Mat bias,
                     double eps, NormKind kind)
{
    const Mat none = {NULL, 0, 0, 0, x.type};
    if (sum.p)
        add_norm_rows(d, sum, none, stats, x, res, s, gain, bias, eps, kind);
    else
        norm_rows(d, none, stats, x, gain, bias, eps, kind, 1);
}

void cuda_norm_bwd(Device *d, Mat dx, Mat dgain, Mat dbias, Mat dres, Mat dy, Mat x, Mat stats, Mat gain,
                   NormKind kind, int groups)
{
    Mat none = {};
    BUG_ON(dx.rows != x.rows || dx.cols != x.cols || dy.rows != x.rows || dy.cols != x.cols);
    BUG_ON(dx.type != x.type || dy.type != x.type);
    BUG_ON(dres.p && (dres.rows != x.rows || dres.cols != x.cols || dres.type != x.type));
    Norm a = norm_of(x, gain, none, stats, kind, groups);
    BUG_ON(!dgain.p || dgain.cols != gain.cols || !is_gradient(dgain.type, x.type));
    BUG_ON(dbias.p && (dbias.cols != gain.cols || !is_gradient(dbias.type, x.type)));
    a.ln = dx.p, a.ldln = dx.ld;
    a.dy = dy.p, a.lddy = dy.ld;
    a.res = dres.p, a.ldres = dres.ld;
    if (!a.rows || !a.n)
        return;
    Cuda *c = cuda_of(d);
    Plan p = plan_of(a.rows, pieces_of(&a, x.type, x, dx, dy, dres), a.n);
    if (p.k == 0 || (p.is_long && p.k == 4)) {
        cuda_norm_columns(d, dgain, dbias, dy, x, stats, groups);      /* first: dx may lie over dy */
        with_type(x.type, [&](auto t) { launch_bwd_x<decltype(t)>(c, p, a); });
        return;
    }
    const unsigned blocks = blocks_of(bwd_blocks(p));
    const size_t each = (size_t)blocks * (size_t)a.n;
    a.part[0] = (float *)cuda_workspace(c, sizeof(float) * 2 * each);
    a.part[1] = a.part[0] + each;
    a.lanes = p.lanes;
    with_type(x.type, [&](auto t) {
        if (dbias.p)
            launch_bwd<decltype(t), 1>(c, p, a, blocks);
        else
            launch_bwd<decltype(t), 0>(c, p, a, blocks);
    });
    cuda_add_parts(c, dgain, a.part[0], a.n, (int)blocks);
    if (dbias.p)
        cuda_add_parts(c, dbias, a.part[1], a.n, (int)blocks);
}
