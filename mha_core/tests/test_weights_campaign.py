"""The dated result of ``backends/campaigns/foreign_weights.py`` speaks of the converters as they are, and of all of them."""

import importlib.util
import json
from pathlib import Path

from mha_core.weights import FORMATS

CAMPAIGN = Path(__file__).parents[2] / "backends/campaigns/foreign_weights.py"
ELSEWHERE = {
    "projections": "our own names: test_weights.py",
    "projections-tiled": "our own names, in another order: test_weights.py compares it with a layer whose key heads are repeated",
    "mha-core": "our own module: test_weights.py",
    "timm": "the layout of wqkv under other names",
    "megatron": "the layout of hf-neox under other names; the library wants CUDA",
}


def campaign():
    spec = importlib.util.spec_from_file_location("foreign_weights", CAMPAIGN)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_result_is_of_these_converters():
    record = json.loads(campaign().RESULT.read_text(encoding="utf-8"))
    assert record["code"] == campaign().code_hash(), f"the converters have changed: run python {CAMPAIGN} again"


def test_every_format_was_compared_with_its_library():
    results = json.loads(campaign().RESULT.read_text(encoding="utf-8"))["results"]
    assert {r["format"] for r in results} | ELSEWHERE.keys() == FORMATS.keys()
    for r in results:
        assert r["ratio"] <= 1 < r["control"] and r["written back bit for bit"], r
