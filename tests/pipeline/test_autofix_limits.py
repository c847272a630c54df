"""fix within limits: labels, a builder without kernels, the budget, and ties that an edit breaks."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

from qdqtool.backends import BUILDERS
from qdqtool.backends.building.failures import NoKernelError
from qdqtool.cli.app import run
from qdqtool.core.calibration import CalibrationTable, TensorRange
from qdqtool.core.fixes import SlotEdit
from qdqtool.core.placement import Decision, Placement, QuantSpec, SharedScale, Slot, SlotKind
from qdqtool.core.protocols import Sample
from qdqtool.core.recipe import PrepareOptions, Recipe
from qdqtool.errors import SystemFault
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.preparation.prepare import prepare
from qdqtool.pipeline.autofix import builder as candidate_builder
from qdqtool.pipeline.autofix.drafts import Placed, Ranges, Resolved
from qdqtool.pipeline.recipes import change_recipe
from qdqtool.pipeline.recipes import load as load_recipe
from qdqtool.placement.decide import decide
from tests import models
from tests.accuracy.stand_ins import Given
from tests.audit.graphs import GRAPHS, Quantized
from tests.placement import graphs


@pytest.fixture
def rtx():
    """Building needs TensorRT for RTX."""
    return pytest.importorskip("tensorrt_rtx", reason="needs tensorrt-rtx (pip install 'qdqtool[rtx]')")


def fixed(capsys, model: Path, *more: str) -> dict:
    capsys.readouterr()
    line = ["fix", str(model), "--json", "--out", str(model.with_name("out")), *more]
    assert run(line) == 0
    data: dict = json.loads(capsys.readouterr().out)["data"]
    return data


def of(report: dict, subject: str) -> list[tuple[str, str]]:
    return [(trial["outcome"], trial["why"]) for trial in report["trials"] if trial["subject"] == subject]


def classifier() -> onnx.ModelProto:
    """The largest mean of channels 1 to 4 is the class; the activation of the convolution has no Q/DQ."""
    s = Quantized()
    values = np.zeros((4, 8, 1, 1), np.float32)
    values[np.arange(4), np.arange(1, 5)] = 1
    weight = s.qdq("c1_w", s.constant("c1_w", values), np.full(4, 1 / 127), 0)
    y = s.node("Conv", [s.input("x", [1, 8, 4, 4]), weight], "c1_y", name="c1")
    y = s.node("GlobalAveragePool", [y], "mean", name="mean")
    s.output(s.node("Flatten", [y], "logits", name="flat"), [1, 4])
    return s.model()


def labelled(folder: Path, outlier: float) -> list[str]:
    """Twenty samples with one channel that is `outlier` times as large as the others, and their classes."""
    random = np.random.default_rng(0)
    x = random.standard_normal((20, 8, 4, 4)).astype(np.float32)
    classes = x[:, 1:5].mean(axis=(2, 3)).argmax(axis=1)
    x[:, 0] *= outlier
    np.savez(folder / "samples.npz", x=x)
    np.save(folder / "labels.npy", classes)
    labels = ["--labels", str(folder / "labels.npy"), "--set", "compare.task=classify"]
    return ["--samples", str(folder / "samples.npz"), *labels]


@pytest.mark.rtx
@pytest.mark.usefixtures("rtx")
@pytest.mark.parametrize(("outlier", "outcome"), [(1.0, "kept"), (3000.0, "undone")])
def test_with_labels_the_task_metric_decides(outlier: float, outcome: str, tmp_path: Path, capsys):
    model = models.save(classifier(), tmp_path)
    report = fixed(capsys, model, *labelled(tmp_path, outlier), "--max-drop", "5")
    assert (report["metric"], report["before"]["accuracy"]) == ("top1", 100.0)
    assert of(report, "c1")[0][0] == outcome
    assert report["after"]["accuracy"] >= 95
    if outcome == "undone":
        assert of(report, "c1")[0][1].startswith("top1 would fall from 100 to")


class Picky:
    """TensorRT for RTX, but without an INT8 kernel for some nodes, as other targets are."""

    def __init__(self, *nodes: str) -> None:
        self.nodes = nodes
        self.builds = 0
        self.rtx = BUILDERS.load("rtx")

    def load(self, _name: str) -> Picky:
        return self

    def version(self) -> str:
        return str(self.rtx.version())

    def build(self, request, on_progress=None):
        self.builds += 1
        view = load(request.model).view
        for name in self.nodes:
            makers = [view.producer(tensor) for tensor in view.by_name[name].inputs]
            if any(maker is not None and maker.op == "DequantizeLinear" for maker in makers):
                raise NoKernelError("Could not find any implementation", fix="keep it float", node=name)
        return self.rtx.build(request, on_progress)


def picky(monkeypatch: pytest.MonkeyPatch, *nodes: str) -> Picky:
    builder = Picky(*nodes)
    monkeypatch.setattr(candidate_builder, "BUILDERS", builder)
    return builder


@pytest.mark.rtx
@pytest.mark.usefixtures("rtx")
def test_a_node_without_a_kernel_loses_its_pairs_and_the_search_goes_on(tmp_path: Path, capsys, monkeypatch):
    """c2 has no kernel; c3 is a fallback that can be fixed, which is found although the first build was refused."""
    s = Quantized()
    x = s.relu("r1", s.qconv("c1", s.input("x", [1, 8, 16, 16])))
    x = s.relu("r2", s.qconv("c2", x))
    s.output(s.relu("r3", s.qconv("c3", x, weight=False)), [1, 8, 16, 16])
    builder = picky(monkeypatch, "c2")
    report = fixed(capsys, models.save(s.model(), tmp_path), "--samples", "none")
    outcome, why = of(report, "c2")[0]
    assert outcome == "kept"
    assert "with these Q/DQ the builder finds no implementation" in why
    assert of(report, "c3")[0][0] == "kept"
    assert (report["before"]["int8"], report["after"]["int8"]) == (1, 2)
    # The first engine is the one that was asked about; its second attempt and the trials of c3 and of FP16 count.
    assert report["builds"] == builder.builds - 1 == 3
    view = load(tmp_path / "out" / "model.qdq.onnx").view
    assert view.by_name["c2"].inputs[0] == "r1_y"


@pytest.mark.rtx
@pytest.mark.usefixtures("rtx")
def test_engines_without_a_kernel_count_against_the_budget(tmp_path: Path, capsys, monkeypatch):
    builder = picky(monkeypatch, "c1", "c2", "c3")
    model = models.save(GRAPHS["fine"](), tmp_path)
    line = ["fix", str(model), "--samples", "none", "--out", str(tmp_path / "out")]
    assert run([*line, "--budget", "2"]) == 4
    assert builder.builds == 3
    assert "Could not find any implementation" in capsys.readouterr().err


@pytest.mark.rtx
@pytest.mark.usefixtures("rtx")
def test_a_full_disk_ends_the_search_and_is_no_verdict_on_an_edit(tmp_path: Path, capsys, monkeypatch):
    """It used to be read as an edit that cannot be applied, and the search delivered what it then gave up."""
    builder = picky(monkeypatch)
    build = builder.build

    def full(request, on_progress=None):
        if builder.builds:
            raise SystemFault(
                "no space is left on the disk", fix="free some space", where=str(request.folder)
            )
        return build(request, on_progress)

    monkeypatch.setattr(builder, "build", full)
    model = models.save(GRAPHS["float_activation"](), tmp_path)
    assert run(["fix", str(model), "--samples", "none", "--out", str(tmp_path / "out")]) == 5
    assert "no space is left on the disk" in capsys.readouterr().err
    assert not (tmp_path / "out" / "fixes.json").exists()


def joined(small: float) -> onnx.ModelProto:
    """Two convolutions of which one gives values `small` times as large; a Concat gives both one scale."""
    s = Quantized()
    x = s.input("x", [1, 8, 8, 8])
    values = (small * s.random.standard_normal((8, 8, 1, 1))).astype(np.float32)
    weight = s.qdq("c2_w", s.constant("c2_w", values), small / 40)
    large = s.relu("r1", s.qconv("c1", x, kernel=1))
    little = s.relu("r2", s.node("Conv", [s.qdq("c2_x", x), weight], "c2_y", name="c2"))
    parts = [s.qdq("large", large, 0.05), s.qdq("little", little, 0.05)]
    s.node("Concat", parts, "cat_y", name="cat", axis=1)
    s.output("cat_y", [1, 16, 8, 8])
    return s.model()


@pytest.mark.rtx
@pytest.mark.usefixtures("rtx")
def test_no_trial_begins_when_the_time_is_used_up(tmp_path: Path, capsys):
    model = models.save(GRAPHS["float_weight"](), tmp_path)
    report = fixed(capsys, model, "--samples", "none", "--time-budget", "0")
    assert report["builds"] == 0
    assert of(report, "c2")[0] == ("not tried", "the 0 seconds of --time-budget are used up")


class Killed(BaseException):
    """Ends the process in the test, as a kill does: nobody catches it."""


@pytest.mark.rtx
@pytest.mark.usefixtures("rtx")
def test_a_killed_search_goes_on_with_what_it_had_built(tmp_path: Path, capsys, monkeypatch):
    model = models.save(GRAPHS["float_weight"](), tmp_path)
    before, out = model.read_bytes(), tmp_path / "out"
    line = ["fix", str(model), "--samples", "none", "--out", str(out)]

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as context:
        context.setattr("qdqtool.pipeline.autofix.run._deliver", die)
        with pytest.raises(Killed):
            run(line)
    built = {entry.name: entry.stat().st_mtime_ns for entry in (out / ".builds").iterdir()}
    assert len(built) == 2
    with monkeypatch.context() as context:
        context.setattr("qdqtool.pipeline.autofix.run.FIXES", SimpleNamespace(write=die))
        with pytest.raises(Killed):
            run(line)
    assert {entry.name: entry.stat().st_mtime_ns for entry in (out / ".builds").iterdir()} == built
    assert run(line) == 0
    assert "continues an earlier search in" in capsys.readouterr().err
    assert not (out / ".builds").exists()
    assert model.read_bytes() == before
    assert run(["audit", str(out), "--fail-on", "warning", "--ignore", "fp16_off"]) == 0
    assert run(line) == 2


@pytest.mark.rtx
@pytest.mark.usefixtures("rtx")
@pytest.mark.parametrize(
    ("small", "count", "outcomes"), [(0.05, 6, ["kept"]), (0.05, 1, ["undone"]), (1.0, 6, [])]
)
def test_branches_of_very_different_size_get_scales_of_their_own_if_samples_show_a_gain(
    small: float, count: int, outcomes: list[str], tmp_path: Path, capsys
):
    proto = joined(small)
    model = models.save(proto, tmp_path)
    (tmp_path / "samples").mkdir()
    for seed in range(count):
        np.savez(tmp_path / "samples" / f"{seed}.npz", **models.feeds(proto, seed=seed, batch=1))
    report = fixed(capsys, model, "--samples", str(tmp_path / "samples"))
    assert [outcome for outcome, _ in of(report, "cat")] == outcomes
    if outcomes == ["kept"]:
        assert report["after"]["accuracy"] > report["before"]["accuracy"]
        assert report["after"]["kernels"] <= report["before"]["kernels"]


@pytest.mark.rtx
@pytest.mark.usefixtures("rtx")
def test_values_that_overflow_fp16_are_named_after_a_fix_too(tmp_path: Path, capsys):
    s = models.Sketch()
    x = s.relu("r1", s.conv("c1", s.input("x", [1, 8, 8, 8]), (8, 8)))
    x = s.node("Mul", [x, s.constant("huge", np.float32(1e6))], "large", name="scaling")
    x = s.node("Mul", [x, s.constant("tiny", np.float32(1e-6))], "small", name="back")
    proto = models_with(s, s.relu("r2", s.conv("c2", x, (8, 8))))
    model, samples = models.save(proto, tmp_path), tmp_path / "samples.npz"
    np.savez(samples, **models.feeds(proto, seed=0, batch=1))
    old, new = tmp_path / "run", tmp_path / "run-fixed"
    assert (
        run(
            [
                "run",
                str(model),
                "--samples",
                str(samples),
                "--out",
                str(old),
                "--set",
                "insert.types=fp16",
                "--set",
                "insert.overflow=keep",
            ]
        )
        == 0
    )
    assert run(["fix", str(old), "--samples", str(samples)]) == 0
    notes = [json.loads((folder / "insertion.json").read_text())["data"]["notes"] for folder in (old, new)]
    assert any("large" in note for note in notes[0])
    assert notes[0] == notes[1]


def models_with(sketch: models.Sketch, result: str) -> onnx.ModelProto:
    sketch.output(result, [1, 8, 8, 8])
    return sketch.model()


def test_an_edit_that_gives_a_branch_its_own_range_unties_it(tmp_path: Path):
    s = models.Sketch()
    x = s.input("x", [1, 4, 8, 8])
    parts = [s.relu(f"r{number}", x) for number in range(3)]
    s.output(s.node("Concat", parts, "y", name="cat", axis=1), [1, 12, 8, 8])
    decisions = tuple(
        Decision(
            slot=Slot(node="cat", index=index),
            tensor=name,
            op="Concat",
            kind=SlotKind.ACTIVATION,
            quantize=True,
            spec=QuantSpec(),
            opinions=(),
        )
        for index, name in enumerate(parts)
    )
    placement = Placement(
        decisions=decisions, ties=(SharedScale(tensors=tuple(parts), rule="concat", reason="one scale"),)
    )
    table = CalibrationTable(ranges=tuple(TensorRange(tensor=name, amax=(2.0,)) for name in parts))
    draft = Placed(load(models.save(s.model(), tmp_path)), placement, table, Recipe())
    own = SlotEdit(slot=Slot(node="cat", index=1), scales=(0.5 / 127,))
    assert [tie.tensors for tie in draft.plan({}).placement.ties] == [("r0_y", "r1_y", "r2_y")]
    assert [tie.tensors for tie in draft.plan({own.slot: own}).placement.ties] == [("r0_y", "r2_y")]


def test_ranges_of_many_inputs_take_one_pass_over_the_samples(tmp_path: Path):
    proto = models.conv_chain(19)
    model = load(models.save(proto, tmp_path))
    feeds = [models.feeds(proto, seed=seed, batch=1) for seed in range(3)]

    class Counted(Given):
        passes = 0

        def __iter__(self):
            self.passes += 1
            return super().__iter__()

    samples = Counted([Sample(name=str(number), feeds=one) for number, one in enumerate(feeds)])
    edits = [SlotEdit(slot=Slot(node=name, index=0), scales=None) for name in ("conv1", "conv2")]
    found = Ranges(model, samples).resolve(edits)
    assert isinstance(found, Resolved)
    assert samples.passes == 1
    largest = max(float(np.abs(one["x"]).max()) for one in feeds)
    assert found.edits[0].scales == (pytest.approx(largest / 127),)
    assert Ranges(model, samples).resolve(edits) == found


@pytest.mark.parametrize(
    "make", [models.depthwise_cnn, models.unet, models.silu_cnn, models.attention, graphs.excite]
)
@pytest.mark.parametrize("target", ["rtx", "10"])
def test_a_setting_that_is_kept_places_again(make, target: str, tmp_path: Path) -> None:
    """A setting that makes nodes float is followed: `fix` delivers what `run` makes of its recipe."""
    model = prepare(load(models.save(make(), tmp_path)), PrepareOptions())
    recipe = load_recipe("conv-int8", ["build.sm=86", f"place.target={target}"])
    settings = ("insert.types=fp16",)
    placement = decide(model.view, recipe.placing)
    draft = Placed(model, placement, CalibrationTable(ranges=()), recipe)
    after = decide(model.view, change_recipe(recipe, settings).placing)
    kept = {decision.slot for decision in draft.plan({}, settings).placement.quantized}
    before = {decision.slot for decision in placement.quantized}
    assert kept == before & {decision.slot for decision in after.quantized}
    assert {decision.slot for decision in draft.plan({}).placement.quantized} == before
