"""Say what became of every compute node in an engine: INT8 or not, why, and what to do.

Give a run folder, or a Q/DQ model together with `--layers`: a layer dump, the file of `--exportLayerInfo`, or a whole
build log. Every Conv, ConvTranspose, Gemm, MatMul and attention node gets a verdict; every check adds findings with
reason, fix and evidence. No GPU and no TensorRT is needed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from qdqtool.core.audit import Audit
    from qdqtool.core.findings import NodeVerdict


def audit(
    subject: Annotated[Path, typer.Argument(help="Run folder, or Q/DQ model.")],
    layers: Annotated[
        Path | None, typer.Option(help="Layer information or build log; default: that of the run folder.")
    ] = None,
    placement: Annotated[
        Path | None, typer.Option(help="placement.json; default: that of the run folder.")
    ] = None,
    ignore: Annotated[list[str] | None, typer.Option(help="Code or name of a check to leave out.")] = None,
    sm: Annotated[str, typer.Option(help="Architecture the engine was built for, as 86.")] = "",
    fail_on: Annotated[
        str, typer.Option(help="Exit with 1 from this severity on: error, warning, info, never.")
    ] = "never",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print findings.json instead of the table.")
    ] = False,
) -> int:
    """Say what became of every compute node in an engine: INT8 or not, why, and what to do."""
    from qdqtool.audit.run import audit as audit_engine
    from qdqtool.cli.audit_material import gather
    from qdqtool.cli.screen import stdout
    from qdqtool.cli.verdict import findings_missed, tell
    from qdqtool.core.kinds import AUDIT

    material = gather(subject, layers, placement, sm)
    found = audit_engine(
        material.model.view,
        material.engine,
        material.placement,
        ignore=tuple(ignore or ()),
        targets=material.targets,
    )
    if as_json:
        sys.stdout.write(AUDIT.dump(found))
    else:
        _show(stdout(), found)
    return tell(findings_missed(found.findings, fail_on))


def _show(console: Console, found: Audit) -> None:
    from qdqtool.core.dtypes import DType

    int8 = sum(verdict.precision is DType.INT8 for verdict in found.verdicts)
    counts = found.counts
    fused = f"{_bytes(counts.activation_bytes_fused)} with epilogues fused (estimated)"
    lines = [
        f"{int8} of {len(found.verdicts)} compute nodes run INT8",
        f"{counts.kernels} kernels: {counts.compute} compute, {counts.qdq} only quantize, dequantize, cast or reformat",
        f"activation bytes: {_bytes(counts.activation_bytes_dumped)} as dumped, {fused}",
    ]
    for verdict in found.verdicts:
        if verdict.precision is not DType.INT8:
            lines += _fallback(verdict)
    for finding in found.findings:
        lines += [
            f"{finding.severity.value} {finding.code} {finding.subject}: {finding.reason}",
            f"    fix: {finding.fix}",
        ]
    for line in (*lines, *(f"note: {note}" for note in found.notes)):
        console.print(line, markup=False, highlight=False)


def _fallback(verdict: NodeVerdict) -> list[str]:
    asked = "" if verdict.requested else " (not asked for)"
    return [
        f"not INT8{asked}: {verdict.op} {verdict.node} is {verdict.verdict.value}: {verdict.reason}",
        f"    fix: {verdict.fix}",
    ]


def _bytes(size: int | None) -> str:
    return "unknown" if size is None else f"{size:,}"


PLUGIN = audit
