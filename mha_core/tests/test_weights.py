"""Formats of weights: there and back bit for bit, each layout against numbers laid out by hand, and every refusal by name."""

import array_api_strict
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mha_backends.numpy import multi_head_attention
from mha_backends.torch import MultiHeadAttention
from mha_core import Projections, Violation, weights
from mha_core.weights import (
    FORMATS,
    Packed,
    from_interleaved,
    from_linears,
    from_packed,
    from_tiled,
    to_packed,
    to_tiled,
    under,
)
from mha_core.weights.packed import WQKV

BIASES = ("b_q", "b_k", "b_v", "b_o")
NO_GROUPS = {
    "torch-mha", "keras-mha", "equinox", "onnxruntime", "hf-bart", "hf-bert", "hf-distilbert", "hf-gpt2", "timm",
}  # fmt: skip
ONE_INPUT = {"onnxruntime", "hf-gpt2", "hf-phi3", "wqkv", "timm", "hf-neox", "megatron"}
ONE_WIDTH = {"torch-mha", "keras-gqa", "flax-nnx"} | ONE_INPUT - {"onnxruntime"}
TOGETHER = {  # biases that such a format has all together, or none of them
    **dict.fromkeys(("torch-mha", "keras-mha", "keras-gqa", "flax-nnx"), BIASES),
    **dict.fromkeys(ONE_INPUT, BIASES[:3]),
}


def layer(sizes, biases=(), dtype="float64", seed=0):
    h, h_kv, d_model, d_in_k, d_in_v, d_k, d_v, d_out = sizes
    shapes = {
        "w_q": (h, d_model, d_k), "w_k": (h_kv, d_in_k, d_k), "w_v": (h_kv, d_in_v, d_v), "w_o": (h, d_v, d_out),
        "b_q": (h, d_k), "b_k": (h_kv, d_k), "b_v": (h_kv, d_v), "b_o": (d_out,),
    }  # fmt: skip
    rng = np.random.default_rng(seed)
    names = [*shapes][:4] + list(biases)
    return Projections(**{name: rng.standard_normal(shapes[name]).astype(dtype) for name in names})


@st.composite
def layers(draw, name):
    """A layer that the format holds."""
    size = st.integers(1, 4)
    h_kv, g = draw(size), 1 if name in NO_GROUPS else draw(size)
    d_k, d_model = draw(size), draw(size)
    h = h_kv * g
    d_v = d_k if name in ONE_WIDTH else draw(size)
    d_in_k = d_model if name in ONE_INPUT else draw(size)
    d_in_v = d_in_k if name in ONE_INPUT | {"flax-nnx"} else draw(size)
    d_out = draw(size)
    if name == "torch-mha":
        d_model = d_out = h * d_k
        if draw(st.booleans()):
            d_in_k = d_in_v = d_model
    together = TOGETHER.get(name, ())
    biases = list(together) if draw(st.booleans()) else []
    biases += [b for b in BIASES if b not in together and draw(st.booleans())]
    return layer(
        (h, h_kv, d_model, d_in_k, d_in_v, d_k, d_v, d_out), biases, draw(st.sampled_from(["float32", "float64", "float16"]))
    )


def heads_of(form, p):
    return {
        name: n for name, n in zip(("heads", "kv_heads"), (p.w_q.shape[0], p.w_k.shape[0]), strict=True) if name in form.needs
    }


def same(a, b):
    """The same arrays, bit for bit."""
    assert [x is None for x in a] == [x is None for x in b]
    for x, y in zip(a, b, strict=True):
        if x is not None:
            x, y = np.asarray(x), np.asarray(y)
            assert x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()


@pytest.mark.parametrize("name", FORMATS)
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_there_and_back(name, data):
    form = FORMATS[name]
    p = data.draw(layers(name))
    arrays = form.write(p)
    back = form.read(arrays, **heads_of(form, p))
    same(back, p)
    again = form.write(back)
    assert list(again) == list(arrays)
    same(again.values(), arrays.values())


@pytest.mark.parametrize("library", [torch, array_api_strict])
@pytest.mark.parametrize("name", FORMATS)
def test_arrays_stay_in_their_library(name, library):
    sizes = (4, 4 if name in NO_GROUPS else 2, 8, 8, 8, 2, 2, 8)
    p = Projections(*(library.asarray(x) for x in layer(sizes, BIASES)))
    arrays = FORMATS[name].write(p)
    assert all(type(x) is type(p.w_q) for x in arrays.values())
    same(FORMATS[name].read(arrays, **heads_of(FORMATS[name], p)), p)


SIZES = (4, 4, 8, 8, 8, 2, 2, 8)


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_missing_unknown_or_of_another_shape_is_refused_by_name(name):
    form, p = FORMATS[name], layer(SIZES, BIASES)
    arrays, heads = form.write(p), heads_of(FORMATS[name], p)

    def refused(changed, key, clause="MHA-PROJ-19"):
        with pytest.raises(Violation) as caught:
            form.read(changed, **heads)
        assert caught.value.clause == clause
        assert key in str(caught.value)

    refused({**arrays, "q_norm.weight": np.ones(2)}, "q_norm.weight")
    bare = form.write(layer(SIZES))
    for key in bare:
        refused({k: x for k, x in bare.items() if k != key}, key)
    for key, x in arrays.items():
        for axis in range(x.ndim):  # a width that nothing else is bound to may change, and then all of it is kept
            longer = {**arrays, key: np.concatenate([x, x.take([0], axis)], axis)}
            try:
                kept = form.read(longer, **heads)
            except Violation as error:
                assert "MHA-PROJ-19" in str(error), error  # noqa: PT017
            else:
                same(form.write(kept).values(), longer.values())
        with pytest.raises(Violation, match="MHA-PROJ-19"):
            form.read({**arrays, key: x[None]}, **heads)
        refused({**arrays, key: x.tolist()}, key)
        refused({**arrays, key: x.astype("float32")}, key, "MHA-VAL-2")
    for wrong in ({}, {"heads": 4, "kv_heads": 4, "groups": 1}):
        if set(wrong) != set(form.needs):
            with pytest.raises(Violation, match="MHA-PROJ-19"):
                form.read(arrays, **wrong)
    for number in (0, -1, 2.0, True, None, 3):
        for key in form.needs:
            with pytest.raises(Violation, match="MHA-PROJ-19"):
                form.read(arrays, **{**heads, key: number})


CANNOT = [
    *((name, {"h_kv": 2}) for name in sorted(NO_GROUPS)),
    *((name, {"d_in_v": 6}) for name in sorted(ONE_INPUT | {"flax-nnx"})),
    *((name, {"d_v": 3}) for name in sorted(ONE_WIDTH)),
    ("torch-mha", {"d_out": 6}),
    ("torch-mha", {"d_model": 6}),
]


@pytest.mark.parametrize(("name", "change"), CANNOT)
def test_a_layer_that_a_format_cannot_hold_is_refused(name, change):
    axes = ("h", "h_kv", "d_model", "d_in_k", "d_in_v", "d_k", "d_v", "d_out")
    p = layer(tuple((dict(zip(axes, SIZES, strict=True)) | change).values()))
    with pytest.raises(Violation, match=r"MHA-PROJ-19.*projections'"):
        FORMATS[name].write(p)
    FORMATS["projections"].write(p)


@pytest.mark.parametrize("name", sorted(TOGETHER))
def test_biases_that_a_format_keeps_together_are_not_made_up(name):
    for some in (("b_q",), ("b_q", "b_v"), TOGETHER[name][1:]):
        with pytest.raises(Violation, match=r"MHA-PROJ-19.*zeros"):
            FORMATS[name].write(layer(SIZES, some))


def test_arrays_that_do_not_fit_together_are_refused():
    p = layer(SIZES)
    for form in FORMATS.values():
        with pytest.raises(Violation, match="MHA-PROJ-2"):
            form.write(p._replace(w_k=p.w_k[:, :, :1]))


def test_formats_say_what_they_are():
    for name, form in FORMATS.items():
        assert form.name == name and form.holds and set(form.needs) <= {"heads", "kv_heads"}
    with pytest.raises(TypeError):
        FORMATS["other"] = form


# Layouts, by hand: row r of the packed matrix is the number r everywhere, so a head shows which rows it was given.


def rows(n, d_model=1):
    return np.repeat(np.arange(float(n))[:, None], d_model, axis=1)


def test_packed_is_query_then_key_then_value():
    p = from_packed({"Wqkv.weight": rows(8), "out_proj.weight": rows(4).T}, heads=4, kv_heads=2)
    assert [x.ravel().tolist() for x in p[:4]] == [[0, 1, 2, 3], [4, 5], [6, 7], [0, 1, 2, 3]]


def test_two_widths_are_found_where_a_layer_may_have_them():
    wide = {"weights": rows(2 * 3 + 2 * 3 + 2 * 1).T, "output.weights": rows(2)}
    p = FORMATS["onnxruntime"].read(wide, heads=2)
    assert p.w_q.shape == (2, 1, 3) and p.w_v.shape == (2, 1, 1)
    assert p.w_v.ravel().tolist() == [12, 13]


@pytest.mark.parametrize("name", ["wqkv", "hf-phi3", "hf-neox", "megatron"])
def test_a_wrong_number_of_key_heads_shows_in_a_packed_matrix(name):
    arrays = FORMATS[name].write(layer((4, 2, 8, 8, 8, 8, 8, 8)))  # 64 packed channels: also 4 heads of d_k = 4, d_v = 8
    for kv_heads in (1, 4):
        with pytest.raises(Violation, match=r"MHA-PROJ-19.*64 packed channels for 4"):
            FORMATS[name].read(arrays, heads=4, kv_heads=kv_heads)


def test_interleaved_is_head_by_head():
    arrays = {"query_key_value.weight": rows(6), "query_key_value.bias": np.arange(6.0), "dense.weight": rows(2).T}
    p = from_interleaved(arrays, heads=2, kv_heads=2)
    assert [x.ravel().tolist() for x in p[:3]] == [[0, 3], [1, 4], [2, 5]]
    assert [x.ravel().tolist() for x in p[4:7]] == [[0, 3], [1, 4], [2, 5]]


def test_interleaved_groups_hold_their_queries_first():
    arrays = {"query_key_value.weight": rows(8), "dense.weight": rows(4).T}
    p = from_interleaved(arrays, heads=4, kv_heads=2)
    assert [x.ravel().tolist() for x in p[:3]] == [[0, 1, 4, 5], [2, 6], [3, 7]]
    with pytest.raises(Violation, match=r"MHA-PROJ-19.*multiple"):
        from_interleaved({"query_key_value.weight": rows(7), "dense.weight": rows(3).T}, heads=3, kv_heads=2)


def test_interleaved_with_one_key_head_is_packed():
    grouped = {"query_key_value.weight": rows(6), "dense.weight": rows(4).T}
    blocks = {"Wqkv.weight": rows(6), "out_proj.weight": rows(4).T}
    same(from_interleaved(grouped, heads=4, kv_heads=1), from_packed(blocks, heads=4, kv_heads=1))


def test_tiled_heads_give_the_same_layer():
    p = layer((6, 2, 8, 8, 8, 3, 5, 4), BIASES)
    x = np.random.default_rng(1).standard_normal((5, 8))
    tiled = to_tiled(p)
    assert [tiled.w_q[i].tolist() for i in range(6)] == [p.w_q[j].tolist() for j in (0, 3, 1, 4, 2, 5)]
    # The tiled layer, written out: one key head per query head, repeated as a tile.
    written = tiled._replace(**{name: np.tile(getattr(p, name), (3,) + (1,) * (getattr(p, name).ndim - 1)) for name in
                                ("w_k", "w_v", "b_k", "b_v")})  # fmt: skip
    np.testing.assert_allclose(multi_head_attention(x, x, x, written), multi_head_attention(x, x, x, p), rtol=1e-12)
    same(from_tiled(tiled), p)


@pytest.mark.parametrize(("kdim", "vdim"), [(None, None), (6, None), (None, 6), (6, 5)])
@pytest.mark.parametrize("bias", [True, False])
def test_torch_s_own_module_computes_the_same(kdim, vdim, bias):
    torch.manual_seed(0)
    theirs = torch.nn.MultiheadAttention(8, 2, bias=bias, kdim=kdim, vdim=vdim, batch_first=True, dtype=torch.float64)
    for x in theirs.parameters():
        torch.nn.init.normal_(x)
    state = {name: x.numpy() for name, x in theirs.state_dict().items()}
    p = FORMATS["torch-mha"].read(state, heads=2)
    query, key, value = (torch.randn(2, n, d, dtype=torch.float64) for n, d in ((3, 8), (5, kdim or 8), (5, vdim or 8)))
    want = theirs(query, key, value, need_weights=False)[0].detach().numpy()
    np.testing.assert_allclose(multi_head_attention(query.numpy(), key.numpy(), value.numpy(), p), want, rtol=1e-10, atol=1e-12)
    again = {name: torch.from_numpy(np.array(x)) for name, x in FORMATS["torch-mha"].write(p).items()}
    theirs.load_state_dict(again, strict=True)


def test_torch_s_added_key_is_refused():
    theirs = torch.nn.MultiheadAttention(8, 2, add_bias_kv=True)
    with pytest.raises(Violation, match=r"'bias_k', 'bias_v'"):
        FORMATS["torch-mha"].read(theirs.state_dict(), heads=2)


def test_our_own_module_computes_the_same():
    ours = MultiHeadAttention(8, 4, n_kv_heads=2, d_k=16, d_v=3, d_out=5, dtype=torch.float64)
    p = FORMATS["mha-core"].read({k: x.numpy() for k, x in ours.state_dict().items()}, heads=4, kv_heads=2)
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    np.testing.assert_allclose(multi_head_attention(*[x.numpy()] * 3, p), ours(x).detach().numpy(), rtol=1e-10, atol=1e-12)


def test_names_and_layouts_of_your_own():
    p = layer(SIZES, BIASES)
    mine = Packed("mine", "a", "b", "c", "d", transposed=False)
    same(from_packed(to_packed(p, layout=mine), heads=4, kv_heads=4, layout=mine), p)
    assert set(to_packed(p, layout=mine)) == set("abcd") and WQKV.form != mine.form
    arrays = {f"{n}.weight": np.ones((8, 8)) for n in "qkvo"}
    assert from_linears(arrays, heads=4, kv_heads=4, names=("q", "k", "v", "o")).w_q.shape == (4, 8, 2)


def test_one_layer_out_of_a_checkpoint():
    arrays = {"layer.0.attn.a": 1, "layer.0.attn.norm": 2, "layer.10.attn.a": 3}
    assert under(arrays, "layer.0.attn.", ["norm"]) == {"a": 1}
    assert under(arrays, "") == arrays
    with pytest.raises(Violation, match=r"MHA-PROJ-19.*layer\.1\."):
        under(arrays, "layer.1.")
    with pytest.raises(Violation, match=r"MHA-PROJ-19.*'scale' to leave out"):
        under(arrays, "layer.0.attn.", ["scale"])


def test_what_is_public_is_sorted_and_there():
    assert list(weights.__all__) == sorted(
        weights.__all__, key=lambda name: (name != name.upper(), not name[0].isupper(), name)
    )
    assert all(hasattr(weights, name) for name in weights.__all__)
