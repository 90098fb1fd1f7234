"""Runs the requests of a case on an implementation, and notes what happened beside the numbers."""

import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace

from mha_conformance.cases.case import Case, Request, Rule
from mha_conformance.judge.reply import Reply
from mha_conformance.run.arrays import Inexpressible, NoRoom
from mha_conformance.run.facts import Witness
from mha_conformance.run.guards import Guards
from mha_conformance.run.held import Unmeasured, measured
from mha_conformance.run.implementation import OPERANDS, Implementation
from mha_conformance.run.kept import Kept
from mha_conformance.run.prepared import IN_PLACE, overwritten, prepared
from mha_conformance.run.sequences import one_statistic, through_cache
from mha_conformance.run.training import call_vjp, gradient_reply
from mha_conformance.run.unpacked import unpacked
from mha_core import AttentionResult, BackendUnavailable, Unsupported

CONCURRENT = "MHA-EXEC-7"
NOT_WRITABLE = "MHA-CACHE-11"
"""A library without arrays that can be written has no cache of this kind."""


class Asked(NamedTuple):
    """A case without its name: what travels to the process under test, where it is not of the catalogue."""

    clause: str
    rule: Rule
    requests: tuple[Request, ...]
    loud: bool = True
    """Whether what surrounds the arrays is NaN; otherwise it is 0."""

    @classmethod
    def by(cls, case: Case, loud: bool = True) -> "Asked":
        return cls(case.clause, case.rule, case.make(), loud)


def perform(implementation: Implementation, asked: Asked) -> list[Reply]:
    """One reply per request, in order; those of MHA-EXEC-7 run at once."""
    if asked.clause == CONCURRENT:
        with ThreadPoolExecutor(len(asked.requests)) as pool:
            return list(
                pool.map(lambda one: _answer(implementation, one, Kept(), Guards(asked.loud), asked.rule), asked.requests)
            )
    if asked.rule == "memory":  # what is loaded and set up at a first call is no part of a later one
        for request in map(_small, asked.requests):
            _answer(implementation, request, Kept(), Guards(asked.loud), "bound")
    kept, guards = Kept(), Guards(asked.loud)
    replies = [_answer(implementation, request, kept, guards, asked.rule) for request in asked.requests]
    return [replace(reply, changed=kept.changed(at, implementation.host)) for at, reply in enumerate(replies)]


def _small(request: Request) -> Request:
    """The same call of few queries and keys."""
    return replace(request, operands=tuple(x[..., :64, :] for x in request.operands))


def _answer(implementation: Implementation, request: Request, kept: Kept, guards: Guards, rule: Rule) -> Reply:
    """Convert, call, convert back, and look around the arrays."""
    kept.begin()
    reply = _answered(implementation, request, kept, guards, rule)
    return replace(reply, touched=guards.touched())


def _answered(implementation: Implementation, request: Request, kept: Kept, guards: Guards, rule: Rule) -> Reply:
    try:
        operands, options = prepared(implementation, request, guards)
        if request.layout == IN_PLACE:
            operands, options = overwritten(operands, options, kept.arrays)
        kept.arrays.append((operands, options))
    except Inexpressible as error:
        return Reply("inexpressible", error=str(error))
    except NoRoom as error:
        return Reply("no room", error=str(error))
    facts = rule in ("facts", "gradient facts")
    witness = Witness(implementation.host, request.target, operands, options) if facts else None
    kernel = ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kernel = _kernel(implementation, request, operands, options)
            _prepare(implementation, request)
            call = partial(_call, implementation, request, operands, options)
            result, most = measured(call, operands) if rule == "memory" else (call(), None)
    except Unmeasured as error:
        return Reply("inexpressible", error=str(error))
    except BackendUnavailable as error:
        return Reply("not run", error=error.reason, kernel=kernel)
    except Unsupported as error:
        return Reply("unsupported", error=str(error), clause=error.clause)
    except Exception as error:  # an implementation may fail in any way; it is judged, not obeyed
        if request.target == "cache" and getattr(error, "clause", None) == NOT_WRITABLE:
            return Reply("inexpressible", error=str(error))
        words = f"{type(error).__name__}: {error}"
        return Reply("refused", error=words, clause=getattr(error, "clause", None), facts={"teaches": _teaches(error)})
    try:
        if request.target in ("vjp", "layer vjp"):
            turned = implementation.layout == "bnhd" and request.target == "vjp"
            return gradient_reply(implementation.host, witness, result, turned)
        reply = replace(_reply(implementation, request, witness, result, kept), kernel=kernel)
        return reply if most is None else replace(reply, facts={**reply.facts, "held": most})
    except Exception as error:
        return Reply("refused", error=f"a result that is no array: {type(result).__name__} ({type(error).__name__}: {error})")


def _reply(implementation: Implementation, request: Request, witness: Witness | None, result: Any, kept: Kept) -> Reply:
    """What came back, on the host. Raises whatever a strange object raises."""
    output, weights, lse = (result[0], None, result[1]) if request.target == "merge" else unpacked(result)
    facts = {} if witness is None else witness.of_results(result, output, weights, lse)
    # the steps over a cache were brought back one by one
    if request.target == "cache":
        host = [None if x is None else np.asarray(x) for x in (output, weights, lse)]
    else:
        host = kept.brought_back({"output": output, "weights": weights, "lse": lse}, implementation.host)
    if request.target == "statistics":
        host[0] = np.asarray(host[0], dtype=np.float64)  # keys are integers, judged as numbers like the rest
    if strange := [x.dtype for x in host if x is not None and x.dtype.kind not in "bfiuc"]:
        raise TypeError(f"its elements are {strange[0]}")
    if implementation.layout == "bnhd" and request.target == "attention" and host[0] is not None and host[0].ndim >= 3:
        host[0] = np.swapaxes(host[0], -2, -3)
    return Reply("ok", host[0], host[1], host[2], facts=facts)


def _call(implementation: Implementation, request: Request, operands: list[Any], options: dict[str, Any]) -> Any:
    if request.target == "merge":
        assert implementation.merge is not None
        return implementation.merge(list(zip(operands[::2], operands[1::2], strict=True)))
    if request.target == "layer":
        assert implementation.layer is not None
        return implementation.layer(*operands, **options)
    if request.target == "cache":
        return through_cache(
            partial(_stepped, implementation), implementation.cache, implementation.host, operands, options, request.plan
        )
    if request.target == "varlen":
        assert implementation.varlen is not None
        return implementation.varlen(*operands, **request.plan, **options)
    if request.target == "statistics":
        assert implementation.statistics is not None
        return one_statistic(implementation.statistics, operands[0], operands[1], options, request.plan)
    if request.target == "vjp":
        assert implementation.vjp is not None
        return call_vjp(implementation.vjp, implementation.attention if request.kept else None, operands, options)
    if request.target == "layer vjp":
        assert implementation.layer_vjp is not None
        return call_vjp(implementation.layer_vjp, None, operands, options)
    return implementation.attention(*operands, **options)


def _stepped(implementation: Implementation, query: Any, key: Any, value: Any, **options: Any) -> AttentionResult:
    """One call of attention over a cache, in the layout of the implementation; what comes back is (*batch, h, n, ...)."""
    if implementation.declared.native_offset is not None:
        options.pop("query_offset", None)
    operands = (query, key, value)
    if implementation.prepare is not None:
        implementation.prepare({name: tuple(x.shape) for name, x in zip(OPERANDS, operands, strict=True)})
    if implementation.layout != "bnhd":
        return AttentionResult(*unpacked(implementation.attention(*operands, **options)))
    xp = array_namespace(query)
    output, weights, lse = unpacked(implementation.attention(*(xp.moveaxis(x, -2, -3) for x in operands), **options))
    return AttentionResult(xp.moveaxis(output, -2, -3), weights, lse)


def _prepare(implementation: Implementation, request: Request) -> None:
    """Tell a system that compiles for its shapes which ones come; it is called many times, since stale buffers show on reuse."""
    if implementation.prepare is not None and request.target in ("attention", "vjp"):
        arrays = dict(zip(OPERANDS, request.operands, strict=True)) | dict(request.arrays)
        implementation.prepare({name: tuple(x.shape) for name, x in arrays.items()})


def _kernel(implementation: Implementation, request: Request, operands: list[Any], options: dict[str, Any]) -> str:
    """What the implementation says of the call; it may say nothing of one that it refuses."""
    if implementation.explain is None or request.target != "attention":
        return ""
    try:
        return str(implementation.explain(*operands, **options))
    except Exception:
        return ""


def _teaches(error: Exception) -> bool:
    """Whether a refusal says which clause, what was given, what was expected and what to do (MHA-VAL-22)."""
    if isinstance(error, TypeError) and "unexpected keyword argument" in str(error):
        return True  # a keyword that does not exist is Python's own affair
    parts = [getattr(error, part, None) for part in ("clause", "given", "expected", "do")]
    return isinstance(error, ValueError) and all(part and str(part) in str(error) for part in parts)
