"""Reports for the tests of the page, written by hand: every status, every kind of number, and strings that attack."""

from mha_conformance.report.matrix import ABSENT, STATUSES

HOSTILE = '</script><script>document.title="taken"</script><img src=x onerror=alert(1)>"\'&lt;'
WORST = {"array": "output", "index": [0, 0, 1, 3], "got": 2.0, "expected": 1.25, "bound": 0.5, "ratio": 1.5}


def case(clause, name, status, **more):
    """One verdict, as it stands in a file."""
    passed = status == "PASS"
    return {
        "case": f"{clause}/{name}/float32", "clause": clause, "group": "semantics", "level": "smoke", "dtype": "float32",
        "status": status, "reason": "" if passed else f"because of {name}", "ratio": 0.25 if passed else None, "worst": None,
        "pattern": "", "size": 12, "profiles": ["P32"] if passed else [], **more,
    }  # fmt: skip


def report(name, cases, **more):
    """A report of these cases. The first that fails is blamed."""
    failing = [found for found in cases if found["status"] in ("FAIL", "CRASH", "TIMEOUT")]
    again = f"mha conform {name} --case '{{}}' --arrays torch"
    blame = [
        {"clause": x["clause"], "sentence": "A *mask* selects $m$.", "case": x["case"], "reproduce": again.format(x["case"])}
        for x in failing[:1]
    ]
    verdict = (
        "does not conform to MHA 0.1.0." if failing else "conforms to MHA 0.1.0, profile P32, for core; not claimed: sink."
    )
    return {
        "format": 1, "spec_version": "0.1.0", "name": name, "verdict": verdict, "conforms": not failing, "blame": blame,
        "claims": {"arrays": "numpy", "features": ["mask"], "profiles": {"float32": "P32"}, "strict": False, "determinism": "none"},
        "satisfied": {"float32": None}, "cases": cases,
        "provenance": {"spec": "0.1.0", "python": "3.11", "libraries": {"numpy": "2.4.6"}, "cores": 2},
    }  # fmt: skip


def every_status():
    """A case of each status, and one that fails by numbers."""
    found = [case("MHA-MASK-2", status.lower(), status) for status in STATUSES if status != ABSENT]
    return report("mine:everything", [*found, case("MHA-ATTN-6", "rows", "FAIL", ratio=1.5, worst=WORST, pattern="row 1 of 4")])


def passes():
    """The same clauses, all passed, and a case that the other has not."""
    return report(
        "good", [case("MHA-MASK-2", "fail", "PASS"), case("MHA-ATTN-6", "rows", "PASS"), case("MHA-HEAD-1", "one", "PASS")]
    )


def hostile():
    """Everything that a third party writes into a file is an attack."""
    bad = case("MHA-MASK-2", HOSTILE, "FAIL", reason=HOSTILE, pattern=HOSTILE, worst={**WORST, "array": HOSTILE})
    found = report(HOSTILE, [bad, case(HOSTILE, "x", HOSTILE), case("data", "y", "PASS"), case("panel", "z", "PASS")])
    found["verdict"] = HOSTILE
    found["blame"][0]["sentence"] = HOSTILE
    found["provenance"]["libraries"] = {HOSTILE: HOSTILE}
    found["provenance"][HOSTILE] = [HOSTILE]
    return found
