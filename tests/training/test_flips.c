/* test_flips -- the executable with bits that flip, for tests/training/flips.sh
 *
 * The linker wraps comm_note, run_check, all_ok and cpu_open (Makefile); all else is the program itself.
 *
 * FLIPS="COUNT SEED": before the first step COUNT trials on a run that stands still, each with a random rank,
 * tensor and bit: a flip after the hashes were taken, a flip before replicas are compared, and no flip. Then
 * the bit flips back, and the next trial follows. Rank 0 prints one line of counts.
 * FLIP="RANK SITE ITERATION SUFFIX SEED": a bit of a tensor of rank RANK whose name ends in SUFFIX (.master,
 * .exp_avg, .exp_avg_sq; weight: any weight) flips at the rank's comm_note of SITE in that iteration,
 * once. SUFFIX gradient: all bits of the exponent of an element of a gradient are set.
 * WRONG="RANK ITERATION SKIP HOW": the product of a linear layer on rank RANK has a wrong element in that
 * iteration, after SKIP right ones; HOW transient: once; persistent: in every later product, too. */
#include "job.h"
#include "run_layout.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static Run *run;
static int me;          /* world rank */
static long long noted; /* iteration of the last comm_note */
static jmp_buf caught;
static int trying;      /* bool: all_ok returns to the trial */
static char said[2048]; /* what the rank that speaks would have printed; "" */

void __real_comm_note(const char *text);
void __wrap_comm_note(const char *text);
void __real_run_check(Run *r);
void __wrap_run_check(Run *r);
void __real_all_ok(Comm *c, int ok, int code, const char *id, const char *fmt, ...);
void __wrap_all_ok(Comm *c, int ok, int code, const char *id, const char *fmt, ...);

void __wrap_all_ok(Comm *c, int ok, int code, const char *id, const char *fmt, ...)
{
    char text[2048] = ""; /* of a rank that is well the arguments need not be set */
    va_list ap;
    va_start(ap, fmt);
    if (!ok)
        vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (!trying) {
        __real_all_ok(c, ok, code, id, "%s", text);
        return;
    }
    int64_t lowest = ok ? INT64_MAX : c->rank;
    c->wait(c, c->all_reduce(c, &lowest, 1, I64, OP_MIN));
    if (lowest == INT64_MAX)
        return;
    if (lowest == c->rank)
        memcpy(said, text, sizeof said);
    longjmp(caught, 1);
}

/* ---- flips ---- */

typedef struct {
    unsigned char *at;
    int bit;
    const SdcTensor *what;
} Flip;

/* A bit of the tensors that are hashed, by a random number below their number of bits.
 *   suffix  in  of the tensor's name; "": any */
static Flip choose(const char *suffix, uint64_t random)
{
    const RunSdc *s = &run->sdc;
    int64_t all = 0, bit;
    for (int pass = 0; pass < 2; pass++, random %= (uint64_t)all)
        for (int i = 0; i < s->n; i++) {
            const char *own = s->what[i].suffix;
            if (strcmp(suffix, "weight") ? strcmp(suffix, own) && *suffix : *own)
                continue;
            if (pass && (bit = (int64_t)random) < 8 * s->list[i].bytes)
                return (Flip){(unsigned char *)s->list[i].x + bit / 8, (int)(bit % 8), &s->what[i]};
            if (pass)
                random -= (uint64_t)(8 * s->list[i].bytes);
            else
                all += 8 * s->list[i].bytes;
        }
    BUG_ON("no such tensor");
    return (Flip){0};
}

static void flip(const Flip *f)
{
    *f->at ^= (unsigned char)(1 << f->bit);
}

/* Makes an element of a random gradient of this rank an infinity or a NaN. */
static void spoil_gradient(uint64_t random)
{
    const Params *p = &run->params;
    int64_t from, to;
    const Param *t;
    do
        t = &p->param[random++ % (uint64_t)p->nparam], param_held(p, t, &p->data.grad, &from, &to);
    while (from >= to || t->copy || t->def->cut == CUT_NONE);      /* of copies one alone is looked at */
    uint32_t *x = (uint32_t *)param_at(p, t, &p->data.grad, from + (int64_t)(random % (uint64_t)(to - from)));
    BUG_ON(p->data.grad.type != F32);
    *x |= 0x7f800000;
    fprintf(stderr, "flipped the gradient of %s\n", t->name);
}

static uint64_t random_of(int64_t seed, int64_t trial, int k)
{
    Philox p = philox((uint64_t)seed, (uint64_t)trial, (uint64_t)k);
    return (uint64_t)p.v[0] << 32 | p.v[1];
}

/* ---- trials ---- */

enum { MEMORY, REPLICA, NONE, FOUND, NAMED, FALSE_ALARMS, SINGLE, COUNTS };

/* Whether any other rank holds the tensor. */
static int is_shared(const SdcTensor *t)
{
    for (int k = 0; k < SDC_GROUPS; k++)
        if (t->groups >> k & 1 && run->sdc.comm[k]->size > 1)
            return 1;
    return 0;
}

static void check(void)
{
    sdc_verify(run);
}
static void compare(void)
{
    sdc_seal(run);
}

/* Whether `what` ends the job. All ranks alike. */
static int ends(void (*what)(void))
{
    said[0] = 0;
    if (setjmp(caught))
        return 1;
    what();
    return 0;
}

/* One trial; count: what this rank adds. Collective. */
static void trial(int64_t seed, int64_t k, int64_t count[COUNTS])
{
    Comm *all = &run->grid.all;
    int kind = k % 4 == 3 ? NONE : k % 4 == 2 ? REPLICA : MEMORY;
    int victim = (int)(random_of(seed, k, 0) % (uint64_t)all->size), mine = victim == all->rank;
    char name[128] = "", rank[64];
    Flip f = choose("", random_of(seed, k, 1));
    if (mine)
        snprintf(name, sizeof name, "%s%s ", f.what->tensor, f.what->suffix);
    all->wait(all, all->broadcast(all, name, 16, I64, victim));
    snprintf(rank, sizeof rank, "rank %d on host ", victim);
    run->sdc.sealed = 0;
    if (kind != REPLICA && ends(compare))
        count[FALSE_ALARMS] += all->rank == 0;
    if (mine && kind != NONE)
        flip(&f);
    int found = ends(kind == REPLICA ? compare : check),
        single = mine && kind == REPLICA && !is_shared(f.what);
    if (mine && kind != NONE)
        flip(&f);
    count[NAMED] += *said && kind != NONE && strstr(said, name) && strstr(said, rank);
    if (!mine)
        return;
    count[SINGLE] += single;
    count[kind] += !single;
    count[kind == NONE || single ? FALSE_ALARMS : FOUND] += found;
}

/* Weights whose bytes another rank has under the same name, though none of their groups is compared. Norms
 * and biases are left out: their parts are constants, which are alike. The hashes were just taken.
 * Collective. */
static int not_compared(void)
{
    const RunSdc *s = &run->sdc;
    Comm *all = &run->grid.all;
    int64_t most = s->n;
    int wrong = 0;
    all->wait(all, all->all_reduce(all, &most, 1, I64, OP_MAX));
    int64_t n = 2 * most, *mine = xcalloc((size_t)n, 8), *each = xcalloc((size_t)(n * all->size), 8);
    for (int i = 0; i < s->n; i++) {
        const char *name = s->what[i].tensor;
        if (*s->what[i].suffix || strstr(name, "norm") || strstr(name, "bias"))
            continue;
        mine[2 * i] = (int64_t)hash64(name, strlen(name), HASH_SEED);
        mine[2 * i + 1] = (int64_t)s->seen[i];
    }
    all->wait(all, all->all_gather(all, each, mine, n, I64));
    for (int i = 0; i < s->n; i++)
        for (int64_t k = 0; k < most * all->size && mine[2 * i]; k++)
            wrong += k / most != all->rank && !memcmp(each + 2 * k, mine + 2 * i, 16) &&
                     !is_shared(&s->what[i]);
    free(mine);
    free(each);
    return wrong;
}

static void trials(int64_t number, int64_t seed)
{
    Comm *all = &run->grid.all;
    int64_t count[COUNTS] = {0};
    trying = 1;
    BUG_ON(ends(compare) || not_compared() /* replicas that nothing compares */);
    for (int64_t k = 0; k < number; k++)
        trial(seed, k, count);
    trying = run->sdc.sealed = 0;
    all->wait(all, all->all_reduce(all, count, COUNTS, I64, OP_SUM));
    int64_t flips = count[MEMORY] + count[REPLICA];
    if (all->rank == 0)
        printf("flips %ld found %ld named %ld without %ld false %ld single %ld\n", flips, count[FOUND],
               count[NAMED], count[NONE], count[FALSE_ALARMS], count[SINGLE]);
}

/* ---- hooks ---- */

void __wrap_run_check(Run *r)
{
    const char *text = getenv("FLIPS");
    long long number, seed;
    __real_run_check(r);
    if (!run && text && sscanf(text, "%lld %lld", &number, &seed) == 2) {
        run = r;
        trials(number, seed);
        __real_run_check(r);
    }
    run = r;
}

void __wrap_comm_note(const char *text)
{
    const char *want = getenv("FLIP");
    static int done;
    int victim;
    long long iteration, seed;
    char site[16], suffix[32];
    __real_comm_note(text);
    const char *of = strstr(text, " of iteration ");
    job_launched(&me);
    noted = of ? atoll(of + 14) : noted;
    if (done || !run || !want ||
        sscanf(want, "%d %15s %lld %31s %lld", &victim, site, &iteration, suffix, &seed) < 5)
        return;
    if (me != victim || !of || strncmp(text, site, strlen(site)) || noted != iteration)
        return;
    done = 1;
    if (!strcmp(suffix, "gradient")) {
        spoil_gradient(random_of(seed, 0, 0));
        return;
    }
    Flip f = choose(suffix, random_of(seed, 0, 0));
    flip(&f);
    fprintf(stderr, "flipped %s%s\n", f.what->tensor, f.what->suffix);
}

/* ---- wrong products ---- */

void __real_cpu_open(Device *d, Dtype real, const char *isa, int threads);
void __wrap_cpu_open(Device *d, Dtype real, const char *isa, int threads);

static void (*right)(Device *d, Mat y, Mat x, Mat w, Mat bias);

static void wrong(Device *d, Mat y, Mat x, Mat w, Mat bias)
{
    static int skipped, done;
    const char *text = getenv("WRONG");
    int victim, skip;
    long long iteration;
    char how[16];
    right(d, y, x, w, bias);
    if (!text || sscanf(text, "%d %lld %d %15s", &victim, &iteration, &skip, how) < 4)
        return;
    int transient = !strcmp(how, "transient");
    if (me != victim || (transient ? done || noted != iteration : noted < iteration) || skipped++ < skip)
        return;
    done = 1;
    ((unsigned char *)y.p)[5] ^= 16;
}

void __wrap_cpu_open(Device *d, Dtype real, const char *isa, int threads)
{
    __real_cpu_open(d, real, isa, threads);
    right = d->linear;
    d->linear = wrong;
}
