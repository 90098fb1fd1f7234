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


def names(trace: Trace) -> tuple[str, str]:
    """What is compared: the single head, and the heads."""
    h, d_k = trace.sizes["h"], trace.sizes["d_k"]
    return f"One head of width {h * d_k}", f"{h} head{'' if h == 1 else 's'} of width {d_k}"


def cost(trace: Trace) -> str:
    """What h heads cost beside one head of the same channels (MHA-COST-4)."""
    (many, one), (single, heads) = trace.flops, names(trace)
    same = "the same" if many == one else f"costs {one:,}: it shares no keys and values"
    return f"{heads} cost {many:,} FLOPs, {single.lower()} {same}"


def agreement(trace: Trace) -> str:
    """What the merged form and the loop give (MHA-PROJ-5, MHA-COST-5)."""
    a = trace.agreement
    if a is None:
        return "there are no projections to merge: the arrays are already projected"
    if not a.compared:
        return "nothing was compared, for no element of the output has a bound: it is empty, or the numbers overflow"
    verdict = "within the bound" if a.within else "BEYOND the bound"
    return (
        f"the largest difference is {a.difference:.2g}, {a.ratio:.2g} of its bound in float64: {verdict}; "
        f"{a.loop_products} products in the loop, {a.merged_products} when merged, of the same operations"
    )
