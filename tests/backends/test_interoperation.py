"""The page on other tools is true: each of its commands runs, and the other tools take what we write."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.cli.app import run
from tests.shared import ROOT

PAGE = (ROOT / "recipes" / "INTEROPERATION.md").read_text("utf-8")
DIGITS = ROOT / "recipes" / "examples" / "digits"
LOADER = """
import numpy as np


def load_data():
    random = np.random.default_rng(0)
    for _ in range(4):
        yield {"image": random.random((1, 1, 8, 8), dtype=np.float32)}
"""


def _commands(language: str) -> list[str]:
    blocks = re.findall(rf"^ *```{language}\n(.*?)^ *```", PAGE, re.MULTILINE | re.DOTALL)
    return [line.strip() for block in blocks for line in block.splitlines()]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the page assumes: a model, a data loader, and what other tools wrote."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(DIGITS / "digits.onnx", "model.onnx")
    Path("data_loader.py").write_text(LOADER, "utf-8")
    _as_polygraphy_saves()
    _as_onnxruntime_quantizes()
    return tmp_path


def _as_polygraphy_saves() -> None:
    """inputs.json and outputs.json in Polygraphy's form."""
    import base64
    import io

    from qdqtool.runtime.runner import open_runner

    def spelled(array: np.ndarray) -> dict[str, str]:
        stream = io.BytesIO()
        np.save(stream, array, allow_pickle=False)
        return {"array": base64.b64encode(stream.getvalue()).decode(), "polygraphy_class": "ndarray"}

    random = np.random.default_rng(0)
    feeds = [{"image": random.random((1, 1, 8, 8), dtype=np.float32)} for _ in range(4)]
    runner = open_runner(Path("model.onnx"), description="model")
    results = [runner.run(feed) for feed in feeds]
    inputs = [{name: spelled(value) for name, value in feed.items()} for feed in feeds]
    Path("inputs.json").write_text(json.dumps(inputs), "utf-8")
    iterations = [
        {"outputs": {name: {"values": spelled(value)} for name, value in result.items()}, "runtime": 0.0}
        for result in results
    ]
    lists = {
        "lst": [["runner", [_iteration(entry) for entry in iterations]]],
        "polygraphy_class": "RunResults",
    }
    Path("outputs.json").write_text(json.dumps(lists), "utf-8")


def _iteration(entry: dict[str, object]) -> dict[str, object]:
    outputs = entry["outputs"]
    assert isinstance(outputs, dict)
    return {
        "outputs": {name: value["values"] for name, value in outputs.items()},
        "runtime": 0.0,
        "runner_name": "runner",
        "polygraphy_class": "IterationResult",
    }


def _as_onnxruntime_quantizes() -> None:
    """theirs.onnx: Q/DQ as onnxruntime makes them by default, with zero points and INT32 biases."""
    quantization = pytest.importorskip("onnxruntime.quantization")

    class Reader(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            random = np.random.default_rng(0)
            self.rest = [{"image": random.random((1, 1, 8, 8), dtype=np.float32)} for _ in range(4)]

        def get_next(self) -> dict[str, np.ndarray] | None:
            return self.rest.pop() if self.rest else None

    quantization.quantize_static("model.onnx", "theirs.onnx", Reader())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.skipif(find_spec("tensorrt_rtx") is None, reason="the page builds an engine: qdqtool[rtx]")
def test_every_command_of_the_page_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = _commands("sh")
    assert len(commands) > 12
    for command in commands:
        words = shlex.split(command)
        assert words[0] == "qdqtool"
        assert run(words[1:]) == 0, (command, capsys.readouterr().err)
    same, table = (
        json.loads((folder / name).read_text("utf-8"))["data"] for name in ("same.json", "table.json")
    )
    assert same["ranges"] == table["ranges"], "a loader and the inputs it gave are the same samples"
    for name in ("model.qdq.onnx", "from_table.onnx", "fixed.fp16.onnx", "annotated.onnx"):
        onnx.checker.check_model(onnx.load(folder / name))
    assert onnx.load(folder / "engine.onnx").graph.node
    assert json.loads((folder / "timeline.json").read_text("utf-8"))


def test_other_peoples_commands_are_marked_as_theirs() -> None:
    for line in _commands("text"):
        assert line.startswith(("polygraphy ", "providers=", '"trt_', "qdqtool time "))


@pytest.mark.skipif(find_spec("polygraphy") is None, reason="needs Polygraphy")
def test_polygraphy_takes_what_we_write_and_we_take_what_it_saves(folder: Path) -> None:
    program = shutil.which("polygraphy")
    command = [sys.executable, program] if program else [sys.executable, "-c", _MAIN]
    effort = ["--onnxrt", "--data-loader-script", "data_loader.py"]
    saved = ["--save-inputs", "real_in.json", "--save-outputs", "real_out.json"]
    subprocess.run([*command, "run", "model.onnx", *effort, *saved], check=True, capture_output=True)
    assert run(["calibrate", "model.onnx", "--samples", "real_in.json", "-o", "t.json"]) == 0
    assert run(["compare", "real_out.json", "model.onnx", "--samples", "real_in.json"]) == 0
    assert run(["cache", "to-qdq", "model.onnx", "t.json", "-o", "model.qdq.onnx"]) == 0
    checked = [
        "--load-inputs",
        "real_in.json",
        "--load-outputs",
        "real_out.json",
        "--atol",
        "9",
        "--rtol",
        "9",
    ]
    ended = subprocess.run(
        [*command, "run", "model.qdq.onnx", "--onnxrt", *checked], check=False, capture_output=True, text=True
    )
    assert "Passed: 4/4" in ended.stdout


_MAIN = "import sys; from polygraphy.tools import main; sys.exit(main())"
