"""The truth of chapter 7: packs sequence by sequence, statistics from the true weights and their bounds."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from mha_conformance.cases.case import Request
from mha_spec.sequences import statistics_truth

Both = tuple[dict[str, Any], dict[str, Any]]


def varlen_truth(request: Request, attention: Callable[[Request], Any]) -> Both:
    """Expected values and bounds, tokens first, from ``attention`` of each sequence by itself."""
    query, key, value = request.operands
    a, b = request.plan["query_starts"], request.plan["key_starts"]
    offsets = request.plan.get("query_offset")
    expected: dict[str, list[Any]] = {}
    bounds: dict[str, list[Any]] = {}
    for s in range(len(a) - 1):
        now, then = slice(a[s], a[s + 1]), slice(b[s], b[s + 1])
        options = dict(request.options)
        if (drop := options.get("dropout")) is not None:
            options["dropout"] = drop._replace(batch_start=drop.batch_start + s)
        if offsets is not None:
            options["query_offset"] = offsets if isinstance(offsets, int) else offsets[s]
        operands = tuple(np.swapaxes(x, 0, 1) for x in (query[now], key[then], value[then]))
        alone = attention(replace(request, operands=operands, options=options, target="attention", plan={}))
        for name, x in alone.expected.items():
            expected.setdefault(name, []).append(np.swapaxes(x, 0, 1))
            bounds.setdefault(name, []).append(np.swapaxes(np.broadcast_to(alone.bounds[name], x.shape), 0, 1))
    return {n: np.concatenate(x) for n, x in expected.items()}, {n: np.concatenate(x) for n, x in bounds.items()}


def statistic_truth(request: Request, profile: str, attention: Callable[[Request], Any]) -> Both:
    """Expected value and bound of the one statistic that is read, under the name ``output``."""
    query, key, _ = request.operands
    whole = replace(
        request, operands=(query, key, key), options={**request.options, "return_weights": True}, target="attention", plan={}
    )
    of_weights = attention(whole)
    weights = of_weights.expected["weights"]
    bound = np.broadcast_to(of_weights.bounds["weights"], weights.shape)
    name, asked = request.plan["statistic"], request.plan["asked"]
    known = getattr(statistics_truth(weights, bound, profile), name)
    cut = (
        (..., slice(*asked["head_mean"]))
        if name == "head_mean"
        else (..., slice(asked["top_k"]))
        if name.startswith("top")
        else ...
    )
    return {"output": known.value[cut]}, {"output": known.bound[cut]}
