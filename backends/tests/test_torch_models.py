"""Attention in models that exist: a drop-in for ``nn.MultiheadAttention``, and the function for Hugging Face's interface.

The models of ``transformers`` itself, a pretrained one among them, are in ``backends/campaigns/real_models.py``.
"""

import copy
import itertools
import sys
from types import ModuleType

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from mha_backends.torch import DropIn, register_with_transformers, replace_attention  # noqa: E402
from mha_backends.torch.transformers import attention_of_module  # noqa: E402
from mha_core import BackendUnavailable, Unsupported, Violation  # noqa: E402
from mha_core.weights import FORMATS  # noqa: E402
from mha_spec.numerics import PROFILES, error_ratio, layer_bound  # noqa: E402

E, H = 16, 4


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def drawn(module):
    with torch.no_grad():
        for x in module.parameters():
            nn.init.normal_(x, std=0.3)
    return module.eval()


def pair(**settings):
    theirs = drawn(nn.MultiheadAttention(E, H, **settings))
    return theirs, replace_attention(theirs)


def close(a, b, tol=2e-6):
    assert a.shape == b.shape and (a - b).abs().max().item() <= tol


SETTINGS = [
    {"batch_first": True}, {"batch_first": False}, {"bias": False}, {"kdim": 6, "vdim": 5, "batch_first": True}, {"vdim": 5},
]  # fmt: skip


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("how", ["no weights", "averaged", "per head"])
def test_the_module_and_its_drop_in_answer_alike(settings, how):
    theirs, ours = pair(**settings)
    query, key, value = torch.randn(2, 5, E), torch.randn(2, 7, theirs.kdim), torch.randn(2, 7, theirs.vdim)
    if not settings.get("batch_first"):
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    options = {"need_weights": how != "no weights", "average_attn_weights": how != "per head"}
    (a, x), (b, y) = theirs(query, key, value, **options), ours(query, key, value, **options)
    close(a, b)
    assert (x is None) == (y is None) == (how == "no weights")
    if x is not None:
        close(x, y)


def test_the_output_is_within_the_bound():
    theirs, ours = pair(batch_first=True)
    query, memory = torch.randn(2, 5, E), torch.randn(2, 7, E)
    state = {name: x.detach().numpy().astype(np.float64) for name, x in theirs.state_dict().items()}
    p = FORMATS["torch-mha"].read(state, heads=H)
    bounds = layer_bound(*(x.numpy().astype(np.float64) for x in (query, memory, memory)), p, PROFILES["P32"], scale=0.5)
    for module in (theirs, ours):
        output = module(query, memory, memory)[0].detach().numpy().astype(np.float64)
        assert error_ratio(output, bounds.truth.output, bounds.output).max() <= 1
    swapped = ours(query, memory.flip(-1), memory)[0].detach().numpy().astype(np.float64)
    assert error_ratio(swapped, bounds.truth.output, bounds.output).max() > 1


def masks():
    """Attention masks and padding of every kind that torch takes, none of which empties a row."""
    boolean = torch.rand(5, 7) < 0.3
    boolean[:, 0] = False
    every = torch.rand(2 * H, 5, 7) < 0.3
    every[..., 0] = False
    padding = torch.tensor([[False] * 7, [False] * 4 + [True] * 3])
    added = torch.randn(5, 7)
    hidden = torch.zeros(5, 7).masked_fill(boolean, -torch.inf)
    attn = {"none": None, "boolean": boolean, "every head": every, "added": added, "-inf": hidden}
    pads = {"none": None, "padding": padding, "added": torch.zeros(2, 7).masked_fill(padding, -torch.inf)}
    return itertools.product(attn.items(), pads.items())


@pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask and attn_mask:UserWarning")  # torch's, on purpose
@pytest.mark.parametrize("need_weights", [True, False])
def test_masks_mean_what_they_mean_in_torch(need_weights):
    theirs, ours = pair(batch_first=True)
    query, memory = torch.randn(2, 5, E), torch.randn(2, 7, E)
    for (_, attn), (_, padding) in masks():
        options = {"attn_mask": attn, "key_padding_mask": padding, "need_weights": need_weights}
        (a, x), (b, y) = theirs(query, memory, memory, **options), ours(query, memory, memory, **options)
        close(a, b)
        if need_weights:
            close(x, y)


def test_no_batch_and_the_causal_hint():
    theirs, ours = pair()
    x = torch.randn(5, E)
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    for options in ({}, {"attn_mask": causal, "is_causal": True}, {"key_padding_mask": torch.tensor([False] * 4 + [True])}):
        (a, v), (b, w) = theirs(x, x, x, **options), ours(x, x, x, **options)
        close(a, b)
        close(v, w)
    with pytest.raises(Unsupported, match="hint"):
        ours(x, x, x, is_causal=True)


def test_a_row_that_sees_nothing_gives_the_bias_of_the_output():
    theirs, ours = pair(batch_first=True)
    x, nothing = torch.randn(1, 2, E), torch.ones(1, 2, dtype=torch.bool)
    assert theirs(x, x, x, key_padding_mask=nothing)[0].isnan().all()
    close(ours(x, x, x, key_padding_mask=nothing)[0], theirs.out_proj.bias.expand(1, 2, E))


def encoder():
    layer = nn.TransformerEncoderLayer(E, H, 32, dropout=0.0, batch_first=True)
    return drawn(nn.TransformerEncoder(layer, 2))  # which may hand nested tensors to its layers


@pytest.mark.filterwarnings(
    "ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning"
)  # of torch's own encoder
@pytest.mark.parametrize("grad", [True, False])
def test_a_model_keeps_its_outputs_and_its_state_dict(grad, monkeypatch):
    """Without gradients torch's encoder layer computes attention itself, unless its module says no: ours must be asked."""
    model = encoder()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    x, padding = torch.randn(2, 5, E), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.set_grad_enabled(grad):
        want = model(x, src_key_padding_mask=padding)
        assert want.shape == x.shape
        parameters = [id(p) for p in model.parameters()]
        assert replace_attention(model) is model
        asked = []
        monkeypatch.setattr(DropIn, "_hidden", lambda *a, _own=DropIn._hidden: asked.append(1) or _own(*a))
        got = model(x, src_key_padding_mask=padding)
    assert len(asked) == 2
    close(got[~padding], want[~padding], 2e-5)
    assert sorted(parameters) == sorted(id(p) for p in model.parameters())
    assert set(model.state_dict()) == set(before)
    fresh = encoder()
    fresh.load_state_dict(model.state_dict())
    for name, value in fresh.state_dict().items():
        assert torch.equal(value, before[name])


def test_a_decoder_layer_and_gradients():
    model = drawn(nn.TransformerDecoderLayer(E, H, 32, dropout=0.0, batch_first=True)).train()
    ours = replace_attention(copy.deepcopy(model))
    assert isinstance(ours.self_attn, DropIn) and isinstance(ours.multihead_attn, DropIn) and ours.self_attn.training
    x, memory = torch.randn(2, 5, E), torch.randn(2, 3, E)
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    grads = []
    for module in (model, ours):
        output = module(x, memory, tgt_mask=causal, tgt_is_causal=True)
        parameters = dict(module.named_parameters())
        found = torch.autograd.grad(output.square().sum(), list(parameters.values()))
        grads.append(dict(zip(parameters, found, strict=True)))
    assert grads[0].keys() == grads[1].keys()
    for name, g in grads[0].items():
        assert (g - grads[1][name]).abs().max() <= 1e-4 * max(1.0, g.abs().max().item())


def test_a_shared_module_stays_shared():
    one = nn.MultiheadAttention(E, H)
    model = replace_attention(nn.ModuleDict({"a": one, "b": nn.ModuleList([one])}))
    assert model["a"] is model["b"][0] and isinstance(model["a"], DropIn)


class Special(nn.MultiheadAttention):
    pass


def hooked():
    module = nn.MultiheadAttention(E, H)
    module.register_forward_hook(lambda *_: None)
    return module


REFUSED = {
    "no nn.MultiheadAttention": lambda: nn.Linear(2, 2),
    "a Special": lambda: nn.Sequential(nn.MultiheadAttention(E, H), Special(E, H)),
    "add_bias_kv": lambda: nn.Sequential(nn.MultiheadAttention(E, H, add_bias_kv=True)),
    "add_zero_attn": lambda: nn.MultiheadAttention(E, H, add_zero_attn=True),
    "hooks": lambda: nn.Sequential(nn.MultiheadAttention(E, H), hooked()),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_replaced_is_refused_and_nothing_is_changed(words):
    model = REFUSED[words]()
    before = list(model.modules())
    with pytest.raises(Unsupported, match=words):
        replace_attention(model)
    assert list(model.modules()) == before


def test_dropout_in_training_is_refused():
    ours = replace_attention(nn.MultiheadAttention(E, H, dropout=0.1))
    x = torch.randn(3, E)
    with pytest.raises(Unsupported, match=r"dropout=0\.1"):
        ours(x, x, x)
    ours.eval()(x, x, x)


def test_masks_of_another_shape_are_refused():
    _, ours = pair(batch_first=True)
    x = torch.randn(2, 5, E)
    for options in (
        {"attn_mask": torch.zeros(2, 5, 5)},
        {"key_padding_mask": torch.zeros(5, 2)},
        {"attn_mask": torch.zeros(5)},
    ):
        with pytest.raises(Violation, match="MHA-VAL-9"):
            ours(x, x, x, **options)


# The function for Hugging Face's interface, called as its modules call it.


class Module(nn.Module):
    def __init__(self, **attributes):
        super().__init__()
        for name, value in attributes.items():
            setattr(self, name, value)


def operands(h=4, h_kv=2, n=3, m=5):
    return torch.randn(2, h, n, 8), torch.randn(2, h_kv, m, 8), torch.randn(2, h_kv, m, 8)


def eager(query, key, value, scaling, added=0.0, softcap=None, sinks=None):
    """Scores, cap, mask that is added, softmax with sinks: as the modules of ``transformers`` write it."""
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    scores = query @ key.mT * scaling
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores + added
    if sinks is not None:
        scores = torch.cat([scores, sinks.reshape(1, -1, 1, 1).expand(*scores.shape[:-1], 1)], -1)
    weights = scores.softmax(-1)[..., : key.shape[2]]
    return (weights @ value).transpose(1, 2), weights


def test_every_option_of_a_module_is_honoured():
    query, key, value = operands()
    mask = torch.rand(2, 1, 3, 5) < 0.6
    mask[..., 0] = True
    added = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    position_bias, sinks = torch.randn(1, 4, 3, 5), torch.randn(4)
    module = Module(is_causal=True)
    options = {"scaling": 0.3, "softcap": 1.5, "s_aux": sinks, "position_bias": position_bias, "output_attentions": True}
    want = eager(query, key, value, 0.3, added + position_bias, 1.5, sinks)
    for given in (mask, added):
        got = attention_of_module(module, query, key, value, given, sliding_window=4, position_ids=None, **options)
        close(got[0], want[0])
        close(got[1], want[1])
    plain = attention_of_module(module, query, key, value, mask, dropout=0.0)
    close(plain[0], eager(query, key, value, 8**-0.5, added)[0])
    assert plain[1] is None and plain[0].is_contiguous()


def test_no_mask_is_full_only_where_the_module_says_so():
    query, key, value = operands()
    want = eager(query, key, value, 8**-0.5)[0]
    close(attention_of_module(Module(is_causal=False), query, key, value, None)[0], want)
    close(attention_of_module(Module(is_causal=True), query, key, value, None, is_causal=False)[0], want)
    for module, options in (
        (Module(is_causal=True), {}),
        (Module(), {}),
        (Module(is_causal=False), {"is_causal": True}),
        (Module(is_causal=False), {"sliding_window": 4}),
    ):
        with pytest.raises(Unsupported, match="no mask from Module"):
            attention_of_module(module, query, key, value, None, **options)


@pytest.mark.parametrize(
    "options", [{"dropout": 0.1}, {"cu_seq_lens_q": torch.zeros(2)}, {"new_option": 1}], ids=lambda o: next(iter(o))
)
def test_what_a_module_asks_in_vain_is_refused_by_name(options):
    with pytest.raises(Unsupported, match=next(iter(options))):
        attention_of_module(Module(is_causal=False), *operands(), None, **options)


def test_without_transformers_there_is_a_line_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(BackendUnavailable, match="pip install --upgrade transformers"):
        register_with_transformers()


def test_what_is_registered_is_the_attention_and_a_mask_that_is_always_there(monkeypatch):
    """With a stand-in for the library, which the campaign meets itself."""
    registered, asked = {}, {}

    class Interface:
        @classmethod
        def register(cls, name, function):
            registered[cls.__name__, name] = function

    def sdpa_mask(**how):
        asked.update(how)
        return torch.ones(2, 1, 3, 3, dtype=torch.bool)

    library, masking = ModuleType("transformers"), ModuleType("transformers.masking_utils")
    library.AttentionInterface = type("AttentionInterface", (Interface,), {})
    library.AttentionMaskInterface = type("AttentionMaskInterface", (Interface,), {})
    masking.sdpa_mask = sdpa_mask
    monkeypatch.setitem(sys.modules, "transformers", library)
    monkeypatch.setitem(sys.modules, "transformers.masking_utils", masking)
    assert register_with_transformers() == register_with_transformers() == "mha_core"
    assert register_with_transformers("mine") == "mine"
    assert registered["AttentionInterface", "mine"] is registered["AttentionInterface", "mha_core"] is attention_of_module
    mask = registered["AttentionMaskInterface", "mha_core"]
    assert mask(q_length=3, allow_is_causal_skip=True, allow_is_bidirectional_skip=True).shape == (2, 1, 3, 3)
    assert asked == {"q_length": 3, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
