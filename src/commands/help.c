/* train help -- explains a command, a section or a key from the tables */
#include "commands.h"
#include "config_table.h"

/* Prints a command's usage line after `indent` blanks and its help after `inner` blanks. */
static void explain(const Command *c, int indent, int inner)
{
    printf("%*strain %s %s", indent, "", c->name, c->words);
    for (int i = 0; i < c->flags; i++)
        if (c->flag[i].told == TOLD_USAGE)
            printf(" %s", c->flag[i].text);
    printf("\n");
    help_wrap(stdout, inner, c->help);
}

int command_help(int argc, char **argv)
{
    const char *topic = argc ? argv[0] : NULL, *guess;
    const Command *c = topic ? commands_find(topic) : NULL, *near;
    if (argc > 1)
        die(EXIT_CONFIG, "usage", "train help explains one thing at a time, not `%s`, too; change: "
            "train help %s", argv[1], argv[1]);
    if (!topic)
        printf("usage: train CONFIG.yaml [key=value ...]\n       train COMMAND ...\n\ncommands\n");
    for (int i = 0; !topic && i < COMMANDS; i++)
        explain(&commands[i], 2, 6);
    if (c)
        explain(c, 0, 2);
    if (config_help(stdout, topic) || c)
        return EXIT_DONE;
    near = commands_suggest(topic);
    guess = near ? near->name : config_help_suggest(topic);
    die(EXIT_CONFIG, "usage",
        "there is no help on `%s`%s%s%s; change: give a command, a section or a key, or `keys` for all of "
        "these", topic, guess ? "; did you mean `" : "", guess ? guess : "", guess ? "`?" : "");
}
