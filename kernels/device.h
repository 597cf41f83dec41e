/* device -- one device's arithmetic: a matrix view, and the op table.
 *
 * Letters used in every comment (shapes are local to the rank): B samples of the microbatch, S sequence
 * length, T = B*S tokens (row b*S+s), H width, A query heads, K key/value heads, D head size, F feed-
 * forward width, V vocabulary, L layers.
 *
 * OPS(X) is the table: X(name, (parameters), (their names)), where `other.name names` passes a call on.
 * Every device fills every row; the CPU's code is the definition. "real" is F64 on a device opened for F64,
 * else F32: all sums, statistics, gradients and optimizer state are real; "storage" is the type of
 * activations and weights (F64 | F32, BF16, F16).
 * An op's bits do not depend on the number of threads. Ops own nothing and allocate nothing; shapes that
 * disagree are a BUG. `acc` != 0 adds to the output instead of overwriting it. A Mat whose p is NULL is
 * absent where the comment says so. Outputs may alias inputs only where the comment says so.
 *
 * Every pointer that an op takes is device memory, but for the structs that say how (Dropout, Attention,
 * Update, lists of Updated and Squares): these are read during the call, what their pointers point to is
 * device memory again. Ops run one after the other, some time after the call; the host reads and writes
 * device memory by put, get and read_async alone. */
#ifndef DEVICE_H
#define DEVICE_H
#include "base.h"
#include "exact.h"
#include "pool.h"
#ifdef __cplusplus
extern "C" {
#endif

typedef enum { F64, F32, BF16, F16, I32, I64, DTYPES } Dtype;
static inline size_t dtype_size(Dtype t) { static const uint8_t n[] = {8, 4, 2, 2, 4, 8}; return n[t]; }
const char *dtype_name(Dtype t);             /* "F64", "F32", "BF16", ... as in safetensors */

/* A matrix; a view, never an owner. (B, S, C) is rows = B*S, cols = C; element (r, c) at r*ld + c. */
typedef struct { void *p; int64_t rows, cols, ld; Dtype type; } Mat;

static inline Mat mat(void *p, int64_t rows, int64_t cols, Dtype type)
{
    Mat m = {p, rows, cols, cols, type};
    return m;
}
static inline void *mat_at(Mat m, int64_t r, int64_t c)
{
    return m.p ? (char *)m.p + (size_t)(r * m.ld + c) * dtype_size(m.type) : NULL;
}
static inline Mat mat_rows(Mat m, int64_t r, int64_t n)
{
    Mat part = {mat_at(m, r, 0), n, m.cols, m.ld, m.type};
    return part;
}
static inline Mat mat_cols(Mat m, int64_t c, int64_t n)
{
    Mat part = {mat_at(m, 0, c), m.rows, n, m.ld, m.type};
    return part;
}
static inline size_t mat_bytes(Mat m) { return (size_t)m.rows * (size_t)m.cols * dtype_size(m.type); }
/* Takes a dense rows x cols matrix from an arena. */
static inline Mat mat_take(Arena *a, int64_t rows, int64_t cols, Dtype type)
{
    return mat(arena_take(a, (size_t)rows * (size_t)cols * dtype_size(type)), rows, cols, type);
}

typedef enum { NORM_LAYER, NORM_RMS } NormKind;   /* same order as the option `normalization` */
typedef enum { ACT_GELU, ACT_GELU_TANH, ACT_SWIGLU, ACT_GEGLU, ACT_RELU, ACT_SQUARED_RELU } ActKind;
#define ACT_GATED(k) ((k) == ACT_SWIGLU || (k) == ACT_GEGLU)     /* act(gate) * up */
static inline int act_gated(ActKind k) { return ACT_GATED(k); }
/* Columns of the first linear layer's output h, of an activation that is f wide. */
static inline int64_t act_width(ActKind k, int64_t f) { return ACT_GATED(k) ? 2 * f : f; }

/* A matrix of E4M3 or E5M2 numbers times one scale (Micikevicius et al. 2022, arXiv:2209.05433). The scale
 * lies on the device; memory that is zero has no history. */
typedef enum { E4M3, E5M2 } Fp8Format;
enum { FP8_HISTORY = 1024 };
typedef struct {
    float inverse; /* what undoes in a product that elements were multiplied before they were rounded */
    float largest;             /* number of the format; 0: never used */
    uint32_t amax,
        seen;    /* bits of the largest magnitude: of the last matrix; since fp8_next. In order as integers */
    float scale; /* of delayed casts: what elements are multiplied by; 0: nothing is known, and it is 1 */
    float history[FP8_HISTORY];    /* largest magnitudes of the steps before, the last one first */
} Fp8Scale;
typedef struct { void *p; int64_t rows, cols; Fp8Format format; const Fp8Scale *scale; } Mat8;     /* dense */

/* Which dropout mask: element (row, col) of a matrix whose row r is row row0 + r = b*S + s of the microbatch,
 * position pos0 + s of global sample sample[b], is kept or dropped by Philox(key; col0 + col, position,
 * sample): the same in every layout. p = 0 keeps everything and draws nothing. Kept values are scaled by
 * 1/(1-p). */
typedef struct {
    double p;
    uint64_t key;              /* rng_key(seed, site) mixed with the layer */
    const int64_t *sample;     /* [B] global sample number */
    int64_t seq, pos0, col0;   /* S; the first position; the first column of the whole row */
    int64_t row0;              /* first row of this rank, where rows are shared out (sequence parallelism) */
} Dropout;

/* One attention call. Row b*seq_q + i of q is position pos0 + i; row b*seq_k + j of k and v is position
 * j. Key j is seen by query i if start <= j <= pos0 + i, where start is doc_start[b*seq_q + i] (or 0 if
 * doc_start is NULL), and raised to pos0 + i - window + 1 when window > 0. Heads lie side by side in a
 * row: head h is columns h*dim .. (h+1)*dim. Query head h reads key/value head h / (heads / kv_heads).
 * Attention dropout keeps or drops (head0 + h, query position, key position) of sample[b]. */
typedef struct {
    int64_t batch, seq_q, seq_k, pos0;
    int heads, kv_heads, dim, head0;
    int64_t window;            /* 0: none */
    double scale;              /* of q k^T, usually 1/sqrt(dim) */
    const int32_t *doc_start;  /* [batch*seq_q] or NULL */
    double dropout;
    uint64_t key;
    const int64_t *sample;     /* [batch] */
} Attention;

/* Which row of a whole array row i of a part of it is: parts of n rows, `stride` apart, each from `first` on.
 */
typedef struct { int64_t n, first, stride; } RowMap;
static inline int64_t mapped_row(RowMap m, int64_t i) { return i / m.n * m.stride + m.first + i % m.n; }

/* What the end of a step finds, on the device. */
typedef struct {
    double loss, tokens;       /* mean loss; tokens that count, all ranks */
    double gscale;             /* gradients times this are those of the mean loss */
    double norm; /* of the gradient of the mean loss; NAN when `bad`, infinite when the sum overflows */
    double multiplier;         /* gscale x clip coefficient: what the update multiplies gradients by */
    int64_t bad;               /* terms of the norm that were not finite */
    int64_t go;                /* the update may happen */
} Verdict;

/* n consecutive elements that an optimizer updates. All arrays real, length n. */
typedef struct {
    int64_t n;
    void *w;                   /* master weights, updated */
    const void *g; /* gradient, times verdict->multiplier before use (1/loss scale, clip, tokens) */
    void *m, *v;               /* first and second moments, updated; NULL where the optimizer has none */
    void *dir;                 /* LAMB's direction; may be g */
    void *out;                 /* storage copy of w, written; NULL when w itself is what the model reads */
    const double *trust;       /* device memory: LAMB's, LARS's ratio that multiplies lr; NULL: 1 */
    double wd;
} Updated;

/* One optimizer update of many tensors, of all in as few launches as may be; no two share an element. */
typedef struct {
    const Updated *list;       /* [count] */
    int64_t count;
    Dtype out_type;
    int mapped;                 /* w, m and v lie in mapped memory */
    const Verdict *verdict;    /* device memory; where it says not to go, the op writes nothing */
    double lr, beta1, beta2, eps;
    double bias1, bias2;       /* 1 - beta^t */
    double momentum;
    int nesterov;
} Update;

/* n elements of one type whose squares are added to *sum. */
typedef struct { Exact *sum; const void *x; int64_t n; } Squares;

#define OPS(X)                                                                                               \
    /* dst = src, converting the type. Same shape. */                                                        \
    X(copy, (Device *d, Mat dst, Mat src), (d, dst, src))                                                    \
    /* p[0..bytes) = 0 */                                                                                    \
    X(zero, (Device *d, void *p, size_t bytes), (d, p, bytes))                                               \
    /* y = a + b, storage types; y may be a or b */                                                          \
    X(add, (Device *d, Mat y, Mat a, Mat b), (d, y, a, b))                                                   \
    /* y [n, cols] = parts[0..n) + parts[n..2n) + ..., in this order, rounded once; parts [k n, cols] of y's \
     * type */                                                                                               \
    X(sum_parts, (Device *d, Mat y, Mat parts), (d, y, parts))                                               \
    /* c (+)= op(a) op(b); op transposes when its flag is set. c [m,n], op(a) [m,k], op(b) [k,n]. a and b    \
     * are of one storage type; c is that type or real. Sums in real; K is never split between threads. c    \
     * aliases nothing */                                                                                    \
    X(matmul, (Device *d, Mat c, Mat a, int ta, Mat b, int tb, int acc), (d, c, a, ta, b, tb, acc))          \
    /* y = x w^T + bias: x [T,in], w [out,in], bias [1,out] storage or absent, y [T,out] storage or real */  \
    X(linear, (Device *d, Mat y, Mat x, Mat w, Mat bias), (d, y, x, w, bias))                                \
    /* db [1,out] real += column sums of dy [T,out]; rows in an order that follows from the shape */         \
    X(bias_bwd, (Device *d, Mat db, Mat dy), (d, db, dy))                                                    \
    /* h = x w^T + bias, a = act(h): linear of all of h, and act_fwd. a [T,F], h as in act_fwd, storage */   \
    X(linear_act_fwd, (Device *d, Mat a, Mat h, Mat x, Mat w, Mat bias, ActKind kind),                       \
      (d, a, h, x, w, bias, kind))                                                                           \
    /* dh = (dy w) * act'(h): matmul into da [T,F], which is scratch, and act_bwd. dh may be h, or da where  \
     * the kind is not gated */                                                                              \
    X(linear_act_bwd_x, (Device *d, Mat dh, Mat da, Mat dy, Mat w, Mat h, ActKind kind),                     \
      (d, dh, da, dy, w, h, kind))                                                                           \
    /* dw += dy^T x, and db += column sums of dy, real; db absent: dw alone */                               \
    X(linear_bwd_w, (Device *d, Mat dw, Mat db, Mat dy, Mat x), (d, dw, db, dy, x))                          \
    /* y [rows, cols] and yt [cols, rows], either may be NULL, = x times a scale, rounded to nearest even,   \
     * too large: the largest number. The scale is that of x's largest magnitude, or the one that fp8_next   \
     * has left (delayed). Sizes are multiples of 16. FP8 is for GPUs of compute capability 8.9 and up */    \
    X(fp8_cast, (Device *d, void *y, void *yt, Mat x, Fp8Scale *s, Fp8Format format, int delayed),           \
      (d, y, yt, x, s, format, delayed))                                                                     \
    /* c [m,n] (+)= a [m,k] b[n,k]^T (+ bias [1,n] of c's type, or absent), with the scales undone; not both \
     * E5M2 */                                                                                               \
    X(fp8_matmul, (Device *d, Mat c, Mat8 a, Mat8 b, Mat bias, int acc), (d, c, a, b, bias, acc))            \
    /* The end of a step for n scales: the largest magnitude since the last joins the history, and from the  \
     * largest of its first `length` entries, or the first, follows the scale; zeros alone, or what is not   \
     * finite, leave it */                                                                                   \
    X(fp8_next, (Device *d, Fp8Scale *s, int64_t n, int64_t length, int most_recent),                        \
      (d, s, n, length, most_recent))                                                                        \
    /* y = norm(x) * gain (+ bias), each of the `groups` groups of cols/groups columns of a row on its own   \
     * (groups = 1: the whole row; heads: QK norm, where gain is [1,D]). stats [T, 2*groups] real out: mean, \
     * rstd of each group (RMSNorm: mean is 0). bias absent for RMSNorm. y may be x. Ba et al. 2016; Zhang,  \
     * Sennrich 2019 */                                                                                      \
    X(norm_fwd, (Device *d, Mat y, Mat stats, Mat x, Mat gain, Mat bias, double eps, NormKind kind,          \
                 int groups), (d, y, stats, x, gain, bias, eps, kind, groups))                               \
    /* y = res + dropout(x), ln = norm(y) * gain (+ bias), stats [T,2] of it: dropout_fwd, and norm_fwd      \
     * (groups = 1) of y as it is stored, in one pass. y may be x or res */                                  \
    X(add_norm_fwd, (Device *d, Mat y, Mat ln, Mat stats, Mat x, Mat res, const Dropout *s, Mat gain,        \
                     Mat bias, double eps, NormKind kind),                                                   \
      (d, y, ln, stats, x, res, s, gain, bias, eps, kind))                                                   \
    /* dx = dres + gradient of the norm's input; dres [T,H] absent: 0; dx may be dres or dy. x is the norm's \
     * input */                                                                                              \
    X(norm_bwd_x, (Device *d, Mat dx, Mat dres, Mat dy, Mat x, Mat stats, Mat gain, NormKind kind,           \
                   int groups), (d, dx, dres, dy, x, stats, gain, kind, groups))                             \
    /* dgain, dbias [1, cols/groups] real += ; dbias absent for RMSNorm. Rows as in bias_bwd */              \
    X(norm_bwd_w, (Device *d, Mat dgain, Mat dbias, Mat dy, Mat x, Mat stats, NormKind kind, int groups),    \
      (d, dgain, dbias, dy, x, stats, kind, groups))                                                         \
    /* a [T,F] = act(h); h is [T,F], or [T,2F] = (gate | up) for gated kinds: a = act(gate) * up */          \
    X(act_fwd, (Device *d, Mat a, Mat h, ActKind kind), (d, a, h, kind))                                     \
    /* dh = da * act'(h); shapes as act_fwd; dh may be h, or da where the kind is not gated */               \
    X(act_bwd, (Device *d, Mat dh, Mat da, Mat h, ActKind kind), (d, dh, da, h, kind))                       \
    /* Rotary position, in place, on each of cols/dim heads of x: pairs (i, i + rot/2) of the first rot      \
     * columns of a head turn by angle[position[row]]; table [P, rot] real = (cos | sin), each rot/2 wide.   \
     * inverse: the gradient. Su et al. 2021, arXiv:2104.09864; halves, as in GPT-NeoX and Llama */          \
    X(rope, (Device *d, Mat x, int dim, Mat table, const int32_t *position, int inverse),                    \
      (d, x, dim, table, position, inverse))                                                                 \
    /* o [B*seq_q, A*D], lse [B*seq_q, A] real = log-sum-exp of each row of scores. Never holds a T x T      \
     * matrix. Dao 2023, arXiv:2307.08691 */                                                                 \
    X(attention_fwd, (Device *d, Mat o, Mat lse, Mat q, Mat k, Mat v, const Attention *s),                   \
      (d, o, lse, q, k, v, s))                                                                               \
    /* dq, dk, dv from do; delta [B*seq_q, A] real is scratch. seq_q = seq_k, pos0 = 0 */                    \
    X(attention_bwd, (Device *d, Mat dq, Mat dk, Mat dv, Mat dout, Mat o, Mat lse, Mat delta, Mat q,         \
                      Mat k, Mat v, const Attention *s), (d, dq, dk, dv, dout, o, lse, delta, q, k, v, s))   \
    /* y [T,H] = wte[token - v0] (0 where the token is outside [v0, v0 + wte.rows)) + wpe[position]; wpe     \
     * absent: none */                                                                                       \
    X(embed_fwd, (Device *d, Mat y, const int32_t *token, const int32_t *position, Mat wte, int64_t v0,      \
                  Mat wpe), (d, y, token, position, wte, v0, wpe))                                           \
    /* dwte, dwpe real += rows of dy, tokens in order; either may be absent */                               \
    X(embed_bwd, (Device *d, Mat dwte, int64_t v0, Mat dwpe, Mat dy, const int32_t *token,                   \
                  const int32_t *position), (d, dwte, v0, dwpe, dy, token, position))                        \
    /* y = res + dropout(x); res absent: 0. y may be x or res */                                             \
    X(dropout_fwd, (Device *d, Mat y, Mat x, Mat res, const Dropout *s), (d, y, x, res, s))                  \
    /* dx = dropout mask * dy / (1-p); dx may be dy */                                                       \
    X(dropout_bwd, (Device *d, Mat dx, Mat dy, const Dropout *s), (d, dx, dy, s))                            \
    /* Cross-entropy over a slice of rows, in two steps so that ranks which hold parts of the vocabulary can \
     * add in between. stats [rows,3] real out: largest logit, sum of exp(logit - largest), logit of the     \
     * label (-inf when the label is not in [v0, v0+cols)). logits [rows, cols] real; only the first `valid` \
     * columns take part. label: of the whole microbatch, row i's is label[mapped_row(rows, i)] */           \
    X(xent_stats, (Device *d, Mat stats, Mat logits, const int32_t *label, RowMap rows, int64_t v0,          \
                   int64_t valid), (d, stats, logits, label, rows, v0, valid))                               \
    /* stats [rows,3] = those of the whole vocabulary from `parts` [parts*rows,3], part p's rows from p*rows \
     * on, added up in order of the parts: the largest logit of all, sums of exp rescaled to it, the label's \
     * logit. parts may be 1 */                                                                              \
    X(xent_combine, (Device *d, Mat stats, Mat parts), (d, stats, parts))                                    \
    /* With R = mapped_row(rows, r): loss[R] = log(sum) + largest - label logit, real [T,1], times mask[R];  \
     * dlogits (storage; absent: loss only) row r = (softmax - onehot) * mask[R] * scale, 0 beyond `valid`.  \
     * mask NULL: ones. dlogits may start at the memory of logits when its rows lie at the same addresses    \
     * (ld in bytes equal). loss, label and mask are of the whole microbatch */                              \
    X(xent_grad, (Device *d, Mat loss, Mat dlogits, Mat logits, Mat stats, const int32_t *label,             \
                  const float *mask, RowMap rows, int64_t v0, int64_t valid, double scale),                  \
      (d, loss, dlogits, logits, stats, label, mask, rows, v0, valid, scale))                                \
    /* Both steps of rows that hold the whole vocabulary, v0 = 0: a row's gradient is made of what its       \
     * statistics have just read. stats [rows,3] real is scratch */                                          \
    X(xent, (Device *d, Mat loss, Mat dlogits, Mat logits, Mat stats, const int32_t *label,                  \
             const float *mask, RowMap rows, int64_t valid, double scale),                                   \
      (d, loss, dlogits, logits, stats, label, mask, rows, valid, scale))                                    \
    /* out[0] += the sum of all elements of x (any real type), added up in F64 from 0 on; on the CPU rows in \
     * order */                                                                                              \
    X(sum, (Device *d, double *out, Mat x), (d, out, x))                                                     \
    /* For each of `count` arrays *sum += the squares of its n elements: each block of SUMSQ_BLOCK elements, \
     * the last one short, is summed in F64, and these sums are added exactly. Sums may be the same. Any     \
     * number of calls between two `carry` */                                                                \
    X(squares, (Device *d, const Squares *list, int64_t count, Dtype type), (d, list, count, type))          \
    /* exact_carry of each of n sums: before the words of several ranks are added, and after */              \
    X(carry, (Device *d, Exact *s, int64_t n), (d, s, n))                                                    \
    /* Fills *v from sums = {sum of losses, tokens that count} and the squares of the whole gradient. loss = \
     * sums[0] / sums[1], 0 without tokens; gscale = (nominal / tokens, or 1 without tokens) / loss_scale;   \
     * norm = sqrt(squares) gscale; multiplier = gscale min(1, clip_grad / (norm + 1e-6)) as Megatron-LM's   \
     * clip_grads, clip_grad 0: gscale. go: without `stop` 1; with it 1 if it was 1 before and loss and norm \
     * are finite, so that nothing is updated after a bad step */                                            \
    X(verdict, (Device *d, Verdict *v, const double *sums, const Exact *squares, double nominal,             \
                double loss_scale, double clip_grad, int stop),                                              \
      (d, v, sums, squares, nominal, loss_scale, clip_grad, stop))                                           \
    /* trust[i], i < n, from the squared norms 2i of a weight and 2i + 1 of its step (LAMB) or gradient      \
     * (LARS): weight / step, or coefficient weight / (g + wd weight), g = v->multiplier gradient; 1 where   \
     * one of the two is not above 0 */                                                                      \
    X(trust, (Device *d, double *trust, const Exact *norms, int64_t n, int lars, double coefficient,         \
              double wd, const Verdict *v), (d, trust, norms, n, lars, coefficient, wd, v))                  \
    /* AdamW: m, v updated; w -= lr (mhat / (sqrt(vhat) + eps) + wd w). Loshchilov, Hutter 2019,             \
     * arXiv:1711.05101 */                                                                                   \
    X(adam, (Device *d, const Update *u), (d, u))                                                            \
    /* SGD with momentum: m = momentum m + g + wd w; w -= lr m (nesterov: lr (g + wd w + momentum m)) */     \
    X(sgd, (Device *d, const Update *u), (d, u))                                                             \
    /* LAMB, first step: m, v updated; dir[i] = mhat/(sqrt(vhat)+eps) + wd w. You et al. 2020,               \
     * arXiv:1904.00962 */                                                                                   \
    X(lamb_direction, (Device *d, const Update *u), (d, u))                                                  \
    /* LAMB, second step: w -= lr trust dir */                                                               \
    X(lamb_apply, (Device *d, const Update *u), (d, u))                                                      \
    /* LARS: m = momentum m + lr trust (g + wd w); w -= m. You, Gitman, Ginsburg 2017, arXiv:1708.03888 */   \
    X(lars, (Device *d, const Update *u), (d, u))

#define SUMSQ_BLOCK 1024 /* elements; shards are cut at multiples of it, so that norms keep their bits */

/* What is kept from a forward to its backward in another way than ours, for the model to make room for: never
 * here, but a machine that is only planned may be of another kind (Machine.unfused). */
typedef struct {
    int mask;                  /* a dropout's mask, one byte an element */
    int scores;                /* attention's T x T probabilities, before and after dropout, and its mask */
    int logits;                /* all logits at a time */
    int drop_sent;             /* bool: do not keep a unit's input once its message has left */
    int recomputed_output;     /* bool: recomputation makes the output of a group of layers too */
} Keeps;

typedef struct Device Device;
struct Device {
    const char *name;          /* "cpu" */
    const char *isa;           /* "amx", "avx512", "avx2", "generic" */
    const char *bf16;          /* what multiplies BF16: "amx", "avx512_bf16", or "f32" after conversion */
    Dtype real;                /* F64 or F32 */
    Pool *pool;
    Keeps keeps;
    void *impl;                /* the device's own: packing buffers, queues */
    uint64_t unit;             /* which GPU, of all hosts': ranks of the same number share it; the host: 0 */
    int late; /* bool: ops run asynchronously; a step's results are read during the next step */

    /* Memory of this device, zeroed; dies with EXIT_RESOURCE. owns: p lies in such memory, and the host must
     * not touch it; never on the CPU, whose memory is the host's */
    void *(*take)(Device *d, size_t bytes);
    void (*give)(Device *d, void *p, size_t bytes);
    int (*owns)(Device *d, const void *p);
    size_t (*left)(Device *d); /* bytes that can still be taken, by all that share the device */
    /* Mapped memory: pinned memory of the host that ops and copies of this device read and write over the
     * bus, for data that is seldom used. Else as take, give and owns. On the CPU it is take's memory */
    void *(*mapped_take)(Device *d, size_t bytes);
    void (*mapped_give)(Device *d, void *p, size_t bytes);
    /* Copies on streams of their own: offload to mapped memory, prefetch from it. A copy starts when every op
     * launched before it has run. Copies of one direction run in order, the two directions side by side; a
     * prefetch waits for the offload with ticket `after` and all earlier ones. The host does not wait. Both
     * return a ticket; an offload's tickets grow, 0 is none. stream_wait: ops launched after this call run
     * after the copy with that ticket and all earlier ones of its direction */
    int64_t (*offload)(Device *d, void *mapped, const void *src, size_t bytes);
    int64_t (*prefetch)(Device *d, void *dst, const void *mapped, size_t bytes, int64_t after);
    void (*stream_wait)(Device *d, int64_t ticket);
    /* A side stream for updates and zeroes of mapped memory: what is launched between side_begin and side_end
     * runs after all ops launched before side_begin, in order, on few of the device's cores, and beside ops
     * launched after side_end. side_end returns a ticket for stream_wait */
    void (*side_begin)(Device *d);
    int64_t (*side_end)(Device *d);
    /* Copies in the order of the ops. put: host to device; src may be written on return. get: device to host;
     * waits for every op before it. read_async: as get without waiting; dst is memory of host_take. When
     * read_wait(ticket) returns, this copy and all earlier ones of read_async are done; any thread may call
     * it */
    void (*put)(Device *d, void *dst, const void *src, size_t bytes);
    void (*get)(Device *d, void *dst, const void *src, size_t bytes);
    int64_t (*read_async)(Device *d, void *dst, const void *src, size_t bytes);
    void (*read_wait)(Device *d, int64_t ticket);
    /* read_async on a stream of its own: starts when every op launched before it has run. Ops launched later
     * do not wait for it and must not write src until wait_snapshots: ops launched after that call run after
     * every snapshot. A src in mapped memory is copied in the order of the ops */
    int64_t (*snapshot)(Device *d, void *dst, const void *src, size_t bytes);
    void (*wait_snapshots)(Device *d);
    /* Host memory, zeroed, that copies run to and from at full speed */
    void *(*host_take)(Device *d, size_t bytes);
    void (*host_give)(Device *d, void *p, size_t bytes);
    /* Returns when every op and copy has run; of those on other streams, the ones that ops wait for */
    void (*sync)(Device *d);
#define X(name, params, names) void (*name) params;
    OPS(X)
#undef X
};

/* Opens the CPU. real: F64 or F32. isa: "auto" or one of amx, avx512, avx2, generic; one that this CPU lacks
 * dies with EXIT_CONFIG and names those that it has. threads: 0 = the cores this process may run on. */
void cpu_open(Device *d, Dtype real, const char *isa, int threads);
void cpu_close(Device *d);
/* Bytes that cpu_open would take for itself. */
size_t cpu_workspace(Dtype real, const char *isa, int threads);

/* Opens a GPU. real: F32. Dies with EXIT_RESOURCE where there is no driver, no such GPU, or no memory left on
 * it, with EXIT_CONFIG in a build without CUDA. Every pointer of an op is the GPU's memory. */
void cuda_open(Device *d, Dtype real, int index);
void cuda_close(Device *d);
/* Bytes of its memory that cuda_open takes for itself, for partial sums of one op: in a build without CUDA
 * too, so that plans are the same in both. */
#define CUDA_WORKSPACE ((size_t)64 << 20)
/* GPUs of this machine, 1 or more; dies as cuda_open does. */
int cuda_count(void);

/* An arena of a device's memory; one of the host's memory that its ops use; one of host memory that copies
 * run to and from at full speed. */
void device_arena(Device *d, Arena *a, const char *name, size_t size);
void device_arena_close(Device *d, Arena *a);
void mapped_arena(Device *d, Arena *a, const char *name, size_t size);
void mapped_arena_close(Device *d, Arena *a);
void host_arena(Device *d, Arena *a, const char *name, size_t size);
void host_arena_close(Device *d, Arena *a);

/* Bytes of memory that this machine has left. */
size_t host_left(void);

/* put, get and snapshot where d is NULL: src and dst are the host's. */
void device_put(Device *d, void *dst, const void *src, size_t bytes);
void device_get(Device *d, void *dst, const void *src, size_t bytes);
int64_t device_snapshot(Device *d, void *dst, const void *src, size_t bytes);

/* A device whose ops do nothing, for counting runs. */
void null_open(Device *d, Dtype real);
#ifdef __cplusplus
}
#endif
#endif
