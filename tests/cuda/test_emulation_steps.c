/* test_emulation_steps -- times of steps on a GPU and of their parts, by the GPU's clock
 *
 * The emulation counts the time, and the linker gives that clock to the host too (Makefile). The queue of
 * the GPU holds a part of a step: the host sees the end of a step late, when most of the next one has run.
 * By the host's clock the first of six equal steps was almost two steps long and the last one 0.14. */
#include "run.h"
#include "test.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEPS = 6, TOKENS = 16 };
#define WORK_NS "1000000"
#define BUSY 7.0                       /* s that the host is busy between steps: many steps */

double emulation_clock(void);
void emulation_pass(double seconds);
double __wrap_now(void);
double __wrap_now(void) { return emulation_clock(); }

static const char keys[] =
    "model: {num_layers: 2, hidden_size: 16, num_attention_heads: 2, ffn_hidden_size: 32, vocab_size: 19, "
    "seq_length: 16, max_position_embeddings: 16}\n"
    "train: {train_iters: 100, micro_batch_size: 1, global_batch_size: 2}\n"
    "optimizer: {lr: 0.01, lr_decay_style: constant}\n"
    "data: {tokenizer_type: none}\n"
    "precision: {device: cuda}\n"
    "log: {trace_steps: [15]}\n"
    "checkpoint: {save: steps}\n";

static const Config *configure(void)
{
    char file[512];
    const char *work = getenv("WORK");
    snprintf(file, sizeof file, "%s/steps.%d.yaml", work ? work : "/tmp", (int)getpid());
    FILE *f = fopen(file, "w");
    if (!f || fputs(keys, f) < 0 || fclose(f))
        die(EXIT_RESOURCE, "write", "%s; change: WORK=FOLDER that can be written", file);
    const Config *c = config_load(file, 0, NULL, 1, USE_STEPS);
    remove(file);
    return c;
}

static const Batch *microbatch(void *run, int mb)
{
    static int32_t token[TOKENS], label[TOKENS], position[TOKENS];
    static float mask[TOKENS];
    static int64_t sample[1];
    static Batch batch;
    Run *r = run;
    for (int i = 0; i < TOKENS; i++) {
        token[i] = (i + mb) % 19;
        label[i] = (i + mb + 1) % 19;
        position[i] = i;
        mask[i] = 1;
    }
    batch = (Batch){1, TOKENS, context_own(&r->model.now.context), token, label, position, NULL, mask,
                    sample};
    return &batch;
}

/* Forward, backward and update are the parts of a step: the host only launches them. */
static double check_parts(const Metrics *m)
{
    double sum = m->forward_ms + m->backward_ms + m->optimizer_ms;
    CHECK(m->forward_ms > 0.1 * m->elapsed_ms && m->backward_ms > m->forward_ms && m->optimizer_ms > 0,
          "forward %g ms, backward %g, update %g", m->forward_ms, m->backward_ms, m->optimizer_ms);
    CHECK(sum > 0.8 * m->elapsed_ms && sum <= m->elapsed_ms * (1 + 1e-6), "parts of %g ms of a step of %g",
          sum, m->elapsed_ms);
    return sum;
}

/* Launches `steps` steps and collects them as the training loop does; the last `open` stay open. Adds each
 * step's time to ms[], and that of its parts to parts[]. Returns how many were collected. */
static double parts[2 * STEPS];
static int go(Run *r, int steps, int open, double *ms)
{
    int n = 0;
    for (int i = 0; i < steps; i++) {
        run_step(r, &(Metrics){0});
        for (int keep = i + 1 < steps ? 1 : open; run_open_steps(r) > keep; n++) {
            Metrics m;
            run_collect(r, &m);
            parts[n] = check_parts(&m);
            ms[n] = m.elapsed_ms;
        }
    }
    return n;
}

static int equal(double a, double b) { return fabs(a - b) < 1e-3 * b; }

/* All steps have the same work. They fill the time from the first launch to the end. */
static double steps_in_a_row(Run *r)
{
    double ms[STEPS], sum = 0;
    r->dev.sync(&r->dev);
    double start = now();
    int n = go(r, STEPS, 0, ms);
    r->dev.sync(&r->dev);
    double whole = (now() - start) * 1e3;
    CHECK(n == STEPS, "%d steps", n);
    for (int i = 0; i < n; i++) {
        CHECK(equal(ms[i], whole / STEPS), "step %d of %d took %g ms, all of them %g ms", i + 1, n, ms[i],
              whole);
        sum += ms[i];
    }
    CHECK(equal(sum, whole), "the steps took %g ms, their sum is %g ms", whole, sum);
    return whole / STEPS;
}

/* What the host does between steps is no step's time: neither with all of them collected, as for a save,
 * nor with one open. */
static void busy_host(Run *r, double step)
{
    for (int open = 0; open < STEPS_OPEN; open++) {
        double ms[2 * STEPS];
        int n = go(r, 2, open, ms);
        emulation_pass(BUSY);
        n += go(r, 2, 0, ms + n);
        CHECK(n == 4, "%d steps", n);
        for (int i = 0; i < n; i++)
            CHECK(equal(ms[i], step), "%d open while the host is busy: step %d took %g ms, not %g ms", open,
                  i + 1, ms[i], step);
    }
}

/* The timeline of a step has the GPU's times: its instructions one behind the other. */
static void recorded(Run *r)
{
    double ms[2], sum = 0, last = 0;
    const Trace *t = &r->trace;
    int64_t from = t->n;
    CHECK(go(r, 2, 0, ms) == 2 && t->n > from, "%lld events", (long long)(t->n - from));
    for (int64_t i = from; i < t->n; i++) {
        const TraceEvent *e = &t->ring[i % t->max];
        if (e->kind != I_F && e->kind != I_B && e->kind != I_S)
            continue;
        CHECK(e->start >= last, "an instruction starts at %g, before %g", e->start, last);
        sum += (e->end - e->start) * 1e3;
        last = e->end;
    }
    CHECK(fabs(sum / parts[0] - 1) < 0.1, "a timeline of %g ms of instructions of %g", sum, parts[0]);
}

int main(void)
{
    static Run r;
    setenv("EMULATION_CLOCK", WORK_NS, 1);
    setenv("EMULATION_QUEUE", "32", 0);
    run_open(&r, configure(), RUN_TRAIN, 0, NULL);
    r.step.feed = microbatch;
    double step = steps_in_a_row(&r);
    busy_host(&r, step);
    recorded(&r);
    run_close(&r);
    return test_end();
}
