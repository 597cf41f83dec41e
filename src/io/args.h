/* args -- a command's arguments: flags taken by name, and the words that are left, in order. Mistakes die
 * with EXIT_CONFIG. */
#ifndef ARGS_H
#define ARGS_H

/* A flag of a command. */
typedef struct {
    enum { FLAG_SWITCH, FLAG_TEXT, FLAG_NUMBER } kind;
    enum { TOLD_USAGE, TOLD_HELP, TOLD_NOWHERE } told; /* by help: in the usage line, in its text */
    const char *text;                  /* as help writes it: "[--world N]", "--calibrate]]" */
    int every_rank;                    /* bool: with it every rank of a job does a command of rank 0's */
    double absent, low, high;          /* FLAG_NUMBER: the value without the flag; the legal range */
} Flag;

typedef struct {
    const char *command;               /* for messages: "dump" */
    const Flag *flag;                  /* [flags] what it takes */
    int flags, n;
    char **v;                          /* [n] what no call has taken yet */
} Args;

/* The flag's name: "--world". Returns `name`. */
enum { FLAG_NAME = 32 };
char *args_name(const Flag *flag, char name[FLAG_NAME]);

/* These arguments as a shell takes them, each behind a blank. On the heap. */
char *args_text(int argc, char **argv);

/* Takes n arguments from the i-th on. */
void args_drop(Args *a, int i, int n);

/* What follows takes a flag of the command's table. 1 if the switch is there, once or more often. */
int args_switch(Args *a, const char *name);

/* The argument behind the flag, the last one when it is given more often; NULL when it is absent. */
const char *args_value(Args *a, const char *name);

/* The same as a number of the flag's range; its `absent` when the flag is not there. */
double args_number(Args *a, const char *name);
#endif
