/* group -- the plan of a group, and the segment that its members share */
#define _GNU_SOURCE
#include "flight.h"
#include "group.h"
#include "job.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Bytes of a slot: small enough that what is under way between two ranks stays in the second-level cache. */
#define SCATTER_BYTES (512 << 10)
#define GATHER_BYTES (256 << 10)
#define WIRE_PIECE_BYTES (64 << 10)    /* between hosts shorter messages cost more than they overlap */

static int checksums;              /* bool: groups opened from now on are checked */
void comm_checksums(int on) { checksums = on; }

/* ---- the plan ---- */

static int *ints(int n) { return xcalloc((size_t)n, sizeof(int)); }

/* Finds which member of host h owns each block, and the block's index among its owner's. Returns the most
 * blocks that one member owns. */
static int owners(const int *host, int n, int h, int *owner, int *place)
{
    int m = 0, most = 0, *load = ints(n);
    for (int r = 0; r < n; r++)
        m += host[r] == h;
    for (int i = 0; i < m; i++)
        load[i] = 1;
    for (int r = 0, next = 0; r < n; r++) {
        owner[r] = host[r] == h ? next++ : r % m;
        place[r] = host[r] == h ? 0 : load[owner[r]]++;
    }
    for (int i = 0; i < m; i++)
        most = load[i] > most ? load[i] : most;
    free(load);
    return most;
}

/* Finds most_duties and proxy. */
static void plan_hosts(Group *g)
{
    int *owner = ints(g->size), *place = ints(g->size);
    g->proxy = ints(g->hosts);
    for (int h = 0; h < g->hosts; h++) {
        int most = owners(g->host, g->size, h, owner, place);
        g->most_duties = most > g->most_duties ? most : g->most_duties;
        for (int r = 0, i = 0; r < g->size; r++)
            if (g->host[r] == h && i++ == owner[g->rank])
                g->proxy[h] = r;
    }
    free(owner);
    free(place);
}

Group *group_plan(const char *name, int id, const int *member, int n, const int *host_of, int my_rank)
{
    Group *g = xcalloc(1, sizeof *g);
    *g = (Group){.name = name, .id = id, .rank = -1, .size = n, .fd = -1, .checked = checksums,
                 .world = ints(n), .host = ints(n), .local = ints(n), .bell = ints(n), .owner = ints(n),
                 .place = ints(n), .duty = ints(n)};
    for (int r = 0; r < n; r++) {
        int first = 0;
        while (host_of[member[first]] != host_of[member[r]])
            first++;
        g->world[r] = member[r];
        g->host[r] = first == r ? g->hosts++ : g->host[first];
        if (member[r] == my_rank)
            g->rank = r;
    }
    BUG_ON(g->rank < 0);
    g->my_host = g->host[g->rank];
    for (int r = 0; r < n; r++)
        if (g->host[r] == g->my_host) {
            if (r == g->rank)
                g->me = g->m;
            g->local[g->m++] = r;
        }
    plan_hosts(g);
    owners(g->host, n, g->my_host, g->owner, g->place);
    g->duty[g->duties++] = g->rank;
    for (int r = 0; r < n; r++)
        if (r != g->rank && g->owner[r] == g->me)
            g->duty[g->duties++] = r;
    g->slot_bytes[SCATTER] = SCATTER_BYTES;
    if (g->hosts > 1 && g->slot_bytes[SCATTER] < (size_t)n * WIRE_PIECE_BYTES)
        g->slot_bytes[SCATTER] = (size_t)n * WIRE_PIECE_BYTES;
    g->slot_bytes[GATHER] = (size_t)g->most_duties * WIRE_PIECE_BYTES;
    if (g->slot_bytes[GATHER] < GATHER_BYTES)
        g->slot_bytes[GATHER] = GATHER_BYTES;
    g->slot_sums[SCATTER] = ((size_t)n + 7) / 8 * 8;     /* whole cache lines */
    g->slot_sums[GATHER] = ((size_t)g->most_duties + 7) / 8 * 8;
    g->out = xcalloc((size_t)n, sizeof *g->out);
    g->in = xcalloc((size_t)n, sizeof *g->in);
    g->source = xcalloc((size_t)n, sizeof *g->source);
    if (g->hosts > 1) {
        int waits[] = {DEPTH * g->hosts, DEPTH * g->most_duties, 2 * n};
        int **ids[] = {&g->wire_partial, &g->wire_sending, &g->wire_all};
        for (int k = 0; k < 3; k++) {
            *ids[k] = ints(waits[k]);
            memset(*ids[k], -1, (size_t)waits[k] * sizeof(int));
        }
        g->wire_own = memset(ints(waits[0]), -1, (size_t)waits[0] * sizeof(int));
        g->wire_block = memset(ints(waits[1]), -1, (size_t)waits[1] * sizeof(int));
    }
    return g;
}

/* ---- the segment ---- */

size_t comm_workspace(void) { return (size_t)DEPTH * (SCATTER_BYTES + GATHER_BYTES); }

#define PAGE 4096
static size_t pages(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }
static size_t control_bytes(const Group *g)
{
    return pages((size_t)g->m * (4 * sizeof(Counter) + sizeof(Signature)));
}
static size_t channel_bytes(const Group *g, int k) { return pages((size_t)g->m * DEPTH * g->slot_bytes[k]); }
static size_t sums_bytes(const Group *g, int k)
{
    return pages((size_t)g->m * DEPTH * g->slot_sums[k] * sizeof(uint64_t));
}
static size_t pair_bytes(void) { return pages(sizeof(PairHead)) + (size_t)PAIR_SLOT * PAIR_SLOTS; }
static size_t shared_bytes(const Group *g)
{
    return control_bytes(g) + channel_bytes(g, SCATTER) + channel_bytes(g, GATHER) + sums_bytes(g, SCATTER) +
           sums_bytes(g, GATHER);
}

static _Noreturn void no_memory(const Group *g, const char *what)
{
    die(EXIT_RESOURCE, "shared-memory", "cannot %s the memory that the %d ranks of group %s on this host "
        "share: %s; change: raise the limits on open files, memory and file sizes (ulimit -n, -v, -f), or "
        "free memory", what, g->m, g->name, strerror(errno));
}

int group_segment_make(const Group *g)
{
    int fd = memfd_create("gridiron-group", MFD_CLOEXEC);
    /* pages that nobody touches cost nothing, and most slots of the pairs are never touched */
    if (fd < 0 || ftruncate(fd, (off_t)(shared_bytes(g) + (size_t)g->m * (size_t)g->m * pair_bytes())))
        no_memory(g, "make");
    return fd;
}

void group_segment_map(Group *g, int fd)
{
    g->fd = fd;
    g->map_bytes = shared_bytes(g);
    g->map = mmap(NULL, g->map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (g->map == MAP_FAILED)
        no_memory(g, "map");
    Counter *c = (Counter *)g->map;
    _Static_assert(sizeof(Counter) % _Alignof(Signature) == 0, "signatures lie behind the counters");
    for (int k = 0; k < 2; k++) {
        g->filled[k] = c + (size_t)(2 * k) * (size_t)g->m;
        g->taken[k] = c + (size_t)(2 * k + 1) * (size_t)g->m;
    }
    g->signature = (Signature *)(c + 4 * (size_t)g->m);
    g->slots[SCATTER] = g->map + control_bytes(g);
    g->slots[GATHER] = g->slots[SCATTER] + channel_bytes(g, SCATTER);
    g->sums[SCATTER] = (uint64_t *)(g->slots[GATHER] + channel_bytes(g, GATHER));
    g->sums[GATHER] = (uint64_t *)((char *)g->sums[SCATTER] + sums_bytes(g, SCATTER));
}

Pair *group_message_pair(Group *g, int from, int to)
{
    int writes = from == g->rank;
    Pair *p = writes ? &g->out[to] : &g->in[from];
    if (p->head)
        return p;
    size_t at =
        shared_bytes(g) + ((size_t)g->owner[from] * (size_t)g->m + (size_t)g->owner[to]) * pair_bytes();
    char *map =
        mmap(NULL, pair_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, g->fd, (off_t)at);
    if (map == MAP_FAILED)
        no_memory(g, "map");
    p->head = (PairHead *)map;
    p->slots = map + pages(sizeof(PairHead));
    return p;
}

static void ring_member(const Group *g, int i) { job_ring(g->bell[i]); }

void group_raise(Group *g, Counter *c, int64_t to, int alone)
{
    Counter *all = c - g->me;
    int64_t old = atomic_load_explicit(&c->v, memory_order_relaxed);
    if (to <= old)
        return;
    /* sequentially consistent, as job_sleepy: the sleeper sees the counter, or this rank the sleeper */
    atomic_store(&c->v, to);
    int behind = 0, who = 0;
    for (int i = 0; i < g->m && !alone; i++)
        if (i != g->me && atomic_load(&all[i].v) <= old)
            behind++, who = i;
    if (!behind) {
        for (int i = 0; i < g->m; i++)
            if (i != g->me)
                ring_member(g, i);
    } else if (behind == 1)            /* that member waits for all but itself */
        ring_member(g, who);
}

/* ---- the end ---- */

static void unmap_pairs(Pair *p, int n)
{
    for (int r = 0; r < n; r++) {
        BUG_ON(p[r].queue.head /* a message is under way */);
        if (p[r].head)
            munmap(p[r].head, pair_bytes());
    }
    free(p);
}

void group_free(Group *g)
{
    BUG_ON(g->queue.head /* an operation is under way */);
    flight_group_close(g->flight);
    unmap_pairs(g->out, g->size);
    unmap_pairs(g->in, g->size);
    if (g->map)
        munmap(g->map, g->map_bytes);
    if (g->fd >= 0)
        close(g->fd);
    void *heap[] = {g->world, g->host, g->local, g->bell, g->owner, g->place, g->duty, g->proxy, g->source,
                    g->partial, g->sending,
                    g->wire_partial, g->wire_sending, g->wire_block, g->wire_own, g->wire_all};
    for (size_t i = 0; i < sizeof heap / sizeof *heap; i++)
        free(heap[i]);
    free(g);
}
