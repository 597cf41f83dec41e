/* json_number -- numbers as JSON, which has neither NaN nor infinity: null stands for them */
#ifndef JSON_NUMBER_H
#define JSON_NUMBER_H
#include <jansson.h>
#include <math.h>
#include <stdio.h>

static inline json_t *json_number(double x) { return isfinite(x) ? json_real(x) : json_null(); }

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
