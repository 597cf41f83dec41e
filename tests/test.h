/* test -- checks for test programs. A failed CHECK prints both sides and the program ends with 1; main ends
 * with `return test_end();`. Each program runs as a process of its own under tests/run, with a timeout. */
#ifndef TEST_H
#define TEST_H
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int test_failures, test_checks;
/* Threads that stand for ranks count together. */
static inline void test_count(int *n) { __atomic_fetch_add(n, 1, __ATOMIC_RELAXED); }

#define CHECK(cond, ...)                                                                                     \
    do {                                                                                                     \
        test_count(&test_checks);                                                                            \
        if (!(cond)) {                                                                                       \
            test_count(&test_failures);                                                                      \
            printf("# %s:%d: CHECK(%s) ", __FILE__, __LINE__, #cond);                                        \
            printf(__VA_ARGS__);                                                                             \
            printf("\n");                                                                                    \
        }                                                                                                    \
    } while (0)

/* bool: the program is built with AddressSanitizer or ThreadSanitizer, which take more time and memory. */
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

/* cpu_isa of the devices that a test opens: the variable ISA of tests/run, or "auto". */
static inline const char *test_isa(void)
{
    const char *isa = getenv("ISA");
    return isa && *isa ? isa : "auto";
}

/* bool: FEW is set. An emulator or valgrind takes up to a hundred times as long: the tests then take each
 * kind of kernel, in F32 and BF16, but not all sizes and types, and some of the layouts. */
static inline int test_few(void) { return getenv("FEW") != NULL; }

/* double: the worse of two differences; a NaN is within no tolerance, and stays, as fmax does not keep it. */
static inline double worse(double a, double b) { return a > b || isnan(a) ? a : b; }

static inline int test_end(void)
{
    printf("# %d checks, %d failed\n", test_checks, test_failures);
    if (!test_checks)
        printf("# a test without checks is a failure\n");
    return test_failures || !test_checks;
}
#endif
