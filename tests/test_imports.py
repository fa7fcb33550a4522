"""Who may import whom: one direction only, and no torch where none is needed."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"schemas", "runtime", "workers", "coordinator", "ingress", "tokenfleet"}
MAY_IMPORT = {
    "schemas": set(),
    "runtime": {"schemas"},
    "workers": {"schemas", "runtime"},
    "coordinator": {"schemas", "runtime"},
    "ingress": {"schemas", "runtime"},
    "tokenfleet": PACKAGES - {"tokenfleet"},
}
# Only these may name the libraries of weights and pixels.
HEAVY = {"torch", "transformers", "PIL", "av", "numpy", "safetensors", "xgrammar"}
STAGES = {"render", "encode", "prefill", "derender"}


def modules(package):
    return sorted((ROOT / package).rglob("*.py"))


def imported(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module or ""


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_imports_point_one_way(package):
    allowed = MAY_IMPORT[package] | {package}

    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules(package)
        for name in imported(path)
        if name.split(".")[0] in PACKAGES - allowed
    ]

    assert wrong == []


def test_stages_do_not_import_each_other():
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for stage in STAGES
        for path in modules(f"workers/{stage}")
        for name in imported(path)
        if name.startswith(tuple(f"workers.{other}" for other in STAGES - {stage}))
    ]

    assert wrong == []


def test_weights_and_pixels_stay_in_workers_models():
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for package in PACKAGES
        for path in modules(package)
        if not path.is_relative_to(ROOT / "workers" / "models")
        for name in imported(path)
        if name.split(".")[0] in HEAVY
    ]

    assert wrong == []


@pytest.mark.parametrize(
    "module",
    ["schemas.validation", "coordinator.handler", "ingress.app", "workers.derender.stage"],
)
def test_light_roles_load_without_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=False)

    assert done.returncode == 0
