/* test_tokenize -- the byte tokenizer, the JSON scanner against jansson, `train tokenize`, `train
 * inspect` */
#define _GNU_SOURCE
#include "base.h"
#include "corpus.h"
#include "faults.h"
#include "files.h"
#include "jsonl.h"
#include "test.h"
#include "commands.h"
#include "tokenizer.h"
#include <dirent.h>
#include <jansson.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>

static uint32_t draws = 1;
static uint32_t draw(uint32_t n)
{
    draws = draws * 1103515245u + 12345;
    return (draws >> 8) % n;
}

/* ---- tokenizer ---- */

static void test_byte(void)
{
    const Tokenizer *t = tokenizer_named("byte");
    char all[256], out[16], back[256];
    int32_t ids[256];
    for (int i = 0; i < 256; i++)
        all[i] = (char)i;
    CHECK(t && t->vocab == 257 && t->eod == 256 && !tokenizer_named("bytes"), "the table");
    CHECK(t->encode(t, all, 256, ids) == 256, "a token a byte");
    for (int i = 0; i < 256; i++) {
        CHECK(ids[i] == i && t->decode(t, i, out) == 1, "byte %d", i);
        back[i] = out[0];
    }
    CHECK(!memcmp(all, back, 256), "round trip");
    CHECK(t->decode(t, 256, out) == 13 && t->longest == 13 && !memcmp(out, "<|endoftext|>", 13),
          "end of document");
}

/* ---- JSON ---- */

static void json_is(const char *line, const char *text, int64_t n)
{
    char out[256];
    const char *what;
    int64_t got = jsonl_text(line, (int64_t)strlen(line), "text", out, &what);
    CHECK(got == n && (n < 0 || !memcmp(out, text, (size_t)n)), "%s: %ld, %s", line, got, what);
}

static void json_bad(const char *line, const char *part)
{
    char out[256];
    const char *what = NULL;
    int64_t got = jsonl_text(line, (int64_t)strlen(line), "text", out, &what);
    CHECK(got == -1 && what && strstr(what, part), "%s: %ld, %s", line, got, what);
}

static void test_json_cases(void)
{
    json_is("{\"text\": \"In the beginning\"}", "In the beginning", 16);
    json_is(" { \"a\" : [1, -2.5e+3, {\"text\": \"no\"}, null] , \"text\" : \"\" } \r", "", 0);
    json_is("{\"text\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"}", "\"\\/\b\f\n\r\t", 8);
    json_is("{\"text\":\"\\u0041\\u00e9\\u20AC\\uD83D\\ude00\\u0000\"}",
            "A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\0", 11);
    json_is("{\"t\\u0065xt\":\"h\xc3\xa9\"}", "h\xc3\xa9", 3);
    json_is("{\"text\":\"a\",\"texts\":0,\"tex\":true,\"b\":false}", "a", 1);
    json_bad("", "JSON object");
    json_bad("[\"text\"]", "JSON object");
    json_bad("{}", "no text field");
    json_bad("{\"text\":1}", "not a string");
    json_bad("{\"text\":\"a\",\"text\":\"b\"}", "twice");
    json_bad("{\"text\":\"a\"} x", "after the object");
    json_bad("{\"text\":\"a\",}", "name in quotes");
    json_bad("{\"text\":\"a", "closing quote");
    json_bad("{\"text\":\"a\\", "closing quote");
    json_bad("{\"text\":\"\t\"}", "control character");
    json_bad("{\"text\":\"\\x\"}", "unknown escape");
    json_bad("{\"text\":\"\\u12g4\"}", "four hexadecimal");
    json_bad("{\"text\":\"\\ud800\"}", "surrogate");
    json_bad("{\"text\":\"\\ud800\\u0041\"}", "surrogate");
    json_bad("{\"text\":\"\\udc00\"}", "surrogate");
    json_bad("{\"text\":\"\\ud800\\udbff\"}", "surrogate");
    json_bad("{\"text\":\"long enough \x1f for eight\"}", "control character");
    json_bad("{\"text\":\"\xc0\x80\"}", "UTF-8");
    json_bad("{\"text\":\"\xe0\x9f\xbf\"}", "UTF-8");
    json_bad("{\"text\":\"\xf0\x8f\xbf\xbf\"}", "UTF-8");
    json_bad("{\"text\":\"\xed\xa0\x80\"}", "UTF-8");
    json_bad("{\"text\":\"\xf4\x90\x80\x80\"}", "UTF-8");
    json_bad("{\"text\":\"\xe2\x82\"}", "UTF-8");
    json_bad("{\"a\":01,\"text\":\"\"}", "',' or '}'");
    json_bad("{\"a\":1.,\"text\":\"\"}", "point");
    json_bad("{\"a\":-,\"text\":\"\"}", "none of JSON's");
    json_bad("{\"a\":nul,\"text\":\"\"}", "none of JSON's");
    char deep[700] = "{\"a\":";
    memset(deep + 5, '[', 600);
    json_bad(deep, "levels of nesting");
}

/* Writes a random line of JSON with values of all kinds; returns its length. */
static int line_of_json(char *p, int depth)
{
    static const char *const atoms[] = {
        "1", "-0.5e-3", "true", "null", "\"\"", "\"a\\n\\u00e9 \xc3\xa9\"", "\"\\ud83d\\ude00\"",
        "\"long enough to be scanned eight at a time\"", "[]", "{}",
    };
    static const char *const names[] = {"text", "t", "meta", "te\\u0078t", "longer than eight"};
    char *q = p;
    int n = 1 + (int)draw(3), list = depth && draw(2);
    q += sprintf(q, list ? "[" : "{ ");
    for (int i = 0; i < n; i++) {
        if (!list)
            q += sprintf(q, "\"%s\" :", names[draw(2) ? 0 : draw(5)]);
        if (depth < 3 && !draw(4))
            q += line_of_json(q, depth + 1);
        else
            q += sprintf(q, " %s", atoms[draw(2) ? 4 + draw(4) : draw(10)]);
        q += sprintf(q, i + 1 < n ? "," : list ? "]" : "}");
    }
    return (int)(q - p);
}

/* 60000 lines, most with a byte or two changed: we accept what jansson accepts, with the same text, and no
 * more. */
static void test_json_beside_jansson(void)
{
    static const char marks[] = "{}[]\",:\\u0dx-+.eE \t\n\x01\x80\xc3\xed\xf0\xff";
    char line[8192], out[8192];
    int accepted = 0, compared = 0, wrong = 0;
    for (int i = 0; i < 60000; i++) {
        int n = line_of_json(line, 0);
        for (int k = (int)draw(3); k > 0; k--)
            line[draw((uint32_t)n)] = marks[draw(sizeof marks - 1)];
        json_error_t e;
        json_t *o = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, &e);
        json_t *single = json_loadb(line, (size_t)n, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, NULL);
        int skip = (!o && (json_error_code(&e) == json_error_numeric_overflow ||
                           json_error_code(&e) == json_error_null_byte_in_key)) || (o && !single);
        json_t *text = json_is_object(o) ? json_object_get(o, "text") : NULL;
        const char *what;
        int64_t got = jsonl_text(line, n, "text", out, &what);
        int64_t want = json_is_string(text) ? (int64_t)json_string_length(text) : -1;
        if (!skip) {
            compared++;
            accepted += got >= 0;
            if (got != want || (got > 0 && memcmp(out, json_string_value(text), (size_t)got))) {
                wrong++;
                printf("# %.*s: %ld, jansson %ld (%s)\n", n, line, got, want, what ? what : "");
            }
        }
        json_decref(o);
        json_decref(single);
    }
    CHECK(!wrong && accepted > 5000 && compared - accepted > 5000, "%d wrong, %d of %d accepted", wrong,
          accepted, compared);
}

/* ---- the command ---- */

static char *arguments[16];

static void run_tokenize(void *arg)
{
    int n = 0;
    while (arguments[n])
        n++;
    (void)arg;
    _exit(command_tokenize(n - 1, arguments + 1));
}

/* Runs `train tokenize` with these arguments; checks and returns as child() does. */
#define TOKENIZE(code, part, ...)                                                                            \
    (memcpy(arguments, ((char *[16]){"tokenize", __VA_ARGS__}), sizeof arguments),                           \
     child(run_tokenize, NULL, code, part))

/* 1 when the pair holds these documents, each with an end-of-document token when eod. */
static int holds(const char *prefix, int n, const char *const *document, int eod)
{
    char *why = NULL;
    Window w;
    int32_t ids[256];
    Corpus *c = corpus_open(1, &prefix, &why);
    int ok = c && c->sequences == n && c->documents == n && c->file[0].type == TOKEN_U16 &&
             window_open(&w, c, 0, 1, &why);
    for (int i = 0; ok && i < n; i++) {
        int64_t length = (int64_t)strlen(document[i]);
        ok = w.length[i] == length + eod && window_read(&w, i, 0, w.length[i], ids, &why);
        for (int64_t k = 0; ok && k < length; k++)
            ok = ids[k] == (unsigned char)document[i][k];
        ok = ok && (!eod || ids[length] == 256);
    }
    snprintf(said, sizeof said, "%s", why ? why : "");
    if (c) {
        window_close(&w);
        corpus_close(c);
    }
    free(why);
    return ok;
}

static void put_text(const char *path, const char *text) { put_file(path, text, strlen(text)); }

static void test_command(void)
{
    char *a = in_work("a.txt"), *b = in_work("b.jsonl"), *dir = in_work("books"), *to = in_work("corpus");
    char *sub = in_work("books/x"), *f1 = in_work("books/1.txt"), *f2 = in_work("books/x/2"),
         *f3 = in_work("books/3.jsonl"), *hidden = in_work("books/.no"), *empty = in_work("books/0"),
         *under = in_work("a.txt/corpus"), *below = in_work("a.txt/x/corpus"),
         *new = in_work("new/folder/corpus");
    put_text(a, "one\n");
    put_text(b, "{\"text\":\"two\"}\n\n{\"text\":\"\"}\r\n{\"body\":\"x\",\"text\":\"th\\u0072ee\"}");
    CHECK(TOKENIZE(0, "", a, b, "-o", to), "%s", said);
    CHECK(holds(to, 3, (const char *[]){"one\n", "two", "three"}, 1), "%s", said);
    CHECK(TOKENIZE(0, "", "--no-append-eod", "-o", to, "--threads", "3", b, a), "%s", said);
    CHECK(holds(to, 3, (const char *[]){"two", "three", "one\n"}, 0), "%s", said);
    CHECK(!mkdir(dir, 0700) && !mkdir(sub, 0700), "set up");
    put_text(f1, "first");
    put_text(f2, "second");
    put_text(f3, "{\"text\":\"third\"}\n");
    put_text(hidden, "hidden");
    put_text(empty, "");
    CHECK(TOKENIZE(0, "", dir, "-o", to), "%s", said);
    CHECK(holds(to, 3, (const char *[]){"first", "third", "second"}, 1), "%s", said);
    char *link = in_work("books/4"), *folder = in_work("books/y"), *apart = in_work("apart");
    char *within = in_work("apart/1"), *nameless = in_work("new/");
    CHECK(!symlink(a, link) && !mkdir(apart, 0700) && !symlink(apart, folder), "set up");
    put_text(within, "apart");
    CHECK(TOKENIZE(0, "", dir, "-o", to), "%s", said);
    CHECK(holds(to, 5, (const char *[]){"first", "third", "one\n", "second", "apart"}, 1), "links: %s", said);
    CHECK(!unlink(link) && !symlink("nowhere", link), "set up");
    CHECK(TOKENIZE(EXIT_DATA, "books/4: a link to nothing", dir, "-o", to), "%s", said);
    CHECK(!unlink(link) && !symlink("..", link), "set up");
    CHECK(TOKENIZE(EXIT_DATA, "a link to a folder that it lies in", dir, "-o", to), "%s", said);
    unlink(link);
    put_text(b, "{\"body\":\"key\"}\n");
    CHECK(TOKENIZE(0, "", b, "-o", to, "--json-key", "body"), "%s", said);
    CHECK(holds(to, 1, (const char *[]){"key"}, 1), "%s", said);

    /* a byte-order mark is no part of a file's first line, as some writers of JSON have it */
    put_text(b, "\xef\xbb\xbf{\"text\":\"one\"}\n{\"text\":\"two\"}\n");
    CHECK(TOKENIZE(0, "", b, b, "-o", to), "%s", said);
    CHECK(holds(to, 4, (const char *[]){"one", "two", "one", "two"}, 1), "%s", said);
    put_text(b, "\xef\xbb\xbf");
    CHECK(TOKENIZE(EXIT_DATA, "hold no text", b, "-o", to), "%s", said);
    put_text(b, "{\"text\":\"one\"}\n\xef\xbb\xbf{\"text\":\"two\"}\n");
    CHECK(TOKENIZE(EXIT_DATA, "b.jsonl:2: something other than a JSON object", b, "-o", to), "%s", said);
    put_text(a, "\xef\xbb\xbfone\n");
    CHECK(TOKENIZE(0, "", a, "-o", to), "%s", said);
    CHECK(holds(to, 1, (const char *[]){"\xef\xbb\xbfone\n"}, 1), "a text keeps its bytes: %s", said);
    put_text(a, "one\n");
    put_text(b, "{\"body\":\"key\"}\n");
    CHECK(TOKENIZE(0, "", b, "-o", to, "--json-key", "body"), "%s", said);

    put_text(b, "{\"text\":\"fine\"}\n\n{\"text\":\"fine\"}\n{\"text\":\"\\q\"}\n{\n");
    CHECK(TOKENIZE(EXIT_DATA, "b.jsonl:4: an unknown escape", b, "-o", to), "%s", said);
    CHECK(holds(to, 1, (const char *[]){"key"}, 1), "a failed run left the old pair alone: %s", said);
    put_text(b, "{\"text\":\"\"}\n");
    CHECK(TOKENIZE(EXIT_DATA, "hold no text", b, "-o", to), "%s", said);
    put_file(b, "\x1f\x8b\x08\x00", 4);
    CHECK(TOKENIZE(EXIT_DATA, "compressed", b, "-o", to), "%s", said);
    CHECK(TOKENIZE(EXIT_DATA, "No such file", "/no/such", "-o", to), "%s", said);
    CHECK(TOKENIZE(EXIT_RESOURCE, "cannot create", a, "-o", under), "%s", said);
    CHECK(TOKENIZE(EXIT_RESOURCE, "cannot make the folder", a, "-o", below), "%s", said);
    CHECK(TOKENIZE(0, "", a, "-o", new), "%s", said);
    CHECK(holds(new, 1, (const char *[]){"one\n"}, 1), "its folder is made: %s", said);
    CHECK(TOKENIZE(EXIT_CONFIG, "no -o PREFIX", a), "%s", said);
    CHECK(TOKENIZE(EXIT_CONFIG, "nothing to read", "-o", to), "%s", said);
    CHECK(TOKENIZE(EXIT_CONFIG, "needs a value", a, "-o"), "%s", said);
    CHECK(TOKENIZE(EXIT_CONFIG, "names no files", a, "-o", nameless), "%s", said);
    CHECK(TOKENIZE(EXIT_CONFIG, "--frobnicate", a, "-o", to, "--frobnicate"), "%s", said);
    CHECK(TOKENIZE(EXIT_CONFIG, "no tokenizer", a, "-o", to, "--tokenizer", "morse"), "%s", said);
    CHECK(TOKENIZE(EXIT_CONFIG, "change: leave it out: ", a, "-o", to, "--append-eod"), "%s", said);
    CHECK(TOKENIZE(EXIT_CONFIG, "change: -o PREFIX", "--output-prefix", to, "--input", a), "%s", said);
    CHECK(TOKENIZE(EXIT_CONFIG, "change: --json-key KEY", a, "-o", to, "--json-keys=text"), "%s", said);
    CHECK(TOKENIZE(EXIT_CONFIG, "--threads", a, "-o", to, "--threads", "0"), "%s", said);
    char *list = xasprintf("ls %s | grep -c tmp", work);
    FILE *f = popen(list, "r");
    int left = -1;
    CHECK(f && fscanf(f, "%d", &left) == 1 && left == 0, "%d temporary files are left", left);
    pclose(f);
    char *all[] = {link, folder, apart, within, nameless, a, b, dir, to, sub, f1, f2, f3, hidden, empty,
                   under, below, new, list};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* What a folder of a user holds beside text: it is read as what it is, reported, or refused, never taken for
 * text in silence. */
static void test_mixed_folder(void)
{
    static const struct { const char *bytes, *part; } no_text[] = {
        {"PAR1xxxx", "is a Parquet file; change: write its column"},
        {"%PDF-1.7", "is a PDF file; change: extract"},
        {"\x88\xd8\x34\x01" "xxxx", "is an llm.c shard, which is tokens already; change: leave it out"},
        {"\xa1\xd9\x34\x01" "xxxx", "is an llm.c shard"},
    };
    char *dir = in_work("mixed"), *in = in_work("mixed/corpus"), *to = in_work("mixed-out");
    char *a = in_work("mixed/A.JSONL"), *b = in_work("mixed/b.Json"), *c = in_work("mixed/c.ndjson"),
         *d = in_work("mixed/d"), *wide = in_work("mixed/utf16.txt");
    CHECK(!mkdir(dir, 0700), "set up");
    put_text(a, "{\"text\":\"one\"}\r\n{\"text\":\"two\"}\r\n");
    put_text(b, "\xef\xbb\xbf{\"text\":\"three\"}");
    put_text(c, "{\"text\":\"four\"}\n");
    CHECK(TOKENIZE(0, "", dir, "-o", to), "%s", said);
    CHECK(!strstr(said, "warning"), "%s", said);
    CHECK(holds(to, 4, (const char *[]){"one", "two", "three", "four"}, 1), "%s", said);
    for (size_t i = 0; i < sizeof no_text / sizeof *no_text; i++) {
        put_text(d, no_text[i].bytes);
        CHECK(TOKENIZE(EXIT_DATA, no_text[i].part, dir, "-o", to), "%s", said);
    }
    put_text(d, "five");
    put_file(wide, "\xff\xfe" "6\0", 4);
    CHECK(TOKENIZE(0, "", dir, "-o", to), "%s", said);
    CHECK(strstr(said, "warning: 1 file has bytes 0, ") && strstr(said, "mixed/utf16.txt; change: "), "%s",
          said);
    unlink(wide);

    /* a corpus that was written among the texts is not read as a text the next time */
    CHECK(TOKENIZE(0, "", dir, "-o", in), "%s", said);
    CHECK(TOKENIZE(EXIT_DATA, "corpus.bin: is the tokens of a corpus; change: leave it", dir, "-o", in), "%s",
          said);
    char *index = in_work("mixed/corpus.idx");
    CHECK(TOKENIZE(EXIT_DATA, "corpus.idx: is the index of a corpus", index, "-o", to), "%s", said);
    free(index);
    CHECK(holds(in, 5, (const char *[]){"one", "two", "three", "four", "five"}, 1), "%s", said);
    char *all[] = {dir, in, to, a, b, c, d, wide};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* Tokenizes a file of many batches, with lines from one byte to 40 MB: the corpus holds the text
 * written. */
static void test_batches(void)
{
    char *path = in_work("long.jsonl"), *to = in_work("long"), *why = NULL, *line = xcalloc(1, 42 << 20);
    FILE *f = fopen(path, "wb");
    uint64_t wrote = HASH_SEED, read = HASH_SEED;
    int64_t documents = 0, bytes = 0;
    memset(line, 'x', 42 << 20);
    for (int i = 0; bytes < 90 << 20; i++) {
        int64_t n = i == 700 ? 40 << 20 : 1 + draw(i % 50 ? 3000 : 3 << 20);
        for (int64_t k = 0; k < n; k += 997)
            line[k] = (char)('a' + draw(26));
        fputs("{\"text\":\"", f);
        fwrite(line, 1, (size_t)n, f);
        fputs("\"}\n", f);
        wrote = hash64(&n, 8, wrote);
        wrote = hash64(line, (size_t)(n < 100 ? n : 100), wrote);
        wrote = hash64(line + n - 1, 1, wrote);
        documents++;
        bytes += n;
    }
    fclose(f);
    CHECK(TOKENIZE(0, "", path, "-o", to), "%s", said);
    Corpus *c = corpus_open(1, (const char *const *)&to, &why);
    CHECK(c && c->documents == documents && c->tokens == bytes + documents, "%s",
          why ? why : "counts differ");
    Window w;
    CHECK(c && window_open(&w, c, 0, 1, &why), "%s", why);
    for (int64_t i = 0; i < w.count; i++) {
        int64_t n = w.length[i] - 1, m = n < 100 ? n : 100;
        int32_t ids[100], last[2];
        CHECK(window_read(&w, i, 0, m, ids, &why) && window_read(&w, i, n - 1, 2, last, &why) &&
                  last[1] == 256,
              "%s", why);
        for (int64_t k = 0; k < m; k++)
            line[k] = (char)ids[k];
        line[m] = (char)last[0];
        read = hash64(&n, 8, read);
        read = hash64(line, (size_t)m + 1, read);
    }
    CHECK(read == wrote, "the text differs");
    window_close(&w);
    corpus_close(c);
    f = fopen(path, "ab");   /* an error in the last batch names its line */
    fputs("{\"text\":\"\"}\n{\"text\"}\n{", f);
    fclose(f);
    snprintf(line, 100, "long.jsonl:%ld: a field without", documents + 2);
    CHECK(TOKENIZE(EXIT_DATA, line, path, "-o", to), "%s: %s", line, said);
    free(line);
    free(path);
    free(to);
}

static void test_inspect(void)
{
    char *a = in_work("i.txt"), *to = in_work("inspected"), *bin = in_work("inspected.bin"), *text = NULL;
    size_t n;
    put_text(a, "hello, world");
    CHECK(TOKENIZE(0, "", a, a, "-o", to), "%s", said);
    for (int broken = 0; broken < 2; broken++) {
        if (broken && truncate(bin, 10))
            perror("truncate");
        FILE *f = open_memstream(&text, &n);
        CHECK(corpus_inspect(to, f, 1) == broken, "its result");
        fclose(f);
        json_t *o = json_loads(text, 0, NULL);
        CHECK(o && json_is_true(json_object_get(o, "whole")) == !broken, "%s", text);
        const char *why = json_string_value(json_object_get(o, "why"));
        if (broken)
            CHECK(why && strstr(why, "inspected.bin: needs 26 bytes"), "%s", text);
        else
            CHECK(json_integer_value(json_object_get(o, "tokens")) == 26 &&
                      json_integer_value(json_object_get(o, "documents")) == 2 &&
                      json_integer_value(json_object_get(o, "greatest_token")) == 256, "%s", text);
        json_decref(o);
        free(text);
        f = open_memstream(&text, &n);
        CHECK(corpus_inspect(to, f, 0) == broken && !fclose(f) && strstr(text, broken ? "no: " : "yes"), "%s",
              text);
        free(text);
    }
    free(a);
    free(to);
    free(bin);
}

/* ---- killed, and several at once ---- */

static const char *killed_in;          /* name of a call, as of FAULT in faults.h */
static int killed_at;                  /* number of that call */

static void run_killed(void *arg)
{
    strcpy(fault.call, killed_in);
    fault.when = killed_at;
    fault.ready = 1;
    run_tokenize(arg);
}

struct dirent *readdir(DIR *dir) { return faulty("readdir") ? NULL : (struct dirent *)readdir64(dir); }

static void run_failing(void *arg)
{
    fault.error = EIO;
    run_killed(arg);
}

/* A folder that cannot be read to its end is no shorter folder. */
static void test_failing_folder(void)
{
    char *dir = in_work("failing"), *to = in_work("failing-out"), *a = in_work("failing/a"),
         *b = in_work("failing/b"), *bin = in_work("failing-out.bin");
    CHECK(!mkdir(dir, 0700), "set up");
    put_text(a, "one");
    put_text(b, "two");
    killed_in = "readdir";
    memcpy(arguments, ((char *[16]){"tokenize", dir, "-o", to}), sizeof arguments);
    for (killed_at = 1; killed_at <= 4; killed_at++)       /* ".", "..", and two names */
        CHECK(child(run_failing, NULL, EXIT_DATA, "failing: cannot read: Input/output error"), "%s", said);
    CHECK(access(bin, F_OK), "a corpus of a part");
    killed_at = 6;
    CHECK(child(run_failing, NULL, 0, ""), "%s", said);
    CHECK(holds(to, 2, (const char *[]){"one", "two"}, 1), "%s", said);
    char *all[] = {dir, to, a, b, bin};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* Makes folder/corpus of the text. */
static int make_corpus(const char *text, char *to)
{
    char *path = xasprintf("%s.txt", to);
    put_text(path, text);
    int ok = TOKENIZE(0, "", path, "-o", to);
    free(path);
    return ok;
}

/* Killed at each call that changes a file or a name, over an old pair: the old pair or the new one is there,
 * or no index; never two files that do not belong together. The next one works. */
static void test_killed(void)
{
    static const char *const calls[] = {"openat", "pwrite64", "write", "fsync", "flock", "unlink", "rename",
                                        "close"};
    char *dir = in_work("killed"), *to = in_work("killed/corpus"), *idx = in_work("killed/corpus.idx"),
         *text = in_work("killed/corpus.txt");
    int points = 0, olds = 0, news = 0;
    CHECK(!mkdir(dir, 0700), "set up");
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        for (int ended = killed_at = 0; !ended; points += !ended) {
            CHECK(make_corpus("one\n", to), "%s", said);
            put_text(text, "the second");
            killed_in = calls[i];
            killed_at++;
            memcpy(arguments, ((char *[16]){"tokenize", text, "-o", to}), sizeof arguments);
            ended = child(run_killed, NULL, 0, "");
            int old = holds(to, 1, (const char *[]){"one\n"}, 1),
                new = holds(to, 1, (const char *[]){"the second"}, 1);
            CHECK((ended ? 0 : old) || new || (!ended && access(idx, F_OK)), "killed at %s %d: %s", calls[i],
                  killed_at, said);
            olds += old;
            news += new;
            BUG_ON(killed_at > 200);
        }
    CHECK(points > 12 && olds > 3 && news > (int)(sizeof calls / sizeof *calls),
          "%d points, %d old pairs, %d new ones", points, olds, news);
    free(dir);
    free(to);
    free(idx);
    free(text);
}

/* Four at once into one PREFIX, each with a text of its own, on a file system that is slow to rename: the
 * pair of one of them stays, whole, and nothing else. */
static void test_at_once(void)
{
    enum { JOBS = 4 };
    static const char *const texts[JOBS] = {"a", "bb", "ccc", "dddd"};
    char *dir = in_work("once"), *to = in_work("once/corpus"), *list = xasprintf("ls %s | wc -l", dir);
    CHECK(!mkdir(dir, 0700), "set up");
    for (int round = 0; round < 5; round++) {
        pid_t pid[JOBS];
        int held = 0, status, left = 0;
        for (int i = 0; i < JOBS; i++) {
            char *text = xasprintf("%s/%d.txt", dir, i);
            put_text(text, texts[i]);
            memcpy(arguments, ((char *[16]){"tokenize", text, "-o", to}), sizeof arguments);
            fflush(stdout);
            if (!(pid[i] = fork())) {
                slow_names = 1 + (i * 3 + round) % 5 * 2;
                dup2(open("/dev/null", O_WRONLY), 1);
                run_tokenize(NULL);
            }
            free(text);
        }
        for (int i = 0; i < JOBS; i++)
            CHECK(waitpid(pid[i], &status, 0) == pid[i] && status == 0, "status %d", status);
        for (int i = 0; i < JOBS; i++)
            held += holds(to, 1, texts + i, 1);
        CHECK(held == 1, "round %d: the pair of %d of them: %s", round, held, said);
        FILE *f = popen(list, "r");
        CHECK(f && fscanf(f, "%d", &left) == 1 && left == JOBS + 2, "%d files", left);
        pclose(f);
    }
    free(dir);
    free(to);
    free(list);
}

/* A signal that ends the command removes what it has written; a signal that was ignored is ignored still. It
 * waits for a lock of PREFIX that this process holds when the signal comes. TSan puts signals off while a
 * process waits for a lock. */
static void test_signals(void)
{
#ifdef __SANITIZE_THREAD__
    return;
#endif
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
    enum { SIGNALS = sizeof signals / sizeof *signals };
    char *dir = in_work("signals"), *text = in_work("signals.txt"), *to = in_work("signals/corpus"),
         *lock = in_work("signals/corpus.lock"), *list = xasprintf("ls %s | grep -c -v lock", dir),
         *index = xasprintf("ls %s | grep -q 'idx.*tmp'", dir);
    put_text(text, "one");
    CHECK(!mkdir(dir, 0700), "set up");
    for (int i = 0; i <= SIGNALS; i++) {
        int fd = open(lock, O_RDWR | O_CREAT, 0600), left = -1, status, ignored = i == SIGNALS;
        CHECK(fd >= 0 && !flock(fd, LOCK_EX), "set up");
        memcpy(arguments, ((char *[16]){"tokenize", text, "-o", to}), sizeof arguments);
        fflush(stdout);
        pid_t pid = fork();
        if (!pid) {
            signal(ignored ? SIGHUP : signals[i], ignored ? SIG_IGN : SIG_DFL);
            alarm(240);
            dup2(open("/dev/null", O_WRONLY), 1);
            run_tokenize(NULL);
        }
        while (system(index))          /* its last file: it then waits for the lock */
            usleep(10000);
        CHECK(!kill(pid, ignored ? SIGHUP : signals[i]), "set up");
        if (ignored)
            flock(fd, LOCK_UN);
        CHECK(waitpid(pid, &status, 0) == pid, "set up");
        FILE *f = popen(list, "r");
        CHECK(f && fscanf(f, "%d", &left) == 1, "set up");
        pclose(f);
        if (ignored)
            CHECK(!status && left == 2, "status %d, %d files", status, left);
        else
            CHECK(WIFSIGNALED(status) && WTERMSIG(status) == signals[i] && !left,
                  "status %d, %d files are left", status, left);
        close(fd);
    }
    char *all[] = {dir, text, to, lock, list, index};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static void count_line(void *n, const json_t *line) { *(int *)n += 1 + !line; }

/* A file whose reading fails is not one that has ended: no address below the first page can be read. */
static void test_failing_read(void)
{
    int n = 0;
    CHECK(jsonl_each("/dev/null", count_line, &n) == -1 && n == 0, "a device");
    CHECK(jsonl_each("/proc/self/mem", count_line, &n) == -1 && errno == EIO && n == 0, "%s",
          strerror(errno));
}

int main(void)
{
    work_open();
    test_failing_read();
    test_byte();
    test_json_cases();
    test_json_beside_jansson();
    test_command();
    test_mixed_folder();
    test_batches();
    test_inspect();
    test_failing_folder();
    test_killed();
    test_at_once();
    test_signals();
    return test_end();
}
