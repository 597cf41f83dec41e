/* console -- the progress line and the live line of rank 0 */
#define _GNU_SOURCE
#include "console.h"
#include "file.h"
#include "flight.h"
#include "job.h"
#include <math.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define REDRAW_S 0.1

/* A write waits for a user before a pager that stands still, and on a terminal that is held. The watch then
 * has the limit of what is no step. */
static void emit(Console *c, const char *text, size_t n)
{
    int held = poll(&(struct pollfd){.fd = c->fd, .events = POLLOUT}, 1, 0) == 0;
    FlightPhase phase = held ? flight_phase(PHASE_OTHER) : PHASE_OTHER;
    fflush(stdout);                                /* text still in printf's buffer comes first */
    c->lost += !file_append(c->fd, text, n);
    if (held)
        flight_phase(phase);
}

/* Wipes the live line before other text is printed; the next step draws it again. */
static void clear(void *console)
{
    Console *c = console;
    if (c->shown)
        emit(c, "\r\033[K", 4);
    c->shown = 0;
}

/* Whether text written to fd ends up on a terminal. mpirun gives every rank a pseudo-terminal, so isatty
 * is true under it even when the output goes to a file. scripts/launch sets GRIDIRON_TERMINAL to 1 or 0;
 * other launchers get plain lines. */
static int on_terminal(int fd)
{
    const char *launcher = getenv("GRIDIRON_TERMINAL");
    int rank;
    return launcher ? *launcher == '1' : job_launched(&rank) == 1 && isatty(fd);
}

void console_open(Console *c, int fd, int style, int64_t total_iterations)
{
    const char *term = getenv("TERM"), *no = getenv("NO_COLOR"), *lang = getenv("LC_ALL");
    if (!lang || !*lang)
        lang = getenv("LC_CTYPE");
    if (!lang || !*lang)
        lang = getenv("LANG");
    int dumb = !term || !*term || !strcmp(term, "dumb");
    *c = (Console){.fd = fd, .total = total_iterations, .first_iteration = -1};
    c->live = style == LOG_STYLE_LIVE || (style == LOG_STYLE_AUTO && on_terminal(fd) && !dumb);
    c->colour = c->live && !dumb && !(no && *no);
    c->utf8 = lang && (strcasestr(lang, "utf-8") || strcasestr(lang, "utf8"));
    if (c->live)
        message_hook(clear, c);
}

/* Seconds until the last iteration at the pace so far, evaluations and saves included; -1: not known. */
static double time_left(const Console *c)
{
    if (c->first_iteration < 0)
        return -1;
    int64_t left = c->total - c->m.iteration, done = c->m.iteration - c->first_iteration;
    /* The first step is slower (memory is touched for the first time): it counts only while alone. */
    double pace = done > 0 ? (c->last_end - c->first_end) / (double)done : c->m.elapsed_ms * 1e-3;
    return left > 0 ? pace * (double)left : 0;
}

const char *console_duration(char text[32], double seconds)
{
    if (!(seconds >= 0 && seconds < 1e9))
        return strcpy(text, "n/a");
    int64_t s = (int64_t)(seconds + 0.5), d = s / 86400, h = s / 3600 % 24, m = s / 60 % 60;
    int n = d ? snprintf(text, 32, "%lldd ", (long long)d) : 0;
    if (s >= 3600)
        n += snprintf(text + n, 32 - (size_t)n, d ? "%02d:%02d" : "%d:%02d", (int)h, (int)m);
    else
        n += snprintf(text + n, 32 - (size_t)n, "%d", (int)m);
    snprintf(text + n, 32 - (size_t)n, ":%02d", (int)(s % 60));
    return text;
}

/* ---- The live line ---- */

/* A line being built: n bytes, and cols columns on the screen (escapes take none, UTF-8 takes fewer). */
typedef struct { char text[2048]; int n, cols; } Line;

__attribute__((format(printf, 2, 3))) static void add(Line *l, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int room = (int)sizeof l->text - l->n, n = vsnprintf(l->text + l->n, (size_t)room, fmt, ap);
    va_end(ap);
    n = n < room ? n : room - 1;
    for (int i = l->n; i < l->n + n; i++)
        l->cols += (l->text[i] & 0xc0) != 0x80;
    l->n += n;
}

static void add_style(Line *l, const Console *c, const char *code)
{
    if (c->colour)
        l->n += snprintf(l->text + l->n, sizeof l->text - (size_t)l->n, "\033[%sm", code);
}

static void add_bar(Line *l, const Console *c, int width, double share)
{
    int half = (int)(share * 2 * width + 0.5);     /* drawn in half columns */
    half = half < 0 ? 0 : half > 2 * width ? 2 * width : half;
    add_style(l, c, "36");
    for (int i = 0; i < half / 2; i++)
        add(l, "%s", c->utf8 ? "━" : "=");
    if (half & 1)
        add(l, "%s", c->utf8 ? "╸" : "-");
    add_style(l, c, "0;2");
    for (int i = (half + 1) / 2; i < width; i++)
        add(l, "%s", c->utf8 ? "─" : ".");
    add_style(l, c, "0");
}

static int screen_width(const Console *c)
{
    struct winsize w;
    return !ioctl(c->fd, TIOCGWINSZ, &w) && w.ws_col ? w.ws_col : 80;
}

/* v with three digits, as many as an eye can follow: 950, 12.4k, 1.3M. */
static const char *short_count(char text[16], double v)
{
    static const char unit[] = " kMGT";
    int u = 0;
    while (v >= 999.5 && u < 4)
        v /= 1000, u++;
    snprintf(text, 16, u && v < 99.95 ? "%.1f%.1s" : "%.0f%.1s", v, u ? unit + u : "");
    return text;
}

static void draw(Console *c)
{
    const Metrics *m = &c->m;
    Line l = {.n = 0}, tail[5] = {{.n = 0}};
    char t[32];
    int width = screen_width(c) - 1, used;         /* the last column wraps on some terminals */
    double share = c->total > 0 ? (double)m->iteration / (double)c->total : 0;

    /* Parts in the order in which they stand; a narrow screen shows those that fit, tried in `order`. */
    add(&tail[0], " %3.0f%%", floor(share * 100));
    add(&tail[1], "  loss %.4f", m->lm_loss);
    add(&tail[2], "  %s left", console_duration(t, time_left(c)));
    if (c->speed > 0)
        add(&tail[3], "  %s tok/s", short_count(t, c->speed));
    if (*c->status)
        add(&tail[4], "  %s", c->status);
    char count[64];
    int digits = snprintf(count, sizeof count, "%lld", (long long)c->total);
    snprintf(count, sizeof count, " %*lld/%lld ", digits, (long long)m->iteration, (long long)c->total);
    used = (int)strlen(count);
    int show[5] = {0}, order[] = {1, 2, 4, 3, 0};
    for (int i = 0; i < 5; i++)
        if (used + tail[order[i]].cols <= width)
            show[order[i]] = 1, used += tail[order[i]].cols;
    int bar = width - used;
    if (used > width)
        return;
    add_style(&l, c, "1");
    add(&l, "%s", count);
    add_style(&l, c, "0");
    if (bar >= 6)
        add_bar(&l, c, bar > 40 ? 40 : bar, share);
    for (int i = 0; i < 5; i++)
        if (show[i])
            add(&l, "%s", tail[i].text);
    Line out = {.n = 0};
    add(&out, "\r%s\033[K", l.text);
    emit(c, out.text, (size_t)out.n);
    c->shown = 1;
    c->drawn = now();
}

void console_step(Console *c, const Metrics *m)
{
    c->m = *m;
    c->last_end = now();
    /* Smoothed over about ten steps: a flickering number is unreadable. */
    if (m->tokens_per_second > 0)
        c->speed += (m->tokens_per_second - c->speed) * (c->speed > 0 ? 0.1 : 1);
    if (c->first_iteration < 0) {
        c->first_iteration = m->iteration;
        c->first_end = c->last_end;
    }
    if (c->live && (c->last_end - c->drawn >= REDRAW_S || m->iteration >= c->total))
        draw(c);
}

void console_status(Console *c, const char *text)
{
    int was = *c->status;
    snprintf(c->status, sizeof c->status, "%s", text);
    if (c->live && c->first_iteration >= 0 && (now() - c->drawn >= REDRAW_S || !was != !*c->status))
        draw(c);
}

/* ---- Lines that stay ---- */

/* Prints a logged step above the live line. A narrow screen loses the last parts first. */
static void record(Console *c, const Metrics *m)
{
    Line l = {.n = 0}, tail[5] = {{.n = 0}};
    char total[32], speed[16];
    int width = screen_width(c) - 1, digits = snprintf(total, sizeof total, "%lld", (long long)c->total);
    add(&l, " %*lld/%s", digits, (long long)m->iteration, total);
    add(&tail[0], "  loss %.4f", m->lm_loss);
    if (isfinite(m->tokens_per_second))
        add(&tail[1], "  %s tok/s", short_count(speed, m->tokens_per_second));
    add(&tail[2], "  grad norm %.3f", m->grad_norm);
    add(&tail[3], "  lr %.2e", m->learning_rate);
    if (m->skipped_iterations > 0)
        add(&tail[4], "  skipped %lld", (long long)m->skipped_iterations);
    for (int i = 0; i < 5 && l.cols + tail[i].cols <= width; i++)
        add(&l, "%s", tail[i].text);
    console_note(c, l.text);
}

void console_note(Console *c, const char *text)
{
    clear(c);
    char line[8192];
    int n = snprintf(line, sizeof line - 1, "%s", text);
    n = n < (int)sizeof line - 1 ? n : (int)sizeof line - 2;
    line[n++] = '\n';
    emit(c, line, (size_t)n);
    if (c->live && c->first_iteration >= 0)
        draw(c);
}

int console_progress_line(char *text, size_t size, const Metrics *m, const char *losses, int64_t total,
                          double time_left, struct timespec at)
{
    struct tm tm;
    char when[32], left[32], speed[32] = "n/a", mfu[32] = "n/a", zeros[48] = "", norm[64] = "";
    localtime_r(&at.tv_sec, &tm);
    strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", &tm);
    if (isfinite(m->tokens_per_second))
        snprintf(speed, sizeof speed, "%.1f", m->tokens_per_second);
    if (isfinite(m->mfu))
        snprintf(mfu, sizeof mfu, "%.1f%%", 100 * m->mfu);
    if (isfinite(m->num_zeros))
        snprintf(zeros, sizeof zeros, " num zeros: %.0f |", m->num_zeros);
    if (isfinite(m->params_norm))
        snprintf(norm, sizeof norm, " params norm: %.3f |", m->params_norm);
    return snprintf(text, size,
                    " [%s.%06ld] iteration %8lld/%8lld | consumed samples: %12lld |"
                    " elapsed time per iteration (ms): %.1f | throughput per GPU (TFLOP/s/GPU): %.1f |"
                    " learning rate: %.6E | global batch size: %5lld | lm loss: %.6E |%s loss scale: %.1f |"
                    " grad norm: %.3f |%s%s number of skipped iterations: %3lld |"
                    " number of nan iterations: %3lld |"
                    " tokens/s: %s | MFU: %s | memory (GiB): %.3f | time left: %s |",
                    when, at.tv_nsec / 1000, (long long)m->iteration, (long long)total,
                    (long long)m->consumed_samples, m->elapsed_ms, m->tflops_per_device, m->learning_rate,
                    (long long)m->global_batch_size, m->lm_loss, losses, m->loss_scale, m->grad_norm, zeros,
                    norm,
                    (long long)m->skipped_iterations, (long long)m->nan_iterations, speed, mfu,
                    (double)m->memory_bytes / (1 << 30), console_duration(left, time_left));
}

void console_line(Console *c, const Metrics *m, const char *losses)
{
    char text[1024];
    struct timespec at;
    if (c->live) {
        record(c, m);
        return;
    }
    clock_gettime(CLOCK_REALTIME, &at);
    console_progress_line(text, sizeof text, m, losses, c->total, time_left(c), at);
    console_note(c, text);
}

void console_eval(Console *c, int64_t iteration, double loss)
{
    char text[256];
    snprintf(text, sizeof text,
             c->live ? " iteration %lld   validation loss %.4f   perplexity %.4g"
                     : " validation loss at iteration %lld | lm loss value: %.6E | lm loss PPL: %.6E |",
             (long long)iteration, loss, exp(loss));
    console_note(c, text);
}

void console_close(Console *c)
{
    c->status[0] = 0;
    if (c->shown) {
        draw(c);
        emit(c, "\n", 1);
    }
    c->shown = 0;
    if (c->live)
        message_hook(NULL, NULL);
}
