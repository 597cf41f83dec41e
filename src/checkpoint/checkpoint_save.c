/* checkpoint_save -- the protocol of a save (checkpoint.h) as phases
 *
 * Only the training thread sends messages to other ranks, in saver_save, _poll and _wait, so the writer
 * thread needs no communicator of its own. */
#define _GNU_SOURCE
#include "comm_mpi.h"
#include "flight.h"
#include "memory_copies.h"
#include "saver.h"
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* ---- pieces and memory */

static void check_piece(const TensorPiece *p)
{
    int64_t cols = p->ndim == 2 ? p->shape[1] : 1;
    BUG_ON(!file_name_ok(p->name) || strlen(p->name) > BOX_NAME - 44);
    BUG_ON(p->ndim < 1 || p->ndim > 2 || p->row0 < 0 || p->col0 < 0 || p->rows < 0 || p->cols < 0 ||
           p->ld < p->cols);
    BUG_ON(p->row0 > p->shape[0] - p->rows || p->col0 > cols - p->cols);
}

/* Joins pieces that continue each other row by row into entries: with one rank one entry a tensor. */
static void find_entries(Saver *s)
{
    s->entry = xcalloc((size_t)s->n, sizeof *s->entry);
    for (int i = 0; i < s->n; i++) {
        const TensorPiece *p = &s->piece[i], *f = NULL;
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
        const TensorPiece *p = &s->piece[s->entry[i].first];
        manifest_box_name(s->entry[i].name, p->name, p->row0, p->col0,
                          s->entry[i].rows == p->shape[0] && (p->ndim == 1 || p->cols == p->shape[1]));
    }
}

/* Launches a dense copy of a piece's elements, of `size` bytes, to the snapshot. The update of the next step
 * waits for it (step.c). */
static void snap(Saver *s, const TensorPiece *p, const void *from, size_t size, char *to)
{
    const int64_t line = p->cols * (int64_t)size, ld = p->ld * (int64_t)size;
    int64_t rows = line == ld ? 1 : p->rows, bytes = line == ld ? p->rows * line : line;
    for (int64_t r = 0; r < rows; r++)
        s->ticket = device_snapshot(p->dev, to + r * line, (const char *)from + r * ld, (size_t)bytes);
    s->teller = p->dev;
}

/* The same of a moment's numbers and then their scales, which need fewer bytes than the values. */
static View snap_moments(Saver *s, const TensorPiece *p, char *to)
{
    int64_t n = p->rows * p->cols, blocks = (n + MOMENT_BLOCK - 1) / MOMENT_BLOCK;
    char *scale = to + n * moment_size(p->moment);
    BUG_ON(p->rows > 1 && p->ld != p->cols);
    s->ticket = device_snapshot(p->dev, to, p->data, (size_t)(n * moment_size(p->moment)));
    s->ticket = device_snapshot(p->dev, scale, p->scale, (size_t)blocks);
    s->teller = p->dev;
    return (View){to, p->cols, NULL, (uint8_t *)scale, NULL};
}

/* The same of a whole piece: all weights of masters, then all their remainders. Returns where it lies. */
static View snap_piece(Saver *s, const TensorPiece *p, char *to)
{
    char *rest = to + (size_t)(p->rows * p->cols) * sizeof(uint16_t);
    if (p->scale)
        return snap_moments(s, p, to);
    snap(s, p, p->data, p->rest ? sizeof(uint16_t) : dtype_size(p->type), to);
    if (p->rest)
        snap(s, p, p->rest, sizeof *p->rest, rest);
    return (View){to, p->cols, p->rest ? (int16_t *)rest : NULL, NULL, NULL};
}

static void take_snapshot(Saver *s)
{
    char *to = s->snapshot;
    for (int i = 0; i < s->n; i++) {
        s->view[i] = snap_piece(s, &s->piece[i], to);
        to += piece_bytes(&s->piece[i]);
    }
}

/* ---- running jobs */

static int run_job(Saver *s, int (*job)(Saver *, char *))
{
    double start = now();
    int ok = job(s, s->why);
    s->spent += now() - start;
    return ok;
}

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
        int ok = run_job(s, job);
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
    if (!s->async) {
        s->ok = run_job(s, job);
        return;
    }
    pthread_mutex_lock(&s->mutex);
    s->job = job;
    pthread_cond_broadcast(&s->cond);
    pthread_mutex_unlock(&s->mutex);
}

/* Whether the job of this rank has ended. wait, bool: waits until it has. */
static int job_ended(Saver *s, int wait)
{
    pthread_mutex_lock(&s->mutex);
    while (wait && s->job)
        pthread_cond_wait(&s->cond, &s->mutex);
    int ended = !s->job;
    pthread_mutex_unlock(&s->mutex);
    return ended;
}

/* Touches the snapshot's pages, so that the first save does not: that costs twenty times a copy. */
static int touch_snapshot(Saver *s, char why[WHY])
{
    (void)why;
    for (int64_t at = 0; at < s->bytes; at += 4096)
        ((volatile char *)s->snapshot)[at] = 0;
    return 1;
}

/* ---- phases, in the thread that trains */

static int64_t reduce_min(Saver *s, int64_t v)
{
    s->all->wait(s->all, s->all->all_reduce(s->all, &v, 1, I64, OP_MIN));
    return v;
}

static void drop_parts(Saver *s)
{
    for (int r = 0; r < s->all->size; r++) {
        json_decref(s->part[r]);
        s->part[r] = NULL;
    }
}

/* Forgets what an attempt has made. */
static void drop_attempt(Saver *s)
{
    drop_parts(s);
    peers_drop(s);
    free(s->text);
    s->text = NULL;
}

static void attempt(Saver *s)
{
    snprintf(s->tmp, sizeof s->tmp, "%s%s.tmp", s->name, s->attempt ? ".again" : "");
    drop_attempt(s);
    s->part[s->all->rank] = manifest_part_new();
    s->phase = WRITING;
    job_start(s, saver_write);
}

/* Gathers the manifest parts of all ranks on rank 0. */
static void gather_parts(Saver *s)
{
    Comm *c = s->all;
    if (c->rank != 0) {
        char *text = json_dumps(s->part[c->rank], JSON_COMPACT);
        size_t length = strlen(text);
        int64_t words = (int64_t)length / 4 + 1;
        text = xrealloc(text, (size_t)words * 4);
        memset(text + length, 0, (size_t)words * 4 - length);
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
    drop_attempt(s);
    json_decref(s->state);
    s->state = NULL;
    s->phase = IDLE;
}

/* Bytes that are free for checkpoints; -1: not known. */
static long long free_bytes(const Saver *s)
{
    struct statvfs fs;
    return fstatvfs(s->dir, &fs) == 0 ? (long long)fs.f_bavail * (long long)fs.f_frsize : -1;
}

/* What a user sets to save elsewhere. */
static const char *place(const Saver *s) { return s->memory ? "GRIDIRON_SHM=DIR" : "save=DIR"; }

/* Rank `speaker` knows why this save cannot be had. Copies in memory that fail beside saves to the disk end
 * no run. */
static void give_up(Saver *s, int64_t speaker, const char *why)
{
    int matters = !s->memory || s->cfg->save_interval == CFG_ABSENT;
    s->failed++;
    if (s->all->rank == speaker)
        memcpy(s->lost, why, WHY);
    int ends = matters && s->failed >= s->cfg->max_failed_saves;
    all_ok(s->all, s->all->rank != speaker || !ends, EXIT_RESOURCE, "save",
           "%d saves in a row have failed, the last: %s; this rank's part of a checkpoint needs %" PRId64
           " bytes, %lld are free; change: what keeps files from being written to %s (its room, its rights, "
           "`ulimit -n`, `ulimit -f`), or %s elsewhere",
           s->failed, why, s->bytes, free_bytes(s), s->run_dir, place(s));
    end_save(s);
}

/* An attempt has failed on rank `speaker`: the first time all is written again, the second time the save
 * is given up. */
static void fail(Saver *s, int64_t speaker)
{
    char why[WHY] = "";
    long long room = free_bytes(s);
    if (s->leads)
        saver_clean(s);
    reduce_min(s, 0);               /* no rank makes the next folder before */
    /* copies may fail every step: warns of failure 1, 2, 4, 8 ... in a row */
    int told = !s->memory || !(s->failed & (s->failed + 1));
    if (s->all->rank == speaker && told)
        warn("%s iteration %" PRId64 "%s failed: %s; this rank's part needs %" PRId64
             " bytes, %lld are free%s", s->memory ? "copying" : "saving", s->iteration,
             s->memory ? " to memory" : "", s->why, s->bytes, room,
             s->attempt ? "; older checkpoints stay, the run goes on" : "; writing it again");
    memcpy(why, s->why, WHY);
    if (s->attempt++ == 0) {
        attempt(s);
        return;
    }
    give_up(s, speaker, why);
}

/* Rank `speaker` has found the checkpoint damaged on the disk: it loses its name. The first time all is
 * written again, from the snapshot or from the state, which has not gone on; the second time the save is
 * given up. */
static void damaged(Saver *s, int64_t speaker)
{
    char why[WHY] = "", soft[WHY];
    memcpy(why, s->why, WHY);
    if (s->all->rank == 0 && !saver_bury(s, soft))
        warn("%s, which is damaged, keeps its name: %s", s->name, soft);
    reduce_min(s, 0);               /* no rank makes the next folder before */
    if (s->all->rank == speaker)
        warn("the checkpoint of iteration %" PRId64 " was read back and is damaged: %s; it is now "
             "%s.damaged%s", s->iteration, why, s->name,
             s->rewritten ? "; older checkpoints stay, the run goes on" : ", and written again");
    s->committed = s->before;
    if (s->rewritten++) {
        give_up(s, speaker, why);
        return;
    }
    s->attempt = 0;
    attempt(s);
}

/* The checkpoint is on the disk; verified, bool: all ranks have read it back. */
static void committed(Saver *s, int verified)
{
    s->failed = 0;
    if (verified)
        s->verified = s->iteration;
    s->phase = DELETING;
    if (s->leads)
        job_start(s, saver_retain);
}

/* The third job of all ranks, unless nothing is to be read back. */
static void verify(Saver *s)
{
    s->phase = VERIFYING;
    s->checked = 0;
    if (s->verifies)
        job_start(s, saver_verify);
}

static int on_hosts(const Saver *s) { return s->peers && peers_hosts(s->peers) > 1; }

/* Goes on to the next phase if every rank's job has ended. Returns 0 when there is nothing to do yet.
 *   took  in/out  seconds: the time after the ranks have met is added */
static int advance(Saver *s, int wait, double *took)
{
    if (s->phase == IDLE || !reduce_min(s, job_ended(s, wait)))
        return 0;
    double start = now();
    int64_t speaker = reduce_min(s, s->ok ? INT64_MAX : s->all->rank);
    if (speaker != INT64_MAX) {
        s->phase == VERIFYING ? damaged(s, speaker) : fail(s, speaker);
    } else if (s->phase == WRITING && on_hosts(s)) {
        s->phase = SENDING;
        s->ok = peers_begin(s, s->why);
    } else if (s->phase == SENDING && peers_next(s)) {
        *took += now() - start;
        return wait;                /* a round takes until the next poll */
    } else if (s->phase == WRITING || s->phase == SENDING) {
        gather_parts(s);
        s->phase = COMMITTING;
        if (s->all->rank == 0)
            job_start(s, saver_commit);
    } else if (s->phase == COMMITTING && on_hosts(s)) {
        peers_spread(s);
        s->phase = SPREADING;
        if (s->leads && s->all->rank)
            job_start(s, saver_commit);
    } else if (s->phase == COMMITTING || s->phase == SPREADING) {
        s->committed = s->iteration;
        s->longest = fmax(s->longest, s->spent);
        verify(s);
    } else if (s->phase == VERIFYING) {
        committed(s, (int)reduce_min(s, s->checked));
    } else {
        end_save(s);
    }
    *took += now() - start;
    return 1;
}

double saver_poll(Saver *s)
{
    double took = 0;
    while (advance(s, 0, &took))
        ;
    return took;
}

int saver_under_way(const Saver *s) { return s->phase != IDLE && s->phase != DELETING; }

int64_t saver_committed(const Saver *s) { return s->committed; }

int64_t saver_wait(Saver *s)
{
    double took = 0;
    int beside = s->async && s->phase != IDLE;
    /* The watch for hangs has measured how long it takes to begin such a save, not how long the disk needs */
    FlightPhase phase = beside ? flight_phase(PHASE_OTHER) : PHASE_OTHER;
    while (s->phase != IDLE)
        advance(s, 1, &took);
    if (beside)
        flight_phase(phase);
    return s->committed;
}

double saver_predict(const Saver *s)
{
    double one = s->longest > 0 ? s->longest : (double)s->job_bytes / SAVE_RATE;
    return s->phase == WRITING || s->phase == COMMITTING ? 2 * one : one;
}

void saver_hurry(Saver *s) { atomic_store(&s->hurry, 1); }

void saver_loaded(Saver *s, int64_t iteration, int verified)
{
    s->committed = iteration;
    s->verified = verified ? iteration : -1;
}

const char *saver_lost(const Saver *s) { return *s->lost ? s->lost : NULL; }

void saver_save(Saver *s, int64_t iteration, const json_t *state)
{
    BUG_ON(s->dir < 0);
    saver_poll(s);
    /* A copy in memory may be waited for once its shards are there. Warns at wait 1, 2, 4, 8 ...: a disk
     * that is too slow must not flood the log */
    int late = s->memory ? s->phase == WRITING : s->phase != IDLE;
    s->waits += late;
    if (late && !(s->waits & (s->waits - 1)) && s->all->rank == 0)
        warn("iteration %" PRId64 " waits for the checkpoint of iteration %" PRId64 ", which is still being "
             "written%s would avoid it", iteration, s->iteration,
             s->memory ? "; a longer memory_save_interval"
                       : " or read back; a longer save_interval or a faster disk");
    saver_wait(s);
    job_ended(s, 1);                /* the snapshot has been touched */
    s->iteration = iteration;
    s->lost[0] = 0;
    s->state = json_deep_copy(state);
    s->attempt = s->rewritten = 0;
    s->spent = 0;
    s->before = s->committed;
    snprintf(s->name, sizeof s->name, "iter_%07" PRId64, iteration);
    if (s->async)
        take_snapshot(s);
    attempt(s);
    if (!s->async)
        saver_wait(s);
}

/* ---- opening */

static void open_thread(Saver *s)
{
    /* the training thread handles all signals */
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int e = pthread_create(&s->thread, NULL, worker, s);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (e)
        die(EXIT_RESOURCE, "thread", "cannot start the thread that writes checkpoints: %s; change: "
            "async_save=false, or a higher limit of processes", strerror(e));
}

/* Opens a saver with the fields of `is`. */
static Saver *open_as(const Saver *is, Arena *host)
{
    const TensorPiece *p = is->piece;
    int64_t bytes = 0;
    int n = is->n;
    for (int i = 0; i < n; i++)
        bytes += piece_bytes(&p[i]);
    void *snapshot = is->async ? arena_take(host, (size_t)bytes) : NULL;
    if (!host->base)
        return NULL;
    Saver *s = xcalloc(1, sizeof *s);
    *s = *is;
    s->run_dir = xstrdup(is->run_dir);
    s->snapshot = snapshot;
    s->dir = -1;
    s->committed = s->verified = -1;
    s->mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    s->cond = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    find_entries(s);
    s->buffer = xcalloc(1, (size_t)HASH_BLOCK);
    s->part = xcalloc((size_t)is->all->size, sizeof *s->part);
    s->view = xcalloc((size_t)n, sizeof *s->view);
    for (int i = 0; i < n; i++)
        s->view[i] = (View){p[i].data, p[i].ld, p[i].rest, p[i].scale, p[i].dev};
    if (s->async) {
        open_thread(s);
        job_start(s, touch_snapshot);
    }
    return s;
}

int64_t saver_workspace(const Config *cfg, const TensorPiece *p, int n)
{
    int64_t most = 0;
    for (int i = 0; i < n; i++)
        most = piece_bytes(&p[i]) > most ? piece_bytes(&p[i]) : most;
    return (cfg->verify_saves ? 2 : 1) * (most < HASH_BLOCK ? most : HASH_BLOCK);
}

Saver *saver_open(const Config *cfg, const char *run_dir, Comm *all, const TensorPiece *p, int n, Arena *host)
{
    return open_as(&(Saver){.cfg = cfg, .run_dir = (char *)run_dir, .all = all, .piece = p, .n = n,
                            .async = cfg->async_save, .leads = all->rank == 0, .keep = cfg->save_keep_last,
                            .every = cfg->save_retain_interval, .verifies = (int)cfg->verify_saves},
                   host);
}

/* The snapshot is not that of the saver to disk: a disk may still be writing that one when the next copies
 * are due. */
Saver *saver_open_memory(const Config *cfg, Comm *all, const TensorPiece *p, int n, Arena *host)
{
    return open_as(&(Saver){.cfg = cfg, .run_dir = (char *)memory_folder(), .all = all, .piece = p, .n = n,
                            .memory = 1, .async = 1, .leads = all->rank == comm_mpi_host(),
                            .keep = MEMORY_KEPT, .every = CFG_ABSENT}, host);
}

/* Dies unless the copies find room: those that are kept, and the one that is being written. */
static void check_room(Saver *s)
{
    Comm *all = s->all;
    int64_t *each = xcalloc((size_t)all->size, sizeof *each), room = s->leads ? memory_room() : 0;
    all->wait(all, all->all_gather(all, each, &s->bytes, 1, I64));
    int64_t need = (MEMORY_KEPT + 1) * peers_bytes(s->peers, each, all->size);
    free(each);
    all_ok(all, !s->leads || need <= room, EXIT_RESOURCE, "memory-room", "memory_save_interval needs %.1f MB "
           "in %s, %d copies of what this host keeps of the state, and %.1f MB are free; change: "
           "more hosts, GRIDIRON_SHM=DIR, a larger memory file system, or leave memory_save_interval out",
           (double)need / 1e6, s->run_dir, MEMORY_KEPT + 1, (double)room / 1e6);
}

void saver_start(Saver *s)
{
    Comm *all = s->all;
    char why[WHY], *folder = xasprintf("%s/checkpoints", s->run_dir);
    int ok = !s->leads || ((!s->memory || memory_make(why)) && file_make_dirs(folder, why));
    all_ok(all, ok, EXIT_RESOURCE, "save", "%s; change: %s, a folder that can be written", why, place(s));
    ok = (s->dir = file_open_dir(AT_FDCWD, folder, 0, why)) >= 0;
    all_ok(all, ok, EXIT_RESOURCE, "save", "%s; change: %s, a folder that every rank can write", why,
           place(s));
    free(folder);
    if (s->leads)
        saver_clean(s);
    if (s->memory) {
        s->peers = peers_open(all);
        check_room(s);
    }
    s->job_bytes = s->bytes;
    all->wait(all, all->all_reduce(all, &s->job_bytes, 1, I64, OP_SUM));
}

void saver_close(Saver *s)
{
    saver_wait(s);
    if (s->async) {
        pthread_mutex_lock(&s->mutex);
        s->quit = 1;
        pthread_cond_broadcast(&s->cond);
        pthread_mutex_unlock(&s->mutex);
        pthread_join(s->thread, NULL);
    }
    if (s->dir >= 0)
        close(s->dir);
    if (s->peers)
        peers_close(s->peers);
    free(s->view);
    free(s->part);
    free(s->buffer);
    free(s->entry);
    free(s->run_dir);
    free(s);
}
