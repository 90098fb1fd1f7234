"""Cases of MASK: a mask and a bias decide who sees whom, and are never added as a large negative number."""

from collections.abc import Iterator

import numpy as np

from mha_conformance.cases.build import case
from mha_conformance.cases.case import Case, Request
from mha_conformance.cases.codes import coded
from mha_conformance.cases.inputs import choices, fractions


def cases() -> Iterator[Case]:
    yield from masks()
    yield from biases()


def masks() -> Iterator[Case]:
    n, m = 5, 7
    shapes = {"shared": (n, m), "full": (2, 2, n, m), "per batch": (2, 1, n, m), "per head": (1, 2, n, m), "per key": (2, 1, 1, m),
              "one row": (1, m), "one column": (n, 1)}  # fmt: skip
    for name, shape in shapes.items():

        def masked(shape: tuple[int, ...] = shape) -> Request:
            mask = choices(210, shape, 0.6)
            if shape[-1] > 1:
                mask[..., 0] = True
            wide = {"items": 2, "h": 2} if len(shape) == 4 else {}
            return Request(coded(n, m, spread=1.0, **wide), "float32", arrays={"mask": mask})

        clause = "MHA-MASK-2" if name == "shared" else "MHA-MASK-4"
        yield case(
            clause, f"mask {name}", masked, features=("mask",), level="smoke" if name in ("shared", "per key") else "core"
        )

    def all_true() -> Request:
        return Request(coded(n, m, spread=1.0), "float32", arrays={"mask": np.ones((n, m), dtype=bool)})

    yield case("MHA-MASK-2", "all True", all_true, features=("mask",))

    for power in (8, 17):

        def very_low(power: int = power) -> tuple[Request, ...]:
            query, key, value = coded(n, m)
            # one key a row: an lse near -2^33 could not tell how many keys it stands for
            mask = {"mask": np.arange(m) == 2 * np.arange(n)[:, None] % m}
            low_key = np.broadcast_to(np.asarray([2.0**power, 0, 0, 0]), key.shape)
            low_query = np.broadcast_to(np.asarray([-(2.0**power), 0, 0, 0]), query.shape)
            return Request((query, key, value), "float32", arrays=mask), Request(
                (low_query, low_key, value), "float32", arrays=mask
            )

        yield case(
            "MHA-MASK-3", f"all scores equal and near -2^{2 * power - 1}", very_low, features=("mask",), rule="as first",
            level="smoke" if power == 17 else "core",
        )  # fmt: skip

    for power in (5, 17):

        def hidden_wins(power: int = power) -> tuple[Request, ...]:
            query, key, value = coded(n, m)
            mask = {"mask": np.broadcast_to(np.arange(m) % 3 == 1, (n, m)).copy()}
            high_query, high_key = np.zeros_like(query), np.zeros_like(key)
            high_query[..., 0], high_key[..., 0] = 2.0**power, -(2.0**power)
            high_key[..., np.arange(m) % 3 != 1, 0] = 2.0**power
            return Request((query, key, value), "float32", arrays=mask), Request(
                (high_query, high_key, value), "float32", arrays=mask
            )

        yield case("MHA-MASK-3", f"hidden scores larger by 2^{2 * power}", hidden_wins, features=("mask",), rule="as first")


def biases() -> Iterator[Case]:
    n, m = 5, 7

    def hidden() -> Request:
        bias = np.where(choices(220, (n, m), 0.6) | np.eye(n, m, dtype=bool), fractions(221, (n, m), "float32"), -np.inf)
        return Request(coded(n, m, spread=1.0), "float32", arrays={"bias": bias})

    yield case("MHA-MASK-5", "bias of -inf hides", hidden, features=("bias",), level="smoke")
    lowest = float(np.finfo(np.float32).min)
    for name, value, kind in (
        ("lowest float32", lowest, "float32"),
        ("-1e300 in float64", -1e300, "float64"),
        ("-1e9", -1e9, "float32"),
    ):

        def finite(value: float = value, kind: str = kind) -> tuple[Request, ...]:
            plain = np.zeros((n, m))
            plain[3, ::2] = -np.inf
            low = np.where(plain == -np.inf, value, 0.0)
            low[1] = value
            operands = coded(n, m)
            return (
                Request(operands, "float32", arrays={"bias": plain}),
                Request(operands, "float32", arrays={"bias": low.astype(kind).astype(float)}, dtypes={"bias": kind}),
            )

        yield case(
            "MHA-MASK-6", f"a row of {name}", finite, features=("bias",), rule="as first",
            level="smoke" if kind == "float64" else "core",
        )  # fmt: skip
