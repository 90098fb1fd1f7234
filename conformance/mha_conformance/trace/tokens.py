"""From a sentence to tokens, and from a token to a label that is safe to print."""

import re
import unicodedata
from typing import NamedTuple

JOINERS = "\u200c\u200d"
"""Characters that format the text around them and belong to a word or to an emoji: they are kept in a label."""


class Tokens(NamedTuple):
    """The tokens of a sentence and the rule that found them, in words."""

    tokens: tuple[str, ...]
    rule: str


def split(sentence: str) -> Tokens:
    """What white space separates; of a sentence without any, each Chinese, Japanese or Korean character.

    No trained tokenizer: a token is what a reader sees.
    """
    pieces = sentence.split()
    if len(pieces) == 1 and any(_stands_alone(c) and c.isalpha() for c in sentence):
        alone = "".join(f" {c} " if _stands_alone(c) else c for c in pieces[0])
        return Tokens(tuple(alone.split()), "the sentence has no spaces, so each of its wide characters is a token")
    return Tokens(tuple(pieces), "a token is what spaces separate")


def label(token: str) -> str:
    """The token with a replacement character for each that would steer a terminal or a page instead of showing."""
    return re.sub(r"\s", " ", "".join(c if c.isprintable() or c in JOINERS else "\ufffd" for c in token))


def _stands_alone(character: str) -> bool:
    return unicodedata.east_asian_width(character) in ("W", "F")
