"""Known bugs of conduct: what is accepted, what races, what is never said. Each is a row of ``known_bugs.tsv``."""

import random

import numpy as np
from honest import Honest

from mha_core import Violation
from saboteurs.kinds import breaks


class Lenient(Honest):
    """A door that takes what ours refuses."""

    def functions(self):
        found = super().functions()
        attention = found["attention"]
        return {**found, "attention": lambda *arrays, **options: self.taken(attention, *arrays, **options)}

    def taken(self, attention, query, key, value, **options):
        raise NotImplementedError


@breaks("MHA-VAL-8", "QwenAudio/CosyVoice#628: a mask of floats is added", bug="B004")
class FloatMaskAdded(Lenient):
    def taken(self, attention, query, key, value, **options):
        mask = options.get("mask")
        if mask is not None and mask.dtype.kind == "f" and mask.dtype == query.dtype:
            options["bias"] = options.pop("mask")
        return attention(query, key, value, **options)


@breaks("MHA-VAL-9", "pytorch/pytorch#139462: a mask of other lengths is accepted, and gives zeros", bug="B190")
class MaskOfOtherLengths(Lenient):
    def taken(self, attention, query, key, value, **options):
        mask = options.get("mask")
        if mask is None or mask.ndim != 2 or mask.dtype != bool:
            return attention(query, key, value, **options)
        try:
            return attention(query, key, value, **options)
        except Violation as refusal:
            if refusal.clause != "MHA-VAL-9":
                raise
            return np.zeros((*query.shape[:-1], value.shape[-1]), query.dtype)


@breaks("MHA-VAL-22", "vllm-project/vllm#57614: an option that does not exist is ignored", bug="B191")
class UnknownOptionIgnored(Lenient):
    known = (
        "mask", "bias", "is_causal", "query_offset", "window", "key_lengths", "query_segments", "key_segments", "scale", "softcap",
        "sink_logits", "dropout", "return_weights", "return_lse",
    )  # fmt: skip

    def taken(self, attention, query, key, value, **options):
        return attention(query, key, value, **{name: x for name, x in options.items() if name in self.known})


@breaks(
    "MHA-EXEC-5",
    "facebookresearch/xformers#1392: a race leaves NaN in a tile now and then, at lengths just past one",
    bug="B194",
)
class TileOfNaN(Honest):
    def __init__(self):
        self.dice = random.Random(194)

    def result(self, call, output, a, lse):
        if call.key.shape[-2] % 32 == 1 and call.key.shape[-2] > 32 and self.dice.random() < 0.25:
            output = output * np.nan
        return super().result(call, output, a, lse)
