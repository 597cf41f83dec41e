/* dispatch -- runs the command that the arguments name, on the ranks that its row says */
#define _GNU_SOURCE
#include "commands.h"
#include "config.h"
#include "job.h"
#include "products.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int (*training)(int argc, char **argv);     /* the command `run`, handed down by main */
static int trains;                     /* bool: which warns of lost lines itself, and goes on */
int command_run(int argc, char **argv)
{
    trains = 1;
    return training(argc, argv);
}

static int (*const functions[COMMANDS])(int argc, char **argv) = {
#define COMMAND(name, ...) command_##name,
#include "commands.def"
#undef COMMAND
};

/* Returns 1 if every rank runs the command: by its row, or by a flag among the arguments. */
static int for_every_rank(const Command *c, int argc, char **argv)
{
    char name[FLAG_NAME];
    int every = c->ranks == EVERY_RANK;
    for (int i = 0; i < argc; i++)
        for (int f = 0; f < c->flags; f++)
            every |= c->flag[f].every_rank && !strcmp(argv[i], args_name(&c->flag[f], name));
    return every;
}

/* Runs a command with the arguments behind its name. Of a launched job only rank 0 runs a RANK_0
 * command; the other ranks end. */
static int do_command(const Command *c, int argc, char **argv)
{
    int rank;
    int launched = job_launched(&rank) > 1 || getenv("GRIDIRON_PAGE");
    if (launched && !for_every_rank(c, argc, argv)) {
        if (rank)
            return EXIT_DONE;
        job_tell("together");          /* scripts/launch waits for nobody, and asks before it kills */
    }
    return functions[c - commands](argc, argv);
}

static int asks_for_help(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
            return 1;
    return 0;
}

/* Handles a first argument that is no command: it is a configuration to train, or a misspelled
 * command. */
static int command_or_file(int argc, char **argv)
{
    const char *name = argv[0];
    const Command *guess = commands_suggest(name);
    if (!strcmp(name, "version") || !strcmp(name, "-v") || !strcmp(name, "-V"))
        die(EXIT_CONFIG, "usage", "there is no command `%s`; change: `train --version`", name);
    int words = !strpbrk(name, "./=") && *name != '-' && access(name, F_OK);
    if (words && guess)
        die(EXIT_CONFIG, "usage", "there is no command and no file `%s`; change: did you mean `%s`? `train "
            "help` lists the commands", name, guess->name);
    if (words)
        die(EXIT_CONFIG, "usage", "there is no command and no file `%s`; change: `train help` lists the "
            "commands, `train CONFIG.yaml` trains", name);
    return command_run(argc, argv);
}

/* Before the ranks are joined every rank finds the same mistake: rank 0 reports it, and the launcher
 * ends the others. A rank that is not ended after a while has found a mistake of its own, and reports
 * it. */
static int rank_0_first(int code)
{
    (void)code;
    return sleep(2) == 0;
}

static int dispatch(int argc, char **argv)
{
    int rank, other = job_launched(&rank) > 1 && rank;
    if (other)
        die_hooks(NULL, rank_0_first, NULL);
    if (argc < 2)
        die(EXIT_CONFIG, "usage", "train without a configuration and without a command does nothing; change: "
            "`train CONFIG.yaml`; `train help` lists the commands");
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))
        return do_command(commands_find("help"), 0, NULL);
    if (!strcmp(argv[1], "--version"))
        return other ? EXIT_DONE : (puts(config_build_id()), puts(cuda_built()), EXIT_DONE);
    const Command *c = commands_find(argv[1]);
    if (asks_for_help(argc - 1, argv + 1))
        return do_command(commands_find("help"), 1, &(char *){c ? argv[1] : "run"});
    return c ? do_command(c, argc - 2, argv + 2) : command_or_file(argc - 1, argv + 1);
}

int commands_dispatch(int argc, char **argv, int (*train)(int argc, char **argv))
{
    training = train;
    int rank, code = dispatch(argc, argv), lost = fflush(stdout);
    if ((lost || ferror(stdout)) && !trains)
        die(EXIT_RESOURCE, "write", "standard output cannot be written%s%s; change: free space there, or "
            "send it elsewhere", lost ? ": " : "", lost ? strerror(errno) : "");
    char said[24];
    snprintf(said, sizeof said, "code %d", code);
    if (job_launched(&rank) > 1 && !rank)
        job_tell(said);                /* a rank that dies while MPI closes does not change it: all is done */
    return code;
}
