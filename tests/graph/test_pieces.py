"""Reading weight by weight gives what protobuf gives, and refuses what breaks the wire format."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from qdqtool.graph.onnx_io.read import parse_in_pieces
from tests import models

WHOLE = models.residual_cnn().SerializeToString(deterministic=True)


def test_an_empty_file_is_an_empty_model(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"")
    assert parse_in_pieces(tmp_path / "m.onnx") == onnx.ModelProto()


def test_a_model_is_what_protobuf_reads(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(WHOLE)
    assert parse_in_pieces(tmp_path / "m.onnx") == onnx.ModelProto.FromString(WHOLE)


def test_a_graph_in_two_parts_is_merged_as_protobuf_does(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(WHOLE + WHOLE)
    assert parse_in_pieces(tmp_path / "m.onnx") == onnx.ModelProto.FromString(WHOLE + WHOLE)


@settings(deadline=None)
@given(cut=st.integers(1, len(WHOLE) - 1), flip=st.integers(0, len(WHOLE) - 1), value=st.integers(0, 255))
def test_damage_is_refused_or_read_as_protobuf_reads_it(
    tmp_path_factory: pytest.TempPathFactory, cut: int, flip: int, value: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.onnx"
    broken = bytearray(WHOLE)
    broken[flip] = value
    for content in (WHOLE[:cut], bytes(broken)):
        path.write_bytes(content)
        try:
            found = parse_in_pieces(path)
        except DecodeError:
            continue
        assert found == onnx.ModelProto.FromString(content)


@pytest.mark.parametrize(
    "content",
    [b"\x3f", b"\x80", b"\xff" * 11, b"\x3a\x05\x08"],
    ids=["unknown wire type", "endless number", "too long a number", "longer than the file"],
)
def test_what_breaks_the_wire_format_is_a_decoding_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(DecodeError):
        parse_in_pieces(tmp_path / "m.onnx")
