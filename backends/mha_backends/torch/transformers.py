"""Attention for the models of Hugging Face ``transformers``: one function for its attention interface, one for its masks.

    from mha_backends.torch import register_with_transformers

    register_with_transformers()
    model.set_attn_implementation("mha_core")      # or from_pretrained(..., attn_implementation="mha_core")

``transformers`` may hand ``None`` for a mask, which its own functions take as causal or as full, depending on the function and on
the module (its ``eager`` sees everything, its ``sdpa`` looks at ``module.is_causal``). The mask function that is registered beside
always gives the boolean mask, True = attend (MHA-MASK-2), so causality, windows, padding and the cache come as one mask, and a
``None`` that arrives all the same, from a module that makes no mask, is accepted only where the module says it is not causal.

A call with a mask takes the formula, block by block, and not torch's fused kernel: that is the price of one meaning.

Rows that see nothing give 0 (MHA-MASK-15), where ``eager`` gives a mean of what is hidden: padding tokens differ, on purpose.
What cannot be honoured is refused by name: dropout in training, packed lengths, and every keyword that is not listed here.
"""

from typing import Any

import torch
from torch import Tensor, nn

from mha_backends.torch.backend import create
from mha_core import AttentionResult, BackendUnavailable, Unsupported, bind

_attention = bind(create()).attention

_SAYS_NOTHING = frozenset({
    "cache_position", "deterministic", "encoder_hidden_states", "logits_to_keep", "num_items_in_batch", "output_hidden_states",
    "output_router_logits", "past_key_values", "cache", "position_embeddings", "position_ids", "return_dict", "use_cache",
})  # fmt: skip
"""Keywords that modules pass on and that change no attention: positions are in the mask, or already in the operands."""


def register_with_transformers(name: str = "mha_core") -> str:
    """Registers the attention and its masks under ``name``, which becomes a legal ``attn_implementation``, and returns it.

    Registering again is harmless. Models are not touched: each is told with ``set_attn_implementation(name)``. Modules that
    do not ask the attention interface (BLOOM, Falcon, MPT, ...) keep their own code, and ``transformers`` says so.
    Raises ``BackendUnavailable`` without transformers.
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise BackendUnavailable(
            "torch",
            f"transformers with an attention interface cannot be imported ({error})",
            "pip install --upgrade transformers",
        ) from error
    AttentionInterface.register(name, attention_of_module)
    AttentionMaskInterface.register(name, boolean_mask)
    return name


def boolean_mask(**how: Any) -> Tensor:
    """The mask that ``transformers`` describes, always: boolean, (batch, 1 or h, n, m), True = attend."""
    from transformers.masking_utils import sdpa_mask

    mask: Tensor = sdpa_mask(**{**how, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})
    return mask


def attention_of_module(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    output_attentions: bool | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """query (b, h, n, d_k), key (b, h_kv, m, d_k), value (b, h_kv, m, d_v) -> output (b, n, h, d_v), and weights if asked for.

    ``scaling``, ``softcap`` and the sinks ``s_aux (h,)`` are the options of ``attention``; a mask of numbers and a
    ``position_bias`` are added to the scores. ``sliding_window`` and ``is_causal`` describe the mask, which is what counts; without
    a mask they are refused.
    """
    if dropout:
        raise Unsupported(
            "torch", f"dropout={dropout} from {_kind(module)}", "no dropout: call model.eval(), or set its rate to 0"
        )
    for name, given in others.items():
        if given is not None and name not in _SAYS_NOTHING:
            raise Unsupported("torch", f"{name} from {_kind(module)}", "options of attention; it would be ignored here")
    result = _attention(
        query, key, value,
        scale=scaling, softcap=softcap, sink_logits=s_aux,
        return_weights=bool(output_attentions),
        **_hidden(module, attention_mask, position_bias, is_causal, sliding_window),
    )  # fmt: skip
    output, weights = (result.output, result.weights) if isinstance(result, AttentionResult) else (result, None)
    return output.transpose(1, 2).contiguous(), weights


def _hidden(
    module: nn.Module, mask: Tensor | None, position_bias: Tensor | None, is_causal: bool | None, window: int | None
) -> dict[str, Tensor]:
    """``mask`` and ``bias``: boolean masks select, numbers are added."""
    if mask is None:
        causal = getattr(module, "is_causal", None) if is_causal is None else is_causal
        if causal is not False or window is not None:
            raise Unsupported(
                "torch", f"no mask from {_kind(module)}, whose is_causal is {causal} and whose sliding_window is {window}",
                "a mask, or is_causal = False and no window: None would be causal to one implementation and full to another. Call the "
                "whole model, which makes the mask, or give a boolean one of four axes",
            )  # fmt: skip
    options = {}
    if mask is not None and mask.dtype == torch.bool:
        options["mask"] = mask
    elif mask is not None:
        position_bias = mask if position_bias is None else position_bias + mask
    if position_bias is not None:
        options["bias"] = position_bias
    return options


def _kind(module: nn.Module) -> str:
    return type(module).__name__
