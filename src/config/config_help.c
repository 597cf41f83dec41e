/* config_help -- the option table as text: keys in `train help`, and configs/OPTIONS.md */
#define _GNU_SOURCE
#include "config_table.h"

static const char *const type_names[] = {"integer", "number", "true or false", "string", "list", "choice"};
static const char *const change_names[] = {"free", "warn", "refuse"};

const char *config_build_id(void) { return "gridiron " BUILD_ID; }

/* Prints text in lines of at most `width` columns after `indent` blanks. The first line is not indented:
 * it continues a line. */
static void wrap(FILE *f, int indent, int width, const char *text)
{
    int first = 1;
    while (*text) {
        int n = (int)strlen(text), cut = n;
        if (n > width) {
            for (cut = width; cut > 0 && text[cut] != ' '; cut--)
                ;
            cut = cut ? cut : (int)strcspn(text, " ");
        }
        fprintf(f, "%*s%.*s\n", first ? 0 : indent, "", cut, text);
        first = 0;
        text += cut;
        text += strspn(text, " ");
    }
}

void help_wrap(FILE *f, int indent, const char *text)
{
    fprintf(f, "%*s", indent, "");
    wrap(f, indent, 100 - indent, text);
}

static void help_sections(FILE *f)
{
    fprintf(f, "\nsections of the configuration (`train help SECTION` explains its keys, `train help keys` "
               "lists all)\n");
    for (int i = 0; i < section_count; i++) {
        fprintf(f, "  %s\n", sections[i].name);
        help_wrap(f, 6, sections[i].help);
    }
}

static void help_section(FILE *f, const Section *s)
{
    fprintf(f, "%s\n", s->name);
    help_wrap(f, 2, s->help);
    for (int i = 0; i < OPTIONS; i++)
        if (!strcmp(options[i].section, s->name)) {
            fprintf(f, "\n  %s: %s\n", options[i].key, options[i].def);
            help_wrap(f, 6, options[i].help);
        }
}

/* Prints every key, its default and its legal values. */
static void help_keys(FILE *f)
{
    for (int s = 0; s < section_count; s++) {
        fprintf(f, "%s%s\n", s ? "\n" : "", sections[s].name);
        for (int i = 0; i < OPTIONS; i++) {
            if (strcmp(options[i].section, sections[s].name))
                continue;
            int n = fprintf(f, "  %-42s %-18s ", options[i].key, options[i].def);
            const char *legal = legal_text(&options[i]);
            fprintf(f, n + (int)strlen(legal) > 120 ? "%.*s...\n" : "%.*s\n", 117 - n, legal);
        }
    }
    fprintf(f, "\nkey, default, what it takes; `train help KEY` explains one\n");
}

static void help_option(FILE *f, const Option *o)
{
    static const char *const changes[] = {"free", "allowed with a warning: it becomes another run",
                                          "refused: start anew, or load weights with finetune"};
    fprintf(f, "%s (section %s)\n", o->key, o->section);
    help_wrap(f, 2, o->help);
    fprintf(f, "\n  takes      ");
    wrap(f, 13, 105, textf("%s%s", legal_text(o), option_optional(o) ? ", or null" : ""));
    fprintf(f, "  default    %s\n  on resume  %s\n", o->def, changes[o->change]);
}

int config_help(FILE *f, const char *topic)
{
    if (!topic) {
        help_sections(f);
        return 1;
    }
    int known = !strcmp(topic, "keys"); /* `optimizer` is a section and a key: both are shown */
    if (known)
        help_keys(f);
    const char *name = topic + strspn(topic, "-");     /* --lr, tensor-model-parallel-size */
    const Alias *alias = known ? NULL : alias_find(name);
    int s = section_find(topic), o = option_like(name);
    if (alias && o < 0) {
        fprintf(f, "no key '%s'; %s\n", name, alias_text(alias));
        o = alias->key ? option_find(alias->key) : -1;
        fprintf(f, o >= 0 ? "\n" : "");
        known = 1;
    }
    if (o >= 0)
        help_option(f, &options[o]);
    if (o >= 0 && s >= 0)
        fprintf(f, "\n");
    if (s >= 0)
        help_section(f, &sections[s]);
    return known || o >= 0 || s >= 0;
}

const char *config_help_suggest(const char *topic)
{
    int s = section_suggest(topic), o = option_suggest(topic, NULL);
    return s >= 0 ? sections[s].name : o >= 0 ? options[o].key : NULL;
}

/* Prints text with | and * escaped, for a cell of a Markdown table. */
static void cell(FILE *f, const char *text)
{
    for (; *text; text++) {
        if (*text == '|' || *text == '*')
            fputc('\\', f);
        fputc(*text, f);
    }
}

static const char *legal_cell(const Option *o)
{
    if (o->type == TYPE_ENUM)
        return legal_text(o) + strlen("one of ");
    return !*o->legal ? "" : !strcmp(o->legal, "mixed") ? "strings and numbers" : o->legal;
}

void config_docs(FILE *f)
{
    fprintf(
        f,
        "# Options\n\n"
        "Made from src/config/config.def by `make docs`; the test suite fails when it is stale.\n\n"
        "A configuration is YAML of two levels, section and key. `key=value` on the command line overrides\n"
        "a key, the last one where it is given twice; the value is a YAML flow value. `null` as a default\n"
        "means absent: derived as the last column says, or really absent. In intervals `[` and `]` include\n"
        "the bound, `(` and `)` do not. Integers may have underscores (1_000). `${NAME}` in a value that is\n"
        "not in single quotes is replaced by the environment variable.\n\n"
        "On resume: *free* keys may change, the numbers stay as they are up to rounding where the meaning\n"
        "does not say otherwise; a change of a *warn* key is reported and allowed; a change of a *refuse*\n"
        "key is an error.\n");
    for (int s = 0; s < section_count; s++) {
        fprintf(f, "\n## %s\n\n%s\n\n", sections[s].name, sections[s].help);
        fprintf(f, "| key | type | default | legal | on resume | meaning |\n|---|---|---|---|---|---|\n");
        for (int i = 0; i < OPTIONS; i++) {
            const Option *o = &options[i];
            if (strcmp(o->section, sections[s].name))
                continue;
            fprintf(f, "| `%s` | %s | `%s` | ", o->key, type_names[o->type], o->def);
            cell(f, legal_cell(o));
            fprintf(f, " | %s | ", change_names[o->change]);
            cell(f, o->help);
            fprintf(f, " |\n");
        }
    }
}
