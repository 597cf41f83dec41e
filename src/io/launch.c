/* launch -- starts a job of this executable and waits until it has ended */
#define _GNU_SOURCE
#include "launch.h"
#include "base.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* Writes the path of this executable to self. Returns the path of scripts/launch in its tree, on the
 * heap; NULL: it lies in no tree. */
static char *find_launcher(char self[PATH_MAX])
{
    static const char *const up[] = {"", "/..", "/../.."};
    ssize_t n = readlink("/proc/self/exe", self, PATH_MAX - 1);
    if (n < 0)
        die(EXIT_RESOURCE, "self", "cannot read /proc/self/exe: %s; change: mount /proc", strerror(errno));
    self[n] = 0;
    int folder = (int)(strrchr(self, '/') - self);
    for (size_t i = 0; i < sizeof up / sizeof *up; i++) {
        char *path = xasprintf("%.*s%s/scripts/launch", folder, self, up[i]);
        if (!access(path, X_OK))
            return path;
        free(path);
    }
    return NULL;
}

static int to_file(const char *path, int fd)
{
    int f = open(path ? path : "/dev/null", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    return f >= 0 && dup2(f, fd) >= 0;
}

/* Lets mpirun run as root, which it refuses with code 1 and a page. scripts/launch does the same. */
static int root_may(void)
{
    return geteuid() ||
           (!setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1) && !setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1));
}

static _Noreturn void start(char **line, const char *self, const char *out, const char *errors, pid_t parent)
{
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    setpgid(0, 0);                             /* one signal reaches all processes of the job */
    prctl(PR_SET_PDEATHSIG, SIGTERM);          /* the job ends if this process is killed */
    if (getppid() != parent)
        _exit(EXIT_COMM);
    if (null < 0 || dup2(null, 0) < 0 || !to_file(out, 1) || (errors && !to_file(errors, 2)) ||
        setenv("TRAIN", self, 1) || !root_may())
        _exit(EXIT_RESOURCE);
    execvp(line[0], line);
    fprintf(stderr, "error[launch] cannot start %s: %s; change: run the program from its tree, or put mpirun "
            "into the path\n", line[0], strerror(errno));
    _exit(EXIT_RESOURCE);
}

/* ---- waiting for the job ---- */

#define PATIENCE 5.0                           /* seconds from one signal to the next, harder one */

static volatile sig_atomic_t stopping;         /* signal that asks this process to end; 0: none */

static void on_signal(int sig) { stopping = sig; }

static const int asking[] = {SIGINT, SIGTERM, SIGHUP};
enum { ASKING = sizeof asking / sizeof *asking };

/* Waits for the job and returns its exit code. A job over its limit gets SIGTERM, which ends it after
 * its step, SIGTERM again, which ends it at once (scripts/launch), then SIGKILL. */
static int await(pid_t job, double seconds)
{
    static const int ways[] = {SIGTERM, SIGTERM, SIGKILL};
    int status, asked = 0, late = 0;
    double limit = seconds > 0 ? now() + seconds : INFINITY;
    for (pid_t got; (got = waitpid(job, &status, WNOHANG)) != job; usleep(5000)) {
        if (got < 0 && errno != EINTR)
            return EXIT_COMM;
        late |= !asked && now() > limit;
        if ((stopping && !asked) || now() > limit) {
            kill(-job, ways[asked]);
            asked += asked < 2;
            limit = now() + PATIENCE;
        }
    }
    kill(-job, SIGKILL);                       /* processes that the job left behind */
    return late ? LAUNCH_LATE : WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_COMM;
}

/* await; a signal that ends this process ends the job first. */
static int await_or_end(pid_t job, double seconds)
{
    struct sigaction act = {.sa_handler = on_signal}, before[ASKING];
    for (int i = 0; i < ASKING; i++) {
        sigaction(asking[i], NULL, &before[i]);
        if (before[i].sa_handler != SIG_IGN)
            sigaction(asking[i], &act, NULL);
    }
    int code = await(job, seconds);
    for (int i = 0; i < ASKING; i++)
        sigaction(asking[i], &before[i], NULL);
    if (stopping)
        raise(stopping);
    return code;
}

int launch_job(int ranks, int argc, char **argv, const char *out, const char *errors, double seconds)
{
    char self[PATH_MAX], number[16], *launcher = find_launcher(self);
    const char *const plain[] = {"mpirun", "--oversubscribe", "--bind-to", "none", "-n", number, self};
    char **line = xcalloc((size_t)argc + 16, sizeof *line);
    int n = 0;
    snprintf(number, sizeof number, "%d", ranks);
    if (ranks == 1) {
        line[n++] = self;
    } else if (launcher) {
        line[n++] = launcher;
        line[n++] = "-n";
        line[n++] = number;
    } else {
        for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
            line[n++] = (char *)plain[i];
    }
    memcpy(line + n, argv, (size_t)argc * sizeof *argv);
    fflush(NULL);
    pid_t parent = getpid(), job = fork();
    if (job == 0)
        start(line, self, out, errors, parent);
    if (job < 0)
        die(EXIT_RESOURCE, "fork",
            "cannot start a process: %s; change: raise the limit on processes (ulimit -u)", strerror(errno));
    setpgid(job, job);
    int code = await_or_end(job, seconds);
    free(launcher);
    free(line);
    return code;
}
