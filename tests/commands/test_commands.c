/* test_commands -- the table of commands: help lists the flags and keys that a command's row allows */
#define _GNU_SOURCE
#include "commands.h"
#include "test.h"
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
            keys |= strchr(c->flag[f].text, '=') != NULL;
        }
        CHECK(keys == (c->keys == KEYS), "%s: key=value in help, or in the row", c->name);
    }
    return test_end();
}
