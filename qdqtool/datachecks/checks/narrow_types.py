"""FP16 or BF16 costs more accuracy than quantization.

The float part of the Q/DQ model was given a type of 16 bits (`insert.types`), and the same model with that part in FP32
has far less noise: more than half of all noise comes from the type. The finding names the nodes at whose outputs most
is lost, and the measured gain of keeping them FP32. The causes are values beyond the range of the type, or sums of
large and small values.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.advice import setting
from qdqtool.core.commands import Setting
from qdqtool.core.comparison import subject
from qdqtool.core.findings import Severity
from qdqtool.core.wording import counted
from qdqtool.datachecks.evidence import DataCheck, DataEvidence, Doubt, NarrowLoss


def find(evidence: DataEvidence) -> Iterator[Doubt]:
    """Yield at most one doubt."""
    found, comparison = evidence.narrow, evidence.comparison
    if found is None or comparison is None:
        return
    wide = "all of the signal" if found.wide_db is None else f"{found.wide_db:.1f} dB"
    where = f"; most is lost at {', '.join(found.nodes)}" if found.nodes else ""
    yield Doubt(
        subject=subject(comparison),
        reason=f"{found.types.upper()} costs more than quantization: the noisiest output keeps {wide} with the float part in "
        f"FP32, {found.narrow_db:.1f} dB in {found.types.upper()} ({counted(found.samples, 'sample')}){where}",
        fix=_fix(found),
    )


def _fix(found: NarrowLoss) -> str:
    wide = f"keep the float part FP32: {Setting('insert.types', 'fp32')}"
    if found.kept_db is None or found.kept_db < found.narrow_db + 1:
        return wide
    kept = setting("insert.keep_nodes", found.nodes)
    return f"keep these nodes FP32: {kept} ({found.narrow_db:.1f} -> {found.kept_db:.1f} dB, measured); or {wide}"


PLUGIN = DataCheck(code="DAT112", severity=Severity.WARNING, find=find)
