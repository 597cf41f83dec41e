/* config_rules -- derived defaults, and rules about the model, batches and steps
 *
 * Rules about the grid and the pipeline are in config_parallel.c, pairs of keys that exclude each other
 * in config_pairs.c. */
#define _GNU_SOURCE
#include "config_rules.h"
#include "device.h"
#include "placement.h"
#include "utf8.h"
#include <ctype.h>
#include <float.h>

static int gated(const Config *c) { return act_gated((ActKind)c->activation); }

void config_pad_vocab(Config *c)
{
    int64_t unit = c->make_vocab_size_divisible_by * c->tensor_model_parallel_size;
    c->padded_vocab_size = (c->vocab_size + unit - 1) / unit * unit;
}

const char *config_default_save(const char *path)
{
    const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path, *dot = strrchr(name, '.');
    return textf("runs/%.*s", (int)(dot && dot != name ? dot - name : (long)strlen(name)), name);
}

int rules_shares_parse(const char *s, double share[3])
{
    int n = 0;
    share[0] = share[1] = share[2] = 0;
    for (char *end; n < 3; s = end + 1) {
        s += strspn(s, " ");
        share[n++] = strtod(s, &end);
        if (end == s || !isdigit((unsigned char)(*s == '.' ? s[1] : *s)) || !isfinite(share[n - 1]))
            return 0;
        end += strspn(end, " ");
        if (!*end)
            return share[0] > 0 && isfinite(share[0] + share[1] + share[2]);
        if (*end != ',')
            return 0;
    }
    return 0;
}

/* Returns 1 if the splits have corpora of their own instead of shares of data_path. */
static int rules_own_corpora(const Config *c)
{
    return c->train_data_path.n || c->valid_data_path.n || c->test_data_path.n;
}

static int64_t unit_of(const Config *c) { return c->micro_batch_size * c->data_parallel_size; }

static void rules_required(Check *k, ConfigUse use)
{
    Config *c = k->cfg;
    for (int i = 0; i < OPTIONS; i++) {
        k->bad[i] |= k->guessed[i] && !k->seen[i];     /* its value is given under an unknown name */
        int corpus = !rules_own_corpora(c)                    ? OPT_data_path
                     : c->data_path.n || use & USE_EVAL ? -1 : OPT_train_data_path;
        int needed = option_required(&options[i]) || ((use & USE_DATA) && i == corpus) ||
                     ((use & USE_STEPS) && (i == OPT_lr || (i == OPT_micro_batch_size && ABSENT(load)))) ||
                     ((use & USE_LOAD) && i == OPT_load);
        if (needed && option_absent(&options[i], c) && !k->bad[i]) {
            check_report(k, (const int[]){i, -1}, "missing; expected %s", legal_text(&options[i]));
            k->bad[i] = 1;
        }
    }
    DERIVE(micro_batch_size, ON1(micro_batch_size), 1);
    RULE(ON2(train_iters, train_samples), (use & USE_STEPS) && ABSENT(train_iters) && ABSENT(train_samples),
         "missing; training needs train_iters or train_samples");
}

/* Returns a list of the tensor sizes that the model and the world allow, as far as their keys are
 * usable. */
static const char *tensor_sizes(const Check *k)
{
    const Config *c = k->cfg;
    const int *on = ON2(pipeline_model_parallel_size, context_parallel_size);
    int64_t rest = check_usable(k, on) ? c->pipeline_model_parallel_size * c->context_parallel_size : 1;
    rest = c->world % rest ? 1 : rest;
    int shown = 0;
    const char *text = "";
    for (int64_t t = 1; t <= c->world && shown < 12; t++) {
        if (c->world % (t * rest) ||
            (check_usable(k, ON1(num_attention_heads)) && c->num_attention_heads % t) ||
            (check_usable(k, ON1(num_query_groups)) && c->num_query_groups % t && t % c->num_query_groups) ||
            (check_usable(k, ON1(ffn_hidden_size)) && c->ffn_hidden_size % t) ||
            (check_usable(k, ON2(seq_length, sequence_parallel)) && c->sequence_parallel &&
             c->seq_length % t))
            continue;
        text = textf("%s%s%ld", text, shown++ ? ", " : "", t);
    }
    return text;
}

static void rules_vocabulary(Check *k)
{
    Config *c = k->cfg;
    DERIVE(tokenizer_type, ON1(vocab_size),
           ABSENT(vocab_size) || c->vocab_size == 257 ? TOKENIZER_TYPE_BYTE : TOKENIZER_TYPE_NONE);
    RULE(ON2(vocab_size, tokenizer_type), ABSENT(vocab_size) && c->tokenizer_type == TOKENIZER_TYPE_NONE,
         "missing; tokenizer_type none does not say how many token ids there are");
    if (check_usable(k, ON2(vocab_size, tokenizer_type)) && ABSENT(vocab_size) &&
        c->tokenizer_type == TOKENIZER_TYPE_NONE)
        k->bad[OPT_vocab_size] = 1;
    DERIVE(vocab_size, ON1(tokenizer_type), 257);
    RULE(ON2(vocab_size, tokenizer_type), c->tokenizer_type == TOKENIZER_TYPE_BYTE && c->vocab_size != 257,
         "%ld, but tokenizer_type byte has 257 token ids; use 257 or tokenizer_type none", c->vocab_size);
    RULE(ON2(null_tokenizer_eod_id, tokenizer_type),
         !ABSENT(null_tokenizer_eod_id) && c->tokenizer_type != TOKENIZER_TYPE_NONE,
         "%ld does not go with tokenizer_type byte, whose end-of-document is 256; leave it out",
         c->null_tokenizer_eod_id);
    RULE(ON3(null_tokenizer_eod_id, tokenizer_type, vocab_size),
         !ABSENT(null_tokenizer_eod_id) && c->tokenizer_type == TOKENIZER_TYPE_NONE &&
             c->null_tokenizer_eod_id >= c->vocab_size,
         "%ld is none of the %ld token ids; use one below vocab_size", c->null_tokenizer_eod_id,
         c->vocab_size);
    RULE(ON1(tokenizer_model), !ABSENT(tokenizer_model),
         "no tokenizer of this build reads a file; leave it out");
    if (check_usable(k, ON3(vocab_size, make_vocab_size_divisible_by, tensor_model_parallel_size)))
        config_pad_vocab(c);
}

static void rules_model(Check *k)
{
    Config *c = k->cfg;
    RULE(ON3(hidden_size, num_attention_heads, kv_channels),
         ABSENT(kv_channels) && c->hidden_size % c->num_attention_heads, "%ld is not a multiple of "
         "num_attention_heads %ld; nearest: %s; or set kv_channels", c->hidden_size, c->num_attention_heads,
         check_nearest_multiples(c->num_attention_heads, c->hidden_size));
    RULE(ON3(hidden_size, num_attention_heads, kv_channels),
         ABSENT(kv_channels) && c->hidden_size / c->num_attention_heads > 512, "%ld / num_attention_heads "
         "%ld makes heads of %ld, attention takes up to 512; use at least %ld heads", c->hidden_size,
         c->num_attention_heads, c->hidden_size / c->num_attention_heads, (c->hidden_size + 511) / 512);
    DERIVE(kv_channels, ON2(hidden_size, num_attention_heads), c->hidden_size / c->num_attention_heads);
    RULE(ON2(num_attention_heads, kv_channels),
         !ABSENT(kv_channels) && c->num_attention_heads * c->kv_channels > 65536, "%ld heads of %ld "
         "kv_channels make rows of %ld, more than 65536; use at most %ld heads", c->num_attention_heads,
         c->kv_channels, c->num_attention_heads * c->kv_channels, 65536 / c->kv_channels);
    DERIVE(num_query_groups, ON1(num_attention_heads), c->num_attention_heads);
    DERIVE(max_position_embeddings, ON1(seq_length), c->seq_length);
    RULE(ON3(ffn_hidden_size, hidden_size, activation),
         ABSENT(ffn_hidden_size) && gated(c) && c->hidden_size < 24, "missing; hidden_size %ld is too small "
         "to derive it (8/3 of it is less than 64)", c->hidden_size);
    DERIVE(ffn_hidden_size, ON2(hidden_size, activation),
           gated(c) ? c->hidden_size / 24 * 64 : 4 * c->hidden_size);
    DERIVE(moe_ffn_hidden_size, ON1(ffn_hidden_size), c->ffn_hidden_size);
    rules_vocabulary(k);
    RULE(ON2(num_query_groups, num_attention_heads), c->num_attention_heads % c->num_query_groups,
         "%ld does not divide num_attention_heads %ld; nearest: %s", c->num_query_groups,
         c->num_attention_heads, check_nearest_divisors(c->num_attention_heads, c->num_query_groups));
    RULE(ON2(max_position_embeddings, seq_length), c->max_position_embeddings < c->seq_length, "%ld is below "
         "seq_length %ld; use %ld or more, or a seq_length of at most %ld", c->max_position_embeddings,
         c->seq_length, c->seq_length, c->max_position_embeddings);
    int64_t turned = (int64_t)((double)c->kv_channels * c->rotary_percent);
    RULE(ON3(rotary_percent, kv_channels, position_embedding_type),
         c->position_embedding_type == POSITION_EMBEDDING_TYPE_ROPE && (turned < 2 || turned % 2),
         "rope turns int(%ld kv_channels x %g) = %ld columns of a head, which must be even and at least 2",
         c->kv_channels, c->rotary_percent, turned);
    rules_rope(k);
}

/* Checks the sizes that the tensor group and the context group cut. */
static void rules_cut(Check *k)
{
    Config *c = k->cfg;
    int64_t tp = c->tensor_model_parallel_size;
    RULE(ON2(num_attention_heads, tensor_model_parallel_size), c->num_attention_heads % tp,
         "%ld is not a multiple of tensor_model_parallel_size %ld; tensor sizes that fit: %s",
         c->num_attention_heads, tp, tensor_sizes(k));
    RULE(ON2(num_query_groups, tensor_model_parallel_size),
         k->seen[OPT_num_query_groups] && c->num_query_groups % tp && tp % c->num_query_groups,
         "%ld is neither a multiple nor a divisor of tensor_model_parallel_size %ld; tensor sizes that fit: "
         "%s", c->num_query_groups, tp, tensor_sizes(k));
    RULE(ON2(ffn_hidden_size, tensor_model_parallel_size), c->ffn_hidden_size % tp,
         "%ld is not a multiple of tensor_model_parallel_size %ld; nearest: %s; tensor sizes that fit: %s",
         c->ffn_hidden_size, tp, check_nearest_multiples(tp, c->ffn_hidden_size), tensor_sizes(k));
    int64_t cp = c->context_parallel_size;
    RULE(ON4(seq_length, sequence_parallel, tensor_model_parallel_size, context_parallel_size),
         c->sequence_parallel && cp == 1 && c->seq_length % tp, "%ld is not a multiple of "
         "tensor_model_parallel_size %ld, as sequence_parallel asks; nearest: %s; tensor sizes that fit: %s",
         c->seq_length, tp, check_nearest_multiples(tp, c->seq_length), tensor_sizes(k));
    RULE(ON4(seq_length, sequence_parallel, tensor_model_parallel_size, context_parallel_size),
         c->sequence_parallel && cp > 1 && c->seq_length % (2 * cp) == 0 && c->seq_length / cp % tp,
         "%ld / context_parallel_size %ld is not a multiple of tensor_model_parallel_size %ld, as "
         "sequence_parallel asks; nearest: %s", c->seq_length, cp, tp,
         check_nearest_multiples(tp % 2 ? 2 * cp * tp : cp * tp, c->seq_length));
    RULE(ON3(tp_comm_overlap, sequence_parallel, tensor_model_parallel_size),
         c->tp_comm_overlap && tp > 1 && !c->sequence_parallel,
         "true needs sequence_parallel: true, whose gathers and scatters it cuts into blocks");
    RULE(ON2(seq_length, context_parallel_size),
         c->context_parallel_size > 1 && c->seq_length % (2 * c->context_parallel_size),
         "%ld is not a multiple of 2 x context_parallel_size %ld; nearest: %s", c->seq_length,
         c->context_parallel_size, check_nearest_multiples(2 * c->context_parallel_size, c->seq_length));
}

/* Checks that a rank has whole blocks of 128 numbers, as one rank would cut the whole matrices. */
static void rules_fp8_blocks(Check *k)
{
    Config *c = k->cfg;
    int64_t tp = c->tensor_model_parallel_size, groups = c->num_query_groups;
    int on = check_usable(k, ON2(fp8, fp8_recipe)) && c->fp8 != FP8_NONE &&
             c->fp8_recipe == FP8_RECIPE_BLOCKWISE;
    RULE(ON3(ffn_hidden_size, fp8_recipe, tensor_model_parallel_size), on && c->ffn_hidden_size % (128 * tp),
         "%ld is not a multiple of 128 x tensor_model_parallel_size %ld, as fp8_recipe blockwise asks; "
         "nearest: %s",
         c->ffn_hidden_size, tp, check_nearest_multiples(128 * tp, c->ffn_hidden_size));
    if (on && tp > 1 && check_usable(k, ON4(num_attention_heads, num_query_groups, kv_channels,
                                            tensor_model_parallel_size))) {
        int64_t q = c->num_attention_heads / tp * c->kv_channels;
        int64_t kv = (groups < tp ? 1 : groups / tp) * c->kv_channels;
        RULE(ON3(kv_channels, fp8_recipe, tensor_model_parallel_size), q % 128 || kv % 128,
             "a rank has %ld columns of queries and %ld of keys, and fp8_recipe blockwise with "
             "tensor_model_parallel_size %ld asks for multiples of 128; use kv_channels 128, or "
             "tensor_model_parallel_size 1",
             q, kv, tp);
    }
}

int config_fp8_piece(const Config *c, const char **asks)
{
    const int mx = c->fp8_recipe == FP8_RECIPE_MXFP8;
    *asks = mx ? "fp8_recipe mxfp8" : "fp8";
    return mx ? 32 : 16;
}

/* Checks that a rank's tokens are whole pieces, over which weight gradients sum, with blockwise multiples of
 * four. Where products overlap with messages it multiplies one rank's rows at a time: with mxfp8 these have
 * whole tiles of scales. */
static void rules_fp8_tokens(Check *k)
{
    Config *c = k->cfg;
    const char *asks;
    int64_t tokens = c->micro_batch_size * c->seq_length, cp = c->context_parallel_size;
    int64_t piece = config_fp8_piece(c, &asks), rows = piece, tp = c->tensor_model_parallel_size;
    if (!check_usable(k, ON1(context_parallel_size)))
        return;
    if (c->fp8_recipe == FP8_RECIPE_MXFP8) {
        piece *= cp;
        rows = 128 * cp;
    } else if (c->fp8_recipe == FP8_RECIPE_BLOCKWISE && 4 * cp > piece) {
        piece = rows = 4 * cp;
        asks = "fp8_recipe blockwise";
    }
    RULE(ON3(micro_batch_size, seq_length, fp8), tokens % piece,
         "%ld x seq_length %ld is not a multiple of %ld, as %s asks", c->micro_batch_size, c->seq_length,
         piece, asks);
    RULE(ON4(micro_batch_size, seq_length, tp_comm_overlap, tensor_model_parallel_size),
         c->tp_comm_overlap && tokens % piece == 0 && tokens % (rows * tp),
         "%ld x seq_length %ld is not a multiple of %ld x tensor_model_parallel_size %ld, as %s with "
         "tp_comm_overlap asks",
         c->micro_batch_size, c->seq_length, rows, tp, asks);
}

/* Checks that the model's sizes are multiples of the pieces in which FP8 is multiplied. */
static void rules_fp8(Check *k)
{
    Config *c = k->cfg;
    int64_t tp = c->tensor_model_parallel_size, groups = c->num_query_groups;
    const char *asks;
    if (!check_usable(k, ON2(fp8, fp8_recipe)) || c->fp8 == FP8_NONE)
        return;
    int64_t piece = config_fp8_piece(c, &asks);
    RULE(ON2(hidden_size, fp8), c->hidden_size % piece, "%ld is not a multiple of %ld, as %s asks; "
         "nearest: %s", c->hidden_size, piece, asks, check_nearest_multiples(piece, c->hidden_size));
    RULE(ON3(ffn_hidden_size, fp8, tensor_model_parallel_size), c->ffn_hidden_size % (piece * tp),
         "%ld is not a multiple of %ld x tensor_model_parallel_size %ld, as %s asks; nearest: %s",
         c->ffn_hidden_size, piece, tp, asks, check_nearest_multiples(piece * tp, c->ffn_hidden_size));
    if (check_usable(k, ON4(num_attention_heads, num_query_groups, kv_channels,
                            tensor_model_parallel_size))) {
        int64_t q = c->num_attention_heads / tp * c->kv_channels;
        int64_t kv = (groups < tp ? 1 : groups / tp) * c->kv_channels, each = piece == 16 ? 2 * kv : kv;
        RULE(ON2(kv_channels, fp8), q % piece || each % piece, "a rank has %ld columns of queries and %ld of "
             "keys%s, and %s asks for multiples of %ld; use a multiple of %ld",
             q, each, piece == 16 ? " and values" : "", asks, piece, piece);
    }
    rules_fp8_tokens(k);
}

/* Checks that a rank's rows of every tensor are whole blocks of moments, so that all layouts have the same
 * blocks. An option that is not fp32 is named, the first one. */
static void rules_moments(Check *k)
{
    Config *c = k->cfg;
    enum { BLOCK = 32 };
    int first = c->exp_avg_dtype != EXP_AVG_DTYPE_FP32,
        key = first ? OPT_exp_avg_dtype : OPT_exp_avg_sq_dtype;
    int on =
        check_usable(k, (const int[]){key, -1}) && (first || c->exp_avg_sq_dtype != EXP_AVG_SQ_DTYPE_FP32);
    int64_t tp = c->tensor_model_parallel_size, groups = c->num_query_groups;
    const char *option = options[key].key;
    if (!on)
        return;
    RULE(ON1(hidden_size), c->hidden_size % BLOCK, "%ld is not a multiple of %d, as %s asks; nearest: %s",
         c->hidden_size, BLOCK, option, check_nearest_multiples(BLOCK, c->hidden_size));
    RULE(ON2(ffn_hidden_size, tensor_model_parallel_size), c->ffn_hidden_size % (BLOCK * tp),
         "%ld is not a multiple of %d x tensor_model_parallel_size %ld, as %s asks; nearest: %s",
         c->ffn_hidden_size, BLOCK, tp, option, check_nearest_multiples(BLOCK * tp, c->ffn_hidden_size));
    if (check_usable(k,
                     ON4(num_attention_heads, num_query_groups, kv_channels, tensor_model_parallel_size))) {
        int64_t q = c->num_attention_heads / tp * c->kv_channels;
        int64_t kv = (groups < tp ? 1 : groups / tp) * c->kv_channels;
        RULE(ON1(kv_channels), q % BLOCK || kv % BLOCK,
             "a rank has %ld columns of queries and %ld of keys, and "
             "%s asks for multiples of %d; use a multiple of %d",
             q, kv, option, BLOCK, BLOCK);
    }
    if (!check_usable(k, ON1(num_moe_experts)) || ABSENT(num_moe_experts))
        return;
    int64_t etp = c->expert_tensor_parallel_size, shared = c->moe_shared_expert_intermediate_size;
    RULE(ON2(moe_ffn_hidden_size, expert_tensor_parallel_size), c->moe_ffn_hidden_size % (BLOCK * etp),
         "%ld is not a multiple of %d x expert_tensor_parallel_size %ld, as %s asks; nearest: %s",
         c->moe_ffn_hidden_size, BLOCK, etp, option,
         check_nearest_multiples(BLOCK * etp, c->moe_ffn_hidden_size));
    RULE(ON2(moe_shared_expert_intermediate_size, tensor_model_parallel_size),
         !ABSENT(moe_shared_expert_intermediate_size) && shared % (BLOCK * tp),
         "%ld is not a multiple of %d x tensor_model_parallel_size %ld, as %s asks; nearest: %s", shared,
         BLOCK, tp, option, check_nearest_multiples(BLOCK * tp, shared));
}

/* Checks that 64-bit byte counts and 32-bit token positions of a microbatch do not overflow. */
static void rules_size(Check *k)
{
    Config *c = k->cfg;
    if (!check_usable(k, ON4(num_layers, hidden_size, ffn_hidden_size, vocab_size)) ||
        !check_usable(k, ON4(num_attention_heads, num_query_groups, kv_channels, max_position_embeddings)) ||
        !check_usable(k, ON3(activation, make_vocab_size_divisible_by, tensor_model_parallel_size)))
        return;
    double h = (double)c->hidden_size, f = (double)act_width((ActKind)c->activation, c->ffn_hidden_size);
    double qkv = (double)(c->num_attention_heads + 2 * c->num_query_groups) * (double)c->kv_channels;
    double ends = h * (2 * (double)c->padded_vocab_size + (double)c->max_position_embeddings);
    double parameters = (double)c->num_layers * h * (2 * qkv + 2 * f + 8) + ends;
    RULE(ON2(hidden_size, num_layers), parameters > 1e15, "the model has about %.2g parameters; at most 1e15",
         parameters);
    double tokens = (double)c->micro_batch_size * (double)c->seq_length;
    RULE(ON2(micro_batch_size, seq_length), tokens > INT32_MAX, "%ld samples of %ld tokens are more than "
         "2^31 - 1 in a microbatch", c->micro_batch_size, c->seq_length);
    double wide = fmax(fmax(h, f), fmax(qkv, (double)c->padded_vocab_size));
    RULE(ON2(micro_batch_size, seq_length), tokens <= INT32_MAX && tokens * wide > 1e15,
         "the widest activation of a microbatch has %.2g elements; at most 1e15", tokens * wide);
}

/* Microbatches that every schedule can order, as far as pipeline_schedule_file does not say their number. */
static int64_t enough_microbatches(const Config *c)
{
    return ABSENT(microbatch_group_size_per_vp_stage) ? 2 * c->pipeline_model_parallel_size
                                                      : c->microbatch_group_size_per_vp_stage;
}

static void rules_batch(Check *k, ConfigUse use)
{
    Config *c = k->cfg;
    int scheduled = !ABSENT(step_batch_size_schedule);
    if (!c->data_parallel_size ||
        !check_usable(k, ON4(micro_batch_size, step_batch_size_schedule, global_batch_size, seq_length)) ||
        (scheduled && !ABSENT(global_batch_size))) {
        k->bad[OPT_global_batch_size] = k->bad[OPT_step_batch_size_schedule] = 1;
        return;
    }
    int64_t unit = unit_of(c);
    if (scheduled) {
        char *error = config_parse_schedule(c, unit);
        if (error)
            check_report(k, ON1(step_batch_size_schedule), "%s", error);
        k->bad[OPT_step_batch_size_schedule] |= error != NULL;
        return;
    }
    /* who only loads has no batch, but lists for one */
    DERIVE(global_batch_size, ON1(micro_batch_size), use == USE_LOAD ? unit * enough_microbatches(c) : unit);
    RULE(ON2(global_batch_size, micro_batch_size), c->global_batch_size % unit, "%ld is not a multiple of "
         "micro_batch_size %ld x data-parallel size %ld; nearest: %s", c->global_batch_size,
         c->micro_batch_size, c->data_parallel_size, check_nearest_multiples(unit, c->global_batch_size));
    RULE(ON2(global_batch_size, micro_batch_size), c->global_batch_size / unit > 65535,
         "%ld is %ld microbatches of %ld; at most 65535; raise micro_batch_size", c->global_batch_size,
         c->global_batch_size / unit, unit);
    k->bad[OPT_global_batch_size] |= c->global_batch_size % unit || c->global_batch_size / unit > 65535;
    BatchStep *step = keep_alloc(1, sizeof *step);
    *step = (BatchStep){0, c->global_batch_size};
    c->batch_step = step;
    c->batch_steps = 1;
}

/* Slices of the microbatch's logits. */
static void rules_logits(Check *k)
{
    Config *c = k->cfg;
    int64_t tp = c->tensor_model_parallel_size, rows = c->micro_batch_size * c->seq_length;
    RULE(ON4(logits_slice_rows, micro_batch_size, seq_length, context_parallel_size),
         c->logits_slice_rows > rows / c->context_parallel_size, "%ld is more than the %ld rows of a "
         "microbatch, micro_batch_size %ld x seq_length %ld / context_parallel_size %ld; use at most %ld, or "
         "0",
         c->logits_slice_rows, rows / c->context_parallel_size, c->micro_batch_size, c->seq_length,
         c->context_parallel_size, rows / c->context_parallel_size);
    RULE(ON3(logits_slice_rows, tensor_model_parallel_size, sequence_parallel),
         c->sequence_parallel && c->logits_slice_rows % tp, "%ld is not a multiple of "
         "tensor_model_parallel_size %ld, whose ranks share the rows with sequence_parallel; nearest: %s",
         c->logits_slice_rows, tp, check_nearest_multiples(tp, c->logits_slice_rows));
}

static void rules_steps(Check *k)
{
    Config *c = k->cfg;
    if (!check_usable(k, ON4(train_samples, train_iters, global_batch_size, step_batch_size_schedule)))
        return;
    int steps_known = ABSENT(train_samples) != ABSENT(train_iters);
    double steps = steps_known ? (double)config_iterations(c) : 0;
    double samples = (double)config_samples_after(c, (int64_t)steps), seq = (double)c->seq_length;
    double evaluations = ABSENT(eval_interval) ? 1 : 1 + steps / (double)c->eval_interval, largest = 0;
    for (int i = 0; i < c->batch_steps; i++)
        largest = fmax(largest, (double)c->batch_step[i].batch);
    RULE(ON1(train_samples), !ABSENT(train_samples) && c->train_samples < c->batch_step[0].batch,
         "%ld are less than one step of %ld", c->train_samples, c->batch_step[0].batch);
    /* as train_iters: load refuses a checkpoint of more */
    RULE(ON1(train_samples), steps > 1e9, "%ld are %.0f steps, and a run has at most 1000000000; raise the "
         "batch size", c->train_samples, steps);
    RULE(ON2(seq_length, train_iters), samples * seq > 9e18, "the run has %.2g tokens; at most 9e18",
         samples * seq);
    RULE(ON2(eval_iters, eval_interval), evaluations * (double)c->eval_iters * largest * seq > 9e18,
         "the evaluations of the run have more than 9e18 tokens; lower eval_iters or raise eval_interval");
}

/* Checks that WSD's closing decay begins when the warm-up has ended. A warm-up that is a share of the decay
 * is one of its samples: a schedule of batch sizes decides how many iterations have these. */
static void rules_closing(Check *k, const int *on, int64_t warmup, int64_t tail, int64_t decay)
{
    const Config *c = k->cfg;
    double share = c->lr_warmup_fraction, before = isnan(share) ? (double)warmup : share * (double)decay;
    int in_samples = !isnan(share) && ABSENT(train_samples) && !ABSENT(step_batch_size_schedule);
    RULE(on, tail > decay || (!in_samples && (double)tail + before > (double)decay),
         "closing decay of %ld after a warm-up of %.17g does not fit into %ld", tail, before, decay);
    if (!in_samples || tail > decay || !c->batch_steps)
        return;
    int64_t begins = config_samples_after(c, decay - tail), all = config_samples_after(c, decay);
    RULE(on, (double)(all - begins) + share * (double)all > (double)all,
         "closing decay of %ld begins after %ld samples, within the warm-up, lr_warmup_fraction %g of %ld "
         "samples; lower one of the two", tail, begins, share, all);
}

static void rules_rate(Check *k)
{
    Config *c = k->cfg;
    int by_samples = !ABSENT(train_samples), wsd = c->lr_decay_style == LR_DECAY_STYLE_WSD;
    RULE(ON2(min_lr, lr), c->min_lr > c->lr, "%g is above lr %g", c->min_lr, c->lr);
    RULE(ON2(lr_warmup_init, lr), c->lr_warmup_init > c->lr, "%g is above lr %g", c->lr_warmup_init, c->lr);
    if (by_samples)
        DERIVE(lr_decay_samples, ON1(train_samples), c->train_samples);
    else
        DERIVE(lr_decay_iters, ON1(train_iters), c->train_iters);
    int64_t decay = by_samples ? c->lr_decay_samples : c->lr_decay_iters;
    int64_t warmup = by_samples ? c->lr_warmup_samples : c->lr_warmup_iters;
    int64_t tail = by_samples ? c->lr_wsd_decay_samples : c->lr_wsd_decay_iters;
    const int *on = by_samples ? ON3(lr_warmup_samples, lr_decay_samples, train_samples)
                               : ON3(lr_warmup_iters, lr_decay_iters, train_iters);
    const int *in_samples = ON4(lr_wsd_decay_samples, lr_decay_style, lr_decay_samples, lr_warmup_samples);
    const int *in_iters = ON4(lr_wsd_decay_iters, lr_decay_style, lr_decay_iters, lr_warmup_iters);
    const int *on_tail = by_samples ? in_samples : in_iters;
    RULE(on, decay != CFG_ABSENT && warmup >= decay,
         "warm-up of %ld is not shorter than the decay of %ld, which includes it", warmup, decay);
    if (decay != CFG_ABSENT && wsd && tail != CFG_ABSENT)
        rules_closing(k, on_tail, warmup, tail, decay);
}

static int recompute_module(const char *s)
{
    static const char *const names[] = {"core_attn", "layernorm", "mlp",           "mlp_act",
                                        "moe",       "moe_act",   "shared_experts"};
    int known = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        known |= !strcmp(s, names[i]);
    return known;
}

/* Returns the most layers of a pipeline rank; 0: the split is unknown, because of violations listed
 * already. Until pipeline_balance cost has split the layers, a rank may get all of them. */
static int64_t most_layers(const Config *c)
{
    int64_t most = 0;
    if (!c->stages)
        return c->pipeline_balance == PIPELINE_BALANCE_COST ? c->num_layers : 0;
    int64_t *of_rank = keep_alloc((size_t)c->pipeline_model_parallel_size, sizeof *of_rank);
    for (int s = 0; s < c->stages; s++) {
        int64_t *n = &of_rank[placement_rank(c, (int)c->pipeline_model_parallel_size, s)];
        *n += c->stage_layers[s];
        most = *n > most ? *n : most;
    }
    return most;
}

static void rules_recompute(Check *k)
{
    Config *c = k->cfg;
    static const char *core_attn[] = {"core_attn"};
    int full = c->recompute_granularity == RECOMPUTE_GRANULARITY_FULL;
    int selective = c->recompute_granularity == RECOMPUTE_GRANULARITY_SELECTIVE;
    for (int i = 0; i < c->recompute_modules.n; i++)
        RULE(ON1(recompute_modules), !recompute_module(c->recompute_modules.v[i]),
             "'%.60s' is none of core_attn, layernorm, mlp, mlp_act, moe, moe_act, shared_experts",
             c->recompute_modules.v[i]);
    int64_t layers = most_layers(c);
    RULE(ON4(recompute_num_layers, num_layers, pipeline_model_parallel_size, recompute_granularity),
         full && !ABSENT(recompute_num_layers) && layers && c->recompute_num_layers > layers,
         "%ld is more than the %ld layers of a pipeline rank", c->recompute_num_layers, layers);
    int64_t stage = c->num_layers;
    for (int s = 0; s < c->stages; s++)
        stage = s && stage > c->stage_layers[s] ? stage : c->stage_layers[s];
    RULE(ON3(cpu_offloading_num_layers, num_layers, pipeline_model_parallel_size),
         c->cpu_offloading_num_layers > stage, "%ld is more than the %ld layers of a virtual stage",
         c->cpu_offloading_num_layers, stage);
    if (selective && !c->recompute_modules.n && !k->bad[OPT_recompute_modules])
        c->recompute_modules = (List){1, core_attn};
}

static void rules_rest(Check *k, ConfigUse use)
{
    Config *c = k->cfg;
    double share[3];
    if (!rules_own_corpora(c))
        DERIVE(split, ON1(split), "969, 30, 1");
    RULE(ON1(split), !ABSENT(split) && !rules_shares_parse(c->split, share),
         "'%.60s' is not one to three shares with the first above 0; for example '969, 30, 1'", c->split);
    RULE(ON2(eval_interval, valid_data_path),
         (use & USE_STEPS) && !ABSENT(eval_interval) && c->eval_iters && rules_own_corpora(c) &&
             ABSENT(valid_data_path),
         "%ld needs valid_data_path, which is absent; set it, or eval_iters: 0", c->eval_interval);
    RULE(ON1(eval_iters), (use & USE_EVAL) && !c->eval_iters, "0 switches evaluation off, and this command "
         "evaluates; give a number of batches, for example eval_iters=100");
    RULE(ON2(initial_loss_scale, min_loss_scale), c->initial_loss_scale < c->min_loss_scale,
         "%g is below min_loss_scale %g", c->initial_loss_scale, c->min_loss_scale);
    RULE(ON2(adam_eps, params_dtype), c->params_dtype != PARAMS_DTYPE_FP64 && c->adam_eps < FLT_MIN,
         "%g is below the normal numbers of fp32, in which the optimizer computes; use 1e-37 or more, for "
         "example 1e-8", c->adam_eps);
    RULE(ON2(save_retain_interval, save_interval),
         !ABSENT(save_retain_interval) && !ABSENT(save_interval) &&
             c->save_retain_interval % c->save_interval,
         "%ld is not a multiple of save_interval; nearest: %s", c->save_retain_interval,
         check_nearest_multiples(c->save_interval, c->save_retain_interval));
    RULE(ON2(sdc_rerun, sdc_check_interval), c->sdc_rerun && !c->sdc_check_interval,
         "steps are computed again at the checks of sdc_check_interval, which is 0; set it, or sdc_rerun: "
         "false");
    RULE(ON2(on_spike, save_interval),
         (use & USE_STEPS) && c->on_spike == ON_SPIKE_REWIND && ABSENT(save_interval),
         "rewind goes back to a checkpoint, and none is saved; set save_interval, or on_spike: skip");
    RULE(ON1(memory_save_interval),
         (use & USE_STEPS) && !ABSENT(memory_save_interval) && !getenv("GRIDIRON_MEMORY"),
         "%ld keeps copies in a folder of scripts/launch --restarts, which has not started this run; leave "
         "it out, or start with --restarts N", c->memory_save_interval);
    DERIVE(save, ON1(save), config_default_save(c->path));
    RULE(ON1(save), (use & USE_STEPS) && utf8_end(c->save, strlen(c->save)) < strlen(c->save),
         "%s, which follows from the configuration's name, is not UTF-8, as config.yaml is; give save",
         quoted(c->save, strlen(c->save)));
}

/* Checks clock_* keys. Commands that only look at a layout (schedule, plan) take times of its virtual
 * stages too. */
static void rules_clock(Check *k, ConfigUse use)
{
    Config *c = k->cfg;
    const int *on = ON2(pipeline_model_parallel_size, num_virtual_stages_per_pipeline_rank);
    int64_t p = c->pipeline_model_parallel_size;
    for (int i = OPT_clock_forward_ms; i < OPTIONS; i++) {
        int alien = !(use & USE_CLOCK) && (use != USE_MODEL || i == OPT_clock_cells);
        const int key[] = {i, -1};
        RULE(key, alien && !option_absent(&options[i], c), "only `train bubble`%s reads it; leave it out",
             i == OPT_clock_cells ? "" : ", and what looks at a schedule,");
        if (alien || options[i].type != TYPE_LIST || !check_usable(k, on))
            continue;
        int given = ((const List *)option_field(&options[i], c))->n;
        int64_t n = p > 1 ? p * c->num_virtual_stages_per_pipeline_rank : 1;
        RULE(key, given > 1 && given != n, "%d numbers; give one%s, or %ld, one for each virtual stage",
             given, i == OPT_clock_p2p_ms ? "" : ", of a rank", n);
    }
}

void config_resolve(Check *k, int world, ConfigUse use)
{
    if (world == WORLD_SMALLEST)
        world = rules_smallest_world(k->cfg);
    k->cfg->world = world;
    if (use == USE_BUBBLE)
        return;
    rules_required(k, use);
    rules_world(k, world);
    rules_pairs(k);
    rules_model(k);
    rules_cut(k);
    rules_batch(k, use);
    rules_logits(k);
    rules_fp8(k);
    rules_fp8_blocks(k);
    rules_size(k);
    rules_pipeline(k);
    rules_moe(k);
    rules_moments(k);
    rules_steps(k);
    rules_rate(k);
    rules_recompute(k);
    rules_rest(k, use);
    rules_clock(k, use);
}
