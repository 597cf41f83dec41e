/* test_schedule_view -- `train schedule`: its JSON, drawing and timeline against published times and
 * each other */
#include "schedules.h"
#include <jansson.h>
#include <sys/wait.h>

static const char *train, *work;

/* Runs `train schedule`; returns the exit code, its output is in $WORK/out. */
static int run(const char *options)
{
    char line[8192];
    snprintf(line, sizeof line,
             "%s schedule configs/demo.yaml tokenizer_type=none vocab_size=64 num_layers=16 "
             "micro_batch_size=8 global_batch_size=8 %s > %s/out 2> %s/err",
             train, options, work, work);
    int status = system(line);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* The text of a file of $WORK; valid for three more calls. */
static char *contents(const char *name)
{
    static char texts[4][4 << 20];
    static int calls;
    char path[4096], *text = texts[calls++ % 4];
    snprintf(path, sizeof path, "%s/%s", work, name);
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(text, 1, sizeof texts[0] - 1, f) : 0;
    text[n] = 0;
    if (f)
        fclose(f);
    return text;
}

static int count(const char *text, const char *what)
{
    int n = 0;
    for (const char *s = text; (s = strstr(s, what)); s += strlen(what))
        n++;
    return n;
}

/* Counts the instructions of each kind in a rank's list; returns -1 for one of no kind. */
static int letters(const json_t *list, int n[INSTR_KINDS])
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *text = json_string_value(json_array_get(list, i));
        char name[3] = {0};
        int mb, chunk, k = 0, got = sscanf(text, "%2[A-Z]%d.%d", name, &mb, &chunk);
        while (k < INSTR_KINDS && strcmp(instr_info[k].letters, name))
            k++;
        if (k == INSTR_KINDS || (k <= I_RG && got != 3))
            return -1;
        n[k]++;
    }
    return 0;
}

static void json_of(int kind, int p, int m, double overhead, double peak)
{
    char options[512];
    int v = chunks_of((ScheduleKind)kind, 2), split = schedule_info[kind].backward == BACKWARD_SPLIT;
    snprintf(options, sizeof options,
             "pipeline_model_parallel_size=%d pipeline_schedule=%s global_batch_size=%d "
             "num_virtual_stages_per_pipeline_rank=%d --json",
             p, schedule_name(kind), 8 * m, v);
    CHECK(run(options) == 0, "%s: %s", options, contents("err"));
    json_t *j = json_loads(contents("out"), JSON_REJECT_DUPLICATES, NULL);
    json_t *ranks = json_object_get(j, "ranks"), *peaks = json_object_get(j, "peak_activations");
    CHECK(j && json_object_size(j) == 7 && json_array_size(ranks) == (size_t)p &&
              json_array_size(peaks) == (size_t)p,
          "%s: shape of the JSON", schedule_name(kind));
    const json_t *costs = json_object_get(j, "costs");
    CHECK(!strcmp(json_string_value(json_object_get(costs, "source")), "equal") &&
              json_array_size(json_object_get(costs, "backward_weight")) == (size_t)(p * v),
          "%s: costs", schedule_name(kind));
    double makespan = json_number_value(json_object_get(j, "makespan")), most = 0;
    double step_rate = json_number_value(json_object_get(j, "step_rate"));
    double bound = json_number_value(json_object_get(j, "lower_bound"));
    CHECK(bound > 2 * m && bound <= makespan * (1 + 1e-12), "%s: bound %g of %g", schedule_name(kind), bound,
          makespan);
    CHECK(fabs(makespan - 3 * m - overhead) < 1e-9, "%s: makespan %g", schedule_name(kind), makespan);
    CHECK(fabs(step_rate - overhead / makespan) < 1e-12, "%s: step_rate %g", schedule_name(kind), step_rate);
    CHECK(json_number_value(json_object_get(j, "rate")) <= step_rate, "%s: rate", schedule_name(kind));
    for (int r = 0; r < p; r++) {
        int n[INSTR_KINDS] = {0}, ok = letters(json_array_get(ranks, (size_t)r), n);
        most = fmax(most, json_number_value(json_array_get(peaks, (size_t)r)));
        int whole = split ? 0 : v * m, half = split ? v * m : 0;
        CHECK(!ok && n[I_F] == v * m && n[I_B] == whole && n[I_D] == half && n[I_W] == half && n[I_S] == 1 &&
                  n[I_R] > 0 && n[I_SA] == n[I_RG] && n[I_RA] == n[I_SG],
              "%s rank %d: %d F %d B %d D %d W %d R %d S", schedule_name(kind), r, n[I_F], n[I_B], n[I_D],
              n[I_W], n[I_R], n[I_S]);
        CHECK(n[I_T] == (!is_v(&(PipeShape){.kind = (ScheduleKind)kind}) && (r == 0 || r == p - 1)),
              "%s rank %d: %d T", schedule_name(kind), r, n[I_T]);
    }
    CHECK(fabs(most - peak) < 1e-12, "%s: peak %g", schedule_name(kind), most);
    json_decref(j);
}

/* The number of computations of all ranks. */
static int computes_of(const PipeShape *s)
{
    ScheduleSet set;
    int n = 0;
    schedules_open(&set, s);
    for (int r = 0; r < s->p; r++)
        for (int i = 0; i < set.rank[r].n; i++)
            n += set.rank[r].list[i].op <= I_W;
    schedules_close(&set);
    return n;
}

/* Bars of the drawing are the instructions of the timeline. A rank's instructions do not overlap.
 * Drawing and timeline end with the step. */
static void files(int kind, int p, int m)
{
    char options[4096];
    PipeShape shape = shape_of(kind, p, 2, m);
    int v = shape.v, all = computes_of(&shape);
    snprintf(
        options, sizeof options,
        "pipeline_model_parallel_size=%d pipeline_schedule=%s global_batch_size=%d --svg %s/a.svg --trace "
        "%s/a.json num_virtual_stages_per_pipeline_rank=%d clock_forward_ms='[2]' "
        "clock_backward_input_ms='[4]' clock_backward_weight_ms='[2]' clock_p2p_ms=0.5",
        p, schedule_name(kind), 8 * m, work, work, v);
    CHECK(run(options) == 0, "%s: %s", options, contents("err"));
    char *svg = contents("a.svg"), *text = contents("out"), *time = strstr(text, "time ");
    double makespan = time ? atof(time + 5) : 0;
    CHECK(count(svg, "</title></rect>") == all && strstr(svg, " ms, bubble"), "%s: %d bars",
          schedule_name(kind), count(svg, "</title></rect>"));
    CHECK(strstr(svg, "prefers-color-scheme:dark"), "%s: a white drawing on a dark page",
          schedule_name(kind));
    double width = 0,
           right = 0; /* end of titles and legend, in px */
    sscanf(svg, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%lf", &width);
    for (const char *s = svg; (s = strstr(s, "<text class=\"h\" x=\"")); s++) {
        const char *from = strchr(s, '>') + 1, *to = strchr(from, '<');
        right = fmax(right, atof(s + 19) + 15 * 0.6 * (double)(to - from));
    }
    CHECK(right > 300 && right <= fmin(width, 900), "%s: a title up to %.0f px of %.0f", schedule_name(kind),
          right, width);
    CHECK(count(svg, "<text") == count(svg, "</text>") && count(svg, "<svg") == 1 &&
              count(svg, "</svg>") == 1,
          "%s: tags",
          schedule_name(kind));
    json_t *j = json_loads(contents("a.json"), JSON_REJECT_DUPLICATES, NULL),
           *events = json_object_get(j, "traceEvents");
    double end[64] = {0}, last = 0;
    int computes = 0;
    for (size_t i = 0; i < json_array_size(events); i++) {
        json_t *e = json_array_get(events, i);
        int rank = (int)json_integer_value(json_object_get(e, "pid"));
        double ts = json_number_value(json_object_get(e, "ts")),
               dur = json_number_value(json_object_get(e, "dur"));
        if (strcmp(json_string_value(json_object_get(e, "ph")), "X") ||
            json_integer_value(json_object_get(e, "tid")))
            continue;
        CHECK(ts >= end[rank] && dur > 0, "%s rank %d: from %g, before %g", schedule_name(kind), rank, ts,
              end[rank]);
        end[rank] = ts + dur;
        last = fmax(last, end[rank]);
        computes++;
    }
    CHECK(computes == all && fabs(last / 1e3 - makespan) < 1e-6 * makespan,
          "%s: %d bars, until %g us, time %g ms",
          schedule_name(kind), computes, last, makespan);
    CHECK(count(text, "rank ") == p && strstr(text, "checked: "), "%s: text", schedule_name(kind));
    json_decref(j);
}

/* Where nothing takes time, and where rounding leaves a rank's work longer than its step, no number is
 * odd. */
static void odd_times(void)
{
    static const char *const times[] = {"clock_forward_ms=0 clock_backward_input_ms=0 "
                                        "clock_backward_weight_ms=0",
                                        "clock_forward_ms='[4.887,2.04]' clock_backward_input_ms=2.5 "
                                        "clock_backward_weight_ms='[3.398,3.649]' micro_batch_size=1 "
                                        "global_batch_size=24"};
    char line[512];
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        snprintf(line, sizeof line, "pipeline_model_parallel_size=2 pipeline_schedule=zb-h2 %s", times[i]);
        CHECK(run(line) == 0, "%s: %s", line, contents("err"));
        const char *out = contents("out");
        CHECK(strstr(out, "bubble 0.0 % (of the step 0.0 %)") && strstr(out, "takes 0.00 % more"), "%s: %s",
              times[i], out);
    }
}

static void refusals(void)
{
    static const struct { const char *options, *says; int code; } want[] = {
        {"pipeline_model_parallel_size=2 --svg /nowhere/a.svg", "error[write]", EXIT_RESOURCE},
        {"pipeline_model_parallel_size=2 --svg $WORK/one --trace $WORK/one", "would both write", EXIT_CONFIG},
        {"pipeline_model_parallel_size=2 clock_forward_ms='[1]'", "error[clock]", EXIT_CONFIG},
        {"pipeline_model_parallel_size=3 --world 4", "does not divide the world", EXIT_CONFIG},
        {"pipeline_model_parallel_size=2 pipeline_balance=cost", "error[split]", EXIT_CONFIG},
        {"pipeline_model_parallel_size=2 --sgv x", "did you mean `--svg`", EXIT_CONFIG},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        int code = run(want[i].options);
        char *err = contents("err");
        CHECK(code == want[i].code && strstr(err, want[i].says), "%s: exit %d, %s", want[i].options, code,
              err);
    }
    /* every file is asked for before the lists are made, and before another one is written */
    run("pipeline_model_parallel_size=2 --svg $WORK/early.svg --trace /nowhere/a.json");
    CHECK(!*contents("early.svg"), "--svg was written though --trace cannot be");
}

/* Messages: one time for all, or one for each virtual stage that sends. Four microbatches of 1F1B on two
 * ranks wait twice for an activation of stage 0 and twice for a gradient of stage 1. */
static void message_times(void)
{
    static const struct { const char *ms; double both; } want[] = {
        {"0", 0}, {"'[0, 0]'", 0}, {"1", 2}, {"'[1, 1]'", 2}, {"'[1, 5]'", 6}, {"'[5, 1]'", 6}, {"5", 10}};
    char options[256];
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        snprintf(options, sizeof options, "pipeline_model_parallel_size=2 pipeline_schedule=1f1b "
                 "micro_batch_size=1 global_batch_size=4 clock_forward_ms=1 clock_backward_input_ms=1 "
                 "clock_backward_weight_ms=1 clock_p2p_ms=%s --json", want[i].ms);
        CHECK(run(options) == 0, "%s: %s", options, contents("err"));
        json_t *j = json_loads(contents("out"), JSON_REJECT_DUPLICATES, NULL);
        double span = json_number_value(json_object_get(j, "makespan"));
        CHECK(fabs(span - (15 + 2 * want[i].both)) < 1e-9, "clock_p2p_ms %s: %g", want[i].ms, span);
        json_decref(j);
    }
}

int main(void)
{
    train = getenv("TRAIN") ? getenv("TRAIN") : "./train";
    work = getenv("WORK") ? getenv("WORK") : "/tmp";
    json_of(SCHEDULE_GPIPE, 4, 16, 9, 16);
    json_of(SCHEDULE_1F1B, 4, 16, 9, 4);
    json_of(SCHEDULE_INTERLEAVED, 4, 16, 4.5, 5.5);
    json_of(SCHEDULE_ZB_H1, 8, 16, 7, 8);
    json_of(SCHEDULE_ZB_H2, 4, 16, 3, 7);
    json_of(SCHEDULE_ZB_V, 8, 16, 3.5, 8);
    json_of(SCHEDULE_V_HALF, 4, 16, 2.5, 3);
    json_of(SCHEDULE_V_MIN, 8, 16, 13.5, 4);
    for (int kind = 0; kind < SCHEDULE_CHOICES; kind++)
        if (fits(kind, 4, 8))
            files(kind, 4, 8);
    odd_times();
    message_times();
    refusals();
    return test_end();
}
