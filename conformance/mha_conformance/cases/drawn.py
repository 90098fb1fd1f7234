"""Cases that nobody thought of: options, shapes, dtypes and layouts drawn by lot, a thousand of them and a hundred at level core.

They are drawn by the counter of ``inputs`` from the case's number, and not by a library that searches: the id alone has to give
the same inputs on every machine and in ten years, and the truth is kept by id. What a search would add is a smaller failing call
once one is found; sizes are drawn small instead, and blame takes the smallest case that fails.
"""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from mha_conformance.cases.build import case, operands
from mha_conformance.cases.case import Case, Request
from mha_conformance.cases.features import DTYPE_BY, describing
from mha_conformance.cases.inputs import choices, eighths, fractions, integers, words
from mha_conformance.cases.options import CLAUSE, HIDING, OPTIONS

CORE, ALL = 100, 1000
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 31, 33)
WIDTHS = (1, 2, 3, 4, 5, 7, 8, 12, 16, 24, 40)
BATCHES: tuple[tuple[int, ...], ...] = ((), (1,), (2,), (3,), (2, 2), (2, 1, 3))
DTYPES = ("float32", "float32", "float32", "float64", "float16", "bfloat16")
LAYOUTS = ("contiguous",) * 4 + ("transposed", "heads inside positions", "padded", "every second", "reversed", "value only")
BESIDE = frozenset(
    {
        "MHA-ATTN-8", "MHA-ATTN-9", "MHA-HEAD-1", "MHA-HEAD-2", "MHA-HEAD-3", "MHA-HEAD-4", "MHA-EXEC-4", "MHA-EXEC-12", "MHA-MASK-1",
        "MHA-MASK-4", "MHA-MASK-5", "MHA-MASK-9", "MHA-MASK-11", "MHA-MASK-14", "MHA-MASK-15", "MHA-MASK-16", "MHA-MASK-17",
        "MHA-AUX-2", "MHA-AUX-6",
    }
)  # fmt: skip
"""What a lot may bring together beside its options: sizes, axes, layouts, and rows that see nothing."""

T = TypeVar("T")


class Lots:
    """Choices in a row, the same for the same number."""

    def __init__(self, number: int) -> None:
        self._words = iter(words(50_000 + number, 128).tolist())

    def one(self, values: Sequence[T]) -> T:
        return values[self._next() % len(values)]

    def within(self, low: int, high: int) -> int:
        return low + self._next() % (high - low + 1)

    def once_in(self, count: int) -> bool:
        return self._next() % count == 0

    def _next(self) -> int:
        return int(next(self._words))


def cases() -> Iterator[Case]:
    for number in range(ALL):
        dtype, features, clause = spoken_of(number)
        name = f"drawn {number}: {', '.join(features) or 'no options'}"
        beside = (describing(features) | BESIDE | {DTYPE_BY[dtype]}) - {clause}
        yield case(
            clause, name, lambda number=number: draw(number), features=features, level="core" if number < CORE else "full",
            dtype=dtype, beside=beside,
        )  # fmt: skip


def spoken_of(number: int) -> tuple[str, tuple[str, ...], str]:
    """dtype, features and clause of a lot, without its arrays."""
    lots = Lots(number)
    dtype, sizes, options, asked, _ = ingredients(lots)
    features = list(options)
    if {"causal", "window"} & set(options) and (sizes["n"] != sizes["m"] or number % 2):
        features.append("offset")
    features += ["grouped"] * (sizes["h"] != sizes["h_kv"]) + ["d_v"] * (sizes["d"] != sizes["d_v"]) + asked
    return dtype, tuple(features), named_last(options, asked, features)


def named_last(options: list[str], asked: list[str], features: list[str]) -> str:
    """The clause that speaks last of what is asked: of results beside the output, of the order of steps, of several constraints."""
    if asked:
        return "MHA-AUX-3"
    if len(options) > 1:
        return "MHA-MASK-1" if set(options) <= set(HIDING) else "MHA-ATTN-9"
    if options:
        return CLAUSE[options[0]]
    return "MHA-HEAD-2" if "grouped" in features else "MHA-ATTN-7" if "d_v" in features else "MHA-EXEC-12"


def ingredients(lots: Lots) -> tuple[str, dict[str, Any], list[str], list[str], str]:
    """dtype, sizes, options, results beside the output, and layout."""
    dtype, h_kv, n = lots.one(DTYPES), lots.within(1, 3), lots.one(SIZES)
    sizes = {
        "batch": lots.one(BATCHES),
        "h": h_kv * lots.one((1, 1, 2, 3)),
        "h_kv": h_kv,
        "n": n,
        "m": lots.one((n, *SIZES[1:])),
    }
    sizes["d"] = lots.one(WIDTHS)
    sizes["d_v"] = lots.one((sizes["d"], sizes["d"], *WIDTHS[3:]))
    options = [option for option in OPTIONS if lots.once_in(4)]
    asked = [name for name in ("weights", "lse") if lots.once_in(6)]
    return dtype, sizes, options, asked, lots.one(LAYOUTS)


def draw(number: int) -> Request:
    """The request of a lot."""
    lots = Lots(number)
    dtype, sizes, names, asked, layout = ingredients(lots)
    _, features, _ = spoken_of(number)
    seed = 60_000 + 20 * number
    batch, h, n, m = sizes["batch"], sizes["h"], sizes["n"], sizes["m"]
    arrays: dict[str, Any] = {}
    options: dict[str, Any] = {f"return_{name}": True for name in asked}
    dtypes: dict[str, str] = {}

    def broadcast() -> tuple[int, ...]:
        full = (*batch, h, n, m) if lots.once_in(2) else (n, m)
        return tuple(1 if lots.once_in(4) else size for size in full)

    def positions(name: str, low: int, high: int) -> None:
        """An integer for all items, or one for each."""
        if lots.once_in(2):
            options[name] = lots.within(low, high)
        else:
            arrays[name] = integers(seed + 9, batch, low, high + 1)

    if "mask" in names:
        arrays["mask"] = choices(seed + 4, broadcast(), lots.one((0.3, 0.6, 0.9)))
    if "bias" in names:
        bias = 2 * fractions(seed + 5, (1, *broadcast()), dtype)[0]
        arrays["bias"] = np.where(choices(seed + 6, bias.shape, 0.15), -np.inf, bias)
        dtypes |= {"bias": "float64"} if lots.once_in(4) else {}
    if "causal" in names:
        options["is_causal"] = True
    if "window" in names:
        options["window"] = (lots.within(0, 6), lots.one((None, 0, 1, 3)))
    if "offset" in features:
        positions("query_offset", -2, m)
    if "lengths" in names:
        positions("key_lengths", -1, m + 2)
    if "segments" in names:
        kinds = lots.within(1, 3)
        arrays["query_segments"] = integers(seed + 7, (*batch, n), 0, kinds)
        arrays["key_segments"] = integers(seed + 8, (*batch, m), 0, kinds)
    if "scale" in names:
        options["scale"] = lots.one((0.0, -0.5, 0.25, 0.7, 1.0))
    if "softcap" in names:
        options["softcap"] = lots.one((0.5, 2.0, 30.0))
    if "sink" in names:
        arrays["sink_logits"] = eighths(seed + 10, (h,), 24)
    parts = operands(seed, dtype, **sizes, spread=lots.one((1.0, 2.0, 4.0)))
    return Request(parts, dtype, arrays=arrays, dtypes=dtypes, options=options, layout=layout)
