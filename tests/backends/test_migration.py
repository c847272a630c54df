"""What was written for TensorRT 8 to 10 is told what becomes of it in 11, and why."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtool.backends.flags import parse_flags
from qdqtool.backends.migration.command_line import FATES, KEPT, MIGRATION, Migration, migrate_command
from qdqtool.backends.migration.folder import ASSIGNED, MEMBERS, NAMES, migrate_path, migrate_script
from qdqtool.cli.app import run
from qdqtool.errors import InputFileError, UsageError
from qdqtool.graph.onnx_io.load import load
from tests import models
from tests.backends.stand_in_tensorrt import API
from tests.shared import shared

NEWEST = "11.4.0.106"
GONE_11 = [
    "best",
    "bf16",
    "calib",
    "calibProfile",
    "fp16",
    "fp8",
    "int4",
    "int8",
    "layerOutputTypes",
    "layerPrecisions",
    "maxShapesCalib",
    "minShapesCalib",
    "optShapesCalib",
    "precisionConstraints",
    "restricted",
    "weightless",
]
GONE_EARLIER = [
    "buildOnly",
    "explicitBatch",
    "explicitPrecision",
    "heuristic",
    "minTiming",
    "nvtxMode",
    "workspace",
    "batch",
    "maxBatch",
    "deploy",
    "uff",
]
SEED_BUILD = (
    "trtexec --onnx=resnet18.onnx --saveEngine=resnet18.plan --timingCacheFile=resnet18.cache "
    "--minShapes=x:1x3x224x224 --optShapes=x:4x3x224x224 --maxShapes=x:16x3x224x224 --fp16 --noTF32 "
    "--memPoolSize=workspace:1024MiB --builderOptimizationLevel=5 --maxAuxStreams=4 --skipInference --verbose"
)


def fates(text: str) -> dict[str, str]:
    return {advice.what: advice.action for advice in migrate_command(text).advice}


@pytest.mark.parametrize("name", [*GONE_11, *GONE_EARLIER])
def test_a_flag_that_is_gone_is_not_in_the_new_command(name: str) -> None:
    found = migrate_command(f"trtexec --onnx=m.onnx --{name}=1 --skipInference")
    assert f"--{name}" not in [word.partition("=")[0] for word in shlex.split(found.command)]
    (advice,) = [advice for advice in found.advice if advice.where == f"--{name}"]
    assert advice.action in {"drop", "replace", "change the model"}
    assert advice.reason
    assert advice.do or advice.action == "drop"


def test_a_flag_is_either_kept_or_has_a_fate() -> None:
    assert not KEPT & set(FATES)
    assert {fate.renamed for fate in FATES.values() if fate.renamed} <= KEPT


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("--workspace=4096", "--memPoolSize=workspace:4096", id="workspace"),
        pytest.param(
            "--memPoolSize=workspace:1024MiB", "--memPoolSize=workspace:1024", id="a unit of two letters"
        ),
        pytest.param("--buildOnly", "--skipInference", id="buildOnly"),
        pytest.param("--streams=2", "--infStreams=2", id="streams"),
        pytest.param("--weightless", "--stripWeights", id="weightless"),
        pytest.param("--inputIOFormats=fp16:chw+hwc8", "--inputIOFormats=chw+hwc8", id="formats"),
        pytest.param(
            "--tacticSources=-CUDNN,+JIT_CONVOLUTIONS", "--tacticSources=+JIT_CONVOLUTIONS", id="sources"
        ),
        pytest.param("--profilingVerbosity=verbose", "--profilingVerbosity=detailed", id="verbosity"),
        pytest.param("--tacticSources=-CUBLAS", "", id="sources that are all gone"),
    ],
)
def test_a_flag_with_a_successor_is_replaced_by_it(before: str, after: str) -> None:
    words = shlex.split(migrate_command(f"trtexec --onnx=m.onnx {before}").command)
    assert words == ["trtexec", "--onnx=m.onnx", *([after] if after else [])]


def test_the_seed_recipe_keeps_all_but_its_precision() -> None:
    found = migrate_command(SEED_BUILD)
    assert [advice.what for advice in found.advice if advice.action != "keep"] == [
        "--fp16",
        "--memPoolSize=workspace:1024MiB",
    ]
    assert found.steps == ("qdqtool convert resnet18.onnx -o resnet18.fp16.onnx --types fp16",)
    assert found.command == SEED_BUILD.replace("--fp16 ", "").replace("18.onnx", "18.fp16.onnx").replace(
        "1024MiB", "1024"
    )


def test_times_are_told_apart_from_those_of_11() -> None:
    plain = [
        advice.do for advice in migrate_command("trtexec --loadEngine=e").advice if advice.where == "times"
    ]
    assert len(plain) == 3
    assert any("--noCudaGraph" in do for do in plain)
    same = "trtexec --loadEngine=e --useCudaGraph --useSpinWait --noDataTransfers"
    assert set(fates(same).values()) == {"keep", "drop"}
    assert "times" not in {
        advice.where for advice in migrate_command("trtexec --onnx=m --skipInference").advice
    }


def test_layers_with_float_precision_become_an_exclusion() -> None:
    (advice,) = migrate_command("trtexec --layerPrecisions=head*:fp32,body:int8 --skipInference").advice[:1]
    assert """place.exclude=["head*"]""" in advice.do
    assert "--keep=head*" in advice.do


def test_layers_that_were_asked_for_int8_are_not_kept_from_it() -> None:
    for value in ("*:int8", "body:int8,head:int8"):
        (advice,) = migrate_command(f"trtexec --layerPrecisions={value} --skipInference").advice[:1]
        assert "place.exclude" not in advice.do
        assert "qdqtool run MODEL" in advice.do


def test_the_wildcard_is_the_type_of_the_model_and_excludes_nothing() -> None:
    (advice,) = migrate_command("trtexec --layerPrecisions=*:fp16 --skipInference").advice[:1]
    assert "place.exclude" not in advice.do
    assert "qdqtool convert" in advice.do


def test_dla_is_back_on_agx_orin() -> None:
    advice = next(
        entry
        for entry in migrate_command("trtexec --onnx=m --useDLACore=0").advice
        if entry.where == "--useDLACore"
    )
    assert "11.4.1 with JetPack 7.2.2" in advice.do


def test_our_command_hands_no_flag_on_that_trtexec_dropped() -> None:
    (build, *_) = migrate_command("trtexec --onnx=m.onnx --workspace=1024 --explicitBatch --buildOnly").ours
    assert "--memPoolSize=workspace:1024" in build.replace("'", " ").split("flags=")[1]
    assert not any(flag in build for flag in ("--workspace=", "explicitBatch", "buildOnly"))


@pytest.mark.parametrize(
    ("line", "steps", "model"),
    [
        pytest.param("--onnx=a/m.onnx", [], "a/m.onnx", id="fp32"),
        pytest.param("--onnx=m.onnx --int8", [], "m.onnx", id="int8 that the model says by Q/DQ"),
        pytest.param(
            "--onnx=m.onnx --int8 --calib=c --layerPrecisions=*:int8,head:fp32",
            ["qdqtool cache to-qdq m.onnx c -o m.qdq.onnx --set 'place.exclude=[\"head\"]'"],
            "m.qdq.onnx",
            id="a cache and a float head",
        ),
        pytest.param(
            "--onnx=m.onnx --best --calib=c",
            [
                "qdqtool cache to-qdq m.onnx c -o m.qdq.onnx",
                "qdqtool convert m.qdq.onnx -o m.qdq.fp16.onnx --types fp16",
            ],
            "m.qdq.fp16.onnx",
            id="best",
        ),
        pytest.param(
            "--onnx=m.onnx --bf16 --layerOutputTypes=a:fp32,b:fp16",
            ["qdqtool convert m.onnx -o m.bf16.onnx --types bf16 --keep a"],
            "m.bf16.onnx",
            id="bf16 and an fp32 layer",
        ),
        pytest.param(
            "--onnx=m.onnx --fp16 --inputIOFormats=fp16:chw --outputIOFormats=fp16:chw,fp16:hwc8",
            ["qdqtool convert m.onnx -o m.fp16.onnx --types fp16 --half-io"],
            "m.fp16.onnx",
            id="fp16 inputs and outputs",
        ),
        pytest.param("--loadEngine=e --fp16", [], None, id="no model"),
    ],
)
def test_the_model_is_made_by_commands_in_their_order(line: str, steps: list[str], model: str | None) -> None:
    found = migrate_command(f"trtexec {line} --skipInference")
    assert list(found.steps) == steps
    words = shlex.split(found.command)
    assert [word for word in words if word.startswith("--onnx")] == ([f"--onnx={model}"] if model else [])


def test_the_commands_do_what_migrate_promises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    models.save(models.conv_chain(), tmp_path).rename("m.onnx")
    scale = "3d000000"
    Path("c").write_text(f"TRT-8600-EntropyCalibration2\nx: {scale}\nrelu1_y: {scale}\nconv1_y: {scale}\n")
    found = migrate_command(
        "trtexec --onnx=m.onnx --int8 --fp16 --calib=c --layerPrecisions=conv2:fp32 --skipInference"
    )
    for step in found.steps:
        assert run(shlex.split(step)[1:]) == 0
    view = load(Path("m.qdq.fp16.onnx")).view
    kinds = {
        name: {str(view.info(t).dtype) for t in view.by_name[name].inputs} for name in ("conv1", "conv2")
    }
    assert kinds == {"conv1": {"fp16"}, "conv2": {"fp32"}}
    assert "--onnx=m.qdq.fp16.onnx" in found.command


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            "$ /usr/src/tensorrt/bin/trtexec --onnx=m.onnx --int8 > log.txt 2>&1", id="a prompt and a log"
        ),
        pytest.param("trtexec \\\n  --onnx=m.onnx \\\n  --int8", id="continued lines"),
        pytest.param(r"trtexec \--onnx=m.onnx \--int8", id="escaped dashes"),
        pytest.param("trtexec --onnx=m.onnx --int8 && rm --force x", id="another command after it"),
    ],
)
def test_command_lines_are_read_as_people_paste_them(text: str) -> None:
    assert list(fates(text))[:2] == ["--onnx=m.onnx", "--int8"]
    assert "--force" not in fates(text)


@pytest.mark.parametrize("text", ["", "trtexec", "hello there", "'unclosed"])
def test_what_is_no_command_line_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        migrate_command(text)


@given(st.lists(st.sampled_from([*KEPT, *FATES, "unheardOf"]), min_size=1, max_size=8))
def test_the_new_command_needs_no_second_migration(names: list[str]) -> None:
    first = migrate_command(" ".join(["trtexec", *(f"--{name}" for name in names)]))
    kept = shlex.split(first.command)[1:]
    if kept:
        second = migrate_command(first.command)
        assert second.command == first.command
        assert {flag.name for flag in parse_flags(kept)} <= KEPT | {"unheardOf", "useDLACore"}


# --- scripts ---

SCRIPT = """
import subprocess
import tensorrt as trt
from tensorrt import IInt8MinMaxCalibrator

class Calibrator(trt.IInt8EntropyCalibrator2):
    pass

network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.EXPLICIT_BATCH))
config.set_flag(trt.BuilderFlag.INT8)
config.int8_calibrator = Calibrator()
config.max_workspace_size = 1 << 30
layer.precision = trt.float32
engine = builder.build_engine(network, config)
context.execute_async_v2(bindings, stream)
cursor.execute("select 1")
print(x.precision, BuilderFlag.TF32)
subprocess.run(["trtexec", "--fp16", "--onnx=m.onnx"])
"""


def script(folder: Path, text: str) -> Migration:
    path = folder / "build.py"
    path.write_text(text)
    return migrate_script(path)


def test_calls_that_are_gone_are_found_with_their_lines(tmp_path: Path) -> None:
    found = [(advice.where, advice.what) for advice in script(tmp_path, SCRIPT).advice]
    assert found == [
        ("line 4", "import IInt8MinMaxCalibrator"),
        ("line 6", ".IInt8EntropyCalibrator2"),
        ("line 9", "NetworkDefinitionCreationFlag.EXPLICIT_BATCH"),
        ("line 10", "BuilderFlag.INT8"),
        ("line 11", ".int8_calibrator"),
        ("line 12", ".max_workspace_size"),
        ("line 13", ".precision ="),
        ("line 14", ".build_engine"),
        ("line 15", ".execute_async_v2"),
        ("line 18", "--fp16"),
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param(
            "trt = lazy.lazy_import('tensorrt>=8.5')\nc.int8_calibrator = x\n",
            [".int8_calibrator"],
            id="lazily",
        ),
        pytest.param(
            "trt = importlib.import_module('tensorrt')\nf = trt.BuilderFlag.INT8\n",
            ["BuilderFlag.INT8"],
            id="by name",
        ),
        pytest.param(
            "def make(trt):\n    class C(trt.IInt8MinMaxCalibrator):\n        pass\n",
            [".IInt8MinMaxCalibrator"],
            id="handed over",
        ),
        pytest.param(
            "import tensorrt as trt\nf = getattr(trt.BuilderFlag, 'FP16')\n",
            ["getattr(..., 'FP16')"],
            id="asked for as text",
        ),
        pytest.param(
            "import tensorrt as trt\nif hasattr(c, 'set_calibration_profile'):\n    pass\n",
            [],
            id="only asked",
        ),
        pytest.param("import tensorrt_rtx as trt\nb = trt.create()\n", [], id="TensorRT for RTX"),
        pytest.param("p.precision = 3\nx = getattr(p, 'FP16')\n", [], id="no TensorRT at all"),
    ],
)
def test_tensorrt_is_recognised_however_a_script_gets_it(text: str, found: list[str], tmp_path: Path) -> None:
    path = tmp_path / "s.py"
    path.write_text(text)
    assert [advice.what for advice in migrate_script(path).advice] == found


def test_a_script_is_never_run(tmp_path: Path) -> None:
    script(tmp_path, f"import tensorrt\nopen({str(tmp_path / 'ran')!r}, 'w').close()\n")
    assert not (tmp_path / "ran").exists()


def test_a_script_without_tensorrt_has_nothing_to_fear(tmp_path: Path) -> None:
    assert script(tmp_path, "import torch\nconfig.int8_calibrator = engine.build_engine()\n").advice == ()


@pytest.mark.parametrize(
    "content",
    [b"print 'python 2'", b"\0", b"def f(:", "\xe9 = 1".encode("latin-1"), b"(" * 500],
    ids=["Python 2", "a NUL byte", "a mistake", "not UTF-8", "deep nesting"],
)
def test_what_is_not_python_is_called_that(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "build.py"
    path.write_bytes(content)
    with pytest.raises(InputFileError, match="not Python 3"):
        migrate_script(path)


LOOKED_AT = (
    "Builder",
    "IBuilderConfig",
    "ICudaEngine",
    "ILayer",
    "ITensor",
    "OnnxParser",
    "BuilderFlag",
    "TacticSource",
)
NO_ADVICE = {"has_implicit_batch_dimension", "reset"}
"""Gone from the engine but not from the network: not told apart in a script."""


def members(release: str, name: str) -> set[str]:
    facts = API[release].get(name, {})
    return {*facts.get("members", ()), *facts.get("methods", ()), *facts.get("properties", ())}


@pytest.mark.parametrize("name", LOOKED_AT)
def test_everything_the_bindings_lost_has_advice(name: str) -> None:
    lost = set().union(*(members(release, name) for release in API)) - members(NEWEST, name) - NO_ADVICE
    assert {
        word for word in lost if word not in NAMES and word not in ASSIGNED and (name, word) not in MEMBERS
    } == set()


@pytest.mark.parametrize("name", LOOKED_AT)
def test_nothing_the_bindings_still_have_is_called_gone(name: str) -> None:
    has = members(NEWEST, name)
    assert not has & (set(NAMES) | set(ASSIGNED))
    assert not {word for owner, word in MEMBERS if owner == name} & has


# --- files and folders ---


def test_a_calibration_cache_becomes_qdq(tmp_path: Path) -> None:
    path = tmp_path / "calibration.cache"
    path.write_bytes(b"TRT-8502-EntropyCalibration2\r\nx: 3c008912\n")
    found = migrate_path(path)
    assert found.source == "calibration cache"
    assert "cache to-qdq MODEL calibration.cache" in found.advice[0].do


def test_a_log_gives_its_command_and_its_release(tmp_path: Path) -> None:
    path = tmp_path / "build.log"
    path.write_text(
        "&&&& RUNNING TensorRT.trtexec [TensorRT v8601] # trtexec --onnx=m.onnx --int8 --buildOnly\n"
    )
    found = migrate_path(path)
    assert found.advice[0].what == "8.6.1"
    assert found.command == "trtexec --onnx=m.onnx --skipInference"


def test_a_shell_script_gives_its_first_command(tmp_path: Path) -> None:
    path = tmp_path / "build.sh"
    path.write_text("#!/bin/sh\nset -e\n# trtexec is slow\n./bin/trtexec --onnx=m.onnx \\\n  --best\n")
    assert migrate_path(path).command == "trtexec --onnx=m.fp16.onnx"


def test_a_build_folder_is_looked_through(tmp_path: Path) -> None:
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "a.log").write_text(
        "&&&& RUNNING TensorRT.trtexec [TensorRT v101401] # trtexec --onnx=m.onnx --int8\n"
    )
    (folder / "c.cache").write_text("TRT-101401-MinMaxCalibration\nx: 3c008912\n")
    (folder / "e.plan").write_bytes(b"ftrt" + bytes(20) + bytes([10, 14, 1, 9]) + bytes(9))
    (folder / "notes.md").write_text("notes")
    found = migrate_path(folder)
    assert {advice.where.split(":")[0] for advice in found.advice} == {"a.log", "c.cache", "e.plan"}
    assert found.source == "build folder"
    assert [command.split()[1] for command in found.ours] == ["build", "time"]
    assert "10.14.1.9" in {advice.what for advice in found.advice}
    assert found.command == "trtexec --onnx=m.onnx"
    assert MIGRATION.read(write(found, tmp_path)) == found


def write(found: Migration, folder: Path) -> Path:
    MIGRATION.write(folder / "migration.json", found)
    assert json.loads((folder / "migration.json").read_text())["kind"] == "migration"
    return folder / "migration.json"


@pytest.mark.parametrize("content", [b"", b"hello", bytes(range(256))], ids=["empty", "text", "bytes"])
def test_a_file_of_no_use_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    for path in (tmp_path / "file", tmp_path):
        with pytest.raises(InputFileError):
            migrate_path(path)


@pytest.mark.shared
def test_commands_of_real_logs_are_read() -> None:
    logs = [path for path in sorted(shared("corpus/trtexec_log").iterdir()) if path.suffix != ".xz"]
    with_banner = [path for path in logs if b"&&&& RUNNING TensorRT.trtexec" in path.read_bytes()[: 1 << 16]]
    assert len(with_banner) > 10
    for path in with_banner:
        found = migrate_path(path)
        assert found.command.startswith("trtexec --")
        unknown = {advice.what for advice in found.advice if advice.action == "look up"}
        assert not {what for what in unknown if "DLACore" not in what}, path.name
