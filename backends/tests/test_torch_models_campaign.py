"""The dated result of ``backends/campaigns/real_models.py`` speaks of the code as it is, and says that all is well."""

import importlib.util
import json
from importlib.util import find_spec
from pathlib import Path

import pytest

CAMPAIGN = Path(__file__).parents[1] / "campaigns/real_models.py"


def campaign():
    spec = importlib.util.spec_from_file_location("real_models", CAMPAIGN)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_result_is_of_this_code():
    record = json.loads(campaign().RESULT.read_text(encoding="utf-8"))
    assert record["code"] == campaign().code_hash(), (
        f"the backend torch or a converter has changed: run python {CAMPAIGN} again"
    )


def test_every_model_answers_as_its_own_code_does():
    results = json.loads(campaign().RESULT.read_text(encoding="utf-8"))["results"]
    assert len({r["model"] for r in results}) >= 15 and any("MiniLM" in r["model"] for r in results)
    for r in results:
        assert max(r.get("ratio", 0), r.get("eager", 0)) <= 1, r
        assert r["apart"] <= 1e-5 and 100 * r["apart"] < r["control"], r


@pytest.mark.skipif(
    find_spec("transformers") is None or find_spec("all_minilm_l6_v2") is None,
    reason="heavy libraries of other people, which continuous integration does not install: the dated result stands for them",
)
@pytest.mark.filterwarnings("default")  # theirs are not ours to answer for
def test_the_pretrained_encoder_here():
    for result in campaign().in_minilm():
        assert result["apart"] <= 1e-5 and 100 * result["apart"] < result["control"], result
