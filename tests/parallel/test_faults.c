/* test_faults -- the executable with a rank that dies or hangs at a chosen moment, for
 * tests/parallel/faults.sh and hangs.sh
 *
 * The linker wraps comm_note and message_advance (Makefile); all else is the program itself.
 *
 * FAULT="RANK SITE ITERATION MICROSECONDS [HOW]": rank RANK (-2: every rank) dies that long after its
 * comm_note of SITE in that iteration. SITE: the letters of an instruction (F, B, SA, R, ...), or "save".
 * FAULT_DIR: folder in which every rank leaves a file named after its process id; the rank that dies also
 * leaves `died`, whose time is the time of its death. HOW, instead of death: segv, die (an error line that
 * names no iteration), stop (SIGSTOP), loop (computes for ever), sleep (waits for a signal that does not come),
 * pipe (reads a FIFO that nobody writes), disk (sleeps in the system where only SIGKILL wakes it, as before a
 * file system that does not answer), thread (another thread keeps the engine's lock), drop (the next message
 * that it sends is lost), nap (sleeps for four seconds and goes on). */
#define _GNU_SOURCE
#include "engine.h"
#include "job.h"
#include <ctype.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

static int rank = -1, victim = -1;
static char site[16], how[16] = "kill";
static long long iteration, delay;
static _Atomic int dropping;           /* bool: the next message is lost */
static _Atomic int held;               /* bool: keep_lock has the lock */

void __real_comm_note(const char *text);
void __wrap_comm_note(const char *text);
int __real_message_advance(Request *r);
int __wrap_message_advance(Request *r);

static void leave_file(const char *name)
{
    static char path[512];
    const char *dir = getenv("FAULT_DIR");
    if (!dir)
        return;
    strncat(strcpy(path, ""), dir, 400);
    strcat(strcat(path, "/"), name);
    close(open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666));
}

static void read_pipe(void)
{
    char path[512], byte;
    snprintf(path, sizeof path, "%s/pipe", getenv("FAULT_DIR"));
    mkfifo(path, 0666);
    int fd = open(path, O_RDWR);           /* its own writer: reading does not end */
    while (read(fd, &byte, 1) < 1) {
    }
}

/* Sleeps in state D: a process waits so for the child of its vfork. */
static void sleep_deep(void)
{
    if (!vfork())
        for (;;)
            pause();
}

static void *keep_lock(void *unused)
{
    engine_lock();
    held = 1;
    for (;;)
        pause();
    return unused;
}

static void strike(int sig)
{
    static volatile double sum;
    pthread_t thread;
    (void)sig;
    leave_file("died");
    if (!strcmp(how, "kill"))
        kill(getpid(), SIGKILL);
    else if (!strcmp(how, "segv"))
        kill(getpid(), SIGSEGV);
    else if (!strcmp(how, "stop"))
        kill(getpid(), SIGSTOP);
    else if (!strcmp(how, "die"))
        die(EXIT_RESOURCE, "memory", "nothing is left; change: nothing");
    else if (!strcmp(how, "pipe"))
        read_pipe();
    else if (!strcmp(how, "disk"))
        sleep_deep();
    else if (!strcmp(how, "nap"))
        usleep(4000000);
    else if (!strcmp(how, "drop"))
        dropping = 1;
    else if (!strcmp(how, "thread"))
        for (pthread_create(&thread, NULL, keep_lock, NULL); !held;)
            usleep(100);
    else
        for (;;)
            if (strcmp(how, "loop"))
                pause();
            else
                sum += 1;
}

int __wrap_message_advance(Request *r)
{
    int one = 1;
    if (r->kind != COMM_SEND || !atomic_compare_exchange_strong(&dropping, &one, 0))
        return __real_message_advance(r);
    return r->done = 1;
}

static void begin(void)
{
    const char *text = getenv("FAULT");
    char pid[16];
    job_launched(&rank);
    snprintf(pid, sizeof pid, "%d", getpid());
    leave_file(pid);
    if (text && sscanf(text, "%d %15s %lld %lld %15s", &victim, site, &iteration, &delay, how) < 4) {
        fprintf(stderr, "FAULT='%s' is not RANK SITE ITERATION MICROSECONDS [HOW]\n", text);
        exit(2);
    }
}

/* 1: the note is the chosen site of the chosen iteration. "B5.0 of iteration 12" is site B of iteration 12,
 * "save of iteration 12" is its site `save`. */
static int is_there(const char *text)
{
    size_t n = strlen(site);
    const char *of = strstr(text, " of iteration ");
    return of && !strncmp(text, site, n) && !isalpha((unsigned char)text[n]) && atoll(of + 14) == iteration;
}

void __wrap_comm_note(const char *text)
{
    if (rank < 0)
        begin();
    __real_comm_note(text);
    if ((rank != victim && victim != -2) || !is_there(text))
        return;
    victim = -1;
    if (!delay) {
        strike(0);
        return;
    }
    signal(SIGALRM, strike);
    setitimer(ITIMER_REAL, &(struct itimerval){.it_value = {delay / 1000000, delay % 1000000}}, NULL);
}
