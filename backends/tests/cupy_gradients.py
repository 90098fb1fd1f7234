"""What the tests of the CuPy gradients compute beside them: the bound of chapter 5, and which pairs are visible by plain loops."""

import ml_dtypes
import numpy as np
from cupy_machine import TYPES, fake, formula, operands, wide
from emulator.arrays import fake_cupy

from mha_spec.call import Cotangents
from mha_spec.contract import attention_call
from mha_spec.equations_dropout import factors
from mha_spec.numerics import PROFILES, error_ratio
from mha_spec.numerics_backward import gradient_bound

STRICTEST = {"float64": "P64", "float32": "P32", "float16": "P16", "bfloat16": "PB16"}
ARRIVING = ("grad_lse", "grad_weights")


def with_grad(rng, **sizes):
    """Query, key, value and grad_output."""
    q, k, v = operands(rng, **sizes)
    return q, k, v, rng.standard_normal((*q.shape[:-1], v.shape[-1]))


def visible(q, k, v, options):
    """(*b, h, n, m): the pairs to which the formula gives weight when every score is the same."""
    equal = {name: x for name, x in options.items() if name not in ("scale", "softcap", "sink_logits", "bias", *ARRIVING)}
    if options.get("bias") is not None:
        bias = wide(options["bias"])
        equal["bias"] = np.where(bias == -np.inf, bias, 0.0)
    return formula(*(np.zeros(x.shape) for x in (q, k, v)), **equal)[1] > 0


def bounds_of(kind, q, k, v, g, options, dropped=None):
    """The truth of each gradient, and the bound around it; ``dropped`` are the factors of dropout."""
    d_k = q.shape[-1]
    bias = wide(options.get("bias"))
    return gradient_bound(
        wide(q), wide(k), wide(v), Cotangents(wide(g), *(wide(options.get(name)) for name in ARRIVING)),
        PROFILES[STRICTEST[kind]], scale=options.get("scale", d_k**-0.5 if d_k else 1.0), softcap=options.get("softcap"),
        bias=None if bias is None else bias.reshape((1,) * (q.ndim - bias.ndim) + bias.shape), visible=visible(q, k, v, options),
        factors=dropped,
        sink=wide(options.get("sink_logits")),
    )  # fmt: skip


def factors_of(q, k, v, dropout):
    """(*b, h, n, m): what dropout multiplies the weights with, by the equations; None without."""
    call = attention_call(*(np.zeros(x.shape) for x in (q, k, v)), dropout=dropout)
    return None if call.dropout is None else np.broadcast_to(factors(call), (*q.shape[:-1], k.shape[-2]))


def worst(found, bounds):
    """The largest error of any gradient, as a part of its bound."""
    ratios = [0.0]
    for name, x in found._asdict().items():
        if x is not None:
            truth, bound = (getattr(of, name) for of in (bounds.truth, bounds))
            ratio = error_ratio(wide(x).reshape(truth.shape), truth, bound, float(ml_dtypes.finfo(x.dtype).max))
            ratios.append(float(ratio.max(initial=0)))
    return max(ratios)


def within_bounds(machine, kind, q, k, v, g, **options):
    """The gradients of one call, each within its bound, in its operand's type and shape; what was given stays as it was."""
    q, k, v, g = (fake(x, None if x.dtype == TYPES[kind] else TYPES[kind]) for x in (q, k, v, g))
    options = {name: fake(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
    given = [q, k, v, g, *(x for x in options.values() if isinstance(x, np.ndarray))]
    before = [np.array(x).tobytes() for x in given]
    found = machine.api().attention_vjp(q, k, v, g, **options)
    assert before == [np.array(x).tobytes() for x in given]
    for x, operand in zip(found, (q, k, v, options.get("bias"), options.get("sink_logits")), strict=True):
        assert (x is None) == (operand is None)
        assert x is None or (x.dtype == operand.dtype and x.shape == operand.shape)
    assert worst(found, bounds_of(kind, q, k, v, g, options)) <= 1
    return found


def launches_of(machine, kind, q, k, v, g, **options):
    """The launches of one call, whose forward has been, not yet run; the memory that they read and write; the gradients."""
    q, k, v, g = (fake(x, TYPES[kind]) for x in (q, k, v, g))
    options = {name: fake(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
    asked = {name: x for name, x in options.items() if name not in ARRIVING}
    kept = machine.api().attention(q, k, v, return_lse=True, **asked)
    launches, fresh, running = [], [], machine.cuda
    machine.cuda = type(machine.cuda)(fake_cupy(launches.append), machine.cuda.cublas)
    for name in ("empty", "zeros"):
        setattr(machine.cuda.cupy, name, noted(getattr(machine.cuda.cupy, name), fresh))
    found = machine.api().attention_vjp(q, k, v, g, output=kept.output, lse=kept.lse, **options)
    machine.cuda = running
    memory = [q, k, v, g, *kept[::2], *fresh, *(x for x in options.values() if isinstance(x, np.ndarray))]
    return launches, memory, found


def noted(make, kept):
    """A function that makes arrays, which are kept."""

    def made(*arguments, **options):
        kept.append(make(*arguments, **options))
        return kept[-1]

    return made


def forget(found):
    """Gradients as they are before the launches: NaN where they are written, 0 where they are added to, as that of a float32 bias is."""
    for x in found:
        if x is not None:
            x.reshape(-1).view("uint8")[...] = 0 if x is found.bias else 255
