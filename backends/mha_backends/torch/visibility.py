"""The visible set of a block of pairs, from the inputs alone (MHA-MASK-1)."""

from typing import NamedTuple

import torch
from torch import Tensor

from mha_spec.call import Call


class Block(NamedTuple):
    """Queries ``rows[0] <= i < rows[1]`` and keys ``keys[0] <= j < keys[1]``."""

    rows: tuple[int, int]
    keys: tuple[int, int]


def reach(call: Call, rows: tuple[int, int]) -> tuple[int, int]:
    """The range of keys outside which shapes and Python numbers already say that these queries see nothing."""
    low, high = 0, call.sizes.m
    if call.band is not None and isinstance(call.query_offset, int):
        left, right = call.band
        if left is not None:
            low = max(low, call.query_offset + rows[0] - left)
        if right is not None:
            high = min(high, call.query_offset + rows[1] + right)
    if isinstance(call.key_lengths, int):
        high = min(high, call.key_lengths)
    low = min(low, call.sizes.m)
    return low, max(low, high)


def visible(call: Call, block: Block) -> Tensor | None:
    """True where query i sees key j, of the scores' rank with axes of 1 where shared; None where nothing can be hidden."""
    parts = []
    if call.mask is not None:
        parts.append(cut(call.mask, block))
    if call.bias is not None:
        parts.append(cut(call.bias, block) != -torch.inf)
    if call.band is not None and not _covers(call, block):
        parts.append(_in_band(call, block))
    if call.key_lengths is not None and not (isinstance(call.key_lengths, int) and call.key_lengths >= block.keys[1]):
        parts.append(_keys(call, block) < _per_batch(call, call.key_lengths, (0, call.sizes.m)))
    if call.query_segments is not None and call.key_segments is not None:
        # int64 on both sides: torch promotes no unsigned type above 8 bits.
        queries = call.query_segments[..., slice(*block.rows)].long()[..., None, :, None]
        keys = call.key_segments[..., slice(*block.keys)].long()[..., None, None, :]
        parts.append(queries == keys)
    seen: Tensor | None = None
    for part in parts:
        seen = part if seen is None else seen & part
    if seen is not None:
        rank = call.query.ndim
        seen = seen.reshape((1,) * (rank - seen.ndim) + tuple(seen.shape))
    return seen


def cut(x: Tensor, block: Block) -> Tensor:
    """The block's part of a mask or bias, whose axes may be 1."""
    if x.shape[-2] != 1:
        x = x[..., slice(*block.rows), :]
    if x.shape[-1] != 1:
        x = x[..., slice(*block.keys)]
    return x


def _covers(call: Call, block: Block) -> bool:
    """Whether a band at a known offset holds every pair of the block; a decoding query sees its whole cache."""
    if call.band is None or not isinstance(call.query_offset, int):
        return False
    left, right = call.band
    furthest_back = block.keys[0] - (call.query_offset + block.rows[1] - 1)
    furthest_on = block.keys[1] - 1 - (call.query_offset + block.rows[0])
    return (left is None or furthest_back >= -left) and (right is None or furthest_on <= right)


def _in_band(call: Call, block: Block) -> Tensor:
    """offset + i - left <= j <= offset + i + right. Offsets are clipped, on each side, to where they can matter: no sum wraps."""
    assert call.band is not None
    left, right = call.band
    n, m = call.sizes.n, call.sizes.m
    queries = torch.arange(*block.rows, device=call.query.device)[:, None]
    keys = _keys(call, block)
    sides = []
    if right is not None:
        sides.append(keys <= queries + _per_batch(call, call.query_offset, (-(n + right + 1), m)) + right)
    if left is not None:
        sides.append(keys >= queries + _per_batch(call, call.query_offset, (-n, m + left + 1)) - left)
    return sides[0] if len(sides) == 1 else sides[0] & sides[1]


def _keys(call: Call, block: Block) -> Tensor:
    return torch.arange(*block.keys, device=call.query.device)


def _per_batch(call: Call, x: int | Tensor, bounds: tuple[int, int]) -> int | Tensor:
    """One integer, or one per batch item over the axes (h, n, m), clipped."""
    low, high = bounds
    if not isinstance(x, Tensor):  # an int, or a compiler's symbol for one
        return max(low, min(x, high))
    return x.long().clamp(low, high)[..., None, None, None]
