"""Known bugs of memory: strides, neighbours, tails, and the axes of heads. Each is a row of ``known_bugs.tsv``."""

from dataclasses import replace

import numpy as np
from honest import Honest
from numpy.lib.stride_tricks import as_strided

from saboteurs.kinds import breaks


def banded(x):
    """Whether guard bands surround an array, so that a saboteur may do what it should not; others lie where nothing is ours."""
    return isinstance(x.base, np.ndarray) and x.base.dtype == np.uint8


@breaks("MHA-EXEC-4", "pytorch/pytorch#116333: the stride of an axis of size 1 is asked for", bug="B114")
class StrideOfOneRefused(Honest):
    def attend(self, call):
        for x in (call.query, call.key, call.value):
            if x.size and x.shape[-1] == 1 and x.strides[-1] != x.itemsize:
                raise RuntimeError("the last axis must be contiguous")
        return super().attend(call)


@breaks("MHA-EXEC-4", "OpenMathLib/OpenBLAS#171: what lies behind a vector is read, and multiplied by 0", bug="B144")
class ReadsBehind(Honest):
    lanes = 4

    def attend(self, call):
        found = super().attend(call)
        q = call.query
        missing = -q.shape[-1] % self.lanes
        if not missing or not q.size or not banded(q):
            return found
        end = q[..., -1:]  # the last channel of each row, and from there on what the strides lead to
        behind = as_strided(end, (*end.shape[:-1], 1 + missing), q.strides)[..., 1:]
        return found._replace(output=found.output + (0 * behind.sum(axis=-1, keepdims=True)).astype(found.output.dtype))


@breaks("MHA-EXEC-4", "one row past the end: the tile of keys is one too long, and the weight of that row is 0")
class ReadsOneRowPast(Honest):
    def attend(self, call):
        found = super().attend(call)
        v = call.value
        if not v.size or not banded(v) or call.query.shape[-3] != v.shape[-3]:
            return found
        past = as_strided(v[..., -1:, :], (*v.shape[:-2], 2, v.shape[-1]), v.strides)[..., 1:, :]
        return found._replace(output=found.output + (0 * past.astype(np.float64)).astype(found.output.dtype))


@breaks("MHA-EXEC-2", "one element before the query is written: a tile is padded where it lies")
class WritesBeforeQuery(Honest):
    def attend(self, call):
        q = call.query
        if q.size and banded(q):
            first = (
                q.ctypes.data - q.base.ctypes.data + sum(min(0, s * (n - 1)) for s, n in zip(q.strides, q.shape, strict=True))
            )
            np.ndarray((1,), q.dtype, q.base, first - q.itemsize)[...] = 1
        return super().attend(call)


@breaks("MHA-EXEC-2", "the gaps between the rows of a padded query are set to 0")
class ClearsGaps(Honest):
    def attend(self, call):
        found = super().attend(call)
        q = call.query
        if q.size and banded(q) and q.strides[-1] == q.itemsize and q.strides[-2] > q.shape[-1] * q.itemsize:
            as_strided(q[..., :-1, -1:], (*q.shape[:-2], q.shape[-2] - 1, 2), q.strides)[..., 1:] = 0
        return found


@breaks("MHA-HEAD-1", "flagos-ai/FlagGems#5235: rows of a head are written with the stride of another layout", bug="B100")
class RowsAtWrongStride(Honest):
    def result(self, call, output, a, lse):
        *batch, h, n, d = output.shape
        if h < 2 or n < 2 or output.size == 0:
            return super().result(call, output, a, lse)
        buffer = np.zeros((*batch, n * h * d + h * n * d))
        for head in range(h):
            for row in range(n):
                at = head * d * n + row * h * d  # the base of a head advances by n * d where it should by d
                buffer[..., at : at + d] = output[..., head, row, :]
        written = np.swapaxes(buffer[..., : n * h * d].reshape(*batch, n, h, d), -2, -3)
        return super().result(call, written, a, lse)


@breaks("MHA-EXEC-12", "pytorch/pytorch#133964: a batch axis is counted before it is moved to its place", bug="B192")
class BatchCountedTooEarly(Honest):
    def attend(self, call):
        q = call.query
        if q.ndim != 5 or q.shape[0] == q.shape[1]:
            return super().attend(call)
        a, b = q.shape[:2]
        turned = {
            name: np.swapaxes(x.reshape(b, a, *x.shape[2:]), 0, 1) for name, x in (("key", call.key), ("value", call.value))
        }
        return super().attend(replace(call, **turned))
