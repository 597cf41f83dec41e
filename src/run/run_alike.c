/* run_alike -- the processors of the ranks, compared before they compute */
#include "isas.h"
#include "run_layout.h"
#include <stdlib.h>
#include <string.h>

/* What a rank tells the others. */
typedef struct {
    char host[HOST_NAME];
    char ops[48];                  /* instruction set of its ops, or its GPU */
    char bf16[24];                 /* what multiplies BF16 */
    int64_t threads;
} Processor;

static Processor own(Run *r)
{
    const Device *d = &r->dev;
    Processor p = {.threads = pool_threads(d->pool)};
    int as_avx512 = !strcmp(d->isa, "amx");        /* its ops, products of BF16 apart (isas.h) */
    host_name(p.host);
    snprintf(p.ops, sizeof p.ops, "%.47s", as_avx512 ? "avx512" : d->isa);
    snprintf(p.bf16, sizeof p.bf16, "%.23s", r->params.type == BF16 ? d->bf16 : "");
    return p;
}

static void describe(const Processor *p, char text[96])
{
    snprintf(text, 96, "%s%s%s", p->ops, *p->bf16 ? ", BF16 by " : "", p->bf16);
}

/* Place of an instruction set in CPU_ISAS, best first. */
static int place(const char *ops)
{
#define NAMED(id, name) n += !found, found |= !strcmp(ops, name);
    int n = -1, found = 0;
    CPU_ISAS(NAMED)
#undef NAMED
    return n;
}

/* The best cpu_isa with which both compute the same bits. */
static const char *common(const Processor *a, const Processor *b)
{
    const char *lesser = place(a->ops) > place(b->ops) ? a->ops : b->ops;
    int dots = !strcmp(a->bf16, "avx512_bf16") || !strcmp(b->bf16, "avx512_bf16");
    return dots && !strcmp(lesser, "avx512") ? "avx2" : lesser;
}

static int first_that_differs(const Processor *p, int n)
{
    int i = 0;
    while (i < n && !strcmp(p[i].ops, p[0].ops) && !strcmp(p[i].bf16, p[0].bf16))
        i++;
    return i;
}

static void warn_of_threads(const Processor *p, int n)
{
    int few = 0, many = 0;
    for (int i = 0; i < n; i++) {
        few = p[i].threads < p[few].threads ? i : few;
        many = p[i].threads > p[many].threads ? i : many;
    }
    if (p[few].threads < p[many].threads)
        warn("rank %d on host %s computes with %lld threads, and rank %d on host %s with %lld: every step "
             "takes as long as the slowest rank", few, p[few].host, (long long)p[few].threads, many,
             p[many].host, (long long)p[many].threads);
}

void run_alike(Run *r)
{
    Comm *all = &r->grid.all;
    Processor mine = own(r), *p = xcalloc((size_t)all->size, sizeof *p);
    all->wait(all, all->all_gather(all, p, &mine, sizeof mine / sizeof(int64_t), I64));
    int odd = first_that_differs(p, all->size), differs = odd < all->size;
    int gpu = r->cfg->device == DEVICE_CUDA;
    const Processor *first = &p[0], *other = &p[differs ? odd : 0];
    char ours[96], theirs[96];
    describe(first, ours);
    describe(other, theirs);
    all_ok(all, gpu || all->rank != odd, EXIT_CONFIG, "processors",
           "rank %d on host %s computes with %s, and rank 0 on host %s with %s: their results have other "
           "bits, and replicas would drift apart; change: cpu_isa=%s, which both have", odd, other->host,
           theirs, first->host, ours, common(first, other));
    if (differs && all->rank == 0)
        warn("rank %d on host %s computes on a GPU %s, and rank 0 on host %s on a GPU %s: every step takes "
             "as long as the slowest rank, and replicas may come to differ in their last bits", odd,
             other->host, theirs, first->host, ours);
    if (all->rank == 0)
        warn_of_threads(p, all->size);
    free(p);
}
