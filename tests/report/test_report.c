/* test_report -- a run's files for its reader: TensorBoard's event file, the trace and the report */
#define _GNU_SOURCE
#include "run_dir.h"
#include "routers.h"
#include "scale.h"
#include "svg.h"
#include "tensorboard.h"
#include "trace.h"
#include <math.h>

/* Logs four steps and an evaluation. The second step's loss is not finite, the third step's is huge. */
static void log_lines(const char *dir)
{
    int null = open("/dev/null", O_WRONLY), saved = redirect(null);
    Log *l = open_log(dir, 0, 9);
    static const int layer[] = {0, 3};
    int64_t count[] = {2, 2, 0, 4, 0, 1};
    RouterRow row[] = {{0.5, NAN, 1}, {1, NAN, 0.5}};
    RouterMetrics routers = {.layers = 2, .experts = 2, .layer = layer, .count = count, .row = row,
                             .balance = "load_balancing_loss", .balance_coeff = 0.25};
    for (int64_t i = 1; i <= 4; i++) {
        Metrics m = step_at(i);
        log_routers(l, &routers);
        log_groups(l, (GroupTimes[]){{"tp", 1.5 * (double)i, 0.25, 2048}}, 1);
        if (i >= 2)
            log_stragglers(l, &(SlowRank){.rank = 3, .host = "<n2>", .where = "tp 1 cp 0 dp 0 pp 1",
                                          .phase = "backward", .excess = 0.25, .peers = 1,
                                          .intervals = 3}, 1);
        m.lm_loss = i == 2 ? NAN : i == 3 ? 1e300 : m.lm_loss;
        m.grad_norm = i == 2 ? INFINITY : m.grad_norm;
        log_step(l, &m);
        if (i == 2)
            log_eval(l, i, 1.25);
    }
    log_memory(l, "parameters", 1000, 900);
    log_close(l, "stopped");
    put_back(saved);
    close(null);
}

/* Logs four steps, with memory that is planned by category and not measured. */
static void log_planned(const char *dir)
{
    int null = open("/dev/null", O_WRONLY), saved = redirect(null);
    Log *l = open_log(dir, 0, 4);
    for (int64_t i = 1; i <= 4; i++) {
        Metrics m = step_at(i);
        log_step(l, &m);
    }
    log_memory(l, "parameters", 1000, -1);
    log_memory(l, "gradients", 4000, -1);
    log_memory(l, "total", 6000, -1);
    log_memory(l, "host", 3000, -1);
    log_close(l, "finished");
    put_back(saved);
    close(null);
}

/* Resumes the run of log_lines after its third step. */
static void log_resumed(const char *dir)
{
    int null = open("/dev/null", O_WRONLY), saved = redirect(null);
    Log *l = open_log(dir, 3, 9);
    for (int64_t i = 4; i <= 9; i++) {
        Metrics m = step_at(i);
        log_step(l, &m);
    }
    log_fact(l, "corpus", "7 tokens of <text>");
    write_text(dir, "samples.jsonl",
               "{\"iteration\": 9, \"prompt\": \"In the\", \"text\": \" beginning & so on\"}\n[3]\n{\"te");
    log_close(l, "finished");
    put_back(saved);
    close(null);
}

/* The name of the newest event file of `dir`; from malloc. */
static char *event_name(const char *dir)
{
    char *pattern = xasprintf("ls -t '%s' | grep -m1 tfevents", dir), name[512] = "";
    FILE *p = popen(pattern, "r");
    CHECK(p && fgets(name, sizeof name, p), "%s", dir);
    pclose(p);
    free(pattern);
    name[strcspn(name, "\n")] = 0;
    return xstrdup(name);
}

/* ---- TensorBoard ---- */

static uint32_t slow_crc(const uint8_t *p, uint64_t n)
{
    uint32_t c = ~0u;
    for (uint64_t i = 0; i < 8 * n; i++) {
        c ^= (uint32_t)(p[i / 8] >> (i % 8) & 1);
        c = c >> 1 ^ (c & 1 ? 0x82f63b78u : 0);
    }
    c = ~c;
    return (c >> 15 | c << 17) + 0xa282ead8u;
}

static uint64_t varint(const uint8_t **p)
{
    uint64_t v = 0;
    for (int shift = 0;; shift += 7) {
        v |= (uint64_t)(**p & 127) << shift;
        if (!(*(*p)++ & 128))
            return v;
    }
}

/* The payload of field `field` in the message [p, end), NULL without it. *n: bytes of a string, else the
 * value. */
static const uint8_t *field_of(const uint8_t *p, const uint8_t *end, int field, uint64_t *n)
{
    while (p < end) {
        uint64_t key = varint(&p);
        const uint8_t *at = p;
        if ((key & 7) == 0)
            *n = varint(&p);
        else if ((key & 7) == 2)
            *n = varint(&p), at = p, p += *n;
        else
            p += (key & 7) == 1 ? 8 : 4;
        if ((int)(key >> 3) == field)
            return at;
    }
    return NULL;
}

/* The value of `tag` in the event's summary; NAN without one. */
static double scalar_of(const uint8_t *event, uint64_t len, const char *tag, uint64_t *step)
{
    uint64_t n = 0, t;
    const uint8_t *s = field_of(event, event + len, 5, &n), *end = s + n;
    if (!field_of(event, event + len, 2, step))
        *step = 0;
    while (s && s < end) {
        float x;
        varint(&s);
        uint64_t size = varint(&s);
        const uint8_t *name = field_of(s, s + size, 1, &t), *value = field_of(s, s + size, 2, &n);
        if (value && t == strlen(tag) && !memcmp(name, tag, t))
            return memcpy(&x, value, 4), x;
        s += size;
    }
    return NAN;
}

/* The event file of a resumed run makes TensorBoard drop what lies from the first resumed step on in older
 * files, by mistake also points over samples of earlier steps: the file has these points again. */
static void test_resumed_events(void)
{
    size_t size;
    char *run = new_dir("resumed-events");
    log_lines(run);
    log_resumed(run);
    char *name = event_name(run), *text = slurp(run, name, &size);
    int started = 0, steps = 0, evals = 0;
    uint64_t len, step, n;
    for (const uint8_t *p = (const uint8_t *)text; p + 12 <= (const uint8_t *)text + size; p += 16 + len) {
        memcpy(&len, p, 8);
        double batch = scalar_of(p + 12, len, "batch-size vs samples", &step);
        started += field_of(p + 12, p + 12 + len, 7, &n) && step == 4;
        steps += batch == 4 && step == 4 * (uint64_t)(steps + 1);
        evals += scalar_of(p + 12, len, "lm loss validation vs samples", &step) == 1.25 && step == 8;
        CHECK(isnan(batch) || isnan(scalar_of(p + 12, len, "lm loss vs samples", &step)) == (step == 8),
              "a loss that is not finite, at %d samples", (int)step);
    }
    CHECK(started == 1 && steps == 9 && evals == 1, "resumed: %d starts, %d steps, %d evaluations", started,
          steps, evals);
    free(text);
    free(name);
    free(run);
}

/* Of a long run a resume writes no more points again than TensorBoard shows of a curve. */
static void test_long_events(void)
{
    size_t size;
    char *run = new_dir("long-events");
    int null = open("/dev/null", O_WRONLY), saved = redirect(null), steps = 0;
    Log *l = open_log(run, 0, 2600);
    for (int64_t i = 1; i <= 2500; i++) {
        Metrics m = step_at(i);
        log_step(l, &m);
    }
    log_close(l, "stopped");
    log_close(open_log(run, 2500, 2600), "stopped");
    put_back(saved);
    close(null);
    char *name = event_name(run), *text = slurp(run, name, &size);
    uint64_t len, step;
    for (const uint8_t *p = (const uint8_t *)text; p + 12 <= (const uint8_t *)text + size; p += 16 + len) {
        memcpy(&len, p, 8);
        steps += !isnan(scalar_of(p + 12, len, "batch-size vs samples", &step));
    }
    CHECK(steps > 500 && steps <= 1000, "%d of 2500 steps again", steps);
    free(text);
    free(name);
    free(run);
}

static void test_events(void)
{
    /* golden bytes of the first record at 1.7e9 s */
    static const uint8_t golden[] =
        "\x18\0\0\0\0\0\0\0" "\xa3\x7f\x4b\x22" "\x09\0\0\0\x40\xfc\x54\xd9\x41" "\x1a\x0d" "brain.Event:2"
        "\xec\xed\x8f\x9d";
    size_t size;
    EventFile f;
    CHECK(tensorboard_crc32c("123456789", 9) == 0xe3069283u && tensorboard_crc32c("", 0) == 0, "%08x",
          tensorboard_crc32c("123456789", 9));
    char *dir = new_dir("golden");
    CHECK(!event_open(&f, dir, 1.7e9, 0), "%s", strerror(errno));
    event_close(&f);
    char *name = event_name(dir), *text = slurp(dir, name, &size);
    CHECK(!strncmp(name, "events.out.tfevents.1700000000.", 31), "%s", name);
    CHECK(size > 40 && sizeof golden == 41 && !memcmp(text, golden, 40), "golden bytes");
    free(text);
    free(name);
    free(dir);

    char *run = new_dir("lines");
    log_lines(run);
    name = event_name(run);
    text = slurp(run, name, &size);
    const uint8_t *p = (const uint8_t *)text, *end = p + size;
    int records = 0, steps = 0, configs = 0, evals = 0, by_samples = 0, worlds = 0, twins = 0, evals_twin = 0;
    int routers = 0;
    static const char *const over_samples[] = {
        "learning-rate vs samples", "batch-size vs samples", "loss-scale vs samples", "grad-norm vs samples",
        "params-norm vs samples",   "num-zeros vs samples",  "world-size vs samples"};
    while (p + 12 <= end) {
        uint64_t len, step;
        uint32_t crc;
        memcpy(&len, p, 8);
        memcpy(&crc, p + 8, 4);
        CHECK(crc == slow_crc(p, 8), "length's checksum in record %d", records);
        memcpy(&crc, p + 12 + len, 4);
        CHECK(crc == slow_crc(p + 12, len), "checksum of record %d", records);
        double rate = scalar_of(p + 12, len, "learning-rate", &step);
        if (!isnan(rate)) {
            Metrics m = step_at((int64_t)step);
            CHECK(rate == (float)m.learning_rate, "step %d", (int)step);
            CHECK(!memmem(p + 12, len, "\007lm loss", 8) == (step == 2),
                  "a loss that is not finite has no point");
            CHECK(scalar_of(p + 12, len, "batch-size", &step) == 4, "batch");
            steps++;
        }
        double twin = scalar_of(p + 12, len, "world-size vs samples", &step),
               world = scalar_of(p + 12, len, "world-size", &step);
        if (!isnan(world)) {
            Metrics m = step_at((int64_t)step);
            CHECK(scalar_of(p + 12, len, "iteration-time", &step) == (float)(1e-3 * m.elapsed_ms),
                  "seconds a step");
            CHECK(scalar_of(p + 12, len, "params-norm", &step) == (float)m.params_norm &&
                      scalar_of(p + 12, len, "num-zeros", &step) == (float)m.num_zeros, "of all parameters");
            worlds += world == 1;
        }
        if (!isnan(twin))
            for (size_t k = 0; k < sizeof over_samples / sizeof *over_samples; k++)
                twins += !isnan(scalar_of(p + 12, len, over_samples[k], &step)) && step % 4 == 0;
        evals_twin += scalar_of(p + 12, len, "lm loss validation vs samples", &step) == 1.25 && step == 8;
        by_samples += !isnan(scalar_of(p + 12, len, "lm loss vs samples", &step)) && step % 4 == 0;
        evals += scalar_of(p + 12, len, "lm loss validation", &step) == 1.25 && step == 2;
        routers += scalar_of(p + 12, len, "moe/load_max_over_mean_layer_3", &step) == 2;
        routers += scalar_of(p + 12, len, "moe/aux_loss_layer_0", &step) == 0.5;
        routers += scalar_of(p + 12, len, "load_balancing_loss", &step) == 3;
        routers += scalar_of(p + 12, len, "moe_dropped", &step) == 1;
        routers += scalar_of(p + 12, len, "comm/tp_wait_ms", &step) == 1.5 * (double)step;
        routers += scalar_of(p + 12, len, "straggler/rank_3", &step) == 0.25;
        CHECK(isnan(scalar_of(p + 12, len, "z_loss", &step)), "a loss that is not there");
        configs += memmem(p + 12, len, "num_layers", 10) != NULL;
        records++;
        p += 16 + len;
    }
    CHECK(p == end && steps == 4 && configs == 1 && evals == 1 && by_samples == 3, "%d records, %d %d %d %d",
          records, steps, configs, evals, by_samples);
    CHECK(routers == 4 * 5 + 3, "%d numbers of the routers, groups and stragglers", routers);
    CHECK(worlds == 4 && evals_twin == 1 && twins == 4 * 7, "over samples: %d %d %d", worlds, evals_twin,
          twins);
    free(text);
    free(name);
    free(run);
}

/* ---- Trace ---- */

static void test_trace(void)
{
    Trace t;
    Grid g;
    Arena ring = {.name = "counting"};
    GridSpec spec = {.size = {1, 1, 1, 1, 1}, .order = {AXIS_TP, AXIS_CP, AXIS_EP, AXIS_DP, AXIS_PP}};
    PipeShape shape = {.kind = SCHEDULE_1F1B, .p = 1, .v = 1};
    const char *listed[] = {"2", "4"};
    Config c = *cfg;
    char *dir = new_dir("trace"), *text = path_of(dir, "trace.json"), why[WHY], said[TRACE_SAID];
    grid_open(&g, &spec, 1, 0);
    trace_open(&t, &c, 100, &ring);
    CHECK(!t.ring && !t.max && !ring.used, "nothing is listed, nothing is taken");
    trace_step(&t, 1);
    CHECK(trace_begin(&t) == 0 && trace_write(&t, dir, &g, &shape, said, why) && access(text, F_OK), "off");
    trace_close(&t);
    c.trace_steps = (List){2, listed};
    trace_open(&t, &c, 5, &ring);
    CHECK(!t.ring && ring.used >= 10 * sizeof(TraceEvent), "%zu bytes planned", ring.used);
    arena_open(&ring, "ring", ring.used);
    trace_open(&t, &c, 5, &ring);
    trace_start(&t, &g);
    double clock = now();
    for (int64_t step = 1; step <= 5; step++) {
        trace_step(&t, step);
        double t0 = trace_begin(&t);
        CHECK((t0 > 0) == (step == 2 || step == 4), "step %lld", (long long)step);
        trace_end(&t, SPAN_SAVE, t0);
        for (uint16_t mb = 0; mb < 3; mb++) {
            double a = clock += 0.01;
            trace_instr(&t, &(Instr){.op = I_F, .unit = WHOLE, .mb = mb}, a, a + 1e-3);
            trace_instr(&t, &(Instr){.op = I_B, .unit = WHOLE, .mb = mb}, a + 1e-3, a + 3e-3);
        }
        double a = clock += 0.01;
        trace_instr(&t, &(Instr){.op = I_S}, a, a + 1e-3);
        CHECK(trace_due(&t, step) == (step == 2 || step == 4), "due after step %lld", (long long)step);
    }
    CHECK(t.n == 16 && t.max == 10, "%lld events", (long long)t.n);
    CHECK(trace_write(&t, dir, &g, &shape, said, why), "%s", why);
    CHECK(strstr(said, "oldest 6 events"), "%s", said);
    json_t *o = json_load_file(text, 0, NULL), *events = json_object_get(o, "traceEvents"), *e;
    int found[6] = {0};
    double last = -1;
    size_t i;
    json_array_foreach(events, i, e) {
        const char *ph = json_string_value(json_object_get(e, "ph")),
                   *name = json_string_value(json_object_get(e, "name"));
        json_t *args = json_object_get(e, "args");
        found[0] += !strcmp(name, "process_name") &&
                    !strncmp(json_string_value(json_object_get(args, "name")), "rank 0 (", 8);
        if (strcmp(ph, "X"))
            continue;
        found[1]++;
        CHECK(number(e, "ts") >= last && number(e, "dur") >= 0 && number(e, "pid") == 0, "%s is out of order",
              name);
        last = number(e, "ts");
        found[2] += number(args, "step") == 4;
        found[3] += !strcmp(name, "F2.0") && fabs(number(e, "dur") - 1000) < 1;
        found[4] += !strcmp(name, "S");
        found[5] += !strcmp(name, "save");
    }
    CHECK(found[0] == 1 && found[1] == 10 && found[2] == 8 && found[3] == 1, "kept");
    CHECK(found[4] == 2 && found[5] == 1, "the newest are kept: %d steps, %d saves", found[4], found[5]);
    json_decref(o);
    trace_close(&t);
    const char *row[] = {"1", "2", "3", "4", "5", "6", "7", "9"};
    int64_t due = 0;
    c.trace_steps = (List){8, row};
    arena_reset(&ring, 0);
    trace_open(&t, &c, 1, &ring);
    for (int64_t step = 1; step <= 9; step++) {
        trace_step(&t, step);
        due = 10 * due + (trace_due(&t, step) ? step : 0);
    }
    CHECK(due == 120400709, "written after these steps: %lld", (long long)due);
    trace_close(&t);
    arena_close(&ring);
    grid_close(&g);
    free(text);
    free(dir);
}

/* ---- The report ---- */

static void test_scale(void)
{
    char t[32], u[32];
    CHECK(fabs(scale_step(0.19) - 0.2) < 1e-12 && scale_step(5) == 5 && scale_step(5.1) == 10, "steps");
    CHECK(!strcmp(scale_label(t, 0.2, 0.2, 1), "0.2") && !strcmp(scale_label(u, 6e-4, 2e-4, 6e-4), "6e-4"),
          "%s %s", t, u);
    CHECK(!strcmp(scale_label(t, 50000, 50000, 150000), "50k") &&
              !strcmp(scale_label(u, 150000, 50000, 150000), "150k"),
          "one axis, two ways: %s %s", t, u);
    CHECK(!strcmp(scale_label(t, 5e-4, 5e-4, 1e-3), "0.0005") &&
              !strcmp(scale_label(u, 1e-3, 5e-4, 1e-3), "0.0010"),
          "one axis, two ways: %s %s", t, u);
    CHECK(!strcmp(scale_label(t, 12000, 1000, 12000), "12,000") &&
              !strcmp(scale_label(u, 2.5e6, 5e5, 3e6), "2.5M"), "%s %s", t, u);
    CHECK(!strcmp(scale_label(t, 0, 1, 5), "0"), "%s", t);

    /* thinning: one spike up, one down, one gap among 100000 points */
    int64_t many = 100000, *keep = xcalloc((size_t)many, sizeof *keep), kept;
    double *x = xcalloc((size_t)many, sizeof *x), *y = xcalloc((size_t)many, sizeof *y);
    for (int64_t i = 0; i < many; i++) {
        x[i] = (double)i;
        y[i] = i >= 70000 && i < 71000 ? NAN : sin((double)i);
    }
    y[31234] = 50;
    y[64321] = -50;
    kept = scale_thin(x, y, many, keep);
    int up = 0, down = 0, gap = 0;
    for (int64_t k = 0; k < kept; k++) {
        up += y[keep[k]] == 50;
        down += y[keep[k]] == -50;
        gap += isnan(y[keep[k]]);
        CHECK(!k || keep[k] > keep[k - 1], "in order");
    }
    CHECK(up == 1 && down == 1 && gap >= 1 && kept <= 2004 && keep[0] == 0 && keep[kept - 1] == many - 1,
          "%lld kept", (long long)kept);
    free(keep);
    free(x);
    free(y);
}

/* The text that svg_axis draws up to the value `most` over px pixels; valid until the next call. */
static const char *axis_of(double most, double px)
{
    static char *text;
    size_t size;
    free(text);
    FILE *f = open_memstream(&text, &size);
    svg_axis(&(Svg){f, 0, px, most}, 0, 10, "a 'b' & <c>");
    fclose(f);
    return text;
}

static int count(const char *text, const char *what)
{
    int n = 0;
    for (const char *p = text; (p = strstr(p, what)); p += strlen(what))
        n++;
    return n;
}

/* svg_axis: round ticks, as many as have room; titles are escaped. */
static void test_axis(void)
{
    const char *t = axis_of(2, 300);
    CHECK(count(t, "<line") == 5 && strstr(t, ">0.5<") && strstr(t, ">2.0<"), "half a step: %s", t);
    CHECK(strstr(t, ">a &#39;b&#39; &amp; &lt;c&gt;</text>") && strstr(t, "class=\"tick\""),
          "not escaped: %s", t);
    t = axis_of(1000, 16000);
    CHECK(count(t, "<line") > 100 && strstr(t, ">1000<"), "%d ticks on a wide axis", count(t, "<line"));
}

/* Every tag that opens closes, in order; attributes are quoted; text holds no bare < or &. Returns the
 * number of tags, or a negative number with a message printed. */
static int check_html(const char *s)
{
    static const char *const empty[] = {"meta", "link", "input"};
    char stack[64][16];
    int depth = 0, tags = 0;
    for (const char *p = s; *p; p++) {
        if (*p == '&') {
            size_t n = strcspn(p, "; <");
            CHECK(p[n] == ';' && n < 8, "bare &: %.40s", p);
            if (p[n] != ';')
                return -1;
        }
        if (*p != '<' || p[1] == '!')
            continue;
        int close = p[1] == '/', quote = 0, self;
        char name[16] = "";
        sscanf(p + 1 + close, "%15[a-zA-Z0-9]", name);
        if (!*name)
            return printf("# bare <: %.40s\n", p), -1;
        for (p++; *p && (quote || *p != '>'); p++)
            if (*p == '"')
                quote = !quote;
            else if (*p == '<')
                return printf("# < in a tag: %.40s\n", p), -1;
        self = p[-1] == '/';
        for (size_t i = 0; i < sizeof empty / sizeof *empty; i++)
            self |= !strcmp(name, empty[i]);
        tags++;
        if (close) {
            if (!depth || strcmp(stack[depth - 1], name))
                return printf("# </%s> closes <%s>\n", name, depth ? stack[depth - 1] : ""), -1;
            depth--;
        } else if (!self) {
            if (depth == 64)
                return -1;
            strcpy(stack[depth++], name);
            if (!strcmp(name, "script") || !strcmp(name, "style")) {
                const char *end = strstr(p, !strcmp(name, "script") ? "</script>" : "</style>");
                if (!end)
                    return -1;
                p = end - 1;
            }
        }
    }
    return depth ? -1 : tags;
}

static char *report_of(const char *dir)
{
    char why[WHY];
    CHECK(report_write(dir, why), "%s", why);
    char *page = slurp(dir, "report.html", NULL);
    CHECK(page && check_html(page) > 20, "%s", dir);
    CHECK(page && !strstr(page, "http:") && !strstr(page, "https:") && !strstr(page, "src=") &&
              !strstr(page, "@import") && !strstr(page, "url("),
          "%s asks for the network", dir);
    return page;
}

/* A run that began at iteration 12 of another one. Its lines are of 10 steps and of one; its first start died
 * and has no end. */
static void test_report_steps(void)
{
    char *dir = new_dir("steps"), *page;
    write_text(dir, "metrics.jsonl",
               "{\"iteration\": 22, \"elapsed_ms\": 10, \"forward_ms\": 10}\n"
               "{\"iteration\": 23, \"elapsed_ms\": 10, \"forward_ms\": 10, \"eval_ms\": 110}\n");
    write_text(dir, "run.json", "{\"sessions\": [{\"started\": 100, \"origin\": 90, \"from\": 12}, "
               "{\"started\": 200, \"origin\": 90, \"from\": 20, \"ended\": 300}]}");
    page = report_of(dir);
    const char *time = strstr(page, "\"of\":\"time\"");
    CHECK(time && strstr(time, "\"x\":[22,23],\"y\":[0.1,0.22]"),
          "training time from the first start on");
    CHECK(strstr(page, "evaluation</td><td class=\"n\">10.0 ms a step</td><td class=\"n\">50.0 %</td>"),
          "a line counts with its steps");
    CHECK(strstr(page, "<dt>Time</dt><dd class=\"v\">3:30<"), "the time of a start that died");
    free(page);
    free(dir);
}

/* A spike of one step is in the means around it and in none after them. */
static void test_report_spike(void)
{
    char *dir = new_dir("spike"), *path = path_of(dir, "metrics.jsonl"), *page;
    FILE *f = fopen(path, "we");
    for (int i = 1; i <= 1000; i++)
        fprintf(f, "{\"iteration\": %d, \"elapsed_ms\": 10, \"grad_norm\": %s}\n", i,
                i == 500 ? "1e20" : "3");
    fclose(f);
    page = report_of(dir);
    const char *mean = strstr(page, "\"name\":\"Gradient norm\""),
               *y = mean ? strstr(mean, "\"y\":[3,") : NULL, *end = y ? strchr(y, ']') : NULL;
    CHECK(end && !memcmp(end - 4, ",3,3", 4), "the means end in %.*s", end ? 20 : 0, end ? end - 20 : "");
    free(page);
    free(path);
    free(dir);
}

/* A run that is slow and resumed again and again: the report shows the last times. */
static void test_report_last_times(void)
{
    char *dir = new_dir("times"), *path = path_of(dir, "metrics.jsonl"), *page;
    FILE *f = fopen(path, "we");
    for (int i = 1; i <= 260; i++)
        fprintf(f, "{\"iteration\": %d, \"elapsed_ms\": 10, \"stragglers\": [%s]}\n", i,
                i % 2 ? "" : "{\"rank\": 3, \"host\": \"a\", \"where\": \"tp 0\", \"phase\": \"forward\", "
                             "\"excess\": 0.25}");
    fclose(f);
    free(path);
    path = path_of(dir, "run.json");
    f = fopen(path, "we");
    fprintf(f, "{\"sessions\": [{\"from\": 0}");
    for (int i = 1; i <= 130; i++)
        fprintf(f, ", {\"from\": %d}", 2 * i);
    fprintf(f, "]}\n");
    fclose(f);
    page = report_of(dir);
    CHECK(strstr(page, ">260 to 260<") && strstr(page, ">62 to 62<") && !strstr(page, ">60 to 60<") &&
              strstr(page, "their own work, the last 100 times"),
          "the last 100 stragglers");
    CHECK(strstr(page, "\"marks\":[134,136") && strstr(page, ",258,260]"), "the last 64 resumptions");
    free(page);
    free(path);
    free(dir);
}

static void test_report(void)
{
    char *dir = new_dir("empty"), *page = report_of(dir);
    free(page);
    free(dir);

    dir = path_of(top, "lines");                   /* with huge, infinite and missing values */
    page = report_of(dir);
    CHECK(strstr(page, "train x &lt;y&gt; &amp; &#39;z&#39;") && strstr(page, "not finite"),
          "escaped, and said");
    CHECK(strstr(page, "<td>3</td><td class=\"n\">&lt;n2&gt;</td><td class=\"n\">tp 1 cp 0 dp 0 pp 1</td>"
                       "<td class=\"n\">backward</td><td class=\"n\">25 %</td><td class=\"n\">2 to 4</td>"),
          "stragglers");
    CHECK(strstr(page, "<td>tp</td><td class=\"n\">6.00 ms</td><td class=\"n\">0.25 ms</td>"), "messages");
    CHECK(strstr(page, "class=\"loads\">{\"layers\":[0,3],\"load\":[[1,1],[2,0]]}") &&
              strstr(page, "after iteration 4: pale"), "load of the experts");
    CHECK(strstr(page, "\"name\":\"worst layer\",\"c\":\"a\",\"dots\":29,\"x\":[1,2,3,4],\"y\":[2,2,2,2]}") &&
              strstr(page, "\"x\":[1,2,3,4],\"y\":[1.5,1.5,1.5,1.5]}"), "largest loads over time");
    free(page);
    free(dir);

    dir = path_of(top, "planned");                 /* unknown values leave no empty place */
    mkdir(dir, 0777);
    log_planned(dir);
    page = report_of(dir);
    const char *card = strstr(page, "<h2>Memory</h2>"), *end = card ? strstr(card, "</section>") : NULL;
    CHECK(end && !memmem(card, (size_t)(end - card), "n/a", 3) &&
              memmem(card, (size_t)(end - card), "in all", 6),
          "memory");
    const char *sum = strstr(page, "in all"), *host = sum ? strstr(sum, ">of the host<") : NULL;
    CHECK(host && memmem(sum, (size_t)(host - sum), ">5.9 KiB<", 9) && strstr(host, ">2.9 KiB<"),
          "the total is the planned one, and the host's memory is beside it");
    CHECK(strstr(page, "class=\"dot other\"") && strstr(page, "other: the rest of a step") &&
              strstr(page, "A wait inside of forward, backward or the optimizer&#39;s step counts there"),
          "other is explained");
    CHECK(strstr(page, "\"of\":\"tokens\"") && strstr(page, "\"of\":\"time\"") &&
              strstr(page, "\"unit\":\"seconds\""),
          "no axis of tokens or time");
    CHECK(strstr(page, "train generate load=planned"), "where a sample would come from");
    free(page);
    free(dir);

    dir = path_of(top, "lines");                   /* resumed */
    log_resumed(dir);
    write_text(dir, "restarts.jsonl",
               "{\"time\": 1.5, \"code\": 7, \"cause\": \"rank <3> died\", \"lost_s\": 12.25, "
               "\"iteration\": 3}\n{\"cause\": \"full\", \"lost_s\": 1, \"iteration\": 0}\n[]\n"
               "{\"cause\": 7}\n"
               "{\"cause\": \"again\", \"lost_s\": 1, \"iteration\": null}\n{\"cau");
    page = report_of(dir);
    CHECK(strstr(page, "Goodput</dt>") && strstr(page, "; 3 failures<"), "goodput");
    CHECK(strstr(page, "<th>1970-01-01 00:00:01</th><td class=\"text\">rank &lt;3&gt; died; 12.2 s lost; ") &&
              strstr(page, "; 12.2 s lost; went on after iteration 3<"),
          "a failure");
    CHECK(strstr(page, "full; 1000 ms lost; began again<") &&
              strstr(page, "again; 1000 ms lost; was not started again<"),
          "failures");
    CHECK(strstr(page, "in 2 starts") && strstr(page, "\"marks\":[3]"), "resumed");
    CHECK(strstr(page, "7 tokens of &lt;text&gt;") && strstr(page, "<b>In the</b> beginning &amp; so on"),
          "facts and sample");
    free(page);
    free(dir);

    dir = new_dir("one");
    write_text(dir, "metrics.jsonl", "{\"iteration\": 1, \"lm_loss\": 2}\n");
    page = report_of(dir);
    CHECK(strstr(page, "\"dots\":29,\"x\":[1],\"y\":[2]}"), "one point is a dot");
    CHECK(!strstr(page, "class=\"loads\"") && !strstr(page, "worst layer"), "no experts, no load of them");
    CHECK(!strstr(page, "class=\"notice\""), "a notice of nothing");
    free(page);
    write_text(dir, "metrics.jsonl", "{\"iteration\": 1, \"lm_loss\": 2, \"tokens_per_second\": -1e300}\n");
    page = report_of(dir);
    CHECK(strstr(page, "<dd class=\"v\">-1e+300<small> tokens/s<"), "a number of more digits than have room");
    free(page);
    write_text(dir, "metrics.jsonl", "{\"iteration\": 1, \"lm_loss\": 2, \"skipped_iterations\": 3}\n");
    page = report_of(dir);
    CHECK(strstr(page, "Steps that the weights have not seen, skipped by the loss scaler or by on_spike: "
                       "3. "), "skipped steps");
    free(page);
    write_text(dir, "metrics.jsonl",
               "{\"iteration\": 5, \"valid_loss\": 2}\nrubbish\n{\"iteration\": 9, \"valid_loss\": null}\n"
               "[1]\n{\"iteration\": 10, \"valid_loss\": 1.5}\n{\"iteration\": 11, \"moe\": 7}\n"
               "{\"iteration\": 12, \"moe\": {\"layers\": [1], \"load\": [[]]}}\n{\"iter");
    write_text(
        dir, "run.json",
        "{\"sessions\": 7, "
        "\"memory\": {\"<b>\": {\"planned\": 10, \"used\": null}}, \"facts\": {\"x\\\"\": 3, \"<\": \"&\"}}");
    write_text(dir, "trace.json", "{\"traceEvents\": [{\"ph\": \"X\", \"cat\": \"S\", \"pid\": 99, "
               "\"args\": {\"step\": 1}}, 4]}");
    write_text(dir, "config.yaml", "a: '</pre><b>'\n");
    write_text(dir, "samples.jsonl", "{\"text\": \"</script><script>alert(1)</script>\"}\n");
    page = report_of(dir);
    CHECK(!strstr(page, "<script>alert") && strstr(page, "&lt;/script&gt;") &&
              strstr(page, "a: &#39;&lt;/pre&gt;"),
          "escaped");
    CHECK(strstr(page, "perplexity 4.482, its lowest"), "evaluations alone");
    free(page);
    write_text(dir, "metrics.jsonl",
               "{\"iteration\": 5, \"valid_loss\": 1.5}\n{\"iteration\": 9, \"valid_loss\": null}\n");
    page = report_of(dir);
    CHECK(strstr(page, ", lowest 1.5000 at 5<"), "a loss that is not finite is not the lowest");
    free(page);
    write_text(dir, "metrics.jsonl", "{\"iteration\": 9, \"valid_loss\": null}\n");
    page = report_of(dir);
    CHECK(strstr(page, "perplexity nan<"), "no loss is finite");
    free(page);
    free(dir);

    dir = path_of(top, "trace");
    page = report_of(dir);
    /* seven instructions of the last step, and the six of the schedule beneath them */
    CHECK(count(page, "[\"F\",") + count(page, "[\"B\",") + count(page, "[\"S\",") == 13 &&
              strstr(page, "[\"F\",2,0,\"F2.0\","), "bars");
    /* F takes 1 ms and B 2 ms. Three microbatches begin 10 ms apart and compute 9 of 23 ms. */
    CHECK(strstr(page, "<td class=\"n\">60.9 %</td><td class=\"n\">0.0 %</td>"), "the bubble");
    free(page);
    free(dir);

    dir = new_dir("long");                         /* thousands of steps */
    char *path = path_of(dir, "metrics.jsonl");
    FILE *f = fopen(path, "we");
    for (int i = 1; i <= 20000; i++)
        fprintf(f, "{\"iteration\": %d, \"lm_loss\": %.17g, \"grad_norm\": %g, \"elapsed_ms\": 10, "
                "\"forward_ms\": 3, \"tokens_per_second\": 1000, \"learning_rate\": 1e-4}\n", i, 2 + sin(i),
                i % 7 + 0.5);
    for (int i = 100; i <= 20000; i += 100)
        fprintf(f, "{\"iteration\": %d, \"valid_loss\": 2}\n", i);
    fclose(f);
    page = report_of(dir);
    CHECK(count(page, "\"name\":\"each recorded step\"") == 3 && strlen(page) < 500000, "%zu bytes",
          strlen(page));
    CHECK(strstr(page, "means of 401 recorded steps"), "means");
    free(page);
    free(path);
    free(dir);
}

/* test_report report DIR...: makes the reports of run directories anew, to look at a changed layout. */
static int remake(int n, char **dir)
{
    char why[WHY];
    for (int i = 0; i < n; i++)
        if (!report_write(dir[i], why))
            return printf("%s\n", why), EXIT_RESOURCE;
    return EXIT_DONE;
}

int main(int argc, char **argv)
{
    if (argc > 2 && !strcmp(argv[1], "report"))
        return remake(argc - 2, argv + 2);
    run_dir_open("report");
    test_events();
    test_resumed_events();
    test_long_events();
    test_trace();
    test_scale();
    test_axis();
    test_report_steps();
    test_report_spike();
    test_report_last_times();
    test_report();
    return run_dir_end();
}
