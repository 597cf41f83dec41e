/* console -- rank 0's standard output while training. A file or pipe gets Megatron-LM's progress line
 * for each logged step. A terminal gets a short line for each logged step, and below them one live line.
 * Writes go straight to the descriptor; a write that fails (the pipe's reader has gone, the disk is
 * full) is counted and never stops the run. */
#ifndef CONSOLE_H
#define CONSOLE_H
#include "metrics.h"
#include <time.h>

typedef struct {
    int fd;                        /* standard output */
    int live;                      /* bool: a terminal with a live line */
    int colour, utf8;              /* bool: the terminal shows colours; UTF-8 */
    int shown;                     /* bool: the live line is on the screen */
    int64_t total;                 /* iterations of the run */
    int64_t lost;                  /* writes that failed */
    double drawn;                  /* now() when the live line was drawn last */
    double first_end, last_end;    /* now() when the first and the last step of this start ended */
    int64_t first_iteration;       /* iteration of the first step of this start; -1: none yet */
    double speed;                  /* tokens/s, smoothed over about ten steps */
    Metrics m;                     /* of the last step */
    char status[96];               /* what the run is doing beside training; "": nothing */
} Console;

/* style: LOG_STYLE_*. Colour is off when NO_COLOR is set or TERM is dumb. c must keep its address until
 * console_close: messages on standard error wipe its live line first. */
void console_open(Console *c, int fd, int style, int64_t total_iterations);
/* Draws the live line a last time and moves to the next line. */
void console_close(Console *c);

/* A step has ended: redraws the live line, at most ten times a second. */
void console_step(Console *c, const Metrics *m);
/* Prints a logged step: Megatron's line, or on a live console a short line above the live line. */
void console_line(Console *c, const Metrics *m, const char *losses);
void console_eval(Console *c, int64_t iteration, double loss);
/* Prints text and a newline, above the live line. */
void console_note(Console *c, const char *text);
/* Sets what the live line says the run is doing; "": training. */
void console_status(Console *c, const char *text);

/* Writes the progress line without its newline to text: Megatron's fields, then tokens/s, model FLOPs
 * utilisation, memory in GiB and time left, "n/a" when not known. Returns its length.
 *   losses  in  fields that follow the language model's loss; "": none */
int console_progress_line(char *text, size_t size, const Metrics *m, const char *losses, int64_t total,
                          double time_left, struct timespec at);

/* Seconds as "2:03", "1:02:03" or "3d 01:02:03"; negative: "n/a". */
const char *console_duration(char text[32], double seconds);
#endif
