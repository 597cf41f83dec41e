#include "model.h"

void embedding_fwd(Model *m, Slot *s, Mat x)
{
    Device *d = m->dev;
    Mat wpe = params_weight(m->params, 0, P_WPE);
    if (m->tp->rank != 0)      /* positions enter once, like the bias of a row linear */
        wpe.p = NULL;
    d->embed_fwd(d, x, s->batch.tokens, s->batch.position, params_weight(m->params, 0, P_WTE), m->vocab0, wpe);
    m->tp->wait(m->tp, m->tp->all_reduce(m->tp, x.p, x.rows * x.cols, x.type, OP_SUM));
    Dropout drop = model_dropout(m, s, SITE_EMBEDDING, 0);
    if (drop.p > 0)
        d->dropout_fwd(d, x, x, (Mat){.type = x.type}, &drop);
    model_watch(m, 0, "embedding", x);
}

void embedding_bwd(Model *m, Slot *s, Mat dx)
{
    Device *d = m->dev;
    Dropout drop = model_dropout(m, s, SITE_EMBEDDING, 0);
    if (drop.p > 0)
        d->dropout_bwd(d, dx, dx, &drop);
    d->embed_bwd(d, params_grad(m->params, 0, P_WTE), m->vocab0, params_grad(m->params, 0, P_WPE), dx, s->batch.tokens,
                 s->batch.position);
}
