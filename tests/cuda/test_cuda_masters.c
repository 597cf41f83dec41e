/* test_cuda_masters -- optimizers of a GPU over masters in two halves, beside the same over whole masters:
 * the same bits. So are their squares, in lists that have both forms. Lists of arrays at odd places, lengths
 * above and below what a block of threads updates; gradients in F32 and in BF16; a verdict to stop writes
 * nothing. Masters, remainders and moments in device memory, and in mapped memory as an offloaded optimizer
 * has them. */
#include "half.h"
#include "ops.h"

enum { ARRAYS = 5, SPAN = 21000, ALL = ARRAYS * SPAN, RULES = 6 };
static const char *const rules[RULES] = {"adam", "sgd", "nesterov", "lars", "lamb_direction", "lamb"};

static void run_rule(Device *d, int rule, Update u)
{
    u.nesterov = rule == 2;
    if (rule == 0)
        d->adam(d, &u);
    else if (rule < 3)
        d->sgd(d, &u);
    else if (rule == 3)
        d->lars(d, &u);
    else
        d->lamb_direction(d, &u);
    if (rule == 5)
        d->lamb_apply(d, &u);
}

static char *place_in(Device *d, int mapped, const void *src, size_t bytes)
{
    char *at = mapped ? d->mapped_take(d, bytes) : d->take(d, bytes);
    d->put(d, at, src, bytes);
    return at;
}
static char *place(Device *d, const void *src, size_t bytes) { return place_in(d, 0, src, bytes); }
static void give_from(Device *d, int mapped, void *p, size_t bytes)
{
    mapped ? d->mapped_give(d, p, bytes) : d->give(d, p, bytes);
}

static int64_t unlike(Device *d, const void *a, const void *b, size_t bytes)
{
    char *x = xcalloc(2, bytes);
    d->get(d, x, a, bytes);
    d->get(d, x + bytes, b, bytes);
    int64_t wrong = memcmp(x, x + bytes, bytes) != 0;
    free(x);
    return wrong;
}

/* The state of all arrays, whole and in halves: master, moments and direction of each form. short_g: the
 * gradient g in BF16, which it is rounded to. mapped: bool: w, m, v and rest are in mapped memory. */
typedef struct {
    float *w, *g, *m[2], *v[2], *dir[2];
    uint16_t *weight, *short_g;
    int16_t *rest;
    float *host;
    int mapped;
} State;

static State state_of(Device *d, int mapped, int bf16_g)
{
    float *w = xcalloc(ALL, sizeof *w), *x = xcalloc(ALL, sizeof *x);
    uint16_t *weight = xcalloc(ALL, sizeof *weight);
    int16_t *rest = xcalloc(ALL, sizeof *rest);
    State s = {.host = w, .mapped = mapped};
    for (int i = 0; i < ALL; i++) {
        w[i] = (float)(rng_normal(1, 0, (uint64_t)i) * (i % 3 ? 1 : 1e-3));
        weight[i] = master_weight(w[i]), rest[i] = master_rest(w[i]);
    }
    s.w = (float *)place_in(d, mapped, w, ALL * sizeof *w);
    s.weight = (uint16_t *)place(d, weight, ALL * sizeof *weight);
    s.rest = (int16_t *)place_in(d, mapped, rest, ALL * sizeof *rest);
    for (int i = 0; i < ALL; i++)
        x[i] = (float)rng_normal(2, 0, (uint64_t)i);
    for (int i = 0; i < ALL; i++) {
        weight[i] = f32_to_bf16(x[i]);
        x[i] = bf16_g ? bf16_to_f32(weight[i]) : x[i];
    }
    s.short_g = (uint16_t *)place(d, weight, ALL * sizeof *weight);
    s.g = (float *)place(d, x, ALL * sizeof *x);
    for (int k = 0; k < 2; k++) {
        s.m[k] = (float *)place_in(d, mapped, x, ALL * sizeof *x);
        s.dir[k] = (float *)place(d, x, ALL * sizeof *x);
    }
    for (int i = 0; i < ALL; i++)
        x[i] = fabsf(x[i]);
    for (int k = 0; k < 2; k++)
        s.v[k] = (float *)place_in(d, mapped, x, ALL * sizeof *x);
    free(x), free(weight), free(rest);
    return s;
}

static void state_close(Device *d, State *s)
{
    give_from(d, s->mapped, s->w, ALL * sizeof *s->w), d->give(d, s->g, ALL * sizeof *s->g);
    for (int k = 0; k < 2; k++) {
        give_from(d, s->mapped, s->m[k], ALL * sizeof *s->g);
        give_from(d, s->mapped, s->v[k], ALL * sizeof *s->g);
        d->give(d, s->dir[k], ALL * sizeof *s->g);
    }
    d->give(d, s->short_g, ALL * sizeof *s->short_g);
    d->give(d, s->weight, ALL * sizeof *s->weight);
    give_from(d, s->mapped, s->rest, ALL * sizeof *s->rest);
    free(s->host);
}

/* Elements whose halves are not the whole master, which were the same before. changed: out: elements that
 * the update has changed. */
static int64_t wrong_masters(Device *d, const State *s, int64_t *changed)
{
    float *whole = xcalloc(ALL, sizeof *whole), *joined = xcalloc(ALL, sizeof *joined);
    uint16_t *weight = xcalloc(ALL, sizeof *weight);
    int64_t wrong = 0;
    *changed = 0;
    d->get(d, whole, s->w, ALL * sizeof *whole);
    d->get(d, weight, s->weight, ALL * sizeof *weight);
    device_get_masters(d, joined, s->weight, s->rest, ALL);
    for (int i = 0; i < ALL; i++) {
        wrong += memcmp(&whole[i], &joined[i], sizeof *whole) || weight[i] != master_weight(whole[i]);
        *changed += whole[i] != s->host[i];
    }
    free(whole), free(joined), free(weight);
    return wrong;
}

static void compare(Device *d, int rule, int odd, int64_t go, int mapped, int bf16_g)
{
    State s = state_of(d, mapped, bf16_g);
    Updated whole[ARRAYS], half[ARRAYS];
    Squares one[2 * ARRAYS], two[2 * ARRAYS];
    double trust = 1.3;
    Verdict v = {.multiplier = 0.3, .go = go};
    double *trusts = (double *)place(d, &trust, sizeof trust);
    Verdict *verdict = (Verdict *)place(d, &v, sizeof v);
    Exact *sum = d->take(d, 2 * sizeof *sum);
    for (int i = 0; i < ARRAYS; i++) {
        int64_t at = i * SPAN + (odd ? i : 8 * i), n = i < 3 ? 700 * i + 5 + odd : SPAN - 100 - i;
        whole[i] = (Updated){.n = n, .w = s.w + at, .g = s.g + at, .m = s.m[0] + at, .v = s.v[0] + at,
                             .dir = s.dir[0] + at, .trust = i % 2 ? trusts : NULL, .wd = 0.1};
        half[i] = (Updated){.n = n, .rest = s.rest + at, .out = s.weight + at,
                            .g = bf16_g ? (void *)(s.short_g + at) : (void *)(s.g + at),
                            .m = s.m[1] + at, .v = s.v[1] + at, .dir = s.dir[1] + at,
                            .trust = whole[i].trust, .wd = 0.1};
        one[2 * i] = (Squares){sum, s.w + at, n, NULL};
        two[2 * i] = (Squares){sum + 1, s.weight + at, n, s.rest + at};
        one[2 * i + 1] = (Squares){sum, s.g + at, n, NULL};
        two[2 * i + 1] = (Squares){sum + 1, s.g + at, n, NULL};
    }
    Update u = {.list = whole, .count = ARRAYS, .out_type = BF16, .mapped = mapped, .verdict = verdict,
                .lr = 0.01, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .bias1 = 0.1, .bias2 = 0.001,
                .before1 = 1, .before2 = 1, .momentum = 0.9};
    run_rule(d, rule, u);
    u.list = half;
    u.bf16_g = bf16_g;
    run_rule(d, rule, u);
    int64_t changed, wrong = wrong_masters(d, &s, &changed);
    wrong += unlike(d, s.m[0], s.m[1], ALL * 4) + unlike(d, s.v[0], s.v[1], ALL * 4) +
             unlike(d, s.dir[0], s.dir[1], ALL * 4);
    CHECK(!wrong, "%s%s: %lld elements differ", rules[rule], odd ? " at odd places" : "", (long long)wrong);
    CHECK((changed > ALL / 4) == (go && rule != 4), "%s, go %lld: %lld masters changed", rules[rule],
          (long long)go, (long long)changed);
    d->squares(d, one, 2 * ARRAYS, F32);
    d->squares(d, two, 2 * ARRAYS, F32);
    d->carry(d, sum, 2);
    CHECK(!unlike(d, sum, sum + 1, sizeof *sum), "%s: squares%s", rules[rule], odd ? " at odd places" : "");
    d->give(d, sum, 2 * sizeof *sum);
    d->give(d, trusts, sizeof trust);
    d->give(d, verdict, sizeof v);
    state_close(d, &s);
}

/* Initial values in halves are those of whole masters. */
static void initial(Device *d, int64_t rows, int64_t cols, int64_t ld, int64_t first, int64_t step,
                    int mapped)
{
    int64_t n = rows * ld, wrong = 0;
    float *x = xcalloc((size_t)n, 4), *y = xcalloc((size_t)n, 4);
    float *whole = (float *)place_in(d, mapped, x, (size_t)n * 4);
    uint16_t *weight = d->take(d, (size_t)n * 2);
    int16_t *rest = (int16_t *)place_in(d, mapped, x, (size_t)n * 2);
    d->normals(d, (Mat){whole, rows, cols, ld, F32}, (Mat){.type = I16}, 1, 0.3, 77, first, step);
    d->normals(d, (Mat){weight, rows, cols, ld, BF16}, (Mat){rest, rows, cols, ld, I16}, 1, 0.3, 77, first,
               step);
    d->get(d, x, whole, (size_t)n * 4);
    device_get_masters(d, y, weight, rest, n);
    for (int64_t i = 0; i < n; i++)
        wrong += memcmp(x + i, y + i, sizeof *x) != 0;
    CHECK(!wrong && x[0] != x[1], "%s: %lld initial values of [%lld, %lld]", d->name, (long long)wrong,
          (long long)rows, (long long)cols);
    give_from(d, mapped, whole, (size_t)n * 4), give_from(d, mapped, rest, (size_t)n * 2);
    d->give(d, weight, (size_t)n * 2);
    free(x), free(y);
}

static void initials(Device *d)
{
    initial(d, 1, 5001, 5001, 3, 5001, 0);
    initial(d, 1, 5001, 5001, 3, 5001, 1);
    initial(d, 37, 51, 51, 0, 51, 0);
    initial(d, 37, 51, 60, 7, 90, 1);
}

int main(void)
{
    Device gpu, cpu;
    cuda_open(&gpu, F32, 0);
    cpu_open(&cpu, F32, test_isa(), 2);
    initials(&gpu);
    initials(&cpu);
    cpu_close(&cpu);
    for (int rule = 0; rule < RULES; rule++) {
        compare(&gpu, rule, rule % 2, 1, 0, 0);
        compare(&gpu, rule, 1 - rule % 2, 1, 1, 0);
        if (rule < 2)
            compare(&gpu, rule, 1 - rule % 2, 0, rule, 0);
        for (int odd = 0; odd < 2 && rule < 4; odd++)      /* LAMB needs the gradient's memory */
            compare(&gpu, rule, odd, 1, odd, 1);
    }
    cuda_close(&gpu);
    return test_end();
}
