/* device -- one device: its ops, its memory, its copies and streams; the matrix view Mat.
 *
 * Letters of the comments (shapes are local to the rank): B samples of the microbatch, S sequence
 * length, T = B*S tokens (row b*S+s), H width, A query heads, K key/value heads, D head size, F
 * feed-forward width, V vocabulary, P positions, L layers.
 *
 * OPS(X) is the table of ops: X(name, (parameters), (their names)), where `other.name names` passes a
 * call on. Every device has every op; the CPU's code is the definition. An op's bits do not depend on
 * the number of threads. Ops own no memory and allocate none; shapes that disagree are a BUG. Three types
 * have names:
 *   real      F64 on a device opened for F64, else F32: sums, statistics, optimizer state
 *   storage   type of activations and weights: F64, F32, BF16 or F16
 *   gradient  type of a weight's gradient: real; or BF16 where storage is BF16: then what an op adds is
 *             summed in F32, added in F32, and the result rounded once
 * A Mat whose p is NULL is absent, where the contract allows it. An output may alias an input only where
 * the contract says `may be`. A contract has a line an argument: name, in or out, shape, type or unit.
 *
 * Every pointer that an op takes is device memory, except for the structs of host memory that describe a
 * call (Dropout, Attention, Update, lists of Updated, Squares, Hashed). These are read during the call; the
 * pointers in them are device memory. Ops run in order, some time after the call. The host reads and
 * writes device memory by put, get, read_async and snapshot only. */
#ifndef DEVICE_H
#define DEVICE_H
#include "base.h"
#include "exact.h"
#include "moments.h"
#include "pool.h"
#ifdef __cplusplus
extern "C" {
#endif

typedef enum { F64, F32, BF16, F16, I32, I64, I16, U8, DTYPES } Dtype;
static inline size_t dtype_size(Dtype t) { static const uint8_t n[] = {8, 4, 2, 2, 4, 8, 2, 1}; return n[t]; }
const char *dtype_name(Dtype t);             /* "F64", "F32", "BF16", ... as in safetensors */

/* View of a matrix. (B, S, C) is rows = B*S, cols = C; element (r, c) is element r*ld + c from p on. */
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
/* Takes the memory of a dense matrix [rows, cols] from an arena. */
static inline Mat mat_take(Arena *a, int64_t rows, int64_t cols, Dtype type)
{
    return mat(arena_take(a, (size_t)rows * (size_t)cols * dtype_size(type)), rows, cols, type);
}

typedef enum { NORM_LAYER, NORM_RMS } NormKind;   /* same order as the option `normalization` */
typedef enum { ACT_GELU, ACT_GELU_TANH, ACT_SWIGLU, ACT_GEGLU, ACT_RELU, ACT_SQUARED_RELU } ActKind;
/* Whether the activation is act(gate) * up. */
#define ACT_GATED(k) ((k) == ACT_SWIGLU || (k) == ACT_GEGLU)
static inline int act_gated(ActKind k) { return ACT_GATED(k); }
/* Columns of act_fwd's input h when its output has f columns. */
static inline int64_t act_width(ActKind k, int64_t f) { return ACT_GATED(k) ? 2 * f : f; }

/* The scale of a matrix of E4M3 or E5M2 numbers (Micikevicius et al. 2022, arXiv:2209.05433), in device
 * memory. Zeroed memory is a scale that was never used. Bits of magnitudes compare as integers. */
typedef enum { E4M3, E5M2 } Fp8Format;
enum { FP8_HISTORY = 1024 };
typedef struct {
    float inverse;              /* 1 / scale of the last cast: what a product is multiplied by */
    float largest;              /* largest number of the format; 0: never used */
    uint32_t amax;              /* bits of the largest magnitude of the last matrix that was not delayed */
    uint32_t seen;              /* bits of the largest magnitude since the last fp8_next */
    float scale;                /* what a delayed cast multiplies elements by; 0: unknown, 1 is used */
    float history[FP8_HISTORY]; /* largest magnitudes of earlier steps, newest first */
    uint32_t zero[3];           /* cuBLASLt reads `inverse` only at multiples of 16 bytes */
} Fp8Scale;
/* Where a cast takes its scale from: from the matrix's own largest magnitude; from those before, which
 * fp8_next has stored; or, with no Fp8Scale, from the largest magnitude of each block: of FP8_BLOCK numbers
 * of a row, or of FP8_BLOCK x FP8_BLOCK numbers (DeepSeek-AI 2024, arXiv:2412.19437, sec 3.3), or of 32
 * numbers of a row (Rouhani et al. 2023, arXiv:2310.10537). Scales of blocks are powers of two. Their
 * inverses lie behind the numbers of a matrix [rows, cols], as cuBLASLt reads them:
 *   FP8_VECTORS  float [blocks of cols, rows]
 *   FP8_SQUARES  float [blocks of rows, blocks of cols], rows of scales are a multiple of 4 apart
 *   FP8_MX       bytes e for 2^(e - 127), 255: NaN; [blocks of rows, blocks of cols] tiles of 512 bytes, one
 *                for each FP8_BLOCK x FP8_BLOCK numbers; 0 where a tile reaches over the matrix
 * The last block of a row or column may be smaller. fp8.h: which scale is an element's. */
typedef enum { FP8_OWN, FP8_DELAYED, FP8_VECTORS, FP8_SQUARES, FP8_MX } Fp8Scaling;
enum { FP8_BLOCK = 128, FP8_TILE = 512 };
static inline int fp8_blocked(Fp8Scaling s) { return s >= FP8_VECTORS; }
static inline int64_t fp8_blocks(int64_t n) { return (n + FP8_BLOCK - 1) / FP8_BLOCK; }
/* Scales from one row of scales, or of tiles, to the next. */
static inline int64_t fp8_pitch(int64_t rows, int64_t cols, Fp8Scaling s)
{
    if (s == FP8_MX)
        return fp8_blocks(cols) * FP8_TILE;
    return s == FP8_VECTORS ? rows : (fp8_blocks(cols) + 3) / 4 * 4;
}
/* Bytes of a matrix's scales that lie behind its numbers; of both. */
static inline size_t fp8_scale_bytes(int64_t rows, int64_t cols, Fp8Scaling s)
{
    int64_t down = fp8_blocks(s == FP8_VECTORS ? cols : rows);
    size_t scales = fp8_blocked(s) ? (size_t)(down * fp8_pitch(rows, cols, s)) : 0;
    return s == FP8_MX ? scales : scales * sizeof(float);
}
static inline size_t fp8_bytes(int64_t rows, int64_t cols, Fp8Scaling s)
{
    return (size_t)(rows * cols) + fp8_scale_bytes(rows, cols, s);
}
/* Whether fp8_matmul multiplies a factor a by b. */
static inline int fp8_multiplies(Fp8Scaling a, Fp8Scaling b)
{
    if (a == FP8_VECTORS)
        return b == FP8_VECTORS || b == FP8_SQUARES;
    return a == FP8_MX ? b == FP8_MX : a != FP8_SQUARES && !fp8_blocked(b);
}
/* The next length of a sum: sums are made of pieces of 16 numbers, with FP8_MX of 32. */
static inline int64_t fp8_padded(int64_t n, Fp8Scaling s)
{
    const int64_t piece = s == FP8_MX ? 32 : 16;
    return (n + piece - 1) / piece * piece;
}
/* The rows of fp8_matmul's factor a are a multiple of this. */
static inline int64_t fp8_rows_piece(Fp8Scaling s) { return s == FP8_VECTORS ? 4 : 1; }
/* A dense matrix in FP8. inverse, on the device: 1 / scale; of blocks, all of them. */
typedef struct {
    void *p;
    int64_t rows, cols;
    Fp8Format format;
    const void *inverse;       /* one float; with blocks as Fp8Scaling says */
    Fp8Scaling scaling;        /* FP8_OWN and FP8_DELAYED: one scale */
} Mat8;
/* The matrix at p. s: its scale, unless it has blocks; NULL: nothing will be read. */
static inline Mat8 mat8(void *p, int64_t rows, int64_t cols, Fp8Format format, Fp8Scaling scaling,
                        const Fp8Scale *s)
{
    const void *behind = p ? (char *)p + rows * cols : NULL;
    Mat8 m = {p, rows, cols, format, fp8_blocked(scaling) ? behind : s ? &s->inverse : NULL, scaling};
    return m;
}

/* Which positions the rows of a matrix are, the same in each of its samples: rows [row, row + n) of
 * sample b, counted from row b * stride, are positions [start, start + n). Runs ascend by `start` and do
 * not overlap. The rows of a whole sequence S are one run, {0, S, 0}. */
typedef struct { int32_t start, n, row; } PositionRun;
enum { POSITION_RUNS = 128 };
typedef struct {
    int64_t stride;            /* rows from one sample to the next */
    int32_t count;
    PositionRun run[POSITION_RUNS];    /* [count] */
} Positions;
/* One run of n positions from `start` on, which are all rows of a sample. */
static inline Positions positions_one(int64_t start, int64_t n)
{
    Positions r;
    r.stride = n;
    r.count = 1;
    r.run[0].start = (int32_t)start, r.run[0].n = (int32_t)n, r.run[0].row = 0;
    return r;
}
/* Number of rows of a sample. */
static inline int64_t positions_rows(const Positions *r)
{
    int64_t n = 0;
    for (int i = 0; i < r->count; i++)
        n += r->run[i].n;
    return n;
}
/* The position of a row of a sample. */
static inline int64_t positions_at(const Positions *r, int64_t row)
{
    int i = 0;
    while (row < r->run[i].row || row >= r->run[i].row + r->run[i].n)
        i++;
    return r->run[i].start + row - r->run[i].row;
}

/* A dropout mask. Row r of the matrix is row row0 + r = b * seq + s of the microbatch, and so the position
 * of row s of global sample sample[b]. Philox(key; col0 + col, position, sample) decides whether element
 * (r, col) is kept, so the mask is the same in every layout. Kept values are multiplied by 1/(1-p). With
 * jitter nothing is dropped: the same random word w makes the factor 1 + jitter * ((w >> 8) / 2^23 - 1). */
typedef struct {
    double p;                  /* probability of dropping; 0: everything is kept */
    double jitter;             /* dropout_fwd and _bwd alone: factors are uniform in [1 - jitter, 1 + jitter);
                                * 0: none */
    uint64_t key;              /* rng_key(seed, site) mixed with the layer */
    const int64_t *sample;     /* [B] global sample number */
    const Positions *runs;     /* of the rows of a sample; at most two runs, in the order of its rows */
    int64_t col0;              /* first column of this rank within the whole row */
    int64_t row0;              /* first row of this rank within the microbatch (sequence parallelism) */
} Dropout;

/* Shape, mask and dropout of an attention call: the queries and the keys may be any positions of the
 * samples, so that a sequence can be done by pieces. The query at position i sees the key at position j
 * if start <= j <= i. start is doc_start[b*seq + i], or 0 without doc_start; with a window it is at
 * least i - window + 1. Head h is columns h*dim .. (h+1)*dim. Query head h reads key/value head h /
 * (heads / kv_heads). Attention dropout decides on (head0 + h, query position, key position) of
 * sample[b]. A query that sees no key has o = 0 and lse = -inf. */
typedef struct {
    int64_t batch;
    Positions q, k;            /* of the rows of q, o and lse, and of the rows of k and v */
    int heads, kv_heads, dim, head0;   /* head0: first query head of this rank */
    int64_t window;            /* positions that a query sees, its own included; 0: no limit */
    double scale;              /* what q k^T is multiplied by, usually 1/sqrt(dim) */
    const int32_t *doc_start;  /* [batch*seq] first position of the document of each position; NULL: 0 */
    int64_t seq;               /* positions of a whole sample; read with doc_start alone */
    double dropout;            /* probability of dropping */
    uint64_t key;              /* of the dropout's Philox */
    const int64_t *sample;     /* [batch] global sample number */
    int add;                   /* bool: attention_bwd adds to dq, which is real then */
} Attention;

/* Rows of a part of an array: blocks of n rows, `stride` rows from one to the next, the first at row
 * `first`. mapped_row: row of the whole array that row i of the part is. */
typedef struct { int64_t n, first, stride; } RowMap;
static inline int64_t mapped_row(RowMap m, int64_t i) { return i / m.n * m.stride + m.first + i % m.n; }

#include "update.h"

/* Bytes of device memory, one or more, whose hash is added to *sum, device memory too. */
typedef struct { uint64_t *sum; const void *x; int64_t bytes; } Hashed;

/* What word k of 8 bytes adds to a hash. Two values of one word never add the same, so every change within a
 * word is seen; one that words share out between them is missed in 1 of 2^64 cases. */
#define HASH_TURN(x) ((x) ^ (x) >> 32)
#define HASH_WORD(k, w)                                                                                      \
    HASH_TURN(HASH_TURN((w) + (uint64_t)((k) + 1) * 0x9e3779b97f4a7c15ull) * 0xd6e8feb86659fd93ull)

/* Routing of tokens to experts: scores, choice and weights of a router. E experts, k = topk. Shazeer et al.
 * 2017, arXiv:1701.06538; groups and sigmoid: DeepSeek-AI 2024, arXiv:2412.19437. */
enum { ROUTING_GROUPS = 32 };  /* most groups */
typedef struct {
    int topk;                  /* experts of a token, 1..E */
    int sigmoid;               /* bool: a score is the sigmoid of a logit; else softmax of the logits */
    int pre_softmax;           /* bool: softmax's weights are the chosen scores, else a softmax of the
                                  chosen logits */
    double scale;              /* what weights are multiplied by */
    int groups, group_topk;    /* choose among the best group_topk of `groups` groups of E / groups
                                  neighbouring experts; groups 0: among all */
    double z;                  /* coefficient of the z-loss, z * sum over rows of logsumexp(logits)^2: Zoph
                                  et al. 2022, arXiv:2202.08906 */
    int64_t row0, each;        /* logits row r has the scores' gradient in row (row0 + r) / each of `push` */
    int given;                 /* bool: `choice` has the experts already: nothing is chosen */
} Routing;

#define OPS(X)                                                                                               \
    /* dst = src, converted to the type of dst.                                                              \
     *   dst  out  [n, m]  any type                                                                          \
     *   src  in   [n, m]  any type */                                                                       \
    X(copy, (Device *d, Mat dst, Mat src), (d, dst, src))                                                    \
    /* p[0..bytes) = 0.                                                                                      \
     *   p      out  [bytes]  memory                                                                         \
     *   bytes  in            bytes */                                                                       \
    X(zero, (Device *d, void *p, size_t bytes), (d, p, bytes))                                               \
    /* y = mean + std times standard normal numbers, drawn in F64 and rounded to real, then to y's type:     \
     * the same bits on every device. Element (r, c) is number first + r step + c of stream (key, 0) of      \
     * rng_normal.                                                                                           \
     *   y      out  [n, m]  storage or real                                                                 \
     *   rest   out  [n, m]  I16: remainders of the numbers, which are F32 masters then, and y, BF16, has   \
     *                       their weights (half.h); absent: none                                            \
     *   mean   in                                                                                           \
     *   std    in           standard deviation; 0: every element is mean                                    \
     *   key    in           rng_key(seed, name)                                                             \
     *   first  in           number of element (0, 0)                                                        \
     *   step   in           numbers from one row to the next */                                             \
    X(normals, (Device *d, Mat y, Mat rest, double mean, double std, uint64_t key, int64_t first,            \
                int64_t step), (d, y, rest, mean, std, key, first, step))                                    \
    /* y = a + b.                                                                                            \
     *   y  out  [n, m]  storage; may be a or b                                                              \
     *   a  in   [n, m]  y's type                                                                            \
     *   b  in   [n, m]  y's type, or BF16 where that is F32 */                                              \
    X(add, (Device *d, Mat y, Mat a, Mat b), (d, y, a, b))                                                   \
    /* y = the k parts added up in order, rounded once.                                                      \
     *   y      out  [n, m]    storage                                                                       \
     *   parts  in   [k n, m]  y's type: part p is rows [p n, p n + n) */                                    \
    X(sum_parts, (Device *d, Mat y, Mat parts), (d, y, parts))                                               \
    /* c (+)= op(a) op(b). Sums are real; k is never split between threads.                                  \
     *   c    in/out  [m, n]  the type of a, or real; aliases nothing                                        \
     *   a    in      [m, k]  storage: op(a); [k, m] with ta                                                 \
     *   ta   in              bool: op(a) = a^T                                                              \
     *   b    in      [k, n]  a's type: op(b); [n, k] with tb                                                \
     *   tb   in              bool: op(b) = b^T                                                              \
     *   acc  in              bool: += instead of = */                                                       \
    X(matmul, (Device *d, Mat c, Mat a, int ta, Mat b, int tb, int acc), (d, c, a, ta, b, tb, acc))          \
    /* y = x w^T + bias.                                                                                     \
     *   y     out  [T, out]   storage or real                                                               \
     *   x     in   [T, in]    storage                                                                       \
     *   w     in   [out, in]  storage                                                                       \
     *   bias  in   [1, out]   storage; absent: none */                                                      \
    X(linear, (Device *d, Mat y, Mat x, Mat w, Mat bias), (d, y, x, w, bias))                                \
    /* db += column sums of dy. The order of the rows follows from the shape alone.                          \
     *   db  in/out  [1, out]  gradient                                                                      \
     *   dy  in      [T, out]  storage */                                                                    \
    X(bias_bwd, (Device *d, Mat db, Mat dy), (d, db, dy))                                                    \
    /* linear of all of h, then act_fwd: h = x w^T + bias, a = act(h).                                       \
     *   a     out  [T, F]           storage                                                                 \
     *   h     out  [T, F]           storage; [T, 2F] for gated kinds                                        \
     *   x     in   [T, in]          storage                                                                 \
     *   w     in   [cols of h, in]  storage                                                                 \
     *   bias  in   [1, cols of h]   storage; absent: none                                                   \
     *   kind  in                    the activation */                                                       \
    X(linear_act_fwd, (Device *d, Mat a, Mat h, Mat x, Mat w, Mat bias, ActKind kind),                       \
      (d, a, h, x, w, bias, kind))                                                                           \
    /* matmul, then act_bwd: dh = (dy w) * act'(h).                                                          \
     *   dh    out  as h      storage; may be h, or da for kinds that are not gated                          \
     *   da    out  [T, F]    storage: scratch, dy w                                                         \
     *   dy    in   [T, out]  storage                                                                        \
     *   w     in   [out, F]  storage                                                                        \
     *   h     in   [T, F]    storage; [T, 2F] for gated kinds                                               \
     *   kind  in             the activation */                                                              \
    X(linear_act_bwd_x, (Device *d, Mat dh, Mat da, Mat dy, Mat w, Mat h, ActKind kind),                     \
      (d, dh, da, dy, w, h, kind))                                                                           \
    /* dw = or += dy^T x, and db += column sums of dy.                                                       \
     *   dw   in/out  [out, in]  gradient                                                                    \
     *   db   in/out  [1, out]   dw's type; absent: none                                                     \
     *   dy   in      [T, out]   storage                                                                     \
     *   x    in      [T, in]    storage                                                                     \
     *   acc  in                 bool: dw += instead of = */                                                 \
    X(linear_bwd_w, (Device *d, Mat dw, Mat db, Mat dy, Mat x, int acc), (d, dw, db, dy, x, acc))            \
    /* y = x times a scale, rounded to nearest even; what is too large becomes the largest number. A GPU     \
     * must be of compute capability 8.9 or more. cols is a multiple of 16.                                  \
     *   y        out     [rows, cols]  bytes of FP8, behind them the scales of blocks; NULL: none           \
     *   yt       out     [cols, fp8_padded(rows, scaling)]  y^T, its rows filled up with zeros, behind it   \
     *                                  the scales of its own blocks; NULL: none                             \
     *   x        in      [rows, cols]  BF16 or F16                                                          \
     *   s        in/out                scale: written, of x's largest magnitude; read with FP8_DELAYED;     \
     *                                  unused with blocks                                                   \
     *   format   in                    E4M3 or E5M2                                                         \
     *   scaling  in                    where the scale comes from */                                        \
    X(fp8_cast,                                                                                              \
      (Device *d, void *y, void *yt, Mat x, Fp8Scale *s, Fp8Format format, Fp8Scaling scaling),              \
      (d, y, yt, x, s, format, scaling))                                                                     \
    /* fp8_cast of what an activation makes, with the bits that it would have if it were stored: without da  \
     * act_fwd's a [T, F]; else act_bwd's dh, of h's size. F is a multiple of 16, with                       \
     * blocks and da of gated kinds of a block's length.                                                     \
     *   y, yt    out             as fp8_cast's, of a or dh                                                  \
     *   da       in      [T, F]  act_bwd's, of h's type; absent: this is act_fwd                            \
     *   h        in      [T, F]  BF16 or F16; [T, 2F] for gated kinds                                       \
     *   kind     in              the activation                                                             \
     *   s, scaling               as fp8_cast's, not FP8_SQUARES                                             \
     *   format   in              E4M3 for a; E5M2 for dh, or with blocks either */                          \
    X(fp8_act, (Device *d, void *y, void *yt, Mat da, Mat h, ActKind kind, Fp8Scale *s, Fp8Format format,    \
                Fp8Scaling scaling),                                                                         \
      (d, y, yt, da, h, kind, s, format, scaling))                                                           \
    /* fp8_cast, in E4M3, of what a norm of one group makes, with the bits that it would have if it were     \
     * stored: with sum add_norm_fwd's ln, else norm_fwd's y. cols is a multiple of 16.                      \
     *   y, yt    out             as fp8_cast's, of the norm's result                                        \
     *   sum      out     [T, H]  add_norm_fwd's y; absent: this is norm_fwd                                 \
     *   stats    out     [T, 2]  real: mean and rstd of each row                                            \
     *   x        in      [T, H]  BF16 or F16                                                                \
     *   res      in      [T, H]  x's type; absent: 0                                                        \
     *   drop     in              with sum: the mask                                                         \
     *   gain     in      [1, H]  x's type                                                                   \
     *   bias     in      [1, H]  x's type; absent for RMSNorm                                               \
     *   eps      in              added to the variance                                                      \
     *   kind     in              LayerNorm or RMSNorm                                                       \
     *   s, scaling               as fp8_cast's, not FP8_SQUARES */                                          \
    X(fp8_norm, (Device *d, void *y, void *yt, Mat sum, Mat stats, Mat x, Mat res, const Dropout *drop,      \
                 Mat gain, Mat bias, double eps, NormKind kind, Fp8Scale *s, Fp8Scaling scaling),            \
      (d, y, yt, sum, stats, x, res, drop, gain, bias, eps, kind, s, scaling))                               \
    /* c (+)= a b^T + bias, divided by the scales of a and b. Not both are E5M2. n is a multiple of 16, k    \
     * fp8_padded, m a multiple of fp8_rows_piece. Both have one scale; or both blocks, a FP8_VECTORS; or    \
     * both FP8_MX.                                                                                          \
     *   c     in/out  [m, n]  storage or real                                                               \
     *   a     in      [m, k]  FP8                                                                           \
     *   b     in      [n, k]  FP8                                                                           \
     *   bias  in      [1, n]  c's type; absent: none                                                        \
     *   acc   in              bool: += instead of = */                                                      \
    X(fp8_matmul, (Device *d, Mat c, Mat8 a, Mat8 b, Mat bias, int acc), (d, c, a, b, bias, acc))            \
    /* The end of a step: the largest magnitude since the last fp8_next joins the history, and the next      \
     * scale is computed. A history of zeros alone, or with a magnitude that is not finite, leaves the       \
     * scale.                                                                                                \
     *   s            in/out  [n]  scales                                                                    \
     *   n            in           number of scales                                                          \
     *   length       in           entries of the history whose largest sets the scale                       \
     *   most_recent  in           bool: the newest entry alone sets the scale */                            \
    X(fp8_next, (Device *d, Fp8Scale *s, int64_t n, int64_t length, int most_recent),                        \
      (d, s, n, length, most_recent))                                                                        \
    /* y = norm(x) * gain + bias, for each group of columns of a row. groups = 1: the whole row; groups =    \
     * heads: QK norm. Ba et al. 2016; Zhang, Sennrich 2019.                                                 \
     *   y       out  [T, H]         storage; may be x                                                       \
     *   stats   out  [T, 2 groups]  real: mean and rstd of each group; the mean of RMSNorm is 0             \
     *   x       in   [T, H]         storage                                                                 \
     *   gain    in   [1, H/groups]  storage                                                                 \
     *   bias    in   [1, H/groups]  storage; absent for RMSNorm                                             \
     *   eps     in                  added to the variance                                                   \
     *   kind    in                  LayerNorm or RMSNorm                                                    \
     *   groups  in                  groups of a row */                                                      \
    X(norm_fwd, (Device *d, Mat y, Mat stats, Mat x, Mat gain, Mat bias, double eps, NormKind kind,          \
                 int groups), (d, y, stats, x, gain, bias, eps, kind, groups))                               \
    /* dropout_fwd, then norm_fwd with one group, in one pass: y = res + dropout(x), ln = norm(y) * gain     \
     * + bias. The norm is that of y as stored.                                                              \
     *   y      out  [T, H]  storage; may be x or res                                                        \
     *   ln     out  [T, H]  storage                                                                         \
     *   stats  out  [T, 2]  real: mean and rstd of y                                                        \
     *   x      in   [T, H]  storage                                                                         \
     *   res    in   [T, H]  storage; absent: 0                                                              \
     *   s      in           the mask                                                                        \
     *   gain   in   [1, H]  storage                                                                         \
     *   bias   in   [1, H]  storage; absent for RMSNorm                                                     \
     *   eps    in           added to the variance                                                           \
     *   kind   in           LayerNorm or RMSNorm */                                                         \
    X(add_norm_fwd, (Device *d, Mat y, Mat ln, Mat stats, Mat x, Mat res, const Dropout *s, Mat gain,        \
                     Mat bias, double eps, NormKind kind),                                                   \
      (d, y, ln, stats, x, res, s, gain, bias, eps, kind))                                                   \
    /* The gradient of norm_fwd: dgain and dbias are added to, dx = dres + that of x.                        \
     *   dx      out     [T, H]         storage; may be dres or dy                                           \
     *   dgain   in/out  [1, H/groups]  gradient                                                             \
     *   dbias   in/out  [1, H/groups]  gradient; absent for RMSNorm                                         \
     *   dres    in      [T, H]         storage; absent: 0                                                   \
     *   dy      in      [T, H]         storage                                                              \
     *   x       in      [T, H]         storage: norm_fwd's input                                            \
     *   stats   in      [T, 2 groups]  real, from norm_fwd                                                  \
     *   gain    in      [1, H/groups]  storage                                                              \
     *   kind    in                     LayerNorm or RMSNorm                                                 \
     *   groups  in                     groups of a row                                                      \
     * The order of the rows in dgain and dbias follows from the shape alone. */                             \
    X(norm_bwd, (Device *d, Mat dx, Mat dgain, Mat dbias, Mat dres, Mat dy, Mat x, Mat stats, Mat gain,      \
                 NormKind kind, int groups),                                                                 \
      (d, dx, dgain, dbias, dres, dy, x, stats, gain, kind, groups))                                         \
    /* a = act(h); for gated kinds h = (gate | up) and a = act(gate) * up.                                   \
     *   a     out  [T, F]  storage                                                                          \
     *   h     in   [T, F]  storage; [T, 2F] for gated kinds                                                 \
     *   kind  in           the activation */                                                                \
    X(act_fwd, (Device *d, Mat a, Mat h, ActKind kind), (d, a, h, kind))                                     \
    /* dh = da * act'(h).                                                                                    \
     *   dh    out  as h    storage; may be h, or da for kinds that are not gated                            \
     *   da    in   [T, F]  storage                                                                          \
     *   h     in   [T, F]  storage; [T, 2F] for gated kinds                                                 \
     *   kind  in           the activation */                                                                \
    X(act_bwd, (Device *d, Mat dh, Mat da, Mat h, ActKind kind), (d, dh, da, h, kind))                       \
    /* Rotary position, in place: columns (i, i + rot/2) of the first rot columns of each head turn by       \
     * the angle of the row's position. Su et al. 2021, arXiv:2104.09864; halves, as in GPT-NeoX and         \
     * Llama.                                                                                                \
     *   x         in/out  [T, heads dim]  storage                                                           \
     *   dim       in                      columns of a head                                                 \
     *   table     in      [P, rot]        real: (cos | sin) of each position, rot/2 columns each            \
     *   position  in      [T]             row of table                                                      \
     *   inverse   in                      bool: turn back, which is the gradient */                         \
    X(rope, (Device *d, Mat x, int dim, Mat table, const int32_t *position, int inverse),                    \
      (d, x, dim, table, position, inverse))                                                                 \
    /* Attention of some queries and some keys of each sample. Never holds a T x T matrix. Dao 2023,         \
     * arXiv:2307.08691. Tq = B positions_rows(s->q), Tk = B positions_rows(s->k).                           \
     *   o     out  [Tq, A D]  storage                                                                       \
     *   lse   out  [Tq, A]    real: log-sum-exp of each row of scores                                       \
     *   q     in   [Tq, A D]  storage                                                                       \
     *   k, v  in   [Tk, K D]  storage                                                                       \
     *   s     in              shape, mask and dropout */                                                    \
    X(attention_fwd, (Device *d, Mat o, Mat lse, Mat q, Mat k, Mat v, const Attention *s),                   \
      (d, o, lse, q, k, v, s))                                                                               \
    /* Adds the keys of another piece to attention: o and lse become those of both pieces' keys. Liu et al.  \
     * 2023, arXiv:2310.01889.                                                                               \
     *   o      in/out  [T, A D]  real                                                                       \
     *   lse    in/out  [T, A]    real                                                                       \
     *   piece  in      [T, A D]  storage: o of the other keys                                               \
     *   plse   in      [T, A]    real: lse of the other keys */                                             \
    X(attention_merge, (Device *d, Mat o, Mat lse, Mat piece, Mat plse), (d, o, lse, piece, plse))           \
    /* The gradient of attention. The gradients of pieces add up, if o and lse are those of all keys that the\
     * queries see.                                                                                          \
     *   dq      out  [Tq, A D]  storage or real; with s->add in/out, real                                   \
     *   dk, dv  out  [Tk, K D]  storage or real                                                             \
     *   dout    in   [Tq, A D]  storage: gradient of o                                                      \
     *   o       in   [Tq, A D]  storage: of all pieces                                                      \
     *   lse     in   [Tq, A]    real: of all pieces                                                         \
     *   delta   out  [Tq, A]    real: scratch                                                               \
     *   q       in   [Tq, A D]  storage                                                                     \
     *   k, v    in   [Tk, K D]  storage                                                                     \
     *   s       in              shape, mask and dropout of attention_fwd */                                 \
    X(attention_bwd, (Device *d, Mat dq, Mat dk, Mat dv, Mat dout, Mat o, Mat lse, Mat delta, Mat q,         \
                      Mat k, Mat v, const Attention *s), (d, dq, dk, dv, dout, o, lse, delta, q, k, v, s))   \
    /* y = wte[token - v0] + wpe[position].                                                                  \
     *   y         out  [T, H]     storage                                                                   \
     *   token     in   [T]        token ids                                                                 \
     *   position  in   [T]        rows of wpe                                                               \
     *   wte       in   [rows, H]  storage; a token outside of [v0, v0 + rows) gives 0                       \
     *   v0        in              token id of the first row of wte                                          \
     *   wpe       in   [P, H]     storage; absent: none */                                                  \
    X(embed_fwd, (Device *d, Mat y, const int32_t *token, const int32_t *position, Mat wte, int64_t v0,      \
                  Mat wpe), (d, y, token, position, wte, v0, wpe))                                           \
    /* Adds each row of dy to its rows of dwte and dwpe, tokens in order. BF16 gradients are rounded once,   \
     * on the CPU once for each 1024 tokens.                                                                 \
     *   dwte      in/out  [rows, H]  gradient; absent: none                                                 \
     *   v0        in                 token id of the first row of dwte                                      \
     *   dwpe      in/out  [P, H]     gradient; absent: none                                                 \
     *   dy        in      [T, H]     storage                                                                \
     *   token     in      [T]        token ids                                                              \
     *   position  in      [T]        rows of dwpe */                                                        \
    X(embed_bwd, (Device *d, Mat dwte, int64_t v0, Mat dwpe, Mat dy, const int32_t *token,                   \
                  const int32_t *position), (d, dwte, v0, dwpe, dy, token, position))                        \
    /* y = res + dropout(x), or x with jitter.                                                               \
     *   y    out  [n, m]  storage; may be x or res                                                          \
     *   x    in   [n, m]  storage                                                                           \
     *   res  in   [n, m]  storage; absent: 0                                                                \
     *   s    in           the mask */                                                                       \
    X(dropout_fwd, (Device *d, Mat y, Mat x, Mat res, const Dropout *s), (d, y, x, res, s))                  \
    /* dx = dy * mask / (1-p).                                                                               \
     *   dx  out  [n, m]  storage; may be dy                                                                 \
     *   dy  in   [n, m]  storage                                                                            \
     *   s   in           the mask of dropout_fwd */                                                         \
    X(dropout_bwd, (Device *d, Mat dx, Mat dy, const Dropout *s), (d, dx, dy, s))                            \
    /* y = rows of x: row i is x's row index[i], zeros where index[i] is -1.                                 \
     *   y      out  [n, C]  any type                                                                        \
     *   x      in   [m, C]  y's type                                                                        \
     *   index  in   [n]     rows of x, or -1 */                                                             \
    X(gather_rows, (Device *d, Mat y, Mat x, const int32_t *index), (d, y, x, index))                        \
    /* y = sums of rows of x: row i is the sum of x's rows index[i k + j] over j < k, in order, rounded      \
     * once. A row -1 is left out.                                                                           \
     *   y      out  [n, C]  storage or real                                                                 \
     *   x      in   [m, C]  y's type                                                                        \
     *   index  in   [n, k]  rows of x, or -1                                                                \
     *   k      in           rows of a sum */                                                                \
    X(sum_rows, (Device *d, Mat y, Mat x, const int32_t *index, int k), (d, y, x, index, k))                 \
    /* Row i of y = w[i] times row i of x.                                                                   \
     *   y  out  [n, C]  storage; may be x                                                                   \
     *   x  in   [n, C]  y's type                                                                            \
     *   w  in   [n, 1]  real */                                                                             \
    X(scale_rows, (Device *d, Mat y, Mat x, Mat w), (d, y, x, w))                                            \
    /* dot[i] = sum of row i of x times row i of y.                                                          \
     *   dot   out  [n, 1]  real                                                                             \
     *   x, y  in   [n, C]  storage */                                                                       \
    X(row_dots, (Device *d, Mat dot, Mat x, Mat y), (d, dot, x, y))                                          \
    /* The router: chooses topk experts a row. The value of an expert is its logit (softmax), sigmoid        \
     * (sigmoid), or score (softmax with a bias, or with groups and pre_softmax), plus its bias; NaN counts  \
     * as -inf. The value of a group is the sum of its topk / group_topk largest values. Of equal values     \
     * the lower index comes first.                                                                          \
     *   choice  out  [R, k]  experts, largest value first; with r->given in: any k different ones           \
     *   weight  out  [R, k]  real: softmax: softmax of the chosen logits, or the chosen scores with         \
     *                        pre_softmax; sigmoid: the sigmoids, divided by (their sum + 1e-20) if k > 1;   \
     *                        all times scale                                                                \
     *   scores  out  [R, E]  real: softmax of the logits, or sigmoid / (sum of the row's sigmoids + 1e-20)  \
     *   logits  in   [R, E]  real                                                                           \
     *   bias    in   [1, E]  real: for choosing only; absent: 0                                             \
     *   r       in           the rule */                                                                    \
    X(route_fwd, (Device *d, int32_t *choice, Mat weight, Mat scores, Mat logits, Mat bias,                  \
                  const Routing *r), (d, choice, weight, scores, logits, bias, r))                           \
    /* The gradient of the logits through weights, scores and the z-loss. The choice is a constant.          \
     *   dlogits  out  [R, E]  real; may be logits                                                           \
     *   dweight  in   [R, k]  real: gradient of weight                                                      \
     *   logits   in   [R, E]  real                                                                          \
     *   choice   in   [R, k]  from route_fwd                                                                \
     *   push     in   [*, E]  real: row (row0 + r) / each is the gradient of row r of scores; absent: 0     \
     *   r        in           the rule */                                                                   \
    X(route_bwd, (Device *d, Mat dlogits, Mat dweight, Mat logits, const int32_t *choice, Mat push,          \
                  const Routing *r), (d, dlogits, dweight, logits, choice, push, r))                         \
    /* Three numbers of each row of logits: what the row adds to the two losses that route_bwd               \
     * differentiates, and how undecided the router is.                                                      \
     *   stats   out  [3, R]  real: scores times their gradient `push`, 0 without it; r->z times             \
     *                        logsumexp^2; entropy of the scores, in nats                                    \
     *   logits  in   [R, E]  real                                                                           \
     *   push    in   [*, E]  real: as in route_bwd; absent: 0                                               \
     *   r       in           the rule */                                                                    \
    X(route_stats, (Device *d, Mat stats, Mat logits, Mat push, const Routing *r),                           \
      (d, stats, logits, push, r))                                                                           \
    /* First step of cross-entropy over a slice of rows. Ranks that hold parts of the vocabulary combine     \
     * their statistics before the second step, xent_grad.                                                   \
     *   stats   out  [rows, 3]     real: largest logit; sum of exp(logit - largest); the label's logit,     \
     *                              -inf if the label is not in [v0, v0 + valid)                             \
     *   logits  in   [rows, cols]  real, or BF16 where that is storage                                      \
     *   label   in   [T]           token ids of the whole microbatch; row i's is label[mapped_row(rows,     \
     *                              i)]                                                                      \
     *   rows    in                 rows of the microbatch that the slice holds                              \
     *   v0      in                 token id of column 0                                                     \
     *   valid   in                 columns that take part, from 0 on */                                     \
    X(xent_stats, (Device *d, Mat stats, Mat logits, const int32_t *label, RowMap rows, int64_t v0,          \
                   int64_t valid), (d, stats, logits, label, rows, v0, valid))                               \
    /* Statistics of the whole vocabulary from those of its parts, added up in order of the parts.           \
     *   stats  out  [rows, 3]    real: largest logit of all; sums of exp, rescaled to it; the label's       \
     *                            logit                                                                      \
     *   parts  in   [k rows, 3]  real: part p is rows [p rows, p rows + rows); k may be 1 */                \
    X(xent_combine, (Device *d, Mat stats, Mat parts), (d, stats, parts))                                    \
    /* Second step of cross-entropy. For row r of the slice, R = mapped_row(rows, r): loss[R] = (log(sum)    \
     * + largest - label's logit) * mask[R]; dlogits = (softmax - onehot) * mask[R] * scale, 0 from          \
     * column `valid` on.                                                                                    \
     *   loss     out  [T, 1]        real: of the whole microbatch; rows outside of the slice stay           \
     *   dlogits  out  [rows, cols]  storage; absent: none. May start where logits start if their rows       \
     *                               are as many bytes apart                                                 \
     *   logits   in   [rows, cols]  real, or BF16 where that is storage                                     \
     *   stats    in   [rows, 3]     real: of the whole vocabulary                                           \
     *   label    in   [T]           token ids of the whole microbatch                                       \
     *   mask     in   [T]           F32: of the whole microbatch; NULL: ones                                \
     *   rows     in                 rows of the microbatch that the slice holds                             \
     *   v0       in                 token id of column 0                                                    \
     *   valid    in                 columns that take part, from 0 on                                       \
     *   scale    in                 what the gradient is multiplied by */                                   \
    X(xent_grad, (Device *d, Mat loss, Mat dlogits, Mat logits, Mat stats, const int32_t *label,             \
                  const float *mask, RowMap rows, int64_t v0, int64_t valid, double scale),                  \
      (d, loss, dlogits, logits, stats, label, mask, rows, v0, valid, scale))                                \
    /* Both steps in one pass, for rows that hold the whole vocabulary (v0 = 0). The arguments are those     \
     * of xent_grad, but:                                                                                    \
     *   stats  out  [rows, 3]  real: scratch */                                                             \
    X(xent, (Device *d, Mat loss, Mat dlogits, Mat logits, Mat stats, const int32_t *label,                  \
             const float *mask, RowMap rows, int64_t valid, double scale),                                   \
      (d, loss, dlogits, logits, stats, label, mask, rows, valid, scale))                                    \
    /* *out += the sum of all elements, added up in F64 from 0 on; on the CPU row after row.                 \
     *   out  in/out  [1]     F64                                                                            \
     *   x    in      [n, m]  F64, F32, BF16 or F16 */                                                       \
    X(sum, (Device *d, double *out, Mat x), (d, out, x))                                                     \
    /* Adds squares to exact sums, in each entry of a list. Each block of SUMSQ_BLOCK elements, the last     \
     * one shorter, is summed in F64; these sums are added exactly. Any number of calls may come between     \
     * two `carry`.                                                                                          \
     *   list   in  [count]  arrays of `type`, and their sums; entries may share a sum                       \
     *   count  in           number of arrays                                                                \
     *   type   in           type of the elements of the arrays without `rest` */                            \
    X(squares, (Device *d, const Squares *list, int64_t count, Dtype type), (d, list, count, type))          \
    /* Adds hashes to sums, in each entry of a list: for each word of 8 bytes its HASH_WORD, modulo 2^64.    \
     * The last word is filled up with zeros. Numbers count as their bits: 0 and -0 differ, a NaN equals     \
     * itself.                                                                                               \
     *   list   in  [count]  arrays, and their sums; entries may share a sum                                 \
     *   count  in           number of arrays */                                                             \
    X(hash, (Device *d, const Hashed *list, int64_t count), (d, list, count))                                \
    /* exact_carry of each sum: before the words of several ranks are added, and after.                      \
     *   s  in/out  [n]  sums                                                                                \
     *   n  in           number of sums */                                                                   \
    X(carry, (Device *d, Exact *s, int64_t n), (d, s, n))                                                    \
    /* What a step does with its gradient. loss = sums[0] / sums[1], 0 without tokens. gscale = nominal /    \
     * tokens / loss_scale, without tokens 1 / loss_scale. norm = sqrt(squares) gscale. multiplier =         \
     * gscale min(1, clip_grad / (norm + 1e-6)), as in Megatron-LM's clip_grads. stopped: with `stop`, when  \
     * it was 1 before or loss or norm are not finite: after a bad step nothing is updated. go is 0 when     \
     * stopped, and when the step is finite and above a limit. behind: go was 0 and limits.seen is 0.        \
     *   v           in/out  [1]  the verdict; v->go and v->stopped are read                                 \
     *   sums        in      [2]  sum of losses; tokens that count                                           \
     *   squares     in      [1]  squares of the whole gradient                                              \
     *   nominal     in           tokens that the gradient was divided by                                    \
     *   loss_scale  in           what the loss was multiplied by                                            \
     *   clip_grad   in           largest norm; 0: no clipping                                               \
     *   stop        in           bool: stop at a bad step                                                   \
     *   limits      in           what holds the update of this step alone */                                \
    X(verdict, (Device *d, Verdict *v, const double *sums, const Exact *squares, double nominal,             \
                double loss_scale, double clip_grad, int stop, Limits limits),                               \
      (d, v, sums, squares, nominal, loss_scale, clip_grad, stop, limits))                                   \
    /* Trust ratios. LAMB: weight / step. LARS: coefficient weight / (g + wd weight), g = v->multiplier      \
     * gradient. The ratio is 1 where one of the two norms is not above 0.                                   \
     *   trust        out  [n]    ratios                                                                     \
     *   norms        in   [2 n]  squared norms: 2i of weight i, 2i + 1 of its step (LAMB) or gradient       \
     *                            (LARS)                                                                     \
     *   n            in          number of ratios                                                           \
     *   lars         in          bool: LARS, else LAMB                                                      \
     *   coefficient  in          of LARS                                                                    \
     *   wd           in          weight decay of LARS                                                       \
     *   v            in   [1]    the verdict, for its multiplier */                                         \
    X(trust, (Device *d, double *trust, const Exact *norms, int64_t n, int lars, double coefficient,         \
              double wd, const Verdict *v), (d, trust, norms, n, lars, coefficient, wd, v))                  \
    /* AdamW: updates m and v; w -= lr (mhat / (sqrt(vhat) + eps) + wd w). Loshchilov, Hutter 2019,          \
     * arXiv:1711.05101. */                                                                                  \
    X(adam, (Device *d, const Update *u), (d, u))                                                            \
    /* SGD with momentum: m = momentum m + g + wd w; w -= lr m, with nesterov w -= lr (g + wd w +            \
     * momentum m). */                                                                                       \
    X(sgd, (Device *d, const Update *u), (d, u))                                                             \
    /* LAMB, first step: updates m and v; dir = mhat / (sqrt(vhat) + eps) + wd w. You et al. 2020,           \
     * arXiv:1904.00962. */                                                                                  \
    X(lamb_direction, (Device *d, const Update *u), (d, u))                                                  \
    /* LAMB, second step: w -= lr trust dir. */                                                              \
    X(lamb_apply, (Device *d, const Update *u), (d, u))                                                      \
    /* LARS: m = momentum m + lr trust (g + wd w); w -= m. You, Gitman, Ginsburg 2017, arXiv:1708.03888. */  \
    X(lars, (Device *d, const Update *u), (d, u))

/* Elements of a block of `squares`; shards are cut at multiples of it, so that norms keep their bits. */
#define SUMSQ_BLOCK 1024

/* What a planned machine keeps from a forward to its backward otherwise than this program does, so that
 * the model counts memory for it (Machine.unfused). All 0 on a device that computes. */
typedef struct {
    int mask;                  /* bool: keep dropout's mask, one byte an element */
    int scores;                /* bool: keep attention's T x T probabilities, before and after dropout */
    int logits;                /* bool: keep all logits at a time */
    int drop_sent;             /* bool: do not keep a unit's input once its message has left */
    int recomputed_output;     /* bool: recomputation makes the output of a group of layers too */
} Keeps;

enum { DEVICE_MARKS = 16 };            /* moments of `mark` that a device keeps */
typedef struct Device Device;
struct Device {
    const char *name;          /* "cpu" */
    const char *isa;           /* "amx", "avx512", "avx2", "generic" */
    const char *bf16;          /* what multiplies BF16: "amx", "avx512_bf16", or "f32" after conversion */
    Dtype real;                /* F64 or F32 */
    Pool *pool;                /* threads of the CPU; NULL on a GPU */
    Keeps keeps;
    void *impl;                /* state of the device: packing buffers, streams */
    uint64_t unit;             /* identifies the GPU; ranks with the same number share it; 0: the host */
    int late;                  /* bool: ops are asynchronous; the next step reads a step's results */
    double *waited;            /* ms: where groups add what the ops of a late device wait for messages, by
                                * stall; NULL: nowhere */

    /* take: returns device memory, zeroed; dies with EXIT_RESOURCE where there is too little. give:
     * frees it. owns: whether p lies in memory that the host must not touch; 0 on the CPU. left: bytes
     * that can still be taken, by all ranks that share the device */
    void *(*take)(Device *d, size_t bytes);
    void (*give)(Device *d, void *p, size_t bytes);
    int (*owns)(Device *d, const void *p);
    size_t (*left)(Device *d);
    /* Mapped memory: pinned memory of the host that ops and copies of this device reach over the bus,
     * for data that is seldom used. Else as take and give; owns is true of it. On the CPU it is take's
     * memory */
    void *(*mapped_take)(Device *d, size_t bytes);
    void (*mapped_give)(Device *d, void *p, size_t bytes);
    /* Copies to and from mapped memory, each direction on its own stream. The host does not wait. A copy
     * starts when every op launched before it has run; copies of one direction run in order. Both return
     * a ticket; later copies of a direction have larger ones, and 0 is a copy that is complete.
     * stream_wait makes ops launched later wait for the copy with that ticket and for all earlier ones
     * of its direction.
     *   mapped  out, in  [bytes]  mapped memory: out of offload, in of prefetch
     *   src     in       [bytes]  device memory that offload copies
     *   dst     out      [bytes]  device memory that prefetch fills
     *   after   in                ticket of an offload that prefetch waits for, with all earlier ones;
     *                             0: none */
    int64_t (*offload)(Device *d, void *mapped, const void *src, size_t bytes);
    int64_t (*prefetch)(Device *d, void *dst, const void *mapped, size_t bytes, int64_t after);
    void (*stream_wait)(Device *d, int64_t ticket);
    /* A side stream, for updates and zeroes of mapped memory. Ops launched between side_begin and
     * side_end run on it in order, after all ops launched before side_begin, on few cores of the device,
     * and beside ops launched after side_end. side_end returns a ticket for stream_wait */
    void (*side_begin)(Device *d);
    int64_t (*side_end)(Device *d);
    /* Copies in the order of the ops.
     *   put         host to device; src may be overwritten when it returns
     *   get         device to host; the host waits for it and for every op before it
     *   read_async  device to memory of host_take; the host does not wait; returns a ticket
     *   read_wait   the host waits for the read_async or snapshot with that ticket and for all earlier
     *               ones of its kind; any thread may call it */
    void (*put)(Device *d, void *dst, const void *src, size_t bytes);
    void (*get)(Device *d, void *dst, const void *src, size_t bytes);
    int64_t (*read_async)(Device *d, void *dst, const void *src, size_t bytes);
    void (*read_wait)(Device *d, int64_t ticket);
    /* snapshot is read_async on a stream of its own: it starts when every op launched before it has run,
     * and ops launched later do not wait for it. They must not write src before wait_snapshots, which
     * makes ops launched later wait for all snapshots */
    int64_t (*snapshot)(Device *d, void *dst, const void *src, size_t bytes);
    void (*wait_snapshots)(Device *d);
    /* Times by the device's clock. mark returns a ticket of the moment when every op launched before it has
     * run; between waits for `to` and returns the ms from one moment to the other. A ticket is good until
     * there are DEVICE_MARKS later ones, or n, for which mark_room has asked before the first mark. Only a
     * GPU has mark_room */
    int64_t (*mark)(Device *d);
    double (*between)(Device *d, int64_t from, int64_t to);
    void (*mark_room)(Device *d, int n);
    /* The time in which ops stand still. Only a late device has these. To *ms are added the ms by the
     * device's clock from the end of the ops launched before stall to what stall_end comes behind: waits for
     * others that were launched in between, and for the host where the device had nothing else to do. stalls
     * adds those that are over on the device, such as those before a mark that has passed. stall waits for
     * the oldest where the device is hundreds behind. One within another, or on a side stream, is none */
    void (*stall)(Device *d, double *ms);
    void (*stall_end)(Device *d);
    void (*stalls)(Device *d);
    /* Host memory, zeroed and pinned, so that copies run at full speed */
    void *(*host_take)(Device *d, size_t bytes);
    void (*host_give)(Device *d, void *p, size_t bytes);
    /* Returns when every op has run, and every copy and side stream that an op waits for */
    void (*sync)(Device *d);
#define X(name, params, names) void (*name) params;
    OPS(X)
#undef X
};

/* Opens the CPU.
 *   d        out
 *   real     in   F64 or F32
 *   isa      in   "auto", amx, avx512, avx2 or generic; one that this CPU lacks dies with EXIT_CONFIG
 *   threads  in   threads of the pool; 0: the cores that this process may run on */
void cpu_open(Device *d, Dtype real, const char *isa, int threads);
void cpu_close(Device *d);
/* Bytes of memory that cpu_open with the same arguments takes for buffers. */
size_t cpu_workspace(Dtype real, const char *isa, int threads);

/* Opens GPU `index` of this machine; real is F32. Dies with EXIT_RESOURCE where there is no driver, no
 * such GPU or too little memory, and with EXIT_CONFIG in a build without CUDA. */
void cuda_open(Device *d, Dtype real, int index);
void cuda_close(Device *d);
/* Bytes of device memory that cuda_open takes as workspace of one op. Builds without CUDA have the
 * constant too, so that both make the same plans. */
#define CUDA_WORKSPACE ((size_t)64 << 20)
/* Returns the number of GPUs of this machine, 1 or more; dies as cuda_open does. */
int cuda_count(void);

/* Open arenas of memory of take (device), mapped_take (mapped) and host_take (host), and close them. */
void device_arena(Device *d, Arena *a, const char *name, size_t size);
void device_arena_close(Device *d, Arena *a);
void mapped_arena(Device *d, Arena *a, const char *name, size_t size);
void mapped_arena_close(Device *d, Arena *a);
void host_arena(Device *d, Arena *a, const char *name, size_t size);
void host_arena_close(Device *d, Arena *a);

/* host.c: bytes of memory that this process and its neighbours may take of the host, in all and now: what the
 * machine has, and what the control groups of this process allow. */
size_t host_size(void);
size_t host_left(void);
/* The processor time that these groups allow, in whole cores, at most `most`. */
int host_cores(int most);

/* d->put, d->get, d->snapshot; with d NULL src and dst are host memory, and the copy is done on
 * return. */
void device_put(Device *d, void *dst, const void *src, size_t bytes);
void device_get(Device *d, void *dst, const void *src, size_t bytes);
int64_t device_snapshot(Device *d, void *dst, const void *src, size_t bytes);

/* Copies n F32 masters between the host and where their weights and remainders are (half.h). d as above. */
void device_put_masters(Device *d, uint16_t *weight, int16_t *rest, const float *src, int64_t n);
void device_get_masters(Device *d, float *dst, const uint16_t *weight, const int16_t *rest, int64_t n);

/* Copies n moments with scales (moments.h) between the host and the device; put rounds to nearest even. d as
 * above.
 *   second  in  bool: of the second moment
 *   scale   in  of the block that begins with the first element of p
 *   at      in  place of the first one that is copied, from p on; put: a multiple of MOMENT_BLOCK, as n is
 *               unless the tensor ends there */
void device_put_moments(Device *d, void *p, uint8_t *scale, MomentType type, int second, int64_t at,
                        const float *src, int64_t n);
void device_get_moments(Device *d, float *dst, const void *p, const uint8_t *scale, MomentType type,
                        int second, int64_t at, int64_t n);
/* The type of the memory of moments; real: of those in MOMENT_FP32. */
Dtype moment_dtype(MomentType type, Dtype real);

/* Opens a device whose ops do nothing, for runs that only count memory. */
void null_open(Device *d, Dtype real);
#ifdef __cplusplus
}
#endif
#endif
