/* tape -- instructions of a walk recorded, and played */
#include "tape.h"
#include <stdlib.h>
#include <string.h>

void tape_close(Tape *t)
{
    free(t->event);
    free(t->token);
    *t = (Tape){0};
}

/* ---- recording ---- */

static void add(Recorder *r, TapeEvent e)
{
    Tape *t = r->tape;
    t->event = xgrow(t->event, t->n, sizeof *t->event);
    t->event[t->n++] = e;
}

int recorder_records(const Recorder *r) { return r && r->tape && !r->calls; }

void recorder_op(Recorder *r, OpKind op, const OpTime *t)
{
    if (recorder_records(r))
        add(r, (TapeEvent){.kind = TAPE_OP, .at = (int)op, .op = *t});
}

static int place_of(const Recorder *r, const Comm *c)
{
    ptrdiff_t at = (const char *)c - (const char *)r->grid;
    BUG_ON(at < 0 || at >= (ptrdiff_t)sizeof *r->grid);
    return (int)at;
}

/* A recorded message's token is its number, below 0, which no other token is: two messages may end at the
 * same time, and a wait must find its own. */
Token recorder_message(Recorder *r, const Comm *c, const Operation *o, Token t)
{
    if (!recorder_records(r))
        return t;
    add(r, (TapeEvent){.kind = TAPE_MESSAGE, .at = place_of(r, c),
                       .message = {o->n, o->kind, o->type, o->op, o->root}});
    r->token = xgrow(r->token, r->tokens, sizeof *r->token);
    r->token[r->tokens++] = t;
    return t ? -(Token)r->tokens : 0;
}

Token recorder_wait(Recorder *r, const Comm *c, Token t)
{
    int sent = (int)(-t - 1);
    BUG_ON(t < 0 && (!recorder_records(r) || sent < r->first) /* waited for by another instruction */);
    BUG_ON(t > 0 && recorder_records(r) /* sent by another instruction */);
    if (t >= 0)
        return t;
    add(r, (TapeEvent){.kind = TAPE_WAIT, .at = place_of(r, c), .sent = sent - r->first});
    return r->token[sent];
}

/* Records the products that have got a value since the last call of Data. */
static void add_written(Recorder *r)
{
    for (int i = 0; i < r->data->products; i++)
        if (r->data->product[i].there && !r->there[i]) {
            add(r, (TapeEvent){.kind = TAPE_WRITTEN, .at = i});
            r->there[i] = 1;
        }
}

static void call_begin(void *recorder, DataCall call, int at, GradPhase phase)
{
    Recorder *r = recorder;
    if (recorder_records(r)) {
        add_written(r);
        add(r, (TapeEvent){.kind = TAPE_CALL, .at = at, .call = {call, phase}});
    }
    r->calls++;
}

/* The call does to the products the same when it is played. */
static void call_end(void *recorder)
{
    Recorder *r = recorder;
    r->calls--;
    if (recorder_records(r))
        for (int i = 0; i < r->data->products; i++)
            r->there[i] = r->data->product[i].there;
}

void recorder_open(Recorder *r, const Grid *grid, Data *data)
{
    *r = (Recorder){.grid = grid, .data = data, .watch = {r, call_begin, call_end}};
    r->there = xcalloc((size_t)data->products + 1, 1);
    data->watch = &r->watch;
}

void recorder_close(Recorder *r)
{
    r->data->watch = NULL;
    free(r->there);
    free(r->token);
}

void recorder_begin(Recorder *r, Tape *tape)
{
    r->tape = tape;
    r->first = r->tokens;
    for (int i = 0; i < r->data->products; i++)
        r->there[i] = r->data->product[i].there;
}

void recorder_end(Recorder *r)
{
    add_written(r);
    r->tape->made = 1;
    r->tape->token = xcalloc((size_t)(r->tokens - r->first) + 1, sizeof *r->tape->token);
    r->tape = NULL;
}

/* ---- playing ---- */

static void play_call(const TapeEvent *e, Data *d)
{
    if (e->call.call == DATA_READY)
        data_ready(d, e->at);
    else if (e->call.call == DATA_ENTER)
        data_enter(d, e->at, e->call.phase);
    else
        data_clear(d, e->at);
}

static Comm *group_at(Grid *g, int at) { return (Comm *)((char *)g + at); }

/* Sends the message, within the pipeline to or from this rank's own neighbour. */
static Token play_message(const TapeEvent *e, Grid *g, int peer)
{
    Comm *c = group_at(g, e->at);
    int root = c == &g->axis[AXIS_PP] ? peer : e->message.root;
    return c->start(c, (Operation){.kind = e->message.kind, .n = e->message.n, .type = e->message.type,
                                   .op = e->message.op, .root = root});
}

void tape_play(const Tape *t, Tally *k, Grid *grid, Data *data, int peer)
{
    int sent = 0;
    for (int i = 0; i < t->n; i++) {
        const TapeEvent *e = &t->event[i];
        switch (e->kind) {
        case TAPE_OP:      predict_op(k, (OpKind)e->at, &e->op); break;
        case TAPE_MESSAGE: t->token[sent++] = play_message(e, grid, peer); break;
        case TAPE_WAIT:    group_at(grid, e->at)->wait(group_at(grid, e->at), t->token[e->sent]); break;
        case TAPE_CALL:    play_call(e, data); break;
        case TAPE_WRITTEN: data->product[e->at].there = 1; break;
        }
    }
}
