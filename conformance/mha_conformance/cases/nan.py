"""Cases of MASK: NaN goes where it is seen, and nowhere else; in every operand, in a bias, in the first tile and in the last."""

from collections.abc import Iterator
from itertools import product

import numpy as np

from mha_conformance.cases.build import case, operands
from mha_conformance.cases.calls import visible_pairs
from mha_conformance.cases.case import Case, Request
from mha_conformance.cases.codes import coded
from mha_conformance.cases.features import describing
from mha_conformance.cases.hiders import ALIGNED, HIDERS, Hider

PLACES = (2, 70, 130)
"""Keys in the first, in a middle and in the last tile of 131."""


def cases() -> Iterator[Case]:
    n, m = 5, 7
    for name, hider in {**HIDERS, **ALIGNED}.items():
        for at, where in enumerate(("query", "key", "value")):

            def spoiled(at: int = at, hider: Hider = hider) -> Request:
                parts = operands(260, "float32", batch=(2,), h=2, n=n, m=hider.m, d=4)
                parts[at][0, 1, 2, 1] = np.nan
                return Request(parts, "float32", arrays=hider.arrays, options=hider.options)

            yield case(
                "MHA-MASK-21" if where == "value" else "MHA-MASK-20", f"NaN in a {where}, {name}", spoiled, features=hider.features,
                group="strict" if where != "query" else "semantics", level="smoke" if name == "mask" else "core",
                beside=describing(hider.features),
            )  # fmt: skip

    def sink() -> Request:
        mask = np.ones((n, m), dtype=bool)
        mask[2] = False
        return Request(coded(n, m, h=2), "float32", arrays={"mask": mask, "sink_logits": np.asarray([np.nan, 0.0])})

    yield case("MHA-MASK-22", "a NaN sink", sink, features=("mask", "sink"), group="strict", level="smoke")
    yield from seen_in_a_tile()
    yield from seen_biases()


def seen_in_a_tile() -> Iterator[Case]:
    """MASK-20 and 21: a key or a value of any tile, and a value whose whole tile has weights that underflow to 0."""
    for j, where in product(PLACES, ("key", "value", "value of weight 0")):

        def spoiled(j: int = j, where: str = where) -> Request:
            query, key, value = operands(262, "float32", batch=(2,), h=2, n=3, m=131, d=4)
            if where == "value of weight 0":
                query[..., 3] = 8.0
                key[..., j // 64 * 64 : j // 64 * 64 + 64, 3] = -8192.0
            (key if where == "key" else value)[1, 0, j, 1] = np.nan
            return Request((query, key, value), "float32")

        yield case("MHA-MASK-20" if where == "key" else "MHA-MASK-21", f"NaN in a {where}, key {j} of 131", spoiled)


def seen_biases() -> Iterator[Case]:
    """MASK-20: a NaN in the bias of a pair that is seen: of one pair or of a whole column, in every way of hiding others."""
    for m, j in ((2, 1), (7, 0), (7, 6), *((131, place) for place in PLACES)):

        def one(m: int = m, j: int = j) -> Request:
            bias = np.zeros((3, m))
            bias[1, j] = np.nan
            return Request(operands(263, "float32", batch=(1,), h=1, n=3, m=m, d=4), "float32", arrays={"bias": bias})

        yield case("MHA-MASK-20", f"NaN in the bias of key {j} of {m}", one, features=("bias",))

    def column() -> Request:
        bias = np.asarray([0.0, np.nan, 0.0]) * np.ones((2, 1, 1, 1))
        bias[0] = 0.5
        parts = operands(264, "float32", batch=(2,), h=2, n=2, m=3, d=2)
        return Request(parts, "float32", arrays={"bias": bias}, dtypes={"bias": "float64"})

    yield case("MHA-MASK-20", "NaN in a float64 bias of one item, for all its rows", column, features=("bias",))
    for name, hider in {**HIDERS, **ALIGNED}.items():
        if "bias" in hider.features:
            continue

        def seen(hider: Hider = hider) -> Request:
            parts = operands(265, "float32", batch=(2,), h=2, n=5, m=hider.m, d=4)
            plain = Request(parts, "float32", arrays=hider.arrays, options=hider.options)
            bias = np.zeros((2, 1, 5, hider.m))
            bias[1, 0, 3, np.flatnonzero(visible_pairs(plain)[1, 0, 3])[-1]] = np.nan
            return Request(parts, "float32", arrays={**hider.arrays, "bias": bias}, options=hider.options)

        used = (*hider.features, "bias")
        yield case(
            "MHA-MASK-20", f"NaN in a visible bias, {name}", seen, features=used, level="full" if name in ALIGNED else "core",
            beside=describing(used) | {"MHA-MASK-14"},
        )  # fmt: skip
