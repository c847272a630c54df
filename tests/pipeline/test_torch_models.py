"""Models of PyTorch where torch is not installed, and names that only look like functions."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import qdqtool
from qdqtool.cli.app import run as cli
from qdqtool.errors import MissingPackage, UsageError
from qdqtool.pipeline.torch_models import as_onnx, name_of, names_function


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "torch" else find(name, *rest)
    )


@pytest.mark.usefixtures("without_torch")
@pytest.mark.parametrize("command", [["run"], ["quantize", "--samples", "random:4", "-o", "out.onnx"]])
@pytest.mark.parametrize("model", ["net.pt2", "network.py:net"])
def test_without_torch_a_model_of_torch_ends_with_what_to_install(
    command: list[str],
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.pt2").write_bytes(b"PK\x03\x04")
    assert cli([*command, model, "--trust"]) == MissingPackage.exit_code
    assert "qdqtool[qat]" in capsys.readouterr().err


def test_a_path_that_exists_is_a_file_whatever_it_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert names_function("pkg.networks:net")
    assert names_function("folder/networks.py:net")
    assert not names_function("C:\\models\\net.onnx")
    assert not names_function("net.onnx")
    Path("a:b").write_bytes(b"")
    assert not names_function("a:b")
    assert as_onnx("net.onnx", tmp_path, trust=False) == Path("net.onnx")


def test_a_model_is_named_by_what_tells_it_apart(tmp_path: Path) -> None:
    assert name_of(str(tmp_path / "resnet" / "model.onnx")) == "resnet"
    assert name_of("networks.py:net") == "net"
    assert name_of("mobilenet.onnx") == "mobilenet"


def test_the_library_asks_for_the_loaded_program_instead_of_a_file_that_may_run_code() -> None:
    with pytest.raises(UsageError, match="may run code") as error:
        qdqtool.place("net.pt2")
    assert "torch.export.load" in error.value.fix
