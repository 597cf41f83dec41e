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

static void put_loss(FILE *f, const Report *r)
{
    const double *x = r->col[C_iteration];
    double *mean;
    Series s[3];
    int k = curve(r, C_lm_loss, "training", s, &mean);
    if (r->evals)
        s[k++] = (Series){"validation", "b", DRAW_DOTS, r->evals, r->eval_at, r->eval_loss};
    Chart c = {.title = "Loss", .unit = "nats a token", .x_name = "iteration", .height = 340, .n = k,
               .series = s, .x_from = NAN, .nmark = r->marks, .mark = r->mark};
    card_open(f, " wide", c.title, c.unit);
    chart_legend(f, &c, 0);
    fprintf(f, "</div>\n<div class=\"views\">");
    double last = r->n ? x[r->n - 1] : NAN, first = r->n ? x[0] : NAN;
    int views = r->n >= 20 && last > 2 * first;
    if (views)
        fprintf(f, "<input type=\"radio\" name=\"view\" id=\"v1\" checked><label for=\"v1\">all</label>"
                   "<input type=\"radio\" name=\"view\" id=\"v2\"><label for=\"v2\">log iterations</label>"
                   "<input type=\"radio\" name=\"view\" id=\"v3\">"
                   "<label for=\"v3\">last three quarters</label>\n");
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
        fprintf(f, "</table></section>\n");
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
