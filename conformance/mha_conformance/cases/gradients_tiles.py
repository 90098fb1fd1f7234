"""Cases of GRAD over more than one tile of queries or of keys, with an odd tail: what is summed over them has to reach its end."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from mha_conformance.cases.case import Case, Level, Request
from mha_conformance.cases.features import describing
from mha_conformance.cases.gradients import HIDING, backward, given, train
from mha_conformance.cases.gradients_pairs import CLAUSE, beside, crossed
from mha_conformance.cases.hidden import poisoned
from mha_conformance.cases.hidden_results import many_keys
from mha_conformance.cases.inputs import eighths, fractions
from mha_conformance.cases.options import OPTIONS, features

SIZES: tuple[tuple[int, int, Level], ...] = ((67, 3, "core"), (3, 131, "core"), (257, 5, "full"), (5, 259, "full"))
SUMS: tuple[tuple[int, int, Level], ...] = (
    (65, 3, "core"), (4, 130, "core"), (3, 65, "full"), (130, 5, "full"), (257, 3, "full"), (3, 257, "full"),
)  # fmt: skip
"""(n, m, level), with tails of one and of two."""


def cases() -> Iterator[Case]:
    yield from options()
    yield from sums_over_rows()
    yield from hidden_data()


def options() -> Iterator[Case]:
    """Each option, with a gradient that arrives at the lse."""
    for (n, m, level), name in product(SIZES, OPTIONS):

        def long(n: int = n, m: int = m, name: str = name) -> Request:
            return crossed((name,), 910, h=1, n=n, m=m, d=2, batch=(2,), arrives=("lse",))

        yield train(
            CLAUSE.get(name, "MHA-GRAD-14"), f"{name} over tiles, n = {n}, m = {m}", long, *features(name), "lse", level=level,
            beside=beside(name, "lse") | ({"MHA-GRAD-13"} if name in HIDING else set()),
        )  # fmt: skip


def sums_over_rows() -> Iterator[Case]:
    """GRAD-10 and 11: what all rows share collects from all of them, and from the keys to the last one."""
    for n, m, level in SUMS:
        for shape in ((1, m), (n, 1), (2, 1, 1, m), (1, 2, n, 1), (1, 1, 1, 1)):
            lse = ("lse",) if shape[-1] == 1 else ()

            def biased(n: int = n, m: int = m, shape: tuple[int, ...] = shape, lse: tuple[str, ...] = lse) -> Request:
                return given(backward(911, h=2, n=n, m=m, d=2, arrives=lse), bias=fractions(912, shape, "float32"))

            named = ", ".join(str(size) for size in shape)
            yield train("MHA-GRAD-10", f"bias ({named}), n = {n}, m = {m}", biased, "bias", *lse, level=level)

        def sunk(n: int = n, m: int = m) -> Request:
            return given(backward(913, h=2, n=n, m=m, d=2, arrives=("lse",)), sink_logits=eighths(914, (2,)))

        yield train("MHA-GRAD-11", f"sinks, n = {n}, m = {m}", sunk, "sink", "lse", level=level)


def hidden_data() -> Iterator[Case]:
    """GRAD-14 and 15: a poison in a middle tile and in the last one."""
    for name, hider in many_keys().items():

        def asked(hider: Any = hider) -> Request:
            return given(backward(915, h=1, n=5, m=hider.m, d=2), options=hider.options, **hider.arrays)

        def keys(asked: Any = asked) -> tuple[Request, ...]:
            plain = asked()
            return plain, poisoned(plain, np.nan)

        def rows(asked: Any = asked) -> tuple[Request, ...]:
            plain = asked()
            query, grad = plain.operands[0].copy(), plain.arrays["grad_output"].copy()
            query[:, :, 3], grad[:, :, 3] = np.nan, np.nan
            return plain, given(replace(plain, operands=(query, *plain.operands[1:])), grad_output=grad)

        used = describing(set(hider.features) & HIDING)
        yield train(
            "MHA-GRAD-14", f"2^60 in many keys hidden by {name}", lambda asked=asked: poisoned(asked(), 2.0**60), *hider.features,
            beside=used,
        )  # fmt: skip
        levels: dict[str, Level] = {"many keys": "core", "one of the rows": "full"}
        for (what, level), make in zip(levels.items(), (keys, rows), strict=True):
            yield train(
                "MHA-GRAD-15", f"NaN in {what} beside {hider.m} keys, {name}", make, *hider.features, group="strict",
                rule="hidden gradient bits", level=level, beside=used,
            )  # fmt: skip
