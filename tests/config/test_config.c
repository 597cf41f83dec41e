/* test_config -- every row of the option table against typing errors, wrong places, types and ranges;
 * hostile files; the environment. `--docs` writes configs/OPTIONS.md to standard output. */
#define _GNU_SOURCE
#include "config_text.h"
#include <fcntl.h>
#include <glob.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- C01: unknown keys ---- */

static void mistype(char *s)
{
    int n = (int)strlen(s), at = (int)draw((uint32_t)n), c = 'a' + (int)draw(26);
    switch (draw(4)) {
    case 0:                                            /* one letter inserted */
        memmove(s + at + 1, s + at, (size_t)(n - at + 1));
        s[at] = (char)c;
        break;
    case 1:                                            /* one letter removed */
        memmove(s + at, s + at + 1, (size_t)(n - at));
        break;
    case 2:
        s[at] = (char)c;
        break;
    default:                                           /* two letters swapped */
        if (at + 1 < n) {
            char t = s[at];
            s[at] = s[at + 1];
            s[at + 1] = t;
        }
    }
}

static void test_typos(void)
{
    int tries = 0, right = 0;
    while (tries < 400) {
        const Option *o = &options[draw(OPTIONS)];
        char typo[80];
        snprintf(typo, sizeof typo, "%s", o->key);
        for (int edits = strlen(o->key) < 6 ? 1 : 1 + (int)draw(2); edits; edits--)
            mistype(typo);
        if (!*typo || option_find(typo) >= 0)
            continue;
        const char *section = draw(4) ? o->section : sections[draw((uint32_t)section_count)].name;
        Text t = compose(section, NULL, textf("  %s: %s", typo, sample_value(o)));
        Check k = read_text(t.text, t.size, 0, NULL, 0, USE_MODEL);
        tries++;
        right += count(&k, "unknown key", textf("did you mean '%s'", o->key), NULL) == 1;
        CHECK(k.n == 1 && k.list[0].place.line == t.line && k.list[0].place.col == 3, "%s: %s", typo,
              listing(&k));
        free(t.text);
    }
    CHECK(right >= tries * 98 / 100, "%d of %d suggestions are right", right, tries);
    printf("# typing errors: %d of %d suggestions right\n", right, tries);
    static const char *const others[][2] = {{"num_hidden_layers", "num_layers"},
                                            {"num_key_value_heads", "num_query_groups"},
                                            {"layernorm_epsilon", "norm_epsilon"},
                                            {"rms_norm_eps", "norm_epsilon"},
                                            {"rope_theta", "rotary_base"},
                                            {"low_freq_factor", "rope_low_freq_factor"},
                                            {"use_rope_scaling", "rope_scaling"},
                                            {"intermediate_size", "ffn_hidden_size"},
                                            {"bf16", "params_dtype"},
                                            {"learning_rate", "lr"},
                                            {"tensor_paralel", "tensor_model_parallel_size"},
                                            {"swiglu", "activation"},
                                            {"n_layer", "num_layers"},
                                            {"model_parallel_size", "tensor_model_parallel_size"},
                                            {"warmup", "lr_warmup_fraction"},
                                            {"tensor-model-parallel-size", "tensor_model_parallel_size"},
                                            {"NUM_LAYERS", "num_layers"}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const Alias *alias = alias_find(others[i][0]);
        int guess = alias ? option_find(alias->key) : option_suggest(others[i][0], NULL);
        CHECK(guess >= 0 && !strcmp(options[guess].key, others[i][1]), "%s", others[i][0]);
    }
    CHECK(option_suggest("xyzzy", NULL) < 0 && option_suggest("q", "model") < 0,
          "no suggestion out of the blue");
}

/* ---- C02, C03: wrong section, twice ---- */

static void test_places(void)
{
    for (int i = 0; i < OPTIONS; i++) {
        const Option *o = &options[i];
        for (int s = 0; s < section_count; s++) {
            Text t = compose(sections[s].name, o->key, textf("  %s: %s", o->key, sample_value(o)));
            Check k = read_text(t.text, t.size, 0, NULL, 0, USE_MODEL);
            int wrong = strcmp(o->section, sections[s].name) != 0;
            CHECK(k.n == wrong, "%s in %s: %s", o->key, sections[s].name, listing(&k));
            CHECK(!wrong || (count(&k, o->key, textf("belongs to section '%s'", o->section), NULL) == 1 &&
                             k.list[0].place.line == t.line && k.list[0].place.col == 3), "%s", listing(&k));
            CHECK(k.seen[i], "%s is taken from where it stands", o->key);
            free(t.text);
        }
        Text t = compose(o->section, o->key, textf("  %s: %s\n  %s: 7", o->key, sample_value(o), o->key));
        Check k = read_text(t.text, t.size, 0, NULL, 0, USE_MODEL);
        CHECK(k.n == 1 && count(&k, o->key, "duplicate", textf("first at line %d, column 3", t.line)) == 1 &&
              k.list[0].place.line == t.line + 1, "%s", listing(&k));
        free(t.text);
        char *args[] = {(char *)textf("%s=%s", o->key, sample_value(o)), (char *)textf("%s=7", o->key)};
        t = compose(NULL, o->key, NULL);
        k = read_text(t.text, t.size, 2, args, 0, USE_MODEL);
        CHECK(!count(&k, "duplicate", NULL, NULL) && k.set[i].arg == 1, "the last counts: %s", listing(&k));
        free(t.text);
    }
    char *args[] = {"lr=1", "lr=0.5"};
    Text t = compose(NULL, NULL, NULL);
    Check k = read_text(t.text, t.size, 2, args, 1, USE_TRAIN);
    CHECK(!k.n && k.cfg->lr == 0.5, "lr %g: %s", k.cfg->lr, listing(&k));
    free(t.text);
}

/* ---- other programs' names ---- */

/* Options of other programs whose names look like other keys, or like none. */
static void test_other_programs(void)
{
    static const char *const names[][2] = {
        {"no_check_for_nan_in_loss_and_grad", "check_for_nan_in_loss_and_grad=false"},
        {"moe_shared_expert_overlap", "leave it out"}, {"mtp_num_layers", "leave it out"},
        {"decoupled_lr", "leave it out"}, {"fp8_param_gather", "leave it out"},
        {"moe_router_dtype", "leave it out"}, {"use_cpu_initialization", "leave it out"},
        {"pretrained_checkpoint", "finetune=true"}, {"ckpt_step", "iter_N"},
        {"rotary_seq_len_interpolation_factor", "rope_scaling=linear"},
        {"encoder_seq_length", "'seq_length'"},
        {"data_args_path", "data_path=[0.3, a, 0.7, b]"}, {"profile", "trace_steps"},
        {"override-opt_param-scheduler", "leave it out"}, {"skip-train", "train eval"},
        {"data_parallel_size", "leave it out"}, {"local_batch_size", "'micro_batch_size'"},
        {"dropout", "hidden_dropout and attention_dropout"}, {"steps", "'train_iters'"},
        {"save_every", "'save_interval'"}, {"epochs", "write train_iters"}, {"eos_token_id", "eod_id"},
        {"bias", "add_bias_linear"}, {"mixed_precision", "'params_dtype'"}, {"zero", "optim_grads"},
        {"no_bias_gelu_fusion", "activation=gelu with"}, {"bias_gelu_fusion", "activation=gelu_tanh"},
        {"router_aux_loss_coef", "moe_router_topk / the number of layers"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        Text t = compose(NULL, NULL, NULL);
        char *arg = textf("%s=1", names[i][0]);
        Check k = read_text(t.text, t.size, 1, &arg, 1, USE_TRAIN);
        CHECK(k.n == 1 && strstr(k.list[0].text, names[i][1]), "%s: %s", names[i][0], listing(&k));
        free(t.text);
    }
}

static void test_aliases(void)
{
    for (int i = 0; alias_at(i); i++) {
        const Alias *a = alias_at(i);
        Text t = compose(NULL, NULL, NULL);
        char *arg = textf("%s=1", a->name);
        Check k = read_text(t.text, t.size, 1, &arg, 1, USE_TRAIN);
        CHECK(option_find(a->name) < 0 && (!a->key || option_find(a->key) >= 0), "%s", a->name);
        CHECK(k.n == 1 && strstr(k.list[0].text, alias_text(a)), "%s: %s", a->name, listing(&k));
        CHECK(alias_find(a->name) == a, "%s is there twice", a->name);
        free(t.text);
    }
}

/* ---- C04: types ---- */

/* Texts of values, each with a letter for its kind. taken() gives the kinds that an option's type
 * accepts. */
static const struct { const char *text; char kind;
} kinds[] = {{"\"8\"", 's'}, {"'true'", 's'}, {"1e3", 'f'},    {"yes", 's'},  {"null", 'n'},
             {"[[a]]", 'x'}, {"{a: 1}", 'x'}, {"true", 'b'},   {"0x10", 's'}, {"007", 's'},
             {"8", 'i'},     {"~", 'n'},      {"1_000_", 's'}, {"8 9", 's'}};

static const char *taken(const Option *o)
{
    switch (o->type) {
    case TYPE_INT:   return "i";
    case TYPE_FLOAT: return "if";
    case TYPE_BOOL:  return "b";
    case TYPE_STR:   return "s";
    case TYPE_ENUM:  return "";
    case TYPE_LIST:  break;
    }
    return !strcmp(o->legal, "strings") ? "s" : !strcmp(o->legal, "mixed") ? "sif" :
           !strncmp(o->legal, "integers", 8) ? "i" : "if";
}

static void test_types(void)
{
    for (int i = 0; i < OPTIONS; i++)
        for (size_t j = 0; j < sizeof kinds / sizeof *kinds; j++) {
            const Option *o = &options[i];
            if (strchr(taken(o), kinds[j].kind) || (kinds[j].kind == 'n' && !strcmp(o->def, "null")))
                continue;
            Text t = compose(o->section, o->key, textf("  %s: %s", o->key, kinds[j].text));
            Check k = read_text(t.text, t.size, 0, NULL, 0, USE_MODEL);
            CHECK(k.n == 1 && count(&k, textf("%s: ", o->key), "expected ", "got ") == 1 &&
                  k.list[0].place.line == t.line && k.list[0].place.col == 5 + (int)strlen(o->key),
                  "%s: %s: %s", o->key, kinds[j].text, listing(&k));
            CHECK(k.bad[i], "%s", o->key);
            free(t.text);
        }
}

/* ---- C05: ranges ---- */

static void range_case(const Option *o, const char *value, int legal)
{
    Text t = compose(o->section, o->key, textf("  %s: %s", o->key, value));
    Check k = read_text(t.text, t.size, 0, NULL, 0, USE_MODEL);
    CHECK(k.n == !legal &&
              (legal || count(&k, textf("%s: ", o->key), "is not in", strpbrk(o->legal, "[(")) == 1),
          "%s: %s: %s", o->key, value, listing(&k));
    free(t.text);
}

static void test_ranges(void)
{
    for (int i = 0; i < OPTIONS; i++) {
        const Option *o = &options[i];
        int is_list = o->type == TYPE_LIST && strpbrk(o->legal, "[(");
        int is_int = o->type == TYPE_INT || (is_list && !strncmp(o->legal, "integers", 8));
        char first, last;
        double lo, hi;
        if ((o->type != TYPE_INT && o->type != TYPE_FLOAT && !is_list) ||
            sscanf(strpbrk(o->legal, "[("), "%c%lf, %lf%c", &first, &lo, &hi, &last) != 4)
            continue;
        if (is_int) {
            for (int d = -1; d <= 1; d++) {
                range_case(o, textf("%lld", (long long)lo + d), d >= 0);
                range_case(o, textf("%lld", (long long)hi + d), d <= 0);
            }
            range_case(o, "9223372036854775808", 0);
            range_case(o, "-9223372036854775809", 0);
            range_case(o, "-1", 0);
        } else {
            range_case(o, textf("%.17g", lo), first == '[');
            range_case(o, textf("%.17g", hi), last == ']');
            range_case(o, textf("%.17g", nextafter(lo, -INFINITY)), 0);
            range_case(o, textf("%.17g", nextafter(hi, INFINITY)), 0);
            range_case(o, textf("%.17g", lo ? nextafter(lo, INFINITY) : 1e-300), 1);
            range_case(o, textf("%.17g", nextafter(hi, -INFINITY)), 1);
            range_case(o, ".nan", 0);
            range_case(o, ".inf", 0);
            range_case(o, "-.INF", 0);
            range_case(o, "1e999", 0);
            range_case(o, "-1e999", 0);
            range_case(o, "1e-999", 0);
            range_case(o, "-1", 0);
        }
    }
    for (int i = 0; i < OPTIONS; i++)                  /* each choice; refused with _ behind it */
        for (int c = 0; options[i].choices && options[i].choices[c]; c++) {
            const Option *o = &options[i];
            Text t = compose(o->section, o->key, textf("  %s: %s", o->key, o->choices[c]));
            Check k = read_text(t.text, t.size, 0, NULL, 0, USE_MODEL);
            CHECK(k.n == 0 && *(int *)option_field(o, k.cfg) == c, "%s: %s", o->key, listing(&k));
            free(t.text);
            t = compose(o->section, o->key, textf("  %s: %s_", o->key, o->choices[c]));
            k = read_text(t.text, t.size, 0, NULL, 0, USE_MODEL);
            CHECK(count(&k, "expected one of", o->choices[0], textf("did you mean '%s'", o->choices[c])) == 1,
                  "%s", listing(&k));
            free(t.text);
        }
}

/* ---- C13: files ---- */

#define M "model:\n  num_layers: 4\n"
static const struct { const char *text; int size, line, col; const char *says; } files[] = {
    {"", 0, 1, 1, "empty"},
    {"\n\n  \n", 0, 1, 1, "empty"},
    {"# only a comment\n", 0, 1, 1, "empty"},
    {"---\n", 0, 2, 1, "expected sections"},
    {"null\n", 0, 1, 1, "expected sections"},
    {"42\n", 0, 1, 1, "expected sections"},
    {"[model]\n", 0, 1, 1, "expected sections"},
    {"just words\n", 0, 1, 1, "expected sections"},
    {"\xEF\xBB\xBF" M, 0, 1, 1, "UTF-8 byte order mark"},
    {"\xFF\xFEm\0", 4, 1, 1, "UTF-16 byte order mark"},
    {"\xFE\xFF\0m", 4, 1, 1, "UTF-16 byte order mark"},
    {"model:\n  num_layers: \xE4\n", 0, 2, 15, "byte 0xe4 is not UTF-8"},
    {"model:\n  a: \xC0\xAF\n", 0, 2, 6, "byte 0xc0 is not UTF-8"},
    {"model:\n  a: \xED\xA0\x80\n", 0, 2, 6, "byte 0xed is not UTF-8"},
    {"model:\n  a: \xF4\x90\x80\x80\n", 0, 2, 6, "byte 0xf4 is not UTF-8"},
    {"model:\n  \xC3\xA9: \xC3\n", 0, 2, 6, "byte 0xc3 is not UTF-8"},
    {"model:\n\tnum_layers: 4\n", 0, 2, 1, "tab"},
    {"model:\n  \tnum_layers: 4\n", 0, 2, 3, "tab"},
    {"model:\n  num_layers:\t4\n  seq_length: 8\n\tx: 1\n", 0, 4, 1, "tab"},
    {M "---\n" M, 0, 3, 1, "a second document"},
    {M "...\n---\n" M, 0, 4, 1, "a second document"},
    {"%YAML 1.1\n---\n" M, 0, 1, 1, "directives"},
    {"model: &a\n  num_layers: 4\n", 0, 1, 8, "anchors"},
    {"model:\n  num_layers: &a 4\n", 0, 2, 15, "anchors"},
    {"model:\n  num_layers: 4\n  hidden_size: *a\n", 0, 3, 16, "aliases"},
    {"model:\n  num_layers: !!int 4\n", 0, 2, 15, "tags"},
    {"model: !m\n  num_layers: 4\n", 0, 1, 8, "tags"},
    {M "model:\n  hidden_size: 4\n", 0, 3, 1, "duplicate section; first at line 1, column 1"},
    {"model: 4\n", 0, 1, 8, "expected keys below it"},
    {"model: [4]\n", 0, 1, 8, "expected keys below it"},
    {"modle:\n  num_layers: 4\n", 0, 1, 1, "did you mean 'model'"},
    {"whatever:\n  num_layers: 4\n", 0, 1, 1, "unknown section 'whatever'"},
    {"num_layers: 4\n", 0, 1, 1, "belongs into section 'model'"},
    {"model:\n  num_layers: 4\n   hidden_size: 4\n", 0, 3, 15, "not YAML"},
    {"model:\n  num_layers: [4\n", 0, 3, 1, "not YAML"},
    {"model:\n  num_layers: \"4\n", 0, 3, 1, "not YAML"},
    {"model:\n  num_layers: 4\n hidden_size: 4\n", 0, 3, 2, "not YAML"},
    {"model: {num_layers: 4\n", 0, 2, 1, "not YAML"},
    {"model:\n  num_layers: @4\n", 0, 2, 15, "not YAML"},
    {"model:\n  num_layers: 4\0\n", 25, 2, 16, "control character \\x00"},
    {"model:\n  num_layers: 4\x7f\n", 0, 2, 16, "control character \\x7f"},
    {"model:\n  save: \"a\\0b\"\n", 0, 2, 9, "control character"},
    {"model:\n  save: \"a\\nb\"\n", 0, 2, 9, "control character"},
    {"model:\n  save: ''\n", 0, 2, 9, "empty string"},
    {"model:\n  ? [a, b]\n  : 4\n", 0, 2, 5, "expected a key"},
    {"? [a, b]\n: 4\n", 0, 1, 3, "expected a section's name"},
    {"model:\n  <<: 4\n", 0, 2, 3, "unknown key '<<'"},
    {"model:\n  \"a\\x01b\": 4\n", 0, 2, 3, "unknown key 'a\\x01b'"},
};

static int says(const Check *k, int line, int col, const char *text)
{
    for (int i = 0; i < k->n; i++)
        if (k->list[i].place.line == line && k->list[i].place.col == col && strstr(k->list[i].text, text))
            return 1;
    return 0;
}

static void test_files(const char *folder)
{
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        size_t size = files[i].size ? (size_t)files[i].size : strlen(files[i].text);
        Check k = read_text(files[i].text, size, 0, NULL, 1, USE_MODEL);
        CHECK(says(&k, files[i].line, files[i].col, files[i].says), "file %zu (%s): %s", i, files[i].says,
              listing(&k));
    }
    const struct { const char *path, *text;
    } paths[] = {{textf("%s/absent.yaml", folder), "No such file"},
                 {folder, "directory"},
                 {"/dev/zero", "device"},
                 {textf("%s/fifo", folder), "pipe"},
                 {textf("%s/loop", folder), "levels of symbolic links"},
                 {textf("%s/large", folder), "larger than 1048576"},
                 {textf("%s/huge", folder), "larger than 1048576"}};
    CHECK(!mkfifo(paths[3].path, 0600) && !symlink("loop", paths[4].path), "set up");
    for (int i = 5; i < 7; i++) {
        int fd = open(paths[i].path, O_CREAT | O_WRONLY, 0600);
        CHECK(fd >= 0 && !ftruncate(fd, i == 5 ? (1 << 20) + 1 : 1 << 30), "set up");
        close(fd);
    }
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        Check k;
        config_check(&k, paths[i].path, 0, NULL, 1, USE_MODEL);
        CHECK(k.n == 1 && count(&k, paths[i].text, NULL, NULL) == 1, "%s: %s", paths[i].path, listing(&k));
    }
}

/* ---- C14: hostile files, in little memory ---- */

static char *repeat(const char *head, const char *piece, int n, const char *tail, size_t *size)
{
    char *text = NULL;
    FILE *f = open_memstream(&text, size);
    fputs(head, f);
    for (int i = 0; i < n; i++)
        fputs(piece, f);
    fputs(tail, f);
    fclose(f);
    return text;
}

/* Reads a large hostile text. A parser whose time grows with the square of the size exceeds the row's
 * limit. */
static void hostile(const char *name, const char *head, const char *piece, int n, const char *tail,
                    const char *text)
{
    size_t size;
    char *s = repeat(head, piece, n, tail, &size);
    Check k = read_text(s, size, 0, NULL, 1, USE_MODEL);
    CHECK(k.n && (!text || count(&k, text, NULL, NULL)), "%s: %s", name, listing(&k));
    free(s);
    config_forget();
}

static void test_hostile(void)
{
    fflush(stdout);
    pid_t child = fork();
    if (child) {
        int status = 0;
        waitpid(child, &status, 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "hostile files in 256 MiB: status %x",
              (unsigned)status);
        return;
    }
    struct rlimit limit = {256 << 20, 256 << 20};
    CHECK(SANITIZED || !setrlimit(RLIMIT_AS, &limit), "set up"); /* a sanitizer's memory exceeds it */
    hostile("alias bomb", "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b, *b]\nd: [", "*c, ", 10000, "*c]\n",
            "aliases");
    hostile("nested lists", "model:\n  num_layers: ", "[", 1000000, "", "nested deeper than 64");
    hostile("nested maps", "model:\n  num_layers: ", "{a: ", 250000, "", "nested deeper than 64");
    hostile("nested blocks", "model:\n  data_path:\n    ", "- ", 500000, "x\n", "nested deeper than 64");
    hostile("many nodes", "data:\n  data_path: [", "a,", 400000, "a]\n", "more than 100000 nodes");
    hostile("long list", "data:\n  data_path: [", "a,", 90000, "a]\n", "missing");
    hostile("one scalar", "data:\n  data_path: ", "abcdefghij", 100000, "\n", "missing");
    hostile("one key", "data:\n  ", "abcdefghij", 100000, ": 1\n", "not YAML");
    hostile("unknown keys", "data:\n", "  abcdefgh: 1\n", 40000, "", "unknown key 'abcdefgh'");
    hostile("quotes", "data:\n  data_path: \"", "\\\"", 500000, "", "not YAML");
    hostile("brackets", "data: ", "]", 1000000, "", "not YAML");
    hostile("question marks", "", "? ", 500000, "", NULL);
    hostile("colons", "", ": ", 500000, "", NULL);
    hostile("comments", "data:\n", "# x\n", 250000, "  data_path: [\n", "not YAML");
    hostile("folded", "data:\n  data_path: >\n", "    x\n", 150000, "", "control character");
    int code = test_end();
    fflush(stdout);
    _exit(code);
}

/* ---- C15: the environment ---- */

static void test_environment(void)
{
    setenv("GRID_N", "12", 1);
    setenv("GRID_S", "a b", 1);
    unsetenv("GRID_NONE");
    const struct { const char *key, *value, *result, *says; } cases[] = {
        {"num_layers", "${GRID_N}", "12", NULL},
        {"save", "runs/${GRID_S}/${GRID_N}x", "'runs/a b/12x'", NULL},
        {"save", "\"${GRID_N}\"", "'12'", NULL},
        {"save", "'${GRID_N}'", "'${GRID_N}'", NULL},
        {"save", "a$GRID_N", "'a$GRID_N'", NULL},
        {"data_path", "[\"${GRID_S}\", x]", "['a b', x]", NULL},
        {"num_layers", "${GRID_S}", NULL, "expected an integer"},
        {"save", "${GRID_NONE}/x", NULL, "environment variable GRID_NONE is not defined"},
        {"num_layers", "${GRID_NONE}", NULL, "environment variable GRID_NONE is not defined"},
        {"save", "x${", NULL, "expected ${NAME}"},
        {"save", "\"${}\"", NULL, "expected ${NAME}"},
        {"save", "\"${A B}\"", NULL, "expected ${NAME}"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int o = option_find(cases[i].key);
        Text t = compose(options[o].section, cases[i].key, textf("  %s: %s", cases[i].key, cases[i].value));
        Check k = read_text(t.text, t.size, 0, NULL, 1, USE_TRAIN);
        char *value = config_text(k.cfg, o);
        CHECK(cases[i].says
                  ? k.n == 1 && k.list[0].place.line == t.line && strstr(k.list[0].text, cases[i].says)
                  : k.n == 0 && !strcmp(value, cases[i].result),
              "%s: %s: %s %s", cases[i].key, cases[i].value, value, listing(&k));
        free(value);
        free(t.text);
    }
}

/* ---- arguments ---- */

static void test_arguments(void)
{
    const struct { const char *arg, *key, *result, *says; } cases[] = {
        {"lr=3e-4", "lr", "0.0003", NULL},
        {"data_path=[0.3, a, 0.7, b]", "data_path", "[0.3, a, 0.7, b]", NULL},
        {"data_path=one", "data_path", "[one]", NULL},
        {"split=90,5,5", "split", "'90,5,5'", NULL},
        {"split='100'", "split", "'100'", NULL},
        {"train_iters=1_000", "train_iters", "1000", NULL},
        {"load=", "load", "null", NULL},
        {"load=null", "load", "null", NULL},
        {"load=latest", "load", "latest", NULL},
        {"lr=", NULL, NULL, "missing"},
        {"lr", NULL, NULL, "expected key=value"},
        {"--lr=1", NULL, NULL, "write 'lr=1'"},
        {"lrr=1", NULL, NULL, "did you mean 'lr' in section 'optimizer'"},
        {"num_layers=8.5", NULL, NULL, "expected an integer"},
        {"num_layers=0", NULL, NULL, "0 is not in [1, 10000]"},
        {"lr=[", NULL, NULL, "lr: not YAML"},
        {"lr=1 # x\nseed: 3", NULL, NULL, "lr: not YAML"},
        {"data_path=- a\n- b", NULL, NULL, "expected one value"},
        {"lr=--- 3", NULL, NULL, "expected one value"},
        {"lr=*x", NULL, NULL, "aliases"},
        {"save=a\xFF", NULL, NULL, "not UTF-8"},
        {"data_path=null", NULL, NULL, "got null; [] is a list without elements"},
        {"cp_comm_type=null", NULL, NULL, "expected a list of strings, got null"},
        {"=3", NULL, NULL, "unknown key ''"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Text t = compose(NULL, NULL, NULL);
        char *arg = (char *)cases[i].arg;
        Check k = read_text(t.text, t.size, 1, &arg, 1, USE_TRAIN);
        char *value = cases[i].key ? config_text(k.cfg, option_find(cases[i].key)) : NULL;
        CHECK(cases[i].says ? k.n == 1 && k.list[0].place.arg == 0 && strstr(k.list[0].text, cases[i].says)
                            : k.n == 0 && !strcmp(value, cases[i].result), "%s: %s %s", cases[i].arg,
              value ? value : "", listing(&k));
        free(value);
        free(t.text);
    }
    /* bytes that continue a character and follow none: a message quotes no more of them than of others */
    char wild[2048] = "", *arg = wild;
    memset(wild, 'a', 60);
    memset(wild + 60, 0x80, sizeof wild - 61);
    Text t = compose(NULL, NULL, NULL);
    Check k = read_text(t.text, t.size, 1, &arg, 1, USE_TRAIN);
    CHECK(k.n == 1 && strlen(k.list[0].text) < 100, "%zu bytes: %s", strlen(k.list[0].text), listing(&k));
    free(t.text);
}

/* ---- required keys ---- */

static void test_required(void)
{
    static const struct { const char *key; ConfigUse use; } keys[] = {
        {"num_layers", USE_MODEL}, {"hidden_size", USE_MODEL}, {"num_attention_heads", USE_MODEL},
        {"seq_length", USE_MODEL}, {"micro_batch_size", USE_STEPS}, {"data_path", USE_DATA},
        {"train_iters", USE_STEPS}, {"lr", USE_STEPS}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        Text t = compose(NULL, keys[i].key, NULL);
        Check k = read_text(t.text, t.size, 0, NULL, 1, keys[i].use);
        CHECK(k.n == 1 && count(&k, keys[i].key, "missing", NULL) == 1 && k.list[0].place.line > 0, "%s: %s",
              keys[i].key, listing(&k));
        if (keys[i].use != USE_MODEL) {
            k = read_text(t.text, t.size, 0, NULL, 1, USE_MODEL);
            CHECK(!k.n, "%s", listing(&k));
        }
        free(t.text);
    }
    Check k = read_text("train: {}\n", 10, 0, NULL, 1, USE_TRAIN | USE_LOAD);
    CHECK(k.n == 9 && count(&k, "missing", NULL, NULL) == 9, "%s", listing(&k));
}

/* ---- the list that a user sees; help; the documentation ---- */

static void test_message(const char *folder)
{
    const char *path = textf("%s/bad.yaml", folder);
    FILE *f = fopen(path, "w");
    fputs("model:\n  num_layers: 0\n  hiden_size: 64\ntrain:\n  seed: x\n", f);
    fclose(f);
    int fd[2];
    CHECK(!pipe(fd), "pipe");
    pid_t child = fork();
    if (!child) {
        dup2(fd[1], 2);
        config_load(path, 1, (char *[]){"lr=no"}, 1, USE_TRAIN);
        _exit(0);
    }
    close(fd[1]);
    char text[8192] = "";
    for (ssize_t n, at = 0; (n = read(fd[0], text + at, sizeof text - 1 - (size_t)at)) > 0; at += n)
        ;
    int status;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_CONFIG, "status %x", (unsigned)status);
    const char *wanted[] = {"bad.yaml:1:1: num_attention_heads: missing", "bad.yaml:1:1: seq_length: missing",
                            "bad.yaml:2:15: num_layers: 0 is not in [1, 10000]",
                            "bad.yaml:3:3: unknown key 'hiden_size'; did you mean 'hidden_size'?",
                            "bad.yaml:5:9: seed: expected an integer", "command line: lr: expected a number",
                            "error[config] ", "9 problems in "}, *at = text;
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted && at; i++) {
        const char *found = strstr(at, wanted[i]);
        CHECK(found, "'%s' is missing or out of order in\n%s", wanted[i], text);
        at = found;
    }
    const char *error = strstr(text, "error[");
    CHECK(error && !strstr(error + 1, "error[") && strchr(error, '\n') == error + strlen(error) - 1 &&
          strstr(error, "; change: "), "one line at the end: %s", text);
}

static void test_docs(void)
{
    char *text = NULL, *file = calloc(1, 1 << 20);
    size_t size;
    FILE *f = open_memstream(&text, &size);
    config_docs(f);
    fclose(f);
    f = fopen("configs/OPTIONS.md", "r");
    size_t n = f ? fread(file, 1, 1 << 20, f) : 0;
    CHECK(n == size && !memcmp(file, text, n), "configs/OPTIONS.md is stale: run `make docs`");
    free(text);
    f = open_memstream(&text, &size);
    for (int i = 0; i < OPTIONS; i++) {
        long before = ftell(f);
        CHECK(config_help(f, options[i].key) && ftell(f) > before, "%s", options[i].key);
    }
    for (int i = 0; i < section_count; i++)
        CHECK(config_help(f, sections[i].name), "%s", sections[i].name);
    CHECK(config_help(f, NULL) && config_help(f, "keys") && !config_help(f, "nonsense"), "topics");
    fclose(f);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        CHECK(strlen(line) <= 120, "%s", line);
    free(text);
    free(file);
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "--docs")) {
        config_docs(stdout);
        return 0;
    }
    char folder[] = "/tmp/test_config_XXXXXX";
    const char *work = getenv("WORK") ? getenv("WORK") : mkdtemp(folder);
    static const struct { const char *name; void (*run)(void);
    } tests[] = {{"typos", test_typos},
                 {"places", test_places},
                 {"aliases", test_aliases},
                 {"other programs' options", test_other_programs},
                 {"types", test_types},
                 {"ranges", test_ranges},
                 {"environment", test_environment},
                 {"arguments", test_arguments},
                 {"required", test_required},
                 {"docs", test_docs},
                 {"hostile", test_hostile}};
    test_files(work);
    test_message(work);
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        double start = now();
        tests[i].run();
        config_forget();
        printf("# %s: %.2f s\n", tests[i].name, now() - start);
    }
    return test_end();
}
