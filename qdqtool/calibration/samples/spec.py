"""Specification of samples on the command line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from qdqtool.core.recipe import Preprocess
from qdqtool.errors import UsageError

NanPolicy = Literal["error", "skip"]

_LONGEST_NAME = 255
"""Largest length of a file name in bytes on common file systems; for longer names the system reports an error."""
_SLICE = re.compile(r"^(?P<place>.+)\[(?P<slice>-?\d*:-?\d*(?::-?\d*)?)\]$", re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleSpec:
    """Choice of samples, and their conversion to model inputs.

    Attributes:
        text: a folder, an .npz, .npy or .json file, "module:function", or "random:16"; each may be followed by
            [start:stop:step], so that one data set gives disjoint calibration and evaluation samples.
        preprocess: how raw images and arrays become model inputs.
        limit: at most this many samples, after the slice.
        on_nan: what happens to a sample that holds NaN or Inf.
    """

    text: str
    preprocess: Preprocess
    limit: int | None = None
    on_nan: NanPolicy = "error"

    @property
    def place(self) -> str:
        """Text without the slice."""
        return self._parts()[0]

    def select(self, count: int) -> range:
        """Return the numbers of the chosen samples among `count`.

        Raises:
            UsageError: the step is not positive.
        """
        words = [int(word) if word else None for word in self._parts()[1].split(":")]
        start, stop, step = (*words, None, None)[:3]
        if step is not None and step < 1:
            raise UsageError(
                f"the step of {self.text!r} is {step}", fix="use a positive step, as in x.npz[0:100:2]"
            )
        return range(count)[slice(start, stop, step)][: self.limit]

    def _parts(self) -> tuple[str, str]:
        match = _SLICE.match(self.text)
        if match is None or is_there(self.text):
            return self.text, ":"
        return match["place"], match["slice"]


def is_there(text: str) -> bool:
    """Return whether `text` names an existing file or folder.

    Shapes of many inputs are longer than any file name and are not a path.
    """
    return len(Path(text).name) <= _LONGEST_NAME and Path(text).exists()
