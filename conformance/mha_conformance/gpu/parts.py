"""The parts of a check, the most important first."""

from mha_conformance.gpu import device, primitives, rates, sanitizer, speed, suite
from mha_conformance.gpu.rows import Part

BUDGET = 470
"""Seconds for all of them: under eight minutes. A part gets what is left, and its own limit at most."""

PARTS = (
    Part("device", "names the device, its driver and the libraries", 30, device.ROWS, device.run),
    Part(
        "primitives", "runs every instruction of primitives.cu once and compares with golden data", 60, primitives.ROWS, primitives.run,
    ),
    Part("suite", "judges the backend on the device: mha conform cupy, level core", 240, suite.ROWS, suite.run),
    Part("sanitizer", "runs a few small calls under compute-sanitizer, where it is installed", 60, sanitizer.ROWS, sanitizer.run),
    Part("rates", "measures the rate of cuBLAS and the bandwidth of a copy", 40, rates.ROWS, rates.run),
    Part(
        "forward", "times our kernels and cuTile beside torch's flash and cuDNN kernels", 100, speed.rows_of(speed.FORWARD), speed.forward,
    ),
    Part("backward", "does the same for the gradients", 80, speed.rows_of(speed.BACKWARD), speed.backward),
    Part("decoding", "times one query over many keys, in bytes read", 40, speed.rows_of(speed.DECODING), speed.decoding),
)  # fmt: skip


def named(name: str) -> Part:
    return next(part for part in PARTS if part.name == name)
