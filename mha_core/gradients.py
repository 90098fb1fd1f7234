"""The door of the gradients: what arrives is checked against the call's results, what leaves has the operands' form."""

import inspect
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import array_api_compat

from mha_core.backend import Backend, check_claimed
from mha_core.layer_gradients import MultiHeadGradients, multi_head_vjp
from mha_core.projections import Projections
from mha_spec.call import Array, AttentionGradients, AttentionResult, Call, Tangents
from mha_spec.contract import attention_call
from mha_spec.contract_gradients import check_layer_cotangent, checked_cotangents, checked_forward, checked_tangents
from mha_spec.contract_layer import check_layer

_OPTIONS = frozenset(inspect.signature(attention_call).parameters) - {
    "query", "key", "value", "library", "return_weights", "return_lse",
}  # fmt: skip


@runtime_checkable
class AttentionVjp(Protocol):
    """``attention_vjp``: the gradients of a loss that depends on the results of ``attention``."""

    def __call__(self, query: Array, key: Array, value: Array, grad_output: Array, **options: Any) -> AttentionGradients: ...


@runtime_checkable
class MultiHeadAttentionVjp(Protocol):
    """``multi_head_attention_vjp``: the same of the layer, with gradients of its projections."""

    def __call__(
        self, query: Array, key: Array, value: Array, projections: Projections, grad_output: Array, **options: Any
    ) -> MultiHeadGradients: ...


@runtime_checkable
class AttentionJvp(Protocol):
    """``attention_jvp``: the results of ``attention``, and how fast they move when the operands do."""

    def __call__(
        self, query: Array, key: Array, value: Array, tangents: Tangents, **options: Any
    ) -> tuple[AttentionResult, AttentionResult]: ...


def bind_gradients(backend: Backend, legal: Callable[..., Call]) -> tuple[AttentionVjp, MultiHeadAttentionVjp, AttentionJvp]:
    """The three functions of a backend; ``legal`` makes a call of arguments and has checked them and the options' claims."""
    library = backend.claims.arrays

    def attention_vjp(
        query: Array,
        key: Array,
        value: Array,
        grad_output: Array,
        *,
        grad_lse: Array | None = None,
        grad_weights: Array | None = None,
        output: Array | None = None,
        lse: Array | None = None,
        **options: Any,
    ) -> AttentionGradients:
        """The gradients of <grad_output, output> + <grad_lse, lse> + <grad_weights, weights>, chapter 5.

        .. math:: dV = A^T dO, \\quad dS = A \\circ (dO V^T + dA - D + dL), \\quad dQ = \\sigma\\, dS\\, K, \\quad dK = \\sigma\\, dS^T Q

        ``grad_output (*batch, h, n, d_v)``, ``grad_lse (*batch, h, n)`` and ``grad_weights (*batch, h, n, m)`` have the dtypes of
        what they belong to. ``output`` and ``lse`` are those of ``attention`` with ``return_lse=True``, both or neither; without
        them the forward is run again. The options are those of ``attention``; ``scale`` and ``softcap`` are constants.
        Gives ``AttentionGradients(query, key, value, bias, sink_logits)``, each in its operand's shape and dtype; the last two
        are None where the call has none. Raises ``Violation`` and ``Unsupported`` as ``attention`` does.
        """
        _check_options("attention_vjp", options)
        call = legal(query, key, value, **options)
        cotangents = checked_cotangents(call, grad_output, grad_lse, grad_weights, library)
        forward = checked_forward(call, output, lse, library)
        _check_claimed(backend, {"vjp": True, "lse": grad_lse is not None, "weights": grad_weights is not None})
        assert backend.attend_vjp is not None
        return _as_given(backend.attend_vjp(call, cotangents, forward), options.get("bias"))

    def multi_head_attention_vjp(
        query: Array,
        key: Array,
        value: Array,
        projections: Projections,
        grad_output: Array,
        *,
        grad_lse: Array | None = None,
        grad_weights: Array | None = None,
        **options: Any,
    ) -> MultiHeadGradients:
        """The gradients of the layer, MHA-GRAD-17: those of its inputs, of its projections, and of bias and sinks.

        ``grad_output (*batch, n, d_out)`` belongs to the layer's output, the other two to its heads. The forward is run again. Gives
        ``MultiHeadGradients(query, key, value, projections, bias, sink_logits)``; where query, key and value are one array, its
        gradient is the sum of the three. Raises as ``multi_head_attention`` does.
        """
        _check_options("multi_head_attention_vjp", options)
        check_layer(query, key, value, projections, library)
        check_layer_cotangent(query, projections, grad_output, library)
        _check_claimed(backend, {"vjp": True, "layer": True, "lse": grad_lse is not None, "weights": grad_weights is not None})

        def attend(*heads: Array) -> AttentionResult:
            return backend.attend(legal(*heads, return_lse=True, **options))

        def attend_vjp(q: Array, k: Array, v: Array, dheads: Array, heads: AttentionResult) -> AttentionGradients:
            kept = {"output": heads.output, "lse": heads.lse}
            return attention_vjp(q, k, v, dheads, grad_lse=grad_lse, grad_weights=grad_weights, **kept, **options)

        return multi_head_vjp(backend.linear, attend, attend_vjp, query, key, value, projections, grad_output)

    def attention_jvp(
        query: Array, key: Array, value: Array, tangents: Tangents, **options: Any
    ) -> tuple[AttentionResult, AttentionResult]:
        """The results of ``attention`` and their derivative along ``tangents``, MHA-GRAD-21.

        ``Tangents(query, key, value, bias, sink_logits)`` holds a direction for each operand, in its shape and dtype, or None for
        one that stays. Gives two ``AttentionResult``, with weights and lse where ``return_weights`` and ``return_lse`` ask for them.
        Raises as ``attention`` does, and MHA-GRAD-21 for tangents that do not fit.
        """
        if unknown := sorted(options.keys() - _OPTIONS - {"return_weights", "return_lse"}):
            raise TypeError(f"attention_jvp() got an unexpected keyword argument {unknown[0]!r}")
        call = legal(query, key, value, **options)
        moving = checked_tangents(call, tangents, library)
        check_claimed(backend, {"jvp"})
        assert backend.attend_jvp is not None
        return backend.attend_jvp(call, moving)

    return attention_vjp, multi_head_attention_vjp, attention_jvp


def _check_options(function: str, options: dict[str, Any]) -> None:
    if unknown := sorted(options.keys() - _OPTIONS):
        raise TypeError(f"{function}() got an unexpected keyword argument {unknown[0]!r}")


def _check_claimed(backend: Backend, asked: dict[str, bool]) -> None:
    check_claimed(backend, {name for name, wanted in asked.items() if wanted})


def _as_given(found: AttentionGradients, bias: Array | None) -> AttentionGradients:
    """The gradient of a bias of rank 2 has rank 2."""
    if bias is None:
        return found
    xp = array_api_compat.array_namespace(bias)
    return found._replace(bias=xp.reshape(found.bias, tuple(bias.shape)))
