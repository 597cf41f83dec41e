/* fuzz_jsonl -- the text of a line of JSON, as `train tokenize` takes it, and numbers, as a resume takes them
 * from metrics.jsonl: beside jansson, which parses the same language; and a file of such lines */
#include "fuzz.h"
#include "jsonl.h"
#include <math.h>
#include <stdlib.h>

static void count(void *lines, const json_t *line)
{
    (void)line;
    ++*(int *)lines;
}

/* What jansson has to say of the line: its numbers are smaller, and its nesting deeper. */
static void compare(const char *line, size_t n, const char *out, int64_t length)
{
    json_t *j = json_loadb(line, n, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
    const json_t *text = json_object_get(j, "text");
    if (length >= 0 && j &&
        (!json_is_string(text) || (int64_t)json_string_length(text) != length ||
         memcmp(json_string_value(text), out, (size_t)length)))
        fuzz_found("takes another text than jansson");
    json_decref(j);
}

/* The same for numbers. Names with escapes are found by jansson only. */
static void compare_numbers(const char *line, size_t n)
{
    static const char *const key[] = {"n", "text"};
    double found[2];
    json_t *j = json_loadb(line, n, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
    if (jsonl_numbers(line, (int64_t)n, 2, key, found) && j && !memchr(line, '\\', n))
        for (int i = 0; i < 2; i++) {
            const json_t *want = json_object_get(j, key[i]);
            if (json_is_number(want) ? json_number_value(want) != found[i] : !isnan(found[i]))
                fuzz_found("takes another number than jansson");
        }
    json_decref(j);
}

static void run(const uint8_t *p, size_t n)
{
    const char *what = NULL;
    char *line = xcalloc(1, n), *out = xcalloc(1, n);
    int lines = 0;
    if (n)
        memcpy(line, p, n);
    int64_t length = jsonl_text(line, (int64_t)n, "text", out, &what);
    if (length > (int64_t)n || (length < 0 && !what))
        fuzz_found("%ld bytes of text in %zu, %s", length, n, what ? what : "no reason");
    compare(line, n, out, length);
    compare_numbers(line, n);
    fuzz_file("x.jsonl", p, n);
    jsonl_each("x.jsonl", count, &lines);
    free(line);
    free(out);
}

static void seeds(void)
{
    fuzz_seed_text("{\"text\":\"a line\"}");
    fuzz_seed_text(
        "{\"id\": 7, \"meta\": {\"a\": [1, -2.5e3, true, null]}, \"text\": \"\\u00e9\\ud83d\\ude00\\n\"} ");
    fuzz_seed_text(
        "{\"te\\u0078t\":\"\xc3\xa9\xf0\x9f\x98\x80 long enough for a word of eight bytes\"}\n{}\n[1]\n");
    fuzz_seed_text("{\"n\": 12, \"text\": -2.5e-3, \"n\": 0.1, \"text\": null}");
    fuzz_seed_text("{\"text\":\"\",\"x\":[[[[{}]]]]}\n{\"text\"");
}

static const char *const words[] = {"\"text\":",
                                    "\"n\":",
                                    "\"te\\u0078t\"",
                                    "\\ud83d\\ude00",
                                    "\\ud800",
                                    "\\u0000",
                                    "\\\"",
                                    "\xf0\x90\x80\x80",
                                    "\xed\xa0\x80",
                                    "\xc0\x80",
                                    "{",
                                    "}",
                                    "[",
                                    "]",
                                    "null",
                                    "true",
                                    "1e999",
                                    "-0",
                                    ",",
                                    NULL};

const FuzzTarget fuzz_jsonl = {"jsonl", run, seeds, NULL, {0}, words};
