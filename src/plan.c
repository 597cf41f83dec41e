/* train plan -- placement, exact memory, arithmetic and messages of a run, without starting it. */
#include "args.h"
#include "commands.h"
#include "run.h"
#include <stdlib.h>

static const struct { const char *name; size_t at; } categories[] = {
    {"parameters", offsetof(Memory, parameters)}, {"gradients", offsetof(Memory, gradients)},
    {"optimizer", offsetof(Memory, optimizer)},   {"activations", offsetof(Memory, activations)},
    {"buffers", offsetof(Memory, buffers)},       {"total", offsetof(Memory, total)},
};
enum { CATEGORIES = sizeof categories / sizeof *categories };

static int64_t bytes_of(const Memory *m, int i) { return *(const int64_t *)((const char *)m + categories[i].at); }

static json_t *as_json(const Config *c, const Memory *m, double flops)
{
    json_t *memory = json_pack("{s:i}", "rank", 0), *messages = json_object();
    for (int i = 0; i < CATEGORIES; i++)
        json_object_set_new(memory, categories[i].name, json_integer(bytes_of(m, i)));
    for (int a = 0; a < AXES; a++)
        json_object_set_new(messages, axis_name[a], json_pack("{s:i s:i}", "count", 0, "bytes", 0));
    const BatchStep *last = &c->batch_step[c->batch_steps - 1];
    return json_pack("{s:i s:{s:i s:i s:i s:i s:i s:i s:i} s:s s:I s:[{s:i s:i s:i s:I s:b s:b}] s:[o] s:o s:f s:f s:n s:I}",
                     "world", c->world, "layout", "tp", 1, "cp", 1, "ep", 1, "etp", 1, "dp", 1, "pp", 1, "vpp", 1,
                     "schedule", c->pipeline_schedule == PIPELINE_SCHEDULE_GPIPE ? "gpipe" : "1f1b", "microbatches",
                     (json_int_t)(last->batch / c->micro_batch_size), "stages", "pp_rank", 0, "chunk", 0, "first_layer", 0,
                     "layers", (json_int_t)c->num_layers, "embedding", 1, "loss", 1, "memory", memory, "messages", messages,
                     "flops_per_step", flops, "bubble", 0.0, "step_ms", "num_parameters", (json_int_t)params_count(c));
}

int command_plan(int argc, char **argv)
{
    Args a = args_open("plan", argc, argv);
    int json = args_flag(&a, "--json");
    int world = (int)args_number(&a, "--world", 1, 1, 1e6);
    if (args_value(&a, "--machine") || args_flag(&a, "--explain") || args_flag(&a, "--calibrate"))
        die(EXIT_CONFIG, "not-built", "train plan: predicting step times (--machine, --explain, --calibrate) is not built; change: "
            "leave it out; memory, placement and arithmetic are exact without it");
    const char *path = args_next(&a, "CONFIG");
    args_end(&a, 1);
    const Config *c = config_load(path, a.n, a.v, world, USE_MODEL);
    free(a.v);
    if (c->world > 1)
        die(EXIT_CONFIG, "not-built", "train plan: memory of more than one rank is not built; change: leave --world out");
    Memory m = run_plan(c, RUN_TRAIN, 0);
    const BatchStep *last = &c->batch_step[c->batch_steps - 1];
    double flops = run_flops_per_token(c) * (double)(last->batch * c->seq_length);
    if (json) {
        json_t *j = as_json(c, &m, flops);
        json_dumpf(j, stdout, JSON_INDENT(2));
        printf("\n");
        json_decref(j);
        return EXIT_DONE;
    }
    printf("model      %lld parameters: %lld layers, width %lld, %lld heads of %lld (%lld key/value), vocabulary %lld (%lld with "
           "padding)\n", (long long)params_count(c), (long long)c->num_layers, (long long)c->hidden_size,
           (long long)c->num_attention_heads, (long long)c->kv_channels, (long long)c->num_query_groups,
           (long long)c->vocab_size, (long long)c->padded_vocab_size);
    printf("placement  rank 0: embedding, layers 0 to %lld, loss\n", (long long)c->num_layers - 1);
    printf("step       %lld samples of %lld tokens in %lld microbatches of %lld; %.3g TFLOP\n", (long long)last->batch,
           (long long)c->seq_length, (long long)(last->batch / c->micro_batch_size), (long long)c->micro_batch_size,
           flops / 1e12);
    printf("memory     bytes of rank 0\n");
    for (int i = 0; i < CATEGORIES; i++)
        printf("  %-12s %15lld  %10.1f MB\n", categories[i].name, (long long)bytes_of(&m, i), (double)bytes_of(&m, i) / 1e6);
    printf("messages   none: one rank\n");
    return EXIT_DONE;
}
