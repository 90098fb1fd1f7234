"""Cases of axes: of size 1 in a mask or a bias, and none or many of the batch."""

from collections.abc import Iterator
from itertools import product

import numpy as np

from mha_conformance.cases.build import case, operands
from mha_conformance.cases.case import Case, Request
from mha_conformance.cases.inputs import choices, fractions
from mha_conformance.cases.options import HIDING, OPTIONS, features, request


def cases() -> Iterator[Case]:
    yield from broadcasts()
    yield from batch_axes()


def broadcasts() -> Iterator[Case]:
    """Every choice of full and broadcast axes of a mask and a bias, heads alike and grouped."""
    for full, h_kv in product(product((True, False), repeat=4), (4, 2)):
        shape = tuple(size if there else 1 for size, there in zip((3, 4, 5, 7), full, strict=True))
        words = ", ".join(axis if there else "1" for axis, there in zip(("b", "h", "n", "m"), full, strict=True))
        grouped = ("grouped",) if h_kv < 4 else ()
        per_head = full[1] or grouped

        def masked(shape: tuple[int, ...] = shape, h_kv: int = h_kv) -> Request:
            mask = choices(1200, shape, 0.6) | (np.arange(shape[-1]) < 1)
            return Request(operands(1201, "float32", batch=(3,), h=4, h_kv=h_kv), "float32", arrays={"mask": mask})

        def biased(shape: tuple[int, ...] = shape, h_kv: int = h_kv) -> Request:
            bias = 2 * fractions(1202, (1, *shape), "float32")[0]
            return Request(operands(1203, "float32", batch=(3,), h=4, h_kv=h_kv), "float32", arrays={"bias": bias})

        name = f"({words}), {h_kv} of 4 heads"
        yield case("MHA-HEAD-4" if per_head else "MHA-MASK-4", f"mask {name}", masked, features=("mask", *grouped))
        yield case("MHA-HEAD-4" if per_head else "MHA-ATTN-11", f"bias {name}", biased, features=("bias", *grouped))

    def shared() -> Request:
        parts = operands(1204, "float32", batch=(2,), h=2, n=2, m=3, d=2)
        return Request(parts, "float32", arrays={"mask": np.asarray([[True, False, True], [False, True, False]])})

    yield case("MHA-MASK-4", "mask of rank 2 for every item and head", shared, features=("mask",))


def batch_axes() -> Iterator[Case]:
    """Each option under no, two and three batch axes."""
    for name, batch in product(OPTIONS, ((), (2, 3), (2, 1, 2))):
        axes = f"{len(batch)} batch axes" if batch else "no batch axis"

        def stacked(name: str = name, batch: tuple[int, ...] = batch) -> Request:
            return request((name,), batch=batch, h=3, seed=60)

        yield case("MHA-MASK-1" if name in HIDING else "MHA-ATTN-9", f"{name}, {axes}", stacked, features=features(name))
