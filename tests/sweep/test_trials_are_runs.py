"""A trial reaches what a whole run of its recipe reaches; the float model runs once, and each trial calibrates once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from qdqtool.cli.app import run as cli
from qdqtool.core.kinds import REPORT, SWEEP
from qdqtool.pipeline.calibration import Calibration
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

    calibrations = []
    choose = Calibration.tables

    def noted(self: Calibration, *arguments: Any) -> Any:
        if self.placement.quantized:
            calibrations.append(self)
        return choose(self, *arguments)

    monkeypatch.setattr(OrtRunner, "run", counted)
    monkeypatch.setattr(Calibration, "tables", noted)
    out = tmp_path / "sweep"
    more = ("--set", "sweep.hold_back=false", "--export", str(tmp_path / "export"), "--pick", "min-sqnr 1")
    assert cli(words(out, *more, speed="estimated", space=SPACE)) == 0
    sweep = SWEEP.read(out / "sweep.json")
    outcomes = [trial.outcome for trial in sweep.trials if trial.outcome]
    assert len(outcomes) == 4
    # the base recipe and the trials; not the exported models, the Pareto points and the pick
    assert len(calibrations) == 1 + len(outcomes)
    for folder in (out / "trials").glob("[!.]*"):
        assert {path.name for path in folder.iterdir()} == {"recipe.yaml", "report.json"}
    # once for all trials and the points of the float network; and once in the whole run of each Pareto point and the pick
    assert ran["float model on onnxruntime"] == 64 * (1 + len(sweep.pareto) + 1)
    for trial in sweep.pareto:
        kept = REPORT.read(out / "pareto" / f"{trial.number:04}" / "report.json")
        assert trial.verdict == kept.summary.verdict
    ranges = {
        trial.outcome.settings: (out / "pareto" / f"{trial.number:04}" / "calibration.json").read_bytes()
        for trial in sweep.pareto
        if trial.outcome
    }
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
        chosen = (folder / "calibration.json").read_bytes()
        assert ranges.get(outcome.settings, chosen) == chosen
