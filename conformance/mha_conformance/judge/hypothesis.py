"""What could be wrong, as another question: each hypothesis changes the request as a known fault would, and its truth is the fault's.

A failing result that lies within the bound of such a truth *is* that fault, and the diagnosis says so in words. The matched
filter (MHA-NUM-22) asks the same of errors that no bound excludes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from mha_conformance.cases.calls import call_of, factors_of
from mha_conformance.cases.case import Request
from mha_conformance.judge.wrong_factors import wrong_factors
from mha_core import Call
from mha_spec import equations
from mha_spec.numerics import PROFILES, TYPES, attention_bound, error_ratio, profile_of

LARGEST = 2**18
"""Scores: beyond it a diagnosis would take longer than the case."""

HEADS = 8
"""Neighbours up to this many are tried as exchanged."""

STEP = 0.01
"""The part by which an amount is moved to see where its error points."""

ZEROS = "the output is zero"


@dataclass(frozen=True, slots=True)
class Asked:
    """A call in numbers: operands with all their heads, who sees whom, and what changes the scores."""

    query: Any
    key: Any
    value: Any
    scale: float
    softcap: float | None
    bias: Any
    visible: Any
    sink: Any
    factors: Any
    """Of dropout; None without it."""

    def numbers(self) -> dict[str, Any]:
        return {
            "scale": self.scale, "softcap": self.softcap, "bias": self.bias, "visible": self.visible, "sink": self.sink,
            "factors": self.factors,
        }  # fmt: skip

    def output(self) -> Any:
        """(*b h n d_v): the truth of it; where there is NaN or infinity, as the bound says it."""
        if not all(np.isfinite(x).all() for x in (self.query, self.key, self.value)):
            return attention_bound(self.query, self.key, self.value, PROFILES["P64"], **self.numbers()).truth.output
        s = self.scores()
        sink = np.full((1, 1), -np.inf) if self.sink is None else self.sink[:, None]
        top = np.maximum(np.max(s, axis=-1, initial=-np.inf), sink)[..., None]  # (*b h n 1)
        shift = np.where(np.isfinite(top), top, 0.0)
        e = np.exp(s - shift)
        total = np.sum(e, axis=-1, keepdims=True) + np.exp(sink[..., None] - shift)
        kept = e if self.factors is None else e * self.factors
        return (kept @ self.value) / np.where(total > 0.0, total, 1.0)

    def scores(self) -> Any:
        """(*b h n m): the finished scores, -inf where hidden."""
        x = self.scale * (self.query @ self.key.mT)
        x = x if self.softcap is None else self.softcap * np.tanh(x / self.softcap)
        return np.where(self.visible, x if self.bias is None else x + self.bias, -np.inf)


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A fault by name: the clause it breaks, its sentence, and the output that it gives.

    ``amount`` tells faults of any size, whose sentence has a factor in it, from those that are there or not.
    """

    clause: str
    sentence: str
    wrong: Callable[[], Any]
    amount: Callable[[float], Any] | None = None

    def words(self, factor: float = 1.0) -> str:
        digits = 4 if abs(factor - 1.0) > 2e-4 else 7
        return f"{self.sentence.format(f'{factor:.{digits}f}')} ({self.clause})"


def asked(call: Call) -> Asked:
    """The call with its heads repeated and its visible pairs written out."""
    h = call.query.shape[-3]
    visible = np.broadcast_to(equations.visible(call), (*call.query.shape[:-1], call.key.shape[-2]))
    key, value = equations.heads(call.key, h), equations.heads(call.value, h)
    return Asked(call.query, key, value, call.scale, call.softcap, call.bias, visible, call.sink_logits, factors_of(call))


def hypotheses(request: Request) -> Iterator[Hypothesis]:
    """Every fault of the dictionary that changes the answer to this request in a way of its own."""
    call = call_of(request, request.operands)
    base = asked(call)
    clause = "MHA-ATTN-3" if "scale" in request.options else "MHA-ATTN-2"
    yield _amount(clause, "the scale is {} times what it should be", lambda f: replace(base, scale=f * base.scale))
    if call.bias is not None:
        words = "the bias is {} times what it should be"
        yield _one("MHA-ATTN-11", "the bias is multiplied by the scale", lambda: _biased(base, base.scale))
        yield _amount("MHA-ATTN-11", words, partial(_biased, base))
        yield _one("MHA-ATTN-11", "the bias is not added", lambda: replace(base, bias=None))
    yield from _of_scores(base)
    yield from _of_visibility(call, base)
    yield from _of_heads(call, base)
    for of, sentence, wrong in wrong_factors(call):
        yield _one(of, sentence, lambda wrong=wrong: replace(base, factors=wrong()))  # type: ignore[misc]
    yield Hypothesis("MHA-ATTN-6", ZEROS, lambda: np.zeros_like(base.output()))


def peaked(request: Request) -> Any:
    """The output where the largest score of each row is larger by ``STEP``.

    That is no fault: the largest weight before it is normalised is 1, which is stored as it is where all others are cut off.
    """
    base = asked(call_of(request, request.operands))
    with np.errstate(all="ignore"):
        s = base.scores()
        largest = s >= np.max(s, axis=-1, keepdims=True, initial=-np.inf) - 1e-12
    return replace(base, bias=np.where(largest, STEP, 0.0) + (0.0 if base.bias is None else base.bias)).output()


def _one(clause: str, sentence: str, changed: Callable[[], Asked]) -> Hypothesis:
    return Hypothesis(clause, sentence, lambda: changed().output())


def _biased(base: Asked, factor: float) -> Asked:
    """The bias times a factor; what it hides stays hidden."""
    with np.errstate(invalid="ignore"):
        return replace(base, bias=np.where(np.isneginf(base.bias), base.bias, factor * base.bias))


def _amount(clause: str, sentence: str, by: Callable[[float], Asked]) -> Hypothesis:
    return Hypothesis(clause, sentence, lambda: by(1.0 + STEP).output(), lambda factor: by(factor).output())


def _of_scores(base: Asked) -> Iterator[Hypothesis]:
    """Softcap, its order, and the sink."""
    if base.softcap is not None:
        yield _one("MHA-ATTN-10", "the softcap is not applied", lambda: replace(base, softcap=None))
        if base.bias is not None:
            yield Hypothesis("MHA-ATTN-9", "the softcap comes after the bias", lambda: _capped_last(base))
    if base.sink is not None:
        yield _one("MHA-ATTN-12", "the sink is left out", lambda: replace(base, sink=None))
        yield _one("MHA-ATTN-12", "the sink is counted twice", lambda: replace(base, sink=base.sink + np.log(2.0)))


def _capped_last(base: Asked) -> Any:
    """With the capped sum of score and bias as a bias on scores of 0."""
    s = base.scale * (base.query @ base.key.mT) + np.where(np.isfinite(base.bias), base.bias, 0.0)
    s = np.where(base.visible, base.softcap * np.tanh(s / base.softcap), 0.0)
    return replace(base, scale=0.0, softcap=None, bias=s).output()


def _of_visibility(call: Call, base: Asked) -> Iterator[Hypothesis]:
    """Keys that are lost, seen too far, or chosen by another rule."""
    m = call.key.shape[-2]
    at = np.arange(m)

    def seen(visible: Any) -> Asked:
        return replace(base, visible=np.broadcast_to(visible, base.visible.shape))

    if m > 1:
        yield _one("MHA-ATTN-6", "the first key is left out", lambda: seen(base.visible & (at > 0)))
        yield _one("MHA-ATTN-6", "the last key is left out", lambda: seen(base.visible & (at < m - 1)))
    for tail in (8, 16, 32, 64):
        if m % tail and m > tail:
            rest = m % tail
            words = f"the last {rest} of {m} keys, a rest of tiles of {tail}, are left out"
            yield Hypothesis("MHA-ATTN-6", words, partial(_cut, base, rest))
    if m > 8:
        yield _one("MHA-ATTN-6", "the last 8 keys are left out", lambda: seen(base.visible & (at < m - 8)))

    def by(**changed: Any) -> Asked:
        return seen(equations.visible(replace(call, **changed)))

    if call.band is not None:
        yield from _of_band(call, by)
    if (mask := call.mask) is not None:
        yield _one("MHA-MASK-2", "the mask is inverted", lambda: by(mask=~mask))
        yield _one("MHA-MASK-2", "the mask is not applied", lambda: by(mask=None))
        if mask.shape[-1] == mask.shape[-2] > 1:
            yield _one("MHA-MASK-2", "the mask is transposed", lambda: by(mask=mask.mT))
    if (lengths := call.key_lengths) is not None:
        yield _one("MHA-MASK-12", "the lengths are not applied", lambda: by(key_lengths=None))
        yield _one("MHA-MASK-12", "one key too many by length", lambda: by(key_lengths=lengths + 1))
        yield _one("MHA-MASK-12", "one key too few by length", lambda: by(key_lengths=lengths - 1))
    if call.query_segments is not None:
        yield _one("MHA-MASK-13", "the segments are not applied", lambda: by(query_segments=None, key_segments=None))
    if call.bias is not None and np.isneginf(call.bias).any():
        shown = equations.visible(replace(call, bias=None))
        tamed = np.where(np.isneginf(call.bias), 0.0, call.bias)
        yield _one("MHA-MASK-5", "a bias of minus infinity does not hide", lambda: replace(seen(shown), bias=tamed))
    if not base.visible.any(axis=-1).all():
        some = base.visible.any(axis=-1, keepdims=True)
        yield _one("MHA-MASK-15", "a row that sees nothing is the mean of all values", lambda: replace(
            seen(base.visible | ~some), query=np.where(some, base.query, 0.0),
            bias=None if base.bias is None else np.where(some, base.bias, 0.0)))  # fmt: skip


def _cut(base: Asked, keys: int) -> Any:
    """The output without the last keys."""
    m = base.visible.shape[-1]
    return replace(base, visible=base.visible & (np.arange(m) < m - keys)).output()


def _of_band(call: Call, by: Callable[..., Asked]) -> Iterator[Hypothesis]:
    """Causal masks and windows that begin or end one key off, or in another corner."""
    assert call.band is not None
    left, right = call.band
    causal = right == 0
    clause, name = ("MHA-MASK-7", "causal") if causal else ("MHA-MASK-10", "the window's right side")
    if right is not None:
        yield _one(clause, f"one key too many under {name}", lambda: by(band=(left, right + 1)))
        yield _one(clause, f"one key too few under {name}", lambda: by(band=(left, right - 1)))
        yield _one(clause, f"{'the causal mask' if causal else name} is not applied", lambda: by(band=(left, None)))
    if left is not None:
        yield _one("MHA-MASK-10", "one key too many under the window's left side", lambda: by(band=(left + 1, right)))
        yield _one("MHA-MASK-10", "one key too few under the window's left side", lambda: by(band=(left - 1, right)))
        yield _one("MHA-MASK-10", "the window's left side is not applied", lambda: by(band=(None, right)))
    n, m = call.query.shape[-2], call.key.shape[-2]
    if n != m:
        yield _one("MHA-MASK-8", "positions are counted from the top left", lambda: by(query_offset=0))
        yield _one("MHA-MASK-8", "positions are counted from the bottom right", lambda: by(query_offset=m - n))


def _of_heads(call: Call, base: Asked) -> Iterator[Hypothesis]:
    """Heads and batch items that are exchanged, and groups of heads read in another order."""
    *batch, h, h_kv, _, _, _, _ = (*call.sizes.batch, *call.sizes[1:])
    for i in range(min(h, HEADS) - 1):
        order = [*range(i), i + 1, i, *range(i + 2, h)]
        yield Hypothesis("MHA-HEAD-1", f"heads {i} and {i + 1} are exchanged", partial(_ordered, base, order))
    if 1 < h_kv < h:
        group = np.arange(h) % h_kv
        yield _one("MHA-HEAD-2", "query head i reads key head i mod h_kv", lambda: replace(
            base, key=call.key[..., group, :, :], value=call.value[..., group, :, :]))  # fmt: skip
    if batch and batch[0] > 1:
        items = [1, 0, *range(2, batch[0])]
        yield Hypothesis("MHA-EXEC-12", "batch items 0 and 1 are exchanged", lambda: base.output()[items])


def _ordered(base: Asked, order: list[int]) -> Any:
    """The output with its heads in another order."""
    return base.output()[..., order, :, :]


def named(request: Request, got: Any, profile: str) -> str:
    """The sentence of the one fault that explains a wrong output, or nothing.

    An output that lies within the bound needs no explanation; one is explained by a fault around whose truth it does.
    """
    if request.target != "attention" or np.shape(got) != (*request.operands[0].shape[:-1], request.operands[2].shape[-1]):
        return ""
    if not got.size or got[..., 0].size * request.operands[1].shape[-2] > LARGEST:
        return ""
    p, call = profile_of(profile), call_of(request, request.operands)
    with np.errstate(all="ignore"):
        right = attention_bound(call.query, call.key, call.value, p, **asked(call).numbers())
        output = TYPES[p.output]

        def fits(wrong: Any) -> bool:
            room = right.output + 2.0 * output.u * np.abs(wrong)
            return bool((error_ratio(got, wrong, room, output.largest) <= 1.0).all())

        if (error_ratio(got, right.truth.output, right.output, output.largest) <= 1.0).all():
            return ""
        for hypothesis in hypotheses(request):
            if hypothesis.amount is None:
                if fits(hypothesis.wrong()):
                    return hypothesis.words()
            elif (factor := _fitted(hypothesis.amount, got, right.output)) is not None and fits(hypothesis.amount(factor)):
                return hypothesis.words(factor)
    return ""


def _fitted(amount: Callable[[float], Any], got: Any, room: Any) -> float | None:
    """The factor whose truth comes nearest, by Gauss and Newton from 1; None where it does not settle."""
    use = np.isfinite(room) & (room > 0.0) & np.isfinite(got)
    factor = 1.0
    for _ in range(12):
        here = amount(factor)
        slope = (amount(factor * 1.001) - here)[use] / (0.001 * room[use])
        size = float(slope @ slope)
        if not size > 0.0 or not np.isfinite(size):
            return None
        step = float(slope @ ((got - here)[use] / room[use])) / size
        factor *= float(np.exp(np.clip(step, -0.7, 0.7)))
        if abs(step) < 1e-6:
            return factor
    return None
