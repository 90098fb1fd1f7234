"""The options of a call as the kernels see them: pointers, strides in bytes, numbers; one stride over all batch items."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from math import floor, prod
from typing import Any, NamedTuple

import numpy as np

from mha_backends.cupy.params import EXPONENT, FLOATS, pointer, reading, real_of
from mha_spec.call import Array, AttentionResult, Call, Dropout, dtype_name

_PER_BATCH_ITEM = ("query", "key", "value", "mask", "bias", "query_offset", "key_lengths", "query_segments", "key_segments")


OF_SCORES = ("dbias", "grad_weights")
"""Arrays of a call's backward that have the axes of the scores."""


class Described(NamedTuple):
    """Fields of the kernels' parameters, and the copies behind their pointers: they must live until the launches are queued."""

    fields: dict[str, Any]
    alive: tuple[Any, ...]


def describe(call: Call, b: int, result: AttentionResult) -> Described:
    """A call of ``b`` batch items as fields of the kernels' parameters: all but where its query, key and value lie."""
    _, h, h_kv, n, m, d_k, d_v = call.sizes
    kind, real = dtype_name(call.query), real_of(call.query)
    left, right = (-1 if side is None else side for side in call.band or (None, None))
    fields: dict[str, Any] = {
        "element": FLOATS[kind], "exponent": EXPONENT[kind],
        "batch": b, "heads": h, "kv_heads": h_kv, "n": n, "m": m, "d_k": d_k, "d_v": d_v,
        "left": left, "right": right, "offset": 0, "length": m,
        "scale": _within(call.scale, real),
        "softcap": 0.0 if call.softcap is None else _within(call.softcap, real, positive=True),
        "weights": pointer(result.weights), "lse": pointer(result.lse), "output": pointer(result.output),
    }  # fmt: skip
    alive: list[Any] = []
    for name, option, number in (("offsets", call.query_offset, "offset"), ("lengths", call.key_lengths, "length")):
        if isinstance(option, int):
            fields[number] = max(0, min(option, m)) if number == "length" else option
        elif option is not None:
            flat = option.reshape(b)
            alive.append(flat)
            fields |= reading(name, flat, flat.strides)
    for name, ids in (("query_segments", call.query_segments), ("key_segments", call.key_segments)):
        if ids is not None:
            flat = ids.reshape(b, ids.shape[-1])
            alive.append(flat)
            fields |= reading(name, flat, flat.strides)
    fields |= _dropout(call.dropout)
    for name, option in (("mask", call.mask), ("bias", call.bias), ("keep", _keep(call))):
        if option is not None:
            strides = score_strides(option, call)
            assert strides is not None, "one_batch_axis gives calls whose mask and bias have one batch stride"
            fields |= reading(name, option, strides)
    if call.sink_logits is not None:
        fields |= reading("sinks", call.sink_logits, call.sink_logits.strides)
    return Described(fields, tuple(alive))


def one_batch_axis(call: Call, arrays: Mapping[str, Array | None]) -> Iterator[tuple[Call, dict[str, Array | None]]]:
    """The call, or its parts along the first batch axis, such that what is of n x m elements has one stride over all batch items.

    Such arrays may be broadcast over some batch axes and not over others: to walk them as one axis they would have to be copied
    out. ``arrays`` are what else has the batch axes of the call, and are cut along with it.
    """
    if all(
        x is None or score_strides(x, call)
        for x in (call.mask, call.bias, _keep(call), *(arrays.get(name) for name in OF_SCORES))
    ):
        yield call, dict(arrays)
        return
    first, *others = call.sizes.batch
    for t in range(first):
        part = replace(call, **{name: _item(getattr(call, name), t) for name in _PER_BATCH_ITEM})
        if (drop := call.dropout) is not None:
            part = replace(
                part, dropout=drop._replace(keep=_item(drop.keep, t), batch_start=drop.batch_start + t * prod(others))
            )
        yield from one_batch_axis(part, {name: _item(x, t) for name, x in arrays.items()})


def _keep(call: Call) -> Array | None:
    """The mask of what dropout keeps; None where it draws, and at rate 1, where everything is dropped."""
    return None if call.dropout is None or call.dropout.rate == 1 else call.dropout.keep


def _dropout(drop: Dropout | None) -> dict[str, Any]:
    """The fields of dropout but for its mask (MHA-DROP-3, MHA-DROP-4, MHA-DROP-6)."""
    if drop is None:
        return {"factor": 1.0}
    seed = drop.seed or 0
    return {
        "factor": 1.0 if drop.rate == 1 else 1 / (1 - drop.rate), "threshold": floor(drop.rate * 2**32),
        "seed_low": seed % 2**32, "seed_high": seed // 2**32, "batch_start": drop.batch_start, "head_start": drop.head_start,
        "query_start": drop.query_start, "key_start": drop.key_start,
    }  # fmt: skip


def _item(x: Any, t: int) -> Any:
    """Entry t of the first axis, the only one where that axis is broadcast; numbers and None hold for all."""
    return x if x is None or isinstance(x, int) else x[t if x.shape[0] > 1 else 0]


def score_strides(x: Array, call: Call) -> tuple[int, ...] | None:
    """Strides of mask or bias over (batch item, head, query, key), 0 where broadcast; None if the batch has no one stride."""
    strides = tuple(0 if size == 1 else stride for size, stride in zip(x.shape, x.strides, strict=True))
    walked = [(size, stride) for size, stride in zip(call.sizes.batch, strides, strict=False) if size != 1]
    if any(outer != size * inner for (_, outer), (size, inner) in pairwise(walked)):
        return None
    return (walked[-1][1] if walked else 0, *strides[-3:])


def _within(x: float, real: str, *, positive: bool = False) -> float:
    """A Python number brought into the range of ``real``: an infinity or a cap of 0 would change what is asked."""
    limits = np.finfo(real)
    least = float(limits.smallest_normal) if positive else -float(limits.max)
    return max(least, min(x, float(limits.max)))
