"""The commands that write into the model what trtexec's flags said before 11, in their order."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import PurePath

from qdqtool.backends.flags import Flag

FLOATS = frozenset({"fp32", "fp16", "bf16"})
_WIDE = frozenset({"fp32"})
_BY_LAYER = frozenset({"layerPrecisions", "layerPrecision", "layerOutputTypes"})
_FORMATS = frozenset({"inputIOFormats", "outputIOFormats"})


def model_steps(flags: Sequence[Flag]) -> tuple[tuple[str, ...], str]:
    """Commands that make the model for 11, and the file they end with; no commands and "" where none is needed.

    INT8 comes from the calibration cache. Without one the model has Q/DQ already, or trtexec made up the ranges: the
    command line does not tell, so there is no command. Types come last, around the Q/DQ.
    """
    values = {flag.name: flag.value or "" for flag in flags}
    model = values.get("onnx", "")
    if not model:
        return (), ""
    types = "bf16" if "bf16" in values and "fp16" not in values else "fp16"
    typed = bool({"fp16", "bf16", "best"} & set(values))
    steps = []
    if values.get("calib"):
        step, model = _quantize(model, values["calib"], _named(flags, FLOATS))
        steps.append(step)
    if typed:
        target = str(PurePath(model).with_suffix(f".{types}.onnx"))
        keep = [word for name in _named(flags, _WIDE) for word in ("--keep", name)]
        half = ["--half-io"] if _all_half(flags) else []
        steps.append(shlex.join(["qdqtool", "convert", model, "-o", target, "--types", types, *keep, *half]))
        model = target
    return tuple(steps), model if steps else ""


def named_layers(flag: Flag, types: frozenset[str] = FLOATS) -> list[str]:
    """The layers that a flag wants in one of these types; one `*` is a glob here too."""
    pairs = (part.rpartition(":") for part in (flag.value or "").split(","))
    return [name for name, _, word in pairs if name and set(word.split("+")) <= types]


def exclusion(nodes: Sequence[str]) -> str:
    """The change of a recipe that keeps these nodes from INT8."""
    return f"place.exclude={json.dumps(list(nodes))}"


def _quantize(model: str, cache: str, floats: list[str]) -> tuple[str, str]:
    kept = ["--set", exclusion(floats)] if floats else []
    target = str(PurePath(model).with_suffix(".qdq.onnx"))
    return shlex.join(["qdqtool", "cache", "to-qdq", model, cache, "-o", target, *kept]), target


def _named(flags: Sequence[Flag], types: frozenset[str]) -> list[str]:
    """Layers of all flags that name precisions; `*` alone says what the other flags say."""
    found = [name for flag in flags if flag.name in _BY_LAYER for name in named_layers(flag, types)]
    return [name for name in dict.fromkeys(found) if name != "*"]


def _all_half(flags: Sequence[Flag]) -> bool:
    """Whether inputs and outputs were asked for in 16 bits, all of them."""
    given = {flag.name: (flag.value or "").split(",") for flag in flags if flag.name in _FORMATS}
    return set(given) == _FORMATS and all(
        part.partition(":")[0] in {"fp16", "bf16"} for parts in given.values() for part in parts
    )
