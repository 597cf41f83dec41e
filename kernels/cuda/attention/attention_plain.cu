/* attention_plain -- attention without tensor cores, with all arithmetic in F32.
 *
 * It does F32, whose products tensor cores would round, with heads of any size up to 256, and matrices
 * whose rows are not at multiples of 16 bytes. The passes are those of attention_fwd.cu and
 * attention_bwd.cu. A block has 16 rows, eight lanes a row, and loads 32 columns (rows of the other
 * side) at a time. */
#include "attention.cuh"

namespace {

enum { ROWS = 16, COLS = 32, LANES = 8, THREADS = ROWS * LANES, PITCH = COLS + 1, EACH = COLS / LANES };
enum { HEAD_MOST = 256 };

template <class T> struct Plain {
    Shape s;
    View<T> row1, row2, col1, col2, out1, out2;
    View<float> lse, delta;
};

/* Loads rows r0 .. r0 + n of a head as F32, dim + 1 floats a row; rows from `end` on are zeros. */
template <class T> __device__ void tile_read(float *to, const T *p, int ld, int r0, int n, int end, int dim)
{
    for (int i = (int)threadIdx.x; i < n * dim; i += THREADS) {
        int r = i / dim, c = i - r * dim;
        to[r * (dim + 1) + c] = r0 + r < end ? to_float(p[(int64_t)(r0 + r) * ld + c]) : 0;
    }
}

__device__ __forceinline__ float dot(const float *a, const float *b, int n)
{
    float sum = 0;
    for (int i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* Whether dropout keeps the element of a key and a query. */
__device__ __forceinline__ bool kept(const Shape &s, HeadDrop d, int key, int query)
{
    uint32_t w[4];
    if (!s.limit)
        return true;
    drop_words(w, s, d, key, query);
    int i = key % 4;
    return (i < 2 ? i ? w[1] : w[0] : i == 2 ? w[2] : w[3]) >= s.limit;
}

/* Returns the keys that queries i0 .. i0 + ROWS see; `first` is a multiple of COLS. */
__device__ Span keys_of(const Shape &s, int b, int i0)
{
    int stop = min(i0 + ROWS, s.seq_q);
    Span a = {0x7fffffff, last_key(s, stop - 1) + 1, 0, 0};
    for (int i = i0; i < stop; i++)
        a.first = min(a.first, first_key(s, b, i));
    a.first = a.first / COLS * COLS;
    return a;
}

/* sum[c] += weights p [COLS] of the row times column lane + LANES c of tile b. M: most columns of a
 * lane. */
template <int M>
__device__ __forceinline__ void weigh(float (&sum)[M], const float *p, const float *b, int lane, int dim)
{
    for (int i = 0; i < COLS; i++) {
        float x = p[i];
#pragma unroll
        for (int c = 0; c < M; c++)
            if (lane + LANES * c < dim)
                sum[c] += x * b[i * (dim + 1) + lane + LANES * c];
    }
}
template <class T, int M>
__device__ __forceinline__ void row_write(T *p, const float (&sum)[M], float factor, int lane, int dim)
{
#pragma unroll
    for (int c = 0; c < M; c++)
        if (lane + LANES * c < dim)
            from_float(p + lane + LANES * c, sum[c] * factor);
}

/* The forward. row1 is q; col1 and col2 are k and v; out1 is o. */
template <class T, int M> __global__ void __launch_bounds__(THREADS, 4) k_plain_fwd(Plain<T> a)
{
    const Shape &s = a.s;
    int dim = s.dim, r = (int)threadIdx.x / LANES, lane = (int)threadIdx.x % LANES;
    Work w = work_at(s, s.heads, (int)blockIdx.x);
    int i0 = (s.tiles - 1 - w.tile) * ROWS, i = min(i0 + r, s.seq_q - 1), of = w.head / s.group * dim;
    float *q = reinterpret_cast<float *>(shared), *k = q + ROWS * (dim + 1), *v = k + COLS * (dim + 1);
    float *p = v + COLS * (dim + 1) + r * PITCH;
    int64_t keys = (int64_t)w.b * s.seq_k, row = (int64_t)w.b * s.seq_q;
    Span seen = keys_of(s, w.b, i0);
    int lo = first_key(s, w.b, i), hi = last_key(s, i);
    float largest = -1e30f, sum = 0, out[M] = {};
    HeadDrop drop = {};
    if (s.limit)
        drop = head_drop(s, w.b, w.head);
    tile_read(q, a.row1.p + row * a.row1.ld + w.head * dim, a.row1.ld, i0, ROWS, s.seq_q, dim);
    for (int j = seen.first; j < seen.end; j += COLS) {
        __syncthreads();
        tile_read(k, a.col1.p + keys * a.col1.ld + of, a.col1.ld, j, COLS, s.seq_k, dim);
        tile_read(v, a.col2.p + keys * a.col2.ld + of, a.col2.ld, j, COLS, s.seq_k, dim);
        __syncthreads();
        float x[EACH], top = largest, part = 0;
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            int n = lane + LANES * e;
            x[e] = j + n < lo || j + n > hi ? -INFINITY
                                            : s.scale * dot(q + r * (dim + 1), k + n * (dim + 1), dim);
            top = fmaxf(top, x[e]);
        }
        for (int o = LANES / 2; o; o >>= 1)
            top = fmaxf(top, __shfl_xor_sync(EVERY_LANE, top, o));
        float shrink = expf(largest - top);
#pragma unroll
        for (int e = 0; e < EACH; e++)
            part += x[e] = expf(x[e] - top);
        largest = top;
        sum = sum * shrink + warp_sum(part, LANES);
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            int n = lane + LANES * e;
            p[n] = kept(s, drop, j + n, s.pos0 + i) ? x[e] : 0;
        }
#pragma unroll
        for (int c = 0; c < M; c++)
            out[c] *= shrink;
        __syncwarp();
        weigh(out, p, v, lane, dim);
    }
    if (i0 + r >= s.seq_q)
        return;
    if (lane == 0)
        a.lse.p[(row + i) * a.lse.ld + w.head] = sum == 0 ? -INFINITY : largest + logf(sum);
    row_write(a.out1.p + (row + i) * a.out1.ld + w.head * dim, out, sum == 0 ? 0 : s.keep / sum, lane, dim);
}

/* The backward; rows and columns are those of attention_bwd.cu. */
template <class T, int M, bool BY_KEYS> __global__ void __launch_bounds__(THREADS, 4) k_plain_bwd(Plain<T> a)
{
    const Shape &s = a.s;
    const int heads = BY_KEYS ? s.kv_heads : s.heads, rows = BY_KEYS ? s.seq_k : s.seq_q;
    const int cols = BY_KEYS ? s.seq_q : s.seq_k, dim = s.dim, pitch = dim + 1;
    int r = (int)threadIdx.x / LANES, lane = (int)threadIdx.x % LANES;
    Work w = work_at(s, heads, (int)blockIdx.x);
    int r0 = (BY_KEYS ? w.tile : s.tiles - 1 - w.tile) * ROWS, mine = min(r0 + r, rows - 1);
    float *row1 = reinterpret_cast<float *>(shared), *row2 = row1 + ROWS * pitch, *col1 = row2 + ROWS * pitch;
    float *col2 = col1 + COLS * pitch, *ds = col2 + COLS * pitch + r * PITCH, *p = ds + ROWS * PITCH;
    int head0 = BY_KEYS ? w.head * s.group : w.head, head_end = head0 + (BY_KEYS ? s.group : 1), first, end;
    float sum1[M] = {}, sum2[M] = {};
    if (BY_KEYS) {
        first = max(0, r0 - s.pos0) / COLS * COLS;
        end = s.window ? min(s.seq_q, r0 + ROWS - 1 + s.window - s.pos0) : s.seq_q;
    } else {
        Span seen = keys_of(s, w.b, r0);
        first = seen.first, end = seen.end;
    }
    tile_read(row1, a.row1.p + (int64_t)w.b * rows * a.row1.ld + w.head * dim, a.row1.ld, r0, ROWS, rows,
              dim);
    tile_read(row2, a.row2.p + (int64_t)w.b * rows * a.row2.ld + w.head * dim, a.row2.ld, r0, ROWS, rows,
              dim);
    for (int head = head0; head < head_end; head++) {
        int of = (BY_KEYS ? head : head / s.group) * dim;
        HeadDrop drop = {};
        if (s.limit)
            drop = head_drop(s, w.b, head);
        for (int c0 = first; c0 < end; c0 += COLS) {
            __syncthreads();
            tile_read(col1, a.col1.p + (int64_t)w.b * cols * a.col1.ld + of, a.col1.ld, c0, COLS, cols, dim);
            tile_read(col2, a.col2.p + (int64_t)w.b * cols * a.col2.ld + of, a.col2.ld, c0, COLS, cols, dim);
            __syncthreads();
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                int n = lane + LANES * e, key = BY_KEYS ? mine : c0 + n, i = BY_KEYS ? c0 + n : mine;
                bool sees = i < s.seq_q && key >= first_key(s, w.b, i) && key <= last_key(s, i);
                float x = 0, y = 0;
                if (sees) {
                    int64_t at = (int64_t)w.b * s.seq_q + i;
                    float m = kept(s, drop, key, s.pos0 + i) ? s.keep : 0;
                    x = expf(s.scale * dot(row1 + r * pitch, col1 + n * pitch, dim) -
                             a.lse.p[at * a.lse.ld + head]);
                    y = x * (m * dot(row2 + r * pitch, col2 + n * pitch, dim) -
                             a.delta.p[at * a.delta.ld + head]);
                    x *= m;
                }
                ds[n] = y, p[n] = x;
            }
            __syncwarp();
            weigh(sum1, ds, col1, lane, dim);
            if (BY_KEYS)
                weigh(sum2, p, col2, lane, dim);
        }
    }
    if (r0 + r >= rows)
        return;
    int64_t at = (int64_t)w.b * rows + mine;
    row_write(a.out1.p + at * a.out1.ld + w.head * dim, sum1, s.scale, lane, dim);
    if (BY_KEYS)
        row_write(a.out2.p + at * a.out2.ld + w.head * dim, sum2, 1, lane, dim);
}

template <class T>
__global__ void k_plain_delta(View<T> dout, View<T> o, View<float> delta, int heads, int dim, int64_t n)
{
    int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / LANES, row = i / heads,
            head = i - row * heads;
    float sum = 0;
    for (int c = (int)threadIdx.x % LANES; i < n && c < dim; c += LANES)
        sum += to_float(dout.p[row * dout.ld + head * dim + c]) * to_float(o.p[row * o.ld + head * dim + c]);
    sum = warp_sum(sum, LANES);
    if (i < n && threadIdx.x % LANES == 0)
        delta.p[row * delta.ld + head] = sum;
}

size_t fwd_bytes(int dim) { return (size_t)((ROWS + 2 * COLS) * (dim + 1) + ROWS * PITCH) * sizeof(float); }
size_t bwd_bytes(int dim)
{
    return (size_t)(2 * (ROWS + COLS) * (dim + 1) + 2 * ROWS * PITCH) * sizeof(float);
}

void check_head(int dim)
{
    if (dim > HEAD_MOST)
        die(EXIT_CONFIG, "cuda",
            "attention on a GPU has heads of up to %d, not %d; change: kv_channels (hidden_size / "
            "num_attention_heads)",
            HEAD_MOST, dim);
}

template <class T, int M> void open(const Cuda *c)
{
    attention_shared(c, k_plain_fwd<T, M>, fwd_bytes(LANES * M));
    attention_shared(c, k_plain_bwd<T, M, true>, bwd_bytes(LANES * M));
    attention_shared(c, k_plain_bwd<T, M, false>, bwd_bytes(LANES * M));
}

}

void attention_plain_open(const Cuda *c)
{
    open<float, 8>(c), open<float, 32>(c), open<Bf16, 32>(c), open<Half, 32>(c);
}

/* Calls run(T{}, Head<columns of a lane>()): 8 columns in F32 with heads up to 64, a frequent case, else
 * 32. */
template <class PositionRun> static void with_columns(Dtype type, int dim, PositionRun run)
{
    check_head(dim);
    if (type == F32 && dim <= 64)
        run(float(), Head<8>());
    else
        with_type(type, [&](auto t) { run(t, Head<32>()); });
}

void plain_attention_fwd(Device *d, Mat o, Mat lse, Mat q, Mat k, Mat v, const Attention *s)
{
    with_columns(q.type, s->dim, [&](auto t, auto m) {
        typedef decltype(t) T;
        Plain<T> a = {shape_of(s, positions_rows(&s->q), s->heads, ROWS, q.type),
                      view<T>(q),
                      {},
                      view<T>(k),
                      view<T>(v),
                      view<T>(o),
                      {},
                      view<float>(lse),
                      {}};
        attention_fits(cuda_of(d), fwd_bytes(s->dim), s->dim);
        unsigned grid = blocks_of((int64_t)a.s.tiles * a.s.batch * a.s.heads);
        LAUNCH((k_plain_fwd<T, decltype(m)::value>), grid, THREADS, fwd_bytes(s->dim), cuda_of(d)->compute,
               a);
    });
}

void plain_attention_bwd(Device *d, Mat dq, Mat dk, Mat dv, Mat dout, Mat o, Mat lse, Mat delta, Mat q, Mat k,
                         Mat v, const Attention *s)
{
    Cuda *c = cuda_of(d);
    int64_t n = s->batch * positions_rows(&s->q) * s->heads;
    size_t bytes = bwd_bytes(s->dim);
    with_columns(q.type, s->dim, [&](auto t, auto m) {
        typedef decltype(t) T;
        constexpr int M = decltype(m)::value;
        View<float> l = view<float>(lse), sums = view<float>(delta);
        View<T> vq = view<T>(q), vk = view<T>(k), vv = view<T>(v), vdo = view<T>(dout), none = {};
        Shape keys = shape_of(s, positions_rows(&s->q), s->kv_heads, ROWS, q.type);
        Shape queries = shape_of(s, positions_rows(&s->q), s->heads, ROWS, q.type);
        Plain<T> by_keys = {keys, vk, vv, vq, vdo, view<T>(dk), view<T>(dv), l, sums};
        Plain<T> by_queries = {queries, vq, vdo, vk, vv, view<T>(dq), none, l, sums};
        attention_fits(c, bytes, s->dim);
        LAUNCH((k_plain_delta<T>), blocks_of(ceil_div(n, 32)), 256, 0, c->compute, vdo, view<T>(o), sums,
               s->heads, s->dim, n);
        LAUNCH((k_plain_bwd<T, M, true>), blocks_of((int64_t)by_keys.s.tiles * s->batch * s->kv_heads),
               THREADS, bytes, c->compute, by_keys);
        LAUNCH((k_plain_bwd<T, M, false>), blocks_of((int64_t)by_queries.s.tiles * s->batch * s->heads),
               THREADS, bytes, c->compute, by_queries);
    });
}
