/* test_metrics -- the metrics table, the console, and a run's log through resumes and system faults */
#define _GNU_SOURCE
#include "run_dir.h"
#include "about.h"
#include "console.h"
#include "rank_log.h"
#include "routers.h"
#include <math.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

/* ---- The table ---- */

static Token twofold(Comm *c, void *buf, int64_t n, Dtype type, ReduceOp op)
{
    /* reduces as if the group's other rank held the same numbers plus 2 */
    double *v = buf;
    CHECK(type == F64 && c->size == 2, "type %d", type);
    for (int64_t i = 0; i < n; i++)
        v[i] = op == OP_SUM ? v[i] + v[i] + 2 : v[i] + 2;
    return 0;
}

static void no_wait(Comm *c, Token t) { (void)c, (void)t; }

static void test_table(void)
{
    static const char *const contract[] = {
        "iteration", "consumed_samples", "consumed_tokens", "lm_loss", "grad_norm", "learning_rate",
        "loss_scale", "global_batch_size", "elapsed_ms", "tokens_per_second", "tflops_per_device", "mfu",
        "memory_bytes", "skipped_iterations", "nan_iterations"};
    for (int i = 0; i < 15; i++)
        CHECK(!strcmp(metric_defs[i].name, contract[i]), "row %d is %s", i, metric_defs[i].name);
    Metrics m = step_at(5), before = m;
    for (int i = 0; i < METRIC_COUNT; i++) {
        double v = metric_get(&m, i);
        metric_set(&m, i, v + 1);
        CHECK(metric_get(&m, i) == v + 1, "%s", metric_defs[i].name);
        metric_set(&m, i, v);
    }
    Comm pair = {.size = 2, .all_reduce = twofold, .wait = no_wait}, self;
    double more[METRIC_COUNT + 2];
    more[METRIC_COUNT] = 5, more[METRIC_COUNT + 1] = 7;
    metrics_reduce(&m, &pair, more, 2);
    CHECK(more[METRIC_COUNT] == 12 && more[METRIC_COUNT + 1] == 16, "sums beside the table: %g, %g",
          more[METRIC_COUNT], more[METRIC_COUNT + 1]);
    for (int i = 0; i < METRIC_COUNT; i++) {
        double more = metric_defs[i].ranks == RANKS_MAX ? 2 : metric_defs[i].ranks == RANKS_MEAN ? 1 : 0;
        CHECK(metric_get(&m, i) == metric_get(&before, i) + more, "%s: %g", metric_defs[i].name,
              metric_get(&m, i));
    }
    comm_self_open(&self, "self");
    m = before;
    metrics_reduce(&m, &self, NULL, 0);
    CHECK(!memcmp(&m, &before, sizeof m), "a group of one changes nothing");
}

static void test_memory(void)
{
    const int64_t size = 32 << 20;
    int64_t before = metrics_memory_resident(), anonymous, file;
    int fd = open(top, O_TMPFILE | O_RDWR, 0600);
    CHECK(before > 100000, "%lld", (long long)before);
    char *p = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(p, 1, (size_t)size);
    anonymous = metrics_memory_resident() - before;
    CHECK(SANITIZED || llabs(anonymous - size) < size / 8, "%lld", (long long)anonymous);
    CHECK(write(fd, p, (size_t)size) == size, "%s", strerror(errno));
    munmap(p, (size_t)size);
    before = metrics_memory_resident();
    p = mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, fd, 0);
    int64_t sum = 0;
    for (int64_t i = 0; p != MAP_FAILED && i < size; i += 4096)
        sum += p[i];
    file = metrics_memory_resident() - before;
    CHECK(sum == size / 4096 && (SANITIZED || llabs(file) < size / 8), "a mapped file counts: %lld",
          (long long)file);
    munmap(p, (size_t)size);
    close(fd);
}

/* ---- Console ---- */

/* The wanted lines come from the Python of Megatron-LM's training_log, except for our own fields. */
static void test_progress_line(void)
{
    char text[1024];
    Metrics m = {.iteration = 1200, .consumed_samples = 19200, .elapsed_ms = 310.25,
                 .tflops_per_device = 0.381, .learning_rate = 5.9e-4, .global_batch_size = 16,
                 .lm_loss = 1.3806812, .loss_scale = 1, .grad_norm = 0.41928, .tokens_per_second = 13203.2,
                 .mfu = 0.4321, .memory_bytes = 3 << 29, .params_norm = NAN, .num_zeros = NAN};
    console_progress_line(text, sizeof text, &m, "", 5000, 3725.4, (struct timespec){1700000000, 12345678});
    CHECK(!strcmp(text,
        " [2023-11-14 22:13:20.012345] iteration     1200/    5000 | consumed samples:        19200 |"
        " elapsed time per iteration (ms): 310.2 | throughput per GPU (TFLOP/s/GPU): 0.4 |"
        " learning rate: 5.900000E-04 | global batch size:    16 | lm loss: 1.380681E+00 | loss scale: 1.0 |"
        " grad norm: 0.419 | number of skipped iterations:   0 | number of nan iterations:   0 |"
        " tokens/s: 13203.2 | MFU: 43.2% | memory (GiB): 1.500 | time left: 1:02:05 |"), "%s", text);
    m = (Metrics){.iteration = 123456789, .consumed_samples = 12345678901234, .elapsed_ms = 1e7,
                  .lm_loss = NAN, .tflops_per_device = NAN, .global_batch_size = 12345, .loss_scale = 65536,
                  .grad_norm = 1e30, .skipped_iterations = 1234, .nan_iterations = 2,
                  .tokens_per_second = NAN, .mfu = NAN, .params_norm = 12.3456, .num_zeros = 123456789012};
    console_progress_line(text, sizeof text, &m, "", 123456789, -1, (struct timespec){1700000000, 12345678});
    CHECK(!strcmp(text,
        " [2023-11-14 22:13:20.012345] iteration 123456789/123456789 | consumed samples: 12345678901234 |"
        " elapsed time per iteration (ms): 10000000.0 | throughput per GPU (TFLOP/s/GPU): nan |"
        " learning rate: 0.000000E+00 | global batch size: 12345 | lm loss: NAN | loss scale: 65536.0 |"
        " grad norm: 1000000000000000019884624838656.000 | num zeros: 123456789012 | params norm: 12.346 |"
        " number of skipped iterations: 1234 |"
        " number of nan iterations:   2 |"
        " tokens/s: n/a | MFU: n/a | memory (GiB): 0.000 | time left: n/a |"), "%s", text);
    CHECK(!strcmp(console_duration(text, 59.6), "1:00"), "%s", text);
    CHECK(!strcmp(console_duration(text, 3 * 86400 + 3723), "3d 01:02:03"), "%s", text);
}

/* The number of columns of the widest line on the screen; -1 for an escape that does not end. */
static int widest(const char *s)
{
    int cols = 0, most = 0;
    for (; *s; s++)
        if (*s == '\r' || *s == '\n') {
            cols = 0;
        } else if (*s == '\033') {
            s += strcspn(s, "mK");
            if (!*s)
                return -1;
        } else if ((*s & 0xc0) != 0x80) {
            most = ++cols > most ? cols : most;
        }
    return most;
}

/* Runs a console on a pseudo terminal of `width` columns; returns the bytes that the terminal got. */
static char *terminal(int width, int64_t steps, const char *style)
{
    char *text = xcalloc(1, 65536);
    int master = posix_openpt(O_RDWR | O_NOCTTY), n = 0;
    if (master < 0 || grantpt(master) || unlockpt(master))
        die(EXIT_RESOURCE, "test", "no pseudo terminal: %s; change: mount /dev/pts", strerror(errno));
    int fd = open(ptsname(master), O_RDWR | O_NOCTTY);
    struct winsize size = {.ws_row = 24, .ws_col = (unsigned short)width};
    ioctl(fd, TIOCSWINSZ, &size);
    setenv("TERM", "xterm", 1);
    setenv("LC_ALL", strcmp(style, "ascii") ? "C.UTF-8" : "C", 1);
    if (!strcmp(style, "plain"))
        setenv("NO_COLOR", "1", 1);
    else
        unsetenv("NO_COLOR");
    Console c;
    console_open(&c, fd, LOG_STYLE_AUTO, 1000000);
    for (int64_t i = 1; i <= steps; i++) {
        Metrics m = step_at(i);
        m.tokens_per_second = 12345;
        c.drawn = 0;                               /* redraw without waiting */
        console_step(&c, &m);
        console_line(&c, &m, "");
    }
    console_status(&c, "evaluating, batch 3");
    console_eval(&c, steps, 1.5);
    console_note(&c, "a note");
    console_close(&c);
    fcntl(master, F_SETFL, O_NONBLOCK);
    for (ssize_t r; n < 65000 && (r = read(master, text + n, (size_t)(65000 - n))) > 0;)
        n += (int)r;
    close(fd);
    close(master);
    return text;
}

static void test_live_line(void)
{
    char *text = terminal(80, 5, "utf8");
    CHECK(strstr(text, "5/1000000") && strstr(text, "loss 4.0000") && strstr(text, "12.3k tok/s"), "%s",
          text);
    CHECK(strstr(text, "left") && strstr(text, "━") == NULL && strstr(text, "─"), "%s", text);
    CHECK(strstr(text, "evaluating, batch 3") && strstr(text, "validation loss 1.5000"), "%s", text);
    CHECK(strstr(text, "\r\033[Ka note\r\n"), "a note stands on a line of its own: %s", text);
    CHECK(widest(text) <= 79 && widest(text) > 60, "%d columns", widest(text));
    CHECK(!strcmp(text + strlen(text) - 2, "\r\n") && !strstr(text, "number of nan"),
          "ends with a whole line");
    CHECK(
        strstr(text, "\r\033[K       2/1000000  loss 5.0000  12.3k tok/s  grad norm 0.250  lr 3.33e-04\r\n"),
        "a logged step stays above the live line: %s", text);
    free(text);
    text = terminal(30, 3, "utf8");
    *strstr(text, " iteration") = 0;               /* without the logged lines, which may be wide */
    CHECK(widest(text) <= 29 && strstr(text, "3/1000000") && !strstr(text, "tok/s"), "narrow: %s", text);
    free(text);
    text = terminal(80, 3, "plain");
    CHECK(!strstr(text, "\033[3") && !strstr(text, "\033[1m") && strstr(text, "─"), "NO_COLOR: %s", text);
    free(text);
    text = terminal(80, 3, "ascii");
    for (const char *p = text; *p; p++)
        CHECK(!(*p & 0x80), "a byte that is no ASCII where the locale is C");
    free(text);
}

/* ---- Routers ---- */

/* Three layers of four experts: even choices, all to one expert, and something between. */
static void test_routers(void)
{
    static const int layer[] = {1, 3, 7};
    int64_t count[] = {5, 5, 5, 5, 0, 0, 20, 0, 0, 7, 8, 2, 6, 4, 1};
    RouterRow row[] = {{0.5, 0.25, 1}, {2, 0.75, 0.5}, {0.5, 1.25, 0.75}};
    RouterMetrics m = {.layers = 3, .experts = 4, .layer = layer, .count = count, .row = row,
                       .balance = "load_balancing_loss", .balance_coeff = 0.5, .z_coeff = 0.125};
    double spread = -0.4 * log(0.4) - 0.1 * log(0.1) - 0.3 * log(0.3) - 0.2 * log(0.2);
    char text[160], *json = routers_json(&m);
    *json = '{';
    char *whole = xasprintf("%s}", json);
    json_t *o = json_loads(whole, 0, NULL), *moe = json_object_get(o, "moe");
    const double want[][3] = {{0.5, 2, 0.5}, {0.25, 0.75, 1.25}, {1, 4, 1.6}, {log(4), 0, spread},
                              {1, 0.5, 0.75}, {0, 7, 1}, {1, 3, 7}};
    const double all[] = {3, 2.25, 4, 0, 0.75, 8};
    static const char *const name[] = {"aux_loss", "z_loss", "load_max_over_mean", "load_entropy",
                                       "router_entropy", "dropped", "layers"};
    CHECK(o && json_object_size(moe) == 8, "%s", whole);
    for (int i = 0; i < 7; i++)
        for (size_t k = 0; k < 3; k++) {
            double x = json_number_value(json_array_get(json_object_get(moe, name[i]), k));
            CHECK(fabs(x - want[i][k]) < 1e-15, "%s of row %zu: %.17g", name[i], k, x);
        }
    for (int i = 0; i < 6; i++) {
        snprintf(text, sizeof text, "moe_%s", name[i]);
        double x = json_number_value(json_object_get(o, text));
        CHECK(x == all[i], "%s: %.17g", text, x);
    }
    for (size_t k = 0; k < 12; k++) {
        json_t *load = json_array_get(json_object_get(moe, "load"), k / 4);
        CHECK(json_integer_value(json_array_get(load, k % 4)) == count[k / 4 * 5 + k % 4], "expert %zu", k);
    }
    CHECK(!strcmp(routers_fields(&m, text), " load_balancing_loss: 2.000000E+00 | z_loss: 6.000000E+00 |"),
          "%s", text);
    row[0].balance = NAN;
    CHECK(!strcmp(routers_fields(&m, text), " z_loss: 6.000000E+00 |"), "%s", text);
    json_decref(o);
    free(whole);
    free(json);
}

/* ---- Groups ---- */

/* Two groups over two steps, one of which has no times. */
static void test_groups(void)
{
    RankLog r = {.n = 0};
    char *none = rank_log_json(&r);
    CHECK(!*none, "no groups: %s", none);
    rank_log_add(&r, (GroupTimes[]){{"tp", 1, 0.5, 100}, {"pp", NAN, NAN, 8}}, 2);
    rank_log_add(&r, (GroupTimes[]){{"tp", 3, 0.25, 300}, {"pp", NAN, NAN, 24}}, 2);
    char *json = rank_log_json(&r);
    CHECK(!strcmp(json, ", \"comm\": {\"tp\": {\"wait_ms\": 2, \"busy_ms\": 0.375, \"bytes\": 200}, "
                        "\"pp\": {\"wait_ms\": null, \"busy_ms\": null, \"bytes\": 16}}"),
          "means a step: %s", json);
    free(none);
    free(json);
}

/* ---- metrics.jsonl ---- */

static json_t *read_lines(const char *dir)
{
    json_t *all = json_array();
    char *text = slurp(dir, "metrics.jsonl", NULL), *rest = text, *line;
    while (rest && *rest && (line = strsep(&rest, "\n")) && rest) {
        json_t *o = json_loads(line, 0, NULL);
        CHECK(json_is_object(o), "%s", line);
        json_array_append_new(all, o);
    }
    CHECK(!rest || !*rest, "the last line is torn: %s", rest);
    free(text);
    return all;
}

static void test_lines(void)
{
    char *dir = new_dir("lines");
    int null = open("/dev/null", O_WRONLY), saved = redirect(null);
    Log *l = open_log(dir, 0, 4);
    for (int64_t i = 1; i <= 4; i++) {
        Metrics m = step_at(i);
        m.lm_loss = i == 2 ? NAN : i == 3 ? 1.7976931348623157e308 : i == 4 ? 0.1 : m.lm_loss;
        m.grad_norm = i == 2 ? INFINITY : m.grad_norm;
        log_step(l, &m);
        if (i == 2)
            log_eval(l, i, 1.25);
    }
    log_eval(l, 4, 1000);
    log_close(l, "finished");
    put_back(saved);
    close(null);
    json_t *all = read_lines(dir);
    CHECK(json_array_size(all) == 6, "%zu lines", json_array_size(all));
    for (int64_t i = 1, at = 0; i <= 4; i++, at += i == 3 ? 2 : 1) {
        json_t *o = json_array_get(all, (size_t)at);
        Metrics m = step_at(i);
        int k = 0;
        const char *name;
        json_t *v;
        json_object_foreach(o, name, v)
            CHECK(k < METRIC_COUNT && !strcmp(name, metric_defs[k++].name), "key %d is %s", k, name);
        CHECK(k == METRIC_COUNT && number(o, "iteration") == (double)i, "%d keys", k);
        CHECK(number(o, "learning_rate") == m.learning_rate && number(o, "loss_scale") == m.loss_scale,
              "all digits");
        CHECK(number(o, "tokens_per_second") == 4.0 * (double)cfg->seq_length / (m.elapsed_ms * 1e-3),
              "rate");
        CHECK(fabs(number(o, "tflops_per_device") - number(o, "tokens_per_second") * 1e-6) < 1e-12, "flops");
        CHECK(fabs(number(o, "mfu") * 2 / number(o, "tflops_per_device") - 1) < 1e-15,
              "mfu with a peak of 2 TFLOP/s");
        CHECK(number(o, "skipped_iterations") == (i == 4), "counts since the line before");
    }
    json_t *bad = json_array_get(all, 1), *eval = json_array_get(all, 2), *huge = json_array_get(all, 5);
    CHECK(json_is_null(json_object_get(bad, "lm_loss")) && json_is_null(json_object_get(bad, "grad_norm")),
          "null");
    CHECK(number(json_array_get(all, 3), "lm_loss") == 1.7976931348623157e308, "largest double");
    CHECK(number(json_array_get(all, 4), "lm_loss") == 0.1, "0.1");
    CHECK(number(eval, "valid_loss") == 1.25 && number(eval, "valid_ppl") == exp(1.25) &&
          number(eval, "iteration") == 2 && json_object_size(eval) == 3, "evaluation");
    CHECK(number(huge, "valid_loss") == 1000 && json_is_null(json_object_get(huge, "valid_ppl")),
          "exp(1000)");
    json_decref(all);
    free(dir);
}

/* Logs iterations (from, to] in a child process; crash: the process ends without log_close. */
static void run_steps(const char *dir, int64_t from, int64_t to, int64_t total, int crash)
{
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        int null = open("/dev/null", O_WRONLY);
        dup2(null, STDOUT_FILENO);
        Log *l = open_log(dir, from, total);
        for (int64_t i = from + 1; i <= to; i++) {
            Metrics m = step_at(i);
            log_step(l, &m);
            if (i % 5 == 0)
                log_eval(l, i, 2.0 / (double)i);
        }
        if (!crash)
            log_close(l, to == total ? "finished" : "stopped");
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && !WEXITSTATUS(status), "status %x", status);
}

static int is_time(const char *name)
{
    for (int i = 0; i < METRIC_COUNT; i++)
        if (!strcmp(metric_defs[i].name, name))
            return metric_defs[i].steps == STEPS_TIME || metric_defs[i].steps == STEPS_RATE;
    return 0;
}

static void test_resume(int64_t interval)
{
    ((Config *)cfg)->log_interval = interval;
    char *name = xasprintf("whole%lld", (long long)interval), *whole = new_dir(name);
    run_steps(whole, 0, 12, 12, 0);
    json_t *want = read_lines(whole);
    double skipped = 0;
    for (size_t i = 0; i < json_array_size(want); i++)
        skipped += fmax(0, number(json_array_get(want, i), "skipped_iterations"));
    CHECK(skipped == 12 / 4, "the lines' counts add up to the total: %g", skipped);
    CHECK(number(json_array_get(want, 0), "elapsed_ms") == 101,
          "the mean of 101, 102 and 100, or the first alone");
    for (int64_t stop = 1; stop <= 11; stop++) {
        char *part = xasprintf("part%lld.%lld", (long long)interval, (long long)stop), *dir = new_dir(part);
        char *file = path_of(dir, "metrics.jsonl");
        /* the run went on beyond its checkpoint at `stop`, and died while it wrote a line */
        run_steps(dir, 0, stop + 2 < 12 ? stop + 2 : 12, 12, stop & 1);
        FILE *f = fopen(file, "ae");
        fprintf(f, "{\"iteration\": 1");
        fclose(f);
        run_steps(dir, stop, 12, 12, 0);
        json_t *got = read_lines(dir);
        CHECK(json_array_size(got) == json_array_size(want), "%zu lines of %zu", json_array_size(got),
              json_array_size(want));
        for (size_t i = 0; i < json_array_size(want); i++) {
            const char *key;
            json_t *v;
            json_object_foreach(json_array_get(want, i), key, v)
                CHECK(is_time(key) || json_equal(v, json_object_get(json_array_get(got, i), key)),
                      "stop %lld line %zu %s", (long long)stop, i, key);
        }
        json_decref(got);
        char *json = path_of(dir, "run.json");
        json_t *about = json_load_file(json, 0, NULL);
        CHECK(json_array_size(json_object_get(about, "sessions")) == 2, "two starts");
        json_decref(about);
        free(part);
        free(json);
        free(dir);
        free(file);
    }
    run_steps(whole, 0, 2, 12, 0);                 /* a fresh start empties the file */
    json_decref(want);
    want = read_lines(whole);
    CHECK(json_array_size(want) == (interval == 1 ? 2 : 1), "%zu", json_array_size(want));
    json_decref(want);
    free(name);
    free(whole);
    ((Config *)cfg)->log_interval = 1;
}

/* Says that the launcher was started `s` seconds ago. */
static void launched(double s)
{
    char text[64];
    snprintf(text, sizeof text, "%.6f", about_now() - s);
    setenv("GRIDIRON_STARTED", text, 1);
}

/* Moves the sessions of a run `s` seconds into the past. */
static void let_pass(const char *dir, double s)
{
    static const char *const time[] = {"started", "origin", "ended"};
    char *path = path_of(dir, "run.json");
    json_t *o = json_load_file(path, 0, NULL), *session;
    size_t i;
    json_array_foreach(json_object_get(o, "sessions"), i, session)
        for (int k = 0; k < 3; k++)
            if (json_object_get(session, time[k]))
                json_object_set_new(session, time[k], json_real(number(session, time[k]) - s));
    CHECK(!json_dump_file(o, path, 0), "%s", path);
    json_decref(o);
    free(path);
}

/* The goodput of steps first .. last. */
static void check_goodput(const char *dir, const char *what, int64_t first, int64_t last, double wall)
{
    json_t *all = read_lines(dir);
    double good = 0, got = NAN;
    for (size_t i = 0; i < json_array_size(all); i++)
        if (json_object_get(json_array_get(all, i), "goodput"))
            got = number(json_array_get(all, i), "goodput");
    for (int64_t i = first; i <= last; i++)
        good += 1e-3 * step_at(i).elapsed_ms;
    CHECK(got <= good / wall * 1.000001 && got > 0.9 * good / wall, "%s: %.17g, not %.17g", what, got,
          good / wall);
    json_decref(all);
}

/* A step that is run again counts once; time between starts counts where the same launcher made them. */
static void test_goodput(int64_t interval)
{
    ((Config *)cfg)->log_interval = interval;
    char *name = xasprintf("goodput%lld", (long long)interval), *dir = new_dir(name);
    launched(5000);
    run_steps(dir, 0, 6, 12, 1);
    check_goodput(dir, "until a death", 1, 6, 5000);
    run_steps(dir, 3, 6, 12, 1);
    check_goodput(dir, "steps run again", 1, 6, 5000);
    let_pass(dir, 1000);
    launched(6000);
    run_steps(dir, 6, 9, 12, 1);
    check_goodput(dir, "the same launcher", 1, 9, 6000);
    let_pass(dir, 100000);
    launched(2000);
    run_steps(dir, 3, 9, 12, 0);
    check_goodput(dir, "a launcher of later", 1, 9, 8000);
    let_pass(dir, 100000);
    unsetenv("GRIDIRON_STARTED");
    run_steps(dir, 9, 12, 12, 0);
    check_goodput(dir, "no launcher", 1, 12, 8000);
    free(dir);
    char *other = xasprintf("other%lld", (long long)interval);
    dir = new_dir(other);                          /* load: a checkpoint of another run */
    launched(1000);
    run_steps(dir, 6, 9, 12, 1);
    check_goodput(dir, "begun with another run's steps", 7, 9, 1000);
    let_pass(dir, 1000);
    launched(2000);
    run_steps(dir, 9, 12, 12, 0);
    check_goodput(dir, "resumed after that", 7, 12, 2000);
    free(other);
    free(name);
    free(dir);
    ((Config *)cfg)->log_interval = 1;
}

/* The last step has a line whatever the interval, in a whole run and in one that is stopped and resumed. */
static void test_last_line(void)
{
    static const struct {
        const char *name;
        int64_t stop;
        size_t lines;
    } of[] = {{"last", 20, 1}, {"last7", 7, 2}};
    ((Config *)cfg)->log_interval = 100;
    for (size_t k = 0; k < 2; k++) {
        char *dir = new_dir(of[k].name), *out = path_of(dir, "out"), *page;
        int fd = open(out, O_WRONLY | O_CREAT | O_TRUNC, 0600), saved = redirect(fd);
        for (int64_t from = 0, to = of[k].stop; from < 20; from = to, to = 20) {
            Log *l = open_log(dir, from, 20);
            for (int64_t i = from + 1; i <= to; i++) {
                Metrics m = step_at(i);
                log_step(l, &m);
            }
            if (to < 20) {
                log_last(l);
                log_note(l, "saved");
            }
            log_close(l, to == 20 ? "finished" : "stopped");
        }
        put_back(saved);
        close(fd);
        json_t *all = read_lines(dir), *end = json_array_get(all, of[k].lines - 1);
        CHECK(json_array_size(all) == of[k].lines && number(end, "iteration") == 20, "%zu lines",
              json_array_size(all));
        double skipped = 0;
        for (size_t i = 0; i < json_array_size(all); i++)
            skipped += number(json_array_get(all, i), "skipped_iterations");
        CHECK(skipped == 5, "counts add up to the total: %g", skipped);
        char *text = slurp(dir, "out", NULL);
        CHECK(strstr(text, "iteration       20/      20 |"), "%s", text);
        const char *stop = strstr(text, "iteration        7/      20 |"), *said = strstr(text, "saved");
        CHECK(k == 0 || (stop && said && stop < said), "%s", text);
        page = slurp(dir, "report.html", NULL);
        CHECK(strstr(page, ">20<") && strstr(page, "20],\"y\":["),
              "the report lacks the last step");
        json_decref(all);
        free(text);
        free(page);
        free(out);
        free(dir);
    }
    ((Config *)cfg)->log_interval = 1;
}

/* ---- System faults ---- */

/* Logs `steps` with standard output `out`. File sizes are limited to `limit` after the first step and
 * unlimited again for the last one. Returns the text of standard error. */
static char *bad_world(const char *dir, int out, int64_t steps, rlim_t limit)
{
    int err[2], status;
    CHECK(!pipe(err), "pipe");
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        struct rlimit free_size;
        getrlimit(RLIMIT_FSIZE, &free_size);
        dup2(out, STDOUT_FILENO);
        dup2(err[1], STDERR_FILENO);
        signal(SIGPIPE, SIG_DFL);
        signal(SIGXFSZ, SIG_IGN);
        Log *l = open_log(dir, 0, steps);
        for (int64_t i = 1; i <= steps; i++) {
            Metrics m = step_at(i);
            log_step(l, &m);
            if (limit && i == 1)
                setrlimit(RLIMIT_FSIZE, &(struct rlimit){limit, free_size.rlim_max});
            if (limit && i == steps - 1)
                setrlimit(RLIMIT_FSIZE, &free_size);
        }
        log_close(l, "finished");
        _exit(0);
    }
    close(err[1]);
    char *text = xcalloc(1, 8192);
    for (ssize_t n = 0, r; n < 8000 && (r = read(err[0], text + n, (size_t)(8000 - n))) > 0;)
        n += r;
    close(err[0]);
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && !WEXITSTATUS(status), "the run died: status %x, %s", status, text);
    return text;
}

static void test_bad_world(void)
{
    int ends[2], full = open("/dev/full", O_WRONLY), null = open("/dev/null", O_WRONLY);
    CHECK(!pipe(ends), "pipe");
    close(ends[0]);
    char *dir = new_dir("closed"), *text = bad_world(dir, ends[1], 5, 0);
    json_t *all = read_lines(dir);
    CHECK(json_array_size(all) == 5 && strstr(text, "standard output lost 5 lines"), "%s", text);
    json_decref(all);
    free(text);
    free(dir);
    text = bad_world(dir = new_dir("full"), full, 5, 0);
    CHECK(strstr(text, "standard output lost 5 lines"), "%s", text);
    free(text);
    free(dir);
    /* room for one line and a half */
    text = bad_world(dir = new_dir("disk"), null, 6, 900);
    all = read_lines(dir);
    CHECK(json_array_size(all) == 2 && number(json_array_get(all, 1), "iteration") == 6, "%zu",
          json_array_size(all));
    CHECK(strstr(text, "lacks 4 lines (File too large)"), "%s", text);
    json_decref(all);
    free(text);
    free(dir);
    close(full);
    close(null);
    close(ends[1]);
}

static int parsed;             /* calls of json_loadb */

json_t *json_loadb(const char *text, size_t n, size_t flags, json_error_t *error)
{
    char *copy = xasprintf("%.*s", (int)n, text);
    json_t *j = json_loads(copy, flags, error);
    free(copy);
    parsed++;
    return j;
}

/* A resume parses those lines of a long run that it repeats, a thousand, and not all. */
static void test_long_resume(void)
{
    enum { LINES = 12000 };
    char *dir = new_dir("long"), *path = path_of(dir, "metrics.jsonl");
    int saved = redirect(open("/dev/null", O_WRONLY));
    Log *l = open_log(dir, 0, 1);
    Metrics one = step_at(1);
    one.consumed_samples = 2 * LINES;  /* more than there are iterations: then a line is repeated */
    log_step(l, &one);
    log_close(l, "finished");
    char *line = slurp(dir, "metrics.jsonl", NULL);
    static const char head[] = "{\"iteration\": 1";
    CHECK(!strncmp(line, head, strlen(head)), "%s", line);
    FILE *f = fopen(path, "we");
    for (int i = 1; i <= LINES; i++)
        fprintf(f, "{\"iteration\": %d%s", i, line + strlen(head));
    fputs("{\"iteration\": -1e300, \"consumed_samples\": 1e300, \"elapsed_ms\": 1}\n", f);      /* no run's */
    fclose(f);
    parsed = 0;
    l = open_log(dir, LINES - 1, LINES);
    log_close(l, "finished");
    put_back(saved);
    CHECK(parsed > 0 && parsed < LINES / 10, "%d of %d lines are parsed", parsed, LINES);
    json_t *all = read_lines(dir);
    CHECK(json_array_size(all) == LINES - 1, "%zu lines are left", json_array_size(all));
    json_decref(all);
    free(line);
    free(path);
    free(dir);
}

int main(void)
{
    run_dir_open("metrics");
    test_long_resume();
    test_table();
    test_memory();
    test_progress_line();
    test_live_line();
    test_routers();
    test_groups();
    test_lines();
    test_resume(1);
    test_resume(3);
    test_goodput(1);
    test_goodput(3);
    test_last_line();
    test_bad_world();
    return run_dir_end();
}
