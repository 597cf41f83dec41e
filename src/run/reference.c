/* reference -- a fixed product and a fixed copy, timed by all ranks at once (log_reference) */
#include "run_layout.h"
#include <math.h>
#include <stdlib.h>

/* Sizes of a piece. rows: of the product's left matrix, for each thread; width: its columns, and rows and
 * columns of the right one; bytes: of a copy, for each thread; copies: before one is done again. A piece
 * takes about a millisecond, as an operation of a step does, and the copies of all ranks of a host are more
 * than its caches hold. */
typedef struct { int64_t rows, width, bytes, copies; } Sizes;
static const Sizes host_piece = {256, 512, 4 << 20, 4}, gpu_piece = {8192, 4096, 256 << 20, 1};

static int threads_of(const Run *r) { return r->plan.apart ? 1 : run_threads(r); }

void reference_open(Run *r, Arena *run)
{
    RunReference *f = &r->reference;
    const Sizes *p = r->plan.apart ? &gpu_piece : &host_piece;
    int64_t rows = p->rows * threads_of(r), wide = p->width, type = (int64_t)dtype_size(r->params.type);
    *f = (RunReference){.on = r->use == RUN_TRAIN && r->cfg->log_reference};
    if (!f->on)
        return;
    f->a = mat_take(run, rows, wide, r->params.type);
    f->b = mat_take(run, wide, wide, r->params.type);
    f->c = mat_take(run, rows, wide, r->params.type);
    f->from = mat_take(run, p->copies, p->bytes * threads_of(r) / type, r->params.type);
    f->to = mat_take(run, p->copies, f->from.cols, r->params.type);
}

static void product(Run *r, Device *d, int piece)
{
    RunReference *f = &r->reference;
    (void)piece;
    d->matmul(d, f->c, f->a, 0, f->b, 1, 0);
}

static void copy(Run *r, Device *d, int piece)
{
    RunReference *f = &r->reference;
    int64_t row = piece % f->from.rows;
    d->copy(d, mat_rows(f->to, row, 1), mat_rows(f->from, row, 1));
}

void reference_begin(Run *r)
{
    RunReference *f = &r->reference;
    if (!f->on)
        return;
    Mat none = mat(NULL, 0, 0, I16);
    r->dev.normals(&r->dev, f->a, none, 0, 1, rng_key(1, "reference"), 0, f->a.cols);
    r->dev.normals(&r->dev, f->b, none, 0, 1, rng_key(2, "reference"), 0, f->b.cols);
    r->dev.zero(&r->dev, f->from.p, mat_bytes(f->from));       /* pages that nobody has written are one */
    r->dev.zero(&r->dev, f->to.p, mat_bytes(f->to));
    product(r, &r->dev, 0);
}

/* The lower quartile of the pieces, which it sorts, times their number. */
static double calm_of(double took[REFERENCE_PIECES])
{
    qsort(took, REFERENCE_PIECES, sizeof *took, by_double);
    return took[REFERENCE_PIECES / 4] * REFERENCE_PIECES;
}

static double timed(Run *r, Device *d, void (*one)(Run *, Device *, int), int piece)
{
    double start = now();
    one(r, d, piece);
    d->sync(d);
    return now() - start;
}

/* What a rank gets of the cores that it has threads for: 1, or less where ranks share cores. */
static double share(const Run *r)
{
    double ranks = run_device_ranks(r);
    return r->plan.apart ? 1 / ranks : fmin(1, pool_cores() / (ranks * threads_of(r)));
}

void run_reference(Run *r, Device *d, ReferenceTime *whole, ReferenceTime *calm)
{
    Comm *all = &r->grid.all;
    double products[REFERENCE_PIECES], copies[REFERENCE_PIECES], ms = 1e3 * share(r) / all->size;
    *whole = *calm = (ReferenceTime){NAN, NAN};
    if (!r->reference.on)
        return;
    d->sync(d);
    all->barrier(all);
    double start = now();
    for (int i = 0; i < REFERENCE_PIECES; i++) {
        products[i] = timed(r, d, product, i);
        copies[i] = timed(r, d, copy, i);
    }
    double sum[3] = {now() - start, calm_of(products), calm_of(copies)};
    all->wait(all, all->all_reduce(all, sum, 3, F64, OP_SUM));
    double turns = sum[0] / (sum[1] + sum[2]);
    *calm = (ReferenceTime){ms * sum[1], ms * sum[2]};
    *whole = (ReferenceTime){turns * calm->product_ms, turns * calm->copy_ms};
}
