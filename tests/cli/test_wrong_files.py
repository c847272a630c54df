"""Every command, given a file of another kind than it reads, says so and names the command that reads it."""

from __future__ import annotations

import shlex
import shutil
import zipfile
from pathlib import Path

import pytest

from qdqtool.cli.app import COMMANDS, run
from qdqtool.cli.file_kinds import advise_other_command, kind_of
from qdqtool.errors import InputFileError
from tests.shared import ROOT

DIGITS = ROOT / "recipes" / "examples" / "digits"
COMMAND_LINES = (
    "run FILE --samples random:2 --out out",
    "quantize FILE --samples random:2 -o out.onnx",
    "convert FILE -o out.onnx",
    "place FILE",
    "calibrate FILE --samples random:2 -o out.json",
    "insert FILE --placement placement.json --calibration table.json -o out.onnx",
    "build FILE --out out",
    "compare FILE model.onnx --samples calibration.npz",
    "compare model.onnx FILE --samples calibration.npz",
    "audit FILE",
    "fix FILE --out out",
    "report FILE",
    "parse FILE",
    "diff FILE FILE",
    "engine show FILE",
    "engine is-int8 FILE",
    "lint FILE",
    "predict FILE",
    "repair FILE -o out.onnx",
    "scales FILE",
    "sensitivity FILE --samples random:2",
    "sweep FILE --samples random:2 --out out",
    "time FILE",
    "advise FILE --device-name A10",
    "yolo model.onnx --data FILE",
    "qat run FILE --out out",
    "cache show FILE",
    "cache lint FILE",
    "cache to-qdq FILE calibration.cache -o out.onnx",
    "cache to-qdq model.onnx FILE -o out.onnx",
    "migrate FILE",
    "recipe show FILE",
    "recipe new FILE",
    "run model.onnx --samples FILE --out out",
    "run model.onnx --samples random:2 --recipe FILE --out out",
    "run model.onnx --samples calibration.npz --labels FILE --out out",
    "insert model.onnx --placement FILE --calibration table.json -o out.onnx",
    "insert model.onnx --placement placement.json --calibration FILE -o out.onnx",
    "audit model.onnx --layers FILE",
)
READS = {
    "model.onnx": "run quantize convert place calibrate insert build compare audit fix lint predict repair scales sensitivity "
    "sweep to-qdq recipe is-int8 time advise",
    "recipe.yaml": "qat recipe run",
    "calibration.npz": "run compare",
    "labels.npy": "run compare",
    "image.png": "",
    "script.py": "migrate compare qat run",
    "placement.json": "insert",
    "table.json": "insert cache to-qdq lint",
    "build.log": "parse diff audit report migrate engine is-int8",
    "layers.json": "audit report engine is-int8",
    "calibration.cache": "cache migrate to-qdq lint",
    "engine.plan": "migrate engine time",
    "weights.pt": "",
    "times.json": "",
}
"""Which commands read a file: they are left out, whatever they say of it."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("kinds")
    shutil.copy(DIGITS / "digits.onnx", made / "model.onnx")
    for name in ("calibration.npz", "labels.npy"):
        shutil.copy(DIGITS / name, made / name)
    shutil.copy(ROOT / "recipes" / "conv-int8.yaml", made / "recipe.yaml")
    (made / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(40))
    (made / "script.py").write_text("import tensorrt\n")
    (made / "build.log").write_text(
        "[11/22/2026-06:05:35] [I] [TRT] Detected 1 inputs and 1 output network tensors.\n" * 3
    )
    (made / "layers.json").write_text('{"Layers": [], "Bindings": ["x"]}')
    (made / "times.json").write_text('[{"startInMs": 1.0, "inMs": 0.1, "computeMs": 1.0, "latencyMs": 1.2}]')
    (made / "calibration.cache").write_text("TRT-8601-EntropyCalibration2\nimage: 3c010a14\n")
    (made / "engine.plan").write_bytes(b"ftrt" + bytes(60))
    with zipfile.ZipFile(made / "weights.pt", "w") as archive:
        archive.writestr("weights/data.pkl", "x")
        archive.writestr("weights/version", "3")
    assert run(["place", str(made / "model.onnx"), "-o", str(made / "placement.json")]) == 0
    calibrate = ["calibrate", str(made / "model.onnx"), "--samples", str(made / "calibration.npz")]
    assert run([*calibrate, "-o", str(made / "table.json")]) == 0
    return made


def test_every_command_that_reads_files_is_tried() -> None:
    tried = {line.split()[0] for line in COMMAND_LINES}
    assert tried | {"doctor", "explain"} == set(COMMANDS.names())


@pytest.mark.parametrize("name", READS)
def test_kinds_are_known_by_content(name: str, folder: Path, tmp_path: Path) -> None:
    kind = kind_of(folder / name)
    assert kind is not None
    if name not in {"recipe.yaml", "script.py"}:
        shutil.copy(folder / name, tmp_path / "data")
        assert kind_of(tmp_path / "data") == kind


def test_samples_that_were_asked_for_are_not_called_a_file_of_another_kind(folder: Path) -> None:
    file = str(folder / "calibration.npz")
    error = InputFileError(
        "input 'image' holds 1 NaN", fix="correct or remove the sample", where=f"{file}[0]"
    )
    assert advise_other_command(error, ["calibrate", "model.onnx", "--samples", file]) is error
    assert "this is a file of arrays" in advise_other_command(error, ["place", file]).fix


@pytest.mark.parametrize("name", ["it's.npz", "a b.npz", "a$(b).npz"])
def test_a_command_for_a_file_is_one_that_a_shell_reads(name: str, folder: Path, tmp_path: Path) -> None:
    file = str(shutil.copy(folder / "calibration.npz", tmp_path / name))
    fix = advise_other_command(InputFileError("is no model", fix="", where=file), ["place", file]).fix
    assert file in shlex.split(fix.split("`")[1])


@pytest.mark.parametrize("suffix", [".onnx", ".npz", ".engine", ".plan"])
def test_a_file_is_not_called_what_only_its_name_says(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"random{suffix}"
    file.write_bytes(bytes(range(200, 256)) * 9)
    error = InputFileError("is not a calibration table", fix="pass a cache", where=str(file))
    fix = advise_other_command(error, ["cache", str(file)]).fix
    assert "the file has the name of " in fix
    assert "this is" not in fix
    assert "qdqtool" not in fix


@pytest.mark.parametrize("suffix", [".onnx", ".npz", ".engine", ".pt", ".json", ".cache"])
@pytest.mark.parametrize(
    "command",
    ["parse", "cache show", "cache lint", "engine show", "engine about", "migrate", "lint", "audit"],
)
def test_an_empty_file_is_called_empty_whatever_its_name(
    command: str, suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / f"nothing{suffix}"
    file.touch()
    assert run([*command.split(), str(file)]) == 5
    printed = capsys.readouterr().err
    assert "is empty" in printed
    assert "this is" not in printed


def test_a_video_is_answered_with_how_to_get_its_frames(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "film.mp4").write_bytes(b"\0\0\0\x18ftypmp42")
    film = str(tmp_path / "film.mp4")
    assert run(["calibrate", str(folder / "model.onnx"), "--samples", film, "-o", "table.json"]) == 2
    assert "ffmpeg" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("line", COMMAND_LINES)
@pytest.mark.parametrize("name", READS)
def test_a_file_of_another_kind_is_refused_with_the_command_that_reads_it(
    name: str,
    line: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = line.split()
    command = (
        words[0] if words[0] not in {"engine", "cache"} or words[1] not in {"is-int8", "to-qdq"} else words[1]
    )
    if command in READS[name].split():
        return
    for file in folder.iterdir():
        shutil.copy(file, tmp_path)
    monkeypatch.chdir(tmp_path)
    code = run([name if word == "FILE" else word for word in words])
    told = capsys.readouterr().err
    assert code in {2, 5}, told
    assert told.count("error: ") == 1, told
    assert "  fix: " in told
    assert "this is " in told or any(word in told for word in kind_of(tmp_path / name).words), told
