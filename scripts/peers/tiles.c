/* tiles -- a preload for PyTorch on machines whose hypervisor hides CPUID leaf 0x1D: PyTorch's matmul
 * library reads the AMX tile palette from that leaf, finds a palette of size zero and dies. This library
 * makes CPUID fault and answers for it: leaves 0x1D and 0x1E as the architecture defines them (8 tiles
 * of 16 rows x 64 bytes), all others as the machine does. It does nothing without AMX, or where leaf
 * 0x1D is not hidden.
 *
 *   gcc -O2 -shared -fPIC tiles.c -o tiles.so; LD_PRELOAD=./tiles.so python ...
 *
 * Intel SDM vol. 2A, CPUID, leaves 1DH and 1EH; arch_prctl(2), ARCH_CPUID. Linux, x86-64. */
#define _GNU_SOURCE
#include <cpuid.h>
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define ARCH_SET_CPUID 0x1012        /* 0: CPUID raises SIGSEGV; 1: it works */

static void answer(int sig, siginfo_t *info, void *context)
{
    greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
    const unsigned char *code = (const unsigned char *)r[REG_RIP];
    (void)info;
    if (code[0] != 0x0f || code[1] != 0xa2) {          /* another fault, which ends the process */
        signal(sig, SIG_DFL);
        return;
    }
    unsigned leaf = (unsigned)r[REG_RAX], sub = (unsigned)r[REG_RCX], a, b, c, d;
    syscall(SYS_arch_prctl, ARCH_SET_CPUID, 1);
    __cpuid_count(leaf, sub, a, b, c, d);
    syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0);
    if (leaf == 0) {
        a = 0x1e;
    } else if (leaf == 0x1d) { /* sub 0: highest palette; 1: total and tile bytes, .. */
        a = sub == 0 ? 1 : sub == 1 ? 8192 | 1024u << 16 : 0;
        b = sub == 1 ? 64 | 8u << 16 : 0;              /* bytes a row, tiles */
        c = sub == 1 ? 16 : 0;                         /* rows */
        d = 0;
    } else if (leaf == 0x1e) {
        a = c = d = 0;
        b = sub == 0 ? 16 | 64u << 8 : 0;              /* largest K and N of a tile product */
    }
    r[REG_RAX] = a, r[REG_RBX] = b, r[REG_RCX] = c, r[REG_RDX] = d;
    r[REG_RIP] += 2;
}

__attribute__((constructor)) static void begin(void)
{
    unsigned a, b, c, d;
    __cpuid(0, a, b, c, d);
    if (a < 7 || a >= 0x1d)
        return;
    __cpuid_count(7, 0, a, b, c, d);
    if (!(d & 1u << 24))                               /* AMX-TILE */
        return;
    struct sigaction s = {.sa_sigaction = answer, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &s, NULL);
    if (syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0)) {
        static const char text[] = "tiles: this kernel cannot make CPUID fault\n";
        if (write(2, text, sizeof text - 1) < 0)
            _exit(1);
    }
}
