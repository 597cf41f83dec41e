/* host -- how much memory and processor time of its host a process may take: what the machine has, and what
 * the control groups allow that a container, a pod or a job of a scheduler puts it in */
#include "device.h"
#include <limits.h>
#include <stdio.h>
#include <string.h>

typedef struct { int64_t all, left; } Room;        /* bytes, in all and still to be taken */

/* How one version of control groups names what it counts of a group's memory. */
typedef struct {
    const char *limit, *used;
    const char *cache[2];              /* rows of memory.stat: files, which can be dropped */
} GroupFiles;
static const GroupFiles version1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                    {"total_inactive_file", "total_active_file"}};
static const GroupFiles version2 = {"memory.max", "memory.current", {"inactive_file", "active_file"}};

/* Returns the number behind `key` in a file, at its start with key NULL; `absent` where there is none. */
static int64_t number_in(const char *folder, const char *name, const char *key, int64_t absent)
{
    char path[PATH_MAX], line[256];
    int64_t n = absent;
    size_t skip = key ? strlen(key) : 0;
    int whole = snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path;
    FILE *f = whole ? fopen(path, "re") : NULL;
    while (f && fgets(line, sizeof line, f))
        if (!key || (!strncmp(line, key, skip) && strchr(" :", line[skip]))) {
            sscanf(line + skip + (line[skip] == ':'), "%ld", &n);
            break;
        }
    if (f)
        fclose(f);
    return n;
}

/* Narrows the room to that of one group. */
static void narrow_room(void *to, int version, const char *folder)
{
    Room *room = to;
    const GroupFiles *v = version == 1 ? &version1 : &version2;
    int64_t limit = number_in(folder, v->limit, NULL, INT64_MAX);      /* of version 2 perhaps `max` */
    int64_t used = number_in(folder, v->used, NULL, 0);
    for (int i = 0; i < 2; i++)
        used -= number_in(folder, "memory.stat", v->cache[i], 0);
    int64_t left = limit - (used > 0 ? used : 0);      /* files are counted ahead of what is used */
    if (limit < room->all)
        room->all = limit;
    if (limit < INT64_MAX && left < room->left)
        room->left = left > 0 ? left : 0;      /* a limit may have been lowered below what is used */
}

/* Lowers a number of cores to one group's quota, rounded up: us of processor time in each period. */
static void narrow_cores(void *to, int version, const char *folder)
{
    int *cores = to;
    char text[24];
    int64_t quota = number_in(folder, version == 1 ? "cpu.cfs_quota_us" : "cpu.max", NULL, -1);
    snprintf(text, sizeof text, "%ld", quota);         /* cpu.max is `QUOTA PERIOD`, or `max PERIOD` */
    int64_t period = version == 1 ? number_in(folder, "cpu.cfs_period_us", NULL, 0)
                                  : number_in(folder, "cpu.max", text, 0);
    if (quota > 0 && period > 0 && (quota - 1) / period + 1 < *cores)
        *cores = (int)((quota - 1) / period + 1);
}

/* Whether `kind` is among the kinds of a line of /proc/self/cgroup, which begin with a colon. */
static int is_among(const char *kinds, const char *kind)
{
    size_t n = strlen(kind);
    for (const char *at = kinds; at; at = strchr(at + 1, ','))
        if (!strncmp(at + 1, kind, n) && (at[1 + n] == ',' || !at[1 + n]))
            return 1;
    return 0;
}

/* Calls narrow(to, ..) for the group of this process at `path` below the mount and for the groups that it is
 * in, up to the mount. Where a container sees the path of its host, the mount alone is there, and is the
 * container's group. */
static void climb(int version, const char *mount, const char *path,
                  void (*narrow)(void *to, int version, const char *folder), void *to)
{
    char folder[PATH_MAX], *cut;
    if (snprintf(folder, sizeof folder, "%s%s", mount, path) >= (int)sizeof folder)
        return;
    do {
        narrow(to, version, folder);
        cut = strrchr(folder + strlen(mount), '/');
        if (cut)
            *cut = 0;
    } while (cut);
}

/* The same for all groups that count `kind`. */
static void each_group(const char *kind, void (*narrow)(void *to, int version, const char *folder), void *to)
{
    char line[PATH_MAX + 256], mount[64], *kinds, *path;
    FILE *f = fopen("/proc/self/cgroup", "re");
    snprintf(mount, sizeof mount, "/sys/fs/cgroup/%s", kind);
    while (f && fgets(line, sizeof line, f)) {     /* NUMBER:KINDS:PATH; version 2 has no kinds */
        line[strcspn(line, "\n")] = 0;
        if (!(kinds = strchr(line, ':')) || !(path = strchr(kinds + 1, ':')))
            continue;
        *path++ = 0;
        if (!kinds[1])
            climb(2, "/sys/fs/cgroup", path, narrow, to);
        else if (is_among(kinds, kind))
            climb(1, mount, path, narrow, to);
    }
    if (f)
        fclose(f);
}

static Room room_now(void)
{
    Room room = {number_in("/proc", "meminfo", "MemTotal", INT64_MAX >> 11) * 1024,
                 number_in("/proc", "meminfo", "MemAvailable", INT64_MAX >> 11) * 1024};
    each_group("memory", narrow_room, &room);
    return room;
}

size_t host_size(void) { return (size_t)room_now().all; }
size_t host_left(void) { return (size_t)room_now().left; }

int host_cores(int most)
{
    each_group("cpu", narrow_cores, &most);
    return most;
}
