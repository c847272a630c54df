"""The user's own configuration may be missing in every way; where it cannot be read, that is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from qdqtool.cli import options
from qdqtool.errors import InputFileError


def test_a_home_that_is_a_file_holds_no_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As HOME=/dev/null, which service accounts have: it ended in an internal error."""
    home = tmp_path / "file"
    home.touch()
    monkeypatch.setattr(options, "configuration", lambda: home / "qdqtool" / "config.yaml")
    assert not options.is_trusted()


def test_a_configuration_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "configuration", lambda: tmp_path)
    with pytest.raises(InputFileError) as caught:
        options.is_trusted()
    assert caught.value.where == str(tmp_path)
