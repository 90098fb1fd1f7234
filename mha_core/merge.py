"""Attention over a split key axis: parts (output, lse) become the whole."""

from collections.abc import Sequence
from functools import reduce
from operator import add

import array_api_compat
import numpy as np

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
    lses = [lse for _, lse in parts]
    with np.errstate(all="ignore"):
        top = reduce(xp.maximum, lses)
        shift = xp.where(top == -xp.inf, xp.zeros_like(top), top)
        shares = [xp.exp(lse - shift) for lse in lses]
        total = reduce(add, shares)
        total = xp.where(total == 0, xp.ones_like(total), total)

        only_output, only_lse = xp.zeros_like(parts[0][0]), xp.full_like(top, -xp.inf)
        merged = xp.zeros_like(only_output, dtype=top.dtype)
        some = several = xp.zeros_like(top, dtype=xp.bool)
        for (output, lse), share in zip(parts, shares, strict=True):
            here = lse != -xp.inf
            term = (share / total)[..., None] * xp.astype(output, top.dtype)
            merged = xp.where(here[..., None], merged + term, merged)
            only_output = xp.where(here[..., None], output, only_output)
            only_lse = xp.where(here, lse, only_lse)
            some, several = some | here, several | (some & here)
        return (
            xp.where(several[..., None], xp.astype(merged, only_output.dtype), only_output),
            xp.where(several, shift + xp.log(total), only_lse),
        )
