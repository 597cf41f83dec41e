/* test_tuned -- the file of algorithms: written, read, shared by runs; broken or foreign files stay
 * untouched */
#include "files.h"
#include "test.h"
#include "tuned.h"

static Algorithm one(const char *key, uint64_t first)
{
    Algorithm a = {.us = 1.5};
    snprintf(a.key, sizeof a.key, "%s", key);
    for (int i = 0; i < ALGORITHM_WORDS; i++)
        a.words[i] = first + (uint64_t)i * 0x1234567890abcdefu;
    return a;
}

static void test_kept(const char *path)
{
    Algorithms a = {0}, b = {0}, all = {0};
    Algorithm x = one("m 1 \"quoted\"", ~0ull), y = one("m 2", 7), again = one("m 2", 99);
    tuned_read(&all, path);
    CHECK(all.n == 0, "no file, %lld algorithms", (long long)all.n);
    algorithms_add(&a, &x);
    tuned_write(&a, path);
    algorithms_add(&b, &y);
    tuned_write(&b, path);
    algorithms_close(&b);
    algorithms_add(&b, &again);
    tuned_write(&b, path);                         /* a key keeps the algorithm of its first run */
    tuned_read(&all, path);
    CHECK(all.n == 2, "two runs have written one each, there are %lld", (long long)all.n);
    for (int i = 0; i < 2; i++) {
        const Algorithm *want = i ? &y : &x, *got = algorithms_find(&all, want->key);
        CHECK(got && !memcmp(got->words, want->words, sizeof got->words) && got->us == want->us,
              "%s has changed", want->key);
    }
    CHECK(!algorithms_find(&all, "m 3"), "an algorithm that nobody wrote");
    algorithms_close(&a);
    algorithms_close(&b);
    algorithms_close(&all);
}

/* Of a table only what is of this GPU and release is taken. */
static void test_table(const char *path)
{
    char why[WHY] = "";
    Algorithms a = {0}, got = {0};
    const char *const keys[] = {"cublaslt 130100 GPU A 1x2x3", "cublaslt 130100 GPU B 1x2x3",
                                "cublaslt 130200 GPU A 1x2x3", "cublaslt 130100 GPU A 7x2x3"};
    for (int i = 0; i < 4; i++) {
        Algorithm x = one(keys[i], (uint64_t)i);
        algorithms_add(&a, &x);
    }
    tuned_write(&a, path);
    CHECK(tuned_table(&got, path, "cublaslt 130100 GPU A ", why) == 2 && got.n == 2 &&
              algorithms_find(&got, keys[0]) && algorithms_find(&got, keys[3]),
          "%lld taken", (long long)got.n);
    CHECK(tuned_table(&got, path, "cublaslt 130100 GPU C ", why) == 0 && got.n == 2, "of no GPU");
    CHECK(tuned_table(&got, "no/such/file", "cublaslt", why) == -1 && *why, "a file that is missing: '%s'",
          why);
    unlink(path);
    algorithms_close(&a);
    algorithms_close(&got);
}

static void test_refused(const char *path)
{
    static const char *const bad[] = {
        "",
        "{",
        "[]",
        "{\"format\": \"another\", \"algorithms\": {}}",
        "{\"format\": \"gridiron algorithms 1\"}",
        "{\"format\": \"gridiron algorithms 1\", \"algorithms\": {\"a\": {\"words\": [\"00\"], \"us\": 1}}}",
        "{\"format\": \"gridiron algorithms 1\", \"algorithms\": {\"a\": {\"words\": [1,2,3,4,5,6,7,8], "
        "\"us\": 1}}}",
        "{\"format\": \"gridiron algorithms 1\", \"algorithms\": {\"good\": {\"words\": "
        "[\"0000000000000000\", \"0000000000000000\", \"0000000000000000\", \"0000000000000000\","
        "\"0000000000000000\", \"0000000000000000\", \"0000000000000000\", \"0000000000000000\"], \"us\": 1},"
        "\"cut\": {\"words\": [\"0000000000000000\"], \"us\": 1}}}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        Algorithms a = {0};
        Algorithm x = one("x", 1);
        put_file(path, bad[i], strlen(bad[i]));
        tuned_read(&a, path);
        CHECK(a.n == 0, "%s: %lld algorithms", bad[i], (long long)a.n);
        algorithms_add(&a, &x);
        tuned_write(&a, path);
        size_t n;
        char *now = get_file(path, &n);
        CHECK(!strcmp(now, bad[i]), "%s: written over", bad[i]);
        free(now);
        algorithms_close(&a);
    }
}

static void write_nowhere(void *a) { tuned_write(a, "/nowhere/algorithms.json"); }

int main(void)
{
    Algorithms none = {0};
    work_open();
    char *path = in_work("algorithms.json");
    unlink(path);
    test_kept(path);
    test_table(path);
    test_refused(path);
    CHECK(child(write_nowhere, &none, 0, NULL), "a folder that is not there ends the run: %s", said);
    CHECK(strstr(said, "warning: ") && strstr(said, "change: "), "said: %s", said);
    unlink(path);
    free(path);
    return test_end();
}
