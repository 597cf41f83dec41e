/* json_number -- numbers as JSON, which has neither NaN nor infinity: null stands for them; texts as JSON,
 * which has UTF-8 alone */
#ifndef JSON_NUMBER_H
#define JSON_NUMBER_H
#include "base.h"
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static inline json_t *json_number(double x) { return isfinite(x) ? json_real(x) : json_null(); }

/* A JSON string of s. If s is not UTF-8 (a file name, a cut sample), non-ASCII bytes become '?'. */
static inline json_t *json_text(const char *s)
{
    json_t *t = json_string(s);
    if (t)
        return t;
    char *copy = xstrdup(s);
    for (char *c = copy; *c; c++)
        if (*c & 0x80)
            *c = '?';
    t = json_string(copy);
    free(copy);
    return t;
}

/* Writes x with 17 digits, which read back as x, or "null", and returns text. */
static inline const char *json_number_text(char text[32], double x)
{
    snprintf(text, 32, isfinite(x) ? "%.17g" : "null", x);
    return text;
}

/* Prints j and a newline, and drops the reference to j. flags: those of json_dumpf. */
static inline void json_print(FILE *f, json_t *j, size_t flags)
{
    json_dumpf(j, f, flags);
    fputc('\n', f);
    json_decref(j);
}
#endif
