"""The report as JUnit XML, for the pages of CI systems."""

from pathlib import Path
from xml.etree import ElementTree

from mha_conformance.judge.verdict import FAILING
from mha_conformance.report.document import reproduce
from mha_conformance.run.results import Report


def write(report: Report, path: Path) -> None:
    """One test per case; what was not judged is skipped with its reason."""
    failures = sum(v.status in FAILING for v in report.verdicts)
    errors = sum(v.status == "ERROR" for v in report.verdicts)
    skipped = sum(v.status not in ("PASS", "ERROR", *FAILING) for v in report.verdicts)
    suite = ElementTree.Element(
        "testsuite", name=f"MHA {report.provenance['spec']} {report.target.name}", tests=str(len(report.verdicts)),
        failures=str(failures), errors=str(errors), skipped=str(skipped),
    )  # fmt: skip
    for v in report.verdicts:
        test = ElementTree.SubElement(suite, "testcase", classname=v.clause, name=v.case)
        if v.status in FAILING:
            kind = ElementTree.SubElement(test, "failure", type=v.status, message=v.reason)
            kind.text = f"{v.pattern}\n{reproduce(report, v)}"
        elif v.status == "ERROR":
            ElementTree.SubElement(test, "error", message=v.reason)
        elif v.status != "PASS":
            ElementTree.SubElement(test, "skipped", message=f"{v.status}: {v.reason}")
    ElementTree.indent(suite)
    ElementTree.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)
