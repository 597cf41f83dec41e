/* bench_cuda [--json] [--quick] [--only TEXT] -- speed of every op that training spends time in, on one GPU,
 * against its ceiling. The ceiling of ops that are bound by memory is the bytes a second of a copy; that of
 * attention and linear layers is the FLOP/s of a square BF16 matmul (layers in FP8 may reach 200 %).
 *
 * An op runs in a loop between two events, long enough for 20 ms, on operands larger than the L2 cache;
 * the median of five such loops counts. Attention runs once more through cuDNN, where cuDNN computes it.
 * The bytes of an op are the least that it must move: each operand that it reads or writes, once.
 * Numbers are random: a GPU multiplies zeros faster. --quick: small operands, each op twice; the figures
 * mean nothing. --only: ops with TEXT in their name, and the ceilings. */
#include "cuda.h"
#include "exact.h"
#include "products.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    Device d;
    int quick;
    int64_t T, H, F, V,            /* tokens, width, feed-forward width, vocabulary */
        side;                      /* rows and columns of the square matrices */
    Mat x, y, z, dx, h, dh, a, w, wide, logits, stats, moments, gain, bias, dgain, dbias, hbias, table, wte,
        dwte, loss;
    Mat lse, delta, qkv, dqkv, o;
    Mat8 x8, w8, t8;               /* FP8 copies of x, w, and x transposed */
    Fp8Scale *scale;               /* [3] scales of x and w, and one that fp8_next changes */
    float *master, *m, *v, *grad;
    int64_t n;                     /* elements of master, m, v and grad that updates use */
    int32_t *token, *position;
    int64_t *sample;
    double *sums;
    Exact *exact;
    Verdict *verdict;
    Dropout drop;
    Attention shape;
} Bench;

/* ---- the ops, with the bytes that each must move or its FLOPs ---- */

static double size(Mat m) { return (double)(m.rows * m.cols) * (double)dtype_size(m.type); }
static const Mat none = {.type = BF16};

#define CASE(name) static void run_##name(Bench *b, double *bytes, double *flops)
#define COUNT(by, fl) do { *bytes = (by); *flops = (fl); } while (0)

CASE(copy) { b->d.copy(&b->d, b->y, b->x); COUNT(size(b->x) + size(b->y), 0); }
CASE(add) { b->d.add(&b->d, b->z, b->x, b->y); COUNT(3 * size(b->x), 0); }
CASE(norm_fwd)
{
    b->d.norm_fwd(&b->d, b->y, b->moments, b->x, b->gain, b->bias, 1e-5, NORM_LAYER, 1);
    COUNT(2 * size(b->x) + size(b->moments), 0);
}
CASE(rms_fwd)
{
    b->d.norm_fwd(&b->d, b->y, b->moments, b->x, b->gain, none, 1e-5, NORM_RMS, 1);
    COUNT(2 * size(b->x) + size(b->moments), 0);
}
CASE(add_norm_fwd)
{
    b->d.add_norm_fwd(&b->d, b->z, b->y, b->moments, b->x, b->dx, &b->drop, b->gain, b->bias, 1e-5,
                      NORM_LAYER);
    COUNT(4 * size(b->x) + size(b->moments), 0);
}
CASE(norm_bwd)
{
    b->d.norm_bwd(&b->d, b->dx, b->dgain, b->dbias, b->y, b->z, b->x, b->moments, b->gain, NORM_LAYER, 1);
    COUNT(4 * size(b->x) + size(b->moments), 0);
}
/* The backward of narrower rows, as many numbers. */
static void norm_bwd_of(Bench *b, double *bytes, int64_t width, NormKind kind)
{
    int64_t rows = b->T * b->H / 2 / width;
    Mat x = mat(b->x.p, rows, width, BF16), y = mat(b->y.p, rows, width, BF16),
        z = mat(b->z.p, rows, width, BF16), dx = mat(b->dx.p, rows, width, BF16);
    Mat gain = mat_cols(b->gain, 0, width), dgain = mat_cols(b->dgain, 0, width),
        dbias = kind == NORM_LAYER ? mat_cols(b->dbias, 0, width) : (Mat){.type = F32};
    b->d.norm_bwd(&b->d, dx, dgain, dbias, y, z, x, mat(b->stats.p, rows, 2, F32), gain, kind, 1);
    *bytes = 4 * size(x) + (double)rows * 8;
}
CASE(norm_bwd_768) { norm_bwd_of(b, bytes, b->quick ? 96 : 768, NORM_LAYER); *flops = 0; }
CASE(rms_bwd_896) { norm_bwd_of(b, bytes, b->quick ? 112 : 896, NORM_RMS); *flops = 0; }
CASE(rms_bwd_2048) { norm_bwd_of(b, bytes, b->quick ? 256 : 2048, NORM_RMS); *flops = 0; }
CASE(rms_bwd_3584) { norm_bwd_of(b, bytes, b->quick ? 224 : 3584, NORM_RMS); *flops = 0; }
CASE(gelu_fwd)
{
    b->d.act_fwd(&b->d, b->a, mat_cols(b->h, 0, b->F), ACT_GELU_TANH);
    COUNT(2 * size(b->a), 0);
}
CASE(swiglu_fwd) { b->d.act_fwd(&b->d, b->a, b->h, ACT_SWIGLU); COUNT(size(b->a) + size(b->h), 0); }
CASE(gelu_bwd)
{
    Mat h = mat_cols(b->h, 0, b->F);
    b->d.act_bwd(&b->d, mat_cols(b->dh, 0, b->F), b->a, h, ACT_GELU_TANH);
    COUNT(3 * size(b->a), 0);
}
CASE(swiglu_bwd)
{
    b->d.act_bwd(&b->d, b->dh, b->a, b->h, ACT_SWIGLU);
    COUNT(size(b->a) + 2 * size(b->h), 0);
}
CASE(bias_bwd) { b->d.bias_bwd(&b->d, b->dbias, b->x); COUNT(size(b->x), 0); }
CASE(rope) { b->d.rope(&b->d, b->x, 128, b->table, b->position, 0); COUNT(2 * size(b->x), 0); }
CASE(dropout_fwd) { b->d.dropout_fwd(&b->d, b->z, b->x, b->y, &b->drop); COUNT(3 * size(b->x), 0); }
CASE(dropout_bwd) { b->d.dropout_bwd(&b->d, b->z, b->x, &b->drop); COUNT(2 * size(b->x), 0); }
CASE(dropped_norm_fwd)
{
    Dropout drop = b->drop;
    drop.p = 0.1;
    b->d.add_norm_fwd(&b->d, b->z, b->y, b->moments, b->x, b->dx, &drop, b->gain, b->bias, 1e-5, NORM_LAYER);
    COUNT(4 * size(b->x) + size(b->moments), 0);
}
CASE(accumulate) { b->d.add(&b->d, b->dx, b->dx, b->y); COUNT(3 * size(b->x), 0); }
CASE(zero) { b->d.zero(&b->d, b->grad, (size_t)b->n * 4); COUNT(4.0 * (double)b->n, 0); }
CASE(embed_fwd)
{
    b->d.embed_fwd(&b->d, b->y, b->token, b->position, b->wte, 0, none);
    COUNT(2 * size(b->y), 0);
}
CASE(embed_bwd)
{
    b->d.embed_bwd(&b->d, b->dwte, 0, (Mat){.type = F32}, b->x, b->token, b->position);
    COUNT(size(b->x) + 2 * (double)b->x.rows * (double)b->H * 4, 0);
}
CASE(xent_stats)
{
    b->d.xent_stats(&b->d, mat_rows(b->stats, 0, b->logits.rows), b->logits, b->token,
                    (RowMap){b->logits.rows, 0, b->T}, 0, b->V);
    COUNT(size(b->logits), 0);
}
CASE(xent_grad)
{
    Mat dlogits = {b->logits.p, b->logits.rows, b->logits.cols, b->logits.ld * 2, BF16};
    b->d.xent_grad(&b->d, b->loss, dlogits, b->logits, mat_rows(b->stats, 0, b->logits.rows), b->token, NULL,
                   (RowMap){b->logits.rows, 0, b->T}, 0, b->V, 1);
    COUNT(1.5 * size(b->logits), 0);
}
CASE(xent)
{
    Mat dlogits = {b->logits.p, b->logits.rows, b->logits.cols, b->logits.ld * 2, BF16};
    b->d.xent(&b->d, b->loss, dlogits, b->logits, mat_rows(b->stats, 0, b->logits.rows), b->token, NULL,
              (RowMap){b->logits.rows, 0, b->T}, b->V, 1);
    COUNT(1.5 * size(b->logits), 0);
}
/* Rows of a vocabulary of three times as many tokens, which no shared memory holds. */
CASE(xent_wide)
{
    Mat wide = mat(b->logits.p, b->logits.rows / 3, 3 * b->V, F32);
    Mat dlogits = {wide.p, wide.rows, wide.cols, wide.ld * 2, BF16};
    b->d.xent(&b->d, b->loss, dlogits, wide, mat_rows(b->stats, 0, wide.rows), b->token, NULL,
              (RowMap){wide.rows, 0, b->T}, 3 * b->V, 1);
    COUNT(1.5 * size(wide), 0);
}
CASE(squares)
{
    b->d.squares(&b->d, &(Squares){b->exact, b->grad, b->n}, 1, F32);
    COUNT(4.0 * (double)b->n, 0);
}
CASE(adam)
{
    Updated x = {.n = b->n, .w = b->master, .g = b->grad, .m = b->m, .v = b->v, .out = b->wide.p, .wd = 0.1};
    Update u = {.list = &x, .count = 1, .out_type = BF16, .verdict = b->verdict, .lr = 1e-4, .beta1 = 0.9,
                .beta2 = 0.95, .eps = 1e-8, .bias1 = 0.1, .bias2 = 0.05};
    b->d.adam(&b->d, &u);
    COUNT(30.0 * (double)b->n, 0);
}
/* Adam over as many elements in a model's list of tensors, half of them vectors. */
CASE(adam_listed)
{
    enum { TENSORS = 48, VECTOR = 1024 };
    Updated x[TENSORS];
    int64_t each = (b->n - TENSORS / 2 * VECTOR) / (TENSORS / 2) / VECTOR * VECTOR, at = 0;
    for (int i = 0; i < TENSORS; i++) {
        int64_t n = i % 2 ? each : VECTOR;
        x[i] = (Updated){.n = n, .w = b->master + at, .g = b->grad + at, .m = b->m + at, .v = b->v + at,
                         .out = (char *)b->wide.p + 2 * at, .wd = 0.1};
        at += n;
    }
    BUG_ON(at > b->n);
    Update u = {.list = x, .count = TENSORS, .out_type = BF16, .verdict = b->verdict, .lr = 1e-4,
                .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .bias1 = 0.1, .bias2 = 0.05};
    b->d.adam(&b->d, &u);
    COUNT(30.0 * (double)at, 0);
}
CASE(matmul)
{
    int64_t n = b->side;
    b->d.matmul(&b->d, mat(b->wide.p, n, n, BF16), mat(b->master, n, n, BF16), 0, mat(b->m, n, n, BF16), 1,
                0);
    COUNT(0, 2.0 * (double)(n * n * n));
}
static double layer_flops(const Bench *b) { return 2.0 * (double)b->T * (double)b->H * (double)b->F; }
CASE(linear_fwd) { b->d.linear(&b->d, b->a, b->x, b->w, none); COUNT(0, layer_flops(b)); }
CASE(linear_bias) { b->d.linear(&b->d, b->a, b->x, b->w, b->hbias); COUNT(0, layer_flops(b)); }
CASE(linear_logits)
{
    Mat slice = mat_rows(b->x, 0, b->logits.rows);
    b->d.linear(&b->d, b->logits, slice, b->wte, none);
    COUNT(0, 2.0 * (double)slice.rows * (double)b->H * (double)b->V);
}
CASE(linear_bwd_x) { b->d.matmul(&b->d, b->dx, b->a, 0, b->w, 0, 0); COUNT(0, layer_flops(b)); }
static Mat weight_gradient(const Bench *b) { return mat(b->master, b->F, b->H, F32); }
CASE(linear_bwd_w)
{
    b->d.linear_bwd_w(&b->d, weight_gradient(b), (Mat){.type = F32}, b->a, b->x, 1);
    COUNT(0, layer_flops(b));
}
CASE(linear_bwd_wb)
{
    b->d.linear_bwd_w(&b->d, weight_gradient(b), mat(b->m, 1, b->F, F32), b->a, b->x, 1);
    COUNT(0, layer_flops(b));
}
CASE(gelu_linear_fwd)
{
    b->d.linear_act_fwd(&b->d, b->a, mat_cols(b->h, 0, b->F), b->x, b->w, b->hbias, ACT_GELU_TANH);
    COUNT(0, layer_flops(b));
}
/* Input gradient of the layer after the activation (weight [H, F]), times the activation's derivative. */
CASE(gelu_linear_bwd)
{
    Mat w = mat(b->w.p, b->H, b->F, BF16), da = mat_cols(b->dh, 0, b->F);
    b->d.linear_act_bwd_x(&b->d, da, da, b->x, w, mat_cols(b->h, 0, b->F), ACT_GELU_TANH);
    COUNT(0, layer_flops(b));
}
CASE(fp8_cast)
{
    b->d.fp8_cast(&b->d, b->x8.p, b->t8.p, b->x, &b->scale[0], E4M3, 1);
    COUNT(2 * size(b->x), 0);
}
CASE(fp8_cast_now)
{
    b->d.fp8_cast(&b->d, b->x8.p, b->t8.p, b->x, &b->scale[0], E4M3, 0);
    COUNT(3 * size(b->x), 0);
}
CASE(fp8_cast_weight)
{
    b->d.fp8_cast(&b->d, b->w8.p, NULL, b->w, &b->scale[1], E4M3, 0);
    COUNT(2.5 * size(b->w), 0);
}
CASE(fp8_linear) { b->d.fp8_matmul(&b->d, b->a, b->x8, b->w8, none, 0); COUNT(0, layer_flops(b)); }
static double attention_flops(const Bench *b)      /* causal: half of all (query, key) pairs count */
{
    return 2.0 * (double)b->T * (double)b->shape.q.stride * b->shape.heads * b->shape.dim;
}
CASE(attention_fwd)
{
    int64_t q = b->shape.heads * b->shape.dim, k = b->shape.kv_heads * b->shape.dim;
    Mat from = mat(b->qkv.p, b->T, q + 2 * k, BF16), lse = mat(b->lse.p, b->T, b->shape.heads, F32);
    b->d.attention_fwd(&b->d, b->o, lse, mat_cols(from, 0, q), mat_cols(from, q, k), mat_cols(from, q + k, k),
                       &b->shape);
    COUNT(0, attention_flops(b));
}
CASE(attention_bwd)
{
    int64_t q = b->shape.heads * b->shape.dim, k = b->shape.kv_heads * b->shape.dim;
    Mat from = mat(b->qkv.p, b->T, q + 2 * k, BF16), to = mat(b->dqkv.p, b->T, q + 2 * k, BF16);
    Mat lse = mat(b->lse.p, b->T, b->shape.heads, F32), delta = mat(b->delta.p, b->T, b->shape.heads, F32);
    b->d.attention_bwd(&b->d, mat_cols(to, 0, q), mat_cols(to, q, k), mat_cols(to, q + k, k), b->x, b->o, lse,
                       delta, mat_cols(from, 0, q), mat_cols(from, q, k), mat_cols(from, q + k, k),
                       &b->shape);
    COUNT(0, 2.5 * attention_flops(b));
}
/* Runs attention with heads of another size and `groups` query heads for one key and value head. */
static void with_heads(Bench *b, int dim, int groups, double *bytes, double *flops,
                       void (*run)(Bench *b, double *bytes, double *flops))
{
    Attention whole = b->shape;
    b->shape.dim = dim;
    b->shape.heads = (int)b->H / dim;
    b->shape.kv_heads = b->shape.heads / groups;
    b->shape.scale = dim == 64 ? 0.125 : 0.088;
    run(b, bytes, flops);
    b->shape = whole;
}
CASE(attention_64_fwd) { with_heads(b, 64, 1, bytes, flops, run_attention_fwd); }
CASE(attention_64_bwd) { with_heads(b, 64, 1, bytes, flops, run_attention_bwd); }
CASE(attention_gqa_fwd) { with_heads(b, 128, b->quick ? 2 : 8, bytes, flops, run_attention_fwd); }
CASE(attention_gqa_bwd) { with_heads(b, 128, b->quick ? 2 : 8, bytes, flops, run_attention_bwd); }

static const struct { const char *name; void (*run)(Bench *b, double *bytes, double *flops);
} cases[] = {
    {"copy", run_copy},
    {"matmul, square", run_matmul}, /* cases 0 and 1 set the ceilings of the others */
    {"add", run_add},
    {"add, in place", run_accumulate},
    {"zero", run_zero},
    {"layer norm fwd", run_norm_fwd},
    {"rms norm fwd", run_rms_fwd},
    {"add + norm fwd", run_add_norm_fwd},
    {"add + dropout + norm fwd", run_dropped_norm_fwd},
    {"layer norm bwd", run_norm_bwd},
    {"layer norm bwd, 768 columns", run_norm_bwd_768},
    {"rms norm bwd, 896 columns", run_rms_bwd_896},
    {"rms norm bwd, 2048 columns", run_rms_bwd_2048},
    {"rms norm bwd, 3584 columns", run_rms_bwd_3584},
    {"gelu fwd", run_gelu_fwd},
    {"gelu bwd", run_gelu_bwd},
    {"swiglu fwd", run_swiglu_fwd},
    {"swiglu bwd", run_swiglu_bwd},
    {"bias bwd", run_bias_bwd},
    {"rope", run_rope},
    {"dropout fwd", run_dropout_fwd},
    {"dropout bwd", run_dropout_bwd},
    {"embedding fwd", run_embed_fwd},
    {"embedding bwd", run_embed_bwd},
    {"cross-entropy stats", run_xent_stats},
    {"cross-entropy grad", run_xent_grad},
    {"cross-entropy, one pass", run_xent},
    {"cross-entropy, one pass, 3 times as wide", run_xent_wide},
    {"squares", run_squares},
    {"adam", run_adam},
    {"adam, 48 tensors", run_adam_listed},
    {"fp8 cast, delayed", run_fp8_cast},
    {"fp8 cast, tensorwise", run_fp8_cast_now},
    {"fp8 cast of a weight", run_fp8_cast_weight},
    {"linear fwd", run_linear_fwd},
    {"linear + bias fwd", run_linear_bias},
    {"linear + gelu fwd", run_gelu_linear_fwd},
    {"linear, logits", run_linear_logits},
    {"linear bwd x", run_linear_bwd_x},
    {"linear + gelu bwd x", run_gelu_linear_bwd},
    {"linear bwd w", run_linear_bwd_w},
    {"linear + bias bwd w", run_linear_bwd_wb},
    {"linear fwd, fp8", run_fp8_linear},
    {"attention fwd", run_attention_fwd},
    {"attention bwd", run_attention_bwd},
    {"attention fwd, heads of 64", run_attention_64_fwd},
    {"attention bwd, heads of 64", run_attention_64_bwd},
    {"attention fwd, 8 to a key", run_attention_gqa_fwd},
    {"attention bwd, 8 to a key", run_attention_gqa_bwd},
};
enum { CASES = sizeof cases / sizeof *cases };

/* ---- memory ---- */

static Mat take(Bench *b, int64_t rows, int64_t cols, Dtype type)
{
    return mat(b->d.take(&b->d, (size_t)(rows * cols) * dtype_size(type)), rows, cols, type);
}

/* Fills m with numbers in [-0.5, 0.5), the same in every run. */
static void fill(Bench *b, Mat m)
{
    size_t n = (size_t)(m.rows * m.cols), bytes = n * dtype_size(m.type);
    uint16_t *half = xcalloc(1, bytes + 4);
    float *whole = (float *)half;
    for (size_t i = 0; i < n; i++) {
        float x = (float)((i * 2654435761u >> 7 & 1023) / 1024.0 - 0.5);
        uint32_t bits;
        memcpy(&bits, &x, 4);
        if (m.type == F32)
            whole[i] = x;
        else
            half[i] = (uint16_t)(bits >> 16);
    }
    b->d.put(&b->d, m.p, half, bytes);
    free(half);
}

/* Fills the rotary table with cosine and sine of one angle: rope then keeps the size of its numbers. */
static void fill_angles(Bench *b, Mat table)
{
    float *x = xcalloc(1, mat_bytes(table));
    for (int64_t i = 0; i < table.rows * table.cols; i++)
        x[i] = i % table.cols < table.cols / 2 ? 0.8f : 0.6f;
    b->d.put(&b->d, table.p, x, mat_bytes(table));
    free(x);
}

static void *take_bytes(Bench *b, int64_t n) { return b->d.take(&b->d, (size_t)n); }

/* Makes the FP8 matrices and their scales, by a first cast. */
static void open_fp8(Bench *b)
{
    b->scale = take_bytes(b, 3 * (int64_t)sizeof *b->scale);
    b->x8 = (Mat8){take_bytes(b, b->T * b->H), b->T, b->H, E4M3, &b->scale[0].inverse};
    b->t8 = (Mat8){take_bytes(b, b->T * b->H), b->H, b->T, E4M3, &b->scale[0].inverse};
    b->w8 = (Mat8){take_bytes(b, b->F * b->H), b->F, b->H, E4M3, &b->scale[1].inverse};
    b->d.fp8_cast(&b->d, b->x8.p, b->t8.p, b->x, &b->scale[0], E4M3, 0);
    b->d.fp8_cast(&b->d, b->w8.p, NULL, b->w, &b->scale[1], E4M3, 0);
}

static void open_bench(Bench *b, int quick)
{
    b->quick = quick;
    b->T = quick ? 256 : 16384, b->H = quick ? 256 : 4096, b->F = quick ? 512 : 11008,
    b->V = quick ? 500 : 50304;
    b->n = quick ? 1 << 16 : (int64_t)1 << 27;
    int64_t seq = quick ? 128 : 1024, slice = quick ? 32 : 1024;
    Mat *rows[] = {&b->x, &b->y, &b->z, &b->dx, &b->o};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        fill(b, *rows[i] = take(b, b->T, b->H, BF16));
    b->h = take(b, b->T, 2 * b->F, BF16);
    b->dh = take(b, b->T, 2 * b->F, BF16);
    b->a = take(b, b->T, b->F, BF16);
    b->w = take(b, b->F, b->H, BF16);
    fill(b, b->h), fill(b, b->a), fill(b, b->w);
    b->stats = take(b, 8 * b->T, 3, F32);
    b->moments = take(b, b->T, 2, F32);
    b->hbias = take(b, 1, b->F, BF16);
    b->gain = take(b, 1, b->H, BF16), b->bias = take(b, 1, b->H, BF16);
    fill(b, b->gain), fill(b, b->bias);
    b->dgain = take(b, 1, b->H, F32), b->dbias = take(b, 1, b->H, F32);
    fill_angles(b, b->table = take(b, seq, 128, F32));
    b->wte = take(b, b->V, b->H, BF16), b->dwte = take(b, b->V, b->H, F32);
    b->logits = take(b, slice, b->V, F32);
    fill(b, b->logits);
    b->loss = take(b, b->T, 1, F32);
    b->shape = (Attention){.batch = b->T / seq, .q = positions_one(0, seq), .k = positions_one(0, seq),
                           .heads = (int)(b->H / 128),
                           .kv_heads = (int)(b->H / 128), .dim = 128, .scale = 0.088};
    b->qkv = take(b, b->T, 3 * b->H, BF16), b->dqkv = take(b, b->T, 3 * b->H, BF16);
    fill(b, b->qkv);
    b->lse = take(b, b->T, b->H / 64, F32), b->delta = take(b, b->T, b->H / 64, F32);
    open_fp8(b);
    b->side = quick ? 64 : 8192;
    int64_t square = b->side * b->side, room = b->n > square ? b->n : square;
    room = room > b->F * b->H ? room : b->F * b->H;
    float **state[] = {&b->master, &b->m, &b->v, &b->grad};
    for (size_t i = 0; i < sizeof state / sizeof *state; i++) {
        *state[i] = b->d.take(&b->d, (size_t)room * 4);
        fill(b, mat(*state[i], 1, room, i < 2 ? F32 : BF16));
    }
    fill(b, mat(b->master, 1, square, BF16)), fill(b, mat(b->m, 1, square, BF16));
    b->wide = take(b, 1, room, BF16);
    b->sums = b->d.take(&b->d, 64);
    b->exact = b->d.take(&b->d, sizeof *b->exact);
    b->verdict = b->d.take(&b->d, sizeof *b->verdict);
    b->d.put(&b->d, b->verdict, &(Verdict){.multiplier = 1, .gscale = 1, .go = 1}, sizeof(Verdict));
    int32_t *ids = xcalloc((size_t)b->T, sizeof *ids);
    b->token = b->d.take(&b->d, (size_t)b->T * 4), b->position = b->d.take(&b->d, (size_t)b->T * 4);
    for (int64_t i = 0; i < b->T; i++)
        ids[i] = (int32_t)((uint64_t)i * 2654435761u % (uint64_t)b->V);
    b->d.put(&b->d, b->token, ids, (size_t)b->T * 4);
    for (int64_t i = 0; i < b->T; i++)
        ids[i] = (int32_t)(i % seq);
    b->d.put(&b->d, b->position, ids, (size_t)b->T * 4);
    b->sample = b->d.take(&b->d, (size_t)(b->T / seq) * 8);
    b->drop = (Dropout){.p = 0, .key = 1, .sample = b->sample, .runs = &b->shape.q};
    free(ids);
}

/* Chooses the fastest of the library's algorithms for every matrix product, as a run does before its first
 * step. */
static void tune(Bench *b, Algorithms *known)
{
    Products p = {0};
    Device gpu = b->d;
    double bytes, flops;
    size_t room = b->quick ? (size_t)16 << 20 : (size_t)2 << 30;
    null_open(&b->d, F32);
    products_watch(&b->d, &p);
    for (int i = 0; i < CASES; i++)
        cases[i].run(b, &bytes, &flops);
    b->d = gpu;
    void *scratch = take_bytes(b, (int64_t)room);
    cuda_tune(&b->d, &p, known, b->quick ? 1 : 8, scratch, room);
    b->d.give(&b->d, scratch, room);
    products_close(&p);
}

/* ---- time ---- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct { cudaEvent_t begin, end; } Clock;

/* Milliseconds of `loops` runs of case `at`. */
static double loop(Bench *b, int at, int loops, Clock c, double *bytes, double *flops)
{
    cudaStream_t s = cuda_stream(&b->d);
    float ms = 0;
    CUDA_OK(cudaEventRecord(c.begin, s));
    for (int i = 0; i < loops; i++)
        cases[at].run(b, bytes, flops);
    CUDA_OK(cudaEventRecord(c.end, s));
    CUDA_OK(cudaEventSynchronize(c.end));
    CUDA_OK(cudaEventElapsedTime(&ms, c.begin, c.end));
    return ms;
}

/* Seconds of one run of case `at`: median of five loops. */
static double measure(Bench *b, int at, Clock c, double *bytes, double *flops)
{
    double sample[5];
    int loops = 1, samples = b->quick ? 1 : 5;
    loop(b, at, 1, c, bytes, flops);
    while (!b->quick && loop(b, at, loops, c, bytes, flops) < 20 && loops < 1024)
        loops *= 2;
    for (int k = 0; k < samples; k++)
        sample[k] = loop(b, at, loops, c, bytes, flops) / 1e3 / loops;
    qsort(sample, (size_t)samples, sizeof *sample, by_value);
    return sample[samples / 2];
}

static void print_row(int json, int at, const char *name, const char *what, int kind, double rate,
                      double share, double seconds)
{
    const char *unit = kind ? "TFLOP/s" : "GB/s";
    if (json)
        printf("%s{\"name\": \"%s\", \"size\": \"%s\", \"rate\": %.4g, \"unit\": \"%s\", \"share\": %.4f, "
               "\"us\": %.3f}", at ? ", " : "", name, what, rate, unit, share, seconds * 1e6);
    else
        printf("| %s | %s | %.1f %s | %.1f %% | %.1f us |\n", name, what, rate, unit, 100 * share,
               seconds * 1e6);
    fflush(stdout);
}

/* Measures and prints case `at`. ceiling: GB/s and TFLOP/s; cases 0 and 1 set them. */
static void run_case(Bench *b, int at, const char *name, Clock clock, double ceiling[2], int json)
{
    double bytes, flops, t = measure(b, at, clock, &bytes, &flops),
                         rate = (bytes ? bytes / 1e9 : flops / 1e12) / t;
    int kind = bytes ? 0 : 1;
    char what[64];
    if (at < 2)
        ceiling[kind] = rate;
    snprintf(what, sizeof what, kind ? "%.1f GFLOP" : "%.1f MB", kind ? flops / 1e9 : bytes / 1e6);
    print_row(json, at, name, what, kind, rate, rate / ceiling[kind], t);
}

/* Measures and prints attention case `at` through cuDNN, or prints why cuDNN does not compute it. */
static void run_cudnn(Bench *b, int at, Clock clock, double ceiling[2], int json)
{
    Products p = {0};
    AttentionUse use;
    Device gpu = b->d;
    double bytes, flops;
    char name[80];
    null_open(&b->d, F32);
    products_watch(&b->d, &p);
    cases[at].run(b, &bytes, &flops);
    b->d = gpu;
    cuda_attention(&b->d, &p, 0, &use);
    snprintf(name, sizeof name, "%s, cuDNN", cases[at].name);
    if (use.fused_forward + use.fused_backward)
        run_case(b, at, name, clock, ceiling, json);
    else
        fprintf(stderr, "no row `%s`: %s: %s\n", name, use.name, use.why);
    cuda_attention_close(&b->d);
    products_close(&p);
}

int main(int argc, char **argv)
{
    static Bench b;
    int json = 0, quick = 0;
    const char *only = "";
    Clock clock;
    Algorithms known = {0};
    double ceiling[2] = {1, 1};
    for (int i = 1; i < argc; i++) {
        json |= !strcmp(argv[i], "--json");
        quick |= !strcmp(argv[i], "--quick");
        if (!strcmp(argv[i], "--only") && i + 1 < argc)
            only = argv[++i];
    }
    cuda_open(&b.d, F32, 0);
    open_bench(&b, quick);
    tune(&b, &known);
    CUDA_OK(cudaEventCreate(&clock.begin));
    CUDA_OK(cudaEventCreate(&clock.end));
    if (json)
        printf("{\"device\": \"%s\", \"rows\": [", b.d.isa);
    else
        printf("| op | size | rate | of the ceiling | time |\n|---|---|---|---|---|\n");
    for (int i = 0; i < CASES; i++)
        if (i < 2 || strstr(cases[i].name, only))
            run_case(&b, i, cases[i].name, clock, ceiling, json);
    for (int i = 0; i < CASES; i++)
        if (!strncmp(cases[i].name, "attention", 9) && strstr(cases[i].name, only))
            run_cudnn(&b, i, clock, ceiling, json);
    if (json)
        printf("]}\n");
    CUDA_OK(cudaEventDestroy(clock.begin));
    CUDA_OK(cudaEventDestroy(clock.end));
    cuda_close(&b.d);
    algorithms_close(&known);
    return 0;
}
