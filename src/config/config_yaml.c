/* config_yaml -- reads the YAML file, event by event, and key=value arguments
 *
 * The accepted subset of YAML is one document, two levels of mappings, scalars, and flow or block lists
 * of scalars. Anchors, aliases, tags and directives are refused. Limits on bytes, depth and nodes bound
 * the work for a hostile file. ${NAME} in a value that is not in single quotes is replaced by the
 * environment variable. */
#define _GNU_SOURCE
#include "config_table.h"
#include "utf8.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yaml.h>

enum { BYTES_MAX = 1 << 20, DEPTH_MAX = 64, NODES_MAX = 100000 };

typedef struct {
    Check *k;
    int arg;                         /* index of the argument that is read; -1: the file is read */
    const char *name;                /* key of the argument, for messages */
    yaml_parser_t yaml;
    yaml_event_t event;              /* current event */
    int depth, nodes;                /* levels that are open; nodes read so far */
    int alien;                       /* bool: the text is no mapping of sections; no rule is checked */
} Reader;

static Place place_of(const Reader *r, yaml_mark_t m)
{
    return r->arg >= 0 ? (Place){0, 0, r->arg} : (Place){(int)m.line + 1, (int)m.column + 1, -1};
}

#define COMPLAIN(r, mark, fmt, ...)                                                                          \
    check_add((r)->k, place_of(r, mark), (r)->arg >= 0 ? "%s: " fmt : "%s" fmt,                              \
              (r)->arg >= 0 ? (r)->name : "", ##__VA_ARGS__)

static _Noreturn void no_memory(void)
{
    die(EXIT_RESOURCE, "memory", "no memory for the YAML parser; change: free memory on this machine");
}

/* Reads the next event. Returns 0 if the text is no YAML or not of the accepted subset: reading
 * stops. */
static int next(Reader *r)
{
    yaml_event_delete(&r->event);
    if (!yaml_parser_parse(&r->yaml, &r->event)) {
        yaml_parser_t *y = &r->yaml;
        if (y->error == YAML_MEMORY_ERROR)
            no_memory();
        memset(&r->event, 0, sizeof r->event);
        COMPLAIN(r, y->problem_mark, "not YAML: %s%s%s", y->problem ? y->problem : "cannot be read",
                 y->context ? ", " : "", y->context ? y->context : "");
        return 0;
    }
    const yaml_event_t *e = &r->event;
    const yaml_char_t *anchor = NULL, *tag = NULL;
    int list = e->type == YAML_SEQUENCE_START_EVENT, map = e->type == YAML_MAPPING_START_EVENT;
    if (e->type == YAML_SCALAR_EVENT)
        anchor = e->data.scalar.anchor, tag = e->data.scalar.tag;
    else if (list)
        anchor = e->data.sequence_start.anchor, tag = e->data.sequence_start.tag;
    else if (map)
        anchor = e->data.mapping_start.anchor, tag = e->data.mapping_start.tag;
    r->depth += list + map - (e->type == YAML_SEQUENCE_END_EVENT || e->type == YAML_MAPPING_END_EVENT);
    if (e->type == YAML_ALIAS_EVENT)
        COMPLAIN(r, e->start_mark, "aliases (*name) are not accepted; write the value again");
    if (anchor)
        COMPLAIN(r, e->start_mark, "anchors (&name) are not accepted; remove it");
    if (tag)
        COMPLAIN(r, e->start_mark, "tags (!name) are not accepted; remove it");
    int deep = r->depth > DEPTH_MAX, many = !deep && ++r->nodes > NODES_MAX;
    if (deep)
        COMPLAIN(r, e->start_mark, "nested deeper than %d levels; two are enough", DEPTH_MAX);
    if (many)
        COMPLAIN(r, e->start_mark, "more than %d nodes", NODES_MAX);
    return !deep && !many;
}

/* Replaces every ${NAME} in *text. Returns 0 and adds a violation if a variable is not defined. */
static int interpolate(Reader *r, yaml_mark_t mark, char **text, size_t *len)
{
    for (char *s = strstr(*text, "${"); s;) {
        char *end = strchr(s, '}');
        size_t n = end ? (size_t)(end - s) - 2 : 0;
        if (!end || !n ||
            strspn(s + 2, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_") != n) {
            COMPLAIN(r, mark, "%s: expected ${NAME}; single quotes keep ${ as it is", quoted(s, strlen(s)));
            return 0;
        }
        char *name = keep_alloc(n + 1, 1);
        memcpy(name, s + 2, n);
        const char *value = getenv(name);
        if (!value || utf8_end(value, strlen(value)) != strlen(value)) {
            COMPLAIN(r, mark, "environment variable %s is %s", name, value ? "not UTF-8" : "not defined");
            return 0;
        }
        size_t at = (size_t)(s - *text) + strlen(value), size = *len - n - 3 + strlen(value);
        if (size > BYTES_MAX) {
            COMPLAIN(r, mark, "longer than %d bytes with environment variable %s", BYTES_MAX, name);
            return 0;
        }
        char *t = keep_alloc(size + 1, 1);
        memcpy(t, *text, (size_t)(s - *text));
        memcpy(t + (s - *text), value, strlen(value));
        memcpy(t + at, end + 1, *len - (size_t)(end + 1 - *text));
        *text = t;
        *len = size;
        s = strstr(t + at, "${");                      /* a ${ in a variable's value is not replaced */
    }
    return 1;
}

static int read_value(Reader *r, Value *v, int *ok);

/* Reads the items of a list, to its end. Lists within it are read but not kept. */
static int read_list(Reader *r, Value *v, int *ok)
{
    while (next(r)) {
        if (r->event.type == YAML_SEQUENCE_END_EVENT)
            return 1;
        if (!(v->n & (v->n - 1)))                      /* the array is full at every power of two */
            v->item = keep_grow(v->item, sizeof *v->item * (size_t)(v->n ? 2 * v->n : 1));
        if (!read_value(r, &v->item[v->n++], ok))
            return 0;
    }
    return 0;
}

static int skip_map(Reader *r, int *ok)
{
    Value ignored;
    while (next(r)) {
        if (r->event.type == YAML_MAPPING_END_EVENT)
            return 1;
        if (!read_value(r, &ignored, ok))
            return 0;
    }
    return 0;
}

/* Reads the value that starts with the current event, to its end. Returns 0 if reading stops. *ok = 0:
 * the value is unusable, for a reason that is listed already. */
static int read_value(Reader *r, Value *v, int *ok)
{
    const yaml_event_t *e = &r->event;
    *v = (Value){0};
    switch (e->type) {
    case YAML_ALIAS_EVENT:
        *ok = 0;
        return 1;
    case YAML_SEQUENCE_START_EVENT:
        *ok &= !e->data.sequence_start.anchor && !e->data.sequence_start.tag;
        v->kind = VALUE_LIST;
        return read_list(r, v, ok);
    case YAML_MAPPING_START_EVENT:
        v->kind = VALUE_MAP;
        return skip_map(r, ok);
    case YAML_SCALAR_EVENT:
        break;
    default:
        BUG_ON(e->type != YAML_SCALAR_EVENT);
    }
    *ok &= !e->data.scalar.anchor && !e->data.scalar.tag;
    v->quoted = e->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    v->len = e->data.scalar.length;
    char *text = keep_alloc(v->len + 1, 1);
    memcpy(text, e->data.scalar.value, v->len);
    if (e->data.scalar.style != YAML_SINGLE_QUOTED_SCALAR_STYLE && strlen(text) == v->len)
        *ok &= interpolate(r, e->start_mark, &text, &v->len);
    v->text = text;
    return 1;
}

/* Stores a value of a key. ok: the value is usable; key, value: places where they stand. */
static void set(Check *k, int option, const Value *v, int ok, Place key, Place value)
{
    char *error = ok ? value_store(&options[option], v, k->cfg) : NULL;
    k->seen[option] = 1;
    k->set[option] = key;
    k->bad[option] = !ok || error;
    if (error)
        check_add(k, value, "%s: %s", options[option].key, error);
}

static void unknown_key(Check *k, Place at, const char *key, size_t len, const char *section)
{
    int listed = k->n < VIOLATIONS_MAX;                /* beyond, violations are only counted */
    const char *dot = strrchr(key, '.'),
               *name = dot ? dot + 1 : key + strspn(key, "-"); /* optimizer.lr, --num-layers */
    const Alias *alias = listed && strlen(key) == len ? alias_find(name) : NULL;
    if (alias) {
        check_add(k, at, "unknown key %s; %s", quoted(key, len), alias_text(alias));
        k->guessed[alias->key ? option_find(alias->key) : 0] |= alias->key != NULL;
        return;
    }
    int guess = listed && strlen(key) == len && name != key ? option_like(name) : -1;
    if (guess >= 0) {
        check_add(k, at, "unknown key %s; write '%s' (section '%s')", quoted(key, len), options[guess].key,
                  options[guess].section);
        k->guessed[guess] = 1;
        return;
    }
    guess = listed && strlen(key) == len ? option_suggest(key, section) : -1;
    char *q = quoted(key, len);
    if (guess >= 0 && section && !strcmp(section, options[guess].section))
        check_add(k, at, "unknown key %s; did you mean '%s'?", q, options[guess].key);
    else if (guess >= 0)
        check_add(k, at, "unknown key %s; did you mean '%s' in section '%s'?", q, options[guess].key,
                  options[guess].section);
    else
        check_add(k, at, "unknown key %s; `train help%s%s` lists the keys", q, section ? " " : "",
                  section ? section : "");
    if (guess >= 0)
        k->guessed[guess] = 1;
}

/* Reads one `key: value`, whose key is the current event. section: name of its section; NULL: an unknown
 * one. */
static int read_key(Reader *r, const char *section)
{
    Check *k = r->k;
    Place at = place_of(r, r->event.start_mark);
    Value key, v;
    int key_ok = 1, ok = 1;
    if (r->event.type != YAML_SCALAR_EVENT) {
        COMPLAIN(r, r->event.start_mark, "expected a key");
        return read_value(r, &key, &key_ok) && next(r) && read_value(r, &v, &ok);
    }
    key = (Value){.quoted = 1, .len = r->event.data.scalar.length};
    key.text = keep_alloc(key.len + 1, 1);
    memcpy((char *)key.text, r->event.data.scalar.value, key.len);
    if (!next(r))
        return 0;
    Place value = place_of(r, r->event.start_mark);
    if (!read_value(r, &v, &ok))
        return 0;
    int option = strlen(key.text) == key.len ? option_find(key.text) : -1;
    if (option < 0) {
        unknown_key(k, at, key.text, key.len, section);
    } else if (k->seen[option]) {
        check_add(k, at, "%s: duplicate; first at line %d, column %d; keep one of them", key.text,
                  k->set[option].line, k->set[option].col);
    } else {
        if (section && strcmp(section, options[option].section))
            check_add(k, at, "%s: belongs to section '%s', not '%s'; move it", key.text,
                      options[option].section, section);
        set(k, option, &v, ok, at, value);
    }
    return 1;
}

/* Reads one `section: {keys}`, whose name is the current event. */
static int read_section(Reader *r)
{
    Check *k = r->k;
    Place at = place_of(r, r->event.start_mark);
    Value name = {0}, v;
    int ok = 1;
    if (!read_value(r, &name, &ok))
        return 0;
    if (name.kind != VALUE_SCALAR || !name.text) {
        if (ok)
            check_add(k, at, "expected a section's name");
        return next(r) && read_value(r, &v, &ok);
    }
    int s = strlen(name.text) == name.len ? section_find(name.text) : -1, guess = -1;
    char *q = quoted(name.text, name.len);
    if (s >= 0 && k->section[s].line) {
        check_add(k, at, "%s: duplicate section; first at line %d, column %d; merge them", q,
                  k->section[s].line, k->section[s].col);
    } else if (s >= 0) {
        k->section[s] = at;
    } else if (strlen(name.text) == name.len && (guess = option_find(name.text)) >= 0) {
        check_add(k, at, "%s: belongs into section '%s'; indent it below '%s:'", name.text,
                  options[guess].section, options[guess].section);
        k->guessed[guess] = 1;
        return next(r) && read_value(r, &v, &ok);
    } else if (strlen(name.text) == name.len && alias_find(name.text)) {
        unknown_key(k, at, name.text, name.len, NULL);
        return next(r) && read_value(r, &v, &ok);
    } else if (strlen(name.text) == name.len && (s = section_suggest(name.text)) >= 0) {
        check_add(k, at, "unknown section %s; did you mean '%s'?", q, sections[s].name);
    } else {
        check_add(k, at, "unknown section %s; `train help` lists them", q);
    }
    if (!next(r))
        return 0;
    if (r->event.type != YAML_MAPPING_START_EVENT) {
        Place value = place_of(r, r->event.start_mark);
        if (!read_value(r, &v, &ok))
            return 0;
        if (s >= 0 && ok && !(v.kind == VALUE_SCALAR && scalar_kind(&v) == SCALAR_NULL))
            check_add(k, value, "section '%s': expected keys below it, each as 'key: value', with a blank "
                      "behind the colon", name.text);
        return 1;
    }
    while (next(r)) {
        if (r->event.type == YAML_MAPPING_END_EVENT)
            return 1;
        if (!read_key(r, s >= 0 ? sections[s].name : NULL))
            return 0;
    }
    return 0;
}

static void read_document(Reader *r)
{
    Value v;
    int ok = 1;
    if (!next(r) || !next(r))                          /* start of the stream, start of the document */
        return;
    if (r->event.type == YAML_STREAM_END_EVENT) {
        r->alien = 1;
        check_add(r->k, (Place){1, 1, -1}, "the file is empty; expected sections: model, data, train, ...");
        return;
    }
    if (r->event.data.document_start.version_directive ||
        r->event.data.document_start.tag_directives.start != r->event.data.document_start.tag_directives.end)
        COMPLAIN(r, r->event.start_mark, "directives (%%) are not accepted; remove them");
    if (!next(r))
        return;
    if (r->event.type != YAML_MAPPING_START_EVENT) {
        COMPLAIN(r, r->event.start_mark, "expected sections: model, data, train, ...");
        r->alien = 1;
        if (!read_value(r, &v, &ok))
            return;
    } else {
        while (1) {
            if (!next(r))
                return;
            if (r->event.type == YAML_MAPPING_END_EVENT)
                break;
            if (!read_section(r))
                return;
        }
    }
    if (!next(r) || !next(r))                          /* end of the document, end of the stream */
        return;
    if (r->event.type != YAML_STREAM_END_EVENT)
        COMPLAIN(r, r->event.start_mark, "a second document; one file holds one configuration");
}

static void open_reader(Reader *r, Check *k, int arg, const char *name, const char *text, size_t size)
{
    *r = (Reader){.k = k, .arg = arg, .name = name};
    if (!yaml_parser_initialize(&r->yaml))
        no_memory();
    yaml_parser_set_encoding(&r->yaml, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&r->yaml, (const unsigned char *)text, size);
}

static void close_reader(Reader *r)
{
    yaml_event_delete(&r->event);
    yaml_parser_delete(&r->yaml);
}

/* Checks what libyaml accepts or reports badly: encoding, tabs, control characters. Returns 0 if the
 * text should not be parsed. */
static int check_bytes(Check *k, const char *text, size_t size)
{
    static const struct { const char *bytes, *name; int n; } marks[] = {
        {"\xEF\xBB\xBF", "UTF-8", 3}, {"\xFF\xFE", "UTF-16", 2}, {"\xFE\xFF", "UTF-16", 2}};
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (size >= (size_t)marks[i].n && !memcmp(text, marks[i].bytes, (size_t)marks[i].n)) {
            check_add(k, (Place){1, 1, -1}, "a %s byte order mark; save the file as UTF-8 without one",
                      marks[i].name);
            return 0;
        }
    size_t good = utf8_end(text, size);
    int line = 1, col = 1, indent = 1, before = k->n;
    for (size_t i = 0; i < good; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == '\t' && indent)
            check_add(k, (Place){line, col, -1}, "a tab in the indentation; use spaces");
        else if (!c)
            return check_add(k, (Place){line, col, -1}, "control character \\x00: this is no text, so no "
                             "configuration"), 0;
        else if ((c < 32 && c != '\t' && c != '\n' && c != '\r') || c == 127)
            check_add(k, (Place){line, col, -1}, "control character \\x%02x; remove it", c);
        indent = text[i] == '\n' || (indent && text[i] == ' ');
        col = text[i] == '\n' ? 1 : col + ((text[i] & 0xC0) != 0x80);
        line += text[i] == '\n';
    }
    if (good < size)
        check_add(k, (Place){line, col, -1}, "byte 0x%02x is not UTF-8", (unsigned char)text[good]);
    return good == size && k->n == before;
}

void config_parse_text(Check *k, const char *text, size_t size)
{
    Reader r;
    if (!check_bytes(k, text, size)) {
        k->unread = 1;
        return;
    }
    open_reader(&r, k, -1, NULL, text, size);
    read_document(&r);
    k->unread = r.event.type != YAML_STREAM_END_EVENT || r.alien;
    close_reader(&r);
}

void config_parse_file(Check *k, const char *path)
{
    Place nowhere = {0, 0, -1};
    struct stat st;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);    /* opening a FIFO must not block */
    k->path = path;
    k->unread = 1;
    if (fd < 0 || fstat(fd, &st)) {
        check_add(k, nowhere, "%s", strerror(errno));
        k->unopened = 1;
    } else if (!S_ISREG(st.st_mode)) {
        check_add(k, nowhere, "is %s, not a file",
                  S_ISDIR(st.st_mode) ? "a directory" : "a device or a pipe");
        k->unopened = 1;
    } else {
        char *text = xcalloc(BYTES_MAX + 2, 1);
        size_t size = 0;
        ssize_t n = 0;
        while (size <= BYTES_MAX &&
               ((n = read(fd, text + size, BYTES_MAX + 1 - size)) > 0 || (n < 0 && errno == EINTR)))
            size += n > 0 ? (size_t)n : 0;
        if (n < 0) {
            check_add(k, nowhere, "cannot be read: %s", strerror(errno));
            k->unopened = 1;
        } else if (size > BYTES_MAX)
            check_add(k, nowhere, "is larger than %d bytes", BYTES_MAX);
        else
            config_parse_text(k, text, size);
        free(text);
    }
    if (fd >= 0)
        close(fd);
}

/* Reads the value of an argument: one scalar or one list in flow form. */
static int read_argument(Reader *r, Value *v, int *ok)
{
    *v = (Value){.text = ""};                          /* nothing behind = is null, as in YAML */
    if (!next(r) || !next(r))
        return 0;
    if (r->event.type == YAML_STREAM_END_EVENT)
        return 1;
    int explicit = !r->event.data.document_start.implicit;
    if (!next(r))
        return 0;
    int block = r->event.type == YAML_SEQUENCE_START_EVENT &&
                r->event.data.sequence_start.style != YAML_FLOW_SEQUENCE_STYLE;
    if (!read_value(r, v, ok) || !next(r) || !next(r))
        return 0;
    int one = !block && !explicit && r->event.type == YAML_STREAM_END_EVENT;
    if (!one)
        COMPLAIN(r, r->event.start_mark, "expected one value: a scalar or [a, b]");
    return one;
}

int config_parse_value(Check *k, int arg, const char *key, const char *text, Value *v)
{
    Reader r;
    int ok = 1;
    open_reader(&r, k, arg, key, text, strlen(text));
    ok = read_argument(&r, v, &ok) && ok;
    close_reader(&r);
    return ok;
}

void config_parse_args(Check *k, int nargs, char **args)
{
    for (int i = 0; i < nargs; i++) {
        const char *text = strchr(args[i], '=');
        Place at = {0, 0, i};
        size_t n = text ? (size_t)(text - args[i]) : strlen(args[i]);
        char *key = keep_alloc(n + 1, 1), *q = quoted(args[i], strlen(args[i]));
        memcpy(key, args[i], n);
        int option = option_find(key), dashes = !strncmp(key, "--", 2);
        if (!text) {
            check_add(k, at, "%s: expected key=value", q);
        } else if (utf8_end(args[i], strlen(args[i])) != strlen(args[i]) || strlen(text) > BYTES_MAX) {
            check_add(k, at, "%s: not UTF-8, or longer than %d bytes", q, BYTES_MAX);
        } else if (option < 0 && dashes && option_find(key + 2) >= 0) {
            check_add(k, at, "%s: keys have no dashes; write '%s'", q, args[i] + 2);
        } else if (option < 0) {
            unknown_key(k, at, key, n, NULL);
        } else {
            Value v;                                   /* a later argument replaces an earlier one */
            int ok = config_parse_value(k, i, key, text + 1, &v);
            set(k, option, &v, ok, at, at);
        }
    }
}
