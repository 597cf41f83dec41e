/* fuzz_tuned -- cublaslt_algorithms: the file of a device's algorithms */
#include "fuzz.h"
#include "tuned.h"

static void run(const uint8_t *p, size_t n)
{
    Algorithms a = {0};
    fuzz_file("x.json", p, n);
    tuned_read(&a, "x.json");
    algorithms_close(&a);
}

#define WORDS                                                                                                \
    "\"words\":[\"0123456789abcdef\",\"0000000000000000\",\"0000000000000001\",\"ffffffffffffffff\","        \
    "\"0123456789abcdef\",\"0000000000000000\",\"0000000000000001\",\"ffffffffffffffff\"]"

static void seeds(void)
{
    fuzz_seed_text("{\"format\":\"gridiron algorithms 1\",\"algorithms\":{\"bf16 64x32 t\":{" WORDS
                   ",\"us\":12.5}}}");
    fuzz_seed_text("{\"format\":\"gridiron algorithms 1\",\"algorithms\":{}}");
}

static const char *const words[] = {"\"format\":\"gridiron algorithms 1\"",
                                    "\"algorithms\":{",
                                    WORDS,
                                    "\"us\":",
                                    "\"0123456789abcdef\"",
                                    "null",
                                    NULL};

const FuzzTarget fuzz_tuned = {"tuned", run, seeds, NULL, {0}, words};
