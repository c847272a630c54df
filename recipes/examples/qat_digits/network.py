"""A small depthwise-separable network that reads handwritten digits, with its data: what `qat-digits` trains.

`digits.npz` holds the 1 797 images of scikit-learn's digits (8 x 8 pixels, ink from 0 to 16), split class by class
into 997 for training, 200 for validation and 600 for the test. `weights.npz` holds the trained float weights.
Both are written by `train.py` in this folder.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

FOLDER = Path(__file__).resolve().parent
CHANNELS = (16, 24, 24, 32, 32)


def unit(before: int, after: int, size: int, groups: int = 1) -> list[nn.Module]:
    """Convolution, BatchNorm and ReLU."""
    conv = nn.Conv2d(before, after, size, padding=size // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(after), nn.ReLU()]


class Separable(nn.Module):
    """A 3 x 3 convolution per channel and a 1 x 1 convolution, beside a shortcut where the channels agree."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.depthwise = nn.Sequential(*unit(before, before, 3, groups=before))
        self.pointwise = nn.Sequential(*unit(before, after, 1))
        self.same = before == after

    def forward(self, value: Tensor) -> Tensor:
        result: Tensor = self.pointwise(self.depthwise(value))
        return value + result if self.same else result


class Digits(nn.Module):
    """[N, 1, 8, 8] to scores of ten digits."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(*unit(1, CHANNELS[0], 3))
        self.blocks = nn.Sequential(*(Separable(before, after) for before, after in pairwise(CHANNELS)))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.classify = nn.Linear(CHANNELS[-1], 10)

    def forward(self, image: Tensor) -> Tensor:
        scores: Tensor = self.classify(self.flatten(self.pool(self.blocks(self.stem(image)))))
        return scores


def model() -> nn.Module:
    """The trained float network."""
    network = Digits()
    with np.load(FOLDER / "weights.npz", allow_pickle=False) as archive:
        network.load_state_dict({name: torch.from_numpy(archive[name]) for name in archive.files})
    return network.eval()


def data(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Images from 0 to 1 and their digits."""
    with np.load(FOLDER / "digits.npz", allow_pickle=False) as archive:
        images = archive[f"{split}_image"].astype(np.float32) / 16
        return images[:, None], archive[f"{split}_label"].astype(np.int64)
