/* message -- sends and receives. Between ranks of one host a message goes piece by piece through slots of
 * shared memory: the receiver copies out while the sender copies in. A send is done when all is in slots. */
#include "checksum.h"
#include "group.h"
#include "job.h"
#include "wire.h"
#include <string.h>

static int64_t total_bytes(const Request *r) { return r->n * (int64_t)dtype_size(r->type); }

/* Takes the lowest free slot. */
static uint32_t take_slot(Pair *p)
{
    for (uint32_t w = 0; w < PAIR_SLOTS / 64; w++)
        if (~p->used[w]) {
            uint32_t bit = (uint32_t)__builtin_ctzll(~p->used[w]);
            p->used[w] |= 1ull << bit;
            return w * 64 + bit;
        }
    BUG_ON("more pieces under way than slots");
    return 0;
}

/* Frees the slots that the reader has emptied. Returns whether there is room for a piece. */
static int make_room(Pair *p)
{
    PairHead *h = p->head;
    int64_t sent = atomic_load_explicit(&h->sent, memory_order_relaxed), taken = atomic_load(&h->taken);
    for (; p->freed < taken; p->freed++) {
        uint32_t slot = h->piece[p->freed % PAIR_SLOTS].slot;
        p->used[slot / 64] &= ~(1ull << slot % 64);
    }
    return sent - taken < PAIR_SLOTS;
}

static int send_pieces(Request *r, Group *g)
{
    Pair *p = group_message_pair(g, g->rank, r->root);
    PairHead *h = p->head;
    int64_t total = total_bytes(r), before = r->moved;
    int peer = g->bell[g->owner[r->root]];
    while (r->moved < total) {
        if (!make_room(p)) {
            atomic_store(&h->blocked, 1);          /* look again: the reader reads it after taking */
            if (!make_room(p))
                break;
        }
        int64_t sent = atomic_load_explicit(&h->sent, memory_order_relaxed);
        int64_t bytes = total - r->moved < PAIR_SLOT ? total - r->moved : PAIR_SLOT;
        uint32_t slot = take_slot(p);
        memcpy(p->slots + (size_t)slot * PAIR_SLOT, r->in + r->moved, (size_t)bytes);
        h->piece[sent % PAIR_SLOTS] =
            (GroupPiece){slot, (uint32_t)bytes, total, r->type, r->moved == 0,
                         piece_sum(r, r->in + r->moved, (size_t)bytes)};
        atomic_store(&h->sent, sent + 1);
        r->moved += bytes;
        job_ring(peer);
    }
    group_moved(g, r->moved - before);
    r->done = r->moved == total;
    return r->moved > before;
}

/* Dies unless the piece belongs to the message that this rank expects. */
static void check_piece(const Group *g, const Request *r, const GroupPiece *piece)
{
    if (piece->total != total_bytes(r) || piece->type != r->type || piece->first != (r->moved == 0) ||
        piece->slot >= PAIR_SLOTS || piece->bytes > PAIR_SLOT || piece->bytes > piece->total - r->moved)
        die(EXIT_BUG, "comm-mismatch", "group %s: rank %d sent %lld bytes of %s, rank %d receives %lld of "
            "%s; change: please report this line with your config", g->name, r->root, (long long)piece->total,
            piece->type < DTYPES ? dtype_name(piece->type) : "?", g->rank, (long long)total_bytes(r),
            dtype_name(r->type));
}

static int recv_pieces(Request *r, Group *g)
{
    Pair *p = group_message_pair(g, r->root, g->rank);
    PairHead *h = p->head;
    int64_t total = total_bytes(r), before = r->moved,
            taken = atomic_load_explicit(&h->taken, memory_order_relaxed);
    while (r->moved < total && atomic_load(&h->sent) > taken) {
        GroupPiece piece = h->piece[taken % PAIR_SLOTS];
        check_piece(g, r, &piece);
        memcpy(r->out + r->moved, p->slots + (size_t)piece.slot * PAIR_SLOT, piece.bytes);
        piece_check(r, r->out + r->moved, piece.bytes, piece.sum, g->world[r->root]);
        r->moved += piece.bytes;
        atomic_store(&h->taken, ++taken);
        if (atomic_load(&h->blocked)) {
            atomic_store(&h->blocked, 0);
            job_ring(g->bell[g->owner[r->root]]);
        }
    }
    group_moved(g, r->moved - before);
    r->done = r->moved == total;
    return r->moved > before;
}

static int over_the_wire(Request *r, Group *g)
{
    int64_t total = total_bytes(r);
    int moved = 0, tag = g->id * TAGS + TAG_MESSAGE, peer = g->world[r->root];
    while (wire_done(&r->wire)) {
        if (r->moved == total) {
            r->done = 1;
            return 1;
        }
        int64_t bytes = total - r->moved < WIRE_BYTES ? total - r->moved : WIRE_BYTES;
        r->wire = r->kind == COMM_SEND ? wire_send(r, r->in + r->moved, (size_t)bytes, peer, tag)
                                       : wire_recv(r, r->out + r->moved, (size_t)bytes, peer, tag);
        r->moved += bytes;
        group_moved(g, bytes);
        moved = 1;
    }
    return moved;
}

int message_advance(Request *r)
{
    Group *g = r->group;
    if (g->host[r->root] != g->my_host)
        return over_the_wire(r, g);
    return r->kind == COMM_SEND ? send_pieces(r, g) : recv_pieces(r, g);
}
