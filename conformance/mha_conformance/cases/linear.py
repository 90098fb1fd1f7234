"""Cases of COST: calls whose matrix of scores would take half a gigabyte, and whose answer needs none of it."""

from collections.abc import Iterator

from mha_conformance.cases.build import case, operands
from mha_conformance.cases.case import Case, Request
from mha_conformance.cases.features import describing

SIZES = ((2**13, 2**14), (2**7, 2**20), (2**20, 2**7))
"""n and m: about equal, and one of them short. Each has 2^27 pairs, 512 MiB of scores in float32."""
SHARE = 4
"""A quarter of the scores may be held: 128 MiB, and the operands take 33 MiB at most."""


def cases() -> Iterator[Case]:
    for n, m in SIZES:
        for name in ("plain", "causal"):

            def long(n: int = n, m: int = m, causal: bool = name == "causal") -> Request:
                options = {"is_causal": True, "query_offset": m - n} if causal else {}
                return Request(operands(1850, "float32", batch=(), h=1, n=n, m=m, d=4), "float32", options=options)

            used = ("causal", "offset") if name == "causal" else ()
            yield case(
                "MHA-COST-7", f"{name}, {n} by {m}", long, features=used, rule="memory", group="contract", level="full",
                beside=describing(used),
            )  # fmt: skip


def granted(request: Request) -> int:
    """The bytes that a call may hold beside its inputs and results."""
    query, key, _ = request.operands
    return int(query.shape[-2] * key.shape[-2] * 4 // SHARE)
