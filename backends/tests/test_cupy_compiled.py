"""The kernels compiled for GPUs by CuPy's own compiler with CuPy's own flags. It needs NVRTC, and no GPU; nothing is run.

Without NVRTC these tests are skipped, and say so; the extra ``compile`` brings it. `.ci/run` has an environment with it, where a
skip is a failure.
"""

import importlib
import re
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, files

import pytest

ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
FLAGS = ("-ftz=true", "--ptxas-options=-v", "--device-as-default-execution-space")
"""What CuPy adds to the options of a module, and the request for a list of registers and spills."""

VARIANTS = [
    ("float16", 16, 16, "BY_PAIR"), ("float16", 64, 64, "FULL"), ("bfloat16", 64, 64, "BY_PAIR"), ("float16", 96, 96, "BY_PAIR"),
    ("float16", 128, 128, "FULL"), ("bfloat16", 128, 128, "BY_POSITION"), ("float16", 128, 128, "BY_PAIR"),
    ("float16", 192, 128, "BY_PAIR"), ("bfloat16", 256, 256, "FULL"), ("float16", 256, 256, "BY_PAIR"),
]  # fmt: skip
"""Each width in its most demanding form, each form, each type."""

BACKWARD_VARIANTS = [
    ("float16", 64, 64, "FULL"), ("bfloat16", 64, 64, "BY_PAIR"), ("float16", 96, 96, "BY_PAIR"), ("bfloat16", 128, 128, "BY_POSITION"),
    ("float16", 128, 128, "BY_PAIR"), ("float16", 192, 128, "BY_PAIR"), ("float16", 256, 16, "BY_PAIR"), ("float16", 256, 256, "BY_PAIR"),
]  # fmt: skip
"""Each size of tiles at its widest; sums that fill the registers with one slice and with two."""


@pytest.fixture
def nvrtc(backend_package, monkeypatch):
    """CuPy's binding of NVRTC, with the package under test imported on its emulated CuPy."""
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    binding = pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="CuPy is not installed: not compiled for GPUs here")
    try:
        binding.getVersion()
    except Exception as missing:
        pytest.skip(f"CuPy is installed and NVRTC is not ({missing}): not compiled for GPUs here")
    return binding


def compiled(nvrtc, program, arch):
    """The machine code and what the compiler says of it. A failure raises with the compiler's words."""
    made = nvrtc.createProgram(program.source, "kernels.cu", (), ())
    try:
        nvrtc.compileProgram(made, (*program.options, *FLAGS, f"-arch={arch}"))
    except Exception:
        pytest.fail(nvrtc.getProgramLog(made))
    return nvrtc.getCUBIN(made), nvrtc.getProgramLog(made)


def fused_program(*variant):
    choose, fused = (importlib.import_module(f"mha_backends.cupy.{name}") for name in ("choose", "fused"))
    return fused.program(choose.Fused(*variant))


def spills(log):
    return {int(size) for size in re.findall(r"(\d+) bytes spill", log)}


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_unfused(nvrtc, arch):
    program = importlib.import_module("mha_backends.cupy.programs").UNFUSED
    code, log = compiled(nvrtc, program, arch)
    assert code and spills(log) == {0}


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_fused(nvrtc, arch, variant):
    code, log = compiled(nvrtc, fused_program(*variant), arch)
    assert code and spills(log) == {0}


@pytest.mark.parametrize("variant", BACKWARD_VARIANTS, ids=str)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_backward(nvrtc, arch, variant):
    choose, backward = (importlib.import_module(f"mha_backends.cupy.{name}") for name in ("choose", "fused_backward"))
    main, of_bias = backward.programs(choose.FusedBackward(*variant))
    for program in (main, of_bias) if variant[3] == "BY_PAIR" else (main,):  # a bias makes a call BY_PAIR
        code, log = compiled(nvrtc, program, arch)
        assert code and spills(log) == {0}


def test_a_device_before_8_0_is_refused_by_the_compiler(nvrtc):
    """Which is why ``choose`` does not send it there."""
    made = nvrtc.createProgram(fused_program("float16", 64, 64, "FULL").source, "kernels.cu", (), ())
    with pytest.raises(Exception, match="NVRTC"):
        nvrtc.compileProgram(made, (*fused_program("float16", 64, 64, "FULL").options, *FLAGS, "-arch=sm_75"))


@cache
def disassembler():
    try:
        return next(str(file.locate()) for file in files("nvidia-cuda-nvdisasm") or () if file.name == "nvdisasm")
    except (PackageNotFoundError, StopIteration):
        return None


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_instructions(nvrtc, tmp_path, arch):
    """Tensor cores, matrix loads plain and transposed, copies in the background of 16 bytes, exponentials, lane exchanges."""
    if disassembler() is None:
        pytest.skip("nvdisasm is not installed: the machine code is not read here")
    for element, suffix in (("float16", ""), ("bfloat16", ".BF16")):
        code, _ = compiled(nvrtc, fused_program(element, 64, 64, "FULL"), arch)
        cubin = tmp_path / "kernel.cubin"
        cubin.write_bytes(code + b"\0")  # CuPy's binding drops the last byte, as if this were a string; the reader misses it
        said = subprocess.run([disassembler(), "-c", str(cubin)], capture_output=True, text=True, check=True).stdout
        for instruction in (
            f"HMMA.16816.F32{suffix} ",
            "LDSM.16.M88.4",
            "LDSM.16.MT88.4",
            "LDGSTS.E.BYPASS.128",
            "MUFU.EX2",
            "SHFL.BFLY",
        ):
            assert instruction in said
        # S = Q K^T and O += P V: a warp's 16 x 64 tiles of 64 channels and 64 keys are 4 x 8 products of 16 x 8 x 16 each
        assert said.count(f"HMMA.16816.F32{suffix} ") == 64
