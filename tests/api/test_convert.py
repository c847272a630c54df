"""convert: the second place is the file to write, which a type is not."""

from __future__ import annotations

from pathlib import Path

import pytest

import qdqtool
from qdqtool.errors import UsageError
from tests.shared import ROOT

DIGITS = ROOT / "recipes" / "examples" / "digits" / "digits.onnx"


@pytest.mark.parametrize("kind", ["fp16", "bf16"])
def test_a_type_in_the_place_of_the_file_is_told_and_nothing_is_written(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=f"types='{kind}'"):
        qdqtool.convert(DIGITS, kind)
    assert not list(tmp_path.iterdir())
    assert qdqtool.convert(DIGITS, types=kind).conversion.dtype.value == kind.replace("fp16", "fp16")
