/* config_parallel -- rules about the grid of ranks and the pipeline; layers of every virtual stage */
#define _GNU_SOURCE
#include "config_rules.h"
#include "custom.h"
#include "file.h"
#include "grid.h"
#include "placement.h"
#include <fcntl.h>
#include <limits.h>

/* Returns a list of the three sizes (tp, pp, cp) nearest to `want` whose product divides `world`. */
static const char *splits(int world, const int64_t want[3])
{
    char *text = text_copy("");
    double done = -1;
    for (int shown = 0; shown < 3; shown++) {          /* each round adds the nearest not yet listed */
        double best = INFINITY;
        int64_t at[3] = {0}, n[3];
        for (n[0] = 1; n[0] <= world; n[0]++)
            for (n[1] = 1; world % n[0] == 0 && n[1] <= world / n[0]; n[1]++)
                for (n[2] = 1; world / n[0] % n[1] == 0 && n[2] <= world / n[0] / n[1]; n[2]++) {
                    double far = 1e-9 * ((double)(n[0] * 65536 + n[1]) + (double)n[2] / 65536);
                    for (int i = 0; i < 3; i++)
                        far += fabs(log((double)n[i] / (double)want[i]));
                    if (world / n[0] / n[1] % n[2] == 0 && far > done && far < best)
                        best = far, memcpy(at, n, sizeof at);
                }
        if (best == INFINITY)
            break;
        text = textf("%s%s%ldx%ldx%ld", text, shown ? ", " : "", at[0], at[1], at[2]);
        done = best;
    }
    return text;
}

int rules_smallest_world(const Config *c)
{
    int64_t tp = c->tensor_model_parallel_size, stage = tp * c->context_parallel_size, n = stage;
    int64_t etp = c->expert_tensor_parallel_size == CFG_ABSENT ? tp : c->expert_tensor_parallel_size;
    while (!ABSENT(num_moe_experts) && n % (etp * c->expert_model_parallel_size))
        n += stage;
    n *= c->pipeline_model_parallel_size;
    return n <= INT_MAX ? (int)n : 1; /* 1: rules_world refuses it */
}

void rules_world(Check *k, int world)
{
    Config *c = k->cfg;
    int64_t size[3] = {c->tensor_model_parallel_size, c->pipeline_model_parallel_size,
                       c->context_parallel_size};
    int64_t product = size[0] * size[1] * size[2];
    const int *on = ON3(tensor_model_parallel_size, pipeline_model_parallel_size, context_parallel_size);
    RULE(on, world % product, "tensor %ld x pipeline %ld x context %ld = %ld does not divide the world of %d "
         "ranks; nearest (tensor x pipeline x context): %s%s", size[0], size[1], size[2], product, world,
         splits(world, size), world == 1 ? textf("; start %ld ranks (scripts/launch -n %ld ...), or plan "
                                                 "them (--world %ld)", product, product, product) : "");
    c->data_parallel_size = check_usable(k, on) && world % product == 0 ? world / product : 0;
    RULE(ON1(device), c->device == DEVICE_CLOCK,
         "device clock computes nothing: `train bubble` runs it; use cpu");
    if (c->device == DEVICE_CUDA && !k->seen[OPT_distributed_backend])
        c->distributed_backend = DISTRIBUTED_BACKEND_NCCL;
    RULE(ON2(distributed_backend, device),
         c->device == DEVICE_CUDA && c->distributed_backend == DISTRIBUTED_BACKEND_MPI,
         "mpi carries what lies in the host's memory; with device cuda use nccl, or staged");
    RULE(ON2(distributed_backend, device),
         c->device != DEVICE_CUDA && c->distributed_backend != DISTRIBUTED_BACKEND_MPI,
         "%s carries what lies in a GPU's memory; use mpi, or device: cuda",
         options[OPT_distributed_backend].choices[c->distributed_backend]);
    RULE(ON2(comm_checksums, distributed_backend),
         c->comm_checksums && c->distributed_backend == DISTRIBUTED_BACKEND_NCCL,
         "NCCL's messages have no hashes; set comm_checksums: false, or distributed_backend: staged");
    RULE(ON2(params_dtype, device), c->device == DEVICE_CUDA && c->params_dtype == PARAMS_DTYPE_FP64,
         "device cuda computes in fp32, bf16 and fp16; use one of them, or device: cpu");
    RULE(ON2(num_distributed_optimizer_instances, context_parallel_size),
         c->data_parallel_size * c->context_parallel_size > 1 &&
             c->data_parallel_size * c->context_parallel_size % c->num_distributed_optimizer_instances,
         "%ld copies do not divide data parallel %ld x context %ld; nearest: %s",
         c->num_distributed_optimizer_instances, c->data_parallel_size, c->context_parallel_size,
         check_nearest_divisors(c->data_parallel_size * c->context_parallel_size,
                          c->num_distributed_optimizer_instances));
}

/* Returns the chunks of a rank that a layout string of `stages` stages asks for; 1 if it is no whole
 * number. */
static int64_t chunks_of_layout(const Config *c, int stages)
{
    int64_t p = c->pipeline_model_parallel_size;
    return p > 1 && stages % p == 0 && stages / p <= CHUNKS_MOST ? stages / p : 1;
}

/* ---- lists from a file ---- */

static void say_mistake(void *ctx, int line, int col, const char *what)
{
    Check *k = ctx;
    check_report(k, ON1(pipeline_schedule_file), "%s:%d:%d: %s", k->cfg->pipeline_schedule_file, line, col,
                 what);
}

/* Returns a copy that lives as long as the configuration. */
static const CustomLists *kept_lists(const CustomLists *l)
{
    CustomLists *c = keep_alloc(1, sizeof *c);
    size_t n = 0;
    for (int r = 0; r < l->p; r++)
        n += (size_t)l->list[r].n;
    *c = *l;
    c->all = memcpy(keep_alloc(n, sizeof *c->all), l->all, n * sizeof *c->all);
    c->list = keep_alloc((size_t)l->p, sizeof *c->list);
    for (int r = 0; r < l->p; r++)
        c->list[r] = (InstrList){l->list[r].n, c->all + (l->list[r].list - l->all)};
    return c;
}

static void read_lists(Check *k)
{
    Config *c = k->cfg;
    CustomLists lists;
    char why[WHY];
    int64_t size;
    c->custom = NULL;
    if (!check_usable(k, ON3(pipeline_schedule, pipeline_schedule_file, pipeline_model_parallel_size)) ||
        c->pipeline_schedule != PIPELINE_SCHEDULE_CUSTOM || ABSENT(pipeline_schedule_file) ||
        c->pipeline_model_parallel_size == 1)
        return;
    int p = (int)c->pipeline_model_parallel_size;
    char *text = file_read_text(AT_FDCWD, c->pipeline_schedule_file, 0, CUSTOM_BYTES_MOST, &size, why),
         *from = text ? file_behind_mark(text) : NULL;
    if (!text)
        check_report(k, ON1(pipeline_schedule_file), "%s; give a file of lists, a line for each pipeline "
                     "rank", why);
    else if (custom_read(&lists, from, (size_t)(text + size - from), p, say_mistake, k)) {
        c->custom = kept_lists(&lists);
        custom_close(&lists);
    }
    k->bad[OPT_pipeline_schedule_file] = !c->custom;
    free(text);
}

/* Derives absent keys of the pipeline. layout: virtual stages of the layout string, 0 without one. */
static void derive_pipeline(Check *k, int layout)
{
    Config *c = k->cfg;
    DERIVE(num_virtual_stages_per_pipeline_rank,
           ON4(pipeline_schedule, pipeline_model_parallel_layout, pipeline_model_parallel_size,
               pipeline_schedule_file),
           c->custom             ? c->custom->v
           : placement_turns(c) ? schedule_chunks((ScheduleKind)c->pipeline_schedule)
           : layout              ? chunks_of_layout(c, layout)
                                 : 1);
    DERIVE(pipeline_schedule, ON1(num_virtual_stages_per_pipeline_rank),
           c->num_virtual_stages_per_pipeline_rank > 1 ? PIPELINE_SCHEDULE_INTERLEAVED
                                                       : PIPELINE_SCHEDULE_1F1B);
    DERIVE(microbatch_group_size_per_vp_stage, ON1(pipeline_model_parallel_size),
           c->pipeline_model_parallel_size);
    DERIVE(expert_tensor_parallel_size, ON1(tensor_model_parallel_size), c->tensor_model_parallel_size);
}

static void rules_lists(Check *k)
{
    Config *c = k->cfg;
    Axis order[AXES];
    RULE(ON1(rank_order), !grid_parse_order(c->rank_order, order),
         "'%.60s' is not an order of tp, cp, ep, dp, pp joined by '-'; usual: tp-cp-ep-dp-pp", c->rank_order);
}

/* Returns the set of rules of its schedule that the pipeline breaks in a step of m microbatches. */
static unsigned breaks(const Config *c, int64_t m)
{
    return schedule_breaks((ScheduleKind)c->pipeline_schedule, c->pipeline_model_parallel_size,
                           c->num_virtual_stages_per_pipeline_rank, m, c->microbatch_group_size_per_vp_stage);
}

/* Checks the chunks a rank against those that the schedule takes. */
static void rules_chunks(Check *k)
{
    Config *c = k->cfg;
    int64_t p = c->pipeline_model_parallel_size, v = c->num_virtual_stages_per_pipeline_rank;
    ScheduleKind kind = (ScheduleKind)c->pipeline_schedule;
    const ScheduleInfo *row = &schedule_info[kind];
    int broken = breaks(c, 0) & BREAKS_CHUNKS, fixed = schedule_chunks(kind);
    const int *on = ON2(num_virtual_stages_per_pipeline_rank, pipeline_schedule);
    RULE(ON2(num_virtual_stages_per_pipeline_rank, pipeline_schedule_file), c->custom && v != c->custom->v,
         "%ld, but %s has %d stages on each rank; leave it out", v, c->pipeline_schedule_file, c->custom->v);
    RULE(on, broken && fixed > 1, "%ld, but schedule %s has %d chunks a rank", v, row->name, fixed);
    RULE(on, broken && !fixed, "schedule %s needs %d or more", row->name, row->chunks);
    RULE(on, broken && fixed == 1, "%ld, but schedule %s has one chunk a rank; use 1, or pipeline_schedule "
         "%s", v, row->name, schedule_name(SCHEDULE_INTERLEAVED));
    RULE(ON2(num_virtual_stages_per_pipeline_rank, pipeline_model_parallel_size), p * v > STAGES_MOST,
         "%ld on each of %ld pipeline ranks are %ld virtual stages; at most %d: use %ld or fewer", v,
         p, p * v, STAGES_MOST, STAGES_MOST / p);
}

/* Returns the group sizes nearest to `group` that leave 0 or at least p of m microbatches for the last
 * group. p <= m, so that m is such a size. */
static const char *groups_that_fit(int64_t p, int64_t m, int64_t group)
{
    int64_t below = group, above = group;
    while (below >= p && schedule_leaves(p, m, below))
        below--;
    while (schedule_leaves(p, m, above))
        above++;
    return below >= p ? textf("%ld or %ld", below, above) : textf("%ld", above);
}

/* Checks the number of microbatches and the group size against the schedule, for every batch size of the
 * run. */
static void rules_microbatches(Check *k)
{
    Config *c = k->cfg;
    const ScheduleInfo *row = &schedule_info[c->pipeline_schedule];
    int64_t p = c->pipeline_model_parallel_size, group = c->microbatch_group_size_per_vp_stage;
    const int *on = ON2(microbatch_group_size_per_vp_stage, global_batch_size);
    for (int i = 0; i < c->batch_steps; i++) {
        int64_t batch = c->batch_step[i].batch, m = batch / (c->micro_batch_size * c->data_parallel_size);
        unsigned broken = breaks(c, m);
        RULE(on, broken & BREAKS_GROUP, "%ld microbatches in a row, but %s needs from %ld (pipeline ranks) "
             "to %ld (microbatches)%s", group, row->name, p, m,
             m < p ? "; raise the batch size or use pipeline_schedule 1f1b" : "");
        RULE(on, broken & BREAKS_REST, "%ld microbatches in groups of %ld leave %ld, fewer than the %ld "
             "pipeline ranks; nearest groups: %s", m, group, m % group, p, groups_that_fit(p, m, group));
        RULE(ON2(pipeline_schedule, global_batch_size), broken & BREAKS_LEAST, "%s needs %s microbatches for "
             "each of %ld pipeline ranks, a step of %ld samples has %ld; raise the batch size or use zb-v",
             row->name, schedule_least(row), p, batch, m);
        RULE(ON2(pipeline_schedule_file, global_batch_size), c->custom && m != c->custom->m, "%s is for %d "
             "microbatches, a step of %ld samples has %ld; use a batch of %ld", c->pipeline_schedule_file,
             c->custom->m, batch, m, c->custom->m * c->micro_batch_size * c->data_parallel_size);
    }
}

/* ---- sharing layers out ---- */

/* Shares layers out when those of the first or the last rank are given: the other ranks share the rest.
 * Returns the layers of one of these. */
static int64_t rules_ends(Check *k, int64_t p, int64_t v)
{
    Config *c = k->cfg;
    int has_first = !ABSENT(num_layers_in_first_pipeline_stage),
        has_last = !ABSENT(num_layers_in_last_pipeline_stage);
    int64_t first = has_first ? c->num_layers_in_first_pipeline_stage : 0;
    int64_t last = has_last ? c->num_layers_in_last_pipeline_stage : 0;
    int64_t ranks = p - has_first - has_last, unit = ranks * v, rest = c->num_layers - first - last;
    const int *on = has_first ? ON2(num_layers_in_first_pipeline_stage, num_layers)
                              : ON2(num_layers_in_last_pipeline_stage, num_layers);
    RULE(ON1(num_layers_in_first_pipeline_stage), first % v, "%ld layers do not divide into %ld virtual "
         "stages a rank; nearest: %s", first, v, check_nearest_multiples(v, first));
    RULE(ON1(num_layers_in_last_pipeline_stage), last % v, "%ld layers do not divide into %ld virtual stages "
         "a rank; nearest: %s", last, v, check_nearest_multiples(v, last));
    RULE(on, !ranks && rest, "%ld on the first and %ld on the last of 2 pipeline ranks are not the %ld of "
         "num_layers", first, last, c->num_layers);
    RULE(on, ranks && rest < 0, "first and last rank have %ld layers together, num_layers is %ld; use fewer",
         first + last, c->num_layers);
    RULE(on, ranks && rest > 0 && rest % unit, "%ld of %ld layers remain for %ld pipeline ranks of %ld "
         "virtual stages and do not divide; nearest num_layers: %ld or %ld", rest, c->num_layers, ranks, v,
         first + last + rest / unit * unit, first + last + (rest / unit + 1) * unit);
    return ranks ? rest / ranks : 0;
}

/* Checks that all virtual stages get equally many layers; embedding and loss may count as a layer
 * each. */
static void rules_even(Check *k, int64_t p, int64_t v)
{
    Config *c = k->cfg;
    int ends = c->account_for_embedding_in_pipeline_split + c->account_for_loss_in_pipeline_split;
    int64_t all = c->num_layers + ends, n = p * v, below = all / n * n - ends;
    RULE(ON3(num_layers, pipeline_model_parallel_size, num_virtual_stages_per_pipeline_rank), all % n,
         "%ld layers%s do not divide into pipeline %ld x %ld virtual stages; nearest number of layers: %s; "
         "pipeline_balance: cost shares out any number",
         c->num_layers,
         ends == 2 ? " and embedding and loss counted as one each"
         : ends    ? " and one end counted as one"
                   : "",
         p, v,
         below > 0 ? textf("%ld or %ld", below, below + n) : textf("%ld", below + n));
}

static void rules_layout(Check *k, int64_t p, int64_t v, const int *layers, int stages)
{
    Config *c = k->cfg;
    int64_t sum = 0;
    for (int s = 0; s < stages; s++)
        sum += layers[s];
    RULE(ON2(pipeline_model_parallel_layout, num_layers), sum != c->num_layers,
         "holds %ld layers (t), num_layers is %ld", sum, c->num_layers);
    RULE(ON3(pipeline_model_parallel_layout, pipeline_model_parallel_size,
             num_virtual_stages_per_pipeline_rank),
         stages != p * v && !k->seen[OPT_num_virtual_stages_per_pipeline_rank] &&
             !placement_turns(c) && !c->custom,
         "has %d stages, which %ld pipeline ranks cannot share evenly, %d each at most; nearest: %s",
         stages, p, CHUNKS_MOST,
         check_nearest_multiples(p, stages > CHUNKS_MOST * p ? CHUNKS_MOST * p - 1 : stages));
    RULE(ON3(pipeline_model_parallel_layout, pipeline_model_parallel_size,
             num_virtual_stages_per_pipeline_rank),
         stages != p * v && (k->seen[OPT_num_virtual_stages_per_pipeline_rank] ||
                             placement_turns(c) || c->custom),
         "has %d stages, but pipeline %ld x %ld virtual stages make %ld", stages, p, v, p * v);
}

/* Fills c->stage_layers. layout: layers of each stage, or NULL; middle: layers of a rank between the
 * ends if those of an end are given, else < 0. */
static void split(Check *k, int64_t p, int64_t v, const int *layout, int64_t middle)
{
    Config *c = k->cfg;
    int n = (int)(p * v), embedding = c->account_for_embedding_in_pipeline_split;
    int even = (int)((c->num_layers + embedding + c->account_for_loss_in_pipeline_split) / n);
    int *layers = keep_alloc((size_t)n, sizeof *layers);
    for (int s = 0; s < n; s++) {
        int r = placement_rank(c, (int)p, s);
        if (layout)
            layers[s] = layout[s];
        else if (middle < 0)
            layers[s] = even - (s == 0 && embedding) - (s == n - 1 && c->account_for_loss_in_pipeline_split);
        else if (r == 0 && !ABSENT(num_layers_in_first_pipeline_stage))
            layers[s] = (int)(c->num_layers_in_first_pipeline_stage / v);
        else if (r == p - 1 && !ABSENT(num_layers_in_last_pipeline_stage))
            layers[s] = (int)(c->num_layers_in_last_pipeline_stage / v);
        else
            layers[s] = (int)(middle / v);
    }
    c->stages = n;
    c->stage_layers = layers;
}

static void rules_split(Check *k, const int *layout, int stages)
{
    Config *c = k->cfg;
    int64_t p = c->pipeline_model_parallel_size, v = p > 1 ? c->num_virtual_stages_per_pipeline_rank : 1;
    int64_t middle = -1;
    int before = k->n + k->dropped;
    int by_ends = !ABSENT(num_layers_in_first_pipeline_stage) || !ABSENT(num_layers_in_last_pipeline_stage);
    if (!check_usable(k, ON4(num_layers, pipeline_model_parallel_size, num_virtual_stages_per_pipeline_rank,
                       pipeline_schedule)) ||
        !check_usable(k, ON3(pipeline_model_parallel_layout, pipeline_balance,
                       account_for_embedding_in_pipeline_split)) ||
        !check_usable(k, ON3(num_layers_in_first_pipeline_stage, num_layers_in_last_pipeline_stage,
                       account_for_loss_in_pipeline_split)) ||
        p * v > STAGES_MOST || k->split_conflict || (p > 1 && c->pipeline_balance == PIPELINE_BALANCE_COST))
        return;
    int all[1] = {(int)c->num_layers};
    if (p == 1)
        layout = all;
    else if (layout)
        rules_layout(k, p, v, layout, stages);
    else if (by_ends)
        middle = rules_ends(k, p, v);
    else
        rules_even(k, p, v);
    if (k->n + k->dropped == before)
        split(k, p, v, layout, middle);
}

void rules_pipeline(Check *k)
{
    Config *c = k->cfg;
    const int *layout = NULL;
    int stages = 0,
        given =
            check_usable(k, ON1(pipeline_model_parallel_layout)) && !ABSENT(pipeline_model_parallel_layout);
    char *error = given ? config_parse_layout(c->pipeline_model_parallel_layout, &layout, &stages) : NULL;
    if (error) {
        check_report(k, ON1(pipeline_model_parallel_layout), "%s", error);
        k->bad[OPT_pipeline_model_parallel_layout] = 1;
    }
    read_lists(k);
    derive_pipeline(k, stages);
    rules_lists(k);
    rules_context(k);
    if (c->pipeline_model_parallel_size > 1 &&
        check_usable(k,
               ON3(pipeline_model_parallel_size, num_virtual_stages_per_pipeline_rank, pipeline_schedule))) {
        rules_chunks(k);
        rules_microbatches(k);
    }
    rules_split(k, layout, stages);
}
