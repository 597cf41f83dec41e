/* modes -- the floating-point modes of a thread, compared with those that results rest on */
#include "modes.h"
#include "base.h"
#include <fenv.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* What differs, as bits. ROUNDS has two; they hold the direction. */
enum { ROUNDS = 3, FLUSHES = 4, NO_DENORMALS = 8, TRAPS = 16, X87 = 32 };

#if defined __x86_64__
/* Of MXCSR: bit 6, denormals are zero; 7 to 12, exceptions are masked; 13 and 14, rounding; 15, flush to
 * zero. Of the x87 control word, which text and numbers of the C library are read and written with: 0 to 5,
 * exceptions are masked; 8 and 9, precision; 10 and 11, rounding. */
static uint32_t differing(void)
{
    uint32_t sse = __builtin_ia32_stmxcsr();
    uint16_t x87;
    __asm__ volatile("fnstcw %0" : "=m"(x87));
    return (sse >> 13 & ROUNDS) | (sse >> 15 & 1) * FLUSHES | (sse >> 6 & 1) * NO_DENORMALS |
           ((sse & 0x1f80) != 0x1f80) * TRAPS | ((x87 & 0xf3f) != 0x33f) * X87;
}
static const char *const direction[] = {"", "down", "up", "toward zero"};
#elif defined __aarch64__
/* Of FPCR: bits 8 to 12 and 15, exceptions trap; 22 and 23, rounding; 24, flush to zero, inputs too. */
static uint32_t differing(void)
{
    uint64_t control;
    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    return (uint32_t)(control >> 22 & ROUNDS) | (uint32_t)(control >> 24 & 1) * (FLUSHES | NO_DENORMALS) |
           ((control & 0x9f00) != 0) * TRAPS;
}
static const char *const direction[] = {"", "up", "down", "toward zero"};
#else
static uint32_t differing(void) { return (fegetround() != FE_TONEAREST) * ROUNDS; }
static const char *const direction[] = {"", "", "", "not to the nearest"};
#endif

static _Atomic uint32_t noted;     /* what differs, and the thread shifted by 16; 0: nothing */

void modes_look(ModesThread thread)
{
    uint32_t none = 0, bits = differing();
    if (__builtin_expect(bits != 0, 0))
        atomic_compare_exchange_strong(&noted, &none, bits | (uint32_t)thread << 16);
}

static void add(char text[256], const char *before, const char *what)
{
    size_t n = strlen(text);
    snprintf(text + n, 256 - n, "%s%s%s", n ? " and " : "", before, what);
}

static _Noreturn void report(uint32_t bits, int64_t iteration)
{
    static const char *const name[] = {"the main thread", "a thread that computes",
                                       "the thread that moves messages"};
    char what[256] = "", when[64] = "before the first step";
    const char *preload = getenv("LD_PRELOAD");
    if (bits & ROUNDS)
        add(what, "rounds ", direction[bits & ROUNDS]);
    if (bits & FLUSHES)
        add(what, "", "flushes denormal results to zero");
    if (bits & NO_DENORMALS)
        add(what, "", "takes denormal operands for zero");
    if (bits & TRAPS)
        add(what, "", "traps at floating-point exceptions");
    if (bits & X87)
        add(what, "", "has another x87 control word");
    if (iteration)
        snprintf(when, sizeof when, "in iteration %lld", (long long)iteration);
    die(EXIT_NUMERIC, "float-modes",
        "%s %s, seen %s: a library in this process has set that%s%.200s; nothing computed so is saved; "
        "change: leave out the library, or build it without -ffast-math and without calls like fesetround",
        name[bits >> 16], what, when, preload && *preload ? ", perhaps one of LD_PRELOAD " : "",
        preload ? preload : "");
}

void modes_check(int64_t iteration)
{
    modes_look(MAIN_THREAD);
    uint32_t bits = atomic_load(&noted);
    if (bits)
        report(bits, iteration);
}
