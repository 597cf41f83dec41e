/* about -- run.json: what the report says about a run beside its numbers. One object: id, total_iterations,
 * parameters, devices, flops_per_token, machine {host cpu cores memory_bytes system}, facts {name: text},
 * memory {category: {planned, used}}, and sessions [{started, from, command, build, ended, why}],
 * one for each start: a resumed run adds to those that are there. Nothing here ends the run. */
#ifndef ABOUT_H
#define ABOUT_H
#include "metrics.h"
#include <jansson.h>

typedef struct {
    json_t *json;
    int dirty;                     /* differs from the file */
} About;

/* dir: the run directory's descriptor, -1 = none. */
void about_open(About *a, const Config *cfg, const LogStart *s, int dir);
void about_close(About *a);

void about_fact(About *a, const char *name, const char *text);
void about_memory(About *a, const char *category, int64_t planned, int64_t used);

/* The session ends now. */
void about_end(About *a, const char *why);

/* Writes run.json if it changed. Returns 1, or 0 with a reason in why: the next call tries again. */
int about_save(About *a, int dir, char why[WHY]);
#endif
