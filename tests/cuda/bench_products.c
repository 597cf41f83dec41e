/* bench_products [--json] [--quick] CONFIG [key=value ...] -- speed of the matrix products of one
 * model's training step on one GPU: the forward, the input gradient and the weight gradient of qkv,
 * proj, fc1, fc2 and the head, with their epilogues, each with the fastest of the library's algorithms
 * (cublaslt_tune).
 *
 * The rehearsal of a run records the list of products (products.h). A product runs in a loop between two
 * events, long enough for 20 ms, on random numbers; the median of five such loops counts. --quick: each
 * product twice; the figures mean nothing. cublaslt_algorithms=FILE keeps the algorithms
 * (scripts/gpu_algorithms). */
#include "cuda.h"
#include "run.h"
#include "tuned.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { const char *layer, *pass; int64_t rows, out, in; } Named;

/* Name of the layer whose weight is [out, in]. */
static const char *layer_of(const Config *c, int64_t out, int64_t in)
{
    int64_t H = c->hidden_size, F = c->ffn_hidden_size, Q = c->num_attention_heads * c->kv_channels;
    int64_t qkv = Q + 2 * c->num_query_groups * c->kv_channels,
            fc1 = act_gated((ActKind)c->activation) ? 2 * F : F;
    const struct { const char *name; int64_t out, in; } weight[] = {
        {"qkv", qkv, H}, {"proj", H, Q}, {"fc1", fc1, H}, {"fc2", H, F}, {"head", c->padded_vocab_size, H}};
    for (size_t i = 0; i < sizeof weight / sizeof *weight; i++)
        if (out == weight[i].out && in == weight[i].in)
            return weight[i].name;
    return "other";
}

/* Layer, pass and sizes of a product: y [rows, out] = x [rows, in] w^T or one of its two gradients. */
static Named name_of(const Config *c, const Product *q)
{
    static const char *const pass[] = {"forward", "input gradient", "weight gradient"};
    const Mat *m = q->mat;
    Named n = {0};
    int kind = 0;
    switch (q->op) {
    case PRODUCT_LINEAR:           n = (Named){.rows = m[1].rows, .out = m[2].rows, .in = m[2].cols}; break;
    case PRODUCT_LINEAR_ACT_FWD:   n = (Named){.rows = m[2].rows, .out = m[3].rows, .in = m[3].cols}; break;
    case PRODUCT_LINEAR_ACT_BWD_X:
        n = (Named){.rows = m[2].rows, .out = m[3].rows, .in = m[3].cols}, kind = 1;
        break;
    case PRODUCT_MATMUL: n = (Named){.rows = m[1].rows, .out = m[2].rows, .in = m[2].cols}, kind = 1; break;
    case PRODUCT_LINEAR_BWD_W:
        n = (Named){.rows = m[2].rows, .out = m[0].rows, .in = m[0].cols}, kind = 2;
        break;
    case PRODUCT_FP8:              /* c [i,j] = a [i,k] b [j,k]^T */
        kind = q->acc ? 2 : q->a == E5M2 ? 1 : 0;
        n = kind == 2 ? (Named){.rows = m[1].cols, .out = m[1].rows, .in = m[2].rows}
            : kind    ? (Named){.rows = m[1].rows, .out = m[1].cols, .in = m[2].rows}
                      : (Named){.rows = m[1].rows, .out = m[2].rows, .in = m[2].cols};
        break;
    }
    n.layer = layer_of(c, n.out, n.in);
    n.pass = pass[kind];
    return n;
}

/* Fills memory with random BF16 of both signs: a GPU multiplies zeros faster. Products in F32 read two
 * of them as one number, products in FP8 read each byte as one. */
static void fill(Device *d, char *memory, size_t bytes)
{
    const size_t piece = (size_t)1 << 24;
    uint16_t *half = xcalloc(piece, sizeof *half);
    for (size_t i = 0; i < piece; i++) {
        float x = (float)((i * 2654435761u >> 7 & 1023) / 1024.0 - 0.5);
        uint32_t bits;
        memcpy(&bits, &x, 4);
        half[i] = (uint16_t)(bits >> 16);
    }
    for (size_t at = 0; at < bytes; at += piece * 2)
        d->put(d, memory + at, half, bytes - at < piece * 2 ? bytes - at : piece * 2);
    free(half);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct { Device d; char *memory; size_t bytes; cudaEvent_t begin, end; int quick; } Bench;

static double loop(Bench *b, Products *one, int loops)
{
    float ms = 0;
    CUDA_OK(cudaEventRecord(b->begin, cuda_stream(&b->d)));
    for (int i = 0; i < loops; i++)
        products_replay(one, &b->d, b->memory, b->bytes, NULL);
    CUDA_OK(cudaEventRecord(b->end, cuda_stream(&b->d)));
    CUDA_OK(cudaEventSynchronize(b->end));
    CUDA_OK(cudaEventElapsedTime(&ms, b->begin, b->end));
    return ms;
}

/* Seconds of one product: median of five loops. */
static double measure(Bench *b, Product *q)
{
    Products one = {.list = q, .n = 1};
    double sample[5];
    int loops = 1, samples = b->quick ? 1 : 5;
    loop(b, &one, 1);
    while (!b->quick && loop(b, &one, loops) < 20 && loops < 1024)
        loops *= 2;
    for (int k = 0; k < samples; k++)
        sample[k] = loop(b, &one, loops) / 1e3 / loops;
    qsort(sample, (size_t)samples, sizeof *sample, by_value);
    return sample[samples / 2];
}

/* Bytes of memory for a product's operands, with the padding between them. */
static size_t room_of(const Product *q)
{
    size_t n = (PRODUCT_MATS + 1) * ARENA_ALIGN + sizeof(Fp8Scale);
    for (int i = 0; i < PRODUCT_MATS; i++)
        n += (size_t)(q->mat[i].rows * q->mat[i].ld) * dtype_size(q->mat[i].type);
    return n;
}

static void open_bench(Bench *b, const Products *p, const Config *c, Algorithms *known)
{
    cuda_open(&b->d, F32, 0);
    for (int64_t i = 0; i < p->n; i++)
        b->bytes = room_of(&p->list[i]) > b->bytes ? room_of(&p->list[i]) : b->bytes;
    b->bytes += b->quick ? 0 : 4 * cuda_of(&b->d)->l2;     /* sets of operands that L2 does not hold */
    b->memory = b->d.take(&b->d, b->bytes);
    CUDA_OK(cudaEventCreate(&b->begin));
    CUDA_OK(cudaEventCreate(&b->end));
    if (c->cublaslt_algorithms)
        tuned_read(known, c->cublaslt_algorithms);
    cuda_tune(&b->d, p, known, b->quick ? 1 : (int)c->cublaslt_tune, b->memory, b->bytes);
    if (c->cublaslt_algorithms)
        tuned_write(known, c->cublaslt_algorithms);
    fill(&b->d, b->memory, b->bytes);
    Fp8Scale scale = {.scale = 1};         /* a replayed FP8 product reads its scale at the start of memory */
    b->d.put(&b->d, b->memory, &scale, sizeof scale);
}

int main(int argc, char **argv)
{
    static Bench b;
    int json = 0, n = 0;
    char **arg = xcalloc((size_t)argc + 1, sizeof *arg);
    for (int i = 1; i < argc; i++) {
        json |= !strcmp(argv[i], "--json");
        b.quick |= !strcmp(argv[i], "--quick");
        if (strncmp(argv[i], "--", 2))
            arg[n++] = argv[i];
    }
    if (!n)
        die(EXIT_CONFIG, "usage",
            "a configuration is needed; change: bench_products [--json] [--quick] CONFIG [key=value ...]");
    const Config *c = config_load(arg[0], n - 1, arg + 1, 1, USE_MODEL);
    Run r;
    Algorithms known = {0};
    run_plan(&r, c, RUN_TRAIN, 0, 0);
    open_bench(&b, &r.gpu.products, c, &known);
    printf(json ? "{\"device\": \"%s\", \"rows\": ["
                : "%s\n| layer | product | size | TFLOP/s | time |\n|---|---|---|---|---|\n",
           b.d.isa);
    for (int64_t i = 0; i < r.gpu.products.n; i++) {
        Named at = name_of(c, &r.gpu.products.list[i]);
        double flops = 2.0 * (double)at.rows * (double)at.out * (double)at.in,
               t = measure(&b, &r.gpu.products.list[i]);
        printf(json ? "%s{\"layer\": \"%s\", \"pass\": \"%s\", \"fp8\": %s, \"rows\": %lld, \"out\": %lld, "
                      "\"in\": %lld, \"tflops\": %.5g, \"us\": %.3f}"
                    : "%s| %s | %s%s | %lld x %lld x %lld | %.1f | %.1f us |\n",
               json && i ? ", " : "", at.layer, at.pass,
               json ? (r.gpu.products.list[i].op == PRODUCT_FP8 ? "true" : "false")
               : r.gpu.products.list[i].op == PRODUCT_FP8 ? ", FP8"
                                                          : "",
               (long long)at.rows, (long long)at.out, (long long)at.in, flops / t / 1e12, t * 1e6);
        fflush(stdout);
    }
    printf(json ? "]}\n" : "");
    CUDA_OK(cudaEventDestroy(b.begin));
    CUDA_OK(cudaEventDestroy(b.end));
    b.d.give(&b.d, b.memory, b.bytes);
    run_plan_close(&r);
    cuda_close(&b.d);
    algorithms_close(&known);
    free(arg);
    return 0;
}
