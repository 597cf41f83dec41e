/* test_room -- slices of logits: how many rows a device's memory decides for, that `train plan` and a run
 * decide alike, and that loss and gradients do not depend on them: mpirun -n 2 */
#include "files.h"
#include "job.h"
#include "plan_times.h"
#include "run.h"
#include "test.h"
#include "tiny_feed.h"
#include <math.h>

/* ---- the choice ---- */

#define SHAPE                                                                                                \
    "model: {num_layers: 4, hidden_size: 1024, num_attention_heads: 8, seq_length: 8192, vocab_size: "       \
    "152064, hidden_dropout: 0, attention_dropout: 0, untie_embeddings_and_output_weights: true}\n"          \
    "train: {micro_batch_size: 4, global_batch_size: 8, train_iters: 2}\n"                                   \
    "optimizer: {lr: 0.01}\n"                                                                                \
    "data: {tokenizer_type: none, data_path: none}\n"                                                        \
    "precision: {params_dtype: bf16, device: cuda}\n"
enum { ALL = 4 * 8192, ROW = 152064 * 4 };     /* rows of a microbatch; bytes of a row of logits */

static const Config *shape(const char *file, int world, const char *more)
{
    char copy[300], *args[8], *at = copy;
    int n = 0;
    snprintf(copy, sizeof copy, "%s", more);
    for (char *a; (a = strsep(&at, " "));)
        if (*a)
            args[n++] = a;
    return config_load(file, n, args, world, USE_MODEL);
}

static Memory planned(const Config *c, int64_t rows, int recast)
{
    Run r;
    run_plan_over(&r, c, RUN_TRAIN, 0, 0, &(Rehearsal){.logits_rows = rows, .fp8_recast = recast});
    CHECK(!rows || r.plan.logits_rows == rows, "%ld rows, not %ld", r.plan.logits_rows, rows);
    Memory m = r.plan.memory;
    run_plan_close(&r);
    return m;
}

static int64_t need(const Config *c, int64_t rows, int recast)
{
    Memory m = planned(c, rows, recast);
    return m.total + m.reserve;
}

/* What a device of `bytes` decides for. */
static int64_t chosen(const Config *c, int64_t bytes, int *recast)
{
    RunRoom f = {.cfg = c, .use = RUN_TRAIN, .bytes = bytes};
    int64_t rows = run_slice(&f);
    f.over.logits_rows = rows;
    *recast = run_recast(&f);
    return rows;
}

static void choices(const char *file)
{
    int recast;
    const Config *c = shape(file, 1, "");
    int64_t largest = run_logits_rows(c, 1, 0), cached = run_logits_rows(c, 0, 0);
    CHECK(largest % 128 == 0 && largest * ROW <= (int64_t)4 << 30 && largest > 6500, "%ld rows of 4 GiB",
          largest);
    CHECK(cached == 220, "%ld rows on a CPU", cached);
    CHECK(planned(c, 0, 0).total == planned(c, largest, 0).total, "the plan without a machine");
    int64_t most = need(c, largest, 0), before = most + 1, rows = largest;
    CHECK(chosen(c, most, &recast) == largest && !recast, "the largest slice fits exactly");
    for (int64_t less; rows > 2048; rows = less) {
        less = chosen(c, need(c, rows, 0) - 1, &recast);
        CHECK(less < rows && less >= 2048 && less % 128 == 0 && 2 * less <= rows + 2560, "%ld after %ld",
              less, rows);
        CHECK(need(c, less, 0) < before, "%ld rows need %ld bytes, more rows %ld", less, need(c, less, 0),
              before);
        before = need(c, less, 0);
        if (less >= rows)
            break;
    }
    CHECK(rows == 2048 && chosen(c, 1, &recast) == 2048, "never fewer than 2,048: %ld", rows);
    /* slices give way before copies of FP8 weights do */
    const Config *fp8 = shape(file, 1, "fp8=hybrid");
    CHECK(chosen(fp8, need(fp8, 2048, 0), &recast) == 2048 && !recast, "copies of all layers: all but %d",
          recast);
    CHECK(chosen(fp8, need(fp8, 2048, 0) - 1, &recast) == 2048 && recast == 1, "all but one, not %d", recast);
    /* the vocabulary's part of a tensor rank; rows that ranks share */
    int64_t half = run_logits_rows(shape(file, 2, "tensor_model_parallel_size=2"), 1, 0);
    CHECK(half > 1.6 * (double)largest && half * ROW / 2 <= (int64_t)4 << 30, "%ld rows of half of it", half);
    const Config *three =
        shape(file, 3, "tensor_model_parallel_size=3 num_attention_heads=6 hidden_size=768 sequence_parallel="
                       "true ffn_hidden_size=768 seq_length=8448");
    CHECK(run_logits_rows(three, 1, 0) % 384 == 0, "%ld rows", run_logits_rows(three, 1, 0));
    CHECK(run_logits_rows(shape(file, 1, "seq_length=100 micro_batch_size=3 global_batch_size=3"), 1, 0) ==
              300, "all rows");
    CHECK(run_logits_rows(shape(file, 1, "logits_slice_rows=77"), 1, 500) == 77 &&
              run_logits_rows(shape(file, 1, "logits_slice_rows=77"), 0, 0) == 77, "as the key says");
    const Config *bf16 = shape(file, 1, "logits_dtype=bf16");
    CHECK(run_logits_rows(bf16, 1, 0) > 1.6 * (double)largest && run_logits_rows(bf16, 0, 0) == 437,
          "%ld, %ld rows in BF16", run_logits_rows(bf16, 1, 0), run_logits_rows(bf16, 0, 0));
    CHECK(need(shape(file, 1, "logits_slice_rows=512"), 0, 0) < need(c, 2048, 0), "fewer rows than 2,048");
}

/* More slices cost more on a planned GPU: each reads and writes the weight's gradient. */
static void times(const char *file)
{
    const Machine *m = machine_load("configs/machines/h200.yaml");
    double before = 0;
    static const char *const rows[] = {"logits_slice_rows=0", "logits_slice_rows=2048",
                                       "logits_slice_rows=512", "logits_slice_rows=220"};
    for (int i = 0; i < 4; i++) {
        Prediction p;
        predict(&p, shape(file, 1, rows[i]), m);
        CHECK(p.step > before, "%s: %g s, the larger slice %g", rows[i], p.step, before);
        before = p.step;
        prediction_close(&p);
    }
}

/* ---- the numbers ---- */

#define TINY                                                                                                 \
    "model: {num_layers: 2, hidden_size: 24, num_attention_heads: 2, seq_length: 12, vocab_size: 61, "       \
    "hidden_dropout: 0, attention_dropout: 0}\n"                                                             \
    "train: {micro_batch_size: 2, global_batch_size: 4, train_iters: 2}\n"                                   \
    "optimizer: {lr: 0.01}\n"                                                                                \
    "data: {tokenizer_type: none, data_path: none}\n"                                                        \
    "precision: {params_dtype: fp64, threads: 1}\n"                                                          \
    "checkpoint: {save: nowhere}\n"

/* The gradients of a step in F64, on the heap, of this rank.
 *   n, loss  out  how many; their loss */
static double *gradients(const char *file, const char *more, int64_t *n, double *loss)
{
    Run r;
    run_open(&r, shape(file, 0, more), RUN_GRADIENT, 0, NULL);
    r.step.feed = feed;
    run_gradients(&r);
    *n = r.params.data.elems;
    *loss = r.step.verdict.loss;
    double *x = xcalloc((size_t)*n, sizeof *x);
    r.dev.get(&r.dev, x, r.params.data.grad.p, (size_t)*n * dtype_size(r.params.real));
    for (int64_t i = *n - 1; i >= 0 && r.params.real == F32; i--)
        x[i] = ((const float *)x)[i];
    run_close(&r);
    return x;
}

static void numbers(const char *file)
{
    static const char *const rows[] = {"1", "2", "5", "10", "23"};
    static const char *const layout[] = {"tensor_model_parallel_size=2",
                                         "tensor_model_parallel_size=2 sequence_parallel=true",
                                         "untie_embeddings_and_output_weights=true"};
    for (int l = 0; l < 3; l++) {
        double loss, other;
        int64_t n, m;
        double *whole = gradients(file, layout[l], &n, &loss), largest = 0;
        for (int64_t i = 0; i < n; i++)
            largest = fmax(largest, fabs(whole[i]));
        CHECK(largest > 1e-4 && isfinite(loss) && loss > 1, "a gradient: %g, loss %g", largest, loss);
        for (int k = 0; k < 5; k++) {
            if (l == 1 && atoi(rows[k]) % 2)
                continue;
            char more[160];
            snprintf(more, sizeof more, "%s logits_slice_rows=%s", layout[l], rows[k]);
            double *cut = gradients(file, more, &m, &other), apart = 0;
            for (int64_t i = 0; i < n; i++)
                apart = worse(apart, fabs(cut[i] - whole[i]));
            CHECK(m == n && other == loss, "%s: loss %.17g, of one slice %.17g", more, other, loss);
            CHECK(apart <= 1e-11 * largest, "%s: %g apart", more, apart / largest);
            free(cut);
        }
        free(whole);
    }
}

/* BF16 logits beside F32 ones, with BF16 weights: another loss and other gradients, as BF16 rounds. */
static void narrow(const char *file)
{
    static const char *const layout[] = {"tensor_model_parallel_size=2", "tensor_model_parallel_size=1",
                                         "tensor_model_parallel_size=2 sequence_parallel=true"};
    for (int l = 0; l < 3; l++) {
        char more[160];
        double loss, other, off = 0, size = 0;
        int64_t n, m;
        snprintf(more, sizeof more, "params_dtype=bf16 init_method_std=0.3 %s", layout[l]);
        double *wide = gradients(file, more, &n, &loss);
        snprintf(more, sizeof more, "params_dtype=bf16 init_method_std=0.3 logits_dtype=bf16 %s", layout[l]);
        double *half = gradients(file, more, &m, &other);
        for (int64_t i = 0; i < n; i++) {
            off += (half[i] - wide[i]) * (half[i] - wide[i]);
            size += wide[i] * wide[i];
        }
        CHECK(n == m && other != loss && fabs(other - loss) < 2e-3 * loss, "%s: loss %.9g, %.9g", more, other,
              loss);
        CHECK(off > 0 && sqrt(off / size) < 0.01, "%s: gradients are %g apart", more, sqrt(off / size));
        free(half);
        free(wide);
    }
}

int main(void)
{
    char *large, *tiny;
    int rank;
    job_launched(&rank);
    work_open();
    large = xasprintf("%s/large.%d.yaml", work, rank);
    tiny = xasprintf("%s/tiny.%d.yaml", work, rank);
    put_file(large, SHAPE, strlen(SHAPE));
    put_file(tiny, TINY, strlen(TINY));
    if (rank == 0) {
        choices(large);
        times(large);
    }
    numbers(tiny);
    narrow(tiny);
    free(large);
    free(tiny);
    return test_end();
}
