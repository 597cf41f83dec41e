/* report_data -- the data of the report, read from the files of a run; numbers as text */
#define _GNU_SOURCE
#include "report_data.h"
#include "base.h"
#include "jsonl.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Reading ---- */

/* Appends x to the n numbers of *v. */
static void append(double **v, int64_t n, double x)
{
    *v = xgrow(*v, n, sizeof **v);
    (*v)[n] = x;
}

static double mean_of(const json_t *list)
{
    double sum = 0;
    size_t i;
    json_t *x;
    json_array_foreach(list, i, x)
        sum += json_number_value(x);
    return sum / (double)json_array_size(list);
}

static void add_line(void *report, const json_t *o)
{
    Report *r = report;
    if (!json_is_integer(json_object_get(o, "iteration")))
        return;
    if (json_object_get(o, "valid_loss")) {
        append(&r->eval_at, r->evals, report_number_of(o, "iteration"));
        append(&r->eval_loss, r->evals++, report_number_of(o, "valid_loss"));
        return;
    }
    if (json_object_get(o, "spike")) {
        json_array_append(r->spikes, (json_t *)o);
        return;
    }
    for (int i = 0; i < METRIC_COUNT; i++)
        append(&r->col[i], r->n, report_number_of(o, metric_defs[i].name));
    json_t *moe = json_object_get(o, "moe");
    append(&r->col[C_peak], r->n, report_number_of(o, "moe_load_max_over_mean"));
    append(&r->col[C_peak_mean], r->n, mean_of(json_object_get(moe, "load_max_over_mean")));
    double at = report_number_of(o, "iteration"), before = r->n ? r->col[C_iteration][r->n - 1] : at;
    report_add_stragglers(r->stragglers, json_object_get(o, "stragglers"), at, before);
    json_t *comm = json_object_get(o, "comm");
    if (comm) {
        json_decref(r->comm);
        r->comm = json_incref(comm);
    }
    r->n++;
    if (!moe)
        return;
    json_decref(r->moe);
    r->moe = json_incref(moe);
    r->moe_at = report_number_of(o, "iteration");
}

enum { SAMPLES = 3 };              /* most texts of `train generate` that are shown: the last ones */
static void add_sample(void *report, const json_t *o)
{
    Report *r = report;
    if (json_is_string(json_object_get(o, "text")))
        json_array_append(r->samples, (json_t *)o);
    if (json_array_size(r->samples) > SAMPLES)
        json_array_remove(r->samples, 0);
}

static void add_failure(void *report, const json_t *o)
{
    if (json_is_string(json_object_get(o, "cause")))
        json_array_append(((Report *)report)->failures, (json_t *)o);
}

static void read_lines(Report *r, const char *dir, const char *name, JsonlEach *add)
{
    char *path = xasprintf("%s/%s", dir, name);
    if (jsonl_each(path, add, r) < 0 && errno != ENOENT)
        warn("the report lacks a part of %s, which cannot be read: %s; change: go on with the run when it "
             "can", path, strerror(errno));
    free(path);
}

static json_t *read_object(const char *dir, const char *name)
{
    char *path = xasprintf("%s/%s", dir, name);
    json_t *o = json_of_file(path);
    free(path);
    return o;
}

/* ---- Columns that follow from others ---- */

/* A sum whose terms come and go: a huge one that has gone leaves nothing of itself (Neumaier 1974). */
typedef struct { double sum, lost; } Sum;

static void sum_add(Sum *s, double x)
{
    double to = s->sum + x;
    s->lost += fabs(s->sum) >= fabs(x) ? s->sum - to + x : x - to + s->sum;
    s->sum = to;
}

/* Returns [n] the mean of y in a window around each step: 2 % of the n steps, fewer near the ends. Values
 * that are not finite are left out. */
static double *smooth(double *y, int64_t n)
{
    if (n < SMOOTH_FROM)
        return y;
    Sum sum = {0};
    double *s = xcalloc((size_t)n, sizeof *s);
    int64_t lo = 0, hi = 0, k = 0;     /* the window [lo, hi) has k finite values */
    for (int64_t i = 0; i < n; i++) {
        int64_t h = n / SMOOTH_FROM < i ? n / SMOOTH_FROM : i;
        h = n - 1 - i < h ? n - 1 - i : h;
        for (; hi <= i + h; hi++)
            if (isfinite(y[hi]))
                sum_add(&sum, y[hi]), k++;
        for (; lo < i - h; lo++)
            if (isfinite(y[lo]))
                sum_add(&sum, -y[lo]), k--;
        s[i] = k ? (sum.sum + sum.lost) / (double)k : NAN;
    }
    return s;
}

/* The column's value at row i; 0: there is none. */
static double number(const Report *r, int column, int64_t i)
{
    return isfinite(r->col[column][i]) ? r->col[column][i] : 0;
}

/* A line of metrics.jsonl holds means over the steps since the line before it, the first one since the run
 * began, which may have been at an iteration of another run. */
static void derive(Report *r)
{
    const json_t *first = json_array_get(json_object_get(r->run, "sessions"), 0);
    double sum = 0, before = fmax(0, report_number_of(first, "from"));
    for (int64_t i = 0; i < r->n; i++) {
        double steps = fmax(0, r->col[C_iteration][i] - before), other = number(r, C_elapsed_ms, i);
        before = r->col[C_iteration][i];
        sum += 1e-3 * steps * (other + number(r, C_eval_ms, i) + number(r, C_checkpoint_ms, i));
        other -= number(r, C_data_ms, i) + number(r, C_forward_ms, i) + number(r, C_backward_ms, i) +
                 number(r, C_optimizer_ms, i);
        append(&r->col[C_steps], i, steps);
        append(&r->col[C_time], i, sum);
        append(&r->col[C_other], i, fmax(0, other));
    }
    r->time_unit = sum < 120 ? "seconds" : sum < 7200 ? "minutes" : "hours";
    for (int64_t i = 0; i < r->n; i++)
        r->col[C_time][i] /= sum < 120 ? 1 : sum < 7200 ? 60 : 3600;
    for (int c = 0; c < COLUMNS; c++)
        r->mean[c] = smooth(r->col[c], r->n);
}

void report_read(Report *r, const char *dir)
{
    *r = (Report){.run = read_object(dir, "run.json"), .trace = read_object(dir, "trace.json"),
                  .plan = read_object(dir, "plan.json"), .samples = json_array(), .stragglers = json_array(),
                  .failures = json_array(), .spikes = json_array()};
    read_lines(r, dir, "metrics.jsonl", add_line);
    derive(r);
    read_lines(r, dir, "samples.jsonl", add_sample);
    read_lines(r, dir, "restarts.jsonl", add_failure);
    char why[WHY], *real = realpath(dir, NULL), *slash = real ? strrchr(real, '/') : NULL;
    snprintf(r->name, sizeof r->name, "%s", slash && slash[1] ? slash + 1 : dir);
    free(real);
    int fd = file_open_dir(AT_FDCWD, dir, 0, why);
    int64_t size;
    r->config = fd < 0 ? NULL : file_read_text(fd, "config.yaml", 0, 1 << 20, &size, why);
    if (fd >= 0)
        close(fd);
    json_t *sessions = json_object_get(r->run, "sessions");
    size_t count = json_array_size(sessions);
    for (size_t i = count > MARKS ? count - MARKS : 1; i < count; i++)
        r->mark[r->marks++] = json_number_value(json_object_get(json_array_get(sessions, i), "from"));
}

void report_free(Report *r)
{
    for (int c = 0; c < COLUMNS; c++) {
        if (r->mean[c] != r->col[c])
            free(r->mean[c]);
        free(r->col[c]);
    }
    free(r->eval_at);
    free(r->eval_loss);
    free(r->config);
    json_decref(r->run);
    json_decref(r->trace);
    json_decref(r->plan);
    json_decref(r->samples);
    json_decref(r->failures);
    json_decref(r->spikes);
    json_decref(r->moe);
    json_decref(r->comm);
    json_decref(r->stragglers);
}

/* ---- Numbers as a reader wants them ---- */

double report_last_of(const Report *r, int c) { return r->n ? r->col[c][r->n - 1] : NAN; }

double report_largest(const double *v, int64_t n)
{
    double m = NAN;
    for (int64_t i = 0; i < n; i++)
        m = fmax(m, v[i]);
    return m;
}

double report_median(const double *v, int64_t n)
{
    double *s = xcalloc((size_t)n, sizeof *s), m = NAN;
    int64_t k = 0;
    for (int64_t i = 0; i < n; i++)
        if (isfinite(v[i]))
            s[k++] = v[i];
    qsort(s, (size_t)k, sizeof *s, by_double);
    if (k)
        m = k & 1 ? s[k / 2] : (s[k / 2 - 1] + s[k / 2]) / 2;
    free(s);
    return m;
}

/* v with its unit: divided by base while it is at least `most`. Below `two` it has two decimals. */
static const char *in_units(char t[32], double v, double base, double most, double two,
                            const char *const unit[6])
{
    int u = 0;
    if (!isfinite(v))
        return strcpy(t, "n/a");
    for (; v >= most && u < 5; u++)
        v /= base;
    snprintf(t, 32, u && v < two ? "%.2f%s" : u && v < 99.95 ? "%.1f%s" : "%.0f%s", v, unit[u]);
    return t;
}

const char *report_count_text(char t[32], double v)
{
    return in_units(t, v, 1000, 999.5, 9.995, (const char *const[6]){"", " k", " M", " G", " T", " P"});
}

const char *report_bytes_text(char t[32], double v)
{
    return in_units(t, v, 1024, 1000, 0,
                    (const char *const[6]){" B", " KiB", " MiB", " GiB", " TiB", " PiB"});
}

const char *report_grouped(char t[32], double v)
{
    char digits[32];
    int huge = fabs(v) >= 1e18, n = snprintf(digits, sizeof digits, huge ? "%.3g" : "%.0f", v), out = 0;
    if (huge)
        return strcpy(t, digits);
    for (int i = 0; i < n; i++) {
        if (i && (n - i) % 3 == 0 && digits[i - 1] != '-')
            t[out++] = ',';
        t[out++] = digits[i];
    }
    t[out] = 0;
    return t;
}

const char *report_ms_text(char t[32], double ms)
{
    if (!isfinite(ms))
        return strcpy(t, "n/a");
    if (ms >= 1e4)
        snprintf(t, 32, "%.1f s", ms * 1e-3);
    else
        snprintf(t, 32, ms < 10 ? "%.2f ms" : ms < 100 ? "%.1f ms" : "%.0f ms", ms);
    return t;
}

const char *report_text_of(const json_t *o, const char *name)
{
    const char *s = json_string_value(json_object_get(o, name));
    return s ? s : "";
}

double report_number_of(const json_t *o, const char *name)
{
    const json_t *v = json_object_get(o, name);
    return json_is_number(v) ? json_number_value(v) : NAN;
}
