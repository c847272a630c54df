"""ResNet-20 for CIFAR-10, rebuilt in torch from an ONNX file, with its data: what `qat-cifar10-resnet20` trains.

Neither weights nor images are part of the project. The folder that the environment variable QDQTOOL_MODELS names
(without it: `shared/models` beside the checkout) must hold

    cifar10_resnet20/model.onnx            initializers named as in the PyTorch original (conv1.weight, bn1.bias, ...)
    data_cifar10/calib500_jpeg.npz         x: uint8 [500, 32, 32, 3], y: int64 [500], of the training set
    data_cifar10/test2000_jpeg.npz         the same of the test set
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn
from torch.nn import functional

BESIDE = Path(__file__).resolve().parents[3].parent / "shared" / "models"
MODELS = Path(os.environ.get("QDQTOOL_MODELS", BESIDE))
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Block(nn.Module):
    """Two convolutions beside a shortcut, which is halved and padded with zero channels where the width doubles."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        stride = 1 if before == after else 2
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.wider = (after - before) // 2

    def forward(self, value: Tensor) -> Tensor:
        result = functional.relu(self.bn1(self.conv1(value)))
        result = self.bn2(self.conv2(result))
        if self.wider:
            value = functional.pad(value[:, :, ::2, ::2], (0, 0, 0, 0, self.wider, self.wider))
        return functional.relu(result + value)


class ResNet20(nn.Module):
    """[N, 3, 32, 32] to scores of ten classes (He et al., 2016; option A shortcuts)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = nn.Sequential(Block(16, 16), Block(16, 16), Block(16, 16))
        self.layer2 = nn.Sequential(Block(16, 32), Block(32, 32), Block(32, 32))
        self.layer3 = nn.Sequential(Block(32, 64), Block(64, 64), Block(64, 64))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.linear = nn.Linear(64, 10)

    def forward(self, image: Tensor) -> Tensor:
        value = functional.relu(self.bn1(self.conv1(image)))
        value = self.layer3(self.layer2(self.layer1(value)))
        scores: Tensor = self.linear(self.flatten(self.pool(value)))
        return scores


def model() -> nn.Module:
    """The trained float network."""
    stored = onnx.load(MODELS / "cifar10_resnet20" / "model.onnx").graph.initializer
    weights = {tensor.name: torch.from_numpy(numpy_helper.to_array(tensor).copy()) for tensor in stored}
    network = ResNet20()
    known = network.state_dict()
    network.load_state_dict({name: weights.get(name, value) for name, value in known.items()})
    missing = {name for name in known if name not in weights and "num_batches" not in name}
    assert not missing, f"the ONNX file has no {sorted(missing)}"
    return network.eval()


def data(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Normalized images and their classes; 400 to train, 100 to choose the epoch, 1000 of the test set.

    The files may be sorted by class, so every split takes rows from the whole length.
    """
    name = "test2000_jpeg.npz" if split == "test" else "calib500_jpeg.npz"
    with np.load(MODELS / "data_cifar10" / name, allow_pickle=False) as archive:
        number = np.arange(len(archive["y"]))
        chosen = {"train": number % 5 != 0, "validate": number % 5 == 0, "test": number % 2 == 0}[split]
        pixels, labels = archive["x"][chosen], archive["y"][chosen]
    images = (pixels.astype(np.float32) / 255 - np.float32(MEAN)) / np.float32(STD)
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2)), labels.astype(np.int64)
