"""What the guide on formats states of rounding and equalization is still what is measured."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest

from tests.shared import ROOT, SHARED, benchmark

PAGE = ROOT / "docs" / "guides" / "formats.md"
SCRIPT = ROOT / "benchmarks" / "guide_figures.py"


@pytest.fixture(scope="module")
def script() -> Any:
    return benchmark("guide_figures")


def test_the_guide_states_no_decibels_that_are_not_measured(script: Any) -> None:
    """Every number with a decimal in a table is a figure of this script, or a row of a recipe's header; the text has none."""
    figures = list(script.stated())
    assert len(figures) >= 14
    assert {figure.model for figure in figures} >= {"digits"}
    text = PAGE.read_text("utf-8")
    tables = [line for line in text.splitlines() if line.startswith("|") and "change" not in line]
    numbers = [cell for line in tables for cell in re.findall(r"\| (\d+\.\d+) (?=\|)", line)]
    headers = len(re.findall(r"^\| `[\w-]+` \| [^|]+ \| [\d.]+ \| [\d.]+ \| \S+ to", text, re.MULTILINE))
    assert len(numbers) == len(figures) + 2 * headers
    told = re.findall(r"(\S+ \S+ [\d.]+) dB", " ".join(line for line in text.splitlines() if line[:1] != "|"))
    assert set(told) <= {"more than 0.3"}


@pytest.mark.parametrize(("value", "code"), [(39.9, 0), (39.0, 1)])
def test_a_figure_that_no_longer_holds_is_told(
    script: Any, value: float, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stated = [figure for figure in script.stated() if figure.model == "digits"][:1]
    monkeypatch.setattr(script, "stated", lambda: stated)
    monkeypatch.setattr(script, "measured", lambda figure, _models: figure.value - 39.9 + value)
    monkeypatch.setattr(sys, "argv", ["guide_figures.py"])
    assert script.main() == code
    assert capsys.readouterr().out.count("OUTSIDE") == code


@pytest.mark.slow
@pytest.mark.parametrize("network", ["digits", "kws_dscnn", "vit_cifar10_pgd_2_3_16"])
def test_the_tables_are_measured_again_and_hold(network: str) -> None:
    """Those of networks that are not part of the project where their folder lies beside the checkout."""
    if network != "digits" and not (SHARED / "models").exists():
        pytest.skip("needs the shared models beside the checkout")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--only", network, "--models", str(SHARED / "models")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " stated " in done.stdout
