"""A device that knows nothing but INTERPRETING.md: NumPy and the standard library, no module of this project.

python vector_reader.py DIR [FEATURE ...]   answers every call of DIR, or those of cases that use these features at most
"""

import json
import sys
from pathlib import Path

import numpy as np

FILE = {"float64": "<f8", "float32": "<f4", "float16": "<f2", "bfloat16": "<u2", "int64": "<i8", "bool": "|b1"}


def read(directory, entry):
    """A .npy file by its bytes, in float64 or int64."""
    raw = (directory / entry["file"]).read_bytes()
    assert raw[:8] == b"\x93NUMPY\x01\x00"
    header = int.from_bytes(raw[8:10], "little")
    x = np.frombuffer(raw[10 + header :], FILE[entry["dtype"]]).reshape(entry["shape"])
    if entry["dtype"] == "bfloat16":
        x = (x.astype(np.uint32) << 16).view(np.float32)
    x = x.astype(np.int64 if entry["dtype"] == "int64" else bool if entry["dtype"] == "bool" else np.float64)
    if "values" in entry:
        same = [float.fromhex(v) if isinstance(v, str) else v for v in entry["values"]]
        assert np.array_equal(x.reshape(-1), same, equal_nan=True)
    return x


def write(directory, entry, x):
    with np.errstate(all="ignore"):
        x = x.astype(np.float32 if entry["dtype"] == "bfloat16" else FILE[entry["dtype"]])
    if entry["dtype"] == "bfloat16":
        bits = x.view(np.uint32)
        x = np.where(np.isnan(x), 0x7FC0, (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    assert list(x.shape) == entry["shape"]
    header = f"{{'descr': '{FILE[entry['dtype']]}', 'fortran_order': False, 'shape': {tuple(entry['shape'])}, }}"
    raw = b"\x93NUMPY\x01\x00\x76\x00" + header.ljust(117).encode() + b"\n" + np.ascontiguousarray(x).tobytes()
    (directory / entry["file"]).write_bytes(raw)


def attention(query, key, value, g):
    """(output, weights, lse) by the seven steps; ``g`` is what else is given."""
    n, m, d = query.shape[-2], key.shape[-2], query.shape[-1]
    batch, h = query.shape[:-3], query.shape[-3]
    if h:
        key, value = (np.repeat(x, h // x.shape[-3], axis=-3) for x in (key, value))
    scale = g.get("scale", 1 / np.sqrt(d) if d else 1.0)
    s = scale * np.einsum("...id,...jd->...ij", query, key)
    if "softcap" in g:
        s = g["softcap"] * np.tanh(s / g["softcap"])
    s = s + g.get("bias", 0.0)
    see = visible(g, batch, h, n, m)
    sink = np.broadcast_to(g.get("sink_logits", np.full(h, -np.inf))[:, None, None], (*s.shape[:-1], 1))
    s = np.where(see, s, -np.inf)
    top = np.concatenate([s, sink], axis=-1).max(axis=-1, keepdims=True)
    top = np.where(top == -np.inf, 0.0, top)
    e = np.where(see, np.exp(s - top), 0.0)
    total = e.sum(axis=-1, keepdims=True) + np.exp(sink - top)
    weights = np.where(see, e / np.where(total == 0, 1.0, total), 0.0)
    output = np.zeros((*s.shape[:-1], value.shape[-1]))
    for j in range(m):
        output += np.where(see[..., j, None], weights[..., j, None] * value[..., j, None, :], 0.0)
    return output, weights, (top + np.log(total))[..., 0]


def visible(g, batch, h, n, m):
    see = np.ones((*batch, h, n, m), dtype=bool)
    each = lambda x: np.reshape(x, (*np.shape(x), 1, 1, 1))  # noqa: E731  one number for each batch item
    distance = np.arange(m) - (each(g.get("query_offset", 0)) + np.arange(n)[:, None])
    if "mask" in g:
        see &= g["mask"]
    if "bias" in g:
        see &= g["bias"] != -np.inf
    if g.get("is_causal"):
        see &= distance <= 0
    left, right = g.get("window", (None, None))
    see &= (left is None) | (distance >= -(left or 0))
    see &= (right is None) | (distance <= (right or 0))
    if "key_lengths" in g:
        see &= np.arange(m) < each(g["key_lengths"])
    if "query_segments" in g:
        see &= (g["query_segments"][..., :, None] == g["key_segments"][..., None, :])[..., None, :, :]
    return see


def layer(query, key, value, g):
    q, k, v = (
        np.einsum("...nd,hdk->...hnk", x, g[f"w_{name}"]) + g.get(f"b_{name}", np.zeros(1))[..., None, :]
        for name, x in (("q", query), ("k", key), ("v", value))
    )
    heads, weights, lse = attention(q, k, v, g)
    return np.einsum("...hnv,hvo->...no", heads, g["w_o"]) + g.get("b_o", 0.0), weights, lse


def merge(g):
    parts = [(g[f"output_{p}"], g[f"lse_{p}"]) for p in range(len(g) // 2)]
    top = np.max([part for _, part in parts], axis=0)
    shift = np.where(top == -np.inf, 0.0, top)
    total = sum(np.exp(part - shift) for _, part in parts)
    output = sum(np.exp(part - shift)[..., None] * x for x, part in parts) / np.where(total == 0, 1.0, total)[..., None]
    lse = shift + np.log(total)
    for x, part in parts:
        alone = (part != -np.inf) & (sum(other != -np.inf for _, other in parts) == 1)
        output, lse = np.where(alone[..., None], x, output), np.where(alone, part, lse)
    return {"output": output, "lse": lse}


def answer(directory, call):
    g = {name: read(directory, entry) for name, entry in call["inputs"].items()}
    for name, x in call["options"].items():
        g[name] = float.fromhex(x["hex"]) if isinstance(x, dict) else x
    with np.errstate(all="ignore"):
        if call["target"] == "merge":
            found = merge(g)
        else:
            compute = {"attention": attention, "layer": layer}[call["target"]]
            found = dict(zip(("output", "weights", "lse"), compute(g["query"], g["key"], g["value"], g), strict=True))
    for name, entry in call["outputs"].items():
        write(directory, entry, found[name])


def main(place, *features):
    directory = Path(place)
    for vector in json.loads((directory / "manifest.json").read_text())["vectors"]:
        if not features or set(vector["features"]) <= set(features):
            for call in vector["calls"]:
                answer(directory, call)


if __name__ == "__main__":
    main(*sys.argv[1:])
    if ours := sorted(name for name in sys.modules if name.startswith("mha_")):
        raise SystemExit(f"not independent: {ours}")
