/* train generate -- continues a text or token ids: the prompt in one forward pass, then one token a pass with
 * a KV cache. Where the tokenizer knows ids alone, a text is their numbers with a blank before each. */
#define _GNU_SOURCE
#include "commands.h"
#include "run.h"
#include "sample.h"
#include "start.h"
#include "tokenizer.h"
#include <ctype.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What is continued. */
typedef struct {
    char *text;                 /* [bytes] */
    size_t bytes;
    int32_t *token;             /* [n] */
    int64_t n;
} Prompt;

/* Continues the prompt by up to `count` tokens, or up to and including the token `end`. Returns the
 * number of tokens in out. The run must have a KV cache for prompt->n + count positions. */
static int64_t generate_text(Run *r, const Sampling *s, const Prompt *prompt, int64_t count, int32_t end,
                             int32_t *out)
{
    int64_t V = r->cfg->vocab_size, made = 0;
    double *logits = xcalloc((size_t)V, sizeof *logits);
    float *narrow = xcalloc((size_t)V, sizeof *narrow);
    int32_t *order = xcalloc((size_t)V, sizeof *order);
    int wide = r->params.real == F64;
    r->generation.cache.length = 0;
    while (made < count) {
        run_extend(r, made ? &out[made - 1] : prompt->token, made ? 1 : prompt->n,
                   wide ? (void *)logits : narrow);
        int finite = 1;
        for (int64_t i = 0; i < V; i++) {
            logits[i] = wide ? logits[i] : narrow[i];
            finite &= isfinite(logits[i]) != 0;
        }
        if (!finite)                   /* on every rank */
            all_ok(&r->grid.all, 0, EXIT_NUMERIC, "not-finite", "the logits of token %ld are not finite, of "
                   "weights that are; change: params_dtype=fp32, or load an earlier checkpoint",
                   r->generation.cache.length);
        out[made] = sample_token(s, logits, V, r->generation.cache.length, order);
        if (out[made++] == end)
            break;
    }
    free(logits);
    free(narrow);
    free(order);
    return made;
}

/* Returns text [n] with every byte that is not UTF-8, and every byte 0, replaced by U+FFFD: a model of bytes
 * may stop within a character, and strings of C end at a 0. */
static char *valid_utf8(const char *text, size_t n)
{
    char *out = xcalloc(3 * n + 1, 1), *to = out;
    while (n) {
        size_t k = 4 < n ? 4 : n;
        json_t *ok = NULL;
        while (k && (memchr(text, 0, k) || !(ok = json_stringn(text, k))))
            k--;
        memcpy(to, ok ? text : "\xEF\xBF\xBD", ok ? k : 3);
        to += ok ? k : 3;
        text += ok ? k : 1;
        n -= ok ? k : 1;
        json_decref(ok);
    }
    return out;
}

/* The ids of the tokens, on the heap. */
static char *numbers_of(const int32_t *token, int64_t n, size_t *bytes)
{
    char *text;
    FILE *f = xmemstream(&text, bytes);
    for (int64_t i = 0; i < n; i++)
        fprintf(f, " %d", token[i]);
    fclose(f);
    return text;
}

/* The text of the tokens, on the heap; end-of-document has none. */
static char *text_of(const Tokenizer *tok, const int32_t *token, int64_t n, size_t *bytes)
{
    if (!tok->decode)
        return numbers_of(token, n, bytes);
    char *text = xcalloc((size_t)(n * tok->longest) + 1, 1), *to = text;
    for (int64_t i = 0; i < n; i++)
        if (token[i] != tok->eod)
            to += tok->decode(tok, token[i], to);
    *bytes = (size_t)(to - text);
    return text;
}

static void print_sample(const Tokenizer *tok, const Prompt *prompt, const int32_t *token, int64_t n,
                         int json)
{
    size_t bytes;
    char *text = text_of(tok, token, n, &bytes);
    if (json) {
        json_t *tokens = json_array();
        for (int64_t i = 0; i < n; i++)
            json_array_append_new(tokens, json_integer(token[i]));
        char *clean = valid_utf8(text, bytes), *asked = valid_utf8(prompt->text, prompt->bytes);
        json_t *j = json_pack("{s:s s:o s:s}", "prompt", asked, "tokens", tokens, "text", clean);
        json_dumpf(j, stdout, JSON_COMPACT);
        json_decref(j);
        free(clean);
        free(asked);
    } else {
        if (isatty(STDOUT_FILENO))     /* weights of somebody else may say anything */
            text_plain(text, bytes, "\n\t");
        fwrite(prompt->text, 1, prompt->bytes, stdout);
        fwrite(text, 1, bytes, stdout);
    }
    putchar('\n');
    free(text);
}

/* Returns the run directory of a checkpoint, on the heap, and its *iteration. NULL: the checkpoint lies
 * in no run directory, or in one that may not be written to. */
static char *run_of(const char *checkpoint, int64_t *iteration)
{
    char *dir = xstrdup(checkpoint), *slash = strrchr(dir, '/'), *metrics;
    if (slash)
        *slash = 0;
    size_t n = strlen(dir), tail = strlen("/checkpoints");
    int ours = slash && sscanf(slash + 1, "iter_%ld", iteration) == 1 && n > tail &&
               !strcmp(dir + n - tail, "/checkpoints");
    dir[ours ? n - tail : 0] = 0;
    metrics = xasprintf("%s/metrics.jsonl", dir);
    ours = ours && !access(metrics, R_OK) && !access(dir, W_OK);
    free(metrics);
    if (ours)
        return dir;
    free(dir);
    return NULL;
}

/* Whether the last line of the file is one whose write was cut off. */
static int is_torn(const char *path)
{
    char last = '\n';
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (fd >= 0 && lseek(fd, -1, SEEK_END) >= 0 && read(fd, &last, 1) != 1)
        last = '\n';
    if (fd >= 0)
        close(fd);
    return last != '\n';
}

/* Appends the text to the run's samples.jsonl, for its report. */
static void keep_sample(const char *checkpoint, const Tokenizer *tok, const Prompt *prompt,
                        const int32_t *token, int64_t n)
{
    int64_t iteration;
    char *dir = run_of(checkpoint, &iteration), why[WHY];
    if (!dir)
        return;
    size_t bytes;
    char *path = xasprintf("%s/samples.jsonl", dir), *text = text_of(tok, token, n, &bytes);
    char *clean = valid_utf8(text, bytes), *asked = valid_utf8(prompt->text, prompt->bytes);
    json_t *j =
        json_pack("{s:I s:s s:s}", "iteration", (json_int_t)iteration, "prompt", asked, "text", clean);
    char *dump = json_dumps(j, JSON_COMPACT), *line = xasprintf("%s%s\n", is_torn(path) ? "\n" : "", dump);
    int fd = file_open_append(AT_FDCWD, path, 0, why),
        ok = fd >= 0 && (file_append(fd, line, strlen(line)) || file_errno(why, "cannot write"));
    if (fd >= 0)
        close(fd);
    if (!ok)
        warn("%s lacks this text: %s", path, why);
    else if (!report_write(dir, why))
        warn("the report lacks this text: %s", why);
    free(dump);
    free(line);
    json_decref(j);
    free(asked);
    free(clean);
    free(text);
    free(path);
    free(dir);
}

/* ---- the prompt ---- */

/* Reads token ids between commas. */
static void read_ids(Prompt *p, const Tokenizer *tok, const char *list)
{
    const char *at = list;
    char *end;
    p->token = xcalloc(strlen(list), sizeof *p->token);
    for (int more = 1; more; at = end + 1) {
        at += strspn(at, " ");
        long id = strtol(at, &end, 10);
        if (!isdigit((unsigned char)*at) || (*end && *end != ',') || id >= tok->vocab)
            die(EXIT_CONFIG, "usage", "train generate: --prompt-ids %.100s: '%.*s' is no token id in [0, %d]"
                "; change: give ids between commas, --prompt-ids 5,17", list, (int)strcspn(at, ","), at,
                tok->vocab - 1);
        p->token[p->n++] = (int32_t)id;
        more = *end == ',';
    }
    char *text = text_of(tok, p->token, p->n, &p->bytes);
    p->bytes -= !tok->decode;          /* no blank before the first number */
    p->text = memmove(text, text + !tok->decode, p->bytes + 1);
}

static Prompt read_prompt(const Tokenizer *tok, const char *text, const char *ids)
{
    Prompt p = {0};
    if (text && ids)
        die(EXIT_CONFIG, "usage", "train generate: --prompt and --prompt-ids are two prompts; change: give "
            "one of them");
    if (ids) {
        read_ids(&p, tok, ids);
        return p;
    }
    if (!tok->encode)
        die(EXIT_DATA, "tokenizer", "tokenizer_type %s cannot turn text into tokens; change: give the prompt "
            "as token ids, --prompt-ids 5,17, or the tokenizer that the corpus was made with", tok->name);
    p.text = xstrdup(text ? text : "");
    p.bytes = strlen(p.text);
    p.token = xcalloc(p.bytes + 1, sizeof *p.token);
    p.n = tok->encode(tok, p.text, (int64_t)p.bytes, p.token);
    if (!p.n)                          /* an empty prompt: start as a document starts */
        p.token[p.n++] = tok->eod;
    return p;
}

/* The number of tokens to make: as --tokens says, absent (NAN) 256 or what the positions leave. Dies if the
 * model has too few positions. */
static int64_t count_of(double asked, const Prompt *p, int64_t positions)
{
    int64_t room = positions - p->n, count = isnan(asked) ? room < 256 ? room : 256 : (int64_t)asked;
    count = count > 0 ? count : 1;
    if (count > room)
        die(EXIT_CONFIG, "generate-length", "a prompt of %ld tokens and %ld to continue it make more than "
            "the %ld positions of the model; change: %sa shorter prompt", p->n, count, positions,
            room > 0 ? xasprintf("--tokens %ld or ", room) : "");
    return count;
}

int command_generate(int argc, char **argv)
{
    Args a = cli_open("generate", argc, argv);
    const char *text = args_value(&a, "--prompt"), *ids = args_value(&a, "--prompt-ids");
    double asked = args_number(&a, "--tokens");
    Sampling s = {.temperature = args_number(&a, "--temperature"),
                  .top_k = (int64_t)args_number(&a, "--top-k"), .top_p = args_number(&a, "--top-p")};
    double seed = args_number(&a, "--seed");
    int json = args_switch(&a, "--json");
    const char *path = cli_config(&a);
    cli_end(&a);
    const Config *cfg = start_config(path, &a, USE_LOAD);
    s.seed = isnan(seed) ? (uint64_t)cfg->seed : (uint64_t)seed;
    const Tokenizer *tok = tokenizer_open(cfg);
    Prompt p = read_prompt(tok, text, ids);
    int64_t count = count_of(asked, &p, cfg->max_position_embeddings);
    Run r;
    run_open(&r, cfg, RUN_FORWARD, p.n + count, NULL);
    char *found = run_load(&r, cfg->load);
    int32_t *out = xcalloc((size_t)count, sizeof *out);
    int64_t made = generate_text(&r, &s, &p, count, tok->eod, out);
    if (r.grid.rank == 0) {            /* every rank has drawn the same tokens */
        print_sample(tok, &p, out, made, json);
        fflush(stdout);
        keep_sample(found, tok, &p, out, made);
    }
    free(found);
    free(out);
    free(p.text);
    free(p.token);
    run_close(&r);
    return EXIT_DONE;
}
