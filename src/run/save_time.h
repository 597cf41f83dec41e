/* save_time -- what the time of a save decides: whether a run that must stop saves first, and how often
 * saving loses least. */
#ifndef SAVE_TIME_H
#define SAVE_TIME_H
#include "config.h"

/* Seconds from SIGTERM to the kill, as far as this process knows: sigterm_grace, or its default. */
double save_time_grace(const Config *c);

/* Whether a save that ends `end` seconds after a signal is on the disk before the kill, `grace` seconds after
 * the signal. */
int save_time_fits(double end, double grace);

/* What is known at the end of a run. */
typedef struct {
    int64_t saves, steps;          /* of this start */
    double lost, stepping;         /* seconds: that training lost to all these saves; of all these steps */
    double longest;                /* seconds that a save takes, beside training too */
    double wall;                   /* seconds of the run since its first start */
    int failures;                  /* of the run since its first start */
    int64_t best;                  /* out: steps between two saves that lose least; 0: not known */
} SaveTimes;

/* Sets s->best and returns it as advice for people; NULL: no save, step or failure has been seen. A run that
 * saves every T seconds at a cost of C seconds, and fails every M seconds, loses the shares C/T to saves and
 * T/(2M) to steps that are run again, together least at T = sqrt(2CM) (Young 1974, "A first order
 * approximation to the optimum checkpoint interval", CACM 17). But T is no shorter than a save. */
const char *save_time_advice(SaveTimes *s);

/* The failures that the launcher has recorded in the run directory (restarts.jsonl). */
int save_time_failures(const char *run_dir);
#endif
