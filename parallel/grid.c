#include "grid.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const axis_name[AXES] = {"tp", "cp", "ep", "dp", "pp"};

int grid_parse_order(const char *text, Axis order[AXES])
{
    int n = 0, seen[AXES] = {0};
    while (*text) {
        int a = 0;
        while (a < AXES && strncmp(text, axis_name[a], 2))
            a++;
        if (a == AXES || seen[a] || (text[2] != '-' && text[2] != 0) || (text[2] == '-' && !text[3]))
            return 0;
        seen[a] = 1;
        order[n++] = (Axis)a;
        text += text[2] ? 3 : 2;
    }
    for (int a = 0; a < AXES; a++)
        if (!seen[a])
            order[n++] = (Axis)a;
    return 1;
}

/* The place of `rank` on every axis, fastest first. */
static void coordinates(const int size[AXES], const Axis order[AXES], int rank, int index[AXES])
{
    for (int k = 0; k < AXES; k++) {
        index[order[k]] = rank % size[order[k]];
        rank /= size[order[k]];
    }
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

int grid_launched(int *rank)
{
    static const char *const names[][2] = {{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
                                           {"PMI_SIZE", "PMI_RANK"}, {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *size = getenv(names[i][0]), *mine = getenv(names[i][1]);
        if (size && mine) {
            *rank = atoi(mine);
            return atoi(size);
        }
    }
    *rank = 0;
    return 1;
}

static char where[96];

const char *grid_where(void) { return where[0] ? where : NULL; }

void grid_open(Grid *g, const int size[AXES], const Axis order[AXES], int world, int rank)
{
    int product = 1;
    *g = (Grid){.world = world, .rank = rank};
    for (int a = 0; a < AXES; a++) {
        g->size[a] = size[a];
        g->order[a] = order[a];
        product *= size[a];
    }
    BUG_ON(product != world);
    coordinates(size, order, rank, g->index);
    /* the transport that carries larger groups is the caller's to choose; a config with a larger world is refused before */
    BUG_ON(world != 1);
    comm_self_open(&g->all, "world");
    comm_self_open(&g->model, "model");
    comm_self_open(&g->data, "dp-cp");
    comm_self_open(&g->shard, "shard");
    comm_self_open(&g->copies, "copies");
    comm_self_open(&g->kv, "kv");
    comm_self_open(&g->embedding, "embedding");
    for (int a = 0; a < AXES; a++)
        comm_self_open(&g->axis[a], axis_name[a]);
    if (world > 1)
        snprintf(where, sizeof where, "rank %d tp %d cp %d dp %d pp %d", rank, g->index[AXIS_TP], g->index[AXIS_CP],
                 g->index[AXIS_DP], g->index[AXIS_PP]);
    die_hooks(grid_where, NULL);
}

void grid_close(Grid *g) { memset(g, 0, sizeof *g); }
