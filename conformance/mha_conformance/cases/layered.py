"""Cases of PROJ: every option through the layer, grouped too; and a key bias, which only the lse shows."""

from collections.abc import Iterator
from itertools import product

from mha_conformance.cases.build import case
from mha_conformance.cases.case import Case, Request
from mha_conformance.cases.inputs import fractions
from mha_conformance.cases.layer import projections
from mha_conformance.cases.options import NARROW, OPTIONS, features, given


def cases() -> Iterator[Case]:
    x = fractions(1600, (2, 6, 12), "float32", 1.0)
    for name, h_kv in product(OPTIONS, (4, 2)):

        def layered(name: str = name, h_kv: int = h_kv) -> Request:
            return Request((x,) * 3, "float32", target="layer", projections=projections(1601, h=4, h_kv=h_kv),
                           **given((name,), (2,), 4, 6, 6, "float32", 80))  # fmt: skip

        grouped = ("grouped",) if h_kv < 4 else ()
        yield case("MHA-PROJ-12", f"{name}, {h_kv} of 4 heads", layered, features=("layer", *features(name), *grouped))

    for name in OPTIONS:

        def crossed(name: str = name) -> Request:
            key = fractions(1605, (2, 9, 10), "float32", 1.0)
            return Request((x, key, key), "float32", target="layer", projections=projections(1606, h=4, d_in_k=10, d_in_v=10),
                           **given((name,), (2,), 4, 6, 9, "float32", 85))  # fmt: skip

        yield case("MHA-PROJ-12", f"{name}, cross-attention", crossed, features=("layer", *features(name)))

    def key_bias() -> Request:
        weights = projections(1602, biases="k")
        return Request((x,) * 3, "float32", target="layer", projections=weights, options={"return_lse": True})

    yield case("MHA-PROJ-4", "a key bias moves the lse", key_bias, features=("layer", "lse"))
    for dtype in NARROW:

        def typed(dtype: str = dtype) -> Request:
            narrow = fractions(1603, (2, 5, 12), dtype, 1.0)
            return Request((narrow,) * 3, dtype, target="layer", projections=projections(1604, dtype, h=4, h_kv=2))

        yield case("MHA-PROJ-7", "2 of 4 heads in this dtype", typed, features=("layer", "grouped"), dtype=dtype)
