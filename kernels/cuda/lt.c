/* lt -- matrix products through cuBLASLt: descriptors, the choice of an algorithm, the call */
#include "lt.h"
#include "base.h"
#include "cuda.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WAYS = 8, SETS = 128, CANDIDATES = 64, WARM = 2, TIMED = 8, ALIGNED = 16 };

/* All that an algorithm may depend on. It has no padding, because keys are compared as bytes. Alignments
 * count up to 16 bytes, the most that kernels ask for: beyond that, the address of a product would
 * change its algorithm and its bits. */
typedef struct {
    int64_t m, n, k, lda, ldb, ldc, ld_aux;
    int32_t type_a, type_b, type_c, epilogue;
    uint8_t ta, tb, acc, fast, align_a, align_b, align_c, align_vector, align_aux, mode_a, mode_b, zero[5];
} Key;
_Static_assert(sizeof(Key) == 88, "a key has no padding");

typedef struct {
    Key key;
    uint64_t used;             /* number of the call that last used it; 0: the entry is free */
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
    int has;                   /* bool: the library has an algorithm */
    double us;                 /* microseconds of the product when it was timed; -1: never timed */
} Plan;

struct Lt {
    const LtApi *api;
    cublasLtHandle_t handle;
    const char *gpu;
    cudaStream_t stream;
    void *workspace, *vector;  /* [bytes]; [LT_VECTOR] */
    size_t bytes;
    Algorithms *known;         /* see lt_tune */
    int most, warned;          /* see lt_tune; bool: the user was warned of a refused algorithm */
    cudaEvent_t start, end;    /* for timing */
    struct { char *base; size_t stride; int64_t n, turn; } sets;   /* see lt_rotate; turn: of the next call */
    uint64_t calls;
    Plan plan[SETS][WAYS];     /* generation always has new shapes: the least recently used goes */
};

#define LT_OK(lt, call) lt_ok((lt)->api, (lt)->api->call, #call)
static void lt_ok(const LtApi *api, cublasStatus_t s, const char *call)
{
    if (s != CUBLAS_STATUS_SUCCESS)
        die(EXIT_RESOURCE, "cublaslt", "%.60s: %s; change: check the driver and the CUDA libraries that were "
            "found (nvidia-smi, LD_LIBRARY_PATH)", call, api->cublasLtGetStatusString(s));
}

Lt *lt_open(const LtApi *api, const char *gpu, cudaStream_t stream, void *workspace, size_t bytes)
{
    Lt *lt = xcalloc(1, sizeof *lt);
    BUG_ON(bytes <= LT_VECTOR || (uintptr_t)workspace % 256);
    *lt = (Lt){.api = api, .gpu = gpu, .stream = stream, .workspace = (char *)workspace + LT_VECTOR,
               .vector = workspace, .bytes = bytes - LT_VECTOR};
    LT_OK(lt, cublasLtCreate(&lt->handle));
    CUDA_OK(cudaEventCreate(&lt->start));
    CUDA_OK(cudaEventCreate(&lt->end));
    return lt;
}

static void plan_close(Lt *lt, Plan *p)
{
    if (!p->used)
        return;
    LT_OK(lt, cublasLtMatrixLayoutDestroy(p->a));
    LT_OK(lt, cublasLtMatrixLayoutDestroy(p->b));
    LT_OK(lt, cublasLtMatrixLayoutDestroy(p->c));
    LT_OK(lt, cublasLtMatmulDescDestroy(p->desc));
    *p = (Plan){0};
}

void lt_forget(Lt *lt)
{
    for (int s = 0; s < SETS; s++)
        for (int w = 0; w < WAYS; w++)
            plan_close(lt, &lt->plan[s][w]);
}

void lt_close(Lt *lt)
{
    lt_forget(lt);
    CUDA_OK(cudaEventDestroy(lt->start));
    CUDA_OK(cudaEventDestroy(lt->end));
    LT_OK(lt, cublasLtDestroy(lt->handle));
    free(lt);
}

static size_t lt_version(const Lt *lt) { return lt->api->cublasLtGetVersion(); }

void *lt_vector(const Lt *lt, size_t bytes)
{
    BUG_ON(bytes > LT_VECTOR);
    return lt->vector;
}

void lt_tune(Lt *lt, Algorithms *known, int most)
{
    lt->known = known;
    lt->most = most < CANDIDATES ? most : CANDIDATES;
}

void lt_rotate(Lt *lt, void *base, size_t stride, int64_t n)
{
    BUG_ON(stride % 256);
    lt->sets.base = base;
    lt->sets.stride = stride;
    lt->sets.n = n;
}

/* ---- keys ---- */

static uint8_t alignment(const void *p)
{
    uintptr_t a = (uintptr_t)p & (~(uintptr_t)p + 1);
    return (uint8_t)(!p || a > ALIGNED ? ALIGNED : a);
}

static Key key_of(const LtProduct *q)
{
    return (Key){.m = q->c.rows, .n = q->c.cols, .k = q->ta ? q->a.rows : q->a.cols, .lda = q->a.ld,
                 .ldb = q->b.ld, .ldc = q->c.ld, .ld_aux = q->aux.p ? q->aux.ld : 0, .type_a = q->a.type,
                 .type_b = q->b.type, .type_c = q->c.type, .epilogue = q->epilogue, .ta = !!q->ta,
                 .tb = !!q->tb, .acc = !!q->acc, .fast = !!q->fast, .align_a = alignment(q->a.p),
                 .align_b = alignment(q->b.p), .align_c = alignment(q->c.p),
                 .align_vector = alignment(q->vector), .align_aux = alignment(q->aux.p),
                 .mode_a = (uint8_t)q->mode_a, .mode_b = (uint8_t)q->mode_b};
}

static const char *type_name(int32_t t)
{
    switch (t) {
    case CUDA_R_32F:     return "f32";
    case CUDA_R_16BF:    return "bf16";
    case CUDA_R_16F:     return "f16";
    case CUDA_R_8F_E4M3: return "e4m3";
    case CUDA_R_8F_E5M2: return "e5m2";
    default:             return "?";
    }
}

void lt_prefix(const Lt *lt, char text[ALGORITHM_KEY])
{
    snprintf(text, ALGORITHM_KEY, "cublaslt %zu %.64s ", lt_version(lt), lt->gpu);
}

/* The key as text, with the library's version and the GPU, for the file of known algorithms. */
static void key_text(const Lt *lt, const Key *k, char text[ALGORITHM_KEY])
{
    char prefix[ALGORITHM_KEY];
    lt_prefix(lt, prefix);
    int n = snprintf(text, ALGORITHM_KEY, "%s%lldx%lldx%lld %s%s %s%s %s%s ld %lld %lld "
                     "%lld %lld align %d %d %d %d %d epilogue %d%s workspace %zu", prefix,
                     (long long)k->m, (long long)k->n, (long long)k->k, type_name(k->type_a),
                     k->ta ? "^T" : "", type_name(k->type_b), k->tb ? "^T" : "", k->acc ? "+= " : "= ",
                     type_name(k->type_c), (long long)k->lda, (long long)k->ldb, (long long)k->ldc,
                     (long long)k->ld_aux, k->align_a, k->align_b, k->align_c, k->align_vector, k->align_aux,
                     k->epilogue, k->fast ? " fast" : "", lt->bytes);
    if (k->mode_a || k->mode_b)
        n += snprintf(text + n, n < ALGORITHM_KEY ? (size_t)(ALGORITHM_KEY - n) : 0, " scales %d %d",
                      k->mode_a, k->mode_b);
    BUG_ON(n >= ALGORITHM_KEY);
}

/* ---- plans ---- */

#define SET(lt, desc, which, value) \
    LT_OK(lt, cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_##which, &(value), sizeof(value)))

/* Sets what may change of a descriptor between two calls of one plan. */
static void set_pointers(Lt *lt, Plan *p, const LtProduct *q)
{
    if (q->vector)
        SET(lt, p->desc, BIAS_POINTER, q->vector);
    if (q->aux.p)
        SET(lt, p->desc, EPILOGUE_AUX_POINTER, q->aux.p);
    if (q->scale_b)
        SET(lt, p->desc, A_SCALE_POINTER, q->scale_b);
    if (q->scale_a)
        SET(lt, p->desc, B_SCALE_POINTER, q->scale_a);
}

/* Describes a row-major matrix to cuBLASLt as the column-major transpose. */
static cublasLtMatrixLayout_t layout(Lt *lt, LtMat m)
{
    cublasLtMatrixLayout_t l;
    LT_OK(lt, cublasLtMatrixLayoutCreate(&l, m.type, (uint64_t)m.cols, (uint64_t)m.rows, m.ld));
    return l;
}

static void describe(Lt *lt, Plan *p, const LtProduct *q)
{
    int32_t ta = q->tb ? CUBLAS_OP_T : CUBLAS_OP_N, tb = q->ta ? CUBLAS_OP_T : CUBLAS_OP_N;
    uint32_t epilogue = q->epilogue;
    int8_t fast = (int8_t)q->fast;
    LT_OK(lt, cublasLtMatmulDescCreate(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    SET(lt, p->desc, TRANSA, ta);
    SET(lt, p->desc, TRANSB, tb);
    SET(lt, p->desc, EPILOGUE, epilogue);
    if (fast)
        SET(lt, p->desc, FAST_ACCUM, fast);
    if (q->mode_a || q->mode_b) {
        SET(lt, p->desc, A_SCALE_MODE, q->mode_b);
        SET(lt, p->desc, B_SCALE_MODE, q->mode_a);
    }
    if (q->aux.p)
        SET(lt, p->desc, EPILOGUE_AUX_LD, q->aux.ld);
    set_pointers(lt, p, q);
    p->a = layout(lt, q->b);
    p->b = layout(lt, q->a);
    p->c = layout(lt, q->c);
}

/* Asks for the library's candidates, best expected first; returns their number. */
static int candidates(Lt *lt, const Plan *p, int most, cublasLtMatmulHeuristicResult_t *found)
{
    cublasLtMatmulPreference_t pref;
    uint64_t bytes = lt->bytes;
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    uint32_t align[] = {p->key.align_b, p->key.align_a, p->key.align_c};
    int n = 0, good = 0;
    LT_OK(lt, cublasLtMatmulPreferenceCreate(&pref));
#define PREFER(which, v)                                                                                     \
    LT_OK(lt, cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_##which, &(v), sizeof(v)))
    PREFER(MAX_WORKSPACE_BYTES, bytes);
    PREFER(REDUCTION_SCHEME_MASK, schemes);
    PREFER(MIN_ALIGNMENT_A_BYTES, align[0]);
    PREFER(MIN_ALIGNMENT_B_BYTES, align[1]);
    PREFER(MIN_ALIGNMENT_C_BYTES, align[2]);
    PREFER(MIN_ALIGNMENT_D_BYTES, align[2]);
#undef PREFER
    cublasStatus_t s = lt->api->cublasLtMatmulAlgoGetHeuristic(lt->handle, p->desc, p->a, p->b, p->c, p->c,
                                                               pref, most, found, &n);
    LT_OK(lt, cublasLtMatmulPreferenceDestroy(pref));
    for (int i = 0; s == CUBLAS_STATUS_SUCCESS && i < n; i++)
        if (found[i].state == CUBLAS_STATUS_SUCCESS && found[i].workspaceSize <= lt->bytes)
            found[good++] = found[i];
    return good;
}

static cublasStatus_t multiply(Lt *lt, const Plan *p, const LtProduct *q)
{
    static const float one = 1, zero = 0;
    return lt->api->cublasLtMatmul(lt->handle, p->desc, &one, q->b.p, p->a, q->a.p, p->b,
                                   q->acc ? &one : &zero, q->c.p, p->c, q->c.p, p->c, &p->algo, lt->workspace,
                                   lt->bytes, lt->stream);
}

/* The product over the operands of the next set. */
static LtProduct next_set(Lt *lt, const LtProduct *q)
{
    LtProduct next = *q;
    void **at[] = {&next.a.p, &next.b.p, &next.c.p, &next.vector, &next.aux.p, (void **)&next.scale_a,
                   (void **)&next.scale_b};
    if (!lt->sets.n)
        return next;
    size_t by = (size_t)(lt->sets.turn++ % lt->sets.n) * lt->sets.stride;
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        char *p = *at[i];
        if (p >= lt->sets.base && p < lt->sets.base + lt->sets.stride)
            *at[i] = p + by;
    }
    return next;
}

/* Returns the microseconds of one call, or -1 if it cannot run. */
static double time_of(Lt *lt, Plan *p, const LtProduct *q)
{
    float ms;
    int good = 1;
    for (int i = 0; i < WARM + TIMED && good; i++) {
        LtProduct next = next_set(lt, q);
        if (i == WARM)
            CUDA_OK(cudaEventRecord(lt->start, lt->stream));
        set_pointers(lt, p, &next);
        good = multiply(lt, p, &next) == CUBLAS_STATUS_SUCCESS;
    }
    set_pointers(lt, p, q);            /* the descriptor has the last set's bias and input of GELU */
    if (!good)
        return -1;
    CUDA_OK(cudaEventRecord(lt->end, lt->stream));
    CUDA_OK(cudaEventSynchronize(lt->end));
    CUDA_OK(cudaEventElapsedTime(&ms, lt->start, lt->end));
    return 1e3 * ms / TIMED;
}

static int tune(Lt *lt, Plan *p, const LtProduct *q, const char *text)
{
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    Algorithm best = {.us = -1};
    int n = candidates(lt, p, lt->most, found);
    for (int i = 0; i < n; i++) {
        p->algo = found[i].algo;
        double us = time_of(lt, p, q);
        if (us >= 0 && (best.us < 0 || us < best.us)) {
            best.us = us;
            memcpy(best.words, &found[i].algo, sizeof best.words);
        }
    }
    if (best.us < 0)
        return 0;
    memcpy(&p->algo, best.words, sizeof best.words);
    p->us = best.us;
    snprintf(best.key, sizeof best.key, "%s", text);
    algorithms_add(lt->known, &best);
    return 1;
}

/* Takes a known algorithm, if the library confirms that it can do this product. Returns whether it
 * did. */
static int recall(Lt *lt, Plan *p, const char *text)
{
    _Static_assert(sizeof(cublasLtMatmulAlgo_t) == ALGORITHM_WORDS * 8, "an algorithm's words");
    cublasLtMatmulHeuristicResult_t r = {0};
    const Algorithm *known = lt->known ? algorithms_find(lt->known, text) : NULL;
    if (!known)
        return 0;
    memcpy(&p->algo, known->words, sizeof known->words);
    cublasStatus_t s =
        lt->api->cublasLtMatmulAlgoCheck(lt->handle, p->desc, p->a, p->b, p->c, p->c, &p->algo, &r);
    if (s == CUBLAS_STATUS_SUCCESS && r.workspaceSize <= lt->bytes) {
        p->us = known->us;
        return 1;
    }
    if (!lt->warned++)
        warn("cuBLASLt cannot use a kept algorithm (%s); it takes the one that it expects to be fastest",
             text);
    return 0;
}

static int choose(Lt *lt, Plan *p, const LtProduct *q)
{
    char text[ALGORITHM_KEY];
    cublasLtMatmulHeuristicResult_t first;
    key_text(lt, &p->key, text);
    if (recall(lt, p, text))
        return 1;
    if (lt->known && lt->most > 1)
        return tune(lt, p, q, text);
    if (!candidates(lt, p, 1, &first))
        return 0;
    p->algo = first.algo;
    return 1;
}

static Plan *plan_of(Lt *lt, const LtProduct *q)
{
    Key key = key_of(q);
    Plan *set = lt->plan[hash64(&key, sizeof key, HASH_SEED) % SETS], *p = set;
    lt->calls++;
    for (int i = 0; i < WAYS; i++) {
        if (set[i].used && !memcmp(&set[i].key, &key, sizeof key)) {
            set[i].used = lt->calls;
            set_pointers(lt, &set[i], q);
            return &set[i];
        }
        if (set[i].used < p->used)
            p = &set[i];
    }
    plan_close(lt, p);
    *p = (Plan){.key = key, .used = lt->calls, .us = -1};
    describe(lt, p, q);
    p->has = choose(lt, p, q);
    return p;
}

int lt_has(Lt *lt, const LtProduct *q) { return plan_of(lt, q)->has; }
double lt_us(Lt *lt, const LtProduct *q) { return plan_of(lt, q)->us; }

void lt_multiply(Lt *lt, const LtProduct *q)
{
    Plan *p = plan_of(lt, q);
    if (!p->has) {
        char text[ALGORITHM_KEY];
        key_text(lt, &p->key, text);
        die(EXIT_RESOURCE, "cublaslt", "no algorithm for a product: %s; change: another release of the CUDA "
            "libraries, or other sizes (multiples of 16 always have one)", text);
    }
    cublasStatus_t e = multiply(lt, p, q);
    if (e != CUBLAS_STATUS_SUCCESS) {
        char text[ALGORITHM_KEY];
        key_text(lt, &p->key, text);
        die(EXIT_RESOURCE, "cublaslt", "cublasLtMatmul: %s: %s; change: another release of the CUDA "
            "libraries, or see what nvidia-smi and dmesg say of the GPU", lt->api->cublasLtGetStatusString(e),
            text);
    }
}
