"""Writes what the emulator gives for every instruction of ``primitives.cu``: the golden data of ``mha gpu-check``.

PYTHONPATH=conformance python conformance/emulator/golden.py
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from emulator.launches import Launch
from mha_conformance.gpu.golden import KERNEL, SHARED, WORDS, as_text, inputs

ROOT = Path(__file__).parents[2]
FILE = ROOT / "conformance/mha_conformance/gpu/golden.json"
KERNELS = ROOT / "backends/mha_backends/cupy/kernels"
PARAMS = np.dtype([("x", "<u8"), ("out", "<u8")])


def computed() -> Any:
    """(WORDS, 32): what each lane of the warp writes."""
    source = "".join((KERNELS / name).read_text(encoding="utf-8") for name in ("primitives.cu", "check_primitives.cu"))
    memory = np.zeros(inputs().size + 4, np.uint32)
    aligned = memory[-memory.ctypes.data % 16 // 4 :][: inputs().size]
    aligned[...] = inputs()
    out = np.zeros((WORDS, 32), np.uint32)
    params = np.array([(aligned.ctypes.data, out.ctypes.data)], PARAMS)
    Launch(source, (), KERNEL, 1, 32, SHARED, params).run()
    return out


if __name__ == "__main__":
    FILE.write_text(json.dumps(as_text(computed()), indent=1) + "\n", encoding="utf-8")
