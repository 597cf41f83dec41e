#define _GNU_SOURCE
#include "console.h"
#include "metrics.h"
#include "tensorboard.h"
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

struct Log {
    int64_t interval, seq_length;
    int devices;
    double flops_per_token, peak_flops;
    char *run_dir;                 /* NULL: no files */
    Console console;
    int fd;                        /* metrics.jsonl, -1 = none */
    int64_t size, lost;            /* whole bytes in it; lines that could not be written */
    int error;                     /* errno of the first line lost */
    EventFile events;
    Metrics sum;                   /* TIME rows, over the steps since the last line */
    Metrics counted;               /* COUNT rows, totals at the last line */
    int64_t steps, tokens;         /* since the last line */
    json_t *run;                   /* run.json */
    int run_dirty;
};

static double wall(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- metrics.jsonl ---- */

static void put_line(Log *l, const char *text, int n)
{
    if (l->fd < 0)
        return;
    for (int done = 0; done < n;) {
        ssize_t w = write(l->fd, text + done, (size_t)(n - done));
        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0) {
            l->error = l->lost++ ? l->error : errno;
            if (ftruncate(l->fd, l->size))         /* no torn line in front of the next one */
                l->fd = (close(l->fd), -1);
            return;
        }
        done += (int)w;
    }
    l->size += n;
}

static int put_number(char *text, int room, const char *name, double v)
{
    return isfinite(v) ? snprintf(text, (size_t)room, ", \"%s\": %.17g", name, v)
                       : snprintf(text, (size_t)room, ", \"%s\": null", name);
}

static void put_metrics(Log *l, const Metrics *m)
{
    char text[METRIC_COUNT * 64 + 64];
    int n = 0, room = (int)sizeof text;
    for (int i = 0; i < METRIC_COUNT; i++)
        if (metric_defs[i].type == METRIC_INT)
            n += snprintf(text + n, (size_t)(room - n), ", \"%s\": %lld", metric_defs[i].name,
                          (long long)*(const int64_t *)((const char *)m + metric_defs[i].offset));
        else
            n += put_number(text + n, room - n, metric_defs[i].name, metric_get(m, i));
    n += snprintf(text + n, (size_t)(room - n), "}\n");
    BUG_ON(n >= room);
    text[1] = '{';                                 /* the first ", " */
    put_line(l, text + 1, n - 1);
}

/* Reads the lines up to `last` into a new file and puts it in the old one's place, when there is anything to drop.
 * Learns how many steps were counted so far. */
static void continue_lines(Log *l, const char *path, int64_t last)
{
    size_t room = 0;
    ssize_t n;
    int dropped = 0;
    char *line = NULL, *beside = xasprintf("%s.tmp", path);
    FILE *in = fopen(path, "re"), *out = in ? fopen(beside, "we") : NULL;
    if (in && !out)
        die(EXIT_RESOURCE, "log", "cannot write %s: %s; change: free space, or make the run directory writable",
            beside, strerror(errno));
    while (in && (n = getline(&line, &room, in)) > 0) {
        json_t *o = json_loads(line, 0, NULL);
        json_t *iteration = json_object_get(o, "iteration");
        int keep = line[n - 1] == '\n' && json_is_integer(iteration) && json_integer_value(iteration) <= last;
        dropped += !keep;
        for (int i = 0; keep && i < METRIC_COUNT; i++)
            if (metric_defs[i].steps == STEPS_COUNT)
                metric_set(&l->counted, i, metric_get(&l->counted, i) +
                           json_number_value(json_object_get(o, metric_defs[i].name)));
        if (keep)
            fwrite(line, 1, (size_t)n, out);
        json_decref(o);
    }
    if (out) {
        int bad = ferror(in) | ferror(out) | fflush(out) | (dropped && fsync(fileno(out)));
        if (fclose(out) || bad || (dropped && rename(beside, path)))
            die(EXIT_RESOURCE, "log", "cannot rewrite %s: %s; change: free space, or make the run directory "
                "writable", path, strerror(errno));
        if (!dropped)
            unlink(beside);
        fclose(in);
    }
    free(line);
    free(beside);
}

/* ---- run.json: what the report says beside the numbers ---- */

static json_t *child(json_t *parent, const char *name, json_t *fresh)
{
    json_t *o = json_object_get(parent, name);
    if (o) {
        json_decref(fresh);
        return o;
    }
    json_object_set_new(parent, name, fresh);
    return fresh;
}

/* UTF-8 or not, the text becomes JSON: bytes that are not UTF-8 (a file name, a cut sample) turn into '?'. */
static json_t *json_text(const char *s)
{
    json_t *t = json_string(s);
    if (t)
        return t;
    char *copy = xstrdup(s);
    for (char *c = copy; *c; c++)
        if (*c & 0x80)
            *c = '?';
    t = json_string(copy);
    free(copy);
    return t;
}

static void save_run(Log *l)
{
    if (!l->run_dir || !l->run_dirty)
        return;
    char *path = xasprintf("%s/run.json", l->run_dir), *beside = xasprintf("%s.tmp", path);
    if (!json_dump_file(l->run, beside, JSON_INDENT(2)) && !rename(beside, path))
        l->run_dirty = 0;
    else
        unlink(beside);
    free(path);
    free(beside);
}

static json_t *machine_facts(void)
{
    char line[512], cpu[256] = "", host[65] = "";
    struct sysinfo info = {0};
    struct utsname u = {0};
    FILE *f = fopen("/proc/cpuinfo", "re");
    while (f && !*cpu && fgets(line, sizeof line, f))
        sscanf(line, "model name%*[ \t]: %255[^\n]", cpu);
    if (f)
        fclose(f);
    gethostname(host, sizeof host - 1);
    sysinfo(&info);
    uname(&u);
    json_t *o = json_object();
    json_object_set_new(o, "host", json_text(host));
    json_object_set_new(o, "cpu", json_text(*cpu ? cpu : u.machine));
    json_object_set_new(o, "cores", json_integer(sysconf(_SC_NPROCESSORS_ONLN)));
    json_object_set_new(o, "memory_bytes", json_integer((json_int_t)info.totalram * info.mem_unit));
    json_object_set_new(o, "system", json_text(u.release));
    return o;
}

static void open_run(Log *l, const LogStart *s)
{
    char *path = l->run_dir ? xasprintf("%s/run.json", l->run_dir) : NULL;
    json_t *session = json_object();
    l->run = path && s->resume_iteration > 0 ? json_load_file(path, 0, NULL) : NULL;
    if (!json_is_object(l->run)) {
        json_decref(l->run);
        l->run = json_object();
    }
    json_object_set_new(l->run, "total_iterations", json_integer(s->total_iterations));
    json_object_set_new(l->run, "parameters", json_integer(s->parameters));
    json_object_set_new(l->run, "devices", json_integer(l->devices));
    json_object_set_new(l->run, "flops_per_token", json_real(l->flops_per_token));
    json_object_set_new(l->run, "machine", machine_facts());
    json_object_set_new(session, "started", json_real(wall()));
    json_object_set_new(session, "from", json_integer(s->resume_iteration));
    json_object_set_new(session, "command", json_text(s->command ? s->command : ""));
    json_object_set_new(session, "build", json_text(s->build ? s->build : ""));
    json_array_append_new(child(l->run, "sessions", json_array()), session);
    l->run_dirty = 1;
    free(path);
}

void log_fact(Log *l, const char *name, const char *fmt, ...)
{
    char text[4096];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    json_object_set_new(child(l->run, "facts", json_object()), name, json_text(text));
    l->run_dirty = 1;
}

void log_memory(Log *l, const char *category, int64_t planned, int64_t used)
{
    json_t *o = json_object();
    json_object_set_new(o, "planned", planned < 0 ? json_null() : json_integer(planned));
    json_object_set_new(o, "used", used < 0 ? json_null() : json_integer(used));
    json_object_set_new(child(l->run, "memory", json_object()), category, o);
    l->run_dirty = 1;
}

void log_sample(Log *l, const char *text)
{
    json_object_set_new(l->run, "sample", json_text(text));
    l->run_dirty = 1;
}

/* ---- The log ---- */

static void config_summary(Log *l, const Config *cfg)
{
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    fprintf(f, "```\n");
    config_write(f, cfg);
    fprintf(f, "```\n");
    fclose(f);
    event_text(&l->events, wall(), "config", text);
    free(text);
}

Log *log_open(const Config *cfg, const LogStart *s)
{
    Log *l = xcalloc(1, sizeof *l);
    l->interval = cfg->log_interval;
    l->seq_length = cfg->seq_length;
    l->devices = s->devices ? s->devices : 1;
    l->flops_per_token = s->flops_per_token;
    l->peak_flops = isfinite(cfg->device_peak_tflops) ? cfg->device_peak_tflops * 1e12 : 0;
    l->run_dir = s->run_dir ? xstrdup(s->run_dir) : NULL;
    l->fd = l->events.fd = -1;
    signal(SIGPIPE, SIG_IGN);
    console_open(&l->console, STDOUT_FILENO, cfg->log_style, s->total_iterations);
    open_run(l, s);
    if (!l->run_dir)
        return l;

    char *path = xasprintf("%s/metrics.jsonl", l->run_dir);
    const char *dir = cfg->tensorboard_dir ? cfg->tensorboard_dir : l->run_dir;
    if (s->resume_iteration > 0)
        continue_lines(l, path, s->resume_iteration);
    l->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (s->resume_iteration > 0 ? 0 : O_TRUNC), 0666);
    if (l->fd < 0)
        die(EXIT_RESOURCE, "log", "cannot open %s: %s; change: make the run directory writable, or choose another "
            "with save", path, strerror(errno));
    l->size = lseek(l->fd, 0, SEEK_END);
    if (mkdir(dir, 0777) && errno != EEXIST)
        die(EXIT_RESOURCE, "log", "cannot make %s: %s; change: tensorboard_dir", dir, strerror(errno));
    if (event_open(&l->events, dir, wall(), s->resume_iteration > 0 ? s->resume_iteration + 1 : 0))
        die(EXIT_RESOURCE, "log", "cannot write an event file in %s: %s; change: make it writable, or choose another "
            "with tensorboard_dir", dir, strerror(errno));
    config_summary(l, cfg);
    save_run(l);
    free(path);
    return l;
}

/* RATE rows, from `tokens` trained in `ms`. */
static void fill_rates(const Log *l, Metrics *m, int64_t tokens, double ms)
{
    double rate = ms > 0 ? (double)tokens / (ms * 1e-3) : NAN;
    double flops = l->flops_per_token > 0 ? rate * l->flops_per_token / l->devices : NAN;
    m->tokens_per_second = rate;
    m->tflops_per_device = flops * 1e-12;
    m->mfu = l->peak_flops > 0 ? flops / l->peak_flops : NAN;
}

static void log_scalars(Log *l, const Metrics *m)
{
    Scalar s[METRIC_COUNT + 1];
    int n = 0;
    for (int i = 0; i < METRIC_COUNT; i++)
        if (*metric_defs[i].tag)
            s[n++] = (Scalar){metric_defs[i].tag, metric_get(m, i)};
    event_scalars(&l->events, wall(), m->iteration, s, n);
    s[0] = (Scalar){"lm loss vs samples", m->lm_loss};       /* Megatron's: the step is the sample */
    event_scalars(&l->events, wall(), m->consumed_samples, s, 1);
}

void log_step(Log *l, const Metrics *step)
{
    Metrics m = *step;
    int64_t tokens = m.global_batch_size * l->seq_length;
    l->steps++;
    l->tokens += tokens;
    for (int i = 0; i < METRIC_COUNT; i++)
        if (metric_defs[i].steps == STEPS_TIME)
            metric_set(&l->sum, i, metric_get(&l->sum, i) + metric_get(&m, i));
    fill_rates(l, &m, tokens, m.elapsed_ms);
    console_step(&l->console, &m);
    if (m.iteration % l->interval)
        return;

    fill_rates(l, &m, l->tokens, l->sum.elapsed_ms);
    for (int i = 0; i < METRIC_COUNT; i++)
        if (metric_defs[i].steps == STEPS_TIME) {
            metric_set(&m, i, metric_get(&l->sum, i) / (double)l->steps);
        } else if (metric_defs[i].steps == STEPS_COUNT) {
            double total = metric_get(&m, i);
            metric_set(&m, i, total - metric_get(&l->counted, i));
            metric_set(&l->counted, i, total);
        }
    l->sum = (Metrics){0};
    l->steps = l->tokens = 0;
    put_metrics(l, &m);
    log_scalars(l, &m);
    console_line(&l->console, &m);
    save_run(l);
}

void log_eval(Log *l, int64_t iteration, double loss)
{
    char text[256];
    int room = (int)sizeof text, n = snprintf(text, sizeof text, "{\"iteration\": %lld", (long long)iteration);
    n += put_number(text + n, room - n, "valid_loss", loss);
    n += put_number(text + n, room - n, "valid_ppl", exp(loss));
    n += snprintf(text + n, (size_t)(room - n), "}\n");
    put_line(l, text, n);
    Scalar s[] = {{"lm loss validation", loss}, {"lm loss validation ppl", exp(loss)}};
    event_scalars(&l->events, wall(), iteration, s, 2);
    console_eval(&l->console, iteration, loss);
}

void log_note(Log *l, const char *fmt, ...)
{
    char text[8192];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    console_note(&l->console, text);
}

void log_status(Log *l, const char *fmt, ...)
{
    char text[128] = "";
    va_list ap;
    va_start(ap, fmt);
    if (fmt)
        vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    console_status(&l->console, text);
}

void log_close(Log *l, const char *why)
{
    char why_not[WHY];
    json_t *sessions = json_object_get(l->run, "sessions");
    json_t *session = json_array_get(sessions, json_array_size(sessions) - 1);
    json_object_set_new(session, "ended", json_real(wall()));
    json_object_set_new(session, "to", json_integer(l->console.m.iteration));
    json_object_set_new(session, "why", json_text(why));
    l->run_dirty = 1;
    console_close(&l->console);
    if (l->fd >= 0)
        close(l->fd);
    event_close(&l->events);
    save_run(l);
    if (l->lost)
        warn("metrics.jsonl lacks %lld lines (%s); its report has a gap there", (long long)l->lost, strerror(l->error));
    if (l->events.lost)
        warn("%s lacks %lld records", l->events.path, (long long)l->events.lost);
    if (l->console.lost)
        warn("standard output lost %lld lines", (long long)l->console.lost);
    if (l->run_dir && !report_write(l->run_dir, why_not))
        warn("there is no new report: %s", why_not);
    json_decref(l->run);
    free(l->run_dir);
    free(l);
}
