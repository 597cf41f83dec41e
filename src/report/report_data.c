#define _GNU_SOURCE
#include "report_data.h"
#include "base.h"
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Reading ---- */

static void grow(double **v, int64_t room) { *v = xrealloc(*v, (size_t)room * sizeof **v); }

static void add_line(Report *r, const json_t *o)
{
    json_t *loss = json_object_get(o, "valid_loss");
    if (loss) {
        if (r->evals == r->eval_room) {
            r->eval_room = r->eval_room ? 2 * r->eval_room : 64;
            grow(&r->eval_at, r->eval_room);
            grow(&r->eval_loss, r->eval_room);
        }
        r->eval_at[r->evals] = json_number_value(json_object_get(o, "iteration"));
        r->eval_loss[r->evals++] = json_is_number(loss) ? json_number_value(loss) : NAN;
        return;
    }
    if (r->n == r->room) {
        r->room = r->room ? 2 * r->room : 256;
        for (int i = 0; i < METRIC_COUNT; i++)
            grow(&r->col[i], r->room);
    }
    for (int i = 0; i < METRIC_COUNT; i++) {
        json_t *v = json_object_get(o, metric_defs[i].name);
        r->col[i][r->n] = json_is_number(v) ? json_number_value(v) : NAN;
    }
    r->n++;
}

/* The last of what `train generate` has written with the run's weights. */
enum { SAMPLES = 3 };
static json_t *read_samples(const char *dir)
{
    char *path = xasprintf("%s/samples.jsonl", dir), *line = NULL;
    size_t room = 0;
    json_t *all = json_array();
    FILE *f = fopen(path, "re");
    while (f && getline(&line, &room, f) > 0) {
        json_t *o = json_loads(line, 0, NULL);
        if (json_is_string(json_object_get(o, "text")))
            json_array_append(all, o);
        json_decref(o);
        if (json_array_size(all) > SAMPLES)
            json_array_remove(all, 0);
    }
    if (f)
        fclose(f);
    free(line);
    free(path);
    return all;
}

void report_read(Report *r, const char *dir)
{
    *r = (Report){0};
    char *path = xasprintf("%s/metrics.jsonl", dir), *line = NULL, why[WHY];
    size_t room = 0;
    FILE *f = fopen(path, "re");
    while (f && getline(&line, &room, f) > 0) {
        json_t *o = json_loads(line, 0, NULL);
        if (json_is_integer(json_object_get(o, "iteration")))
            add_line(r, o);
        json_decref(o);
    }
    if (f)
        fclose(f);
    free(line);
    free(path);
    path = xasprintf("%s/run.json", dir);
    r->run = json_load_file(path, 0, NULL);
    free(path);
    r->samples = read_samples(dir);
    path = xasprintf("%s/trace.json", dir);
    r->trace = json_load_file(path, 0, NULL);
    free(path);
    int fd = file_open_dir(AT_FDCWD, dir, 0, why);
    int64_t size;
    r->config = fd < 0 ? NULL : file_read_text(fd, "config.yaml", 0, 1 << 20, &size, why);
    if (fd >= 0)
        close(fd);

    char *real = realpath(dir, NULL), *slash = real ? strrchr(real, '/') : NULL;
    snprintf(r->name, sizeof r->name, "%s", slash && slash[1] ? slash + 1 : dir);
    free(real);
    size_t i;
    json_t *s;
    json_array_foreach(json_object_get(r->run, "sessions"), i, s) {
        double from = json_number_value(json_object_get(s, "from"));
        if (i > 0 && r->marks < 64)
            r->mark[r->marks++] = from;
    }
}

void report_free(Report *r)
{
    for (int i = 0; i < METRIC_COUNT; i++)
        free(r->col[i]);
    free(r->eval_at);
    free(r->eval_loss);
    free(r->config);
    json_decref(r->run);
    json_decref(r->trace);
    json_decref(r->samples);
}

/* ---- Numbers as a reader wants them ---- */

double last_of(const Report *r, int c) { return r->n ? r->col[c][r->n - 1] : NAN; }

double largest(const double *v, int64_t n)
{
    double m = NAN;
    for (int64_t i = 0; i < n; i++)
        m = fmax(m, v[i]);
    return m;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double median(const double *v, int64_t n)
{
    double *s = xcalloc((size_t)n, sizeof *s), m = NAN;
    int64_t k = 0;
    for (int64_t i = 0; i < n; i++)
        if (isfinite(v[i]))
            s[k++] = v[i];
    qsort(s, (size_t)k, sizeof *s, by_value);
    if (k)
        m = k & 1 ? s[k / 2] : (s[k / 2 - 1] + s[k / 2]) / 2;
    free(s);
    return m;
}

/* 1234567 -> "1.23 M" */
const char *count_text(char t[32], double v)
{
    static const char *const unit[] = {"", " k", " M", " G", " T", " P"};
    int u = 0;
    if (!isfinite(v))
        return strcpy(t, "n/a");
    for (; v >= 999.5 && u < 5; u++)
        v /= 1000;
    snprintf(t, 32, u && v < 9.995 ? "%.2f%s" : u && v < 99.95 ? "%.1f%s" : "%.0f%s", v, unit[u]);
    return t;
}

const char *bytes_text(char t[32], double v)
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int u = 0;
    if (!isfinite(v))
        return strcpy(t, "n/a");
    for (; v >= 1000 && u < 4; u++)
        v /= 1024;
    snprintf(t, 32, u && v < 100 ? "%.1f %s" : "%.0f %s", v, unit[u]);
    return t;
}

const char *grouped(char t[32], double v)
{
    char digits[32];
    int n = snprintf(digits, sizeof digits, "%.0f", v), out = 0;
    for (int i = 0; i < n; i++) {
        if (i && (n - i) % 3 == 0 && digits[i - 1] != '-')
            t[out++] = ',';
        t[out++] = digits[i];
    }
    t[out] = 0;
    return t;
}

const char *ms_text(char t[32], double ms)
{
    if (!isfinite(ms))
        return strcpy(t, "n/a");
    if (ms >= 1e4)
        snprintf(t, 32, "%.1f s", ms * 1e-3);
    else
        snprintf(t, 32, ms < 10 ? "%.2f ms" : ms < 100 ? "%.1f ms" : "%.0f ms", ms);
    return t;
}

const char *text_of(const json_t *o, const char *name)
{
    const char *s = json_string_value(json_object_get(o, name));
    return s ? s : "";
}

double number_of(const json_t *o, const char *name)
{
    const json_t *v = json_object_get(o, name);
    return json_is_number(v) ? json_number_value(v) : NAN;
}
