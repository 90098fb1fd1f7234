"""Cases of MASK: key lengths and segments."""

from collections.abc import Iterator

import numpy as np

from mha_conformance.cases.build import case, operands
from mha_conformance.cases.case import Case, Request
from mha_conformance.cases.codes import coded
from mha_conformance.cases.inputs import integers


def cases() -> Iterator[Case]:
    n, m = 5, 7
    for lengths in ([7, 3], [1, 6], [9, 5]):

        def per_item(lengths: list[int] = lengths) -> Request:
            return Request(coded(n, m, spread=1.0, items=2), "float32", arrays={"key_lengths": np.asarray(lengths)})

        yield case(
            "MHA-MASK-12",
            f"lengths {lengths[0]} and {lengths[1]}",
            per_item,
            features=("lengths",),
            level="smoke" if lengths[1] == 3 else "core",
        )

    def two_axes() -> Request:
        parts = operands(232, "float32", batch=(2, 3), h=1, n=1, m=7, d=2)
        return Request(parts, "float32", arrays={"key_lengths": 1 + np.arange(6).reshape(2, 3)})

    yield case("MHA-MASK-12", "lengths of two batch axes", two_axes, features=("lengths",), beside=("MHA-EXEC-12",))
    for length in (1, 6, 7, 100):

        def shared(length: int = length) -> Request:
            return Request(coded(n, m, spread=1.0), "float32", options={"key_lengths": length})

        yield case("MHA-MASK-12", f"one length {length}", shared, features=("lengths",))

    def segments() -> Request:
        key_segments = np.sort(integers(230, (2, m), 0, 3), axis=-1)
        return Request(
            coded(n, m, spread=1.0, items=2), "float32",
            arrays={"query_segments": key_segments[:, [0, 1, 3, 5, 6]], "key_segments": key_segments},
        )  # fmt: skip

    yield case("MHA-MASK-13", "packed documents", segments, features=("segments",), level="smoke")

    def scattered() -> Request:
        key_segments = np.asarray([[0, 1, 0, 1, 2, 2, 0], [5, -3, 5, 5, -3, 9, 9]])
        return Request(
            coded(n, m, spread=1.0, items=2), "float32",
            arrays={"query_segments": key_segments[:, [1, 0, 4, 2, 5]], "key_segments": key_segments},
        )  # fmt: skip

    yield case("MHA-MASK-13", "any ids in any order", scattered, features=("segments",))
