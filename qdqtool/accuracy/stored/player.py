"""Plays stored outputs back in the order of the samples they were computed from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from qdqtool.accuracy.stored.arrays import from_npz
from qdqtool.accuracy.stored.json_files import from_json
from qdqtool.accuracy.stored.raw_files import from_raw
from qdqtool.core.protocols import Feeds, Sample
from qdqtool.core.tensors import TensorInfo
from qdqtool.core.wording import counted
from qdqtool.errors import InputFileError

Outputs = Mapping[str, NDArray[Any]]
"""One sample's outputs by name."""

_READERS: dict[str, Callable[[Path], Sequence[Outputs]]] = {".npz": from_npz, ".json": from_json}


class Player:
    """A runner that gives the next stored outputs at every call, whatever it is fed."""

    inputs: tuple[TensorInfo, ...] = ()
    at_once = 1

    def __init__(self, stored: Sequence[Outputs], description: str) -> None:
        self._stored = stored
        self._next = 0
        self.description = description
        self.outputs: tuple[str, ...] = tuple(stored[0])

    def __len__(self) -> int:
        """For how many samples there are outputs."""
        return len(self._stored)

    def run(self, feeds: Feeds) -> dict[str, NDArray[Any]]:  # noqa: ARG002 -- a protocol
        """The outputs of the next sample.

        Raises:
            InputFileError: there were outputs for fewer samples.
        """
        if self._next == len(self._stored):
            raise InputFileError(
                f"holds outputs of {counted(len(self._stored), 'sample')} only",
                fix="give as many samples as there are stored outputs: --samples x.npz[0:10], or compare.limit",
                where=self.description,
            )
        self._next += 1
        return dict(self._stored[self._next - 1])


class Unfed:
    """Samples without inputs, for two sides of stored outputs; labels where somebody has them."""

    meaningful = True
    digest = ""

    def __init__(self, count: int, labels: Sequence[int] = ()) -> None:
        self._count = count
        self._labels = labels
        self.description = f"{counted(count, 'stored output')}"

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Sample]:
        for number in range(self._count):
            label = int(self._labels[number]) if self._labels else None
            yield Sample(name=f"sample {number}", feeds={}, label=label)


def open_stored(path: Path) -> Player:
    """Stored outputs, ready to be played back.

    Read are .npz files (arrays of N rows are N samples), the JSON of `polygraphy run --save-outputs` and of trtexec
    --exportOutput, the .raw files of trtexec --dumpRawBindingsToFile (a folder, or one file), and folders of any of
    these, one sample each, in the order of their names and numbers.

    Raises:
        InputFileError: unreadable, of no known form, or the samples do not have the same outputs.
    """
    stored = _read(path)
    names = set(stored[0]) if stored else set()
    odd = next((number for number, outputs in enumerate(stored) if set(outputs) != names), None)
    if not names or odd is not None:
        what = "holds no outputs" if odd is None else f"has other outputs in sample {odd} than in the first"
        raise InputFileError(what, fix="store the same outputs for every sample", where=str(path))
    return Player(stored, f"stored outputs {path.name}")


def _read(path: Path) -> list[Outputs]:
    if not path.exists():
        raise InputFileError("there is no such file or folder", fix="check the path", where=str(path))
    if path.is_file():
        return _file(path)
    entries = sorted((entry for entry in path.iterdir() if not entry.name.startswith(".")), key=_natural)
    raws = [entry for entry in entries if entry.suffix == ".raw"]
    if raws:
        return [{name: array for entry in raws for name, array in from_raw(entry).items()}]
    return [outputs for entry in entries for outputs in _read(entry)]


def _file(path: Path) -> list[Outputs]:
    if path.suffix == ".raw":
        return [from_raw(path)]
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise InputFileError(
            f"{path.suffix or 'no'} suffix: not a file of stored outputs",
            fix="pass .npz, .json, .raw, or a folder of them",
            where=str(path),
        )
    return list(reader(path))


def _natural(path: Path) -> tuple[tuple[bool, int, str], ...]:
    """Sort key under which sample10 comes after sample9."""
    parts = re.findall(r"\d+|\D+", path.name)
    return tuple((not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts)
