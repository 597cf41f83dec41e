/* masters -- masters of a rank's tensors, whole or in two halves (half.h), to and from the host. */
#ifndef MASTERS_H
#define MASTERS_H
#include "params.h"

/* Copies n masters of tensor t from element `from` on, which this rank updates: Params.real on the host. put
 * writes bf16 weights, too. */
static inline void masters_put(const Params *p, Device *d, const Param *t, int64_t from, int64_t n,
                               const void *src)
{
    const Data *x = &p->data;
    void *to = param_at(p, t, &x->master, from);
    if (x->halves)
        device_put_masters(d, param_at(p, t, &x->weight, from), to, src, n);
    else
        d->put(d, to, src, (size_t)n * dtype_size(p->real));
}

static inline void masters_get(const Params *p, Device *d, const Param *t, int64_t from, int64_t n, void *dst)
{
    const Data *x = &p->data;
    const void *at = param_at(p, t, &x->master, from);
    if (x->halves)
        device_get_masters(d, dst, param_at(p, t, &x->weight, from), at, n);
    else
        d->get(d, dst, at, (size_t)n * dtype_size(p->real));
}
#endif
