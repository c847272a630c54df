"""Advice about precisions: fitted to published pairs, and silent where it cannot say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qdqtool.cli.app import run
from qdqtool.engine.roofline import devices, find_device
from qdqtool.engine.worth import COEFFICIENTS, GENERATIONS, SPREAD, advise, features, predict_log_ratio
from qdqtool.errors import UsageError
from qdqtool.graph.onnx_io.load import load
from tests.models import Sketch, save
from tests.shared import benchmark

advice = benchmark("advice")


def network(tmp_path: Path, channels: int, size: int, layers: int = 4, batch: int | str = 1) -> Path:
    made = Sketch()
    value = made.input("x", (batch, channels, size, size))
    for number in range(layers):
        value = made.conv(f"conv{number}", value, (channels, channels))
    made.output(value)
    return save(made.model(), tmp_path)


def test_every_row_has_a_source_times_and_a_known_device() -> None:
    rows = advice.rows("advice_pairs.tsv")
    assert all(len(row) == 9 and row[8] for row in rows)
    assert all(float(time) > 0 for row in rows for time in row[4:8] if time != "-")
    assert all(find_device(row[2]).sm in GENERATIONS for row in rows)
    assert len({tuple(row) for row in rows}) == len(rows)
    facts = advice.rows("advice_networks.tsv")
    assert {row[0] for row in rows} <= {row[0] for row in facts}
    assert all(len(row) == 5 and row[4] for row in facts)


def test_the_coefficients_are_those_of_the_pairs() -> None:
    assert dict(COEFFICIENTS) == pytest.approx(advice.fitted(advice.pairs()), abs=1e-3)


def test_the_goal_is_kept_on_networks_that_the_fit_has_not_seen() -> None:
    given = advice.pairs()
    assert len(given) >= 150
    assert len({pair.device for pair in given}) >= 8
    told = advice.left_out(given, lambda pair: pair.base)
    differ, answered, right = advice.signs(given, told)
    assert right / answered >= 0.9
    assert 1 - answered / differ <= 0.2
    always = sum(pair.recorded < 0 for pair in given if abs(pair.recorded) > 0.05) / differ
    assert right / answered > always
    within = [abs(one - pair.recorded) <= SPREAD for pair, one in zip(given, told, strict=True)]
    assert sum(within) / len(within) >= 0.78


def test_more_work_gains_more_on_orin_and_a_generation_changes_the_sign() -> None:
    times = [predict_log_ratio(features("orin", ms, "dense")) for ms in (0.15, 0.6, 3.0)]
    assert times == sorted(times, reverse=True)
    assert predict_log_ratio(features("blackwell", 0.3, "dense")) > 0 > times[0]


def test_a_large_network_on_orin_is_told_to_be_faster_in_int8(tmp_path: Path) -> None:
    found = advise(load(network(tmp_path, 256, 96)).view, find_device("Orin Nano Super"), "m")
    assert found.options[0].precision == "int8"
    assert found.options[0].verdict == "faster"
    assert found.bounds["compute"] > 0.5
    assert all(work.pays for work in found.nodes)
    assert sum(found.bounds.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("device", [device.name for device in devices()])
def test_a_network_bound_by_launches_is_called_neither_faster_nor_slower(device: str, tmp_path: Path) -> None:
    found = advise(load(network(tmp_path, 3, 8)).view, find_device(device), "m")
    assert found.bounds["launches"] == pytest.approx(1.0)
    assert not any(work.pays for work in found.nodes)
    assert all(one.verdict != "faster" for one in found.options)
    assert any("CUDA graphs" in note for note in found.notes)


def test_a_generation_without_pairs_is_no_ground_for_an_answer(tmp_path: Path) -> None:
    found = advise(load(network(tmp_path, 256, 96)).view, find_device("H200"), "m")
    (int8,) = [one for one in found.options if one.precision == "int8"]
    assert int8.verdict == "cannot say"
    assert "no published pair of INT8 and FP16 times for sm90" in int8.why


def test_the_batch_is_what_the_user_says(tmp_path: Path) -> None:
    view = load(network(tmp_path, 16, 16, batch="N")).view
    one, eight = (advise(view, find_device("T4"), "m", batch) for batch in (1, 8))
    assert eight.gmacs == pytest.approx(8 * one.gmacs)


def test_unknown_shapes_and_no_compute_nodes_are_errors(tmp_path: Path) -> None:
    made = Sketch()
    made.output(made.conv("c", made.input("x", (1, 3, "H", "W")), (3, 3)))
    with pytest.raises(UsageError, match="shape of tensor"):
        advise(load(save(made.model(), tmp_path)).view, find_device("T4"), "m")
    made = Sketch()
    made.output(made.relu("r", made.input("x", (1, 3, 8, 8))))
    with pytest.raises(UsageError, match="no compute node"):
        advise(load(save(made.model(), tmp_path)).view, find_device("T4"), "m")


def test_the_command_prints_the_order_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(network(tmp_path, 256, 96))
    assert run(["advise", model, "--device-name", "Orin Nano Super"]) == 0
    said = capsys.readouterr().out
    assert "INT8" in said
    assert "reference" in said
    assert run(["advise", model, "--device-name", "Orin Nano Super", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)["data"]
    assert next(option["precision"] for option in data["options"]) == "int8"
    assert run(["advise", model, "--device-name", "RTX 9999"]) == UsageError.exit_code


def test_depthwise_convolutions_gain_less_than_dense_ones(tmp_path: Path) -> None:
    made = Sketch()
    value = made.input("x", (1, 64, 64, 64))
    for number in range(3):
        value = made.conv(f"deep{number}", value, (64, 64), group=64)
        value = made.conv(f"point{number}", value, (64, 64), kernel=1)
    made.output(value)
    separable = advise(load(save(made.model(), tmp_path)).view, find_device("RTX 3090"), "m").int8
    assert "separable" in separable.why
    assert predict_log_ratio(features("geforce ampere", 0.1, "separable")) > predict_log_ratio(
        features("geforce ampere", 0.1, "dense")
    )


def test_times_are_ranked_and_ratios_as_far_as_they_repeat() -> None:
    given = advice.pairs()
    told = advice.left_out(given, lambda pair: pair.base)
    recorded = [pair.recorded for pair in given]
    assert advice.of_times(given, told) >= 0.9
    ratios = advice.correlation(given, told, recorded)
    assert 0.55 < ratios < advice.ceiling(given, advice.published_noise(given))
    assert advice.correlation(given, recorded, recorded) == pytest.approx(1.0)
