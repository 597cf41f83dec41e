/* crash -- the error line and the calls of a crash. All of it runs inside a signal handler, in a process that
 * may be broken: no allocation, no stdio, one write. */
#define _GNU_SOURCE
#include "crash.h"
#include "hang.h"
#include "job.h"
#include <dlfcn.h>
#include <errno.h>
#include <elf.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <ucontext.h>
#include <unistd.h>

enum { FRAMES = 48, STACK = 64 << 10 };
enum { LATE = 50 };        /* s: a rank that crashes as it leaves waits so long for the others' work */

static uintptr_t load_bias;                    /* address at which the executable is loaded */
static char stack[STACK];                      /* of the handler: the thread's own may have overflowed */
static _Atomic pid_t crashed;                  /* the thread that prints; 0: none */

static const struct { int number; const char *name; } signals[] = {
    {SIGSEGV, "SIGSEGV"}, {SIGBUS, "SIGBUS"}, {SIGILL, "SIGILL"}, {SIGFPE, "SIGFPE"}, {SIGABRT, "SIGABRT"},
};
enum { SIGNALS = sizeof signals / sizeof *signals };

/* ---- text, without stdio ---- */

typedef struct { char at[8192]; size_t n; } Text;

static void put(Text *t, const char *s)
{
    while (*s && t->n < sizeof t->at - 1)      /* one byte is left for the last newline */
        t->at[t->n++] = *s++;
}

static void put_number(Text *t, uint64_t x, unsigned base)
{
    char digits[24], *p = digits + sizeof digits - 1;
    *p = 0;
    do
        *--p = "0123456789abcdef"[x % base];
    while (x /= base);
    if (base == 16)
        put(t, "0x");
    put(t, p);
}

/* ---- names of functions, static ones too, from the executable's symbol table ---- */

typedef struct { const Elf64_Sym *symbol; size_t n; const char *names; } Symbols;

static Symbols open_symbols(void)
{
    Symbols s = {0};
    struct stat st;
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st))
        return s;
    const char *file = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (file == MAP_FAILED)
        return s;
    const Elf64_Ehdr *head = (const void *)file;
    const Elf64_Shdr *section = (const void *)(file + head->e_shoff);
    for (int i = 0; i < head->e_shnum; i++)
        if (section[i].sh_type == SHT_SYMTAB)
            s = (Symbols){(const void *)(file + section[i].sh_offset), section[i].sh_size / sizeof(Elf64_Sym),
                          file + section[section[i].sh_link].sh_offset};
    return s;
}

/* Writes the function at an address of the executable. 0: it has none there. */
static int put_symbol(Text *t, const Symbols *s, uintptr_t at)
{
    for (size_t i = 0; i < s->n; i++) {
        const Elf64_Sym *y = &s->symbol[i];
        if (ELF64_ST_TYPE(y->st_info) == STT_FUNC && at >= y->st_value && at - y->st_value < y->st_size) {
            put(t, s->names + y->st_name);
            put(t, "+");
            put_number(t, at - y->st_value, 16);
            return 1;
        }
    }
    return 0;
}

static void put_frame(Text *t, const Symbols *s, int number, uintptr_t at)
{
    Dl_info where;
    put(t, "    #");
    put_number(t, (uint64_t)number, 10);
    put(t, " ");
    if (put_symbol(t, s, at - load_bias)) {
        /* found */
    } else if (dladdr((void *)at, &where) && where.dli_fname) {
        const char *slash = strrchr(where.dli_fname, '/');
        put(t, where.dli_sname ? where.dli_sname : slash ? slash + 1 : where.dli_fname);
        put(t, "+");
        put_number(t, at - (uintptr_t)(where.dli_sname ? where.dli_saddr : where.dli_fbase), 16);
    } else
        put_number(t, at, 16);
    put(t, "\n");
}

/* Writes where the signal came and the calls that led there. The frames before those are the handler's. */
static void put_calls(Text *t, const void *context)
{
    void *frame[FRAMES];
    int n = backtrace(frame, FRAMES), first = 0;
    Symbols s = open_symbols();
#ifdef __x86_64__
    uintptr_t pc = (uintptr_t)((const ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
#else
    uintptr_t pc = (uintptr_t)((const ucontext_t *)context)->uc_mcontext.pc;
#endif
    for (int i = 0; i < n && !first; i++)
        first = (uintptr_t)frame[i] == pc ? i + 1 : 0;
    put_frame(t, &s, 0, pc);
    for (int i = first; i < n; i++)    /* a return address may lie behind its function: - 1 */
        put_frame(t, &s, i - first + 1, (uintptr_t)frame[i] - 1);
}

static void put_cause(Text *t, int sig, const siginfo_t *info)
{
    int i = 0;
    while (i < SIGNALS - 1 && signals[i].number != sig)
        i++;
    put(t, signals[i].name);
    put(t, " (signal ");
    put_number(t, (uint64_t)sig, 10);
    if (info->si_code <= 0 && info->si_pid != getpid()) {
        put(t, ", sent by process ");
        put_number(t, (uint64_t)info->si_pid, 10);
    } else if (info->si_code > 0 && sig != SIGABRT) {
        put(t, sig == SIGSEGV || sig == SIGBUS ? ", address " : ", at ");
        put_number(t, (uintptr_t)info->si_addr, 16);
    }
    put(t, ")");
}

/* The line of a crash, and its calls.
 *   late     in    bool: the work of the job is done */
static void put_crash(Text *t, int late, int sig, const siginfo_t *info, const void *context)
{
    put(t, late ? "warning: " : "error[crashed] ");
    if (*job_place()) {
        put(t, "[");
        put(t, job_place());
        put(t, "] ");
    }
    put_cause(t, sig, info);
    if (late)
        put(t, " as it left MPI, its work done; change: nothing in this run, see which library the calls "
               "below name\n");
    else {
        put(t, " in ");
        put(t, job_doing());
        put(t, "; change: please report this line and the calls below it with your config\n");
    }
    put_calls(t, context);
    t->at[t->n - 1] = '\n';
}

static void on_crash(int sig, siginfo_t *info, void *context)
{
    static Text t;
    pid_t nobody = 0, me = gettid();
    if (!atomic_compare_exchange_strong(&crashed, &nobody, me)) {
        if (nobody == me)                      /* the handler itself crashed */
            _exit(EXIT_BUG);
        for (;;)
            pause();                           /* the first thread ends the process */
    }
    signal(SIGALRM, SIG_DFL);
    alarm(10 + LATE);                          /* whatever state the process is in, it ends */
    int late = job_left() && job_all_left(LATE), speaks = late || job_claim(EXIT_BUG);
    alarm(10);
    if (speaks) {
        put_crash(&t, late, sig, info, context);
        if (write(2, t.at, t.n) < 0)
            _exit(EXIT_BUG);
    }
    if (t.n && !late) {
        job_claimed(EXIT_BUG);
        flight_fate(job_local(), "crashed");
        flight_save(EXIT_BUG);
    }
    _exit(EXIT_BUG);
}

/* Writes this thread's calls to the flight record: another rank asks for them because this one hangs. */
static void on_question(int sig, siginfo_t *info, void *context)
{
    static Text t;
    int saved = errno;
    (void)sig, (void)info;
    t.n = 0;
    put_calls(&t, context);
    flight_answer(t.at, t.n);
    errno = saved;
}

static int first_object(struct dl_phdr_info *info, size_t size, void *bias)
{
    (void)size;
    *(uintptr_t *)bias = info->dlpi_addr;
    return 1;
}

void crash_listen(void)
{
    void *frame[1];
    stack_t own = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction act = {.sa_sigaction = on_crash, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    dl_iterate_phdr(first_object, &load_bias);
    backtrace(frame, 1);                       /* loads its library now, not in the handler */
    sigaltstack(&own, NULL);
    sigfillset(&act.sa_mask);
    struct sigaction question = {.sa_sigaction = on_question, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigaction(HANG_SIGNAL, &question, NULL);
    for (int i = 0; i < SIGNALS; i++)          /* in the place of a library's (UCX, of Open MPI 5) */
        sigaction(signals[i].number, &act, NULL);
}
