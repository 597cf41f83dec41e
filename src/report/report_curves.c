/* report_curves -- the report's curves: loss, learning rate, gradient norm, throughput, step times */
#include "base.h"
#include "chart.h"
#include "report_data.h"
#include <math.h>
#include <stdlib.h>

/* Writes to s [n] the mean of y in a window around each step: 2 % of the n steps, fewer near the ends.
 * Values that are not finite are left out. */
enum { SMOOTH_FROM = 100 };
static double *smooth(double *s, const double *y, int64_t n)
{
    double sum = 0;
    int64_t lo = 0, hi = 0, k = 0;     /* the window [lo, hi) has k finite values */
    for (int64_t i = 0; i < n; i++) {
        int64_t h = n / SMOOTH_FROM < i ? n / SMOOTH_FROM : i;
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

/* Makes series of a column: one curve, or from SMOOTH_FROM steps on a faint curve and its mean. Returns
 * the number of series. *mean: to be freed by the caller. */
static int curve(const Report *r, int column, const char *name, Series s[2], double **mean)
{
    const double *x = r->col[C_iteration], *y = r->col[column];
    *mean = NULL;
    s[0] = (Series){name, "a", r->n < 30 ? DRAW_DOTS : DRAW_LINE, r->n, x, y, NULL};
    if (r->n < SMOOTH_FROM)
        return r->n > 0;
    *mean = smooth(xcalloc((size_t)r->n, sizeof **mean), y, r->n);
    s[1] = (Series){name, "a", DRAW_LINE, r->n, x, *mean, NULL};
    s[0] = (Series){"each recorded step", "a", DRAW_FAINT, r->n, x, y, NULL};
    return 2;
}

static Chart over_iterations(const Report *r, const char *title, const char *unit, int n, const Series *s)
{
    return (Chart){.title = title, .unit = unit, .x_name = "iteration", .height = 190, .n = n, .series = s,
                   .x_from = NAN, .nmark = r->marks, .mark = r->mark};
}

static void put_card(FILE *f, const Chart *c)
{
    chart_open(f, "", c);
    chart_plot(f, c);
    card_close(f);
}

/* ---- the loss, over iterations, tokens and time ---- */

/* Training time at the end of each recorded step, evaluations and saves included, in the unit *name. A
 * line of metrics.jsonl holds means over the steps since the line before it. On the heap. */
static double *time_of(const Report *r, const char **name)
{
    static const int parts[] = {C_elapsed_ms, C_eval_ms, C_checkpoint_ms};
    double *t = xcalloc((size_t)r->n + 1, sizeof *t), sum = 0;
    for (int64_t i = 0; i < r->n; i++) {
        double steps = r->col[C_iteration][i] - (i ? r->col[C_iteration][i - 1] : 0);
        for (int k = 0; k < 3; k++)
            sum += isfinite(r->col[parts[k]][i]) ? 1e-3 * steps * r->col[parts[k]][i] : 0;
        t[i] = sum;
    }
    double unit = sum < 120 ? 1 : sum < 7200 ? 60 : 3600;
    for (int64_t i = 0; i < r->n; i++)
        t[i] /= unit;
    *name = sum < 120 ? "seconds" : sum < 7200 ? "minutes" : "hours";
    return t;
}

/* The x of iteration `at`, interpolated between the recorded steps on both sides. */
static double place(const Report *r, const double *x, double at)
{
    const double *it = r->col[C_iteration];
    int64_t i = 0;
    while (i < r->n && it[i] < at)
        i++;
    if (i == r->n)
        return x[r->n - 1];
    double from = i ? it[i - 1] : 0, x0 = i ? x[i - 1] : 0;
    return it[i] > from ? x0 + (x[i] - x0) * (at - from) / (it[i] - from) : x[i];
}

/* A view of the loss. x: [n] of the recorded steps; NULL: no such view. from: as Chart.x_from. */
typedef struct { const char *label, *x_name; const double *x; int log; double from; } LossView;

static void put_view(FILE *f, const Report *r, Chart c, const LossView *v)
{
    Series s[3];
    double *at = xcalloc((size_t)r->evals + 1, sizeof *at);
    for (int64_t i = 0; i < r->evals; i++)
        at[i] = r->n ? place(r, v->x, r->eval_at[i]) : r->eval_at[i];
    for (int k = 0; k < c.n; k++) {
        s[k] = c.series[k];
        s[k].x = s[k].y == r->eval_loss ? at : v->x;
    }
    c.series = s;
    c.x_name = v->x_name;
    c.log_x = v->log;
    c.x_from = v->from;
    c.nmark = v->x == r->col[C_iteration] ? c.nmark : 0;       /* marks are iterations */
    chart_plot(f, &c);
    free(at);
}

static void put_loss(FILE *f, const Report *r)
{
    const double *x = r->col[C_iteration],
                 *tokens = report_last_of(r, C_consumed_tokens) > 0 ? r->col[C_consumed_tokens] : NULL;
    double *mean, last = r->n ? x[r->n - 1] : NAN;
    const char *unit;
    double *time = time_of(r, &unit);
    Series s[3];
    int k = curve(r, C_lm_loss, "training", s, &mean), many = r->n >= 20 && last > 2 * x[0], shown = 0;
    if (r->evals)
        s[k++] = (Series){"validation", "b", DRAW_DOTS, r->evals, r->eval_at, r->eval_loss, NULL};
    Chart c = over_iterations(r, "Loss", "nats a token", k, s);
    c.height = 340;
    const LossView view[] = {{"iterations", "iteration", x, 0, NAN},
                             {"tokens", "tokens", r->n >= 2 ? tokens : NULL, 0, NAN},
                             {"time", unit, r->n >= 2 && time[r->n - 1] > 0 ? time : NULL, 0, NAN},
                             {"log iterations", "iteration", many ? x : NULL, 1, NAN},
                             {"last three quarters", "iteration", many ? x : NULL, 0, last / 4}};
    chart_open(f, " wide", &c);
    html_put(f, "<div class='views'>");
    for (int i = 0; i < 5; i++)
        if (i == 0 || view[i].x) {
            view_open(f, "v", ++shown, view[i].label);
            put_view(f, r, c, &view[i]);
            view_close(f);
        }
    html_put(f, "</div>\n");
    if (mean)
        html_put(f, "<p class='note'>Strong lines are means of %d recorded steps.</p>\n",
                 (int)(2 * (r->n / SMOOTH_FROM) + 1));
    card_close(f);
    free(mean);
    free(time);
}

static int varies(const double *v, int64_t n)
{
    for (int64_t i = 1; i < n; i++)
        if (isfinite(v[i]) && v[i] != v[0])
            return 1;
    return 0;
}

/* How a column is drawn. PLAIN: as it is; MEAN: with its mean. The y axis begins at 0; with LOG it is
 * logarithmic where values differ by more than a factor of 30. */
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
    Series s[2] = {{title, "a", r->n < 30 ? DRAW_DOTS : DRAW_LINE, r->n, r->col[C_iteration], y, NULL}};
    int k = how < MEAN ? 1 : curve(r, column, title, s, &mean);
    Chart c = over_iterations(r, title, metric_defs[column].unit, k, s);
    c.zero = how == PLAIN || how == MEAN;
    c.log_y = !c.zero && high > 30 * low;
    put_card(f, &c);
    free(mean);
}

/* The parts of a step. The first STEP_PHASES add up to elapsed_ms. column -1: the rest of elapsed_ms. */
enum { PHASES = 7, STEP_PHASES = 5 };
static const struct { int column; const char *css; } phase[PHASES] = {
    {C_data_ms, "data"}, {C_forward_ms, "forward"}, {C_backward_ms, "backward"},
    {C_optimizer_ms, "optimizer"}, {-1, "other"}, {C_checkpoint_ms, "checkpoint"}, {C_eval_ms, "evaluation"}};

static void put_share(FILE *f, const Report *r, const double *share)
{
    double total = 0;
    char t[32];
    for (int k = 0; k < PHASES; k++)
        total += share[k];
    if (!(total > 0))
        return;
    card_open(f, "", "Where the time went", "all recorded steps");
    html_put(f, "<div class='share' aria-hidden='true'>");
    for (int k = 0; k < PHASES; k++)
        if (share[k] > 0)
            html_put(f, "<span class='%s' style='flex:%.4f 1 0'></span>", phase[k].css, share[k] / total);
    html_put(f, "</div>\n<table>");
    for (int k = 0; k < PHASES; k++)
        if (share[k] > 0)
            html_put(f, "<tr><td><span class='dot %s'></span>%s</td><td class='n'>%s a step</td><td "
                     "class='n'>%.1f %%</td></tr>\n", phase[k].css, phase[k].css,
                     report_ms_text(t, share[k] / (double)r->n), 100 * share[k] / total);
    html_put(f, "</table>\n<p class='note'>other: the rest of a step, in which a rank waits for the work of "
             "another rank, moves messages, gathers weights or writes the log; means over the ranks.</p>");
    card_close(f);
}

static void put_phases(FILE *f, const Report *r)
{
    int64_t n = r->n;
    double *all = xcalloc((size_t)n, 3 * PHASES * sizeof *all), share[PHASES] = {0};
    double *part = all, *mean = all + PHASES * n, *sum = mean + PHASES * n;        /* [PHASES][n] */
    const double *x = r->col[C_iteration];
    Series s[STEP_PHASES];
    for (int k = 0; k < PHASES; k++) {
        const double *y = r->col[phase[k].column < 0 ? C_elapsed_ms : phase[k].column];
        for (int64_t i = 0; i < n; i++) {
            part[k * n + i] = isfinite(y[i]) ? y[i] : 0;
            for (int j = 0; phase[k].column < 0 && j < k; j++)
                part[k * n + i] = fmax(0, part[k * n + i] - part[j * n + i]);
            share[k] += part[k * n + i];
        }
        smooth(mean + k * n, part + k * n, n);
        for (int64_t i = 0; i < n; i++)
            sum[k * n + i] = mean[k * n + i] + (k ? sum[(k - 1) * n + i] : 0);
    }
    for (int k = 0; k < STEP_PHASES; k++)
        s[k] = (Series){phase[k].css, phase[k].css, DRAW_AREA, n, x, sum + k * n, mean + k * n};
    Chart c = over_iterations(r, "Step time", "ms", STEP_PHASES, s);
    c.zero = 1;
    put_card(f, &c);
    put_share(f, r, share);
    free(all);
}

void report_put_curves(FILE *f, const Report *r)
{
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
}
