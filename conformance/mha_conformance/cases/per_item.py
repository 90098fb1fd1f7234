"""Cases of MASK: batch items that differ in where they begin and end, so that one item's answer taken for another's is wrong."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from mha_conformance.cases.build import case, operands
from mha_conformance.cases.case import Case, Request
from mha_conformance.cases.features import describing


def cases() -> Iterator[Case]:
    yield from bands()
    yield from after_a_full_one()


def bands() -> Iterator[Case]:
    """MASK-8 and 10: an offset for each item, near and tiles apart; the small ones are the smallest that tell an end from the next."""
    for window in ((0, 0), (2, 0), (1, 1), (1, None), (None, 1)):
        for offsets in ((0, 2), (3, 0)):

            def windowed(window: Any = window, offsets: tuple[int, int] = offsets) -> Request:
                parts = operands(920, "float32", batch=(2,), h=1, n=2, m=5, d=2)
                return Request(parts, "float32", arrays={"query_offset": np.asarray(offsets)}, options={"window": window})

            words = f"window {window} from {offsets[0]} and {offsets[1]}"
            yield case("MHA-MASK-10", words, windowed, features=("window", "offset"))
    for offsets in ((0, 2), (3, 0)):

        def causal(offsets: tuple[int, int] = offsets) -> Request:
            parts = operands(921, "float32", batch=(2,), h=1, n=2, m=5, d=2)
            return Request(parts, "float32", arrays={"query_offset": np.asarray(offsets)}, options={"is_causal": True})

        yield case("MHA-MASK-8", f"causal from {offsets[0]} and {offsets[1]}", causal, features=("causal", "offset"))
    places: tuple[tuple[int, int, tuple[int, ...]], ...] = (
        (1, 67, (0, 64)),
        (2, 131, (0, 100, 40)),
        (3, 131, (128, 10, 63)),
        (5, 35, (0, 30, 16)),
    )
    for name, band in {"causal": {"is_causal": True}, "window": {"window": (2, 1)}}.items():

        def two_axes(band: Any = band) -> Request:
            parts = operands(924, "float32", batch=(2, 3), h=1, n=1, m=7, d=2)
            return Request(parts, "float32", arrays={"query_offset": np.arange(6).reshape(2, 3)}, options=band)

        clause = "MHA-MASK-8" if name == "causal" else "MHA-MASK-10"
        yield case(clause, f"{name}, positions of two batch axes", two_axes, features=(name, "offset"), beside=("MHA-EXEC-12",))
    for n, m, items in places:
        for name, band in {"causal": {"is_causal": True}, "window": {"window": (33, 1)}}.items():

            def apart(n: int = n, m: int = m, items: tuple[int, ...] = items, band: Any = band) -> Request:
                parts = operands(922, "float32", batch=(len(items),), h=1, n=n, m=m, d=2)
                return Request(parts, "float32", arrays={"query_offset": np.asarray(items)}, options=band)

            where = ", ".join(map(str, items))
            yield case(
                "MHA-MASK-8" if name == "causal" else "MHA-MASK-10",
                f"{name} from {where} of {m}",
                apart,
                features=(name, "offset"),
            )


def after_a_full_one() -> Iterator[Case]:
    """MASK-16: an item that sees nothing, behind one that sees something and before another; by itself, and with weights and lse."""
    nothing = np.zeros((4, 1, 2, 3), dtype=bool)
    nothing[[0, 2]] = True
    ids = np.asarray([[0, 0], [1, 1], [0, 0], [1, 1]])
    ways: dict[str, tuple[tuple[str, ...], dict[str, Any], dict[str, Any]]] = {
        "a length of 0": (("lengths",), {"key_lengths": np.asarray([3, 0, 2, 0])}, {}),
        "a mask": (("mask",), {"mask": nothing}, {}),
        "a bias": (("bias",), {"bias": np.where(nothing, 0.25, -np.inf)}, {}),
        "causal order": (("causal", "offset"), {"query_offset": np.asarray([1, -9, 0, -2])}, {"is_causal": True}),
        "a window": (("window", "offset"), {"query_offset": np.asarray([1, 9, 0, -9])}, {"window": (2, 2)}),
        "segments": (("segments",), {"query_segments": ids, "key_segments": np.zeros((4, 3), dtype=int)}, {}),
    }
    for name, (used, arrays, options) in ways.items():
        for results in (False, True):

            def empty(arrays: Any = arrays, options: Any = options, results: bool = results) -> Request:
                asked = {"return_weights": True, "return_lse": True} if results else {}
                return Request(
                    operands(923, "float32", batch=(4,), h=1, n=2, m=3, d=2),
                    "float32",
                    arrays=arrays,
                    options={**options, **asked},
                )

            named = (*used, *(("weights", "lse") if results else ()))
            yield case(
                "MHA-MASK-16", f"an empty item behind a full one by {name}{', with weights and lse' * results}", empty,
                features=named, beside=describing(named).union(("MHA-AUX-3",) if results else ()),
            )  # fmt: skip
