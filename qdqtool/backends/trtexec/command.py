"""Puts a build's command line together for one particular trtexec."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from qdqtool.backends.building.products import ENGINE, LAYERS
from qdqtool.backends.flags import Flag, plain_sizes
from qdqtool.backends.trtexec.program import Program
from qdqtool.core.build import BuildRequest, InputProfile, Shape
from qdqtool.errors import UsageError

_OURS = frozenset(
    {"onnx", "saveEngine", "loadEngine", "exportLayerInfo", "minShapes", "optShapes", "maxShapes"}
)
"""Flags that the request itself says."""


def build_command(
    program: Program, request: BuildRequest, flags: tuple[Flag, ...], drafts: Path
) -> list[str]:
    """The command that builds `request` with `flags`, its products going to `drafts`.

    Raises:
        UsageError: a flag that this trtexec does not know, or one that contradicts the request.
    """
    clash = [str(flag) for flag in flags if flag.name in _OURS]
    if clash:
        raise UsageError(f"{', '.join(clash)} is said by the build itself", fix="leave it out of the flags")
    program.check(flags)
    ours = [
        Flag(name="onnx", value=str(request.model.absolute())),
        Flag(name="saveEngine", value=str((drafts / ENGINE).absolute())),
        *_shapes(request.profiles, program),
        *_wished(program, drafts),
    ]
    given = {flag.name for flag in flags}
    both = [*(flag for flag in ours if flag.name not in given), *map(plain_sizes, flags)]
    return [str(program.path), *map(str, both)]


def _wished(program: Program, drafts: Path) -> Iterable[Flag]:
    """What we want of every build, where this trtexec has it."""
    choices = (
        Flag(name="exportLayerInfo", value=str((drafts / LAYERS).absolute())),
        Flag(name="profilingVerbosity", value="detailed"),
        Flag(name="verbose"),
    )
    yield from (flag for flag in choices if flag.name in program.flags)
    build_only = program.first_of("skipInference", "buildOnly")
    if build_only:
        yield build_only


def _shapes(profiles: tuple[InputProfile, ...], program: Program) -> Iterable[Flag]:
    """The shapes of every optimization profile, in order; several are told apart by --profile."""
    numbers = sorted({profile.number for profile in profiles})
    if len(numbers) > 1:
        program.check((Flag(name="profile"),))
    for number in numbers:
        if len(numbers) > 1:
            yield Flag(name="profile", value=str(number))
        here = [profile for profile in profiles if profile.number == number]
        yield Flag(name="minShapes", value=_spell({profile.name: profile.low for profile in here}))
        yield Flag(name="optShapes", value=_spell({profile.name: profile.opt for profile in here}))
        yield Flag(name="maxShapes", value=_spell({profile.name: profile.high for profile in here}))


def _spell(shapes: dict[str, Shape]) -> str:
    return ",".join(f"{name}:{'x'.join(map(str, shape))}" for name, shape in shapes.items())
