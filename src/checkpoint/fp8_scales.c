/* fp8_scales -- the delayed FP8 scales of a model in a checkpoint */
#include "checkpoint.h"
#include "model.h"
#include <math.h>
#include <stdlib.h>

void fp8_scales_pieces(const Model *m, PieceUse use, TensorPiece **list, int *n)
{
    int speaks = m->grid->index[AXIS_TP] == 0 && m->grid->data.rank == 0;
    if (!precision_delayed(m) || use == PIECES_GRADIENT || (use == PIECES_SAVE && !speaks))
        return;
    for (int64_t i = 0; i < precision_linears(m); i++) {
        const Param *weight = precision_weight(m, i);
        if (weight)
            pieces_add(list, n,
                       (TensorPiece){.name = xasprintf("decoder.layers.%d.%s" FP8_SCALES, weight->layer,
                                                       weight->def->name),
                               .type = F32, .ndim = 2, .shape = {LINEAR_SCALES, 1 + FP8_HISTORY},
                               .rows = LINEAR_SCALES, .cols = 1 + FP8_HISTORY,
                               .ld = sizeof(Fp8Scale) / sizeof(float),
                               .data = m->fp8.scale ? &m->fp8.scale[i * LINEAR_SCALES].scale : NULL,
                               .dev = m->dev, .optim = 1, .may_lack = 1});
    }
}

void fp8_scales_loaded(Model *m)
{
    const int64_t linears = precision_linears(m), n = linears * LINEAR_SCALES;
    if (!precision_delayed(m))
        return;
    Fp8Scale *s = xcalloc((size_t)n + 1, sizeof *s);
    m->dev->get(m->dev, s, m->fp8.scale, (size_t)n * sizeof *s);
    for (int64_t i = 0; i < n; i++)
        if (!(s[i].scale >= 0 && isfinite(s[i].scale)))
            die(EXIT_CHECKPOINT, "checkpoint-state", "an FP8 scale of the checkpoint is %g; change: load "
                "another checkpoint, or set finetune: true to take the weights only", (double)s[i].scale);
    for (int64_t i = 0; i < linears; i++) {
        const Fp8Scale *x = &s[i * LINEAR_SCALES];
        m->fp8.known[i] = 0;
        /* as in the run that saved: a step leaves magnitudes in the history, even where none was finite */
        for (int k = 0; k < LINEAR_SCALES; k++)
            m->fp8.known[i] |= x[k].scale > 0 || x[k].history[0] != 0;
    }
    free(s);
}
