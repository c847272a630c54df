"""Train the float detector of `qat-detector` and write `weights.npz` beside this script (a minute on one core).

    python recipes/examples/qat_detector/train.py

BatchNorm gains start spread over three decades, as in `../qat_digits/train.py`, which says why.
"""

from __future__ import annotations

import numpy as np
import torch
from network import FOLDER, Detector, data, loss, mean_average_precision

EPOCHS = 100
DECADES = 3.0


def spread_gains(network: Detector) -> None:
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            with torch.no_grad():
                module.weight.copy_(10 ** (DECADES * (torch.rand(module.num_features) - 0.75)))


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(5)
    network = Detector()
    spread_gains(network)
    torch.nn.init.constant_(network.scores.bias, -4.0)
    images, boxes = (torch.from_numpy(array) for array in data("train"))
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2, weight_decay=1e-4)
    steps = EPOCHS * (len(images) // 40)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps)
    network.train()
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(images)).split(40):
            value = loss(network(images[rows]), boxes[rows])
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            schedule.step()
    network.eval()
    for split in ("validate", "test"):
        images, boxes = (torch.from_numpy(array) for array in data(split))
        with torch.no_grad():
            print(split, mean_average_precision(network(images), boxes))
    weights = {name: value.numpy() for name, value in network.state_dict().items()}
    np.savez_compressed(FOLDER / "weights.npz", **weights)


if __name__ == "__main__":
    main()
