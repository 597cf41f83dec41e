/* cases.h -- runs an op of the table beside plain scalar code in F64 written from the header's formulas. A
 * case runs on every instruction set, real and storage type, with 1 and 2 threads (bitwise equal), with rows
 * wider apart than they are long, outputs poisoned with NaN, and once more for each aliasing that device.h
 * allows (bitwise equal). */
#pragma once
#include "ops.h"

enum { MATS = 8 };

typedef struct {
    int kind, groups, dim, inverse;
    double p, jitter, lr, wd, momentum;
    int nesterov, nomask;
    int64_t v0, valid, seq, col0;
} Arg;

/* One tensor of a case. Small letters of `role` have the storage type, capitals the real type.
 *
 *   role     i, I input; o, O output; x, X input and output; Y like X, not negative; A added to; - absent
 *   spread   standard deviation of the input */
typedef struct { char role; int64_t rows, cols; double spread; } Spec;

typedef struct {
    const char *name;
    Spec spec[MATS];
    void (*run)(Device *d, Mat *m, const Arg *a);
    /* computes the outputs of the dense F64 tensors m in place; NULL: the F64 device is the reference,
     * which test_grad checks by finite differences */
    void (*naive)(Mat *m, const Arg *a);
    int alias[4][2];           /* pairs of tensors, (output, input) + 1, that may share memory */
    Arg a;
    double loose;              /* factor on what the arithmetic may lose, relative to the largest element */
} Case;

#define AT(k, r, c) (((double *)m[k].p)[(r) * m[k].cols + (c)])

/* ---- running a case ---- */

/* Tensors of one run. Columns between the rows of a tensor hold NaN and must stay untouched. */
typedef struct { Mat m[MATS]; size_t bytes[MATS]; } Set;

static int is_input(char role) { return strchr("iIxXYA", role) != NULL; }
static int is_output(char role) { return strchr("oOxXYA", role) != NULL; }

/* FEW: a fifth of 40 rows or more. Tables of a vocabulary have 50 or fewer, those of positions 64. */
static int64_t rows_of(const Spec *p)
{
    return test_few() && p->rows >= 40 && p->rows % 10 == 0 && p->rows != 50 ? p->rows / 5 : p->rows;
}

static double start(const Case *c, int k, int64_t i, Dtype t)
{
    double x = normal((uint64_t)(k + 1), i) * c->spec[k].spread;
    return rounded(c->spec[k].role == 'Y' ? fabs(x) : x, t);
}

static void set_open(Set *s, const Case *c, Dtype real, Dtype storage, int64_t gap)
{
    *s = (Set){0};
    for (int k = 0; k < MATS; k++) {
        const Spec *p = &c->spec[k];
        if (!p->role || p->role == '-')
            continue;
        Dtype t = p->role >= 'a' ? storage : real;
        int64_t rows = rows_of(p);
        s->bytes[k] = (size_t)(rows * (p->cols + gap)) * dtype_size(t);
        s->m[k] = (Mat){xcalloc(1, s->bytes[k]), rows, p->cols, p->cols + gap, t};
        memset(s->m[k].p, 0xff, s->bytes[k]);                    /* NaN in every type */
        for (int64_t r = 0; r < rows && is_input(p->role); r++)
            for (int64_t i = 0; i < p->cols; i++)
                put(s->m[k].p, r * s->m[k].ld + i, t, start(c, k, r * p->cols + i, t));
    }
}

static void set_close(Set *s)
{
    for (int k = 0; k < MATS; k++)
        free(s->m[k].p);
}

/* Limit of an element's difference: the error of the arithmetic, relative to the tensor's largest
 * element, plus half a unit of the last place of the storage type t. */
static double tolerance(Dtype t, Dtype real, double x, double largest)
{
    double half = t == BF16 ? 0x1p-8 * fabs(x) : t == F16 ? fmax(0x1p-11 * fabs(x), 0x1p-25) : 0;
    return half + (real == F64 ? 1e-13 : 2e-6) * largest;
}

static void compare(const Case *c, int nr, const Set *s, const Set *ref, Dtype real, const char *what)
{
    for (int k = 0; k < MATS; k++) {
        const Mat m = s->m[k];
        if (!m.p || !is_output(c->spec[k].role))
            continue;
        double worst = 0, largest = 0;
        int wild = 0, stray = 0;
        for (int64_t i = 0; i < m.rows * m.cols; i++) {
            double z = get(ref->m[k].p, i, F64);
            largest = isfinite(z) ? fmax(largest, fabs(z)) : largest;
        }
        for (int64_t r = 0; r < m.rows; r++) {
            for (int64_t i = 0; i < m.cols; i++) {
                double y = get(m.p, r * m.ld + i, m.type), z = get(ref->m[k].p, r * m.cols + i, F64);
                wild += isfinite(z) ? !isfinite(y) : y != z;
                if (isfinite(y) && isfinite(z) && y != z)
                    worst = fmax(worst, fabs(y - z) / tolerance(m.type, real, z, largest * c->loose));
            }
            for (int64_t i = m.cols; i < m.ld; i++)
                stray += !isnan(get(m.p, r * m.ld + i, m.type));
        }
        CHECK(worst <= 1 && !wild && !stray, "%s case %d %s tensor %d %s: %.3g times the tolerance (largest "
              "%g), %d not finite, %d beyond the row", c->name, nr, what, k, dtype_name(m.type),
              worst, largest, wild, stray);
    }
}

static void same(const Case *c, int nr, const Set *a, const Set *b, int skip, const char *what)
{
    for (int k = 0; k < MATS; k++)
        if (a->m[k].p && is_output(c->spec[k].role) && k != skip)
            CHECK(!memcmp(a->m[k].p, b->m[k].p, a->bytes[k]), "%s case %d tensor %d: %s changes bits",
                  c->name, nr, k, what);
}

/* Runs the case once more for each pair that may share memory: the output lies in the input's memory,
 * and no bit changes. Both have one type, but for xent: there each output row starts where an input row
 * starts. */
static void aliased(const Case *c, int nr, Device *d, const Set *plain, Dtype real, Dtype storage,
                    int64_t gap)
{
    for (int i = 0; i < 4 && c->alias[i][0]; i++) {
        int o = c->alias[i][0] - 1, in = c->alias[i][1] - 1;
        Set s;
        set_open(&s, c, real, storage, gap);
        Mat own = s.m[o], input = s.m[in];
        size_t so = dtype_size(own.type), si = dtype_size(input.type);
        if (input.p && (own.type == input.type || !strcmp(c->name, "xent"))) {
            s.m[o].p = input.p;
            s.m[o].ld = input.ld * (int64_t)(si / so);
            c->run(d, s.m, &c->a);
            int differ = 0;
            for (int64_t r = 0; r < own.rows; r++)
                differ += memcmp(mat_at(s.m[o], r, 0), mat_at(plain->m[o], r, 0), (size_t)own.cols * so) != 0;
            CHECK(!differ, "%s case %d: %d rows differ when tensor %d lies on %d", c->name, nr,
                  differ, o, in);
            s.m[o] = own;
            same(c, nr, &s, plain, o, "aliasing");
        }
        set_close(&s);
    }
}

static void run_case(const Case *c, int nr, Device *one, Device *two, const Device *oracle, Dtype storage)
{
    Set ref, a, b;
    Dtype real = one->real;
    char what[64];
    snprintf(what, sizeof what, "%s %s", one->isa, dtype_name(storage));
    /* the reference gets the inputs as they are rounded to the storage type */
    set_open(&ref, c, F64, F64, 0);
    set_open(&a, c, real, storage, 5);
    set_open(&b, c, real, storage, 5);
    for (int k = 0; k < MATS; k++)
        for (int64_t i = 0; ref.m[k].p && is_input(c->spec[k].role) && i < ref.m[k].rows * ref.m[k].cols; i++)
            put(ref.m[k].p, i, F64, start(c, k, i, a.m[k].type));
    if (c->naive)
        c->naive(ref.m, &c->a);
    else
        c->run((Device *)oracle, ref.m, &c->a);
    c->run(one, a.m, &c->a);
    c->run(two, b.m, &c->a);
    compare(c, nr, &a, &ref, real, what);
    same(c, nr, &a, &b, -1, "a second thread");
    aliased(c, nr, two, &a, real, storage, 5);
    set_close(&ref);
    set_close(&a);
    set_close(&b);
}

/* Runs n cases on the instruction sets that the command line wants. Returns the program's exit status. */
static int run_cases(const Case *cases, int n, int argc, char **argv)
{
    Device oracle;
    cpu_open(&oracle, F64, "generic", 1);
    for (int i = 0; i < ISAS; i++)
        for (Dtype real = test_few() ? F32 : F64; real <= F32 && isa_wanted(i, argc, argv); real++) {
            Device one, two;
            Dtype last = real == F64 ? F64 : test_few() ? BF16 : F16;
            cpu_open(&one, real, isa_names[i], 1);
            cpu_open(&two, real, isa_names[i], 2);
            for (Dtype storage = real; storage <= last; storage++)
                for (int c = 0; c < n; c++)
                    run_case(&cases[c], c, &one, &two, &oracle, storage);
            cpu_close(&one);
            cpu_close(&two);
        }
    cpu_close(&oracle);
    return test_end();
}
