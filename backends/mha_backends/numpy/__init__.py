"""Attention on NumPy arrays: blocked, with online softmax, in memory linear in n and m, at the rate of the matrix products.

``load("numpy", threads=2)`` sets the number of threads; by default it is what the BLAS is allowed at the time of the call.
"""

from mha_backends.numpy.backend import create
from mha_core.door import bind

__all__ = [
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
    "project_keys_values",
]

_api = bind(create())
attention = _api.attention
multi_head_attention = _api.multi_head_attention
merge_partials = _api.merge_partials
attention_varlen, attention_statistics = _api.attention_varlen, _api.attention_statistics
project_keys_values, multi_head_attention_over = _api.project_keys_values, _api.multi_head_attention_over
attention_vjp = _api.attention_vjp
multi_head_attention_vjp = _api.multi_head_attention_vjp
attention_jvp = _api.attention_jvp
