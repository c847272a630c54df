"""What the seeds do with trtexec is done by qdqtool: every flag has a place, every recipe is a command that runs."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from qdqtool.backends.migration.command_line import EQUIVALENTS, FATES, KEPT, Equivalent, migrate_command
from qdqtool.backends.native import settings
from qdqtool.cli.app import run
from tests.backends import graphs, stand_in_trtexec
from tests.models import save
from tests.shared import shared

posix = pytest.mark.skipif(os.name != "posix", reason="the stand-in is a script")

_A9 = (
    "onnx deploy uff output maxBatch minShapes optShapes maxShapes workspace memPoolSize saveEngine fp16 int8 noTF32 best "
    "sparsity timingCacheFile verbose buildOnly skipInference profilingVerbosity dumpLayerInfo exportLayerInfo "
    "precisionConstraints layerPrecisions layerOutputTypes useDLACore allowGPUFallback builderOptimizationLevel "
    "maxAuxStreams calib loadEngine batch shapes warmUp duration iterations useCudaGraph noDataTransfers useSpinWait "
    "streams dumpProfile exportProfile exportTimes dumpOutput dumpRawBindingsToFile loadInputs exportOutput"
)
A9 = _A9.split()
"""Every flag that the seeds name."""
RECIPES = {
    "01 run a model": "trtexec --onnx=m.onnx --minShapes=x:1x3x8x8 --optShapes=x:1x3x8x8 --maxShapes=x:1x3x8x8",
    "02 build with cache, profile and settings": "trtexec --onnx=m.onnx --saveEngine=e.plan --timingCacheFile=c.cache "
    "--minShapes=x:1x3x8x8 --optShapes=x:4x3x8x8 --maxShapes=x:16x3x8x8 --fp16 --noTF32 "
    "--memPoolSize=workspace:1024MiB --builderOptimizationLevel=5 --maxAuxStreams=4 --skipInference --verbose",
    "03 load and run": "trtexec --loadEngine=e.plan --shapes=x:4x3x8x8 --noDataTransfers --useSpinWait --useCudaGraph --verbose",
    "04 layer information": "trtexec --onnx=m.onnx --minShapes=x:1x3x8x8 --optShapes=x:1x3x8x8 --maxShapes=x:1x3x8x8 "
    "--skipInference --profilingVerbosity=detailed --dumpLayerInfo --exportLayerInfo=layers.json",
    "05 profile": "trtexec --loadEngine=e.plan --dumpProfile --exportTimes=times.json --exportProfile=profile.json",
    "06 dump raw inputs and outputs": "trtexec --loadEngine=e.plan --iterations=1 --dumpOutput --dumpRawBindingsToFile",
    "07 load raw inputs": "trtexec --loadEngine=e.plan --iterations=1 --loadInputs=x:x.raw --dumpOutput",
}
"""The seven recipes of the seeds, on a small model."""


@pytest.mark.parametrize("flag", A9)
def test_a_flag_of_the_seeds_has_a_place_here_or_an_answer_why_not(flag: str) -> None:
    equivalent = EQUIVALENTS.get(flag)
    if equivalent is None:
        assert FATES[flag].action == "drop", "gone from trtexec itself"
        assert FATES[flag].do
    else:
        assert bool(equivalent.option) != bool(equivalent.always)


@pytest.mark.shared
def test_the_list_of_flags_is_that_of_the_seeds() -> None:
    text = shared("reference/seeds.md").read_text("utf-8")
    section = text[text.index("## A9") : text.index("## A10")]
    lines = [line for line in section.splitlines() if line.startswith(("Build flags", "Inference flags"))]
    assert set(re.findall(r"--([A-Za-z]\w*)", " ".join(lines))) == set(A9)


_ONLY_TRTEXEC = (
    "inputIOFormats outputIOFormats preview tempdir tempfileControls leanDLLPath buildDLAStandalone "
    "decomposableAttentions dumpKernelText markDebug markUnfusedTensorsAsDebugTensors pi pluginInstanceNorm "
    "remoteAutoTuningConfig runtimePlatform setPluginsToSerialize stripAllWeights tilingOptimizationLevel "
    "uint8AsymmetricQuantizationDLA device ignoreParsedPluginLibs safetyPlugins vc safe consistency asyncFileReader"
)
ONLY_TRTEXEC = frozenset(_ONLY_TRTEXEC.split())
"""Build flags that the Python backend refuses, with the advice to use trtexec."""


@pytest.mark.parametrize(
    "flag",
    sorted(
        name
        for name, entry in EQUIVALENTS.items()
        if entry.stage != "run" and entry.option not in {"", "MODEL", "--out"}
    ),
)
def test_a_build_flag_is_known_to_the_python_backend_or_named_as_trtexecs_own(flag: str) -> None:
    known = set(settings._SETTERS) | set(settings._IGNORED)  # the table under test
    assert (flag in known) != (flag in ONLY_TRTEXEC)


@pytest.mark.parametrize("flag", sorted({*KEPT, *EQUIVALENTS, "unheardOf"} - set(FATES)))
@pytest.mark.parametrize("line", ["--onnx=m.onnx --skipInference", "--onnx=m.onnx", "--loadEngine=e"])
def test_no_flag_is_lost_on_the_way_to_our_commands(
    flag: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each is said to the command that it concerns, or named with the reason why there is no need."""
    ours = map(shlex.split, migrate_command(f"trtexec {line} --{flag}=1").ours)
    stages = {{"build": "build", "time": "run"}[words[1]]: words for words in ours}
    entry = EQUIVALENTS.get(flag, Equivalent(stage="both", option="--flags"))
    assert flag in EQUIVALENTS or flag == "unheardOf"
    if entry.always:
        assert run(["migrate", "--", *shlex.split(f"trtexec {line} --{flag}=1")]) == 0
        printed = " ".join(capsys.readouterr().out.split())
        assert f"--{flag}=1 has no option of qdqtool: {entry.always}" in printed
        return
    for words in (words for place, words in stages.items() if entry.stage in {place, "both"}):
        if entry.option == "--flags":
            assert any(word.startswith("--flags=") and f"--{flag}=1" in word for word in words)
        else:
            assert entry.option in {"MODEL", "ENGINE", "--out", *words}
    if flag == "shapes" and "build" in stages:
        assert stages["build"][-2:] == ["--opt-shapes", "1"]


def test_the_shapes_of_every_profile_are_kept() -> None:
    line = (
        "trtexec --onnx=m.onnx --profile=1 --minShapes=x:1 --maxShapes=x:9 "
        "--profile=0 --minShapes=x:1 --optShapes=x:4 --maxShapes=x:9 --skipInference"
    )
    migration = migrate_command(line)
    assert migration.command == line
    (words,) = map(shlex.split, migration.ours)
    options = " ".join(words[words.index("trtexec") + 1 :])
    first = "--min-shapes x:1 --opt-shapes x:4 --max-shapes x:9"
    assert options == f"{first} --min-shapes x:1 --opt-shapes x:1 --max-shapes x:9"


@posix
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_of_the_seeds_is_commands_that_run(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QDQTOOL_TRTEXEC", str(stand_in_trtexec.install(tmp_path, 8601)))
    monkeypatch.setenv("STAND_IN_SAID", str(tmp_path / "said"))
    save(graphs.conv_relu("N"), tmp_path).rename("m.onnx")
    Path("e.plan").write_bytes(b"ftrt" + bytes(20) + bytes([8, 6, 1, 6]) + b"a plan")
    migration = migrate_command(RECIPES[recipe])
    assert migration.ours
    for command in (*migration.steps, *migration.ours):
        words = shlex.split(command)
        quick = ["--rounds", "1", "--iterations", "2"] if words[1] == "time" else []
        assert run([*words[1:], *quick]) == 0, capsys.readouterr().err
    said = Path("said").read_text("utf-8").split()
    asked = {word.partition("=")[0] for word in shlex.split(RECIPES[recipe])[1:]}
    lost = {f"--{name}" for name, fate in FATES.items() if fate.action in {"change the model", "drop"}}
    for name in asked - {"--iterations", "--exportProfile", "--dumpProfile"} - lost:
        equivalent = EQUIVALENTS[name.removeprefix("--")]
        if equivalent.option == "--flags":
            assert any(word.startswith(name) for word in said), name


@posix
def test_recipes_leave_what_they_promise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QDQTOOL_TRTEXEC", str(stand_in_trtexec.install(tmp_path, 101600)))
    save(graphs.conv_relu(), tmp_path).rename("m.onnx")
    line = "trtexec --onnx=m.onnx --saveEngine=out/e.plan --exportTimes=t.json --warmUp=0 --duration=0 --iterations=3"
    for command in migrate_command(line).ours:
        assert run([*shlex.split(command)[1:], *(["--any-release"] if " time " in command else [])]) == 0
    assert {path.name for path in Path("out/e").iterdir()} >= {"engine.plan", "build.log", "layers.txt"}
    assert Path("times/engine.plan.times.json").is_file()


def test_a_long_command_line_in_one_word_is_no_file_name(capsys: pytest.CaptureFixture[str]) -> None:
    line = RECIPES["02 build with cache, profile and settings"] + " --verbose" * 30
    assert run(["migrate", line]) == 0
    assert (
        "with qdqtool: qdqtool build m.fp16.onnx --out e --builder trtexec"
        in capsys.readouterr().out.replace("\n", " ")
    )


@pytest.mark.parametrize(
    "flag", ["--int8", "--best", "--stronglyTyped", "--calib=c.cache", "--precisionConstraints=obey"]
)
def test_our_command_hands_on_no_flag_that_11_lost(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["migrate", "--", "trtexec", "--onnx=m.onnx", "--noTF32", flag]) == 0
    ours = capsys.readouterr().out.partition("with qdqtool:")[2]
    assert "--noTF32" in ours
    assert flag.partition("=")[0] not in ours
