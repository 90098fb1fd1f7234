"""Competitors that a contest has to deal with. They stand in a module of their own, because another process imports them."""

import os

import numpy as np

from mha_conformance.bench.peers import naive_numpy


def honest(workload):
    return naive_numpy(workload)


def slightly_wrong(workload):
    """A scale that is off by a thousandth."""
    query, key, value = workload.operands()
    return naive_numpy(_Other(workload, (query * np.asarray(1.001, query.dtype), key, value)))


def wrong_in_one_number(workload):
    """A NaN in a row that is not judged by a bound."""
    call = naive_numpy(workload)

    def spoilt():
        output = call()
        output[..., 1, 0] = np.nan
        return output

    return spoilt


def another_type(workload):
    call = naive_numpy(workload)
    return lambda: call().astype(np.float64)


def forgetful(workload):
    """Right for the first calls, and wrong when it is asked again: a stale buffer."""
    call, counted = naive_numpy(workload), [0]

    def later():
        counted[0] += 1
        return call() * np.asarray(1 if counted[0] < 2 else 2, workload.dtype)

    return later


def crashing(workload):
    call = naive_numpy(workload)

    def gone():
        if workload.n > 8:  # not yet while it warms up
            os._exit(7)
        return call()

    return gone


def raising(workload):
    raise ArithmeticError("nothing of this kind\nand more that nobody prints")


class _Other:
    """A workload with other operands."""

    def __init__(self, workload, operands):
        self.n, self.d, self.causal, self.dtype = workload.n, workload.d, workload.causal, workload.dtype
        self.operands = lambda: operands
