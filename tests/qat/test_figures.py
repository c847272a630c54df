"""The figures that a recipe states are still what it gives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shared import ROOT, SHARED, benchmark

pytest.importorskip("torch", reason="needs torch: pip install 'qdqtool[qat]'")
pytest.importorskip("tensorrt_rtx", reason="building needs the extra rtx")


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["qat-digits", "qat-detector", "qat-cifar10-resnet20"])
def test_the_table_of_a_recipe_is_measured_again_and_lies_in_its_intervals(recipe: str) -> None:
    if recipe == "qat-cifar10-resnet20" and not (SHARED / "models").exists():
        pytest.skip("needs the shared models beside the checkout")
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "figures.py"),
        str(ROOT / "recipes" / f"{recipe}.yaml"),
    ]
    own = {"QDQTOOL_MODELS": str(SHARED / "models"), **os.environ}
    done = subprocess.run(
        [*command, "--first", "1"], capture_output=True, text=True, check=False, cwd=ROOT, env=own
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("stated") == 3


def test_a_figure_outside_its_interval_is_told(tmp_path: Path) -> None:
    text = (ROOT / "recipes" / "qat-digits.yaml").read_text("utf-8")
    wrong = tmp_path / "qat-digits.yaml"
    wrong.write_text(
        text.replace("#   FP32   97.00   (95.31 to 98.09)", "#   FP32   99.00   (98.50 to 99.50)")
    )
    module = benchmark("figures")
    stated = module.stated(wrong)
    assert [figure.row for figure in stated[:3]] == ["FP32", "PTQ", "QAT"]
    assert (stated[0].low, stated[0].high) == (98.5, 99.5)
    assert [figure.nodes for figure in stated[:3]] == [None, 10, 10]
    assert len(stated) == len(module.stated(ROOT / "recipes" / "qat-digits.yaml")) >= 6
