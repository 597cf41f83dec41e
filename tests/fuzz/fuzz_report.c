/* fuzz_report -- the files of a run as the report and a resumed run read them
 *
 *   byte 0     iteration from which the run is resumed; 0: the report is made
 *   the rest   texts up to a NUL: run.json, metrics.jsonl, samples.jsonl, trace.json, config.yaml,
 *              plan.json */
#include "log.c"
#include "report.c"
#include "fuzz.h"

static const char *const names[] = {"run.json", "metrics.jsonl", "samples.jsonl", "trace.json",
                                    "config.yaml", "plan.json"};
enum { NAMES = sizeof names / sizeof *names };

/* Replaces what a resumed run would write. */
int __wrap_file_replace(int dir, const char *name, const void *p, int64_t n, char why[WHY]);
int __wrap_file_replace(int dir, const char *name, const void *p, int64_t n, char why[WHY])
{
    (void)dir, (void)name, (void)p, (void)n, (void)why;
    return 1;
}

static void resume(int64_t iteration)
{
    Log l = {.run_dir = (char *)(uintptr_t) "x", .dir = -1, .interval = 1};
    Config c = {.num_layers = 2, .hidden_size = 8, .num_attention_heads = 2, .seq_length = 4};
    LogStart s = {.resume_iteration = iteration, .command = "x", .build = "y", .id = "z"};
    char why[WHY];
    c.batch_step = &(BatchStep){0, 4};
    c.batch_steps = 1;
    continue_lines(&l, &s);
    about_open(&l.about, &c, &s, 0, 1);
    about_memory(&l.about, "weights", 1, 2);
    about_end(&l.about, "a reason");
    about_save(&l.about, 0, why);
    about_close(&l.about);
}

static void run(const uint8_t *p, size_t n)
{
    size_t size;
    int iteration = (int)fuzz_take(&p, &n, 1);
    for (int i = 0; i < NAMES; i++) {
        char *text = fuzz_take_text(&p, &n, &size);
        fuzz_file(names[i], text, size);
    }
    if (iteration) {
        resume(iteration);
        return;
    }
    Report r;
    report_read(&r, "x");
    put_page(fuzz_nowhere(), &r);
    report_free(&r);
}

static void seed(int iteration, const char *const text[NAMES])
{
    char *p = NULL;
    size_t n;
    FILE *f = xmemstream(&p, &n);
    fputc(iteration, f);
    for (int i = 0; i < NAMES; i++)
        fprintf(f, "%s%c", text[i], 0);
    fclose(f);
    fuzz_seed(p, n);
    free(p);
}

#define STEP(i, more)                                                                                        \
    "{\"iteration\":" #i ",\"consumed_samples\":8,\"lm_loss\":5.5,\"grad_norm\":1,\"elapsed_ms\":20,"        \
    "\"learning_rate\":1e-3,\"data_ms\":1,\"forward_ms\":5,\"tokens_per_second\":900" more "}\n"

static void seeds(void)
{
    static const char *const text[] = {
        "{\"id\":\"a\",\"total_iterations\":10,\"parameters\":123456,\"devices\":2,\"flops_per_token\":1e6,"
        "\"machine\":"
        "{\"host\":\"h\",\"cpu\":\"c\",\"cores\":2,\"memory_bytes\":8e9},\"facts\":{\"model\":\"m\","
        "\"corpus\":\"x\"},"
        "\"memory\":{\"weights\":{\"planned\":100,\"used\":90}},\"sessions\":[{\"started\":1.7e9,\"from\":0,"
        "\"command\":"
        "\"train x\",\"ended\":1.7e9,\"why\":\"done\"},{\"started\":1.7e9,\"from\":2}]}",
        STEP(1, "") STEP(
            2,
            ",\"moe_load_max_over_mean\":1.5,\"moe\":{\"load_max_over_mean\":[1.5,1.2],\"load\":[[1,2],"
            "[3,4]]}") "{\"iteration\":2,\"valid_loss\":4.5,\"valid_ppl\":90}\n" STEP(3,
                                                                                      ",\"mfu\":null") "{\"it"
                                                                                                       "er",
        "{\"iteration\":2,\"prompt\":\"a\",\"text\":\"b <c>\"}\n",
        "{\"traceEvents\":[{\"name\":\"F0.0\",\"ph\":\"X\",\"ts\":1,\"dur\":5,\"pid\":0,\"tid\":0,\"args\":{"
        "\"iteration\":2}},"
        "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":0,\"tid\":0,\"args\":{\"name\":\"rank 0\"}}]}",
        "model:\n  num_layers: 2\n",
        "{\"iteration\":2,\"pp_rank\":0,\"step_s\":0.5,\"losses_s\":{\"peak\":0.5,\"below_peak\":0}}"};
    seed(0, text);
    seed(2, text);
}

#define X(field, ...) "\"" #field "\":",
static const char *const words[] = {METRICS(X) "\"iteration\":",
                                    "\"moe\":{",
                                    "\"sessions\":[",
                                    "\"traceEvents\":[",
                                    "\"facts\":{",
                                    "\"memory\":{",
                                    "\"valid_loss\":",
                                    "\"text\":",
                                    "null",
                                    "1e308",
                                    "-1e308",
                                    "true",
                                    "[]",
                                    "{}",
                                    "<",
                                    "\n",
                                    NULL};
#undef X

const FuzzTarget fuzz_report = {"report", run, seeds, NULL, {EXIT_RESOURCE}, words};
