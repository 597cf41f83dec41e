/* test_host -- what a process may take of its host's memory and processor time: by files of the machine and
 * of control groups of both versions, which the test writes and which are read in the place of those in /proc
 * and /sys */
#define _GNU_SOURCE
#include "device.h"
#include "pool.h"
#include "test.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char root[256];                 /* a folder that stands for / */

FILE *fopen(const char *path, const char *mode)
{
    static FILE *(*real)(const char *, const char *);
    char there[4096];
    int moved = *root && (!strncmp(path, "/proc/", 6) || !strncmp(path, "/sys/", 5));
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "fopen");
    snprintf(there, sizeof there, "%s%s", moved ? root : "", path);
    return real(there, mode);
}

static void host(const char *name) { snprintf(root, sizeof root, "%s/%s", getenv("WORK"), name); }

/* Writes a file of the host, and the folders that it is in. */
static void put(const char *folder, const char *name, const char *text)
{
    char *there = xasprintf("%s%s/%s", root, folder, name);
    for (char *at = there + 1; (at = strchr(at, '/')); at++) {
        *at = 0;
        mkdir(there, 0700);
        *at = '/';
    }
    FILE *f = fopen(there, "w");
    BUG_ON(!f || fputs(text, f) < 0 || fclose(f));
    free(there);
}

/* Writes what a group of version 1 or 2 has: its limit, what it uses, and how much of that are files. */
static void group(int version, const char *path, const char *limit, const char *used, int files)
{
    const char *before = version == 1 ? "total_" : "";
    char *folder = xasprintf("/sys/fs/cgroup%s%s", version == 1 ? "/memory" : "", path);
    char *stat = xasprintf("inactive_anon 7\ninactive_file_else 5\n%sinactive_file %d\n%sactive_file 1000\n",
                           before, files - 1000, before);
    put(folder, version == 1 ? "memory.limit_in_bytes" : "memory.max", limit);
    put(folder, version == 1 ? "memory.usage_in_bytes" : "memory.current", used);
    put(folder, "memory.stat", stat);
    free(stat);
    free(folder);
}

static void machine(const char *groups)
{
    put("/proc", "meminfo", "MemTotal:       16000000 kB\nMemFree:         1000000 kB\n"
        "MemAvailable:   12000000 kB\n");
    if (groups)
        put("/proc/self", "cgroup", groups);
}

static void holds(size_t all, size_t left)
{
    CHECK(host_size() == all && host_left() == left, "%s: %zu bytes, %zu left; not %zu and %zu", root,
          host_size(), host_left(), all, left);
}

static void runs_on(int cores)
{
    CHECK(host_cores(64) == cores, "%s: %d cores, not %d", root, host_cores(64), cores);
    CHECK(pool_cores() <= cores, "%s: a pool of %d cores, not %d", root, pool_cores(), cores);
}

/* The quota of a group of version 1, in us of each 100,000. */
static void put_quota(const char *group, const char *us)
{
    put(group, "cpu.cfs_quota_us", us);
    put(group, "cpu.cfs_period_us", "100000\n");
}

/* Processor time: the least quota of a group and of those that it is in, in whole cores. */
static void quotas(void)
{
    host("no-quota");
    machine("0::/user/session\n");
    put("/sys/fs/cgroup/user/session", "cpu.max", "max 100000\n");
    runs_on(64);
    host("quota-2");
    machine("0::/job/step/task\n");
    put("/sys/fs/cgroup/job/step/task", "cpu.max", "max 100000\n");
    put("/sys/fs/cgroup/job/step", "cpu.max", "50000 50000\n");
    put("/sys/fs/cgroup/job", "cpu.max", "400000 100000\n");
    runs_on(1);
    host("quota-rounded-up");
    machine("0::/\n");
    put("/sys/fs/cgroup", "cpu.max", "250000 100000\n");
    runs_on(3);
    host("quota-small");
    machine("0::/\n");
    put("/sys/fs/cgroup", "cpu.max", "1000 100000\n");
    runs_on(1);
    host("quota-1");                   /* the path is the host's; cpuset and cpuacct are other kinds */
    machine("12:cpuset:/other\n9:cpuacct,cpu:/docker/1\n0::/\n");
    put_quota("/sys/fs/cgroup/cpu", "200000\n");
    put_quota("/sys/fs/cgroup/cpu/other", "100000\n");
    runs_on(2);
    host("no-quota-1");
    machine("9:cpu,cpuacct:/\n");
    put_quota("/sys/fs/cgroup/cpu", "-1\n");
    runs_on(64);
}

int main(void)
{
    quotas();
    const size_t all = 16000000 * (size_t)1024, left = 12000000 * (size_t)1024;
    host("no-groups");
    machine(NULL);
    holds(all, left);
    host("no-limits");
    machine("0::/user/session\n");
    group(2, "/user/session", "max\n", "5000000\n", 2000);
    holds(all, left);
    host("version-2");                 /* files that are kept are no use of it */
    machine("0::/job/step/task\n");
    group(2, "/job/step/task", "max\n", "500000000\n", 2000);
    group(2, "/job/step", "3000000000\n", "1000000000\n", 200000000);
    group(2, "/job", "4000000000\n", "3900000000\n", 1000);
    holds(3000000000, 100001000);
    host("container");                 /* the path is the host's; its own group is mounted */
    machine("12:cpu,cpuacct:/docker/1\n9:name=systemd:/docker/1\n4:memory:/docker/1\n");
    group(1, "", "2000000000\n", "300000000\n", 100000000);
    holds(2000000000, 1800000000);
    host("version-1");
    machine("4:cpuset,memory:/pods/1\n0::/\n");
    group(1, "/pods/1", "2000000000\n", "2100000000\n", 1000);
    group(1, "", "9223372036854771712\n", "9000000000\n", 1000);
    holds(2000000000, 0);
    host("files-ahead");               /* the kernel counts files ahead of what is used; this is no limit */
    machine("4:memory:/\n");
    group(1, "/", "9223372036854771712\n", "200000000\n", 200100000);
    holds(all, left);
    return test_end();
}
