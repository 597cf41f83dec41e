/* gemm -- the blocked driver of matrix products; its kernels are gemm_real.c, amx.c and bf16dot.c */
#include "gemm.h"
#include "cpu.h"
#include <unistd.h>

/* K_BYTES is part of the definition of the sum (gemm.h): another value gives other bits. */
#define K_BYTES 4096           /* most bytes of a packed lane over one block of k, or kc */
#define A_BYTES (544 * K_BYTES)                /* bytes of the packed block of op(a) for one thread */
#define A_THREADS 2            /* most threads that it grows with: it stays in L3 beside other ranks' */
#define PART_COLS 1024         /* columns of GemmBuffers.part */
#define STRIP_PANELS 8         /* most panels of op(b) in a strip */
#define PACK_K 32              /* a multiple of every group */
#define PACK_PANELS 4          /* panels of op(a) that a work item packs, neighbours in memory */
#define ITEMS_PER_THREAD 4     /* work items of a thread: with 4 the threads end at about the same time */

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }
static int64_t gcd(int64_t a, int64_t b) { return b ? gcd(b, a % b) : a; }

/* The product of one block of c, [m, n], over one block of k. */
typedef struct {
    const GemmKernel *g;
    Factor a, b;
    int64_t m, n, k, k_padded;
    int row;                   /* bool: GemmKernel.row */
    int lies;                  /* bool: whole panels of op(a) are not packed */
    Finish finish;             /* its matrices start at the block's first element */
    char *packed;              /* the block of op(a): panels of mr x k_padded */
    char *own;                 /* GemmBuffers.own */
    size_t own_bytes, real_size;
    int64_t mc, strip;         /* GemmKernel's, for this CPU's L2 */
    int64_t bands, strips;     /* bands of rows, strips of columns: a work item is one of each */
} Job;

/* Whether the panel of op(a) from row i on is multiplied where it lies. */
static int panel_lies(const Job *j, int64_t i) { return j->lies && j->m - i >= j->g->mr; }

static void pack_a_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const Job *j = ctx;
    int64_t mr = j->g->mr, i0 = item * PACK_PANELS * mr, end = min64(i0 + PACK_PANELS * mr, j->m);
    int64_t chunk = j->a.lane_step == 1 && j->a.k_step != 1 ? PACK_K : max64(j->k, 1);
    for (int64_t k = 0; k == 0 || k < j->k; k += chunk)
        for (int64_t i = i0; i < end; i += mr)
            if (!panel_lies(j, i))
                j->g->pack_a(j->packed + (i * j->k_padded + k * mr) * j->g->size, factor_at(j->a, i, k),
                             (int)min64(mr, j->m - i), min64(chunk, j->k - k));
}

static void finish_tile(const Job *j, void *tile, int64_t row, int64_t col, int rows, int cols)
{
    Finish f = j->finish;
    f.out.p = mat_at(f.out, row, col);
    f.part.p = mat_at(f.part, row, col);
    f.bias.p = mat_at(f.bias, 0, col);
    j->g->finish(&f, tile, j->g->nr, rows, cols);
}

/* Where a tile will be stored, one tile product ahead. Without it a c beyond L2 that is added to cost a fifth
 * of the time, one that is written a hundredth. s NULL: the kernel prefetches nothing, and it is done now. */
static void store_soon(Soon *s, Mat m, int64_t row, int64_t col, int rows, int64_t cols)
{
    int64_t size = (int64_t)dtype_size(m.type);
    Soon to = {mat_at(m, row, col), m.ld * size, rows, (int)ceil_div(cols * size, LINE)};
    if (s)
        *s = to;
    for (int r = 0; !s && r < rows; r++)
        for (int i = 0; i < to.wide; i++)
            __builtin_prefetch(to.p + r * to.step + LINE * i);
}

/* The panel of op(a) from row i and k on. *step: GemmKernel.tile's. */
static const char *panel_a(const Job *j, int64_t i, int64_t k, int64_t *step)
{
    *step = panel_lies(j, i) ? j->a.lane_step * j->g->size : 0;
    return *step ? factor_at(j->a, i, k).p : j->packed + (i * j->k_padded + k * j->g->mr) * j->g->size;
}

/* Part x of `parts` of kn of a panel of op(a). */
static Soon panel_soon(const Job *j, int64_t i, int64_t k, int64_t kn, int64_t x, int64_t parts)
{
    int64_t step, mr = j->g->mr, all = kn * mr * j->g->size / LINE;
    const char *p = panel_a(j, i, k, &step);
    int64_t lines = step ? all / mr : all, part = ceil_div(lines, parts), from = x * part;
    int some = (int)max64(0, min64(part, lines - from));
    return step ? (Soon){p + from * LINE, step, (int)mr, some} : (Soon){p + from * LINE, LINE, some, 1};
}

/* How many times this CPU's L2 is the 1 MiB that GemmKernel's mc and strip are for: 1, or 2, the largest that
 * was measured. */
static int l2_times(void) { return sysconf(_SC_LEVEL2_CACHE_SIZE) >= 2 << 20 ? 2 : 1; }

/* Most k of a block. */
static int64_t k_most(const GemmKernel *g) { return max64(K_BYTES / g->size, g->kc); }

/* Bytes of a packed strip of op(b): at least one panel. */
static size_t strip_bytes(int64_t strip, const GemmKernel *g)
{
    return (size_t)max64(strip, k_most(g) * g->nr * g->size);
}

/* Returns the start of piece i when [0, n) is cut into `pieces` pieces of whole panels, larger pieces
 * first. */
static int64_t cut(int64_t n, int64_t panel, int64_t i, int64_t pieces)
{
    int64_t panels = ceil_div(n, panel);
    return min64(n, (panels / pieces * i + min64(i, panels % pieces)) * panel);
}

/* One work item: a band of rows by a strip of columns. A panel of op(b) is packed just before its first use.
 * With `along` a panel of op(a) is used for the whole strip, and each tile product prefetches a part of the
 * next one from L3; without, a panel of op(b) is used for mc rows. */
static void multiply_item(void *ctx, int64_t item, int thread)
{
    const Job *j = ctx;
    const GemmKernel *g = j->g;
    int64_t band = item % j->bands, row0 = cut(j->m, g->mr, band, j->bands);
    int64_t row1 = cut(j->m, g->mr, band + 1, j->bands), strip = item / j->bands;
    int64_t col0 = cut(j->n, g->nr, strip, j->strips), cols = cut(j->n, g->nr, strip + 1, j->strips) - col0;
    char *panels = j->own + (size_t)thread * j->own_bytes, *tiles = panels + strip_bytes(j->strip, g);
    int64_t tile_bytes = g->kc < j->k_padded ? (int64_t)(g->mr * g->nr) * (int64_t)j->real_size : 0;
    int64_t across = ceil_div(cols, g->nr), step;
    Mat to = j->finish.part.p ? j->finish.part : j->finish.out;
    Soon lines[2], *soon = g->along ? lines : NULL;
    if (g->begin)
        g->begin();
    for (int64_t i0 = row0; i0 < row1; i0 += j->mc)
        for (int64_t k0 = 0; k0 == 0 || k0 < j->k_padded; k0 += g->kc) {
            int64_t kn = min64(g->kc, j->k_padded - k0), down = ceil_div(min64(j->mc, row1 - i0), g->mr);
            int last = k0 + kn >= j->k_padded;
            for (int64_t t = 0; t < across * down; t++) {
                int64_t i = i0 + g->mr * (g->along ? t / across : t % down);
                int64_t jr = g->nr * (g->along ? t % across : t / down);
                int tile_rows = (int)min64(g->mr, row1 - i), tile_cols = (int)min64(g->nr, cols - jr);
                char *b = panels + (jr * j->k_padded + k0 * g->nr) * g->size, *tile = tiles + t * tile_bytes;
                const char *a = panel_a(j, i, k0, &step);
                memset(lines, 0, sizeof lines);
                if (i == row0)
                    g->pack_b(b, factor_at(j->b, col0 + jr, k0), tile_cols, min64(kn, j->k - k0));
                if (last)
                    store_soon(soon, to, i, col0 + jr, tile_rows, tile_cols);
                if (g->along && i + g->mr < row1)
                    lines[1] = panel_soon(j, i + g->mr, k0, kn, jr / g->nr, across);
                g->tile(kn, a, step, b, tile, tile_rows, k0 > 0, soon);
                if (last)
                    finish_tile(j, tile, i, col0 + jr, tile_rows, tile_cols);
            }
        }
    if (g->end)
        g->end();
}

/* One work item of a product of one row: a strip of columns. */
static void row_item(void *ctx, int64_t item, int thread)
{
    const Job *j = ctx;
    const GemmKernel *g = j->g;
    int64_t col = cut(j->n, g->nr, item, j->strips), end = cut(j->n, g->nr, item + 1, j->strips);
    char *tile = j->own + (size_t)thread * j->own_bytes;
    for (int cols; col < end; col += cols) {
        cols = (int)min64(g->nr, end - col);
        g->row(j->k, j->a, factor_at(j->b, col, 0), cols, tile);
        finish_tile(j, tile, 0, col, 1, cols);
    }
}

/* Cuts n into the fewest blocks of at most `most` and returns the size of equal blocks, a multiple of
 * `unit`; `most` is a multiple of `unit`. */
static int64_t equal_block(int64_t n, int64_t most, int64_t unit)
{
    return max64(unit, round_up(ceil_div(n, max64(1, ceil_div(n, most))), unit));
}

/* Cuts c into work items, strips of columns by bands of rows. Strips fit the kernel's share of L2. Items are
 * a multiple of the threads, and so many that these end at about the same time. Each strip reads op(a) from
 * L3, and each band packs op(b) again, which takes about twice as long for an element: of what these rules
 * allow, the sum of both is the least. With `along` strips are few, and there are bands only where op(b) is
 * small. */
static void share_out(Job *j, int64_t threads)
{
    const GemmKernel *g = j->g;
    int64_t want = threads > 1 ? threads * ITEMS_PER_THREAD : 1, rows = ceil_div(j->m, g->mr);
    int64_t panels = ceil_div(j->n, g->nr), panel_bytes = max64(j->k_padded, 1) * g->nr * g->size;
    int64_t most = max64(1, min64(STRIP_PANELS * (g->along ? 2 : 1), j->strip / panel_bytes));
    int64_t fewest = ceil_div(panels, most), least = INT64_MAX;
    if (g->along) {
        int64_t some = min64(want, threads * (panels >= 4 * want ? 2 : 1));
        j->strips = min64(panels, round_up(max64(some, fewest), threads));
        j->bands = 4 * j->n > j->m ? 1 : min64(rows, ceil_div(want, j->strips));
        return;
    }
    int64_t last = min64(panels, max64(want, fewest + threads));
    for (int64_t s = fewest; s <= last && s * j->m < least; s++) {
        int64_t bands = min64(rows, round_up(ceil_div(want, s), threads / gcd(s, threads)));
        int even = s * bands >= want && s * bands % threads == 0;
        int64_t cost = s * j->m + 2 * bands * j->n + (even ? 0 : INT64_MAX / 2);
        if (cost < least)
            least = cost, j->strips = s, j->bands = bands;
    }
}

static void run_block(Device *d, Job *j)
{
    share_out(j, pool_threads(d->pool));
    if (!j->row && !(j->lies && j->m % j->g->mr == 0))
        pool_run(d->pool, pack_a_item, j, ceil_div(j->m, PACK_PANELS * j->g->mr));
    pool_run(d->pool, j->row ? row_item : multiply_item, j, j->bands * j->strips);
}

static Mat mat_part(Mat m, int64_t r, int64_t c, int64_t rows, int64_t cols)
{
    return (Mat){mat_at(m, r, c), rows, cols, m.ld, m.type};
}

/* Whether whole panels of op(a) are multiplied where they lie. */
static int multiplies_as_it_lies(const GemmKernel *g, Factor a, int64_t k)
{
    return g->lies && k % g->group == 0 && a.k_step == 1 && !a.fp8 && a.type == BF16;
}

/* c (+)= by * fa fb + bias; k elements a lane. finish: its scale; the other fields are ignored. */
static void multiply(Device *d, const GemmKernel *g, Mat c, Factor fa, Factor fb, int64_t k, int acc,
                     Mat bias, Finish finish)
{
    Cpu *cpu = cpu_of(d);
    int64_t m = c.rows, n = c.cols;
    Job j = {.g = g, .packed = cpu->buffers.a, .own = cpu->buffers.own, .own_bytes = cpu->buffers.own_bytes,
             .real_size = dtype_size(d->real), .mc = g->mc * cpu->buffers.l2_times,
             .strip = g->strip * cpu->buffers.l2_times};
    j.row = m == 1 && g->row && fa.k_step == 1 && fb.k_step == 1 && !fa.fp8 &&
            (fa.type == BF16 || fa.type == d->real);

    /* blocks of equal size; the size of a block of k is a function of k alone */
    int64_t block_k = equal_block(k, k_most(g), g->kc);
    int64_t padded = round_up(min64(block_k, k), g->group), lane = max64(padded, 1) * g->size;
    int64_t block_m = equal_block(m, (int64_t)cpu->buffers.a_bytes / lane / g->mr * g->mr, g->mr);
    int parts = k > block_k && c.type != d->real;      /* bool: part holds sums between blocks of k */
    int64_t block_n = parts ? PART_COLS : n;
    for (int64_t i = 0; i < m; i += block_m)
        for (int64_t l = 0; l < n; l += block_n)
            for (int64_t k0 = 0; k0 == 0 || k0 < k; k0 += block_k) {
                int last = k0 + block_k >= k;
                j.m = min64(block_m, m - i);
                j.n = min64(block_n, n - l);
                j.k = min64(block_k, k - k0);
                j.k_padded = round_up(j.k, g->group);
                j.a = factor_at(fa, i, k0);
                j.lies = multiplies_as_it_lies(g, fa, j.k);
                j.b = factor_at(fb, l, k0);
                Mat out = mat_part(c, i, l, j.m, j.n), part = mat(cpu->buffers.part, j.m, j.n, d->real);
                j.finish = (Finish){.out = out, .acc = last ? acc : k0 > 0, .scaled = finish.scaled,
                                    .by = finish.by};
                if (parts && last)
                    j.finish.part = part;
                else if (parts)
                    j.finish.out = part;
                else
                    j.finish.acc = acc || k0 > 0;
                if (last && bias.p)
                    j.finish.bias = mat_part(bias, 0, l, 1, j.n);
                run_block(d, &j);
            }
}

void gemm(Device *d, Mat c, Mat a, int ta, Mat b, int tb, int acc, Mat bias)
{
    Cpu *cpu = cpu_of(d);
    int64_t m = c.rows, n = c.cols, k = ta ? a.rows : a.cols;
    BUG_ON((ta ? a.cols : a.rows) != m || (tb ? b.rows : b.cols) != n || (tb ? b.cols : b.rows) != k);
    BUG_ON(a.type != b.type || a.type > F16 || (c.type != a.type && c.type != d->real));
    BUG_ON(bias.p && (bias.cols != n || bias.type > F16));
    if (!m || !n || (!k && acc))
        return;
    Factor fa = {.p = a.p, .lane_step = ta ? 1 : a.ld, .k_step = ta ? a.ld : 1, .type = a.type};
    Factor fb = {.p = b.p, .lane_step = tb ? b.ld : 1, .k_step = tb ? 1 : b.ld, .type = b.type};
    multiply(d, a.type == BF16 ? cpu->gemm_bf16 : cpu->gemm, c, fa, fb, k, acc, bias, (Finish){0});
}

static Factor factor_of8(Mat8 m)
{
    return (Factor){.p = m.p, .lane_step = m.cols, .k_step = 1, .fp8 = 1, .format = m.format,
                    .scaling = m.scaling, .inverse = m.inverse,
                    .pitch = fp8_pitch(m.rows, m.cols, m.scaling)};
}

void gemm_fp8(Device *d, Mat c, Mat8 a, Mat8 b, Mat bias, int acc)
{
    BUG_ON(a.rows != c.rows || b.rows != c.cols || a.cols != b.cols || c.type > F16);
    BUG_ON(bias.p && (bias.cols != c.cols || bias.type > F16));
    if (!c.rows || !c.cols || (!a.cols && acc))
        return;
    int blocks = fp8_blocked(a.scaling);
    BUG_ON(!fp8_multiplies(a.scaling, b.scaling));
    multiply(d, cpu_of(d)->gemm, c, factor_of8(a), factor_of8(b), a.cols, acc, bias,
             (Finish){.scaled = !blocks,
                      .by = blocks ? 1 : *(const float *)a.inverse * *(const float *)b.inverse});
}

static size_t own_bytes(const GemmKernel *g, int times, size_t real_size)
{
    int64_t tiles = k_most(g) > g->kc ? g->mc * times / g->mr * STRIP_PANELS : 1;
    return strip_bytes(g->strip * times, g) + (size_t)(tiles * g->mr * g->nr) * real_size;
}

void gemm_buffers(GemmBuffers *b, Arena *a, Dtype real, const GemmKernel *g, const GemmKernel *h, int threads)
{
    b->l2_times = l2_times();
    size_t real_size = dtype_size(real), x = own_bytes(g, b->l2_times, real_size);
    size_t y = own_bytes(h, b->l2_times, real_size);
    b->own_bytes = (size_t)round_up((int64_t)(x > y ? x : y), 4096);
    b->own = arena_take(a, b->own_bytes * (size_t)threads);
    b->a_bytes = A_BYTES * (size_t)min64(threads, A_THREADS);
    b->a = arena_take(a, b->a_bytes);
    size_t rows = 2 * b->a_bytes / K_BYTES;    /* a lane has at least K_BYTES / 2 bytes: k has two blocks */
    b->part = arena_take(a, rows * PART_COLS * real_size);
}
