/* test_sweep FOLDER LEGAL FITTING MEASURED -- the files of a sweep, which tests/plan/sweep.sh runs
 *
 * sweep.json, sweep.csv and sweep.html in FOLDER must agree. LEGAL, FITTING and MEASURED are the expected
 * numbers of layouts; - stands for any number. */
#include "test.h"
#include <jansson.h>

static char *whole(const char *dir, const char *name)
{
    char path[4096], *text = calloc(1, 1 << 22);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "r");
    CHECK(f && text && fread(text, 1, (1 << 22) - 1, f) > 0, "%s", path);
    if (f)
        fclose(f);
    return text;
}

static double value(const json_t *row, const char *key)
{
    return json_number_value(json_object_get(row, key));
}

/* Splits a line of CSV in place; returns the number of fields. */
static int split(char *line, char *field[64])
{
    int n = 0, quoted = 0;
    field[n++] = line;
    for (char *p = line; *p; p++) {
        quoted ^= *p == '"';
        if (*p == ',' && !quoted && n < 64) {
            *p = 0;
            field[n++] = p + 1;
        }
    }
    return n;
}

static void check_csv(const json_t *rows, char *text)
{
    size_t at = 0;
    char *save, *line = strtok_r(text, "\n", &save);
    CHECK(line && !strncmp(line, "tp,sp,pp,v,dp,zero,", 19), "header %s", line ? line : "missing");
    for (; (line = strtok_r(NULL, "\n", &save)); at++) {
        char *field[64];
        const json_t *row = json_array_get(rows, at);
        int n = split(line, field);
        CHECK(n == 33, "%d fields in row %zu", n, at);
        if (n != 33)
            return;
        CHECK(atoi(field[15]) == value(row, "ep") && atoi(field[16]) == value(row, "etp"),
              "row %zu: ep %s, etp %s", at, field[15], field[16]);
        CHECK(atoi(field[13]) == value(row, "cp") &&
                  !strcmp(field[14], json_string_value(json_object_get(row, "cp_comm_type"))),
              "row %zu: cp %s %s", at, field[13], field[14]);
        CHECK(atoi(field[0]) == value(row, "tp") && atoi(field[4]) == value(row, "dp") &&
              atoi(field[6]) == value(row, "micro_batch_size"),
              "row %zu is another layout than in the JSON", at);
        /* measured and predicted numbers stand in columns of their own */
        static const struct { int at; const char *key; } rates[] = {
            {21, "predicted_tokens_per_second"}, {22, "measured_tokens_per_second"},
            {23, "predicted_efficiency_percent"}, {27, "predicted_kwh_per_million_tokens"}};
        for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
            CHECK(fabs(atof(field[rates[i].at]) - value(row, rates[i].key)) <=
                      1e-5 * value(row, rates[i].key),
                  "row %zu: %s %s", at, rates[i].key, field[rates[i].at]);
        double seconds = value(row, "measured_ms") / 1e3;
        CHECK(seconds > 0 ? *field[22] != 0 : *field[22] == 0, "row %zu: measured tokens/s '%s'", at,
              field[22]);
        CHECK(fabs(atof(field[8]) - value(row, "predicted_ms")) <= 1e-5 * value(row, "predicted_ms"),
              "row %zu: %s", at, field[8]);
        CHECK(fabs(atof(field[9]) - value(row, "measured_ms")) <= 1e-5 * value(row, "measured_ms"),
              "row %zu: %s", at, field[9]);
        static const char *const more[] = {"measured_low_ms", "measured_high_ms", "measured_raw_ms"};
        for (int i = 0; i < 3; i++)
            CHECK(fabs(atof(field[29 + i]) - value(row, more[i])) <= 1e-5 * value(row, more[i]),
                  "row %zu: %s %s", at, more[i], field[29 + i]);
        CHECK(atoi(field[32]) == json_is_true(json_object_get(row, "measured_equal")),
              "row %zu: equal %s", at, field[32]);
    }
    CHECK(at == json_array_size(rows), "%zu rows, %zu in the JSON", at, json_array_size(rows));
}

/* Each layout has one row, its sizes multiply to the world, and measured layouts come first. */
static void check_rows(const json_t *j, const json_t *rows, int expected[3])
{
    double world = value(j, "world"), batch = value(j, "global_batch_size"),
           room = value(j, "memory_of_a_rank"), before = 0, best = 0;
    int count[3] = {(int)json_array_size(rows), 0, 0};
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *r = json_array_get(rows, i);
        double measured = value(r, "measured_ms"), memory = value(r, "memory"),
               micro = value(r, "micro_batch_size");
        int fits = json_is_true(json_object_get(r, "fits"));
        CHECK(value(r, "tp") * value(r, "pp") * value(r, "cp") * value(r, "dp") == world, "row %zu", i);
        CHECK(fmod(world / value(r, "pp"), value(r, "ep") * value(r, "etp")) == 0, "row %zu: experts", i);
        CHECK(fmod(batch, micro * value(r, "dp")) == 0, "row %zu: micro batch %g", i, micro);
        CHECK(!fits || (value(r, "predicted_ms") > 0 && memory > 0 && memory <= room),
              "row %zu fits %g of %g", i, memory, room);
        CHECK(fits || memory > room || json_is_null(json_object_get(r, "memory")),
              "row %zu does not fit, %g of %g", i, memory, room);
        CHECK(!(measured > 0) || count[2] == (int)i, "row %zu is measured, one before it is not", i);
        CHECK(!(measured > 0) || measured >= before, "row %zu is faster than the one before", i);
        double low = value(r, "measured_low_ms"), high = value(r, "measured_high_ms");
        int equal = json_is_true(json_object_get(r, "measured_equal"));
        CHECK(!(measured > 0) || (low > 0 && low <= measured && measured <= high),
              "row %zu: %g is not in %g - %g", i, measured, low, high);
        best = i ? best : high;
        CHECK(equal == (measured > 0 && low <= best), "row %zu: %g - %g, the best up to %g, equal %d", i, low,
              high, best, equal);
        CHECK(json_string_length(json_object_get(r, "state")) > 0, "row %zu has no state", i);
        before = measured;
        count[1] += fits;
        count[2] += measured > 0;
        for (size_t k = 0; k < i; k++) {
            static const char *const keys[] = {"tp", "sp", "pp", "v", "cp", "cp_comm_type", "zero",
                                               "micro_batch_size", "recompute", "ep", "etp"};
            enum { KEYS = sizeof keys / sizeof *keys };
            const json_t *o = json_array_get(rows, k);
            size_t same = 0;
            while (same < KEYS && json_equal(json_object_get(r, keys[same]), json_object_get(o, keys[same])))
                same++;
            CHECK(same < KEYS, "rows %zu and %zu are one layout", k, i);
        }
    }
    CHECK(count[0] == value(j, "legal") && count[1] == value(j, "fit"), "legal %d, fit %d", count[0],
          count[1]);
    for (int i = 0; i < 3; i++)
        CHECK(expected[i] < 0 || count[i] == expected[i], "%d instead of %d legal, fitting, measured [%d]",
              count[i], expected[i], i);
}

static void check_page(const char *page)
{
    static const char *const never[] = {"http:", "https:", "src=", "<link", "@import", "url("};
    for (size_t i = 0; i < sizeof never / sizeof *never; i++)
        CHECK(!strstr(page, never[i]), "the page refers to something outside: %s", never[i]);
    CHECK(strstr(page, "</html>") && strstr(page, "<svg") && strstr(page, "predicted ms") &&
              strstr(page, "GiB"),
          "not the whole page");
    /* two tables, each in its own order: measured layouts, and layouts that are only predicted */
    const char *measured = strstr(page, "Measured, by the time measured"),
               *rest = strstr(page, "by the time predicted");
    CHECK((measured || rest) && (!measured || !rest || measured < rest),
          "predictions have no order of their own");
    const char *table = rest ? strstr(rest, "<tbody>") : NULL;
    CHECK(!table || !strstr(table, "<td>measured</td>"), "a measured layout among the predictions");
}

int main(int argc, char **argv)
{
    int expected[3] = {-1, -1, -1};
    for (int i = 2; i < argc && i < 5; i++)
        expected[i - 2] = strcmp(argv[i], "-") ? atoi(argv[i]) : -1;
    char *data = whole(argv[1], "sweep.json"), *csv = whole(argv[1], "sweep.csv"),
         *page = whole(argv[1], "sweep.html");
    json_error_t error;
    json_t *j = json_loads(data, 0, &error), *rows = json_object_get(j, "layouts");
    CHECK(json_is_array(rows), "sweep.json: %s", error.text);
    check_rows(j, rows, expected);
    check_csv(rows, csv);
    check_page(page);
    json_decref(j);
    free(data);
    free(csv);
    free(page);
    return test_end();
}
