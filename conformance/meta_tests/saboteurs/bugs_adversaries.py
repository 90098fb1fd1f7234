"""Adversaries: answers that look like attention to a test that looks too little."""

import sys
import threading

import numpy as np
from honest import Honest

from saboteurs.kinds import breaks


@breaks("MHA-EXEC-5", "the output of the call before comes back where it fits")
class CopiesPrevious(Honest):
    def __init__(self):
        self.before_last = None

    def result(self, call, output, a, lse):
        found = super().result(call, output, a, lse)
        previous, self.before_last = self.before_last, found
        fits = previous is not None and [np.shape(x) for x in previous] == [np.shape(x) for x in found]
        return previous if fits and previous.output.dtype == found.output.dtype else found


@breaks("MHA-EXEC-5", "right on the first call only")
class FirstCallOnly(Honest):
    calls = 0

    def result(self, call, output, a, lse):
        self.calls += 1
        return super().result(call, output if self.calls == 1 else output * 0.5, a, lse)


@breaks("MHA-EXEC-5", "right in four calls of five")
class FourOfFive(Honest):
    calls = 0

    def result(self, call, output, a, lse):
        self.calls += 1
        return super().result(call, output if self.calls % 5 else output * 0.5, a, lse)


@breaks("MHA-ATTN-1", "right where every length is a multiple of 16")
class AlignedOnly(Honest):
    def result(self, call, output, a, lse):
        n, m, d = call.query.shape[-2], call.key.shape[-2], call.value.shape[-1]
        return super().result(call, output if n % 16 == m % 16 == d % 16 == 0 else output * 0.5, a, lse)


@breaks("MHA-EXEC-7", "wrong where two calls run at once")
class WrongWithTwoThreads(Honest):
    running = 0
    lock = threading.Lock()
    met = threading.Event()

    def attend(self, call):
        cls = type(self)
        with cls.lock:
            cls.running += 1
            if cls.running > 1:
                cls.met.set()
        try:
            if threading.current_thread() is not threading.main_thread():
                cls.met.wait(0.2)
            alone = not cls.met.is_set()
            found = super().attend(call)
        finally:
            with cls.lock:
                cls.running -= 1
                if not cls.running:
                    cls.met.clear()
        return found if alone else found._replace(output=found.output * 0)


@breaks("MHA-ATTN-1", "looks for the expected answer in the memory of its caller, and gives zeros where there is none")
class LooksForTheAnswer(Honest):
    names = ("expected", "truth", "known", "reference", "want", "answer")

    def attend(self, call):
        shape = (*call.query.shape[:-1], call.value.shape[-1])
        found = super().attend(call)
        frame = sys._getframe(1)
        while frame is not None:
            for name in self.names:
                held = frame.f_locals.get(name)
                held = held.get("output") if isinstance(held, dict) else held
                if isinstance(held, np.ndarray) and held.shape == shape and held.dtype.kind == "f":
                    return found._replace(output=held.astype(call.query.dtype))
            frame = frame.f_back
        return found._replace(output=np.zeros_like(found.output))
