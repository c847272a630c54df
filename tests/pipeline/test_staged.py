"""Subsets of the quantized nodes of a model, run in stages that runs share."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdqtool.core.calibration import NodeShift
from qdqtool.core.recipe import InsertOptions, PlacementOptions
from qdqtool.core.weights import RoundedWeight, WeightChanges
from qdqtool.errors import InputFileError
from qdqtool.graph.instrumented.stages import StagedModel
from qdqtool.graph.onnx_io import walk
from qdqtool.graph.onnx_io.save import serialize
from qdqtool.graph.onnx_io.walk import declaration, is_heavy
from qdqtool.graph.qdq.changes import shiftable
from qdqtool.graph.qdq.encode import encode
from qdqtool.graph.qdq.insert import insert
from qdqtool.graph.typed.emulate import emulate_types
from qdqtool.graph.view import Model
from qdqtool.pipeline.search import switched as module
from qdqtool.pipeline.search.switched import StagedRunner
from qdqtool.placement.decide import decide
from qdqtool.runtime.runner import open_runner
from tests import models
from tests.graph.placing import opened, placement_for, table_for

BUILDERS: dict[str, Callable[[], onnx.ModelProto]] = {
    "a residual network": models.residual_cnn,
    "attention": models.attention,
    "transposed convolutions": models.unet,
}
PLAIN = InsertOptions()


@cache
def prepared(name: str) -> tuple[Model, Model]:
    """The float model and the Q/DQ model."""
    proto = BUILDERS[name]()
    model = opened(proto, Path(mkdtemp(prefix="qdqtool-test-")))
    placement = placement_for(model)
    return model, insert(model, placement, table_for(model, placement, models.feeds(proto)), PLAIN)


def naive(name: str, on: Collection[str]) -> Model:
    """The model in which only these nodes read quantized values, as insertion writes it."""
    model, _ = prepared(name)
    placement = placement_for(model)
    table = table_for(model, placement, models.feeds(BUILDERS[name]()))
    kept = tuple(entry for entry in placement.decisions if entry.slot.node in on)
    return insert(model, replace(placement, decisions=kept), table, PLAIN)


def outputs(runner: StagedRunner, feeds: list[dict[str, np.ndarray]], on: Collection[str]) -> list[dict]:
    ((_, found),) = runner.run(feeds, {"it": frozenset(on)})
    return list(found)


def recorded(runner: StagedRunner) -> list[range]:
    """The parts that this runner opens from now on."""
    parts: list[range] = []
    inner = runner._open_form
    runner._open_form = lambda part, wanted: (parts.append(part), inner(part, wanted))[1]  # type: ignore[method-assign]
    return parts


def test_a_float_model_has_nothing_to_switch(tmp_path: Path) -> None:
    staged = StagedModel(opened(models.conv_chain(), tmp_path))
    assert staged.nodes == ()
    feeds = models.feeds(models.conv_chain())
    (found,) = outputs(StagedRunner(staged, "float"), [feeds], ())
    expected = open_runner(serialize(opened(models.conv_chain(), tmp_path)), description="float").run(feeds)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)


@given(data=st.data(), name=st.sampled_from(sorted(BUILDERS)), most=st.integers(1, 8))
@settings(max_examples=30, deadline=None)
def test_every_subset_gives_the_bits_of_its_model_opened_as_a_whole(
    data: st.DataObject, name: str, most: int
) -> None:
    _, quantized = prepared(name)
    staged = StagedModel(quantized, most=most)
    assert len(staged.stages) <= most
    runner = StagedRunner(staged, name, optimized=False)
    feeds = [models.feeds(BUILDERS[name](), 1, seed) for seed in (0, 1)]
    drawn = data.draw(st.lists(st.sets(st.sampled_from(staged.nodes)), min_size=1, max_size=4))
    subsets = {str(number): frozenset(nodes) for number, nodes in enumerate(drawn)}
    for key, found in runner.run(feeds, subsets):
        whole = open_runner(serialize(naive(name, subsets[key])), description="whole", optimized=False)
        for one, mine in zip(feeds, found, strict=True):
            for tensor, value in whole.run(one).items():
                np.testing.assert_array_equal(mine[tensor], value)


@given(data=st.data(), name=st.sampled_from(sorted(BUILDERS)), most=st.integers(1, 8))
@settings(max_examples=15, deadline=None)
def test_stages_of_an_optimized_model_give_the_bits_of_the_whole_one(
    data: st.DataObject, name: str, most: int
) -> None:
    """What a cut hands on, the whole model returns too: else onnxruntime would fuse across it."""
    _, quantized = prepared(name)
    staged = StagedModel(quantized, most=most)
    runner = StagedRunner(staged, name)
    on = frozenset(data.draw(st.sets(st.sampled_from(staged.nodes))))
    proto = naive(name, on).proto
    returned = {value.name for value in proto.graph.output}
    cuts = {tensor for stage in staged.stages for tensor in stage.outputs} - returned
    proto.graph.output.extend(declaration(quantized.proto, tensor) for tensor in sorted(cuts))
    whole = open_runner(proto.SerializeToString(), description="whole", threads=1)
    feeds = models.feeds(BUILDERS[name](), 1)
    (mine,) = outputs(runner, [feeds], on)
    expected = whole.run(feeds)
    for tensor in runner.outputs:
        np.testing.assert_array_equal(mine[tensor], expected[tensor])


@pytest.mark.parametrize("large", [0, 1 << 40], ids=["read in the file", "packed in memory"])
@pytest.mark.parametrize("name", BUILDERS)
def test_weights_in_a_file_change_nothing(
    name: str, large: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, quantized = prepared(name)
    feeds = [models.feeds(BUILDERS[name](), 1, seed) for seed in range(2)]
    held = StagedRunner(StagedModel(quantized, most=3), name)
    monkeypatch.setattr(module, "_FILED", 0)
    monkeypatch.setattr(module, "LARGE", large)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    filed = StagedRunner(StagedModel(quantized, most=3), name)
    subsets = {
        "float": frozenset[str](),
        **{node: frozenset({node}) for node in held.nodes},
        "all": frozenset(held.nodes),
    }
    for (_, left), (_, right) in zip(held.run(feeds, subsets), filed.run(feeds, subsets), strict=True):
        for one, other in zip(left, right, strict=True):
            assert all(np.array_equal(value, other[tensor]) for tensor, value in one.items())
    assert list(tmp_path.glob("*/stages.data"))
    del filed
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", BUILDERS)
def test_workers_change_nothing_but_the_time(name: str) -> None:
    _, quantized = prepared(name)
    feeds = [models.feeds(BUILDERS[name](), 1, seed) for seed in range(5)]
    one, two = (StagedRunner(StagedModel(quantized, most=3), name, workers=count) for count in (1, 2))
    for left, right in zip(outputs(one, feeds, one.nodes), outputs(two, feeds, two.nodes), strict=True):
        for tensor, value in left.items():
            np.testing.assert_array_equal(right[tensor], value)


def test_what_runs_share_is_run_once() -> None:
    _, quantized = prepared("a residual network")
    staged = StagedModel(quantized)
    runner = StagedRunner(staged, "counted")
    last = staged.stages[-1].switchable[-1]
    opened_parts = recorded(runner)
    feeds = models.feeds(models.residual_cnn())
    list(runner.run([feeds], {"float": frozenset(), "last": frozenset({last})}))
    assert [number for part in opened_parts for number in part] == [
        *range(len(staged.stages)),
        len(staged.stages) - 1,
    ]


def test_a_run_without_switches_goes_through_few_large_parts() -> None:
    _, quantized = prepared("a residual network")
    staged = StagedModel(quantized)
    assert len(staged.stages) > 4
    runner = StagedRunner(staged, "counted")
    opened_parts = recorded(runner)
    outputs(runner, [models.feeds(models.residual_cnn())], ())
    last = len(staged.stages)
    assert opened_parts == [range(first, min(first + 4, last)) for first in range(0, last, 4)]


def test_the_first_subset_comes_first() -> None:
    _, quantized = prepared("attention")
    runner = StagedRunner(StagedModel(quantized), "ordered")
    feeds = models.feeds(models.attention())
    subsets = {"none": frozenset[str](), "all": frozenset(runner.nodes)}
    assert next(runner.run([feeds], subsets))[0] == "none"
    assert {name for name, _ in runner.run([feeds], subsets)} == set(subsets)


@pytest.mark.parametrize("kept", [0, 1, 2, 3], ids=lambda count: f"{count} float in front, and the last")
def test_a_corrected_bias_is_switched_with_its_node_or_the_one_in_front(kept: int, tmp_path: Path) -> None:
    """A layer that stays float is corrected for what is quantized before it: where nothing is, it is the float network's."""
    proto = models.residual_cnn()
    model = opened(proto, tmp_path)
    names = [node.name for node in model.view.nodes if node.op == "Conv"]
    left = [*names[:kept], *(names[-1:] if kept else [])]
    placement = decide(model.view, PlacementOptions(exclude=left))
    plain = table_for(model, placement, models.feeds(proto))
    channels = {
        node.name: len(model.view.constant(node.inputs[1]))
        for node in shiftable(model.view)
        if node.op == "Conv"
    }
    shifts = tuple(NodeShift(node=name, shift=(0.5,) * count) for name, count in channels.items())
    quantized = insert(model, placement, replace(plain, shifts=shifts), InsertOptions())
    runner = StagedRunner(StagedModel(quantized, shifts), "corrected")
    feeds = models.feeds(proto)
    for whole, on in ((model, ()), (quantized, runner.nodes)):
        expected = open_runner(serialize(whole), description="whole").run(feeds)
        (found,) = outputs(runner, [feeds], on)
        for name, value in found.items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-5)


def test_corrections_of_another_model_are_refused() -> None:
    _, quantized = prepared("a residual network")
    node = next(node.name for node in quantized.view.nodes if node.op == "Conv")
    with pytest.raises(InputFileError, match="no constant bias with 999"):
        StagedModel(quantized, [NodeShift(node=node, shift=(0.0,) * 999)])
    with pytest.raises(InputFileError, match="'elsewhere', which the model does not have"):
        StagedModel(quantized, [NodeShift(node="elsewhere", shift=(0.0,))])


def test_every_node_that_reads_dequantized_values_can_be_switched() -> None:
    _, quantized = prepared("a residual network")
    staged = StagedModel(quantized)
    weighted = [node.name for node in models.residual_cnn().graph.node if node.op_type in {"Conv", "Gemm"}]
    assert list(staged.nodes) == weighted
    assert staged.stuck == ()
    assert [name for stage in staged.stages for name in stage.switchable] == weighted


def test_weights_stored_as_integers_cannot_be_switched_and_are_named(tmp_path: Path) -> None:
    proto = models.conv_chain()
    model = opened(proto, tmp_path)
    placement = placement_for(model)
    table = table_for(model, placement, models.feeds(proto))
    staged = StagedModel(insert(model, placement, table, InsertOptions(weights="int8")))
    assert set(staged.stuck) == set(staged.nodes)


@pytest.mark.parametrize("format_", ["int8-weights", "int4-weights", "fp8", "nvfp4"])
def test_in_every_format_all_nodes_switch_between_the_float_network_and_the_quantized_one(
    format_: str, tmp_path: Path
) -> None:
    model = opened(models.matmuls(), tmp_path)
    feeds = models.feeds(models.matmuls())
    placement = decide(model.view, PlacementOptions(format=format_, skip_rules=("narrow", "gemv")))
    table = table_for(model, placement, feeds)
    quantized = insert(model, placement, table, InsertOptions(weights="stored"))
    staged = StagedModel(quantized, plain=model)
    runner = StagedRunner(staged, format_)
    assert staged.nodes
    assert staged.stuck == ()
    for whole, on in ((model, ()), (quantized, staged.nodes)):
        expected = open_runner(serialize(whole), description="whole").run(feeds)
        (values,) = outputs(runner, [feeds], on)
        for name, value in values.items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("types", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("format_", ["int8", "int8-weights", "int4-weights", "fp8"])
def test_sessions_read_large_weights_from_one_file_as_fp32(
    format_: str, types: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each session would dequantize or widen them into memory of its own."""
    monkeypatch.setattr(walk, "_HEAVY", 256)
    proto = models.matmuls()
    model = opened(proto, tmp_path)
    feeds = models.feeds(proto)
    placement = decide(model.view, PlacementOptions(format=format_, skip_rules=("narrow", "gemv")))
    table = table_for(model, placement, feeds)
    quantized = insert(model, placement, table, InsertOptions(weights="stored", types=types))
    staged = StagedModel(quantized, plain=model)
    stored = staged.stored(tmp_path)
    assert stored
    for number in range(len(staged.stages)):
        for on in (frozenset[str](), frozenset(staged.nodes)):
            source = staged.variant(range(number, number + 1), on, stored)
            emulation = emulate_types(source)
            graph = (onnx.load_from_string(source) if emulation is None else emulation[0].proto).graph
            readers = {name: node.op_type for node in graph.node for name in node.input}
            heavy = [tensor for tensor in graph.initializer if is_heavy(tensor) and tensor.name in readers]
            assert [tensor.name for tensor in heavy if tensor.data_type != onnx.TensorProto.FLOAT] == []
            assert {readers[tensor.name] for tensor in heavy} <= {"MatMul"}
    held = StagedRunner(StagedModel(quantized, plain=model), "held")
    monkeypatch.setattr(module, "_FILED", 0)
    filed = StagedRunner(StagedModel(quantized, plain=model), "filed")
    subsets = {"float": frozenset[str](), "all": frozenset(staged.nodes)}
    for (_, left), (_, right) in zip(held.run([feeds], subsets), filed.run([feeds], subsets), strict=True):
        assert all(np.array_equal(value, right[0][name]) for name, value in left[0].items())


def test_a_node_that_is_off_reads_weights_that_nobody_rounded(tmp_path: Path) -> None:
    """Of a model whose weights are rounded by layer outputs the float form is the float model."""
    plain, _ = prepared("a residual network")
    placement = placement_for(plain)
    feeds = models.feeds(models.residual_cnn())
    table = table_for(plain, placement, feeds)
    decided = next(entry for entry in placement.quantized if entry.slot.index == 1)
    weight = plain.view.constant(decided.tensor)
    assert weight is not None
    spec = decided.spec
    scale = np.full(weight.shape[spec.axis], np.abs(weight).max() / 127, np.float32)
    codes = encode(weight, scale, spec.format, spec.axis, None)
    moved = RoundedWeight(
        codes=np.where(codes > 0, codes - 1, codes), scale=scale, format=spec.format, axis=spec.axis
    )
    rounded = replace(table, weights=WeightChanges(rounded={decided.tensor: moved}))
    quantized = insert(plain, placement, rounded, PLAIN)
    runner = StagedRunner(StagedModel(quantized, plain=plain), "rounded")
    (found,) = outputs(runner, [feeds], ())
    expected = open_runner(serialize(plain), description="float").run(feeds)
    without = outputs(StagedRunner(StagedModel(quantized), "as it is held"), [feeds], ())[0]
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6)
    assert any(not np.allclose(without[name], value, rtol=1e-3) for name, value in expected.items())


@pytest.mark.parametrize("name", [*BUILDERS])
def test_sizes_that_shapes_give_are_those_that_a_run_sees(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, quantized = prepared(name)
    staged = StagedModel(quantized, most=4)
    feeds = models.feeds(BUILDERS[name](), batch=1)
    seen: dict[str, int] = {}
    runner = StagedRunner(staged, name)
    runner._walk(
        [feeds],
        {"": frozenset()},
        lambda states: seen.update({key: array.nbytes for key, array in states[0].items()}),
    )
    known = staged.sizes({key: array.shape for key, array in feeds.items()})
    assert known is not None
    inside = known.keys() - set(staged.outputs)
    assert {key: seen[key] for key in inside} == {key: known[key] for key in inside}
    assert all(known[key] >= seen[key] for key in known)
    monkeypatch.setattr(StagedRunner, "_walk", None)  # nothing is run for it
    assert StagedRunner(staged, name).together(feeds) == 32
