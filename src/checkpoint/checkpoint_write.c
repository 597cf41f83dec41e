/* checkpoint_write -- the files of a save: shards, manifest, the folder's name, deletion of old
 * checkpoints */
#define _GNU_SOURCE
#include "flight.h"
#include "saver.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

/* Position in an entry's bytes, which go over its pieces in order. */
typedef struct { const Saver *s; int piece; int64_t row, col; } Cursor;

static void cursor_read(Cursor *c, char *to, int64_t bytes)
{
    while (bytes) {
        const TensorPiece *p = &c->s->piece[c->piece];
        const View *v = &c->s->view[c->piece];
        const int64_t size = (int64_t)dtype_size(p->type);
        int64_t run = v->ld == p->cols ? (p->rows - c->row) * p->cols - c->col : p->cols - c->col;
        run = run * size < bytes ? run : bytes / size;
        TensorPiece at = *p;
        at.data = (char *)v->p, at.rest = (int16_t *)v->rest, at.scale = (uint8_t *)v->scale, at.dev = v->dev;
        piece_get(&at, c->row * v->ld + c->col, run, to);
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
    const TensorPiece *p = &s->piece[e->first];
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
        flight_moved();                /* a slow disk is no hang */
    }
    if (ok)
        manifest_part_box(s->part[s->all->rank], file, p->name, p->type, p->ndim, p->shape, &box);
    free(box.hash);
    return ok;
}

/* Writes a shard: this rank's entries for the optim or the model file. No file where there are none. */
static int write_shard(Saver *s, int dir, int optim, char why[WHY])
{
    StTensor *t = xcalloc((size_t)s->nentry, sizeof *t);
    int *which = xcalloc((size_t)s->nentry, sizeof *which), n = 0, ok = 1;
    char file[40], step[24], rank[12];
    StWriter w;
    shard_name(file, optim, s->all->rank);
    snprintf(step, sizeof step, "%" PRId64, s->iteration);
    snprintf(rank, sizeof rank, "%d", s->all->rank);
    for (int i = 0; i < s->nentry; i++) {
        const TensorPiece *p = &s->piece[s->entry[i].first];
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
                manifest_part_file(s->part[s->all->rank], file, bytes, header);
        }
    }
    free(which);
    free(t);
    return ok;
}

int saver_write(Saver *s, char why[WHY])
{
    if (mkdirat(s->dir, s->tmp, 0777) < 0 && errno != EEXIST)       /* another rank may have made it */
        return file_errno(why, "cannot make the folder %s", s->tmp);
    int dir = file_open_dir(s->dir, s->tmp, 1, why), ok = dir >= 0;
    if (s->teller)
        s->teller->read_wait(s->teller, s->ticket);
    ok = ok && write_shard(s, dir, 0, why) && write_shard(s, dir, 1, why) && file_sync_dir(dir, s->tmp, why);
    if (dir >= 0)
        close(dir);
    return ok;
}

/* Renames a checkpoint to iter_N.trash, flushes the parent, then removes it: an interrupted deletion
 * leaves no half checkpoint under its name. */
static int trash(Saver *s, const char *name, char why[WHY])
{
    char to[64];
    snprintf(to, sizeof to, "%s.trash", name);
    if (renameat(s->dir, name, s->dir, to) < 0)
        return file_errno(why, "cannot rename %s to %s", name, to);
    return file_sync_dir(s->dir, "checkpoints", why) && file_remove_dir(s->dir, to, why);
}

/* Deletes what save_keep_last and save_retain_interval do not keep; with verify_saves never the newest
 * verified checkpoint, and nothing before one is verified. */
static int retain(Saver *s, char why[WHY])
{
    int64_t keep = s->keep, every = s->every, good = s->verifies ? s->verified : -1, *list = NULL, it;
    int n = 0, ok = 1;
    if ((keep == CFG_ABSENT && every == CFG_ABSENT) || (s->verifies && good < 0))
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
        qsort(list, (size_t)n, sizeof *list, source_newest_first);
    for (int64_t i = keep; ok && i < n; i++) {
        char name[40];
        snprintf(name, sizeof name, "iter_%07" PRId64, list[i]);
        if (list[i] != s->iteration && list[i] != good && (every == CFG_ABSENT || list[i] % every))
            ok = trash(s, name, why);
    }
    free(list);
    return ok;
}

/* Renames a finished folder to its name on a file system whose renameat2 has no flags (NFS, Lustre). A
 * checkpoint that has the name already is renamed to iter_N.old first, and gets its name back if the other
 * one cannot take its place, from saver_clean if need be. */
static int publish_plainly(Saver *s, char why[WHY])
{
    char old[64];
    snprintf(old, sizeof old, "%s.old", s->name);
    int there = faccessat(s->dir, s->name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
    if (there && renameat(s->dir, s->name, s->dir, old) < 0)
        return file_errno(why, "cannot rename %s to %s", s->name, old);
    if (renameat(s->dir, s->tmp, s->dir, s->name) < 0) {
        file_errno(why, "cannot rename %s to %s", s->tmp, s->name);
        return there && renameat(s->dir, old, s->dir, s->name) < 0
                   ? file_errno(why, "cannot rename %s to %s", old, s->name) : 0;
    }
    return file_sync_dir(s->dir, "checkpoints", why) && (!there || file_remove_dir(s->dir, old, why));
}

/* Renames a finished folder to its name. A checkpoint that has the name already (the same step, saved
 * again after a resume) is exchanged for it, so that a whole checkpoint has the name at every moment. */
static int publish(Saver *s, char why[WHY])
{
    if (renameat2(s->dir, s->tmp, s->dir, s->name, RENAME_NOREPLACE) == 0)
        return file_sync_dir(s->dir, "checkpoints", why);
    if (errno == EEXIST && renameat2(s->dir, s->tmp, s->dir, s->name, RENAME_EXCHANGE) == 0)
        return file_sync_dir(s->dir, "checkpoints", why) && trash(s, s->tmp, why);
    return errno == EINVAL ? publish_plainly(s, why)
                           : file_errno(why, "cannot rename %s to %s", s->tmp, s->name);
}

int saver_commit(Saver *s, char why[WHY])
{
    if (!s->text)
        s->text = manifest_text(s->part, s->all->size, s->iteration, s->state, &s->text_bytes);
    int dir = file_open_dir(s->dir, s->tmp, 1, why), ok = dir >= 0;
    if (ok) {
        int fd = file_create(dir, MANIFEST, 1, why);
        ok = fd >= 0;
        if (ok && !file_write_at(fd, MANIFEST, s->text, s->text_bytes, 0, why)) {
            close(fd);
            ok = 0;
        } else if (ok) {
            ok = file_sync_close(fd, MANIFEST, why) && file_sync_dir(dir, s->tmp, why);
        }
        close(dir);
    }
    if (!ok || !publish(s, why))
        return 0;
    char line[48], soft[WHY];
    int n = snprintf(line, sizeof line, "%s\n", s->name);
    if (!file_replace(s->dir, "latest", line, n, soft))
        warn("%s is saved, but the hint `latest` is not: %s", s->name, soft);
    return 1;
}

int saver_retain(Saver *s, char why[WHY])
{
    if (!retain(s, why))
        warn("%s is saved, but an old checkpoint could not be deleted: %s", s->name, why);
    saver_clean(s);
    return 1;
}

int saver_bury(Saver *s, char why[WHY])
{
    char to[48];
    snprintf(to, sizeof to, "%s.damaged", s->name);
    if (!file_remove_dir(s->dir, to, why))
        return 0;
    return renameat(s->dir, s->name, s->dir, to) < 0 ? file_errno(why, "cannot rename %s to %s", s->name, to)
                                                     : file_sync_dir(s->dir, "checkpoints", why);
}

/* Gives a checkpoint that publish_plainly has set aside its name back, if no other has taken it. */
static int put_back(Saver *s, const char *old)
{
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)(strlen(old) - strlen(".old")), old);
    return faccessat(s->dir, name, F_OK, AT_SYMLINK_NOFOLLOW) < 0 && renameat(s->dir, old, s->dir, name) == 0;
}

void saver_clean(Saver *s)
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
        if (!dot || strncmp(e->d_name, "iter_", 5) || (!strcmp(dot, ".old") && put_back(s, e->d_name)))
            continue;
        if ((!strcmp(dot, ".tmp") || !strcmp(dot, ".trash") || !strcmp(dot, ".old")) &&
            !file_remove_dir(s->dir, e->d_name, why))
            warn("a leftover in %s/checkpoints stays: %s", s->run_dir, why);
    }
    closedir(d);
}
