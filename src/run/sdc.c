/* sdc -- silent data corruption: hashes of weights, masters and moments, compared between the ranks that hold
 * the same, and between the end of an update and the start of the next one */
#include "modes.h"
#include "run_layout.h"
#include <stdlib.h>
#include <string.h>

/* ---- what is hashed ---- */

enum { GROUPS_WHOLE, GROUPS_COPIES, EXPERTS_WHOLE, EXPERTS_COPIES, SLICES, EXPERT_SLICES, KV, EMBEDDING };

static void add(RunSdc *s, const char *tensor, const char *suffix, const void *at, int64_t bytes,
                unsigned groups)
{
    s->list = xgrow(s->list, s->n, sizeof *s->list);
    s->what = xgrow(s->what, s->n, sizeof *s->what);
    s->list[s->n] = (Hashed){NULL, at, bytes};
    s->what[s->n++] = (SdcTensor){tensor, suffix, groups};
}

/* Adds what this rank holds of tensor t in array f. Ranks with the same key/value heads share the end. */
static void add_tensor(RunSdc *s, const Params *p, const Param *t, const Flat *f, const char *suffix)
{
    int expert = t->expert >= 0;
    unsigned groups = 1u << (2 * expert + (f->sharded ? GROUPS_COPIES : GROUPS_WHOLE));
    groups |= t->def->cut == CUT_NONE ? 1u << (SLICES + expert) : 0;
    groups |= t->bucket == p->data.tied ? 1u << EMBEDDING : 0;
    int64_t from, to, shared = param_shared_kv(p, t);
    param_held(p, t, f, &from, &to);
    int64_t middle = shared < from ? from
                     : shared < to ? shared
                                   : to,
            size = (int64_t)dtype_size(f->type), block = f->block;
    if (from < middle)
        add(s, t->name, suffix, param_at(p, t, f, from), (middle - from + block - 1) / block * size, groups);
    if (middle < to)
        add(s, t->name, suffix, param_at(p, t, f, middle), (to - middle + block - 1) / block * size,
            groups | 1u << KV);
}

void sdc_open(Run *r, Arena *run)
{
    static const char *const moment[] = {".exp_avg", ".exp_avg_sq"}, *const scale[] = {".exp_avg.scales",
                                                                                       ".exp_avg_sq.scales"};
    RunSdc *s = &r->sdc;
    const Params *p = &r->params;
    const Data *d = &p->data;
    Grid *g = &r->grid;
    Comm *const comm[SDC_GROUPS] = {[GROUPS_WHOLE] = d->groups[0].data,
                                    [GROUPS_COPIES] = d->groups[0].copies,
                                    [EXPERTS_WHOLE] = d->groups[1].data,
                                    [EXPERTS_COPIES] = d->groups[1].copies,
                                    [SLICES] = &g->axis[AXIS_TP],
                                    [EXPERT_SLICES] = &g->expert[EXPERT_TP],
                                    [KV] = &g->kv,
                                    [EMBEDDING] = &g->embedding};
    *s = (RunSdc){0};
    if (r->use != RUN_TRAIN || !r->cfg->sdc_check_interval)
        return;
    memcpy(s->comm, comm, sizeof comm);
    for (int i = 0; i < p->nparam; i++) {
        const Param *t = &p->param[i];
        add_tensor(s, p, t, &d->weight, "");
        if (p->type != p->real)
            add_tensor(s, p, t, &d->master, ".master");
        for (int k = 0; k < d->moments; k++) {
            add_tensor(s, p, t, &d->moment[k], moment[k]);
            if (moment_scaled(d->stored[k]))
                add_tensor(s, p, t, &d->scale[k], scale[k]);
        }
    }
    s->sum = arena_take(run, (size_t)s->n * sizeof *s->sum);
    s->kept = xcalloc((size_t)s->n + 1, sizeof *s->kept);
    s->seen = xcalloc((size_t)s->n + 1, sizeof *s->seen);
    for (int i = 0; i < s->n; i++)
        s->list[i].sum = s->sum ? s->sum + i : NULL;
}

void sdc_close(Run *r)
{
    free(r->sdc.list);
    free(r->sdc.what);
    free(r->sdc.kept);
    free(r->sdc.seen);
    r->sdc = (RunSdc){0};
}

/* Hashes everything as it lies in memory. Waits for the device; collective over the shard groups. */
static void hash_all(Run *r, uint64_t *out)
{
    RunSdc *s = &r->sdc;
    Device *d = r->model.dev;
    size_t bytes = (size_t)s->n * sizeof *out;
    data_settle(&r->params.data);
    data_gathered(&r->params.data);
    d->zero(d, s->sum, bytes);
    if (s->n)
        d->hash(d, s->list, s->n);
    d->get(d, out, s->sum, bytes);
}

/* ---- replicas ---- */

/* The first tensor that not all ranks of a group hold alike. */
typedef struct {
    char tensor[112]; /* name; "" */
    const char *group;
} Difference;

/* Compares this rank's hashes with those of group k, tensor by tensor. votes: the first rank of the group
 * adds one to each rank that may be wrong, and much more where a majority tells who is. */
static void find_difference(Run *r, int k, int64_t *votes, Difference *found)
{
    const RunSdc *s = &r->sdc;
    Comm *c = s->comm[k];
    int64_t n = 1, *mine = xcalloc((size_t)s->n + 1, sizeof *mine), *all;
    mine[0] = r->grid.rank;
    for (int i = 0; i < s->n; i++)
        if (s->what[i].groups >> k & 1)
            mine[n++] = (int64_t)s->seen[i];
    all = xcalloc((size_t)(n * c->size), sizeof *all);
    c->wait(c, c->all_gather(c, all, mine, n, I64));
    for (int i = 0, at = 0; i < s->n && !found->group; i++) {
        int most = 0, alike = 0;
        int64_t usual = 0;
        if (!(s->what[i].groups >> k & 1))
            continue;
        at++;
        for (int a = 0; a < c->size; a++) {
            alike = 0;
            for (int b = 0; b < c->size; b++)
                alike += all[b * n + at] == all[a * n + at];
            usual = alike > most ? all[a * n + at] : usual;
            most = alike > most ? alike : most;
        }
        if (most == c->size)
            continue;
        *found = (Difference){.group = c->name};
        snprintf(found->tensor, sizeof found->tensor, "%s%s", s->what[i].tensor, s->what[i].suffix);
        for (int a = 0; a < c->size && c->rank == 0; a++)
            votes[all[a * n]] += 2 * most <= c->size ? 1 : all[a * n + at] == usual ? 0 : 2 * SDC_GROUPS;
    }
    free(all);
    free(mine);
}

/* Writes "rank 2 on host a", for up to four of the ranks with the most votes. Returns how many there are. */
static int suspects(Run *r, const int64_t *votes, int64_t most, char *text, size_t size)
{
    Comm *all = &r->grid.all;
    char mine[HOST_NAME], *host = xcalloc((size_t)all->size, HOST_NAME);
    int n = 0;
    all->wait(all, all->all_gather(all, host, host_name(mine), HOST_NAME / 8, I64));
    text[0] = 0;
    for (int rank = 0; rank < all->size; rank++) {
        size_t used = strlen(text);
        if (votes[rank] == most && n++ < 4)
            snprintf(text + used, size - used, "%srank %d on host %.63s", used ? " and " : "", rank,
                     host + (size_t)rank * HOST_NAME);
    }
    free(host);
    return n;
}

/* Names the tensor and the rank whose bytes are wrong, and ends the job. Collective. */
static _Noreturn void blame(Run *r)
{
    Comm *all = &r->grid.all;
    Difference found = {0};
    int64_t *votes = xcalloc((size_t)all->size, sizeof *votes), most = 0;
    char who[512];
    for (int k = 0; k < SDC_GROUPS; k++) {
        Difference other = {0};
        find_difference(r, k, votes, &other);
        if (!found.group)
            found = other;
    }
    all->wait(all, all->all_reduce(all, votes, all->size, I64, OP_SUM));
    for (int i = 0; i < all->size; i++)
        most = votes[i] > most ? votes[i] : most;
    int n = suspects(r, votes, most, who, sizeof who), named = votes[all->rank] == most;
    free(votes);
    all_ok(
        all, !named, EXIT_RESOURCE, "replicas",
        "after iteration %lld, %s %s %s %s group %s%s; nothing of it "
        "is saved; change: start again with load=latest, and test the memory of a host that is named again",
        (long long)r->progress.iteration, who, n == 1 ? "has other bytes of" : "have different bytes of",
        found.tensor, n == 1 ? "than the other ranks of" : "in", found.group ? found.group : "?",
        n == 1 ? "" : ", where no majority tells which are wrong");
    die(EXIT_BUG, "replicas", "no rank has other bytes, but hashes differ; change: report this");
}

/* Dies unless this rank's tensors have the bytes that other ranks hold of them. Collective. */
static void compare_replicas(Run *r)
{
    RunSdc *s = &r->sdc;
    Comm *all = &r->grid.all;
    int64_t same = 1;
    for (int k = 0; k < SDC_GROUPS; k++) {
        Comm *c = s->comm[k];
        int64_t low, high;
        uint64_t h = HASH_SEED;
        for (int i = 0; i < s->n; i++)
            if (s->what[i].groups >> k & 1)
                h = hash64(&s->seen[i], sizeof h, h);
        low = high = (int64_t)h;
        c->wait(c, c->all_reduce(c, &low, 1, I64, OP_MIN));
        c->wait(c, c->all_reduce(c, &high, 1, I64, OP_MAX));
        same &= low == high;
    }
    all->wait(all, all->all_reduce(all, &same, 1, I64, OP_MIN));
    if (!same)
        blame(r);
}

/* ---- when ---- */

void sdc_verify(Run *r)
{
    RunSdc *s = &r->sdc;
    int bad = 0;
    char host[HOST_NAME];
    if (!s->sealed)
        return;
    hash_all(r, s->seen);
    while (bad < s->n && s->seen[bad] == s->kept[bad])
        bad++;
    const SdcTensor none = {"", "", 0}, *t = bad < s->n ? &s->what[bad] : &none;
    all_ok(&r->grid.all, bad == s->n, EXIT_RESOURCE, "memory",
           "rank %d on host %s: %s%s has other bytes than "
           "iteration %lld left in it: its memory has changed between two updates; nothing of it is saved; "
           "change: start again with load=latest, and test the memory of a host that is named again",
           r->grid.rank, host_name(host), t->tensor, t->suffix, (long long)s->iteration);
}

void sdc_seal(Run *r)
{
    RunSdc *s = &r->sdc;
    hash_all(r, s->seen);
    compare_replicas(r);
    memcpy(s->kept, s->seen, (size_t)s->n * sizeof *s->kept);
    s->iteration = r->progress.iteration;
    s->sealed = 1;
}

void run_check(Run *r)
{
    modes_check(r->progress.iteration);
    if (!r->sdc.kept)                  /* no check is asked for */
        return;
    if (r->sdc.sealed)
        sdc_verify(r);
    else
        sdc_seal(r);
}
