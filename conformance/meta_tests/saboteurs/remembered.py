"""Saboteurs of EXEC-5: what a call leaves behind for the next one, in caches and in workspaces."""

import numpy as np
from honest import Honest

from saboteurs.kinds import breaks


class Remembering(Honest):
    """Keeps what was computed once, by a key that leaves something out."""

    def __init__(self):
        self.kept = {}

    def once(self, key, value):
        return self.kept.setdefault(key, value)


def place(x):
    """Where an array lies, and its form: what a cache by identity sees of it."""
    return x.__array_interface__["data"][0], x.shape, x.strides


@breaks("MHA-EXEC-5", "pytorch/pytorch#184122: compiled once for each shape, with the scale of that call")
class ScaleByShape(Remembering):
    def scale(self, call):
        return self.once((call.query.shape, call.key.shape, call.value.shape), call.scale)


@breaks("MHA-EXEC-5", "a softcap that is compiled in")
class SoftcapByShape(Remembering):
    def attend(self, call):
        self.shape = call.query.shape, call.key.shape
        return super().attend(call)

    def capped(self, s, c):
        return super().capped(s, self.once(self.shape, c))


@breaks("MHA-EXEC-5", "mask tiles by the shape of the mask")
class MaskByShape(Remembering):
    def by_mask(self, call):
        return None if call.mask is None else self.once(call.mask.shape, call.mask.copy())


@breaks("MHA-EXEC-5", "a converted bias by its address")
class BiasByAddress(Remembering):
    def attend(self, call):
        if call.bias is not None:
            self.bias = self.once(place(call.bias), call.bias.astype(np.float64))
        return super().attend(call)

    def biased(self, s, bias):
        return s if bias is None else s + self.bias


@breaks("MHA-EXEC-5", "packed keys by their address")
class KeysByAddress(Remembering):
    def attend(self, call):
        self.key = self.once((place(call.key), call.query.shape[-3]), np.asarray(call.key).astype(np.float64))
        return super().attend(call)

    def scores(self, q, k, scale):
        return super().scores(q, self.heads(self.key, q.shape[-3]), scale)


@breaks("MHA-EXEC-5", "a schedule by the number of items, with the lengths of the first call")
class LengthsByShape(Remembering):
    def by_length(self, call):
        seen = super().by_length(call)
        batched = call.key_lengths is not None and np.ndim(call.key_lengths)
        return self.once((call.key.shape, call.key_lengths.shape), seen) if batched else seen


@breaks("MHA-EXEC-5", "rotated positions by the number of queries and keys")
class OffsetByShape(Remembering):
    def offset(self, call):
        return self.once((call.query.shape, call.key.shape), call.query_offset)


@breaks("MHA-EXEC-5", "segment tiles by shape")
class SegmentsByShape(Remembering):
    def by_segment(self, call):
        seen = super().by_segment(call)
        return None if seen is None else self.once(seen.shape, seen)


@breaks("MHA-EXEC-5", "sinks by their number")
class SinksByShape(Remembering):
    def sink(self, sink_logits, s):
        return super().sink(self.once(sink_logits.shape, sink_logits.copy()), s)


@breaks("MHA-EXEC-5", "a captured graph, replayed with the numbers of its first call")
class ReplayedByShape(Remembering):
    def attend(self, call):
        asked = tuple(
            name for name in ("mask", "bias", "band", "key_lengths", "sink_logits") if getattr(call, name) is not None
        )
        key = call.query.shape, call.key.shape, call.value.shape, call.query.dtype.name, asked, call.weights, call.lse
        if key not in self.kept:
            self.kept[key] = super().attend(call)
        found = self.kept[key]
        return found._replace(output=found.output.copy())


@breaks("MHA-EXEC-5", "a workspace of scores whose padding is hidden once, when it is made")
class PaddingNotCleared(Honest):
    space = np.full((0, 0), -np.inf)

    def softmax(self, s, see, sink):
        a, lse = super().softmax(s, see, sink)
        m = s.shape[-1]
        rows, wide = int(np.prod(s.shape[:-1])), -(-m // 16) * 16
        if not rows or not m:
            return a, lse
        grown = np.full((max(rows, self.space.shape[0]), max(wide, self.space.shape[1])), -np.inf)
        grown[: self.space.shape[0], : self.space.shape[1]] = self.space
        grown[:rows, :m] = np.where(see, s, -np.inf).reshape(rows, m)
        self.space = grown
        left = np.logaddexp.reduce(grown[:rows, m:wide], axis=-1, initial=-np.inf).reshape(lse.shape)
        whole = np.logaddexp(lse, left)
        share = np.exp(np.where(whole == -np.inf, 0.0, lse - np.where(whole == -np.inf, 0.0, whole)))
        return a * share[..., None], whole
