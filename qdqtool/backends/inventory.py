"""Inventory of this installation: installed packages, whether they work, and commands that install missing packages."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Final, Literal

from qdqtool._version import __version__
from qdqtool.backends import BUILDERS
from qdqtool.backends.gpu import Gpu, gpus
from qdqtool.core.artefacts import Artefact
from qdqtool.errors import MissingPackage
from qdqtool.io.child import run

State = Literal["works", "missing", "limited"]
# Tensor cores multiply INT8 since Turing, and those of Xavier (SM72) do too.
_INT8_CORES_FROM = 72
_EXTRAS = {
    "qat": ("torch", "onnxscript", "tensorboard"),
    "qat-nvidia": ("nvidia-modelopt", "requests", "huggingface_hub", "pytorch-quantization"),
    "sweep": ("optuna",),
    "postgres": ("psycopg",),
    "cluster": ("distributed", "cryptography"),
    "yolo": ("ultralytics",),
    "png": ("resvg-py",),
    "parquet": ("pyarrow",),
    "zstd": ("zstandard",),
    "dataframe": ("pandas",),
}
"""Packages of the extras that are not builders, by extra."""
_OTHERS = {
    "polars": "the same",
    "onnx-graphsurgeon": "its graphs as input and output of the Python calls",
}
"""Packages that are used if they are installed, but belong to no extra."""
_ZSTD_FROM = (3, 14)
"""First Python release that reads zstd without a package."""
_USES = {
    "qat": "qdqtool qat run, your own training loop",
    "qat-nvidia": "qat.engine: NVIDIA's quantizers instead of qdqtool's",
    "cluster": "qdqtool calibrate --cluster, qdqtool sweep --cluster",
    "yolo": "checkpoints (.pt) and data files of Ultralytics by name",
    "png": "charts and graphs as PNG; SVG needs no package",
    "parquet": "tables of layers and events as Parquet; CSV needs no package",
    "zstd": "logs and dumps packed with zstd",
    "dataframe": "results as data frames: to_dataframe()",
    "postgres": "studies of sweeps on PostgreSQL",
    "tensorboard": "curves of training",
}
"""Purpose of each extra, and of single packages that serve only part of an extra's purpose."""
_NEEDED = ("numpy", "onnx")
_TRIAL_S: Final = 60.0
"""Time limit in seconds to run a model of one node; TensorRT builds an engine for it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """State of one package, device or builder for `qdqtool doctor`.

    Attributes:
        name: name of the item.
        state: works, missing, or limited (here, but not good for all).
        detail: release, name or reason.
        enables: features that need it.
        fix: the command or step that gets it; empty if it works.
    """

    name: str
    state: State
    detail: str
    enables: str
    fix: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Inventory:
    """All packages, devices and builders that `qdqtool doctor` lists."""

    items: tuple[Item, ...]


INVENTORY = Artefact(kind="doctor", schema=1, type=Inventory)


def take_inventory() -> Inventory:
    """Check packages, GPU, devices and builders. Only devices are tried in processes that may crash."""
    here = gpus()
    items = [
        Item(
            name="qdqtool",
            state="works",
            detail=__version__,
            enables="everything below",
        ),
        Item(
            name="Python",
            state="works",
            detail=f"{platform.python_version()} on {platform.platform(terse=True)}",
            enables="the same",
        ),
        *(_package(name, "the core", "pip install --force-reinstall qdqtool") for name in _NEEDED),
        _onnxruntime(),
        *_devices(),
        _gpu(here),
        _builder("rtx", "real INT8 engines and their audit, no GPU needed", here=None),
        _builder("trt", "engines for this machine's GPU, timing", here=here),
        _builder("trtexec", "engines for this machine's GPU, timing, profiles", here=here),
    ]
    for extra, packages in _EXTRAS.items():
        if extra == "zstd" and sys.version_info >= _ZSTD_FROM:
            continue
        fix = f"pip install 'qdqtool[{extra}]'"
        items += [
            _package(name, _USES.get(name, _USES.get(extra, f"qdqtool {extra}")), fix) for name in packages
        ]
    items += [_package(name, enables, f"pip install {name}") for name, enables in _OTHERS.items()]
    return Inventory(items=tuple(items))


def _package(name: str, enables: str, fix: str) -> Item:
    """Check one Python package by its name on the package index."""
    version = _version(name)
    if version is None:
        return Item(name=name, state="missing", detail="not installed", enables=enables, fix=fix)
    return Item(name=name, state="works", detail=version, enables=enables)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _devices() -> list[Item]:
    """Check every value of `--device`, each in a separate process, so that a crash of a driver does not end this process."""
    from qdqtool.runtime.device import DEVICES, provider_of
    from qdqtool.runtime.session import how_to_get, is_installed

    items = []
    for word, device in DEVICES.items():
        name, enables = f"device {word}", f"--device {word}"
        if word == "cpu":
            items.append(Item(name=name, state="works", detail=device.provider, enables=enables))
        elif not is_installed(provider_of(word)):
            fix = how_to_get(provider_of(word))
            items.append(Item(name=name, state="missing", detail="not installed", enables=enables, fix=fix))
        else:
            trouble = _try_device(word)
            fix = trouble[1] if trouble else ""
            items.append(
                Item(
                    name=name,
                    state="limited" if trouble else "works",
                    detail=trouble[0] if trouble else device.provider,
                    enables=enables,
                    fix=fix,
                )
            )
    return items


def _try_device(word: str) -> tuple[str, str] | None:
    """Run a model of one node on an installed device. Return the problem and its fix; None if the model runs."""
    output: list[bytes] = []
    ended = run(
        (sys.executable, "-m", "qdqtool.runtime.trial", word), on_line=output.append, timeout_s=_TRIAL_S
    )
    if ended.code == 0:
        return None
    lines = b"".join(output).decode("utf-8", "replace").strip().splitlines() or ["it ended without a message"]
    problem, _, fix = lines[-1].partition("\t")
    return problem, fix or "check its driver; --device cpu works without it"


def _onnxruntime() -> Item:
    """Check onnxruntime. If two of its packages are installed, the second has overwritten the first."""
    from qdqtool.runtime.session import onnxruntime_packages, release

    here = onnxruntime_packages()
    if len(here) <= 1:
        return _package(here[0] if here else "onnxruntime", "the core", "pip install onnxruntime")
    kept = next((name for name in here if name != "onnxruntime"), here[0])
    return Item(
        name="onnxruntime",
        state="limited",
        detail=f"{release()}: {' and '.join(here)} overwrite each other",
        enables="the core",
        fix=f"pip uninstall -y {' '.join(here)} && pip install {kept}",
    )


def _gpu(here: tuple[Gpu, ...]) -> Item:
    enables = "timing; engines by TensorRT and trtexec"
    if not here:
        return Item(
            name="NVIDIA GPU",
            state="missing",
            detail="no driver, or no GPU",
            enables=enables,
            fix="not needed for placing, calibrating, building with rtx, auditing and comparing",
        )
    detail = "; ".join(
        f"{gpu.name} (sm{gpu.sm}, {gpu.memory_mib} MiB, CUDA up to {gpu.cuda[0]}.{gpu.cuda[1]})"
        for gpu in here
    )
    weak = all(gpu.sm < _INT8_CORES_FROM for gpu in here)
    return Item(
        name="NVIDIA GPU",
        state="limited" if weak else "works",
        detail=detail + (": no INT8 tensor cores" if weak else ": INT8 tensor cores"),
        enables=enables,
        fix="INT8 gains little here: use FP16, or a GPU from sm75 on" if weak else "",
    )


def _builder(name: str, enables: str, *, here: tuple[Gpu, ...] | None) -> Item:
    """Check a builder of `qdqtool doctor`; `here` are this machine's GPUs, or None if it needs no GPU."""
    try:
        version = BUILDERS.load(name).version()
    except MissingPackage as error:
        return Item(
            name=f"builder {name}", state="missing", detail=error.what, enables=enables, fix=error.fix
        )
    if here == ():
        return Item(
            name=f"builder {name}",
            state="limited",
            detail=f"{version}, but no GPU",
            enables=enables,
            fix="run it on a machine with an NVIDIA GPU",
        )
    return Item(name=f"builder {name}", state="works", detail=version, enables=enables)
