"""Features that an implementation does not claim and that work all the same: a claim that could be made (MHA-CONF-9)."""

from dataclasses import replace

from mha_conformance.cases import Case, catalogue
from mha_conformance.judge.judge import judge
from mha_conformance.run.fit import not_judged
from mha_conformance.run.worker import About, Worker


def features(worker: Worker, about: About) -> tuple[str, ...]:
    """Those of which every smoke case passes, judged as if the feature were claimed.

    A case whose only unclaimed feature it is speaks for it. Nothing else depends on the answer: what is not claimed is never a
    pass, and never a failure.
    """
    found = []
    for feature in sorted({name for case in catalogue() for name in case.features} - about.claims.features - {"layer"}):
        asked = replace(about, claims=replace(about.claims, features=about.claims.features | {feature}))
        cases = [case for case in catalogue() if _speaks_for(case, feature) and not not_judged(case, asked)]
        if cases and all(_passes(case, worker, asked) for case in cases):
            found.append(feature)
    return tuple(found)


def _speaks_for(case: Case, feature: str) -> bool:
    return case.level == "smoke" and case.rule == "bound" and feature in case.features


def _passes(case: Case, worker: Worker, about: About) -> bool:
    kind, value = worker.answer(case)
    return kind == "replies" and judge(case, value, about.claims, rivals=False).status == "PASS"
