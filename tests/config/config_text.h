/* config_text -- helpers of the configuration's tests: make YAML texts from the option table, and read
 * what a Check holds. */
#ifndef CONFIG_TEXT_H
#define CONFIG_TEXT_H
#include "config_table.h"
#include "test.h"

/* A configuration that is valid with one rank; one row a key. */
static const struct { const char *key, *value; } base_keys[] = {
    {"num_layers", "4"}, {"hidden_size", "64"}, {"num_attention_heads", "4"}, {"seq_length", "32"},
    {"data_path", "corpus"}, {"micro_batch_size", "2"}, {"train_iters", "10"}, {"lr", "1e-3"}};

typedef struct { char *text; size_t size; int line; } Text;    /* line: where the extra lines start */

/* The text of the base configuration without `key`; `section` ends with the lines of `extra`, each
 * indented by two. */
static inline Text compose(const char *section, const char *key, const char *extra)
{
    Text t = {0};
    FILE *f = open_memstream(&t.text, &t.size);
    int line = 0;
    for (int s = 0; s < section_count; s++) {
        fprintf(f, "%s:\n", sections[s].name);
        line++;
        for (size_t i = 0; i < sizeof base_keys / sizeof *base_keys; i++)
            if (!strcmp(options[option_find(base_keys[i].key)].section, sections[s].name) &&
                (!key || strcmp(base_keys[i].key, key))) {
                fprintf(f, "  %s: %s\n", base_keys[i].key, base_keys[i].value);
                line++;
            }
        if (section && !strcmp(section, sections[s].name)) {
            t.line = line + 1;
            fprintf(f, "%s\n", extra);
            for (const char *p = extra; *p; p++)
                line += *p == '\n';
            line++;
        }
    }
    fclose(f);
    return t;
}

/* Reads a text; with world > 0 also resolves it and checks the rules. */
static inline Check read_text(const char *text, size_t size, int nargs, char **args, int world, ConfigUse use)
{
    Check k;
    check_open(&k, "test.yaml");
    config_parse_text(&k, text, size);
    config_parse_args(&k, nargs, args);
    if (world && !k.unread)
        config_resolve(&k, world, use);
    memcpy(k.cfg->given, k.seen, sizeof k.seen);
    return k;
}

/* The configuration as config.yaml has it; from malloc. */
static inline char *written(const Config *c, size_t *size)
{
    char *text = NULL;
    FILE *f = open_memstream(&text, size);
    config_write(f, c);
    fclose(f);
    return text;
}

/* Resolves the base configuration with arguments separated by | on `world` ranks. A / in a layout string
 * stands for its |. */
static inline Check resolve(const char *args, int world, ConfigUse use)
{
    static Text base;
    char *list[32], *copy = text_copy(args);
    int n = 0;
    if (!base.text)
        base = compose(NULL, NULL, NULL);
    for (char *a; (a = strsep(&copy, "|"));)
        if (*a)
            list[n++] = a;
    for (int i = 0; i < n; i++)
        for (char *p = list[i]; !strncmp(list[i], "pipeline_model_parallel_layout=", 31) && *p; p++)
            *p = *p == '/' ? '|' : *p;
    return read_text(base.text, base.size, n, list, world, use);
}

/* The number of violations whose text has all of the (up to three) pieces. */
static inline int count(const Check *k, const char *a, const char *b, const char *c)
{
    int n = 0;
    for (int i = 0; i < k->n; i++) {
        const char *t = k->list[i].text;
        n += strstr(t, a) && (!b || strstr(t, b)) && (!c || strstr(t, c));
    }
    return n;
}

/* All violations in one line, for the message of a failed CHECK. */
static inline const char *listing(const Check *k)
{
    const char *s = textf("%d:", k->n);
    for (int i = 0; i < k->n && i < 8; i++)
        s = textf("%s [%d:%d %s]", s, k->list[i].place.line, k->list[i].place.col, k->list[i].text);
    return s;
}

/* A value that the option accepts. */
static inline const char *sample_value(const Option *o)
{
    switch (o->type) {
    case TYPE_INT:   return textf("%lld", (long long)interval_parse(o->legal).ilo);
    case TYPE_FLOAT: return textf("%.17g", (interval_parse(o->legal).lo + interval_parse(o->legal).hi) / 2);
    case TYPE_BOOL:  return "true";
    case TYPE_STR:   return "abc";
    case TYPE_ENUM:  return o->choices[0];
    case TYPE_LIST:  break;
    }
    return !strcmp(o->legal, "strings") || !strcmp(o->legal, "mixed") ? "[a, b]" : "[1]";
}

/* Random numbers of the tests: the same in every run. */
static inline uint32_t draw(uint32_t below)
{
    static uint64_t counter;
    return philox(7, counter++, 0).v[0] % below;
}
#endif
