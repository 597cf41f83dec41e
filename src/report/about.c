/* about -- run.json: read, updated, written */
#define _GNU_SOURCE
#include "about.h"
#include "json_number.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

double about_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static json_t *child(json_t *parent, const char *name, json_t *fresh)
{
    json_t *o = json_object_get(parent, name);
    if (o) {
        json_decref(fresh);
        return o;
    }
    json_object_set_new(parent, name, fresh);
    return fresh;
}

static json_t *machine_facts(void)
{
    char line[512], cpu[256] = "", host[65] = "";
    struct sysinfo info = {0};
    struct utsname u = {0};
    FILE *f = fopen("/proc/cpuinfo", "re");
    while (f && !*cpu && fgets(line, sizeof line, f))
        sscanf(line, "model name%*[ \t]: %255[^\n]", cpu);
    if (f)
        fclose(f);
    gethostname(host, sizeof host - 1);
    sysinfo(&info);
    uname(&u);
    return json_pack("{s:o s:o s:I s:I s:o}", "host", json_text(host), "cpu",
                     json_text(*cpu ? cpu : u.machine), "cores", (json_int_t)sysconf(_SC_NPROCESSORS_ONLN),
                     "memory_bytes", (json_int_t)info.totalram * info.mem_unit, "system",
                     json_text(u.release));
}

/* Adds the facts `model` ("6 layers, 256 wide, ...") and `layout` ("tensor 2, ..."). */
static void describe(About *a, const Config *c)
{
    char *activation = config_text(c, OPT_activation), *norm = config_text(c, OPT_normalization);
    char *position = config_text(c, OPT_position_embedding_type), *dtype = config_text(c, OPT_params_dtype);
    char *optimizer = config_text(c, OPT_optimizer), *schedule = config_text(c, OPT_pipeline_schedule);
    char *groups = c->num_query_groups == c->num_attention_heads
                       ? xstrdup("")
                       : xasprintf(" (%lld for keys and values)", (long long)c->num_query_groups);
    char *model = xasprintf("%lld layers, %lld wide, %lld heads of %lld%s, feed-forward %s %lld, %s, "
                            "positions %s; sequence %lld, vocabulary %lld; %s; %s",
                            (long long)c->num_layers, (long long)c->hidden_size,
                            (long long)c->num_attention_heads, (long long)c->kv_channels, groups, activation,
                            (long long)c->ffn_hidden_size, norm, position, (long long)c->seq_length,
                            (long long)c->vocab_size, dtype, optimizer);
    char *layout =
        xasprintf("tensor %lld, context %lld, expert %lld, pipeline %lld, data %lld; %s; micro batch %lld",
                  (long long)c->tensor_model_parallel_size, (long long)c->context_parallel_size,
                  (long long)c->expert_model_parallel_size, (long long)c->pipeline_model_parallel_size,
                  (long long)c->data_parallel_size, schedule, (long long)c->micro_batch_size);
    about_fact(a, "model", model);
    about_fact(a, "layout", layout);
    char *all[] = {activation, norm, position, dtype, optimizer, schedule, groups, model, layout};
    for (int i = 0; i < 9; i++)
        free(all[i]);
}

/* Returns the origin of a session. A start by the supervisor that also made the last session keeps that
 * one's: what lies between them counts. Any other start leaves out the time since the run ended.
 *   last     in    the session before; NULL: none
 *   began    in    s since 1970: when the launcher, or without one this command, was started */
static double origin_of(const json_t *last, double began, double spent)
{
    double origin = json_number_value(json_object_get(last, "origin")),
           ended = json_number_value(json_object_get(last, "ended"));
    if (origin > 0 && json_number_value(json_object_get(last, "started")) >= began)
        return origin;
    return began - (origin > 0 && ended - origin > spent ? ended - origin : spent);
}

/* run.json; NULL: there is none, or something else. */
static json_t *read_json(int dir)
{
    char why[WHY];
    int64_t size;
    char *text = file_read_text(dir, "run.json", 0, 1 << 26, &size, why);
    json_t *o = text ? json_loadb(text, (size_t)size, 0, NULL) : NULL;
    free(text);
    if (json_is_object(o))
        return o;
    json_decref(o);
    return NULL;
}

int64_t about_began(int dir, int64_t resume)
{
    json_t *o = read_json(dir), *first = json_array_get(json_object_get(o, "sessions"), 0);
    json_t *from = json_object_get(first, "from");
    int64_t began = json_is_integer(from) ? json_integer_value(from) : resume;
    json_decref(o);
    return began;
}

double about_open(About *a, const Config *cfg, const LogStart *s, int dir, double spent)
{
    double time = about_now();
    json_t *session = json_pack("{s:o s:I s:o s:o}", "started", json_number(time), "from",
                                (json_int_t)s->resume_iteration, "command",
                                json_text(s->command ? s->command : ""), "build",
                                json_text(s->build ? s->build : ""));
    *a = (About){.json = dir >= 0 && s->resume_iteration > 0 ? read_json(dir) : NULL, .dirty = 1};
    a->json = a->json ? a->json : json_object();
    if (s->id)
        json_object_set_new(a->json, "id", json_text(s->id));
    json_object_set_new(a->json, "total_iterations", json_integer(s->total_iterations));
    json_object_set_new(a->json, "parameters", json_integer(s->parameters));
    json_object_set_new(a->json, "devices", json_integer(s->devices ? s->devices : 1));
    json_object_set_new(a->json, "flops_per_token", json_number(s->flops_per_token));
    json_object_set_new(a->json, "machine", machine_facts());
    json_t *sessions = child(a->json, "sessions", json_array());
    const char *launched = getenv("GRIDIRON_STARTED");     /* by scripts/launch: s since 1970 */
    double origin = origin_of(json_array_get(sessions, json_array_size(sessions) - 1),
                              launched ? strtod(launched, NULL) : time - s->age, spent);
    json_object_set_new(session, "origin", json_number(origin));
    json_array_append_new(sessions, session);
    describe(a, cfg);
    return time - origin;
}

void about_close(About *a)
{
    json_decref(a->json);
    *a = (About){0};
}

void about_fact(About *a, const char *name, const char *text)
{
    json_object_set_new(child(a->json, "facts", json_object()), name, json_text(text));
    a->dirty = 1;
}

void about_memory(About *a, const char *category, int64_t planned, int64_t used)
{
    json_t *o = json_pack("{s:o s:o}", "planned", planned < 0 ? json_null() : json_integer(planned), "used",
                          used < 0 ? json_null() : json_integer(used));
    json_object_set_new(child(a->json, "memory", json_object()), category, o);
    a->dirty = 1;
}

void about_end(About *a, const char *why)
{
    json_t *sessions = json_object_get(a->json, "sessions");
    json_t *session = json_array_get(sessions, json_array_size(sessions) - 1);
    json_object_set_new(session, "ended", json_number(about_now()));
    json_object_set_new(session, "why", json_text(why));
    a->dirty = 1;
}

int about_save(About *a, int dir, char why[WHY])
{
    if (!a->dirty || dir < 0)
        return 1;
    char *text = json_dumps(a->json, JSON_INDENT(2));
    int ok = file_replace(dir, "run.json", text, (int64_t)strlen(text), why);
    a->dirty = !ok;
    free(text);
    return ok;
}
