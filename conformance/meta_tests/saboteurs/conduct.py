"""Saboteurs of EXEC and VAL: types, memory, strides, history, threads, batch mates, empty axes, refusals."""

import random
import time
from dataclasses import replace

import numpy as np
from honest import ALL, Honest

from saboteurs.kinds import breaks


@breaks("MHA-EXEC-1", "float64 comes back for float32")
class AlwaysFloat64(Honest):
    def after(self, result):
        return result.astype(np.float64) if isinstance(result, np.ndarray) else result


@breaks("MHA-EXEC-1", "float32 comes back for half types")
class HalfWidened(Honest):
    def after(self, result):
        half = isinstance(result, np.ndarray) and result.dtype.itemsize == 2
        return result.astype(np.float32) if half else result


@breaks("MHA-EXEC-2", "the query is scaled in place")
class QueryScaledInPlace(Honest):
    def attend(self, call):
        found = super().attend(call)
        if call.query.flags.writeable:
            np.multiply(call.query, np.asarray(call.scale or 1, call.query.dtype), out=call.query)
        return found


@breaks("MHA-EXEC-3", "the value is returned where there is one key")
class ValueReturned(Honest):
    def attend(self, call):
        found = super().attend(call)
        plain = (
            call.key.shape[-2] == 1
            and not call.hides
            and call.sink_logits is None
            and call.query.shape[-2] == 1
            and call.dropout is None
        )
        return found._replace(output=call.value) if plain and call.query.shape[-3] == call.key.shape[-3] else found


@breaks("MHA-EXEC-4", "ROCm/pytorch#3230: the value is read with the strides of the key", bug="B111")
class ValueStridesOfKey(Honest):
    def attend(self, call):
        v, k = call.value, call.key
        if v.shape == k.shape and v.strides != k.strides and not v.flags.c_contiguous and k.flags.c_contiguous:
            return super().attend(replace(call, value=np.swapaxes(v, -1, -2).reshape(v.shape)))
        return super().attend(call)


@breaks("MHA-EXEC-4", "torch-spyre/torch-spyre#4331: strides are ignored where the length is a multiple of 64", bug="B112")
class AlignedStridesIgnored(Honest):
    def attend(self, call):
        q = call.query
        if q.shape[-2] % 64 == 0 and q.size and not q.flags.c_contiguous:
            return super().attend(replace(call, query=np.sort(q, axis=-1)))
        return super().attend(call)


@breaks("MHA-EXEC-5", "pytorch/pytorch#184122: a cache whose key leaves something out, here the values")
class CachedWithoutValues(Honest):
    def __init__(self):
        self.cache = {}

    def attend(self, call):
        plain = not call.hides and call.sink_logits is None and call.softcap is None and not (call.weights or call.lse)
        if not plain:
            return super().attend(call)
        key = call.query.tobytes(), call.key.tobytes(), call.query.shape, call.value.shape, call.scale
        if key not in self.cache:
            self.cache[key] = super().attend(call)
        return self.cache[key]._replace(output=self.cache[key].output.copy())


@breaks("MHA-EXEC-6", "PaddlePaddle/Paddle#70298: the global random generator moves", bug="B156")
class MovesGenerator(Honest):
    def attend(self, call):
        random.random()
        return super().attend(call)


@breaks("MHA-EXEC-7", "scratch memory that calls share")
class SharedScratch(Honest):
    scratch = None

    def values(self, a, v, see):
        if v.shape[-2] != 48:
            return super().values(a, v, see)
        type(self).scratch = v
        time.sleep(0.005)
        return super().values(a, type(self).scratch, see)


@breaks("MHA-EXEC-8", "ggml-org/llama.cpp#13438: other bits now and then, within the bound", bug="B193")
class BitsDrift(Honest):
    calls = 0

    def result(self, call, output, a, lse):
        self.calls += 1
        found = super().result(call, output, a, lse)
        if not self.calls % 2 or call.query.itemsize == 2 or call.hides:
            return found
        up = np.nextafter(found.output, found.output.dtype.type(np.inf))
        return found._replace(output=np.where(found.output == 0, found.output, up))


@breaks("MHA-EXEC-11", "no queries, no answer")
class EmptyRefused(Honest):
    def attend(self, call):
        if 0 in call.query.shape:
            raise RuntimeError("empty tensor")
        return super().attend(call)


@breaks("MHA-EXEC-12", "every item reads the keys of item 0")
class KeysOfItemZero(Honest):
    def scores(self, q, k, scale):
        return super().scores(q, k[:1].repeat(len(k), axis=0) if k.ndim == 4 and len(k) == 3 and k.shape[-2] == 6 else k, scale)


def accepts(clause):
    """A saboteur that takes what this clause refuses, and answers with zeros."""

    class Accepts(Honest):
        claims = replace(ALL, arrays="numpy", features=ALL.features - {"vjp", "jvp"})

        def functions(self):
            found = super().functions()
            attention = found["attention"]

            def lenient(query, key, value, **options):
                try:
                    return attention(query, key, value, **options)
                except ValueError as error:
                    if getattr(error, "clause", None) != clause:
                        raise
                    return np.zeros((*query.shape[:-1], np.shape(value)[-1]), query.dtype)

            return {**found, "attention": lenient}

    Accepts.__name__ = f"Accepts_{clause.removeprefix('MHA-').replace('-', '_')}"
    return Accepts


for number in (*range(4, 19),):
    breaks(f"MHA-VAL-{number}", "what must be refused is accepted")(accepts(f"MHA-VAL-{number}"))
