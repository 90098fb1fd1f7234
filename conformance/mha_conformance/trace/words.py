"""What each step does, in a sentence for someone who reads section 3.2.2 for the first time."""

from mha_conformance.trace.trace import Trace

STEPS = {
    "input": "a row per token: what the layer is given",
    "query": "what a token looks for, from its full row",
    "key": "what a token can be found by",
    "value": "what a token gives to those that read it",
    "scores": "how well a query fits a key: dot products",
    "weights": "shares: softmax makes each row add up to 1",
    "heads": "each head's mean of values, by its shares",
    "concatenation": "a token's heads side by side, head 0 first",
    "output": "W^O mixes the heads, which were apart",
}
"""By the name of the step."""


def cost(trace: Trace) -> str:
    """What h heads cost beside one head of the same channels (MHA-COST-4)."""
    many, one = trace.flops
    h, wide = trace.sizes["h"], trace.sizes["h"] * trace.sizes["d_k"]
    same = "the same" if many == one else f"{one:,}, for it shares no keys and values"
    return f"{counted(h, 'head')} of width {trace.sizes['d_k']} cost {many:,} FLOPs, one head of width {wide} {same}"


def agreement(trace: Trace) -> str:
    """What the merged form and the loop give (MHA-PROJ-5, MHA-COST-5)."""
    a = trace.agreement
    if a is None:
        return "there are no projections to merge: the arrays are already projected"
    verdict = "within the bound" if a.within else "BEYOND the bound"
    return (
        f"the largest difference is {a.difference:.2g}, {a.ratio:.2g} of its bound in float64: {verdict}; "
        f"{a.loop_products} products in the loop, {a.merged_products} when merged, of the same operations"
    )


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
