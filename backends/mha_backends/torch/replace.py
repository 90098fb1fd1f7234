"""``nn.MultiheadAttention`` in an existing model, replaced by one that keeps its parameters, its call and its state dict."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from mha_backends.torch.backend import create
from mha_core import AttentionResult, Unsupported, Violation, bind

SEPARATE = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
_attention = bind(create()).attention


def replace_attention(model: nn.Module) -> nn.Module:
    """Puts a ``DropIn`` in the place of every ``nn.MultiheadAttention`` of the model, which is changed and returned.

    A model that is itself such a module is returned as a new one. Parameters are shared, so an optimizer goes on with them, and
    the state dict has the same names. A ``nn.TransformerEncoder`` is told to hand its layers padded tensors, never nested ones;
    its output then has a row for every padding token too, of which torch promises nothing.

    Refused, before anything is changed: a model without such a module, subclasses, which may compute something else, modules with
    ``add_bias_kv`` or ``add_zero_attn``, and modules with hooks of their own.
    """
    found = [(name, m) for name, m in model.named_modules(remove_duplicate=False) if isinstance(m, nn.MultiheadAttention)]
    if not found:
        raise Unsupported(
            "torch", f"{type(model).__name__}, in which there is no nn.MultiheadAttention", "a model with at least one"
        )
    made = {id(m): DropIn(m, name or type(m).__name__) for name, m in found}
    if found[0][0] == "":
        return made[id(model)]
    for name, m in found:
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, made[id(m)])
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False
    return model


class DropIn(nn.Module):
    """``nn.MultiheadAttention`` with the same parameters and call, computed by ``attention``.

    Masks are torch's: a boolean ``key_padding_mask (N, S)`` or ``attn_mask (L, S)`` or ``(N h, L, S)`` is True where a key must
    *not* be seen, numbers are added to the scores. It differs in one answer: a query that sees nothing gets the bias of the output,
    where torch gives NaN or 0 depending on the path (MHA-MASK-15). Weights are averaged over the heads unless
    ``average_attn_weights=False``. Dropout while training is refused.
    """

    in_proj_weight: nn.Parameter | None
    in_proj_bias: nn.Parameter | None

    _qkv_same_embed_dim = False
    """What ``nn.TransformerEncoderLayer`` asks before it passes ``forward`` by, and computes the layer itself."""

    def __init__(self, theirs: nn.MultiheadAttention, name: str = "nn.MultiheadAttention") -> None:
        super().__init__()
        self._refuse(theirs, name)
        self.embed_dim, self.num_heads, self.head_dim = theirs.embed_dim, theirs.num_heads, theirs.head_dim
        self.kdim, self.vdim = theirs.kdim, theirs.vdim
        self.dropout, self.batch_first = theirs.dropout, theirs.batch_first
        for parameter in ("in_proj_weight", *SEPARATE, "in_proj_bias"):
            self.register_parameter(parameter, getattr(theirs, parameter))
        self.out_proj = theirs.out_proj
        self.train(theirs.training)

    @staticmethod
    def _refuse(theirs: nn.MultiheadAttention, name: str) -> None:
        given = None
        if type(theirs) is not nn.MultiheadAttention:
            given = f"{name}, a {type(theirs).__name__}"
        elif theirs.bias_k is not None or theirs.add_zero_attn:
            given = f"{name} with {'add_bias_kv' if theirs.bias_k is not None else 'add_zero_attn'}, a key of its own"
        elif theirs._forward_hooks or theirs._forward_pre_hooks or theirs._backward_hooks:
            given = f"{name} with hooks, which would be lost"
        if given:
            raise Unsupported("torch", given, "nn.MultiheadAttention itself, without added keys and hooks")

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """query (N, L, E), key (N, S, kdim), value (N, S, vdim), each (L, N, E) unless ``batch_first``, or without N.

        ``is_causal`` is a hint that ``attn_mask`` is causal, and asks for that mask, as in torch; the mask is what counts.
        """
        if self.training and self.dropout:
            raise Unsupported("torch", f"dropout={self.dropout} while training", "dropout 0, or a model in eval mode")
        if is_causal and attn_mask is None:
            raise Unsupported(
                "torch", "is_causal=True without attn_mask", "the mask itself, of which it is a hint in torch too"
            )
        batched = query.ndim == 3
        if not batched:
            query, key, value = (x[None] for x in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
        elif not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        heads = [self._heads(x, i) for i, x in enumerate((query, key, value))]  # (N, h, L or S, d)
        hidden = self._hidden(heads[0], heads[1].shape[-2], attn_mask, key_padding_mask)
        result = _attention(*heads, return_weights=need_weights, **hidden)
        output, weights = (result.output, result.weights) if isinstance(result, AttentionResult) else (result, None)
        output = self.out_proj(output.transpose(1, 2).flatten(-2))  # (N, L, E)
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)  # (N, L, S)
        if not batched:
            return output[0], None if weights is None else weights[0]
        return output if self.batch_first else output.transpose(0, 1), weights

    def _heads(self, x: Tensor, i: int) -> Tensor:
        """Operand i of query, key, value, projected: (N, L, width) -> (N, h, L, d)"""
        rows = slice(i * self.embed_dim, (i + 1) * self.embed_dim)
        if self.in_proj_weight is not None:
            weight = self.in_proj_weight[rows]
        else:
            weight = self.get_parameter(SEPARATE[i])
        projected = functional.linear(x, weight, None if self.in_proj_bias is None else self.in_proj_bias[rows])
        return projected.reshape(*x.shape[:-1], self.num_heads, self.head_dim).transpose(1, 2)

    def _hidden(self, query: Tensor, S: int, attn_mask: Tensor | None, padding: Tensor | None) -> dict[str, Tensor]:
        """``mask`` (True = attend, the other way round than given) and ``bias``, of the rank of the scores (N, h, L, S)."""
        N, h, L, _ = query.shape
        given = []
        if attn_mask is not None:
            wanted = (L, S) if attn_mask.ndim == 2 else (N * h, L, S)
            _check("attn_mask", attn_mask, wanted)
            given.append(attn_mask.reshape((1, 1, L, S) if attn_mask.ndim == 2 else (N, h, L, S)))
        if padding is not None:
            _check("key_padding_mask", padding, (N, S))
            given.append(padding.reshape(N, 1, 1, S))
        options: dict[str, Any] = {}
        for x in given:
            if x.dtype == torch.bool:
                options["mask"] = options["mask"] & ~x if "mask" in options else ~x
            else:
                options["bias"] = options["bias"] + x if "bias" in options else x
        return options

    def extra_repr(self) -> str:
        return f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, batch_first={self.batch_first}"


def _check(name: str, mask: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(mask.shape) != shape:
        raise Violation(
            "MHA-VAL-9", f"{name} {tuple(mask.shape)}", f"{shape}", "give the mask as nn.MultiheadAttention takes it"
        )
