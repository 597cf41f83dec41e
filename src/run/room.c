/* room -- what a rank takes of a device's memory only where there is room for it: large slices of logits
 * first, copies of FP8 weights after them */
#include "config_table.h"
#include "run_layout.h"

/* A slice on a CPU should stay in its caches from the product that makes it to those that read it. On a GPU
 * each slice reads the output layer's weight, and reads and writes that weight's gradient: with a vocabulary
 * of 152,000 slices of 220 rows take a fifth longer for a step of 0.5 billion parameters than one of
 * 7,000. */
#define CACHED_LOGITS ((int64_t)128 << 20)     /* bytes of a slice on a CPU, at most */
#define LARGEST_LOGITS ((int64_t)4 << 30)      /* bytes of a slice on a GPU, at most, but: */
enum { LEAST_ROWS = 2048, ROWS_UNIT = 128 };   /* rows that it has in any case; their unit */

static int64_t up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

int64_t run_logits_rows(const Config *c, int apart, int64_t most)
{
    int64_t all = c->micro_batch_size * c->seq_length / c->context_parallel_size;
    int64_t tp = c->tensor_model_parallel_size, ranks = c->sequence_parallel ? tp : 1, unit = ranks;
    int64_t size = c->logits_dtype == LOGITS_DTYPE_BF16 ? 2 : c->params_dtype == PARAMS_DTYPE_FP64 ? 8 : 4;
    int64_t bytes = c->padded_vocab_size / tp * size;
    if (c->logits_slice_rows)
        return c->logits_slice_rows < all ? c->logits_slice_rows : all;
    int64_t slices = (all * bytes + CACHED_LOGITS - 1) / CACHED_LOGITS;
    if (apart) {
        while (unit % ROWS_UNIT)
            unit += ranks;
        int64_t largest = LARGEST_LOGITS / bytes > LEAST_ROWS ? LARGEST_LOGITS / bytes : LEAST_ROWS;
        most = most && most < largest ? most : largest;
        most = most > unit ? most / unit * unit : unit;
        slices = (all + most - 1) / most;
    }
    int64_t rows = up((all + slices - 1) / slices, unit);      /* slices of one length */
    return rows < all ? rows : all;
}

int64_t run_reserve(const Config *c)
{
    int nccl = c->world > 1 && c->distributed_backend == DISTRIBUTED_BACKEND_NCCL;
    return nccl ? RUN_RESERVE_NCCL : RUN_RESERVE;
}

int64_t run_need(const Run *r)
{
    return r->plan.apart ? r->plan.memory.arena + r->plan.memory.reserve : r->plan.memory.total;
}

/* Plans the rank with f->over. Returns whether that fits.
 *   layers  out  FP8 layers of the rank
 *   head    out  bool: the rank makes logits */
static int fits(RunRoom *f, int *layers, int *head)
{
    Run r;
    run_plan_over(&r, f->cfg, f->use, f->kv_length, f->rank, &f->over);
    *layers = precision_layers(f->cfg, &r.params);
    *head = 0;
    for (int i = 0; i < r.params.nparts; i++)
        *head |= r.params.part[i].kind == PART_HEAD;
    int64_t need = f->opened ? run_need(&r) : r.plan.memory.total + r.plan.memory.reserve;
    run_plan_close(&r);
    return need <= f->bytes;
}

int64_t run_slice(RunRoom *f)
{
    int layers, head = 1, apart = f->over.apart || f->cfg->device == DEVICE_CUDA;
    int64_t largest = run_logits_rows(f->cfg, apart, 0), rows = largest, less;
    f->over.fp8_recast = 0;
    for (;;) {
        less = run_logits_rows(f->cfg, apart, rows / 2 > LEAST_ROWS ? rows / 2 : LEAST_ROWS);
        f->over.logits_rows = rows;
        if (less >= rows || (f->need ? f->need <= f->bytes : fits(f, &layers, &head)))
            return rows;
        f->need = 0;
        if (!head)
            return largest;
        rows = less;
    }
}

int run_recast(RunRoom *f)
{
    int low = 0, high, head;
    f->over.fp8_recast = 0;
    if (!precision_keeps(f->cfg) || fits(f, &high, &head))
        return 0;
    while (high > low + 1) {           /* low does not suffice; high does, or is all layers */
        int layers;
        f->over.fp8_recast = (low + high) / 2;
        if (fits(f, &layers, &head))
            high = f->over.fp8_recast;
        else
            low = f->over.fp8_recast;
    }
    return high;
}

const char *run_fp8_text(const Config *c, int recast)
{
    if (c->fp8 == FP8_NONE)
        return NULL;
    if (!precision_keeps(c))
        return "weights are cast once a step or for each unit gathered, no copies kept";
    return recast ? textf("copies of weights kept by all layers but the last %d of each rank, which cast "
                          "theirs in every microbatch: there is no room for them", recast)
                  : "copies of weights kept by all layers";
}

const char *run_logits_text(const Config *c, int64_t rows)
{
    int64_t all = c->micro_batch_size * c->seq_length / c->context_parallel_size, n = (all + rows - 1) / rows;
    return n == 1 ? textf("all %ld rows of a microbatch at a time", all)
                  : textf("%ld slices of %ld rows, of the %ld of a microbatch", n, rows, all);
}

/* Plans this rank anew, and its products, whose shapes follow from the slices. */
static void replan(Run *r, const Rehearsal *over)
{
    Run other;
    run_plan_over(&other, r->cfg, r->use, r->generation.kv_length, r->grid.rank, over);
    r->plan.bytes = other.plan.bytes;
    r->plan.memory = other.plan.memory;
    r->plan.fp8_recast = other.plan.fp8_recast;
    r->plan.logits_rows = other.plan.logits_rows;
    Products products = r->gpu.products;
    r->gpu.products = other.gpu.products;
    other.gpu.products = products;
    run_plan_close(&other);
}

/* All ranks take the smallest slice and the fewest copies that any of them has room for: slices lead to
 * messages of the tensor group, and the slowest rank decides the time of a step, so copies on the others
 * would gain nothing. */
void run_room(Run *r, int64_t bytes)
{
    Comm *all = &r->grid.all;
    RunRoom f = {r->cfg, r->use, r->generation.kv_length, bytes, r->grid.rank, 1, {0}, 0};
    int64_t rows = r->plan.apart && run_need(r) > bytes ? run_slice(&f) : r->plan.logits_rows;
    all->wait(all, all->all_reduce(all, &rows, 1, I64, OP_MIN));
    f.over.logits_rows = rows;
    int64_t recast = run_recast(&f);
    all->wait(all, all->all_reduce(all, &recast, 1, I64, OP_MAX));
    if (recast || rows != r->plan.logits_rows)
        replan(r, &(Rehearsal){.fp8_recast = (int)recast, .logits_rows = rows});
}
