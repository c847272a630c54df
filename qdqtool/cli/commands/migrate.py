"""Say what to do for TensorRT 11: for a trtexec command line, a script, a calibration cache, an engine or a build.

    qdqtool migrate -- trtexec --onnx=m.onnx --int8 --fp16 --calib=c.cache
    qdqtool migrate build.py
    qdqtool migrate calibration.cache
    qdqtool migrate old_build/

Flags are mapped to new ones, or removed with the reason. Calibrators become explicit Q/DQ (`qdqtool cache to-qdq`),
--fp16 and layer precisions become types in the model (`qdqtool convert --types fp16 --keep NODE`), algorithm selectors
become pins in an editable timing cache, and times of 10 are separated from times of 11, which are measured with other
defaults. Scripts are read by their syntax tree and never run; nothing is changed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def migrate(
    what: Annotated[list[str], typer.Argument(help="File, folder, or trtexec command line after `--`.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the advice as JSON.")] = False,
) -> None:
    """List the changes that TensorRT 11 needs in a command line, script, calibration cache, engine or build folder."""
    import shlex

    from qdqtool.backends.migration.command_line import MIGRATION, migrate_command, unneeded_flags
    from qdqtool.backends.migration.folder import migrate_path
    from qdqtool.cli.screen import stdout

    if len(what) == 1 and not what[0].startswith("trtexec ") and _exists(Path(what[0])):
        migration = migrate_path(Path(what[0]))
    else:
        migration = migrate_command(what[0] if len(what) == 1 else shlex.join(what))
    if as_json:
        sys.stdout.write(MIGRATION.dump(migration))
        return
    console = stdout()
    kept = [advice.what for advice in migration.advice if advice.action == "keep"]
    for advice in migration.advice:
        if advice.action == "keep":
            continue
        console.print(f"{advice.action}: {advice.what}  [{advice.where}]")
        console.print(f"    {advice.reason}")
        if advice.do:
            console.print(f"    -> {advice.do}")
    if not migration.advice:
        console.print("nothing here uses a function or flag that TensorRT 11 changed")
    if kept:
        console.print(f"keep: {' '.join(kept)}")
    for step in migration.steps:
        console.print(f"\nfirst: {step}" if step == migration.steps[0] else f"then: {step}")
    for line in migration.ours:
        console.print(f"\nwith qdqtool: {line}")
    for flag, why in unneeded_flags(migration.advice):
        console.print(f"    {flag} has no option of qdqtool: {why}")
    if migration.command:
        console.print(f"\nfor 11: {migration.command}")


def _exists(path: Path) -> bool:
    """Return True if the path exists; False for a command line that is too long for a file name."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


PLUGIN = migrate
