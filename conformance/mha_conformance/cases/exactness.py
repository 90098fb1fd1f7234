"""Cases of NUM: each dtype keeps what it promises, and a coarser arithmetic shows."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mha_conformance.cases.build import case, operands, over_shapes
from mha_conformance.cases.case import Case, Level, Request
from mha_conformance.cases.features import DTYPE_BY
from mha_conformance.cases.inputs import fractions
from mha_conformance.cases.layer import projections

DTYPES = ("float32", "float64", "float16", "bfloat16")


def cases() -> Iterator[Case]:
    for dtype in DTYPES:
        for name, make in over_shapes(740, dtype):
            level: Level = "smoke" if (name, dtype) == ("distinct", "float32") else "core"
            yield case(
                "MHA-NUM-6",
                name,
                lambda make=make, dtype=dtype: Request(make(), dtype),
                group="numerics",
                dtype=dtype,
                level=level,
            )
    for dtype in DTYPES:
        for name, sizes in (("few keys", {"n": 5, "m": 7, "d": 4}), ("many keys", {"n": 9, "m": 300, "d": 64})):

            def kept(dtype: str = dtype, sizes: Mapping[str, Any] = sizes) -> Request:
                return Request(operands(700, dtype, **sizes), dtype)

            clause = {"float64": "MHA-NUM-2", "float32": "MHA-NUM-11"}.get(dtype, "MHA-NUM-3")
            yield case(clause, name, kept, group="numerics", dtype=dtype, level="smoke" if name == "few keys" else "core")

    def beyond_half() -> Request:
        query, key, value = operands(710, "float16", n=5, m=7, d=64)
        query, key = (x.astype(np.float16).astype(float) for x in (np.abs(query) * 64 + 32, np.sign(key) * 32 + key))
        return Request((query, key, value), "float16")

    yield case("MHA-NUM-10", "products beyond the half range", beyond_half, group="numerics", dtype="float16", level="smoke")

    def small_values() -> Request:
        query, key, value = operands(720, "bfloat16", n=16, m=96, d=32)
        return Request((query, key, value * 2.0**-7), "bfloat16")

    yield case("MHA-NUM-6", "small values", small_values, group="numerics", dtype="bfloat16")

    def beside_the_output() -> Request:
        return Request(
            operands(730, "float32", n=9, m=65, d=16), "float32", options={"return_weights": True, "return_lse": True}
        )

    yield case(
        "MHA-NUM-7", "lse", beside_the_output, group="numerics", features=("weights", "lse"), level="smoke",
        beside=("MHA-AUX-1",),
    )  # fmt: skip
    for dtype in DTYPES:
        yield from long_sums(dtype)


def long_sums(dtype: str) -> Iterator[Case]:
    """NUM-7, 8, 9 and 13 over many keys, parts and channels, in an arithmetic that NUM-2, 3 and 11 speak of."""
    beside = (DTYPE_BY[dtype],)
    level: Level = "smoke" if dtype == "float32" else "core"
    for feature, clause in (("lse", "MHA-NUM-7"), ("weights", "MHA-NUM-8")):

        def asked(feature: str = feature) -> Request:
            return Request(operands(735, dtype, n=3, m=300, d=64), dtype, options={f"return_{feature}": True})

        yield case(
            clause,
            f"{feature} over many keys",
            asked,
            group="numerics",
            features=(feature,),
            dtype=dtype,
            level=level,
            beside=beside,
        )

    def parts() -> Request:
        each = [(fractions(750 + at, (2, 3, 9, 8), dtype), fractions(770 + at, (1, 2, 3, 9), dtype)[0]) for at in range(17)]
        return Request(tuple(x for part in each for x in part), dtype, target="merge")

    yield case(
        "MHA-NUM-9", "seventeen parts", parts, group="numerics", features=("lse",), dtype=dtype, level=level, beside=beside
    )

    def layer() -> Request:
        x = fractions(790, (2, 5, 256), dtype, 0.125)
        return Request((x,) * 3, dtype, target="layer", projections=projections(791, dtype, h=4, d_model=256, d_k=16, d_v=16))

    yield case(
        "MHA-NUM-13", "a wide layer", layer, group="numerics", features=("layer",), dtype=dtype, level=level, beside=beside
    )
