"""Cases of PROJ: projections of the full input, heads in order, biases, widths of their own."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mha_conformance.cases.build import case
from mha_conformance.cases.case import Case, Request
from mha_conformance.cases.inputs import choices, fractions


def projections(
    seed: int, dtype: str = "float32", *, h: int = 3, h_kv: int | None = None, d_model: int = 12, d_in_k: int | None = None,
    d_in_v: int | None = None, d_k: int = 4, d_v: int = 4, d_out: int | None = None, biases: str = "",
) -> Mapping[str, Any]:  # fmt: skip
    """The arrays of ``Projections``; ``biases`` names those that are there, such as "qo"."""
    h_kv = h if h_kv is None else h_kv
    d_out = d_model if d_out is None else d_out
    shapes = {
        "w_q": (h, d_model, d_k), "w_k": (h_kv, d_in_k or d_model, d_k), "w_v": (h_kv, d_in_v or d_model, d_v), "w_o": (h, d_v, d_out),
        "b_q": (h, d_k), "b_k": (h_kv, d_k), "b_v": (h_kv, d_v), "b_o": (d_out,),
    }  # fmt: skip
    return {
        name: fractions(seed + at, shape, dtype, 0.5)
        for at, (name, shape) in enumerate(shapes.items())
        if name.startswith("w") or name[-1] in biases
    }


def cases() -> Iterator[Case]:
    def x(seed: int, n: int = 5, width: int = 12, dtype: str = "float32") -> Any:
        return fractions(seed, (2, n, width), dtype, 1.0)

    def self_attention(weights: Mapping[str, Any], dtype: str = "float32", **options: Any) -> Request:
        return Request((x(500, dtype=dtype),) * 3, dtype, target="layer", projections=weights, options=options)

    def one_head() -> Request:
        return self_attention(projections(510, h=1, d_k=4, d_v=4))

    yield case("MHA-PROJ-1", "one head from the full width", one_head, features=("layer",), level="smoke")

    def mixed_channels() -> Request:
        weights = {name: w.copy() for name, w in projections(511, h=1).items()}
        for name in ("w_q", "w_k", "w_v"):
            weights[name][:, :6] = 0.0
        return self_attention(weights)

    yield case("MHA-PROJ-1", "a head that reads the last channels only", mixed_channels, features=("layer",))
    for h in (2, 3, 5):

        def heads(h: int = h) -> Request:
            return self_attention(projections(520, h=h))

        yield case(
            "MHA-PROJ-3", f"{h} heads, concatenated in order", heads, features=("layer",), level="smoke" if h == 3 else "core"
        )

    def square() -> Request:
        same = fractions(521, (4, 4, 16), "float32", 1.0)
        weights = projections(522, h=4, d_model=16)
        return Request((same,) * 3, "float32", target="layer", projections=weights)

    yield case("MHA-PROJ-3", "every size equal", square, features=("layer",))
    for biases in ("qkvo", "q", "k", "v", "o"):

        def biased(biases: str = biases) -> Request:
            return self_attention(projections(530, biases=biases))

        yield case("MHA-PROJ-4", f"biases {biases}", biased, features=("layer",), level="smoke" if biases == "qkvo" else "core")
    for dtype in ("float64", "float16", "bfloat16"):

        def typed(dtype: str = dtype) -> Request:
            return self_attention(projections(535, dtype, biases="qkvo"), dtype)

        yield case(
            "MHA-PROJ-5",
            "merged as the loop",
            typed,
            features=("layer",),
            dtype=dtype,
            level="smoke" if dtype == "float64" else "core",
        )
    for h, h_kv in ((4, 2), (6, 1)):

        def grouped(h: int = h, h_kv: int = h_kv) -> Request:
            return self_attention(projections(540, h=h, h_kv=h_kv))

        yield case(
            "MHA-PROJ-7", f"{h_kv} of {h} heads", grouped, features=("layer", "grouped"), level="smoke" if h == 4 else "core"
        )

    def cross() -> Request:
        weights = projections(550, d_in_k=10, d_in_v=7, d_out=9)
        return Request((x(551), x(552, 7, 10), x(553, 7, 7)), "float32", target="layer", projections=weights)

    yield case("MHA-PROJ-8", "three widths", cross, features=("layer",), level="smoke")
    for d_k, d_v, d_out in ((3, 5, 12), (7, 2, 20), (1, 1, 1)):

        def free(d_k: int = d_k, d_v: int = d_v, d_out: int = d_out) -> Request:
            return self_attention(projections(560, d_k=d_k, d_v=d_v, d_out=d_out))

        yield case(
            "MHA-PROJ-9", f"d_k = {d_k}, d_v = {d_v}, d_out = {d_out}", free,
            features=("layer",) if d_k == d_v else ("layer", "d_v"), level="smoke" if d_k == 3 else "core",
        )  # fmt: skip

    def masked() -> Request:
        mask = choices(570, (2, 1, 5, 5), 0.6) | np.eye(5, dtype=bool)
        return Request((x(571),) * 3, "float32", target="layer", projections=projections(572), arrays={"mask": mask})

    yield case("MHA-PROJ-12", "a mask", masked, features=("layer", "mask"), level="smoke")
    yield case(
        "MHA-PROJ-12",
        "causal",
        lambda: self_attention(projections(573), is_causal=True),
        features=("layer", "causal"),
        level="smoke",
    )
    yield case(
        "MHA-PROJ-12", "weights and lse", lambda: self_attention(projections(574), return_weights=True, return_lse=True),
        features=("layer", "weights", "lse"),
    )  # fmt: skip
