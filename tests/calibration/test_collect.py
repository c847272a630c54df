"""Collecting histograms: right, whatever the batch, the order, the threads or an interruption."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from calibrators.histogram import histogram_of, merge
from qdqtool.calibration.collect import Collection, activations, collect
from qdqtool.calibration.histograms import (
    Histograms,
    Span,
    load_histograms,
    merge_files,
    merge_parts,
    parse_shard,
    save_histograms,
)
from qdqtool.calibration.pool import CollectOptions, CollectorPool
from qdqtool.calibration.samples import open_samples
from qdqtool.core.placement import Placement, SharedScale
from qdqtool.core.protocols import Sample
from qdqtool.errors import InputFileError, UsageError
from qdqtool.graph.view import Model
from tests import models
from tests.calibration.material import images, opened, placed
from tests.shared import ROOT


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return opened(models.residual_cnn(), tmp_path)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return images(tmp_path, 11, (3, 16, 16))


def gathered(model: Model, text: str, **options: object) -> Histograms:
    return collect(model, placed(model), open_samples(text, model.view.inputs), **options)  # type: ignore[arg-type]


def test_no_placement_collects_nothing(model: Model, data: Path) -> None:
    found = collect(model, Placement(decisions=(), ties=()), open_samples(str(data), model.view.inputs))
    assert (found.tensors, found.samples) == ({}, 11)


def test_histograms_are_those_of_the_fetched_values(model: Model, data: Path) -> None:
    found = gathered(model, str(data))
    rows = np.load(data)["x"]
    assert found.tensors["x"] == histogram_of(rows)
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    names = [name for name in activations(placed(model)) if name != "x"]
    proto.graph.output.extend(onnx.helper.make_tensor_value_info(name, 1, None) for name in names)
    for name in names:
        seen = [models.run(proto, {"x": row[None]})[name] for row in rows]
        assert found.tensors[name] == histogram_of(np.stack(seen)), name


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_number_of_threads_changes_nothing(model: Model, data: Path, threads: int) -> None:
    assert (
        gathered(model, str(data), options=CollectOptions(threads=threads)).tensors
        == gathered(model, str(data)).tensors
    )


def test_samples_with_much_to_fetch_share_the_processors(tmp_path: Path) -> None:
    sketch = models.Sketch()
    x = sketch.node("Relu", [sketch.input("x", [1, 1 << 14, 1 << 12])], "large", name="relu")
    sketch.output(sketch.node("MatMul", [x, sketch.weight("w", 1 << 12, 2)], "y", name="mm"), [1, 1 << 14, 2])
    model = opened(sketch.model(), tmp_path)
    large = CollectorPool(model, ("large",), CollectOptions(threads=4))
    assert (large.workers, large.threads) == (1, 4)
    small = CollectorPool(model, ("y",), CollectOptions(threads=4))
    assert (small.workers, small.threads) == (4, 1)


def test_what_lies_side_by_side_in_a_file_changes_nothing(model: Model, data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    rows = np.load(data)["x"]
    for start, stop in ((0, 4), (4, 5), (5, 11)):
        np.savez(folder / f"{start:02}.npz", x=rows[start:stop])
    assert gathered(model, str(folder)).tensors == gathered(model, str(data)).tensors


def test_the_order_of_samples_changes_nothing(model: Model, data: Path, tmp_path: Path) -> None:
    turned = tmp_path / "turned.npz"
    np.savez(turned, x=np.load(data)["x"][::-1])
    assert gathered(model, str(turned)).tensors == gathered(model, str(data)).tensors


def test_progress_counts_samples(model: Model, data: Path) -> None:
    told: list[tuple[int, int | None]] = []
    gathered(model, str(data), on_progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (11, 11)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_extremes_alone_agree_with_the_full_histograms(model: Model, data: Path) -> None:
    quick, full = gathered(model, str(data), options=CollectOptions(bins=False)), gathered(model, str(data))
    for name, histogram in full.tensors.items():
        assert (quick.tensors[name].low, quick.tensors[name].high) == (histogram.low, histogram.high)
        assert not quick.tensors[name].has_bins


def test_a_fixed_batch_with_a_rest_counts_every_sample_once(tmp_path: Path) -> None:
    proto = models.conv_chain()
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 4
    model = opened(proto, tmp_path)
    data = images(tmp_path, 10, (8, 8, 8))
    found = gathered(model, str(data))
    assert found.samples == 10
    assert found.tensors["x"] == histogram_of(np.load(data)["x"])
    assert found.tensors["relu1_y"].total == 10 * 8 * 8 * 8


def test_copies_that_fill_a_batch_are_left_out_of_the_second_axis_too(tmp_path: Path) -> None:
    sketch = models.Sketch()
    x = sketch.node("Transpose", [sketch.input("x", [4, 8, 6])], "steps", perm=[1, 0, 2])
    sketch.output(sketch.node("MatMul", [x, sketch.weight("w", 6, 5)], "y", name="mm"), [8, 4, 5])
    model = opened(sketch.model(), tmp_path)
    data = images(tmp_path, 10, (8, 6))
    placement = placed(model)
    assert "steps" in activations(placement)
    found = gathered(model, str(data))
    assert found.tensors["steps"] == histogram_of(np.load(data)["x"])


class Plain:
    """A source of somebody else: it only keeps the protocol."""

    description, meaningful, digest = "plain", True, "plain"

    def __init__(self, rows: np.ndarray) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Sample]:
        return (Sample(name=str(number), feeds={"x": row}) for number, row in enumerate(self.rows))


def test_a_source_that_only_keeps_the_protocol_is_run_as_it_feeds(tmp_path: Path) -> None:
    proto = models.conv_chain()
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 4
    model = opened(proto, tmp_path)
    rows = np.random.default_rng(0).standard_normal((3, 4, 8, 8, 8)).astype(np.float32)
    found = collect(model, placed(model), Plain(rows))
    assert (found.samples, found.tensors["x"]) == (3, histogram_of(rows))


def test_an_empty_shard_replaces_what_lay_there(model: Model, data: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept.npz"
    one = open_samples(f"{data}[0:1]", model.view.inputs)
    Collection(model, placed(model), one, resumable=True).resume(Span(total=1), kept)
    found = Collection(model, placed(model), one, resumable=True).resume(
        Span(shard=1, shards=2, total=1), kept
    )
    assert load_histograms(kept).span == found.span
    assert found.samples == 0


def test_tied_tensors_are_collected_even_if_nobody_quantizes_them(model: Model) -> None:
    tie = SharedScale(tensors=("relu1_y", "add1_y"), rule="test", reason="")
    assert "add1_y" in activations(placed(model, (tie,)))


def poisoned(folder: Path, *where: int) -> Path:
    rows = np.load(images(folder, 5, (3, 16, 16)))["x"]
    for number in where:
        rows[number, 0, 0, :2] = [np.nan, np.inf]
    np.savez(folder / "bad.npz", x=rows)
    return folder / "bad.npz"


def test_nan_in_a_sample_is_named_with_tensor_sample_and_count(model: Model, tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match="input 'x' holds 2 NaN or Inf") as caught:
        gathered(model, str(poisoned(tmp_path, 3)))
    assert caught.value.where is not None
    assert caught.value.where.endswith("bad.npz[3]")


def test_samples_with_nan_can_be_left_out(model: Model, tmp_path: Path) -> None:
    samples = open_samples(str(poisoned(tmp_path, 1, 3)), model.view.inputs, on_nan="skip")
    found = collect(model, placed(model), samples)
    assert found.samples == 3
    assert len(samples.skipped) == 2
    assert all(histogram.nan == 0 for histogram in found.tensors.values())


def logarithm(folder: Path) -> Model:
    sketch = models.Sketch()
    x = sketch.node("Log", [sketch.input("x", ["N", 4])], "log_y", name="log")
    sketch.output(sketch.node("MatMul", [x, sketch.weight("w", 4, 4)], "y", name="mm"), ["N", 4])
    return opened(sketch.model(), folder)


def test_nan_made_by_the_model_is_named_with_tensor_sample_and_count(tmp_path: Path) -> None:
    model = logarithm(tmp_path)
    np.savez(tmp_path / "s.npz", x=np.array([[1, 2, 3, 4], [1, -2, 0, 4]], np.float32))
    with pytest.raises(InputFileError, match="tensor 'log_y' holds 2 NaN or Inf") as caught:
        gathered(model, str(tmp_path / "s.npz"))
    assert caught.value.where is not None
    assert caught.value.where.endswith("s.npz[1]")
    found = gathered(model, str(tmp_path / "s.npz"), options=CollectOptions(on_nan="skip"))
    assert (found.tensors["log_y"].nan, found.tensors["log_y"].inf, found.tensors["log_y"].total) == (1, 1, 6)


def test_the_tensor_in_which_nan_begins_is_named(tmp_path: Path) -> None:
    sketch = models.Sketch()
    x = sketch.node("Log", [sketch.input("x", ["N", 4])], "begins", name="log")
    x = sketch.node("MatMul", [x, sketch.weight("v", 4, 4)], "also", name="mm1")
    sketch.output(sketch.node("MatMul", [x, sketch.weight("w", 4, 4)], "y", name="mm2"), ["N", 4])
    np.savez(tmp_path / "s.npz", x=-np.ones((1, 4), np.float32))
    with pytest.raises(InputFileError, match="tensor 'begins' holds 4 NaN"):
        gathered(opened(sketch.model(), tmp_path), str(tmp_path / "s.npz"))


def test_a_model_that_fails_on_a_sample_names_it(tmp_path: Path) -> None:
    sketch = models.Sketch()
    x = sketch.node(
        "Reshape", [sketch.input("x", ["N", "K"]), sketch.constant("s", np.array([2, 2]))], "r", name="r"
    )
    sketch.output(sketch.node("MatMul", [x, sketch.weight("w", 2, 2)], "y", name="mm"), [2, 2])
    model = opened(sketch.model(), tmp_path)
    np.savez(tmp_path / "s.npz", x=np.ones((1, 5), np.float32))
    with pytest.raises(InputFileError, match="cannot run on this sample") as caught:
        gathered(model, str(tmp_path / "s.npz"))
    assert "random:16,x:AxB with numbers for A, B" in caught.value.fix


def test_shapes_that_depend_on_the_data_are_collected_too(tmp_path: Path) -> None:
    sketch = models.Sketch()
    x = sketch.node("NonZero", [sketch.input("x", ["N", "K"])], "where", name="nonzero")
    x = sketch.node("Cast", [x], "f", name="cast", to=1)
    sketch.output(sketch.node("MatMul", [sketch.weight("w", 3, 2), x], "y", name="mm"), [3, "M"])
    model = opened(sketch.model(), tmp_path)
    np.savez(tmp_path / "s.npz", x=np.array([[0, 1, 1], [0, 0, 1]], np.float32))
    assert gathered(model, str(tmp_path / "s.npz")).tensors["f"].total == 2 * 2 + 2 * 1


def test_the_file_of_histograms_keeps_everything_and_is_the_same_every_time(
    model: Model, data: Path, tmp_path: Path
) -> None:
    found = replace(gathered(model, str(data)), identity={"model": "a"})
    first, second = tmp_path / "a.npz", tmp_path / "b.npz"
    save_histograms(first, found)
    save_histograms(second, load_histograms(first))
    again = load_histograms(second)
    assert first.read_bytes() == second.read_bytes()
    assert again.tensors == found.tensors
    assert (again.samples, again.span, again.identity) == (11, found.span, {"model": "a"})


@pytest.mark.parametrize("damage", ["cut", "flipped", "text", "foreign", "pickle"])
def test_a_damaged_file_of_histograms_is_refused(
    damage: str, model: Model, data: Path, tmp_path: Path
) -> None:
    path = tmp_path / "h.npz"
    save_histograms(path, gathered(model, str(data)))
    content = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        content[300] ^= 0xFF
        path.write_bytes(content)
    elif damage == "text":
        path.write_text("hello")
    elif damage == "foreign":
        np.savez(path, about=np.zeros(3, np.uint8), counts=np.zeros((1, 4096), np.uint32))
    else:
        np.savez(path, about=np.array([{"a": 1}], dtype=object), counts=np.zeros(1))
    with pytest.raises(InputFileError):
        load_histograms(path)


def test_an_interrupted_collection_goes_on_where_it_stopped(model: Model, data: Path, tmp_path: Path) -> None:
    samples = open_samples(str(data), model.view.inputs)
    collection = Collection(model, placed(model), samples, resumable=True)
    kept, told = tmp_path / "kept.npz", []
    part = collection.run(Span(total=5))
    save_histograms(kept, replace(part, span=Span(total=11, done=5), identity=collection.identity()))
    found = collection.resume(Span(total=11), kept, on_progress=lambda done, _: told.append(done))
    assert told[0] == 6
    assert found.tensors == collection.run(Span(total=11)).tensors
    assert found.samples == 11
    assert load_histograms(kept).tensors == found.tensors


def test_histograms_of_another_model_or_other_samples_are_collected_anew(
    model: Model, data: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "kept.npz"
    samples = open_samples(str(data), model.view.inputs)
    Collection(model, placed(model), samples, resumable=True).resume(Span(total=11), kept)
    fewer = open_samples(f"{data}[0:4]", model.view.inputs)
    found = Collection(model, placed(model), fewer, resumable=True).resume(Span(total=4), kept)
    assert found.samples == 4


def test_a_file_in_the_way_is_not_destroyed(model: Model, data: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious.npz"
    precious.write_text("not ours")
    samples = open_samples(str(data), model.view.inputs)
    with pytest.raises(InputFileError, match="refusing to overwrite"):
        Collection(model, placed(model), samples, resumable=True).resume(Span(total=11), precious)
    assert precious.read_text() == "not ours"


KILLED = """
    import os, signal, sys
    from pathlib import Path
    import qdqtool.calibration.collect as collect
    from qdqtool.calibration.samples import open_samples
    from qdqtool.calibration.histograms import Span
    from qdqtool.graph.onnx_io.load import load
    from tests.calibration.material import placed

    folder, last_moment = Path(sys.argv[1]), int(sys.argv[2])
    moments = 0

    def moment():
        global moments
        moments += 1
        if moments == last_moment:
            os.kill(os.getpid(), 9)

    def saved(path, found, really=collect.save_histograms):
        moment()
        really(path, found)
        moment()

    def progressed(done, total):
        with open(folder / "told.txt", "a") as told:
            print(done, file=told)
        moment()

    collect.save_histograms = saved
    collect._SECONDS_PER_PART, collect._FIRST_PART = 0.0, 1
    model = load(folder / "model.onnx")
    samples = open_samples(str(folder / "11.npz"), model.view.inputs)
    job = collect.Collection(model, placed(model), samples, resumable=True)
    job.resume(Span(total=11), folder / "kept.npz", on_progress=progressed)
"""


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.slow
def test_kill_9_at_random_moments_loses_no_finished_part_and_counts_nothing_twice(
    seed: int, model: Model, data: Path, tmp_path: Path
) -> None:
    random = np.random.default_rng(seed)
    kept, told = tmp_path / "kept.npz", tmp_path / "told.txt"
    done = 0
    for _ in range(3):
        told.unlink(missing_ok=True)
        ended = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path), str(random.integers(2, 9))],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        )
        assert ended.returncode == -signal.SIGKILL
        assert int(told.read_text().split()[0]) == done + 1
        before, done = done, load_histograms(kept).span.done if kept.exists() else 0
        assert before <= done <= 11
    collection = Collection(model, placed(model), open_samples(str(data), model.view.inputs), resumable=True)
    whole, found = collection.run(Span(total=11)), collection.resume(Span(total=11), kept)
    assert (found.tensors, found.samples) == (whole.tensors, whole.samples)


def shards_of(model: Model, data: Path, folder: Path, count: int) -> list[Path]:
    collection = Collection(model, placed(model), open_samples(str(data), model.view.inputs), resumable=True)
    paths = [folder / f"part-{number}.npz" for number in range(count)]
    for number, path in enumerate(paths):
        collection.resume(Span(shard=number, shards=count, total=11), path)
    return paths


@pytest.mark.parametrize("count", [1, 3, 11, 13])
def test_merged_shards_are_bit_identical_to_one_pass(
    model: Model, data: Path, tmp_path: Path, count: int
) -> None:
    paths = shards_of(model, data, tmp_path, count)
    whole = tmp_path / "whole.npz"
    collection = Collection(model, placed(model), open_samples(str(data), model.view.inputs), resumable=True)
    collection.resume(Span(total=11), whole)
    together = tmp_path / "together.npz"
    save_histograms(together, merge_files(reversed(paths)))
    assert together.read_bytes() == whole.read_bytes()


def test_a_missing_doubled_foreign_or_unfinished_shard_is_refused(
    model: Model, data: Path, tmp_path: Path
) -> None:
    first, second, third = (load_histograms(path) for path in shards_of(model, data, tmp_path, 3))
    wrong = {
        "1 of 3 shards are missing, first 2/3": {"a": first, "c": third},
        "and a holds the same shard": {"a": first, "b": first, "c": third},
        "different models": {"a": first, "b": replace(second, identity={**second.identity, "model": "x"})},
        "was interrupted": {"a": first, "b": replace(second, span=replace(second.span, done=1)), "c": third},
        "but a holds shard 1/3": {"a": first, "b": replace(second, span=replace(second.span, shards=4))},
        "there are no histograms to merge": {},
    }
    for words, parts in wrong.items():
        with pytest.raises(InputFileError, match=words):
            merge_parts(parts)


def test_a_shard_does_not_overwrite_another_one(model: Model, data: Path, tmp_path: Path) -> None:
    paths = shards_of(model, data, tmp_path, 2)
    before = paths[0].read_bytes()
    collection = Collection(model, placed(model), open_samples(str(data), model.view.inputs), resumable=True)
    with pytest.raises(InputFileError, match="shard 1/2"):
        collection.resume(Span(shard=1, shards=2, total=11), paths[0])
    assert paths[0].read_bytes() == before


@pytest.mark.parametrize("text", ["0/3", "4/3", "x", "1/0", "1", "-1/2"])
def test_an_impossible_shard_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a shard"):
        parse_shard(text)


def test_a_shard_is_named_from_one() -> None:
    assert parse_shard("2/8") == (1, 8)


def test_merging_keeps_the_law_of_histograms(model: Model, data: Path, tmp_path: Path) -> None:
    parts = [load_histograms(path) for path in shards_of(model, data, tmp_path, 2)]
    together = merge_parts({"a": parts[0], "b": parts[1]})
    for name, histogram in together.tensors.items():
        assert histogram == merge(parts[0].tensors[name], parts[1].tensors[name])


def blocky(folder: Path) -> Model:
    """Convolutions wide enough for onnxruntime to compute them in blocks of channels, whole and filled up."""
    sketch = models.Sketch()
    x = sketch.input("x", ["N", 16, 8, 8])
    for number, channels in enumerate((32, 24, 32)):
        before = (16, 32, 24)[number]
        weight = sketch.weight(f"w{number}", channels, before, 1, 1)
        y = sketch.node("Conv", [x, weight], f"conv{number}", name=f"n{number}")
        gate = sketch.node("Sigmoid", [y], f"gate{number}", name=f"s{number}")
        x = sketch.node("Mul", [y, gate], f"silu{number}", name=f"m{number}")
    x = sketch.node("MaxPool", [x], "pooled", name="pool", kernel_shape=[2, 2], strides=[2, 2])
    sketch.output(
        sketch.node("Conv", [x, sketch.weight("w3", 32, 32, 1, 1)], "y", name="last"), ["N", 32, 4, 4]
    )
    return opened(sketch.model(), folder)


def test_tensors_computed_in_blocks_of_channels_are_counted_right(tmp_path: Path) -> None:
    model, data = blocky(tmp_path), images(tmp_path, 5, (16, 8, 8))
    found = gathered(model, str(data))
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    names = [name for name in activations(placed(model)) if name != "x"]
    assert names
    proto.graph.output.extend(onnx.helper.make_tensor_value_info(name, 1, None) for name in names)
    seen = [models.run(proto, {"x": row[None]}) for row in np.load(data)["x"]]
    for name in names:
        assert found.tensors[name] == histogram_of(np.stack([values[name] for values in seen])), name
