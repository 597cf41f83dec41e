#!/usr/bin/env python3
"""Import and export against transformers itself: for models of each family with unusual settings, the
directory that transformers wrote is imported, the logits of `train dump` are compared with transformers', and
the exported directory is loaded by transformers again: every tensor the same bits, the same logits.

    PYTHON tests/checkpoint/check_huggingface.py [TRAIN]     needs torch and transformers; run in the top folder

The goldens (tests/model/goldens) check the plain settings without PyTorch; this is `make test-huggingface`.
"""
import json
import os
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file

TRAIN = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "train")
TOLERANCE = 2e-5        # relative to the largest logit; both sides compute in F32

small = dict(vocab_size=61, hidden_size=32, intermediate_size=44, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=40, bos_token_id=1, eos_token_id=[2, 3])
moe = dict(small, moe_intermediate_size=18)
gpt2 = dict(vocab_size=61, n_embd=36, n_layer=2, n_head=4, n_positions=40,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
CASES = [
    ("gpt2", dict(gpt2)),
    ("gpt2", dict(gpt2, activation_function="relu", n_inner=50, tie_word_embeddings=False)),
    ("gpt2", dict(gpt2, activation_function="gelu", layer_norm_epsilon=1e-3)),
    ("gpt2", dict(gpt2, activation_function="relu2")),
    ("llama", dict(small)),
    ("llama", dict(small, tie_word_embeddings=True, head_dim=12, rope_theta=500000.0)),
    ("llama", dict(small, hidden_act="gelu", num_key_value_heads=1, rms_norm_eps=1e-3)),
    ("mistral", dict(small, sliding_window=5)),
    ("mistral", dict(small, sliding_window=None, num_attention_heads=3, num_key_value_heads=1, head_dim=10)),
    ("qwen2", dict(small, tie_word_embeddings=True)),
    ("qwen2", dict(small, use_sliding_window=True, sliding_window=7, max_window_layers=0)),
    ("qwen2", dict(small, use_sliding_window=True, sliding_window=7, max_window_layers=3)),
    ("qwen3", dict(small, head_dim=14)),
    ("qwen3", dict(small, head_dim=16, tie_word_embeddings=True, use_sliding_window=True, sliding_window=3,
                   max_window_layers=0)),
    ("llama", dict(small, rope_parameters=dict(
        rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=16), tie_word_embeddings=True)),
    ("mistral", dict(small, sliding_window=5, rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=4.0))),
    ("llama", dict(small, max_position_embeddings=11, rope_parameters=dict(
        rope_type="dynamic", rope_theta=1e4, factor=2.0))),
    ("qwen2", dict(small, rope_parameters=dict(
        rope_type="yarn", rope_theta=1e6, factor=4.0, original_max_position_embeddings=10))),
    ("qwen3", dict(small, head_dim=14, rope_parameters=dict(
        rope_type="yarn", rope_theta=1e4, factor=8.0, original_max_position_embeddings=5, attention_factor=1.3,
        beta_fast=4.0, beta_slow=0.5, truncate=False))),
    ("mixtral", dict(small, num_local_experts=4)),
    ("mixtral", dict(small, num_local_experts=3, num_experts_per_tok=3, sliding_window=6, tie_word_embeddings=True)),
    ("qwen2_moe", dict(moe, num_experts=6, num_experts_per_tok=2, shared_expert_intermediate_size=20)),
    ("qwen2_moe", dict(moe, num_experts=5, num_experts_per_tok=3, shared_expert_intermediate_size=9,
                       norm_topk_prob=True, qkv_bias=False, mlp_only_layers=[1], tie_word_embeddings=True)),
    ("qwen3_moe", dict(moe, num_experts=12, num_experts_per_tok=4, head_dim=14, norm_topk_prob=True)),
    ("qwen3_moe", dict(moe, num_experts=6, num_experts_per_tok=1, decoder_sparse_step=2, router_aux_loss_coef=0.01)),
    ("dots1", dict(moe, n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=1, norm_topk_prob=True,
                   sliding_window=None)),
    ("dots1", dict(moe, n_routed_experts=12, num_experts_per_tok=4, n_shared_experts=3, n_group=6, topk_group=2,
                   first_k_dense_replace=1, norm_topk_prob=True, routed_scaling_factor=2.5, head_dim=12,
                   sliding_window=None)),
    ("dots1", dict(moe, n_routed_experts=6, num_experts_per_tok=1, n_shared_experts=1, norm_topk_prob=False,
                   sliding_window=4, max_window_layers=0)),
]
DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16,
          "float16": torch.float16}


def run(*args):
    done = subprocess.run([TRAIN, *args], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(args)}: exit {done.returncode}\n{done.stderr}")


def eager(family):
    """The plain implementations: grouped matmuls take widths of certain sizes only."""
    moe = "num_experts_per_tok" in transformers.AutoConfig.for_model(family).to_dict()
    return dict(attn_implementation="eager") | (dict(experts_implementation="eager") if moe else {})


def model_of(family, settings, dtype):
    torch.manual_seed(7)
    config = transformers.AutoConfig.for_model(family, **settings)
    model = transformers.AutoModelForCausalLM.from_config(config, **eager(family))
    for p in model.parameters():                # not the initial values, so that every tensor matters
        p.data = (p.data + 0.3 * torch.randn_like(p.data) if p.dim() == 1 else 8 * p.data).to(DTYPES[dtype])
    for name, b in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            b.data = 0.2 * torch.randn_like(b)
    model.config.dtype = DTYPES[dtype]          # model.to() would round the rotary angles too
    return model.eval()


def logits_of(model, tokens):
    with torch.no_grad():
        return model.to(torch.float32)(tokens).logits.double()


def tensors(folder):
    """All tensors of a directory's files."""
    files = [load_file(f"{folder}/{f}") for f in os.listdir(folder) if f.endswith(".safetensors")]
    return {name: t for file in files for name, t in file.items()}


def check(family, settings, dtype, work):
    src, ckpt, out = (f"{work}/{n}" for n in ("src", "ckpt", "out"))
    model = model_of(family, settings, dtype)
    model.save_pretrained(src, max_shard_size="40KB")
    run("import", src, "-o", ckpt)
    run("export", ckpt, "-o", out)
    back = transformers.AutoModelForCausalLM.from_pretrained(out, dtype="auto", **eager(family))
    # the files have the same types; transformers widens some of what it loads, dots1's routers for one
    for a, b, types in (tensors(src), tensors(out), True), (model.state_dict(), back.state_dict(), False):
        assert a.keys() == b.keys(), a.keys() ^ b.keys()
        for name in a:
            same = not types or a[name].dtype == b[name].dtype
            assert same and torch.equal(a[name], b[name].to(a[name].dtype)), f"{name} differs"
    ours, theirs = transformers.AutoConfig.from_pretrained(out).to_dict(), model.config.to_dict()
    if settings.get("rope_parameters", {}).get("rope_type") == "yarn":        # an export says all that absent keys mean
        theirs["rope_parameters"] = dict(beta_fast=32.0, beta_slow=1.0, truncate=True) | theirs["rope_parameters"]
    ignore = {"_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures", "rope_theta",
              "layer_types", "max_window_layers", "sliding_window", "use_sliding_window", "n_inner",
              "decoder_sparse_step", "mlp_only_layers"}
    if theirs.get("head_dim") is None:           # means hidden_size / heads, which an export says
        ignore.add("head_dim")
    diff = {k: (ours.get(k), theirs.get(k)) for k in ours.keys() | theirs.keys()
            if ours.get(k) != theirs.get(k) and k not in ignore}
    assert not diff, f"config.json differs: {diff}"

    manifest = json.load(open(f"{ckpt}/checkpoints/iter_0000000/manifest.json"))
    with open(f"{work}/c.yaml", "w") as f:
        lines = manifest["state"]["config"].split("\n")
        f.writelines(line + "\n" for line in lines if not line.endswith(": null"))
    run("dump", f"{work}/c.yaml", f"load={ckpt}", "params_dtype=fp32", "seq_length=20", "micro_batch_size=2",
        "global_batch_size=2", "data_path=tests/golden/corpus", "split=1, 0, 0", "hidden_dropout=0",
        "attention_dropout=0", "train_iters=1", "lr=1e-3", "-o", f"{work}/d.safetensors",
        *["max_position_embeddings=20"] * ("rope_parameters" in settings))
    dump = load_file(f"{work}/d.safetensors")
    want = logits_of(model, dump["tokens"])
    error = ((dump["logits"].double() - want).abs().max() / want.abs().max()).item()
    again = logits_of(back, dump["tokens"])
    assert torch.equal(again, want), "the exported model's logits differ"
    assert error < TOLERANCE, f"logits differ by {error:.1e}"
    return error


def main():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    worst = 0.0
    for i, (family, settings) in enumerate(CASES):
        for dtype in list(DTYPES) if i in (0, 4) else [("float32", "bfloat16")[i % 2]]:
            with tempfile.TemporaryDirectory() as work:
                error = check(family, settings, dtype, work)
            worst = max(worst, error)
            print(f"{family} {dtype}: {error:.1e}  {settings}")
    print(f"{len(CASES)} models, worst {worst:.1e}")


if __name__ == "__main__":
    main()
