"""Reads a trtexec command line and writes what becomes of it in TensorRT 11."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from qdqtool.backends.flags import Flag, plain_sizes, split_flags, workspace_pool
from qdqtool.backends.migration.advice import Action, Advice, Migration
from qdqtool.backends.migration.flag_facts import FATES, GONE_PREVIEWS, GONE_TACTIC_SOURCES, KEPT
from qdqtool.backends.migration.model_steps import exclusion, model_steps, named_layers
from qdqtool.backends.migration.ours import our_commands
from qdqtool.errors import UsageError

_OPTION = re.compile(r"--(?P<name>[A-Za-z][\w-]*)(?:=(?P<value>.*))?", re.DOTALL)
_MEASURED = (
    ("useCudaGraph", "noCudaGraph", "CUDA graphs"),
    ("useSpinWait", "noSpinWait", "spin-wait"),
    ("noDataTransfers", "includeDataTransfers", "no data transfers"),
)
"""What 11 does by itself when it measures, the flag that asked for it before, and the one that takes it back."""
_SKIPS_INFERENCE = frozenset({"skipInference", "buildOnly"})


def migrate_command(text: str, *, name: str = "") -> Migration:
    """The advice for a trtexec command line, program name or not, and the command for 11.

    Raises:
        UsageError: there is no flag in it.
    """
    flags = _flags(split_flags(text.replace("\\\n", " ")))
    if not flags:
        raise UsageError(
            "there is no trtexec flag in this", fix="pass a line like: trtexec --onnx=m.onnx --int8"
        )
    advice, kept = [], []
    for flag in flags:
        found, instead = _judge(flag)
        advice.append(found)
        if instead is not None:
            kept.append(instead)
    advice += _comparability(flags)
    steps, model = model_steps(flags)
    kept = [Flag(name="onnx", value=model) if model and flag.name == "onnx" else flag for flag in kept]
    command = shlex.join(["trtexec", *map(str, _once(kept))])
    return Migration(
        source="command line",
        name=name,
        advice=tuple(advice),
        steps=steps,
        ours=our_commands(_once(kept)),
        command=command,
    )


def gone_flag(word: str) -> Advice | None:
    """The advice for one word of a command line, if it is a flag that 11 does not have."""
    flags = _flags([word])
    if not flags or flags[0].name not in FATES:
        return None
    return _judge(flags[0])[0]


def _flags(words: Sequence[str]) -> list[Flag]:
    """The flags among the words: redirections, pipes and the program's name are passed over."""
    found = []
    for word in words:
        option = _OPTION.fullmatch(word)
        if option is not None:
            found.append(Flag(name=option["name"], value=option["value"]))
        elif word in {"|", "||", "&&", ";", "&"} and found:
            break
    return found


def _judge(flag: Flag) -> tuple[Advice, Flag | None]:
    """What becomes of a flag, and the flag that 11 gets in its place."""
    if flag.name == "workspace" and flag.value:
        pool = workspace_pool(flag)
        return _advice(flag, "replace", "gone since 10", f"use {pool}"), pool
    if flag.name == "memPoolSize" and plain_sizes(flag) != flag:
        pool = plain_sizes(flag)
        reason = "8 ignores the unit, and 10 and newer read only its last letter: MiB as bytes"
        return _advice(flag, "replace", reason, f"use {pool}, in MiB"), pool
    if flag.name in {"layerPrecisions", "layerOutputTypes"} and flag.value:
        return _advice(flag, "change the model", FATES[flag.name].reason, _keep_float(flag)), None
    if flag.name in FATES:
        fate = FATES[flag.name]
        if fate.renamed:
            renamed = Flag(name=fate.renamed, value=flag.value)
            return _advice(flag, fate.action, fate.reason, fate.do or f"use {renamed}"), renamed
        return _advice(flag, fate.action, fate.reason, fate.do), None
    changed = _changed_value(flag)
    if changed is not None:
        return changed
    if flag.name == "useDLACore":
        reason = "11.3 and 11.4 have no DLA on DRIVE OS; 11.4.0 is not for JetPack, 11.4.1 is, with DLA on AGX Orin"
        do = "AGX Orin: 11.4.1 with JetPack 7.2.2; elsewhere stay on 10 for DLA"
        return _advice(flag, "look up", reason, do), flag
    if flag.name in KEPT:
        return _advice(flag, "keep", "means the same in 11"), flag
    reason = "not a flag that is known here"
    return _advice(flag, "look up", reason, "look for it in trtexec --help of your 11"), flag


def _keep_float(flag: Flag) -> str:
    if not named_layers(flag):
        return "INT8 is what Q/DQ says: nothing where the model has it; else qdqtool run MODEL --samples SAMPLES --out RUN"
    if "*" in named_layers(flag):
        # The wildcard is for every layer without an entry of its own: it says the type of the model, and excludes none.
        return "the wildcard is the type of the whole model: qdqtool convert MODEL -o HALF, and Q/DQ where INT8 is meant"
    quantized = f"keep them from INT8: qdqtool run MODEL --set {shlex.quote(exclusion(named_layers(flag)))}"
    wide = named_layers(flag, frozenset({"fp32"}))
    if not wide:
        return quantized
    return f"{quantized}; keep FP32: qdqtool convert MODEL {shlex.join(f'--keep={name}' for name in wide)}"


def _changed_value(flag: Flag) -> tuple[Advice, Flag | None] | None:
    """The fate of a flag that stays with another value; None when its value stays too."""
    value = flag.value or ""
    parts = value.split(",")
    if flag.name in {"inputIOFormats", "outputIOFormats"}:
        kept = [part.rpartition(":")[2] for part in parts]
        reason = "types stand in the model; only the memory layout is left to say"
    elif flag.name == "tacticSources":
        kept = [part for part in parts if part.lstrip("+-").upper() not in GONE_TACTIC_SOURCES]
        reason = "cuBLAS and cuDNN are no tactic sources in 11"
    elif flag.name == "preview":
        kept = [part for part in parts if part.lstrip("+-") not in GONE_PREVIEWS]
        reason = "this is no longer a preview feature"
    elif flag.name == "profilingVerbosity":
        kept = [{"default": "layer_names_only", "verbose": "detailed"}.get(part, part) for part in parts]
        reason = "the old words are gone"
    else:
        return None
    if kept == parts:
        return None
    if not kept:
        return _advice(flag, "drop", reason), None
    instead = Flag(name=flag.name, value=",".join(kept))
    return _advice(flag, "replace", reason, f"use {instead}"), instead


def _comparability(flags: list[Flag]) -> Iterator[Advice]:
    """What to add so that times of 11 compare with those of this command before."""
    names = {flag.name for flag in flags}
    if names & _SKIPS_INFERENCE:
        return
    for before, now, what in _MEASURED:
        if before not in names and now not in names:
            yield Advice(
                where="times",
                what=f"without --{before}",
                action="measure anew",
                reason=f"11 measures with {what} by itself: its times are not those of this command before",
                do=f"add --{now} to compare with old figures; better, measure both again with 11's defaults",
            )


def _once(flags: list[Flag]) -> list[Flag]:
    return list(dict.fromkeys(flags))


def _advice(flag: Flag, action: Action, reason: str, do: str = "") -> Advice:
    return Advice(where=f"--{flag.name}", what=str(flag), action=action, reason=reason, do=do)
