"""Scales and zero points of every format with every fault: a finding or a clear error, and never a model that lint lets pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from zlib import crc32

import onnx
import pytest

from qdqtool.auditing.full_audit import audit
from qdqtool.cli.app import run
from qdqtool.core.advice import repair_commands, with_files
from qdqtool.core.findings import Severity
from qdqtool.core.target import Target
from qdqtool.core.tensors import DType
from qdqtool.errors import InputFileError, QdqError
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.view import Model
from qdqtool.pipeline import recipes
from qdqtool.pipeline.readback import read_back
from qdqtool.pipeline.repair import RepairRequest, repair_file
from qdqtool.placement.lint import lint
from qdqtool.placement.repair import repair
from qdqtool.prediction.predict import predict
from tests import models
from tests.advice import applied
from tests.audit.scenes import engine, kernel
from tests.placement.malformed import FORMATS, PLACES, cases, malformed

SM = {"fp8": "89", "nvfp4": "120", "mxfp8": "120"}
COMMANDS: dict[str, Callable[[Model, Target], object]] = {
    "lint": lint,
    "predict": predict,
    "repair": repair,
    "scales": lambda model, _: read_back(model.path),
    "audit": lambda model, _: audit(model, engine(kernel("k", "mm", precision=DType.FLOAT32))).verdicts,
}
GROUPS = [
    (format_, place) for format_ in FORMATS for place in PLACES if (format_, place, "nan") in set(cases())
]
BUILT = [case for case in cases() if crc32(repr(case).encode()) % 12 == 0]
"""One case of twelve is built here; all 660 were once, in a process each."""


def _target(format_: str) -> Target:
    return Target(sm=(SM.get(format_, "86"),))


def _loaded(proto: onnx.ModelProto, folder: Path) -> Model | None:
    """The model; None where it is no valid ONNX."""
    try:
        return load(models.save(proto, folder))
    except QdqError:
        return None


def _errors(model: Model, target: Target) -> list[str]:
    return [found.code for found in lint(model, target).findings if found.severity is Severity.ERROR]


def _faults(format_: str, place: str) -> Iterator[str]:
    return (fault for one, at, fault in cases() if (one, at) == (format_, place))


@pytest.mark.parametrize(
    ("format_", "place"),
    [pytest.param(*group, marks=() if group[0] == "int8" else pytest.mark.slow) for group in GROUPS],
)
def test_every_command_ends_in_words(format_: str, place: str, tmp_path: Path) -> None:
    for fault in _faults(format_, place):
        path, target = models.save(malformed(format_, place, fault), tmp_path), _target(format_)
        for name, command in COMMANDS.items():
            try:
                command(load(path), target)
            except QdqError:
                continue
            except Exception as error:
                raise AssertionError(f"{name} of {format_}, {place}: {fault}") from error


@pytest.mark.parametrize(("format_", "place", "fault"), BUILT)
def test_a_repair_names_every_error_that_it_leaves(
    format_: str, place: str, fault: str, tmp_path: Path
) -> None:
    path, out = models.save(malformed(format_, place, fault), tmp_path), tmp_path / "repaired.onnx"
    order = RepairRequest(model=path, out=out, samples="", labels=None, recipe=recipes.load(None))
    try:
        report = repair_file(order)
    except QdqError:
        assert not out.exists()
        return
    named = {left.what.split(":")[0] for left in report.remaining if left.refused}
    assert named == set(_errors(load(out), Target()))


def test_a_repair_that_leaves_an_error_ends_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = models.save(malformed("fp8", "x_s", "nan"), tmp_path)
    assert run(["repair", str(path), "-o", str(tmp_path / "r.onnx"), "--samples", "none"]) == 1
    assert "error: TensorRT refuses the written model at 'x/Q': QDQ103" in " ".join(
        capsys.readouterr().err.split()
    )


@pytest.mark.parametrize(("format_", "place", "fault"), BUILT)
def test_a_command_that_an_error_prints_removes_it(
    format_: str, place: str, fault: str, tmp_path: Path
) -> None:
    model, target = _loaded(malformed(format_, place, fault), tmp_path), _target(format_)
    for finding in lint(model, target).findings if model is not None else ():
        for command in repair_commands(with_files(finding.fix, str(model.path if model else ""))):
            if model is None or finding.severity is not Severity.ERROR:
                continue
            try:
                after = applied(command, model, target)
            except InputFileError as refusal:
                assert "scale" in refusal.what  # noqa: PT017 -- weights that are no numbers have no other end
                continue
            left = {(other.rule, other.node) for other in lint(after, target).findings}
            assert (finding.rule, finding.node) not in left, command


@pytest.mark.rtx
@pytest.mark.slow
@pytest.mark.parametrize(("format_", "place", "fault"), BUILT)
def test_lint_finds_an_error_where_the_builder_refuses(
    format_: str, place: str, fault: str, tmp_path: Path
) -> None:
    pytest.importorskip("tensorrt_rtx", reason="needs the extra rtx")
    from tests.placement.building import build

    proto, target = malformed(format_, place, fault), _target(format_)
    refused = build(proto, f"sm{target.sm[0]}").error
    try:
        errors = _errors(load(models.save(proto, tmp_path)), target)
    except QdqError:
        return  # no valid ONNX
    assert errors or not refused, refused


@pytest.mark.parametrize("format_", FORMATS)
def test_the_models_without_a_fault_are_clean(format_: str, tmp_path: Path) -> None:
    model, target = load(models.save(FORMATS[format_](), tmp_path)), _target(format_)
    assert _errors(model, target) == []
