"""Whether a case that was made smaller still asks what is true."""

from mha_conformance.cases import Case
from mha_conformance.judge.reply import Reply
from mha_conformance.judge.rules import ruled
from mha_conformance.judge.truth import truths


def sound(case: Case, profile: str) -> bool:
    """Whether the truth itself passes: a law between several requests may be lost when each of them is cut."""
    return ruled(case, [Reply.of(truth.expected) for truth in truths(case, profile)], profile, "ANY").holds
