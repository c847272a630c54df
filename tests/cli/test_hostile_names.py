"""Names out of models, logs, dumps and caches reach the terminal as names: no control characters, no commands of a runner."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from qdqtool.cli.app import run
from tests import models
from tests.buildlog import small

NAMES = (
    "\x1b]0;PWN\x07",
    "\x9b31m",
    "a\nb\n::error::z",
    "\r::warning::w",
    "\u202eabc",
    "[red]r[/red]",
    "\u2028x",
    "::set-env name=A::b",
)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A float model, a Q/DQ model, layers of an engine, a log and a calibration cache that bear such names."""
    monkeypatch.chdir(tmp_path)
    model = models.conv_chain()
    for number, node in enumerate(model.graph.node):
        node.name = NAMES[number % len(NAMES)] + str(number)
    inside = {name: f"{NAMES[at % len(NAMES)]}{at}" for at, name in enumerate(_inside(model))}
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [inside.get(name, name) for name in names]
    for tensor in model.graph.initializer:
        tensor.name = inside.get(tensor.name, tensor.name)
    del model.graph.value_info[:]
    onnx.save(model, "m.onnx")
    Path("layers.json").write_text(
        json.dumps(
            {
                "Layers": [
                    _layer(name, "Reformat" if at % 2 else "CaskConvolution") for at, name in enumerate(NAMES)
                ],
                "Bindings": [],
            }
        )
    )
    said = (
        f"[GpuLayer] {name}\nAccuracy loss for tensor {name} (cos): 0.5\n"
        for name in NAMES
        if "\n" not in name
    )
    Path("b.log").write_text(small.library("".join(said).replace("\r", "")))
    Path("t.log").write_text(
        small.trtexec().replace("Conv_1", "Conv\x9b31m\u202e_1").replace("Q_x", "Q\x07_x")
    )
    lines = "".join(f"{name}: 3c010a14\n" for name in NAMES if "\n" not in name and "\r" not in name)
    Path("c.cache").write_text(f"TRT-8600-EntropyCalibration2\n{lines}")
    return tmp_path


def _inside(model: onnx.ModelProto) -> list[str]:
    """Names that are neither inputs nor outputs."""
    outer = {one.name for one in (*model.graph.input, *model.graph.output)}
    used = [name for node in model.graph.node for name in (*node.input, *node.output) if name]
    return [name for name in dict.fromkeys(used) if name not in outer]


def _layer(name: str, kind: str) -> dict[str, object]:
    def tensor(kind: str) -> list[dict[str, object]]:
        return [{"Name": f"{name}{kind}", "Dimensions": [1, 8, 8, 8], "Format/Datatype": kind}]

    return {
        "Name": name,
        "LayerType": kind,
        "Inputs": tensor("Float"),
        "Outputs": tensor("Int8"),
        "TacticName": name,
        "Metadata": f"[ONNX Layer: {name}]",
    }


@pytest.mark.parametrize(
    "words",
    [
        "lint m.onnx",
        "place m.onnx",
        "quantize m.onnx --samples random:2 -o q.onnx",
        "calibrate m.onnx --samples random:2 -o t.json",
        "compare m.onnx m.onnx --samples random:2",
        "predict m.onnx",
        "audit t.log",
        "audit layers.json",
        "audit layers.json --format markdown",
        "engine show layers.json",
        "engine show layers.json --tell",
        "engine top layers.json",
        "engine diff layers.json layers.json",
        "report layers.json",
        "parse b.log --all",
        "parse b.log --unread",
        "diff b.log b.log",
        "cache show c.cache",
        "cache lint c.cache",
        "cache diff c.cache c.cache",
    ],
)
def test_no_name_steers_the_terminal_or_a_runner(
    words: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words.split()) in range(6)
    said = capsys.readouterr()
    for text in (said.out, said.err):
        assert {char for char in text if not char.isprintable() and char != "\n"} == set()
        assert [line for line in text.splitlines() if line.lstrip().startswith("::")] == []
