/* commands -- the commands of the executable. commands.def is their table: from it come the functions'
 * prototypes, `train help`, what main calls on which rank, and what a command line may hold.
 *
 * A command's function gets the arguments behind its name and returns the exit code. Output that other
 * programs read (--json) goes to standard output alone. */
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
    enum { EVERY_RANK, RANK_0 } ranks; /* of a launched job: who does it */
    enum { NO_KEYS, KEYS } keys;       /* whether it takes key=value */
    const char *words, *help;
    const Flag *flag;                  /* [flags] */
    int flags;
} Command;

extern const Command commands[COMMANDS];

/* NULL where there is none of that name. */
const Command *commands_find(const char *name);
/* The command that `name` may be a slip for; NULL. */
const Command *commands_suggest(const char *name);

/* Does what the arguments of the executable say. Returns the exit code. */
int commands_dispatch(int argc, char **argv);

/* ---- the command line of a command. Mistakes die with EXIT_CONFIG. ---- */

/* The arguments behind the command's name; argv stays the caller's. The flags are taken by args_switch,
 * args_value and args_number. */
Args cli_open(const char *command, int argc, char **argv);

/* Takes the next argument that is neither a flag nor key=value; dies with "what" when there is none. Flags
 * that no call has taken are none of the command's: they are refused here and by cli_end. */
const char *cli_next(Args *a, const char *what);

/* The configuration's path; NULL where it is left out beside load=DIR. */
const char *cli_config(Args *a);

/* Dies when a flag that the command needs was left out. */
void cli_needs(const Args *a, const char *value, const char *flag, const char *change);

/* Dies when anything is left but key=value of a command that takes keys. */
void cli_end(const Args *a);
#endif
