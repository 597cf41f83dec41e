/* embed -- looks up rows of the token and position tables, and sums their gradients.
 *
 * The backward adds the rows of dy that belong to one row of a table, in the order of the tokens,
 * without float atomics. Its launches:
 *   1 count    counts the tokens of each row; a token keeps its number of arrival
 *   2 place    gives each row a range of a list, and puts rows with more tokens than a segment on a
 *              second list
 *   3 scatter  writes tokens into their row's range, in any order
 *   4 order    sorts each range: a token's place is the number of smaller tokens in the range
 *   5 sum      adds a segment of tokens, to the gradient, or of a long row to a partial sum
 *   6 total    adds the partial sums of the long rows, in order
 * The order of the ranges may change from run to run, but the order of the additions depends on the
 * tokens only. */
#include "common.cuh"

enum { THREADS = 256, EACH = 2, SUM_THREADS = 128, AHEAD = 4 };
static const int64_t SEGMENT = 128,    /* least tokens of a segment */
    ROWS = 1 << 21, TOKENS = 1 << 20;  /* rows and tokens at a time, whose arrays fit into the workspace */

extern __shared__ __align__(16) char shared[];

/* ---- forward ---- */

struct Embed {
    void *y;
    const void *wte, *wpe;
    const int32_t *token, *position;
    int64_t ldy, ldt, ldp, v0, vocab, positions;
    uint32_t total;
    Divider per_row;
};

template <class T, int N> __global__ void __launch_bounds__(THREADS) k_embed(const Embed j)
{
    uint32_t first = blockIdx.x * (THREADS * EACH) + threadIdx.x;
    Chunk<T, N> a[EACH], b[EACH];
    int64_t v[EACH], p[EACH];
    float f[N], e[N];
#pragma unroll
    for (int u = 0; u < EACH; u++) {
        uint32_t i = first + u * THREADS, r = i / j.per_row;
        int64_t c = (int64_t)(i - r * j.per_row.d) * N;
        v[u] = p[u] = -1;
        if (i >= j.total)
            continue;
        v[u] = j.token[r] - j.v0;
        if (v[u] >= 0 && v[u] < j.vocab)
            a[u].load((const T *)j.wte + v[u] * j.ldt + c);
        if (j.wpe) {
            p[u] = j.position[r];
            if (p[u] >= 0 && p[u] < j.positions)
                b[u].load((const T *)j.wpe + p[u] * j.ldp + c);
        }
    }
#pragma unroll
    for (int u = 0; u < EACH; u++) {
        uint32_t i = first + u * THREADS, r = i / j.per_row;
        if (i >= j.total)
            continue;
#pragma unroll
        for (int k = 0; k < N; k++)
            f[k] = 0;
        if (v[u] >= 0 && v[u] < j.vocab)
            a[u].get(f);
        if (j.wpe) {
            b[u].get(e);
#pragma unroll
            for (int k = 0; k < N; k++)        /* a position outside of the table shows as NaN */
                f[k] += p[u] >= 0 && p[u] < j.positions ? e[k] : nanf("");
        }
        put_floats<N>((T *)j.y + (int64_t)r * j.ldy + (int64_t)(i - r * j.per_row.d) * N, f);
    }
}

void cuda_embed_fwd(Device *d, Mat y, const int32_t *token, const int32_t *position, Mat wte, int64_t v0,
                    Mat wpe)
{
    int64_t n = 16 / (int64_t)dtype_size(y.type);
    BUG_ON(wte.cols != y.cols || wte.type != y.type || (wpe.p && (wpe.cols != y.cols || wpe.type != y.type)));
    if (!y.rows || !y.cols)
        return;
    if (!aligned(y) || !aligned(wte) || !aligned(wpe) || y.cols % n)
        n = 1;
    BUG_ON(y.rows * y.cols / n >= (int64_t)1 << 31);
    Embed j = {y.p, wte.p, wpe.p, token, position, y.ld, wte.ld, wpe.ld, v0, wte.rows, wpe.rows,
               (uint32_t)(y.rows * y.cols / n), divider(y.cols / n)};
    with_type(y.type, [&](auto t) {
        typedef decltype(t) T;
        unsigned grid = blocks_of(ceil_div(j.total, THREADS * EACH));
        if (n > 1)
            LAUNCH((k_embed<T, Piece<T>::N>), grid, THREADS, 0, cuda_of(d)->compute, j);
        else
            LAUNCH((k_embed<T, 1>), grid, THREADS, 0, cuda_of(d)->compute, j);
    });
}

/* ---- backward ---- */

/* The gradient of one table. Its arrays are in the workspace. */
struct Back {
    const int32_t *row_of;     /* [tokens] row of the table plus row0; outside of the table: skipped */
    int64_t row0, rows;
    int tokens, segment;       /* number of tokens; tokens of a segment */
    int *count, *start, *base; /* [rows] tokens of a row, start of its range, its first partial sum */
    int *arrival;              /* [tokens] how many tokens of the same row arrived before */
    int *list, *sorted;        /* [tokens] tokens by ranges: in any order, in order */
    int *long_rows;            /* [tokens / SEGMENT + 1] rows with more tokens than a segment */
    int *cursor;               /* [3] entries used of list, of partial, of long_rows */
    void *dw;                  /* the gradient */
    float *partial;            /* partial sums [.., cols] */
    const void *dy;
    int64_t lddw, lddy;
    int cols, tiles;           /* columns; blocks across them */
};

__device__ __forceinline__ int64_t row_of_token(const Back &j, int i)
{
    int64_t r = j.row_of[i] - j.row0;
    return r >= 0 && r < j.rows ? r : -1;
}

__global__ void __launch_bounds__(THREADS) k_embed_clear(const Back j)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < j.rows)
        j.count[i] = 0;
    if (i < 3)
        j.cursor[i] = 0;
}

__global__ void __launch_bounds__(THREADS) k_embed_count(const Back j)
{
    int i = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (i >= j.tokens)
        return;
    int64_t r = row_of_token(j, i);
    if (r >= 0)
        j.arrival[i] = atomicAdd(&j.count[r], 1);
}

/* Takes n from a counter that all blocks share, with one atomic a block, and returns this thread's first
 * number.
 *   memory  out  [warps + 1]  shared memory, scratch */
__device__ __forceinline__ int take_range(int n, int *counter, int *memory)
{
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, before = n, base = 0;
    for (int o = 1; o < WARP; o <<= 1) {
        int x = __shfl_up_sync(EVERY_LANE, before, o);
        before += lane >= o ? x : 0;
    }
    if (lane == WARP - 1)
        memory[warp] = before;
    __syncthreads();
    if (threadIdx.x == 0) {
        int all = 0;
        for (int w = 0; w < THREADS / WARP; w++)
            all += memory[w];
        memory[THREADS / WARP] = all ? atomicAdd(counter, all) : 0;
    }
    __syncthreads();
    for (int w = 0; w < warp; w++)
        base += memory[w];
    base += memory[THREADS / WARP];
    __syncthreads();
    return base + before - n;
}

__global__ void __launch_bounds__(THREADS) k_embed_place(const Back j)
{
    int64_t r = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int n = r < j.rows ? j.count[r] : 0, is_long = n > j.segment, *memory = (int *)shared;
    int start = take_range(n, &j.cursor[0], memory);
    int base = take_range(is_long ? (n + j.segment - 1) / j.segment : 0, &j.cursor[1], memory);
    int at = take_range(is_long, &j.cursor[2], memory);
    if (r < j.rows) {
        j.start[r] = start;
        j.base[r] = base;
    }
    if (is_long)
        j.long_rows[at] = (int)r;
}

__global__ void __launch_bounds__(THREADS) k_embed_scatter(const Back j)
{
    int i = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (i >= j.tokens)
        return;
    int64_t r = row_of_token(j, i);
    if (r >= 0)
        j.list[j.start[r] + j.arrival[i]] = i;
}

/* A thread is a place in the list, not a token: neighbouring threads then mostly read the same range. */
__global__ void __launch_bounds__(THREADS) k_embed_order(const Back j)
{
    int at = (int)(blockIdx.x * THREADS + threadIdx.x), before = 0;
    if (at >= j.cursor[0])
        return;
    int token = j.list[at];
    int64_t r = row_of_token(j, token);
    const int *range = j.list + j.start[r];
    int n = j.count[r];
#pragma unroll 4
    for (int k = 0; k < n; k++)
        before += range[k] < token;
    j.sorted[j.start[r] + before] = token;
}

/* A block is a place of the sorted list and a tile of columns; it works if a segment starts at that
 * place. */
template <class T, class G, int N> __global__ void __launch_bounds__(SUM_THREADS) k_embed_sum(const Back j)
{
    int at = (int)blockIdx.x / j.tiles, c = ((int)blockIdx.x % j.tiles * SUM_THREADS + (int)threadIdx.x) * N;
    float sum[N], f[N];
    Chunk<T, N> v[AHEAD];
    if (at >= j.cursor[0])
        return;
    int64_t r = row_of_token(j, j.sorted[at]);
    int n = j.count[r], from = at - j.start[r], to = from + j.segment < n ? from + j.segment : n;
    if (from % j.segment || c >= j.cols)
        return;
    const int *token = j.sorted + (at - from);
    G *out = (G *)j.dw + r * j.lddw + c;
    if (n > j.segment) {
#pragma unroll
        for (int i = 0; i < N; i++)
            sum[i] = 0;
    } else {
        get_floats<N>(sum, out);
    }
    for (int k = from; k < to; k += AHEAD) {
#pragma unroll
        for (int u = 0; u < AHEAD; u++)
            if (k + u < to)
                v[u].load((const T *)j.dy + (int64_t)token[k + u] * j.lddy + c);
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            if (k + u >= to)
                continue;
            v[u].get(f);
#pragma unroll
            for (int i = 0; i < N; i++)
                sum[i] += f[i];
        }
    }
    if (n > j.segment)
        put_floats<N>(j.partial + (int64_t)(j.base[r] + from / j.segment) * j.cols + c, sum);
    else
        put_floats<N>(out, sum);
}

template <class G> __global__ void __launch_bounds__(SUM_THREADS) k_embed_total(const Back j)
{
    int at = (int)blockIdx.x / j.tiles, c = (int)blockIdx.x % j.tiles * SUM_THREADS + (int)threadIdx.x;
    if (at >= j.cursor[2] || c >= j.cols)
        return;
    int r = j.long_rows[at], segments = (j.count[r] + j.segment - 1) / j.segment;
    const float *part = j.partial + (int64_t)j.base[r] * j.cols + c;
    G *out = (G *)j.dw + r * j.lddw + c;
    float sum = to_float(*out);
#pragma unroll 4
    for (int k = 0; k < segments; k++)
        sum += part[(int64_t)k * j.cols];
    from_float(out, sum);
}

/* Launches the sums; T: dy's type, G: dw's.
 *   pieces  in  bool: dy and dw can be accessed in pieces */
template <class T, class G> static void sum_rows(cudaStream_t stream, Back j, int pieces)
{
    enum { N = Piece<T>::N };
    int64_t across = ceil_div(j.cols, SUM_THREADS), most = j.tokens / j.segment + 1;
    j.tiles = (int)ceil_div(j.cols, SUM_THREADS * (pieces ? N : 1));
    unsigned grid = blocks_of((int64_t)j.tokens * j.tiles);
    if (pieces)
        LAUNCH((k_embed_sum<T, G, N>), grid, SUM_THREADS, 0, stream, j);
    else
        LAUNCH((k_embed_sum<T, G, 1>), grid, SUM_THREADS, 0, stream, j);
    j.tiles = (int)across;
    LAUNCH((k_embed_total<G>), blocks_of(most * across), SUM_THREADS, 0, stream, j);
}

/* Adds at most TOKENS rows of dy to at most ROWS rows of one table's gradient.
 *   dw      in/out  [rows, H]  real
 *   row0    in                 what row_of says of the first row of dw
 *   dy      in      [T, H]     storage
 *   row_of  in      [T]        row of dw plus row0, for each row of dy */
static void rows_bwd(Device *d, Mat dw, int64_t row0, Mat dy, const int32_t *row_of)
{
    Cuda *c = cuda_of(d);
    int64_t n = 16 / (int64_t)dtype_size(dy.type), tokens = dy.rows, longest = tokens / SEGMENT + 1,
            segment = SEGMENT;
    BUG_ON(dw.cols != dy.cols || !is_gradient(dw.type, dy.type));
    if (!dy.cols)
        return;
    if (!aligned(dy) || !aligned(dw) || dy.cols % n)
        n = 1;
    /* a row longer than a segment has at most two partial sums for each whole segment of its tokens */
    int64_t words = 3 * dw.rows + 3 * tokens + longest + 3, most = (int64_t)(CUDA_WORKSPACE / 4) - words;
    while (2 * (tokens / segment) * dy.cols > most)
        segment *= 2;
    int64_t partials = 2 * (tokens / segment);
    int *memory = (int *)cuda_workspace(c, (size_t)(words + partials * dy.cols) * 4);
    Back j = {};
    j.row_of = row_of, j.row0 = row0, j.rows = dw.rows;
    j.tokens = (int)tokens;
    j.segment = (int)segment;
    j.partial = (float *)memory;       /* first in memory, for 16-byte accesses */
    j.count = memory + partials * dy.cols, j.start = j.count + dw.rows, j.base = j.start + dw.rows;
    j.arrival = j.base + dw.rows, j.list = j.arrival + tokens, j.sorted = j.list + tokens;
    j.long_rows = j.sorted + tokens, j.cursor = j.long_rows + longest;
    j.dw = dw.p, j.lddw = dw.ld;
    j.dy = dy.p, j.lddy = dy.ld;
    j.cols = (int)dy.cols;
    unsigned by_token = blocks_of(ceil_div(tokens, THREADS)), by_row = blocks_of(ceil_div(dw.rows, THREADS));
    LAUNCH(k_embed_clear, by_row, THREADS, 0, c->compute, j);
    LAUNCH(k_embed_count, by_token, THREADS, 0, c->compute, j);
    LAUNCH(k_embed_place, by_row, THREADS, sizeof(int) * (THREADS / WARP + 1), c->compute, j);
    LAUNCH(k_embed_scatter, by_token, THREADS, 0, c->compute, j);
    LAUNCH(k_embed_order, by_token, THREADS, 0, c->compute, j);
    if (dw.type == BF16)
        sum_rows<Bf16, Bf16>(c->compute, j, n > 1);
    else
        with_type(dy.type, [&](auto t) { sum_rows<decltype(t), float>(c->compute, j, n > 1); });
}

/* Adds rows of dy, one for each token, to one table's gradient. */
static void table_bwd(Device *d, Mat dw, int64_t row0, Mat dy, const int32_t *row_of)
{
    for (int64_t r = 0; r < dw.rows; r += ROWS)
        for (int64_t t = 0; t < dy.rows; t += TOKENS) {
            int64_t rows = dw.rows - r < ROWS ? dw.rows - r : ROWS,
                    tokens = dy.rows - t < TOKENS ? dy.rows - t : TOKENS;
            rows_bwd(d, mat_rows(dw, r, rows), row0 + r, mat_rows(dy, t, tokens), row_of + t);
        }
}

void cuda_embed_bwd(Device *d, Mat dwte, int64_t v0, Mat dwpe, Mat dy, const int32_t *token,
                    const int32_t *position)
{
    if (dwte.p)
        table_bwd(d, dwte, v0, dy, token);
    if (dwpe.p)
        table_bwd(d, dwpe, 0, dy, position);
}
