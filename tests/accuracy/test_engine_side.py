"""An engine as a side of a comparison, played by a stand-in for TensorRT and its GPU."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtool.backends import engine_runner
from qdqtool.backends.engine_runner import open_engine
from qdqtool.cli.app import run
from qdqtool.core.tensors import DType
from qdqtool.errors import BuildError, MissingPackage, UsageError
from qdqtool.io import child
from tests.accuracy.stand_in_engine import DEADLY, WEIGHTS
from tests.backends.stand_in_tensorrt import PLAN

X = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An engine, the model it was built from, and samples; child processes find the stand-in."""
    package = tmp_path / "site" / "tensorrt"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "import sys\nfrom tests.accuracy import stand_in_engine\n"
        "sys.modules[__name__] = stand_in_engine.module()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    (tmp_path / "a.plan").write_bytes(PLAN)
    np.savez(tmp_path / "samples.npz", x=X)
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "w"], ["z"]),
        onnx.helper.make_node("Tanh", ["z"], ["y"]),
    ]
    ends = [
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", size])]
        for name, size in (("x", 3), ("y", 5))
    ]
    graph = onnx.helper.make_graph(nodes, "g", *ends, [onnx.numpy_helper.from_array(WEIGHTS, "w")])
    opsets = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def compared(*words: str) -> int:
    return run(["compare", "m.onnx", "a.plan", "--samples", "samples.npz", *words])


@pytest.mark.usefixtures("folder")
def test_an_engine_compares_with_its_model(capfd: pytest.CaptureFixture[str]) -> None:
    assert compared("--trust", "--json") == 0
    found: dict[str, Any] = json.loads(capfd.readouterr().out)["data"]
    assert found["samples"] == 6
    assert found["candidate"] == "a.plan on TensorRT 8.6.1.6"
    (output,) = found["outputs"]
    level = next(measure["value"] for measure in output["measures"] if measure["metric"] == "sqnr_db")
    assert level > 60  # what rounding to FP16 costs, and no more


@pytest.mark.usefixtures("folder")
def test_without_trust_an_engine_is_not_loaded(capfd: pytest.CaptureFixture[str]) -> None:
    assert compared() == 2
    assert "--trust" in capfd.readouterr().err


def test_an_engine_says_what_it_takes_and_runs_any_shape_that_it_allows(folder: Path) -> None:
    with open_engine(folder / "a.plan", trust=True) as engine:
        (info,) = engine.inputs
        assert (info.name, info.dtype, info.shape) == ("x", DType.FLOAT32, ("?", 3))
        assert engine.outputs == ("y",)
        for rows in (X, X[:1], X[2:4]):
            found = engine.run({"x": rows})["y"]
            np.testing.assert_array_equal(found, np.tanh(rows @ WEIGHTS).astype(np.float16))


@pytest.mark.parametrize(
    ("x", "words"),
    [
        pytest.param(np.zeros((9, 3), np.float32), "does not accept 9x3", id="a shape outside the profile"),
        pytest.param(np.zeros((1, 3)), "float64", id="another type"),
    ],
)
def test_inputs_that_do_not_fit_an_engine_are_refused(folder: Path, x: np.ndarray, words: str) -> None:
    with open_engine(folder / "a.plan", trust=True) as engine, pytest.raises(UsageError, match=words):
        engine.run({"x": x})


def test_an_engine_that_dies_on_a_sample_is_a_clear_error(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    np.savez(folder / "samples.npz", x=np.where(np.arange(6)[:, None] == 4, DEADLY, X).astype(np.float32))
    assert compared("--trust") == 4
    said = capfd.readouterr().err
    assert "ended with code -9" in said
    assert "fix:" in said


@pytest.mark.parametrize(
    ("life", "kind", "words"),
    [
        pytest.param("raise ImportError('no libnvinfer')", MissingPackage, "no libnvinfer", id="no library"),
        pytest.param("import os; os.write(3, b'{}\\n'); os._exit(1)", BuildError, "code 1", id="talks nonsense"),
        pytest.param("import os; os.kill(os.getpid(), 11)", BuildError, "code -11", id="crashes"),
    ],
)  # fmt: skip
def test_a_library_that_fails_harms_only_the_child(
    folder: Path, life: str, kind: type[Exception], words: str
) -> None:
    (folder / "site" / "tensorrt" / "__init__.py").write_text(life + "\n")
    with pytest.raises(kind, match=words), open_engine(folder / "a.plan", trust=True):
        pass


@pytest.mark.skipif(os.name != "posix", reason="process groups are POSIX")
def test_a_conversation_ends_its_program_and_the_programs_children(tmp_path: Path) -> None:
    talk = (
        "import subprocess, sys; print(subprocess.Popen(['sleep', '600']).pid, flush=True); sys.stdin.read()"
    )
    with child.conversation((sys.executable, "-c", talk), tmp_path / "log") as process:
        assert process.stdout is not None
        grandchild = int(process.stdout.readline())
    assert process.returncode == -9
    deadline = time.monotonic() + 60  # the kernel ends a killed process when it gets to it
    while _runs(grandchild) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _runs(grandchild)


def _runs(process: int) -> bool:
    """Whether a process runs; one that ended and waits for its parent does not."""
    try:
        status = Path(f"/proc/{process}/stat").read_text("utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


NAMES = st.dictionaries(st.text(), st.integers(0, 5), max_size=4)


@given(NAMES, st.text())
def test_what_one_process_says_the_other_hears(sizes: dict[str, int], word: str) -> None:
    said = {name: np.arange(size, dtype=np.float16) for name, size in sizes.items()}
    stream = io.BytesIO()
    engine_runner.write(stream, {"word": word}, said)
    engine_runner.write(stream, {"next": 1})
    stream.seek(0)
    words, arrays = engine_runner.read(stream) or ({}, {})
    assert words == {"word": word}
    assert list(arrays) == list(said)
    assert all(np.array_equal(arrays[name], said[name]) for name in said)
    assert engine_runner.read(stream) == ({"next": 1}, {})
    assert engine_runner.read(stream) is None
    cut = io.BytesIO(stream.getvalue()[:-1])
    engine_runner.read(cut)
    assert engine_runner.read(cut) is None
