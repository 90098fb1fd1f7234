"""Cases of every option over more than one tile of keys, with an odd tail: an option that is right in one tile can be wrong in two."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from mha_conformance.cases.build import case, operands
from mha_conformance.cases.case import Case, Level, Request
from mha_conformance.cases.codes import coded
from mha_conformance.cases.options import CLAUSE, OPTIONS, features, request

SIZES: tuple[tuple[int, int, Level], ...] = (
    (5, 131, "core"), (2, 259, "core"), (67, 131, "full"), (131, 67, "full"), (3, 515, "full"),
)  # fmt: skip
"""(n, m, level): more than two tiles of 64 keys, and of 128; each leaves a rest in every common tile."""
BOTH = {"return_weights": True, "return_lse": True}


def cases() -> Iterator[Case]:
    for (n, m, level), name in product(SIZES, OPTIONS):

        def long(n: int = n, m: int = m, name: str = name) -> Request:
            return request((name,), batch=(2,), h=2, n=n, m=m, seed=130)

        yield case(CLAUSE[name], f"{name} over tiles, n = {n}, m = {m}", long, features=features(name), level=level)
    for name in OPTIONS:

        def asked(name: str = name) -> Request:
            found = request((name,), batch=(2,), h=1, n=5, m=131, d=2, seed=131)
            return replace(found, options={**found.options, **BOTH})

        used = (*features(name), "weights", "lse")
        yield case("MHA-AUX-3", f"{name} over tiles with weights and lse", asked, features=used)

        def again(name: str = name) -> tuple[Request, ...]:
            return (request((name,), batch=(2,), h=2, n=5, m=131, seed=132),) * 3

        yield case(
            "MHA-EXEC-8", f"the same bits again, {name} over tiles", again, features=features(name), rule="same bits", group="determinism",
            beside=(CLAUSE[name],),
        )  # fmt: skip
    yield from low_biases()
    yield from maxima()


def low_biases() -> Iterator[Case]:
    """MASK-6: rows of one very low bias, whose keys still count one by one, in however many parts they are read."""
    lowest = float(np.finfo(np.float32).min)
    for (name, low, kind), m in product(
        (("-1e9", -1e9, "float32"), ("lowest float32", lowest, "float32"), ("-1e300 in float64", -1e300, "float64")), (131, 259)
    ):

        def row(low: float = low, kind: str = kind, m: int = m) -> tuple[Request, ...]:
            bias = np.full((3, m), low).astype(kind).astype(float)
            plain = Request(coded(3, m), "float32", arrays={"bias": np.zeros((3, m))})
            return plain, replace(plain, arrays={"bias": bias}, dtypes={"bias": kind})

        yield case("MHA-MASK-6", f"{m} keys of {name}", row, features=("bias",), rule="as first")
    for m in (7, 131):

        def asked(m: int = m) -> Request:
            return Request(coded(3, m), "float32", arrays={"bias": np.full((1, m), -(2.0**30))}, options=BOTH)

        yield case("MHA-AUX-3", f"{m} keys of -2^30 with weights and lse", asked, features=("bias", "weights", "lse"))


def maxima() -> Iterator[Case]:
    """AUX-4 and 6: the lse where the maximum comes early or late, and where it is the sink's or is not."""
    for sign, name in ((1, "last"), (-1, "first")):

        def rising(sign: int = sign) -> Request:
            query, key, value = operands(144, "float32", batch=(1,), h=1, n=2, m=131, d=2)
            key = np.abs(key) * np.ldexp(1.0, np.arange(131) // 32 - 2)[::sign, None]
            return Request((np.abs(query), key, value), "float32", options={"return_lse": True})

        yield case("MHA-AUX-4", f"lse, a maximum in the {name} tile", rising, features=("lse",))
    for sink in (-3.0, 0.0, 3.0):

        def sunk(sink: float = sink) -> Request:
            parts = operands(145, "float32", batch=(1,), h=1, n=3, m=3, d=2)
            return Request(parts, "float32", arrays={"sink_logits": np.asarray([sink])}, options={"return_lse": True})

        yield case("MHA-AUX-6", f"lse with a sink of {sink:g}", sunk, features=("sink", "lse"))
