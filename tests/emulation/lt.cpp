/* lt -- cuBLASLt on the host: refuses what the library documents as illegal, and computes the rest in a
 * fixed order.
 *
 * A product is a task on its stream. Its two algorithms give different bits, as the library's do: number
 * 0 adds along k in order, number 1 in two halves through the workspace, which is filled with NaN first.
 * An algorithm carries the problem that it was made for and the alignment that it was promised. Another
 * problem or a pointer that breaks the promise is an error here, where the library would compute
 * something else or trap.
 *
 * EMULATION_LT_REFUSE=1: no algorithm has an epilogue other than the bias, as the library has none for
 * some shapes. EMULATION_LT_VERSION: the version that cublasLtGetVersion returns. */
#include "emulation.h"
#include "lt_numbers.h"
#include <cublasLt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

struct cublasLtContext { int refuses; };
struct cublasLtMatrixLayoutOpaque_t { cudaDataType type; uint64_t rows, cols; int64_t ld; };
struct cublasLtMatmulPreferenceOpaque_t { uint64_t workspace; uint32_t schemes, align[4]; };
struct cublasLtMatmulDescOpaque_t {
    int32_t ta, tb;
    uint32_t epilogue;
    void *bias, *aux;
    int64_t aux_ld;
    const void *scale_a, *scale_b;
    int32_t aux_type, bias_type;
    int8_t fast;
    int32_t mode_a, mode_b;    /* cublasLtMatmulMatrixScale_t */
};
using Desc = cublasLtMatmulDescOpaque_t;
using Layout = cublasLtMatrixLayoutOpaque_t;

/* Prints why a call is refused and returns its status. */
static cublasStatus_t no(const char *why)
{
    fprintf(stderr, "emulated cuBLASLt: %s\n", why);
    return CUBLAS_STATUS_INVALID_VALUE;
}

size_t cublasLtGetVersion(void)
{
    const char *v = getenv("EMULATION_LT_VERSION");
    return v ? strtoul(v, NULL, 10) : 130100;
}

const char *cublasLtGetStatusString(cublasStatus_t s)
{
    return s == CUBLAS_STATUS_SUCCESS ? "success" : s == CUBLAS_STATUS_INVALID_VALUE ? "an invalid value"
           : s == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported" : "an error";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *h)
{
    const char *refuse = getenv("EMULATION_LT_REFUSE");
    *h = new cublasLtContext{refuse && *refuse == '1'};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t h) { delete h; return CUBLAS_STATUS_SUCCESS; }

/* ---- descriptors ---- */

template <typename T> static cublasStatus_t set(T *to, const void *value, size_t bytes)
{
    if (!value || bytes != sizeof *to)
        return no("an attribute of the wrong size");
    memcpy(to, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F)
        return no("the emulation computes and scales in F32 alone");
    *d = new Desc{};
    (*d)->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    (*d)->aux_type = (*d)->bias_type = -1;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) { delete d; return CUBLAS_STATUS_SUCCESS; }

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t a,
                                              const void *v, size_t n)
{
    switch (a) {
    case CUBLASLT_MATMUL_DESC_TRANSA:               return set(&d->ta, v, n);
    case CUBLASLT_MATMUL_DESC_TRANSB:               return set(&d->tb, v, n);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:             return set(&d->epilogue, v, n);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:         return set(&d->bias, v, n);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return set(&d->aux, v, n);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:      return set(&d->aux_ld, v, n);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:      return set(&d->scale_a, v, n);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:      return set(&d->scale_b, v, n);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE: return set(&d->aux_type, v, n);
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM:           return set(&d->fast, v, n);
    case CUBLASLT_MATMUL_DESC_A_SCALE_MODE:         return set(&d->mode_a, v, n);
    case CUBLASLT_MATMUL_DESC_B_SCALE_MODE:         return set(&d->mode_b, v, n);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:       return set(&d->bias_type, v, n);
    }
    return no("an unknown attribute of a product");
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType type, uint64_t rows,
                                          uint64_t cols, int64_t ld)
{
    *l = new Layout{type, rows, cols, ld};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    delete l;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p)
{
    *p = new cublasLtMatmulPreferenceOpaque_t{0, 7, {256, 256, 256, 256}};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    delete p;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t a, const void *v,
                                                    size_t n)
{
    if (a == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        return set(&p->workspace, v, n);
    if (a == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
        return set(&p->schemes, v, n);
    if (a < CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES || a > CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES)
        return no("an unknown preference");
    return set(&p->align[a - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], v, n);
}

/* ---- legal products ---- */

static int is_fp8(cudaDataType t) { return t == CUDA_R_8F_E4M3 || t == CUDA_R_8F_E5M2; }

/* 1: the library multiplies these types, by the table of its documentation. Types that the project does
 * not use are left out. */
static int types_fit(cudaDataType a, cudaDataType b, cudaDataType d)
{
    if (is_fp8(a) || is_fp8(b))
        return is_fp8(a) && is_fp8(b) && !(a == CUDA_R_8F_E5M2 && b == CUDA_R_8F_E5M2)
               && (d == CUDA_R_32F || d == CUDA_R_16BF || d == CUDA_R_16F);
    return a == b && (a == CUDA_R_32F || a == CUDA_R_16BF || a == CUDA_R_16F) && (d == a || d == CUDA_R_32F);
}

/* Type of the bias: the output's type; BF16 for FP8 products with an output in F32. */
static int32_t bias_type(const Layout *a, const Layout *d)
{
    return is_fp8(a->type) && d->type == CUDA_R_32F ? CUDA_R_16BF : d->type;
}

static const char *epilogue_wrong(const Desc *p, const Layout *a, const Layout *d)
{
    int bias = p->epilogue == CUBLASLT_EPILOGUE_BIAS || p->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    int gradient = p->epilogue == CUBLASLT_EPILOGUE_BGRADA || p->epilogue == CUBLASLT_EPILOGUE_BGRADB;
    int aux = (p->epilogue & 128) != 0;
    if (p->epilogue != CUBLASLT_EPILOGUE_DEFAULT && p->epilogue != CUBLASLT_EPILOGUE_GELU_AUX
        && p->epilogue != CUBLASLT_EPILOGUE_DGELU && !bias && !gradient)
        return "an unknown epilogue";
    if ((bias || gradient) && !p->bias)
        return "a bias epilogue without the vector";
    if ((bias || gradient) && p->bias_type != -1 && p->bias_type != bias_type(a, d))
        return "a bias of another type than the output";
    if (aux && (!p->aux || p->aux_ld % 8 || p->aux_ld < (int64_t)d->rows))
        return "GELU without its matrix, or with a leading dimension that is not a multiple of 8 and at "
               "least the rows";
    if (aux && p->aux_type != -1 && p->aux_type != d->type)
        return "GELU's matrix of another type than the output";
    if (is_fp8(a->type) && (aux || gradient))
        return "an epilogue that FP8 does not have";
    return NULL;
}

enum { ONE = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, VECTORS = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F,
       SQUARES = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F,
       BYTES = CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0 };

/* Scales of blocks, by the library's documentation: of 128 numbers on compute capability 9.0, of 32 from 10.0
 * on. */
static const char *blocks_wrong(const Desc *p, const Layout *a, const Layout *d)
{
    int major = 0;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    for (int32_t mode : {p->mode_a, p->mode_b}) {
        if (mode != ONE && mode != VECTORS && mode != SQUARES && mode != BYTES)
            return "an unknown kind of scales";
        if (mode == BYTES ? major < 10 : mode != ONE && major != 9)
            return "a kind of scales that this GPU does not have";
    }
    if (p->mode_a == ONE && p->mode_b == ONE)
        return NULL;
    if (p->mode_a == ONE || p->mode_b == ONE || (p->mode_a == SQUARES && p->mode_b == SQUARES)
        || (p->mode_a == BYTES) != (p->mode_b == BYTES))
        return "kinds of scales that do not go together";
    if (p->fast)
        return "fast accumulation with scales of blocks";
    if (p->mode_a == BYTES && a->rows % 32)
        return "scales of 32 numbers and a part of 32 to sum";
    if (p->mode_a != BYTES && (d->rows % 4 || d->cols % 4))
        return "scales of blocks and sizes that are no multiples of 4";
    if (!p->scale_a || !p->scale_b)
        return "scales of blocks that are missing";
    return NULL;
}

static const char *fp8_wrong(const Desc *p, const Layout *a, const Layout *b, const Layout *d)
{
    if (!is_fp8(a->type))
        return p->scale_a || p->scale_b || p->fast ? "scales or fast accumulation without FP8" : NULL;
    if (p->ta != CUBLAS_OP_T || p->tb != CUBLAS_OP_N)
        return "FP8 other than transposed times plain";
    if (a->rows % 16 || a->cols % 16 || a->ld % 16 || b->ld % 16
        || d->ld * (int64_t)type_bytes(d->type) % 16)
        return "FP8 of sizes that are no multiples of 16 bytes";
    if ((uintptr_t)p->scale_a % 16 || (uintptr_t)p->scale_b % 16)
        return "a scale that is not at a multiple of 16 bytes";
    return blocks_wrong(p, a, d);
}

/* Returns why descriptor and layouts are no legal product; NULL: they are one. */
static const char *wrong(const Desc *p, const Layout *a, const Layout *b, const Layout *c, const Layout *d)
{
    uint64_t m = p->ta ? a->cols : a->rows, k = p->ta ? a->rows : a->cols;
    uint64_t n = p->tb ? b->rows : b->cols, kb = p->tb ? b->cols : b->rows;
    if (!types_fit(a->type, b->type, d->type) || c->type != d->type)
        return "types that do not multiply";
    if (m != d->rows || n != d->cols || k != kb || c->rows != d->rows || c->cols != d->cols || c->ld != d->ld)
        return "shapes that do not fit";
    if (!m || !n || !k)
        return "an empty matrix";
    for (const Layout *l : {a, b, d})
        if (l->ld < (int64_t)l->rows)
            return "a leading dimension below the rows";
    const char *why = epilogue_wrong(p, a, d);
    return why ? why : fp8_wrong(p, a, b, d);
}

/* ---- algorithms ---- */

static uint64_t mix(uint64_t h, uint64_t v) { return (h ^ v) * 0x9e3779b97f4a7c15ull; }

static uint64_t problem(const Desc *p, const Layout *a, const Layout *b, const Layout *d)
{
    uint64_t h = cublasLtGetVersion();
    for (uint64_t v :
         {(uint64_t)p->ta, (uint64_t)p->tb, (uint64_t)p->epilogue, (uint64_t)p->aux_ld, (uint64_t)p->fast,
          (uint64_t)p->mode_a, (uint64_t)p->mode_b})
        h = mix(h, v);
    for (const Layout *l : {a, b, d})
        for (uint64_t v : {(uint64_t)l->type, l->rows, l->cols, (uint64_t)l->ld})
            h = mix(h, v);
    return h;
}

enum { ALGORITHM, PROBLEM, ALIGN_A, ALIGN_B, ALIGN_C, ALIGN_D, ALIGN_BIAS, ALIGN_AUX };

/* Alignment of a pointer in bytes, at most 16: the library's kernels ask for no more. */
static uint64_t alignment(const void *p)
{
    uint64_t a = (uintptr_t)p & (~(uintptr_t)p + 1);
    return !p || a > 16 ? 16 : a;
}

static size_t workspace_of(uint64_t algorithm, const Layout *d)
{
    return algorithm ? d->rows * d->cols * 4 : 0;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t p,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t pref, int requested,
                                              cublasLtMatmulHeuristicResult_t results[], int *returned)
{
    *returned = 0;
    if (requested < 1)
        return no("no algorithm asked for");
    if (wrong(p, a, b, c, d) || (h->refuses && p->epilogue > CUBLASLT_EPILOGUE_BIAS))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (is_fp8(a->type))
        for (uint32_t align : pref->align)
            if (align < 16)
                return CUBLAS_STATUS_NOT_SUPPORTED;
    for (uint64_t i = 0; i < 2 && *returned < requested; i++) {
        size_t room = workspace_of(i, d);
        if (room > pref->workspace || (i && !(pref->schemes & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)))
            continue;
        cublasLtMatmulHeuristicResult_t *r = &results[(*returned)++];
        *r = {};
        r->workspaceSize = room;
        r->wavesCount = 1;
        uint64_t data[8] = {i,
                            problem(p, a, b, d),
                            pref->align[0],
                            pref->align[1],
                            pref->align[2],
                            pref->align[3],
                            alignment(p->bias),
                            alignment(p->aux)};
        memcpy(r->algo.data, data, sizeof data);
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t h, cublasLtMatmulDesc_t p, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                       cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t *algo,
                                       cublasLtMatmulHeuristicResult_t *r)
{
    if (wrong(p, a, b, c, d) || algo->data[PROBLEM] != problem(p, a, b, d) || algo->data[ALGORITHM] > 1)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (h->refuses && p->epilogue > CUBLASLT_EPILOGUE_BIAS)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    r->state = CUBLAS_STATUS_SUCCESS;
    r->workspaceSize = workspace_of(algo->data[ALGORITHM], d);
    r->wavesCount = 1;
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- the product ---- */

typedef struct {
    Desc p;
    Layout a, b, d;
    const void *pa, *pb, *pc;
    void *pd, *workspace;
    size_t workspace_bytes;
    float alpha, beta;
    uint64_t algorithm;
} Product;

/* op(x) in F32: [k][lanes] with k_first, otherwise [lanes][k]. Lanes are rows or columns of the result. */
static std::vector<float> unpack(const void *p, const Layout *l, int lanes_are_cols, int k_first)
{
    uint64_t lanes = lanes_are_cols ? l->cols : l->rows, k = lanes_are_cols ? l->rows : l->cols;
    std::vector<float> x(lanes * k);
    for (uint64_t c = 0; c < l->cols; c++)
        for (uint64_t r = 0; r < l->rows; r++) {
            uint64_t i = lanes_are_cols ? c : r, j = lanes_are_cols ? r : c;
            x[k_first ? j * lanes + i : i * k + j] = type_get(p, (int64_t)c * l->ld + (int64_t)r, l->type);
        }
    return x;
}

/* Floats from one row of scales to the next, and number of rows: blocks of 128 along k are rows for
 * VECTORS, and columns, in fours, for SQUARES. */
static uint64_t scales_pitch(int32_t mode, uint64_t lanes, uint64_t k)
{
    return mode == VECTORS ? lanes : ((k + 127) / 128 + 3) / 4 * 4;
}
static size_t scales_bytes(int32_t mode, uint64_t lanes, uint64_t k)
{
    const uint64_t rows = mode == VECTORS ? (k + 127) / 128 : (lanes + 127) / 128;
    if (mode == BYTES)
        return rows * ((k + 127) / 128) * 512;
    return mode == ONE ? 4 : 4 * ((rows - 1) * scales_pitch(mode, lanes, k)
                                  + (mode == VECTORS ? lanes : (k + 127) / 128));
}

/* The scale of 32 numbers from k on of a lane, 2^(byte - 127). Tiles of 128 lanes x 4 scales lie row by row;
 * the scales of a lane are neighbours, lanes that are 32 apart come next, then the lanes. */
static float scale_byte(const void *scale, uint64_t lane, uint64_t k, uint64_t tiles)
{
    const uint64_t lane_in = lane % 128, at = (lane / 128 * tiles + k / 128) * 512;
    const int byte = ((const uint8_t *)scale)[at + lane_in % 32 * 16 + lane_in / 32 * 4 + k / 32 % 4];
    return byte == 255 ? NAN : ldexpf(1, byte - 127);
}

/* Multiplies x, as unpack has made it, by the scales of its blocks. Behind k the tensor cores multiply zeros
 * by the scales that a tile still has, so that these must be numbers. */
static void scale_blocks(std::vector<float> *x, const void *scales, int32_t mode, uint64_t lanes, uint64_t k,
                         int k_first)
{
    const uint64_t pitch = scales_pitch(mode, lanes, k), tiles = (k + 127) / 128;
    const float *scale = (const float *)scales;
    for (uint64_t i = 0; mode != ONE && i < lanes; i++) {
        for (uint64_t j = 0; j < k; j++)
            (*x)[k_first ? j * lanes + i : i * k + j] *=
                mode == BYTES     ? scale_byte(scales, i, j, tiles)
                : mode == VECTORS ? scale[j / 128 * pitch + i]
                                  : scale[i / 128 * pitch + j / 128];
        for (uint64_t j = k; mode == BYTES && j < tiles * 128; j += 32)
            (*x)[k_first ? i : i * k] += 0 * scale_byte(scales, i, j, tiles);
    }
}

/* sum [n][m] += a [k][m] b [n][k], added in the order of k in [k0, k1). */
static void add_products(float *sum, const std::vector<float> &a, const std::vector<float> &b, uint64_t m,
                         uint64_t n, uint64_t k, uint64_t k0, uint64_t k1)
{
    for (uint64_t j = 0; j < n; j++)
        for (uint64_t l = k0; l < k1; l++) {
            const float x = b[j * k + l], *at = &a[l * m];
            float *s = sum + j * m;
            for (uint64_t i = 0; i < m; i++)
                s[i] += at[i] * x;
        }
}

static float gelu(float x)
{
    return 0.5f * x * (1 + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}
static float gelu_slope(float x)
{
    float t = tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x));
    return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * 0.7978845608028654f * (1 + 3 * 0.044715f * x * x);
}

static void finish(const Product *q, const float *sum)
{
    const Desc *p = &q->p;
    int64_t m = (int64_t)q->d.rows, n = (int64_t)q->d.cols;
    int bias = p->epilogue == CUBLASLT_EPILOGUE_BIAS || p->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    const float *one_a = p->mode_a == ONE ? (const float *)p->scale_a : NULL;
    const float *one_b = p->mode_b == ONE ? (const float *)p->scale_b : NULL;
    float scale = q->alpha * (one_a ? *one_a : 1) * (one_b ? *one_b : 1);
    cudaDataType vector = (cudaDataType)bias_type(&q->a, &q->d);
    for (int64_t j = 0; j < n; j++)
        for (int64_t i = 0; i < m; i++) {
            float x = scale * sum[j * m + i];
            if (q->beta != 0)
                x += q->beta * type_get(q->pc, j * q->d.ld + i, q->d.type);
            if (bias)
                x += type_get(p->bias, i, vector);
            if (p->epilogue == CUBLASLT_EPILOGUE_GELU_AUX || p->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) {
                type_put(p->aux, j * p->aux_ld + i, q->d.type, x);
                x = gelu(x);
            }
            if (p->epilogue == CUBLASLT_EPILOGUE_DGELU)
                x *= gelu_slope(type_get(p->aux, j * p->aux_ld + i, q->d.type));
            type_put(q->pd, j * q->d.ld + i, q->d.type, x);
        }
}

/* Bias gradient: sums over k of the rows of op(a) or of the columns of op(b), which x holds. */
static void bias_gradient(const Product *q, const std::vector<float> &x, uint64_t lanes, uint64_t lane_step,
                          uint64_t k, uint64_t k_step)
{
    for (uint64_t i = 0; i < lanes; i++) {
        float s = 0;
        for (uint64_t l = 0; l < k; l++)
            s += x[i * lane_step + l * k_step];
        type_put(q->p.bias, (int64_t)i, (cudaDataType)bias_type(&q->a, &q->d), s);
    }
}

static const size_t WINDOW = 32 << 10;

/* Fills both ends of the workspace and a random part between them with 0xff. To fill all of it would
 * take most of a test's time. */
static void poison(void *workspace, size_t bytes)
{
    size_t part = bytes < WINDOW ? bytes : WINDOW;
    char *p = (char *)workspace;
    memset(p, 0xff, part);
    memset(p + bytes - part, 0xff, part);
    memset(p + emulation_random(bytes - part + 1), 0xff, part);
}

static void run(const Product *q)
{
    uint64_t m = q->d.rows, n = q->d.cols, k = q->p.ta ? q->a.rows : q->a.cols;
    std::vector<float> a = unpack(q->pa, &q->a, q->p.ta, 1), b = unpack(q->pb, &q->b, !q->p.tb, 0),
                       sum(m * n);
    scale_blocks(&a, q->p.scale_a, q->p.mode_a, m, k, 1);
    scale_blocks(&b, q->p.scale_b, q->p.mode_b, n, k, 0);
    poison(q->workspace, q->workspace_bytes);
    add_products(sum.data(), a, b, m, n, k, 0, q->algorithm ? k / 2 : k);
    if (q->algorithm) {
        float *part = (float *)q->workspace;
        memset(part, 0, m * n * sizeof *part);
        add_products(part, a, b, m, n, k, k / 2, k);
        for (uint64_t i = 0; i < m * n; i++)
            sum[i] += part[i];
        memset(part, 0xff, m * n * sizeof *part);
    }
    finish(q, sum.data());
    if (q->p.epilogue == CUBLASLT_EPILOGUE_BGRADA)
        bias_gradient(q, a, m, 1, k, m);
    if (q->p.epilogue == CUBLASLT_EPILOGUE_BGRADB)
        bias_gradient(q, b, n, k, k, 1);
}

static size_t extent(const Layout *l)
{
    return ((l->cols - 1) * (size_t)l->ld + l->rows) * type_bytes(l->type);
}
static int overlap(const void *p, size_t n, const void *q, size_t m)
{
    return n && m && (const char *)p < (const char *)q + m && (const char *)q < (const char *)p + n;
}

static const char *const operand[] = {"cublasLtMatmul: A",    "cublasLtMatmul: B",
                                      "cublasLtMatmul: C",    "cublasLtMatmul: D",
                                      "cublasLtMatmul: bias", "cublasLtMatmul: auxiliary matrix"};

/* Ends the process when an operand or the workspace is not in device memory, is less aligned than `algo`
 * was promised, or overlaps another in an illegal way. */
static void check_memory(const Product *q, const cublasLtMatmulAlgo_t *algo)
{
    const Desc *p = &q->p;
    const void *pointer[] = {q->pa, q->pb, q->pc, q->pd, p->bias, p->aux};
    size_t bytes[] = {extent(&q->a), extent(&q->b), q->beta != 0 ? extent(&q->d) : 0, extent(&q->d), 0, 0};
    if (p->epilogue & (4 | 256 | 512))
        bytes[4] = (p->epilogue == CUBLASLT_EPILOGUE_BGRADB ? q->d.cols : q->d.rows)
                   * type_bytes((cudaDataType)bias_type(&q->a, &q->d));
    if (p->epilogue & 128)
        bytes[5] = ((q->d.cols - 1) * (size_t)p->aux_ld + q->d.rows) * type_bytes(q->d.type);
    for (int i = 0; i < 6; i++) {
        emulation_check(pointer[i], bytes[i], operand[i]);
        if (bytes[i] && (uintptr_t)pointer[i] % algo->data[ALIGN_A + i])
            emulation_fail("%s is less aligned than its algorithm was promised", operand[i]);
        if (i != 2 && i != 3 && overlap(q->pd, bytes[3], pointer[i], bytes[i]))
            emulation_fail("%s lies in the output", operand[i]);
        if (overlap(q->workspace, q->workspace_bytes, pointer[i], bytes[i]))
            emulation_fail("%s lies in the workspace", operand[i]);
    }
    const uint64_t k = p->ta ? q->a.rows : q->a.cols;
    const size_t scales_a = p->scale_a ? scales_bytes(p->mode_a, q->d.rows, k) : 0;
    const size_t scales_b = p->scale_b ? scales_bytes(p->mode_b, q->d.cols, k) : 0;
    emulation_check(p->scale_a, scales_a, "cublasLtMatmul: scale of A");
    emulation_check(p->scale_b, scales_b, "cublasLtMatmul: scale of B");
    if (q->pc != q->pd && overlap(q->pd, bytes[3], q->pc, bytes[2]))
        emulation_fail("cublasLtMatmul: the output lies half over C");
    emulation_check(q->workspace, q->workspace_bytes, "cublasLtMatmul: workspace");
    if ((uintptr_t)q->workspace % 256)
        emulation_fail("cublasLtMatmul: the workspace is not at a multiple of 256 bytes");
    if (workspace_of(q->algorithm, &q->d) > q->workspace_bytes)
        emulation_fail("cublasLtMatmul: the workspace is too small");
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t p, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t la, const void *b, cublasLtMatrixLayout_t lb,
                              const void *beta, const void *c, cublasLtMatrixLayout_t lc, void *d,
                              cublasLtMatrixLayout_t ld, const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream)
{
    cublasLtMatmulHeuristicResult_t checked;
    const char *why = wrong(p, la, lb, lc, ld);
    if (why)
        return no(why);
    if (!algo || cublasLtMatmulAlgoCheck(h, p, la, lb, lc, ld, algo, &checked) != CUBLAS_STATUS_SUCCESS)
        return no("an algorithm that was made for another product");
    Product q = {*p,
                 *la,
                 *lb,
                 *ld,
                 a,
                 b,
                 c,
                 d,
                 workspace,
                 workspace_bytes,
                 *(const float *)alpha,
                 *(const float *)beta,
                 algo->data[ALGORITHM]};
    check_memory(&q, algo);
    emulation_enqueue(stream, "cublasLtMatmul", [q] { run(&q); });
    return CUBLAS_STATUS_SUCCESS;
}
