"""All that a run found, and the verdict as a sentence (MHA-CONF-7)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mha_conformance.cases import catalogue
from mha_conformance.judge.verdict import FAILING, JUDGED, Verdict
from mha_conformance.run.declaration import Declaration
from mha_conformance.run.implementation import EMULATOR, Target
from mha_conformance.run.shrunk import Shrunk
from mha_core import Claims
from mha_spec import SPEC_VERSION
from mha_spec.profiles import Grade

FRUGAL = "MHA-COST-7"
"""Said in the sentence where it was measured: its cases are of level full, and no device is measured."""


@dataclass(frozen=True, slots=True)
class Report:
    """All that a run found; ``as_json`` in ``mha_conformance.report`` writes it down."""

    target: Target
    claims: Claims
    declared: Declaration
    verdicts: tuple[Verdict, ...]
    blame: tuple[Verdict, ...]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    inferred: bool = False
    """Whether the features were read off a signature."""
    undeclared: tuple[str, ...] = ()
    """Features that are not claimed and yet pass their first cases."""
    smallest: Mapping[str, Shrunk] = field(default_factory=dict)
    """By case, the failures that are blamed, made smaller."""
    only: str = ""
    """What alone was asked, in words; empty where it was everything of a level."""

    @property
    def judged(self) -> int:
        return sum(v.status in JUDGED for v in self.verdicts)

    @property
    def conforms(self) -> bool:
        """Whether everything was asked and holds; what was asked in part says nothing of it (MHA-CONF-7)."""
        return self.holds and not self.only

    @property
    def holds(self) -> bool:
        """Whether all that was asked holds."""
        return self.judged > 0 and not self.missing and not any(v.status in FAILING for v in self.verdicts)

    @property
    def missing(self) -> int:
        """How many claimed cases have no result to judge (MHA-CONF-8)."""
        return sum(v.status == "NOT_RUN" for v in self.verdicts)

    @property
    def emulated(self) -> bool:
        return self.target.device == EMULATOR

    @property
    def satisfied(self) -> dict[str, str | None]:
        """For each dtype the strictest profile whose bound every judged value keeps; None where none is kept.

        Every numeric case speaks of it. So does a case of meaning, or of gradients, that keeps some profile; one that keeps none is
        wrong in its meaning, which no profile excuses. Refusals, poison, class strict and determinism have verdicts of their own.
        """
        kept: dict[str, str | None] = {}
        for dtype in self.claims.dtypes:
            mine = [v for v in self.verdicts if v.dtype == dtype and _speaks_of_profiles(v)]
            common = [p for p in (mine[0].profiles if mine else ()) if all(p in v.profiles for v in mine)]
            kept[dtype] = common[0] if common else None
        return kept

    @property
    def grades(self) -> dict[str, Grade | None]:
        """For each dtype the strictest grade that is kept in its ``satisfied`` profile: RN, if every designated set says so.

        None where no profile is kept, or no designated set was judged.
        """
        kept: dict[str, Grade | None] = {}
        for dtype, profile in self.satisfied.items():
            told = [v.nearest for v in self.verdicts if v.dtype == dtype and v.nearest is not None]
            kept[dtype] = None if profile is None or not told else "RN" if all(profile in near for near in told) else "ANY"
        return kept

    @property
    def arithmetic(self) -> list[str]:
        """A line for each dtype: what is claimed of its roundings, and the strictest profile and grade that are kept."""
        grades = self.grades
        return [
            f"{dtype}: claimed {self.claims.profiles[dtype]}, strictest profile kept: {profile or 'none'}"
            + (f"; grade {self.claims.grade} claimed, strictest kept: {grades[dtype]}" if grades[dtype] else "")
            for dtype, profile in self.satisfied.items()
        ]

    @property
    def sentence(self) -> str:
        """The verdict (MHA-CONF-7)."""
        if not self.judged:
            return f"not judged by MHA {SPEC_VERSION}: no case could be judged."
        if self.blame:
            others = f" and {len(self.blame) - 1} more" if len(self.blame) > 1 else ""
            return f"does not conform to MHA {SPEC_VERSION}: {self.blame[0].clause}{others}{self._missing}."
        if self.only:
            held = "is not known to hold" if self.missing else "holds"
            return (
                f"{held} {self.only} of MHA {SPEC_VERSION}, profile {self._profiles}{self._door}; only this was asked, and nothing "
                f"conforms by it{self._ending}."
            )
        every = {feature for case in catalogue() for feature in case.features}
        asked = ", ".join(("core", *sorted(self.claims.features & every)))
        left = ", ".join(sorted(every - self.claims.features)) or "nothing"
        strict = "; class strict" if self.claims.strict else ""
        flushes = "; flushes subnormal numbers" if self.claims.flushes_subnormals else ""
        frugal = "; memory linear" if any(v.clause == FRUGAL and v.status == "PASS" for v in self.verdicts) else ""
        verb = "is not known to conform" if self.missing else "conforms"
        return (
            f"{verb} to MHA {SPEC_VERSION}, profile {self._profiles}{self._door}, for {asked}{strict}{flushes}; "
            f"determinism {self.claims.determinism}{frugal}; not claimed: {left}{self._ending}."
        )

    @property
    def _profiles(self) -> str:
        return ", ".join(dict.fromkeys(self.claims.profiles[dtype] for dtype in self.claims.dtypes))

    @property
    def _door(self) -> str:
        return ", by its output files" if self.target.vectors is not None else ", on an emulator" if self.emulated else ""

    @property
    def _ending(self) -> str:
        """The limits, the failures that are listed, and what has no result."""
        known = ", ".join(dict.fromkeys(v.clause for v in self.verdicts if v.status == "XFAIL"))
        return f"{self._limits}{f'; listed as failing: {known}' if known else ''}{self._missing}"

    @property
    def _missing(self) -> str:
        return f"; not run: {self.missing} claimed cases" if self.missing else ""

    @property
    def _limits(self) -> str:
        """The declared limits, as the end of a sentence (MHA-CONF-15)."""
        said = [
            f"{size} {' '.join(f'{name} {value}' for name, value in bounds.items())}".replace("multiple_of", "multiple of")
            for size, bounds in self.declared.limits.items()
        ]
        if self.declared.layouts is not None:
            said.append(f"layouts {', '.join(self.declared.layouts) or 'none'}")
        return f"; within its limits: {'; '.join(said)}" if said else ""


def _speaks_of_profiles(v: Verdict) -> bool:
    return (
        bool(v.profiles)
        if v.group in ("semantics", "train")
        else v.group == "numerics" and bool(v.profiles or v.status in FAILING)
    )
