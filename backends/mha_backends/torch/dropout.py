"""What dropout multiplies the weights of a block with: by the caller's mask, or by Philox4x32-10 for the pairs of the block (MHA-DROP-3).

The words are made with integers of torch, on the device of the query, and touch no generator of torch. To autograd they are constants;
to a compiler they are arithmetic like any other, and the seed is a number of the program: another seed may compile again.
"""

import math

import torch
from torch import Tensor

from mha_backends.torch.visibility import Block, cut
from mha_spec.call import Call

MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
KEY_STEPS = 0x9E3779B9, 0xBB67AE85
LOW = 2**32 - 1
TOGETHER = 2**15
"""Counters that are turned at a time where nothing is compiled: on a CPU they then stay in its cache."""


def factors(call: Call, block: Block, kind: torch.dtype) -> Tensor:
    """1/(1 - rate) where a pair is kept, 0 where it is dropped (MHA-DROP-1); of the scores' rank, axes of 1 where shared."""
    drop = call.dropout
    assert drop is not None
    if drop.rate == 1:
        return torch.zeros((1,) * call.query.ndim, dtype=kind, device=call.query.device)
    keep = _drawn(call, block) if drop.keep is None else cut(drop.keep, block)
    return keep.to(kind) * (1 / (1 - drop.rate))


def _drawn(call: Call, block: Block) -> Tensor:
    """(*b, h, r, c): whether the word of each pair is at least floor(rate 2^32)."""
    drop, (batch, h, *_) = call.dropout, call.sizes
    assert drop is not None and drop.seed is not None
    device = call.query.device
    first, last = drop.key_start + block.keys[0], drop.key_start + block.keys[1]
    j = torch.arange(first // 4, (last + 3) // 4, device=device)
    i = torch.arange(drop.query_start + block.rows[0], drop.query_start + block.rows[1], device=device)[:, None]
    head = torch.arange(drop.head_start, drop.head_start + h, device=device)[:, None, None]
    items = torch.arange(drop.batch_start, drop.batch_start + math.prod(batch), device=device)
    b = items.reshape(*batch, 1, 1, 1)
    step = i.shape[0]
    if call.query.device.type == "cpu" and not torch.compiler.is_compiling():
        step = max(1, TOGETHER // max(1, math.prod(batch) * h * j.shape[0]))
    threshold = math.floor(drop.rate * 2**32)
    parts = [
        torch.stack([word >= threshold for word in philox((j, part, head, b), drop.seed)], -1)
        for part in (torch.split(i, step) if step < i.shape[0] else (i,))
    ]
    kept = (parts[0] if len(parts) == 1 else torch.cat(parts, -3)).flatten(-2)
    return kept[..., first % 4 : first % 4 + last - first]


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four words of each counter. Words of 32 bits lie in int64, since torch shifts no unsigned numbers."""
    c0, c1, c2, c3 = counter
    k0, k1 = seed % 2**32, seed // 2**32
    for _ in range(10):
        high_0, low_0 = _product(c0, MULTIPLIERS[0])
        high_2, low_2 = _product(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = high_2 ^ c1 ^ k0, low_2, high_0 ^ c3 ^ k1, low_0
        k0, k1 = (k0 + KEY_STEPS[0]) & LOW, (k1 + KEY_STEPS[1]) & LOW
    return c0, c1, c2, c3


def _product(word: Tensor, multiplier: int) -> tuple[Tensor, Tensor]:
    """High and low word. Multipliers have their bit 31 set; without it the product stays below 2^63, and half the word makes up for it."""
    part = word * (multiplier - 2**31) + ((word & 1) << 31)
    return (part >> 32) + (word >> 1), part & LOW
