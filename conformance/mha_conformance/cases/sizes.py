"""Cases of sizes: tails of tiles of keys and of queries, wide heads, many heads and items, where kernels have paths of their own."""

from collections.abc import Iterator
from itertools import product

import numpy as np

from mha_conformance.cases.build import case, operands
from mha_conformance.cases.case import Case, Request
from mha_conformance.cases.codes import codes

TILES = (31, 33, 65, 130, 257)


def cases() -> Iterator[Case]:
    for size in TILES:
        for clause, n, m in (("MHA-ATTN-6", size, size), ("MHA-ATTN-8", 3, size), ("MHA-ATTN-8", size, 3)):
            if n * m > 20000:
                continue

            def tail(n: int = n, m: int = m) -> Request:
                return Request(operands(1100, "float32", batch=(1,), h=1, n=n, m=m, d=4), "float32")

            yield case(clause, f"tiles and a tail, n = {n}, m = {m}", tail)
    yield case(
        "MHA-ATTN-6",
        "80 by 80, one channel",
        lambda: Request(operands(1736, "float32", batch=(1,), h=1, n=80, m=80, d=1), "float32"),
    )
    for n, m in ((2, 3), (3, 2), *((1, m) for m in (32, 64, 128, 256, 512, 513, 1025))):

        def unlike(n: int = n, m: int = m) -> Request:
            return Request(operands(1101, "float32", batch=(1,), h=1, n=n, m=m, d=2), "float32")

        yield case("MHA-ATTN-8", f"n = {n}, m = {m}", unlike)
    for items in (9, 17, 33):

        def many(items: int = items) -> Request:
            return Request(operands(1102, "float32", batch=(items,), h=1, n=2, m=2, d=2), "float32")

        yield case("MHA-EXEC-12", f"{items} batch items", many)
    for (n, m), (flag, clause) in product(
        ((9, 9), (33, 33), (1, 65), (65, 3)), (("weights", "MHA-AUX-1"), ("lse", "MHA-AUX-4"))
    ):

        def asked(n: int = n, m: int = m, flag: str = flag) -> Request:
            return Request(
                operands(1103, "float32", batch=(1,), h=1, n=n, m=m, d=4), "float32", options={f"return_{flag}": True}
            )

        yield case(clause, f"{flag}, n = {n}, m = {m}", asked, features=(flag,))
    for d in (2, 7, 9, 31, 80, 96, 128, 129, 192, 256):

        def balanced(d: int = d) -> Request:
            """Channels that cancel: every score is 0, unless one of them is left out."""
            key = np.arange(1.0, 5.0)[:, None] * np.where(np.arange(d) == 0, d - 1.0, -1.0)
            return Request((np.full((1, 1, 4, d), 4.0), key[None, None], codes((1, 1, 4, d), channels=False)), "float32")

        yield case("MHA-ATTN-1", f"all of {d} channels count", balanced)

        def ordinary(d: int = d) -> Request:
            return Request(operands(1110, "float32", batch=(1,), h=1, n=4, m=4, d=d), "float32")

        yield case("MHA-ATTN-6", f"d = {d}", ordinary, beside=("MHA-NUM-11",))
    for d, d_v in ((4, 64), (4, 129), (64, 8), (128, 192)):
        yield case(
            "MHA-ATTN-7", f"d_k = {d}, d_v = {d_v}, all channels",
            lambda d=d, d_v=d_v: Request(operands(1120, "float32", batch=(1,), h=1, n=4, m=4, d=d, d_v=d_v), "float32"), features=("d_v",),
            beside=("MHA-NUM-11",),
        )  # fmt: skip
    for h in (9, 16, 33):

        def wide(h: int = h) -> Request:
            return Request(operands(1130, "float32", batch=(1,), h=h, n=2, m=2, d=2), "float32")

        yield case("MHA-HEAD-1", f"{h} heads, few keys", wide)

    def rising(sign: int) -> Request:
        """The maximum of a row stands in its last tile, or in its first."""
        query, key, value = operands(1140, "float32", batch=(1,), h=1, n=2, m=130, d=2)
        key = np.abs(key) * np.ldexp(1.0, np.arange(130) // 32)[::sign, None]
        return Request((np.abs(query), key, value), "float32")

    yield case("MHA-ATTN-13", "a maximum in the last tile", lambda: rising(1))
    yield case("MHA-ATTN-13", "a maximum in the first tile", lambda: rising(-1))
