/* test_bubble -- `train bubble`: simulated cells against published ones and closed forms, measured cells
 * on the clock device against simulated ones, its files, and what it refuses */
#include "schedules.h"
#include <jansson.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *train, *work;

/* Runs `train bubble`; returns the exit code, its output is in $WORK/out. */
static int run(const char *options)
{
    char line[4096];
    snprintf(line, sizeof line, "%s bubble %s > %s/out 2> %s/err", train, options, work, work);
    int status = system(line);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static char *contents(const char *name)
{
    char path[512];
    static char text[4 << 20];
    snprintf(path, sizeof path, "%s/%s", work, name);
    FILE *f = fopen(path, "r");
    text[0] = 0;
    if (f) {
        text[fread(text, 1, sizeof text - 1, f)] = 0;
        fclose(f);
    }
    return text;
}

static void write_config(const char *more)
{
    char path[512];
    snprintf(path, sizeof path, "%s/b.yaml", work);
    FILE *f = fopen(path, "w");
    fprintf(f, "%s", more);
    fclose(f);
}

static double number(const json_t *o, const char *name)
{
    return json_number_value(json_object_get(o, name));
}

/* The cells of `train bubble --json`; NULL when it failed, which a CHECK has reported. */
static json_t *cells_of(const char *options)
{
    char line[2048];
    snprintf(line, sizeof line, "%s --json", options);
    int code = run(line);
    CHECK(code == 0, "%s: exit %d: %s", line, code, contents("err"));
    if (code)
        return NULL;
    json_t *j = json_loads(contents("out"), JSON_REJECT_DUPLICATES, NULL),
           *cells = json_object_get(j, "cells");
    CHECK(j && json_object_size(j) == 1 && json_array_size(cells) > 0, "%s: shape of the JSON", options);
    json_incref(cells);
    json_decref(j);
    return cells;
}

/* ---- closed forms ---- */

/* Closed form of a pipeline's idle time, in thirds of T. rank: of the slowest rank; step: of the whole
 * step; < 0: no closed form. */
static void waiting(const char *name, int p, int v, int m, double *rank, double *step)
{
    *rank = *step = -1;
    if (!strcmp(name, "gpipe") || (!strcmp(name, "1f1b") && m >= p))
        *rank = *step = 3 * (p - 1);
    else if (!strcmp(name, "interleaved") && m % p == 0)
        *rank = *step = 3.0 * (p - 1) / v;
    else if (!strcmp(name, "zb-h1"))
        *rank = *step = m >= p ? p - 1 : 2 * (m + p - 1) + 1 - 3 * m;
    else if (!strcmp(name, "zb-v") && m >= 2 * p - 1)
        *rank = 0, *step = (p - 1) / 2.0;
}

static void closed_forms(void)
{
    int known = 0, all = 0;
    json_t *cells =
        cells_of("$WORK/b.yaml --simulate --schedules gpipe,1f1b,interleaved,zb-h1,zb-h2,zb-v,v-half,v-min "
                 "--p 1,2,3,4,5,8,13,16 --m 1,2,4,7,8,15,16,31,32,48,64 --v 2,3,4");
    for (size_t i = 0; i < json_array_size(cells); i++, all++) {
        const json_t *c = json_array_get(cells, i), *closed = json_object_get(c, "closed_form"),
                     *simulated = json_object_get(c, "simulated");
        const char *name = json_string_value(json_object_get(c, "schedule"));
        int p = (int)number(c, "p"), v = (int)number(c, "v"), m = (int)number(c, "m");
        double rank, step;
        waiting(name, p, v, m, &rank, &step);
        CHECK((rank >= 0) == json_is_object(closed), "%s p %d v %d m %d: closed form or none", name, p, v, m);
        CHECK(json_is_null(json_object_get(c, "measured")) &&
                  json_array_size(json_object_get(c, "peak_activations")) == (size_t)p &&
                  json_object_size(c) == 20,
              "%s p %d v %d m %d: a cell's parts", name, p, v, m);
        CHECK(number(c, "lower_bound_ms") > 0 &&
                  number(c, "lower_bound_ms") <= number(c, "simulated_ms") * (1 + 1e-12),
              "%s p %d v %d m %d: bound", name, p, v, m);
        if (rank < 0)
            continue;
        known++;
        const json_t *both[] = {closed, simulated};
        for (int k = 0; k < 2; k++)
            CHECK(fabs(number(both[k], "rate") - rank / (rank + 3 * m)) < 1e-12 &&
                      fabs(number(both[k], "step_rate") - step / (step + 3 * m)) < 1e-12,
                  "%s p %d v %d m %d: %s %.12g, %.12g", name, p, v, m, k ? "simulated" : "closed form",
                  number(both[k], "rate"), number(both[k], "step_rate"));
    }
    CHECK(all > 500 && known > 300, "%d cells, %d with a closed form", all, known);
    json_decref(cells);
}

/* ---- published ---- */

/* The n-th field, from 0, of a line of the CSV that the command wrote. */
static const char *field(const char *line, int n)
{
    for (; n && *line; line++)
        n -= *line == ',';
    return line;
}

static void published(void)
{
    enum { SCHEDULE = 1, SIMULATED = 18, PUBLISHED = 23 };
    int exact = 0, all = 0;
    CHECK(run("configs/bubble/zero_bubble.yaml --simulate --csv $WORK/a.csv") == 0, "%s", contents("err"));
    for (const char *line = strchr(contents("a.csv"), '\n'); line && line[1];
         line = strchr(line + 1, '\n'), all++) {
        const char *s = line + 1;
        double far = fabs(atof(field(s, SIMULATED)) - atof(field(s, PUBLISHED)));
        int loose =
            !strncmp(field(s, SCHEDULE), "interleaved", 11); /* the paper counts its messages otherwise */
        int searched = !strncmp(field(s, SCHEDULE), "zb-auto", 7);          /* our search may be better */
        exact += !loose && !searched && far < 1e-4;
        if (searched)
            CHECK(atof(field(s, SIMULATED)) < atof(field(s, PUBLISHED)) + 2e-3, "%.60s: off by %g", s, far);
        else
            CHECK(far < (loose ? 4e-3 : 1e-4), "%.60s: off by %g", s, far);
    }
    CHECK(exact == 36 && all == 72, "%d of %d", exact, all);
    CHECK(run("configs/bubble/megatron_sc21.yaml --simulate --csv $WORK/a.csv --svg $WORK/a.svg") == 0, "%s",
          contents("err"));
    for (const char *line = strchr(contents("a.csv"), '\n'); line && line[1]; line = strchr(line + 1, '\n'))
        CHECK(fabs(atof(field(line + 1, SIMULATED)) - atof(field(line + 1, PUBLISHED))) < 1e-8, "%.60s",
              line + 1);
    const char *svg = contents("a.svg");
    CHECK(strstr(svg, ">figure 6 n=32 b&#39;=128</text>") && strstr(svg, ">1f1b, p 8, m 32</text>") &&
              strstr(svg, "</svg>"),
          "the drawing: %.80s", svg);
    /* the drawing fits a telephone, is dark on a dark page, and has one label over a group of bars */
    int labels = 0, bars = 0;
    for (const char *s = svg; (s = strstr(s, "class=\"p\"")); s++)
        labels++;
    for (const char *s = svg; (s = strstr(s, "</title></rect>")); s++)
        bars++;
    CHECK(strstr(svg, "width=\"440\"") && strstr(svg, "prefers-color-scheme:dark"), "%.200s", svg);
    CHECK(labels > 1 && bars >= 2 * labels, "%d labels over %d bars", labels, bars);
    CHECK(run("configs/bubble/controllable_memory.yaml --simulate --p 8") == 0 &&
              strstr(contents("out"), "v-half"),
          "%s", contents("err"));
}

/* ---- measured ---- */

enum { STEPS = 11, MEDIAN, LEAST, MOST, SIMULATED = 17 };

/* Every cell of these options: on the virtual clock the executor and its messages take exactly the
 * simulated time. wanted: ms of the first cell's step. */
static void counted(const char *options, int cells, double wanted)
{
    char line[1024];
    int n = 0;
    snprintf(line, sizeof line, "$WORK/b.yaml %s --csv $WORK/m.csv", options);
    CHECK(run(line) == 0, "%s: %s", line, contents("err"));
    for (const char *at = strchr(contents("m.csv"), '\n'); at && at[1]; at = strchr(at + 1, '\n'), n++) {
        double simulated = atof(field(at + 1, SIMULATED));
        CHECK(n || fabs(simulated - wanted) < 1e-9, "%s: simulated %.12g", options, simulated);
        CHECK(atof(field(at + 1, STEPS)) >= 2, "%s: measured: %s", options, at + 1);
        for (int k = MEDIAN; k <= MOST; k++)
            CHECK(fabs(atof(field(at + 1, k)) - simulated) < 1e-6, "%.40s: simulated %.9g, measured: %.40s",
                  at + 1, simulated, field(at + 1, k));
    }
    CHECK(n == cells, "%s: %d cells", options, n);
}

/* On the sleeping clock no step is faster than simulated. How much slower it is depends on the machine. */
static void slept(void)
{
    double simulated = 9 * 24;
    CHECK(run("$WORK/b.yaml --schedules 1f1b --p 2 --m 8 --csv $WORK/m.csv") == 0, "%s", contents("err"));
    const char *row = strchr(contents("m.csv"), '\n');
    CHECK(row && atof(field(row + 1, LEAST)) > simulated - 1e-6, "simulated %g: %s", simulated,
          row ? row : "nothing");
}

static void measurements(void)
{
    slept();
    setenv("GRIDIRON_CLOCK", "virtual", 1);
    /* In order: (m + p - 1) 3 x 8 ms; with a late W; two chunks; a message at every hop there and back. */
    counted("--schedules 1f1b --p 2 --m 8", 1, 9 * 24);
    counted("--schedules zb-h1,zb-v,zb-h2,v-half,v-min,1f1b,gpipe --p 4 --m 8", 7, 27 * 8);
    counted("--schedules zb-v --p 4 --m 8", 1, 24 * 8 + 12);
    counted("--schedules gpipe,zb-v,interleaved --v 2 --p 4 --m 4 clock_p2p_ms=10", 3, 7 * 24 + 60);
    counted("--schedules gpipe --p 2 --m 2 clock_p2p_ms='[30, 5]'", 1, 72 + 35);
    counted("--schedules interleaved --p 1 --v 2 --m 4", 1, 4 * 24);
    counted("--schedules 1f1b --p 2 --m 4 --steps 3", 1, 5 * 24);
    CHECK(atoi(field(strchr(contents("m.csv"), '\n') + 1, STEPS)) == 3, "--steps 3: %s", contents("m.csv"));
    setenv("GRIDIRON_CLOCK", "real", 1);
    CHECK(run("$WORK/b.yaml --schedules gpipe --p 1 --m 2") == EXIT_CONFIG &&
              strstr(contents("err"), "GRIDIRON_CLOCK=real; change: virtual"), "%s", contents("err"));
    unsetenv("GRIDIRON_CLOCK");
}

/* ---- real computation ---- */

static double sum_of(const json_t *list)
{
    double sum = 0;
    for (size_t i = 0; i < json_array_size(list); i++)
        sum += json_number_value(json_array_get(list, i));
    return sum;
}

/* Measured times of computations, the measured bubble, and the simulated one. Their difference depends
 * on the machine. A bubble may be 0: with zb-v rank 0 begins first and ends last, and where rank 0 is
 * slower than rank 1, every message arrives before rank 0 needs it. */
static void computed(const char *schedule, int chunks, int split)
{
    char line[1024];
    snprintf(line, sizeof line, "$WORK/real.yaml --real --steps 3 --schedules %s --p 2 --m 6", schedule);
    json_t *cells = cells_of(line), *c = json_array_get(cells, 0), *times[3];
    for (int k = 0; k < 3; k++)
        times[k] =
            json_object_get(c, (const char *[]){"forward_ms", "backward_input_ms", "backward_weight_ms"}[k]);
    if (!cells)
        return;
    CHECK(json_array_size(cells) == 1 && number(c, "m") == 6 && number(c, "v") == chunks, "%s: the cell",
          schedule);
    for (int k = 0; k < 3; k++)
        CHECK(json_array_size(times[k]) == 2 * (size_t)chunks && (sum_of(times[k]) > 0) == (k < 2 || split),
              "%s: times %d", schedule, k);
    for (int k = 0; k < 2; k++) {
        const char *which = k ? "simulated" : "measured";
        const json_t *rates = json_object_get(c, which);
        CHECK(number(rates, "rate") > -1e-6 && number(rates, "step_rate") > -1e-6 &&
                  number(rates, "step_rate") < 1,
              "%s: %s %g, %g", schedule, which, number(rates, "rate"), number(rates, "step_rate"));
    }
    json_decref(cells);
}

static void computations(void)
{
    char path[512];
    snprintf(path, sizeof path, "%s/real.yaml", work);
    FILE *f = fopen(path, "w");
    fprintf(
        f,
        "model: {num_layers: 4, hidden_size: 96, num_attention_heads: 4, seq_length: 64, vocab_size: 128}\n"
        "data: {tokenizer_type: none}\ntrain: {micro_batch_size: 2}\n");
    fclose(f);
    computed("1f1b", 1, 0);
    computed("zb-h1", 1, 1);
    computed("zb-v", 2, 1);
}

/* A file of cells that is refused, with all of these words. */
static void bad_cells(const char *cells, const char *says)
{
    char path[512];
    snprintf(path, sizeof path, "%s/cells.csv", work);
    FILE *f = fopen(path, "w");
    fputs(cells, f);
    fclose(f);
    int code = run("$WORK/b.yaml --simulate clock_cells=$WORK/cells.csv");
    CHECK(code == EXIT_CONFIG && strstr(contents("err"), says), "exit %d: %s", code, contents("err"));
}

/* The step of the one cell of `options`, ms, whose `member` must be `wanted`; 0: null. */
static double step_of(const char *options, const char *member, double wanted)
{
    char line[1024];
    snprintf(line, sizeof line, "$WORK/b.yaml --simulate clock_p2p_ms=3 %s", options);
    json_t *cells = cells_of(line), *c = json_array_get(cells, 0);
    double step = number(c, "simulated_ms");
    CHECK(number(c, member) == wanted, "%s: %s is %g, not %g", line, member, number(c, member), wanted);
    json_decref(cells);
    return step;
}

/* A file of cells that --csv wrote makes the same cell again: with the group of an interleaved one, and with
 * the limit of a searched one. A line that does not give it takes the configuration's. */
static void cells_again(void)
{
    static const struct { const char *schedule, *key, *member; int v, size;
    } of[] = {{"interleaved", "microbatch_group_size_per_vp_stage", "microbatch_group_size", 2, 8},
              {"zb-auto", "pipeline_max_activations", "max_activations", 1, 2}};
    char line[512];
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        const char *member = of[i].member;
        int size = of[i].size;
        snprintf(line, sizeof line, "--schedules %s --p 4 --m 8 --v %d", of[i].schedule, of[i].v);
        double without = step_of(line, member, 0);
        snprintf(line, sizeof line, "--schedules %s --p 4 --m 8 --v %d %s=%d --csv $WORK/again.csv",
                 of[i].schedule, of[i].v, of[i].key, size);
        double with = step_of(line, member, size);
        double again = step_of("clock_cells=$WORK/again.csv", member, size);
        snprintf(line, sizeof line, "printf 'schedule,p,v,m\\n%s,4,%d,8\\n' > $WORK/bare.csv", of[i].schedule,
                 of[i].v);
        CHECK(!system(line), "%s", line);
        snprintf(line, sizeof line, "%s=%d clock_cells=$WORK/bare.csv", of[i].key, size);
        double bare = step_of(line, member, size);
        CHECK(with == again && with == bare && with != without, "%s: %g, %g, %g, not %g ms", of[i].key, with,
              again, bare, without);
    }
}

/* A file of cells as spreadsheets write it: a byte-order mark, two characters at the end of a line; and with
 * blanks beside its cells. */
static void marked(void)
{
    CHECK(!system("printf '\\357\\273\\277schedule, p, m ,v\\r\\n zb-v,4, 8,2 \\r\\n' > $WORK/marked.csv"),
          "marked");
    double step = step_of("clock_cells=$WORK/marked.csv", "v", 2);
    CHECK(step == step_of("--schedules zb-v --p 4 --m 8", "v", 2), "a byte-order mark: %g ms", step);
}

/* Where nothing takes time no bubble has a rate in closed form, either. */
static void timeless(void)
{
    json_t *cells = cells_of("$WORK/b.yaml --simulate --schedules gpipe,zb-h1 --p 4 --m 8 clock_forward_ms=0 "
                             "clock_backward_input_ms=0 clock_backward_weight_ms=0 clock_p2p_ms=0"), *c;
    size_t i;
    json_array_foreach(cells, i, c)
        CHECK(!number(c, "simulated_ms") && json_is_null(json_object_get(c, "closed_form")), "cell %zu", i);
    json_decref(cells);
}

static void refusals(void)
{
    bad_cells("schedule,p,m,published\n1f1b,2,4,27.27\n",
              "cells.csv:2: published 27.27 is no share in [0, 1); change: a share, 0.2727 for 27.27 %");
    bad_cells("schedule,p,m,published\n1f1b,2,4,1\n", "published 1 is no share");
    bad_cells("schedule,p,m,published\n1f1b,2,4,-0.1\n", "published -0.1 is no share");
    bad_cells("schedule,p,m,published_peak\n1f1b,2,4,-3\n", "published_peak -3 is below 0");
    bad_cells("schedule,p,m\n", "cells.csv has no cells; change: ");
    bad_cells("schedule,p,m,p\n1f1b,2,4,2\n",
              "cells.csv:1: the column 'p' is there twice; change: leave one of them out");
    static const struct { const char *options, *says;
    } want[] = {
        {"--p 2 --m 4 --simulate --real", "give one of them"},
        {"--p 2 --m 4 --schedules 1f2b", "no schedule '1f2b'"},
        {"--p 2 --m 4,x", "--m: 'x' is not a whole number"},
        {"--p 2", "no number of microbatches"},
        {"--schedules interleaved --p 4 --m 2 --v 2", "groups of 4 microbatches"},
        {"--p 2 --m 4 clock_forward_ms='[1, 2, 3]'", "forward_ms has 3 numbers for 2 virtual stages"},
        {"--p 2 --m 4 clock_forward_ms='[]'", "go together"},
        {"--p 2 --m 4 clock_forward_ms='[]' clock_backward_input_ms='[]' clock_backward_weight_ms='[]'",
         "how long a computation"},
        {"clock_cells=/nowhere/cells.csv", "/nowhere/cells.csv"},
        {"--p 2 --m 4 clock_forward_ms=-1", "clock_forward_ms"},
        {"--p 4 --m 4 --schedules dualpipev", "m from 8 on"},
        {"--p 2 --m 4 --schedules custom", "custom needs pipeline_schedule_file"},
        {"--p 2 --m 4 --real", "num_layers: missing"},
    };
    char line[1024];
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        snprintf(line, sizeof line, "$WORK/b.yaml %s", want[i].options);
        int code = run(line);
        const char *err = contents("err");
        CHECK(code == EXIT_CONFIG && strstr(err, want[i].says) && strstr(err, "change: "), "%s: exit %d, %s",
              want[i].options, code, err);
    }
    /* gpipe holds all microbatches */
    CHECK(run("$WORK/b.yaml --simulate --schedules gpipe --p 2 --m 1000,1234") == 0 &&
              strstr(contents("out"), "| 1000\n") && strstr(contents("out"), "| 1234\n"), "%s",
          contents("out"));
    CHECK(run("$WORK/b.yaml --simulate --schedules 1f1b,interleaved --p 4 --m 2,4 --v 1,2") == 0 &&
              strstr(contents("err"), "left out: interleaved, p 4, v 2, m 2"), "%s", contents("err"));
}

int main(void)
{
    train = getenv("TRAIN") ? getenv("TRAIN") : "./train";
    work = getenv("WORK") ? getenv("WORK") : "/tmp";
    setenv("WORK", work, 1);
    write_config("precision: {device: clock}\n"
                 "clock: {clock_forward_ms: 8, clock_backward_input_ms: 8, clock_backward_weight_ms: 8}\n");
    closed_forms();
    published();
    measurements();
    computations();
    cells_again();
    marked();
    timeless();
    refusals();
    return test_end();
}
