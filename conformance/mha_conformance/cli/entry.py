"""Where the console script ``mha`` begins: standard library only, so that a missing extra is a sentence, not a traceback."""

import sys
import traceback
from importlib.util import find_spec

from mha_conformance.cli.codes import Code

EXTRA = ("jinja2", "rich", "typer", "ml_dtypes")


def main() -> int:
    """Run ``mha`` and give its exit code. An uncaught exception is code 3: it must not look like "does not conform"."""
    if missing := [name for name in EXTRA if find_spec(name) is None]:
        print(
            f"mha could not run: {', '.join(missing)} not installed. Do: pip install 'mha-core[conformance]'", file=sys.stderr
        )
        return Code.NOT_RUN
    try:
        from mha_conformance.cli.app import app

        app(prog_name="mha")
    except Exception:
        traceback.print_exc()
        print("mha: this is a defect of the suite, not a verdict on a backend. Please report it.", file=sys.stderr)
        return Code.DEFECT
    return Code.HOLDS
