/* The metrics table, the log of a run, TensorBoard's event file, the trace and the report. */
#define _GNU_SOURCE
#include "test.h"
#include "console.h"
#include "scale.h"
#include "tensorboard.h"
#include "trace.h"
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const Config *cfg;
static char top[256];

static char *path_of(const char *dir, const char *name) { return xasprintf("%s/%s", dir, name); }

static char *slurp(const char *dir, const char *name, size_t *size)
{
    char *path = path_of(dir, name), *text = NULL;
    size_t n = 0;
    FILE *f = fopen(path, "re");
    if (f) {
        fseek(f, 0, SEEK_END);
        n = (size_t)ftell(f);
        rewind(f);
        text = xcalloc(1, n + 1);
        CHECK(fread(text, 1, n, f) == n, "%s", path);
        fclose(f);
    }
    if (size)
        *size = n;
    free(path);
    return text;
}

static char *new_dir(const char *name)
{
    char *dir = xasprintf("%s/%s", top, name);
    CHECK(!mkdir(dir, 0777), "%s: %s", dir, strerror(errno));
    return dir;
}

/* Leaves: the name of the one event file there is. */
static char *event_name(const char *dir)
{
    char *pattern = xasprintf("ls -t %s | grep -m1 tfevents", dir), name[512] = "";
    FILE *p = popen(pattern, "r");
    CHECK(p && fgets(name, sizeof name, p), "%s", dir);
    pclose(p);
    free(pattern);
    name[strcspn(name, "\n")] = 0;
    return xstrdup(name);
}

/* A step whose every number is a function of its iteration. */
static Metrics step_at(int64_t i)
{
    return (Metrics){.iteration = i, .consumed_samples = 4 * i, .consumed_tokens = 4 * i * cfg->seq_length,
                     .lm_loss = 6 / (1 + 0.1 * (double)i) + 1e-9 * (double)i, .grad_norm = 1.0 / (double)(i + 2),
                     .learning_rate = 1e-3 / (double)(i + 1), .loss_scale = 65536 / (double)(1 + i / 4),
                     .global_batch_size = 4, .elapsed_ms = 100 + (double)(i % 3), .memory_bytes = 1 << 20,
                     .skipped_iterations = i / 4, .nan_iterations = i / 7, .data_ms = 1, .forward_ms = 30,
                     .backward_ms = 60, .optimizer_ms = 5};
}

static Log *open_log(const char *dir, int64_t resume, int64_t total)
{
    return log_open(cfg, &(LogStart){.run_dir = dir, .resume_iteration = resume, .total_iterations = total,
                                     .flops_per_token = 1e6, .parameters = 123456, .command = "train x <y> & 'z'",
                                     .build = "test"});
}

/* Standard output goes to `path` (or a pipe's end) until it is put back. */
static int redirect(int fd)
{
    fflush(stdout);
    int saved = dup(STDOUT_FILENO);
    dup2(fd, STDOUT_FILENO);
    return saved;
}

static void put_back(int saved)
{
    fflush(stdout);
    dup2(saved, STDOUT_FILENO);
    close(saved);
}

/* ---- The table ---- */

static Token twofold(Comm *c, void *buf, int64_t n, Dtype type, ReduceOp op)
{
    /* the group's other rank holds the same numbers plus 2 */
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
        "iteration", "consumed_samples", "consumed_tokens", "lm_loss", "grad_norm", "learning_rate", "loss_scale",
        "global_batch_size", "elapsed_ms", "tokens_per_second", "tflops_per_device", "mfu", "memory_bytes",
        "skipped_iterations", "nan_iterations"};
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
    metrics_reduce(&m, &pair);
    for (int i = 0; i < METRIC_COUNT; i++) {
        double more = metric_defs[i].ranks == RANKS_MAX ? 2 : metric_defs[i].ranks == RANKS_MEAN ? 1 : 0;
        CHECK(metric_get(&m, i) == metric_get(&before, i) + more, "%s: %g", metric_defs[i].name, metric_get(&m, i));
    }
    comm_self_open(&self, "self");
    m = before;
    metrics_reduce(&m, &self);
    CHECK(!memcmp(&m, &before, sizeof m), "a group of one changes nothing");
}

static void test_memory(void)
{
    const int64_t size = 32 << 20;
    int64_t before = memory_resident(), anonymous, file;
    int fd = open(top, O_TMPFILE | O_RDWR, 0600);
    CHECK(before > 100000, "%lld", (long long)before);
    char *p = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(p, 1, (size_t)size);
    anonymous = memory_resident() - before;
    CHECK(llabs(anonymous - size) < size / 8, "%lld", (long long)anonymous);
    CHECK(write(fd, p, (size_t)size) == size, "%s", strerror(errno));
    munmap(p, (size_t)size);
    before = memory_resident();
    p = mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, fd, 0);
    int64_t sum = 0;
    for (int64_t i = 0; p != MAP_FAILED && i < size; i += 4096)
        sum += p[i];
    file = memory_resident() - before;
    CHECK(sum == size / 4096 && llabs(file) < size / 8, "a mapped file counts: %lld", (long long)file);
    munmap(p, (size_t)size);
    close(fd);
}

/* ---- Console ---- */

/* Made by the Python of Megatron-LM's training_log, our own fields apart. */
static void test_progress_line(void)
{
    char text[1024];
    Metrics m = {.iteration = 1200, .consumed_samples = 19200, .elapsed_ms = 310.25, .tflops_per_device = 0.381,
                 .learning_rate = 5.9e-4, .global_batch_size = 16, .lm_loss = 1.3806812, .loss_scale = 1,
                 .grad_norm = 0.41928, .tokens_per_second = 13203.2, .mfu = 0.4321, .memory_bytes = 3 << 29};
    progress_line(text, sizeof text, &m, 5000, 3725.4, (struct timespec){1700000000, 12345678});
    CHECK(!strcmp(text,
        " [2023-11-14 22:13:20.012345] iteration     1200/    5000 | consumed samples:        19200 | elapsed time per "
        "iteration (ms): 310.2 | throughput per GPU (TFLOP/s/GPU): 0.4 | learning rate: 5.900000E-04 | global batch "
        "size:    16 | lm loss: 1.380681E+00 | loss scale: 1.0 | grad norm: 0.419 | number of skipped iterations:   0 "
        "| number of nan iterations:   0 | tokens/s: 13203.2 | MFU: 43.2% | memory (GiB): 1.500 | time left: 1:02:05 "
        "|"), "%s", text);
    m = (Metrics){.iteration = 123456789, .consumed_samples = 12345678901234, .elapsed_ms = 1e7, .lm_loss = NAN,
                  .tflops_per_device = NAN, .global_batch_size = 12345, .loss_scale = 65536, .grad_norm = 1e30,
                  .skipped_iterations = 1234, .nan_iterations = 2, .tokens_per_second = NAN, .mfu = NAN};
    progress_line(text, sizeof text, &m, 123456789, -1, (struct timespec){1700000000, 12345678});
    CHECK(!strcmp(text,
        " [2023-11-14 22:13:20.012345] iteration 123456789/123456789 | consumed samples: 12345678901234 | elapsed time "
        "per iteration (ms): 10000000.0 | throughput per GPU (TFLOP/s/GPU): nan | learning rate: 0.000000E+00 | global "
        "batch size: 12345 | lm loss: NAN | loss scale: 65536.0 | grad norm: 1000000000000000019884624838656.000 | "
        "number of skipped iterations: 1234 | number of nan iterations:   2 | tokens/s: n/a | MFU: n/a | memory (GiB): "
        "0.000 | time left: n/a |"), "%s", text);
    CHECK(!strcmp(duration_text(text, 59.6), "1:00"), "%s", text);
    CHECK(!strcmp(duration_text(text, 3 * 86400 + 3723), "3d 01:02:03"), "%s", text);
}

/* What the screen shows: columns of the widest picture of the live line; -1 when escapes are left over. */
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

/* One terminal session on a pseudo terminal of `width` columns; returns what it was sent. */
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
        c.drawn = 0;                               /* as if a tenth of a second had passed */
        console_step(&c, &m);
        console_line(&c, &m);
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
    CHECK(strstr(text, "5/1000000") && strstr(text, "loss 4.0000") && strstr(text, "12.3k tok/s"), "%s", text);
    CHECK(strstr(text, "left") && strstr(text, "━") == NULL && strstr(text, "─"), "%s", text);
    CHECK(strstr(text, "evaluating, batch 3") && strstr(text, "validation loss 1.5000"), "%s", text);
    CHECK(strstr(text, "\r\033[Ka note\r\n"), "a note stands on a line of its own: %s", text);
    CHECK(widest(text) <= 79 && widest(text) > 60, "%d columns", widest(text));
    CHECK(!strcmp(text + strlen(text) - 2, "\r\n") && !strstr(text, "number of nan"), "ends with a whole line");
    free(text);
    text = terminal(30, 3, "utf8");
    *strstr(text, " iteration") = 0;               /* what stays is as long as it is */
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

static double number(json_t *o, const char *name)
{
    json_t *v = json_object_get(o, name);
    return json_is_number(v) ? json_number_value(v) : NAN;
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
        CHECK(number(o, "learning_rate") == m.learning_rate && number(o, "loss_scale") == m.loss_scale, "all digits");
        CHECK(number(o, "tokens_per_second") == 4.0 * (double)cfg->seq_length / (m.elapsed_ms * 1e-3), "rate");
        CHECK(fabs(number(o, "tflops_per_device") - number(o, "tokens_per_second") * 1e-6) < 1e-12, "flops");
        CHECK(fabs(number(o, "mfu") * 2 / number(o, "tflops_per_device") - 1) < 1e-15, "mfu with a peak of 2 TFLOP/s");
        CHECK(number(o, "skipped_iterations") == (i == 4), "counts since the line before");
    }
    json_t *bad = json_array_get(all, 1), *eval = json_array_get(all, 2), *huge = json_array_get(all, 5);
    CHECK(json_is_null(json_object_get(bad, "lm_loss")) && json_is_null(json_object_get(bad, "grad_norm")), "null");
    CHECK(number(json_array_get(all, 3), "lm_loss") == 1.7976931348623157e308, "largest double");
    CHECK(number(json_array_get(all, 4), "lm_loss") == 0.1, "0.1");
    CHECK(number(eval, "valid_loss") == 1.25 && number(eval, "valid_ppl") == exp(1.25) &&
          number(eval, "iteration") == 2 && json_object_size(eval) == 3, "evaluation");
    CHECK(number(huge, "valid_loss") == 1000 && json_is_null(json_object_get(huge, "valid_ppl")), "exp(1000)");
    json_decref(all);
    free(dir);
}

/* Runs iterations (from, to] with a line every `interval`; a crash ends without log_close. */
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
    for (int64_t stop = 1; stop <= 11; stop++) {
        char *part = xasprintf("part%lld.%lld", (long long)interval, (long long)stop), *dir = new_dir(part);
        char *file = path_of(dir, "metrics.jsonl");
        /* a run that got further than its checkpoint, and died while it wrote a line */
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
                CHECK(is_time(key) || json_equal(v, json_object_get(json_array_get(got, i), key)), "stop %lld line %zu %s",
                      (long long)stop, i, key);
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
    CHECK(json_array_size(want) == (size_t)(2 / interval), "%zu", json_array_size(want));
    json_decref(want);
    free(name);
    free(whole);
    ((Config *)cfg)->log_interval = 1;
}

/* ---- What goes wrong outside ---- */

/* Runs `steps` with standard output `out`; file sizes are limited to `limit` after the first step and free again for
 * the last. Returns what standard error got. */
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
    CHECK(json_array_size(all) == 2 && number(json_array_get(all, 1), "iteration") == 6, "%zu", json_array_size(all));
    CHECK(strstr(text, "lacks 4 lines (File too large)"), "%s", text);
    json_decref(all);
    free(text);
    free(dir);
    close(full);
    close(null);
    close(ends[1]);
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

/* Field `field` of the message [p, end): its payload, or NULL. *n: bytes of a string, else the value. */
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

/* Value of `tag` in the record's summary; NAN when it has none. */
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

static void test_events(void)
{
    /* shared golden bytes of the first record at 1.7e9 s */
    static const uint8_t golden[] = {0x18, 0, 0, 0, 0, 0, 0, 0, 0xa3, 0x7f, 0x4b, 0x22, 0x09, 0, 0, 0, 0x40, 0xfc, 0x54,
                                     0xd9, 0x41, 0x1a, 0x0d, 'b', 'r', 'a', 'i', 'n', '.', 'E', 'v', 'e', 'n', 't', ':',
                                     '2', 0xec, 0xed, 0x8f, 0x9d};
    size_t size;
    EventFile f;
    CHECK(crc32c("123456789", 9) == 0xe3069283u && crc32c("", 0) == 0, "%08x", crc32c("123456789", 9));
    char *dir = new_dir("golden");
    CHECK(!event_open(&f, dir, 1.7e9, 0), "%s", strerror(errno));
    event_close(&f);
    char *name = event_name(dir), *text = slurp(dir, name, &size);
    CHECK(!strncmp(name, "events.out.tfevents.1700000000.", 31), "%s", name);
    CHECK(size > sizeof golden && !memcmp(text, golden, sizeof golden), "golden bytes");
    free(text);
    free(name);
    free(dir);

    char *run = path_of(top, "lines");
    name = event_name(run);
    text = slurp(run, name, &size);
    const uint8_t *p = (const uint8_t *)text, *end = p + size;
    int records = 0, steps = 0, configs = 0, evals = 0, by_samples = 0;
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
            CHECK(isnan(scalar_of(p + 12, len, "lm loss", &step)) == (step == 2), "a loss that is not finite has no point");
            CHECK(scalar_of(p + 12, len, "batch-size", &step) == 4, "batch");
            steps++;
        }
        by_samples += !isnan(scalar_of(p + 12, len, "lm loss vs samples", &step)) && step % 4 == 0;
        evals += scalar_of(p + 12, len, "lm loss validation", &step) == 1.25 && step == 2;
        configs += memmem(p + 12, len, "num_layers", 10) != NULL;
        records++;
        p += 16 + len;
    }
    CHECK(p == end && steps == 4 && configs == 1 && evals == 1 && by_samples == 3, "%d records, %d %d %d %d", records, steps,
          configs, evals, by_samples);
    free(text);
    free(name);
    free(run);
}

/* ---- Trace ---- */

static void test_trace(void)
{
    Trace t;
    Grid g;
    const int size[AXES] = {1, 1, 1, 1, 1};
    const Axis order[AXES] = {AXIS_TP, AXIS_CP, AXIS_EP, AXIS_DP, AXIS_PP};
    const char *listed[] = {"2", "4"};
    Config c = *cfg;
    char *dir = new_dir("trace"), *text = path_of(dir, "trace.json"), why[WHY];
    grid_open(&g, size, order, 1, 0);
    trace_open(&t, &c, 100);
    CHECK(!t.ring && !t.max, "nothing is listed, nothing is allocated");
    trace_step(&t, 1);
    CHECK(trace_begin(&t) == 0 && trace_write(&t, dir, &g, why) && access(text, F_OK), "off");
    trace_close(&t);
    c.trace_steps = (List){2, listed};
    trace_open(&t, &c, 5);
    for (int64_t step = 1; step <= 5; step++) {
        trace_step(&t, step);
        double t0 = trace_begin(&t);
        CHECK((t0 > 0) == (step == 2 || step == 4), "step %lld", (long long)step);
        trace_end(&t, SPAN_DATA, t0);
        for (uint16_t mb = 0; mb < 3; mb++) {
            double a = now();
            trace_instr(&t, &(Instr){.op = I_F, .mb = mb}, a, a + 1e-3);
            trace_instr(&t, &(Instr){.op = I_B, .mb = mb}, a + 1e-3, a + 3e-3);
        }
        double a = now();
        trace_instr(&t, &(Instr){.op = I_S}, a, a + 1e-3);
    }
    CHECK(t.n == 16 && t.max == 10, "%lld events", (long long)t.n);
    CHECK(trace_write(&t, dir, &g, why), "%s", why);
    json_t *o = json_load_file(text, 0, NULL), *events = json_object_get(o, "traceEvents"), *e;
    int found[6] = {0};
    size_t i;
    json_array_foreach(events, i, e) {
        const char *ph = json_string_value(json_object_get(e, "ph")), *name = json_string_value(json_object_get(e, "name"));
        json_t *args = json_object_get(e, "args");
        found[0] += !strcmp(name, "process_name") && !strncmp(json_string_value(json_object_get(args, "name")), "rank 0 (", 8);
        if (strcmp(ph, "X"))
            continue;
        found[1]++;
        CHECK(number(e, "ts") >= 0 && number(e, "dur") >= 0 && number(e, "pid") == 0, "%s", name);
        found[2] += number(args, "step") == 4;
        found[3] += !strcmp(name, "F2.0") && fabs(number(e, "dur") - 1000) < 1;
        found[4] += !strcmp(name, "S");
        found[5] += !strcmp(name, "data");
    }
    CHECK(found[0] == 1 && found[1] == 10 && found[2] == 8 && found[3] == 1, "kept");
    CHECK(found[4] == 2 && found[5] == 1, "the newest are kept: %d steps, %d data", found[4], found[5]);
    json_decref(o);
    trace_close(&t);
    grid_close(&g);
    free(text);
    free(dir);
}

/* ---- The report ---- */

static void test_scale(void)
{
    double tick[12], step;
    char t[32];
    int n = scale_ticks((Scale){0, 1, 0}, 5, tick, &step);
    CHECK(n == 6 && fabs(step - 0.2) < 1e-12 && !strcmp(tick_text(t, tick[1], step), "0.2"), "%d %g %s", n, step, t);
    n = scale_ticks((Scale){0, 6.3e-4, 0}, 4, tick, &step);
    CHECK(n == 4 && !strcmp(tick_text(t, tick[3], step), "6e-4"), "%d %s", n, t);
    n = scale_ticks((Scale){1, 1e6, 1}, 6, tick, &step);
    CHECK(n == 7 && fabs(tick[6] - 1e6) < 1 && !strcmp(tick_text(t, tick[6], step), "1M"), "%d %s", n, t);
    for (double lo = -3; lo < 3; lo += 0.37)
        for (double width = 1e-7; width < 1e9; width *= 3.1) {
            n = scale_ticks((Scale){lo, lo + width, 0}, 5, tick, &step);
            CHECK(n >= 1 && n <= 12, "%d ticks from %g over %g", n, lo, width);
            for (int i = 0; i < n; i++)
                CHECK(tick[i] >= lo - 1e-6 * width && tick[i] <= lo + 1.000001 * width, "%g", tick[i]);
        }
    CHECK(!strcmp(number_text(t, 1.23456), "1.235") && !strcmp(number_text(t, 6e-5), "6e-5"), "%s", t);
    CHECK(!strcmp(tick_text(t, 12000, 1000), "12,000") && !strcmp(tick_text(t, 2.5e6, 5e5), "2.5M"), "%s", t);
    CHECK(!strcmp(number_text(t, NAN), "n/a") && !strcmp(tick_text(t, 0, 1), "0"), "%s", t);

    /* thinning: one spike up, one down, one gap among 100000 points */
    int64_t many = 100000, *keep = xcalloc((size_t)many, sizeof *keep), kept;
    double *x = xcalloc((size_t)many, sizeof *x), *y = xcalloc((size_t)many, sizeof *y);
    for (int64_t i = 0; i < many; i++) {
        x[i] = (double)i;
        y[i] = i >= 70000 && i < 71000 ? NAN : sin((double)i);
    }
    y[31234] = 50;
    y[64321] = -50;
    kept = scale_thin((Scale){0, 99999, 0}, x, y, many, keep);
    int up = 0, down = 0, gap = 0;
    for (int64_t k = 0; k < kept; k++) {
        up += y[keep[k]] == 50;
        down += y[keep[k]] == -50;
        gap += isnan(y[keep[k]]);
        CHECK(!k || keep[k] > keep[k - 1], "in order");
    }
    CHECK(up == 1 && down == 1 && gap >= 1 && kept <= 1004 && keep[0] == 0 && keep[kept - 1] == many - 1, "%lld kept",
          (long long)kept);
    free(keep);
    free(x);
    free(y);
}

/* Every tag that opens closes, in order; attributes are quoted; text holds no bare < or &. Returns the number of tags,
 * or a negative number with a message printed. */
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
    CHECK(page && !strstr(page, "http:") && !strstr(page, "https:") && !strstr(page, "src=") && !strstr(page, "@import") &&
          !strstr(page, "url("), "%s asks for the network", dir);
    return page;
}

static void write_text(const char *dir, const char *name, const char *text)
{
    char *path = path_of(dir, name);
    FILE *f = fopen(path, "we");
    CHECK(f && fputs(text, f) >= 0, "%s", path);
    fclose(f);
    free(path);
}

static int count(const char *text, const char *what)
{
    int n = 0;
    for (const char *p = text; (p = strstr(p, what)); p += strlen(what))
        n++;
    return n;
}

static void test_report(void)
{
    char *dir = new_dir("empty"), *page = report_of(dir);
    free(page);
    free(dir);

    dir = path_of(top, "lines");                   /* huge, infinite and missing values */
    page = report_of(dir);
    CHECK(strstr(page, "train x &lt;y&gt; &amp; &#39;z&#39;") && strstr(page, "not finite"), "escaped, and said");
    free(page);
    free(dir);

    dir = path_of(top, "part3.7");                 /* resumed */
    page = report_of(dir);
    CHECK(strstr(page, "in 2 starts") && strstr(page, "resumed after iteration 7"), "resumed");
    free(page);
    free(dir);

    dir = new_dir("one");
    write_text(dir, "metrics.jsonl", "{\"iteration\": 1, \"lm_loss\": 2}\n");
    page = report_of(dir);
    CHECK(strstr(page, "class=\"dots a\""), "one point is a dot");
    free(page);
    write_text(dir, "metrics.jsonl", "{\"iteration\": 5, \"valid_loss\": 2}\nrubbish\n{\"iteration\": 9, \"valid_loss\": null}\n"
               "[1]\n{\"iteration\": 10, \"valid_loss\": 1.5}\n{\"iter");
    write_text(dir, "run.json", "{\"sample\": \"</script><script>alert(1)</script>\", \"sessions\": 7, \"memory\": {\"<b>\": "
               "{\"planned\": 10, \"used\": null}}, \"facts\": {\"x\\\"\": 3, \"<\": \"&\"}}");
    write_text(dir, "trace.json", "{\"traceEvents\": [{\"ph\": \"X\", \"cat\": \"S\", \"pid\": 99, \"args\": {\"step\": 1}}, 4]}");
    write_text(dir, "config.yaml", "a: '</pre><b>'\n");
    page = report_of(dir);
    CHECK(!strstr(page, "<script>alert") && strstr(page, "&lt;/script&gt;") && strstr(page, "a: &#39;&lt;/pre&gt;"), "escaped");
    CHECK(strstr(page, "perplexity 4.482, its lowest"), "evaluations alone");
    free(page);
    free(dir);

    dir = path_of(top, "trace");
    page = report_of(dir);
    CHECK(count(page, "<rect") == 8 && strstr(page, "Bubble:"), "%d bars", count(page, "<rect"));
    free(page);
    free(dir);

    dir = new_dir("long");                         /* thousands of steps */
    char *path = path_of(dir, "metrics.jsonl");
    FILE *f = fopen(path, "we");
    for (int i = 1; i <= 20000; i++)
        fprintf(f, "{\"iteration\": %d, \"lm_loss\": %.17g, \"grad_norm\": %g, \"elapsed_ms\": 10, \"forward_ms\": 3, "
                "\"tokens_per_second\": 1000, \"learning_rate\": 1e-4}\n", i, 2 + sin(i), i % 7 + 0.5);
    fclose(f);
    page = report_of(dir);
    CHECK(strlen(page) < 500000, "%zu bytes", strlen(page));
    CHECK(strstr(page, "log iterations") && strstr(page, "means of 401 recorded steps"), "views and means");
    free(page);
    free(path);
    free(dir);
}

/* report DIR...: makes reports anew, for whoever changes their look. */
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
    const char *tmp = getenv("WORK") ? getenv("WORK") : getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp";
    snprintf(top, sizeof top, "%s/metrics-XXXXXX", tmp);
    CHECK(mkdtemp(top), "%s", strerror(errno));
    setenv("TZ", "UTC", 1);
    write_text(top, "x.yaml", "model: {num_layers: 2, hidden_size: 32, num_attention_heads: 4, seq_length: 16, vocab_size: 64}\n"
               "train: {micro_batch_size: 4}\nlog: {log_interval: 1, log_style: lines, device_peak_tflops: 2}\n");
    char *path = path_of(top, "x.yaml");
    cfg = config_load(path, 0, NULL, 1, USE_MODEL);
    free(path);
    test_table();
    test_memory();
    test_progress_line();
    test_live_line();
    test_lines();
    test_resume(1);
    test_resume(3);
    test_bad_world();
    test_events();
    test_trace();
    test_scale();
    test_report();
    char *wipe = xasprintf("rm -rf %s", top);
    CHECK(!system(wipe), "%s", wipe);
    free(wipe);
    return test_end();
}
