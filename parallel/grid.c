/* grid -- coordinates of the ranks, their process groups, and what opens and wraps all of these. */
#include "grid.h"
#include "comm_device.h"
#include "comm_mpi.h"
#include "job.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const grid_axis_name[AXES] = {"tp", "cp", "ep", "dp", "pp"};

int grid_parse_order(const char *text, Axis order[AXES])
{
    unsigned seen = 0;
    for (int n = 0; n < AXES; n++, text += 3) {
        int a = 0;
        while (a < AXES && strncmp(text, grid_axis_name[a], 2))
            a++;
        if (a == AXES || seen >> a & 1 || text[2] != (n < AXES - 1 ? '-' : 0))
            return 0;
        seen |= 1u << a;
        order[n] = (Axis)a;
    }
    return 1;
}

GridSpec grid_along(Axis axis, int ranks)
{
    GridSpec s = {.size = {1, 1, 1, 1, 1}, .order = {AXIS_TP, AXIS_CP, AXIS_EP, AXIS_DP, AXIS_PP}};
    s.size[axis] = ranks;
    return s;
}

/* The place of `rank` on every axis, fastest first. */
static void coordinates(const int size[AXES], const Axis order[AXES], int rank, int index[AXES])
{
    for (int k = 0; k < AXES; k++) {
        index[order[k]] = rank % size[order[k]];
        rank /= size[order[k]];
    }
}

int grid_index(const GridSpec *spec, int rank, Axis axis)
{
    int index[AXES];
    coordinates(spec->size, spec->order, rank, index);
    return index[axis];
}

/* The distance of ranks that are neighbours on an axis. */
static int stride_of(const int size[AXES], const Axis order[AXES], Axis axis)
{
    int n = 1;
    for (int k = 0; order[k] != axis; k++)
        n *= size[order[k]];
    return n;
}

int grid_first(const GridSpec *spec, Axis axis, int index)
{
    return index * stride_of(spec->size, spec->order, axis);
}

int grid_group(const int size[AXES], const Axis order[AXES], unsigned mask, int rank, int *out)
{
    int index[AXES], n = 1;
    coordinates(size, order, rank, index);
    for (int a = 0; a < AXES; a++)
        if (mask >> a & 1)
            n *= size[a];
    for (int r = 0; r < n; r++) {
        int rest = r, stride = 1, at = 0;
        for (int k = 0; k < AXES; k++) {
            Axis a = order[k];
            int i = index[a];
            if (mask >> a & 1) {
                i = rest % size[a];
                rest /= size[a];
            }
            at += i * stride;
            stride *= size[a];
        }
        out[r] = at;
    }
    return n;
}

int grid_host_ranks(const Grid *g) { return g->world > 1 ? job_ranks() : 1; }
int grid_host_rank(const Grid *g) { return g->world > 1 ? job_local() : 0; }
int grid_host(const Grid *g) { return g->world > 1 ? comm_mpi_host() : 0; }

int grid_cores(const Grid *g)
{
    int sharers = g->world == 1 ? 1 : job_here() ? job_sharers() : g->world, n = job_cores() / sharers;
    return n ? n : 1;
}

int grid_expert_size(const GridSpec *spec, int world, int size[AXES])
{
    int etp = spec->etp ? spec->etp : spec->size[AXIS_TP], ep = spec->ep ? spec->ep : 1,
        pp = spec->size[AXIS_PP];
    if (world % (etp * ep * pp))
        return 0;
    size[AXIS_TP] = etp;
    size[AXIS_CP] = 1;
    size[AXIS_EP] = ep;
    size[AXIS_PP] = pp;
    size[AXIS_DP] = world / (etp * ep * pp);
    return pp == 1 || stride_of(size, spec->order, AXIS_PP) == stride_of(spec->size, spec->order, AXIS_PP);
}

int grid_expert_group(const GridSpec *spec, int world, unsigned mask, int rank, int *out)
{
    int size[AXES];
    BUG_ON(!grid_expert_size(spec, world, size));
    return grid_group(size, spec->order, mask, rank, out);
}

/* ---- opening ---- */

static void open_real(void *ctx, const Grid *g, Comm *c, const char *name, const int *member, int n)
{
    (void)ctx;
    if (n > 1) {
        comm_mpi_open(c, name, member, n);
        return;
    }
    comm_self_open(c, name);
    if (g->world > 1)
        comm_mpi_skip();
}

static void open_counting(void *ctx, const Grid *g, Comm *c, const char *name, const int *member, int n)
{
    int place = 0;
    (void)ctx;
    while (member[place] != g->rank)
        place++;
    comm_count_open(c, name, n, place);
}

typedef struct { GridOpener open; void *ctx; } Opening;

/* Opens the group of list[first], list[first + step], ..., n ranks. */
static void open_part(const Grid *g, Opening how, Comm *c, const char *name, const int *list, int first,
                      int step, int n)
{
    int *member = xcalloc((size_t)n, sizeof *member);
    for (int i = 0; i < n; i++)
        member[i] = list[first + i * step];
    how.open(how.ctx, g, c, name, member, n);
    free(member);
}

static int place_in(const int *list, int rank)
{
    int i = 0;
    while (list[i] != rank)
        i++;
    return i;
}

#define BIT(axis) (1u << (axis))

/* Opens an optimizer instance of the n ranks of `list`, and the group of the ranks at this rank's place. */
static void open_instances(const Grid *g, Opening how, Comm *shard, Comm *copies, const char *const name[2],
                           const int *list, int n, int instances)
{
    int at = place_in(list, g->rank), part = n / instances;
    open_part(g, how, shard, name[0], list, at / part * part, 1, part);
    open_part(g, how, copies, name[1], list, at % part, part, instances);
}

/* Opens the groups of the expert grid. */
static void open_experts(Grid *g, Opening how, int *list)
{
    static const struct { const char *name; unsigned mask; } whole[] = {
        [EXPERT_EP] = {"ep", BIT(AXIS_EP)}, [EXPERT_TP] = {"etp", BIT(AXIS_TP)},
        [EXPERT_DATA] = {"edp", BIT(AXIS_DP)}};
    int n = 1;
    for (int e = 0; e <= EXPERT_DATA; e++) {
        list[0] = g->rank;
        n = g->spec.experts ? grid_expert_group(&g->spec, g->world, whole[e].mask, g->rank, list) : 1;
        how.open(how.ctx, g, &g->expert[e], whole[e].name, list, n);
    }
    BUG_ON(n > 1 && n % g->spec.instances);
    open_instances(g, how, &g->expert[EXPERT_SHARD], &g->expert[EXPERT_COPIES],
                   (const char *const[]){"edp-shard", "edp-copies"}, list, n, n > 1 ? g->spec.instances : 1);
}

static void open_groups(Grid *g, Opening how)
{
    int *list = xcalloc((size_t)g->world, sizeof *list), rank = g->rank, n, at;
    const struct { Comm *c; const char *name; unsigned mask; } whole[] = {
        {&g->all, "world", BIT(AXES) - 1},
        {&g->axis[AXIS_TP], "tp", BIT(AXIS_TP)}, {&g->axis[AXIS_CP], "cp", BIT(AXIS_CP)},
        {&g->axis[AXIS_EP], "ep", BIT(AXIS_EP)}, {&g->axis[AXIS_DP], "dp", BIT(AXIS_DP)},
        {&g->axis[AXIS_PP], "pp", BIT(AXIS_PP)},
        {&g->model, "tp-pp", BIT(AXIS_TP) | BIT(AXIS_PP)}, {&g->data, "dp-cp", BIT(AXIS_DP) | BIT(AXIS_CP)},
    };
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        if (i == 0)                    /* in the world's group a rank is its world rank, whatever the order */
            for (n = 0; n < g->world; n++)
                list[n] = n;
        else
            n = grid_group(g->size, g->order, whole[i].mask, rank, list);
        how.open(how.ctx, g, whole[i].c, whole[i].name, list, n);
    }
    n = grid_group(g->size, g->order, BIT(AXIS_PP), rank, list);
    at = g->index[AXIS_PP];
    if (n > 1 && (at == 0 || at == n - 1))
        open_part(g, how, &g->embedding, "embedding", list, 0, n - 1, 2);
    else
        how.open(how.ctx, g, &g->embedding, "embedding", &rank, 1);
    n = g->spec.kv_share;
    grid_group(g->size, g->order, BIT(AXIS_TP), rank, list);
    open_part(g, how, &g->kv, "kv", list, g->index[AXIS_TP] / n * n, 1, n);
    n = grid_group(g->size, g->order, BIT(AXIS_CP), rank, list);
    at = g->index[AXIS_CP];
    int heads = g->spec.context_heads, rings = heads ? n / heads : 1;
    heads = heads ? heads : 1;
    open_part(g, how, &g->context_heads, "cp-heads", list, at / heads * heads, 1, heads);
    open_part(g, how, &g->context_ring, "cp-ring", list, rings > 1 ? at % heads : at, heads, rings);
    n = grid_group(g->size, g->order, BIT(AXIS_DP) | BIT(AXIS_CP), rank, list);
    open_instances(g, how, &g->shard, &g->copies, (const char *const[]){"shard", "copies"}, list, n,
                   g->spec.instances);
    open_experts(g, how, list);
    free(list);
}

static void grid_init(Grid *g, const GridSpec *spec, int world, int rank)
{
    int product = 1;
    *g = (Grid){.world = world, .rank = rank, .spec = *spec};
    for (int a = 0; a < AXES; a++) {
        g->size[a] = spec->size[a];
        g->order[a] = spec->order[a];
        product *= spec->size[a];
    }
    if (!spec->kv_share)
        g->spec.kv_share = 1;
    if (!spec->instances)
        g->spec.instances = 1;
    BUG_ON(product != world || rank < 0 || rank >= world);
    BUG_ON(g->size[AXIS_TP] % g->spec.kv_share);
    BUG_ON(g->spec.context_heads && g->size[AXIS_CP] % g->spec.context_heads);
    BUG_ON(g->size[AXIS_DP] * g->size[AXIS_CP] % g->spec.instances);
    coordinates(g->size, spec->order, rank, g->index);
}

void grid_open(Grid *g, const GridSpec *spec, int world, int rank)
{
    grid_init(g, spec, world, rank);
    if (world > 1) {
        comm_mpi_start();
        char where[96];
        snprintf(where, sizeof where, "rank %d tp %d cp %d dp %d pp %d", rank, g->index[AXIS_TP],
                 g->index[AXIS_CP], g->index[AXIS_DP], g->index[AXIS_PP]);
        job_where(where);
    }
    open_groups(g, (Opening){open_real, NULL});
}

void grid_open_by(Grid *g, const GridSpec *spec, int world, int rank, GridOpener open, void *ctx)
{
    grid_init(g, spec, world, rank);
    open_groups(g, (Opening){open, ctx});
}

void grid_open_counting(Grid *g, const GridSpec *spec, int world, int rank)
{
    grid_open_by(g, spec, world, rank, open_counting, NULL);
}

void grid_each(Grid *g, void (*fn)(void *ctx, Comm *c), void *ctx)
{
    Comm *rest[] = {&g->all, &g->model, &g->data, &g->embedding, &g->kv, &g->context_heads, &g->context_ring,
                    &g->shard, &g->copies};
    for (int a = 0; a < AXES; a++)
        fn(ctx, &g->axis[a]);
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++)
        fn(ctx, rest[i]);
    for (int e = 0; e < EXPERT_GROUPS && g->spec.experts; e++)    /* groups of one need nothing */
        fn(ctx, &g->expert[e]);
}

static void set_device(void *device, Comm *c) { c->dev = device; }
void grid_device(Grid *g, Device *d) { grid_each(g, set_device, d); }
void grid_staged(Grid *g, Device *d) { grid_each(g, comm_staged_wrap, d); }

void grid_nccl(Grid *g, Device *d, double timeout)
{
    NcclWorld *w = comm_nccl_start(&g->all, d, timeout);
    if (w)
        grid_each(g, comm_nccl_wrap, w);
}

static void close_one(void *unused, Comm *c)
{
    (void)unused;
    comm_close(c);
}

void grid_close(Grid *g)
{
    grid_each(g, close_one, NULL);
    memset(g, 0, sizeof *g);
}
