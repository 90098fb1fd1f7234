"""Attention on CuPy arrays, by one of two layers, which ``choose`` names and ``explain`` tells.

``fused`` are kernels of our own on tensor cores, one for the forward and three for the gradients, for half types from compute
capability 8.0 on; ``unfused`` is cuBLAS for the products and our kernels between them, for everything else.

.. warning:: Compiled for GPUs and run on an emulator of them; **not yet run on a GPU**.
   Bitwise non-interference (MHA-MASK-19) is what the kernels are written for and is therefore not claimed:
   a claim of class strict needs a run on a device.

Everything is enqueued on CuPy's current stream, nothing synchronises, results stay on the query's device, and extra
memory is linear in n and m. Products of half types accumulate in float32; float32 is true float32 unless
``load("cupy", tf32=True)`` asks for TF32, which is a numeric profile of its own (MHA-NUM-11).

Without CuPy this import raises ``BackendUnavailable``. With CuPy and no CUDA device ``create`` works,
``devices()`` is empty, and a call raises ``BackendUnavailable``: NOT_RUN, never computed elsewhere.
"""

from mha_backends.cupy.backend import create
from mha_core.door import bind

__all__ = [
    "attention",
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
attention_vjp, multi_head_attention_vjp = _api.attention_vjp, _api.multi_head_attention_vjp
attention_varlen, attention_statistics = _api.attention_varlen, _api.attention_statistics
project_keys_values, multi_head_attention_over = _api.project_keys_values, _api.multi_head_attention_over
