/* colsum -- gradients that are sums over rows: the norms' gain and bias, and the bias of a linear layer.
 *
 * Rows are cut into parts. A block adds up one part of up to 32 pieces of columns; a second launch adds
 * the parts in order. The cut follows from the shape alone, so the bits are the same on every GPU. A
 * warp reads its columns of a row, several rows ahead; where a row is narrower than a warp (QK norm: one
 * head), it reads several rows at a time. */
#include "common.cuh"

struct ColumnSums {
    const void *dy, *x;
    const float *stats;
    float *part[2];            /* of gain and bias: sums of the parts [parts, n]; NULL: none wanted */
    int64_t lddy, ldx, ldstats;
    uint32_t rows, per_part;   /* rows of the matrix times groups; how many of these make a part */
    int n, pieces, tiles, parts;       /* columns of a group; its pieces; tiles of WARP pieces; parts */
    Divider per_row;           /* groups of a row */
};

enum { THREADS = 256, WARPS = THREADS / WARP, BLOCKS = 528 };

extern __shared__ __align__(16) char shared[];

/* Adds up the columns of a tile, whose `high` rows of partial sums are sum [GAIN, BIAS][high][wide], in
 * order. */
template <int N, int GAIN, int BIAS>
__device__ __forceinline__ void column_parts(const ColumnSums &a, const float *sum, int tile, int part,
                                             int wide, int high)
{
    for (int c = (int)threadIdx.x; c < wide; c += THREADS) {
        int column = tile * WARP * N + c;
        float g = 0, b = 0;
        for (int k = 0; k < high; k++) {
            if (GAIN)
                g += sum[k * wide + c];
            if (BIAS)
                b += sum[(GAIN * high + k) * wide + c];
        }
        if (column >= a.n)
            continue;
        if (GAIN)
            a.part[0][(int64_t)part * a.n + column] = g;
        if (BIAS)
            a.part[1][(int64_t)part * a.n + column] = b;
    }
}

template <class T, int N, int GAIN, int BIAS>
__global__ void __launch_bounds__(THREADS, 4) k_colsum(const ColumnSums a)
{
    enum { AHEAD = GAIN ? 3 : 4 };             /* rows ahead: four blocks an SM have registers for these */
    int tile = (int)blockIdx.x % a.tiles, part = (int)blockIdx.x / a.tiles;
    int across = a.pieces < WARP ? a.pieces : WARP, lane = (int)threadIdx.x % WARP,
        warp = (int)threadIdx.x / WARP;
    int down = WARP / across, sub = lane / across, piece = tile * WARP + lane % across;
    uint32_t end = (uint32_t)(part + 1) * a.per_part, step = (uint32_t)(WARPS * down);
    uint32_t row = (uint32_t)part * a.per_part + (uint32_t)(warp * down + sub);
    float gain[N], bias[N], f[N], e[N], *sum = (float *)shared;
    Chunk<T, N> dy[AHEAD], x[AHEAD];
    float mean[AHEAD], rstd[AHEAD];
    if (end > a.rows)
        end = a.rows;
#pragma unroll
    for (int i = 0; i < N; i++)
        gain[i] = bias[i] = 0;
    for (; sub < down && piece < a.pieces && row < end; row += AHEAD * step) {
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            uint32_t q = row + (uint32_t)k * step, r = q / a.per_row, g = q - r * a.per_row.d;
            int64_t c = (int64_t)g * a.n + (int64_t)piece * N;
            if (q < end) {
                dy[k].load((const T *)a.dy + (int64_t)r * a.lddy + c);
                if (GAIN) {
                    x[k].load((const T *)a.x + (int64_t)r * a.ldx + c);
                    mean[k] = a.stats[(int64_t)r * a.ldstats + 2 * g];
                    rstd[k] = a.stats[(int64_t)r * a.ldstats + 2 * g + 1];
                }
            }
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            if (row + (uint32_t)k * step >= end)
                continue;
            dy[k].get(e);
            if (GAIN)
                x[k].get(f);
#pragma unroll
            for (int i = 0; i < N; i++) {
                if (GAIN)
                    gain[i] += e[i] * ((f[i] - mean[k]) * rstd[k]);
                if (BIAS)
                    bias[i] += e[i];
            }
        }
    }
    int wide = across * N, high = WARPS * down;
    if (sub < down)
#pragma unroll
        for (int i = 0; i < N; i++) {
            int at = (warp * down + sub) * wide + lane % across * N + i;
            if (GAIN)
                sum[at] = gain[i];
            if (BIAS)
                sum[GAIN * high * wide + at] = bias[i];
        }
    __syncthreads();
    column_parts<N, GAIN, BIAS>(a, sum, tile, part, wide, high);
}

/* out += the sums of the parts, 32 columns a block: warp w adds parts w, w + 32, ..; then the sums of the
 * warps are added in order. */
enum { TOTAL_WARPS = 32, TOTAL = TOTAL_WARPS * WARP };
template <class G>
__global__ void __launch_bounds__(TOTAL) k_colsum_total(const float *part, G *out, int n, int parts)
{
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP,
        column = (int)blockIdx.x * WARP + lane;
    float *sum = (float *)shared, s = 0;
    if (column < n)
#pragma unroll 8
        for (int p = warp; p < parts; p += TOTAL_WARPS)
            s += part[(int64_t)p * n + column];
    sum[warp * WARP + lane] = s;
    __syncthreads();
    if (warp || column >= n)
        return;
#pragma unroll
    for (int k = 1; k < TOTAL_WARPS; k++)
        s += sum[k * WARP + lane];
    from_float(out + column, to_float(out[column]) + s);
}

void cuda_add_parts(Cuda *c, Mat out, const float *part, int n, int parts)
{
    const unsigned grid = blocks_of(ceil_div(n, WARP));
    const size_t bytes = sizeof(float) * TOTAL;
    if (out.type == F32)
        LAUNCH((k_colsum_total<float>), grid, TOTAL, bytes, c->compute, part, (float *)out.p, n, parts);
    else
        LAUNCH((k_colsum_total<Bf16>), grid, TOTAL, bytes, c->compute, part, (Bf16 *)out.p, n, parts);
}

template <class T, int N> static void launch(Cuda *c, const ColumnSums &a)
{
    unsigned grid = blocks_of((int64_t)a.tiles * a.parts);
    if (!a.part[0])
        LAUNCH((k_colsum<T, N, 0, 1>), grid, THREADS, sizeof(float) * THREADS * N, c->compute, a);
    else if (!a.part[1])
        LAUNCH((k_colsum<T, N, 1, 0>), grid, THREADS, sizeof(float) * THREADS * N, c->compute, a);
    else
        LAUNCH((k_colsum<T, N, 1, 1>), grid, THREADS, sizeof(float) * THREADS * N * 2, c->compute, a);
}

/* dgain or dbias may be absent; x and stats are used for dgain only. */
static void column_sums(Device *d, Mat dgain, Mat dbias, Mat dy, Mat x, Mat stats, int groups)
{
    Cuda *c = cuda_of(d);
    int64_t n = 16 / (int64_t)dtype_size(dy.type), cols = dy.cols / groups;
    BUG_ON(groups < 1 || dy.cols % groups || dy.rows * groups >= (int64_t)1 << 31);
    BUG_ON(dgain.p && (dgain.cols != cols || !is_gradient(dgain.type, dy.type)));
    BUG_ON(dbias.p && (dbias.cols != cols || !is_gradient(dbias.type, dy.type)));
    if (!dy.rows || !cols)
        return;
    if (!aligned(dy) || !aligned(x) || cols % n)
        n = 1;
    ColumnSums a = {};
    a.dy = dy.p, a.lddy = dy.ld;
    a.x = x.p, a.ldx = x.ld;
    a.stats = (const float *)stats.p, a.ldstats = stats.ld;
    a.rows = (uint32_t)(dy.rows * groups);
    a.n = (int)cols;
    a.pieces = (int)(cols / n);
    a.tiles = (int)ceil_div(a.pieces, WARP);
    a.per_row = divider(groups);
    /* BLOCKS is four blocks an SM of an H200; a part is not so short that its reduction costs more than
     * its rows */
    int64_t most = ceil_div(a.rows, WARPS * 4), parts = BLOCKS / a.tiles;
    parts = parts < 1 ? 1 : parts > most ? most : parts;
    a.per_part = (uint32_t)ceil_div(a.rows, parts);
    a.parts = (int)ceil_div(a.rows, a.per_part);
    float *memory = (float *)cuda_workspace(c, sizeof(float) * 2 * (size_t)a.parts * (size_t)cols);
    a.part[0] = dgain.p ? memory : NULL;
    a.part[1] = dbias.p ? memory + (int64_t)a.parts * cols : NULL;
    with_type(dy.type, [&](auto t) {
        typedef decltype(t) T;
        if (n > 1)
            launch<T, Piece<T>::N>(c, a);
        else
            launch<T, 1>(c, a);
    });
    for (int k = 0; k < 2; k++)
        if (a.part[k])
            cuda_add_parts(c, k ? dbias : dgain, a.part[k], a.n, a.parts);
}

void cuda_norm_columns(Device *d, Mat dgain, Mat dbias, Mat dy, Mat x, Mat stats, int groups)
{
    column_sums(d, dgain, dbias, dy, x, stats, groups);
}

void cuda_bias_bwd(Device *d, Mat db, Mat dy)
{
    Mat none = {};
    BUG_ON(!db.p);
    column_sums(d, none, db, dy, none, none, 1);
}
