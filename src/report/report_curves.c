/* report_curves -- the report's curves: loss, learning rate, gradient norm, throughput, step times */
#include "base.h"
#include "chart.h"
#include "report_data.h"
#include <math.h>
#include <stdlib.h>

/* Makes series of a column: one curve, or where means are drawn a faint curve and its mean. Returns the
 * number of series. */
static int curve(const Report *r, int column, const char *name, Series s[2])
{
    const double *x = r->col[C_iteration];
    int means = r->n >= SMOOTH_FROM;
    s[0] = (Series){"each recorded step", "a", DRAW_FAINT, r->n, x, r->col[column], NULL};
    s[means] = (Series){name, "a", r->n < 30 ? DRAW_DOTS : DRAW_LINE, r->n, x, r->mean[column], NULL};
    return r->n ? 1 + means : 0;
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

/* The x of iteration `at`, interpolated between the recorded steps on both sides. */
static double place(const Report *r, const double *x, double at)
{
    const double *it = r->col[C_iteration];
    int64_t i = 0;
    while (i < r->n && it[i] < at)
        i++;
    if (i == r->n)
        return i ? x[i - 1] : at;
    double from = i ? it[i - 1] : 0, x0 = i ? x[i - 1] : 0;
    return it[i] > from ? x0 + (x[i] - x0) * (at - from) / (it[i] - from) : x[i];
}

static void put_loss(FILE *f, const Report *r)
{
    const double *x = r->col[C_iteration], *tokens = r->col[C_consumed_tokens], *time = r->col[C_time];
    double last = report_last_of(r, C_iteration), *at = xcalloc((size_t)r->evals + 1, sizeof *at);
    Series s[3];
    int k = curve(r, C_lm_loss, "training", s), many = r->n >= 20 && last > 2 * x[0], shown = 0;
    if (r->evals)
        s[k++] = (Series){"validation", "b", DRAW_DOTS, r->evals, at, r->eval_loss, NULL};
    Chart c = over_iterations(r, "Loss", "nats a token", k, s);
    c.height = 340;
    /* x: of the recorded steps; from: as Chart.x_from */
    const struct { const char *label, *x_name; const double *x; int shown, log; double from; } view[] = {
        {"iterations", "iteration", x, 1, 0, NAN},
        {"tokens", "tokens", tokens, r->n >= 2 && report_last_of(r, C_consumed_tokens) > 0, 0, NAN},
        {"time", r->time_unit, time, r->n >= 2 && report_last_of(r, C_time) > 0, 0, NAN},
        {"log iterations", "iteration", x, many, 1, NAN},
        {"last three quarters", "iteration", x, many, 0, last / 4}};
    chart_open(f, " wide", &c);
    html_put(f, "<div class='views'>");
    for (int v = 0; v < 5; v++) {
        if (!view[v].shown)
            continue;
        for (int64_t i = 0; i < r->evals; i++)
            at[i] = place(r, view[v].x, r->eval_at[i]);
        for (int i = 0; i < k; i++)
            s[i].x = s[i].x == at ? at : view[v].x;
        c.x_name = view[v].x_name;
        c.log_x = view[v].log;
        c.x_from = view[v].from;
        c.nmark = view[v].x == x ? r->marks : 0;                   /* marks are iterations */
        view_open(f, "v", ++shown, view[v].label);
        chart_plot(f, &c);
        view_close(f);
    }
    html_put(f, "</div>\n");
    if (r->n >= SMOOTH_FROM)
        html_put(f, "<p class='note'>Strong lines are means of %d recorded steps.</p>\n",
                 (int)(2 * (r->n / SMOOTH_FROM) + 1));
    card_close(f);
    free(at);
}

/* ---- other columns ---- */

/* mean: bool, with its mean. log: bool, the y axis is logarithmic where values differ by more than a factor
 * of 30; otherwise it begins at 0. varies: bool, drawn only if values differ. */
static const struct { int column; const char *title; int mean, log, varies; } curves[] = {
    {C_learning_rate, "Learning rate", 0, 0, 0},    {C_grad_norm, "Gradient norm", 1, 1, 0},
    {C_tokens_per_second, "Throughput", 1, 0, 0},   {C_global_batch_size, "Global batch", 0, 0, 1},
    {C_loss_scale, "Loss scale", 0, 1, 1}};

static void put_curve(FILE *f, const Report *r, int k)
{
    const double *y = r->col[curves[k].column];
    double low = INFINITY, high = 0;
    Series s[2];
    int n = curve(r, curves[k].column, curves[k].title, s);
    for (int64_t i = 0; i < r->n; i++)
        if (isfinite(y[i]) && y[i] > 0) {
            low = fmin(low, y[i]);
            high = fmax(high, y[i]);
        }
    if (!curves[k].mean) {
        s[0] = s[n - 1];
        s[0].y = y;
        n = 1;
    }
    Chart c = over_iterations(r, curves[k].title, metric_defs[curves[k].column].unit, n, s);
    c.zero = !curves[k].log;
    c.log_y = curves[k].log && high > 30 * low;
    if (!curves[k].varies || high > low)
        put_card(f, &c);
}

/* The parts of a step. The first STEP_PHASES add up to elapsed_ms. */
enum { PHASES = 7, STEP_PHASES = 5 };
static const struct { int column; const char *css; } phase[PHASES] = {
    {C_data_ms, "data"}, {C_forward_ms, "forward"}, {C_backward_ms, "backward"},
    {C_optimizer_ms, "optimizer"}, {C_other, "other"}, {C_checkpoint_ms, "checkpoint"},
    {C_eval_ms, "evaluation"}};

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
    double *sum = xcalloc((size_t)n, STEP_PHASES * sizeof *sum), share[PHASES] = {0};  /* [STEP_PHASES][n] */
    Series s[STEP_PHASES];
    for (int k = 0; k < PHASES; k++) {
        const double *y = r->col[phase[k].column], *mean = r->mean[phase[k].column];
        for (int64_t i = 0; i < n; i++) {
            share[k] += isfinite(y[i]) ? y[i] : 0;
            if (k < STEP_PHASES)
                sum[k * n + i] = (isfinite(mean[i]) ? mean[i] : 0) + (k ? sum[(k - 1) * n + i] : 0);
        }
        if (k < STEP_PHASES)
            s[k] = (Series){phase[k].css, phase[k].css, DRAW_AREA, n, r->col[C_iteration], sum + k * n, mean};
    }
    Chart c = over_iterations(r, "Step time", "ms", STEP_PHASES, s);
    c.zero = 1;
    put_card(f, &c);
    put_share(f, r, share);
    free(sum);
}

void report_put_curves(FILE *f, const Report *r)
{
    put_loss(f, r);
    if (!r->n)
        return;
    for (size_t k = 0; k < sizeof curves / sizeof *curves; k++)
        put_curve(f, r, (int)k);
    put_phases(f, r);
}
