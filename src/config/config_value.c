/* config_value -- one value: from YAML text to a field, and back */
#define _GNU_SOURCE
#include "config_table.h"
#include <ctype.h>
#include <errno.h>

/* Returns 1 for [-+]?(0|[1-9][0-9_]*), with single underscores between digits only. */
static int looks_int(const char *s)
{
    s += *s == '-' || *s == '+';
    if (!isdigit((unsigned char)*s) || (s[0] == '0' && s[1]))
        return 0;
    for (; *s; s++)
        if (!isdigit((unsigned char)*s) &&
            !(*s == '_' && isdigit((unsigned char)s[-1]) && isdigit((unsigned char)s[1])))
            return 0;
    return 1;
}

/* Returns 1 for [-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?, .inf and .nan, without leading
 * zeros. */
static int looks_float(const char *s)
{
    s += *s == '-' || *s == '+';
    if (!strcasecmp(s, ".inf") || !strcasecmp(s, ".nan"))
        return 1;
    if (s[0] == '0' && isdigit((unsigned char)s[1]))
        return 0;
    int digits = 0;
    for (; isdigit((unsigned char)*s); s++)
        digits++;
    if (*s == '.')
        for (s++; isdigit((unsigned char)*s); s++)
            digits++;
    if (!digits)
        return 0;
    if (*s == 'e' || *s == 'E') {
        s++;
        s += *s == '-' || *s == '+';
        if (!isdigit((unsigned char)*s))
            return 0;
        while (isdigit((unsigned char)*s))
            s++;
    }
    return !*s;
}

static int one_of(const char *s, const char *words)
{
    size_t n = strlen(s);
    for (const char *p = words; *p; p += strcspn(p, " "), p += *p == ' ')
        if (strcspn(p, " ") == n && !strncmp(p, s, n))
            return 1;
    return 0;
}

ScalarKind scalar_kind(const Value *v)
{
    if (v->quoted || strlen(v->text) != v->len)
        return SCALAR_STRING;
    if (!*v->text || one_of(v->text, "~ null Null NULL"))
        return SCALAR_NULL;
    if (one_of(v->text, "true True TRUE false False FALSE"))
        return SCALAR_BOOL;
    return looks_int(v->text) ? SCALAR_INT : looks_float(v->text) ? SCALAR_FLOAT : SCALAR_STRING;
}

char *quoted(const char *text, size_t len)
{
    enum { SHOWN = 60 };
    char *s = keep_alloc(4 * SHOWN + 16, 1), *p = s;
    *p++ = '\'';
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        /* cut between two characters of UTF-8, whose bytes behind the first are 3 at most */
        if (i >= SHOWN && ((c & 0xC0) != 0x80 || i >= SHOWN + 3)) {
            p += sprintf(p, "...");
            break;
        }
        p += c < 32 || c == 127 ? sprintf(p, "\\x%02x", c) : sprintf(p, "%c", c);
    }
    *p++ = '\'';
    return s;
}

/* Describes a value for a message: "the string 'abc'", "a list". */
static char *seen_text(const Value *v)
{
    static const char *const names[] = {"null", "the boolean", "the integer", "the number", "the string"};
    if (v->kind != VALUE_SCALAR)
        return text_copy(v->kind == VALUE_LIST ? "a list" : "a mapping");
    ScalarKind kind = scalar_kind(v);
    if (kind == SCALAR_NULL)
        return text_copy("null");
    if (kind == SCALAR_STRING)
        return textf("%s %s", names[kind], quoted(v->text, v->len));
    return textf("%s %.60s", names[kind], v->text);
}

Interval interval_parse(const char *text)
{
    const char *s = text + strcspn(text, "[(");
    Interval i = {.lo_open = *s == '('};
    char *end;
    i.lo = strtod(s + 1, &end);
    i.ilo = strtoll(s + 1, NULL, 10);
    BUG_ON(*end != ',');
    s = end + 1;
    i.hi = strtod(s, &end);
    i.ihi = strtoll(s, NULL, 10);
    BUG_ON(*end != ']' && *end != ')');
    i.hi_open = *end == ')';
    return i;
}

static int interval_has(const Interval *i, double x)
{
    return (i->lo_open ? x > i->lo : x >= i->lo) && (i->hi_open ? x < i->hi : x <= i->hi);
}

char *legal_text(const Option *o)
{
    switch (o->type) {
    case TYPE_INT:   return textf("an integer in %s", o->legal);
    case TYPE_FLOAT: return textf("a number in %s", o->legal);
    case TYPE_BOOL:  return text_copy("true or false");
    case TYPE_STR:   return text_copy("a string");
    case TYPE_LIST:
        return textf("a list of %s", strcmp(o->legal, "mixed") ? o->legal : "strings and numbers");
    case TYPE_ENUM:  break;
    }
    char *s = text_copy("one of ");
    for (int i = 0; o->choices[i]; i++)
        s = textf("%s%s%s", s, i ? ", " : "", o->choices[i]);
    return s;
}

static char *wrong_type(const Option *o, const Value *v)
{
    const char *hint = "";
    if (v->kind == VALUE_SCALAR && scalar_kind(v) != SCALAR_STRING && scalar_kind(v) != SCALAR_NULL &&
        (o->type == TYPE_STR || o->type == TYPE_LIST))
        hint = "; a string that looks like this needs quotes";
    else if (v->kind == VALUE_SCALAR && v->quoted && o->type < TYPE_STR)
        hint = "; without the quotes?";
    else if (v->kind == VALUE_SCALAR && scalar_kind(v) == SCALAR_NULL && !strcmp(o->def, "[]"))
        hint = "; [] is a list without elements";
    else if (o->type == TYPE_INT && v->kind == VALUE_SCALAR && scalar_kind(v) == SCALAR_FLOAT)
        hint = "; written without point and exponent (1_000 is fine)";
    return textf("expected %s%s, got %s%s", legal_text(o), option_optional(o) ? ", or null" : "",
                 seen_text(v), hint);
}

/* Returns a number's text without its underscores. */
static char *plain_digits(const char *s)
{
    char *t = text_copy(s), *p = t;
    for (; *s; s++)
        if (*s != '_')
            *p++ = *s;
    *p = 0;
    return t;
}

/* int_parse and float_parse read a text for which looks_int or looks_float holds. They return NULL and
 * set *x, or return what is wrong. */
static char *int_parse(const char *text, const char *legal, int64_t *x)
{
    Interval in = interval_parse(legal);
    char *digits = plain_digits(text);
    errno = 0;
    int64_t y = strtoll(digits, NULL, 10);
    int overflow = errno == ERANGE;
    if (!overflow && y >= in.ilo + in.lo_open && y <= in.ihi - in.hi_open)
        return *x = y, NULL;
    return textf("%.60s is not in %s", text, strpbrk(legal, "[("));
}

static char *float_parse(const char *text, const char *legal, double *x)
{
    Interval in = interval_parse(legal);
    char *digits = plain_digits(text);
    const char *word = digits + strspn(digits, "+-");
    double sign = *digits == '-' ? -1 : 1;
    errno = 0;
    double y = !strcasecmp(word, ".inf")   ? sign * INFINITY
               : !strcasecmp(word, ".nan") ? NAN : strtod(digits, NULL);
    int underflow = errno == ERANGE && fabs(y) < 1; /* a double cannot hold it: it is too near to 0 */
    if (!underflow && isfinite(y) && interval_has(&in, y))
        return *x = y, NULL;
    return textf("%.60s is not in %s", text, strpbrk(legal, "[("));
}

static char *string_check(const Value *v)
{
    if (!v->len)
        return text_copy("is an empty string; leave the key out, or set it to null");
    for (size_t i = 0; i < v->len; i++)
        if ((unsigned char)v->text[i] < 32 || v->text[i] == 127)
            return textf("the string holds the control character \\x%02x", (unsigned char)v->text[i]);
    return NULL;
}

static const char *double_format(char s[32], double x)
{
    for (int digits = 1; digits <= 17; digits++) {     /* the shortest text that reads back as x */
        snprintf(s, 32, "%.*g", digits, x);
        if (strtod(s, NULL) == x)
            break;
    }
    if (strstr(s, "e+") && fabs(x) < 1e15 && x == floor(x))
        snprintf(s, 32, "%.0f", x);                    /* 10000, not 1e+04 */
    return s;
}

/* Reads one element of a list; *out: its text, a number in a form that strtoll and strtod read. */
static char *element_store(const Option *o, const Value *v, const char **out)
{
    ScalarKind kind = v->kind == VALUE_SCALAR ? scalar_kind(v) : SCALAR_NULL;
    char *error, number[32];
    int64_t x;
    double y;
    if (kind == SCALAR_STRING && (!strcmp(o->legal, "strings") || !strcmp(o->legal, "mixed"))) {
        *out = text_copy(v->text);
        return string_check(v);
    }
    if ((kind == SCALAR_INT || kind == SCALAR_FLOAT) && !strcmp(o->legal, "mixed")) {
        *out = plain_digits(v->text);
        return NULL;
    }
    if (kind == SCALAR_INT && !strncmp(o->legal, "integers", 8)) {
        if (!(error = int_parse(v->text, o->legal, &x)))
            *out = textf("%ld", x);
        return error;
    }
    if ((kind == SCALAR_INT || kind == SCALAR_FLOAT) && !strncmp(o->legal, "numbers", 7)) {
        if (!(error = float_parse(v->text, o->legal, &y)))
            *out = text_copy(double_format(number, y));
        return error;
    }
    return wrong_type(o, v);
}

/* Reads a list; a scalar is a list of one element. */
static char *list_store(const Option *o, const Value *v, List *list)
{
    const Value *item = v->kind == VALUE_LIST ? v->item : v;
    int n = v->kind == VALUE_LIST ? v->n : 1;
    if (v->kind == VALUE_MAP)
        return wrong_type(o, v);
    const char **text = keep_alloc((size_t)n + 1, sizeof *text);
    for (int i = 0; i < n; i++) {
        char *error = element_store(o, &item[i], &text[i]);
        if (error && v->kind == VALUE_SCALAR)
            return error;
        if (error)
            return textf("element %d: %s", i + 1, error);
    }
    *list = (List){n, text};
    return NULL;
}

static char *enum_store(const Option *o, const Value *v, int *x)
{
    for (int i = 0; o->choices[i]; i++)
        if (!strcmp(o->choices[i], v->text))
            return *x = i, NULL;
    char *s = wrong_type(o, v);
    int guess = choice_suggest(v->text, o->choices);
    return guess < 0 ? s : textf("%s; did you mean '%s'?", s, o->choices[guess]);
}

char *value_store(const Option *o, const Value *v, void *base)
{
    void *p = option_field(o, base);
    ScalarKind kind = v->kind == VALUE_SCALAR ? scalar_kind(v) : SCALAR_NULL;
    if (v->kind == VALUE_SCALAR && kind == SCALAR_NULL && option_optional(o)) {
        option_clear(o, base);
        return NULL;
    }
    if (o->type == TYPE_LIST)
        return list_store(o, v, p);
    if (v->kind != VALUE_SCALAR)
        return wrong_type(o, v);
    char *error;
    switch (o->type) {
    case TYPE_INT:  return kind == SCALAR_INT ? int_parse(v->text, o->legal, p) : wrong_type(o, v);
    case TYPE_FLOAT:
        return kind == SCALAR_INT || kind == SCALAR_FLOAT ? float_parse(v->text, o->legal, p)
                                                          : wrong_type(o, v);
    case TYPE_BOOL:
        if (kind != SCALAR_BOOL)
            return wrong_type(o, v);
        *(int *)p = tolower((unsigned char)*v->text) == 't';
        return NULL;
    case TYPE_STR:
        if (kind != SCALAR_STRING)
            return wrong_type(o, v);
        if (!(error = string_check(v)))
            *(const char **)p = text_copy(v->text);
        return error;
    case TYPE_ENUM: return kind == SCALAR_STRING ? enum_store(o, v, p) : wrong_type(o, v);
    case TYPE_LIST: break;
    }
    return NULL;
}

/* Prints a string as YAML: plain if no reader can take it for anything else, otherwise in single quotes,
 * in which neither escapes nor ${} have a meaning. */
static void string_print(FILE *f, const char *s, int numbers_plain)
{
    static const char safe[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+-";
    Value v = {.kind = VALUE_SCALAR, .text = s, .len = strlen(s)};
    ScalarKind kind = scalar_kind(&v);
    int plain = isalnum((unsigned char)*s) || *s == '/' || *s == '_' || *s == '.';
    plain = plain && strspn(s, safe) == v.len && kind == SCALAR_STRING;
    if (plain || (numbers_plain && (kind == SCALAR_INT || kind == SCALAR_FLOAT))) {
        fputs(s, f);
        return;
    }
    fputc('\'', f);
    for (; *s; s++)
        fprintf(f, *s == '\'' ? "''" : "%c", *s);
    fputc('\'', f);
}

char *config_string(const char *text)
{
    char *out = NULL;
    size_t size;
    FILE *f = xmemstream(&out, &size);
    string_print(f, text, 0);
    fclose(f);
    return out;
}

void value_print(FILE *f, const Option *o, const void *base)
{
    const void *p = option_field(o, base);
    const List *list = p;
    char number[32];
    if (o->type != TYPE_LIST && option_absent(o, base)) {
        fputs("null", f);
        return;
    }
    switch (o->type) {
    case TYPE_INT:   fprintf(f, "%ld", *(const int64_t *)p); break;
    case TYPE_FLOAT: fputs(double_format(number, *(const double *)p), f); break;
    case TYPE_BOOL:  fputs(*(const int *)p ? "true" : "false", f); break;
    case TYPE_STR:   string_print(f, *(const char *const *)p, 0); break;
    case TYPE_ENUM:  fputs(o->choices[*(const int *)p], f); break;
    case TYPE_LIST:
        for (int i = 0; i < list->n; i++) {
            fputs(i ? ", " : "[", f);
            string_print(f, list->v[i], strcmp(o->legal, "strings"));
        }
        fputs(list->n ? "]" : "[]", f);
        break;
    }
}
