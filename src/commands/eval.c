/* train eval -- loss and perplexity of a checkpoint on the validation split, or on another */
#include "commands.h"
#include "json_number.h"
#include "start.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Names of --split, in the order of Split; word: the name in messages. */
static const struct { const char *name, *word; } splits[] = {
    {"train", "training"}, {"valid", "validation"}, {"test", "test"}};

static Split split_named(const char *name)
{
    for (int i = SPLIT_TRAIN; i <= SPLIT_TEST; i++)
        if (!strcmp(splits[i].name, name))
            return (Split)i;
    die(EXIT_CONFIG, "usage",
        "train eval: --split %s is none of 'valid', 'test' or 'train'; change: give one of them", name);
}

static void print_json(const char *dir, const char *split, const Evaluated *e)
{
    json_t *j = json_pack("{s:o s:I}", "checkpoint", json_text(dir), "tokens", (json_int_t)e->tokens);
    char key[32];
    snprintf(key, sizeof key, "%s_loss", split);
    json_object_set_new(j, key, json_number(e->loss));
    snprintf(key, sizeof key, "%s_ppl", split);
    json_object_set_new(j, key, json_number(exp(e->loss)));
    json_print(stdout, j, JSON_REAL_PRECISION(17));
}

int command_eval(int argc, char **argv)
{
    Args a = cli_open("eval", argc, argv);
    int json = args_switch(&a, "--json");
    const char *name = args_value(&a, "--split");
    Split split = name ? split_named(name) : SPLIT_VALID;
    const char *path = cli_config(&a);
    cli_end(&a);
    const Config *cfg = start_config(path, &a, USE_DATA | USE_LOAD | USE_EVAL);
    Run r;
    run_open(&r, cfg, RUN_FORWARD, 0, NULL);
    char *dir = run_load(&r, cfg->load);
    Loader *l = start_loader(cfg, &r, split, cfg->eval_iters * config_batch_most(cfg));
    Evaluated e = run_evaluate(&r, l, cfg->eval_iters, NULL, NULL);
    all_ok(&r.grid.all, e.tokens > 0, EXIT_DATA, "data", "no token of the %ld %s batches has a loss: "
           "eod_mask_loss leaves out what is predicted from end-of-document; change: eod_mask_loss=false, a "
           "larger eval_iters, or another corpus", cfg->eval_iters, splits[split].word);
    all_ok(&r.grid.all, isfinite(e.loss), EXIT_NUMERIC, "not-finite", "%s: the %s loss is %g, of weights "
           "that are all finite; change: params_dtype=fp32, or load an earlier checkpoint", dir,
           splits[split].word, e.loss);
    if (r.grid.rank == 0 && json)
        print_json(dir, splits[split].name, &e);
    else if (r.grid.rank == 0)
        printf("%s: %s loss %.6f | perplexity %.4f | %ld tokens\n", dir, splits[split].word, e.loss,
               exp(e.loss), e.tokens);
    loader_close(l);
    free(dir);
    run_close(&r);
    return EXIT_DONE;
}
