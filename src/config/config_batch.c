/* config_batch -- step_batch_size_schedule: batch sizes, samples and steps of a run */
#define _GNU_SOURCE
#include "config_table.h"
#include <ctype.h>

/* Reads a number of the schedule: digits, a point, and K, M, B or T. Returns -1 if it is not whole. */
static int64_t schedule_number(const char **s)
{
    static const char suffixes[] = "KMBT";
    __int128 x = 0, scale = 1;
    int digits = 0, point = 0;
    for (; isdigit((unsigned char)**s) || (**s == '.' && !point); (*s)++) {
        if (**s == '.') {
            point = 1;
            continue;
        }
        x = 10 * x + (**s - '0');
        scale *= point ? 10 : 1;
        if (++digits > 18)
            return -1;
    }
    const char *suffix = **s ? strchr(suffixes, toupper((unsigned char)**s)) : NULL;
    if (suffix) {
        for (int i = 0; i <= suffix - suffixes; i++)
            x *= 1000;
        (*s)++;
    }
    return !digits || x % scale || x / scale > 1000000000000000000 ? -1 : (int64_t)(x / scale);
}

char *config_parse_schedule(Config *c, int64_t unit)
{
    const char *s = c->step_batch_size_schedule;
    BatchStep *step = NULL;
    int n = 0;
    for (s += strspn(s, " ,"); *s; s += strspn(s, " ,")) {
        int length = (int)strcspn(s, " ,");
        const char *entry = s;
        int64_t tokens = schedule_number(&s), batch = -1;
        if (*s == ':')
            s++, batch = schedule_number(&s);
        if (tokens < 0 || batch < 0 || s != entry + length)
            return textf("'%.*s' is not THRESHOLD:BATCH, whole numbers with K, M, B or T if need be",
                         length > 60 ? 60 : length, entry);
        int64_t samples = tokens / c->seq_length;
        if (!n && tokens)
            return textf("the first threshold is %ld tokens; it must be 0", tokens);
        if (n && samples <= step[n - 1].samples)
            return textf("threshold '%.*s' (%ld samples) is not above the one before (%ld samples)",
                         length, entry, samples, step[n - 1].samples);
        if (batch < 1 || batch > 1 << 30 || batch % unit)
            return textf("batch size %ld of '%.*s' is not a multiple of micro_batch_size %ld x data-parallel "
                         "size %ld; nearest: %s", batch, length, entry, c->micro_batch_size,
                         c->data_parallel_size, check_nearest_multiples(unit, batch));
        if (batch / unit > 65535)
            return textf("batch size %ld is %ld microbatches; at most 65535; raise micro_batch_size", batch,
                         batch / unit);
        step = keep_grow(step, sizeof *step * (size_t)(n + 1));
        step[n++] = (BatchStep){samples, batch};
    }
    if (!n)
        return text_copy("is empty; expected THRESHOLD:BATCH ...");
    c->batch_step = step;
    c->batch_steps = n;
    return NULL;
}

int64_t config_batch_at(const Config *cfg, int64_t samples)
{
    int i = cfg->batch_steps - 1;
    while (i && samples < cfg->batch_step[i].samples)
        i--;
    return cfg->batch_step[i].batch;
}

/* Counts whole steps from `consumed` samples on, segment by segment. Stops after *iterations steps or
 * before the step that would pass *samples, and sets both to what was reached. */
static void walk(const Config *cfg, int64_t consumed, int64_t *iterations, int64_t *samples)
{
    int64_t steps = 0;
    for (int i = 0; i < cfg->batch_steps && steps < *iterations; i++) {
        int64_t batch = cfg->batch_step[i].batch;
        int64_t end = i + 1 < cfg->batch_steps ? cfg->batch_step[i + 1].samples : INT64_MAX;
        if (consumed >= end)
            continue;                                  /* the step before it ended behind this one */
        int64_t n = (end - consumed - 1) / batch + 1;
        int64_t room = (*samples - consumed) / batch, left = *iterations - steps, run = n < room ? n : room;
        run = run < left ? run : left;
        steps += run;
        consumed += run * batch;
        if (run < n)
            break;
    }
    *iterations = steps;
    *samples = consumed;
}

int64_t config_samples_from(const Config *cfg, int64_t consumed, int64_t iterations)
{
    int64_t samples = INT64_MAX;
    walk(cfg, consumed, &iterations, &samples);
    return samples;
}

int64_t config_samples_after(const Config *c, int64_t n) { return config_samples_from(c, 0, n); }

int64_t config_samples_wanted(const Config *c, int64_t consumed, int64_t iterations)
{
    return c->train_samples == CFG_ABSENT ? config_samples_from(c, consumed, iterations) : c->train_samples;
}

int64_t config_batch_most(const Config *cfg)
{
    int64_t most = 0;
    for (int i = 0; i < cfg->batch_steps; i++)
        most = cfg->batch_step[i].batch > most ? cfg->batch_step[i].batch : most;
    return most;
}

int config_same_batches(const Config *now, const Config *saved)
{
    static const int key[] = {OPT_global_batch_size, OPT_step_batch_size_schedule, OPT_seq_length};
    int same = 1;
    for (size_t i = 0; same && i < sizeof key / sizeof *key; i++)
        same = config_same_text(now, saved, key[i]);
    return same;
}

int64_t config_iterations(const Config *cfg) { return config_iterations_from(cfg, 0, 0); }

int64_t config_iterations_from(const Config *cfg, int64_t done, int64_t samples)
{
    if (cfg->train_iters != CFG_ABSENT)
        return cfg->train_iters;
    int64_t iterations = INT64_MAX, end = cfg->train_samples;
    BUG_ON(end == CFG_ABSENT);
    if (samples >= end)
        return done;
    walk(cfg, samples, &iterations, &end);
    return done + iterations;
}
