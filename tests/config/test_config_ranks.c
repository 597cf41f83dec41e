/* test_config_ranks -- one configuration on many ranks: who reports its errors, whether all ranks have
 * the same one, and its equivalent on one rank */
#define _GNU_SOURCE
#include "child.h"
#include "config_text.h"
#include "team.h"

/* ---- errors: rank 0 prints all of them at once, the other ranks print none ---- */

static char path[256];

/* Replaces the C library's sleep(): prints the seconds and returns at once. */
unsigned sleep(unsigned seconds)
{
    fprintf(stderr, "sleeps %u s\n", seconds);
    return 0;
}

static void write_bad(const char *text)
{
    FILE *f = fopen(path, "w");
    fputs(text, f);
    fclose(f);
}

/* Loads the configuration as a launched rank does. arg: "RANK of SIZE". */
static void load_as(void *arg)
{
    int rank, size;
    sscanf(arg, "%d of %d", &rank, &size);
    setenv("OMPI_COMM_WORLD_RANK", textf("%d", rank), 1);
    setenv("OMPI_COMM_WORLD_SIZE", textf("%d", size), 1);
    config_load(path, 0, NULL, 0, USE_MODEL);
}

static void test_errors(void)
{
    write_bad(
        "model: {num_layers: 4, hidden_size: 64, num_attention_heads: 6, seq_length: 32}\n"
        "train: {micro_batch_size: 2, global_batch_size: 6}\nparallel: {tensor_model_parallel_size: 4}\n");
    CHECK(child(load_as, "0 of 8") == EXIT_CONFIG && !strstr(said, "sleeps"), "%s", said);
    CHECK(lines(said) == 4 &&
              strstr(said, "num_attention_heads: 6 is not a multiple of tensor_model_parallel_size 4") &&
              strstr(said, "hidden_size: 64 is not a multiple") &&
              strstr(said, "data-parallel size 2; nearest: 4 or 8") && strstr(said, "error[config]") &&
              strstr(said, "3 problems"),
          "%s", said);
    CHECK(child(load_as, "0 of 6") == EXIT_CONFIG &&
              strstr(said, "= 4 does not divide the world of 6 ranks; nearest"),
          "%s", said);
    CHECK(child(load_as, "5 of 8") == EXIT_CONFIG, "%s", said);
    CHECK(lines(said) == 2 && !strncmp(said, "sleeps 2 s\nerror[config]", 24) &&
              strstr(said, "rank 5: 3 problems") && strstr(said, "change: "),
          "%s", said);
    write_bad("model: {num_layers: 4, hidden_size: 64, num_attention_heads: 4, seq_length: 32}\n"
              "train: {micro_batch_size: 2}\nparallel: {tensor_model_parallel_size: 4}\n");
    CHECK(child(load_as, "5 of 8") == 0 && !*said, "a valid file: %s", said);
}

/* ---- the same on every rank ---- */

typedef struct { Team *team; int rank; const Config *c; } Member;

static void *member(void *arg)
{
    Member *m = arg;
    Comm all = team_member(m->team, m->rank);
    config_same(m->c, &all);
    return NULL;
}

typedef struct { int size; const Config *c[TEAM_MAX]; } Job;

static void run_job(void *arg)
{
    Job *job = arg;
    Team team;
    pthread_t thread[TEAM_MAX];
    Member m[TEAM_MAX];
    team_open(&team, job->size);
    for (int r = 0; r < job->size; r++) {
        m[r] = (Member){&team, r, job->c[r]};
        pthread_create(&thread[r], NULL, member, &m[r]);
    }
    for (int r = 0; r < job->size; r++)
        pthread_join(thread[r], NULL);
    team_close(&team);
}

static void test_same(void)
{
    Check a = resolve("lr=2e-3", 4, USE_TRAIN), b = resolve("lr=2e-3", 4, USE_TRAIN),
          c = resolve("lr=1e-3", 4, USE_TRAIN);
    Check d = resolve("lr=1e-3|min_lr=1e-5|seed=7", 4, USE_TRAIN);
    Job same = {4, {a.cfg, b.cfg, a.cfg, b.cfg}}, alone = {1, {a.cfg}},
        one = {4, {a.cfg, b.cfg, c.cfg, b.cfg}};
    Job zero = {4, {c.cfg, a.cfg, a.cfg, a.cfg}}, two = {5, {a.cfg, c.cfg, a.cfg, d.cfg, a.cfg}},
        tie = {2, {c.cfg, a.cfg}};
    CHECK(child(run_job, &same) == 0 && !*said, "%s", said);
    CHECK(child(run_job, &alone) == 0 && !*said, "%s", said);
    DIES(run_job, &one, EXIT_CONFIG, "error[config-differs]", "the configuration of rank 2 is not",
        "lr is 0.001 on rank 2 and "
         "0.002 on rank 0", "change: ");
    DIES(run_job, &zero, EXIT_CONFIG, "of rank 0 is not", "lr is 0.001 on rank 0 and 0.002 on rank 1");
    DIES(run_job, &two, EXIT_CONFIG, "of ranks 1, 3 is not", "lr is 0.001 on rank 1 and 0.002 on rank 0");
    DIES(run_job, &tie, EXIT_CONFIG, "of rank 1 is not", "lr is 0.002 on rank 1 and 0.001 on rank 0");
}

/* Every key counts in the hash. */
static void test_hash(void)
{
    Check a = resolve("", 4, USE_TRAIN), b = resolve("", 4, USE_TRAIN);
    CHECK(config_hash(a.cfg) == config_hash(b.cfg), "the same hash");
    for (int i = 0; i < OPTIONS; i++) {
        Config c = *a.cfg;
        const Option *o = &options[i];
        void *field = option_field(o, &c);
        static const char *other[] = {"other"};
        switch (o->type) {
        case TYPE_INT:   *(int64_t *)field ^= 1; break;
        case TYPE_FLOAT:
            *(double *)field = isnan(*(double *)field) ? 0 : nextafter(*(double *)field, 1e9);
            break;
        case TYPE_BOOL:  *(int *)field ^= 1; break;
        case TYPE_STR:   *(const char **)field = "other"; break;
        case TYPE_LIST:  *(List *)field = (List){1, other}; break;
        case TYPE_ENUM:  *(int *)field = !*(int *)field; break;
        }
        CHECK(config_hash(&c) != config_hash(a.cfg), "%s does not count", o->key);
    }
}

/* ---- one rank alone ---- */

static void one_rank(void *arg) { config_for_one_rank(arg); }

static void test_one_rank(void)
{
    static const struct { const char *args; int world;
    } cases[] = {{"", 1},
                 {"", 8},
                 {"tensor_model_parallel_size=2|sequence_parallel=true|pipeline_model_parallel_size=2|"
                  "pipeline_schedule=zb-v|global_batch_size=16|make_vocab_size_divisible_by=96",
                  8},
                 {"pipeline_model_parallel_size=2|pipeline_model_parallel_layout=Et/"
                  "t*3L|step_batch_size_schedule='0:8 10K:16'",
                  8},
                 {"pipeline_balance=cost|pipeline_model_parallel_size=3", 6},
                 {"data_parallel_sharding_strategy=optim_grads_params|overlap_grad_reduce=true|overlap_param_"
                  "gather=true|num_distributed_optimizer_instances=2|rank_order=tp-cp-ep-pp-dp",
                  4},
                 {"pipeline_model_parallel_size=2|num_virtual_stages_per_pipeline_rank=2|microbatch_group_"
                  "size_per_vp_stage=3|"
                  "global_batch_size=24|account_for_loss_in_pipeline_split=true|num_layers=7",
                  4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Check k = resolve(cases[i].args, cases[i].world, USE_TRAIN);
        CHECK(!k.n, "%s: %s", cases[i].args, listing(&k));
        Config *c = config_for_one_rank(k.cfg);
        size_t size;
        char *text = written(c, &size);
        Check again = read_text(text, size, 0, NULL, 1, USE_TRAIN); /* one rank can read c's text */
        CHECK(!again.n && config_hash(again.cfg) == config_hash(c), "%s: %s", text, listing(&again));
        CHECK(again.cfg->padded_vocab_size == c->padded_vocab_size && c->stages == 1 &&
                  again.cfg->stages == 1 && c->stage_layers[0] == c->num_layers && c->world == 1 &&
                  c->data_parallel_size == 1,
              "%s: sizes", cases[i].args);
        CHECK(c->batch_steps == k.cfg->batch_steps && again.cfg->batch_steps == c->batch_steps &&
                  !memcmp(c->batch_step, again.cfg->batch_step,
                          sizeof *c->batch_step * (size_t)c->batch_steps) &&
                  c->batch_step == k.cfg->batch_step && c->micro_batch_size == k.cfg->micro_batch_size,
              "%s: batch", cases[i].args);
        for (int o = 0; o < OPTIONS; o++) {            /* nothing but the section `parallel` has changed */
            char *now_ = config_text(c, o), *then = config_text(k.cfg, o);
            CHECK(!strcmp(options[o].section, "parallel") || !strcmp(now_, then), "%s: %s", cases[i].args,
                options[o].key);
            free(now_);
            free(then);
        }
        free(text);
    }
    Check many = resolve("micro_batch_size=1|global_batch_size=524280", 8, USE_TRAIN);
    CHECK(!many.n, "%s", listing(&many));
    DIES(one_rank, many.cfg, EXIT_CONFIG, "error[one-rank]", "524280 microbatches of 1", "change: ");
}

int main(void)
{
    snprintf(path, sizeof path, "%s/ranks.yaml", getenv("WORK") ? getenv("WORK") : "/tmp");
    test_errors();
    test_same();
    test_hash();
    test_one_rank();
    unlink(path);
    return test_end();
}
