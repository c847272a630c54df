"""Every script of benchmarks/ runs in its quick form: an instrument that nobody runs measures nothing when it is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.shared import ROOT, SHARED

FOLDER = ROOT / "benchmarks"
SCRIPTS = sorted(
    path.stem
    for path in FOLDER.glob("*.py")
    if "__main__" in path.read_text("utf-8") and path.stem != "checkout"
)
MORE: dict[str, tuple[str, ...]] = {
    "accuracy": ("--no-rivals", "--no-sweep", "--only", "kws_dscnn", "--out", "{folder}"),
    "figures": (str(ROOT / "recipes" / "qat-digits.yaml"),),
    "trained": ("{folder}",),
    "models": ("--only", "kws_dscnn", "--out", "{folder}"),
}
"""What keeps the quick form of a script within seconds, beside --quick."""
ELSEWHERE = {
    "faults": "tests/faults/test_faults.py",
    "hosted": "tests/house/test_hosting.py",
    "rival_ranges": "benchmarks/accuracy.py",
    "rivals": "benchmarks/placement.py",
    "size": "tests/benchmarks/test_instruments.py",
    "truth_export": "benchmarks/truth.py",
}
"""Scripts that another file runs: a test, or the script that makes the environment they need."""
NEEDS = {
    "diffusion": ("torch",),
    "figures": ("torch",),
    "graph_libraries": ("onnx_ir", "onnx_graphsurgeon"),
    "trained": ("torch",),
}
"""Modules that are not part of the project's own environments."""
INSTALLS = {"placement": "modelopt", "truth": "torch and transformers"}
"""What a script installs into an environment of its own, which takes the network."""
NEEDS_MODELS = ("accuracy", "models", "cache_scales", "preparations", "roofline")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SCRIPTS if name not in ELSEWHERE])
def test_a_script_runs_in_its_quick_form(name: str, tmp_path: Path) -> None:
    if name in INSTALLS:
        pytest.skip(f"installs {INSTALLS[name]} into an environment of its own")
    if missing := [module for module in NEEDS.get(name, ()) if find_spec(module) is None]:
        pytest.skip(f"needs {', '.join(missing)}")
    if name in NEEDS_MODELS and not SHARED.is_dir():
        pytest.skip("needs the shared material beside the checkout")
    more = [word.format(folder=tmp_path) for word in MORE.get(name, ())]
    done = subprocess.run(
        [sys.executable, str(FOLDER / f"{name}.py"), "--quick", *more],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert done.stdout.strip(), "it prints nothing"


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_is_run_elsewhere_is_run_there(name: str) -> None:
    assert (FOLDER / f"{name}.py").is_file()
    text = (ROOT / ELSEWHERE[name]).read_text("utf-8")
    assert name in text


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name not in ELSEWHERE])
def test_a_script_has_a_quick_form(name: str) -> None:
    assert '"--quick"' in (FOLDER / f"{name}.py").read_text("utf-8")


@pytest.mark.slow
def test_the_size_of_the_code_is_told_as_json() -> None:
    """Its figures are compared from one review to the next, by these names."""
    done = subprocess.run(
        [sys.executable, str(FOLDER / "size.py"), "--quick"], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found) == {"lines", "files", "entered", "single_importer"}
    assert set(found["entered"]) == {"quantize", "lint", "predict", "audit", "parse"}
    entered = [one for one in found["entered"].values() if one]
    assert len(entered) >= 3
    assert all(0 < one["files"] <= one["functions"] and 5 < one["depth"] < 100 for one in entered)
    assert found["lines"] > 50_000
