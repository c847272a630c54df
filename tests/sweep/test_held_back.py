"""What chooses and what checks a choice have no sample in common; the float network stands beside the trials."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from qdqtool.calibration.samples import open_samples
from qdqtool.calibration.samples.opening import SamplePart
from qdqtool.cli.app import run as cli
from qdqtool.cli.screen import fit_table
from qdqtool.core.kinds import SWEEP
from qdqtool.core.placement import Decision, Placement, QuantSpec, Slot, SlotKind
from qdqtool.core.sweep import Outcome, Sweep
from qdqtool.core.tensors import TensorInfo, by_name
from qdqtool.graph.onnx_io.load import load
from qdqtool.pipeline.sweep.speed import count_placed
from qdqtool.report import sweeps
from tests import models
from tests.accuracy.stand_ins import Given
from tests.sweep.digits import DIGITS, EVALUATION, words

pytest.importorskip("optuna", reason="sweeps need the extra sweep")
pytestmark = pytest.mark.slow  # sweeps with several trials each

SPACE = 'sweep.space={"calibrate.method": [max, mse]}'


def swept(out: Path, *more: str, evaluation: str = EVALUATION) -> Sweep:
    command = words(out, "--set", "sweep.keep_float=[0]", *more, space=SPACE)
    command[command.index("--eval-samples") + 1] = evaluation
    assert cli(command) == 0
    return SWEEP.read(out / "sweep.json")


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    return swept(tmp_path_factory.mktemp("held") / "sweep", "--set", "sweep.hold_back=true")


def test_trials_are_measured_on_one_half_and_what_nothing_beats_on_the_other(
    halves: Sweep, tmp_path: Path
) -> None:
    never = ("--set", "sweep.hold_back=false")
    place = EVALUATION.partition("[")[0]
    first = swept(tmp_path / "first", *never, evaluation=f"{place}[0:64:2]")
    second = swept(tmp_path / "second", *never, evaluation=f"{place}[1:64:2]")

    def levels(sweep: Sweep) -> dict[tuple[str, ...], float]:
        return {one.outcome.settings: one.outcome.accuracy for one in sweep.trials if one.outcome}

    assert levels(halves) == levels(first)
    (best,) = halves.pareto
    assert best.checked is not None
    assert best.outcome is not None
    assert best.checked.samples == 32
    assert best.checked.accuracy == levels(second)[best.outcome.settings]
    assert best.checked.low is not None
    assert best.checked.high is not None
    assert best.checked.low <= best.checked.accuracy <= best.checked.high
    assert next(one for one in halves.trials if one.number == best.number).checked == best.checked
    assert f"{best.checked.accuracy:.2f} {halves.unit} (" in sweeps.page(halves)
    assert "held-out samples" in sweeps.about_accuracy(halves)


def test_figures_are_whole_in_a_narrow_terminal(halves: Sweep) -> None:
    console = Console(width=80, force_terminal=True, color_system=None)
    with console.capture() as shown:
        console.print(fit_table(sweeps.table(halves), 80, sweeps.SPARE)[0])
    text = shown.get()
    (best,) = halves.pareto
    assert best.checked is not None
    assert f" {best.checked.accuracy:.2f} " in text
    assert "\N{HORIZONTAL ELLIPSIS}" not in text


def test_no_interval_of_a_share_leaves_the_share(tmp_path: Path) -> None:
    labels = tmp_path / "labels.npy"
    np.save(labels, np.load(DIGITS / "labels.npy")[:64])
    more = ("--labels", str(labels), "--recipe", "detector-int8")
    scored = swept(tmp_path / "sweep", *more, "--set", "sweep.hold_back=true")
    checked = [one.checked for one in scored.trials if one.checked]
    told = [(one.low, one.high) for one in (*checked, *scored.floats)]
    told += [(one.outcome.accuracy_low, one.outcome.accuracy_high) for one in scored.trials if one.outcome]
    ends = [end for pair in told for end in pair if end is not None]
    assert (scored.metric, scored.unit) == ("top1", "%")
    assert checked
    assert min(ends) >= 0
    assert max(ends) == 100


def test_few_samples_are_not_divided_unless_asked(tmp_path: Path) -> None:
    assert {one.checked for one in swept(tmp_path / "sweep").pareto} == {None}


def test_one_sample_cannot_be_divided(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = EVALUATION.partition("[")[0]
    command = words(tmp_path / "sweep", "--set", "sweep.hold_back=true", space=SPACE)
    command[command.index("--eval-samples") + 1] = f"{place}[0:1]"
    assert cli(command) == 2
    assert "sweep.hold_back=false" in capsys.readouterr().err


def test_the_float_network_is_a_point_in_both_types(halves: Sweep) -> None:
    full, half = halves.floats
    assert (full.name, full.accuracy) == ("FP32", None)
    assert half.name == "FP16"
    assert half.accuracy is not None
    best = max(one.outcome.accuracy for one in halves.trials if one.outcome)
    assert half.accuracy > best
    page = sweeps.page(halves)
    assert ">FP16</text>" in page
    assert "no noise" in page


@pytest.mark.parametrize("count", [5, 6])
def test_parts_hold_every_sample_once(count: int, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(count, dtype=np.float32).reshape(count, 1))
    whole = open_samples(str(tmp_path / "x.npy"), (TensorInfo(name="x", shape=("N", 1)),))
    for source in (whole, Given(list(whole))):
        parts = [SamplePart(source, range(first, len(source), 2)) for first in (0, 1)]
        seen = [[float(sample.feeds["x"][0, 0]) for sample in part] for part in parts]
        assert [len(part) for part in parts] == [len(row) for row in seen]
        assert seen == [list(range(0, count, 2)), list(range(1, count, 2))]
        assert parts[0].digest != parts[1].digest


def test_placed_nodes_are_counted_by_format(tmp_path: Path) -> None:
    model = load(models.save(models.conv_chain(), tmp_path))

    def decision(node: str, index: int, kind: SlotKind, name: str) -> Decision:
        return Decision(
            slot=Slot(node=node, index=index),
            tensor=f"{node}{index}",
            op="Conv",
            kind=kind,
            quantize=True,
            spec=QuantSpec(format=by_name(name)),
            opinions=(),
        )

    mixed = Placement(
        decisions=(
            decision("conv1", 0, SlotKind.ACTIVATION, "fp8"),
            decision("conv1", 1, SlotKind.WEIGHT, "fp8"),
            decision("conv2", 1, SlotKind.WEIGHT, "int4"),
        ),
        ties=(),
    )
    assert count_placed(model, mixed) == ({"fp8": 1, "int4-weights": 1}, 2)


def test_nodes_are_told_by_format() -> None:
    plain = Outcome(settings=(), accuracy=1, ms=1, nodes_int8=3, nodes_total=9, kernels=None)
    assert sweeps.nodes(plain) == "3 int8 of 9"
    mixed = Outcome(
        settings=(),
        accuracy=1,
        ms=1,
        nodes_int8=3,
        nodes_total=9,
        kernels=None,
        formats={"int8": 3, "fp8": 4},
    )
    assert sweeps.nodes(mixed) == "3 int8, 4 fp8 of 9"
    assert mixed.quantized == 7
