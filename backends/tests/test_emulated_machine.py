"""The emulator itself, on kernels of a few lines: warp instructions against their definition in the PTX manual, faults, schedules."""

import ml_dtypes
import numpy as np
import pytest
from cupy_machine import TYPES
from emulator.launches import SCHEDULES, Fault, Launch

FIELDS = np.dtype([("x", "<u8"), ("y", "<u8"), ("out", "<u8")])


@pytest.fixture
def kernel(machine, backend_package):
    """A function from the body of a kernel to its launch on arrays x, y, out; ``p`` holds their addresses."""
    from mha_backends.cupy.programs import Program

    primitives = Program(("primitives.cu",)).source

    def of(body, x, y, out, threads=32, shared=0, element="float16"):
        struct = "struct Given { char *x, *y, *out; };"
        source = f'{primitives}{struct}\nextern "C" __global__ void tried(Given p)\n{{\n{body}\n}}\n'
        params = np.array([(x.ctypes.data, y.ctypes.data, out.ctypes.data)], FIELDS)
        return Launch(source, (f"-DELEMENT={element}",), "tried", 1, threads, shared, params)

    return of


MULTIPLY = """
    const unsigned short *A = (unsigned short*)p.x, *B = (unsigned short*)p.y;
    const int g = threadIdx.x / 4, t = threadIdx.x % 4;
    unsigned short a[8], b[4];
    for (int i = 0; i < 8; ++i) a[i] = A[(i % 4 < 2 ? g : g + 8) * 16 + 2 * t + i % 2 + (i < 4 ? 0 : 8)];
    for (int i = 0; i < 4; ++i) b[i] = B[(2 * t + i % 2 + (i < 2 ? 0 : 8)) * 8 + g];
    unsigned whole[4];
    for (int i = 0; i < 4; ++i) whole[i] = a[2 * i] | (unsigned)a[2 * i + 1] << 16;
    float c[4] = {1, 1, 1, 1};
    multiply_add(ELEMENT(), c, whole, b[0] | (unsigned)b[1] << 16, b[2] | (unsigned)b[3] << 16);
    for (int i = 0; i < 4; ++i) ((float*)p.out)[(i < 2 ? g : g + 8) * 8 + 2 * t + i % 2] = c[i];
"""
"""Fragments as the PTX manual gives them for mma.m16n8k16: a0 to a7, b0 to b3, c0 to c3."""


@pytest.mark.parametrize("element", ["float16", "bfloat16"])
def test_products_of_a_warp(kernel, rng, element):
    a, b = (rng.integers(-8, 8, shape).astype(TYPES[element]) for shape in ((16, 16), (16, 8)))
    out = np.zeros((16, 8), "float32")
    kernel(MULTIPLY, a, b, out, element=element).run()
    np.testing.assert_array_equal(out, 1 + a.astype("float32") @ b.astype("float32"))


LOAD = """
    char* const rows = shared_memory();
    for (int k = 0; k < 4; ++k) ((unsigned short*)rows)[k * 64 + threadIdx.x] = ((unsigned short*)p.x)[k * 64 + threadIdx.x];
    for (int k = 0; k < 4; ++k) ((unsigned short*)rows)[k * 64 + 32 + threadIdx.x] = ((unsigned short*)p.x)[k * 64 + 32 + threadIdx.x];
    __syncthreads();
    unsigned to[4];
    LOADED(to, rows + 16 * threadIdx.x);
    for (int k = 0; k < 4; ++k) ((unsigned*)p.out)[4 * threadIdx.x + k] = to[k];
"""


@pytest.mark.parametrize("transposed", [False, True])
def test_matrix_loads(kernel, transposed):
    """Lane T gets row T / 4 of each matrix, elements 2 (T % 4) and the next; of the transposed matrix where that is asked."""
    x = np.arange(256, dtype="uint16").reshape(4, 8, 8)
    out = np.zeros((32, 4, 2), "uint16")
    kernel(LOAD.replace("LOADED", "load_transposed" if transposed else "load_matrices"), x, x, out, shared=512).run()
    want = np.swapaxes(x, 1, 2) if transposed else x
    for lane in range(32):
        for k in range(4):
            np.testing.assert_array_equal(out[lane, k], want[k, lane // 4, 2 * (lane % 4) :][:2])


@pytest.mark.parametrize("element", ["float16", "bfloat16"])
def test_pairs_are_rounded_to_nearest_even(kernel, element):
    rng = np.random.default_rng(1)
    x = rng.integers(0, 2**32, 64, dtype="uint32").view("float32").copy()
    x[:8] = [0.0, -0.0, np.inf, -np.inf, 65519.0, 65520.0, 1.0 + 2.0**-11, 2.0**-25]
    out = np.zeros(64, TYPES[element])
    body = "const float* x = (float*)p.x + 2 * threadIdx.x; ((unsigned*)p.out)[threadIdx.x] = pair_of(ELEMENT(), x[0], x[1]);"
    kernel(body, x, x, out, element=element).run()
    with np.errstate(all="ignore"):
        want = x.astype(TYPES[element])
    numbers = ~np.isnan(x)
    assert out[numbers].tobytes() == want[numbers].tobytes()
    assert np.isnan(out[~numbers].astype("float32")).all()
    assert element != "bfloat16" or out.dtype == ml_dtypes.bfloat16


def test_copies_come_late_or_early_and_fill_with_zeros(kernel):
    body = """
    char* const at = shared_memory() + 16 * threadIdx.x;
    copy_16(at, p.x + 16 * threadIdx.x, threadIdx.x % 9 * 2);
    close_copies();
    for (int k = 0; k < 8; ++k) ((unsigned short*)p.out)[8 * threadIdx.x + k] = ((unsigned short*)at)[k];
    await_copies<0>();
    for (int k = 0; k < 8; ++k) ((unsigned short*)p.y)[8 * threadIdx.x + k] = ((unsigned short*)at)[k];
    """
    memory = np.zeros(33 * 8, "uint16")
    skip = -memory.ctypes.data % 16 // 2
    x = memory[skip : skip + 256].reshape(32, 8)
    x[...] = 7
    want = np.where(np.arange(8) < np.arange(32)[:, None] % 9, 7, 0)
    for copies in ("late", "early"):
        y, out = np.zeros((2, 32, 8), "uint16")
        kernel(body, x, y, out, shared=512).run(SCHEDULES[0]._replace(copies=copies))
        np.testing.assert_array_equal(y, want)
        np.testing.assert_array_equal(out, np.full((32, 8), 0xFFFF) if copies == "late" else want)


FAULTS = {
    "a barrier that some never reach": ("if (threadIdx.x < 40) __syncthreads();", "never come"),
    "two barriers": ("if (threadIdx.x < 40) __syncthreads(); else __syncthreads_or(1);", "different barriers"),
    "a lane that left": ("if (threadIdx.x != 3) exchanged(1, 1);", "a lane"),
    "two collectives": ("if (threadIdx.x % 2) exchanged(1, 1); else from_lane(1, 1);", "different collectives"),
    "a matrix outside of shared memory": (
        "unsigned to[4]; load_matrices(to, shared_memory() + 512);",
        "outside of shared memory",
    ),
    "a row at an odd place": ("unsigned to[4]; load_matrices(to, shared_memory() + 8);", "no multiple of 16"),
    "a copy from an odd place": ("copy_16(shared_memory(), p.x + 1, 16);", "no multiple of 16"),
}


@pytest.mark.parametrize(("body", "said"), FAULTS.values(), ids=FAULTS.keys())
def test_faults(kernel, body, said):
    x = np.zeros(64, "uint16")
    with pytest.raises(Fault, match=said):
        kernel(body, x, x, x, threads=64, shared=512).run()


def test_warps_run_in_the_order_of_the_schedule(kernel, tmp_path):
    """Two warps write one element without a barrier: the last one wins, and ThreadSanitizer objects."""
    body = "if (threadIdx.x % 32 == 0) ((unsigned short*)p.out)[0] = threadIdx.x;"
    x, out = np.zeros(8, "uint16"), np.zeros(8, "uint16")
    for order, winner in (("first to last", 32), ("last to first", 0)):
        kernel(body, x, x, out, threads=64).run(SCHEDULES[0]._replace(order=order))
        assert out[0] == winner
    assert "data race" in kernel(body, x, x, out, threads=64).sanitized("thread", [x, out], tmp_path)


def test_structures_of_different_size_are_refused(kernel):
    x = np.zeros(8, "uint16")
    launch = kernel("", x, x, x)
    with pytest.raises(Fault, match="different size"):
        launch._replace(params=np.zeros(1, [("x", "<u8")])).run()
