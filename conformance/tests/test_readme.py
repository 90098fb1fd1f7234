"""The README is run: its Python here, its two commands by continuous integration."""

from pathlib import Path

from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

ROOT = Path(__file__).parents[2]


def test_the_code_of_the_readme_runs():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    examples = list(Sybil(parsers=[PythonCodeBlockParser()]).parse(ROOT / "README.md").examples())
    assert len(examples) == text.count("```python\n") > 0
    for example in examples:
        example.evaluate()


def test_the_readme_has_two_commands_and_ci_takes_them_from_there():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.count("```bash\n") == 2
    run = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "$(readme 1)" in run
    assert "$(readme 2)" in run
