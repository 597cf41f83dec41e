/* sweep_visits -- launches of layouts: kept in a file, read again, summed up for each layout */
#include "sweep_visits.h"
#include "base.h"
#include "file.h"
#include "json_number.h"
#include "jsonl.h"
#include "launch.h"
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void visits_add(Visits *all, const Visit *v)
{
    Reference *beside = xcalloc((size_t)v->n + 1, sizeof *beside);
    all->v = xgrow(all->v, all->n, sizeof *all->v);
    Visit *new = &all->v[all->n++];
    *new = *v;
    for (int i = 0; i < v->n; i++)
        beside[i] = v->step[i].beside;
    if (v->n)
        new->beside = drift_median(beside, v->n);
    free(beside);
}

void visits_close(Visits *all)
{
    for (int i = 0; i < all->n; i++)
        free(all->v[i].step);
    free(all->v);
    *all = (Visits){0};
}

/* ---- the file ---- */

static char *hex(uint64_t x) { return xasprintf("%016llx", (unsigned long long)x); }

static int same(const json_t *j, const char *key, uint64_t x)
{
    const char *text = json_string_value(json_object_get(j, key));
    return text && strtoull(text, NULL, 16) == x && strlen(text) == 16;
}

static double number_at(const json_t *j, const char *key, size_t i)
{
    return json_number_value(json_array_get(json_object_get(j, key), i));
}

/* Reads the steps of a launch, on the heap. Returns their number; 0: a time is missing or no time. */
static int read_steps(const json_t *j, TimedStep **step)
{
    size_t n = json_array_size(json_object_get(j, "steps_ms"));
    TimedStep *s = xcalloc(n + 1, sizeof *s);
    int right = 1;
    for (size_t i = 0; i < n; i++) {
        s[i] = (TimedStep){number_at(j, "steps_ms", i), {number_at(j, "reference_product_ms", i),
                                                         number_at(j, "reference_copy_ms", i)}};
        right &= s[i].ms > 0 && s[i].beside.product >= 0 && s[i].beside.copy >= 0;
    }
    *step = s;
    return right ? (int)n : 0;
}

/* Whether a launch that ended so may end otherwise the next time: memory was short, or a rank died. Code
 * 128 + n: mpirun's for a rank that signal n ended. */
static int passes(int64_t code) { return code == EXIT_RESOURCE || code == EXIT_COMM || code > 128; }

typedef struct { Visits *all; const Sweep *s; } Recall;

static void recall_line(void *recall, const json_t *j)
{
    const Recall *r = recall;
    const Sweep *s = r->s;
    const char *name = json_string_value(json_object_get(j, "id"));
    const char *why = json_string_value(json_object_get(j, "reason"));
    uint64_t id = name ? strtoull(name, NULL, 16) : 0;
    double late = json_number_value(json_object_get(j, "late_s"));
    int64_t code = json_integer_value(json_object_get(j, "code"));
    if (!name || !same(j, "sweep", s->identity) || passes(code) ||
        json_integer_value(json_object_get(j, "steps")) < s->steps || (late > 0 && late < s->timeout))
        return;
    for (int i = 0; i < s->n; i++) {
        Visit v = {.layout = i};
        if (s->layout[i].id != id)
            continue;
        v.n = read_steps(j, &v.step);
        snprintf(v.why, sizeof v.why, "%s", why ? why : "");
        if (v.n || why)
            visits_add(r->all, &v);
        else
            free(v.step);
    }
}

void visits_recall(Visits *all, const Sweep *s, int fd, const char *path)
{
    int last = jsonl_each(path, recall_line, &(Recall){all, s});
    if (last < 0 || (last && last != '\n' && !file_append(fd, "\n", 1)))
        die(EXIT_RESOURCE, "write", "cannot read and write %s: %s; change: free space, or -o with another "
            "folder", path, strerror(errno));
}

static void put_steps(json_t *j, const Visit *v)
{
    json_t *ms = json_array(), *product = json_array(), *copy = json_array();
    for (int i = 0; i < v->n; i++) {
        json_array_append_new(ms, json_number(v->step[i].ms));
        json_array_append_new(product, json_number(v->step[i].beside.product));
        json_array_append_new(copy, json_number(v->step[i].beside.copy));
    }
    json_object_set_new(j, "steps_ms", ms);
    json_object_set_new(j, "reference_product_ms", product);
    json_object_set_new(j, "reference_copy_ms", copy);
}

void visits_keep(const Sweep *s, const Visit *v, int fd, const char *path)
{
    LayoutArg text[LAYOUT_ARGS];
    const SweepLayout *l = &s->layout[v->layout];
    int n = layout_args(s, l, text);
    char *sweep = hex(s->identity), *id = hex(l->id);
    json_t *names = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(names, json_string(text[i]));
    json_t *j = json_pack("{s:s s:s s:i s:i s:o s:o}", "sweep", sweep, "id", id, "world", s->world, "steps",
                          s->steps, "predicted_ms", json_number(l->predicted), "layout", names);
    if (v->n)
        put_steps(j, v);
    else
        json_object_set_new(j, "reason", json_string(v->why));
    json_object_set_new(j, "code", json_integer(v->code));
    if (v->code == LAUNCH_LATE)
        json_object_set_new(j, "late_s", json_number(s->timeout));
    char *line = json_dumps(j, JSON_COMPACT), *whole = xasprintf("%s\n", line);
    if (!file_append(fd, whole, strlen(whole)) || fsync(fd))
        die(EXIT_RESOURCE, "write", "cannot write %s: %s; change: free space, or -o with another folder",
            path, strerror(errno));
    free(whole);
    free(line);
    json_decref(j);
    free(sweep);
    free(id);
}

/* ---- what they say about the layouts ---- */

/* The references beside the launches from `from` on that have steps, on the heap.
 *   *n   out  their number
 *   *at  out  the number of launch `which` among them */
static Reference *references(const Visits *all, int from, int which, int *n, int *at)
{
    Reference *r = xcalloc((size_t)all->n + 1, sizeof *r);
    *n = *at = 0;
    for (int i = from; i < all->n; i++) {
        *at = i == which ? *n : *at;
        if (all->v[i].n)
            r[(*n)++] = all->v[i].beside;
    }
    return r;
}

static int fits(const Sweep *s, const Visits *all, int from, int which)
{
    int n, at;
    Reference *r = references(all, from, which, &n, &at);
    int fit = !all->v[which].n || drift_fits(r, n, at, s->base);
    free(r);
    return fit;
}

int visits_fit(const Sweep *s, const Visits *all, int from)
{
    return all->n <= from || fits(s, all, from, all->n - 1);
}

/* Without a calibration times are in units of the launches' own median. */
static void own_base(Sweep *s, const Visits *all)
{
    int n, at;
    Reference *r = references(all, 0, 0, &n, &at);
    if (n)
        s->base.reference = drift_median(r, n);
    free(r);
}

/* Sums up the launches of a layout. use: [all->n] bool: it counts. */
static void settle_layout(Sweep *s, const Visits *all, int at, const uint8_t *use)
{
    SweepLayout *l = &s->layout[at];
    Spread *each = xcalloc((size_t)all->n + 1, sizeof *each);
    TimedStep *clock = xcalloc((size_t)all->n + 1, sizeof *clock);
    int n = 0;
    l->rounds = 0;
    l->why[0] = 0;
    for (int i = 0; i < all->n; i++) {
        const Visit *v = &all->v[i];
        if (v->layout != at || !use[i])
            continue;
        l->rounds++;
        if (v->n) {
            each[n] = drift_steps(v->step, v->n, s->base);
            clock[n++].ms = drift_steps(v->step, v->n, (Calibrated){0}).ms;
        } else {
            snprintf(l->why, sizeof l->why, "%s", v->why);
        }
    }
    l->measured = n ? drift_launches(each, n) : (Spread){0};
    l->raw = n ? drift_steps(clock, n, (Calibrated){0}).ms : 0;
    if (n)                                     /* failed: none of its launches was measured */
        l->why[0] = 0;
    free(each);
    free(clock);
}

static void mark_equals(Sweep *s)
{
    const SweepLayout *best = NULL;
    for (int i = 0; i < s->n; i++)
        if (layout_measured(&s->layout[i]) > 0 &&
            (!best || layout_measured(&s->layout[i]) < layout_measured(best)))
            best = &s->layout[i];
    for (int i = 0; best && i < s->n; i++)
        s->layout[i].equal = layout_measured(&s->layout[i]) > 0 &&
                             drift_equal(s->layout[i].measured, best->measured);
}

void visits_settle(Sweep *s, const Visits *all, int last)
{
    uint8_t *use = xcalloc((size_t)all->n + 1, 1), *some = xcalloc((size_t)s->n + 1, 1);
    if (!s->calibrated)
        own_base(s, all);
    for (int i = 0; i < all->n; i++) {
        use[i] = !s->calibrations || fits(s, all, 0, i);
        some[all->v[i].layout] |= use[i];
    }
    for (int i = 0; last && i < all->n; i++)
        use[i] |= !some[all->v[i].layout];
    for (int i = 0; i < s->n; i++)
        settle_layout(s, all, i, use);
    mark_equals(s);
    free(use);
    free(some);
}
