"""Networks of kinds that no file of `--models` covers, trained here: for benchmarks/accuracy.py --files.

    python benchmarks/trained.py OUT [--quick] [--only NAME ...] [--models ../shared/models]

Needs torch. Writes OUT/NAME.onnx and OUT/NAME.npz, which holds the inputs by name and what is right as `labels`; prints the
line that measures them. No row was trained on.

- efficientnet: inverted bottlenecks with squeeze and excitation and SiLU, on CIFAR-10 from --models;
- sound: one-dimensional convolutions over raw waves, eight kinds of tone in noise, of all loudnesses;
- language: a decoder of characters with RMS norms and outlier channels in its stream;
- recommender: embeddings, products between features and dense layers; clicks that a hidden rule makes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

ROOT = Path(__file__).resolve().parent.parent
Data = tuple[dict[str, np.ndarray], np.ndarray]
"""Inputs by name, rows along the first axis, and the class of each row."""


class Bottleneck(nn.Module):
    """Wider, depthwise, squeeze and excitation, narrower; around it where the shape stays."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        wide = 4 * before
        self.begin = nn.Sequential(
            nn.Conv2d(before, wide, 1, bias=False),
            nn.BatchNorm2d(wide),
            nn.SiLU(),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            nn.SiLU(),
        )
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(wide, before // 2, 1),
            nn.SiLU(),
            nn.Conv2d(before // 2, wide, 1),
            nn.Sigmoid(),
        )
        self.end = nn.Sequential(nn.Conv2d(wide, after, 1, bias=False), nn.BatchNorm2d(after))
        self.around = stride == 1 and before == after

    def forward(self, image: Tensor) -> Tensor:
        wide = self.begin(image)
        narrow: Tensor = self.end(wide * self.gate(wide))
        return image + narrow if self.around else narrow


def efficientnet() -> nn.Module:
    plan = ((16, 16, 1), (16, 24, 2), (24, 24, 1), (24, 40, 2), (40, 40, 1), (40, 64, 2), (64, 64, 1))
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.SiLU(),
        *(Bottleneck(*one) for one in plan),
        nn.Conv2d(64, 128, 1, bias=False),
        nn.BatchNorm2d(128),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


def pictures(models: Path) -> Data:
    """CIFAR-10 as compressed pictures."""
    images, classes = [], []
    for name in ("calib500_jpeg.npz", "test2000_jpeg.npz"):
        with np.load(models / "data_cifar10" / name, allow_pickle=False) as stored:
            images.append(stored["x"])
            classes.append(stored["y"].reshape(-1))
    pixels = np.concatenate(images).astype(np.float32)
    pixels = pixels if pixels.shape[1] == 3 else pixels.transpose(0, 3, 1, 2)
    # The files hold one class after the other.
    order = np.random.default_rng(1).permutation(len(pixels))
    scaled = np.ascontiguousarray((pixels[order] - 120) / 64)
    return {"image": scaled}, np.concatenate(classes).astype(np.int64)[order]


def sound() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(1, 24, 33, 4, 16),
        nn.ReLU(),
        nn.Conv1d(24, 32, 9, 4, 4),
        nn.BatchNorm1d(32),
        nn.ReLU(),
        nn.Conv1d(32, 48, 9, 4, 4),
        nn.BatchNorm1d(48),
        nn.ReLU(),
        nn.Conv1d(48, 64, 5, 2, 2),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(64, 8),
    )


def waves(_models: Path, count: int = 3000, length: int = 2048) -> Data:
    """Tones that stay, rise, fall, tremble or break off, low and high, in noise of every strength."""
    random, time = np.random.default_rng(3), np.arange(length) / 16_000
    kinds = random.integers(0, 8, count)
    made = np.zeros((count, 1, length), np.float32)
    for row, kind in enumerate(kinds):
        tone, shape = (random.uniform(200, 500), random.uniform(700, 1600))[kind % 2], kind // 2
        bend = (0.0, random.uniform(2, 5), -random.uniform(2, 5), 0.0)[shape] * tone
        wave = np.sin(2 * np.pi * (tone * time + bend * time**2 / 2) + random.uniform(0, 6.3))
        if shape == 3:
            wave *= 0.5 + 0.5 * np.sin(2 * np.pi * random.uniform(20, 60) * time)
        noise = random.normal(size=length) * random.uniform(0.2, 1.5)
        made[row, 0] = (wave + noise) * 10 ** random.uniform(-1.5, 0)
    return {"wave": made}, kinds


class Recommender(nn.Module):
    """Embeddings and dense features to one vector each, all products between these, dense layers to two scores."""

    def __init__(self, tables: int = 6, ids: int = 400, width: int = 32) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(ids, width) for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, width), nn.ReLU())
        self.top = nn.Sequential(
            nn.Linear(width + (tables + 1) ** 2, 128),
            nn.ReLU(),
            nn.Linear(128, 64),
            nn.ReLU(),
            nn.Linear(64, 2),
        )

    def forward(self, features: Tensor, ids: Tensor) -> Tensor:
        dense = self.bottom(features)
        rows = torch.stack([dense, *(table(ids[:, at]) for at, table in enumerate(self.tables))], 1)
        products = torch.matmul(rows, rows.transpose(1, 2)).flatten(1)
        scores: Tensor = self.top(torch.cat([dense, products], 1))
        return scores


def clicks(_models: Path, count: int = 20_000) -> Data:
    """Features with long tails, ids by popularity; who clicks is decided by likings nobody sees, and chance."""
    random = np.random.default_rng(4)
    features = np.log1p(random.lognormal(0, 1.5, (count, 13))).astype(np.float32)
    ids = np.minimum(random.zipf(1.3, (count, 6)) - 1, 399).astype(np.int64)
    liking = random.normal(size=(6, 400, 4))
    chosen = np.stack([liking[table, ids[:, table]] for table in range(6)], 1)
    pull = np.einsum("nak,nbk->n", chosen[:, :3], chosen[:, 3:]) / 6 + features @ random.normal(size=13) / 2
    return {"features": features, "ids": ids}, (pull + random.logistic(size=count) > np.median(pull)).astype(
        np.int64
    )


class RmsNorm(nn.Module):
    """Root mean square over the last axis, and a gain per channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, stream: Tensor) -> Tensor:
        found: Tensor = stream / (stream.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * self.gain
        return found


class Block(nn.Module):
    """Causal attention and a gated feed-forward part, each after a norm and beside the stream."""

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([RmsNorm(width), RmsNorm(width)])
        self.project = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)
        self.register_buffer("mask", torch.full((length, length), -1e4).triu(1))

    def forward(self, stream: Tensor) -> Tensor:
        rows, length, width = stream.shape
        seen = self.norms[0](stream)
        query, key, value = (
            one(seen).reshape(rows, length, self.heads, -1).transpose(1, 2) for one in self.project[:3]
        )
        shares = (query @ key.transpose(2, 3) / (width // self.heads) ** 0.5 + self.mask).softmax(-1)
        stream = stream + self.project[3]((shares @ value).transpose(1, 2).reshape(rows, length, width))
        seen = self.norms[1](stream)
        found: Tensor = stream + self.down(functional.silu(self.gate(seen)) * self.up(seen))
        return found


class Language(nn.Module):
    """A decoder of characters. Three channels of its stream are large, as in large language models."""

    def __init__(self, width: int = 128, layers: int = 4, length: int = 64) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(128, width), nn.Parameter(torch.zeros(length, width))
        with torch.no_grad():
            self.tokens.weight[:, [5, 40, 99]] += torch.tensor([12.0, -20.0, 30.0])
        self.blocks = nn.Sequential(*(Block(width, 4, length) for _ in range(layers)))
        self.norm, self.head = RmsNorm(width), nn.Linear(width, 128, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores (rows, places, characters); for training (rows, characters, places)."""
        scores: Tensor = self.head(self.norm(self.blocks(self.tokens(tokens) + self.places)))
        return scores if torch.onnx.is_in_onnx_export() else scores.transpose(1, 2)


def text(_models: Path, count: int = 6000, length: int = 64) -> Data:
    """Pieces of the documentation of this project; each character is followed by the one to predict."""
    whole = "".join(path.read_text("utf-8") for path in sorted((ROOT / "docs").rglob("*.md")))
    codes = np.minimum(np.frombuffer(whole.encode("ascii", "replace"), np.uint8), 127).astype(np.int64)
    begins = np.random.default_rng(5).integers(0, len(codes) - length - 1, count)
    rows = codes[begins[:, None] + np.arange(length + 1)]
    return {"tokens": rows[:, :-1].copy()}, rows[:, 1:].copy()


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[Path], Data], int]] = {
    "efficientnet": (efficientnet, pictures, 12),
    "sound": (sound, waves, 6),
    "recommender": (Recommender, clicks, 3),
    "language": (Language, text, 12),
}
"""Network, data, epochs."""


def main() -> int:
    """Train, export and write the inputs."""
    parser = argparse.ArgumentParser(
        description="Train the networks that benchmarks/accuracy.py has no files of."
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", choices=NETWORKS, default=tuple(NETWORKS))
    parser.add_argument("--models", type=Path, default=ROOT.parent / "shared" / "models")
    parser.add_argument("--quick", action="store_true", help="one network, trained for one epoch")
    options = parser.parse_args()
    if options.quick:
        options.only = ("sound",)
    options.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)
    words = []
    for name in options.only:
        make, read, epochs = NETWORKS[name]
        epochs = 1 if options.quick else epochs
        inputs, classes = read(options.models)
        known = len(classes) * 3 // 5
        network = trained(
            make(), {key: value[:known] for key, value in inputs.items()}, classes[:known], epochs
        )
        path = options.out / f"{name}.onnx"
        export(network, {key: value[:2] for key, value in inputs.items()}, path)
        fresh = slice(known, known + 1200)
        rows = {key: value[fresh] for key, value in inputs.items()}
        np.savez(path.with_suffix(".npz"), labels=classes[fresh], **rows)
        words.append(f"{path}={path.with_suffix('.npz')}")
        print(
            f"{name}: {_right(network, inputs, classes, known):.2f} % of new samples",
            file=sys.stderr,
            flush=True,
        )
    print("python benchmarks/accuracy.py --files", *words)
    return 0


def trained(network: nn.Module, inputs: dict[str, np.ndarray], classes: np.ndarray, epochs: int) -> nn.Module:
    """The network after so many epochs of one cycle of the learning rate."""
    tensors = {key: torch.from_numpy(value) for key, value in inputs.items()}
    wanted = torch.from_numpy(classes)
    optimizer = torch.optim.AdamW(network.parameters(), lr=4e-3, weight_decay=1e-3)
    steps = epochs * -(-len(wanted) // 64)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    network.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(wanted)).split(64):
            batch = {key: value[rows] for key, value in tensors.items()}
            if "image" in batch and torch.rand(()) < 0.5:
                batch["image"] = batch["image"].flip(-1)
            loss = functional.cross_entropy(network(*batch.values()), wanted[rows], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return network.eval()


def export(network: nn.Module, inputs: dict[str, np.ndarray], path: Path) -> None:
    """Write it with a free number of rows."""
    torch.onnx.export(
        network,
        tuple(torch.from_numpy(value) for value in inputs.values()),
        path,
        input_names=list(inputs),
        output_names=["scores"],
        dynamic_axes={key: {0: "N"} for key in (*inputs, "scores")},
        opset_version=17,
        dynamo=False,
    )


def _right(network: nn.Module, inputs: dict[str, np.ndarray], classes: np.ndarray, known: int) -> float:
    with torch.no_grad():
        found = network(*(torch.from_numpy(value[known:]) for value in inputs.values())).argmax(1).numpy()
    return 100 * float((found == classes[known:]).mean())


if __name__ == "__main__":
    sys.exit(main())
