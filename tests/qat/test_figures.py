"""The figures that a recipe states are still what it gives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'qdqtool[qat]'")
pytest.importorskip("tensorrt_rtx", reason="building needs the extra rtx")

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["qat-digits", "qat-detector"])
def test_the_table_of_a_recipe_is_measured_again_and_lies_in_its_intervals(recipe: str) -> None:
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "figures.py"),
        str(ROOT / "recipes" / f"{recipe}.yaml"),
    ]
    done = subprocess.run([*command, "--first", "1"], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("stated") == 3


def test_a_figure_outside_its_interval_is_told(tmp_path: Path) -> None:
    text = (ROOT / "recipes" / "qat-digits.yaml").read_text("utf-8")
    wrong = tmp_path / "qat-digits.yaml"
    wrong.write_text(
        text.replace("#   FP32   97.00   (95.31 to 98.09)", "#   FP32   99.00   (98.50 to 99.50)")
    )
    from importlib import util

    spec = util.spec_from_file_location("figures", ROOT / "benchmarks" / "figures.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules["figures"] = module
    spec.loader.exec_module(module)
    stated = module.stated(wrong)
    assert [figure.row for figure in stated[:3]] == ["FP32", "PTQ", "QAT"]
    assert (stated[0].low, stated[0].high) == (98.5, 99.5)
    assert len(stated) == len(module.stated(ROOT / "recipes" / "qat-digits.yaml")) >= 6
