"""Train the embedded example: a small CNN that reads handwritten digits, and write it as ONNX with its samples.

The files beside this script are its output; run it only to make them anew (half a minute on two cores):

    python3 -m venv torchvenv
    torchvenv/bin/pip install torch==2.13.0 numpy scikit-learn onnx onnxscript
    torchvenv/bin/python recipes/examples/digits/train.py

The seed is fixed, so the same library versions on the same kind of processor give the same weights.

The 1 797 images of the data set are split three ways, class by class: 700 are kept for the evaluation and are
never seen before it, the rest trains the network, and 160 of the training images are the calibration samples.

Writes (all inputs are float32, shape [N, 1, 8, 8], ink from 0 to 1):
    digits.onnx       the network, opset 17, dynamic batch, BatchNormalization not folded
    calibration.npz   image: 160 samples
    evaluation.npz    image: 700 samples
    labels.npy        int64 [700], the digits of the evaluation samples
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional

SEED = 20
EVALUATION = 700
CALIBRATION = 160
EPOCHS = 90
BATCH = 64


class ConvUnit(nn.Sequential):
    """Convolution, BatchNormalization and an activation (nn.Identity leaves no node)."""

    def __init__(self, before: int, after: int, size: int = 3, *, act: nn.Module, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(before, after, size, padding=size // 2, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(after)
        self.act = act


class Residual(nn.Module):
    """Two convolutions beside a shortcut, which is projected where the channel count changes."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.first = ConvUnit(before, after, act=nn.ReLU())
        self.second = ConvUnit(after, after, act=nn.Identity())
        self.shortcut = nn.Identity() if before == after else nn.Conv2d(before, after, 1, bias=False)
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """[N, before, H, W] to [N, after, H, W]."""
        return self.act(self.second(self.first(x)) + self.shortcut(x))


class Separable(nn.Sequential):
    """A depthwise 3x3 convolution, then a pointwise one, both cut off at 6."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.depthwise = ConvUnit(before, before, groups=before, act=nn.ReLU6())
        self.pointwise = ConvUnit(before, after, 1, act=nn.ReLU6())


class Fork(nn.Module):
    """A narrow and a wide view of the same input, side by side in the channels."""

    def __init__(self, before: int, each: int) -> None:
        super().__init__()
        self.narrow = ConvUnit(before, each, 1, act=nn.ReLU())
        self.wide = ConvUnit(before, each, act=nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        """[N, before, H, W] to [N, 2 * each, H, W]."""
        return torch.cat([self.narrow(x), self.wide(x)], dim=1)


class Digits(nn.Module):
    """[N, 1, 8, 8] ink to [N, 10] logits."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvUnit(1, 16, act=nn.ReLU())
        self.widen = Residual(16, 32)
        self.refine = Residual(32, 32)
        self.halve = nn.MaxPool2d(2)
        self.separable = Separable(32, 64)
        self.fork = Fork(64, 32)
        self.mix = ConvUnit(64, 64, 1, act=nn.ReLU())
        self.average = nn.AdaptiveAvgPool2d(1)
        self.classify = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Read one digit per image."""
        x = self.halve(self.refine(self.widen(self.stem(x))))
        x = self.mix(self.fork(self.separable(x)))
        return self.classify(self.average(x).flatten(1))


def split() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Images and digits of `train`, `calibration` (a part of train) and `evaluation` (apart from both)."""
    digits = load_digits()
    ink = (digits.images[:, None] / 16).astype(np.float32)
    target = digits.target.astype(np.int64)
    x, x_eval, y, y_eval = train_test_split(
        ink, target, test_size=EVALUATION, stratify=target, random_state=SEED
    )
    _, x_cal, _, y_cal = train_test_split(x, y, test_size=CALIBRATION, stratify=y, random_state=SEED)
    return {"train": (x, y), "calibration": (x_cal, y_cal), "evaluation": (x_eval, y_eval)}


def shake(images: Tensor) -> Tensor:
    """Turn, scale and shift every image a little, as another hand would write it."""
    count = len(images)
    angle = torch.empty(count).uniform_(-0.26, 0.26)
    scale = torch.empty(count).uniform_(0.9, 1.12)
    move = torch.empty(count, 2).uniform_(-0.2, 0.2)
    rows = torch.stack([scale * angle.cos(), -scale * angle.sin(), move[:, 0]], 1)
    columns = torch.stack([scale * angle.sin(), scale * angle.cos(), move[:, 1]], 1)
    grid = functional.affine_grid(torch.stack([rows, columns], 1), list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, align_corners=False)


def train(model: Digits, images: np.ndarray, targets: np.ndarray) -> None:
    """Fit the network in place."""
    x, y = torch.from_numpy(images), torch.from_numpy(targets)
    whole = len(x) // BATCH * BATCH
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=EPOCHS * whole // BATCH)
    for epoch in range(EPOCHS):
        for chosen in torch.randperm(len(x))[:whole].split(BATCH):
            loss = functional.cross_entropy(model(shake(x[chosen])), y[chosen], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        if epoch % 10 == 0:
            print(f"epoch {epoch:2d}  loss {float(loss):.3f}")
    model.eval()


def accuracy(model: Digits, images: np.ndarray, targets: np.ndarray) -> float:
    """Part of the images that are read right."""
    with torch.no_grad():
        return float((model(torch.from_numpy(images)).argmax(1).numpy() == targets).mean())


def export(model: Digits, path: Path) -> None:
    """Write the network with BatchNormalization kept and nodes named by their place in it."""
    torch.onnx.export(
        model,
        (torch.zeros(1, 1, 8, 8),),
        str(path),
        input_names=["image"],
        output_names=["logits"],
        dynamic_axes={"image": {0: "batch"}, "logits": {0: "batch"}},
        opset_version=17,
        training=torch.onnx.TrainingMode.PRESERVE,
        dynamo=False,
    )
    written = onnx.load(path)
    onnx.checker.check_model(written, full_check=True)
    for node in written.graph.node:
        node.name = node.name.strip("/")
    onnx.save(written, path)


def main() -> None:
    """Train, check and write everything into one folder."""
    parser = argparse.ArgumentParser(
        description="Train the digits example; write it as ONNX with its samples."
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder to write into")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(mode=True)
    parts, model = split(), Digits()
    train(model, *parts["train"])
    for name in ("train", "evaluation"):
        print(f"{name} accuracy {accuracy(model, *parts[name]):.4f}")
    export(model, out / "digits.onnx")
    np.savez_compressed(out / "calibration.npz", image=parts["calibration"][0])
    np.savez_compressed(out / "evaluation.npz", image=parts["evaluation"][0])
    np.save(out / "labels.npy", parts["evaluation"][1])


if __name__ == "__main__":
    main()
