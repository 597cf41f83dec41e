/* sanitizer -- linked into every program of `make DEBUG=1` and `make DEBUG=thread`: what the checks leave
 * out. Open MPI and what it loads never give back some hundred blocks; they are known by the library that
 * asked for them. Ours stay errors. */
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PLAIN __attribute__((no_sanitize("address", "undefined")))

int dlclose(void *handle);
const char *__asan_default_options(void);
const char *__lsan_default_options(void);
const char *__lsan_default_suppressions(void);
const char *__tsan_default_suppressions(void);

/* Open MPI unloads its plugins before it ends; the stacks of what they leave behind then name no library. */
int dlclose(void *handle)
{
    (void)handle;
    return 0;
}

/* Is this a rank that mpirun started? Asked before the C library and the sanitizer are ready: system calls
 * only. */
PLAIN static int launched(void)
{
    static const char name[] = "OMPI_COMM_WORLD_SIZE=";
    long fd = syscall(SYS_openat, AT_FDCWD, "/proc/self/environ", O_RDONLY), n;
    size_t at = 0;
    int line = 1;                       /* at the head of a variable */
    char c[4096];
    while (name[at] && (n = syscall(SYS_read, fd, c, sizeof c)) > 0)
        for (long i = 0; i < n && name[at]; i++) {
            at = (at || line) && c[i] == name[at] ? at + 1 : 0;
            line = !c[i];
        }
    syscall(SYS_close, fd);
    return !name[at];
}

/* Libraries without frame pointers: the fast unwinder sees only who called malloc, which may be the C
 * library; the other one costs several times a test's time, so only ranks of a launched job have it. And
 * where the thread-local data of loaded libraries lie is a guess of gcc 12's runtime that can be wrong: the
 * leak check then dies. Ours are not loaded, so nothing that we hold is missed. */
PLAIN const char *__asan_default_options(void)
{
    return launched() ? "intercept_tls_get_addr=0:fast_unwind_on_malloc=0:malloc_context_size=12"
                      : "intercept_tls_get_addr=0";
}

const char *__lsan_default_options(void)
{
    return "print_suppressions=0";
}

const char *__lsan_default_suppressions(void)
{
    return "leak:libopen-pal\nleak:libopen-rte\nleak:libmpi\nleak:libpmix\nleak:libevent\nleak:mca_\nleak:"
           "libhwloc\n"
           "leak:libfabric\nleak:libucs\nleak:libibverbs\nleak:libdbus\n";
}

/* Races inside of what Open MPI loads are not ours. And the watch reads the flight record while it is
 * written, as it reads those of other processes, which no sanitizer sees: a number is of 4 or 8 bytes in one
 * piece, and one that is a moment old is as good. */
const char *__tsan_default_suppressions(void)
{
    return "called_from_lib:libopen-pal.so\ncalled_from_lib:libopen-rte.so\ncalled_from_lib:libmpi.so\n"
           "called_from_lib:libpmix.so\ncalled_from_lib:libevent_core\ncalled_from_lib:libevent_pthreads\n"
           "race:mca_\nmutex:mca_\nrace:hang_look\n";
}
