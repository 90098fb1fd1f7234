"""The two forms of a layer that an article compares: a loop over heads, and all heads in merged products.

Both are written as one would write them without more thought, on the same matrices and with one function for the attention, so
that the form is all that differs (MHA-PROJ-5). The operations are equal in number (MHA-COST-5).
"""

from typing import Any

from mha_conformance.bench.competitor import Call, Competitor
from mha_conformance.bench.workload import Layer


def numpy_loop(workload: Layer) -> Call:
    import numpy as np

    x, p = workload.operands()
    w_o = p.merged().w_o

    def call() -> Any:
        heads = [_numpy_attention(x @ w_q, x @ w_k, x @ w_v) for w_q, w_k, w_v in zip(p.w_q, p.w_k, p.w_v, strict=True)]
        return np.concatenate(heads, axis=-1) @ w_o

    return call


def numpy_merged(workload: Layer) -> Call:
    x, p = workload.operands()
    w_q, w_k, w_v, w_o, *_ = p.merged()
    split = (workload.batch, workload.n, workload.heads, workload.d)

    def call() -> Any:
        q, k, v = ((x @ w).reshape(split).swapaxes(1, 2) for w in (w_q, w_k, w_v))  # (b, h, n, d)
        heads = _numpy_attention(q, k, v)
        return heads.swapaxes(1, 2).reshape(x.shape) @ w_o

    return call


def _numpy_attention(q: Any, k: Any, v: Any) -> Any:
    import numpy as np

    scores = q @ k.mT * np.asarray(q.shape[-1] ** -0.5, q.dtype)
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True) @ v


def torch_loop(workload: Layer) -> Call:
    import torch

    x, w_q, w_k, w_v, w_o = _tensors(workload)
    matrices = list(zip(w_q, w_k, w_v, strict=True))
    w_o = w_o.reshape(workload.width, workload.width)

    def call() -> Any:
        with torch.inference_mode():
            heads = [_torch_attention(x @ q, x @ k, x @ v) for q, k, v in matrices]
            return torch.cat(heads, dim=-1) @ w_o

    return call


def torch_merged(workload: Layer) -> Call:
    import torch

    x, *w = _tensors(workload)
    w_q, w_k, w_v = (matrix.transpose(0, 1).reshape(workload.width, workload.width) for matrix in w[:3])
    w_o = w[3].reshape(workload.width, workload.width)
    split = (workload.batch, workload.n, workload.heads, workload.d)

    def call() -> Any:
        with torch.inference_mode():
            q, k, v = ((x @ matrix).view(split).transpose(1, 2) for matrix in (w_q, w_k, w_v))  # (b, h, n, d)
            heads = _torch_attention(q, k, v)
            return heads.transpose(1, 2).reshape(x.shape) @ w_o

    return call


def _torch_attention(q: Any, k: Any, v: Any) -> Any:
    import torch

    return torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, dim=-1) @ v


def _tensors(workload: Layer) -> list[Any]:
    import torch

    x, p = workload.operands()
    return [torch.from_numpy(array) for array in (x, p.w_q, p.w_k, p.w_v, p.w_o)]


FORMS = (
    Competitor("numpy loop", numpy_loop),
    Competitor("numpy merged", numpy_merged),
    Competitor("torch loop", torch_loop, ("torch",)),
    Competitor("torch merged", torch_merged, ("torch",)),
)

PAIRS = (("numpy loop", "numpy merged"), ("torch loop", "torch merged"))
"""What is divided by what: the article's own figures are 12.4 ms / 3.1 ms = 4.0 and 256 MB / 128 MB = 2.0."""

ARTICLE = {"time": 4.0, "memory": 2.0}
