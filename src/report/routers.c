/* routers -- what the routers of a step did, as JSON, as scalars, and as fields of the progress line */
#include "routers.h"
#include "base.h"
#include "file.h"
#include "json_number.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const int64_t *counts_of(const RouterMetrics *m, int row)
{
    return m->count + row * (int64_t)(m->experts + 1);
}

static double choices_of(const RouterMetrics *m, int row)
{
    double sum = 0;
    for (int e = 0; e < m->experts; e++)
        sum += (double)counts_of(m, row)[e];
    return sum;
}

/* The largest share of a layer's choices over the mean one. */
static double peak(const RouterMetrics *m, int row)
{
    double most = 0, all = choices_of(m, row);
    for (int e = 0; e < m->experts; e++)
        most = fmax(most, (double)counts_of(m, row)[e]);
    return all > 0 ? most * m->experts / all : NAN;
}

/* The entropy of the shares, in nats: ln(experts) at most. */
static double spread(const RouterMetrics *m, int row)
{
    double sum = 0, all = choices_of(m, row);
    for (int e = 0; e < m->experts; e++) {
        double share = (double)counts_of(m, row)[e] / all;
        sum -= share > 0 ? share * log(share) : 0;
    }
    return all > 0 ? sum : NAN;
}

static double dropped(const RouterMetrics *m, int row) { return (double)counts_of(m, row)[m->experts]; }
static double balance(const RouterMetrics *m, int row) { return m->row[row].balance; }
static double z_loss(const RouterMetrics *m, int row) { return m->row[row].z; }
static double entropy(const RouterMetrics *m, int row) { return m->row[row].entropy; }

/* What is said of each layer, and of all of them: their sum, mean, largest or smallest value. */
enum { SUM, MEAN, LARGEST, SMALLEST };
static const struct {
    const char *name;
    double (*of)(const RouterMetrics *, int);
    int all;
} numbers[] = {{"aux_loss", balance, SUM},
               {"z_loss", z_loss, SUM},
               {"load_max_over_mean", peak, LARGEST},
               {"load_entropy", spread, SMALLEST},
               {"router_entropy", entropy, MEAN},
               {"dropped", dropped, SUM}};
enum { NUMBERS = sizeof numbers / sizeof *numbers };

static double of_all(const RouterMetrics *m, int i)
{
    double v = 0;
    for (int row = 0; row < m->layers; row++) {
        double x = numbers[i].of(m, row);
        int most = numbers[i].all == LARGEST, least = numbers[i].all == SMALLEST;
        v = !row ? x : most ? fmax(v, x) : least ? fmin(v, x) : v + x;
    }
    return numbers[i].all == MEAN ? v / m->layers : v;
}

void routers_copy(RouterMetrics *to, const RouterMetrics *from)
{
    size_t rows = (size_t)from->layers, counts = rows * (size_t)(from->experts + 1);
    RouterMetrics old = *to;
    *to = *from;
    to->count = old.count ? old.count : xcalloc(counts, sizeof *to->count);
    to->row = old.row ? old.row : xcalloc(rows, sizeof *to->row);
    memcpy(to->count, from->count, counts * sizeof *to->count);
    memcpy(to->row, from->row, rows * sizeof *to->row);
}

void routers_free(RouterMetrics *m)
{
    free(m->count);
    free(m->row);
    *m = (RouterMetrics){0};
}

char *routers_json(const RouterMetrics *m)
{
    char *text, number[32];
    size_t size;
    FILE *f = xmemstream(&text, &size);
    for (int i = 0; i < NUMBERS; i++)
        fprintf(f, ", \"moe_%s\": %s", numbers[i].name, json_number_text(number, of_all(m, i)));
    fprintf(f, ", \"moe\": {\"layers\": [");
    for (int row = 0; row < m->layers; row++)
        fprintf(f, row ? ", %d" : "%d", m->layer[row]);
    for (int i = 0; i < NUMBERS; i++) {
        fprintf(f, "], \"%s\": [", numbers[i].name);
        for (int row = 0; row < m->layers; row++)
            fprintf(f, row ? ", %s" : "%s", json_number_text(number, numbers[i].of(m, row)));
    }
    fprintf(f, "], \"load\": [");
    for (int row = 0; row < m->layers; row++) {
        fprintf(f, row ? ", [" : "[");
        for (int e = 0; e < m->experts; e++)
            fprintf(f, e ? ", %" PRId64 : "%" PRId64, counts_of(m, row)[e]);
        fprintf(f, "]");
    }
    fprintf(f, "]}");
    fclose(f);
    return text;
}

/* The losses under Megatron-LM's names. */
static int losses(const RouterMetrics *m, Scalar s[2])
{
    int n = 0;
    if (isfinite(m->row[0].balance))
        s[n++] = (Scalar){m->balance, of_all(m, 0) / m->balance_coeff / m->layers};
    if (isfinite(m->row[0].z))
        s[n++] = (Scalar){"z_loss", of_all(m, 1) / m->z_coeff / m->layers};
    return n;
}

void routers_scalars(const RouterMetrics *m, EventFile *f, double wall_time, int64_t step)
{
    Scalar s[NUMBERS + 2];
    char name[NUMBERS][64];
    int n = losses(m, s);
    for (int row = -1; row < m->layers; row++) {
        for (int i = 0; i < NUMBERS; i++) {
            if (row < 0)
                snprintf(name[i], sizeof name[i], "moe_%s", numbers[i].name);
            else
                snprintf(name[i], sizeof name[i], "moe/%s_layer_%d", numbers[i].name, m->layer[row]);
            s[n++] = (Scalar){name[i], row < 0 ? of_all(m, i) : numbers[i].of(m, row)};
        }
        event_scalars(f, wall_time, step, s, n);
        n = 0;
    }
}

const char *routers_fields(const RouterMetrics *m, char text[160])
{
    Scalar s[2];
    int at = 0, n = losses(m, s);
    *text = 0;
    for (int i = 0; i < n; i++)
        at += snprintf(text + at, 160 - (size_t)at, " %s: %.6E |", s[i].tag, s[i].value);
    return text;
}
