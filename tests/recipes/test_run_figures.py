"""What the headers of recipes state of accuracy is still what is measured."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest

from tests.shared import ROOT, SHARED, benchmark

RECIPES = ROOT / "recipes"
SCRIPT = ROOT / "benchmarks" / "run_figures.py"


@pytest.fixture(scope="module")
def script() -> Any:
    return benchmark("run_figures")


def stating() -> list[str]:
    """Recipes whose headers state an accuracy with an interval, those for training apart."""
    text = {path.stem: path.read_text("utf-8") for path in sorted(RECIPES.glob("*.yaml"))}
    interval = re.compile(r"^#.*FP32 [\d.]+, .*\([-+][\d.]+ to [-+][\d.]+\)", re.MULTILINE)
    return [name for name, content in text.items() if interval.search(content)]


def test_every_accuracy_with_an_interval_is_measured(script: Any) -> None:
    assert len(stating()) >= 11
    for name in stating():
        path = RECIPES / f"{name}.yaml"
        lines = re.findall(
            r"^#.*FP32 [\d.]+, .*\([-+][\d.]+ to [-+][\d.]+\)", path.read_text("utf-8"), re.MULTILINE
        )
        rows = script.stated(path)
        assert len(rows) == len(lines), name
        assert all(row.model and row.sm for row in rows)


def test_headers_state_nothing_that_is_not_measured(script: Any) -> None:
    """Every dB, size and count of kernels below `# Measured` is one of the figures of a row."""
    unit = re.compile(r"[\d.]+ (?:dB|[KMG]i?B|kernels)|\d+ of \d+ nodes as")
    found = 0
    for path in sorted(RECIPES.glob("*.yaml")):
        stated = sum(len(row.others) for row in script.stated(path))
        assert stated == len(
            unit.findall(path.read_text("utf-8").partition("# Measured")[2].partition("# When")[0])
        ), path.stem
        found += stated
    assert found >= 15


@pytest.mark.parametrize(("value", "code"), [(99.6, 0), (99.0, 1)])
def test_a_change_outside_the_interval_is_told(
    script: Any, value: float, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {"accuracy": {"reference": 99.7, "int8": value, "interval": (-0.5, 0.5), "samples": 700}}
    monkeypatch.setattr(script, "measured", lambda _row, _models: found)
    monkeypatch.setattr(sys, "argv", ["run_figures.py", "conv-int8", "--models", "/nowhere"])
    assert script.main() == code
    printed = capsys.readouterr().out
    assert printed.count("OUTSIDE") == code
    assert "ResNet-20, CIFAR-10, 2000 images: left out: the model is not here" in printed


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({}, ""),
        ({"kernels": 42}, "kernels"),
        ({"engine_bytes": 3 << 20}, "engine"),
        ({"realised": {}}, "nodes"),
    ],
)
def test_a_figure_beside_the_accuracy_that_no_longer_holds_is_told(
    script: Any, changed: dict[str, Any], wrong: str
) -> None:
    (row,) = script.stated(RECIPES / "conv-fp8.yaml")
    accuracy = {
        "reference": row.reference,
        "int8": row.value,
        "interval": (row.low, row.high),
        "samples": 2000,
    }
    summary = {
        "accuracy": accuracy,
        "engine_bytes": row.others["engine in MiB"][0] * 2**20,
        "kernels": row.others["kernels"][0],
        "requested": {"fp8": 20, "float": 3},
        "realised": {"fp8": 20, "float": 3},
    }
    told = [text for text, holds in script.judged(row, summary | changed) if not holds]
    assert len(told) == bool(wrong)
    assert all(text.startswith(wrong) for text in told)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("tensorrt_rtx") is None, reason="building needs qdqtool[rtx]")
@pytest.mark.parametrize("recipe", stating())
def test_the_accuracies_of_a_recipe_are_measured_again_and_lie_in_their_intervals(recipe: str) -> None:
    """Those of networks that are not part of the project where their folder lies beside the checkout."""
    if recipe not in ("conv-int8", "int8-fp16-mixed") and not (SHARED / "models").exists():
        pytest.skip("needs the shared models beside the checkout")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), recipe, "--models", str(SHARED / "models")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " stated " in done.stdout
