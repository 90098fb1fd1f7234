"""Multi-head attention as an ``nn.Module`` whose state dict is the textbook module's."""

from typing import Any

from torch import Tensor, nn

from mha_backends.torch.backend import create
from mha_core import AttentionResult, Violation, bind, head_size


class MultiHeadAttention(nn.Module):
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O with linear layers ``W_Q``, ``W_K``, ``W_V``, ``W_O``.

    ``forward(x)`` is self-attention, ``forward(query, key, value)`` attention to something else; x ``(*batch, n, d_model)``,
    key ``(*batch, m, d_in_k)``, value ``(*batch, m, d_in_v)``, result ``(*batch, n, d_out)``. Keywords are the options
    of ``attention`` and act on the heads (MHA-PROJ-12); with ``return_weights`` or ``return_lse`` the result is an
    ``AttentionResult``. Head i owns the features i*d_k .. (i+1)*d_k of W_Q (MHA-PROJ-6).

    ``d_k`` is d_model / n_heads unless given, ``d_v`` is ``d_k``, ``n_kv_heads`` is ``n_heads``, and the widths of key and value
    and the output are d_model. ``bias`` switches the biases of all four layers, ``bias_q`` ... ``bias_o`` one of them.
    A d_model that n_heads does not divide is a ``Violation``, a ValueError (MHA-PROJ-10).
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        n_kv_heads: int | None = None,
        d_k: int | None = None,
        d_v: int | None = None,
        d_in_k: int | None = None,
        d_in_v: int | None = None,
        d_out: int | None = None,
        bias: bool = True,
        bias_q: bool | None = None,
        bias_k: bool | None = None,
        bias_v: bool | None = None,
        bias_o: bool | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
        if self.n_kv_heads < 1 or n_heads % self.n_kv_heads:
            raise Violation(
                "MHA-VAL-7", f"n_heads = {n_heads} and n_kv_heads = {self.n_kv_heads}", "n_heads a multiple of n_kv_heads",
                "query head i reads key head i // (n_heads // n_kv_heads): choose a divisor",
            )  # fmt: skip
        self.d_k = head_size(d_model, n_heads) if d_k is None else d_k
        self.d_v = self.d_k if d_v is None else d_v

        def layer(width: int | None, features: int, switch: bool | None) -> nn.Linear:
            width = d_model if width is None else width
            return nn.Linear(width, features, bias if switch is None else switch, device=device, dtype=dtype)

        self.W_Q = layer(None, n_heads * self.d_k, bias_q)
        self.W_K = layer(d_in_k, self.n_kv_heads * self.d_k, bias_k)
        self.W_V = layer(d_in_v, self.n_kv_heads * self.d_v, bias_v)
        self.W_O = layer(n_heads * self.d_v, d_model if d_out is None else d_out, bias_o)

    def forward(
        self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None, **options: Any
    ) -> Tensor | AttentionResult:
        """Without ``key`` the query attends to itself; without ``value`` the keys are the values."""
        key = query if key is None else key
        value = key if value is None else value
        result = _attention(
            _split(self.W_Q(query), self.n_heads),
            _split(self.W_K(key), self.n_kv_heads),
            _split(self.W_V(value), self.n_kv_heads),
            **options,
        )
        if isinstance(result, AttentionResult):
            return result._replace(output=self.W_O(_join(result.output)))
        joined: Tensor = self.W_O(_join(result))
        return joined

    def extra_repr(self) -> str:
        return f"n_heads={self.n_heads}, n_kv_heads={self.n_kv_heads}, d_k={self.d_k}, d_v={self.d_v}"


_attention = bind(create()).attention


def _split(x: Tensor, heads: int) -> Tensor:
    """(*batch, n, h*d) -> (*batch, h, n, d), a view."""
    return x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads).transpose(-3, -2)


def _join(x: Tensor) -> Tensor:
    """(*batch, h, n, d) -> (*batch, n, h*d)"""
    return x.transpose(-3, -2).flatten(-2)
