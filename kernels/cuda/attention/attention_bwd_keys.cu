/* attention_bwd_keys -- attention's backward by mma.sync: dk and dv (attention_bwd.cuh).
 *
 * Rows are keys, columns queries, scores are transposed: k q^T. Two warps share 16 * MT rows of keys. The
 * warp of P computes P from k q^T, and dv; the warp of ds computes v do^T, takes P from the other by way of
 * shared memory, and makes ds and dk. So a warp has one sum in registers, which may be as wide as a head, and
 * MT fragments of rows for each fragment of columns that it loads: with one warp for both sums, 64 keys of
 * 128 by 32 queries take 1,280 clocks of shared memory for 790 to 1,024 of products; shared by two, 896.
 *
 * A block makes one part of one pair of key tiles of a key/value head. Of causal attention the first key tile
 * has the most queries, the last one the fewest: the pair is tile i and tile i from the end, so that all
 * blocks have equal work. A pair is cut into parts when there are too few for a GPU: each makes its share
 * of the tiles of queries, over all query heads of the group, and the sums of the parts are added in order.
 * The number of parts depends on the shape alone, so every run has the same bits, on every GPU. */
#include "attention.h"
#include "attention_bwd.cuh"

namespace {

/* A block has ROWS keys, PAIRS pairs of warps. Tiles of COLS queries alternate between two stages of shared
 * memory: one is used while the other is being copied. */
template <int D> struct Keys {
    static constexpr int PAIRS = 2, WARPS = 2 * PAIRS, THREADS = 32 * WARPS, BLOCKS = 2;
    static constexpr int MT = D == 256 ? 1 : 2, COLS = D < 128 ? 64 : 32;
    static constexpr int AHEAD = 2;    /* copies of a tile that a thread unrolls: registers are short */
    static constexpr int ROWS = 16 * MT * PAIRS, HELD = ROWS * D * 2, TILE = COLS * D * 2;
    /* bytes of a stage: two tiles, and lse, delta and document start of each column */
    static constexpr int STAGE = 2 * TILE + (3 * COLS * 4 + 127) / 128 * 128;
    static constexpr int STAGES = 2 * HELD, SENT = STAGES + 2 * STAGE, AFTER = SENT + ROWS * COLS * 4;
    /* behind P on its way: two numbers a warp, the Tile, the Share */
    static constexpr size_t BYTES = (size_t)AFTER + (2 * WARPS + 4 + 4) * 4;
    static_assert(STAGE % 128 == 0 && HELD % 128 == 0 && COLS <= THREADS, "");
};
enum { MOST_PARTS = 8 };

/* What a block does of a run of queries: its part of the tiles of [first, end); clear: see Queries. In shared
 * memory, like the Tile. */
struct Share { int part, first, end, clear; };

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
#pragma unroll 1
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

/* Scores become P, and what dropout leaves of it; P is sent.
 *   c     in/out  [16 MT][8 N]  scores; becomes P, 0 where it is dropped
 *   lse   in      [8 N]         of each query
 *   sent  out                   fragment 0 of the pair's P, of this lane */
template <bool DROP, int MT, int N>
__device__ __forceinline__ void make_p(float (&c)[MT][N][4], const float *lse, float *sent, const Shape &s,
                                       HeadDrop drop, int r0, int c0)
{
    int t = (int)threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < N; n++) {
        float col[2] = {lse_log2(lse[8 * n + 2 * t]), lse_log2(lse[8 * n + 2 * t + 1])};
#pragma unroll
        for (int m = 0; m < MT; m++) {
            bool keep[4] = {true, true, true, true};
            float p[4];
            if (DROP)
                drop_columns(keep, s, drop, r0 + 16 * m, c0 + 8 * n);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                p[e] = exp2_approx(c[m][n][e] * s.scale2 - col[e & 1]);
                c[m][n][e] = keep[e] ? p[e] : 0;
                p[e] = keep[e] ? p[e] : -p[e];
            }
            Piece<float> to;
            to.set(p);
            to.store(sent + (m * N + n) * 4 * WARP);
        }
    }
}

/* v do^T becomes ds.
 *   c      in/out  [16 MT][8 N]  v do^T; becomes ds
 *   delta  in      [8 N]         of each query
 *   sent   in                    as make_p has sent it */
template <bool DROP, int MT, int N>
__device__ __forceinline__ void make_ds(float (&c)[MT][N][4], const float *delta, const float *sent,
                                        float factor)
{
    int t = (int)threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < N; n++) {
        float col[2] = {delta[8 * n + 2 * t], delta[8 * n + 2 * t + 1]};
#pragma unroll
        for (int m = 0; m < MT; m++) {
            Piece<float> from;
            float p[4];
            from.load(sent + (m * N + n) * 4 * WARP);
            from.get(p);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float y = c[m][n][e];
                if (DROP)
                    y = float_bits(p[e]) >> 31 ? 0 : y * factor;
                c[m][n][e] = (DROP ? fabsf(p[e]) : p[e]) * (y - col[e & 1]);
            }
        }
    }
}

/* a: what is read; dk, dv: where the sums go, with several parts those of part 0; next: elements from the
 * sums of one part to the next. */
template <class T> struct KeysCall {
    Backward<T> a;
    Out dk, dv;
    int64_t next;
    int parts, tiles;          /* parts of a pair; key tiles of a head */
};

template <class T, int D, bool DROP>
__global__ void __launch_bounds__(Keys<D>::THREADS, Keys<D>::BLOCKS) k_attention_keys(KeysCall<T> call)
{
    using B = Keys<D>;
    constexpr int MT = B::MT, COLS = B::COLS, N = COLS / 8;
    const Backward<T> &a = call.a;
    const Shape &s = a.s;
    /* of_ds: this is the warp of ds */
    int pair = (int)threadIdx.x / (2 * WARP), of_ds = (int)threadIdx.x / WARP % 2, mine = pair * 16 * MT;
    SharedAt held = shared_at(shared), stages = held + B::STAGES;
    int *slot = reinterpret_cast<int *>(shared + B::AFTER);
    Tile *tile = reinterpret_cast<Tile *>(slot + 2 * B::WARPS);
    Share *share = reinterpret_cast<Share *>(tile + 1);
    Lane<D> row_lane(held + of_ds * B::HELD + mine * D * 2, true), along(stages + of_ds * B::TILE, false),
        across(stages + (1 - of_ds) * B::TILE, true);

    for (int turn = 0; turn < 2; turn++) {
        float sum[MT][D / 8][4];
        {
            Work w = work_at(s, s.kv_heads, (int)block_again());
            int other = call.tiles - 1 - w.tile / call.parts;
            if (turn && other == w.tile / call.parts)
                break;                 /* the tile in the middle is its own other one */
            Tile x = tile_at(s.k, turn ? other : w.tile / call.parts, B::ROWS, w.b, w.head);
            RunAt run = run_at(s.k, x.run, x.b);
            auto hold = [&](SharedAt to, const View<T> &v) {
                tile_load<D, B::ROWS, B::THREADS, B::AHEAD>(
                    to, v.p + run.row * v.ld + x.head * D, v.ld, x.first - run.start, run.n);
            };
            if (turn)
                __syncthreads();       /* no thread reads the tile before, or writes it to memory, any more */
            hold(held, a.k);
            hold(held + B::HELD, a.v);
            cp_async_commit();
            if (threadIdx.x == 0)
                *tile = x, share->part = w.tile % call.parts;
        }
        __syncthreads();
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int n = 0; n < D / 8; n++)
                sum[m][n][0] = sum[m][n][1] = sum[m][n][2] = sum[m][n][3] = 0;

        for (int i = 0; i < s.q.count; i++) {
            RunAt run = run_at(s.q, i, tile->b);
            if (i && s.doc)
                __syncthreads();       /* no thread reads `slot` of the run before any more */
            RunAt keys = run_at(s.k, tile->run, 0);
            int j0 = max(tile->first, keys.start), j1 = min(tile->first + B::ROWS, keys.start + keys.n);
            Queries all = queries_of(s, tile->b, run, j0, j1, slot);
            int first = tile_start(run, all.first, COLS), end = all.end;
            if (all.first >= end)
                continue;
            /* this part's share of the tiles of queries of all heads of the group: `left` of them */
            int tiles = (end - first + COLS - 1) / COLS, of_all = s.group * tiles;
            int part = share->part, from = (int)((int64_t)of_all * part / call.parts);
            int left = (int)((int64_t)of_all * (part + 1) / call.parts) - from;
            int head = tile->head * s.group + from / tiles, c0 = first + from % tiles * COLS, stage = 0;
            if (threadIdx.x == 0)
                share->first = first, share->end = end, share->clear = all.clear;
            auto load = [&](int to_stage, int h, int c) {
                SharedAt to = stages + to_stage * B::STAGE;
                RunAt now = run_at(s.q, again(i), tile->b);
                int of = h * D, r = c - now.start;
                tile_load<D, COLS, B::THREADS, B::AHEAD>(to, a.q.p + now.row * a.q.ld + of, a.q.ld, r, now.n);
                tile_load<D, COLS, B::THREADS, B::AHEAD>(to + B::TILE, a.dout.p + now.row * a.dout.ld + of,
                                                         a.dout.ld, r, now.n);
                if ((int)threadIdx.x < COLS) {
                    r += (int)threadIdx.x;
                    bool there = (uint32_t)r < (uint32_t)now.n;
                    int64_t at = there ? now.row + r : 0;
                    SharedAt stat = to + 2 * B::TILE + 4 * threadIdx.x;
                    cp_async4(stat, a.lse.p + at * a.lse.ld + h, there);
                    cp_async4(stat + 4 * COLS, a.delta.p + at * a.delta.ld + h, there);
                    if (s.doc)
                        cp_async4(stat + 8 * COLS, s.doc + (there ? tile->b * s.doc_rows + now.start + r : 0),
                                  there);
                }
                cp_async_commit();
            };
            if (left) {
                load(0, head, c0);
                cp_async_wait<0>();
                __syncthreads();
            }
            for (; left; left--, stage ^= 1) {
                bool wrap = c0 + COLS >= share->end;
                int next_head = head + wrap, next = wrap ? share->first : c0 + COLS;
                if (left > 1)
                    load(stage ^ 1, next_head, next);
                /* computed again, which is cheap, because registers are short */
                int me = (int)thread_again();
                pair = me / (2 * WARP), of_ds = me / WARP % 2, mine = pair * 16 * MT;
                /* P on its way: 16 bytes a lane and fragment. The sign says that dropout has dropped an
                 * element. */
                float *sent =
                    reinterpret_cast<float *>(shared + B::SENT) + (pair * MT * N * WARP + me % WARP) * 4;
                int r0 = tile->first + mine;
                /* whether the pair's keys are seen by some query of the tile */
                if (c0 + COLS > r0 && !(s.window && c0 - s.window >= r0 + 16 * MT - 1)) {
                    float c[MT][N][4];
                    const float *stats = reinterpret_cast<const float *>(shared + B::STAGES + stage * B::STAGE
                                                                         + 2 * B::TILE);
                    Lane<D> at = along;
                    at.row += stage * B::STAGE;
                    scores<T, D>(c, row_lane, at);
                    if (!of_ds) {
                        HeadDrop drop = {};
                        if (r0 + 16 * MT - 1 > c0 || c0 + COLS > share->clear)
                            mask_columns(c, s, reinterpret_cast<const int *>(stats) + 2 * COLS, r0, c0);
                        if (DROP)
                            drop = head_drop(s, tile->b, head);
                        make_p<DROP>(c, stats, sent, s, drop, r0, c0);
                    }
                    pair ? barrier_some<2, 2 * WARP>() : barrier_some<1, 2 * WARP>(); /* P has been sent */
                    if (of_ds)
                        make_ds<DROP>(c, stats + COLS, sent, s.keep);
                    at = across;
                    at.row += stage * B::STAGE;
                    weighted<T, D>(sum, c, at);
                }
                cp_async_wait<0>();
                __syncthreads();   /* all see the next tiles; no thread reads these, or sent P, any more */
                head = next_head, c0 = next;
            }
        }

        cp_async_wait<0>();
        __syncthreads();               /* the output goes where the rows were: all copies must be complete */
        float factor = of_ds ? s.scale : s.keep;
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int n = 0; n < D / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    sum[m][n][e] *= factor;
        RunAt run = run_at(s.k, tile->run, tile->b);
        Out out = of_ds ? call.dk : call.dv;
        if (call.parts > 1)
            out.p = static_cast<float *>(out.p) + share->part * call.next;
        rows_out<T, D, MT>(shared + of_ds * B::HELD + mine * D * 2, sum, out, run.row, tile->head * D,
                           tile->first - run.start + mine, run.n);
    }
}

/* out [rows, cols] = the sum over the parts, in order. The y of the grid is 0 for dk, 1 for dv.
 *   parts  in  [parts][2][rows][cols]  cols is a multiple of 8 */
template <class T>
__global__ void k_attention_parts(Out dk, Out dv, const float *sums, int parts, int64_t rows, int cols)
{
    int64_t i = 8 * ((int64_t)blockIdx.x * blockDim.x + threadIdx.x), all = rows * cols;
    float x[8], y[8];
    if (i >= all)
        return;
    sums += i + blockIdx.y * all;
    get_floats<8>(x, sums);
    for (int p = 1; p < parts; p++) {
        get_floats<8>(y, sums + 2 * p * all);
#pragma unroll
        for (int e = 0; e < 8; e++)
            x[e] += y[e];
    }
    const Out &out = blockIdx.y ? dv : dk;
    int64_t at = i / cols * out.ld + i % cols;
    if (out.real)
        put_floats<8>(static_cast<float *>(out.p) + at, x);
    else
        put_floats<8>(static_cast<T *>(out.p) + at, x);
}

/* Returns the number of parts of each pair of key tiles: the one with which most of the time of a GPU of
 * 132 multiprocessors, two blocks each, is used, less 3 % for each part, whose sums go through memory. It
 * does not depend on the GPU at hand, nor do the bits.
 *   pairs  in  pairs of key tiles of all samples and heads
 *   cols   in  tiles of queries of a pair, over the query heads, if it is causal
 *   bytes  in  memory that the sums of one part take */
int parts_of(int64_t pairs, int64_t cols, int64_t bytes)
{
    const int64_t slots = 264;
    int best = 1;
    double most = 0;
    for (int p = 1; p <= MOST_PARTS; p++) {
        if (p > 1 && (4 * p > cols || p * bytes > (int64_t)CUDA_WORKSPACE))
            break;
        int64_t blocks = pairs * p, turns = ceil_div(blocks, slots);
        double used = (double)blocks / (double)(turns * slots) * (1 - 0.03 * (p - 1));
        if (used > most)
            most = used, best = p;
    }
    return best;
}

/* How the work of a call is cut: pairs of key tiles of a head, parts of each. */
struct Cut { int pairs, parts; };
template <int D> Cut cut_of(const Attention *s)
{
    int tiles = 0;
    for (int i = 0; i < s->k.count; i++)
        tiles += run_tiles(s->k.run[i], Keys<D>::ROWS);
    int64_t pairs = (tiles + 1) / 2, keys = s->batch * positions_rows(&s->k);
    int64_t cols = ceil_div(positions_rows(&s->q), Keys<D>::COLS) * (s->heads / s->kv_heads);
    int64_t bytes = 2 * keys * s->kv_heads * D * (int64_t)sizeof(float);
    return {(int)pairs, parts_of(pairs * s->batch * s->kv_heads, cols, bytes)};
}

template <class T, int D, bool DROP>
void launch(Cuda *c, const Backward<T> &a, Out dk, Out dv, int64_t rows, const Attention *s)
{
    using B = Keys<D>;
    int cols = s->kv_heads * D;
    Cut cut = cut_of<D>(s);
    KeysCall<T> call = {a, dk, dv, 2 * rows * cols, cut.parts, 0};
    call.a.s = shape_of(s, 1, s->kv_heads, B::ROWS, BF16);
    call.tiles = call.a.s.tiles;
    call.a.s.tiles = cut.pairs * cut.parts;
    if (call.parts > 1) {
        float *sums = (float *)cuda_workspace(c, (size_t)(call.parts * call.next) * sizeof(float));
        call.dk = {sums, cols, 1, 0}, call.dv = {sums + rows * cols, cols, 1, 0};
    }
    attention_fits(c, B::BYTES, D);
    unsigned blocks = blocks_of((int64_t)call.a.s.tiles * s->batch * s->kv_heads);
    LAUNCH((k_attention_keys<T, D, DROP>), blocks, B::THREADS, B::BYTES, c->compute, call);
    if (call.parts > 1) {
        dim3 grid(blocks_of(ceil_div(rows * cols, 8 * 256)), 2);
        LAUNCH((k_attention_parts<T>), grid, 256, 0, c->compute, dk, dv, (const float *)call.dk.p, cut.parts,
               rows, cols);
    }
}

template <class T, int D> void open(const Cuda *c)
{
    attention_shared(c, k_attention_keys<T, D, true>, Keys<D>::BYTES);
    attention_shared(c, k_attention_keys<T, D, false>, Keys<D>::BYTES);
}

}

template <class T>
void attention_bwd_keys(Cuda *c, const Backward<T> &a, Out dk, Out dv, int64_t rows, const Attention *s)
{
    with_head(s->dim, [&](auto head) {
        constexpr int D = decltype(head)::value;
        if (s->dropout > 0)
            launch<T, D, true>(c, a, dk, dv, rows, s);
        else
            launch<T, D, false>(c, a, dk, dv, rows, s);
    });
}
template void attention_bwd_keys(Cuda *, const Backward<Bf16> &, Out, Out, int64_t, const Attention *);
template void attention_bwd_keys(Cuda *, const Backward<Half> &, Out, Out, int64_t, const Attention *);

int64_t attention_bwd_blocks(const Attention *s, int *parts)
{
    int64_t blocks = 0;
    with_head(s->dim, [&](auto head) {
        Cut cut = cut_of<decltype(head)::value>(s);
        *parts = cut.parts;
        blocks = (int64_t)cut.pairs * cut.parts * s->batch * s->kv_heads;
    });
    return blocks;
}

void attention_bwd_keys_open(const Cuda *c)
{
    with_every_head([&](auto head) {
        open<Bf16, decltype(head)::value>(c);
        open<Half, decltype(head)::value>(c);
    });
}
