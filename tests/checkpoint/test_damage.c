/* test_damage -- damaged, foreign and hostile checkpoints, and other models: refused by name, without a
 * crash */
#define _GNU_SOURCE
#include "tiny.h"
#define XXH_INLINE_ALL
#include <xxhash.h>

/* K07: every flipped bit of the manifest is found, and random ones of the shards. */
static void flipped_bits(int shard_bits)
{
    Config cfg = base_config();
    char *dir = path_of("flip"), *iter = path_of("flip/checkpoints/iter_0000005");
    int64_t n;
    Source s;
    int missed = 0;
    CHECK(save(dir, 5, &cfg) == 5, "saved");
    char *text = slurp(path_of("flip/checkpoints/iter_0000005/manifest.json"), &n);
    for (int64_t bit = 0; bit < 8 * n; bit++) {
        Manifest m;
        text[bit / 8] = (char)(text[bit / 8] ^ 1 << bit % 8);
        missed += manifest_parse(&m, text, n, why) || !strstr(why, "manifest.json");
        manifest_close(&m);
        text[bit / 8] = (char)(text[bit / 8] ^ 1 << bit % 8);
    }
    for (int64_t cut = 0; cut < n; cut++) {
        Manifest m;
        missed += manifest_parse(&m, text, cut, why);
        manifest_close(&m);
    }
    CHECK(!missed, "%d flipped bits or cuts of the manifest were not seen", missed);
    free(text);
    missed = 0;
    for (int k = 0; k < 2; k++) {
        const char *name = k ? "optim-00000.safetensors" : "model-00000.safetensors";
        char *file = path_of("flip/checkpoints/iter_0000005/%s", name);
        text = slurp(file, &n);
        int fd = open(file, O_WRONLY);
        for (int i = 0; i < shard_bits / 2; i++) {
            Philox r = philox(7, (uint64_t)i, (uint64_t)k);
            int64_t bit = (int64_t)(r.v[0] % (uint64_t)(8 * n));
            char byte = (char)(text[bit / 8] ^ 1 << bit % 8);
            CHECK(pwrite(fd, &byte, 1, bit / 8) == 1, "flip");
            int ok = source_open(&s, iter, why) && source_verify(&s, NULL, why);
            missed += ok || !strstr(why, name);
            source_close(&s);
            CHECK(pwrite(fd, &text[bit / 8], 1, bit / 8) == 1, "flip back");
        }
        close(fd);
        free(text);
    }
    CHECK(!missed, "%d flipped bits of the shards were not seen", missed);
    CHECK(source_open(&s, iter, why) && source_verify(&s, NULL, why), "%s", why);
    source_close(&s);
}

/* K08 and K15: files that are missing, foreign or swapped; a wrong `latest`. */
static void wrong_files(void)
{
    Config cfg = base_config();
    char *dir = path_of("files"), *it = path_of("files/checkpoints/iter_0000002");
    CHECK(save(dir, 1, &cfg) == 1 && save(dir, 2, &cfg) == 2, "saved");
    shell("cp -r %s/checkpoints %s/good", dir, dir);
#define AGAIN_WITH(...)                                                                                      \
    shell("rm -rf %s/checkpoints && cp -r %s/good %s/checkpoints", dir, dir, dir);                           \
    shell(__VA_ARGS__)
    AGAIN_WITH("rm %s/optim-00000.safetensors", it);
    DIES(load_whole, dir, 4, "optim-00000.safetensors is missing", "iter_0000002", "change:");
    AGAIN_WITH("cp %s/model-00000.safetensors %s/model-00001.safetensors", it, it);
    DIES(load_whole, dir, 4, "model-00001.safetensors does not belong");
    AGAIN_WITH("cp %s/good/iter_0000001/model-00000.safetensors %s/", dir, it);
    DIES(load_whole, dir, 4, "model-00000.safetensors is from iteration 1", "iteration 2");
    AGAIN_WITH("cp %s/optim-00000.safetensors %s/model-00000.safetensors", it, it);
    DIES(load_whole, dir, 4, "model-00000.safetensors");
    AGAIN_WITH("printf x >> %s/model-00000.safetensors", it);
    DIES(load_whole, dir, 4, "model-00000.safetensors has", "the manifest says");
    AGAIN_WITH("mv %s/model-00000.safetensors %s/m && ln -s m %s/model-00000.safetensors", it, it, it);
    DIES(load_whole, dir, 4, "model-00000.safetensors is not a regular file");
    AGAIN_WITH("printf '{}' > %s/manifest.json", it);
    DIES(load_whole, dir, 4, "manifest.json is damaged", "on_corrupt=previous");
    cfg.on_corrupt = ON_CORRUPT_PREVIOUS;
    int stderr_copy = dup(2), null = open("/dev/null", O_WRONLY);
    dup2(null, 2);
    CHECK(load(dir, 0, 0, 1, &cfg) == 1, "on_corrupt: previous takes the one before");
    dup2(stderr_copy, 2);
    close(stderr_copy);
    close(null);
    AGAIN_WITH("rm %s/manifest.json", it);
    CHECK(load(dir, 0, 0, 1, &cfg) == 1, "without a manifest it is no checkpoint");
    AGAIN_WITH("printf 'iter_0009999' > %s/checkpoints/latest; mkdir %s/checkpoints/iter_9 "
               "%s/checkpoints/iter_0000003.tmp",
               dir, dir, dir);
    CHECK(load(dir, 0, 0, 1, &cfg) == 2, "latest is only a hint");
    AGAIN_WITH("rm %s/checkpoints/latest", dir);
    CHECK(load(dir, 0, 0, 1, &cfg) == 2, "without the hint");
    AGAIN_WITH("rm -r %s/checkpoints/iter_*", dir);
    DIES(load_whole, dir, 4, "holds no checkpoint", "change:");
}

/* Replaces `from` by `to` in a manifest and computes its hash anew, as an attacker would. */
static void forge(const char *dir, const char *from, const char *to)
{
    int64_t n;
    char *file = xasprintf("%s/manifest.json", dir), *text = slurp(file, &n), *at = strstr(text, from);
    CHECK(at, "%s is not in the manifest", from);
    json_error_t e;
    char *edited = xasprintf("%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    json_t *j = json_loads(edited, 0, &e);
    CHECK(j, "%s", e.text);
    json_object_del(j, "hash");
    char *body = json_dumps(j, JSON_COMPACT);
    char *open = xasprintf("%.*s,\"hash\":\"", (int)strlen(body) - 1, body);
    uint64_t hash = XXH3_64bits(open, strlen(open));
    char *whole = xasprintf("%s%016llx\"}\n", open, (unsigned long long)hash);
    spill(file, whole, (int64_t)strlen(whole));
    free(whole), free(open), free(body), free(edited), free(text), free(file);
    json_decref(j);
}

/* K11 and K19: manifests whose hash is right and whose content must be refused. */
static void hostile(void)
{
    static const struct { const char *from, *to, *reason;
    } t[] = {
        {"\"version\":1", "\"version\":2", "format version 2"},
        {"\"version\":1", "\"version\":0", "format version 0"},
        {"\"format\":\"gridiron\"", "\"format\":\"other\"", "not a gridiron"},
        {"\"name\":\"model-00000.safetensors\"", "\"name\":\"../model-00000.safetensors\"", "file name 0"},
        {"\"name\":\"model-00000.safetensors\"", "\"name\":\"/etc/passwd\"", "file name 0"},
        {"\"name\":\"model-00000.safetensors\"", "\"name\":\"..\"", "file name 0"},
        {"\"name\":\"model-00000.safetensors\"", "\"name\":\"\"", "file name 0"},
        {"\"name\":\"model-00000.safetensors\"", "\"name\":\"a b\"", "file name 0"},
        {"\"name\":\"model-00000.safetensors\"", "\"name\":\"manifest.json\"", "file name 0"},
        {"\"name\":\"model-00000.safetensors\"", "\"name\":\"optim-00000.safetensors\"", "twice"},
        {"\"layer.bias\"", "\"../layer\"", "tensor name"},
        {"\"layer.bias\"", "\"a\\nb\"", "tensor name"},
        {"\"dtype\":\"BF16\"", "\"dtype\":\"U8\"", "dtype"},
        {"\"shape\":[12,10]", "\"shape\":[12,11]", "elements"},
        {"\"shape\":[12,10]", "\"shape\":[-12,10]", "below 1"},
        {"\"shape\":[12,10]", "\"shape\":[4611686018427387904,10]", "overflows"},
        {"\"shape\":[12,10]", "\"shape\":[12,10,1]", "dimensions"},
        {"\"rows\":12", "\"rows\":13", "does not lie in it"},
        {"\"rows\":12", "\"rows\":0", "does not lie in it"},
        {"\"iteration\":2", "\"iteration\":3", "of iteration 3, but its state is not"},
        {"\"row\":0", "\"row\":9223372036854775807", "does not lie in it"},
        {"\"row\":0", "\"row\":-1", "does not lie in it"},
        {"\"cols\":10,\"hash\":[\"", "\"cols\":10,\"hash\":[\"x", "malformed hash"},
        {"\"cols\":10,\"hash\":[", "\"cols\":10,\"hash\":[\"0000000000000000\",", "hash for each block"},
        {"\"file\":\"model-00000.safetensors\",\"row\"", "\"file\":\"other\",\"row\"", "not listed"},
        {"\"boxes\":[{",
         "\"boxes\":[{\"file\":\"model-00000.safetensors\",\"row\":1,\"col\":0,\"rows\":1,\"cols\":10,"
         "\"hash\":[\"0000000000000000\"]},{",
         "overlap"},
    };
    Config cfg = base_config();
    char *dir = path_of("hostile"), *it = path_of("hostile/checkpoints/iter_0000002");
    CHECK(save(dir, 2, &cfg) == 2, "saved");
    shell("cp %s/manifest.json %s/good.json", it, dir);
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        shell("cp %s/good.json %s/manifest.json", dir, it);
        forge(it, t[i].from, t[i].to);
        DIES(load_whole, dir, 4, t[i].reason);
    }
    shell("cp %s/good.json %s/manifest.json", dir, it);
    forge(it, "\"iteration\":2", "\"iteration\":2");
    CHECK(load(dir, 0, 0, 1, &cfg) == 2, "a forged manifest that changes nothing loads");
}

/* Manifests with random damage and the right hash: none may crash the reader. */
static void forged_at_random(int runs)
{
    Config cfg = base_config();
    char *dir = path_of("fuzz");
    int64_t n;
    int accepted = 0;
    CHECK(save(dir, 1, &cfg) == 1, "saved");
    char *text = slurp(path_of("fuzz/checkpoints/iter_0000001/manifest.json"), &n);
    char *bad = xcalloc(1, (size_t)n + 64);
    static const char *const words[] = {
        "-1", "0", "9223372036854775807", "1e300", "[]", "{}", "null", "\"x\"", "true", ""};
    const size_t body = (size_t)n - 19;         /* without the hash's 16 digits, quote, brace, newline */
    for (int run = 0; run < runs; run++) {
        Philox r = philox(5, (uint64_t)run, 0);
        const char *word = words[r.v[1] % (sizeof words / sizeof *words)];
        size_t at = r.v[0] % (body - 3), end = at + r.v[2] % 12;
        end = end < body ? end : body;
        int64_t m = sprintf(bad, "%.*s%s%.*s", (int)at, text, word, (int)(body - end), text + end);
        Manifest got;
        m += sprintf(bad + m, "%016llx\"}\n", (unsigned long long)XXH3_64bits(bad, (size_t)m));
        accepted += manifest_parse(&got, bad, m, why);
        manifest_close(&got);
    }
    printf("# forged manifests: %d of %d accepted\n", accepted, runs);
    CHECK(accepted > 0 && accepted < runs / 2, "%d of %d accepted", accepted, runs);
    free(text);
    free(bad);
}

/* K10: a checkpoint of another model: one line names every key and tensor that differs. */
static void load_other(void *arg)
{
    static const char mine[] =
        "model:\n  num_layers: 4\n  hidden_size: 96\n  num_attention_heads: 8\n  vocab_size: 300\n"
        "  untie_embeddings_and_output_weights: true\n";
    const char *skipped;
    Config cfg = *config_read_saved(mine, sizeof mine - 1, &skipped);
    Comm self;
    float w[4];
    TensorPiece p[] = {
        {.name = "layer.weight", .type = F32, .ndim = 2, .shape = {2, 2}, .rows = 2, .cols = 2, .data = w,
         .ld = 2},
        {.name = "absent", .type = F32, .ndim = 1, .shape = {4}, .rows = 4, .cols = 1, .data = w, .ld = 1}};
    comm_self_open(&self, "all");
    checkpoint_load(&(LoadFrom){.path = arg}, &cfg, &self, p, 2, 0, NULL);
}

static void other_model(void)
{
    static const char saved[] =
        "model:\n  num_layers: 2\n  hidden_size: 64\n  num_attention_heads: 4\n  vocab_size: 257\n"
        "  untie_embeddings_and_output_weights: false\n";
    static const char *const words[] = {"num_layers is 2 there, 4 here",
                                        "hidden_size is 64 there, 96 here",
                                        "num_attention_heads is 4 there, 8 here",
                                        "vocab_size is 257 there, 300 here",
                                        "untie_embeddings_and_output_weights is false there, true here",
                                        "layer.weight is [12, 10] there, [2, 2] here",
                                        "absent is not there",
                                        "change:"};
    static Model m;
    Config cfg = base_config();
    char *dir = path_of("other");
    Comm self;
    Arena arena = no_arena;
    comm_self_open(&self, "all");
    make(&m, 0, 0, 1);
    fill(&m, 1);
    Saver *s = saver_open(&cfg, dir, &self, m.p, m.n, &arena);
    saver_start(s);
    json_t *state = json_pack("{s:s}", "config", saved);
    saver_save(s, 1, state);
    json_decref(state);
    saver_close(s);
    int rc = child(load_other, dir);
    CHECK(rc == EXIT_CHECKPOINT && lines(said) == 1, "exit %d: %s", rc, said);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        CHECK(strstr(said, words[i]), "'%s' is not in: %s", words[i], said);
}

/* test_damage [BITS] | test_damage forge CHECKPOINT FROM TO */
int main(int argc, char **argv)
{
    if (argc == 5) {
        forge(argv[2], argv[3], argv[4]);
        return test_end();
    }
    if (!mkdtemp(folder))
        return 1;
    flipped_bits(argc > 1 ? atoi(argv[1]) : 2000);
    wrong_files();
    hostile();
    forged_at_random(20000);
    other_model();
    shell("rm -rf %s", folder);
    return test_end();
}
