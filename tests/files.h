/* files -- for tests: files in the folder $WORK, and a child process for code that must end in die(). */
#ifndef FILES_H
#define FILES_H
#include "base.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char *work;
static void work_open(void) { work = getenv("WORK") ? getenv("WORK") : "/tmp"; }

/* Path of `name` in the folder $WORK. */
static char *in_work(const char *name) { return xasprintf("%s/%s", work, name); }

static void put_file(const char *path, const void *p, size_t n)
{
    unlink(path);   /* a file rewritten in place may wait for the disk */
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(p, 1, n, f) != n || fclose(f)) {
        perror(path);
        exit(1);
    }
}

static inline char *get_file(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    char *p = xcalloc(1, 1 << 20);
    *n = f ? fread(p, 1, 1 << 20, f) : 0;
    if (f)
        fclose(f);
    return p;
}

static char said[8192];   /* what the child wrote to standard error */

/* Runs fn(arg) in a child process. Returns 1 when the child ended with exit code `code`. A code other
 * than 0 also takes one error line that holds `part` and "; change: ". */
static inline int child(void (*fn)(void *), void *arg, int code, const char *part)
{
    char *path = in_work("stderr");
    fflush(stdout);
    pid_t pid = fork();
    if (!pid) {
        int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
        dup2(fd, 2);
        dup2(open("/dev/null", O_WRONLY), 1);
        alarm(240);
        fn(arg);
        _exit(0);
    }
    int status;
    waitpid(pid, &status, 0);
    size_t n;
    char *text = get_file(path, &n);
    snprintf(said, sizeof said, "%s", text);
    free(text);
    free(path);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != code)
        return 0;
    char *error = strstr(said, "error[");
    return code == 0 ||
           (error && !strstr(error + 1, "error[") && strstr(error, "; change: ") && strstr(error, part));
}
#endif
