"""Cases of MASK: lengths, positions, windows and ids that a narrow integer, or a float, would take for others; in several types.

The numbers are 1 more than what such a type holds, or differ by exactly as much, so that what it makes of them is plainly wrong.
"""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import numpy as np

from mha_conformance.cases.build import case, operands
from mha_conformance.cases.case import Case, Request
from mha_conformance.cases.features import describing

BANDS: Mapping[str, Mapping[str, Any]] = {"causal": {"is_causal": True}, "window": {"window": (1, 1)}}


def cases() -> Iterator[Case]:
    yield from lengths()
    yield from positions()
    yield from windows()
    yield from ids()


def lengths() -> Iterator[Case]:
    """MASK-12: lengths of three digits and more, one for each item, in narrow types and wide ones."""
    for name, m, numbers, kind in (
        ("256 and 300", 300, (256, 300, 257), "int64"), ("255 and 513", 520, (513, 255, 512), "int32"),
        ("127 in int8", 130, (127, 100, 1), "int8"), ("200 in uint8", 260, (200, 255, 129), "uint8"),
        ("2^31 in uint32", 9, (2**31, 3, 5), "uint32"),
        ("2^16 and 2^17", 9, (2**16, 2**17, 4), "int64"), ("-1 and -2^31 in int32", 9, (-1, -(2**31), 4), "int32"),
    ):  # fmt: skip

        def long(m: int = m, numbers: tuple[int, ...] = numbers, kind: str = kind) -> Request:
            parts = operands(690, "float32", batch=(3,), h=1, n=1, m=m, d=2)
            return Request(
                parts, "float32", arrays={"key_lengths": np.asarray(numbers, dtype=kind)}, dtypes={"key_lengths": kind}
            )

        low = min(numbers) < 1
        yield case("MHA-MASK-16" if low else "MHA-MASK-12", f"lengths {name}", long, features=("lengths",))

    def one() -> Request:
        return Request(operands(691, "float32", batch=(1,), h=1, n=1, m=300, d=2), "float32", options={"key_lengths": 256})

    yield case("MHA-MASK-12", "one length 256 of 300", one, features=("lengths",))


def positions() -> Iterator[Case]:
    """MASK-8 and 16: positions far out, by one integer or one for each item; sums of position and row that a type cannot hold."""
    for name, numbers, kind in (
        ("256 and 2", (256, 2), "int64"), ("32768 and 3", (2**15, 3), "int64"), ("65537 and -65534", (2**16 + 1, 2 - 2**16), "int64"),
        ("2^31 and 1", (2**31, 1), "int64"), ("1 - 2^32 and 2^32 + 1", (1 - 2**32, 2**32 + 1), "int64"),
        ("2^53 + 1 and -2^53", (2**53 + 1, -(2**53)), "int64"), ("2^31 - 1 in int32", (2**31 - 1, 1), "int32"),
        ("-2^31 in int32", (-(2**31), 2), "int32"), ("127 in int8", (127, -128), "int8"), ("255 in uint8", (255, 1), "uint8"),
    ):  # fmt: skip
        for band, options in BANDS.items():

            def placed(numbers: tuple[int, ...] = numbers, kind: str = kind, options: Any = options) -> Request:
                parts = operands(692, "float32", batch=(2,), h=1, n=3, m=5, d=2)
                arrays = {"query_offset": np.asarray(numbers, dtype=kind)}
                return Request(parts, "float32", arrays=arrays, dtypes={"query_offset": kind}, options=options)

            empty = band == "window" or min(numbers) < 0
            yield case(
                "MHA-MASK-16" if empty else "MHA-MASK-8", f"{band} from {name}", placed, features=(band, "offset"),
                beside=describing((band, "offset")) if empty else (),
            )  # fmt: skip
    for offset, (band, options) in product((2**16 + 1, 1 - 2**32, 2**53 + 1), BANDS.items()):

        def shared(offset: int = offset, options: Any = options) -> Request:
            parts = operands(693, "float32", batch=(1,), h=1, n=3, m=5, d=2)
            return Request(parts, "float32", options={**options, "query_offset": offset})

        empty = band == "window" or offset < 0
        yield case(
            "MHA-MASK-16" if empty else "MHA-MASK-8", f"{band} from {offset}, for all items", shared, features=(band, "offset"),
            beside=describing((band, "offset")) if empty else (),
        )  # fmt: skip


def windows() -> Iterator[Case]:
    """MASK-10: sides that wrap round to a small number, with an offset for each item."""
    for window in ((2**31, 0), (0, 2**31), (2**32, 2**32), (256, 0), (2**16, 0), (2**62 - 1, 0)):

        def wide(window: tuple[int, int] = window) -> Request:
            parts = operands(694, "float32", batch=(2,), h=1, n=3, m=5, d=2)
            return Request(parts, "float32", arrays={"query_offset": np.asarray([1, 2])}, options={"window": window})

        yield case("MHA-MASK-10", f"window {window}, a position for each item", wide, features=("window", "offset"))


def ids() -> Iterator[Case]:
    """MASK-13: ids that are the same but for a multiple of what a type holds, and ids in types that differ."""
    far: tuple[tuple[str, int, int, str, str], ...] = (
        ("2^8", 5, 5 + 2**8, "int64", "int64"), ("2^16", 5, 5 + 2**16, "int64", "int64"), ("2^32", 5, 5 + 2**32, "int64", "int64"),
        ("the last bit of float32", 2**24, 2**24 + 1, "int64", "int64"), ("the last bit of float64", 2**53, 2**53 + 1, "int64", "int64"),
        ("2^32, int32 by int64", 5, 5 + 2**32, "int32", "int64"), ("2^32, int64 by int32", 5, 5 - 2**32, "int32", "int64"),
        ("2^8, int8 by int32", 5, 5 + 2**8, "int8", "int32"), ("2^8, uint8 by int64", 255, -1, "uint8", "int64"),
        ("2^16, int16 by int64", 7, 7 + 2**16, "int16", "int64"), ("sign, int32 by uint32", -1, 2**32 - 1, "int32", "uint32"),
    )  # fmt: skip
    for name, near, other, narrow, wide in far:
        for turned in (False, True) if narrow != wide else (False,):

            def packed(
                near: int = near, other: int = other, narrow: str = narrow, wide: str = wide, turned: bool = turned
            ) -> Request:
                few = np.asarray([[near, 3]], dtype=narrow)
                shared = near if np.can_cast(np.min_scalar_type(near), wide) else 3
                many = np.asarray([[other, shared, 3, other]], dtype=wide)
                named = (
                    {"query_segments": many, "key_segments": few} if turned else {"query_segments": few, "key_segments": many}
                )
                n, m = (4, 2) if turned else (2, 4)
                kinds = {at: x.dtype.name for at, x in named.items()}
                parts = operands(695, "float32", batch=(1,), h=1, n=n, m=m, d=2)
                return Request(parts, "float32", arrays=named, dtypes=kinds)

            empty = turned or not np.can_cast(np.min_scalar_type(near), wide)
            yield case(
                "MHA-MASK-13", f"ids that differ by {name}{', turned' * turned}", packed, features=("segments",),
                beside=("MHA-MASK-15", "MHA-MASK-16") if empty else (),
            )  # fmt: skip
