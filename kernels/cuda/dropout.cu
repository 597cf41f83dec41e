/* dropout -- dropout, added to a residual; masks from Philox4x32-10 are the same bits as on the CPU. */
#include "common.cuh"

struct DropoutJob {
    void *y;
    const void *x, *res;
    int64_t ldy, ldx, ldres;
    uint32_t total;            /* pieces of N columns */
    Divider per_row;
    Drop drop;
};

enum { THREADS = 256, EACH = 2 };  /* pieces of a thread, THREADS apart */

template <class T, int N> __global__ void __launch_bounds__(THREADS) k_dropout(const DropoutJob j)
{
    uint32_t first = blockIdx.x * (THREADS * EACH) + threadIdx.x;
    Chunk<T, N> x[EACH], res[EACH];
    float f[N], e[N];
#pragma unroll
    for (int u = 0; u < EACH; u++) {
        uint32_t i = first + u * THREADS, r = i / j.per_row;
        int64_t c = (int64_t)(i - r * j.per_row.d) * N;
        if (i < j.total) {
            x[u].load((const T *)j.x + (int64_t)r * j.ldx + c);
            if (j.res)
                res[u].load((const T *)j.res + (int64_t)r * j.ldres + c);
        }
    }
#pragma unroll
    for (int u = 0; u < EACH; u++) {
        uint32_t i = first + u * THREADS, r = i / j.per_row, c = (i - r * j.per_row.d) * N;
        if (i >= j.total)
            continue;
        x[u].get(f);
        if (j.drop.on)
            drop<N, 1>(f, j.drop, drop_row(j.drop, r), c);
        if (j.res) {
            res[u].get(e);
#pragma unroll
            for (int k = 0; k < N; k++)
                f[k] += e[k];
        }
        put_floats<N>((T *)j.y + (int64_t)r * j.ldy + c, f);
    }
}

void cuda_dropout_fwd(Device *d, Mat y, Mat x, Mat res, const Dropout *s)
{
    int64_t rows = x.rows, cols = x.cols, n = 16 / (int64_t)dtype_size(x.type);
    BUG_ON(y.rows != rows || y.cols != cols || y.type != x.type);
    BUG_ON(res.p && (res.rows != rows || res.cols != cols || res.type != x.type));
    if (!rows || !cols)
        return;
    DropoutJob j = {y.p, x.p, res.p, y.ld, x.ld, res.ld, 0, {}, drop_of(s)};
    if (!aligned(y) || !aligned(x) || !aligned(res) || cols % n || (j.drop.on && s->col0 % 4))
        n = 1;
    if (!j.drop.on && y.ld == cols && x.ld == cols && (!res.p || res.ld == cols))
        cols *= rows, rows = 1;
    BUG_ON(rows * cols / n >= (int64_t)1 << 31);
    j.total = (uint32_t)(rows * cols / n);
    j.per_row = divider(cols / n);
    with_type(x.type, [&](auto t) {
        typedef decltype(t) T;
        unsigned grid = blocks_of(ceil_div(j.total, THREADS * EACH));
        if (n > 1)
            LAUNCH((k_dropout<T, Piece<T>::N>), grid, THREADS, 0, cuda_of(d)->compute, j);
        else
            LAUNCH((k_dropout<T, 1>), grid, THREADS, 0, cuda_of(d)->compute, j);
    });
}

/* The backward applies the same mask: it is the forward without a residual. */
void cuda_dropout_bwd(Device *d, Mat dx, Mat dy, const Dropout *s)
{
    Mat none = {};
    cuda_dropout_fwd(d, dx, dy, none, s);
}
