"""Costs against brute force: pairs, multiplications and array elements are enumerated, not computed by a formula."""

from itertools import product

import pytest

from mha_spec import cost
from mha_spec.call import Band

BANDS: list[Band | None] = [None, (None, None), (None, 0), (0, 0), (2, 0), (1, 1), (None, 2), (0, None), (9, 9)]


def pairs_one_by_one(n: int, m: int, band: Band | None, offset: int, lengths: int | None) -> int:
    left, right = band or (None, None)
    count = 0
    for i, j in product(range(n), range(m)):
        distance = j - (offset + i)
        hidden = (
            (left is not None and distance < -left)
            or (right is not None and distance > right)
            or (lengths is not None and j >= lengths)
        )
        count += not hidden
    return count


@pytest.mark.parametrize("band", BANDS)
def test_visible_pairs(band: Band | None) -> None:
    for n, m, offset, lengths in product((0, 1, 4), (0, 1, 5), (-6, -1, 0, 1, 8), (None, -1, 0, 3, 9)):
        assert cost.visible_pairs(n, m, band, offset, lengths) == pairs_one_by_one(n, m, band, offset, lengths)


def test_flops_are_counted_one_by_one() -> None:
    n, m, d_k, d_v, heads, batch = 3, 5, 2, 4, 2, 3
    flops = 0
    for _ in product(range(batch), range(heads), range(pairs_one_by_one(n, m, (None, 0), 1, None))):
        for _ in range(d_k):
            flops += 2  # q_ic k_jc, added to the score
        for _ in range(d_v):
            flops += 2  # A_ij v_jc, added to the output
    assert cost.attention_flops(n, m, d_k, d_v, heads=heads, batch=batch, band=(None, 0), query_offset=1) == flops


def test_conventions() -> None:
    def flops(convention: cost.Convention, band: Band | None) -> int:
        return cost.attention_flops(3, 3, 1, 2, convention=convention, band=band)

    assert [flops(c, None) for c in ("visible", "dense", "half")] == [54, 54, 54]
    assert [flops(c, (None, 0)) for c in ("visible", "dense", "half")] == [36, 54, 27]  # half: 9 pairs halved, still whole
    assert flops("half", (1, 1)) == 54
    with pytest.raises(ValueError, match=r"MHA-COST-2.*visible, dense, half"):
        flops("causal", None)  # type: ignore[arg-type]


def test_layer_is_the_sum_of_its_products() -> None:
    n, m, d_model, d_k, d_v, d_out, heads, kv_heads, batch = 3, 4, 6, 2, 5, 7, 4, 2, 2

    def product_of(a: int, b: int, c: int) -> int:
        return sum(2 for _ in product(range(a), range(b), range(c)))

    layer = cost.layer_flops(n, d_model, d_k, d_v, heads=heads, kv_heads=kv_heads, d_out=d_out, m=m, batch=batch)
    assert layer.query == batch * product_of(n, d_model, heads * d_k)
    assert layer.key == batch * product_of(m, d_model, kv_heads * d_k)
    assert layer.value == batch * product_of(m, d_model, kv_heads * d_v)
    assert layer.scores == batch * heads * product_of(n, d_k, m)
    assert layer.weighted_sums == batch * heads * product_of(n, m, d_v)
    assert layer.output == batch * product_of(n, heads * d_v, d_out)
    assert layer.total == sum(layer) == layer.projections + layer.attention
    assert layer.attention == cost.attention_flops(n, m, d_k, d_v, heads=heads, batch=batch)


def test_layer_takes_the_convention() -> None:
    for convention in ("visible", "dense", "half"):
        layer = cost.layer_flops(3, 4, 1, 2, heads=2, convention=convention, band=(None, 0))
        assert layer.attention == cost.attention_flops(3, 3, 1, 2, heads=2, convention=convention, band=(None, 0))


@pytest.mark.parametrize(("dtype", "item", "lse_item"), [("float64", 8, 8), ("float32", 4, 4), ("bfloat16", 2, 4)])
def test_bytes_moved(dtype: str, item: int, lse_item: int) -> None:
    shapes = [(2, 4, 3, 6), (2, 2, 5, 6), (2, 2, 5, 7), (2, 4, 3, 7)]  # query, key, value, output
    elements = sum(a * b * c * d for a, b, c, d in shapes)

    def moved(weights: bool = False, lse: bool = False) -> int:
        return cost.bytes_moved(3, 5, 6, 7, dtype=dtype, heads=4, kv_heads=2, batch=2, weights=weights, lse=lse)

    assert moved() == item * elements
    assert moved(weights=True) == item * (elements + 2 * 4 * 3 * 5)
    assert moved(lse=True) == item * elements + lse_item * 2 * 4 * 3


def test_unknown_dtype() -> None:
    with pytest.raises(KeyError):
        cost.bytes_moved(1, 1, 1, 1, dtype="float8")
