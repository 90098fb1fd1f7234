"""compute-sanitizer over a few small calls: memory that is not ours, and shared memory that two threads race for."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator

from mha_conformance.gpu.rows import Row

TOOLS = ("memcheck", "racecheck")
ROWS = TOOLS


def run() -> Iterator[Row]:
    program = shutil.which("compute-sanitizer")
    for tool in TOOLS:
        if program is None:
            yield Row(tool, why="compute-sanitizer is not on the path")
            continue
        command = [program, "--tool", tool, "--error-exitcode", "9", sys.executable, "-m", __name__]
        done = subprocess.run(command, capture_output=True, text=True)
        yield told(tool, done.returncode, done.stdout + done.stderr)


def told(tool: str, code: int, said: str) -> Row:
    """A tool that ends without a summary has not looked."""
    summary = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (.*)", said)
    if not summary:
        return Row(tool, "CRASHED", why=f"it ended with {code} and no summary: {said.strip()[-200:]}")
    return Row(tool, "FAILS" if code else "HOLDS", why=summary[-1])


def small_calls() -> None:
    """Tails, a causal band, a mask and grouped heads, forward and, where claimed, backward."""
    import numpy as np

    from mha_core import load

    api = load("cupy")
    rng = np.random.default_rng(0)
    for dtype in ("float16", "bfloat16"):
        if dtype not in api.backend.claims.dtypes:
            continue
        q, g = (api.backend.from_host(rng.standard_normal((1, 2, 100, 64)), dtype) for _ in range(2))
        k, v = (api.backend.from_host(rng.standard_normal((1, 1, 150, 64)), dtype) for _ in range(2))
        for options in (
            {},
            {"is_causal": True, "query_offset": 50},
            {"mask": api.backend.from_host(rng.random((100, 150)) < 0.7, "bool")},
        ):
            api.attention(q, k, v, return_lse=True, **options)
            if "vjp" in api.backend.claims.features:
                api.attention_vjp(q, k, v, g, **options)
    api.backend.to_host(q)


if __name__ == "__main__":
    small_calls()
