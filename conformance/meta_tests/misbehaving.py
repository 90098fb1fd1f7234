"""Implementations that misbehave as a process or as a function. All but ``honest`` do so where there is one query."""

import os
import signal
import time

import numpy as np


def honest(query, key, value):
    """Plain attention, with the refusals that are asked of everybody. The other functions here call it."""
    same = query.shape[:-2] == key.shape[:-2] == value.shape[:-2]
    if not same or query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise ValueError("these shapes do not go together")
    d = query.shape[-1]
    s = query @ np.swapaxes(key, -1, -2) / np.float32(np.sqrt(d) if d else 1)
    e = np.exp(s - s.max(axis=-1, keepdims=True, initial=-np.inf))
    return (e / e.sum(axis=-1, keepdims=True)) @ value if key.shape[-2] else np.zeros((*query.shape[:-1], d), query.dtype)


def single(query):
    return query.shape[-2] == 1


calls = 0


def once(query, key, value):
    """Right on the first call of a process only."""
    global calls
    calls += 1
    output = honest(query, key, value)
    return output if calls == 1 else output / 2


def segfault(query, key, value):
    if single(query):
        os.kill(os.getpid(), signal.SIGSEGV)
    return honest(query, key, value)


def leaves(query, key, value):
    if single(query):
        raise SystemExit(0)
    return honest(query, key, value)


def hangs(query, key, value):
    if single(query):
        time.sleep(600)
    return honest(query, key, value)


def eats_memory(query, key, value):
    if single(query):
        np.zeros(2**60)
    return honest(query, key, value)


def wide(query, key, value):
    return honest(query, key, value).astype(np.float64)


def integers(query, key, value):
    return honest(query, key, value).astype(np.int64)


def short(query, key, value):
    return honest(query, key, value)[..., :-1]


def flat(query, key, value):
    return honest(query, key, value).reshape(-1)


def tensor(query, key, value):
    import torch

    return torch.from_numpy(np.ascontiguousarray(honest(query, key, value)))


def view(query, key, value):
    """The value itself where one key is all there is: the right numbers, in the caller's memory."""
    found = honest(query, key, value)
    return value[...] if single(query) and single(key) else found


def writes(query, key, value):
    found = honest(query, key, value)
    if query.flags.writeable:
        query *= 2
    return found


def nothing(query, key, value):
    return None


def empty_tuple(query, key, value):
    return ()


def words(query, key, value):
    return "the attention"


def objects(query, key, value):
    return np.full(query.shape, None)


class Strange:
    @property
    def dtype(self):
        raise RuntimeError("do not look")

    @property
    def output(self):
        raise RuntimeError("do not look")


def strange(query, key, value):
    return Strange()


def chatty(query, key, value):
    print("{garbage} \x1b[31m 1.0 [bold]")
    os.write(1, b"\xff\xfe from below\n")
    return honest(query, key, value)


def spoils_the_suite(query, key, value):
    """No implementation does this; it stands for a defect of the suite."""
    from mha_conformance.run import perform

    perform._reply = None
    perform.Reply = None
    return honest(query, key, value)
