/* fp8_norm -- a norm that writes FP8, its transpose, and the sum that it normalises, in one pass
 *
 * A row of the transpose is written by pieces of 16 numbers of one column, so a block does 16 rows of the
 * norm. As many teams of threads as fit do a row each at a time, with the same threads and sums as
 * k_norm_fwd, so that the bits are the same. A team loads its next row before it sums the one it has. */
#include "fp8.cuh"
#include "norm.cuh"

extern __shared__ __align__(16) char shared[];

enum { ROWS = 16, KEPT = 2, MOST = 1024, GAP = 4 };

/* The threads of a block that do one row. */
struct RowTeam {
    int at, size;
    uint32_t row;
    __device__ __forceinline__ float sum(float x, float *slot) const
    {
        const int lane = (int)threadIdx.x % WARP, warps = size / WARP;
        x = warp_sum(x);
        if (lane == 0)
            slot[threadIdx.x / WARP] = x;
        __syncthreads();
        return warp_sum(lane < warps ? slot[((int)threadIdx.x - at) / WARP + lane] : 0);
    }
};

/* Stores a team's row as FP8 in the tile's row and in y. Returns the larger of m and the row's largest
 * magnitude. */
template <class T>
__device__ __forceinline__ uint32_t cast_row(unsigned char *tile, unsigned char *y, const Norm &a,
                                             const RowTeam &team, const Piece<T> *v, float2 mean, float scale,
                                             uint32_t m)
{
    enum { N = Piece<T>::N };
    const int live = team.row < a.rows;
#pragma unroll
    for (int k = 0; k < KEPT; k++) {
        const int c = (team.at + k * team.size) * N;
        float f[N];
        if (c >= a.n)
            continue;
        v[k].get(f);
        normed_piece<T>(f, a, mean, c);
#pragma unroll
        for (int i = 0; i < N; i++) {
            f[i] = live ? rounded<T>(f[i]) : 0;
            m = largest_bits(m, f[i]);
        }
        cast_eight<E4M3>(tile + c, y && live ? y + (int64_t)team.row * a.n + c : NULL, f, scale);
    }
    return m;
}

/* size: threads of a row. Other arguments as k_fp8_cast's. */
template <class T, int ADD>
__global__ void __launch_bounds__(MOST)
    k_fp8_norm(unsigned char *y, unsigned char *yt, const Norm a, int64_t padded, int size, Fp8Scale *s)
{
    float *slot = (float *)shared;             /* [3][32]: of means, and of spreads by turns */
    unsigned char *tile = (unsigned char *)(slot + 3 * WARP);      /* [ROWS][a.n + GAP] */
    const int teams = (int)blockDim.x / size, pitch = a.n + GAP;
    const uint32_t row0 = blockIdx.x * ROWS;
    const float scale = s->scale > 0 ? s->scale : 1.0f;
    RowTeam team = {(int)threadIdx.x % size, size, row0 + threadIdx.x / (unsigned)size};
    Piece<T> v[KEPT], w[ADD ? KEPT : 1], next[KEPT], next_w[ADD ? KEPT : 1];
    uint32_t m = 0;
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        s->largest = Format<E4M3>::largest;
        s->inverse = 1 / scale;
    }
    load_row<T, KEPT, ADD>(a, team, team.row, 0, next, next_w);
    for (int turn = 0; turn * teams < ROWS; turn++) {
        RowTeam after = team;
        after.row += (uint32_t)teams;
#pragma unroll
        for (int k = 0; k < KEPT; k++) {
            v[k] = next[k];
            w[ADD ? k : 0] = next_w[ADD ? k : 0];
        }
        if ((turn + 1) * teams < ROWS)
            load_row<T, KEPT, ADD>(a, after, after.row, 0, next, next_w);
        if (ADD)
            add_row<T, KEPT>(a, team, team.row, v, w);
        const float2 mean = moments<T, KEPT>(a, team, v, slot, slot + (1 + turn % 2) * WARP);
        m = cast_row<T>(tile + (team.row - row0) * (unsigned)pitch, y, a, team, v, mean, scale, m);
        if (team.at == 0 && team.row < a.rows) {
            float *stats = a.stats + (int64_t)team.row * a.ldstats;
            stats[0] = mean.x;
            stats[1] = mean.y;
        }
        team = after;
    }
    __syncthreads();
    for (int c = (int)threadIdx.x; yt && c < a.n; c += (int)blockDim.x)
        turn_sixteen(yt + c * padded + row0, tile + c, pitch);
    note_largest(&s->seen, m, (uint32_t *)slot);
}

static size_t shared_bytes(int n) { return 3 * WARP * sizeof(float) + (size_t)(ROWS * (n + GAP)); }

int cuda_fp8_norm_once(Device *d, void *y, void *yt, Mat sum, Mat stats, Mat x, Mat res, const Dropout *drop,
                       Mat gain, Mat bias, double eps, NormKind kind, Fp8Scale *s)
{
    const Cuda *c = cuda_of(d);
    const Mat none = {NULL, 0, 0, 0, x.type};
    Norm a = sum.p ? add_norm_of(sum, none, stats, x, res, drop, gain, bias, eps, kind)
                   : norm_of(x, gain, bias, stats, kind, 1);
    Plan p = sum.p ? add_plan_of(&a, drop, sum, none, x, res)
                   : plan_of(a.rows, pieces_of(&a, x.type, x, x, x, x), a.n);
    const size_t bytes = shared_bytes(a.n);
    int teams = 1;
    if (!p.is_long || p.k != KEPT || bytes > c->shared)
        return 0;
    a.eps = (float)eps;
    const int64_t padded = fp8_padded(x.rows, FP8_DELAYED);
    while (teams < ROWS && 2 * teams * p.threads <= MOST)
        teams *= 2;
    const unsigned grid = blocks_of(ceil_div(x.rows, ROWS)), block = (unsigned)(teams * p.threads);
    with_sixteen(x.type, [&](auto t) {
        typedef decltype(t) T;
        unsigned char *rows = (unsigned char *)y, *turned = (unsigned char *)yt;
        if (sum.p)
            LAUNCH((k_fp8_norm<T, 1>), grid, block, bytes, c->compute, rows, turned, a, padded, p.threads,
                   s);
        else
            LAUNCH((k_fp8_norm<T, 0>), grid, block, bytes, c->compute, rows, turned, a, padded, p.threads,
                   s);
    });
    return 1;
}

template <class T> static void open_type(int bytes)
{
    CUDA_OK(cudaFuncSetAttribute(k_fp8_norm<T, 0>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    CUDA_OK(cudaFuncSetAttribute(k_fp8_norm<T, 1>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
}

void cuda_fp8_open(const Cuda *c)
{
    open_type<Bf16>((int)c->shared);
    open_type<Half>((int)c->shared);
}
