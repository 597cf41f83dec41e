/* log -- everything a run records: console, metrics.jsonl, TensorBoard, run.json, the report */
#define _GNU_SOURCE
#include "about.h"
#include "console.h"
#include "json_number.h"
#include "jsonl.h"
#include "rank_log.h"
#include "routers.h"
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
#include <unistd.h>

/* The run up to a line. */
typedef struct {
    int64_t iteration;
    double good, wall;             /* s: of its steps; since its first start */
} Course;

struct Log {
    int64_t interval, total, seq_length;
    int devices;
    double flops_per_token, peak_flops;
    char *run_dir;                 /* NULL: no files are written */
    char id[64];                   /* `, "run_id": "ID"`, the last key of every line; "" without an id */
    int dir;                       /* descriptor of run_dir; -1: none */
    Console console;
    int fd;                        /* of metrics.jsonl; -1: none */
    int64_t size, lost;            /* bytes of whole lines in metrics.jsonl; lines lost */
    int error;                     /* errno of the first lost line */
    EventFile events;
    Metrics sum;                   /* sums of the TIME rows over the steps since the last line */
    Metrics counted;               /* totals of the COUNT rows at the last line */
    Metrics last;                  /* of the last step */
    int64_t steps, tokens;         /* trained since the last line */
    Course course;
    double spent, opened;          /* s of wall time before `opened`, which is on the clock of now() */
    RouterMetrics routers;         /* of the last step; layers 0: there are none */
    RankLog ranks;                 /* since the last line */
    About about;
};

/* ---- metrics.jsonl ---- */

static void put_line(Log *l, const char *text, int n)
{
    if (l->fd < 0)
        return;
    if (file_append(l->fd, text, (size_t)n)) {
        l->size += n;
        return;
    }
    l->error = l->lost++ ? l->error : errno;
    if (ftruncate(l->fd, l->size))                 /* removes the torn line before the next is written */
        l->fd = (close(l->fd), -1);
}

static int put_number(char *text, int room, const char *name, double v)
{
    char number[32];
    return snprintf(text, (size_t)room, ", \"%s\": %s", name, json_number_text(number, v));
}

static void put_metrics(Log *l, const Metrics *m)
{
    char text[METRIC_COUNT * 64 + 128];
    int n = 0, room = (int)sizeof text;
    for (int i = 0; i < METRIC_COUNT; i++)
        if (metric_defs[i].type == METRIC_INT)
            n += snprintf(text + n, (size_t)(room - n), ", \"%s\": %lld", metric_defs[i].name,
                          (long long)*(const int64_t *)((const char *)m + metric_defs[i].offset));
        else
            n += put_number(text + n, room - n, metric_defs[i].name, metric_get(m, i));
    BUG_ON(n >= room);
    text[1] = '{';                                 /* replaces the first ", " */
    char *routers = l->routers.layers ? routers_json(&l->routers) : xstrdup("");
    char *ranks = rank_log_json(&l->ranks);
    char *line = xasprintf("%s%s%s%s}\n", text + 1, routers, ranks, l->id);
    put_line(l, line, (int)strlen(line));
    free(ranks);
    free(routers);
    free(line);
}

/* ---- TensorBoard's points over consumed samples ---- */

/* Whether Megatron-LM writes the row at `offset` a second time, over consumed samples. */
static int has_samples_twin(const Metrics *m, size_t offset)
{
    const void *twins[] = {&m->lm_loss,           &m->grad_norm,   &m->learning_rate, &m->loss_scale,
                           &m->global_batch_size, &m->params_norm, &m->num_zeros};
    for (size_t i = 0; i < sizeof twins / sizeof *twins; i++)
        if ((const char *)m + offset == twins[i])
            return 1;
    return 0;
}

/* Writes a step's points over consumed samples. devices: NAN where not known. */
static void step_over_samples(Log *l, const Metrics *m, double devices)
{
    Scalar s[METRIC_COUNT + 1];
    char name[METRIC_COUNT][64];
    int n = 0;
    for (int i = 0; i < METRIC_COUNT; i++)
        if (has_samples_twin(m, metric_defs[i].offset)) {
            snprintf(name[n], sizeof name[n], "%s vs samples", metric_defs[i].tag);
            s[n] = (Scalar){name[n], metric_get(m, i)};
            n++;
        }
    s[n++] = (Scalar){"world-size vs samples", devices};
    event_scalars(&l->events, about_now(), m->consumed_samples, s, n);
}

static void eval_over_samples(Log *l, int64_t samples, double loss)
{
    Scalar s[] = {{"lm loss validation vs samples", loss}, {"lm loss validation ppl vs samples", exp(loss)}};
    event_scalars(&l->events, about_now(), samples, s, 2);
}

#define REPEATED 1000          /* steps, as many as TensorBoard shows of a curve */

/* What every line of metrics.jsonl is read for; NAN: the line has no such number. A long run has a million
 * lines, and few of them are parsed. */
enum { LINE_ITERATION, LINE_SAMPLES, LINE_LOSS, LINE_MS, LINE_GOODPUT, LINE_COUNTS };
typedef struct {
    const char *key[LINE_COUNTS + METRIC_COUNT];
    double v[LINE_COUNTS + METRIC_COUNT];      /* from LINE_COUNTS on: of the COUNT rows */
    int n, row[METRIC_COUNT];                  /* row: metrics of the COUNT rows */
    const char *text;                          /* [bytes] the line */
    size_t bytes;
} Line;

static Line line_keys(void)
{
    Line k = {.key = {"iteration", "consumed_samples", "valid_loss", "elapsed_ms", "goodput"},
              .n = LINE_COUNTS};
    for (int i = 0; i < METRIC_COUNT; i++)
        if (metric_defs[i].steps == STEPS_COUNT) {
            k.row[k.n - LINE_COUNTS] = i;
            k.key[k.n++] = metric_defs[i].name;
        }
    return k;
}

/* A number of a line as an integer; -1: none, or not one that a run writes. */
static int64_t whole(double x) { return x >= 0 && x < 0x1p53 && x == rint(x) ? (int64_t)x : -1; }

/* Writes the points over samples of a line of metrics.jsonl once more, of a long run those of some steps.
 * The event file of a resumed run makes TensorBoard drop whatever lies from iteration last + 1 on, and
 * TensorBoard takes samples for iterations.
 *   step  in/out  the last line of a step; its iteration is that of an evaluation behind it */
static void repeat_over_samples(Log *l, const Line *k, int64_t last, Metrics *step)
{
    int64_t iteration = whole(k->v[LINE_ITERATION]), samples = whole(k->v[LINE_SAMPLES]);
    if (samples >= 0) {
        step->iteration = iteration;
        step->consumed_samples = samples;
        if (step->consumed_samples <= last || iteration / l->interval % (1 + last / l->interval / REPEATED))
            return;
        json_t *line = json_loadb(k->text, k->bytes, 0, NULL);
        for (int i = 0; i < METRIC_COUNT; i++) {
            const json_t *v = json_object_get(line, metric_defs[i].name);
            int known = json_is_number(v) || metric_defs[i].type == METRIC_INT;
            metric_set(step, i, known ? json_number_value(v) : NAN);
        }
        json_decref(line);
        step_over_samples(l, step, NAN);
    } else if (!isnan(k->v[LINE_LOSS]) && step->consumed_samples > last && iteration == step->iteration) {
        eval_over_samples(l, step->consumed_samples, k->v[LINE_LOSS]);
    }
}

/* Takes the course up to a line of metrics.jsonl, which may have been written before there was a goodput. */
static void course_read(Course *c, const Line *k)
{
    double ms = k->v[LINE_MS], goodput = k->v[LINE_GOODPUT];
    int64_t iteration = whole(k->v[LINE_ITERATION]);
    if (isnan(ms) || iteration < 0)
        return;
    c->good += 1e-3 * ms * (double)(iteration - c->iteration);
    c->iteration = iteration;
    c->wall = goodput > 0 ? c->good / goodput : c->good;
}

/* Drops torn and foreign lines and those after the iteration to resume; sums up the others' COUNT rows.
 * The wall time of the dropped lines stays. A symbolic link becomes a file of the lines behind it. */
static void continue_lines(Log *l, const LogStart *s)
{
    char why[WHY];
    struct stat st;
    int64_t size, kept = 0, last = s->resume_iteration;
    Course course = l->course = (Course){.iteration = about_began(l->dir, last)};
    Metrics step = {0};
    Line k = line_keys();
    if (faccessat(l->dir, "metrics.jsonl", F_OK, 0)) {
        l->counted.skipped_iterations = (double)s->skipped;
        l->counted.nan_iterations = (double)s->nans;
        return;
    }
    char *text = file_read_text(l->dir, "metrics.jsonl", 0, (int64_t)1 << 40, &size, why);
    for (char *p = text, *end; p && p < text + size; p = end) {
        char *newline = memchr(p, '\n', (size_t)(text + size - p));
        end = newline ? newline + 1 : text + size;
        k.text = p;
        k.bytes = (size_t)(end - p);
        if (!newline || !jsonl_numbers(p, end - p, k.n, k.key, k.v))
            continue;
        course_read(&course, &k);
        int64_t iteration = whole(k.v[LINE_ITERATION]);
        if (iteration < 0 || iteration > last)
            continue;
        l->course = course;
        repeat_over_samples(l, &k, last, &step);
        for (int i = LINE_COUNTS; i < k.n; i++) {
            int row = k.row[i - LINE_COUNTS];
            metric_set(&l->counted, row, metric_get(&l->counted, row) + (isnan(k.v[i]) ? 0 : k.v[i]));
        }
        memmove(text + kept, p, k.bytes);
        kept += end - p;
    }
    int linked = !fstatat(l->dir, "metrics.jsonl", &st, AT_SYMLINK_NOFOLLOW) && S_ISLNK(st.st_mode);
    if (!text || ((kept < size || linked) && !file_replace(l->dir, "metrics.jsonl", text, kept, why)))
        die(EXIT_RESOURCE, "log", "cannot continue %s/metrics.jsonl: %s; change: free space, or make the run "
            "directory writable", l->run_dir, why);
    l->course.wall = course.wall;
    free(text);
}

/* ---- The log ---- */

static void config_summary(Log *l, const Config *cfg)
{
    char *text = NULL;
    size_t n;
    FILE *f = xmemstream(&text, &n);
    fprintf(f, "```\n");
    config_write(f, cfg);
    fprintf(f, "```\n");
    fclose(f);
    event_text(&l->events, about_now(), "config", text);
    free(text);
}

static void open_files(Log *l, const Config *cfg, const LogStart *s)
{
    char why[WHY];
    int resumed = s->resume_iteration > 0;
    const char *events = cfg->tensorboard_dir ? cfg->tensorboard_dir : l->run_dir;
    if ((l->dir = file_open_dir(AT_FDCWD, l->run_dir, 0, why)) < 0)
        die(EXIT_RESOURCE, "log", "%s; change: make the run directory, or choose another with save", why);
    if (!file_make_dirs(events, why))
        die(EXIT_RESOURCE, "log", "%s; change: choose another tensorboard_dir", why);
    if (event_open(&l->events, events, about_now(), resumed ? s->resume_iteration + 1 : 0))
        die(EXIT_RESOURCE, "log", "cannot write an event file in %s: %s; change: make it writable, or choose "
            "another with tensorboard_dir", events, strerror(errno));
    if (resumed)
        continue_lines(l, s);
    else
        /* the timeline of an earlier run and its plan do not belong in this report */
        unlinkat(l->dir, "trace.json", 0), unlinkat(l->dir, "plan.json", 0);
    l->fd = file_open_append(l->dir, "metrics.jsonl", !resumed, why);
    if (l->fd < 0)
        die(EXIT_RESOURCE, "log", "%s: %s; change: make the run directory writable, or choose another with "
            "save", l->run_dir, why);
    l->size = lseek(l->fd, 0, SEEK_END);
    config_summary(l, cfg);
}

Log *log_open(const Config *cfg, const LogStart *s)
{
    char why[WHY];
    Log *l = xcalloc(1, sizeof *l);
    l->interval = cfg->log_interval;
    l->total = s->total_iterations;
    l->seq_length = cfg->seq_length;
    l->devices = s->devices ? s->devices : 1;
    l->flops_per_token = s->flops_per_token;
    l->peak_flops = isfinite(cfg->device_peak_tflops) ? cfg->device_peak_tflops * 1e12 : 0;
    l->run_dir = s->run_dir ? xstrdup(s->run_dir) : NULL;
    if (s->id)
        snprintf(l->id, sizeof l->id, ", \"run_id\": \"%s\"", s->id);
    l->dir = l->fd = l->events.fd = -1;
    signal(SIGPIPE, SIG_IGN);
    console_open(&l->console, STDOUT_FILENO, cfg->log_style, s->total_iterations);
    if (l->run_dir)
        open_files(l, cfg, s);
    l->spent = about_open(&l->about, cfg, s, l->dir, l->course.wall);
    l->opened = now();
    about_save(&l->about, l->dir, why);
    return l;
}

void log_fact(Log *l, const char *name, const char *text)
{
    if (l)
        about_fact(&l->about, name, text);
}

void log_memory(Log *l, const char *category, int64_t planned, int64_t used)
{
    if (l)
        about_memory(&l->about, category, planned, used);
}

/* Fills in the RATE rows, from `tokens` trained in `ms`. */
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
    Scalar s[METRIC_COUNT + 2];
    int n = 0;
    for (int i = 0; i < METRIC_COUNT; i++)
        if (*metric_defs[i].tag)
            s[n++] = (Scalar){metric_defs[i].tag, metric_get(m, i)};
    s[n++] = (Scalar){"iteration-time", 1e-3 * m->elapsed_ms};     /* in seconds, as Megatron-LM does */
    s[n++] = (Scalar){"world-size", l->devices};
    event_scalars(&l->events, about_now(), m->iteration, s, n);
    step_over_samples(l, m, l->devices);
}

double log_wall(const Log *l) { return l->spent + now() - l->opened; }

/* Writes a line to every output, about the steps since the line before it. */
static void put_record(Log *l)
{
    char why[WHY], losses[160] = "";
    Metrics m = l->last;
    fill_rates(l, &m, l->tokens, l->sum.elapsed_ms);
    for (int i = 0; i < METRIC_COUNT; i++)
        if (metric_defs[i].steps == STEPS_TIME) {
            metric_set(&m, i, metric_get(&l->sum, i) / (double)l->steps);
        } else if (metric_defs[i].steps == STEPS_COUNT) {
            double total = metric_get(&m, i);
            metric_set(&m, i, total - metric_get(&l->counted, i));
            metric_set(&l->counted, i, total);
        }
    l->course.good += 1e-3 * m.elapsed_ms * (double)(m.iteration - l->course.iteration);
    l->course.iteration = m.iteration;
    m.goodput = l->course.good / log_wall(l);
    l->sum = (Metrics){0};
    l->steps = l->tokens = 0;
    put_metrics(l, &m);
    log_scalars(l, &m);
    rank_log_scalars(&l->ranks, &l->events, about_now(), m.iteration);
    l->ranks = (RankLog){0};
    if (l->routers.layers) {
        routers_scalars(&l->routers, &l->events, about_now(), m.iteration);
        routers_fields(&l->routers, losses);
    }
    console_line(&l->console, &m, losses);
    about_save(&l->about, l->dir, why);
}

void log_routers(Log *l, const RouterMetrics *m)
{
    if (l && m)
        routers_copy(&l->routers, m);
}

void log_groups(Log *l, const GroupTimes *g, int n)
{
    if (l && n)
        rank_log_add(&l->ranks, g, n);
}

void log_stragglers(Log *l, const SlowRank *s, int n)
{
    if (l)
        rank_log_slow(&l->ranks, s, n);
}

void log_step(Log *l, const Metrics *step)
{
    if (!l)
        return;
    Metrics m = *step;
    int64_t tokens = m.global_batch_size * l->seq_length;
    l->last = m;
    l->steps++;
    l->tokens += tokens;
    for (int i = 0; i < METRIC_COUNT; i++)
        if (metric_defs[i].steps == STEPS_TIME)
            metric_set(&l->sum, i, metric_get(&l->sum, i) + metric_get(&m, i));
    fill_rates(l, &m, tokens, m.elapsed_ms);
    console_step(&l->console, &m);
    if (m.iteration % l->interval == 0 || m.iteration == l->total)
        put_record(l);
}

void log_last(Log *l)
{
    if (l && l->steps)
        put_record(l);
}

void log_eval(Log *l, int64_t iteration, double loss)
{
    if (!l)
        return;
    char text[256];
    int room = (int)sizeof text;
    int n = snprintf(text, sizeof text, "{\"iteration\": %lld", (long long)iteration);
    n += put_number(text + n, room - n, "valid_loss", loss);
    n += put_number(text + n, room - n, "valid_ppl", exp(loss));
    n += snprintf(text + n, (size_t)(room - n), "%s}\n", l->id);
    put_line(l, text, n);
    Scalar s[] = {{"lm loss validation", loss}, {"lm loss validation ppl", exp(loss)}};
    event_scalars(&l->events, about_now(), iteration, s, 2);
    if (l->last.iteration == iteration)
        eval_over_samples(l, l->last.consumed_samples, loss);
    console_eval(&l->console, iteration, loss);
}

void log_event(Log *l, const json_t *event)
{
    if (!l)
        return;
    char *text = json_dumps(event, JSON_REAL_PRECISION(17));
    text[strlen(text) - 1] = 0;                    /* the closing brace */
    char *line = xasprintf("%s%s}\n", text, l->id);
    put_line(l, line, (int)strlen(line));
    free(line);
    free(text);
}

void log_note(Log *l, const char *fmt, ...)
{
    if (!l)
        return;
    char text[8192];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    console_note(&l->console, text);
}

void log_status(Log *l, const char *fmt, ...)
{
    if (!l)
        return;
    char text[128] = "";
    va_list ap;
    va_start(ap, fmt);
    if (fmt)
        vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    console_status(&l->console, text);
}

int log_close(Log *l, const char *why)
{
    if (!l)
        return 0;
    char reason[WHY];
    log_last(l);
    console_close(&l->console);
    about_end(&l->about, why);
    if (!about_save(&l->about, l->dir, reason))
        warn("%s", reason);
    event_close(&l->events);
    if (l->lost)
        warn("metrics.jsonl lacks %lld lines (%s); the report has a gap there", (long long)l->lost,
             strerror(l->error));
    if (l->events.lost)
        warn("%s lacks %lld records", l->events.path, (long long)l->events.lost);
    if (l->console.lost)
        warn("standard output lost %lld lines", (long long)l->console.lost);
    int written = l->run_dir && report_write(l->run_dir, reason);
    if (l->run_dir && !written)
        warn("there is no new report: %s", reason);
    about_close(&l->about);
    routers_free(&l->routers);
    if (l->fd >= 0)
        close(l->fd);
    if (l->dir >= 0)
        close(l->dir);
    free(l->run_dir);
    free(l);
    return written;
}
