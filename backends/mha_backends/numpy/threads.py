"""Threads of our own with a single-threaded BLAS inside, which is how a process shares its cores between blocks.

A BLAS thread count belongs to the whole process, so two calls that each save, limit and restore it can leave it at one for
ever. Here one counter under one lock does it: the first call in saves and limits, the last call out restores.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController

T = TypeVar("T")

_lock = threading.Lock()
_inside = 0
_saved: list[int] = []
_pool: ThreadPoolExecutor | None = None


def allowed() -> int:
    """How many threads NumPy's BLAS may use now, or could before a call of ours limited it."""
    with _lock:
        counts = _saved if _inside else [library.get_num_threads() for library in _libraries()]
    return counts[0] if counts else os.cpu_count() or 1


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Within it every BLAS of the process works in the thread that calls it."""
    global _inside, _saved
    with _lock:
        if not _inside:
            _saved = [library.get_num_threads() for library in _libraries()]
            _set([1] * len(_saved))
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                _set(_saved)


def each(work: Callable[[T], None], tasks: Iterable[T], threads: int) -> None:
    """``work(task)`` for every task, by the caller and up to ``threads - 1`` helpers, each taking the next task left.

    The caller works too, so a busy pool delays nothing. An exception ends the call after the tasks under way.
    """
    if threads == 1:
        for task in tasks:
            work(task)
        return
    left = deque(tasks)

    def take() -> None:
        with np.errstate(all="ignore"):  # a setting of the thread, not of the process
            while left:
                try:
                    task = left.popleft()
                except IndexError:  # another thread took the last one
                    return
                work(task)

    helpers: list[Future[None]] = []
    try:
        for _ in range(min(threads, len(left)) - 1):
            helpers.append(_executor().submit(take))
    except RuntimeError:
        pass  # the interpreter is shutting down: the caller does it alone
    try:
        take()
    finally:
        left.clear()
        failures = [error for helper in helpers if not helper.cancel() and (error := helper.exception()) is not None]
    if failures:
        raise failures[0]


@lru_cache(maxsize=1)
def _libraries() -> list[Any]:
    """The BLAS libraries that are loaded, NumPy's own first. Looking for them takes a millisecond, so it is done once."""
    found = ThreadpoolController().select(user_api="blas").lib_controllers
    return sorted(found, key=lambda library: "numpy" not in library.filepath)


def _set(counts: list[int]) -> None:
    for library, count in zip(_libraries(), counts, strict=True):
        library.set_num_threads(count)


def _executor() -> ThreadPoolExecutor:
    global _pool
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(max_workers=max(32, os.cpu_count() or 1), thread_name_prefix="mha-numpy")
        return _pool


def _forget() -> None:
    """A forked child has no helper threads, and nobody in it will leave the calls that its parent was in."""
    global _lock, _inside, _pool
    _lock, _pool = threading.Lock(), None
    if _inside:
        _inside = 0
        _set(_saved)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
