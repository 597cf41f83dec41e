/* attention -- what the kernels of attention's forward and backward share: the work of a block, masks,
 * dropout, tiles in shared memory.
 *
 * A block has a tile of rows of one head of one sample: queries, or keys where dk and dv are made. Its
 * warps share the rows, 16 * MT each. Tiles of columns (the keys, or queries) go through shared memory.
 * A block does not load a column tile of which it sees nothing; a warp does not compute one of which its
 * rows see nothing; masks are applied only to tiles that are seen in part. */
#ifndef ATTENTION_CUH
#define ATTENTION_CUH
#include "common.cuh"
#include <ptx.cuh>
#include <initializer_list>

/* The shared memory of a block; tiles start at multiples of 128 bytes. */
extern __shared__ __align__(128) char shared[];

#define ATTENTION_LOG2E 1.44269504088896340736f

/* Positions (device.h) as kernels take them. */
struct Runs {
    int count, stride;
    PositionRun run[POSITION_RUNS];
};

/* An Attention (device.h) as kernels take it. */
struct Shape {
    Runs q, k;
    int batch, window;                         /* window 0: none */
    int heads, kv_heads, group, head0, dim;    /* group = heads / kv_heads */
    int tiles;                                 /* row tiles of a head */
    int section;                               /* heads of a section: see work_at */
    float scale, scale2;                       /* what scores are multiplied by; scale2 = scale * log2 e */
    const int32_t *doc;                        /* Attention.doc_start */
    int64_t doc_rows;                          /* Attention.seq */
    const int64_t *sample;
    uint32_t limit;                            /* p * 2^32 of the dropout; 0: no dropout */
    uint32_t round[10][2];                     /* Philox's key of each round: here it takes no registers */
    float keep;                                /* 1 / (1 - p) */
};

/* A matrix as kernels take it: heads side by side, ld elements from one row to the next. */
template <class T> struct View { T *p; int ld; };
template <class T> static inline View<T> view(Mat m)
{
    BUG_ON(m.type != (Dtype)DtypeOf<T>::value || m.ld >= (int64_t)1 << 31);
    return {static_cast<T *>(m.p), (int)m.ld};
}

/* ---- the work of a block ---- */

/* Returns the work of block x. Heads are done in sections: as many heads as have their keys and values
 * in half of the L2 cache. Within a section the tiles go up; callers number them so that the longest
 * come first, and the multiprocessors end at about the same time. */
struct Work { int tile, b, head; };
__device__ __forceinline__ Work work_at(const Shape &s, int heads, int x)
{
    int items = s.batch * heads, first = x / (s.section * s.tiles) * s.section;
    int rest = x - first * s.tiles, n = min(s.section, items - first), item = first + rest % n;
    Work w = {rest / n, item / heads, item % heads};
    return w;
}

/* ---- positions ----
 *
 * Queries and keys are named by their positions. A tile is some positions of one run: tiles start at
 * multiples of their size, counted from the last multiple of 8 that is not after the start of the run,
 * because dropout draws the words of whole fragments. Positions of a tile that the run lacks are zeros in
 * shared memory and are not written. */

struct RunAt { int start, n; int64_t row; };   /* positions [start, start + n); row: the row of the first */
__device__ __forceinline__ RunAt run_at(const Runs &r, int i, int b)
{
    RunAt a = {r.run[i].start, r.run[i].n, (int64_t)b * r.stride + r.run[i].row};
    return a;
}
/* Returns the first position of the tile of `size` positions that has position i of the run. */
__device__ __forceinline__ int tile_start(const RunAt &r, int i, int size)
{
    int origin = r.start & ~7;
    return origin + (i - origin) / size * size;
}
__host__ __device__ __forceinline__ int run_tiles(const PositionRun &r, int size)
{
    return (r.start % 8 + r.n + size - 1) / size;
}
/* What a block does: a tile of rows of a head. Blocks keep it in shared memory, because registers are
 * short. first: first position of the tile. */
struct Tile { int b, head, run, first; };
/* Returns tile number `tile` of all runs. */
__device__ __forceinline__ Tile tile_at(const Runs &r, int tile, int size, int b, int head)
{
    int i = 0;
    for (int n; tile >= (n = run_tiles(r.run[i], size)); i++)
        tile -= n;
    Tile t = {b, head, i, (r.run[i].start & ~7) + tile * size};
    return t;
}

/* ---- masks: the query at position i sees the keys at positions first_key .. i ---- */

__device__ __forceinline__ int first_key(const Shape &s, int b, int i)
{
    int lo = s.doc ? s.doc[b * s.doc_rows + i] : 0;
    return s.window ? max(lo, i - s.window + 1) : lo;
}

/* Keys outside of [first, end) are seen by no row, keys in [all_first, all_end) by all rows. span_none:
 * the rows see none of keys j .. j+n. */
struct Span { int first, end, all_first, all_end; };
__device__ __forceinline__ bool span_none(const Span &s, int j, int n)
{
    return j >= s.end || j + n <= s.first;
}

/* Computes the masks of those of a warp's queries i0 .. i0 + N, N 16 or 32, that the run has, to shared
 * memory, because registers are short.
 *   span  out       what these queries see
 *   lo    out  [N]  first key of each query */
template <int N>
__device__ __forceinline__ void span_make(Span *span, int *lo, const Shape &s, int b, const RunAt &run,
                                          int i0)
{
    int r = (int)threadIdx.x % N, from = max(i0, run.start), stop = min(i0 + N, run.start + run.n);
    int first = 0;
    Span a = {0x7fffffff, 0, 0, 0};
    if (from < stop) {
        first = first_key(s, b, min(max(i0 + r, from), stop - 1));
        a.first = a.all_first = first;
    }
    if (N == WARP || threadIdx.x % WARP < N)
        lo[r] = first;
    for (int o = N / 2; o; o >>= 1) {
        a.first = min(a.first, __shfl_xor_sync(EVERY_LANE, a.first, o));
        a.all_first = max(a.all_first, __shfl_xor_sync(EVERY_LANE, a.all_first, o));
    }
    if (from < stop) {
        a.end = stop;
        a.all_end = from + 1;
    }
    if (threadIdx.x % WARP == 0)
        *span = a;
}
/* [*first, *end) = the part of the warps' spans that the run of keys has; call it after a barrier. */
__device__ __forceinline__ void span_join(int *first, int *end, const Span *spans, int warps,
                                          const RunAt &run)
{
    *first = 0x7fffffff, *end = 0;
    for (int i = 0; i < warps; i++)
        *first = min(*first, spans[i].first), *end = max(*end, spans[i].end);
    *first = max(*first, run.start), *end = min(*end, run.start + run.n);
}
/* Whether keys j .. j+n are not all keys of the run, or some row does not see one of them. */
__device__ __forceinline__ bool span_masked(const Span &s, int j, int n, const RunAt &run)
{
    return j < max(s.all_first, run.start) || j + n > min(s.all_end, run.start + run.n);
}

/* ---- dropout: word j % 4 of philox(key, j / 4 | query << 32, sample << 16 | head) for key j (isa.h)
 * ---- */

struct HeadDrop { uint32_t hi0, hi1; };
__device__ __forceinline__ HeadDrop head_drop(const Shape &s, int b, int head)
{
    uint64_t hi = (uint64_t)s.sample[b] << 16 | (uint64_t)(s.head0 + head);
    HeadDrop d = {(uint32_t)hi, (uint32_t)(hi >> 32)};
    return d;
}
/* Philox (base.h): w = the random words of keys `key` .. `key` + 3 and one query; key is a multiple of
 * 4. */
__device__ __forceinline__ void drop_words(uint32_t w[4], const Shape &s, HeadDrop d, int key, int query)
{
    w[0] = (uint32_t)key / 4, w[1] = (uint32_t)query, w[2] = d.hi0, w[3] = d.hi1;
#pragma unroll
    for (int i = 0; i < 10; i++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * w[0], p1 = (uint64_t)0xCD9E8D57u * w[2];
        w[0] = (uint32_t)(p1 >> 32) ^ w[1] ^ s.round[i][0];
        w[2] = (uint32_t)(p0 >> 32) ^ w[3] ^ s.round[i][1];
        w[1] = (uint32_t)p1;
        w[3] = (uint32_t)p0;
    }
}

/* Dropout of a 16 x 8 fragment whose rows are queries from `query` on and whose columns are keys from
 * `key` on, a multiple of 8. keep[e]: whether this lane's element e is kept. Lanes 2m and 2m + 1 hold
 * four keys of two queries: each draws the words of one query, and they exchange halves. */
__device__ __forceinline__ void drop_rows(bool keep[4], const Shape &s, HeadDrop d, int query, int key)
{
    int lane = (int)threadIdx.x % WARP, g = lane / 4, t = lane % 4, odd = t & 1;
    uint32_t w[4];
    drop_words(w, s, d, key + 4 * (t >> 1), query + g + 8 * odd);
    uint32_t x = __shfl_xor_sync(EVERY_LANE, odd ? w[0] : w[2], 1);
    uint32_t y = __shfl_xor_sync(EVERY_LANE, odd ? w[1] : w[3], 1);
    keep[0] = (odd ? x : w[0]) >= s.limit;
    keep[1] = (odd ? y : w[1]) >= s.limit;
    keep[2] = (odd ? w[2] : x) >= s.limit;
    keep[3] = (odd ? w[3] : y) >= s.limit;
}
/* The same with keys as rows and queries as columns. Four lanes hold four keys of the same two queries,
 * and the four keys eight rows on: each draws one of their four counters, and then they exchange 4 x 4
 * words. */
__device__ __forceinline__ void drop_columns(bool keep[4], const Shape &s, HeadDrop d, int key, int query)
{
    int lane = (int)threadIdx.x % WARP, g = lane / 4, t = lane % 4, c = g & 3;
    uint32_t w[4];
    drop_words(w, s, d, key + (g & 4) + 8 * (c >> 1), query + 2 * t + (c & 1));
    bool odd = c & 1, high = c & 2;
    uint32_t x = __shfl_xor_sync(EVERY_LANE, odd ? w[0] : w[1], 4);
    uint32_t y = __shfl_xor_sync(EVERY_LANE, odd ? w[2] : w[3], 4);
    uint32_t a = odd ? x : w[0], b = odd ? w[1] : x, e = odd ? y : w[2], f = odd ? w[3] : y;
    x = __shfl_xor_sync(EVERY_LANE, high ? a : e, 8), y = __shfl_xor_sync(EVERY_LANE, high ? b : f, 8);
    keep[0] = (high ? x : a) >= s.limit;
    keep[1] = (high ? y : b) >= s.limit;
    keep[2] = (high ? e : x) >= s.limit;
    keep[3] = (high ? f : y) >= s.limit;
}

/* ---- tiles of 2-byte elements in shared memory ----
 *
 * A row is D elements, D / 8 chunks of 16 bytes. ldmatrix reads eight rows of one column of chunks at a
 * time, which must be in eight different places modulo 128 bytes. Chunk c of row r is therefore stored
 * at c ^ swizzle(r). Rows whose chunks would collide have different swizzles: all eight rows when 8
 * divides D / 8, every other row when only 4 does, and so on. */
template <int D> struct Chunks {
    static constexpr int N = D / 8, PERIOD = N % 8 == 0 ? 8 : N % 4 == 0 ? 4 : N % 2 == 0 ? 2 : 1;
};
template <int D> __device__ __forceinline__ int swizzle(int row)
{
    constexpr int P = Chunks<D>::PERIOD;
    return row / (8 / P) % P;
}
template <int D> __device__ __forceinline__ uint32_t chunk_at(int row, int chunk)
{
    return (uint32_t)(row * Chunks<D>::N + (chunk ^ swizzle<D>(row))) * 16;
}

/* Copies of a tile that a thread unrolls: all, except where their addresses would make the accumulators
 * spill (seen with ptxas). */
template <int D, bool DROP> struct Copies { static constexpr int AHEAD = D == 128 && !DROP ? 2 : 16; };

/* Starts the copies (cp.async) of rows r0 .. r0 + ROWS of a head; a thread copies one column of chunks.
 *   to   out  the tile in shared memory
 *   p    in   row 0 of the head
 *   end  in   rows outside of [0, end) become zeros */
template <int D, int ROWS, int THREADS, int AHEAD, class T>
__device__ __forceinline__ void tile_load(SharedAt to, const T *p, int ld, int r0, int end)
{
    constexpr int C = Chunks<D>::N, STEP = THREADS / C;
    int r = (int)threadIdx.x / C, c = (int)threadIdx.x % C;
#pragma unroll AHEAD
    for (int k = 0; k < ROWS; k += STEP)
        if (THREADS % C == 0 ? ROWS % STEP == 0 || r + k < ROWS : r < STEP && r + k < ROWS)
            cp_async16(to + chunk_at<D>(r + k, c), p + 8 * c + (int64_t)(r0 + r + k) * ld,
                       (uint32_t)(r0 + r + k) < (uint32_t)end);
}

/* The address of a lane for ldmatrix_x4 of a 16 x 16 piece of a tile, which starts at a multiple of 128
 * bytes. The piece is four 8 x 8 matrices at (row, column):
 *   across  (0, 0) (8, 0) (0, 8) (8, 8): operand A, or B by ldmatrix_x4_trans
 *   else    (0, 0) (0, 8) (8, 0) (8, 8): operand B */
template <int D> struct Lane {
    SharedAt row;

    __device__ __forceinline__ Lane(SharedAt tile, bool across)
    {
        int lane = (int)threadIdx.x % WARP;
        int r = across ? lane % 16 : lane % 8 + lane / 16 * 8, half = across ? lane / 16 : lane / 8 % 2;
        row = tile + chunk_at<D>(r, half);
    }
    /* Returns the address for the piece at row r0, a multiple of 8, and column 16 k: chunk 2 k + half,
     * swizzled. An xor sets the bits that the swizzle may change; the other bits are an addition, which
     * the load instruction does. */
    __device__ __forceinline__ SharedAt at(int r0, int k) const
    {
        constexpr int FLIP = Chunks<D>::PERIOD - 1;
        return (row ^ (uint32_t)(2 * k & FLIP) * 16) + (uint32_t)(r0 * D * 2 + (2 * k & ~FLIP) * 16);
    }
};

/* c [16 MT][8 N] = a b^T, over D columns.
 *   a  in  [16 MT][D]  Lane across
 *   b  in  [8 N][D]    Lane not across */
template <class T, int D, int MT, int N>
__device__ __forceinline__ void scores(float (&c)[MT][N][4], const Lane<D> &a, const Lane<D> &b)
{
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
            c[m][n][0] = c[m][n][1] = c[m][n][2] = c[m][n][3] = 0;
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t x[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++)
            ldmatrix_x4(x[m], a.at(16 * m, k));
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            uint32_t y[4];
            ldmatrix_x4(y, b.at(8 * n, k));
#pragma unroll
            for (int m = 0; m < MT; m++) {
                mma_m16n8k16<T>(c[m][n], x[m], y[0], y[1]);
                mma_m16n8k16<T>(c[m][n + 1], x[m], y[2], y[3]);
            }
        }
    }
}

/* Sets scores to -inf where the query does not see the key, or the run does not have it.
 *   c   in/out  [16 MT][8 N]  scores: rows are queries from i0 on, columns keys from j on
 *   lo  in      [16 MT]       first key that each query sees */
template <int MT, int N>
__device__ __forceinline__ void mask_rows(float (&c)[MT][N][4], const RunAt &run, const int *lo, int i0,
                                          int j)
{
    int lane = (int)threadIdx.x % WARP, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int r = 16 * m + 8 * half + g, first = max(lo[r], run.start) - j - 2 * t;
            int last = min(i0 + r, run.start + run.n - 1) - j - 2 * t;
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    if (8 * n + e < first || 8 * n + e > last)
                        c[m][n][2 * half + e] = -INFINITY;
        }
}

/* a = columns 16 k .. 16 k + 16 of c as operand A: a fragment of A is two fragments of C. */
template <class T, int N>
__device__ __forceinline__ void operand(uint32_t (&a)[4], const float (&c)[N][4], int k)
{
    a[0] = pack(c[2 * k][0], c[2 * k][1], T());
    a[1] = pack(c[2 * k][2], c[2 * k][3], T());
    a[2] = pack(c[2 * k + 1][0], c[2 * k + 1][1], T());
    a[3] = pack(c[2 * k + 1][2], c[2 * k + 1][3], T());
}

/* sum [16 MT][D] += p [16 MT][8 N] times b [8 N][D], Lane across. */
template <class T, int D, int MT, int N>
__device__ __forceinline__ void weighted(float (&sum)[MT][D / 8][4], const float (&p)[MT][N][4],
                                         const Lane<D> &b)
{
#pragma unroll
    for (int k = 0; k < N / 2; k++) {
        uint32_t x[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++)
            operand<T>(x[m], p[m], k);
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            uint32_t y[4];
            ldmatrix_x4_trans(y, b.at(16 * k, n));
#pragma unroll
            for (int m = 0; m < MT; m++) {
                mma_m16n8k16<T>(sum[m][2 * n], x[m], y[0], y[1]);
                mma_m16n8k16<T>(sum[m][2 * n + 1], x[m], y[2], y[3]);
            }
        }
    }
}

/* Writes the rows of a warp to memory, 16 bytes at a time, by way of shared memory.
 *   tile  out                16 MT rows of shared memory that no thread reads any more
 *   sum   in   [16 MT][D]    the rows, from row r0 on
 *   p     out                row 0 of the head
 *   end   in                 rows outside of [0, end) are not written */
template <class T, int D, int MT>
__device__ __forceinline__ void rows_store(char *tile, const float (&sum)[MT][D / 8][4], T *p, int ld, int r0,
                                           int end)
{
    /* read again, so that no address is kept in a register until here */
    int lane = (int)thread_again() % WARP, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            int r = 16 * m + g;
            *reinterpret_cast<uint32_t *>(tile + chunk_at<D>(r, n) + 4 * t) =
                pack(sum[m][n][0], sum[m][n][1], T());
            *reinterpret_cast<uint32_t *>(tile + chunk_at<D>(r + 8, n) + 4 * t) =
                pack(sum[m][n][2], sum[m][n][3], T());
        }
    __syncwarp();
#pragma unroll
    for (int i = lane; i < 16 * MT * (D / 8); i += WARP) {
        int r = i / (D / 8), c = i % (D / 8);
        if ((uint32_t)(r0 + r) < (uint32_t)end)
            *reinterpret_cast<uint4 *>(p + (int64_t)(r0 + r) * ld + 8 * c)
                = *reinterpret_cast<const uint4 *>(tile + chunk_at<D>(r, c));
    }
}

/* A gradient as kernels write it: T, or float; add, bool: its floats are added to. */
struct Out { void *p; int ld, real, add; };
static inline Out out_of(Mat m, Dtype type, int add)
{
    BUG_ON((m.type != F32 && (m.type != type || add)) || m.ld >= (int64_t)1 << 31);
    Out o = {m.p, (int)m.ld, m.type == F32, add};
    return o;
}

/* p[0 .. 4) = x, or += x; p is at a multiple of 16 bytes. */
__device__ __forceinline__ void put_four(float *p, float (&x)[4], int add)
{
    Piece<float> to;
    float old[4];
    if (add) {
        to.load(p);
        to.get(old);
#pragma unroll
        for (int e = 0; e < 4; e++)
            x[e] += old[e];
    }
    to.set(x);
    to.store(p);
}

/* rows_store to a gradient.
 *   row   in  row of *out that is row 0
 *   col   in  first column of the head */
template <class T, int D, int MT>
__device__ __forceinline__ void rows_out(char *tile, const float (&sum)[MT][D / 8][4], const Out &out,
                                         int64_t row, int col, int r0, int end)
{
    if (!out.real) {
        rows_store<T, D, MT>(tile, sum, static_cast<T *>(out.p) + row * out.ld + col, out.ld, r0, end);
        return;
    }
    /* read again, so that no address is kept in a register until here */
    int lane = (int)thread_again() % WARP, g = lane / 4, t = lane % 4;
    /* two lanes have four columns of two fragments: each gets all four of one, and writes 16 bytes */
    int odd = t & 1;
    float *p = static_cast<float *>(out.p) + row * out.ld + col + 8 * odd + 2 * (t - odd);
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int r = r0 + 16 * m + 8 * half + g;
            float *at = p + (int64_t)r * out.ld;
            bool there = (uint32_t)r < (uint32_t)end;
#pragma unroll
            for (int n = 0; n < D / 8; n += 2) {
                const float *a = sum[m][n] + 2 * half, *b = sum[m][n + 1] + 2 * half;
                float x = __shfl_xor_sync(EVERY_LANE, odd ? a[0] : b[0], 1);
                float y = __shfl_xor_sync(EVERY_LANE, odd ? a[1] : b[1], 1);
                float all[4] = {odd ? x : a[0], odd ? y : a[1], odd ? b[0] : x, odd ? b[1] : y};
                if (there)
                    put_four(at + 8 * n, all, out.add);
            }
        }
}

/* ---- launches ---- */

static inline Runs runs_of(const Positions *p)
{
    Runs r = {};
    BUG_ON(p->count < 0 || p->count > POSITION_RUNS || p->stride >= 1 << 30);
    r.count = p->count, r.stride = (int)p->stride;
    for (int i = 0; i < p->count; i++) {
        r.run[i] = p->run[i];
        BUG_ON(r.run[i].start + (int64_t)r.run[i].n >= 1 << 30);
    }
    return r;
}

/* Checks an attention call and makes its Shape.
 *   by_keys  in  bool: keys are cut into tiles; queries otherwise
 *   heads    in  heads of a sample that are cut into tiles: query or key/value heads
 *   rows     in  rows of a tile */
static inline Shape shape_of(const Attention *s, int by_keys, int heads, int rows, Dtype type)
{
    BUG_ON(s->dim < 1 || s->kv_heads < 1 || s->heads % s->kv_heads || !(s->scale > 0));
    BUG_ON(!(s->dropout >= 0 && s->dropout < 1));
    const Positions *cut = by_keys ? &s->k : &s->q;
    const PositionRun *last = &s->q.run[s->q.count - 1];
    int64_t keys = positions_rows(&s->k), window = s->window < last->start + last->n ? s->window : 0;
    int64_t bytes = 2 * keys * s->dim * (int64_t)dtype_size(type), l2 = (int64_t)16 << 20;
    int64_t group = s->heads / s->kv_heads, items = s->batch * heads;
    int64_t section = !bytes ? items : heads == s->heads ? l2 / bytes * group : l2 / (bytes * group);
    Shape a = {};
    a.q = runs_of(&s->q), a.k = runs_of(&s->k);
    a.batch = (int)s->batch, a.window = window > 0 ? (int)window : 0;
    a.doc_rows = s->seq;
    a.heads = s->heads, a.kv_heads = s->kv_heads, a.group = s->heads / s->kv_heads, a.head0 = s->head0,
    a.dim = s->dim;
    for (int i = 0; i < cut->count; i++)
        a.tiles += run_tiles(cut->run[i], rows);
    a.section = (int)(section < 1 ? 1 : section < items ? section : items);
    a.scale = (float)s->scale, a.scale2 = (float)(s->scale * 1.44269504088896340736);
    a.doc = s->doc_start, a.sample = s->sample;
    a.limit = (uint32_t)fmin(ceil(s->dropout * 4294967296.0), 4294967295.0);
    a.keep = (float)(1 / (1 - s->dropout));
    for (uint32_t i = 0; i < 10; i++) {
        a.round[i][0] = (uint32_t)s->key + i * 0x9E3779B9u;
        a.round[i][1] = (uint32_t)(s->key >> 32) + i * 0xBB67AE85u;
    }
    return a;
}

/* Call run(Head<D>()) with every head size, or with size `dim`; a size without kernels dies with
 * EXIT_CONFIG. */
template <int D> struct Head { enum { value = D }; };
template <class Run> static inline void with_every_head(Run run)
{
    run(Head<64>()), run(Head<80>()), run(Head<96>()), run(Head<128>()), run(Head<256>());
}
template <class Run> static inline void with_head(int dim, Run run)
{
    int found = 0;
    with_every_head([&](auto head) {
        if (decltype(head)::value == dim)
            found = 1, run(head);
    });
    if (!found)
        die(EXIT_CONFIG, "cuda",
            "attention in bf16 and fp16 on a GPU has heads of 64, 80, 96, 128 or 256, not %d; "
            "change: kv_channels (hidden_size / num_attention_heads) to one of these, or the type to fp32",
            dim);
}

/* Lets `kernel` use `bytes` of shared memory, or all of the GPU's where it has less: attention_fits looks at
 * each launch. Called when the device is opened. */
template <class... P> static inline void attention_shared(const Cuda *c, void (*kernel)(P...), size_t bytes)
{
    size_t most = bytes < c->shared ? bytes : c->shared;
    CUDA_OK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)most));
}
/* Dies with EXIT_CONFIG if a launch needs more shared memory than the GPU has. */
static inline void attention_fits(const Cuda *c, size_t bytes, int dim)
{
    if (bytes > c->shared)
        die(EXIT_CONFIG, "cuda",
            "attention with heads of %d takes %zu bytes of shared memory, and a block has %zu on "
            "%s; change: kv_channels (hidden_size / num_attention_heads) to 128 or less, or the GPU",
            dim, bytes, c->shared, c->gpu);
}
/* The parts of cuda_attention_open. */
void attention_fwd_open(const Cuda *c);
void attention_bwd_open(const Cuda *c);
void attention_plain_open(const Cuda *c);

/* Whether the plain kernels do a call: in F32, or with rows that are not at multiples of 16 bytes. */
static inline int attention_is_plain(Dtype type, std::initializer_list<Mat> all)
{
    int plain = type == F32;
    for (const Mat &m : all)
        plain |= !aligned(m);
    return plain;
}
void plain_attention_fwd(Device *d, Mat o, Mat lse, Mat q, Mat k, Mat v, const Attention *s);
void plain_attention_bwd(Device *d, Mat dq, Mat dk, Mat dv, Mat dout, Mat o, Mat lse, Mat delta, Mat q, Mat k,
                         Mat v, const Attention *s);
#endif
