"""The rules by which replies are judged: within the bound, in agreement, bit for bit, refused, or well behaved."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from mha_conformance.cases.calls import visible_pairs
from mha_conformance.cases.case import Case, Request, Rule
from mha_conformance.cases.linear import granted
from mha_conformance.judge.finding import Finding, malformed
from mha_conformance.judge.reply import Reply
from mha_conformance.judge.statistical import probable, searched, statistical
from mha_conformance.judge.training import blind_gradients
from mha_conformance.judge.truth import Truth, truths
from mha_conformance.judge.verdict import AGAIN, Worst, pattern
from mha_spec.numerics import TYPES, error_ratio, profile_of
from mha_spec.profiles import Grade

MIB = 2**20


def within_bound(case: Case, replies: list[Reply], profile: str) -> Finding:
    """Every element of every reply lies within the bound of the truth; where bound and truth say exactly, exactly."""
    return _farthest([_compare(reply, truth, profile) for reply, truth in zip(replies, truths(case, profile), strict=True)])


def _compare(reply: Reply, truth: Truth, profile: str) -> Finding:
    if wrong := malformed(reply, truth):
        return wrong
    return _farthest(
        [
            _measure(name, np.asarray(reply.array(name), dtype=np.float64), expected, truth.bounds[name], profile)
            for name, expected in truth.expected.items()
        ]
    )


def _measure(name: str, got: Any, expected: Any, bound: Any, profile: str) -> Finding:
    kind = profile_of(profile).lse if name == "lse" else profile_of(profile).output
    ratios = error_ratio(got, expected, bound, TYPES[kind].largest)
    if not ratios.size:
        return Finding(True, ratio=0.0)
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(ratios)), ratios.shape))
    bound = np.broadcast_to(bound, ratios.shape)
    worst = Worst(name, at, float(got[at]), float(expected[at]), float(bound[at]), float(ratios[at]))
    wrong = ~(ratios <= 1)
    if not wrong.any():
        return Finding(True, ratio=worst.ratio, worst=worst)
    return Finding(False, f"{name} is outside the bound", worst.ratio, worst, pattern(wrong, name))


def _farthest(findings: list[Finding]) -> Finding:
    failing = [finding for finding in findings if not finding.holds]
    return max(failing or findings, key=lambda finding: finding.ratio or 0.0, default=Finding(True))


def agreeing(case: Case, replies: list[Reply], profile: str) -> Finding:
    """Law: the replies agree with the first one, within the sum of both bounds. Zero channels may be added at the end."""
    known = truths(case, profile)
    if wrong := next(filter(None, map(malformed, replies, known)), None):
        return wrong
    findings = []
    first = np.asarray(replies[0].output, float)
    width = first.shape[-1]
    for reply, truth in zip(replies[1:], known[1:], strict=True):
        other = np.asarray(reply.output, float)
        room = known[0].bounds["output"] + truth.bounds["output"][..., :width]
        findings.append(_measure("output", other[..., :width], first, room, profile))
    return _farthest(findings)


def as_first(case: Case, replies: list[Reply], profile: str) -> Finding:
    """Every reply lies within the bound of the first request's truth: what differs between the requests must not matter."""
    first = truths(case, profile)[0]
    return _farthest([_compare(reply, first, profile) for reply in replies])


def history(case: Case, replies: list[Reply], profile: str) -> Finding:
    """What was right at first stays right, and a request that is made again gets the same answer (MHA-EXEC-5).

    The first request of its shapes finds nothing that a cache could hold of it. If one of those is wrong already, the fault is
    no matter of history, and other cases tell whose it is; then this one only looks whether equal requests are answered alike.
    """
    requests, known = case.make(), truths(case, profile)
    if wrong := next(filter(None, map(malformed, replies, known)), None):
        return wrong
    found = [_compare(reply, truth, profile) for reply, truth in zip(replies, known, strict=True)]
    shapes: dict[Any, int] = {}
    contents: dict[Any, int] = {}
    for at, request in enumerate(requests):
        shapes.setdefault(_shapes(request), at)
    before = [
        contents.setdefault(_contents(request), at) for at, request in enumerate(requests)
    ]  # the first that asks the same
    if all(found[at].holds for at in shapes.values()):
        for at, finding in enumerate(found):
            if not finding.holds:
                again = before[at] != at and found[before[at]].holds
                return replace(finding, reason=f"{AGAIN if again else ''}call {at}: {finding.reason}")
        return _farthest(found)
    for at, first in enumerate(before):
        if at == first:
            continue
        for name in known[at].expected:
            one, other = (np.asarray(getattr(replies[i], name), float) for i in (first, at))
            moved = _measure(name, other, one, 2 * known[at].bounds[name], profile)
            if np.isfinite(one).all() and not moved.holds:
                return replace(moved, reason=f"{AGAIN}call {at} is call {first}, and its {name} is another")
    return Finding(True)


def _shapes(request: Request) -> Any:
    """The shapes of all arrays of a request."""
    return tuple(x.shape for x in request.operands), tuple((name, x.shape) for name, x in sorted(request.arrays.items()))


def _contents(request: Request) -> Any:
    """Everything that a request asks, but not where its arrays lie."""
    arrays = (*enumerate(request.operands), *sorted(request.arrays.items()))
    return _shapes(request), tuple(sorted(request.options.items())), tuple(x.tobytes() for _, x in arrays)


def same_bits(case: Case, replies: list[Reply], profile: str) -> Finding:
    """Every reply has the bits of the first."""
    return _bits(case, replies, profile, lambda name, array: np.ones(np.shape(array), dtype=bool))


def same_rows(case: Case, replies: list[Reply], profile: str) -> Finding:
    """The rows of the later replies, one behind the other, have the bits of the first (MHA-CACHE-2)."""
    if wrong := next(filter(None, map(malformed, replies, truths(case, profile))), None):
        return wrong
    output = np.concatenate([reply.output for reply in replies[1:]], axis=-2)
    return _unlike([replies[0], Reply("ok", output)], ("output",), lambda name, array: np.ones(np.shape(array), dtype=bool))


def same_items(case: Case, replies: list[Reply], profile: str) -> Finding:
    """The batch items of the later replies, one behind the other, have the bits of the first (MHA-EXEC-8, class batch-invariant)."""
    if wrong := next(filter(None, map(malformed, replies, truths(case, profile))), None):
        return wrong
    output = np.concatenate([reply.output for reply in replies[1:]], axis=0)
    return _unlike([replies[0], Reply("ok", output)], ("output",), lambda name, array: np.ones(np.shape(array), dtype=bool))


def hidden_bits(case: Case, replies: list[Reply], profile: str) -> Finding:
    """The rows that see none of the keys in which the requests differ have the same bits (MHA-MASK-19)."""
    first, second = case.make()
    moved = np.zeros(first.operands[1].shape[:-1], dtype=bool)  # (*b h_kv m)
    for a, b in zip(first.operands[1:], second.operands[1:], strict=True):
        moved |= ((a != b) & ~(np.isnan(a) & np.isnan(b))).any(axis=-1)
    see = visible_pairs(first)
    group = see.shape[-3] // moved.shape[-2] if moved.shape[-2] else 1
    blind = ~(see & np.repeat(moved, group, axis=-2)[..., None, :]).any(axis=-1)  # (*b h n)
    return _bits(
        case,
        replies,
        profile,
        lambda name, array: np.broadcast_to(blind[(..., *(None,) * (np.ndim(array) - blind.ndim))], np.shape(array)),
    )


def _bits(case: Case, replies: list[Reply], profile: str, where: Callable[[str, Any], Any]) -> Finding:
    if wrong := next(filter(None, map(malformed, replies, truths(case, profile))), None):
        return wrong
    return _unlike(replies, ("output", "weights", "lse", *replies[0].gradients), where)


def _unlike(replies: list[Reply], names: tuple[str, ...], where: Callable[[str, Any], Any]) -> Finding:
    """The arrays of these names have the bits of those of the first reply, where ``where(name, array)`` says so."""
    for at, reply in enumerate(replies[1:], start=1):
        for name in names:
            first, other = replies[0].array(name), reply.array(name)
            if first is None and other is None:
                continue
            if first is None or other is None or np.shape(first) != np.shape(other):
                return Finding(False, f"{name} of call 0 and call {at} differ in shape", np.inf)
            words = np.dtype(f"u{np.asarray(first).itemsize}")
            changed = np.ascontiguousarray(first).view(words) != np.ascontiguousarray(other).view(words)
            changed = changed & where(name, first)
            if changed.any():
                place = tuple(int(i) for i in np.argwhere(changed)[0])
                worst = Worst(name, place, float(other[place]), float(first[place]), 0.0, np.inf)
                return Finding(
                    False, f"{name} of call {at} has other bits than that of call 0", np.inf, worst, pattern(changed, name)
                )
    return Finding(True, ratio=0.0)


def refused(case: Case, replies: list[Reply], profile: str) -> Finding:
    """The request is refused; whoever names a clause names this one."""
    for reply in replies:
        if reply.status == "ok":
            return Finding(False, "accepted, though it must be refused", np.inf)
        if case.clause == "MHA-VAL-22":
            if not reply.facts.get("teaches"):
                return Finding(False, f"does not say clause, given, expected and what to do: {reply.error}", np.inf)
            continue
        if reply.clause not in (None, case.clause):
            return Finding(False, f"refused for {reply.clause}: {reply.error}", np.inf)
    return Finding(True, ratio=0.0)


def well_behaved(case: Case, replies: list[Reply], profile: str) -> Finding:
    """The facts of a call that are no numbers (MHA-EXEC-1, 2, 3, 6, MHA-AUX-5, 11)."""
    p = profile_of(profile)
    for request, reply in zip(case.make(), replies, strict=True):
        query, _, value = request.operands
        facts = {**reply.facts, "shape": np.shape(reply.output)}
        wrong = {
            "MHA-EXEC-1": [
                f"{name} is {facts[name]}, expected {wanted}"
                for name, wanted in (
                    ("library", facts["asked library"]),
                    ("dtype", p.output),
                    ("device", True),
                    ("shape", (*query.shape[:-1], value.shape[-1])),
                )
                if facts[name] != wanted
            ],
            "MHA-EXEC-2": [f"{name} was modified" for name in facts["modified"]],
            "MHA-EXEC-3": [f"the output shares memory with {name}" for name in facts["shared"]],
            "MHA-AUX-5": [] if facts["lse dtype"] == p.lse else [f"lse is {facts['lse dtype']}, expected {p.lse}"],
            "MHA-AUX-11": [] if facts["form"] == _asked_form(request) else [f"the result is {facts['form']}"],
            "MHA-DROP-9": [] if facts["state"] else ["a random generator was moved"],
            "MHA-EXEC-6": [] if facts["state"] else ["a random generator or an error mode was changed"],
        }[case.clause]
        if wrong:
            return Finding(False, "; ".join(wrong), np.inf)
    return Finding(True, ratio=0.0)


def _asked_form(request: Request) -> Any:
    asked = tuple(name for name in ("weights", "lse") if request.options.get(f"return_{name}"))
    return ("output", *asked) if asked else "array"


def hidden_gradient_bits(case: Case, replies: list[Reply], profile: str) -> Finding:
    """Gradients that what differs between the requests is hidden from have the same bits (MHA-GRAD-15)."""
    blind = blind_gradients(*case.make())
    return _bits(case, replies, profile, lambda name, array: np.broadcast_to(blind.get(name, False), np.shape(array)))


def gradient_facts(case: Case, replies: list[Reply], profile: str) -> Finding:
    """Type, shape, library and device of each gradient are those of its operand, and no input is modified (MHA-GRAD-1)."""
    wrong = [f"{fact} of {name}: {got}, expected {wanted}" for reply in replies for fact in ("dtypes", "libraries", "devices")
             for name, (got, wanted) in reply.facts[fact].items() if got != wanted]  # fmt: skip
    wrong += [f"{name} was modified" for reply in replies for name in reply.facts["modified"]]
    wrong += [
        f"a gradient of {name} is missing, or there is one too many" for reply in replies for name in reply.facts["absent"]
    ]
    if wrong:
        return Finding(False, "; ".join(wrong), np.inf)
    return next(filter(None, map(malformed, replies, truths(case, profile))), Finding(True, ratio=0.0))


def frugal(case: Case, replies: list[Reply], profile: str) -> Finding:
    """What a call held beside its results is at most what the case grants (MHA-COST-7)."""
    for request, reply in zip(case.make(), replies, strict=True):
        shape = (*request.operands[0].shape[:-1], request.operands[2].shape[-1])
        if np.shape(reply.output) != shape:
            return Finding(False, f"output has shape {np.shape(reply.output)}, expected {shape}", np.inf)
        held, room = max(0, reply.facts["held"] - np.asarray(reply.output).nbytes), granted(request)
        if held > room:
            return Finding(
                False,
                f"it held {held / MIB:.0f} MiB beside inputs and output, where {room / MIB:.0f} MiB are granted",
                held / room,
            )
    return Finding(True, ratio=held / room)


RULES: Mapping[Rule, Callable[[Case, list[Reply], str], Finding]] = {
    "bound": within_bound,
    "agree": agreeing,
    "as first": as_first,
    "same bits": same_bits,
    "same rows": same_rows,
    "same items": same_items,
    "hidden bits": hidden_bits,
    "history": history,
    "hidden gradient bits": hidden_gradient_bits,
    "refused": refused,
    "facts": well_behaved,
    "gradient facts": gradient_facts,
    "memory": frugal,
}

GRADED: Mapping[Rule, Callable[[Case, list[Reply], str, Grade], Finding]] = {
    "statistics": statistical,
    "probable": probable,
    "filter": searched,
}
"""The rules that depend on the claimed grade as well (MHA-NUM-19)."""


def ruled(case: Case, replies: list[Reply], profile: str, grade: Grade) -> Finding:
    """What the rule of a case finds."""
    if case.rule in GRADED:
        return GRADED[case.rule](case, replies, profile, grade)
    return RULES[case.rule](case, replies, profile)
