"""What a trial is told to reach is what a whole run of its recipe reaches; the float model runs once for all trials."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from qdqtool.cli.app import run as cli
from qdqtool.core.kinds import REPORT, SWEEP
from qdqtool.runtime.runner import OrtRunner
from tests.sweep.digits import EVALUATION, MODEL, SAMPLES, words

pytest.importorskip("optuna", reason="sweeps need the extra sweep")
pytest.importorskip("tensorrt_rtx", reason="trials are built")
pytestmark = [pytest.mark.slow, pytest.mark.rtx]

SPACE = 'sweep.space={"calibrate.method": [max, mse]}'


def test_a_trial_reaches_what_a_run_of_its_recipe_reaches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: Counter[str] = Counter()
    plain = OrtRunner.run

    def counted(self: OrtRunner, feeds: Any) -> Any:
        ran[self.description] += 1
        return plain(self, feeds)

    monkeypatch.setattr(OrtRunner, "run", counted)
    out = tmp_path / "sweep"
    assert cli(words(out, "--set", "sweep.hold_back=false", speed="estimated", space=SPACE)) == 0
    sweep = SWEEP.read(out / "sweep.json")
    outcomes = [trial.outcome for trial in sweep.trials if trial.outcome]
    assert len(outcomes) == 4
    # all trials and the points of the float network; and once in the whole run of each trial that nothing beats
    assert ran["float model on onnxruntime"] == 64 * (1 + len(sweep.pareto))
    for trial in sweep.pareto:
        kept = REPORT.read(out / "pareto" / f"{trial.number:04}" / "report.json")
        assert trial.verdict == kept.summary.verdict
    for number, outcome in enumerate(outcomes):
        folder = tmp_path / f"run{number}"
        settings = [word for setting in outcome.settings for word in ("--set", setting)]
        given = ("--samples", SAMPLES, "--eval-samples", EVALUATION, "--out", str(folder))
        assert cli(["run", MODEL, *given, *settings, "--set", "build.stack_mib=64"]) == 0
        summary = REPORT.read(folder / "report.json").summary
        assert summary.accuracy is not None
        assert (outcome.accuracy, outcome.sqnr_db) == (summary.accuracy.int8, summary.accuracy.sqnr_db)
        assert (outcome.kernels, outcome.nodes_int8) == (summary.kernels, summary.nodes_int8)
        assert outcome.nodes_total == summary.nodes_total
