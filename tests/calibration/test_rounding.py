"""Weights rounded by the noise they make at the output of their layer: never a worse layer, and written as chosen."""

from __future__ import annotations

import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrators.weights import DAMPING, output_errors, round_columns, up_or_down
from qdqtool.calibration import rounding
from qdqtool.calibration.collect import collect
from qdqtool.calibration.moments import Moments, moments, parts
from qdqtool.calibration.rounding import WeightRounding, layers_of, round_weights, weight_share
from qdqtool.calibration.samples import Samples, open_samples
from qdqtool.calibration.table import make_table
from qdqtool.cli.app import run
from qdqtool.core.calibration import CalibrationTable
from qdqtool.core.kinds import CALIBRATION
from qdqtool.core.placement import Placement, Slot
from qdqtool.core.recipe import CalibrationOptions, InsertOptions, PlacementOptions
from qdqtool.errors import InputFileError, UsageError
from qdqtool.graph.instrumented.probe import probe
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.onnx_io.save import save, serialize
from qdqtool.graph.products import products
from qdqtool.graph.qdq.encode import decode, effective, encode
from qdqtool.graph.qdq.insert import assignment_of, insert
from qdqtool.graph.qdq.lift import lift
from qdqtool.graph.sparse import has_pattern, sparsify
from qdqtool.graph.view import Model
from qdqtool.placement.decide import decide
from qdqtool.runtime.runner import open_runner
from tests import models

PLACINGS = {
    "int8": PlacementOptions(),
    "int8 with one scale": PlacementOptions(per_channel=False),
    "fp8": PlacementOptions(format="fp8", sm=("89",)),
    "int4 weights": PlacementOptions(format="int4-weights", block=16),
    "int8 weights": PlacementOptions(format="int8-weights"),
    "nvfp4": PlacementOptions(format="nvfp4", sm=("120",)),
}
NAMES = ("conv_chain", "depthwise_cnn", "gemms", "matmuls", "attention", "silu_cnn")
Case = tuple[Model, Placement, CalibrationTable, Samples]


def case(
    folder: Path, name: str, options: PlacementOptions | None = None, count: int = 24, *, sparse: bool = False
) -> Case:
    proto = models.ALL[name]()
    model = load(models.save(proto, folder))
    model = sparsify(model)[0] if sparse else model
    rows = [models.feeds(proto, seed=seed, batch=1) for seed in range(count)]
    np.savez(folder / "s.npz", **{key: np.concatenate([row[key] for row in rows]) for key in rows[0]})
    samples = open_samples(str(folder / "s.npz"), model.view.inputs)
    placement = decide(model.view, options or PlacementOptions())
    histograms = collect(model, placement, samples)
    table = make_table(histograms, placement, model.view, CalibrationOptions(method="max"))
    return model, placement, table, samples


def rounded_case(
    found: Case, method: str, options: InsertOptions | None = None, widest: int | None = None
) -> CalibrationTable:
    model, placement, table, samples = found
    way = WeightRounding(method=method, widest=widest)
    return round_weights(model, placement, table, way, options or InsertOptions(), tuple(samples))


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    groups=st.integers(1, 3),
    rows=st.integers(1, 5),
    columns=st.integers(1, 12),
    step=st.sampled_from([0.05, 0.3, 1.0]),
)
def test_every_rounded_weight_is_on_the_grid_and_going_up_or_down_makes_no_row_noisier(
    seed: int, groups: int, rows: int, columns: int, step: float
) -> None:
    rng = np.random.default_rng(seed)
    inputs = rng.standard_normal((groups, 40, columns)) @ rng.standard_normal((groups, columns, columns))
    weights = rng.standard_normal((groups, rows, columns)).astype(np.float32)
    squares = (np.swapaxes(inputs, 1, 2) @ inputs / 40).astype(np.float32)

    def nearest(values: np.ndarray, _columns: object) -> np.ndarray:
        return np.rint(values / step).astype(np.float32) * np.float32(step)

    plain_made = nearest(weights, slice(None))
    descended = up_or_down(weights, squares, nearest, np.full((groups, rows, 1), step, np.float32))
    np.testing.assert_allclose(descended, nearest(descended, slice(None)), atol=1e-5 * step)
    assert np.abs(descended - weights).max() < step * 1.0001
    damped = (
        squares + DAMPING * np.eye(columns) * np.trace(squares, axis1=1, axis2=2)[:, None, None] / columns
    )
    # by row: the descent never goes up
    ends, starts = (output_errors(found - weights, damped) for found in (descended, plain_made))
    assert (ends <= starts * (1 + 1e-3) + 1e-6).all()
    made = round_columns(weights, squares, nearest)
    np.testing.assert_allclose(made, nearest(made, slice(None)))


def test_sums_of_outputs_are_less_noisy_on_average() -> None:
    # A single row may lose, since columns are chosen one by one.
    noise = plain = 0.0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        inputs = rng.standard_normal((40, 8)) @ rng.standard_normal((8, 8))
        squares = (inputs.T @ inputs / 40).astype(np.float32)[None]
        weights = rng.standard_normal((1, 3, 8)).astype(np.float32)
        made = round_columns(weights, squares, lambda values, _: np.rint(values).astype(np.float32))
        noise += float(output_errors(made - weights, squares).sum())
        plain += float(output_errors(np.rint(weights) - weights, squares).sum())
    assert noise < 0.7 * plain


def test_a_choice_of_two_weights_that_cancel_is_found() -> None:
    # Both inputs are the same, so only the sum of the errors counts: 0.4 + 0.4 is best rounded to 1 + 0.
    squares = np.ones((1, 2, 2), np.float32)
    weights = np.array([[[0.4, 0.4]]], np.float32)
    made = up_or_down(weights, squares, lambda values, _: np.rint(values), np.ones((1, 1, 1), np.float32))
    assert made.sum() == 1


def test_no_weight_is_moved_beyond_the_numbers_of_its_format() -> None:
    def nearest(values: np.ndarray, _columns: object) -> np.ndarray:
        return np.clip(np.rint(values), -1, 1).astype(np.float32)

    squares = np.full((1, 3, 3), 4.0, np.float32)
    weights = np.array([[[1.4, 1.4, 1.4]], [[-1.4, -1.4, -1.4]]], np.float32).reshape(1, 2, 3)
    made = up_or_down(weights, squares, nearest, np.ones((1, 2, 1), np.float32))
    np.testing.assert_array_equal(made, np.sign(weights))


@pytest.mark.parametrize(("groups", "rows", "columns"), [(1, 7, 300), (3, 2, 65), (2, 5, 128), (1, 1, 1)])
def test_rounding_makes_up_for_each_column_in_those_behind_it(groups: int, rows: int, columns: int) -> None:
    """As GPTQ says it, a column at a time: blocks of columns change nothing but the order of sums."""
    draw = np.random.default_rng(0)
    weights = draw.standard_normal((groups, rows, columns)).astype(np.float32)
    inputs = draw.standard_normal((groups, 2 * columns + 8, columns))
    inputs[:, :, 1:] += inputs[:, :, :-1]
    moments = np.swapaxes(inputs, 1, 2) @ inputs

    def nearest(values: np.ndarray, _: object) -> np.ndarray:
        return np.asarray(np.rint(values * 4) / 4, np.float32)

    expected = np.empty_like(weights)
    for group in range(groups):
        energies = np.diagonal(moments[group])
        order = np.argsort(-energies, kind="stable")
        damped = moments[group][np.ix_(order, order)] + DAMPING * energies.mean() * np.eye(columns)
        roots = np.linalg.cholesky(np.linalg.inv(damped)).T
        left = weights[group][:, order].astype(np.float64)
        for column in range(columns):
            chosen = nearest(left[:, column], None)
            error = (left[:, column] - chosen) / roots[column, column]
            left[:, column:] -= error[:, None] * roots[column, column:]
            expected[group][:, order[column]] = chosen
    made = round_columns(weights, moments, nearest)
    assert (made != expected).mean() < 0.01  # ties fall by the last bit


def test_weights_of_inputs_that_never_fire_go_to_the_nearest() -> None:
    weights = np.array([[[0.3, 0.7, -1.6]]], np.float32)
    made = round_columns(weights, np.zeros((1, 3, 3), np.float32), lambda values, _: np.rint(values))
    np.testing.assert_array_equal(made, np.rint(weights))


def test_moments_that_are_no_numbers_leave_weights_at_the_nearest() -> None:
    weights = np.array([[[0.3, 0.7]]], np.float32)
    made = round_columns(weights, np.full((1, 2, 2), np.nan, np.float32), lambda values, _: np.rint(values))
    np.testing.assert_array_equal(made, np.rint(weights))


@pytest.mark.parametrize("name", NAMES)
def test_rows_times_the_matrix_of_weights_are_what_the_layer_computes(name: str, tmp_path: Path) -> None:
    model, *_, samples = case(tmp_path, name, count=1)
    (sample,) = samples
    layers = products(model.view)
    assert layers
    wanted = [model.view.by_name[layer.node].outputs[0] for layer in layers]
    inputs = [layer.reading.tensor for layer in layers]
    source = probe(model, [*wanted, *inputs]).source
    values = open_runner(source, description="test").run(sample.feeds)
    for layer, output in zip(layers, wanted, strict=True):
        node, weight = model.view.by_name[layer.node], model.view.constant(layer.weight)
        assert weight is not None
        rows = layer.reading.rows(values[layer.reading.tensor], 1 << 30)
        computed = rows @ np.swapaxes(layer.matrix(weight), 1, 2)
        found = values[output]
        if len(node.inputs) > 2:
            bias = model.view.constant(node.inputs[2])
            assert bias is not None
            found = found - (
                node.attribute("beta", 1.0) * bias
                if node.op == "Gemm"
                else bias.reshape(1, -1, *[1] * (found.ndim - 2))
            )
        if node.op == "Conv":
            found = np.moveaxis(found, 1, -1)
        found = found / node.attribute("alpha", 1.0)
        flat = found.reshape(-1, layer.reading.groups, computed.shape[2])
        np.testing.assert_allclose(np.swapaxes(flat, 0, 1), computed, rtol=1e-3, atol=1e-4)
        np.testing.assert_array_equal(layer.constant(layer.matrix(weight)), weight)


@pytest.mark.parametrize("placing", PLACINGS)
@pytest.mark.parametrize(
    "widest", [None, pytest.param(16, marks=pytest.mark.slow)], ids=["whole", "in sections"]
)
@pytest.mark.parametrize("method", ["gptq", "adaround", "seqmse"])
@pytest.mark.parametrize("name", ["conv_chain", "depthwise_cnn", "attention"])
def test_layers_are_no_noisier_than_with_the_nearest(
    name: str, method: str, widest: int | None, placing: str, tmp_path: Path
) -> None:
    found = case(tmp_path, name, PLACINGS[placing])
    model, placement, table, samples = found
    layers = layers_of(model, placement, table, InsertOptions())
    made = rounded_case(found, method, widest=widest)
    assert (made.weights is not None) == bool(layers)
    total = [0.0, 0.0]
    for part in parts([layer.product for layer in layers]):
        seen = moments(model, part, tuple(samples))
        for product in part:
            value = model.view.constant(product.weight)
            assert value is not None
            assert made.weights is not None
            chosen = made.weights.rounded[product.weight]
            plain = next(layer.quantization for layer in layers if layer.product == product)
            assert plain.scale is not None
            steps = effective(plain.scale, plain.global_scale)
            stored = encode(value, steps, plain.format, plain.axis, plain.block)
            square = seen[product.reading].square
            for number, back in enumerate(
                (
                    decode(
                        chosen.codes, effective(chosen.scale, chosen.global_scale), chosen.axis, chosen.block
                    ),
                    decode(stored, steps, plain.axis, plain.block),
                )
            ):
                missed = np.ascontiguousarray(product.matrix(back - value))
                total[number] += float(output_errors(missed, square).sum())
    assert total[0] <= total[1] * (1.1 if method == "seqmse" else 1.001)


@pytest.mark.parametrize("weights", ["qdq", "stored"])
@pytest.mark.parametrize("types", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("placing", PLACINGS)
def test_the_model_holds_the_stored_values_that_were_chosen(
    placing: str, types: str, weights: str, tmp_path: Path
) -> None:
    found = case(tmp_path, "attention", PLACINGS[placing])
    model, placement, _, _ = found
    options = InsertOptions(types=types, weights=weights)  # type: ignore[arg-type]
    table = rounded_case(found, "gptq", options)
    written = insert(model, placement, table, options)
    save(written, tmp_path / "q.onnx")
    lifted, _ = lift(load(tmp_path / "q.onnx"))
    chosen = table.weights.rounded if table.weights else {}
    for decision in placement.quantized:
        if decision.tensor not in chosen:
            continue
        quantization = lifted.assignment[decision.slot]
        name = lifted.model.view.by_name[decision.slot.node].inputs[decision.slot.index]
        value = lifted.model.view.constant(name)
        assert value is not None
        assert quantization.scale is not None
        steps = effective(quantization.scale, quantization.global_scale)
        stored = encode(value, steps, quantization.format, quantization.axis, quantization.block)
        np.testing.assert_array_equal(stored.view(np.uint8), chosen[decision.tensor].codes.view(np.uint8))


def test_rounded_weights_survive_their_files(tmp_path: Path) -> None:
    found = case(tmp_path, "attention", PLACINGS["int4 weights"])
    table = rounded_case(found, "gptq")
    CALIBRATION.write(tmp_path / "calibration.json", table)
    back = CALIBRATION.read(tmp_path / "calibration.json")
    one, two = (insert(*found[:2], each, InsertOptions()) for each in (table, back))
    assert serialize(one) == serialize(two)
    first = (tmp_path / "calibration.weights.npz").read_bytes()
    CALIBRATION.write(tmp_path / "calibration.json", back)
    assert (tmp_path / "calibration.weights.npz").read_bytes() == first


def test_a_table_without_rounded_weights_leaves_no_file_of_an_earlier_one(tmp_path: Path) -> None:
    found = case(tmp_path, "gemms")
    CALIBRATION.write(tmp_path / "calibration.json", rounded_case(found, "gptq"))
    CALIBRATION.write(tmp_path / "calibration.json", found[2])
    assert not (tmp_path / "calibration.weights.npz").exists()


def test_a_file_of_the_user_beside_the_table_stays(tmp_path: Path) -> None:
    found = case(tmp_path, "gemms")
    beside = tmp_path / "calibration.weights.npz"
    np.savez(beside, about=np.zeros(3))
    content = beside.read_bytes()
    CALIBRATION.write(tmp_path / "calibration.json", found[2])
    with pytest.raises(UsageError, match=r"calibration\.weights\.npz"):
        CALIBRATION.write(tmp_path / "calibration.json", rounded_case(found, "gptq"))
    assert beside.read_bytes() == content


@pytest.mark.parametrize("harm", ["missing", "another", "truncated"])
def test_a_file_of_weights_that_is_not_the_named_one_is_an_error_that_names_it(
    harm: str, tmp_path: Path
) -> None:
    found = case(tmp_path, "gemms")
    CALIBRATION.write(tmp_path / "calibration.json", rounded_case(found, "gptq"))
    beside = tmp_path / "calibration.weights.npz"
    content = beside.read_bytes()
    beside.unlink()
    if harm != "missing":
        beside.write_bytes(content[:-9] if harm == "truncated" else content + b"0")
    with pytest.raises(InputFileError, match=r"calibration\.weights\.npz"):
        CALIBRATION.read(tmp_path / "calibration.json")


def test_a_weight_that_two_nodes_read_is_left_alone(tmp_path: Path) -> None:
    sketch = models.Sketch()
    x = sketch.input("x", ["N", 32])
    w = sketch.weight("w", 32, 32)
    sketch.node("MatMul", [x, w], "h", name="one")
    sketch.output(sketch.node("MatMul", ["h", w], "y", name="two"), ["N", 32])
    model = load(models.save(sketch.model(), tmp_path))
    placement = decide(model.view, PlacementOptions())
    values = np.random.default_rng(0).standard_normal((16, 32)).astype(np.float32)
    np.savez(tmp_path / "s.npz", x=values)
    samples = open_samples(str(tmp_path / "s.npz"), model.view.inputs)
    histograms = collect(model, placement, samples)
    table = make_table(histograms, placement, model.view, CalibrationOptions(method="max"))
    assert layers_of(model, placement, table, InsertOptions()) == ()
    assert Slot(node="two", index=1) in assignment_of(model, placement, table, InsertOptions())


@pytest.mark.parametrize("name", ["matmuls", "conv_chain"])
def test_moments_are_those_of_all_rows_however_few_a_sample_has(name: str, tmp_path: Path) -> None:
    model, _, _, samples = case(tmp_path, name, count=24)
    layers = products(model.view)
    found = moments(model, layers, tuple(samples))
    runner = open_runner(probe(model, [layer.reading.tensor for layer in layers]).source, description="test")
    for layer in layers:
        values = [runner.run(sample.feeds)[layer.reading.tensor] for sample in samples]
        rows = np.concatenate([layer.reading.rows(value, 1 << 30) for value in values], axis=1)
        seen = found[layer.reading]
        assert seen.rows == rows.shape[1] < 8192
        expected = np.swapaxes(rows, 1, 2).astype(np.float64) @ rows / rows.shape[1]
        np.testing.assert_allclose(seen.square, expected, rtol=1e-3, atol=1e-4 * expected.max())


@pytest.mark.parametrize("widest", [1, 9, 16, 40, 1000])
@pytest.mark.parametrize("name", ["matmuls", "conv_chain", "depthwise_cnn"])
def test_sections_hold_the_moments_of_their_columns(name: str, widest: int, tmp_path: Path) -> None:
    model, _, _, samples = case(tmp_path, name)
    layers, rows = products(model.view), tuple(samples)
    whole, split = moments(model, layers, rows), moments(model, layers, rows, widest=widest)
    for layer in layers:
        full, found = whole[layer.reading], split[layer.reading]
        width = found.square.shape[1]
        assert width == layer.columns or width <= widest
        np.testing.assert_allclose(found.energy, full.energy, rtol=1e-5)
        count = layer.columns // width
        blocks = [
            group[at * width : (at + 1) * width, at * width : (at + 1) * width]
            for group in full.square
            for at in range(count)
        ]
        np.testing.assert_allclose(found.square, blocks, rtol=1e-5, atol=1e-6)
        value = model.view.constant(layer.weight)
        assert value is not None
        matrix = layer.matrix(value)
        np.testing.assert_array_equal(found.joined(found.sections(matrix)), matrix)
        assert found.sections(matrix[:, :, :1]).shape == (len(blocks), matrix.shape[1], 1)


def test_parts_keep_the_moments_within_their_room(tmp_path: Path) -> None:
    layers = products(load(models.save(models.conv_chain(), tmp_path)).view)
    largest = max(4 * layer.columns**2 for layer in layers)
    assert [layer for part in parts(layers, largest) for layer in part] == list(layers)
    assert len(parts(layers, largest)) > 1
    assert len(parts(layers)) == 1
    assert parts(layers, 8) == []


def test_moments_too_large_for_two_layers_are_rounded_one_layer_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, pools = case(tmp_path, "attention"), []
    monkeypatch.setattr(rounding, "processors", lambda: 4)

    def watched(workers: int) -> ThreadPoolExecutor:
        pools.append(workers)
        return ThreadPoolExecutor(workers)

    monkeypatch.setattr(rounding, "ThreadPoolExecutor", watched)
    together = rounded_case(made, "gptq").weights
    monkeypatch.setattr(rounding, "ROOM", 1)
    alone = rounded_case(made, "gptq").weights
    assert pools == [4, 1]
    assert together is not None
    assert alone is not None
    for name, weight in together.rounded.items():
        np.testing.assert_array_equal(alone.rounded[name].codes, weight.codes)


def test_the_memory_of_rounding_is_what_its_number_of_layers_counts_on() -> None:
    values = np.random.default_rng(0).normal(size=(1, 2048, 512)).astype(np.float32)
    inputs = Moments(square=np.swapaxes(values, 1, 2) @ values, amax=np.abs(values).max(axis=1), rows=2048)
    tracemalloc.start()
    round_columns(values[:, :8], inputs.trusted, lambda some, _: np.rint(some))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    traced, kept_by_lapack = peak / inputs.square.nbytes, 2
    assert 1 + traced + kept_by_lapack <= rounding.COPIES + 0.1


@pytest.mark.slow
@pytest.mark.parametrize("rounding", ["nearest", "mse", "seqmse", "adaround", "gptq", "auto"])
def test_the_command_takes_every_rounding_and_its_table_says_the_method(
    rounding: str, tmp_path: Path
) -> None:
    case(tmp_path, "residual_cnn", count=40)
    out = tmp_path / "t.json"
    words = ["calibrate", str(tmp_path / "model.onnx"), "--samples", str(tmp_path / "s.npz"), "-o", str(out)]
    assert run([*words, "--set", f"weights.rounding={rounding}"]) == 0
    table = CALIBRATION.read(out)
    weights = {entry.method for entry in table.ranges if entry.axis is not None}
    expected = {
        "nearest": {"max"},
        "mse": {"mse"},
        "seqmse": {"seqmse"},
        "adaround": {"adaround"},
        "gptq": {"gptq"},
    }
    assert weights <= expected.get(rounding, {"max", "gptq"})
    assert bool(table.weights) == bool(weights & {"seqmse", "adaround", "gptq"})


def test_auto_rounds_where_the_outputs_gain_and_says_how_much(tmp_path: Path) -> None:
    case(tmp_path, "attention", count=80)
    out = tmp_path / "t.json"
    words = ["calibrate", str(tmp_path / "model.onnx"), "--samples", str(tmp_path / "s.npz"), "-o", str(out)]
    words += [
        "--recipe",
        "llm-int4-weights",
        "--set",
        "calibrate.method=auto",
        "--set",
        "weights.rounding=auto",
    ]
    assert run([*words, "--set", "place.block=16"]) == 0
    rounded_ones = [entry for entry in CALIBRATION.read(out).ranges if entry.method == "gptq"]
    assert rounded_ones
    assert all(entry.gain_db is not None and entry.gain_db > 0.3 for entry in rounded_ones)


@pytest.mark.parametrize("name", NAMES)
def test_the_share_of_weights_in_the_noise_grows_as_their_bits_get_fewer(name: str, tmp_path: Path) -> None:
    shares = {}
    for placing in ("int8", "int8 with one scale", "int8 weights"):
        model, placement, table, samples = case(tmp_path, name, PLACINGS[placing], count=4)
        layers = layers_of(model, placement, table, InsertOptions())
        histograms = collect(model, placement, samples)
        shares[placing] = weight_share(model.view, layers, placement, table, histograms)
        assert 0 <= shares[placing] <= 1
    assert shares["int8"] <= shares["int8 with one scale"] * 1.001
    assert shares["int8 weights"] in {0, 1}


@pytest.mark.parametrize("method", ["gptq", "adaround", "seqmse"])
@pytest.mark.parametrize(
    ("name", "format_"), [("conv_chain", "int8"), ("gemms", "fp8"), ("matmuls", "int4 weights")]
)
def test_the_pattern_of_sparse_weights_is_kept(name: str, format_: str, method: str, tmp_path: Path) -> None:
    found = case(tmp_path, name, PLACINGS[format_], sparse=True)
    model = found[0]
    made = rounded_case(found, method).weights
    assert made is not None
    known = {product.weight: product.input_axis for product in products(model.view)}
    seen = 0
    for tensor, entry in made.rounded.items():
        value = model.view.constant(tensor)
        assert value is not None
        if has_pattern(value, known[tensor]):
            seen += 1
            assert not entry.codes.astype(np.float32)[value == 0].any()
            assert has_pattern(entry.codes.astype(np.float32), known[tensor])
    assert seen
