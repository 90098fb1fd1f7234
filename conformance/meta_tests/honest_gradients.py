"""The honest attention backwards, cut into steps that a saboteur can replace one at a time."""

from dataclasses import replace
from typing import Any

import numpy as np
from honest import Honest

from mha_core import AttentionGradients, Call, Cotangents


class HonestGradients(Honest):
    """Chapter 5 by the text, in float64, rounded once."""

    claims = replace(Honest.claims, features=Honest.claims.features | {"vjp"})

    def attend_vjp(self, call: Call, arriving: Cotangents, kept: Any) -> AttentionGradients:
        with np.errstate(all="ignore"):
            self.call, self.kept = call, kept
            f = self.forward(call)
            q, k, v, see, a = f["q"], f["k"], f["v"], f["see"], f["a"]
            dO, dL, dA = (None if x is None else x.astype(np.float64) for x in arriving)
            dP = self.through_dropout(call, self.through_values(dO, v))
            dP = dP if dA is None else dP + self.at_weights(dA)
            D = np.where(see, a * dP, 0.0).sum(-1, keepdims=True)
            dS = np.where(see, self.score_gradient(a, dP, self.mean(D), dL), 0.0)
            dX = self.through_cap(dS, f["x"], call.softcap)
            h_kv = call.key.shape[-3]
            return self.rounded(
                call,
                query=self.query_gradient(dX, k, see, self.scale(call)),
                key=self.over_group(self.key_gradient(dX, q, see, self.scale(call)), h_kv),
                value=self.over_group(self.value_gradient(self.through_dropout(call, a), dO, see), h_kv),
                bias=None if call.bias is None else self.bias_gradient(dS, call.bias),
                sink_logits=None if call.sink_logits is None else self.sink_gradient(call.sink_logits, f["lse"], D, dL, see),
            )

    def forward(self, call: Call) -> dict[str, Any]:
        """What the backward computes again."""
        q, k, v = (np.asarray(x).astype(np.float64) for x in (call.query, call.key, call.value))
        k, v = self.heads(k, q.shape[-3]), self.heads(v, q.shape[-3])
        x = self.scores(q, k, self.scale(call))
        s = self.biased(self.capped(x, call.softcap), call.bias)
        see = np.broadcast_to(self.visible_backward(call), s.shape)
        sink = np.full((*s.shape[:-1], 1), -np.inf) if call.sink_logits is None else self.sink(call.sink_logits, s)
        a, lse = self.softmax(np.clip(s, -1.7e308, 1.7e308), see, sink)
        return {"q": q, "k": k, "v": v, "x": x, "see": see, "a": a, "lse": lse}

    def visible_backward(self, call: Call) -> Any:
        return self.visible(call)

    def through_values(self, dO: Any, v: Any) -> Any:
        return (dO[..., :, None, :] * v[..., None, :, :]).sum(-1)

    def through_dropout(self, call: Call, x: Any) -> Any:
        return self.dropped(call, x)

    def at_weights(self, dA: Any) -> Any:
        return dA

    def mean(self, D: Any) -> Any:
        return D

    def score_gradient(self, a: Any, dP: Any, D: Any, dL: Any) -> Any:
        return a * (dP - D + (0.0 if dL is None else dL[..., None]))

    def through_cap(self, dS: Any, x: Any, c: float | None) -> Any:
        return dS if c is None else dS * (1.0 - np.tanh(x / c) ** 2)

    def query_gradient(self, dX: Any, k: Any, see: Any, scale: float) -> Any:
        return scale * self.values(dX, k, see)

    def key_gradient(self, dX: Any, q: Any, see: Any, scale: float) -> Any:
        return scale * self.values(np.swapaxes(dX, -1, -2), q, np.swapaxes(see, -1, -2))

    def value_gradient(self, a: Any, dO: Any, see: Any) -> Any:
        return self.values(np.swapaxes(a, -1, -2), dO, np.swapaxes(see, -1, -2))

    def over_group(self, x: Any, h_kv: int) -> Any:
        *b, h, m, d = x.shape
        return x.reshape(*b, h_kv, h // h_kv if h_kv else 1, m, d).sum(-3)

    def bias_gradient(self, dS: Any, bias: Any) -> Any:
        axes = tuple(axis for axis, size in enumerate(bias.shape) if size == 1 and dS.shape[axis] != 1)
        return dS.sum(axis=axes, keepdims=True) if axes else dS

    def sink_gradient(self, sinks: Any, lse: Any, D: Any, dL: Any, see: Any) -> Any:
        p = np.where(see.any(-1), np.exp(sinks.astype(np.float64)[:, None] - lse), 1.0)
        terms = np.where(sinks[:, None] == -np.inf, 0.0, p * ((0.0 if dL is None else dL) - D[..., 0]))
        return terms.sum(axis=(*range(terms.ndim - 2), -1))

    def rounded(self, call: Call, **found: Any) -> AttentionGradients:
        return AttentionGradients(
            **{name: None if x is None else x.astype(getattr(call, name).dtype) for name, x in found.items()}
        )


class ShiftedScores(HonestGradients):
    """tinygrad/tinygrad#2425: every score of a row is 1 higher. Nothing changes, so nothing may be said."""

    def softmax(self, s: Any, see: Any, sink: Any) -> Any:
        a, lse = super().softmax(s + 1.0, see, sink + 1.0)
        return a, lse - 1.0
