"""Measures on a machine with trtexec whether an edit makes the engine faster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qdqtool.backends.shapes import Shapes
from qdqtool.backends.timing.measure import TIMING, Timing
from qdqtool.core.fixes import TimeGain
from qdqtool.errors import BuildError
from qdqtool.io.json_files import digest_of
from qdqtool.pipeline.search.patterns import SlowerPatterns
from qdqtool.pipeline.sweep.elsewhere import Host, digest_models, identify, time_models


class HostClock:
    """Times two models alternately on one machine. Finished times stay in a folder for a continued search.

    Attributes:
        measures: description of the measured time; "" before the first measurement.
        patterns: edits that are known to be slower on the machine.

    Args:
        host: the machine.
        trtexec: the program there; "" looks for it.
        folder: for times and the files that are sent.
        flags: further flags of trtexec.
        cache: folder of finished builds with the patterns of earlier searches, or None.
        shapes: of dynamic inputs; None takes shapes with which each model runs.

    """

    def __init__(
        self,
        host: Host,
        trtexec: str,
        folder: Path,
        flags: Sequence[str] = (),
        cache: Path | None = None,
        shapes: Shapes | None = None,
    ) -> None:
        self._host = host
        self._trtexec = trtexec
        self._folder = folder
        self._flags = list(flags)
        self._shapes = shapes
        gpu, release = identify(host, trtexec)
        self.patterns = SlowerPatterns(cache, gpu, release, tuple(flags))
        self.measures = ""

    def compare(
        self, before: Path, after: Path, pattern: tuple[str, ...] = ()
    ) -> tuple[TimeGain | None, bool, str]:
        """Time two models alternately; return the gain, whether `after` is faster, and both in words.

        If it is slower, the pattern of the one edit between both is remembered.

        There is no gain if trtexec builds no engine of `after`, or if kernel launches are the bottleneck.

        Raises:
            MissingPackage: no connection, no Python, or no trtexec there.
            BuildError: `before` has no engine there.
        """
        try:
            timing = self._time(before, after)
        except BuildError as error:
            if error.where != str(after):
                raise
            return None, False, error.what
        self.measures = timing.summaries[1].clock
        return self.patterns.weigh(timing, pattern, self._host.word)

    def _time(self, before: Path, after: Path) -> Timing:
        about = [self._host.word, self._trtexec, digest_models((before, after)), self._flags, self._shapes]
        folder = self._folder / digest_of(about)
        finished = folder / "timing.json"
        if not finished.is_file():
            pair, shapes = (before, after), self._shapes
            timing = time_models((self._host,), pair, folder, self._trtexec, self._flags, shapes=shapes)
            TIMING.write(finished, timing)
        return TIMING.read(finished)
