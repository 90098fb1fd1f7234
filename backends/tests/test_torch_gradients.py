"""torch: attention itself is differentiable, and says what ``attention_vjp`` says; dynamic shapes can be exported."""

import pytest
import torch

from mha_backends.torch import attention, attention_jvp, attention_vjp
from mha_core import Tangents, Violation


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("hides", [False, True])
def test_autograd_through_attention_is_the_vjp(hides):
    options = {"mask": torch.rand(5, 6, generator=torch.Generator().manual_seed(1)) < 0.6} if hides else {}
    leaves = [normal(2, 2, n, 4, seed=at).requires_grad_() for at, n in enumerate((5, 6, 6))]
    bias, sink = normal(5, 6, seed=4).requires_grad_(), normal(2, seed=5).requires_grad_()
    result = attention(*leaves, bias=bias, sink_logits=sink, return_weights=True, return_lse=True, **options)
    arriving = [normal(*x.shape, seed=7 + at) for at, x in enumerate(result)]
    seen = result.lse.isfinite()
    arriving[2] = torch.where(seen, arriving[2], 0.0)
    found = attention_vjp(
        *leaves, arriving[0], grad_weights=arriving[1], grad_lse=arriving[2], bias=bias, sink_logits=sink, **options
    )
    for a, b in zip(found, torch.autograd.grad(tuple(result), [*leaves, bias, sink], arriving), strict=True):
        assert not a.requires_grad
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # torch's own, when its forward mode is loaded
@pytest.mark.parametrize("hides", [False, True])
def test_the_jvp_of_attention_is_attention_jvp(hides):
    options = {"mask": torch.rand(5, 6, generator=torch.Generator().manual_seed(1)) < 0.6} if hides else {}
    operands = [normal(2, 2, n, 4, seed=at) for at, n in enumerate((5, 6, 6))]
    tangents = [normal(*x.shape, seed=7 + at) for at, x in enumerate(operands)]
    found = torch.func.jvp(lambda *x: attention(*x, **options), tuple(operands), tuple(tangents))
    for a, b in zip(found, attention_jvp(*operands, Tangents(*tangents), **options), strict=True):
        torch.testing.assert_close(a, b.output, rtol=1e-12, atol=1e-12)


def test_gradients_need_no_grad_mode_and_leave_no_trace():
    q = normal(1, 3, 4).requires_grad_()
    with torch.no_grad():
        found = attention_vjp(q, q, q, normal(1, 3, 4, seed=1))
    assert q.grad is None and not found.query.requires_grad and found.query.any()


def test_a_nan_score_sends_nan_back():
    q, k = normal(1, 2, 3), normal(1, 4, 3, seed=1)
    q[0, 0, 0] = torch.nan
    found = attention_vjp(
        q, k, k, normal(1, 2, 3, seed=2), mask=torch.tensor([[True, True, False, False], [False, False, True, True]])
    )
    assert found.query[0, 0].isnan().all() and found.query[0, 1].isfinite().all()
    assert found.key[0, :2].isnan().all() and found.key[0, 2:].isfinite().all()


class Causal(torch.nn.Module):
    def __init__(self, offset):
        super().__init__()
        self.offset = offset

    def forward(self, q, k, v):
        options = {} if self.offset is None else {"query_offset": self.offset(q, k)}
        return attention(q, k, v, is_causal=True, **options)


def exported(offset):
    """A program for any numbers of queries and keys, equal or not."""
    n, m = torch.export.Dim("n", min=2, max=64), torch.export.Dim("m", min=2, max=64)
    arrays = normal(1, 2, 5, 4), normal(1, 2, 7, 4), normal(1, 2, 7, 4)
    return torch.export.export(Causal(offset), arrays, dynamic_shapes={"q": {2: n}, "k": {2: m}, "v": {2: m}}).module()


def top_left(q, k):
    return 0


def bottom_right(q, k):
    return torch.full((1,), 0) + (k.shape[-2] - q.shape[-2])


@pytest.mark.parametrize("offset", [top_left, bottom_right])
def test_a_program_for_dynamic_n_and_m_says_where_its_queries_stand(offset):
    program = exported(offset)
    for n, m in ((3, 9), (9, 3), (4, 4)):
        q, k, v = normal(1, 2, n, 4), normal(1, 2, m, 4, seed=1), normal(1, 2, m, 4, seed=2)
        want = attention(q, k, v, is_causal=True, query_offset=0 if offset is top_left else m - n)
        torch.testing.assert_close(program(q, k, v), want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("offset", "clause"), [(None, "MHA-VAL-11"), (lambda q, k: k.shape[-2] - q.shape[-2], "MHA-VAL-1")], ids=["none", "symbol"]
)
def test_without_an_offset_it_is_refused_by_name(offset, clause):
    with pytest.raises(Violation, match=clause):
        exported(offset)
