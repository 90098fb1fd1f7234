"""The sentences of the text as plain characters."""

import pytest

from mha_spec.clauses import load
from mha_spec.plain import plain


@pytest.mark.parametrize(
    ("latex", "expected"),
    [
        (r"required where $n \ne m$", "required where n ≠ m"),
        (r"The scale is $1/\sqrt{d_k}$.", "The scale is 1/√d_k."),
        (r"$\sqrt{d_k + 1}$", "√(d_k + 1)"),
        (r"$\frac{a + b}{2}$", "(a + b)/2"),
        (r"$\lfloor i / (h / h_{kv}) \rfloor$", "⌊i / (h / h_kv)⌋"),
        ("`query_offset` is $2^{62} - 1$", "query_offset is 2^62 - 1"),
        (r"$\mathrm{head}_1, \ldots, \mathrm{head}_h$", "head_1, ..., head_h"),
        (r"$1 + \lvert \mathrm{lse} \rvert + x$", "1 + |lse| + x"),
        ("`True` means *attend*, `(*batch, n)` and `(*batch, m)`", "True means attend, (*batch, n) and (*batch, m)"),
        ("no formula", "no formula"),
    ],
)
def test_a_formula_becomes_letters_and_signs(latex, expected):
    assert plain(latex) == expected


def test_an_unknown_command_is_an_error_that_says_where_to_add_it():
    with pytest.raises(ValueError, match=r"no plain form is known of \\aleph; add it to mha_spec.plain"):
        plain(r"$\aleph$")


@pytest.mark.parametrize("clause", load().clauses, ids=lambda clause: clause.id)
def test_every_sentence_of_the_text_has_a_plain_form(clause):
    assert not set(clause.plain) & set("\\${}`")
