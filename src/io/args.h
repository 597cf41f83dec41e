/* args -- a command's arguments: flags taken by name, then what is left in order. Mistakes die with
 * EXIT_CONFIG. */
#ifndef ARGS_H
#define ARGS_H

typedef struct {
    const char *command;       /* for messages: "dump" */
    int n;
    char **v;                  /* what no call has taken yet */
} Args;

/* The arguments behind the command's name; argv stays the caller's. */
Args args_open(const char *command, int argc, char **argv);

/* These arguments as a shell takes them, each behind a blank. On the heap. */
char *args_text(int argc, char **argv);

/* 1 if `flag` is there, once or more often; takes it. */
int args_flag(Args *a, const char *flag);

/* The argument behind `flag`, the last one when it is given more often, NULL when the flag is absent; takes
 * them. */
const char *args_value(Args *a, const char *flag);

/* The same as a number within [low, high]; `absent` when the flag is not there. */
double args_number(Args *a, const char *flag, double absent, double low, double high);

/* Takes the next argument that is neither a flag nor key=value; dies with "what" when there is none. Flags
 * that no call has taken are none of the command's: they are refused here and by args_end. */
const char *args_next(Args *a, const char *what);

/* The configuration's path; NULL where it is left out beside load=DIR. */
const char *args_config(Args *a);

/* Dies when a flag is left; with `overrides`, key=value arguments may be left, else nothing. */
void args_end(const Args *a, int overrides);
#endif
