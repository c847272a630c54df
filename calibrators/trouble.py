"""Errors inside a call from C++, which prints an exception at most and then ignores it."""

from __future__ import annotations

import logging
import warnings

LOG = logging.getLogger("calibrators.tensorrt")


class CalibrationDataWarning(RuntimeWarning):
    """Warning: an engine may have been built from half a calibration, and the program did not check."""


class Trouble:
    """The first error of a calibration. It is logged at once, and raised as soon as Python can raise it.

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
        """Log the consequence of the error."""
        LOG.error("%s: %s", consequence, *self.unheard)

    def forget(self) -> BaseException | None:
        """Return the error, and mark it as reported."""
        error, self.error = self.error, None
        self.unheard.clear()
        return error


def warn_of(unheard: list[str]) -> None:
    """Warn of an error that was never reported, when the calibrator is deleted or Python ends."""
    for text in unheard:
        warnings.warn(
            f"{text}. Nobody called finish() or left a `with` block, so the engine may be half calibrated",
            CalibrationDataWarning,
            stacklevel=2,
        )
