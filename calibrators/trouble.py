"""What goes wrong inside a call from C++, where an exception is printed at most and then forgotten."""

from __future__ import annotations

import logging
import warnings

LOG = logging.getLogger("calibrators.tensorrt")


class CalibrationDataWarning(RuntimeWarning):
    """An engine may have been built from half a calibration, and nobody has asked."""


class Trouble:
    """The first error of a calibration: told at once, told again, and raised as soon as Python can raise it.

    Attributes:
        error: the first error that nobody has heard of yet; None when all is well.
        unheard: the same in words, for `warn_of`: unlike the error it leads to no frame, so what keeps it keeps
            nothing else alive.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.unheard: list[str] = []

    def note(self, error: BaseException) -> None:
        """Keep the first error and log it."""
        if self.error is not None:
            return
        self.error = error
        self.unheard.append(f"calibration failed: {type(error).__name__}: {error}")
        LOG.error(
            "%s. TensorRT takes this for the end of the data: do not use the engine that it builds now",
            self.unheard[0],
        )

    def remind(self, consequence: str) -> None:
        """Log what the error leads to."""
        LOG.error("%s: %s", consequence, *self.unheard)

    def forget(self) -> BaseException | None:
        """The error, which is heard of from now on."""
        error, self.error = self.error, None
        self.unheard.clear()
        return error


def warn_of(unheard: list[str]) -> None:
    """The last chance, when a calibrator goes or Python ends: an error that nobody has heard of is a warning."""
    for text in unheard:
        warnings.warn(
            f"{text}. Nobody called finish() or left a `with` block, so the engine may be half calibrated",
            CalibrationDataWarning,
            stacklevel=2,
        )
