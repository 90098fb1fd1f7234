"""``MultiHeadAttention`` against the textbook module whose state dict it takes."""

import math
import warnings

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from mha_backends.torch import MultiHeadAttention, attention, multi_head_attention  # noqa: E402
from mha_core import AttentionResult, Projections, SmallHeadWarning, Violation  # noqa: E402

# Dynamo's own
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")

F64 = torch.float64


class Textbook(nn.Module):
    """Self-attention as it is usually taught: four square linear layers with biases, softmax(QK^T / sqrt(d_k)) V, W_O."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.heads = n_heads
        for name in ("W_Q", "W_K", "W_V", "W_O"):
            setattr(self, name, nn.Linear(d_model, d_model))

    def forward(self, x):
        batch, length, width = x.shape
        d_k = width // self.heads
        q, k, v = (layer(x).view(batch, length, self.heads, d_k).transpose(1, 2) for layer in (self.W_Q, self.W_K, self.W_V))
        weights = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(d_k), dim=-1)
        return self.W_O((weights @ v).transpose(1, 2).reshape(batch, length, width))


def module(*args, **options):
    """Without the warning about small heads, which one test looks at."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmallHeadWarning)
        return MultiHeadAttention(*args, **options)


def close(a, b, tol=1e-12):
    assert a.shape == b.shape and (a - b).abs().max().item() <= tol


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def test_the_textbook_state_dict_gives_the_same_numbers_and_gradients():
    theirs = Textbook(64, 4).double()
    ours = MultiHeadAttention(64, 4).double()
    ours.load_state_dict(theirs.state_dict())
    assert list(ours.state_dict()) == list(theirs.state_dict())
    x = torch.randn(2, 7, 64, dtype=F64, requires_grad=True)
    a, b = theirs(x), ours(x)
    close(a, b)
    seed = torch.randn_like(a)
    for p, q in zip(
        torch.autograd.grad(a, [x, *theirs.parameters()], seed),
        torch.autograd.grad(b, [x, *ours.parameters()], seed),
        strict=True,
    ):
        close(p, q, 1e-11)
    theirs.load_state_dict(ours.state_dict())


def test_every_size_is_free():
    ours = MultiHeadAttention(
        10, 4, n_kv_heads=2, d_k=3, d_v=5, d_in_k=7, d_in_v=6, d_out=9, bias=False, bias_q=True, dtype=F64
    )
    shapes = {name: tuple(x.shape) for name, x in ours.state_dict().items()}
    assert shapes == {
        "W_Q.weight": (12, 10),
        "W_Q.bias": (12,),
        "W_K.weight": (6, 7),
        "W_V.weight": (10, 6),
        "W_O.weight": (9, 20),
    }
    x, key, value = (torch.randn(2, n, d, dtype=F64) for n, d in ((4, 10), (6, 7), (6, 6)))
    options = {"mask": torch.rand(4, 6) > 0.3, "key_lengths": torch.tensor([3, 6])}
    got = ours(x, key, value, **options)
    weights = [p.detach() for p in (ours.W_Q.weight.mT, ours.W_K.weight.mT, ours.W_V.weight.mT, ours.W_O.weight.mT)]
    projections = Projections.from_merged(*weights, heads=4, kv_heads=2, b_q=ours.W_Q.bias.detach())
    close(got, multi_head_attention(x, key, value, projections, **options))


def test_options_act_on_the_heads():
    ours = module(8, 4, dtype=F64)
    x = torch.randn(2, 5, 8, dtype=F64)
    got = ours(x, is_causal=True, return_weights=True, return_lse=True)
    assert isinstance(got, AttentionResult)
    assert got.weights.shape == (2, 4, 5, 5) and not got.weights.triu(1).any()
    assert got.lse.shape == (2, 4, 5)
    close(got.output, ours(x, is_causal=True))
    close(got.output[:, :3], ours(x[:, :3], is_causal=True))
    with pytest.raises(TypeError):
        ours(x, causal=True)


def test_one_memory_serves_as_key_and_value():
    ours = module(8, 2, dtype=F64)
    x, memory = torch.randn(2, 3, 8, dtype=F64), torch.randn(2, 4, 8, dtype=F64)
    close(ours(x, memory), ours(x, memory, memory))
    close(ours(x[0]), ours(x)[0])  # no batch axis


def test_heads_that_do_not_divide_are_refused_with_both_numbers():
    with pytest.raises(ValueError, match=r"MHA-PROJ-10.*10.*3") as error:
        MultiHeadAttention(10, 3)
    assert isinstance(error.value, Violation)
    MultiHeadAttention(10, 3, d_k=16)  # the paper's W_i need no divisibility
    with pytest.raises(Violation, match="MHA-VAL-7"):
        MultiHeadAttention(64, 4, n_kv_heads=3)


def test_small_heads_warn_where_the_module_derives_them():
    with pytest.warns(SmallHeadWarning) as caught:
        MultiHeadAttention(64, 8)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MultiHeadAttention(64, 8, d_k=8)
        MultiHeadAttention(64, 4)


def test_module_compiles_trains_and_takes_autocast():
    torch._dynamo.reset()
    ours = module(16, 4)
    x = torch.randn(2, 5, 16)
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    close(compiled(x, is_causal=True), ours(x, is_causal=True), 1e-5)
    ours(x).pow(2).mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in ours.parameters())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ours(x, is_causal=True).dtype == torch.bfloat16


def test_module_is_only_layers_around_attention():
    ours = module(8, 2, dtype=F64)
    x = torch.randn(3, 8, dtype=F64)
    q, k, v = (layer(x).reshape(3, 2, 4).transpose(0, 1) for layer in (ours.W_Q, ours.W_K, ours.W_V))
    close(ours(x), ours.W_O(attention(q, k, v).transpose(0, 1).reshape(3, 8)))
    assert "n_heads=2" in repr(ours)
