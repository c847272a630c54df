"""`benchmarks/figures.py` counts what it measured: its last line and its exit status, with the trainings left out."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from tests.shared import ROOT, benchmark

RECIPE = ROOT / "recipes" / "qat-digits.yaml"


@pytest.mark.parametrize("runs", [1, 2, None], ids=["one", "two", "all"])
@pytest.mark.parametrize("low", [0, 1, 3], ids=["true", "one-low", "three-low"])
def test_the_last_line_counts_the_figures_that_were_measured(
    runs: int | None, low: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = benchmark("figures")
    stated = figures.stated(RECIPE)
    sought = list(dict.fromkeys(figure.options for figure in stated))[:runs]
    seen = [figure for figure in stated if figure.options in sought]
    wrong = {(figure.row, figure.options) for figure in seen[:low]}

    def measured(recipe: object, options: tuple[str, ...]) -> dict[str, dict[str, object]]:
        """What is stated, but for the first few: just below their intervals."""
        del recipe
        return {
            figure.row: {
                "value": figure.low - 0.01 if (figure.row, options) in wrong else figure.value,
                "low": figure.low,
                "high": figure.high,
                "change": None,
                "nodes_int8": figure.nodes,
            }
            for figure in stated
            if figure.options == options
        }

    monkeypatch.setattr(figures, "measured", measured)
    monkeypatch.setattr(sys, "argv", ["figures.py", str(RECIPE), *(["--first", str(runs)] if runs else [])])
    assert figures.main() == (1 if low else 0)
    told = capsys.readouterr().out
    left = len(stated) - len(seen)
    end = f"; {left} of {len(stated)} were not measured" if left else ""
    assert (
        told.splitlines()[-1] == f"{low} of {len(seen)} figures are outside the interval that they state{end}"
    )
    assert told.count("OUTSIDE") == low
    assert (left > 0) == (runs is not None)


def test_fewer_nodes_than_stated_are_outside_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = benchmark("figures")
    stated = [figure for figure in figures.stated(RECIPE) if not figure.options]
    less = [replace(figure, nodes=figure.nodes - 1 if figure.nodes else None) for figure in stated]
    rows = {
        figure.row: {
            "value": figure.value,
            "low": 0.0,
            "high": 100.0,
            "change": None,
            "nodes_int8": figure.nodes,
        }
        for figure in less
    }
    monkeypatch.setattr(figures, "measured", lambda recipe, options: rows)
    monkeypatch.setattr(sys, "argv", ["figures.py", str(RECIPE), "--first", "1"])
    assert figures.main() == 1
    counted = sum(figure.nodes is not None for figure in stated)
    assert counted > 0
    assert f"{counted} of {len(stated)} figures are outside" in capsys.readouterr().out
