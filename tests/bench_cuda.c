/* bench_cuda [--json] [--quick] -- what one GPU reaches: copy bandwidth, matmul, and every op against its ceiling: the copy's
 * bytes a second for ops that are bound by memory, the matmul's FLOPs for attention and linear layers.
 *
 * An op runs in a loop between two events, long enough for 20 ms, on operands larger than the L2 cache; the middle of five
 * such loops counts. Bytes are what the op must move at least: each operand that it reads or writes, once. */
#include "cuda.h"
#include "exact.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    Device d;
    int64_t T, H, F, V, side;      /* tokens, width, feed-forward width, vocabulary; of the square matrices */
    Mat x, y, z, dx, h, dh, a, w, wide, logits, stats, gain, bias, dgain, dbias, table, wte, dwte, loss, lse, delta, qkv, dqkv, o;
    float *master, *m, *v, *grad;
    int64_t n;                     /* of them */
    int32_t *token, *position;
    int64_t *sample;
    double *sums;
    Exact *exact;
    Verdict *verdict;
    Dropout drop;
    Attention shape;
} Bench;

/* ---- the ops, and what each must move or multiply ---- */

static double size(Mat m) { return (double)(m.rows * m.cols) * (double)dtype_size(m.type); }
static const Mat none = {.type = BF16};

#define CASE(name) static void run_##name(Bench *b, double *bytes, double *flops)
#define COUNT(by, fl) do { *bytes = (by); *flops = (fl); } while (0)

CASE(copy) { b->d.copy(&b->d, b->y, b->x); COUNT(size(b->x) + size(b->y), 0); }
CASE(add) { b->d.add(&b->d, b->z, b->x, b->y); COUNT(3 * size(b->x), 0); }
CASE(norm_fwd)
{
    b->d.norm_fwd(&b->d, b->y, b->stats, b->x, b->gain, b->bias, 1e-5, NORM_LAYER, 1);
    COUNT(2 * size(b->x) + size(b->stats), 0);
}
CASE(rms_fwd)
{
    b->d.norm_fwd(&b->d, b->y, b->stats, b->x, b->gain, none, 1e-5, NORM_RMS, 1);
    COUNT(2 * size(b->x) + size(b->stats), 0);
}
CASE(add_norm_fwd)
{
    b->d.add_norm_fwd(&b->d, b->z, b->y, b->stats, b->x, b->dx, &b->drop, b->gain, b->bias, 1e-5, NORM_LAYER);
    COUNT(4 * size(b->x) + size(b->stats), 0);
}
CASE(norm_bwd_x)
{
    b->d.norm_bwd_x(&b->d, b->dx, b->y, b->z, b->x, b->stats, b->gain, NORM_LAYER, 1);
    COUNT(4 * size(b->x) + size(b->stats), 0);
}
CASE(norm_bwd_w)
{
    b->d.norm_bwd_w(&b->d, b->dgain, b->dbias, b->z, b->x, b->stats, NORM_LAYER, 1);
    COUNT(2 * size(b->x) + size(b->stats), 0);
}
CASE(gelu_fwd) { b->d.act_fwd(&b->d, b->a, mat_cols(b->h, 0, b->F), ACT_GELU_TANH); COUNT(2 * size(b->a), 0); }
CASE(swiglu_fwd) { b->d.act_fwd(&b->d, b->a, b->h, ACT_SWIGLU); COUNT(size(b->a) + size(b->h), 0); }
CASE(swiglu_bwd) { b->d.act_bwd(&b->d, b->dh, b->a, b->h, ACT_SWIGLU); COUNT(size(b->a) + 2 * size(b->h), 0); }
CASE(bias_bwd) { b->d.bias_bwd(&b->d, b->dbias, b->x); COUNT(size(b->x), 0); }
CASE(rope) { b->d.rope(&b->d, b->x, 128, b->table, b->position, 0); COUNT(2 * size(b->x), 0); }
CASE(dropout_fwd) { b->d.dropout_fwd(&b->d, b->z, b->x, b->y, &b->drop); COUNT(3 * size(b->x), 0); }
CASE(embed_fwd) { b->d.embed_fwd(&b->d, b->y, b->token, b->position, b->wte, 0, none); COUNT(2 * size(b->y), 0); }
CASE(embed_bwd)
{
    b->d.embed_bwd(&b->d, b->dwte, 0, (Mat){.type = F32}, b->x, b->token, b->position);
    COUNT(size(b->x) + 2 * (double)b->x.rows * (double)b->H * 4, 0);
}
CASE(xent_stats)
{
    b->d.xent_stats(&b->d, mat(b->stats.p, b->logits.rows, 3, F32), b->logits, b->token, (RowMap){b->logits.rows, 0, b->T}, 0, b->V);
    COUNT(size(b->logits), 0);
}
CASE(xent_grad)
{
    Mat dlogits = {b->logits.p, b->logits.rows, b->logits.cols, b->logits.ld * 2, BF16};
    b->d.xent_grad(&b->d, b->loss, dlogits, b->logits, mat(b->stats.p, b->logits.rows, 3, F32), b->token, NULL,
                   (RowMap){b->logits.rows, 0, b->T}, 0, b->V, 1);
    COUNT(1.5 * size(b->logits), 0);
}
CASE(squares) { b->d.squares(&b->d, b->exact, b->grad, b->n, F32); COUNT(4.0 * (double)b->n, 0); }
CASE(adam)
{
    Update u = {.n = b->n, .w = b->master, .g = b->grad, .m = b->m, .v = b->v, .out = b->wide.p, .out_type = BF16,
                .verdict = b->verdict, .lr = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .wd = 0.1, .bias1 = 0.1, .bias2 = 0.05};
    b->d.adam(&b->d, &u);
    COUNT(30.0 * (double)b->n, 0);
}
CASE(matmul)
{
    int64_t n = b->side;
    b->d.matmul(&b->d, mat(b->wide.p, n, n, BF16), mat(b->master, n, n, BF16), 0, mat(b->m, n, n, BF16), 1, 0);
    COUNT(0, 2.0 * (double)(n * n * n));
}
CASE(linear_fwd) { b->d.linear(&b->d, mat_cols(b->h, 0, b->F), b->x, b->w, none); COUNT(0, 2.0 * (double)(b->T * b->H * b->F)); }
CASE(linear_bwd_x) { b->d.matmul(&b->d, b->dx, mat_cols(b->h, 0, b->F), 0, b->w, 0, 0); COUNT(0, 2.0 * (double)(b->T * b->H * b->F)); }
CASE(linear_bwd_w)
{
    b->d.matmul(&b->d, mat(b->master, b->F, b->H, F32), mat_cols(b->h, 0, b->F), 1, b->x, 0, 1);
    COUNT(0, 2.0 * (double)(b->T * b->H * b->F));
}
static double attention_flops(const Bench *b)      /* causal: half of all pairs */
{
    return 2.0 * (double)b->T * (double)b->shape.seq_q * b->shape.heads * b->shape.dim;
}
CASE(attention_fwd)
{
    int64_t q = b->shape.heads * b->shape.dim, k = b->shape.kv_heads * b->shape.dim;
    b->d.attention_fwd(&b->d, b->o, b->lse, mat_cols(b->qkv, 0, q), mat_cols(b->qkv, q, k), mat_cols(b->qkv, q + k, k), &b->shape);
    COUNT(0, attention_flops(b));
}
CASE(attention_bwd)
{
    int64_t q = b->shape.heads * b->shape.dim, k = b->shape.kv_heads * b->shape.dim;
    b->d.attention_bwd(&b->d, mat_cols(b->dqkv, 0, q), mat_cols(b->dqkv, q, k), mat_cols(b->dqkv, q + k, k), b->x, b->o, b->lse, b->delta,
                       mat_cols(b->qkv, 0, q), mat_cols(b->qkv, q, k), mat_cols(b->qkv, q + k, k), &b->shape);
    COUNT(0, 2.5 * attention_flops(b));
}

static const struct { const char *name; void (*run)(Bench *b, double *bytes, double *flops); } cases[] = {
    {"copy", run_copy}, {"matmul, square", run_matmul},             /* the ceilings come first */
    {"add", run_add}, {"layer norm fwd", run_norm_fwd}, {"rms norm fwd", run_rms_fwd}, {"add + norm fwd", run_add_norm_fwd},
    {"norm bwd x", run_norm_bwd_x}, {"norm bwd w", run_norm_bwd_w}, {"gelu fwd", run_gelu_fwd}, {"swiglu fwd", run_swiglu_fwd},
    {"swiglu bwd", run_swiglu_bwd}, {"bias bwd", run_bias_bwd}, {"rope", run_rope}, {"dropout fwd", run_dropout_fwd},
    {"embedding fwd", run_embed_fwd}, {"embedding bwd", run_embed_bwd}, {"cross-entropy stats", run_xent_stats},
    {"cross-entropy grad", run_xent_grad}, {"squares", run_squares}, {"adam", run_adam}, {"linear fwd", run_linear_fwd},
    {"linear bwd x", run_linear_bwd_x}, {"linear bwd w", run_linear_bwd_w}, {"attention fwd", run_attention_fwd},
    {"attention bwd", run_attention_bwd},
};
enum { CASES = sizeof cases / sizeof *cases };

/* ---- memory ---- */

static Mat take(Bench *b, int64_t rows, int64_t cols, Dtype type)
{
    return mat(b->d.take(&b->d, (size_t)(rows * cols) * dtype_size(type)), rows, cols, type);
}

/* Small numbers of both signs, the same every time. */
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

static void open_bench(Bench *b, int quick)
{
    b->T = quick ? 256 : 16384, b->H = quick ? 256 : 4096, b->F = quick ? 512 : 11008, b->V = quick ? 500 : 50304;
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
    b->stats = take(b, b->T, 3, F32);
    b->gain = take(b, 1, b->H, BF16), b->bias = take(b, 1, b->H, BF16);
    fill(b, b->gain), fill(b, b->bias);
    b->dgain = take(b, 1, b->H, F32), b->dbias = take(b, 1, b->H, F32);
    b->table = take(b, seq, 128, F32);
    b->wte = take(b, b->V, b->H, BF16), b->dwte = take(b, b->V, b->H, F32);
    b->logits = take(b, slice, b->V, F32);
    fill(b, b->logits);
    b->loss = take(b, b->T, 1, F32);
    b->shape = (Attention){.batch = b->T / seq, .seq_q = seq, .seq_k = seq, .heads = (int)(b->H / 128), .kv_heads = (int)(b->H / 128),
                           .dim = 128, .scale = 0.088};
    b->qkv = take(b, b->T, 3 * b->H, BF16), b->dqkv = take(b, b->T, 3 * b->H, BF16);
    fill(b, b->qkv);
    b->lse = take(b, b->T, b->shape.heads, F32), b->delta = take(b, b->T, b->shape.heads, F32);
    b->side = quick ? 64 : 8192;
    int64_t square = b->side * b->side, room = b->n > square ? b->n : square;
    room = room > b->F * b->H ? room : b->F * b->H;
    float **state[] = {&b->master, &b->m, &b->v, &b->grad};
    for (size_t i = 0; i < sizeof state / sizeof *state; i++)
        *state[i] = b->d.take(&b->d, (size_t)room * 4);
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
    b->drop = (Dropout){.p = 0, .key = 1, .sample = b->sample, .seq = seq};
    free(ids);
}

/* ---- time ---- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds of one run: the middle of five loops. */
static double measure(Bench *b, int at, double *bytes, double *flops, cudaEvent_t begin, cudaEvent_t end)
{
    cudaStream_t s = cuda_stream(&b->d);
    double sample[5];
    float ms = 0;
    int loops = 1;
    cases[at].run(b, bytes, flops);
    for (;;) {                         /* how many runs take 20 ms */
        CUDA_OK(cudaEventRecord(begin, s));
        for (int i = 0; i < loops; i++)
            cases[at].run(b, bytes, flops);
        CUDA_OK(cudaEventRecord(end, s));
        CUDA_OK(cudaEventSynchronize(end));
        CUDA_OK(cudaEventElapsedTime(&ms, begin, end));
        if (ms >= 20 || loops >= 1024)
            break;
        loops *= 2;
    }
    for (int k = 0; k < 5; k++) {
        CUDA_OK(cudaEventRecord(begin, s));
        for (int i = 0; i < loops; i++)
            cases[at].run(b, bytes, flops);
        CUDA_OK(cudaEventRecord(end, s));
        CUDA_OK(cudaEventSynchronize(end));
        CUDA_OK(cudaEventElapsedTime(&ms, begin, end));
        sample[k] = ms / 1e3 / loops;
    }
    qsort(sample, 5, sizeof *sample, by_value);
    return sample[2];
}

int main(int argc, char **argv)
{
    static Bench b;
    int json = 0, quick = 0;
    cudaEvent_t begin, end;
    double ceiling[2] = {1, 1};        /* GB/s, TFLOP/s */
    for (int i = 1; i < argc; i++) {
        json |= !strcmp(argv[i], "--json");
        quick |= !strcmp(argv[i], "--quick");
    }
    cuda_open(&b.d, F32, 0);
    open_bench(&b, quick);
    CUDA_OK(cudaEventCreate(&begin));
    CUDA_OK(cudaEventCreate(&end));
    if (json)
        printf("{\"device\": \"%s\", \"rows\": [", b.d.isa);
    else
        printf("| op | size | rate | of the ceiling | time |\n|---|---|---|---|---|\n");
    for (int i = 0; i < CASES; i++) {
        double bytes, flops, t = measure(&b, i, &bytes, &flops, begin, end), rate = (bytes ? bytes / 1e9 : flops / 1e12) / t;
        int kind = bytes ? 0 : 1;
        char what[64];
        if (i < 2)
            ceiling[kind] = rate;
        snprintf(what, sizeof what, bytes ? "%.1f MB" : "%.1f GFLOP", bytes ? bytes / 1e6 : flops / 1e9);
        if (json)
            printf("%s{\"name\": \"%s\", \"size\": \"%s\", \"rate\": %.4g, \"unit\": \"%s\", \"share\": %.4f, \"us\": %.3f}", i ? ", " : "",
                   cases[i].name, what, rate, kind ? "TFLOP/s" : "GB/s", rate / ceiling[kind], t * 1e6);
        else
            printf("| %s | %s | %.1f %s | %.1f %% | %.1f us |\n", cases[i].name, what, rate, kind ? "TFLOP/s" : "GB/s",
                   100 * rate / ceiling[kind], t * 1e6);
        fflush(stdout);
    }
    if (json)
        printf("]}\n");
    cuda_close(&b.d);
    return 0;
}
