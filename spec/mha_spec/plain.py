"""The formulas of the text as plain characters, for terminals and for files that render no LaTeX."""

import re

_SIGNS = {
    r"\ne": "≠", r"\le": "≤", r"\ge": "≥", r"\cdot": "·", r"\times": "×", r"\infty": "∞", r"\gamma": "γ", r"\ell": "ℓ",
    r"\log": "log", r"\exp": "exp", r"\tanh": "tanh", r"\max": "max", r"\min": "min", r"\sum": "Σ", r"\ldots": "...",
    r"\lvert": "|", r"\rvert": "|", r"\lfloor": "⌊", r"\rfloor": "⌋", r"\top": "T", r"\in": "∈", r"\sigma": "σ",
    r"\delta": "δ", r"\eta": "η", r"\rho": "ρ", r"\lambda": "λ", r"\hat": "", r"\left": "", r"\right": "", r"\,": " ",
}  # fmt: skip
_ARGUMENT = r"\{([^{}]*)\}"


def plain(text: str) -> str:
    """``$n \\ne m$`` -> ``n ≠ m``; code and stressed words lose their marks. Raises ``ValueError`` for a command it does not know."""
    stressed = re.sub(r"\*(\w[^*`]*)\*", r"\1", text)
    return re.sub(r"\$([^$]+)\$", lambda found: _formula(found[1]), stressed).replace("`", "")


def _formula(latex: str) -> str:
    found = re.sub(rf"\\(?:mathrm|text|operatorname){_ARGUMENT}", r"\1", latex)
    found = re.sub(rf"\\sqrt{_ARGUMENT}", lambda m: f"√{_together(m[1])}", found)
    found = re.sub(rf"\\frac{_ARGUMENT}{_ARGUMENT}", lambda m: f"{_together(m[1])}/{_together(m[2])}", found)
    found = re.sub(r"\\[A-Za-z]+|\\,", _sign, found)
    found = re.sub(rf"([_^]){_ARGUMENT}", lambda m: f"{m[1]}{_together(m[2])}", found)
    found = re.sub(r"(?<=⌊)\s+|\s+(?=⌋)|(?<=\|) +(?=\w+ \|)|(?<=\w) +(?=\|(?:\W|$))", "", found)
    return " ".join(found.replace("{", "").replace("}", "").split())


def _sign(command: re.Match[str]) -> str:
    if command[0] not in _SIGNS:
        raise ValueError(f"no plain form is known of {command[0]}; add it to mha_spec.plain")
    return _SIGNS[command[0]]


def _together(part: str) -> str:
    """A part that must stay one: with brackets where it has an operation in it."""
    return f"({part})" if re.search(r"[ +/]", part.strip()) else part.strip()
