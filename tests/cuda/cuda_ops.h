/* cuda_ops -- compares an op on a GPU with its CPU twin.
 *
 * A case is a function that draws sizes, makes its tensors and calls the op once. It runs on the CPU in
 * F64 and on the GPU, with the same draws and the same numbers (rounded to the GPU's types), and the
 * outputs are compared. On the GPU some tensors start at an odd offset or have gaps between their rows.
 * Tensors are in device memory, but for those that a run can have in mapped memory: masters and moments of
 * an offloaded optimizer. A case makes these between state_begin and state_end; by chance they are mapped.
 * Outputs and gaps hold NaN before the op; gaps must hold NaN after it. A second run on the GPU must give
 * the same bits. */
#ifndef CUDA_OPS_H
#define CUDA_OPS_H
#include "exact.h"
#include "ops.h"

enum { TENSORS = 32 };
typedef enum { IN, OUT, INOUT, RAW, EXACT } Role;
typedef struct {
    Mat m;
    Role role;
    int mapped;                /* bool: the tensor is in mapped memory */
    char *base;                /* memory of take or mapped_take */
    size_t bytes;              /* size of base */
    double loose;              /* factor on the tolerance of arithmetic */
    double largest;            /* lower bound of the largest element, to which tolerances are relative */
    Dtype rounded;             /* type that the numbers were rounded to: m.type on the GPU */
    char *host;                /* [bytes] copy of base after the run */
} Tensor;

typedef struct {
    Device *d;
    int oracle;                /* bool: this device is the reference, the CPU in F64 */
    Dtype storage;             /* storage type of the case on the GPU */
    uint64_t seed, draws;
    int tight;                 /* bool: tensors are aligned to 16 bytes, for the widest accesses */
    int mapped;                /* bool: tensors made now are in mapped memory */
    Tensor t[TENSORS];
    int n;
} Bench;

/* Random integer in [lo, hi]. */
static inline int64_t draw(Bench *b, int64_t lo, int64_t hi)
{
    return lo + (int64_t)(philox(b->seed, b->draws++, 0).v[0] % (uint64_t)(hi - lo + 1));
}
/* Random size in [1, most]: small, round or odd. */
static inline int64_t draw_size(Bench *b, int64_t most)
{
    static const int64_t some[] = {1,   2,   3,   5,   8,   16,  24,   31,   32,   33,  64,
                                   100, 128, 256, 257, 384, 512, 1000, 1024, 2048, 4096};
    int64_t n = some[draw(b, 0, sizeof some / sizeof *some - 1)], odd = draw(b, 1, most);
    n = draw(b, 0, 2) ? n : odd;
    return n > most ? odd : n;
}
/* Random number of columns in [1, most]; with `tight` a multiple of 8, 16 bytes of the narrowest type. */
static inline int64_t draw_cols(Bench *b, int64_t most)
{
    int64_t n = draw_size(b, most);
    return b->tight && most >= 8 ? (n + 7) / 8 * 8 <= most ? (n + 7) / 8 * 8 : most / 8 * 8 : n;
}

/* Tensors made from here to state_end are state of an optimizer: all of them in mapped memory or none, by
 * chance. Returns which. */
static inline int state_begin(Bench *b) { return b->mapped = (int)draw(b, 0, 1); }
static inline void state_end(Bench *b) { b->mapped = 0; }

static inline Tensor *tensor_add(Bench *b, Role role, int64_t rows, int64_t cols, Dtype type)
{
    BUG_ON(b->n == TENSORS);
    Tensor *t = &b->t[b->n++];
    int64_t gap = draw(b, 0, 1) * draw(b, 1, 9), offset = draw(b, 0, 1) * draw(b, 1, 5);
    Dtype on = b->oracle && (type == F32 || type == BF16 || type == F16) ? F64 : type;
    if (b->tight)
        gap = draw(b, 0, 1) * 16, offset = 0;
    if (b->oracle || role == RAW || role == EXACT)
        gap = offset = 0;
    *t = (Tensor){.role = role, .loose = 1, .rounded = type, .mapped = b->mapped};
    size_t size = dtype_size(on);
    t->bytes = (size_t)(offset + rows * (cols + gap)) * size;
    t->base = t->mapped ? b->d->mapped_take(b->d, t->bytes) : b->d->take(b->d, t->bytes);
    t->host = xcalloc(1, t->bytes + 1);
    memset(t->host, 0xff, t->bytes);
    t->m = (Mat){t->base + (size_t)offset * size, rows, cols, cols + gap, on};
    return t;
}
static inline void tensor_put(Bench *b, Tensor *t)
{
    b->d->put(b->d, t->base, t->host, t->bytes);
}
static inline char *tensor_host(const Tensor *t) { return t->host + ((char *)t->m.p - t->base); }

static inline Mat numbers(Bench *b, Role role, int64_t rows, int64_t cols, Dtype type, double spread,
                          int positive)
{
    Tensor *t = tensor_add(b, role, rows, cols, type);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            double x = normal((uint64_t)b->n + 31 * b->seed, r * cols + c) * spread;
            put(tensor_host(t), r * t->m.ld + c, t->m.type, rounded(positive ? fabs(x) : x, type));
        }
    tensor_put(b, t);
    return t->m;
}
/* input: normal numbers of standard deviation `spread`, read by the op; changed: read and written. */
static inline Mat input(Bench *b, int64_t rows, int64_t cols, Dtype type, double spread)
{
    return numbers(b, IN, rows, cols, type, spread, 0);
}
static inline Mat changed(Bench *b, int64_t rows, int64_t cols, Dtype type, double spread)
{
    return numbers(b, INOUT, rows, cols, type, spread, 0);
}
/* A tensor that the op writes; it holds NaN before. */
static inline Mat output(Bench *b, int64_t rows, int64_t cols, Dtype type)
{
    Tensor *t = tensor_add(b, OUT, rows, cols, type);
    tensor_put(b, t);
    return t->m;
}
/* Multiplies the last tensor's tolerance by `loose`. */
static inline void loosen(Bench *b, double loose) { b->t[b->n - 1].loose = loose; }
/* Makes the input x an output, too. */
static inline Mat in_place(Bench *b, Mat x)
{
    for (int i = 0; i < b->n; i++)
        if (b->t[i].m.p == x.p)
            b->t[i].role = INOUT;
    return x;
}
/* An output of x's shape and type: x itself or a tensor of its own, by chance. */
static inline Mat output_or(Bench *b, Mat x)
{
    Dtype type = F32;
    for (int i = 0; i < b->n; i++)
        if (b->t[i].m.p == x.p)
            type = b->t[i].rounded;
    return draw(b, 0, 1) ? in_place(b, x) : output(b, x.rows, x.cols, type);
}

/* Bytes that are the same on CPU and GPU. */
static inline void *raw(Bench *b, const void *p, size_t bytes)
{
    Tensor *t = tensor_add(b, RAW, 1, (int64_t)(bytes + 3) / 4, I32);
    memcpy(t->host, p, bytes);
    tensor_put(b, t);
    return t->m.p;
}
/* n random integers in [lo, hi]. */
static inline int32_t *whole(Bench *b, int64_t n, int64_t lo, int64_t hi)
{
    int32_t *v = xcalloc((size_t)n + 1, sizeof *v);
    for (int64_t i = 0; i < n; i++)
        v[i] = (int32_t)draw(b, lo, hi);
    int32_t *p = raw(b, v, (size_t)n * sizeof *v);
    free(v);
    return p;
}

/* Runs fn once on the CPU in F64 and twice on the GPU, and compares. what: name in messages of failures. */
void compare_op(const char *what, void (*fn)(Bench *b), Device *oracle, Device *gpu, Dtype storage,
                uint64_t seed, int tight);
#endif
