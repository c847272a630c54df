"""Quantization costs more accuracy than it should.

With labels the task metric decides: a loss above 1 point that is more than noise is a warning, one above 5 points an
error. Without labels it is the signal-to-noise ratio of the noisiest output, and of the boxes and scores inside an
output, or before its selection: below 15 dB the noise is 18 % of the signal, below 8 dB 40 %, which is an error in the
first output. The finding names the nodes at whose outputs most is lost, and the measured gain of keeping them float.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.advice import excluding
from qdqtool.core.commands import Command
from qdqtool.core.comparison import DECIBELS, loss, subject
from qdqtool.core.findings import Severity
from qdqtool.core.wording import counted
from qdqtool.datachecks.evidence import DataCheck, DataEvidence, Doubt, FloatCure, NarrowLoss


def find(evidence: DataEvidence) -> Iterator[Doubt]:
    """Yield at most one doubt."""
    if evidence.comparison is None or not evidence.comparison.meaningful:
        return
    severity, reason = loss(evidence.comparison)
    if severity is None:
        return
    cure = evidence.cure
    yield Doubt(
        subject=subject(evidence.comparison),
        reason=f"{reason}{_where(cure)}",
        fix=_of_type(evidence.narrow) or _fix(cure, calibrated=evidence.calibrated),
        severity=severity,
    )


def _of_type(narrow: NarrowLoss | None) -> str:
    """Return the fix if the type of the float part, and not quantization, costs the accuracy; else ""."""
    if narrow is None or (narrow.wide_db is not None and narrow.wide_db < DECIBELS):
        return ""
    return f"{narrow.types.upper()} causes the loss, not quantization: DAT112 names the nodes and the fix"


def _where(cure: FloatCure | None) -> str:
    return f"; most is lost at {', '.join(cure.nodes)}" if cure and cure.nodes else ""


def _fix(cure: FloatCure | None, *, calibrated: bool) -> str:
    # a model that came with Q/DQ has nothing to calibrate
    others = (
        f"{Command('sweep')} at other calibrators"
        if calibrated
        else "the float model can be calibrated again"
    )
    if cure is None or not cure.nodes:
        return f"{Command('sensitivity')} finds the nodes that lose most; other calibrators and recipes may be better"
    excluded = excluding(cure.nodes)
    if cure.after_db is None or cure.before_db is None:
        return f"keep them float: {excluded}"
    measured = (
        f"{cure.before_db:.1f} -> {cure.after_db:.1f} dB on {counted(cure.samples, 'sample')} (measured)"
    )
    if cure.after_db < cure.before_db + 1:
        gain = "brings little" if cure.after_db > cure.before_db else "does not help"
        return f"keeping them float {gain}, {measured}: {Command('sensitivity')} measures all nodes, {others}"
    return f"keep them float: {excluded}, {measured}"


PLUGIN = DataCheck(code="DAT107", severity=Severity.WARNING, find=find)
