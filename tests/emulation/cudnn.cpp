/* cudnn -- cuDNN's attention on the host: the interface of sdpa.h, computed by definition in F64, one
 * task on the stream for each call. Refuses shapes that the library documents as not supported. The
 * backward reads the statistics that the forward wrote, dense [batch, heads, seq]. Calls fill the
 * workspace with NaN. A backward in any order starts the sums of dq at another key each time.
 *
 * EMULATION_CUDNN=absent: there is no library. =forward: it has no backward graphs. =greedy: a backward
 * asks for more workspace than it may have. =few: so does one of more than two samples. */
#include "emulation.h"
#include "lt_numbers.h"
#include "sdpa.h"
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

struct Sdpa { cudaStream_t stream; };
struct SdpaPlan { SdpaShape a; };

static int asked(const char *what)
{
    const char *e = getenv("EMULATION_CUDNN");
    return e && !strcmp(e, what);
}

int sdpa_built(void) { return 1; }
const char *sdpa_name(const Sdpa *) { return "emulated cuDNN"; }
void sdpa_close(Sdpa *s) { delete s; }
void sdpa_plan_close(SdpaPlan *p) { delete p; }

Sdpa *sdpa_open(cudaStream_t stream, SdpaWhy *why)
{
    if (!asked("absent"))
        return new Sdpa{stream};
    snprintf(why->text, sizeof why->text, "cannot open it: EMULATION_CUDNN");
    return NULL;
}

Sdpa *sdpa_open_absent(int, const char *, SdpaWhy *why) { return sdpa_open(NULL, why); }

static size_t rows_of(const SdpaShape *a) { return (size_t)(a->batch * a->seq * a->heads); }
size_t sdpa_plan_bytes(const SdpaPlan *p)
{
    return p->a.backward ? rows_of(&p->a) * (size_t)(p->a.dim + 1) * sizeof(float) : 0;
}

SdpaPlan *sdpa_plan(Sdpa *, const SdpaShape *shape, size_t bytes, SdpaWhy *why)
{
    SdpaPlan p = {*shape};
    const char *no = shape->dim % 8 || shape->dim > 256 ? "heads of 8 to 256, multiples of 8"
                     : shape->heads % shape->kv_heads ? "query heads that key heads do not divide"
                     : shape->backward && asked("forward") ? "backward: not supported" : NULL;
    int greedy = asked("greedy") || (asked("few") && shape->batch > 2);
    size_t need = sdpa_plan_bytes(&p) + (greedy && shape->backward ? bytes : 0);
    for (int i = 0; i <= (shape->backward ? SDPA_DV : SDPA_O); i++)
        if (shape->ld[i] * 2 % 16)
            no = "rows not at multiples of 16 bytes";
    if (no)
        snprintf(why->text, sizeof why->text, "%s", no);
    else if (need > bytes)
        snprintf(why->text, sizeof why->text, "it takes %zu bytes of workspace, and there are %zu", need,
                 bytes);
    else
        return new SdpaPlan(p);
    return NULL;
}

/* ---- numbers ---- */

struct Tensors {
    SdpaShape a;
    void *p[SDPA_MATS];
    float *statistics, *workspace;
    cudaDataType type;
    int64_t start;             /* keys behind the first one, at which the sums of dq start */
};

/* Index in matrix m of column c, token i, head h, sample b. */
static int64_t at(const Tensors *t, int m, int64_t b, int64_t i, int64_t h, int64_t c)
{
    return (b * t->a.seq + i) * t->a.ld[m] + h * t->a.dim + c;
}
static double get(const Tensors *t, int m, int64_t b, int64_t i, int64_t h, int64_t c)
{
    return type_get(t->p[m], at(t, m, b, i, h, c), t->type);
}
static double dot(const Tensors *t, int64_t b, int m1, int64_t i, int64_t h1, int m2, int64_t j, int64_t h2)
{
    double sum = 0;
    for (int64_t c = 0; c < t->a.dim; c++)
        sum += get(t, m1, b, i, h1, c) * get(t, m2, b, j, h2, c);
    return sum;
}
static int64_t first_key(const Tensors *t, int64_t i)
{
    return t->a.window && i >= t->a.window ? i - t->a.window + 1 : 0;
}

static void forward(const Tensors *t)
{
    const SdpaShape *a = &t->a;
    std::vector<double> p((size_t)a->seq), out((size_t)a->dim);
    for (int64_t row = 0; row < a->batch * a->heads * a->seq; row++) {
        int64_t i = row % a->seq, h = row / a->seq % a->heads, b = row / a->seq / a->heads;
        int64_t k = h / (a->heads / a->kv_heads), first = first_key(t, i);
        double top = -INFINITY, sum = 0;
        for (int64_t j = first; j <= i; j++)
            top = fmax(top, p[(size_t)j] = a->scale * dot(t, b, SDPA_Q, i, h, SDPA_K, j, k));
        for (int64_t j = first; j <= i; j++)
            sum += p[(size_t)j] = exp(p[(size_t)j] - top);
        for (int64_t c = 0; c < a->dim; c++) {
            double o = 0;
            for (int64_t j = first; j <= i; j++)
                o += p[(size_t)j] * get(t, SDPA_V, b, j, k, c);
            type_put(t->p[SDPA_O], at(t, SDPA_O, b, i, h, c), t->type, (float)(o / sum));
        }
        t->statistics[row] = (float)(top + log(sum));
    }
}

/* Rounds a sum to 15 bits, so that its order is seen in the 8 or 11 bits of a result. */
static float coarse(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x100) & ~0x1ffu;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* dq is summed in the workspace, as in the library's kernels. */
static void backward(const Tensors *t)
{
    const SdpaShape *a = &t->a;
    int64_t group = a->heads / a->kv_heads, keys = a->batch * a->kv_heads * a->seq, D = a->dim;
    std::vector<double> dk((size_t)(keys * D)), dv((size_t)(keys * D));
    float *dq = t->workspace, *delta = dq + rows_of(a) * (size_t)D;
    memset(dq, 0, rows_of(a) * (size_t)D * sizeof *dq);
    for (int64_t row = 0; row < a->batch * a->heads * a->seq; row++) {
        int64_t i = row % a->seq, h = row / a->seq % a->heads, b = row / a->seq / a->heads, k = h / group;
        delta[row] = (float)dot(t, b, SDPA_O, i, h, SDPA_DOUT, i, h);
        int64_t first = first_key(t, i), n = i - first + 1;
        for (int64_t add = 0; add < n; add++) {
            int64_t j = first + (t->start + add) % n;
            double p = exp(a->scale * dot(t, b, SDPA_Q, i, h, SDPA_K, j, k) - t->statistics[row]);
            double ds = p * (dot(t, b, SDPA_DOUT, i, h, SDPA_V, j, k) - delta[row]) * a->scale;
            size_t key = (size_t)(((b * a->kv_heads + k) * a->seq + j) * D);
            for (int64_t c = 0; c < D; c++) {
                float sum = dq[row * D + c] + (float)(ds * get(t, SDPA_K, b, j, k, c));
                dq[row * D + c] = a->any_order ? coarse(sum) : sum;
                dk[key + (size_t)c] += ds * get(t, SDPA_Q, b, i, h, c);
                dv[key + (size_t)c] += p * get(t, SDPA_DOUT, b, i, h, c);
            }
        }
        for (int64_t c = 0; c < D; c++)
            type_put(t->p[SDPA_DQ], at(t, SDPA_DQ, b, i, h, c), t->type, dq[row * D + c]);
    }
    for (int64_t x = 0; x < keys * D; x++) {
        int64_t c = x % D, j = x / D % a->seq, k = x / D / a->seq % a->kv_heads,
                b = x / D / a->seq / a->kv_heads;
        type_put(t->p[SDPA_DK], at(t, SDPA_DK, b, j, k, c), t->type, (float)dk[(size_t)x]);
        type_put(t->p[SDPA_DV], at(t, SDPA_DV, b, j, k, c), t->type, (float)dv[(size_t)x]);
    }
}

void sdpa_run(Sdpa *s, SdpaPlan *plan, void *const mat[SDPA_MATS], float *statistics, void *workspace)
{
    static int64_t turn;
    Tensors t = {plan->a, {}, statistics, (float *)workspace,
                 plan->a.type == BF16 ? CUDA_R_16BF : CUDA_R_16F, plan->a.any_order ? turn++ : 0};
    const SdpaShape *a = &t.a;
    for (int i = 0; i <= (a->backward ? SDPA_DV : SDPA_O); i++) {
        int heads = i == SDPA_K || i == SDPA_V || i == SDPA_DK || i == SDPA_DV ? a->kv_heads : a->heads;
        t.p[i] = mat[i];
        if ((uintptr_t)mat[i] % 16)
            emulation_fail("cuDNN: matrix %d is not at a multiple of 16 bytes", i);
        emulation_check(mat[i], (size_t)((a->batch * a->seq - 1) * a->ld[i] + heads * a->dim) * 2,
                        "cuDNN: a matrix");
    }
    emulation_check(statistics, rows_of(a) * sizeof(float), "cuDNN: statistics");
    emulation_check(workspace, sdpa_plan_bytes(plan), "cuDNN: workspace");
    size_t bytes = sdpa_plan_bytes(plan);
    emulation_enqueue(s->stream, "cuDNN attention", [t, bytes] {
        memset(t.workspace, 0xff, bytes);
        t.a.backward ? backward(&t) : forward(&t);
        memset(t.workspace, 0xff, bytes);
    });
}
