/* json_number -- numbers in JSON, which has neither NaN nor infinity: null stands for both. What writes JSON
 * for other programs writes its real numbers by these two. */
#ifndef JSON_NUMBER_H
#define JSON_NUMBER_H
#include <jansson.h>
#include <math.h>
#include <stdio.h>

static inline json_t *json_number(double x) { return isfinite(x) ? json_real(x) : json_null(); }

/* With all digits. Returns text. */
static inline const char *json_number_text(char text[32], double x)
{
    snprintf(text, 32, isfinite(x) ? "%.17g" : "null", x);
    return text;
}
#endif
