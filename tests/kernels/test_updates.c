/* test_updates -- the optimizers' rows of the op table, as cases.h runs them.
 *
 *   test_updates [ISA]  only this instruction set */
#include "cases.h"

static const Verdict verdict = {.multiplier = 0.7, .go = 1};
static const double trust = 1.7;

/* Tensors: 0 w, 1 g, 2 m, 3 v, 4 out, 5 direction. */
static Update update_of(const Mat *m, const Arg *a)
{
    static Updated x;
    x = (Updated){.n = m[0].cols, .w = m[0].p, .g = m[1].p, .m = m[2].p, .v = m[3].p, .dir = m[5].p,
                  .out = m[4].p, .trust = &trust, .wd = a->wd};
    return (Update){.list = &x, .count = 1, .out_type = m[4].type, .verdict = &verdict, .lr = a->lr,
                    .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-5, .bias1 = 1 - pow(0.9, 3),
                    .bias2 = 1 - pow(0.95, 3), .momentum = a->momentum, .nesterov = a->nesterov};
}
static void adam_run(Device *d, Mat *m, const Arg *a) { Update u = update_of(m, a); d->adam(d, &u); }
static void sgd_run(Device *d, Mat *m, const Arg *a) { Update u = update_of(m, a); d->sgd(d, &u); }
static void lars_run(Device *d, Mat *m, const Arg *a) { Update u = update_of(m, a); d->lars(d, &u); }
static void lamb_run(Device *d, Mat *m, const Arg *a)
{
    Update u = update_of(m, a);
    d->lamb_direction(d, &u);
    d->lamb_apply(d, &u);
}
static double adam_direction(Mat *m, const Update *u, int64_t i)
{
    double g = AT(1, 0, i) * u->verdict->multiplier;
    AT(2, 0, i) = u->beta1 * AT(2, 0, i) + (1 - u->beta1) * g;
    AT(3, 0, i) = u->beta2 * AT(3, 0, i) + (1 - u->beta2) * g * g;
    return AT(2, 0, i) / u->bias1 / (sqrt(AT(3, 0, i) / u->bias2) + u->eps);
}
static void adam_naive(Mat *m, const Arg *a)
{
    Update u = update_of(m, a);
    for (int64_t i = 0; i < u.list->n; i++) {
        double dir = adam_direction(m, &u, i) + a->wd * AT(0, 0, i);
        AT(0, 0, i) -= u.lr * dir;
        if (m[4].p)
            AT(4, 0, i) = AT(0, 0, i);
    }
}
static void lamb_naive(Mat *m, const Arg *a)
{
    Update u = update_of(m, a);
    for (int64_t i = 0; i < u.list->n; i++) {
        AT(5, 0, i) = adam_direction(m, &u, i) + a->wd * AT(0, 0, i);
        AT(0, 0, i) -= u.lr * trust * AT(5, 0, i);
        AT(4, 0, i) = AT(0, 0, i);
    }
}
static void sgd_naive(Mat *m, const Arg *a)
{
    Update u = update_of(m, a);
    for (int64_t i = 0; i < u.list->n; i++) {
        double g = u.verdict->multiplier * AT(1, 0, i) + a->wd * AT(0, 0, i), step = g;
        if (m[2].p) {
            AT(2, 0, i) = u.momentum * AT(2, 0, i) + g;
            step = u.nesterov ? g + u.momentum * AT(2, 0, i) : AT(2, 0, i);
        }
        AT(0, 0, i) -= u.lr * step;
        if (m[4].p)
            AT(4, 0, i) = AT(0, 0, i);
    }
}
static void lars_naive(Mat *m, const Arg *a)
{
    Update u = update_of(m, a);
    for (int64_t i = 0; i < u.list->n; i++) {
        double g = u.verdict->multiplier * AT(1, 0, i) + a->wd * AT(0, 0, i);
        AT(2, 0, i) = u.momentum * AT(2, 0, i) + u.lr * trust * g;
        AT(0, 0, i) -= AT(2, 0, i);
        AT(4, 0, i) = AT(0, 0, i);
    }
}

#define MASTER(n) {'X', 1, n, 1}, {'I', 1, n, 1}

static const Case cases[] = {
    {"adam",
     {MASTER(40001), {'X', 1, 40001, 1}, {'Y', 1, 40001, 1}, {'o', 1, 40001, 0}},
     adam_run,
     adam_naive,
     {{0}},
     {.lr = 0.1, .wd = 0.2},
     2},
    {"adam",
     {MASTER(7), {'X', 1, 7, 1}, {'Y', 1, 7, 1}, {'-', 0, 0, 0}},
     adam_run,
     adam_naive,
     {{0}},
     {.lr = 0.1},
     2},
    {"lamb",
     {MASTER(40001), {'X', 1, 40001, 1}, {'Y', 1, 40001, 1}, {'o', 1, 40001, 0}, {'O', 1, 40001, 0}},
     lamb_run,
     lamb_naive,
     {{6, 2}},
     {.lr = 0.1, .wd = 0.2},
     2},
    {"sgd",
     {MASTER(40001), {'X', 1, 40001, 1}, {'-', 0, 0, 0}, {'o', 1, 40001, 0}},
     sgd_run,
     sgd_naive,
     {{0}},
     {.lr = 0.1, .wd = 0.2, .momentum = 0.9},
     1},
    {"sgd",
     {MASTER(33), {'X', 1, 33, 1}, {'-', 0, 0, 0}, {'o', 1, 33, 0}},
     sgd_run,
     sgd_naive,
     {{0}},
     {.lr = 0.1, .wd = 0.2, .momentum = 0.9, .nesterov = 1},
     1},
    {"sgd",
     {MASTER(33), {'-', 0, 0, 0}, {'-', 0, 0, 0}, {'-', 0, 0, 0}},
     sgd_run,
     sgd_naive,
     {{0}},
     {.lr = 0.1},
     1},
    {"lars",
     {MASTER(40001), {'X', 1, 40001, 1}, {'-', 0, 0, 0}, {'o', 1, 40001, 0}},
     lars_run,
     lars_naive,
     {{0}},
     {.lr = 0.1, .wd = 0.2, .momentum = 0.9},
     1},
};

int main(int argc, char **argv)
{
    return run_cases(cases, sizeof cases / sizeof *cases, argc, argv);
}
