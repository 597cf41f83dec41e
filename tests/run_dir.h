/* run_dir -- for tests: a configuration, metrics whose numbers are known, and run directories to log
 * them in. */
#ifndef RUN_DIR_H
#define RUN_DIR_H
#include "metrics.h"
#include "test.h"
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <sys/stat.h>
#include <unistd.h>

#define UNUSED __attribute__((unused))

static const Config *cfg;
static char top[256];

UNUSED static char *path_of(const char *dir, const char *name) { return xasprintf("%s/%s", dir, name); }

UNUSED static char *slurp(const char *dir, const char *name, size_t *size)
{
    char *path = path_of(dir, name), *text = NULL;
    size_t n = 0;
    FILE *f = fopen(path, "re");
    if (f) {
        fseek(f, 0, SEEK_END);
        n = (size_t)ftell(f);
        rewind(f);
        text = xcalloc(1, n + 1);
        CHECK(fread(text, 1, n, f) == n, "%s", path);
        fclose(f);
    }
    if (size)
        *size = n;
    free(path);
    return text;
}

UNUSED static char *new_dir(const char *name)
{
    char *dir = xasprintf("%s/%s", top, name);
    CHECK(!mkdir(dir, 0777), "%s: %s", dir, strerror(errno));
    return dir;
}

UNUSED static void write_text(const char *dir, const char *name, const char *text)
{
    char *path = path_of(dir, name);
    FILE *f = fopen(path, "we");
    CHECK(f && fputs(text, f) >= 0, "%s", path);
    fclose(f);
    free(path);
}

/* Metrics of iteration i; every number is a function of i. */
UNUSED static Metrics step_at(int64_t i)
{
    double x = (double)i;
    return (Metrics){.iteration = i, .consumed_samples = 4 * i, .consumed_tokens = 4 * i * cfg->seq_length,
                     .lm_loss = 6 / (1 + 0.1 * x) + 1e-9 * x, .grad_norm = 1 / (x + 2),
                     .learning_rate = 1e-3 / (x + 1), .loss_scale = 65536 / (double)(1 + i / 4),
                     .global_batch_size = 4, .elapsed_ms = 100 + (double)(i % 3), .memory_bytes = 1 << 20,
                     .skipped_iterations = i / 4, .nan_iterations = i / 7, .data_ms = 1, .forward_ms = 30,
                     .backward_ms = 60, .optimizer_ms = 5, .params_norm = 3 + x / 1024, .num_zeros = 10 * x};
}

UNUSED static Log *open_log(const char *dir, int64_t resume, int64_t total)
{
    return log_open(cfg, &(LogStart){.run_dir = dir, .resume_iteration = resume, .total_iterations = total,
                                     .flops_per_token = 1e6, .parameters = 123456,
                                     .command = "train x <y> & 'z'", .build = "test"});
}

/* Sends standard output to fd, until put_back gets the returned descriptor. */
UNUSED static int redirect(int fd)
{
    fflush(stdout);
    int saved = dup(STDOUT_FILENO);
    dup2(fd, STDOUT_FILENO);
    return saved;
}

UNUSED static void put_back(int saved)
{
    fflush(stdout);
    dup2(saved, STDOUT_FILENO);
    close(saved);
}

UNUSED static double number(json_t *o, const char *name)
{
    json_t *v = json_object_get(o, name);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

UNUSED static void run_dir_open(const char *name)
{
    const char *tmp = getenv("WORK") ? getenv("WORK") : "/tmp";
    snprintf(top, sizeof top, "%s/%s-XXXXXX", tmp, name);
    CHECK(mkdtemp(top), "%s: %s", top, strerror(errno));
    setenv("TZ", "UTC", 1);
    write_text(top, "x.yaml",
               "model: {num_layers: 2, hidden_size: 32, num_attention_heads: 4, seq_length: 16, vocab_size: "
               "64}\ntrain: {micro_batch_size: 4}\nlog: {log_interval: 1, log_style: lines, "
               "device_peak_tflops: 2}\n");
    char *path = path_of(top, "x.yaml");
    cfg = config_load(path, 0, NULL, 1, USE_MODEL);
    free(path);
}

UNUSED static int run_dir_end(void)
{
    char *wipe = xasprintf("rm -rf %s", top);
    CHECK(!system(wipe), "%s", wipe);
    free(wipe);
    return test_end();
}
#endif
