"""Cases of MASK: causal, windows, and the position of the first query."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mha_conformance.cases.build import case
from mha_conformance.cases.case import Case, Request
from mha_conformance.cases.codes import coded

ALIGNMENTS = {"square": (6, 6, 0), "top-left": (4, 7, 0), "bottom-right": (4, 7, 3), "past the end": (3, 4, 9)}
"""(n, m, query_offset) of causal and windowed cases."""


def cases() -> Iterator[Case]:
    for name, (n, m, offset) in ALIGNMENTS.items():
        given = {} if name == "square" else {"query_offset": offset}
        features = ("causal",) if name == "square" else ("causal", "offset")

        def causal(n: int = n, m: int = m, given: Mapping[str, Any] = given) -> Request:
            return Request(coded(n, m, spread=1.0), "float32", options={"is_causal": True, **given})

        yield case(
            "MHA-MASK-7" if name == "square" else "MHA-MASK-8", f"causal, {name}", causal, features=features,
            level="smoke" if name in ("square", "bottom-right") else "core",
        )  # fmt: skip
        if name == "past the end":
            continue  # there some windows are empty
        for window in ((2, 0), (0, 0), (1, 1), (None, 1), (2, None)):

            def windowed(n: int = n, m: int = m, given: Any = given, window: Any = window) -> Request:
                return Request(coded(n, m, spread=1.0), "float32", options={"window": window, **given})

            yield case(
                "MHA-MASK-10", f"window {window}, {name}", windowed,
                features=("window",) if name == "square" else ("window", "offset"),
                level="smoke" if (name, window) == ("square", (1, 1)) else "core",
            )  # fmt: skip

        def both(n: int = n, m: int = m, given: Any = given) -> Request:
            return Request(coded(n, m, spread=1.0), "float32", options={"is_causal": True, "window": (2, 2), **given})

        yield case(
            "MHA-MASK-11",
            f"causal and window, {name}",
            both,
            features=("window", *features),
            level="smoke" if offset == 3 else "core",
        )

    for n, m in ((64, 64), (65, 65), (130, 130), (129, 257)):

        def tiled(n: int = n, m: int = m) -> Request:
            options = {"is_causal": True, **({} if n == m else {"query_offset": m - n})}
            return Request(coded(n, m, spread=1.0), "float32", options=options)

        yield case(
            "MHA-MASK-7" if n == m else "MHA-MASK-8", f"causal over tiles, n = {n}, m = {m}", tiled,
            features=("causal",) if n == m else ("causal", "offset"),
        )  # fmt: skip

    def per_item() -> Request:
        return Request(
            coded(4, 7, spread=1.0, items=2),
            "float32",
            arrays={"query_offset": np.asarray([3, 0])},
            options={"is_causal": True},
        )

    yield case("MHA-MASK-8", "an offset per batch item", per_item, features=("causal", "offset"))

    def negative() -> Request:
        return Request(coded(6, 4, spread=1.0), "float32", options={"is_causal": True, "query_offset": -2})

    yield case("MHA-MASK-9", "rows before position 0", negative, features=("causal", "offset"), level="smoke")
