/* unfinished -- files and folders that a command writes under names of their own until they are whole */
#define _GNU_SOURCE
#include "unfinished.h"
#include "base.h"
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct Path { struct Path *before; char name[]; } Path;

static Path *_Atomic newest;           /* the last one that was added: a file comes before its folder */

/* Signals that end a command. SIGUSR2 is scripts/launch's SIGTERM, SIGUSR1 asks for a save, of which there is
 * none. */
static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
enum { SIGNALS = sizeof signals / sizeof *signals };
static struct sigaction before[SIGNALS];       /* what the signals did before the first unfinished_add */

char *unfinished_name(const char *path, uint64_t drawn)
{
    return xasprintf("%s.%016" PRIx64 ".tmp", path, drawn);
}

static void remove_all(void)
{
    for (const Path *p = newest; p; p = p->before)
        if (unlink(p->name))
            rmdir(p->name);
}

static void restore(int sig)
{
    for (int i = 0; i < SIGNALS; i++)
        if (signals[i] == sig)
            sigaction(sig, &before[i], NULL);
}

static void on_signal(int sig)
{
    remove_all();
    restore(sig);
    raise(sig);
}

/* Sets what the signals do, but for those that were ignored before. */
static void on_signals(void (*handler)(int))
{
    struct sigaction act = {.sa_handler = handler, .sa_flags = SA_RESTART};
    for (int i = 0; i < SIGNALS; i++)
        if (before[i].sa_handler != SIG_IGN)
            sigaction(signals[i], &act, NULL);
}

void unfinished_add(const char *path)
{
    size_t n = strlen(path) + 1;
    Path *p = xcalloc(1, sizeof *p + n);
    memcpy(p->name, path, n);
    p->before = newest;
    newest = p;
    if (p->before)
        return;
    die_removes(remove_all);
    for (int i = 0; i < SIGNALS; i++)
        sigaction(signals[i], NULL, &before[i]);
    on_signals(on_signal);
}

void unfinished_commit(void) { on_signals(SIG_IGN); }

void unfinished_end(void)
{
    Path *p = newest;
    newest = NULL;
    for (int i = 0; p && i < SIGNALS; i++)
        restore(signals[i]);
    die_removes(NULL);
    for (Path *next; p; p = next) {
        next = p->before;
        free(p);
    }
}
