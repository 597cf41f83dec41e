/* jsonl -- files of JSON lines: each line parsed, or one string field found without building a tree */
#define _GNU_SOURCE
#include "jsonl.h"
#include "file.h"
#include "utf8.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNCLOSED "an object without ',' or '}'"
#define DEPTH 256       /* levels of nested values at most: the scan recurses */

typedef struct {
    const unsigned char *p, *end;   /* next byte to read; end of the line */
    const char *what;               /* first error found; NULL: none so far */
} Scan;

static int bad(Scan *s, const char *what)
{
    if (!s->what)
        s->what = what;
    return 0;
}

static void space(Scan *s)
{
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\t' || *s->p == '\r' || *s->p == '\n'))
        s->p++;
}

static int expect(Scan *s, char c, const char *what)
{
    if (s->p >= s->end || *s->p != c)
        return bad(s, what);
    s->p++;
    return 1;
}

/* Returns the number of bytes from p on that stand for themselves: ASCII other than quote, backslash and
 * control characters. Eight bytes are tested at a time: `stop` has the top bit of each byte that ends
 * the run. A borrow of the subtraction can set wrong bits only behind the first true one. */
static int64_t plain_run(const unsigned char *p, const unsigned char *end)
{
    const uint64_t ones = 0x0101010101010101ull, high = ones << 7;
    const unsigned char *q = p;
    for (; end - q >= 8; q += 8) {
        uint64_t w, quote, slash;
        memcpy(&w, q, 8);
        quote = w ^ ones * '"';
        slash = w ^ ones * '\\';
        uint64_t stop = (w | (w - ones * 32) | (quote - ones) | (slash - ones)) & high;
        if (stop)
            break;
    }
    while (q < end && *q >= 32 && *q < 128 && *q != '"' && *q != '\\')
        q++;
    return q - p;
}

static int utf8_put(char *out, uint32_t c)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    int n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--, c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)((0xf00 >> n & 0xff) | c);
    return n;
}

/* Reads four hexadecimal digits; -1 on an error. */
static int32_t hex4(Scan *s)
{
    int32_t v = 0;
    if (s->end - s->p < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        unsigned char c = *s->p++, l = c | 32;
        if (!(c >= '0' && c <= '9') && !(l >= 'a' && l <= 'f'))
            return -1;
        v = v * 16 + (c <= '9' ? c - '0' : l - 'a' + 10);
    }
    return v;
}

/* Reads the rest of an escape, behind its backslash. Returns the character that it stands for, -1 on an
 * error. */
static int64_t escape(Scan *s)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (s->p >= s->end)
        return bad(s, "a string without its closing quote") - 1;
    char c = (char)*s->p++;
    const char *at = c ? strchr(from, c) : NULL;
    if (at)
        return to[at - from];
    if (c != 'u')
        return bad(s, "an unknown escape in a string") - 1;
    int32_t v = hex4(s), low;
    if (v < 0)
        return bad(s, "\\u without four hexadecimal digits") - 1;
    if (v < 0xd800 || v > 0xdfff)
        return v;
    if (v > 0xdbff || s->end - s->p < 6 || s->p[0] != '\\' || s->p[1] != 'u')
        return bad(s, "half a surrogate pair") - 1;
    s->p += 2;
    low = hex4(s);
    if (low < 0xdc00 || low > 0xdfff)
        return bad(s, "half a surrogate pair") - 1;
    return 0x10000 + ((v - 0xd800) << 10) + (low - 0xdc00);
}

/* Reads a string from behind its opening quote and writes its text to out, unless out is NULL. Returns
 * the length of the text, -1 on an error. */
static int64_t string(Scan *s, char *out)
{
    int64_t n = 0;
    for (;;) {
        int64_t run = plain_run(s->p, s->end);
        if (out)
            memcpy(out + n, s->p, (size_t)run);
        n += run;
        s->p += run;
        if (s->p >= s->end)
            return bad(s, "a string without its closing quote") - 1;
        unsigned char c = *s->p;
        if (c == '"') {
            s->p++;
            return n;
        }
        if (c == '\\') {
            char four[4];
            s->p++;
            int64_t v = escape(s);
            if (v < 0)
                return -1;
            n += utf8_put(out ? out + n : four, (uint32_t)v);
        } else {
            int len = c < 0x80 ? 0 : utf8_length(s->p, s->end);
            if (!len)
                return bad(s, c < 32 ? "a control character in a string" : "a string that is not UTF-8") - 1;
            if (out)
                memcpy(out + n, s->p, (size_t)len);
            n += len;
            s->p += len;
        }
    }
}

static int digits(Scan *s)
{
    const unsigned char *from = s->p;
    while (s->p < s->end && *s->p >= '0' && *s->p <= '9')
        s->p++;
    return s->p > from;
}

static int number(Scan *s)
{
    if (*s->p == '-')
        s->p++;
    if (s->p < s->end && *s->p == '0')
        s->p++;
    else if (!digits(s))
        return bad(s, "a value that is none of JSON's");
    if (s->p < s->end && *s->p == '.') {
        s->p++;
        if (!digits(s))
            return bad(s, "a number without digits after its point");
    }
    if (s->p < s->end && (*s->p | 32) == 'e') {
        s->p++;
        if (s->p < s->end && (*s->p == '+' || *s->p == '-'))
            s->p++;
        if (!digits(s))
            return bad(s, "a number without digits in its exponent");
    }
    return 1;
}

static int word(Scan *s, const char *text)
{
    size_t n = strlen(text);
    if ((size_t)(s->end - s->p) < n || memcmp(s->p, text, n))
        return bad(s, "a value that is none of JSON's");
    s->p += n;
    return 1;
}

static int value(Scan *s, int depth);

/* Reads the items of an object or an array, from behind the opening bracket to the closing one. */
static int items(Scan *s, char close, int depth)
{
    if (depth > DEPTH)
        return bad(s, "more than 256 levels of nesting");
    space(s);
    if (s->p < s->end && *s->p == close) {
        s->p++;
        return 1;
    }
    for (;;) {
        space(s);
        if (close == '}') {
            if (!expect(s, '"', "a field without a name in quotes") || string(s, NULL) < 0)
                return 0;
            space(s);
            if (!expect(s, ':', "a field without ':'"))
                return 0;
        }
        if (!value(s, depth))
            return 0;
        space(s);
        if (s->p < s->end && *s->p == ',') {
            s->p++;
            continue;
        }
        return expect(s, close, close == '}' ? UNCLOSED : "an array without ',' or ']'");
    }
}

static int value(Scan *s, int depth)
{
    space(s);
    if (s->p >= s->end)
        return bad(s, "an end where a value should be");
    switch (*s->p) {
    case '"': s->p++; return string(s, NULL) >= 0;
    case '{': s->p++; return items(s, '}', depth + 1);
    case '[': s->p++; return items(s, ']', depth + 1);
    case 't': return word(s, "true");
    case 'f': return word(s, "false");
    case 'n': return word(s, "null");
    default: return number(s);
    }
}

/* Reads one field of the outermost object. *length: length of the text in `out`, -1 while it is not
 * found. */
static int field(Scan *s, const char *key, char *out, int64_t *length)
{
    char *name = *length < 0 ? out : NULL;   /* until `out` holds the text, it is the buffer for names */
    space(s);
    if (!expect(s, '"', "a field without a name in quotes"))
        return 0;
    const unsigned char *from = s->p;
    int64_t n = string(s, name), k = (int64_t)strlen(key);
    if (n < 0)
        return 0;
    /* once `out` holds the text, a second field of that name is found only if its name has no escapes */
    int wanted = n == k && !memcmp(name ? name : (const char *)from, key, (size_t)k);
    space(s);
    if (!expect(s, ':', "a field without ':'"))
        return 0;
    if (!wanted)
        return value(s, 1);
    if (*length >= 0)
        return bad(s, "the text field twice");
    space(s);
    if (!expect(s, '"', "a text field that is not a string"))
        return 0;
    return (*length = string(s, out)) >= 0;
}

/* Reads the outermost object, each field by read(s, ctx), which is at its name. Returns 0 if it is none in
 * valid JSON. */
static int object(Scan *s, int (*read)(Scan *s, void *ctx), void *ctx)
{
    space(s);
    int ok = expect(s, '{', "something other than a JSON object"), more = ok;
    space(s);
    if (ok && s->p < s->end && *s->p == '}') {
        s->p++;
        more = 0;
    }
    while (more && (ok = read(s, ctx))) {
        space(s);
        more = s->p < s->end && *s->p == ',';
        if (more)
            s->p++;
        else
            ok = expect(s, '}', UNCLOSED);
    }
    space(s);
    return ok && s->p < s->end ? bad(s, "something after the object") : ok;
}

typedef struct { const char *key; char *out; int64_t length; } Text;

static int text_field(Scan *s, void *ctx)
{
    Text *t = ctx;
    return field(s, t->key, t->out, &t->length);
}

int64_t jsonl_text(const char *line, int64_t bytes, const char *key, char *out, const char **what)
{
    Scan s = {(const unsigned char *)line, (const unsigned char *)line + bytes, NULL};
    Text t = {key, out, -1};
    int ok = object(&s, text_field, &t);
    if (ok && t.length < 0)
        ok = bad(&s, "no text field");
    *what = s.what;
    return ok ? t.length : -1;
}

typedef struct { int n; const char *const *key; double *value; } Numbers;

static int number_field(Scan *s, void *ctx)
{
    const Numbers *k = ctx;
    space(s);
    if (!expect(s, '"', "a field without a name in quotes"))
        return 0;
    const char *name = (const char *)s->p;
    int64_t length = string(s, NULL);
    space(s);
    if (length < 0 || !expect(s, ':', "a field without ':'"))
        return 0;
    space(s);
    const char *at = (const char *)s->p;
    if (!value(s, 1))
        return 0;
    space(s);
    if (s->p == s->end || (*s->p != ',' && *s->p != '}'))      /* strtod reads up to there */
        return bad(s, UNCLOSED);
    for (int i = 0; i < k->n; i++)
        if (!strncmp(name, k->key[i], (size_t)length) && !k->key[i][length])
            k->value[i] = *at == '-' || (*at >= '0' && *at <= '9') ? strtod(at, NULL) : NAN;
    return 1;
}

int jsonl_numbers(const char *line, int64_t bytes, int n, const char *const *key, double *value)
{
    Scan s = {(const unsigned char *)line, (const unsigned char *)line + bytes, NULL};
    for (int i = 0; i < n; i++)
        value[i] = NAN;
    return object(&s, number_field, &(Numbers){n, key, value});
}

/* Opens a regular file; NULL: it cannot be read. */
static FILE *open_regular(const char *path)
{
    char why[WHY];
    int64_t bytes;
    int fd = file_open(AT_FDCWD, path, 0, &bytes, why);
    return fd < 0 ? NULL : fdopen(fd, "r");
}

json_t *json_of_file(const char *path)
{
    FILE *f = open_regular(path);
    json_t *j = f ? json_loadf(f, 0, NULL) : NULL;       /* reads no further than it is JSON */
    if (f)
        fclose(f);
    return j;
}

int jsonl_each(const char *path, JsonlEach *each, void *ctx)
{
    FILE *f = open_regular(path);
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    int last = 0;
    while (f && (n = getline(&line, &room, f)) > 0) {
        json_t *j = json_loads(line, 0, NULL);
        last = (unsigned char)line[n - 1];
        each(ctx, j);
        json_decref(j);
    }
    free(line);
    int failed = !f || ferror(f), error = errno;
    if (f)
        fclose(f);
    errno = error;
    return failed ? -1 : last;
}
