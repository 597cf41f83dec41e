/* host -- how much memory of its host a process may take: what the machine has, and what the control groups
 * allow that a container, a pod or a job of a scheduler puts it in */
#include "device.h"
#include <limits.h>
#include <stdio.h>
#include <string.h>

typedef struct { int64_t all, left; } Room;        /* bytes, in all and still to be taken */

/* How one version of control groups names a group's memory. */
typedef struct {
    const char *mount, *limit, *used;
    const char *cache[2];              /* rows of memory.stat: files, which can be dropped */
} GroupFiles;
static const GroupFiles version1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                    {"total_inactive_file", "total_active_file"}};
static const GroupFiles version2 = {"/sys/fs/cgroup", "memory.max", "memory.current",
                                    {"inactive_file", "active_file"}};

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

/* Narrows the room to that of the group at `path` and of the groups that it is in, up to the mount. Where a
 * container sees the path of its host, the mount alone is there, and is the container's group. */
static void narrow(Room *room, const GroupFiles *v, const char *path)
{
    char folder[PATH_MAX], *cut;
    size_t mount = strlen(v->mount);
    if (snprintf(folder, sizeof folder, "%s%s", v->mount, path) >= (int)sizeof folder)
        return;
    do {
        int64_t limit = number_in(folder, v->limit, NULL, INT64_MAX);      /* of version 2 perhaps `max` */
        int64_t used = number_in(folder, v->used, NULL, 0);
        for (int i = 0; i < 2; i++)
            used -= number_in(folder, "memory.stat", v->cache[i], 0);
        int64_t left = limit - (used > 0 ? used : 0);      /* files are counted ahead of what is used */
        if (limit < room->all)
            room->all = limit;
        if (limit < INT64_MAX && left < room->left)
            room->left = left > 0 ? left : 0;      /* a limit may have been lowered below what is used */
        cut = strrchr(folder + mount, '/');
        if (cut)
            *cut = 0;
    } while (cut);
}

static Room room_now(void)
{
    Room room = {number_in("/proc", "meminfo", "MemTotal", INT64_MAX >> 11) * 1024,
                 number_in("/proc", "meminfo", "MemAvailable", INT64_MAX >> 11) * 1024};
    char line[PATH_MAX + 256], *kinds, *path;
    FILE *f = fopen("/proc/self/cgroup", "re");
    while (f && fgets(line, sizeof line, f)) {     /* NUMBER:KINDS:PATH; version 2 has no kinds */
        line[strcspn(line, "\n")] = 0;
        if (!(kinds = strchr(line, ':')) || !(path = strchr(kinds + 1, ':')))
            continue;
        *path++ = 0;
        if (!kinds[1] || strstr(kinds, "memory"))
            narrow(&room, kinds[1] ? &version1 : &version2, path);
    }
    if (f)
        fclose(f);
    return room;
}

size_t host_size(void) { return (size_t)room_now().all; }
size_t host_left(void) { return (size_t)room_now().left; }
