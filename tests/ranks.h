/* ranks -- a grid of ranks inside one test process: every group of every rank, over communicators that a test
 * supplies. */
#ifndef RANKS_H
#define RANKS_H
#include "grid.h"
#include "params.h"
#include <stdio.h>
#include <string.h>

typedef struct {
    int tp, dp, pp, instances, kv_share;
    int etp, ep;               /* of the expert grid; ep 0: no experts */
} RankShape;

typedef enum {
    R_ALL, R_TP, R_DP, R_PP, R_SHARD, R_COPIES, R_KV, R_EMBEDDING, R_EP, R_ETP, R_EDP, R_EDP_SHARD,
    R_EDP_COPIES, R_KINDS
} RankGroup;

/* Makes the communicator of member `rank` of a group of `size` ranks. id: number of the group among the
 * groups of its kind. */
typedef Comm (*MakeComm)(void *ctx, RankGroup kind, int id, int size, int rank);

static inline int ranks_world(const RankShape *s) { return s->tp * s->dp * s->pp; }
/* Ranks with the same slices of the same experts. */
static inline int ranks_edp(const RankShape *s) { return s->ep ? s->tp * s->dp / (s->etp * s->ep) : 1; }
/* Optimizer instances of experts. */
static inline int ranks_edp_copies(const RankShape *s) { return ranks_edp(s) > 1 ? s->instances : 1; }

/* Fills *g for `rank` in the default order: rank = tp index + TP (dp index + DP pp index). */
static inline void ranks_grid(Grid *g, const RankShape *s, int rank, MakeComm make, void *ctx)
{
    int t = rank % s->tp, d = rank / s->tp % s->dp, p = rank / s->tp / s->dp;
    int each = s->dp / s->instances, end = p == 0 || p == s->pp - 1;
    *g = (Grid){.world = ranks_world(s), .rank = rank, .spec = {.kv_share = s->kv_share}};
    for (int a = 0; a < AXES; a++) {
        g->size[a] = a == AXIS_TP ? s->tp : a == AXIS_DP ? s->dp : a == AXIS_PP ? s->pp : 1;
        g->index[a] = a == AXIS_TP ? t : a == AXIS_DP ? d : a == AXIS_PP ? p : 0;
        g->order[a] = (Axis)a;
        comm_self_open(&g->axis[a], grid_axis_name[a]);
    }
    g->all = make(ctx, R_ALL, 0, g->world, rank);
    g->axis[AXIS_TP] = make(ctx, R_TP, d + s->dp * p, s->tp, t);
    g->axis[AXIS_DP] = g->data = make(ctx, R_DP, t + s->tp * p, s->dp, d);
    g->axis[AXIS_PP] = make(ctx, R_PP, t + s->tp * d, s->pp, p);
    g->shard = make(ctx, R_SHARD, t + s->tp * (p * s->instances + d / each), each, d % each);
    g->copies = make(ctx, R_COPIES, t + s->tp * (p * each + d % each), s->instances, d / each);
    g->kv = make(ctx, R_KV, rank / s->kv_share, s->kv_share, t % s->kv_share);
    for (int e = 0; e < EXPERT_GROUPS; e++)
        comm_self_open(&g->expert[e], "expert");
    if (s->ep) {
        int q = t + s->tp * d, et = q % s->etp, e = q / s->etp % s->ep, ed = q / s->etp / s->ep;
        int edp = ranks_edp(s), copies = ranks_edp_copies(s), part = edp / copies;
        int first = et + s->etp * (e + s->ep * p);
        g->expert[EXPERT_EP] = make(ctx, R_EP, et + s->etp * (ed + edp * p), s->ep, e);
        g->expert[EXPERT_TP] = make(ctx, R_ETP, e + s->ep * (ed + edp * p), s->etp, et);
        g->expert[EXPERT_DATA] = make(ctx, R_EDP, first, edp, ed);
        g->expert[EXPERT_SHARD] = make(ctx, R_EDP_SHARD, first * copies + ed / part, part, ed % part);
        g->expert[EXPERT_COPIES] = make(ctx, R_EDP_COPIES, first * part + ed % part, copies, ed / part);
    }
    comm_self_open(&g->embedding, "embedding");
    if (end && s->pp > 1)
        g->embedding = make(ctx, R_EMBEDDING, t + s->tp * d, 2, p > 0);
}

/* Loads `file` for the shape's ranks. list: key=value arguments, separated by bars; those of the shape are
 * added. */
static inline const Config *ranks_config(const char *file, const RankShape *s, const char *list)
{
    char *args[40], *text = xasprintf("%s%stensor_model_parallel_size=%d|pipeline_model_parallel_size=%d|"
                                      "num_distributed_optimizer_instances=%d",
                                      list, *list ? "|" : "", s->tp, s->pp, s->instances);
    if (s->ep) {
        char *dense = text;
        text = xasprintf("%s|expert_model_parallel_size=%d|expert_tensor_parallel_size=%d", dense, s->ep,
                         s->etp);
        free(dense);
    }
    int n = 0;
    for (char *a = strtok(text, "|"); a; a = strtok(NULL, "|"))
        args[n++] = a;
    const Config *c = config_load(file, n, args, ranks_world(s), USE_MODEL);
    free(text);
    return c;
}
#endif
