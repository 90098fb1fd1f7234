"""Weights of other people's layers, read by ``mha_core.weights``, against what those layers compute themselves.

    pip install keras flax equinox onnx onnxruntime transformers
    python backends/campaigns/foreign_weights.py

builds each layer with random float32 weights, reads them, and holds the layer's own output to the bound of chapter 4 around the
truth of the matrices that were read. As a control, the heads of the values are rotated by one: that must leave the bound. What is
written back must be the arrays that were there, bit for bit. The result is written beside this file, with the date, the versions,
and a hash of the converters; a test fails when they have changed since.
"""

import datetime
import hashlib
import json
import os
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
RESULT = HERE / "foreign_weights.json"
CODE = HERE.parents[1] / "mha_core"
LIBRARIES = ("torch", "keras", "flax", "jax", "equinox", "onnx", "onnxruntime", "transformers", "numpy")

rng = np.random.default_rng(0)


def code_hash():
    """Of everything that reads or writes weights."""
    files = [*sorted((CODE / "weights").glob("*.py")), CODE / "projections.py"]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def normal(*shape):
    """Of a size that keeps the scores near 1, where every key has a say."""
    return 0.4 * rng.standard_normal(shape, dtype=np.float32)


# Each layer: (what it is, its arrays by name, heads, inputs, its output on them).


def torch_layers():
    import torch

    for bias, kdim, vdim in ((True, None, None), (False, None, None), (True, 24, None), (False, 24, 40)):
        module = torch.nn.MultiheadAttention(32, 4, bias=bias, kdim=kdim, vdim=vdim, batch_first=True).eval()
        drawn(module)
        inputs = normal(2, 5, 32), normal(2, 7, kdim or 32), normal(2, 7, vdim or 32)
        with torch.no_grad():
            output = module(*map(torch.from_numpy, inputs))[0].numpy()
        yield (
            "torch-mha",
            f"MultiheadAttention(bias={bias}, kdim={kdim}, vdim={vdim})",
            state(module),
            {"heads": 4},
            inputs,
            output,
        )


def keras_layers():
    import keras

    inputs = normal(2, 5, 32), normal(2, 7, 24), normal(2, 7, 40)
    kinds = [
        ("keras-mha", "MultiHeadAttention(value_dim, output_shape)",
         lambda: keras.layers.MultiHeadAttention(4, 8, value_dim=6, output_shape=20)),
        ("keras-mha", "MultiHeadAttention(use_bias=False)", lambda: keras.layers.MultiHeadAttention(4, 8, use_bias=False)),
        ("keras-gqa", "GroupQueryAttention", lambda: keras.layers.GroupQueryAttention(8, 4, 2)),
    ]  # fmt: skip
    for form, what, make in kinds:
        layer = make()
        query, key, value = inputs
        layer(query, value, key)
        layer.set_weights([normal(*w.shape) for w in layer.get_weights()])
        arrays = {"/".join(w.path.split("/")[-2:]): np.asarray(w) for w in layer.weights}
        output = keras.ops.convert_to_numpy(layer(query, value, key))
        yield form, what, arrays, {}, inputs, output


def flax_layers():
    from flax import nnx

    for what, settings in (
        ("in_kv_features, out_features", {"in_kv_features": 24, "out_features": 20}),
        ("use_bias=False", {"use_bias": False}),
        ("num_kv_heads", {"num_kv_heads": 2}),
    ):
        layer = nnx.MultiHeadAttention(4, 32, 16, decode=False, rngs=nnx.Rngs(0), **settings)
        leaves = nnx.state(layer, nnx.Param)
        for _, leaf in nnx.to_flat_state(leaves):
            leaf.set_value(normal(*leaf.get_value().shape))
        nnx.update(layer, leaves)
        arrays = {".".join(path): np.asarray(leaf.get_value()) for path, leaf in nnx.to_flat_state(leaves)}
        inputs = normal(2, 5, 32), *[normal(2, 7, settings.get("in_kv_features", 32))] * 2
        yield "flax-nnx", f"nnx.MultiHeadAttention({what})", arrays, {}, inputs, np.asarray(layer(*inputs))


def equinox_layers():
    import equinox as eqx
    import jax

    sizes = {"key_size": 24, "value_size": 40, "output_size": 20, "qk_size": 6, "vo_size": 10}
    biases = {"use_query_bias": True, "use_value_bias": True, "use_output_bias": True}
    for what, settings in (("no biases", {}), ("its own sizes, three biases", sizes | biases)):
        layer = eqx.nn.MultiheadAttention(4, 32, **settings, key=jax.random.PRNGKey(0))
        layer = jax.tree.map(lambda x: normal(*x.shape) if eqx.is_array(x) else x, layer)
        arrays = {}
        for part in ("query_proj", "key_proj", "value_proj", "output_proj"):
            arrays[f"{part}.weight"] = np.asarray(getattr(layer, part).weight)
            if getattr(layer, part).bias is not None:
                arrays[f"{part}.bias"] = np.asarray(getattr(layer, part).bias)
        inputs = normal(5, 32), normal(7, settings.get("key_size", 32)), normal(7, settings.get("value_size", 32))
        yield "equinox", f"nn.MultiheadAttention({what})", arrays, {"heads": 4}, inputs, np.asarray(layer(*inputs))


def onnxruntime_layers():
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    for what, d_v in (("one size", 8), ("qkv_hidden_sizes", 6)):
        packed = 2 * 32 + 4 * d_v
        arrays = {
            "weights": normal(32, packed), "bias": normal(packed), "output.weights": normal(4 * d_v, 20), "output.bias": normal(20),
        }  # fmt: skip
        attention = helper.make_node(
            "Attention", ["x", "weights", "bias"], ["heads"], domain="com.microsoft", num_heads=4, qkv_hidden_sizes=[32, 32, 4 * d_v]
        )  # fmt: skip
        nodes = [
            attention,
            helper.make_node("MatMul", ["heads", "output.weights"], ["product"]),
            helper.make_node("Add", ["product", "output.bias"], ["y"]),
        ]
        ends = [
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 5, width])] for name, width in (("x", 32), ("y", 20))
        ]
        weights = [numpy_helper.from_array(x, name) for name, x in arrays.items()]
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(helper.make_graph(nodes, "layer", *ends, weights), opset_imports=opsets, ir_version=9)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        x = normal(2, 5, 32)
        yield (
            "onnxruntime",
            f"com.microsoft.Attention ({what})",
            arrays,
            {"heads": 4},
            (x, x, x),
            session.run(None, {"x": x})[0],
        )


def transformers_layers():
    import torch
    from transformers import (
        BertConfig,
        CLIPVisionConfig,
        DistilBertConfig,
        FalconConfig,
        GPT2Config,
        GPTNeoXConfig,
        LlamaConfig,
        MptConfig,
        Phi3Config,
    )
    from transformers.models.bert.modeling_bert import BertAttention
    from transformers.models.clip.modeling_clip import CLIPAttention
    from transformers.models.distilbert.modeling_distilbert import DistilBertSelfAttention
    from transformers.models.falcon.modeling_falcon import FalconAttention
    from transformers.models.gpt2.modeling_gpt2 import GPT2Attention
    from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXAttention
    from transformers.models.llama.modeling_llama import LlamaAttention
    from transformers.models.mpt.modeling_mpt import MptAttention
    from transformers.models.phi3.modeling_phi3 import Phi3Attention

    x = normal(2, 5, 32)
    given = torch.from_numpy(x)
    still = torch.ones(2, 5, 8), torch.zeros(2, 5, 8)  # cos and sin of positions that rotate nothing
    rotary = {"attention_mask": None, "position_embeddings": still}
    grouped = {"num_attention_heads": 4, "num_key_value_heads": 2}
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "attn_implementation": "eager"}

    def made(kind, config, *arguments):
        module = kind(config, *arguments).eval()
        drawn(module)
        return module

    def run(form, module, heads, forward, leave_out=()):
        with torch.no_grad():
            output = forward(module)
        output = (output if isinstance(output, torch.Tensor) else output[0]).numpy()
        arrays = {name: value for name, value in state(module).items() if name not in leave_out}
        return form, f"transformers {type(module).__name__}", arrays, heads, (x, x, x), output

    many, few = {"heads": 4}, {"heads": 4, "kv_heads": 2}
    every = {"heads": 4, "kv_heads": 4}
    yield run(
        "hf-llama",
        made(LlamaAttention, LlamaConfig(**sizes | grouped, attention_bias=True), 0),
        few,
        lambda m: m(given, **rotary),
    )
    yield run(
        "hf-bert", made(BertAttention, BertConfig(**sizes)), many, lambda m: m.output.dense(m.self(given, None)[0]),
        ("output.LayerNorm.weight", "output.LayerNorm.bias"),
    )  # fmt: skip
    yield run("hf-bart", made(CLIPAttention, CLIPVisionConfig(**sizes)), many, lambda m: m(given, None))
    distil = DistilBertConfig(dim=32, n_heads=4, attn_implementation="eager")
    yield run("hf-distilbert", made(DistilBertSelfAttention, distil), many, lambda m: m(given, None))
    yield run("hf-gpt2", made(GPT2Attention, GPT2Config(**sizes), False, 0), many, lambda m: m(given))
    yield run(
        "hf-phi3", made(Phi3Attention, Phi3Config(**sizes | grouped, pad_token_id=0), 0), few, lambda m: m(given, **rotary)
    )
    mpt = MptConfig(d_model=32, n_heads=4, attn_implementation="eager")
    yield run("wqkv", made(MptAttention, mpt, 0), every, lambda m: m(given, None))
    yield run("hf-neox", made(GPTNeoXAttention, GPTNeoXConfig(**sizes), 0), every, lambda m: m(given, **rotary))
    falcon = FalconConfig(**sizes, num_kv_heads=2, new_decoder_architecture=True, bias=True)
    nothing = torch.zeros(2, 1, 5, 5)
    yield run("hf-neox", made(FalconAttention, falcon, 0), few, lambda m: m(given, None, nothing, position_embeddings=still))


def drawn(module):
    """Weights from the seeded generator, biases too, which most libraries start at zero."""
    import torch

    with torch.no_grad():
        for x in module.parameters():
            x.copy_(torch.from_numpy(normal(*x.shape)))


def state(module):
    return {name: x.numpy() for name, x in module.state_dict().items()}


def ratio(projections, inputs, output):
    """The largest |error| / bound of a float32 output (MHA-NUM-13)."""
    from mha_spec.numerics import PROFILES, error_ratio, layer_bound

    wide = [None if x is None else np.asarray(x, np.float64) for x in projections]
    scale = 1.0 / np.sqrt(wide[0].shape[-1])
    bounds = layer_bound(*(x.astype(np.float64) for x in inputs), wide, PROFILES["P32"], scale=scale)
    return float(np.max(error_ratio(output.astype(np.float64), bounds.truth.output, bounds.output)))


def judged(form, what, arrays, heads, inputs, output):
    from mha_core.weights import FORMATS

    p = FORMATS[form].read(arrays, **heads)
    back = FORMATS[form].write(p)
    same = set(back) == set(arrays) and all(np.array_equal(back[name], arrays[name]) for name in arrays)
    wrong = p._replace(w_v=np.roll(p.w_v, 1, axis=0))
    return {
        "format": form, "layer": what, "ratio": round(ratio(p, inputs, output), 4),
        "control": round(ratio(wrong, inputs, output), 1), "written back bit for bit": same,
    }  # fmt: skip


def main():
    os.environ["KERAS_BACKEND"] = "torch"
    results = []
    for library in (torch_layers, keras_layers, flax_layers, equinox_layers, onnxruntime_layers, transformers_layers):
        for layer in library():
            results.append(judged(*layer))
            print(results[-1], flush=True)
    good = all(r["ratio"] <= 1 < r["control"] and r["written back bit for bit"] for r in results)
    versions = {name: version(name) for name in LIBRARIES}
    record = {"date": str(datetime.date.today()), "code": code_hash(), "libraries": versions, "results": results}
    RESULT.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
