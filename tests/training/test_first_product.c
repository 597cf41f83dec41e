/* test_first_product -- gradients that the first product of a step overwrites: mpirun -n 2. NaNs in the
 * memory of all gradients change no bit of a step, in every sharding, with tied embeddings, D and W apart,
 * experts without tokens */
#include "files.h"
#include "job.h"
#include "run.h"
#include "test.h"
#include "tiny_feed.h"

#define TINY                                                                                                 \
    "model: {num_layers: 2, hidden_size: 24, num_attention_heads: 2, seq_length: 12, vocab_size: 61, "       \
    "hidden_dropout: 0, attention_dropout: 0}\n"                                                             \
    "train: {micro_batch_size: 2, global_batch_size: 8, train_iters: 2}\n"                                   \
    "optimizer: {lr: 0.01}\n"                                                                                \
    "data: {tokenizer_type: none, data_path: none}\n"                                                        \
    "precision: {threads: 1}\n"                                                                              \
    "checkpoint: {save: nowhere}\n"

static size_t held(const Run *r) { return (size_t)r->params.data.grad.n[0] * sizeof(float); }

static void same_bits(const char *file, const char *more)
{
    char copy[300], *args[8], *at = copy;
    int n = 0;
    int64_t left = 0, products = 0;
    snprintf(copy, sizeof copy, "%s", more);
    for (char *a; (a = strsep(&at, " "));)
        args[n++] = a;
    Run r;
    run_open(&r, config_load(file, n, args, 0, USE_MODEL), RUN_GRADIENT, 0, NULL);
    Data *d = &r.params.data;
    size_t window = (size_t)d->window[1] * sizeof(float);
    r.step.feed = feed;
    run_gradients(&r);
    char *first = xcalloc(1, held(&r) + 1);
    memcpy(first, d->grad.p, held(&r));
    memset(d->grad.p, 0xff, held(&r));
    if (d->out[0].base)
        memset(d->out[0].base, 0xff, window);
    double loss = r.step.verdict.loss;
    run_gradients(&r);
    CHECK(isfinite(loss) && r.step.verdict.loss == loss, "%s: loss %.9g, then %.9g", more, loss,
          r.step.verdict.loss);
    CHECK(isfinite(r.step.verdict.norm) && r.step.verdict.norm > 0, "%s: norm %g", more, r.step.verdict.norm);
    CHECK(!memcmp(first, d->grad.p, held(&r)), "%s: other gradients over NaNs", more);
    /* what the start of a step leaves alone */
    memset(d->grad.p, 0xff, held(&r));
    data_begin(d);
    for (size_t i = 0; i < held(&r) / sizeof(float); i++)
        left += isnan(((const float *)d->grad.p)[i]) != 0;
    for (int i = 0; i < d->products; i++)
        if (d->stage < SHARD_GRADS || data_groups(d, d->product[i].bucket)->shard->size == 1)
            products += d->product[i].n;
    CHECK(left == products, "%s: %ld elements are not cleared, products in no window have %ld", more,
          left, products);
    for (int b = 0; b < d->buckets; b++)       /* ends the step that has begun */
        d->bucket[b].reduced = 1;
    data_wait_grads(d);
    free(first);
    run_close(&r);
}

int main(void)
{
    int rank;
    job_launched(&rank);
    work_open();
    char *file = xasprintf("%s/tiny.%d.yaml", work, rank);
    put_file(file, TINY, strlen(TINY));
    same_bits(file, "data_parallel_sharding_strategy=no_shard");
    same_bits(file, "data_parallel_sharding_strategy=optim overlap_grad_reduce=true");
    same_bits(file, "data_parallel_sharding_strategy=optim_grads");
    same_bits(file, "data_parallel_sharding_strategy=optim_grads_params "
                    "untie_embeddings_and_output_weights=true");
    same_bits(file, "tensor_model_parallel_size=2 data_parallel_sharding_strategy=optim_grads");
    same_bits(file, "pipeline_model_parallel_size=2 pipeline_schedule=zb-h1");
    same_bits(file, "num_moe_experts=8 moe_ffn_hidden_size=8 moe_router_force=hot add_bias_linear=false");
    same_bits(file, "num_moe_experts=8 moe_ffn_hidden_size=8 moe_router_force=hot add_bias_linear=false "
                    "expert_model_parallel_size=2 data_parallel_sharding_strategy=optim_grads_params");
    return test_end();
}
