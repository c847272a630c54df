"""A small diffusion U-Net or transformer: trained on drawn shapes, recorded at all steps of its sampler, and compared.

    python benchmarks/diffusion.py train OUT [--network unet|dit] [--minutes 4]
    qdqtool run OUT/unet.onnx --recipe diffusion-int8 --samples OUT/steps.npz --eval-samples OUT/others.npz --out OUT/run
    python benchmarks/diffusion.py draw OUT OUT/run/model.qdq.onnx

`train` needs torch. It writes the network, the inputs of all steps of 16 pictures (steps.npz), and those of 16 other pictures
(others.npz). `draw` samples 64 pictures with the float and the quantized network, from equal noise, and prints their SQNR.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

import numpy as np

STEPS, SIZE, CHANNELS, WORDS, WIDTH = 20, 16, 4, 8, 128
"""Steps of the sampler; sizes of the pictures and of the text."""
_LENGTH = 1000
"""Time steps of the training."""
_KEPT = np.cumprod(1 - np.linspace(1e-4, 0.02, _LENGTH))
"""Share of the picture's variance that is left at each time step."""
Denoise = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def shapes(count: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return pictures of disks, rings, squares and bars in [-1, 1], and their kinds."""
    y, x = np.mgrid[:SIZE, :SIZE]
    kinds = random.integers(0, 4, count)
    pictures = np.empty((count, CHANNELS, SIZE, SIZE), np.float32)
    for picture, kind in zip(pictures, kinds, strict=True):
        middle, radius = random.uniform(5, 11, 2), random.uniform(2.5, 5)
        far = np.hypot(y - middle[0], x - middle[1])
        square = np.maximum(abs(y - middle[0]), abs(x - middle[1]))
        inside = (far < radius, abs(far - radius) < 1.2, square < radius, abs(y - middle[0]) < radius / 2)[
            kind
        ]
        picture[:] = np.where(inside, *random.uniform(-1, 1, (2, CHANNELS, 1, 1)))
    return pictures, kinds


def texts() -> np.ndarray:
    """Return the text of each kind: fixed random vectors."""
    return np.random.default_rng(3).standard_normal((4, WORDS, WIDTH)).astype(np.float32)


def sample(denoise: Denoise, kinds: np.ndarray, seed: int) -> tuple[np.ndarray, list[list[np.ndarray]]]:
    """Draw pictures in DDIM steps (Song, Meng, Ermon 2020); return them and the inputs of all steps."""
    x = np.random.default_rng(seed).standard_normal((len(kinds), CHANNELS, SIZE, SIZE)).astype(np.float32)
    text, inputs = texts()[kinds], []
    times = np.linspace(_LENGTH - 1, 0, STEPS).astype(int)
    for now, following in zip(times, [*times[1:], -1], strict=True):
        step = np.full(len(kinds), now, np.float32)
        inputs.append([x, step, text])
        noise = denoise(x, step, text)
        kept, next_kept = _KEPT[now], _KEPT[following] if following >= 0 else 1.0
        picture = (x - np.sqrt(1 - kept) * noise) / np.sqrt(kept)
        x = (np.sqrt(next_kept) * picture + np.sqrt(1 - next_kept) * noise).astype(np.float32)
    return x, inputs


def train(folder: Path, kind: str, minutes: float) -> None:
    """Train, export and record the inputs of the sampler."""
    import torch
    from truth_networks import Denoiser, Dit

    torch.manual_seed(1)
    random = np.random.default_rng(1)
    network = Denoiser() if kind == "unet" else Dit(3)
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3)
    known = torch.from_numpy(_KEPT).float()
    words = torch.from_numpy(texts())
    ends, rounds, loss = monotonic() + 60 * minutes, 0, torch.zeros(())
    while (left := ends - monotonic()) > 0:
        pictures, kinds = shapes(64, random)
        steps = torch.from_numpy(random.integers(0, _LENGTH, 64))
        noise = torch.randn(64, CHANNELS, SIZE, SIZE)
        kept = known[steps][:, None, None, None]
        x = kept.sqrt() * torch.from_numpy(pictures) + (1 - kept).sqrt() * noise
        more = (words[kinds],) if kind == "unet" else ()
        loss = ((network(x, steps.float(), *more) - noise) ** 2).mean()
        optimizer.param_groups[0]["lr"] = 2e-3 * min(1.0, 2 * left / (60 * minutes))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rounds += 1
    network.eval()
    print(f"{rounds} rounds, loss {loss.item():.3f}", file=sys.stderr)

    def denoise(*arrays: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return network(*map(torch.from_numpy, arrays[: len(names)])).numpy()

    names = ("x", "step", "text")[: 3 if kind == "unet" else 2]
    folder.mkdir(parents=True, exist_ok=True)
    for seed, name in ((1, "steps"), (2, "others")):
        _, inputs = sample(denoise, np.arange(16) % 4, seed)
        columns = zip(*inputs, strict=True)
        np.savez(folder / f"{name}.npz", **dict(zip(names, map(np.concatenate, columns), strict=False)))
    example = tuple(map(torch.from_numpy, inputs[0][: len(names)]))
    torch.onnx.export(
        network,
        example,
        folder / f"{kind}.onnx",
        input_names=list(names),
        output_names=["noise"],
        dynamic_axes={name: {0: "N"} for name in (*names, "noise")},
        opset_version=17,
        dynamo=False,
    )


def draw(folder: Path, quantized: Path) -> None:
    """Print the SQNR of pictures that the quantized network draws, in dB."""
    import onnxruntime

    path = next(path for path in (folder / "unet.onnx", folder / "dit.onnx") if path.exists())
    pictures = []
    for model in (path, quantized):
        session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
        names = [value.name for value in session.get_inputs()]

        def denoise(*arrays: np.ndarray, session=session, names=names) -> np.ndarray:
            return session.run(None, dict(zip(names, arrays, strict=False)))[0]

        pictures.append(sample(denoise, np.arange(64) % 4, 3)[0])
    first, second = pictures
    print(f"pictures: {10 * np.log10((first**2).sum() / ((first - second) ** 2).sum()):.1f} dB")


def main() -> int:
    """Train a network, or compare what it draws."""
    parser = argparse.ArgumentParser(description="A small diffusion network.")
    parser.add_argument("--quick", action="store_true", help="only check that a network trains, in seconds")
    commands = parser.add_subparsers(dest="command")
    first = commands.add_parser("train", help="train, export and record inputs")
    first.add_argument("folder", type=Path)
    first.add_argument("--network", choices=("unet", "dit"), default="unet")
    first.add_argument("--minutes", type=float, default=4)
    second = commands.add_parser("draw", help="compare drawn pictures")
    second.add_argument("folder", type=Path)
    second.add_argument("quantized", type=Path)
    options = parser.parse_args()
    if options.quick:
        with TemporaryDirectory() as folder:
            train(Path(folder), "unet", 0.05)
    elif options.command is None:
        parser.error("name a command: train or draw")
    elif options.command == "train":
        train(options.folder, options.network, options.minutes)
    else:
        draw(options.folder, options.quantized)
    return 0


if __name__ == "__main__":
    sys.exit(main())
