/* commands -- the table of commands as data */
#include "commands.h"
#include "config_table.h"

#define SWITCH(told, text)                    {FLAG_SWITCH, TOLD_##told, text}
#define SWITCH_RANKS(told, text)              {FLAG_SWITCH, TOLD_##told, text, .every_rank = 1}
#define TEXT(told, text)                      {FLAG_TEXT, TOLD_##told, text}
#define TEXT_OR_NONE(told, text)              {FLAG_TEXT, TOLD_##told, text, .empty = 1}
#define NUMBER(told, text, absent, low, high) {FLAG_NUMBER, TOLD_##told, text, 0, 0, absent, low, high}
#define WHOLE(told, text, absent, low, high)  {FLAG_WHOLE, TOLD_##told, text, 0, 0, absent, low, high}

#define COMMAND(name, ranks, keys, words, help, ...) static const Flag name##_flags[] = {__VA_ARGS__};
#include "commands.def"
#undef COMMAND

const Command commands[COMMANDS] = {
#define COMMAND(name, ranks, keys, words, help, ...) \
    {#name, ranks, keys, words, help, name##_flags, sizeof name##_flags / sizeof *name##_flags},
#include "commands.def"
#undef COMMAND
};

const Command *commands_find(const char *name)
{
    for (int i = 0; i < COMMANDS; i++)
        if (!strcmp(commands[i].name, name))
            return &commands[i];
    return NULL;
}

const Command *commands_suggest(const char *name)
{
    const char *names[COMMANDS + 1] = {NULL};
    for (int i = 0; i < COMMANDS; i++)
        names[i] = commands[i].name;
    int found = choice_suggest(name, names);
    return found >= 0 ? &commands[found] : NULL;
}
