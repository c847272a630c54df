"""The guide for users of Ultralytics, Hugging Face and timm is typed from an empty folder, without a connection."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from qdqtool.cli.app import run as cli
from tests.shared import ROOT

torch = pytest.importorskip("torch", reason="networks of these libraries need torch")
pytest.importorskip("onnxscript", reason="torch writes ONNX by onnxscript")
pytest.importorskip("tensorrt_rtx", reason="the guide builds engines: qdqtool[rtx]")

GUIDE = (ROOT / "docs" / "guides" / "libraries.md").read_text("utf-8")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CLASSES = 4


def block(guide: str, section: str) -> list[str]:
    """Return the lines of the one block of a section."""
    text = guide.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    (found,) = re.findall(r"^```text\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return found.splitlines()


def typed(section: str) -> list[list[str]]:
    """Return the commands of a section, without those that install and download."""
    lines = [shlex.split(line) for line in block(GUIDE, section)]
    assert lines[0][:2] == ["pip", "install"]
    return [words[1:] for words in lines if words[0] == "qdqtool"]


def drawn(side: int, count: int, seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return noisy pictures of stripes; direction and colour of the stripes are the class."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % CLASSES
    pictures = rng.normal(128, 4, (count, side, side, 3))
    wave = 80 * np.sin(np.arange(side) / side * 40)
    for number, label in enumerate(labels):
        pictures[number, ..., label % 3] += wave[None, :] if label % 2 else wave[:, None]
    return pictures.clip(0, 255).astype(np.uint8), labels


def write_pictures(side: int) -> None:
    for folder, count, seed in (("calibration", 64, 0), ("evaluation", 200, 1)):
        Path(folder).mkdir()
        pictures, labels = drawn(side, count, seed)
        for number, picture in enumerate(pictures):
            Image.fromarray(picture).save(f"{folder}/{number:03}.png")
    np.save("labels.npy", labels)


def normalized(picture: Any) -> Any:
    values = (np.asarray(picture).transpose(2, 0, 1) / 255 - np.reshape(MEAN, (3, 1, 1))) / np.reshape(
        STD, (3, 1, 1)
    )
    return torch.from_numpy(values.astype(np.float32))


def fit(
    last: Any, features: Callable[[Any], Any], side: int, prepare: Callable[[Any], Any] = normalized
) -> None:
    """Fit the last layer of a network with random weights, so that its classes are right."""
    pictures, labels = drawn(side, 120, 2)
    with torch.no_grad():
        seen = features(torch.stack([prepare(Image.fromarray(picture)) for picture in pictures])).flatten(1)
        scale = seen.std(0).clamp(min=1e-9)
        rows = torch.cat([(seen - seen.mean(0)) / scale, torch.ones(len(seen), 1)], 1)
        target = 4 * torch.nn.functional.one_hot(torch.from_numpy(labels), CLASSES).float()
        solved = torch.linalg.solve(rows.T @ rows + torch.eye(rows.shape[1]), rows.T @ target)
        weight = solved[:-1].T / scale
        last.weight.zero_()
        last.bias.fill_(-4)
        last.weight[:CLASSES] = weight
        last.bias[:CLASSES] = solved[-1] - weight @ seen.mean(0)


def cached(name: str) -> Path:
    """Return the folder of an id in the local cache of Hugging Face."""
    entry = Path("hub") / "hub" / f"models--{name.replace('/', '--')}"
    (entry / "refs").mkdir(parents=True)
    (entry / "refs" / "main").write_text("abc", "utf-8")
    snapshot = entry / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    return snapshot


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("YOLO_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("YOLO_OFFLINE", "true")
    torch.manual_seed(0)
    return tmp_path


def verdict(folder: str) -> Any:
    return json.loads(Path(folder, "report.json").read_text("utf-8"))["data"]["summary"]["verdict"]


def type_all(section: str, capsys: pytest.CaptureFixture[str], gate: int) -> tuple[Any, str]:
    """Type the commands of a section; return the verdict and what the first command and the audit printed."""
    first, audit, last = typed(section)
    assert last == [*first[: first.index("--out")], "--fail-on", "bad", *first[first.index("--out") :]]
    assert cli(first) == 0, capsys.readouterr().err
    assert cli(audit) == 0
    said = capsys.readouterr().out
    found = verdict(first[-1])
    assert cli(last) == gate, capsys.readouterr().err
    assert (found["answer"] == "bad") == bool(gate)
    return found, said


def test_hugging_face_from_a_cached_id_to_a_gate(capsys: pytest.CaptureFixture[str]) -> None:
    transformers = pytest.importorskip("transformers", reason="its networks are exported")
    config = transformers.ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic", num_labels=CLASSES
    )
    network = transformers.ResNetForImageClassification(config).eval()
    fit(network.classifier[1], lambda values: network.resnet(values).pooler_output, 64)
    folder = cached("microsoft/resnet-18")
    network.save_pretrained(folder)
    stated = {"size": 64, "do_resize": True, "do_rescale": True, "image_mean": MEAN, "image_std": STD}
    (folder / "preprocessor_config.json").write_text(json.dumps(stated), "utf-8")
    write_pictures(64)
    found, said = type_all("Hugging Face", capsys, gate=0)
    assert found["accurate"]["state"] == "yes"
    assert found["asked"]["state"] == "yes"
    assert "[read from preprocessor_config.json]" in said


def test_timm_from_published_weights_to_a_gate(capsys: pytest.CaptureFixture[str]) -> None:
    timm = pytest.importorskip("timm", reason="its networks are exported")
    safetensors = pytest.importorskip("safetensors.torch", reason="stores the weights")
    network = timm.create_model("mobilenetv3_small_050").eval()
    fit(
        network.classifier,
        lambda values: network.forward_head(network.forward_features(values), pre_logits=True),
        224,
        timm.data.create_transform(**timm.data.resolve_data_config({}, model=network)),
    )
    safetensors.save_file(
        network.state_dict(), str(cached("timm/mobilenetv3_small_050.lamb_in1k") / "model.safetensors")
    )
    write_pictures(224)
    found, said = type_all("timm", capsys, gate=0)
    assert found["accurate"]["state"] != "no"  # random weights have ranges that vary: DAT101
    assert "top-1 100.0 % -> 100.0 %" in said
    assert "squeeze-and-excite gate" in said
    assert "[read from config.json]" in said


def test_ultralytics_from_a_checkpoint_to_a_gate_that_refuses_random_weights(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ultralytics = pytest.importorskip("ultralytics", reason="exports the checkpoint: qdqtool[yolo]")
    ultralytics.YOLO("yolo11n.yaml").save("yolo11n.pt")
    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        for kind in ("images", "labels"):
            Path("datasets", "coco8", kind, split).mkdir(parents=True)
        for number in range(4):
            pixels = Image.fromarray(rng.integers(0, 255, (48, 64, 3), np.uint8))
            pixels.resize((640, 480)).save(f"datasets/coco8/images/{split}/{number}.jpg")
            Path("datasets/coco8/labels", split, f"{number}.txt").write_text("0 0.5 0.5 0.4 0.6\n", "utf-8")
    found, said = type_all("Ultralytics", capsys, gate=1)
    assert found["accurate"]["state"] == "no"
    assert "mAP50" in said
    assert "read from the metadata of yolo11n.onnx" in said


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # of torch's own exporter
@pytest.mark.parametrize("section", ["Torch-TensorRT", "torch2trt"])
def test_code_with_a_calibrator_becomes_code_with_explicit_nodes(section: str) -> None:
    class Net(torch.nn.Module):
        """A classifier of small pictures."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = torch.nn.Conv2d(3, 16, 3), torch.nn.Linear(16, 4)

        def forward(self, image: Any) -> Any:
            return self.last(torch.relu(self.first(image)).mean((2, 3)))

    batches = torch.randn(8, 1, 3, 16, 16)
    names: dict[str, Any] = {"torch": torch, "np": np, "model": Net().eval()}
    names |= {"data": batches[0], "inputs": (batches[0],), "dataset": [[batch] for batch in batches]}
    names["loader"] = [(batch, None) for batch in batches]
    text = (ROOT / "docs" / "guides" / "lost-calibrators.md").read_text("utf-8")
    for line in block(text, section):
        if line.startswith("qdqtool"):
            assert cli(shlex.split(line)[1:]) == 0, line
        else:
            exec(line, names)
    assert Path("runs/explicit/model.qdq.onnx").is_file()


def test_the_commands_of_the_guide_are_found() -> None:
    assert [len(typed(section)) for section in ("Ultralytics", "Hugging Face", "timm")] == [3, 3, 3]
