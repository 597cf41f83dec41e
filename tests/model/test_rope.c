/* test_rope -- frequencies of rope_scaling beside those of transformers in tests/golden/rope_rates.txt
 *
 * A line of the file: length=N key=value ... : attention factor, then radians a position of each pair of
 * columns. */
#define _GNU_SOURCE
#include "model.h"
#include "test.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TOLERANCE 1e-14        /* relative, of a frequency */

/* The settings of a line as a configuration; *length: that of the text. */
static const Config *settings_of(char *line, int64_t *length)
{
    char *text = xasprintf("model:\n  position_embedding_type: rope\n"), *rest;
    const char *skipped;
    for (char *word = strtok_r(line, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        char *equals = strchr(word, '='), *before = text;
        if (!strncmp(word, "length=", 7)) {
            *length = atoll(equals + 1);
            continue;
        }
        text = xasprintf("%s  %.*s: %s\n", before, (int)(equals - word), word, equals + 1);
        free(before);
    }
    const Config *c = config_read_saved(text, strlen(text), &skipped);
    CHECK(c && !*skipped && !config_rope_wrong(c), "%s: %s", text, c && *skipped ? skipped : "");
    free(text);
    return c;
}

static double check_line(char *line)
{
    char *numbers = strchr(line, ':'), *name;
    double rates[256], worst = 0;
    int64_t length = 0, n;
    *numbers++ = 0;
    name = xasprintf("%s", line);
    const Config *c = settings_of(line, &length);
    n = (int64_t)((double)c->kv_channels * c->rotary_percent) / 2;
    BUG_ON(n > 256);
    rope_rates(c, 2 * n, length, rates);
    double golden = strtod(numbers, &numbers), attention = config_rope_attention(c);
    CHECK(fabs(attention - golden) <= TOLERANCE, "%s: attention factor %.17g, not %.17g", name, attention,
          golden);
    for (int64_t i = 0; i < n; i++) {
        golden = strtod(numbers, &numbers);
        double error = fabs(rates[i] - golden) / golden;
        worst = error > worst || error != error ? error : worst;
        CHECK(error <= TOLERANCE, "%s: frequency %ld is %.17g, not %.17g", name, i, rates[i], golden);
    }
    CHECK(*numbers == '\n', "%s: more frequencies than %ld", name, n);
    free(name);
    return worst;
}

int main(void)
{
    FILE *f = fopen("tests/golden/rope_rates.txt", "r");
    char *line = NULL;
    size_t size = 0;
    double worst = 0;
    int lines = 0;
    CHECK(f, "tests/golden/rope_rates.txt");
    for (; f && getline(&line, &size, f) > 0; lines++)
        worst = fmax(worst, check_line(line));
    CHECK(lines >= 19, "%d lines", lines);
    printf("# %d settings, worst %.1e\n", lines, worst);
    free(line);
    if (f)
        fclose(f);
    return test_end();
}
