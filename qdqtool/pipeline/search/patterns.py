"""Remembers which edits made engines slower on a device, by the operators and shapes around an edit and not by the model.

Each result is one JSON file below `patterns` in the folder of finished builds. The name of the file is a digest of pattern,
device, release and flags, so folders of several people can be merged by copying. A result is recorded only if all of these are
known, and no dimension is free: the time of a dynamic batch depends on the batch.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from qdqtool.backends.timing.measure import Timing
from qdqtool.core.artefacts import Artefact
from qdqtool.core.fixes import SlotEdit, TimeGain
from qdqtool.core.placement import Slot
from qdqtool.errors import InputFileError
from qdqtool.graph.view import GraphView
from qdqtool.io.files import make_folder
from qdqtool.io.json_files import digest_of

FOLDER: Final = "patterns"
_FREE: Final = "free"
_UNKNOWN: Final = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowerPattern:
    """An edit that made an engine slower.

    Attributes:
        pattern: a line for each edited input: its node with shapes, the nodes beside it, and the new format.
        device: the GPU.
        release: of TensorRT there, as "10.16.0".
        flags: further flags of trtexec.
        words: what was measured, with the interval.
    """

    pattern: tuple[str, ...]
    device: str
    release: str
    flags: tuple[str, ...]
    words: str


SLOWER: Final = Artefact(kind="slower-pattern", schema=1, type=SlowerPattern)


def pattern_of(
    view: GraphView, edits: Iterable[SlotEdit], quantized: Container[Slot] = ()
) -> tuple[str, ...]:
    """Describe edits without names of nodes and tensors, so that equal parts of other models have the same description.

    Args:
        view: the float model.
        edits: the edited inputs.
        quantized: inputs that have Q/DQ before the edit.

    Returns:
        A sorted description; () if an edit is about a node that the float model does not have.
    """
    edits = tuple(edits)
    if any(edit.slot.node not in view.by_name for edit in edits):
        return ()
    return tuple(sorted(_describe(view, edit, quantized) for edit in edits))


def _describe(view: GraphView, edit: SlotEdit, quantized: Container[Slot]) -> str:
    node = view.by_name[edit.slot.node]
    readers = sorted(use.node.op for tensor in node.outputs for use in view.uses(tensor))
    sources = ", ".join(
        f"{_shape(view, tensor)} of {_origin(view, tensor)}"
        + (" with Q/DQ" if Slot(node=node.name, index=index) in quantized else "")
        for index, tensor in enumerate(node.inputs)
        if tensor
    )
    results = ", ".join(_shape(view, tensor) for tensor in filter(None, node.outputs))
    becomes = "float" if edit.scales == () else str(edit.format)
    return f"input {edit.slot.index} of {node.op} ({sources}) -> ({results}) for {', '.join(readers) or 'the output'}: {becomes}"


def _origin(view: GraphView, tensor: str) -> str:
    maker = view.producer(tensor)
    if maker is not None:
        return maker.op
    return "a constant" if view.is_constant(tensor) else "the model"


def _shape(view: GraphView, tensor: str) -> str:
    shape = view.constant_shape(tensor) if view.is_constant(tensor) else view.info(tensor).shape
    if shape is None:
        return _UNKNOWN
    return "x".join(str(dim) if isinstance(dim, int) else _FREE for dim in shape) or "scalar"


class SlowerPatterns:
    """Edit patterns that made engines slower on one device with one release, in this and in earlier searches.

    Args:
        cache: folder of finished builds; None remembers this search only.
        device: the GPU; "" if it is unknown.
        release: of TensorRT there; "" if it is unknown.
        flags: further flags of trtexec.
    """

    def __init__(self, cache: Path | None, device: str, release: str, flags: tuple[str, ...] = ()) -> None:
        self._folder = cache / FOLDER if cache is not None and device and release else None
        self._device = device
        self._release = release
        self._flags = flags
        self._measured: dict[tuple[str, ...], str] = {}

    def recall(self, pattern: tuple[str, ...]) -> str:
        """Describe how much slower this pattern was, in this or in an earlier search; "" if unknown."""
        if pattern in self._measured:
            return f"this edit at a node of the same kind was {self._measured[pattern]}"
        path = self._path(pattern)
        if path is None or not path.is_file():
            return ""
        try:
            result = SLOWER.read(path)
        except InputFileError:
            return ""  # a damaged file is measured and written again
        return f"in an earlier search on such a device, this edit was {result.words}; delete {path} to measure again"

    def weigh(
        self, timing: Timing, pattern: tuple[str, ...], place: str
    ) -> tuple[TimeGain | None, bool, str]:
        """Return the gain of an edit, whether the engine became faster, and both in words.

        If the engine became slower, remember the edit's pattern.

        There is no gain if kernel launches are the bottleneck.

        Args:
            timing: the engine before the edit, and the engine after it.
            pattern: of the edit; () remembers nothing.
            place: the machine that measured.
        """
        (verdict,), (old, new) = timing.verdicts, timing.summaries
        if verdict.answer == "bound by launches":
            words = f"kernel launches are the bottleneck on {place}, so {new.median:.4g} ms instead of {old.median:.4g} ms do not compare kernels"
            return None, False, words
        saved, low, high = (
            None if speedup is None else old.median * (1 - 1 / speedup)
            for speedup in (verdict.speedup, verdict.low, verdict.high)
        )
        assert saved is not None
        gain = TimeGain(ms=new.median, gain=saved, low=low, high=high)
        sure = "too few rounds for an interval" if low is None else f"95 %: {low:+.4f} to {high:+.4f} ms"
        words = f"{verdict.answer} on {place}: {new.median:.4g} ms instead of {old.median:.4g} ms, saves {saved:+.4f} ms ({sure})"
        if verdict.answer == "slower" and pattern:
            self.add(pattern, words)
        return gain, verdict.answer == "faster", words

    def add(self, pattern: tuple[str, ...], words: str) -> None:
        """Remember that an edit with this pattern made the engine slower."""
        self._measured[pattern] = words

    def save(self) -> None:
        """Store the patterns of a finished search.

        A stopped search stores none, because it must decide as before when it continues.

        Raises:
            SystemFault: the folder cannot be written.
        """
        for pattern, words in self._measured.items():
            path = self._path(pattern)
            if path is not None:
                make_folder(path.parent)
                result = SlowerPattern(
                    pattern=pattern,
                    device=self._device,
                    release=self._release,
                    flags=self._flags,
                    words=words,
                )
                SLOWER.write(path, result)

    def _path(self, pattern: tuple[str, ...]) -> Path | None:
        if self._folder is None or not pattern or any(_FREE in line or _UNKNOWN in line for line in pattern):
            return None
        about = [list(pattern), self._device, self._release, list(self._flags)]
        return self._folder / f"{digest_of(about)}.json"
