"""Known bugs of memory: strides, neighbours, tails, and the axes of heads. Each is a row of ``known_bugs.tsv``."""

from dataclasses import replace

import numpy as np
from honest import Honest

from saboteurs.kinds import breaks


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
        if q.base is None or q.shape[-1] % self.lanes == 0 or not isinstance(q.base, np.ndarray):
            return found
        behind = np.isnan(np.asarray(q.base, dtype=np.float64)).any() and not np.isnan(np.asarray(q, dtype=np.float64)).any()
        return found._replace(output=found.output * np.nan) if behind else found


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
