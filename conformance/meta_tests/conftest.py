"""Prints the kill table at the end of a run in which saboteurs were judged."""

from typing import Any


def pytest_terminal_summary(terminalreporter: Any) -> None:
    told = [
        value
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, ())
        for name, value in getattr(report, "user_properties", ())
        if name == "kill"
    ]
    if not told:
        return
    from kill_table import Row, as_text

    terminalreporter.section("kill table")
    for line in as_text(sorted(Row(*row) for row in told)):
        terminalreporter.line(line)
