"""The house stands as drawn: public names, import names, links, and what an import brings along."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mha_core

ROOT = Path(__file__).parents[2]
ROOMS = ("spec", "mha_core", "backends", "conformance")
BACKENDS = {name: f"backends/mha_backends/{name}/__init__.py" for name in ("numpy", "torch", "cupy")} | {
    "reference": "backends/mha_backends/reference.py"
}
PUBLIC = [
    "FEATURES",
    "Api",
    "AttentionGradients",
    "AttentionResult",
    "AttentionStatistics",
    "Backend",
    "BackendUnavailable",
    "Cached",
    "Call",
    "Claims",
    "Cotangents",
    "KVCache",
    "Merged",
    "MultiHeadGradients",
    "ProjectedKeysValues",
    "Projections",
    "SmallHeadWarning",
    "Status",
    "Tangents",
    "Unsupported",
    "Violation",
    "alibi_slopes",
    "available",
    "bind",
    "head_size",
    "load",
    "merge_partials",
    "window_tokens",
]
COMMON = {
    "attention", "attention_statistics", "attention_varlen", "create", "merge_partials", "multi_head_attention",
    "multi_head_attention_over", "project_keys_values",
}  # fmt: skip
GRADIENTS = {"attention_jvp", "attention_vjp", "multi_head_attention_vjp"}
EXTRA = {
    "reference": {"layer_in_a_loop"},
    "numpy": set(),
    "torch": {"DropIn", "MultiHeadAttention", "precision_report", "register_with_transformers", "replace_attention"},
    "cupy": set(),
}


def _sources() -> list[Path]:
    return [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]


def _all(path: Path) -> list[str]:
    """``__all__`` by reading, since the library that a backend needs may not be here."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
            return ast.literal_eval(node.value)
    raise AssertionError(f"{path} has no __all__")


def test_the_public_names_of_core():
    """Sorted as ruff sorts: constants, classes, functions. A name that goes is deprecated first (CONTRIBUTING.md)."""
    assert list(mha_core.__all__) == PUBLIC
    for name in PUBLIC:
        assert hasattr(mha_core, name)


@pytest.mark.parametrize("name", sorted(BACKENDS))
def test_the_public_names_of_a_backend(name):
    gradients = GRADIENTS - {"attention_jvp"} if name == "cupy" else GRADIENTS
    assert set(_all(ROOT / BACKENDS[name])) == COMMON | gradients | EXTRA[name]


@pytest.mark.parametrize("name", ["reference", "numpy", "torch"])
def test_a_backend_imported_is_the_backend_loaded(name):
    module = __import__(f"mha_backends.{name}", fromlist=["attention"])
    api = mha_core.load(name)
    for function in COMMON - {"create"} | GRADIENTS:
        assert getattr(module, function) is getattr(api, function)


def test_packages_export_nothing_by_accident():
    """``mha_spec`` holds its version alone, so that nobody reaches the equations through it; ``mha_conformance`` is empty."""
    tree = ast.parse((ROOT / "spec/mha_spec/__init__.py").read_text(encoding="utf-8"))
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert (ROOT / "conformance/mha_conformance/__init__.py").read_text(encoding="utf-8") == ""


def test_rooms_are_no_import_names():
    """``import spec`` works in a checkout by accident, and nowhere else: the name is somebody else's project."""
    wrong = []
    for path in _sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            wrong += [f"{path}: {name}" for name in names if name.split(".")[0] in {"spec", "backends", "conformance"}]
    assert not wrong


def test_instrumented_packages_keep_their_annotations():
    """jaxtyping checks annotations; as strings they would not be checked, and nothing would say so."""
    for package in (ROOT / "spec/mha_spec", ROOT / "mha_core"):
        for path in package.glob("*.py"):
            assert "from __future__ import annotations" not in path.read_text(encoding="utf-8"), path


def test_core_is_light(tmp_path):
    code = "import sys, mha_core; print(*sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    loaded = {name.partition(".")[0] for name in told.stdout.split()}
    assert not loaded & {"torch", "cupy", "ml_dtypes", "typer", "rich", "pytest"}


@pytest.mark.parametrize("room", ["spec/mha_spec", "mha_core", "backends/mha_backends", "conformance/mha_conformance"])
def test_every_package_is_typed(room):
    assert (ROOT / room / "py.typed").is_file()


def test_relative_links_lead_somewhere():
    files = list(ROOT.glob("*.md")) + [path for room in ROOMS for path in (ROOT / room).rglob("*.md")]
    broken = []
    for path in files:
        prose = re.sub(r"^```.*?^```|`[^`\n]*`", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", prose):
            if "://" not in target and not (path.parent / target).exists():
                broken.append(f"{path.relative_to(ROOT)}: {target}")
    assert not broken


def test_test_files_have_names_of_their_own():
    """Rooms share one run, in which a second module of the same name would shadow the first."""
    names = [path.name for room in ROOMS for path in (ROOT / room).glob("tests/*.py") if path.name != "conftest.py"]
    assert sorted(names) == sorted(set(names))
