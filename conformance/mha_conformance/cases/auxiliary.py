"""Cases of AUX: weights, lse, and merging the parts of a split key axis."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from mha_conformance.cases.build import BASE, ONE, case, operands
from mha_conformance.cases.case import Case, Request
from mha_conformance.cases.features import describing
from mha_conformance.cases.inputs import choices, eighths, fractions

WEIGHTS, LSE = {"return_weights": True}, {"return_lse": True}


def cases() -> Iterator[Case]:
    query, key, value = operands(400, "float32", **ONE)
    n, m, h = ONE["n"], ONE["m"], ONE["h"]
    row = choices(401, (n, m), 0.6)
    row[2], row[:2, 0] = False, True

    yield case(
        "MHA-AUX-1",
        "weights",
        lambda: Request((query, key, value), "float32", options=WEIGHTS),
        features=("weights",),
        level="smoke",
    )
    for flags in ({}, WEIGHTS, LSE, {**WEIGHTS, **LSE}):
        named = tuple(name.removeprefix("return_") for name in flags)
        yield case(
            "MHA-AUX-11", f"the result with {' and '.join(named) or 'nothing beside'}",
            lambda flags=flags: Request((query, key, value), "float32", options=flags), features=named, rule="facts",
            group="contract", level="smoke", beside=describing(named),
        )  # fmt: skip
    for h_kv in (2,):
        for clause, flags, feature in (("MHA-AUX-1", WEIGHTS, "weights"), ("MHA-AUX-5", LSE, "lse")):

            def grouped(h_kv: int = h_kv, flags: Any = flags) -> Request:
                return Request(operands(402, "float32", h=4, h_kv=h_kv, n=1), "float32", options=flags)

            yield case(clause, f"{feature}, {h_kv} of 4 heads, one query", grouped, features=(feature, "grouped"))

    def hidden_weights() -> Request:
        return Request((query, key, value), "float32", arrays={"mask": row}, options=WEIGHTS)

    yield case("MHA-AUX-2", "weights of hidden keys", hidden_weights, features=("weights", "mask"), level="smoke")

    def nan_row() -> Request:
        spoiled = query.copy()
        spoiled[0, 0, 1, 0] = np.nan
        return Request((spoiled, key, value), "float32", arrays={"mask": row}, options=WEIGHTS)

    yield case("MHA-AUX-2", "weights in a NaN row", nan_row, features=("weights", "mask"), group="strict")

    causal = {"is_causal": True}
    for name, flags in (("weights", WEIGHTS), ("lse", LSE)):

        def asked(flags: Any = flags) -> Request:
            return Request((query, key, value), "float32", options={**causal, **flags})

        yield case("MHA-AUX-3", f"causal with {name}", asked, features=("causal", name), level="smoke")

        def masked(flags: Any = flags) -> Request:
            return Request((query, key, value), "float32", arrays={"mask": row}, options=flags)

        yield case("MHA-AUX-3", f"mask with {name}", masked, features=("mask", name))
    for spread, name in ((1.0, "ordinary"), (256.0, "large")):

        def lse(spread: float = spread) -> Request:
            return Request((query * spread, key, value), "float32", options=LSE)

        yield case("MHA-AUX-4", f"lse of {name} scores", lse, features=("lse",), level="smoke" if spread == 1 else "core")

    def negative() -> Request:
        return Request((np.abs(query) * 64, -np.abs(key), value), "float32", options=LSE)

    yield case("MHA-AUX-4", "lse of very negative scores", negative, features=("lse",))

    def sunk() -> Request:
        return Request((query, key, value), "float32", arrays={"sink_logits": eighths(403, (h,))}, options=LSE)

    yield case("MHA-AUX-6", "lse with sinks", sunk, features=("lse", "sink"), level="smoke")

    for dtype in ("float32", "float64", "float16", "bfloat16"):

        def typed(dtype: str = dtype) -> Request:
            return Request(operands(404, dtype, **BASE), dtype, options=LSE)

        yield case("MHA-AUX-5", "lse in float32 or float64", typed, features=("lse",), rule="facts", group="contract", dtype=dtype,
                   level="smoke" if dtype == "float16" else "core")  # fmt: skip

    def empty() -> Request:
        return Request((query, key, value), "float32", arrays={"mask": np.zeros((n, m), dtype=bool)}, options=LSE)

    yield case("MHA-MASK-15", "lse of empty rows", empty, features=("lse", "mask"), beside=describing(("lse",)))

    def shifted() -> Request:
        return Request((query, key, value), "float32", arrays={"bias": np.full((n, 1), 5.0)}, options=LSE)

    yield case("MHA-AUX-13", "a constant bias moves the lse", shifted, features=("lse", "bias"), level="smoke")
    yield from merging()


def merging() -> Iterator[Case]:
    """AUX-7 to 10: the merge is a request of its own, on (output, lse) pairs."""
    o = [fractions(410 + p, (2, 3, 5, 4), "float32") for p in range(3)]
    lse = [4 * fractions(420 + p, (2, 3, 5), "float32") for p in range(3)]
    nothing = np.zeros_like(o[0]), np.full_like(lse[0], -np.inf)

    def merge(*parts: Any) -> Request:
        return Request(tuple(x for part in parts for x in part), "float32", target="merge")

    parts = list(zip(o, lse, strict=True))
    far = (o[1], (lse[1] + 512).astype(np.float32).astype(float))
    partly = (o[2], np.where(choices(430, lse[2].shape, 0.5), -np.inf, lse[2]))
    merges: dict[str, tuple[str, tuple[Any, ...], str]] = {
        "two parts": ("MHA-AUX-7", (merge(*parts[:2]),), "bound"),
        "three parts": ("MHA-AUX-7", (merge(*parts),), "bound"),
        "parts far apart": ("MHA-AUX-7", (merge(parts[0], far),), "bound"),
        "partly empty parts": ("MHA-AUX-7", (merge(parts[0], partly),), "bound"),
        "an empty part": ("MHA-AUX-8", (merge(parts[0]), merge(parts[0], nothing), merge(nothing, parts[0])), "same bits"),
        "only empty parts": ("MHA-AUX-8", (merge(nothing, nothing),), "bound"),
        "two parts in either order": ("MHA-AUX-9", (merge(*parts[:2]), merge(*parts[1::-1])), "same bits"),
        "three parts in another order": ("MHA-AUX-9", (merge(*parts), merge(*parts[::-1])), "agree"),
        "a sink": ("MHA-AUX-10", (merge(parts[0], (np.zeros_like(o[0]), np.zeros_like(lse[0]) + 0.5)),), "bound"),
    }
    for name, (clause, requests, rule) in merges.items():
        yield case(
            clause, name, lambda requests=requests: requests, features=("lse",), rule=rule,  # type: ignore[arg-type]
            level="smoke" if name in ("two parts", "an empty part", "two parts in either order", "a sink") else "core",
        )  # fmt: skip
