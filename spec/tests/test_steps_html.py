"""What a notebook shows of the steps: every row, and pictures that hold the numbers."""

import base64
import re
import struct
import zlib
from types import SimpleNamespace
from typing import Any

import array_api_strict
import numpy as np
import pytest

from mha_spec.steps import Step, Steps, attention_steps, steps
from mha_spec.steps_html import RISING, SIGNED, mixed


def shown(*arrays: tuple[str, tuple[str, ...], Any]) -> str:
    return Steps(Step(4, name, "A < B", "MHA-ATTN-5", axes, array) for name, axes, array in arrays)._repr_html_()


def pixels(html: str) -> list[np.ndarray[Any, Any]]:
    """Each picture as its palette's colours (rows, columns, 3), by a decoder of the four chunks that we write."""
    found = []
    for source in re.findall(r"base64,([^\"]+)", html):
        data, at, chunks = base64.b64decode(source), 8, {}
        while at < len(data):
            (size,) = struct.unpack(">I", data[at : at + 4])
            kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
            assert struct.unpack(">I", data[at + 8 + size : at + 12 + size])[0] == zlib.crc32(kind + body)
            chunks[kind] = body
            at += 12 + size
        columns, rows = struct.unpack(">II", chunks[b"IHDR"][:8])
        palette = np.frombuffer(chunks[b"PLTE"], np.uint8).reshape(-1, 3)
        lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(rows, columns + 1)
        assert not lines[:, 0].any()
        found.append(palette[lines[:, 1:]])
    return found


def test_weights_rise_from_nothing_to_the_largest() -> None:
    (picture,) = pixels(shown(("weights", ("h", "n", "m"), np.array([[[0.0, 0.5], [0.25, np.nan]]]))))
    assert tuple(picture[0, 0]) == RISING[0] and tuple(picture[0, 1]) == RISING[-1]
    assert tuple(picture[1, 0]) == mixed(RISING, 0.5) and tuple(picture[1, 1]) == (128, 128, 128)


def test_other_numbers_have_two_sides() -> None:
    (picture,) = pixels(shown(("output", ("n", "d_out"), np.array([[-3.0, 0.0, 3.0, np.inf]]))))
    assert [tuple(colour) for colour in picture[0]] == [SIGNED[0], SIGNED[2], SIGNED[-1], SIGNED[-1]]


def test_nothing_but_zeros_is_the_middle() -> None:
    (picture,) = pixels(shown(("output", ("n", "d_out"), np.zeros((2, 3)))))
    assert (picture == SIGNED[2]).all()


@pytest.mark.parametrize("xp", [np, array_api_strict], ids=["numpy", "strict"])
def test_every_step_is_a_row_with_a_picture_per_head(xp: Any) -> None:
    w = {
        name: xp.ones(shape) for name, shape in {"w_q": (4, 6, 2), "w_k": (2, 6, 2), "w_v": (2, 6, 3), "w_o": (4, 3, 5)}.items()
    }
    taken = steps(xp.ones((2, 3, 6)), SimpleNamespace(**w, b_q=None, b_k=None, b_v=None, b_o=None))
    html = taken._repr_html_()
    assert html.count("<tr>") == 1 + len(taken)
    assert [picture.shape[:2] for picture in pixels(html)] == (
        [(3, 6)] + [(3, 2)] * 4 + [(3, 2)] * 2 + [(3, 3)] * 2 + [(3, 3)] * 12 + [(3, 12), (3, 5)]
    )  # fmt: skip
    assert "(batch_0, h, n, d_k) = (2, 4, 3, 2)" in html
    assert html.count("of batch item 0") == len(taken)


def test_what_is_not_drawn_is_said() -> None:
    html = shown(
        ("weights", ("h", "n", "m"), np.zeros((20, 2, 2))),
        ("weights", ("h", "n", "m"), np.zeros((1, 200, 200))),
        ("weights", ("h", "n", "m"), np.zeros((1, 0, 2))),
    )
    assert "and 4 more heads" in html and "200 by 200 numbers: too many to draw" in html and "<td" in html and ">empty<" in html
    assert len(pixels(html)) == 16


def test_text_is_escaped() -> None:
    html = shown(("<script>", ("n", "m"), np.ones((1, 1))))
    assert "<script>" not in html and "A &lt; B" in html


def test_it_is_still_a_tuple() -> None:
    taken = attention_steps(*[np.ones((1, 2, 3))] * 3)
    assert isinstance(taken, tuple) and len(taken) == 7 and taken[-1].name == "concatenation"
