"""A .cu source built for this CPU: as a library for Python, or as a program under a sanitizer."""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
HEADERS = sorted(HERE.glob("*.h"))
FLAGS = ("-std=c++17", "-march=native", "-ffp-contract=off", "-fno-strict-aliasing", "-Wall", "-Werror", "-Wno-unknown-pragmas")
KINDS = {
    "library": ("-O1", "-shared", "-fPIC"),
    "thread": ("-O1", "-g", "-DREPLAY", "-fsanitize=thread"),
    "address": ("-O1", "-g", "-DREPLAY", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"),
}


def missing() -> str:
    """Why nothing can be emulated on this machine; empty where it can."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return f"the emulator's fibers are written for x86-64, and this is {platform.machine()}"
    return "" if shutil.which("g++") else "there is no g++ to compile the kernels for this CPU"


def build(source: str, defines: tuple[str, ...], kind: str = "library") -> Path:
    """The file that was built; an equal one of before is taken again. Raises ``ValueError`` with the compiler's words."""
    unit = _unit(source)
    command = ["g++", *FLAGS, *KINDS[kind], *defines, f"-I{HERE}"]
    key = hashlib.sha256("\0".join([*command, unit, *(header.read_text(encoding="utf-8") for header in HEADERS)]).encode())
    folder = Path(tempfile.gettempdir()) / f"mha-emulator-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    built = folder / key.hexdigest()[:24]
    if not built.exists():
        with tempfile.TemporaryDirectory(dir=folder) as work:
            made = Path(work) / "made"
            said = subprocess.run([*command, "-x", "c++", "-", "-o", str(made)], input=unit, capture_output=True, text=True)
            if said.returncode:
                raise ValueError(said.stderr)
            made.replace(built)
    return built


def _unit(source: str) -> str:
    """The source as it is, between what CUDA would bring and the way in."""
    kernels = re.findall(r'extern "C" __global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\(', source)
    primitives = ['#include "warp.h"'] if "struct float16" in source else []
    names = " ".join(f"KERNEL({name})" for name in kernels)
    dispatch = f'static const char* dispatch(const emulator::Launch* launched, const void* params) {{ {names} return "no such kernel"; }}'
    return "\n".join(['#include "cuda.h"', source, *primitives, '#include "entry.h"', dispatch, ""])
