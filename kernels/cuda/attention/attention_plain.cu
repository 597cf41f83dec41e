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
    View<T> row1, row2, col1, col2, o;
    Out out1, out2;
    View<float> lse, delta;
};

/* Loads rows r0 .. r0 + n of a head as F32, dim + 1 floats a row; rows outside of [0, end) are zeros. */
template <class T> __device__ void rows_read(float *to, const T *p, int ld, int r0, int n, int end, int dim)
{
    for (int i = (int)threadIdx.x; i < n * dim; i += THREADS) {
        int r = i / dim, c = i - r * dim;
        to[r * (dim + 1) + c]
            = (uint32_t)(r0 + r) < (uint32_t)end ? to_float(p[(int64_t)(r0 + r) * ld + c]) : 0;
    }
}
/* Loads n positions of a run from `first` on, columns from `col` on. */
template <class T>
__device__ __forceinline__ void tile_read(float *to, const View<T> &x, const RunAt &run, int first, int n,
                                          int col, int dim)
{
    rows_read(to, x.p + run.row * x.ld + col, x.ld, first - run.start, n, run.n, dim);
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

/* Columns outside of [first, end) are not seen by the rows, or do not see them. */
struct Columns { int first, end; };
/* Returns the keys that those of queries i0 .. i0 + ROWS see that the run has. */
__device__ Columns keys_of(const Shape &s, int b, const RunAt &run, int i0)
{
    Columns a = {0x7fffffff, min(i0 + ROWS, run.start + run.n)};
    for (int i = max(i0, run.start); i < a.end; i++)
        a.first = min(a.first, first_key(s, b, i));
    return a;
}
/* Returns the part of the columns that a run has; `first` is the start of a tile. */
__device__ Columns columns_in(const Columns &a, const RunAt &run)
{
    Columns k = {max(a.first, run.start), min(a.end, run.start + run.n)};
    if (k.first < k.end)
        k.first = tile_start(run, k.first, COLS);
    return k;
}

/* Whether the document of some query of c0 .. c0 + COLS, a tile of the run, starts before key j; every warp
 * asks for itself. */
__device__ __forceinline__ bool some_see(const Shape &s, int b, const RunAt &run, int c0, int j)
{
    int i = c0 + (int)threadIdx.x % COLS;
    bool there = (uint32_t)(i - run.start) < (uint32_t)run.n;
    return !s.doc || __any_sync(EVERY_LANE, there && s.doc[b * s.doc_rows + i] < j);
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
/* row_write of a gradient: row `row`, from column `col` on. */
template <class T, int M>
__device__ __forceinline__ void row_out(const Out &out, int64_t row, int col, float (&sum)[M], float factor,
                                        int lane, int dim)
{
    int64_t at = row * out.ld + col;
    float *real = static_cast<float *>(out.p) + at;
    if (!out.real) {
        row_write(static_cast<T *>(out.p) + at, sum, factor, lane, dim);
        return;
    }
#pragma unroll
    for (int c = 0; c < M; c++)
        if (lane + LANES * c < dim)
            real[lane + LANES * c] = (out.add ? real[lane + LANES * c] : 0) + sum[c] * factor;
}

/* The forward. row1 is q; col1 and col2 are k and v. */
template <class T, int M> __global__ void __launch_bounds__(THREADS, 4) k_plain_fwd(Plain<T> a)
{
    const Shape &s = a.s;
    int dim = s.dim, r = (int)threadIdx.x / LANES, lane = (int)threadIdx.x % LANES;
    Work w = work_at(s, s.heads, (int)blockIdx.x);
    Tile tile = tile_at(s.q, s.tiles - 1 - w.tile, ROWS, w.b, w.head);
    RunAt run = run_at(s.q, tile.run, w.b);
    int i0 = tile.first, i = min(max(i0 + r, run.start), run.start + run.n - 1);
    int of = w.head / s.group * dim;
    float *q = reinterpret_cast<float *>(shared), *k = q + ROWS * (dim + 1), *v = k + COLS * (dim + 1);
    float *p = v + COLS * (dim + 1) + r * PITCH;
    Columns seen = keys_of(s, w.b, run, i0);
    int lo = first_key(s, w.b, i);
    float largest = -1e30f, sum = 0, out[M] = {};
    HeadDrop drop = {};
    if (s.limit)
        drop = head_drop(s, w.b, w.head);
    tile_read(q, a.row1, run, i0, ROWS, w.head * dim, dim);
    for (int n = 0; n < s.k.count; n++) {
        RunAt keys = run_at(s.k, n, w.b);
        Columns in = columns_in(seen, keys);
        for (int j = in.first; j < in.end; j += COLS) {
            __syncthreads();
            tile_read(k, a.col1, keys, j, COLS, of, dim);
            tile_read(v, a.col2, keys, j, COLS, of, dim);
            __syncthreads();
            float x[EACH], top = largest, part = 0;
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                int n = lane + LANES * e;
                bool sees = j + n >= max(lo, keys.start) && j + n < min(i + 1, keys.start + keys.n);
                x[e] = sees ? s.scale * dot(q + r * (dim + 1), k + n * (dim + 1), dim) : -INFINITY;
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
                p[n] = kept(s, drop, j + n, i) ? x[e] : 0;
            }
#pragma unroll
            for (int c = 0; c < M; c++)
                out[c] *= shrink;
            __syncwarp();
            weigh(out, p, v, lane, dim);
        }
    }
    if (i0 + r != i)
        return;
    int64_t row = run.row + i - run.start;
    if (lane == 0)
        a.lse.p[row * a.lse.ld + w.head] = sum == 0 ? -INFINITY : largest + logf(sum);
    row_write(a.o.p + row * a.o.ld + w.head * dim, out, sum == 0 ? 0 : s.keep / sum, lane, dim);
}

/* The backward of one pair: P times the mask, and the gradient of its score.
 *   at     in  row of the query
 *   keep   in  bool: dropout keeps the pair
 *   score  in  q k^T; of: do v^T */
struct Pair { float p, ds; };
template <class T>
__device__ __forceinline__ Pair pair_bwd(const Plain<T> &a, int64_t at, int head, bool keep, float score,
                                         float of)
{
    float m = keep ? a.s.keep : 0, p = expf(a.s.scale * score - a.lse.p[at * a.lse.ld + head]);
    Pair x = {p * m, p * (m * of - a.delta.p[at * a.delta.ld + head])};
    return x;
}

/* The backward; rows and columns are those of attention_bwd.cu. */
template <class T, int M, bool BY_KEYS> __global__ void __launch_bounds__(THREADS, 4) k_plain_bwd(Plain<T> a)
{
    const Shape &s = a.s;
    const Runs &row_runs = BY_KEYS ? s.k : s.q, &col_runs = BY_KEYS ? s.q : s.k;
    const int dim = s.dim, pitch = dim + 1;
    int r = (int)threadIdx.x / LANES, lane = (int)threadIdx.x % LANES;
    Work w = work_at(s, BY_KEYS ? s.kv_heads : s.heads, (int)blockIdx.x);
    Tile tile = tile_at(row_runs, BY_KEYS ? w.tile : s.tiles - 1 - w.tile, ROWS, w.b, w.head);
    RunAt run = run_at(row_runs, tile.run, w.b);
    int r0 = tile.first, mine = min(max(r0 + r, run.start), run.start + run.n - 1);
    float *row1 = reinterpret_cast<float *>(shared), *row2 = row1 + ROWS * pitch, *col1 = row2 + ROWS * pitch;
    float *col2 = col1 + COLS * pitch, *ds = col2 + COLS * pitch + r * PITCH, *p = ds + ROWS * PITCH;
    int head0 = BY_KEYS ? w.head * s.group : w.head, heads = BY_KEYS ? s.group : 1;
    float sum1[M] = {}, sum2[M] = {};
    Columns seen = {r0, s.window ? r0 + ROWS - 1 + s.window : 0x7fffffff};
    if (!BY_KEYS)
        seen = keys_of(s, w.b, run, r0);
    tile_read(row1, a.row1, run, r0, ROWS, w.head * dim, dim);
    tile_read(row2, a.row2, run, r0, ROWS, w.head * dim, dim);
    for (int turn = 0; turn < heads * col_runs.count; turn++) {
        RunAt cols = run_at(col_runs, turn / heads, w.b);
        Columns in = columns_in(seen, cols);
        int head = head0 + turn % heads;
        int of = (BY_KEYS ? head : head / s.group) * dim;
        HeadDrop drop = s.limit ? head_drop(s, w.b, head) : HeadDrop();
        for (int c0 = in.first; c0 < in.end; c0 += COLS) {
            if (BY_KEYS && !some_see(s, w.b, cols, c0, r0 + ROWS))
                continue;
            __syncthreads();
            tile_read(col1, a.col1, cols, c0, COLS, of, dim);
            tile_read(col2, a.col2, cols, c0, COLS, of, dim);
            __syncthreads();
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                int n = lane + LANES * e, col = c0 + n;
                int key = BY_KEYS ? mine : col, i = BY_KEYS ? col : mine;
                const RunAt &queries = BY_KEYS ? cols : run;
                bool sees = (uint32_t)(col - cols.start) < (uint32_t)cols.n && key <= i;
                Pair x = {};
                if (sees && key >= first_key(s, w.b, i))
                    x = pair_bwd(a, queries.row + i - queries.start, head, kept(s, drop, key, i),
                                 dot(row1 + r * pitch, col1 + n * pitch, dim),
                                 dot(row2 + r * pitch, col2 + n * pitch, dim));
                ds[n] = x.ds, p[n] = x.p;
            }
            __syncwarp();
            weigh(sum1, ds, col1, lane, dim);
            if (BY_KEYS)
                weigh(sum2, p, col2, lane, dim);
        }
    }
    if (r0 + r != mine)
        return;
    int64_t row = run.row + mine - run.start;
    row_out<T>(a.out1, row, w.head * dim, sum1, s.scale, lane, dim);
    if (BY_KEYS)
        row_out<T>(a.out2, row, w.head * dim, sum2, 1, lane, dim);
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
template <class Run> static void with_columns(Dtype type, int dim, Run run)
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
        Plain<T> a = {shape_of(s, 0, s->heads, ROWS, q.type), view<T>(q), {}, view<T>(k), view<T>(v),
                      view<T>(o), {}, {}, view<float>(lse), {}};
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
        View<T> vq = view<T>(q), vk = view<T>(k), vv = view<T>(v), vdo = view<T>(dout);
        Shape keys = shape_of(s, 1, s->kv_heads, ROWS, q.type);
        Shape queries = shape_of(s, 0, s->heads, ROWS, q.type);
        Out odq = out_of(dq, q.type, s->add), odk = out_of(dk, q.type, 0), odv = out_of(dv, q.type, 0);
        Plain<T> by_keys = {keys, vk, vv, vq, vdo, {}, odk, odv, l, sums};
        Plain<T> by_queries = {queries, vq, vdo, vk, vv, {}, odq, {}, l, sums};
        attention_fits(c, bytes, s->dim);
        LAUNCH((k_plain_delta<T>), blocks_of(ceil_div(n, 32)), 256, 0, c->compute, vdo, view<T>(o), sums,
               s->heads, s->dim, n);
        LAUNCH((k_plain_bwd<T, M, true>), blocks_of((int64_t)by_keys.s.tiles * s->batch * s->kv_heads),
               THREADS, bytes, c->compute, by_keys);
        LAUNCH((k_plain_bwd<T, M, false>), blocks_of((int64_t)by_queries.s.tiles * s->batch * s->heads),
               THREADS, bytes, c->compute, by_queries);
    });
}
