/* report -- report.html: one page made from the files of a run directory */
#define _GNU_SOURCE
#include "page.h"
#include "console.h"
#include "report_data.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

/* ---- Head and key numbers ---- */

/* The moment as text; "": s is not known, or no time of a calendar. */
static const char *when_text(char text[64], const char *format, double s)
{
    int known = fabs(s) < 1e11;
    time_t at = known ? (time_t)s : 0;
    struct tm tm;
    *text = 0;
    if (known)
        strftime(text, 64, format, localtime_r(&at, &tm));
    return text;
}

static void put_head(FILE *f, const Report *r)
{
    json_t *sessions = json_object_get(r->run, "sessions"),
           *session = json_array_get(sessions, json_array_size(sessions) - 1);
    const char *why = report_text_of(session, "why");
    double parameters = report_number_of(r->run, "parameters"), tokens = report_last_of(r, C_consumed_tokens);
    char t[32], when[64];
    html_put(f, "<header>\n<div class='eyebrow'><span>gridiron</span><span>%s</span><span>%s</span><span "
             "class='badge%s'>%s</span></div>\n<h1>%s%s", r->name,
             when_text(when, "%-d %B %Y, %H:%M", report_number_of(session, "started")),
             strncmp(why, "finished", 8) ? "" : " ok", *why ? why : "no end was recorded",
             parameters > 0 ? report_count_text(t, parameters) : r->name,
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
        html_put(f, "<p class='notice'>Steps that the weights have not seen, skipped by the loss scaler or "
                 "by on_spike: %.0f. Steps whose loss or gradient was not finite: %.0f. Recorded losses "
                 "that are not finite: %.0f.</p>\n", skipped, nans, lost);
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
    int64_t last = r->evals - 1, best = 0;
    for (int64_t i = 1; i < r->evals; i++)
        if (isnan(r->eval_loss[best]) || r->eval_loss[i] < r->eval_loss[best])
            best = i;
    if (r->evals) {
        snprintf(v, sizeof v, "%.4f", r->eval_loss[last]);
        tile(f, "Validation loss", v,
             isnan(r->eval_loss[best]) ? "perplexity %.4g"
             : best == last            ? "perplexity %.4g, its lowest"
                                       : "perplexity %.4g, lowest %.4f at %s",
             exp(r->eval_loss[last]), r->eval_loss[best], report_grouped(g, r->eval_at[best]));
    }
    if (r->n) {
        snprintf(v, sizeof v, "%.4f", report_last_of(r, C_lm_loss));
        tile(f, "Training loss", v, "%.4f at iteration %s", r->col[C_lm_loss][0],
             report_grouped(g, r->col[C_iteration][0]));
    }
}

static void put_step_tiles(FILE *f, const Report *r)
{
    char v[48], t[32], u[32], more[80] = "";
    double tflops = report_median(r->col[C_tflops_per_device], r->n),
           mfu = report_median(r->col[C_mfu], r->n), total = report_number_of(r->run, "total_iterations");
    int n = isfinite(tflops) ? snprintf(more, sizeof more, ", %.3g TFLOP/s a device", tflops) : 0;
    if (isfinite(tflops) && isfinite(report_last_of(r, C_mfu)))
        snprintf(more + n, sizeof more - (size_t)n, ", MFU %.0f %%", 100 * mfu);
    snprintf(v, sizeof v, "%s tokens/s", report_grouped(t, report_median(r->col[C_tokens_per_second], r->n)));
    tile(f, "Throughput", v, "median%s", more);
    tile(f, "Step time", report_ms_text(u, report_median(r->col[C_elapsed_ms], r->n)), "median, slowest %s",
         report_ms_text(t, report_largest(r->col[C_elapsed_ms], r->n)));
    snprintf(more, sizeof more, total > 0 ? "of %s, " : "", report_grouped(t, total));
    tile(f, "Iterations", report_grouped(u, report_last_of(r, C_iteration)), "%s%s samples", more,
         report_count_text(t, report_last_of(r, C_consumed_samples)));
    tile(f, "Memory", report_bytes_text(t, report_largest(r->col[C_memory_bytes], r->n)),
         "most a process held");
}

static void put_tiles(FILE *f, const Report *r)
{
    char v[32];
    json_t *sessions = json_object_get(r->run, "sessions");
    size_t starts = json_array_size(sessions);
    const json_t *last = json_array_get(sessions, starts - 1);
    /* since the first start; a start that died has no end of its own */
    double took = report_number_of(last, "ended") - report_number_of(last, "origin");
    if (!r->n && !r->evals)
        return;
    html_put(f, "<dl class='tiles'>\n");
    put_loss_tiles(f, r);
    if (r->n)
        put_step_tiles(f, r);
    if (took > 0)
        tile(f, "Time", console_duration(v, took), starts > 1 ? "in %d starts" : "from start to end",
             (int)starts);
    if (isfinite(report_last_of(r, C_goodput))) {
        int failures = (int)json_array_size(r->failures);
        snprintf(v, sizeof v, "%.1f %%", 100 * report_last_of(r, C_goodput));
        tile(f, "Goodput", v, "steps that count, of the time; %d failure%s", failures,
             failures == 1 ? "" : "s");
    }
    html_put(f, "</dl>\n");
}

/* ---- Memory: planned and held bytes by category ---- */

/* Prints a row. A NAN leaves its cell empty. */
static void memory_row(FILE *f, const char *css, const char *name, double planned, double used, double most)
{
    char t[32], u[32];
    html_put(f, "<tr class='%s'><td>%s</td><td class='mem'><div><span class='a faint' style='width:%.2f%%'>"
             "</span><span class='a' style='width:%.2f%%'></span></div></td><td class='n'>%s</td><td "
             "class='n'>%s</td></tr>\n", css, name, 100 * fmax(0, planned) / most, 100 * fmax(0, used) / most,
             isfinite(planned) ? report_bytes_text(t, planned) : "",
             isfinite(used) ? report_bytes_text(u, used) : "");
}

/* Whether a category is a part of the total. */
static int is_part(const char *name) { return strcmp(name, "total") && strcmp(name, "host"); }

static void put_memory(FILE *f, const Report *r)
{
    static const Key keys[] = {{"a faint", "planned", NULL}, {"a", "held", NULL}};
    json_t *memory = json_object_get(r->run, "memory"), *o;
    const char *name;
    double plan = report_number_of(json_object_get(memory, "total"), "planned"), sum = 0, most = 0;
    double host = report_number_of(json_object_get(memory, "host"), "planned");
    double resident = report_largest(r->col[C_memory_bytes], r->n);
    if (!json_object_size(memory))
        return;
    json_object_foreach(memory, name, o) {
        sum += is_part(name) ? fmax(0, report_number_of(o, "planned")) : 0;
        most = fmax(most, fmax(report_number_of(o, "planned"), report_number_of(o, "used")));
    }
    plan = isfinite(plan) ? plan : sum;            /* older runs have no total */
    most = fmax(most, fmax(plan, resident));
    card_open(f, "", "Memory", "of the process with most");
    html_keys(f, keys, 2);
    html_put(f, "<table><thead><tr><th></th><th></th><th class='n'>planned</th><th class='n'>held at most"
             "</th></tr></thead><tbody>\n");
    json_object_foreach(memory, name, o)
        if (is_part(name))
            memory_row(f, "", name, report_number_of(o, "planned"), report_number_of(o, "used"), most);
    memory_row(f, "total", "in all", plan, resident, most);
    if (host > 0)
        memory_row(f, "", "of the host", host, NAN, most);
    html_put(f, "</tbody></table>\n<p class='note'>What the process holds is known as a whole; the program "
             "itself and its libraries are in it.</p>\n");
    card_close(f);
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
    json_t *machine = json_object_get(r->run, "machine"), *facts = json_object_get(r->run, "facts"), *o;
    const char *name;
    char text[512], t[64], from[64], took[64];
    size_t i;
    if (!r->run)
        return;
    card_open(f, " wide", "This run", "");
    html_put(f, "<table>");
    json_object_foreach(facts, name, o)
        if (strcmp(name, "model"))
            fact(f, "", name, report_text_of(facts, name));
    snprintf(text, sizeof text, "%s: %s, %.0f cores, %s, Linux %s", report_text_of(machine, "host"),
             report_text_of(machine, "cpu"), report_number_of(machine, "cores"),
             report_bytes_text(t, report_number_of(machine, "memory_bytes")),
             report_text_of(machine, "system"));
    fact(f, "", "machine", machine ? text : "");
    json_array_foreach(json_object_get(r->run, "sessions"), i, o) {
        double start = report_number_of(o, "started"), s = report_number_of(o, "ended") - start,
               at = report_number_of(o, "from");
        const char *why = report_text_of(o, "why");
        snprintf(from, sizeof from, at > 0 ? ", from iteration %s" : "", report_grouped(t, at));
        snprintf(took, sizeof took, isfinite(s) ? ", for %s" : "", console_duration(t, s));
        snprintf(text, sizeof text, "%s%s%s: %s", when_text(t, "%Y-%m-%d %H:%M:%S", fmax(0, start)), from,
                 took, *why ? why : "no end was recorded");
        fact(f, "", i ? "resumed" : "started", text);
        fact(f, "code", "command", report_text_of(o, "command"));
        fact(f, "code", "build", report_text_of(o, "build"));
    }
    html_put(f, "</table>");
    card_close(f);
}

/* Prints what the supervisor wrote of each death: when, why, what it cost, where the run went on. */
static void put_failures(FILE *f, const Report *r)
{
    size_t i;
    json_t *o;
    char t[64], lost[32], on[64];
    html_put(f, "<details class='card wide'><summary>Failures and restarts</summary><table>");
    json_array_foreach(r->failures, i, o) {
        double at = report_number_of(o, "iteration"), s = report_number_of(o, "lost_s");
        snprintf(on, sizeof on, at > 0 ? "went on after iteration %.0f" : at == 0 ? "began again"
                                                                        : "was not started again", at);
        html_put(f, "<tr><th>%s</th><td class='text'>%s; %s lost; %s</td></tr>\n",
                 when_text(t, "%Y-%m-%d %H:%M:%S", report_number_of(o, "time")), report_text_of(o, "cause"),
                 report_ms_text(lost, 1e3 * s), on);
    }
    html_put(f, "</table></details>\n");
}

static void put_spikes(FILE *f, const Report *r)
{
    size_t i;
    json_t *o;
    html_put(f, "<details class='card wide'><summary>Spikes</summary><table>");
    json_array_foreach(r->spikes, i, o) {
        double back = report_number_of(o, "rewound_to"), first = report_number_of(o, "spike_first_sample");
        char t[64] = "";
        if (isfinite(back))
            snprintf(t, sizeof t, " to iteration %.0f", back);
        html_put(f, "<tr><th>iteration %.0f</th><td class='text'>%s%s; loss %.6g, limit %.6g; gradient norm "
                 "%.6g, limit %.6g; samples %.0f to %.0f</td></tr>\n", report_number_of(o, "iteration"),
                 report_text_of(o, "spike"), t, report_number_of(o, "spike_loss"),
                 report_number_of(o, "spike_loss_limit"), report_number_of(o, "spike_grad_norm"),
                 report_number_of(o, "spike_grad_norm_limit"), first,
                 first + report_number_of(o, "spike_samples") - 1);
    }
    html_put(f, "</table></details>\n");
}

static void put_evaluations(FILE *f, const Report *r)
{
    char t[32], *text;
    size_t size;
    FILE *rows = xmemstream(&text, &size);
    fprintf(rows, "iteration\tvalidation loss\tperplexity\n");
    for (int64_t i = 0; i < r->evals; i++)
        fprintf(rows, "%s\t%.6f\t%.6g\n", report_grouped(t, r->eval_at[i]), r->eval_loss[i],
                exp(r->eval_loss[i]));
    fclose(rows);
    html_put(f, "<details class='card wide'><summary>Evaluations</summary>");
    html_table(f, "", text);
    html_put(f, "</details>\n");
}

static void put_page(FILE *f, const Report *r)
{
    page_open(f, r->name);
    put_head(f, r);
    put_tiles(f, r);
    html_put(f, "<div class='grid'>\n");
    report_put_curves(f, r);
    report_put_routers(f, r);
    report_put_ranks(f, r);
    put_memory(f, r);
    report_put_losses(f, r);
    report_put_timeline(f, r);
    put_sample(f, r);
    put_facts(f, r);
    if (json_array_size(r->failures))
        put_failures(f, r);
    if (json_array_size(r->spikes))
        put_spikes(f, r);
    if (r->evals)
        put_evaluations(f, r);
    if (r->config)
        html_put(f, "<details class='card wide'><summary>Configuration</summary><pre>%s</pre></details>\n",
                 r->config);
    html_put(f, "</div>\n<footer>Made from metrics.jsonl, which holds every number with all its digits."
             "</footer>\n");
    page_close(f);
}

/* When a file of run_dir was last written, in seconds; -1: it is not there. */
static double written(const char *run_dir, const char *name)
{
    struct stat st;
    char *file = xasprintf("%s/%s", run_dir, name);
    int there = stat(file, &st) == 0;
    free(file);
    return there ? (double)st.st_mtim.tv_sec + 1e-9 * (double)st.st_mtim.tv_nsec : -1;
}

int report_lacks(const char *run_dir)
{
    return written(run_dir, "report.html") < written(run_dir, "metrics.jsonl");
}

int report_write(const char *run_dir, char why[WHY])
{
    Report r;
    char *page;
    size_t size;
    FILE *f = xmemstream(&page, &size);
    report_read(&r, run_dir);
    put_page(f, &r);
    fclose(f);
    report_free(&r);
    int ok = file_replace_in(run_dir, "report.html", page, (int64_t)size, why);
    free(page);
    return ok;
}
