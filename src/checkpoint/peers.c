/* peers -- copies in memory over several hosts: each rank's shards also go to a rank of the next host, and
 * before a load each host gets the shards that it lacks from hosts that have them */
#define _GNU_SOURCE
#include "comm_mpi.h"
#include "memory_copies.h"
#include "saver.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Bytes of a shard that are sent from one poll to the next. */
#define ROUND ((int64_t)256 << 20)

/* A shard on its way, mapped from the memory file systems of its sender and its receiver. Messages are of
 * words: the last page of a mapping goes on behind the file. */
typedef struct { char *map; int64_t bytes; int peer, receives; Token token; } Way;

struct Peers {
    int *host;                      /* [ranks] the lowest rank of its host */
    int hosts, to, *from, nfrom;    /* ranks: that gets this rank's shards; whose shards come here */
    Way *way;                       /* [nway] of the copy under way; NULL: none */
    int nway;
    int64_t round, rounds;          /* rounds: the most that any rank needs */
};

/* The rank beside rank r on the host after its own: the same place there, as far as that host has ranks. */
static int beside(const int *host, int ranks, int r)
{
    int next = -1, first = r, place = 0, n = 0;
    for (int q = 0; q < ranks; q++) {
        first = host[q] < first ? host[q] : first;
        if (host[q] > host[r] && (next < 0 || host[q] < next))
            next = host[q];
        place += q < r && host[q] == host[r];
    }
    next = next < 0 ? first : next;
    for (int q = 0; q < ranks; q++)
        n += host[q] == next;
    place %= n;
    for (int q = 0; q < ranks; q++)
        if (host[q] == next && place-- == 0)
            return q;
    BUG_ON(1);
    return -1;
}

Peers *peers_open(Comm *all)
{
    int64_t mine = comm_mpi_host(), *each = xcalloc((size_t)all->size, sizeof *each);
    Peers *p = xcalloc(1, sizeof *p);
    p->host = xcalloc((size_t)all->size, sizeof *p->host);
    p->from = xcalloc((size_t)all->size, sizeof *p->from);
    all->wait(all, all->all_gather(all, each, &mine, 1, I64));
    for (int r = 0; r < all->size; r++) {
        p->host[r] = (int)each[r];
        p->hosts += p->host[r] == r;
    }
    free(each);
    p->to = beside(p->host, all->size, all->rank);
    for (int r = 0; r < all->size && p->hosts > 1; r++)
        if (beside(p->host, all->size, r) == all->rank)
            p->from[p->nfrom++] = r;
    return p;
}

void peers_close(Peers *p)
{
    free(p->host);
    free(p->from);
    free(p);
}

int peers_hosts(const Peers *p) { return p->hosts; }

int64_t peers_bytes(const Peers *p, const int64_t *bytes, int ranks)
{
    int64_t sum = 0;
    int here = comm_mpi_host();
    for (int r = 0; r < ranks; r++) {
        sum += p->host[r] == here ? bytes[r] : 0;
        sum += p->hosts > 1 && p->host[beside(p->host, ranks, r)] == here ? bytes[r] : 0;
    }
    return sum;
}

/* Maps a file of the folder `dir`. Returns NULL and a reason.
 *   bytes  in/out  its size; with `makes` in, else out
 *   makes  in      bool: makes the file, to be written */
static char *map_file(int dir, const char *name, int64_t *bytes, int makes, char why[WHY])
{
    int e = 0, fd = makes ? openat(dir, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600)
                          : file_open(dir, name, 1, bytes, why);
    if (fd < 0 && makes)
        file_errno(why, "cannot make %s", name);
    if (fd < 0)
        return NULL;
    if (makes && (e = posix_fallocate(fd, 0, *bytes))) {
        errno = e;
        file_errno(why, "cannot make room for %lld bytes of %s", (long long)*bytes, name);
        close(fd);
        return NULL;
    }
    char *map = mmap(NULL, (size_t)*bytes, makes ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (map != MAP_FAILED)
        return map;
    file_errno(why, "cannot map %s", name);
    return NULL;
}

/* Starts the messages of a round, or ends them. */
static void start_round(Way *way, int n, int64_t round, Comm *c)
{
    comm_together(c, 1);
    for (int i = 0; i < n; i++) {
        Way *w = &way[i];
        int64_t left = w->bytes - round * ROUND, words = ((left < ROUND ? left : ROUND) + 3) / 4;
        char *at = w->map + round * ROUND;
        w->token = left <= 0 ? 0 : w->receives ? c->recv(c, at, words, I32, w->peer)
                                               : c->send(c, at, words, I32, w->peer);
    }
    comm_together(c, 0);
}

static void end_round(Way *way, int n, Comm *c)
{
    for (int i = 0; i < n; i++)
        if (way[i].token)
            c->wait(c, way[i].token);
}

static void add_way(Way **way, int *n, Way w)
{
    *way = xrealloc(*way, (size_t)(*n + 1) * sizeof **way);
    (*way)[(*n)++] = w;
}

static void drop_ways(Way **way, int *n)
{
    for (int i = 0; i < *n; i++)
        munmap((*way)[i].map, (size_t)(*way)[i].bytes);
    free(*way);
    *way = NULL;
    *n = 0;
}

void peers_drop(Saver *s)
{
    if (s->peers)
        drop_ways(&s->peers->way, &s->peers->nway);
}

/* Tells the peer the bytes of this rank's shards; sizes [nfrom][2] of those that come here. */
static void tell_sizes(Saver *s, int64_t mine[2], int64_t *sizes)
{
    Peers *p = s->peers;
    Comm *c = s->all;
    Token *t = xcalloc((size_t)p->nfrom + 1, sizeof *t);
    comm_together(c, 1);
    t[p->nfrom] = c->send(c, mine, 2, I64, p->to);
    for (int i = 0; i < p->nfrom; i++)
        t[i] = c->recv(c, sizes + 2 * i, 2, I64, p->from[i]);
    comm_together(c, 0);
    for (int i = 0; i <= p->nfrom; i++)
        c->wait(c, t[i]);
    free(t);
}

int peers_begin(Saver *s, char why[WHY])
{
    Peers *p = s->peers;
    Comm *c = s->all;
    int64_t mine[2] = {0, 0}, *sizes = xcalloc((size_t)p->nfrom * 2 + 1, sizeof *sizes), most = 0;
    int dir = file_open_dir(s->dir, s->tmp, 1, why), ok = dir >= 0;
    char name[40];
    struct stat st;
    for (int k = 0; ok && k < 2; k++) {
        shard_name(name, k, c->rank);
        mine[k] = fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 ? (int64_t)st.st_size : 0;
    }
    tell_sizes(s, mine, sizes);
    for (int i = -1; ok && i < p->nfrom; i++)
        for (int k = 0; ok && k < 2; k++) {
            Way w = {.bytes = i < 0 ? mine[k] : sizes[2 * i + k], .peer = i < 0 ? p->to : p->from[i],
                     .receives = i >= 0};
            shard_name(name, k, i < 0 ? c->rank : w.peer);
            ok = !w.bytes || (w.map = map_file(dir, name, &w.bytes, w.receives, why));
            if (ok && w.bytes)
                add_way(&p->way, &p->nway, w);
            most = w.bytes > most ? w.bytes : most;
        }
    if (dir >= 0)
        close(dir);
    free(sizes);
    p->round = -1;
    p->rounds = (most + ROUND - 1) / ROUND;
    c->wait(c, c->all_reduce(c, &p->rounds, 1, I64, OP_MAX));
    return ok;
}

int peers_next(Saver *s)
{
    Peers *p = s->peers;
    if (p->round >= 0)
        end_round(p->way, p->nway, s->all);
    if (++p->round < p->rounds) {
        start_round(p->way, p->nway, p->round, s->all);
        return 1;
    }
    peers_drop(s);
    return 0;
}

/* Gives all ranks the text that rank `root` has. Returns it from malloc. */
static char *spread(Comm *c, const char *text, int64_t *bytes, int root)
{
    c->wait(c, c->broadcast(c, bytes, 1, I64, root));
    char *all = xcalloc((size_t)*bytes / 4 + 2, 4);
    if (c->rank == root)
        memcpy(all, text, (size_t)*bytes);
    c->wait(c, c->broadcast(c, all, *bytes / 4 + 1, I32, root));
    return all;
}

void peers_spread(Saver *s)
{
    char *text = spread(s->all, s->text, &s->text_bytes, 0);
    free(s->text);
    s->text = text;
}

/* ---- before a load ---- */

/* One host's side of a fetch. */
typedef struct {
    Comm *all;
    char *dir, *tmp;                /* the copy's folder; where its shards go if it has none here */
    int leads, whole, fd;           /* bools: speaks for its host; the manifest is here */
    Manifest m;
} Fetch;

static int has_shard(const Fetch *f, int i)
{
    struct stat st;
    return f->whole && fstatat(f->fd, f->m.shard[i].name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
           st.st_size == f->m.shard[i].bytes;
}

/* Moves shard i from `holder` to `to`, as far as this rank is one of them. */
static int move_shard(Fetch *f, int i, int holder, int to, char why[WHY])
{
    int receives = f->all->rank == to, n = 1;
    Way w = {.bytes = f->m.shard[i].bytes, .peer = receives ? holder : to, .receives = receives}, *way = &w;
    if (f->all->rank != to && f->all->rank != holder)
        return 1;
    char *room = NULL;
    w.map = map_file(f->fd, f->m.shard[i].name, &w.bytes, receives, why);
    int ok = w.map != NULL;
    if (!ok)                           /* the other side's messages still have their partner */
        w.map = room = xcalloc(1, (size_t)f->m.shard[i].bytes + 4), w.bytes = f->m.shard[i].bytes;
    for (int64_t r = 0; r * ROUND < w.bytes; r++) {
        start_round(way, n, r, f->all);
        end_round(way, n, f->all);
    }
    if (ok)
        munmap(w.map, (size_t)w.bytes);
    free(room);
    return ok;
}

/* Makes the folder for a copy that is not here, or not whole. */
static int make_folder(Fetch *f, char why[WHY])
{
    if (f->fd >= 0)
        close(f->fd);
    char *top = xasprintf("%s/checkpoints", memory_folder());
    int ok = memory_make(why) && file_make_dirs(top, why) && file_remove_dir(AT_FDCWD, f->tmp, why) &&
             (mkdir(f->tmp, 0700) == 0 || file_errno(why, "cannot make %s", f->tmp)) &&
             (f->fd = file_open_dir(AT_FDCWD, f->tmp, 1, why)) >= 0;
    free(top);
    return ok;
}

/* Brings every shard to every host that lacks it, in one order for all ranks. */
static int move_shards(Fetch *f, char why[WHY])
{
    Comm *all = f->all;
    int n = f->m.nshard, ok = 1;
    int64_t row = n + 1;               /* of have: a rank's shards, and whether it leads its host */
    int32_t *mine = xcalloc((size_t)n + 1, 4), *have = xcalloc((size_t)(n + 1) * (size_t)all->size, 4);
    for (int i = 0; i < n; i++)
        mine[i] = f->leads && has_shard(f, i);
    mine[n] = f->leads;
    all->wait(all, all->all_gather(all, have, mine, n + 1, I32));
    if (f->leads && !f->whole)
        ok = make_folder(f, why);
    int64_t go = ok;
    all->wait(all, all->all_reduce(all, &go, 1, I64, OP_MIN));
    for (int i = 0; go && i < n; i++) {
        int holder = 0;
        while (holder < all->size && !have[holder * row + i])
            holder++;
        for (int r = 0; holder < all->size && r < all->size; r++)
            if (have[r * row + n] && !have[r * row + i])
                ok = move_shard(f, i, holder, r, why) && ok;
    }
    free(mine);
    free(have);
    return ok && go;
}

/* Gives a fetched copy its manifest and its name. */
static int commit_fetched(Fetch *f, const char *text, int64_t bytes, char why[WHY])
{
    int fd = file_create(f->fd, MANIFEST, 1, why);
    int ok = fd >= 0 && file_write_at(fd, MANIFEST, text, bytes, 0, why);
    if (fd >= 0)
        ok = file_sync_close(fd, MANIFEST, why) && ok;
    return ok && file_remove_dir(AT_FDCWD, f->dir, why) &&
           (rename(f->tmp, f->dir) == 0 || file_errno(why, "cannot rename %s", f->tmp));
}

int peers_fetch(int64_t iteration, Comm *all, char why[WHY])
{
    Fetch f = {.all = all, .dir = memory_copy(iteration), .leads = all->rank == comm_mpi_host(), .fd = -1};
    f.tmp = xasprintf("%s.tmp", f.dir);
    char *text = NULL;
    int64_t bytes = 0, lacks = 0, root = INT64_MAX;
    if (f.leads && (f.fd = file_open_dir(AT_FDCWD, f.dir, 1, why)) >= 0)
        text = file_read_text(f.fd, MANIFEST, 1, MANIFEST_MAX, &bytes, why);
    f.whole = text && manifest_parse(&f.m, text, bytes, why);
    for (int i = 0; f.whole && i < f.m.nshard; i++)
        lacks |= !has_shard(&f, i);
    lacks |= f.leads && !f.whole;
    root = f.whole ? all->rank : root;
    all->wait(all, all->all_reduce(all, &lacks, 1, I64, OP_MAX));
    all->wait(all, all->all_reduce(all, &root, 1, I64, OP_MIN));
    int ok = 1;
    if (lacks && root != INT64_MAX) {
        char *spoken = spread(all, text, &bytes, (int)root);
        ok = f.whole || manifest_parse(&f.m, spoken, bytes, why);
        BUG_ON(!ok);
        ok = move_shards(&f, why);
        if (ok && f.leads && !f.whole)
            ok = commit_fetched(&f, spoken, bytes, why);
        all->barrier(all);             /* all ranks of a host open the folder that its leader has named */
        manifest_close(&f.m);
        free(spoken);
    } else if (f.whole) {
        manifest_close(&f.m);
    }
    if (f.fd >= 0)
        close(f.fd);
    free(text);
    free(f.dir);
    free(f.tmp);
    return ok;
}
