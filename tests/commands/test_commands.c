/* test_commands -- the table of commands: help lists the flags and keys that a command's row allows */
#define _GNU_SOURCE
#include "base.h"
#include "child.h"
#include "commands.h"
#include <math.h>

/* The command's flag of this name; NULL without one. */
static const Flag *flag_of(const Command *c, const char *word)
{
    char name[FLAG_NAME];
    for (int i = 0; i < c->flags; i++)
        if (!strcmp(word, args_name(&c->flag[i], name)))
            return &c->flag[i];
    return NULL;
}

/* Every flag that `text` names is the command's, and its row puts it into such texts (`told`). */
static void check_text(const Command *c, const char *text, int told)
{
    char *copy = strdup(text), *rest = copy, *word;
    while ((word = strsep(&rest, " [](),;:|.")))
        if (*word == '-') {
            const Flag *f = flag_of(c, word);
            CHECK(f && ((int)f->told == told || f->told == TOLD_USAGE), "%s: help names %s", c->name, word);
        }
    free(copy);
}

static void check_flag(const Command *c, const Flag *f)
{
    char name[FLAG_NAME];
    args_name(f, name);
    CHECK(*name == '-' && flag_of(c, name) == f, "%s: %s is not the only one", c->name, f->text);
    CHECK(f->told != TOLD_HELP || strstr(c->help, f->text), "%s: help does not name %s", c->name, f->text);
    int number = f->kind == FLAG_NUMBER || f->kind == FLAG_WHOLE;
    CHECK(number ? f->low < f->high && !(f->absent > f->high) : !f->low && !f->high, "%s: the range of %s",
          c->name, name);
    CHECK(!f->every_rank || c->ranks == RANK_0, "%s: ranks of %s", c->name, name);
}

static void open_words(void *words)
{
    char **v = words;
    int n = 0;
    while (v[n + 1])
        n++;
    cli_open(v[0], n, v + 1);
}

/* A flag with a value has one behind it: no other flag, known or misspelled, and not the end of the line. */
static void check_value(const Command *c, const Flag *f)
{
    char name[FLAG_NAME], other[FLAG_NAME], says[2 * FLAG_NAME];
    char *line[] = {(char *)c->name, "c.yaml", name, NULL, "last", NULL};
    if (f->kind == FLAG_SWITCH)
        return;
    snprintf(says, sizeof says, "%s needs a value", args_name(f, name));
    for (int i = 0; i < c->flags; i++) {
        line[3] = args_name(&c->flag[i], other);
        DIES(open_words, line, EXIT_CONFIG, says, other, "; change: ");
    }
    line[3] = "--unknown";
    DIES(open_words, line, EXIT_CONFIG, says, "--unknown");
    line[3] = NULL;
    DIES(open_words, line, EXIT_CONFIG, says);
    line[3] = "";
    if (f->empty)
        CHECK(!child(open_words, line), "%s %s with an empty text: %s", c->name, name, said);
    else
        DIES(open_words, line, EXIT_CONFIG, says, "empty");
    line[3] = "-1";
    CHECK(!child(open_words, line), "%s %s -1: %s", c->name, name, said);
}

int main(void)
{
    for (int i = 0; i < COMMANDS; i++) {
        const Command *c = &commands[i];
        int keys = strchr(c->words, '=') != NULL;
        CHECK(commands_find(c->name) == c && commands_suggest(c->name) == c, "%s", c->name);
        check_text(c, c->words, TOLD_USAGE);
        check_text(c, c->help, TOLD_HELP);
        for (int f = 0; f < c->flags; f++) {
            check_flag(c, &c->flag[f]);
            check_value(c, &c->flag[f]);
            keys |= strchr(c->flag[f].text, '=') != NULL;
        }
        CHECK(keys == (c->keys == KEYS), "%s: key=value in help, or in the row", c->name);
    }
    return test_end();
}
