/* args -- the arguments of a command: flags are taken by name, the other words stay in order. A mistake
 * in them dies with EXIT_CONFIG. */
#ifndef ARGS_H
#define ARGS_H

/* A flag of a command. */
typedef struct {
    enum { FLAG_SWITCH, FLAG_TEXT, FLAG_NUMBER, FLAG_WHOLE } kind;
    enum { TOLD_USAGE, TOLD_HELP } told;   /* where `train help` names the flag: usage line, text */
    const char *text;                  /* the flag as help writes it: "[--world N]", "--calibrate]]" */
    int empty;                         /* bool: FLAG_TEXT: its text may be empty */
    int every_rank;                    /* bool: with this flag every rank runs a command of rank 0 */
    double absent, low, high;          /* FLAG_NUMBER, FLAG_WHOLE: without the flag; legal: [low, high] */
} Flag;

typedef struct {
    const char *command;               /* name of the command, for messages: "dump" */
    const Flag *flag;                  /* [flags] flags that the command has */
    int flags, n;                      /* lengths of flag and of v */
    char **v;                          /* [n] arguments that no call has taken yet; v[n] is NULL */
} Args;

/* Writes the flag's name, "--world", into `name` and returns `name`. */
enum { FLAG_NAME = 32 };
char *args_name(const Flag *flag, char name[FLAG_NAME]);

/* Returns the arguments quoted for a shell, a blank before each. On the heap. */
char *args_text(int argc, char **argv);

/* Removes arguments [i, i + n). */
void args_drop(Args *a, int i, int n);

/* Dies if an argument is empty, or if a flag that takes a value has none behind it, or another flag. Comes
 * first: what is removed makes neighbours of others. A number below 0 is no flag. */
void args_check(const Args *a);

/* args_switch, args_value and args_number remove a flag of the command's table from the arguments. */

/* Returns 1 if the switch is given, once or more often, else 0. */
int args_switch(Args *a, const char *name);

/* Returns the argument behind the flag: the last one if the flag is repeated, NULL if it is absent. */
const char *args_value(Args *a, const char *name);

/* args_value as a number within the flag's range, for FLAG_WHOLE a whole one; Flag.absent without it. */
double args_number(Args *a, const char *name);
#endif
