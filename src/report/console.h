/* console -- rank 0's standard output while training: Megatron-LM's progress line in a file or pipe, one
 * live line on a terminal, below a short one for each logged step. Writes go straight to the descriptor; one
 * that fails (the pipe's reader has gone, the disk is full) is counted and never stops anything. */
#ifndef CONSOLE_H
#define CONSOLE_H
#include "metrics.h"
#include <time.h>

typedef struct {
    int fd, live;                  /* live: redraw one line */
    int colour, utf8;
    int shown;                     /* the live line is on the screen */
    int64_t total;                 /* iterations of the run */
    int64_t lost;                  /* writes that failed */
    double drawn;                  /* when the live line was drawn last, now() */
    double first_end, last_end;    /* when the first and the last step seen ended, now() */
    int64_t first_iteration;       /* ... and which step the first was; -1 = none yet */
    double speed;                  /* tokens a second, smoothed */
    Metrics m;                     /* last step */
    char status[96];               /* what else the run is doing; "" = training */
} Console;

/* style: LOG_STYLE_*. Colour is off when NO_COLOR is set or TERM is dumb. c stays where it is until
 * console_close: a live console gives way to messages on standard error. */
void console_open(Console *c, int fd, int style, int64_t total_iterations);
/* Wipes the live line and gives the terminal back. */
void console_close(Console *c);

/* A step has ended: the live line follows, at most ten times a second. */
void console_step(Console *c, const Metrics *m);
/* A logged step: Megatron's line; on a live console a short one, which scrolls away above the live line. */
void console_line(Console *c, const Metrics *m);
void console_eval(Console *c, int64_t iteration, double loss);
/* Text and a newline, above the live line. */
void console_note(Console *c, const char *text);
void console_status(Console *c, const char *text);

/* The progress line without its newline: Megatron's fields, then tokens a second, model FLOPs utilisation,
 * memory in GiB and time left, "n/a" when not known. Returns its length. */
int console_progress_line(char *text, size_t size, const Metrics *m, int64_t total, double time_left,
                  struct timespec at);

/* "1:02:03", "2:03"; days as "3d 1:02:03"; negative: "n/a". */
const char *console_duration(char text[32], double seconds);
#endif
