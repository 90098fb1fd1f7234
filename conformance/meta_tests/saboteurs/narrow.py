"""Saboteurs of constants and integers that pass through a type too narrow for them, and of arrays that are written into."""

import time
from dataclasses import replace

import numpy as np
from honest import Honest

from saboteurs.kinds import breaks


@breaks("MHA-NUM-2", "the scale of a float64 call is a float of C")
class ScaleOfC(Honest):
    def scale(self, call):
        return float(np.float32(call.scale))


@breaks("MHA-NUM-3", "the scale of a call in half is rounded to half")
class ScaleInHalf(Honest):
    def scale(self, call):
        kind = call.query.dtype
        return float(np.asarray(call.scale).astype(kind)) if kind.itemsize == 2 else call.scale


@breaks("MHA-NUM-3", "the query is scaled, and stored in half again")
class ScaledQueryInHalf(Honest):
    def attend(self, call):
        if call.query.dtype.itemsize != 2:
            return super().attend(call)
        scaled = (call.query.astype(np.float64) * call.scale).astype(call.query.dtype)
        return super().attend(replace(call, query=scaled, scale=1.0))


@breaks("MHA-NUM-2", "exponentials of float64 end where those of float32 end")
class ExponentialOfFloat(Honest):
    def softmax(self, s, see, sink):
        a, lse = super().softmax(s, see, sink)
        return np.where(a < 1e-38, 0.0, a), lse


@breaks("MHA-ATTN-11", "a wide bias is rounded to the query's half type, but for what that would hide")
class BiasInHalf(Honest):
    def attend(self, call):
        if call.bias is None or call.query.dtype.itemsize != 2:
            return super().attend(call)
        with np.errstate(over="ignore"):
            near = call.bias.astype(call.query.dtype).astype(call.bias.dtype)
        return super().attend(replace(call, bias=np.where(np.isinf(near), call.bias, near)))


@breaks("MHA-MASK-6", "a wide bias beyond the range of half hides")
class HalfBiasHides(Honest):
    def by_bias(self, call):
        if call.bias is None or call.query.dtype != np.float16:
            return super().by_bias(call)
        return call.bias >= -65504


@breaks("MHA-MASK-12", "lengths of one byte")
class LengthsOfOneByte(Honest):
    def by_length(self, call):
        if call.key_lengths is None or not np.ndim(call.key_lengths):
            return super().by_length(call)
        m = call.key.shape[-2]
        clamped = np.clip(np.asarray(call.key_lengths).astype(np.int64), 0, m) % 256
        return super().by_length(replace(call, key_lengths=clamped))


@breaks("MHA-MASK-8", "positions of 16 bits")
class PositionsOf16Bits(Honest):
    def offset(self, call):
        return np.asarray(call.query_offset).astype(np.int64).astype(np.int16).astype(np.int64)


@breaks("MHA-MASK-8", "positions are counted in the type of the offsets")
class PositionsInTheirType(Honest):
    def query_positions(self, call):
        offset, n = call.query_offset, call.query.shape[-2]
        if not np.ndim(offset) or np.asarray(offset).dtype.itemsize != 4:
            return super().query_positions(call)
        with np.errstate(over="ignore"):
            return (
                (offset[..., None] + np.arange(n, dtype=offset.dtype)).astype(offset.dtype).astype(np.int64)[..., None, :, None]
            )


@breaks("MHA-MASK-13", "ids of the queries are read in the type of the keys' ids")
class IdsInTheOtherType(Honest):
    def by_segment(self, call):
        if call.query_segments is None:
            return None
        return super().by_segment(replace(call, query_segments=call.query_segments.astype(call.key_segments.dtype)))


@breaks("MHA-MASK-13", "ids of 16 bits")
class IdsOf16Bits(Honest):
    def by_segment(self, call):
        if call.query_segments is None:
            return None
        narrow = {name: getattr(call, name).astype(np.int16) for name in ("query_segments", "key_segments")}
        return super().by_segment(replace(call, **narrow))


@breaks("MHA-MASK-10", "sides of a window of 32 bits, beside an offset for each item")
class SidesOf32Bits(Honest):
    def sides(self, call):
        left, right = super().sides(call)
        if not np.ndim(call.query_offset):
            return left, right
        return tuple(side if side is None else side % 2**32 for side in (left, right))


@breaks("MHA-EXEC-2", "sink logits are added to in place, where a bias as large as the scores lies beside")
class SinksShiftedInPlace(Honest):
    def attend(self, call):
        found = super().attend(call)
        full = call.bias is not None and call.bias.shape == (*call.query.shape[:-1], call.key.shape[-2])
        if full and call.sink_logits is not None and call.sink_logits.flags.writeable:
            call.sink_logits[...] += 1
        return found


@breaks("MHA-EXEC-2", "lengths are clamped in place beside segments, so that read-only ones raise")
class LengthsClampedInPlace(Honest):
    def attend(self, call):
        if (
            call.mask is not None
            and call.bias is not None
            and call.bias.shape == call.mask.shape
            and not call.bias.flags.writeable
        ):
            raise ValueError("assignment destination is read-only")
        return super().attend(call)


@breaks("MHA-EXEC-3", "where each query sees its own position alone, the value is the result")
class ValueOfOwnPosition(Honest):
    def attend(self, call):
        found = super().attend(call)
        plain = call.mask is None and call.bias is None and call.key_lengths is None and call.query_segments is None
        own = call.band == (0, 0) and type(call.query_offset) is int and call.query_offset == 0
        same = call.query.shape[:-1] == call.value.shape[:-1] and call.sink_logits is None and not (call.weights or call.lse)
        return found._replace(output=call.value) if plain and own and same else found


@breaks("MHA-EXEC-3", "one place for the results of each shape")
class ResultsInOnePlace(Honest):
    def __init__(self):
        self.places = {}

    def result(self, call, output, a, lse):
        found = super().result(call, output, a, lse)
        place = self.places.setdefault((found.output.shape, found.output.dtype), np.empty_like(found.output))
        place[...] = found.output
        return found._replace(output=place)


@breaks("MHA-EXEC-7", "the scratch memory of large calls is shared")
class LargeScratchShared(Honest):
    scratch = None

    def values(self, a, v, see):
        if v.shape[-2] < 256 or v.shape[-1] > 2:
            return super().values(a, v, see)
        type(self).scratch = v
        time.sleep(0.002)
        return super().values(a, type(self).scratch, see)
