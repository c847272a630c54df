"""Calibration caches: every byte kept, every generation read, wrong ones named."""

from __future__ import annotations

import json
import lzma
import math
import struct
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtool.calibration.caches import Cache, Entry, read_cache, write_cache
from qdqtool.calibration.caches.contents import (
    ORT_FLATBUFFERS,
    ORT_JSON,
    ORT_TEXT,
    TABLE,
    cache_of,
    differences,
    from_hex,
    make_header,
    merge_caches,
    parse_header,
    to_hex,
)
from qdqtool.calibration.caches.converting import for_onnxruntime, for_tensorrt, rename_entries, running_order
from qdqtool.calibration.caches.files import parse_text, read_pairs, render, write_pairs
from qdqtool.calibration.caches.linting import lint_cache
from qdqtool.core.calibration import CalibrationTable, TensorRange
from qdqtool.core.findings import Severity
from qdqtool.core.kinds import CALIBRATION
from qdqtool.core.tensors import FORMATS, DType
from qdqtool.errors import InputFileError, UsageError
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.qdq.find import find
from qdqtool.pipeline import recipes
from qdqtool.pipeline.readback import from_qdq, to_qdq
from qdqtool.trt.ops import PRODUCTS
from tests import models
from tests.calibration.material import opened
from tests.placement.building import quantized
from tests.shared import SHARED, shared

CORPUS = sorted((SHARED / "corpus" / "calib_cache").glob("*"))
TEXT = "TRT-8601-EntropyCalibration2\nx: 3c010a14\nlayer: conv 1: 3c008912\n"


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name[:50])
def test_every_cache_of_the_corpus_comes_back_byte_for_byte(path: Path, tmp_path: Path) -> None:
    cache = read_cache(path)
    assert cache.header is not None
    assert cache.entries
    assert not cache.unread
    write_cache(tmp_path / "copy", cache)
    assert (tmp_path / "copy").read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("line", "version", "algorithm"),
    [
        ("TRT-6001-EntropyCalibration2", (6, 0, 1), "EntropyCalibration2"),
        ("TRT-8203-MinMaxCalibration", (8, 2, 3), "MinMaxCalibration"),
        ("TRT-8612-EntropyCalibration2", (8, 6, 12), "EntropyCalibration2"),
        ("TRT-100300-EntropyCalibration2", (10, 3, 0), "EntropyCalibration2"),
        ("TRT-101600-MinMaxCalibration", (10, 16, 0), "MinMaxCalibration"),
        ("0 3ff0000000000000 3fefffeb074a771d", None, "LegacyCalibration"),
    ],
)
def test_headers_of_all_generations_are_read(
    line: str, version: tuple[int, ...] | None, algorithm: str
) -> None:
    header = parse_header(line)
    assert header is not None
    assert (header.version, header.algorithm) == (version, algorithm)


@pytest.mark.parametrize(
    "line", ["", "x: 3c010a14", "TRT-86-Entropy-2", "9 3ff0000000000000 3fefffeb074a771d"]
)
def test_other_lines_are_no_headers(line: str) -> None:
    assert parse_header(line) is None


@pytest.mark.parametrize("release", ["7.0.0", "8.6.1", "8.6.12", "10.3.0", "10.16.0"])
def test_a_header_that_is_made_is_read_back(release: str) -> None:
    header = make_header(release, "MinMaxCalibration")
    assert parse_header(header.text) == header
    assert header.version == tuple(int(word) for word in release.split("."))


@pytest.mark.parametrize(
    ("release", "algorithm", "words"),
    [
        ("11.0.0", "EntropyCalibration2", "cannot read"),
        ("eight", "EntropyCalibration2", "not a TensorRT release"),
        ("8", "EntropyCalibration2", "not a TensorRT release"),
        ("8.6.1", "Entropy", "not a calibrator"),
    ],
)
def test_an_impossible_header_is_refused(release: str, algorithm: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make_header(release, algorithm)


def test_published_scales_are_read_right() -> None:
    assert from_hex("3c010a14") * 127 == pytest.approx(2048.5 / 2048, abs=1e-6)
    assert from_hex("3c008912") * 127 == pytest.approx(2040.5 / 2048, abs=1e-6)
    assert (from_hex("3f800000"), from_hex("0")) == (1.0, 0.0)


@given(st.floats(width=32))
def test_a_float32_survives_its_hexadecimal_spelling(value: float) -> None:
    again = from_hex(to_hex(value))
    assert struct.pack(">f", again) == struct.pack(">f", value) or (math.isnan(value) and math.isnan(again))


NAMES = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\r\n"), min_size=1, max_size=12)


@given(st.dictionaries(NAMES, st.floats(2.0**-100, 2.0**100, width=32), min_size=1))
def test_any_names_and_scales_survive_writing_and_reading(scales: dict[str, float]) -> None:
    cache = cache_of(scales, make_header("8.6.1", "MinMaxCalibration"))
    again = parse_text(render(cache).decode())
    assert {entry.tensor: entry.scale for entry in again.entries} == scales
    assert render(again) == render(cache)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        TEXT.encode(),
        TEXT.encode()[:-1],
        TEXT.replace("\n", "\r\n").encode(),
        b"x: 3c010a14\n",
        b"TRT-8601-EntropyCalibration2\r\nx: 3c010a14\ny: 3c010a14\r\n",
        b"\xef\xbb\xbf" + TEXT.encode(),
        b"TRT-8601-EntropyCalibration2\n\ngarbage\nx: 3c010a14\nx: 3c010a15\ny: xyz\n\xff\xfe: 3c010a14\n",
    ],
    ids=[
        "empty",
        "plain",
        "last line open",
        "CRLF",
        "headerless",
        "some CRLF",
        "byte order mark",
        "garbage, repeats, not UTF-8",
    ],
)
def test_nothing_is_lost(content: bytes) -> None:
    assert render(parse_text(content.decode("utf-8", "surrogateescape"))) == content


@pytest.mark.parametrize("text", ["\ufeff" + TEXT, TEXT.replace("14\n", "14\r\n")], ids=["mark", "some CRLF"])
def test_what_editors_leave_behind_does_not_hide_entries(text: str) -> None:
    found = parse_text(text)
    assert found.header is not None
    assert found.header.version == (8, 6, 1)
    assert found.by_tensor().keys() == {"x", "layer: conv 1"}
    assert not found.unread


@pytest.mark.parametrize(
    "content", [b"x:" + b" " * 200_000, b":" * 200_000, b"x " + b"1" * 200_000 + b"x", b"1 " * 100_000]
)
def test_long_lines_are_read_in_no_time(content: bytes) -> None:
    began = time.process_time()
    parse_text((content + b"\n" + TEXT.encode()).decode())
    parse_text(content.decode())
    assert time.process_time() - began < 5  # minutes, where a pattern tries every part of a line


def test_names_may_contain_colons() -> None:
    assert parse_text(TEXT).by_tensor().keys() == {"x", "layer: conv 1"}


def test_of_repeated_names_the_last_counts() -> None:
    cache = parse_text("a: 3f800000\na: 40000000\n")
    assert cache.by_tensor()["a"].scale == 2.0
    assert list(cache.repeated()) == ["a"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello\nworld\n",
        b"{",
        b'{"a": []}',
        b"\0\0\0\1",
        b"\0\1\2\3\4\5\6\7\x08",
        TEXT.encode("utf-16"),
        TEXT.encode() + b"\n" * (1 << 20),
        b'{"x": ' + b"9" * 400 + b"}",
        b'{"x": 1, "x": 2}',
    ],
    ids=range(10),
)
def test_what_is_no_cache_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(InputFileError):
        read_cache(tmp_path / "f")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match="cannot be read"):
        read_cache(tmp_path / "nothing")


def test_noise_is_refused_in_words_that_tell_of_the_file() -> None:
    noise = bytes(range(255, 55, -1))
    with pytest.raises(InputFileError, match="is damaged: its 200 bytes point to places outside of the file"):
        list(read_pairs(Path("x"), noise))


@given(st.binary(max_size=200))
def test_a_damaged_flatbuffer_is_an_error_and_never_a_crash(content: bytes) -> None:
    good = write_pairs([("a", "1.5"), ("conv:0", "2")])
    for damaged in (content, good[: len(content)], content[:8] + good[8:]):
        try:
            pairs = list(read_pairs(Path("x"), damaged))
        except InputFileError:
            continue
        assert all(isinstance(text, str) for pair in pairs for text in pair)


def test_entries_that_share_one_long_text_do_not_fill_the_memory() -> None:
    one = bytearray(
        write_pairs([("a" * 1000, "1"), ("b", "2"), ("c", "3"), ("d", "4"), ("e", "5"), ("f", "6")])
    )
    vector = one.index(struct.pack("<I", 6), 16)
    (first,) = struct.unpack_from("<I", one, vector + 4)
    for number in range(1, 6):
        struct.pack_into("<I", one, vector + 4 + 4 * number, first - 4 * number)
    with pytest.raises(InputFileError, match="share texts"):
        list(read_pairs(Path("x"), bytes(one)))


@given(st.dictionaries(NAMES, st.floats(2.0**-60, 2.0**60)))
def test_flatbuffers_are_those_of_onnxruntime(ranges: dict[str, float]) -> None:
    from onnxruntime.quantization.CalTableFlatBuffers.TrtTable import TrtTable

    pairs = [(name, repr(value)) for name, value in ranges.items()]
    content = write_pairs(pairs)
    table = TrtTable.GetRootAs(content, 0)
    theirs = [
        (table.Dict(i).Key().decode(), table.Dict(i).Value().decode()) for i in range(table.DictLength())
    ]
    assert theirs == pairs == list(read_pairs(Path("x"), content))


@pytest.fixture
def written_by_onnxruntime(tmp_path: Path) -> Path:
    from onnxruntime.quantization.calibrate import CalibrationMethod, TensorsData
    from onnxruntime.quantization.quant_utils import write_calibration_table

    bounds = {"x": (-1.5, 2.25), "conv:0": (-3.5, 4.0)}
    # arrays, because older releases cannot write numbers as JSON
    ranges = {name: tuple(np.array(end, np.float32) for end in ends) for name, ends in bounds.items()}
    write_calibration_table(TensorsData(CalibrationMethod.MinMax, ranges).data, str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("calibration.json", ORT_JSON),
        ("calibration.flatbuffers", ORT_FLATBUFFERS),
        ("calibration.cache", ORT_TEXT),
    ],
)
def test_tables_of_onnxruntime_are_read_and_written(
    name: str, kind: str, written_by_onnxruntime: Path
) -> None:
    cache = read_cache(written_by_onnxruntime / name)
    assert cache.format == kind
    assert {entry.tensor: entry.amax for entry in cache.entries} == {"x": 2.25, "conv:0": 4.0}
    write_cache(written_by_onnxruntime / "again", cache)
    again = read_cache(written_by_onnxruntime / "again")
    assert {entry.tensor: entry.amax for entry in again.entries} == {"x": 2.25, "conv:0": 4.0}


@pytest.mark.parametrize(
    "content",
    ['\ufeff{"x": 2.5}', '{"x": "2.5"}', '{"x": 2.5}', '{"x": [-1.0, 2.5]}', '{"x": ["-2.5", "1"]}'],
)
def test_older_json_tables_are_read(content: str, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(content)
    assert read_cache(tmp_path / "t.json").entries[0].amax == pytest.approx(2.5)


def test_a_table_of_qdqtool_is_read_without_its_weights(tmp_path: Path) -> None:
    from qdqtool.core.kinds import CALIBRATION

    ranges = (
        TensorRange(tensor="x", amax=(127.0,)),
        TensorRange(tensor="w", amax=(1.0, 2.0), axis=0),
        TensorRange(tensor="w of one channel", amax=(1.0,), axis=0),
    )
    CALIBRATION.write(tmp_path / "c.json", CalibrationTable(ranges=ranges))
    cache = read_cache(tmp_path / "c.json")
    assert (cache.format, [(entry.tensor, entry.scale) for entry in cache.entries]) == (TABLE, [("x", 1.0)])


@pytest.mark.parametrize("name", FORMATS)
def test_a_table_made_for_any_format_keeps_its_magnitudes_as_a_cache(name: str, tmp_path: Path) -> None:
    table = CalibrationTable(
        ranges=(TensorRange(tensor="x", amax=(3.5,), method="max", format=FORMATS[name]),)
    )
    CALIBRATION.write(tmp_path / "table.json", table)

    (entry,) = for_tensorrt(read_cache(tmp_path / "table.json"), "10.3", "EntropyCalibration2").entries

    assert entry.amax == pytest.approx(3.5)
    assert entry.scale == pytest.approx(3.5 / 127)


@pytest.mark.parametrize("kind", ["json", "flatbuffers", "text"])
def test_a_cache_goes_to_onnxruntime_and_back_exactly(kind: str, tmp_path: Path) -> None:
    cache = parse_text(TEXT)
    write_cache(tmp_path / "t", for_onnxruntime(cache, kind))
    back = for_tensorrt(read_cache(tmp_path / "t"), "8.6.1", "EntropyCalibration2")
    assert sorted(render(back).splitlines()) == sorted(render(cache).splitlines())


def test_what_a_table_of_onnxruntime_cannot_say_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from qdqtool.cli.app import run

    (tmp_path / "c").write_text(TEXT + "garbage\nnever: 0\nmask: 7f800000\n")
    for words, count in ((["--ort", "json"], 3), (["--trt", "10.3"], 0)):
        assert run(["cache", "retarget", str(tmp_path / "c"), "-o", str(tmp_path / "t"), *words]) == 0
        said = capsys.readouterr().err
        assert said.count("note:") == count
        assert ("mask: scale inf is not a positive number and was skipped" in said) is (count > 0)
        assert ("line 4 is not a cache entry and was skipped: 'garbage'" in said) is (count > 0)


def test_retargeting_changes_the_first_line_only() -> None:
    changed = render(for_tensorrt(parse_text(TEXT), "10.3")).decode().splitlines()
    assert changed == ["TRT-100300-EntropyCalibration2", *TEXT.splitlines()[1:]]


@pytest.mark.parametrize("text", ["a: 1\n", "samples:\n  limit: 500\n", "limit: 500\nclasses: 10\n"])
def test_a_short_recipe_is_no_cache(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(InputFileError, match="holds no line like"):
        read_cache(tmp_path / "x.yaml")


def test_a_headerless_cache_needs_an_algorithm() -> None:
    with pytest.raises(UsageError, match="does not name a calibrator"):
        for_tensorrt(parse_text("x: 3c010a14\n"), "8.6.1")
    made = for_tensorrt(parse_text("x: 3c010a14\n"), "8.6.1", "MinMaxCalibration")
    assert render(made) == b"TRT-8601-MinMaxCalibration\nx: 3c010a14\n"


def cache(**scales: float) -> Cache:
    return cache_of(scales, make_header("8.6.1", "EntropyCalibration2"))


def test_equal_caches_do_not_differ() -> None:
    assert differences(cache(a=1.0), cache(a=1.0)) == ()


def test_differences_are_sorted_by_distance() -> None:
    found = differences(cache(a=1.0, b=1.0, c=1.0, e=2.0), cache(a=1.5, b=8.0, d=1.0, e=2.0))
    assert [entry.tensor for entry in found] == ["c", "d", "b", "a"]
    assert [entry.ratio for entry in found] == [None, None, 8.0, 1.5]


def test_merging_asks_who_wins() -> None:
    parts = [cache(a=1.0, b=1.0), cache(b=2.0, c=3.0), cache(b=0.5)]
    with pytest.raises(UsageError, match="1 tensor has different scales in the caches, first 'b'"):
        merge_caches(parts)
    wins = {who: merge_caches(parts, who).by_tensor()["b"].scale for who in ("first", "last", "max")}  # type: ignore[arg-type]
    assert wins == {"first": 1.0, "last": 0.5, "max": 2.0}
    assert [entry.tensor for entry in merge_caches(parts, "first").entries] == ["a", "b", "c"]


def test_merging_one_cache_drops_its_repeats() -> None:
    merged = merge_caches([parse_text("TRT-8601-EntropyCalibration2\na: 3f800000\na: 3f800000\n")])
    assert render(merged) == b"TRT-8601-EntropyCalibration2\na: 3f800000\n"


def codes(found: Cache, **options: object) -> dict[str, str]:
    return {finding.code: finding.subject for finding in lint_cache(found, **options)}  # type: ignore[arg-type]


def test_a_good_cache_has_no_findings() -> None:
    assert lint_cache(cache(a=0.1)) == ()


def test_scales_are_checked_against_each_other_without_the_model() -> None:
    ordinary = {f"t{number}": 0.01 * (number + 1) for number in range(9)}
    assert codes(cache(**ordinary)) == {}
    assert codes(cache(**ordinary, mask=60.0)) == {"CAL124": "mask"}
    assert codes(cache(**ordinary, mask=40.0)) == {}
    assert codes(cache(**dict.fromkeys("abcdefgh", 0.1))) == {"CAL125": "8 of 8 tensors"}
    # Few tensors say nothing of each other.
    assert codes(cache(a=0.1, b=0.1, c=999.0)) == {}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("x: 3c010a14\n", "CAL101"),
        ("0 3ff0000000000000 3fefffeb074a771d\nx: 3c010a14\n", "CAL101"),
        ("TRT-8601-EntropyCalibration2\n", "CAL112"),
        ("\ufeff" + TEXT, "CAL104"),
        (TEXT + "d: 00000001\n", "CAL123"),
        ("TRT-110000-EntropyCalibration2\nx: 3c010a14\n", "CAL102"),
        ("TRT-8601-Guesswork\nx: 3c010a14\n", "CAL103"),
        (TEXT + "garbage\n", "CAL110"),
        (TEXT + "x: 3c010a14\n", "CAL111"),
        (TEXT + "d: 0\n", "CAL120"),
        (TEXT + "d: bf800000\n", "CAL121"),
        (TEXT + "d: 7fc00000\n", "CAL121"),
        (TEXT + "d: 7f800000\n", "CAL121"),
        (TEXT + "d: 7b000000\n", "CAL122"),
    ],
)
def test_what_is_wrong_with_a_cache_is_found(text: str, code: str) -> None:
    assert list(codes(parse_text(text))) == [code]


def test_a_long_file_of_garbage_is_summed_up() -> None:
    found = lint_cache(parse_text(TEXT + "garbage\n" * 1000))
    assert len(found) == 21
    assert any("980 more lines are not entries" in finding.reason for finding in found)


def test_repeats_with_different_scales_weigh_more() -> None:
    severities = {
        line: lint_cache(parse_text(TEXT + line))[0].severity for line in ("x: 3c010a14\n", "x: 3c010a15\n")
    }
    assert list(severities.values()) == [Severity.INFO, Severity.WARNING]


def test_ranges_far_below_the_maximum_are_found() -> None:
    assert codes(cache(a=0.1, b=1.0), against=cache(a=1.0, b=1.0)) == {"CAL130": "a"}


@pytest.mark.parametrize("method", ["max", "entropy", "mse"])
def test_a_range_that_max_chose_is_not_to_be_calibrated_with_max(method: str, tmp_path: Path) -> None:
    view = opened(models.silu_cnn(), tmp_path).view
    own = cache(conv1_gate=0.0018)
    amax = own.by_tensor()["conv1_gate"].amax
    table = CalibrationTable(ranges=(TensorRange(tensor="conv1_gate", amax=(amax,), method=method),))
    fixes = [
        next(finding.fix for finding in lint_cache(own, view=view, table=known) if finding.code == "CAL131")
        for known in (table, None, replace(table, ranges=(replace(table.ranges[0], amax=(2 * amax,)),)))
    ]
    assert ("with max" in fixes[0]) is (method != "max")
    assert method in fixes[0]
    assert fixes[1] == fixes[2], "a range of another calibration says nothing about this one"


def test_a_model_shows_bounds_holes_and_strangers(tmp_path: Path) -> None:
    view = opened(models.silu_cnn(), tmp_path).view
    scales = {
        "x": 0.02,
        "conv1_y": 0.02,
        "conv1_gate": 0.0018,
        "conv2_gate": 0.05,
        "stranger": 1.0,
        "y": 1 / 127,
    }
    found = lint_cache(cache(**scales), view=view)
    by_code: dict[str, list[str]] = {}
    for finding in found:
        by_code.setdefault(finding.code, []).append(finding.subject)
    assert by_code["CAL131"] == ["conv1_gate"]
    assert by_code["CAL132"] == ["conv2_gate"]
    assert by_code["CAL141"] == ["stranger"]
    assert by_code["CAL140"] == ["concat_y"]
    assert by_code["CAL143"] == ["conv2_y"]
    missing = next(finding for finding in found if finding.subject == "concat_y")
    assert "head falls back to float" in missing.reason


def test_no_entry_is_missed_that_a_folded_batchnorm_takes_away(tmp_path: Path) -> None:
    """A cache of the folded network, as calibrating with qdqtool makes it, serves the unfolded one."""
    view = opened(models.depthwise_cnn(), tmp_path).view
    whole = {"x": 1.0} | {f"{name}_{end}": 1.0 for name in ("stem", "dw", "pw") for end in ("bn_y", "clip_y")}
    assert "CAL140" not in codes(cache(**whole), view=view)
    del whole["dw_bn_y"]
    assert "CAL140" not in codes(cache(**whole), view=view)
    del whole["dw_clip_y"]
    missing = [found for found in lint_cache(cache(**whole), view=view) if found.code == "CAL140"]
    assert [found.subject for found in missing] == ["dw_clip_y"]
    assert "pw falls back" in missing[0].reason


def test_calibrating_again_is_not_advised_for_attention(tmp_path: Path) -> None:
    for name, network in (("attention", models.attention()), ("conv", models.depthwise_cnn())):
        view = opened(network, tmp_path).view
        fixes = {found.fix for found in lint_cache(cache(x=1.0), view=view) if found.code == "CAL140"}
        assert fixes
        assert all(("calibrate again" in fix) is (name == "conv") for fix in fixes)


@pytest.mark.parametrize(
    ("range_", "told"), [(0.05, ["r1_y"]), (0.0102, []), (0.01, [])], ids=["beyond", "clipped", "as wide"]
)
def test_a_relu_that_reaches_further_than_what_it_reads_is_named(
    range_: float, told: list[str], tmp_path: Path
) -> None:
    view = opened(_network(), tmp_path).view
    relu = view.by_name["r1"]
    found = lint_cache(cache(**{relu.inputs[0]: 0.01, relu.outputs[0]: range_}), view=view)
    assert [
        finding.subject.replace(relu.outputs[0], "r1_y") for finding in found if finding.code == "CAL133"
    ] == told


@pytest.mark.parametrize("make", [models.residual_cnn, models.silu_cnn, models.unet, models.attention])
def test_a_cache_of_a_qdq_model_and_the_lint_of_it_say_the_same(
    make: Callable[[], onnx.ModelProto], tmp_path: Path
) -> None:
    """No node whose inputs all have Q/DQ is said to be float, and both count the same results without a range."""
    quantized_model, _ = quantized(make(), target="8")
    header = make_header("8.6.1", "EntropyCalibration2")
    plain, made, notes = from_qdq(models.save(quantized_model.proto, tmp_path), header)
    found = lint_cache(made, view=plain.view)
    covered = {
        node.name
        for node in quantized_model.view.nodes
        if node.op in PRODUCTS
        and all(
            (maker := quantized_model.view.producer(name)) and maker.op == "DequantizeLinear"
            for name in node.inputs[:2]
        )
    }
    assert covered
    for finding in found:
        if finding.code == "CAL140":
            blamed = finding.reason.removeprefix("no entry: ").partition(" fall")[0].split(", ")
            assert covered.isdisjoint(blamed)
    said = [finding.reason for finding in found if finding.code == "CAL143"]
    assert said == [note for note in notes if "Missing scale" in note]


def _network() -> onnx.ModelProto:
    """An image, two Conv with Relu, and a Sigmoid."""
    s = models.Sketch()
    y = s.relu("r1", s.conv("c1", s.input("image", [1, 3, 16, 16]), (3, 8)))
    y = s.conv("c3", s.relu("r2", s.conv("c2", y, (8, 8))), (8, 8))
    s.output(s.node("Sigmoid", [y], "share"))
    return s.model()


LARGEST = {
    "image": 1.0, "c1_y": 2.0, "r1_y": 1.5, "c2_y": 3.0, "r2_y": 2.0, "c3_y": 4.0, "share": 1.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("spelling", "said"),
    [
        (lambda amax: amax / 127, None),
        (lambda amax: 127 / amax, "127 / amax"),
        (lambda amax: amax, "amax"),
        (lambda amax: amax / 127 * (0.6 if amax > 2 else 1.0), None),
    ],
    ids=["right", "inverted", "not divided", "clipped by entropy"],
)
def test_scales_in_another_spelling_are_impossible_values(
    spelling: Callable[[float], float], said: str | None, tmp_path: Path
) -> None:
    path = models.save(_network(), tmp_path)
    written = cache(**{name: spelling(amax) for name, amax in LARGEST.items()})
    found = [one for one in lint_cache(written, view=load(path).view) if one.code == "CAL126"]
    assert [f"the scales are {said} instead" in one.reason for one in found] == (
        [] if said is None else [True]
    )
    if said is None:
        to_qdq(path, written, recipes.load(None))
    else:
        with pytest.raises(UsageError, match=f"the scales are {said} instead"):
            to_qdq(path, written, recipes.load(None))


def test_a_cache_of_another_model_is_an_error(tmp_path: Path) -> None:
    view = opened(models.conv_chain(), tmp_path).view
    found = lint_cache(cache(a=1.0, b=1.0, c=1.0), view=view)
    assert any(finding.code == "CAL141" and finding.severity is Severity.ERROR for finding in found)


def test_entries_keep_their_spelling_until_they_change() -> None:
    one = parse_text("TRT-8601-EntropyCalibration2\nx: 3C010A14\n")
    assert b"3C010A14" in render(one)
    assert b"3f800000" in render(replace(one, entries=(Entry(tensor="x", scale=1.0, line=2),)))


def test_a_cache_of_another_export_is_recognised_and_renamed(tmp_path: Path) -> None:
    view = opened(models.attention(), tmp_path).view
    order = running_order(view)
    assert order[0] == "x"
    assert "weights" in order
    text = "TRT-8001-EntropyCalibration2\n" + "".join(f"{number}: 3c010a14\n" for number in range(len(order)))
    shifted = parse_text(text + "(Unnamed Layer* 3) [Constant]_output: 3f800000\n")
    assert codes(shifted, view=view)["CAL142"] == "names"
    fixed = rename_entries(shifted, view)
    assert [entry.tensor for entry in fixed.entries][:-1] == list(order)
    assert "CAL142" not in codes(fixed, view=view)
    with pytest.raises(UsageError, match="cannot be paired"):
        rename_entries(parse_text(TEXT), view)


@pytest.mark.slow
def test_a_real_cache_of_another_export_is_recognised(tmp_path: Path) -> None:
    packed = shared("corpus/onnx/lannyyip__share__my_model.onnx.xz")
    (tmp_path / "m.onnx").write_bytes(lzma.decompress(packed.read_bytes()))
    view = load(tmp_path / "m.onnx").view
    found = read_cache(shared("corpus/calib_cache/lannyyip__share__calibration.cache"))
    assert codes(found, view=view)["CAL142"] == "names"
    fixed = rename_entries(found, view).by_tensor()
    concats = [node for node in view.nodes if node.op == "Concat" and node.outputs[0] in fixed]
    assert len(concats) == 3
    for node in concats:
        assert len({fixed[name].scale for name in (*node.inputs, *node.outputs)}) == 1


CALIBRATED = {
    "x": "3c010a14",
    "relu1_y": "3d012345",
    "stem_relu_y": "3d0abcde",
    "relu2_y": "3d111111",
}


def test_implicit_to_explicit_and_back_keeps_every_bit(tmp_path: Path) -> None:
    from qdqtool.core.recipe import Recipe
    from qdqtool.graph.onnx_io.save import save
    from qdqtool.pipeline.readback import from_qdq, to_qdq

    path = models.save(models.residual_cnn(), tmp_path)
    entries = "".join(f"{name}: {text}\n" for name, text in CALIBRATED.items())
    given = parse_text(f"TRT-8601-EntropyCalibration2\n{entries}")
    made, notes = to_qdq(path, given, Recipe())
    assert any("conv4 stays float" in note for note in notes)
    save(made, tmp_path / "qdq.onnx")
    plain, back, _ = from_qdq(tmp_path / "qdq.onnx", make_header("8.6.1", "EntropyCalibration2"))
    known = {entry.tensor: to_hex(entry.scale) for entry in back.entries}
    assert {name: known[name] for name in CALIBRATED} == CALIBRATED
    save(plain, tmp_path / "plain.onnx")
    feeds = models.feeds(models.residual_cnn())
    original = models.run(load(path).proto, feeds)["logits"]
    assert np.allclose(models.run(plain.proto, feeds)["logits"], original, atol=1e-5)
    again, _ = to_qdq(tmp_path / "plain.onnx", back, Recipe())
    save(again, tmp_path / "again.onnx")
    assert np.array_equal(models.run(again.proto, feeds)["logits"], models.run(made.proto, feeds)["logits"])


def pools(folder: Path) -> Path:
    """A Concat of pools, which insertion gives a scale a hair above that of its inputs."""
    sketch = models.Sketch()
    branches = [sketch.conv("first", sketch.input("x", ["N", 4, 8, 8]), (4, 4))]
    for number in (1, 2):
        attributes = {"kernel_shape": [3, 3], "pads": [1] * 4}
        branches.append(sketch.node("MaxPool", branches[-1:], f"pool{number}_y", **attributes))
    joined = sketch.node("Concat", branches, "joined", name="concat", axis=1)
    sketch.output(sketch.conv("last", joined, (12, 4)), ["N", 4, 8, 8])
    return models.save(sketch.model(), folder)


@pytest.mark.parametrize("types", ["fp32", "fp16"])
def test_what_shares_a_scale_shares_it_again_after_any_number_of_ways(types: str, tmp_path: Path) -> None:
    from qdqtool.core.recipe import InsertOptions, Recipe
    from qdqtool.graph.onnx_io.save import save
    from qdqtool.pipeline.readback import from_qdq, to_qdq

    recipe = Recipe(insert=InsertOptions(types=types))
    given = cache(x=0.5, first_y=0.25, pool1_y=0.25, pool2_y=0.25, joined=0.25)
    path, wanted = pools(tmp_path), {entry.tensor: entry.scale for entry in given.entries}
    for _ in range(2):
        made, _ = to_qdq(path, given, recipe)
        save(made, tmp_path / "qdq.onnx")
        plain, back, _ = from_qdq(tmp_path / "qdq.onnx", make_header("8.6.1", "EntropyCalibration2"))
        found = {entry.tensor: entry.scale for entry in back.entries}
        assert {name: found[name] for name in wanted} == wanted
        assert len(found) == len(wanted) or types == "fp16"  # which adds tensors of its own
        path, given = tmp_path / "plain.onnx", back
        save(plain, path)


def test_a_cache_that_fits_nothing_is_refused(tmp_path: Path) -> None:
    from qdqtool.core.recipe import Recipe
    from qdqtool.pipeline.readback import to_qdq

    with pytest.raises(UsageError, match="no scale for any tensor"):
        to_qdq(models.save(models.residual_cnn(), tmp_path), cache(other=1.0), Recipe())


def test_a_float_model_has_nothing_to_convert(tmp_path: Path) -> None:
    from qdqtool.pipeline.readback import from_qdq

    with pytest.raises(UsageError, match="no Q/DQ"):
        from_qdq(models.save(models.residual_cnn(), tmp_path), make_header("8.6.1", "MinMaxCalibration"))


def test_json_on_the_command_line_survives_odd_scales(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from qdqtool.cli.app import run

    (tmp_path / "c").write_text(TEXT + "bad: 7fc00000\n")
    assert run(["cache", "show", str(tmp_path / "c"), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["entries"]
    assert [row["scale"] for row in rows][-1] == "nan"
    assert run(["cache", "lint", str(tmp_path / "c")]) == 1
    assert run(["cache", "lint", str(tmp_path / "c"), "--fail-on", "never"]) == 0


@pytest.mark.parametrize("name", ["calibration.json", "calibration.flatbuffers", "calibration.cache"])
def test_a_table_beside_the_json_of_onnxruntime_is_linted(name: str, written_by_onnxruntime: Path) -> None:
    from qdqtool.cli.app import run

    assert run(["cache", "lint", str(written_by_onnxruntime / name), "--fail-on", "never"]) == 0


def chain_of(names: list[str], folder: Path) -> Path:
    """Convolutions one after the other, which hand on the tensors called `names`."""
    sketch = models.Sketch()
    x = sketch.input(names[0], ["N", 16, 4, 4])
    for number, name in enumerate([*names[1:], "the end"]):
        x = sketch.node("Conv", [x, sketch.weight(f"weight {number}", 16, 16, 1, 1)], name, name=f"n{number}")
    sketch.output(x, ["N", 16, 4, 4])
    return models.save(sketch.model(), folder)


@pytest.mark.slow
@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name[:50])
def test_scales_of_every_cache_of_the_corpus_survive_the_way_to_qdq_and_back(
    path: Path, tmp_path: Path
) -> None:
    from qdqtool.core.recipe import Recipe
    from qdqtool.graph.onnx_io.save import save
    from qdqtool.pipeline.readback import from_qdq, to_qdq

    given = read_cache(path)
    known = {name: entry for name, entry in given.by_tensor().items() if entry.is_usable}
    names = sorted(known)[:: max(1, len(known) // 12)]
    made, _ = to_qdq(chain_of(names, tmp_path), given, Recipe())
    save(made, tmp_path / "qdq.onnx")
    _, back, _ = from_qdq(tmp_path / "qdq.onnx", make_header("8.6.1", "EntropyCalibration2"))
    found = back.by_tensor()
    assert {name: to_hex(found[name].scale) for name in names} == {
        name: to_hex(known[name].scale) for name in names
    }


@pytest.mark.slow
def test_a_real_model_and_its_cache_survive_the_way_to_qdq_and_back(tmp_path: Path) -> None:
    from qdqtool.core.recipe import Recipe
    from qdqtool.graph.onnx_io.save import save
    from qdqtool.pipeline.readback import from_qdq, to_qdq

    packed = shared("corpus/onnx/lannyyip__share__my_model.onnx.xz")
    (tmp_path / "m.onnx").write_bytes(lzma.decompress(packed.read_bytes()))
    given = read_cache(shared("corpus/calib_cache/lannyyip__share__calibration.cache"))
    given = rename_entries(given, load(tmp_path / "m.onnx").view)
    made, notes = to_qdq(tmp_path / "m.onnx", given, Recipe())
    save(made, tmp_path / "qdq.onnx")
    _, back, _ = from_qdq(tmp_path / "qdq.onnx", make_header("8.6.1", "EntropyCalibration2"))
    known = {name: to_hex(entry.scale) for name, entry in given.by_tensor().items()}
    # What only carries values of a pair gets that pair's scale; TensorRT had measured one of its own there.
    quantized = {pair.tensor for pair in find(load(tmp_path / "qdq.onnx"))}
    common = [entry for entry in back.entries if entry.tensor in known.keys() & quantized]
    assert len(common) > 20
    differing = {entry.tensor for entry in common if to_hex(entry.scale) != known[entry.tensor]}
    raised = {note.partition(":")[0] for note in notes if ": scale raised from" in note}
    assert differing <= raised  # tensors that must share one scale, each with a note


DOUBTFUL = TEXT + "garbage here\nx: 3c008912\nrelu1_y: bc010a14\nrelu2_y: 0\n"


def test_what_a_conversion_does_not_take_as_it_stands_is_noted(tmp_path: Path) -> None:
    from qdqtool.core.recipe import Recipe
    from qdqtool.pipeline.readback import to_qdq

    _, notes = to_qdq(models.save(models.residual_cnn(), tmp_path), parse_text(DOUBTFUL), Recipe())
    assert {
        "line 4 of the cache is not an entry: 'garbage here'",
        "x: the tensor occurs 2 times in the cache; the last scale is used",
        "relu1_y: scale -0.00787594 is not a positive number; treated as missing",
        "relu2_y: scale 0 is not a positive number; treated as missing",
    } < set(notes)


@pytest.fixture
def hot(tmp_path: Path) -> tuple[Path, Path]:
    """A model with a tensor beyond FP16, and its cache."""
    sketch = models.Sketch()
    x = sketch.conv("first", sketch.input("x", ["N", 4, 4, 4]), (4, 4))
    large = sketch.node("Mul", [x, sketch.constant("gain", np.float32(6e4))], "large", name="gain_up")
    small = sketch.node("Mul", [large, sketch.constant("loss", np.float32(1e-4))], "small", name="gain_down")
    sketch.output(sketch.conv("last", small, (4, 4)), ["N", 4, 4, 4])
    given = cache(x=0.01, first_y=0.02, large=800.0, small=0.1, last_y=0.1)
    write_cache(tmp_path / "calib.cache", given)
    return models.save(sketch.model(), tmp_path), tmp_path / "calib.cache"


@pytest.mark.parametrize("samples", ["", "random:2"], ids=["by the cache", "on samples"])
@pytest.mark.parametrize(("overflow", "fate"), [("name", "becomes infinite"), ("keep", "stays FP32")])
def test_what_fp16_cannot_hold_is_seen_on_the_way_to_qdq(
    samples: str, overflow: str, fate: str, hot: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    from qdqtool.cli.app import run

    out = hot[0].with_suffix(".qdq.onnx")
    words = ["--set", "insert.types=fp16", "--set", f"insert.overflow={overflow}", "--samples", samples]
    assert run(["cache", "to-qdq", *map(str, hot), "-o", str(out), *words]) == 0
    said = " ".join(capsys.readouterr().err.split())
    source = "on the samples" if samples else "by their ranges"
    assert f"reaches beyond FP16 {source} and {fate}: 'large' (" in said
    assert ("may be clipped; pass --samples to find all of them" in said) is not bool(samples)
    kept = DType.FLOAT32 if overflow == "keep" else DType.FLOAT16
    view = load(out).view
    made = next(node.outputs[0] for node in view.nodes if node.name == "gain_up")
    assert view.info(made).dtype is kept


LONG = "/decoder/layers.0/multihead_attention/" * 4


def test_names_are_found_by_their_own_text_and_never_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from qdqtool.cli.app import run

    names = ["(Unnamed Layer* 12) [Constant]_output", "(Unnamed Layer* 1) [Constant]_output", LONG]
    names += ["\N{SNOWMAN}:0", "steers\x1b[31m"]
    body = "".join(f"{name}: 3c010a14\n" for name in names) + "nan: 7fc00000\n"
    (tmp_path / "c").write_bytes(f"TRT-8601-EntropyCalibration2\n{body}".encode() + b"\xff: 3c010a14\n")
    assert run(["cache", "show", str(tmp_path / "c"), "--match", names[0]]) == 0
    said = capsys.readouterr()
    assert names[0] in said.out
    assert "1 of 7 entries" in said.err
    assert run(["cache", "show", str(tmp_path / "c"), "--sort", "scale"]) == 0
    shown = capsys.readouterr().out
    assert LONG in shown
    assert "\N{SNOWMAN}:0" in shown
    assert "steers\\x1b[31m" in shown
    assert shown.splitlines()[-1].split()[0] == "nan"
    assert run(["cache", "lint", str(tmp_path / "c"), "--fail-on", "never"]) == 0
    assert run(["cache", "diff", str(tmp_path / "c"), str(tmp_path / "c"), "--json"]) == 0
    capsys.readouterr()
    assert run(["cache", "show", str(tmp_path / "c"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["entries"][-1]["tensor"] == "\udcff"
    for kind in ("json", "text", "flatbuffers"):
        assert run(["cache", "retarget", str(tmp_path / "c"), "--ort", kind, "-o", str(tmp_path / "t")]) == 0
        assert "the name is not UTF-8 and was skipped" in capsys.readouterr().err
        assert len(read_cache(tmp_path / "t").entries) == 5


def test_the_command_line_shows_names_as_they_are_and_tells_of_other_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from qdqtool.cli.app import run

    path, merged = tmp_path / "c", tmp_path / "merged"
    path.write_text(DOUBTFUL + "a:b: c: 3c010a14\n[red]x[/red]: 3c010a14\n")
    assert run(["cache", "show", str(path)]) == 0
    said = capsys.readouterr()
    assert "\na:b: c  " in said.out
    assert "[red]x[/red]" in said.out
    assert "1 line is not an entry" in said.err
    assert run(["cache", "merge", str(path), "-o", str(merged)]) == 0
    assert "line 4 is not a cache entry and was skipped" in capsys.readouterr().err
    assert [entry.tensor for entry in read_cache(merged).entries].count("x") == 1
