/* collective -- the operations of a whole group, as stages that follow each other step by step (group.h):
 *   post            fills this rank's scatter slot with its pieces of the blocks that other members own
 *   sum             adds the pieces of this rank's blocks from all scatter slots. One host: that is the
 *                   result. Several hosts: a partial sum; those of other ranks' blocks go to their ranks
 *   await_partials  receives the other hosts' partial sums of this rank's block
 *   join            adds the partial sums of this rank's block in host order
 *   offer           fills this rank's gather slot with its finished piece, sends it to the other hosts, and
 *                   starts to receive theirs into the slot
 *   gather          waits for these, then publishes the slot
 *   copy            takes all finished pieces from the gather slots
 * Each stage counts the steps it has done, and does the next one as soon as its input is there. A stage
 * returns whether it did a step. */
#include "checksum.h"
#include "group.h"
#include "job.h"
#include "reduce.h"
#include "wire.h"
#include <string.h>

#define SMALL_BYTES 8192       /* up to here every rank adds everything: one exchange instead of two */

static size_t width(const Request *r) { return dtype_size(r->type); }
static size_t partial_width(const Request *r) { return dtype_size(reduce_partial(r->type)); }
/* Whether the operation goes through a channel. */
static int uses(const Request *r, int channel)
{
    int scatter = r->kind == COMM_REDUCE_SCATTER || r->kind == COMM_ALL_TO_ALL;
    int both = (r->kind == COMM_ALL_REDUCE || r->kind == COMM_BARRIER) && !r->small;
    return both || (channel == SCATTER ? scatter : !scatter);
}
static int reduces(const Request *r) { return uses(r, SCATTER) && r->kind != COMM_ALL_TO_ALL; }

static int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }
/* Elements of a piece of at most e, where `left` are left. */
static int64_t clip(int64_t left, int64_t e) { return left < 0 ? 0 : at_most(left, e); }

/* The number of elements of a block's piece in step s; *at: the place of the piece in the whole array. */
static int64_t piece(const Group *g, const Request *r, int64_t s, int block, int64_t *at)
{
    if (r->small || r->kind == COMM_BROADCAST) {
        *at = s * r->e;
        return clip(r->n - *at, r->e);
    }
    if (r->kind == COMM_ALL_REDUCE || r->kind == COMM_BARRIER) {
        *at = (s * g->size + block) * r->e;
        return clip(r->n - *at, r->e);
    }
    *at = block * r->n + s * r->e;
    return clip(r->n - s * r->e, r->e);
}

/* Cuts the operation, which is first in its queue, into steps and reserves their slots in the channels. */
static void begin(Group *g, Request *r)
{
    int64_t line = 64 / (int64_t)width(r),
            blocks = r->kind == COMM_ALL_REDUCE || r->kind == COMM_BARRIER ? g->size : 1;
    r->small = g->hosts == 1 && blocks > 1 && r->n * (int64_t)width(r) <= SMALL_BYTES;
    int64_t room = INT64_MAX;
    if (r->small) {
        r->e = r->n;
        r->steps = 1;
    } else {
        /* partial sums between hosts have memory of their own, so only the pieces in slots count here */
        if (uses(r, SCATTER))
            room = (int64_t)(g->slot_bytes[SCATTER] / (size_t)g->size);
        if (uses(r, GATHER))
            room = at_most(room, (int64_t)(g->slot_bytes[GATHER] / (size_t)g->most_duties));
        room = room / 64 * line;
        r->steps = (r->n + room * blocks - 1) / (room * blocks);
        r->e = (r->n + r->steps * blocks - 1) / (r->steps * blocks);
        r->e = (r->e + line - 1) / line * line;
    }
    r->scatter_base = g->base[SCATTER];
    r->gather_base = g->base[GATHER];
    for (int k = 0; k < 2; k++)
        if (uses(r, k))
            g->base[k] += r->steps;
    if (g->hosts > 1 && reduces(r) && !g->partial) {
        size_t bytes = 2 * g->slot_bytes[SCATTER] / (size_t)g->size;     /* partial sums of BF16 are in F32 */
        g->partial = xcalloc((size_t)(DEPTH * g->hosts), bytes);
        g->sending = xcalloc((size_t)(DEPTH * g->most_duties), bytes);
    }
    r->begun = 1;
}

/* ---- checks that all members call the same operation ---- */

static uint64_t signature(const Request *r)
{
    const int64_t words[] = {r->kind, r->type, r->op, r->n, r->root};
    return hash64(words, sizeof words, HASH_SEED) | 1;
}

static void sign(Group *g, Request *r)
{
    g->calls++;
    atomic_store(&g->signature[g->me].seen[g->calls % 16], signature(r));
}

/* Dies unless member i has called this operation too, with the same arguments. */
static void check(const Group *g, const Request *r, int i)
{
    if (atomic_load(&g->signature[i].seen[g->calls % 16]) != signature(r))
        die(EXIT_BUG, "comm-mismatch", "group %s, operation %lld: ranks %d and %d disagree; here it is %s of "
            "%lld %s; change: please report this line with your config", g->name, (long long)g->calls,
            g->rank, g->local[i], comm_kind_name[r->kind], (long long)r->n, dtype_name(r->type));
}

/* ---- the channels ---- */

/* Whether all other members have taken what lay in the slot that step s of a channel fills. */
static int slot_free(const Group *g, int channel, int64_t s)
{
    for (int i = 0; i < g->m; i++)
        if (i != g->me && s - atomic_load(&g->taken[channel][i].v) >= DEPTH)
            return 0;
    return 1;
}

/* Whether member `only` (-1: all others) has filled its slot of step s. */
static int slot_filled(const Group *g, int channel, int64_t s, int only)
{
    for (int i = 0; i < g->m; i++)
        if ((only < 0 ? i != g->me : i == only) && atomic_load(&g->filled[channel][i].v) <= s)
            return 0;
    return 1;
}

/* Before the first step: checks member `only` (-1: all others). */
static void check_all(const Group *g, const Request *r, int64_t s, int only)
{
    for (int i = 0; i < g->m && !s; i++)
        if (only < 0 ? i != g->me : i == only)
            check(g, r, i);
}

/* The world rank of member i. */
static int member_world(const Group *g, int i) { return g->world[g->local[i]]; }

/* ---- stages ---- */

static int post(Group *g, Request *r)
{
    int64_t s = r->posted, gs = r->scatter_base + s, at, moved = 0;
    if (s == r->steps || !slot_free(g, SCATTER, gs))
        return 0;
    char *slot = group_slot(g, SCATTER, g->me, gs);
    uint64_t *sums = group_sums(g, SCATTER, g->me, gs);
    for (int b = 0; b < g->size; b++) {
        if (g->owner[b] == g->me || (r->kind == COMM_ALL_TO_ALL && g->host[b] != g->my_host))
            continue;
        size_t bytes = (size_t)piece(g, r, s, b, &at) * width(r);
        memcpy(slot + (size_t)b * (size_t)r->e * width(r), r->in + (size_t)at * width(r), bytes);
        sums[b] = piece_sum(r, r->in + (size_t)at * width(r), bytes);
        moved += (int64_t)bytes;
    }
    r->posted++;
    group_raise(g, &g->filled[SCATTER][g->me], gs + 1, 0);
    group_moved(g, moved);
    return 1;
}

/* Host `host`'s partial sum of this rank's block in step s. */
static char *partial_of(const Group *g, const Request *r, int64_t s, int host)
{
    return g->partial + (size_t)((s % DEPTH) * g->hosts + host) * (size_t)r->e * partial_width(r);
}

/* This host's partial sum of block duty[k] in step s. */
static char *sending_of(const Group *g, const Request *r, int64_t s, int k)
{
    return g->sending + (size_t)((s % DEPTH) * g->most_duties + k) * (size_t)r->e * partial_width(r);
}

/* Adds all members' pieces of block b in step s. Returns the number of elements. */
static int64_t sum_block(Group *g, Request *r, int64_t s, int b, void *dst, Dtype dst_type)
{
    int64_t at, n = piece(g, r, s, b, &at);
    const void **src = (const void **)g->source;
    for (int i = 0; i < g->m; i++)
        src[i] = i == g->me
                     ? r->in + (size_t)at * width(r)
                     : group_slot(g, SCATTER, i, r->scatter_base + s) + (size_t)b * (size_t)r->e * width(r);
    if (n)
        reduce_arrays(dst, dst_type, src, r->type, g->m, n, r->op);
    for (int i = 0; i < g->m; i++)
        if (i != g->me)
            piece_check(r, src[i], (size_t)n * width(r), group_sums(g, SCATTER, i, r->scatter_base + s)[b],
                        member_world(g, i));
    return n;
}

/* Where this rank's finished piece of step s lies in the result. */
static char *result_of(const Group *g, const Request *r, int64_t s)
{
    int64_t at;
    piece(g, r, s, g->rank, &at);
    return r->out + (size_t)(r->kind == COMM_REDUCE_SCATTER ? s * r->e : at) * width(r);
}

static int sum(Group *g, Request *r)
{
    int64_t s = r->summed, gs = r->scatter_base + s, moved = 0, at;
    if (s == r->steps || s == r->posted || !slot_filled(g, SCATTER, gs, -1))
        return 0;
    if (g->hosts > 1 && reduces(r) && s - r->joined >= DEPTH)
        return 0;
    check_all(g, r, s, -1);
    if (r->kind == COMM_ALL_TO_ALL) {
        int64_t n = piece(g, r, s, g->rank, &at);
        for (int i = 0; i < g->m; i++) {
            char *to = r->out + (size_t)(g->local[i] * r->n + s * r->e) * width(r);
            const char *from =
                i == g->me ? r->in + (size_t)at * width(r)
                           : group_slot(g, SCATTER, i, gs) + (size_t)g->rank * (size_t)r->e * width(r);
            if (to != from)
                memcpy(to, from, (size_t)n * width(r));
            if (i != g->me)
                piece_check(r, to, (size_t)n * width(r), group_sums(g, SCATTER, i, gs)[g->rank],
                            member_world(g, i));
            moved += n * (int64_t)width(r);
        }
    } else if (g->hosts == 1) {
        moved = sum_block(g, r, s, g->rank, result_of(g, r, s), r->type) * (int64_t)width(r);
    } else {
        sum_block(g, r, s, g->rank, partial_of(g, r, s, g->my_host), reduce_partial(r->type));
        for (int k = 1; k < g->duties; k++) {
            char *to = sending_of(g, r, s, k);
            int64_t n = sum_block(g, r, s, g->duty[k], to, reduce_partial(r->type));
            if (n)
                g->wire_sending[(s % DEPTH) * g->most_duties + k] = wire_send(
                    r, to, (size_t)n * partial_width(r), g->world[g->duty[k]], g->id * TAGS + TAG_PARTIAL);
            moved += n * (int64_t)width(r);
        }
    }
    r->summed++;
    group_raise(g, &g->taken[SCATTER][g->me], gs + 1, 0);
    group_moved(g, moved);
    return 1;
}

/* Whether all of n messages between hosts are through. */
static int all_through(int *id, int n)
{
    int through = 1;
    for (int i = 0; i < n; i++)
        through &= wire_done(&id[i]);
    return through;
}

/* Starts to receive the other hosts' partial sums of this rank's block, up to DEPTH steps ahead of join. */
static int await_partials(Group *g, Request *r)
{
    int64_t s = r->awaited, at;
    if (s == r->steps || s - r->joined >= DEPTH)
        return 0;
    int64_t n = piece(g, r, s, g->rank, &at);
    for (int h = 0; h < g->hosts && n; h++)
        if (h != g->my_host)
            g->wire_partial[(s % DEPTH) * g->hosts + h] =
                wire_recv(r, partial_of(g, r, s, h), (size_t)n * partial_width(r), g->world[g->proxy[h]],
                          g->id * TAGS + TAG_PARTIAL);
    r->awaited++;
    return 1;
}

static int join(Group *g, Request *r)
{
    int64_t s = r->joined, at;
    if (s == r->summed || s == r->awaited ||
        !all_through(&g->wire_partial[(s % DEPTH) * g->hosts], g->hosts) ||
        !all_through(&g->wire_sending[(s % DEPTH) * g->most_duties], g->most_duties))
        return 0;
    int64_t n = piece(g, r, s, g->rank, &at);
    const void **src = (const void **)g->source;
    for (int h = 0; h < g->hosts; h++)
        src[h] = partial_of(g, r, s, h);
    if (n)
        reduce_arrays(result_of(g, r, s), r->type, src, reduce_partial(r->type), g->hosts, n, r->op);
    r->joined++;
    group_moved(g, n * (int64_t)width(r));
    return 1;
}

/* The member whose gather slot a broadcast fills; -1: no broadcast, every member fills its own. */
static int teller(const Group *g, const Request *r)
{
    return r->kind == COMM_BROADCAST ? g->owner[r->root] : -1;
}

/* The number of steps in which this rank's piece is finished. */
static int64_t ready(const Group *g, const Request *r)
{
    return !reduces(r) ? r->steps : g->hosts == 1 ? r->summed : r->joined;
}

static int offer(Group *g, Request *r)
{
    int64_t s = r->offered, gs = r->gather_base + s, at, only = teller(g, r);
    int *block = &g->wire_block[(s % DEPTH) * g->most_duties], *own = &g->wire_own[(s % DEPTH) * g->hosts];
    if (s == r->steps || (only >= 0 && only != g->me) || s >= ready(g, r) || s - r->gathered >= DEPTH ||
        !slot_free(g, GATHER, gs))
        return 0;
    /* with several hosts this rank reads its slot too, and the slot's last messages must be through */
    if (g->hosts > 1 && (s - r->copied >= DEPTH || !all_through(own, g->hosts)))
        return 0;
    char *slot = group_slot(g, GATHER, g->me, gs);
    int64_t moved = 0;
    for (int k = 0; k < g->duties; k++) {
        int b = g->duty[k];
        if (only >= 0 && b != r->root)
            continue;
        int64_t n = piece(g, r, s, b, &at), bytes = n * (int64_t)width(r);
        char *to = slot + (size_t)k * (size_t)r->e * width(r);
        if (b != g->rank) {
            if (n)
                block[k] = wire_recv(r, to, (size_t)bytes, g->world[b], g->id * TAGS + TAG_BLOCK);
            continue;
        }
        const char *from = r->in + (size_t)(r->kind == COMM_ALL_GATHER ? s * r->e : at) * width(r);
        memcpy(to, from, (size_t)bytes);
        group_sums(g, GATHER, g->me, gs)[k] = piece_sum(r, from, (size_t)bytes);
        moved += bytes;
        for (int h = 0; h < g->hosts && n; h++)
            if (h != g->my_host)
                own[h] = wire_send(r, from, (size_t)bytes, g->world[g->proxy[h]], g->id * TAGS + TAG_BLOCK);
    }
    r->offered++;
    group_moved(g, moved);
    return 1;
}

static int gather(Group *g, Request *r)
{
    int64_t s = r->gathered, only = teller(g, r);
    if (s == r->offered ||
        (g->hosts > 1 && !all_through(&g->wire_block[(s % DEPTH) * g->most_duties], g->most_duties)))
        return 0;
    /* pieces from other hosts have been checked where they arrived */
    for (int k = 0; k < g->duties; k++) {
        int64_t at, n = piece(g, r, s, g->duty[k], &at);
        if (g->duty[k] != g->rank && (only < 0 || g->duty[k] == r->root))
            group_sums(g, GATHER, g->me, r->gather_base + s)[k] = piece_sum(
                r, group_slot(g, GATHER, g->me, r->gather_base + s) + (size_t)k * (size_t)r->e * width(r),
                (size_t)n * width(r));
    }
    r->gathered++;
    group_raise(g, &g->filled[GATHER][g->me], r->gather_base + s + 1, only >= 0);
    return 1;
}

/* A small all-reduce: adds all members' arrays. */
static void add_small(Group *g, Request *r, int64_t gs)
{
    const void **src = (const void **)g->source;
    for (int i = 0; i < g->m; i++)
        src[i] = i == g->me ? r->in : group_slot(g, GATHER, i, gs);
    reduce_arrays(r->out, r->type, src, r->type, g->m, r->n, r->op);
    for (int i = 0; i < g->m; i++)
        if (i != g->me)
            piece_check(r, src[i], (size_t)r->n * width(r), group_sums(g, GATHER, i, gs)[0],
                        member_world(g, i));
}

static int copy(Group *g, Request *r)
{
    int64_t s = r->copied, gs = r->gather_base + s, at, moved = 0;
    int only = teller(g, r), mine = only < 0 || only == g->me;
    if (s == r->steps || (mine && s == r->gathered) || (only != g->me && !slot_filled(g, GATHER, gs, only)))
        return 0;
    if (only != g->me)
        check_all(g, r, s, only);
    if (r->small)
        add_small(g, r, gs);
    for (int b = 0; b < g->size && !r->small; b++) {
        if (b == g->rank || (only >= 0 && b != r->root))
            continue;
        int64_t n = piece(g, r, s, b, &at);
        const char *from =
            group_slot(g, GATHER, g->owner[b], gs) + (size_t)g->place[b] * (size_t)r->e * width(r);
        memcpy(r->out + (size_t)at * width(r), from, (size_t)n * width(r));
        piece_check(r, r->out + (size_t)at * width(r), (size_t)n * width(r),
                    group_sums(g, GATHER, g->owner[b], gs)[g->place[b]], member_world(g, g->owner[b]));
        moved += n * (int64_t)width(r);
    }
    if (r->kind == COMM_ALL_GATHER) {
        int64_t n = piece(g, r, s, g->rank, &at);
        char *to = r->out + (size_t)at * width(r);
        const char *from = r->in + (size_t)(s * r->e) * width(r);
        if (to != from)
            memcpy(to, from, (size_t)n * width(r));
        moved += n * (int64_t)width(r);
    }
    r->copied++;
    group_raise(g, &g->taken[GATHER][g->me], gs + 1, 0);
    group_moved(g, moved);
    return 1;
}

/* All-to-all with ranks of other hosts, straight from and to the callers' arrays. */
static int exchange(Group *g, Request *r)
{
    int64_t total = r->n * (int64_t)width(r), tag = g->id * TAGS + TAG_EXCHANGE;
    if (g->hosts == 1 || !all_through(g->wire_all, 2 * g->size) || r->moved == total)
        return 0;
    int64_t bytes = at_most(total - r->moved, WIRE_BYTES);
    for (int b = 0; b < g->size; b++)
        if (g->host[b] != g->my_host) {
            int64_t at = b * total + r->moved;
            g->wire_all[2 * b] = wire_recv(r, r->out + at, (size_t)bytes, g->world[b], (int)tag);
            g->wire_all[2 * b + 1] = wire_send(r, r->in + at, (size_t)bytes, g->world[b], (int)tag);
            group_moved(g, bytes);
        }
    r->moved += bytes;
    return 1;
}

static int is_done(Group *g, const Request *r)
{
    if (uses(r, SCATTER) && r->summed < r->steps)
        return 0;
    if (g->hosts > 1 && reduces(r) && r->joined < r->steps)
        return 0;
    if (uses(r, GATHER) && r->copied < r->steps)
        return 0;
    if (g->hosts == 1)
        return 1;
    if (r->kind == COMM_ALL_TO_ALL && r->moved < r->n * (int64_t)width(r))
        return 0;
    return all_through(g->wire_own, DEPTH * g->hosts) && all_through(g->wire_all, 2 * g->size);
}

int collective_advance(Request *r)
{
    Group *g = r->group;
    int moved = 0;
    if (!r->begun) {
        begin(g, r);
        sign(g, r);
    }
    if (uses(r, SCATTER)) {
        moved |= post(g, r);
        moved |= sum(g, r);
    }
    if (g->hosts > 1 && reduces(r)) {
        moved |= await_partials(g, r);
        moved |= join(g, r);
    }
    if (r->kind == COMM_ALL_TO_ALL)
        moved |= exchange(g, r);
    if (uses(r, GATHER)) {
        moved |= offer(g, r);
        moved |= gather(g, r);
        moved |= copy(g, r);
    }
    r->done = is_done(g, r);
    return moved;
}
