"""Says what became of every compute node in an engine, why, and what to do about it."""

from qdqtool.audit.counts import counts
from qdqtool.audit.run import audit, examine
from qdqtool.audit.scene import stage
from qdqtool.audit.verdicts import verdicts

__all__ = ["audit", "counts", "examine", "stage", "verdicts"]
