"""Writes the tables of chapters 3, 4 and 5 from the results of the campaigns.

    python spec/campaigns/tables.py

A table stands between ``<!-- table: NAME -->`` and ``<!-- end -->``; nothing else of the text is touched.
"""

import re
import sys

import record

TEXT = record.ROOT / "spec/mha_spec/text"
RULES = ("assert_close", "ONNX", "four constants", "twice another run", "mean square")
TIERS = ("HARD", "PROB", "STAT RN", "STAT ANY", "filter")
NAMES = {"P64": "float64", "P32": "float32", "P16": "float16", "PB16": "bfloat16", "PE4M3": "fp8, e4m3"}


def table(columns, rows):
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|", *("| " + " | ".join(row) + " |" for row in rows)]
    return "\n".join(lines)


def about(found):
    return f"Measured on {found['date']}; constants {found['constants']}, SHA-256 {found['constants_sha256'][:16]}; code {found['code']}."


def soundness():
    found = record.read("soundness")
    columns = ("profile", "runs", "nearest", "truncated", "random", "lse", "weights", "worst output", "all zeros", "scale seen")

    def shown(x):
        return "–" if x is None else f"{x:.3f}"

    rows = [
        (r["profile"], str(r["runs"]), *(shown(r[x]) for x in ("nearest", "truncate", "random", "lse", "weights")), r["worst"],
         f"{r['zeros']:.2g}", f"{r['scale']:g}")
        for r in found["rows"]
    ]  # fmt: skip
    runs = sum(r["runs"] for r in found["rows"])
    return f"{table(columns, rows)}\n\n{runs} runs, seeds 0 to {found['seeds'] - 1}. {about(found)}"


def soundness_backward():
    found = record.read("soundness_backward")
    columns = ("profile", "runs", "dQ", "dK", "dV", "db", "ds", "nearest to the bound", "all zeros", "D left out")
    rows = [
        (r["profile"], str(r["runs"]), *(f"{r[x]:.3f}" for x in ("query", "key", "value", "bias", "sink_logits")), r["worst"],
         f"{r['zeros']:.2g}", f"{r['left out']:.2g}")
        for r in found["rows"]
    ]  # fmt: skip
    return f"{table(columns, rows)}\n\n{sum(r['runs'] for r in found['rows'])} runs, seeds 0 to {found['seeds'] - 1}. {about(found)}"


def chance():
    found = record.read("chance")
    kinds = [f"{rule} {grade}" for grade in ("RN", "ANY") for rule in ("mean square", "farthest", "filter")]
    rows = [
        (r["profile"], str(r["runs"]), *(f"{r[kind][0]:.3f}" for kind in kinds), r["mean square RN"][1].split()[0],
         ", ".join(name.split()[0] for name in r["not posed"]) or "–")
        for r in found["rows"]
    ]  # fmt: skip
    return f"{table(('profile', 'runs', *kinds, 'worst RN', 'not posed'), rows)}\n\n{about(found)}"


def power():
    found = record.read("power")
    parts = []
    for m in found["matrices"]:
        rows = []
        for r in m["rows"]:
            usual = ["✗" if r[rule] else "·" for rule in RULES]
            tiers = [f"**{r[tier]:.3g}**" if r[tier] > 1 else f"{r[tier]:.2g}" for tier in TIERS]
            rows.append((r["fault"], *usual, *tiers, r["named"].split(" (")[0]))
        size = "" if m["values"] == 1 else f", values times {m['values']:g}"
        parts.append(
            f"{NAMES[m['profile']]}, profile {m['profile']}{size}:\n\n{table(('fault', *RULES, *TIERS, 'named'), rows)}"
        )
    return "\n\n".join(parts) + f"\n\n{about(found)}"


def learning():
    found = record.read("learning")
    columns = ["heads"]
    for asked in (2, 4):
        columns += [f"{asked} relations: least", f"{found['seeds']} starts", "torch, first start"]
    columns.append("digits right")
    by = {(r["asked"], r["heads"]): r for r in found["relations"]}
    rows = []
    for image in found["digits"]:
        row = [str(image["heads"])]
        for asked in (2, 4):
            r = by.get((asked, image["heads"]))
            spread = [f"{error:.3g}" for error in (min(r["errors"]), max(r["errors"]))] if r else []
            row += [f"{r['floor']:.4g}", " to ".join(spread), f"{r['torch']:.3g}"] if r else ["–"] * 3
        rows.append([*row, f"{100 * min(image['right']):.1f} to {100 * max(image['right']):.1f} %"])
    libraries = ", ".join(f"{name} {version}" for name, version in found["libraries"].items())
    return (
        f"{table(columns, rows)}\n\nMeasured on {found['date']} with {libraries}; {found['steps']} steps; code {found['code']}."
    )


TABLES = {
    "3-equations.md": {"learning": learning},
    "4-numerics.md": {"soundness": soundness, "chance": chance, "power": power},
    "5-gradients.md": {"soundness_backward": soundness_backward},
}
"""By chapter, every table and what makes it."""


def filled(chapter, text):
    """The text of a chapter with every table made anew."""
    for name, make in TABLES[chapter].items():
        mark = re.compile(rf"(<!-- table: {name} -->\n)(?:(?!<!--).)*?(\n<!-- end -->)", re.DOTALL)
        if not mark.search(text):
            raise ValueError(f"{chapter}: no place for the table {name}")
        text = mark.sub(lambda m, make=make: m[1] + "\n" + make() + "\n" + m[2], text)
    return text


if __name__ == "__main__":
    for chapter in TABLES:
        file = TEXT / chapter
        file.write_text(filled(chapter, file.read_text(encoding="utf-8")), encoding="utf-8")
    sys.exit(0)
