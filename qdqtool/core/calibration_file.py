"""calibration.json, which may have a file of changed weights beside it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from qdqtool.core.artefacts import Artefact
from qdqtool.core.calibration import CalibrationTable
from qdqtool.errors import InputFileError
from qdqtool.io.files import digest_file

_FIX: Final = "run `qdqtool calibrate` again, and keep the two files together"
_SUFFIX: Final = ".weights.npz"


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrationFile(Artefact[CalibrationTable]):
    """The artefact `calibration`, which may have a file of weights beside it."""

    def write(self, path: Path, data: CalibrationTable, provenance: dict[str, str] | None = None) -> None:
        """Write `data` at `path`, and the weights it changes beside it."""
        beside = path.with_name(path.stem + _SUFFIX)
        if data.weights:
            from qdqtool.core.weights_file import save_weights

            save_weights(beside, data.weights)
            data = replace(data, weights_digest=digest_file(beside))
        else:
            beside.unlink(missing_ok=True)
            data = replace(data, weights_digest="")
        # super() knows no class in a dataclass with slots, which is made anew
        Artefact.write(self, path, data, provenance)

    def read(self, path: Path) -> CalibrationTable:
        """The table at `path`, with the weights it changes.

        Raises:
            InputFileError: as `Artefact.read`, or the file of weights is missing, damaged or another one.
        """
        data = Artefact.read(self, path)
        if not data.weights_digest:
            return data
        beside = path.with_name(path.stem + _SUFFIX)
        if not beside.is_file() or digest_file(beside) != data.weights_digest:
            raise InputFileError(
                f"is not the file of weights that {path.name} names", fix=_FIX, where=str(beside)
            )
        from qdqtool.core.weights_file import load_weights

        return replace(data, weights=load_weights(beside))
