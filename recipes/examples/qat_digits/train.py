"""Train the float network of `qat-digits` and write `digits.npz` and `weights.npz` beside this script.

Run it only to make them anew (half a minute):

    python3 -m venv torchvenv
    torchvenv/bin/pip install torch==2.13.0 numpy scikit-learn
    torchvenv/bin/python recipes/examples/qat_digits/train.py

BatchNorm gains start spread over four decades instead of at one. Training leaves most of the spread in place, because
the next BatchNorm makes up for it: the float network is as good as any, but channels of very different size share
one activation scale, and once BatchNorm is folded the same holds for depthwise weights. Long training on large data
does that to real depthwise networks by itself; this stands in for it on a tiny one.
"""

from __future__ import annotations

import numpy as np
import torch
from network import FOLDER, Digits, data
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.nn import functional

EPOCHS = 60
DECADES = 4.0


def write_data() -> None:
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8).astype(np.uint8)
    rest, test = train_test_split(np.arange(len(labels)), test_size=600, stratify=labels, random_state=5)
    train, validate = train_test_split(rest, test_size=200, stratify=labels[rest], random_state=5)
    arrays = {}
    for name, rows in (("train", train), ("validate", validate), ("test", test)):
        arrays[f"{name}_image"] = images[rows]
        arrays[f"{name}_label"] = labels[rows].astype(np.uint8)
    np.savez_compressed(FOLDER / "digits.npz", **arrays)


def tensors(split: str) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = data(split)
    return torch.from_numpy(images), torch.from_numpy(labels)


def shifted(images: torch.Tensor) -> torch.Tensor:
    rows, columns = (int(step) for step in torch.randint(-1, 2, (2,)))
    return torch.roll(images, (rows, columns), dims=(2, 3))


def spread_gains(network: Digits) -> None:
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            with torch.no_grad():
                module.weight.copy_(10 ** (DECADES * (torch.rand(module.num_features) - 0.75)))


def main() -> None:
    torch.set_num_threads(1)
    write_data()
    torch.manual_seed(5)
    network = Digits()
    spread_gains(network)
    images, labels = tensors("train")
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
    steps = EPOCHS * (len(images) // 64)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)
    network.train()
    for _ in range(EPOCHS):
        order = torch.randperm(len(images))
        for start in range(0, len(images) - 63, 64):
            rows = order[start : start + 64]
            loss = functional.cross_entropy(
                network(shifted(images[rows])), labels[rows], label_smoothing=0.05
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    network.eval()
    for split in ("validate", "test"):
        images, labels = tensors(split)
        with torch.no_grad():
            print(split, 100 * float((network(images).argmax(1) == labels).float().mean()))
    weights = {name: value.numpy() for name, value in network.state_dict().items()}
    np.savez_compressed(FOLDER / "weights.npz", **weights)


if __name__ == "__main__":
    main()
