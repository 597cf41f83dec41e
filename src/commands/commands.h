/* commands -- the commands of the executable.
 *
 * commands.def is their table. From it come the prototypes of their functions, `train help`, the ranks
 * that run a command, and the flags that it has. A command's function gets the arguments behind the
 * command's name and returns the exit code. With --json standard output has the JSON alone. */
#ifndef COMMANDS_H
#define COMMANDS_H
#include "args.h"

#define COMMAND(name, ...) int command_##name(int argc, char **argv);
#include "commands.def"
#undef COMMAND

enum {
#define COMMAND(name, ...) COMMAND_##name,
#include "commands.def"
#undef COMMAND
    COMMANDS
};

#define SWEEP_ALL 1e6              /* train sweep --measure all */

typedef struct {
    const char *name;
    enum { EVERY_RANK, RANK_0 } ranks; /* ranks of a launched job that run the command */
    enum { NO_KEYS, KEYS } keys;       /* whether the command takes key=value */
    const char *words, *help;          /* usage line up to the flags; text of `train help` */
    const Flag *flag;                  /* [flags] flags of the command */
    int flags;
} Command;

extern const Command commands[COMMANDS];

/* Returns a command by its name; NULL: there is none of that name. */
const Command *commands_find(const char *name);
/* Returns the command whose name is nearest to a misspelled one; NULL: none is near. */
const Command *commands_suggest(const char *name);

/* Runs the command that the arguments of the executable name; train: the command `run`, which lies
 * above this room. Returns the exit code. */
int commands_dispatch(int argc, char **argv, int (*train)(int argc, char **argv));

/* ---- the command line of a command; a mistake in it dies with EXIT_CONFIG ---- */

/* Opens the arguments behind a command's name; argv stays the caller's. args_switch, args_value and
 * args_number then take the flags. */
Args cli_open(const char *command, int argc, char **argv);

/* Takes the next argument that is neither a flag nor key=value. Dies if there is none; what: its name
 * for the message. A flag that is still there is not one of the command's: cli_next and cli_end die. */
const char *cli_next(Args *a, const char *what);

/* Takes the path of the configuration; NULL: it is left out, and load=DIR is given. */
const char *cli_config(Args *a);

/* Dies if the value of a flag that the command needs is NULL. */
void cli_needs(const Args *a, const char *value, const char *flag, const char *change);

/* Dies if the file that a flag names cannot be written, or is that of an earlier call: what it is to hold
 * takes a while. path NULL: there is none. */
void cli_may_write(const char *flag, const char *path);
/* Dies unless file `name` of run directory `run` is there (EXIT_CONFIG) and can be read (EXIT_RESOURCE). */
void cli_run_has(const char *command, const char *run, const char *name);

/* Dies if any argument is left; key=value may be left if the command takes keys. */
void cli_end(const Args *a);
#endif
