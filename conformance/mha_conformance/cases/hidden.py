"""Cases of MASK: what is hidden has no influence; finite data by the bound, and every bit in class strict, NaN and infinities included."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from mha_conformance.cases.build import case, operands
from mha_conformance.cases.calls import visible_pairs
from mha_conformance.cases.case import Case, Request
from mha_conformance.cases.hiders import HIDERS


def cases() -> Iterator[Case]:
    query, key, value = operands(250, "float32", batch=(2,), h=2, n=5, m=7, d=4)
    for name, (features, arrays, options) in HIDERS.items():
        for poison in (2.0**60, -(2.0**100)):

            def finite(poison: float = poison, arrays: Any = arrays, options: Any = options) -> Request:
                return Request(poisoned(query, key, value, arrays, options, poison), "float32", arrays=arrays, options=options)

            yield case(
                "MHA-MASK-18", f"{poison:.0e} hidden by {name}", finite, features=features, group="poison",
                level="smoke" if poison > 0 else "core",
            )  # fmt: skip
        for poison, j in ((np.nan, 6), (np.nan, 3), (np.inf, 0), (-np.inf, 5), (2.0**60, 3), (2.0**100, 6)):

            def strict(poison: float = poison, j: int = j, arrays: Any = arrays, options: Any = options) -> tuple[Request, ...]:
                dirty_key, dirty_value = key.copy(), value.copy()
                dirty_key[..., j, :] = dirty_value[..., j, :] = poison
                clean = Request((query, key, value), "float32", arrays=arrays, options=options)
                return clean, Request((query, dirty_key, dirty_value), "float32", arrays=arrays, options=options)

            yield case(
                "MHA-MASK-19", f"key {j} is {poison:.0e}, {name}", strict, features=features, group="strict", rule="hidden bits",
                level="smoke" if np.isnan(poison) and j == 6 else "core",
            )  # fmt: skip


def poisoned(query: Any, key: Any, value: Any, arrays: Any, options: Any, poison: float) -> tuple[Any, Any, Any]:
    """The operands with ``poison`` in every key and value that no query of its batch item sees."""
    request = Request((query, key, value), "float32", arrays=arrays, options=options)
    unseen = ~visible_pairs(request).any(axis=-2)  # (b, h, m)
    return query, np.where(unseen[..., None], poison, key), np.where(unseen[..., None], poison, value)
