"""Every refusal: the clause it names, and that it says what was given, what was expected and what to do."""

import pickle
from fractions import Fraction
from types import SimpleNamespace

import array_api_strict
import numpy as np
import pytest
import torch

from mha_backends.reference import attention, multi_head_attention
from mha_core import Dropout, Projections, Violation, head_size, merge_partials, window_tokens

Q, K, V = np.zeros((2, 4, 5, 3)), np.zeros((2, 2, 7, 3)), np.zeros((2, 2, 7, 6))
SQUARE = np.zeros((2, 2, 5, 3))
TOO_LONG_TO_PRINT = 10**5000


def call(query=Q, key=K, value=V, **options):
    return lambda: attention(query, key, value, **options)


REFUSED = [
    ("MHA-VAL-1", call(query=Q.tolist())),
    ("MHA-VAL-1", call(key=array_api_strict.asarray(K))),
    ("MHA-VAL-1", call(mask=[[True] * 7] * 5)),
    ("MHA-VAL-1", call(mask=True)),
    ("MHA-VAL-1", call(bias=0.5)),
    ("MHA-VAL-1", call(key_lengths=[7, 7])),
    ("MHA-VAL-1", call(value=np.ma.masked_array(V))),
    ("MHA-VAL-1", call(None, None, None)),
    ("MHA-VAL-2", call(query=Q.astype("float32"))),
    ("MHA-VAL-2", call(Q.astype("int64"), K.astype("int64"), V.astype("int64"))),
    ("MHA-VAL-2", call(Q.astype("complex128"), K.astype("complex128"), V.astype("complex128"))),
    ("MHA-VAL-2", call(Q.astype(">f8"), K.astype(">f8"), V.astype(">f8"))),
    ("MHA-VAL-2", call(Q.astype("longdouble"), K.astype("longdouble"), V.astype("longdouble"))),
    ("MHA-VAL-3", call(Q[0, 0], K[0, 0], V[0, 0])),
    ("MHA-VAL-3", call(query=Q[0])),
    ("MHA-VAL-4", call(query=Q[:1])),
    ("MHA-VAL-4", call(value=V[:1])),
    ("MHA-VAL-5", call(query=Q[..., :2])),
    ("MHA-VAL-6", call(value=V[..., :6, :])),
    ("MHA-VAL-6", call(value=V[:, :1])),
    ("MHA-VAL-7", call(query=Q[:, :3])),
    ("MHA-VAL-7", call(key=K[:, :0], value=V[:, :0])),
    ("MHA-VAL-8", call(mask=np.ones((5, 7)))),
    ("MHA-VAL-8", call(mask=np.ones((5, 7), dtype="int64"))),
    ("MHA-VAL-9", call(mask=np.ones((2, 5, 7), dtype=bool))),
    ("MHA-VAL-9", call(mask=np.ones((5, 6), dtype=bool))),
    ("MHA-VAL-9", call(mask=np.ones((2, 2, 5, 7), dtype=bool))),
    ("MHA-VAL-9", call(mask=np.ones(7, dtype=bool))),
    ("MHA-VAL-9", call(bias=np.zeros((5, 8)))),
    ("MHA-VAL-10", call(bias=np.zeros((5, 7), dtype=bool))),
    ("MHA-VAL-10", call(bias=np.zeros((5, 7), dtype="float32"))),
    ("MHA-VAL-10", call(bias=np.zeros((5, 7), dtype="complex128"))),
    ("MHA-VAL-11", call(is_causal=True)),
    ("MHA-VAL-11", call(window=(1, None))),
    ("MHA-VAL-11", call(Q[..., :0, :], is_causal=True)),
    ("MHA-VAL-12", call(query_offset=0)),
    ("MHA-VAL-12", call(query_offset=0, window=(None, None))),
    ("MHA-VAL-13", call(is_causal=True, query_offset=1.0)),
    ("MHA-VAL-13", call(is_causal=True, query_offset=True)),
    ("MHA-VAL-13", call(is_causal=True, query_offset=np.zeros(3, dtype=int))),
    ("MHA-VAL-13", call(key_lengths=np.zeros((2, 1), dtype=int))),
    ("MHA-VAL-13", call(key_lengths=np.zeros(2))),
    ("MHA-VAL-13", call(key_lengths=np.zeros(2, dtype="uint64"))),
    ("MHA-VAL-13", call(key_lengths=7.0)),
    ("MHA-VAL-13", call(key_lengths=Fraction(TOO_LONG_TO_PRINT, 3))),
    ("MHA-VAL-14", call(window=(-1, -1))),
    ("MHA-VAL-14", call(window=3)),
    ("MHA-VAL-14", call(window=(1, 2, 3))),
    ("MHA-VAL-14", call(window=(1.0, 0))),
    ("MHA-VAL-14", call(window=(True, 0))),
    ("MHA-VAL-14", call(window=(2**62, 0))),
    ("MHA-VAL-14", call(window=(TOO_LONG_TO_PRINT, 0))),
    ("MHA-VAL-15", call(query_segments=np.zeros((2, 5), dtype=int))),
    ("MHA-VAL-15", call(query_segments=np.zeros((2, 5), dtype=int), key_segments=np.zeros(7, dtype=int))),
    ("MHA-VAL-15", call(query_segments=np.zeros((2, 5)), key_segments=np.zeros((2, 7)))),
    ("MHA-VAL-16", call(scale=float("nan"))),
    ("MHA-VAL-16", call(scale=np.zeros(()))),
    ("MHA-VAL-16", call(scale=True)),
    ("MHA-VAL-16", call(scale="0.5")),
    ("MHA-VAL-16", call(scale=10**400)),
    ("MHA-VAL-16", call(scale=TOO_LONG_TO_PRINT)),
    ("MHA-VAL-17", call(softcap=0)),
    ("MHA-VAL-17", call(softcap=float("inf"))),
    ("MHA-VAL-17", call(softcap=-30.0)),
    ("MHA-VAL-18", call(sink_logits=np.zeros(2))),
    ("MHA-VAL-18", call(sink_logits=np.zeros(4, dtype="float32"))),
    ("MHA-VAL-18", call(sink_logits=np.zeros((4, 1)))),
    ("MHA-VAL-19", call(dropout=0.1)),
    ("MHA-VAL-19", call(dropout=0.0)),
    ("MHA-VAL-23", call(dropout=Dropout(1.5, 7))),
    ("MHA-VAL-23", call(dropout=Dropout(float("nan"), 7))),
    ("MHA-VAL-23", call(dropout=Dropout(np.zeros(()), 7))),
    ("MHA-VAL-23", call(dropout=Dropout(0.1))),
    ("MHA-VAL-23", call(dropout=Dropout(0.1, 7, np.ones((5, 7), dtype=bool)))),
    ("MHA-VAL-23", call(dropout=Dropout(0.1, 2**64))),
    ("MHA-VAL-23", call(dropout=Dropout(0.0, -1))),
    ("MHA-VAL-23", call(dropout=Dropout(0.1, 7, head_start=2**32 - 3))),
    ("MHA-VAL-23", call(dropout=Dropout(0.1, 7, key_start=TOO_LONG_TO_PRINT))),
    ("MHA-VAL-23", call(dropout=Dropout(0.1, keep=np.ones((5, 7), dtype=bool), batch_start=1))),
    ("MHA-VAL-24", call(dropout=Dropout(0.1, keep=np.ones((5, 7))))),
    ("MHA-VAL-24", call(dropout=Dropout(0.1, keep=np.ones((5, 6), dtype=bool)))),
    ("MHA-VAL-24", call(dropout=Dropout(0.1, keep=[[True] * 7] * 5))),
    ("MHA-VAL-20", call(is_causal=1)),
    ("MHA-VAL-20", call(return_weights="yes")),
    ("MHA-VAL-20", call(return_lse=None)),
]


X, W = np.zeros((6, 8)), np.zeros((2, 8, 8))


def layer(**changes):
    shapes = {"w_q": (2, 8, 3), "w_k": (2, 8, 3), "w_v": (2, 8, 5), "w_o": (2, 5, 4), "b_q": (2, 3), "b_o": (4,)}
    weights = {name: np.zeros(changes.get(name, shape)) for name, shape in shapes.items()}
    x = np.zeros(changes.get("x", (6, 8)))
    return lambda: multi_head_attention(x, x, x, Projections(**weights))


REFUSED += [
    ("MHA-PROJ-2", layer(w_q=(2, 7, 3))),
    ("MHA-PROJ-2", layer(w_k=(2, 8, 4))),
    ("MHA-PROJ-2", layer(w_v=(3, 8, 5))),
    ("MHA-PROJ-2", layer(w_o=(10, 4))),
    ("MHA-PROJ-2", layer(b_q=(6,))),
    ("MHA-PROJ-2", layer(b_o=(5,))),
    ("MHA-PROJ-2", layer(x=(8,))),
    ("MHA-PROJ-2", lambda: multi_head_attention(V[0], V[0], V[0], {"w_q": Q})),
    ("MHA-PROJ-2", lambda: multi_head_attention(X, X, X, SimpleNamespace(w_q=W))),
    ("MHA-VAL-1", lambda: multi_head_attention(X, X, X, Projections(None, W, W, W))),
    ("MHA-VAL-1", lambda: multi_head_attention(X, X, X, Projections(np.ma.masked_array(W), W, W, W))),
    (
        "MHA-VAL-1",
        lambda: multi_head_attention(*[torch.ones(6, 8)] * 3, Projections(*[torch.ones(2, 8, 8, device="meta")] * 4)),
    ),
    ("MHA-VAL-2", lambda: multi_head_attention(X, X, X, Projections(W.astype("float32"), W, W, W))),
    ("MHA-VAL-7", layer(w_k=(3, 8, 3), w_v=(3, 8, 5))),
    ("MHA-PROJ-6", lambda: Projections.from_merged(*[np.zeros((8, 8))] * 4, heads=3)),
    ("MHA-PROJ-6", lambda: Projections.from_merged(*[np.zeros((8, 8))] * 4, heads=2.0)),
    ("MHA-PROJ-6", lambda: Projections.from_merged(*[np.zeros((8, 8))] * 4, heads=2, b_q=np.zeros(()))),
    ("MHA-PROJ-6", lambda: Projections.from_merged(*[[[1.0]]] * 4, heads=1)),
    ("MHA-PROJ-10", lambda: head_size(512, 7)),
    ("MHA-PROJ-10", lambda: head_size(512, 0)),
    ("MHA-PROJ-10", lambda: head_size(512.0, 8)),
    ("MHA-MASK-23", lambda: window_tokens(0)),
    ("MHA-MASK-23", lambda: window_tokens(-1)),
    ("MHA-MASK-23", lambda: window_tokens(True)),
    ("MHA-MASK-23", lambda: window_tokens(2.0)),
    ("MHA-AUX-12", lambda: merge_partials([])),
    ("MHA-AUX-12", lambda: merge_partials([(Q, Q)])),
    ("MHA-AUX-12", lambda: merge_partials([(Q, Q[..., 0]), (Q[:1], Q[:1, ..., 0])])),
    ("MHA-AUX-12", lambda: merge_partials([(Q, Q[..., 0].astype("float32"))])),
    ("MHA-AUX-12", lambda: merge_partials([attention(Q, K, V, return_lse=True)] * 2)),
    ("MHA-VAL-1", lambda: merge_partials([(np.ma.masked_array(Q), Q[..., 0])])),
]


@pytest.mark.parametrize(("clause", "refused"), REFUSED, ids=[f"{i}-{clause}" for i, (clause, _) in enumerate(REFUSED)])
def test_a_refusal_names_its_clause_and_teaches(clause, refused):
    with pytest.raises(Violation) as caught:
        refused()
    error = caught.value
    assert error.clause == clause
    assert all((error.given, error.expected, error.do))
    assert str(error) == f"{clause}: given {error.given}; expected {error.expected}; {error.do}"
    assert len(str(error)) < 500, "a message, not a dump"


def test_every_refusing_clause_is_tested():
    assert {f"MHA-VAL-{n}" for n in range(1, 21)} <= {clause for clause, _ in REFUSED}


def test_rank_two_is_told_how_to_add_the_head_axis():
    with pytest.raises(Violation, match=r"add a head axis: query\[None\]"):
        attention(Q[0, 0], K[0, 0], V[0, 0])


def test_a_missing_offset_is_answered_with_both_usual_answers():
    with pytest.raises(Violation, match=r"query_offset=0 \(top-left: torch, JAX\) or query_offset=m-n=2 \(bottom-right"):
        attention(Q, K, V, is_causal=True)


def test_an_unknown_keyword_stays_a_type_error():
    with pytest.raises(TypeError, match="attn_mask"):
        attention(Q, K, V, attn_mask=None)


def test_errors_travel_between_processes():
    error = Violation("MHA-VAL-3", "a", "b", "c")
    back = pickle.loads(pickle.dumps(error))
    assert (back.clause, str(back)) == (error.clause, str(error))


ACCEPTED = {
    "numpy integers are integers": {"is_causal": True, "query_offset": np.int32(2), "window": window_tokens(np.int64(3))},
    "a numpy float is a real": {"scale": np.float32(0.5), "softcap": np.float64(3)},
    "any offset": {"is_causal": True, "query_offset": np.asarray([-(2**63), 2**63 - 1])},
    "any Python offset": {"is_causal": True, "query_offset": -TOO_LONG_TO_PRINT},
    "any Python length": {"key_lengths": TOO_LONG_TO_PRINT},
    "any length": {"key_lengths": np.asarray([-(2**63), 2**63 - 1])},
    "small unsigned lengths": {"key_lengths": np.asarray([0, 255], dtype="uint8")},
    "segments of two widths": {
        "query_segments": np.zeros((2, 5), dtype="int8"), "key_segments": np.zeros((2, 7), dtype="uint32"),
    },
    "axes of size one": {"mask": np.ones((1, 4, 1, 7), dtype=bool), "bias": np.zeros((1, 1))},
}  # fmt: skip


@pytest.mark.parametrize("options", ACCEPTED.values(), ids=ACCEPTED)
def test_what_is_legal_is_computed(options):
    assert np.isfinite(attention(Q, K, V, **options)).all()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("layout", ["strided", "jagged"])
def test_nested_tensors_are_refused(layout):
    torch = pytest.importorskip("torch")
    x = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=getattr(torch, layout))
    with pytest.raises(Violation, match="MHA-VAL-1"):
        attention(x, x, x)
    dense = torch.ones(1, 2, 3)
    with pytest.raises(Violation, match="MHA-VAL-1"):
        attention(dense, dense, dense, mask=x)
