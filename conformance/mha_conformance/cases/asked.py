"""Cases of AUX: every option with weights and lse, the output with and without them; heads alike, grouped, and one key head."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product

from mha_conformance.cases.build import case
from mha_conformance.cases.case import Case, Request
from mha_conformance.cases.options import HIDING, OPTIONS, SCORING, features, request

FLAGS: tuple[Mapping[str, bool], ...] = (
    {"return_weights": True},
    {"return_lse": True},
    {"return_weights": True, "return_lse": True},
)


def cases() -> Iterator[Case]:
    for name, (h, h_kv) in product(OPTIONS, ((2, 2), (6, 2), (3, 1))):

        def asked(name: str = name, h: int = h, h_kv: int = h_kv) -> tuple[Request, ...]:
            plain = request((name,), batch=(2,), h=h, h_kv=h_kv, n=5, m=9, seed=40)
            return plain, *(replace(plain, options={**plain.options, **flags}) for flags in FLAGS)

        grouped = ("grouped",) if h != h_kv else ()
        used = (*features(name), *grouped, "weights", "lse")
        yield case("MHA-AUX-3", f"{name} with weights and lse, {h_kv} of {h} heads", asked, features=used)

    for a, b in product(SCORING, HIDING):
        if a == b:
            continue

        def both(a: str = a, b: str = b) -> tuple[Request, ...]:
            plain = request((a, b), n=5, m=9, seed=50)
            return tuple(replace(plain, options={**plain.options, **flags}) for flags in FLAGS)

        yield case("MHA-AUX-3", f"{a} and {b} with weights and lse", both, features=(*features(a, b), "weights", "lse"))
