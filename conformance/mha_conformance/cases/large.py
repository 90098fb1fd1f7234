"""Cases of level full: long rows, every length around a tile, wide heads, and all options against all shapes and dtypes, pairwise."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mha_conformance.cases.build import SHAPES, case, operands
from mha_conformance.cases.case import Case, Request
from mha_conformance.cases.inputs import choices, eighths, fractions, integers
from mha_conformance.cases.pairs import pairwise

DTYPES = ("float32", "float64", "float16", "bfloat16")
TAILS = tuple(size + off for size in (32, 64, 128, 256, 512) for off in (-1, 0, 1))
LONG = {
    "2048 by 2048": (2048, 2048, 64),
    "1 by 2048": (1, 2048, 128),
    "2048 by 1": (2048, 1, 64),
    "1023 by 2047": (1023, 2047, 32),
}
HIDING: Mapping[str, tuple[str, ...]] = {
    "nothing": (),
    "mask": ("mask",),
    "bias": ("bias",),
    "causal": ("causal", "offset"),
    "window": ("window", "offset"),
    "causal window": ("causal", "window", "offset"),
    "lengths": ("lengths",),
    "segments": ("segments",),
}
SCORING: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "scale": ("scale",),
    "softcap": ("softcap",),
    "sink": ("sink",),
    "softcap sink": ("softcap", "sink"),
}
ASKED: Mapping[str, tuple[str, ...]] = {"output": (), "lse": ("lse",), "weights": ("weights",)}


def cases() -> Iterator[Case]:
    yield from tails()
    yield from long()
    yield from wide()
    yield from combined()


def tails() -> Iterator[Case]:
    """Every length around a power of two, as keys and as queries; causal, the tile on the diagonal."""
    for at, size in enumerate(TAILS):
        for dtype in ("float32", "bfloat16"):

            def keys(size: int = size, dtype: str = dtype) -> Request:
                return Request(operands(800, dtype, batch=(1,), h=2, n=3, m=size, d=16), dtype)

            yield case("MHA-NUM-6", f"{size} keys", keys, group="numerics", level="full", dtype=dtype)

            def queries(size: int = size, dtype: str = dtype) -> Request:
                return Request(operands(810, dtype, batch=(1,), h=2, n=size, m=33, d=16), dtype)

            yield case("MHA-NUM-6", f"{size} queries", queries, group="numerics", level="full", dtype=dtype)

        def causal(size: int = size) -> Request:
            return Request(
                operands(820, "float32", batch=(1,), h=1, n=size, m=size, d=8), "float32", options={"is_causal": True}
            )

        yield case("MHA-MASK-7", f"causal, {size} by {size}", causal, features=("causal",), level="full")
        n = TAILS[at - 1]

        def shifted(n: int = n, m: int = size) -> Request:
            given = {"is_causal": True, "query_offset": m - n}
            return Request(operands(830, "float32", batch=(1,), h=1, n=n, m=m, d=8), "float32", options=given)

        yield case("MHA-MASK-8", f"causal, {n} by {size}", shifted, features=("causal", "offset"), level="full")

        def windowed(size: int = size) -> Request:
            options = {"window": (32, 31)}
            return Request(operands(840, "float32", batch=(1,), h=1, n=size, m=size, d=8), "float32", options=options)

        yield case("MHA-MASK-10", f"window (32, 31), {size} by {size}", windowed, features=("window",), level="full")

        def short(size: int = size) -> Request:
            lengths = {"key_lengths": np.asarray([size, 1, 520])}
            return Request(operands(850, "float32", batch=(3,), h=1, n=4, m=520, d=8), "float32", arrays=lengths)

        yield case("MHA-MASK-12", f"{size} of 520 keys", short, features=("lengths",), level="full")


def long() -> Iterator[Case]:
    """Rows of two thousand keys: sums that run long, and rescalings by the dozen."""
    for name, (n, m, d) in LONG.items():
        for dtype in DTYPES:

            def plain(n: int = n, m: int = m, d: int = d, dtype: str = dtype) -> Request:
                return Request(operands(860, dtype, batch=(1,), h=1, n=n, m=m, d=d), dtype)

            yield case("MHA-NUM-6", name, plain, group="numerics", level="full", dtype=dtype)

    def rising() -> Request:
        """Every key beats the ones before it: the running maximum moves at each."""
        query, key, value = operands(870, "float32", batch=(1,), h=1, n=64, m=2048, d=16)
        query, key = np.abs(query), np.abs(key)
        key *= np.ldexp(1.0, np.arange(2048) // 256 - 4)[:, None]
        return Request((query, key, value), "float32")

    yield case("MHA-ATTN-13", "a maximum that rises to the end", rising, level="full")

    def late() -> Request:
        mask = np.zeros((40, 2048), dtype=bool)
        mask[np.arange(40), 2047 - 51 * np.arange(40)] = True
        return Request(operands(871, "float32", batch=(1,), h=1, n=40, m=2048, d=16), "float32", arrays={"mask": mask})

    yield case("MHA-MASK-2", "one visible key of 2048, each row another", late, features=("mask",), level="full")

    def empty_start() -> Request:
        mask = np.ones((1, 2048), dtype=bool)
        mask[:, :1900] = False
        return Request(operands(872, "float32", batch=(1,), h=2, n=64, m=2048, d=16), "float32", arrays={"mask": mask})

    yield case("MHA-MASK-2", "the first 1900 keys hidden", empty_start, features=("mask",), level="full")

    def packed() -> Request:
        segments = np.sort(integers(873, (1024,), 0, 9))[None]
        arrays = {"query_segments": segments, "key_segments": segments}
        return Request(operands(874, "float32", batch=(1,), h=1, n=1024, m=1024, d=16), "float32", arrays=arrays)

    yield case("MHA-MASK-13", "nine documents in 1024 tokens", packed, features=("segments",), level="full")

    def lse() -> Request:
        return Request(operands(875, "float32", batch=(1,), h=1, n=33, m=2047, d=32), "float32", options={"return_lse": True})

    yield case("MHA-AUX-4", "lse over 2047 keys", lse, features=("lse",), level="full")


def wide() -> Iterator[Case]:
    for d in (1, 2, 31, 80, 96, 128, 192, 255, 256):
        for dtype in ("float32", "float16"):

            def channels(d: int = d, dtype: str = dtype) -> Request:
                return Request(operands(880, dtype, batch=(1,), h=2, n=33, m=65, d=d), dtype)

            yield case("MHA-NUM-6", f"d = {d}", channels, group="numerics", level="full", dtype=dtype)
    for d, d_v in ((192, 128), (64, 256), (256, 64), (576, 512)):

        def unlike(d: int = d, d_v: int = d_v) -> Request:
            return Request(operands(890, "float32", batch=(1,), h=1, n=17, m=33, d=d, d_v=d_v), "float32")

        yield case("MHA-ATTN-7", f"d_k = {d}, d_v = {d_v}", unlike, features=("d_v",), level="full")
    for h, h_kv in ((32, 8), (64, 1), (48, 48)):

        def many(h: int = h, h_kv: int = h_kv) -> Request:
            return Request(operands(895, "float32", batch=(1,), h=h, h_kv=h_kv, n=9, m=33, d=16), "float32")

        yield case("MHA-HEAD-2", f"{h_kv} of {h} heads", many, features=("grouped",) if h != h_kv else (), level="full")


def combined() -> Iterator[Case]:
    """Every two of shape, dtype, way of hiding, way of scoring and layout together; and of heads and what is asked for beside.

    Two families, because blame needs clauses that build on all that their cases use: MHA-ATTN-9 on the options, MHA-AUX-3 on
    groups and results.
    """
    shapes, layouts = tuple(SHAPES), ("contiguous", "transposed", "heads inside positions", "padded")
    options = {"shape": shapes, "dtype": DTYPES, "hiding": tuple(HIDING), "scoring": tuple(SCORING), "layout": layouts}
    results = {
        "shape": shapes, "dtype": DTYPES, "hiding": ("nothing", "mask", "bias"), "asked": tuple(ASKED), "heads": ("alike", "grouped"),
        "layout": layouts,
    }  # fmt: skip
    for clause, axes, seed in (("MHA-ATTN-9", options, 900), ("MHA-AUX-3", results, 4000)):
        for at, row in enumerate(pairwise(axes)):
            used = (*HIDING[row["hiding"]], *SCORING[row.get("scoring", "default")], *ASKED[row.get("asked", "output")])
            grouped = ("grouped",) if row.get("heads") == "grouped" else ()

            def make(row: Mapping[str, str] = row, seed: int = seed + 20 * at) -> Request:
                return combination(seed, **row)

            name = ", ".join(row[axis] for axis in axes if axis != "dtype")
            features = tuple(dict.fromkeys((*used, *grouped)))
            yield case(clause, f"pair {at}: {name}", make, features=features, level="full", dtype=row["dtype"])


def combination(
    seed: int,
    shape: str,
    dtype: str,
    hiding: str,
    layout: str,
    scoring: str = "default",
    asked: str = "output",
    heads: str = "alike",
) -> Request:
    """One request of the pairwise family. Every row sees a key, so that no rule of empty rows is asked beside."""
    sizes = dict(SHAPES[shape])
    if heads == "grouped":
        sizes |= {"h": 2 * sizes["h"], "h_kv": sizes["h"]}
    q, k, v = operands(seed, dtype, **sizes)
    batch, h, n, m = sizes["batch"], sizes["h"], sizes["n"], sizes["m"]
    arrays: dict[str, Any] = {}
    options: dict[str, Any] = {}
    seen = choices(seed + 4, (n, m), 0.6)
    seen[:, 0] = True
    if hiding == "mask":
        arrays["mask"] = seen
    elif hiding == "bias":
        arrays["bias"] = np.where(seen, fractions(seed + 5, (n, m), dtype), -np.inf)
    elif hiding == "lengths":
        arrays["key_lengths"] = 1 + (np.arange(int(np.prod(batch))).reshape(batch) * 5 + m - 1) % m
    elif hiding == "segments":
        arrays["query_segments"] = np.broadcast_to(np.arange(n) % 2, (*batch, n)).copy()
        arrays["key_segments"] = np.broadcast_to(np.arange(m) % min(2, m) if m > 1 else np.zeros(m, int), (*batch, m)).copy()
        if m == 1:
            arrays["query_segments"][...] = 0
    elif hiding != "nothing":
        options |= {"query_offset": max(m - n, 0)}
        options |= {"is_causal": True} if "causal" in hiding else {}
        options |= {"window": (max(9, n - m + 1), 2)} if "window" in hiding else {}
    if "scale" in scoring:
        options["scale"] = 0.3
    if "softcap" in scoring:
        options["softcap"] = 2.0
    if "sink" in scoring:
        arrays["sink_logits"] = eighths(seed + 6, (h,))
    if asked != "output":
        options[f"return_{asked}"] = True
    return Request((q, k, v), dtype, arrays=arrays, options=options, layout=layout)
