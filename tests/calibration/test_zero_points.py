"""`calibrate.symmetric`: who gets a zero point, and what it brings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qdqtool
from qdqtool.calibration.caches.files import read_cache
from qdqtool.calibration.samples import open_samples
from qdqtool.calibration.table import groups
from qdqtool.core.calibration import CalibrationTable, TensorRange, ZeroPoints
from qdqtool.core.journal import TrialOutcome
from qdqtool.core.kinds import CALIBRATION
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.qdq.find import find
from qdqtool.graph.qdq.insert import insert
from qdqtool.pipeline.ranges import zero_points
from qdqtool.pipeline.ranges.executor import TrialSession
from qdqtool.pipeline.ranges.zero_points import _Ends, with_zero_points
from qdqtool.placement.decide import decide
from tests.graph.test_zero_points import NETWORKS, Net
from tests.pipeline.test_uneven import recipe_of, run, table_of, written

NOISE = np.random.default_rng(1)
SETTINGS = {"place.skip_rules": ["gemv", "narrow", "min_channels"], "weights.rounding": "nearest"}


def _deep() -> Net:
    net = Net(1, 8, 8, 8).conv(8, 16, 3, pads=[1] * 4).add("Relu")
    for _ in range(3):
        net = net.conv(16, 16, 3, pads=[1] * 4).add("Relu")
    return net.conv(16, 8, 1)


def _table(net: Net, folder: Path, **settings: Any) -> CalibrationTable:
    path = folder / "net.onnx"
    onnx.save(net.model(), path)
    samples = [{"x": NOISE.standard_normal(net.shape).astype(np.float32)} for _ in range(16)]
    changes = {key.replace("__", "."): value for key, value in settings.items()}
    return qdqtool.calibrate(path, samples, settings={**SETTINGS, **changes})


def _zeros(table: CalibrationTable) -> set[str]:
    return {entry.tensor for entry in table.ranges if entry.zero_point}


def _codes(table: CalibrationTable) -> set[int]:
    return {entry.zero_point for entry in table.ranges}


def test_tensors_behind_a_relu_get_a_zero_point_if_the_outputs_gain(tmp_path: Path) -> None:
    table = _table(_deep(), tmp_path)
    assert table.zero_points is not None
    assert _zeros(table) == {"t1", "t3", "t5"}
    assert all(entry.zero_point == -128 for entry in table.ranges if entry.zero_point)
    assert table.zero_points.saturating == 3
    assert (table.zero_points.gain_db or 0) > 2
    assert table.zero_points.kernels is None or len(set(table.zero_points.kernels)) == 1
    assert all(entry.gain_db == table.zero_points.gain_db for entry in table.ranges if entry.zero_point)
    assert table.journal is not None
    assert [one.outcome for one in table.journal.trials if one.what == "zero points"] == [TrialOutcome.KEPT]


def test_a_table_with_zero_points_is_read_from_its_file_as_it_was(tmp_path: Path) -> None:
    table = _table(_deep(), tmp_path, calibrate__symmetric="never")
    CALIBRATION.write(tmp_path / "calibration.json", table)
    again = CALIBRATION.read(tmp_path / "calibration.json")
    assert again == table
    assert _zeros(again)


@pytest.mark.parametrize(
    "settings",
    [
        {"calibrate__symmetric": "always"},
        {"calibrate__method": "max"},
        {"place__format": "fp8", "place__sm": ["89"], "build__sm": ["89"]},
    ],
    ids=str,
)
def test_nobody_gets_one_who_must_not(settings: dict[str, Any], tmp_path: Path) -> None:
    table = _table(_deep(), tmp_path, **settings)
    assert table.zero_points is None
    assert not _zeros(table)


def test_classic_tensorrt_gets_only_those_that_need_no_node(tmp_path: Path) -> None:
    never = {"calibrate__symmetric": "never", "place__target": "10"}
    assert not _zeros(_table(_deep(), tmp_path, **never))
    assert _zeros(_table(NETWORKS["1x1"](), tmp_path, **never)) == {"t1"}


def test_both_sides_of_a_product_of_activations_stay_symmetric(tmp_path: Path) -> None:
    net = Net(1, 4, 16, 16).add("Relu")
    net.add("MatMul", "t0")
    assert not _zeros(_table(net, tmp_path, calibrate__symmetric="never"))


def test_a_gelu_gets_one_that_keeps_its_values_below_zero(tmp_path: Path) -> None:
    table = _table(NETWORKS["Gelu"](), tmp_path, calibrate__symmetric="never")
    entry = next(entry for entry in table.ranges if entry.zero_point)
    assert entry.low is not None
    assert (-128 - entry.zero_point) * entry.scales[0] <= entry.low * 0.99


def test_every_width_is_measured_with_its_own_zero_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, ran = dict[TrialSession, CalibrationTable](), list[tuple[set[int], set[int]]]()
    open_session, run_tables = TrialSession.__init__, TrialSession.candidates

    def note_session(self: TrialSession, *given: Any) -> None:
        opened[self] = given[2]
        open_session(self, *given)

    def note_tables(self: TrialSession, tables: Any, *given: Any, **more: Any) -> Any:
        ran.extend((_codes(opened[self]), _codes(table)) for table in tables.values())
        return run_tables(self, tables, *given, **more)

    monkeypatch.setattr(TrialSession, "__init__", note_session)
    monkeypatch.setattr(TrialSession, "candidates", note_tables)
    monkeypatch.setattr(zero_points, "_WIDER", (1.0, 0.5))
    _table(NETWORKS["Gelu"](), tmp_path)
    assert len({tuple(codes) for _, codes in ran}) > 2  # without zero points, and two sets of them
    assert all(constants == codes for constants, codes in ran)


def test_more_bytes_than_allowed_need_a_gain_of_one_decibel(tmp_path: Path) -> None:
    table = _table(_deep(), tmp_path, calibrate__zero_point_bytes=0)
    assert table.zero_points is not None
    assert table.zero_points.gain_db is not None
    assert table.zero_points.gain_db > 1


@pytest.mark.parametrize("rivals", [True, False], ids=["with a rival", "alone"])
def test_ranges_of_the_calibrator_with_the_least_noise_with_zero_points_are_taken(
    rivals: bool, tmp_path: Path
) -> None:
    path = written(tmp_path, "relu")
    recipe = recipe_of("none")
    symmetric = recipe.calibrate.model_copy(update={"symmetric": "always"})
    table = table_of(path, recipe.model_copy(update={"calibrate": symmetric}))
    model = load(path)
    placement = decide(model.view, recipe.placing)
    activations = {name for group in groups(placement) for name in group}
    narrow = replace(
        table,
        ranges=tuple(
            replace(entry, amax=(entry.amax[0] / 4,)) if entry.tensor in activations else entry
            for entry in table.ranges
        ),
    )
    samples = open_samples(str(tmp_path / "s.npz"), model.view.inputs)
    assert table.journal is not None
    name = table.journal.trials[-1].what
    others = {name: table.ranges} if rivals else {}
    finished = with_zero_points((model, placement), narrow, samples, recipe, rivals=others)
    assert finished.journal is not None
    if rivals:
        assert name in {trial.what for trial in finished.journal.kept}
    moved = finished.by_tensor()
    plain = [name for name in activations if not moved[name].zero_point]
    assert plain
    source = table if rivals else narrow
    assert all(moved[name].amax == source.by_tensor()[name].amax for name in plain)
    weights = [entry for entry in table.ranges if entry.tensor not in activations]
    assert all(moved[entry.tensor].amax == entry.amax for entry in weights)


@pytest.mark.parametrize(
    ("kernels", "bytes_moved", "gain", "is_proven", "is_kept"),
    [
        ((9, 9), (100, 100), 0.1, False, True),
        ((9, 9), (100, 110), 0.9, True, False),
        ((9, 9), (100, 110), 1.1, False, True),
        ((9, 10), (100, 100), 5.0, True, False),
        (None, None, 5.0, False, False),  # no engine shows what they cost
        (None, None, 0.4, True, True),
    ],
)
def test_only_zero_points_whose_costs_are_known_need_no_proof(
    kernels: tuple[int, int] | None,
    bytes_moved: tuple[int, int] | None,
    gain: float,
    is_proven: bool,
    is_kept: bool,
) -> None:
    summary = ZeroPoints(tensors=1, saturating=1, gain_db=gain, kernels=kernels, bytes=bytes_moved)
    assert (zero_points._refusal(summary, gain, 0.02, is_proven=is_proven) is None) is is_kept


def test_the_written_model_has_no_zero_point_and_reads_back_with_them(tmp_path: Path) -> None:
    net = _deep()
    table = _table(net, tmp_path, calibrate__symmetric="never")
    source, out = tmp_path / "net.onnx", tmp_path / "out.onnx"
    qdqtool.insert(source, table, out, placement=qdqtool.place(source, settings=SETTINGS), settings=SETTINGS)
    assert not any(any(pair.zero_point) for pair in find(load(out)))
    assert not qdqtool.lint(out).findings


def test_a_calibration_cache_gets_ranges_that_hold_both_ends(tmp_path: Path) -> None:
    entry = TensorRange(tensor="x", amax=(1.27,), zero_point=-128, low=0.0, high=2.55)
    assert entry.symmetric.amax[0] == pytest.approx(2.55)
    assert entry.symmetric.zero_point == 0
    CALIBRATION.write(tmp_path / "calibration.json", CalibrationTable(ranges=(entry,)))
    assert read_cache(tmp_path / "calibration.json").by_tensor()["x"].amax == pytest.approx(2.55)


def test_zero_points_of_an_equalized_network_are_judged_with_the_means_of_its_layers(tmp_path: Path) -> None:
    table = table_of(written(tmp_path, "relu"), recipe_of("auto"))
    assert table.journal is not None
    trials = {trial.what: trial for trial in table.journal.trials}
    (equalized,) = (
        trial
        for what, trial in trials.items()
        if what.startswith("network equalized") and trial.outcome is TrialOutcome.KEPT
    )
    moved = trials["zero points"]
    assert moved.outcome is TrialOutcome.KEPT
    assert equalized.value is not None
    assert moved.value is not None
    assert moved.gain is not None
    assert moved.value - moved.gain == pytest.approx(equalized.value, abs=1)


@pytest.mark.parametrize("way", ["none", "auto"])
@pytest.mark.parametrize("free", [True, False], ids=["any batch", "batch of 1"])
def test_zero_points_that_are_not_judged_have_corrected_biases(free: bool, way: str, tmp_path: Path) -> None:
    path = written(tmp_path, "relu")
    if not free:
        proto = onnx.load(path)
        for info in (*proto.graph.input, *proto.graph.output):
            info.type.tensor_type.shape.dim[0].dim_value = 1
        onnx.save(proto, path)
    assert _noise(path, way, "correct") < 1.1 * _noise(path, way, "keep")


def _noise(path: Path, way: str, bias: str) -> float:
    recipe = recipe_of(way)
    options = recipe.calibrate.model_copy(update={"symmetric": "never", "bias": bias, "method": "mse"})
    recipe = recipe.model_copy(update={"calibrate": options})
    table = table_of(path, recipe)
    assert _zeros(table)
    assert bool(table.shifts) == (bias == "correct")
    model = load(path)
    quantized = insert(model, decide(model.view, recipe.placing), table, recipe.insert)
    rows = np.load(path.parent / "s.npz")["x"]
    pairs = [(run(model, row[None]), run(quantized, row[None])) for row in rows]
    return float(sum(np.square(plain - low).sum() for plain, low in pairs))


@given(
    small=st.floats(0, 1),
    large=st.floats(0.5, 2),
    widest=st.floats(0.5, 8),
    factor=st.sampled_from([1.0, 1.15, float("inf")]),
    is_negative=st.booleans(),
)
def test_all_256_numbers_are_for_the_values_between_both_ends(
    small: float, large: float, widest: float, factor: float, is_negative: bool
) -> None:
    """For integers between both ends the step is the whole of them, so that they are exact."""
    ends = _Ends(small=small * large, large=large, widest=widest, is_negative=is_negative)
    zero, step = ends.zero(factor), ends.range(factor) / 127
    below, above = ((128 + zero) * step, (127 - zero) * step)[:: -1 if is_negative else 1]
    top = min(large * factor, max(large, widest))
    assert below >= small * large * (1 - 1e-9)
    assert above >= top * (1 - 1e-9)
    assert step <= (top + small * large) / 255 * 1.01
