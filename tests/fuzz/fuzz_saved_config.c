/* fuzz_saved_config -- config.yaml of a run: what a resumed run takes from it, and what has changed since */
#include "config_table.h"
#include "fuzz.h"

static void forget(void)
{
    config_forget();
}

static void run(const uint8_t *p, size_t n)
{
    const char *skipped, *text;
    const Config *saved = config_read_saved((const char *)p, n, &skipped);
    if (!saved)
        return;
    Check k;
    check_open(&k, "x.yaml");
    config_other_model(&k, saved);
    config_take(&k, saved, 1, USE_TRAIN);
    config_resolve(&k, 1, USE_TRAIN);
    check_print(&k, fuzz_nowhere());
    config_compare_resume(k.cfg, saved, &text);
    if (!k.n)
        for (int i = 0; i < OPTIONS; i++)
            config_differs(k.cfg, saved, i);
}

static void seeds(void)
{
    static const char *const keys[] = {"num_layers=2",     "hidden_size=32", "num_attention_heads=2",
                                       "seq_length=16",    "data_path=a",    "micro_batch_size=1",
                                       "train_iters=3",    "lr=1",           "position_embedding_type=rope",
                                       "num_moe_experts=4"};
    for (int n = 8; n <= 10; n++) {
        Check k;
        char *text = NULL;
        size_t size;
        check_open(&k, "x.yaml");
        config_parse_args(&k, n, (char **)(uintptr_t)keys);
        config_resolve(&k, 1, USE_TRAIN);
        FILE *f = xmemstream(&text, &size);
        config_write(f, k.cfg);
        fclose(f);
        fuzz_seed(text, size);
        fuzz_seed(text, size / 4);
        free(text);
        config_forget();
    }
    fuzz_seed_text("model:\n  num_layers: 2\n  hidden_size: 32\n  rope_scaling: yarn\n");
}

static const char *const words[] = {"null",
                                    "true",
                                    "  ",
                                    "\n",
                                    ": ",
                                    "[",
                                    "]",
                                    "-1",
                                    "1e308",
                                    ".inf",
                                    ".nan",
                                    "9223372036854775807",
                                    "num_layers: ",
                                    "hidden_size: ",
                                    "yarn",
                                    "llama3",
                                    "bf16",
                                    "rope",
                                    NULL};

const FuzzTarget fuzz_saved_config = {"saved_config", run, seeds, forget, {0}, words};
