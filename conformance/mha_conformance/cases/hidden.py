"""Cases of MASK: what is hidden has no influence; finite data by the bound, and every bit in class strict, NaN and infinities included."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from mha_conformance.cases.build import case, operands
from mha_conformance.cases.calls import visible_pairs
from mha_conformance.cases.case import Case, Request
from mha_conformance.cases.features import describing
from mha_conformance.cases.hiders import ALIGNED, HIDERS, Hider


def cases() -> Iterator[Case]:
    for name, hider in {**HIDERS, **ALIGNED}.items():
        beside = describing(hider.features)
        for poison in (2.0**60, -(2.0**100)):
            yield case(
                "MHA-MASK-18", f"{poison:.0e} hidden by {name}", lambda hider=hider, poison=poison: poisoned(clean(hider), poison),
                features=hider.features, group="poison", level="smoke" if poison > 0 else "core", beside=beside,
            )  # fmt: skip
        last = hider.m - 1
        for poison, j in ((np.nan, last), (np.nan, 3), (np.inf, 0), (-np.inf, last - 1), (2.0**60, 3), (2.0**100, last)):

            def strict(hider: Hider = hider, poison: float = poison, j: int = j) -> tuple[Request, ...]:
                asked = clean(hider)
                query, key, value = asked.operands
                key, value = key.copy(), value.copy()
                key[..., j, :] = value[..., j, :] = poison
                return asked, replace(asked, operands=(query, key, value))

            yield case(
                "MHA-MASK-19", f"key {j} is {poison:.0e}, {name}", strict, features=hider.features, group="strict",
                rule="hidden bits", level="smoke" if np.isnan(poison) and j == last else "core", beside=beside,
            )  # fmt: skip


def clean(hider: Hider) -> Request:
    """A request in which these keys are hidden, all of its data ordinary."""
    parts = operands(250, "float32", batch=(2,), h=2, n=5, m=hider.m, d=4)
    return Request(parts, "float32", arrays=hider.arrays, options=hider.options)


def poisoned(request: Request, poison: float) -> Request:
    """The request with ``poison`` in every key and value that no query of its batch item sees, or where each is seen by some
    query in the last one, which the queries before do not see."""
    unseen = ~visible_pairs(request).any(axis=-2)  # (b, h, m)
    if not unseen.any():
        unseen[..., -1] = True
    query, key, value = request.operands
    return replace(
        request, operands=(query, np.where(unseen[..., None], poison, key), np.where(unseen[..., None], poison, value))
    )
