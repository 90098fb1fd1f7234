"""Why a case is not judged for an implementation: what it does not claim, cannot be asked, or has no function for (MHA-CONF-9)."""

from collections.abc import Mapping

import numpy as np

from mha_conformance.cases import Case, Request
from mha_conformance.judge.judge import unclaimed
from mha_conformance.run.prepared import ALONE, IN_PLACE
from mha_conformance.run.sequences import TARGETS
from mha_conformance.run.worker import About

NAMED_BY_OUR_DOOR = (*(f"MHA-VAL-{n}" for n in (1, 2, 3, *range(11, 21), 22, 23, 24)), "MHA-AUX-11")
"""Refusals and forms of arguments and results that are those of this project."""


def not_judged(case: Case, about: About) -> str:
    """The reason, or nothing where the case is judged."""
    return (
        unclaimed(case, about.claims, about.declared.excludes)
        or _absent(case, about)
        or misaligned(case, about.declared.native_offset)
        or _beyond_limits(case, about)
    )


def _absent(case: Case, about: About) -> str:
    """The layer and the merge are functions of their own; a callable may have neither."""
    for target in {request.target for request in case.make()} - {"attention"}:
        if target not in about.functions:
            return f"there is no function for {target}"
    if not about.doors and case.clause in NAMED_BY_OUR_DOOR:
        return "the names and forms of these arguments and results are those of this project's door"
    one_argument = frozenset({"mask", "bias"}) in about.declared.excludes
    if case.rule == "refused" and one_argument and any(map(_mistaken, case.make())):
        return "mask and bias are one argument, which its dtype tells apart"
    if about.declared.heads_mix and any(np.isnan(x).any() for request in case.make() for x in request.operands):
        return "its heads are mixed by products over all channels, which carry a NaN everywhere"
    return ""


def _mistaken(request: Request) -> bool:
    """A mask of floats, or a boolean bias: each is the other one."""
    bias = request.arrays.get("bias")
    return request.dtypes.get("mask", "").startswith("float") or (bias is not None and bias.dtype == bool)


def misaligned(case: Case, native: str | None) -> str:
    """A system without ``query_offset`` gets the cases whose offset is where its own causal mask begins."""
    if native is None or not case.features & {"causal", "window"}:
        return ""
    for request in case.make():
        if request.target in TARGETS:
            steady = all(isinstance(step, int) for step in request.plan.get("steps", ("changes",)))
            if request.target == "cache" and native == "bottom-right" and steady:
                continue  # the queries of a step stand at the end of what is held
            return f"its causal mask begins {native}"
        n, m = request.operands[0].shape[-2], request.operands[1].shape[-2]
        begins = 0 if native == "top-left" else m - n
        if "query_offset" in request.arrays or request.options.get("query_offset", 0) != begins:
            return f"its causal mask begins {native}"
    return ""


def _beyond_limits(case: Case, about: About) -> str:
    """A declared limit of sizes or memory layouts (MHA-CONF-15). A request that must be refused has no size to speak of."""
    declared = about.declared
    if case.rule == "refused" or not (declared.limits or declared.layouts):
        return ""
    for request in case.make():
        if request.target in TARGETS and declared.limits:
            return "beyond its limits: the sizes of its calls change from step to step"
        layout = "contiguous" if request.layout == IN_PLACE else request.layout.removeprefix(ALONE)
        if declared.layouts is not None and layout not in declared.layouts:
            return f"beyond its limits: the layout {layout}"
        if request.target in ("attention", "vjp"):
            for size, value in _sizes(request).items():
                if not _within(value, declared.limits.get(size, {})):
                    return f"beyond its limits: {size} = {value}"
    return ""


def _sizes(request: Request) -> dict[str, int]:
    query, key, value = (x.shape for x in request.operands)
    return {
        "batch_axes": len(query) - 3, "h": query[-3], "h_kv": key[-3], "n": query[-2], "m": key[-2], "d_k": query[-1],
        "d_v": value[-1],
    }  # fmt: skip


def _within(value: int, limit: Mapping[str, int]) -> bool:
    return limit.get("min", 0) <= value <= limit.get("max", value) and value % limit.get("multiple_of", 1) == 0
