/* checkpoint_verify -- a checkpoint that has been written is read back from the disk */
#define _GNU_SOURCE
#include "saver.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* The index in m of this rank's shard of a kind; -1: it has none. */
static int own_shard(const Saver *s, const Manifest *m, int optim)
{
    char name[40];
    shard_name(name, optim, s->all->rank);
    return manifest_shard(m, name);
}

/* Compares this rank's boxes, and on rank 0 which files there are. */
static int compare(const Saver *s, Source *from, char why[WHY])
{
    const Manifest *m = &from->m;
    int own[2] = {own_shard(s, m, 0), own_shard(s, m, 1)};
    int ok = s->all->rank != 0 || source_check_files(from, why);
    for (int i = 0; i < 2; i++)
        if (own[i] >= 0)
            file_drop_cache(from->fd, m->shard[own[i]].name);
    for (int i = 0; ok && i < m->ntensor; i++)
        for (int k = 0; ok && k < m->tensor[i].nbox && !atomic_load(&s->hurry); k++) {
            const StoredBox *b = &m->tensor[i].box[k];
            if (b->shard == own[0] || b->shard == own[1])
                ok = source_verify_box(from, &m->tensor[i], b, why);
        }
    return ok;
}

int saver_verify(Saver *s, char why[WHY])
{
    Source from;
    char *dir = xasprintf("%s/checkpoints/%s", s->run_dir, s->name), manifest[48];
    snprintf(manifest, sizeof manifest, "%s/" MANIFEST, s->name);
    file_drop_cache(s->dir, manifest);
    int ok = source_open(&from, dir, why);
    if (ok) {
        free(from.not_finite);
        from.not_finite = NULL;
        ok = compare(s, &from, why);
        int e = errno;
        source_close(&from);
        errno = e;
    }
    s->checked = ok && !atomic_load(&s->hurry);
    if (!ok && (errno == EMFILE || errno == ENFILE || errno == ENOMEM)) {
        warn("%s is saved, but could not be read back: %s", s->name, why);
        ok = 1;
    }
    free(dir);
    return ok;
}
