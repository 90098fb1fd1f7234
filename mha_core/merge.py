"""Attention over a split key axis: parts (output, lse) become the whole."""

from collections.abc import Sequence

import array_api_compat

from mha_spec.call import Array
from mha_spec.contract_layer import check_parts


def merge_partials(parts: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """(output, lse) of attention over all keys, from the (output, lse) of parts of the key axis.

    .. math:: O = \\sum_p e^{lse_p - lse} O_p, \\qquad lse = \\log \\sum_p e^{lse_p}

    Each output ``(*batch, h, n, d_v)``, each lse ``(*batch, h, n)``. The part (0, -inf) is the identity and leaves the other
    part as it is; two parts merge to the same bits in either order (MHA-AUX-7 to MHA-AUX-10). A sink is the part
    (0, sink_logits). Half types are merged in float32 and rounded once. Raises ``Violation`` (MHA-AUX-12).
    """
    check_parts(parts)
    xp = array_api_compat.array_namespace(*(x for part in parts for x in part))
    outputs, lses = zip(*parts, strict=True)
    top = lses[0]
    for lse in lses[1:]:
        top = xp.maximum(top, lse)
    shift = xp.where(top == -xp.inf, xp.zeros_like(top), top)

    total = xp.zeros_like(top)
    merged = xp.zeros_like(outputs[0], dtype=top.dtype)
    seen = xp.zeros_like(top, dtype=xp.bool)
    for output, lse in zip(outputs, lses, strict=True):
        share = xp.exp(lse - shift)
        part = share[..., None] * xp.astype(output, top.dtype)
        there = lse != -xp.inf
        merged = xp.where(there[..., None], xp.where(seen[..., None], merged + part, part), merged)
        total = total + share
        seen = seen | there
    safe = xp.where(seen, total, xp.ones_like(total))
    merged = xp.where(seen[..., None], merged / safe[..., None], xp.zeros_like(merged))
    lse = xp.where(seen, shift + xp.log(safe), xp.full_like(top, -xp.inf))
    return xp.astype(merged, outputs[0].dtype), lse
