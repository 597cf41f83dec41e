/* fp8 -- casts matrices to E4M3 and E5M2 with one scale each (Micikevicius et al. 2022,
 * arXiv:2209.05433) or one a block.
 *
 * cuBLASLt multiplies FP8 along rows only, so one pass over a matrix writes it as it is, transposed, or
 * both. The matrix is stored, or an activation or a norm makes it: its numbers are then rounded to storage
 * first, so that the bits are those of a matrix that was stored. The largest magnitude is an integer maximum
 * of bits, which is exact in any order. With a scale a block, one pass over 128 x 128 numbers finds their
 * scales and casts them. */
#include "act.cuh"
#include "fp8.cuh"
#include "norm.cuh"

extern __shared__ __align__(16) char shared[];

enum { THREADS = 256, TILE = 64, EIGHT = 8, PITCH = TILE + 4, AMAX_BLOCKS = 1024 };
static_assert(TILE * TILE == THREADS * 16, "a thread writes 16 bytes of a transposed tile");

/* Loads eight neighbours as floats; x is a multiple of eight elements. */
template <class T> __device__ __forceinline__ void load_eight(float *f, const T *x)
{
    get_floats<EIGHT>(f, x);
}

/* Where a cast takes its numbers from. get: eight neighbours from column c of row r on, of each of PARTS
 * matrices that lie side by side. */
template <class Type> struct Stored {
    typedef Type T;
    enum { PARTS = 1, STORED = 1 };
    const T *x;
    int64_t ld;
    __device__ __forceinline__ void get(float (&f)[PARTS][EIGHT], int64_t r, int64_t c) const
    {
        load_eight(f[0], x + r * ld + c);
    }
};

template <class Type, int KIND> struct Activated {
    typedef Type T;
    enum { PARTS = 1, STORED = 0 };
    const T *h, *da;
    int64_t ldh, ldda, up;
    __device__ __forceinline__ void get(float (&f)[PARTS][EIGHT], int64_t r, int64_t c) const
    {
        float v[EIGHT];
        load_eight(f[0], h + r * ldh + c);
        if (ACT_GATED(KIND))
            load_eight(v, h + r * ldh + c + up);
#pragma unroll
        for (int k = 0; k < EIGHT; k++)
            f[0][k] = rounded<T>(act_forward<KIND, T>(f[0][k], v[k]));
    }
};

template <class Type, int KIND> struct Gradient {
    typedef Type T;
    enum { PARTS = ACT_GATED(KIND) ? 2 : 1, STORED = 0 };
    const T *h, *da;
    int64_t ldh, ldda, up;
    __device__ __forceinline__ void get(float (&f)[PARTS][EIGHT], int64_t r, int64_t c) const
    {
        float x[EIGHT], v[EIGHT], dup[EIGHT];
        load_eight(x, h + r * ldh + c);
        load_eight(f[0], da + r * ldda + c);
        if (ACT_GATED(KIND))
            load_eight(v, h + r * ldh + c + up);
#pragma unroll
        for (int k = 0; k < EIGHT; k++) {
            act_backward<KIND, T>(&f[0][k], &dup[k], x[k], v[k]);
            f[0][k] = rounded<T>(f[0][k]);
            if (PARTS == 2)
                f[PARTS - 1][k] = rounded<T>(dup[k]);
        }
    }
};

/* Of a norm's input and its statistics. */
template <class Type> struct Normed {
    typedef Type T;
    enum { PARTS = 1, STORED = 0 };
    Norm a;
    __device__ __forceinline__ void get(float (&f)[PARTS][EIGHT], int64_t r, int64_t c) const
    {
        const float *stats = a.stats + r * a.ldstats;
        load_eight(f[0], (const T *)a.x + r * a.ldx + c);
        normed_piece<T>(f[0], a, {stats[0], stats[1]}, (int)c);
#pragma unroll
        for (int k = 0; k < EIGHT; k++)
            f[0][k] = rounded<T>(f[0][k]);
    }
};

template <class From> __global__ void __launch_bounds__(THREADS)
k_fp8_amax(Fp8Scale *s, const From from, int64_t rows, int64_t eights)
{
    uint32_t m = 0;
    const int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x; i < rows * eights; i += step) {
        float f[From::PARTS][EIGHT];
        from.get(f, i / eights, i % eights * EIGHT);
#pragma unroll
        for (int k = 0; k < From::PARTS * EIGHT; k++)
            m = largest_bits(m, f[k / EIGHT][k % EIGHT]);
    }
    note_largest(&s->amax, m, (uint32_t *)shared);
}

/* Returns the scale for a largest magnitude: it becomes the format's largest number. 1 for 0 and not
 * finite. */
__device__ __forceinline__ float scale_for(uint32_t amax, float largest)
{
    return amax == 0 || amax >= 0x7f800000u ? 1.0f : fp8_scale(largest, bits_float(amax));
}

/* Casts one tile of each part a block: tile (blockIdx.x / column tiles, blockIdx.x % column tiles). If x is
 * not finite, the scale of its products becomes NaN, because E4M3 has no infinity.
 *   y      out     [rows, PARTS cols]  or NULL; cols is a multiple of 16
 *   yt     out     [PARTS cols, padded]  or NULL; padded: rows padded by fp8_padded
 *   s      in/out                the scale
 *   found  in                    bool: s->amax is x's, and sets the scale; else s->scale is used, or 1 */
template <class From, Fp8Format F>
__global__ void __launch_bounds__(THREADS)
    k_fp8_cast(unsigned char *y, unsigned char *yt, const From from, int64_t rows, int64_t padded,
               int64_t cols, Fp8Scale *s, int found)
{
    enum { PARTS = From::PARTS };
    unsigned char *tile = (unsigned char *)shared;         /* [PARTS][TILE][PITCH] */
    const int64_t across = (cols + TILE - 1) / TILE;
    const int64_t row0 = blockIdx.x / across * TILE, col0 = blockIdx.x % across * TILE;
    const uint32_t amax = found ? s->amax : 0;
    const float scale = found ? scale_for(amax, Format<F>::largest) : s->scale > 0 ? s->scale : 1.0f;
    const int c = (int)threadIdx.x % (TILE / EIGHT) * EIGHT;
    uint32_t m = 0;
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        s->largest = Format<F>::largest;
        s->inverse = amax >= 0x7f800000u ? bits_float(0x7fffffffu) : 1 / scale;
        if (found)
            s->seen = amax > s->seen ? amax : s->seen;
    }
    for (int r = (int)threadIdx.x / (TILE / EIGHT); r < TILE; r += THREADS / (TILE / EIGHT)) {
        float f[PARTS][EIGHT];
        if (row0 + r >= padded || col0 + c >= cols)
            continue;
        for (int k = 0; k < PARTS * EIGHT; k++)
            f[k / EIGHT][k % EIGHT] = 0;
        if (row0 + r < rows)
            from.get(f, row0 + r, col0 + c);
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
            for (int k = 0; k < EIGHT; k++)
                m = largest_bits(m, f[p][k]);
            unsigned char *at = y && row0 + r < rows ? y + ((row0 + r) * PARTS + p) * cols + col0 + c : NULL;
            cast_eight<F>(tile + (p * TILE + r) * PITCH + c, at, f[p], scale);
        }
    }
    if (yt) {
        __syncthreads();
        const int column = (int)threadIdx.x / 4, first = (int)threadIdx.x % 4 * 16;
        for (int p = 0; p < PARTS && col0 + column < cols && row0 + first < padded; p++)
            turn_sixteen(yt + (p * cols + col0 + column) * padded + row0 + first,
                         tile + (p * TILE + first) * PITCH + column, PITCH);
    }
    if (!found)
        note_largest(&s->seen, m, (uint32_t *)shared);
}

/* ---- blocks ---- */

enum { BLOCK = FP8_BLOCK, BLOCK_PITCH = BLOCK + 8, EACH_ROW = BLOCK / EIGHT, HALF = BLOCK / 2 };
static_assert(2 * BLOCK == THREADS, "two threads a column");

/* A matrix that blocks are written to, and their inverse scales, `pitch` of them apart, as of Mat8. p NULL:
 * none. */
struct Blocked {
    unsigned char *p, *inverse;
    int64_t rows, cols, pitch;
};

/* Tiles of scales that reach over the matrix are zeros there. */
static Blocked blocked(Device *d, unsigned char *p, int64_t rows, int64_t cols, Fp8Scaling scaling)
{
    Blocked b = {p, p ? p + rows * cols : NULL, rows, cols, fp8_pitch(rows, cols, scaling)};
    if (p && scaling == FP8_MX && (rows % BLOCK || cols % BLOCK))
        d->zero(d, b.inverse, fp8_scale_bytes(rows, cols, scaling));
    return b;
}

/* Returns the scale for numbers up to `amax`, and with `notes` stores its inverse as that of the block of
 * element (r, c). */
template <Fp8Format F, Fp8Scaling S>
__device__ __forceinline__ float block_scale(const Blocked &y, uint32_t amax, int64_t r, int64_t c, int notes)
{
    const int e = fp8_block_exponent(amax, F, S);
    if (notes)
        fp8_block_put(y.inverse, fp8_block_at(y.pitch, S, r, c), S, e);
    return fp8_block_scale(e);
}

/* Loads 128 x 128 numbers, and casts their rows to y if they have scales of their own. Returns this thread's
 * largest magnitude. */
template <class From, Fp8Format F, Fp8Scaling S>
__device__ __forceinline__ uint32_t load_block(typename From::T *tile, const Blocked &y, const From &from,
                                               int64_t row0, int64_t col0, int64_t cols, int part)
{
    const int c = (int)threadIdx.x % EACH_ROW * EIGHT, across = fp8_across(S);
    uint32_t most = 0;
    for (int r = (int)threadIdx.x / EACH_ROW; r < BLOCK; r += THREADS / EACH_ROW) {
        const int live = row0 + r < y.rows && col0 + c < cols;
        float f[From::PARTS][EIGHT];
        uint32_t m = 0;
        for (int k = 0; k < From::PARTS * EIGHT; k++)
            f[k / EIGHT][k % EIGHT] = 0;
        if (live)
            from.get(f, row0 + r, col0 + c);
#pragma unroll
        for (int k = 0; k < EIGHT; k++) {
            const float x = From::PARTS == 2 && part ? f[From::PARTS - 1][k] : f[0][k];
            f[0][k] = x;
            m = largest_bits(m, x);
            from_float(tile + r * BLOCK_PITCH + c + k, x);
        }
        most = m > most ? m : most;
        for (int o = S == FP8_SQUARES ? 0 : across / EIGHT / 2; o; o >>= 1) {
            uint32_t other = __shfl_xor_sync(EVERY_LANE, m, o);
            m = other > m ? other : m;
        }
        if (S != FP8_SQUARES && live && y.p) {
            const int64_t at = part * cols + col0 + c;
            const float scale = block_scale<F, S>(y, m, row0 + r, at, c % across == 0);
            uint2 both = {cast_four<F>(f[0], scale), cast_four<F>(f[0] + 4, scale)};
            *(uint2 *)(y.p + (row0 + r) * y.cols + at) = both;
        }
    }
    return most;
}

/* Returns the largest magnitude of n numbers of a column; of FP8_VECTORS, of those of two threads. */
template <Fp8Scaling S, class T> __device__ __forceinline__ uint32_t column_largest(const T *tile, int n)
{
    uint32_t m = 0;
    for (int r = 0; r < n; r++)
        m = largest_bits(m, to_float(tile[r * BLOCK_PITCH]));
    if (S == FP8_VECTORS) {
        uint32_t other = __shfl_xor_sync(EVERY_LANE, m, 1);
        m = other > m ? other : m;
    }
    return m;
}

/* Casts 16 x n numbers of a block to rows of `to`, with the numbers of a row `step` apart in the tile. */
template <Fp8Format F, class T>
__device__ __forceinline__ void cast_sixteens(unsigned char *to, const T *from, int step, int n, float scale)
{
    for (int i = 0; i < n; i += 16) {
        uint32_t word[4];
#pragma unroll
        for (int w = 0; w < 4; w++) {
            float f[4];
#pragma unroll
            for (int k = 0; k < 4; k++)
                f[k] = to_float(from[(i + w * 4 + k) * step]);
            word[w] = cast_four<F>(f, scale);
        }
        uint4 all = {word[0], word[1], word[2], word[3]};
        *(uint4 *)(to + i) = all;
    }
}

/* Casts 128 x 128 numbers of one part: square (blockIdx.x / squares across, blockIdx.x % squares across) of
 * part blockIdx.y. Two threads cast a column to a row of yt, and with FP8_SQUARES a row to one of y.
 *   cols  in  columns of a part */
template <class From, Fp8Format F, Fp8Scaling S>
__global__ void __launch_bounds__(THREADS)
    k_fp8_blocks(const Blocked y, const Blocked yt, const From from, int64_t cols)
{
    typedef typename From::T T;
    enum { SQUARE = S == FP8_SQUARES, EACH = S == FP8_MX ? 32 : HALF };
    T *tile = (T *)shared;                                 /* [BLOCK][BLOCK_PITCH] */
    uint32_t *slot = (uint32_t *)(tile + BLOCK * BLOCK_PITCH);
    const int64_t across = (cols + BLOCK - 1) / BLOCK;
    const int64_t row0 = blockIdx.x / across * BLOCK, col0 = blockIdx.x % across * BLOCK;
    const int part = (int)blockIdx.y, line = (int)threadIdx.x / 2, half = (int)threadIdx.x % 2 * HALF;
    const int64_t column0 = part * cols + col0;
    uint32_t most = load_block<From, F, S>(tile, y, from, row0, col0, cols, part);
    if (SQUARE) {
        most = block_largest(most, slot);
        if (threadIdx.x == 0)
            slot[0] = most;
    }
    __syncthreads();
    if (SQUARE) {
        const int64_t left = cols - col0 - half, n = left < HALF ? left : (int64_t)HALF;
        most = slot[0];
        if (y.p && row0 + line < y.rows && n > 0) {
            float scale = block_scale<F, S>(y, most, row0, column0, threadIdx.x == 0);
            cast_sixteens<F>(y.p + (row0 + line) * y.cols + column0 + half, tile + line * BLOCK_PITCH + half,
                             1, (int)n, scale);
        }
    }
    for (int r0 = half; r0 < half + HALF; r0 += EACH) {
        if (!SQUARE)
            most = column_largest<S>(tile + r0 * BLOCK_PITCH + line, EACH);
        const int64_t left = yt.cols - row0 - r0, n = left < EACH ? left : (int64_t)EACH;
        const int notes = SQUARE ? threadIdx.x == 0 : S == FP8_MX || half == 0;
        if (yt.p && col0 + line < cols) {
            float scale = block_scale<F, S>(yt, most, column0 + (SQUARE ? 0 : line), row0 + r0, notes);
            if (n > 0)
                cast_sixteens<F>(yt.p + (column0 + line) * yt.cols + row0 + r0,
                                 tile + r0 * BLOCK_PITCH + line, BLOCK_PITCH, (int)n, scale);
        }
    }
}

template <Fp8Format F, class From>
static void cast_blocks(Device *d, unsigned char *y, unsigned char *yt, const From &from, int64_t rows,
                        int64_t cols, Fp8Scaling scaling)
{
    const int64_t wide = From::PARTS * cols, padded = fp8_padded(rows, scaling);
    const size_t bytes = BLOCK * BLOCK_PITCH * sizeof(typename From::T) + WARP * sizeof(uint32_t);
    Blocked to = blocked(d, y, rows, wide, scaling), turned = blocked(d, yt, wide, padded, scaling);
    BUG_ON(From::PARTS > 1 && cols % fp8_across(scaling));
    dim3 grid = blocks_of(ceil_div(rows, BLOCK) * ceil_div(cols, BLOCK));
    grid.y = From::PARTS;
    BUG_ON(scaling == FP8_SQUARES && !From::STORED);
    if constexpr (From::STORED)
        if (scaling == FP8_SQUARES)
            LAUNCH((k_fp8_blocks<From, F, FP8_SQUARES>), grid, THREADS, bytes, cuda_stream(d), to, turned,
                   from, cols);
    if (scaling == FP8_VECTORS)
        LAUNCH((k_fp8_blocks<From, F, FP8_VECTORS>), grid, THREADS, bytes, cuda_stream(d), to, turned, from,
               cols);
    if (scaling == FP8_MX)
        LAUNCH((k_fp8_blocks<From, F, FP8_MX>), grid, THREADS, bytes, cuda_stream(d), to, turned, from, cols);
}

/* Casts rows x cols numbers of each part of `from`. */
template <Fp8Format F, class From>
static void cast(Device *d, void *y, void *yt, const From &from, int64_t rows, int64_t cols, Fp8Scale *s,
                 Fp8Scaling scaling)
{
    int64_t tiles = ceil_div(rows, TILE) * ceil_div(cols, TILE), eights = cols / EIGHT;
    int64_t blocks = ceil_div(rows * eights, THREADS);
    if (fp8_blocked(scaling)) {
        cast_blocks<F>(d, (unsigned char *)y, (unsigned char *)yt, from, rows, cols, scaling);
        return;
    }
    if (scaling == FP8_OWN)
        LAUNCH((k_fp8_amax<From>), blocks_of(blocks < AMAX_BLOCKS ? blocks : (int64_t)AMAX_BLOCKS), THREADS,
               THREADS / WARP * sizeof(uint32_t), cuda_stream(d), s, from, rows, eights);
    LAUNCH((k_fp8_cast<From, F>), blocks_of(tiles), THREADS, From::PARTS * TILE * PITCH, cuda_stream(d),
           (unsigned char *)y, (unsigned char *)yt, from, rows, fp8_padded(rows, scaling), cols, s,
           scaling == FP8_OWN);
}

void cuda_fp8_cast(Device *d, void *y, void *yt, Mat x, Fp8Scale *s, Fp8Format format, Fp8Scaling scaling)
{
    cuda_fp8_check(cuda_of(d), scaling);
    BUG_ON(x.cols % 16 || !aligned(x) || !aligned(y) || !aligned(yt));
    if (!x.rows || !x.cols)
        return;
    if (scaling == FP8_OWN)
        d->zero(d, &s->amax, sizeof s->amax);
    with_sixteen(x.type, [&](auto t) {
        typedef decltype(t) T;
        Stored<T> from = {(const T *)x.p, x.ld};
        if (format == E4M3)
            cast<E4M3>(d, y, yt, from, x.rows, x.cols, s, scaling);
        else
            cast<E5M2>(d, y, yt, from, x.rows, x.cols, s, scaling);
    });
}

template <class T, int KIND>
static void cast_act(Device *d, void *y, void *yt, Mat da, Mat h, int64_t cols, Fp8Scale *s, Fp8Format format,
                     Fp8Scaling scaling)
{
    if (da.rows) {
        Gradient<T, KIND> from = {(const T *)h.p, (const T *)da.p, h.ld, da.ld, cols};
        if (format == E5M2)
            cast<E5M2>(d, y, yt, from, h.rows, cols, s, scaling);
        else
            cast_blocks<E4M3>(d, (unsigned char *)y, (unsigned char *)yt, from, h.rows, cols, scaling);
    } else {
        Activated<T, KIND> from = {(const T *)h.p, NULL, h.ld, 0, cols};
        cast<E4M3>(d, y, yt, from, h.rows, cols, s, scaling);
    }
}

void cuda_fp8_act(Device *d, void *y, void *yt, Mat da, Mat h, ActKind kind, Fp8Scale *s, Fp8Format f,
                  Fp8Scaling scaling)
{
    const int64_t cols = h.cols / (act_gated(kind) ? 2 : 1);
    cuda_fp8_check(cuda_of(d), scaling);
    BUG_ON(cols % 16 || !aligned(h) || !aligned(da) || !aligned(y) || !aligned(yt));
    BUG_ON(da.rows && (da.rows != h.rows || da.cols != cols));
    BUG_ON(da.rows ? f == E4M3 && !fp8_blocked(scaling) : f != E4M3);
    if (!h.rows || !cols)
        return;
    if (scaling == FP8_OWN)
        d->zero(d, &s->amax, sizeof s->amax);
    with_sixteen(h.type, [&](auto t) {
        typedef decltype(t) T;
        switch (kind) {
        case ACT_GELU: cast_act<T, ACT_GELU>(d, y, yt, da, h, cols, s, f, scaling); return;
        case ACT_GELU_TANH: cast_act<T, ACT_GELU_TANH>(d, y, yt, da, h, cols, s, f, scaling); return;
        case ACT_SWIGLU: cast_act<T, ACT_SWIGLU>(d, y, yt, da, h, cols, s, f, scaling); return;
        case ACT_GEGLU: cast_act<T, ACT_GEGLU>(d, y, yt, da, h, cols, s, f, scaling); return;
        case ACT_RELU: cast_act<T, ACT_RELU>(d, y, yt, da, h, cols, s, f, scaling); return;
        case ACT_SQUARED_RELU: cast_act<T, ACT_SQUARED_RELU>(d, y, yt, da, h, cols, s, f, scaling); return;
        }
        BUG_ON("unknown activation");
    });
}

/* One pass where the scale is known and rows are of a length that a block holds; else a pass makes the
 * statistics, and the cast reads the norm's input again. */
void cuda_fp8_norm(Device *d, void *y, void *yt, Mat sum, Mat stats, Mat x, Mat res, const Dropout *drop,
                   Mat gain, Mat bias, double eps, NormKind kind, Fp8Scale *s, Fp8Scaling scaling)
{
    const Mat in = sum.p ? sum : x;
    cuda_fp8_check(cuda_of(d), scaling);
    BUG_ON(x.cols % 16 || !aligned(in) || !aligned(gain) || !aligned(bias) || !aligned(y) || !aligned(yt));
    if (!x.rows || !x.cols)
        return;
    if (scaling == FP8_DELAYED &&
        cuda_fp8_norm_once(d, y, yt, sum, stats, x, res, drop, gain, bias, eps, kind, s))
        return;
    cuda_norm_stats(d, sum, stats, x, res, drop, gain, bias, eps, kind);
    if (scaling == FP8_OWN)
        d->zero(d, &s->amax, sizeof s->amax);
    with_sixteen(x.type, [&](auto t) {
        Normed<decltype(t)> from = {norm_of(in, gain, bias, stats, kind, 1)};
        cast<E4M3>(d, y, yt, from, x.rows, x.cols, s, scaling);
    });
}

/* fp8_next; a block a scale. */
__global__ void __launch_bounds__(THREADS) k_fp8_next(Fp8Scale *all, int length)
{
    enum { EACH = FP8_HISTORY / THREADS };
    Fp8Scale *s = &all[blockIdx.x];
    const int t = (int)threadIdx.x;
    float kept[EACH];
    uint32_t top = s->seen;
    if (s->largest == 0)
        return;
    for (int k = 0; k < EACH; k++) {
        int i = k * THREADS + t;
        kept[k] = s->history[i];
        if (i + 1 < length && float_bits(kept[k]) > top)
            top = float_bits(kept[k]);
    }
    top = block_largest(top, (uint32_t *)shared);      /* has a barrier: all threads have read the history */
    for (int k = 0; k < EACH; k++)
        if (k * THREADS + t + 1 < FP8_HISTORY)
            s->history[k * THREADS + t + 1] = kept[k];
    if (t == 0) {
        s->history[0] = bits_float(s->seen);
        s->seen = 0;
        if (top > 0 && top < 0x7f800000u)
            s->scale = fp8_scale(s->largest, bits_float(top));
    }
}

void cuda_fp8_next(Device *d, Fp8Scale *s, int64_t n, int64_t length, int most_recent)
{
    BUG_ON(length < 1 || length > FP8_HISTORY);
    if (n)
        LAUNCH(k_fp8_next, blocks_of(n), THREADS, THREADS / WARP * sizeof(uint32_t), cuda_stream(d), s,
               most_recent ? 1 : (int)length);
}
