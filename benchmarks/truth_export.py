"""Writes one network with random weights as ONNX; runs in the environment that `truth.py` makes, where torch is.

    python truth_export.py SOURCE OUT.onnx [--exporter legacy|dynamo] [--opset N] [--dynamic none|batch|all] [--seed N]

SOURCE is `timm:NAME`, `torchvision:NAME`, `transformers:MODEL_TYPE`, `sdpa:MODEL_TYPE` (attention as one operator),
`hand:NAME` or `modern:NAME` (`truth_networks.py`). `--list KIND` prints the names of
a library that are small enough to measure, one per line.

Weights are drawn, never loaded: nothing is fetched. Normalization layers get statistics of a forward pass in training
mode, so that activations keep a sensible range through deep networks.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from truth_networks import MODERN

MOST_PARAMETERS = 16_000_000
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
SMALL = {
    "hidden_size": 64, "d_model": 64, "n_embd": 64, "dim": 64, "embed_dim": 64, "embedding_size": 64,
    "intermediate_size": 128, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "d_ff": 128, "d_kv": 16,
    "num_hidden_layers": 2, "num_layers": 2, "n_layer": 2, "n_layers": 2, "encoder_layers": 2, "decoder_layers": 2,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 400, "image_size": 64,
    "patch_size": 8, "max_position_embeddings": 128, "n_positions": 128, "num_experts": 4, "num_local_experts": 4,
}  # fmt: skip
"""Sizes that make any configuration of a transformer small; those that a configuration does not have are left out."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Export one network.")
    parser.add_argument("source", nargs="?")
    parser.add_argument("out", nargs="?", type=Path)
    parser.add_argument("--exporter", choices=("legacy", "dynamo"), default="legacy")
    parser.add_argument("--opset", type=int, default=17)
    parser.add_argument("--dynamic", choices=("none", "batch", "all"), default="none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", choices=sorted(LISTS))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.list:
        print("\n".join(LISTS[options.list]()))
        return 0
    torch.manual_seed(options.seed)
    kind, _, name = options.source.partition(":")
    network, inputs = MAKERS[kind](name)
    count = sum(p.numel() for p in network.parameters())
    if count > MOST_PARAMETERS * 4:
        print(f"{count} parameters are too many to measure", file=sys.stderr)
        return 3
    warm_up(network, inputs)
    export(network, inputs, options)
    return 0


def export(network: nn.Module, inputs: dict[str, torch.Tensor], options: argparse.Namespace) -> None:
    """One ONNX file; the free dimensions are named after the input and the axis."""
    network = Flat(network.eval(), tuple(inputs)).eval()
    axes = {name: free_axes(name, value, options.dynamic) for name, value in inputs.items()}
    axes = {name: found for name, found in axes.items() if found}
    arguments = {"opset_version": options.opset, "input_names": list(inputs), "do_constant_folding": True}
    values = tuple(inputs.values())
    if options.exporter == "legacy":
        torch.onnx.export(network, values, str(options.out), dynamo=False, dynamic_axes=axes, **arguments)
        return
    shapes = None
    if axes:
        shapes = tuple(dict.fromkeys(axes.get(name, {}), torch.export.Dim.DYNAMIC) or None for name in inputs)
        shapes = (shapes,)
    torch.onnx.export(network, values, str(options.out), dynamo=True, dynamic_shapes=shapes, **arguments)


def free_axes(name: str, value: torch.Tensor, which: str) -> dict[int, str]:
    if which == "none":
        return {}
    last = value.dim() if which == "all" and value.dim() == 2 else 1
    return {axis: f"{name}_{axis}" for axis in range(last)}


class Flat(nn.Module):
    """Inputs by position, and of any nest of outputs the floating tensors, at most four."""

    def __init__(self, inner: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.inner = inner
        self.names = names

    def forward(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        by_name = self.names and self.names[0] != "x"
        made = self.inner(**dict(zip(self.names, values, strict=True))) if by_name else self.inner(*values)
        return tuple(tensors(made))[:4]


def tensors(made: Any) -> list[torch.Tensor]:
    if isinstance(made, torch.Tensor):
        return [made] if made.is_floating_point() else []
    if isinstance(made, dict):
        made = list(made.values())
    if isinstance(made, (list, tuple)):
        return [tensor for part in made for tensor in tensors(part)]
    return []


def warm_up(network: nn.Module, inputs: dict[str, torch.Tensor]) -> None:
    """Random weights of a trained network's kind: norms see one batch, so that nothing fades or explodes."""
    norms = [part for part in network.modules() if isinstance(part, _BATCH_NORMS)]
    for norm in norms:
        norm.momentum = None
        norm.train()
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.uniform_(norm.bias, -0.2, 0.2)
    if norms:
        network.eval()
        for norm in norms:
            norm.train()
        with torch.no_grad():
            flat = Flat(network, tuple(inputs))
            wide = [
                torch.cat([value, torch.randn_like(value)])
                if value.is_floating_point()
                else torch.cat([value] * 2)
                for value in inputs.values()
            ]
            flat(*wide)
    network.eval()


def from_timm(name: str) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    vision()
    import timm

    network = timm.create_model(name, pretrained=False, num_classes=10, exportable=True)
    size = network.default_cfg.get("input_size", (3, 224, 224))
    return network, {"x": torch.randn(1, *size)}


def from_torchvision(name: str) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    network = torchvision_model(name)
    shape = (3, 8, 64, 64) if "video" in type(network).__module__ else (3, 224, 224)
    return network, {"x": torch.randn(1, *shape)}


def from_transformers(name: str, attention: str = "eager") -> tuple[nn.Module, dict[str, torch.Tensor]]:
    vision()  # transformers imports torchvision where it is installed
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.for_model(name)
    shrink(config)
    config._attn_implementation = attention  # noqa: SLF001 -- "eager": the products stand in the graph as MatMul
    config._experts_implementation = "batched_mm"  # noqa: SLF001 -- the others have no form in ONNX
    if hasattr(config, "use_cache"):
        config.use_cache = False
    network = AutoModel.from_config(config)
    main = getattr(network, "main_input_name", "input_ids")
    if main == "pixel_values":
        size = getattr(config, "image_size", 64)
        size = size if isinstance(size, int) else size[0]
        return network, {main: torch.randn(1, getattr(config, "num_channels", 3), size, size)}
    if main == "input_values":
        return network, {main: torch.randn(1, 16000)}
    if main == "input_features":
        bins = getattr(config, "num_mel_bins", getattr(config, "feature_size", 80))
        return network, {main: torch.randn(1, bins, 200)}
    tokens = torch.randint(3, 300, (1, 32))
    inputs = {main: tokens}
    if getattr(config, "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = tokens[:, :16].clone()
    return network, inputs


def shrink(config: Any) -> None:
    for key, value in SMALL.items():
        if isinstance(getattr(config, key, None), int) and not isinstance(getattr(config, key), bool):
            try:
                setattr(config, key, min(value, getattr(config, key)))
            except (NotImplementedError, AttributeError, ValueError) as error:
                print(f"{key} stays: {error}", file=sys.stderr)
    if isinstance(getattr(config, "layer_types", None), list):
        with contextlib.suppress(AttributeError):  # some configurations compute it
            config.layer_types = config.layer_types[: config.num_hidden_layers]


def vision() -> Any:
    """Torchvision without its compiled operators, which need CUDA libraries in the wheels of the index."""
    real = torch.library.register_fake

    def lenient(operator: Any, *arguments: Any, **settings: Any) -> Any:
        if isinstance(operator, str) and operator.startswith("torchvision::"):
            return lambda function: function
        return real(operator, *arguments, **settings)

    torch.library.register_fake = lenient
    import torchvision

    torch.library.register_fake = real
    return torchvision


def timm_names() -> list[str]:
    vision()
    import timm

    return [name for name in timm.list_models() if small(lambda name=name: timm.create_model(name))]


def torchvision_model(name: str) -> nn.Module:
    """One of its models; those with a backbone would fetch weights for it unless told not to."""
    models = vision().models
    takes = inspect.signature(models.get_model_builder(name)).parameters
    backbone = {"weights_backbone": None} if "weights_backbone" in takes else {}
    return models.get_model(name, weights=None, num_classes=10, **backbone)


def torchvision_names() -> list[str]:
    models = vision().models
    wanted = [name for name in models.list_models() if "rcnn" not in name and "quant" not in name]
    wanted = [
        name
        for name in wanted
        if name not in {"fcos_resnet50_fpn", "ssd300_vgg16", "raft_large", "raft_small"}
    ]
    wanted = [name for name in wanted if not name.startswith(("retinanet", "ssdlite", "keypoint"))]
    return [name for name in wanted if small(lambda name=name: torchvision_model(name))]


def small(make: Callable[[], nn.Module]) -> bool:
    """Whether a network has few enough parameters; made without memory for them."""
    try:
        with torch.device("meta"):
            network = make()
    except (RuntimeError, NotImplementedError, ValueError, TypeError, KeyError, AttributeError, ImportError):
        return False
    return sum(p.numel() for p in network.parameters()) <= MOST_PARAMETERS


def transformers_names() -> list[str]:
    vision()
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return sorted(MODEL_MAPPING_NAMES)


class Recurrent(nn.Module):
    """A recurrent layer between two dense ones."""

    def __init__(self, kind: type[nn.RNNBase], **settings: Any) -> None:
        super().__init__()
        self.front = nn.Linear(20, 32)
        self.core = kind(32, 48, batch_first=True, **settings)
        self.head = nn.Linear(48 * (2 if settings.get("bidirectional") else 1), 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.core(functional.relu(self.front(x)))[0])


class Upsampler(nn.Module):
    """A decoder of transposed convolutions: stride 1, stride = kernel, overlapping, grouped and depthwise."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(
            nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(),
            nn.ConvTranspose2d(32, 32, 3, 1, 1), nn.ReLU(),
            nn.ConvTranspose2d(32, 24, 2, 2), nn.ReLU(),
            nn.ConvTranspose2d(24, 24, 4, 2, 1, groups=4), nn.ReLU(),
            nn.ConvTranspose2d(24, 24, 3, 2, 1, 1, groups=24), nn.ReLU(),
            nn.ConvTranspose2d(24, 16, 5, 2, 2, 1), nn.ReLU(), nn.Conv2d(16, 3, 1),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.parts(x)


class Attention(nn.Module):
    """One decoder block; `groups` key heads, rotary positions or an additive bias, products as einsum or matmul."""

    def __init__(
        self, *, groups: int = 4, rotary: bool = False, bias: bool = False, einsum: bool = False
    ) -> None:
        super().__init__()
        self.heads, self.groups, self.size = 4, groups, 16
        self.rotary, self.einsum = rotary, einsum
        self.table = nn.Embedding(300, 64)
        self.norm1, self.norm2 = nn.LayerNorm(64), nn.LayerNorm(64)
        self.q, self.out = nn.Linear(64, 64), nn.Linear(64, 64)
        self.kv = nn.Linear(64, 2 * groups * self.size)
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)
        self.positions = nn.Parameter(torch.randn(4, 32, 32)) if bias else None

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        steps = torch.arange(x.shape[2], dtype=torch.float32)[:, None] * 0.1 ** torch.arange(0, 8).float()
        left, right = x[..., :8], x[..., 8:]
        cos, sin = torch.cos(steps), torch.sin(steps)
        return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.table(x)
        for _ in range(2):
            z = self.norm1(y)
            q = self.q(z).unflatten(-1, (self.heads, self.size)).transpose(1, 2)
            k, v = (
                part.unflatten(-1, (self.groups, self.size)).transpose(1, 2)
                for part in self.kv(z).chunk(2, -1)
            )
            if self.rotary:
                q, k = self.rotate(q), self.rotate(k)
            if self.groups != self.heads:
                k, v = (part.repeat_interleave(self.heads // self.groups, 1) for part in (k, v))
            scores = torch.einsum("bhqd,bhkd->bhqk", q, k) if self.einsum else q @ k.transpose(-1, -2)
            scores = scores / 4
            if self.positions is not None:
                scores = scores + self.positions
            weights = scores.softmax(-1)
            mixed = torch.einsum("bhqk,bhkd->bhqd", weights, v) if self.einsum else weights @ v
            y = y + self.out(mixed.transpose(1, 2).flatten(2))
            y = y + self.down(functional.gelu(self.up(self.norm2(y))))
        return y


class Sampler(nn.Module):
    """Offsets computed by a convolution choose the pixels that the next one reads, as deformable layers do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.offsets = nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(16, 2, 3, 1, 1)
        self.last = nn.Conv2d(16, 8, 3, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.first(x))
        rows, columns = torch.meshgrid(torch.linspace(-1, 1, 32), torch.linspace(-1, 1, 32), indexing="ij")
        grid = torch.stack([columns, rows], -1)[None] + 0.1 * torch.tanh(self.offsets(y)).permute(0, 2, 3, 1)
        return self.last(functional.grid_sample(y, grid, align_corners=False))


class Branches(nn.Module):
    """Scripted: an If on the mean, and a loop whose count is known at run time only."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x))
        if bool(y.mean() > 0.1):  # noqa: SIM108 -- a ternary is scripted as Where
            y = y * 2.0
        else:
            y = y + 1.0
        for _ in range(int(x.shape[0]) + 1):
            y = torch.relu(self.second(y))
        return self.head(y.mean((2, 3)))


class Volume(nn.Module):
    """3-D convolutions down and up again."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(
            nn.Conv3d(1, 8, 3, 1, 1), nn.BatchNorm3d(8), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(8, 16, 3, 1, 1),
            nn.ReLU(), nn.ConvTranspose3d(16, 8, 2, 2), nn.ReLU(), nn.Conv3d(8, 2, 1),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.parts(x)


class Waves(nn.Module):
    """1-D convolutions as speech networks have them: strided, dilated, grouped, transposed, gated."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Conv1d(1, 32, 16, 8, 4)
        self.blocks = nn.ModuleList(nn.Conv1d(32, 64, 3, padding=d, dilation=d) for d in (1, 2, 4))
        self.mixes = nn.ModuleList(nn.Conv1d(32, 32, 1, groups=2) for _ in range(3))
        self.norms = nn.ModuleList(nn.GroupNorm(4, 32) for _ in range(3))
        self.decode = nn.ConvTranspose1d(32, 1, 16, 8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.encode(x)
        for block, mix, norm in zip(self.blocks, self.mixes, self.norms, strict=True):
            value, gate = block(norm(y)).chunk(2, 1)
            y = y + mix(torch.tanh(value) * torch.sigmoid(gate))
        return self.decode(y)


class Recommender(nn.Module):
    """Embeddings of ids, dot products between them, and a small perceptron: matrix times vector for one request."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(100, 16) for _ in range(6))
        self.dense = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(16 + 49, 64), nn.ReLU(), nn.Linear(64, 1), nn.Sigmoid())

    def forward(self, features: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        dense = self.dense(features)
        rows = torch.stack([dense, *(table(ids[:, i]) for i, table in enumerate(self.tables))], 1)
        return self.top(torch.cat([dense, (rows @ rows.transpose(1, 2)).flatten(1)], 1))


class Spectrogram(nn.Module):
    """Sounds to words: Fourier rows as a convolution, squares, a table of tones, a logarithm, convolutions.

    With `early` an activation stands in front of the logarithm, which then is no spectrogram's.
    """

    def __init__(self, *, early: bool = False) -> None:
        super().__init__()
        size, tones = 256, 40
        places, rows = torch.arange(size), torch.arange(size // 2 + 1)[:, None]
        angles, window = 2 * torch.pi * rows * places / size, torch.hann_window(size)
        self.register_buffer("real", (torch.cos(angles) * window)[:, None])
        self.register_buffer("imaginary", (torch.sin(angles) * window)[:, None])
        self.early = early
        self.tones = nn.Linear(size // 2 + 1, tones, bias=False)
        self.tones.weight.data.abs_()
        self.parts = nn.Sequential(
            nn.Conv1d(tones, 64, 3, padding=1), nn.ReLU(), nn.Conv1d(64, 64, 3, padding=1), nn.ReLU()
        )
        self.head = nn.Linear(64, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        waves = (functional.conv1d(x, rows, stride=128) for rows in (self.real, self.imaginary))
        power = sum(wave**2 for wave in waves).transpose(1, 2)
        energy = self.tones(functional.relu(power) if self.early else power)
        return self.head(self.parts(torch.log(energy + 1e-6).transpose(1, 2)).mean(-1))


def image(*shape: int) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(1, *shape)}


def words(length: int = 32) -> dict[str, torch.Tensor]:
    return {"x": torch.randint(0, 300, (1, length))}


HAND: dict[str, Callable[[], tuple[nn.Module, dict[str, torch.Tensor]]]] = {
    "gru": lambda: (Recurrent(nn.GRU), image(12, 20)),
    "gru-bidirectional": lambda: (Recurrent(nn.GRU, bidirectional=True, num_layers=2), image(12, 20)),
    "lstm": lambda: (Recurrent(nn.LSTM, num_layers=2), image(12, 20)),
    "rnn": lambda: (Recurrent(nn.RNN), image(12, 20)),
    "upsampler": lambda: (Upsampler(), image(3, 32, 32)),
    "attention": lambda: (Attention(), words()),
    "attention-bias": lambda: (Attention(bias=True), words()),
    "attention-grouped": lambda: (Attention(groups=2), words()),
    "attention-rotary": lambda: (Attention(rotary=True), words()),
    "attention-einsum": lambda: (Attention(einsum=True), words()),
    "sampler": lambda: (Sampler(), image(3, 64, 64)),
    "branches": lambda: (torch.jit.script(Branches()), image(3, 16, 16)),
    "volume": lambda: (Volume(), image(1, 16, 16, 16)),
    "waves": lambda: (Waves(), image(1, 800)),
    "recommender": lambda: (
        Recommender(),
        {"features": torch.randn(1, 13), "ids": torch.randint(0, 100, (1, 6))},
    ),
    "spectrogram": lambda: (Spectrogram(), image(1, 4096)),
    "spectrogram-late": lambda: (Spectrogram(early=True), image(1, 4096)),
}

MAKERS: dict[str, Callable[[str], tuple[nn.Module, dict[str, torch.Tensor]]]] = {
    "timm": from_timm,
    "torchvision": from_torchvision,
    "transformers": from_transformers,
    "sdpa": lambda name: from_transformers(name, "sdpa"),
    "hand": lambda name: HAND[name](),
    "modern": lambda name: MODERN[name](),
}
LISTS: dict[str, Callable[[], list[str]]] = {
    "timm": timm_names,
    "torchvision": torchvision_names,
    "transformers": transformers_names,
    "hand": lambda: list(HAND),
    "modern": lambda: list(MODERN),
}

if __name__ == "__main__":
    sys.exit(main())
