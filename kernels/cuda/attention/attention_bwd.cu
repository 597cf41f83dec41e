/* attention_bwd -- attention's backward by mma.sync: dq, and the op (attention_bwd.cuh).
 *
 * A block has a tile of queries (rows); columns are keys and values. P and ds stay in registers between
 * products, warps exchange nothing, and a tile has one barrier. A row adds up its tiles in order, so every
 * run has the same bits. */
#include "attention_bwd.cuh"
#include "attention.h"

namespace {

/* A block has ROWS queries, a warp MT * 16 of them. Tiles of COLS keys alternate between two stages of
 * shared memory: one is used while the other is being copied. */
template <int D, bool DROP> struct Bwd {
    static constexpr int WARPS = 4, THREADS = 32 * WARPS, AHEAD = D == 64 ? 2 : Copies<D, DROP>::AHEAD;
    static constexpr int MT = D < 256 ? 2 : 1;
    static constexpr int COLS = D == 64 && !DROP ? 64 : D == 128 && DROP ? 16 : 32;
    static constexpr int ROWS = 16 * MT * WARPS, BLOCKS = D == 256 ? 1 : 2;
    static constexpr int HELD = ROWS * D * 2, TILE = COLS * D * 2, STAGE = 2 * TILE;
    static constexpr int AFTER = 2 * HELD;     /* start of the stages */
    /* behind the stages: first key, lse and delta of each row, four numbers a warp, the Tile */
    static constexpr size_t BYTES = (size_t)AFTER + 2 * STAGE + (3 * ROWS + 4 * WARPS + 4) * 4;
    static_assert(STAGE % 128 == 0 && AFTER % 128 == 0, "");
};

template <class T, int D, bool DROP>
__global__ void __launch_bounds__(Bwd<D, DROP>::THREADS, Bwd<D, DROP>::BLOCKS)
    k_attention_bwd(Backward<T> a, Out dq)
{
    using B = Bwd<D, DROP>;
    constexpr int MT = B::MT, COLS = B::COLS, N = COLS / 8;
    const Shape &s = a.s;
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP, g, mine = warp * 16 * MT;
    SharedAt held = shared_at(shared), stages = held + B::AFTER;
    int *after = reinterpret_cast<int *>(shared + B::AFTER + 2 * B::STAGE), *lo = after + mine;
    float *row_stat = reinterpret_cast<float *>(lo) + B::ROWS;
    Span *spans = reinterpret_cast<Span *>(after + 3 * B::ROWS);
    Tile *tile = reinterpret_cast<Tile *>(spans + B::WARPS);

    {
        Work w = work_at(s, s.heads, (int)blockIdx.x);
        Tile x = tile_at(s.q, s.tiles - 1 - w.tile, B::ROWS, w.b, w.head);
        RunAt run = run_at(s.q, x.run, x.b);
        auto hold = [&](SharedAt to, const View<T> &v) {
            tile_load<D, B::ROWS, B::THREADS, B::AHEAD>(to, v.p + run.row * v.ld + x.head * D, v.ld,
                                                        x.first - run.start, run.n);
        };
        hold(held, a.q);
        hold(held + B::HELD, a.dout);
        cp_async_commit();
        int r = x.first + mine + lane - run.start;
        bool there = (uint32_t)r < (uint32_t)run.n;
        span_make<16 * MT>(spans + warp, lo, s, x.b, run, x.first + mine);
        if (lane < 16 * MT) {
            int64_t at = run.row + r;
            row_stat[lane] = there ? lse_log2(a.lse.p[at * a.lse.ld + x.head]) : INFINITY;
            row_stat[lane + B::ROWS] = there ? a.delta.p[at * a.delta.ld + x.head] : 0;
        }
        if (threadIdx.x == 0)
            *tile = x;
    }
    __syncthreads();

    float sum[MT][D / 8][4];
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            sum[m][n][0] = sum[m][n][1] = sum[m][n][2] = sum[m][n][3] = 0;
    Lane<D> row_lane(held + mine * D * 2, true), along(stages, false);
    HeadDrop drop = {};

    for (int i = 0; i < s.k.count; i++) {
        RunAt run = run_at(s.k, i, tile->b);
        int first, end;
        span_join(&first, &end, spans, B::WARPS, run);
        if (first >= end)
            continue;
        first = tile_start(run, first, COLS);
        auto load = [&](int stage, int c0) {
            SharedAt to = stages + stage * B::STAGE;
            /* pointers are made for each tile: kept, they would take registers that the sums need */
            RunAt now = run_at(s.k, again(i), tile->b);
            int of = tile->head / s.group * D;
            const T *k = a.k.p + now.row * a.k.ld + of, *v = a.v.p + now.row * a.v.ld + of;
            tile_load<D, COLS, B::THREADS, B::AHEAD>(to, k, a.k.ld, c0 - now.start, now.n);
            tile_load<D, COLS, B::THREADS, B::AHEAD>(to + B::TILE, v, a.v.ld, c0 - now.start, now.n);
            cp_async_commit();
        };
        load(0, first);
        cp_async_wait<0>();
        __syncthreads();

        for (int c0 = first, stage = 0; c0 < end; c0 += COLS, stage ^= 1) {
            if (c0 + COLS < end)
                load(stage ^ 1, c0 + COLS);
            /* computed again, which is cheap, because registers are short */
            int me = (int)thread_again();
            warp = me / WARP, g = me % WARP / 4, mine = warp * 16 * MT;
            lo = after + mine, row_stat = reinterpret_cast<float *>(lo) + B::ROWS;
            RunAt now = run_at(s.k, again(i), 0);
            if (!span_none(spans[warp], c0, COLS)) {
                int r0 = tile->first + mine;
                float c[MT][N][4], x[MT][N][4];
                Lane<D> at = along, row2 = row_lane;
                at.row += stage * B::STAGE;
                scores<T, D>(c, row_lane, at);
                if (span_masked(spans[warp], c0, COLS, now))
                    mask_rows(c, now, lo, r0, c0);
                at.row += B::TILE;
                row2.row += B::HELD;
                scores<T, D>(x, row2, at);
                if (DROP)
                    drop = head_drop(s, tile->b, tile->head);
#pragma unroll
                for (int n = 0; n < N; n++)
#pragma unroll
                    for (int m = 0; m < MT; m++) {
                        const float *of_row = row_stat + 16 * m + g;
                        bool keep[4] = {true, true, true, true};
                        if (DROP)
                            drop_rows(keep, s, drop, r0 + 16 * m, c0 + 8 * n);
#pragma unroll
                        for (int e = 0; e < 4; e++) {
                            float p = exp2_approx(c[m][n][e] * s.scale2 - of_row[e / 2 * 8]);
                            float y = DROP ? (keep[e] ? x[m][n][e] * s.keep : 0) : x[m][n][e];
                            x[m][n][e] = p * (y - of_row[e / 2 * 8 + B::ROWS]);
                        }
                    }
                at.row = row_lane.row + stages - held - mine * D * 2 + stage * B::STAGE;
                weighted<T, D>(sum, x, at);
            }
            cp_async_wait<0>();
            __syncthreads();               /* all see the next tiles, and no thread reads these any more */
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
            for (int e = 0; e < 4; e++)
                sum[m][n][e] *= s.scale;
    RunAt run = run_at(s.q, tile->run, tile->b);
    int r0 = tile->first - run.start + mine;
    rows_out<T, D, MT>(shared + mine * D * 2, sum, dq, run.row, tile->head * D, r0, run.n);
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

template <class T, int D, bool DROP> void launch(Cuda *c, Backward<T> a, Out dq, const Attention *s)
{
    using B = Bwd<D, DROP>;
    a.s = shape_of(s, 0, s->heads, B::ROWS, BF16);
    attention_fits(c, B::BYTES, D);
    LAUNCH((k_attention_bwd<T, D, DROP>), blocks_of((int64_t)a.s.tiles * s->batch * s->heads), B::THREADS,
           B::BYTES, c->compute, a, dq);
}

template <class T, int D> void open(const Cuda *c)
{
    attention_shared(c, k_attention_bwd<T, D, true>, Bwd<D, true>::BYTES);
    attention_shared(c, k_attention_bwd<T, D, false>, Bwd<D, false>::BYTES);
}

template <class T>
void run(Cuda *c, Mat dq, Mat dk, Mat dv, Mat dout, Mat o, Mat lse, Mat delta, Mat q, Mat k, Mat v,
         const Attention *s)
{
    Backward<T> a = {{}, view<T>(q), view<T>(k), view<T>(v), view<T>(dout), view<float>(lse),
                     view<float>(delta)};
    int64_t n = s->batch * positions_rows(&s->q) * s->heads;
    with_head(s->dim, [&](auto head) {
        constexpr int D = decltype(head)::value;
        LAUNCH((k_attention_delta<T, D>), blocks_of(ceil_div(n, 32)), 256, 0, c->compute, a.dout, view<T>(o),
               a.delta, s->heads, n);
        attention_bwd_keys(c, a, out_of(dk, q.type, 0), out_of(dv, q.type, 0), dk.rows, s);
        if (s->dropout > 0)
            launch<T, D, true>(c, a, out_of(dq, q.type, s->add), s);
        else
            launch<T, D, false>(c, a, out_of(dq, q.type, s->add), s);
    });
}

}

void attention_bwd_open(const Cuda *c)
{
    with_every_head([&](auto head) {
        open<Bf16, decltype(head)::value>(c);
        open<Half, decltype(head)::value>(c);
    });
    attention_bwd_keys_open(c);
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
