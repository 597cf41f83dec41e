/* bubble_print -- a bubble table as text, JSON and CSV */
#define _GNU_SOURCE
#include "bound.h"
#include "bubble.h"
#include "base.h"
#include "json_number.h"
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static double most_of(const Cell *c)
{
    double most = 0;
    for (int r = 0; r < c->shape.p; r++)
        most = fmax(most, c->peak[r]);
    return most;
}

/* The ms that no order of the cell's stages that holds no more can beat. */
static double bound_of(const Cell *c) { return step_bound(&c->shape, most_of(c)); }

/* The sizes that a cell's schedule goes by and that its v and m do not say; NAN: it has none, or p. */
static double group_of(const Cell *c)
{
    return c->shape.kind == SCHEDULE_INTERLEAVED && c->shape.group ? c->shape.group : NAN;
}

static double limit_of(const Cell *c)
{
    return c->shape.kind == SCHEDULE_ZB_AUTO && c->shape.limit ? c->shape.limit : NAN;
}

/* ---- text ---- */

/* Prints a share as a percentage in `width` places; not finite: a dash. */
static void put_share(FILE *f, double x, int width)
{
    if (isfinite(x))
        fprintf(f, " %*.2f", width, fabs(x) < 5e-5 ? 0 : 100 * x);
    else
        fprintf(f, " %*s", width, "-");
}

/* Prints activations in `width` places, three digits or the whole number. */
static void put_peak(FILE *f, double x, int width)
{
    fprintf(f, x < 999.5 ? " %*.3g" : " %*.0f", width, x);
}

static char *times_text(const Times *t)
{
    double low = t->ms[0], high = low;
    for (int i = 1; i < t->n; i++) {
        low = fmin(low, t->ms[i]);
        high = fmax(high, t->ms[i]);
    }
    return low < high ? xasprintf("%.4g-%.4g", low, high) : xasprintf("%.5g", low);
}

enum { SHOW_MEASURED = 1, SHOW_CLOSED = 2, SHOW_PUBLISHED = 4, SHOW_PEAK = 8, SHOW_LABEL = 16 };

static int columns_of(const Table *t)
{
    int show = 0;
    for (int i = 0; i < t->n; i++) {
        const Cell *c = &t->cell[i];
        show |= (c->steps ? SHOW_MEASURED : 0) | (isfinite(c->closed_form.rate) ? SHOW_CLOSED : 0) |
                (isfinite(c->published) ? SHOW_PUBLISHED : 0) |
                (isfinite(c->published_peak) ? SHOW_PEAK : 0) | (c->label ? SHOW_LABEL : 0);
    }
    return show;
}

static int label_width(const Table *t)
{
    size_t most = 0;
    for (int i = 0; i < t->n; i++)
        most = t->cell[i].label && strlen(t->cell[i].label) > most ? strlen(t->cell[i].label) : most;
    return (int)most;
}

static void print_head(FILE *f, int show, int width)
{
    if (show & SHOW_LABEL)
        fprintf(f, "%-*s  ", width, "");
    fprintf(f, "%-11s %3s %2s %4s  %-27s |  step, ms", "", "", "", "", "F, D, W, message, ms");
    fprintf(f, show & SHOW_MEASURED ? "%37s" : "%13s", "");
    fprintf(f, "|  rate, %%%*s", 6 * ((show & SHOW_MEASURED) > 0) + 7 * ((show & SHOW_CLOSED) > 0) +
                                  18 * ((show & SHOW_PUBLISHED) > 0), "");
    fprintf(f, "|  of the step, %%\n");
    if (show & SHOW_LABEL)
        fprintf(f, "%-*s  ", width, "row");
    fprintf(f, "%-11s %3s %2s %4s  %-27s | %10s %7s", "schedule", "p", "v", "m", "", "simulated", "above");
    if (show & SHOW_MEASURED)
        fprintf(f, " %10s %6s %10s", "measured", "%", "spread, %");
    fprintf(f, "  | %6s", "sim.");
    fprintf(f, "%s%s%s", show & SHOW_MEASURED ? "  meas." : "", show & SHOW_CLOSED ? " closed" : "",
            show & SHOW_PUBLISHED ? "  publ. sim-pub" : "");
    fprintf(f, "  | %6s%s%s  | peak%s\n", "sim.", show & SHOW_MEASURED ? "  meas." : "",
            show & SHOW_CLOSED ? " closed" : "", show & SHOW_PEAK ? "  publ." : "");
}

static void put_shares(FILE *f, int show, double simulated, double measured, double closed_form)
{
    fprintf(f, "  |");
    put_share(f, simulated, 6);
    if (show & SHOW_MEASURED)
        put_share(f, measured, 6);
    if (show & SHOW_CLOSED)
        put_share(f, closed_form, 6);
}

static void print_cell(FILE *f, const Cell *c, int show, int width)
{
    char *time[TIMES], *all, name[32];
    for (int k = 0; k < TIMES; k++)
        time[k] = times_text(&c->time[k]);
    all = xasprintf("%s %s %s %s", time[0], time[1], time[2], time[3]);
    if (show & SHOW_LABEL)
        fprintf(f, "%-*s  ", width, c->label ? c->label : "");
    fprintf(f, "%-11s %3d %2d %4d  %-27s | %10.2f", bubble_name(c, name), c->shape.p, c->shape.v, c->shape.m,
            all, c->span);
    put_share(f, c->span / bound_of(c) - 1, 7);
    if (show & SHOW_MEASURED && c->steps)
        fprintf(f, " %10.2f %+6.2f %4.2f of %2d", c->measured_span, 100 * (c->measured_span / c->span - 1),
                100 * (c->most - c->least) / c->measured_span, c->steps);
    else if (show & SHOW_MEASURED)
        fprintf(f, " %10s %6s %10s", "-", "-", "-");
    put_shares(f, show, c->simulated.rate, c->measured.rate, c->closed_form.rate);
    if (show & SHOW_PUBLISHED) {
        put_share(f, c->published, 6);
        if (isfinite(c->published))
            fprintf(f, " %+7.3f", 100 * (c->simulated.rate - c->published));
        else
            fprintf(f, " %7s", "-");
    }
    put_shares(f, show, c->simulated.step_rate, c->measured.step_rate, c->closed_form.step_rate);
    fprintf(f, "  |");
    put_peak(f, most_of(c), 4);
    if (show & SHOW_PEAK && isfinite(c->published_peak))
        put_peak(f, c->published_peak, 6);
    else if (show & SHOW_PEAK)
        fprintf(f, "      -");
    fprintf(f, "\n");
    for (int k = 0; k < TIMES; k++)
        free(time[k]);
    free(all);
}

void bubble_print(FILE *f, const Table *t)
{
    int show = columns_of(t), width = label_width(t);
    double worst = 0, far = 0;
    print_head(f, show, width);
    for (int i = 0; i < t->n; i++) {
        const Cell *c = &t->cell[i];
        if (i && (c->shape.p != c[-1].shape.p || c->shape.m != c[-1].shape.m))
            fprintf(f, "\n");
        print_cell(f, c, show, width);
        worst = c->steps ? fmax(worst, fabs(c->measured_span / c->span - 1)) : worst;
        far = isfinite(c->published) ? fmax(far, fabs(c->simulated.rate - c->published)) : far;
    }
    fprintf(f, "\nrate: (cost - m T) / cost, T = F + D + W of a microbatch on the slowest rank, cost = the "
               "longest over ranks of last end - first start\n(arXiv:2401.10241); of the step: cost = last "
               "end - first start of all ranks. peak: activations of the fullest rank, in microbatches.\n"
               "above: %% above a bound that no order of these stages that holds no more can beat\n");
    if (show & SHOW_MEASURED)
        fprintf(f, "measured: the step in the middle of some; spread: slowest - fastest. Furthest from the "
                "simulated step: %.2f %%\n", 100 * worst);
    if (show & SHOW_PUBLISHED)
        fprintf(f, "furthest from what was published: %.5f\n", far);
}

/* ---- JSON ---- */

static json_t *times_json(const Times *t)
{
    if (t->n == 1)
        return json_number(t->ms[0]);
    json_t *list = json_array();
    for (int i = 0; i < t->n; i++)
        json_array_append_new(list, json_number(t->ms[i]));
    return list;
}

static json_t *rates_json(const Rates *r)
{
    return isfinite(r->rate)
               ? json_pack("{s:o s:o}", "rate", json_number(r->rate), "step_rate", json_number(r->step_rate))
               : json_null();
}

void bubble_json(FILE *f, const Table *t)
{
    json_t *cells = json_array();
    for (int i = 0; i < t->n; i++) {
        const Cell *c = &t->cell[i];
        json_t *peak = json_array(),
               *j = json_pack("{s:s s:i s:i s:i}", "schedule", schedule_name(c->shape.kind), "p", c->shape.p,
                              "v", c->shape.v, "m", c->shape.m);
        for (int r = 0; r < c->shape.p; r++)
            json_array_append_new(peak, json_number(c->peak[r]));
        json_object_set_new(j, "label", c->label ? json_text(c->label) : json_null());
        json_object_set_new(j, "microbatch_group_size", json_number(group_of(c)));
        json_object_set_new(j, "max_activations", json_number(limit_of(c)));
        json_object_set_new(j, "weight_share", json_number(c->shape.weight_share));
        for (int k = 0; k < TIMES; k++)
            json_object_set_new(j, bubble_time_name[k], times_json(&c->time[k]));
        json_object_set_new(j, "simulated_ms", json_number(c->span));
        json_object_set_new(j, "lower_bound_ms", json_number(bound_of(c)));
        json_object_set_new(j, "measured", rates_json(&c->measured));
        json_object_set_new(j, "simulated", rates_json(&c->simulated));
        json_object_set_new(j, "closed_form", rates_json(&c->closed_form));
        json_object_set_new(j, "published", json_number(c->published));
        json_object_set_new(j, "peak_activations", peak);
        json_object_set_new(j, "published_peak", json_number(c->published_peak));
        json_array_append_new(cells, j);
    }
    json_print(f, json_pack("{s:o}", "cells", cells), JSON_INDENT(2));
}

/* ---- CSV ---- */

static const char header[] =
    "label,schedule,p,v,m,max_activations,weight_share,forward_ms,backward_input_ms,backward_weight_ms,p2p_"
    "ms,steps,measured_ms,measured_least_ms,measured_most_ms,measured_rate,measured_step_rate,"
    "simulated_ms,simulated_rate,simulated_step_rate,closed_form_rate,closed_form_step_rate,"
    "peak_activations,published,published_peak,microbatch_group_size";

static void put_number(FILE *f, const char *before, double x)
{
    fprintf(f, isfinite(x) ? "%s%.17g" : "%s", before, x);
}

void bubble_csv(FILE *f, const Table *t)
{
    fprintf(f, "%s\n", header);
    for (int i = 0; i < t->n; i++) {
        const Cell *c = &t->cell[i];
        const double ms[] = {c->steps ? c->measured_span : NAN, c->steps ? c->least : NAN,
                             c->steps ? c->most : NAN, c->measured.rate, c->measured.step_rate, c->span,
                             c->simulated.rate, c->simulated.step_rate, c->closed_form.rate,
                             c->closed_form.step_rate};
        fprintf(f, "%s,%s,%d,%d,%d", c->label ? c->label : "", schedule_name(c->shape.kind), c->shape.p,
                c->shape.v, c->shape.m);
        put_number(f, ",", limit_of(c));
        put_number(f, ",", c->shape.weight_share);
        for (int k = 0; k < TIMES; k++)
            for (int s = 0; s < c->time[k].n; s++)
                put_number(f, s ? " " : ",", c->time[k].ms[s]);
        fprintf(f, ",%d", c->steps);
        for (size_t k = 0; k < sizeof ms / sizeof *ms; k++)
            put_number(f, ",", ms[k]);
        for (int r = 0; r < c->shape.p; r++)
            put_number(f, r ? " " : ",", c->peak[r]);
        put_number(f, ",", c->published);
        put_number(f, ",", c->published_peak);
        put_number(f, ",", group_of(c));
        fprintf(f, "\n");
    }
}
