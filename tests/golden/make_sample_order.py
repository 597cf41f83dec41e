"""Golden sample orders for tests/corpus/test_data.c -> sample_order.txt beside this file. Needs numpy only.

An implementation of its own: the random stream is numpy's RandomState itself, and sample starts are found
by searching the running sum of document lengths instead of walking it.

    python3 tests/golden/make_sample_order.py
"""
import math
import os

import numpy as np

MASK = (1 << 64) - 1


def fnv(data):
    h = 1469598103934665603
    for byte in data:
        h = (h ^ byte) * 1099511628211 & MASK
    return h


def lengths(n, low, high, empty_every, state):
    out = []
    for i in range(n):
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        out.append(0 if empty_every and i % empty_every == 0 else low + (state >> 8) % (high - low + 1))
    return np.array(out, dtype=np.int64)


def token(row, at):
    return (row * 7919 + at * 31) % 50257


def window(split, which, n):
    share = np.array(split, dtype=np.float64)
    share = (share / np.sum(share)).tolist()
    edges = [0.0]
    for x in share:
        edges.append(edges[-1] + x)
    return round(edges[which] * float(n)), round(edges[which + 1] * float(n))


def order(size, beg, end, wanted, seq, seed):
    rows = np.arange(beg, end)
    per_epoch = int(size[beg:end].sum())
    epochs = 1
    while wanted is not None and epochs * per_epoch < wanted * seq + 1:
        epochs += 1
    separate, sans = False, 0
    if epochs > 1:
        sans = ((epochs - 1) * per_epoch - 1) // seq
        separate = wanted - sans < int(0.80 * ((per_epoch - 1) // seq))
    rng = np.random.RandomState(seed)

    def shuffled(a):
        rng.shuffle(a)
        return a

    if separate:
        document = np.concatenate([shuffled(np.tile(rows, epochs - 1).astype(np.int32)),
                                   shuffled(rows.astype(np.int32))])
    else:
        document = shuffled(np.tile(rows, epochs).astype(np.int32))
    samples = (epochs * per_epoch - 1) // seq
    ends = np.cumsum(size[document])
    starts = np.arange(samples + 1, dtype=np.int64) * seq
    doc = np.searchsorted(ends, starts, side="right")
    sample = np.stack([doc, starts - (ends - size[document])[doc]], axis=1).astype(np.int32)
    if separate:
        shuffle = np.concatenate([shuffled(np.arange(0, sans, dtype=np.uint32)),
                                  shuffled(np.arange(sans, samples, dtype=np.uint32))])
    else:
        shuffle = shuffled(np.arange(samples, dtype=np.uint32))
    return epochs, separate, document, sample, shuffle


def text(size, document, sample, shuffle, seq, k):
    doc, at = (int(x) for x in sample[shuffle[k]])
    out = []
    while len(out) <= seq:
        row = int(document[doc])
        while at < size[row] and len(out) <= seq:
            out.append(token(row, at))
            at += 1
        doc, at = doc + 1, 0
    return np.array(out, dtype=np.int32)


# fields: name, documents, shortest, longest, every n-th is empty, state, split, which split, samples wanted, seq, seed
CASES = [
    ("one-epoch", 1000, 1, 200, 0, 1, (969, 30, 1), 0, 500, 64, 1234),
    ("last-epoch-apart", 700, 1, 300, 0, 2, (969, 30, 1), 0, 1720, 128, 1234),
    ("last-epoch-within", 700, 1, 300, 0, 2, (969, 30, 1), 0, 2250, 128, 1234),
    ("thirteen-epochs", 37, 5, 90, 0, 3, (1, 0, 0), 0, 1380, 16, 0),
    ("long-documents-validation", 400, 0, 5000, 7, 4, (90, 9, 1), 1, 900, 96, 4294967295),
    ("200k-samples", 20000, 1, 1000, 5, 5, (969, 30, 1), 0, 190000, 76, 42),
    ("last-epoch-just-apart", 700, 1, 300, 0, 2, (969, 30, 1), 0, 2138, 128, 1234),
    ("last-epoch-just-within", 700, 1, 300, 0, 2, (969, 30, 1), 0, 2139, 128, 1234),
    ("two-documents", 2, 30, 60, 0, 6, (1, 0, 0), 0, 5, 8, 1),
    ("130-documents", 130, 5, 90, 0, 7, (1, 0, 0), 0, 300, 16, 2),
]

# fields: name, weights (None: by size), samples wanted, samples of each corpus (for weights None)
BLENDS = [
    ("two", [0.3, 0.7], 1000, None),
    ("ten", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 4321, None),
    ("many", [1 + (i * i) % 17 / 7 for i in range(300)], 5000, None),
    ("by-size", None, 700, [123, 456, 789]),
    ("by-size-all", None, 1368, [123, 456, 789]),
]


def blend(weights, wanted, has):
    """which[], nth[] and what each corpus is asked to build, in upstream's order of roundings."""
    if weights is None:
        w = np.array(has, dtype=np.float64)
        size, built = min(wanted, sum(has)), list(has)
    else:
        w = np.array(weights, dtype=np.float64)
        w = w / np.sum(w)
        size = sum(math.ceil(wanted * x) for x in w.tolist())
        built = [math.ceil(math.ceil(wanted * x) * (1 + 0.005)) for x in w.tolist()]
    w = w / np.sum(w)
    used = np.zeros(len(w))
    which, nth = [], []
    for k in range(size):
        lag = w * max(float(k), 1.0) - used
        if weights is None:
            lag[used >= np.array(has)] = -np.inf
        i = int(np.argmax(lag))
        which.append(i)
        nth.append(int(used[i]))
        used[i] += 1
    return size, built, np.array(which, dtype=np.int16), np.array(nth, dtype=np.uint32)


def main():
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sample_order.txt")
    with open(path, "w") as f:
        f.write("# made by make_sample_order.py; hashes are FNV-1a of the little-endian arrays\n")
        for name, n, low, high, empty, state, split, which, wanted, seq, seed in CASES:
            size = lengths(n, low, high, empty, state)
            beg, end = window(split, which, n)
            epochs, separate, document, sample, shuffle = order(size, beg, end, wanted, seq, seed)
            samples = len(shuffle)
            tokens = b"".join(text(size, document, sample, shuffle, seq, k).tobytes()
                              for k in (0, 1, samples // 2, samples - 1))
            f.write(f"order {name} {n} {low} {high} {empty} {state} {','.join(map(str, split))} {which} {wanted} {seq} "
                    f"{seed} {epochs} {int(separate)} {len(document)} {samples} "
                    f"{fnv(document.tobytes()):016x} {fnv(sample.tobytes()):016x} {fnv(shuffle.tobytes()):016x} "
                    f"{fnv(tokens):016x} {document[0]} {document[-1]} {sample[1][0]} {sample[1][1]} {sample[-1][0]} "
                    f"{sample[-1][1]} {shuffle[0]} {shuffle[-1]}\n")
        for name, weights, wanted, has in BLENDS:
            size, built, which, nth = blend(weights, wanted, has)
            given = has if weights is None else [repr(float(x)) for x in weights]
            f.write(f"blend {name} {'size' if weights is None else 'weight'} {len(given)} "
                    f"{','.join(map(str, given))} {wanted} {size} {sum(built)} {fnv(which.tobytes()):016x} "
                    f"{fnv(nth.tobytes()):016x}\n")


if __name__ == "__main__":
    main()
