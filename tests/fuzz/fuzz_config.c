/* fuzz_config -- a configuration: YAML, key=value, and the rules. What is legal is written and read again.
 *
 *   byte 0     lowest four bits: ranks of the job less 1; next three: what the command needs
 *   the rest   texts up to a NUL: the YAML file, a file that keys may name (x.txt), then key=value */
#include "config_table.h"
#include "fuzz.h"

static void forget(void)
{
    config_forget();
}

static void check_again(const Config *c)
{
    char *text = NULL;
    const char *skipped;
    size_t size;
    FILE *f = xmemstream(&text, &size);
    config_write(f, c);
    fclose(f);
    const Config *back = config_read_saved(text, size, &skipped);
    if (!back || *skipped)
        fuzz_found("its own config.yaml is not read: %s\n%s", back ? skipped : "no YAML", text);
    for (int i = 0; i < OPTIONS; i++)
        if (!config_same_text(c, back, i))
            fuzz_found("%s comes back as %s, it was %s", options[i].key, config_text(back, i),
                       config_text(c, i));
    free(text);
}

static void run(const uint8_t *p, size_t n)
{
    static const ConfigUse uses[] = {USE_MODEL, USE_TRAIN,  USE_DATA, USE_STEPS,
                                     USE_CLOCK, USE_BUBBLE, USE_EVAL, USE_TRAIN | USE_EVAL};
    int kind = (int)fuzz_take(&p, &n, 1), use = uses[kind >> 4 & 7], nargs = 0;
    size_t size, file, length;
    char *yaml = fuzz_take_text(&p, &n, &size), *text = fuzz_take_text(&p, &n, &file), *args[32];
    while (n && nargs < 32)
        args[nargs++] = fuzz_take_text(&p, &n, &length);
    fuzz_file("x.txt", text, file);
    Check k;
    check_open(&k, "x.yaml");
    config_parse_text(&k, yaml, size);
    config_parse_args(&k, nargs, args);
    if (!k.unread)
        config_resolve(&k, kind % 16 + 1, (ConfigUse)use);
    memcpy(k.cfg->given, k.seen, sizeof k.seen);
    check_print(&k, fuzz_nowhere());
    if (!k.unread && !k.n && use != USE_BUBBLE) /* which needs no model */
        check_again(k.cfg);
}

#define MODEL "model:\n  num_layers: 4\n  hidden_size: 64\n  num_attention_heads: 4\n  seq_length: 32\n"
#define TRAIN                                                                                                \
    "train:\n  micro_batch_size: 1\n  global_batch_size: 16\n  train_iters: 10\noptimizer:\n  lr: 1e-3\n"
#define DATA "data:\n  data_path: [0.3, a, 0.7, b]\n  split: 9,1,0\n"

static void seed(int kind, const char *yaml, const char *text, const char *args)
{
    char *p = xasprintf("%c%s%c%s%c%s", kind, yaml, 1, text, 1, args);
    size_t n = strlen(p);
    for (size_t i = 1; i < n; i++)
        p[i] = p[i] == 1 ? 0 : p[i];
    fuzz_seed(p, n);
    free(p);
}

static void seeds(void)
{
    seed(16, MODEL DATA TRAIN, "", "");
    seed(16 + 3, MODEL DATA TRAIN "parallel: {tensor_model_parallel_size: 2, sequence_parallel: true}\n", "",
         "pipeline_model_parallel_size=2\1pipeline_schedule=zb-h1\1lr=3e-4");
    seed(16 + 3, MODEL DATA TRAIN, "",
         "pipeline_model_parallel_size=2\1pipeline_model_parallel_layout=Et|t(tt|)*1L\1bf16=true");
    seed(16 + 1, MODEL DATA TRAIN, "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n",
         "pipeline_schedule=custom\1pipeline_schedule_file=x.txt\1pipeline_model_parallel_size=2");
    seed(16, MODEL DATA TRAIN, "1 2 3 4\n",
         "num_moe_experts=4\1moe_router_topk=2\1moe_router_force=file\1moe_router_force_file=x.txt");
    seed(16, MODEL DATA TRAIN, "", "rope_scaling=yarn\1position_embedding_type=rope\1rope_scaling_factor=4");
    seed(16, MODEL DATA TRAIN, "", "step_batch_size_schedule=0:4 100:8\1recompute_granularity=full");
    seed(16 + 7, MODEL DATA TRAIN, "",
         "context_parallel_size=2\1cp_comm_type=a2a\1"
         "hierarchical_context_parallel_sizes=[2,1]\1data_parallel_sharding_strategy=optim_grads_params");
    seed(5 * 16, "clock: {clock_forward_ms: [1,2], clock_p2p_ms: 0.1}\n", "",
         "pipeline_model_parallel_size=4");
    seed(16, "# c\nmodel:\n  num_layers: &a 4\n  hidden_size: *a\n  x: |\n    y\n--- \n\"a\\u0041\": 'b'\n",
         "", "a=[1");
    seed(16, MODEL "moe:\n  num_moe_experts: 8\n  moe_layer_freq: [0,1,1,1]\n" DATA TRAIN, "",
         "lr=0x10\1load=");
}

/* The keys and choices of the table are words too. */
static const char *const words[OPTIONS + 1] = {
#define SECTION(name, help)
#define OPTION(section, key, type, def, legal, change, help) #key,
#define ENUM(section, key, def, change, help, choices) #key,
#include "config.def"
#undef OPTION
#undef ENUM
#undef SECTION
};

const FuzzTarget fuzz_config = {"config", run, seeds, forget, {0}, words};
