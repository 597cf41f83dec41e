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

extern const char report_css[], report_js[];       /* report_page.c */

void card_open(FILE *f, const char *kind, const char *title, const char *unit)
{
    fprintf(f, "<section class=\"card%s\"><div class=\"head\"><h2>%s</h2><span class=\"unit\">%s</span>",
            kind, title, unit);
}

/* ---- Head and key numbers ---- */

static json_t *last_session(const Report *r)
{
    json_t *s = json_object_get(r->run, "sessions");
    return json_array_size(s) ? json_array_get(s, json_array_size(s) - 1) : NULL;
}

static void put_head(FILE *f, const Report *r)
{
    json_t *session = last_session(r);
    const char *why = text_of(session, "why");
    double parameters = number_of(r->run, "parameters"), tokens = last_of(r, C_consumed_tokens);
    char t[32], when[64] = "";
    double started = number_of(session, "started");
    if (isfinite(started)) {
        time_t at = (time_t)started;
        struct tm tm;
        strftime(when, sizeof when, "%-d %B %Y, %H:%M", localtime_r(&at, &tm));
    }
    fprintf(f, "<header>\n<div class=\"eyebrow\"><span>gridiron</span><span>");
    html_text(f, r->name);
    fprintf(f, "</span>");
    if (*when)
        fprintf(f, "<span>%s</span>", when);
    fprintf(f, "<span class=\"badge%s\">", !strncmp(why, "finished", 8) ? " ok" : "");
    html_text(f, *why ? why : "no end was recorded");
    fprintf(f, "</span></div>\n<h1>");
    if (parameters > 0)
        fprintf(f, "%s parameters", count_text(t, parameters));
    else
        html_text(f, r->name);
    if (isfinite(tokens))
        fprintf(f, " after %s tokens", count_text(t, tokens));
    fprintf(f, "</h1>\n<p class=\"lead\">");
    html_text(f, text_of(json_object_get(r->run, "facts"), "model"));
    fprintf(f, "</p>\n");
    double skipped = 0, nans = 0, lost = 0;
    for (int64_t i = 0; i < r->n; i++) {
        skipped += fmax(0, r->col[C_skipped_iterations][i]);
        nans += fmax(0, r->col[C_nan_iterations][i]);
        lost += !isfinite(r->col[C_lm_loss][i]);
    }
    if (skipped > 0 || nans > 0 || lost > 0)
        fprintf(f,
                "<p class=\"notice\">Steps skipped by the loss scaler: %.0f. Steps whose loss or gradient "
                "was not finite: %.0f. Recorded losses that are not finite: %.0f.</p>\n",
                skipped, nans, lost);
    fprintf(f, "</header>\n");
}

__attribute__((format(printf, 4, 5)))
static void tile(FILE *f, const char *name, const char *value, const char *fmt, ...)
{
    /* a value's unit is set smaller: what follows the first space */
    const char *space = strchr(value, ' ');
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    fprintf(f, "<div><dt>%s</dt><dd class=\"v\">%.*s", name,
            space ? (int)(space - value) : (int)strlen(value), value);
    if (space)
        fprintf(f, "<small>%s</small>", space);
    fprintf(f, "</dd><dd class=\"s\">%s</dd></div>\n", text);
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
                 grouped(g, r->eval_at[best]));
    }
    if (r->n) {
        snprintf(v, sizeof v, "%.4f", last_of(r, C_lm_loss));
        tile(f, "Training loss", v, "%.4f at iteration %s", r->col[C_lm_loss][0],
             grouped(g, r->col[C_iteration][0]));
    }
}

static void put_tiles(FILE *f, const Report *r)
{
    char v[32], t[32], u[32];
    double took = 0, total = number_of(r->run, "total_iterations");
    size_t i;
    json_t *s;
    json_array_foreach(json_object_get(r->run, "sessions"), i, s)
        took += fmax(0, number_of(s, "ended") - number_of(s, "started"));
    if (!r->n && !r->evals)
        return;
    fprintf(f, "<dl class=\"tiles\">\n");
    put_loss_tiles(f, r);
    if (r->n) {
        double mfu = last_of(r, C_mfu), tflops = median(r->col[C_tflops_per_device], r->n);
        char speed[48], use[32] = "";
        snprintf(speed, sizeof speed, "%s tokens/s", grouped(t, median(r->col[C_tokens_per_second], r->n)));
        if (isfinite(mfu))
            snprintf(use, sizeof use, ", MFU %.0f %%", 100 * median(r->col[C_mfu], r->n));
        if (isfinite(tflops))
            tile(f, "Throughput", speed, "median, %.3g TFLOP/s a device%s", tflops, use);
        else
            tile(f, "Throughput", speed, "median");
        tile(f, "Step time", ms_text(v, median(r->col[C_elapsed_ms], r->n)), "median, slowest %s",
             ms_text(t, largest(r->col[C_elapsed_ms], r->n)));
        if (total > 0)
            tile(f, "Iterations", grouped(v, last_of(r, C_iteration)), "of %s, %s samples", grouped(t, total),
                 count_text(u, last_of(r, C_consumed_samples)));
        else
            tile(f, "Iterations", grouped(v, last_of(r, C_iteration)), "%s samples",
                 count_text(u, last_of(r, C_consumed_samples)));
        tile(f, "Memory", bytes_text(v, largest(r->col[C_memory_bytes], r->n)), "most a process held");
    }
    if (took > 0) {
        size_t starts = json_array_size(json_object_get(r->run, "sessions"));
        char plural[48] = "from start to end";
        if (starts > 1)
            snprintf(plural, sizeof plural, "in %zu starts", starts);
        tile(f, "Time", duration_text(v, took), "%s", plural);
    }
    fprintf(f, "</dl>\n");
}

/* ---- Words: sample, facts, evaluations, configuration ---- */

static void put_sample(FILE *f, const Report *r)
{
    size_t n = json_array_size(r->samples), i;
    json_t *o;
    if (!n) {
        if (r->n) {
            card_open(f, " wide", "Sample", "");
            fprintf(f, "</div>\n<p class=\"note\">No text yet: what <code>train generate load=");
            html_text(f, r->name);
            fprintf(f, "</code> writes is shown here.</p></section>\n");
        }
        return;
    }
    card_open(f, " wide", "Sample", "text that the model wrote last; bold: what it was given");
    fprintf(f, "</div>\n");
    json_array_foreach(r->samples, i, o) {
        fprintf(f, "<blockquote><b>");
        html_text(f, text_of(o, "prompt"));
        fprintf(f, "</b>");
        html_text(f, text_of(o, "text"));
        fprintf(f, "</blockquote>\n<p class=\"note\">after iteration %.0f</p>\n", number_of(o, "iteration"));
    }
    fprintf(f, "</section>\n");
}

static void fact(FILE *f, const char *name, const char *value, int code)
{
    if (!*value)
        return;
    fprintf(f, "<tr><th>");
    html_text(f, name);
    fprintf(f, "</th><td class=\"text\">%s", code ? "<code>" : "");
    html_text(f, value);
    fprintf(f, "%s</td></tr>\n", code ? "</code>" : "");
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
    fprintf(f, "</div>\n<table>");
    json_object_foreach(json_object_get(r->run, "facts"), name, o)
        if (strcmp(name, "model"))
            fact(f, name, json_string_value(o) ? json_string_value(o) : "", 0);
    snprintf(text, sizeof text, "%s: %s, %.0f cores, %s, Linux %s", text_of(machine, "host"),
             text_of(machine, "cpu"), number_of(machine, "cores"),
             bytes_text(t, number_of(machine, "memory_bytes")), text_of(machine, "system"));
    fact(f, "machine", machine ? text : "", 0);
    json_array_foreach(json_object_get(r->run, "sessions"), i, o) {
        time_t at = (time_t)fmax(0, number_of(o, "started"));
        struct tm tm;
        int n = (int)strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", localtime_r(&at, &tm));
        double from = number_of(o, "from"), took = number_of(o, "ended") - number_of(o, "started");
        if (from > 0)
            n += snprintf(text + n, sizeof text - (size_t)n, ", from iteration %s", grouped(t, from));
        if (isfinite(took))
            n += snprintf(text + n, sizeof text - (size_t)n, ", for %s", duration_text(t, took));
        const char *why = text_of(o, "why");
        snprintf(text + n, sizeof text - (size_t)n, ": %s", *why ? why : "no end was recorded");
        fact(f, i ? "resumed" : "started", text, 0);
        fact(f, "command", text_of(o, "command"), 1);
        fact(f, "build", text_of(o, "build"), 1);
    }
    fprintf(f, "</table></section>\n");
}

static void put_evaluations(FILE *f, const Report *r)
{
    char t[32];
    if (!r->evals)
        return;
    fprintf(f, "<details class=\"card wide\"><summary>Evaluations</summary>"
               "<table><thead><tr><th>iteration</th><th class=\"n\">validation loss</th>"
               "<th class=\"n\">perplexity</th></tr></thead><tbody>\n");
    for (int64_t i = 0; i < r->evals; i++)
        fprintf(f, "<tr><td>%s</td><td class=\"n\">%.6f</td><td class=\"n\">%.6g</td></tr>\n",
                grouped(t, r->eval_at[i]), r->eval_loss[i], exp(r->eval_loss[i]));
    fprintf(f, "</tbody></table></details>\n");
}

static void put_page(FILE *f, const Report *r)
{
    fprintf(f, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
               "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
               "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
               "'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">\n<link rel=\"icon\" "
               "href=\"data:,\">\n<title>");
    html_text(f, r->name);
    fprintf(f, " \302\267 gridiron</title>\n<style>\n%s</style>\n</head>\n<body>\n<main>\n", report_css);
    put_head(f, r);
    put_tiles(f, r);
    fprintf(f, "<div class=\"grid\">\n");
    put_curves(f, r);
    put_memory(f, r);
    put_timeline(f, r);
    put_sample(f, r);
    put_facts(f, r);
    put_evaluations(f, r);
    if (r->config) {
        fprintf(f, "<details class=\"card wide\"><summary>Configuration</summary><pre>");
        html_text(f, r->config);
        fprintf(f, "</pre></details>\n");
    }
    fprintf(f, "</div>\n<footer>Made from metrics.jsonl, which holds every number with all its digits."
            "</footer>\n</main>\n<script>\n%s</script>\n</body>\n</html>\n", report_js);
}

int report_write(const char *run_dir, char why[WHY])
{
    Report r;
    char *page = NULL;
    size_t size = 0;
    report_read(&r, run_dir);
    FILE *f = open_memstream(&page, &size);
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
