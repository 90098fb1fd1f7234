"""Attention that is not ours, by name, each called as its own documentation shows. A new peer is a function and a line here."""

from functools import partial
from typing import Any

from mha_conformance.bench.competitor import Call, Competitor, backend


def naive_numpy(workload: Any) -> Call:
    """The two products and a softmax between them, each over the whole array of scores."""
    import numpy as np

    query, key, value = workload.operands()
    scale = np.asarray(workload.d**-0.5, query.dtype)
    visible = np.tri(workload.n, dtype=bool)

    def call() -> Any:
        scores = (query * scale) @ key.mT
        if workload.causal:
            scores = np.where(visible, scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return weights @ value

    return call


def torch_sdpa(workload: Any) -> Call:
    """``torch.nn.functional.scaled_dot_product_attention``, which picks its own kernel."""
    import torch

    query, key, value = (torch.from_numpy(x) for x in workload.operands())

    def call() -> Any:
        with torch.inference_mode():
            return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=workload.causal)

    return call


def torch_mha(workload: Any) -> Call:
    """``torch.nn.MultiheadAttention`` in eval mode, without weights, on the matrices of the layer."""
    import torch

    x, p = workload.operands()
    w_q, w_k, w_v, w_o = (torch.from_numpy(w) for w in p.merged()[:4])
    layer = torch.nn.MultiheadAttention(workload.width, workload.heads, bias=False, batch_first=True, dtype=w_q.dtype).eval()
    with torch.no_grad():
        layer.in_proj_weight.copy_(torch.cat([w_q.T, w_k.T, w_v.T]))
        layer.out_proj.weight.copy_(w_o.T)
    tokens = torch.from_numpy(x)

    def call() -> Any:
        with torch.inference_mode():
            return layer(tokens, tokens, tokens, need_weights=False)[0]

    return call


def jax_attention(workload: Any) -> Call:
    """``jax.nn.dot_product_attention`` under ``jit``, on the CPU. Its layout is (b, n, h, d)."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", workload.dtype == "float64")
    query, key, value = (jax.numpy.asarray(x.swapaxes(1, 2)) for x in workload.operands())
    attend = jax.jit(partial(jax.nn.dot_product_attention, is_causal=workload.causal))
    return lambda: attend(query, key, value).block_until_ready().swapaxes(1, 2)


def onnxruntime_attention(workload: Any) -> Call:
    """The operator Attention of ONNX opset 23, in a model that holds nothing else."""
    import onnxruntime
    from onnx import TensorProto, helper

    kind = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE}[workload.dtype]
    operands = dict(zip(("q", "k", "v"), workload.operands(), strict=True))
    inputs = [helper.make_tensor_value_info(name, kind, x.shape) for name, x in operands.items()]
    output = helper.make_tensor_value_info("o", kind, operands["q"].shape)
    node = helper.make_node("Attention", list(operands), ["o"], is_causal=int(workload.causal))
    graph = helper.make_graph([node], "attention", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return lambda: session.run(None, operands)[0]


def openvino_sdpa(workload: Any) -> Call:
    """The operator ScaledDotProductAttention of OpenVINO's opset 13, compiled for the CPU and told to keep the type."""
    import openvino
    from openvino import opset13

    operands = workload.operands()
    parameters = [opset13.parameter(x.shape, x.dtype) for x in operands]
    node = opset13.scaled_dot_product_attention(*parameters, causal=workload.causal)
    exact = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    request = openvino.Core().compile_model(openvino.Model([node], parameters), "CPU", exact).create_infer_request()
    return lambda: request.infer(operands)[0]


PEERS = {
    peer.name: peer
    for peer in (
        Competitor("torch-sdpa", torch_sdpa, ("torch",)),
        Competitor("onnxruntime", onnxruntime_attention, ("onnxruntime", "onnx")),
        Competitor("openvino", openvino_sdpa, ("openvino",)),
        Competitor("jax", jax_attention, ("jax",)),
        Competitor("naive-numpy", naive_numpy),
    )
}
LAYERS = {"torch-mha": Competitor("torch-mha", torch_mha, ("torch",))}
"""Those that are a layer with its projections."""

DEFAULT = ("numpy", "torch", *PEERS)
DEFAULT_LAYERS = ("numpy", "torch", *LAYERS)


def named(name: str) -> Competitor:
    """A peer, or else a backend of the registry; whether that can run is found out in its process."""
    return PEERS.get(name) or LAYERS.get(name) or Competitor(name, partial(backend, name))
