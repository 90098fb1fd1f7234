"""Cases of MASK over tiles: whole ones that a row does not see, and lengths and windows that end around them."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from mha_conformance.cases.build import case, operands
from mha_conformance.cases.case import Case, Request
from mha_conformance.cases.codes import codes


def cases() -> Iterator[Case]:
    m = 130
    for name, seen in {
        "the first 33 keys hidden": np.arange(m) >= 33, "the first 64 keys hidden": np.arange(m) >= 64,
        "all but the last key hidden": np.arange(m) == m - 1, "every second tile of 32 hidden": np.arange(m) // 32 % 2 == 1,
        "every second tile of 16 hidden": np.arange(m) // 16 % 2 == 0,
    }.items():  # fmt: skip

        def masked(seen: Any = seen) -> Request:
            mask = np.stack([seen, np.ones(m, dtype=bool), seen[::-1]])
            return Request(operands(1300, "float32", batch=(1,), h=1, n=3, m=m, d=2), "float32", arrays={"mask": mask})

        yield case("MHA-MASK-2", name, masked, features=("mask",))
    lengths = (15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 130)

    def short() -> Request:
        values = codes((len(lengths), 1, m, 4), channels=False)
        query, key, _ = operands(1301, "float32", batch=(len(lengths),), h=1, n=2, m=m, d=4, spread=0.25)
        return Request((query, key, values), "float32", arrays={"key_lengths": np.asarray(lengths)})

    yield case("MHA-MASK-12", "lengths around tiles", short, features=("lengths",))
    for window in ((31, 0), (32, 0), (0, 33), (63, 64)):
        for n, m, offset in ((130, 130, 0), (3, 130, 97)):

            def windowed(n: int = n, m: int = m, offset: int = offset, window: tuple[int, int] = window) -> Request:
                options = {"window": window, **({} if n == m else {"query_offset": offset})}
                return Request(operands(1302, "float32", batch=(1,), h=1, n=n, m=m, d=4), "float32", options=options)

            yield case(
                "MHA-MASK-10", f"window {window} over tiles, n = {n}, m = {m}", windowed,
                features=("window",) if n == m else ("window", "offset"),
            )  # fmt: skip
