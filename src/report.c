#define _GNU_SOURCE
#include "base.h"
#include "chart.h"
#include "console.h"
#include "file.h"
#include "metrics.h"
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

extern const char report_css[], report_js[];

/* All that the page is made of. Columns of the logged steps as doubles: what the charts take. */
typedef struct {
    int64_t n, evals, room, eval_room;
    double *col[METRIC_COUNT];     /* [n] each, in table order */
    double *eval_at, *eval_loss;   /* [evals] */
    json_t *run, *trace;           /* NULL = none */
    char *config;
    char name[256];
    double mark[64];               /* iterations after which the run was resumed */
    int marks;
} Report;

/* Row numbers of the table, so that a column is r->col[C_lm_loss]. */
enum {
#define X(field, ...) C_##field,
    METRICS(X)
#undef X
};

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

static void read_run(Report *r, const char *dir)
{
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

/* ---- Numbers as a reader wants them ---- */

static double last_of(const Report *r, int c) { return r->n ? r->col[c][r->n - 1] : NAN; }

static double largest(const double *v, int64_t n)
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

static double median(const double *v, int64_t n)
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
static const char *count_text(char t[32], double v)
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

static const char *bytes_text(char t[32], double v)
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

static const char *grouped(char t[32], double v)
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

static const char *ms_text(char t[32], double ms)
{
    if (!isfinite(ms))
        return strcpy(t, "n/a");
    if (ms >= 1e4)
        snprintf(t, 32, "%.1f s", ms * 1e-3);
    else
        snprintf(t, 32, ms < 10 ? "%.2f ms" : ms < 100 ? "%.1f ms" : "%.0f ms", ms);
    return t;
}

static const char *text_of(const json_t *o, const char *name)
{
    const char *s = json_string_value(json_object_get(o, name));
    return s ? s : "";
}

static double number_of(const json_t *o, const char *name)
{
    const json_t *v = json_object_get(o, name);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

/* ---- Head and key numbers ---- */

static json_t *last_session(const Report *r)
{
    json_t *s = json_object_get(r->run, "sessions");
    return json_array_size(s) ? json_array_get(s, json_array_size(s) - 1) : NULL;
}

static void put_head(FILE *f, const Report *r)
{
    json_t *session = last_session(r);
    const char *why = text_of(session, "why");
    double parameters = number_of(r->run, "parameters"), tokens = last_of(r, C_consumed_tokens);
    char t[32], when[64] = "";
    double started = number_of(session, "started");
    if (isfinite(started)) {
        time_t at = (time_t)started;
        struct tm tm;
        strftime(when, sizeof when, "%-d %B %Y, %H:%M", localtime_r(&at, &tm));
    }
    fprintf(f, "<header>\n<div class=\"eyebrow\"><span>gridiron</span><span>");
    html_text(f, r->name);
    fprintf(f, "</span>");
    if (*when)
        fprintf(f, "<span>%s</span>", when);
    fprintf(f, "<span class=\"badge%s\">", !strncmp(why, "finished", 8) ? " ok" : "");
    html_text(f, *why ? why : "no end was recorded");
    fprintf(f, "</span></div>\n<h1>");
    if (parameters > 0)
        fprintf(f, "%s parameters", count_text(t, parameters));
    else
        html_text(f, r->name);
    if (isfinite(tokens))
        fprintf(f, " after %s tokens", count_text(t, tokens));
    fprintf(f, "</h1>\n<p class=\"lead\">");
    html_text(f, text_of(json_object_get(r->run, "facts"), "model"));
    fprintf(f, "</p>\n");
    double skipped = 0, nans = 0, lost = 0;
    for (int64_t i = 0; i < r->n; i++) {
        skipped += fmax(0, r->col[C_skipped_iterations][i]);
        nans += fmax(0, r->col[C_nan_iterations][i]);
        lost += !isfinite(r->col[C_lm_loss][i]);
    }
    if (skipped > 0 || nans > 0 || lost > 0)
        fprintf(f, "<p class=\"notice\">Steps skipped by the loss scaler: %.0f. Steps whose loss or gradient was not "
                "finite: %.0f. Recorded losses that are not finite: %.0f.</p>\n", skipped, nans, lost);
    fprintf(f, "</header>\n");
}

__attribute__((format(printf, 4, 5)))
static void tile(FILE *f, const char *name, const char *value, const char *fmt, ...)
{
    /* a value's unit is set smaller: what follows the first space */
    const char *space = strchr(value, ' ');
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    fprintf(f, "<div><dt>%s</dt><dd class=\"v\">%.*s", name, space ? (int)(space - value) : (int)strlen(value), value);
    if (space)
        fprintf(f, "<small>%s</small>", space);
    fprintf(f, "</dd><dd class=\"s\">%s</dd></div>\n", text);
}

static void put_loss_tiles(FILE *f, const Report *r)
{
    char v[32], g[32];
    if (r->evals) {
        int64_t best = 0;
        for (int64_t i = 1; i < r->evals; i++)
            if (!(r->eval_loss[i] >= r->eval_loss[best]))
                best = i;
        double loss = r->eval_loss[r->evals - 1];
        snprintf(v, sizeof v, "%.4f", loss);
        if (best == r->evals - 1)
            tile(f, "Validation loss", v, "perplexity %.4g, its lowest", exp(loss));
        else
            tile(f, "Validation loss", v, "perplexity %.4g, lowest %.4f at %s", exp(loss), r->eval_loss[best],
                 grouped(g, r->eval_at[best]));
    }
    if (r->n) {
        snprintf(v, sizeof v, "%.4f", last_of(r, C_lm_loss));
        tile(f, "Training loss", v, "%.4f at iteration %s", r->col[C_lm_loss][0],
             grouped(g, r->col[C_iteration][0]));
    }
}

static void put_tiles(FILE *f, const Report *r)
{
    char v[32], t[32], u[32];
    double took = 0, total = number_of(r->run, "total_iterations");
    size_t i;
    json_t *s;
    json_array_foreach(json_object_get(r->run, "sessions"), i, s)
        took += fmax(0, number_of(s, "ended") - number_of(s, "started"));
    fprintf(f, "<dl class=\"tiles\">\n");
    put_loss_tiles(f, r);
    if (r->n) {
        double mfu = last_of(r, C_mfu), tflops = median(r->col[C_tflops_per_device], r->n);
        char speed[48], use[32] = "";
        snprintf(speed, sizeof speed, "%s tokens/s", grouped(t, median(r->col[C_tokens_per_second], r->n)));
        if (isfinite(mfu))
            snprintf(use, sizeof use, ", MFU %.0f %%", 100 * median(r->col[C_mfu], r->n));
        if (isfinite(tflops))
            tile(f, "Throughput", speed, "median, %.3g TFLOP/s a device%s", tflops, use);
        else
            tile(f, "Throughput", speed, "median");
        tile(f, "Step time", ms_text(v, median(r->col[C_elapsed_ms], r->n)), "median, slowest %s",
             ms_text(t, largest(r->col[C_elapsed_ms], r->n)));
        if (total > 0)
            tile(f, "Iterations", grouped(v, last_of(r, C_iteration)), "of %s, %s samples", grouped(t, total),
                 count_text(u, last_of(r, C_consumed_samples)));
        else
            tile(f, "Iterations", grouped(v, last_of(r, C_iteration)), "%s samples",
                 count_text(u, last_of(r, C_consumed_samples)));
        tile(f, "Memory", bytes_text(v, largest(r->col[C_memory_bytes], r->n)), "most a process held");
    }
    if (took > 0) {
        size_t starts = json_array_size(json_object_get(r->run, "sessions"));
        char plural[48] = "from start to end";
        if (starts > 1)
            snprintf(plural, sizeof plural, "in %zu starts", starts);
        tile(f, "Time", duration_text(v, took), "%s", plural);
    }
    fprintf(f, "</dl>\n");
}

/* ---- Curves ---- */

static void card_open(FILE *f, const char *kind, const char *title, const char *unit)
{
    fprintf(f, "<section class=\"card%s\"><div class=\"head\"><h2>%s</h2><span class=\"unit\">%s</span>", kind, title,
            unit);
}

/* Mean over a window that is centred where it can be; steps whose value is not finite are left out. */
static double *smooth(const double *y, int64_t n, int64_t half)
{
    double *s = xcalloc((size_t)n, sizeof *s), sum = 0;
    int64_t lo = 0, hi = 0, k = 0;                 /* the window [lo, hi), k finite values in it */
    for (int64_t i = 0; i < n; i++) {
        int64_t h = i < half ? i : half;
        h = n - 1 - i < h ? n - 1 - i : h;
        for (; hi <= i + h; hi++)
            if (isfinite(y[hi]))
                sum += y[hi], k++;
        for (; lo < i - h; lo++)
            if (isfinite(y[lo]))
                sum -= y[lo], k--;
        s[i] = k ? sum / (double)k : NAN;
    }
    return s;
}

/* A column of the table as one curve, or, when there are many steps, as a faint one and its mean over about 2 % of
 * them. Returns how many series; *mean is the caller's to free. */
enum { SMOOTH_FROM = 100 };
static int curve(const Report *r, int column, const char *name, Series s[2], double **mean)
{
    const double *x = r->col[C_iteration], *y = r->col[column];
    *mean = NULL;
    if (r->n < SMOOTH_FROM) {
        s[0] = (Series){name, "a", r->n < 30 ? DRAW_DOTS : DRAW_LINE, r->n, x, y};
        return r->n > 0;
    }
    *mean = smooth(y, r->n, r->n / SMOOTH_FROM);
    s[0] = (Series){"each recorded step", "a", DRAW_FAINT, r->n, x, y};
    s[1] = (Series){name, "a", DRAW_LINE, r->n, x, *mean};
    return 2;
}

static void put_loss(FILE *f, const Report *r)
{
    const double *x = r->col[C_iteration];
    double *mean;
    Series s[3];
    int k = curve(r, C_lm_loss, "training", s, &mean);
    if (r->evals)
        s[k++] = (Series){"validation", "b", DRAW_DOTS, r->evals, r->eval_at, r->eval_loss};
    Chart c = {.title = "Loss", .unit = "nats a token", .x_name = "iteration", .height = 340, .n = k, .series = s,
               .x_from = NAN, .nmark = r->marks, .mark = r->mark};
    card_open(f, " wide", c.title, c.unit);
    chart_legend(f, &c, 0);
    fprintf(f, "</div>\n<div class=\"views\">");
    double last = r->n ? x[r->n - 1] : NAN, first = r->n ? x[0] : NAN;
    int views = r->n >= 20 && last > 2 * first;
    if (views)
        fprintf(f, "<input type=\"radio\" name=\"view\" id=\"v1\" checked><label for=\"v1\">all</label>"
                "<input type=\"radio\" name=\"view\" id=\"v2\"><label for=\"v2\">log iterations</label>"
                "<input type=\"radio\" name=\"view\" id=\"v3\"><label for=\"v3\">last three quarters</label>\n");
    fprintf(f, views ? "<div class=\"view v1\">" : "<div>");
    chart_lines(f, &c);
    if (views) {
        fprintf(f, "</div><div class=\"view v2\">");
        c.log_x = 1;
        chart_lines(f, &c);
        fprintf(f, "</div><div class=\"view v3\">");
        c.log_x = 0;
        c.x_from = last / 4;
        chart_lines(f, &c);
    }
    fprintf(f, "</div></div>\n");
    if (mean)
        fprintf(f, "<p class=\"note\">Strong lines are means of %lld recorded steps.</p>\n",
                (long long)(2 * (r->n / SMOOTH_FROM) + 1));
    fprintf(f, "</section>\n");
    free(mean);
}

static int varies(const double *v, int64_t n)
{
    for (int64_t i = 1; i < n; i++)
        if (isfinite(v[i]) && v[i] != v[0])
            return 1;
    return 0;
}

/* A card with one column of the table, as it stands or with its mean; the axis from 0 or, LOG, logarithmic where the
 * values ask for it. */
typedef enum { PLAIN, PLAIN_LOG, MEAN, MEAN_LOG } How;
static void put_curve(FILE *f, const Report *r, int column, const char *title, How how)
{
    const double *y = r->col[column];
    double low = INFINITY, high = 0, *mean = NULL;
    for (int64_t i = 0; i < r->n; i++)
        if (isfinite(y[i]) && y[i] > 0) {
            low = fmin(low, y[i]);
            high = fmax(high, y[i]);
        }
    Series s[2] = {{title, "a", r->n < 30 ? DRAW_DOTS : DRAW_LINE, r->n, r->col[C_iteration], y}};
    int k = how < MEAN ? 1 : curve(r, column, title, s, &mean);
    Chart c = {.title = title, .unit = metric_defs[column].unit, .x_name = "iteration", .height = 190, .n = k,
               .series = s, .x_from = NAN, .zero = how == PLAIN || how == MEAN,
               .log_y = (how == PLAIN_LOG || how == MEAN_LOG) && high > 30 * low, .nmark = r->marks, .mark = r->mark};
    card_open(f, "", title, c.log_y ? "logarithmic" : c.unit);
    fprintf(f, "</div>\n");
    chart_lines(f, &c);
    fprintf(f, "</section>\n");
    free(mean);
}

enum { PHASES = 7 };
static const struct { int column; const char *css; } phase[PHASES] = {
    {C_data_ms, "data"}, {C_forward_ms, "forward"}, {C_backward_ms, "backward"}, {C_optimizer_ms, "optimizer"},
    {-1, "other"}, {C_checkpoint_ms, "checkpoint"}, {C_eval_ms, "evaluation"}};
enum { STEP_PHASES = 5 };          /* the first ones are parts of elapsed_ms */

static void put_phases(FILE *f, const Report *r)
{
    double *other = xcalloc((size_t)r->n, sizeof *other), total = 0, share[PHASES] = {0};
    Series s[PHASES];
    char t[32];
    for (int64_t i = 0; i < r->n; i++) {
        other[i] = r->col[C_elapsed_ms][i];
        for (int k = 0; k < STEP_PHASES; k++)
            if (phase[k].column >= 0 && isfinite(r->col[phase[k].column][i]))
                other[i] -= r->col[phase[k].column][i];
        other[i] = fmax(0, other[i]);
    }
    for (int k = 0; k < PHASES; k++) {
        const double *y = phase[k].column < 0 ? other : r->col[phase[k].column];
        s[k] = (Series){phase[k].css, phase[k].css, DRAW_LINE, r->n, r->col[C_iteration], y};
        for (int64_t i = 0; i < r->n; i++)
            share[k] += isfinite(y[i]) ? y[i] : 0;
        total += share[k];
    }
    Chart c = {.title = "Step time", .unit = "ms", .x_name = "iteration", .height = 190, .n = STEP_PHASES,
               .series = s, .x_from = NAN, .nmark = r->marks, .mark = r->mark};
    card_open(f, "", c.title, c.unit);
    chart_legend(f, &c, 1);
    fprintf(f, "</div>\n");
    chart_stack(f, &c);
    fprintf(f, "</section>\n");
    if (total > 0) {
        card_open(f, "", "Where the time went", "all recorded steps");
        fprintf(f, "</div>\n<div class=\"share\" aria-hidden=\"true\">");
        for (int k = 0; k < PHASES; k++)
            if (share[k] > 0)
                fprintf(f, "<span class=\"%s\" style=\"flex:%.4f 1 0\"></span>", phase[k].css, share[k] / total);
        fprintf(f, "</div>\n<table>");
        for (int k = 0; k < PHASES; k++)
            if (share[k] > 0)
                fprintf(f, "<tr><td><span class=\"dot %s\"></span>%s</td><td class=\"n\">%s a step</td>"
                        "<td class=\"n\">%.1f %%</td></tr>\n", phase[k].css, phase[k].css,
                        ms_text(t, share[k] / (double)r->n), 100 * share[k] / total);
        fprintf(f, "</table></section>\n");
    }
    free(other);
}

/* ---- Memory ---- */

static void memory_row(FILE *f, const char *name, double planned, double used, double most, int total)
{
    char t[32];
    fprintf(f, "<tr%s><td>", total ? " class=\"total\"" : "");
    html_text(f, name);
    fprintf(f, "</td><td class=\"mem\"><div>");
    if (planned > 0)
        fprintf(f, "<span class=\"p\" style=\"width:%.2f%%\"></span>", 100 * planned / most);
    if (used > 0)
        fprintf(f, "<span class=\"u\" style=\"width:%.2f%%\"></span>", 100 * used / most);
    fprintf(f, "</div></td><td class=\"n\">%s</td>", bytes_text(t, planned));
    fprintf(f, "<td class=\"n\">%s</td></tr>\n", bytes_text(t, used));
}

static void put_memory(FILE *f, const Report *r)
{
    json_t *memory = json_object_get(r->run, "memory"), *o;
    const char *name;
    double plan = 0, most = 0, resident = r->n ? largest(r->col[C_memory_bytes], r->n) : NAN;
    if (!json_object_size(memory))
        return;
    json_object_foreach(memory, name, o) {
        plan += fmax(0, number_of(o, "planned"));
        most = fmax(most, fmax(number_of(o, "planned"), number_of(o, "used")));
    }
    most = fmax(most, fmax(plan, resident));
    card_open(f, "", "Memory", "of one process, beside its plan");
    fprintf(f, "</div>\n<table><thead><tr><th></th><th></th><th class=\"n\">plan</th><th class=\"n\">used</th></tr>"
            "</thead><tbody>\n");
    json_object_foreach(memory, name, o)
        memory_row(f, name, number_of(o, "planned"), number_of(o, "used"), most, 0);
    memory_row(f, "total, resident", plan, resident, most, 1);
    fprintf(f, "</tbody></table></section>\n");
}

/* ---- Timeline ---- */

/* Compute of one step: the bubble as the contract defines it, from what each rank did between its first and its last
 * piece of compute. */
typedef struct { double first, last, busy; } Lane;

static void put_bubble(FILE *f, const Lane *lane, int ranks, int64_t step)
{
    double busy = 0, cost = 0, first = INFINITY, last = -INFINITY;
    for (int k = 0; k < ranks; k++) {
        busy = fmax(busy, lane[k].busy);
        cost = fmax(cost, lane[k].last - lane[k].first);
        first = fmin(first, lane[k].first);
        last = fmax(last, lane[k].last);
    }
    fprintf(f, "<p class=\"note\">Iteration %lld.", (long long)step);
    if (cost > 0)
        fprintf(f, " Bubble: %.1f %% of the longest rank's span, %.1f %% of the whole step's compute span.",
                100 * (cost - busy) / cost, 100 * (last - first - busy) / (last - first));
    fprintf(f, " F forward, B backward (D and W its halves), R reduce, S optimizer step; numbers are microbatches.</p>\n");
}

static int is_compute(const char *cat) { return strlen(cat) == 1 && strchr("FBDW", *cat); }

static void put_timeline(FILE *f, const Report *r)
{
    json_t *events = json_object_get(r->trace, "traceEvents"), *e;
    int64_t step = -1, n = 0, count = (int64_t)json_array_size(events);
    int ranks = 0;
    size_t i;
    /* the last step that was traced */
    json_array_foreach(events, i, e)
        if (!strcmp(text_of(e, "ph"), "X") && !strcmp(text_of(e, "cat"), "S"))
            step = (int64_t)fmax((double)step, number_of(json_object_get(e, "args"), "step"));
    if (step < 0)
        return;
    Bar *bar = xcalloc((size_t)count, sizeof *bar);
    const char **rank_name = xcalloc((size_t)count, sizeof *rank_name);
    Lane *lane = xcalloc((size_t)count, sizeof *lane);
    char (*label)[48] = xcalloc((size_t)count, sizeof *label), (*title)[96] = xcalloc((size_t)count, sizeof *title);
    json_array_foreach(events, i, e) {
        json_t *args = json_object_get(e, "args");
        double pid = number_of(e, "pid"), start = number_of(e, "ts") * 1e-3, end = start + number_of(e, "dur") * 1e-3;
        const char *cat = text_of(e, "cat"), *name = text_of(e, "name");
        if (!(pid >= 0 && pid < (double)count))
            continue;
        int k = (int)pid;
        if (!strcmp(text_of(e, "ph"), "M") && !strcmp(name, "process_name"))
            rank_name[k] = text_of(args, "name");
        if (strcmp(text_of(e, "ph"), "X") || number_of(args, "step") != (double)step || number_of(e, "tid") != 0 ||
            !isfinite(start) || !isfinite(end))
            continue;
        ranks = k >= ranks ? k + 1 : ranks;
        if (is_compute(cat)) {
            lane[k].first = lane[k].busy > 0 ? fmin(lane[k].first, start) : start;
            lane[k].last = fmax(lane[k].last, end);
            lane[k].busy += end - start;
            snprintf(label[n], sizeof *label, "%.0f", number_of(args, "microbatch"));
        } else if (strlen(cat) == 1) {
            snprintf(label[n], sizeof *label, "%s", cat);
        }
        snprintf(title[n], sizeof *title, "%s: %.3g ms from %.3f ms", name, end - start, start);
        bar[n] = (Bar){start, end, k, cat, label[n], title[n]};
        n++;
    }
    for (int k = 0; k < ranks; k++)
        if (!rank_name[k])
            rank_name[k] = "rank";
    card_open(f, " wide", "Timeline", "ms, one row a rank");
    fprintf(f, "</div>\n");
    chart_timeline(f, bar, n, rank_name, ranks, "ms");
    put_bubble(f, lane, ranks, step);
    fprintf(f, "</section>\n");
    free(bar);
    free(rank_name);
    free(lane);
    free(label);
    free(title);
}

/* ---- Words: sample, facts, evaluations, configuration ---- */

static void put_sample(FILE *f, const Report *r)
{
    const char *text = text_of(r->run, "sample");
    if (!*text)
        return;
    card_open(f, " wide", "Sample", "text that the model wrote at the end");
    fprintf(f, "</div>\n<blockquote>");
    html_text(f, text);
    fprintf(f, "</blockquote></section>\n");
}

static void fact(FILE *f, const char *name, const char *value, int code)
{
    if (!*value)
        return;
    fprintf(f, "<tr><th>");
    html_text(f, name);
    fprintf(f, "</th><td class=\"text\">%s", code ? "<code>" : "");
    html_text(f, value);
    fprintf(f, "%s</td></tr>\n", code ? "</code>" : "");
}

static void put_facts(FILE *f, const Report *r)
{
    json_t *machine = json_object_get(r->run, "machine"), *o;
    const char *name;
    char text[512], t[32];
    size_t i;
    if (!r->run)
        return;
    card_open(f, " wide", "This run", "");
    fprintf(f, "</div>\n<table>");
    json_object_foreach(json_object_get(r->run, "facts"), name, o)
        if (strcmp(name, "model"))
            fact(f, name, json_string_value(o) ? json_string_value(o) : "", 0);
    snprintf(text, sizeof text, "%s: %s, %.0f cores, %s, Linux %s", text_of(machine, "host"), text_of(machine, "cpu"),
             number_of(machine, "cores"), bytes_text(t, number_of(machine, "memory_bytes")), text_of(machine, "system"));
    fact(f, "machine", machine ? text : "", 0);
    json_array_foreach(json_object_get(r->run, "sessions"), i, o) {
        time_t at = (time_t)fmax(0, number_of(o, "started"));
        struct tm tm;
        int n = (int)strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", localtime_r(&at, &tm));
        double from = number_of(o, "from"), took = number_of(o, "ended") - number_of(o, "started");
        if (from > 0)
            n += snprintf(text + n, sizeof text - (size_t)n, ", from iteration %s", grouped(t, from));
        if (isfinite(took))
            n += snprintf(text + n, sizeof text - (size_t)n, ", for %s", duration_text(t, took));
        const char *why = text_of(o, "why");
        snprintf(text + n, sizeof text - (size_t)n, ": %s", *why ? why : "no end was recorded");
        fact(f, i ? "resumed" : "started", text, 0);
        fact(f, "command", text_of(o, "command"), 1);
        fact(f, "build", text_of(o, "build"), 1);
    }
    fprintf(f, "</table></section>\n");
}

static void put_evaluations(FILE *f, const Report *r)
{
    char t[32];
    if (!r->evals)
        return;
    fprintf(f, "<details class=\"card wide\"><summary>Evaluations</summary><table><thead><tr><th>iteration</th>"
            "<th class=\"n\">validation loss</th><th class=\"n\">perplexity</th></tr></thead><tbody>\n");
    for (int64_t i = 0; i < r->evals; i++)
        fprintf(f, "<tr><td>%s</td><td class=\"n\">%.6f</td><td class=\"n\">%.6g</td></tr>\n",
                grouped(t, r->eval_at[i]), r->eval_loss[i], exp(r->eval_loss[i]));
    fprintf(f, "</tbody></table></details>\n");
}

static void put_page(FILE *f, const Report *r)
{
    fprintf(f, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
            "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
            "script-src 'unsafe-inline'; img-src data:\">\n<link rel=\"icon\" href=\"data:,\">\n<title>");
    html_text(f, r->name);
    fprintf(f, " \302\267 gridiron</title>\n<style>\n%s</style>\n</head>\n<body>\n<main>\n", report_css);
    put_head(f, r);
    put_tiles(f, r);
    fprintf(f, "<div class=\"grid\">\n");
    put_loss(f, r);
    if (r->n) {
        put_curve(f, r, C_learning_rate, "Learning rate", PLAIN);
        put_curve(f, r, C_grad_norm, "Gradient norm", MEAN_LOG);
        put_curve(f, r, C_tokens_per_second, "Throughput", MEAN);
        if (varies(r->col[C_global_batch_size], r->n))
            put_curve(f, r, C_global_batch_size, "Global batch", PLAIN);
        if (varies(r->col[C_loss_scale], r->n))
            put_curve(f, r, C_loss_scale, "Loss scale", PLAIN_LOG);
        put_phases(f, r);
    }
    put_memory(f, r);
    put_timeline(f, r);
    put_sample(f, r);
    put_facts(f, r);
    put_evaluations(f, r);
    if (r->config) {
        fprintf(f, "<details class=\"card wide\"><summary>Configuration</summary><pre>");
        html_text(f, r->config);
        fprintf(f, "</pre></details>\n");
    }
    fprintf(f, "</div>\n<footer>Made from metrics.jsonl, which holds every number with all its digits.</footer>\n"
            "</main>\n<script>\n%s</script>\n</body>\n</html>\n", report_js);
}

int report_write(const char *run_dir, char why[WHY])
{
    Report r = {0};
    char *page = NULL;
    size_t size = 0;
    read_run(&r, run_dir);
    FILE *f = open_memstream(&page, &size);
    put_page(f, &r);
    fclose(f);
    int dir = file_open_dir(AT_FDCWD, run_dir, 0, why), ok = 0;
    if (dir >= 0) {
        ok = file_replace(dir, "report.html", page, (int64_t)size, why);
        close(dir);
    }
    for (int i = 0; i < METRIC_COUNT; i++)
        free(r.col[i]);
    free(r.eval_at);
    free(r.eval_loss);
    free(r.config);
    json_decref(r.run);
    json_decref(r.trace);
    free(page);
    return ok;
}
