"""A failure as the text of an issue, in Markdown, ready to be sent to those who keep the implementation."""

from pathlib import Path

from mha_conformance.judge.verdict import Verdict
from mha_conformance.report.diagnosis import worst_element
from mha_conformance.report.document import command
from mha_conformance.report.snippet import snippet
from mha_conformance.run.results import Report
from mha_spec import SPEC_VERSION
from mha_spec.clauses import load


def issue(report: Report, verdict: Verdict) -> str:
    """What the specification says, what was seen, the smallest call that shows it, and how to see it again."""
    clause = load()[verdict.clause]
    small = report.smallest.get(verdict.case)
    seen = small.verdict if small is not None else verdict
    parts = [
        f"# {report.target.name}: {clause.id} does not hold",
        f"> {clause.plain} (MHA {SPEC_VERSION}, {clause.id})",
        *([clause.why] if clause.why else []),
        f"**What was asked:** {seen.request}",
        f"**What was seen:** {seen.reason}" + (f"; {seen.pattern}" if seen.pattern else ""),
        *([f"**Worst element:** {worst_element(seen.worst)}"] if seen.worst is not None else []),
    ]
    if small is not None and (code := snippet(report.target, small.requests[0])):
        first = " The first of the calls that must agree:" if len(small.requests) > 1 else ""
        parts.append(f"The smallest call that shows it:{first}\n\n```python\n{code}\n```")
    parts.append(f"The case of the suite, again:\n\n```bash\n{command(report.target, verdict.case)}\n```")
    libraries = ", ".join(f"{name} {version}" for name, version in report.provenance.get("libraries", {}).items())
    parts.append(
        f"Judged by mha-core {report.provenance['suite']}, specification {SPEC_VERSION}, constants {report.provenance['constants']}, "
        f"with {libraries} on {report.provenance['platform']}."
    )
    return "\n\n".join(parts) + "\n"


def write(report: Report, path: Path) -> None:
    """One issue for each failure that is blamed, with a line between them."""
    path.write_text("\n---\n\n".join(issue(report, v) for v in report.blame), encoding="utf-8")
