/* fuzz_tokenize -- an input of `train tokenize`: what kind of file it is, and its documents as tokens
 *
 *   byte 0     bit 0: lines of JSON, else text; bit 1: tokens of 4 bytes, else 2; bit 2: an end-of-document
 *              token behind each document */
#include "tokenize.c"
#include "fuzz.h"

static void run(const uint8_t *p, size_t n)
{
    int kind = (int)fuzz_take(&p, &n, 1);
    struct Scratch scratch = {0};
    Job j = {.tokenizer = tokenizer_named("byte"),
             .key = "text",
             .append = kind >> 2 & 1,
             .scratch = &scratch,
             .width = kind & 2 ? 4 : 2};
    fuzz_file("x.jsonl", p, n);
    fuzz_file("x.txt", p, n);
    add_input(&j, kind & 1 ? "x.jsonl" : "x.txt");
    if (!n) {
        free(j.input[0].path);
        free(j.input);
        return;
    }
    p += j.input[0].from;
    n -= (size_t)j.input[0].from;
    Item it = {.in = j.input,
               .text = memcpy(xcalloc(n + 1, 1), p, n),
               .bytes = (int64_t)n,
               .out = xcalloc(n + 1, (size_t)j.width)};
    j.item = &it;
    encode_item(&j, 0, 0);
    int64_t sum = 0;
    for (int64_t i = 0; i < it.documents; i++)
        sum += it.length[i];
    if (!it.why && (sum != it.tokens || it.tokens > (int64_t)n + 1))
        fuzz_found("%ld tokens of %zu bytes, %ld in documents", it.tokens, n, sum);
    free((char *)(uintptr_t)it.text);
    free(it.out);
    free(it.length);
    free(it.why);
    free(scratch.text);
    free(scratch.ids);
    free(j.input[0].path);
    free(j.input);
}

static void seeds(void)
{
    for (int kind = 0; kind < 8; kind++) {
        static const char *const text[] = {"some text\nof two lines",
                                           "{\"text\":\"\"}\n{\"text\":\"ab\"}\n\n {\"a\":1,"
                                           "\"text\":\"\\u00e9\"}\r\n{\"text\":\"c\"}"};
        char *s = xasprintf("%c%s", kind | 16, text[kind & 1]);
        fuzz_seed_text(s);
        free(s);
    }
    fuzz_seed_text("\x11\xef\xbb\xbf{\"text\":\"marked\"}\n");
    fuzz_seed("\x11\x1f\x8b\x08\0", 5);
}

static const char *const words[] = {"{\"text\":\"", "\"}\n", "\\ud83d\\ude00", "\n", "\r\n", "PK\3\4",
                                    "BZh",          "\xef\xbb\xbf", NULL};

const FuzzTarget fuzz_tokenize = {"tokenize", run, seeds, NULL, {EXIT_DATA}, words};
