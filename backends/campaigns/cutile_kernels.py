"""The cuTile kernels of the CuPy backend, compiled for compute capability 9.0 and 10.0 where there is no GPU.

    pip install -e '.[cutile]' nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm && python backends/campaigns/cutile_kernels.py

or ``.ci/cutile``, which makes an environment for it. Each variant that the backend may launch is compiled by cuda-tile's own compiler.
In the machine code no register may be spilled to the stack, and each kernel with matrix products must use the tensor cores in
the way of its architecture: ``HGMMA`` on 9.0, ``UTC*MMA`` on 10.0. The result is written beside this file, with the date, the versions
and a hash of the kernels; a test fails when they have changed since. What was compiled before is taken from the folder that
``--cache`` names. Nothing is run.
"""

import argparse
import datetime
import hashlib
import itertools
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import files, version
from pathlib import Path

HERE = Path(__file__).parent
RESULT = HERE / "cutile_kernels.json"
CODE = HERE.parent / "mha_backends/cupy"
LIBRARIES = ("cuda-tile", "nvidia-cuda-tileiras", "nvidia-cuda-nvcc", "nvidia-nvvm")
PRODUCTS = {"sm_90": r"\bHGMMA\b", "sm_100": r"\bUTC\w*MMA\b"}
"""What multiplies matrices, by architecture."""


def code_hash():
    """Of the kernels, and of what they are compiled for."""
    from mha_backends.cupy.cutile_choice import HINTS

    asked = repr([HINTS, *((*variant, variant[-1].tiles) for variant in variants())])
    return hashlib.sha256((CODE / "cutile_kernels.py").read_bytes() + asked.encode()).hexdigest()


def variants():
    """(architecture, kernel, what it is compiled for): all that the backend may launch."""
    from mha_backends.cupy.cutile_choice import WIDTHS, Tiled

    for arch, element, width in itertools.product(PRODUCTS, ("float16", "bfloat16"), WIDTHS):
        tiled = Tiled(element, width, causal=False)
        for kernel in tiled.tiles:
            yield arch, kernel, tiled


def compiled(arch, kernel, tiled, cache):
    """The machine code."""
    import cuda.tile as ct
    from cuda.tile.compilation import ArrayConstraint, CallingConvention, KernelSignature, ScalarConstraint, export_kernel

    from mha_backends.cupy import cutile_kernels
    from mha_backends.cupy.cutile_choice import HINTS

    made = cache / f"{arch}-{kernel}-{tiled.element}-{tiled.width}-{code_hash()[:12]}.cubin"
    if made.exists():
        return made

    def array(dtype, axes, multiple):
        """As a contiguous array of CuPy is seen when it is launched: rows that begin at multiples of 16 bytes, last axis dense."""
        return ArrayConstraint(
            dtype, axes, index_dtype=ct.int32, stride_lower_bound_incl=0, alias_groups=[], may_alias_internally=False,
            stride_constant=[None] * (axes - 1) + [1], stride_divisible_by=[multiple] * (axes - 1) + [1], base_addr_divisible_by=16,
        )  # fmt: skip

    x, row = array(getattr(ct, tiled.element), 4, 8), array(ct.float32, 3, 1)
    number, integer = ScalarConstraint(ct.float32), ScalarConstraint(ct.int32)
    tile, widths = tiled.tiles[kernel], (tiled.width, tiled.width)
    parameters = {
        "forward": [x, x, x, x, row, number, number, *[integer] * 4, *tile, *widths, tiled.bounded],
        "deltas": [x, x, row, row, integer, integer, tile.queries, tiled.width, True],  # a gradient of the lse arrives
        "keys": [x, x, x, x, row, row, x, x, number, *[integer] * 4, *tile, *widths],
        "queries": [x, x, x, x, row, row, x, number, *[integer] * 4, *tile, *widths],
    }[kernel]
    signature = KernelSignature(parameters, CallingConvention.cutile_python_v2(), symbol="kernel")
    function = ct.kernel(getattr(cutile_kernels, kernel), **({} if kernel == "deltas" else HINTS))
    export_kernel(function, [signature], str(made), gpu_code=arch, output_format="cubin")
    return made


def tool(name):
    """A program out of the wheel ``nvidia-cuda-NAME``."""
    return next(str(file.locate()) for file in files(f"nvidia-cuda-{name}") if file.name == name)


def read(arch, kernel, tiled, made):
    """What the machine code says of itself."""
    said = subprocess.run([tool("cuobjdump"), "-res-usage", str(made)], capture_output=True, text=True, check=True)
    registers, stack, shared = map(int, re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+)", said.stdout + said.stderr).groups())
    code = subprocess.run([tool("nvdisasm"), "-c", str(made)], capture_output=True, text=True, check=True).stdout
    products = len(re.findall(PRODUCTS[arch], code))
    known = {"architecture": arch, "kernel": kernel, "element": tiled.element, "width": tiled.width}
    return known | {"registers": registers, "stack": stack, "shared": shared, "products": products}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True, help="a folder for what is compiled")
    parser.add_argument("--jobs", type=int, default=2, help="compilers at once; default: 2")
    asked = parser.parse_args()
    asked.cache.mkdir(parents=True, exist_ok=True)

    def made(item):
        result = read(*item, compiled(*item, asked.cache))
        print(result, flush=True)
        return result

    with ThreadPoolExecutor(asked.jobs) as pool:
        results = list(pool.map(made, variants()))
    record = {"date": str(datetime.date.today()), "code": code_hash(), "libraries": {name: version(name) for name in LIBRARIES}}
    RESULT.write_text(json.dumps(record | {"results": results}, indent=1) + "\n", encoding="utf-8")
    return 0 if all(map(good, results)) else 1


def good(result):
    return result["stack"] == 0 and (result["products"] > 0) == (result["kernel"] != "deltas")


if __name__ == "__main__":
    sys.exit(main())
