/* test_faults -- the executable with a rank that kills itself at a chosen moment, for
 * tests/parallel/faults.sh
 *
 * The linker wraps comm_note (Makefile); all else is the program itself.
 *
 * FAULT="RANK SITE ITERATION MICROSECONDS": rank RANK (-2: every rank) dies that long after its comm_note
 * of SITE in that iteration. SITE: the letters of an instruction (F, B, SA, R, ...), or "save". FAULT_DIR:
 * folder in which every rank leaves a file named after its process id; the rank that dies also leaves
 * `died`, whose time is the time of its death. */
#define _GNU_SOURCE
#include "comm.h"
#include "job.h"
#include <ctype.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

static int rank = -1, victim = -1;
static char site[16];
static long long iteration, delay;

void __real_comm_note(const char *text);
void __wrap_comm_note(const char *text);

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

static void die_now(int sig)
{
    (void)sig;
    leave_file("died");
    kill(getpid(), SIGKILL);
}

static void begin(void)
{
    const char *text = getenv("FAULT");
    char pid[16];
    job_launched(&rank);
    snprintf(pid, sizeof pid, "%d", getpid());
    leave_file(pid);
    if (text && sscanf(text, "%d %15s %lld %lld", &victim, site, &iteration, &delay) != 4) {
        fprintf(stderr, "FAULT='%s' is not RANK SITE ITERATION MICROSECONDS\n", text);
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
    if (!delay)
        die_now(0);
    signal(SIGALRM, die_now);
    setitimer(ITIMER_REAL, &(struct itimerval){.it_value = {delay / 1000000, delay % 1000000}}, NULL);
}
