/* report -- report.html: one page made from the files of a run directory */
#define _GNU_SOURCE
#include "chart.h"
#include "console.h"
#include "report_data.h"
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- Head and key numbers ---- */

static json_t *last_session(const Report *r)
{
    json_t *s = json_object_get(r->run, "sessions");
    return json_array_size(s) ? json_array_get(s, json_array_size(s) - 1) : NULL;
}

static void put_head(FILE *f, const Report *r)
{
    json_t *session = last_session(r);
    const char *why = report_text_of(session, "why");
    double parameters = report_number_of(r->run, "parameters"), tokens = report_last_of(r, C_consumed_tokens);
    char t[32], when[64] = "";
    double started = report_number_of(session, "started");
    if (isfinite(started)) {
        time_t at = (time_t)started;
        struct tm tm;
        strftime(when, sizeof when, "%-d %B %Y, %H:%M", localtime_r(&at, &tm));
    }
    html_put(f, "<header>\n<div class='eyebrow'><span>gridiron</span><span>%s</span><span>%s</span><span "
             "class='badge%s'>%s</span></div>\n<h1>", r->name, when, strncmp(why, "finished", 8) ? "" : " ok",
             *why ? why : "no end was recorded");
    html_put(f, "%s%s", parameters > 0 ? report_count_text(t, parameters) : r->name,
             parameters > 0 ? " parameters" : "");
    if (isfinite(tokens))
        html_put(f, " after %s tokens", report_count_text(t, tokens));
    html_put(f, "</h1>\n<p class='lead'>%s</p>\n", report_text_of(json_object_get(r->run, "facts"), "model"));
    double skipped = 0, nans = 0, lost = 0;
    for (int64_t i = 0; i < r->n; i++) {
        skipped += fmax(0, r->col[C_skipped_iterations][i]);
        nans += fmax(0, r->col[C_nan_iterations][i]);
        lost += !isfinite(r->col[C_lm_loss][i]);
    }
    if (skipped > 0 || nans > 0 || lost > 0)
        html_put(f, "<p class='notice'>Steps skipped by the loss scaler: %.0f. Steps whose loss or gradient "
                 "was not finite: %.0f. Recorded losses that are not finite: %.0f.</p>\n", skipped, nans,
                 lost);
    html_put(f, "</header>\n");
}

__attribute__((format(printf, 4, 5)))
static void tile(FILE *f, const char *name, const char *value, const char *fmt, ...)
{
    /* The unit, which follows the first space of value, is printed smaller. */
    char number[64];
    va_list ap;
    snprintf(number, sizeof number, "%s", value);
    number[strcspn(number, " ")] = 0;
    html_put(f, "<div><dt>%s</dt><dd class='v'>%s<small>%s</small></dd><dd class='s'>", name, number,
             value + strlen(number));
    va_start(ap, fmt);
    html_vput(f, fmt, ap);
    va_end(ap);
    html_put(f, "</dd></div>\n");
}

static void put_loss_tiles(FILE *f, const Report *r)
{
    char v[32], g[32];
    if (r->evals) {
        int64_t best = 0;
        for (int64_t i = 1; i < r->evals; i++)
            if (!(r->eval_loss[i] >= r->eval_loss[best]))
                best = i;
        double loss = r->eval_loss[r->evals - 1];
        snprintf(v, sizeof v, "%.4f", loss);
        if (best == r->evals - 1)
            tile(f, "Validation loss", v, "perplexity %.4g, its lowest", exp(loss));
        else
            tile(f, "Validation loss", v, "perplexity %.4g, lowest %.4f at %s", exp(loss), r->eval_loss[best],
                 report_grouped(g, r->eval_at[best]));
    }
    if (r->n) {
        snprintf(v, sizeof v, "%.4f", report_last_of(r, C_lm_loss));
        tile(f, "Training loss", v, "%.4f at iteration %s", r->col[C_lm_loss][0],
             report_grouped(g, r->col[C_iteration][0]));
    }
}

static void put_tiles(FILE *f, const Report *r)
{
    char v[32], t[32], u[32];
    double took = 0, total = report_number_of(r->run, "total_iterations");
    size_t i;
    json_t *s;
    json_array_foreach(json_object_get(r->run, "sessions"), i, s)
        took += fmax(0, report_number_of(s, "ended") - report_number_of(s, "started"));
    if (!r->n && !r->evals)
        return;
    html_put(f, "<dl class='tiles'>\n");
    put_loss_tiles(f, r);
    if (r->n) {
        double mfu = report_last_of(r, C_mfu), tflops = report_median(r->col[C_tflops_per_device], r->n);
        char speed[48], use[80] = "", of[48] = "";
        snprintf(speed, sizeof speed, "%s tokens/s",
                 report_grouped(t, report_median(r->col[C_tokens_per_second], r->n)));
        int n = isfinite(tflops) ? snprintf(use, sizeof use, ", %.3g TFLOP/s a device", tflops) : 0;
        if (isfinite(tflops) && isfinite(mfu))
            snprintf(use + n, sizeof use - (size_t)n, ", MFU %.0f %%",
                     100 * report_median(r->col[C_mfu], r->n));
        tile(f, "Throughput", speed, "median%s", use);
        tile(f, "Step time", report_ms_text(v, report_median(r->col[C_elapsed_ms], r->n)),
             "median, slowest %s", report_ms_text(t, report_largest(r->col[C_elapsed_ms], r->n)));
        if (total > 0)
            snprintf(of, sizeof of, "of %s, ", report_grouped(t, total));
        tile(f, "Iterations", report_grouped(v, report_last_of(r, C_iteration)), "%s%s samples", of,
             report_count_text(u, report_last_of(r, C_consumed_samples)));
        tile(f, "Memory", report_bytes_text(v, report_largest(r->col[C_memory_bytes], r->n)),
             "most a process held");
    }
    size_t starts = json_array_size(json_object_get(r->run, "sessions"));
    if (took > 0 && starts > 1)
        tile(f, "Time", console_duration(v, took), "in %d starts", (int)starts);
    else if (took > 0)
        tile(f, "Time", console_duration(v, took), "from start to end");
    html_put(f, "</dl>\n");
}

/* ---- Words: sample, facts, evaluations, configuration ---- */

static void put_sample(FILE *f, const Report *r)
{
    size_t i;
    json_t *o;
    if (!json_array_size(r->samples) && !r->n)
        return;
    card_open(f, " wide", "Sample", "text that the model wrote last; bold: what it was given");
    if (!json_array_size(r->samples))
        html_put(f, "<p class='note'>No text yet: what <code>train generate load=%s</code> writes is shown "
                 "here.</p>\n", r->name);
    json_array_foreach(r->samples, i, o)
        html_put(f, "<blockquote><b>%s</b>%s</blockquote>\n<p class='note'>after iteration %.0f</p>\n",
                 report_text_of(o, "prompt"), report_text_of(o, "text"), report_number_of(o, "iteration"));
    card_close(f);
}

static void fact(FILE *f, const char *css, const char *name, const char *value)
{
    if (*value)
        html_put(f, "<tr><th>%s</th><td class='text %s'>%s</td></tr>\n", name, css, value);
}

static void put_facts(FILE *f, const Report *r)
{
    json_t *machine = json_object_get(r->run, "machine"), *o;
    const char *name;
    char text[512], t[32];
    size_t i;
    if (!r->run)
        return;
    card_open(f, " wide", "This run", "");
    html_put(f, "<table>");
    json_object_foreach(json_object_get(r->run, "facts"), name, o)
        if (strcmp(name, "model"))
            fact(f, "", name, json_string_value(o) ? json_string_value(o) : "");
    snprintf(text, sizeof text, "%s: %s, %.0f cores, %s, Linux %s", report_text_of(machine, "host"),
             report_text_of(machine, "cpu"), report_number_of(machine, "cores"),
             report_bytes_text(t, report_number_of(machine, "memory_bytes")),
             report_text_of(machine, "system"));
    fact(f, "", "machine", machine ? text : "");
    json_array_foreach(json_object_get(r->run, "sessions"), i, o) {
        time_t at = (time_t)fmax(0, report_number_of(o, "started"));
        struct tm tm;
        int n = (int)strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", localtime_r(&at, &tm));
        double from = report_number_of(o, "from"),
               took = report_number_of(o, "ended") - report_number_of(o, "started");
        if (from > 0)
            n += snprintf(text + n, sizeof text - (size_t)n, ", from iteration %s", report_grouped(t, from));
        if (isfinite(took))
            n += snprintf(text + n, sizeof text - (size_t)n, ", for %s", console_duration(t, took));
        const char *why = report_text_of(o, "why");
        snprintf(text + n, sizeof text - (size_t)n, ": %s", *why ? why : "no end was recorded");
        fact(f, "", i ? "resumed" : "started", text);
        fact(f, "code", "command", report_text_of(o, "command"));
        fact(f, "code", "build", report_text_of(o, "build"));
    }
    html_put(f, "</table>");
    card_close(f);
}

static void put_evaluations(FILE *f, const Report *r)
{
    char t[32];
    if (!r->evals)
        return;
    html_put(f, "<details class='card wide'><summary>Evaluations</summary>");
    html_table(f, "", "iteration|validation loss|perplexity");
    for (int64_t i = 0; i < r->evals; i++)
        html_put(f, "<tr><td>%s</td><td class='n'>%.6f</td><td class='n'>%.6g</td></tr>\n",
                 report_grouped(t, r->eval_at[i]), r->eval_loss[i], exp(r->eval_loss[i]));
    html_table_end(f);
    html_put(f, "</details>\n");
}

static void put_page(FILE *f, const Report *r)
{
    page_open(f, r->name);
    put_head(f, r);
    put_tiles(f, r);
    html_put(f, "<div class='grid'>\n");
    report_put_curves(f, r);
    report_put_memory(f, r);
    report_put_timeline(f, r);
    put_sample(f, r);
    put_facts(f, r);
    put_evaluations(f, r);
    if (r->config)
        html_put(f, "<details class='card wide'><summary>Configuration</summary><pre>%s</pre></details>\n",
                 r->config);
    html_put(f, "</div>\n<footer>Made from metrics.jsonl, which holds every number with all its digits."
             "</footer>\n");
    page_close(f);
}

int report_write(const char *run_dir, char why[WHY])
{
    Report r;
    char *page = NULL;
    size_t size = 0;
    report_read(&r, run_dir);
    FILE *f = xmemstream(&page, &size);
    put_page(f, &r);
    fclose(f);
    int dir = file_open_dir(AT_FDCWD, run_dir, 0, why), ok = 0;
    if (dir >= 0) {
        ok = file_replace(dir, "report.html", page, (int64_t)size, why);
        close(dir);
    }
    report_free(&r);
    free(page);
    return ok;
}
