/* report_data -- what the report is made of, and numbers as a reader wants them. Inside the report only. */
#ifndef REPORT_DATA_H
#define REPORT_DATA_H
#include "metrics.h"
#include <jansson.h>
#include <stdio.h>

/* Row numbers of the metrics table, so that a column is r->col[C_lm_loss]. */
enum {
#define X(field, ...) C_##field,
    METRICS(X)
#undef X
};

enum { MARKS = 64 };

/* A run directory's files. Columns of the logged steps as doubles: what the charts take. */
typedef struct {
    int64_t n, evals;
    double *col[METRIC_COUNT];     /* [n] each, in table order; NAN where the line has no number */
    double *eval_at, *eval_loss;   /* [evals] */
    json_t *run, *trace;           /* NULL = none */
    json_t *samples;               /* the last lines of samples.jsonl */
    char *config;
    char name[256];                /* the directory's */
    double mark[MARKS];               /* iterations after which the run was resumed */
    int marks;
} Report;

/* Files that are missing or no JSON are left out. */
void report_read(Report *r, const char *run_dir);
void report_free(Report *r);

/* The last logged step's; NAN when there is none. */
double report_last_of(const Report *r, int column);
/* Of the finite values; NAN when there are none. */
double report_largest(const double *v, int64_t n);
double report_median(const double *v, int64_t n);

/* Text into t: 1234567 -> "1.23 M"; 1048576 -> "1.0 MiB"; 1234567 -> "1,234,567"; 12.3 -> "12.3 ms". */
const char *report_count_text(char t[32], double v);
const char *report_bytes_text(char t[32], double v);
const char *report_grouped(char t[32], double v);
const char *report_ms_text(char t[32], double ms);

/* A member of an object, "" or NAN when it is not there. */
const char *report_text_of(const json_t *o, const char *name);
double report_number_of(const json_t *o, const char *name);

/* Cards of the page. */
void report_put_curves(FILE *f, const Report *r);
void report_put_memory(FILE *f, const Report *r);
void report_put_timeline(FILE *f, const Report *r);
#endif
