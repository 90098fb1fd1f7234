"""Cases of GRAD: rows that see nothing, data that is hidden, and NaN."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from mha_conformance.cases.case import Case, Request
from mha_conformance.cases.gradients import backward, given, some_mask, train
from mha_conformance.cases.inputs import eighths


def cases() -> Iterator[Case]:
    yield from empty_rows()
    yield from hidden_data()
    yield from nans()


def hidings(empty: bool) -> dict[str, tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]]:
    """Every way of hiding: (shape, options, features). With ``empty`` some rows see nothing; else nobody sees the last key."""
    mask = some_mask(860)
    if empty:
        mask[2] = False
    segments = {
        "query_segments": np.asarray([[0, 0, 1, 1, 5 if empty else 1]] * 2),
        "key_segments": np.asarray([[0, 0, 1, 1, 1, 0, 9]] * 2),
    }
    window = ({"n": 7, "m": 5}, {"window": (1, 0), "query_offset": 2}, ("window", "offset")) if empty else (
        {"n": 5, "m": 7}, {"window": (2, 1), "query_offset": 0}, ("window",))  # fmt: skip
    causal = ({"n": 7, "m": 5}, {"is_causal": True, "query_offset": -2}, ("causal", "offset")) if empty else (
        {"n": 5, "m": 7}, {"is_causal": True, "query_offset": 1}, ("causal", "offset"))  # fmt: skip
    return {
        "mask": ({}, {"mask": mask}, ("mask",)),
        "bias": ({}, {"bias": np.where(mask, 0.25, -np.inf)}, ("bias",)),
        "causal": causal,
        "window": window,
        "lengths": ({}, {"key_lengths": np.asarray([3, 0 if empty else 6])}, ("lengths",)),
        "segments": ({}, segments, ("segments",)),
    }  # fmt: skip


def _with(request: Request, more: Mapping[str, Any]) -> Request:
    arrays = {name: x for name, x in more.items() if hasattr(x, "shape")}
    return given(request, options={name: x for name, x in more.items() if name not in arrays}, **arrays)


def _offset_is_said(found: dict[str, Any], features: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*features, *(("offset",) if "query_offset" in found else ()))))


def empty_rows() -> Iterator[Case]:
    """GRAD-13: rows that see nothing, however that came about."""
    for name, (shape, more, features) in hidings(empty=True).items():
        yield train(
            "MHA-GRAD-13", f"by {name}", lambda shape=shape, more=more: _with(backward(865, **shape), more),
            *_offset_is_said(more, features), level="smoke" if name == "mask" else "core",
        )  # fmt: skip
    _, masked, _ = hidings(empty=True)["mask"]

    def garbage() -> Request:
        found = _with(backward(866), masked)
        query, grad = found.operands[0].copy(), found.arrays["grad_output"].copy()
        query[:, :, 2], grad[:, :, 2] = np.nan, np.inf
        return given(replace(found, operands=(query, *found.operands[1:])), grad_output=grad)

    yield train("MHA-GRAD-13", "a row that holds NaN", garbage, "mask")

    def sunk() -> Request:
        return given(_with(backward(867, arrives=("lse",)), masked), sink_logits=eighths(868, (3,)))

    yield train("MHA-GRAD-13", "with sinks", sunk, "mask", "sink", "lse")
    yield train("MHA-GRAD-13", "no keys", lambda: backward(869, m=0))
    yield train("MHA-GRAD-13", "no queries", lambda: backward(869, n=0))


def poisoned(request: Request, value: float) -> Request:
    """The last key, which nobody sees, and its value hold ``value``."""
    key, values = request.operands[1].copy(), request.operands[2].copy()
    key[..., -1, :] = values[..., -1, :] = value
    return replace(request, operands=(request.operands[0], key, values))


def hidden_data() -> Iterator[Case]:
    """GRAD-14 and 15: what is hidden has no influence, and no gradient."""
    huge = float(np.float32(1e18))
    for name, (shape, more, features) in hidings(empty=False).items():
        features = _offset_is_said(more, features)

        def finite(shape: Any = shape, more: Any = more) -> Request:
            return poisoned(_with(backward(870, **shape), more), huge)

        yield train("MHA-GRAD-14", f"by {name}", finite, *features, level="smoke" if name == "mask" else "core")
        for value in (np.nan, huge):

            def by_keys(shape: Any = shape, more: Any = more, value: float = value) -> tuple[Request, ...]:
                found = _with(backward(871, **shape), more)
                key, values = found.operands[1].copy(), found.operands[2].copy()
                key[..., 3, :] = values[..., 3, :] = value
                return found, replace(found, operands=(found.operands[0], key, values))

            def by_rows(shape: Any = shape, more: Any = more, value: float = value) -> tuple[Request, ...]:
                found = _with(backward(872, **shape), more)
                query, grad = found.operands[0].copy(), found.arrays["grad_output"].copy()
                query[..., 1, :] = grad[..., 1, :] = value
                return found, given(replace(found, operands=(query, *found.operands[1:])), grad_output=grad)

            what = "NaN" if np.isnan(value) else "1e18"
            for which, make in (("keys", by_keys), ("rows", by_rows)):
                yield train(
                    "MHA-GRAD-15", f"{what} in {which}, {name}", make, *features, group="strict", rule="hidden gradient bits",
                    level="smoke" if (what, name) == ("NaN", "mask") else "core",
                )  # fmt: skip


def nans() -> Iterator[Case]:
    """GRAD-16: NaN in each operand and in each of what arrives, under a mask that lets some rows and keys be untouched."""

    def spoiled(where: str, arrives: tuple[str, ...]) -> Request:
        found = given(backward(880, arrives=arrives), mask=some_mask(881))
        if where in ("query", "key", "value"):
            at = ("query", "key", "value").index(where)
            changed = found.operands[at].copy()
            changed[0, 1, 2, 1] = np.nan
            return replace(found, operands=(*found.operands[:at], changed, *found.operands[at + 1 :]))
        changed = found.arrays[where].copy()
        changed[(0, 1, 2, 1) if changed.ndim == 4 else (0, 1, 2)] = np.nan
        return given(found, **{where: changed})

    for where, arrives in (
        ("query", ()),
        ("key", ()),
        ("value", ()),
        ("grad_output", ()),
        ("grad_lse", ("lse",)),
        ("grad_weights", ("weights",)),
    ):
        yield train(
            "MHA-GRAD-16", f"NaN in {where}", lambda where=where, arrives=arrives: spoiled(where, arrives), "mask", *arrives,
            group="strict", level="smoke" if where == "query" else "core",
        )  # fmt: skip

    def sink() -> Request:
        return given(backward(885), mask=some_mask(881), sink_logits=np.asarray([0.5, np.nan, -1.0]))

    yield train("MHA-GRAD-16", "a NaN sink", sink, "mask", "sink", group="strict")
