/* test_config_rules -- the rules between options: each rule is broken once and kept once; rules about
 * numbers are compared with brute force; the nearest legal values of messages are tried; the batch-size
 * schedule is compared with a loop over single steps */
#define _GNU_SOURCE
#include "config_text.h"
#include <unistd.h>

/* ---- each rule once ---- */

/* says: part of the violation's text; NULL: legal. n: number of all violations; 0: this one alone */
static const struct { const char *args; int world; const char *says; int n;
} cases[] = {
    {"", 1, NULL},
    /* world */
    {"tensor_model_parallel_size=2", 1,
     "tensor_model_parallel_size: tensor 2 x pipeline 1 x context 1 = 2 does not divide "
     "the world of 1 ranks; nearest (tensor x pipeline x context): 1x1x1"},
    {"", 2, NULL},
    {"tensor_model_parallel_size=2|pipeline_model_parallel_size=2", 8, NULL},
    {"context_parallel_size=2", 2, NULL},
    {"expert_model_parallel_size=2", 1,
     "expert_model_parallel_size: 2 needs num_moe_experts, which is absent"},
    {"num_moe_experts=8", 1, NULL},
    {"device=cuda", 1, NULL},
    {"device=cuda|distributed_backend=staged", 4, NULL},
    {"device=cuda|distributed_backend=mpi", 1, "mpi carries what lies in the host's memory"},
    {"device=cuda|params_dtype=fp64", 1, "device cuda computes in fp32, bf16 and fp16"},
    {"tp_comm_overlap=true|tensor_model_parallel_size=2", 2, "true needs sequence_parallel: true"},
    {"tp_comm_overlap=true|sequence_parallel=true|tensor_model_parallel_size=2", 2, NULL},
    {"device=clock", 1, "device: device clock computes nothing"},
    {"exp_avg_dtype=fp8|exp_avg_sq_dtype=fp16|hidden_size=64|ffn_hidden_size=64|kv_channels=32", 1, NULL},
    {"exp_avg_sq_dtype=bf16|hidden_size=72|ffn_hidden_size=64|kv_channels=32", 1,
     "hidden_size: 72 is not a multiple of 32, as exp_avg_sq_dtype asks; nearest: 64 or 96"},
    {"exp_avg_dtype=fp8|hidden_size=64|ffn_hidden_size=96|kv_channels=32|tensor_model_parallel_size=2", 2,
     "ffn_hidden_size: 96 is not a multiple of 32 x tensor_model_parallel_size 2, as exp_avg_dtype asks; "
     "nearest: 64 or 128"},
    {"exp_avg_dtype=fp8|hidden_size=64|ffn_hidden_size=64|kv_channels=16|num_query_groups=1", 1,
     "keys, and exp_avg_dtype asks for multiples of 32; use a multiple of 32"},
    {"exp_avg_dtype=bf16|hidden_size=64|ffn_hidden_size=64|kv_channels=32|num_moe_experts=4|"
     "moe_ffn_hidden_size=40", 1, "moe_ffn_hidden_size: 40 is not a multiple of 32 x"},
    {"exp_avg_dtype=bf16|hidden_size=64|ffn_hidden_size=64|kv_channels=32|num_moe_experts=4|"
     "moe_ffn_hidden_size=64|moe_shared_expert_intermediate_size=48|add_bias_linear=false", 1,
     "moe_shared_expert_intermediate_size: 48 is not a multiple of 32 x"},
    {"exp_avg_dtype=fp8|optimizer=sgd|hidden_size=64|ffn_hidden_size=64|kv_channels=32", 1, NULL},
    {"distributed_backend=nccl", 1, "nccl carries what lies in a GPU's memory; use mpi, or device: cuda"},
    {"distributed_backend=nccl|device=cuda|comm_checksums=true", 1, "NCCL's messages have no hashes"},
    {"distributed_backend=staged|device=cuda|comm_checksums=true", 1, NULL},
    {"distributed_backend=staged", 1, "staged carries what lies in a GPU's memory"},
    {"num_distributed_optimizer_instances=3", 4,
     "3 copies do not divide data parallel 4 x context 1; nearest: 2 or 4", 2},
    {"num_distributed_optimizer_instances=3|data_parallel_sharding_strategy=optim", 4,
     "3 copies do not divide data parallel 4 x context 1; nearest: 2 or 4"},
    {"num_distributed_optimizer_instances=2|data_parallel_sharding_strategy=optim", 4, NULL},
    {"num_distributed_optimizer_instances=3", 1, NULL},
    {"overlap_param_gather=true", 2, "true does not go with data_parallel_sharding_strategy no_shard", 2},
    {"overlap_param_gather=true", 1, NULL},
    {"overlap_param_gather=true|overlap_grad_reduce=true|data_parallel_sharding_strategy=optim", 2, NULL},
    {"sequence_parallel=true|data_parallel_sharding_strategy=optim_grads_params", 1, NULL},
    {"rank_order=tp-cp-ep-dp", 1, "rank_order: 'tp-cp-ep-dp' is not an order"},
    {"rank_order=tp-tp-ep-dp-pp", 1, "is not an order"},
    {"rank_order=tp-cp-ep-pp-dp", 1, NULL},
    {"cp_comm_type=[p2p, ring]", 1, "cp_comm_type: 'ring' is none of"},
    {"cp_comm_type=[]", 1, "cp_comm_type: 0 kinds, but num_layers is 4; give one for all layers"},
    {"cp_comm_type=[p2p, a2a]", 1, NULL},
    {"cp_comm_type=a2a+p2p", 1, NULL},
    {"context_parallel_size=4|seq_length=20", 4,
     "seq_length: 20 is not a multiple of 2 x context_parallel_size 4; nearest: 16 or 24"},
    {"context_parallel_size=2|tensor_model_parallel_size=4|sequence_parallel=true|seq_length=20", 8,
     "seq_length: 20 / context_parallel_size 2 is not a multiple of tensor_model_parallel_size 4, as "
     "sequence_parallel asks; nearest: 16 or 24"},
    {"context_parallel_size=2|tensor_model_parallel_size=4|sequence_parallel=true|seq_length=24", 8,
     NULL},
    {"context_parallel_size=4|cp_comm_type=a2a", 4, NULL},
    {"context_parallel_size=8|cp_comm_type=a2a", 8,
     "cp_comm_type: a2a over 8 ranks shares out 4 query heads and 4 key/value heads of a tensor rank; groups "
     "that fit: 4; or use p2p or allgather"},
    {"context_parallel_size=4|cp_comm_type=a2a+p2p|hierarchical_context_parallel_sizes=[2,2]", 4, NULL},
    {"context_parallel_size=4|cp_comm_type=a2a+p2p", 4,
     "hierarchical_context_parallel_sizes: a2a+p2p needs two sizes, of an a2a group and the number of "
     "groups, whose product is context_parallel_size 4; for example [2, 2]"},
    {"context_parallel_size=4|cp_comm_type=a2a+p2p|num_query_groups=1", 4,
     "hierarchical_context_parallel_sizes: a2a+p2p needs two sizes, of an a2a group and the number of "
     "groups, whose product is context_parallel_size 4; for example [1, 4]"},
    {"context_parallel_size=4|cp_comm_type=a2a+p2p|num_query_groups=1|"
     "hierarchical_context_parallel_sizes=[1,4]", 4, NULL},
    {"context_parallel_size=4|cp_comm_type=a2a+p2p|hierarchical_context_parallel_sizes=[2,3]", 4,
     "whose product is context_parallel_size 4; for example [2, 2]"},
    {"context_parallel_size=4|cp_comm_type=a2a+p2p|hierarchical_context_parallel_sizes=[4]", 4,
     "needs two sizes"},
    {"context_parallel_size=4|cp_comm_type=a2a+p2p|hierarchical_context_parallel_sizes=[2,2,1]", 4,
     "needs two sizes"},
    {"context_parallel_size=8|cp_comm_type=a2a+p2p|hierarchical_context_parallel_sizes=[8,1]", 8,
     "cp_comm_type: a2a+p2p over 8 ranks shares out 4 query heads"},
    {"context_parallel_size=4|hierarchical_context_parallel_sizes=[2,2]", 4,
     "sizes are for cp_comm_type a2a+p2p, which no layer has"},
    {"context_parallel_size=2|cp_comm_type=[p2p,a2a,allgather,p2p]", 2, NULL},
    {"context_parallel_size=2|cp_comm_type=[p2p,a2a]", 2,
     "cp_comm_type: 2 kinds, but num_layers is 4; give one for all layers, or one for each"},
    {"context_parallel_size=2|cp_comm_type=[]", 2, "cp_comm_type: 0 kinds, but num_layers is 4"},
    {"context_parallel_size=64|cp_comm_type=allgather|seq_length=128", 64, NULL},
    {"context_parallel_size=128|cp_comm_type=p2p|seq_length=256", 128, NULL},
    {"context_parallel_size=128|cp_comm_type=allgather|seq_length=256", 128,
     "cp_comm_type: a group that gathers or exchanges all positions has at most 64 ranks; use p2p, or "
     "a2a+p2p with a smaller first size"},
    {"context_parallel_size=128|cp_comm_type=a2a|seq_length=256|num_attention_heads=128|hidden_size=128", 128,
     "has at most 64 ranks"},
    {"context_parallel_size=256|cp_comm_type=a2a+p2p|hierarchical_context_parallel_sizes=[128,2]|"
     "seq_length=512|num_attention_heads=128|hidden_size=128", 256, "has at most 64 ranks"},
    /* pipeline */
    {"pipeline_model_parallel_layout=Et*4L", 1, NULL},
    {"pipeline_model_parallel_layout=Et*3L", 1, NULL},
    {"pipeline_model_parallel_layout=Et*4", 1, "character 5: the string ends without L (loss)"},
    {"pipeline_balance=cost", 1, NULL},
    {"pipeline_balance=cost|pipeline_model_parallel_size=3", 3, NULL},
    {"pipeline_model_parallel_size=2|pipeline_model_parallel_layout=Et/t*3L", 2, NULL},
    {"pipeline_model_parallel_size=2|pipeline_model_parallel_layout=Et/t*2L", 2,
     "pipeline_model_parallel_layout: holds 3 layers (t), num_layers is 4"},
    {"pipeline_model_parallel_size=2|pipeline_model_parallel_layout=Et//t*3L", 2,
     "has 3 stages, which 2 pipeline ranks cannot share evenly, 255 each at most; nearest: 2 or 4"},
    {"pipeline_model_parallel_size=2|pipeline_schedule=zb-v|pipeline_model_parallel_layout=Et/t*3L", 2,
     "has 2 stages, but pipeline 2 x 2 virtual stages make 4"},
    {"pipeline_model_parallel_size=2|num_virtual_stages_per_pipeline_rank=3|global_batch_size=4|"
     "pipeline_model_parallel_layout=Et//t*3L",
     2, "has 3 stages, but pipeline 2 x 3 virtual stages make 6"},
    {"pipeline_model_parallel_size=2|global_batch_size=4|pipeline_model_parallel_layout=Et//t/t*2L", 2, NULL},
    {"pipeline_model_parallel_size=2|pipeline_schedule=1f1b|pipeline_model_parallel_layout=Et//t/t*2L", 2,
     "2, but schedule 1f1b has one chunk a rank"},
    {"pipeline_model_parallel_size=2|num_layers_in_first_pipeline_stage=1", 2, NULL},
    {"pipeline_model_parallel_size=2|num_layers_in_last_pipeline_stage=3", 2, NULL},
    {"pipeline_model_parallel_size=2|num_layers_in_first_pipeline_stage=1|num_layers_in_last_pipeline_stage="
     "2",
     2,
     "num_layers_in_first_pipeline_stage: 1 on the first and 2 on the last of 2 pipeline ranks are not the "
     "4"},
    {"pipeline_model_parallel_size=3|num_layers_in_last_pipeline_stage=5", 3,
     "num_layers_in_last_pipeline_stage: first and last rank have 5 layers together, num_layers is 4; use "
     "fewer"},
    {"pipeline_model_parallel_size=3|num_layers_in_last_pipeline_stage=1", 3,
     "3 of 4 layers remain for 2 pipeline ranks of 1 virtual stages and do not divide; nearest num_layers: 3 "
     "or 5"},
    {"pipeline_model_parallel_size=2|pipeline_schedule=zb-v|num_layers_in_first_pipeline_stage=1", 2,
     "num_layers_in_first_pipeline_stage: 1 layers do not divide into 2 virtual stages a rank; nearest: 2",
     2},
    {"pipeline_model_parallel_size=3|account_for_embedding_in_pipeline_split=true|"
     "account_for_loss_in_pipeline_split=true",
     3, NULL},
    {"pipeline_model_parallel_size=3|account_for_embedding_in_pipeline_split=true", 3,
     "num_layers: 4 layers and one end counted as one do not divide into pipeline 3 x 1 virtual stages; "
     "nearest number "
     "of layers: 2 or 5"},
    {"pipeline_model_parallel_size=2|pipeline_schedule=dualpipev|global_batch_size=8", 2, NULL},
    {"pipeline_model_parallel_size=2|pipeline_schedule=dualpipev|global_batch_size=6", 2,
     "pipeline_schedule: dualpipev needs two microbatches for each of 2 pipeline ranks, a step of 6 samples "
     "has 3; raise the "
     "batch size or use zb-v"},
    {"pipeline_schedule=dualpipev|global_batch_size=2", 1, NULL},
    {"pipeline_model_parallel_size=2|pipeline_schedule=zb-auto", 2, NULL},
    {"pipeline_model_parallel_size=2|pipeline_schedule=zb-auto|pipeline_max_activations=1", 2, NULL},
    {"pipeline_model_parallel_size=2|pipeline_schedule=zb-auto|pipeline_max_activations=0", 2,
     "pipeline_max_activations: 0 is not in [1, 65535]"},
    {"pipeline_model_parallel_size=2|pipeline_schedule=zb-auto|num_virtual_stages_per_pipeline_rank=2", 2,
     "2, but schedule zb-auto has one chunk a rank"},
    {"pipeline_model_parallel_size=2|pipeline_schedule=custom|pipeline_schedule_file=/nowhere/x", 2,
     "give a file of lists, a line for each pipeline rank"},
    {"pipeline_schedule=custom|pipeline_schedule_file=/nowhere/x", 1, NULL},
    {"pipeline_schedule=zb-auto|pipeline_max_activations=3", 1, NULL},
    {"pipeline_schedule=custom", 1, NULL},
    {"pipeline_model_parallel_size=512|num_virtual_stages_per_pipeline_rank=200|pipeline_balance=cost|"
     "global_batch_size=1024",
     512, "200 on each of 512 pipeline ranks are 102400 virtual stages; at most 65536: use 128 or fewer"},
    {"pipeline_schedule=zb-v|num_virtual_stages_per_pipeline_rank=3", 1, NULL},
    {"pipeline_model_parallel_size=2|pipeline_schedule=zb-v|num_virtual_stages_per_pipeline_rank=1", 2,
     "1, but schedule zb-v has 2 chunks a rank"},
    {"pipeline_model_parallel_size=2|pipeline_schedule=interleaved|global_batch_size=4", 2,
     "schedule interleaved needs 2 or more"},
    {"pipeline_model_parallel_size=2|pipeline_schedule=1f1b|num_virtual_stages_per_pipeline_rank=2", 2,
     "2, but schedule 1f1b has one chunk a rank"},
    {"pipeline_model_parallel_size=2|pipeline_schedule=custom", 2,
     "pipeline_schedule_file: absent beside pipeline_schedule custom"},
    {"pipeline_model_parallel_size=2|pipeline_schedule_file=x", 2,
     "pipeline_schedule_file: x needs pipeline_schedule, which is absent"},
    {"pipeline_model_parallel_size=2|pipeline_max_activations=4", 2,
     "pipeline_max_activations: 4 needs pipeline_schedule"},
    /* model */
    {"num_attention_heads=5", 1,
     "hidden_size: 64 is not a multiple of num_attention_heads 5; nearest: 60 or 65"},
    {"num_attention_heads=5|kv_channels=16", 1, NULL},
    {"num_query_groups=3", 1, "num_query_groups: 3 does not divide num_attention_heads 4; nearest: 2 or 4"},
    {"max_position_embeddings=31", 1,
     "max_position_embeddings: 31 is below seq_length 32; use 32 or more, or a seq_length of at most 31"},
    {"position_embedding_type=rope|rotary_percent=0.2", 1,
     "rotary_percent: rope turns int(16 kv_channels x 0.2) = 3"},
    {"rope_scaling=linear|rope_scaling_factor=2", 1,
     "rope_scaling: linear scales rotary angles, which only position_embedding_type rope has"},
    {"position_embedding_type=rope|rope_scaling=linear", 1,
     "rope_scaling_factor: missing; rope_scaling linear needs it"},
    {"position_embedding_type=rope|rope_scaling=linear|rope_scaling_factor=2", 1, NULL},
    {"position_embedding_type=rope|rope_scaling=linear|rope_scaling_factor=0.5", 1,
     "rope_scaling_factor: 0.5 is not in [1, 1e6]"},
    {"position_embedding_type=rope|rope_scaling_factor=2", 1,
     "rope_scaling_factor: rope_scaling none does not read it; leave it out, or use linear, dynamic, yarn, "
     "llama3"},
    {"position_embedding_type=rope|rope_scaling=dynamic|rope_scaling_factor=2", 1,
     "rope_original_max_position_embeddings: missing; rope_scaling dynamic needs it"},
    {"position_embedding_type=rope|rope_scaling=dynamic|rope_scaling_factor=2|"
     "rope_original_max_position_embeddings=16|kv_channels=2", 1,
     "rope_scaling: dynamic needs heads with at least 4 columns that turn"},
    {"position_embedding_type=rope|rope_scaling=dynamic|rope_scaling_factor=2|"
     "rope_original_max_position_embeddings=16|rotary_percent=0.25", 1, NULL},
    {"position_embedding_type=rope|rope_scaling=yarn|rope_scaling_factor=2|"
     "rope_original_max_position_embeddings=16|rope_beta_fast=1|rope_beta_slow=2", 1,
     "rope_beta_slow: 2 is above rope_beta_fast 1"},
    {"position_embedding_type=rope|rope_scaling=yarn|rope_scaling_factor=2|"
     "rope_original_max_position_embeddings=16|rope_high_freq_factor=8", 1,
     "rope_high_freq_factor: rope_scaling yarn does not read it; leave it out, or use llama3"},
    {"position_embedding_type=rope|rope_scaling=llama3|rope_scaling_factor=8|"
     "rope_original_max_position_embeddings=16", 1, NULL},
    {"position_embedding_type=rope|rope_scaling=llama3|rope_scaling_factor=8|"
     "rope_original_max_position_embeddings=16|rope_low_freq_factor=4", 1,
     "rope_low_freq_factor: 4 is not below rope_high_freq_factor 4"},
    {"num_attention_heads=1024|kv_channels=128", 1,
     "num_attention_heads: 1024 heads of 128 kv_channels make rows of 131072, "
     "more than 65536; use at most 512 heads"},
    {"hidden_size=2056", 1,
     "hidden_size: 2056 / num_attention_heads 4 makes heads of 514, attention takes up to 512; "
     "use at least 5 heads"},
    {"activation=swiglu|hidden_size=20|num_attention_heads=2", 1,
     "ffn_hidden_size: missing; hidden_size 20 is too small"},
    {"activation=geglu|hidden_size=20|num_attention_heads=2|ffn_hidden_size=50", 1, NULL},
    {"tokenizer_type=none", 1, "vocab_size: missing; tokenizer_type none"},
    {"tokenizer_type=byte|vocab_size=300", 1, "vocab_size: 300, but tokenizer_type byte has 257"},
    {"vocab_size=300", 1, NULL},
    {"vocab_size=300|null_tokenizer_eod_id=299", 1, NULL},
    {"vocab_size=300|null_tokenizer_eod_id=300", 1, "null_tokenizer_eod_id: 300 is none of the 300"},
    {"null_tokenizer_eod_id=256", 1, "null_tokenizer_eod_id: 256 does not go with tokenizer_type byte"},
    {"tokenizer_model=x", 1, "tokenizer_model: no tokenizer of this build"},
    {"hidden_size=65536|num_layers=10000|ffn_hidden_size=8388608|num_attention_heads=128|vocab_size=16777216",
     1, "hidden_size: the model has about"},
    {"seq_length=16777216|micro_batch_size=128", 1, "micro_batch_size: 128 samples of 16777216 tokens"},
    {"seq_length=16777216|micro_batch_size=127|vocab_size=1000000|hidden_size=4", 1,
     "micro_batch_size: the widest activation"},
    /* batch and steps */
    {"global_batch_size=7", 1,
     "global_batch_size: 7 is not a multiple of micro_batch_size 2 x data-parallel size 1; nearest: "
     "6 or 8"},
    {"global_batch_size=131072", 1, "global_batch_size: 131072 is 65536 microbatches"},
    {"global_batch_size=131070", 1, NULL},
    {"global_batch_size=4|step_batch_size_schedule=0:4", 1,
     "step_batch_size_schedule: '0:4' does not go with global_batch_size 4; keep one"},
    {"train_samples=100", 1, "train_samples: 100 does not go with train_iters 10; keep one"},
    {"train_iters=null", 1, "train_iters: missing; training needs train_iters or train_samples"},
    {"train_iters=null|train_samples=100", 1, NULL},
    {"train_iters=null|train_samples=3|global_batch_size=4", 1,
     "train_samples: 3 are less than one step of 4"},
    {"train_iters=null|train_samples=4000000000|global_batch_size=4", 1, NULL},
    {"train_iters=null|train_samples=4000000004|global_batch_size=4", 1,
     "train_samples: 4000000004 are 1000000001 steps, and a run has at most 1000000000"},
    {"train_iters=1_000_000_000|global_batch_size=65534|seq_length=1_000_000", 1, "seq_length: the run has"},
    {"eval_interval=1|eval_iters=1_000_000_000|train_iters=1_000_000_000", 1,
     "eval_iters: the evaluations of the run"},
    {"eval_interval=10|split='1'", 1, "eval_interval: 10 does not go with split '1'; nothing is left"},
    {"split='1'", 1, NULL},
    {"split='0, 1'", 1, "split: '0, 1' is not one to three shares"},
    {"split='1, -1'", 1, "is not one to three shares"},
    {"split='1, nan'", 1, "is not one to three shares"},
    {"split='1, 2, 3, 4'", 1, "is not one to three shares"},
    {"split='1;2'", 1, "is not one to three shares"},
    {"split='.5, .5,0'", 1, NULL},
    /* learning rate */
    {"min_lr=0.01", 1, "min_lr: 0.01 is above lr 0.001"},
    {"min_lr=0.001", 1, NULL},
    {"lr_warmup_init=0.01", 1, "lr_warmup_init: 0.01 is above lr 0.001"},
    {"lr_decay_samples=10", 1, "lr_decay_samples: 10 needs train_samples, which is absent"},
    {"lr_wsd_decay_samples=10", 1, "lr_wsd_decay_samples: 10 needs train_samples"},
    {"lr_warmup_samples=10", 1, "lr_warmup_samples: 10 needs train_samples"},
    {"train_iters=null|train_samples=100|lr_decay_iters=10", 1,
     "lr_decay_iters: 10 does not go with train_samples 100"},
    {"train_iters=null|train_samples=100|lr_wsd_decay_iters=10", 1,
     "lr_wsd_decay_iters: 10 does not go with train_samples 100"},
    {"train_iters=null|train_samples=100|lr_warmup_iters=1", 1,
     "lr_warmup_iters: 1 does not go with train_samples 100"},
    {"train_iters=null|train_samples=100|lr_warmup_samples=99", 1, NULL},
    {"lr_warmup_fraction=0.1|lr_warmup_iters=1", 1,
     "lr_warmup_fraction: 0.1 does not go with lr_warmup_iters 1"},
    {"lr_warmup_fraction=0.1", 1, NULL},
    {"lr_scaling=sqrt", 1, "lr_base_batch_size: absent beside lr_scaling sqrt"},
    {"lr_base_batch_size=8", 1, "lr_base_batch_size: 8 does not go with lr_scaling none"},
    {"lr_scaling=linear|lr_base_batch_size=8", 1, NULL},
    {"lr_warmup_iters=10", 1, "lr_warmup_iters: warm-up of 10 is not shorter than the decay of 10"},
    {"lr_warmup_iters=9", 1, NULL},
    {"lr_warmup_iters=10|lr_decay_iters=20", 1, NULL},
    {"lr_decay_style=WSD", 1, "lr_wsd_decay_iters: absent beside lr_decay_style WSD"},
    {"lr_wsd_decay_iters=2", 1, "lr_wsd_decay_iters: 2 does not go with lr_decay_style linear"},
    {"lr_decay_style=WSD|lr_wsd_decay_iters=10", 1, NULL},
    {"lr_decay_style=WSD|lr_wsd_decay_iters=11", 1,
     "closing decay of 11 after a warm-up of 0 does not fit into 10"},
    {"lr_decay_style=WSD|lr_wsd_decay_iters=6|lr_warmup_iters=5", 1,
     "closing decay of 6 after a warm-up of 5"},
    {"lr_decay_style=WSD|lr_wsd_decay_iters=6|lr_warmup_fraction=0.5", 1,
     "closing decay of 6 after a warm-up of 5"},
    {"lr_decay_style=WSD|train_iters=100|lr_wsd_decay_iters=45|lr_warmup_fraction=0.55", 1, NULL},
    /* with a schedule of batch sizes samples decide: 5 of 10 iterations have 20 of 100, or 80 */
    {"step_batch_size_schedule='0:4 640:16'|lr_decay_style=WSD|lr_wsd_decay_iters=5|"
     "lr_warmup_fraction=0.4", 1,
     "lr_wsd_decay_iters: closing decay of 5 begins after 20 samples, within the warm-up, lr_warmup_fraction "
     "0.4 of 100 samples"},
    {"step_batch_size_schedule='0:16 2560:4'|lr_decay_style=WSD|lr_wsd_decay_iters=5|"
     "lr_warmup_fraction=0.7", 1, NULL},
    {"lr_decay_style=WSD|train_iters=null|train_samples=100|lr_wsd_decay_samples=50", 1, NULL},
    /* recompute */
    {"recompute_granularity=full|recompute_num_layers=1", 1,
     "recompute_method: none does not go with recompute_granularity full"},
    {"recompute_granularity=full|recompute_method=block", 1,
     "recompute_num_layers: absent beside recompute_granularity full"},
    {"recompute_method=block", 1, "recompute_method: block does not go with recompute_granularity none"},
    {"recompute_granularity=selective|recompute_num_layers=1", 1,
     "recompute_num_layers: 1 does not go with recompute_granularity selective"},
    {"recompute_modules=[mlp]", 1, "recompute_modules: [mlp] does not go with recompute_granularity none"},
    {"recompute_granularity=selective|recompute_modules=[mlp, experts]", 1,
     "recompute_modules: 'experts' is none of"},
    {"recompute_granularity=selective|recompute_modules=[mlp, layernorm, core_attn]", 1, NULL},
    {"recompute_granularity=selective|recompute_modules=[mlp_act]", 1, NULL},
    {"recompute_granularity=selective|recompute_modules=[moe, moe_act, shared_experts]", 1, NULL},
    {"recompute_granularity=full|recompute_method=uniform|recompute_num_layers=4", 1, NULL},
    {"recompute_granularity=full|recompute_method=uniform|recompute_num_layers=5", 1,
     "5 is more than the 4 layers"},
    /* other rules */
    {"loss_scale=8", 1, "loss_scale: 8 does not go with params_dtype fp32; it is for fp16"},
    {"loss_scale=8|params_dtype=fp16", 1, NULL},
    {"initial_loss_scale=1|min_loss_scale=2", 1, "initial_loss_scale: 1 is below min_loss_scale 2"},
    {"adam_eps=1e-300", 1, "adam_eps: 1e-300 is below the normal numbers of fp32, in which the optimizer "
                           "computes; use 1e-37 or more, for example 1e-8"},
    {"adam_eps=1e-38|params_dtype=bf16", 1, "adam_eps: 1e-38 is below"},
    {"adam_eps=1.2e-38", 1, NULL},
    {"adam_eps=1e-300|params_dtype=fp64", 1, NULL},
    {"sgd_nesterov=true", 1, "sgd_nesterov: true does not go with optimizer adam"},
    {"sgd_nesterov=true|optimizer=sgd|sgd_momentum=0", 1,
     "sgd_nesterov: true does not go with sgd_momentum 0"},
    {"sgd_nesterov=true|optimizer=sgd", 1, NULL},
    {"finetune=true", 1, "finetune: true needs load, which is absent"},
    {"finetune=true|load=x", 1, NULL},
    {"save_retain_interval=10", 1, "save_retain_interval: 10 needs save_interval, which is absent"},
    {"save_retain_interval=10|save_interval=4", 1, "10 is not a multiple of save_interval; nearest: 8 or 12"},
    {"save_retain_interval=12|save_interval=4", 1, NULL},
    {"sdc_rerun=true|sdc_check_interval=0", 1,
     "sdc_rerun: steps are computed again at the checks of sdc_check_interval, which is 0"},
    {"sdc_rerun=true", 1, NULL},
    {"logits_slice_rows=64", 1, NULL},
    {"logits_slice_rows=65", 1, "logits_slice_rows: 65 is more than the 64 rows of a microbatch"},
    {"logits_slice_rows=33|context_parallel_size=2", 2, "33 is more than the 32 rows of a microbatch"},
    {"logits_slice_rows=15|tensor_model_parallel_size=2", 2, NULL},
    {"logits_slice_rows=15|tensor_model_parallel_size=2|sequence_parallel=true", 2,
     "logits_slice_rows: 15 is not a multiple of tensor_model_parallel_size 2, whose ranks share the rows"},
    {"clock_forward_ms=1", 1, "clock_forward_ms: only `train bubble`, and"},
    {"clock_backward_input_ms=1", 1, "clock_backward_input_ms: only `train bubble`, and"},
    {"clock_backward_weight_ms=1", 1, "clock_backward_weight_ms: only `train bubble`, and"},
    {"clock_p2p_ms=1", 1, "clock_p2p_ms: only `train bubble`, and"},
    {"clock_weight_share=1", 1, "clock_weight_share: only `train bubble`, and"},
    {"clock_cells=x", 1, "clock_cells: only `train bubble` reads"},
    /* the grammar of the batch-size schedule */
    {"step_batch_size_schedule='4'", 1, "'4' is not THRESHOLD:BATCH"},
    {"step_batch_size_schedule='0:4 64:8'", 1, NULL},
    {"step_batch_size_schedule='0:4, 0.1K:8,1.5M:16'", 1, NULL},
    {"step_batch_size_schedule='0:0.002K'", 1, NULL},
    {"step_batch_size_schedule=' '", 1, "step_batch_size_schedule: is empty"},
    {"step_batch_size_schedule='32:4'", 1, "the first threshold is 32 tokens"},
    {"step_batch_size_schedule='0:4 31:8'", 1, "threshold '31:8' (0 samples) is not above"},
    {"step_batch_size_schedule='0:4 64:8 32:2'", 1, "threshold '32:2' (1 samples) is not above"},
    {"step_batch_size_schedule='0:5'", 1, "batch size 5 of '0:5' is not a multiple of micro_batch_size 2"},
    {"step_batch_size_schedule='0:0'", 1, "batch size 0"},
    {"step_batch_size_schedule='0:131072'", 1, "batch size 131072 is 65536 microbatches"},
    {"step_batch_size_schedule='0:4x'", 1, "'0:4x' is not THRESHOLD:BATCH"},
    {"step_batch_size_schedule='0:4KK'", 1, "is not THRESHOLD:BATCH"},
    {"step_batch_size_schedule='0:-4'", 1, "is not THRESHOLD:BATCH"},
    {"step_batch_size_schedule='0:1e3'", 1, "is not THRESHOLD:BATCH"},
    {"step_batch_size_schedule='0:4 0.0001K:8'", 1, "is not THRESHOLD:BATCH"},
    {"step_batch_size_schedule='0:4 9999999999T:8'", 1, "is not THRESHOLD:BATCH"},
};

/* Configurations for commands that look at a layout and do not train. */
static const struct { const char *args; int world; const char *says;
} looked_at[] = {
    {"clock_forward_ms=1|clock_backward_input_ms=[1.5]|clock_weight_share=0.5|clock_p2p_ms=0.1", 1, NULL},
    {"pipeline_model_parallel_size=2|pipeline_schedule=zb-v|clock_forward_ms=[1, 2, 3, 4]", 2, NULL},
    {"pipeline_model_parallel_size=2|pipeline_schedule=zb-v|clock_forward_ms=[1, 2, 3]", 2,
     "clock_forward_ms: 3 numbers; give one, of a rank, or 4, one for each virtual stage"},
    {"pipeline_model_parallel_size=2|clock_p2p_ms=[1, 2, 3]", 2, "clock_p2p_ms: 3 numbers; give one, or 2,"},
    {"clock_backward_weight_ms=[1, 2]", 1, "clock_backward_weight_ms: 2 numbers; give one, of a rank, or 1"},
    {"pipeline_model_parallel_size=2|clock_p2p_ms=[1, 2]", 2, NULL},
    {"clock_cells=x", 1, "clock_cells: only `train bubble` reads"},
};

/* Rules about experts: args are those of a model with 8 of them. */
static const struct { const char *args; int world; const char *says;
} with_experts[] = {
    {"", 1, NULL},
    {"", 8, NULL},
    {"expert_model_parallel_size=3", 3,
     "expert_model_parallel_size: 3 does not divide num_moe_experts 8; nearest: 2 or 4"},
    {"expert_model_parallel_size=4", 4, NULL},
    {"expert_model_parallel_size=8", 4,
     "expert tensor 1 x expert 8 x pipeline 1 = 8 does not divide the world of 4 ranks; nearest "
     "expert_model_parallel_size: 4"},
    {"expert_model_parallel_size=4", 6,
     "expert_model_parallel_size: expert tensor 1 x expert 4 x pipeline 1 = 4 does not divide the world of 6 "
     "ranks; nearest expert_model_parallel_size: 2"},
    {"expert_tensor_parallel_size=4", 2,
     "expert tensor 4 x pipeline 1 = 4 does not divide the world of 2 ranks; nearest "
     "expert_tensor_parallel_size: 2"},
    {"expert_tensor_parallel_size=2|expert_model_parallel_size=2|pipeline_model_parallel_size=2", 8, NULL},
    {"expert_model_parallel_size=2|pipeline_model_parallel_size=2|rank_order=tp-cp-ep-pp-dp", 8,
     "rank_order: with this order the expert grid has other pipelines"},
    {"tensor_model_parallel_size=2|sequence_parallel=true", 2, NULL},
    {"tensor_model_parallel_size=2", 2,
     "sequence_parallel: experts beside tensor_model_parallel_size 2 need sequence_parallel: true"},
    {"expert_tensor_parallel_size=2|moe_ffn_hidden_size=31", 2,
     "moe_ffn_hidden_size: 31 is not a multiple of expert_tensor_parallel_size 2; nearest: 30 or 32"},
    {"moe_router_topk=9", 1, "moe_router_topk: 9 is more than num_moe_experts 8"},
    {"moe_router_topk=8", 1, NULL},
    {"moe_router_topk=1", 1, "moe_router_topk: the softmax over one choice is 1"},
    {"moe_router_topk=1|moe_router_pre_softmax=true", 1, NULL},
    {"moe_router_topk=1|moe_router_score_function=sigmoid", 1, NULL},
    {"moe_router_num_groups=4", 1, "moe_router_num_groups and moe_router_group_topk go together"},
    {"moe_router_num_groups=3|moe_router_group_topk=2", 1,
     "moe_router_num_groups: 3 does not divide num_moe_experts 8; nearest: 2 or 4"},
    {"moe_router_num_groups=4|moe_router_group_topk=8|moe_router_topk=8", 1,
     "moe_router_group_topk 8 is more than moe_router_num_groups 4"},
    {"moe_router_num_groups=4|moe_router_group_topk=2|moe_router_topk=3", 1,
     "moe_router_group_topk: 2 does not divide moe_router_topk 3; nearest: 1 or 3"},
    {"moe_router_num_groups=4|moe_router_group_topk=2|moe_router_topk=6", 1,
     "2 groups of 2 experts are fewer than moe_router_topk 6"},
    {"moe_router_num_groups=4|moe_router_group_topk=2|moe_router_topk=4", 1, NULL},
    {"num_moe_experts=64|moe_router_num_groups=32|moe_router_group_topk=2", 1, NULL},
    {"num_moe_experts=64|moe_router_num_groups=64|moe_router_group_topk=2", 1,
     "moe_router_num_groups: 64 is more than 32; use 32 or fewer"},
    {"moe_aux_loss_coeff=0.01", 1, NULL},
    {"moe_aux_loss_coeff=0.01|moe_router_load_balancing_type=none", 1,
     "moe_aux_loss_coeff: 0.01 needs a loss that it is the weight of"},
    {"moe_pad_expert_input_to_capacity=true", 1,
     "moe_pad_expert_input_to_capacity: true needs moe_expert_capacity_factor"},
    {"moe_pad_expert_input_to_capacity=true|moe_expert_capacity_factor=1.25", 1, NULL},
    {"moe_expert_capacity_factor=0|moe_token_drop_policy=position", 1, NULL},
    {"moe_expert_capacity_factor=-1", 1, "moe_expert_capacity_factor"},
    {"moe_router_force=zipf", 1, NULL},
    {"moe_router_force=file", 1, "moe_router_force_file: the file goes with moe_router_force file"},
    {"moe_router_force=hot|moe_router_force_file=x", 1, "the file goes with moe_router_force file, and only"},
    {"moe_router_force=file|moe_router_force_file=/nowhere/x", 1, "moe_router_force_file: "},
    {"moe_layer_freq=2", 1, NULL},
    {"moe_layer_freq=[0, 1, 1, 1]", 1, NULL},
    {"moe_layer_freq=[0, 1, 1]", 1, "moe_layer_freq: 3 numbers, but num_layers is 4"},
    {"moe_layer_freq=[0, 2, 1, 1]", 1, "a list for all layers has 0 and 1 only"},
    {"moe_layer_freq=[0, 0, 0, 0]", 1, "no layer has experts"},
    {"moe_layer_freq=0", 1, "no layer has experts"},
    {"moe_layer_freq=[]", 1, "moe_layer_freq: 0 numbers, but num_layers is 4"},
    {"moe_layer_freq=[0, 0, 0]", 1, "moe_layer_freq: 3 numbers, but num_layers is 4"},
    {"moe_shared_expert_gate=true", 1,
     "moe_shared_expert_gate: true needs moe_shared_expert_intermediate_size, which is absent"},
    {"moe_shared_expert_intermediate_size=32|add_bias_linear=true", 1,
     "moe_shared_expert_intermediate_size: shared experts have no biases"},
    {"moe_shared_expert_intermediate_size=31|tensor_model_parallel_size=2|sequence_parallel=true", 2,
     "moe_shared_expert_intermediate_size: 31 is not a multiple of tensor_model_parallel_size 2"},
    {"moe_ffn_hidden_size=8388608|hidden_size=65536|num_attention_heads=128|num_layers=1000", 1,
     "num_moe_experts: the experts have about"},
    {"moe_token_dispatcher_type=allgather", 1, NULL},
    {"moe_router_enable_expert_bias=true", 1, "true needs moe_router_score_function: sigmoid"},
    {"moe_router_enable_expert_bias=true|moe_router_score_function=sigmoid", 1, NULL},
    {"num_distributed_optimizer_instances=4|data_parallel_sharding_strategy=optim|"
     "expert_model_parallel_size=2", 4,
     "num_distributed_optimizer_instances: 4 copies do not divide the 2 ranks that have the same experts; "
     "nearest: 2"},
    {"num_distributed_optimizer_instances=2|data_parallel_sharding_strategy=optim|"
     "expert_model_parallel_size=4", 4, NULL},
    {"moe_use_upcycling=true", 1, "moe_use_upcycling: true needs load: the checkpoint of the dense model"},
    {"moe_use_upcycling=true|load=x", 1, NULL},
    {"moe_use_upcycling=true|load=x|moe_ffn_hidden_size=9", 1,
     "true copies whole mlps, but moe_ffn_hidden_size is 9"},
    {"moe_use_upcycling=true|load=x|moe_shared_expert_intermediate_size=9|add_bias_linear=false", 1,
     "true has nothing to make a shared expert of"},
};

static void test_with_experts(void)
{
    for (size_t i = 0; i < sizeof with_experts / sizeof *with_experts; i++) {
        char *args = xasprintf("num_moe_experts=8|%s", with_experts[i].args);
        Check k = resolve(args, with_experts[i].world, USE_TRAIN);
        CHECK(with_experts[i].says ? count(&k, with_experts[i].says, NULL, NULL) == 1 : !k.n, "%s: %s", args,
              listing(&k));
        CHECK(k.n <= 1 || strncmp(with_experts[i].args, "moe_layer_freq", 14), "%s is one mistake: %s", args,
              listing(&k));
        Config *c = k.cfg;
        if (!strcmp(with_experts[i].args, "moe_layer_freq=2"))
            CHECK(config_is_moe(c, 0) && !config_is_moe(c, 1) && config_is_moe(c, 2), "every second layer");
        if (!strcmp(with_experts[i].args, "moe_layer_freq=[0, 1, 1, 1]"))
            CHECK(!config_is_moe(c, 0) && config_is_moe(c, 1) && !config_is_moe(c, -1), "all but the first");
        free(args);
    }
    Check k = resolve("num_moe_experts=8|expert_model_parallel_size=4|tensor_model_parallel_size=2|"
                      "sequence_parallel=true|expert_tensor_parallel_size=1",
                      WORLD_SMALLEST, USE_TRAIN);
    CHECK(!k.n && k.cfg->world == 4, "the smallest world has %d ranks: %s", k.cfg->world, listing(&k));
}

/* Files of forced loads, for 8 experts and 4 layers, 2 choices a token. */
static void test_forced_loads(void)
{
    static const struct { const char *text, *says; } files[] = {
        {"1 2 3 4 5 6 7 8\n", NULL},
        {"# a load an expert\n\n0, 0, 0.5, 0, 0, 0, 0, 1e9  # two of them\r\n", NULL},
        {"1 1 0 0 0 0 0 0\n0 0 1 1 0 0 0 0\n0 0 0 0 1 1 0 0\n0 0 0 0 0 0 1 1", NULL},
        {"", "has 0 lines of loads; give one for all layers, or one for each of num_layers 4"},
        {"1 1 1 1 1 1 1 1\n1 1 1 1 1 1 1 1\n", "has 2 lines of loads"},
        {"1 1 1 1 1 1 1 1\n1 1 1 1 1 1 1 1\n1 1 1 1 1 1 1 1\n1 1 1 1 1 1 1 1\n1 1 1 1 1 1 1 1\n",
         "has more than 4 lines of loads"},
        {"# x\n1 2 3 4 5 6 7\n", ":2: 7 loads, but num_moe_experts is 8"},
        {"1 2 3 4 5 6 7 8 9\n", ":1: more loads, but num_moe_experts is 8"},
        {"1 2 3 4 5 6 7 -8\n", ":1: a load is a number from 0 to 1e9; give 8 of them"},
        {"1 2 3 4 5 6 7 x\n", ":1: a load is a number"},
        {"1 2 3 4 5 6 7 nan\n", ":1: a load is a number"},
        {"0 0 0 0 0 0 0 8\n", ":1: fewer loads above 0 than moe_router_topk 2; give 2 or more"},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char name[] = "/tmp/loads.XXXXXX";
        int fd = mkstemp(name);
        FILE *f = fdopen(fd, "w");
        fputs(files[i].text, f);
        fclose(f);
        char *args = xasprintf("num_moe_experts=8|moe_router_force=file|moe_router_force_file=%s", name);
        Check k = resolve(args, 1, USE_TRAIN);
        CHECK(files[i].says ? k.n == 1 && count(&k, files[i].says, "moe_router_force_file: ", NULL) == 1
                            : !k.n && k.cfg->force_share[7] == 1,
              "'%s': %s", files[i].text, listing(&k));
        if (i == 2)
            CHECK(k.cfg->force_lines == 4 && k.cfg->force_share[8 + 2] == 0.5 &&
                      k.cfg->force_share[3 * 8 + 5] == 0, "the shares of layers");
        unlink(name);
        free(args);
    }
}

static void test_looked_at(void)
{
    for (size_t i = 0; i < sizeof looked_at / sizeof *looked_at; i++) {
        Check k = resolve(looked_at[i].args, looked_at[i].world, USE_MODEL);
        CHECK(looked_at[i].says ? count(&k, looked_at[i].says, NULL, NULL) == 1 && k.n == 1 : !k.n, "%s: %s",
              looked_at[i].args, listing(&k));
    }
}

/* `train generate` reads no batch: no schedule asks it for one. */
static void test_loaded(void)
{
    for (int kind = 0; kind < SCHEDULE_CUSTOM; kind++) {
        const char *args = textf("pipeline_model_parallel_size=2|load=x|pipeline_schedule=%s%s",
                                 schedule_info[kind].name,
                                 kind == SCHEDULE_INTERLEAVED ? "|num_virtual_stages_per_pipeline_rank=2"
                                                              : "");
        Check k = resolve(args, 4, USE_LOAD);
        CHECK(!k.n, "%s: %s", args, listing(&k));
    }
    Check k = resolve("pipeline_model_parallel_size=2|load=x|num_virtual_stages_per_pipeline_rank=2|"
                      "microbatch_group_size_per_vp_stage=7", 2, USE_LOAD);
    CHECK(!k.n, "%s", listing(&k));
}

static void test_cases(void)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Check k = resolve(cases[i].args, cases[i].world, USE_TRAIN);
        CHECK(cases[i].says
                  ? count(&k, cases[i].says, NULL, NULL) == 1 && k.n == (cases[i].n ? cases[i].n : 1)
                  : !k.n,
              "%s: %s", cases[i].args, listing(&k));
    }
}

/* ---- what is derived ---- */

static void test_derived(void)
{
    const struct { const char *args, *key, *value;
    } derived[] = {{"", "ffn_hidden_size", "256"},
                   {"activation=swiglu|hidden_size=768", "ffn_hidden_size", "2048"},
                   {"activation=swiglu|hidden_size=4096|num_attention_heads=32", "ffn_hidden_size", "10880"},
                   {"", "kv_channels", "16"},
                   {"", "num_query_groups", "4"},
                   {"", "max_position_embeddings", "32"},
                   {"", "vocab_size", "257"},
                   {"", "tokenizer_type", "byte"},
                   {"vocab_size=50257", "tokenizer_type", "none"},
                   {"vocab_size=257", "tokenizer_type", "byte"},
                   {"", "global_batch_size", "2"},
                   {"", "lr_decay_iters", "10"},
                   {"lr_decay_iters=7", "lr_decay_iters", "7"},
                   {"", "pipeline_schedule", "1f1b"},
                   {"num_virtual_stages_per_pipeline_rank=2", "pipeline_schedule", "interleaved"},
                   {"pipeline_schedule=v-half", "num_virtual_stages_per_pipeline_rank", "2"},
                   {"", "save", "runs/test"},
                   {"train_iters=null|train_samples=100", "lr_decay_samples", "100"},
                   {"train_iters=null|train_samples=100", "lr_decay_iters", "null"},
                   {"recompute_granularity=selective", "recompute_modules", "[core_attn]"}};
    for (size_t i = 0; i < sizeof derived / sizeof *derived; i++) {
        Check k = resolve(derived[i].args, 1, USE_TRAIN);
        char *value = config_text(k.cfg, option_find(derived[i].key));
        CHECK(!k.n && !strcmp(value, derived[i].value), "%s: %s is %s: %s", derived[i].args, derived[i].key,
              value, listing(&k));
        free(value);
    }
    Check k = resolve("vocab_size=50257|make_vocab_size_divisible_by=64", 1, USE_TRAIN);
    CHECK(k.cfg->padded_vocab_size == 50304, "%lld", (long long)k.cfg->padded_vocab_size);
}

/* ---- brute force ---- */

static void test_world(void)
{
    for (int world = 1; world <= 16; world += SANITIZED ? 5 : 1)
        for (int tp = 1; tp <= 17; tp++)
            for (int pp = 1; pp <= 17; pp++)
                for (int cp = 1; cp <= 3; cp++) {
                    Check k = resolve(textf("tensor_model_parallel_size=%d|pipeline_model_parallel_size=%d|"
                                            "context_parallel_size=%d", tp, pp, cp), world, USE_MODEL);
                    int fits = 0, t, p, c, n;
                    for (int dp = 1; dp <= world; dp++)
                        fits |= tp * pp * cp * dp == world;
                    CHECK(count(&k, "does not divide the world", NULL, NULL) == !fits, "%d %d %d of %d", tp,
                          pp, cp, world);
                    CHECK(!fits || k.cfg->data_parallel_size == world / (tp * pp * cp), "dp");
                    for (int i = 0; i < k.n; i++) {
                        const char *s = strstr(k.list[i].text, "x context): ");
                        s = s ? s + strlen("x context): ") : NULL;
                        while (s && sscanf(s, "%dx%dx%d%n", &t, &p, &c, &n) == 3) {
                            CHECK(world % (t * p * c) == 0, "suggested %dx%dx%d for %d", t, p, c, world);
                            s = s[n] ? s + n + 2 : NULL;
                        }
                    }
                    config_forget();
                }
}

/* Tries the values that a message names as nearest: with each of them the rule must hold. */
static void try_nearest(const Check *k, const char *rule, const char *args, const char *key, int world)
{
    for (int i = 0; i < k->n; i++) {
        const char *s = strstr(k->list[i].text, rule) ? strstr(k->list[i].text, "nearest: ") : NULL;
        long long a, b;
        int n = s ? sscanf(s, "nearest: %lld or %lld", &a, &b) : 0;
        for (int j = 0; j < n; j++) {
            Check again = resolve(textf("%s|%s=%lld", args, key, j ? b : a), world, USE_MODEL);
            CHECK(!count(&again, rule, NULL, NULL), "%s=%lld: %s", key, j ? b : a, listing(&again));
        }
        CHECK(!s || n, "%s", k->list[i].text);
    }
}

static void test_model(void)
{
    for (int heads = 1; heads <= 12; heads++)
        for (int groups = 1; groups <= 12; groups++)
            for (int tp = 1; tp <= 6; tp++) {
                Check k = resolve(
                    textf("num_attention_heads=%d|num_query_groups=%d|kv_channels=8|ffn_hidden_size=60|"
                          "tensor_model_parallel_size=%d",
                          heads, groups, tp),
                    tp, USE_MODEL);
                int whole = 0, cut = 0;
                for (int x = 1; x <= heads; x++)
                    whole |= groups * x == heads, cut |= tp * x == heads;
                CHECK(count(&k, "does not divide num_attention_heads", NULL, NULL) == !whole, "%d %d", heads,
                      groups);
                CHECK(count(&k, "num_attention_heads: ", "multiple of tensor", NULL) == !cut, "%d %d", heads,
                      tp);
                CHECK(count(&k, "num_query_groups: ", "neither", NULL) == (groups % tp && tp % groups),
                      "%d %d", groups, tp);
                config_forget();
            }
    for (int hidden = 1; hidden <= 40; hidden++)
        for (int heads = 1; heads <= 8; heads++) {
            const char *args = textf("num_attention_heads=%d", heads);
            Check k = resolve(textf("%s|hidden_size=%d", args, hidden), 1, USE_MODEL);
            CHECK(count(&k, "hidden_size: ", "not a multiple of num_attention_heads", NULL) ==
                      (hidden % heads != 0),
                  "%d %d", hidden, heads);
            try_nearest(&k, "not a multiple of num_attention_heads", args, "hidden_size", 1);
        }
    for (int size = 1; size <= 12; size++)
        for (int percent = 1; percent <= 20; percent++) {
            Check k = resolve(
                textf("position_embedding_type=rope|kv_channels=%d|rotary_percent=%g", size, percent / 20.0),
                1, USE_MODEL);
            int turned = (int)(size * (percent / 20.0)), fits = turned == 2 || turned == 4 || turned == 6 ||
                                                                turned == 8 || turned == 10 || turned == 12;
            CHECK(k.n == !fits, "%d %d: %s", size, percent, listing(&k));
        }
    for (int seq = 1; seq <= 24; seq++)
        for (int n = 1; n <= 4; n++) {
            Check k = resolve(
                textf("seq_length=%d|sequence_parallel=true|tensor_model_parallel_size=%d|ffn_hidden_size=12|"
                      "num_attention_heads=12|kv_channels=4",
                      seq, n),
                n, USE_MODEL);
            CHECK(k.n == (seq % n != 0), "%d %d: %s", seq, n, listing(&k));
            k = resolve(textf("seq_length=%d|context_parallel_size=%d", seq, n), n, USE_MODEL);
            CHECK(count(&k, "seq_length: ", "multiple of 2 x context", NULL) == (n > 1 && seq % (2 * n)),
                  "%d %d", seq, n);
            try_nearest(&k, "multiple of 2 x context", textf("context_parallel_size=%d", n), "seq_length", n);
        }
}

/* Ranks that exchange positions for heads have equally many heads, and key/value heads. The sizes that a
 * message names are legal. */
static void test_heads_of_context(void)
{
    for (int heads = 1; heads <= 12; heads++)
        for (int groups = 1; groups <= heads; groups++)
            for (int cp = 2; cp <= 6 && heads % groups == 0; cp++)
                for (int tp = 1; tp <= 3; tp++) {
                    if (heads % tp || (groups % tp && tp % groups))
                        continue;
                    int own = groups < tp ? 1 : groups / tp, fits = heads / tp % cp == 0 && own % cp == 0;
                    const char *args = textf("num_attention_heads=%d|num_query_groups=%d|kv_channels=8|"
                                             "ffn_hidden_size=60|tensor_model_parallel_size=%d|"
                                             "seq_length=120|context_parallel_size=%d",
                                             heads, groups, tp, cp);
                    Check k = resolve(textf("%s|cp_comm_type=a2a", args), tp * cp, USE_MODEL);
                    CHECK(k.n == !fits, "%s: %s", args, listing(&k));
                    int n[2] = {0}, named = 0;
                    const char *at = k.n ? strstr(k.list[0].text, "groups that fit: ") : NULL;
                    named = at ? sscanf(at, "groups that fit: %d or %d", &n[0], &n[1]) : 0;
                    CHECK(named > 0 || fits, "%s: %s", args, listing(&k));
                    for (int i = 0; i < named; i++)
                        CHECK(heads / tp % n[i] == 0 && own % n[i] == 0, "%s: %s", args, listing(&k));
                    k = resolve(textf("%s|cp_comm_type=a2a+p2p|hierarchical_context_parallel_sizes=[%d, 1]",
                                      args, cp), tp * cp, USE_MODEL);
                    CHECK(k.n == !fits, "%s: %s", args, listing(&k));
                }
}

static void test_pipeline(void)
{
    for (int layers = 1; layers <= 24; layers++)
        for (int p = 2; p <= 4; p++)
            for (int v = 1; v <= 3; v++) {
                const char *args = textf(
                    "pipeline_model_parallel_size=%d|num_virtual_stages_per_pipeline_rank=%d|"
                    "global_batch_size=%d",
                    p, v, 2 * p);
                Check k = resolve(textf("%s|num_layers=%d", args, layers), p, USE_MODEL);
                CHECK(k.n == (layers % (p * v) != 0), "%d %d %d: %s", layers, p, v, listing(&k));
                try_nearest(&k, "layers do not divide", args, "num_layers", p);
            }
    for (int p = 2; p <= 4; p++)
        for (int group = 1; group <= 9; group++)
            for (int m = 1; m <= 12; m++) {
                Check k = resolve(textf("pipeline_model_parallel_size=%d|num_virtual_stages_per_pipeline_"
                                        "rank=2|num_layers=%d|"
                                        "microbatch_group_size_per_vp_stage=%d|global_batch_size=%d",
                                        p, 2 * p, group, 2 * m),
                                  p, USE_MODEL);
                int fits = group >= p && group <= m && (m % group == 0 || m % group >= p);
                CHECK(k.n == !fits, "p %d group %d m %d: %s", p, group, m, listing(&k));
                config_forget();
            }
}

static void test_batch(void)
{
    for (int world = 1; world <= 4; world++)
        for (int micro = 1; micro <= 5; micro++)
            for (int batch = 1; batch <= 40; batch++) {
                const char *args = textf("micro_batch_size=%d", micro);
                Check k = resolve(textf("%s|global_batch_size=%d", args, batch), world, USE_MODEL);
                CHECK(k.n == (batch % (micro * world) != 0), "%d %d %d: %s", world, micro, batch,
                      listing(&k));
                try_nearest(&k, "is not a multiple of micro_batch_size", args, "global_batch_size", world);
            }
}

/* ---- the batch-size schedule, step by step ---- */

static void test_schedule(void)
{
    for (int round = 0; round < (SANITIZED ? 40 : 200); round++) {
        int n = 1 + (int)draw(5), seq = 1 + (int)draw(50);
        int64_t at[5] = {0}, batch[5];
        char *text = text_copy("");
        for (int i = 0; i < n; i++) {
            at[i] = i ? at[i - 1] + 1 + (int64_t)draw(60) : 0;
            batch[i] = 2 * (1 + (int64_t)draw(20));
            text = textf("%s%s%lld:%lld", text, i ? draw(2) ? " " : ", " : "",
                         (long long)at[i] * seq + (i ? draw((uint32_t)seq) : 0), (long long)batch[i]);
        }
        int limit = 100 + (int)draw(400);
        Check k = resolve(
            textf("seq_length=%d|step_batch_size_schedule='%s'|train_iters=null|train_samples=%d", seq, text,
                  limit),
            1, USE_TRAIN);
        CHECK(!k.n, "%s: %s", text, listing(&k));
        int64_t samples = 0, steps = 0;
        while (!k.n) {
            int i = n - 1;
            while (samples < at[i])
                i--;
            CHECK(config_batch_at(k.cfg, samples) == batch[i], "%s at %lld", text, (long long)samples);
            CHECK(config_samples_after(k.cfg, steps) == samples, "%s after %lld", text, (long long)steps);
            if (samples + batch[i] > limit)
                break;
            samples += batch[i];
            steps++;
        }
        CHECK(config_iterations(k.cfg) == steps, "%s: %lld steps of %lld", text,
              (long long)config_iterations(k.cfg), (long long)steps);
        config_forget();
    }
    Check k = resolve("train_iters=1_000_000_000|global_batch_size=65534", 1, USE_TRAIN);
    CHECK(!k.n && config_samples_after(k.cfg, 1000000000) == 65534000000000, "%s", listing(&k));
}

int main(void)
{
    test_cases();
    test_looked_at();
    test_loaded();
    test_with_experts();
    test_forced_loads();
    test_derived();
    test_world();
    test_model();
    test_heads_of_context();
    test_pipeline();
    test_batch();
    test_schedule();
    return test_end();
}
