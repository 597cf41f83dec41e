/* expert_bias -- the biases of a model's routers in a checkpoint */
#define _GNU_SOURCE
#include "checkpoint.h"
#include "model.h"
#include <math.h>
#include <stdlib.h>

char *expert_bias_name(int layer) { return xasprintf("decoder.layers.%d.mlp.router" EXPERT_BIAS, layer); }

void expert_bias_pieces(const Model *m, PieceUse use, TensorPiece **list, int *n)
{
    Mat bias = m->balance.bias;
    int speaks = m->grid->index[AXIS_TP] == 0 && m->grid->data.rank == 0;
    if (use == PIECES_GRADIENT || (use == PIECES_SAVE && !speaks))
        return;
    for (int i = 0; i < bias.rows; i++)
        if (model_is_moe(m, i))
            pieces_add(list, n,
                       (TensorPiece){.name = expert_bias_name(m->params->part[i].layer), .type = bias.type,
                                     .ndim = 1, .shape = {bias.cols, 1}, .rows = bias.cols, .cols = 1,
                                     .ld = 1, .data = mat_at(bias, i, 0), .dev = m->dev, .may_lack = 1});
}

void expert_bias_loaded(const Model *m)
{
    Mat bias = m->balance.bias;
    void *x = xcalloc((size_t)(bias.rows * bias.cols) + 1, sizeof(double));
    m->dev->get(m->dev, x, bias.p, mat_bytes(bias));
    for (int64_t i = 0; i < bias.rows * bias.cols; i++) {
        double b = bias.type == F64 ? ((double *)x)[i] : (double)((float *)x)[i];
        if (!isfinite(b))
            die(EXIT_CHECKPOINT, "checkpoint-state", "an expert's bias of the checkpoint is %g; change: load "
                "another checkpoint", b);
    }
    free(x);
}
