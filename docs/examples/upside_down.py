"""The NumPy backend with one fault: its mask means the opposite, as in libraries where True hides."""

from mha_backends import numpy


def attention(query, key, value, *, mask=None):
    return numpy.attention(query, key, value, mask=None if mask is None else ~mask)
