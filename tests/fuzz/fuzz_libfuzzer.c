/* fuzz_libfuzzer -- one target under libFuzzer. `--seeds FOLDER` writes the target's seeds, and its
 * dictionary to FOLDER.words, instead. */
#include "fuzz.h"
#include <stdlib.h>

#define JOINED(a, b) a##b
#define NAME(target) JOINED(fuzz_, target)
#define THIS NAME(TARGET)

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);
const char *__asan_default_options(void);

/* No stacks of what was allocated, which take half the time; for the report of a finding set
 * ASAN_OPTIONS=malloc_context_size=20. What a process holds at its end is no leak. */
const char *__asan_default_options(void)
{
    return "detect_leaks=0:malloc_context_size=0:quarantine_size_mb=4:max_allocation_size_mb=256";
}

static FILE *create(const char *path)
{
    FILE *f = fopen(path, "w");
    if (!f) {
        perror(path);
        exit(1);
    }
    return f;
}

/* A word as libFuzzer's dictionaries have it: all bytes but letters and digits as \xNN. */
static void put_word(FILE *f, const char *w)
{
    fputc('"', f);
    for (; *w; w++)
        fprintf(f, (*w | 32) >= 'a' && (*w | 32) <= 'z' ? "%c" : "\\x%02x", (unsigned char)*w);
    fputs("\"\n", f);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    if (*argc != 3 || strcmp((*argv)[1], "--seeds"))
        return 0;
    const char *folder = (*argv)[2];
    FuzzSeeds s = fuzz_seeds(&THIS);
    for (int i = 0; i < s.n; i++) {
        char *path = xasprintf("%s/seed%d", folder, i);
        FILE *f = create(path);
        fwrite(s.list[i], 1, s.size[i], f);
        fclose(f);
        free(path);
    }
    char *path = xasprintf("%s.words", folder);
    FILE *f = create(path);
    for (const char *const *w = THIS.words; w && *w; w++)
        put_word(f, *w);
    fclose(f);
    exit(0);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    fuzz_run(&THIS, p, n);
    return 0;
}
