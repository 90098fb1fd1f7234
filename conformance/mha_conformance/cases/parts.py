"""Cases of AUX: merged parts near, apart and far apart, high and low; one part and many; every dtype and rank."""

from collections.abc import Iterator
from typing import Any

from mha_conformance.cases.build import case
from mha_conformance.cases.case import Case, Request
from mha_conformance.cases.inputs import fractions
from mha_conformance.cases.options import NARROW


def cases() -> Iterator[Case]:

    def part(at: int, shift: float = 0.0, dtype: str = "float32", shape: tuple[int, ...] = (2, 3, 5)) -> tuple[Any, Any]:
        wide = "float64" if dtype == "float64" else "float32"
        lse = (fractions(1500 + at, (1, *shape), wide)[0] + shift).astype(wide).astype(float)
        return fractions(1510 + at, (*shape, 4), dtype), lse

    def merge(*parts: tuple[Any, Any], dtype: str = "float32") -> Request:
        return Request(tuple(x for pair in parts for x in pair), dtype, target="merge")

    merged = {f"a part lower by {gap}": merge(part(0), part(1, -float(gap))) for gap in (9, 14, 40)}
    merged |= {
        f"all parts near {at}": merge(part(0, float(at)), part(1, at + 1.0), part(2, at - 1.0))
        for at in (-3000, 3000, 100, -100)
    }
    merged |= {"one part": merge(part(0)), "seven parts": merge(*(part(at) for at in range(7)))}
    merged |= {"one head, no batch": merge(*(part(at, shape=(1, 3)) for at in range(2)))}
    for name, asked in merged.items():
        yield case("MHA-AUX-7", name, lambda asked=asked: asked, features=("lse",))
    for dtype in NARROW:
        yield case(
            "MHA-AUX-7", "three parts in this dtype", lambda dtype=dtype: merge(*(part(at, at, dtype) for at in range(3)), dtype=dtype),
            features=("lse",), dtype=dtype,
        )  # fmt: skip
