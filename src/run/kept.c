/* kept -- the file of a step that went wrong: written by the run, read by `train replay` */
#include "kept.h"
#include "json_number.h"
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

/* ---- writing ---- */

/* Prints the tokens of each sample as a row. Returns 0 and a reason. */
static int put_tokens(FILE *f, const Run *r, int64_t first, int64_t samples, char **why)
{
    int64_t n = r->cfg->seq_length + 1;
    int32_t *x = xcalloc((size_t)n, sizeof *x);
    int ok = 1;
    fputs("\"tokens\": [", f);
    for (int64_t s = 0; s < samples && ok; s++) {
        ok = loader_copy(r->loader, first + s, x, why);
        fputs(s ? ",\n[" : "\n[", f);
        for (int64_t i = 0; i < n && ok; i++)
            fprintf(f, i ? ",%d" : "%d", x[i]);
        fputc(']', f);
    }
    fputs("]}\n", f);
    free(x);
    return ok;
}

static void put_number(FILE *f, const char *name, double x)
{
    char text[32];
    fprintf(f, "\"%s\": %s, ", name, json_number_text(text, x));
}

void kept_write(const Run *r, const Metrics *m, int64_t first, Limits limits, const char *tensor)
{
    char why[WHY], name[32], *text = NULL, *failed = NULL;
    size_t size;
    if (r->grid.rank || !r->checkpoint.dir || !r->loader)
        return;
    char *folder = xasprintf("%s/replay", r->checkpoint.dir);
    FILE *f = xmemstream(&text, &size);
    fprintf(f, "{\"event\": \"%s\", \"iteration\": %lld, \"first_sample\": %lld, \"samples\": %lld,\n",
            tensor ? "not-finite" : "spike", (long long)m->iteration, (long long)first,
            (long long)m->global_batch_size);
    put_number(f, "loss", m->lm_loss);
    put_number(f, "grad_norm", m->grad_norm);
    put_number(f, "loss_limit", limits.loss);
    put_number(f, "grad_norm_limit", limits.norm);
    put_number(f, "loss_scale", m->loss_scale);
    put_number(f, "learning_rate", m->learning_rate);
    if (tensor)
        fprintf(f, "\"tensor\": \"%s\", ", tensor);
    fprintf(f, "\"build\": \"%s\",\n", config_build_id());
    int ok = put_tokens(f, r, first, m->global_batch_size, &failed);
    fclose(f);
    snprintf(name, sizeof name, "iter_%07lld.json", (long long)m->iteration);
    if (!ok)
        warn("the batch of iteration %lld is not kept: %s", (long long)m->iteration, failed);
    else if (!file_make_dirs(folder, why) || !file_replace_in(folder, name, text, (int64_t)size, why))
        warn("the batch of iteration %lld is not kept: %s", (long long)m->iteration, why);
    free(failed);
    free(text);
    free(folder);
}

/* ---- reading ---- */

/* The newest file's iteration; -1: there is none. */
static int64_t newest(const char *folder)
{
    int64_t most = -1;
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        long long i;
        int end = 0;
        if (sscanf(e->d_name, "iter_%lld.json%n", &i, &end) == 1 && end && !e->d_name[end] && i > most)
            most = i;
    }
    if (d)
        closedir(d);
    return most;
}

static double number_of(const json_t *o, const char *name)
{
    const json_t *v = json_object_get(o, name);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

/* Copies the tokens of a row. Returns 0 where it is none. */
static int copy_row(int32_t *to, const json_t *row, int64_t n)
{
    if (!json_is_array(row) || (int64_t)json_array_size(row) != n)
        return 0;
    for (int64_t i = 0; i < n; i++) {
        json_t *v = json_array_get(row, (size_t)i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > INT32_MAX)
            return 0;
        to[i] = (int32_t)json_integer_value(v);
    }
    return 1;
}

static int take(Kept *k, const json_t *o, int64_t seq)
{
    json_int_t iteration, first, samples;
    const char *event;
    json_t *tokens;
    if (!o || json_unpack((json_t *)o, "{s:s s:I s:I s:I s:o}", "event", &event, "iteration", &iteration,
                          "first_sample", &first, "samples", &samples, "tokens", &tokens) ||
        strlen(event) >= sizeof k->event || iteration < 1 || iteration > 1000000000 || first < 0 ||
        first > INT64_MAX / 4 || samples < 1 ||
        !json_is_array(tokens) || json_array_size(tokens) != (size_t)samples)
        return 0;
    *k = (Kept){.iteration = iteration, .first = first, .samples = samples, .loss = number_of(o, "loss"),
                .norm = number_of(o, "grad_norm"),
                .limits = {number_of(o, "loss_limit"), number_of(o, "grad_norm_limit"), 0}};
    snprintf(k->event, sizeof k->event, "%s", event);
    text_plain(k->event, strlen(k->event), "");
    k->tokens = xcalloc((size_t)(samples * (seq + 1)), sizeof *k->tokens);
    for (int64_t s = 0; s < samples; s++)
        if (!copy_row(k->tokens + s * (seq + 1), json_array_get(tokens, (size_t)s), seq + 1)) {
            free(k->tokens);
            return 0;
        }
    return 1;
}

int kept_read(Kept *k, const char *run_dir, int64_t iteration, int64_t seq, char why[WHY])
{
    char *folder = xasprintf("%s/replay", run_dir);
    int64_t i = iteration < 0 ? newest(folder) : iteration, size;
    char *path = xasprintf("%s/iter_%07lld.json", folder, (long long)i);
    char *text = i < 0 ? NULL : file_read_text(AT_FDCWD, path, 0, (int64_t)1 << 32, &size, why);
    json_t *o = text ? json_loadb(text, (size_t)size, JSON_REJECT_DUPLICATES, NULL) : NULL;
    int ok = take(k, o, seq);
    if (i < 0)
        file_why(why, "%s: no step is kept there", folder);
    else if (text && !ok)
        file_why(why, "%s: is not a step that a run of %lld tokens a sample has kept", path, (long long)seq);
    json_decref(o);
    free(text);
    free(path);
    free(folder);
    return ok;
}
