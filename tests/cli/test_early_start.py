"""The process that checks models is started before a command's imports, where the command will open a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from qdqtool.cli.options import with_common
from qdqtool.graph.onnx_io import passes


@pytest.mark.parametrize(
    ("name", "is_there", "is_started"),
    [
        ("model.onnx", True, True),
        ("model.onnx", False, False),
        ("network.py", True, False),
        ("model.pt2", True, False),
    ],
)
def test_it_is_started_for_files_that_onnx_will_read(
    name: str, is_there: bool, is_started: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = []
    monkeypatch.setattr(passes, "warm_up", lambda: events.append("started"))

    def command(model: str) -> None:
        events.append(model)

    path = tmp_path / name
    if is_there:
        path.touch()
    with_common(command)(model=str(path), verbose=False, wide=False, max_memory=None)
    assert events == [*(["started"] if is_started else []), str(path)]
