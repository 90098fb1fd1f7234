"""Random but legal requests: arrays and options for ``attention``, every feature alone and together.

Values are small multiples of 1/8, so that they are exact in every floating type, and every batch item and head has a spread of
its own, so that a mix-up of two of them shows.
"""

import numpy as np

from mha_core import Dropout

ENDS = (-(2**63), 2**63 - 1)
SEGMENTS = (0, 2**32, 2**53, 2**53 + 1)  # alike in 32 bits, or as float64
CHOICES = ("mask", "bias", "is_causal", "window", "key_lengths", "segments", "scale", "softcap", "sink_logits")


def request(rng: np.random.Generator, dtype: str = "float64", most: int = 6):
    """-> (query, key, value, options)"""
    batch = tuple(rng.integers(1, 3, size=rng.integers(0, 3)).tolist())
    h_kv, group = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    h, n, m = h_kv * group, int(rng.integers(0, most)), int(rng.integers(0, most + 2))
    d_k, d_v = int(rng.integers(0, 5)), int(rng.integers(0, 5))

    def eighths(*shape, spread=16):
        each = rng.integers(1, 4, size=shape[:-2] + (1, 1)) if len(shape) > 2 else 1
        return (rng.integers(-spread, spread + 1, size=shape) * each / 8).astype(dtype)

    query, key, value = eighths(*batch, h, n, d_k), eighths(*batch, h_kv, m, d_k), eighths(*batch, h_kv, m, d_v)
    chosen = set(rng.permutation(CHOICES)[: rng.integers(0, len(CHOICES) + 1)].tolist())
    options = {}
    full = (*batch, h, n, m)

    def broadcast():
        """A shape for a mask or a bias: rank 2 or full, some axes 1."""
        shape = full if rng.random() < 0.6 else full[-2:]
        return tuple(1 if rng.random() < 0.3 else size for size in shape)

    def integer(low, high):
        """A Python int, or one integer per batch item, of any width and now and then as far out as there is."""
        if rng.random() < 0.5:
            return int(rng.integers(low, high))
        if rng.random() < 0.2:
            return np.asarray(rng.choice(ENDS, size=batch))
        kind = rng.choice(["uint8", "int8", "int32", "int64"])
        return np.asarray(rng.integers(max(low, np.iinfo(kind).min), high, size=batch), dtype=kind)

    if "mask" in chosen:
        options["mask"] = rng.random(broadcast()) < 0.6
    if "bias" in chosen:
        bias = eighths(*broadcast()).astype("float64" if rng.random() < 0.3 else dtype)
        options["bias"] = np.where(rng.random(bias.shape) < 0.2, -np.inf, bias).astype(bias.dtype)
    if "is_causal" in chosen:
        options["is_causal"] = True
    if "window" in chosen:
        options["window"] = tuple(None if rng.random() < 0.3 else int(rng.integers(0, most)) for _ in range(2))
    if options.get("is_causal") or any(side is not None for side in options.get("window", ())):
        if n != m or rng.random() < 0.5:
            options["query_offset"] = integer(-most, most + 2)
    if "key_lengths" in chosen:
        options["key_lengths"] = integer(-1, m + 2)
    if "segments" in chosen:
        options["query_segments"] = rng.choice(SEGMENTS, size=(*batch, n))
        options["key_segments"] = rng.choice(SEGMENTS, size=(*batch, m))
    if "scale" in chosen:
        options["scale"] = float(rng.choice([0.0, -0.5, 0.25, 1.0, 2.0]))
    if "softcap" in chosen:
        options["softcap"] = float(rng.choice([0.5, 2.0, 30.0]))
    if "sink_logits" in chosen:
        options["sink_logits"] = np.where(rng.random(h) < 0.2, rng.choice([-np.inf, 1000.0]), eighths(h)).astype(dtype)
    return query, key, value, options


def drop(rng: np.random.Generator, query, key) -> Dropout:
    """A legal ``Dropout`` for query (*b h n d_k), key (*b h_kv m d_k): every form, ends and starts included."""
    *batch, h, n, _ = query.shape
    m = key.shape[-2]
    rate = float(rng.choice([0.0, 0.125, 0.5, 0.9, 1.0, rng.random()]))
    if rng.random() < 0.3:
        shape = (n, m) if rng.random() < 0.4 else (*batch, h, n, m)
        shape = tuple(1 if rng.random() < 0.3 else size for size in shape)
        return Dropout(rate, keep=rng.random(shape) < 0.6)
    seed = int(rng.integers(0, 2**63)) * 2 + int(rng.integers(0, 2)) if rng.random() < 0.7 else int(rng.integers(0, 9))
    if rng.random() < 0.3:
        return Dropout(rate, seed)
    sizes = {"batch_start": int(np.prod(batch)), "head_start": h, "query_start": n, "key_start": m}
    ends = {name: (2**34 if name == "key_start" else 2**32) - max(size, 1) for name, size in sizes.items()}
    return Dropout(rate, seed, **{name: int(rng.choice([0, 1, 5, 2**31, end])) for name, end in ends.items()})
