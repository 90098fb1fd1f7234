"""Saboteurs of what stands at the door: calls that must be refused, the words of a refusal, the form of a result."""

import numpy as np
from honest import Honest

from saboteurs.conduct import accepts
from saboteurs.kinds import breaks

for clause, answer in {
    "MHA-VAL-1": "a list is converted",
    "MHA-VAL-2": "operands of two dtypes are promoted",
    "MHA-VAL-3": "matrices are taken for one head",
    "MHA-VAL-19": "a rate of dropout is taken",
    "MHA-VAL-20": "numbers and words are taken for flags",
}.items():
    breaks(clause, answer)(accepts(clause))


@breaks("MHA-MASK-12", "lengths are read as integers of 32 bits")
class LengthsOf32Bits(Honest):
    def by_length(self, call):
        if call.key_lengths is None or not np.ndim(call.key_lengths):
            return super().by_length(call)
        return np.arange(call.key.shape[-2]) < call.key_lengths.astype(np.int32)[..., None, None, None]


@breaks("MHA-VAL-22", "every refusal says the same")
class RefusesWithoutWords(Honest):
    def functions(self):
        found = super().functions()
        attention = found["attention"]

        def curt(*arrays, **options):
            try:
                return attention(*arrays, **options)
            except ValueError:
                raise ValueError("invalid argument") from None

        return {**found, "attention": curt}


@breaks("MHA-PROJ-2", "projections of any shape are taken")
class AnyProjections(Honest):
    def functions(self):
        found = super().functions()
        layer = found["layer"]

        def lenient(query, *others, **options):
            try:
                return layer(query, *others, **options)
            except ValueError:
                return np.zeros_like(query)

        return {**found, "layer": lenient}


@breaks("MHA-AUX-11", "pairs whose second member depends on the flags")
class BareTuple(Honest):
    def after(self, result):
        return result if isinstance(result, np.ndarray) else tuple(result)


@breaks("MHA-AUX-12", "parts of any shape are merged by broadcasting")
class MergesAnything(Honest):
    def merge(self, parts):
        try:
            return super().merge(parts)
        except ValueError:
            return parts[0] if parts else (np.zeros((1, 1, 1)), np.zeros((1, 1)))
