"""Cases of MASK: windows wider than the keys, offsets and ids beyond the small integers; every integer has its meaning."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from mha_conformance.cases.build import ONE, case, operands
from mha_conformance.cases.case import Case, Request


def cases() -> Iterator[Case]:
    for window in ((6, 1), (100, 0), (0, 100), (2**40, 1), (1, 2**62 - 1), (None, 0), (0, None), (None, None)):
        yield case(
            "MHA-MASK-10", f"window {window} of 6 keys",
            lambda window=window: Request(operands(1400, "float32", **ONE), "float32", options={"window": window}), features=("window",),
        )  # fmt: skip
    for offset in (200, 2**31 + 7, 2**40):

        def causal(offset: int = offset) -> Request:
            parts = operands(1401, "float32", batch=(1,), h=1, n=3, m=6, d=4)
            return Request(parts, "float32", options={"is_causal": True, "query_offset": offset})

        yield case("MHA-MASK-8", f"causal at position {offset}", causal, features=("causal", "offset"))
    for name, band in {"causal": {"is_causal": True}, "window": {"window": (3, 2)}}.items():

        def before(band: Any = band) -> Request:
            parts = operands(1403, "float32", batch=(3,), h=1, n=5, m=7, d=4)
            return Request(parts, "float32", arrays={"query_offset": np.asarray([-2, 3, -7])}, options=band)

        clause = "MHA-MASK-9" if name == "causal" else "MHA-MASK-16"
        yield case(clause, f"{name}, positions per item, some before 0", before, features=(name, "offset"))
    for ids in ((0, 256, 65536), (2**24, 2**24 + 1, 2**24 + 2), (-1, 255, -257)):

        def far(ids: tuple[int, ...] = ids) -> Request:
            segments = np.asarray(ids)[[0, 1, 2, 0, 1, 2]][None]
            arrays = {"query_segments": segments, "key_segments": segments[:, ::-1].copy()}
            return Request(operands(1402, "float32", **ONE), "float32", arrays=arrays)

        yield case("MHA-MASK-13", f"ids {ids[0]}, {ids[1]} and {ids[2]}", far, features=("segments",))
