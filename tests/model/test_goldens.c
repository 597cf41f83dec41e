/* test_goldens -- compares what `train` wrote with the golden values in tests/golden (see make_goldens.py
 * there). tests/model/goldens runs both; by hand:
 *
 *   test_goldens dump GOLDEN OUT DTYPE            a file of `train dump --names hf`
 *   test_goldens weights GOLDEN DIR METRICS DTYPE an exported directory and metrics.jsonl after ten steps
 *   test_goldens same DIR DIR                     two Hugging Face directories: same tensors, byte for byte
 *
 * Relative error of a tensor: largest absolute difference over the larger of the golden's largest absolute
 * value and 1e-6 of the largest gradient's (some gradients are zero in exact arithmetic). Key biases, whose
 * gradient is such a zero in GPT-2, lie inside its query-key-value bias and are measured beside the whole of
 * it. */
#include "safetensors.h"
#include "test.h"
#include <fcntl.h>
#include <glob.h>

static const struct { const char *dtype; double values, weights; } tolerances[] = {
    {"fp64", 1e-11, 1e-9}, {"fp32", 2e-5, 1e-4}, {"bf16", 8e-2, 0}, {"fp16", 1e-2, 0},
};
#define RATE_TOLERANCE 1e-14       /* learning rates, computed in F64 whatever the type of the model */

typedef struct {
    char name[128];                /* the file's tensor name, after plain_name */
    int type, ndim;
    int64_t shape[ST_DIMS], n, bytes;
    void *raw;
    double *v;                     /* the values */
} Tensor;

typedef struct { int n; Tensor *t; } Tensors;

static double value(const Tensor *t, int64_t i)
{
    switch (t->type) {
    case F64: return ((double *)t->raw)[i];
    case F32: return ((float *)t->raw)[i];
    case I64: return (double)((int64_t *)t->raw)[i];
    }
    BUG_ON("a type that no golden has");
}

/* Drops "transformer.", also behind "grad.": GPT-2's names come with and without it. */
static void plain_name(char *out, size_t size, const char *s)
{
    const char *p = strstr(s, "transformer.");
    snprintf(out, size, "%.*s%s", p ? (int)(p - s) : 0, s, p ? p + 12 : s);
}

static void load_file(Tensors *set, const char *path)
{
    StFile f;
    char why[WHY];
    if (!st_open(&f, AT_FDCWD, path, 0, why))
        die(EXIT_COMPARE, "golden", "%s: %s; change: make the file again", path, why);
    const char *format = st_meta(&f, "format");
    CHECK(format && !strcmp(format, "pt"), "%s: metadata format is %s, not pt", path,
          format ? format : "absent");
    set->t = xrealloc(set->t, (size_t)(set->n + f.n) * sizeof *set->t);
    for (int i = 0; i < f.n; i++) {
        const StTensor *s = &f.tensor[i];
        if (s->ndim == 4 && strstr(s->name, ".attn.bias"))
            continue;              /* GPT-2's causal mask, not a parameter */
        Tensor *t = &set->t[set->n++];
        *t = (Tensor){.type = s->type, .ndim = s->ndim, .n = st_elements(s), .bytes = s->bytes};
        plain_name(t->name, sizeof t->name, s->name);
        memcpy(t->shape, s->shape, sizeof t->shape);
        t->raw = xcalloc(1, (size_t)s->bytes + 1);
        if (!st_read(&f, s, 0, t->raw, s->bytes, why))
            die(EXIT_COMPARE, "golden", "%s: %s; change: make the file again", path, why);
        t->v = xcalloc((size_t)t->n + 1, sizeof *t->v);
        for (int64_t k = 0; k < t->n; k++)
            t->v[k] = value(t, k);
    }
    st_close(&f);
}

static void release(Tensors *set)
{
    for (int i = 0; i < set->n; i++) {
        free(set->t[i].raw);
        free(set->t[i].v);
    }
    free(set->t);
}

static Tensors load_directory(const char *dir)
{
    Tensors set = {0};
    glob_t g;
    char *pattern = xasprintf("%s/*.safetensors", dir);
    CHECK(glob(pattern, 0, NULL, &g) == 0, "no safetensors in %s", dir);
    for (size_t i = 0; !test_failures && i < g.gl_pathc; i++)
        load_file(&set, g.gl_pathv[i]);
    globfree(&g);
    free(pattern);
    return set;
}

static Tensor *find(const Tensors *set, const char *name)
{
    for (int i = 0; i < set->n; i++)
        if (!strcmp(set->t[i].name, name))
            return &set->t[i];
    return NULL;
}

static int same_shape(const Tensor *a, const Tensor *b)
{
    return a->ndim == b->ndim && !memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof a->shape[0]);
}

static double largest(const Tensor *t)
{
    double m = 0;
    for (int64_t i = 0; i < t->n; i++)
        m = fmax(m, fabs(t->v[i]));
    return m;
}

/* The largest difference, relative to golden's largest value or to `floor` if that is larger. A NaN
 * gives NaN, which is within no tolerance. */
static double relative(const Tensor *got, const Tensor *golden, double floor)
{
    double d = 0, scale = fmax(largest(golden), floor);
    for (int64_t i = 0; i < golden->n; i++) {
        double e = fabs(got->v[i] - golden->v[i]);
        d = e > d || e != e ? e : d;
        if (d != d)
            break;
    }
    return d == 0 ? 0 : d / scale;
}

/* Compares every golden tensor named `prefix` + REST with the tensor of `got` named `put` + REST. */
static void compare(const Tensors *golden, const Tensors *got, const char *prefix, const char *put,
                    double tolerance)
{
    double top = 0, worst = 0;
    char name[256], where[256] = "";
    int n = 0;
    for (int i = 0; i < golden->n; i++)
        if (!strncmp(golden->t[i].name, "grad.", 5))
            top = fmax(top, largest(&golden->t[i]));
    for (int i = 0; i < golden->n; i++) {
        const Tensor *g = &golden->t[i];
        if (strncmp(g->name, prefix, strlen(prefix)))
            continue;
        snprintf(name, sizeof name, "%s%s", put, g->name + strlen(prefix));
        const Tensor *t = find(got, name);
        CHECK(t, "%s is missing", name);
        if (!t)
            continue;
        CHECK(same_shape(t, g), "%s has another shape", name);
        if (!same_shape(t, g))
            continue;
        double e = relative(t, g, strncmp(prefix, "grad.", 5) ? 0 : 1e-6 * top);
        CHECK(e <= tolerance, "%s: relative error %.2e > %.0e", name, e, tolerance);
        if (e > worst || e != e)
            worst = e, memcpy(where, name, sizeof where);
        n++;
    }
    printf("# %s %d tensors, worst %.1e %s (tolerance %.0e)\n", prefix, n, worst, where, tolerance);
    CHECK(n > 0, "no golden begins with %s", prefix);
}

static void check_exact(const Tensors *golden, const Tensors *got, const char *name)
{
    const Tensor *a = find(golden, name), *b = find(got, name);
    CHECK(b && b->type == I64 && same_shape(a, b) && !memcmp(a->raw, b->raw, (size_t)a->bytes),
          "%s differ: not the samples that Megatron's order gives", name);
}

static void dump(const char *golden_path, const char *path, const char *dtype, double tolerance)
{
    Tensors golden = {0}, got = {0};
    load_file(&golden, golden_path);
    load_file(&got, path);
    int real = strcmp(dtype, "fp64") ? F32 : F64, grads = 0;
    check_exact(&golden, &got, "tokens");
    check_exact(&golden, &got, "labels");
    if (test_failures)
        goto end;                  /* with other samples every other tensor differs too */
    const Tensor *mask = find(&got, "loss_mask"), *tokens = find(&golden, "tokens");
    CHECK(mask && mask->type == F32 && same_shape(mask, tokens), "loss_mask is not F32 of tokens' shape");
    for (int64_t i = 0; mask && i < mask->n; i++)
        CHECK(mask->v[i] == 1, "loss_mask[%ld] is %g", (long)i, mask->v[i]);
    const Tensor *loss = find(&got, "loss"), *logits = find(&got, "logits");
    CHECK(loss && loss->type == F64 && loss->ndim == 0, "loss is not one F64");
    CHECK(logits && logits->type == real, "logits have another type");
    compare(&golden, &got, "loss", "loss", tolerance);
    compare(&golden, &got, "logits", "logits", tolerance);
    compare(&golden, &got, "grad.", "grad.", tolerance);
    for (int i = 0; i < got.n; i++)
        if (!strncmp(got.t[i].name, "grad.", 5)) {
            CHECK(got.t[i].type == real, "%s has another type", got.t[i].name);
            grads++;
        }
    for (int i = 0; i < golden.n; i++)
        grads -= !strncmp(golden.t[i].name, "grad.", 5);
    CHECK(grads == 0, "%d gradients more than parameters", grads);
end:
    release(&golden);
    release(&got);
}

/* Compares the numbers of metrics.jsonl with those of the golden steps. */
static void check_metrics(const Tensors *golden, const char *path, double tolerance)
{
    static const struct { const char *key, *golden; } columns[] = {
        {"lm_loss", "step.loss"}, {"grad_norm", "step.grad_norm"}, {"learning_rate", "step.lr"}};
    FILE *f = fopen(path, "r");
    CHECK(f, "cannot open %s", path);
    if (!f)
        return;
    char *line = NULL;
    size_t size = 0;
    int steps = 0;
    while (getline(&line, &size, f) > 0) {
        json_t *o = json_loads(line, 0, NULL);
        CHECK(o, "%s: not JSON: %s", path, line);
        if (!o)
            break;
        int64_t step = json_integer_value(json_object_get(o, "iteration"));
        if (!json_object_get(o, "lm_loss")) {
            json_decref(o);        /* an evaluation */
            continue;
        }
        CHECK(step == steps + 1, "iteration %ld after %d", (long)step, steps);
        for (size_t c = 0; c < sizeof columns / sizeof *columns; c++) {
            const Tensor *t = find(golden, columns[c].golden);
            double want = steps < t->n ? t->v[steps] : NAN,
                   x = json_number_value(json_object_get(o, columns[c].key));
            double e = fabs(x - want) / fmax(fabs(want), 1e-300);
            CHECK(e <= (c == 2 ? RATE_TOLERANCE : tolerance), "step %d: %s is %.17g, should be %.17g (%.1e)",
                  steps + 1, columns[c].key, x, want, e);
        }
        steps++;
        json_decref(o);
    }
    CHECK(steps == find(golden, "step.lr")->n, "%d steps in %s", steps, path);
    free(line);
    fclose(f);
}

static void weights(const char *golden_path, const char *dir, const char *metrics, double tolerance)
{
    Tensors golden = {0}, got = load_directory(dir);
    load_file(&golden, golden_path);
    int n = 0;
    for (int i = 0; i < golden.n; i++)
        n += !strncmp(golden.t[i].name, "after.", 6);
    CHECK(got.n == n, "%d tensors in %s, should be %d", got.n, dir, n);
    compare(&golden, &got, "after.", "", tolerance);
    check_metrics(&golden, metrics, tolerance);
    release(&golden);
    release(&got);
}

static void same(const char *dir_a, const char *dir_b)
{
    Tensors a = load_directory(dir_a), b = load_directory(dir_b);
    CHECK(a.n == b.n && a.n > 0, "%d tensors in %s, %d in %s", a.n, dir_a, b.n, dir_b);
    for (int i = 0; i < a.n; i++) {
        const Tensor *s = &a.t[i], *t = find(&b, s->name);
        CHECK(t, "%s is not in %s", s->name, dir_b);
        CHECK(!t || (t->type == s->type && same_shape(s, t) && !memcmp(s->raw, t->raw, (size_t)s->bytes)),
              "%s differs", s->name);
    }
    release(&a);
    release(&b);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "", *dtype = argv[argc - 1];
    double values = -1, after = -1;
    for (size_t i = 0; i < sizeof tolerances / sizeof *tolerances; i++)
        if (!strcmp(tolerances[i].dtype, dtype))
            values = tolerances[i].values, after = tolerances[i].weights;
    if (!strcmp(mode, "same") && argc == 4)
        same(argv[2], argv[3]);
    else if (!strcmp(mode, "dump") && argc == 5 && values > 0)
        dump(argv[2], argv[3], dtype, values);
    else if (!strcmp(mode, "weights") && argc == 6 && after > 0)
        weights(argv[2], argv[3], argv[4], after);
    else
        die(EXIT_CONFIG, "usage", "unknown arguments; change: see the head of tests/model/test_goldens.c");
    return test_end();
}
