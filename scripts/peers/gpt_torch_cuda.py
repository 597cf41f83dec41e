#!/usr/bin/env python3
"""A GPT of one of configs/gpu/*.yaml in PyTorch on one GPU, as fast as PyTorch does it: torch.compile, fused attention
(scaled_dot_product_attention), fused AdamW, BF16 by autocast over F32 weights.
Prints one JSON object a step, {"step", "loss", "elapsed_ms"}, and last {"peak_bytes", "torch"}.

    gpt_torch_cuda.py CONFIG.yaml [--micro N] [--global N] [--steps N] [--eager] [--bf16-weights] [KEY=VALUE ...]
    gpt_torch_cuda.py CONFIG.yaml --count

--bf16-weights keeps weights, gradients and moments in BF16 (less exact than what `train` does, and less memory).
--count prints {"parameters", "flops_per_token"}, the padding of the vocabulary left out, and makes nothing.
--device cpu: without a GPU, to see that it runs. KEY=VALUE: in place of what the file says."""

import argparse, json, time

import torch
import torch.nn as nn
import torch.nn.functional as F


def value_of(text):
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return {"true": True, "false": False}.get(text, text)


def read_config(path, more=()):
    """The leaves of a YAML file of two levels, and what takes their place."""
    lines = [line.split("#")[0].strip() for line in open(path) if line.startswith("  ")]
    pairs = [line.split(":", 1) for line in lines if ":" in line] + [m.split("=", 1) for m in more]
    return {key: value_of(text.strip().strip("'\"")) for key, text in pairs}


class Rope(nn.Module):
    def __init__(self, dim, positions, base):
        super().__init__()
        angle = torch.outer(torch.arange(positions).float(), base ** (-torch.arange(0, dim, 2).float() / dim))
        self.register_buffer("cos", torch.cat([angle.cos()] * 2, -1), persistent=False)
        self.register_buffer("sin", torch.cat([angle.sin()] * 2, -1), persistent=False)

    def forward(self, x):                           # (B, heads, S, dim)
        a, b = x.chunk(2, -1)
        n = x.shape[-2]
        return (x * self.cos[:n] + torch.cat([-b, a], -1) * self.sin[:n]).to(x.dtype)


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        width, inner = c["hidden_size"], c["ffn_hidden_size"]
        self.heads, self.groups = c["num_attention_heads"], c["num_query_groups"]
        self.dim = width // self.heads
        self.gated = c["activation"] == "swiglu"
        bias, qkv_bias = c.get("add_bias_linear", True), c.get("add_qkv_bias", False)
        norm = nn.RMSNorm if c["normalization"] == "RMSNorm" else nn.LayerNorm
        self.norm1, self.norm2 = norm(width, c.get("norm_epsilon", 1e-5)), norm(width, c.get("norm_epsilon", 1e-5))
        self.qkv = nn.Linear(width, (self.heads + 2 * self.groups) * self.dim, bias=bias or qkv_bias)
        self.proj = nn.Linear(width, width, bias=bias)
        self.up = nn.Linear(width, inner * (2 if self.gated else 1), bias=bias)
        self.down = nn.Linear(inner, width, bias=bias)

    def forward(self, x, rope):
        q, k, v = self.qkv(self.norm1(x)).split([self.heads * self.dim] + [self.groups * self.dim] * 2, -1)
        q, k, v = (t.unflatten(-1, (-1, self.dim)).transpose(1, 2) for t in (q, k, v))
        if rope is not None:
            q, k = rope(q), rope(k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.groups != self.heads)
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        h = self.up(self.norm2(x))
        if self.gated:
            gate, up = h.chunk(2, -1)
            return x + self.down(F.silu(gate) * up)
        return x + self.down(F.gelu(h, approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, c):
        super().__init__()
        width, padded = c["hidden_size"], (c["vocab_size"] + 127) // 128 * 128
        self.wte = nn.Embedding(padded, width)
        self.wpe = nn.Embedding(c["max_position_embeddings"], width) if c["position_embedding_type"] != "rope" else None
        self.rope = (Rope(width // c["num_attention_heads"], c["max_position_embeddings"], c["rotary_base"])
                     if self.wpe is None else None)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c["num_layers"]))
        norm = nn.RMSNorm if c["normalization"] == "RMSNorm" else nn.LayerNorm
        self.norm = norm(width, c.get("norm_epsilon", 1e-5))
        self.head = nn.Linear(width, padded, bias=False)
        if not c.get("untie_embeddings_and_output_weights", False):
            self.head.weight = self.wte.weight
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, labels):
        x = self.wte(tokens)
        if self.wpe is not None:
            x = x + self.wpe.weight[:tokens.shape[1]]
        for block in self.blocks:
            x = block(x, self.rope)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), labels.flatten())


def count(c):
    """Parameters and FLOPs a token of the model: 6 for each weight of a matrix product, and causal attention's."""
    with torch.device("meta"):
        model = GPT(c)
    padding = model.wte.num_embeddings - c["vocab_size"]
    tied = model.head.weight is model.wte.weight
    products = sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Linear)) - padding * c["hidden_size"]
    parameters = sum(p.numel() for p in model.parameters()) - padding * c["hidden_size"] * (1 if tied else 2)
    return {"parameters": parameters,
            "flops_per_token": 6 * products + 6 * c["num_layers"] * c["seq_length"] * c["hidden_size"]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("config")
    parser.add_argument("--micro", type=int)
    parser.add_argument("--global", type=int, dest="whole")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--bf16-weights", action="store_true")
    parser.add_argument("--count", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("keys", nargs="*", metavar="KEY=VALUE")
    a = parser.parse_intermixed_args()
    c = read_config(a.config, a.keys)
    if a.count:
        print(json.dumps(count(c)))
        return
    on_gpu = a.device == "cuda"
    micro, whole, seq = a.micro or c["micro_batch_size"], a.whole or c["global_batch_size"], c["seq_length"]
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    with torch.device(a.device):
        model = GPT(c)
    if a.bf16_weights:
        model = model.bfloat16()
    decay = [p for p in model.parameters() if p.dim() == 2]
    rest = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}],
                                  lr=c["lr"], fused=True)
    forward = model if a.eager else torch.compile(model)
    for step in range(a.steps):
        x = torch.randint(c["vocab_size"], (whole, seq + 1), device=a.device)
        if on_gpu:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        total = torch.zeros((), device=a.device)
        for at in range(0, whole, micro):
            part = x[at:at + micro]
            with torch.autocast(a.device, torch.bfloat16, enabled=not a.bf16_weights):
                loss = forward(part[:, :-1], part[:, 1:]) * (micro / whole)
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        value = total.item()
        ms = 1e3 * (time.perf_counter() - begin)
        print(json.dumps({"step": step + 1, "loss": value, "elapsed_ms": ms}), flush=True)
    peak = torch.cuda.max_memory_allocated() if on_gpu else 0
    print(json.dumps({"peak_bytes": peak, "torch": torch.__version__}), flush=True)


main()
