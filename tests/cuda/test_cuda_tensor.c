/* test_cuda_tensor -- products of the tensor group computed block by block (tp_comm_overlap) against the
 * same products computed whole and against F64, on a GPU, in BF16 and FP8, with one scale a matrix and with
 * those of blocks that this GPU multiplies
 *
 *   test_cuda_tensor [staged|nccl]     under a launcher, any number of ranks
 *
 * The rows of rank r are 4^r times as large as those of rank 0, so that a block that is multiplied with
 * another block's scale is off by a factor. */
#include "cuda.h"
#include "grid.h"
#include "half.h"
#include "job.h"
#include "tensor.h"
#include "test.h"
#include <math.h>

enum { IN = 160, OUT = 288 };          /* a rank's columns of a layer's input and output */

static Device dev, own;
static Grid grid;
static Comm one;
static TensorGroup group;
static Arena mem, scratch;
static int R, T;                       /* rows of a rank, of all */
static int activations;                /* computed in passes of their own */

static double cell(int seed, int64_t i) { return 2 * rng_uniform(7, (uint64_t)seed, (uint64_t)i) - 1; }

/* A matrix of rows [first, first + rows) of the whole. Rows of rank r are scaled by 4^r; with a seed of
 * 100 or more all rows have one scale. */
static Mat made(int seed, int64_t first, int64_t rows, int64_t cols)
{
    Mat m = mat_take(&mem, rows, cols, BF16);
    uint16_t *host = xcalloc((size_t)(rows * cols), sizeof *host);
    for (int64_t i = 0; i < rows * cols; i++) {
        int64_t row = first + i / cols;
        double size = seed < 100 ? ldexp(1, 2 * (int)(row / R)) : 1;
        host[i] = f32_to_bf16((float)(size * cell(seed, first * cols + i)));
    }
    dev.put(&dev, m.p, host, mat_bytes(m));
    free(host);
    return m;
}

static double *seen(Mat m)
{
    uint16_t *host = xcalloc((size_t)(m.rows * m.cols), sizeof *host);
    double *x = xcalloc((size_t)(m.rows * m.cols), sizeof *x);
    dev.get(&dev, host, m.p, mat_bytes(m));
    for (int64_t i = 0; i < m.rows * m.cols; i++)
        x[i] = bf16_to_f32(host[i]);
    free(host);
    return x;
}

/* Largest difference within a row, divided by the row's largest number. */
static double off(Mat a, const double *want)
{
    double *x = seen(a), worst = 0;
    for (int64_t r = 0; r < a.rows; r++) {
        double most = 0, far = 0;
        for (int64_t c = r * a.cols; c < (r + 1) * a.cols; c++) {
            most = fmax(most, fabs(want[c]));
            far = isfinite(x[c]) ? fmax(far, fabs(x[c] - want[c])) : INFINITY;
        }
        worst = fmax(worst, far / fmax(most, 1e-30));
    }
    free(x);
    return worst;
}

/* x w^T (transposed) or x w, in F64. */
static double *product(Mat x, Mat w, int transposed)
{
    int64_t n = transposed ? w.rows : w.cols;
    double *a = seen(x), *b = seen(w), *y = xcalloc((size_t)(x.rows * n), sizeof *y);
    for (int64_t r = 0; r < x.rows; r++)
        for (int64_t c = 0; c < n; c++)
            for (int64_t k = 0; k < x.cols; k++)
                y[r * n + c] += a[r * x.cols + k] * (transposed ? b[c * w.cols + k] : b[k * w.cols + c]);
    free(a);
    free(b);
    return y;
}

static void count_act_fwd(Device *d, Mat a, Mat h, ActKind kind)
{
    activations++;
    own.act_fwd(d, a, h, kind);
}

static void count_act_bwd(Device *d, Mat dh, Mat da, Mat h, ActKind kind)
{
    activations++;
    own.act_bwd(d, dh, da, h, kind);
}

static void near(const char *what, Precision p, Mat blocks, Mat whole, const double *exact)
{
    double *want = seen(whole);
    /* delayed scales are the same for every block of rows, and those of blocks of a row have no other rows; a
     * scale of a block of rows is finer than that of all rows */
    double same = p.fp8 && p.scaling == FP8_OWN ? 0.15 : 1.0 / 64,
           e[2] = {off(blocks, want), exact ? off(blocks, exact) : 0};
    CHECK(e[0] <= same, "%s, fp8 %d, scaling %d: blocks are %g off the whole", what, p.fp8, p.scaling, e[0]);
    CHECK(e[1] <= (p.fp8 ? 0.15 : 1.0 / 64), "%s, fp8 %d, scaling %d: blocks are %g off", what, p.fp8,
          p.scaling, e[1]);
    free(want);
}

static Mat room(int64_t rows, int64_t cols) { return mat_take(&mem, rows, cols, BF16); }

/* Products that end the row region: gathered rows times a weight, with the activation. */
static void gathers(Precision p)
{
    size_t mark = mem.used;
    Mat x = made(1, group.tp->rank * R, R, IN), w = made(100 + group.tp->rank, 0, OUT, IN),
        b = made(200, 0, 1, OUT);
    Mat none = {.type = BF16}, v = made(300 + group.tp->rank, 0, IN, OUT), all_x = made(1, 0, T, IN);
    Mat y[2], h[2], a[2], dx[2], dh[2];
    for (int k = 0; k < 2; k++) {
        Mat all = tensor_room(&group, &mem, x), da = room(T, OUT);
        group.overlap = tensor_overlaps(&group, k);
        y[k] = room(T, OUT), h[k] = room(T, OUT), a[k] = room(T, OUT), dx[k] = room(T, OUT),
        dh[k] = room(T, OUT);
        activations = 0;
        tensor_gather_linear(&dev, &group, &scratch, all, y[k], x, w, none, p);
        tensor_gather_matmul(&dev, &group, &scratch, all, dx[k], x, v, p);
        tensor_gather_linear_act(&dev, &group, &scratch, all, a[k], h[k], x, w, b, ACT_GELU_TANH, p);
        tensor_gather_matmul_act(&dev, &group, &scratch, all, dh[k], da, x, v, h[k], ACT_GELU_TANH, p);
        CHECK(p.fp8 || activations == 0, "overlap %d: %d activations are passes of their own", k,
              activations);
        CHECK(scratch.used == 0, "scratch was not given back");
        double *rows = seen(all), *want = seen(all_x);
        CHECK(!memcmp(rows, want, sizeof *rows * (size_t)(T * IN)), "overlap %d: other rows were gathered",
              k);
        free(rows);
        free(want);
    }
    double *forward = product(all_x, w, 1), *backward = product(all_x, v, 0);
    near("gather, linear", p, y[1], y[0], forward);
    near("gather, matmul", p, dx[1], dx[0], backward);
    near("gather, linear, activation: h", p, h[1], h[0], NULL);
    near("gather, linear, activation", p, a[1], a[0], NULL);
    near("gather, matmul, activation", p, dh[1], dh[0], NULL);
    free(forward);
    free(backward);
    arena_reset(&mem, mark);
}

/* Products that begin the row region: their rows are reduce-scattered over the ranks. Their input is cast as
 * a whole. */
static void scatters(Precision p)
{
    size_t mark = mem.used;
    Mat x = made(2, 0, T, IN), w = made(400 + group.tp->rank, 0, OUT, IN), b = made(500, 0, 1, OUT), y[2],
        dx[2];
    Mat v = made(600 + group.tp->rank, 0, IN, OUT);
    for (int k = 0; k < 2; k++) {
        group.overlap = tensor_overlaps(&group, k);
        y[k] = room(R, OUT), dx[k] = room(R, OUT);
        row_linear_fwd(&dev, &group, &scratch, y[k], x, w, b, p);
        tensor_wait(&group, column_linear_bwd_x(&dev, &group, &scratch, dx[k], x, v, p));
        arena_reset(&scratch, 0);
    }
    if (p.fp8 && p.scaling == FP8_OWN)
        p.scaling = FP8_DELAYED;       /* the input has one scale for all blocks, as with delayed scales */
    near("linear, scatter", p, y[1], y[0], NULL);
    near("matmul, scatter", p, dx[1], dx[0], NULL);
    arena_reset(&mem, mark);
}

int main(int argc, char **argv)
{
    int rank, world = job_launched(&rank);
    GridSpec spec = {.size = {[AXIS_TP] = world, [AXIS_CP] = 1, [AXIS_EP] = 1, [AXIS_DP] = 1, [AXIS_PP] = 1}};
    BUG_ON(!grid_parse_order("tp-cp-ep-dp-pp", spec.order));
    grid_open(&grid, &spec, world, rank);
    cuda_open(&dev, F32, rank % cuda_count());
    grid_device(&grid, &dev);
    if (argc > 1 && !strcmp(argv[1], "nccl"))
        grid_nccl(&grid, &dev, 60);
    else
        grid_staged(&grid, &dev);
    comm_self_open(&one, "rows");
    one.dev = &dev;
    own = dev;
    dev.act_fwd = count_act_fwd;
    dev.act_bwd = count_act_bwd;
    Comm *tp = &grid.axis[AXIS_TP];
    group = (TensorGroup){.tp = tp, .rows = tp, .sum = &one, .sent = xcalloc((size_t)world, sizeof(Token)),
                          .come = xcalloc((size_t)world, sizeof(Token))};
    const Cuda *c = cuda_of(&dev);
    const Fp8Scaling blocks = c->major < 10 ? FP8_VECTORS : FP8_MX;
    R = blocks == FP8_MX ? FP8_BLOCK : 32;         /* a tile of scales is of one rank's rows */
    T = world * R;
    device_arena(&dev, &mem, "matrices", (size_t)T * OUT * 2 * 24 + (1 << 20));
    device_arena(&dev, &scratch, "scratch", (size_t)T * OUT * 2 * 8);
    Fp8Scale *scale = arena_take(&mem, 3 * sizeof *scale);
    gathers((Precision){0});
    scatters((Precision){0});
    Precision p = {scale, scale + 1, scale + 2, .fp8 = 1};
    gathers(p);
    scatters(p);
    dev.fp8_next(&dev, scale, 3, 1, 1);        /* the products above have left their magnitudes */
    p.scaling = FP8_DELAYED;
    gathers(p);
    scatters(p);
    p = (Precision){.fp8 = 1, .scaling = blocks};
    gathers(p);
    scatters(p);
    device_arena_close(&dev, &scratch);
    device_arena_close(&dev, &mem);
    free(group.sent);
    free(group.come);
    int64_t failed = test_failures;
    grid.all.wait(&grid.all, grid.all.all_reduce(&grid.all, &failed, 1, I64, OP_SUM));
    grid_close(&grid);
    cuda_close(&dev);
    return rank ? failed > 0 : test_end() || failed > 0;
}
