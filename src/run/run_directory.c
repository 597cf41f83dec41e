/* run_directory -- the folder of a run, claimed by one job at a time, for one run */
#define _GNU_SOURCE
#include "run_directory.h"
#include "checkpoint.h"
#include "config_table.h"
#include "memory_copies.h"
#include "source.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- what is there ---- */

static int same_folder(const char *a, const char *b)
{
    struct stat s, t;
    return stat(a, &s) == 0 && stat(b, &t) == 0 && s.st_dev == t.st_dev && s.st_ino == t.st_ino;
}

/* Whether `load` means the run in `path`: by name, as the folder, or as one of its checkpoints. */
static int is_own(const char *load, const char *path)
{
    if (!strcmp(load, "latest") || !strcmp(load, path) || same_folder(load, path))
        return 1;
    char *checkpoints = xasprintf("%s/checkpoints", path), *above = xasprintf("%s/..", load);
    int own = same_folder(above, checkpoints);
    free(checkpoints);
    free(above);
    return own;
}

static int holds(const char *path, const char *name, int64_t bytes)
{
    struct stat st;
    char *file = xasprintf("%s/%s", path, name);
    int ok = stat(file, &st) == 0 && st.st_size >= bytes;
    free(file);
    return ok;
}

static void new_id(char id[RUN_ID]) { snprintf(id, RUN_ID, "%016" PRIx64, file_random()); }

/* ---- claiming ---- */

#define OWNER 128      /* bytes of .lock: "process 12 on a", a line end, a number drawn at random */
#define LEAVING 3.0    /* seconds for the end of a job whose launcher was killed */

/* Locks a file. Who holds it may be about to go, as the ranks of a launcher that was killed a moment ago.
 * Returns 0, with errno set, when it is held for longer or cannot be locked. */
static int flock_soon(int fd)
{
    double end = now() + LEAVING;
    int ok;
    while (!(ok = flock(fd, LOCK_EX | LOCK_NB) == 0) && (errno == EWOULDBLOCK || errno == EINTR) &&
           now() < end)
        usleep(20000);
    return ok;
}

/* Locks PATH/.lock for this process and writes its owner into it. Returns 0, or the exit code and a
 * reason. */
static int lock(RunDirectory *d, char why[WHY])
{
    char *path = xasprintf("%s/.lock", d->path), who[OWNER] = "", host[HOST_NAME], drawn[RUN_ID];
    do
        d->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    while (d->lock < 0 && errno == EINTR);
    free(path);
    if (d->lock < 0)
        return file_errno(why, "cannot open .lock in %s", d->path), EXIT_RESOURCE;
    if (!flock_soon(d->lock)) {
        if (errno != EWOULDBLOCK)
            return file_errno(why, "cannot lock %s", d->path), EXIT_RESOURCE;
        int known = file_read_at(d->lock, ".lock", who, sizeof who - 1, 0, why);
        who[strcspn(who, "\n")] = 0;
        return file_why(why, "another job (%s) is writing in %s; change: wait for the other job, or "
                        "save=DIR, another folder", known ? who : "unknown", d->path), EXIT_CHECKPOINT;
    }
    memset(who, 0, sizeof who);
    new_id(drawn);
    snprintf(who, sizeof who, "process %d on %s\n%s", (int)getpid(), host_name(host), drawn);
    if (!file_write_at(d->lock, ".lock", who, sizeof who, 0, why))
        return EXIT_RESOURCE;
    return fsync(d->lock) ? file_errno(why, "cannot flush .lock in %s", d->path), EXIT_RESOURCE : 0;
}

/* ---- one folder for all ranks ---- */

#define LATE 30.0                  /* seconds: as long may NFS show what was there before (acdirmin) */

/* Whether this rank reads in PATH/.lock what rank 0 has written into it. *locked: whether rank 0's lock
 * keeps this rank from locking it. */
static int sees(const char *path, const char owner[OWNER], int *locked, char why[WHY])
{
    char *name = xasprintf("%s/.lock", path), found[OWNER] = "";
    int fd = open(name, O_RDWR | O_CLOEXEC | O_NOFOLLOW), seen = 0;    /* NFS locks what may be written */
    if (fd < 0)
        file_errno(why, "cannot open %s", name);
    else if (file_read_at(fd, name, found, OWNER, 0, why)) {
        seen = !memcmp(found, owner, OWNER);
        *locked = !seen || flock(fd, LOCK_EX | LOCK_NB) < 0;
        found[strcspn(found, "\n")] = 0;
        file_why(why, "%s is of another job (%s)", name, found);
    }
    if (fd >= 0)
        close(fd);
    free(name);
    return seen;
}

/* Dies unless every rank sees the folder that rank 0 has claimed, for all of them write shards into it.
 * Collective. */
static void see_one_folder(const RunDirectory *d, Comm *all)
{
    char owner[OWNER] = "", why[WHY] = "", host[HOST_NAME];
    int seen = all->rank || file_read_at(d->lock, ".lock", owner, OWNER, 0, why), locked = 1;
    all->wait(all, all->broadcast(all, owner, OWNER / 8, I64, 0));
    for (double end = now() + LATE; all->rank && !(seen = sees(d->path, owner, &locked, why)) && now() < end;)
        usleep(20000);
    all_ok(all, seen, EXIT_RESOURCE, "run-directory", "rank %d on host %s does not see the folder %s that "
           "rank 0 has claimed: %s; change: save=DIR, a folder on a file system that all hosts share",
           all->rank, host_name(host), d->path, why);
    int64_t free_for_all = !locked;
    all->wait(all, all->all_reduce(all, &free_for_all, 1, I64, OP_MAX));
    if (free_for_all && all->rank == 0)
        warn("locks in %s do not hold between ranks (NFS mounted with nolock or local_lock?): nothing keeps "
             "a second job from writing in it", d->path);
}

static int make_and_lock(RunDirectory *d, char why[WHY])
{
    char reason[WHY];
    int code = file_make_dirs(d->path, reason) ? lock(d, reason) : EXIT_RESOURCE;
    if (code)
        file_why(why, "%s%s", reason,
                 code == EXIT_RESOURCE ? "; change: save=DIR, a folder that you may write" : "");
    return code;
}

/* Fills d->id with the id of the run in the folder, from run.json or else from its newest checkpoint.
 * Returns 0 when none is written. */
static int old_id(RunDirectory *d)
{
    char *id = source_run_id(d->path), why[WHY];
    Source s;
    if (!id && source_open_newest(&s, d->path, why)) {
        const char *its = json_string_value(json_object_get(s.m.state, "run_id"));
        id = its ? xstrdup(its) : NULL;
        source_close(&s);
    }
    int known = id && strlen(id) == RUN_ID - 1 && strspn(id, "0123456789abcdef") == RUN_ID - 1;
    if (known)
        memcpy(d->id, id, RUN_ID);
    free(id);
    return known;
}

/* Claims the folder on rank 0 and fills d. Returns 0, or the exit code and a reason with what to
 * change.
 *   copies  in  bool: there are copies in memory */
static int claim(RunDirectory *d, const Config *cfg, int copies, char why[WHY])
{
    const char *load = cfg->load, *begun = getenv("GRIDIRON_BEGUN");
    int code = make_and_lock(d, why), is_begun = begun && same_folder(begun, d->path);
    if (code)
        return code;
    if (is_begun && !holds(d->path, "config.yaml", 1))
        return file_why(why, "the run that this job has begun in %s is not there any more: its file system "
                        "may not be mounted; change: mount it, then start again with load=latest", d->path),
               EXIT_RESOURCE;
    if (holds(d->path, MANIFEST, 0))
        return file_why(why, "save names %s, which is a checkpoint itself; change: save=DIR, another folder",
                        d->path), EXIT_CONFIG;
    d->goes_on = load && !cfg->finetune && is_own(load, d->path);
    d->memory = d->goes_on && copies && (!strcmp(load, "latest") || !holds(load, MANIFEST, 0));
    int on_disk = checkpoint_exists(d->path), saved = on_disk || d->memory;
    d->used = on_disk || (holds(d->path, "metrics.jsonl", 1) && !is_begun);
    if (d->goes_on && cfg->overwrite)
        return file_why(why, "load=%s goes on with the run in %s, and overwrite=true begins another one; "
                        "change: leave one of the two out", load, d->path), EXIT_CONFIG;
    if (is_begun && on_disk && !d->goes_on)
        return file_why(why, "%s holds checkpoints of this job, which its launcher could not see; change: "
                        "load=latest to go on with them", d->path), EXIT_RESOURCE;
    const char *absent = load && strcmp(load, "latest") && access(load, F_OK)
                             ? textf(" load=%s is not there:", load) : "";
    if (d->used && !d->goes_on && !cfg->overwrite)
        return file_why(why, "%s holds a run already, and%s this would be another one; change: load=latest%s "
                        "to go on with it, save=DIR, another folder, or overwrite=true, which moves it aside "
                        "and deletes nothing", d->path, absent, cfg->finetune ? " finetune=false" : ""),
               EXIT_CONFIG;
    d->from = !load || (d->goes_on && !saved) ? NULL : strcmp(load, "latest") ? load : d->path;
    if (d->goes_on && !saved && strcmp(load, "latest"))
        printf("%s holds no checkpoint yet: a fresh start\n", load);
    if (!d->goes_on || !old_id(d))
        new_id(d->id);
    return 0;
}

void run_directory_claim(RunDirectory *d, const Config *cfg, Comm *all)
{
    char why[WHY] = "";
    int64_t said[4] = {0}, id = 0, copy[MEMORY_LISTED];
    *d = (RunDirectory){.path = xstrdup(cfg->save), .lock = -1};
    for (size_t n = strlen(d->path); n > 1 && d->path[n - 1] == '/';)
        d->path[--n] = 0;
    int copies = memory_list(copy, all) > 0, code = all->rank == 0 ? claim(d, cfg, copies, why) : 0;
    all_ok(all, !code, code, code == EXIT_CHECKPOINT ? "save" : "run-directory", "%s", why);
    if (all->rank == 0) {
        said[0] = d->goes_on, said[1] = d->used, said[2] = d->from != NULL, said[3] = d->memory;
        id = (int64_t)strtoull(d->id, NULL, 16);
    }
    all->wait(all, all->broadcast(all, said, 4, I64, 0));
    all->wait(all, all->broadcast(all, &id, 1, I64, 0));
    d->goes_on = said[0], d->used = said[1], d->memory = said[3];
    d->from = !said[2] ? NULL : strcmp(cfg->load, "latest") ? cfg->load : d->path;
    snprintf(d->id, sizeof d->id, "%016" PRIx64, (uint64_t)id);
    d->shared = cfg->save_interval != CFG_ABSENT || cfg->save_at_end || cfg->on_spike == ON_SPIKE_REWIND;
    if (d->shared)
        see_one_folder(d, all);
}

/* ---- beginning ---- */

/* The first of BASE.1, BASE.2, ... that is free; from malloc. */
static char *free_name(const char *base)
{
    struct stat st;
    for (int i = 1;; i++) {
        char *name = xasprintf("%s.%d", base, i);
        if (lstat(name, &st) < 0)
            return name;
        free(name);
    }
}

/* A fresh start over an old run: moves the old folder aside and locks the new one. */
static int replace_run(RunDirectory *d, char why[WHY])
{
    char *to = free_name(d->path);
    int old = d->lock,
        ok = rename(d->path, to) == 0 ? 1 : file_errno(why, "cannot move %s to %s", d->path, to);
    if (ok) {
        printf("the run that was in %s is in %s now\n", d->path, to);
        ok = !make_and_lock(d, why);
        close(old);
    }
    free(to);
    return ok;
}

static int copy_metrics(const char *from, const char *to, char why[WHY])
{
    int64_t size;
    char *file = xasprintf("%s/metrics.jsonl", from);
    int there = access(file, F_OK) == 0, dir = there ? file_open_dir(AT_FDCWD, to, 0, why) : -1, ok = !there;
    char *text = dir >= 0 ? file_read_text(AT_FDCWD, file, 0, (int64_t)1 << 40, &size, why) : NULL;
    if (text)
        ok = file_replace(dir, "metrics.jsonl", text, size, why);
    if (dir >= 0)
        close(dir);
    free(text);
    free(file);
    return ok;
}

/* A resume from an earlier iteration: moves the later checkpoints and a copy of the metrics into a
 * folder of their own, which can be loaded like a run's. */
static int replace_later(const RunDirectory *d, int64_t iteration, char why[WHY])
{
    char *folder = xasprintf("%s/checkpoints", d->path), *base = xasprintf("%s/replaced", d->path),
         *name = NULL, *to = NULL;
    DIR *dir = opendir(folder);
    int ok = dir || errno == ENOENT || file_errno(why, "cannot list %s", folder);
    for (struct dirent *e; ok && dir && (errno = 0, e = readdir(dir));) {
        int64_t later;
        if (!source_iteration(e->d_name, &later) || later <= iteration)
            continue;
        if (!to) {
            name = free_name(base);
            to = xasprintf("%s/checkpoints", name);
            ok = file_make_dirs(to, why) && copy_metrics(d->path, name, why);
        }
        char *from = xasprintf("%s/%s", folder, e->d_name), *there = xasprintf("%s/%s", to, e->d_name);
        if (ok && rename(from, there) < 0)
            ok = file_errno(why, "cannot move %s to %s", from, there);
        free(from);
        free(there);
    }
    if (ok && dir && errno)            /* of readdir: later checkpoints may still be there */
        ok = file_errno(why, "cannot list %s", folder);
    if (ok && to)
        printf("checkpoints after iteration %" PRId64 " are in %s now\n", iteration, name);
    if (dir)
        closedir(dir);
    free(folder);
    free(base);
    free(name);
    free(to);
    return ok;
}

void run_directory_begin(RunDirectory *d, int64_t iteration, Comm *all)
{
    char why[WHY] = "";
    int ok = 1;
    if (all->rank == 0 && d->goes_on)
        ok = replace_later(d, iteration, why);
    else if (all->rank == 0 && d->used)
        ok = replace_run(d, why);
    all_ok(all, ok, EXIT_RESOURCE, "run-directory", "%s; change: save=DIR, another folder", why);
    if (d->shared && d->used && !d->goes_on)
        see_one_folder(d, all);
}

void run_directory_close(RunDirectory *d)
{
    if (d->lock >= 0)
        close(d->lock);
    free(d->path);
}
