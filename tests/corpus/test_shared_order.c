/* test_shared_order -- the ranks of a host read one order of samples: on every rank it is the one that a
 * process by itself works out, and only the one that made it may write it. Run with several ranks. */
#include "comm_mpi.h"
#include "files.h"
#include "grid.h"
#include "job.h"
#include "start.h"
#include "test.h"

#define SEQ 8

/* Writes n u16 tokens, all below 251, as `name` in the folder of the test's files. */
static void put_raw(const char *name, int n)
{
    uint16_t *t = xcalloc((size_t)n, sizeof *t);
    char *path = in_work(name);
    for (int i = 0; i < n; i++)
        t[i] = (uint16_t)(251 * rng_uniform(1, (uint64_t)n, (uint64_t)i));
    put_file(path, t, 2 * (size_t)n);
    free(t);
    free(path);
}

/* What this process may do with the memory that the ranks of a host share: as "rw-s" of /proc/self/maps.
 * Returns its inode; 0: there is none. */
static int64_t rights(char may[5])
{
    char line[512];
    long inode = 0;
    FILE *f = fopen("/proc/self/maps", "r");
    strcpy(may, "none");
    while (f && fgets(line, sizeof line, f))
        if (strstr(line, "gridiron-host"))
            sscanf(line, "%*x-%*x %4s %*x %*x:%*x %ld", may, &inode);
    if (f)
        fclose(f);
    return inode;
}

/* The ranks of a host have one memory, those of another host have another. */
static void one_a_host(Comm *all, int64_t inode)
{
    int64_t mine[2] = {comm_mpi_host(), inode}, *each = xcalloc(2 * (size_t)all->size, sizeof *each);
    all->wait(all, all->all_gather(all, each, mine, 2, I64));
    for (int i = 0; i < all->size; i++)
        CHECK((each[2 * i] == mine[0]) == (each[2 * i + 1] == inode), "ranks %d and %d", all->rank, i);
    free(each);
}

/* The samples of a run's loader are those of one that a process opens by itself. makers: hosts. */
static void test_order(Run *r, Split split, int n, const char **path, int64_t samples, int64_t makers)
{
    Comm *all = &r->grid.all;
    Config c = {.vocab_size = 257, .seq_length = SEQ, .micro_batch_size = 1, .seed = 7, .split = "80,20",
                .max_epochs = CFG_ABSENT, .null_tokenizer_eod_id = CFG_ABSENT, .eod_mask_loss = 1,
                .data_path = {n, path}};
    Positions whole = positions_one(0, SEQ);
    Loader *own = loader_open(&c, split, samples, 0, 1, &whole, &sharers_none);
    Loader *shared = start_loader(&c, r, split, samples);
    char *why = NULL, may[5];
    int32_t a[SEQ + 1], b[SEQ + 1];
    CHECK(loader_samples(shared) == loader_samples(own) && loader_passes(shared) == loader_passes(own) &&
              loader_epochs(shared) == loader_epochs(own) && loader_tokens(shared) == loader_tokens(own) &&
              loader_fingerprint(shared) == loader_fingerprint(own), "rank %d: other counts", r->grid.rank);
    for (int64_t k = 0; k < loader_samples(own); k++)
        CHECK(loader_copy(own, k, a, &why) && loader_copy(shared, k, b, &why) && !memcmp(a, b, sizeof a),
              "sample %ld", k);
    CHECK(loader_endless(own) && loader_endless(shared) &&
              !strcmp(loader_endless(own), loader_endless(shared)), "256 is not in the corpus");
    one_a_host(all, rights(may));
    int64_t made = !strcmp(may, "rw-s");
    CHECK(made || !strcmp(may, "r--s"), "rank %d has %s", r->grid.rank, may);
    all->wait(all, all->all_reduce(all, &made, 1, I64, OP_SUM));
    CHECK(made == makers, "%ld ranks have worked it out, not %ld", made, makers);
    loader_close(own);
    loader_close(shared);
    rights(may);
    CHECK(!strcmp(may, "none"), "rank %d has %s after loader_close", r->grid.rank, may);
}

int main(void)
{
    int rank, world = job_launched(&rank);
    const char *each = getenv("GRIDIRON_RANKS_PER_HOST");
    int64_t makers = each ? (world + atoi(each) - 1) / atoi(each) : 1;
    GridSpec spec = grid_along(AXIS_DP, world);
    Run r = {0};
    work_open();
    grid_open(&r.grid, &spec, world, rank);
    if (rank == 0) {
        put_raw("a", 4001);
        put_raw("b", 999);
    }
    r.grid.all.barrier(&r.grid.all);
    char *a = xasprintf("raw:%s/a", work), *b = xasprintf("raw:%s/b", work);
    test_order(&r, SPLIT_TRAIN, 1, (const char *[]){a}, 1200, makers);
    test_order(&r, SPLIT_TRAIN, 2, (const char *[]){a, b}, -1, makers);
    test_order(&r, SPLIT_TRAIN, 4, (const char *[]){"3", a, "1", b}, 700, makers);
    /* a Megatron pair, whose second share does not begin with its first sequence; several epochs */
    test_order(&r, SPLIT_VALID, 1, (const char *[]){"tests/golden/corpus"}, 300, makers);
    test_order(&r, SPLIT_VALID, 4, (const char *[]){"3", "tests/golden/corpus", "1", a}, 700, makers);
    grid_close(&r.grid);
    free(a);
    free(b);
    return test_end();
}
