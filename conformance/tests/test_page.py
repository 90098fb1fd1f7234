"""The HTML page of reports: all that the files hold is in it, as text and nothing else; what is no report is refused."""

import json
import re
from html.parser import HTMLParser

import page_reports as made
import pytest
from typer.testing import CliRunner

from mha_conformance.cli.app import app
from mha_conformance.cli.codes import Code
from mha_conformance.report import html, matrix
from mha_conformance.report.facts import facts, flat, number
from mha_spec.clauses import load


class Page(HTMLParser):
    """The elements of a page with their attributes and text; a tag that is left open is a fault."""

    VOID = ("meta", "link", "input")

    def __init__(self, text):
        super().__init__()
        self.elements, self.open = [], []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs), []))
        if tag not in self.VOID:
            self.open.append(self.elements[-1])

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        for _, _, text in self.open:
            text.append(data)

    def find(self, tag, of=""):
        found = [(attrs, " ".join("".join(text).split())) for name, attrs, text in self.elements if name == tag]
        return [(attrs, text) for attrs, text in found if of in (attrs.get("class") or "").split() or not of]

    @property
    def data(self):
        return json.loads(next("".join(text) for _, attrs, text in self.elements if attrs.get("id") == "data"))

    def said(self, case, at=0):
        """What the panel says of a case in a report."""
        found = self.data
        return [found["strings"][words] for words in found["cases"][case][at]]


def page(*reports):
    return Page(html.render(reports))


def test_it_needs_nothing_else():
    """No address but places in the page itself, and a policy that lets nothing be loaded."""
    found = page(made.every_status(), made.passes())
    for tag, attrs, _ in found.elements:
        for name in ("src", "href", "action", "srcset", "data"):
            assert tag == "link" or attrs.get(name, "#").startswith("#"), (tag, attrs)
        assert not [name for name in attrs if name.startswith("on")]
    assert [attrs["href"] for attrs, _ in found.find("link")] == ["data:,"]
    policy = next(attrs["content"] for attrs, _ in found.find("meta") if "http-equiv" in attrs)
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe-inline" not in policy.split("script-src")[1]
    text = html.render([made.passes()])
    assert not re.search(r"https?:|url\(|@import|import\(|fetch\(", text)


def test_every_case_and_every_clause_has_its_row():
    reports = (made.every_status(), made.passes())
    found = page(*reports)
    cases = {case["case"] for report in reports for case in report["cases"]}
    rows = [text for _, text in found.find("tr", "case")]
    assert len(rows) == len(cases)
    assert all(any(row.startswith(case) for row in rows) for case in cases)
    assert set(found.data["cases"]) == cases
    clauses = [attrs["id"] for attrs, _ in found.find("tr", "clause")]
    assert clauses == ["MHA-ATTN-6", "MHA-MASK-2", "MHA-HEAD-1"], "the order of the text"
    for clause, (_, row) in zip(clauses, found.find("tr", "clause"), strict=True):
        assert "".join(text for _, text in html.pieces(load()[clause].sentence)) in row
    silent = [text.split()[0] for _, text in found.find("dt") if text.startswith("MHA-")]
    assert set(silent) | set(clauses) == {clause.id for clause in load().clauses}


def test_every_status_has_its_word_its_style_and_its_meaning():
    found = page(made.every_status(), made.passes())
    style = html.render([made.passes()])
    for status in matrix.STATUSES:
        cells = [
            text for tag in ("button", "span") for attrs, text in found.find(tag, status) if "cell" in attrs["class"].split()
        ]
        assert cells and all(text.split()[0] == status for text in cells)
        assert re.search(rf'\.{status} {{ --sign: "[^"]+"; --look: [^;]+; --text: [^;]+; }}', style)
    looks = re.findall(r"^\.\w+ (\{ --sign: .*)", style, re.MULTILINE)
    assert len(set(looks)) == len(matrix.STATUSES)
    assert set(matrix.MEANING) == set(matrix.STATUSES)


def test_the_signs_differ_so_that_colour_is_never_alone():
    style = html.render([made.passes()])
    signs = re.findall(r'^\.\w+ \{ --sign: "([^"]+)"', style, re.MULTILINE)
    assert len(signs) == len(set(signs)) == len(matrix.STATUSES)


def test_a_clause_has_its_gravest_status_and_says_of_how_many():
    (attn, mask, head) = (row for area in matrix.areas((made.every_status(), made.passes())) for row in area.clauses)
    assert [cell.status for cell in mask.cells] == ["CRASH", "PASS"]
    assert mask.cells[0].note.startswith("1 of 9; 1 TIMEOUT, 1 FAIL, ")
    assert mask.cells[1].note == "1 of 9; 8 ABSENT"
    assert (attn.cells[0].status, attn.cells[0].ratio, attn.cells[0].share) == ("FAIL", "1.5", 1.0)
    assert [cell.status for cell in head.cells] == [matrix.ABSENT, "PASS"]
    only = made.report("x", [made.case("MHA-MASK-2", "a", "NOT_RUN"), made.case("MHA-MASK-2", "b", "NOT_SUPPORTED")])
    assert matrix.areas([only])[0].clauses[0].cells[0].status == "NOT_RUN", "what did not run is never green"
    some = made.report("x", [made.case("MHA-MASK-2", "a", "PASS"), made.case("MHA-MASK-2", "b", "NOT_RUN")])
    (cell,) = matrix.areas([some])[0].clauses[0].cells
    assert (cell.status, cell.note) == ("PASS", "1 of 2; 1 NOT_RUN")
    later = made.report("x", [made.case("MHA-MASK-2", "a", "PASS"), made.case("MHA-MASK-2", "b", "NEW")])
    assert matrix.areas([later])[0].clauses[0].cells[0].status == "NEW", "a word that is not known is not hidden by a pass"


def test_where_no_number_was_compared_none_is_shown():
    """A refusal has the ratio 0 or infinity in the file, which says nothing of an error."""
    for status, ratio in (("PASS", 0.0), ("FAIL", "inf")):
        bare = made.case("MHA-VAL-4", "a", status, ratio=ratio)
        assert "error / bound" not in facts(bare)
        assert facts({**bare, "worst": {**made.WORST, "ratio": ratio}})["error / bound"] == number(ratio)
        assert matrix.areas([made.report("x", [bare])])[0].clauses[0].cells[0].ratio == ""
    assert facts(made.case("MHA-VAL-4", "a", "FAIL", ratio=7.0))["error / bound"] == "7"


def test_a_diagnosis_reads_as_on_the_terminal():
    said = facts(made.every_status()["cases"][-1])
    assert list(said.items())[:7] == [
        ("finding", "because of rows"),
        ("worst element", "output[0, 0, 1, 3]"),
        ("got", "2"),
        ("expected", "1.25"),
        ("difference", "0.75"),
        ("allowed", "0.5"),
        ("error / bound", "1.5"),
    ]
    shown = page(made.every_status()).find("details", "diagnosis")
    assert [text.split()[:2] for _, text in shown] == [["MHA-MASK-2", "CRASH"]]
    assert "mha conform mine:everything --case 'MHA-MASK-2/crash/float32' --arrays torch" in shown[0][1]


@pytest.mark.parametrize(
    ("ratio", "said"), [("inf", "inf"), ("nan", "nan"), (3.14159, "3.14"), (None, ""), (float("nan"), "nan")]
)
def test_numbers_that_json_cannot_say(ratio, said):
    assert number(ratio) == said
    cases = [made.case("MHA-MASK-2", "a", "FAIL", ratio=ratio, worst={**made.WORST, "got": ratio, "bound": 0.0})]
    found = page(made.report("x", cases))
    assert "0: it must be exact" in found.said(cases[0]["case"])


def test_a_float64_and_its_neighbour_are_told_apart():
    worst = {**made.WORST, "got": 1.0, "expected": 1.0000000000000002}
    said = facts(made.case("MHA-MASK-2", "a", "FAIL", worst=worst))
    assert said["got"] != said["expected"]


def test_third_party_strings_are_text():
    text = html.render([made.hostile()], [made.HOSTILE])
    found = Page(text)
    assert "<img" not in text
    assert text.count("<script") == text.count("</script") == 3
    assert text.count("<style") == 1
    names = [attrs["id"] for _, attrs, _ in found.elements if "id" in attrs]
    assert sorted(names) == sorted(set(names)), "no clause takes a name of the page"
    assert {"MHA-MASK-2", "data", "panel"} <= set(names)
    assert made.HOSTILE in found.find("title")[0][1] + found.find("h2")[0][1]
    row = found.said(f"MHA-MASK-2/{made.HOSTILE}/float32")
    assert row.count(made.HOSTILE) == 2
    assert found.data["reports"][0]["name"] == made.HOSTILE
    kinds = {name for attrs, _ in found.find("button", "cell") for name in attrs["class"].split()}
    assert kinds == {"cell", "FAIL", "OTHER", "PASS"}


def test_the_command_around_a_case_is_the_one_of_the_report():
    everything, good = page(made.every_status(), made.passes()).data["reports"]
    assert (everything["before"], everything["after"]) == ("mha conform mine:everything --case ", " --arrays torch")
    assert (good["before"], good["after"], good["hint"]) == ("mha conform good --case ", "", "")
    bare = page(made.report("mine:f; rm -r .", [made.case("MHA-MASK-2", "a", "PASS")])).data["reports"][0]
    assert bare["before"] == "mha conform 'mine:f; rm -r .' --case "
    assert "--layout" in bare["hint"]


def test_a_field_or_a_status_of_a_later_version_is_shown():
    later = made.passes()
    later["cases"][0] |= {"leniency": {"bound": "2B"}, "request": "n = 4, m = 6", "status": "NEW_WORD"}
    later["provenance"]["kernel"] = {"forward": "flash", "backward": None}
    later["weather"] = "rain"
    later["cases"][1]["worst"] = {**made.WORST, "thread": 7}
    later["blame"] = [{"clause": "MHA-MASK-2", "sentence": "", "case": "a case elsewhere", "reproduce": "", "hint": "a hint"}]
    found = page(later)
    row = found.said(later["cases"][0]["case"])
    assert "7" in found.said(later["cases"][1]["case"])
    assert "a hint" in found.find("details", "diagnosis")[0][1]
    assert "n = 4, m = 6" in row and '{"bound": "2B"}' in row
    about = found.find("details", "about")[0][1]
    assert "kernelforward flash, backward none" in about
    assert "weatherrain" in about
    assert [text.split()[0] for _, text in found.find("button", "OTHER")] == ["NEW_WORD"] * 2


def test_the_smallest_call_stands_beside_the_diagnosis():
    report = made.every_status()
    small = {"request": "n = 1, m = 2", "reason": "still wrong", "worst": made.WORST, "pattern": "", "code": "q = 1\nprint(q)"}
    report["blame"][0]["smallest"] = small
    said = page(report).find("details", "diagnosis")[0][1]
    for wanted in ("The smallest call that shows it", "n = 1, m = 2", "still wrong", "1.25", "q = 1 print(q)"):
        assert wanted in said
    report["blame"][0]["smallest"] = None
    assert "smallest" not in page(report).find("details", "diagnosis")[0][1]


def test_the_verdict_is_a_word_beside_a_colour():
    def words(report):
        attrs, _ = page(report).find("article", "verdict")[0]
        return attrs["class"], page(report).find("strong")[0][1]

    assert words(made.passes()) == ("verdict good", "conforms")
    assert words(made.every_status()) == ("verdict bad", "does not conform; the suite failed")
    part = made.passes() | {"conforms": False, "holds": True, "only": "MHA-MASK-2"}
    assert words(part) == ("verdict good", "holds in what was asked")
    nothing = made.report("x", [made.case("MHA-MASK-2", "a", "NOT_RUN")]) | {"conforms": False}
    assert words(nothing) == ("verdict none", "not judged")
    defect = made.report("x", [made.case("MHA-MASK-2", "a", "PASS"), made.case("MHA-MASK-2", "b", "ERROR")])
    assert words(defect) == ("verdict bad", "the suite failed")


def test_versions_that_differ_are_said():
    old = made.passes() | {"spec_version": "0.0.9"}
    assert "different versions" not in html.render([old])
    assert "different versions" in html.render([old, made.passes()])


def test_many_columns_and_a_large_report_stay_small():
    assert [html.letter(at) for at in (0, 25, 26, 53)] == ["A", "Z", "A2", "B3"]
    cases = [
        made.case("MHA-MASK-2", f"a case with a name of usual length, number {at}", "PASS", worst={**made.WORST, "got": at / 7})
        for at in range(1100)
    ]
    assert len(html.render([made.report(f"mine:{name}", cases) for name in "abc"])) < 1_500_000


def test_flat_keeps_every_setting():
    nested = {"a": {"b": {"c": 1, "d": True}, "e": {"x": "1", "y": None}}, "f": None, "g_h": [1, 2]}
    assert list(flat(nested)) == [("a, b, c", "1"), ("a, b, d", "yes"), ("a, e", "x 1, y none"), ("g h", "1, 2")]


def test_sentences_keep_their_marks():
    said = html.pieces(r"A `mask` *selects* $n \ne m$ keys; $\unknown$.")
    assert said[:6] == [("span", "A "), ("code", "mask"), ("span", " "), ("em", "selects"), ("span", " "), ("var", "n ≠ m")]
    assert said[7] == ("code", r"\unknown"), "a formula that has no plain form is shown as it stands"
    for clause in load().clauses:
        assert "".join(text for _, text in html.pieces(clause.sentence)) == clause.plain


def mha(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.fixture
def files(tmp_path):
    """Two reports as files: one that fails and one that conforms."""
    found = []
    for name, report in (("bad", made.every_status()), ("good", made.passes())):
        found.append(tmp_path / f"{name}.json")
        found[-1].write_text(json.dumps(report), encoding="utf-8")
    return found


def test_mha_report_writes_the_page(files, tmp_path):
    told = mha("report", *files, "--html", tmp_path / "out.html")
    assert told.exit_code == Code.FAILS
    assert "mine:everything: does not conform" in told.stdout
    assert (tmp_path / "out.html").read_text(encoding="utf-8") == html.render(
        [made.every_status(), made.passes()], ["bad.json", "good.json"]
    )


def test_half_a_surrogate_pair_can_be_written(tmp_path):
    html.write([made.passes() | {"name": "half \ud800"}], tmp_path / "x.html")
    assert "half ?" in (tmp_path / "x.html").read_text(encoding="utf-8")


def test_mha_conform_writes_the_page(tmp_path):
    told = mha("conform", "reference", "--clause", "MHA-MASK-2", "--html", tmp_path / "x.html", "--json", tmp_path / "x.json")
    assert told.exit_code == Code.HOLDS
    assert (tmp_path / "x.html").read_text(encoding="utf-8") == html.render([json.loads((tmp_path / "x.json").read_text())])


@pytest.mark.parametrize(
    "change", [{"format": 0}, {"format": 2}, {"cases": []}, {"verdict": None}, {"cases": [1]}, {"blame": [{}]}]
)
def test_what_is_no_report_is_refused(files, tmp_path, change):
    files[0].write_text(json.dumps(made.passes() | change))
    told = mha("report", files[0], "--html", tmp_path / "out.html")
    assert told.exit_code == Code.NOT_RUN
    assert str(files[0]) in told.stderr and "writes one" in told.stderr
    assert not (tmp_path / "out.html").exists()


def test_what_cannot_be_written_is_said_before_the_work(files, tmp_path):
    before = files[0].read_bytes()
    for wrong, why in (
        (tmp_path / "none" / "x.html", "there is no folder"),
        (tmp_path, "that is a folder"),
        (files[0], "named twice"),
        ("-", "standard output"),
    ):
        told = mha("report", *files, "--html", wrong)
        assert (told.exit_code, told.stdout) == (Code.NOT_RUN, "")
        assert why in told.stderr
    assert files[0].read_bytes() == before
    told = mha("conform", "reference", "--json", tmp_path / "x", "--html", tmp_path / "x")
    assert told.exit_code == Code.NOT_RUN
    assert not (tmp_path / "x").exists()
