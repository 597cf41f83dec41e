/* fuzz_sweep -- sweep.jsonl of an earlier sweep, and the files of a launch: texts up to a NUL in this order:
 * sweep.jsonl, metrics.jsonl, the job's standard error */
#include "sweep_measure.c"
#include "sweep_visits.c"
#include "fuzz.h"

static void run(const uint8_t *p, size_t n)
{
    size_t size[3];
    SweepLayout layout[2] = {{.id = 0x1234}, {.id = 0xabcdef0123456789}};
    Sweep s = {.identity = 0x0123456789abcdef, .steps = 3, .timeout = 60, .layout = layout, .n = 2};
    char *sweep = fuzz_take_text(&p, &n, &size[0]), *metrics = fuzz_take_text(&p, &n, &size[1]),
         *errors = fuzz_take_text(&p, &n, &size[2]);
    Visit last = {.code = EXIT_CONFIG};
    Visits all = {0};
    fuzz_file("sweep.jsonl", sweep, size[0]);
    fuzz_file("metrics.jsonl", metrics, size[1]);
    fuzz_file("errors", errors, size[2]);
    visits_recall(&all, &s, -1, "sweep.jsonl");
    visits_settle(&s, &all, 1);
    visits_close(&all);
    read_run(&last, "run");
    free(last.step);
    read_reason(&s, &last, "errors");
    for (int i = 0; i < 2; i++)
        if (memchr(layout[i].why, 0, sizeof layout[i].why) == NULL)
            fuzz_found("a reason without an end");
}

#define LINE "{\"sweep\":\"0123456789abcdef\",\"id\":\"abcdef0123456789\",\"world\":4,\"steps\":3,"

static void seed(const char *a, const char *b, const char *c)
{
    char *p = xasprintf("%s%c%s%c%s", a, 1, b, 1, c);
    size_t n = strlen(p);
    for (size_t i = 0; i < n; i++)
        p[i] = p[i] == 1 ? 0 : p[i];
    fuzz_seed(p, n);
    free(p);
}

static void seeds(void)
{
    seed(LINE "\"predicted_ms\":1.5,\"layout\":[\"tp=2\"],\"steps_ms\":[2.5,3],"
              "\"reference_product_ms\":[1,2],\"reference_copy_ms\":[1,1]}\n",
         "{\"elapsed_ms\":3,\"reference_product_ms\":2,\"reference_copy_ms\":1}\n{\"elapsed_ms\":2}\n",
         "warning: x\nerror[memory] y; change: z\n");
    seed(LINE "\"reason\":\"not through after 60 s\",\"code\":124,\"late_s\":60}\n" LINE
              "\"steps_ms\":[1]}\n" LINE,
         "{\"iter", "");
}

static const char *const words[] = {LINE,
                                    "\"steps_ms\":[",
                                    "\"reference_product_ms\":[",
                                    "\"reference_copy_ms\":[",
                                    "\"reason\":",
                                    "\"late_s\":",
                                    "\"steps\":",
                                    "\"id\":",
                                    "\"elapsed_ms\":",
                                    "error[",
                                    "null",
                                    "1e999",
                                    "-1",
                                    "\n",
                                    NULL};

const FuzzTarget fuzz_sweep = {"sweep", run, seeds, NULL, {EXIT_RESOURCE}, words};
