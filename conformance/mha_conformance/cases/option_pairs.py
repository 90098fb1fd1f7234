"""Cases of two options at once: every way of scoring under every way of hiding, and every two of either."""

from collections.abc import Iterator
from itertools import product

from mha_conformance.cases.build import case
from mha_conformance.cases.case import Case
from mha_conformance.cases.options import HIDING, OPTIONS, SCORING, features, request


def cases() -> Iterator[Case]:
    pairs = [(a, b) for a in SCORING for b in OPTIONS if a != b and not (b in SCORING and b < a)]
    for (n, m), pair in product(((4, 6), (1, 7), (5, 5)), pairs):
        yield case(
            "MHA-ATTN-9", f"{pair[0]} and {pair[1]}, n = {n}, m = {m}", lambda n=n, m=m, pair=pair: request(pair, n=n, m=m, d=2, seed=n),
            features=features(*pair),
        )  # fmt: skip
    for (n, m), a, b in product(((1, 9), (6, 6), (9, 5)), range(6), range(6)):
        pair = (HIDING[a], HIDING[b])
        if a >= b:
            continue
        clause = "MHA-MASK-14" if set(pair) in ({"mask", "bias"}, {"mask", "causal"}, {"bias", "causal"}) else "MHA-MASK-1"
        yield case(
            clause, f"{pair[0]} and {pair[1]} per item, n = {n}, m = {m}",
            lambda n=n, m=m, pair=pair: request(pair, batch=(3,), h=2, n=n, m=m, seed=20 + n), features=features(*pair),
        )  # fmt: skip
