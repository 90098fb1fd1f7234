"""Known bugs of a layer: heads split and joined without moving the axis, biases that must be there. Rows of ``known_bugs.tsv``."""

from typing import Any

import numpy as np
from honest import Honest

from saboteurs.kinds import breaks


class Merged(Honest):
    """A layer in the merged form: wide products, then heads split off and joined again."""

    def functions(self):
        attention = super().functions()["attention"]

        def layer(query: Any, key: Any, value: Any, p: Any, **options: Any) -> Any:
            heads = [
                self.split(self.linear(x, self.side_by_side(w), None if b is None else b.reshape(-1)), w.shape[0])
                for x, w, b in ((query, p.w_q, p.b_q), (key, p.w_k, p.b_k), (value, p.w_v, p.b_v))
            ]
            self.check(p)
            found = attention(*heads, **options)
            output = found.output if hasattr(found, "output") else found
            h, d_v, d_out = p.w_o.shape
            joined = self.linear(self.join(output), p.w_o.reshape(h * d_v, d_out), p.b_o)
            return found._replace(output=joined) if hasattr(found, "output") else joined

        return {**super().functions(), "layer": layer}

    def side_by_side(self, w: Any) -> Any:
        """(h, i, d) -> (i, h * d)."""
        return np.moveaxis(w, 0, 1).reshape(w.shape[1], -1)

    def split(self, x: Any, h: int) -> Any:
        """(*b, n, h * d) -> (*b, h, n, d)."""
        return np.swapaxes(x.reshape(*x.shape[:-1], h, -1), -2, -3)

    def join(self, x: Any) -> Any:
        """(*b, h, n, d) -> (*b, n, h * d)."""
        *batch, h, n, d = x.shape
        return np.swapaxes(x, -2, -3).reshape(*batch, n, h * d)

    def check(self, p: Any) -> None:
        """What a layer asks of its projections."""


@breaks("MHA-PROJ-3", "reczoo/FuxiCTR#30: heads are split off without moving the axis", bug="B101")
class SplitWithoutMove(Merged):
    def split(self, x, h):
        return x.reshape(*x.shape[:-2], h, x.shape[-2], -1)


@breaks("MHA-PROJ-3", "llvm/torch-mlir#4470: a batch of rank 3 is reshaped straight to heads", bug="B102")
class SplitWithoutMoveForBatches(Merged):
    def split(self, x, h):
        return x.reshape(*x.shape[:-2], h, x.shape[-2], -1) if x.ndim == 3 else super().split(x, h)


@breaks("MHA-PROJ-3", "MarcoMeter/episodic-transformer-memory-ppo#22: one projection serves all heads", bug="B104")
class OneProjection(Merged):
    def side_by_side(self, w):
        return super().side_by_side(np.broadcast_to(w[:1], w.shape))


@breaks("MHA-PROJ-3", "jsbaan/transformer-from-scratch#6: heads are joined without moving the axis", bug="B105")
class JoinWithoutMove(Merged):
    def join(self, x):
        *batch, h, n, d = x.shape
        return x.reshape(*batch, n, h * d)


@breaks("MHA-PROJ-3", "pytorch/pytorch#97128: a fast path needs biases and an even number of heads", bug="B188")
class NeedsBiases(Merged):
    def check(self, p):
        if p.w_q.shape[0] > 1 and (p.b_q is None or p.w_q.shape[0] % 2):
            raise TypeError("bias must be a tensor, not None")
