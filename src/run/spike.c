/* spike -- limits of loss and gradient norm from recent steps, and the record of the steps above them */
#include "spike.h"
#include "base.h"
#include "config_table.h"
#include "json_number.h"
#include <stdlib.h>
#include <string.h>

void spikes_open(Spikes *s, const Config *cfg)
{
    *s = (Spikes){0};
    if (cfg->on_spike == ON_SPIKE_NONE)
        return;
    s->good = xcalloc((size_t)cfg->spike_window + 1, sizeof *s->good);
    s->work = xcalloc((size_t)cfg->spike_window, sizeof *s->work);
}

void spikes_close(Spikes *s)
{
    free(s->good);
    free(s->work);
    free(s->out);
    *s = (Spikes){0};
}

/* ---- the limits ---- */

/* Sorts x in place and returns its median. The C library's sort may allocate. */
static double median(double *x, int64_t n)
{
    for (int64_t i = 1; i < n; i++) {
        double v = x[i];
        int64_t k = i;
        for (; k && x[k - 1] > v; k--)
            x[k] = x[k - 1];
        x[k] = v;
    }
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

/* The limit of the n numbers in x, which are overwritten. */
static double limit_of(double *x, int64_t n, double sigmas)
{
    double middle = median(x, n);
    for (int64_t i = 0; i < n; i++)
        x[i] = fabs(x[i] - middle);
    return middle + sigmas * fmax(1.4826 * median(x, n), 0.01 * fabs(middle));
}

Limits spikes_limits(const Spikes *s, const Config *cfg, int64_t iteration)
{
    int64_t window = cfg->spike_window, n = s->n;
    while (n && s->good[n - 1].iteration > iteration - 2)
        n--;
    if (n < window || !s->good)
        return (Limits){INFINITY, INFINITY, 0};
    Limits l = {0};
    for (int64_t i = 0; i < window; i++)
        s->work[i] = s->good[n - window + i].loss;
    l.loss = limit_of(s->work, window, cfg->spike_sigma);
    for (int64_t i = 0; i < window; i++)
        s->work[i] = s->good[n - window + i].norm;
    l.norm = limit_of(s->work, window, cfg->spike_sigma);
    return l;
}

/* ---- a finished step ---- */

void spikes_leave_out(Spikes *s, int64_t iteration, int64_t first, int64_t samples)
{
    while (s->nout && s->out[s->nout - 1].first >= first)
        s->nout--;
    s->out = xrealloc(s->out, (size_t)(s->nout + 1) * sizeof *s->out);
    s->out[s->nout++] = (LeftOut){iteration, first, samples};
}

/* Adds the newest good step; of `most` the oldest goes. */
static void add_good(Spikes *s, int64_t most, GoodStep g)
{
    if (s->n == most)
        memmove(s->good, s->good + 1, (size_t)--s->n * sizeof *s->good);
    s->good[s->n++] = g;
}

void spikes_see(Spikes *s, const Config *cfg, const Spike *step)
{
    s->now.iteration = 0;
    if (!s->good)
        return;
    int above = step->loss > step->limits.loss || step->norm > step->limits.norm;
    /* with `warn` a whole window of spikes in a row is a new level, which is learnt */
    if (!above || s->in_a_row >= cfg->spike_window)
        add_good(s, cfg->spike_window + 1, (GoodStep){step->iteration, step->loss, step->norm});
    s->in_a_row = above ? s->in_a_row + 1 : 0;
    if (!above)
        return;
    s->now = *step;
    s->now.back = -1;
    if (cfg->on_spike == ON_SPIKE_WARN)
        return;
    s->skipped++;
    spikes_leave_out(s, step->iteration, step->first, step->samples);
}

int spikes_stay(const Spikes *s, const Config *cfg)
{
    return cfg->on_spike != ON_SPIKE_WARN && s->in_a_row >= cfg->spike_window;
}

void spikes_end(const Spikes *s, const Config *cfg)
{
    die(EXIT_NUMERIC, "spikes", "iteration %lld: loss %g and gradient norm %g; the last %lld steps were "
        "all above the limits and updated nothing; change: lower lr, look at the corpus, raise "
        "spike_sigma, or set on_spike to %swarn", (long long)s->now.iteration, s->now.loss, s->now.norm,
        (long long)cfg->spike_window, cfg->on_spike == ON_SPIKE_SKIP ? "rewind or " : "");
}

/* ---- the state ---- */

json_t *spikes_state(const Spikes *s)
{
    json_t *good = json_array(), *out = json_array();
    for (int64_t i = 0; i < s->n; i++)
        json_array_append_new(good, json_pack("[I,f,f]", (json_int_t)s->good[i].iteration, s->good[i].loss,
                                              s->good[i].norm));
    for (int64_t i = 0; i < s->nout; i++)
        json_array_append_new(out, json_pack("[I,I,I]", (json_int_t)s->out[i].iteration,
                                             (json_int_t)s->out[i].first, (json_int_t)s->out[i].samples));
    json_t *j = json_pack("{s:o s:I s:I s:o}", "good", good, "in_a_row", (json_int_t)s->in_a_row, "skipped",
                          (json_int_t)s->skipped, "left_out", out);
    BUG_ON(!j);
    return j;
}

static int load_good(Spikes *s, const json_t *row, int64_t most)
{
    json_int_t iteration;
    GoodStep g;
    if (json_unpack((json_t *)row, "[I,F,F!]", &iteration, &g.loss, &g.norm) || iteration < 1 ||
        iteration > most || (s->n && iteration <= s->good[s->n - 1].iteration))
        return 0;
    g.iteration = iteration;
    s->good[s->n++] = g;
    return 1;
}

static int load_out(Spikes *s, const json_t *row, int64_t most)
{
    json_int_t iteration, first, samples;
    const LeftOut *last = s->nout ? &s->out[s->nout - 1] : NULL;
    if (json_unpack((json_t *)row, "[I,I,I!]", &iteration, &first, &samples) || iteration < 1 ||
        iteration > most || first < 0 || samples < 1 || (last && first <= last->first))
        return 0;
    spikes_leave_out(s, iteration, first, samples);
    return 1;
}

int spikes_load(Spikes *s, const Config *cfg, const json_t *state, int64_t iteration)
{
    json_t *good, *out, *row;
    json_int_t in_a_row, skipped;
    size_t i, first = 0;
    s->n = s->in_a_row = s->skipped = s->nout = 0;
    if (!state)
        return 1;
    if (json_unpack((json_t *)state, "{s:o s:I s:I s:o}", "good", &good, "in_a_row", &in_a_row, "skipped",
                    &skipped, "left_out", &out) || !json_is_array(good) || !json_is_array(out) ||
        in_a_row < 0 || in_a_row > iteration || skipped < 0 || skipped > iteration)
        return 0;
    s->skipped = skipped;
    json_array_foreach(out, i, row)
        if (!load_out(s, row, iteration))
            return 0;
    if (!s->good)                      /* on_spike none: the record of what was left out stays */
        return 1;
    s->in_a_row = in_a_row;
    if (json_array_size(good) > (size_t)cfg->spike_window + 1)
        first = json_array_size(good) - (size_t)cfg->spike_window - 1;
    for (i = first; i < json_array_size(good); i++)
        if (!load_good(s, json_array_get(good, i), iteration))
            return 0;
    return 1;
}

/* ---- the record ---- */

char *spikes_text(const Spikes *s, const Config *cfg)
{
    const Spike *k = &s->now;
    int loss = k->loss > k->limits.loss, norm = k->norm > k->limits.norm;
    char over[160] = "", *done;
    if (loss)
        snprintf(over, sizeof over, "loss %.6g is above %.6g", k->loss, k->limits.loss);
    if (norm)
        snprintf(over + strlen(over), sizeof over - strlen(over), "%sgradient norm %.6g is above %.6g",
                 loss ? ", " : "", k->norm, k->limits.norm);
    if (cfg->on_spike == ON_SPIKE_WARN)
        done = xstrdup("updated all the same");
    else if (k->back < 0)
        done = xstrdup("not updated");
    else
        done = xasprintf("back to the state of iteration %ld; samples %ld to %ld are skipped", k->back,
                         s->out[s->nout - 1].first, k->first + k->samples - 1);
    char *text = xasprintf("spike at iteration %ld: %s; samples %ld to %ld; %s", k->iteration, over, k->first,
                           k->first + k->samples - 1, done);
    free(done);
    return text;
}

json_t *spikes_record(const Spikes *s, const Config *cfg)
{
    static const char *const action[] = {[ON_SPIKE_NONE] = "none", [ON_SPIKE_WARN] = "warn",
                                         [ON_SPIKE_SKIP] = "skip", [ON_SPIKE_REWIND] = "rewind"};
    const Spike *k = &s->now;
    json_t *j = json_pack("{s:I s:s s:f s:f s:f s:f s:I s:I}", "iteration", (json_int_t)k->iteration, "spike",
                          action[cfg->on_spike], "spike_loss", k->loss, "spike_loss_limit", k->limits.loss,
                          "spike_grad_norm", k->norm, "spike_grad_norm_limit", k->limits.norm,
                          "spike_first_sample", (json_int_t)k->first, "spike_samples",
                          (json_int_t)k->samples);
    BUG_ON(!j);
    if (cfg->on_spike == ON_SPIKE_WARN)
        return j;
    const LeftOut *out = &s->out[s->nout - 1];
    json_object_set_new(j, "skipped_first_sample", json_integer(out->first));
    json_object_set_new(j, "skipped_samples", json_integer(out->samples));
    if (k->back >= 0)
        json_object_set_new(j, "rewound_to", json_integer(k->back));
    return j;
}
