/* check_lt -- the calls of kernels/cuda/lt.c against the real cuBLASLt, which needs no GPU for them
 *
 * Every function that the project loads exists, NCCL's too, and the library accepts every attribute of a
 * product and of a preference in the size that is passed. The emulation would repeat a wrong name or size. */
#include "lt.c"
#include "test.h"

_Noreturn void cuda_failed(cudaError_t e, const char *call, const char *file, int line)
{
    die_at(file, line, EXIT_BUG, "cuda", "%s: %d, and nothing here calls the runtime", call, (int)e);
}

static LtMat of(int64_t rows, int64_t cols, cudaDataType type)
{
    return (LtMat){(void *)4096, rows, cols, cols, type};
}

/* Makes descriptor and layouts of a product, as the first call of a new product does. */
static void say(Lt *lt, const LtProduct *q)
{
    Plan p = {.key = key_of(q), .used = 1};
    describe(lt, &p, q);
    plan_close(lt, &p);
    CHECK(!p.used, "kept");
}

int main(void)
{
    static const float scale = 1;
    Lt lt = {.api = lt_api(), .gpu = "none", .bytes = 1 << 20};
    LtProduct q = {
        .c = of(32, 64, CUDA_R_16BF), .a = of(32, 48, CUDA_R_16BF), .b = of(64, 48, CUDA_R_16BF), .tb = 1};
    const cublasLtEpilogue_t epilogues[] = {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS,
                                            CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
                                            CUBLASLT_EPILOGUE_DGELU, CUBLASLT_EPILOGUE_BGRADB};
    for (size_t i = 0; i < sizeof epilogues / sizeof *epilogues; i++) {
        q.epilogue = epilogues[i];
        q.vector = i ? (void *)8192 : NULL;
        q.aux = q.epilogue & 128 ? of(32, 64, CUDA_R_16BF) : (LtMat){0};
        say(&lt, &q);
    }
    q = (LtProduct){.c = of(32, 64, CUDA_R_32F), .a = of(32, 48, CUDA_R_8F_E5M2),
                    .b = of(64, 48, CUDA_R_8F_E4M3), .tb = 1, .acc = 1, .epilogue = CUBLASLT_EPILOGUE_DEFAULT,
                    .scale_a = &scale, .scale_b = &scale, .fast = 1};
    say(&lt, &q);
    /* without a handle the library accepts the preferences and finds no algorithm */
    Plan p = {.key = key_of(&q), .used = 1};
    cublasLtMatmulHeuristicResult_t found;
    describe(&lt, &p, &q);
    CHECK(candidates(&lt, &p, 1, &found) == 0, "candidates of no GPU");
    plan_close(&lt, &p);
    int version = 0;
    CHECK(nccl_api()->ncclGetVersion(&version) == ncclSuccess && version >= 22600, "NCCL %d", version);
    printf("cuBLASLt %zu, NCCL %d\n", lt.api->cublasLtGetVersion(), version);
    return test_end();
}
