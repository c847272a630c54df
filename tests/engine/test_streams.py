"""Files that come in pieces: packed ones, large ones, and any piece of text cut anywhere."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdqtool.core.kinds import ENGINE
from qdqtool.engine import layer_info, read, read_text
from qdqtool.engine.layer_info import DAMAGED, Window, lean
from qdqtool.errors import InputFileError
from qdqtool.io.text import TextSource, text_of
from tests.engine.records import CONV, QUANTIZE, dump

LAYER = {"Name": 'conv "1" + relu', "LayerType": "CaskConvolution", "Inputs": [], "Outputs": [], "Groups": 1}
TEXT = json.dumps({"Bindings": ["x", "y"], "Layers": [LAYER, {**LAYER, "Name": "second"}]})


def cut(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


@pytest.mark.parametrize("pack", [lzma.compress, gzip.compress, bz2.compress], ids=["xz", "gzip", "bzip2"])
def test_packed_files_are_read_as_they_are(tmp_path: Path, pack):
    path = tmp_path / "layers.json.packed"
    path.write_bytes(pack(TEXT.encode()))
    assert [layer.name for layer in read(path).layers] == ['conv "1" + relu', "second"]


def test_our_own_artefact_is_known_by_its_kind_though_that_comes_after_a_long_list_of_layers(tmp_path: Path):
    (tmp_path / "plain.json").write_text(
        json.dumps({"Layers": [{**LAYER, "Name": f"{n}"} for n in range(200)]})
    )
    engine = read(tmp_path / "plain.json")
    ENGINE.write(tmp_path / "layers.json", engine)
    assert (tmp_path / "layers.json").stat().st_size > 20_000
    assert read(tmp_path / "layers.json") == engine


def test_a_packed_file_that_is_cut_gives_its_whole_layers(tmp_path: Path):
    path = tmp_path / "layers.json.gz"
    many = json.dumps({"Layers": [{**LAYER, "Name": f"{n * n} {n:x}"} for n in range(2000)]})
    path.write_bytes(gzip.compress(many.encode())[:-4000])
    engine = read(path)
    assert 0 < len(engine.layers) < 2000
    assert engine.unread == 1


def test_windows_line_ends_and_nul_bytes_are_cleaned_wherever_pieces_are_cut(tmp_path: Path, monkeypatch):
    path = tmp_path / "log.txt"
    path.write_bytes("a\r\nb\0c\r\n\r".encode("utf-16"))
    monkeypatch.setattr("qdqtool.io.text.BLOCK", 3)
    assert "".join(TextSource(path).pieces()) == text_of(path) == "a\nbc\n\r"


def test_a_text_that_would_fill_the_memory_is_refused(tmp_path: Path, monkeypatch):
    path = tmp_path / "log.txt"
    path.write_text("hello\n" * 100)
    monkeypatch.setattr("qdqtool.engine.layer_info.LARGEST", 99)
    with pytest.raises(InputFileError, match="piece by piece"):
        read(path)


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 80))
def test_cuts_between_pieces_change_nothing(size: int):
    assert layer_info.read_json(cut(TEXT, size)) == layer_info.read_json([TEXT])


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 40), at=st.integers(0, 400), junk=st.text(max_size=5))
def test_cuts_between_pieces_change_nothing_in_damaged_files(size: int, at: int, junk: str):
    broken = TEXT[: at % len(TEXT)] + junk + TEXT[at % len(TEXT) :]
    whole, parts = layer_info.read_json([broken]), layer_info.read_json(cut(broken, size))
    assert (whole is None) == (parts is None)
    if whole is not None and parts is not None:
        assert [layer.name for layer in whole.layers] == [layer.name for layer in parts.layers]


def test_a_window_forgets_what_lies_behind():
    window = Window(f"{n}," for n in range(100_000))
    assert sum(value for value in window.values(layer_info._LAYER) if value is not DAMAGED) > 0
    assert len(window.text) < 100


def test_a_large_file_is_read_in_little_memory(tmp_path: Path):
    path = tmp_path / "large.json"
    layer = json.dumps({**LAYER, "Filler": ["x" * 1000] * 300})
    with path.open("w") as stream:
        stream.write('{"Layers": [7')
        for _ in range(100):
            stream.write(f",{layer}")
        stream.write('], "Other": "' + "y" * (20 << 20) + '"}')
    tracemalloc.start()
    try:
        engine = read(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(engine.layers) == 100
    assert peak < path.stat().st_size / 2


def test_of_a_long_log_only_the_lines_about_layers_are_kept(monkeypatch):
    monkeypatch.setattr("qdqtool.engine.layer_info._FULL", 1000)
    monkeypatch.setattr("qdqtool.engine.layer_info._STEP", 500)
    log = "[V] Running: something\n" * 200 + dump(QUANTIZE, CONV, bindings=("x",)) + "[V] bye\n" * 200
    kept = lean(cut(log, 333), Path("log"))
    assert kept.count("Running") < 50
    assert read_text(kept, where="kept").layers == read_text(log, where="log").layers


@pytest.mark.parametrize(
    ("name", "content"), [("x", b"ftrt\x00\x01"), ("x.plan", b"\x00"), ("x.engine", b"")]
)
def test_a_serialized_engine_is_told_from_a_description_of_one(tmp_path: Path, name: str, content: bytes):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputFileError, match="--exportLayerInfo"):
        read(tmp_path / name)
