"""Text of any packing, encoding and line end is read as one and the same text, however the bytes come in."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from qdqtool.errors import InputFileError, MissingPackage, SystemFault
from qdqtool.io import text
from qdqtool.io.text import TextSource, decode, text_of

LINES = "Name: a, LayerType: conv\nName: b\u00e9, LayerType: gemm\n"


def zipped(*contents: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, content in enumerate(contents):
            archive.writestr(f"job/{number}_build.txt", content)
    return out.getvalue()


PACKINGS = {
    "plain": bytes,
    "xz": lzma.compress,
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "zip": zipped,
    "zstd": zstandard.compress,
}


class Dribble(io.RawIOBase):
    """A pipe that hands out a few bytes at a time."""

    def __init__(self, content: bytes, size: int) -> None:
        self._left, self._size = content, size

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        count = min(self._size, len(self._left) if size < 0 else size)
        piece, self._left = self._left[:count], self._left[count:]
        return piece


@pytest.mark.parametrize("pack", PACKINGS.values(), ids=PACKINGS)
def test_a_packed_file_is_read_as_its_text(tmp_path: Path, pack):
    path = tmp_path / "build.log.packed"
    path.write_bytes(pack(LINES.encode()))
    assert text_of(path) == LINES
    assert b"".join(TextSource(path).blocks()).decode() == LINES


@settings(max_examples=60, deadline=None)
@given(
    packing=st.sampled_from(sorted(PACKINGS)),
    encoding=st.sampled_from(("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32")),
    end=st.sampled_from(("\n", "\r\n")),
    size=st.integers(1, 40),
)
def test_packing_encoding_line_ends_and_the_size_of_reads_change_nothing(packing, encoding, end, size):
    content = PACKINGS[packing](LINES.replace("\n", end).encode(encoding))
    assert "".join(TextSource(Dribble(content, size)).pieces()) == LINES
    assert b"".join(TextSource(Dribble(content, size)).blocks()).decode() == LINES


@settings(max_examples=100, deadline=None)
@given(st.text(st.sampled_from("a\x1b[0m]\x07;\r\n\0"), max_size=60), st.integers(1, 20))
def test_terminal_escapes_are_taken_out_wherever_reads_are_cut(words: str, size: int):
    whole = "".join(TextSource(io.BytesIO(words.encode())).pieces())
    assert "".join(TextSource(Dribble(words.encode(), size)).pieces()) == whole
    assert "\x1b" not in whole


def test_all_files_of_a_zip_archive_are_read_in_order():
    assert decode(zipped(b"one\n", b"two\n")) == "one\ntwo\n"
    assert (
        decode(zipped(b"\xef\xbb\xbfone", b"\xef\xbb\xbftwo", "three".encode("utf-16"))) == "one\ntwo\nthree"
    )


def test_the_metadata_of_macos_in_an_archive_is_no_text():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("build.log", "one\n")
        archive.writestr("__MACOSX/._build.log", b"\0\5\26\7Mac OS X        ")
    assert decode(out.getvalue()) == "one\n"


@pytest.mark.parametrize("packing", sorted(PACKINGS.keys() - {"plain"}))
def test_a_cut_packed_file_gives_what_is_whole_and_says_so(packing: str):
    many = "".join(f"{number * number:x}\n" for number in range(9000)).encode()
    source = TextSource(io.BytesIO(PACKINGS[packing](many)[:-2000]))
    found = b"".join(source.blocks())
    # The table of a zip archive stands at its end: without it, no member can be found.
    assert many.startswith(found[:-1])
    assert source.notes[0] == packing
    # zstd cannot tell a cut frame from the end of the stream.
    assert packing == "zstd" or "damaged" in source.notes[1]


def test_zstd_without_its_package_names_what_to_install(monkeypatch):
    def absent(name: str):
        raise ImportError(name)

    monkeypatch.setattr(text, "import_module", absent)
    with pytest.raises(MissingPackage, match="zstandard") as caught:
        decode(zstandard.compress(b"x"))
    assert "qdqtool[zstd]" in caught.value.fix


def test_a_missing_file_is_named():
    with pytest.raises(InputFileError) as caught:
        text_of(Path("missing.log"))
    assert caught.value.where == "missing.log"


def test_a_text_that_would_fill_the_memory_is_refused(tmp_path: Path, monkeypatch):
    (tmp_path / "a.log").write_text("x" * 100)
    monkeypatch.setattr(text, "LARGEST", 99)
    with pytest.raises(InputFileError, match="piece by piece"):
        text_of(tmp_path / "a.log")


@pytest.mark.parametrize("pack", [pack for name, pack in PACKINGS.items() if name != "plain"])
def test_what_unpacks_to_a_thousand_times_its_size_is_refused(
    tmp_path: Path, pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three kilobytes of bzip2 held gigabytes of empty lines, and kept `parse` and `audit` busy for minutes."""
    monkeypatch.setattr(text, "_UNPACKED", 1 << 16)
    monkeypatch.setattr(text, "_TIMES", 100)
    bomb, log = tmp_path / "bomb", tmp_path / "log"
    bomb.write_bytes(pack(b"\n" * (1 << 20)))
    with pytest.raises(InputFileError, match="100 times its"):
        list(TextSource(bomb).blocks())
    lines = b"".join(b"%x\n" % (number * 7919**2) for number in range(20_000))
    log.write_bytes(pack(lines))
    assert b"".join(TextSource(log).blocks()) == lines


def test_archives_whose_members_are_one_and_the_same_are_bounded_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "_UNPACKED", 1 << 16)
    monkeypatch.setattr(text, "_TIMES", 100)
    path = tmp_path / "many.zip"
    path.write_bytes(zipped(*[b"\n" * (1 << 15)] * 100))
    with pytest.raises(InputFileError, match="100 times its"):
        list(TextSource(path).blocks())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_an_archive_for_which_there_is_no_room_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table stands at an archive's end, so that it is kept on the disk; a full one made it an empty log."""
    path = tmp_path / "log.zip"
    path.write_bytes(zipped(LINES.encode()))
    with Path("/dev/full").open("r+b", buffering=0) as full:
        monkeypatch.setattr(text.tempfile, "TemporaryFile", lambda: full)
        with pytest.raises(SystemFault, match="no space is left"):
            list(TextSource(path).blocks())
