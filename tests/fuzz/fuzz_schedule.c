/* fuzz_schedule -- pipeline_schedule_file: lists of instructions; what is read is written and read again */
#include "custom.h"
#include "fuzz.h"
#include <stdlib.h>

static void say(void *ctx, int line, int col, const char *what)
{
    *(int *)ctx += 1;
    if (line < 1 || col < 1 || !*what)
        fuzz_found("a mistake at %d:%d: %s", line, col, what);
}

static void run(const uint8_t *p, size_t n)
{
    int ranks = (int)fuzz_take(&p, &n, 1) % 8 + 1, mistakes = 0;
    CustomLists c;
    if (custom_read(&c, (const char *)p, n, ranks, say, &mistakes)) {
        if (mistakes || c.p != ranks || c.v < 1 || c.m < 1)
            fuzz_found("read with %d mistakes: p %d v %d m %d", mistakes, c.p, c.v, c.m);
        custom_close(&c);
    } else if (!mistakes) {
        fuzz_found("refused without a mistake");
    }
}

static void seed(int p, const char *text)
{
    char *s = xasprintf("%c%s", p - 1 + 8, text);
    fuzz_seed_text(s);
    free(s);
}

static void seeds(void)
{
    seed(1, "0F0,0B0,0F1,0B1\n");
    seed(2, "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
    seed(2, "0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1I0,1F1,1W0,1I1,1W1\n");
    seed(2, "0F0,2F0,2B0,0B0,\n\n1F0,3F0,3B0,1B0\n");
    seed(2, "0F0, 3F0,3I0,,0I0,3W0,0W0\r\n1F0,2F0,2B0,1B0\n");
}

static const char *const words[] = {
    "0F0", "1F0",    "0B0",    "0I0",         "0W0",     ",",     "\n",          "2F1",
    "3B1", "SEND_F", "RECV_B", "REDUCE_GRAD", "UNSHARD", "65535", "99999999999", "(0F0;1B0)OVERLAP_F_B",
    NULL};

const FuzzTarget fuzz_schedule = {"schedule", run, seeds, NULL, {0}, words};
