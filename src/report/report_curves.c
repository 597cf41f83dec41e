/* report_curves -- the report's curves as data, which the page's script draws; where the time went */
#include "base.h"
#include "page.h"
#include "report_data.h"
#include "scale.h"
#include <math.h>
#include <stdlib.h>

static void put_array(FILE *f, const char *name, const double *v, const int64_t *keep, int64_t n)
{
    fprintf(f, ",\"%s\":[", name);
    for (int64_t k = 0; k < n; k++) {
        fputs(k ? "," : "", f);
        fprintf(f, isfinite(v[keep[k]]) ? "%.7g" : "null", v[keep[k]]);
    }
    fputc(']', f);
}

/* Prints the points of a series that a plot needs. picture: its card. more: further members. part: [n] what
 * is shown on hover, where y is the sum of a stack; NULL: y. */
static void put_series(FILE *f, const char *picture, const char *name, const char *more, int64_t n,
                       const double *x, const double *y, const double *part)
{
    int64_t *keep = xcalloc((size_t)n + 1, sizeof *keep), kept = scale_thin(x, y, n, keep);
    html_put(f, "<script type='application/json' class='series'>{'of':'%s','name':'%s'", picture, name);
    fputs(more, f);
    put_array(f, "x", x, keep, kept);
    put_array(f, "y", y, keep, kept);
    if (part)
        put_array(f, "part", part, keep, kept);
    fputs("}</script>\n", f);
    free(keep);
}

/* The columns that are drawn over iterations, and those that other axes of the loss are made from. */
static const struct { int column, mean; const char *picture, *name; } series[] = {
    {C_lm_loss, 1, "Loss", "training"},
    {C_learning_rate, 0, "Learning rate", "Learning rate"},
    {C_grad_norm, 1, "Gradient norm", "Gradient norm"},
    {C_tokens_per_second, 1, "Throughput", "Throughput"},
    {C_global_batch_size, 0, "Global batch", "Global batch"},
    {C_loss_scale, 0, "Loss scale", "Loss scale"},
    {C_consumed_tokens, 0, "tokens", ""},
    {C_time, 0, "time", ""}};

/* The parts of a step. The first STEP_PHASES add up to elapsed_ms. */
enum { PHASES = 7, STEP_PHASES = 5 };
static const struct { int column; const char *css; } phase[PHASES] = {
    {C_data_ms, "data"}, {C_forward_ms, "forward"}, {C_backward_ms, "backward"},
    {C_optimizer_ms, "optimizer"}, {C_other, "other"}, {C_checkpoint_ms, "checkpoint"},
    {C_eval_ms, "evaluation"}};

/* share: [PHASES] ms of all recorded steps together */
static void put_share(FILE *f, const Report *r, const double *share)
{
    double total = 0, steps = 0;
    char t[32];
    for (int k = 0; k < PHASES; k++)
        total += share[k];
    for (int64_t i = 0; i < r->n; i++)
        steps += r->col[C_steps][i];
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
                     report_ms_text(t, share[k] / steps), 100 * share[k] / total);
    html_put(f, "</table>\n<p class='note'>A wait inside of forward, backward or the optimizer&#39;s step "
             "counts there: for the tensor, context or expert group, or for the sum of the gradients. other: "
             "the rest of a step, in which a rank waits for the pipeline, gathers weights, starts reductions "
             "or writes the log. The step is that of the slowest rank, the parts are means over the "
             "ranks.</p>");
    card_close(f);
}

/* Prints the phases as a stack, each with the sum of those up to it, and their shares. */
static void put_phases(FILE *f, const Report *r)
{
    double *sum = xcalloc((size_t)r->n, sizeof *sum), share[PHASES] = {0};
    for (int k = 0; k < PHASES; k++) {
        const double *y = r->col[phase[k].column], *mean = r->mean[phase[k].column];
        char css[32];
        for (int64_t i = 0; i < r->n; i++) {
            share[k] += isfinite(y[i]) ? y[i] * r->col[C_steps][i] : 0;
            sum[i] += isfinite(mean[i]) ? mean[i] : 0;
        }
        snprintf(css, sizeof css, ",\"c\":\"%s\"", phase[k].css);
        if (k < STEP_PHASES)
            put_series(f, "Step time", phase[k].css, css, r->n, r->col[C_iteration], sum, mean);
    }
    put_share(f, r, share);
    free(sum);
}

void report_put_curves(FILE *f, const Report *r)
{
    /* members: colour; dots: the most points that are drawn as dots too */
    static const char line[] = ",\"c\":\"a\",\"dots\":29", faint[] = ",\"c\":\"a\",\"faint\":1",
                      points[] = ",\"c\":\"b\",\"dots\":80", other[] = ",\"c\":\"b\",\"dots\":29";
    const double *x = r->col[C_iteration];
    for (size_t k = 0; k < sizeof series / sizeof *series && r->n; k++) {
        const double *y = r->col[series[k].column], *mean = r->mean[series[k].column];
        if (series[k].mean && y != mean)
            put_series(f, series[k].picture, "each recorded step", faint, r->n, x, y, NULL);
        put_series(f, series[k].picture, series[k].name, line, r->n, x,
                   series[k].mean ? mean : y, NULL);
    }
    if (r->moe) {
        put_series(f, "Largest load", "worst layer", line, r->n, x, r->mean[C_peak], NULL);
        put_series(f, "Largest load", "mean of the layers", other, r->n, x, r->mean[C_peak_mean], NULL);
    }
    if (r->evals)
        put_series(f, "Loss", "validation", points, r->evals, r->eval_at, r->eval_loss, NULL);
    html_put(f, "<script type='application/json' class='curves'>{'unit':'%s','marks':[", r->time_unit);
    for (int i = 0; i < r->marks; i++)
        fprintf(f, i ? ",%.0f" : "%.0f", r->mark[i]);
    fprintf(f, "],\"note\":\"");
    if (r->n >= SMOOTH_FROM)
        html_put(f, "Strong lines are means of %d recorded steps.", (int)(2 * (r->n / SMOOTH_FROM) + 1));
    fprintf(f, "\"}</script>\n");
    if (r->n)
        put_phases(f, r);
}
