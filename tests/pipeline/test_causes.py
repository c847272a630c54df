"""Why a node is noisy, on networks where it is known, and cures whose gain is what the network gains by them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from qdqtool.calibration.collect import collect
from qdqtool.calibration.samples import open_samples
from qdqtool.calibration.table import make_table
from qdqtool.cli.app import run
from qdqtool.core.calibration import CalibrationTable
from qdqtool.core.evidence import record_gain
from qdqtool.core.kinds import SENSITIVITY
from qdqtool.core.recipe import CalibrationOptions, InsertOptions, PlacementOptions, Recipe
from qdqtool.core.sensitivity import CauseKind, NoiseCause, Sensitivity
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.onnx_io.save import serialize
from qdqtool.graph.qdq.find import find
from qdqtool.graph.qdq.insert import insert
from qdqtool.graph.typed.convert import convert
from qdqtool.graph.view import Model
from qdqtool.pipeline.recipes import change_recipe
from qdqtool.pipeline.search.causes import diagnose_nodes
from qdqtool.placement.decide import decide
from qdqtool.report import sensitivity_charts
from tests import models

COUNT = 6


def quantized(
    folder: Path,
    proto: onnx.ModelProto,
    arrays: dict[str, np.ndarray],
    method: str = "max",
    **place: object,
) -> tuple[Model, Model, CalibrationTable, tuple[object, ...]]:
    """The float model, its Q/DQ form, the table and the samples."""
    model = load(models.save(proto, folder))
    np.savez(folder / "s.npz", **arrays)
    samples = open_samples(str(folder / "s.npz"), model.view.inputs)
    placement = decide(model.view, PlacementOptions(**place))  # type: ignore[arg-type]
    table = make_table(
        collect(model, placement, samples), placement, model.view, CalibrationOptions(method=method)
    )
    return model, insert(model, placement, table, InsertOptions()), table, tuple(samples)


def causes(
    folder: Path, proto: onnx.ModelProto, arrays: dict[str, np.ndarray], method: str = "max", **place: object
) -> dict[str, NoiseCause]:
    model, noisy, _, samples = quantized(folder, proto, arrays, method, **place)
    return diagnose_nodes(noisy, model, [node.name for node in model.view.nodes], samples)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(models.ALL))
def test_the_parts_of_every_layer_add_up_and_belong_to_quantized_nodes(name: str, tmp_path: Path) -> None:
    proto = models.ALL[name]()
    model, noisy, _, samples = quantized(tmp_path, proto, models.feeds(proto, 1, COUNT))
    readers = {slot.node for pair in find(noisy) for slot in pair.slots}
    found = diagnose_nodes(noisy, model, [node.name for node in model.view.nodes], samples)  # type: ignore[arg-type]
    assert set(found) <= readers
    assert bool(found) == bool(readers)
    for cause in found.values():
        assert cause.clipping + cause.rounding + cause.weights == pytest.approx(1)
        assert 0 <= cause.clipped_energy <= 1


@pytest.mark.parametrize(("types", "apart"), [("fp16", 0.05), ("bf16", 0.1)])
def test_a_network_in_a_narrow_type_has_the_causes_of_its_fp32_form(
    types: str, apart: float, tmp_path: Path
) -> None:
    arrays = {"x": np.random.default_rng(1).standard_normal((COUNT, 8, 8, 8)).astype(np.float32)}
    model, noisy, _, samples = quantized(tmp_path, models.conv_chain(19), arrays)
    halves, _ = convert(noisy, InsertOptions.model_validate({"types": types}))
    wanted = diagnose_nodes(noisy, model, ["conv1", "conv2"], samples)  # type: ignore[arg-type]
    found = diagnose_nodes(halves, model, ["conv1", "conv2"], samples)  # type: ignore[arg-type]
    assert {name: one.kind for name, one in found.items()} == {name: one.kind for name, one in wanted.items()}
    for name, one in found.items():
        assert one.weights == pytest.approx(wanted[name].weights, abs=apart)


@pytest.mark.parametrize("method", ["max", "percentile:90"])
@pytest.mark.parametrize("opset", [17, 18])
def test_parts_are_what_their_definitions_give(method: str, opset: int, tmp_path: Path) -> None:
    arrays = {"x": np.random.default_rng(1).standard_normal((COUNT, 8, 8, 8)).astype(np.float32)}
    model, noisy, table, samples = quantized(tmp_path, models.conv_chain(opset), arrays, method)
    cause = diagnose_nodes(noisy, model, ["conv1"], samples)["conv1"]  # type: ignore[arg-type]
    ranges = table.by_tensor()
    step = np.float32(ranges["x"].scales[0])
    node = model.view.by_name["conv1"]
    weights, bias = (model.view.constant(name) for name in node.inputs[1:3])
    assert weights is not None
    steps = np.array(ranges[node.inputs[1]].scales, np.float32).reshape(-1, 1, 1, 1)
    stored = np.clip(np.rint(weights / steps), -128, 127) * steps
    x = arrays["x"]
    clipped = np.clip(x, -128 * step, 127 * step)
    rounded = np.clip(np.rint(x / step), -128, 127) * step
    plain = convolved(x, weights, bias)
    parts = np.array(
        [
            np.square(convolved(clipped, weights, bias) - plain).sum(),
            np.square(convolved(rounded, weights, bias) - convolved(clipped, weights, bias)).sum(),
            np.square(convolved(x, stored, bias) - plain).sum(),
        ]
    )
    wanted = parts / parts.sum()
    assert (cause.clipping, cause.rounding, cause.weights) == pytest.approx(tuple(wanted), rel=1e-3, abs=1e-9)
    assert cause.clipped_energy == pytest.approx(np.square(x - clipped).sum() / np.square(x).sum(), rel=1e-3)
    reaches = np.abs(x).max(axis=(0, 2, 3))
    assert cause.channel == reaches.argmax()
    assert cause.reach == pytest.approx(reaches.max() / np.median(reaches), rel=1e-5)
    assert cause.spread == pytest.approx(np.median(x.std(axis=(0, 2, 3))), rel=1e-4)
    assert cause.step == pytest.approx(step)


def convolved(x: np.ndarray, w: np.ndarray, b: np.ndarray | None) -> np.ndarray:
    """A 3x3 convolution with a border of 1, by definition."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))).astype(np.float64)
    rows, columns = x.shape[2:]
    total = np.zeros((len(x), w.shape[0], rows, columns))
    for i in range(w.shape[2]):
        for j in range(w.shape[3]):
            total += np.einsum("nchw,oc->nohw", padded[:, :, i : i + rows, j : j + columns], w[:, :, i, j])
    return total + (0 if b is None else b.reshape(-1, 1, 1))


def test_values_beyond_the_range_are_the_cause_where_a_calibrator_clips(tmp_path: Path) -> None:
    cause = causes(tmp_path, models.conv_chain(), chain(), "percentile:50")["conv1"]
    assert cause.kind is CauseKind.CLIPPED
    assert cause.clipped_energy > 0.1


def test_one_channel_that_reaches_far_is_named(tmp_path: Path) -> None:
    arrays = chain()
    arrays["x"][:, 5] *= 60
    cause = causes(tmp_path, models.conv_chain(), arrays)["conv1"]
    assert cause.kind is CauseKind.OUTLIER
    assert cause.channel == 5
    assert cause.reach is not None
    assert cause.reach > 30


def test_weights_that_share_one_step_are_the_cause_where_one_channel_is_wide(tmp_path: Path) -> None:
    proto = wide_weights()
    cause = causes(tmp_path, proto, chain(), per_channel=False)["conv1"]
    assert cause.kind is CauseKind.WEIGHTS
    assert cause.weight_reach is not None
    assert cause.weight_reach > 50
    assert causes(tmp_path, proto, chain())["conv1"].weight_reach is None


@pytest.mark.parametrize(("op", "trans"), [("MatMul", {}), ("Gemm", {"transB": 0}), ("Gemm", {"transB": 1})])
def test_the_reach_of_weights_is_that_of_output_channels(
    op: str, trans: dict[str, int], tmp_path: Path
) -> None:
    random = np.random.default_rng(2)
    weight = random.standard_normal((32, 24)).astype(np.float32)
    weight[:, 3] *= 60
    stored = np.ascontiguousarray(weight.T if trans.get("transB") else weight)
    node = helper.make_node(op, ["x", "w"], ["y"], name="product", **trans)
    dtype = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", dtype, [1, 32])],
        [helper.make_tensor_value_info("y", dtype, [1, 24])],
        [numpy_helper.from_array(stored, "w")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    arrays = {"x": random.standard_normal((COUNT, 32)).astype(np.float32)}
    cause = causes(tmp_path, proto, arrays, per_channel=False, skip_rules=("gemv",))["product"]
    widths = np.abs(weight).max(axis=0)
    assert cause.weight_reach == pytest.approx(widths.max() / np.median(widths), rel=1e-5)


def test_even_values_in_few_levels_are_too_coarse(tmp_path: Path) -> None:
    assert causes(tmp_path, models.conv_chain(), chain())["conv2"].kind is CauseKind.COARSE


def chain() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(1).standard_normal((24, 8, 8, 8)).astype(np.float32)}


def wide_weights() -> onnx.ModelProto:
    """A chain whose first output channel has weights a hundred times as large as the others."""
    proto = models.conv_chain()
    name = proto.graph.node[0].input[1]
    for tensor in proto.graph.initializer:
        if tensor.name == name:
            value = numpy_helper.to_array(tensor).copy()
            value[0] *= 100
            tensor.CopyFrom(numpy_helper.from_array(value, name))
    return proto


def studied(folder: Path, proto: onnx.ModelProto, arrays: dict[str, np.ndarray], *words: str) -> Sensitivity:
    models.save(proto, folder)
    np.savez(folder / "s.npz", **arrays)
    out = folder / "out"
    changes = [part for word in words for part in ("--set", word)]
    command = ["sensitivity", str(folder / "model.onnx"), "--samples", str(folder / "s.npz"), "-o", str(out)]
    assert run([*command, "-r", "conv-int8", "--set", "calibrate.bias=keep", *changes]) == 0
    return SENSITIVITY.read(out / "sensitivity.json")


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("calibrate.method=percentile", "calibrate.percentile=60"), "for x[0]"),
        (("calibrate.method=max", "place.per_channel=false"), "weight scales per channel"),
        (("calibrate.method=percentile", "calibrate.percentile=60"), "float"),
    ],
    ids=["calibrator", "per channel", "float"],
)
def test_following_a_cure_brings_what_it_was_measured_to_bring(
    words: tuple[str, ...], what: str, tmp_path: Path
) -> None:
    arrays = {"x[0]": chain()["x"][:16]}
    proto = wide_weights()
    proto.graph.input[0].name = proto.graph.node[0].input[0] = "x[0]"
    before = studied(tmp_path, proto, arrays, *words)
    cures = [cure for row in before.nodes for cure in row.cures if row.node == "conv1"] + [*before.cures]
    cure = next(one for one in cures if one.what.endswith(what) and one.helps)
    after = studied(tmp_path, proto, arrays, *words, *cure.settings)
    assert before.whole.sqnr_db is not None
    assert after.whole.sqnr_db is not None
    assert cure.gain_db == pytest.approx(after.whole.sqnr_db - before.whole.sqnr_db, abs=0.1)


def test_advice_repeats_the_nodes_that_the_recipe_excludes(tmp_path: Path) -> None:
    study = studied(tmp_path, models.conv_chain(), chain(), 'place.exclude=["conv[2]"]')
    (cure,) = (cure for row in study.nodes for cure in row.cures if cure.what == "float")
    assert change_recipe(Recipe(), cure.settings).place.exclude == ("conv[2]", "conv1")
    advised = replace(study, advice=study.curve[0])
    assert sensitivity_charts.advice(advised).endswith("--set 'place.exclude=[\"conv[2]\", conv1]'")


def test_without_causes_nothing_is_tried(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    models.save(models.conv_chain(), tmp_path)
    np.savez(tmp_path / "s.npz", **chain())
    command = ["sensitivity", str(tmp_path / "model.onnx"), "--samples", str(tmp_path / "s.npz"), "--json"]
    assert run([*command, "--no-causes"]) == 0
    found = json.loads(capfd.readouterr().out)["data"]
    assert {row["cause"] for row in found["nodes"]} == {None}
    assert not any(row["cures"] for row in found["nodes"])
    assert not found["cures"]


def test_a_model_without_its_run_folder_gets_causes_and_float_as_the_only_cure(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _, noisy, _, _ = quantized(tmp_path, models.conv_chain(), chain(), "percentile:50")
    (tmp_path / "alone.onnx").write_bytes(serialize(noisy))
    command = ["sensitivity", str(tmp_path / "alone.onnx"), "--samples", str(tmp_path / "s.npz")]
    assert run([*command, "--json"]) == 0
    rows = {row["node"]: row for row in json.loads(capfd.readouterr().out)["data"]["nodes"]}
    assert rows["conv1"]["cause"]["kind"] == "clipped"
    assert {cure["what"] for row in rows.values() for cure in row["cures"]} == {"float"}
    assert run(command) == 0
    assert "clipped: " in capfd.readouterr().out


@given(
    st.lists(st.tuples(st.floats(1e-9, 1), st.floats(1e-9, 1)), min_size=2, max_size=20),
)
@settings(max_examples=25, deadline=None)
def test_a_gain_lies_within_its_interval_and_is_that_of_the_sums(pairs: list[tuple[float, float]]) -> None:
    before, after = zip(*pairs, strict=True)
    cure = record_gain("it", (), before, after)
    assert cure.gain_db is not None
    assert cure.gain_low is not None
    assert cure.gain_high is not None
    assert cure.gain_db == pytest.approx(10 * math.log10(sum(before) / sum(after)))
    ratios = [10 * math.log10(old / new) for old, new in pairs]
    assert min(ratios) - 1e-6 <= cure.gain_low <= cure.gain_high <= max(ratios) + 1e-6


def test_a_change_that_leaves_no_noise_helps_without_a_figure() -> None:
    cure = record_gain("it", (), (0.1, 0.2), (0.0, 0.0))
    assert cure.gain_db is None
    assert cure.helps
    assert not record_gain("it", (), (0.0,), (0.0,)).helps


@pytest.mark.parametrize("recipe", ["weights-only-int8", "llm-int4-weights"])
def test_stored_weights_alone_are_refused_with_the_way_out(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = models.save(models.matmuls(), tmp_path)
    written = tmp_path / "few_bits.onnx"
    settings = ["--samples", "random:4", "--recipe", recipe, "--set", "build.sm=[120]"]
    assert run(["quantize", str(model), "-o", str(written), *settings]) == 0
    capsys.readouterr()
    assert run(["sensitivity", str(written), *settings]) == 2
    stderr = " ".join(capsys.readouterr().err.split())
    assert "cannot be switched: the model contains only their integer values" in stderr
    assert "pass the float model with the recipe" in stderr
    assert run(["sensitivity", str(model), *settings, "-o", str(tmp_path / "study")]) == 0
    study = SENSITIVITY.read(tmp_path / "study" / "sensitivity.json")
    assert study.curve[-1].int8_nodes == 0
    assert study.curve[-1].sqnr_db is None or study.curve[-1].sqnr_db > (study.whole.sqnr_db or 0) + 20
