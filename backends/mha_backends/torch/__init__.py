"""PyTorch: ``from mha_backends.torch import attention``. Differentiable, on the device where the tensors live.

Written for the CPU and CUDA. Tested on the CPU; the CUDA path was not run where this was written, and MPS and XPU, which take
the formula, are untested. Memory is linear in the sequence without gradients, and in the fused kernel that serves
calls that hide nothing; with gradients the formula keeps the weights. float32 on CUDA obeys torch's TF32 switch:
``precision_report()`` says what the switches allow, and nothing here sets one.
"""

from mha_core import BackendUnavailable

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise BackendUnavailable("torch", f"torch cannot be imported ({error})", "pip install 'mha-core[torch]'") from error

from mha_backends.torch.backend import create
from mha_backends.torch.module import MultiHeadAttention
from mha_backends.torch.precision import precision_report
from mha_backends.torch.replace import DropIn, replace_attention
from mha_backends.torch.transformers import register_with_transformers
from mha_core import bind

__all__ = [
    "DropIn",
    "MultiHeadAttention",
    "attention",
    "attention_jvp",
    "attention_statistics",
    "attention_varlen",
    "attention_vjp",
    "create",
    "merge_partials",
    "multi_head_attention",
    "multi_head_attention_over",
    "multi_head_attention_vjp",
    "precision_report",
    "project_keys_values",
    "register_with_transformers",
    "replace_attention",
]

_api = bind(create())
attention, multi_head_attention, merge_partials = _api.attention, _api.multi_head_attention, _api.merge_partials
attention_varlen, attention_statistics = _api.attention_varlen, _api.attention_statistics
project_keys_values, multi_head_attention_over = _api.project_keys_values, _api.multi_head_attention_over
attention_vjp, multi_head_attention_vjp = _api.attention_vjp, _api.multi_head_attention_vjp
attention_jvp = _api.attention_jvp
