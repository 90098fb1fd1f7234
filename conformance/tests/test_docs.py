"""The site's sources: their code runs, their commands exist, and what is in two languages says the same in both.

The build itself fails for a broken link, an example that fails and a command with another exit code; continuous integration builds it.
"""

import re
import shlex
from pathlib import Path

import pytest
import typer
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

from mha_conformance.cli.app import app
from mha_spec.clauses import TEXT

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "README.zh-CN.md", *sorted(p for p in DOCS.rglob("*.md") if "_build" not in p.parts)]
TRANSLATED = [
    (ROOT / "README.md", ROOT / "README.zh-CN.md"),
    (DOCS / "guides" / "judge-your-kernel.md", DOCS / "guides" / "judge-your-kernel.zh-CN.md"),
]

_FENCE = re.compile(r"^```(.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")


def name(page):
    return str(page.relative_to(ROOT))


def fences(page):
    """(info string, content) of each."""
    return _FENCE.findall(page.read_text(encoding="utf-8"))


def commands(page):
    """Every ``mha ...`` of a page: in directives, in consoles and in running text. A verb alone, such as `mha`, asks nothing."""
    found = [info.partition(" ")[2] for info, _ in fences(page) if info.startswith(("{mha} ", "{picture} "))]
    for info, text in fences(page):
        if info in ("bash", "console", "sh"):
            found += [part[1] for part in re.finditer(r"(?:^|\$ |&& )mha (.+)$", text, re.MULTILINE)]
    prose = _FENCE.sub("", page.read_text(encoding="utf-8"))
    found += [span.removeprefix("mha ") for span in _SPAN.findall(prose) if span.startswith("mha ")]
    return [shlex.split(command) for command in found if not command.startswith("-")]


def unknown(words):
    """The commands and options among these words that ``mha`` does not know."""
    group, path = typer.main.get_command(app), []
    for word in words:
        if word not in getattr(group, "commands", {}):
            break
        group, path = group.commands[word], [*path, word]
    if hasattr(group, "commands"):
        return [" ".join(words[: len(path) + 1])]
    options = {option for parameter in group.params for option in (*parameter.opts, *parameter.secondary_opts)}
    return [f"{' '.join(path)} {word}" for word in words if word.startswith("-") and word not in options]


@pytest.mark.parametrize("page", [page for page in PAGES if "```python\n" in page.read_text(encoding="utf-8")], ids=name)
def test_the_code_of_a_page_runs(page):
    examples = list(Sybil(parsers=[PythonCodeBlockParser()]).parse(page).examples())
    assert len(examples) == page.read_text(encoding="utf-8").count("```python\n") > 0
    for example in examples:
        example.evaluate()


def test_every_command_on_the_pages_exists():
    asked = [words for page in PAGES for words in commands(page)]
    assert len(asked) > 20
    assert [word for words in asked for word in unknown(words)] == []


def test_a_command_that_does_not_exist_is_found():
    assert unknown(["conform", "numpy", "--level", "smoke"]) == []
    assert unknown(["conform", "numpy", "--tolerance", "1"]) == ["conform --tolerance"]
    assert unknown(["nothing", "numpy"]) == ["nothing"]


@pytest.mark.parametrize(("english", "chinese"), TRANSLATED, ids=lambda page: page.name)
def test_both_languages_have_the_same_code_and_commands(english, chinese):
    assert fences(english) == fences(chinese)
    assert len(fences(english)) > 3
    assert sorted(commands(english)) == sorted(commands(chinese))
    ids = [sorted(set(re.findall(r"MHA-[A-Z]+-\d+", page.read_text(encoding="utf-8")))) for page in (english, chinese)]
    assert ids[0] == ids[1]


def test_every_chapter_has_its_page_and_the_page_says_nothing_itself():
    for chapter in TEXT.glob("*.md"):
        page = DOCS / "spec" / chapter.name
        assert page.read_text(encoding="utf-8") == f"```{{include}} ../../spec/mha_spec/text/{chapter.name}\n```\n"
        assert f"spec/{chapter.stem}\n" in (DOCS / "index.md").read_text(encoding="utf-8")


def test_every_campaign_has_its_place():
    page = (DOCS / "spec" / "campaigns.md").read_text(encoding="utf-8")
    programs = sorted((ROOT / "spec" / "campaigns").glob("*.py"))
    assert programs
    assert [name(program) for program in programs if name(program) not in page] == []


def test_the_links_of_the_readmes_lead_somewhere():
    for page in (ROOT / "README.md", ROOT / "README.zh-CN.md"):
        links = re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
        assert len(links) > 8
        assert [link for link in links if not (ROOT / link).exists()] == []
