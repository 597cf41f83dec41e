/* offload -- activations of a chunk's first layers, on the host between F and the backward
 *
 * cpu_offloading_num_layers is their number. A layer computes into one of two windows on the device, in
 * turn. After the layer's forward the window is copied to the host beside the ops; the next forward in
 * this window waits for that copy. In the backward a window is prefetched while the layer after it
 * computes. Activations that D reads stay in the window; with D and W apart, those that W reads go to DW
 * memory until W. The inputs of the layers, which are sent to other ranks, are not offloaded.
 *
 * Rhu et al. 2016, "vDNN", arXiv:1602.08124, sec 3. */
#include "model.h"

int offload_wanted(const Model *m, const ModelUnit *u)
{
    return u->offload && m->now.schedule->slots[SLOT_FW] > 0;
}

static size_t room_of(const Arena *a)
{
    return a->base ? a->size : (a->peak + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
}

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }
size_t offload_room_d(const Model *m)
{
    return larger(room_of(&m->offload.window[0].d), room_of(&m->offload.window[1].d));
}
size_t offload_room_w(const Model *m)
{
    return larger(room_of(&m->offload.window[0].w), room_of(&m->offload.window[1].w));
}

static LayerActs *acts_of(const Pass *p, const ModelUnit *u) { return &p->fw->layer[u->layer]; }

/* The next window, emptied. */
static LayerWindow *next_window(Model *m)
{
    LayerWindow *w = &m->offload.window[m->offload.turn];
    BUG_ON(w->due);
    m->offload.turn = !m->offload.turn;
    w->d.used = w->w.used = 0;
    return w;
}

/* Host memory for the activations of unit u and this microbatch; NULL while counting. */
static char *offloaded_of(const Model *m, const Pass *p, const ModelUnit *u)
{
    const LayerWindow *w = &m->offload.window[0];
    size_t slot = (size_t)(p->fd - m->slots.fd) * (size_t)m->offload.layers + (size_t)u->layer;
    return m->offload.mapped ? m->offload.mapped + slot * (w->d.size + w->w.size) : NULL;
}

static char *behind(char *p, size_t bytes) { return p ? p + bytes : NULL; }

LayerWindow *offload_enter(Model *m)
{
    LayerWindow *w = next_window(m);
    m->dev->stream_wait(m->dev, w->ticket);
    return w;
}

void offload_start(Model *m, const Pass *p, const ModelUnit *u, LayerWindow *w)
{
    Device *d = m->dev;
    char *to = offloaded_of(m, p, u);
    if (w->d.used)
        w->left = d->offload(d, to, w->d.base, w->d.used);
    if (w->w.used)
        w->left = d->offload(d, behind(to, w->d.size), w->w.base, w->w.used);
    w->ticket = acts_of(p, u)->left = w->left;
}

/* Starts the prefetch of the nearest offloaded unit at or before unit k, unless it is under way. */
static void offload_ahead(Model *m, const Pass *p, int k)
{
    Device *d = m->dev;
    if (!m->cfg->cpu_offloading_num_layers)
        return;
    while (k >= p->chunk->unit0 && !m->held.unit[k].offload)
        k--;
    if (k < p->chunk->unit0)
        return;
    const ModelUnit *u = &m->held.unit[k];
    LayerActs *a = acts_of(p, u);
    if (m->offload.window[0].due == a || m->offload.window[1].due == a)
        return;
    LayerWindow *w = next_window(m);
    char *from = offloaded_of(m, p, u);
    /* above 0 while counting too, so that a plan times the copies */
    size_t room_d = offload_room_d(m), room_w = offload_room_w(m);
    w->due = a;
    w->late = m->split ? arena_take(p->late, room_w) : w->w.base;
    /* the prefetch waits for the copy of these activations to the host, and for the window's last one */
    int64_t after = a->left > w->left ? a->left : w->left;
    if (room_d)
        w->ticket = d->prefetch(d, w->d.base, from, room_d, after);
    if (room_w)
        w->ticket = d->prefetch(d, w->late, behind(from, room_d), room_w, after);
}

static int lies_in(const Arena *a, const Mat *x)
{
    return (char *)x->p >= a->base && (char *)x->p < a->base + a->size;
}

/* Moves the view x from the window of the forward to the window of the backward. */
static void move(const Model *m, Mat *x, const LayerWindow *to)
{
    for (int i = 0; x->p && i < 2; i++) {
        const LayerWindow *from = &m->offload.window[i];
        if (lies_in(&from->d, x)) {
            x->p = to->d.base + ((char *)x->p - from->d.base);
            return;
        }
        if (lies_in(&from->w, x)) {
            x->p = to->late + ((char *)x->p - from->w.base);
            return;
        }
    }
}

void offload_return(Model *m, const Pass *p, int k)
{
    const ModelUnit *u = &m->held.unit[k];
    offload_ahead(m, p, k);
    if (!u->offload)
        return;
    LayerActs *a = acts_of(p, u);
    LayerWindow *w = m->offload.window[0].due == a ? &m->offload.window[0] : &m->offload.window[1];
    Mat *kept[] = {&a->ln1, &a->stat1, &a->qk, &a->qstat, &a->kstat, &a->qkv, &a->o, &a->lse, &a->x1, &a->ln2,
                   &a->stat2, &a->h, &a->a, &a->logits, &a->weight, &a->expert.x, &a->expert.h,
                   &a->expert.weight, &a->ln1t.inverse, &a->ln2t.inverse, &a->at.inverse};
    Fp8Turned *turned[] = {&a->ln1t, &a->ln2t, &a->at};
    Mat choice = {.p = a->choice}, of_capacity = {.p = a->kept};
    BUG_ON(w->due != a);
    m->dev->stream_wait(m->dev, w->ticket);
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        move(m, kept[i], w);
    for (size_t i = 0; i < sizeof turned / sizeof *turned; i++) {
        Mat copy = {.p = turned[i]->p};
        move(m, &copy, w);
        turned[i]->p = copy.p;
    }
    move(m, &choice, w);
    move(m, &of_capacity, w);
    a->choice = choice.p;
    a->kept = of_capacity.p;
    w->due = NULL;
    offload_ahead(m, p, k - 1);
}
