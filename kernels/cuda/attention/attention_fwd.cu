/* attention_fwd -- attention's forward: FlashAttention-2 (Dao 2023, arXiv:2307.08691, algorithm 1) by
 * mma.sync.
 *
 * A block has a tile of queries. Tiles of KEYS keys, and of their values, go through a ring of slots in
 * shared memory: while the product with a tile of keys runs, its values and the next keys are being
 * copied. Scores stay in registers, because the first product leaves them where the second one needs
 * them. A row adds up its tiles in order, so every run has the same bits.
 *
 * There are four warps of 32 queries: each fragment of keys or values that a warp loads from shared
 * memory serves two products, 128 bytes a product, so the products are the limit, not shared memory.
 * Heads of 256 have no registers for that and have eight warps of 16 queries. */
#include "attention.cuh"
#include "attention.h"

namespace {

template <int D, bool DROP> struct Fwd {
    static constexpr int MT = D == 256 ? 1 : 2, WARPS = D == 256 ? 8 : 4, THREADS = 32 * WARPS,
                         ROWS = 16 * MT * WARPS;
    static constexpr int KEYS = DROP || D == 256 ? 32
                                : D == 128       ? 48
                                                 : 64,
                         SLOTS = 3, BLOCKS = D == 256 ? 1 : 2;
    static constexpr int TILE = KEYS * D * 2, AHEAD = Copies<D, DROP>::AHEAD;
    static constexpr size_t BYTES =
        (size_t)ROWS * D * 2 + (size_t)SLOTS * TILE + (size_t)(ROWS + 4 * WARPS + 4) * 4;
};

template <class T> struct Forward {
    Shape s;
    View<T> q, k, v, o;
    View<float> lse;
};

/* Softmax of a tile of scores. What was summed before is multiplied by exp2(scale2 (old largest -
 * largest)).
 *   c        in/out  scores; becomes exp2(scale2 (c - largest))
 *   largest  in/out  largest score of a row so far; finite at the start, so that exp2(-inf - largest) is
 *                    0
 *   sum      in/out  this lane's part of the sum of each row
 *   out      in/out  sums of values */
template <int D, int MT, int N>
__device__ __forceinline__ void softmax(float (&c)[MT][N][4], float (&largest)[MT][2], float (&sum)[MT][2],
                                        float (&out)[MT][D / 8][4], float scale2)
{
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float old = largest[m][half], top = old;
#pragma unroll
            for (int n = 0; n < N; n++)
                top = fmaxf(top, fmaxf(c[m][n][2 * half], c[m][n][2 * half + 1]));
            top = fmaxf(top, __shfl_xor_sync(EVERY_LANE, top, 1));
            top = fmaxf(top, __shfl_xor_sync(EVERY_LANE, top, 2));
            /* the difference first: contracted, old * scale2 - base is rounding errors of -1e30 where the
             * row has seen no key yet */
            float base = top * scale2, shrink = exp2_approx((old - top) * scale2), part = 0;
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float &x = c[m][n][2 * half + e];
                    x = exp2_approx(x * scale2 - base);
                    part += x;
                }
            largest[m][half] = top;
            sum[m][half] = sum[m][half] * shrink + part;
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
                out[m][n][2 * half] *= shrink;
                out[m][n][2 * half + 1] *= shrink;
            }
        }
}

template <class T, int D, bool DROP>
__global__ void __launch_bounds__(Fwd<D, DROP>::THREADS, Fwd<D, DROP>::BLOCKS) k_attention_fwd(Forward<T> a)
{
    using F = Fwd<D, DROP>;
    constexpr int MT = F::MT, N = F::KEYS / 8, KEYS = F::KEYS;
    const Shape &s = a.s;
    Work w = work_at(s, s.heads, (int)blockIdx.x);
    int warp = (int)threadIdx.x / WARP;
    int mine = warp * 16 * MT;
    SharedAt q_at = shared_at(shared), ring = q_at + F::ROWS * D * 2;
    int *lo = reinterpret_cast<int *>(shared + F::ROWS * D * 2 + F::SLOTS * F::TILE);
    Span *spans = reinterpret_cast<Span *>(lo + F::ROWS);
    Tile *tile = reinterpret_cast<Tile *>(spans + F::WARPS);
    {
        Tile t = tile_at(s.q, s.tiles - 1 - w.tile, F::ROWS, w.b, w.head);
        RunAt q = run_at(s.q, t.run, t.b);
        tile_load<D, F::ROWS, F::THREADS, F::AHEAD>(q_at, a.q.p + q.row * a.q.ld + w.head * D, a.q.ld,
                                                    t.first - q.start, q.n);
        cp_async_commit();
        span_make<16 * MT>(spans + warp, lo + mine, s, w.b, q, t.first + mine);
        if (threadIdx.x == 0)
            *tile = t;
    }
    __syncthreads();

    float out[MT][D / 8][4], largest[MT][2], sum[MT][2], c[MT][N][4];
#pragma unroll
    for (int m = 0; m < MT; m++) {
        largest[m][0] = largest[m][1] = -1e30f;
        sum[m][0] = sum[m][1] = 0;
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            out[m][n][0] = out[m][n][1] = out[m][n][2] = out[m][n][3] = 0;
    }
    Lane<D> q_lane(q_at + mine * D * 2, true), k_lane(ring, false);
    HeadDrop drop = {};
    if (DROP)
        drop = head_drop(s, tile->b, tile->head);

    for (int i = 0; i < s.k.count; i++) {
        RunAt run = run_at(s.k, i, tile->b);
        int first, end;
        span_join(&first, &end, spans, F::WARPS, run);
        if (first >= end)
            continue;
        if (i) {
            cp_async_wait<0>();
            __syncthreads();           /* no thread reads the slots of the run before any more */
        }
        int of = tile->head / s.group * D;
        const T *k = a.k.p + run.row * a.k.ld + of, *v = a.v.p + run.row * a.v.ld + of;
        /* starts the copy of one tile, a group of copies; keys and values alternate, each in the next
         * slot */
        auto load = [&](int slot, const T *p, int ld, int j) {
            if (j < end) {
                RunAt now = run_at(s.k, again(i), 0);
                tile_load<D, KEYS, F::THREADS, F::AHEAD>(ring + slot * F::TILE, p, ld, j - now.start, now.n);
            }
            cp_async_commit();
        };
        first = tile_start(run, first, KEYS);
        load(0, k, a.k.ld, first);
        load(1, v, a.v.ld, first);

        int slot = 0;
        for (int j = first; j < end; j += KEYS) {
            /* computed again, by one instruction, because registers are short */
            warp = (int)thread_again() / WARP, mine = warp * 16 * MT;
            bool none = span_none(spans[warp], j, KEYS);
            cp_async_wait<1>();
            __syncthreads();       /* all see the keys, and no thread reads the slot before them any more */
            load(slot == 0 ? F::SLOTS - 1 : slot - 1, k, a.k.ld, j + KEYS);
            if (!none) {
                Lane<D> at = k_lane;
                at.row += slot * F::TILE;
                scores<T, D>(c, q_lane, at);
                RunAt now = run_at(s.k, again(i), 0);
                if (span_masked(spans[warp], j, KEYS, now))
                    mask_rows(c, now, lo + mine, tile->first + mine, j);
                softmax<D>(c, largest, sum, out, s.scale2);
                if (DROP) {
#pragma unroll
                    for (int n = 0; n < N; n++)
#pragma unroll
                        for (int m = 0; m < MT; m++) {
                            bool keep[4];
                            drop_rows(keep, s, drop, tile->first + mine + 16 * m, j + 8 * n);
#pragma unroll
                            for (int e = 0; e < 4; e++)
                                c[m][n][e] = keep[e] ? c[m][n][e] : 0;
                        }
                }
            }
            slot = slot == F::SLOTS - 1 ? 0 : slot + 1;
            cp_async_wait<1>();
            __syncthreads();
            load(slot == 0 ? F::SLOTS - 1 : slot - 1, v, a.v.ld, j + KEYS);
            if (!none) {
                Lane<D> at = q_lane;       /* the same place, in the tile of values */
                at.row += ring - q_at + slot * F::TILE - mine * D * 2;
                weighted<T, D>(out, c, at);
            }
            slot = slot == F::SLOTS - 1 ? 0 : slot + 1;
        }
    }

    cp_async_wait<0>();
    __syncthreads();                   /* the output goes where q was: all copies must be complete */
    RunAt q = run_at(s.q, tile->run, tile->b);
    int i0 = tile->first - q.start + (int)thread_again() / WARP * 16 * MT, head = tile->head;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float total = sum[m][half];
            total += __shfl_xor_sync(EVERY_LANE, total, 1);
            total += __shfl_xor_sync(EVERY_LANE, total, 2);
            float factor = total == 0 ? 0 : s.keep / total;
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
                out[m][n][2 * half] *= factor;
                out[m][n][2 * half + 1] *= factor;
            }
            int i = i0 + 16 * m + 8 * half + (int)threadIdx.x % WARP / 4;
            if (threadIdx.x % 4 == 0 && (uint32_t)i < (uint32_t)q.n)
                a.lse.p[(q.row + i) * a.lse.ld + head]
                    = total == 0 ? -INFINITY : largest[m][half] * s.scale + logf(total);
        }
    rows_store<T, D, MT>(shared + (int)threadIdx.x / WARP * 16 * MT * D * 2, out,
                         a.o.p + q.row * a.o.ld + head * D, a.o.ld, i0, q.n);
}

template <class T, int D, bool DROP> void launch(Cuda *c, Forward<T> a, const Attention *s)
{
    using F = Fwd<D, DROP>;
    a.s = shape_of(s, 0, s->heads, F::ROWS, BF16);
    attention_fits(c, F::BYTES, D);
    unsigned grid = blocks_of((int64_t)a.s.tiles * a.s.batch * a.s.heads);
    LAUNCH((k_attention_fwd<T, D, DROP>), grid, F::THREADS, F::BYTES, c->compute, a);
}

template <class T, int D> void open(const Cuda *c)
{
    attention_shared(c, k_attention_fwd<T, D, true>, Fwd<D, true>::BYTES);
    attention_shared(c, k_attention_fwd<T, D, false>, Fwd<D, false>::BYTES);
}

template <class T> void run(Cuda *c, Mat o, Mat lse, Mat q, Mat k, Mat v, const Attention *s)
{
    Forward<T> a = {{}, view<T>(q), view<T>(k), view<T>(v), view<T>(o), view<float>(lse)};
    with_head(s->dim, [&](auto head) {
        constexpr int D = decltype(head)::value;
        if (s->dropout > 0)
            launch<T, D, true>(c, a, s);
        else
            launch<T, D, false>(c, a, s);
    });
}

}

void attention_fwd_open(const Cuda *c)
{
    with_every_head([&](auto head) {
        open<Bf16, decltype(head)::value>(c);
        open<Half, decltype(head)::value>(c);
    });
}

void cuda_attention_open(const Cuda *c)
{
    attention_fwd_open(c);
    attention_bwd_open(c);
    attention_plain_open(c);
}

void flash_attention_fwd(Device *d, Mat o, Mat lse, Mat q, Mat k, Mat v, const Attention *s)
{
    int64_t queries = s->batch * positions_rows(&s->q), keys = s->batch * positions_rows(&s->k), dim = s->dim;
    BUG_ON(q.rows != queries || o.rows != queries || lse.rows != queries || k.rows != keys || v.rows != keys);
    BUG_ON(q.cols != s->heads * dim || o.cols != q.cols || lse.cols != s->heads || lse.type != F32);
    BUG_ON(k.cols != s->kv_heads * dim || v.cols != k.cols || q.type != k.type || q.type != v.type ||
           o.type != q.type);
    if (!queries)
        return;
    if (attention_is_plain(q.type, {q, k, v, o}))
        plain_attention_fwd(d, o, lse, q, k, v, s);
    else if (q.type == BF16)
        run<Bf16>(cuda_of(d), o, lse, q, k, v, s);
    else
        run<Half>(cuda_of(d), o, lse, q, k, v, s);
}
