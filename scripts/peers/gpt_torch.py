#!/usr/bin/env python3
"""The GPT of a configuration in PyTorch, the peer of `train`: the same model and step, as fast as PyTorch does it, with
torch.compile, fused attention (scaled_dot_product_attention), fused AdamW; BF16 is autocast over F32 weights.
Prints one JSON object a step, {"step", "loss", "elapsed_ms"}, until --steps or killed, and last {"peak_bytes", "torch"}.

    gpt_torch.py CONFIG.yaml [--device cuda|cpu] [--dtype bf16|fp32] [--micro N] [--global N] [--steps N] [--eager]
                 [--bf16-weights] [--threads N] [KEY=VALUE ...]
    gpt_torch.py CONFIG.yaml --count
    gpt_torch.py CONFIG.yaml --device cpu --generate TOKENS

--bf16-weights keeps weights, gradients and moments in BF16 (less exact than what `train` does, and less memory).
--count prints {"parameters", "flops_per_token"}, the padding of the vocabulary left out, and makes nothing.
--generate prints one JSON object a token, one stream with a key/value cache of static size, instead of training.
KEY=VALUE: in place of what the file says.

On a CPU the allocator keeps its memory and uses huge pages, which is worth up to a factor of 1.8: those settings
are read at the start of a process, so the script starts itself again with them."""

import argparse, json, os, sys, time

TUNED = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "MALLOC_MMAP_THRESHOLD_": str(4 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(16 << 30),
    "MALLOC_TOP_PAD_": str(256 << 20),
}
if __name__ == "__main__" and {"cpu", "--device=cpu"} & set(sys.argv) and any(os.environ.get(k) != v for k, v in TUNED.items()):
    os.execve(sys.executable, [sys.executable] + sys.argv, os.environ | TUNED)

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
    """The leaves of a YAML file of two levels, what takes their place, and the defaults of `train`."""
    lines = [line.split("#")[0].strip() for line in open(path) if line.startswith("  ")]
    pairs = [line.split(":", 1) for line in lines if ":" in line] + [m.split("=", 1) for m in more]
    c = {key: value_of(text.strip().strip("'\"")) for key, text in pairs}
    return {"ffn_hidden_size": 4 * c["hidden_size"], "num_query_groups": c["num_attention_heads"],
            "max_position_embeddings": c["seq_length"], "rotary_base": 10000} | c


class Rope(nn.Module):
    def __init__(self, dim, positions, base):
        super().__init__()
        angle = torch.outer(torch.arange(positions).float(), base ** (-torch.arange(0, dim, 2).float() / dim))
        self.register_buffer("cos", torch.cat([angle.cos()] * 2, -1), persistent=False)
        self.register_buffer("sin", torch.cat([angle.sin()] * 2, -1), persistent=False)

    def forward(self, x, at=0):                     # (B, heads, S, dim)
        a, b = x.chunk(2, -1)
        end = at + x.shape[-2]
        return (x * self.cos[at:end] + torch.cat([-b, a], -1) * self.sin[at:end]).to(x.dtype)


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

    def forward(self, x, rope, cache=None, at=0):
        q, k, v = self.qkv(self.norm1(x)).split([self.heads * self.dim] + [self.groups * self.dim] * 2, -1)
        q, k, v = (t.unflatten(-1, (-1, self.dim)).transpose(1, 2) for t in (q, k, v))
        if rope is not None:
            q, k = rope(q, at), rope(k, at)
        if cache is not None:
            cache[0][:, :, at:at + 1], cache[1][:, :, at:at + 1] = k, v
            k, v = cache[0][:, :, :at + 1], cache[1][:, :, :at + 1]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None, enable_gqa=self.groups != self.heads)
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


@torch.inference_mode()
def generate(model, c, a):
    """Draws the most likely token after another, one stream, keys and values cached."""
    one = model.blocks[0]
    shape = (1, one.groups, c["seq_length"], one.dim)
    caches = [[torch.zeros(shape, dtype=model.wte.weight.dtype) for _ in range(2)] for _ in model.blocks]

    def extend(token, at):
        x = model.wte(token)
        if model.wpe is not None:
            x = x + model.wpe.weight[at:at + 1]
        for block, cache in zip(model.blocks, caches):
            x = block(x, model.rope, cache, at)
        return model.head(model.norm(x))[0, -1].argmax().view(1, 1)

    if not a.eager:
        extend = torch.compile(extend, dynamic=True)
    token = torch.zeros((1, 1), dtype=torch.int64)
    for at in range(a.generate):
        begin = time.perf_counter()
        token = extend(token, at)
        int(token)
        print(json.dumps({"step": at + 1, "elapsed_ms": 1e3 * (time.perf_counter() - begin)}), flush=True)


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
    parser.add_argument("--steps", type=int, default=1 << 30)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--bf16-weights", action="store_true")
    parser.add_argument("--count", action="store_true")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--dtype", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--generate", type=int, metavar="TOKENS")
    parser.add_argument("keys", nargs="*", metavar="KEY=VALUE")
    a = parser.parse_intermixed_args()
    c = read_config(a.config, a.keys)
    if a.count:
        print(json.dumps(count(c)))
        return
    on_gpu = a.device == "cuda"
    micro, whole, seq = a.micro or c["micro_batch_size"], a.whole or c["global_batch_size"], c["seq_length"]
    torch.manual_seed(0)
    if on_gpu:
        torch.set_float32_matmul_precision("high")
    else:
        torch.set_num_threads(a.threads)
        if hasattr(torch.cpu, "_init_amx"):
            torch.cpu._init_amx()                   # asks the kernel for AMX tiles; False without AMX
    with torch.device(a.device):
        model = GPT(c)
    if a.generate:
        generate(model.bfloat16() if a.dtype == "bf16" else model, c, a)
        return
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
            with torch.autocast(a.device, torch.bfloat16, enabled=a.dtype == "bf16" and not a.bf16_weights):
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


if __name__ == "__main__":
    main()
