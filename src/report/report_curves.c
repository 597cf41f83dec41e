/* The report's curves: loss, learning rate, gradient norm, throughput, and where the time of a step goes. */
#include "base.h"
#include "chart.h"
#include "report_data.h"
#include <math.h>
#include <stdlib.h>

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

/* A column of the table as one curve, or, when there are many steps, as a faint one and its mean over about
 * 2 % of them. Returns how many series; *mean is the caller's to free. */
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

/* ---- the loss, over iterations, tokens and time ---- */

/* The training time at the end of each recorded step, in the unit *name, evaluations and saves included: a
 * line holds the means of the steps since the line before it. */
static double *time_of(const Report *r, const char **name)
{
    static const struct {
        double s;
        const char *name;
    } units[] = {{3600, "hours"}, {60, "minutes"}, {1, "seconds"}};
    static const int parts[] = {C_elapsed_ms, C_eval_ms, C_checkpoint_ms};
    double *t = xcalloc((size_t)r->n + 1, sizeof *t), sum = 0;
    for (int64_t i = 0; i < r->n; i++) {
        double steps = r->col[C_iteration][i] - (i ? r->col[C_iteration][i - 1] : 0);
        for (int k = 0; k < 3; k++)
            sum += isfinite(r->col[parts[k]][i]) ? 1e-3 * steps * r->col[parts[k]][i] : 0;
        t[i] = sum;
    }
    int u = 0;
    while (u < 2 && sum < 2 * units[u].s)
        u++;
    for (int64_t i = 0; i < r->n; i++)
        t[i] /= units[u].s;
    *name = units[u].name;
    return t;
}

/* Where iteration `at` lies on the axis `x`, between the recorded steps beside it. */
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

typedef struct { const char *label, *x_name; const double *x; int log; double from; } LossView;

static void put_view(FILE *f, const Report *r, const Chart *chart, const LossView *v)
{
    Chart c = *chart;
    Series s[3];
    double *at = xcalloc((size_t)r->evals + 1, sizeof *at);
    for (int64_t i = 0; i < r->evals; i++)
        at[i] = v->x && r->n ? place(r, v->x, r->eval_at[i]) : r->eval_at[i];
    for (int k = 0; k < c.n; k++) {
        s[k] = chart->series[k];
        if (v->x)
            s[k].x = s[k].x == r->eval_at ? at : v->x;
    }
    c.series = s;
    c.x_name = v->x_name;
    c.log_x = v->log;
    c.x_from = v->from;
    if (v->x)
        c.nmark = 0;                   /* marks are iterations */
    chart_lines(f, &c);
    free(at);
}

static void put_loss(FILE *f, const Report *r)
{
    const double *x = r->col[C_iteration];
    double *mean, last = r->n ? x[r->n - 1] : NAN, first = r->n ? x[0] : NAN;
    const char *unit;
    double *hours = time_of(r, &unit);
    Series s[3];
    int k = curve(r, C_lm_loss, "training", s, &mean), many = r->n >= 20 && last > 2 * first, views = 0;
    if (r->evals)
        s[k++] = (Series){"validation", "b", DRAW_DOTS, r->evals, r->eval_at, r->eval_loss};
    Chart c = {.title = "Loss", .unit = "nats a token", .height = 340, .n = k, .series = s, .nmark = r->marks,
               .mark = r->mark};
    LossView view[5] = {{"iterations", "iteration", NULL, 0, NAN}};
    views++;
    if (r->n >= 2 && last_of(r, C_consumed_tokens) > 0)
        view[views++] = (LossView){"tokens", "tokens", r->col[C_consumed_tokens], 0, NAN};
    if (r->n >= 2 && hours[r->n - 1] > 0)
        view[views++] = (LossView){"time", unit, hours, 0, NAN};
    if (many)
        view[views++] = (LossView){"log iterations", "iteration", NULL, 1, NAN};
    if (many)
        view[views++] = (LossView){"last three quarters", "iteration", NULL, 0, last / 4};
    card_open(f, " wide", c.title, c.unit);
    chart_legend(f, &c, 0);
    fprintf(f, "</div>\n<div class=\"views\">");
    for (int i = 0; i < views && views > 1; i++)
        fprintf(f, "<input type=\"radio\" name=\"view\" id=\"v%d\"%s><label for=\"v%d\">%s</label>\n", i + 1,
                i ? "" : " checked", i + 1, view[i].label);
    for (int i = 0; i < views; i++) {
        if (views > 1)
            fprintf(f, "<div class=\"view v%d\">", i + 1);
        else
            fprintf(f, "<div>");
        put_view(f, r, &c, &view[i]);
        fprintf(f, "</div>");
    }
    fprintf(f, "</div>\n");
    if (mean)
        fprintf(f, "<p class=\"note\">Strong lines are means of %lld recorded steps.</p>\n",
                (long long)(2 * (r->n / SMOOTH_FROM) + 1));
    fprintf(f, "</section>\n");
    free(mean);
    free(hours);
}

static int varies(const double *v, int64_t n)
{
    for (int64_t i = 1; i < n; i++)
        if (isfinite(v[i]) && v[i] != v[0])
            return 1;
    return 0;
}

/* A card with one column of the table, as it stands or with its mean; the axis from 0 or, LOG, logarithmic
 * where the values ask for it. */
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
    Chart c = {.title = title, .unit = metric_defs[column].unit, .x_name = "iteration", .height = 190,
               .n = k, .series = s, .x_from = NAN, .zero = how == PLAIN || how == MEAN,
               .log_y = (how == PLAIN_LOG || how == MEAN_LOG) && high > 30 * low, .nmark = r->marks,
               .mark = r->mark};
    card_open(f, "", title, c.log_y ? "logarithmic" : c.unit);
    fprintf(f, "</div>\n");
    chart_lines(f, &c);
    fprintf(f, "</section>\n");
    free(mean);
}

enum { PHASES = 7 };
static const struct { int column; const char *css; } phase[PHASES] = {
    {C_data_ms, "data"},           {C_forward_ms, "forward"}, {C_backward_ms, "backward"},
    {C_optimizer_ms, "optimizer"}, {-1, "other"},             {C_checkpoint_ms, "checkpoint"},
    {C_eval_ms, "evaluation"}};
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
                fprintf(f, "<span class=\"%s\" style=\"flex:%.4f 1 0\"></span>", phase[k].css,
                        share[k] / total);
        fprintf(f, "</div>\n<table>");
        for (int k = 0; k < PHASES; k++)
            if (share[k] > 0)
                fprintf(f, "<tr><td><span class=\"dot %s\"></span>%s</td><td class=\"n\">%s a step</td>"
                        "<td class=\"n\">%.1f %%</td></tr>\n", phase[k].css, phase[k].css,
                        ms_text(t, share[k] / (double)r->n), 100 * share[k] / total);
        fprintf(f,
                "</table>\n<p class=\"note\">other: the rest of a step, in which a rank waits for another "
                "rank's work, moves messages, gathers weights or writes the log; means over the "
                "ranks.</p></section>\n");
    }
    free(other);
}

void put_curves(FILE *f, const Report *r)
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
