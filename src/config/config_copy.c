/* config_copy -- copies with another layout; comparison of the ranks' configurations */
#define _GNU_SOURCE
#include "comm.h"
#include "config_table.h"

static Config *copy_of(const Config *c) { return memcpy(keep_alloc(1, sizeof *c), c, sizeof *c); }

/* Shares layers out by `layout` and resets all other keys that do so. */
static void set_layout(Config *c, const char *layout, const int *layers, int stages)
{
    c->pipeline_model_parallel_layout = layout;
    c->pipeline_balance = PIPELINE_BALANCE_COUNT;
    c->num_layers_in_first_pipeline_stage = c->num_layers_in_last_pipeline_stage = CFG_ABSENT;
    c->account_for_embedding_in_pipeline_split = c->account_for_loss_in_pipeline_split = 0;
    c->stage_layers = layers;
    c->stages = stages;
}

Config *config_with_layout(const Config *cfg, const char *layout)
{
    Config *c = copy_of(cfg);
    const int *layers = NULL;
    int stages = 0, p = (int)c->pipeline_model_parallel_size;
    int64_t sum = 0, v = p > 1 ? c->num_virtual_stages_per_pipeline_rank : 1;
    BUG_ON(config_parse_layout(layout, &layers, &stages) || stages != p * v);
    for (int s = 0; s < stages; s++)
        sum += layers[s];
    BUG_ON(sum != c->num_layers);
    set_layout(c, text_copy(layout), layers, stages);
    return c;
}

Config *config_for_one_rank(const Config *cfg)
{
    Config *c = copy_of(cfg);
    int *layers = keep_alloc(1, sizeof *layers);
    for (int i = 0; i < c->batch_steps; i++)
        if (c->batch_step[i].batch / c->micro_batch_size > UINT16_MAX)
            die(EXIT_CONFIG, "one-rank", "one rank alone needs %ld microbatches of %ld for a batch of %ld; "
                "at most 65535; change: lower global_batch_size, or raise micro_batch_size",
                c->batch_step[i].batch / c->micro_batch_size, c->micro_batch_size, c->batch_step[i].batch);
    c->tensor_model_parallel_size = c->pipeline_model_parallel_size = c->context_parallel_size = 1;
    c->expert_model_parallel_size = c->expert_tensor_parallel_size = 1;
    c->data_parallel_size = c->world = 1;
    c->context_heads = 0;
    c->sequence_parallel = c->overlap_grad_reduce = c->overlap_param_gather = 0;
    c->num_virtual_stages_per_pipeline_rank = c->microbatch_group_size_per_vp_stage = 1;
    c->pipeline_schedule = PIPELINE_SCHEDULE_1F1B;
    c->pipeline_max_activations = CFG_ABSENT;
    c->pipeline_schedule_file = NULL;
    c->custom = NULL;
    c->data_parallel_sharding_strategy = DATA_PARALLEL_SHARDING_STRATEGY_NO_SHARD;
    c->num_distributed_optimizer_instances = 1;
    config_pad_vocab(c);
    *layers = (int)c->num_layers;
    set_layout(c, NULL, layers, 1);
    return c;
}

/* ---- the same on every rank ---- */

enum { OTHERS = 16, OTHERS_TEXT = 256 };   /* ranks that a line names; bytes of their text */

uint64_t config_hash_key(const Config *c, int option, uint64_t h)
{
    char *text = config_text(c, option);
    h = hash64(options[option].key, strlen(options[option].key) + 1, h);
    h = hash64(text, strlen(text) + 1, h);
    free(text);
    return h;
}

uint64_t config_hash(const Config *c)
{
    uint64_t h = HASH_SEED;
    for (int i = 0; i < OPTIONS; i++)
        h = config_hash_key(c, i, h);
    return h;
}

/* Returns the hash that more than half of the ranks have, else rank 0's (Boyer and Moore 1991,
 * MJRTY). */
static uint64_t usual(const uint64_t *hash, int n)
{
    uint64_t pick = hash[0];
    int votes = 0, have = 0;
    for (int r = 0; r < n; r++) {
        pick = votes ? pick : hash[r];
        votes += hash[r] == pick ? 1 : -1;
    }
    for (int r = 0; r < n; r++)
        have += hash[r] == pick;
    return 2 * have > n ? pick : hash[0];
}

/* Writes "rank 3", "ranks 1, 3 and 5 more" to text: the ranks whose hash is not `want`. */
static void others(char text[OTHERS_TEXT], const uint64_t *hash, int n, uint64_t want)
{
    int differ = 0, shown = 0;
    for (int r = 0; r < n; r++)
        differ += hash[r] != want;
    int at = sprintf(text, differ == 1 ? "rank" : "ranks");
    for (int r = 0; r < n && shown < OTHERS; r++)
        if (hash[r] != want)
            at += sprintf(text + at, "%s %d", shown++ ? "," : "", r);
    if (differ > shown)
        sprintf(text + at, " and %d more", differ - shown);
}

static int lowest(const uint64_t *hash, int n, uint64_t want, int same)
{
    int r = 0;
    while (r < n && (hash[r] == want) != same)
        r++;
    return r;
}

static void broadcast(Comm *all, void *buf, size_t bytes, int root)
{
    all->wait(all, all->broadcast(all, buf, (int64_t)(bytes / sizeof(int64_t)), I64, root));
}

/* The hashes of all ranks. */
typedef struct {
    uint64_t *hash, usual;
    int odd, model;                /* the first rank with another hash, the number of ranks if there is none;
                                    * the first with the usual one */
} Compared;

/* Free x.hash. Collective. */
static Compared compare(Comm *all, uint64_t mine)
{
    Compared x = {.hash = xcalloc((size_t)all->size, sizeof *x.hash)};
    all->wait(all, all->all_gather(all, x.hash, &mine, 1, I64));
    x.usual = usual(x.hash, all->size);
    x.odd = lowest(x.hash, all->size, x.usual, 0);
    x.model = lowest(x.hash, all->size, x.usual, 1);
    return x;
}

static void same_build(Comm *all)
{
    char mine[64] = "", usually[64];
    snprintf(mine, sizeof mine, "%.63s", config_build_id());
    Compared x = compare(all, hash64(mine, sizeof mine, HASH_SEED));
    free(x.hash);
    if (x.odd == all->size)
        return;
    memcpy(usually, mine, sizeof mine);
    broadcast(all, usually, sizeof usually, x.model);
    all_ok(all, all->rank != x.odd, EXIT_CONFIG, "build-differs", "rank %d runs %s, and rank %d %s; change: "
           "install the same build on every host", x.odd, mine, x.model, usually);
}

void config_same(const Config *c, Comm *all)
{
    same_build(all);
    Compared x = compare(all, config_hash(c));
    uint64_t of_key[OPTIONS];
    if (x.odd == all->size) {
        free(x.hash);
        return;
    }
    for (int i = 0; i < OPTIONS; i++)
        of_key[i] = config_hash_key(c, i, HASH_SEED);
    broadcast(all, of_key, sizeof of_key, x.model);
    int64_t first = 0;
    while (first < OPTIONS - 1 && of_key[first] == config_hash_key(c, (int)first, HASH_SEED))
        first++;
    broadcast(all, &first, sizeof first, x.odd);
    char *text = config_text(c, (int)first), theirs[256] = "", who[OTHERS_TEXT];
    snprintf(theirs, sizeof theirs, "%s", text);
    broadcast(all, theirs, sizeof theirs, x.model);
    others(who, x.hash, all->size, x.usual);
    all_ok(all, all->rank != x.odd, EXIT_CONFIG, "config-differs",
           "the configuration of %s is not that of the others: %s is %.200s on rank %d and %s on rank %d; "
           "change: give every rank the same file, arguments and environment (is a host's copy of the file "
           "old?)", who, options[first].key, text, x.odd, theirs, x.model);
    free(text);
    free(x.hash);
}
