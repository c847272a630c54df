"""Models and samples of PyTorch: files of torch.export, functions, modules with example inputs, DataLoaders."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qdqtool
from qdqtool.cli.app import run as cli
from qdqtool.pipeline import torch_models
from qdqtool.runtime.runner import open_runner

torch = pytest.importorskip("torch", reason="models of torch need torch")
pytest.importorskip("onnxscript", reason="torch writes ONNX by onnxscript")

SOURCE = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(3, 16, 3, padding=1)
        self.second = torch.nn.Conv2d(16, 32, 3, padding=1)
        self.last = torch.nn.Linear(32, 10)

    def forward(self, image):
        hidden = torch.relu(self.second(torch.relu(self.first(image))))
        return self.last(hidden.mean((2, 3)))

def net():
    torch.manual_seed(0)
    return Net(), torch.randn(2, 3, 16, 16)

def number():
    return 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "networks", raising=False)
    (tmp_path / "networks.py").write_text(SOURCE, "utf-8")
    return tmp_path


def made() -> tuple[Any, Any]:
    scope: dict[str, Any] = {"__name__": "networks"}
    exec(SOURCE, scope)
    return scope["net"]()  # type: ignore[no-any-return]


def program() -> Any:
    module, image = made()
    free = ({0: torch.export.Dim("batch")},)
    return torch.export.export(module.eval(), (image,), dynamic_shapes=free)


def test_a_function_that_returns_a_module_is_run_to_an_engine_and_resumes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorrt_rtx", reason="building needs the extra rtx")
    words = ["run", "networks.py:net", "--samples", "random:4"]
    assert cli(words) == 0
    assert (folder / "runs" / "net" / "report.html").is_file()
    assert "3 of 3 compute nodes" in capsys.readouterr().out
    assert cli(words) == 0
    assert capsys.readouterr().err.count("up to date") >= 10


def test_a_file_of_torch_export_is_read_with_trust_only(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.export.save(program(), folder / "net.pt2")
    words = ["quantize", "net.pt2", "--samples", "random:4", "-o", "net.qdq.onnx"]
    assert cli(words) == 2
    assert "--trust" in capsys.readouterr().err
    assert cli([*words, "--trust"]) == 0
    found = qdqtool.predict("net.qdq.onnx")
    assert sum(node.compute and node.realised == "int8" for node in found.nodes) == 3


def test_a_damaged_file_of_torch_export_is_an_error_with_its_name(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "cut.pt2").write_bytes(b"PK\x03\x04" + bytes(64))
    assert cli(["run", "cut.pt2", "--trust"]) == 5
    assert "cut.pt2" in capsys.readouterr().err


def test_a_function_that_returns_no_model_is_an_error(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli(["run", "networks.py:number"]) == 2
    assert "torch.nn.Module" in capsys.readouterr().err


def test_modules_and_programs_of_every_form_give_the_same_network() -> None:
    module, image = made()
    samples = [np.random.default_rng(0).normal(size=(1, 3, 16, 16)).astype("float32") for _ in range(4)]
    expected = module.eval()(image).detach().numpy()
    for model in ((module, image), (module, (image,)), (module, {"image": image}), program()):
        quantized = qdqtool.quantize(model, samples)
        assert len({entry.slot.node for entry in quantized.placement.quantized}) == 3
        ran = qdqtool.compare(model, quantized, [image.numpy()])
        assert ran.sqnr is not None
        assert ran.sqnr.sqnr_db > 20
    assert expected.shape == (2, 10)


def test_names_of_example_inputs_belong_to_their_inputs_in_any_order(tmp_path: Path) -> None:
    class Masked(torch.nn.Module):
        def forward(self, ids: Any, mask: Any = None, kinds: Any = None) -> Any:
            return (ids + kinds) * mask

    names = ("ids", "kinds", "mask")  # as a tokenizer of BERT returns them
    path = torch_models.write((Masked(), {name: torch.ones(1, 4) for name in names}), tmp_path, "masked")
    feeds = {name: np.full((1, 4), value, np.float32) for name, value in zip(names, (1, 2, 5), strict=True)}
    (output,) = open_runner(path, description="masked").run(feeds).values()
    assert output.tolist() == [[15.0] * 4]


def test_a_data_loader_calibrates_like_the_arrays_that_are_in_it() -> None:
    module, image = made()
    images = torch.randn(12, 3, 16, 16, generator=torch.Generator().manual_seed(3))
    labels = torch.zeros(12, dtype=torch.long)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, labels), batch_size=4)
    by_loader = qdqtool.quantize((module, image), loader)
    by_array = qdqtool.quantize((module, image), images.numpy())
    assert [entry.amax for entry in by_loader.calibration.ranges] == [
        entry.amax for entry in by_array.calibration.ranges
    ]


def test_results_become_data_frames_beside_torch() -> None:
    pytest.importorskip("pandas", reason="data frames need pandas or polars")
    module, image = made()
    frame = qdqtool.place((module, image)).to_dataframe()
    assert len(frame) >= 3


LIBRARY = """
import types
from networks import Net

def is_model(name):
    return name == "net"

def list_models():
    return ["net"]

def create_model(name, pretrained):
    if name != "net":
        raise RuntimeError(f"Unknown model ({name})")
    if pretrained:
        raise OSError("no connection")
    print("loading ...")
    return Net()

data = types.SimpleNamespace(resolve_data_config=lambda _, model: {
    "input_size": (3, 16, 16), "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5), "crop_pct": 0.5, "other": 1})
"""


def test_a_network_of_timm_is_exported_with_the_preprocessing_that_it_states(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qdqtool.errors import InputFileError
    from qdqtool.graph.onnx_io.load import load
    from qdqtool.pipeline.preparations import read_stated
    from qdqtool.pipeline.torch_models import as_onnx

    (folder / "timm.py").write_text(LIBRARY, "utf-8")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.syspath_prepend(str(folder))
    path = as_onnx("timm:net@random", folder / "runs", trust=False)
    model = load(path)
    assert model.view.inputs[0].shape == ("batch", 3, 16, 16)
    values, source = read_stated(model, path)
    assert source == "config.json"
    assert (values["resize"], values["crop"]) == (32, (16, 16))
    with pytest.raises(InputFileError, match="no connection") as error:
        as_onnx("timm:net", folder / "runs", trust=False)
    assert "timm:net@random" in error.value.fix
    zeros = {name: torch.zeros_like(value) for name, value in made()[0].state_dict().items()}
    torch.save(zeros, folder / "weights.pth")
    trained = load(as_onnx(f"timm:net@{folder / 'weights.pth'}", folder / "runs", trust=False))
    name = "first.weight"
    assert not trained.view.constant(name).any()
    assert model.view.constant(name).any()
