/* args -- a command's arguments: flags taken by name, then what is left in order. Mistakes die with EXIT_CONFIG. */
#ifndef ARGS_H
#define ARGS_H

typedef struct {
    const char *command;       /* for messages: "dump" */
    int n;
    char **v;                  /* what no call has taken yet */
} Args;

/* The arguments behind the command's name; argv stays the caller's. */
Args args_open(const char *command, int argc, char **argv);

/* 1 if `flag` is there; takes it. */
int args_flag(Args *a, const char *flag);

/* The argument behind `flag`, NULL when the flag is absent; takes both. */
const char *args_value(Args *a, const char *flag);

/* The same as a number within [low, high]; `absent` when the flag is not there. */
double args_number(Args *a, const char *flag, double absent, double low, double high);

/* Takes the next argument that is no flag; dies with "what" when there is none. */
const char *args_next(Args *a, const char *what);

/* Dies when a flag is left; with `overrides`, key=value arguments may be left, else nothing. */
void args_end(const Args *a, int overrides);
#endif
