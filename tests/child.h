/* child -- for tests of code that ends its process: runs a function in a child process and keeps its
 * standard error. */
#ifndef CHILD_H
#define CHILD_H
#include "test.h"
#include <stdarg.h>
#include <sys/wait.h>
#include <unistd.h>

static char said[8192];             /* standard error of the last child */

/* Runs fn(arg) in a child process. Returns its exit code, or 128 + the signal that killed it. */
static int child(void (*fn)(void *), void *arg)
{
    int pipes[2], status;
    size_t n = 0;
    ssize_t r;
    fflush(stdout);
    if (pipe(pipes))
        return -1;
    pid_t pid = fork();
    if (pid == 0) {
        dup2(pipes[1], 2);
        close(pipes[0]);
        fn(arg);
        fflush(stdout);
        _exit(0);
    }
    close(pipes[1]);
    while (n < sizeof said - 1 && (r = read(pipes[0], said + n, sizeof said - 1 - n)) > 0)
        n += (size_t)r;
    said[n] = 0;
    close(pipes[0]);
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int lines(const char *text)
{
    int n = 0;
    for (; *text; text++)
        n += *text == '\n';
    return n;
}

/* Checks that fn(arg) ends with exit code `code` and writes one line that holds every one of the words. */
#define DIES(fn, arg, code, ...)                                                                             \
    do {                                                                                                     \
        const char *words_[] = {__VA_ARGS__};                                                                \
        int rc_ = child(fn, arg);                                                                            \
        CHECK(rc_ == (code) && lines(said) == 1, "exit %d: %s", rc_, said);                                  \
        for (size_t i_ = 0; i_ < sizeof words_ / sizeof *words_; i_++)                                       \
            CHECK(strstr(said, words_[i_]), "'%s' is not in: %s", words_[i_], said);                         \
    } while (0)

/* Runs a shell command that must succeed. */
__attribute__((format(printf, 1, 2))) static inline void shell(const char *fmt, ...)
{
    char line[2048];
    int status = -1;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    pid_t pid = fork();
    if (pid == 0) {
        execl("/bin/sh", "sh", "-c", line, NULL);
        _exit(127);
    }
    waitpid(pid, &status, 0);
    CHECK(status == 0, "%s", line);
}
#endif
