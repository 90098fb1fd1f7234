"""The dated result of ``backends/campaigns/cutile_kernels.py`` speaks of the kernels as they are, and says that all is well."""

import importlib.util
import json
from pathlib import Path

CAMPAIGN = Path(__file__).parents[1] / "campaigns/cutile_kernels.py"


def campaign():
    spec = importlib.util.spec_from_file_location("cutile_kernels", CAMPAIGN)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_result_is_of_these_kernels(backend_package):
    record = json.loads(campaign().RESULT.read_text(encoding="utf-8"))
    assert record["code"] == campaign().code_hash(), "the cuTile kernels have changed: run .ci/cutile again"


def test_every_variant_was_compiled_and_is_as_it_should_be(backend_package):
    results = json.loads(campaign().RESULT.read_text(encoding="utf-8"))["results"]
    found = {(r["architecture"], r["kernel"], r["element"], r["width"]) for r in results}
    assert found == {(arch, kernel, tiled.element, tiled.width) for arch, kernel, tiled in campaign().variants()}
    assert [r for r in results if not campaign().good(r)] == []


def test_a_spill_or_a_product_without_tensor_cores_is_not_good():
    right = {"kernel": "forward", "stack": 0, "products": 8}
    assert campaign().good(right)
    assert not campaign().good(right | {"stack": 8})
    assert not campaign().good(right | {"products": 0})
    assert not campaign().good(right | {"kernel": "deltas"})
