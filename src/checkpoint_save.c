/* Saving: the protocol of checkpoint.h as three phases. Messages between ranks are only ever started by the
 * thread that trains, in saver_save, _poll and _wait, so the writer thread needs no communicator of its
 * own. */
#define _GNU_SOURCE
#include "checkpoint.h"
#include "source.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

/* Neighbouring pieces of one tensor that go to the disk as one box. */
typedef struct { int first, count; int64_t rows; char name[BOX_NAME]; } Entry;

typedef struct { const char *p; int64_t ld; } View;

typedef enum { IDLE, WRITING, COMMITTING } Phase;

struct Saver {
    const Config *cfg;
    Comm *all;
    char *run_dir;
    int dir, lock;                  /* descriptors: RUN/checkpoints, RUN/.lock */
    const Piece *piece;
    View *view;                     /* [n] what is written: the caller's memory, or the snapshot */
    int n, nentry;
    Entry *entry;
    int64_t bytes;                  /* of this rank's tensors */
    char *snapshot, *buffer;        /* buffer: HASH_BLOCK bytes */

    Phase phase;                    /* of the save under way */
    int attempt;                    /* 0, then 1 */
    int64_t iteration, committed;   /* committed: newest on disk, -1 none */
    int failed;                     /* saves in a row */
    unsigned waits;                 /* saves that found another one under way */
    char name[32], tmp[48];
    json_t *state, **part;          /* part[rank]: its own; on rank 0, once written, everybody's */

    /* the job: run by the thread, or in place without async_save */
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    int (*job)(Saver *s, char why[WHY]);    /* NULL: nothing to do */
    int quit, ok;
    char why[WHY];
};

/* ---- pieces and memory */

static void check_piece(const Piece *p)
{
    int64_t cols = p->ndim == 2 ? p->shape[1] : 1;
    BUG_ON(!file_name_ok(p->name) || strlen(p->name) > BOX_NAME - 44);
    BUG_ON(p->ndim < 1 || p->ndim > 2 || p->row0 < 0 || p->col0 < 0 || p->rows < 0 || p->cols < 0 ||
           p->ld < p->cols);
    BUG_ON(p->row0 > p->shape[0] - p->rows || p->col0 > cols - p->cols);
}

static int64_t piece_bytes(const Piece *p) { return p->rows * p->cols * (int64_t)dtype_size(p->type); }

/* Pieces that continue each other row by row become one entry: with one rank, an entry a tensor. */
static void find_entries(Saver *s)
{
    s->entry = xcalloc((size_t)s->n, sizeof *s->entry);
    for (int i = 0; i < s->n; i++) {
        const Piece *p = &s->piece[i], *f = NULL;
        Entry *e = s->nentry ? &s->entry[s->nentry - 1] : NULL;
        check_piece(p);
        if (!p->rows || !p->cols)
            continue;
        if (e)
            f = &s->piece[e->first];
        if (f && e->first + e->count == i && !strcmp(f->name, p->name) && f->col0 == p->col0 &&
            f->cols == p->cols && f->row0 + e->rows == p->row0) {
            BUG_ON(f->type != p->type || f->optim != p->optim || f->shape[0] != p->shape[0]);
            e->count++;
            e->rows += p->rows;
        } else {
            s->entry[s->nentry++] = (Entry){.first = i, .count = 1, .rows = p->rows};
        }
        s->bytes += piece_bytes(p);
    }
    for (int i = 0; i < s->nentry; i++) {
        const Piece *p = &s->piece[s->entry[i].first];
        box_name(s->entry[i].name, p->name, p->row0, p->col0,
                 s->entry[i].rows == p->shape[0] && (p->ndim == 1 || p->cols == p->shape[1]));
    }
}

/* Copies `rows` rows densely. */
static void gather_rows(char *to, const char *from, int64_t rows, int64_t row_bytes, int64_t ld_bytes)
{
    if (row_bytes == ld_bytes) {
        memcpy(to, from, (size_t)(rows * row_bytes));
        return;
    }
    for (int64_t r = 0; r < rows; r++)
        memcpy(to + r * row_bytes, from + r * ld_bytes, (size_t)row_bytes);
}

static void take_snapshot(Saver *s)
{
    char *to = s->snapshot;
    for (int i = 0; i < s->n; i++) {
        const Piece *p = &s->piece[i];
        const int64_t size = (int64_t)dtype_size(p->type);
        gather_rows(to, p->data, p->rows, p->cols * size, p->ld * size);
        s->view[i] = (View){to, p->cols};
        to += piece_bytes(p);
    }
}

/* ---- writing, in the job */

/* Reads an entry's bytes in order, over its pieces. */
typedef struct { const Saver *s; int piece; int64_t row, col; } Cursor;

static void cursor_read(Cursor *c, char *to, int64_t bytes)
{
    while (bytes) {
        const Piece *p = &c->s->piece[c->piece];
        const View *v = &c->s->view[c->piece];
        const int64_t size = (int64_t)dtype_size(p->type);
        int64_t run = v->ld == p->cols ? (p->rows - c->row) * p->cols - c->col : p->cols - c->col;
        run = run * size < bytes ? run : bytes / size;
        memcpy(to, v->p + (c->row * v->ld + c->col) * size, (size_t)(run * size));
        to += run * size;
        bytes -= run * size;
        c->row += (c->col + run) / p->cols;
        c->col = (c->col + run) % p->cols;
        if (c->row == p->rows)
            c->piece++, c->row = 0;
    }
}

static int write_entry(Saver *s, StWriter *w, int index, const char *file, const Entry *e, char why[WHY])
{
    const Piece *p = &s->piece[e->first];
    StoredBox box = {.row0 = p->row0, .col0 = p->col0, .rows = e->rows, .cols = p->cols};
    int64_t bytes = box_bytes(&box, p->type);
    Cursor c = {s, e->first, 0, 0};
    int ok = 1;
    box.hash = xcalloc((size_t)box_blocks(bytes), sizeof *box.hash);
    for (int64_t at = 0; ok && at < bytes; at += HASH_BLOCK) {
        int64_t n = bytes - at < HASH_BLOCK ? bytes - at : HASH_BLOCK;
        cursor_read(&c, s->buffer, n);
        box.hash[at / HASH_BLOCK] = XXH3_64bits(s->buffer, (size_t)n);
        ok = st_put(w, index, at, s->buffer, n, why);
    }
    if (ok)
        part_box(s->part[s->all->rank], file, p->name, p->type, p->ndim, p->shape, &box);
    free(box.hash);
    return ok;
}

/* One shard: this rank's entries of one kind. No entries, no file. */
static int write_shard(Saver *s, int dir, int optim, char why[WHY])
{
    StTensor *t = xcalloc((size_t)s->nentry, sizeof *t);
    int *which = xcalloc((size_t)s->nentry, sizeof *which), n = 0, ok = 1;
    char file[40], step[24], rank[12];
    StWriter w;
    snprintf(file, sizeof file, "%s-%05d.safetensors", optim ? "optim" : "model", s->all->rank);
    snprintf(step, sizeof step, "%" PRId64, s->iteration);
    snprintf(rank, sizeof rank, "%d", s->all->rank);
    for (int i = 0; i < s->nentry; i++) {
        const Piece *p = &s->piece[s->entry[i].first];
        if (p->optim == optim) {
            t[n] = (StTensor){.name = s->entry[i].name, .type = (int)p->type, .ndim = p->ndim,
                              .shape = {s->entry[i].rows, p->cols}};
            which[n++] = i;
        }
    }
    if (n) {
        const char *meta[] = {"format", "pt", "iteration", step, "rank", rank, NULL};
        ok = st_create(&w, dir, file, 1, t, n, meta, why);
        if (ok) {
            int64_t bytes = w.size;
            uint64_t header = w.header_hash;
            for (int i = 0; ok && i < n; i++)
                ok = write_entry(s, &w, i, file, &s->entry[which[i]], why);
            if (ok)
                ok = st_finish(&w, why);
            else
                st_discard(&w);
            if (ok)
                part_file(s->part[s->all->rank], file, bytes, header);
        }
    }
    free(which);
    free(t);
    return ok;
}

static int job_write(Saver *s, char why[WHY])
{
    int dir = file_open_dir(s->dir, s->tmp, 1, why), ok = dir >= 0;
    ok = ok && write_shard(s, dir, 0, why) && write_shard(s, dir, 1, why) && file_sync_dir(dir, s->tmp, why);
    if (dir >= 0)
        close(dir);
    return ok;
}

/* Renames to iter_N.trash, durably, then removes: a deletion that is cut short leaves no half checkpoint
 * under its name. */
static int trash(Saver *s, const char *name, char why[WHY])
{
    char to[64];
    snprintf(to, sizeof to, "%s.trash", name);
    if (renameat(s->dir, name, s->dir, to) < 0)
        return file_errno(why, "cannot rename %s to %s", name, to);
    return file_sync_dir(s->dir, "checkpoints", why) && file_remove_dir(s->dir, to, why);
}

static int largest_first(const void *a, const void *b)
{
    int64_t s = *(const int64_t *)a, t = *(const int64_t *)b;
    return s < t ? 1 : s > t ? -1 : 0;
}

/* Deletes what save_keep_last and save_retain_interval do not keep. */
static int retain(Saver *s, char why[WHY])
{
    int64_t keep = s->cfg->save_keep_last, every = s->cfg->save_retain_interval, *list = NULL, it;
    int n = 0, ok = 1;
    if (keep == CFG_ABSENT && every == CFG_ABSENT)
        return 1;
    keep = keep == CFG_ABSENT ? 1 : keep;
    int fd = openat(s->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d) {
        file_errno(why, "cannot list the checkpoints");
        if (fd >= 0)
            close(fd);
        return 0;
    }
    for (struct dirent *e; (e = readdir(d));)
        if (source_iteration(e->d_name, &it)) {
            list = xrealloc(list, (size_t)(n + 1) * sizeof *list);
            list[n++] = it;
        }
    closedir(d);
    if (n)
        qsort(list, (size_t)n, sizeof *list, largest_first);
    for (int64_t i = keep; ok && i < n; i++) {
        char name[40];
        snprintf(name, sizeof name, "iter_%07" PRId64, list[i]);
        if (list[i] != s->iteration && (every == CFG_ABSENT || list[i] % every))
            ok = trash(s, name, why);
    }
    free(list);
    return ok;
}

/* The name of a finished folder. One that is there already (the same step, saved again after a resume) is
 * exchanged for it, so that there is a whole checkpoint under the name at every moment. */
static int publish(Saver *s, char why[WHY])
{
    if (renameat2(s->dir, s->tmp, s->dir, s->name, RENAME_NOREPLACE) == 0)
        return file_sync_dir(s->dir, "checkpoints", why);
    if (errno == EINVAL && faccessat(s->dir, s->name, F_OK, AT_SYMLINK_NOFOLLOW) < 0) /* no renameat2 here */
        return renameat(s->dir, s->tmp, s->dir, s->name) < 0
                   ? file_errno(why, "cannot rename %s to %s", s->tmp, s->name)
                   : file_sync_dir(s->dir, "checkpoints", why);
    if (errno != EEXIST || renameat2(s->dir, s->tmp, s->dir, s->name, RENAME_EXCHANGE) < 0)
        return file_errno(why, "cannot rename %s to %s", s->tmp, s->name);
    return file_sync_dir(s->dir, "checkpoints", why) && trash(s, s->tmp, why);
}

/* Rank 0: the manifest, the name, the hint, and the deletions. Failures of the last two are only warnings:
 * the checkpoint is there. */
static int job_commit(Saver *s, char why[WHY])
{
    int64_t bytes;
    char *text = manifest_text(s->part, s->all->size, s->iteration, s->state, &bytes);
    int dir = file_open_dir(s->dir, s->tmp, 1, why), ok = dir >= 0;
    if (ok) {
        int fd = file_create(dir, MANIFEST, 1, why);
        ok = fd >= 0;
        if (ok && !file_write_at(fd, MANIFEST, text, bytes, 0, why)) {
            close(fd);
            ok = 0;
        } else if (ok) {
            ok = file_sync_close(fd, MANIFEST, why) && file_sync_dir(dir, s->tmp, why);
        }
        close(dir);
    }
    free(text);
    if (!ok || !publish(s, why))
        return 0;
    char line[48], soft[WHY];
    int n = snprintf(line, sizeof line, "%s\n", s->name);
    if (!file_replace(s->dir, "latest", line, n, soft))
        warn("%s is saved, but the hint `latest` is not: %s", s->name, soft);
    if (!retain(s, soft))
        warn("%s is saved, but an old checkpoint could not be deleted: %s", s->name, soft);
    return 1;
}

/* ---- running jobs */

static void *worker(void *arg)
{
    Saver *s = arg;
    pthread_mutex_lock(&s->mutex);
    for (;;) {
        while (!s->job && !s->quit)
            pthread_cond_wait(&s->cond, &s->mutex);
        if (!s->job)
            break;
        int (*job)(Saver *, char *) = s->job;
        pthread_mutex_unlock(&s->mutex);
        int ok = job(s, s->why);
        pthread_mutex_lock(&s->mutex);
        s->ok = ok;
        s->job = NULL;
        pthread_cond_broadcast(&s->cond);
    }
    pthread_mutex_unlock(&s->mutex);
    return NULL;
}

static void job_start(Saver *s, int (*job)(Saver *, char *))
{
    if (!s->cfg->async_save) {
        s->ok = job(s, s->why);
        return;
    }
    pthread_mutex_lock(&s->mutex);
    s->job = job;
    pthread_cond_broadcast(&s->cond);
    pthread_mutex_unlock(&s->mutex);
}

/* 1 when the job of this rank has ended; waits for that when asked. */
static int job_ended(Saver *s, int wait)
{
    pthread_mutex_lock(&s->mutex);
    while (wait && s->job)
        pthread_cond_wait(&s->cond, &s->mutex);
    int ended = !s->job;
    pthread_mutex_unlock(&s->mutex);
    return ended;
}

/* ---- phases, in the thread that trains */

static int64_t reduce_min(Saver *s, int64_t v)
{
    s->all->wait(s->all, s->all->all_reduce(s->all, &v, 1, I64, OP_MIN));
    return v;
}

/* Removes what earlier saves and deletions have left; a leftover that stays is no reason not to try. */
static void clean(Saver *s)
{
    char why[WHY];
    int fd = openat(s->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d) {
        if (fd >= 0)
            close(fd);
        return;
    }
    for (struct dirent *e; (e = readdir(d));) {
        const char *dot = strrchr(e->d_name, '.');
        if (dot && !strncmp(e->d_name, "iter_", 5) && (!strcmp(dot, ".tmp") || !strcmp(dot, ".trash")) &&
            !file_remove_dir(s->dir, e->d_name, why))
            warn("a leftover in %s/checkpoints stays: %s", s->run_dir, why);
    }
    closedir(d);
}

static void drop_parts(Saver *s)
{
    for (int r = 0; r < s->all->size; r++) {
        json_decref(s->part[r]);
        s->part[r] = NULL;
    }
}

static void attempt(Saver *s)
{
    int ok = 1;
    snprintf(s->tmp, sizeof s->tmp, "%s%s.tmp", s->name, s->attempt ? ".again" : "");
    if (s->all->rank == 0) {
        clean(s);
        ok = mkdirat(s->dir, s->tmp, 0750) == 0 ? 1 : file_errno(s->why, "cannot make the folder %s", s->tmp);
    }
    drop_parts(s);
    s->part[s->all->rank] = part_new();
    s->ok = ok;
    s->phase = WRITING;
    /* the others wait for the folder here; where it could not be made, nobody writes and advance() is told */
    if (reduce_min(s, ok))
        job_start(s, job_write);
}

/* Rank 0 collects what all have written. */
static void gather_parts(Saver *s)
{
    Comm *c = s->all;
    if (c->rank != 0) {
        char *text = json_dumps(s->part[c->rank], JSON_COMPACT);
        int64_t words = (int64_t)strlen(text) / 4 + 1;
        text = xrealloc(text, (size_t)words * 4);
        c->wait(c, c->send(c, &words, 1, I64, 0));
        c->wait(c, c->send(c, text, words, I32, 0));
        free(text);
        return;
    }
    for (int r = 1; r < c->size; r++) {
        int64_t words;
        c->wait(c, c->recv(c, &words, 1, I64, r));
        char *text = xcalloc((size_t)words, 4);
        c->wait(c, c->recv(c, text, words, I32, r));
        s->part[r] = json_loads(text, 0, NULL);
        BUG_ON(!s->part[r]);
        free(text);
    }
}

static void end_save(Saver *s)
{
    drop_parts(s);
    json_decref(s->state);
    s->state = NULL;
    s->phase = IDLE;
}

/* An attempt has failed on rank `speaker`: the first time it is written again from memory, the second time it
 * is given up. */
static void fail(Saver *s, int64_t speaker)
{
    char why[WHY] = "";
    struct statvfs fs;
    long long room = fstatvfs(s->dir, &fs) == 0 ? (long long)fs.f_bavail * (long long)fs.f_frsize : -1;
    if (s->all->rank == 0)
        clean(s);
    if (s->all->rank == speaker)
        warn("saving iteration %" PRId64 " failed: %s; this rank's part needs %" PRId64
             " bytes, %lld are free%s",
             s->iteration, s->why, s->bytes, room,
             s->attempt ? "; older checkpoints stay, the run goes on" : "; writing it again");
    memcpy(why, s->why, WHY);
    if (s->attempt++ == 0) {
        attempt(s);
        return;
    }
    s->failed++;
    all_ok(s->all, s->all->rank != speaker || s->failed < s->cfg->max_failed_saves, EXIT_RESOURCE, "save",
           "%d saves in a row have failed, the last: %s; this rank's part of a checkpoint needs %" PRId64
           " bytes, %lld are free; change: free space under %s, or save elsewhere",
           s->failed, why, s->bytes, room, s->run_dir);
    end_save(s);
}

/* One step further, if every rank's job has ended. Returns 0 when there is nothing to do yet. */
static int advance(Saver *s, int wait)
{
    if (s->phase == IDLE || !reduce_min(s, job_ended(s, wait)))
        return 0;
    int64_t speaker = reduce_min(s, s->ok ? INT64_MAX : s->all->rank);
    if (speaker != INT64_MAX) {
        fail(s, speaker);
    } else if (s->phase == WRITING) {
        gather_parts(s);
        s->phase = COMMITTING;
        if (s->all->rank == 0)
            job_start(s, job_commit);
    } else {
        s->committed = s->iteration;
        s->failed = 0;
        end_save(s);
    }
    return 1;
}

void saver_poll(Saver *s)
{
    while (advance(s, 0))
        ;
}

int64_t saver_wait(Saver *s)
{
    while (s->phase != IDLE)
        advance(s, 1);
    return s->committed;
}

void saver_save(Saver *s, int64_t iteration, const json_t *state)
{
    saver_poll(s);
    /* said at the first, second, fourth, eighth ... wait: a disk that is too slow must not flood the log */
    s->waits += s->phase != IDLE;
    if (s->phase != IDLE && !(s->waits & (s->waits - 1)) && s->all->rank == 0)
        warn("iteration %" PRId64 " waits for the checkpoint of iteration %" PRId64
             ", which is still being written; a longer save_interval or a faster disk would avoid it",
             iteration, s->iteration);
    saver_wait(s);
    s->iteration = iteration;
    s->state = json_deep_copy(state);
    s->attempt = 0;
    snprintf(s->name, sizeof s->name, "iter_%07" PRId64, iteration);
    if (s->cfg->async_save)
        take_snapshot(s);
    attempt(s);
    if (!s->cfg->async_save)
        saver_wait(s);
}

/* ---- opening */

/* Locks RUN/.lock for this process; the file says whose it is, in a record of fixed size. */
static int lock_run(Saver *s, char why[WHY])
{
    char *path = xasprintf("%s/.lock", s->run_dir), who[128] = "", host[64] = "?";
    do
        s->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0640);
    while (s->lock < 0 && errno == EINTR);
    free(path);
    if (s->lock < 0)
        return file_errno(why, "cannot open .lock in %s", s->run_dir);
    if (flock(s->lock, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK)
            return file_errno(why, "cannot lock %s", s->run_dir);
        int known = file_read_at(s->lock, ".lock", who, sizeof who - 1, 0, why);
        who[strcspn(who, "\n")] = 0;
        return file_why(why, "another job (%s) is writing in %s", known ? who : "unknown", s->run_dir);
    }
    gethostname(host, sizeof host - 1);
    memset(who + snprintf(who, sizeof who, "process %d on %s", (int)getpid(), host), '\n', 1);
    return file_write_at(s->lock, ".lock", who, sizeof who, 0, why);
}

static void open_thread(Saver *s)
{
    /* signals are the training thread's business */
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int e = pthread_create(&s->thread, NULL, worker, s);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (e)
        die(EXIT_RESOURCE, "thread",
            "cannot start the thread that writes checkpoints: %s; change: async_save=false, or a higher "
            "limit of processes", strerror(e));
}

Saver *saver_open(const Config *cfg, const char *run_dir, Comm *all, const Piece *p, int n, Arena *run)
{
    int64_t bytes = 0;
    for (int i = 0; i < n; i++)
        bytes += piece_bytes(&p[i]);
    void *snapshot = cfg->async_save ? arena_take(run, (size_t)bytes) : NULL;
    if (!run->base)
        return NULL;
    Saver *s = xcalloc(1, sizeof *s);
    char why[WHY];
    *s = (Saver){.cfg = cfg, .all = all, .run_dir = xstrdup(run_dir), .piece = p, .n = n,
                 .snapshot = snapshot, .lock = -1, .dir = -1, .committed = -1,
                 .mutex = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
    char *folder = xasprintf("%s/checkpoints", run_dir);
    int ok = all->rank != 0 || file_make_dirs(folder, why);
    all_ok(all, ok, EXIT_RESOURCE, "save", "%s; change: save=DIR, a folder that can be written", why);
    ok = all->rank != 0 || lock_run(s, why);
    all_ok(all, ok, EXIT_CHECKPOINT, "save",
           "%s; change: wait for the other job, or save=DIR, another folder", why);
    ok = (s->dir = file_open_dir(AT_FDCWD, folder, 0, why)) >= 0;
    all_ok(all, ok, EXIT_RESOURCE, "save", "%s; change: save=DIR, a folder that every rank can write", why);
    free(folder);
    find_entries(s);
    s->buffer = xcalloc(1, (size_t)HASH_BLOCK);
    s->part = xcalloc((size_t)all->size, sizeof *s->part);
    s->view = xcalloc((size_t)n, sizeof *s->view);
    for (int i = 0; i < n; i++)
        s->view[i] = (View){p[i].data, p[i].ld};
    if (cfg->async_save)
        open_thread(s);
    return s;
}

void saver_close(Saver *s)
{
    saver_wait(s);
    if (s->cfg->async_save) {
        pthread_mutex_lock(&s->mutex);
        s->quit = 1;
        pthread_cond_broadcast(&s->cond);
        pthread_mutex_unlock(&s->mutex);
        pthread_join(s->thread, NULL);
    }
    if (s->lock >= 0)
        close(s->lock);
    close(s->dir);
    free(s->view);
    free(s->part);
    free(s->buffer);
    free(s->entry);
    free(s->run_dir);
    free(s);
}
