"""The options of a call as the kernels see them: pointers, strides in bytes, numbers; one stride over all batch items."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

from mha_backends.cupy.softmax import reading
from mha_spec.call import Array, AttentionResult, Call

_PER_BATCH_ITEM = ("query", "key", "value", "mask", "bias", "query_offset", "key_lengths", "query_segments", "key_segments")


class Described(NamedTuple):
    """Fields of the kernels' parameters, and the copies behind their pointers: they must live until the launches are queued."""

    fields: dict[str, Any]
    alive: tuple[Any, ...]


def describe(call: Call, b: int) -> Described:
    """The options of a call as fields of the kernels' parameters."""
    m = call.sizes.m
    left, right = (-1 if side is None else side for side in call.band or (None, None))
    fields: dict[str, Any] = {"left": left, "right": right, "offset": 0, "length": m}
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
    for name, option in (("mask", call.mask), ("bias", call.bias)):
        if option is not None:
            strides = score_strides(option, call)
            assert strides is not None, "one_batch_axis gives calls whose mask and bias have one batch stride"
            fields |= reading(name, option, strides)
    if call.sink_logits is not None:
        fields |= reading("sinks", call.sink_logits, call.sink_logits.strides)
    return Described(fields, tuple(alive))


def one_batch_axis(call: Call, result: AttentionResult) -> Iterator[tuple[Call, AttentionResult]]:
    """The call, or its parts along the first batch axis, such that mask and bias have one stride over all batch items.

    They are the arrays of n x m elements, which may be broadcast over some batch axes and not over others:
    to walk them as one axis they would have to be copied out.
    """
    if all(x is None or score_strides(x, call) for x in (call.mask, call.bias)):
        yield call, result
        return
    for t in range(call.sizes.batch[0]):
        part = replace(call, **{name: _item(getattr(call, name), t) for name in _PER_BATCH_ITEM})
        yield from one_batch_axis(part, AttentionResult(*(_item(x, t) for x in result)))


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
