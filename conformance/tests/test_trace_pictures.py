"""What a trace looks like: aligned in a terminal, and as SVG and HTML that hold every token and no foreign markup."""

import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import numpy as np
import pytest
from rich.cells import cell_len

from mha_conformance.trace import picture
from mha_conformance.trace.heat import HeatMaps
from mha_conformance.trace.tokens import split
from mha_conformance.trace.trace import of_heads, of_sentence

SVG = "{http://www.w3.org/2000/svg}"
VERSIONS = {"spec_version": "0", "package_version": "0"}
CHINESE = ("老白", "拿起", "他的", "锅铲")
ENGLISH = ("The", "law", "will", "never", "be", "perfect", "but", "its", "application", "should", "be", "just")
HALVES = np.array([[[0.25, 0.75], [1.0, 0.0]], [[0.5, 0.5], [np.nan, np.nan]]])


def traced(tokens=CHINESE, **sizes):
    return of_sentence(split(" ".join(tokens)), sizes.get("d_model", 64), sizes.get("h", 8), 0, placed=True, given=None)


@pytest.mark.parametrize("tokens", [CHINESE, ENGLISH, ("👨‍👩‍👧", "é", "锅铲abc")])
@pytest.mark.parametrize("width", [200, 80, 44, 12])
@pytest.mark.parametrize("colours", [True, False])
def test_every_line_has_the_same_cells_and_fits(tokens, width, colours):
    maps = HeatMaps(traced(tokens).weights, 1.0, tokens, tokens, width, colours)
    lines = maps.lines([f"head {i}" for i in range(8)])
    by_row = {line.cell_len for line in lines if line.plain.strip() and "head 7" not in line.plain}
    assert max(by_row) <= width
    first = lines[: lines.index(next(line for line in lines if not line.plain))]
    assert len({line.cell_len for line in first}) == 1


def test_columns_stand_below_their_labels():
    maps = HeatMaps(np.full((1, 4, 4), 0.25), 1.0, CHINESE, CHINESE, 80, True)
    name, above, *rows = (line.plain for line in maps.lines(["head 0"])[:-1])
    assert name.rstrip() == "head 0"
    assert above == "     老白 拿起 他的 锅铲"
    assert rows == [f"{token}   25   25   25   25" for token in CHINESE]


def test_shares_are_read_without_colours():
    lines = HeatMaps(HALVES, 1.0, "ab", "cd", 80, False).lines(["head 0", "head 1"])
    assert [line.plain.split() for line in lines[2:4]] == [
        ["a", ":", "25", "#", "75", "a", "=", "50", "=", "50"], ["b", "@100", "0", "b", "?nan", "?nan"],
    ]  # fmt: skip
    assert not any(span.style.bgcolor for line in lines for span in line.spans if not isinstance(span.style, str))


def test_the_largest_share_of_a_row_is_bold_and_brighter():
    row = HeatMaps(HALVES, 1.0, "ab", "cd", 80, True).lines(["head 0", "head 1"])[2]
    styles = [span.style for span in row.spans]
    assert [style.bold for style in styles[:2]] == [False, True]
    light = [sum(style.bgcolor.triplet) for style in styles[:2]]
    assert light[0] < light[1]


def test_what_does_not_fit_is_said():
    tokens = tuple(f"w{i}" for i in range(30))
    weights = traced(tokens, h=2).weights
    assert HeatMaps(weights, 1.0, tokens, tokens, 200, True).left_out == ""
    assert "only for colours" in HeatMaps(weights, 1.0, tokens, tokens, 80, True).left_out
    assert "only for marks" in HeatMaps(weights, 1.0, tokens, tokens, 80, False).left_out
    assert HeatMaps(weights, 1.0, tokens, tokens, 43, True).left_out.startswith("the first 20 of 30 queries and 20 of 30 keys")


def test_the_picture_is_xml_with_every_token_on_both_axes():
    root = ElementTree.fromstring(picture.svg(traced()))
    texts = [text.text for text in root.iter(f"{SVG}text")]
    for token in CHINESE:
        assert texts.count(token) == 2 * 9  # two axes of eight heads and of the single one
    assert "老白 拿起 他的 锅铲" in root.find(f"{SVG}title").text
    assert "head 7: 老白 reads most from" in root.find(f"{SVG}desc").text
    assert any("untrained" in text for text in texts)


def test_numbers_of_the_picture_are_the_shares():
    found = traced()
    root = ElementTree.fromstring(picture.svg(found))
    shown = [int(t.text) for t in root.iter(f"{SVG}text") if re.search(r"\b(on|off)\b", t.get("class"))]
    both = np.concatenate([found.one_head, found.weights])
    assert shown == [int(f"{100 * x:.0f}") for x in both.ravel()]


def test_every_cell_is_drawn_once_where_cells_are_joined():
    tokens = tuple(f"w{i}" for i in range(40))
    root = ElementTree.fromstring(picture.svg(traced(tokens, h=2)))
    for cells in (g for g in root.iter(f"{SVG}g") if g.get("class") == "cells"):
        covered = np.zeros((40, 40), dtype=int)
        for path in cells:
            for x, y, run in re.findall(r"M(\d+) (\d+)h(\d+)v1", path.get("d")):
                covered[int(y), int(x) : int(x) + int(run)] += 1
        assert (covered == 1).all()


def test_dark_and_light_have_a_colour_for_every_step():
    style = picture.svg(traced())
    light, dark = style.split("@media (prefers-color-scheme:dark)")
    for level in range(picture.LEVELS + 1):
        assert f".s{level}{{fill:#" in light and f".s{level}{{fill:#" in dark


class Tags(HTMLParser):
    """Every tag and every address of a page, and whether tags close in order."""

    VOID = ("meta", "img", "path", "rect", "br")

    def __init__(self):
        super().__init__()
        self.tags, self.open, self.addresses = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert tag in self.VOID or self.open.pop() == tag


def tags(page):
    found = Tags()
    found.feed(page)
    assert not found.open
    return found


def test_the_page_stands_alone():
    page = picture.html(traced(), VERSIONS)
    found = tags(page)
    assert found.tags.count("svg") == 10  # eight heads, the single one, the scale
    assert all(address.startswith("data:") for address in found.addresses)
    for words in ("MHA-ATTN-5 (MUST)", "(h, n, d_k) = (8, 4, 8)", "135,168 FLOPs", "within the bound", "untrained"):
        assert words in page


def test_what_others_wrote_is_text():
    tokens = ("<script>alert(1)</script>", "&amp;", '"q"', "[bold]x[/bold]", "\x1b[31m")
    for page in (picture.html(traced(tokens), VERSIONS), picture.svg(traced(tokens))):
        assert "<script" not in page and "\x1b" not in page
        assert "&amp;amp;" in page
    assert "script" not in tags(picture.html(traced(tokens), VERSIONS)).tags
    texts = [text.text for text in ElementTree.fromstring(picture.svg(traced(tokens))).iter(f"{SVG}text")]
    assert "&amp;" in texts and '"q"' in texts


def test_nan_and_many_tokens_and_one_token_are_drawn():
    q = np.ones((1, 2, 2))
    q[0, 1] = np.nan
    for found in (of_heads("q.npz", q, q, q, {}), of_heads("q", *[np.ones((1, 1, 1))] * 3, {}), traced(("w",) * 90)):
        ElementTree.fromstring(picture.svg(found))
        tags(picture.html(found, VERSIONS))
    assert "1 is NaN" in picture.svg(of_heads("q.npz", q, np.ones((1, 2, 2)), q, {}))


def test_a_long_title_is_cut_to_the_picture():
    tokens = tuple(f"锅铲{i}" for i in range(30))
    root = ElementTree.fromstring(picture.svg(traced(tokens, h=1)))
    title = next(text for text in root.iter(f"{SVG}text") if "title" in text.get("class"))
    assert title.text.endswith("…") and cell_len(title.text) * picture.TITLE_CELL <= float(root.get("width"))
