#!/usr/bin/env python3
"""Loads directories that `train export` wrote with transformers and compares their logits with the golden ones:

    check_export.py [TRAIN]        imports and exports each family with TRAIN (default ./train) first

For developers: needs scripts/torch_setup. What continuous integration checks instead is in tests/model/goldens: the
exported tensors are byte for byte those of the directory that transformers wrote, and computed the goldens from."""

import os, subprocess, sys, tempfile

import torch
import transformers
from safetensors.torch import load_file

from make_goldens import FAMILIES, HERE, biases, build, everything_f64, on_disk, relative

TOLERANCE = 1e-13


def check(train, family, folder):
    start, out = os.path.join(folder, "start"), os.path.join(folder, "out")
    subprocess.run([train, "import", os.path.join(HERE, family), "-o", start], check=True)
    subprocess.run([train, "export", start, "-o", out], check=True)
    golden = load_file(os.path.join(HERE, family + ".safetensors"))
    loaded, report = transformers.AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
    weights = on_disk(loaded.config, ((n, p.detach()) for n, p in loaded.named_parameters())) | biases(loaded)
    model = build(loaded.config, weights, torch.float64)
    with everything_f64():
        logits = model(input_ids=golden["tokens"], use_cache=False).logits.detach()
    left = {k: v for k, v in report.items() if v}
    error = relative(logits, golden["logits"], 0)
    print(f"{family}: {type(model).__name__}, logits {error:.1e}", left or "")
    return error <= TOLERANCE and not left


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    program = sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, "..", "..", "train")
    ok = True
    for name in FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            ok &= check(program, name, folder)
    sys.exit(not ok)
