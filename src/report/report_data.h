/* report_data -- the data of the report, and numbers as text. Private to the report. */
#ifndef REPORT_DATA_H
#define REPORT_DATA_H
#include "metrics.h"
#include <jansson.h>
#include <stdio.h>

/* Row numbers of the metrics table, so that a column is r->col[C_lm_loss], and more columns. */
enum {
#define X(field, ...) C_##field,
    METRICS(X)
#undef X
    C_steps,                       /* steps that the line is about: since the line before it */
    C_other,                       /* elapsed_ms beyond data, forward, backward and optimizer */
    C_time,                        /* training time so far, evaluations and saves included, in time_unit */
    C_peak,                        /* largest load of an expert over the mean one, of the worst layer */
    C_peak_mean,                   /* the same, mean over the layers */
    COLUMNS
};

enum { MARKS = 64 };               /* most resumptions that are marked: the last ones */
enum { SMOOTH_FROM = 100 };        /* steps: from so many on means are drawn, of 2 % of the steps */

/* The files of a run directory. */
typedef struct {
    int64_t n, evals;              /* logged steps; evaluations */
    double *col[COLUMNS];          /* [n] by row of METRICS; NAN where a line has no number */
    double *mean[COLUMNS];         /* [n] mean around each step; below SMOOTH_FROM steps: col */
    const char *time_unit;
    double *eval_at, *eval_loss;   /* [evals] iteration; mean validation loss */
    json_t *run, *trace, *plan;    /* run.json, trace.json, plan.json; NULL: none */
    json_t *samples;               /* the last lines of samples.jsonl */
    json_t *failures;              /* lines of restarts.jsonl */
    json_t *spikes;                /* lines of metrics.jsonl that record a spike */
    json_t *moe;                   /* the member `moe` of the last line that has one; NULL: none */
    double moe_at;                 /* iteration of that line */
    json_t *comm;                  /* the member `comm` of the last line that has one; NULL: none */
    json_t *stragglers;            /* of all lines, as there, with the iterations `from` and `to` */
    char *config;                  /* text of config.yaml; NULL: none */
    char name[256];                /* of the directory */
    double mark[MARKS];            /* [marks] iterations after which the run was resumed */
    int marks;
} Report;

/* Reads the files. Files that are missing or not JSON are left out. */
void report_read(Report *r, const char *run_dir);
void report_free(Report *r);

/* The column's value at the last logged step; NAN: there is none. */
double report_last_of(const Report *r, int column);
/* The largest and the median of the finite values; NAN: there are none. */
double report_largest(const double *v, int64_t n);
double report_median(const double *v, int64_t n);

/* Return t: 1234567 as "1.23 M"; 1048576 as "1.0 MiB"; 1234567 as "1,234,567", 1e18 as "1e+18"; 12.3 as
 * "12.3 ms". */
const char *report_count_text(char t[32], double v);
const char *report_bytes_text(char t[32], double v);
const char *report_grouped(char t[32], double v);
const char *report_ms_text(char t[32], double ms);

/* A member of an object; "" or NAN: it is not there. */
const char *report_text_of(const json_t *o, const char *name);
double report_number_of(const json_t *o, const char *name);

/* Print cards of the page. */
void report_put_curves(FILE *f, const Report *r);
void report_put_timeline(FILE *f, const Report *r);
void report_put_routers(FILE *f, const Report *r);
void report_put_ranks(FILE *f, const Report *r);
void report_put_losses(FILE *f, const Report *r);

enum { SLOW_SHOWN = 100 };         /* most rows of the table of stragglers: the last ones */
/* Adds the member `stragglers` of the line of `iteration` to those of the lines before it, of which the last
 * is that of iteration `before`. */
void report_add_stragglers(json_t *all, const json_t *list, double iteration, double before);
#endif
