"""Which kernel answers a call, in words: by options, shapes and dtype, never by what an array holds."""

import math

from mha_backends.numpy.job import arithmetic
from mha_backends.numpy.plan import SHORT, plan, usual_blocks
from mha_backends.numpy.short import is_short
from mha_spec.call import Call


def explain(call: Call, *, threads: int | None = None) -> str:
    """The way that ``attend`` takes, and how it cuts the scores."""
    if is_short(call, SHORT):
        return "short: all scores at once"
    kind, *_ = arithmetic(call)
    sizes = call.sizes
    cut = plan(sizes._replace(batch=(math.prod(sizes.batch),)), usual_blocks(call, kind.itemsize), threads)
    tile = "whole heads" if cut.packed else f"{cut.rows} queries by {cut.columns} keys"
    return f"blocked: tiles of {tile}, {kind.name}, {cut.threads} thread{'s' if cut.threads > 1 else ''}"
