/* machine -- machine descriptions read and written */
#define _GNU_SOURCE
#include "machine.h"
#include "config_table.h"
#include "file.h"
#include "run.h"
#include <fcntl.h>
#include <unistd.h>
#include <yaml.h>

#define FIELD(section, key, type, def, legal, help)                                                          \
    {#section, #key, TYPE_##type, def, legal, CHANGE_FREE, help, NULL, offsetof(Machine, key)},
static const Option fields[] = {
#include "machine.def"
};
#undef FIELD
enum { FIELDS = sizeof fields / sizeof *fields };

double curve_at(const Curve *c, double size)
{
    int i = 0;
    while (i < c->n && c->size[i] < size)
        i++;
    if (i == 0 || i == c->n)
        return c->share[i ? i - 1 : 0];
    double t = log(size / c->size[i - 1]) / log(c->size[i] / c->size[i - 1]);
    return c->share[i - 1] + t * (c->share[i] - c->share[i - 1]);
}

/* ---- the file ---- */

/* part, bool: the rest of the description could not be read, so that nothing is said of what is missing */
typedef struct { Check list; Machine *m; int part; uint8_t seen[FIELDS]; Place at[FIELDS]; } Reading;

static Place place_of(yaml_mark_t m) { return (Place){(int)m.line + 1, (int)m.column + 1, -1}; }

static int field_find(const char *key) { return option_find_in(fields, FIELDS, key); }

/* "; did you mean 'KEY'?" with the key most like this one; "": none is like it. */
static const char *nearest_field(const char *key)
{
    const char *names[FIELDS + 1] = {0};
    for (int i = 0; i < FIELDS; i++)
        names[i] = fields[i].key;
    int guess = choice_suggest(key, names);
    return guess < 0 ? "" : textf("; did you mean '%s'?", fields[guess].key);
}

static Value value_of(const yaml_document_t *doc, const yaml_node_t *node)
{
    Value v = {.kind = node->type == YAML_SCALAR_NODE     ? VALUE_SCALAR
                       : node->type == YAML_SEQUENCE_NODE ? VALUE_LIST
                                                          : VALUE_MAP};
    if (node->type == YAML_SCALAR_NODE) {
        char *text = keep_alloc(node->data.scalar.length + 1, 1);
        memcpy(text, node->data.scalar.value, node->data.scalar.length);
        v.text = text;
        v.len = node->data.scalar.length;
        v.quoted = node->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    } else if (node->type == YAML_SEQUENCE_NODE) {
        yaml_node_item_t *first = node->data.sequence.items.start;
        v.n = (int)(node->data.sequence.items.top - first);
        v.item = keep_alloc((size_t)v.n + 1, sizeof *v.item);
        for (int i = 0; i < v.n; i++) {
            const yaml_node_t *item = yaml_document_get_node((yaml_document_t *)doc, first[i]);
            if (item->type == YAML_SCALAR_NODE)
                v.item[i] = value_of(doc, item);
            else
                v.item[i].kind = VALUE_LIST;
        }
    }
    return v;
}

static void read_field(Reading *r, yaml_document_t *doc, const char *section, const yaml_node_pair_t *pair)
{
    const yaml_node_t *key = yaml_document_get_node(doc, pair->key),
                      *node = yaml_document_get_node(doc, pair->value);
    Place at = place_of(key->start_mark);
    if (key->type != YAML_SCALAR_NODE) {
        check_add(&r->list, at, "expected a key");
        return;
    }
    const char *name = (const char *)key->data.scalar.value;
    int i = field_find(name);
    if (i < 0) {
        check_add(&r->list, at, "unknown key %s%s", quoted(name, strlen(name)), nearest_field(name));
    } else if (strcmp(fields[i].section, section)) {
        check_add(&r->list, at, "%s: belongs to section '%s', not '%.40s'", name, fields[i].section, section);
    } else if (r->seen[i]) {
        check_add(&r->list, at, "%s: duplicate; first at line %d", name, r->at[i].line);
    } else {
        Value v = value_of(doc, node);
        char *error = value_store(&fields[i], &v, r->m);
        r->seen[i] = 1;
        r->at[i] = at;
        if (error)
            check_add(&r->list, place_of(node->start_mark), "%s: %s", name, error);
    }
}

static void read_document(Reading *r, yaml_document_t *doc)
{
    const yaml_node_t *root = yaml_document_get_root_node(doc);
    if (!root || root->type != YAML_MAPPING_NODE) {
        check_add(&r->list, (Place){1, 1, -1}, "expected sections: machine, device, node, network, ops");
        r->part = 1;
        return;
    }
    for (yaml_node_pair_t *s = root->data.mapping.pairs.start; s < root->data.mapping.pairs.top; s++) {
        const yaml_node_t *name = yaml_document_get_node(doc, s->key),
                          *body = yaml_document_get_node(doc, s->value);
        if (name->type != YAML_SCALAR_NODE || body->type != YAML_MAPPING_NODE) {
            check_add(&r->list, place_of(name->start_mark), "expected a section and keys below it");
            continue;
        }
        for (yaml_node_pair_t *p = body->data.mapping.pairs.start; p < body->data.mapping.pairs.top; p++)
            read_field(r, doc, (const char *)name->data.scalar.value, p);
    }
}

static void parse(Reading *r, const char *text, size_t size)
{
    yaml_parser_t y;
    yaml_document_t doc;
    int ready = yaml_parser_initialize(&y);
    if (ready)
        yaml_parser_set_input_string(&y, (const unsigned char *)text, size);
    int loaded = ready && yaml_parser_load(&y, &doc);
    if (!ready || y.error == YAML_MEMORY_ERROR)
        die(EXIT_RESOURCE, "memory", "no memory for the YAML parser; change: free memory on this machine");
    if (!loaded) {
        check_add(&r->list, place_of(y.problem_mark), "not YAML: %s",
                  y.problem ? y.problem : "cannot be read");
        r->part = 1;
    } else {
        read_document(r, &doc);
        yaml_document_delete(&doc);
    }
    yaml_parser_delete(&y);
}

/* ---- what follows from the values ---- */

static Curve curve_of(Reading *r, const char *key, const List *l)
{
    Place at = r->at[field_find(key)];
    Curve c = {.n = l->n / 2};
    if (l->n % 2 || !l->n) {
        check_add(&r->list, at, "%s: %d numbers; expected pairs of a size and a share", key, l->n);
        return (Curve){0};
    }
    c.size = keep_alloc((size_t)c.n, sizeof *c.size);
    c.share = keep_alloc((size_t)c.n, sizeof *c.share);
    for (int i = 0; i < c.n; i++) {
        c.size[i] = strtod(l->v[2 * i], NULL);
        c.share[i] = strtod(l->v[2 * i + 1], NULL);
        if (i && c.size[i] <= c.size[i - 1])
            check_add(&r->list, at, "%s: %g after %g; sizes go upward", key, c.size[i], c.size[i - 1]);
        if (c.share[i] > 2)            /* caches give shares above 1 */
            check_add(&r->list, at, "%s: %g is no share of a peak", key, c.share[i]);
    }
    return c;
}

static void read_speeds(Reading *r, const char *key, const List *l, double speed[OPKINDS])
{
    Place at = r->at[field_find(key)];
    for (int w = 0; w < OPKINDS; w++)
        speed[w] = 1;
    for (int i = 0; i + 1 < l->n; i += 2) {
        char *end;
        double x = strtod(l->v[i + 1], &end);
        int w = 0;
        while (w < OPKINDS && strcmp(op_name[w], l->v[i]))
            w++;
        if (w == OPKINDS)
            check_add(&r->list, at, "%s: '%.40s' is no operation of kernels/device.h", key, l->v[i]);
        else if (*end || !(x > 0) || !isfinite(x))
            check_add(&r->list, at, "%s: %s has the speed '%.40s'; expected a number above 0", key, l->v[i],
                      l->v[i + 1]);
        else
            speed[w] = x;
    }
    if (l->n % 2)
        check_add(&r->list, at, "%s: %d values; expected pairs of a name and a speed", key, l->n);
}

static void resolve(Reading *r)
{
    Machine *m = r->m;
    for (int i = 0; i < FIELDS; i++)
        if (option_required(&fields[i]) && !r->part && !r->seen[i] && option_absent(&fields[i], m))
            check_add(&r->list, (Place){1, 1, -1}, "%s: missing in section '%s'; expected %s", fields[i].key,
                      fields[i].section, legal_text(&fields[i]));
    if (r->list.n)
        return;
    m->matmul = curve_of(r, "matmul_efficiency", &m->matmul_efficiency);
    m->memory = curve_of(r, "memory_efficiency", &m->memory_efficiency);
    read_speeds(r, "op_speed", &m->op_speed, m->speed);
    read_speeds(r, "op_speed_shared", &m->op_speed_shared, m->together);
    if (isnan(m->message_gbps))
        m->message_gbps = m->link_gbps;
    m->unfused = !strcmp(m->op_set, "unfused");
    m->separate = !strcmp(m->op_set, "separate");
    if (!m->unfused && !m->separate && strcmp(m->op_set, "fused"))
        check_add(&r->list, r->at[field_find("op_set")],
                  "op_set: '%.40s' is none of fused, separate, unfused", m->op_set);
}

/* ---- where it is ---- */

/* The path of a description: name itself if it ends in .yaml, else below the current directory or a
 * folder above the executable. */
static const char *path_of(const char *name)
{
    size_t n = strlen(name);
    if (n > 5 && !strcmp(name + n - 5, ".yaml"))
        return text_copy(name);
    char *shipped = file_shipped(textf("configs/machines/%s.yaml", name));
    const char *path = text_copy(shipped);
    free(shipped);
    return path;
}

int64_t machine_reserve(const Machine *m, int world)
{
    double alone = isnan(m->reserve_alone_gib) ? (double)RUN_RESERVE : m->reserve_alone_gib * (1 << 30);
    double several = isnan(m->reserve_gib) ? (double)RUN_RESERVE_NCCL : m->reserve_gib * (1 << 30);
    return m->shared ? 0 : (int64_t)(world > 1 ? several : alone);
}

double machine_space(const Machine *m, int world)
{
    return machine_room(m, world) - (double)machine_reserve(m, world);
}

int machine_fits(const Machine *m, int world, int64_t bytes)
{
    return (double)bytes <= machine_space(m, world);
}

Machine *machine_blank(void)
{
    Machine *m = keep_alloc(1, sizeof *m);
    option_defaults(fields, FIELDS, m);
    return m;
}

/* Reads a file into *m, over the values that are there. depth: number of `like` followed. */
static void load(Machine *m, const char *path, int depth)
{
    char why[WHY];
    int64_t size;
    Reading r = {.list = {.path = path}, .m = m};
    char *text = file_read_text(AT_FDCWD, path, 0, 1 << 20, &size, why);
    if (!text)
        die(EXIT_CONFIG, "machine",
            "%s; change: --machine NAME with configs/machines/NAME.yaml, or the path of a .yaml file", why);
    m->like = NULL;
    parse(&r, text, (size_t)size);
    if (m->like && depth > 4) {
        check_add(&r.list, r.at[field_find("like")], "like: descriptions refer to each other in a circle");
        r.part = 1;
    } else if (m->like) {
        Machine *base = machine_blank();
        const char *slash = strrchr(path, '/');
        const char *beside = textf("%.*s%s.yaml", slash ? (int)(slash + 1 - path) : 0, path, m->like);
        load(base, access(beside, F_OK) ? path_of(m->like) : beside, depth + 1);
        for (int i = 0; i < FIELDS; i++)
            if (!r.seen[i])
                option_copy(&fields[i], m, base);
    }
    resolve(&r);
    free(text);
    if (!r.list.n)
        return;
    check_print(&r.list, stderr);
    die(EXIT_CONFIG, "machine", "%d problem%s in %s; change: what the list above names", r.list.n,
        r.list.n == 1 ? "" : "s", path);
}

const Machine *machine_load(const char *name)
{
    Machine *m = machine_blank();
    m->path = path_of(name);
    load(m, m->path, 0);
    return m;
}

void machine_write(FILE *f, const Machine *m, const char *notes)
{
    const char *section = "";
    fputs(notes, f);
    for (int i = 0; i < FIELDS; i++) {
        if (option_absent(&fields[i], m))
            continue;
        if (strcmp(section, fields[i].section))
            fprintf(f, "%s:\n", section = fields[i].section);
        fprintf(f, "  %s: ", fields[i].key);
        value_print(f, &fields[i], m);
        fputc('\n', f);
    }
}
