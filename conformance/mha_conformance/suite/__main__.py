"""``python -m mha_conformance.suite --mha-backend=NAME``: pytest on the suite, with nothing of its surroundings.

Its own ini file and root, no conftest from outside, no plugins but its own, and neither PYTEST_ADDOPTS nor PYTEST_PLUGINS. Every
other option of pytest may follow.
"""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
CLEARED = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS")


def arguments(given: list[str]) -> list[str]:
    """The arguments of pytest."""
    return [
        str(HERE), "-c", str(HERE / "pytest.ini"), "--rootdir", str(HERE), "--confcutdir", str(HERE), "-p", "no:cacheprovider",
        "-p", "mha_conformance.plugin", *given,
    ]  # fmt: skip


def main() -> int:
    for name in CLEARED:
        os.environ.pop(name, None)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    import pytest

    return int(pytest.main(arguments(sys.argv[1:])))


if __name__ == "__main__":
    sys.exit(main())
