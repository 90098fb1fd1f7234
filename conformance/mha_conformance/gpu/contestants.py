"""Who computes attention on the device: our layers, and torch's. Each is a function that makes the work, or says why it cannot."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from importlib import import_module
from typing import Any, NamedTuple, TypeAlias

from mha_core import Api, BackendUnavailable, load


class NotHere(Exception):
    """Why somebody does not take part."""


class Work(NamedTuple):
    """``again()`` computes once; ``result()`` is the output as a NumPy array."""

    again: Callable[[], Any]
    result: Callable[[], Any]


Arrays: TypeAlias = tuple[Any, Any, Any, Any]
"""query, key, value and what arrives, (b, h, n, d) of CuPy."""


def ours(name: str, arrays: Arrays, causal: bool, backward: bool) -> Work:
    """The layer that begins with this name in ``explain``: "fused" or "cutile"."""
    try:
        api = load("cupy", kernel="cutile") if name == "cutile" else load("cupy")
    except BackendUnavailable as error:
        raise NotHere(error.reason) from error
    return of_api(api, name, arrays, causal, backward)


def of_api(api: Api, name: str, arrays: Arrays, causal: bool, backward: bool) -> Work:
    q, k, v, g = arrays
    options = {"is_causal": True, "query_offset": k.shape[-2] - q.shape[-2]} if causal else {}
    kernel = api.explain(q, k, v, **options)
    if not kernel.startswith(name):
        raise NotHere(kernel)
    if not backward:
        return Work(lambda: api.attention(q, k, v, **options), lambda: api.backend.to_host(api.attention(q, k, v, **options)))
    if "vjp" not in api.backend.claims.features:
        raise NotHere("the backend has no gradients")
    kept = api.attention(q, k, v, return_lse=True, **options)
    saved = {"output": kept.output, "lse": kept.lse}

    def gradients() -> Any:
        return api.attention_vjp(q, k, v, g, **saved, **options)

    return Work(gradients, lambda: api.backend.to_host(gradients().query))


def torchs(name: str, arrays: Arrays, causal: bool, backward: bool) -> Work:
    """``scaled_dot_product_attention`` held to one of its kernels: "flash" or "cudnn"."""
    try:
        torch: Any = import_module("torch")
    except ImportError as missing:
        raise NotHere("torch is not installed") from missing
    if not torch.cuda.is_available():
        raise NotHere("this torch is not built for CUDA")
    attention: Any = import_module("torch.nn.attention")
    kind = {"flash": attention.SDPBackend.FLASH_ATTENTION, "cudnn": attention.SDPBackend.CUDNN_ATTENTION}[name]
    sdpa = torch.nn.functional.scaled_dot_product_attention
    q, k, v, g = (torch.from_dlpack(x).requires_grad_(backward and i < 3) for i, x in enumerate(arrays))
    if causal and q.shape[-2] != k.shape[-2]:
        raise NotHere("its causal mask begins at the top left")

    def held() -> AbstractContextManager[Any]:
        stack = ExitStack()
        stack.enter_context(attention.sdpa_kernel([kind]))
        return stack

    def forward() -> Any:
        with held():
            return sdpa(q, k, v, is_causal=causal)

    try:
        output = forward()
    except RuntimeError as refused:
        raise NotHere(str(refused).splitlines()[0]) from refused
    if not backward:
        return Work(forward, lambda: forward().cpu().numpy())

    def gradients() -> Any:
        return torch.autograd.grad(output, (q, k, v), g, retain_graph=True)

    return Work(gradients, lambda: gradients()[0].cpu().numpy())


CONTESTANTS: dict[str, Callable[[Arrays, bool, bool], Work]] = {
    "fused": lambda *given: ours("fused", *given),
    "cutile": lambda *given: ours("cutile", *given),
    "torch flash": lambda *given: torchs("flash", *given),
    "torch cudnn": lambda *given: torchs("cudnn", *given),
}
