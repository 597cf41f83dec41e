/* attention_bwd -- attention's backward by mma.sync.
 *
 * With P = exp(score - lse), delta = rowsum(do * o) and M the dropout mask / (1 - p):
 *
 *   dv = (P M)^T do      ds = P ((do v^T) M - delta)      dq = ds k scale      dk = ds^T q scale
 *
 * (Dao 2023, arXiv:2307.08691, sec 3.1). P is computed again from q, k and lse. One kernel has several
 * roles:
 *   QUERIES   a block has a tile of queries (rows) and makes dq; columns are keys and values
 *   KEYS      a block has a tile of keys (rows) and makes dk and dv; columns are queries and do of all
 *             query heads of the group; scores are transposed, k q^T
 *   KEYS_DK   makes dk only: with heads of 256 the sums of dk and dv together do not fit the registers
 *   KEYS_DV   makes dv only
 *
 * Together these have seven matrix products (eight with heads of 256), because scores and do v^T are
 * computed twice; one kernel by keys would have five. In exchange P and ds stay in registers between
 * products, warps exchange nothing, a tile has one barrier, and dq is summed in registers in a fixed
 * order. One kernel by keys would need ds in shared memory for dq, and would add F32 partial sums of dq
 * to memory for every key tile, 16 KB for 64 queries of 64, cleared before and converted after: with
 * atomics two runs differ in their bits; in a fixed order blocks wait for each other; kept apart, the
 * sums are T / 64 times the size of dq.
 *
 * A row adds up its tiles in order, so every run has the same bits. */
#include "attention.cuh"
#include "attention.h"

namespace {

enum Role { QUERIES, KEYS, KEYS_DK, KEYS_DV };

/* A block has ROWS rows, a warp MT * 16 of them. Tiles of COLS columns alternate between two stages of
 * shared memory: one is used while the other is being copied. */
template <int D, int ROLE, bool DROP> struct Bwd {
    static constexpr int WARPS = 4, THREADS = 32 * WARPS, AHEAD = Copies<D, DROP>::AHEAD;
    static constexpr int MT = D == 64 || (ROLE == QUERIES && D < 256) ? 2 : 1;
    static constexpr int COLS = ROLE == QUERIES ? D == 64 && !DROP ? 64 : D == 128 && DROP ? 16 : 32
                                                : D == 80 || D == 96 ? 64 : D == 64 && DROP ? 16 : 32;
    static constexpr int ROWS = 16 * MT * WARPS, BLOCKS = D == 256 ? 1 : 2;
    static constexpr int HELD = ROWS * D * 2, TILE = COLS * D * 2;
    /* bytes of a stage: two tiles; in the roles by keys also lse, delta and document start of each
     * column */
    static constexpr int STAGE = 2 * TILE + (ROLE == QUERIES ? 0 : (3 * COLS * 4 + 127) / 128 * 128);
    static constexpr int AFTER = (ROLE == KEYS_DV ? 1 : 2) * HELD;     /* start of the stages */
    /* behind the stages: first key, lse and delta of each row (QUERIES), four numbers a warp, the Tile */
    static constexpr size_t BYTES =
        (size_t)AFTER + 2 * STAGE + ((ROLE == QUERIES ? 3 * ROWS : 0) + 4 * WARPS + 4) * 4;
    static_assert(STAGE % 128 == 0 && AFTER % 128 == 0 && COLS <= THREADS, "");
};

/* row1, row2: k and v, or q and do with role QUERIES. col1, col2: the other two. out1, out2: dk and dv,
 * or dq. */
template <class T> struct Backward {
    Shape s;
    View<T> row1, row2, col1, col2;
    Out out1, out2;
    View<float> lse, delta;
};

/* Queries of a run outside of [first, end) see none of keys [j0, j1). A query before `clear` sees each of
 * these keys that is not after the query. */
struct Queries { int first, end, clear; };

/* Computes the queries of a run that see keys [j0, j1) of sample b; it reads the document start of each
 * query.
 *   slot  out  [2 warps]  shared memory, scratch */
__device__ __forceinline__ Queries queries_of(const Shape &s, int b, const RunAt &run, int j0, int j1,
                                              int *slot)
{
    int stop = run.start + run.n;
    Queries a = {max(run.start, j0), stop, stop};
    if (s.window) {
        a.end = min(a.end, j1 - 1 + s.window);
        a.clear = min(a.clear, j0 + s.window);
    }
    if (!s.doc || a.first >= a.end)
        return a;
    int end = 0, clear = a.clear, warp = (int)threadIdx.x / WARP;
    for (int i = a.first + (int)threadIdx.x; i < a.end; i += (int)blockDim.x) {
        int start = s.doc[b * s.doc_rows + i];
        if (start < j1)
            end = i + 1;
        if (start > j0)
            clear = min(clear, i);
    }
    for (int o = WARP / 2; o; o >>= 1) {
        end = max(end, __shfl_xor_sync(EVERY_LANE, end, o));
        clear = min(clear, __shfl_xor_sync(EVERY_LANE, clear, o));
    }
    if (threadIdx.x % WARP == 0)
        slot[2 * warp] = end, slot[2 * warp + 1] = clear;
    __syncthreads();
    a.end = 0;
    for (int i = 0; i < (int)blockDim.x / WARP; i++)
        a.end = max(a.end, slot[2 * i]), a.clear = min(a.clear, slot[2 * i + 1]);
    return a;
}

/* Sets transposed scores to -inf where the query does not see the key.
 *   c    in/out  [16 MT][8 N]  scores: rows are keys from j0 on, columns queries from i0 on
 *   doc  in      [8 N]         document start of each query; unused without documents */
template <int MT, int N>
__device__ __forceinline__ void mask_columns(float (&c)[MT][N][4], const Shape &s, const int *doc, int j0,
                                             int i0)
{
    int lane = (int)threadIdx.x % WARP, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int r = 8 * n + 2 * t + e, i = i0 + r, lo = s.doc ? doc[r] : 0;
            if (s.window)
                lo = max(lo, i - s.window + 1);
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    int j = j0 + 16 * m + 8 * half + g;
                    if (j < lo || j > i)
                        c[m][n][2 * half + e] = -INFINITY;
                }
        }
}

/* Returns lse in units of log 2. For a row that sees nothing it is infinite, so that P is 0. */
__device__ __forceinline__ float lse_log2(float lse)
{
    return lse == -INFINITY ? INFINITY : lse * ATTENTION_LOG2E;
}

template <class T, int D, int ROLE, bool DROP>
__global__ void __launch_bounds__(Bwd<D, ROLE, DROP>::THREADS, Bwd<D, ROLE, DROP>::BLOCKS)
    k_attention_bwd(Backward<T> a)
{
    using B = Bwd<D, ROLE, DROP>;
    constexpr int MT = B::MT, COLS = B::COLS, N = COLS / 8;
    constexpr bool BY_KEYS = ROLE != QUERIES, MAKES1 = ROLE != KEYS_DV,
                   MAKES2 = ROLE == KEYS || ROLE == KEYS_DV;
    const Shape &s = a.s;
    const Runs &row_runs = BY_KEYS ? s.k : s.q, &col_runs = BY_KEYS ? s.q : s.k;
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    int mine = warp * 16 * MT;
    SharedAt held = shared_at(shared), stages = held + B::AFTER;
    int *after = reinterpret_cast<int *>(shared + B::AFTER + 2 * B::STAGE), *lo = after + mine;
    int *slot = after + (BY_KEYS ? 0 : 3 * B::ROWS);
    float *row_stat = reinterpret_cast<float *>(lo) + B::ROWS;
    Span *spans = reinterpret_cast<Span *>(slot);
    Tile *tile = reinterpret_cast<Tile *>(spans + B::WARPS);

    {
        Work w = work_at(s, BY_KEYS ? s.kv_heads : s.heads, (int)blockIdx.x);
        Tile x = tile_at(row_runs, BY_KEYS ? w.tile : s.tiles - 1 - w.tile, B::ROWS, w.b, w.head);
        RunAt run = run_at(row_runs, x.run, x.b);
        auto hold = [&](SharedAt to, const View<T> &v) {
            tile_load<D, B::ROWS, B::THREADS, B::AHEAD>(to, v.p + run.row * v.ld + x.head * D, v.ld,
                                                        x.first - run.start, run.n);
        };
        hold(held, a.row1);
        if (MAKES1)
            hold(held + B::HELD, a.row2);
        cp_async_commit();
        if (!BY_KEYS) {
            int r = x.first + mine + lane - run.start;
            bool there = (uint32_t)r < (uint32_t)run.n;
            span_make<16 * MT>(spans + warp, lo, s, x.b, run, x.first + mine);
            if (lane < 16 * MT) {
                int64_t at = run.row + r;
                row_stat[lane] = there ? lse_log2(a.lse.p[at * a.lse.ld + x.head]) : INFINITY;
                row_stat[lane + B::ROWS] = there ? a.delta.p[at * a.delta.ld + x.head] : 0;
            }
        }
        if (threadIdx.x == 0)
            *tile = x;
    }
    __syncthreads();

    float sum1[MAKES1 ? MT : 1][D / 8][4], sum2[MAKES2 ? MT : 1][D / 8][4];
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                if (MAKES1)
                    sum1[m][n][e] = 0;
                if (MAKES2)
                    sum2[m][n][e] = 0;
            }
    Lane<D> row_lane(held + mine * D * 2, true), along(stages, false), across(stages, true);
    HeadDrop drop = {};

    for (int i = 0; i < col_runs.count; i++) {
        RunAt run = run_at(col_runs, i, tile->b);
        int first, end, clear = 0;
        if (i)
            __syncthreads();           /* no thread reads what belongs to the run before any more */
        if (BY_KEYS) {
            RunAt keys = run_at(row_runs, tile->run, 0);
            int j0 = max(tile->first, keys.start), j1 = min(tile->first + B::ROWS, keys.start + keys.n);
            Queries all = queries_of(s, tile->b, run, j0, j1, slot);
            first = all.first, end = all.end, clear = all.clear;
        } else {
            span_join(&first, &end, spans, B::WARPS, run);
        }
        if (first >= end)
            continue;
        first = tile_start(run, first, COLS);
        /* columns [first, end) of query heads [head, head_end) */
        int head = tile->head * (BY_KEYS ? s.group : 1), head_end = head + s.group;
        const T *col1 = a.col1.p + run.row * a.col1.ld, *col2 = a.col2.p + run.row * a.col2.ld;
        auto load = [&](int stage, int h, int c0) {
            SharedAt to = stages + stage * B::STAGE;
            RunAt now = run_at(col_runs, again(i), tile->b);
            int of = (BY_KEYS ? h : h / s.group) * D, r = c0 - now.start;
            tile_load<D, COLS, B::THREADS, B::AHEAD>(to, col1 + of, a.col1.ld, r, now.n);
            tile_load<D, COLS, B::THREADS, B::AHEAD>(to + B::TILE, col2 + of, a.col2.ld, r, now.n);
            if (BY_KEYS && (int)threadIdx.x < COLS) {
                r += (int)threadIdx.x;
                bool there = (uint32_t)r < (uint32_t)now.n;
                int64_t at = there ? now.row + r : 0;
                SharedAt stat = to + 2 * B::TILE + 4 * threadIdx.x;
                cp_async4(stat, a.lse.p + at * a.lse.ld + h, there);
                if (MAKES1)
                    cp_async4(stat + 4 * COLS, a.delta.p + at * a.delta.ld + h, there);
                if (s.doc)
                    cp_async4(stat + 8 * COLS, s.doc + (there ? tile->b * s.doc_rows + now.start + r : 0),
                              there);
            }
            cp_async_commit();
        };
        int c0 = first, stage = 0;
        auto more = [&](int h, int c) { return BY_KEYS ? h < head_end : c < end; };
        load(0, head, c0);
        cp_async_wait<0>();
        __syncthreads();

        while (more(head, c0)) {
            bool wrap = BY_KEYS && c0 + COLS >= end;
            int next_head = head + wrap, next = wrap ? first : c0 + COLS;
            if (more(next_head, next))
                load(stage ^ 1, next_head, next);
            if (!BY_KEYS) {        /* computed again, which is cheap, because registers are short */
                int me = (int)thread_again();
                warp = me / WARP, g = me % WARP / 4, t = me % 4, mine = warp * 16 * MT;
                lo = after + mine, row_stat = reinterpret_cast<float *>(lo) + B::ROWS;
            }
            /* none: this warp's rows see nothing of the tile; masked: they do not see all of it */
            int r0 = tile->first + mine;
            RunAt now = run_at(col_runs, again(i), 0);
            bool none, masked;
            if (BY_KEYS) {
                none = c0 + COLS <= r0 || (s.window && c0 - s.window >= r0 + 16 * MT - 1);
                masked = r0 + 16 * MT - 1 > c0 || c0 + COLS > clear;
            } else {
                none = span_none(spans[warp], c0, COLS);
                masked = span_masked(spans[warp], c0, COLS, now);
            }
            if (!none) {
                float c[MT][N][4], x[MT][N][4];
                const char *stats = shared + B::AFTER + stage * B::STAGE + 2 * B::TILE;
                Lane<D> at = along, row2 = row_lane;
                at.row += stage * B::STAGE;
                scores<T, D>(c, row_lane, at);
                if (masked && BY_KEYS)
                    mask_columns(c, s, reinterpret_cast<const int *>(stats) + 2 * COLS, r0, c0);
                else if (masked)
                    mask_rows(c, now, lo, r0, c0);
                if (MAKES1) {
                    at.row += B::TILE;
                    row2.row += B::HELD;
                    scores<T, D>(x, row2, at);
                }
                if (DROP)
                    drop = head_drop(s, tile->b, head);
#pragma unroll
                for (int n = 0; n < N; n++) {
                    float col_lse[2] = {}, col_delta[2] = {};
                    if (BY_KEYS) {
                        const float *stat = reinterpret_cast<const float *>(stats) + 8 * n + 2 * t;
                        col_lse[0] = lse_log2(stat[0]), col_lse[1] = lse_log2(stat[1]);
                        if (MAKES1)
                            col_delta[0] = stat[COLS], col_delta[1] = stat[COLS + 1];
                    }
#pragma unroll
                    for (int m = 0; m < MT; m++) {
                        const float *of_row = row_stat + 16 * m + g;
                        bool keep[4] = {true, true, true, true};
                        if (DROP && BY_KEYS)
                            drop_columns(keep, s, drop, r0 + 16 * m, c0 + 8 * n);
                        else if (DROP)
                            drop_rows(keep, s, drop, r0 + 16 * m, c0 + 8 * n);
#pragma unroll
                        for (int e = 0; e < 4; e++) {
                            float lse = BY_KEYS ? col_lse[e & 1] : of_row[e / 2 * 8];
                            float p = exp2_approx(c[m][n][e] * s.scale2 - lse);
                            if (MAKES1) {
                                float y = DROP ? (keep[e] ? x[m][n][e] * s.keep : 0) : x[m][n][e];
                                float delta = BY_KEYS ? col_delta[e & 1] : of_row[e / 2 * 8 + B::ROWS];
                                x[m][n][e] = p * (y - delta);
                            }
                            c[m][n][e] = keep[e] ? p : 0;
                        }
                    }
                }
                at = across;
                if (!BY_KEYS)              /* the same place as in the row tile */
                    at.row = row_lane.row + stages - held - mine * D * 2;
                at.row += stage * B::STAGE;
                if constexpr (MAKES1)
                    weighted<T, D>(sum1, x, at);
                at.row += B::TILE;
                if constexpr (MAKES2)
                    weighted<T, D>(sum2, c, at);
            }
            cp_async_wait<0>();
            __syncthreads();               /* all see the next tiles, and no thread reads these any more */
            head = next_head, c0 = next, stage ^= 1;
        }
    }

    cp_async_wait<0>();
    __syncthreads();                   /* the output goes where the rows were: all copies must be complete */
    mine = (int)thread_again() / WARP * 16 * MT;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                if (MAKES1)
                    sum1[m][n][e] *= s.scale;
                if (MAKES2)
                    sum2[m][n][e] *= s.keep;
            }
    char *to = shared + mine * D * 2;
    RunAt run = run_at(row_runs, tile->run, tile->b);
    int r0 = tile->first - run.start + mine, col = tile->head * D;
    if constexpr (MAKES1)
        rows_out<T, D, MT>(to, sum1, a.out1, run.row, col, r0, run.n);
    if (MAKES1 && MAKES2)
        __syncwarp();
    if constexpr (MAKES2)
        rows_out<T, D, MT>(to, sum2, a.out2, run.row, col, r0, run.n);
}

/* delta [B*seq_q, A] = rowsum(do * o): eight lanes a row of a head, 16 bytes at a time. */
template <class T, int D>
__global__ void k_attention_delta(View<T> dout, View<T> o, View<float> delta, int heads, int64_t n)
{
    int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 8;
    int64_t row = i / heads, head = i - row * heads;
    float sum = 0;
    for (int c = 8 * (int)(threadIdx.x % 8); i < n && c < D; c += 64) {
        Piece<T> a, b;
        float x[8], y[8];
        a.load(dout.p + row * dout.ld + head * D + c);
        b.load(o.p + row * o.ld + head * D + c);
        a.get(x), b.get(y);
#pragma unroll
        for (int e = 0; e < 8; e++)
            sum += x[e] * y[e];
    }
    sum = warp_sum(sum, 8);
    if (i < n && threadIdx.x % 8 == 0)
        delta.p[row * delta.ld + head] = sum;
}

template <class T, int D, int ROLE, bool DROP> void launch_role(Cuda *c, Backward<T> a, const Attention *s)
{
    using B = Bwd<D, ROLE, DROP>;
    int heads = ROLE == QUERIES ? s->heads : s->kv_heads;
    a.s = shape_of(s, ROLE != QUERIES, heads, B::ROWS, BF16);
    attention_fits(c, B::BYTES, D);
    LAUNCH((k_attention_bwd<T, D, ROLE, DROP>), blocks_of((int64_t)a.s.tiles * s->batch * heads), B::THREADS,
           B::BYTES, c->compute, a);
}
template <class T, int D, int ROLE> void launch(Cuda *c, const Backward<T> &a, const Attention *s)
{
    if (s->dropout > 0)
        launch_role<T, D, ROLE, true>(c, a, s);
    else
        launch_role<T, D, ROLE, false>(c, a, s);
}

template <class T, int D, int ROLE> void open(const Cuda *c)
{
    attention_shared(c, k_attention_bwd<T, D, ROLE, true>, Bwd<D, ROLE, true>::BYTES);
    attention_shared(c, k_attention_bwd<T, D, ROLE, false>, Bwd<D, ROLE, false>::BYTES);
}
template <class T, int D> void open_roles(const Cuda *c)
{
    open<T, D, QUERIES>(c);
    if constexpr (D == 256)
        open<T, D, KEYS_DK>(c), open<T, D, KEYS_DV>(c);
    else
        open<T, D, KEYS>(c);
}

template <class T>
void run(Cuda *c, Mat dq, Mat dk, Mat dv, Mat dout, Mat o, Mat lse, Mat delta, Mat q, Mat k, Mat v,
         const Attention *s)
{
    View<T> vq = view<T>(q), vk = view<T>(k), vv = view<T>(v), vdo = view<T>(dout);
    View<float> l = view<float>(lse), sums = view<float>(delta);
    Backward<T> by_queries = {{}, vq, vdo, vk, vv, out_of(dq, q.type, s->add), {}, l, sums};
    Backward<T> by_keys = {{}, vk, vv, vq, vdo, out_of(dk, q.type, 0), out_of(dv, q.type, 0), l, sums};
    int64_t n = s->batch * positions_rows(&s->q) * s->heads;
    with_head(s->dim, [&](auto head) {
        constexpr int D = decltype(head)::value;
        LAUNCH((k_attention_delta<T, D>), blocks_of(ceil_div(n, 32)), 256, 0, c->compute, vdo, view<T>(o),
               sums, s->heads, n);
        if constexpr (D == 256)
            launch<T, D, KEYS_DK>(c, by_keys, s), launch<T, D, KEYS_DV>(c, by_keys, s);
        else
            launch<T, D, KEYS>(c, by_keys, s);
        launch<T, D, QUERIES>(c, by_queries, s);
    });
}

}

void attention_bwd_open(const Cuda *c)
{
    with_every_head([&](auto head) {
        open_roles<Bf16, decltype(head)::value>(c);
        open_roles<Half, decltype(head)::value>(c);
    });
}

void flash_attention_bwd(Device *d, Mat dq, Mat dk, Mat dv, Mat dout, Mat o, Mat lse, Mat delta, Mat q, Mat k,
                         Mat v, const Attention *s)
{
    int64_t n = s->batch * positions_rows(&s->q), rows = s->batch * positions_rows(&s->k);
    int64_t qcols = (int64_t)s->heads * s->dim, kcols = (int64_t)s->kv_heads * s->dim;
    BUG_ON(q.rows != n || k.rows != rows || v.rows != rows || dk.rows != rows || dv.rows != rows);
    BUG_ON(dq.rows != n || dout.rows != n || o.rows != n || lse.rows != n || delta.rows != n);
    BUG_ON(q.cols != qcols || dq.cols != qcols || dout.cols != qcols || o.cols != qcols);
    BUG_ON(k.cols != kcols || v.cols != kcols || dk.cols != kcols || dv.cols != kcols);
    BUG_ON(lse.type != F32 || delta.type != F32 || lse.cols != s->heads || delta.cols != s->heads);
    if (!n)
        return;
    if (attention_is_plain(q.type, {dq, dk, dv, dout, o, q, k, v}))
        plain_attention_bwd(d, dq, dk, dv, dout, o, lse, delta, q, k, v, s);
    else if (q.type == BF16)
        run<Bf16>(cuda_of(d), dq, dk, dv, dout, o, lse, delta, q, k, v, s);
    else
        run<Half>(cuda_of(d), dq, dk, dv, dout, o, lse, delta, q, k, v, s);
}
