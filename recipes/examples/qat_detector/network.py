"""A small one-stage detector with two heads, and synthetic scenes with boxes: what `qat-detector` trains.

A scene is a grey noisy image of 48 x 48 pixels with one to four shapes: squares, discs and crosses of random size and
brightness, some of them overlapping. The detector has no anchors: every cell of a 12 x 12 grid says how likely a shape of each class has its
centre there (head `scores`), and where its edges are (head `boxes`: distances to left, top, right and bottom, in
pixels / 8). `weights.npz` holds the trained float weights; `train.py` in this folder writes it.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

FOLDER = Path(__file__).resolve().parent
SIZE, STRIDE, CELLS, CLASSES, MOST = 48, 4, 12, 3, 4
SPLITS = {"train": (0, 1000), "validate": (10_000, 200), "test": (20_000, 400)}
CHANNELS = (12, 16, 24, 32, 32)


def unit(before: int, after: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """Convolution, BatchNorm and ReLU."""
    size = 1 if groups == 1 and stride == 1 and before != 1 else 3
    conv = nn.Conv2d(before, after, size, stride, padding=size // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(after), nn.ReLU()]


class Detector(nn.Module):
    """[N, 1, 48, 48] to scores [N, 3, 12, 12] before the sigmoid and boxes [N, 4, 12, 12]."""

    def __init__(self) -> None:
        super().__init__()
        layers = unit(1, CHANNELS[0], 2)
        for place, (before, after) in enumerate(pairwise(CHANNELS)):
            layers += unit(before, before, 2 if place == 0 else 1, groups=before) + unit(before, after)
        self.trunk = nn.Sequential(*layers)
        self.scores = nn.Conv2d(CHANNELS[-1], CLASSES, 1)
        self.boxes = nn.Conv2d(CHANNELS[-1], 4, 1)

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        value = self.trunk(image)
        return {"scores": self.scores(value), "boxes": functional.relu(self.boxes(value))}


def model() -> nn.Module:
    """The trained float network."""
    network = Detector()
    with np.load(FOLDER / "weights.npz", allow_pickle=False) as archive:
        network.load_state_dict({name: torch.from_numpy(archive[name]) for name in archive.files})
    return network.eval()


def data(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Images, and boxes [N, 4, 5]: left, top, right, bottom, class; class -1 where there is no shape."""
    first, count = SPLITS[split]
    scenes = [scene(first + number) for number in range(count)]
    return np.stack([image for image, _ in scenes])[:, None], np.stack([boxes for _, boxes in scenes])


def scene(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """One image and its boxes; the same seed gives the same scene."""
    random = np.random.default_rng(seed)
    image = random.normal(0.45, 0.12, (SIZE, SIZE)).astype(np.float32)
    boxes = np.full((MOST, 5), -1, np.float32)
    rows, columns = np.mgrid[:SIZE, :SIZE]
    for place in range(int(random.integers(1, MOST + 1))):
        half = int(random.integers(4, 10))
        x, y = (int(value) for value in random.integers(half, SIZE - half, 2))
        kind = int(random.integers(CLASSES))
        across, down = np.abs(columns - x), np.abs(rows - y)
        inside = {
            0: np.maximum(across, down) <= half,
            1: across**2 + down**2 <= half**2,
            2: (np.minimum(across, down) <= half // 3) & (np.maximum(across, down) <= half),
        }[kind]
        image[inside] += random.uniform(0.25, 0.5) * random.choice([-1, 1])
        boxes[place] = (x - half, y - half, x + half, y + half, kind)
    return np.clip(image, 0, 1), boxes


def loss(outputs: dict[str, Tensor], targets: Tensor) -> Tensor:
    """Focal loss of the scores (Lin et al., 2017) and 1 - IoU of the boxes, at the cells that hold a centre."""
    scores, boxes = outputs["scores"], outputs["boxes"]
    wanted, found, truth = torch.zeros_like(scores), [], []
    image, place = torch.nonzero(targets[..., 4] >= 0, as_tuple=True)
    known = targets[image, place]
    column, row = (((known[:, axis] + known[:, axis + 2]) / 2 / STRIDE).long() for axis in (0, 1))
    wanted[image, known[:, 4].long(), row, column] = 1
    found = edges(boxes)[image, :, row, column]
    truth = known[:, :4]
    chance = torch.sigmoid(scores)
    right = torch.where(wanted > 0, chance, 1 - chance)
    weight = torch.where(wanted > 0, 0.75, 0.25) * (1 - right) ** 2
    focal = -(weight * torch.log(right.clamp_min(1e-6))).sum() / max(1, len(known))
    return focal + (1 - overlaps(found, truth)).mean()


def edges(boxes: Tensor) -> Tensor:
    """Left, top, right, bottom in pixels from the distances of every cell."""
    centre = (torch.arange(CELLS, device=boxes.device) + 0.5) * STRIDE
    x, y = centre[None, :].expand(CELLS, CELLS), centre[:, None].expand(CELLS, CELLS)
    left, top, right, bottom = (8 * boxes[:, side] for side in range(4))
    return torch.stack([x - left, y - top, x + right, y + bottom], dim=1)


def overlaps(first: Tensor, second: Tensor) -> Tensor:
    """Intersection over union, box by box."""
    low, high = torch.maximum(first[..., :2], second[..., :2]), torch.minimum(first[..., 2:], second[..., 2:])
    shared = (high - low).clamp_min(0).prod(-1)
    areas = [(each[..., 2:] - each[..., :2]).clamp_min(0).prod(-1) for each in (first, second)]
    return shared / (areas[0] + areas[1] - shared).clamp_min(1e-6)


def mean_average_precision(outputs: dict[str, Tensor], targets: Tensor) -> float:
    """Mean over classes of the average precision at IoU 0.5, in percent."""
    chance = torch.sigmoid(outputs["scores"])
    # A cell counts where it is the best of its neighbours: the suppression of a detector on a grid (CenterNet).
    peaks = chance * (chance == functional.max_pool2d(chance, 3, 1, 1))
    best, flat = peaks.flatten(1).topk(20)
    image = torch.arange(len(best))[:, None].expand_as(best)
    kind, cell = flat // (CELLS * CELLS), flat % (CELLS * CELLS)
    boxes = edges(outputs["boxes"]).flatten(2)[image, :, cell]
    fit = overlaps(boxes[:, :, None], targets[:, None, :, :4])
    fit[(targets[:, None, :, 4] != kind[:, :, None])] = 0
    # Every true box is found once, by the most certain of those that overlap it by half.
    right = torch.zeros_like(best, dtype=torch.bool)
    taken = torch.zeros(targets.shape[:2], dtype=torch.bool)
    every = torch.arange(len(best))
    for rank in range(best.shape[1]):
        value, place = (fit[:, rank] * ~taken).max(1)
        right[:, rank] = value >= 0.5
        taken[every, place] |= right[:, rank]
    return 100 * float(
        np.mean(
            [
                _average_precision(
                    best[kind == each], right[kind == each], int((targets[..., 4] == each).sum())
                )
                for each in range(CLASSES)
            ]
        )
    )


def _average_precision(scores: Tensor, right: Tensor, present: int) -> float:
    """Area under precision over recall, precision made falling, as COCO and VOC count it."""
    hits = right[torch.argsort(-scores, stable=True)].numpy()
    found = np.cumsum(hits)
    precision = np.maximum.accumulate((found / np.arange(1, len(hits) + 1))[::-1])[::-1]
    return float((precision * hits).sum() / max(1, present))
