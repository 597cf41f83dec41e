/* train eval -- loss and perplexity of a checkpoint over the validation split. */
#include "args.h"
#include "commands.h"
#include "start.h"
#include <math.h>
#include <stdlib.h>

int command_eval(int argc, char **argv)
{
    Args a = args_open("eval", argc, argv);
    int json = args_flag(&a, "--json");
    const char *path = args_next(&a, "CONFIG");
    args_end(&a, 1);
    const Config *cfg = start_config(path, &a, USE_DATA | USE_LOAD | USE_EVAL);
    Run r;
    run_open(&r, cfg, RUN_FORWARD, 0, NULL);
    char *dir = run_load(&r, cfg->load);
    int64_t batch = config_batch_at(cfg, 0);
    Loader *l = start_loader(cfg, &r, SPLIT_VALID, cfg->eval_iters * batch);
    double loss = run_evaluate(&r, l, cfg->eval_iters, NULL, NULL);
    if (r.grid.rank == 0 && json)
        printf("{\"checkpoint\": \"%s\", \"tokens\": %lld, \"valid_loss\": %.17g, \"valid_ppl\": %.17g}\n", dir,
               (long long)(cfg->eval_iters * batch * cfg->seq_length), loss, exp(loss));
    else if (r.grid.rank == 0)
        printf("%s: validation loss %.6f | perplexity %.4f | %lld tokens\n", dir, loss, exp(loss),
               (long long)(cfg->eval_iters * batch * cfg->seq_length));
    loader_close(l);
    free(dir);
    run_close(&r);
    return EXIT_DONE;
}
