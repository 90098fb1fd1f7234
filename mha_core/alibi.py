"""The slopes of ALiBi: one number per head that turns a distance into a bias."""

from numbers import Integral

from mha_spec.violation import Violation, shown


def alibi_slopes(h: int) -> tuple[float, ...]:
    """The slopes of ``h`` heads, head 0 first: the bias of a pair is the slope times key position minus query position.

    .. math:: 2^{-8 i / h}, \\quad i = 1, \\ldots, h

    where h is a power of two; otherwise the slopes of the largest power of two p below h, and after them the first, third,
    fifth, ... of 2p, as many as are missing (MHA-BIAS-1). Raises ``Violation`` for what is no number of heads.
    Source: Press, Smith and Lewis, Train Short, Test Long, 2022.
    """
    if not isinstance(h, Integral) or isinstance(h, bool) or h < 1:
        raise Violation("MHA-BIAS-1", f"alibi_slopes({shown(h)})", "an int >= 1", "give the number of query heads")
    p = 1 << (int(h).bit_length() - 1)
    return (*_series(p), *_series(2 * p)[::2])[: int(h)]


def _series(p: int) -> tuple[float, ...]:
    return tuple(2.0 ** (-8 * i / p) for i in range(1, p + 1))
