"""Models of PyTorch where torch is not installed, and names that only look like functions."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import qdqtool
from qdqtool.backends.torch_qat import published
from qdqtool.cli.app import run as cli
from qdqtool.errors import InputFileError, MissingPackage, UsageError
from qdqtool.pipeline import torch_models
from qdqtool.pipeline.torch_models import (
    Published,
    as_onnx,
    in_folder,
    model_or_outputs,
    name_of,
    names_function,
)


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


@pytest.mark.parametrize("folder", ["my models [1]", r"C:\Users\me", "/data/it's", "a\nb"])
def test_a_function_may_be_in_a_folder_of_any_name(folder: str) -> None:
    """`qdqtool run "my models/net.py:make"` said that there is no file of this name."""
    assert names_function(f"{folder}/net.py:make")
    assert name_of(f"{folder}/net.py:make") == "make"
    assert not names_function(f"{folder}/net.onnx")


def test_a_model_is_named_by_what_tells_it_apart(tmp_path: Path) -> None:
    assert name_of(str(tmp_path / "resnet" / "model.onnx")) == "resnet"
    assert name_of("networks.py:net") == "net"
    assert name_of("mobilenet.onnx") == "mobilenet"


def test_the_library_asks_for_the_loaded_program_instead_of_a_file_that_may_run_code() -> None:
    with pytest.raises(UsageError, match="may run code") as error:
        qdqtool.place("net.pt2")
    assert "torch.export.load" in error.value.fix


@pytest.mark.parametrize(
    ("word", "library", "name", "weights", "title"),
    [
        ("timm:resnet50.a1_in1k", "timm", "resnet50.a1_in1k", "", "resnet50.a1_in1k"),
        ("torchvision:resnet18@random", "torchvision", "resnet18", "random", "resnet18"),
        ("timm:resnet18@a/b.pth", "timm", "resnet18", "a/b.pth", "resnet18"),
        ("folder/yolo11n.pt", "ultralytics", "folder/yolo11n.pt", "", "yolo11n"),
    ],
)
def test_published_networks_are_named_by_library(
    word: str, library: str, name: str, weights: str, title: str
) -> None:
    found = Published.named(word)
    assert found == Published(library=library, name=name, weights=weights)
    assert name_of(word) == title


@pytest.mark.parametrize("word", ["net.onnx", "network.py:net", "timm", "other:resnet18", "net.pt2"])
def test_other_words_name_no_published_network(word: str) -> None:
    assert Published.named(word) is None


@pytest.mark.parametrize("word", ["timm:resnet18", "torchvision:resnet18"])
def test_a_missing_library_ends_with_what_to_install(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert cli(["run", word]) == MissingPackage.exit_code
    found = Published.named(word)
    assert found is not None
    assert f"pip install {found.library}" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["model.onnx", "onnx/model.onnx", "decoder.onnx"])
def test_a_folder_of_hugging_face_stands_for_its_model(tmp_path: Path, place: str) -> None:
    file = tmp_path / place
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"")
    (tmp_path / "config.json").write_text("{}", "utf-8")
    assert as_onnx(str(tmp_path), tmp_path, trust=False) == file


def test_a_folder_with_several_models_or_none_says_what_to_pass(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match="no ONNX model") as error:
        in_folder(str(tmp_path))
    assert "pass an ONNX file" in error.value.fix
    for name in ("a.onnx", "b.onnx"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(InputFileError, match="several") as error:
        in_folder(str(tmp_path))
    assert "a.onnx" in error.value.fix
    (tmp_path / "decoder_model_merged.onnx").write_bytes(b"")
    with pytest.raises(InputFileError, match="several") as error:
        in_folder(str(tmp_path))
    assert error.value.fix.endswith(
        "b.onnx; decoder_model_merged.onnx with --set 'prepare.constants={\"use_cache_branch\": true}', and once with false"
    )


@pytest.mark.parametrize("weights", ["model.safetensors", "pytorch_model.bin"])
def test_a_folder_with_weights_alone_is_exported_by_transformers(
    tmp_path: Path, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "hub" / "models--org--net" / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}", "utf-8")
    (folder / weights).write_bytes(b"")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    for word in (str(folder), "org/net"):
        inside = in_folder(word)
        assert isinstance(inside, Published)
        assert (inside.library, inside.title) == ("transformers", "net")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingPackage) as error:
        as_onnx(str(folder), tmp_path, trust=False)
    assert error.value.fix == "pip install transformers"
    with pytest.raises(InputFileError, match="no ONNX model"):
        model_or_outputs("org/net")


def test_a_module_that_an_export_lacks_is_named_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def export(*_: object, **__: object) -> tuple[dict[str, Any], None]:
        published.main()
        return events[-1], None

    def create(_: object) -> bool:
        raise ModuleNotFoundError("No module named 'onnxscript.optimizer'", name="onnxscript.optimizer")

    events: list[dict[str, Any]] = []
    request = {"library": "timm", "name": "resnet18", "weights": "random"}
    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(is_model=create, __spec__=SimpleNamespace()))
    monkeypatch.setattr(published, "meet", lambda: (request, events.append))
    monkeypatch.setattr(torch_models, "ask", export)
    monkeypatch.setattr(torch_models, "need_torch", lambda: None)
    with pytest.raises(MissingPackage, match="onnxscript") as error:
        Published(library="timm", name="resnet18").exported(tmp_path, trust=False)
    assert error.value.fix == "pip install onnxscript"


@pytest.mark.parametrize("variable", ["HF_HOME", "HF_HUB_CACHE"])
def test_an_id_in_the_local_cache_stands_for_its_newest_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    hub = tmp_path / "hub" if variable == "HF_HOME" else tmp_path
    file = hub / "models--org--net" / "snapshots" / "abc" / "onnx" / "model.onnx"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"")
    assert in_folder("org/net") == file
    with pytest.raises(InputFileError, match="neither a file nor a model in the local cache") as error:
        in_folder("org/other")
    assert "hf download org/other" in error.value.fix
    assert in_folder("hub/other" if variable == "HF_HOME" else "models--org--net/other") is None


def test_a_wrong_name_of_a_network_shows_the_nearest_names(monkeypatch: pytest.MonkeyPatch) -> None:
    library = SimpleNamespace(is_model=lambda _: False, list_models=lambda: ["resnet18", "vgg11"])
    monkeypatch.setitem(sys.modules, "timm", library)
    request = {"library": "timm", "name": "resnet1", "weights": "random"}
    events: list[dict[str, Any]] = []
    monkeypatch.setattr(published, "meet", lambda: (request, events.append))
    published.main()
    assert [event["fix"] for event in events] == ["did you mean resnet18?"]
