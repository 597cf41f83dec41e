/* score -- tables of measured runs beside what the planner predicts for them */
#ifndef SCORE_H
#define SCORE_H
#include "machine.h"

/* A line of a table. Texts live as long as the Score, and have no control characters. */
typedef struct {
    const char *name;          /* of the run */
    const char *set;           /* rows of one set are averaged together; "": no set */
    int line;                  /* in the file, from 1 */
    int world;                 /* ranks */
    double measured;           /* s of a step */
    double predicted;          /* the same */
    double bubble;             /* rate of the predicted step */
    int64_t memory;            /* bytes of the fullest rank */
    int fits;                  /* bool: memory is no more than the machine has for a rank */
} ScoreRow;

typedef struct { const char *path; int n; ScoreRow *row; } Score;      /* row: [n] */

/* Reads a table and predicts a step of each of its rows.
 *
 *   path   in           CSV: the first line that is no comment names the columns, the others are rows. Lines
 *                       that start with # are comments; a cell that holds a comma stands in double quotes
 *   m      in           machine of the predictions
 *   nargs  in
 *   args   in  [nargs]  key=value for every row; they win over the table
 *
 * Columns: name; world (ranks); config (a YAML file beside the table); one of step_s (s) and
 * tokens_per_second (of the whole job); set; note (read by nobody); each other column is a key of the
 * configuration, set in the rows whose cell is not empty.
 *
 * Dies with EXIT_CONFIG when the table or a row's configuration is wrong. Not collective. */
void score_open(Score *s, const char *path, const Machine *m, int nargs, char **args);
void score_close(Score *s);

/* Relative error of a row's predicted step: 0.1 when it is 10 % too long. */
static inline double score_error(const ScoreRow *r) { return r->predicted / r->measured - 1; }

/* Mean and maximum of the absolute errors of the rows of a set; NULL: of all. Returns how many there are. */
int score_mean(const Score *s, const char *set, double *mean, double *most);
#endif
