/* fuzz_routing -- moe_router_force_file: a file of loads of the experts
 *
 *   byte 0     bits 0 and 1: layers less 1; bits 2 to 4: experts less 1; bit 5: 10000 layers of 4096 experts
 *              instead */
#include "config_table.h"
#include "fuzz.h"

static void forget(void)
{
    config_forget();
}

static void run(const uint8_t *p, size_t n)
{
    int kind = (int)fuzz_take(&p, &n, 1), large = kind & 32;
    Check k;
    check_open(&k, "x.yaml");
    char *args[] = {textf("num_layers=%d", large ? 10000 : (kind & 3) + 1),
                    textf("num_moe_experts=%d", large ? 4096 : (kind >> 2 & 7) + 1),
                    "hidden_size=8",
                    "num_attention_heads=2",
                    "seq_length=4",
                    "moe_router_topk=1",
                    "moe_router_force=file",
                    "moe_router_force_file=x.txt"};
    fuzz_file("x.txt", p, n);
    config_parse_args(&k, sizeof args / sizeof *args, args);
    config_resolve(&k, 1, USE_MODEL);
    check_print(&k, fuzz_nowhere());
    const Config *c = k.cfg;
    for (int64_t i = 0; !k.n && i < c->force_lines * c->num_moe_experts; i++) {
        double below = i % c->num_moe_experts ? c->force_share[i - 1] : 0;
        if (!(c->force_share[i] >= below && c->force_share[i] <= 1.0000001))
            fuzz_found("share %ld is %g after %g", i, c->force_share[i], below);
    }
}

static void seeds(void)
{
    fuzz_seed_text("\x0c"
                   "1 2 3 4\n");
    fuzz_seed_text("\x0d"
                   "# two layers\n1, 2, 3, 4\r\n0 0 1e9 .5 # end\n\n");
    fuzz_seed_text(" "
                   "1\n");
    fuzz_seed_text("\x01"
                   "1\n1\n1");
}

static const char *const words[] = {"1e9", "0",  "nan", "inf", "-1", "0x1p3", "1e-320",
                                    "#",   "\n", ",",   " ",   "\r", NULL};

const FuzzTarget fuzz_routing = {"routing", run, seeds, forget, {0}, words};
