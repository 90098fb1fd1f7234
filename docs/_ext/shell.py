"""``{mha} conform my_attention:attention``: runs the command now and shows it with all that it prints.

``:in:`` is the folder of the repository to run it in, ``:exit:`` the exit code that it must end with, ``:head:`` how many lines to show
before an ellipsis. A command that ends with another code fails the build, so no output on the site can be out of date.
"""

import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).parents[2]
_MAIN = "import sys; from mha_conformance.cli.entry import main; sys.exit(main())"


class Mha(SphinxDirective):
    required_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar[dict[str, Any]] = {
        "in": directives.unchanged, "exit": directives.nonnegative_int, "head": directives.positive_int,
    }  # fmt: skip

    def run(self) -> list[nodes.Node]:
        arguments = self.arguments[0]
        self.env.note_reread()
        code, said = output(arguments, self.options.get("in", "docs/examples"))
        if code != self.options.get("exit", 0):
            raise self.error(f"mha {arguments} ended with {code}:\n{said}")
        lines = said.splitlines()
        shown = lines[: self.options.get("head", len(lines))]
        text = "\n".join([f"$ mha {arguments}", *shown, *(["..."] if len(shown) < len(lines) else [])])
        block = nodes.literal_block(text, text, language="console", classes=["printed"])
        self.set_source_info(block)
        return [block]


@cache
def output(arguments: str, folder: str) -> tuple[int, str]:
    """The exit code and everything printed, with NO_COLOR and no terminal, so that each line is as long as it likes."""
    environment = os.environ | {"NO_COLOR": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", _MAIN, *shlex.split(arguments)], cwd=ROOT / folder, env=environment, timeout=300,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout.strip("\n")


class Picture(Mha):
    """``{picture} trace "a sentence" --svg steps.svg``: the command, and the picture that it writes."""

    def run(self) -> list[nodes.Node]:
        arguments = self.arguments[0]
        name = shlex.split(arguments)[-1]
        self.env.note_reread()
        with TemporaryDirectory() as folder:
            code, said = output(arguments, folder)
            if code != 0:
                raise self.error(f"mha {arguments} ended with {code}:\n{said}")
            svg = (Path(folder) / name).read_text(encoding="utf-8")
        place = Path(self.env._app.outdir) / "_images" / name
        place.parent.mkdir(exist_ok=True)
        place.write_text(svg, encoding="utf-8")
        described = re.search(r"<desc[^>]*>(.*?)</desc>", svg, re.DOTALL)
        if described is None:
            raise self.error(f"{name} has no description for those who cannot see it")
        up = "../" * self.env.docname.count("/")
        block = nodes.literal_block(f"$ mha {arguments}", f"$ mha {arguments}", language="console")
        image = f'<img class="picture" src="{up}_images/{name}" alt="{described[1].strip()}">'
        return [block, nodes.raw("", image, format="html")]


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("mha", Mha)
    app.add_directive("picture", Picture)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
