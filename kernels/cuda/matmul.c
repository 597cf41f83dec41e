/* matmul -- matrix products and linear layers, as products of cuBLASLt with epilogues. Where the library
 * has no algorithm with an epilogue (odd sizes), a product and a second op compute the same. */
#include "cuda.h"
#include "fp8.h"
#include "lt.h"
#include "products.h"

static cudaDataType lt_type(Dtype t)
{
    BUG_ON(t != F32 && t != BF16 && t != F16);
    return t == F32 ? CUDA_R_32F : t == BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

static LtMat lt_mat(Mat m) { return (LtMat){m.p, m.rows, m.cols, m.ld, lt_type(m.type)}; }

static LtProduct product(const Device *d, Mat c, Mat a, int ta, Mat b, int tb, int acc)
{
    int64_t k = ta ? a.rows : a.cols;
    BUG_ON((ta ? a.cols : a.rows) != c.rows || (tb ? b.rows : b.cols) != c.cols ||
           (tb ? b.cols : b.rows) != k);
    BUG_ON(a.type != b.type || (c.type != a.type && c.type != d->real));
    return (LtProduct){.c = lt_mat(c), .a = lt_mat(a), .b = lt_mat(b), .ta = ta, .tb = tb, .acc = acc,
                       .epilogue = CUBLASLT_EPILOGUE_DEFAULT};
}

/* c = 0: the product for k = 0. */
static void zero_rows(Device *d, Mat c)
{
    for (int64_t r = 0; r < c.rows; r++)
        d->zero(d, mat_at(c, r, 0), (size_t)c.cols * dtype_size(c.type));
}

void cuda_matmul(Device *d, Mat c, Mat a, int ta, Mat b, int tb, int acc)
{
    LtProduct q = product(d, c, a, ta, b, tb, acc);
    if (!c.rows || !c.cols)
        return;
    if (ta ? a.rows : a.cols)
        lt_multiply(cuda_of(d)->lt, &q);
    else if (!acc)
        zero_rows(d, c);
}

/* Gives q a bias. The library's epilogue adds a bias of the output's type only: others are converted
 * first. */
static void add_bias(Device *d, LtProduct *q, Mat y, Mat bias)
{
    BUG_ON(bias.p && bias.cols != y.cols);
    if (!bias.p)
        return;
    q->epilogue |= CUBLASLT_EPILOGUE_BIAS;
    q->epilogue &= ~CUBLASLT_EPILOGUE_DEFAULT;
    q->vector = bias.p;
    if (bias.type != y.type) {
        q->vector = lt_vector(cuda_of(d)->lt, (size_t)y.cols * dtype_size(y.type));
        d->copy(d, mat(q->vector, 1, y.cols, y.type), bias);
    }
}

void cuda_linear(Device *d, Mat y, Mat x, Mat w, Mat bias)
{
    LtProduct q = product(d, y, x, 0, w, 1, 0);
    BUG_ON(!x.cols);
    if (!y.rows || !y.cols)
        return;
    add_bias(d, &q, y, bias);
    lt_multiply(cuda_of(d)->lt, &q);
}

/* Whether a product with an epilogue is faster than one without and a second op. It may not be, because
 * only older kernels of the library have some epilogues. Returns 1 where nothing was timed.
 *   plain  in  the product without the epilogue
 *   cells  in  elements that the second op reads and writes
 *   bytes  in  bytes of an element */
static int epilogue_pays(const Device *d, const LtProduct *q, LtProduct plain, int64_t cells, size_t bytes)
{
    const double launch = 4, speed = cuda_of(d)->speed;        /* launch: microseconds */
    Lt *lt = cuda_of(d)->lt;
    double with = lt_us(lt, q), without = with < 0 ? -1 : lt_us(lt, &plain);
    return without < 0 || with <= without + launch + (double)cells * (double)bytes / speed;
}

/* Whether an epilogue does the activation: the library has GELU in its tanh form only. It is applied to
 * the sums before these are rounded to h. A second op would read one matrix and write another.
 *   q        in/out  the product; its aux becomes h
 *   made     in      output of the product without the activation
 *   without  in      epilogue of the product without the activation */
static int has_gelu(const Device *d, LtProduct *q, Mat h, Mat made, cublasLtEpilogue_t without, ActKind kind)
{
    LtProduct plain = *q;
    plain.epilogue = without;
    plain.c = lt_mat(made);
    q->aux = lt_mat(h);
    return kind == ACT_GELU_TANH && q->c.rows && q->c.cols && h.ld % 8 == 0 && lt_has(cuda_of(d)->lt, q)
           && epilogue_pays(d, q, plain, 2 * q->c.rows * q->c.cols, dtype_size(h.type));
}

void cuda_linear_act_fwd(Device *d, Mat a, Mat h, Mat x, Mat w, Mat bias, ActKind kind)
{
    LtProduct q = product(d, act_gated(kind) ? h : a, x, 0, w, 1, 0);
    BUG_ON(h.type != x.type || a.type != x.type || (bias.p && bias.type != x.type));
    q.epilogue = bias.p ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    q.vector = bias.p;
    if (has_gelu(d, &q, h, h, bias.p ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT, kind)) {
        lt_multiply(cuda_of(d)->lt, &q);
        return;
    }
    cuda_linear(d, h, x, w, bias);
    d->act_fwd(d, a, h, kind);
}

void cuda_linear_act_bwd_x(Device *d, Mat dh, Mat da, Mat dy, Mat w, Mat h, ActKind kind)
{
    LtProduct q = product(d, da, dy, 0, w, 0, 0);
    q.epilogue = CUBLASLT_EPILOGUE_DGELU;
    /* in F32 the library's derivative is off by 5e-5 (13.1 on an H200) */
    if (h.type == F32 || !has_gelu(d, &q, h, da, CUBLASLT_EPILOGUE_DEFAULT, kind)) {
        cuda_matmul(d, da, dy, 0, w, 0, 0);
        d->act_bwd(d, dh, da, h, kind);
        return;
    }
    lt_multiply(cuda_of(d)->lt, &q);
    if (dh.p != da.p)
        d->copy(d, dh, da);
}

/* The library overwrites the bias gradient: it goes to a vector, if it is not too long for it, which is then
 * added to db. */
void cuda_linear_bwd_w(Device *d, Mat dw, Mat db, Mat dy, Mat x, int acc)
{
    Lt *lt = cuda_of(d)->lt;
    LtProduct q = product(d, dw, dy, 1, x, 0, acc), plain = q;
    size_t bytes = (size_t)db.cols * dtype_size(db.type);
    BUG_ON(db.p && (db.cols != dy.cols || db.type != dw.type));
    if (db.p && dy.rows && dw.rows && dw.cols && bytes <= LT_VECTOR) {
        q.epilogue = CUBLASLT_EPILOGUE_BGRADB;
        q.vector = lt_vector(lt, bytes);
        if (lt_has(lt, &q) && epilogue_pays(d, &q, plain, dy.rows * dy.cols, dtype_size(dy.type))) {
            lt_multiply(lt, &q);
            d->add(d, db, db, mat(q.vector, 1, db.cols, db.type));
            return;
        }
    }
    cuda_matmul(d, dw, dy, 1, x, 0, acc);
    if (db.p)
        d->bias_bwd(d, db, dy);
}

/* ---- FP8 ---- */

static LtMat lt_mat8(Mat8 m)
{
    return (LtMat){m.p, m.rows, m.cols, m.cols, m.format == E4M3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2};
}

static int32_t lt_mode(Fp8Scaling s)
{
    switch (s) {
    case FP8_VECTORS: return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    case FP8_SQUARES: return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    case FP8_MX:      return CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
    default:          return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
    }
}

void cuda_fp8_check(const Cuda *c, Fp8Scaling scaling)
{
    const int mx = scaling == FP8_MX;
    if (fp8_blocked(scaling) && (mx ? c->major < 10 : c->major != 9 || c->minor != 0))
        die(EXIT_CONFIG, "fp8",
            "%s does not multiply by fp8_recipe %s: it is of compute capability %d.%d, and cuBLASLt has its "
            "blocks for %s; change: fp8_recipe: delayed or tensorwise, or %s",
            c->gpu, mx ? "mxfp8" : "blockwise", c->major, c->minor, mx ? "10.0 and newer" : "9.0",
            mx ? "a B200" : "an H100 or H200");
    if (10 * c->major + c->minor < 89)
        die(EXIT_CONFIG, "fp8",
            "%s multiplies no FP8: it is of compute capability %d.%d, and that begins with 8.9; change: fp8: "
            "none, or a newer GPU",
            c->gpu, c->major, c->minor);
}

/* Both factors have k along their rows, the only layout in which the library multiplies FP8 on every GPU
 * that has it. Sums of a forward (both E4M3) may stay in the tensor cores' precision; sums of gradients, and
 * of blocks, are promoted to F32 on the way. With blocks of 128 the library asks for rows of a in fours, with
 * those of 32 for a k of whole blocks. */
void cuda_fp8_matmul(Device *d, Mat c, Mat8 a, Mat8 b, Mat bias, int acc)
{
    BUG_ON(a.rows != c.rows || b.rows != c.cols || a.cols != b.cols || b.rows % 16);
    BUG_ON(a.cols != fp8_padded(a.cols, a.scaling) || a.rows % fp8_rows_piece(a.scaling));
    BUG_ON(c.type != BF16 && c.type != F16 && c.type != d->real);
    int blocks = fp8_blocked(a.scaling);
    BUG_ON(!fp8_multiplies(a.scaling, b.scaling));
    cuda_fp8_check(cuda_of(d), a.scaling);
    LtProduct q = {.c = lt_mat(c), .a = lt_mat8(a), .b = lt_mat8(b), .tb = 1, .acc = acc,
                   .epilogue = CUBLASLT_EPILOGUE_DEFAULT, .scale_a = a.inverse, .scale_b = b.inverse,
                   .mode_a = lt_mode(a.scaling), .mode_b = lt_mode(b.scaling),
                   .fast = !blocks && a.format == E4M3 && b.format == E4M3};
    if (!c.rows || !c.cols)
        return;
    BUG_ON(!a.cols || (bias.p && bias.type != c.type));
    add_bias(d, &q, c, bias);
    lt_multiply(cuda_of(d)->lt, &q);
}

/* ---- before the first step ---- */

void cuda_algorithms_prefix(const Device *d, char text[ALGORITHM_KEY]) { lt_prefix(cuda_of(d)->lt, text); }

/* Fills an FP8 operand, which replay gives the memory of 16-bit numbers: random numbers of 16 bits go to the
 * second half of it, half of the rows at a time, and from there to FP8 in the first half. Scales of blocks
 * are random numbers, too, but bytes are 0: random ones would be NaN. */
static void random_fp8(Device *d, Mat m, Fp8Format format, Fp8Scaling scaling, Fp8Scale *scale, uint64_t key)
{
    char *first = m.p, *second = first + m.rows * m.cols;
    for (int64_t r = 0, n = m.rows / 2; n && r < m.rows; r += n) {
        Mat x = mat(second, n < m.rows - r ? n : m.rows - r, m.cols, F16);
        d->normals(d, x, (Mat){0}, 0, 1, key, r * m.cols, m.cols);
        d->fp8_cast(d, first + r * m.cols, NULL, x, scale, format, FP8_OWN);
    }
    size_t scales = fp8_scale_bytes(m.rows, m.cols, scaling);
    if (scaling == FP8_MX)
        d->zero(d, second, scales);
    else if (scales)
        d->normals(d, mat(second, 1, (int64_t)(scales / sizeof(float)), F32), (Mat){0}, 0, 1, key, 0, 0);
}

/* Fills sets of operands with random numbers, enough sets that L2 does not hold them. Before the sets lies
 * the Fp8Scale. */
static void ready_random(Device *d, const Product *q, char *first, size_t stride, int64_t sets)
{
    Fp8Scale *scale = (Fp8Scale *)(first - attention_up(sizeof(Fp8Scale)));
    int64_t wanted = (int64_t)(4 * cuda_of(d)->l2 / stride) + 2, n = sets < wanted ? sets : wanted;
    for (int64_t s = 0; s < n; s++)
        for (int k = 0; k < PRODUCT_MATS; k++) {
            Mat m = q->mat[k];
            uint64_t key = rng_key((uint64_t)(s * PRODUCT_MATS + k), "operands");
            if (!m.p)
                continue;
            m.p = (char *)m.p + (size_t)s * stride;
            if (q->op == PRODUCT_FP8 && (k == 1 || k == 2))
                random_fp8(d, m, k == 1 ? q->a : q->b, k == 1 ? q->scaling_a : q->scaling_b, scale, key);
            else
                d->normals(d, m, (Mat){0}, 0, 1, key, 0, m.cols);
        }
    lt_rotate(cuda_of(d)->lt, first, stride, n);
}

void cuda_tune(Device *d, const Products *p, Algorithms *known, int most, void *memory, size_t bytes)
{
    Cuda *c = cuda_of(d);
    lt_forget(c->lt);
    lt_tune(c->lt, known, most);
    CUDA_OK(cudaMemsetAsync(memory, 0, bytes, c->compute));
    products_replay(p, d, memory, bytes, most > 1 ? ready_random : NULL);
    CUDA_OK(cudaMemsetAsync(memory, 0, bytes, c->compute));
    lt_rotate(c->lt, NULL, 0, 0);
    lt_tune(c->lt, known, 0);
}
