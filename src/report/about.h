/* about -- run.json: what the report says about a run beside its numbers. The file holds one object:
 *   id, total_iterations, parameters, devices, flops_per_token
 *   machine   {host cpu cores memory_bytes system}
 *   facts     {name: text}
 *   memory    {category: {planned, used}}
 *   sessions  [{started, origin, from, command, build, ended, why}]: a resumed run appends its own.
 *             origin: when the run would have begun had it never been stopped; wall time counts from there
 * No error in this module ends the run. */
#ifndef ABOUT_H
#define ABOUT_H
#include "metrics.h"
#include <jansson.h>

typedef struct {
    json_t *json;
    int dirty;                     /* bool: json differs from the file */
} About;

/* Seconds since 1970. */
double about_now(void);

/* The iteration after which the run in a directory began: later than 0 where it read another run's
 * checkpoint.
 *   resume  in  the iteration that this session goes on after: the answer where there is no run.json */
int64_t about_began(int dir, int64_t resume);

/* Starts a session. A resumed run continues the run.json that is there, a fresh run begins a new one.
 *   dir      in    descriptor of the run directory; -1: none
 *   spent    in    s: wall time of the run at the last line of metrics.jsonl
 * Returns the run's wall time so far in s. */
double about_open(About *a, const Config *cfg, const LogStart *s, int dir, double spent);
void about_close(About *a);

void about_fact(About *a, const char *name, const char *text);
/* planned, used: bytes; -1: not known. */
void about_memory(About *a, const char *category, int64_t planned, int64_t used);

/* Records that the session ends now, and why. */
void about_end(About *a, const char *why);

/* Writes run.json if it changed. Returns 1, or 0 with a reason in why: the next call tries again. */
int about_save(About *a, int dir, char why[WHY]);
#endif
