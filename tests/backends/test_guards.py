"""What is said about a build before it is done."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtool.backends.building.guards import Abilities, ModelFacts, Strong, choose_typing, facts_of, guards
from qdqtool.backends.flags import (
    PLUGIN_LIBRARIES,
    PRECISIONS,
    Flag,
    absolute,
    bytes_of,
    parse_flags,
    plain_sizes,
    split_flags,
)
from qdqtool.backends.plan import banner_release
from qdqtool.core.target import packed_release, target_of
from qdqtool.errors import UsageError
from tests.backends import graphs
from tests.models import save

FLOAT = ModelFacts(quantized=False, half=False, dynamic=())
QDQ = ModelFacts(quantized=True, half=False, dynamic=())
MIXED = ModelFacts(quantized=True, half=True, dynamic=())


def said(
    facts: ModelFacts, flags: str, strong: Strong = "on request", sm: int | None = None
) -> list[tuple[str, bool]]:
    can = Abilities(name="TensorRT", strong=strong, sm=sm)
    return [(guard.what, guard.fatal) for guard in guards(facts, parse_flags(flags.split()), can)]


@pytest.mark.parametrize(
    ("facts", "flags", "strong"),
    [
        pytest.param(FLOAT, "", "on request", id="a float model"),
        pytest.param(FLOAT, "--fp16", "on request", id="a float model in FP16"),
        pytest.param(MIXED, "--stronglyTyped", "on request", id="Q/DQ strongly typed"),
        pytest.param(MIXED, "", "always", id="Q/DQ in 11"),
        pytest.param(QDQ, "--int8 --fp16", "never", id="Q/DQ with INT8 and FP16"),
        pytest.param(FLOAT, "--int8 --calib=c --fp16", "never", id="a float model with a cache"),
    ],
)
def test_there_is_nothing_to_say_about(facts: ModelFacts, flags: str, strong: Strong) -> None:
    assert said(facts, flags, strong) == []


@pytest.mark.parametrize(
    ("facts", "flags", "strong", "words", "fatal"),
    [
        pytest.param(QDQ, "--fp16", "never", "INT8 is not enabled", True, id="Q/DQ without INT8"),
        pytest.param(FLOAT, "--int8", "never", "ranges are invented", False, id="INT8 without scales"),
        pytest.param(QDQ, "--int8", "never", "runs in FP32", False, id="INT8 without FP16"),
        pytest.param(QDQ, "", "always", "the model has no FP16", False, id="Q/DQ and FP32 in 11"),
        pytest.param(QDQ, "--int8", "always", "strongly typed", True, id="--int8 in 11"),
        pytest.param(QDQ, "--int8 --stronglyTyped", "on request", "has no effect", False, id="both typings"),
        pytest.param(FLOAT, "--calib=c", "always", "weakly typed", True, id="calibrator in 11"),
        pytest.param(
            QDQ, "--int8 --best --calib=c", "never", "cache is not used", False, id="cache and Q/DQ"
        ),
        pytest.param(
            FLOAT,
            "--fp16 --layerPrecisions=a:fp16",
            "never",
            "have no effect without",
            False,
            id="precisions, no constraints",
        ),
        pytest.param(
            QDQ, "--int8 --fp16 --useDLACore=0", "never", "cannot run Q/DQ nodes", True, id="Q/DQ on DLA"
        ),
        pytest.param(FLOAT, "--useDLACore=0", "never", "FP16 or INT8 only", True, id="FP32 on DLA"),
        pytest.param(FLOAT, "--fp16 --useDLACore=0", "never", "cannot run", False, id="DLA without fallback"),
        pytest.param(
            ModelFacts(quantized=False, half=False, dynamic=("x",)),
            "",
            "never",
            "no shapes",
            True,
            id="no profile",
        ),
    ],
)
def test_a_build_that_would_not_do_what_was_meant(
    facts: ModelFacts, flags: str, strong: Strong, words: str, fatal: bool
) -> None:
    assert [is_fatal for what, is_fatal in said(facts, flags, strong) if words in what] == [fatal]


@pytest.mark.parametrize(
    ("sm", "warned"), [(53, True), (61, True), (70, True), (72, False), (75, False), (86, False)]
)
def test_a_gpu_without_int8_tensor_cores_is_named(sm: int, warned: bool) -> None:
    assert bool(said(QDQ, "--int8 --fp16", "never", sm)) == warned


@given(
    st.sets(st.sampled_from([*sorted(PRECISIONS), "stronglyTyped"])),
    st.sampled_from(["always", "on request", "never"]),
    st.booleans(),
    st.booleans(),
)
def test_the_typing_we_choose_never_meets_a_fatal_guard(
    names: set[str], strong: Strong, quantized: bool, half: bool
) -> None:
    facts = ModelFacts(quantized=quantized, half=half, dynamic=())
    can = Abilities(name="TensorRT", strong=strong)
    given_flags = tuple(Flag(name=name) for name in sorted(names))
    flags, note = choose_typing(facts, given_flags, can)
    if note is None:
        assert flags == given_flags
    else:
        assert not any(guard.fatal for guard in guards(facts, flags, can))


@pytest.mark.parametrize("strong", ["always", "on request", "never"])
@pytest.mark.parametrize("quantized", [True, False])
@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("typed", ["", "--fp16", "--stronglyTyped"])
def test_no_fix_for_dla_names_a_flag_that_is_refused(
    strong: Strong, quantized: bool, half: bool, typed: str
) -> None:
    can = Abilities(name="TensorRT", strong=strong)
    facts = ModelFacts(quantized=quantized, half=half, dynamic=())
    flags = parse_flags(f"{typed} --useDLACore=0".split())
    fix = " ".join(guard.fix for guard in guards(facts, flags, can) if "DLA" in guard.what)
    left = [flag for flag in flags if f"without {flag}" not in fix]
    added = [Flag(name=name) for name in re.findall(r"(?<!without )--(fp16|int8|calib)\b", fix)]
    again = guards(replace(facts, quantized=False, half=half or "FP16 into" in fix), (*left, *added), can)
    refused = " ".join(guard.what for guard in again if guard.fatal)
    assert not [str(flag) for flag in added if str(flag) in refused]
    assert "DLA" not in refused


def test_what_a_builder_must_know_is_read_from_the_model(tmp_path: Path) -> None:
    assert facts_of(save(graphs.quantized_conv(), tmp_path)) == QDQ
    assert facts_of(save(graphs.conv_relu("N"), tmp_path)) == ModelFacts(
        quantized=False, half=False, dynamic=("x",)
    )


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1024", 1024 << 20),
        ("1024MiB", 1024 << 20),
        ("1.5G", 3 << 29),
        ("2KiB", 2048),
        ("7B", 7),
        ("", None),
        ("lots", None),
    ],
)
def test_sizes_are_read_as_trtexec_reads_them(text: str, size: int | None) -> None:
    assert bytes_of(text) == size


@pytest.mark.parametrize("name", ["calib", "timingCacheFile", *PLUGIN_LIBRARIES])
def test_a_path_in_a_flag_stays_true_elsewhere(name: str) -> None:
    assert absolute(Flag(name=name, value="c.cache")).value == str(Path("c.cache").absolute())
    assert absolute(Flag(name="tacticSources", value="+CUDNN")).value == "+CUDNN"


def test_quotes_in_a_line_of_flags_are_respected() -> None:
    assert split_flags("--a='b c' --d") == ("--a=b c", "--d")
    assert split_flags(r"--calib=my\ cache --d") == ("--calib=my cache", "--d")
    with pytest.raises(UsageError, match="cannot read"):
        split_flags("--a='b")


@pytest.mark.parametrize(
    "path", [r"C:\data\c.cache", r"C:\my data\c.cache", r"\\server\share\c.cache", r"..\c.cache", "D:\\"]
)
def test_a_windows_path_in_a_line_of_flags_keeps_its_backslashes(path: str) -> None:
    assert split_flags(f'"--calib={path}" --int8') == (f"--calib={path}", "--int8")
    if " " not in path:
        assert split_flags(f"--calib={path} --int8") == (f"--calib={path}", "--int8")


@pytest.mark.parametrize(
    ("number", "release"),
    [(8201, (8, 2, 1)), (8412, (8, 4, 12)), (8601, (8, 6, 1)), (100300, (10, 3, 0)), (101401, (10, 14, 1))],
)
def test_packed_releases_are_unpacked(number: int, release: tuple[int, ...]) -> None:
    assert packed_release(number) == release
    assert banner_release(f"x\n&&&& RUNNING TensorRT.trtexec [TensorRT v{number}] # trtexec") == release


@given(st.text())
def test_a_target_spelled_once_stays_as_it_is(word: str) -> None:
    assert target_of(target_of(word)) == target_of(word)


@pytest.mark.parametrize(
    ("written", "plain"),
    [
        ("workspace:1024MiB", "workspace:1024"),
        ("workspace:1024", "workspace:1024"),
        ("workspace:8GiB,dlaSRAM:1", "workspace:8192,dlaSRAM:1"),
        ("workspace:1G", "workspace:1024"),
        ("tacticSharedMem:48KiB", "tacticSharedMem:48K"),
        ("workspace:0.5KiB", "workspace:512B"),
        ("workspace:many", "workspace:many"),
    ],
)
def test_sizes_are_written_as_every_trtexec_reads_them(written: str, plain: str) -> None:
    assert plain_sizes(Flag(name="memPoolSize", value=written)).value == plain
    assert all(part[-2:].upper() not in {"IB", "MB", "GB"} for part in plain.split(","))
