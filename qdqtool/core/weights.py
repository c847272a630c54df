"""Changes that calibration makes to a model's constants: rounding other than to nearest, and scaled channels."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qdqtool.core.grids import get_storage_type
from qdqtool.core.tensors import QuantFormat, by_name
from qdqtool.core.wording import Command
from qdqtool.errors import InputFileError
from qdqtool.io.files import replacing
from qdqtool.io.json_files import canonical

# --- changes ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RoundedWeight:
    """A weight that calibration rounded to its number format.

    Attributes:
        codes: the stored values, in the shape of the constant and the NumPy type of the format.
        scale: float32: (), (channels,), or one per block, as `Quantization` has it.
        format: how values are stored.
        axis: channel axis, or the axis that blocks divide; None for one scale.
        block: values along `axis` that share a scale; None without blocks.
        global_scale: second level of formats with two levels, else None.
    """

    codes: NDArray[Any]
    scale: NDArray[Any]
    format: QuantFormat
    axis: int | None = None
    block: int | None = None
    global_scale: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ScaledInput:
    """A tensor that some nodes read multiplied by a constant per channel.

    Attributes:
        tensor: the tensor that they read. The scaled tensor has its name, unless it is an input of the model.
        nodes: names of the nodes, which read it as input 0; other nodes read it unscaled.
        factors: one per channel.
        axis: channel axis: the last axis, or 1 for pictures.
    """

    tensor: str
    nodes: tuple[str, ...]
    factors: tuple[float, ...]
    axis: int = -1


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class WeightChanges:
    """Changed constants, by name. The nodes do not change, so a placement of the model stays valid.

    Attributes:
        values: new float values; all changes together leave the function of the network unchanged.
        rounded: weights in their format.
        scaled: inputs that are multiplied, if no constant can absorb the factor.
    """

    values: Mapping[str, NDArray[Any]] = field(default_factory=lambda: MappingProxyType({}))
    rounded: Mapping[str, RoundedWeight] = field(default_factory=lambda: MappingProxyType({}))
    scaled: tuple[ScaledInput, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.values or self.rounded or self.scaled)

    def rounding(self, rounded: Mapping[str, RoundedWeight]) -> WeightChanges:
        """Return a copy of the changes with these rounded weights added."""
        return replace(self, rounded={**self.rounded, **rounded})


# --- file ------------------------------------------------------------------------------------------------------------
# The file of weights that calibration changed: only arrays, uncompressed, so that reading needs no more memory than
# the file's size.

_FIX: Final = f"run {Command('calibrate')} again"


def save_weights(path: Path, changes: WeightChanges) -> None:
    """Write the changes to `path`; equal content gives equal bytes."""
    arrays: dict[str, NDArray[Any]] = {}
    about: dict[str, Any] = {"values": [], "rounded": [], "scaled": []}
    for name, value in sorted(changes.values.items()):
        arrays[f"value{len(about['values'])}"] = value
        about["values"].append(name)
    for name, entry in sorted(changes.rounded.items()):
        number = len(about["rounded"])
        arrays[f"codes{number}"] = entry.codes.view(np.uint8)
        arrays[f"scale{number}"] = np.asarray(entry.scale, np.float32)
        storage = {"format": entry.format.name, "axis": entry.axis, "block": entry.block}
        about["rounded"].append({"name": name, **storage, "global_scale": entry.global_scale})
    for each in changes.scaled:
        arrays[f"factors{len(about['scaled'])}"] = np.array(each.factors, np.float64)
        about["scaled"].append({"tensor": each.tensor, "nodes": list(each.nodes), "axis": each.axis})
    text = np.frombuffer(canonical(about).encode(), np.uint8)
    with replacing(path) as draft, draft.open("wb") as stream:
        np.savez(stream, about=text, **arrays)  # type: ignore[arg-type] # its stub knows one flag


def is_weights_file(path: Path) -> bool:
    """Return True if `save_weights` wrote the file at `path`; reads only its list of content."""
    try:
        with zipfile.ZipFile(path) as archive:
            about = json.loads(_array(archive.read("about.npy")).tobytes().decode())
    except (OSError, KeyError, ValueError, zipfile.BadZipFile):
        return False
    return isinstance(about, dict) and about.keys() == {"values", "rounded", "scaled"}


def load_weights(path: Path) -> WeightChanges:
    """Read the changes that `save_weights` wrote.

    Raises:
        InputFileError: unreadable or damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
                raise InputFileError(
                    "the file holds compressed arrays, which no qdqtool wrote", fix=_FIX, where=str(path)
                )
            arrays = {name: _array(archive.read(name)) for name in archive.namelist()}
        about = json.loads(arrays["about.npy"].tobytes().decode())
        return WeightChanges(
            values={name: arrays[f"value{number}.npy"] for number, name in enumerate(about["values"])},
            rounded={
                entry["name"]: _restore_rounded(
                    entry, arrays[f"codes{number}.npy"], arrays[f"scale{number}.npy"]
                )
                for number, entry in enumerate(about["rounded"])
            },
            scaled=tuple(
                ScaledInput(
                    tensor=entry["tensor"],
                    nodes=tuple(entry["nodes"]),
                    factors=tuple(arrays[f"factors{number}.npy"].tolist()),
                    axis=int(entry.get("axis", -1)),
                )
                for number, entry in enumerate(about["scaled"])
            ),
        )
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise InputFileError(f"the file is damaged: {error}", fix=_FIX, where=str(path)) from error


def _array(content: bytes) -> NDArray[Any]:
    array: NDArray[Any] = np.load(io.BytesIO(content), allow_pickle=False)
    return array


def _restore_rounded(entry: dict[str, Any], codes: NDArray[Any], scale: NDArray[Any]) -> RoundedWeight:
    format_ = by_name(entry["format"])
    return RoundedWeight(
        codes=codes.view(get_storage_type(format_.dtype)),
        scale=scale,
        format=format_,
        axis=entry["axis"],
        block=entry["block"],
        global_scale=entry["global_scale"],
    )
