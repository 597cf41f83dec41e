#!/usr/bin/env python3
"""GPT-2 124M in PyTorch, the peer of configs/bench-gpt2-124m.yaml: the same model and step, as fast as PyTorch
does it on this CPU. Prints one JSON object a step, {"step", "loss", "elapsed_ms"}, until --steps or killed.

    gpt2_torch.py [--dtype fp32|bf16] [--compile] [--batch 4] [--seq 256] [--steps N] [--threads N]

bf16 is autocast over F32 weights. AdamW is the fused one, gradients keep their memory between steps, attention
is scaled_dot_product_attention. The allocator keeps its memory and uses huge pages, which is worth up to a
factor of 1.8: those settings are read at the start of a process, so the script starts itself again with them."""

import argparse, json, os, sys, time

TUNED = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "MALLOC_MMAP_THRESHOLD_": str(4 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(16 << 30),
    "MALLOC_TOP_PAD_": str(256 << 20),
}
if any(os.environ.get(k) != v for k, v in TUNED.items()):
    os.execve(sys.executable, [sys.executable] + sys.argv, os.environ | TUNED)

import torch
import torch.nn as nn
import torch.nn.functional as F

LAYERS, HEADS, WIDTH, VOCAB, PADDED, POSITIONS = 12, 12, 768, 50257, 50304, 1024


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(PADDED, WIDTH), nn.Embedding(POSITIONS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, labels):
        x = self.wte(tokens) + self.wpe.weight[:tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--steps", type=int, default=1 << 30)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    a = parser.parse_args()

    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    if hasattr(torch.cpu, "_init_amx"):
        torch.cpu._init_amx()                       # asks the kernel for AMX tiles; False without AMX
    model = GPT2()
    decay = [p for p in model.parameters() if p.dim() == 2]
    rest = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}],
                                  lr=3e-4, fused=True)
    forward = torch.compile(model) if a.compile else model
    for step in range(a.steps):
        x = torch.randint(VOCAB, (a.batch, a.seq + 1))
        begin = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=a.dtype == "bf16"):
            loss = forward(x[:, :-1], x[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        value = loss.item()
        ms = 1e3 * (time.perf_counter() - begin)
        print(json.dumps({"step": step + 1, "loss": value, "elapsed_ms": ms}), flush=True)


main()
