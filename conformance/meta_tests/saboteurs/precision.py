"""Saboteurs of NUM: a coarser arithmetic, on the paths where a kernel would have one, and a scale that only squares get right."""

import math
from dataclasses import replace

import numpy as np
from honest import Honest

from mha_spec.profiles import TYPES
from saboteurs.kinds import breaks
from saboteurs.results import Merging


def coarse(x, bits):
    """x with so many significand bits."""
    fraction, exponent = np.frexp(np.asarray(x, dtype=np.float64))
    return np.ldexp(np.round(np.ldexp(fraction, bits)), exponent - bits)


def is_long(call):
    return call.key.shape[-2] >= 256 and call.query.shape[-1] >= 64


class LongRowsCoarse(Honest):
    """Rows of many wide keys take another path, whose factors have fewer bits."""

    dtype: str
    bits: int

    def attend(self, call):
        if call.query.dtype.name == self.dtype and is_long(call):
            narrow = {
                name: coarse(getattr(call, name), self.bits).astype(call.query.dtype) for name in ("query", "key", "value")
            }
            return super().attend(replace(call, **narrow))
        return super().attend(call)


@breaks("MHA-NUM-2", "a split kernel that exists in float32 only")
class LongDoublesInSingle(LongRowsCoarse):
    dtype, bits = "float64", 24


@breaks("MHA-NUM-11", "TF32 where the shapes suit the matrix unit")
class LongSinglesInTF32(LongRowsCoarse):
    dtype, bits = "float32", 11


@breaks("MHA-NUM-3", "long rows of half types are summed in the half type")
class LongHalvesSummedInHalf(Honest):
    def values(self, a, v, see):
        if not self.half or a.shape[-1] < 256:
            return super().values(a, v, see)
        total = np.zeros((*a.shape[:-1], v.shape[-1]))
        for j in range(a.shape[-1]):
            total = coarse(total + np.where(see[..., j, None], a[..., j, None] * v[..., None, j, :], 0.0), 8)
        return total

    def attend(self, call):
        self.half = call.query.itemsize == 2
        return super().attend(call)


@breaks("MHA-NUM-10", "the product is kept in float16 before it is scaled")
class ProductInHalfRange(Honest):
    def attend(self, call):
        self.half = call.query.dtype == np.float16
        return super().attend(call)

    def scores(self, q, k, scale):
        s = super().scores(q, k, 1.0)
        return scale * (np.clip(s, -65504, 65504) if self.half else s)


@breaks("MHA-NUM-6", "one tile is rescaled by 2 %")
class LastTileRescaled(Honest):
    def result(self, call, output, a, lse):
        if (call.query.shape[-2], call.key.shape[-2]) == (65, 63):
            output[..., 64:, :] *= 1.02
        return super().result(call, output, a, lse)


@breaks("MHA-NUM-7", "the sum of a long row is kept in bfloat16")
class LongLseCoarse(Honest):
    def result(self, call, output, a, lse):
        return super().result(call, output, a, coarse(lse, 8) if is_long(call) else lse)


@breaks("MHA-NUM-8", "weights of long rows are stored in bfloat16")
class LongWeightsCoarse(Honest):
    def result(self, call, output, a, lse):
        return super().result(call, output, coarse(a, 6) if is_long(call) else a, lse)


@breaks("MHA-NUM-9", "shares of many parts are kept in float16")
class ManyPartsCoarse(Merging):
    def merged(self, parts):
        if len(parts) > 8:
            parts = [(coarse(o, 6).astype(o.dtype), lse) for o, lse in parts]
        return super().merged(parts)


@breaks("MHA-NUM-13", "wide projections in TF32, or in eight bits of a half type")
class WideProjectionsCoarse(Honest):
    def linear(self, x, w, b):
        if x.shape[-1] < 256:
            return super().linear(x, w, b)
        bits = {8: 24, 4: 11, 2: 6}[x.dtype.itemsize]
        return super().linear(coarse(x, bits).astype(x.dtype), coarse(w, bits).astype(w.dtype), b)


@breaks("MHA-ATTN-2", "the root of d_k is rounded down to an integer")
class IntegerRoot(Honest):
    def scale(self, call):
        d = call.query.shape[-1]
        return 1 / math.isqrt(d) if d and math.isclose(call.scale, d**-0.5) else call.scale


def narrow(call):
    """The calls that a kernel for 16 queries of 32 channels in bfloat16 would take."""
    return call.query.dtype.name == "bfloat16" and call.query.shape == (1, 2, 16, 32)


@breaks("MHA-NUM-22", "the scale of one kernel is a little too large")
class ScaleSlightlyOff(Honest):
    def attend(self, call):
        return super().attend(replace(call, scale=1.003 * call.scale) if narrow(call) else call)


@breaks("MHA-NUM-20", "one element of one kernel is off by a twelfth part of itself")
class OneElementOff(Honest):
    def result(self, call, output, a, lse):
        if narrow(call):
            output[0, 0, 9, 11] *= 13 / 12
        return super().result(call, output, a, lse)


@breaks("MHA-NUM-19", "one kernel rescales a tile by 2 %")
class NarrowTileRescaled(Honest):
    def result(self, call, output, a, lse):
        if narrow(call):
            output[..., 8:12, 8:16] *= 1.02
        return super().result(call, output, a, lse)


def without_subnormals(x):
    """x with 0 for what is subnormal; float16 as it is, for the mode of a processor is that of float32 and float64."""
    tiny = 0.0 if x.dtype.name == "float16" else TYPES[x.dtype.name].smallest_normal
    return np.where(np.abs(x) < x.dtype.type(tiny), x.dtype.type(0), x)


@breaks("MHA-NUM-23", "denormals-are-zero: a library that was compiled for speed has set the mode of the processor")
class OperandsFlushed(Honest):
    def attend(self, call):
        return super().attend(
            replace(call, **{name: without_subnormals(getattr(call, name)) for name in ("query", "key", "value")})
        )


@breaks("MHA-NUM-23", "flush-to-zero: operands are read as they are, and results are not")
class ResultsFlushed(Honest):
    def result(self, call, output, a, lse):
        found = super().result(call, output, a, lse)
        weights = None if found.weights is None else without_subnormals(found.weights)
        return found._replace(output=without_subnormals(found.output), weights=weights)


@breaks("MHA-NUM-23", "the exponential alone flushes, as ex2.approx.ftz does")
class ExponentialFlushed(Honest):
    def softmax(self, s, see, sink):
        a, lse = super().softmax(s, see, sink)
        return np.where(a < TYPES[self.dtype].smallest_normal, 0.0, a), lse

    def attend(self, call):
        self.dtype = "float64" if call.query.dtype == np.float64 else "float32"
        return super().attend(call)
