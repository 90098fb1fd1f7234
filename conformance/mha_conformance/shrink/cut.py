"""A request made smaller along one axis, with every option that speaks of that axis; positions keep their meaning."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from mha_conformance.cases import Request

AXES = {"h": -3, "n": -2, "m": -2, "d_k": -1, "d_v": -1}
"""Where the operands have the axis, batch axes apart: queries for n, keys and values for m."""
OF_SCORES = ("mask", "bias", "keep")
BATCH_ARRAYS = ("query_offset", "key_lengths", "query_segments", "key_segments")


def sizes(request: Request) -> dict[str, int]:
    """The sizes along which a request can be cut: batch axes by number, then heads of keys, n, m, d_k, d_v."""
    query, key, value = request.operands
    batch = {f"batch {axis}": size for axis, size in enumerate(query.shape[:-3])}
    return batch | {
        "h": key.shape[-3],
        "n": query.shape[-2],
        "m": key.shape[-2],
        "d_k": query.shape[-1],
        "d_v": value.shape[-1],
    }


def keep(request: Request, axis: str, start: int, stop: int) -> Request:
    """The request with indices [start, stop) of ``axis`` alone. A cut along ``h`` keeps whole groups of query heads."""
    if axis.startswith("batch"):
        return _keep_items(request, int(axis.split()[1]), start, stop)
    query, key, value = request.operands
    arrays, options = dict(request.arrays), dict(request.options)
    if axis == "h":
        group = query.shape[-3] // max(key.shape[-3], 1)
        query = _cut(query, -3, start * group, stop * group)
        key, value = _cut(key, -3, start, stop), _cut(value, -3, start, stop)
        arrays, options = _scores(arrays, -3, start * group, stop * group), _begun(options, "head_start", start * group)
        if "sink_logits" in arrays:
            arrays["sink_logits"] = arrays["sink_logits"][start * group : stop * group]
    elif axis == "n":
        query = _cut(query, -2, start, stop)
        arrays = _last(_scores(arrays, -2, start, stop), "query_segments", start, stop)
        arrays, options = _moved(arrays, _begun(options, "query_start", start), start)
    elif axis == "m":
        key, value = _cut(key, -2, start, stop), _cut(value, -2, start, stop)
        arrays = _last(_scores(arrays, -1, start, stop), "key_segments", start, stop)
        arrays, options = _moved(arrays, _begun(options, "key_start", start), -start)
        arrays, options = _shorter(arrays, options, start)
    elif axis == "d_k":
        query, key = _cut(query, -1, start, stop), _cut(key, -1, start, stop)
    else:
        value = _cut(value, -1, start, stop)
    return replace(request, operands=(query, key, value), arrays=arrays, options=options)


def without_batch_axis(request: Request) -> Request:
    """The request without its first batch axis, which has one item."""
    rank = request.operands[0].ndim
    arrays = {
        name: x[0] if name in BATCH_ARRAYS or (name in OF_SCORES and x.ndim == rank) else x
        for name, x in request.arrays.items()
    }
    return replace(request, operands=tuple(x[0] for x in request.operands), arrays=arrays)


def without(request: Request, option: str) -> Request:
    """The request without one option; segments together, and dropout with its mask."""
    together = (("query_segments", "key_segments"), ("dropout", "keep"))
    dropped = next((names for names in together if option in names), (option,))
    return replace(
        request,
        arrays={name: x for name, x in request.arrays.items() if name not in dropped},
        options={name: x for name, x in request.options.items() if name not in dropped},
    )


def _keep_items(request: Request, axis: int, start: int, stop: int) -> Request:
    rank = request.operands[0].ndim
    arrays = {
        name: _cut(x, axis, start, stop) if name in BATCH_ARRAYS or (name in OF_SCORES and x.ndim == rank) else x
        for name, x in request.arrays.items()
    }
    operands = tuple(_cut(x, axis, start, stop) for x in request.operands)
    behind = math.prod(request.operands[0].shape[axis + 1 : -3])  # right for the first batch axis, whose parts lie together
    return replace(request, operands=operands, arrays=arrays, options=_begun(request.options, "batch_start", start * behind))


def _begun(options: Mapping[str, Any], name: str, by: int) -> dict[str, Any]:
    """Dropout whose part begins ``by`` later, so that the pairs that are left keep their numbers."""
    drop = options.get("dropout")
    if drop is None or drop.seed is None:
        return dict(options)
    return {**options, "dropout": drop._replace(**{name: getattr(drop, name) + by})}


def _cut(x: Any, axis: int, start: int, stop: int) -> Any:
    """``x`` with indices [start, stop) of an axis; one of size 1 is broadcast, and stays."""
    where = [slice(None)] * x.ndim
    if x.shape[axis] > 1:
        where[axis] = slice(start, stop)
    return x[tuple(where)]


def _scores(arrays: Mapping[str, Any], axis: int, start: int, stop: int) -> dict[str, Any]:
    """Mask and bias cut along an axis of the scores, where they have it."""
    return {name: _cut(x, axis, start, stop) if name in OF_SCORES and x.ndim >= -axis else x for name, x in arrays.items()}


def _last(arrays: Mapping[str, Any], name: str, start: int, stop: int) -> dict[str, Any]:
    return {key: x[..., start:stop] if key == name else x for key, x in arrays.items()}


def _moved(arrays: Mapping[str, Any], options: Mapping[str, Any], by: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Query 0 stands ``by`` positions further from key 0, under a band; elsewhere positions mean nothing."""
    arrays, options = dict(arrays), dict(options)
    window = options.get("window") or (None, None)
    if not options.get("is_causal") and window == (None, None):
        return arrays, options
    if "query_offset" in arrays:
        arrays["query_offset"] = _plus(arrays["query_offset"], by)
    else:
        options["query_offset"] = options.get("query_offset", 0) + by
    return arrays, options


def _shorter(arrays: Mapping[str, Any], options: Mapping[str, Any], by: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Lengths count from the first key that is left."""
    arrays, options = dict(arrays), dict(options)
    if "key_lengths" in arrays:
        arrays["key_lengths"] = _plus(arrays["key_lengths"], -by)
    if "key_lengths" in options:
        options["key_lengths"] = options["key_lengths"] - by
    return arrays, options


def _plus(x: Any, by: int) -> Any:
    """``x + by``, where int64 ends at its ends: so far out, positions and lengths are all alike."""
    ends = np.iinfo(np.int64)
    return np.clip(np.asarray(x).astype(object) + by, ends.min, ends.max).astype(np.int64)
