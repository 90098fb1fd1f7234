"""Known bugs of what stands beside the output: lse and merge. Each is a row of ``known_bugs.tsv``."""

import numpy as np
from honest import Honest

from saboteurs.kinds import breaks
from saboteurs.results import Merging


@breaks("MHA-AUX-5", "vllm-project/flash-attention#87: the lse of a decoding step has its groups in another order", bug="B099")
class LseGroupsSwapped(Honest):
    def result(self, call, output, a, lse):
        h, h_kv, n = call.query.shape[-3], call.key.shape[-3], call.query.shape[-2]
        if n == 1 and h_kv > 1 and h > h_kv:
            grouped = lse.reshape(*lse.shape[:-2], h_kv, h // h_kv)
            lse = np.swapaxes(grouped, -1, -2).reshape(lse.shape)
        return super().result(call, output, a, lse)


@breaks("MHA-MASK-15", "flashinfer-ai/flashinfer#4452: an empty row has a finite lse", bug="B179")
class EmptyLseFinite(Honest):
    def result(self, call, output, a, lse):
        return super().result(call, output, a, np.where(lse == -np.inf, -5e4, lse))


@breaks("MHA-AUX-7", "vllm-project/vllm#22003: a merge reads a transposed lse as if it were contiguous", bug="B118")
class MergeReadsFlat(Merging):
    def merged(self, parts):
        return super().merged([(o, self.flat(lse)) for o, lse in parts])

    def flat(self, lse):
        if lse.flags.c_contiguous:
            return lse
        inner = np.argsort([-stride for stride in lse.strides], kind="stable")
        return np.ascontiguousarray(lse.transpose(inner)).reshape(lse.shape)
