/* data -- gradients reduced and parameters gathered over the data group: buckets, shards of ZeRO 1 to 3 */
#include "data.h"
#include <stdlib.h>
#include <string.h>

const DataGroups *data_groups(const Data *d, int bucket) { return &d->groups[d->bucket[bucket].expert]; }

static Comm *shard_of(const Data *d, int bucket) { return data_groups(d, bucket)->shard; }
static int grads_sharded(const Data *d) { return d->stage >= SHARD_GRADS; }
/* Whether messages carry gradients in another type than that of their sums. */
static int narrowed(const Data *d) { return d->kept != d->sent; }
Dtype data_written(const Data *d) { return grads_sharded(d) ? d->sent : d->kept; }

static int64_t shard_length(const Data *d, int bucket)
{
    return d->bucket[bucket].n / shard_of(d, bucket)->size;
}

/* Whether this rank's shard is the bucket. */
static int is_whole(const Data *d, int bucket) { return shard_length(d, bucket) == d->bucket[bucket].n; }

/* What the windows of weights and of gradients hold. */
typedef enum { WEIGHTS, GRADIENTS } WindowOf;
/* Whether the bucket has a place in a window. */
static int placed(const Data *d, WindowOf of, int bucket)
{
    return !is_whole(d, bucket) || (of == GRADIENTS && narrowed(d));
}

void data_own(const Data *d, int bucket, int64_t *from, int64_t *to)
{
    *from = d->bucket[bucket].at + shard_of(d, bucket)->rank * shard_length(d, bucket);
    *to = *from + shard_length(d, bucket);
}

void data_updated(const Data *d, int bucket, int64_t *from, int64_t *to)
{
    data_own(d, bucket, from, to);
    if (d->stage == SHARD_NONE) {
        *from = d->bucket[bucket].at;
        *to = *from + d->bucket[bucket].n;
    }
}

void *data_at(const Data *d, const Flat *f, int bucket, int64_t at)
{
    int offloaded = d->bucket[bucket].at >= f->resident;
    int64_t start = offloaded ? f->n[0] : 0;
    if (!f->p)
        return NULL;
    if (f->sharded) {
        int64_t from, to;
        data_own(d, bucket, &from, &to);
        BUG_ON(at < from || at > to);
        at += d->bucket[bucket].own - from;
    }
    BUG_ON(at % f->block);
    return (offloaded ? f->offloaded : f->p) + (size_t)((at - start) / f->block) * dtype_size(f->type);
}

/* ---- who watches ---- */

static void seen_begin(const Data *d, DataCall call, int at, GradPhase phase)
{
    if (d->watch)
        d->watch->begin(d->watch->ctx, call, at, phase);
}

static void seen_end(const Data *d)
{
    if (d->watch)
        d->watch->end(d->watch->ctx);
}

/* ---- opening ---- */

void data_open(Data *d, Sharding stage, Grid *grid, Dtype type, Dtype real, Bucket *bucket, int buckets,
               int tied)
{
    Comm *experts = grid->expert;
    /* one rank: its shard is everything */
    *d = (Data){.stage = grid->shard.size > 1 || experts[EXPERT_SHARD].size > 1 ? stage : SHARD_NONE,
                .type = type, .real = real, .kept = real, .sent = real,
                .groups = {{&grid->data, &grid->shard, &grid->copies},
                           {experts + EXPERT_DATA, experts + EXPERT_SHARD, experts + EXPERT_COPIES}},
                .embedding = &grid->embedding,
                .copied = grid->copies.size > 1 || experts[EXPERT_COPIES].size > 1,
                .bucket = bucket, .buckets = buckets, .tied = tied};
    for (int b = 0; b < buckets; b++) {
        BUG_ON(bucket[b].at != d->elems || bucket[b].n % ((int64_t)shard_of(d, b)->size * SUMSQ_BLOCK));
        bucket[b].own = d->own;
        d->elems += bucket[b].n;
        d->own += shard_length(d, b);
    }
    d->resident = d->elems;
    for (int w = 0; w < 2; w++) {
        d->in[w].list = xcalloc((size_t)buckets + 1, sizeof *d->in[w].list);
        d->out[w].list = xcalloc((size_t)buckets + 1, sizeof *d->out[w].list);
    }
    d->token = xcalloc((size_t)buckets * BUCKET_SUMS, sizeof *d->token);
}

void data_gradients(Data *d, Dtype kept, Dtype sent)
{
    BUG_ON((kept != d->real && kept != BF16) || (sent != kept && sent != BF16) || d->units);
    d->kept = kept;
    d->sent = sent;
}

void data_moments(Data *d, MomentType first, MomentType second)
{
    BUG_ON(d->real != F32 && (first || second));
    d->stored[0] = first;
    d->stored[1] = second;
}

/* ---- updates beside the ops ---- */

int data_first_offloaded(const Data *d)
{
    int b = d->buckets;
    while (b && d->bucket[b - 1].at >= d->resident)
        b--;
    return b;
}

void data_updating(Data *d, int bucket, int64_t ticket) { d->bucket[bucket].update = ticket; }

/* Makes later ops wait for the bucket's update on the side stream. */
static void wait_update(Data *d, int bucket)
{
    Bucket *b = &d->bucket[bucket];
    if (b->update)
        d->dev->stream_wait(d->dev, b->update);
    b->update = 0;
}

static void wait_cleared(Data *d)
{
    if (d->cleared)
        d->dev->stream_wait(d->dev, d->cleared);
    d->cleared = 0;
}

void data_settle(Data *d)
{
    wait_cleared(d);
    for (int b = 0; b < d->buckets; b++)
        wait_update(d, b);
}

static void start_gather(Data *d, int bucket)
{
    Bucket *b = &d->bucket[bucket];
    int64_t from, to;
    wait_update(d, bucket);
    data_own(d, bucket, &from, &to);
    Comm *c = shard_of(d, bucket);
    b->token = c->all_gather(c, b->weight, data_at(d, &d->weight, bucket, from), to - from, d->type);
    b->gather = UNDER_WAY;
}

static void wait_gather(Data *d, int bucket)
{
    Bucket *b = &d->bucket[bucket];
    if (b->gather == PUT_OFF)
        start_gather(d, bucket);
    if (b->gather == UNDER_WAY)
        shard_of(d, bucket)->wait(shard_of(d, bucket), b->token);
    b->gather = NO_GATHER;
}

void data_close(Data *d)
{
    for (int b = 0; b < d->buckets; b++)
        if (d->bucket[b].gather == UNDER_WAY)
            wait_gather(d, b);
    for (int w = 0; w < 2; w++) {
        free(d->in[w].list);
        free(d->out[w].list);
    }
    free(d->token);
    free(d->product);
    free(d->unit);
    free(d->bucket);
    *d = (Data){0};
}

/* Walks the buckets of a unit that a phase completes: the one after b, -1 at the end. Start with b = -1. */
static int next_bucket(const Data *d, int unit, GradPhase phase, int b)
{
    const Unit *u = &d->unit[unit];
    int end = u->first + u->count;
    if (b == u->also && b >= 0)
        return -1;
    for (b = b < 0 ? u->first : b + 1; b < end; b++)
        if (phase == PHASE_ALL || d->bucket[b].phase == phase)
            return b;
    return u->also >= 0 && (phase == PHASE_ALL || d->bucket[u->also].phase == phase) ? u->also : -1;
}

/* next_bucket among those that have a place in a window. */
static int next_window(const Data *d, WindowOf of, int unit, GradPhase phase, int b)
{
    do
        b = next_bucket(d, unit, phase, b);
    while (b >= 0 && !placed(d, of, b));
    return b;
}

/* The elements of a unit that have a place in a window. */
static int64_t unit_elements(const Data *d, WindowOf of, int unit, GradPhase phase)
{
    int64_t n = 0;
    for (int b = next_window(d, of, unit, phase, -1); b >= 0; b = next_window(d, of, unit, phase, b))
        n += d->bucket[b].n;
    return n;
}

/* The elements of the two largest units together. */
static int64_t two_units(const Data *d, WindowOf of)
{
    int64_t most = 0, next = 0;
    for (int u = 0; u < d->units; u++) {
        int64_t n = unit_elements(d, of, u, PHASE_ALL);
        next = n > most ? most : n > next ? n : next;
        most = n > most ? n : most;
    }
    return most + next;
}

void data_units(Data *d, Unit *unit, int units)
{
    free(d->unit);
    d->unit = unit;
    d->units = units;
    d->window[WEIGHTS] = two_units(d, WEIGHTS);
    d->window[GRADIENTS] = two_units(d, GRADIENTS);
}

void data_offload(Data *d, double share, Arena *mapped)
{
    int b = d->buckets;
    d->resident = d->elems;
    d->mapped = mapped;
    while (b && (double)(d->elems - d->resident) < share * (double)d->elems)
        d->resident = d->bucket[--b].at;
}

/* The elements of an array that lie before flat element `at`, which is the start of a bucket or the end. */
static int64_t before(const Data *d, int sharded, int64_t at)
{
    int64_t n = d->own;
    for (int b = d->buckets - 1; b >= 0 && d->bucket[b].at >= at; b--)
        n = d->bucket[b].own;
    return sharded ? n : at;
}

/* Takes an array: elements [0, resident) from `run`, the others from d->mapped. */
static Flat take_parts(const Data *d, Arena *run, Dtype type, int sharded, int64_t resident, int block)
{
    Flat f = {.resident = resident, .type = type, .sharded = sharded, .block = block};
    f.n[0] = before(d, sharded, resident);
    f.n[1] = before(d, sharded, d->elems) - f.n[0];
    f.p = arena_take(run, (size_t)(f.n[0] / block) * dtype_size(type));
    if (resident < d->elems)
        f.offloaded = arena_take(d->mapped, (size_t)(f.n[1] / block) * dtype_size(type));
    return f;
}

static Flat take(const Data *d, Arena *run, Dtype type, int sharded)
{
    return take_parts(d, run, type, sharded, d->elems, 1);
}

/* Takes an array of masters, of their remainders, of moments, or of the scales of moments' blocks. */
static Flat take_state(const Data *d, Arena *run, Dtype type, int block)
{
    return take_parts(d, run, type, d->stage >= SHARD_OPTIM, d->resident, block);
}

/* Takes both windows from one block: the first grows from its start, the second from its end, so any two
 * units fit. */
static void take_windows(const Data *d, WindowOf of, UnitWindow w[2], Arena *run, Dtype type, int wanted)
{
    size_t bytes = (size_t)d->window[of] * dtype_size(type);
    char *room = wanted ? arena_take(run, bytes) : NULL;
    for (int i = 0; i < 2; i++) {
        w[i].base = room && i ? room + bytes : room;
        w[i].unit = -1;
        w[i].held = w[i].n = 0;
    }
}

/* The lowest address of window k when it holds `bytes`. */
static char *window_start(const UnitWindow w[2], int k, size_t bytes)
{
    return w[k].base ? w[k].base - (k ? bytes : 0) : NULL;
}

void data_layout(Data *d, Device *dev, Arena *run, int gradients, int moments)
{
    size_t start = run->used;
    d->dev = dev;
    d->gradients = gradients;
    d->moments = moments;
    d->turn = d->open = 0;
    d->weight = d->master = take(d, run, d->type, d->stage == SHARD_PARAMS);
    take_windows(d, WEIGHTS, d->in, run, d->type, d->stage == SHARD_PARAMS);
    d->bytes[0] = (int64_t)(run->used - start), start = run->used;
    d->grad = gradients ? take(d, run, d->kept, grads_sharded(d)) : (Flat){.type = d->kept, .block = 1};
    take_windows(d, GRADIENTS, d->out, run, d->sent, gradients && (grads_sharded(d) || narrowed(d)));
    d->bytes[1] = (int64_t)(run->used - start), start = run->used;
    d->halves = gradients && d->type == BF16;
    if (gradients && d->type != d->real)
        d->master = take_state(d, run, d->halves ? I16 : d->real, 1);
    for (int i = 0; i < 2; i++) {
        Dtype type = moment_dtype(d->stored[i], d->real);
        d->moment[i] = i < moments ? take_state(d, run, type, 1) : (Flat){.type = type, .block = 1};
        d->scale[i] = i < moments && moment_scaled(d->stored[i]) ? take_state(d, run, U8, MOMENT_BLOCK)
                                                                 : (Flat){.type = U8, .block = MOMENT_BLOCK};
    }
    d->bytes[2] = (int64_t)(run->used - start);
    for (int i = 0; i < d->buckets; i++) {
        Bucket *b = &d->bucket[i];
        b->gather = NO_GATHER;
        b->reduced = 0;
        b->weight = d->weight.sharded && !is_whole(d, i) ? NULL : data_at(d, &d->weight, i, b->at);
        b->grad = d->grad.sharded && placed(d, GRADIENTS, i) ? NULL : data_at(d, &d->grad, i, b->at);
    }
}

/* ---- gradients ---- */

void data_products(Data *d, GradProduct *product, int products)
{
    free(d->product);
    d->product = product;
    d->products = products;
    for (int i = 1; i < products; i++)
        BUG_ON(product[i].at < product[i - 1].at + product[i - 1].n);
}

/* The first product in a bucket, or after it. */
static int first_product(const Data *d, int bucket)
{
    int low = 0, high = d->products;
    while (low < high) {
        int middle = (low + high) / 2;
        if (d->product[middle].bucket < bucket)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Clears the gradient of a product that has no value yet. */
static void clear_product(const Data *d, int product)
{
    GradProduct *p = &d->product[product];
    const Bucket *b = &d->bucket[p->bucket];
    size_t size = dtype_size(data_written(d));
    if (!p->there)
        d->dev->zero(d->dev, b->grad ? b->grad + (size_t)(p->at - b->at) * size : NULL, (size_t)p->n * size);
    p->there = 1;
}

void data_clear(const Data *d, int product)
{
    seen_begin(d, DATA_CLEAR, product, PHASE_ALL);
    clear_product(d, product);
    seen_end(d);
}

/* Clears the products of a bucket that nothing was written to. */
static void clear_rest(Data *d, int bucket)
{
    for (int i = first_product(d, bucket); i < d->products && d->product[i].bucket == bucket; i++)
        clear_product(d, i);
}

/* Bytes [at, at + n) that are to be cleared in one go. */
typedef struct { Device *dev; char *base; size_t at, n; } Clearing;

static void clear_end(Clearing *c)
{
    if (c->n)
        c->dev->zero(c->dev, c->base ? c->base + c->at : NULL, c->n);
    c->n = 0;
}

static void clear_range(Clearing *c, size_t at, size_t n)
{
    if (n && c->at + c->n != at)
        clear_end(c);
    c->at = c->n ? c->at : at;
    c->n += n;
}

/* Clears a bucket's whole gradient at byte `at`, but for its products, which have no value from now on. */
static void clear_bucket(Data *d, Clearing *c, int bucket, size_t at)
{
    const Bucket *b = &d->bucket[bucket];
    size_t size = dtype_size(data_written(d));
    int64_t from = b->at;
    for (int i = first_product(d, bucket); i < d->products && d->product[i].bucket == bucket; i++) {
        GradProduct *p = &d->product[i];
        clear_range(c, at + (size_t)(from - b->at) * size, (size_t)(p->at - from) * size);
        from = p->at + p->n;
        p->there = 0;
    }
    clear_range(c, at + (size_t)(from - b->at) * size, (size_t)(b->at + b->n - from) * size);
}

/* Clears the gradients of buckets [first, end), as far as they are kept for the whole step. */
static void clear_buckets(Data *d, int first, int end)
{
    Clearing c = {.dev = d->dev, .base = d->grad.p};
    size_t size = dtype_size(d->kept);
    for (int b = first; b < end; b++)
        if (!grads_sharded(d))
            clear_bucket(d, &c, b, (size_t)d->bucket[b].at * size);
        else if (!placed(d, GRADIENTS, b))
            clear_bucket(d, &c, b, (size_t)d->bucket[b].own * size);
        else
            clear_range(&c, (size_t)d->bucket[b].own * size, (size_t)shard_length(d, b) * size);
    clear_end(&c);
}

void data_begin(Data *d)
{
    int offloaded = data_first_offloaded(d);
    clear_buckets(d, 0, offloaded);
    if (offloaded < d->buckets) {           /* updates on the side stream may still read them */
        d->dev->side_begin(d->dev);
        clear_buckets(d, offloaded, d->buckets);
        d->cleared = d->dev->side_end(d->dev);
    }
    for (int b = 0; b < d->buckets; b++)
        d->bucket[b].reduced = 0;
    d->open = 1;
}

/* `n` elements as the whole rows of a matrix: they are a multiple of SUMSQ_BLOCK. */
static Mat as_rows(void *p, int64_t n, Dtype type) { return mat(p, n / SUMSQ_BLOCK, SUMSQ_BLOCK, type); }

/* Waits for the reductions of a window. Sharded gradients: adds this rank's shards of the microbatch to the
 * sum over microbatches. Whole ones that are narrowed: what this rank updates is widened. */
static void finish(Data *d, UnitWindow *w)
{
    size_t size = dtype_size(d->sent);
    for (int i = 0; i < w->n; i++) {
        Transfer *t = &w->list[i];
        int64_t from, to;
        Comm *c = d->stage == SHARD_NONE ? data_groups(d, t->bucket)->data : shard_of(d, t->bucket);
        c->wait(c, t->token);
        if (!grads_sharded(d) && !narrowed(d))
            continue;
        data_updated(d, t->bucket, &from, &to);
        Mat sum = as_rows(data_at(d, &d->grad, t->bucket, from), to - from, d->kept);
        size_t mine = (size_t)(from - d->bucket[t->bucket].at) * size;
        Mat part = as_rows(t->at ? t->at + mine : NULL, to - from, d->sent);
        if (grads_sharded(d))
            d->dev->add(d->dev, sum, sum, part);
        else
            d->dev->copy(d->dev, sum, part);
    }
    w->n = 0;
    w->unit = -1;
}

/* Gives the window whose turn it is to a unit's gradients of this phase; returns its lowest address. */
static char *enter_window(Data *d, int unit, GradPhase phase)
{
    UnitWindow *w = &d->out[d->turn];
    finish(d, w);
    if (d->out[!d->turn].unit == unit)     /* the two windows have room for different units only */
        finish(d, &d->out[!d->turn]);
    w->unit = unit;
    size_t bytes = (size_t)unit_elements(d, GRADIENTS, unit, phase) * dtype_size(d->sent);
    return window_start(d->out, d->turn, bytes);
}

/* Gives the unit a window of gradients, and clears it. */
static void take_window(Data *d, int unit, GradPhase phase)
{
    size_t at = 0;
    Clearing c = {.dev = d->dev, .base = enter_window(d, unit, phase)};
    for (int b = next_window(d, GRADIENTS, unit, phase, -1); b >= 0;
         b = next_window(d, GRADIENTS, unit, phase, b)) {
        d->bucket[b].grad = c.base ? c.base + at : NULL;
        clear_bucket(d, &c, b, at);
        at += (size_t)d->bucket[b].n * dtype_size(d->sent);
    }
    clear_end(&c);
}

void data_enter(Data *d, int unit, GradPhase phase)
{
    seen_begin(d, DATA_ENTER, unit, phase);
    wait_cleared(d);
    if (grads_sharded(d))
        take_window(d, unit, phase);
    seen_end(d);
}

/* Starts the reduction of bucket b, whose gradients lie at `at` as they are sent. */
static void start_reduction(Data *d, int b, char *at)
{
    UnitWindow *w = &d->out[d->turn];
    Comm *data = data_groups(d, b)->data, *shard = shard_of(d, b);
    int64_t n = shard_length(d, b);
    char *mine = at ? at + (size_t)(shard->rank * n) * dtype_size(d->sent) : NULL;
    BUG_ON(w->n == d->buckets + 1);
    Token t = d->stage == SHARD_NONE ? data->all_reduce(data, at, d->bucket[b].n, d->sent, OP_SUM)
                                     : shard->reduce_scatter(shard, mine, at, n, d->sent, OP_SUM);
    w->list[w->n++] = (Transfer){b, at, t};
}

void data_reduce(Data *d, int unit, GradPhase phase)
{
    int sharded = grads_sharded(d), narrow = narrowed(d) && !sharded;
    BUG_ON(!d->open /* data_begin comes first */);
    char *at = narrow ? enter_window(d, unit, phase) : NULL;
    for (int b = next_bucket(d, unit, phase, -1); b >= 0; b = next_bucket(d, unit, phase, b)) {
        Bucket *k = &d->bucket[b];
        /* a whole gradient that two units add to is final with the unit that owns its bucket */
        if (sharded ? !placed(d, GRADIENTS, b) : b == d->unit[unit].also)
            continue;
        clear_rest(d, b);
        if (narrow)
            d->dev->copy(d->dev, as_rows(at, k->n, d->sent), as_rows(k->grad, k->n, d->kept));
        start_reduction(d, b, narrow ? at : k->grad);
        at += at ? (size_t)k->n * dtype_size(d->sent) : 0;
        k->reduced++;
        if (sharded)
            k->grad = NULL;
    }
    if ((sharded || narrow) && d->out[d->turn].n)      /* a phase of some units completes no bucket */
        d->turn = !d->turn;
}

/* Starts sum s over the elements that this rank updates of the bucket. */
static Token start_sum(Data *d, int bucket, const PartialSum *s)
{
    int64_t from, to;
    data_updated(d, bucket, &from, &to);
    from = s->at > from ? s->at : from;
    to = s->at + s->n < to ? s->at + s->n : to;
    if (from >= to)
        return 0;
    return s->comm->all_reduce(s->comm, data_at(d, &d->grad, bucket, from), to - from, d->kept, OP_SUM);
}

/* Adds this rank's shards over their copies, as they are kept. */
static void reduce_copies(Data *d)
{
    for (int b = 0; b < d->buckets; b++) {
        Comm *c = data_groups(d, b)->copies;
        int64_t from, to;
        data_own(d, b, &from, &to);
        d->token[b] = c->all_reduce(c, data_at(d, &d->grad, b, from), to - from, d->kept, OP_SUM);
    }
    for (int b = 0; b < d->buckets; b++)
        data_groups(d, b)->copies->wait(data_groups(d, b)->copies, d->token[b]);
}

/* The same as they are sent: rounded into a window, one bucket in each, and widened from there. */
static void reduce_narrow_copies(Data *d)
{
    int64_t from, to;
    for (int b = 0; b < d->buckets + 2; b++) {
        Transfer *t = d->out[b % 2].list;
        if (b >= 2) {
            Comm *c = data_groups(d, t->bucket)->copies;
            data_own(d, t->bucket, &from, &to);
            c->wait(c, t->token);
            d->dev->copy(d->dev, as_rows(data_at(d, &d->grad, t->bucket, from), to - from, d->kept),
                         as_rows(t->at, to - from, d->sent));
        }
        if (b >= d->buckets)
            continue;
        Comm *c = data_groups(d, b)->copies;
        data_own(d, b, &from, &to);
        *t = (Transfer){b, window_start(d->out, b % 2, (size_t)(to - from) * dtype_size(d->sent)), 0};
        d->dev->copy(d->dev, as_rows(t->at, to - from, d->sent),
                     as_rows(data_at(d, &d->grad, b, from), to - from, d->kept));
        t->token = c->all_reduce(c, t->at, to - from, d->sent, OP_SUM);
    }
}

void data_wait_grads(Data *d)
{
    if (!d->open)
        return;
    d->open = 0;
    data_settle(d);
    /* the older window first */
    finish(d, &d->out[d->turn]);
    finish(d, &d->out[!d->turn]);
    for (int b = 0; b < d->buckets; b++) {
        BUG_ON(!grads_sharded(d) && d->bucket[b].reduced != 1);
        if (grads_sharded(d) && !placed(d, GRADIENTS, b))      /* the other ones were reduced, and complete */
            clear_rest(d, b);
    }
    if (d->stage != SHARD_NONE)          /* SHARD_NONE's all-reduce has added over the copies */
        (narrowed(d) && d->copied ? reduce_narrow_copies : reduce_copies)(d);
    for (int b = 0; b < d->buckets; b++)
        for (int s = 0; s < d->bucket[b].sums; s++)
            d->token[b * BUCKET_SUMS + s] = start_sum(d, b, &d->bucket[b].sum[s]);
    for (int b = 0; b < d->buckets; b++)
        for (int s = 0; s < d->bucket[b].sums; s++)
            d->bucket[b].sum[s].comm->wait(d->bucket[b].sum[s].comm, d->token[b * BUCKET_SUMS + s]);
}

void data_tied(Data *d)
{
    int64_t from, to;
    if (d->tied < 0)
        return;
    data_updated(d, d->tied, &from, &to);
    void *at = data_at(d, &d->grad, d->tied, from);
    d->embedding->wait(d->embedding, d->embedding->all_reduce(d->embedding, at, to - from, d->kept, OP_SUM));
}

/* ---- weights ---- */

static UnitWindow *window_of(Data *d, int unit)
{
    return d->in[0].unit == unit ? &d->in[0] : d->in[1].unit == unit ? &d->in[1] : NULL;
}

void data_gather(Data *d, int unit)
{
    if (d->stage != SHARD_PARAMS)
        return;
    UnitWindow *w = window_of(d, unit);
    if (w) {
        w->held++;
        return;
    }
    w = window_of(d, -1);
    BUG_ON(!w /* a third unit at once */);
    w->unit = unit;
    w->held = 1;
    size_t bytes = (size_t)unit_elements(d, WEIGHTS, unit, PHASE_ALL) * dtype_size(d->type);
    char *at = window_start(d->in, (int)(w - d->in), bytes);
    for (int b = next_window(d, WEIGHTS, unit, PHASE_ALL, -1); b >= 0;
         b = next_window(d, WEIGHTS, unit, PHASE_ALL, b)) {
        Comm *c = shard_of(d, b);
        int64_t from, to;
        data_own(d, b, &from, &to);
        wait_update(d, b);
        Token t = c->all_gather(c, at, data_at(d, &d->weight, b, from), to - from, d->type);
        w->list[w->n++] = (Transfer){b, at, t};
        at += at ? (size_t)d->bucket[b].n * dtype_size(d->type) : 0;
    }
}

/* Waits for the unit's weights. */
static void wait_weights(Data *d, int unit)
{
    for (int b = next_bucket(d, unit, PHASE_ALL, -1); b >= 0; b = next_bucket(d, unit, PHASE_ALL, b)) {
        wait_gather(d, b);
        wait_update(d, b);
    }
    if (d->stage != SHARD_PARAMS)
        return;
    UnitWindow *w = window_of(d, unit);
    BUG_ON(!w /* not gathered */);
    for (int i = 0; i < w->n; i++) {
        Transfer *t = &w->list[i];
        shard_of(d, t->bucket)->wait(shard_of(d, t->bucket), t->token);
        t->token = 0;
        d->bucket[t->bucket].weight = t->at;
    }
}

void data_ready(Data *d, int unit)
{
    seen_begin(d, DATA_READY, unit, PHASE_ALL);
    wait_weights(d, unit);
    seen_end(d);
}

void data_release(Data *d, int unit)
{
    if (d->stage != SHARD_PARAMS)
        return;
    UnitWindow *w = window_of(d, unit);
    BUG_ON(!w);
    if (--w->held)
        return;
    for (int i = 0; i < w->n; i++) {
        Transfer *t = &w->list[i];
        shard_of(d, t->bucket)->wait(shard_of(d, t->bucket), t->token);
        if (d->bucket[t->bucket].weight == t->at)
            d->bucket[t->bucket].weight = NULL;
    }
    w->unit = -1;
    w->n = 0;
}

void data_gather_all(Data *d, int overlap)
{
    if (d->stage != SHARD_OPTIM && d->stage != SHARD_GRADS)
        return;
    for (int b = 0; b < d->buckets; b++) {
        Bucket *k = &d->bucket[b];
        BUG_ON(k->gather == PUT_OFF);
        wait_gather(d, b);
        if (overlap && k->update)
            k->gather = PUT_OFF;
        else
            start_gather(d, b);
    }
    for (int b = 0; !overlap && b < d->buckets; b++)
        wait_gather(d, b);
}

void data_gathered(Data *d)
{
    for (int b = 0; b < d->buckets; b++)
        wait_gather(d, b);
}
