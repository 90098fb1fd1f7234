"""The HTML page in a real browser: opened from a file without a network, filtered, clicked, typed at, printed, and audited."""

import json
import shutil

import page_reports as made
import pytest

from mha_conformance.report import html

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed; pip install 'mha-core[dev]'")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="neither chromium nor google-chrome is on the path")
ROW = "MHA-ATTN-6/rows/float32"


@pytest.fixture(scope="module")
def chromium():
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=BROWSER)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """By name: one report, several side by side, and one in which every string is an attack."""
    folder = tmp_path_factory.mktemp("pages")
    sets = {
        "two": [made.every_status(), made.passes()],
        "one": [made.every_status()],
        "three": [made.every_status(), made.passes(), made.report("third", made.passes()["cases"])],
        "six": [made.every_status(), *[made.passes()] * 5],
        "hostile": [made.hostile(), made.passes()],
    }
    for name, reports in sets.items():
        html.write(reports, folder / f"{name}.html")
    return folder


@pytest.fixture
def visit(chromium, files):
    """Opens a page. Whatever the console says, or the page asks of a network, fails the test."""
    said, contexts = [], []

    def opened(name, fragment="", **options):
        context = chromium.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(5000)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: said.append(request.url) if not request.url.startswith(("file:", "data:")) else None)
        page.goto((files / f"{name}.html").as_uri() + fragment)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert said == []


def shown(page, kind="clause"):
    return [text.split("\n")[0].split()[0] for text in page.locator(f"tr.{kind}:visible").all_inner_texts()]


def fragment(page):
    return page.evaluate("decodeURIComponent(location.hash.replaceAll('+', ' '))")


def test_filters_narrow_the_matrix_and_the_address_holds_them(visit):
    page = visit("three")
    assert shown(page) == ["MHA-ATTN-6", "MHA-MASK-2", "MHA-HEAD-1"]
    assert shown(page, "case") == []
    page.get_by_label("Clause, case or words").fill("boolean TRUE")
    assert shown(page) == ["MHA-MASK-2"]
    assert fragment(page) == "#q=boolean TRUE"
    assert page.locator("output").inner_text() == "1 of 3 clauses, 9 cases"
    page.get_by_label("Clause, case or words").fill("timeout")
    page.get_by_role("button", name="Open all").click()
    assert shown(page, "case") == ["MHA-MASK-2/timeout/float32"], "the name of a case is found too"
    page.get_by_role("button", name="Clear", exact=True).click()
    page.get_by_role("combobox", name="Area").select_option("HEAD")
    assert shown(page) == ["MHA-HEAD-1"]
    page.get_by_role("combobox", name="Status").select_option("NOT_RUN")
    assert page.get_by_text("No clause matches.").is_visible()
    page.get_by_role("button", name="Clear the filter").click()
    page.get_by_role("combobox", name="Status").select_option("failing")
    assert shown(page) == ["MHA-ATTN-6", "MHA-MASK-2"]
    assert set(shown(page, "case")) == {f"MHA-MASK-2/{status}/float32" for status in ("crash", "timeout", "fail")}
    page.get_by_role("button", name="Clear", exact=True).click()
    page.get_by_label("Reports differ").check()
    assert shown(page) == ["MHA-ATTN-6", "MHA-MASK-2", "MHA-HEAD-1"]
    assert fragment(page) == "#differs=1"


def test_an_address_with_a_view_gives_that_view(visit):
    page = visit("three", "#area=MASK&status=FAIL")
    assert shown(page) == ["MHA-MASK-2"]
    assert page.get_by_role("combobox", name="Status").input_value() == "FAIL"
    page.evaluate("location.hash = '#MHA-MASK-2'")
    page.locator("tr.case:visible").first.wait_for()
    assert len(shown(page, "case")) == 9
    assert page.locator("#MHA-MASK-2").bounding_box()["y"] < 500
    assert fragment(page) == "#MHA-MASK-2"
    page.evaluate(f"location.hash = '#case={ROW}&report=A'")
    page.get_by_role("dialog", name=ROW).wait_for()


@pytest.mark.parametrize("nonsense", ["#area=%E0%A4%A&status=nothing&case=none", "#case=constructor&report=Z", "#%", "#&&=&"])
def test_an_address_that_means_nothing_shows_everything(visit, nonsense):
    assert len(shown(visit("three", nonsense))) == 3


def test_a_cell_opens_its_diagnosis(visit):
    page = visit("three")
    page.get_by_role("button", name="FAIL 1.5, MHA-ATTN-6, A mine:everything").click()
    panel = page.get_by_role("dialog", name=ROW)
    said = panel.inner_text()
    for wanted in ("MHA-ATTN-6", "because of rows", "output[0, 0, 1, 3]", "1.25", "row 1 of 4", "B good"):
        assert wanted in said
    assert "softmax" in said or "weight" in said, "the sentence of the clause"
    command = f"mha conform mine:everything --case '{ROW}' --arrays torch"
    assert panel.locator("code", has_text="mine:everything").inner_text() == command
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    panel.get_by_role("button", name="Copy the command").first.click()
    panel.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == command
    assert fragment(page) == f"#case={ROW}&report=A"
    panel.get_by_role("link", name="MHA-ATTN-6").click()
    assert not panel.is_visible()
    assert shown(page, "case") == [ROW]
    page.locator("tr.case:visible button.PASS").first.click()
    assert panel.locator("h3").first.inner_text().startswith("B good")


def test_the_keyboard_is_enough(visit):
    page = visit("three")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the clauses"
    page.keyboard.press("/")
    page.keyboard.type("mask-2")
    assert shown(page) == ["MHA-MASK-2"]
    page.locator("#MHA-MASK-2 .open").focus()
    page.keyboard.press("Enter")
    assert len(shown(page, "case")) == 9
    focused = "document.activeElement.getAttribute('aria-label')"
    page.keyboard.press("ArrowRight")
    assert page.evaluate(focused).startswith("CRASH 1 of 9; ")
    page.keyboard.press("ArrowDown")
    assert page.evaluate(focused) == "CRASH because of crash, MHA-MASK-2/crash/float32, A mine:everything"
    page.keyboard.press("Enter")
    assert page.get_by_role("dialog").is_visible()
    page.keyboard.press("Escape")
    assert not page.get_by_role("dialog").is_visible()
    assert page.evaluate(focused).startswith("CRASH because of crash"), "the focus goes back to where it was"


def test_attacks_stay_text(visit):
    page = visit("hostile")
    assert page.title() != "taken"
    page.get_by_role("button", name="Open all").click()
    for button in page.locator("button.cell:visible").all():
        button.click()
        page.keyboard.press("Escape")
    assert page.locator("img").count() == 0
    assert page.title() != "taken"


def test_without_scripts_all_is_there(visit):
    page = visit("three", java_script_enabled=False)
    assert len(shown(page, "case")) == 11
    assert page.get_by_text("because of timeout").is_visible()
    assert not page.get_by_role("search").is_visible()


@pytest.mark.parametrize("name", ["one", "three", "six"])
def test_a_narrow_screen_needs_no_sideways_scrolling(visit, name):
    page = visit(name, viewport={"width": 360, "height": 740})
    page.get_by_role("button", name="Open all").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.get_by_role("combobox", name="Status").select_option("FAIL")
    assert set(shown(page)) == {"MHA-ATTN-6", "MHA-MASK-2"}
    assert shown(page, "case") == [ROW, "MHA-MASK-2/fail/float32"], "what a filter hides stays hidden in this layout"
    page.locator("button.FAIL:visible").first.click()
    assert page.get_by_role("dialog").bounding_box()["width"] <= 360


def test_paper_shows_failures_and_no_controls(visit):
    page = visit("three", color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert set(shown(page, "case")) == {ROW, *(f"MHA-MASK-2/{status}/float32" for status in ("crash", "timeout", "fail"))}
    assert not page.get_by_role("combobox", name="Area").is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert len(page.pdf()) > 1000


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 360)])
def test_axe_finds_no_serious_fault(visit, scheme, width):
    page = visit("two", color_scheme=scheme, viewport={"width": width, "height": 900})
    page.evaluate("document.querySelectorAll('details').forEach((it) => (it.open = true))")
    page.get_by_role("button", name="Open all").click()
    faults = _faults(page)
    page.locator("button.FAIL:visible").first.click()
    assert faults + _faults(page, "#panel") == []


def test_axe_can_find_a_fault(visit):
    page = visit("one")
    page.evaluate("document.body.style.setProperty('--soft', '#ccc')")
    assert any(fault.startswith("color-contrast") for fault in _faults(page))


def _faults(page, within="body"):
    found = axe.Axe().run(page, within).response["violations"]
    return [f"{x['id']}: {json.dumps(x['nodes'][0]['html'])}" for x in found if x["impact"] in ("serious", "critical")]
