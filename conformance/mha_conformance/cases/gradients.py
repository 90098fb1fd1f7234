"""Cases of GRAD: each gradient, every option backwards, and how exactly. What is hidden stands in ``gradients_hidden``.

Every batch item and head has sizes of its own, and so has what arrives: a loss that is a plain sum hides one fault in seven.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from mha_conformance.cases.build import BASE, ONE, SHAPES, case, operands
from mha_conformance.cases.case import Case, Level, Request
from mha_conformance.cases.features import describing
from mha_conformance.cases.inputs import choices, eighths, fractions

DTYPES = ("float32", "float64", "float16", "bfloat16")
LAYOUTS = ("heads inside positions", "transposed", "padded", "every second", "value only")
ONE_BY_ONE = (("MHA-GRAD-4", "value"), ("MHA-GRAD-5", "query"), ("MHA-GRAD-6", "key"))


def backward(seed: int, dtype: str = "float32", *, arrives: tuple[str, ...] = (), **shape: Any) -> Request:
    """A request for gradients; ``arrives`` names what arrives beside grad_output."""
    query, key, value = operands(seed, dtype, **{**BASE, **shape})
    rows = query.shape[:-1]
    found = {"grad_output": fractions(seed + 5, (*rows, value.shape[-1]), dtype)}
    if "lse" in arrives:
        found["grad_lse"] = eighths(seed + 6, rows)
    if "weights" in arrives:
        found["grad_weights"] = fractions(seed + 7, (*rows, key.shape[-2]), dtype)
    return Request((query, key, value), dtype, target="vjp", arrays=found)


def given(request: Request, *, options: Mapping[str, Any] | None = None, **arrays: Any) -> Request:
    """The request with more arrays and options."""
    return replace(request, arrays={**request.arrays, **arrays}, options={**request.options, **(options or {})})


def some_mask(seed: int, n: int = 5, m: int = 7) -> Any:
    """(n, m): about half, key 0 for everyone, and the last key for nobody."""
    found = choices(seed, (n, m), 0.5)
    found[:, 0], found[:, -1] = True, False
    return found


HIDING = {"mask", "bias", "causal", "offset", "window", "lengths", "segments"}
ARRIVING = {"lse": "MHA-GRAD-7", "weights": "MHA-GRAD-8"}


def train(clause: str, name: str, make: Any, *features: str, level: Level = "core", **more: Any) -> Case:
    """A case of this chapter; what hides in it is beside its clause, and so is what else arrives than the gradient of the output."""
    more = {"group": "train", "beside": describing(set(features) & HIDING), **more}
    more["beside"] = frozenset(more["beside"]) | backwards(clause, features)
    return case(clause, name, make, features=("vjp", *features), level=level, **more)


def backwards(clause: str, features: Iterable[str]) -> frozenset[str]:
    """The clauses of this chapter that a case uses beside its own."""
    found = {ARRIVING[name] for name in features if name in ARRIVING}
    if not HIDING.isdisjoint(features) and clause == "MHA-GRAD-3":
        found |= {"MHA-GRAD-13", "MHA-GRAD-14"}
    return frozenset(found) - {clause}


def cases() -> Iterator[Case]:
    yield from contract()
    yield from one_by_one()
    yield from arrived()
    yield from options()
    yield from numerics()


def contract() -> Iterator[Case]:
    """GRAD-1 to 3: what comes back, what is refused, and what was kept of the forward."""
    for dtype in DTYPES:
        yield train(
            "MHA-GRAD-1", "shape, type and place", lambda dtype=dtype: backward(800, dtype), dtype=dtype, rule="gradient facts",
            level="smoke" if dtype == "float32" else "core",
        )  # fmt: skip

    def one_channel() -> Request:
        found = backward(803)
        return given(found, grad_output=found.arrays["grad_output"][..., :1])

    yield train("MHA-GRAD-2", "one channel for all", one_channel, group="contract", rule="refused", level="smoke")

    def one_axis_more() -> Request:
        found = backward(804, arrives=("lse",))
        return given(found, grad_lse=found.arrays["grad_lse"][..., None])

    yield train("MHA-GRAD-2", "an lse with one axis more", one_axis_more, "lse", group="contract", rule="refused")
    for dtype in DTYPES:
        yield train(
            "MHA-GRAD-3", "output and lse are given", lambda dtype=dtype: replace(backward(805, dtype), kept=True), "lse",
            dtype=dtype, level="smoke" if dtype == "float32" else "core",
        )  # fmt: skip


def one_by_one() -> Iterator[Case]:
    """GRAD-4, 5, 6: the gradients of value, query and key, each looked at alone."""
    for clause, only in ONE_BY_ONE:

        def plain(dtype: str = "float32", only: str = only, **shape: Any) -> Request:
            return replace(backward(810, dtype, **shape), gradients=(only,))

        for name, shape in {"one head": ONE, **SHAPES}.items():
            if name == "one-key" and only != "value":
                continue  # the gradient of its score is 0
            yield train(
                clause, name, lambda plain=plain, shape=shape: plain(**shape), level="smoke" if name == "one head" else "core"
            )
        for dtype in DTYPES[1:]:
            yield train(clause, "one head", lambda plain=plain, dtype=dtype: plain(dtype, **ONE), dtype=dtype)
        for layout in LAYOUTS:
            yield train(clause, f"layout {layout}", lambda plain=plain, layout=layout: replace(plain(h=4, n=9), layout=layout))

        def unlike(plain: Any = plain) -> Request:
            found: Request = plain(batch=(3,))
            sizes = np.asarray([0.25, 8.0, 1.0])[:, None, None, None]
            return replace(found, operands=(found.operands[0] * sizes, *found.operands[1:]))

        yield train(clause, "samples that are unlike", unlike)
    for d_v in (1, 7):
        yield train("MHA-GRAD-5", f"d_v = {d_v}", lambda d_v=d_v: replace(backward(811, d_v=d_v), gradients=("query",)), "d_v")
    yield train("MHA-GRAD-4", "no channels of keys", lambda: replace(backward(812, d=0, d_v=3), gradients=("value",)), "d_v")


def arrived() -> Iterator[Case]:
    """GRAD-7 and 8: what arrives at the lse and at the weights."""
    for clause, name in (("MHA-GRAD-7", "lse"), ("MHA-GRAD-8", "weights")):

        def alone(name: str = name) -> Request:
            found = backward(820, arrives=(name,))
            return given(found, grad_output=np.zeros_like(found.arrays["grad_output"]))

        yield train(clause, f"{name} alone", alone, name, level="smoke")
        yield train(clause, f"output and {name}", lambda name=name: backward(821, arrives=(name,)), name)

    def masked() -> Request:
        return given(backward(822, arrives=("weights",)), mask=some_mask(823))

    yield train("MHA-GRAD-8", "weights of hidden pairs", masked, "weights", "mask")


def options() -> Iterator[Case]:
    """GRAD-9 to 12 and 18: softcap, bias, sink, grouped heads, scale."""
    for cap in (0.5, 2.0, 30.0):

        def capped(cap: float = cap) -> Request:
            found = backward(830)
            return given(replace(found, operands=(8 * found.operands[0], *found.operands[1:])), options={"softcap": cap})

        yield train("MHA-GRAD-9", f"softcap = {cap}", capped, "softcap", level="smoke" if cap == 2.0 else "core")
    b, h, n, m = 2, 3, 5, 7
    for shape in ((n, m), (1, m), (n, 1), (b, h, n, m), (1, h, n, m), (b, 1, 1, m), (1, h, 1, m), (1, 1, 1, 1)):
        lse = ("lse",) if shape[-1] == 1 else ()  # without it the sum over a whole row is 0

        def biased(shape: tuple[int, ...] = shape, lse: tuple[str, ...] = lse) -> Request:
            return given(backward(835, arrives=lse), bias=fractions(836, shape, "float32"))

        yield train("MHA-GRAD-10", f"bias {shape}", biased, "bias", *lse, level="smoke" if shape == (n, m) else "core")

    def wider() -> Request:
        return replace(given(backward(837), bias=fractions(838, (n, m), "float32")), dtypes={"bias": "float64"})

    yield train("MHA-GRAD-10", "a bias in float64", wider, "bias")
    yield train("MHA-GRAD-10", "the type of a bias in float64", wider, "bias", rule="gradient facts")

    def holes() -> Request:
        return given(backward(839), bias=np.where(some_mask(840), fractions(841, (n, m), "float32"), -np.inf))

    yield train("MHA-GRAD-10", "a bias with -inf", holes, "bias")
    for spread, name in ((1.0, "ordinary"), (64.0, "dominant"), (-64.0, "negligible")):

        def sunk(spread: float = spread) -> Request:
            return given(backward(845), sink_logits=spread + eighths(846, (h,)))

        yield train("MHA-GRAD-11", f"{name} sinks", sunk, "sink", level="smoke" if name == "ordinary" else "core")

    def with_lse() -> Request:
        return given(backward(847, arrives=("lse",)), sink_logits=np.asarray([0.5, -np.inf, -1.0]))

    yield train("MHA-GRAD-11", "sinks in the lse, one of -inf", with_lse, "sink", "lse")
    for heads, kv in ((4, 2), (6, 2), (3, 1), (6, 3)):
        yield train(
            "MHA-GRAD-12", f"{kv} of {heads} heads", lambda heads=heads, kv=kv: backward(850, h=heads, h_kv=kv), "grouped",
            level="smoke" if heads == 4 else "core",
        )  # fmt: skip
    for scale in (1.0, -0.5, 0.0, 3.0):
        yield train(
            "MHA-GRAD-18", f"scale = {scale}", lambda scale=scale: given(backward(855), options={"scale": scale}), "scale",
            level="smoke" if scale == 3.0 else "core",
        )  # fmt: skip


def numerics() -> Iterator[Case]:
    """GRAD-19: how near, in every dtype, for short and long rows, flat and steep."""
    for dtype in DTYPES:
        for name in ("distinct", "one-query", "long", "aligned", "tail"):
            yield train(
                "MHA-GRAD-19", name, lambda dtype=dtype, name=name: backward(890, dtype, **SHAPES[name]), dtype=dtype,
                level="smoke" if name == "distinct" else "core",
            )  # fmt: skip

        def steep(dtype: str = dtype) -> Request:
            found = backward(891, dtype, **SHAPES["tail"])
            return replace(found, operands=(4 * found.operands[0], *found.operands[1:]))

        yield train("MHA-GRAD-19", "steep", steep, dtype=dtype)

        def small(dtype: str = dtype) -> Request:
            found = backward(892, dtype, **SHAPES["distinct"])
            return replace(found, operands=(*found.operands[:2], found.operands[2] / 64))

        yield train("MHA-GRAD-19", "values near zero", small, dtype=dtype)
    for n, m, d in ((129, 127, 64), (65, 513, 96), (1, 2048, 64), (513, 31, 256)):
        for dtype in DTYPES:
            yield train(
                "MHA-GRAD-19", f"n = {n}, m = {m}, d = {d}",
                lambda dtype=dtype, n=n, m=m, d=d: backward(893, dtype, batch=(1,), h=2, n=n, m=m, d=d), dtype=dtype, level="full",
            )  # fmt: skip
