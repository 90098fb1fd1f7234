"""What the text says to explain: its tables are recomputed, and each of its examples would notice if the claim were false."""

import re
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from mha_backends import reference
from mha_conformance.run.examples import run
from mha_core import bind
from mha_spec import cost
from mha_spec.clauses import TEXT, load
from mha_spec.steps import steps

D_MODEL = 512


def rows(markdown: str) -> Iterator[list[str]]:
    """The cells of every table row after the rule under its head."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in markdown.splitlines() if line.startswith("|")]
    rule = next(at for at, row in enumerate(cells) if set("".join(row)) == {"-"})
    yield from cells[rule + 1 :]


def number(cell: str) -> int:
    return int(cell.replace(" ", ""))


def test_the_table_of_heads_is_what_the_functions_count():
    found = list(rows(load()["MHA-COST-4"].text))
    assert [row[0] for row in found] == ["1", "2", "8", "32"]
    for h, d, numbers, projections, attention, exponentials, stored in (map(number, row) for row in found):
        assert h * d == D_MODEL
        flops = cost.layer_flops(512, D_MODEL, d, d, heads=h)
        moved = [cost.bytes_moved(512, 512, d, d, heads=h, dtype="float32", weights=weights) for weights in (True, False)]
        assert numbers == 3 * h * D_MODEL * d + h * d * D_MODEL
        assert (projections, attention) == (flops.projections, flops.attention)
        assert exponentials == h * cost.visible_pairs(512, 512)
        assert stored == moved[0] - moved[1]


def test_the_table_of_lengths_is_what_the_functions_count():
    found = list(rows(load()["MHA-COST-6"].text))
    assert [number(row[0]) for row in found] == [4, 64, 512, 1024, 4096]
    for n, projections, attention, share in found:
        flops = cost.layer_flops(number(n), D_MODEL, 64, 64, heads=8)
        assert (number(projections), number(attention)) == (flops.projections, flops.attention)
        assert share == f"{100 * flops.projections / flops.total:.1f} %"


def test_the_table_of_shapes_is_what_the_steps_give():
    """The column of all heads, step by step; a step with several arrays names each shape once."""
    w, w_o = np.zeros((8, 512, 64)), np.zeros((8, 64, 512))
    matrices = SimpleNamespace(w_q=w, w_k=w, w_v=w, w_o=w_o, b_q=None, b_k=None, b_v=None, b_o=None)
    shapes: dict[str, list[str]] = {}
    for step in steps(np.ones((4, 512)), matrices):
        seen = shapes.setdefault(str(step.number), [])
        seen += [] if str(step.shape) in seen else [str(step.shape)]
    table = {row[0].split()[0]: re.findall(r"`([^`]+)`", row[2]) for row in rows(load()["MHA-PROJ-14"].text)}
    assert table == shapes


def test_every_explanation_runs():
    assert not [clause.id for clause in load().clauses if clause.level == "INFO" and not clause.examples]


def test_every_sentence_that_is_answered_has_a_clause_with_an_example():
    said = (TEXT / "3-equations.md").read_text(encoding="utf-8").partition("## What is said of it\n")[2]
    answers = list(rows(said))
    assert len(answers) >= 20
    for row in answers:
        assert load()[row[-1]].examples, row


# Attention of which the claim would not be true.


def attending(attend):
    """The reference with its attention replaced."""
    return bind(replace(reference.create(), name="false", attend=attend))


def alter(**changes):
    """An attention that changes arguments of the call before it computes."""
    return attending(lambda call: reference.attend(replace(call, **{name: change(call) for name, change in changes.items()})))


def answer_shifted(call):
    """Every head answers with its own number added, so that equal heads differ."""
    result = reference.attend(call)
    return result._replace(output=result.output + np.arange(result.output.shape[-3])[:, None, None])


def first_query_head(call):
    """All heads share the distribution of the first."""
    return np.broadcast_to(call.query[..., :1, :, :], call.query.shape)


def first_key_head(call):
    return np.broadcast_to(call.key[..., :1, :, :], call.key.shape)


def sum_of_values(call):
    """A sum that is no mean: the weights add up to 2."""
    result = reference.attend(call)
    return result._replace(output=2 * result.output)


def by_position(call):
    """Attention that adds a position to each key."""
    return call.key + np.arange(call.key.shape[-2])[:, None]


def layer(change):
    """A layer whose matrices are altered before it runs."""
    whole = bind(reference.create())

    def multi_head_attention(query, key, value, projections, **options):
        return whole.multi_head_attention(query, key, value, change(projections), **options)

    return replace(whole, multi_head_attention=multi_head_attention)


def sliced(p):
    """Matrices of which only the block that belongs to the head is left: head i sees channel i of the input."""
    h, width, _ = p.w_q.shape
    block = (np.arange(width) // max(1, width // h) == np.arange(h)[:, None])[..., None]
    return p._replace(w_q=p.w_q * block, w_k=p.w_k * block, w_v=p.w_v * block)


def one_output_matrix(p):
    """Every head goes through the rows of W^O that belong to head 0."""
    return p._replace(w_o=np.broadcast_to(p.w_o[:1], p.w_o.shape))


def symmetric(p):
    """One matrix for queries and keys."""
    return p._replace(w_q=p.w_k)


FALSE = {
    "MHA-ATTN-15": alter(scale=lambda call: 1.0),
    "MHA-HEAD-5": attending(answer_shifted),
    "MHA-HEAD-6": attending(sum_of_values),
    "MHA-HEAD-7": alter(query=first_query_head, key=first_key_head),
    "MHA-HEAD-8": alter(query=first_query_head, key=first_key_head),
    "MHA-HEAD-9": attending(answer_shifted),
    "MHA-HEAD-10": layer(one_output_matrix),
    "MHA-HEAD-11": alter(key=by_position),
    "MHA-HEAD-12": alter(value=lambda call: call.value**2),
    "MHA-PROJ-13": layer(sliced),
    "MHA-PROJ-15": layer(one_output_matrix),
    "MHA-PROJ-16": alter(key=by_position),
    "MHA-PROJ-17": layer(symmetric),
}


@pytest.mark.parametrize("clause", FALSE)
def test_the_examples_notice_a_false_claim(clause):
    outcomes = [run(example, FALSE[clause]) for example in load()[clause].examples]
    assert "FAIL" in {outcome.status for outcome in outcomes}
    assert all("AssertionError" in outcome.message for outcome in outcomes if outcome.status == "FAIL"), outcomes
