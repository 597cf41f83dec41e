/* embedding -- word and position embeddings; the vocabulary is split over the tensor group */
#include "model.h"

void embedding_fwd(Model *m, const Pass *p, int part, Mat x)
{
    Device *d = m->dev;
    size_t mark = m->scratch.used;
    Mat wpe = params_weight(m->params, part, P_WPE), room = tensor_room(&m->tp.group, &m->scratch, x);
    if (m->tp.group.tp->rank != 0) /* tensor rank 0 alone adds positions: the outputs are summed */
        wpe.p = NULL;
    d->embed_fwd(d, room, p->batch->tokens, p->batch->position, params_weight(m->params, part, P_WTE),
                 m->dim.vocab0, wpe);
    tensor_wait(&m->tp.group, tensor_sum(&m->tp.group, x, room));
    arena_reset(&m->scratch, mark);
    Dropout drop = model_dropout(m, p, SITE_EMBEDDING, 0);
    if (drop.p > 0)
        d->dropout_fwd(d, x, x, (Mat){.type = x.type}, &drop);
    model_watch(m, part, "embedding", x);
}

/* The word embedding gets the gradients of all T rows, the position embedding those of this rank's R
 * rows. */
void embedding_bwd(Model *m, const Pass *p, int part, Mat dx)
{
    Device *d = m->dev;
    const Batch *b = p->batch;
    size_t mark = m->scratch.used;
    int64_t row0 = model_row0(m);
    Mat none = {.type = m->dim.real};
    Dropout drop = model_dropout(m, p, SITE_EMBEDDING, 0);
    if (drop.p > 0)
        d->dropout_bwd(d, dx, dx, &drop);
    TensorRows all = tensor_gather(&m->tp.group, &m->scratch, dx);
    d->embed_bwd(d, none, m->dim.vocab0, params_grad(m->params, part, P_WPE), dx, b->tokens + row0,
                 b->position + row0);
    d->embed_bwd(d, params_grad(m->params, part, P_WTE), m->dim.vocab0, none,
                 tensor_gathered(&m->tp.group, all), b->tokens, b->position);
    arena_reset(&m->scratch, mark);
}
