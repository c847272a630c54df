"""Small networks with everything that can go wrong between torch and ONNX, as a recipe names them."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional


class Mixed(nn.Module):
    """Conv, BatchNorm, a residual Add, a Concat, a transposed Conv, pooling, one ReLU called twice, Linear."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8))
        self.act = nn.ReLU()
        self.inner = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), nn.BatchNorm2d(8))
        self.left, self.right = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.pool = nn.MaxPool2d(2)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(8, 5)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        value = self.act(self.stem(image))
        value = self.act(self.inner(value) + value)
        value = torch.cat([self.left(value), self.right(value)], dim=1)
        value = self.pool(functional.relu(self.up(value)))
        return self.head(self.drop(value.mean((2, 3))))


class Attention(nn.Module):
    """Linear layers on sequences (MatMul in ONNX, with the weight transposed) and a product of two activations."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))
        self.out = nn.Linear(16, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        weights = torch.softmax(self.query(tokens) @ self.key(tokens).transpose(1, 2) / 4.0, dim=-1)
        return self.out(weights @ self.value(tokens)).mean(1)


class Causal(Attention):
    """Attention whose mask is a buffer with -Inf."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.full((6, 6), -torch.inf).triu(1))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        scores = self.query(tokens) @ self.key(tokens).transpose(1, 2) / 4.0
        return self.out(torch.softmax(scores + self.mask, dim=-1) @ self.value(tokens)).mean(1)


class Residual(nn.Module):
    """Two blocks with shortcuts, one of them a strided convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.first = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8))
        self.second = nn.Sequential(nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16))
        self.shortcut = nn.Conv2d(8, 16, 1, stride=2)
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(16, 5)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        value = self.stem(image)
        value = functional.relu(self.first(value) + value)
        value = functional.relu(self.second(value) + self.shortcut(value))
        return self.head(torch.flatten(self.pool(value), 1))


class Depthwise(nn.Module):
    """Inverted bottlenecks: widened, depthwise, narrowed, beside a shortcut."""

    def __init__(self) -> None:
        super().__init__()

        def unit(before: int, after: int, size: int, groups: int = 1) -> list[nn.Module]:
            conv = nn.Conv2d(before, after, size, padding=size // 2, groups=groups, bias=False)
            return [conv, nn.BatchNorm2d(after), nn.ReLU6()]

        self.stem = nn.Sequential(*unit(3, 8, 3))
        self.block = nn.Sequential(*unit(8, 24, 1), *unit(24, 24, 3, 24), *unit(24, 8, 1)[:2])
        self.head = nn.Conv2d(8, 5, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        value = self.stem(image)
        return self.head(value + self.block(value)).mean((2, 3))


class Transformer(nn.Module):
    """One block of a small encoder: two heads, LayerNorm before each part, GELU, residuals around both."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(16), nn.LayerNorm(16)
        self.query, self.key, self.value, self.out = (nn.Linear(16, 16) for _ in range(4))
        self.wide, self.narrow = nn.Linear(16, 32), nn.Linear(32, 16)
        self.head = nn.Linear(16, 16)

    def heads(self, value: torch.Tensor) -> torch.Tensor:
        return value.reshape(-1, 6, 2, 8).transpose(1, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        value = self.before(tokens)
        query, key, content = (self.heads(part(value)) for part in (self.query, self.key, self.value))
        weights = torch.softmax(query @ key.transpose(2, 3) / 8**0.5, dim=-1)
        tokens = tokens + self.out((weights @ content).transpose(1, 2).reshape(-1, 6, 16))
        tokens = tokens + self.narrow(functional.gelu(self.wide(self.between(tokens))))
        return self.head(tokens).mean(1)[:, :4]


class Wide(nn.Module):
    """Two matrix products, for models that are too big for one file."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 64, bias=False), nn.Linear(64, 5, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.second(functional.relu(self.first(tokens))).mean(1)


class Quantized(nn.Module):
    """Somebody has put torch's own fake quantization into it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        image = torch.fake_quantize_per_tensor_affine(image, 0.1, 0, -128, 127)
        return self.conv(image).mean((2, 3))


class Shared(nn.Module):
    """One weight used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.head = nn.Conv2d(3, 4, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(self.conv(functional.relu(self.conv(image)))).mean((2, 3))


class Untraceable(nn.Module):
    """Its path depends on its data."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return image if image.sum() > 0 else -image


def _seeded(make: type[nn.Module]) -> nn.Module:
    torch.manual_seed(3)
    network = make()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 2.0)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            nn.init.normal_(module.running_mean)
    return network.eval()


def mixed() -> nn.Module:
    return _seeded(Mixed)


def attention() -> nn.Module:
    return _seeded(Attention)


def causal() -> nn.Module:
    return _seeded(Causal)


def residual() -> nn.Module:
    return _seeded(Residual)


def depthwise() -> nn.Module:
    return _seeded(Depthwise)


def transformer() -> nn.Module:
    return _seeded(Transformer)


def wide() -> nn.Module:
    return _seeded(Wide)


def quantized() -> nn.Module:
    return _seeded(Quantized)


def shared() -> nn.Module:
    return _seeded(Shared)


def untraceable() -> nn.Module:
    return Untraceable()


def no_module() -> str:
    return "not a network"


def images(split: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(len(split))
    labels = rng.integers(0, 4, 48)
    pixels = rng.normal(size=(48, 3, 8, 8)) + labels[:, None, None, None] / 4
    return pixels.astype(np.float32), labels


def tokens(split: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(len(split))
    return rng.normal(size=(48, 6, 16)).astype(np.float32), rng.integers(0, 4, 48)


def mislabelled(split: str) -> tuple[np.ndarray, np.ndarray]:
    found, labels = images(split)
    return found, 3 - labels


def wrong_targets(split: str) -> tuple[np.ndarray, np.ndarray]:
    found, labels = images(split)
    return found, labels[:-1]


def wrong_channels(split: str) -> tuple[np.ndarray, np.ndarray]:
    found, labels = images(split)
    return found[:, :2], labels


def two_inputs(split: str) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    found, labels = images(split)
    return (found, found), labels


def infinite(split: str) -> tuple[np.ndarray, np.ndarray]:
    found, labels = images(split)
    found[5, 0, 0, 0] = np.inf
    return found, labels


def nothing(split: str) -> None:
    return None


def empty(split: str) -> list[tuple[np.ndarray, np.ndarray]]:
    return []


class Shrinking:
    """A stream that ends earlier every time."""

    def __init__(self, split: str) -> None:
        self._data, self._passes = images(split), 0

    def __iter__(self):
        found, labels = self._data
        self._passes += 1
        for start in range(0, 48 - 16 * (self._passes > 2), 16):
            yield found[start : start + 16], labels[start : start + 16]


def shrinking(split: str) -> object:
    return Shrinking(split)


def growing(split: str) -> list[tuple[np.ndarray, np.ndarray]]:
    found, labels = images(split)
    return [(found[:16], labels[:16]), (np.pad(found[:16], ((0, 0), (0, 0), (0, 2), (0, 2))), labels[:16])]


class Pairs:
    """A dataset of single pairs, as torch's DataLoader takes it."""

    def __init__(self, split: str) -> None:
        self._data = images(split)

    def __len__(self) -> int:
        return len(self._data[1])

    def __getitem__(self, row: int) -> tuple[np.ndarray, int]:
        return self._data[0][row], int(self._data[1][row])


def pairs(split: str) -> Pairs:
    return Pairs(split)


def exploding(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A loss that is no number from the fifth step on."""
    exploding.steps += 1
    loss = functional.cross_entropy(outputs, targets)
    return loss * (float("nan") if exploding.steps > 4 else 1.0)


exploding.steps = 0


def undefined(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    """A metric that is never a number."""
    return float("nan")


class _Spike(torch.autograd.Function):
    """Nothing forward, no number backward."""

    @staticmethod
    def forward(_: object, outputs: torch.Tensor) -> torch.Tensor:
        return outputs.sum() * 0

    @staticmethod
    def backward(_: object, gradient: torch.Tensor) -> torch.Tensor:
        return torch.full((16, 5), float("nan"))


def spiking(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A loss that is a number and whose gradient is none, in the last step of the second epoch."""
    exploding.steps += 1
    loss = functional.cross_entropy(outputs, targets)
    return loss + _Spike.apply(outputs) if exploding.steps == 6 else loss
