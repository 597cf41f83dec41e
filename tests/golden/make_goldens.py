#!/usr/bin/env python3
"""Makes the golden values in this folder with PyTorch and transformers: `make_goldens.py [FAMILY ...]`.

    corpus.bin, corpus.idx     a Megatron corpus of seven documents, 61 token ids (all families)
    FAMILY/                    a Hugging Face directory: a tiny model of odd sizes, F32 weights of order one
    rope_rates.txt             frequencies of rope_scaling in many settings, which tests/model/test_rope.c compares
    FAMILY.safetensors         what the trainer must compute from the two, F64:
        tokens, labels         [4, 17] I64, the first global batch in the order Megatron's rules give
        loss, logits, grad.*   of that batch, in Hugging Face's names and shapes
        after.*                weights after ten AdamW steps with clip, decay groups and warm-up + cosine
        step.loss, step.grad_norm, step.lr    [10], what metrics.jsonl says of those steps
    FAMILY.POLICY.safetensors  the same of the first global batch, with a capacity of experts

tests/model/goldens runs the trainer on FAMILY.yaml and compares. scripts/torch_setup makes the environment for
this script; continuous integration needs only the files.

Three things are worked out twice, so that a mistake in one place shows here and not as a wrong golden:
transformers keeps norms, softmax and rotary tables in fp32 even in an fp64 model, so its code runs here with
every mention of float32 meaning float64, and a second implementation of the models, written below from
the papers' formulas, must agree to 1e-13; the learning rates are checked against values computed by
Megatron's own scheduler class; the sample order comes from numpy's RandomState, the generator Megatron uses.

With --own-error it also prints how far PyTorch in fp32 and bf16 is from PyTorch in fp64: the room that the
tolerances of tests/model/goldens leave."""

import contextlib, json, math, os, re, struct, sys

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file

HERE = os.path.dirname(os.path.abspath(__file__))
SEQ, BATCH, STEPS, VOCAB = 17, 4, 10, 61
LR = dict(lr=0.01, min_lr=0.001, warmup=2, decay=10)
ADAM = dict(betas=(0.9, 0.95), eps=1e-5, weight_decay=0.1)

# Families by name: seed, clip (both are in FAMILY.yaml, too), transformers' config. The models are odd on purpose:
# sizes that no vector width divides, one query group, several, or as many as heads, a head size that is not
# hidden / heads, a rotary base that is no model's default.
FAMILIES = {
    "gpt2": (101, 4.0, transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=23, n_embd=30, n_layer=2, n_head=6, n_inner=52,
        bos_token_id=None, eos_token_id=None, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)),
    "llama": (102, 1.0, transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=24, intermediate_size=38, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=19, rms_norm_eps=1e-5, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 5003.0})),
    "mistral": (103, 1.0, transformers.MistralConfig(
        vocab_size=VOCAB, hidden_size=20, intermediate_size=34, num_hidden_layers=3, num_attention_heads=3,
        num_key_value_heads=1, head_dim=8, max_position_embeddings=32, rms_norm_eps=1e-6, sliding_window=None,
        tie_word_embeddings=False, rope_parameters={"rope_type": "default", "rope_theta": 977.0})),
    "qwen2": (104, 4.0, transformers.Qwen2Config(
        vocab_size=VOCAB, hidden_size=24, intermediate_size=36, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=32, rms_norm_eps=1e-6, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10007.0})),
    "qwen3": (105, 0.9, transformers.Qwen3Config(
        vocab_size=VOCAB, hidden_size=20, intermediate_size=34, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=10, max_position_embeddings=32, rms_norm_eps=1e-6,
        tie_word_embeddings=False, rope_parameters={"rope_type": "default", "rope_theta": 1000003.0})),
    # RoPE for sequences longer than the original length. llama3: the shape of Llama 3.1; of its four frequencies
    # one stays, one is interpolated, two are divided by the factor. yarn: its ramp starts between two columns.
    "llama3": (106, 0.7, transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=16, intermediate_size=28, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=48, rms_norm_eps=1e-5, tie_word_embeddings=False,
        rope_parameters={"rope_type": "llama3", "rope_theta": 11.0, "factor": 4.0, "low_freq_factor": 0.75,
                         "high_freq_factor": 1.5, "original_max_position_embeddings": 12})),
    "linear": (107, 0.55, transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=12, intermediate_size=22, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=18, rms_norm_eps=1e-5, tie_word_embeddings=False,
        rope_parameters={"rope_type": "linear", "rope_theta": 101.0, "factor": 2.25})),
    "dynamic": (108, 0.6, transformers.MistralConfig(
        vocab_size=VOCAB, hidden_size=12, intermediate_size=22, num_hidden_layers=1, num_attention_heads=3,
        num_key_value_heads=3, head_dim=6, max_position_embeddings=7, rms_norm_eps=1e-6, sliding_window=None,
        tie_word_embeddings=False, rope_parameters={"rope_type": "dynamic", "rope_theta": 103.0, "factor": 3.5})),
    "yarn": (109, 0.67, transformers.Qwen3Config(
        vocab_size=VOCAB, hidden_size=12, intermediate_size=22, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, head_dim=12, max_position_embeddings=24, rms_norm_eps=1e-6, tie_word_embeddings=False,
        rope_parameters={"rope_type": "yarn", "rope_theta": 29.0, "factor": 3.0, "beta_fast": 1.1, "beta_slow": 0.3,
                         "original_max_position_embeddings": 8, "truncate": False})),
    # Layers with experts. dots1 has DeepSeek-V3's router and plain attention.
    "mixtral": (110, 0.85, transformers.MixtralConfig(
        vocab_size=VOCAB, hidden_size=24, intermediate_size=14, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32, rms_norm_eps=1e-5, num_local_experts=5,
        num_experts_per_tok=2, tie_word_embeddings=False, bos_token_id=None, eos_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": 1009.0})),
    "qwen2_moe": (111, 4.0, transformers.Qwen2MoeConfig(
        vocab_size=VOCAB, hidden_size=24, intermediate_size=30, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=32, rms_norm_eps=1e-6, num_experts=6, num_experts_per_tok=3,
        moe_intermediate_size=10, shared_expert_intermediate_size=14, norm_topk_prob=False, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10007.0})),
    "qwen3_moe": (112, 0.835, transformers.Qwen3MoeConfig(
        vocab_size=VOCAB, hidden_size=16, intermediate_size=26, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=6, max_position_embeddings=32, rms_norm_eps=1e-6, num_experts=7,
        num_experts_per_tok=3, moe_intermediate_size=9, norm_topk_prob=True, decoder_sparse_step=2,
        tie_word_embeddings=False, rope_parameters={"rope_type": "default", "rope_theta": 1000003.0})),
    "dots1": (113, 1.0, transformers.Dots1Config(
        vocab_size=VOCAB, hidden_size=16, intermediate_size=26, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=6, max_position_embeddings=32, rms_norm_eps=1e-6, n_routed_experts=12,
        num_experts_per_tok=4, n_group=4, topk_group=2, moe_intermediate_size=7, n_shared_experts=2,
        routed_scaling_factor=1.7, norm_topk_prob=True, first_k_dense_replace=1, sliding_window=None,
        tie_word_embeddings=False, rope_parameters={"rope_type": "default", "rope_theta": 5003.0})),
}

# Losses of the routers, added to the cross-entropy of each microbatch of MICRO samples. They are Megatron's, by
# layer: coeff x E x sum over experts of (share of the pairs) x (mean score), of the microbatch or the mean over its
# samples ("seq"); z x mean squared logsumexp of the logits.
MICRO = 2
ROUTERS = {
    "mixtral": dict(coeff=0.05, seq=False, z=0.0),
    "qwen2_moe": dict(coeff=0.07, seq=True, z=0.0),
    "qwen3_moe": dict(coeff=0.04, seq=False, z=0.02),
    "dots1": dict(coeff=0.06, seq=True, z=0.01),
}
# What a step changes the correction bias of an expert by (arXiv:2408.15664): up with fewer pairs than the mean.
BIAS_RATE = 0.02

# Capacities of experts, each in a file of its own, FAMILY.POLICY.safetensors, without the steps: of the choices of a
# microbatch an expert takes ceil(tokens x k / E x factor), the heaviest ("probs") or the first ones ("position"); the
# others have weight 0, after the weights of a token were made to add up to 1. The routers' losses count them.
CAPACITIES = {"mixtral": {"probs": 0.75, "position": 1.0}}


@contextlib.contextmanager
def everything_f64():
    """Inside, torch.float32 is torch.float64 and .float() is .double(), for transformers' code too."""
    saved = torch.float32, torch.float, torch.Tensor.float, torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    try:
        yield
    finally:
        torch.float32, torch.float, torch.Tensor.float = saved[:3]
        torch.set_default_dtype(saved[3])


def on_disk(config, tensors):
    """The (name, tensor) pairs by the names of files, which have each expert's matrices apart; all are views."""
    out = {}
    for name, t in tensors:
        if config.model_type == "mixtral":
            name = name.replace(".mlp.", ".block_sparse_moe.")
        fused = re.fullmatch(r"(.*\.experts\.)(gate_up|down)_proj", name)
        if not fused:
            out[name] = t
            continue
        gate, up, down = ("w1", "w3", "w2") if config.model_type == "mixtral" else ("gate_proj", "up_proj", "down_proj")
        for e in range(t.shape[0]):
            names = (gate, up) if fused[2] == "gate_up" else (down,)
            for part, n in zip(t[e].chunk(len(names)), names):
                out[f"{fused[1]}{e}.{n}.weight"] = part
    return out


def biases(model):
    """The correction biases of the routers, which are no parameters, layer by layer."""
    return {n: b for n, b in model.named_buffers() if n.endswith("e_score_correction_bias")}


def build(config, weights, dtype):
    """A model with these weights (name on disk -> F32 tensor) in dtype."""
    with everything_f64() if dtype == torch.float64 else contextlib.nullcontext():
        model = transformers.AutoModelForCausalLM.from_config(
            config, attn_implementation="eager", **EXPERTS if config.model_type in ROUTERS else {})
        model = model.to(dtype)
        with torch.no_grad():
            params = on_disk(config, model.named_parameters()) | biases(model)
            assert set(params) == set(weights), set(params) ^ set(weights)
            for name, p in params.items():
                p.copy_(weights[name].to(dtype))
    return model.train()


EXPERTS = dict(experts_implementation="eager")


class Routes(list):
    """Collects (logits [T,E], choices [T,k]) of a model's routers, layer by layer, while it runs. With a policy and a
    factor weights of dropped choices become 0."""

    def __init__(self, model=None, drop=None):
        super().__init__()
        self.drop = drop
        for module in model.modules() if model else []:
            if type(module).__name__.lower().endswith("topkrouter"):
                module.register_forward_hook(self.see)

    def see(self, module, args, out):
        logits, weight, choice = out
        self.append((logits, choice))
        return logits, weight * self.kept(weight, choice, logits.shape[1]) if self.drop else weight, choice

    def capacity(self, pairs, experts):
        return math.ceil(pairs / experts * self.drop[1])

    def kept(self, weight, choice, E):
        """[T,k]: 1, or 0 of what is dropped, by columns of a matrix of tokens and experts."""
        routed = torch.zeros(len(weight), E, dtype=weight.dtype).scatter(1, choice, 1)
        probs = torch.zeros_like(routed).scatter(1, choice, weight.detach())
        n = min(self.capacity(weight.numel(), E), len(weight))
        mask = routed.cumsum(0) <= n
        if self.drop[0] == "probs":
            mask = torch.zeros_like(routed).scatter(0, probs.topk(n, 0)[1], 1)
        return (routed * mask).gather(1, choice)


def router_loss(config, routes, samples):
    """The routers' losses of a microbatch of `samples` samples (dots1: arXiv:2412.19437, sec 2.1.2)."""
    r, total = ROUTERS[config.model_type], 0
    for logits, choice in routes:
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        E, k = logits.shape[1], choice.shape[1]
        s = logits.softmax(1)
        if config.model_type == "dots1":                        # eq. 18: no bias, no groups
            s = logits.sigmoid() / logits.sigmoid().sum(1, keepdim=True)
            choice = s.topk(k, 1)[1]
        parts = samples if r["seq"] else 1
        share = F.one_hot(choice, E).to(s.dtype).sum(1).unflatten(0, (parts, -1)).mean(1) / k
        total = total + r["coeff"] * E * (share * s.unflatten(0, (parts, -1)).mean(1)).sum() / parts
        total = total + r["z"] * (logits.logsumexp(1) ** 2).mean()
    return total


def initial_weights(config, seed):
    """Weights large enough that gradients are healthy everywhere; gains off one, biases off zero."""
    rng = np.random.RandomState(seed)
    model = transformers.AutoModelForCausalLM.from_config(config)
    weights = {}
    for name, p in on_disk(config, model.named_parameters()).items():
        x = rng.standard_normal(tuple(p.shape))
        if "norm" in name or ".ln_" in name:
            x = 0.2 * x + (0.0 if name.endswith("bias") else 1.0)
        elif p.dim() == 1:
            x = 0.3 * x
        elif "embed" in name or "wte" in name or "wpe" in name:
            x = x * (0.6 if config.tie_word_embeddings else 1.0)
        else:
            fan_in = p.shape[0] if "c_attn" in name or "c_proj" in name or "c_fc" in name else p.shape[1]
            x = x * 0.8 / math.sqrt(fan_in)
        weights[name] = torch.tensor(x, dtype=torch.float32)
    for name, b in biases(model).items():
        weights[name] = torch.tensor(0.15 * rng.standard_normal(tuple(b.shape)), dtype=torch.float32)
    return weights


# ------------------------------------------------------------------ the corpus and Megatron's sample order

def make_documents():
    rng = np.random.RandomState(7)
    return [rng.randint(0, VOCAB, n).astype(np.uint16) for n in (41, 3, 77, 18, 1, 96, 29)]


def write_corpus(path, documents):
    """Megatron's .bin and .idx, one sequence a document, u16."""
    lengths = np.array([len(d) for d in documents], np.int32)
    offsets = (np.concatenate([[0], np.cumsum(lengths)[:-1]]) * 2).astype(np.int64)
    with open(path + ".bin", "wb") as f:
        f.write(np.concatenate(documents).tobytes())
    with open(path + ".idx", "wb") as f:
        f.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(documents), len(documents) + 1))
        f.write(lengths.tobytes() + offsets.tobytes() + np.arange(len(documents) + 1, dtype=np.int64).tobytes())


def megatron_samples(documents, samples, seed):
    """GPTDataset's first `samples` samples: [samples, SEQ + 1] token ids."""
    per_epoch = sum(len(d) for d in documents)
    epochs = -(-(samples * SEQ + 1) // per_epoch)
    total = (epochs * per_epoch - 1) // SEQ
    without_last = ((epochs - 1) * per_epoch - 1) // SEQ
    separate = epochs > 1 and samples - without_last < int(0.80 * ((per_epoch - 1) // SEQ))
    rng = np.random.RandomState(seed)
    order = []
    for n in [epochs - 1, 1] if separate else [epochs]:
        part = np.tile(np.arange(len(documents), dtype=np.int32), n)
        rng.shuffle(part)
        order.append(part)
    stream = np.concatenate([documents[d] for d in np.concatenate(order)]).astype(np.int64)
    index = np.arange(total, dtype=np.uint32)
    for part in [index[:without_last], index[without_last:]] if separate else [index]:
        rng.shuffle(part)
    assert separate and epochs > 2, "the corpus should exercise the separate last epoch"
    return np.stack([stream[k * SEQ:k * SEQ + SEQ + 1] for k in index[:samples]])


def learning_rates():
    """The rate that each update uses: Megatron's scheduler stands at the samples consumed before it."""
    rates = []
    for done in range(STEPS):
        if done <= LR["warmup"]:
            rates.append(LR["lr"] * done / LR["warmup"])
        else:
            x = (done - LR["warmup"]) / (LR["decay"] - LR["warmup"])
            rates.append(LR["min_lr"] + (LR["lr"] - LR["min_lr"]) * 0.5 * (1 + math.cos(math.pi * x)))
    megatron = [0, .005, .01, .009657, .008682, .007222, .0055, .003778, .002318, .001343]
    assert np.allclose(rates, megatron, atol=5e-7)
    return rates


# ------------------------------------------------------------------ the second implementation

def second_logits(config, w, tokens, routes):
    """Logits from the formulas of the papers alone; w: name -> tensor, tokens [B, S]. Appends to routes."""
    return second_gpt2(config, w, tokens) if config.model_type == "gpt2" else second_llama(config, w, tokens, routes)


def causal_attention(q, k, v):
    """q [B,A,S,D], k and v [B,K,S,D]; query head h reads key head h // (A/K)."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])
    future = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
    return torch.einsum("bhij,bhjd->bhid", scores.masked_fill(future, -math.inf).softmax(-1), v)


def heads(x, dim):
    return x.unflatten(-1, (-1, dim)).transpose(1, 2)


def second_gpt2(c, w, tokens):
    w = {k.removeprefix("transformer."): v for k, v in w.items()}

    def norm(x, name):
        mean = x.mean(-1, keepdim=True)
        var = ((x - mean) ** 2).mean(-1, keepdim=True)
        return (x - mean) / torch.sqrt(var + c.layer_norm_epsilon) * w[name + ".weight"] + w[name + ".bias"]

    x = w["wte.weight"][tokens] + w["wpe.weight"][:tokens.shape[1]]
    for i in range(c.n_layer):
        p = f"h.{i}."
        qkv = norm(x, p + "ln_1") @ w[p + "attn.c_attn.weight"] + w[p + "attn.c_attn.bias"]
        y = causal_attention(*(heads(t, c.n_embd // c.n_head) for t in qkv.split(c.n_embd, -1)))
        x = x + y.transpose(1, 2).flatten(2) @ w[p + "attn.c_proj.weight"] + w[p + "attn.c_proj.bias"]
        h = norm(x, p + "ln_2") @ w[p + "mlp.c_fc.weight"] + w[p + "mlp.c_fc.bias"]
        a = 0.5 * h * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h ** 3)))
        x = x + a @ w[p + "mlp.c_proj.weight"] + w[p + "mlp.c_proj.bias"]
    return norm(x, "ln_f") @ w["wte.weight"].T


def second_rates(p, positions, dim, length):
    """Radians a position of each pair of columns, and what queries and keys are multiplied by."""
    kind, base, factor = p["rope_type"], p["rope_theta"], p.get("factor", 1)
    if kind == "dynamic" and length > positions:                # NTK-aware: the base grows with the text
        base *= (factor * length / positions - factor + 1) ** (dim / (dim - 2))
    rates = [base ** (-2 * i / dim) for i in range(dim // 2)]
    if kind in ("default", "dynamic"):
        return rates, 1
    if kind == "linear":                                        # arXiv:2306.15595
        return [r / factor for r in rates], 1
    turns = [p["original_max_position_embeddings"] * r / (2 * math.pi) for r in rates]
    if kind == "llama3":
        low, high = p["low_freq_factor"], p["high_freq_factor"]
        keep = [0 if t < low else 1 if t > high else (t - low) / (high - low) for t in turns]
        return [r * k + r / factor * (1 - k) for r, k in zip(rates, keep)], 1
    assert kind == "yarn"                                       # arXiv:2309.00071, the ramp over columns
    def column(n):
        return dim / 2 * math.log(p["original_max_position_embeddings"] / (2 * math.pi * n), base)
    first, last = column(p.get("beta_fast") or 32), column(p.get("beta_slow") or 1)
    if p.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dim - 1)
    last += 0.001 * (first == last)                             # a ramp of no width is a step
    keep = [1 - min(max((i - first) / (last - first), 0), 1) for i in range(dim // 2)]
    grow = p.get("attention_factor") or 1 + math.log(factor) / 10
    return [r * k + r / factor * (1 - k) for r, k in zip(rates, keep)], grow


def second_choice(c, logits, bias):
    """The experts of one token and their weights, from its logits [E]: choices are made on plain numbers."""
    k, s = c.num_experts_per_tok, logits.detach().tolist()
    legal = range(len(s))
    if c.model_type == "dots1":                                 # arXiv:2412.19437, sec 2.1.2
        s = [1 / (1 + math.exp(-x)) + b for x, b in zip(s, bias.tolist())]
        size = len(s) // c.n_group
        groups = [range(g * size, g * size + size) for g in range(c.n_group)]
        groups.sort(key=lambda g: -sum(sorted(s[e] for e in g)[-2:]))
        legal = [e for g in groups[:c.topk_group] for e in g]
    best = sorted(legal, key=lambda e: -s[e])[:k]
    score = logits.sigmoid() if c.model_type == "dots1" else logits.exp() / logits.exp().sum()
    weight = score[best]
    if c.model_type == "mixtral" or c.norm_topk_prob:
        weight = weight / weight.sum()
    return best, weight * getattr(c, "routed_scaling_factor", 1)


def second_drop(routes, chosen, E):
    """The (experts, weights) of all tokens without those that are dropped, pair by pair from the first in line."""
    pairs = [(e, t, u) for t, (best, weight) in enumerate(chosen) for e, u in zip(best, weight)]
    if routes.drop[0] == "probs":
        pairs.sort(key=lambda pair: -pair[2].item())
    taken, kept = [0] * E, [([], []) for _ in chosen]
    for e, t, u in pairs:
        taken[e] += 1
        if taken[e] <= routes.capacity(len(pairs), E):
            kept[t][0].append(e)
            kept[t][1].append(u)
    return kept


def second_experts(c, w, p, x, gated, routes):
    """x [B,S,H] through the experts of the layer with prefix p; gated(x, gate, up, down)."""
    moe, names = (p + "mlp.", ("gate_proj", "up_proj", "down_proj"))
    if c.model_type == "mixtral":
        moe, names = p + "block_sparse_moe.", ("w1", "w3", "w2")
    flat = x.flatten(0, 1)
    logits = flat @ w[moe + "gate.weight"].T
    chosen = [second_choice(c, row, w.get(moe + "gate.e_score_correction_bias")) for row in logits]
    routes.append((logits, torch.tensor([best for best, _ in chosen])))
    if routes.drop:
        chosen = second_drop(routes, chosen, logits.shape[1])
    out = [sum((u * gated(t, *(f"{moe}experts.{e}.{n}" for n in names)) for e, u in zip(best, weight)),
               torch.zeros_like(t)) for t, (best, weight) in zip(flat, chosen)]
    out = torch.stack(out).view_as(x)
    shared = moe + ("shared_experts." if c.model_type == "dots1" else "shared_expert.")
    if shared + "up_proj.weight" in w:
        y = gated(x, *(shared + n for n in names))
        if moe + "shared_expert_gate.weight" in w:
            y = y / (1 + torch.exp(-(x @ w[moe + "shared_expert_gate.weight"].T)))
        out = out + y
    return out


def second_llama(c, w, tokens, routes):
    dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads

    def norm(x, name):
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + c.rms_norm_eps) * w[name + ".weight"]

    def linear(x, name):
        y = x @ w[name + ".weight"].T
        return y + w[name + ".bias"] if name + ".bias" in w else y

    def gated(x, gate, up, down):
        return linear(F.silu(linear(x, gate)) * linear(x, up), down)

    def rotate(x):
        """Feature i of the first half and of the second are a pair, turned by position x rate i."""
        half = dim // 2
        rate, grow = second_rates(c.rope_parameters, c.max_position_embeddings, dim, x.shape[2])
        angle = torch.arange(x.shape[2], dtype=x.dtype)[:, None] * torch.tensor(rate, dtype=x.dtype)
        a, b = grow * x[..., :half], grow * x[..., half:]
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)

    x = w["model.embed_tokens.weight"][tokens]
    for i in range(c.num_hidden_layers):
        p = f"model.layers.{i}."
        h = norm(x, p + "input_layernorm")
        q, k, v = (heads(linear(h, p + f"self_attn.{n}_proj"), dim) for n in "qkv")
        if p + "self_attn.q_norm.weight" in w:
            q, k = norm(q, p + "self_attn.q_norm"), norm(k, p + "self_attn.k_norm")
        y = causal_attention(rotate(q), rotate(k), v)
        x = x + linear(y.transpose(1, 2).flatten(2), p + "self_attn.o_proj")
        h = norm(x, p + "post_attention_layernorm")
        if p + "mlp.up_proj.weight" in w:
            x = x + gated(h, *(p + f"mlp.{n}_proj" for n in ("gate", "up", "down")))
        else:
            x = x + second_experts(c, w, p, h, gated, routes)
    head = "lm_head.weight" if "lm_head.weight" in w else "model.embed_tokens.weight"
    return norm(x, "model.norm") @ w[head].T


# ------------------------------------------------------------------ goldens

def batch_loss(config, x, run):
    """Mean cross-entropy over the tokens of x [B, SEQ + 1], the same with the routers' losses, and logits.
    run(tokens) gives logits and routes."""
    parts, lm, total = [], 0, 0
    micro = MICRO if config.model_type in ROUTERS else len(x)
    for part in x.split(micro):
        logits, routes = run(part[:, :-1])
        loss = F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)).flatten(0, 1),
                               part[:, 1:].flatten())
        lm = lm + loss * (micro / len(x))
        total = total + (loss + (router_loss(config, routes, micro) if routes else 0)) * (micro / len(x))
        parts.append(logits)
    return lm, total, torch.cat(parts)


def loss_and_grads(model, x, autocast=False, drop=None):
    """Mean cross-entropy over the tokens of x [B, SEQ + 1], logits, and name -> gradient, of the routers' losses, too.
    model.pairs: how many pairs each expert of each layer has got."""
    dtype = next(model.parameters()).dtype
    model.zero_grad(set_to_none=True)
    routes = Routes(model, drop)
    model.pairs = [torch.zeros_like(b) for b in biases(model).values()]

    def run(tokens):
        routes.clear()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            logits = model(input_ids=tokens, use_cache=False).logits
        for pairs, (_, choice) in zip(model.pairs, routes):
            pairs += choice.flatten().bincount(minlength=len(pairs))
        return logits, list(routes)

    with everything_f64() if dtype == torch.float64 else contextlib.nullcontext():
        loss, total, logits = batch_loss(model.config, x, run)
        total.backward()
    grads = on_disk(model.config, ((n, p.grad) for n, p in model.named_parameters()))
    return loss.detach(), logits.detach(), grads


def relative(a, b, largest):
    """The measure of tests/model/goldens: max abs difference over the larger of b's max abs and 1e-6 of `largest`."""
    return ((a.double() - b.double()).abs().max() / max(b.double().abs().max().item(), 1e-6 * largest)).item()


def worst(a, b):
    largest = max(t.double().abs().max().item() for t in b.values())
    return max((relative(a[n], b[n], largest), n) for n in b)


def train(config, weights, samples, clip, dtype):
    """Ten AdamW steps: (weights after, losses, gradient norms before the clip)."""
    model = build(config, weights, dtype)
    params = dict(model.named_parameters())
    decay = [p for p in params.values() if p.dim() >= 2]
    rest = [p for p in params.values() if p.dim() == 1]
    opt = torch.optim.AdamW([{"params": decay}, {"params": rest, "weight_decay": 0.0}], lr=0.0, **ADAM)
    losses, norms = [], []
    for step, rate in enumerate(learning_rates()):
        loss, _, grads = loss_and_grads(model, samples[step * BATCH:(step + 1) * BATCH])
        norm = math.sqrt(sum((g.double() ** 2).sum().item() for g in grads.values()))
        for g in grads.values():
            g.mul_(min(1.0, clip / (norm + 1e-6)))
        for group in opt.param_groups:
            group["lr"] = rate
        opt.step()
        for bias, pairs in zip(biases(model).values(), model.pairs):
            bias += BIAS_RATE * torch.sign(pairs.mean() - pairs)
        losses.append(loss.item())
        norms.append(norm)
    return on_disk(config, ((n, p.detach()) for n, p in params.items())) | biases(model), losses, norms


def check_second(config, weights, x, loss, logits, grads, drop=None):
    w = {n: t.double().requires_grad_() for n, t in weights.items()}

    def run(tokens):
        routes = Routes(drop=drop)
        return second_logits(config, w, tokens, routes), routes

    loss2, total, logits2 = batch_loss(config, x, run)
    total.backward()
    error = max(relative(logits2, logits, 0), abs(loss2.item() / loss.item() - 1),
                worst({n: t.grad for n, t in w.items()}, grads)[0])
    assert error < 1e-13, f"transformers and the second implementation differ by {error:.1e}"
    return error


def write_model(directory, family, config, weights):
    """The directory as the world writes it: each family another variant of what importers must read."""
    model = build(config, weights, torch.float32)
    limit = {"mistral": "20KB"}.get(family, "1GB")              # mistral has several files and an index
    model.save_pretrained(directory, max_shard_size=limit)
    generation = os.path.join(directory, "generation_config.json")
    if os.path.exists(generation):
        os.remove(generation)
    path = os.path.join(directory, "config.json")
    with open(path) as f:
        c = json.load(f)
    if family in ("llama", "linear"):                           # config.json as transformers 4 wrote it
        rope = c.pop("rope_parameters")
        c["rope_theta"] = rope["rope_theta"]
        c["rope_scaling"] = {"type": "linear", "factor": rope["factor"]} if "factor" in rope else None
        c["torch_dtype"] = c.pop("dtype")
        del c["head_dim"]
    if family == "gpt2":                                        # gpt2 is as on the Hub: names without prefix, with masks
        w = load_file(os.path.join(directory, "model.safetensors"))
        w = {n.removeprefix("transformer."): t for n, t in w.items()}
        for i in range(config.n_layer):
            w[f"h.{i}.attn.bias"] = torch.ones(config.n_positions, config.n_positions).tril()[None, None]
        save_file(w, os.path.join(directory, "model.safetensors"), metadata={"format": "pt"})
    with open(path, "w") as f:
        json.dump(c, f, indent=2, sort_keys=True)
        f.write("\n")


# Settings of rope_rates.txt, beside base, head size and length of the text: lengths on both sides of the original one,
# heads that turn in part, ramps cut at either end, empty ramps, and the models that are met most.
LLAMA31 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
               original_max_position_embeddings=8192)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)
RATES = [
    (500000.0, 128, 131072, LLAMA31), (500000.0, 64, 131072, dict(LLAMA31, factor=32.0)),
    (10007.0, 24, 9, dict(LLAMA31, low_freq_factor=0.5, high_freq_factor=30.0, original_max_position_embeddings=900)),
    (10007.0, 24, 9, dict(LLAMA31, partial_rotary_factor=0.25, original_max_position_embeddings=40)),
    (10007.0, 16, 99, dict(rope_type="linear", factor=2.5)),
    (10007.0, 20, 99, dict(rope_type="linear", factor=1.0, partial_rotary_factor=0.3)),
    (10007.0, 16, 63, dict(rope_type="dynamic", factor=2.5)), (10007.0, 16, 64, dict(rope_type="dynamic", factor=2.5)),
    (10007.0, 16, 65, dict(rope_type="dynamic", factor=2.5)), (10007.0, 16, 640, dict(rope_type="dynamic", factor=1.0)),
    (10007.0, 16, 900, dict(rope_type="dynamic", factor=8.0, partial_rotary_factor=0.25)),
    (1000000.0, 128, 131072, dict(YARN, original_max_position_embeddings=32768)),
    (10007.0, 32, 99, YARN), (10007.0, 32, 99, dict(YARN, truncate=False)), (10007.0, 32, 99, dict(YARN, factor=1.0)),
    (10007.0, 48, 99, dict(YARN, partial_rotary_factor=0.5, beta_fast=4.0, beta_slow=0.25)),
    (10007.0, 32, 99, dict(YARN, attention_factor=0.75, beta_fast=2.0, beta_slow=2.0)),
    (10007.0, 32, 99, dict(YARN, beta_fast=2.0, beta_slow=2.0, truncate=False)),
    (7.0, 8, 99, dict(YARN, original_max_position_embeddings=65536)),         # a ramp that ends before it starts
]


def make_rates():
    """rope_rates.txt: settings by the trainer's names, the attention factor, radians a position of every pair."""
    ours = dict(rope_type="rope_scaling", factor="rope_scaling_factor", partial_rotary_factor="rotary_percent")
    with open(os.path.join(HERE, "rope_rates.txt"), "w") as f:
        for base, dim, length, rope in RATES:
            config = transformers.LlamaConfig(
                hidden_size=dim, num_attention_heads=1, head_dim=dim, max_position_embeddings=64,
                rope_parameters=dict(rope, rope_theta=base))
            with everything_f64():
                rates, attention = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS[rope["rope_type"]](
                    config, seq_len=length)
            turning = int(dim * rope.get("partial_rotary_factor", 1))
            second, grow = second_rates(rope | {"rope_theta": base}, 64, turning, length)
            assert np.allclose(rates, second, rtol=1e-14, atol=0) and abs(attention - grow) < 1e-15, rope
            settings = {ours.get(k, "rope_" + k): str(v).lower() for k, v in rope.items()}
            if rope["rope_type"] == "dynamic":
                settings["rope_original_max_position_embeddings"] = 64
            f.write(f"length={length} rotary_base={base} kv_channels={dim} " +
                    " ".join(f"{k}={v}" for k, v in settings.items()) +
                    " : " + " ".join(repr(float(x)) for x in [attention, *rates]) + "\n")


def make_capacities(family, config, weights, x):
    for policy, factor in CAPACITIES.get(family, {}).items():
        drop = (policy, factor)
        loss, logits, grads = loss_and_grads(build(config, weights, torch.float64), x, drop=drop)
        error = check_second(config, weights, x, loss, logits, grads, drop)
        out = {"tokens": x[:, :-1].contiguous(), "labels": x[:, 1:].contiguous(), "loss": loss, "logits": logits}
        out |= {"grad." + n: g.contiguous() for n, g in grads.items()}
        save_file(out, os.path.join(HERE, f"{family}.{policy}.safetensors"), metadata={"format": "pt"})
        print(f"{family}, {policy} {factor}: loss {loss:.6f}, second implementation {error:.1e}")


def own_error(config, weights, x, golden, after, samples, clip):
    _, logits64, grads64 = golden
    for label, dtype, autocast in (("fp32", torch.float32, 0), ("bf16 autocast", torch.float32, 1),
                                   ("bf16", torch.bfloat16, 0)):
        _, logits, grads = loss_and_grads(build(config, weights, dtype), x, bool(autocast))
        print(f"  {label}: logits {relative(logits, logits64, 0):.1e}, gradients %.1e (%s)" % worst(grads, grads64))
    got, _, _ = train(config, weights, samples, clip, torch.float32)
    print("  fp32: weights after ten steps %.1e (%s)" % worst(got, after))


def make(family, show_error):
    seed, clip, config = FAMILIES[family]
    documents = make_documents()
    write_corpus(os.path.join(HERE, "corpus"), documents)
    samples = torch.tensor(megatron_samples(documents, STEPS * BATCH, seed))
    weights = initial_weights(config, seed)
    write_model(os.path.join(HERE, family), family, config, weights)
    x = samples[:BATCH]
    loss, logits, grads = loss_and_grads(build(config, weights, torch.float64), x)
    error = check_second(config, weights, x, loss, logits, grads)
    after, losses, norms = train(config, weights, samples, clip, torch.float64)
    assert min(norms) < clip < max(norms), f"some steps should clip and some not: {norms}"
    out = {"tokens": x[:, :-1].contiguous(), "labels": x[:, 1:].contiguous(), "loss": loss, "logits": logits,
           "step.loss": torch.tensor(losses, dtype=torch.float64),
           "step.grad_norm": torch.tensor(norms, dtype=torch.float64),
           "step.lr": torch.tensor(learning_rates(), dtype=torch.float64)}
    out |= {"grad." + n: g.contiguous() for n, g in grads.items()}
    out |= {"after." + n: t.contiguous() for n, t in after.items()}
    path = os.path.join(HERE, family + ".safetensors")
    save_file(out, path, metadata={"format": "pt"})
    print(f"{family}: loss {loss:.6f}, second implementation {error:.1e}, norms {min(norms):.2f} to "
          f"{max(norms):.2f}, losses {losses[0]:.3f} to {losses[-1]:.3f}, {os.path.getsize(path)} bytes")
    make_capacities(family, config, weights, x)
    if show_error:
        own_error(config, weights, x, (loss, logits, grads), after, samples, clip)


if __name__ == "__main__":
    torch.set_num_threads(1)
    names = [a for a in sys.argv[1:] if not a.startswith("-")] or list(FAMILIES)
    make_rates()
    for name in names:
        make(name, "--own-error" in sys.argv)
