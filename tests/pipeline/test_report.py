"""A run folder becomes a report again."""

from __future__ import annotations

from pathlib import Path

import pytest

from qdqtool.core import kinds
from qdqtool.errors import InputFileError
from qdqtool.pipeline.report import read_report
from qdqtool.report.assemble import assemble
from tests.report.material import AUDIT, FULL


def test_no_folder_and_an_empty_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match="not a folder"):
        read_report(tmp_path / "nowhere")
    with pytest.raises(InputFileError, match="no artefacts"):
        read_report(tmp_path)


def test_a_report_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    kinds.REPORT.write(tmp_path / "report.json", assemble(FULL))
    assert read_report(tmp_path) == assemble(FULL)


def test_without_a_report_the_artefacts_of_the_steps_make_one(tmp_path: Path) -> None:
    kinds.AUDIT.write(tmp_path / "findings.json", AUDIT)
    assert read_report(tmp_path).summary.nodes_int8 == 1


def test_a_damaged_artefact_is_refused_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text('{"kind": "report", "schema": 1, "data": {}}')
    with pytest.raises(InputFileError) as caught:
        read_report(tmp_path)
    assert caught.value.where == str(tmp_path / "report.json")


def test_the_command_that_settles_a_verdict_names_a_model_of_the_folder(tmp_path: Path) -> None:
    """A folder of `qdqtool fix` is no model, so its name cannot be typed as one."""
    kinds.AUDIT.write(tmp_path / "findings.json", AUDIT)
    for name in ("model.qdq.onnx", "model.prepared.onnx"):
        (tmp_path / name).touch()
        settle = read_report(tmp_path).summary.verdict.settle
        assert settle is not None
        assert settle.arguments[0] == str(tmp_path / name)
