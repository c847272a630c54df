"""fix by measured time: a machine with trtexec decides instead of kernels and bytes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from onnx import numpy_helper

from qdqtool.cli.app import run
from qdqtool.core.fixes import FixOutcome, FixReport, FixTrial, SlotEdit
from qdqtool.core.kinds import FIXES
from qdqtool.core.placement import Slot
from qdqtool.errors import BuildError, MissingPackage, UsageError
from qdqtool.graph.onnx_io.load import load
from qdqtool.pipeline.autofix import clock
from qdqtool.pipeline.search.patterns import SlowerPatterns, pattern_of
from tests import models
from tests.audit.graphs import GRAPHS
from tests.backends.stand_in_trtexec import count_pairs, install

pytestmark = [pytest.mark.rtx, pytest.mark.usefixtures("rtx")]


@pytest.fixture
def rtx():
    """Building needs TensorRT for RTX."""
    return pytest.importorskip("tensorrt_rtx", reason="needs tensorrt-rtx (pip install 'qdqtool[rtx]')")


def line(folder: Path, on: str = "local") -> list[str]:
    """The command for a small graph, with a stand-in for trtexec in the folder. Quantizing c2 adds pairs."""
    trtexec = install(folder, 101600)
    words = ["fix", str(models.save(GRAPHS["float_weight"](), folder)), "--samples", "random:2"]
    return [*words, "--out", str(folder / "out"), "--on", on, "--trtexec", str(trtexec)]


def fixed(folder: Path, *more: str) -> FixReport:
    assert run([*line(folder), *more]) == 0
    return FIXES.read(folder / "out" / "fixes.json")


def test_an_edit_with_a_shorter_time_is_kept_with_its_interval(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("STAND_IN", "pairs-faster")
    report = fixed(tmp_path)
    (kept,) = report.journal.kept
    assert kept.what.startswith("c2")
    assert kept.gain is not None
    assert kept.gain > 0
    assert kept.low is not None
    assert kept.low > 0
    assert "ms instead of" in kept.why
    assert (report.journal.unit, report.journal.objective) == ("ms", "measured time of the engine (local)")
    assert any("GPU compute time by trtexec" in note for note in report.notes)
    assert not (tmp_path / "out" / ".builds").exists()
    assert f"{kept.gain:+.4f} ms" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("pairs-slower", "slower on local"),
        ("pairs-noisy", "no difference shown on local"),
        ("launches", "kernel launches are the bottleneck"),
    ],
)
def test_an_edit_without_a_shorter_time_is_undone(mode: str, why: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("STAND_IN", mode)
    report = fixed(tmp_path, "--budget", "1")
    timed = [trial for trial in report.trials if trial.why.startswith(why)]
    assert timed
    assert {trial.outcome for trial in timed} == {FixOutcome.UNDONE}
    assert all((trial.time is None) == (mode == "launches") for trial in timed)
    assert report.before == report.after


@pytest.mark.slow
def test_an_edit_without_an_engine_on_the_machine_is_undone(tmp_path: Path, monkeypatch) -> None:
    model = models.save(GRAPHS["float_weight"](), tmp_path)
    monkeypatch.setenv("STAND_IN", f"at-most-{count_pairs(str(model))}")
    report = fixed(tmp_path, "--budget", "1")
    assert "has no engine on local" in next(trial.why for trial in report.trials if trial.subject == "c2")
    assert report.journal.kept == ()


@pytest.mark.slow
def test_a_model_without_an_engine_on_the_machine_ends_the_search(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("STAND_IN", "no-kernel")
    assert run(line(tmp_path)) == BuildError.exit_code
    assert not (tmp_path / "out" / ".builds").exists()


class Killed(BaseException):
    """Ends the process in the test, as a kill does: nobody catches it."""


@pytest.mark.slow
@pytest.mark.parametrize("end", [Killed(), MissingPackage("cannot reach it", fix="try again")], ids=type)
def test_a_search_that_is_stopped_continues_with_its_times(
    end: BaseException, tmp_path: Path, monkeypatch, capsys
) -> None:
    """The second measurement is stopped; the first one is not repeated."""
    monkeypatch.setenv("STAND_IN", "pairs-slower")
    measured: list[Path] = []
    time_models = clock.time_models

    def measure(host, both, folder, trtexec, flags, shapes):
        if len(measured) == 1:
            measured.append(folder)
            raise end
        measured.append(folder)
        return time_models(host, both, folder, trtexec, flags, shapes=shapes)

    monkeypatch.setattr(clock, "time_models", measure)
    command = line(tmp_path)
    if isinstance(end, Killed):
        with pytest.raises(Killed):
            run(command)
    else:
        assert run(command) == MissingPackage.exit_code
    assert len(measured) == 2
    assert run(command) == 0
    assert "continues an earlier search" in capsys.readouterr().err
    assert measured[2] == measured[1] != measured[0]
    assert len(set(measured)) == len(measured) - 1


def test_the_plan_is_printed_and_nothing_is_written(tmp_path: Path, capsys) -> None:
    command = line(tmp_path, on="ssh://me@orin")
    assert run([*command, "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "ssh -o BatchMode=yes" in text
    assert "faster beyond the interval" in text
    assert not (tmp_path / "out").exists()
    assert run([*command[: command.index("--on")], "--dry-run"]) == UsageError.exit_code


def test_a_machine_without_trtexec_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    assert run([*line(tmp_path)[:-1], "/nowhere/trtexec"]) == MissingPackage.exit_code
    assert not (tmp_path / "out").exists()


def test_an_edit_that_was_slower_on_such_a_device_is_not_measured_again(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("STAND_IN", "pairs-slower")
    kept = str(tmp_path / "kept")
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho Orin\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    reports = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        reports.append(fixed(tmp_path / name, "--build-cache", kept))
    before, after = (_first(report) for report in reports)
    assert (before.outcome, after.outcome) == (FixOutcome.UNDONE, FixOutcome.NOT_TRIED)
    assert f"in an earlier search on such a device, this edit was {before.why}" in after.why
    for record in (tmp_path / "kept" / "patterns").iterdir():
        record.write_text("damaged")
    (tmp_path / "third").mkdir()
    assert _first(fixed(tmp_path / "third", "--build-cache", kept)).outcome is FixOutcome.UNDONE


def _first(report: FixReport) -> FixTrial:
    return next(trial for trial in report.trials if trial.edit == "quantize input 1 (one scale per channel)")


@pytest.mark.parametrize(
    ("change", "known"),
    [
        ({}, True),
        ({"device": "Xavier"}, False),
        ({"device": ""}, False),
        ({"release": "10.7.0"}, False),
        ({"flags": ("--useDLACore=0",)}, False),
    ],
)
def test_a_pattern_counts_for_its_device_release_and_flags(change: dict, known: bool, tmp_path: Path) -> None:
    about = {"device": "Orin", "release": "10.16.0", "flags": ()}
    patterns = {("input 0 of Conv (1x8)",): True, ("input 0 of Conv (freex8)",): False, (): False}
    first = SlowerPatterns(tmp_path, **about)
    for pattern in patterns:
        first.add(pattern, "slower on local")
    first.save()
    later = SlowerPatterns(tmp_path, **{**about, **change})
    assert {pattern: bool(later.recall(pattern)) for pattern in patterns} == {
        pattern: known and fixed_shape for pattern, fixed_shape in patterns.items()
    }


@pytest.mark.parametrize("other_name", [True, False])
def test_a_pattern_is_made_of_operators_and_shapes_and_not_of_names(other_name: bool, tmp_path: Path) -> None:
    model = models.residual_cnn()
    view = load(models.save(model, tmp_path)).view
    conv = next(node for node in view.nodes if node.op == "Conv" and view.producer(node.inputs[0]))
    if other_name:
        for node in model.graph.node:
            node.name = f"other_{node.name}"
    else:
        weight = next(tensor for tensor in model.graph.initializer if tensor.name == conv.inputs[1])
        weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight).repeat(2, axis=0), weight.name))
        del model.graph.value_info[:]
    name = f"other_{conv.name}" if other_name else conv.name
    slot = Slot(node=conv.name, index=0)
    before = pattern_of(view, [SlotEdit(slot=slot)])
    assert pattern_of(view, [SlotEdit(slot=slot)], {slot}) != before
    changed = load(models.save(model, tmp_path, "changed.onnx")).view
    assert (pattern_of(changed, [SlotEdit(slot=Slot(node=name, index=0))]) == before) is other_name
    assert pattern_of(changed, [SlotEdit(slot=Slot(node="nowhere", index=0))]) == ()
