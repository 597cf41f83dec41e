/* act -- activations of the feed-forward layer, forward and backward: one pass, two 16-byte pieces a
 * thread.
 *
 * Formulas and their sources: kernels/cpu/isa/act.c. With elements of two bytes, more than about 20
 * instructions an element are slower than memory. The normal distribution is therefore one polynomial
 * and one exponential. */
#include "act.cuh"

struct Act {
    void *out;                 /* a, or dh */
    const void *h, *da;
    int64_t ldout, ldh, ldda, up;      /* up: columns from an element of the gate to its factor */
    uint32_t total;            /* pieces of N columns */
    Divider per_row;           /* pieces of a row */
};

enum { THREADS = 256, EACH = 2 };  /* pieces of a thread, THREADS apart */

template <class T, int N, int KIND> __global__ void __launch_bounds__(THREADS) k_act_fwd(const Act j)
{
    enum { GATED = ACT_GATED(KIND) };
    uint32_t first = blockIdx.x * (THREADS * EACH) + threadIdx.x;
    Chunk<T, N> x[EACH], up[GATED ? EACH : 1];
#pragma unroll
    for (int u = 0; u < EACH; u++) {
        uint32_t i = first + u * THREADS, r = i / j.per_row;
        const T *h = (const T *)j.h + (int64_t)r * j.ldh + (int64_t)(i - r * j.per_row.d) * N;
        if (i < j.total) {
            x[u].load(h);
            if (GATED)
                up[GATED ? u : 0].load(h + j.up);
        }
    }
#pragma unroll
    for (int u = 0; u < EACH; u++) {
        uint32_t i = first + u * THREADS, r = i / j.per_row;
        float f[N], v[N];
        if (i >= j.total)
            continue;
        x[u].get(f);
        if (GATED)
            up[GATED ? u : 0].get(v);
#pragma unroll
        for (int k = 0; k < N; k++)
            f[k] = act_forward<KIND, T>(f[k], v[k]);
        put_floats<N>((T *)j.out + (int64_t)r * j.ldout + (int64_t)(i - r * j.per_row.d) * N, f);
    }
}

template <class T, int N, int KIND> __global__ void __launch_bounds__(THREADS) k_act_bwd(const Act j)
{
    enum { GATED = ACT_GATED(KIND) };
    uint32_t first = blockIdx.x * (THREADS * EACH) + threadIdx.x;
    Chunk<T, N> x[EACH], g[EACH], up[GATED ? EACH : 1];
#pragma unroll
    for (int u = 0; u < EACH; u++) {
        uint32_t i = first + u * THREADS, r = i / j.per_row;
        int64_t c = (int64_t)(i - r * j.per_row.d) * N;
        const T *h = (const T *)j.h + (int64_t)r * j.ldh + c;
        if (i < j.total) {
            x[u].load(h);
            g[u].load((const T *)j.da + (int64_t)r * j.ldda + c);
            if (GATED)
                up[GATED ? u : 0].load(h + j.up);
        }
    }
#pragma unroll
    for (int u = 0; u < EACH; u++) {
        uint32_t i = first + u * THREADS, r = i / j.per_row;
        float f[N], e[N], v[N], dup[N];
        if (i >= j.total)
            continue;
        T *out = (T *)j.out + (int64_t)r * j.ldout + (int64_t)(i - r * j.per_row.d) * N;
        x[u].get(f);
        g[u].get(e);
        if (GATED)
            up[GATED ? u : 0].get(v);
#pragma unroll
        for (int k = 0; k < N; k++)
            act_backward<KIND, T>(&e[k], &dup[k], f[k], v[k]);
        put_floats<N>(out, e);
        if (GATED)
            put_whole<N>(out + j.up, dup);
    }
}

template <class T, int N, int KIND> static void launch(Cuda *c, const Act &j, int backward)
{
    unsigned grid = blocks_of(ceil_div(j.total, THREADS * EACH));
    if (backward)
        LAUNCH((k_act_bwd<T, N, KIND>), grid, THREADS, 0, c->compute, j);
    else
        LAUNCH((k_act_fwd<T, N, KIND>), grid, THREADS, 0, c->compute, j);
}

template <class T, int N> static void launch_kind(Cuda *c, const Act &j, int backward, ActKind kind)
{
    switch (kind) {
    case ACT_GELU: launch<T, N, ACT_GELU>(c, j, backward); return;
    case ACT_GELU_TANH: launch<T, N, ACT_GELU_TANH>(c, j, backward); return;
    case ACT_SWIGLU: launch<T, N, ACT_SWIGLU>(c, j, backward); return;
    case ACT_GEGLU: launch<T, N, ACT_GEGLU>(c, j, backward); return;
    case ACT_RELU: launch<T, N, ACT_RELU>(c, j, backward); return;
    case ACT_SQUARED_RELU: launch<T, N, ACT_SQUARED_RELU>(c, j, backward); return;
    }
    BUG_ON("unknown activation");
}

/* The body of both ops.
 *   a    in/out  [T, F]         act_fwd's a, or act_bwd's da
 *   out  out     as a, or as h  act_fwd's a, or act_bwd's dh
 *   da   in      [T, F]         act_bwd's da; absent: this is act_fwd */
static void run(Device *d, Mat a, Mat h, Mat out, Mat da, ActKind kind)
{
    int64_t rows = a.rows, f = a.cols, n = 16 / (int64_t)dtype_size(a.type);
    BUG_ON(a.rows != h.rows || h.cols != act_width(kind, f) || h.type != a.type || out.type != a.type);
    if (!rows || !f)
        return;
    if (!aligned(a) || !aligned(h) || !aligned(out) || f % n)
        n = 1;
    if (!act_gated(kind) && a.ld == f && h.ld == f && out.ld == f)
        f *= rows, rows = 1;           /* one long row: nothing to divide by */
    BUG_ON(rows * f / n >= (int64_t)1 << 31);
    Act j = {out.p, h.p, da.p, out.ld, h.ld, da.ld, f, (uint32_t)(rows * f / n), divider(f / n)};
    with_type(a.type, [&](auto t) {
        typedef decltype(t) T;
        if (n > 1)
            launch_kind<T, Piece<T>::N>(cuda_of(d), j, da.p != NULL, kind);
        else
            launch_kind<T, 1>(cuda_of(d), j, da.p != NULL, kind);
    });
}

void cuda_act_fwd(Device *d, Mat a, Mat h, ActKind kind)
{
    Mat none = {};
    run(d, a, h, a, none, kind);
}

void cuda_act_bwd(Device *d, Mat dh, Mat da, Mat h, ActKind kind)
{
    BUG_ON(dh.rows != h.rows || dh.cols != h.cols);
    run(d, da, h, dh, da, kind);
}
