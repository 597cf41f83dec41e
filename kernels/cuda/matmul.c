/* Matrix products, and linear layers with what belongs to them, as products of cuBLASLt with epilogues. Where the
 * library has no algorithm with an epilogue (odd sizes), the same is computed in two steps. */
#include "cuda.h"
#include "lt.h"

static cudaDataType lt_type(Dtype t)
{
    BUG_ON(t != F32 && t != BF16 && t != F16);
    return t == F32 ? CUDA_R_32F : t == BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

static LtMat lt_mat(Mat m) { return (LtMat){m.p, m.rows, m.cols, m.ld, lt_type(m.type)}; }

static LtProduct product(const Device *d, Mat c, Mat a, int ta, Mat b, int tb, int acc)
{
    int64_t k = ta ? a.rows : a.cols;
    BUG_ON((ta ? a.cols : a.rows) != c.rows || (tb ? b.rows : b.cols) != c.cols || (tb ? b.cols : b.rows) != k);
    BUG_ON(a.type != b.type || (c.type != a.type && c.type != d->real));
    return (LtProduct){.c = lt_mat(c), .a = lt_mat(a), .b = lt_mat(b), .ta = ta, .tb = tb, .acc = acc,
                       .epilogue = CUBLASLT_EPILOGUE_DEFAULT};
}

/* Without terms a sum is 0. */
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

/* The library adds a bias of the output's type alone. */
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
