"""The target builder: TensorRT for RTX, or a release of TensorRT, and the GPU architectures.

One spelling for every command and recipe: `rtx`, a family (`8`, `10`, `11`), or a release of TensorRT (`8.6.1`,
`10.13`, `v11.4`) or of TensorRT for RTX (`rtx-1.7.1`). The table `_DOES` has the changes between releases.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from qdqtool.core.wording import Command
from qdqtool.errors import UsageError

_DLA = (
    "; DLA is not a target: check for the release of TensorRT on the device, and quantize with "
    f"{Command('run', ('MODEL', '--samples', 'DATA', '--recipe', 'dla-int8'))}, which gives every tensor the scale that DLA asks for"
)
"""Advice for DLA, which is not a target."""

FAMILIES = ("8", "10", "11", "rtx")
"""One target name per set of behaviours that rules distinguish; releases 9.x behave as 8.x."""
_NEWEST = {8: (8, 6), 9: (9, 3), 10: (10, 99), 11: (11, 99)}
"""The release assumed for a TensorRT family without a release: its newest member."""
_NEWEST_RTX = (1, 7, 1)
"""The release assumed for TensorRT for RTX without a release: the newest one used for test builds."""
_Span = tuple[tuple[int, ...], tuple[int, ...] | None]
"""The first release with a behaviour, and the first release without it again; None if it was never removed."""
_ALWAYS: tuple[_Span, ...] = (((0,), None),)
_DOES: dict[str, tuple[tuple[_Span, ...], tuple[_Span, ...]]] = {
    # What                        TensorRT                                    TensorRT for RTX
    "scales_transposed_inputs": ((((8,), (9,)),), ()),
    "scales_transposed_somehow": ((((9,), None),), ()),
    "reads_stored_weights": ((((10, 0), None),), _ALWAYS),
    "reads_half_scales": ((((10,), None),), _ALWAYS),
    "reads_computed_scales": ((((10, 1), None),), _ALWAYS),
    "builds_without_type_flags": ((((10,), None),), _ALWAYS),
    "has_type_flags": ((((8,), (11,)),), ()),
    "builds_depthwise_swish": ((((10,), None),), _ALWAYS),
}
"""Behaviours of releases, as spans of releases; each is a property of `Target`. For number formats see `core.tensors`."""
_RELEASE = re.compile(r"v?(\d{1,4})((?:\.\d{1,4}){0,3})", re.ASCII)
_SM = re.compile(r"(?:sm)?[_-]?(\d+)\.?(\d)", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A builder with its release and GPU architectures.

    Attributes:
        kind: "rtx" (TensorRT for RTX) or "trt" (TensorRT, the full one).
        release: the release as far as it was named, (10, 13); empty for TensorRT for RTX of no named release.
        sm: GPU architectures, as "86"; empty if not given.
    """

    kind: str = "rtx"
    release: tuple[int, ...] = ()
    sm: tuple[str, ...] = ()

    @classmethod
    def parse(cls, word: str, sm: Iterable[str] = (), *, where: str = "--target") -> Target:
        """Parse a target in any accepted spelling.

        Raises:
            UsageError: no such builder, or no GPU architecture; `where` names the option or the place in a recipe.
        """
        architectures = tuple(_architecture(each, where) for each in sm)
        spelled = word.strip().lower()
        if spelled == "rtx":
            return cls(sm=architectures)
        numbers = _RELEASE.fullmatch(spelled.removeprefix("rtx-"))
        is_rtx = spelled.startswith("rtx-")
        if numbers is None or int(numbers[1]) not in ((_NEWEST_RTX[0],) if is_rtx else _NEWEST):
            raise UsageError(
                f"unknown target {word!r}",
                fix=f"pass a family ({', '.join(FAMILIES)}) or a release, such as 10.13 (TensorRT, 8.0 or newer) or rtx-1.7.1 (TensorRT for RTX)"
                f"{_DLA if spelled == 'dla' else ''}",
                where=where,
            )
        release = (int(numbers[1]), *map(int, numbers[2].split(".")[1:]))
        return cls(kind="rtx" if is_rtx else "trt", release=release, sm=architectures)

    @property
    def is_rtx(self) -> bool:
        """True for TensorRT for RTX."""
        return self.kind == "rtx"

    @property
    def family(self) -> str:
        """The family of the target, one of `FAMILIES`."""
        return "rtx" if self.is_rtx else str(8 if self.release[0] == 9 else self.release[0])

    @property
    def name(self) -> str:
        """The name for users: rtx, rtx-1.7.1, 10, 10.13."""
        return "-".join(filter(None, ("rtx" if self.is_rtx else "", ".".join(map(str, self.release)))))

    def is_before(self, *release: int) -> bool:
        """Return True if this TensorRT is older than `release`; always False for TensorRT for RTX."""
        if self.is_rtx:
            return False
        return self._effective_release < release

    @property
    def _effective_release(self) -> tuple[int, ...]:
        """The TensorRT release whose behaviour is assumed for this target."""
        if len(self.release) > 1:
            return self.release
        return _NEWEST_RTX if self.is_rtx else _NEWEST[self.release[0]]

    def _does(self, behaviour: str) -> bool:
        spans = _DOES[behaviour][self.is_rtx]
        return any(
            first <= self._effective_release and (end is None or self._effective_release < end)
            for first, end in spans
        )

    @property
    def transposed_axis(self) -> int | None:
        """The axis of the scales of ConvTranspose weights; None if it is unknown.

        TensorRT 8: the input channels (NVIDIA/TensorRT issues 1519, 1694 and 1699 on 8.0 and 8.2, 2380 on 8.4).
        TensorRT 9 and newer: unknown. NVIDIA's own tools for these scales differ (axis 0 and axis 1), and no log or
        thread shows the axis that the builder reads. TensorRT for RTX computes a ConvTranspose in float: the output
        channels, as the standard counts them.
        """
        if self._does("scales_transposed_somehow"):
            return None
        return 0 if self._does("scales_transposed_inputs") else 1

    @property
    def reads_stored_weights(self) -> bool:
        """True if the builder reads low-bit weights stored before a DequantizeLinear. TensorRT 8 needs a Q too."""
        return self._does("reads_stored_weights")

    @property
    def reads_half_scales(self) -> bool:
        """True if scales may be FP16. TensorRT 8 reads only FP32 scales."""
        return self._does("reads_half_scales")

    @property
    def reads_computed_scales(self) -> bool:
        """True if the parser accepts scales that are computed at run time. The compute node is then float."""
        return self._does("reads_computed_scales")

    @property
    def builds_without_type_flags(self) -> bool:
        """True if the types in the model decide the types in the engine: then no flag such as --fp16 is needed."""
        return self._does("builds_without_type_flags")

    @property
    def has_type_flags(self) -> bool:
        """True if flags such as --fp16 can choose types. Newer builders support only strong typing."""
        return self._does("has_type_flags")

    @property
    def builds_depthwise_swish(self) -> bool:
        """True if a quantized depthwise convolution with a Swish after it has a kernel."""
        return self._does("builds_depthwise_swish")


def _architecture(word: str, where: str) -> str:
    """Normalize a GPU architecture to "86", from "86", "8.6", "SM_86" or "sm86"."""
    spelled = _SM.fullmatch(word.strip())
    if spelled is None or not 2 <= len(spelled[1] + spelled[2]) <= 3:
        raise UsageError(
            f"{word!r} is not a GPU architecture",
            fix="write it as 86 or 120",
            where="--sm" if where == "--target" else where,
        )
    return f"{spelled[1]}{spelled[2]}"


def target_of(word: str) -> str:
    """Normalize a GPU architecture: "86", "8.6", "SM_86" and "sm86" become "sm86". Other words become lower case."""
    spelled = _SM.fullmatch(word.strip())
    return f"sm{spelled[1]}{spelled[2]}" if spelled else word.strip().lower()


def packed_release(number: int) -> tuple[int, int, int]:
    """Split the packed number of a release in a banner or a calibration cache: 8412 is 8.4.12, 101401 is 10.14.1."""
    if number < 10_000:
        return number // 1000, number // 100 % 10, number % 100
    return number // 10_000, number // 100 % 100, number % 100
