/* rope -- rotary positions, in place. A thread turns the same columns of up to HEADS heads of a row, so
 * that it reads their cosines and sines once. */
#include "common.cuh"

struct Rope {
    void *x;
    const float *table;
    const int32_t *position;
    int64_t ldx, ldtable, positions;
    uint32_t total;            /* threads: rows x teams x pieces */
    Divider pieces, teams;     /* pieces of `half` columns; teams of up to HEADS heads in a row */
    int heads, dim, half;      /* half: half of a head's turned columns */
    float sign;                /* what sines are multiplied by; -1 turns back */
};

enum { THREADS = 128, HEADS = 4 };

template <class T, int N> __global__ void __launch_bounds__(THREADS) k_rope(const Rope j)
{
    uint32_t i = blockIdx.x * THREADS + threadIdx.x, q = i / j.pieces, c = (i - q * j.pieces.d) * N;
    uint32_t r = q / j.teams, team = q - r * j.teams.d;
    Chunk<T, N> a[HEADS], b[HEADS];
    float cosine[N], sine[N], u[N], v[N], t;
    if (i >= j.total)
        return;
    T *row = (T *)j.x + (int64_t)r * j.ldx + c;
#pragma unroll
    for (int k = 0; k < HEADS; k++) {
        int head = (int)team + k * (int)j.teams.d;
        if (head < j.heads) {
            a[k].load(row + head * j.dim);
            b[k].load(row + head * j.dim + j.half);
        }
    }
    int64_t p = j.position[r];
    if (p >= 0 && p < j.positions) {
        get_floats<N>(cosine, j.table + p * j.ldtable + c);
        get_floats<N>(sine, j.table + p * j.ldtable + j.half + c);
    } else {
        for (int k = 0; k < N; k++)
            cosine[k] = sine[k] = nanf("");        /* a bug of the caller shows as NaN */
    }
#pragma unroll
    for (int k = 0; k < HEADS; k++) {
        int head = (int)team + k * (int)j.teams.d;
        if (head >= j.heads)
            continue;
        a[k].get(u);
        b[k].get(v);
#pragma unroll
        for (int e = 0; e < N; e++) {
            t = u[e] * cosine[e] - v[e] * (j.sign * sine[e]);
            v[e] = v[e] * cosine[e] + u[e] * (j.sign * sine[e]);
            u[e] = t;
        }
        put_floats<N>(row + head * j.dim, u);
        put_floats<N>(row + head * j.dim + j.half, v);
    }
}

void cuda_rope(Device *d, Mat x, int dim, Mat table, const int32_t *position, int inverse)
{
    int64_t n = 16 / (int64_t)dtype_size(x.type), half = table.cols / 2;
    BUG_ON(dim < 1 || x.cols % dim || table.type != F32 || table.cols % 2 || table.cols > dim);
    if (!x.rows || !x.cols || !half)
        return;
    if (!aligned(x) || !aligned(table) || half % n || dim % n)
        n = 1;
    int64_t heads = x.cols / dim, teams = ceil_div(heads, HEADS), total = x.rows * teams * (half / n);
    BUG_ON(total >= (int64_t)1 << 31);
    Rope j = {x.p,
              (const float *)table.p,
              position,
              x.ld,
              table.ld,
              table.rows,
              (uint32_t)total,
              divider(half / n),
              divider(teams),
              (int)heads,
              dim,
              (int)half,
              inverse ? -1.0f : 1.0f};
    with_type(x.type, [&](auto t) {
        typedef decltype(t) T;
        unsigned grid = blocks_of(ceil_div(total, THREADS));
        if (n > 1)
            LAUNCH((k_rope<T, Piece<T>::N>), grid, THREADS, 0, cuda_of(d)->compute, j);
        else
            LAUNCH((k_rope<T, 1>), grid, THREADS, 0, cuda_of(d)->compute, j);
    });
}
