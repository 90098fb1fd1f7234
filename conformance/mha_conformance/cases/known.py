"""Cases for the kinds of input that known bugs needed: equal sizes, odd widths, large masks, far scores, views of parts."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from mha_conformance.cases.build import ONE, case, operands
from mha_conformance.cases.case import Case, Request
from mha_conformance.cases.inputs import choices, eighths, fractions
from mha_conformance.cases.layer import projections

LAYOUTS = ("transposed", "heads inside positions", "padded", "every second", "reversed", "broadcast")
UNKNOWN = "position_slopes"
"""An option that nobody has."""
SQUARE: Mapping[str, Any] = {"batch": (2,), "h": 2, "n": 6, "m": 6}


def cases() -> Iterator[Case]:
    yield from wide_scores()
    yield from options_alone()
    yield from square_masks()
    yield from large_masks()
    yield from last_keys()
    yield from narrow_views()
    yield from unknown_options()
    yield from more_axes()


def wide_scores() -> Iterator[Case]:
    """Many channels, and one key whose score is far beyond what an exponential could hold without a shift."""

    def balanced() -> Request:
        """Channels that cancel: every score is 0, unless one of them is left out."""
        key = np.arange(1.0, 5.0)[:, None] * np.where(np.arange(512) == 0, 511.0, -1.0)
        value = np.repeat(np.arange(1.0, 5.0)[None, None, :, None], 512, axis=-1)
        return Request((np.full((1, 1, 4, 512), 4.0), key[None, None], value), "float32")

    yield case("MHA-ATTN-1", "all of 512 channels count", balanced)
    yield case("MHA-ATTN-6", "d = 512", lambda: Request(operands(1700, "float32", batch=(1,), h=1, n=4, m=4, d=512), "float32"))
    for power in (37, 60):

        def far(power: int = power) -> tuple[Request, ...]:
            query, key, value = operands(1701, "float32", batch=(1,), h=1, n=6, m=1, d=4)
            near = Request((np.abs(query), np.abs(key), value), "float32")
            return near, replace(near, operands=(np.abs(query) * 2.0**power, np.abs(key), value))

        yield case("MHA-ATTN-13", f"one key with a score near 2^{power}", far, rule="as first")


def options_alone() -> Iterator[Case]:
    """A scale larger than 1, a sink for each of several heads, and the lse under a softcap."""
    query, key, value = operands(1710, "float32", **ONE)
    yield case(
        "MHA-ATTN-3",
        "scale = 2.5",
        lambda: Request((query, key, value), "float32", options={"scale": 2.5}),
        features=("scale",),
    )
    yield case(
        "MHA-ATTN-12", "a sink for each of 3 heads",
        lambda: Request(operands(1711, "float32", n=2, m=3, d=2), "float32", arrays={"sink_logits": np.asarray([-1.0, 0.5, 2.0])}),
        features=("sink",),
    )  # fmt: skip
    yield case(
        "MHA-AUX-4", "lse of capped scores",
        lambda: Request((query * 8, key, value), "float32", options={"softcap": 2.0, "return_lse": True}), features=("lse", "softcap"),
    )  # fmt: skip


def square_masks() -> Iterator[Case]:
    """As many queries as keys, so that an axis taken for the other one has the right shape."""
    for name, shape in {"per key": (2, 1, 1, 6), "per query": (2, 1, 6, 1), "per head and key": (1, 2, 1, 6)}.items():

        def masked(shape: tuple[int, ...] = shape) -> Request:
            mask = choices(1720, shape, 0.5)
            mask[..., :1, :1], mask[..., -1:, -1:] = True, False
            return Request(operands(1721, "float32", **SQUARE), "float32", arrays={"mask": mask})

        yield case("MHA-MASK-4", f"mask {name}, n = m", masked, features=("mask",))

    def lengths() -> Request:
        return Request(operands(1722, "float32", **SQUARE), "float32", arrays={"key_lengths": np.asarray([2, 5])})

    yield case("MHA-MASK-12", "lengths 2 and 5, n = m", lengths, features=("lengths",))


def large_masks() -> Iterator[Case]:
    """More pairs than 12 bits count, and more than 16 bits do."""
    for size in (80, 260):

        def masked(size: int = size) -> Request:
            parts = operands(1730, "float32", batch=(1,), h=1, n=size, m=size, d=1)
            mask = choices(1731, (size, size), 0.5) | np.eye(size, dtype=bool)
            return Request(parts, "float32", arrays={"mask": mask})

        yield case("MHA-MASK-2", f"a mask of {size} by {size}", masked, features=("mask",))


def last_keys() -> Iterator[Case]:
    """One query at the end of a cache, or within it; the top-left corner over several tiles."""
    for offset in (0, 4, 8):

        def decoding(offset: int = offset) -> Request:
            parts = operands(1740, "float32", batch=(1,), h=1, n=1, m=9, d=2)
            return Request(parts, "float32", options={"is_causal": True, "query_offset": offset})

        yield case("MHA-MASK-8", f"one query at position {offset} of 9", decoding, features=("causal", "offset"))

    def corner() -> Request:
        parts = operands(1741, "float32", batch=(1,), h=1, n=65, m=130, d=2)
        return Request(parts, "float32", options={"is_causal": True, "query_offset": 0})

    yield case("MHA-MASK-8", "top-left over tiles, n = 65, m = 130", corner, features=("causal", "offset"))


def narrow_views() -> Iterator[Case]:
    """Widths that fill no vector register, in every layout; parts whose lse is a view."""
    for d in (1, 3):
        for layout in LAYOUTS:

            def viewed(d: int = d, layout: str = layout) -> Request:
                query, key, value = operands(1750, "float32", n=4, m=5, d=d)
                if layout == "broadcast":
                    key, value = (np.repeat(x[:1], x.shape[0], axis=0) for x in (key, value))
                return Request((query, key, value), "float32", layout=layout)

            yield case("MHA-EXEC-4", f"{layout}, d = {d}", viewed)

    def parts(layout: str) -> Request:
        made: list[Any] = []
        for at in range(2):
            made += [fractions(1760 + at, (2, 3, 5, 4), "float32"), 2 * eighths(1762 + at, (2, 3, 5))]
        return Request(tuple(made), "float32", target="merge", layout=layout)

    yield case("MHA-AUX-7", "two parts, transposed", lambda: parts("transposed"), features=("lse",))


def unknown_options() -> Iterator[Case]:
    """What is not known is refused, not ignored."""
    plain = Request(operands(1770, "float32", **ONE), "float32")
    yield case(
        "MHA-VAL-22", "an option that does not exist", lambda: replace(plain, options={UNKNOWN: 0.5}), rule="refused",
        group="contract", level="smoke",
    )  # fmt: skip


def more_axes() -> Iterator[Case]:
    """Masks and biases of each item under two batch axes; biases of projections with grouped heads."""
    for name, clause in (("mask", "MHA-MASK-4"), ("bias", "MHA-ATTN-11")):

        def per_item(name: str = name) -> Request:
            shape = (2, 3, 1, 4, 5)
            values = (
                choices(1791, shape, 0.5) | np.eye(4, 5, dtype=bool) if name == "mask" else fractions(1792, shape, "float32")
            )
            return Request(operands(1793, "float32", batch=(2, 3), h=2, n=4, m=5), "float32", arrays={name: values})

        yield case(clause, f"{name} per item, 2 batch axes", per_item, features=(name,))
    for biases in ("k", "v", "qkvo"):

        def grouped(biases: str = biases) -> Request:
            x = fractions(1794, (2, 5, 12), "float32", 1.0)
            return Request((x,) * 3, "float32", target="layer", projections=projections(1795, h=4, h_kv=2, biases=biases))

        yield case("MHA-PROJ-7", f"2 of 4 heads with biases {biases}", grouped, features=("layer", "grouped"))

    def square() -> Request:
        """Every matrix is square, so that its transpose has the right shape."""
        x = fractions(1796, (2, 5, 4), "float32", 1.0)
        return Request((x,) * 3, "float32", target="layer", projections=projections(1797, h=2, d_model=4))

    yield case("MHA-PROJ-3", "square matrices", square, features=("layer",))
