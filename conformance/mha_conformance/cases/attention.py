"""Cases of ATTN: scores, scale, softmax, values, and the options that act on a score."""

from collections.abc import Iterator

import numpy as np

from mha_conformance.cases.build import ONE, case, operands
from mha_conformance.cases.case import Case, Level, Request
from mha_conformance.cases.codes import codes
from mha_conformance.cases.features import DTYPE_BY
from mha_conformance.cases.inputs import eighths, fractions

DTYPES = ("float32", "float64", "float16", "bfloat16")


def cases() -> Iterator[Case]:
    yield from scores()
    yield from default_scale()
    yield from softmax()
    yield from values()
    yield from options()
    yield from large_scores()


def scores() -> Iterator[Case]:
    """ATTN-1 by scores far apart: each query matches one key so well that the scale does not matter, and V tells which."""

    def matched() -> Request:
        m = d = 8
        key = np.eye(m, d)[None, None]
        return Request((192.0 * key[..., [3, 0, 7, 1, 5, 2, 6, 4], :], key, codes((1, 1, m, d), channels=False)), "float32")

    yield case("MHA-ATTN-1", "the matching key wins", matched, level="smoke")

    def cancelling() -> Request:
        query = np.ones((1, 1, 6, 2)) * 1024
        key = np.stack([np.arange(6.0), -np.arange(6.0)], axis=-1)[None, None]
        return Request((query, key, codes((1, 1, 6, 2), channels=False)), "float32")

    yield case("MHA-ATTN-1", "all channels count", cancelling)


def default_scale() -> Iterator[Case]:
    """ATTN-2 by a law: widening a score's channels by d and its query by sqrt(d) leaves the answer as it is."""
    for d in (4, 16, 64, 1, 2, 3, 8, 40, 80, 96, 128, 192):

        def widened(d: int = d) -> tuple[Request, ...]:
            query, key = eighths(1, (1, 1, 6, 1)), eighths(2, (1, 1, 6, 1))
            value = eighths(3, (1, 1, 6, 1))
            wide = np.zeros((1, 1, 6, d)), np.zeros((1, 1, 6, d))
            wide[0][..., -1:], wide[1][..., -1:] = (query * np.sqrt(d)).astype(np.float32), key
            four = Request((query * np.ones(4) / 4 * 2, key * np.ones(4), np.repeat(value, 4, axis=-1)), "float32")
            other = Request((*wide, np.repeat(value, d, axis=-1)), "float32")
            return (four, other) if d >= 4 else (other, four)  # the second may have more channels of values

        yield case("MHA-ATTN-2", f"d_k = {d} as d_k = 4", widened, rule="agree", level="smoke" if d == 16 else "core")


def softmax() -> Iterator[Case]:
    """ATTN-5: equal scores give equal weights; a constant value comes back; graded scores are exponentials."""

    def uniform() -> Request:
        query, key, value = operands(20, "float32", **ONE)
        return Request((np.zeros_like(query), key, codes(value.shape, channels=False)), "float32")

    yield case("MHA-ATTN-5", "equal scores", uniform, level="smoke")

    def constant() -> Request:
        query, key, value = operands(21, "float32", **ONE)
        return Request((query, key, np.full_like(value, 1.5)), "float32")

    yield case("MHA-ATTN-5", "constant value", constant)
    for d in (1, 4, 16):
        yield case("MHA-ATTN-5", f"graded scores, d_k = {d}", lambda d=d: graded(d))


def graded(d: int) -> Request:
    """Scores of many sizes over values that are alike in every channel."""
    query, key, value = operands(30, "float32", **{**ONE, "d": d})
    return Request((query, key, np.repeat(value[..., :1], d, axis=-1)), "float32")


def values() -> Iterator[Case]:
    """ATTN-6, 7, 8, 14."""
    for dtype in DTYPES:
        yield case(
            "MHA-ATTN-6", "the weighted sum", lambda dtype=dtype: Request(operands(40, dtype, **ONE), dtype), dtype=dtype,
            level="smoke" if dtype == "float32" else "core",
        )  # fmt: skip
        yield case(
            "MHA-ATTN-6",
            "64 by 64",
            lambda dtype=dtype: Request(operands(45, dtype, batch=(1,), h=1, n=64, m=64, d=64), dtype),
            dtype=dtype,
            beside=(DTYPE_BY[dtype],),
        )
    for d_v in (1, 3, 17):
        yield case(
            "MHA-ATTN-7", f"d_v = {d_v}", lambda d_v=d_v: Request(operands(60, "float32", **ONE, d_v=d_v), "float32"),
            features=("d_v",), level="smoke" if d_v == 3 else "core",
        )  # fmt: skip
    for n, m in ((1, 9), (9, 1), (2, 64), (33, 5), (16, 17)):
        yield case(
            "MHA-ATTN-8", f"n = {n}, m = {m}", lambda n=n, m=m: Request(operands(70, "float32", batch=(1,), h=1, n=n, m=m, d=8), "float32"),
            level="smoke" if n == 1 else "core",
        )  # fmt: skip

    def permuted() -> tuple[Request, ...]:
        query, key, value = operands(80, "float32", **ONE)
        order = np.asarray([4, 2, 0, 1, 5, 3])
        return Request((query, key, value), "float32"), Request((query, key[..., order, :], value[..., order, :]), "float32")

    yield case("MHA-ATTN-14", "keys in another order", permuted, rule="agree", level="smoke")


def options() -> Iterator[Case]:
    """ATTN-3, 9, 10, 11, 12: scale, softcap, bias, sink, and their order."""
    query, key, value = operands(90, "float32", **ONE)
    for scale in (1.0, 0.0, -0.5, 0.3):
        yield case(
            "MHA-ATTN-3", f"scale = {scale}", lambda scale=scale: Request((query, key, value), "float32", options={"scale": scale}),
            features=("scale",), level="smoke" if scale == 0.3 else "core",
        )  # fmt: skip
    for cap in (0.5, 2.0, 30.0):
        yield case(
            "MHA-ATTN-10", f"softcap = {cap}",
            lambda cap=cap: Request((query * 8, key, value), "float32", options={"softcap": cap}),
            features=("softcap",), level="smoke" if cap == 2.0 else "core",
        )  # fmt: skip
    n, m, h = ONE["n"], ONE["m"], ONE["h"]
    for shape in ((n, m), (1, m), (n, 1), (1, 1, n, m), (1, 1, 1, m), (1, 1, 1, 1)):

        def biased(shape: tuple[int, ...] = shape) -> Request:
            return Request((query, key, value), "float32", arrays={"bias": fractions(95, shape, "float32")})

        yield case("MHA-ATTN-11", f"bias {shape}", biased, features=("bias",), level="smoke" if shape == (n, m) else "core")

    def wider() -> Request:
        return Request(
            (query, key, value), "float32", arrays={"bias": fractions(95, (n, m), "float32")}, dtypes={"bias": "float64"}
        )

    yield case("MHA-ATTN-11", "a bias in float64", wider, features=("bias",))
    for spread, name in ((1.0, "ordinary"), (64.0, "dominant"), (-64.0, "negligible")):

        def sunk(spread: float = spread) -> Request:
            return Request((query, key, value), "float32", arrays={"sink_logits": spread + eighths(96, (h,))})

        yield case("MHA-ATTN-12", f"{name} sinks", sunk, features=("sink",), level="smoke" if name == "ordinary" else "core")

    def ordered() -> Request:
        arrays = {"bias": 4 * fractions(97, (1, h, n, m), "float32"), "sink_logits": eighths(98, (h,))}
        return Request((query * 8, key, value), "float32", arrays=arrays, options={"softcap": 2.0, "scale": 0.75})

    yield case(
        "MHA-ATTN-9", "scale, softcap, bias, sink", ordered, features=("scale", "softcap", "bias", "sink"), level="smoke"
    )


def large_scores() -> Iterator[Case]:
    """ATTN-13: scores of many sizes, none of which overflows an exponential that is shifted."""
    for size in (128.0, 4096.0, 2.0**17):
        for sign, name in ((1, "positive"), (-1, "negative"), (0, "mixed")):

            def large(size: float = size, sign: int = sign) -> Request:
                query, key, value = operands(100, "float32", **ONE)
                if sign:
                    query, key = np.abs(query), sign * np.abs(key)
                return Request((query * size, key, value), "float32")

            level: Level = "smoke" if (size, sign) == (4096.0, 1) else "core"
            yield case("MHA-ATTN-13", f"scores near {size:g}, {name}", large, level=level)
