/* config_alias -- names of settings in Megatron-LM, Hugging Face, nanoGPT, llm.c and DeepSpeed */
#define _GNU_SOURCE
#include "config_table.h"

/* ALIAS(name, key)         `key` is the same setting and takes the same value
 * MEANS(name, key, text)   `key` is the setting, with other values; text: what to write
 * NEEDLESS(name, text)     the setting needs no key; text: why, behind "leave it out: "
 * NONE(name, text)         nothing here does what the setting does; text: what is done, behind the same */
#define ALIAS(name, key)       {name, key, NULL}
#define MEANS(name, key, text) {name, key, text}
#define NEEDLESS(name, text)   {name, NULL, text}
#define NONE(name, text)       {name, NULL, text}

#define ALWAYS_FUSED "the kernels are fused already"
#define NO_MEGATRON_CODE "there is one implementation"
#define ONE_FORMAT "there is one format; `train export` writes Hugging Face's"
#define IN_TENSORBOARD "it is in TensorBoard's files always"
#define NO_WANDB "TensorBoard's files are in the run directory; tensorboard_dir moves them"
#define LR_OF_CONFIG "a run that goes on follows the configuration, and says what of the schedule has changed"
#define RANKS_LEFT "data parallelism takes what the other sizes leave of the ranks"
#define ZERO_STAGES \
    "data_parallel_sharding_strategy=no_shard, optim, optim_grads or optim_grads_params for stage 0, 1, 2 " \
    "or 3"
#define MEGATRON_GELU \
    "activation=gelu with no_bias_gelu_fusion or disable_bias_linear, else activation=gelu_tanh, which " \
    "Megatron-LM's fused function computes"
#define ONE_DECAY "weight_decay, one number for the whole run"

static const Alias aliases[] = {
    /* model */
    MEANS("attention_bias", "add_qkv_bias", "add_qkv_bias (query, key, value) or add_bias_linear (all)"),
    MEANS("bias", "add_bias_linear", "add_bias_linear; LayerNorm has its bias always"),
    ALIAS("block_size", "seq_length"),
    ALIAS("context_length", "seq_length"),
    ALIAS("d_model", "hidden_size"),
    MEANS("dropout", "hidden_dropout", "hidden_dropout and attention_dropout"),
    ALIAS("embd_pdrop", "hidden_dropout"),
    ALIAS("resid_pdrop", "hidden_dropout"),
    ALIAS("attn_pdrop", "attention_dropout"),
    ALIAS("head_dim", "kv_channels"),
    ALIAS("hidden_act", "activation"),
    ALIAS("initializer_range", "init_method_std"),
    ALIAS("intermediate_size", "ffn_hidden_size"),
    ALIAS("layer_norm_eps", "norm_epsilon"),
    ALIAS("layer_norm_epsilon", "norm_epsilon"),
    ALIAS("layernorm_epsilon", "norm_epsilon"),
    ALIAS("rms_norm_eps", "norm_epsilon"),
    ALIAS("max_position_embedding", "max_position_embeddings"),
    ALIAS("max_seq_len", "seq_length"),
    ALIAS("max_seq_length", "seq_length"),
    ALIAS("max_sequence_length", "seq_length"),
    ALIAS("decoder_seq_length", "seq_length"),
    ALIAS("encoder_seq_length", "seq_length"),
    ALIAS("model_max_length", "seq_length"),
    ALIAS("n_ctx", "seq_length"),
    ALIAS("n_embd", "hidden_size"),
    ALIAS("n_head", "num_attention_heads"),
    ALIAS("n_heads", "num_attention_heads"),
    ALIAS("n_inner", "ffn_hidden_size"),
    ALIAS("n_kv_heads", "num_query_groups"),
    ALIAS("n_layer", "num_layers"),
    ALIAS("n_layers", "num_layers"),
    ALIAS("n_positions", "max_position_embeddings"),
    ALIAS("num_hidden_layers", "num_layers"),
    ALIAS("num_key_value_heads", "num_query_groups"),
    ALIAS("num_kv_heads", "num_query_groups"),
    ALIAS("partial_rotary_factor", "rotary_percent"),
    ALIAS("rope_theta", "rotary_base"),
    ALIAS("rope_type", "rope_scaling"),
    ALIAS("rotary_scaling_factor", "rope_scaling_factor"),
    ALIAS("original_max_position_embeddings", "rope_original_max_position_embeddings"),
    ALIAS("low_freq_factor", "rope_low_freq_factor"),
    ALIAS("high_freq_factor", "rope_high_freq_factor"),
    ALIAS("attention_factor", "rope_attention_factor"),
    ALIAS("beta_fast", "rope_beta_fast"),
    ALIAS("beta_slow", "rope_beta_slow"),
    MEANS("use_rope_scaling", "rope_scaling", "rope_scaling=llama3"),
    MEANS("rotary_seq_len_interpolation_factor", "rope_scaling",
          "rope_scaling=linear and rope_scaling_factor, which is this factor"),
    NONE("rotary_interleaved", "the two halves of a head turn together"),
    NONE("init_method_xavier_uniform", "initial weights are normal, of standard deviation init_method_std"),
    NONE("multi_latent_attention", "this build has no multi-head latent attention"),
    NONE("mtp_num_layers", "this build has no multi-token prediction"),
    NONE("window_attn_skip_freq", "window_size is that of all layers"),
    NONE("fp32_residual_connection", "params_dtype is that of the residual stream, too"),
    NEEDLESS("use_cpu_initialization", "initial weights follow from the seed, in any layout the same"),
    ALIAS("sliding_window", "window_size"),
    MEANS("swiglu", "activation", "activation=swiglu"),
    MEANS("gated_linear_unit", "activation", "activation=swiglu (with SiLU) or activation=geglu (with GELU)"),
    MEANS("squared_relu", "activation", "activation=squared_relu"),
    MEANS("no_bias_gelu_fusion", "activation", MEGATRON_GELU),
    MEANS("bias_gelu_fusion", "activation", MEGATRON_GELU),
    MEANS("disable_bias_linear", "add_bias_linear", "add_bias_linear=false"),
    MEANS("use_rotary_position_embeddings", "position_embedding_type", "position_embedding_type=rope"),
    MEANS("no_position_embedding", "position_embedding_type", "position_embedding_type=none, or =rope"),
    MEANS("apply_layernorm_1p", "normalization",
          "normalization=LayerNorm (the gain is stored as it is applied)"),
    MEANS("tie_word_embeddings", "untie_embeddings_and_output_weights",
          "untie_embeddings_and_output_weights=false where it is true, =true where it is false"),
    NEEDLESS("group_query_attention", "num_query_groups alone says how many key/value heads there are"),
    NEEDLESS("model_type", "the keys of section model say what it is"),
    NEEDLESS("architectures", "the keys of section model say what it is"),
    /* data */
    ALIAS("dataset", "data_path"),
    ALIAS("eos_token_id", "null_tokenizer_eod_id"),
    NEEDLESS("vocab_file", "a corpus holds token ids; vocab_size says how many there are"),
    NEEDLESS("merge_file", "a corpus holds token ids; vocab_size says how many there are"),
    NEEDLESS("data_cache_path", "the order of the samples is made anew at each start"),
    NEEDLESS("num_dataset_builder_threads", "one rank of each host makes the order of the samples"),
    NEEDLESS("no_mmap_bin_files", "corpora are read, not mapped"),
    MEANS("data_args_path", "data_path", "data_path=[0.3, a, 0.7, b], the text of that file as a list"),
    MEANS("per_split_data_args_path", "train_data_path",
          "train_data_path=[0.3, a, 0.7, b] and so on, the text of that file as lists"),
    NEEDLESS("num_workers", "a thread of each rank reads ahead"),
    NEEDLESS("dataloader_type", "samples come in Megatron's order `single`"),
    NEEDLESS("mock_data", "`train tokenize TEXT -o PREFIX` makes a corpus of any text; data_path=PREFIX"),
    NEEDLESS("no_create_attention_mask_in_dataloader", "no mask is stored"),
    /* train */
    ALIAS("batch_size", "micro_batch_size"),
    ALIAS("train_micro_batch_size_per_gpu", "micro_batch_size"),
    ALIAS("per_device_train_batch_size", "micro_batch_size"),
    ALIAS("local_batch_size", "micro_batch_size"),
    NEEDLESS("per_device_eval_batch_size", "evaluation takes the batches of training"),
    MEANS("epochs", "train_iters", "train_iters; max_epochs refuses a run of more passes over the corpus"),
    MEANS("num_train_epochs", "train_iters",
          "train_iters; max_epochs refuses a run of more passes over the corpus"),
    ALIAS("steps", "train_iters"),
    NEEDLESS("eval_only", "`train eval CONFIG.yaml load=DIR` evaluates and trains nothing"),
    ALIAS("global_train_batch_size", "global_batch_size"),
    ALIAS("train_batch_size", "global_batch_size"),
    ALIAS("eval_steps", "eval_interval"),
    ALIAS("max_iters", "train_iters"),
    ALIAS("max_steps", "train_iters"),
    ALIAS("num_train_steps", "train_iters"),
    MEANS("gradient_accumulation_steps", "global_batch_size",
          "global_batch_size, which is micro_batch_size times the data-parallel size times these steps"),
    MEANS("rampup_batch_size", "step_batch_size_schedule",
          "step_batch_size_schedule='0:64 10M:128' (from so many tokens on, so many samples a step)"),
    NEEDLESS("exit_signal_handler", "SIGUSR1 always saves and ends the run, SIGTERM as sigterm_grace allows"),
    NEEDLESS("manual_gc", "there is no garbage collector"),
    NEEDLESS("manual_gc_interval", "there is no garbage collector"),
    NEEDLESS("skip_train", "`train eval CONFIG.yaml load=DIR` evaluates and trains nothing"),
    MEANS("full_validation", "eval_iters", "eval_iters, as many global batches as validation has"),
    /* optimizer */
    ALIAS("beta1", "adam_beta1"),
    ALIAS("beta2", "adam_beta2"),
    ALIAS("eps", "adam_eps"),
    ALIAS("grad_clip", "clip_grad"),
    ALIAS("gradient_clipping", "clip_grad"),
    ALIAS("max_grad_norm", "clip_grad"),
    ALIAS("gradient_clip", "clip_grad"),
    ALIAS("learning_rate", "lr"),
    ALIAS("max_lr", "lr"),
    ALIAS("lr_scheduler_type", "lr_decay_style"),
    ALIAS("warmup_iters", "lr_warmup_iters"),
    ALIAS("warmup_steps", "lr_warmup_iters"),
    ALIAS("warmup_ratio", "lr_warmup_fraction"),
    ALIAS("warmup", "lr_warmup_fraction"),
    MEANS("decay_lr", "lr_decay_style", "lr_decay_style=cosine, or =constant for none"),
    NONE("decoupled_lr", "lr is that of embedding and output layer, too"),
    NONE("decoupled_min_lr", "min_lr is that of embedding and output layer, too"),
    MEANS("start_weight_decay", "weight_decay", ONE_DECAY),
    MEANS("end_weight_decay", "weight_decay", ONE_DECAY),
    MEANS("weight_decay_incr_style", "weight_decay", ONE_DECAY),
    NEEDLESS("override_opt_param_scheduler", LR_OF_CONFIG),
    NONE("use_checkpoint_opt_param_scheduler", LR_OF_CONFIG),
    NEEDLESS("use_precision_aware_optimizer", "main_grads_dtype, exp_avg_dtype and exp_avg_sq_dtype say it"),
    NONE("main_params_dtype", "masters are fp32"),
    /* parallel */
    ALIAS("tp", "tensor_model_parallel_size"),
    ALIAS("tp_size", "tensor_model_parallel_size"),
    ALIAS("pp_size", "pipeline_model_parallel_size"),
    NEEDLESS("dp", RANKS_LEFT),
    NEEDLESS("dp_size", RANKS_LEFT),
    NEEDLESS("data_parallel_size", RANKS_LEFT),
    ALIAS("model_parallel_size", "tensor_model_parallel_size"),
    ALIAS("pp", "pipeline_model_parallel_size"),
    ALIAS("cp", "context_parallel_size"),
    ALIAS("ep", "expert_model_parallel_size"),
    ALIAS("virtual_pipeline_model_parallel_size", "num_virtual_stages_per_pipeline_rank"),
    ALIAS("microbatch_group_size_per_virtual_pipeline_stage", "microbatch_group_size_per_vp_stage"),
    ALIAS("decoder_first_pipeline_num_layers", "num_layers_in_first_pipeline_stage"),
    ALIAS("decoder_last_pipeline_num_layers", "num_layers_in_last_pipeline_stage"),
    MEANS("num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank",
          "num_virtual_stages_per_pipeline_rank, which is num_layers / pipeline_model_parallel_size / "
          "these layers"),
    MEANS("use_tp_pp_dp_mapping", "rank_order", "rank_order=tp-cp-ep-pp-dp"),
    MEANS("use_distributed_optimizer", "data_parallel_sharding_strategy",
          "data_parallel_sharding_strategy=optim"),
    MEANS("use_megatron_fsdp", "data_parallel_sharding_strategy",
          "data_parallel_sharding_strategy=optim_grads_params"),
    MEANS("use_custom_fsdp", "data_parallel_sharding_strategy",
          "data_parallel_sharding_strategy=optim_grads_params"),
    MEANS("use_torch_fsdp2", "data_parallel_sharding_strategy",
          "data_parallel_sharding_strategy=optim_grads_params"),
    MEANS("fsdp", "data_parallel_sharding_strategy", "data_parallel_sharding_strategy=optim_grads_params"),
    MEANS("zero", "data_parallel_sharding_strategy", ZERO_STAGES),
    MEANS("zero_stage", "data_parallel_sharding_strategy", ZERO_STAGES),
    NEEDLESS("accumulate_allreduce_grads_in_fp32", "gradients are summed in fp32"),
    NEEDLESS("overlap_p2p_comm", "messages of the pipeline travel beside computation"),
    NEEDLESS("no_overlap_p2p_communication", "messages of the pipeline travel beside computation"),
    NEEDLESS("ddp_bucket_size", "gradients are reduced part by part, each as soon as it is final"),
    NEEDLESS("ddp_num_buckets", "gradients are reduced part by part, each as soon as it is final"),
    MEANS("overlap_param_gather_with_optimizer_step", "overlap_param_gather", "overlap_param_gather=true"),
    NONE("fp8_param_gather", "parameters are gathered as params_dtype"),
    NEEDLESS("async_tensor_model_parallel_allreduce", "tp_comm_overlap says what travels beside computation"),
    NEEDLESS("no_async_tensor_model_parallel_allreduce",
             "tp_comm_overlap says what travels beside computation"),
    MEANS("distribute_saved_activations", "sequence_parallel", "sequence_parallel=true"),
    NEEDLESS("n", "`scripts/launch -n N` starts N ranks"),
    NEEDLESS("np", "`scripts/launch -n N` starts N ranks"),
    NEEDLESS("world", "`scripts/launch -n N` starts N ranks; data parallelism takes what remains of them"),
    NEEDLESS("world_size",
             "`scripts/launch -n N` starts N ranks; data parallelism takes what remains of them"),
    NEEDLESS("nproc_per_node", "`scripts/launch -n N` starts N ranks"),
    NEEDLESS("gpus", "`scripts/launch -n N` starts N ranks, with device=cuda one on each GPU"),
    NEEDLESS("num_gpus", "`scripts/launch -n N` starts N ranks"),
    NEEDLESS("nnodes", "`scripts/launch -n N --hosts FILE` starts ranks on several hosts"),
    NEEDLESS("local_rank", "the launcher tells each rank"),
    /* precision */
    ALIAS("dtype", "params_dtype"),
    ALIAS("precision", "params_dtype"),
    ALIAS("mixed_precision", "params_dtype"),
    ALIAS("torch_dtype", "params_dtype"),
    MEANS("bf16", "params_dtype", "params_dtype=bf16"),
    MEANS("fp16", "params_dtype", "params_dtype=fp16"),
    MEANS("fp32", "params_dtype", "params_dtype=fp32"),
    MEANS("fp64", "params_dtype", "params_dtype=fp64"),
    ALIAS("fp8_format", "fp8"),
    NEEDLESS("attention_softmax_in_fp32", "softmax always computes in fp32"),
    NEEDLESS("apply_query_key_layer_scaling", "softmax always computes in fp32"),
    NEEDLESS("no_query_key_layer_scaling", "softmax always computes in fp32"),
    NEEDLESS("use_flash_attn",
             "attention never holds the whole matrix; attention_backend chooses the kernels of a GPU"),
    NEEDLESS("transformer_impl", NO_MEGATRON_CODE),
    NEEDLESS("use_mcore_models", NO_MEGATRON_CODE),
    NEEDLESS("use_legacy_models", NO_MEGATRON_CODE),
    NEEDLESS("no_masked_softmax_fusion", ALWAYS_FUSED),
    NEEDLESS("no_bias_swiglu_fusion", ALWAYS_FUSED),
    NEEDLESS("no_bias_dropout_fusion", ALWAYS_FUSED),
    NEEDLESS("no_rope_fusion", ALWAYS_FUSED),
    NEEDLESS("apply_rope_fusion", ALWAYS_FUSED),
    NEEDLESS("gradient_accumulation_fusion", ALWAYS_FUSED),
    NEEDLESS("cross_entropy_fusion_impl", ALWAYS_FUSED),
    NEEDLESS("no_persist_layer_norm", ALWAYS_FUSED),
    NEEDLESS("no_gradient_accumulation_fusion", ALWAYS_FUSED),
    NEEDLESS("cross_entropy_loss_fusion", ALWAYS_FUSED),
    /* recompute, moe */
    MEANS("recompute_activations", "recompute_granularity", "recompute_granularity=selective"),
    MEANS("activation_checkpointing", "recompute_granularity",
          "recompute_granularity=full recompute_method=uniform recompute_num_layers=1, or "
          "recompute_granularity=selective"),
    MEANS("gradient_checkpointing", "recompute_granularity",
          "recompute_granularity=full recompute_method=uniform recompute_num_layers=1, or "
          "recompute_granularity=selective"),
    ALIAS("num_experts", "num_moe_experts"),
    NONE("moe_grouped_gemm", "an expert's products are operations of their own"),
    NEEDLESS("moe_permute_fusion", "rows come into the order of the experts as they are sent"),
    NEEDLESS("moe_router_dtype", "the router's logits and weights are fp32"),
    NEEDLESS("moe_shared_expert_overlap", "tokens always travel while a shared expert computes"),
    MEANS("moe_extended_tp", "expert_tensor_parallel_size",
          "expert_tensor_parallel_size, the ranks that share each expert"),
    ALIAS("num_local_experts", "num_moe_experts"),
    ALIAS("n_routed_experts", "num_moe_experts"),
    ALIAS("num_experts_per_tok", "moe_router_topk"),
    ALIAS("moe_intermediate_size", "moe_ffn_hidden_size"),
    ALIAS("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"),
    ALIAS("routed_scaling_factor", "moe_router_topk_scaling_factor"),
    ALIAS("n_group", "moe_router_num_groups"),
    ALIAS("topk_group", "moe_router_group_topk"),
    MEANS("moe_router_force_load_balancing", "moe_router_force", "moe_router_force=uniform"),
    MEANS("moe_router_force_biased", "moe_router_force", "moe_router_force=zipf, or file"),
    MEANS("router_aux_loss_coef", "moe_aux_loss_coeff",
          "moe_aux_loss_coeff, that number times moe_router_topk / the number of layers with experts, over "
          "which the loss is summed"),
    /* checkpoint, log */
    ALIAS("output_dir", "save"),
    ALIAS("out_dir", "save"),
    ALIAS("o", "save"),
    ALIAS("save_dir", "save"),
    ALIAS("save_steps", "save_interval"),
    ALIAS("save_every", "save_interval"),
    ALIAS("checkpoint_interval", "save_interval"),
    MEANS("save_strategy", "save_interval", "save_interval, the iterations between checkpoints"),
    MEANS("init_from", "load", "load=DIR; `train import` makes a checkpoint of a Hugging Face directory"),
    ALIAS("save_total_limit", "save_keep_last"),
    ALIAS("checkpoint", "load"),
    ALIAS("resume_from_checkpoint", "load"),
    MEANS("resume", "load", "load=latest"),
    NEEDLESS("dry_run",
             "`train plan CONFIG.yaml` computes placement, memory and messages and trains nothing"),
    MEANS("no_load_optim", "finetune", "finetune=true (weights only, from iteration 0)"),
    NEEDLESS("no_load_rng", "random numbers follow from seed and position: no state is kept"),
    NEEDLESS("no_save_rng", "random numbers follow from seed and position: no state is kept"),
    NEEDLESS("no_save_optim", "a checkpoint holds the whole state; `train export` writes the weights alone"),
    NEEDLESS("ckpt_format", ONE_FORMAT),
    NEEDLESS("dist_ckpt_format", ONE_FORMAT),
    NEEDLESS("use_dist_ckpt", ONE_FORMAT),
    NEEDLESS("auto_detect_ckpt_format", ONE_FORMAT),
    NEEDLESS("ckpt_fully_parallel_save", "each rank writes what it holds"),
    NEEDLESS("ckpt_fully_parallel_load", "each rank reads what it holds"),
    MEANS("ckpt_step", "load", "load=RUN/checkpoints/iter_N"),
    MEANS("pretrained_checkpoint", "load", "load=DIR and finetune=true"),
    NEEDLESS("exit_on_missing_checkpoint", "a checkpoint that is named and missing ends the run"),
    NEEDLESS("use_checkpoint_args",
             "model keys that a configuration leaves out come from the checkpoint that is loaded"),
    ALIAS("logging_steps", "log_interval"),
    ALIAS("log_every", "log_interval"),
    ALIAS("tensorboard_log_interval", "log_interval"),
    NEEDLESS("log_throughput", "it is always printed"),
    NEEDLESS("timing_log_level", "trace_steps draws the timeline of a step"),
    NEEDLESS("log_timers_to_tensorboard", IN_TENSORBOARD),
    NEEDLESS("log_memory_to_tensorboard", IN_TENSORBOARD),
    NEEDLESS("log_world_size_to_tensorboard", IN_TENSORBOARD),
    NEEDLESS("log_validation_ppl_to_tensorboard", IN_TENSORBOARD),
    NEEDLESS("log_straggler", "straggler_threshold says from when on a rank is reported"),
    MEANS("profile", "trace_steps", "trace_steps=[10, 11]"),
    MEANS("profile_step_start", "trace_steps", "trace_steps=[10, 11]"),
    MEANS("profile_step_end", "trace_steps", "trace_steps=[10, 11]"),
    MEANS("use_pytorch_profiler", "trace_steps", "trace_steps=[10, 11]"),
    NEEDLESS("wandb_project", NO_WANDB),
    NEEDLESS("wandb_entity", NO_WANDB),
    NEEDLESS("wandb_exp_name", NO_WANDB),
    NEEDLESS("wandb_save_dir", NO_WANDB),
    MEANS("no_check_for_nan_in_loss_and_grad", "check_for_nan_in_loss_and_grad",
          "check_for_nan_in_loss_and_grad=false"),
    NEEDLESS("yaml_cfg", "the configuration is the first argument: `train CONFIG.yaml`"),
    NEEDLESS("config", "the configuration is the first argument: `train CONFIG.yaml`"),
    NEEDLESS("config_file", "the configuration is the first argument: `train CONFIG.yaml`"),
    NEEDLESS("job_config_file", "the configuration is the first argument: `train CONFIG.yaml`"),
};
enum { ALIASES = sizeof aliases / sizeof *aliases };

/* Values as other programs spell them, and ours. A value may have several rows: the key decides. */
static const struct { const char *value, *ours; } values[] = {
    {"bfloat16", "bf16"}, {"float16", "fp16"}, {"half", "fp16"}, {"float32", "fp32"}, {"float", "fp32"},
    {"float64", "fp64"}, {"double", "fp64"}, {"silu", "swiglu"}, {"swish", "swiglu"},
    {"gelu_new", "gelu_tanh"}, {"gelu_fast", "gelu_tanh"}, {"gelu_pytorch_tanh", "gelu_tanh"},
    {"relu2", "squared_relu"}, {"rotary", "rope"}, {"gpu", "cuda"}, {"gloo", "mpi"}, {"rms", "RMSNorm"},
    {"momentum", "sgd"}, {"loop", "interleaved"}, {"zb", "zb-h1"},
    {"GPT2BPETokenizer", "none"}, {"HuggingFaceTokenizer", "none"}, {"SentencePieceTokenizer", "none"},
    {"Llama2Tokenizer", "none"}, {"TikTokenizer", "none"}, {"NullTokenizer", "none"},
};

const char *value_alias(const char *value, int nth)
{
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        if (name_is(value, values[i].value) && !nth--)
            return values[i].ours;
    return NULL;
}

const Alias *alias_at(int i) { return i >= 0 && i < ALIASES ? &aliases[i] : NULL; }

const Alias *alias_find(const char *name)
{
    for (int i = 0; i < ALIASES; i++)
        if (name_is(name, aliases[i].name))
            return &aliases[i];
    return NULL;
}

const Alias *alias_suggest(const char *name)
{
    for (int i = 0; strlen(name) > 4 && i < ALIASES; i++)
        if (edit_distance(name, aliases[i].name) == 1)
            return &aliases[i];
    return NULL;
}

char *alias_text(const Alias *a)
{
    if (!a->key)
        return textf("leave it out: %s", a->text);
    return textf(a->text ? "write %s (section '%s')" : "write '%s' (section '%s')",
                 a->text ? a->text : a->key, options[option_find(a->key)].section);
}

char *config_argument(const char *flag, const char *value, int *known)
{
    const char *name = flag + strspn(flag, "-"), *equals = strchr(name, '=');
    char *key = textf("%.*s", (int)(equals ? equals - name : (long)strcspn(name, ":")), name);
    char *dot = strrchr(key, '.');
    key = dot ? dot + 1 : key;                         /* torchtitan: --optimizer.lr */
    const Alias *a = alias_find(key);
    int option = option_like(key);
    value = equals ? equals + 1 : value;
    if (a && (!a->key || a->text)) {
        *known = a->key && !strchr(a->text, ' ');
        return *known ? text_copy(a->text) : alias_text(a);
    }
    option = a ? option_find(a->key) : option;
    *known = option >= 0;
    if (option < 0) {
        option = option_suggest(key, NULL);
        return option >= 0 ? textf("did you mean `%s`?", options[option].key) : NULL;
    }
    return textf("%s=%s", options[option].key,
                 value                               ? value
                 : options[option].type == TYPE_BOOL ? "true"
                                                     : "VALUE");
}
