"""The formats by name, each a value: how its arrays become ``Projections`` and back, and what has to be said beside them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from mha_core.projections import Projections
from mha_core.weights import linears, packed, per_head
from mha_core.weights.interleaved import GPT_NEOX, MEGATRON, from_interleaved, to_interleaved
from mha_core.weights.linears import Names, from_linears, to_linears
from mha_core.weights.own import from_own, to_own
from mha_core.weights.packed import Packed, from_packed, to_packed
from mha_core.weights.per_head import PerHead, from_per_head, to_per_head
from mha_core.weights.reading import CLAUSE
from mha_core.weights.tiled import from_tiled, to_tiled
from mha_core.weights.torch_mha import from_torch_mha, to_torch_mha
from mha_spec.call import Array
from mha_spec.violation import Violation

Arrays = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Format:
    """One way of storing a layer. ``needs`` are the numbers that its arrays do not say: "heads", "kv_heads".

    ``read(arrays, **needs)`` and ``write(projections)`` are inverses, bit for bit (MHA-PROJ-19).
    """

    name: str
    holds: str
    needs: tuple[str, ...]
    from_arrays: Callable[..., Projections]
    write: Callable[[Projections], dict[str, Array]]

    def read(self, arrays: Arrays, **given: int) -> Projections:
        """Raises ``Violation`` (MHA-PROJ-19) where a number is missing or would be ignored, or an array does not fit."""
        if set(given) != set(self.needs):
            raise Violation(
                CLAUSE, f"{self.name} with {', '.join(sorted(given)) or 'nothing'}", ", ".join(self.needs) or "nothing beside the arrays",
                "give exactly what the arrays do not say themselves",
            )  # fmt: skip
        return self.from_arrays(arrays, **given)


def _linears(name: str, holds: str, names: Names, grouped: bool) -> Format:
    def read(arrays: Arrays, **given: Any) -> Projections:
        return from_linears(arrays, **_both(given), names=names)

    return Format(name, holds, _needs(grouped), read, lambda p: to_linears(p, names=names, grouped=grouped))


def _packed(name: str, holds: str, layout: Packed, grouped: bool) -> Format:
    def read(arrays: Arrays, **given: Any) -> Projections:
        return from_packed(arrays, **_both(given), layout=layout)

    return Format(name, holds, _needs(grouped), read, lambda p: to_packed(p, layout=layout, grouped=grouped))


def _interleaved(name: str, holds: str, layout: Packed) -> Format:
    def read(arrays: Arrays, **given: Any) -> Projections:
        return from_interleaved(arrays, **given, layout=layout)

    return Format(name, holds, _needs(True), read, lambda p: to_interleaved(p, layout=layout))


def _per_head(name: str, layout: PerHead) -> Format:
    return Format(
        name, layout.form, (), lambda arrays: from_per_head(arrays, layout=layout), lambda p: to_per_head(p, layout=layout)
    )


def _both(given: Mapping[str, Any]) -> dict[str, Any]:
    """A format without grouped heads needs one number: there are as many key heads."""
    return {"kv_heads": given["heads"], **given}


def _needs(grouped: bool) -> tuple[str, ...]:
    return ("heads", "kv_heads") if grouped else ("heads",)


_FORMATS = (
    Format("projections", "w_q ... b_o of mha_core.Projections", (), from_own, to_own),
    Format(
        "projections-tiled", "the same, query head i reading key head i mod h_kv", (),
        lambda arrays: from_tiled(from_own(arrays)), lambda p: to_own(to_tiled(p)),
    ),
    Format("torch-mha", "torch.nn.MultiheadAttention", ("heads",), from_torch_mha, to_torch_mha),
    _linears("mha-core", "mha_backends.torch.MultiHeadAttention: W_Q, W_K, W_V, W_O", linears.MHA_CORE, True),
    _per_head("keras-mha", per_head.KERAS_MHA),
    _per_head("keras-gqa", per_head.KERAS_GQA),
    _per_head("flax-nnx", per_head.FLAX_NNX),
    _linears("equinox", "equinox.nn.MultiheadAttention", linears.EQUINOX, False),
    _packed("onnxruntime", "com.microsoft.Attention (q|k|v, in x out), then output.weights", packed.ONNXRUNTIME, False),
    _linears("hf-llama", "q_proj, k_proj, v_proj, o_proj: Llama, Mistral, Qwen2, Gemma", linears.LLAMA, True),
    _linears("hf-bart", "q_proj, k_proj, v_proj, out_proj: BART, OPT, CLIP, Whisper", linears.BART, False),
    _linears("hf-bert", "self.query ... output.dense: BERT, RoBERTa", linears.BERT, False),
    _linears("hf-distilbert", "q_lin, k_lin, v_lin, out_lin", linears.DISTILBERT, False),
    _packed("hf-gpt2", "c_attn (q|k|v, in x out), c_proj", packed.GPT2, False),
    _packed("hf-phi3", "qkv_proj (q|k|v), o_proj", packed.PHI3, True),
    _packed("wqkv", "Wqkv (q|k|v), out_proj: flash-attn, MPT", packed.WQKV, True),
    _packed("timm", "qkv (q|k|v), proj: vision transformers", packed.TIMM, False),
    _interleaved("hf-neox", "query_key_value per head or group, dense: GPT-NeoX, BLOOM, Falcon", GPT_NEOX),
    _interleaved("megatron", "linear_qkv per group, linear_proj", MEGATRON),
)  # fmt: skip

FORMATS: Mapping[str, Format] = MappingProxyType({form.name: form for form in _FORMATS})
"""Every format by its name."""
